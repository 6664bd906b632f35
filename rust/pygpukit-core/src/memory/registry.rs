//! The arrays that live on CPU devices, and which of their bytes have a value: what the emulator's checker asks.
//!
//! Device memory of a CPU device is host memory of this process, so addresses alone tell arrays apart.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::device::DevPtr;

/// Which bytes of an array have been written.
#[derive(Debug)]
pub struct Written {
    /// One bit per byte.
    bits: Vec<AtomicU64>,
    all: AtomicBool,
}

impl Written {
    fn new(bytes: usize) -> Written {
        let mut bits = Vec::new();
        bits.resize_with(bytes.div_ceil(64), AtomicU64::default);
        Written { bits, all: AtomicBool::new(false) }
    }

    #[inline]
    pub fn is_whole(&self) -> bool {
        self.all.load(Ordering::Relaxed)
    }

    fn each(start: u64, bytes: u64, mut visit: impl FnMut(usize, u64) -> bool) {
        let mut at = start;
        while at < start + bytes {
            let count = (64 - at % 64).min(start + bytes - at);
            let mask = if count == 64 { u64::MAX } else { ((1 << count) - 1) << (at % 64) };
            if !visit((at / 64) as usize, mask) {
                return;
            }
            at += count;
        }
    }

    #[inline]
    pub fn set(&self, start: u64, bytes: u64) {
        Written::each(start, bytes, |word, mask| {
            if let Some(bits) = self.bits.get(word)
                && bits.load(Ordering::Relaxed) & mask != mask
            {
                bits.fetch_or(mask, Ordering::Relaxed);
            }
            true
        });
    }

    /// Has any of these bytes been written?
    #[inline]
    pub fn any(&self, start: u64, bytes: u64) -> bool {
        let mut found = false;
        Written::each(start, bytes, |word, mask| {
            found = self.bits.get(word).is_none_or(|bits| bits.load(Ordering::Relaxed) & mask != 0);
            !found
        });
        found
    }

    /// Have all of these bytes been written?
    #[inline]
    pub fn all(&self, start: u64, bytes: u64) -> bool {
        let mut all = true;
        Written::each(start, bytes, |word, mask| {
            all = self.bits.get(word).is_none_or(|bits| bits.load(Ordering::Relaxed) & mask == mask);
            all
        });
        all
    }

    fn set_all(&self) {
        self.all.store(true, Ordering::Relaxed);
    }
}

/// A live array.
#[derive(Clone, Debug)]
pub struct Extent {
    pub start: DevPtr,
    pub bytes: u64,
    /// None when all of it counts as written.
    pub written: Option<Arc<Written>>,
}

/// Bytes between neighbouring arrays while kernels are checked.
pub(super) const APART: usize = 256;

/// Bytes, and which of them are written, by address.
type Arrays = BTreeMap<DevPtr, (u64, Option<Arc<Written>>)>;

static ARRAYS: Mutex<Arrays> = Mutex::new(Arrays::new());
static TRACKING: AtomicBool = AtomicBool::new(false);

/// From now on follow which bytes of new arrays are written; older ones count as written.
pub fn track() {
    TRACKING.store(true, Ordering::Relaxed);
}

#[inline]
pub fn is_tracking() -> bool {
    TRACKING.load(Ordering::Relaxed)
}

pub(super) fn add(start: DevPtr, bytes: usize) {
    let written = is_tracking().then(|| Arc::new(Written::new(bytes)));
    ARRAYS.lock().insert(start, (bytes as u64, written));
}

/// Memory of a graph: replays use it whether or not an array of the recording still lives, so it stays until
/// `remove_within`. Arrays that follow each other in the same place count as one, and as written.
pub(super) fn add_lasting(start: DevPtr, bytes: usize) {
    let mut arrays = ARRAYS.lock();
    let known = arrays.entry(start).or_default();
    known.0 = known.0.max(bytes as u64);
}

/// An array has other bounds now, and counts as written.
pub(super) fn resize(start: DevPtr, bytes: usize) {
    ARRAYS.lock().insert(start, (bytes as u64, None));
}

pub(super) fn remove(start: DevPtr) {
    ARRAYS.lock().remove(&start);
}

/// These bytes go back to the device.
pub(super) fn remove_within(start: DevPtr, bytes: usize) {
    let mut arrays = ARRAYS.lock();
    let inside: Vec<DevPtr> = arrays.range(start..start + bytes as u64).map(|(address, _)| *address).collect();
    for address in inside {
        arrays.remove(&address);
    }
}

fn extent((start, (bytes, written)): (&DevPtr, &(u64, Option<Arc<Written>>))) -> Extent {
    Extent { start: *start, bytes: *bytes, written: written.clone() }
}

/// The array an address lies in.
pub fn find(address: DevPtr) -> Option<Extent> {
    let arrays = ARRAYS.lock();
    let found = arrays.range(..=address).next_back().map(extent)?;
    (address - found.start < found.bytes).then_some(found)
}

/// The arrays before and after an address that lies in none.
pub fn neighbours(address: DevPtr) -> (Option<Extent>, Option<Extent>) {
    let arrays = ARRAYS.lock();
    (arrays.range(..=address).next_back().map(extent), arrays.range(address..).next().map(extent))
}

/// These bytes have a value now.
pub fn define(start: DevPtr, bytes: u64) {
    if !is_tracking() {
        return;
    }
    if let Some(Extent { start: first, bytes: size, written: Some(written) }) = find(start) {
        if start == first && bytes >= size {
            written.set_all();
        } else {
            written.set(start - first, bytes.min(size - (start - first)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_are_found_by_any_of_their_addresses() {
        // Addresses no allocation has.
        let base = 0x7100_0000_0000_0000;
        add(base, 100);
        add(base + 256, 40);
        assert_eq!(find(base + 99).map(|e| (e.start, e.bytes)), Some((base, 100)));
        assert!(find(base + 100).is_none());
        let (before, after) = neighbours(base + 120);
        assert_eq!((before.map(|e| e.start), after.map(|e| e.start)), (Some(base), Some(base + 256)));
        remove(base);
        remove(base + 256);
        assert!(find(base).is_none());
    }

    #[test]
    fn memory_of_a_graph_stays_until_it_is_released() {
        let base = 0x7200_0000_0000_0000;
        add_lasting(base, 100);
        add_lasting(base, 60);
        add_lasting(base + 256, 8);
        assert_eq!(find(base + 99).map(|e| (e.start, e.bytes, e.written.is_none())), Some((base, 100, true)));
        remove_within(base, 512);
        assert!(find(base).is_none() && find(base + 256).is_none());
    }

    #[test]
    fn bytes_are_written_one_by_one() {
        let written = Written::new(200);
        assert!(!written.any(0, 200));
        written.set(60, 10);
        assert!(written.any(60, 1) && written.any(69, 1) && !written.any(59, 1) && !written.any(70, 1));
        assert!(written.any(0, 61) && !written.any(0, 60) && !written.any(70, 130));
        assert!(written.all(60, 10) && !written.all(59, 11));
        assert!(!written.is_whole());
        written.set_all();
        assert!(written.is_whole());
    }
}
