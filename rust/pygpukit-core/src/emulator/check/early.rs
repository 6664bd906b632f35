//! Early starts: what a kernel touches before it waits for the kernels that may still run beside it.
//!
//! On a GPU a kernel that is started early runs beside its predecessors until it executes `griddepcontrol.wait`. Here they
//! have ended when it begins, so what they touched is kept, and accesses of threads that have not waited are compared with it.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use super::access::{Finding, Problem, unordered};
use super::arrays::Arrays;
use super::shadow::{Entry, info};
use super::{BlockCheck, Checker, WarpCheck};
use crate::emulator::code::{Code, Flow, LANES};
use crate::emulator::exec::warpwide::lanes_of;
use crate::emulator::fault::MemorySpace;
use crate::emulator::grid::Grid;
use crate::emulator::warp::Cx;

/// Most kernels of a chain: what one touched that is further back is forgotten.
const MAX_KERNELS: usize = 256;

/// Most pieces of memory that are kept of a chain.
const MAX_SPANS: usize = 1 << 20;

/// Most waits that threads of other blocks may have learnt of.
const MAX_WAITS: usize = 1 << 12;

/// Bytes that an instruction touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    start: u64,
    end: u64,
    pc: u32,
}

/// Pieces of memory, in the order of their addresses and apart from each other once `sort` has run.
#[derive(Debug, Default)]
struct Spans(Vec<Span>);

impl Spans {
    fn add(&mut self, start: u64, end: u64, pc: u32) {
        match self.0.last_mut() {
            Some(last) if last.pc == pc && last.end == start => last.end = end,
            _ => self.0.push(Span { start, end, pc }),
        }
    }

    fn sort(&mut self) {
        self.0.sort_unstable_by_key(|span| (span.start, span.end));
        let mut end = 0;
        self.0.retain_mut(|span| {
            span.start = span.start.max(end);
            end = end.max(span.end);
            span.start < span.end
        });
    }

    /// The instruction that touched some of these bytes.
    fn find(&self, start: u64, end: u64) -> Option<u32> {
        let at = self.0.partition_point(|span| span.end <= start);
        self.0.get(at).filter(|span| span.start < end).map(|span| span.pc)
    }
}

/// What a launch has read and written.
#[derive(Debug, Default)]
pub(super) struct Log {
    reads: Spans,
    writes: Spans,
}

impl Log {
    pub fn note(&mut self, write: bool, start: u64, end: u64, pc: u32) {
        if write { &mut self.writes } else { &mut self.reads }.add(start, end, pc);
    }

    /// What the shadow of these arrays says.
    pub fn absorb(&mut self, arrays: &Arrays) {
        for array in &arrays.all {
            array.each_touched(|write, start, end, pc| self.note(write, start, end, pc));
        }
    }
}

/// A kernel that may still run when another one is started early, and what it touches.
pub struct Touched {
    name: String,
    code: Arc<Code>,
    log: Log,
}

impl fmt::Debug for Touched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "what '{}' touched", self.name)
    }
}

impl Touched {
    /// What a write, or a read, of these bytes must wait for: the instruction, and whether it writes.
    fn conflict(&self, start: u64, end: u64, write: bool) -> Option<(u32, bool)> {
        let written = self.log.writes.find(start, end).map(|pc| (pc, true));
        written.or_else(|| self.log.reads.find(start, end).filter(|_| write).map(|pc| (pc, false)))
    }
}

/// A checked launch that has ended without a fault.
pub struct Ended {
    name: String,
    code: Arc<Code>,
    log: Log,
    arrays: Arrays,
}

impl Ended {
    pub(crate) fn new(grid: &Grid, checker: Checker) -> Ended {
        let Checker { log, arrays, .. } = checker;
        Ended { name: grid.name.clone(), code: grid.code.clone(), log: log.unwrap_or_default(), arrays }
    }

    fn touched(self) -> Touched {
        let mut log = self.log;
        log.absorb(&self.arrays);
        log.reads.sort();
        log.writes.sort();
        Touched { name: self.name, code: self.code, log }
    }
}

/// The kernels of a stream that may still run when its next one is started early.
#[derive(Default)]
pub struct Chain {
    kernels: VecDeque<Arc<Touched>>,
    /// The last one, whose shadow is only looked through when a kernel that is started early follows.
    last: Option<Ended>,
}

impl Chain {
    /// A kernel follows: the kernels that it may run beside.
    pub fn follow(&mut self, early: bool) -> Vec<Arc<Touched>> {
        if !early {
            *self = Chain::default();
            return Vec::new();
        }
        if let Some(last) = self.last.take() {
            self.kernels.push_back(Arc::new(last.touched()));
        }
        let spans = |kernel: &Arc<Touched>| kernel.log.reads.0.len() + kernel.log.writes.0.len();
        let mut total: usize = self.kernels.iter().map(spans).sum();
        while self.kernels.len() > MAX_KERNELS || self.kernels.len() > 1 && total > MAX_SPANS {
            total -= self.kernels.pop_front().as_ref().map_or(0, spans);
        }
        self.kernels.iter().cloned().collect()
    }

    /// The kernel that followed has ended.
    pub fn push(&mut self, ended: Ended) {
        self.last = Some(ended);
    }
}

/// Of a launch that is started early.
pub(super) struct Early {
    beside: Vec<Arc<Touched>>,
    /// The first wait of each block.
    waits: Vec<Entry>,
    /// The kernel has a `griddepcontrol.wait`.
    pub can_wait: bool,
}

impl Early {
    pub fn new(grid: &Grid) -> Option<Early> {
        let beside = grid.options.beside.clone();
        (!beside.is_empty()).then(|| Early { beside, waits: Vec::new(), can_wait: grid.code().can_wait(grid.kernel) })
    }

    /// Time begins anew: what was waited for then has happened before all that follows.
    pub fn forget(&mut self) {
        self.waits.iter_mut().for_each(|wait| wait.time = 0);
    }
}

impl Checker {
    /// The first of these lanes that touches, without having waited, what a kernel beside this one needs.
    pub(super) fn too_early(
        &self,
        (block, warp): (&BlockCheck, &WarpCheck),
        a: &[u64; LANES],
        lanes: u32,
        bytes: u32,
        write: bool,
    ) -> Option<Finding> {
        let early = self.early.as_ref()?;
        for lane in lanes_of(lanes & !warp.waited) {
            let (start, end) = (a[lane], a[lane].saturating_add(bytes.into()));
            // The last one that touches it is the one to wait for.
            let conflict = |(at, kernel): (usize, &Arc<Touched>)| {
                kernel.conflict(start, end, write).map(|(pc, wrote)| (at as u32, pc, wrote))
            };
            let Some((kernel, pc, wrote)) = early.beside.iter().enumerate().rev().find_map(conflict) else { continue };
            // Another thread may have waited, and this one come after it by a barrier.
            let thread = block.first + warp.id * LANES as u32 + lane as u32;
            let mine = Entry { time: self.clock, thread, info: info(0, 0) };
            let mut waits = block.waits.iter().chain(&early.waits);
            if waits.any(|wait| !unordered(*wait, mine, block, warp, self.numbers)) {
                continue;
            }
            let problem = Problem::Early { kernel, pc, wrote };
            return Some(Finding { problem, space: MemorySpace::Global, lane, address: start });
        }
        None
    }
}

impl Cx<'_> {
    /// `griddepcontrol.wait` of these lanes.
    pub(crate) fn check_awaited(&mut self, lanes: u32) {
        let id = self.warp.id;
        let (Some(checker), Some(block), Some(warp)) =
            (self.checker.as_deref_mut(), self.block.check.as_deref_mut(), self.warp.check.as_deref_mut())
        else {
            return;
        };
        if checker.early.is_none() {
            return;
        }
        let now = checker.tick();
        block.keep_up(checker);
        warp.keep_up(checker);
        block.last = now;
        let first = block.first + id * LANES as u32;
        let waits = lanes_of(lanes & !warp.waited).map(|lane| Entry {
            time: now,
            thread: first + lane as u32,
            info: info(0, 0),
        });
        let known = block.waits.len();
        block.waits.extend(waits);
        warp.waited |= lanes;
        if let Some(early) = &mut checker.early
            && known == 0
            && early.waits.len() < MAX_WAITS
        {
            early.waits.extend(block.waits.first());
        }
    }

    /// A bulk copy of a lane touches global memory.
    pub(super) fn check_early_bulk(&mut self, lane: usize, address: u64, bytes: u32, write: bool) -> Result<(), Flow> {
        let pc = self.pc;
        let (Some(checker), Some(block), Some(warp)) =
            (self.checker.as_deref_mut(), self.block.check.as_deref(), self.warp.check.as_deref())
        else {
            return Ok(());
        };
        if let Some(log) = &mut checker.log {
            log.note(write, address, address.saturating_add(bytes.into()), pc);
        }
        match checker.too_early((block, warp), &[address; LANES], 1 << lane, bytes, write) {
            Some(finding) => self.report(finding, bytes, write, false),
            None => Ok(()),
        }
    }

    /// What to say of an access that came before the wait.
    pub(super) fn early(
        &mut self,
        finding: &Finding,
        (kernel, pc, wrote): (u32, u32, bool),
        (bytes, write): (u32, bool),
        what: &str,
    ) -> (String, Vec<String>) {
        let element = self.name(finding.space, finding.address, bytes).element;
        let Some(early) = self.checker.as_deref().and_then(|checker| checker.early.as_ref()) else {
            return (String::new(), Vec::new());
        };
        let Some(other) = early.beside.get(kernel as usize) else { return (String::new(), Vec::new()) };
        let (name, did, does) =
            (&other.name, if wrote { "written" } else { "read" }, if wrote { "writes" } else { "reads" });
        let text = format!(
            "early access to global memory: {what} {element} before griddepcontrol.wait, when kernel '{name}' may not have \
             {did} it yet"
        );
        let place = other.code.place_text(pc);
        let mut notes =
            vec![format!("the kernel is started early, so it may run beside '{name}', which {does} this at {place}")];
        let others_wait = self.block.check.as_deref().is_some_and(|block| !block.waits.is_empty());
        notes.push(
            match (early.can_wait, others_wait) {
                (false, _) => {
                    "the kernel has no griddepcontrol.wait: each thread must execute it before it touches what kernels \
                     before use; or launch the kernel without programmatic=True"
                }
                (_, true) => {
                    "only other threads of the block have waited: let each thread execute griddepcontrol.wait, or put \
                     __syncthreads() behind it"
                }
                _ => "move griddepcontrol.wait up, before this access, or launch the kernel without programmatic=True",
            }
            .to_string(),
        );
        if !write {
            let constant = "what is read before the wait must be declared in uses= as \"constant\", and no kernel before \
                            that may still run may write it";
            notes.push(constant.to_string());
        }
        (text, notes)
    }
}

impl Code {
    /// Has a kernel of this code, or a function that it may call, a `griddepcontrol.wait`?
    fn can_wait(&self, kernel: usize) -> bool {
        let around = |pc: u32| {
            let functions = self.functions.iter().enumerate();
            functions.filter(|(_, f)| f.defined && f.start <= pc).max_by_key(|(_, f)| f.start)
        };
        self.waits.iter().any(|&pc| around(pc).is_some_and(|(index, function)| index == kernel || !function.entry))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_that_follow_each_other_are_one_and_none_overlap() {
        let mut spans = Spans::default();
        for (start, end, pc) in [(40, 44, 3), (44, 48, 3), (48, 52, 4), (8, 16, 1), (12, 20, 2), (9, 10, 5)] {
            spans.add(start, end, pc);
        }
        spans.sort();
        let span = |start, end, pc| Span { start, end, pc };
        assert_eq!(spans.0, [span(8, 16, 1), span(16, 20, 2), span(40, 48, 3), span(48, 52, 4)]);
        let found =
            [(0, 8), (7, 9), (15, 17), (19, 20), (20, 40), (20, 41), (47, 90), (52, 60)].map(|(a, b)| spans.find(a, b));
        assert_eq!(found, [None, Some(1), Some(1), Some(2), None, Some(3), Some(3), None]);
    }

    #[test]
    fn a_chain_is_bounded() {
        let mut chain = Chain::default();
        for _ in 0..MAX_KERNELS + 9 {
            chain.kernels.push_back(Arc::new(Touched {
                name: String::new(),
                code: Arc::default(),
                log: Log::default(),
            }));
        }
        assert_eq!(chain.follow(true).len(), MAX_KERNELS);
        let mut log = Log::default();
        (0..MAX_SPANS as u64).for_each(|i| log.note(false, 8 * i, 8 * i + 4, 0));
        chain.kernels.push_back(Arc::new(Touched { name: String::new(), code: Arc::default(), log }));
        chain.kernels.iter().for_each(|kernel| assert!(kernel.log.writes.0.is_empty()));
        assert_eq!(chain.follow(true).len(), MAX_KERNELS);
        assert!(chain.follow(false).is_empty() && chain.follow(true).is_empty());
    }
}
