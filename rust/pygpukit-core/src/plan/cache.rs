//! A bounded map from classes of arguments to plans, least recently used first out.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

/// Hashes keys that are few words or short byte strings, eight bytes at a time.
#[derive(Default)]
pub struct WordHasher(u64);

impl Hasher for WordHasher {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

struct Entry<V> {
    value: V,
    used: AtomicU64,
}

pub struct PlanCache<K, V> {
    entries: RwLock<HashMap<K, Entry<V>, BuildHasherDefault<WordHasher>>>,
    clock: AtomicU64,
    capacity: usize,
}

impl<K: Eq + Hash + Clone, V: Clone> PlanCache<K, V> {
    pub const fn new(capacity: usize) -> PlanCache<K, V> {
        PlanCache {
            entries: RwLock::new(HashMap::with_hasher(BuildHasherDefault::new())),
            clock: AtomicU64::new(0),
            capacity,
        }
    }

    #[inline]
    pub fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let entries = self.entries.read();
        let entry = entries.get(key)?;
        entry.used.store(self.clock.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        Some(entry.value.clone())
    }

    /// Add or replace an entry. Over the capacity the least recently used ones go; their plans end with their last user.
    pub fn insert(&self, key: K, value: V) {
        let used = AtomicU64::new(self.clock.fetch_add(1, Ordering::Relaxed));
        let mut gone = Vec::new();
        let mut entries = self.entries.write();
        gone.extend(entries.insert(key, Entry { value, used }));
        if entries.len() > self.capacity {
            // An eighth at once, so that a full cache is not searched for every new plan.
            let mut times: Vec<u64> = entries.values().map(|entry| entry.used.load(Ordering::Relaxed)).collect();
            let count = (entries.len() - self.capacity).max(self.capacity / 8).min(times.len() - 1);
            let (_, limit, _) = times.select_nth_unstable(count);
            let limit = *limit;
            let old: Vec<K> = entries
                .iter()
                .filter(|(_, e)| e.used.load(Ordering::Relaxed) < limit)
                .map(|(k, _)| k.clone())
                .collect();
            gone.extend(old.iter().filter_map(|key| entries.remove(key)));
        }
        drop(entries);
        // Unloading a kernel may wait for the device: not under the lock.
        drop(gone);
    }

    pub fn clear(&self) {
        let gone = std::mem::take(&mut *self.entries.write());
        drop(gone);
    }

    pub fn len(&self) -> usize {
        self.entries.read().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_entries_go_first() {
        let cache: PlanCache<u64, u64> = PlanCache::new(8);
        for key in 0..8 {
            cache.insert(key, key * 10);
        }
        assert_eq!(cache.get(&0), Some(0));
        cache.insert(8, 80);
        assert_eq!(cache.len(), 8);
        assert_eq!(cache.get(&1), None);
        assert_eq!((cache.get(&0), cache.get(&8)), (Some(0), Some(80)));
    }

    #[test]
    fn keys_of_bytes_are_found_by_slices() {
        let cache: PlanCache<Vec<u8>, u32> = PlanCache::new(4);
        cache.insert(b"abcdefghi".to_vec(), 1);
        assert_eq!(cache.get(&b"abcdefghi"[..]), Some(1));
        assert_eq!(cache.get(&b"abcdefgh"[..]), None);
        cache.clear();
        assert!(cache.is_empty());
    }
}
