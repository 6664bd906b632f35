//! Streams and events of the CPU device, run at once or deferred.
//!
//! A stream is a queue of operations; those may run that are heads of their queues and wait for no event. Deferred,
//! `poll` runs a few of them, drawn from a seed. Inline, the thread that submits to an idle stream runs its work at
//! once, and then what other threads have added meanwhile: they never wait for their turn, because they may hold a
//! lock that the running work needs. No lock is held while work runs, nor while it is dropped: it may submit work,
//! take other locks, or free memory.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use super::kernels::Kernels;
use super::{code, failure};
use crate::command::{Copy, Fill, Work};
use crate::device::{RawEvent, RawStream};
use crate::emulator::Running;
use crate::error::{Error, Result};
use crate::random::Random;

/// At most this many operations run in one poll.
const STEPS: u64 = 3;

/// At most this many errors wait to be reported.
const MAX_ERRORS: usize = 64;

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
    /// An operation of this stream runs now, on some thread.
    running: bool,
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
    events: HashMap<usize, Event>,
    next_event: usize,
    next_record: RecordId,
    /// Records that have not run yet.
    pending: HashSet<RecordId>,
    /// Errors of work that was run for another thread, until a poll or a query of a stream reports them.
    errors: VecDeque<Error>,
    /// Kernels that go on in the background, by stream.
    background: HashMap<usize, Arc<Running>>,
    random: Random,
}

pub(crate) struct Queue {
    deferred: bool,
    kernels: Arc<Kernels>,
    state: Mutex<State>,
}

impl Queue {
    pub fn new(deferred: Option<u64>, kernels: Arc<Kernels>) -> Arc<Queue> {
        let state = State { random: Random::new(deferred.unwrap_or(0)), ..State::default() };
        Arc::new(Queue { deferred: deferred.is_some(), kernels, state: Mutex::new(state) })
    }

    pub fn add_stream(&self) -> RawStream {
        let mut state = self.state.lock();
        state.streams.push(StreamQueue::default());
        RawStream(state.streams.len() - 1)
    }

    pub fn is_idle(&self, stream: RawStream) -> Result<bool> {
        let mut state = self.state.lock();
        let queue = state.stream("cpu.stream_query", stream)?;
        let idle = queue.operations.is_empty() && !queue.running;
        state.report()?;
        Ok(idle)
    }

    pub fn enqueue(self: &Arc<Queue>, stream: RawStream, work: &Work) -> Result<()> {
        let mut state = self.state.lock();
        let queue = state.stream("cpu.enqueue", stream)?;
        if self.deferred || queue.running || !queue.operations.is_empty() {
            queue.operations.push_back(Operation::Work(Box::new(work.clone())));
            drop(state);
            if !self.deferred {
                self.run_ready();
            }
            return Ok(());
        }
        queue.running = true;
        drop(state);
        let finish = Finish { queue: self, index: stream.0, error: None };
        let result = match self.run(work) {
            Ok(Some(running)) => {
                self.leave(running, finish);
                Ok(())
            }
            other => {
                drop(finish);
                other.map(|_| ())
            }
        };
        self.run_ready();
        result
    }

    /// Do one piece of work that `check` has let through. A kernel that takes long is given back.
    fn run(&self, work: &Work) -> Result<Option<Arc<Running>>> {
        match work {
            Work::Copy(copy) => copy_bytes(copy),
            Work::Fill(fill) => fill_elements(fill),
            Work::Host(function) => return function().map(|()| None).map_err(Error::Host),
            Work::Kernel(launch) => return Ok(self.kernels.run(launch)?.map(Arc::new)),
            Work::Graph(_) => {
                return Err(Error::Device(format!("the CPU device cannot run a {}", work.describe())));
            }
        }
        Ok(None)
    }

    /// Let a kernel end by itself, and its stream's turn with it; its error is then kept.
    fn leave(self: &Arc<Queue>, running: Arc<Running>, mut finish: Finish<'_>) {
        let (queue, index) = (self.clone(), finish.index);
        self.state.lock().background.insert(index, running.clone());
        let end = move || {
            let error = running.wait().err().map(Error::Kernel);
            queue.state.lock().background.remove(&index);
            drop(Finish { queue: &queue, index, error });
            if !queue.deferred {
                queue.run_ready();
            }
        };
        match std::thread::Builder::new().name("pygpukit-kernel".to_string()).spawn(end) {
            // The thread ends the turn.
            Ok(_) => std::mem::forget(finish),
            Err(error) => {
                finish.error = Some(Error::Kernel(format!("no thread for a kernel that takes long: {error}")))
            }
        }
    }

    /// End the kernels that run in the background.
    pub fn interrupt(&self) {
        for running in self.state.lock().background.values() {
            running.interrupt();
        }
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
        Ok(last.is_none_or(|id| !state.pending.contains(&id)))
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
            self.run_ready();
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
                state.streams[index].running = true;
                drop(state);
                let mut finish = Finish { queue: self, index, error: None };
                match self.run(&work) {
                    Ok(None) => {}
                    Ok(Some(running)) => self.leave(running, finish),
                    Err(error) if self.deferred => return Err(error),
                    // Whoever submitted it has gone on.
                    Err(error) => finish.error = Some(error),
                }
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
        state.streams[self.index].running = false;
        state.keep(self.error.take());
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
