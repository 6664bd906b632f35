//! Streams and events.

use std::sync::Arc;

use pygpukit_core::event::Event;
use pygpukit_core::exec::{self, ExecCtx};
use pygpukit_core::runtime::{self, DeviceState};
use pygpukit_core::stream::Stream;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyModule;

use crate::device::{PyDevice, context};
use crate::errors::{ToPy, check_signals, raise};
use crate::inside::detached;

/// A queue of work on a device; work on one stream runs in order.
///
/// Parameters
/// ----------
/// priority : {"high", "normal", "low"} or int
///     A smaller number goes first. Priorities order what waits; they never stop what runs.
///
/// Examples
/// --------
/// >>> with Stream(priority="high"):
/// ...     pass
#[pyclass(frozen, weakref, module = "pygpukit", name = "Stream")]
pub struct PyStream {
    pub state: &'static DeviceState,
    pub stream: Arc<Stream>,
    /// A stream made by the user goes back to the device when its object is gone.
    owned: bool,
}

impl PyStream {
    /// A stream that belongs to somebody else.
    pub fn borrowed(state: &'static DeviceState, stream: &Arc<Stream>) -> PyStream {
        PyStream { state, stream: stream.clone(), owned: false }
    }

    /// A context like `ctx` on this stream.
    pub fn context(&self, ctx: &Arc<ExecCtx>) -> PyResult<ExecCtx> {
        if std::ptr::eq(ctx.state, self.state) {
            Ok(ctx.on_stream(&self.stream))
        } else {
            Err(raise("DeviceError", "the stream belongs to another device than the arrays".to_string()))
        }
    }

    /// The context for work put on this stream explicitly, keeping the thread's capture and pool.
    fn own_context(&self, py: Python<'_>) -> PyResult<ExecCtx> {
        Ok(crate::device::context_for(py, self.state)?.on_stream(&self.stream))
    }
}

impl Drop for PyStream {
    fn drop(&mut self) {
        if self.owned {
            self.state.recycle(self.stream.clone());
        }
    }
}

#[pymethods]
impl PyStream {
    #[new]
    #[pyo3(signature = (priority=None))]
    fn new(py: Python<'_>, priority: Option<&Bound<'_, PyAny>>) -> PyResult<PyStream> {
        let ctx = context(py)?;
        let (least, greatest) = ctx.state.device.priority_range();
        let priority = match priority {
            None => 0.clamp(greatest.min(least), least.max(greatest)),
            Some(value) => match value.extract::<String>() {
                Ok(name) => match name.as_str() {
                    "high" => greatest,
                    "normal" => 0,
                    "low" => least,
                    other => {
                        return Err(PyValueError::new_err(format!(
                            "priority must be 'high', 'normal', 'low' or an int, not '{other}'"
                        )));
                    }
                },
                Err(_) => value.extract::<i32>().map_err(|_| {
                    PyTypeError::new_err("priority must be 'high', 'normal', 'low' or an int".to_string())
                })?,
            },
        };
        let stream = ctx.state.stream(priority).py()?;
        Ok(PyStream { state: ctx.state, stream, owned: true })
    }

    /// A smaller number goes first.
    #[getter]
    fn priority(&self) -> i32 {
        self.stream.priority()
    }

    /// Number of the stream on its device.
    #[getter]
    fn id(&self) -> u32 {
        self.stream.id()
    }

    /// Device of the stream.
    #[getter]
    fn device(&self) -> PyDevice {
        PyDevice { state: self.state }
    }

    /// Number of the last submission.
    #[getter]
    fn sequence(&self) -> u64 {
        self.stream.seq()
    }

    /// The driver's handle for other libraries, or None on the CPU device. A scheduled task's changes with its lane: it
    /// stays while `pygpukit.scheduler.external` holds it.
    #[getter]
    fn handle(&self) -> Option<usize> {
        self.state.is_cuda().then(|| self.stream.raw().0)
    }

    /// Version of the protocol, and the handle.
    fn __cuda_stream__(&self) -> PyResult<(u32, usize)> {
        let handle = self.handle().map(|handle| (0, handle));
        handle.ok_or_else(|| raise("DeviceError", "a stream of the CPU device is not one of CUDA".to_string()))
    }

    /// Has everything submitted so far finished?
    fn query(&self, py: Python<'_>) -> PyResult<bool> {
        self.state.check().py()?;
        detached(py, || self.stream.query())
    }

    /// Wait until everything submitted so far has finished.
    fn synchronize(&self, py: Python<'_>) -> PyResult<()> {
        refuse_in_capture("synchronize a stream")?;
        self.state.check().py()?;
        detached(py, || self.stream.synchronize(&mut check_signals))
    }

    /// Make later work on this stream wait for an event, or for what another stream has been given so far.
    fn wait(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<()> {
        runtime::check_locks().py()?;
        let ctx = self.own_context(py)?;
        if let Ok(event) = other.cast::<PyEvent>() {
            return event.get().event.wait_on(&ctx).py();
        }
        let Ok(stream) = other.cast::<PyStream>() else {
            return Err(PyTypeError::new_err("wait() takes an Event or a Stream"));
        };
        let stream = stream.get();
        match &ctx.recorder {
            Some(recorder) => {
                if !stream.stream.query().py()? {
                    return Err(raise(
                        "GraphError",
                        "the other stream has unfinished work from before the capture, which a graph cannot wait for; \
                         wait for it before the capture starts"
                            .to_string(),
                    ));
                }
                recorder.join(self.stream.id(), &recorder.tip(stream.stream.id()));
                Ok(())
            }
            None => self.stream.wait_for(&stream.stream, stream.stream.seq()).py(),
        }
    }

    /// Record an event here; makes one when none is given.
    #[pyo3(signature = (event=None))]
    fn record(&self, py: Python<'_>, event: Option<Bound<'_, PyEvent>>) -> PyResult<Py<PyEvent>> {
        let event = match event {
            Some(event) => event,
            None => Bound::new(py, PyEvent::make(self.state, true)?)?,
        };
        event.get().event.record(&self.own_context(py)?).py()?;
        Ok(event.unbind())
    }

    fn __enter__<'py>(slf: Bound<'py, Self>, py: Python<'py>) -> PyResult<Bound<'py, Self>> {
        exec::enter(slf.get().own_context(py)?, slf.as_ptr() as usize);
        Ok(slf)
    }

    #[pyo3(signature = (*_args))]
    fn __exit__(slf: &Bound<'_, Self>, _args: &Bound<'_, PyAny>) -> PyResult<()> {
        exec::leave(slf.as_ptr() as usize).py()
    }

    fn __repr__(&self) -> String {
        format!("<Stream {} priority={}>", self.stream.id(), self.stream.priority())
    }
}

/// Waiting while a graph is captured would wait for work that has not been given to the device.
pub fn refuse_in_capture(what: &str) -> PyResult<()> {
    match exec::current() {
        Some(ctx) if ctx.recorder.is_some() => Err(raise(
            "GraphError",
            format!(
                "cannot {what} while a graph is being captured: nothing recorded has run yet. Do it after the capture"
            ),
        )),
        _ => Ok(()),
    }
}

/// The current stream of this thread.
#[pyfunction]
fn current_stream(py: Python<'_>) -> PyResult<PyStream> {
    let ctx = context(py)?;
    Ok(PyStream { state: ctx.state, stream: ctx.stream.clone(), owned: false })
}

/// The stream that work without a stream of its own runs on.
#[pyfunction]
fn default_stream(py: Python<'_>) -> PyResult<PyStream> {
    let ctx = context(py)?;
    Ok(PyStream { state: ctx.state, stream: ctx.state.default_stream.clone(), owned: false })
}

/// A point on a stream that others can wait for, and that can be timed.
///
/// Parameters
/// ----------
/// timing : bool
///     Whether `elapsed_ms` may be asked; without it recording is cheaper.
#[pyclass(frozen, weakref, module = "pygpukit", name = "Event")]
pub struct PyEvent {
    pub event: Event,
}

impl PyEvent {
    fn make(state: &'static DeviceState, timing: bool) -> PyResult<PyEvent> {
        state.check().py()?;
        Ok(PyEvent { event: Event::new(&state.device, timing).py()? })
    }
}

#[pymethods]
impl PyEvent {
    #[new]
    #[pyo3(signature = (timing=true))]
    fn new(py: Python<'_>, timing: bool) -> PyResult<PyEvent> {
        PyEvent::make(context(py)?.state, timing)
    }

    /// May `elapsed_ms` be asked?
    #[getter]
    fn timing(&self) -> bool {
        self.event.timing()
    }

    /// Mark the point a stream has reached; the current stream by default.
    #[pyo3(signature = (stream=None))]
    fn record(&self, py: Python<'_>, stream: Option<&Bound<'_, PyStream>>) -> PyResult<()> {
        match stream {
            Some(stream) => self.event.record(&stream.get().own_context(py)?).py(),
            None => self.event.record(&*context(py)?).py(),
        }
    }

    /// Has the recorded point been passed? True for an event never recorded.
    fn query(&self, py: Python<'_>) -> PyResult<bool> {
        runtime::check_locks().py()?;
        detached(py, || self.event.query())
    }

    /// Wait until the recorded point has been passed.
    fn synchronize(&self, py: Python<'_>) -> PyResult<()> {
        refuse_in_capture("wait for an event")?;
        runtime::check_locks().py()?;
        detached(py, || self.event.synchronize(&mut check_signals))
    }

    /// Milliseconds on the device from this event to another.
    fn elapsed_ms(&self, end: &Bound<'_, PyEvent>) -> PyResult<f32> {
        runtime::check_locks().py()?;
        self.event.elapsed_ms(&end.get().event).py()
    }
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyStream>()?;
    m.add_class::<PyEvent>()?;
    m.add_function(wrap_pyfunction!(current_stream, m)?)?;
    m.add_function(wrap_pyfunction!(default_stream, m)?)?;
    Ok(())
}
