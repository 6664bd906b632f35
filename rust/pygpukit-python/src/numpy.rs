//! NumPy's view of an array on the CPU device, made through NumPy's C API.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use pygpukit_core::dtype::DType;
use pygpukit_core::layout::MAX_NDIM;
use pygpukit_core::memory::Storage;
use pyo3::exceptions::PyImportError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyCapsule, PyModule};

use crate::array::GPUArray;
use crate::dtype;
use crate::errors::ToPy;
use crate::inside::Inside;

/// Places in NumPy's table of functions, which keep their meaning within an ABI version (`numpy/__multiarray_api.h`).
mod place {
    pub const ABI_VERSION: usize = 0;
    pub const ARRAY_TYPE: usize = 2;
    pub const SCALAR: usize = 60;
    pub const NEW_FROM_DESCR: usize = 94;
    pub const SET_BASE_OBJECT: usize = 282;
}

/// The ABI of NumPy 2, `NPY_ABI_VERSION`.
const ABI: c_uint = 0x0200_0000;
/// `NPY_ARRAY_WRITEABLE`.
const WRITEABLE: c_int = 0x0400;

type AbiVersion = unsafe extern "C" fn() -> c_uint;
type NewFromDescr = unsafe extern "C" fn(
    *mut ffi::PyTypeObject,
    *mut ffi::PyObject,
    c_int,
    *const isize,
    *const isize,
    *mut c_void,
    c_int,
    *mut ffi::PyObject,
) -> *mut ffi::PyObject;
type SetBaseObject = unsafe extern "C" fn(*mut ffi::PyObject, *mut ffi::PyObject) -> c_int;
type MakeScalar = unsafe extern "C" fn(*mut c_void, *mut ffi::PyObject, *mut ffi::PyObject) -> *mut ffi::PyObject;

/// What is used of NumPy.
struct Api {
    array_type: *mut ffi::PyTypeObject,
    new_from_descr: NewFromDescr,
    set_base_object: SetBaseObject,
    make_scalar: MakeScalar,
    /// NumPy's dtypes, by the number of the element type.
    descriptions: Vec<Py<PyAny>>,
}

// SAFETY: the functions and the type belong to a module that is never unloaded, and are used with the interpreter held.
unsafe impl Send for Api {}
// SAFETY: as above.
unsafe impl Sync for Api {}

static API: PyOnceLock<Api> = PyOnceLock::new();

fn api(py: Python<'_>) -> PyResult<&'static Api> {
    API.get_or_try_init(py, || open(py))
}

#[cold]
fn open(py: Python<'_>) -> PyResult<Api> {
    let _inside = Inside::enter().py()?;
    let capsule = PyModule::import(py, "numpy._core._multiarray_umath")?.getattr("_ARRAY_API")?;
    let capsule = capsule.cast_into::<PyCapsule>()?;
    // SAFETY: the capsule is one without a name, and holds the table of functions.
    let table = unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), std::ptr::null()) }.cast::<*mut c_void>();
    if table.is_null() {
        return Err(PyErr::fetch(py));
    }
    // SAFETY: this place holds the same function in every version.
    let version = unsafe { std::mem::transmute::<*mut c_void, AbiVersion>(*table.add(place::ABI_VERSION))() };
    if version != ABI {
        return Err(PyImportError::new_err(format!(
            "pygpukit needs a NumPy of ABI version {ABI:#x} (NumPy 2), but the one here has {version:#x}; \
             pip install 'numpy>=2,<3'"
        )));
    }
    let to_numpy_dtype = PyModule::import(py, "pygpukit.dtypes")?.getattr("to_numpy_dtype")?;
    let description = |kind| Ok(to_numpy_dtype.call1((dtype::object(py, kind)?,))?.unbind());
    let descriptions = DType::ALL.into_iter().map(description).collect::<PyResult<_>>()?;
    // SAFETY: the ABI says what these places hold.
    unsafe {
        Ok(Api {
            array_type: (*table.add(place::ARRAY_TYPE)).cast(),
            new_from_descr: std::mem::transmute::<*mut c_void, NewFromDescr>(*table.add(place::NEW_FROM_DESCR)),
            set_base_object: std::mem::transmute::<*mut c_void, SetBaseObject>(*table.add(place::SET_BASE_OBJECT)),
            make_scalar: std::mem::transmute::<*mut c_void, MakeScalar>(*table.add(place::SCALAR)),
            descriptions,
        })
    }
}

/// What a view of NumPy's that an array keeps holds in place of the array: its memory.
#[pyclass(frozen, module = "pygpukit", name = "_HostMemory")]
struct HostMemory {
    _storage: Arc<Storage>,
}

/// NumPy's view of an array on the CPU device, with the flags the array has now; for use in stream order.
#[inline]
pub fn view<'a, 'py>(py: Python<'py>, array: &'a GPUArray) -> PyResult<&'a Bound<'py, PyAny>> {
    let writeable = array.is_writeable();
    let made = array.host_views[usize::from(writeable)].get_or_try_init(py, || make(py, array, writeable, true))?;
    Ok(made.bind(py))
}

/// The same for work that is queued or recorded: a view that does not keep the memory, which is reused in stream order.
pub fn borrowed<'py>(py: Python<'py>, array: &GPUArray) -> PyResult<Bound<'py, PyAny>> {
    Ok(make(py, array, array.is_writeable(), false)?.into_bound(py))
}

fn make(py: Python<'_>, array: &GPUArray, writeable: bool, keeps: bool) -> PyResult<Py<PyAny>> {
    let api = api(py)?;
    let item = array.dtype.itemsize() as isize;
    let (mut shape, mut strides) = ([0isize; MAX_NDIM], [0isize; MAX_NDIM]);
    for (axis, (&length, &stride)) in array.layout.shape().iter().zip(array.layout.strides()).enumerate() {
        (shape[axis], strides[axis]) = (length as isize, stride as isize * item);
    }
    // An empty array may have no memory at all: NumPy then makes a byte of its own.
    let empty = array.layout.size() == 0;
    let data = if empty { std::ptr::null_mut() } else { array.ptr() as *mut c_void };
    let flags = if writeable && !empty { WRITEABLE } else { 0 };
    let description = api.descriptions[usize::from(array.dtype.code())].clone_ref(py);
    // SAFETY: the memory is there for as long as the storage is, which the base object below holds, or in stream order;
    // the call takes the reference to the description.
    let view = unsafe {
        let made = (api.new_from_descr)(
            api.array_type,
            description.into_ptr(),
            array.layout.ndim() as c_int,
            shape.as_ptr(),
            if empty { std::ptr::null() } else { strides.as_ptr() },
            data,
            flags,
            std::ptr::null_mut(),
        );
        Bound::from_owned_ptr_or_err(py, made)?
    };
    if keeps && !empty {
        let memory = Py::new(py, HostMemory { _storage: array.storage.clone() })?;
        // SAFETY: the view is a new array, and the call takes the reference to its base.
        if unsafe { (api.set_base_object)(view.as_ptr(), memory.into_ptr()) } < 0 {
            return Err(PyErr::fetch(py));
        }
    }
    Ok(view.unbind())
}

/// NumPy's scalar of these bytes.
pub fn scalar<'py>(py: Python<'py>, mut bytes: [u8; 16], dtype: DType) -> PyResult<Bound<'py, PyAny>> {
    let api = api(py)?;
    let description = api.descriptions[usize::from(dtype.code())].as_ptr();
    // SAFETY: no element is larger, and the bytes are copied.
    unsafe {
        let made = (api.make_scalar)(bytes.as_mut_ptr().cast(), description, std::ptr::null_mut());
        Bound::from_owned_ptr_or_err(py, made)
    }
}
