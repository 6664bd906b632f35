//! `may_sync`: the gate around driver calls that can wait for the whole device.
//!
//! Loading a module, making a green context or freeing pinned memory waits until every running kernel has
//! ended. A resident kernel (a ring) never ends by itself, so it registers here and is parked around such
//! calls.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::error::Result;
use crate::runtime;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncKind {
    ModuleLoad,
    GreenContext,
    HostFree,
}

/// Something resident on the device that can leave it for a moment.
pub trait Park: Send + Sync {
    /// Leave the device, as soon as may be, and stay away.
    fn hold(&self);
    /// Wait until it has left, and call `check` now and then. An error when that gives one, or when it takes too long.
    fn await_left(&self, limit: Duration, check: &mut dyn FnMut() -> Result<()>) -> Result<()>;
    /// Come back, when nobody else holds it.
    fn resume(&self);
}

/// How long a call waits for resident kernels. They leave within microseconds, unless a handler does not return.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The same where something is only given back.
const BRIEFLY: Duration = Duration::from_secs(5);

/// The resident kernels, and what each call in progress has parked.
#[derive(Default)]
struct Gate {
    parkers: Vec<Arc<dyn Park>>,
    calls: HashMap<u64, Vec<Arc<dyn Park>>>,
    next: u64,
}

static GATE: Mutex<Option<Gate>> = Mutex::new(None);

fn same(a: &Arc<dyn Park>, b: &Arc<dyn Park>) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(a), Arc::as_ptr(b))
}

/// Register a resident kernel, before it comes to the device: calls in progress park it, or they would wait for it.
pub fn register_parker(parker: Arc<dyn Park>) {
    let mut gate = GATE.lock();
    let gate = gate.get_or_insert_default();
    for parked in gate.calls.values_mut() {
        parker.hold();
        parked.push(parker.clone());
    }
    gate.parkers.push(parker);
}

/// Forget a resident kernel that has ended.
pub fn unregister_parker(parker: &Arc<dyn Park>) {
    if let Some(gate) = &mut *GATE.lock() {
        gate.parkers.retain(|known| !same(known, parker));
    }
}

/// Run a driver call that may wait for the whole device, with resident kernels parked around it. It is not made when they do
/// not leave, or when a signal ends the wait of who loads something.
pub fn may_sync<R>(kind: SyncKind, call: impl FnOnce() -> Result<R>) -> Result<R> {
    // Others hold locks, or go on after an error: handlers of signals are not for them.
    let mut check = || if kind == SyncKind::ModuleLoad { runtime::wait_check() } else { Ok(()) };
    parked(PATIENCE, &mut check, call)?
}

/// The same for what is given back, which nobody can be told of: rather than wait for ever, it is not given back.
pub fn may_sync_briefly(call: impl FnOnce()) {
    let _ = parked(BRIEFLY, &mut || Ok(()), call);
}

fn parked<R>(limit: Duration, check: &mut dyn FnMut() -> Result<()>, call: impl FnOnce() -> R) -> Result<R> {
    struct Resume(u64);
    impl Drop for Resume {
        fn drop(&mut self) {
            let parked = GATE.lock().as_mut().and_then(|gate| gate.calls.remove(&self.0));
            for parker in parked.into_iter().flatten().rev() {
                parker.resume();
            }
        }
    }
    let (resume, parkers) = {
        let mut gate = GATE.lock();
        let gate = gate.get_or_insert_default();
        gate.next += 1;
        gate.calls.insert(gate.next, gate.parkers.clone());
        (Resume(gate.next), gate.parkers.clone())
    };
    // All of them, before the first error: they are all let go then.
    for parker in &parkers {
        parker.hold();
    }
    for parker in &parkers {
        parker.await_left(limit, check)?;
    }
    let result = call();
    drop(resume);
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use parking_lot::Mutex;

    /// Says what happens to it; one that is stuck does not leave.
    struct Log {
        told: Mutex<Vec<&'static str>>,
        stuck: bool,
    }

    impl Log {
        fn new(stuck: bool) -> Arc<Log> {
            Arc::new(Log { told: Mutex::new(Vec::new()), stuck })
        }
    }

    impl Park for Log {
        fn hold(&self) {
            self.told.lock().push("hold");
        }
        fn await_left(&self, limit: Duration, check: &mut dyn FnMut() -> Result<()>) -> Result<()> {
            check()?;
            self.told.lock().push(if limit == BRIEFLY { "briefly" } else { "left" });
            if self.stuck { Err(Error::Device("it stays".into())) } else { Ok(()) }
        }
        fn resume(&self) {
            self.told.lock().push("resume");
        }
    }

    /// The gate is the process's.
    static ALONE: Mutex<()> = Mutex::new(());

    #[test]
    fn resident_kernels_are_parked_around_the_call_and_after_a_panic() {
        let _alone = ALONE.lock();
        let log = Log::new(false);
        let parker: Arc<dyn Park> = log.clone();
        register_parker(parker.clone());
        may_sync(SyncKind::ModuleLoad, || {
            log.told.lock().push("call");
            Ok(())
        })
        .unwrap();
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            may_sync_briefly(|| panic!("driver"));
        }));
        unregister_parker(&parker);
        may_sync(SyncKind::HostFree, || Ok(())).unwrap();
        assert!(caught.is_err());
        assert_eq!(*log.told.lock(), ["hold", "left", "call", "resume", "hold", "briefly", "resume"]);
    }

    #[test]
    fn no_call_is_made_beside_one_that_stays_and_all_are_let_go() {
        let _alone = ALONE.lock();
        let logs = [Log::new(false), Log::new(true), Log::new(false)];
        let parkers = logs.each_ref().map(|log| -> Arc<dyn Park> { log.clone() });
        parkers.iter().for_each(|parker| register_parker(parker.clone()));
        let called = may_sync(SyncKind::ModuleLoad, || -> Result<()> { unreachable!("it would wait for ever") });
        may_sync_briefly(|| unreachable!("it would wait for ever"));
        parkers.iter().for_each(unregister_parker);
        assert!(matches!(called, Err(Error::Device(text)) if text == "it stays"));
        assert_eq!(*logs[0].told.lock(), ["hold", "left", "resume", "hold", "briefly", "resume"]);
        assert_eq!(*logs[1].told.lock(), ["hold", "left", "resume", "hold", "briefly", "resume"]);
        assert_eq!(*logs[2].told.lock(), ["hold", "resume", "hold", "resume"]);
    }
}
