//! Other libraries on the fake driver: the handles they are given are streams of the tenant's own SMs.
#![cfg(unix)]

mod fake;

use std::sync::Arc;

use fake::*;
use pygpukit_core::memory::ArenaMode;
use pygpukit_core::runtime::DeviceState;
use pygpukit_core::sched::clock::Monotonic;
use pygpukit_core::sched::{Class, Options, Request, Scheduler, Share, Tenant, Verdict};

fn start(scheduler: &Scheduler, name: &str, request: Request) -> Arc<Tenant> {
    let (id, decision) = scheduler.submit(request).unwrap();
    assert_eq!(decision.verdict, Verdict::Admitted, "{:?}", decision.shortage.map(|s| s.to_string()));
    scheduler.start(id, name, request, false, &mut || Ok(())).unwrap()
}

/// How many SMs the work of a stream has, when it is not all of them.
fn sms_of(stream: usize) -> Option<usize> {
    fake_cuda::green_contexts().values().find(|lane| lane.streams.contains(&stream)).map(|lane| lane.sms.len())
}

#[test]
fn handles_are_of_the_lane_and_stay_while_they_are_held() {
    let _guard = fake(&[]);
    let state = DeviceState::new(device(), ArenaMode::Vmm, false).unwrap();
    let scheduler = Scheduler::new(state, Options::default(), Arc::new(Monotonic)).unwrap();
    let guaranteed = Request { bandwidth: Share::from_f64("", 0.25).unwrap(), ..Request::new(Class::Guaranteed) };
    let shared = start(&scheduler, "shared", Request::new(Class::BestEffort));
    let before = shared.lease.begin_external(&shared.stream, 1).unwrap();
    assert_eq!(sms_of(before.0), None);
    shared.lease.end_external(true);
    let own = start(&scheduler, "own", guaranteed);
    let handles = [&own, &shared].map(|tenant| tenant.lease.begin_external(&tenant.stream, 1).unwrap());
    assert_eq!(handles.map(|handle| sms_of(handle.0)), [Some(40), Some(92)]);
    assert_eq!([&own, &shared].map(|tenant| tenant.stream.raw()), handles);
    for tenant in [&own, &shared] {
        tenant.lease.end_external(true);
    }
    scheduler.finish(own.id, &mut || Ok(())).unwrap();
    assert_eq!(shared.lease.begin_external(&shared.stream, 1).unwrap(), before);
    shared.lease.end_external(true);
    scheduler.finish(shared.id, &mut || Ok(())).unwrap();
}
