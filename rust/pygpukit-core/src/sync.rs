//! `may_sync`: the gate around driver calls that can wait for the whole device.
//!
//! Loading a module, making a green context or freeing pinned memory waits until every running kernel has
//! ended. A resident kernel (a ring) never ends by itself, so it registers here and is parked around such
//! calls.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

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

/// The resident kernels, and what each call in progress has parked.
#[derive(Default)]
struct Gate {
    parkers: Vec<Arc<dyn Park>>,
    calls: HashMap<u64, (SyncKind, Vec<Arc<dyn Park>>)>,
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
    for (kind, parked) in gate.calls.values_mut() {
        parker.park(*kind);
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

/// Run a driver call that may wait for the whole device, with resident kernels parked around it.
pub fn may_sync<R>(kind: SyncKind, call: impl FnOnce() -> R) -> R {
    struct Resume(u64);
    impl Drop for Resume {
        fn drop(&mut self) {
            let parked = GATE.lock().as_mut().and_then(|gate| gate.calls.remove(&self.0));
            for parker in parked.into_iter().flat_map(|(_, parked)| parked).rev() {
                parker.resume();
            }
        }
    }
    let (resume, parkers) = {
        let mut gate = GATE.lock();
        let gate = gate.get_or_insert_default();
        gate.next += 1;
        gate.calls.insert(gate.next, (kind, gate.parkers.clone()));
        (Resume(gate.next), gate.parkers.clone())
    };
    for parker in &parkers {
        parker.park(kind);
    }
    let result = call();
    drop(resume);
    result
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
