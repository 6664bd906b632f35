//! `RingLink`: the host's end of a ring kernel, over memory that Python has laid out.

use std::sync::Arc;
use std::time::Duration;

use pygpukit_core::error::Error;
use pygpukit_core::ring::link::{Full, Link, Orders, Peer, Seen, Sent, Way};
use pygpukit_core::ring::mapped::{BulkInlet, BulkOutlet, HOST, Header, Inlet, Message, Outlet, Rows, Slots, Word};
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyModule};

use crate::errors::{ToPy, check_signals};
use crate::inside::detached;

/// Where a ring of messages is: the reader's count, the slots, how many, and words of each.
type Ring = (usize, usize, u64, usize);

/// Where a ring of plain messages is: the writer's count, the reader's, the rows, how many, and bytes of each.
type Plain = (usize, usize, usize, u64, usize);

/// What the host knows of an actor: its figures, the word of what was taken, rings of its own of either kind, room,
/// policy, bytes, type.
type Actor = (usize, usize, Option<(Ring, Ring)>, Option<(Plain, Plain)>, u64, u8, usize, u32);

/// Header and payload.
type Parts<'py> = ((u32, u16, u8, u8, u64, u64, u32), Bound<'py, PyBytes>);

#[pyclass(frozen, weakref, module = "pygpukit", name = "RingLink")]
struct RingLink {
    link: Arc<Link>,
    /// Owners of the memory.
    #[allow(dead_code)]
    keep: Py<PyAny>,
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

fn seconds(timeout: Option<f64>) -> PyResult<Option<Duration>> {
    timeout
        .map(|seconds| {
            Duration::try_from_secs_f64(seconds.max(0.0))
                .map_err(|_| Error::Value(format!("timeout={seconds} is not a number of seconds")))
        })
        .transpose()
        .py()
}

fn fate(sent: Sent) -> u8 {
    match sent {
        Sent::Accepted => 0,
        Sent::Rejected => 1,
        Sent::Dropped => 2,
        Sent::TimedOut => 3,
    }
}

fn parts<'py>(py: Python<'py>, message: &Message) -> Parts<'py> {
    let h = &message.header;
    let header = (h.kind, h.flags, h.priority, h.reason, h.id, h.correlation, h.source);
    (header, PyBytes::new(py, &message.payload))
}

impl RingLink {
    fn peer(&self, actor: usize) -> PyResult<&Peer> {
        let there = self.link.peers.len();
        self.link.peers.get(actor).ok_or_else(|| Error::Value(format!("there is no actor {actor}, of {there}"))).py()
    }

    fn header(&self, peer: &Peer, actor: usize, id: u64, priority: u8, correlation: u64, deadline: u64) -> Header {
        let destination = actor as u32;
        Header { kind: peer.kind, priority, id, correlation, deadline, source: HOST, destination, ..Header::default() }
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
    #[pyo3(signature = (actors, common, orders, beats, exited, keep))]
    fn new(
        actors: Vec<Actor>,
        common: (Ring, Ring),
        orders: (usize, usize, usize, u64),
        beats: (usize, usize),
        exited: usize,
        keep: Py<PyAny>,
    ) -> PyResult<RingLink> {
        let peers = actors.into_iter().map(|(seen, taken, own, bulk, room, full, bytes, kind)| {
            let full = match full {
                0 => Full::Block,
                1 => Full::Reject,
                2 => Full::DropOldest,
                _ => Full::DropNew,
            };
            // SAFETY: Python keeps the memory as long as the link.
            let seen = unsafe { Seen::new(seen) };
            Ok(Peer::new(seen, word(taken)?, way(own, bulk)?, room, full, bytes, kind))
        });
        let (into, out) = common;
        let common = (Inlet::new(word(into.0)?, slots(into)?), Outlet::new(word(out.0)?, slots(out)?));
        let (tail, head, base, count) = orders;
        let orders = Orders { tail: word(tail)?, head: word(head)?, base, count, written: Default::default() };
        let beats = [word(beats.0)?, word(beats.1)?];
        let peers = peers.collect::<PyResult<Vec<_>>>()?;
        let link = Link::new(peers, common, orders, beats, word(exited)?);
        Ok(RingLink { link: Arc::new(link), keep })
    }

    fn start(&self) -> PyResult<()> {
        Ok(self.link.start()?)
    }

    fn stop(&self, py: Python<'_>) {
        py.detach(|| self.link.stop());
    }

    /// Call this from any thread when messages have come.
    fn on_arrival(&self, callback: Option<Py<PyAny>>) {
        self.link.on_arrival(callback.map(|callback| -> Box<dyn Fn() + Send + Sync> {
            Box::new(move || {
                crate::inside::attached(|py| {
                    // An event loop that is closed hears nothing any more.
                    let _ = callback.call0(py);
                });
            })
        }));
    }

    /// Send one message: its id, and 0 if it was accepted, 1 rejected, 2 dropped, 3 too late.
    #[pyo3(signature = (actor, payload, priority = 0, correlation = 0, deadline = 0, timeout = None))]
    #[allow(clippy::too_many_arguments)]
    fn send(
        &self,
        py: Python<'_>,
        actor: usize,
        payload: &[u8],
        priority: u8,
        correlation: u64,
        deadline: u64,
        timeout: Option<f64>,
    ) -> PyResult<(u64, u8)> {
        let peer = self.peer(actor)?;
        let id = self.link.new_ids(1);
        let header = self.header(peer, actor, id, priority, correlation, deadline);
        let timeout = seconds(timeout)?;
        let (_, sent) = detached(py, || self.link.send(actor, 1, timeout, &mut check_signals, |_| (header, payload)))?;
        Ok((id, fate(sent)))
    }

    /// Send rows of a buffer: the first one's id, how many were accepted, and what became of the next.
    #[pyo3(signature = (actor, rows, timeout = None))]
    fn send_batch(
        &self,
        py: Python<'_>,
        actor: usize,
        rows: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<(u64, u64, u8)> {
        let peer = self.peer(actor)?;
        let buffer = PyBuffer::<u8>::get(rows)?;
        let (bytes, row) = (bytes_of(&buffer)?, peer.bytes);
        if !bytes.len().is_multiple_of(row) {
            return Err(Error::Value(format!("{} bytes are no whole number of messages of {row}", bytes.len()))).py();
        }
        let count = (bytes.len() / row) as u64;
        let id = self.link.new_ids(count);
        let header = self.header(peer, actor, id, 0, 0, 0);
        let timeout = seconds(timeout)?;
        let (done, sent) = detached(py, || {
            self.link.send(actor, count, timeout, &mut check_signals, |index| {
                (Header { id: id + index, ..header }, &bytes[index as usize * row..][..row])
            })
        })?;
        Ok((id, done, fate(sent)))
    }

    /// Send a message and wait for the reply: what became of it, and the reply.
    #[pyo3(signature = (actor, payload, timeout = None, priority = 0, deadline = 0))]
    fn call<'py>(
        &self,
        py: Python<'py>,
        actor: usize,
        payload: &[u8],
        timeout: Option<f64>,
        priority: u8,
        deadline: u64,
    ) -> PyResult<(u8, Option<Parts<'py>>)> {
        let peer = self.peer(actor)?;
        let header = self.header(peer, actor, self.link.new_ids(1), priority, 0, deadline);
        let timeout = seconds(timeout)?;
        let (sent, reply) = detached(py, || self.link.call(actor, header, payload, timeout, &mut check_signals))?;
        Ok((fate(sent), reply.map(|message| parts(py, &message))))
    }

    /// The next message of an actor's output, or None when it takes too long.
    #[pyo3(signature = (actor, timeout = None))]
    fn receive<'py>(&self, py: Python<'py>, actor: usize, timeout: Option<f64>) -> PyResult<Option<Parts<'py>>> {
        self.peer(actor)?;
        let timeout = seconds(timeout)?;
        let message = detached(py, || self.link.receive(actor, timeout, &mut check_signals))?;
        Ok(message.map(|message| parts(py, &message)))
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
        self.peer(actor)?;
        let buffer = PyBuffer::<u8>::get(rows)?;
        if buffer.readonly() || row == 0 {
            return Err(Error::Value("messages cannot be written there".into())).py();
        }
        let length = bytes_of(&buffer)?.len();
        let timeout = seconds(timeout)?;
        let start = buffer.buf_ptr() as usize;
        detached(py, || {
            // SAFETY: the buffer is held, contiguous and writable, and of that many bytes.
            let bytes = unsafe { std::slice::from_raw_parts_mut(start as *mut u8, length) };
            self.link.receive_into(actor, bytes, row, timeout, &mut check_signals)
        })
    }

    /// Tell an actor what to do; true when the device has answered.
    #[pyo3(signature = (actor, mode, timeout = None))]
    fn set_mode(&self, py: Python<'_>, actor: usize, mode: u64, timeout: Option<f64>) -> PyResult<bool> {
        self.peer(actor)?;
        let timeout = seconds(timeout)?;
        detached(py, || self.link.set_mode(actor, mode, timeout, &mut check_signals))
    }

    /// Ask the kernel to leave the device; true when it has.
    fn leave(&self, py: Python<'_>, launch: u64, timeout: f64) -> PyResult<bool> {
        let timeout = seconds(Some(timeout))?.unwrap_or_default();
        detached(py, || self.link.leave(launch, timeout))
    }

    /// Number and reason of the last launch that ended.
    fn exited(&self) -> (u64, u64) {
        let word = self.link.exited.load();
        (word >> 8, word & 255)
    }

    /// When the device last showed that it lives, on its clock.
    fn device_beat(&self) -> u64 {
        self.link.device_beat.load()
    }

    /// What the device and the host have counted of an actor.
    fn figures(&self, actor: usize) -> PyResult<Vec<(&'static str, u64)>> {
        let peer = self.peer(actor)?;
        let mut figures: Vec<_> =
            Seen::NAMES.iter().enumerate().map(|(index, name)| (*name, peer.seen.word(index))).collect();
        let (sent, refused, output) = peer.counts();
        figures.extend([("host_sent", sent), ("host_refused", refused), ("output_depth", output)]);
        Ok(figures)
    }

    /// Dead letters since the last call, and how many there were in all.
    fn letters<'py>(&self, py: Python<'py>) -> (Vec<Parts<'py>>, u64) {
        let (letters, count) = py.detach(|| self.link.letters());
        (letters.iter().map(|message| parts(py, message)).collect(), count)
    }
}

impl Drop for RingLink {
    fn drop(&mut self) {
        // The keeper may want the interpreter before it ends.
        Python::attach(|py| py.detach(|| self.link.stop()));
    }
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<RingLink>()
}
