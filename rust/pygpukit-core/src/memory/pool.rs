//! `Pool`: a tree of budgets; each pool owns its segments and hands out blocks of them.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::arena::{Arena, ArenaMode, largest};
use super::cache::{Block, Cache};
use super::segment::SegmentClass;
use super::size_class::{Fit, Request, slab_bytes};
use super::stats::PoolStats;
use super::storage::Storage;
use super::uses::Uses;
use crate::error::{Error, OutOfMemory, Result};
use crate::stream::Stream;

const UNLIMITED: usize = usize::MAX;
const REPORTED_HOLDERS: usize = 5;

/// What is handed out, in this pool and below.
#[derive(Debug)]
struct Account {
    used: AtomicUsize,
    peak: AtomicUsize,
    quota: AtomicUsize,
}

impl Account {
    /// The new total, or None when the quota has no room for it.
    #[inline]
    fn add(&self, bytes: usize) -> Option<usize> {
        let quota = self.quota.load(Ordering::Relaxed);
        let mut used = self.used.load(Ordering::Relaxed);
        loop {
            let total = used.checked_add(bytes).filter(|total| *total <= quota)?;
            match self.used.compare_exchange_weak(used, total, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(total),
                Err(now) => used = now,
            }
        }
    }

    #[inline]
    fn subtract(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    #[inline]
    fn raise_peak(&self, total: usize) {
        if total > self.peak.load(Ordering::Relaxed) {
            self.peak.fetch_max(total, Ordering::Relaxed);
        }
    }
}

pub struct Pool {
    id: u32,
    name: String,
    arena: Arc<Arena>,
    parent: Option<Arc<Pool>>,
    /// Memory of one graph: reused in recorded order on one stream, kept until the pool ends.
    private: bool,
    account: Account,
    /// Set under the cache's lock.
    closed: AtomicBool,
    cache: Mutex<Cache>,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool('{}', {} bytes used)", self.name, self.account.used.load(Ordering::Relaxed))
    }
}

impl Pool {
    /// A pool without a parent.
    pub fn root(arena: &Arc<Arena>, name: &str) -> Arc<Pool> {
        Pool::build(arena, name, None, None, false)
    }

    /// A pool whose allocations also count against this one.
    pub fn child(self: &Arc<Self>, name: &str, quota: Option<usize>) -> Result<Arc<Pool>> {
        self.check_open()?;
        Ok(Pool::build(&self.arena, name, Some(self.clone()), quota, false))
    }

    /// The memory of one graph. What is freed while the graph is recorded serves later allocations on the same
    /// stream, in recorded order, and never another stream; nothing goes back to the device before the pool and its
    /// last storage are gone. `note_use` tells the pool of replays.
    pub fn private(parent: &Arc<Pool>) -> Arc<Pool> {
        Pool::build(&parent.arena, &format!("{} (graph)", parent.name), Some(parent.clone()), None, true)
    }

    fn build(
        arena: &Arc<Arena>,
        name: &str,
        parent: Option<Arc<Pool>>,
        quota: Option<usize>,
        private: bool,
    ) -> Arc<Pool> {
        let pool = Arc::new(Pool {
            id: arena.next_pool_id(),
            name: name.to_string(),
            arena: arena.clone(),
            parent,
            private,
            account: Account {
                used: AtomicUsize::new(0),
                peak: AtomicUsize::new(0),
                quota: AtomicUsize::new(quota.unwrap_or(UNLIMITED)),
            },
            closed: AtomicBool::new(false),
            cache: Mutex::default(),
        });
        arena.register(&pool);
        pool
    }

    /// Unique in the arena; segments carry it.
    pub fn id(&self) -> u32 {
        self.id
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn parent(&self) -> Option<&Arc<Pool>> {
        self.parent.as_ref()
    }

    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub fn quota(&self) -> Option<usize> {
        Some(self.account.quota.load(Ordering::Relaxed)).filter(|quota| *quota != UNLIMITED)
    }

    /// A quota below what is in use refuses new allocations until enough is given back.
    pub fn set_quota(&self, quota: Option<usize>) {
        self.account.quota.store(quota.unwrap_or(UNLIMITED), Ordering::Relaxed);
    }

    /// A block for use on `stream`. Zero bytes give a null pointer without memory. A quota refuses at once; a full
    /// device is first trimmed, then waited for.
    #[inline]
    pub fn allocate(self: &Arc<Self>, bytes: usize, stream: &Arc<Stream>) -> Result<Arc<Storage>> {
        self.allocate_with_check(bytes, stream, &mut || Ok(()))
    }

    /// `allocate` with a function that runs every few milliseconds while a full device is waited for, and may end
    /// the wait with an error.
    pub fn allocate_with_check(
        self: &Arc<Self>,
        bytes: usize,
        stream: &Arc<Stream>,
        check: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Arc<Storage>> {
        if super::is_shut_down() {
            return Err(Error::ShuttingDown);
        }
        let Some(request) = Request::new(bytes, self.arena.granule()) else {
            return Err(self.out_of_memory(bytes, None));
        };
        if request.fit == Fit::Empty {
            return self.allocate_empty(stream);
        }
        if let Err(refusing) = self.charge(request.rounded) {
            return Err(if refusing.is_closed() {
                refusing.closed_error()
            } else {
                self.out_of_memory(bytes, Some(refusing))
            });
        }
        match self.find(&request, stream, check) {
            Ok(block) => Ok(Storage::new(block, request, self.clone())),
            Err(error) => {
                self.uncharge(request.rounded);
                Err(error)
            }
        }
    }

    /// Give cached memory that no stream needs any more back to the device. A graph's pool keeps its memory.
    pub fn trim(&self) -> Result<()> {
        if self.private {
            return Ok(());
        }
        let idle = self.cache.lock().drain_idle(false)?;
        self.arena.retire(idle);
        Ok(())
    }

    /// Refuse new allocations and release the pool's memory: at once what is free, the rest with the last block.
    pub fn close(&self) -> Result<()> {
        let idle = {
            let mut cache = self.cache.lock();
            self.closed.store(true, Ordering::Release);
            if cache.live() == 0 || !self.private { cache.drain_idle(true)? } else { Vec::new() }
        };
        self.arena.retire(idle);
        Ok(())
    }

    /// The whole pool's memory is used by `stream` up to `seq`: a replay of the graph that owns it.
    pub fn note_use(&self, stream: &Arc<Stream>, seq: u64) {
        self.cache.lock().replays.note(stream, seq);
    }

    pub fn stats(&self) -> PoolStats {
        let (free, _) = self.arena.memory_info();
        let (mut stats, room) = {
            let cache = self.cache.lock();
            let cached = cache.reserved - cache.live_bytes;
            let stats = PoolStats {
                cached,
                reserved: cache.reserved,
                hits: cache.hits,
                misses: cache.misses,
                allocations: cache.hits + cache.misses,
                frees: cache.frees,
                live: cache.live(),
                ..PoolStats::default()
            };
            (stats, free.saturating_add(cached))
        };
        stats.used = self.account.used.load(Ordering::Relaxed);
        stats.peak = self.account.peak.load(Ordering::Relaxed);
        stats.quota = self.quota();
        stats.available = self.quota_room().min(room);
        stats
    }

    /// The largest live allocations of this pool and those below it: bytes and what is known of them.
    pub fn top_holders(&self, n: usize) -> Vec<(usize, String)> {
        let pools = self.arena.pools();
        largest(pools.iter().filter(|pool| pool.is_within(self)).flat_map(|pool| pool.own_holders()).collect(), n)
    }

    pub(crate) fn own_holders(&self) -> Vec<(usize, String)> {
        self.cache.lock().holders(&self.name)
    }

    pub(crate) fn note_unfinished(&self, uses: &mut Uses) {
        if !self.private {
            self.cache.lock().note_unfinished(uses);
        }
    }

    /// Take a dropped storage's block back.
    #[inline]
    pub(crate) fn give_back(&self, block: Block, charged: usize, uses: Uses) {
        if charged == 0 {
            self.cache.lock().frees += 1;
            return;
        }
        if self.arena.mode() == ArenaMode::None {
            self.retire_exact(block, uses);
        } else {
            if block.segment.class() == SegmentClass::Large {
                block.segment.set_label(None);
            }
            let mut cache = self.cache.lock();
            cache.give_back(block, uses, !self.private);
            let last = self.is_closed() && cache.live() == 0;
            drop(cache);
            if last {
                let closed = self.close();
                self.arena.record(closed);
            }
        }
        self.uncharge(charged);
    }

    #[cold]
    fn retire_exact(&self, block: Block, mut uses: Uses) {
        {
            let mut cache = self.cache.lock();
            cache.returned(&block);
            cache.forget(&block.segment);
            uses.merge(&cache.replays);
        }
        uses.note(&block.home, block.home.seq());
        self.arena.retire([(block.segment, uses)]);
    }

    fn allocate_empty(self: &Arc<Self>, stream: &Arc<Stream>) -> Result<Arc<Storage>> {
        self.check_open()?;
        self.cache.lock().hits += 1;
        let block = Block { ptr: 0, segment: self.arena.empty_segment().clone(), home: stream.clone() };
        Ok(Storage::new(block, Request { bytes: 0, rounded: 0, fit: Fit::Empty }, self.clone()))
    }

    /// The charge is made; find memory for it.
    #[inline]
    fn find(&self, request: &Request, stream: &Arc<Stream>, check: &mut dyn FnMut() -> Result<()>) -> Result<Block> {
        {
            let mut cache = self.cache.lock();
            if self.is_closed() {
                return Err(self.closed_error());
            }
            if let Some(block) = cache.take_own(request, stream) {
                return Ok(block);
            }
        }
        self.find_slowly(request, stream, check)
    }

    #[cold]
    fn find_slowly(
        &self,
        request: &Request,
        stream: &Arc<Stream>,
        check: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Block> {
        let found = self.arena.under_pressure(check, || {
            {
                let mut cache = self.cache.lock();
                if self.is_closed() {
                    return Err(self.closed_error());
                }
                if let Some(block) = cache.take_held(request, stream, !self.private)? {
                    return Ok(block);
                }
            }
            // Not under the lock: making memory takes the driver a while.
            let (bytes, class) = match request.fit {
                _ if self.arena.mode() == ArenaMode::None => (request.bytes, SegmentClass::Large),
                Fit::Slab(class) => (slab_bytes(class as usize, self.arena.granule()), SegmentClass::Slab(class)),
                Fit::Large | Fit::Empty => (request.rounded, SegmentClass::Large),
            };
            let segment = self.arena.obtain(bytes, class, self.id)?;
            let mut cache = self.cache.lock();
            if self.is_closed() {
                drop(cache);
                self.arena.retire([(segment, Uses::default())]);
                return Err(self.closed_error());
            }
            Ok(cache.adopt(segment, stream))
        });
        found.map_err(|error| self.arena.explain(error, request.bytes))
    }

    /// Count bytes here and in every pool above, or name the pool that is closed or whose quota has no room.
    #[inline]
    fn charge(&self, bytes: usize) -> std::result::Result<(), &Pool> {
        if self.is_closed() {
            return Err(self);
        }
        let total = self.account.add(bytes).ok_or(self)?;
        if let Some(parent) = &self.parent
            && let Err(refusing) = parent.charge(bytes)
        {
            self.account.subtract(bytes);
            return Err(refusing);
        }
        self.account.raise_peak(total);
        Ok(())
    }

    #[inline]
    fn uncharge(&self, bytes: usize) {
        let mut pool = self;
        loop {
            pool.account.subtract(bytes);
            match &pool.parent {
                Some(parent) => pool = parent,
                None => return,
            }
        }
    }

    /// What the quotas from here to the root leave.
    fn quota_room(&self) -> usize {
        let own = match self.quota() {
            Some(quota) => quota.saturating_sub(self.account.used.load(Ordering::Relaxed)),
            None => UNLIMITED,
        };
        self.parent.as_ref().map_or(own, |parent| own.min(parent.quota_room()))
    }

    fn is_within(&self, other: &Pool) -> bool {
        self.id == other.id || self.parent.as_ref().is_some_and(|parent| parent.is_within(other))
    }

    fn check_open(&self) -> Result<()> {
        if self.is_closed() {
            return Err(self.closed_error());
        }
        self.parent.as_ref().map_or(Ok(()), |parent| parent.check_open())
    }

    fn closed_error(&self) -> Error {
        Error::Value(format!("memory pool '{}' is closed; allocate from an open pool", self.name))
    }

    fn out_of_memory(&self, requested: usize, full: Option<&Pool>) -> Error {
        let (free, total) = self.arena.memory_info();
        let (quota, holders) = match full {
            Some(pool) => {
                let used = pool.account.used.load(Ordering::Relaxed);
                let quota = pool.account.quota.load(Ordering::Relaxed);
                (Some((pool.name.clone(), used, quota)), pool.top_holders(REPORTED_HOLDERS))
            }
            None => (None, self.arena.top_holders(REPORTED_HOLDERS)),
        };
        Error::OutOfMemory(Box::new(OutOfMemory { requested, free, total, quota, holders }))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if super::is_shut_down() {
            return;
        }
        self.arena.unregister(self.id);
        match self.cache.get_mut().drain_idle(true) {
            Ok(idle) => self.arena.retire(idle),
            Err(error) => self.arena.record(Err(error)),
        }
    }
}
