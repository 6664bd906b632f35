//! `Engine`: the threads that move transfers, chunk by chunk, and the streams their copies are on.
//!
//! One engine per device. Uploads and downloads have streams of their own, and so have those of high priority. Threads take
//! whatever chunk can go on, those of high priority first; whoever waits for a transfer works on it too, so that it
//! comes to its end even without threads. Threads are started by the first transfer and never end.
//!
//! Only the callers' threads let the CPU device's deferred work run (`Device::poll`): its errors are theirs to hear.
//!
//! Lock order: the engine's queue, then a transfer's progress, then the pinned pool, then a stream. None is held while a
//! chunk is copied or submitted.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::ring::{Ring, Slot};
use super::transfer::{Direction, HostSide, Keep, Next, Priority, Request, Step, Transfer, Way};
use crate::error::{Error, Result};
use crate::exec::ExecCtx;
use crate::forks::Working;
use crate::runtime::{self, DeviceState};
use crate::stream::Stream;

/// Chunks are not made smaller than this to have one for every thread.
const SMALLEST_CHUNK: usize = 256 << 10;

/// Chunks of page-locked memory are this many times larger: nothing but their start costs time.
const DIRECT_FACTOR: usize = 4;

/// How copies are made; for benchmarks to change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    pub workers: usize,
    /// Bytes of a slot, and of a chunk at most.
    pub chunk: usize,
    /// Slots for each direction.
    pub slots: usize,
    /// Fill slots with stores that leave the caches alone.
    pub past_caches: bool,
}

impl Default for Options {
    fn default() -> Options {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let workers = cores.saturating_sub(1).clamp(1, 8);
        Options { workers, chunk: 4 << 20, slots: workers + 4, past_caches: false }
    }
}

struct Queue {
    options: Options,
    /// By priority.
    transfers: [VecDeque<Arc<Transfer>>; 2],
    /// By direction.
    rings: [Ring; 2],
    /// By direction and priority, made when first needed.
    streams: [[Option<Arc<Stream>>; 2]; 2],
    /// Threads started.
    workers: usize,
    /// Threads that work on a chunk.
    busy: usize,
    /// One thread looks again and again whether streams have passed; the others sleep.
    watched: bool,
}

pub struct Engine {
    state: &'static DeviceState,
    /// Threads do not survive a fork, so a child makes an engine of its own.
    process: u32,
    /// The standard locks: parking_lot remembers threads that sleep in a table of the process, and in a forked child, where
    /// those threads are not, the table would point to what is no longer theirs.
    queue: Mutex<Queue>,
    changed: Condvar,
}

/// Where a device keeps its engine.
#[derive(Default)]
pub(crate) struct EngineSlot(AtomicPtr<Engine>);

/// The engine of a device. It lives as long as the process.
pub fn engine(state: &'static DeviceState) -> &'static Engine {
    let slot = &state.engine.0;
    let known = slot.load(Ordering::Acquire);
    // SAFETY: engines are leaked, so the pointer is valid or null.
    if let Some(engine) = unsafe { known.as_ref() }
        && engine.process == std::process::id()
    {
        return engine;
    }
    let made = Box::leak(Box::new(Engine::new(state)));
    match slot.compare_exchange(known, made, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => made,
        // Another thread was first; it belongs to this process.
        // SAFETY: only engines are stored, and they are never freed.
        Err(other) => unsafe { &*other },
    }
}

/// Wait until no thread of an engine calls the driver any more, for a while. To be called after the runtime's shutdown.
pub fn quiesce() {
    const PATIENCE: Duration = Duration::from_secs(2);
    let start = Instant::now();
    for state in runtime::devices() {
        // SAFETY: engines are leaked, so the pointer is valid or null.
        let Some(engine) = (unsafe { state.engine.0.load(Ordering::Acquire).as_ref() }) else { continue };
        if engine.process != std::process::id() {
            continue;
        }
        let mut queue = engine.lock();
        engine.changed.notify_all();
        while queue.busy > 0 && start.elapsed() < PATIENCE {
            queue = engine.sleep(queue, Some(Duration::from_millis(5)));
        }
    }
}

impl Engine {
    fn new(state: &'static DeviceState) -> Engine {
        let options = Options::default();
        let ring = || Ring::new(options.slots, options.chunk);
        let queue = Queue {
            options,
            transfers: Default::default(),
            rings: [ring(), ring()],
            streams: Default::default(),
            workers: 0,
            busy: 0,
            watched: false,
        };
        Engine { state, process: std::process::id(), queue: Mutex::new(queue), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Until something changes, or for a while.
    fn sleep<'a>(&self, queue: MutexGuard<'a, Queue>, limit: Option<Duration>) -> MutexGuard<'a, Queue> {
        match limit {
            Some(limit) => self.changed.wait_timeout(queue, limit).unwrap_or_else(PoisonError::into_inner).0,
            None => self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner),
        }
    }

    pub fn options(&self) -> Options {
        self.lock().options
    }

    pub fn set_options(&self, options: Options) {
        let options = Options {
            workers: options.workers.clamp(1, 256),
            chunk: options.chunk.clamp(4096, 1 << 30).next_multiple_of(4096),
            slots: options.slots.clamp(1, 4096),
            past_caches: options.past_caches,
        };
        let mut queue = self.lock();
        queue.options = options;
        let dropped: Vec<Vec<Slot>> =
            queue.rings.iter_mut().map(|ring| ring.set_shape(options.slots, options.chunk)).collect();
        drop(queue);
        drop(dropped);
    }

    /// Begin a transfer. `alone` says that the caller will wait for it at once: then a single chunk wakes nobody.
    pub fn start(&'static self, ctx: &ExecCtx, request: Request, alone: bool) -> Result<Arc<Transfer>> {
        self.state.check()?;
        let pool = &self.state.pinned;
        let direct = matches!(&request.host, HostSide::Memory(p) if pool.contains(*p as usize, request.bytes));
        let mut queue = self.lock();
        let Options { workers, chunk, .. } = queue.options;
        let chunk = match &request.host {
            HostSide::File(_) => chunk,
            HostSide::Memory(_) if direct => chunk.saturating_mul(DIRECT_FACTOR),
            HostSide::Memory(_) => {
                let share = request.bytes.div_ceil(workers + 1).next_multiple_of(4096);
                share.clamp(SMALLEST_CHUNK.min(chunk), chunk)
            }
        };
        let stream = self.stream(&mut queue, request.direction, request.priority)?;
        let mut copies = ExecCtx::default_for(self.state).on_stream(&stream);
        copies.task.clone_from(&ctx.task);
        let many = request.bytes > chunk;
        let transfer = Arc::new(Transfer::new(self, copies, request, chunk, direct));
        queue.rings.iter_mut().for_each(Ring::retry);
        queue.transfers[transfer.priority() as usize].push_back(transfer.clone());
        if many || !alone {
            self.ensure_workers(&mut queue);
            self.changed.notify_all();
        }
        Ok(transfer)
    }

    fn stream(&self, queue: &mut Queue, direction: Direction, priority: Priority) -> Result<Arc<Stream>> {
        let slot = &mut queue.streams[direction as usize][priority as usize];
        if let Some(stream) = slot {
            return Ok(stream.clone());
        }
        let (least, greatest) = self.state.device.priority_range();
        let number =
            if priority == Priority::High { greatest } else { 0.clamp(greatest.min(least), least.max(greatest)) };
        Ok(slot.insert(self.state.stream(number)?).clone())
    }

    /// Threads that cannot be started are not missed: whoever waits does the work.
    fn ensure_workers(&'static self, queue: &mut MutexGuard<'_, Queue>) {
        while queue.workers < queue.options.workers {
            let index = queue.workers;
            let name = format!("pygpukit-copy-{index}");
            if std::thread::Builder::new().name(name).spawn(move || self.work(index)).is_err() {
                break;
            }
            queue.workers += 1;
        }
    }

    pub(super) fn has_workers(&self) -> bool {
        self.lock().workers > 0
    }

    pub(super) fn wake(&self) {
        self.changed.notify_all();
    }

    /// A thread's life.
    fn work(&'static self, index: usize) {
        let mut pause = Duration::ZERO;
        loop {
            let mut over = Vec::new();
            let mut queue = self.lock();
            if runtime::exiting() {
                // The process ends, and the driver may be gone.
                self.changed.notify_all();
                drop(queue);
                loop {
                    std::thread::park();
                }
            }
            let found = if index < queue.options.workers { find(&mut queue, None, &mut over) } else { None };
            if let Some((transfer, step)) = found {
                queue.busy += 1;
                let _working = Working::begin();
                drop(queue);
                drop(over);
                pause = Duration::ZERO;
                // Nobody waits here: what goes wrong is the transfer's.
                let _ = self.run(&transfer, step, false);
                drop(transfer);
                self.lock().busy -= 1;
                self.changed.notify_one();
                continue;
            }
            if !over.is_empty() {
                drop(queue);
                drop(over);
                continue;
            }
            let waiting = queue.transfers.iter().any(|list| !list.is_empty());
            if waiting && !queue.watched && index < queue.options.workers {
                queue.watched = true;
                pause = (pause * 2).clamp(Duration::from_micros(10), Duration::from_millis(1));
                self.sleep(queue, Some(pause)).watched = false;
            } else {
                pause = Duration::ZERO;
                drop(self.sleep(queue, None));
            }
        }
    }

    /// Do one piece of work on a transfer, if there is any. An error means that whoever waits is to give up; the transfer
    /// goes on.
    pub(super) fn help(&'static self, transfer: &Arc<Transfer>) -> Result<bool> {
        let mut over = Vec::new();
        let mut queue = self.lock();
        let found = find(&mut queue, Some(transfer), &mut over);
        drop(queue);
        drop(over);
        match found {
            Some((transfer, step)) => {
                let ran = self.run(&transfer, step, true);
                // A thread may wait for what this has made possible.
                self.changed.notify_one();
                ran.map(|()| true)
            }
            None => Ok(false),
        }
    }

    fn run(&self, transfer: &Transfer, step: Step, waiting: bool) -> Result<()> {
        match step {
            Step::Send(at, bytes, way) => {
                let slot = match way {
                    Way::Direct => None,
                    Way::Through(slot) => Some(slot),
                    Way::Make(size) => match self.make_slot(transfer, size) {
                        Some(slot) => Some(slot),
                        None => {
                            transfer.unsent(at, bytes);
                            return Ok(());
                        }
                    },
                };
                let outcome = transfer.send(at, bytes, slot.as_ref());
                let mut queue = self.lock();
                if waiting && let Err(interrupt @ Error::Host(_)) = outcome {
                    // Ctrl-C while the array's memory was made: a chunk for somebody else.
                    transfer.unsent(at, bytes);
                    if let Some(slot) = slot {
                        let (stream, _) = transfer.last_copy();
                        let seq = stream.seq();
                        queue.rings[transfer.direction() as usize].put(slot, Some((stream, seq)));
                    }
                    return Err(interrupt);
                }
                if let Some((slot, stream, seq)) = transfer.sent(at, bytes, slot, outcome) {
                    queue.rings[transfer.direction() as usize].put(slot, Some((stream, seq)));
                }
            }
            Step::Land(at, bytes, slot) => {
                transfer.copy_out(at, bytes, &slot);
                let mut queue = self.lock();
                queue.rings[transfer.direction() as usize].put(slot, None);
                transfer.landed(bytes);
            }
        }
        Ok(())
    }

    fn make_slot(&self, transfer: &Transfer, bytes: usize) -> Option<Slot> {
        match Slot::new(&self.state.pinned, bytes) {
            Ok(slot) => Some(slot),
            // Whatever the reason, fewer slots do as well.
            Err(_) => self.lock().rings[transfer.direction() as usize].refused(),
        }
    }
}

/// The next piece of work, of one transfer or of any. Transfers that are over leave the queue; what they kept goes to
/// `over`, to be dropped without the lock.
fn find(
    queue: &mut Queue,
    only: Option<&Arc<Transfer>>,
    over: &mut Vec<(Arc<Transfer>, Option<Keep>)>,
) -> Option<(Arc<Transfer>, Step)> {
    let Queue { transfers, rings, .. } = queue;
    for list in transfers {
        let mut i = 0;
        while let Some(transfer) = list.get(i) {
            if only.is_some_and(|only| !Arc::ptr_eq(only, transfer)) {
                i += 1;
                continue;
            }
            match transfer.next(&mut rings[transfer.direction() as usize]) {
                Next::Step(step) => return Some((transfer.clone(), step)),
                Next::Later => i += 1,
                Next::Over(keep) => {
                    if let Some(transfer) = list.remove(i) {
                        over.push((transfer, keep));
                    }
                }
            }
        }
    }
    None
}
