//! The one place where the core's errors become Python exceptions.

use std::sync::Mutex;
use std::thread::ThreadId;

use pygpukit_core::error::{Error, Result};
use pygpukit_core::runtime;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyModule;

use crate::inside::{Apart, Inside, attached};

static ERRORS: PyOnceLock<Py<PyModule>> = PyOnceLock::new();

/// Python exceptions on their way through the core, by their text: raised by host functions or signal handlers. Threads
/// may be on this way at the same time.
static CARRIED: Mutex<Vec<(ThreadId, String, PyErr)>> = Mutex::new(Vec::new());
/// Exceptions that never arrive, because their error was dropped, are forgotten when there are this many.
const MAX_CARRIED: usize = 64;

/// Wrap a Python exception so that it survives the way through the core.
pub fn carry(error: PyErr) -> Error {
    let text = error.to_string();
    let forgotten = CARRIED.lock().ok().and_then(|mut carried| {
        carried.push((std::thread::current().id(), text.clone(), error));
        (carried.len() > MAX_CARRIED).then(|| carried.remove(0))
    });
    // Dropped without the lock: its end may run Python code.
    drop(forgotten);
    Error::Host(text)
}

pub fn raise(name: &str, message: String) -> PyErr {
    attached(|py| {
        let class = ERRORS
            .get_or_try_init(py, || PyModule::import(py, "pygpukit.errors").map(Bound::unbind))
            .and_then(|module| module.bind(py).getattr(name));
        match class.and_then(|c| c.call1((message,))) {
            Ok(value) => PyErr::from_value(value),
            Err(error) => error,
        }
    })
}

pub fn to_py(error: Error) -> PyErr {
    let error = runtime::attribute(error);
    let text = error.to_string();
    let name = match &error {
        Error::DriverNotFound(_) => "DriverNotFoundError",
        Error::DriverUnsupported(_) | Error::Driver { .. } => "DriverError",
        Error::NoDevice(_) | Error::DeviceUnsupported(_) | Error::Device(_) => "DeviceError",
        Error::NvrtcNotFound(_) => "NvrtcNotFoundError",
        Error::LibraryNotFound(_) => "DriverError",
        Error::Compile { .. } => "KernelCompileError",
        Error::OutOfMemory(_) | Error::HostMemory(_) => "OutOfMemoryError",
        Error::DeviceLost(_) => "DeviceLostError",
        Error::Forked(_) => "ForkError",
        Error::Launch(_) => "KernelLaunchError",
        Error::Kernel(_) => "KernelFaultError",
        Error::Graph(_) => "GraphError",
        Error::Shape(_) => "ShapeError",
        Error::DType(_) => "DTypeError",
        Error::File(_) => "LoadError",
        Error::Cancelled(_) => "TransferCancelledError",
        Error::TaskEnded(_) => "TaskCancelledError",
        Error::Value(_) => return PyValueError::new_err(text),
        Error::ShuttingDown => return PyRuntimeError::new_err(text),
        Error::Host(_) => {
            let carried = CARRIED.lock().ok().and_then(|mut carried| {
                // This thread's own first; work run by another thread arrives by its text alone.
                let here = std::thread::current().id();
                let own = carried.iter().position(|(thread, known, _)| *thread == here && *known == text);
                let at = own.or_else(|| carried.iter().position(|(_, known, _)| *known == text))?;
                Some(carried.remove(at).2)
            });
            return carried.unwrap_or_else(|| PyRuntimeError::new_err(text));
        }
    };
    raise(name, text)
}

/// `result.py()?` in place of a conversion the orphan rule forbids.
pub trait ToPy<T> {
    fn py(self) -> PyResult<T>;
}

impl<T> ToPy<T> for Result<T> {
    #[inline]
    fn py(self) -> PyResult<T> {
        self.map_err(to_py)
    }
}

/// Run Python's signal handlers from a wait; Ctrl-C ends it, and so does the end of the interpreter.
pub fn check_signals() -> Result<()> {
    let _inside = Inside::enter()?;
    if Apart::is_here() {
        return Ok(());
    }
    attached(|py| {
        // The caller may hold the interpreter, and what it waits for may need it.
        py.detach(std::thread::yield_now);
        py.check_signals()
    })
    .map_err(carry)
}
