//! `may_sync`: the gate around driver calls that can wait for the whole device.
//!
//! Loading a module, making a green context or freeing pinned memory waits until every running kernel has
//! ended. A resident kernel (a ring) never ends by itself, so it registers here and is parked around such
//! calls.

use std::sync::Arc;

use parking_lot::RwLock;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncKind {
    ModuleLoad,
    ModuleUnload,
    GreenContext,
    HostFree,
}

/// Something resident on the device that can leave it for a moment.
pub trait Park: Send + Sync {
    /// Leave the device; returns when it has.
    fn park(&self, kind: SyncKind);
    /// Come back.
    fn resume(&self);
}

static PARKERS: RwLock<Vec<Arc<dyn Park>>> = RwLock::new(Vec::new());

/// Register a resident kernel.
pub fn register_parker(parker: Arc<dyn Park>) {
    PARKERS.write().push(parker);
}

/// Forget a resident kernel that has ended.
pub fn unregister_parker(parker: &Arc<dyn Park>) {
    PARKERS.write().retain(|p| !Arc::ptr_eq(p, parker));
}

/// Run a driver call that may wait for the whole device, with resident kernels parked around it.
pub fn may_sync<R>(kind: SyncKind, call: impl FnOnce() -> R) -> R {
    struct Resume(Vec<Arc<dyn Park>>);
    impl Drop for Resume {
        fn drop(&mut self) {
            for parker in self.0.iter().rev() {
                parker.resume();
            }
        }
    }
    let mut parked = Resume(Vec::new());
    let parkers = PARKERS.read().clone();
    for parker in parkers {
        parker.park(kind);
        parked.0.push(parker);
    }
    call()
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;

    struct Log(Mutex<Vec<&'static str>>);
    impl Park for Log {
        fn park(&self, _: SyncKind) {
            self.0.lock().push("park");
        }
        fn resume(&self) {
            self.0.lock().push("resume");
        }
    }

    #[test]
    fn resident_kernels_are_parked_around_the_call_and_after_a_panic() {
        let log = Arc::new(Log(Mutex::new(Vec::new())));
        let parker: Arc<dyn Park> = log.clone();
        register_parker(parker.clone());
        may_sync(SyncKind::ModuleLoad, || log.0.lock().push("call"));
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            may_sync(SyncKind::HostFree, || panic!("driver"));
        }));
        unregister_parker(&parker);
        may_sync(SyncKind::HostFree, || ());
        assert!(caught.is_err());
        assert_eq!(*log.0.lock(), ["park", "call", "resume", "park", "resume"]);
    }
}
