//! DLPack: arrays to other libraries and from them, in the same memory.
//!
//! An export keeps the storage, which is not evicted meanwhile, until the consumer calls the deleter: from any thread,
//! with the interpreter or without. An import keeps the producer's tensor until no work uses it.

use std::any::Any;
use std::ffi::{CStr, c_void};
use std::panic::catch_unwind;
use std::ptr::null_mut;
use std::sync::Arc;

use pygpukit_core::device::RawStream;
use pygpukit_core::dtype::DType;
use pygpukit_core::exec::ExecCtx;
use pygpukit_core::layout::{Layout, MAX_NDIM, show};
use pygpukit_core::memory::{Storage, foreign};
use pygpukit_core::residency;
use pygpukit_core::runtime::DeviceState;
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyModule};

use crate::array::{Dims, GPUArray};
use crate::device::{PyDevice, context_for};
use crate::dtype::{self, DataType};
use crate::errors::{ToPy, check_signals};
use crate::foreign::{Foreign, give_back, give_back_unused};
use crate::inside::{Apart, detached};
use crate::stream::refuse_in_capture;

/// Names of capsules that have not been consumed, and that have.
const LEGACY: [&CStr; 2] = [c"dltensor", c"used_dltensor"];
const VERSIONED: [&CStr; 2] = [c"dltensor_versioned", c"used_dltensor_versioned"];

/// The version of the header whose declarations these are.
const VERSION: Version = Version { major: 1, minor: 1 };

mod device_type {
    pub const CPU: i32 = 1;
    pub const CUDA: i32 = 2;
    pub const CUDA_HOST: i32 = 3;
    pub const CUDA_MANAGED: i32 = 13;
}

mod flag {
    pub const READ_ONLY: u64 = 1;
    pub const IS_COPIED: u64 = 2;
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Version {
    major: u32,
    minor: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct DlDevice {
    device_type: i32,
    device_id: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct DlDataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct DlTensor {
    data: *mut c_void,
    device: DlDevice,
    ndim: i32,
    dtype: DlDataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor`, and `DLManagedTensorVersioned`.
trait Managed: Sized {
    const NAMES: [&'static CStr; 2];
    fn new(tensor: DlTensor, context: *mut c_void, flags: u64) -> Self;
    fn context(&self) -> *mut c_void;
    fn deleter(&self) -> Option<unsafe extern "C" fn(*mut Self)>;
}

#[repr(C)]
struct LegacyTensor {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut LegacyTensor)>,
}

#[repr(C)]
struct VersionedTensor {
    version: Version,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut VersionedTensor)>,
    flags: u64,
    tensor: DlTensor,
}

impl Managed for LegacyTensor {
    const NAMES: [&'static CStr; 2] = LEGACY;
    fn new(tensor: DlTensor, context: *mut c_void, _flags: u64) -> Self {
        LegacyTensor { tensor, context, deleter: Some(end_export::<Self>) }
    }
    fn context(&self) -> *mut c_void {
        self.context
    }
    fn deleter(&self) -> Option<unsafe extern "C" fn(*mut Self)> {
        self.deleter
    }
}

impl Managed for VersionedTensor {
    const NAMES: [&'static CStr; 2] = VERSIONED;
    fn new(tensor: DlTensor, context: *mut c_void, flags: u64) -> Self {
        VersionedTensor { version: VERSION, context, deleter: Some(end_export::<Self>), flags, tensor }
    }
    fn context(&self) -> *mut c_void {
        self.context
    }
    fn deleter(&self) -> Option<unsafe extern "C" fn(*mut Self)> {
        self.deleter
    }
}

/// The codes of DLPack, with the bits of an element.
fn data_type(dtype: DType) -> DlDataType {
    let code = match dtype {
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => 0,
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => 1,
        DType::F16 | DType::F32 | DType::F64 => 2,
        DType::BF16 => 4,
        DType::C64 | DType::C128 => 5,
        DType::Bool => 6,
        DType::E4M3 => 10,
        DType::E5M2 => 12,
    };
    DlDataType { code, bits: dtype.itemsize() as u8 * 8, lanes: 1 }
}

fn device_of(state: &DeviceState) -> DlDevice {
    match state.is_cuda() {
        true => DlDevice { device_type: device_type::CUDA, device_id: state.device.props().ordinal },
        false => DlDevice { device_type: device_type::CPU, device_id: 0 },
    }
}

/// What an exported tensor points to.
struct Exported<M> {
    managed: M,
    shape: [i64; MAX_NDIM],
    strides: [i64; MAX_NDIM],
    state: &'static DeviceState,
    storage: Arc<Storage>,
    /// The stream its consumer named.
    consumer: Option<RawStream>,
}

impl<M> Exported<M> {
    fn end(self) {
        foreign::end_export(self.state, self.storage, self.consumer);
    }
}

/// The deleter of an export.
unsafe extern "C" fn end_export<M: Managed>(managed: *mut M) {
    if managed.is_null() {
        return;
    }
    // SAFETY: `export` made the tensor, and its consumer calls this once. The context is the box it lies in.
    let exported = unsafe { Box::from_raw((*managed).context().cast::<Exported<M>>()) };
    let end = std::panic::AssertUnwindSafe(move || {
        // The caller may have locks of its own, and need not have the interpreter.
        let _apart = Apart::enter();
        exported.end();
    });
    // A panic must not pass the caller's frames.
    let _ = catch_unwind(end);
}

/// The destructor of a capsule: its tensor ends unless it was consumed.
unsafe extern "C" fn end_capsule<M: Managed>(capsule: *mut ffi::PyObject) {
    // SAFETY: the capsule is alive, and a tensor of this name is one that `export` made. No exception is touched: a
    // capsule of another name is not asked for its pointer.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, M::NAMES[0].as_ptr()) != 0 {
            let managed = ffi::PyCapsule_GetPointer(capsule, M::NAMES[0].as_ptr()).cast::<M>();
            if let Some(deleter) = (*managed).deleter() {
                deleter(managed);
            }
        }
    }
    give_back();
}

fn export<M: Managed>(
    py: Python<'_>,
    array: &GPUArray,
    flags: u64,
    consumer: Option<RawStream>,
) -> PyResult<Py<PyAny>> {
    let (mut shape, mut strides) = ([0; MAX_NDIM], [0; MAX_NDIM]);
    let ndim = array.layout.ndim();
    shape[..ndim].copy_from_slice(array.layout.shape());
    strides[..ndim].copy_from_slice(array.layout.strides());
    let tensor = DlTensor {
        data: if array.layout.size() == 0 { null_mut() } else { array.ptr() as *mut c_void },
        device: device_of(array.state),
        ndim: ndim as i32,
        dtype: data_type(array.dtype),
        shape: null_mut(),
        strides: null_mut(),
        byte_offset: 0,
    };
    let (state, storage) = (array.state, array.storage.clone());
    // Its end takes back the export that the caller has made.
    let place: *mut Exported<M> = Box::into_raw(Box::new(Exported {
        managed: M::new(tensor, null_mut(), flags),
        shape,
        strides,
        state,
        storage,
        consumer,
    }));
    // SAFETY: the box was just made, and its address does not change.
    unsafe {
        let tensor =
            DlTensor { shape: (&raw mut (*place).shape).cast(), strides: (&raw mut (*place).strides).cast(), ..tensor };
        (*place).managed = M::new(tensor, place.cast(), flags);
        let managed = (&raw mut (*place).managed).cast();
        let capsule = ffi::PyCapsule_New(managed, M::NAMES[0].as_ptr(), Some(end_capsule::<M>));
        if capsule.is_null() {
            Box::from_raw(place).end();
            return Err(PyErr::fetch(py));
        }
        Ok(Bound::from_owned_ptr(py, capsule).unbind())
    }
}

/// The consumer's stream that waits for our work: None where nothing waits.
fn consumer_stream(array: &GPUArray, stream: Option<i64>) -> PyResult<Option<RawStream>> {
    if !array.state.is_cuda() {
        return match stream {
            None | Some(-1) => Ok(None),
            Some(other) => Err(PyValueError::new_err(format!(
                "stream={other}: the array is on the CPU device, where there are no streams for other libraries; leave \
                 stream out"
            ))),
        };
    }
    match stream {
        // CUDA's legacy default stream.
        None => Ok(Some(RawStream(1))),
        Some(-1) => Ok(None),
        Some(0) => Err(PyValueError::new_err(
            "stream=0 is not allowed, because it could mean two different streams: give 1 for CUDA's legacy default \
             stream, 2 for the per-thread one, a stream's handle, or -1 for no order at all",
        )),
        Some(handle) => usize::try_from(handle)
            .map(|handle| Some(RawStream(handle)))
            .map_err(|_| PyValueError::new_err(format!("stream={handle} is no stream: give its handle, 1, 2 or -1"))),
    }
}

/// The array as a DLPack capsule, as `GPUArray.__dlpack__` describes; copies and other devices are Python's.
#[pyfunction]
#[pyo3(signature = (array, stream, versioned, copied))]
pub fn export_dlpack(
    py: Python<'_>,
    array: &Bound<'_, GPUArray>,
    stream: Option<i64>,
    versioned: bool,
    copied: bool,
) -> PyResult<Py<PyAny>> {
    give_back_unused();
    let array = array.get();
    let waits = consumer_stream(array, stream)?;
    refuse_in_capture("give an array to another library")?;
    // Where elements share memory a write would change several.
    let read_only = !array.is_writeable() || array.layout.may_overlap_itself();
    if read_only && !versioned {
        return Err(PyBufferError::new_err(
            "a read-only array cannot be given to a library that asks for DLPack before 1.0, which has no sign for that: \
             give it a copy (x.copy()), or allow writing with x.setflags(write=True)",
        ));
    }
    let ctx = context_for(py, array.state)?;
    ctx.state.check().py()?;
    residency::export(&ctx, &array.storage, !read_only).py()?;
    let ordered = match waits {
        Some(stream) => foreign::order_before(&ctx, &array.storage, stream).py(),
        None if array.state.is_cuda() => Ok(()),
        None => detached(py, || foreign::wait_unused(&array.storage, &mut check_signals)),
    };
    ordered.inspect_err(|_| array.storage.unexport())?;
    let flags = if read_only { flag::READ_ONLY } else { 0 } | if copied { flag::IS_COPIED } else { 0 };
    match versioned {
        true => export::<VersionedTensor>(py, array, flags, waits),
        false => export::<LegacyTensor>(py, array, flags, waits),
    }
}

/// Call `make(stream)` for a capsule, where `stream` is what the producer is to have wait for its work: the handle of
/// the current stream of a CUDA device, None on the CPU device.
#[pyfunction]
fn with_stream_handle<'py>(make: &Bound<'py, PyAny>, device: &Bound<'py, PyDevice>) -> PyResult<Bound<'py, PyAny>> {
    let state = device.get().state;
    if !state.is_cuda() {
        return make.call1((make.py().None(),));
    }
    refuse_in_capture("take an array of another library")?;
    let ctx = context_for(make.py(), state)?;
    ctx.state.check().py()?;
    let lent = foreign::Lent::new(&ctx.stream);
    make.call1((lent.handle().0,))
}

fn refused(text: String) -> PyErr {
    PyBufferError::new_err(text)
}

fn describe(dtype: DlDataType) -> String {
    let kind = match dtype.code {
        0 => "int",
        1 => "uint",
        2 => "float",
        3 => "opaque handle",
        4 => "bfloat",
        5 => "complex",
        6 => "bool",
        7..=14 => "float8",
        15 | 16 => "float6",
        17 => "float4",
        _ => "unknown",
    };
    format!("{kind} (code {}) of {} bits and {} lanes", dtype.code, dtype.bits, dtype.lanes)
}

/// Elements in memory, checked to be some.
struct Elements {
    dtype: DType,
    shape: Dims,
    /// In bytes.
    strides: Dims,
    /// Of the first element.
    address: u64,
    /// Bytes before the first element, and from there to the end.
    before: u64,
    after: u64,
}

impl Elements {
    /// Strides count bytes; without them the elements are in row-major order.
    fn new(address: u64, shape: &[i64], strides: Option<&[i64]>, dtype: DType) -> PyResult<Elements> {
        let item = dtype.itemsize() as i64;
        let layout = Layout::contiguous(shape).map_err(|error| refused(error.to_string()))?;
        let strides: Dims = match strides {
            Some(strides) => strides.into(),
            None => layout.strides().iter().map(|stride| stride * item).collect(),
        };
        let wrong = || refused(format!("shape {} with strides {} fits no memory", show(shape), show(&strides)));
        if strides.len() != shape.len() {
            return Err(wrong());
        }
        let (mut low, mut high) = (0i128, i128::from(item));
        for (&dim, &stride) in shape.iter().zip(&strides) {
            let reach = i128::from(dim - 1) * i128::from(stride);
            if reach < 0 { low += reach } else { high += reach }
        }
        if layout.size() == 0 {
            let shape = shape.into();
            return Ok(Elements { dtype, shape, strides, address: 0, before: 0, after: 0 });
        }
        let (first, last) = (i128::from(address) + low, i128::from(address) + high);
        if address == 0 || first <= 0 || last > i128::from(i64::MAX) {
            return Err(wrong());
        }
        Ok(Elements { dtype, shape: shape.into(), strides, address, before: -low as u64, after: high as u64 })
    }

    /// Does each element lie at a multiple of its size, as kernels read it? Where not, its bytes are an axis more, if a
    /// copy is allowed.
    fn are_aligned(&self, allow_bytes: bool) -> PyResult<bool> {
        let item = self.dtype.itemsize() as i64;
        let mut steps = self.shape.iter().zip(&self.strides).filter(|(dim, _)| **dim > 1);
        if self.after == 0 || self.address.is_multiple_of(item as u64) && steps.all(|(_, stride)| stride % item == 0) {
            return Ok(true);
        }
        if allow_bytes && self.shape.len() < MAX_NDIM {
            return Ok(false);
        }
        Err(refused(format!(
            "{} elements at {:#x} with strides of {} bytes do not lie at multiples of {item} bytes, and can only be copied: \
             allow that with copy=None",
            self.dtype.name(),
            self.address,
            show(&self.strides)
        )))
    }

    /// An array of them, or of their bytes.
    fn array(self, ctx: &ExecCtx, aligned: bool, read_only: bool, owner: Owner) -> PyResult<GPUArray> {
        let Elements { dtype, mut shape, mut strides, address, before, after } = self;
        let storage = foreign::adopt(ctx, address - before, (before + after) as usize, owner);
        let layout = if after == 0 {
            Layout::contiguous(&shape)
        } else if aligned {
            let item = dtype.itemsize() as i64;
            // The stride of an axis of one element means nothing, and need not be a multiple.
            strides.iter_mut().for_each(|stride| *stride /= item);
            Layout::with_strides(&shape, &strides)
        } else {
            shape.push(dtype.itemsize() as i64);
            strides.push(1);
            Layout::with_strides(&shape, &strides)
        };
        let layout = layout.py()?;
        let dtype = if aligned { dtype } else { DType::U8 };
        let array = GPUArray::of(ctx.state, storage, before as usize, layout, dtype);
        Ok(if read_only || layout.may_overlap_itself() { array.read_only_for_good() } else { array })
    }
}

type Owner = Arc<dyn Any + Send + Sync>;

fn check(tensor: &DlTensor, state: &DeviceState) -> PyResult<Elements> {
    let DlDevice { device_type, device_id } = tensor.device;
    let is_here = match device_type {
        device_type::CPU | device_type::CUDA_HOST => !state.is_cuda(),
        device_type::CUDA | device_type::CUDA_MANAGED => state.is_cuda() && device_id == state.device.props().ordinal,
        _ => false,
    };
    if !is_here {
        return Err(refused(format!(
            "memory of DLPack device ({device_type}, {device_id}) cannot be used on {}: copy the array there with its own \
             library first",
            state.device.props().name
        )));
    }
    let given = tensor.dtype;
    let known = DType::ALL.into_iter().find(|dtype| {
        let ours = data_type(*dtype);
        (ours.code, ours.bits, ours.lanes) == (given.code, given.bits, given.lanes)
    });
    let Some(dtype) = known else {
        return Err(refused(format!("elements of type {} are not element types of a GPUArray", describe(given))));
    };
    let Some(ndim) = usize::try_from(tensor.ndim).ok().filter(|ndim| *ndim <= MAX_NDIM) else {
        return Err(refused(format!("an array of {} dimensions cannot be used: at most {MAX_NDIM}", tensor.ndim)));
    };
    if ndim > 0 && tensor.shape.is_null() {
        return Err(refused("the tensor has no shape".to_string()));
    }
    let read = |values: *mut i64| match ndim {
        0 => &[][..],
        // SAFETY: the producer says that so many are there.
        _ => unsafe { std::slice::from_raw_parts(values, ndim) },
    };
    let wrong = || refused("the addresses of the tensor fit no memory".to_string());
    let strides: Option<Dims> = match tensor.strides.is_null() {
        true => None,
        false => {
            let item = dtype.itemsize() as i64;
            let bytes = read(tensor.strides).iter().map(|stride| stride.checked_mul(item));
            Some(bytes.collect::<Option<_>>().ok_or_else(wrong)?)
        }
    };
    let address = match tensor.data.is_null() {
        true => 0,
        false => (tensor.data as u64).checked_add(tensor.byte_offset).ok_or_else(wrong)?,
    };
    Elements::new(address, read(tensor.shape), strides.as_deref(), dtype)
}

/// An array in the memory of a DLPack capsule, which is consumed unless this raises. Elements that do not lie at multiples
/// of their size come as bytes, with an axis more, where that is allowed. Returns the array, its element type, and
/// whether the producer made a copy.
#[pyfunction]
fn import_dlpack<'py>(
    py: Python<'py>,
    capsule: &Bound<'py, PyAny>,
    device: &Bound<'py, PyDevice>,
    allow_bytes: bool,
) -> PyResult<(GPUArray, Py<DataType>, bool)> {
    give_back_unused();
    let state = device.get().state;
    let ptr = capsule.as_ptr();
    if capsule.cast::<PyCapsule>().is_err() {
        return Err(PyTypeError::new_err(format!("__dlpack__ gave no capsule, but {}", capsule.get_type().name()?)));
    }
    let is = |name: &CStr| {
        // SAFETY: it is a capsule.
        unsafe { ffi::PyCapsule_IsValid(ptr, name.as_ptr()) != 0 }
    };
    // SAFETY: a capsule of this name holds such a tensor.
    let found = |name: &CStr| unsafe { ffi::PyCapsule_GetPointer(ptr, name.as_ptr()) };
    let (tensor, flags, names, owner): (DlTensor, u64, _, Option<(unsafe extern "C" fn(*mut c_void), *mut c_void)>) =
        if is(VERSIONED[0]) {
            let managed = found(VERSIONED[0]).cast::<VersionedTensor>();
            // SAFETY: as above. The version lies first, and of another major version nothing else is read.
            let (version, rest) = unsafe { ((*managed).version, managed) };
            if version.major != VERSION.major {
                return Err(refused(format!(
                    "the tensor is of DLPack {}.{}, and {}.{} is known here",
                    version.major, version.minor, VERSION.major, VERSION.minor
                )));
            }
            // SAFETY: it is of this version.
            let managed = unsafe { &*rest };
            // SAFETY: deleters take a pointer, whatever its type is.
            let deleter = managed.deleter.map(|f| unsafe {
                std::mem::transmute::<unsafe extern "C" fn(*mut VersionedTensor), unsafe extern "C" fn(*mut c_void)>(f)
            });
            (managed.tensor, managed.flags, VERSIONED, deleter.map(|f| (f, rest.cast())))
        } else if is(LEGACY[0]) {
            let rest = found(LEGACY[0]).cast::<LegacyTensor>();
            // SAFETY: as above.
            let managed = unsafe { &*rest };
            // SAFETY: as above.
            let deleter = managed.deleter.map(|f| unsafe {
                std::mem::transmute::<unsafe extern "C" fn(*mut LegacyTensor), unsafe extern "C" fn(*mut c_void)>(f)
            });
            (managed.tensor, 0, LEGACY, deleter.map(|f| (f, rest.cast())))
        } else if is(VERSIONED[1]) || is(LEGACY[1]) {
            return Err(PyValueError::new_err(
                "the DLPack capsule has been consumed already, and that is possible once: ask for another one",
            ));
        } else {
            return Err(PyTypeError::new_err("the capsule holds no DLPack tensor"));
        };
    let elements = check(&tensor, state)?;
    let aligned = elements.are_aligned(allow_bytes)?;
    let kind = dtype::object(py, elements.dtype)?;
    let ctx = context_for(py, state)?;
    ctx.state.check().py()?;
    // SAFETY: it is a capsule, and the name lives for ever.
    if unsafe { ffi::PyCapsule_SetName(ptr, names[1].as_ptr()) } != 0 {
        return Err(PyErr::fetch(py));
    }
    let owner: Owner = match owner {
        // SAFETY: DLPack allows the deleter in any thread.
        Some((deleter, managed)) => Arc::new(unsafe { Foreign::new(deleter, managed) }),
        None => Arc::new(()),
    };
    let array = elements.array(&ctx, aligned, flags & flag::READ_ONLY != 0, owner)?;
    Ok((array, kind, flags & flag::IS_COPIED != 0))
}

/// An array in memory at an address, which `owner` keeps. Strides count bytes. Of elements that do not lie at multiples of
/// their size the bytes, as `import_dlpack` does.
#[pyfunction]
#[pyo3(signature = (address, shape, strides, dtype, read_only, owner, device, allow_bytes))]
#[allow(clippy::too_many_arguments)]
fn import_memory(
    py: Python<'_>,
    address: u64,
    shape: Vec<i64>,
    strides: Option<Vec<i64>>,
    dtype: &Bound<'_, DataType>,
    read_only: bool,
    owner: Py<PyAny>,
    device: &Bound<'_, PyDevice>,
    allow_bytes: bool,
) -> PyResult<GPUArray> {
    give_back_unused();
    let state = device.get().state;
    state.check().py()?;
    let elements = Elements::new(address, &shape, strides.as_deref(), dtype.get().dtype)?;
    let aligned = elements.are_aligned(allow_bytes)?;
    let ctx = context_for(py, state)?;
    elements.array(&ctx, aligned, read_only, Arc::new(Foreign::object(owner.into_ptr())))
}

/// Make the current stream of a device wait for a stream of another library, by its handle.
#[pyfunction]
fn wait_for_stream(py: Python<'_>, handle: usize, device: &Bound<'_, PyDevice>) -> PyResult<()> {
    refuse_in_capture("take an array of another library")?;
    if handle == 0 {
        return Err(PyValueError::new_err("stream 0 could mean two different streams: 1 or 2 says which"));
    }
    foreign::wait_for(&*context_for(py, device.get().state)?, RawStream(handle)).py()
}

/// Make the current stream wait for all work that uses an array on a GPU, and return its handle.
#[pyfunction]
fn gather_uses(py: Python<'_>, array: &Bound<'_, GPUArray>) -> PyResult<usize> {
    refuse_in_capture("give an array to another library")?;
    let array = array.get();
    let ctx = context_for(py, array.state)?;
    let handle = ctx.stream.raw();
    foreign::order_before(&ctx, &array.storage, handle).py()?;
    Ok(handle.0)
}

/// DLPack's type and number of an array's device.
#[pyfunction]
fn dlpack_device(array: &Bound<'_, GPUArray>) -> (i32, i32) {
    let DlDevice { device_type, device_id } = device_of(array.get().state);
    (device_type, device_id)
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(export_dlpack, m)?)?;
    m.add_function(wrap_pyfunction!(import_dlpack, m)?)?;
    m.add_function(wrap_pyfunction!(import_memory, m)?)?;
    m.add_function(wrap_pyfunction!(with_stream_handle, m)?)?;
    m.add_function(wrap_pyfunction!(wait_for_stream, m)?)?;
    m.add_function(wrap_pyfunction!(gather_uses, m)?)?;
    m.add_function(wrap_pyfunction!(dlpack_device, m)?)?;
    Ok(())
}
