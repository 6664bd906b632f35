//! Turns that are lent over a socket: two schedulers of one process, the one as the process of a task of the other.
#![cfg(unix)]

mod tenants;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pygpukit_core::cpu::{CpuConfig, CpuDevice};
use pygpukit_core::launch::submit;
use pygpukit_core::memory::ArenaMode;
use pygpukit_core::runtime::DeviceState;
use pygpukit_core::sched::clock::Monotonic;
use pygpukit_core::sched::{Class, Health, Isolation, Options, Request, Scheduler, Share, Tenant};
use tenants::{busy, context, start};

fn scheduler() -> Arc<Scheduler> {
    scheduler_on(CpuConfig::default())
}

fn scheduler_on(config: CpuConfig) -> Arc<Scheduler> {
    let config = CpuConfig { total_memory: Some(1 << 30), sm_count: Some(1), ..config };
    let state = DeviceState::new(CpuDevice::new(config), ArenaMode::Vmm, false).unwrap();
    Arc::new(Scheduler::new(state, Options::default(), Arc::new(Monotonic)).unwrap())
}

fn of_process(bandwidth: f64) -> Request {
    Request { isolation: Isolation::Process, ..of_thread(bandwidth) }
}

fn of_thread(bandwidth: f64) -> Request {
    let bandwidth = Share::from_f64("bandwidth", bandwidth).unwrap();
    Request { bandwidth, ..Request::new(Class::Burstable) }
}

fn lend(tenant: &Arc<Tenant>) -> (UnixStream, JoinHandle<()>) {
    let (here, there) = UnixStream::pair().unwrap();
    let lease = tenant.lease.clone();
    (there, std::thread::spawn(move || lease.lend(here).unwrap()))
}

fn until(mut condition: impl FnMut() -> bool) {
    let limit = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < limit, "it never came");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn message(tag: u8) -> [u8; 33] {
    let mut bytes = [0; 33];
    bytes[0] = tag;
    bytes
}

const WANT: u8 = 1;
const DONE: u8 = 4;
const GO: u8 = 5;
const RECALL: u8 = 6;

fn next_tag(socket: &mut UnixStream) -> u8 {
    let mut bytes = [0; 33];
    socket.read_exact(&mut bytes).unwrap();
    bytes[0]
}

#[test]
fn work_runs_in_turns_and_is_charged_to_the_lender() {
    let (lender, borrower) = (scheduler(), scheduler());
    let seat = start(&lender, "apart", of_process(0.5));
    let (there, lending) = lend(&seat);
    let gate = borrower.common();
    let orders = gate.hold_back(there).unwrap();
    let obeying = std::thread::spawn(move || gate.obey(orders).unwrap());

    let inside = start(&borrower, "inside", Request::new(Class::BestEffort));
    let neighbour = start(&lender, "beside", of_thread(0.5));
    let stop = Arc::new(AtomicBool::new(false));
    let threads: Vec<_> = [context(&borrower, &inside), context(&lender, &neighbour)]
        .into_iter()
        .map(|ctx| {
            let stop = stop.clone();
            std::thread::spawn(move || {
                while !stop.load(Ordering::Acquire) {
                    submit(&ctx, busy(Duration::from_micros(300))).unwrap();
                }
            })
        })
        .collect();
    std::thread::sleep(Duration::from_millis(600));
    stop.store(true, Ordering::Release);
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(seat.lease.health(), Health::Running);
    // The lender's books hold what the borrower measured: all of it once the turn is back.
    let (mine, theirs) = (seat.lease.used(), inside.lease.used());
    let measured = theirs.measured_ns + theirs.predicted_ns;
    assert!(mine.measured_ns > 50_000_000, "{mine:?}");
    assert!(mine.measured_ns <= measured, "{} of {measured}", mine.measured_ns);
    assert!(mine.turns > 5, "{mine:?}");
    assert!(neighbour.lease.used().measured_ns > 50_000_000);
    seat.lease.end();
    lending.join().unwrap();
    obeying.join().unwrap();
    assert_eq!(seat.lease.health(), Health::Absent);
}

#[test]
fn what_ended_was_told_before_anybody_hears_of_its_end() {
    for deferred in [None, Some(1)] {
        let lender = scheduler();
        let borrower = scheduler_on(CpuConfig { deferred, ..CpuConfig::default() });
        let seat = start(&lender, "apart", of_process(0.5));
        let (there, lending) = lend(&seat);
        let gate = borrower.common();
        let orders = gate.hold_back(there).unwrap();
        let obeying = {
            let gate = gate.clone();
            std::thread::spawn(move || gate.obey(orders).unwrap())
        };
        let inside = start(&borrower, "inside", Request::new(Class::BestEffort));
        let ctx = context(&borrower, &inside);
        submit(&ctx, busy(Duration::from_micros(100))).unwrap();
        ctx.stream.synchronize(&mut || Ok(())).unwrap();
        borrower.finish(inside.id, &mut || Ok(())).unwrap();
        gate.report().unwrap();
        // It is on its way: no idle time of the borrower has to pass.
        until(|| seat.lease.used().measured_ns > 0);
        assert!(seat.lease.used().measured_ns >= 90_000, "{:?}", seat.lease.used());
        seat.lease.end();
        lending.join().unwrap();
        obeying.join().unwrap();
    }
}

#[test]
fn a_silent_borrower_loses_its_turn_and_gets_another_when_it_speaks() {
    let lender = scheduler();
    let seat = start(&lender, "silent", of_process(0.5));
    let (mut there, lending) = lend(&seat);
    there.write_all(&message(WANT)).unwrap();
    assert_eq!(next_tag(&mut there), GO);
    assert_eq!(lender.common().holder().as_deref(), Some("silent"));

    let neighbour = start(&lender, "beside", of_thread(0.5));
    let ctx = context(&lender, &neighbour);
    submit(&ctx, busy(Duration::from_micros(10))).unwrap();
    assert_eq!(next_tag(&mut there), RECALL);
    assert_eq!(seat.lease.health(), Health::Unresponsive);

    // It wants more, but first it has to say that it has ended.
    there.write_all(&message(WANT)).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    assert_ne!(lender.common().holder().as_deref(), Some("silent"));
    there.write_all(&message(DONE)).unwrap();
    assert_eq!(next_tag(&mut there), GO);
    assert_eq!(seat.lease.health(), Health::Running);

    drop(there);
    lending.join().unwrap();
    submit(&ctx, busy(Duration::from_micros(10))).unwrap();
    assert_ne!(lender.common().holder().as_deref(), Some("silent"));
}

#[test]
fn nonsense_ends_the_loan() {
    let lender = scheduler();
    let seat = start(&lender, "mad", of_process(0.5));
    let (mut there, lending) = lend(&seat);
    there.write_all(&message(WANT)).unwrap();
    assert_eq!(next_tag(&mut there), GO);
    let mut report = message(DONE);
    report[1..].fill(0xff);
    there.write_all(&report).unwrap();
    until(|| lender.common().holder().is_none());
    there.write_all(&message(77)).unwrap();
    lending.join().unwrap();
    assert_eq!(seat.lease.used().measured_ns, 0);
}

#[test]
fn nothing_is_submitted_without_leave() {
    let borrower = scheduler();
    let (mut here, there) = UnixStream::pair().unwrap();
    let gate = borrower.common();
    let orders = gate.hold_back(there).unwrap();
    let obeying = std::thread::spawn(move || gate.obey(orders).unwrap());
    let tenant = start(&borrower, "inside", Request::new(Class::BestEffort));
    let ran = Arc::new(AtomicBool::new(false));
    let (ctx, told) = (context(&borrower, &tenant), ran.clone());
    let working = std::thread::spawn(move || {
        submit(&ctx, busy(Duration::from_micros(100))).unwrap();
        told.store(true, Ordering::Release);
    });
    assert_eq!(next_tag(&mut here), WANT);
    std::thread::sleep(Duration::from_millis(50));
    assert!(!ran.load(Ordering::Acquire));
    let mut go = message(GO);
    go[1..9].copy_from_slice(&1_000_000i64.to_le_bytes());
    here.write_all(&go).unwrap();
    working.join().unwrap();
    // A recall is answered by what was used, whatever was said before.
    here.write_all(&message(RECALL)).unwrap();
    while next_tag(&mut here) != DONE {}
    drop(here);
    obeying.join().unwrap();
}
