//! The scheduler on the CPU device: threads that take turns, lanes that are given and taken back.

mod tenants;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pygpukit_core::command::{Command, HostFn, Work};
use pygpukit_core::cpu::{CpuConfig, CpuDevice};
use pygpukit_core::error::Error;
use pygpukit_core::exec::ExecCtx;
use pygpukit_core::launch::submit;
use pygpukit_core::memory::ArenaMode;
use pygpukit_core::runtime::DeviceState;
use pygpukit_core::sched::clock::{Clock, Monotonic};
use pygpukit_core::sched::{
    Class, Isolation, Mode, Options, PartitionSpec, Request, Scheduler, Share, Tenant, Verdict,
};
use smallvec::SmallVec;
use tenants::{busy, context, start};

fn scheduler() -> Arc<Scheduler> {
    scheduler_with(Options::default())
}

fn scheduler_with(options: Options) -> Arc<Scheduler> {
    scheduler_on(CpuConfig::default(), options)
}

fn scheduler_on(config: CpuConfig, options: Options) -> Arc<Scheduler> {
    let config = CpuConfig { total_memory: Some(1 << 30), sm_count: Some(8), ..config };
    let state = DeviceState::new(CpuDevice::new(config), ArenaMode::Vmm, false).unwrap();
    Arc::new(Scheduler::new(state, options, Arc::new(Monotonic)).unwrap())
}

fn share(value: f64) -> Share {
    Share::from_f64("share", value).unwrap()
}

/// Let tenants submit as fast as they can for a time; returns the device time of each.
fn compete(scheduler: &Arc<Scheduler>, tenants: &[(Arc<Tenant>, Duration)], time: Duration) -> Vec<f64> {
    let stop = Arc::new(AtomicBool::new(false));
    let threads: Vec<_> = tenants
        .iter()
        .map(|(tenant, each)| {
            let (ctx, stop, each) = (context(scheduler, tenant), stop.clone(), *each);
            std::thread::spawn(move || {
                while !stop.load(Ordering::Acquire) {
                    submit(&ctx, busy(each)).unwrap();
                }
            })
        })
        .collect();
    std::thread::sleep(time);
    stop.store(true, Ordering::Release);
    for thread in threads {
        thread.join().unwrap();
    }
    tenants.iter().map(|(tenant, _)| tenant.lease.used().measured_ns as f64 / 1e9).collect()
}

#[test]
fn tenants_of_a_lane_get_their_weights() {
    let scheduler = scheduler();
    let weighted = |weight| Request { weight, ..Request::new(Class::BestEffort) };
    let one = start(&scheduler, "one", weighted(3));
    let two = start(&scheduler, "two", weighted(7));
    let used = compete(
        &scheduler,
        &[(one.clone(), Duration::from_micros(300)), (two.clone(), Duration::from_micros(500))],
        Duration::from_millis(600),
    );
    let part = used[0] / (used[0] + used[1]);
    assert!((part - 0.3).abs() < 0.08, "{used:?}");
    assert!(one.lease.used().waits > 0);
    for tenant in [one, two] {
        scheduler.finish(tenant.id, &mut || Ok(())).unwrap();
    }
    assert!(scheduler.state().unscheduled().is_none());
}

#[test]
fn a_guaranteed_task_has_a_lane_that_others_leave() {
    let scheduler = scheduler();
    let hog = start(&scheduler, "hog", Request::new(Class::BestEffort));
    let hog_ctx = context(&scheduler, &hog);
    submit(&hog_ctx, busy(Duration::from_micros(50))).unwrap();
    assert_eq!(hog.stream.lane().sm_count(), 8);
    let own = start(&scheduler, "own", Request { bandwidth: share(0.25), ..Request::new(Class::Guaranteed) });
    assert_eq!(own.placement.mode, Mode::OwnLane(2));
    let own_ctx = context(&scheduler, &own);
    for ctx in [&hog_ctx, &own_ctx] {
        submit(ctx, busy(Duration::from_micros(50))).unwrap();
    }
    assert_eq!((hog.stream.lane().sm_count(), own.stream.lane().sm_count()), (6, 2));
    // Work of nobody goes to the common lane too.
    let nobody = ExecCtx::default_for(scheduler.state());
    submit(&nobody, busy(Duration::from_micros(50))).unwrap();
    assert_eq!(nobody.stream.lane().sm_count(), 6);
    drop(own_ctx);
    scheduler.finish(own.id, &mut || Ok(())).unwrap();
    submit(&hog_ctx, busy(Duration::from_micros(50))).unwrap();
    assert_eq!(hog.stream.lane().sm_count(), 8);
    scheduler.finish(hog.id, &mut || Ok(())).unwrap();
    submit(&nobody, busy(Duration::from_micros(50))).unwrap();
    assert_eq!(nobody.stream.lane().sm_count(), 8);
}

#[test]
fn a_limit_holds_without_competition() {
    let scheduler = scheduler();
    let request = Request { bandwidth_limit: Some(share(0.25)), ..Request::new(Class::BestEffort) };
    let tenant = start(&scheduler, "limited", request);
    let used = compete(&scheduler, &[(tenant.clone(), Duration::from_micros(200))], Duration::from_millis(500));
    assert!((0.08..0.16).contains(&used[0]), "{used:?}");
    let log: Vec<_> = tenant.lease.used().log().map(|wait| wait.why.name()).collect();
    assert!(log.contains(&"limit"), "{log:?}");
}

#[test]
fn an_ended_lease_refuses_work_and_frees_who_waits_in_it() {
    let scheduler = scheduler();
    let holder = start(&scheduler, "holder", Request::new(Class::Burstable));
    let waiter =
        start(&scheduler, "waiter", Request { bandwidth_limit: Some(share(0.001)), ..Request::new(Class::BestEffort) });
    submit(&context(&scheduler, &holder), busy(Duration::from_micros(50))).unwrap();
    let ctx = context(&scheduler, &waiter);
    let thread = std::thread::spawn(move || {
        loop {
            if let Err(error) = submit(&ctx, busy(Duration::from_millis(20))) {
                return error;
            }
        }
    });
    while waiter.lease.waiting() == 0 {
        std::thread::yield_now();
    }
    waiter.lease.end();
    assert!(matches!(thread.join().unwrap(), Error::TaskEnded(_)));
}

#[test]
fn a_guaranteed_lane_is_not_slowed_by_a_hog() {
    let scheduler = scheduler();
    let own = start(&scheduler, "own", Request { bandwidth: share(0.25), ..Request::new(Class::Guaranteed) });
    let hog = start(&scheduler, "hog", Request::new(Class::BestEffort));
    compete(
        &scheduler,
        &[(own.clone(), Duration::from_micros(100)), (hog.clone(), Duration::from_micros(500))],
        Duration::from_millis(200),
    );
    assert_eq!(own.lease.used().waits, 0, "{:?}", own.lease.used());
}

#[test]
fn requests_that_are_waited_for_are_charged_without_the_pauses_between_them() {
    for deferred in [None, Some(7)] {
        let scheduler = scheduler_on(CpuConfig { deferred, ..CpuConfig::default() }, Options::default());
        charge_requests(&scheduler, deferred.is_some());
    }
}

fn charge_requests(scheduler: &Scheduler, deferred: bool) {
    let own = start(scheduler, "own", Request { bandwidth: share(0.25), ..Request::new(Class::Guaranteed) });
    let shared = start(scheduler, "shared", Request::new(Class::BestEffort));
    for tenant in [&own, &shared] {
        let ctx = context(scheduler, tenant);
        let begun = Instant::now();
        for round in 0..60 {
            for _ in 0..1 + round % 3 {
                submit(&ctx, busy(Duration::from_micros(100))).unwrap();
            }
            tenant.stream.synchronize(&mut || Ok(())).unwrap();
            std::thread::sleep(Duration::from_millis(3));
        }
        let used = tenant.lease.used();
        let charged = (used.measured_ns + used.predicted_ns) as f64 / 1e6;
        // 120 pieces of work of 0.1 ms, which other tests may slow down, and pauses of 180 ms that are not charged.
        let passed = begun.elapsed().as_secs_f64() * 1e3;
        assert!(charged > 6.0 && charged < passed - 90.0, "{}: {charged} of {passed} ms, {used:?}", tenant.name);
        assert_eq!(used.submissions, 120);
    }
    // On a lane of its own the time of most requests is predicted, since measuring one would take two marks. Other programs
    // make the measured ones longer. Were all measured, almost nothing would be predicted.
    assert!(!deferred || 4 * own.lease.used().predicted_ns > own.lease.used().measured_ns, "{:?}", own.lease.used());
}

#[test]
fn idle_lanes_are_lent_and_taken_back() {
    let scheduler = scheduler_with(Options { lending: true, ..Options::default() });
    let own = start(&scheduler, "own", Request { bandwidth: share(0.25), ..Request::new(Class::Guaranteed) });
    let hog = start(&scheduler, "hog", Request::new(Class::BestEffort));
    let (own_ctx, hog_ctx) = (context(&scheduler, &own), context(&scheduler, &hog));
    let submit_hog = || submit(&hog_ctx, busy(Duration::from_micros(100))).unwrap();
    submit(&own_ctx, busy(Duration::from_micros(50))).unwrap();
    submit_hog();
    assert_eq!(hog.stream.lane().sm_count(), 6);
    std::thread::sleep(Duration::from_millis(3));
    for _ in 0..30 {
        submit_hog();
    }
    assert_eq!(hog.stream.lane().sm_count(), 8);
    submit(&own_ctx, busy(Duration::from_micros(50))).unwrap();
    assert_eq!(own.stream.lane().sm_count(), 2);
    submit_hog();
    assert_eq!(hog.stream.lane().sm_count(), 6);
    drop(own_ctx);
    scheduler.finish(own.id, &mut || Ok(())).unwrap();
    submit_hog();
    assert_eq!(hog.stream.lane().sm_count(), 8);
}

#[test]
fn owners_and_borrowers_never_wait_for_each_other_for_ever() {
    let scheduler = scheduler_with(Options { lending: true, ..Options::default() });
    let request = || Request { bandwidth: share(0.25), ..Request::new(Class::Guaranteed) };
    let owners = [start(&scheduler, "a", request()), start(&scheduler, "b", request())];
    let hogs = [
        start(&scheduler, "c", Request::new(Class::BestEffort)),
        start(&scheduler, "d", Request::new(Class::BestEffort)),
    ];
    let stop = Arc::new(AtomicBool::new(false));
    let threads: Vec<_> = owners
        .iter()
        .chain(&hogs)
        .enumerate()
        .map(|(i, tenant)| {
            let (ctx, stop, stream) = (context(&scheduler, tenant), stop.clone(), tenant.stream.clone());
            std::thread::spawn(move || {
                let mut rounds = 0;
                while !stop.load(Ordering::Acquire) {
                    submit(&ctx, busy(Duration::from_micros(30))).unwrap();
                    rounds += 1;
                    if i < 2 {
                        stream.synchronize(&mut || Ok(())).unwrap();
                        std::thread::sleep(Duration::from_micros([100, 3000][rounds / 20 % 2]));
                    }
                }
                rounds
            })
        })
        .collect();
    std::thread::sleep(Duration::from_millis(600));
    stop.store(true, Ordering::Release);
    for thread in threads {
        assert!(thread.join().unwrap() > 20);
    }
}

#[test]
fn turns_that_end_without_a_word_keep_nobody_waiting() {
    let scheduler = scheduler();
    let tenants: Vec<_> = (0..6).map(|i| start(&scheduler, &format!("t{i}"), Request::new(Class::Burstable))).collect();
    let barrier = Arc::new(std::sync::Barrier::new(tenants.len()));
    let threads: Vec<_> = tenants
        .iter()
        .map(|tenant| {
            let (ctx, barrier) = (context(&scheduler, tenant), barrier.clone());
            std::thread::spawn(move || {
                for _ in 0..10 {
                    barrier.wait();
                    submit(&ctx, busy(Duration::from_micros(100))).unwrap();
                }
            })
        })
        .collect();
    let start = Instant::now();
    for thread in threads {
        thread.join().unwrap();
    }
    // 60 pieces of work with a pause after each; a waiter that nobody wakes would look again after 20 ms only.
    assert!(start.elapsed() < Duration::from_millis(400), "{:?}", start.elapsed());
}

#[test]
fn a_scheduler_leaves_the_turns_of_another_alone() {
    let one = scheduler();
    let two = Arc::new(Scheduler::new(one.state(), Options::default(), Arc::new(Monotonic)).unwrap());
    let first = start(&one, "first", Request::new(Class::BestEffort));
    let second = start(&two, "second", Request::new(Class::BestEffort));
    two.finish(second.id, &mut || Ok(())).unwrap();
    // Work of nobody still takes turns with the first task.
    let unscheduled = one.state().unscheduled().unwrap();
    assert!(!unscheduled.is_ended() && Arc::ptr_eq(unscheduled.gate(), first.lease.gate()));
    one.finish(first.id, &mut || Ok(())).unwrap();
    assert!(one.state().unscheduled().is_none());
}

#[test]
fn turns_are_traced_without_overlap() {
    let scheduler = scheduler();
    scheduler.set_trace(true);
    let one = start(&scheduler, "one", Request::new(Class::BestEffort));
    let two = start(&scheduler, "two", Request::new(Class::BestEffort));
    compete(
        &scheduler,
        &[(one, Duration::from_micros(200)), (two, Duration::from_micros(200))],
        Duration::from_millis(100),
    );
    let rows = scheduler.take_trace();
    assert!(rows.len() > 20, "{}", rows.len());
    for pair in rows.windows(2) {
        assert!(pair[1].start_ns + 2_000 >= pair[0].start_ns + pair[0].ns, "{pair:?}");
    }
}

/// Keeps the lane until it is told to stop, inside of one operator.
fn occupy(ctx: ExecCtx) -> (Arc<AtomicBool>, std::thread::JoinHandle<()>) {
    let (begun, stop) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let flags = (begun.clone(), stop.clone());
    let function: HostFn = Arc::new(move || {
        flags.0.store(true, Ordering::Release);
        while !flags.1.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    });
    let command = Command { work: Work::Host(function), uses: SmallVec::new(), cost_key: 0 };
    let thread = std::thread::spawn(move || submit(&ctx, command).unwrap());
    while !begun.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
    (stop, thread)
}

fn partition() -> PartitionSpec {
    PartitionSpec { compute: share(0.5), isolation: Isolation::Sm, ..PartitionSpec::new("part") }
}

#[test]
fn nobody_is_admitted_to_a_partition_before_it_has_its_sms() {
    let scheduler = scheduler();
    let hog = start(&scheduler, "hog", Request::new(Class::BestEffort));
    let (stop, thread) = occupy(context(&scheduler, &hog));
    let mut seen = Vec::new();
    let made = scheduler.create_partition(partition(), &mut || {
        seen.push(scheduler.find_partition("part"));
        stop.store(true, Ordering::Release);
        Ok(())
    });
    thread.join().unwrap();
    assert!(!seen.is_empty() && seen.iter().all(Option::is_none), "{seen:?}");
    assert_eq!(scheduler.find_partition("part"), Some(made.unwrap()));
}

#[test]
fn a_partition_gives_its_sms_back_whatever_happens() {
    let scheduler = scheduler();
    let hog = start(&scheduler, "hog", Request::new(Class::BestEffort));
    // The wait for its SMs is given up.
    let (stop, thread) = occupy(context(&scheduler, &hog));
    let refused = scheduler.create_partition(partition(), &mut || Err(Error::Value("stop".to_string())));
    assert!(refused.is_err() && scheduler.find_partition("part").is_none());
    stop.store(true, Ordering::Release);
    thread.join().unwrap();
    let part = scheduler.create_partition(partition(), &mut || Ok(())).unwrap();
    assert_eq!(scheduler.common().lane().sm_count(), 4);
    let wide = Request { bandwidth: share(0.75), ..Request::new(Class::Guaranteed) };
    let (waits, decision) = scheduler.submit(wide).unwrap();
    assert_eq!(decision.verdict, Verdict::Queued);
    // Others are in the middle of an operator, and are not waited for.
    let (stop, thread) = occupy(context(&scheduler, &hog));
    assert_eq!(scheduler.remove_partition(part).unwrap(), [waits]);
    assert!(scheduler.remove_partition(part).is_err());
    stop.store(true, Ordering::Release);
    thread.join().unwrap();
    let wide = scheduler.start(waits, "wide", wide, false, &mut || Ok(())).unwrap();
    assert_eq!((scheduler.common().lane().sm_count(), wide.lease.lane().sm_count()), (2, 6));
}

struct Counting(AtomicU64);

impl Clock for Counting {
    fn now(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed);
        Monotonic.now()
    }
}

#[test]
fn who_waits_for_a_long_operator_sleeps() {
    // Both by turns, and when a turn is taken away.
    for class in [Class::BestEffort, Class::Guaranteed] {
        let config = CpuConfig { total_memory: Some(1 << 30), sm_count: Some(1), ..CpuConfig::default() };
        let state = DeviceState::new(CpuDevice::new(config), ArenaMode::Vmm, false).unwrap();
        let clock = Arc::new(Counting(AtomicU64::new(0)));
        let scheduler = Arc::new(Scheduler::new(state, Options::default(), clock.clone()).unwrap());
        let holder = start(&scheduler, "holder", Request::new(Class::BestEffort));
        let (stop, thread) = occupy(context(&scheduler, &holder));
        let request = Request { bandwidth: share(0.5), ..Request::new(class) };
        let request = if class == Class::BestEffort { Request::new(class) } else { request };
        let waiter = start(&scheduler, "waiter", request);
        let ctx = context(&scheduler, &waiter);
        let waiting = std::thread::spawn(move || submit(&ctx, busy(Duration::ZERO)).unwrap());
        let before = clock.0.load(Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(200));
        let asked = clock.0.load(Ordering::Relaxed) - before;
        stop.store(true, Ordering::Release);
        thread.join().unwrap();
        waiting.join().unwrap();
        // About 200 times, each with two looks at the clock; without being woken thousands.
        assert!(asked < 1000, "{class:?}: {asked}");
    }
}
