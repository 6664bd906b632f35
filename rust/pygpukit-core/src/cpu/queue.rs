//! Streams and events of the CPU device, run at once or deferred.
//!
//! A stream is a queue of operations; those may run that are heads of their queues and wait for no event. Deferred,
//! `poll` runs a few of them, drawn from a seed. Inline, the thread that submits to an idle stream runs its work at
//! once, and then what other threads have added meanwhile: they never wait for their turn, because they may hold a
//! lock that the running work needs. No lock is held while work runs, nor while it is dropped: it may submit work,
//! take other locks, or free memory.
//!
//! Who gives up waiting (Ctrl-C) ends the kernels waited for: those that run, and those queued. Copies, fills and host
//! functions still run: they end by themselves, and arrays made of host data have their values.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::kernels::{Kernels, PAUSE};
use super::{code, failure};
use crate::command::{Copy, Fill, HostResult, KernelLaunch, Work};
use crate::device::{RawEvent, RawStream, Waited};
use crate::emulator::{Chain, Options, Running};
use crate::error::{Error, Result};
use crate::forks::{Runner, Working, in_the_middle};
use crate::random::Random;
use crate::runtime;

/// At most this many operations run in one poll.
const STEPS: u64 = 3;

/// How long a launch is waited for before it goes on in the background: kernels may wait for the host.
const PATIENCE: Duration = Duration::from_millis(250);

/// At most this many errors wait to be reported.
const MAX_ERRORS: usize = 64;

/// An inline poll runs no further operation after this time: who waits must hear signals.
const POLL: Duration = Duration::from_millis(5);

/// At most this many kernels that were not run are named.
const MAX_NAMES: usize = 4;

/// Number of one record of an event: waits refer to the record, not to the event, which may be recorded again.
type RecordId = u64;

enum Operation {
    Work(Box<Work>),
    Record(RawEvent, RecordId),
    Wait(RecordId),
}

#[derive(Default)]
struct StreamQueue {
    operations: VecDeque<Operation>,
    /// Threads a kernel of it runs on at most.
    workers: usize,
    /// An operation of this stream runs now, on some thread.
    running: bool,
    runner: Runner,
    /// The kernel it is, once that has begun.
    kernel: Option<Arc<Running>>,
    /// What its kernels touched that may still run when the next one is started early.
    chain: Chain,
    /// Somebody waits for that kernel's end and reports its error.
    attended: bool,
    /// A kernel that runs now is not wanted any more.
    interrupted: bool,
    /// Names of kernels that were taken out of the queue while the operation runs: its end reports them.
    dropped: Vec<String>,
}

struct Event {
    timing: bool,
    last: Option<RecordId>,
    /// When the last record ran.
    at: Option<Instant>,
}

#[derive(Default)]
struct State {
    streams: Vec<StreamQueue>,
    /// Numbers of streams that were removed.
    unused: Vec<usize>,
    events: HashMap<usize, Event>,
    next_event: usize,
    next_record: RecordId,
    /// Records that have not run yet.
    pending: HashSet<RecordId>,
    /// Errors of work that was run for another thread, until a poll or a query of a stream reports them.
    errors: VecDeque<Error>,
    random: Random,
}

pub(crate) struct Queue {
    deferred: bool,
    kernels: Arc<Kernels>,
    state: Mutex<State>,
    /// Notified when the turn of a kernel has ended.
    ended: Condvar,
}

/// Operations that one stream defers. As on a device, a program that submits more does not run away from its work.
const MOST_DEFERRED: usize = 64;

impl Queue {
    pub fn new(deferred: Option<u64>, kernels: Arc<Kernels>) -> Arc<Queue> {
        let state = State { random: Random::new(deferred.unwrap_or(0)), ..State::default() };
        Arc::new(Queue { deferred: deferred.is_some(), kernels, state: Mutex::new(state), ended: Condvar::new() })
    }

    /// A stream whose kernels run on so many SMs.
    pub fn add_stream(&self, sm_count: u32) -> RawStream {
        let mut state = self.state.lock();
        let queue = StreamQueue { workers: sm_count as usize, ..StreamQueue::default() };
        match state.unused.pop() {
            Some(index) => {
                state.streams[index] = queue;
                RawStream(index)
            }
            None => {
                state.streams.push(queue);
                RawStream(state.streams.len() - 1)
            }
        }
    }

    /// A stream that nobody uses again; its number may be another's later.
    pub fn remove_stream(&self, stream: RawStream) {
        let mut state = self.state.lock();
        let idle = |queue: &StreamQueue| queue.operations.is_empty() && !queue.running;
        if state.streams.get(stream.0).is_some_and(idle) && !state.unused.contains(&stream.0) {
            state.unused.push(stream.0);
            let chain = std::mem::take(&mut state.streams[stream.0].chain);
            drop(state);
            drop(chain);
        }
    }

    /// Threads a kernel of this stream runs on at most.
    pub fn workers(&self, stream: RawStream) -> Result<usize> {
        Ok(self.state.lock().stream("cpu.launch", stream)?.workers)
    }

    pub fn is_idle(&self, stream: RawStream) -> Result<bool> {
        let mut state = self.state.lock();
        let queue = state.stream("cpu.stream_query", stream)?;
        queue.check_runner()?;
        let idle = queue.operations.is_empty() && !queue.running;
        state.report()?;
        Ok(idle)
    }

    pub fn enqueue(self: &Arc<Queue>, stream: RawStream, work: &Work) -> Result<()> {
        let mut state = self.state.lock();
        let queue = state.stream("cpu.enqueue", stream)?;
        queue.check_runner()?;
        if self.deferred || queue.running || !queue.operations.is_empty() {
            queue.operations.push_back(Operation::Work(Box::new(work.clone())));
            let crowded = queue.operations.len() > MOST_DEFERRED;
            drop(state);
            if !self.deferred {
                self.run_ready();
            } else if crowded {
                self.step()?;
            }
            return Ok(());
        }
        (queue.running, queue.runner) = (true, Runner::this());
        drop(state);
        let result = self.run(stream.0, work, true);
        self.run_ready();
        result
    }

    /// Run a function as work of a stream that has no other; false where it must wait.
    pub fn run_now(self: &Arc<Queue>, stream: RawStream, function: &mut dyn FnMut() -> HostResult) -> Result<bool> {
        let mut state = self.state.lock();
        let queue = state.stream("cpu.enqueue", stream)?;
        queue.check_runner()?;
        if self.deferred || queue.running || !queue.operations.is_empty() {
            return Ok(false);
        }
        (queue.running, queue.runner) = (true, Runner::this());
        drop(state);
        let finish = Finish { queue: self, index: stream.0, error: None };
        let result = function();
        drop(finish);
        self.run_ready();
        result.map(|()| true).map_err(Error::Host)
    }

    /// Run one piece of a stream's work, whose turn has begun. An error is kept when the caller does not hear it.
    fn run(self: &Arc<Queue>, index: usize, work: &Work, heard: bool) -> Result<()> {
        let mut finish = Finish { queue: self, index, error: None };
        let result = match work {
            Work::Copy(copy) => {
                copy_bytes(copy);
                Ok(())
            }
            Work::Fill(fill) => {
                fill_elements(fill);
                Ok(())
            }
            Work::Host(function) => function().map_err(Error::Host),
            Work::Library(call) => call.enqueue(RawStream(index)),
            Work::Kernel(launch) => match self.begin(index, launch, heard) {
                Ok(running) => match running.work(PAUSE) {
                    Some(result) => result.map(drop).map_err(Error::Kernel),
                    None => {
                        self.leave(running.clone(), finish);
                        return if heard { self.attend(index, &running) } else { Ok(()) };
                    }
                },
                Err(error) => Err(error),
            },
            Work::Graph(_) => Err(Error::Device(format!("the CPU device cannot run a {}", work.describe()))),
        };
        if heard {
            return result;
        }
        finish.error = result.err();
        Ok(())
    }

    fn begin(&self, index: usize, launch: &KernelLaunch, attended: bool) -> Result<Arc<Running>> {
        let (workers, mut chain) = {
            let queue = &mut self.state.lock().streams[index];
            (queue.workers, std::mem::take(&mut queue.chain))
        };
        let keep = self.kernels.starts_early;
        let beside = chain.follow(keep && launch.attributes.programmatic);
        let options = Options { workers, beside, keep, ..Options::default() };
        let running = Arc::new(self.kernels.begin(launch, options)?);
        let queue = &mut self.state.lock().streams[index];
        queue.chain = chain;
        if queue.interrupted {
            running.interrupt();
        }
        queue.kernel = Some(running.clone());
        queue.attended = attended;
        Ok(running)
    }

    /// Let a kernel go on without its caller, and end its stream's turn with it.
    fn leave(self: &Arc<Queue>, running: Arc<Running>, mut finish: Finish<'_>) {
        let (queue, index, kernel) = (self.clone(), finish.index, running.clone());
        let working = Working::begin();
        let end = move || {
            let _working = working;
            let error = running.wait().err().map(Error::Kernel);
            drop(Finish { queue: &queue, index, error });
            if !queue.deferred {
                queue.run_ready();
            }
        };
        match std::thread::Builder::new().name("pygpukit-kernel".to_string()).spawn(end) {
            // The thread ends the turn.
            Ok(_) => std::mem::forget(finish),
            Err(_) => finish.error = kernel.wait().err().map(Error::Kernel),
        }
    }

    /// Wait for a kernel that was left to itself, as long as launches are waited for. Signal handlers run meanwhile, and
    /// may use the stream; one that raises ends the kernel.
    fn attend(&self, index: usize, running: &Arc<Running>) -> Result<()> {
        let start = Instant::now();
        let (mut next, mut given_up) = (start + PAUSE, Ok(()));
        let mut state = self.state.lock();
        while state.streams[index].runs(running) {
            // Other kernels end too.
            if !self.ended.wait_until(&mut state, next).timed_out() || !state.streams[index].runs(running) {
                continue;
            }
            next = Instant::now() + PAUSE;
            if given_up.is_err() {
                continue;
            }
            if start.elapsed() >= PATIENCE {
                state.streams[index].attended = false;
                return Ok(());
            }
            if !self.deferred {
                drop(state);
                given_up = runtime::wait_check().inspect_err(|_| running.interrupt());
                state = self.state.lock();
            }
        }
        drop(state);
        given_up?;
        running.wait().map(drop).map_err(Error::Kernel)
    }

    /// End the kernels that somebody no longer waits for: those of a stream, and what that waits for on others.
    pub fn interrupt(&self, waited: Waited) {
        let mut state = self.state.lock();
        let dropped: Vec<Operation> =
            state.ahead_of(waited).into_iter().flat_map(|(index, end)| state.cancel(index, end)).collect();
        drop(state);
        // What it holds may free memory.
        drop(dropped);
    }

    pub fn add_event(&self, timing: bool) -> RawEvent {
        let mut state = self.state.lock();
        state.next_event += 1;
        let id = state.next_event;
        state.events.insert(id, Event { timing, last: None, at: None });
        RawEvent(id)
    }

    pub fn remove_event(&self, event: RawEvent) {
        self.state.lock().events.remove(&event.0);
    }

    pub fn record(&self, event: RawEvent, stream: RawStream) -> Result<()> {
        const CALL: &str = "cpu.event_record";
        let mut state = self.state.lock();
        state.stream(CALL, stream)?;
        let id = state.next_record + 1;
        let known = state.event(CALL, event)?;
        known.last = Some(id);
        known.at = None;
        state.next_record = id;
        let deferred = self.deferred;
        let queue = state.stream(CALL, stream)?;
        if deferred || queue.running || !queue.operations.is_empty() {
            // Only queued: callers hold locks, so nothing may run here.
            queue.operations.push_back(Operation::Record(event, id));
            state.pending.insert(id);
        } else {
            state.complete(event, id);
        }
        Ok(())
    }

    pub fn wait(&self, stream: RawStream, event: RawEvent) -> Result<()> {
        const CALL: &str = "cpu.stream_wait";
        let mut state = self.state.lock();
        let last = state.event(CALL, event)?.last;
        let reached = last.is_none_or(|id| !state.pending.contains(&id));
        let queue = state.stream(CALL, stream)?;
        if let Some(id) = last
            && (self.deferred || !reached)
        {
            queue.operations.push_back(Operation::Wait(id));
        }
        Ok(())
    }

    pub fn is_complete(&self, event: RawEvent) -> Result<bool> {
        let mut state = self.state.lock();
        let last = state.event("cpu.event_query", event)?.last;
        let done = last.is_none_or(|id| !state.pending.contains(&id));
        if !done && last.is_some_and(|id| state.is_behind_missing(id)) {
            return Err(in_the_middle());
        }
        Ok(done)
    }

    pub fn elapsed_ms(&self, start: RawEvent, end: RawEvent) -> Result<f32> {
        let mut state = self.state.lock();
        let (start, end) = (state.time_of(start)?, state.time_of(end)?);
        let ms = match end.checked_duration_since(start) {
            Some(later) => later.as_secs_f64(),
            None => -start.duration_since(end).as_secs_f64(),
        } * 1e3;
        Ok(ms as f32)
    }

    /// Deferred, run a few operations that may run now: an error of one of them ends the poll, and its stream goes on.
    /// Inline, run what is left (a panic may leave something), and report one error that nobody has heard of yet.
    pub fn poll(self: &Arc<Queue>) -> Result<()> {
        if !self.deferred {
            let start = Instant::now();
            while self.step()? && start.elapsed() < POLL {}
            return self.state.lock().report();
        }
        let steps = 1 + self.state.lock().random.next() % STEPS;
        for _ in 0..steps {
            if !self.step()? {
                break;
            }
        }
        Ok(())
    }

    /// Inline, run everything that may run.
    fn run_ready(self: &Arc<Queue>) {
        while self.step().is_ok_and(|ran| ran) {}
    }

    /// Run one operation; false when none may run.
    fn step(self: &Arc<Queue>) -> Result<bool> {
        let mut state = self.state.lock();
        let Some(index) = state.choose(self.deferred) else { return Ok(false) };
        match state.streams[index].operations.pop_front() {
            None | Some(Operation::Wait(_)) => {}
            Some(Operation::Record(event, id)) => state.complete(event, id),
            Some(Operation::Work(work)) => {
                (state.streams[index].running, state.streams[index].runner) = (true, Runner::this());
                drop(state);
                // Inline, whoever submitted it has gone on, and this thread may wait for something else.
                self.run(index, &work, self.deferred)?;
            }
        }
        Ok(true)
    }
}

/// Ends an operation's turn, also when it panics. An error to keep is kept at that moment: whoever finds the work
/// finished finds its error too.
struct Finish<'a> {
    queue: &'a Queue,
    index: usize,
    error: Option<Error>,
}

impl Drop for Finish<'_> {
    fn drop(&mut self) {
        let mut state = self.queue.state.lock();
        let queue = &mut state.streams[self.index];
        queue.running = false;
        queue.interrupted = false;
        let kernel = queue.kernel.take();
        if let Some(ended) = kernel.as_ref().and_then(|kernel| kernel.ended()) {
            queue.chain.push(ended);
        }
        let attended = std::mem::take(&mut queue.attended);
        let error = self.error.take().filter(|_| !attended);
        let error = not_run(error, &std::mem::take(&mut queue.dropped));
        state.keep(error);
        drop(state);
        if kernel.is_some() {
            self.queue.ended.notify_all();
        }
        drop(kernel);
    }
}

/// Add the kernels that were taken out of the queue to an error, or make one of them.
fn not_run(error: Option<Error>, dropped: &[String]) -> Option<Error> {
    if dropped.is_empty() {
        return error;
    }
    let more = match dropped.len().saturating_sub(MAX_NAMES) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let names = dropped.iter().take(MAX_NAMES).map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", ");
    let text = format!("not run, because the wait for its stream was interrupted: {names}{more}");
    Some(match error {
        Some(Error::Kernel(report)) => Error::Kernel(format!("{report}\n  note: queued behind it and {text}")),
        Some(other) => other,
        None => Error::Kernel(format!("kernels were {text}")),
    })
}

impl StreamQueue {
    /// Refuse a stream whose work a missing thread was in the middle of.
    fn check_runner(&self) -> Result<()> {
        if self.running { self.runner.check() } else { Ok(()) }
    }

    fn runs(&self, kernel: &Arc<Running>) -> bool {
        self.kernel.as_ref().is_some_and(|known| Arc::ptr_eq(known, kernel))
    }
}

impl State {
    fn stream(&mut self, call: &'static str, stream: RawStream) -> Result<&mut StreamQueue> {
        let known = self.streams.len();
        self.streams.get_mut(stream.0).ok_or_else(|| {
            failure(call, code::INVALID_HANDLE, format!("stream {} is unknown, there are {known}", stream.0))
        })
    }

    fn event(&mut self, call: &'static str, event: RawEvent) -> Result<&mut Event> {
        self.events
            .get_mut(&event.0)
            .ok_or_else(|| failure(call, code::INVALID_HANDLE, format!("event {} is unknown or destroyed", event.0)))
    }

    /// Keep an error until somebody asks. A program that never does must not collect them for ever; the first say most.
    fn keep(&mut self, error: Option<Error>) {
        if let Some(error) = error
            && self.errors.len() < MAX_ERRORS
        {
            self.errors.push_back(error);
        }
    }

    /// Report one error that nobody has heard of yet.
    fn report(&mut self) -> Result<()> {
        self.errors.pop_front().map_or(Ok(()), Err)
    }

    /// The streams on which something lies ahead of what is waited for, each with the record up to which it does.
    fn ahead_of(&self, waited: Waited) -> HashMap<usize, RecordId> {
        let mut owners = HashMap::new();
        for (index, queue) in self.streams.iter().enumerate() {
            owners.extend(queue.operations.iter().filter_map(|operation| match operation {
                Operation::Record(_, id) => Some((*id, index)),
                _ => None,
            }));
        }
        let first = match waited {
            Waited::Stream(stream) => Some(stream.0),
            Waited::Event(event) => {
                self.events.get(&event.0).and_then(|event| event.last).and_then(|id| owners.get(&id).copied())
            }
        };
        let mut ends = HashMap::new();
        // The whole stream that is waited for: what comes later there was made to wait for the same.
        let mut found: Vec<(usize, RecordId)> = first.into_iter().map(|index| (index, RecordId::MAX)).collect();
        while let Some((index, end)) = found.pop() {
            let known = ends.entry(index).or_insert(0);
            if *known >= end {
                continue;
            }
            *known = end;
            let Some(queue) = self.streams.get(index) else { continue };
            for operation in &queue.operations {
                match operation {
                    Operation::Record(_, id) if *id == end => break,
                    Operation::Wait(id) => found.extend(owners.get(id).map(|owner| (*owner, *id))),
                    _ => {}
                }
            }
        }
        ends
    }

    /// End the kernel that a stream runs, and take those queued before a record out of its queue.
    fn cancel(&mut self, index: usize, end: RecordId) -> Vec<Operation> {
        let Some(queue) = self.streams.get_mut(index) else { return Vec::new() };
        queue.interrupted = queue.running;
        if let Some(kernel) = &queue.kernel {
            kernel.interrupt();
        }
        let ends = |operation: &Operation| matches!(operation, Operation::Record(_, id) if *id == end);
        let count = queue.operations.iter().position(ends).unwrap_or(queue.operations.len());
        let is_kernel =
            |operation: &Operation| matches!(operation, Operation::Work(work) if matches!(**work, Work::Kernel(_)));
        let (dropped, kept) = queue.operations.drain(..count).partition::<Vec<_>, _>(is_kernel);
        kept.into_iter().rev().for_each(|operation| queue.operations.push_front(operation));
        for operation in &dropped {
            if let Operation::Work(work) = operation
                && let Work::Kernel(launch) = &**work
            {
                queue.dropped.push(launch.kernel.name().to_string());
            }
        }
        if !queue.running {
            let error = not_run(None, &std::mem::take(&mut queue.dropped));
            self.keep(error);
        }
        dropped
    }

    /// Is a record queued behind work that never ends, on its stream or on one that this waits for?
    fn is_behind_missing(&self, id: RecordId) -> bool {
        let mut seen = vec![false; self.streams.len()];
        let mut records = vec![id];
        while let Some(id) = records.pop() {
            let is_it = |operation: &Operation| matches!(operation, Operation::Record(_, known) if *known == id);
            let Some(at) = self.streams.iter().position(|queue| queue.operations.iter().any(is_it)) else { continue };
            if std::mem::replace(&mut seen[at], true) {
                continue;
            }
            if self.streams[at].check_runner().is_err() {
                return true;
            }
            records.extend(self.streams[at].operations.iter().filter_map(|operation| match operation {
                Operation::Wait(id) => Some(*id),
                _ => None,
            }));
        }
        false
    }

    fn is_ready(&self, index: usize) -> bool {
        let queue = &self.streams[index];
        !queue.running
            && match queue.operations.front() {
                None => false,
                Some(Operation::Wait(id)) => !self.pending.contains(id),
                Some(_) => true,
            }
    }

    /// A stream whose next operation may run: any, or inline the first.
    fn choose(&mut self, any: bool) -> Option<usize> {
        if !any {
            return (0..self.streams.len()).find(|&index| self.is_ready(index));
        }
        let ready: Vec<usize> = (0..self.streams.len()).filter(|&index| self.is_ready(index)).collect();
        if ready.is_empty() {
            return None;
        }
        Some(ready[self.random.below(ready.len())])
    }

    fn complete(&mut self, event: RawEvent, id: RecordId) {
        self.pending.remove(&id);
        if let Some(event) = self.events.get_mut(&event.0)
            && event.last == Some(id)
        {
            event.at = Some(Instant::now());
        }
    }

    fn time_of(&mut self, event: RawEvent) -> Result<Instant> {
        const CALL: &str = "cpu.event_elapsed";
        let known = self.event(CALL, event)?;
        if !known.timing || known.last.is_none() {
            let text = "both events need timing, and to have been recorded".to_string();
            return Err(failure(CALL, code::INVALID_HANDLE, text));
        }
        known.at.ok_or_else(|| failure(CALL, code::NOT_READY, "an event has not been reached yet".to_string()))
    }
}

fn copy_bytes(copy: &Copy) {
    if copy.bytes > 0 {
        // SAFETY: the command's contract: both sides are valid for `bytes`; they may overlap.
        unsafe { std::ptr::copy(copy.src as *const u8, copy.dst as *mut u8, copy.bytes) };
    }
}

fn fill_elements(fill: &Fill) {
    if fill.count == 0 {
        return;
    }
    let (dst, count) = (fill.dst as usize, fill.count);
    // SAFETY: the command's contract: `count` elements of this width are valid at `dst`, which `check` found aligned.
    unsafe {
        match fill.width {
            1 => std::slice::from_raw_parts_mut(dst as *mut u8, count).fill(fill.value as u8),
            2 => std::slice::from_raw_parts_mut(dst as *mut u16, count).fill(fill.value as u16),
            _ => std::slice::from_raw_parts_mut(dst as *mut u32, count).fill(fill.value),
        }
    }
}
