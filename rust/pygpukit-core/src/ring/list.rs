//! A list that only grows, read without a lock.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

/// Items of the first chunk; each further one has twice as many.
const FIRST: usize = 64;
const CHUNKS: usize = 26;

type Chunk<T> = Box<[OnceLock<T>]>;

pub struct List<T> {
    chunks: [OnceLock<Chunk<T>>; CHUNKS],
    length: AtomicUsize,
    adding: Mutex<()>,
}

impl<T> Default for List<T> {
    fn default() -> List<T> {
        List { chunks: [const { OnceLock::new() }; CHUNKS], length: AtomicUsize::new(0), adding: Mutex::new(()) }
    }
}

/// Which chunk an item is in, and where there.
fn place(index: usize) -> (usize, usize) {
    let number = index + FIRST;
    let chunk = (number / FIRST).ilog2() as usize;
    (chunk, number - (FIRST << chunk))
}

impl<T> List<T> {
    pub fn len(&self) -> usize {
        self.length.load(Ordering::Acquire)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    pub fn get(&self, index: usize) -> Option<&T> {
        let (chunk, at) = place(index);
        self.chunks.get(chunk)?.get()?.get(at)?.get()
    }

    /// Add an item; its number, or None when there are too many.
    pub fn push(&self, item: T) -> Option<usize> {
        let _adding = self.adding.lock();
        let index = self.length.load(Ordering::Relaxed);
        let (chunk, at) = place(index);
        let chunk = self.chunks.get(chunk)?.get_or_init(|| (0..FIRST << chunk).map(|_| OnceLock::new()).collect());
        chunk.get(at)?.set(item).ok()?;
        self.length.store(index + 1, Ordering::Release);
        Some(index)
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        (0..self.len()).filter_map(|index| self.get(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_keep_their_numbers_while_others_are_added() {
        let list = List::default();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| (0..500).for_each(|item| _ = list.push(item)));
            }
            for _ in 0..50 {
                let there = list.len();
                assert!(list.iter().count() >= there);
            }
        });
        let mut all: Vec<i32> = list.iter().copied().collect();
        assert_eq!((all.len(), list.get(1000)), (1000, None));
        all.sort_unstable();
        assert_eq!(all, (0..1000).map(|item| item / 2).collect::<Vec<_>>());
        let first = list.get(77).map(std::ptr::from_ref);
        (0..5000).for_each(|item| _ = list.push(item));
        assert_eq!(list.get(77).map(std::ptr::from_ref), first);
    }
}
