//! Orders to the kernel's warden, and the clock it is asked for.

use std::sync::atomic::{AtomicI64, Ordering};

use parking_lot::Mutex;

use super::mapped::Word;

/// Verbs of orders.
pub const SET_MODE: u64 = 1;
pub const LEAVE: u64 = 2;
pub const TRIM: u64 = 3;
pub const CLOCK: u64 = 4;
pub const TRAP: u64 = 5;

/// Bytes of an order in the ring.
const SLOT: usize = 64;

pub struct Orders {
    tail: Word,
    head: Word,
    base: usize,
    count: u64,
    written: Mutex<u64>,
}

impl Orders {
    /// # Safety
    /// There are `count` slots of 64 bytes at the address, aligned to 8, which live as long as this value.
    pub unsafe fn new(tail: Word, head: Word, base: usize, count: u64) -> Orders {
        Orders { tail, head, base, count: count.max(1), written: Mutex::new(0) }
    }

    /// Give an order; None when the ring is full. It is carried out once `taken` reaches the number returned.
    pub fn try_push(&self, order: [u64; 5]) -> Option<u64> {
        let mut written = self.written.lock();
        if *written - self.head.load() >= self.count {
            return None;
        }
        let slot = self.base + SLOT * (*written % self.count) as usize;
        for (index, value) in order.into_iter().enumerate() {
            // SAFETY: inside of one of the slots, which the warden has taken.
            unsafe { Word::new(slot + 8 * index) }.store(value);
        }
        *written += 1;
        self.tail.store(*written);
        Some(*written)
    }

    pub fn taken(&self) -> u64 {
        self.head.load()
    }

    /// Orders that were not carried out yet.
    pub fn pending(&self) -> u64 {
        self.written.lock().saturating_sub(self.head.load())
    }
}

/// Not measured yet.
const UNKNOWN: i64 = i64::MIN;

/// How far the device's clock is from the host's.
pub struct Offset(AtomicI64);

impl Default for Offset {
    fn default() -> Offset {
        Offset(AtomicI64::new(UNKNOWN))
    }
}

impl Offset {
    /// The device's nanoseconds less the host's.
    pub fn get(&self) -> Option<i64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|offset| *offset != UNKNOWN)
    }

    pub fn set(&self, offset: i64) {
        self.0.store(offset.max(UNKNOWN + 1), Ordering::Relaxed);
    }
}

/// Nanoseconds of the clock that `time.monotonic_ns` reads.
#[cfg(unix)]
pub fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the time is written to a live local.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(not(unix))]
pub fn monotonic_ns() -> u64 {
    use crate::sched::clock::{Clock, Monotonic};
    Monotonic.now()
}
