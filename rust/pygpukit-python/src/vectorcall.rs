//! Classes with CPython's fast call protocol, `Kernel` among them.
//!
//! PyO3 classes are called through a tuple of arguments, which costs more than all of our own work in a launch. The
//! public class is therefore a subtype that adds one word to each object, the address of `vectorcall`, and tells the
//! interpreter where it is (`__vectorcalloffset__`, understood by `PyType_FromSpec` since Python 3.9).

use std::cell::RefCell;
use std::ffi::{CStr, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use pyo3::exceptions::{PySystemError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyTuple, PyType};

use crate::kernel::PyKernel;
use crate::operator::{borrowed_arguments, panicked};

/// `Py_TPFLAGS_HAVE_VECTORCALL`; the limited API names it from 3.12 on, the interpreter knows it since 3.8.
const HAVE_VECTORCALL: u64 = 1 << 11;
/// `PY_VECTORCALL_ARGUMENTS_OFFSET`: a bit of the argument count that is not part of it.
pub const ARGUMENTS_OFFSET: usize = 1 << (usize::BITS - 1);
/// `Py_T_PYSSIZET` and `Py_READONLY` of a member definition.
const SIZE_MEMBER: c_int = 19;
const READ_ONLY: c_int = 1;

static CLASS: PyOnceLock<(Py<PyType>, usize)> = PyOnceLock::new();

thread_local! {
    /// The kernel that the `__new__` running on this thread is to hold.
    static PENDING: RefCell<Option<PyKernel>> = const { RefCell::new(None) };
}

/// What `__new__` puts into a new object; there is nothing unless `object` is making one.
pub fn take_pending() -> PyResult<PyKernel> {
    PENDING.with(|p| p.borrow_mut().take()).ok_or_else(|| {
        PyTypeError::new_err("kernels are made by pygpukit.jit() and pygpukit.load_ptx(), not by calling the class")
    })
}

/// The public class, and the offset of the word it adds.
pub fn class(py: Python<'_>) -> PyResult<&'static (Py<PyType>, usize)> {
    CLASS.get_or_try_init(py, || callable(py, &py.get_type::<PyKernel>(), c"pygpukit.Kernel"))
}

/// A subtype of a class under this name whose objects are called by the function that `enable` gives them, and the offset
/// of the word it adds.
pub fn callable(py: Python<'_>, base: &Bound<'_, PyType>, name: &'static CStr) -> PyResult<(Py<PyType>, usize)> {
    let offset: usize = base.getattr("__basicsize__")?.extract()?;
    let word = size_of::<usize>();
    let (Ok(size), true) = (c_int::try_from(offset + word), offset.is_multiple_of(word)) else {
        return Err(PySystemError::new_err("a class that is called has an unexpected size"));
    };
    // The type refers to these for as long as it lives, which is as long as the process.
    let members = Box::leak(Box::new([
        ffi::PyMemberDef {
            name: c"__vectorcalloffset__".as_ptr(),
            type_code: SIZE_MEMBER,
            offset: offset as ffi::Py_ssize_t,
            flags: READ_ONLY,
            doc: std::ptr::null(),
        },
        ffi::PyMemberDef { name: std::ptr::null(), type_code: 0, offset: 0, flags: 0, doc: std::ptr::null() },
    ]));
    let slots = Box::leak(Box::new([
        ffi::PyType_Slot { slot: ffi::Py_tp_members, pfunc: members.as_mut_ptr().cast::<c_void>() },
        ffi::PyType_Slot { slot: 0, pfunc: std::ptr::null_mut() },
    ]));
    let mut spec = ffi::PyType_Spec {
        name: name.as_ptr(),
        basicsize: size,
        itemsize: 0,
        flags: (ffi::Py_TPFLAGS_DEFAULT | HAVE_VECTORCALL) as _,
        slots: slots.as_mut_ptr(),
    };
    let bases = PyTuple::new(py, [base])?;
    // SAFETY: the specification is complete, its parts live long enough, and the base allows subtypes.
    let made = unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyType_FromSpecWithBases(&mut spec, bases.as_ptr()))? };
    let made = made.cast_into::<PyType>()?;
    made.setattr("__doc__", base.getattr("__doc__")?)?;
    Ok((made.unbind(), offset))
}

/// Let a new object of a class made by `callable` be called by this function.
///
/// # Safety
/// `made` is of such a class, whose instances have one more word at `offset`, and nothing else has it yet.
pub unsafe fn enable(made: &Bound<'_, PyAny>, offset: usize, function: ffi::vectorcallfunc) {
    // SAFETY: as the caller says.
    unsafe { made.as_ptr().cast::<u8>().add(offset).cast::<Option<ffi::vectorcallfunc>>().write(Some(function)) };
}

/// A Python object of the public class that holds this kernel.
pub fn object(py: Python<'_>, kernel: PyKernel) -> PyResult<Bound<'_, PyKernel>> {
    let (class, offset) = class(py)?;
    PENDING.with(|p| *p.borrow_mut() = Some(kernel));
    let made = class.bind(py).call0()?.cast_into::<PyKernel>()?;
    // SAFETY: the object is of the class made above, and nothing else has it yet.
    unsafe { enable(made.as_any(), *offset, vectorcall) };
    Ok(made)
}

unsafe extern "C" fn vectorcall(
    this: *mut ffi::PyObject,
    args: *const *mut ffi::PyObject,
    count: usize,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: Python calls this with the interpreter attached.
    let py = unsafe { Python::assume_attached() };
    let called = catch_unwind(AssertUnwindSafe(|| -> PyResult<()> {
        // SAFETY: only objects made by `object` carry this function; the caller keeps them alive.
        let this = unsafe { Bound::from_borrowed_ptr(py, this).cast_into_unchecked::<PyKernel>() };
        // SAFETY: the vectorcall protocol.
        let (positional, named) = unsafe { borrowed_arguments(py, args, count & !ARGUMENTS_OFFSET, names) };
        if names.is_null() {
            return this.get().call(py, positional, &[]);
        }
        // SAFETY: names is a tuple of str when it is not null.
        let names = unsafe { Bound::from_borrowed_ptr(py, names).cast_into_unchecked::<PyTuple>() };
        let keywords: Vec<_> = names.iter().zip(named.iter().cloned()).collect();
        this.get().call(py, positional, &keywords)
    }));
    match called {
        Ok(Ok(())) => py.None().into_ptr(),
        Ok(Err(error)) => {
            error.restore(py);
            std::ptr::null_mut()
        }
        Err(_) => panicked(py),
    }
}
