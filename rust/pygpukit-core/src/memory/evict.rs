//! Eviction: segments move to the host when memory is short, and back to the same address before they are used.
//!
//! A use enters its segments (`Segment::enter`), launches, notes the use and leaves them. A segment that somebody is in
//! is never evicted, and one that is not resident is brought in first. Copies to the host go to a stream of their own
//! that waits, on the device, for the last uses; they start ahead of need, oldest segments first, and until its memory
//! is really taken a segment can come back at no cost. Copies from the host go to another stream, which the streams
//! that use the segment wait for. Only the taking of memory waits on the host.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Mutex, ReentrantMutex, ReentrantMutexGuard};
use smallvec::SmallVec;

use super::arena::{Arena, PRESSURE_PAUSE, PRESSURE_ROUNDS};
use super::ferry::Ferry;
use super::host_copy::{HostCopy, HostStats, HostStore};
use super::pool::Pool;
use super::protect::Protection;
use super::segment::{Backing, Segment, SegmentState};
use crate::command::CopyKind;
use crate::error::{Error, Result};
use crate::host::PinnedPool;
use crate::runtime;
use crate::stream::Stream;

/// As many times what is needed is on its way to the host.
const AHEAD: usize = 3;

/// So many segments are tried when the host has no room for them.
const MOST_REFUSALS: usize = 16;

/// Memory counts as moving for so many uses after an eviction began.
const MOVING: u64 = 4096;

/// How often whoever waits for his turn looks whether he is to give up.
const TURN_PAUSE: Duration = Duration::from_millis(5);

/// After so many looks a turn that another process has taken is given up: it was taken before the fork.
const FORKED_ROUNDS: u32 = 40;

type Check<'a> = &'a mut dyn FnMut() -> Result<()>;
type MakeStream = Box<dyn Fn() -> Result<Arc<Stream>> + Send + Sync>;

/// A segment whose copy to the host is under way: done when the stream of departures has passed `seq`.
struct Leaving {
    segment: Arc<Segment>,
    seq: u64,
}

/// How often and how much was moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MoveStats {
    pub evictions: u64,
    pub evicted_bytes: u64,
    /// Evictions that needed no copy, because the host had one.
    pub dropped: u64,
    /// Bytes that were copied to the host, for evictions that were given up too.
    pub copied_bytes: u64,
    pub restores: u64,
    pub restored_bytes: u64,
    /// Evictions begun and given up because somebody used the segment.
    pub returned: u64,
    pub host: HostStats,
}

#[derive(Default)]
struct Counters {
    evictions: AtomicU64,
    evicted_bytes: AtomicU64,
    dropped: AtomicU64,
    copied_bytes: AtomicU64,
    restores: AtomicU64,
    restored_bytes: AtomicU64,
    returned: AtomicU64,
}

pub(crate) struct Mover {
    /// Held by the one thread that makes room: two that each hold a part of what they need would wait for each other.
    /// Work that runs while it waits may come back here, so it is reentrant.
    turn: ReentrantMutex<()>,
    /// The process that had the turn last: a forked child has its locks as they were, and not the threads that hold them.
    holder: AtomicU32,
    make_stream: OnceLock<MakeStream>,
    /// Of departures and of arrivals.
    streams: Mutex<Option<(Arc<Stream>, Arc<Stream>)>>,
    /// The same; used by whoever has the turn.
    ferries: Mutex<Option<(Ferry, Ferry)>>,
    /// In the order of their copies.
    leaving: Mutex<VecDeque<Leaving>>,
    clock: AtomicU64,
    /// Time of the clock when an eviction was last begun.
    moved: AtomicU64,
    counters: Counters,
    pub store: Arc<HostStore>,
}

impl Mover {
    pub fn new(store: Arc<HostStore>) -> Mover {
        Mover {
            turn: ReentrantMutex::new(()),
            holder: AtomicU32::new(0),
            make_stream: OnceLock::new(),
            streams: Mutex::default(),
            ferries: Mutex::default(),
            leaving: Mutex::default(),
            clock: AtomicU64::new(0),
            moved: AtomicU64::new(0),
            counters: Counters::default(),
            store,
        }
    }

    fn streams(&self) -> Result<(Arc<Stream>, Arc<Stream>)> {
        let mut streams = self.streams.lock();
        if let Some(streams) = &*streams {
            return Ok(streams.clone());
        }
        let Some(make) = self.make_stream.get() else {
            return Err(Error::Value("this arena has no streams to move memory on".to_string()));
        };
        let made = (make()?, make()?);
        let pool = self.store.pool();
        *self.ferries.lock() = Some((
            Ferry::new(CopyKind::DeviceToHost, made.0.clone(), make()?, pool),
            Ferry::new(CopyKind::HostToDevice, made.1.clone(), make()?, pool),
        ));
        *streams = Some(made.clone());
        Ok(made)
    }
}

impl Arena {
    /// Where streams for moving memory come from.
    pub fn set_streams(&self, make: MakeStream) {
        let _ = self.mover.make_stream.set(make);
    }

    /// A new time of the clock that tells which segment was used last. Two threads may get the same.
    #[inline]
    pub(crate) fn tick(&self) -> u64 {
        let now = self.mover.clock.load(Ordering::Relaxed) + 1;
        self.mover.clock.store(now, Ordering::Relaxed);
        now
    }

    /// Has anything begun to move not long ago?
    #[inline]
    pub(crate) fn is_moving(&self) -> bool {
        let moved = self.mover.moved.load(Ordering::Relaxed);
        moved > 0 && self.mover.clock.load(Ordering::Relaxed).saturating_sub(moved) < MOVING
    }

    pub fn move_stats(&self) -> MoveStats {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.mover.counters;
        MoveStats {
            evictions: of(&counters.evictions),
            evicted_bytes: of(&counters.evicted_bytes),
            dropped: of(&counters.dropped),
            copied_bytes: of(&counters.copied_bytes),
            restores: of(&counters.restores),
            restored_bytes: of(&counters.restored_bytes),
            returned: of(&counters.returned),
            host: self.mover.store.stats(),
        }
    }

    /// Where page-locked memory for evicted segments comes from.
    pub(crate) fn set_pinned(&self, pool: &Arc<PinnedPool>) {
        self.mover.store.set_pool(pool);
    }

    /// Bytes of host memory that is not page-locked which evicted segments may use.
    pub fn set_spill_limit(&self, bytes: usize) {
        self.mover.store.set_pageable_limit(bytes);
    }

    /// Wait for the turn to make room: whoever has it may be waiting for work without an end.
    fn take_turn(&self, check: Check<'_>) -> Result<ReentrantMutexGuard<'_, ()>> {
        let here = std::process::id();
        for round in 0.. {
            if let Some(turn) = self.mover.turn.try_lock_for(TURN_PAUSE) {
                self.mover.holder.store(here, Ordering::Relaxed);
                return Ok(turn);
            }
            check()?;
            if round > FORKED_ROUNDS && self.mover.holder.load(Ordering::Relaxed) != here {
                break;
            }
        }
        Err(Error::Forked(
            "memory was being moved by another thread when this process was forked, and that thread is not here to \
             finish; fork while nothing else runs, or use the spawn start method"
                .to_string(),
        ))
    }

    /// Make these segments, which the caller is in, resident. He is in none of them while he waits for his turn.
    #[cold]
    pub(crate) fn bring_in(&self, segments: &[&Arc<Segment>], check: Check<'_>) -> Result<()> {
        segments.iter().for_each(|segment| segment.leave());
        let turn = self.take_turn(check);
        segments.iter().for_each(|segment| _ = segment.enter());
        let _turn = turn?;
        segments.iter().try_for_each(|segment| match segment.state() {
            SegmentState::Resident => Ok(()),
            SegmentState::Leaving => {
                self.mover.counters.returned.fetch_add(1, Ordering::Relaxed);
                self.journal.returned(segment);
                segment.set_resident();
                Ok(())
            }
            SegmentState::Evicted => self.restore(segment, check),
        })
    }

    /// The stream waits, on the device, for content that is still on its way.
    #[inline]
    pub(crate) fn await_arrival(&self, segment: &Segment, stream: &Stream) -> Result<()> {
        match segment.arrival() {
            0 => Ok(()),
            seq => self.await_arrival_of(segment, stream, seq),
        }
    }

    #[cold]
    fn await_arrival_of(&self, segment: &Segment, stream: &Stream, seq: u64) -> Result<()> {
        let (_, arrivals) = self.mover.streams()?;
        if arrivals.passed(seq)? {
            segment.arrived(seq);
            return Ok(());
        }
        stream.wait_for(&arrivals, seq)
    }

    /// Wait for content that is on its way.
    pub(crate) fn wait_arrival(&self, segment: &Segment, check: Check<'_>) -> Result<()> {
        match segment.arrival() {
            0 => Ok(()),
            seq => {
                self.mover.streams()?.1.wait_passed(seq, check)?;
                segment.arrived(seq);
                Ok(())
            }
        }
    }

    /// Move a segment to the host now and wait for it. False when somebody uses it or has pinned it.
    pub(crate) fn evict(&self, segment: &Arc<Segment>, check: Check<'_>) -> Result<bool> {
        let _turn = self.take_turn(check)?;
        let may_move = self.owner(segment).is_some_and(|owner| owner.is_evicting());
        if segment.state() == SegmentState::Resident && !(may_move && self.start(segment)?) {
            return Ok(false);
        }
        self.finish(segment, check)?;
        Ok(segment.state() == SegmentState::Evicted)
    }

    /// Take memory from segments that were not used for long, until `bytes` are free: of the quota of `scope`, or of the
    /// device. Segments of `requester` go last. False when nothing more can be taken.
    pub(crate) fn make_room(
        &self,
        scope: Option<&Pool>,
        bytes: usize,
        requester: u32,
        check: Check<'_>,
    ) -> Result<bool> {
        if !self.pools().iter().any(|pool| pool.is_evicting() && scope.is_none_or(|scope| pool.is_within(scope))) {
            return Ok(false);
        }
        let mut made = false;
        // Whoever has the turn may need what this thread holds to get on.
        runtime::blocking(&mut || {
            made = self.make_room_now(scope, bytes, requester, check)?;
            Ok(())
        })?;
        Ok(made)
    }

    fn make_room_now(&self, scope: Option<&Pool>, bytes: usize, requester: u32, check: Check<'_>) -> Result<bool> {
        let _turn = self.take_turn(check)?;
        self.sweep()?;
        // What was dropped on the host has its room there until then.
        self.reap()?;
        let (mut freed, mut rounds) = (0, 0);
        while freed < bytes {
            // Others may have made the room, also while the turn was theirs.
            if scope.is_some_and(|scope| scope.has_room(bytes)) {
                return Ok(true);
            }
            // More than is needed starts now, so that the next calls find it on its way.
            let mut unavailable = None;
            if let Err(error) = self.start_oldest(scope, requester, (bytes - freed).saturating_mul(AHEAD)) {
                unavailable = Some(error);
            }
            let next = self.next_leaving(scope, requester);
            match next {
                Some(segment) => freed += self.finish(&segment, check)?,
                None if freed > 0 => return Ok(true),
                None if unavailable.is_some() => return unavailable.map_or(Ok(false), Err),
                None if rounds == PRESSURE_ROUNDS => return Ok(false),
                None => {
                    // Whoever is in a segment for the length of a launch leaves it soon.
                    rounds += 1;
                    check()?;
                    std::thread::sleep(PRESSURE_PAUSE);
                }
            }
        }
        Ok(true)
    }

    /// The segment to take memory from next: one of the requester's own only when nobody else's is leaving.
    fn next_leaving(&self, scope: Option<&Pool>, requester: u32) -> Option<Arc<Segment>> {
        let leaving = self.mover.leaving.lock();
        let inside = |segment: &Segment| {
            let of_scope = |scope: &Pool| self.owner(segment).is_some_and(|pool| pool.is_within(scope));
            segment.state() == SegmentState::Leaving && scope.is_none_or(of_scope)
        };
        let segments = leaving.iter().map(|leaving| &leaving.segment).filter(|segment| inside(segment));
        let mut own = None;
        for segment in segments {
            if segment.owner() != requester {
                return Some(segment.clone());
            }
            own.get_or_insert(segment);
        }
        own.cloned()
    }

    /// Bytes that eviction could not take from a pool and those below it, or from the device, by reason. Nothing where
    /// nobody evicts.
    pub(super) fn stuck(&self, scope: Option<&Pool>) -> Vec<(usize, &'static str)> {
        let mut found = BTreeMap::new();
        let pools = self.pools();
        let inside: Vec<_> = pools.iter().filter(|pool| scope.is_none_or(|scope| pool.is_within(scope))).collect();
        if inside.iter().any(|pool| pool.is_evicting()) {
            let home = scope.and_then(Pool::stock).map(Arc::as_ptr);
            let mut protection = Protection::new(&pools, 0);
            for pool in inside {
                let outside = pool.stock().map(Arc::as_ptr) != home;
                pool.note_stuck(outside, protection.above_reserves(pool), &mut found);
            }
        }
        found.into_iter().map(|(why, bytes)| (bytes, why)).collect()
    }

    /// Begin to evict the segments used longest ago, until this many bytes are on their way.
    fn start_oldest(&self, scope: Option<&Pool>, requester: u32, wanted: usize) -> Result<()> {
        let pools = self.pools();
        let inside = |pool: &&Arc<Pool>| pool.is_evicting() && scope.is_none_or(|scope| pool.is_within(scope));
        let mut on_way = 0usize;
        let mut candidates = Vec::new();
        let mut protection = Protection::new(&pools, requester);
        let mut own_on_way = 0;
        for pool in pools.iter().filter(inside) {
            let leaving = pool.note_candidates(requester, &mut candidates);
            *if pool.id() == requester { &mut own_on_way } else { &mut on_way } += leaving;
        }
        // What others began to take from the requester is not taken while they can give something themselves.
        let others: usize = candidates.iter().filter(|c| !c.key.1).map(|c| c.segment.bytes()).sum();
        if on_way + others < wanted {
            on_way += own_on_way;
        }
        if on_way >= wanted {
            return Ok(());
        }
        candidates.sort_by_key(|candidate| candidate.key);
        let (mut refused, mut refusals) = (Ok(()), 0);
        for candidate in candidates {
            if on_way >= wanted || refusals == MOST_REFUSALS {
                break;
            }
            if !protection.give(&candidate.owner, &candidate.segment) {
                continue;
            }
            match self.start(&candidate.segment) {
                Ok(true) => on_way += candidate.segment.bytes(),
                Ok(false) => {}
                // Others may have room on the host, or a copy there.
                Err(error @ Error::HostMemory(_)) => (refused, refusals) = (Err(error), refusals + 1),
                Err(error) => return Err(error),
            }
        }
        refused
    }

    /// Forget evictions that were given up, once their copies are over: until then the copies need their room.
    pub(super) fn sweep(&self) -> Result<()> {
        let Some((departures, _)) = self.mover.streams.lock().clone() else { return Ok(()) };
        let mut failed = Ok(());
        let mut over = Vec::new();
        self.mover.leaving.lock().retain(|leaving| {
            let done = leaving.segment.state() != SegmentState::Leaving
                && departures.passed(leaving.seq).unwrap_or_else(|error| {
                    failed = Err(error);
                    false
                });
            if done {
                over.push(leaving.segment.clone());
            }
            !done
        });
        failed
    }

    /// Begin to evict a segment, unless somebody is in it.
    fn start(&self, segment: &Arc<Segment>) -> Result<bool> {
        if !segment.is_evictable() || !segment.begin_leaving() {
            return Ok(false);
        }
        self.mover.moved.store(self.tick(), Ordering::Relaxed);
        // Whoever drops it meanwhile cannot know of the copy before it is noted: its memory stays until then.
        segment.enter();
        let copied = self.copy_out(segment);
        segment.leave();
        let seq = copied.inspect_err(|_| segment.set_resident())?;
        let mut leaving = self.mover.leaving.lock();
        // An eviction given up before tells nothing about this one.
        leaving.retain(|leaving| !Arc::ptr_eq(&leaving.segment, segment));
        leaving.push_back(Leaving { segment: segment.clone(), seq });
        Ok(true)
    }

    /// Copy a segment's content to the host, after its last uses. Returns the number on the stream of departures, or 0
    /// when the host has the content already.
    fn copy_out(&self, segment: &Arc<Segment>) -> Result<u64> {
        self.drop_unfitting(segment)?;
        let mut host = segment.host();
        if host.is_some() && !segment.is_dirty() {
            self.mover.counters.dropped.fetch_add(1, Ordering::Relaxed);
            return Ok(0);
        }
        let (departures, arrivals) = self.mover.streams()?;
        if host.is_none() {
            *host = Some(self.host_memory(segment)?);
        }
        let Some(copy) = host.as_ref() else { return Ok(0) };
        for (stream, seq) in segment.uses().iter() {
            departures.wait_for(stream, seq)?;
        }
        departures.wait_for(&arrivals, segment.arrival())?;
        // From here on a write makes the copy useless.
        segment.set_clean();
        let mut ferries = self.mover.ferries.lock();
        let carried = ferries.as_mut().map_or(Ok(0), |(out, _)| out.carry(segment.va(), copy, segment.bytes()));
        let seq = carried.inspect_err(|_| segment.set_dirty())?;
        segment.note_use(&departures, seq);
        self.mover.counters.copied_bytes.fetch_add(segment.bytes() as u64, Ordering::Relaxed);
        Ok(seq)
    }

    /// Drop the copy of a segment that has another size now, once copies from and to it are over.
    fn drop_unfitting(&self, segment: &Arc<Segment>) -> Result<()> {
        if segment.host().as_ref().is_none_or(|copy| copy.bytes() == segment.bytes()) {
            return Ok(());
        }
        let (departures, arrivals) = self.mover.streams()?;
        for stream in [departures, arrivals] {
            if let Some(seq) = segment.last_use(&stream) {
                stream.wait_passed(seq, &mut || Ok(()))?;
            }
        }
        *segment.host() = None;
        Ok(())
    }

    /// Host memory for a segment: page-locked while there is any, also if others have to give up copies they keep.
    fn host_memory(&self, segment: &Segment) -> Result<HostCopy> {
        let Some(owner) = self.owner(segment) else {
            return Err(Error::Value("the pool of an array is gone".to_string()));
        };
        let (store, bytes, budget) = (&self.mover.store, segment.bytes(), owner.host_budget());
        let mut ordered = true;
        loop {
            let (taken, scope) = match store.take_pinned(bytes, budget) {
                Ok(Some(copy)) => return Ok(copy),
                Ok(None) if ordered => (None, None),
                Ok(None) => match store.take_pageable(bytes, budget) {
                    Ok(copy) => return Ok(copy),
                    Err(error) => (Some(error), None),
                },
                Err(error) => (Some(error), owner.host_bound()),
            };
            // Page-locked ones only, as long as page-locked memory is what is missing.
            if self.drop_copies(scope, bytes, taken.is_none())? > 0 {
                continue;
            }
            match taken {
                Some(error) => return Err(error),
                None => ordered = false,
            }
        }
    }

    /// Forget copies of segments that are on the device, of a pool and those below it or of all, useless ones first, until
    /// this many bytes are free.
    fn drop_copies(&self, scope: Option<&Pool>, bytes: usize, ordered: bool) -> Result<usize> {
        let pools = self.pools();
        let inside = pools.iter().filter(|pool| scope.is_none_or(|scope| pool.is_within(scope)));
        let segments: Vec<_> = inside.flat_map(|pool| pool.segments()).collect();
        let (departures, arrivals) = self.mover.streams()?;
        let mut freed = 0;
        for useless in [true, false] {
            for segment in segments.iter().filter(|segment| segment.state() == SegmentState::Resident) {
                // Whoever holds the lock is making a copy of it.
                let Some(mut host) = segment.try_host() else { continue };
                let last = |stream: &Arc<Stream>| segment.last_use(stream).map_or(Ok(true), |seq| stream.passed(seq));
                let fits = host.as_ref().is_some_and(|copy| copy.is_ordered() || !ordered);
                if fits && segment.is_dirty() == useless && last(&departures)? && last(&arrivals)? {
                    *host = None;
                    freed += segment.bytes();
                }
                if freed >= bytes {
                    return Ok(freed);
                }
            }
        }
        Ok(freed)
    }

    /// Wait for a segment's copy and take its memory. Returns the bytes that became free: none when somebody came back.
    fn finish(&self, segment: &Arc<Segment>, check: Check<'_>) -> Result<usize> {
        let is_it = |leaving: &Leaving| Arc::ptr_eq(&leaving.segment, segment);
        let Some(seq) = self.mover.leaving.lock().iter().find(|leaving| is_it(leaving)).map(|leaving| leaving.seq)
        else {
            return Ok(0);
        };
        if seq > 0 {
            self.mover.streams()?.0.wait_passed(seq, check)?;
        } else {
            for (stream, seq) in segment.uses().iter() {
                stream.wait_passed(seq, check)?;
            }
        }
        self.mover.leaving.lock().retain(|leaving| !is_it(leaving));
        let Some(owner) = self.owner(segment) else { return Ok(0) };
        let freed = owner.let_go(segment)?;
        if freed > 0 {
            self.mover.counters.evictions.fetch_add(1, Ordering::Relaxed);
            owner.moved.away.fetch_add(1, Ordering::Relaxed);
            self.mover.counters.evicted_bytes.fetch_add(segment.bytes() as u64, Ordering::Relaxed);
        }
        Ok(freed)
    }

    /// Bring an evicted segment back. The caller holds a block of it, is in it, and has his turn.
    fn restore(&self, segment: &Arc<Segment>, check: Check<'_>) -> Result<()> {
        let Some(owner) = self.owner(segment) else {
            return Err(Error::Value("the pool of an evicted array is gone".to_string()));
        };
        while let Err(refusing) = owner.count_again(segment) {
            let bytes = segment.charged();
            if !refusing.could_hold(bytes) || !self.make_room_now(Some(&refusing), bytes, owner.requester(), check)? {
                return Err(refusing.over_quota(segment.bytes()));
            }
        }
        let mapped = self.map_again(segment, owner.requester(), check);
        if mapped.is_err() {
            owner.uncount(segment);
        }
        mapped?;
        self.mover.counters.restores.fetch_add(1, Ordering::Relaxed);
        owner.moved.back.fetch_add(1, Ordering::Relaxed);
        self.mover.counters.restored_bytes.fetch_add(segment.bytes() as u64, Ordering::Relaxed);
        segment.set_resident();
        Ok(())
    }

    fn map_again(&self, segment: &Arc<Segment>, requester: u32, check: Check<'_>) -> Result<()> {
        let (va, bytes) = (segment.va(), segment.bytes());
        let pieces = loop {
            match self.take_pieces(segment.stock(), bytes, true) {
                Err(error) if error.is_out_of_memory() => {
                    self.trim()?;
                    match self.take_pieces(segment.stock(), bytes, true) {
                        Err(error) if error.is_out_of_memory() => {
                            if !self.make_room_now(None, bytes, requester, check)? {
                                return Err(self.explain(error, bytes));
                            }
                        }
                        other => break other?,
                    }
                }
                other => break other?,
            }
        };
        self.map_pieces(va, &pieces).inspect_err(|_| self.put_back(segment.stock(), pieces.clone()))?;
        let loaded = self.copy_in(segment);
        if let Err(error) = loaded {
            self.unmap_pieces(va, &pieces).map(|()| self.put_back(segment.stock(), pieces))?;
            return Err(error);
        }
        *segment.backing() = Backing::Mapped(pieces);
        Ok(())
    }

    fn copy_in(&self, segment: &Arc<Segment>) -> Result<()> {
        let host = segment.host();
        let Some(copy) = host.as_ref() else { return Ok(()) };
        let (_, arrivals) = self.mover.streams()?;
        let mut ferries = self.mover.ferries.lock();
        let carried = ferries.as_mut().map_or(Ok(0), |(_, back)| back.carry(segment.va(), copy, segment.bytes()));
        let seq = carried?;
        segment.note_use(&arrivals, seq);
        segment.set_arrival(seq);
        Ok(())
    }

    pub(crate) fn owner(&self, segment: &Segment) -> Option<Arc<Pool>> {
        self.pool_by_id(segment.owner())
    }

    /// Copies to the host that are still to be waited for before the device goes.
    pub(super) fn forget_leaving(&self) {
        let leaving: SmallVec<[Leaving; 4]> = self.mover.leaving.lock().drain(..).collect();
        if let Some((departures, _)) = &*self.mover.streams.lock() {
            for Leaving { seq, .. } in &leaving {
                // A stream that cannot answer leaves the memory to the driver.
                let _ = departures.wait_passed(*seq, &mut || Ok(()));
            }
        }
    }
}

/// A segment that may be evicted; those with the smallest key go first.
pub(crate) struct Candidate {
    pub key: (u32, bool, u64),
    pub segment: Arc<Segment>,
    pub owner: Arc<Pool>,
}
