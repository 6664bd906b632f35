//! `Account`: what a pool and those below it have handed out, and the quota on that.
//!
//! Without a quota a pool counts its own blocks under its lock, without an atomic operation; only what pools below
//! hand out is counted atomically. With a quota both are one atomic number, so that it is never exceeded.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const UNLIMITED: usize = usize::MAX;

#[derive(Debug)]
pub(super) struct Account {
    /// Bytes of the pool's own blocks; written under its lock.
    own: AtomicUsize,
    /// Bytes of the pools below; with a quota, the pool's own too.
    shared: AtomicUsize,
    /// `shared` holds the pool's own bytes; written under its lock.
    limited: AtomicBool,
    quota: AtomicUsize,
    peak: AtomicUsize,
}

impl Account {
    pub fn new(quota: Option<usize>) -> Account {
        Account {
            own: AtomicUsize::new(0),
            shared: AtomicUsize::new(0),
            limited: AtomicBool::new(quota.is_some()),
            quota: AtomicUsize::new(quota.unwrap_or(UNLIMITED)),
            peak: AtomicUsize::new(0),
        }
    }

    pub fn quota(&self) -> Option<usize> {
        Some(self.quota.load(Ordering::Acquire)).filter(|quota| *quota != UNLIMITED)
    }

    /// The pool's lock is held.
    pub fn set_quota(&self, quota: Option<usize>) {
        let (own, limited) = (self.own.load(Ordering::Relaxed), self.is_limited());
        match quota {
            // Own bytes join first: whoever sees the quota compares everything with it.
            Some(_) if !limited => _ = self.shared.fetch_add(own, Ordering::Relaxed),
            None if limited => _ = self.shared.fetch_sub(own, Ordering::Relaxed),
            _ => {}
        }
        self.limited.store(quota.is_some(), Ordering::Relaxed);
        self.quota.store(quota.unwrap_or(UNLIMITED), Ordering::Release);
    }

    pub fn used(&self) -> usize {
        let shared = self.shared.load(Ordering::Relaxed);
        if self.is_limited() { shared } else { shared + self.own.load(Ordering::Relaxed) }
    }

    /// Bytes of the pool's own blocks.
    pub fn own(&self) -> usize {
        self.own.load(Ordering::Relaxed)
    }

    /// From now on the peak is that of what comes.
    pub fn reset_peak(&self) {
        self.peak.store(self.used(), Ordering::Relaxed);
    }

    pub fn peak(&self) -> usize {
        self.peak.load(Ordering::Relaxed)
    }

    /// Bytes the quota leaves.
    pub fn room(&self) -> usize {
        self.quota().map_or(UNLIMITED, |quota| quota.saturating_sub(self.used()))
    }

    /// Count a block of the pool itself, unless the quota has no room. The pool's lock is held.
    #[inline]
    pub fn add_own(&self, bytes: usize) -> bool {
        let fits = !self.is_limited() || self.add_below(bytes);
        if fits {
            self.own.store(self.own.load(Ordering::Relaxed) + bytes, Ordering::Relaxed);
        }
        fits
    }

    /// The pool's lock is held.
    #[inline]
    pub fn subtract_own(&self, bytes: usize) {
        if self.is_limited() {
            self.subtract_below(bytes);
        }
        self.own.store(self.own.load(Ordering::Relaxed) - bytes, Ordering::Relaxed);
    }

    /// Count a block of a pool below, unless the quota has no room.
    #[inline]
    pub fn add_below(&self, bytes: usize) -> bool {
        let quota = self.quota.load(Ordering::Acquire);
        let mut shared = self.shared.load(Ordering::Relaxed);
        loop {
            let Some(total) = shared.checked_add(bytes).filter(|total| *total <= quota) else { return false };
            match self.shared.compare_exchange_weak(shared, total, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => shared = now,
            }
        }
    }

    #[inline]
    pub fn subtract_below(&self, bytes: usize) {
        self.shared.fetch_sub(bytes, Ordering::Relaxed);
    }

    #[inline]
    pub fn raise_peak(&self) {
        let used = self.used();
        if used > self.peak.load(Ordering::Relaxed) {
            self.peak.fetch_max(used, Ordering::Relaxed);
        }
    }

    #[inline]
    fn is_limited(&self) -> bool {
        self.limited.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn setting_and_lifting_a_quota_keeps_the_count() {
        let account = Account::new(None);
        assert!(account.add_own(10) && account.add_below(5));
        assert_eq!((account.used(), account.room()), (15, usize::MAX));
        account.set_quota(Some(20));
        assert_eq!((account.used(), account.room()), (15, 5));
        assert!(!account.add_own(6) && !account.add_below(6) && account.add_own(5));
        account.set_quota(Some(12));
        assert_eq!((account.used(), account.room()), (20, 0));
        account.subtract_own(15);
        account.set_quota(None);
        assert_eq!(account.used(), 5);
        account.subtract_below(5);
        account.raise_peak();
        assert_eq!((account.used(), account.peak(), account.quota()), (0, 0, None));
        assert!(account.add_own(8));
        account.raise_peak();
        account.subtract_own(5);
        assert_eq!((account.peak(), account.own()), (8, 3));
        account.reset_peak();
        assert_eq!(account.peak(), 3);
    }
}
