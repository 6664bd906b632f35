//! Turns that another library has: held until they are let go of, on streams that keep their handles meanwhile.

mod tenants;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use pygpukit_core::command::Command;
use pygpukit_core::cpu::{CpuConfig, CpuDevice};
use pygpukit_core::device::RawStream;
use pygpukit_core::error::Error;
use pygpukit_core::launch::submit;
use pygpukit_core::memory::{ArenaMode, external};
use pygpukit_core::runtime::DeviceState;
use pygpukit_core::sched::clock::Monotonic;
use pygpukit_core::sched::{Class, Mode, Options, Request, Scheduler, Share, Tenant};
use tenants::{busy, context, start};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);
/// Long enough for a thread that could go on to have done so.
const PAUSE: Duration = Duration::from_millis(20);

fn scheduler_with(config: CpuConfig, options: Options) -> Arc<Scheduler> {
    let config = CpuConfig { total_memory: Some(1 << 30), sm_count: Some(8), ..config };
    let state = DeviceState::new(CpuDevice::new(config), ArenaMode::Vmm, false).unwrap();
    Arc::new(Scheduler::new(state, options, Arc::new(Monotonic)).unwrap())
}

fn scheduler() -> Arc<Scheduler> {
    scheduler_with(CpuConfig::default(), Options::default())
}

fn besteffort(weight: u32) -> Request {
    Request { weight, ..Request::new(Class::BestEffort) }
}

fn guaranteed() -> Request {
    let bandwidth = Share::from_f64("bandwidth", 0.25).unwrap();
    Request { bandwidth, ..Request::new(Class::Guaranteed) }
}

fn quick() -> Command {
    busy(Duration::ZERO)
}

fn begin(tenant: &Tenant) -> RawStream {
    tenant.lease.begin_external(&tenant.stream, 7).unwrap()
}

/// Run something in a thread, which tells when it has ended.
fn aside<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
    let (tell, told) = channel();
    std::thread::spawn(move || tell.send(run()));
    told
}

fn measured(tenant: &Tenant) -> Duration {
    Duration::from_nanos(tenant.lease.used().measured_ns)
}

#[test]
fn others_wait_until_a_held_turn_is_let_go_of() {
    let scheduler = scheduler();
    let (one, two) = (start(&scheduler, "one", besteffort(1)), start(&scheduler, "two", besteffort(1)));
    begin(&one);
    let ctx = context(&scheduler, &two);
    let other = aside(move || submit(&ctx, quick()));
    std::thread::sleep(PAUSE);
    assert!(other.try_recv().is_err());
    assert_eq!(two.lease.waiting(), 1);
    // What the thread that holds the turn submits is in it, though the turn was closed.
    submit(&context(&scheduler, &one), quick()).unwrap();
    one.lease.end_external(true);
    other.recv_timeout(PATIENCE).unwrap().unwrap();
    assert!(measured(&one) >= PAUSE, "{:?}", one.lease.used());
    assert!(measured(&two) < PAUSE, "{:?}", two.lease.used());
}

#[test]
fn turns_inside_of_one_are_the_same_turn() {
    let scheduler = scheduler();
    let (one, two) = (start(&scheduler, "one", besteffort(1)), start(&scheduler, "two", besteffort(1)));
    let outer = begin(&one);
    let ctx = context(&scheduler, &two);
    let other = aside(move || submit(&ctx, quick()));
    while two.lease.waiting() == 0 {
        std::thread::yield_now();
    }
    std::thread::sleep(PAUSE);
    assert_eq!(begin(&one), outer);
    one.lease.end_external(false);
    assert!(one.lease.holds_external());
    assert!(other.try_recv().is_err());
    one.lease.end_external(true);
    assert!(!one.lease.holds_external());
    // Nothing is held, and nothing happens.
    one.lease.end_external(true);
    other.recv_timeout(PATIENCE).unwrap().unwrap();
}

#[test]
fn another_stream_of_the_task_joins_the_held_turn() {
    let scheduler = scheduler();
    let own = start(&scheduler, "own", guaranteed());
    let stream = scheduler.state().stream(0).unwrap();
    begin(&own);
    submit(&context(&scheduler, &own).on_stream(&stream), quick()).unwrap();
    assert_eq!(stream.lane().id(), own.stream.lane().id());
    own.lease.end_external(true);
}

#[test]
fn other_threads_of_the_task_submit_in_the_held_turn() {
    let scheduler = scheduler();
    let own = start(&scheduler, "own", besteffort(1));
    begin(&own);
    let (ctx, tenant) = (context(&scheduler, &own), own.clone());
    let done = aside(move || {
        for kind in 0..20 {
            submit(&ctx, busy(Duration::from_micros(200))).unwrap();
            tenant.lease.begin_external(&tenant.stream, kind).unwrap();
            tenant.lease.end_external(true);
        }
    });
    done.recv_timeout(PATIENCE).unwrap();
    assert!(own.lease.holds_external());
    own.lease.end_external(true);
    assert_eq!(own.lease.used().submissions, 41);
}

#[test]
fn held_turns_share_by_weight() {
    let scheduler = scheduler();
    let tenants = [start(&scheduler, "one", besteffort(3)), start(&scheduler, "two", besteffort(7))];
    let stop = Arc::new(AtomicBool::new(false));
    let threads: Vec<_> = tenants
        .iter()
        .map(|tenant| {
            let (tenant, stop) = (tenant.clone(), stop.clone());
            std::thread::spawn(move || {
                while !stop.load(Ordering::Acquire) {
                    begin(&tenant);
                    let begun = Instant::now();
                    while begun.elapsed() < Duration::from_micros(400) {
                        std::thread::yield_now();
                    }
                    tenant.lease.end_external(true);
                }
            })
        })
        .collect();
    // The machine may be busy with other things for a while.
    let used = || tenants.each_ref().map(|tenant| measured(tenant).as_secs_f64());
    let mut parts = Vec::new();
    let is_shared = (0..40).any(|_| {
        let before = used();
        std::thread::sleep(Duration::from_millis(200));
        let after = used();
        let (one, two) = (after[0] - before[0], after[1] - before[1]);
        parts.push(one / (one + two));
        (one / (one + two) - 0.3).abs() < 0.1
    });
    stop.store(true, Ordering::Release);
    for thread in threads {
        thread.join().unwrap();
    }
    assert!(is_shared, "{parts:?}");
}

#[test]
fn a_lane_is_not_taken_from_a_held_turn() {
    let scheduler = scheduler();
    let one = start(&scheduler, "one", besteffort(1));
    let before = begin(&one);
    let lane = one.stream.lane().id();
    let (id, _) = scheduler.submit(guaranteed()).unwrap();
    let starter = scheduler.clone();
    let started = aside(move || starter.start(id, "own", guaranteed(), false, &mut || Ok(())));
    std::thread::sleep(PAUSE);
    assert!(started.try_recv().is_err());
    assert_eq!((one.stream.raw(), one.stream.lane().id()), (before, lane));
    one.lease.end_external(true);
    let own = started.recv_timeout(PATIENCE).unwrap().unwrap();
    assert_eq!(own.placement.mode, Mode::OwnLane(2));
    assert_ne!(begin(&one), before);
    assert_eq!(one.stream.lane().sm_count(), 6);
    one.lease.end_external(true);
}

#[test]
fn the_end_of_a_task_does_not_wait_for_a_turn_it_holds() {
    let scheduler = scheduler();
    let (one, two) = (start(&scheduler, "one", besteffort(1)), start(&scheduler, "two", besteffort(1)));
    begin(&one);
    one.lease.end();
    assert!(one.lease.begin_external(&one.stream, 8).is_ok(), "a block inside of the one that is left next");
    let ctx = context(&scheduler, &two);
    let other = aside(move || submit(&ctx, quick()));
    std::thread::sleep(PAUSE);
    assert!(other.try_recv().is_err(), "the block has not been left");
    one.lease.end_all_external();
    other.recv_timeout(PATIENCE).unwrap().unwrap();
    scheduler.finish(one.id, &mut || Ok(())).unwrap();
    let error = one.lease.begin_external(&one.stream, 8).unwrap_err();
    assert!(matches!(error, Error::TaskEnded(_)), "{error}");
}

#[test]
fn a_task_ends_while_another_holds_the_turn() {
    let scheduler = scheduler();
    let (one, two) = (start(&scheduler, "one", besteffort(1)), start(&scheduler, "two", besteffort(1)));
    begin(&one);
    let ctx = context(&scheduler, &two);
    let other = aside(move || submit(&ctx, quick()));
    while two.lease.waiting() == 0 {
        std::thread::yield_now();
    }
    two.lease.end();
    assert!(matches!(other.recv_timeout(PATIENCE).unwrap(), Err(Error::TaskEnded(_))));
    let ender = scheduler.clone();
    aside(move || ender.finish(two.id, &mut || Ok(()))).recv_timeout(PATIENCE).unwrap().unwrap();
    assert!(one.lease.holds_external());
    one.lease.end_external(true);
}

#[test]
fn a_thread_does_not_wait_for_a_turn_it_holds_itself() {
    let scheduler = scheduler();
    let (one, two) = (start(&scheduler, "one", besteffort(1)), start(&scheduler, "two", besteffort(1)));
    begin(&one);
    let error = submit(&context(&scheduler, &two), quick()).unwrap_err();
    assert!(matches!(error, Error::Device(_)) && error.to_string().contains("task 'one'"), "{error}");
    let (id, _) = scheduler.submit(guaranteed()).unwrap();
    let error = scheduler.start(id, "own", guaranteed(), false, &mut || Ok(())).map(drop).unwrap_err();
    assert!(error.to_string().contains("task 'one'"), "{error}");
    one.lease.end_external(true);
    submit(&context(&scheduler, &two), quick()).unwrap();
}

#[test]
fn held_turns_are_never_on_lent_sms() {
    let scheduler = scheduler_with(CpuConfig::default(), Options { lending: true, ..Options::default() });
    let (own, hog) = (start(&scheduler, "own", guaranteed()), start(&scheduler, "hog", besteffort(1)));
    let hog_ctx = context(&scheduler, &hog);
    submit(&context(&scheduler, &own), quick()).unwrap();
    let until = Instant::now() + PATIENCE;
    while hog.stream.lane().sm_count() != 8 {
        assert!(Instant::now() < until, "the idle lane is never lent");
        std::thread::sleep(Duration::from_millis(2));
        submit(&hog_ctx, quick()).unwrap();
    }
    for _ in 0..5 {
        begin(&hog);
        assert_eq!(hog.stream.lane().sm_count(), 6);
        hog.lease.end_external(true);
        std::thread::sleep(Duration::from_millis(2));
    }
    // Nor is a lane lent whose owner holds a turn.
    begin(&own);
    std::thread::sleep(PAUSE);
    let other = start(&scheduler, "other", besteffort(1));
    submit(&context(&scheduler, &other), quick()).unwrap();
    assert_eq!(other.stream.lane().sm_count(), 6);
    own.lease.end_external(true);
}

#[test]
fn kinds_are_measured_together_until_somebody_asks() {
    let scheduler = scheduler_with(CpuConfig { deferred: Some(1), ..CpuConfig::default() }, Options::default());
    let own = start(&scheduler, "own", besteffort(1));
    for _ in 0..100 {
        own.lease.begin_external(&own.stream, 9).unwrap();
        own.lease.end_external(false);
    }
    let used = own.lease.used();
    assert_eq!((used.submissions, used.turns), (100, 1));
}

#[test]
fn memory_of_other_libraries_is_the_tasks() {
    let scheduler = scheduler();
    let request = Request { memory_limit: Some(8 << 20), ..besteffort(1) };
    let tenant = start(&scheduler, "own", request);
    let ctx = context(&scheduler, &tenant);
    let (ours, unknown) = (tenant.stream.raw(), RawStream(usize::MAX));
    let address = external::lend(&ctx, 4 << 20, ours).unwrap();
    assert_eq!(tenant.pool.used(), 4 << 20);
    assert!(external::lend(&ctx, 8 << 20, ours).unwrap_err().is_out_of_memory());
    assert!(external::lend(&ctx, 0, ours).is_err());
    let sequence = tenant.stream.seq();
    assert!(external::give_back(address, ours).unwrap());
    assert!(!external::give_back(address, ours).unwrap());
    assert_eq!(tenant.pool.used(), 0);
    // Others of the memory wait for what was submitted to the stream by now.
    assert!(tenant.stream.seq() > sequence);
    let address = external::lend(&ctx, 1 << 20, unknown).unwrap();
    // What a stream that nobody knows has done cannot be known: it stays.
    assert!(external::give_back(address, unknown).is_err());
    assert_eq!(tenant.pool.used(), 1 << 20);
}
