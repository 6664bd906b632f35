//! A warp: 32 lanes, each with a place of its own in the code.
//!
//! Lanes at the same place in the same frame form a group and run together. The group deepest in calls, and among
//! those the one with the least place, runs first, so that lanes that parted meet again where their paths join. A group
//! that jumps back again and again while others wait gives way, so that lanes may wait for each other.

use smallvec::SmallVec;

use super::block::Shared;
use super::check::{Checker, Stores, WarpCheck};
use super::code::*;
use super::exec::memory::Kind;
use super::exec::wgmma::Products;
use super::fault::{Fault, FaultKind};
use super::frames::{Base, Frames};
use super::grid::Grid;

/// Jumps back before a group gives way to others of its warp.
const PATIENCE: u32 = 48;

/// Why a group does not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    Ready,
    /// Until these lanes are at the same instruction, or gone.
    Lanes(u32),
    /// Until these lanes are at a warp barrier of the same mask, or gone.
    WarpBarrier(u32),
    /// As `Lanes`, for an instruction that all lanes of the warp must reach together.
    Aligned(u32),
    /// Until a barrier of the block leaves this phase.
    Barrier {
        id: u8,
        phase: u32,
    },
    /// Until the cluster's barrier leaves this phase.
    Cluster {
        phase: u32,
    },
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    pub mask: u32,
    pub pc: u32,
    pub base: Base,
    pub wait: Wait,
    /// When it last ran.
    pub stamp: u64,
}

#[repr(C, align(128))]
#[derive(Clone, Copy)]
pub(crate) struct Line(pub [u64; 16]);

/// What a warp owns.
pub(crate) struct Warp {
    /// Number in its block.
    pub id: u32,
    pub registers: Vec<Line>,
    /// Frames in use, other than the kernel's.
    pub frames: Frames,
    /// Local memory, lane after lane.
    pub local: Vec<u8>,
    /// Bytes of it per lane.
    pub local_bytes: usize,
    /// Lanes that have not exited.
    pub live: u32,
    pub groups: SmallVec<[Group; 4]>,
    clock: u64,
    /// Jumps back that are left before a group gives way, and whether one does so now.
    patience: u32,
    rotate: bool,
    /// The rows of the kernel's frame that do not change have their values.
    filled: bool,
    /// State of asynchronous copies that are not complete yet.
    pub copies: super::copies::Copies,
    /// Lanes that have arrived at the cluster's barrier and not waited, and the phases they did so in.
    pub at_cluster: u32,
    pub cluster_phases: [u32; LANES],
    /// Matrix products that are not waited for.
    pub products: Products,
    /// Filled where the launch is checked.
    pub check: Option<Box<WarpCheck>>,
    /// Stores that others do not see yet, where schedules are fuzzed.
    pub stores: Option<Box<Stores>>,
}

impl Warp {
    /// A warp at the start of a kernel. `lanes` of it are threads of the block.
    pub fn new(grid: &Grid, id: u32) -> Warp {
        let function = grid.entry();
        let lines = (function.frame as usize).div_ceil(128).max(1);
        let local_bytes = (function.local as usize).next_multiple_of(16);
        Warp {
            id,
            registers: vec![Line([0; 16]); lines],
            frames: Frames::default(),
            local: vec![0; local_bytes * LANES],
            local_bytes,
            live: 0,
            groups: SmallVec::new(),
            clock: 0,
            patience: PATIENCE,
            rotate: false,
            filled: false,
            copies: Default::default(),
            at_cluster: 0,
            cluster_phases: [0; LANES],
            products: Products::default(),
            check: None,
            stores: None,
        }
    }

    /// Put it at the start of the kernel for a block; registers keep what they had.
    pub fn restart(&mut self, grid: &Grid, block: [u32; 3]) {
        let threads = grid.threads();
        let first = self.id * LANES as u32;
        let lanes = threads.saturating_sub(first).min(LANES as u32);
        self.live = if lanes == 32 { FULL } else { (1 << lanes) - 1 };
        self.groups.clear();
        self.frames.clear();
        self.groups.push(Group { mask: self.live, pc: grid.entry().start, base: Base(0), wait: Wait::Ready, stamp: 0 });
        self.copies = Default::default();
        self.at_cluster = 0;
        self.products = Products::default();
        (self.patience, self.rotate) = (PATIENCE, false);
        // SAFETY: the register file holds the entry's frame, and `fills` lie in it.
        unsafe {
            let frame = self.registers.as_mut_ptr().cast::<u8>();
            // A kernel's own frame is never another one's, so after the first block only what depends on the block changes.
            let all = !std::mem::replace(&mut self.filled, true);
            let fills = grid.entry().fills.iter().filter(|fill| all || fill.varies());
            fill_frame(frame, fills, FULL, grid, self.id, block);
            frame.add(LOCAL_BASE_ROW as usize).cast::<[u32; LANES]>().write([0; LANES]);
        }
    }

    pub fn is_done(&self) -> bool {
        self.live == 0
    }
}

/// Give the rows of a new frame their values, for the lanes of a mask.
///
/// # Safety
/// `frame` must be valid for the offsets of `fills` and their rows.
pub(crate) unsafe fn fill_frame<'f>(
    frame: *mut u8,
    fills: impl Iterator<Item = &'f Fill>,
    mask: u32,
    grid: &Grid,
    warp: u32,
    block: [u32; 3],
) {
    unsafe fn row<T: Copy>(frame: *mut u8, offset: u32, mask: u32, values: impl Fn(usize) -> T) {
        // SAFETY: the caller's contract.
        let row = unsafe { &mut *frame.add(offset as usize).cast::<[T; LANES]>() };
        for (lane, slot) in row.iter_mut().enumerate() {
            if mask >> lane & 1 != 0 {
                *slot = values(lane);
            }
        }
    }
    // SAFETY: the caller's contract; the first word of every frame is the constant predicate.
    unsafe { frame.cast::<u32>().write(FULL) };
    for fill in fills {
        // SAFETY: the caller's contract.
        unsafe {
            match *fill {
                Fill::Half(offset, value) => row(frame, offset, mask, |_| value),
                Fill::Word(offset, value) => row(frame, offset, mask, |_| value),
                Fill::Double(offset, value) => row(frame, offset, mask, |_| value),
                Fill::Special(offset, special) => {
                    row(frame, offset, mask, |lane| grid.special(special, warp, lane, block))
                }
            }
        }
    }
}

/// How a turn of a warp ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    /// Every group waits for something outside the warp.
    Blocked,
    /// Its share of instructions is used up.
    Slice,
    Fault,
}

/// A warp at work: what handlers see.
pub(crate) struct Cx<'a> {
    /// Registers of the function that runs.
    pub frame: *mut u8,
    pub warp: &'a mut Warp,
    pub block: &'a mut Shared,
    pub grid: &'a Grid,
    /// The instruction that runs; a handler that jumps sets the next one.
    pub pc: u32,
    /// Lanes of the group that runs.
    pub active: u32,
    pub base: Base,
    /// Where another group of this frame waits to be joined.
    limit: u32,
    pub wait: Wait,
    pub fault: Option<Box<Fault>>,
    /// A memory range known to be valid, tried before the table.
    pub known: [(u64, u64); 4],
    pub next_known: usize,
    /// Accesses are counted or checked: see `observe`.
    pub watched: bool,
    /// There while the launch is checked.
    pub checker: Option<&'a mut Checker>,
}

impl<'a> Cx<'a> {
    pub fn new(warp: &'a mut Warp, block: &'a mut Shared, grid: &'a Grid, checker: Option<&'a mut Checker>) -> Cx<'a> {
        let frame = warp.registers.as_mut_ptr().cast();
        Cx {
            frame,
            warp,
            block,
            grid,
            pc: 0,
            active: 0,
            base: Base(0),
            limit: u32::MAX,
            wait: Wait::Ready,
            fault: None,
            known: [(1, 0); 4],
            next_known: 0,
            watched: false,
            checker,
        }
        .watching()
    }

    fn watching(mut self) -> Self {
        self.watched = self.block.counters.is_some() || self.checker.is_some();
        self
    }

    /// See an access of the current instruction before it happens.
    #[cold]
    pub fn observe(&mut self, kind: Kind, a: &[u64; LANES], mask: u32, bytes: u32, write: bool) -> Result<(), Flow> {
        if let Some(counters) = &mut self.block.counters {
            counters.access(kind, a, mask, bytes, write);
        }
        if self.checker.is_some() {
            return self.check_access(kind, a, mask, bytes, write);
        }
        Ok(())
    }

    /// Run for about `budget` instructions; how it ended, and how many ran.
    pub fn run(&mut self, budget: u32) -> (Outcome, u32) {
        let mut count = 0;
        let outcome = loop {
            if self.warp.live == 0 {
                break Outcome::Done;
            }
            if !self.select() {
                break if self.fault.is_some() { Outcome::Fault } else { Outcome::Blocked };
            }
            let ended = if self.watched {
                self.run_group::<true>(budget, &mut count)
            } else {
                self.run_group::<false>(budget, &mut count)
            };
            if let Some(outcome) = ended {
                break outcome;
            }
        };
        (outcome, count)
    }

    /// Run the selected group until it ends, waits, or should give way; Some ends the warp's turn.
    fn run_group<const WATCHED: bool>(&mut self, budget: u32, count: &mut u32) -> Option<Outcome> {
        let code = self.grid.code().instrs.as_ptr();
        let mut pc = self.pc;
        loop {
            // SAFETY: `lower` ends every function with a return and checks all targets, so `pc` is in the code, and the
            // guard's offset is in the frame.
            let (instr, mask) = unsafe {
                let instr = &*code.add(pc as usize);
                let guard = self.frame.add(instr.guard as usize).cast::<u32>().read();
                (instr, self.active & (guard ^ instr.flip))
            };
            *count += 1;
            if WATCHED {
                self.count(pc, mask);
            }
            if mask == 0 {
                pc += 1;
            } else {
                self.pc = pc;
                // SAFETY: `lower` chose the handler for these operands.
                match unsafe { (instr.run)(self, instr, mask) } {
                    Flow::Next => pc += 1,
                    Flow::Jump => {
                        if self.active == 0 {
                            return None;
                        }
                        if !self.warp.groups.is_empty() {
                            if self.pc <= pc {
                                self.warp.patience = self.warp.patience.saturating_sub(1);
                                self.warp.rotate = self.warp.patience == 0;
                            }
                            self.set_limit();
                        }
                        pc = self.pc;
                        if self.warp.rotate {
                            self.put_back(pc, Wait::Ready);
                            return (*count >= budget).then_some(Outcome::Slice);
                        }
                    }
                    Flow::Wait => {
                        let rest = self.active & !mask;
                        if rest != 0 {
                            // The lanes the guard left out go on.
                            self.warp.groups.push(Group { mask: rest, pc: pc + 1, ..self.group(pc, Wait::Ready) });
                            self.active = mask;
                        }
                        let wait = self.wait;
                        if WATCHED && !matches!(wait, Wait::Barrier { .. } | Wait::WarpBarrier(_)) {
                            self.retract(pc, mask);
                        }
                        self.put_back(pc, wait);
                        return (*count >= budget).then_some(Outcome::Slice);
                    }
                    Flow::Yield => {
                        self.put_back(pc + 1, Wait::Ready);
                        self.warp.rotate = true;
                        return Some(Outcome::Slice);
                    }
                    Flow::Fault => return Some(Outcome::Fault),
                }
            }
            if pc >= self.limit || *count >= budget {
                self.put_back(pc, Wait::Ready);
                return (*count >= budget).then_some(Outcome::Slice);
            }
        }
    }

    fn count(&mut self, pc: u32, mask: u32) {
        let active = self.active;
        if let Some(counters) = &mut self.block.counters {
            let class = self.grid.code().classes[pc as usize];
            counters.issue(class, mask);
            if class == Class::Branch {
                counters.branch(mask != 0 && mask != active);
            }
        }
    }

    /// An instruction did not happen: it counts when it runs again.
    fn retract(&mut self, pc: u32, mask: u32) {
        if let Some(counters) = &mut self.block.counters {
            counters.retract(self.grid.code().classes[pc as usize], mask);
        }
    }

    fn group(&self, pc: u32, wait: Wait) -> Group {
        Group { mask: self.active, pc, base: self.base, wait, stamp: self.warp.clock }
    }

    fn put_back(&mut self, pc: u32, wait: Wait) {
        let group = self.group(pc, wait);
        self.warp.groups.push(group);
        self.active = 0;
    }

    /// The nearest place ahead where a group of the same frame waits.
    fn set_limit(&mut self) {
        let (base, pc) = (self.base, self.pc);
        let deeper = self.warp.groups.iter().any(|g| g.base.is_deeper_than(base) && g.wait == Wait::Ready);
        let ahead = self.warp.groups.iter().filter(|g| g.base == base && g.pc >= pc).map(|g| g.pc).min();
        self.limit = if deeper { 0 } else { ahead.unwrap_or(u32::MAX) };
    }

    /// Join groups that met, and make the one that should run the current one. False when none can.
    fn select(&mut self) -> bool {
        self.wake();
        let rotate = std::mem::take(&mut self.warp.rotate);
        if rotate {
            self.warp.patience = PATIENCE;
        }
        let groups = &mut self.warp.groups;
        let mut i = 0;
        while i < groups.len() {
            let mut j = i + 1;
            while j < groups.len() {
                if groups[j].pc == groups[i].pc
                    && groups[j].base == groups[i].base
                    && joins(groups[i].wait, groups[j].wait)
                {
                    groups[i].mask |= groups[j].mask;
                    groups[i].wait = Wait::Ready;
                    groups[i].stamp = groups[i].stamp.min(groups[j].stamp);
                    groups.swap_remove(j);
                } else {
                    j += 1;
                }
            }
            i += 1;
        }
        let groups = &self.warp.groups;
        let ready = groups.iter().enumerate().filter(|(_, g)| g.wait == Wait::Ready);
        let chosen = if let Some(order) = &mut self.block.order {
            let all: SmallVec<[usize; 8]> = ready.map(|(i, _)| i).collect();
            if all.is_empty() { None } else { Some(all[order.below(all.len())]) }
        } else if rotate {
            ready.min_by_key(|(_, g)| g.stamp).map(|(i, _)| i)
        } else {
            ready.min_by_key(|(_, g)| (std::cmp::Reverse(g.base.depth()), g.pc)).map(|(i, _)| i)
        };
        let Some(index) = chosen else {
            self.stuck();
            return false;
        };
        let group = self.warp.groups.swap_remove(index);
        self.warp.clock += 1;
        self.pc = group.pc;
        self.active = group.mask;
        self.base = group.base;
        self.set_frame();
        self.limit = u32::MAX;
        if !self.warp.groups.is_empty() {
            self.set_limit();
            // It was chosen over a group at the same place only because they cannot join: it may pass.
            if self.limit == self.pc || self.limit == 0 {
                self.limit = u32::MAX;
            }
        }
        true
    }

    /// Is there nothing this warp can do?
    pub fn is_blocked(&mut self) -> bool {
        self.wake();
        self.warp.groups.iter().all(|g| g.wait != Wait::Ready)
    }

    pub fn set_frame(&mut self) {
        // SAFETY: `base` is a frame in the register file.
        self.frame = unsafe { self.warp.registers.as_mut_ptr().cast::<u8>().add(self.base.start() as usize) };
    }

    /// Make groups ready whose wait is over.
    fn wake(&mut self) {
        let live = self.warp.live;
        for i in 0..self.warp.groups.len() {
            let group = self.warp.groups[i];
            let over = match group.wait {
                Wait::Ready => false,
                Wait::Lanes(mask) | Wait::Aligned(mask) => mask & live & !group.mask == 0,
                Wait::WarpBarrier(mask) => {
                    let waiting = self.warp.groups.iter().filter(|g| g.wait == group.wait);
                    mask & live & !waiting.fold(0, |all, g| all | g.mask) == 0
                }
                Wait::Barrier { id, phase } => self.block.barriers[id as usize].phase != phase,
                Wait::Cluster { phase } => self.block.cluster.phase != phase,
            };
            if !over {
                continue;
            }
            // Lanes at a barrier have done what it asks of them, so they go on behind it.
            match group.wait {
                Wait::WarpBarrier(_) => {
                    if self.watched {
                        let same = self.warp.groups.iter().filter(|g| g.wait == group.wait);
                        let lanes = same.fold(0, |all, g| all | g.mask);
                        self.check_warp_barrier(lanes);
                    }
                    for g in self.warp.groups.iter_mut().filter(|g| g.wait == group.wait) {
                        (g.wait, g.pc) = (Wait::Ready, g.pc + 1);
                    }
                }
                Wait::Barrier { .. } => {
                    if self.watched {
                        self.check_inbox();
                    }
                    let g = &mut self.warp.groups[i];
                    (g.wait, g.pc) = (Wait::Ready, g.pc + 1);
                }
                _ => self.warp.groups[i].wait = Wait::Ready,
            }
        }
    }

    /// No group is ready: an error unless one of them waits for something outside the warp.
    fn stuck(&mut self) {
        let outside = |g: &Group| matches!(g.wait, Wait::Barrier { .. } | Wait::Cluster { .. });
        let Some(group) = self.warp.groups.iter().find(|g| !outside(g)).copied() else { return };
        if self.warp.groups.iter().any(outside) {
            return;
        }
        self.pc = group.pc;
        let (mask, live) = (group.mask, self.warp.live);
        let kind = match group.wait {
            Wait::Aligned(_) => FaultKind::DivergentBarrier { here: mask, live },
            Wait::Lanes(need) | Wait::WarpBarrier(need) => FaultKind::WarpDeadlock { here: mask, need: need & live },
            _ => return,
        };
        self.raise(kind, mask);
    }

    /// Record a fault at the current instruction for the first lane of a mask.
    #[cold]
    pub fn raise(&mut self, kind: FaultKind, mask: u32) -> Flow {
        let lane = mask.trailing_zeros().min(31);
        if self.fault.is_none() {
            let thread = self.warp.id * LANES as u32 + lane;
            self.fault =
                Some(Box::new(Fault { kind, pc: self.pc, thread, block: self.block.index, notes: Vec::new() }));
        }
        Flow::Fault
    }
}

/// Groups at the same place join unless one waits at a barrier of the block: it has arrived, the other has not.
fn joins(a: Wait, b: Wait) -> bool {
    match (a, b) {
        // Teams of different masks would only part again.
        (Wait::Lanes(a), Wait::Lanes(b)) => a == b,
        (a, b) => [a, b].iter().all(|w| matches!(w, Wait::Ready | Wait::Lanes(_) | Wait::Aligned(_))),
    }
}
