//! Page-locked host memory, and transfers that go on while the caller does something else.

use std::sync::Arc;
use std::time::Duration;

use pygpukit_core::command::Access;
use pygpukit_core::error::Error;
use pygpukit_core::exec::ExecCtx;
use pygpukit_core::host::{
    self, Direction, FileSource, HostSide, Options, PinnedBlock, Priority, Request, Transfer, Until, engine,
};
use pygpukit_core::runtime::{self, DeviceState};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyModule};

use crate::array::GPUArray;
use crate::device::{context, context_for};
use crate::errors::{ToPy, check_signals};
use crate::inside::detached;
use crate::stream::{PyStream, refuse_in_capture};
use crate::transfer::{HostBytes, on};

/// A block of page-locked host memory, for NumPy to look at. It goes back to its pool when nobody looks any more.
#[pyclass(frozen, weakref, module = "pygpukit", name = "PinnedMemory")]
struct PinnedMemory {
    block: PinnedBlock,
    nbytes: usize,
}

#[pymethods]
impl PinnedMemory {
    #[new]
    fn new(py: Python<'_>, nbytes: usize) -> PyResult<PinnedMemory> {
        let state = context(py)?.state;
        state.check().py()?;
        Ok(PinnedMemory { block: detached(py, || state.pinned.take(nbytes))?, nbytes })
    }

    /// Bytes that were asked for.
    #[getter]
    fn nbytes(&self) -> usize {
        self.nbytes
    }

    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let interface = PyDict::new(py);
        interface.set_item("data", (self.block.ptr() as usize, false))?;
        interface.set_item("shape", (self.nbytes,))?;
        interface.set_item("typestr", "|u1")?;
        interface.set_item("version", 3)?;
        Ok(interface)
    }
}

/// A transfer on its way.
#[pyclass(frozen, weakref, module = "pygpukit", name = "TransferHandle")]
struct TransferHandle {
    state: &'static DeviceState,
    transfer: Arc<Transfer>,
}

#[pymethods]
impl TransferHandle {
    /// Wait until it is over; False when that takes longer than `timeout` seconds. Raises what went wrong.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        refuse_in_capture("wait for a transfer")?;
        runtime::check_locks().py()?;
        let timeout = match timeout {
            None => None,
            Some(seconds) if seconds.is_nan() => {
                return Err(Error::Value("a timeout is a number of seconds, not nan".into())).py();
            }
            // Beyond what a duration can hold is for ever.
            Some(seconds) => Duration::try_from_secs_f64(seconds.max(0.0)).ok(),
        };
        detached(py, || self.transfer.wait(Until::Over, timeout, &mut check_signals))
    }

    /// Is it over, in whichever way? Work moves on meanwhile, so asking again and again comes to an end.
    #[getter]
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        if self.transfer.is_over() {
            return Ok(true);
        }
        detached(py, || {
            self.state.check()?;
            self.state.device.poll()?;
            self.transfer.glance()?;
            Ok(self.transfer.is_over())
        })
    }

    /// Drop what is not on its way yet; False when there is nothing left to drop.
    fn cancel(&self) -> bool {
        self.transfer.cancel()
    }

    #[getter]
    fn bytes(&self) -> usize {
        self.transfer.bytes()
    }

    #[getter]
    fn bytes_done(&self) -> usize {
        self.transfer.bytes_done()
    }

    #[getter]
    fn seconds(&self) -> f64 {
        self.transfer.seconds()
    }

    #[getter]
    fn priority(&self) -> &'static str {
        match self.transfer.priority() {
            Priority::High => "high",
            Priority::Normal => "normal",
        }
    }
}

fn priority_of(name: &str) -> PyResult<Priority> {
    match name {
        "high" => Ok(Priority::High),
        "normal" => Ok(Priority::Normal),
        other => Err(Error::Value(format!("the priority of a transfer is 'high' or 'normal', not '{other}'"))).py(),
    }
}

fn begin(ctx: &ExecCtx, request: Request) -> PyResult<TransferHandle> {
    let transfer = engine(ctx.state).start(ctx, request, false).py()?;
    Ok(TransferHandle { state: ctx.state, transfer })
}

fn start(
    py: Python<'_>,
    array: &GPUArray,
    data: &Bound<'_, PyAny>,
    stream: Option<&Bound<'_, PyStream>>,
    priority: &str,
    direction: Direction,
) -> PyResult<TransferHandle> {
    refuse_in_capture("start a transfer")?;
    let priority = priority_of(priority)?;
    let ctx = on(py, context_for(py, array.state)?, stream)?;
    let (data, access) = match direction {
        Direction::Upload => (HostBytes::read(data)?, Access::Write),
        Direction::Download => (HostBytes::write(data)?, Access::Read),
    };
    let pair = data.pair(array, access)?;
    let request = Request {
        direction,
        priority,
        device: pair.device,
        bytes: pair.bytes,
        used: pair.used,
        host: HostSide::Memory(pair.host),
        after: (ctx.stream.clone(), ctx.stream.seq()),
        keep: Some(data.keep()?),
    };
    begin(&ctx, request)
}

/// Start to copy host bytes over a contiguous array.
#[pyfunction]
#[pyo3(signature = (array, data, stream=None, priority="normal"))]
fn start_upload(
    py: Python<'_>,
    array: &Bound<'_, GPUArray>,
    data: &Bound<'_, PyAny>,
    stream: Option<&Bound<'_, PyStream>>,
    priority: &str,
) -> PyResult<TransferHandle> {
    start(py, array.get(), data, stream, priority, Direction::Upload)
}

/// Start to copy a contiguous array into host bytes.
#[pyfunction]
#[pyo3(signature = (array, data, stream=None, priority="normal"))]
fn start_download(
    py: Python<'_>,
    array: &Bound<'_, GPUArray>,
    data: &Bound<'_, PyAny>,
    stream: Option<&Bound<'_, PyStream>>,
    priority: &str,
) -> PyResult<TransferHandle> {
    start(py, array.get(), data, stream, priority, Direction::Download)
}

/// Start to copy a part of an open file over a contiguous array. The descriptor may be closed afterwards.
#[pyfunction]
#[pyo3(signature = (array, descriptor, path, offset, stream=None))]
fn start_load(
    py: Python<'_>,
    array: &Bound<'_, GPUArray>,
    descriptor: i32,
    path: &str,
    offset: u64,
    stream: Option<&Bound<'_, PyStream>>,
) -> PyResult<TransferHandle> {
    refuse_in_capture("load a file")?;
    let array = array.get();
    if !array.layout.is_contiguous() {
        return Err(Error::Shape("only a contiguous array can be loaded from a file".into())).py();
    }
    let ctx = on(py, context_for(py, array.state)?, stream)?;
    let source = duplicate(descriptor).map_err(|error| Error::File(format!("'{path}' cannot be read: {error}")));
    let source = source.and_then(|file| FileSource::new(file, path, offset, array.bytes())).py()?;
    let request = Request {
        direction: Direction::Upload,
        priority: Priority::Normal,
        device: array.ptr(),
        bytes: array.bytes(),
        used: array.used(Access::Write)?,
        host: HostSide::File(source),
        after: (ctx.stream.clone(), ctx.stream.seq()),
        keep: None,
    };
    begin(&ctx, request)
}

#[cfg(unix)]
fn duplicate(descriptor: i32) -> std::io::Result<std::fs::File> {
    use std::os::fd::BorrowedFd;
    if descriptor < 0 {
        return Err(std::io::Error::from(std::io::ErrorKind::InvalidInput));
    }
    // SAFETY: the descriptor is only used for the duplication, and a closed one is an error of it.
    unsafe { BorrowedFd::borrow_raw(descriptor) }.try_clone_to_owned().map(std::fs::File::from)
}

#[cfg(not(unix))]
fn duplicate(_descriptor: i32) -> std::io::Result<std::fs::File> {
    Err(std::io::Error::from(std::io::ErrorKind::Unsupported))
}

/// Copy many host buffers over contiguous arrays of one device.
#[pyfunction]
#[pyo3(signature = (pairs, stream=None))]
fn upload_many(
    py: Python<'_>,
    pairs: Vec<(Bound<'_, PyAny>, Bound<'_, GPUArray>)>,
    stream: Option<&Bound<'_, PyStream>>,
) -> PyResult<()> {
    let Some((_, first)) = pairs.first() else { return Ok(()) };
    let state = first.get().state;
    if pairs.iter().any(|(_, array)| !std::ptr::eq(array.get().state, state)) {
        return Err(Error::Device("all arrays of one call must be on one device".into())).py();
    }
    let ctx = on(py, context_for(py, state)?, stream)?;
    let buffers = pairs.iter().map(|(data, _)| HostBytes::read(data)).collect::<PyResult<Vec<_>>>()?;
    let mut copies = Vec::with_capacity(pairs.len());
    for (data, (_, array)) in buffers.iter().zip(&pairs) {
        let pair = data.pair(array.get(), Access::Write)?;
        let keep = if host::is_large(&ctx, pair.bytes) { Some(data.keep()?) } else { None };
        copies.push((pair, keep));
    }
    // SAFETY: `buffers` hold the bytes until the end of this function, and each `keep` as long as they are needed.
    detached(py, || unsafe { host::upload_many(&ctx, &mut copies, &mut check_signals) })
}

/// Numbers of the page-locked memory of the current device.
#[pyfunction]
fn pinned_stats<'py>(py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
    runtime::check_locks().py()?;
    let stats = context(py)?.state.pinned.stats();
    let numbers = PyDict::new(py);
    numbers.set_item("used", stats.used)?;
    numbers.set_item("peak", stats.peak)?;
    numbers.set_item("cached", stats.cached)?;
    numbers.set_item("limit", stats.limit)?;
    numbers.set_item("hits", stats.hits)?;
    numbers.set_item("misses", stats.misses)?;
    Ok(numbers)
}

/// Give page-locked memory that nobody uses back to the system; returns its bytes.
#[pyfunction]
fn trim_pinned(py: Python<'_>) -> PyResult<usize> {
    let state = context(py)?.state;
    state.check().py()?;
    detached(py, || state.pinned.trim())
}

/// How the current device's copies are made: (threads, bytes of a chunk, slots for each direction, past the caches).
#[pyfunction]
fn transfer_options(py: Python<'_>) -> PyResult<(usize, usize, usize, bool)> {
    runtime::check_locks().py()?;
    let options = engine(context(py)?.state).options();
    Ok((options.workers, options.chunk, options.slots, options.past_caches))
}

/// Change them, for benchmarks.
#[pyfunction]
fn set_transfer_options(py: Python<'_>, workers: usize, chunk: usize, slots: usize, past_caches: bool) -> PyResult<()> {
    engine(context(py)?.state).set_options(Options { workers, chunk, slots, past_caches });
    Ok(())
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PinnedMemory>()?;
    m.add_class::<TransferHandle>()?;
    m.add_function(wrap_pyfunction!(start_upload, m)?)?;
    m.add_function(wrap_pyfunction!(start_download, m)?)?;
    m.add_function(wrap_pyfunction!(start_load, m)?)?;
    m.add_function(wrap_pyfunction!(upload_many, m)?)?;
    m.add_function(wrap_pyfunction!(pinned_stats, m)?)?;
    m.add_function(wrap_pyfunction!(trim_pinned, m)?)?;
    m.add_function(wrap_pyfunction!(transfer_options, m)?)?;
    m.add_function(wrap_pyfunction!(set_transfer_options, m)?)?;
    Ok(())
}
