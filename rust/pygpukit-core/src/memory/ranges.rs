//! Address ranges: one reservation carved into pieces and joined again.

use std::collections::{BTreeMap, BTreeSet};

use crate::device::DevPtr;

/// One reservation of the device's address space.
#[derive(Debug)]
pub(crate) struct Range {
    pub base: DevPtr,
    pub bytes: usize,
    /// Free pieces by address; neighbours are joined.
    by_address: BTreeMap<DevPtr, usize>,
    by_size: BTreeSet<(usize, DevPtr)>,
}

impl Range {
    pub fn new(base: DevPtr, bytes: usize) -> Range {
        let mut range = Range { base, bytes, by_address: BTreeMap::new(), by_size: BTreeSet::new() };
        range.insert(base, bytes);
        range
    }

    pub fn contains(&self, va: DevPtr) -> bool {
        va >= self.base && va - self.base < self.bytes as u64
    }

    /// The smallest free piece that is large enough, so that large pieces stay whole.
    pub fn take(&mut self, bytes: usize) -> Option<DevPtr> {
        let (size, va) = *self.by_size.range((bytes, 0)..).next()?;
        self.remove(va, size);
        if size > bytes {
            self.insert(va + bytes as u64, size - bytes);
        }
        Some(va)
    }

    pub fn give_back(&mut self, va: DevPtr, bytes: usize) {
        let (mut va, mut bytes) = (va, bytes);
        if let Some((&before, &size)) = self.by_address.range(..va).next_back()
            && before + size as u64 == va
        {
            self.remove(before, size);
            (va, bytes) = (before, size + bytes);
        }
        let end = va + bytes as u64;
        if let Some(&size) = self.by_address.get(&end) {
            self.remove(end, size);
            bytes += size;
        }
        self.insert(va, bytes);
    }

    /// Nothing is carved out of it.
    pub fn is_whole(&self) -> bool {
        self.by_address.get(&self.base) == Some(&self.bytes)
    }

    fn insert(&mut self, va: DevPtr, bytes: usize) {
        self.by_address.insert(va, bytes);
        self.by_size.insert((bytes, va));
    }

    fn remove(&mut self, va: DevPtr, bytes: usize) {
        self.by_address.remove(&va);
        self.by_size.remove(&(bytes, va));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_never_overlap_and_join_again(steps in prop::collection::vec((any::<bool>(), 1usize..40), 1..200)) {
            let mut range = Range::new(1000, 256);
            let mut taken: Vec<(u64, usize)> = Vec::new();
            for (take, n) in steps {
                if take {
                    if let Some(va) = range.take(n) {
                        prop_assert!(va >= 1000 && va + n as u64 <= 1256);
                        for &(other, len) in &taken {
                            prop_assert!(va + n as u64 <= other || other + len as u64 <= va);
                        }
                        taken.push((va, n));
                    }
                } else if !taken.is_empty() {
                    let (va, len) = taken.swap_remove(n % taken.len());
                    range.give_back(va, len);
                }
                let free: usize = range.by_address.values().sum();
                prop_assert_eq!(free + taken.iter().map(|t| t.1).sum::<usize>(), 256);
                prop_assert_eq!(range.by_address.len(), range.by_size.len());
            }
            for (va, len) in taken {
                range.give_back(va, len);
            }
            prop_assert!(range.is_whole());
        }
    }

    #[test]
    fn the_best_fit_is_taken() {
        let mut range = Range::new(0, 100);
        let (a, b) = (range.take(10).unwrap(), range.take(10).unwrap());
        range.give_back(a, 10);
        assert_eq!(range.take(5), Some(a));
        assert_eq!(range.take(80), Some(b + 10));
        assert_eq!(range.take(6), None);
        assert!(range.contains(99) && !range.contains(100));
    }
}
