//! `GPUArray`: storage, layout and element type. Python adds the rest of its methods at import.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pygpukit_core::command::{Access, ArgTag, Use, UseRef};
use pygpukit_core::dtype::DType;
use pygpukit_core::error::Error;
use pygpukit_core::exec::ExecCtx;
use pygpukit_core::layout::{Layout, MAX_NDIM, show};
use pygpukit_core::memory::Storage;
use pygpukit_core::residency;
use pygpukit_core::runtime::DeviceState;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyModule, PyTuple};
use smallvec::SmallVec;

use crate::device::{PyDevice, context, context_for};
use crate::dtype::{self, DataType};
use crate::errors::{ToPy, check_signals, to_py};
use crate::flags::ArrayFlags;
use crate::foreign::GivesBack;
use crate::inside::{attached, detached};
use crate::{indexing, numpy};

pub type Dims = SmallVec<[i64; MAX_NDIM]>;

/// An n-dimensional array on a device.
///
/// Made by `pygpukit.zeros`, `pygpukit.from_numpy` and their siblings. Operators run asynchronously on the
/// current stream; `to_numpy` and `item` wait for them.
#[pyclass(frozen, weakref, module = "pygpukit")]
pub struct GPUArray {
    pub state: &'static DeviceState,
    pub storage: Arc<Storage>,
    /// Offset of the first element in the storage, in bytes.
    pub offset: usize,
    pub layout: Layout,
    pub dtype: DType,
    /// May it be written through this object? Views of a read-only array start read-only, and stay so.
    writeable: AtomicBool,
    may_be_writeable: bool,
    /// NumPy's views of it on the CPU device, read-only and writeable, each made when first asked for.
    pub host_views: [PyOnceLock<Py<PyAny>>; 2],
    /// The last field, dropped when the memory has been.
    _end: GivesBack,
}

/// Labels of large arrays say where they were made.
pub static FOLLOWED: AtomicBool = AtomicBool::new(false);

/// The line of Python outside this package that runs now, as the end of a label.
#[cold]
fn caller() -> String {
    attached(|py| {
        let line = PyModule::import(py, "pygpukit.core.snapshot")?.getattr("caller")?.call0()?.extract::<String>()?;
        PyResult::Ok(format!(" made at {line}"))
    })
    .unwrap_or_default()
}

impl GPUArray {
    /// A new array with memory from the context's pool.
    #[inline]
    pub fn allocate(ctx: &ExecCtx, layout: Layout, dtype: DType) -> pygpukit_core::Result<GPUArray> {
        let bytes = layout.size() as usize * dtype.itemsize();
        let storage = ctx.allocate(bytes, &mut check_signals)?;
        if storage.owns_segment() {
            // For the holders named when memory runs out; small arrays are counted together.
            let made = if FOLLOWED.load(Ordering::Relaxed) { caller() } else { String::new() };
            storage.set_label(&format!("{} {}{made}", dtype.name(), show(layout.shape())));
        }
        Ok(GPUArray::of(ctx.state, storage, 0, layout, dtype))
    }

    /// Elements in a storage, writeable.
    #[inline]
    pub fn of(
        state: &'static DeviceState,
        storage: Arc<Storage>,
        offset: usize,
        layout: Layout,
        dtype: DType,
    ) -> GPUArray {
        GPUArray {
            state,
            storage,
            offset,
            layout,
            dtype,
            writeable: AtomicBool::new(true),
            may_be_writeable: true,
            host_views: [const { PyOnceLock::new() }; 2],
            _end: GivesBack,
        }
    }

    #[inline]
    pub fn ptr(&self) -> u64 {
        self.storage.ptr() + self.offset as u64
    }

    pub fn bytes(&self) -> usize {
        self.layout.size() as usize * self.dtype.itemsize()
    }

    /// The array as memory a command touches; refused where that writes to a read-only array.
    #[inline]
    pub fn used(&self, access: Access) -> PyResult<Use> {
        Ok(self.touched(access)?.to_owned())
    }

    #[inline]
    pub fn touched(&self, access: Access) -> PyResult<UseRef<'_>> {
        if access.is_written() && !self.is_writeable() {
            return Err(self.read_only());
        }
        let mut tag = ArgTag { dtype: self.dtype.code(), ndim: self.layout.ndim() as u8, dims: [0; 4] };
        for (slot, dim) in tag.dims.iter_mut().zip(self.layout.shape()) {
            *slot = u32::try_from(*dim).unwrap_or(u32::MAX);
        }
        Ok(UseRef { storage: &self.storage, access, tag })
    }

    #[inline]
    pub fn is_writeable(&self) -> bool {
        self.writeable.load(Ordering::Relaxed)
    }

    pub fn set_writeable(&self, write: bool) -> PyResult<()> {
        if write && !self.may_be_writeable {
            return Err(Error::Value(format!(
                "cannot make the array of shape {} writeable: it is a view of a read-only array. Write to a copy \
                 (x.copy()), or call setflags(write=True) on the array it was taken from and take the view again",
                show(self.layout.shape())
            )))
            .py();
        }
        self.writeable.store(write, Ordering::Relaxed);
        Ok(())
    }

    /// Never to be made writeable: the memory belongs to another library, which does not want it written.
    pub fn read_only_for_good(mut self) -> GPUArray {
        self.may_be_writeable = false;
        self.writeable = AtomicBool::new(false);
        self
    }

    #[cold]
    fn read_only(&self) -> PyErr {
        let allow = if self.may_be_writeable { ", or allow it with x.setflags(write=True)" } else { "" };
        let text = format!(
            "the array of shape {} and dtype {} is read-only; write to a copy (x.copy()){allow}",
            show(self.layout.shape()),
            self.dtype.name()
        );
        to_py(Error::Value(text))
    }

    /// Another look at the same storage.
    #[inline]
    pub fn view(&self, layout: Layout, element_offset: i64) -> GPUArray {
        let offset = (self.offset as i64 + element_offset * self.dtype.itemsize() as i64) as usize;
        let writeable = self.is_writeable();
        GPUArray {
            state: self.state,
            storage: self.storage.clone(),
            offset,
            layout,
            dtype: self.dtype,
            writeable: AtomicBool::new(writeable),
            may_be_writeable: writeable,
            host_views: [const { PyOnceLock::new() }; 2],
            _end: GivesBack,
        }
    }

    /// First and one past the last byte reached.
    pub fn byte_range(&self) -> Option<(u64, u64)> {
        let (low, high) = self.layout.extent()?;
        let item = self.dtype.itemsize() as i64;
        let base = self.ptr() as i64;
        Some(((base + low * item) as u64, (base + (high + 1) * item) as u64))
    }

    fn axis(&self, axis: i64) -> pygpukit_core::Result<usize> {
        let ndim = self.layout.ndim() as i64;
        if axis < -ndim || axis >= ndim {
            return Err(Error::Shape(format!("axis {axis} is out of range for an array of {ndim} dimensions")));
        }
        Ok((if axis < 0 { axis + ndim } else { axis }) as usize)
    }
}

#[pymethods]
impl GPUArray {
    /// Length of each axis.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.layout.shape())
    }

    /// Bytes between neighbours along each axis, as in NumPy.
    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let item = self.dtype.itemsize() as i64;
        PyTuple::new(py, self.layout.strides().iter().map(|s| s * item))
    }

    /// Element type.
    #[getter]
    fn dtype(&self, py: Python<'_>) -> PyResult<Py<DataType>> {
        dtype::object(py, self.dtype)
    }

    /// Number of elements.
    #[getter]
    fn size(&self) -> i64 {
        self.layout.size()
    }

    /// Number of axes.
    #[getter]
    fn ndim(&self) -> usize {
        self.layout.ndim()
    }

    /// Bytes of all elements.
    #[getter]
    fn nbytes(&self) -> usize {
        self.bytes()
    }

    /// Bytes of an element.
    #[getter]
    fn itemsize(&self) -> usize {
        self.dtype.itemsize()
    }

    /// Device the array lives on.
    #[getter]
    fn device(&self) -> PyDevice {
        PyDevice { state: self.state }
    }

    /// Flags under NumPy's names: `writeable`, `c_contiguous`, `f_contiguous`.
    #[getter]
    fn flags(slf: Py<Self>) -> ArrayFlags {
        ArrayFlags::of(slf)
    }

    /// Make the array read-only, or writeable again.
    ///
    /// Work that would write a read-only array is refused. Views made of it are read-only for good; views made before
    /// keep their own flag. Its copy on the host stays good, so a second eviction copies nothing.
    ///
    /// Parameters
    /// ----------
    /// write : bool, optional
    ///     None leaves it as it is.
    ///
    /// Raises
    /// ------
    /// ValueError
    ///     If a view of a read-only array is to become writeable.
    #[pyo3(signature = (write=None))]
    fn setflags(&self, write: Option<bool>) -> PyResult<()> {
        write.map_or(Ok(()), |write| self.set_writeable(write))
    }

    /// Address of the first element. Reading it pins the memory for the array's life, since a raw pointer
    /// leaves the runtime's sight. What a read-only array's pointer is used for must not write.
    #[getter(ptr)]
    fn exported_ptr(&self, py: Python<'_>) -> PyResult<u64> {
        residency::export(&*context_for(py, self.state)?, &self.storage, self.is_writeable()).py()?;
        Ok(self.ptr())
    }

    /// Is the content on the device? False for an array that was moved to the host because memory was short; it comes
    /// back by itself before it is used.
    #[getter]
    fn is_resident(&self) -> bool {
        self.storage.is_resident()
    }

    /// Bring the array to the device and keep it there until `unpin`, or for the array's life.
    fn pin(&self, py: Python<'_>) -> PyResult<()> {
        residency::pin(&*context_for(py, self.state)?, &self.storage).py()
    }

    /// Take back one `pin`.
    fn unpin(&self) -> PyResult<()> {
        if self.storage.unpin() {
            return Ok(());
        }
        Err(Error::Value("unpin() without a pin() before it: the array is not pinned".to_string())).py()
    }

    /// Move the array's memory to the host now. Arrays under 1 MiB move together with their neighbours.
    ///
    /// Returns
    /// -------
    /// bool
    ///     False when it cannot move now: it is pinned, or its address was given away.
    fn evict(&self, py: Python<'_>) -> PyResult<bool> {
        if self.layout.size() == 0 {
            return Ok(true);
        }
        if !self.storage.is_evictable() {
            return Err(Error::Value(format!(
                "the array was made in pool '{}', which does not evict; use MemoryPool(enable_eviction=True), or \
                 PYGPUKIT_EVICTION=1 for the default pool",
                self.storage.pool().name()
            )))
            .py();
        }
        let storage = self.storage.clone();
        self.state.check().py()?;
        detached(py, move || storage.evict(&mut check_signals))
    }

    /// Begin to bring the array to the device; work that uses it waits for it there.
    fn prefetch(&self, py: Python<'_>) -> PyResult<()> {
        residency::prefetch(&*context_for(py, self.state)?, &self.storage).py()
    }

    /// Are the elements in row-major order without gaps?
    #[getter]
    fn is_contiguous(&self) -> bool {
        self.layout.is_contiguous()
    }

    /// The axes reversed; a view.
    #[getter(T)]
    fn t(&self) -> PyResult<GPUArray> {
        let axes: Vec<usize> = (0..self.layout.ndim()).rev().collect();
        Ok(self.view(self.layout.permute(&axes).py()?, 0))
    }

    /// The elements that a key names: a view for ints, slices, Ellipsis and None, else a copy.
    fn __getitem__<'py>(slf: &Bound<'py, Self>, key: &Bound<'py, PyAny>) -> PyResult<Py<PyAny>> {
        indexing::item(slf, key)
    }

    /// The view that a key of ints, slices, Ellipsis and None names; None for other keys.
    fn _basic(&self, key: &Bound<'_, PyAny>) -> PyResult<Option<GPUArray>> {
        indexing::view(self, key)
    }

    fn __len__(&self) -> PyResult<usize> {
        match self.layout.shape().first() {
            Some(n) => Ok(*n as usize),
            None => Err(pyo3::exceptions::PyTypeError::new_err("len() of an array without dimensions")),
        }
    }

    /// The axes in another order; a view. Negative axes count from the end.
    fn _permute(&self, axes: Vec<i64>) -> PyResult<GPUArray> {
        let axes = axes.into_iter().map(|a| self.axis(a)).collect::<Result<Vec<_>, _>>().py()?;
        Ok(self.view(self.layout.permute(&axes).py()?, 0))
    }

    /// The same elements in a new shape, or None where that needs a copy.
    fn _reshape(&self, shape: Vec<i64>) -> PyResult<Option<GPUArray>> {
        Ok(self.layout.reshape(&shape).py()?.map(|layout| self.view(layout, 0)))
    }

    fn _slice(&self, axis: i64, start: i64, count: i64, step: i64) -> PyResult<GPUArray> {
        let axis = self.axis(axis).py()?;
        let (layout, offset) = self.layout.slice(axis, start, count, step).py()?;
        Ok(self.view(layout, offset))
    }

    fn _select(&self, axis: i64, index: i64) -> PyResult<GPUArray> {
        let axis = self.axis(axis).py()?;
        let (layout, offset) = self.layout.select(axis, index).py()?;
        Ok(self.view(layout, offset))
    }

    /// The elements whose indices along two axes differ by `offset`, as the last axis of a view.
    fn _diagonal(&self, first: i64, second: i64, offset: i64) -> PyResult<GPUArray> {
        let (first, second) = (self.axis(first).py()?, self.axis(second).py()?);
        let (layout, start) = self.layout.diagonal(first, second, offset).py()?;
        Ok(self.view(layout, start))
    }

    /// The real (0) or imaginary (1) parts of a complex array; a view.
    fn _part(&self, part: i64) -> PyResult<GPUArray> {
        let dtype = match self.dtype {
            DType::C64 => DType::F32,
            DType::C128 => DType::F64,
            other => return Err(Error::DType(format!("an array of {} has no parts", other.name()))).py(),
        };
        let strides: Dims = self.layout.strides().iter().map(|s| 2 * s).collect();
        let layout = Layout::with_strides(self.layout.shape(), &strides).py()?;
        let offset = self.offset + part.clamp(0, 1) as usize * dtype.itemsize();
        Ok(GPUArray { dtype, offset, ..self.view(layout, 0) })
    }

    /// Every run of `length` elements along an axis as the last axis of a view.
    fn _windows(&self, axis: usize, length: i64) -> PyResult<GPUArray> {
        Ok(self.view(self.layout.windows(axis, length).py()?, 0))
    }

    fn _expand(&self, axis: usize) -> PyResult<GPUArray> {
        Ok(self.view(self.layout.expand(axis).py()?, 0))
    }

    fn _broadcast_to(&self, shape: Vec<i64>) -> PyResult<GPUArray> {
        Ok(self.view(self.layout.broadcast_to(&shape).py()?, 0))
    }

    /// The same bytes as another element type of the same size per row; the last axis is rescaled.
    fn _reinterpret(&self, dtype: &Bound<'_, DataType>) -> PyResult<GPUArray> {
        let target = dtype.get().dtype;
        let (old, new) = (self.dtype.itemsize() as i64, target.itemsize() as i64);
        let mut shape: Dims = self.layout.shape().into();
        if old != new {
            let dense = self.layout.is_contiguous();
            let last = shape.last_mut().filter(|n| dense && (**n * old) % new == 0);
            let Some(last) = last else {
                return Err(Error::DType(format!(
                    "cannot view {} as {}: the last axis must be contiguous and hold a whole number of elements",
                    self.dtype.name(),
                    target.name()
                )))
                .py();
            };
            *last = *last * old / new;
        }
        if !(self.ptr()).is_multiple_of(new as u64) {
            return Err(Error::DType(format!(
                "cannot view this slice as {}: its address is not a multiple of {new}",
                target.name()
            )))
            .py();
        }
        let layout = if old == new { self.layout } else { Layout::contiguous(&shape).py()? };
        let mut view = self.view(layout, 0);
        view.dtype = target;
        Ok(view)
    }

    /// Largest power of two, up to 256, that divides the address; as plans of operators see it.
    #[getter(_alignment)]
    fn alignment(&self) -> i64 {
        1 << self.ptr().trailing_zeros().min(8)
    }

    /// Do two arrays reach the same bytes?
    fn _shares_memory(&self, other: &Bound<'_, GPUArray>) -> bool {
        overlap(self, other.get())
    }

    /// NumPy's view of the array's memory, for work that is submitted now; CPU device only. Where work runs at once the
    /// array keeps the view, and that the memory; where it waits, the memory is there in stream order.
    fn _host_view<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        if self.state.is_cuda() {
            return Err(Error::Device("this array lives on a GPU; use to_numpy() to copy it to the host".into())).py();
        }
        let ctx = context_for(py, self.state)?;
        if ctx.recorder.is_none() && ctx.state.device.runs_at_once() {
            return numpy::view(py, self).cloned();
        }
        numpy::borrowed(py, self)
    }
}

/// May two arrays share bytes? Compares ranges, so interleaved slices count as sharing.
pub fn overlap(a: &GPUArray, b: &GPUArray) -> bool {
    match (Arc::ptr_eq(&a.storage, &b.storage), a.byte_range(), b.byte_range()) {
        (true, Some(x), Some(y)) => x.0 < y.1 && y.0 < x.1,
        _ => false,
    }
}

/// An array whose elements are not set.
#[pyfunction]
#[pyo3(signature = (shape, dtype, device=None))]
fn empty(
    py: Python<'_>,
    shape: Vec<i64>,
    dtype: &Bound<'_, DataType>,
    device: Option<&Bound<'_, PyDevice>>,
) -> PyResult<GPUArray> {
    let ctx = match device {
        Some(device) => crate::device::context_for(py, device.get().state)?,
        None => context(py)?,
    };
    let layout = Layout::contiguous(&shape).py()?;
    GPUArray::allocate(&ctx, layout, dtype.get().dtype).py()
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<GPUArray>()?;
    m.add_function(wrap_pyfunction!(empty, m)?)?;
    Ok(())
}
