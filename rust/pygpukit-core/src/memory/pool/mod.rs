//! `Pool`: a tree of budgets; each pool owns its segments and hands out blocks of them.

mod charge;
mod grow;
mod moving;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};

use super::account::Account;
use super::arena::{Arena, ArenaMode, Owner, REPORTED_HOLDERS, largest};
use super::cache::{Block, Cache};
use super::host_copy::HostBudget;
use super::registry;
use super::segment::{Segment, SegmentClass, SegmentState};
use super::size_class::{Fit, Request, round_up, slab_bytes};
use super::stats::PoolStats;
use super::stock::Stock;
use super::storage::Storage;
use super::uses::Uses;
use crate::device::DeviceKind;
use crate::error::{Error, OutOfMemory, Result};
use crate::stream::Stream;

/// What a pool is made with.
#[derive(Clone, Copy, Debug, Default)]
pub struct PoolOptions {
    /// Most bytes in use at a time, those of pools below included.
    pub quota: Option<usize>,
    /// Arrays move to the host when memory is short, and come back to the same address before they are used.
    pub evicting: bool,
    /// With `evicting`: but not before `Pool::loosen`.
    pub fixed: bool,
    /// Others take no memory from it below this many bytes.
    pub floor: usize,
    /// Pools of a lower rank lose memory first.
    pub rank: u32,
    /// Bytes of the device that are held for it, and for the pools below, from its beginning to its end.
    pub guarantee: usize,
    /// Most bytes of host memory that evicted arrays may use, those of pools below included.
    pub host_quota: Option<usize>,
    /// Only work whose pool is this one, or inside it, may use its arrays.
    pub sandbox: bool,
}

#[derive(Default)]
pub(super) struct Moved {
    pub away: AtomicU64,
    pub back: AtomicU64,
}

pub struct Pool {
    id: u32,
    name: String,
    arena: Arc<Arena>,
    parent: Option<Arc<Pool>>,
    /// Memory of one graph: reused in recorded order on one stream, kept until the pool ends.
    private: bool,
    /// Its arrays are entered in the registry: kernels of this device may be checked.
    listed: bool,
    /// Its arrays move to the host when memory is short.
    evicting: bool,
    /// But not yet.
    fixed: AtomicBool,
    /// Others take no memory from it below this many bytes.
    floor: AtomicUsize,
    /// Pools of a lower rank lose memory first.
    rank: AtomicU32,
    /// Of its own segments, how many moved to the host and back.
    pub(super) moved: Moved,
    account: Account,
    /// Bytes held for it whether it uses them or not, which the pools around count as used. Zero for most.
    guarantee: AtomicUsize,
    /// Held while a pool with a guarantee is charged, so that the pools around count exactly what is above it.
    exact: Mutex<()>,
    /// Its own or that of a pool around.
    stock: Option<Arc<Stock>>,
    host: Arc<HostBudget>,
    /// Shared with the pools inside: is it still closed to others?
    sandbox: Option<Arc<AtomicBool>>,
    /// Bytes charged for which memory is still looked for; changed under the cache's lock.
    pending: AtomicUsize,
    /// Set under the cache's lock.
    closed: AtomicBool,
    cache: Mutex<Cache>,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool('{}', {} bytes used)", self.name, self.account.used())
    }
}

impl Pool {
    /// A pool without a parent.
    pub fn root(arena: &Arc<Arena>, name: &str) -> Arc<Pool> {
        Pool::root_with(arena, name, PoolOptions::default())
    }

    /// Without a guarantee.
    pub fn root_with(arena: &Arc<Arena>, name: &str, options: PoolOptions) -> Arc<Pool> {
        Pool::build(arena, name, None, PoolOptions { guarantee: 0, ..options }, None, false)
    }

    /// A pool whose allocations also count against this one.
    pub fn child(self: &Arc<Self>, name: &str, quota: Option<usize>) -> Result<Arc<Pool>> {
        self.child_with(name, PoolOptions { quota, ..PoolOptions::default() }, &mut || Ok(()))
    }

    /// Memory for a guarantee is taken from others where they evict; `check` runs meanwhile and may end the wait.
    pub fn child_with(
        self: &Arc<Self>,
        name: &str,
        options: PoolOptions,
        check: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Arc<Pool>> {
        self.check_open()?;
        let without =
            "without virtual memory management (missing on this device, or switched off by PYGPUKIT_POOL=none)";
        if options.evicting && self.arena.mode() != ArenaMode::Vmm {
            return Err(Error::Value(format!(
                "pool '{name}' cannot evict: {without} an array could not come back to its address; use \
                 enable_eviction=False"
            )));
        }
        if options.guarantee == 0 {
            return Ok(Pool::build(&self.arena, name, Some(self.clone()), options, self.stock.clone(), false));
        }
        if self.arena.mode() != ArenaMode::Vmm {
            return Err(Error::Value(format!(
                "pool '{name}' cannot have a guarantee: {without} no memory can be held"
            )));
        }
        let guarantee = round_up(options.guarantee, self.arena.granule()).unwrap_or(usize::MAX);
        if options.quota.is_some_and(|quota| quota < guarantee) {
            return Err(Error::Value(format!(
                "pool '{name}': the guarantee of {guarantee} bytes (whole pieces of {}) is above its quota of {} bytes",
                self.arena.granule(),
                options.quota.unwrap_or(0)
            )));
        }
        while let Err(refusing) = self.charge_below(guarantee, false) {
            if refusing.is_closed() || !refusing.make_room(guarantee, self.id, check)? {
                return Err(refusing.refusal(guarantee));
            }
        }
        let stock = self
            .arena
            .under_pressure(guarantee, self.id, check, || self.arena.stock(guarantee, self.stock.clone()))
            .map_err(|error| self.arena.explain(error, guarantee))
            .inspect_err(|_| {
                self.uncharge_below(guarantee);
                self.arena.record(self.arena.release_spare(0));
            })?;
        let options = PoolOptions { guarantee, ..options };
        Ok(Pool::build(&self.arena, name, Some(self.clone()), options, Some(stock), false))
    }

    /// The memory of one graph. What is freed while the graph is recorded serves later allocations on the same
    /// stream, in recorded order, and never another stream; nothing goes back to the device before the pool and its
    /// last storage are gone. `note_use` tells the pool of replays.
    pub fn private(parent: &Arc<Pool>) -> Arc<Pool> {
        let name = format!("{} (graph)", parent.name);
        let options = PoolOptions { evicting: parent.evicting, ..PoolOptions::default() };
        Pool::build(&parent.arena, &name, Some(parent.clone()), options, parent.stock.clone(), true)
    }

    fn build(
        arena: &Arc<Arena>,
        name: &str,
        parent: Option<Arc<Pool>>,
        options: PoolOptions,
        stock: Option<Arc<Stock>>,
        private: bool,
    ) -> Arc<Pool> {
        let above = parent.as_ref().map(|parent| parent.host.clone());
        let around = parent.as_ref().and_then(|parent| parent.sandbox.clone());
        let pool = Arc::new(Pool {
            sandbox: if options.sandbox { Some(Arc::new(AtomicBool::new(true))) } else { around },
            host: HostBudget::new(name, options.host_quota, above),
            id: arena.next_pool_id(),
            name: name.to_string(),
            arena: arena.clone(),
            parent,
            private,
            listed: arena.device().props().kind != DeviceKind::Cuda,
            evicting: options.evicting && arena.mode() == ArenaMode::Vmm,
            fixed: AtomicBool::new(options.fixed),
            floor: AtomicUsize::new(options.floor),
            rank: AtomicU32::new(options.rank),
            moved: Moved::default(),
            account: Account::new(options.quota),
            guarantee: AtomicUsize::new(options.guarantee),
            exact: Mutex::default(),
            stock,
            pending: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            cache: Mutex::default(),
        });
        arena.register(&pool);
        pool
    }

    #[inline]
    pub(super) fn is_listed(&self) -> bool {
        self.listed
    }

    #[inline]
    pub(super) fn is_private(&self) -> bool {
        self.private
    }

    /// May work of the other pool use arrays of this one?
    #[inline]
    pub(crate) fn lets_in(&self, other: &Pool) -> bool {
        let Some(own) = &self.sandbox else { return true };
        other.sandbox.as_ref().is_some_and(|theirs| Arc::ptr_eq(own, theirs)) || !own.load(Ordering::Relaxed)
    }

    /// Let everybody use its arrays.
    pub fn open_sandbox(&self) {
        if let Some(sandbox) = &self.sandbox {
            sandbox.store(false, Ordering::Relaxed);
        }
    }

    /// Others take no memory from this pool below `bytes`.
    pub fn set_floor(&self, bytes: usize) {
        self.floor.store(bytes, Ordering::Relaxed);
    }

    pub fn floor(&self) -> usize {
        self.floor.load(Ordering::Relaxed)
    }

    /// Pools of a lower rank lose memory first.
    pub fn set_rank(&self, rank: u32) {
        self.rank.store(rank, Ordering::Relaxed);
    }

    /// How often memory of this pool was evicted, and how often it came back.
    pub fn moves(&self) -> (u64, u64) {
        (self.moved.away.load(Ordering::Relaxed), self.moved.back.load(Ordering::Relaxed))
    }

    /// Where its memory comes from first, when that is held.
    pub(crate) fn stock(&self) -> Option<&Arc<Stock>> {
        self.stock.as_ref()
    }

    /// Bytes of the device that are held for it.
    pub fn guarantee(&self) -> usize {
        self.guarantee.load(Ordering::Relaxed)
    }

    /// What evicted arrays may use of the host.
    pub(crate) fn host_budget(&self) -> &Arc<HostBudget> {
        &self.host
    }

    /// Most bytes of host memory that evicted arrays may use.
    pub fn host_quota(&self) -> Option<usize> {
        self.host.limit()
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
        self.account.quota()
    }

    /// Bytes handed out here and below, rounded to their size class.
    pub fn used(&self) -> usize {
        self.account.used()
    }

    /// From now on the peak is that of what comes.
    pub fn reset_peak(&self) {
        self.account.reset_peak();
    }

    /// A quota below what is in use refuses new allocations until enough is given back; what can be evicted is, at once.
    pub fn set_quota(&self, quota: Option<usize>, check: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        if quota.is_some_and(|quota| quota < self.guarantee()) {
            return Err(Error::Value(format!(
                "pool '{}': a quota of {} bytes is below its guarantee of {} bytes",
                self.name,
                quota.unwrap_or(0),
                self.guarantee()
            )));
        }
        {
            let _lock = self.cache.lock();
            let _exact = self.exact.lock();
            self.account.set_quota(quota);
            self.arena.journal.quota_set(self);
        }
        let above = self.used().saturating_sub(quota.unwrap_or(usize::MAX));
        if above > 0 {
            self.arena.make_room(Some(self), above, self.id, check)?;
        }
        Ok(())
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
        if crate::memory::is_shut_down() {
            return Err(Error::ShuttingDown);
        }
        let Some(request) = self.arena.request(bytes) else {
            return Err(self.too_large(bytes));
        };
        self.heed_claims(request.rounded)?;
        let place = if self.listed && registry::is_tracking() { self.apart(&request) } else { request };
        let mut cache = self.cache.lock();
        while let Err(refusing) = self.charge(request.rounded) {
            drop(cache);
            if refusing.is_closed() || !refusing.make_room(request.rounded, self.requester(), check)? {
                return Err(refusing.refusal(bytes));
            }
            cache = self.cache.lock();
        }
        if let Some(block) = self.take_at_once(&mut cache, &place, stream) {
            self.keep_alive(&mut cache);
            self.note_charge(&block.segment, request.rounded);
            self.arena.journal.allocated(self, &block, request.rounded);
            drop(cache);
            return Ok(Storage::new(block, &request, self));
        }
        self.pending.fetch_add(request.rounded, Ordering::Relaxed);
        drop(cache);
        let found = self.find(&place, stream, check);
        let lock = self.cache.lock();
        self.pending.fetch_sub(request.rounded, Ordering::Relaxed);
        match &found {
            Ok(block) => {
                self.note_charge(&block.segment, request.rounded);
                self.arena.journal.allocated(self, block, request.rounded);
            }
            Err(_) => self.uncharge(request.rounded),
        }
        drop(lock);
        Ok(Storage::new(found?, &request, self))
    }

    /// Bytes charged for a block of this segment. What is evicted is not charged. The cache's lock is held.
    #[inline]
    fn note_charge(&self, segment: &Segment, bytes: usize) {
        if self.evicting {
            segment.add_charge(bytes);
            if !segment.is_counted() {
                self.uncharge(bytes);
            }
        }
    }

    /// While kernels are checked arrays do not touch, so that an access past the end of one is not one to the next. They
    /// are charged as always.
    #[cold]
    fn apart(&self, request: &Request) -> Request {
        let larger = request.bytes.checked_add(registry::APART).and_then(|bytes| self.arena.request(bytes));
        match larger {
            Some(larger) if request.fit != Fit::Empty => Request { bytes: request.bytes, ..larger },
            _ => *request,
        }
    }

    /// Give cached memory that no stream needs any more back to the device. A graph's pool keeps its memory.
    pub fn trim(&self) -> Result<()> {
        if self.private {
            return Ok(());
        }
        // Evictions that were given up keep their segments until then.
        self.arena.sweep()?;
        let idle = self.cache.lock().drain_idle(false)?;
        self.arena.retire(idle);
        if let Some(stock) = self.own_stock() {
            self.arena.level(stock);
        }
        self.arena.release_spare(0)
    }

    /// Refuse new allocations and release the pool's memory: at once what is free, the rest as its blocks come back.
    pub fn close(&self) -> Result<()> {
        let idle = {
            let mut cache = self.cache.lock();
            self.closed.store(true, Ordering::Release);
            if cache.live() == 0 || !self.private { cache.drain_idle(true)? } else { Vec::new() }
        };
        self.arena.retire(idle);
        self.end_guarantee();
        Ok(())
    }

    /// The whole pool's memory is used by `stream` up to `seq`: a replay of the graph that owns it.
    pub fn note_use(&self, stream: &Arc<Stream>, seq: u64) {
        self.cache.lock().replays.note(stream, seq);
    }

    /// The last replays that use any memory of it.
    pub(super) fn replays(&self) -> Uses {
        self.cache.lock().replays.clone()
    }

    pub fn stats(&self) -> PoolStats {
        let (free, _) = self.arena.memory_info();
        let (mut stats, room) = {
            let cache = self.cache.lock();
            let cached = cache.reserved - cache.live_bytes;
            let stats = PoolStats {
                used: self.account.used(),
                peak: self.account.peak(),
                quota: self.quota(),
                guarantee: self.guarantee(),
                held: self.own_stock().map_or(0, |stock| stock.unused()),
                cached,
                reserved: cache.reserved,
                evicted: cache.evicted(),
                host: self.host.used(),
                hits: cache.hits,
                misses: cache.misses,
                allocations: cache.hits + cache.misses,
                frees: cache.frees,
                live: cache.live(),
                ..PoolStats::default()
            };
            let held = self.stock.as_ref().map_or(0, |stock| stock.unused());
            (stats, free.saturating_add(cached).saturating_add(held))
        };
        stats.available = self.quota_room().min(room);
        stats
    }

    /// The largest live allocations of this pool and those below it: bytes and what is known of them.
    pub fn top_holders(&self, n: usize) -> Vec<(usize, String)> {
        let pools = self.arena.pools();
        let inside = pools.iter().filter(|pool| pool.is_within(self));
        largest(inside.flat_map(|pool| pool.own_holders().into_iter().chain(pool.held_unused())).collect(), n)
    }

    pub(crate) fn own_holders(&self) -> Vec<(usize, String)> {
        self.cache.lock().holders(&self.name)
    }

    /// Bytes that trimming cannot give back, whatever is waited for.
    pub(crate) fn held(&self) -> usize {
        let cache = self.cache.lock();
        if self.private { cache.reserved } else { cache.held() }
    }

    pub(crate) fn note_unfinished(&self, uses: &mut Uses) {
        if !self.private {
            self.cache.lock().note_unfinished(uses);
        }
    }

    /// Take a dropped storage's block back. The last one returns the pool's reference to itself, which the caller
    /// drops when it is done with the pool.
    #[inline]
    pub(crate) fn give_back(&self, block: Block, charged: usize, uses: Uses) -> Option<Arc<Pool>> {
        let mut cache = self.cache.lock();
        if block.segment.is_counted() {
            self.uncharge(charged);
        }
        if self.evicting {
            block.segment.subtract_charge(charged);
        }
        self.arena.journal.freed(self, &block, charged);
        match block.segment.class() {
            SegmentClass::Empty => cache.frees += 1,
            // There is no memory to keep; and what is on its way out is not worth keeping. A graph still uses its address.
            SegmentClass::Large if block.segment.state() != SegmentState::Resident && !self.private => {
                block.segment.set_resident_unless_evicted();
                return self.retire_exact(cache, block, uses);
            }
            // Its addresses are of its own size.
            SegmentClass::Grow => {
                block.segment.set_resident_unless_evicted();
                return self.retire_exact(cache, block, uses);
            }
            // Replays of a graph use what its recording has freed, so a graph's pool keeps it.
            _ if self.arena.mode() == ArenaMode::None && !self.private => {
                return self.retire_exact(cache, block, uses);
            }
            class => {
                if class == SegmentClass::Large {
                    block.segment.set_label(None);
                }
                // Nobody will ask for what it held, but for a graph.
                if self.evicting && !self.private && block.segment.live() == 1 {
                    block.segment.forget_copy();
                }
                cache.give_back(block, uses, !self.private);
            }
        }
        let keep = if cache.live() == 0 { cache.keep.take() } else { None };
        drop(cache);
        self.release_if_closed();
        keep
    }

    /// A closed pool keeps nothing for later.
    #[inline]
    fn release_if_closed(&self) {
        if self.is_closed() {
            let closed = self.close();
            self.arena.record(closed);
        }
    }

    #[cold]
    fn retire_exact(&self, mut cache: MutexGuard<'_, Cache>, block: Block, mut uses: Uses) -> Option<Arc<Pool>> {
        cache.returned(&block);
        cache.forget(&block.segment);
        uses.merge(&cache.replays);
        // A copy to or from the host may be on its way.
        uses.merge(&block.segment.uses());
        uses.note(&block.home, block.home.seq());
        let keep = if cache.live() == 0 { cache.keep.take() } else { None };
        drop(cache);
        self.arena.retire([(block.segment, uses)]);
        self.release_if_closed();
        keep
    }

    /// The common case: an array without bytes, or a block the stream itself has freed.
    #[inline]
    fn take_at_once(&self, cache: &mut Cache, request: &Request, stream: &Arc<Stream>) -> Option<Block> {
        if request.fit == Fit::Empty {
            cache.hits += 1;
            return Some(Block { ptr: 0, segment: self.arena.empty_segment().clone(), home: stream.clone() });
        }
        cache.take_own(request, stream)
    }

    /// Live blocks keep their pool alive.
    #[inline]
    fn keep_alive(self: &Arc<Self>, cache: &mut Cache) {
        if cache.keep.is_none() {
            cache.keep = Some(self.clone());
        }
    }

    /// The charge is made; find memory for it.
    #[cold]
    fn find(
        self: &Arc<Self>,
        request: &Request,
        stream: &Arc<Stream>,
        check: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Block> {
        let (bytes, class) = match request.fit {
            _ if self.arena.mode() == ArenaMode::None => (request.bytes, SegmentClass::Large),
            Fit::Slab(class) => (slab_bytes(class as usize, self.arena.granule()), SegmentClass::Slab(class)),
            Fit::Large | Fit::Empty => (request.rounded, SegmentClass::Large),
        };
        let found = self.arena.under_pressure(bytes, self.requester(), check, || {
            let mut cache = self.cache.lock();
            if self.is_closed() {
                return Err(self.closed_error());
            }
            if let Some(block) = cache.take_held(request, stream, !self.private)? {
                self.keep_alive(&mut cache);
                return Ok(block);
            }
            // Not under the lock: making memory takes the driver a while.
            drop(cache);
            let segment = self.arena.obtain(bytes, class, self.owner(), self.evicting)?;
            let mut cache = self.cache.lock();
            if self.is_closed() {
                drop(cache);
                self.arena.retire([(segment, Uses::default())]);
                return Err(self.closed_error());
            }
            self.keep_alive(&mut cache);
            Ok(cache.adopt(segment, stream))
        });
        found.map_err(|error| self.arena.explain(error, request.bytes))
    }

    fn owner(&self) -> Owner {
        Owner { id: self.id, stock: self.stock.clone() }
    }

    /// Every segment of the pool.
    pub(crate) fn segments(&self) -> Vec<Arc<Segment>> {
        self.cache.lock().segments().to_vec()
    }

    pub(crate) fn is_within(&self, other: &Pool) -> bool {
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

    /// More than the device has: refused without a try, by the quota in the way if there is one.
    #[cold]
    fn too_large(&self, bytes: usize) -> Error {
        let mut pool = Some(self);
        while let Some(here) = pool {
            if here.is_closed() || here.account.room() < bytes {
                return here.refusal(bytes);
            }
            pool = here.parent.as_deref();
        }
        self.arena.out_of_memory(bytes)
    }

    /// Why this pool refused a charge.
    #[cold]
    pub(crate) fn refusal(&self, requested: usize) -> Error {
        if self.is_closed() { self.closed_error() } else { self.over_quota(requested) }
    }

    /// The quota has no room, be the pool open or closed.
    #[cold]
    pub(crate) fn over_quota(&self, requested: usize) -> Error {
        self.arena.journal.refused(Some(self), requested);
        let quota = Some((self.name.clone(), self.account.used(), self.quota().unwrap_or(usize::MAX)));
        let (free, total) = self.arena.memory_info();
        let holders = self.top_holders(REPORTED_HOLDERS);
        let stuck = self.arena.stuck(Some(self));
        Error::OutOfMemory(Box::new(OutOfMemory { requested, free, total, granule: 0, quota, holders, stuck }))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if crate::memory::is_shut_down() {
            return;
        }
        self.arena.unregister(self.id);
        self.end_guarantee();
        match self.cache.get_mut().drain_idle(true) {
            Ok(idle) => self.arena.retire(idle),
            Err(error) => self.arena.record(Err(error)),
        }
    }
}
