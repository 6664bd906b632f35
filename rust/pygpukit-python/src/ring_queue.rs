//! `RingQueue`: a mailbox of Python objects, for threads and event loops.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use pygpukit_core::ring::histogram::Histogram;
use pygpukit_core::ring::park::{self, LOOK, Parker, patience};
use pygpukit_core::ring::queue::{Get, NEVER, Outcome, Policy, Queue, Wake};
use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyList};

use crate::errors::{ToPy, check_signals};
use crate::inside::{attached, detached_from_devices};
use crate::ring_message::{MessageBase, now};

/// How long a thread sleeps before it looks for signals and the end of the interpreter.
const SLICE: Duration = Duration::from_millis(100);

/// How often somebody with many messages looks for signals, whose single waits may be short.
const EVERY: Duration = Duration::from_millis(50);

/// When to look for signals next.
struct Look(Instant);

impl Look {
    fn new() -> Look {
        Look(Instant::now() + EVERY)
    }

    fn now(&mut self) -> PyResult<()> {
        if Instant::now() < self.0 {
            return Ok(());
        }
        *self = Look::new();
        check_signals().py()
    }
}

enum Waiter {
    Thread(Arc<Parker>),
    /// A future of an event loop, and the thread of that loop.
    Future {
        future: Py<PyAny>,
        event_loop: Py<PyAny>,
        thread: ThreadId,
    },
}

/// Set a future's result, on the thread of its loop; whether it was still waited for.
fn resolve(future: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = future.py();
    match future.call_method1(intern!(py, "set_result"), (py.None(),)) {
        Ok(_) => Ok(true),
        // Asked only now, because a future is nearly always waited for.
        Err(_) if future.call_method0(intern!(py, "done"))?.is_truthy()? => Ok(false),
        Err(error) => Err(error),
    }
}

/// What an event loop is asked to call when its future was woken by another thread.
#[pyfunction]
fn _resolve(future: &Bound<'_, PyAny>) -> PyResult<()> {
    // A future that is done belongs to a wait that was given up, and giving up passes the wake on.
    resolve(future).map(drop)
}

/// A future of an event loop.
fn new_future<'py>(event_loop: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    static FUTURE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = event_loop.py();
    let class = FUTURE.get_or_try_init(py, || py.import("asyncio")?.getattr("Future").map(Bound::unbind))?;
    let kwargs = PyDict::new(py);
    kwargs.set_item(intern!(py, "loop"), event_loop)?;
    class.bind(py).call((), Some(&kwargs))
}

fn resolver(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static RESOLVE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let function = RESOLVE.get_or_try_init(py, || wrap_pyfunction!(_resolve, py).map(|f| f.into_any().unbind()))?;
    Ok(function.bind(py))
}

impl Wake for Waiter {
    fn wake(self) -> bool {
        match self {
            Waiter::Thread(parker) => parker.wake(),
            Waiter::Future { future, event_loop, thread } => attached(|py| {
                let future = future.bind(py);
                if thread == std::thread::current().id() {
                    return resolve(future).unwrap_or(false);
                }
                let asked = resolver(py).and_then(|resolve| {
                    event_loop.bind(py).call_method1(intern!(py, "call_soon_threadsafe"), (resolve, future))
                });
                // A loop that is closed has nobody left who waits.
                asked.is_ok()
            }),
        }
    }
}

fn code(outcome: Outcome) -> u8 {
    match outcome {
        Outcome::Accepted => 0,
        Outcome::Dropped => 1,
        Outcome::Rejected => 2,
        Outcome::Full => 3,
        Outcome::Closed => 4,
    }
}

/// An answer that somebody waits for.
const AWAITED: u8 = 5;
/// Nothing was done: it is time to let others run.
const TURN: u8 = 6;

/// A coroutine that never has to wait lets others run after so many messages.
const BURST: u32 = 256;

/// A message's priority and deadline.
fn urgency(message: &Bound<'_, PyAny>) -> (u8, u64) {
    match message.cast::<MessageBase>() {
        Ok(header) => (header.get().priority(), header.get().deadline_ns()),
        Err(_) => (0, NEVER),
    }
}

fn moment(timeout: Option<f64>) -> PyResult<Option<Instant>> {
    match timeout {
        None => Ok(None),
        Some(seconds) if seconds.is_nan() => Err(PyValueError::new_err("timeout must be seconds or None, not nan")),
        // Longer than anybody waits, and within what a clock can count.
        Some(seconds) => Ok(Some(Instant::now() + Duration::from_secs_f64(seconds.clamp(0.0, 1e9)))),
    }
}

/// A bounded mailbox of messages, most urgent first.
///
/// Parameters
/// ----------
/// capacity : int
///     Most messages it holds.
/// policy : {"block", "reject", "drop_oldest", "drop_new"}
///     What happens to a message for a full mailbox.
/// on_dead : callable, optional
///     Called with a message that will not be delivered, and the reason.
/// measured : bool
///     There is one consumer: time it, from acceptance until it comes back for more.
#[pyclass(frozen, weakref, module = "pygpukit.ring", name = "RingQueue")]
pub struct RingQueue {
    queue: Queue<Py<PyAny>, Waiter>,
    on_dead: Option<Py<PyAny>>,
    /// Messages since somebody else could run, at the end of it that a coroutine is at.
    burst: AtomicU32,
}

impl RingQueue {
    fn dead(&self, py: Python<'_>, message: Py<PyAny>, reason: &str) -> PyResult<()> {
        match &self.on_dead {
            Some(on_dead) => on_dead.call1(py, (message, reason)).map(drop),
            None => Ok(()),
        }
    }

    fn put_now(&self, message: &Bound<'_, PyAny>) -> PyResult<Outcome> {
        let py = message.py();
        if let Ok(header) = message.cast::<MessageBase>() {
            header.get().note_sent();
        }
        let (priority, deadline) = urgency(message);
        let put = self.queue.put(message.clone().unbind(), priority, deadline, || now(py));
        match (put.outcome, put.returned) {
            (Outcome::Accepted, Some(displaced)) => self.dead(py, displaced, "dropped_oldest")?,
            (Outcome::Dropped, Some(refused)) => self.dead(py, refused, "dropped_new")?,
            _ => {}
        }
        Ok(put.outcome)
    }

    fn is_burst_over(&self) -> bool {
        self.burst.fetch_add(1, Ordering::Relaxed) % BURST == BURST - 1
    }

    fn bury(&self, py: Python<'_>, late: Vec<Py<PyAny>>) -> PyResult<()> {
        late.into_iter().try_for_each(|message| self.dead(py, message, "expired"))
    }

    fn get_now(&self, py: Python<'_>) -> PyResult<Get<Py<PyAny>>> {
        let mut late = Vec::new();
        let got = self.queue.get(|| now(py), &mut late);
        self.bury(py, late)?;
        Ok(got)
    }

    /// Wait without the interpreter until woken, awake for a while and then asleep; false when the time is over.
    fn sleep(
        &self,
        py: Python<'_>,
        register: impl FnOnce(Waiter) -> Option<u64>,
        until: Option<Instant>,
    ) -> PyResult<bool> {
        if until.is_some_and(|until| Instant::now() >= until) {
            return Ok(false);
        }
        let parker = Arc::new(Parker::default());
        let Some(ticket) = register(Waiter::Thread(parker.clone())) else { return Ok(true) };
        let slept = detached_from_devices(py, || {
            let mut now = Instant::now();
            // None: it never sleeps.
            let awake = now.checked_add(patience(LOOK));
            loop {
                let slice = now + SLICE;
                let limit = until.map_or(slice, |until| until.min(slice));
                let woken = if awake.is_none_or(|awake| now < awake) {
                    parker.look_until(awake.map_or(limit, |awake| awake.min(limit)))
                } else {
                    parker.sleep_until(limit)
                };
                if woken {
                    return Ok(true);
                }
                now = Instant::now();
                if until.is_some_and(|until| now >= until) {
                    return Ok(false);
                }
                if now >= slice {
                    check_signals()?;
                }
            }
        });
        if !matches!(slept, Ok(true)) {
            self.queue.forget(ticket);
        }
        slept
    }

    fn future(future: &Bound<'_, PyAny>, event_loop: &Bound<'_, PyAny>) -> Waiter {
        Waiter::Future {
            future: future.clone().unbind(),
            event_loop: event_loop.clone().unbind(),
            thread: std::thread::current().id(),
        }
    }
}

#[pymethods]
impl RingQueue {
    #[new]
    #[pyo3(signature = (capacity, policy="block", on_dead=None, measured=false))]
    fn new(capacity: usize, policy: &str, on_dead: Option<Py<PyAny>>, measured: bool) -> PyResult<RingQueue> {
        let policy = match policy {
            "block" => Policy::Block,
            "reject" => Policy::Reject,
            "drop_oldest" => Policy::DropOldest,
            "drop_new" => Policy::DropNew,
            other => {
                return Err(PyValueError::new_err(format!(
                    "policy must be 'block', 'reject', 'drop_oldest' or 'drop_new', not '{other}'"
                )));
            }
        };
        if capacity == 0 {
            return Err(PyValueError::new_err("capacity must be 1 at least, not 0"));
        }
        Ok(RingQueue { queue: Queue::new(capacity, policy, measured), on_dead, burst: AtomicU32::new(0) })
    }

    /// Put a message in without waiting: 0 accepted, 1 dropped, 2 rejected, 3 full, 4 closed.
    fn try_put(&self, message: &Bound<'_, PyAny>) -> PyResult<u8> {
        self.put_now(message).map(code)
    }

    /// Put in what an actor sends while it works on `request`; 5 when somebody waits for this answer, who is to get it,
    /// and 6 when others are to run first.
    fn try_answer(&self, message: &Bound<'_, MessageBase>, request: Option<&Bound<'_, MessageBase>>) -> PyResult<u8> {
        if self.is_burst_over() {
            return Ok(TURN);
        }
        if message.get().answers(request.map(|request| request.get())) {
            return Ok(AWAITED);
        }
        self.put_now(message.as_any()).map(code)
    }

    /// Put a message in, waiting for room where that is the policy; 3 when the time is over.
    #[pyo3(signature = (message, timeout=None))]
    fn put(&self, message: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<u8> {
        let until = moment(timeout)?;
        loop {
            let outcome = self.put_now(message)?;
            if outcome != Outcome::Full || !self.sleep(message.py(), |w| self.queue.await_space(w), until)? {
                return Ok(code(outcome));
            }
        }
    }

    /// Put messages in one after another, until one is rejected, is too late, or the mailbox is closed.
    ///
    /// Returns how many it got through, dropped ones among them, and what became of the last.
    #[pyo3(signature = (messages, timeout=None))]
    fn put_many(&self, py: Python<'_>, messages: Vec<Bound<'_, PyAny>>, timeout: Option<f64>) -> PyResult<(usize, u8)> {
        let until = moment(timeout)?;
        let mut look = Look::new();
        for (at, message) in messages.iter().enumerate() {
            if (at as u32).is_multiple_of(BURST) {
                look.now()?;
            }
            loop {
                let outcome = self.put_now(message)?;
                match outcome {
                    Outcome::Accepted | Outcome::Dropped => break,
                    Outcome::Full if self.sleep(py, |w| self.queue.await_space(w), until)? => look.now()?,
                    _ => return Ok((at, code(outcome))),
                }
            }
        }
        Ok((messages.len(), 0))
    }

    /// The next message; None when there is none, or the mailbox is paused.
    fn try_get(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        Ok(match self.get_now(py)? {
            Get::Item(message) => Some(message),
            Get::Empty | Get::Finished => None,
        })
    }

    /// The next message, None when none will come, or a future of this thread's event loop that is set when it is time
    /// to ask again. A wait that ends otherwise is given up with `forget_future`.
    fn get_or_wait<'py>(&self, event_loop: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = event_loop.py();
        if self.is_burst_over() {
            let future = new_future(event_loop)?;
            event_loop.call_method1(intern!(py, "call_soon"), (resolver(py)?, &future))?;
            return Ok(Some(future));
        }
        loop {
            match self.get_now(py)? {
                Get::Item(message) => return Ok(Some(message.into_bound(py))),
                Get::Finished => return Ok(None),
                Get::Empty => {}
            }
            let future = new_future(event_loop)?;
            if self.queue.await_item(Self::future(&future, event_loop)).is_some() {
                return Ok(Some(future));
            }
        }
    }

    /// Wait for the next message; None when the time is over or nothing will come. No time passes while it is paused.
    #[pyo3(signature = (timeout=None))]
    fn get(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Py<PyAny>>> {
        let until = moment(timeout)?;
        loop {
            match self.get_now(py)? {
                Get::Item(message) => return Ok(Some(message)),
                Get::Finished => return Ok(None),
                Get::Empty => {
                    if !self.sleep(py, |w| self.queue.await_item(w), until)? {
                        if !self.queue.is_paused() {
                            return Ok(None);
                        }
                        self.sleep(py, |w| self.queue.await_active(w), None)?;
                    }
                }
            }
        }
    }

    /// Up to `n` messages: those that are there, and with a timeout (None for any time) those that come.
    #[pyo3(signature = (n, timeout=Some(0.0)))]
    fn get_many<'py>(&self, py: Python<'py>, n: usize, timeout: Option<f64>) -> PyResult<Bound<'py, PyList>> {
        let until = moment(timeout)?;
        let list = PyList::empty(py);
        let mut look = Look::new();
        let mut get = || {
            loop {
                let mut late = Vec::new();
                let taken = self.queue.get_many(n - list.len(), now(py), &mut late);
                for message in taken {
                    list.append(message)?;
                }
                self.bury(py, late)?;
                let is_over = list.len() >= n || self.queue.is_finished();
                if is_over || !self.sleep(py, |w| self.queue.await_item(w), until)? {
                    // A signal that came meanwhile would otherwise be seen by the caller before it has the list.
                    return py.check_signals();
                }
                look.now()?;
            }
        };
        let outcome = get();
        if outcome.is_err() {
            self.give_back(list.iter().collect());
        }
        outcome.map(|()| list)
    }

    /// Messages that were taken are in it again, before others of their priority.
    fn give_back(&self, messages: Vec<Bound<'_, PyAny>>) {
        let with_urgency = |message: Bound<'_, PyAny>| {
            let (priority, deadline) = urgency(&message);
            (message.unbind(), priority, deadline)
        };
        self.queue.give_back(messages.into_iter().map(with_urgency).collect());
    }

    /// Have a future of this thread's event loop set when it is time to get; 0 when it is now, else a ticket.
    fn await_item(&self, future: &Bound<'_, PyAny>, event_loop: &Bound<'_, PyAny>) -> u64 {
        self.queue.await_item(Self::future(future, event_loop)).unwrap_or(0)
    }

    /// The same for when it is time to put.
    fn await_space(&self, future: &Bound<'_, PyAny>, event_loop: &Bound<'_, PyAny>) -> u64 {
        self.queue.await_space(Self::future(future, event_loop)).unwrap_or(0)
    }

    /// The same for when the mailbox is not paused.
    fn await_active(&self, future: &Bound<'_, PyAny>, event_loop: &Bound<'_, PyAny>) -> u64 {
        self.queue.await_active(Self::future(future, event_loop)).unwrap_or(0)
    }

    /// The same for when the consumer of the paused mailbox stands still.
    fn await_parked(&self, future: &Bound<'_, PyAny>, event_loop: &Bound<'_, PyAny>) -> u64 {
        self.queue.await_parked(Self::future(future, event_loop)).unwrap_or(0)
    }

    /// Sleep until the mailbox is not paused; false when the time is over.
    #[pyo3(signature = (timeout=None))]
    fn wait_active(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let until = moment(timeout)?;
        while self.queue.is_paused() {
            if !self.sleep(py, |w| self.queue.await_active(w), until)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Give up a wait.
    fn forget(&self, ticket: u64) {
        self.queue.forget(ticket);
    }

    /// Give up a wait of `get_or_wait`.
    fn forget_future(&self, future: &Bound<'_, PyAny>) {
        let is_it = |waiter: &Waiter| matches!(waiter, Waiter::Future { future: known, .. } if known.is(future));
        self.queue.forget_where(|_, waiter| is_it(waiter));
    }

    /// Deliver nothing until `resume`.
    fn pause(&self) {
        self.queue.pause();
    }

    /// Deliver again.
    fn resume(&self) {
        self.queue.resume();
    }

    /// Accept nothing more; what is there is still delivered.
    fn close(&self) {
        self.queue.close();
    }

    /// Take everything out, undelivered.
    fn discard<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, self.queue.discard())
    }

    /// Hold so many messages from now on.
    fn set_capacity(&self, capacity: usize) {
        self.queue.set_capacity(capacity);
    }

    /// The consumer is done with what it had.
    fn finish(&self, py: Python<'_>) {
        self.queue.finish(now(py));
    }

    /// The consumer failed with what it had; how many messages.
    fn fail(&self) -> u64 {
        self.queue.fail()
    }

    /// What happened so far.
    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counts = self.queue.counts();
        let dict = PyDict::new(py);
        for (name, value) in [
            ("accepted", counts.accepted),
            ("rejected", counts.rejected),
            ("dropped", counts.dropped),
            ("displaced", counts.displaced),
            ("expired", counts.expired),
            ("discarded", counts.discarded),
            ("delivered", counts.delivered),
            ("done", counts.done),
            ("failed", counts.failed),
            ("depth", counts.depth as u64),
            ("max_depth", counts.max_depth as u64),
        ] {
            dict.set_item(name, value)?;
        }
        Ok(dict)
    }

    /// What was measured, in seconds: "wait" until delivery, "latency" until the consumer came back, and its "busy" time.
    fn measured<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let measured = self.queue.measured().unwrap_or_default();
        let dict = PyDict::new(py);
        dict.set_item("wait", percentiles(py, &measured.wait)?)?;
        dict.set_item("latency", percentiles(py, &measured.latency)?)?;
        dict.set_item("busy", measured.busy as f64 / 1e9)?;
        Ok(dict)
    }

    #[getter]
    fn capacity(&self) -> usize {
        self.queue.capacity()
    }

    /// Messages in it now.
    #[getter]
    fn depth(&self) -> usize {
        self.queue.counts().depth
    }

    #[getter]
    fn is_paused(&self) -> bool {
        self.queue.is_paused()
    }

    #[getter]
    fn is_closed(&self) -> bool {
        self.queue.is_closed()
    }

    /// Closed, and nothing is left.
    #[getter]
    fn is_finished(&self) -> bool {
        self.queue.is_finished()
    }
}

/// Seconds that waits of this thread for messages stay awake before they sleep; None for what is best for most. Returns what
/// it was before.
#[pyfunction]
#[pyo3(signature = (seconds))]
fn set_patience(seconds: Option<f64>) -> Option<f64> {
    let patience = seconds.map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX));
    park::set_patience(patience).map(|before| before.as_secs_f64())
}

fn percentiles<'py>(py: Python<'py>, histogram: &Histogram) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("count", histogram.count())?;
    dict.set_item("mean", histogram.mean() / 1e9)?;
    for (name, q) in [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999)] {
        dict.set_item(name, histogram.quantile(q) as f64 / 1e9)?;
    }
    dict.set_item("max", histogram.max() as f64 / 1e9)?;
    Ok(dict)
}

/// What an actor's context asks its mailbox all the time.
#[pyclass(frozen, subclass, weakref, module = "pygpukit.ring", name = "ContextBase")]
pub struct ContextBase {
    inbox: Py<RingQueue>,
}

#[pymethods]
impl ContextBase {
    #[new]
    fn new(actor: &Bound<'_, PyAny>) -> PyResult<ContextBase> {
        Ok(ContextBase { inbox: actor.getattr("inbox")?.cast::<RingQueue>()?.clone().unbind() })
    }

    /// Is everything done that was accepted before the end?
    #[getter]
    fn should_terminate(&self) -> bool {
        self.inbox.get().queue.is_finished()
    }

    /// Are messages delivered?
    #[getter]
    fn is_active(&self) -> bool {
        !self.inbox.get().queue.is_paused()
    }
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(set_patience, m)?)?;
    m.add_class::<RingQueue>()?;
    m.add_class::<ContextBase>()
}
