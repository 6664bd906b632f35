//! Tenants of a scheduler for tests: started, with a context to submit in, and work that takes a known time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pygpukit_core::command::{Command, HostFn, Work};
use pygpukit_core::exec::ExecCtx;
use pygpukit_core::sched::{Request, Scheduler, Tenant, Verdict};
use smallvec::SmallVec;

/// A task that is admitted at once.
pub fn start(scheduler: &Scheduler, name: &str, request: Request) -> Arc<Tenant> {
    let (id, decision) = scheduler.submit(request).unwrap();
    assert_eq!(decision.verdict, Verdict::Admitted, "{:?}", decision.shortage.map(|s| s.to_string()));
    scheduler.start(id, name, request, false, &mut || Ok(())).unwrap()
}

pub fn context(scheduler: &Scheduler, tenant: &Tenant) -> ExecCtx {
    let mut ctx = ExecCtx::default_for(scheduler.state()).on_stream(&tenant.stream);
    ctx.pool = tenant.pool.clone();
    ctx.lease = Some(tenant.lease.clone());
    ctx.task = Some(tenant.name.clone());
    ctx
}

/// Work that keeps the lane for a time.
pub fn busy(time: Duration) -> Command {
    let function: HostFn = Arc::new(move || {
        let start = Instant::now();
        while start.elapsed() < time {
            std::thread::yield_now();
        }
        Ok(())
    });
    Command { work: Work::Host(function), uses: SmallVec::new(), cost_key: 0 }
}
