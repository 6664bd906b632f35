//! A launch: its blocks, and the host threads that run them.
//!
//! Blocks start in order and run to their end where they can. One that uses up its share of instructions makes room
//! for others and goes on later, so that blocks may wait for each other, or for the host.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::block::BlockOutcome;
use super::check::{Checker, Ended, Touched};
use super::cluster::Cluster;
use super::code::{Code, Fill, Function, LANES, Special};
use super::counters::Counters;
use super::fault::{Fault, FaultKind};
use super::memory::{GridBarrier, Memory};
use crate::command::ArrayArg;
use crate::forks::Working;
use crate::random::Random;

/// Instructions a block runs before another may have its thread.
const SLICE: u64 = 1 << 19;

/// Blocks that run side by side when schedules are fuzzed.
const FUZZ_RESIDENT: usize = 6;

/// Most blocks of one launch that have begun and not ended, unless the launch is cooperative.
const MAX_RESIDENT: usize = 4096;

/// How a launch runs.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Host threads; 0 means one per core.
    pub workers: usize,
    /// Run warps and blocks in an order drawn from this seed.
    pub fuzz: Option<u64>,
    /// Most instructions (of warps) in all.
    pub max_instructions: Option<u64>,
    pub max_time: Option<Duration>,
    /// Look for errors; one host thread then runs all blocks.
    pub check: bool,
    /// Fill `Summary::counters`.
    pub count: bool,
    /// Kernels that may still run, where the launch is started early (`Chain::follow`).
    pub beside: Vec<Arc<Touched>>,
    /// What a checked launch touches is kept for `Run::ended`.
    pub keep: bool,
}

/// Everything about a launch that does not change while it runs.
pub(crate) struct Grid {
    pub code: Arc<Code>,
    /// Index of the kernel among the functions.
    pub kernel: usize,
    pub name: String,
    pub blocks: [u32; 3],
    pub threads: [u32; 3],
    pub cluster: [u32; 3],
    pub dynamic_shared: u32,
    pub cooperative: bool,
    /// Where the barrier of a cooperative launch's grid is; 0 for other launches.
    pub workspace: u64,
    /// The argument block, in 8-byte units for its alignment.
    pub args: Vec<u64>,
    pub arg_bytes: usize,
    pub memory: Arc<dyn Memory>,
    pub options: Options,
    pub started: Instant,
}

impl Grid {
    pub fn code(&self) -> &Code {
        &self.code
    }

    pub fn entry(&self) -> &Function {
        &self.code.functions[self.kernel]
    }

    pub fn memory(&self) -> &dyn Memory {
        &*self.memory
    }

    pub fn params(&self) -> &[u8] {
        // SAFETY: the vector holds at least `arg_bytes` bytes.
        unsafe { std::slice::from_raw_parts(self.args.as_ptr().cast(), self.arg_bytes) }
    }

    pub fn threads(&self) -> u32 {
        self.threads.iter().product()
    }

    /// Clusters of the launch.
    pub fn total(&self) -> u64 {
        (0..3).map(|i| u64::from(self.blocks[i] / self.cluster[i])).product()
    }

    pub fn cluster_size(&self) -> u32 {
        self.cluster.iter().product()
    }

    /// Linear number of the block with a rank in a cluster.
    pub fn block_of(&self, cluster: u64, rank: u32) -> u64 {
        if self.cluster == [1; 3] {
            return cluster;
        }
        let [x, y, _] = [0, 1, 2].map(|i: usize| u64::from(self.blocks[i] / self.cluster[i]));
        let first = [cluster % x, cluster / x % y, cluster / (x * y)];
        let (cx, cy) = (self.cluster[0], self.cluster[1]);
        let inside = [rank % cx, rank / cx % cy, rank / (cx * cy)];
        let at = [0, 1, 2].map(|i: usize| first[i] * u64::from(self.cluster[i]) + u64::from(inside[i]));
        at[0] + u64::from(self.blocks[0]) * (at[1] + u64::from(self.blocks[1]) * at[2])
    }

    /// Where dynamic shared memory begins.
    pub fn dynamic_start(&self) -> u32 {
        self.entry().shared.next_multiple_of(self.code.dynamic_align.max(16))
    }

    pub fn shared_bytes(&self) -> usize {
        (self.dynamic_start() + self.dynamic_shared) as usize
    }

    pub fn block_index(&self, number: u64) -> [u32; 3] {
        let (x, y) = (u64::from(self.blocks[0]), u64::from(self.blocks[1]));
        [(number % x) as u32, (number / x % y) as u32, (number / (x * y)) as u32]
    }

    /// The cluster that begins as the n-th: the same, or one of a random order when schedules are fuzzed.
    fn nth(&self, n: u64) -> u64 {
        let (Some(seed), total) = (self.options.fuzz, self.total()) else { return n };
        let mut random = Random::new(!seed);
        let shift = random.next() % total;
        let mut step = 1 + random.next() % total;
        // A step that shares no factor with the number of blocks visits all of them.
        while gcd(step, total) != 1 {
            step += 1;
        }
        ((u128::from(n) * u128::from(step) + u128::from(shift)) % u128::from(total)) as u64
    }

    pub fn order(&self, number: u64) -> Option<Random> {
        self.options.fuzz.map(|seed| Random::new(seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    pub fn special(&self, special: Special, warp: u32, lane: usize, block: [u32; 3]) -> u32 {
        let thread = warp * LANES as u32 + lane as u32;
        let bit = 1u32 << lane;
        let at = |i: u8| usize::from(i.min(2));
        match special {
            Special::Tid(0) => thread % self.threads[0],
            Special::Tid(1) => thread / self.threads[0] % self.threads[1],
            Special::Tid(_) => thread / (self.threads[0] * self.threads[1]),
            Special::Ntid(i) => self.threads[at(i)],
            Special::Ctaid(i) => block[at(i)],
            Special::Nctaid(i) => self.blocks[at(i)],
            Special::Lane => lane as u32,
            Special::Warp => warp,
            Special::Warps => 64,
            Special::Sm => block[0] % self.sms(),
            Special::Sms => self.sms(),
            Special::GridId | Special::Zero => 0,
            Special::LanesEq => bit,
            Special::LanesLt => bit - 1,
            Special::LanesLe => bit | (bit - 1),
            Special::LanesGt => !(bit | (bit - 1)),
            Special::LanesGe => !(bit - 1),
            Special::DynamicShared => self.dynamic_shared,
            Special::SharedStart => self.dynamic_start(),
            Special::TotalShared => self.shared_bytes() as u32,
            Special::ClusterCtaid(i) => block[at(i)] % self.cluster[at(i)],
            Special::ClusterNctaid(i) => self.cluster[at(i)],
            Special::ClusterRank => {
                let c = [0, 1, 2].map(|i: usize| block[i] % self.cluster[i]);
                c[0] + self.cluster[0] * (c[1] + self.cluster[1] * c[2])
            }
            Special::ClusterSize => self.cluster_size(),
            Special::Clusterid(i) => block[at(i)] / self.cluster[at(i)],
            Special::Nclusterid(i) => self.blocks[at(i)] / self.cluster[at(i)],
            Special::IsCluster => u32::from(self.cluster_size() > 1),
            Special::Workspace(0) => (self.workspace >> 32) as u32,
            Special::Workspace(_) => self.workspace as u32,
        }
    }

    /// Does the code look for the barrier of a grid that has none?
    fn lacks_workspace(&self) -> bool {
        let looks = |fill: &Fill| matches!(fill, Fill::Special(_, Special::Workspace(_)));
        self.workspace == 0 && self.code.functions.iter().any(|function| function.fills.iter().any(looks))
    }

    /// What kernels print goes to standard output, a warp's lines together.
    pub fn print(&self, text: &str) {
        use std::io::Write;
        let mut out = std::io::stdout().lock();
        // A closed pipe is no fault of the kernel.
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }

    fn sms(&self) -> u32 {
        self.workers() as u32
    }

    fn workers(&self) -> usize {
        match self.options.workers {
            0 => std::thread::available_parallelism().map_or(1, |n| n.get()),
            n => n,
        }
    }
}

#[derive(Default)]
struct State {
    /// Clusters that have begun.
    next: u64,
    /// Begun, not ended, and not running now.
    resident: VecDeque<Cluster>,
    running: usize,
    /// Ended: their memory serves the next one.
    spare: Vec<Cluster>,
    /// How many may be begun and not ended at the same time.
    cap: usize,
    /// Slices since the last block ended.
    idle: usize,
    instructions: u64,
    counters: Option<Box<Counters>>,
    fault: Option<Box<Fault>>,
    ended: bool,
    /// Choices of blocks, when schedules are fuzzed.
    order: Option<Random>,
}

/// What a launch did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Instructions issued by warps.
    pub instructions: u64,
    pub counters: Option<Box<Counters>>,
}

/// A launch in progress.
pub(crate) struct Run {
    pub grid: Grid,
    state: Mutex<State>,
    ended: Condvar,
    /// Memory that must be zero at the end.
    counters: Vec<ArrayArg>,
    /// There where the launch is checked, by whom its one thread is.
    checker: Mutex<Option<Box<Checker>>>,
    abort: AtomicBool,
}

impl Run {
    /// Start the launch on other threads as far as several are of use; the caller is expected to `work` or `wait`.
    pub fn start(grid: Grid, arrays: &[ArrayArg], caller_works: bool) -> Arc<Run> {
        let workers = if grid.options.check || grid.options.fuzz.is_some() { 1 } else { grid.workers() };
        let useful = workers.min(usize::try_from(grid.total()).unwrap_or(workers)).max(1);
        let cap = if grid.cooperative { usize::MAX } else { useful };
        let order = grid.options.fuzz.map(Random::new);
        let cap = if order.is_some() { cap.max(FUZZ_RESIDENT) } else { cap };
        let state = State { cap, order, ..State::default() };
        let checker = grid.options.check.then(|| {
            let mut arrays = arrays.to_vec();
            arrays.extend(GridBarrier::described(grid.workspace));
            Box::new(Checker::new(&grid, arrays))
        });
        let run = Arc::new(Run {
            grid,
            state: Mutex::new(state),
            ended: Condvar::new(),
            counters: arrays.iter().filter(|array| array.ends_zero).cloned().collect(),
            checker: Mutex::new(checker),
            abort: AtomicBool::new(false),
        });
        for _ in usize::from(caller_works)..useful {
            run.spawn();
        }
        run
    }

    fn spawn(self: &Arc<Run>) {
        let run = self.clone();
        let thread = std::thread::Builder::new().name("pygpukit-emulator".to_string());
        let working = Working::begin();
        let work = move || {
            let _working = working;
            run.work(None)
        };
        if thread.spawn(work).is_err() {
            // Fewer threads, the same result; when there is none at all the caller's `wait` works itself.
            self.work(None);
        }
    }

    /// Stop it at the next chance.
    pub fn interrupt(&self) {
        self.abort.store(true, Ordering::Relaxed);
    }

    /// Work as one of its threads until nothing is left to do, or until a moment; false when that came first.
    pub fn work(&self, until: Option<Instant>) -> bool {
        loop {
            let Some(mut cluster) = self.take() else { return true };
            let share = self.share();
            let run = || match self.grid.options.check {
                true => cluster.run(&self.grid, share, self.checker.lock().as_deref_mut()),
                false => cluster.run(&self.grid, share, None),
            };
            // An error of ours must end the launch, not leave everybody waiting for it.
            let (outcome, count) = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| {
                let text = "the emulator failed; this is an error of PyGPUkit, not of the kernel".to_string();
                let kind = FaultKind::Invalid { text };
                (BlockOutcome::Fault(Box::new(Fault { kind, pc: 0, thread: 0, block: [0; 3], notes: Vec::new() })), 0)
            });
            self.put(cluster, outcome, count);
            if count < 2048 {
                std::thread::yield_now();
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                return self.state.lock().ended;
            }
        }
    }

    /// Instructions a cluster runs at a time.
    fn share(&self) -> u64 {
        if let Some(order) = &mut self.state.lock().order {
            return 1 << (5 + order.below(9));
        }
        match (self.grid.options.check, self.grid.cooperative) {
            // One thread runs all blocks: those that wait should not keep it long.
            (true, _) => SLICE / 32,
            (false, true) => SLICE / 8,
            (false, false) => SLICE,
        }
    }

    fn take(&self) -> Option<Cluster> {
        let mut state = self.state.lock();
        if state.fault.is_some() || state.ended {
            return None;
        }
        let begun = state.resident.len() + state.running;
        let may_begin =
            state.next < self.grid.total() && begun < state.cap.min(MAX_RESIDENT.max(begun_limit(&self.grid)));
        let waiting = state.resident.len();
        let begins = may_begin && (waiting == 0 || state.order.as_mut().is_none_or(|order| order.below(2) == 0));
        let cluster = if begins {
            let number = self.grid.nth(state.next);
            state.next += 1;
            let spare = state.spare.pop();
            state.running += 1;
            drop(state);
            return Some(match spare {
                Some(mut cluster) => {
                    cluster.restart(&self.grid, number);
                    cluster
                }
                None => Cluster::new(&self.grid, number),
            });
        } else if let Some(order) = &mut state.order {
            let chosen = order.below(waiting);
            state.resident.swap_remove_back(chosen)
        } else {
            state.resident.pop_front()
        };
        if cluster.is_some() {
            state.running += 1;
        }
        cluster
    }

    fn put(&self, cluster: Cluster, outcome: BlockOutcome, count: u64) {
        let mut state = self.state.lock();
        state.running -= 1;
        state.instructions += count;
        match outcome {
            BlockOutcome::Done => {
                for counters in cluster.counters() {
                    state.counters.get_or_insert_default().add(counters);
                }
                state.idle = 0;
                // Many short blocks take long too.
                if state.next < self.grid.total()
                    && let Some(mut fault) = self.limit(&state, &cluster)
                {
                    // Of those that have not begun.
                    fault.pc = self.grid.entry().start;
                    state.fault.get_or_insert(fault);
                }
                state.spare.push(cluster);
            }
            BlockOutcome::Slice | BlockOutcome::Waits => {
                state.idle += 1;
                if state.idle > state.resident.len() + state.running + 1 {
                    // Nobody ends: perhaps they wait for a cluster that has not begun.
                    state.cap = state.cap.saturating_add(state.cap / 2 + 1);
                    state.idle = 0;
                }
                let fault = self.limit(&state, &cluster);
                state.resident.push_back(cluster);
                if let Some(fault) = fault {
                    state.fault.get_or_insert(fault);
                }
            }
            BlockOutcome::Fault(fault) => {
                state.fault.get_or_insert(fault);
            }
        }
        let over = state.fault.is_some() || (state.next == self.grid.total() && state.resident.is_empty());
        if over && state.running == 0 {
            self.check_counters(&mut state);
            state.ended = true;
            state.resident.clear();
            state.spare.clear();
            self.ended.notify_all();
        }
    }

    /// The kernels that come next need their counters zero, also behind one that has failed, which cannot do that itself.
    fn check_counters(&self, state: &mut State) {
        for counters in &self.counters {
            // SAFETY: the launch's memory is host memory, and there as long as the launch runs.
            let words = unsafe { std::slice::from_raw_parts_mut(counters.address as *mut u32, counters.size as usize) };
            let Some(at) = words.iter().position(|word| *word != 0) else { continue };
            let text = format!(
                "the kernel leaves its counters ('{}') nonzero: word {at} is {}. The next kernel of the stream would start \
                 with that; the last block to use a counter must set it to zero",
                counters.name, words[at]
            );
            if self.grid.options.check && state.fault.is_none() {
                let kind = FaultKind::Check { text };
                let fault = Fault { kind, pc: self.grid.entry().start, thread: 0, block: [0; 3], notes: Vec::new() };
                state.fault = Some(Box::new(fault));
            }
            if state.fault.is_some() {
                words.fill(0);
            }
        }
    }

    /// Has the launch used up what it was allowed?
    fn limit(&self, state: &State, cluster: &Cluster) -> Option<Box<Fault>> {
        let options = &self.grid.options;
        let kind = if self.abort.load(Ordering::Relaxed) {
            FaultKind::Interrupted
        } else if let Some(max) = options.max_instructions.filter(|max| state.instructions > *max) {
            let text =
                format!("the kernel ran {} instructions and had not ended; the limit is {max}", state.instructions);
            FaultKind::Limit { text }
        } else if let Some(max) = options.max_time.filter(|max| self.grid.started.elapsed() > *max) {
            FaultKind::Limit {
                text: format!(
                    "the kernel had not ended after {} s; PYGPUKIT_KERNEL_TIMEOUT sets this limit, 0 for none",
                    max.as_secs()
                ),
            }
        } else {
            return None;
        };
        let (pc, thread, block) = cluster.somewhere();
        let mut notes = Vec::new();
        if matches!(kind, FaultKind::Limit { .. }) {
            let size = u64::from(self.grid.cluster_size());
            let begun = (state.resident.len() + state.running) as u64 + 1;
            let ended = state.next.saturating_sub(begun);
            notes.push(format!(
                "{} of {} blocks have ended and {} run: do they wait for a flag that nobody sets, or for each other?",
                ended * size,
                self.grid.total() * size,
                begun * size
            ));
        }
        Some(Box::new(Fault { kind, pc, thread, block, notes }))
    }

    /// What the launch touched, once it has ended without a fault, if that was kept.
    pub fn ended(&self) -> Option<Ended> {
        {
            let state = self.state.lock();
            if !self.grid.options.keep || !state.ended || state.fault.is_some() {
                return None;
            }
        }
        let checker = self.checker.lock().take()?;
        Some(Ended::new(&self.grid, *checker))
    }

    /// Wait for the end; None when `timeout` came first.
    pub fn wait(&self, timeout: Option<Duration>) -> Option<Result<Summary, String>> {
        let mut state = self.state.lock();
        let until = timeout.map(|t| Instant::now() + t);
        while !state.ended {
            match until {
                Some(until) => {
                    if self.ended.wait_until(&mut state, until).timed_out() && !state.ended {
                        return None;
                    }
                }
                None => self.ended.wait(&mut state),
            }
        }
        Some(match &state.fault {
            Some(fault) => {
                let mut fault = fault.clone();
                if let FaultKind::OutOfBounds { address: ..4096, .. } = fault.kind
                    && self.grid.lacks_workspace()
                {
                    fault.notes.push("grid.sync() needs a cooperative launch: kernel(..., cooperative=True)".into());
                }
                Err(fault.report(&self.grid.name, &self.grid.code, self.grid.threads))
            }
            None => Ok(Summary { instructions: state.instructions, counters: state.counters.clone() }),
        })
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn begun_limit(grid: &Grid) -> usize {
    if grid.cooperative { usize::MAX } else { 0 }
}
