//! Launches that make way for a thread of a guaranteed task that asks for the interpreter. A process of its own: what
//! blocks, and who asks, are settings of the process.

mod tenants;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use pygpukit_core::cpu::{CpuConfig, CpuDevice};
use pygpukit_core::error::Result;
use pygpukit_core::exec::{self, ExecCtx};
use pygpukit_core::launch::submit;
use pygpukit_core::memory::ArenaMode;
use pygpukit_core::runtime::{self, DeviceState};
use pygpukit_core::sched::clock::Monotonic;
use pygpukit_core::sched::prompt::{Returning, coming_back};
use pygpukit_core::sched::{Class, Options, Request, Scheduler, Share};
use tenants::{busy, context, start};

/// The thread of the guaranteed task that asks for the interpreter.
static ASKS: Mutex<Option<Returning<'static>>> = Mutex::new(None);
static MADE_WAY: AtomicU32 = AtomicU32::new(0);

/// Where the interpreter is released: now the thread that asked for it has it.
fn released(run: &mut dyn FnMut() -> Result<()>) -> Result<()> {
    if ASKS.lock().take().is_some() {
        MADE_WAY.fetch_add(1, Ordering::SeqCst);
    }
    run()
}

#[test]
fn launches_of_others_make_way_for_a_guaranteed_thread() {
    runtime::set_blocking(released);
    let config = CpuConfig { total_memory: Some(1 << 30), sm_count: Some(8), ..CpuConfig::default() };
    let state = DeviceState::new(CpuDevice::new(config), ArenaMode::Vmm, false).unwrap();
    let scheduler = Arc::new(Scheduler::new(state, Options::default(), Arc::new(Monotonic)).unwrap());
    let quick = || busy(Duration::ZERO);
    assert!(coming_back().is_none(), "no task is prompt");

    let bandwidth = Share::from_f64("bandwidth", 0.25).unwrap();
    let owner = start(&scheduler, "owner", Request { bandwidth, ..Request::new(Class::Guaranteed) });
    let other = start(&scheduler, "other", Request::new(Class::BestEffort));
    let (owner_context, other_context) = (context(&scheduler, &owner), context(&scheduler, &other));
    let asks = || {
        let outside = exec::swap(Some(Arc::new(owner_context.clone())));
        let returning = coming_back();
        exec::swap(outside);
        assert!(returning.is_some());
        *ASKS.lock() = returning;
    };
    // Work of another task, and work of none.
    for (number, ctx) in [&other_context, &ExecCtx::default_for(state)].into_iter().enumerate() {
        submit(ctx, quick()).unwrap();
        asks();
        submit(ctx, quick()).unwrap();
        assert_eq!(MADE_WAY.load(Ordering::SeqCst), number as u32 + 1);
        assert!(ASKS.lock().is_none());
    }
    // The task's own launches go on.
    submit(&owner_context, quick()).unwrap();
    asks();
    submit(&owner_context, quick()).unwrap();
    assert!(ASKS.lock().take().is_some());
    assert_eq!(MADE_WAY.load(Ordering::SeqCst), 2);
    // Nor does any other thread come back promptly.
    exec::swap(Some(Arc::new(other_context)));
    assert!(coming_back().is_none());
}
