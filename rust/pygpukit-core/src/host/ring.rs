//! `Ring`: the slots that staged copies pass through.

use std::collections::VecDeque;
use std::sync::Arc;

use super::pinned::{PinnedBlock, PinnedPool};
use crate::error::Result;
use crate::stream::Stream;

/// Slots of pageable memory, used when no page-locked memory can be had.
const PLAIN_SLOTS: usize = 2;

/// Where a chunk stays between host and device.
#[derive(Debug)]
pub(super) enum Slot {
    Pinned(PinnedBlock),
    /// The driver copies through memory of its own.
    Plain(Vec<u8>),
}

impl Slot {
    pub fn new(pool: &Arc<PinnedPool>, bytes: usize) -> Result<Slot> {
        pool.take(bytes).map(Slot::Pinned)
    }

    pub fn ptr(&self) -> *mut u8 {
        match self {
            Slot::Pinned(block) => block.ptr(),
            Slot::Plain(bytes) => bytes.as_ptr().cast_mut(),
        }
    }

    pub fn len(&self) -> usize {
        match self {
            Slot::Pinned(block) => block.len(),
            Slot::Plain(bytes) => bytes.len(),
        }
    }
}

/// What asking for a slot gives.
pub(super) enum Granted {
    Slot(Slot),
    /// The caller may make a pinned one of this size, and says so with `made` or `refused`.
    Make(usize),
    /// All are in use.
    Later,
}

#[derive(Debug)]
pub(super) struct Ring {
    free: Vec<Slot>,
    busy: VecDeque<(Slot, Arc<Stream>, u64)>,
    /// Slots that exist or are being made.
    count: usize,
    /// Most there may be now: fewer than asked for where memory ran out.
    most: usize,
    wanted: usize,
    /// Bytes of a slot.
    bytes: usize,
}

impl Ring {
    pub fn new(wanted: usize, bytes: usize) -> Ring {
        Ring { free: Vec::new(), busy: VecDeque::new(), count: 0, most: wanted.max(1), wanted: wanted.max(1), bytes }
    }

    /// Other slots from now on; those in use go when they come back.
    pub fn set_shape(&mut self, wanted: usize, bytes: usize) -> Vec<Slot> {
        self.wanted = wanted.max(1);
        self.bytes = bytes;
        self.retry();
        self.count -= self.free.len();
        std::mem::take(&mut self.free)
    }

    /// There may be memory again.
    pub fn retry(&mut self) {
        self.most = self.wanted;
    }

    pub fn take(&mut self) -> Result<Granted> {
        if let Some(slot) = self.free.pop() {
            return Ok(Granted::Slot(slot));
        }
        while let Some(at) = self.passed()? {
            match self.busy.remove(at) {
                Some((slot, ..)) if slot.len() >= self.bytes => return Ok(Granted::Slot(slot)),
                _ => self.count -= 1,
            }
        }
        if self.count < self.most {
            self.count += 1;
            return Ok(Granted::Make(self.bytes));
        }
        Ok(Granted::Later)
    }

    /// A busy slot that its stream has passed. One question per stream; its answer may cover others too.
    fn passed(&mut self) -> Result<Option<usize>> {
        let known = |busy: &VecDeque<(Slot, Arc<Stream>, u64)>| busy.iter().position(|(_, s, n)| s.completed() >= *n);
        if let Some(at) = known(&self.busy) {
            return Ok(Some(at));
        }
        let mut asked: [Option<u32>; 2] = [None; 2];
        for (_, stream, seq) in &self.busy {
            let id = Some(stream.id());
            if asked.contains(&id) {
                continue;
            }
            stream.passed(*seq)?;
            match asked.iter_mut().find(|slot| slot.is_none()) {
                Some(free) => *free = id,
                None => break,
            }
        }
        Ok(known(&self.busy))
    }

    /// Pinned memory was refused. A slot of pageable memory takes its place when there is no other.
    pub fn refused(&mut self) -> Option<Slot> {
        self.most = (self.count - 1).max(PLAIN_SLOTS.min(self.wanted));
        if self.count > PLAIN_SLOTS {
            self.count -= 1;
            return None;
        }
        Some(Slot::Plain(vec![0; self.bytes]))
    }

    /// A slot comes back; a stream uses it until it has passed the number.
    pub fn put(&mut self, slot: Slot, until: Option<(Arc<Stream>, u64)>) {
        match until {
            Some((stream, seq)) => self.busy.push_back((slot, stream, seq)),
            None if slot.len() < self.bytes => self.count -= 1,
            None => self.free.push(slot),
        }
    }
}
