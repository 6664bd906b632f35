//! A block: its warps, shared memory and barriers.

use super::check::{BlockCheck, Checker, WarpCheck};
use super::cluster::ClusterState;
use super::code::LANES;
use super::copies::Tracked;
use super::counters::Counters;
use super::fault::{Fault, FaultKind};
use super::grid::Grid;
use super::warp::{Cx, Outcome, Wait, Warp};
use crate::random::Random;

/// Instructions a warp runs before the next warp of the block has its turn.
const WARP_SLICE: u32 = 8192;

pub(crate) const BARRIERS: usize = 16;

/// A named barrier.
#[derive(Clone, Debug, Default)]
pub(crate) struct Barrier {
    pub phase: u32,
    /// Threads that have arrived in this phase, and that must.
    pub arrived: u32,
    pub expected: u32,
    /// What `bar.red` has gathered: threads whose predicate holds, whether it holds for all, and who reads the result.
    pub count: u32,
    pub all: bool,
    pub readers: u32,
    /// Results that have not been read by all yet.
    results: Vec<Reduction>,
}

#[derive(Clone, Copy, Debug)]
struct Reduction {
    phase: u32,
    readers: u32,
    count: u32,
    all: bool,
}

/// What the warps of a block share.
pub(crate) struct Shared {
    pub index: [u32; 3],
    /// Linear number in the grid.
    pub number: u64,
    /// Number in its cluster.
    pub rank: u32,
    pub memory: SharedMemory,
    pub barriers: [Barrier; BARRIERS],
    /// Copies that mbarrier objects wait for.
    pub tracked: Vec<Tracked>,
    /// Threads that have not exited.
    pub live: u32,
    /// Filled where the launch is counted.
    pub counters: Option<Box<Counters>>,
    /// Filled where the launch is checked.
    pub check: Option<Box<BlockCheck>>,
    /// Random choices instead of the fixed order, when schedules are fuzzed.
    pub order: Option<Random>,
    /// What the blocks of the cluster share, while this one runs.
    pub cluster: ClusterState,
}

#[repr(C, align(128))]
#[derive(Clone, Copy)]
struct Line([u8; 128]);

/// Shared memory, aligned as CUDA aligns it at most.
pub(crate) struct SharedMemory {
    lines: Vec<Line>,
    pub bytes: usize,
}

impl SharedMemory {
    fn new(bytes: usize) -> SharedMemory {
        SharedMemory { lines: vec![Line([0xcd; 128]); bytes.div_ceil(128)], bytes }
    }

    #[inline]
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.lines.as_mut_ptr().cast()
    }
}

impl Shared {
    /// Complete a barrier when all have arrived.
    pub fn settle(&mut self, id: usize) {
        let barrier = &mut self.barriers[id];
        let expected = if barrier.expected == 0 { self.live } else { barrier.expected };
        if barrier.arrived > 0 && barrier.arrived >= expected {
            if barrier.readers > 0 {
                let Barrier { phase, readers, count, all, .. } = *barrier;
                barrier.results.push(Reduction { phase, readers, count, all });
            }
            if let Some(check) = &mut self.check {
                let whole = barrier.expected == 0 || check.waiting(id) >= self.live;
                check.complete(id, whole);
            }
            barrier.phase = barrier.phase.wrapping_add(1);
            (barrier.arrived, barrier.expected, barrier.count, barrier.readers) = (0, 0, 0, 0);
            barrier.all = true;
        }
    }

    /// What a reduction of this phase gathered, read by one of its threads.
    pub fn take_result(&mut self, id: usize, phase: u32) -> (u32, bool) {
        let results = &mut self.barriers[id % BARRIERS].results;
        let Some(index) = results.iter().position(|result| result.phase == phase) else { return (0, true) };
        let Reduction { readers, count, all, .. } = results[index];
        if readers > 1 {
            results[index].readers -= 1;
        } else {
            results.swap_remove(index);
        }
        (count, all)
    }

    /// Tell the checker what other blocks of the cluster wrote here.
    fn note_written(&mut self) {
        let rank = self.rank;
        if let Some(check) = &mut self.check {
            self.cluster.written.retain(|&(of, offset, bytes)| {
                if of == rank {
                    check.overwrite(offset, bytes);
                }
                of != rank
            });
        }
    }

    /// Threads have exited: those that are left may now be all that a barrier waits for.
    pub fn leave(&mut self, threads: u32) {
        self.live -= threads;
        self.cluster.live -= threads;
        self.cluster.settle();
        for id in 0..BARRIERS {
            if self.barriers[id].expected == 0 {
                self.settle(id);
            }
        }
    }
}

pub(crate) enum BlockOutcome {
    Done,
    /// It ran for its share and has not ended.
    Slice,
    /// Its warps wait for other blocks of the cluster.
    Waits,
    Fault(Box<Fault>),
}

pub(crate) struct Block {
    pub shared: Shared,
    warps: Vec<Warp>,
    next: usize,
    /// It has not run since it was started.
    fresh: bool,
}

impl Block {
    pub fn new(grid: &Grid, number: u64, rank: u32) -> Block {
        let count = (grid.threads() as usize).div_ceil(LANES);
        let shared = Shared {
            index: [0; 3],
            number,
            rank,
            memory: SharedMemory::new(grid.shared_bytes()),
            barriers: Default::default(),
            tracked: Vec::new(),
            live: 0,
            counters: None,
            check: None,
            order: None,
            cluster: ClusterState::default(),
        };
        let mut block =
            Block { shared, warps: (0..count).map(|id| Warp::new(grid, id as u32)).collect(), next: 0, fresh: true };
        block.restart(grid, number);
        block
    }

    /// Make it the block of this number, at its start.
    pub fn restart(&mut self, grid: &Grid, number: u64) {
        self.shared.number = number;
        self.shared.index = grid.block_index(number);
        self.shared.barriers = std::array::from_fn(|_| Barrier { all: true, ..Barrier::default() });
        self.shared.tracked.clear();
        self.shared.live = grid.threads();
        self.shared.order = grid.order(number);
        self.shared.counters = grid.options.count.then(|| {
            let (warps, threads) = (self.warps.len() as u64, u64::from(grid.threads()));
            Box::new(Counters { blocks: 1, warps, threads, ..Counters::default() })
        });
        for warp in &mut self.warps {
            warp.restart(grid, self.shared.index);
        }
        self.next = 0;
        self.fresh = true;
    }

    /// Tell the checker that the block begins, once.
    fn begin_checks(&mut self, grid: &Grid, checker: &Checker) {
        if !std::mem::take(&mut self.fresh) {
            return;
        }
        let check = self.shared.check.get_or_insert_with(|| Box::new(BlockCheck::new()));
        check.restart(checker, self.shared.number, grid.shared_bytes());
        for warp in &mut self.warps {
            let id = warp.id;
            warp.check.get_or_insert_with(|| Box::new(WarpCheck::new(id, checker))).restart(checker);
            warp.stores = grid.options.fuzz.map(|_| Box::default());
        }
    }

    /// Run for about `budget` instructions. How it ended, and how many instructions ran.
    pub fn run(&mut self, grid: &Grid, budget: u64, mut checker: Option<&mut Checker>) -> (BlockOutcome, u64) {
        if let Some(checker) = checker.as_deref_mut() {
            self.begin_checks(grid, checker);
            self.shared.note_written();
        }
        let mut total = 0;
        loop {
            let (mut alive, mut ran) = (false, false);
            let (mut yielded, mut worked) = (false, false);
            for step in 0..self.warps.len() {
                let index = match &mut self.shared.order {
                    Some(order) => order.below(self.warps.len()),
                    None => (self.next + step) % self.warps.len(),
                };
                let warp = &mut self.warps[index];
                if warp.is_done() {
                    continue;
                }
                let slice = self.shared.order.as_mut().map_or(WARP_SLICE, |order| 1 + order.below(64) as u32);
                let mut cx = Cx::new(warp, &mut self.shared, grid, checker.as_deref_mut());
                let (outcome, count) = cx.run(slice);
                total += u64::from(count);
                ran |= count > 0;
                match outcome {
                    Outcome::Fault => {
                        let fault = cx.fault.take();
                        return match fault {
                            Some(fault) => (BlockOutcome::Fault(fault), total),
                            None => (BlockOutcome::Done, total),
                        };
                    }
                    Outcome::Done => worked = true,
                    Outcome::Blocked => {
                        alive = true;
                        worked |= count > 0;
                    }
                    Outcome::Slice => {
                        alive = true;
                        let early = count < slice;
                        yielded |= early;
                        worked |= !early;
                    }
                }
            }
            if self.warps.iter().all(Warp::is_done) {
                return (BlockOutcome::Done, total);
            }
            if alive && !ran && self.shared.order.is_none() || (!ran && self.all_blocked(grid, checker.as_deref_mut()))
            {
                let outside = |warp: &Warp| warp.groups.iter().any(|g| matches!(g.wait, Wait::Cluster { .. }));
                return match self.warps.iter().any(outside) {
                    true => (BlockOutcome::Waits, total),
                    false => (BlockOutcome::Fault(self.deadlock(grid)), total),
                };
            }
            // Warps that all wait for something outside should not keep others from running.
            if total >= budget || (yielded && !worked) {
                return (BlockOutcome::Slice, total);
            }
        }
    }

    /// Where a thread that has not ended is, for reports.
    pub fn somewhere(&self) -> (u32, u32) {
        let groups = self.warps.iter().flat_map(|warp| warp.groups.iter().map(move |group| (warp, group)));
        groups
            .map(|(warp, g)| (g.pc, warp.id * LANES as u32 + g.mask.trailing_zeros().min(31)))
            .next()
            .unwrap_or((0, 0))
    }

    /// Does no warp have anything to do?
    fn all_blocked(&mut self, grid: &Grid, mut checker: Option<&mut Checker>) -> bool {
        let shared = &mut self.shared;
        (self.warps.iter_mut().filter(|w| !w.is_done()))
            .all(|warp| Cx::new(warp, shared, grid, checker.as_deref_mut()).is_blocked())
    }

    pub fn deadlock(&self, grid: &Grid) -> Box<Fault> {
        let groups = self.warps.iter().flat_map(|warp| warp.groups.iter().map(move |group| (warp, group)));
        if let Some((warp, group)) = groups.into_iter().find(|(_, g)| matches!(g.wait, Wait::Aligned(_))) {
            let kind = FaultKind::DivergentBarrier { here: group.mask, live: warp.live };
            let thread = warp.id * LANES as u32 + group.mask.trailing_zeros().min(31);
            return Box::new(Fault { kind, pc: group.pc, thread, block: self.shared.index, notes: Vec::new() });
        }
        let mut lines = Vec::new();
        let mut at = (0, 0);
        for warp in &self.warps {
            for group in &warp.groups {
                let what = match group.wait {
                    Wait::Ready => "is ready".to_string(),
                    Wait::Barrier { id, .. } => {
                        let barrier = &self.shared.barriers[id as usize];
                        let expected = if barrier.expected == 0 { self.shared.live } else { barrier.expected };
                        format!("waits at barrier {id}, where {} of {expected} threads have arrived", barrier.arrived)
                    }
                    Wait::Cluster { .. } => "waits at the barrier of the cluster".to_string(),
                    Wait::Lanes(need) | Wait::WarpBarrier(need) | Wait::Aligned(need) => {
                        format!("waits for lanes {:#010x} of its warp", need & warp.live & !group.mask)
                    }
                };
                let place = grid.code().place(group.pc);
                let file = grid.code().file_name(place.file);
                let line = if place.line > 0 { format!(" ({file}:{})", place.line) } else { String::new() };
                if lines.is_empty() {
                    at = (group.pc, warp.id * LANES as u32 + group.mask.trailing_zeros().min(31));
                }
                if lines.len() < 8 {
                    lines.push(format!("  warp {} lanes {:#010x} {what}{line}", warp.id, group.mask));
                }
            }
        }
        let kind = FaultKind::Deadlock { warps: lines };
        Box::new(Fault { kind, pc: at.0, thread: at.1, block: self.shared.index, notes: Vec::new() })
    }
}
