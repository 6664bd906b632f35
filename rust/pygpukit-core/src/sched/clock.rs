//! Clocks: the machine's, and one that tests move by hand.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

pub trait Clock: Send + Sync {
    /// Nanoseconds since some fixed point.
    fn now(&self) -> u64;
}

/// The machine's monotonic clock, counted from its first use in the process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Monotonic;

impl Clock for Monotonic {
    #[inline]
    fn now(&self) -> u64 {
        static START: OnceLock<Instant> = OnceLock::new();
        START.get_or_init(Instant::now).elapsed().as_nanos() as u64
    }
}

/// Stands still until it is moved.
#[derive(Debug, Default)]
pub struct Manual(AtomicU64);

impl Manual {
    pub fn set(&self, now: u64) {
        self.0.fetch_max(now, Ordering::AcqRel);
    }
}

impl Clock for Manual {
    fn now(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}
