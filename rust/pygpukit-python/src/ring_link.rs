//! `RingLink`: the host's end of a ring kernel, over memory that Python has laid out.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pygpukit_core::error::Error;
use pygpukit_core::lane::Lane;
use pygpukit_core::ring::link::{Alarms, Link, Words};
use pygpukit_core::ring::mapped::{
    BulkInlet, BulkOutlet, CALL, HOST, Header, Inlet, Message, Outlet, Rows, Slots, Word,
};
use pygpukit_core::ring::orders::Orders;
use pygpukit_core::ring::peer::{Full, Peer, Seen, Sent, Way};
use pygpukit_core::ring::resident::{KernelProgram, Place};
use pygpukit_core::runtime::DeviceState;
use pygpukit_core::sync::{PATIENCE, Park};
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyModule, PyType};

use crate::device::context;
use crate::errors::{ToPy, check_signals};
use crate::inside::detached;
use crate::kernel::PyKernel;
use crate::ring_caller::RingCaller;
use crate::scheduler::TaskLease;

/// Where a ring of messages is: the reader's count, the slots, how many, and words of each.
type Ring = (usize, usize, u64, usize);

/// Where a ring of plain messages is: the writer's count, the reader's, the rows, how many, and bytes of each.
type Plain = (usize, usize, usize, u64, usize);

/// Header and payload: type, flags, priority, reason, id, correlation, source, destination, deadline.
pub type Parts<'py> = ((u32, u16, u8, u8, u64, u64, u32, u32, u64), Bound<'py, PyBytes>);

#[pyclass(frozen, weakref, module = "pygpukit", name = "RingLink")]
pub struct RingLink {
    pub link: Arc<Link>,
    /// Groups of SMs its kernel runs on; None for the whole device.
    lane: Option<Vec<usize>>,
    /// The lane of a scheduler's task, which counts in place of that.
    task_lane: Option<Arc<Lane>>,
    place: Mutex<Option<(&'static DeviceState, Arc<Place>)>>,
    /// Owner of the memory.
    keep: Mutex<Option<Py<PyAny>>>,
}

fn word(address: usize) -> PyResult<Word> {
    if address == 0 || !address.is_multiple_of(8) {
        return Err(Error::Value(format!("{address:#x} is not the address of a word"))).py();
    }
    // SAFETY: Python keeps the memory as long as the link, which `keep` sees to.
    Ok(unsafe { Word::new(address) })
}

fn slots((_, address, count, words): Ring) -> PyResult<Slots> {
    if address == 0 || !address.is_multiple_of(8) || !count.is_power_of_two() || words <= 12 {
        return Err(Error::Value(format!("{count} slots of {words} words do not make a ring"))).py();
    }
    // SAFETY: as above.
    Ok(unsafe { Slots::new(address, count, words) })
}

fn rows((_, _, address, count, stride): Plain) -> PyResult<Rows> {
    if address == 0 || !count.is_power_of_two() || !stride.is_multiple_of(16) || stride <= 48 {
        return Err(Error::Value(format!("{count} rows of {stride} bytes do not make a ring"))).py();
    }
    // SAFETY: as above.
    Ok(unsafe { Rows::new(address, count, stride) })
}

fn way(own: Option<(Ring, Ring)>, bulk: Option<(Plain, Plain)>) -> PyResult<Way> {
    Ok(match (own, bulk) {
        (Some((into, out)), _) => {
            Way::Own(Inlet::new(word(into.0)?, slots(into)?), Outlet::new(word(out.0)?, slots(out)?))
        }
        (None, Some((into, out))) => Way::Bulk(
            BulkInlet::new(word(into.0)?, word(into.1)?, rows(into)?),
            BulkOutlet::new(word(out.0)?, word(out.1)?, rows(out)?),
        ),
        (None, None) => Way::Shared,
    })
}

pub fn seconds(timeout: Option<f64>) -> PyResult<Option<Duration>> {
    timeout
        .map(|seconds| {
            Duration::try_from_secs_f64(seconds.max(0.0))
                .map_err(|_| Error::Value(format!("timeout={seconds} is not a number of seconds")))
        })
        .transpose()
        .py()
}

pub fn fate(sent: Sent) -> u8 {
    match sent {
        Sent::Accepted => 0,
        Sent::Rejected => 1,
        Sent::Dropped => 2,
        Sent::TimedOut => 3,
        Sent::Died => 4,
        Sent::Unanswered => 5,
        Sent::Closed => 6,
    }
}

/// How long a link that is let go waits for its kernel to leave.
const LAST: Duration = Duration::from_secs(5);

impl RingLink {
    pub fn parts<'py>(&self, py: Python<'py>, message: &Message) -> Parts<'py> {
        let h = &message.header;
        let deadline = self.link.to_host(h.deadline);
        let header = (h.kind, h.flags, h.priority, h.reason, h.id, h.correlation, h.source, h.destination, deadline);
        (header, PyBytes::new(py, &message.payload))
    }

    fn all_parts<'py>(&self, py: Python<'py>, messages: &[Message]) -> Vec<Parts<'py>> {
        messages.iter().map(|message| self.parts(py, message)).collect()
    }

    fn header(&self, actor: usize, id: u64, flags: u16, priority: u8) -> PyResult<Header> {
        let kind = self.link.peer(actor).py()?.kind;
        let destination = actor as u32;
        Ok(Header { kind, flags, priority, id, source: HOST, destination, ..Header::default() })
    }
}

/// The bytes of a buffer, to be read while it is held.
fn bytes_of(buffer: &PyBuffer<u8>) -> PyResult<&[u8]> {
    if !buffer.is_c_contiguous() {
        return Err(Error::Value("the messages are not contiguous: copy them first".into())).py();
    }
    // SAFETY: the buffer is held, contiguous, and of that many bytes; racing writers only spoil what they send.
    Ok(unsafe { std::slice::from_raw_parts(buffer.buf_ptr().cast::<u8>(), buffer.len_bytes()) })
}

#[pymethods]
impl RingLink {
    #[new]
    #[allow(clippy::too_many_arguments)]
    #[pyo3(signature = (common, orders, beats, exited, clock, alarms, keep, lane = None, lease = None))]
    fn new(
        common: (Ring, Ring),
        orders: (usize, usize, usize, u64),
        beats: (usize, usize),
        exited: usize,
        clock: usize,
        alarms: (usize, usize),
        keep: Py<PyAny>,
        lane: Option<Vec<usize>>,
        lease: Option<PyRef<'_, TaskLease>>,
    ) -> PyResult<RingLink> {
        let (into, out) = common;
        let common = (Inlet::new(word(into.0)?, slots(into)?), Outlet::new(word(out.0)?, slots(out)?));
        let (tail, head, base, count) = orders;
        word(base)?;
        // SAFETY: Python keeps the memory as long as the link, which `keep` sees to.
        let orders = unsafe { Orders::new(word(tail)?, word(head)?, base, count) };
        let (beat, device_beat) = (word(beats.0)?, word(beats.1)?);
        word(alarms.0)?;
        // SAFETY: as above.
        let alarms = unsafe { Alarms::new(alarms.0, alarms.1) };
        let words = Words { beat, device_beat, exited: word(exited)?, clock: word(clock)?, alarms };
        let link = Arc::new(Link::new(common, orders, words));
        let task_lane = lease.map(|lease| lease.lane());
        Ok(RingLink { link, lane, task_lane, place: Mutex::default(), keep: Mutex::new(Some(keep)) })
    }

    /// SMs of the groups that lanes of the current device are made of.
    #[staticmethod]
    fn lane_groups(py: Python<'_>) -> PyResult<Vec<u32>> {
        context(py)?.state.lanes.groups(false).py()
    }

    /// Add an actor: its figures, the word of what was taken, rings of its own of either kind, the host's room, what
    /// happens when it is full, bytes and type of a message. Returns its number.
    #[allow(clippy::too_many_arguments)]
    fn add(
        &self,
        seen: usize,
        taken: usize,
        own: Option<(Ring, Ring)>,
        bulk: Option<(Plain, Plain)>,
        room: u64,
        full: u8,
        bytes: usize,
        kind: u32,
    ) -> PyResult<usize> {
        let full = match full {
            0 => Full::Block,
            1 => Full::Reject,
            2 => Full::DropOldest,
            3 => Full::DropNew,
            _ => return Err(Error::Value(format!("there is no policy {full} for a full mailbox"))).py(),
        };
        word(seen)?;
        if bytes == 0 {
            return Err(Error::Value("a message of an actor has at least one byte".to_string())).py();
        }
        // SAFETY: Python keeps the memory as long as the link.
        let seen = unsafe { Seen::new(seen) };
        let peer = Peer::new(seen, word(taken)?, way(own, bulk)?, room, full, bytes, kind);
        self.link.add(peer).py()
    }

    /// Let go of the rings of an actor that has ended, while the kernel is away: what is sent to it goes with all others'.
    /// False while it has not taken all that was sent.
    fn retire(&self, actor: usize) -> PyResult<bool> {
        self.link.retire(actor).py()
    }

    /// Take the kernel off the device and end the heartbeat and all waits; false if the kernel has not left.
    #[pyo3(signature = (timeout = 5.0))]
    fn stop(&self, py: Python<'_>, timeout: f64) -> PyResult<bool> {
        let timeout = seconds(Some(timeout))?.unwrap_or_default();
        Ok(py.detach(|| {
            let gone = self.link.down(timeout);
            self.link.stop();
            gone
        }))
    }

    /// Say what is launched: `kernel(engine, number)` with blocks of so many threads and that much dynamic shared memory.
    fn program(
        &self,
        py: Python<'_>,
        kernel: PyRef<'_, PyKernel>,
        engine: u64,
        blocks: u32,
        threads: u32,
        shared_bytes: u32,
    ) -> PyResult<()> {
        let (state, kernel) = (kernel.state, kernel.kernel.clone());
        detached(py, || {
            state.check()?;
            let mut place = self.place.lock();
            let there = match &*place {
                Some((known, there)) if std::ptr::eq(*known, state) => there.clone(),
                _ => {
                    let lane = match (&self.task_lane, &self.lane) {
                        (Some(lane), _) => lane.clone(),
                        (None, Some(groups)) => state.lanes.get(false, groups)?,
                        (None, None) => state.lane.clone(),
                    };
                    Place::new(&lane)?
                }
            };
            let program = KernelProgram::new(&kernel, &there, engine, blocks, threads, shared_bytes)?;
            self.link.set_program(Arc::new(program))?;
            *place = Some((state, there));
            Ok(())
        })
    }

    /// Bring the kernel to the device and keep it there.
    fn up(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, || self.link.up())
    }

    /// Take it off the device; false if it has not left in time.
    fn down(&self, py: Python<'_>, timeout: f64) -> PyResult<bool> {
        let timeout = seconds(Some(timeout))?.unwrap_or_default();
        detached(py, || Ok(self.link.down(timeout)))
    }

    /// Hold the kernel away from the device until as many calls of `resume`; returns when it has left.
    fn park(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, || self.link.park(PATIENCE, &mut check_signals))
    }

    /// Let it come back.
    fn resume(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, || {
            self.link.resume();
            Ok(())
        })
    }

    /// Why the kernel is lost, or None.
    fn failure(&self) -> Option<String> {
        self.link.failure().map(ToString::to_string)
    }

    /// Where the kernel is and what became of it.
    fn status<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let status = self.link.status();
        let d = PyDict::new(py);
        d.set_item("up", status.up)?;
        d.set_item("launches", status.launches)?;
        d.set_item("parks", status.parks)?;
        d.set_item("last_exit", status.last_exit)?;
        d.set_item("device_beat_ns", status.device_beat)?;
        d.set_item("host_beat", status.host_beat)?;
        d.set_item("stuck", status.stuck)?;
        d.set_item("orders_pending", status.orders_pending)?;
        Ok(d)
    }

    /// Numbers of the actors whose handlers have worked on one message for too long.
    fn stuck_actors(&self) -> Vec<usize> {
        self.link.stuck_actors()
    }

    /// Have the kernel trap, which on a GPU ends CUDA in the process; false if the order found no room.
    fn trap(&self) -> bool {
        self.link.trap()
    }

    /// Ids of actors by the numbers of their handlers, for faults.
    fn name_handlers(&self, handlers: Vec<(u32, String)>) {
        self.link.name_handlers(handlers);
    }

    /// Write eight bytes to this descriptor when there is something to look at; -1 for none.
    fn signal(&self, py: Python<'_>, fd: i32) {
        py.detach(|| self.link.set_signal(fd));
    }

    /// Say so before looking, in the descriptor's reader.
    fn signalled(&self) {
        self.link.signalled();
    }

    /// An event loop waits for an actor's output, or no longer does. Look with `try_receive` after it was switched on.
    fn watch(&self, actor: usize, on: bool) -> PyResult<()> {
        self.link.watch(actor, on).py()
    }

    /// Event loops wait for that many answers more, or less.
    fn expect(&self, n: i64) {
        self.link.expect(n);
    }

    /// Messages in an actor's output.
    fn depth(&self, actor: usize) -> PyResult<u64> {
        Ok(self.link.peer(actor).py()?.depth())
    }

    /// Send one message: 0 if it was accepted, 1 rejected, 2 dropped, 3 too late, 6 if the actor takes no more.
    #[pyo3(signature = (actor, payload, id, flags = 0, priority = 0, correlation = 0, deadline = 0, timeout = None))]
    #[allow(clippy::too_many_arguments)]
    fn send(
        &self,
        py: Python<'_>,
        actor: usize,
        payload: &[u8],
        id: u64,
        flags: u16,
        priority: u8,
        correlation: u64,
        deadline: u64,
        timeout: Option<f64>,
    ) -> PyResult<u8> {
        let header = Header { correlation, ..self.header(actor, id, flags, priority)? };
        let timeout = seconds(timeout)?;
        let (_, sent) = detached(py, || {
            let deadline = self.link.to_device(deadline, timeout, &mut check_signals)?;
            let header = Header { deadline, ..header };
            self.link.send(actor, 1, timeout, &mut check_signals, |_| (header, payload))
        })?;
        Ok(fate(sent))
    }

    /// Send rows of a buffer, with ids from the first one on: how many were accepted, and what became of the next.
    #[pyo3(signature = (actor, rows, first_id, timeout = None, deadline = 0, flags = 0))]
    #[allow(clippy::too_many_arguments)]
    fn send_rows(
        &self,
        py: Python<'_>,
        actor: usize,
        rows: &Bound<'_, PyAny>,
        first_id: u64,
        timeout: Option<f64>,
        deadline: u64,
        flags: u16,
    ) -> PyResult<(u64, u8)> {
        let header = self.header(actor, first_id, flags, 0)?;
        let row = self.link.peer(actor).py()?.bytes;
        let buffer = PyBuffer::<u8>::get(rows)?;
        let bytes = bytes_of(&buffer)?;
        if !bytes.len().is_multiple_of(row) {
            return Err(Error::Value(format!("{} bytes are no whole number of messages of {row}", bytes.len()))).py();
        }
        let count = (bytes.len() / row) as u64;
        let timeout = seconds(timeout)?;
        let (done, sent) = detached(py, || {
            let deadline = self.link.to_device(deadline, timeout, &mut check_signals)?;
            self.link.send(actor, count, timeout, &mut check_signals, |index| {
                let header = Header { id: first_id.wrapping_add(index), deadline, ..header };
                (header, &bytes[index as usize * row..][..row])
            })
        })?;
        Ok((done, fate(sent)))
    }

    /// Calls of one actor, which answers with messages of this class or with none.
    fn caller(slf: Bound<'_, Self>, actor: usize, output: Option<Bound<'_, PyType>>) -> PyResult<RingCaller> {
        let header = slf.get().header(actor, 0, CALL, 0)?;
        RingCaller::new(slf.unbind(), actor, header, output)
    }

    /// Whoever waits for an answer of an actor is told that it has ended.
    fn end_calls(&self, py: Python<'_>, actor: usize) -> PyResult<()> {
        detached(py, || self.link.end_calls(actor))
    }

    /// Answers that no thread waits for, since the last look.
    fn take_answers<'py>(&self, py: Python<'py>) -> Vec<Parts<'py>> {
        self.all_parts(py, &self.link.take_answers())
    }

    /// So many answers of an actor that more follow were taken by those who wanted them.
    fn took(&self, actor: usize, n: u64) -> PyResult<()> {
        self.link.took(actor, n).py()
    }

    /// Dead letters that ended no call, since the last look.
    fn take_letters<'py>(&self, py: Python<'py>) -> Vec<Parts<'py>> {
        self.all_parts(py, &self.link.take_letters())
    }

    /// The next message of an actor's output, or None if there is none now.
    fn try_receive<'py>(&self, py: Python<'py>, actor: usize) -> PyResult<Option<Parts<'py>>> {
        Ok(self.link.try_receive(actor).py()?.map(|message| self.parts(py, &message)))
    }

    /// The next message of an actor's output, or None when it takes too long.
    #[pyo3(signature = (actor, timeout = None))]
    fn receive<'py>(&self, py: Python<'py>, actor: usize, timeout: Option<f64>) -> PyResult<Option<Parts<'py>>> {
        self.link.peer(actor).py()?;
        let timeout = seconds(timeout)?;
        let message = detached(py, || self.link.receive(actor, timeout, &mut check_signals))?;
        Ok(message.map(|message| self.parts(py, &message)))
    }

    /// Messages of an actor's output into the rows of a buffer: how many came.
    #[pyo3(signature = (actor, rows, row, timeout = None))]
    fn receive_into(
        &self,
        py: Python<'_>,
        actor: usize,
        rows: &Bound<'_, PyAny>,
        row: usize,
        timeout: Option<f64>,
    ) -> PyResult<usize> {
        self.link.peer(actor).py()?;
        let buffer = PyBuffer::<u8>::get(rows)?;
        if buffer.readonly() || row == 0 {
            return Err(Error::Value("messages cannot be written there".into())).py();
        }
        let length = bytes_of(&buffer)?.len();
        let timeout = seconds(timeout)?;
        let start = buffer.buf_ptr() as usize;
        let count = detached(py, || {
            // SAFETY: the buffer is held, contiguous and writable, and of that many bytes.
            let bytes = unsafe { std::slice::from_raw_parts_mut(start as *mut u8, length) };
            self.link.receive_into(actor, bytes, row, timeout, &mut check_signals)
        })?;
        // A signal that came meanwhile would otherwise be seen by the caller before it knows how many came.
        if let Err(interrupt) = py.check_signals() {
            self.link.give_back(actor, &bytes_of(&buffer)?[..count * row], row).py()?;
            return Err(interrupt);
        }
        Ok(count)
    }

    /// Rows that were taken are the first of an actor's output again.
    fn give_back(&self, actor: usize, rows: &Bound<'_, PyAny>, row: usize) -> PyResult<()> {
        self.link.give_back(actor, bytes_of(&PyBuffer::<u8>::get(rows)?)?, row).py()
    }

    /// Tell an actor what to do; true when the device has answered.
    #[pyo3(signature = (actor, mode, timeout = None))]
    fn set_mode(&self, py: Python<'_>, actor: usize, mode: u64, timeout: Option<f64>) -> PyResult<bool> {
        self.link.peer(actor).py()?;
        let timeout = seconds(timeout)?;
        detached(py, || self.link.set_mode(actor, mode, timeout, &mut check_signals))
    }

    /// Take no more than so many messages for an actor, than were sent unless it is said: it is to end.
    #[pyo3(signature = (actor, most = None))]
    fn close(&self, actor: usize, most: Option<u64>) -> PyResult<()> {
        self.link.peer(actor).py()?.close(most);
        Ok(())
    }

    /// Let an actor send to the host whether or not anybody receives: it is to end.
    fn unbound(&self, actor: usize) -> PyResult<()> {
        self.link.peer(actor).py()?.unbound();
        Ok(())
    }

    /// Latencies of an actor's messages, counted by powers of two of nanoseconds.
    fn buckets(&self, actor: usize) -> PyResult<[u32; 32]> {
        Ok(self.link.peer(actor).py()?.seen.buckets())
    }

    /// What the device and the host have counted of an actor.
    fn figures(&self, actor: usize) -> PyResult<Vec<(&'static str, u64)>> {
        let peer = self.link.peer(actor).py()?;
        let mut figures: Vec<_> =
            Seen::NAMES.iter().enumerate().map(|(index, name)| (*name, peer.seen.word(index))).collect();
        let (sent, refused, answered, output) = peer.counts();
        let ours = [("host_sent", sent), ("host_refused", refused), ("answered", answered), ("output_depth", output)];
        figures.extend(ours);
        Ok(figures)
    }
}

impl Drop for RingLink {
    fn drop(&mut self) {
        let gone = Python::attach(|py| {
            py.detach(|| {
                let gone = self.link.down(LAST);
                self.link.stop();
                gone
            })
        });
        if !gone {
            // The kernel still uses the memory.
            std::mem::forget(self.keep.lock().take());
        }
    }
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<RingLink>()
}
