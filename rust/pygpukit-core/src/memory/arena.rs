//! `Arena`: a device's addresses and physical memory, made into segments and released when no stream needs them.

use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::evict::Mover;
use super::host_copy::HostStore;
use super::journal::Journal;
use super::pieces::Spare;
use super::pool::Pool;
use super::ranges::Range;
use super::segment::{Backing, Segment, SegmentClass};
use super::size_class::{Request, round_up};
use super::stock::{Stock, promised};
use super::uses::Uses;
use crate::device::{DevPtr, Device, DeviceKind, SharedDevice};
use crate::error::{Error, OutOfMemory, Result};
use crate::runtime;

/// Rounding of large arrays where the device does not say.
const PLAIN_GRANULE: usize = 2 << 20;

/// The first reservation is this many times the device's memory, and at most `RESERVE_MAX`.
const RESERVE_FACTOR: usize = 8;
const RESERVE_MAX: usize = 1 << 40;

pub(super) const REPORTED_HOLDERS: usize = 5;

/// How often, and after which pause, a full device is tried again once nothing is left to wait for.
pub(super) const PRESSURE_ROUNDS: usize = 100;
pub(super) const PRESSURE_PAUSE: Duration = Duration::from_micros(100);

/// The same where a guarantee has the memory: only a thread that got no processor for so long can be in the way.
const PROMISE_ROUNDS: usize = 10_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArenaMode {
    /// Reserved addresses with physical memory mapped behind them.
    Vmm,
    /// Whole allocations, where virtual memory management is missing.
    Plain,
    /// No pooling: each array is its own exact allocation, so that a sanitizer sees every overrun.
    None,
}

impl ArenaMode {
    /// The best mode the device offers.
    pub fn of(device: &dyn Device) -> ArenaMode {
        if device.vmm_granularity().is_some() { ArenaMode::Vmm } else { ArenaMode::Plain }
    }
}

/// A segment on its way back to the device, and the uses that must be over first.
struct Retired {
    segment: Arc<Segment>,
    uses: Uses,
}

#[derive(Default)]
struct State {
    ranges: Vec<Range>,
    retired: Vec<Retired>,
    pools: Vec<(u32, Weak<Pool>)>,
}

/// Whose a new segment is, and what its memory counts for.
#[derive(Clone, Default)]
pub(crate) struct Owner {
    /// A pool's id.
    pub id: u32,
    pub stock: Option<Arc<Stock>>,
}

pub struct Arena {
    device: SharedDevice,
    mode: ArenaMode,
    granule: usize,
    /// The device's memory.
    total: usize,
    /// The segment of arrays without bytes.
    empty: Arc<Segment>,
    next_pool: AtomicU32,
    reserved: AtomicUsize,
    last_error: Mutex<Option<Error>>,
    /// Physical memory without addresses, kept for the next segment.
    pub(super) spare: Mutex<Spare>,
    /// Held while physical memory is made.
    pub(super) creating: Mutex<()>,
    pub(super) mover: Mover,
    /// Guarantees that wait for memory which is in the way and cannot move.
    pub(super) claims: AtomicUsize,
    pub(super) journal: Journal,
    state: Mutex<State>,
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Arena({:?}, {} bytes reserved)", self.mode, self.reserved())
    }
}

impl Arena {
    /// Touches the device only when the first memory is asked for. `Vmm` becomes `Plain` where the device lacks it.
    pub fn new(device: SharedDevice, mode: ArenaMode) -> Arc<Arena> {
        let granularity = device.vmm_granularity().filter(|granule| *granule > 0);
        let mode = if mode == ArenaMode::Vmm && granularity.is_none() { ArenaMode::Plain } else { mode };
        Arc::new(Arena {
            total: device.props().total_memory,
            mover: Mover::new(HostStore::new(crate::cpu::host_memory() / 4)),
            claims: AtomicUsize::new(0),
            journal: Journal::default(),
            spare: Mutex::default(),
            creating: Mutex::default(),
            device,
            mode,
            granule: granularity.unwrap_or(PLAIN_GRANULE),
            empty: Segment::new(0, 0, Backing::Nothing, SegmentClass::Empty, 0, None, false),
            next_pool: AtomicU32::new(1),
            reserved: AtomicUsize::new(0),
            last_error: Mutex::new(None),
            state: Mutex::default(),
        })
    }

    pub fn device(&self) -> &SharedDevice {
        &self.device
    }

    pub fn mode(&self) -> ArenaMode {
        self.mode
    }

    /// Large arrays are rounded up to this.
    pub fn granule(&self) -> usize {
        self.granule
    }

    /// Bytes held from the device by all pools and buffers, those waiting to be released included.
    pub fn reserved(&self) -> usize {
        self.reserved.load(Ordering::Relaxed)
    }

    /// The last error of a release, which nobody could be told about; asking forgets it.
    pub fn take_error(&self) -> Option<Error> {
        self.last_error.lock().take()
    }

    /// Give every cached piece of memory that no stream needs any more back to the device.
    pub fn trim(&self) -> Result<()> {
        for pool in self.pools() {
            pool.trim()?;
        }
        self.sweep()?;
        self.reap()?;
        // Those inside others first.
        for stock in self.pools().iter().rev().filter_map(|pool| pool.own_stock()) {
            self.level(stock);
        }
        self.release_spare(0)
    }

    /// The largest live allocations of all pools.
    pub fn top_holders(&self, n: usize) -> Vec<(usize, String)> {
        let of = |pool: &Arc<Pool>| pool.own_holders().into_iter().chain(pool.held_unused());
        largest(self.pools().iter().flat_map(of).collect(), n)
    }

    /// None when the device could not hold it even if it were empty.
    #[inline]
    pub(crate) fn request(&self, bytes: usize) -> Option<Request> {
        if bytes > self.total { None } else { Request::new(bytes, self.granule) }
    }

    pub(crate) fn empty_segment(&self) -> &Arc<Segment> {
        &self.empty
    }

    pub(crate) fn next_pool_id(&self) -> u32 {
        self.next_pool.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn register(&self, pool: &Arc<Pool>) {
        self.state.lock().pools.push((pool.id(), Arc::downgrade(pool)));
        self.journal.made(pool);
    }

    pub(crate) fn unregister(&self, id: u32) {
        self.state.lock().pools.retain(|(known, _)| *known != id);
    }

    /// The pools alive now. Dropping one of them may take the arena's lock, so it is not held here.
    pub(crate) fn pools(&self) -> Vec<Arc<Pool>> {
        let weak: Vec<_> = self.state.lock().pools.iter().map(|(_, pool)| pool.clone()).collect();
        weak.iter().filter_map(Weak::upgrade).collect()
    }

    pub(crate) fn pool_by_id(&self, id: u32) -> Option<Arc<Pool>> {
        let weak = self.state.lock().pools.iter().find(|(known, _)| *known == id).map(|(_, pool)| pool.clone());
        weak?.upgrade()
    }

    /// A new segment of its own addresses. Fails with the device's out-of-memory error when it has no more.
    pub(crate) fn obtain(
        &self,
        bytes: usize,
        class: SegmentClass,
        owner: Owner,
        evictable: bool,
    ) -> Result<Arc<Segment>> {
        self.reap()?;
        if self.mode != ArenaMode::Vmm {
            let ptr = self.device.plain_alloc(bytes)?;
            self.count_moved(bytes, true);
            return Ok(Segment::new(ptr, bytes, Backing::Plain, class, owner.id, None, false));
        }
        let va = self.take_range(bytes)?;
        self.map_at(va, bytes, class, owner, evictable).inspect_err(|_| self.give_back_range(va, bytes))
    }

    /// Put memory behind addresses taken with `take_range`; they belong to the segment from then on.
    pub(crate) fn map_at(
        &self,
        va: DevPtr,
        bytes: usize,
        class: SegmentClass,
        owner: Owner,
        evictable: bool,
    ) -> Result<Arc<Segment>> {
        let stock = owner.stock.as_ref();
        let pieces = self.take_pieces(stock, bytes, evictable)?;
        self.map_pieces(va, &pieces).inspect_err(|_| self.record(self.release_pieces(stock, pieces.clone())))?;
        self.count_moved(bytes, true);
        Ok(Segment::new(va, bytes, Backing::Mapped(pieces), class, owner.id, owner.stock, evictable))
    }

    pub(crate) fn take_range(&self, bytes: usize) -> Result<DevPtr> {
        let mut state = self.state.lock();
        if let Some(va) = state.ranges.iter_mut().find_map(|range| range.take(bytes)) {
            return Ok(va);
        }
        let generous = self.total.saturating_mul(RESERVE_FACTOR).min(RESERVE_MAX);
        let mut wanted = round_up(generous.max(bytes), self.granule).unwrap_or(bytes);
        let base = loop {
            match self.device.reserve(wanted) {
                Ok(base) => break base,
                Err(error) if wanted <= bytes => return Err(error),
                Err(_) => wanted = round_up((wanted / 2).max(bytes), self.granule).unwrap_or(bytes),
            }
        };
        let mut range = Range::new(base, wanted);
        let va = range.take(bytes);
        state.ranges.push(range);
        va.ok_or_else(|| Error::Value(format!("the device reserved {wanted} bytes of addresses, {bytes} were needed")))
    }

    pub(crate) fn give_back_range(&self, va: DevPtr, bytes: usize) {
        if let Some(range) = self.state.lock().ranges.iter_mut().find(|range| range.contains(va)) {
            range.give_back(va, bytes);
        }
    }

    /// Release segments once their uses are over: at once if they are, else in a later call.
    pub(crate) fn retire(&self, segments: impl IntoIterator<Item = (Arc<Segment>, Uses)>) {
        let retired = segments.into_iter().map(|(segment, uses)| Retired { segment, uses });
        self.state.lock().retired.extend(retired);
        let reaped = self.reap();
        self.record(reaped);
    }

    /// Release what was retired and is no longer used.
    pub(crate) fn reap(&self) -> Result<()> {
        if runtime::out_of_reach(&self.device) {
            return Ok(());
        }
        let mut idle = Vec::new();
        let mut failed = Ok(());
        {
            let mut state = self.state.lock();
            if state.retired.is_empty() {
                return Ok(());
            }
            // Each stream is asked at most once; what its answer does not cover waits for the next call.
            let mut asked: SmallVec<[u32; 8]> = SmallVec::new();
            let mut index = 0;
            while index < state.retired.len() {
                let Retired { segment, uses } = &mut state.retired[index];
                // A copy to the host may have been begun before it was dropped, and noted after.
                if segment.is_pinned() {
                    index += 1;
                    continue;
                }
                uses.merge(&segment.uses());
                uses.drop_completed();
                for (stream, seq) in uses.iter() {
                    if asked.contains(&stream.id()) {
                        continue;
                    }
                    asked.push(stream.id());
                    if let Err(error) = stream.passed(seq) {
                        failed = Err(error);
                    }
                }
                uses.drop_completed();
                if uses.is_empty() {
                    idle.push(state.retired.swap_remove(index).segment);
                } else {
                    index += 1;
                }
            }
        }
        for segment in idle {
            self.release(&segment);
        }
        failed
    }

    /// Try, and when the device is full give cached memory back, then wait stream by stream for more, and try again.
    /// Other threads may take what became free, so this goes on as long as `needed` bytes could still become free.
    /// No lock is held while waiting.
    pub(crate) fn under_pressure<T>(
        &self,
        needed: usize,
        requester: u32,
        check: &mut dyn FnMut() -> Result<()>,
        mut attempt: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        match attempt() {
            Err(error) if error.is_out_of_memory() => {}
            other => return other,
        }
        let mut unfinished = self.unfinished();
        let mut rounds = 0;
        loop {
            self.trim()?;
            let full = match attempt() {
                Err(error) if error.is_out_of_memory() => error,
                other => return other,
            };
            if let Some((stream, seq)) = unfinished.pop() {
                stream.wait_passed(seq, check)?;
                continue;
            }
            if self.make_room(None, needed, requester, check)? {
                continue;
            }
            if !self.may_come(needed, requester, rounds) {
                return Err(full);
            }
            rounds += 1;
            unfinished = self.unfinished();
            if unfinished.is_empty() {
                // Another thread is releasing memory right now.
                check()?;
                std::thread::sleep(PRESSURE_PAUSE);
            }
        }
    }

    /// The error a caller gets when the device has no more. Other errors pass through.
    pub(crate) fn explain(&self, error: Error, requested: usize) -> Error {
        if !matches!(error, Error::Driver { .. }) || !error.is_out_of_memory() {
            return error;
        }
        self.out_of_memory(requested)
    }

    pub(crate) fn out_of_memory(&self, requested: usize) -> Error {
        self.journal.refused(None, requested);
        let (free, total) = self.memory_info();
        let holders = self.top_holders(REPORTED_HOLDERS);
        Error::OutOfMemory(Box::new(OutOfMemory {
            requested,
            free,
            total,
            granule: self.granule,
            quota: None,
            holders,
            stuck: self.stuck(None),
        }))
    }

    /// Free and total bytes, or zeros where the device cannot say, for reports.
    pub(crate) fn memory_info(&self) -> (usize, usize) {
        self.device.memory_info().unwrap_or((0, self.total))
    }

    /// Streams whose progress would make memory free.
    fn unfinished(&self) -> Uses {
        let mut uses = Uses::default();
        for pool in self.pools() {
            pool.note_unfinished(&mut uses);
        }
        for retired in &self.state.lock().retired {
            uses.merge(&retired.uses);
        }
        uses.drop_completed();
        uses
    }

    /// Is it worth another try, after so many, to find this much for a pool? Bytes that nobody holds are free, or will be
    /// when the thread that moves them gets on.
    fn may_come(&self, needed: usize, requester: u32, rounds: usize) -> bool {
        let pools = self.pools();
        let promised = promised(&pools, requester);
        if promised >= needed {
            return rounds < PROMISE_ROUNDS;
        }
        let held: usize = pools.iter().map(|pool| pool.held()).sum();
        let others = self.memory_info().0.saturating_add(self.reserved().saturating_sub(held));
        rounds < PRESSURE_ROUNDS && others.saturating_add(promised) >= needed
    }

    fn release(&self, segment: &Segment) {
        let (va, bytes, range) = (segment.va(), segment.bytes(), segment.range());
        if self.device.props().kind != DeviceKind::Cuda {
            super::registry::remove_within(va, range);
        }
        let released = match std::mem::replace(&mut *segment.backing(), Backing::Nothing) {
            // Evicted: its memory went before.
            Backing::Nothing => return self.give_back_range(va, range),
            Backing::Plain => self.device.plain_free(va),
            // Addresses whose unmapping failed are not used again.
            Backing::Mapped(pieces) => self.unmap_pieces(va, &pieces).and_then(|()| {
                self.give_back_range(va, range);
                self.release_pieces(segment.stock(), pieces)
            }),
        };
        if released.is_ok() {
            self.reserved.fetch_sub(bytes, Ordering::Relaxed);
        }
        self.record(released);
    }

    /// Bytes of the device's memory that segments have, more or fewer.
    pub(super) fn count_moved(&self, bytes: usize, here: bool) {
        if here {
            self.reserved.fetch_add(bytes, Ordering::Relaxed);
        } else {
            self.reserved.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    pub(crate) fn record(&self, result: Result<()>) {
        if let Err(error) = result {
            *self.last_error.lock() = Some(error);
        }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        if super::is_shut_down() {
            return;
        }
        self.forget_leaving();
        let released = self.release_spare(0);
        self.record(released);
        // Nobody can release what is left later: wait for it. Memory whose streams fail stays with the device.
        let retired = std::mem::take(&mut self.state.get_mut().retired);
        for Retired { segment, uses } in retired {
            let waited = uses.iter().try_for_each(|(stream, seq)| stream.wait_passed(seq, &mut || Ok(())));
            if waited.is_ok() {
                self.release(&segment);
            }
        }
        for range in &self.state.get_mut().ranges {
            if range.is_whole() {
                // A failure leaves addresses reserved that nobody asks for any more.
                let _ = self.device.unreserve(range.base, range.bytes);
            }
        }
    }
}

pub(crate) fn largest(mut holders: Vec<(usize, String)>, n: usize) -> Vec<(usize, String)> {
    holders.sort_by(|a, b| b.cmp(a));
    holders.truncate(n);
    holders
}
