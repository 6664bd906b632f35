//! The one global state, and the gate every call passes.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::config::{Config, NAMES};
use crate::cublaslt::Lt;
use crate::cusolver::Solver;
use crate::graph::{Graph, Node};
use crate::green::Green;
use crate::kernel::{Kernel, Launch};
use crate::memory::Memory;
use crate::stream::{Event, Stream};

pub(crate) const SUCCESS: i32 = 0;
pub(crate) const INVALID_VALUE: i32 = 1;
pub(crate) const OUT_OF_MEMORY: i32 = 2;
pub(crate) const NOT_INITIALIZED: i32 = 3;
pub(crate) const NO_DEVICE: i32 = 100;
pub(crate) const INVALID_DEVICE: i32 = 101;
pub(crate) const INVALID_IMAGE: i32 = 200;
pub(crate) const INVALID_CONTEXT: i32 = 201;
pub(crate) const INVALID_HANDLE: i32 = 400;
pub(crate) const NOT_FOUND: i32 = 500;
pub(crate) const NOT_READY: i32 = 600;
pub(crate) const ILLEGAL_ADDRESS: i32 = 700;
pub(crate) const NOT_PERMITTED: i32 = 800;
pub(crate) const INVALID_RESOURCE_TYPE: i32 = 914;
pub(crate) const INVALID_RESOURCE_CONFIGURATION: i32 = 915;
pub(crate) const STREAM_CAPTURE_UNSUPPORTED: i32 = 900;
pub(crate) const STREAM_DETACHED: i32 = 917;

/// What a call needs before it may run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needs {
    /// Nothing: works before initialisation and after a fault.
    Nothing,
    /// An initialised driver; works after a fault.
    Init,
    /// An initialised driver that has seen no fault.
    Health,
    /// All of that, and a context on this thread.
    Context,
}

pub(crate) type Outcome = Result<(), i32>;

#[derive(Default)]
pub(crate) struct State {
    pub config: Config,
    loaded: bool,
    pub initialised: bool,
    pub counts: HashMap<String, u64>,
    /// The code of the fault that ended the context, or 0.
    pub lost: i32,
    next_handle: usize,
    /// Moves by one microsecond with every piece of work; events take their time from it.
    pub clock_ns: u64,
    pub memory: Memory,
    pub streams: HashMap<usize, Stream>,
    pub events: HashMap<usize, Event>,
    /// Event records that have not run yet: their ticket and stream.
    pub pending: HashMap<u64, usize>,
    pub next_ticket: u64,
    pub libraries: HashMap<usize, HashMap<String, usize>>,
    /// Address and bytes of the variables of each library.
    pub variables: HashMap<usize, HashMap<String, (u64, usize)>>,
    pub kernels: HashMap<usize, Kernel>,
    pub graphs: HashMap<usize, Graph>,
    /// Graph nodes: the graph and the position in it.
    pub nodes: HashMap<usize, (usize, usize)>,
    pub execs: HashMap<usize, Vec<Node>>,
    pub launches: Vec<Launch>,
    pub green: Green,
    pub lt: Lt,
    pub solver: Solver,
}

impl State {
    /// A handle never given out before.
    pub fn handle(&mut self) -> usize {
        self.next_handle += 1;
        0x7000_0000 + 64 * self.next_handle
    }

    /// Take the settings from the environment, once.
    pub fn load(&mut self) {
        if std::mem::replace(&mut self.loaded, true) {
            return;
        }
        for name in NAMES {
            if let Ok(value) = std::env::var(format!("FAKECUDA_{name}"))
                && let Err(text) = self.config.set(name, &value, &self.counts)
            {
                eprintln!("{text}");
            }
        }
    }
}

static STATE: Mutex<Option<State>> = Mutex::new(None);

thread_local! {
    static CONTEXT: Cell<usize> = const { Cell::new(0) };
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// Context handles are the device number plus this.
const CONTEXT_BASE: usize = 0x6000_0000;

pub(crate) fn context_of(device: i32) -> usize {
    CONTEXT_BASE + device as usize
}

pub(crate) fn device_of(context: usize) -> Option<i32> {
    context.checked_sub(CONTEXT_BASE).and_then(|d| i32::try_from(d).ok())
}

pub(crate) fn current() -> usize {
    CONTEXT.get()
}

pub(crate) fn set_current(context: usize) {
    CONTEXT.set(context);
}

/// Device of this thread's context.
pub(crate) fn current_device() -> Result<i32, i32> {
    device_of(current()).ok_or(INVALID_CONTEXT)
}

/// Run a host function as the driver does: calls made from inside it are refused.
pub(crate) fn in_callback(run: impl FnOnce()) {
    IN_CALLBACK.set(true);
    run();
    IN_CALLBACK.set(false);
}

fn lock() -> MutexGuard<'static, Option<State>> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The state, for the control functions.
pub(crate) fn with_state<R>(use_it: impl FnOnce(&mut State) -> R) -> R {
    let mut guard = lock();
    let state = guard.get_or_insert_default();
    state.load();
    use_it(state)
}

/// Forget everything. Memory handed out before stays mapped: a late user must not crash the test process.
pub(crate) fn forget() {
    *lock() = None;
    set_current(0);
}

/// The gate: count, fail if told to, check what the call needs, run it.
pub(crate) fn enter(call: &str, needs: Needs, run: impl FnOnce(&mut State) -> Outcome) -> i32 {
    if IN_CALLBACK.get() {
        return NOT_PERMITTED;
    }
    with_state(|state| {
        let count = state.counts.entry(call.to_string()).or_default();
        *count += 1;
        let count = *count;
        if let Some(code) = state.config.failure_of(call, count) {
            if is_sticky(code) {
                state.lost = code;
            }
            return code;
        }
        if needs != Needs::Nothing && !state.initialised {
            return NOT_INITIALIZED;
        }
        if matches!(needs, Needs::Health | Needs::Context) && state.lost != 0 {
            return state.lost;
        }
        if needs == Needs::Context && current() == 0 {
            return INVALID_CONTEXT;
        }
        match run(state) {
            // Work that ran inside the call may have faulted.
            Ok(()) if matches!(needs, Needs::Health | Needs::Context) && state.lost != 0 => state.lost,
            Ok(()) => SUCCESS,
            Err(code) => code,
        }
    })
}

fn is_sticky(code: i32) -> bool {
    matches!(code, 214 | 220 | 226 | 700 | 702 | 709 | 710 | 714..=719 | 721 | 810 | 911)
}
