//! Streams with sequence numbers.
//!
//! Every submission to a stream gets the next number. Memory reuse, eviction, accounting and tracing all ask
//! the same question, `passed(n)`: has the stream finished everything up to n? The answer comes from events
//! recorded lazily, when somebody asks, and never one per kernel.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::command::{Access, ArgTag, Command, Launch, UseRef, Work};
use crate::counters::Counters;
use crate::device::{DeviceKind, RawEvent, RawStream, SharedDevice, Waited};
use crate::early::InFlight;
use crate::error::{Error, Result};
use crate::kernel::Label;
use crate::lane::Lane;
use crate::library_call::LibraryCall;
use crate::memory::Storage;
use crate::sched::{Lease, prompt};

/// Launches kept per stream for fault reports.
pub const HISTORY: usize = 64;

/// Arguments remembered per launch.
const TAGS: usize = 4;

/// Where memory moves, a marker follows the use of as many bytes of it.
const MARKED_BYTES: usize = 32 << 20;

/// One remembered submission.
#[derive(Clone)]
pub struct LaunchRecord {
    pub seq: u64,
    what: Remembered,
    tags: [ArgTag; TAGS],
    tag_count: u8,
    task: Option<Arc<str>>,
}

#[derive(Clone)]
enum Remembered {
    Kernel(Label, [u32; 3], [u32; 3], u32),
    Library(Arc<str>),
    Other(&'static str, usize),
}

impl LaunchRecord {
    /// One line of a fault report.
    pub fn describe(&self) -> String {
        let mut line = match &self.what {
            Remembered::Kernel(kernel, grid, block, shared) => {
                format!("#{} kernel '{}' grid={grid:?} block={block:?} shared={shared}", self.seq, kernel.name())
            }
            Remembered::Library(name) => format!("#{} library call {name}", self.seq),
            Remembered::Other(what, bytes) => format!("#{} {what} ({bytes} bytes)", self.seq),
        };
        for tag in &self.tags[..self.tag_count as usize] {
            line.push_str(&format!(" {}", tag.describe()));
        }
        if let Some(task) = &self.task {
            line.push_str(&format!(" task={task}"));
        }
        line
    }

    pub fn kernel_name(&self) -> Option<Arc<str>> {
        match &self.what {
            Remembered::Kernel(kernel, ..) => Some(kernel.name()),
            Remembered::Library(..) | Remembered::Other(..) => None,
        }
    }
}

struct Marker {
    seq: u64,
    event: RawEvent,
}

#[derive(Default)]
struct State {
    markers: VecDeque<Marker>,
    spare: Vec<RawEvent>,
    /// The last launches; `oldest` is where the next one goes once it is full.
    history: Vec<LaunchRecord>,
    oldest: usize,
    /// Handles on the lanes the stream has been bound to.
    handles: Vec<(u32, RawStream)>,
    /// What a kernel started early would run beside.
    in_flight: InFlight,
}

/// Of `Stream::users`: the handle is being exchanged.
const MOVING: u32 = 1 << 31;

thread_local! {
    /// Streams this thread is inside of: work that the CPU device runs at once may submit more.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Is this thread inside of a submission?
pub(crate) fn is_inside() -> bool {
    DEPTH.with(|depth| depth.get() > 0)
}

/// The stream's handle, which is not exchanged while this lives.
pub(crate) struct Entered<'a> {
    stream: &'a Stream,
}

impl Entered<'_> {
    #[inline]
    pub fn raw(&self) -> RawStream {
        self.stream.raw()
    }
}

impl Drop for Entered<'_> {
    #[inline]
    fn drop(&mut self) {
        DEPTH.with(|depth| depth.set(depth.get() - 1));
        self.stream.users.fetch_sub(1, Ordering::Release);
    }
}

/// A stream of one device. Streams are never destroyed while the device lives: a closed one is handed out
/// again, so its numbers only grow and nothing that remembers (stream, number) can dangle.
pub struct Stream {
    id: u32,
    raw: AtomicUsize,
    /// Who uses the handle now, and whether it is being exchanged.
    users: AtomicU32,
    lane: Mutex<Arc<Lane>>,
    /// The lease of the last submission, if it had one.
    tenant: Mutex<Weak<Lease>>,
    leased: AtomicBool,
    priority: i32,
    device: SharedDevice,
    /// Number of the last submission, or wait for another stream, that has reached the driver.
    submitted: AtomicU64,
    /// Highest number known to have finished.
    completed: AtomicU64,
    /// Bytes of movable memory used since the last marker.
    unmarked: AtomicUsize,
    state: Mutex<State>,
    /// See `ExecCtx::counters`. They stay when the stream changes its lane.
    pub(crate) counters: Counters,
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Stream({}, priority {})", self.id, self.priority)
    }
}

impl Stream {
    /// `id` is unique on the device and small: pools index tables with it.
    pub fn new(lane: &Arc<Lane>, id: u32, priority: i32) -> Result<Arc<Stream>> {
        let raw = lane.stream(priority)?;
        let state = State { handles: vec![(lane.id(), raw)], ..State::default() };
        Ok(Arc::new(Stream {
            id,
            raw: AtomicUsize::new(raw.0),
            users: AtomicU32::new(0),
            lane: Mutex::new(lane.clone()),
            tenant: Mutex::default(),
            leased: AtomicBool::new(false),
            priority,
            device: lane.device().clone(),
            submitted: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            unmarked: AtomicUsize::new(0),
            state: Mutex::new(state),
            counters: Counters::default(),
        }))
    }

    #[inline]
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The handle now. Work is submitted through `enter`, which keeps it.
    #[inline]
    pub fn raw(&self) -> RawStream {
        RawStream(self.raw.load(Ordering::Acquire))
    }

    /// Is it the handle of this stream, on any of the lanes it was bound to?
    pub(crate) fn has_handle(&self, raw: RawStream) -> bool {
        self.state.lock().handles.iter().any(|(_, handle)| *handle == raw)
    }

    /// Where the stream's work runs.
    pub fn lane(&self) -> Arc<Lane> {
        self.lane.lock().clone()
    }

    /// Use the handle: it stays the same until the result is dropped.
    #[inline]
    pub(crate) fn enter(&self) -> Entered<'_> {
        let before = self.users.fetch_add(1, Ordering::Acquire);
        let depth = DEPTH.with(|depth| depth.replace(depth.get() + 1));
        let entered = Entered { stream: self };
        // Whoever is inside already is waited for by the exchange, and must not wait for it.
        if before & MOVING != 0 && depth == 0 {
            drop(entered);
            return self.enter_later();
        }
        entered
    }

    #[cold]
    fn enter_later(&self) -> Entered<'_> {
        let mut turns = 0;
        while self.users.load(Ordering::Acquire) & MOVING != 0 {
            relax(&mut turns);
        }
        self.enter()
    }

    /// Keep the handle until as many calls of `release`: another library submits to it. Its thread is not inside
    /// meanwhile, and what it submits here enters as always.
    pub(crate) fn hold(&self) {
        let _entered = self.enter();
        self.users.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn release(&self) {
        self.users.fetch_sub(1, Ordering::Release);
    }

    /// In a forked child: no other thread is inside.
    pub(crate) fn forget_users(&self) {
        if !is_inside() {
            self.users.store(0, Ordering::Release);
        }
    }

    /// Is anybody submitting to this stream right now?
    pub(crate) fn is_entered(&self) -> bool {
        self.users.load(Ordering::Acquire) & !MOVING != 0
    }

    /// Run what follows on another lane, after what was submitted so far. False: somebody is inside the stream.
    pub(crate) fn try_bind(&self, lane: &Arc<Lane>) -> Result<bool> {
        struct Moving<'a>(&'a Stream);
        impl Drop for Moving<'_> {
            fn drop(&mut self) {
                self.0.users.fetch_and(!MOVING, Ordering::Release);
            }
        }
        if self.lane.lock().id() == lane.id() {
            return Ok(true);
        }
        if self.users.fetch_or(MOVING, Ordering::AcqRel) & MOVING != 0 {
            return Ok(false);
        }
        let _moving = Moving(self);
        if self.is_entered() {
            return Ok(false);
        }
        let mut here = self.lane.lock();
        let mut state = self.state.lock();
        let to = match state.handles.iter().find(|(id, _)| *id == lane.id()) {
            Some((_, raw)) => *raw,
            None => {
                let raw = lane.stream(self.priority)?;
                state.handles.push((lane.id(), raw));
                raw
            }
        };
        let event = self.record_marker(&mut state)?;
        self.device.stream_wait(to, event)?;
        state.in_flight.clear();
        self.raw.store(to.0, Ordering::Release);
        *here = lane.clone();
        Ok(true)
    }

    /// Who submits to this stream under which lease; told when a thread waits for the stream.
    pub(crate) fn set_tenant(&self, lease: &Arc<Lease>) {
        *self.tenant.lock() = Arc::downgrade(lease);
        self.leased.store(true, Ordering::Release);
    }

    /// A thread is about to wait for this stream.
    fn rest(&self) {
        if self.leased.load(Ordering::Acquire) && !is_inside() {
            let tenant = self.tenant.lock().upgrade();
            match tenant {
                Some(lease) => lease.rest(),
                None => self.leased.store(false, Ordering::Release),
            }
        }
    }

    pub fn priority(&self) -> i32 {
        self.priority
    }

    pub fn device(&self) -> &SharedDevice {
        &self.device
    }

    /// Number of the last submission.
    #[inline]
    pub fn seq(&self) -> u64 {
        self.submitted.load(Ordering::Acquire)
    }

    /// Count and remember a submission that has reached the driver. Counting after the launch keeps markers
    /// conservative: a marker never claims a number whose work it does not cover.
    pub(crate) fn note(&self, command: &Command, task: Option<&Arc<str>>) -> u64 {
        let what = match &command.work {
            Work::Kernel(k) => Remembered::Kernel(k.kernel.label(), k.grid, k.block, k.shared),
            Work::Copy(c) => Remembered::Other("copy", c.bytes),
            Work::Fill(f) => Remembered::Other("fill", f.count * f.width as usize),
            Work::Host(_) => Remembered::Other("host function", 0),
            Work::Library(call) => Remembered::Library(call.name().clone()),
            Work::Graph(_) => Remembered::Other("graph replay", 0),
        };
        self.remember(what, command.uses.iter().map(|u| u.tag), task, |in_flight| match &command.work {
            Work::Kernel(k) => {
                in_flight.add(k.attributes.programmatic, command.uses.iter().map(|u| (&*u.storage, u.access)));
            }
            _ => in_flight.clear(),
        })
    }

    /// The next kernel is started in order, as behind an executable graph.
    pub(crate) fn end_chain(&self) {
        self.state.lock().in_flight.clear();
    }

    /// May a kernel that uses this memory be started before the last submission has ended?
    pub(crate) fn admits_early<'a>(&self, uses: impl Iterator<Item = (&'a Storage, Access)>) -> bool {
        self.state.lock().in_flight.admits(uses)
    }

    /// `note` for a borrowed launch, whose attributes say how it was started.
    #[inline]
    pub(crate) fn note_launch(&self, launch: &Launch<'_>, uses: &[UseRef<'_>], task: Option<&Arc<str>>) -> u64 {
        let what = Remembered::Kernel(launch.kernel.label(), launch.grid, launch.block, launch.shared);
        self.remember(what, uses.iter().map(|u| u.tag), task, |in_flight| {
            in_flight.add(launch.attributes.programmatic, uses.iter().map(|u| (&**u.storage, u.access)));
        })
    }

    /// `note` for a host function that was not made a command.
    #[inline]
    pub(crate) fn note_host(&self, uses: &[UseRef<'_>], task: Option<&Arc<str>>) -> u64 {
        self.remember(Remembered::Other("host function", 0), uses.iter().map(|u| u.tag), task, InFlight::clear)
    }

    /// `note` for a borrowed call of a library.
    #[inline]
    pub(crate) fn note_library(&self, call: &dyn LibraryCall, uses: &[UseRef<'_>], task: Option<&Arc<str>>) -> u64 {
        self.remember(Remembered::Library(call.name().clone()), uses.iter().map(|u| u.tag), task, InFlight::clear)
    }

    #[inline]
    fn remember(
        &self,
        what: Remembered,
        used: impl Iterator<Item = ArgTag>,
        task: Option<&Arc<str>>,
        follow: impl FnOnce(&mut InFlight),
    ) -> u64 {
        let (mut tags, mut tag_count) = ([ArgTag::default(); TAGS], 0);
        for (slot, tag) in tags.iter_mut().zip(used) {
            *slot = tag;
            tag_count += 1;
        }
        let mut state = self.state.lock();
        follow(&mut state.in_flight);
        // Only written under the lock.
        let seq = self.submitted.load(Ordering::Relaxed) + 1;
        self.submitted.store(seq, Ordering::Release);
        let record = LaunchRecord { seq, what, tags, tag_count, task: task.cloned() };
        if state.history.len() < HISTORY {
            state.history.push(record);
        } else {
            let oldest = state.oldest;
            state.history[oldest] = record;
            state.oldest = (oldest + 1) % HISTORY;
        }
        seq
    }

    /// Has the stream finished everything up to `n`? Never blocks; asking starts the tracking.
    pub fn passed(&self, n: u64) -> Result<bool> {
        if self.completed.load(Ordering::Acquire) >= n {
            return Ok(true);
        }
        let mut state = self.state.lock();
        self.mark(&mut state, n)?;
        self.harvest(&mut state)?;
        Ok(self.completed.load(Ordering::Acquire) >= n)
    }

    /// Work that uses this many bytes of movable memory has reached the driver. Whoever waits for it later finds a marker
    /// not far behind it, and need not wait for all that was queued since.
    pub(crate) fn note_movable(&self, bytes: usize) {
        if self.unmarked.fetch_add(bytes, Ordering::Relaxed) + bytes >= MARKED_BYTES {
            self.unmarked.store(0, Ordering::Relaxed);
            // Without a marker they wait longer, and hear of the error then.
            let _ = self.passed(self.seq());
        }
    }

    /// Has the stream finished everything submitted so far? Asking again and again must come to an end, so work moves
    /// on meanwhile.
    pub fn query(&self) -> Result<bool> {
        self.device.poll()?;
        self.passed(self.seq())
    }

    /// Wait until the stream has passed `n`. `check` runs every few milliseconds and may end the wait with an
    /// error (a signal handler that raised), and kernels of the stream with it.
    pub fn wait_passed(&self, n: u64, check: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        self.rest();
        let mut check = || check().inspect_err(|_| self.interrupt());
        wait_until(&mut check, || {
            if self.passed(n)? {
                return Ok(true);
            }
            self.device.poll()?;
            Ok(false)
        })
    }

    /// Wait for everything submitted so far.
    pub fn synchronize(&self, check: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        self.rest();
        let n = self.seq();
        let mut check = || check().inspect_err(|_| self.interrupt());
        wait_until(&mut check, || {
            self.device.poll()?;
            // An idle stream is the quick answer. While other threads feed it, it may never be idle.
            if self.seq() == n { self.device.stream_query(self.raw()) } else { self.passed(n) }
        })?;
        self.completed.fetch_max(n, Ordering::AcqRel);
        Ok(())
    }

    /// Somebody gave up waiting for this stream: end its kernels where the device can.
    pub(crate) fn interrupt(&self) {
        self.device.interrupt(Waited::Stream(self.raw()));
    }

    /// Make this stream wait, on the device, until `other` has passed `n`.
    pub fn wait_for(&self, other: &Stream, n: u64) -> Result<()> {
        if std::ptr::eq(self, other) || other.completed.load(Ordering::Acquire) >= n {
            return Ok(());
        }
        same_backend(&self.device, &other.device, "a stream", "a stream")?;
        // Before the other's lock, under which nothing is waited for.
        let entered = self.enter();
        let mut state = other.state.lock();
        let Some(event) = other.marker_at(&mut state, n)? else { return Ok(()) };
        self.device.stream_wait(entered.raw(), event)?;
        // Before our own lock: two streams may wait for each other's work at the same time.
        drop(state);
        self.note_wait();
        Ok(())
    }

    /// Make a stream that is none of ours wait, on the device, until this one has passed `n`.
    pub(crate) fn hold_back(&self, other: RawStream, n: u64) -> Result<()> {
        if self.completed.load(Ordering::Acquire) >= n {
            return Ok(());
        }
        let mut state = self.state.lock();
        match self.marker_at(&mut state, n)? {
            Some(event) => self.device.stream_wait(other, event),
            None => Ok(()),
        }
    }

    /// Count a wait that has reached the driver: whoever waits for this stream from now on waits for that too.
    pub(crate) fn note_wait(&self) {
        let mut state = self.state.lock();
        state.in_flight.clear();
        self.submitted.fetch_add(1, Ordering::AcqRel);
    }

    /// The last launches, oldest first, for a fault report.
    pub fn history(&self) -> Vec<LaunchRecord> {
        let state = self.state.lock();
        let (newer, older) = state.history.split_at(state.oldest);
        older.iter().chain(newer).cloned().collect()
    }

    /// Highest number known to have finished, without asking the driver.
    pub fn completed(&self) -> u64 {
        self.completed.load(Ordering::Acquire)
    }

    /// Make sure a marker at or after `n` exists.
    fn mark(&self, state: &mut State, n: u64) -> Result<()> {
        if state.markers.back().is_some_and(|m| m.seq >= n) {
            return Ok(());
        }
        self.record_marker(state).map(drop)
    }

    /// The event of the first marker at or after `n`.
    fn marker_at(&self, state: &mut State, n: u64) -> Result<Option<RawEvent>> {
        self.mark(state, n)?;
        let first = state.markers.partition_point(|marker| marker.seq < n);
        Ok(state.markers.get(first).map(|marker| marker.event))
    }

    fn record_marker(&self, state: &mut State) -> Result<RawEvent> {
        // Read before the record, and before the handle: the event then covers at least this number.
        let seq = self.submitted.load(Ordering::Acquire);
        let event = match state.spare.pop() {
            Some(event) => event,
            None => self.device.event_create(false)?,
        };
        if let Err(error) = self.device.event_record(event, self.raw()) {
            state.spare.push(event);
            return Err(error);
        }
        state.markers.push_back(Marker { seq, event });
        Ok(event)
    }

    fn harvest(&self, state: &mut State) -> Result<()> {
        while let Some(marker) = state.markers.front() {
            if !self.device.event_query(marker.event)? {
                break;
            }
            self.completed.fetch_max(marker.seq, Ordering::AcqRel);
            let done = state.markers.pop_front().expect("front exists");
            state.spare.push(done.event);
        }
        Ok(())
    }
}

/// Wait a moment for another thread: short at first.
pub(crate) fn relax(turns: &mut u32) {
    *turns += 1;
    if *turns < 1000 {
        std::hint::spin_loop();
    } else {
        std::thread::sleep(Duration::from_micros(20));
    }
}

/// Events of one CUDA device can be waited for on another, but not between CUDA and the CPU device.
pub(crate) fn same_backend(a: &SharedDevice, b: &SharedDevice, waits: &str, for_what: &str) -> Result<()> {
    if a.props().kind == b.props().kind && (a.props().kind == DeviceKind::Cuda || same_device(a, b)) {
        return Ok(());
    }
    Err(Error::Device(format!("{waits} of one device cannot wait for {for_what} of another; synchronize it instead")))
}

pub(crate) fn same_device(a: &SharedDevice, b: &SharedDevice) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(a), Arc::as_ptr(b))
}

impl ArgTag {
    pub fn describe(&self) -> String {
        let dims: Vec<String> = self.dims.iter().take(self.ndim as usize).map(|d| d.to_string()).collect();
        let more = if self.ndim > 4 { ", ..." } else { "" };
        let name = crate::dtype::DType::from_code(self.dtype).map_or("bytes", |d| d.name());
        format!("{name}({}{more})", dims.join(", "))
    }
}

/// Poll until `done`: spin first, since most waits are short, then sleep a little between polls.
pub(crate) fn wait_until(check: &mut dyn FnMut() -> Result<()>, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
    let start = Instant::now();
    let mut next_check = Duration::from_millis(5);
    let mut prompt = prompt::watch();
    loop {
        if done()? {
            if let Some(wait) = prompt {
                wait.ended();
            }
            return Ok(());
        }
        let waited = start.elapsed();
        if let Some(wait) = &mut prompt {
            wait.look(waited);
        }
        if waited >= next_check {
            check()?;
            next_check = waited + Duration::from_millis(5);
        }
        if waited > Duration::from_millis(2) {
            std::thread::sleep(Duration::from_micros(20));
        } else {
            std::hint::spin_loop();
        }
    }
}
