//! `GrowableBuffer`: rows of memory that grow in place.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use parking_lot::Mutex;
use pygpukit_core::dtype::DType;
use pygpukit_core::error::Error;
use pygpukit_core::layout::{Layout, show};
use pygpukit_core::memory::GrowBuffer;
use pygpukit_core::runtime::DeviceState;
use pyo3::prelude::*;
use pyo3::types::{PyModule, PyTuple};

use crate::array::{Dims, GPUArray};
use crate::device::{PyDevice, context, context_for};
use crate::dtype::{self, DataType};
use crate::errors::{ToPy, check_signals};
use crate::inside::detached;

/// Rows of memory on the device that grow and shrink at an address that never changes.
///
/// Addresses are reserved for `capacity` rows, memory is taken for the rows that are asked for. It is charged to the pool
/// that is current now, moves to the host as a whole where that pool evicts, and goes back in stream order when the
/// buffer and its arrays are gone. Graphs may use its arrays: growth changes neither their address nor their content.
///
/// Parameters
/// ----------
/// shape : sequence of int
///     Rows at the start, and the shape of a row.
/// dtype : DataType
/// capacity : int
///     Most rows there can be.
/// device : Device, optional
///     The current one by default.
///
/// Examples
/// --------
/// >>> import pygpukit as gp
/// >>> cache = gp.memory.GrowableBuffer((0, 64), gp.float32, capacity=1 << 20)
/// >>> cache.grow(100)
/// >>> keys = cache.array()
/// >>> keys.shape, cache.capacity
/// ((100, 64), 1048576)
#[pyclass(frozen, weakref, module = "pygpukit", name = "GrowableBuffer")]
struct PyGrowable {
    state: &'static DeviceState,
    dtype: DType,
    /// The shape of a row, and its bytes.
    row: Dims,
    row_bytes: usize,
    capacity: i64,
    rows: AtomicI64,
    /// None when it is closed.
    buffer: Mutex<Option<Arc<GrowBuffer>>>,
}

impl PyGrowable {
    fn open(&self) -> PyResult<Arc<GrowBuffer>> {
        let buffer = self.buffer.lock().clone();
        buffer.ok_or_else(|| Error::Value("the growable buffer is closed".to_string())).py()
    }

    fn check_rows(&self, rows: i64, least: i64, action: &str) -> PyResult<usize> {
        if (least..=self.capacity).contains(&rows) {
            return Ok(rows as usize * self.row_bytes);
        }
        let hint = match () {
            () if rows > self.capacity => "; make it with a larger capacity",
            () if rows >= 0 => "; shrink() gives rows back",
            () => "",
        };
        let (now, capacity) = (self.rows.load(Ordering::Relaxed), self.capacity);
        Err(Error::Value(format!(
            "cannot {action} {rows} rows: the growable buffer has {now}, and a capacity of {capacity}{hint}"
        )))
        .py()
    }

    fn take(&self, py: Python<'_>, bytes: usize) -> PyResult<()> {
        let buffer = self.open()?;
        self.state.check().py()?;
        detached(py, || buffer.ensure(bytes, &mut check_signals).map(drop))
    }
}

#[pymethods]
impl PyGrowable {
    #[new]
    #[pyo3(signature = (shape, dtype, capacity, device=None))]
    fn new(
        py: Python<'_>,
        shape: Vec<i64>,
        dtype: &Bound<'_, DataType>,
        capacity: i64,
        device: Option<&Bound<'_, PyDevice>>,
    ) -> PyResult<PyGrowable> {
        let ctx = match device {
            Some(device) => context_for(py, device.get().state)?,
            None => context(py)?,
        };
        let Some((&rows, row)) = shape.split_first() else {
            return Err(Error::Shape("a growable buffer needs a shape with an axis of rows, not ()".into())).py();
        };
        let dtype = dtype.get().dtype;
        let row_bytes = Layout::contiguous(row).py()?.size() as usize * dtype.itemsize();
        let bytes = usize::try_from(capacity).ok().and_then(|rows| rows.checked_mul(row_bytes));
        let Some(bytes) = bytes.filter(|bytes| *bytes > 0 && (0..=capacity).contains(&rows)) else {
            return Err(Error::Value(format!(
                "a growable buffer of shape {} and a capacity of {capacity} rows makes no sense: rows have at least one \
                 element, the capacity is above zero and not below the rows at the start, and all of it fits an address",
                show(&shape)
            )))
            .py();
        };
        ctx.state.check().py()?;
        let buffer = detached(py, || {
            let buffer = GrowBuffer::new(&ctx.pool, bytes, &ctx.stream, &mut check_signals)?;
            buffer.ensure(rows as usize * row_bytes, &mut check_signals)?;
            Ok(buffer)
        })?;
        buffer.set_label(&format!("growable {} rows of {}", dtype.name(), show(row)));
        Ok(PyGrowable {
            state: ctx.state,
            dtype,
            row: row.into(),
            row_bytes,
            capacity,
            rows: AtomicI64::new(rows),
            buffer: Mutex::new(Some(Arc::new(buffer))),
        })
    }

    /// Rows there are.
    #[getter]
    fn rows(&self) -> i64 {
        self.rows.load(Ordering::Relaxed)
    }

    /// Most rows there can be.
    #[getter]
    fn capacity(&self) -> i64 {
        self.capacity
    }

    /// Rows there is memory for.
    #[getter]
    fn reserved(&self) -> PyResult<i64> {
        Ok((self.open()?.bytes() / self.row_bytes) as i64)
    }

    /// Rows, and the shape of a row.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let shape: Dims = std::iter::once(self.rows()).chain(self.row.iter().copied()).collect();
        PyTuple::new(py, shape)
    }

    /// Element type.
    #[getter]
    fn dtype(&self, py: Python<'_>) -> PyResult<Py<DataType>> {
        dtype::object(py, self.dtype)
    }

    /// Bytes of memory it has.
    #[getter]
    fn nbytes(&self) -> PyResult<usize> {
        Ok(self.open()?.bytes())
    }

    /// Device it is on.
    #[getter]
    fn device(&self) -> PyDevice {
        PyDevice { state: self.state }
    }

    /// Has it been closed?
    #[getter]
    fn is_closed(&self) -> bool {
        self.buffer.lock().is_none()
    }

    /// Take memory for this many rows ahead of need; `rows` stays.
    fn reserve(&self, py: Python<'_>, rows: i64) -> PyResult<()> {
        let bytes = self.check_rows(rows, 0, "reserve")?;
        self.take(py, bytes)
    }

    /// Have this many rows. New ones are not set; the others, and arrays of them, stay as they are.
    ///
    /// Raises
    /// ------
    /// ValueError
    ///     If there are more already, or the capacity is less.
    /// OutOfMemoryError
    ///     If the pool's quota or the device has no room. The buffer stays as it was.
    fn grow(&self, py: Python<'_>, rows: i64) -> PyResult<()> {
        let bytes = self.check_rows(rows, self.rows(), "grow to")?;
        self.take(py, bytes)?;
        self.rows.fetch_max(rows, Ordering::Relaxed);
        Ok(())
    }

    /// Have only this many rows, and give the memory of the others back as far as whole pieces (2 to 64 MiB) are free.
    /// Waits for the work that uses the buffer.
    ///
    /// Raises
    /// ------
    /// ValueError
    ///     If there are fewer, or arrays of the buffer are alive, in a program or in a graph.
    fn shrink(&self, py: Python<'_>, rows: i64) -> PyResult<()> {
        let now = self.rows();
        if !(0..=now).contains(&rows) {
            return Err(Error::Value(format!("cannot shrink to {rows} rows: the growable buffer has {now}"))).py();
        }
        let buffer = self.open()?;
        self.state.check().py()?;
        let bytes = rows as usize * self.row_bytes;
        // Nobody gets an array of the others from now on.
        self.rows.store(rows, Ordering::Relaxed);
        let shrunk = detached(py, || buffer.shrink(bytes, &mut check_signals).map(drop));
        if shrunk.is_err() {
            self.rows.fetch_max(now, Ordering::Relaxed);
        }
        shrunk
    }

    /// The first rows as an array, all of them by default. It shares the buffer's memory.
    #[pyo3(signature = (rows=None))]
    fn array(&self, rows: Option<i64>) -> PyResult<GPUArray> {
        let now = self.rows();
        let rows = rows.unwrap_or(now);
        if !(0..=now).contains(&rows) {
            return Err(Error::Value(format!(
                "the growable buffer has {now} rows, but an array of {rows} was asked for; grow() it first"
            )))
            .py();
        }
        let shape: Dims = std::iter::once(rows).chain(self.row.iter().copied()).collect();
        let storage = self.open()?.storage();
        if storage.bytes() < rows as usize * self.row_bytes {
            return Err(Error::Value("the growable buffer was shrunk by another thread meanwhile".into())).py();
        }
        Ok(GPUArray::of(self.state, storage, 0, Layout::contiguous(&shape).py()?, self.dtype))
    }

    /// Make no more arrays; the memory goes back when the last one is gone. A second call does nothing.
    fn close(&self) {
        let buffer = self.buffer.lock().take();
        drop(buffer);
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_args))]
    fn __exit__(&self, _args: &Bound<'_, PyTuple>) {
        self.close();
    }

    fn __len__(&self) -> usize {
        self.rows() as usize
    }

    fn __repr__(&self) -> String {
        let (rows, capacity, row) = (self.rows(), self.capacity, show(&self.row));
        format!("<GrowableBuffer {rows} of {capacity} rows of {} {row}>", self.dtype.name())
    }
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyGrowable>()
}
