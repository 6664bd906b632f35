//! Streams as queues, events as tickets in them, and the copies and fills that run there.

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

use crate::api::{exports, put};
use crate::cublaslt::Gemm;
use crate::cusolver::Solve;
use crate::graph::Node;
use crate::kernel::Launch;
use crate::state::*;

pub(crate) type Callback = unsafe extern "C" fn(*mut c_void);

/// One side of a copy.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    Host(u64),
    Device(u64),
}

impl Place {
    pub fn address(self) -> u64 {
        match self {
            Place::Host(address) | Place::Device(address) => address,
        }
    }

    fn reachable(self, state: &State, bytes: usize) -> bool {
        match self {
            Place::Host(_) => true,
            Place::Device(address) => state.memory.reachable(address, bytes),
        }
    }
}

/// A piece of work in a stream or a graph.
#[derive(Clone)]
pub(crate) enum Op {
    Empty,
    Copy {
        dst: Place,
        src: Place,
        bytes: usize,
    },
    /// Pageable host memory is read when the copy is submitted.
    Upload {
        dst: u64,
        data: Arc<[u8]>,
    },
    Fill {
        dst: u64,
        value: u32,
        width: usize,
        count: usize,
    },
    Launch(Launch),
    Host {
        callback: Callback,
        data: usize,
    },
    Record {
        event: usize,
        ticket: u64,
    },
    Wait {
        ticket: u64,
    },
    FreePlain(u64),
    Graph(Vec<Op>),
    Gemm(Gemm),
    Solve(Solve),
}

impl Op {
    /// Are its addresses the device's? Checked when submitted (an error) and when run (a fault).
    pub fn valid(&self, state: &State) -> bool {
        match self {
            Op::Copy { dst, src, bytes } => dst.reachable(state, *bytes) && src.reachable(state, *bytes),
            Op::Upload { dst, data } => state.memory.reachable(*dst, data.len()),
            Op::Fill { dst, width, count, .. } => {
                dst.is_multiple_of(*width as u64)
                    && width.checked_mul(*count).is_some_and(|bytes| state.memory.reachable(*dst, bytes))
            }
            Op::Gemm(gemm) => gemm.reachable(&state.memory),
            Op::Solve(solve) => solve.reachable(&state.memory),
            _ => true,
        }
    }
}

#[derive(Default)]
pub(crate) struct Stream {
    queue: VecDeque<Op>,
    /// How often "not ready" is still to be answered.
    countdown: u32,
    /// Where its work runs.
    pub context: usize,
    /// Its green context is gone.
    detached: bool,
    /// What was put on it since a capture began.
    captured: Option<Vec<Op>>,
}

impl Stream {
    pub fn of(context: usize) -> Stream {
        Stream { context, ..Stream::default() }
    }

    pub fn is_busy(&self) -> bool {
        !self.queue.is_empty()
    }

    pub fn detach(&mut self) {
        self.detached = true;
    }

    pub fn be_lazy_at_most(&mut self, lazy: u32) {
        self.countdown = self.countdown.min(lazy);
    }
}

pub(crate) struct Event {
    timing: bool,
    last: Option<Record>,
}

struct Record {
    stream: usize,
    ticket: u64,
    /// Clock when it was passed.
    done_ns: Option<u64>,
}

/// A stream that may be used.
pub(crate) fn check_stream(state: &mut State, stream: usize) -> Result<&mut Stream, i32> {
    // The default stream, 0, is never in the table: the runtime must not use it. The driver's own streams, 1 and 2, are
    // those of other libraries; here nothing waits for them by itself.
    if matches!(stream, 1 | 2) {
        let context = current();
        state.streams.entry(stream).or_insert_with(|| Stream::of(context));
    }
    let known = state.streams.get_mut(&stream).ok_or(INVALID_HANDLE)?;
    if known.detached { Err(STREAM_DETACHED) } else { Ok(known) }
}

/// Put work on a stream; it runs at once unless the driver was told to be lazy.
pub(crate) fn enqueue(state: &mut State, stream: usize, op: Op) -> Outcome {
    if !op.valid(state) {
        return Err(INVALID_VALUE);
    }
    let lazy = state.config.lazy;
    let queue = check_stream(state, stream)?;
    if let Some(captured) = &mut queue.captured {
        captured.push(op);
        return Ok(());
    }
    if queue.queue.is_empty() {
        queue.countdown = lazy;
    }
    queue.queue.push_back(op);
    if lazy == 0 {
        drain(state, stream, None);
    }
    Ok(())
}

/// Run a stream's work, all of it or up to a ticket. A fault ends everything.
fn drain(state: &mut State, stream: usize, until: Option<u64>) {
    while state.lost == 0 {
        let Some(op) = state.streams.get_mut(&stream).and_then(|s| s.queue.pop_front()) else { return };
        let last = matches!(op, Op::Record { ticket, .. } if Some(ticket) == until);
        run(state, &op);
        if last {
            return;
        }
    }
}

fn run(state: &mut State, op: &Op) {
    state.clock_ns += 1000;
    if !op.valid(state) {
        state.lost = ILLEGAL_ADDRESS;
        return;
    }
    match op {
        Op::Empty => {}
        Op::Copy { dst, src, bytes } => {
            // SAFETY: device sides were checked just now; the caller vouches for host sides as with the driver.
            unsafe { std::ptr::copy(src.address() as *const u8, dst.address() as *mut u8, *bytes) };
        }
        Op::Upload { dst, data } => {
            // SAFETY: the destination was checked just now and the data is ours.
            unsafe { std::ptr::copy(data.as_ptr(), *dst as *mut u8, data.len()) };
        }
        Op::Fill { dst, value, width, count } => {
            // SAFETY: the range was checked just now and is aligned to the element.
            unsafe {
                match width {
                    1 => std::slice::from_raw_parts_mut(*dst as *mut u8, *count).fill(*value as u8),
                    2 => std::slice::from_raw_parts_mut(*dst as *mut u16, *count).fill(*value as u16),
                    _ => std::slice::from_raw_parts_mut(*dst as *mut u32, *count).fill(*value),
                }
            }
        }
        Op::Launch(launch) => state.remember(launch),
        // SAFETY: function and data were given together by the caller.
        Op::Host { callback, data } => in_callback(|| unsafe { callback(*data as *mut c_void) }),
        Op::Record { event, ticket } => {
            let now = state.clock_ns;
            if let Some(record) = state.events.get_mut(event).and_then(|e| e.last.as_mut())
                && record.ticket == *ticket
            {
                record.done_ns = Some(now);
            }
            state.pending.remove(ticket);
        }
        Op::Wait { ticket } => {
            if let Some(other) = state.pending.get(ticket).copied() {
                drain(state, other, Some(*ticket));
            }
        }
        Op::FreePlain(address) => state.memory.free_plain(*address),
        // SAFETY: its operands were checked just now.
        Op::Gemm(gemm) => unsafe { gemm.run() },
        // SAFETY: its operands were checked just now.
        Op::Solve(solve) => unsafe { solve.run() },
        Op::Graph(ops) => ops.iter().for_each(|op| {
            if state.lost == 0 {
                run(state, op);
            }
        }),
    }
}

/// One question about a stream with work in it: "not ready" as often as set, then the work is done.
fn ask(state: &mut State, stream: usize, until: Option<u64>) -> Outcome {
    let queue = check_stream(state, stream)?;
    if queue.captured.is_some() {
        return Err(STREAM_CAPTURE_UNSUPPORTED);
    }
    if queue.queue.is_empty() {
        return Ok(());
    }
    if queue.countdown > 0 {
        queue.countdown -= 1;
        return Err(NOT_READY);
    }
    drain(state, stream, until);
    Ok(())
}

fn upload(state: &mut State, stream: usize, dst: u64, src: *const c_void, bytes: usize) -> Outcome {
    if src.is_null() {
        return Err(INVALID_VALUE);
    }
    if state.memory.is_pinned(src as u64, bytes) {
        return enqueue(state, stream, Op::Copy { dst: Place::Device(dst), src: Place::Host(src as u64), bytes });
    }
    // SAFETY: the caller vouches for the range as with the driver.
    let data = unsafe { std::slice::from_raw_parts(src.cast::<u8>(), bytes) };
    enqueue(state, stream, Op::Upload { dst, data: data.into() })
}

exports! {
    needs Context fn cuStreamCreateWithPriority(state; stream: *mut usize, flags: u32, _priority: c_int) {
        if flags != 1 {
            return Err(INVALID_VALUE);
        }
        let handle = state.handle();
        state.streams.insert(handle, Stream::of(current()));
        put(stream, handle)
    }

    needs Context fn cuStreamBeginCapture_v2(state; stream: usize, mode: u32) {
        let queue = check_stream(state, stream)?;
        if mode > 2 || queue.captured.is_some() {
            return Err(INVALID_VALUE);
        }
        queue.captured = Some(Vec::new());
        Ok(())
    }

    needs Context fn cuStreamEndCapture(state; stream: usize, graph: *mut usize) {
        let queue = check_stream(state, stream)?;
        let context = queue.context;
        let ops = queue.captured.take().ok_or(INVALID_VALUE)?;
        let handle = state.handle();
        state.graphs.insert(handle, ops.into_iter().map(|op| Node { op, context }).collect());
        put(graph, handle)
    }

    needs Health fn cuStreamQuery(state; stream: usize) {
        ask(state, stream, None)
    }

    needs Context fn cuStreamWaitEvent(state; stream: usize, event: usize, _flags: u32) {
        check_stream(state, stream)?;
        let event = state.events.get(&event).ok_or(INVALID_HANDLE)?;
        match event.last.as_ref().filter(|r| r.done_ns.is_none()).map(|r| r.ticket) {
            Some(ticket) => enqueue(state, stream, Op::Wait { ticket }),
            None => Ok(()),
        }
    }

    needs Context fn cuEventCreate(state; event: *mut usize, flags: u32) {
        let handle = state.handle();
        state.events.insert(handle, Event { timing: flags & 2 == 0, last: None });
        put(event, handle)
    }

    needs Context fn cuEventDestroy_v2(state; event: usize) {
        state.events.remove(&event).map(drop).ok_or(INVALID_HANDLE)
    }

    needs Health fn cuEventRecord(state; event: usize, stream: usize) {
        check_stream(state, stream)?;
        state.next_ticket += 1;
        let ticket = state.next_ticket;
        let record = Record { stream, ticket, done_ns: None };
        state.events.get_mut(&event).ok_or(INVALID_HANDLE)?.last = Some(record);
        state.pending.insert(ticket, stream);
        enqueue(state, stream, Op::Record { event, ticket })
    }

    needs Health fn cuEventQuery(state; event: usize) {
        let found = state.events.get(&event).ok_or(INVALID_HANDLE)?;
        match found.last.as_ref().filter(|r| r.done_ns.is_none()).map(|r| (r.stream, r.ticket)) {
            Some((stream, ticket)) => ask(state, stream, Some(ticket)),
            None => Ok(()),
        }
    }

    needs Health fn cuEventElapsedTime(state; elapsed: *mut f32, start: usize, end: usize) {
        elapsed_time(state, elapsed, start, end)
    }

    since 12080 needs Health fn cuEventElapsedTime_v2(state; elapsed: *mut f32, start: usize, end: usize) {
        elapsed_time(state, elapsed, start, end)
    }

    needs Context fn cuMemcpyHtoDAsync_v2(state; dst: u64, src: *const c_void, bytes: usize, stream: usize) {
        upload(state, stream, dst, src, bytes)
    }

    needs Context fn cuMemcpyDtoHAsync_v2(state; dst: u64, src: u64, bytes: usize, stream: usize) {
        if dst == 0 {
            return Err(INVALID_VALUE);
        }
        enqueue(state, stream, Op::Copy { dst: Place::Host(dst), src: Place::Device(src), bytes })?;
        // Into pageable memory the driver returns when the copy is done.
        if !state.memory.is_pinned(dst, bytes) {
            drain(state, stream, None);
        }
        Ok(())
    }

    needs Context fn cuMemcpyDtoDAsync_v2(state; dst: u64, src: u64, bytes: usize, stream: usize) {
        enqueue(state, stream, Op::Copy { dst: Place::Device(dst), src: Place::Device(src), bytes })
    }

    needs Context fn cuMemsetD8Async(state; dst: u64, value: u8, count: usize, stream: usize) {
        enqueue(state, stream, Op::Fill { dst, value: value.into(), width: 1, count })
    }

    needs Context fn cuMemsetD16Async(state; dst: u64, value: u16, count: usize, stream: usize) {
        enqueue(state, stream, Op::Fill { dst, value: value.into(), width: 2, count })
    }

    needs Context fn cuMemsetD32Async(state; dst: u64, value: u32, count: usize, stream: usize) {
        enqueue(state, stream, Op::Fill { dst, value, width: 4, count })
    }

    needs Context fn cuLaunchHostFunc(state; stream: usize, callback: Option<Callback>, data: usize) {
        let callback = callback.ok_or(INVALID_VALUE)?;
        enqueue(state, stream, Op::Host { callback, data })
    }
}

fn elapsed_time(state: &State, elapsed: *mut f32, start: usize, end: usize) -> Outcome {
    let time = |event: usize| -> Result<u64, i32> {
        let event = state.events.get(&event).filter(|e| e.timing).ok_or(INVALID_HANDLE)?;
        event.last.as_ref().ok_or(INVALID_HANDLE)?.done_ns.ok_or(NOT_READY)
    };
    let (start, end) = (time(start)?, time(end)?);
    put(elapsed, (end as f64 - start as f64) as f32 / 1e6)
}
