//! What threads know of each other: happens-before, kept small.
//!
//! One host thread runs a checked launch, so a single clock counts its accesses. A thread knows another one up to a
//! time: what that one did until then happened before. Barriers make whole blocks and warps known with one number; only
//! what is learnt in other ways (fences with flags, acquire and release, parts of warps, named barriers) needs a list.

use std::sync::Arc;

pub(crate) type Time = u32;

/// Entries a list may have before it becomes "everything until now": races may then be missed, none is made up.
const MOST: usize = 2048;

/// How thread numbers divide: a block's warps are whole, so a warp is 32 numbers and a block `stride`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbers {
    pub stride: u32,
}

/// A thread, a warp or a block as the key of a list.
fn thread_key(thread: u32) -> u64 {
    u64::from(thread) << 2
}

fn warp_key(thread: u32) -> u64 {
    u64::from(thread / 32) << 2 | 1
}

fn block_key(thread: u32, numbers: Numbers) -> u64 {
    u64::from(thread / numbers.stride) << 2 | 2
}

/// Up to when threads, warps and blocks are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Known {
    /// Everybody is known until then.
    all: Time,
    /// Sorted by key.
    times: Vec<(u64, Time)>,
}

impl Known {
    /// What a thread knows of itself, its warp and its block, and `more`.
    pub fn of(thread: u32, numbers: Numbers, own: Time, warp: Time, block: Time, more: Option<&Known>) -> Known {
        let mut known = more.cloned().unwrap_or_default();
        known.note(thread_key(thread), own);
        known.note(warp_key(thread), warp);
        known.note(block_key(thread, numbers), block);
        known
    }

    fn note(&mut self, key: u64, time: Time) {
        if time == 0 {
            return;
        }
        match self.times.binary_search_by_key(&key, |entry| entry.0) {
            Ok(at) => self.times[at].1 = self.times[at].1.max(time),
            Err(at) => self.times.insert(at, (key, time)),
        }
    }

    pub fn note_thread(&mut self, thread: u32, time: Time) {
        self.note(thread_key(thread), time);
    }

    pub fn note_warp(&mut self, thread: u32, time: Time) {
        self.note(warp_key(thread), time);
    }

    fn get(&self, key: u64) -> Time {
        self.times.binary_search_by_key(&key, |entry| entry.0).map_or(0, |at| self.times[at].1)
    }

    /// Did what the thread did at a time happen before?
    pub fn knows(&self, thread: u32, time: Time, numbers: Numbers) -> bool {
        time <= self.all
            || time <= self.get(thread_key(thread))
            || time <= self.get(warp_key(thread))
            || time <= self.get(block_key(thread, numbers))
    }

    fn covers(&self, other: &Known) -> bool {
        other.all <= self.all && other.times.iter().all(|&(key, time)| time <= self.all.max(self.get(key)))
    }

    fn union(&self, other: &Known, now: Time) -> Known {
        let all = self.all.max(other.all);
        let mut times = Vec::with_capacity(self.times.len() + other.times.len());
        let (mut a, mut b) = (self.times.iter().peekable(), other.times.iter().peekable());
        loop {
            let next = match (a.peek(), b.peek()) {
                (Some(x), Some(y)) if x.0 == y.0 => {
                    let next = (x.0, x.1.max(y.1));
                    a.next();
                    b.next();
                    next
                }
                (Some(&&x), Some(&&y)) if x.0 < y.0 => {
                    a.next();
                    let _ = y;
                    x
                }
                (_, Some(&&y)) => {
                    b.next();
                    y
                }
                (Some(&&x), None) => {
                    a.next();
                    x
                }
                (None, None) => break,
            };
            if next.1 > all {
                times.push(next);
            }
        }
        if times.len() > MOST {
            return Known { all: now, times: Vec::new() };
        }
        Known { all, times }
    }
}

/// Knowledge that may be shared and may be none.
pub(crate) type Shares = Option<Arc<Known>>;

/// Learn what `other` knows.
pub(crate) fn learn(mine: &mut Shares, other: &Shares, now: Time) {
    let Some(new) = other else { return };
    let Some(old) = mine else {
        *mine = Some(new.clone());
        return;
    };
    if Arc::ptr_eq(old, new) || old.covers(new) {
        return;
    }
    *mine = Some(if new.covers(old) { new.clone() } else { Arc::new(old.union(new, now)) });
}

/// What a thread knew at a fence: a later write that others may read publishes it.
#[derive(Clone, Debug)]
pub(crate) struct Moment {
    pub own: Time,
    pub warp: Time,
    pub block: Time,
    pub more: Shares,
}

impl Moment {
    pub fn known(&self, thread: u32, numbers: Numbers) -> Arc<Known> {
        Arc::new(Known::of(thread, numbers, self.own, self.warp, self.block, self.more.as_deref()))
    }
}

/// What readers of one word learn: from any block, and from threads of one block that used its scope only.
#[derive(Clone, Debug, Default)]
pub(crate) struct Published {
    pub wide: Shares,
    pub narrow: Option<(u32, Arc<Known>)>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    const NUMBERS: Numbers = Numbers { stride: 64 };

    #[test]
    fn a_block_and_a_warp_stand_for_their_threads() {
        let known = Known::of(70, NUMBERS, 30, 20, 10, None);
        assert!(known.knows(70, 30, NUMBERS) && !known.knows(70, 31, NUMBERS));
        assert!(known.knows(71, 20, NUMBERS) && !known.knows(71, 21, NUMBERS));
        assert!(known.knows(100, 10, NUMBERS) && !known.knows(100, 11, NUMBERS));
        assert!(!known.knows(1, 1, NUMBERS));
    }

    #[test]
    fn learning_is_the_greatest_of_both() {
        let mut random = Random::new(7);
        for _ in 0..200 {
            let mut make = || {
                let mut known = Known::default();
                for _ in 0..random.below(12) {
                    let (thread, time) = (random.below(200) as u32, 1 + random.below(50) as Time);
                    match random.below(3) {
                        0 => known.note_thread(thread, time),
                        1 => known.note_warp(thread, time),
                        _ => known.note(block_key(thread, NUMBERS), time),
                    }
                }
                known
            };
            let (a, b) = (make(), make());
            let mut both = Some(Arc::new(a.clone()));
            learn(&mut both, &Some(Arc::new(b.clone())), 1000);
            let both = both.expect("knowledge");
            for thread in 0..200 {
                for time in 1..60 {
                    let want = a.knows(thread, time, NUMBERS) || b.knows(thread, time, NUMBERS);
                    assert_eq!(both.knows(thread, time, NUMBERS), want, "thread {thread} at {time}");
                }
            }
        }
    }

    #[test]
    fn long_lists_become_everything() {
        let make = |from: u32| {
            let mut known = Known::default();
            (from..from + 1500).for_each(|thread| known.note_thread(thread, 5));
            Some(Arc::new(known))
        };
        let mut mine = make(0);
        learn(&mut mine, &make(5000), 77);
        assert!(mine.expect("knowledge").knows(999_999, 77, NUMBERS));
    }
}
