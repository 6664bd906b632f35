//! Counters of a launch: facts that are the same in every run.

use super::code::{Class, LANES};
use super::exec::memory::Kind;
use super::memory::{LOCAL_WINDOW, SHARED_WINDOW, WINDOW_MASK};

/// Number of instruction classes.
pub const CLASSES: usize = Class::Other as usize + 1;

/// Bytes of a sector, the unit in which global memory is moved.
const SECTOR: u64 = 32;

/// What a launch did, counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Instructions issued by warps, and the lanes they were executed for, by class.
    pub issued: [u64; CLASSES],
    pub lanes: [u64; CLASSES],
    /// Global loads and stores of warps, the 32-byte sectors they touch, and the bytes they asked for.
    pub loads: Traffic,
    pub stores: Traffic,
    /// Accesses of warps to shared memory, the passes they take, and the passes that bank conflicts added.
    pub shared_accesses: u64,
    pub shared_passes: u64,
    pub shared_conflicts: u64,
    /// Accesses of warps to local memory, and their bytes.
    pub local_accesses: u64,
    pub local_bytes: u64,
    /// Branches of warps, and those at which lanes parted.
    pub branches: u64,
    pub divergent: u64,
    pub blocks: u64,
    pub warps: u64,
    pub threads: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    pub accesses: u64,
    pub sectors: u64,
    pub bytes: u64,
}

impl Counters {
    pub fn add(&mut self, other: &Counters) {
        for class in 0..CLASSES {
            self.issued[class] += other.issued[class];
            self.lanes[class] += other.lanes[class];
        }
        for (mine, theirs) in [(&mut self.loads, other.loads), (&mut self.stores, other.stores)] {
            mine.accesses += theirs.accesses;
            mine.sectors += theirs.sectors;
            mine.bytes += theirs.bytes;
        }
        self.shared_accesses += other.shared_accesses;
        self.shared_passes += other.shared_passes;
        self.shared_conflicts += other.shared_conflicts;
        self.local_accesses += other.local_accesses;
        self.local_bytes += other.local_bytes;
        self.branches += other.branches;
        self.divergent += other.divergent;
        self.blocks += other.blocks;
        self.warps += other.warps;
        self.threads += other.threads;
    }

    #[inline]
    pub(crate) fn issue(&mut self, class: Class, mask: u32) {
        self.issued[class as usize] += 1;
        self.lanes[class as usize] += u64::from(mask.count_ones());
    }

    /// Take back what `issue` counted.
    pub(crate) fn retract(&mut self, class: Class, mask: u32) {
        self.issued[class as usize] -= 1;
        self.lanes[class as usize] -= u64::from(mask.count_ones());
    }

    #[inline]
    pub(crate) fn branch(&mut self, parted: bool) {
        self.branches += 1;
        self.divergent += u64::from(parted);
    }

    /// Count one access of a warp, before its addresses are translated.
    pub(crate) fn access(&mut self, kind: Kind, a: &[u64; LANES], mask: u32, bytes: u32, write: bool) {
        let lane = mask.trailing_zeros() as usize & 31;
        let kind = match (kind, a[lane] & WINDOW_MASK) {
            (Kind::Generic, SHARED_WINDOW) => Kind::Shared,
            (Kind::Generic, LOCAL_WINDOW) => Kind::Local,
            (Kind::Generic, _) => Kind::Global,
            (kind, _) => kind,
        };
        let active = u64::from(mask.count_ones());
        match kind {
            Kind::Shared => {
                let passes = passes(a, mask, bytes);
                // A warp's bytes need at least so many passes of 128 bytes each.
                let least = (distinct_words(a, mask, bytes) / LANES as u64).max(1);
                self.shared_accesses += 1;
                self.shared_passes += passes;
                self.shared_conflicts += passes.saturating_sub(least);
            }
            Kind::Local => {
                self.local_accesses += 1;
                self.local_bytes += active * u64::from(bytes);
            }
            _ => {
                let traffic = if write { &mut self.stores } else { &mut self.loads };
                traffic.accesses += 1;
                traffic.bytes += active * u64::from(bytes);
                traffic.sectors += sectors(a, mask, bytes);
            }
        }
    }
}

/// Distinct 32-byte sectors of an access.
fn sectors(a: &[u64; LANES], mask: u32, bytes: u32) -> u64 {
    let mut all = [0u64; LANES];
    let mut count = 0;
    for lane in (0..LANES).filter(|lane| mask >> lane & 1 != 0) {
        all[count] = a[lane] / SECTOR;
        count += 1;
    }
    all[..count].sort_unstable();
    let mut total = 0;
    let mut covered = None;
    for &first in &all[..count] {
        // An aligned access of up to 32 bytes lies in one sector, a wider one in several.
        let last = first + u64::from(bytes.max(1) - 1) / SECTOR;
        let from = covered.map_or(first, |end: u64| first.max(end + 1));
        if last >= from {
            total += last - from + 1;
            covered = Some(last);
        }
    }
    total
}

/// The 4-byte words lanes touch, in groups that the hardware serves together: a quarter of a warp for 16-byte accesses,
/// half of it for 8-byte ones.
fn groups(bytes: u32) -> usize {
    match bytes {
        0..=4 => 1,
        5..=8 => 2,
        _ => 4,
    }
}

fn words_of(a: &[u64; LANES], mask: u32, bytes: u32, group: usize, groups: usize) -> Vec<u64> {
    let size = LANES / groups;
    let mut words = Vec::with_capacity(LANES);
    for lane in (group * size..(group + 1) * size).filter(|lane| mask >> lane & 1 != 0) {
        let first = (a[lane] & !WINDOW_MASK) / 4;
        words.extend((0..u64::from(bytes.div_ceil(4).max(1))).map(|k| first + k));
    }
    words.sort_unstable();
    words.dedup();
    words
}

/// Passes an access to shared memory takes: per group, the most distinct words in one of 32 banks.
fn passes(a: &[u64; LANES], mask: u32, bytes: u32) -> u64 {
    let groups = groups(bytes);
    let mut total = 0;
    for group in 0..groups {
        let mut banks = [0u64; LANES];
        for word in words_of(a, mask, bytes, group, groups) {
            banks[(word % LANES as u64) as usize] += 1;
        }
        total += banks.iter().copied().max().unwrap_or(0);
    }
    total.max(1)
}

fn distinct_words(a: &[u64; LANES], mask: u32, bytes: u32) -> u64 {
    let groups = groups(bytes);
    (0..groups).map(|group| words_of(a, mask, bytes, group, groups).len().next_multiple_of(LANES) as u64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lanes(f: impl Fn(u64) -> u64) -> [u64; LANES] {
        std::array::from_fn(|lane| f(lane as u64))
    }

    #[test]
    fn sectors_of_known_patterns() {
        assert_eq!(sectors(&lanes(|l| 4096 + 4 * l), u32::MAX, 4), 4);
        assert_eq!(sectors(&lanes(|l| 4096 + 4 * l + 4), u32::MAX, 4), 5);
        assert_eq!(sectors(&lanes(|_| 4096), u32::MAX, 4), 1);
        assert_eq!(sectors(&lanes(|l| 4096 + 128 * l), u32::MAX, 4), 32);
        assert_eq!(sectors(&lanes(|l| 4096 + 16 * l), u32::MAX, 16), 16);
        assert_eq!(sectors(&lanes(|l| 4096 + 128 * l), 0b101, 4), 2);
    }

    #[test]
    fn bank_conflicts_of_known_patterns() {
        let of = |a: [u64; LANES], bytes| {
            let mut c = Counters::default();
            c.access(Kind::Shared, &a, u32::MAX, bytes, false);
            (c.shared_passes, c.shared_conflicts)
        };
        assert_eq!(of(lanes(|l| 4 * l), 4), (1, 0));
        assert_eq!(of(lanes(|l| 8 * l), 4), (2, 1));
        assert_eq!(of(lanes(|l| 128 * l), 4), (32, 31));
        assert_eq!(of(lanes(|l| 132 * l), 4), (1, 0));
        assert_eq!(of(lanes(|_| 64), 4), (1, 0));
        assert_eq!(of(lanes(|l| 16 * l), 16), (4, 0));
        assert_eq!(of(lanes(|l| 8 * l), 8), (2, 0));
        assert_eq!(of(lanes(|l| l), 1), (1, 0));
    }
}
