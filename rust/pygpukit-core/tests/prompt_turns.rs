//! Launches that make way for a thread of a guaranteed task that asks for the interpreter. A process of its own: what
//! blocks, and who asks, are settings of the process.

mod tenants;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use pygpukit_core::cpu::{CpuConfig, CpuDevice};
use pygpukit_core::error::Result;
use pygpukit_core::exec::{self, ExecCtx};
use pygpukit_core::launch::submit;
use pygpukit_core::memory::ArenaMode;
use pygpukit_core::runtime::{self, DeviceState};
use pygpukit_core::sched::clock::Monotonic;
use pygpukit_core::sched::prompt;
use pygpukit_core::sched::{Class, Options, Request, Scheduler, Share};
use tenants::{busy, context, start};

static MADE_WAY: AtomicU32 = AtomicU32::new(0);

/// Where the interpreter is released: the thread that claimed it has it now, and releases it again.
fn without_it(run: &mut dyn FnMut() -> Result<()>) -> Result<()> {
    if prompt::is_wanted() {
        MADE_WAY.fetch_add(1, Ordering::SeqCst);
        prompt::released();
    }
    run()
}

#[test]
fn launches_of_others_make_way_for_a_guaranteed_thread() {
    runtime::set_blocking(without_it);
    let config = CpuConfig { total_memory: Some(1 << 30), sm_count: Some(8), ..CpuConfig::default() };
    let state = DeviceState::new(CpuDevice::new(config), ArenaMode::Vmm, false).unwrap();
    let scheduler = Arc::new(Scheduler::new(state, Options::default(), Arc::new(Monotonic)).unwrap());
    let quick = || busy(Duration::ZERO);
    prompt::coming_back();
    assert!(!prompt::is_wanted(), "no task is prompt");

    let bandwidth = Share::from_f64("bandwidth", 0.25).unwrap();
    let owner = start(&scheduler, "owner", Request { bandwidth, ..Request::new(Class::Guaranteed) });
    let other = start(&scheduler, "other", Request::new(Class::BestEffort));
    let (owner_context, other_context) = (context(&scheduler, &owner), context(&scheduler, &other));
    let asks = || {
        let outside = exec::swap(Some(Arc::new(owner_context.clone())));
        prompt::coming_back();
        exec::swap(outside);
        assert!(prompt::is_wanted());
    };
    // Work of another task, and work of none.
    for (number, ctx) in [&other_context, &ExecCtx::default_for(state)].into_iter().enumerate() {
        submit(ctx, quick()).unwrap();
        asks();
        submit(ctx, quick()).unwrap();
        assert_eq!(MADE_WAY.load(Ordering::SeqCst), number as u32 + 1);
        assert!(!prompt::is_wanted());
    }
    // The task's own launches go on.
    submit(&owner_context, quick()).unwrap();
    asks();
    submit(&owner_context, quick()).unwrap();
    assert!(prompt::is_wanted());
    prompt::released();
    assert_eq!(MADE_WAY.load(Ordering::SeqCst), 2);
    // Nor does any other thread come back promptly.
    exec::swap(Some(Arc::new(other_context)));
    prompt::coming_back();
    assert!(!prompt::is_wanted());
}
