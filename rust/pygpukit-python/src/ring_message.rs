//! `MessageBase`: the header every message has, where the mailboxes can read it without the interpreter's help.

use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, Ordering};

use pygpukit_core::ring::queue::NEVER;
use pygpukit_core::sched::clock::{Clock, Monotonic};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple, PyType};

/// The sender of this message waits for its answer.
const CALL: u16 = 1;
/// This message is the answer to one whose sender waits.
const ANSWER: u16 = 2;

/// Nanoseconds of `time.monotonic_ns()`.
pub fn now(py: Python<'_>) -> u64 {
    static OFFSET: OnceLock<u64> = OnceLock::new();
    let ours = Monotonic.now();
    let offset = match OFFSET.get() {
        Some(offset) => *offset,
        None => {
            let theirs = py.import("time").and_then(|time| time.call_method0("monotonic_ns")?.extract::<u64>());
            *OFFSET.get_or_init(|| theirs.map_or(0, |theirs| theirs.saturating_sub(Monotonic.now())))
        }
    };
    ours + offset
}

/// Numbers of messages: unique in the process, and starting somewhere else in every process.
fn next_id() -> u64 {
    next_ids(1)
}

/// The first of so many.
fn next_ids(count: u64) -> u64 {
    static NEXT: OnceLock<AtomicU64> = OnceLock::new();
    let start = || AtomicU64::new(RandomState::new().hash_one(std::process::id()) & 0x7fff_ffff_0000_0000 | 1);
    NEXT.get_or_init(start).fetch_add(count, Ordering::Relaxed)
}

/// In the flags, and nobody else's: it was sent without a call, and whoever gets it has this very object; or its number was
/// used for a call, or given to it and may be that of another message.
const SENT: u16 = 1 << 15;

/// Header of a message; the classes that ``message`` makes inherit it.
#[pyclass(frozen, subclass, weakref, module = "pygpukit.ring", name = "MessageBase")]
pub struct MessageBase {
    id: AtomicU64,
    correlation: AtomicU64,
    deadline: AtomicU64,
    flags: AtomicU16,
    priority: AtomicU8,
}

impl MessageBase {
    pub fn priority(&self) -> u8 {
        self.priority.load(Ordering::Relaxed)
    }

    pub fn id(&self) -> u64 {
        self.id.load(Ordering::Relaxed)
    }

    /// It was sent, unless that is a call.
    pub fn note_sent(&self) {
        if self.flags.load(Ordering::Relaxed) & (CALL | SENT) == 0 {
            self.flags.fetch_or(SENT, Ordering::Relaxed);
        }
    }

    pub fn correlation(&self) -> u64 {
        self.correlation.load(Ordering::Relaxed)
    }

    /// Nanoseconds of `time.monotonic_ns()`, or `NEVER`.
    pub fn deadline_ns(&self) -> u64 {
        self.deadline.load(Ordering::Relaxed)
    }

    /// Answer `request` unless this answers something already; whether somebody waits for this message.
    pub fn answers(&self, request: Option<&MessageBase>) -> bool {
        if let Some(request) = request
            && self.correlation.load(Ordering::Relaxed) == 0
        {
            self.answer(request);
        }
        self.flags.load(Ordering::Relaxed) & ANSWER != 0
    }

    /// Note that the sender waits for an answer; false if this message was sent already, or called with, and its answer may
    /// still come.
    pub fn mark(&self) -> bool {
        let add = |flags| (flags & (CALL | SENT) == 0).then_some(flags | CALL);
        self.flags.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
    }

    /// The number for a call: this message's own, unless that was used already, or may be that of another message.
    pub fn number_for_call(&self) -> u64 {
        if self.mark() { self.id() } else { next_id() }
    }

    /// The call of this number was answered. If it is this message's own, it was used: no other call goes out under it.
    pub fn settle(&self, number: u64) {
        if number == self.id() {
            let settled = |flags| Some(flags & !CALL | SENT);
            let _ = self.flags.fetch_update(Ordering::Relaxed, Ordering::Relaxed, settled);
        }
    }

    /// This came from a device, with this number, as the answer to another message.
    pub fn came(&self, id: u64, priority: u8, request: &MessageBase) {
        self.set_message_id(id);
        self.priority.store(priority, Ordering::Relaxed);
        self.correlation.store(request.id(), Ordering::Relaxed);
    }

    /// A message of this class without values.
    pub fn blank<'py>(class: &Bound<'py, PyType>) -> PyResult<Bound<'py, MessageBase>> {
        let py = class.py();
        Ok(py.get_type::<MessageBase>().call_method1(intern!(py, "__new__"), (class,))?.cast_into()?)
    }

    fn answer(&self, request: &MessageBase) {
        self.correlation.store(request.id.load(Ordering::Relaxed), Ordering::Relaxed);
        if request.flags.load(Ordering::Relaxed) & CALL != 0 {
            self.flags.fetch_or(ANSWER, Ordering::Relaxed);
        }
    }
}

#[pymethods]
impl MessageBase {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs))]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> MessageBase {
        MessageBase {
            id: AtomicU64::new(next_id()),
            correlation: AtomicU64::new(0),
            deadline: AtomicU64::new(NEVER),
            flags: AtomicU16::new(0),
            priority: AtomicU8::new(0),
        }
    }

    /// Numbers for so many messages: the first of them.
    #[staticmethod]
    fn _new_ids(count: u64) -> u64 {
        next_ids(count)
    }

    /// Number of the message, 64 bits.
    #[getter]
    fn message_id(&self) -> u64 {
        self.id.load(Ordering::Relaxed)
    }

    #[setter]
    fn set_message_id(&self, id: u64) {
        self.id.store(id, Ordering::Relaxed);
        self.flags.fetch_or(SENT, Ordering::Relaxed);
    }

    /// Number of the message this one answers; 0 when it answers none.
    #[getter]
    fn correlation_id(&self) -> u64 {
        self.correlation()
    }

    #[setter]
    fn set_correlation_id(&self, id: &Bound<'_, PyAny>) -> PyResult<()> {
        match id.extract::<u64>() {
            Ok(id) => {
                self.correlation.store(id, Ordering::Relaxed);
                Ok(())
            }
            Err(_) => Err(PyValueError::new_err(format!(
                "correlation_id must be the message_id of another message, or 0, not {}",
                id.repr()?
            ))),
        }
    }

    /// 0 to 255; the larger goes first.
    #[getter(priority)]
    fn priority_py(&self) -> u8 {
        self.priority()
    }

    #[setter(priority)]
    fn set_priority(&self, priority: &Bound<'_, PyAny>) -> PyResult<()> {
        match priority.extract::<u8>() {
            Ok(priority) => {
                self.priority.store(priority, Ordering::Relaxed);
                Ok(())
            }
            Err(_) => Err(PyValueError::new_err(format!(
                "priority must be an int from 0 to 255 (the larger goes first), not {}",
                priority.repr()?
            ))),
        }
    }

    /// When the message is of no use any more, in seconds of ``time.monotonic()``; None for never.
    #[getter]
    fn deadline(&self) -> Option<f64> {
        let deadline = self.deadline_ns();
        (deadline != NEVER).then(|| deadline as f64 / 1e9)
    }

    #[setter]
    fn set_deadline(&self, deadline: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let deadline = match deadline {
            None => NEVER,
            Some(value) => match value.extract::<f64>() {
                // The cast saturates: what lies before the clock's start is over, what lies too far ahead never comes. 0
                // is none in a device's header.
                Ok(seconds) if !seconds.is_nan() => ((seconds * 1e9) as u64).max(1),
                _ => {
                    return Err(PyTypeError::new_err(format!(
                        "deadline must be seconds of time.monotonic() or None, not {}",
                        value.repr()?
                    )));
                }
            },
        };
        self.deadline.store(deadline, Ordering::Relaxed);
        Ok(())
    }

    /// The deadline in nanoseconds, all bits set for none, as it stands in a device's header.
    #[getter(_deadline_ns)]
    fn deadline_ns_py(&self) -> u64 {
        self.deadline_ns()
    }

    #[setter(_deadline_ns)]
    fn set_deadline_ns(&self, deadline: u64) {
        self.deadline.store(deadline, Ordering::Relaxed);
    }

    #[getter(_flags)]
    fn flags_py(&self) -> u16 {
        self.flags.load(Ordering::Relaxed) & !SENT
    }

    /// Was it sent for a call?
    #[getter]
    fn _is_call(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & CALL != 0
    }

    #[setter(_flags)]
    fn set_flags(&self, flags: u16) {
        let kept = self.flags.load(Ordering::Relaxed) & SENT;
        self.flags.store(flags & !SENT | kept, Ordering::Relaxed);
    }

    /// Make another message the answer to this one, and return it.
    fn reply<'py>(&self, answer: Bound<'py, MessageBase>) -> Bound<'py, MessageBase> {
        answer.get().answer(self);
        answer
    }

    /// Note that the sender waits for an answer; returns the number it will carry, or 0 if this message was sent already,
    /// or called with, and its answer may still come.
    fn _call(&self) -> u64 {
        if self.mark() { self.id() } else { 0 }
    }

    /// Note that the call of this number was answered.
    fn _settle(&self, number: u64) {
        self.settle(number);
    }

    /// Note that it was sent.
    fn _sent(&self) {
        self.note_sent();
    }
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<MessageBase>()
}
