//! `Journal`: what the pools of an arena did with their memory while somebody recorded it.
//!
//! The events of a pool are written under its lock, in the order in which its numbers changed. When a recording begins
//! each pool writes what it holds, and from there on its events add up to what it uses: whatever was written for it
//! before does not count.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

use super::arena::Arena;
use super::cache::Block;
use super::pool::Pool;
use super::segment::Segment;
use crate::device::DevPtr;
use crate::error::{Error, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EventKind {
    /// What the pool holds when the recording begins, once for the device and once for the host.
    Held = 0,
    Allocate = 1,
    Free = 2,
    /// A segment's memory was taken; its content is on the host.
    Evict = 3,
    /// A segment has memory again, and its content is on its way.
    Restore = 4,
    /// An eviction was begun and given up, because somebody used the segment.
    Return = 5,
    /// There was no memory for a request: the pool's quota, or with pool 0 the device, was in the way.
    Refuse = 6,
    /// The quota is `bytes` from now on.
    Quota = 7,
    /// There is no quota from now on.
    Unlimit = 8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Nanoseconds since the recording began.
    pub time: u64,
    pub kind: EventKind,
    /// Blocks of an evicted segment are handed out and freed too.
    pub on_host: bool,
    pub pool: u32,
    /// Of the block, or of the segment that moves.
    pub address: DevPtr,
    /// Bytes charged, rounded to their size class.
    pub bytes: usize,
    /// What the pool and those below it used after it.
    pub used: usize,
}

/// A recording that has ended.
#[derive(Clone, Debug, Default)]
pub struct Record {
    pub events: Vec<Event>,
    /// Name and parent of every pool there was, by id.
    pub pools: BTreeMap<u32, (String, Option<u32>)>,
    /// Events that came after the limit was reached.
    pub dropped: u64,
    pub nanoseconds: u64,
}

struct Log {
    began: Instant,
    limit: usize,
    record: Record,
}

impl Log {
    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn is_full(&self) -> bool {
        self.record.events.len() >= self.limit
    }
}

#[derive(Default)]
pub(crate) struct Journal {
    on: AtomicBool,
    log: Mutex<Option<Log>>,
}

impl Journal {
    /// The pool's lock is held here and below, but for `returned`, `refused` and `made`. With nobody recording, this
    /// costs one load.
    #[inline]
    pub fn allocated(&self, pool: &Pool, block: &Block, bytes: usize) {
        if self.is_on() {
            self.write_block(EventKind::Allocate, pool, block, bytes);
        }
    }

    #[inline]
    pub fn freed(&self, pool: &Pool, block: &Block, bytes: usize) {
        if self.is_on() {
            self.write_block(EventKind::Free, pool, block, bytes);
        }
    }

    /// A block's charge changes in `change`, which returns the new one.
    pub fn resized(&self, pool: &Pool, address: DevPtr, before: usize, change: impl FnOnce() -> usize) {
        let after = change();
        if !self.is_on() {
            return;
        }
        for (kind, bytes) in [(EventKind::Free, before), (EventKind::Allocate, after)] {
            if bytes > 0 {
                let used = if kind == EventKind::Free { pool.used().saturating_sub(after) } else { pool.used() };
                self.write(kind, pool.id(), address, bytes, false, used);
            }
        }
    }

    pub fn evicted(&self, pool: &Pool, segment: &Segment) {
        self.note(EventKind::Evict, pool, segment.va(), segment.charged(), false);
    }

    pub fn restored(&self, pool: &Pool, segment: &Segment) {
        self.note(EventKind::Restore, pool, segment.va(), segment.charged(), true);
    }

    pub fn quota_set(&self, pool: &Pool) {
        let kind = if pool.quota().is_some() { EventKind::Quota } else { EventKind::Unlimit };
        self.note(kind, pool, 0, pool.quota().unwrap_or(0), false);
    }

    pub fn returned(&self, segment: &Segment) {
        if self.is_on() {
            self.write(EventKind::Return, segment.owner(), segment.va(), segment.bytes(), false, 0);
        }
    }

    /// `pool` is the one whose quota refused, or None when the device did.
    pub fn refused(&self, pool: Option<&Pool>, requested: usize) {
        if self.is_on() {
            let (id, used) = pool.map_or((0, 0), |pool| (pool.id(), pool.used()));
            self.write(EventKind::Refuse, id, 0, requested, false, used);
        }
    }

    /// A pool was made.
    pub fn made(&self, pool: &Pool) {
        if self.is_on() {
            self.name(pool);
            if pool.quota().is_some() {
                self.quota_set(pool);
            }
        }
    }

    /// What a pool holds when the recording begins.
    pub fn held(&self, pool: &Pool, here: usize, on_host: usize) {
        self.name(pool);
        self.note(EventKind::Held, pool, 0, here, false);
        self.note(EventKind::Held, pool, 0, on_host, true);
        if pool.quota().is_some() {
            self.quota_set(pool);
        }
    }

    #[inline]
    fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    fn note(&self, kind: EventKind, pool: &Pool, address: DevPtr, bytes: usize, on_host: bool) {
        if self.is_on() {
            self.write(kind, pool.id(), address, bytes, on_host, pool.used());
        }
    }

    #[cold]
    fn write_block(&self, kind: EventKind, pool: &Pool, block: &Block, bytes: usize) {
        // Empty arrays have no memory.
        if bytes > 0 {
            self.write(kind, pool.id(), block.ptr, bytes, !block.segment.is_counted(), pool.used());
        }
    }

    fn write(&self, kind: EventKind, pool: u32, address: DevPtr, bytes: usize, on_host: bool, used: usize) {
        let mut log = self.log.lock();
        let Some(log) = log.as_mut() else { return };
        if log.is_full() && kind != EventKind::Held {
            log.record.dropped += 1;
            return;
        }
        let time = log.now();
        log.record.events.push(Event { time, kind, on_host, pool, address, bytes, used });
    }

    fn name(&self, pool: &Pool) {
        // Nothing more is heard of pools that come after the limit.
        if let Some(log) = self.log.lock().as_mut().filter(|log| log.record.dropped == 0) {
            let parent = pool.parent().map(|parent| parent.id());
            log.record.pools.insert(pool.id(), (pool.name().to_string(), parent));
        }
    }

    fn end(&self) -> Option<Record> {
        let mut log = self.log.lock();
        self.on.store(false, Ordering::Relaxed);
        let mut log = log.take()?;
        log.record.nanoseconds = log.now();
        Some(log.record)
    }
}

/// A recording under way; it ends when this is dropped.
pub struct Recorder {
    /// None once it has ended: the next recording is somebody else's.
    arena: Option<Arc<Arena>>,
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Recorder({:?})", self.arena)
    }
}

impl Recorder {
    /// Note what the pools of an arena do from now on, up to `limit` events.
    pub fn start(arena: &Arc<Arena>, limit: usize) -> Result<Recorder> {
        {
            let mut log = arena.journal.log.lock();
            if log.is_some() {
                return Err(Error::Value(
                    "the memory of this device is being recorded already; stop that recording first".to_string(),
                ));
            }
            *log = Some(Log { began: Instant::now(), limit, record: Record::default() });
            arena.journal.on.store(true, Ordering::Relaxed);
        }
        // Whoever takes a pool's lock after this sees that the recording is on.
        arena.pools().iter().for_each(|pool| pool.note_held());
        Ok(Recorder { arena: Some(arena.clone()) })
    }

    pub fn stop(mut self) -> Record {
        self.end().unwrap_or_default()
    }

    fn end(&mut self) -> Option<Record> {
        self.arena.take()?.journal.end()
    }

    #[cfg(test)]
    pub fn so_far(&self) -> Record {
        let log = self.arena.as_ref().unwrap().journal.log.lock();
        log.as_ref().map(|log| log.record.clone()).unwrap()
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.end();
    }
}
