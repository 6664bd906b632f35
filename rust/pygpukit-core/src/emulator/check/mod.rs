//! The checker: finds what a kernel does wrong while it runs, and says so like a good compiler.
//!
//! Every access of a checked launch comes to `Cx::observe` before it happens. It must lie in one array, what it reads
//! must have been written, and it must be ordered with what other threads did to the same bytes (`clock`, `shadow`).

mod access;
mod arrays;
mod clock;
mod early;
mod proxy;
mod report;
mod shadow;
mod stores;
mod sync;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

pub(crate) use arrays::plain_name;
pub use early::{Chain, Ended, Touched};
pub(crate) use stores::Stores;

use access::{Bound, Finding};
use arrays::Arrays;
use clock::{Moment, Numbers, Published, Shares, Time};
use early::{Early, Log};
use shadow::{Cell, Defined, Entry, Parts};

use super::block::BARRIERS;
use super::code::{LANES, Source};
use super::grid::Grid;
use crate::command::ArrayArg;

/// What is known of a whole launch.
pub(crate) struct Checker {
    /// The time of the last access, and how often time has begun anew.
    clock: Time,
    epoch: u32,
    numbers: Numbers,
    arrays: Arrays,
    /// Pointer arguments, for names.
    pub named: Vec<ArrayArg>,
    /// No argument can hold a pointer to another array, so there is none the kernel may touch.
    closed: bool,
    /// The kernel reads shared memory through the async proxy.
    proxied: bool,
    /// Where accesses must lie that are derived from each of the code's sources; the first is for those of unknown origin.
    bounds: Vec<Bound>,
    /// What readers of words in global memory learn.
    published: HashMap<u64, Published>,
    /// Lanes of the current store write the same bytes: their values are to be compared.
    pub overlap: bool,
    /// Lanes of the current store that write what another thread wrote, not ordered with it.
    again: Vec<Finding>,
    /// What was stored last at host addresses, where memory does not show it yet.
    values: Option<HashMap<u64, (usize, [u8; 8])>>,
    /// There where the launch is started early.
    early: Option<Early>,
    /// What the shadow does not show of global memory, where kernels that follow may be started early.
    log: Option<Log>,
}

impl Checker {
    pub fn new(grid: &Grid, named: Vec<ArrayArg>) -> Checker {
        let stride = grid.threads().next_multiple_of(LANES as u32).max(LANES as u32);
        Checker {
            clock: first_time(),
            epoch: 0,
            bounds: bounds(grid, &named),
            numbers: Numbers { stride },
            arrays: Arrays::default(),
            closed: closed(grid, &named),
            proxied: grid.code().async_reads,
            named,
            published: HashMap::new(),
            overlap: false,
            again: Vec::new(),
            values: grid.options.fuzz.map(|_| HashMap::new()),
            early: Early::new(grid),
            log: grid.options.keep.then(Log::default),
        }
    }

    /// Are the values of the current store to be looked at?
    #[inline]
    pub fn compares(&self) -> bool {
        self.overlap || !self.again.is_empty()
    }

    /// The next moment. After very many of them old ones are forgotten: here at once, by blocks and warps when they do
    /// something next (`keep_up`). The shadow then says nothing.
    fn tick(&mut self) -> Time {
        if self.clock >= Time::MAX - 1 {
            if let Some(log) = &mut self.log {
                log.absorb(&self.arrays);
            }
            if let Some(early) = &mut self.early {
                early.forget();
            }
            self.arrays = Arrays::default();
            self.published.clear();
            self.clock = 0;
            self.epoch += 1;
        }
        self.clock += 1;
        self.clock
    }
}

#[cfg(not(test))]
fn first_time() -> Time {
    0
}

#[cfg(test)]
use tests::first_time;

/// What the sources of the code's addresses are in this launch.
fn bounds(grid: &Grid, named: &[ArrayArg]) -> Vec<Bound> {
    let code = grid.code();
    let anywhere = (0, u64::MAX);
    let bound = |source: &Source| match *source {
        Source::Param(offset) => {
            let memory = argument(grid, named, offset).map(|arg| &arg.memory);
            memory.map_or(anywhere, |memory| (memory.start, memory.bytes))
        }
        Source::Global(index) => code.variables.get(index).map_or(anywhere, |var| (var.start, var.bytes)),
        Source::Shared(index) => code.shared.get(index).map_or(anywhere, |var| (var.start, var.bytes)),
        Source::Dynamic(_) => {
            (grid.dynamic_start().into(), grid.shared_bytes() as u64 - u64::from(grid.dynamic_start()))
        }
    };
    std::iter::once(anywhere).chain(code.sources.iter().map(bound)).collect()
}

/// The array whose pointer is at this offset of the arguments.
fn argument<'a>(grid: &Grid, named: &'a [ArrayArg], offset: u32) -> Option<&'a ArrayArg> {
    let bytes = grid.params().get(offset as usize..)?.first_chunk()?;
    let pointer = u64::from_le_bytes(*bytes);
    named.iter().find(|arg| arg.address == pointer)
}

/// Are the pointers among the arguments those of `named`, and do those arrays hold no pointers?
fn closed(grid: &Grid, named: &[ArrayArg]) -> bool {
    let pointer = |bytes: &[u8]| {
        let value = bytes.try_into().map_or(0, u64::from_le_bytes);
        named.iter().any(|arg| arg.address == value)
    };
    let params = grid.entry().params.iter().all(|&(offset, size)| match size {
        0..=7 => true,
        8 => grid.params().get(offset as usize..offset as usize + 8).is_some_and(pointer),
        _ => false,
    });
    params && named.iter().all(|arg| arg.item != 8) && grid.code().variables.iter().all(|var| var.item != 8)
}

/// What is known of a block.
pub(crate) struct BlockCheck {
    /// Number of its first thread.
    first: u32,
    /// Time of its last access, and of the last barrier of all its threads.
    last: Time,
    barrier: Time,
    /// Time of its beginning.
    born: Time,
    /// What all its threads have learnt at barriers.
    known: Shares,
    /// What some of them had read the publication of when they came to a barrier: all learn it at their next fence.
    seen: Shares,
    wide_seen: Shares,
    epoch: u32,
    cells: Vec<Cell>,
    parts: Parts,
    defined: Defined,
    /// Written by ordinary stores, with no proxy fence since; kept where the kernel has asynchronous reads.
    dirty: Defined,
    proxied: bool,
    published: HashMap<u64, Published>,
    barriers: [Gathering; BARRIERS],
    /// What lanes that passed a barrier of some of the threads have learnt: warp, lanes, and what.
    inbox: Vec<(u32, u32, Shares)>,
    /// Other blocks of which its threads have read a flag, and when they last did.
    flags: HashMap<u32, Time>,
    /// Threads that have waited for the kernels before, and when, in a launch that is started early.
    waits: Vec<Entry>,
}

/// Who has come to a barrier in this phase, and what they know.
#[derive(Default)]
struct Gathering {
    known: Shares,
    /// What they have read the publication of, as in `LaneCheck`.
    seen: Shares,
    wide_seen: Shares,
    /// Warps and lanes that wait.
    waiting: Vec<(u32, u32)>,
    /// Some only arrive, or knowledge beside that of barriers was brought.
    partial: bool,
}

impl BlockCheck {
    pub fn new() -> BlockCheck {
        BlockCheck {
            first: 0,
            last: 0,
            barrier: 0,
            born: 0,
            known: None,
            seen: None,
            wide_seen: None,
            epoch: 0,
            cells: Vec::new(),
            parts: Parts::default(),
            defined: Defined::default(),
            dirty: Defined::default(),
            proxied: false,
            published: HashMap::new(),
            barriers: Default::default(),
            inbox: Vec::new(),
            flags: HashMap::new(),
            waits: Vec::new(),
        }
    }

    /// A block begins. What its shadow holds is from before, by the clock.
    pub fn restart(&mut self, checker: &Checker, number: u64, shared: usize) {
        self.keep_up(checker);
        self.first = (number as u32).wrapping_mul(checker.numbers.stride);
        (self.last, self.barrier, self.born) = (checker.clock, checker.clock, checker.clock);
        (self.known, self.seen, self.wide_seen) = (None, None, None);
        self.cells.resize(shared.div_ceil(4), [0; 12]);
        self.defined.reset(shared);
        self.proxied = checker.proxied;
        self.dirty.reset(if self.proxied { shared } else { 0 });
        self.published.clear();
        self.barriers = Default::default();
        self.inbox.clear();
        self.flags.clear();
        self.waits.clear();
    }
}

impl BlockCheck {
    /// Forget old moments where time has begun anew.
    #[inline(always)]
    fn keep_up(&mut self, checker: &Checker) {
        if self.epoch != checker.epoch {
            self.forget(checker.epoch);
        }
    }

    #[cold]
    fn forget(&mut self, epoch: u32) {
        self.epoch = epoch;
        (self.last, self.barrier, self.born) = (0, 0, 0);
        (self.known, self.seen, self.wide_seen) = (None, None, None);
        self.cells.fill([0; 12]);
        self.parts = Parts::default();
        self.published.clear();
        self.inbox.clear();
        self.flags.clear();
        self.waits.iter_mut().for_each(|wait| wait.time = 0);
        for gathering in &mut self.barriers {
            (gathering.known, gathering.seen, gathering.wide_seen) = (None, None, None);
        }
    }

    /// Bytes of shared memory were written by another block, or by an asynchronous copy that is complete.
    pub fn overwrite(&mut self, offset: u32, bytes: u32) {
        let words = (offset / 4) as usize..(offset + bytes).div_ceil(4) as usize;
        for cell in self.cells.get_mut(words).into_iter().flatten() {
            self.parts.forget(cell);
        }
        self.defined.set_range(u64::from(offset), u64::from(bytes), true);
        self.dirty.set_range(u64::from(offset), u64::from(bytes), false);
    }
}

/// What is known of a warp.
pub(crate) struct WarpCheck {
    /// Number in its block, and threads of a block.
    id: u32,
    stride: u32,
    epoch: u32,
    /// Time of the last barrier of all its lanes.
    sync: Time,
    /// Up to when each lane knows each other one, where parts of the warp met.
    pairs: Option<Box<[[Time; LANES]; LANES]>>,
    /// Some lane knows, or has published, more.
    any: bool,
    /// Lanes that have waited for the kernels before.
    waited: u32,
    lanes: Box<[LaneCheck; LANES]>,
}

/// What is known of a lane.
#[derive(Default)]
struct LaneCheck {
    /// What it has learnt beside barriers of its block and warp.
    known: Shares,
    /// Its last fence, of any scope and of the whole device's.
    fence: Option<Moment>,
    wide_fence: Option<Moment>,
    /// What it has read the publication of, and learns at its next fence: of any scope, or of the whole device's.
    seen: Shares,
    wide_seen: Shares,
    /// Local memory that has a value.
    local: Defined,
}

impl WarpCheck {
    pub fn new(id: u32, checker: &Checker) -> WarpCheck {
        let stride = checker.numbers.stride;
        WarpCheck {
            id,
            stride,
            epoch: checker.epoch,
            sync: 0,
            pairs: None,
            any: false,
            waited: 0,
            lanes: Box::new(std::array::from_fn(|_| LaneCheck::default())),
        }
    }

    /// Forget old moments where time has begun anew.
    #[inline(always)]
    fn keep_up(&mut self, checker: &Checker) {
        if self.epoch != checker.epoch {
            self.forget(checker.epoch);
        }
    }

    #[cold]
    fn forget(&mut self, epoch: u32) {
        self.epoch = epoch;
        self.sync = 0;
        self.pairs = None;
        self.any = false;
        for lane in self.lanes.iter_mut() {
            *lane = LaneCheck { local: std::mem::take(&mut lane.local), ..LaneCheck::default() };
        }
    }

    pub fn restart(&mut self, checker: &Checker) {
        self.keep_up(checker);
        self.sync = checker.clock;
        self.pairs = None;
        self.waited = 0;
        if std::mem::take(&mut self.any) {
            *self.lanes = std::array::from_fn(|_| LaneCheck::default());
        }
        for lane in self.lanes.iter_mut() {
            lane.local.reset(0);
        }
    }
}
