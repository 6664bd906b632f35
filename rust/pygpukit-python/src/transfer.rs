//! Copies between host and device, fills, and host functions in stream order.

use std::sync::Arc;

use pygpukit_core::command::{Access, Command, Copy, CopyKind, Fill, Use, Work};
use pygpukit_core::error::Error;
use pygpukit_core::exec::ExecCtx;
use pygpukit_core::host::{self, Keep, Pair};
use pygpukit_core::launch::submit;
use pygpukit_core::layout::Layout;
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::{PyMemoryView, PyModule};
use smallvec::{SmallVec, smallvec};

use crate::array::GPUArray;
use crate::device::{PyDevice, context, context_for};
use crate::dtype::DataType;
use crate::errors::{ToPy, check_signals};
use crate::host_call::{self, Part};
use crate::inside::detached;
use crate::scalar::Scalar;
use crate::stream::{PyStream, refuse_in_capture};

pub fn on(py: Python<'_>, ctx: Arc<ExecCtx>, stream: Option<&Bound<'_, PyStream>>) -> PyResult<Arc<ExecCtx>> {
    let _ = py;
    match stream {
        Some(stream) => Ok(Arc::new(stream.get().context(&ctx)?)),
        None => Ok(ctx),
    }
}

fn copy(kind: CopyKind, dst: u64, src: u64, bytes: usize, uses: SmallVec<[Use; 4]>) -> Command {
    Command { work: Work::Copy(Copy { kind, dst, src, bytes, keep: None }), uses, cost_key: 0 }
}

/// A host buffer of plain bytes, and what keeps it.
pub struct HostBytes<'py> {
    object: &'py Bound<'py, PyAny>,
    buffer: PyBuffer<u8>,
}

impl<'py> HostBytes<'py> {
    pub fn read(object: &'py Bound<'py, PyAny>) -> PyResult<HostBytes<'py>> {
        Ok(HostBytes { object, buffer: PyBuffer::get(object)? })
    }

    /// For writing.
    pub fn write(object: &'py Bound<'py, PyAny>) -> PyResult<HostBytes<'py>> {
        let bytes = HostBytes::read(object)?;
        if bytes.buffer.readonly() {
            return Err(Error::Value("the host buffer cannot be written to".into())).py();
        }
        Ok(bytes)
    }

    pub fn address(&self) -> *mut u8 {
        self.buffer.buf_ptr().cast()
    }

    /// Keeps the bytes where they are: their owner cannot resize them meanwhile.
    pub fn keep(&self) -> PyResult<Keep> {
        Ok(Box::new(PyMemoryView::from(self.object)?.unbind()))
    }

    /// The bytes beside those of an array.
    pub fn pair(&self, array: &GPUArray, access: Access) -> PyResult<Pair> {
        check_buffer(array, &self.buffer)?;
        Ok(Pair { device: array.ptr(), used: array.used(access)?, host: self.address(), bytes: array.bytes() })
    }
}

/// Copy host bytes into a new array.
#[pyfunction]
#[pyo3(signature = (data, shape, dtype, device=None, stream=None))]
fn from_buffer(
    py: Python<'_>,
    data: &Bound<'_, PyAny>,
    shape: Vec<i64>,
    dtype: &Bound<'_, DataType>,
    device: Option<&Bound<'_, PyDevice>>,
    stream: Option<&Bound<'_, PyStream>>,
) -> PyResult<GPUArray> {
    let ctx = match device {
        Some(device) => context_for(py, device.get().state)?,
        None => context(py)?,
    };
    let ctx = on(py, ctx, stream)?;
    let layout = Layout::contiguous(&shape).py()?;
    let array = GPUArray::allocate(&ctx, layout, dtype.get().dtype).py()?;
    upload(py, &ctx, &array, data)?;
    Ok(array)
}

/// Overwrite a contiguous array with host bytes.
#[pyfunction]
#[pyo3(signature = (array, data, stream=None))]
fn write_buffer(
    py: Python<'_>,
    array: &Bound<'_, GPUArray>,
    data: &Bound<'_, PyAny>,
    stream: Option<&Bound<'_, PyStream>>,
) -> PyResult<()> {
    let ctx = on(py, context_for(py, array.get().state)?, stream)?;
    upload(py, &ctx, array.get(), data)
}

fn upload(py: Python<'_>, ctx: &ExecCtx, array: &GPUArray, data: &Bound<'_, PyAny>) -> PyResult<()> {
    let data = HostBytes::read(data)?;
    let pair = data.pair(array, Access::Write)?;
    if !host::is_large(ctx, pair.bytes) {
        // SAFETY: `data` holds the bytes until the end of this function.
        return unsafe { host::upload(ctx, &pair, None, &mut check_signals) }.py();
    }
    let keep = data.keep()?;
    // SAFETY: `data` holds the bytes until the end of this function, and `keep` as long as they are needed.
    detached(py, || unsafe { host::upload(ctx, &pair, Some(keep), &mut check_signals) })
}

/// Copy a contiguous array into host bytes and wait for it.
#[pyfunction]
#[pyo3(signature = (array, data, stream=None))]
fn read_buffer(
    py: Python<'_>,
    array: &Bound<'_, GPUArray>,
    data: &Bound<'_, PyAny>,
    stream: Option<&Bound<'_, PyStream>>,
) -> PyResult<()> {
    refuse_in_capture("copy an array to the host")?;
    let array = array.get();
    let data = HostBytes::write(data)?;
    let pair = data.pair(array, Access::Read)?;
    let ctx = on(py, context_for(py, array.state)?, stream)?;
    let keep = if host::is_large(&ctx, pair.bytes) { Some(data.keep()?) } else { None };
    // SAFETY: `data` holds the bytes until the end of this function, and `keep` as long as they are needed.
    detached(py, || unsafe { host::download(&ctx, &pair, keep, &mut check_signals) })
}

fn check_buffer(array: &GPUArray, data: &PyBuffer<u8>) -> PyResult<()> {
    if !array.layout.is_contiguous() {
        return Err(Error::Shape("only a contiguous array can be copied as bytes; call contiguous() first".into()))
            .py();
    }
    if !data.is_c_contiguous() || data.item_count() != array.bytes() {
        return Err(Error::Value(format!(
            "the host buffer has {} bytes, but the array has {}",
            data.item_count(),
            array.bytes()
        )))
        .py();
    }
    Ok(())
}

/// Set every element of a contiguous array to a Python scalar. Returns False where a kernel must do it:
/// elements of more than four bytes that are not a repeated smaller pattern.
#[pyfunction]
#[pyo3(signature = (array, value, stream=None))]
fn fill(
    py: Python<'_>,
    array: &Bound<'_, GPUArray>,
    value: &Bound<'_, PyAny>,
    stream: Option<&Bound<'_, PyStream>>,
) -> PyResult<bool> {
    let array = array.get();
    let Some(scalar) = Scalar::read(value)? else { return Ok(false) };
    // Refuses what the type cannot hold, also where a kernel writes it.
    let element = scalar.element(array.dtype)?;
    if !array.layout.is_contiguous() {
        return Ok(false);
    }
    if array.bytes() == 0 {
        return Ok(true);
    }
    let size = array.dtype.itemsize();
    let (width, count) = match size {
        1 | 2 | 4 => (size, array.bytes() / size),
        _ if element[..size].chunks(4).all(|c| c == &element[..4]) => (4, array.bytes() / 4),
        _ => return Ok(false),
    };
    let mut word = [0u8; 4];
    word[..width].copy_from_slice(&element[..width]);
    let ctx = on(py, context_for(py, array.state)?, stream)?;
    let work = Work::Fill(Fill { dst: array.ptr(), value: u32::from_le_bytes(word), width: width as u8, count });
    submit(&ctx, Command { work, uses: smallvec![array.used(Access::Write)?], cost_key: 0 }).py()?;
    Ok(true)
}

/// Copy a contiguous array over another of the same size on the same device.
#[pyfunction]
#[pyo3(signature = (target, source, stream=None))]
fn copy_dense(
    py: Python<'_>,
    target: &Bound<'_, GPUArray>,
    source: &Bound<'_, GPUArray>,
    stream: Option<&Bound<'_, PyStream>>,
) -> PyResult<()> {
    let (target, source) = (target.get(), source.get());
    let fits = target.bytes() == source.bytes()
        && target.layout.is_contiguous()
        && source.layout.is_contiguous()
        && std::ptr::eq(target.state, source.state);
    if !fits {
        return Err(Error::Value("copy_dense needs two contiguous arrays of one size on one device".into())).py();
    }
    if source.bytes() == 0 {
        return Ok(());
    }
    let ctx = on(py, context_for(py, source.state)?, stream)?;
    let uses = smallvec![target.used(Access::Write)?, source.used(Access::Read)?];
    submit(&ctx, copy(CopyKind::DeviceToDevice, target.ptr(), source.ptr(), source.bytes(), uses)).py()
}

/// Run a Python callable in stream order on the CPU device. `reads` and `writes` are the arrays it touches.
#[pyfunction]
#[pyo3(signature = (function, reads, writes, stream=None))]
fn submit_host(
    py: Python<'_>,
    function: Py<PyAny>,
    reads: Vec<Bound<'_, GPUArray>>,
    writes: Vec<Bound<'_, GPUArray>>,
    stream: Option<&Bound<'_, PyStream>>,
) -> PyResult<()> {
    let Some(first) = writes.first().or(reads.first()) else {
        return Err(Error::Value("a host function must name the arrays it touches".into())).py();
    };
    let ctx = on(py, context_for(py, first.get().state)?, stream)?;
    let written = writes.iter().map(|a| a.get().touched(Access::Write));
    let read = reads.iter().map(|a| a.get().touched(Access::Read));
    let uses = written.chain(read).collect::<PyResult<SmallVec<[_; 4]>>>()?;
    host_call::run(py, &ctx, &uses, &[Part::Object(function.into_bound(py))])
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(from_buffer, m)?)?;
    m.add_function(wrap_pyfunction!(write_buffer, m)?)?;
    m.add_function(wrap_pyfunction!(read_buffer, m)?)?;
    m.add_function(wrap_pyfunction!(fill, m)?)?;
    m.add_function(wrap_pyfunction!(copy_dense, m)?)?;
    m.add_function(wrap_pyfunction!(submit_host, m)?)?;
    Ok(())
}
