//! `Transfer`: one copy between host and device, cut into chunks that threads bring on their way.
//!
//! A chunk of pageable memory or of a file goes through a slot of the ring. For an upload a thread fills the slot and then
//! submits the copy; for a download it submits the copy into the slot, and when the stream has passed, a thread copies it
//! out. Page-locked memory needs no slot. `next` says what there is to do, `Engine` who does it.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use smallvec::smallvec;

use super::file::FileSource;
use super::memcpy::copy_past_caches;
use super::ring::{Granted, Ring, Slot};
use super::staging::Engine;
use crate::command::{Command, Copy, CopyKind, Use, Work};
use crate::device::DevPtr;
use crate::error::{Error, Result};
use crate::exec::ExecCtx;
use crate::launch::submit;
use crate::stream::Stream;

/// Chunks of page-locked memory that are in flight at a time: enough to keep the bus busy between two looks.
const DIRECT_FLIGHTS: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Upload,
    Download,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// Goes before the chunks of all others.
    High,
    Normal,
}

/// The host's side of a transfer.
pub enum HostSide {
    /// Memory that is valid as long as `Request::keep` lives.
    Memory(*mut u8),
    File(FileSource),
}

// SAFETY: whoever makes a request lets the engine's threads use the memory until the transfer is over.
unsafe impl Send for HostSide {}
// SAFETY: as above; chunks never overlap.
unsafe impl Sync for HostSide {}

/// What owns the host memory; dropped when the transfer no longer needs it.
pub type Keep = Box<dyn Any + Send + Sync>;

pub struct Request {
    pub direction: Direction,
    pub priority: Priority,
    pub device: DevPtr,
    pub bytes: usize,
    pub used: Use,
    pub host: HostSide,
    /// The device's side may be touched when this stream has passed this number.
    pub after: (Arc<Stream>, u64),
    pub keep: Option<Keep>,
}

/// How far a transfer is to be waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// An upload no longer needs the host's memory; a download is over.
    HostDone,
    Over,
}

/// A copy that has been submitted.
struct Flight {
    seq: u64,
    at: usize,
    bytes: usize,
    /// Of a download: the bytes wait here to be copied out.
    slot: Option<Slot>,
}

#[derive(Default)]
struct Progress {
    /// Bytes claimed from the front, and chunks that came back unclaimed.
    claimed: usize,
    returned: Vec<(usize, usize)>,
    /// Chunks that a thread works on.
    busy: usize,
    flights: VecDeque<Flight>,
    done: usize,
    /// The copy stream has been told to wait for `after`.
    ordered: bool,
    /// Number of the last copy.
    last: u64,
    error: Option<Error>,
    cancelled: bool,
    seconds: Option<f64>,
    keep: Option<Keep>,
}

impl Progress {
    fn stopped(&self) -> bool {
        self.cancelled || self.error.is_some()
    }
}

pub struct Transfer {
    engine: &'static Engine,
    ctx: ExecCtx,
    direction: Direction,
    priority: Priority,
    device: DevPtr,
    bytes: usize,
    used: Use,
    host: HostSide,
    after: (Arc<Stream>, u64),
    /// Bytes of a chunk. Chunks of a file end at multiples of it in the file.
    chunk: usize,
    /// Without slots.
    direct: bool,
    started: Instant,
    progress: Mutex<Progress>,
}

/// One piece of work on a transfer.
pub(super) enum Step {
    /// Bring a chunk on its way: position and bytes.
    Send(usize, usize, Way),
    /// Copy out what has arrived.
    Land(usize, usize, Slot),
}

pub(super) enum Way {
    Direct,
    Through(Slot),
    /// Through a slot of this size that is yet to be made.
    Make(usize),
}

pub(super) enum Next {
    Step(Step),
    /// Something else must happen first.
    Later,
    /// Nothing is left to do; what kept the host's memory is to be dropped without locks.
    Over(Option<Keep>),
}

impl Transfer {
    pub(super) fn new(engine: &'static Engine, ctx: ExecCtx, request: Request, chunk: usize, direct: bool) -> Transfer {
        let Request { direction, priority, device, bytes, used, host, after, keep } = request;
        Transfer {
            engine,
            ctx,
            direction,
            priority,
            device,
            bytes,
            used,
            host,
            after,
            chunk,
            direct,
            started: Instant::now(),
            progress: Mutex::new(Progress { keep, ..Progress::default() }),
        }
    }

    pub fn direction(&self) -> Direction {
        self.direction
    }

    pub fn priority(&self) -> Priority {
        self.priority
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes that have arrived.
    pub fn bytes_done(&self) -> usize {
        self.progress.lock().done
    }

    /// Seconds since the start, or those it took.
    pub fn seconds(&self) -> f64 {
        self.progress.lock().seconds.unwrap_or_else(|| self.started.elapsed().as_secs_f64())
    }

    /// The stream its copies are on, and the number of the last.
    pub fn last_copy(&self) -> (Arc<Stream>, u64) {
        (self.ctx.stream.clone(), self.progress.lock().last)
    }

    /// Drop the chunks that are not on their way; true when there were any. The target's content is then undefined.
    pub fn cancel(&self) -> bool {
        let mut progress = self.progress.lock();
        if progress.seconds.is_some() || progress.stopped() || self.unclaimed(&progress).is_none() {
            return progress.cancelled;
        }
        progress.cancelled = true;
        drop(progress);
        self.engine.wake();
        true
    }

    /// Is it over? An error says how it ended.
    pub fn is_over(&self) -> bool {
        self.progress.lock().seconds.is_some()
    }

    /// Let it move on where no thread would: for those who ask instead of waiting.
    pub fn glance(self: &Arc<Self>) -> Result<()> {
        if !self.engine.has_workers() {
            self.engine.help(self)?;
        }
        Ok(())
    }

    /// Wait, doing chunks of this transfer meanwhile. False when the time is over first. `check` runs every few
    /// milliseconds and may end the wait with an error.
    pub fn wait(
        self: &Arc<Self>,
        until: Until,
        timeout: Option<Duration>,
        check: &mut dyn FnMut() -> Result<()>,
    ) -> Result<bool> {
        let start = Instant::now();
        let (mut checked, mut idle) = (start, None);
        loop {
            if self.reached(until)? {
                return Ok(true);
            }
            let worked = self.engine.help(self)?;
            let now = Instant::now();
            if timeout.is_some_and(|limit| now - start >= limit) {
                return self.reached(until);
            }
            if now - checked >= Duration::from_millis(5) {
                self.ctx.state.check()?;
                check()?;
                checked = now;
            }
            if worked {
                idle = None;
                continue;
            }
            self.ctx.state.device.poll()?;
            if now - *idle.get_or_insert(now) > Duration::from_millis(2) {
                std::thread::sleep(Duration::from_micros(20));
            } else {
                std::hint::spin_loop();
            }
        }
    }

    fn reached(&self, until: Until) -> Result<bool> {
        let progress = self.progress.lock();
        if progress.seconds.is_none() {
            let read = self.unclaimed(&progress).is_none() && progress.busy == 0 && !progress.stopped();
            let unneeded = self.direction == Direction::Upload && !self.direct;
            return Ok(until == Until::HostDone && read && unneeded);
        }
        match &progress.error {
            Some(error) => Err(error.clone()),
            None if progress.cancelled => Err(Error::Cancelled(format!(
                "the transfer of {} bytes was cancelled when {} had arrived; what the target holds is undefined",
                self.bytes, progress.done
            ))),
            None => Ok(true),
        }
    }

    /// The next chunk nobody has claimed.
    fn unclaimed(&self, progress: &Progress) -> Option<(usize, usize)> {
        if let Some(chunk) = progress.returned.last() {
            return Some(*chunk);
        }
        let at = progress.claimed;
        let phase = match &self.host {
            HostSide::File(file) => (file.offset() % self.chunk as u64) as usize,
            HostSide::Memory(_) => 0,
        };
        (at < self.bytes).then(|| (at, (self.chunk - (phase + at) % self.chunk).min(self.bytes - at)))
    }

    fn claim(&self, progress: &mut Progress) -> Option<(usize, usize)> {
        let chunk = self.unclaimed(progress)?;
        if progress.returned.pop().is_none() {
            progress.claimed += chunk.1;
        }
        progress.busy += 1;
        Some(chunk)
    }

    /// What there is to do now. Called with the engine's lock held.
    pub(super) fn next(&self, ring: &mut Ring) -> Next {
        let mut progress = self.progress.lock();
        if let Some(step) = self.land(&mut progress, ring) {
            return Next::Step(step);
        }
        if !progress.stopped() && self.unclaimed(&progress).is_some() {
            match self.grant(&mut progress, ring) {
                Ok(Some(way)) => {
                    if let Some((at, bytes)) = self.claim(&mut progress) {
                        return Next::Step(Step::Send(at, bytes, way));
                    }
                }
                Ok(None) => return Next::Later,
                Err(error) => progress.error = Some(error),
            }
        }
        if progress.busy > 0 || !progress.flights.is_empty() {
            return Next::Later;
        }
        if progress.seconds.is_none() {
            progress.seconds = Some(self.started.elapsed().as_secs_f64());
        }
        Next::Over(progress.keep.take())
    }

    /// Count what has arrived, and give out one chunk that is to be copied out.
    fn land(&self, progress: &mut Progress, ring: &mut Ring) -> Option<Step> {
        let stream = &self.ctx.stream;
        if let Some(first) = progress.flights.front()
            && let Err(error) = stream.passed(first.seq)
        {
            // The driver will not say any more what has passed.
            progress.error.get_or_insert(error);
            for flight in std::mem::take(&mut progress.flights) {
                if let Some(slot) = flight.slot {
                    ring.put(slot, Some((stream.clone(), flight.seq)));
                }
            }
            return None;
        }
        let completed = stream.completed();
        let mut i = 0;
        while let Some(flight) = progress.flights.get(i) {
            if flight.seq > completed {
                i += 1;
                continue;
            }
            let Some(flight) = progress.flights.remove(i) else { break };
            match flight.slot {
                Some(slot) if progress.stopped() => ring.put(slot, None),
                Some(slot) => {
                    progress.busy += 1;
                    return Some(Step::Land(flight.at, flight.bytes, slot));
                }
                None => progress.done += flight.bytes,
            }
        }
        None
    }

    /// May a chunk go on its way now, and how? The first makes the copy stream wait for what came before.
    fn grant(&self, progress: &mut Progress, ring: &mut Ring) -> Result<Option<Way>> {
        let way = if !self.direct {
            match ring.take()? {
                Granted::Slot(slot) => Way::Through(slot),
                Granted::Make(bytes) => Way::Make(bytes),
                Granted::Later => return Ok(None),
            }
        } else if progress.busy + progress.flights.len() < DIRECT_FLIGHTS {
            Way::Direct
        } else {
            return Ok(None);
        };
        if !progress.ordered {
            progress.ordered = true;
            self.ctx.stream.wait_for(&self.after.0, self.after.1)?;
        }
        Ok(Some(way))
    }

    /// Bring a chunk on its way; the number of its copy.
    pub(super) fn send(&self, at: usize, bytes: usize, slot: Option<&Slot>) -> Result<u64> {
        let (host, lead) = match (slot, &self.host) {
            (None, HostSide::Memory(memory)) => (memory.wrapping_add(at), 0),
            (None, HostSide::File(_)) => {
                return Err(Error::Value("a file cannot be copied without a slot".to_string()));
            }
            (Some(slot), _) if self.direction == Direction::Download => (slot.ptr(), 0),
            (Some(slot), HostSide::Memory(memory)) => {
                // SAFETY: the request's memory is valid for its bytes, and the slot, ours alone, for a chunk.
                unsafe { self.fill(slot.ptr(), memory.wrapping_add(at), bytes) };
                (slot.ptr(), 0)
            }
            (Some(slot), HostSide::File(file)) => {
                // SAFETY: the slot is ours alone, and no stream uses it.
                let buffer = unsafe { std::slice::from_raw_parts_mut(slot.ptr(), slot.len()) };
                (slot.ptr(), file.read(at, bytes, buffer)?)
            }
        };
        let (host, device) = (host as u64 + lead as u64, self.device + at as u64);
        let (kind, dst, src) = match self.direction {
            Direction::Upload => (CopyKind::HostToDevice, device, host),
            Direction::Download => (CopyKind::DeviceToHost, host, device),
        };
        let work = Work::Copy(Copy { kind, dst, src, bytes, keep: None });
        submit(&self.ctx, Command { work, uses: smallvec![self.used.clone()], cost_key: 0 })?;
        let seq = self.ctx.stream.seq();
        // Asked now, the stream marks this place: asked later, it would only know when all that follows has passed too.
        self.ctx.stream.passed(seq)?;
        Ok(seq)
    }

    unsafe fn fill(&self, slot: *mut u8, from: *const u8, bytes: usize) {
        // SAFETY: the caller's contract.
        unsafe {
            if self.engine.options().past_caches {
                copy_past_caches(slot, from, bytes);
            } else {
                std::ptr::copy_nonoverlapping(from, slot, bytes);
            }
        }
    }

    /// Copy a chunk that has arrived out of its slot.
    pub(super) fn copy_out(&self, at: usize, bytes: usize, slot: &Slot) {
        if let HostSide::Memory(memory) = &self.host
            && !self.progress.lock().stopped()
        {
            // SAFETY: the stream has passed the copy into the slot; the request's memory is valid for its bytes.
            unsafe { std::ptr::copy_nonoverlapping(slot.ptr(), memory.wrapping_add(at), bytes) };
        }
    }

    /// A chunk was sent, or failed. Returns the slot and its stream when the ring gets it back. The engine's lock is held.
    pub(super) fn sent(
        &self,
        at: usize,
        bytes: usize,
        slot: Option<Slot>,
        outcome: Result<u64>,
    ) -> Option<(Slot, Arc<Stream>, u64)> {
        let mut progress = self.progress.lock();
        progress.busy -= 1;
        let stream = &self.ctx.stream;
        match outcome {
            Ok(seq) => {
                progress.last = progress.last.max(seq);
                let (kept, back) = match self.direction {
                    Direction::Upload => (None, slot.map(|slot| (slot, stream.clone(), seq))),
                    Direction::Download => (slot, None),
                };
                progress.flights.push_back(Flight { seq, at, bytes, slot: kept });
                back
            }
            Err(error) => {
                progress.error.get_or_insert(error);
                // Whether the driver took the copy is not known.
                slot.map(|slot| (slot, stream.clone(), stream.seq()))
            }
        }
    }

    /// A chunk could not be sent for want of a slot: somebody else takes it.
    pub(super) fn unsent(&self, at: usize, bytes: usize) {
        let mut progress = self.progress.lock();
        progress.busy -= 1;
        progress.returned.push((at, bytes));
    }

    /// A chunk was copied out.
    pub(super) fn landed(&self, bytes: usize) {
        let mut progress = self.progress.lock();
        progress.busy -= 1;
        progress.done += bytes;
    }
}
