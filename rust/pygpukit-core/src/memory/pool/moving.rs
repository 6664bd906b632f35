//! A pool's part in eviction: what may leave, what cannot and why, and the count of what went and came back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Pool;
use crate::error::Result;
use crate::memory::evict::Candidate;
use crate::memory::segment::{Backing, Segment, SegmentState};

impl Pool {
    /// Do its arrays move to the host when memory is short?
    #[inline]
    pub fn is_evicting(&self) -> bool {
        self.evicting && !self.is_fixed()
    }

    /// A graph's memory is as movable as that of the pool it was captured in.
    fn is_fixed(&self) -> bool {
        match &self.parent {
            Some(parent) if self.private => parent.is_fixed(),
            _ => self.fixed.load(Ordering::Relaxed),
        }
    }

    /// From now on its arrays may move.
    pub fn loosen(&self) {
        self.fixed.store(false, Ordering::Relaxed);
    }

    /// Who asks when it is short of memory. A graph asks for the pool it was captured in, whose reserve is no bar to it.
    pub(crate) fn requester(&self) -> u32 {
        match &self.parent {
            Some(parent) if self.private => parent.requester(),
            _ => self.id,
        }
    }

    /// Segments of this pool that may be evicted, into the list; returns the bytes that are on their way out already.
    pub(crate) fn note_candidates(self: &Arc<Self>, requester: u32, into: &mut Vec<Candidate>) -> usize {
        let own = self.requester() == requester;
        let cache = self.cache.lock();
        let live = |segment: &&Arc<Segment>| segment.is_evictable() && segment.live() > 0;
        let rank = self.rank.load(Ordering::Relaxed);
        let mut leaving = 0;
        for segment in cache.segments().iter().filter(live) {
            match segment.state() {
                SegmentState::Leaving => leaving += segment.bytes(),
                SegmentState::Resident if !segment.is_pinned() => {
                    let key = (rank, own, segment.touched());
                    into.push(Candidate { key, segment: segment.clone(), owner: self.clone() });
                }
                SegmentState::Resident | SegmentState::Evicted => {}
            }
        }
        leaving
    }

    /// Bytes on the device that are not on their way out.
    pub(crate) fn staying(&self) -> usize {
        let cache = self.cache.lock();
        let stays = |segment: &&Arc<Segment>| segment.live() > 0 && segment.state() == SegmentState::Resident;
        cache.segments().iter().filter(stays).map(|segment| segment.bytes()).sum()
    }

    /// Bytes of this pool that eviction could not take, for itself or for those outside, by reason. Reserves leave
    /// `spare` of it to others.
    pub(crate) fn note_stuck(&self, outside: bool, spare: usize, into: &mut BTreeMap<&'static str, usize>) {
        let cache = self.cache.lock();
        for segment in cache.segments().iter().filter(|segment| segment.live() > 0 && segment.is_counted()) {
            let why = match () {
                () if !segment.is_evictable() || self.is_fixed() => "in pools that do not evict",
                () if segment.is_exported() => "exported, because their address was read",
                () if segment.is_pinned() => "pinned",
                () if spare < segment.bytes() => "reserved by their pool",
                () if outside && segment.stock().is_some_and(|stock| stock.above_guarantee() < segment.bytes()) => {
                    "guaranteed to their pool"
                }
                () => continue,
            };
            // As they are handed out: a slab may be larger than its blocks, and no quota counts that.
            *into.entry(why).or_default() += segment.live() as usize * segment.block_bytes();
        }
    }

    /// Take the memory of a segment whose copy is on the host. Returns the bytes that are charged no longer: none when
    /// somebody has come back to it.
    pub(crate) fn let_go(&self, segment: &Arc<Segment>) -> Result<usize> {
        let mut cache = self.cache.lock();
        if segment.state() != SegmentState::Leaving {
            return Ok(0);
        }
        if segment.live() == 0 || !segment.end_leaving() {
            segment.set_resident();
            return Ok(0);
        }
        {
            let mut backing = segment.backing();
            if let Backing::Mapped(pieces) = &*backing {
                // What the driver refuses to take stays where it is, with its content.
                self.arena.unmap_pieces(segment.va(), pieces).inspect_err(|_| segment.set_resident())?;
                self.arena.put_back(segment.stock(), pieces.clone());
            }
            *backing = Backing::Nothing;
        }
        cache.count(segment, false);
        self.arena.count_moved(segment.bytes(), false);
        let charged = segment.charged();
        self.uncharge(charged);
        self.arena.journal.evicted(self, segment);
        Ok(charged)
    }

    /// Charge an evicted segment's blocks again, or name the pool whose quota has no room.
    pub(crate) fn count_again(self: &Arc<Self>, segment: &Segment) -> std::result::Result<(), Arc<Pool>> {
        let mut cache = self.cache.lock();
        if let Err(refusing) = self.charge_for(segment.charged(), true) {
            let mut found = self;
            while found.id != refusing.id
                && let Some(parent) = &found.parent
            {
                found = parent;
            }
            return Err(found.clone());
        }
        cache.count(segment, true);
        self.arena.count_moved(segment.bytes(), true);
        self.arena.journal.restored(self, segment);
        Ok(())
    }

    /// An evicted segment could not come back.
    pub(crate) fn uncount(&self, segment: &Segment) {
        let mut cache = self.cache.lock();
        cache.count(segment, false);
        self.arena.count_moved(segment.bytes(), false);
        self.uncharge(segment.charged());
        self.arena.journal.evicted(self, segment);
    }

    /// Write into the journal what the pool holds.
    pub(crate) fn note_held(&self) {
        let cache = self.cache.lock();
        let here = self.account.own().saturating_sub(self.pending.load(Ordering::Relaxed));
        let on_host = cache.segments().iter().filter(|segment| !segment.is_counted()).map(|segment| segment.charged());
        self.arena.journal.held(self, here, on_host.sum());
    }
}
