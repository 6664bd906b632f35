//! What is global to the process: whether CUDA may still be used, and the open devices.
//!
//! An illegal address ends CUDA in the process for good, a fork leaves the child without it, and after
//! interpreter exit no driver call may be made. One word says so; every submission looks at it.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use crate::device::{DeviceKind, SharedDevice};
use crate::error::{Error, Result};
use crate::graph::Node;
use crate::host::{EngineSlot, PinnedPool};
use crate::lane::{Lane, Lanes};
use crate::memory::{Arena, ArenaMode, Pool, PoolOptions};
use crate::sched::Lease;
use crate::stream::Stream;

const FAULT: u32 = 1;
const FORKED: u32 = 2;
const EXITING: u32 = 4;
/// Forked while another thread could have locks.
const STRANDED: u32 = 8;

static GATE: AtomicU32 = AtomicU32::new(0);
static REPORT: OnceLock<String> = OnceLock::new();
static DEVICES: Mutex<Vec<&'static DeviceState>> = Mutex::new(Vec::new());
static USES_CUDA: AtomicBool = AtomicBool::new(false);
static SYNC_EVERY_SUBMISSION: AtomicBool = AtomicBool::new(false);

/// Wait after every submission, so that a fault is reported by the launch that caused it.
pub fn set_sync_every_submission(on: bool) {
    SYNC_EVERY_SUBMISSION.store(on, Ordering::Release);
}

#[inline]
pub(crate) fn sync_every_submission() -> bool {
    SYNC_EVERY_SUBMISSION.load(Ordering::Relaxed)
}

/// What waits inside of submissions do every few milliseconds.
static WAIT_CHECK: OnceLock<fn() -> Result<()>> = OnceLock::new();

/// Let waits whose caller gives nothing to do run this function; the first call wins. It may end them with an error.
pub fn set_wait_check(check: fn() -> Result<()>) {
    let _ = WAIT_CHECK.set(check);
}

pub(crate) fn wait_check() -> Result<()> {
    WAIT_CHECK.get().map_or(Ok(()), |check| check())
}

type Blocking = fn(&mut dyn FnMut() -> Result<()>) -> Result<()>;

/// What runs a function that waits.
static BLOCKING: OnceLock<Blocking> = OnceLock::new();

/// Let functions that wait run through this one, which may let go of an interpreter's lock meanwhile; the first call wins.
pub fn set_blocking(run: Blocking) {
    let _ = BLOCKING.set(run);
}

pub(crate) fn blocking(function: &mut dyn FnMut() -> Result<()>) -> Result<()> {
    match BLOCKING.get() {
        Some(run) => run(function),
        None => function(),
    }
}

/// An open device with its arena, pools and streams.
pub struct DeviceState {
    pub device: SharedDevice,
    /// Tells this device from every other that the process has opened, also of the same kind and ordinal.
    pub number: u32,
    pub arena: Arc<Arena>,
    pub root_pool: Arc<Pool>,
    /// The whole device.
    pub lane: Arc<Lane>,
    pub lanes: Lanes,
    pub default_stream: Arc<Stream>,
    /// Page-locked host memory.
    pub pinned: Arc<PinnedPool>,
    pub(crate) engine: EngineSlot,
    streams: Mutex<Streams>,
    /// While tasks share the device: the lease of everything that belongs to none.
    unscheduled: Mutex<Option<Arc<Lease>>>,
    scheduled: AtomicBool,
    /// What dropped graphs owned, until their last replays have finished.
    retired: Mutex<Vec<Retired>>,
}

type Retired = (Vec<Node>, Vec<(Arc<Stream>, u64)>);

#[derive(Default)]
struct Streams {
    all: Vec<Arc<Stream>>,
    idle: Vec<Arc<Stream>>,
}

impl std::fmt::Debug for DeviceState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DeviceState({:?})", self.device.props().name)
    }
}

impl DeviceState {
    /// Lives as long as the process, like the device itself: arrays and contexts refer to it without counting.
    pub fn new(device: SharedDevice, mode: ArenaMode, evicting: bool) -> Result<&'static DeviceState> {
        let arena = Arena::new(device.clone(), mode);
        let root_pool = Pool::root_with(&arena, "default", PoolOptions { evicting, ..PoolOptions::default() });
        let lane = Lane::whole(&device);
        let default_stream = Stream::new(&lane, 0, 0)?;
        let streams = Streams { all: vec![default_stream.clone()], idle: Vec::new() };
        let lanes = Lanes::new(&device);
        let pinned = PinnedPool::new(&device);
        arena.set_pinned(&pinned);
        static OPENED: AtomicU32 = AtomicU32::new(0);
        let state: &'static DeviceState = Box::leak(Box::new(DeviceState {
            device,
            number: OPENED.fetch_add(1, Ordering::Relaxed),
            arena,
            root_pool,
            lane,
            lanes,
            default_stream,
            pinned,
            engine: EngineSlot::default(),
            streams: Mutex::new(streams),
            unscheduled: Mutex::default(),
            scheduled: AtomicBool::new(false),
            retired: Mutex::default(),
        }));
        state.arena.set_streams(Box::new(move || state.stream(0)));
        Ok(state)
    }

    pub fn is_cuda(&self) -> bool {
        self.device.props().kind == DeviceKind::Cuda
    }

    /// Are operators run by their kernels here?
    pub fn uses_kernels(&self) -> bool {
        self.device.props().kind != DeviceKind::Cpu
    }

    /// Do tasks share the device?
    #[inline]
    pub(crate) fn is_scheduled(&self) -> bool {
        self.scheduled.load(Ordering::Relaxed)
    }

    /// The lease of work that belongs to no task.
    pub fn unscheduled(&self) -> Option<Arc<Lease>> {
        self.unscheduled.lock().clone()
    }

    /// Put work that belongs to no task under a lease, or under none again.
    pub(crate) fn set_unscheduled(&self, lease: Option<Arc<Lease>>) -> Option<Arc<Lease>> {
        let mut unscheduled = self.unscheduled.lock();
        self.scheduled.store(lease.is_some(), Ordering::Release);
        std::mem::replace(&mut *unscheduled, lease)
    }

    /// Nobody shares the device any more: let streams use all of it again, those in use right now excepted.
    pub(crate) fn go_home(&self) {
        for stream in self.streams() {
            // A stream that cannot move stays where it is: it works there too.
            let _ = stream.try_bind(&self.lane);
        }
    }

    /// A stream of this priority: one that was given back, or a new one.
    pub fn stream(&self, priority: i32) -> Result<Arc<Stream>> {
        self.check()?;
        let (least, greatest) = self.device.priority_range();
        let priority = priority.clamp(greatest.min(least), least.max(greatest));
        let mut streams = self.streams.lock();
        if let Some(i) = streams.idle.iter().position(|s| s.priority() == priority && !s.is_entered()) {
            let stream = streams.idle.swap_remove(i);
            stream.try_bind(&self.lane)?;
            return Ok(stream);
        }
        let id = streams.all.len() as u32;
        let stream = Stream::new(&self.lane, id, priority)?;
        streams.all.push(stream.clone());
        Ok(stream)
    }

    /// Take back a stream nobody holds any more; work already on it goes on.
    pub fn recycle(&self, stream: Arc<Stream>) {
        if is_stranded() {
            return std::mem::forget(stream);
        }
        self.streams.lock().idle.push(stream);
    }

    pub fn streams(&self) -> Vec<Arc<Stream>> {
        self.streams.lock().all.clone()
    }

    /// Keep what a dropped graph owned until these replays have finished.
    pub(crate) fn retire(&self, nodes: Vec<Node>, replays: Vec<(Arc<Stream>, u64)>) {
        self.reap();
        if !replays.iter().all(|(s, n)| s.passed(*n).unwrap_or(false)) {
            self.retired.lock().push((nodes, replays));
        }
    }

    /// Let go of what belonged to replays that have finished. A stream that cannot answer keeps it.
    fn reap(&self) {
        let all = std::mem::take(&mut *self.retired.lock());
        let (done, waiting): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|(_, replays)| replays.iter().all(|(s, n)| s.passed(*n).unwrap_or(false)));
        self.retired.lock().extend(waiting);
        drop(done);
    }

    /// Wait for all our streams.
    pub fn synchronize(&self, check: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        self.check()?;
        let streams = self.streams();
        // All of them are waited for, not only the one whose turn it is.
        let mut check = || check().inspect_err(|_| streams.iter().for_each(|stream| stream.interrupt()));
        for stream in &streams {
            stream.synchronize(&mut check)?;
        }
        self.reap();
        Ok(())
    }

    /// May this device still be used?
    #[inline]
    pub fn check(&self) -> Result<()> {
        let gate = GATE.load(Ordering::Relaxed);
        if gate == 0 { Ok(()) } else { self.refuse(gate) }
    }

    #[cold]
    fn refuse(&self, gate: u32) -> Result<()> {
        if gate & EXITING != 0 {
            return Err(Error::ShuttingDown);
        }
        if gate & STRANDED != 0 && (!self.is_cuda() || gate & FORKED == 0) {
            return Err(crate::forks::with_locks());
        }
        if !self.is_cuda() {
            return Ok(());
        }
        if gate & FORKED != 0 {
            return Err(Error::Forked(
                "this process was forked after CUDA had been initialised, and CUDA cannot be used in it. Start workers \
                 with multiprocessing's 'spawn' method, or fork before the first use of the GPU"
                    .to_string(),
            ));
        }
        Err(Error::DeviceLost(REPORT.get().cloned().unwrap_or_default()))
    }
}

/// Remember an open device.
pub fn register(state: &'static DeviceState) {
    DEVICES.lock().push(state);
    if state.is_cuda() {
        USES_CUDA.store(true, Ordering::Release);
    }
    crate::forks::watch();
}

pub fn devices() -> Vec<&'static DeviceState> {
    DEVICES.lock().clone()
}

/// In a forked child: the threads of the parent's tasks are not here, and a turn that one of them has would never end.
/// Work takes no turns with them.
pub fn forget_tasks() {
    if is_stranded() {
        return;
    }
    // What a missing thread has locked stays so.
    let Some(devices) = DEVICES.try_lock() else { return };
    for state in devices.iter() {
        state.scheduled.store(false, Ordering::Release);
        if let Some(mut unscheduled) = state.unscheduled.try_lock() {
            // Not dropped, which may need further locks.
            std::mem::forget(unscheduled.take());
        }
        if let Some(streams) = state.streams.try_lock() {
            streams.all.iter().for_each(|stream| stream.forget_users());
        }
    }
}

/// Turn a driver error that ends CUDA into the latched report, naming what was in flight.
pub fn attribute(error: Error) -> Error {
    let Error::Driver { code, .. } = &error else { return error };
    if !error.is_sticky() {
        return error;
    }
    let report = REPORT.get_or_init(|| fault_report(&error, *code));
    GATE.fetch_or(FAULT, Ordering::AcqRel);
    Error::DeviceLost(report.clone())
}

fn fault_report(error: &Error, code: i32) -> String {
    let mut lines = Vec::new();
    let mut culprit = None;
    for state in devices().iter().filter(|s| s.is_cuda()) {
        for stream in state.streams() {
            let done = stream.completed();
            let pending: Vec<_> = stream.history().into_iter().filter(|r| r.seq > done).collect();
            if pending.is_empty() {
                continue;
            }
            lines.push(format!("  stream {} ({} in flight, newest last):", stream.id(), stream.seq() - done));
            if culprit.is_none() {
                culprit = pending.iter().rev().find_map(|r| r.kernel_name());
            }
            lines.extend(pending.iter().rev().take(16).rev().map(|r| format!("    {}", r.describe())));
        }
    }
    let exact = sync_every_submission();
    let cause = error.to_string();
    let mut report = format!("the GPU stopped with a fault: {}.", cause.trim_end_matches('.'));
    match culprit {
        Some(name) if exact => report.push_str(&format!(" It happened in kernel '{name}'.")),
        Some(name) => report.push_str(&format!(
            " The last kernel launched was '{name}'; run with PYGPUKIT_SYNC=1 to find the exact one."
        )),
        None => {}
    }
    if !lines.is_empty() {
        report.push_str("\nLaunches in flight:\n");
        report.push_str(&lines.join("\n"));
    }
    report.push_str(&format!(
        "\nError {code} ends CUDA in this process: all further GPU work is refused. Restart the process."
    ));
    report
}

/// Has `shutdown` been called?
pub fn is_exiting() -> bool {
    GATE.load(Ordering::SeqCst) & EXITING != 0
}

/// Is the interpreter going away, or is this a forked child of a process that used CUDA?
pub(crate) fn exiting() -> bool {
    GATE.load(Ordering::Relaxed) & (EXITING | FORKED | STRANDED) != 0
}

/// Was this process forked while another thread could have locks?
pub fn is_stranded() -> bool {
    GATE.load(Ordering::Relaxed) & STRANDED != 0
}

/// Refuse what takes locks of a device in a child whose parent's threads may have them.
pub fn check_locks() -> Result<()> {
    if is_stranded() { Err(crate::forks::with_locks()) } else { Ok(()) }
}

/// In a forked child: no lock of a device is taken any more, not even to free memory.
pub(crate) fn strand() {
    GATE.fetch_or(STRANDED, Ordering::AcqRel);
    crate::memory::shutdown();
}

/// In a forked child.
pub(crate) fn note_fork() {
    if USES_CUDA.load(Ordering::Acquire) {
        GATE.fetch_or(FORKED, Ordering::AcqRel);
    }
}

/// Is this a forked child, which must not touch the parent's CUDA devices?
pub(crate) fn out_of_reach(device: &SharedDevice) -> bool {
    GATE.load(Ordering::Relaxed) & FORKED != 0 && device.props().kind == DeviceKind::Cuda
}

/// At most this many errors are reported at the end.
const LAST_ERRORS: usize = 8;

/// Errors of work in the background that no call has reported. Nothing is waited for, and no deferred work runs.
pub fn take_unreported() -> Vec<Error> {
    let mut errors = Vec::new();
    if GATE.load(Ordering::Relaxed) != 0 {
        return errors;
    }
    for state in devices() {
        for stream in state.streams() {
            while errors.len() < LAST_ERRORS
                && let Err(error) = state.device.stream_query(stream.raw())
            {
                let sticky = error.is_sticky();
                errors.push(attribute(error));
                // One that stays has been said.
                if sticky || state.is_cuda() {
                    return errors;
                }
            }
        }
    }
    errors
}

/// No driver call after this: the interpreter is going away and the driver with it.
pub fn shutdown() {
    GATE.fetch_or(EXITING, Ordering::SeqCst);
    crate::memory::shutdown();
}
