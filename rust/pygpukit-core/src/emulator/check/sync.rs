//! What threads learn of each other: barriers, fences, and words that one writes and another reads.

use std::sync::Arc;

use super::clock::{Known, Moment, Published, Time, learn};
use super::{BlockCheck, Checker, WarpCheck};
use crate::emulator::code::{Effect, LANES};
use crate::emulator::copies::Pending;
use crate::emulator::warp::Cx;

/// Keys of publications that are not at a global address: barriers of clusters, and words of their shared memory.
const CLUSTER_KEY: u64 = 0x50 << 56;
const WORD_KEY: u64 = 0x60 << 56;

fn lanes_of(mask: u32) -> impl Iterator<Item = usize> {
    (0..LANES).filter(move |lane| mask >> lane & 1 != 0)
}

impl BlockCheck {
    /// A barrier is complete: `whole` says that all threads of the block that live waited at it.
    pub fn complete(&mut self, id: usize, whole: bool) {
        let gathering = std::mem::take(&mut self.barriers[id]);
        if whole && !gathering.partial {
            self.barrier = self.last;
            learn(&mut self.known, &gathering.known, self.last);
            learn(&mut self.seen, &gathering.seen, self.last);
            learn(&mut self.wide_seen, &gathering.wide_seen, self.last);
            return;
        }
        for (warp, lanes) in gathering.waiting {
            self.inbox.push((warp, lanes, gathering.known.clone()));
        }
    }

    /// Threads at a barrier that wait for all others.
    pub fn waiting(&self, id: usize) -> u32 {
        self.barriers[id].waiting.iter().map(|(_, lanes)| lanes.count_ones()).sum()
    }
}

impl WarpCheck {
    /// What a lane knows at this moment.
    fn moment(&self, block: &BlockCheck, lane: usize, now: Time) -> Moment {
        let mut more = self.lanes[lane].known.clone();
        learn(&mut more, &block.known, now);
        if let Some(pairs) = &self.pairs {
            let mut known = more.as_deref().cloned().unwrap_or_default();
            let thread = self.thread(block);
            for (other, &time) in pairs[lane].iter().enumerate() {
                known.note_thread(thread + other as u32, time);
            }
            more = Some(Arc::new(known));
        }
        Moment { own: now, warp: self.sync, block: block.barrier, more }
    }

    fn thread(&self, block: &BlockCheck) -> u32 {
        block.first + self.id * LANES as u32
    }

    /// Take what barriers of parts of the block have left for this warp.
    fn collect(&mut self, block: &mut BlockCheck, now: Time) {
        if block.inbox.is_empty() {
            return;
        }
        let mut index = 0;
        while index < block.inbox.len() {
            if block.inbox[index].0 != self.id {
                index += 1;
                continue;
            }
            let (_, lanes, known) = block.inbox.remove(index);
            for lane in lanes_of(lanes) {
                learn(&mut self.lanes[lane].known, &known, now);
            }
            self.any = true;
        }
    }
}

impl Cx<'_> {
    fn parts(&mut self) -> Option<(&mut Checker, &mut BlockCheck, &mut WarpCheck)> {
        let (checker, block) = (self.checker.as_deref_mut()?, self.block.check.as_deref_mut()?);
        let warp = self.warp.check.as_deref_mut()?;
        block.keep_up(checker);
        warp.keep_up(checker);
        Some((checker, block, warp))
    }

    /// Lanes of this warp that passed barriers of some threads hear of it.
    pub(crate) fn check_inbox(&mut self) {
        if let Some((checker, block, warp)) = self.parts() {
            warp.collect(block, checker.clock);
        }
    }

    /// Lanes arrive at a barrier of the block, and wait there or not. `counted`: not necessarily all threads do.
    pub(crate) fn check_barrier(&mut self, id: usize, lanes: u32, wait: bool, counted: bool) {
        self.release_stores(lanes);
        let live = self.warp.live;
        let Some((checker, block, warp)) = self.parts() else { return };
        let now = checker.clock;
        warp.collect(block, now);
        let mut known = std::mem::take(&mut block.barriers[id].known);
        if counted {
            // Others learn what these lanes did until now, and what they know of their block.
            let first = warp.thread(block);
            let mut mine = Known::default();
            if lanes == live {
                mine.note_warp(first, now);
            } else {
                lanes_of(lanes).for_each(|lane| mine.note_thread(first + lane as u32, now));
            }
            learn(&mut known, &Some(Arc::new(mine)), now);
        }
        if warp.any {
            let gathering = &mut block.barriers[id];
            for lane in lanes_of(lanes) {
                learn(&mut known, &warp.lanes[lane].known, now);
                learn(&mut gathering.seen, &warp.lanes[lane].seen, now);
                learn(&mut gathering.wide_seen, &warp.lanes[lane].wide_seen, now);
            }
        }
        if counted {
            learn(&mut known, &block.known, now);
        }
        let gathering = &mut block.barriers[id];
        gathering.known = known;
        gathering.partial |= !wait;
        if wait {
            gathering.waiting.push((warp.id, lanes));
        }
    }

    /// Lanes arrive at the cluster's barrier in a phase (a release), or have waited for the end of it (an acquire).
    pub(crate) fn check_cluster(&mut self, lanes: u32, phase: u32, acquire: bool) {
        if !acquire {
            self.release_stores(lanes);
        }
        let live = self.warp.live;
        let first = self.block.cluster.peers.first().map_or(self.block.number, |peer| peer.number);
        let key = CLUSTER_KEY | first << 1 | u64::from(phase & 1);
        let Some((checker, block, warp)) = self.parts() else { return };
        let (now, numbers) = (checker.clock, checker.numbers);
        warp.collect(block, now);
        warp.any = true;
        let word = checker.published.entry(key).or_default();
        if acquire {
            let known = word.wide.clone();
            lanes_of(lanes).for_each(|lane| learn(&mut warp.lanes[lane].known, &known, now));
            return;
        }
        let thread = warp.thread(block);
        let sync = if lanes == live { now } else { warp.sync };
        for lane in lanes_of(lanes) {
            if lane as u32 == lanes.trailing_zeros() || lanes != live || warp.lanes[lane].known.is_some() {
                let more = warp.lanes[lane].known.as_deref();
                let known = Known::of(thread + lane as u32, numbers, now, sync, block.barrier, more);
                learn(&mut word.wide, &Some(Arc::new(known)), now);
            }
        }
        learn(&mut word.wide, &block.known, now);
    }

    /// `bar.warp.sync`: these lanes have met, and memory is ordered between them.
    pub(crate) fn check_warp_barrier(&mut self, lanes: u32) {
        self.release_stores(lanes);
        let live = self.warp.live;
        let Some((checker, block, warp)) = self.parts() else { return };
        let now = checker.clock;
        warp.collect(block, now);
        if warp.any {
            let mut known = None;
            lanes_of(lanes).for_each(|lane| learn(&mut known, &warp.lanes[lane].known, now));
            lanes_of(lanes).for_each(|lane| warp.lanes[lane].known = known.clone());
        }
        if lanes & live == live {
            warp.sync = now;
            warp.pairs = None;
            return;
        }
        let pairs = warp.pairs.get_or_insert_with(|| Box::new([[0; LANES]; LANES]));
        let mut row = [0; LANES];
        for lane in lanes_of(lanes) {
            (0..LANES).for_each(|other| row[other] = row[other].max(pairs[lane][other]));
        }
        lanes_of(lanes).for_each(|lane| row[lane] = now);
        lanes_of(lanes).for_each(|lane| pairs[lane] = row);
    }

    /// A fence of these lanes.
    pub(crate) fn check_fence(&mut self, lanes: u32) {
        self.release_stores(lanes);
        let effect = self.grid.code().effects.get(self.pc as usize).copied().unwrap_or_default();
        let Some((checker, block, warp)) = self.parts() else { return };
        let (now, wide) = (checker.clock, !effect.is(Effect::NARROW));
        warp.collect(block, now);
        warp.any = true;
        for lane in lanes_of(lanes) {
            let state = &mut warp.lanes[lane];
            let seen = state.seen.take();
            learn(&mut state.known, &seen, now);
            learn(&mut state.known, &block.seen, now);
            if wide {
                let seen = state.wide_seen.take();
                learn(&mut state.known, &seen, now);
                learn(&mut state.known, &block.wide_seen, now);
            }
            let moment = warp.moment(block, lane, now);
            let state = &mut warp.lanes[lane];
            if wide {
                state.wide_fence = Some(moment.clone());
            }
            state.fence = Some(moment);
        }
    }

    /// Volatile, relaxed and atomic accesses: readers learn what writers published before a fence.
    pub(super) fn exchange(&mut self, a: &[u64; LANES], shared: u32, global: u32, effect: Effect, write: bool) {
        if effect.is(Effect::RELEASE) {
            self.release_stores(shared | global);
        }
        let reads = !write || effect.is(Effect::ATOMIC);
        let keys = self.word_keys(a, shared);
        let Some((checker, block, warp)) = self.parts() else { return };
        let now = checker.clock;
        if !block.inbox.is_empty() {
            warp.collect(block, now);
        }
        for lane in lanes_of(shared | global) {
            let at = keys.map_or(a[lane], |keys| keys[lane]);
            let inside = shared >> lane & 1 != 0 && keys.is_none();
            if reads {
                let words = if inside { &block.published } else { &checker.published };
                if let Some(published) = words.get(&at) {
                    let published = published.clone();
                    warp.read(block, lane, &published, effect, now);
                }
            }
            if write {
                let numbers = checker.numbers;
                let news = warp.publish(block, lane, effect, now, numbers);
                let words = if inside { &mut block.published } else { &mut checker.published };
                if effect.is(Effect::ATOMIC) {
                    let Some((wide, narrow)) = news else { continue };
                    let word = words.entry(at).or_default();
                    learn(&mut word.wide, &wide, now);
                    let own = block.first / numbers.stride;
                    let before = word.narrow.take().filter(|(of, _)| *of == own).map(|(_, known)| known);
                    let mut both = before;
                    learn(&mut both, &narrow, now);
                    word.narrow = both.map(|known| (own, known));
                } else if let Some((wide, narrow)) = news {
                    let own = block.first / numbers.stride;
                    words.insert(at, Published { wide, narrow: narrow.map(|known| (own, known)) });
                } else if !words.is_empty() {
                    words.remove(&at);
                }
            }
        }
    }

    /// As `word_keys`, of one address.
    pub(super) fn word_key(&self, address: u64) -> Option<u64> {
        self.word_keys(&[address; LANES], 1).map(|keys| keys[0])
    }

    /// Where blocks share their memory in a cluster, words of it are known by keys: of these lanes' addresses, and the
    /// addresses of the others as they are.
    fn word_keys(&self, a: &[u64; LANES], shared: u32) -> Option<[u64; LANES]> {
        let peers = &self.block.cluster.peers;
        if peers.is_empty() {
            return None;
        }
        let mut keys = *a;
        for lane in lanes_of(shared) {
            let (rank, offset) = self.place_in_cluster(a[lane])?;
            let number = peers.get(rank as usize)?.number;
            keys[lane] = WORD_KEY | number << 24 | u64::from(offset);
        }
        Some(keys)
    }

    /// An arrival at an mbarrier object (a release), or a wait that succeeded (an acquire).
    pub(crate) fn check_object(&mut self, lane: usize, address: u64, acquire: bool) {
        let mut row = [0; LANES];
        row[lane] = address;
        let keys = self.word_keys(&row, 1 << lane);
        self.release_stores(1 << lane);
        let Some((checker, block, warp)) = self.parts() else { return };
        let (now, numbers) = (checker.clock, checker.numbers);
        warp.collect(block, now);
        if let Some(keys) = keys {
            // Any thread of the cluster may be the other side.
            let effect = Effect(Effect::ACQUIRE | Effect::RELEASE);
            let word = checker.published.entry(keys[lane]).or_default();
            if acquire {
                let published = word.clone();
                warp.read(block, lane, &published, effect, now);
            } else if let Some((wide, _)) = warp.publish(block, lane, effect, now, numbers) {
                learn(&mut word.wide, &wide, now);
            }
            return;
        }
        let effect = Effect(Effect::NARROW | Effect::ACQUIRE | Effect::RELEASE);
        if acquire {
            if let Some(published) = block.published.get(&address).cloned() {
                warp.read(block, lane, &published, effect, now);
            }
        } else if let Some((_, narrow)) = warp.publish(block, lane, effect, now, numbers) {
            let own = block.first / numbers.stride;
            let word = block.published.entry(address).or_default();
            let mut both = word.narrow.take().map(|(_, known)| known);
            learn(&mut both, &narrow, now);
            word.narrow = both.map(|known| (own, known));
        }
    }
}

impl Cx<'_> {
    /// Asynchronous copies of a warp are complete; the thread that issued them arrives at an object, where one is named.
    pub(crate) fn check_copied(&mut self, warp: u32, copies: &[Pending], object: Option<(u8, u64)>) {
        let (Some(checker), Some(block)) = (self.checker.as_deref_mut(), self.block.check.as_deref_mut()) else {
            return;
        };
        if copies.is_empty() && object.is_none() {
            return;
        }
        let now = checker.tick();
        block.keep_up(checker);
        block.last = now;
        let first = block.first + warp * LANES as u32;
        for copy in copies {
            let (at, bytes) = (u64::from(copy.target), u32::from(copy.bytes));
            let words = (at / 4) as usize..(at / 4) as usize + bytes.div_ceil(4) as usize;
            for cell in block.cells.get_mut(words).into_iter().flatten() {
                block.parts.complete(cell, first + u32::from(copy.lane), now);
            }
            block.defined.set(at, bytes);
        }
        if let Some((lane, address)) = object {
            let mut known = Known::default();
            known.note_thread(first + u32::from(lane), now);
            let own = block.first / checker.numbers.stride;
            let word = block.published.entry(address).or_default();
            let mut both = word.narrow.take().map(|(_, known)| known);
            learn(&mut both, &Some(Arc::new(known)), now);
            word.narrow = both.map(|known| (own, known));
        }
    }
}

/// What a write publishes: to all, and to the threads of its block.
type News = (super::Shares, super::Shares);

impl WarpCheck {
    fn read(&mut self, block: &BlockCheck, lane: usize, published: &Published, effect: Effect, now: Time) {
        self.any = true;
        let stride = self.stride;
        let state = &mut self.lanes[lane];
        let acquire = effect.is(Effect::ACQUIRE);
        if let Some((of, known)) = &published.narrow
            && *of == block.first / stride
        {
            let into = if acquire { &mut state.known } else { &mut state.seen };
            learn(into, &Some(known.clone()), now);
        }
        if !effect.is(Effect::NARROW) {
            let into = if acquire { &mut state.known } else { &mut state.wide_seen };
            learn(into, &published.wide, now);
        }
    }

    fn publish(
        &mut self,
        block: &BlockCheck,
        lane: usize,
        effect: Effect,
        now: Time,
        numbers: super::Numbers,
    ) -> Option<News> {
        let thread = self.thread(block) + lane as u32;
        let wide_scope = !effect.is(Effect::NARROW);
        if effect.is(Effect::RELEASE) {
            let known = Some(self.moment(block, lane, now).known(thread, numbers));
            return Some((if wide_scope { known.clone() } else { None }, known));
        }
        let state = &self.lanes[lane];
        let narrow = state.fence.as_ref()?.known(thread, numbers);
        let wide = state.wide_fence.as_ref().filter(|_| wide_scope).map(|moment| moment.known(thread, numbers));
        Some((wide, Some(narrow)))
    }
}
