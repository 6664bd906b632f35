//! Leases: how much device time a task may put in flight.
//!
//! A launch takes its predicted cost with one atomic; it waits only when the credit is gone. A scheduler
//! grants, revokes and settles; it never relays launches. Work without a lease is not limited.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::error::{Error, Result};

#[derive(Debug, Default)]
pub struct Lease {
    credit_ns: AtomicI64,
    revoked: AtomicBool,
    gate: Mutex<()>,
    refilled: Condvar,
}

impl Lease {
    pub fn new(credit_ns: i64) -> Lease {
        Lease { credit_ns: AtomicI64::new(credit_ns), ..Lease::default() }
    }

    pub fn credit_ns(&self) -> i64 {
        self.credit_ns.load(Ordering::Acquire)
    }

    /// Take the predicted cost of a launch. Credit may go below zero by one launch, never by two: the next
    /// one waits until it is positive again. `check` runs while waiting and may end it with an error.
    #[inline]
    pub fn charge(&self, cost_ns: i64, check: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        loop {
            let credit = self.credit_ns.load(Ordering::Acquire);
            if credit > 0 && !self.revoked.load(Ordering::Acquire) {
                let taken =
                    self.credit_ns.compare_exchange_weak(credit, credit - cost_ns, Ordering::AcqRel, Ordering::Acquire);
                if taken.is_ok() {
                    return Ok(());
                }
                continue;
            }
            check()?;
            let mut guard = self.gate.lock();
            // Looked at again under the lock that grants take, so a grant in between is not missed.
            if self.credit_ns() <= 0 || self.revoked.load(Ordering::Acquire) {
                self.refilled.wait_for(&mut guard, Duration::from_millis(5));
            }
        }
    }

    /// Add credit (or take some back with a negative number) and wake waiting launches.
    pub fn grant(&self, ns: i64) {
        let _guard = self.gate.lock();
        self.credit_ns.fetch_add(ns, Ordering::AcqRel);
        self.refilled.notify_all();
    }

    /// Stop further launches until `restore`; what is in flight goes on.
    pub fn revoke(&self) {
        self.revoked.store(true, Ordering::Release);
    }

    pub fn restore(&self) {
        let _guard = self.gate.lock();
        self.revoked.store(false, Ordering::Release);
        self.refilled.notify_all();
    }

    /// An error for a launch whose lease will never be refilled.
    pub fn cancelled() -> Error {
        Error::Launch("the task was cancelled while it waited for device time".to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn credit_is_taken_once_per_launch_and_overdrawn_by_one_at_most() {
        let lease = Lease::new(10);
        lease.charge(6, &mut || Ok(())).unwrap();
        lease.charge(6, &mut || Ok(())).unwrap();
        assert_eq!(lease.credit_ns(), -2);
        let refused = lease.charge(1, &mut || Err(Lease::cancelled()));
        assert!(refused.unwrap_err().to_string().contains("cancelled"));
        assert_eq!(lease.credit_ns(), -2);
    }

    #[test]
    fn many_threads_never_take_more_than_was_granted_plus_one_launch_each() {
        let lease = Arc::new(Lease::new(0));
        let launched = Arc::new(AtomicUsize::new(0));
        let stop = Arc::new(AtomicBool::new(false));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let (lease, launched, stop) = (lease.clone(), launched.clone(), stop.clone());
                std::thread::spawn(move || {
                    let mut check = || if stop.load(Ordering::Acquire) { Err(Lease::cancelled()) } else { Ok(()) };
                    while lease.charge(10, &mut check).is_ok() {
                        launched.fetch_add(1, Ordering::AcqRel);
                    }
                })
            })
            .collect();
        for _ in 0..100 {
            lease.grant(10);
        }
        while launched.load(Ordering::Acquire) < 100 {
            std::thread::yield_now();
        }
        lease.revoke();
        lease.grant(1000);
        std::thread::sleep(Duration::from_millis(10));
        assert_eq!(launched.load(Ordering::Acquire), 100);
        stop.store(true, Ordering::Release);
        lease.restore();
        for thread in threads {
            thread.join().unwrap();
        }
    }
}
