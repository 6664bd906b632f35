//! Operators as functions, called without building a tuple: `pygpukit.add` is a `Ufunc`, `pygpukit.sum` a built-in
//! function.

use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyModule, PyString, PyTuple, PyType};
use smallvec::SmallVec;

use crate::array::GPUArray;
use crate::errors::ToPy;
use crate::inside::Inside;
use crate::ops::{self, Operator};
use crate::planned::{self, PlannedOperator};
use crate::stream::PyStream;
use crate::vectorcall;

/// What the built-in function of an operator of the registry carries as its self.
#[pyclass(frozen, module = "pygpukit", name = "_Operator")]
struct Handle {
    operator: PlannedOperator,
}

/// An elementwise operator: ``pygpukit.add`` and its siblings. Attributes may be added to it.
#[pyclass(frozen, dict, subclass, module = "pygpukit", name = "Ufunc")]
struct Ufunc {
    operator: Arc<Operator>,
}

#[pymethods]
impl Ufunc {
    #[new]
    fn new(name: &str, arity: usize) -> PyResult<Ufunc> {
        Ok(Ufunc { operator: ops::intern(name, arity)? })
    }

    /// Number of operands.
    #[getter]
    fn nin(&self) -> usize {
        self.operator.arity
    }

    /// Number of results.
    #[getter]
    fn nout(&self) -> usize {
        1
    }

    // Calls go through `call_ufunc`; this is for those that hold a tuple and a dict already.
    #[pyo3(signature = (*args, **kwargs))]
    fn __call__(
        &self,
        py: Python<'_>,
        args: &Bound<'_, PyTuple>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Py<PyAny>> {
        let positional: Vec<_> = args.iter().collect();
        let named: Vec<_> = kwargs.map(|k| k.iter().collect()).unwrap_or_default();
        elementwise(py, &self.operator, &positional, &named)
    }

    fn __repr__(&self) -> String {
        format!("<ufunc '{}'>", self.operator.name)
    }

    fn __reduce__(&self) -> String {
        self.operator.name.clone()
    }
}

/// The class of elementwise operators with the fast call protocol, and the offset of the word it adds.
static UFUNC: PyOnceLock<(Py<PyType>, usize)> = PyOnceLock::new();

/// Make the function of a table row. `signature` is the text Python shows, e.g. "x, y, /".
#[pyfunction]
fn operator(py: Python<'_>, name: &str, arity: usize, signature: &str, doc: &str) -> PyResult<Py<PyAny>> {
    let (class, offset) =
        UFUNC.get_or_try_init(py, || vectorcall::subclass(&py.get_type::<Ufunc>(), c"pygpukit.Ufunc"))?;
    let made = class.bind(py).call1((name, arity))?;
    // SAFETY: the object is of the class made above, and new.
    unsafe { vectorcall::install(&made, *offset, call_ufunc) };
    for attribute in ["__name__", "__qualname__"] {
        made.setattr(attribute, name)?;
    }
    made.setattr("__doc__", doc)?;
    made.setattr("__text_signature__", format!("({signature})"))?;
    Ok(made.unbind())
}

/// The same for an operator of the registry.
pub fn builtin(
    py: Python<'_>,
    operator: PlannedOperator,
    name: &str,
    signature: &str,
    doc: &str,
) -> PyResult<Py<PyAny>> {
    let text = format!("{name}({signature})\n--\n\n{doc}");
    let (Ok(c_name), Ok(c_doc)) = (CString::new(name), CString::new(text)) else {
        return Err(PyValueError::new_err(format!("operator '{name}': name and doc must not contain NUL")));
    };
    // A built-in function refers to its definition for as long as it lives; operators live as long as the process.
    let definition = Box::leak(Box::new(ffi::PyMethodDef {
        ml_name: c_name.into_raw(),
        ml_meth: ffi::PyMethodDefPointer { PyCFunctionFastWithKeywords: call },
        ml_flags: ffi::METH_FASTCALL | ffi::METH_KEYWORDS,
        ml_doc: c_doc.into_raw(),
    }));
    let handle = Bound::new(py, Handle { operator })?;
    let module = PyString::new(py, "pygpukit");
    // SAFETY: the definition is leaked, and the new function takes its own references to handle and module.
    unsafe {
        let function = ffi::PyCFunction_NewEx(definition, handle.as_ptr(), module.as_ptr());
        Bound::from_owned_ptr_or_err(py, function).map(Bound::unbind)
    }
}

unsafe extern "C" fn call(
    this: *mut ffi::PyObject,
    args: *const *mut ffi::PyObject,
    count: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: Python calls this with the interpreter attached.
    let py = unsafe { Python::assume_attached() };
    // SAFETY: the vectorcall protocol: `count` positional arguments, then one per name in the tuple `names`.
    let result = catch_unwind(AssertUnwindSafe(|| unsafe { dispatch(py, this, args, count as usize, names) }));
    match result {
        Ok(Ok(result)) => result.into_ptr(),
        Ok(Err(error)) => {
            error.restore(py);
            std::ptr::null_mut()
        }
        Err(_) => panicked(py),
    }
}

/// The error of a call that panicked, set as Python's current one.
#[cold]
pub fn panicked(py: Python<'_>) -> *mut ffi::PyObject {
    pyo3::exceptions::PySystemError::new_err("a call of the runtime panicked; please report this").restore(py);
    std::ptr::null_mut()
}

/// The arguments of a vectorcall, without counting references: positional ones, and those named by `names`.
///
/// # Safety
/// `args` has `count` positional arguments and then one per element of the tuple `names` (or none when it is null), all
/// alive for `'a`.
#[inline]
pub unsafe fn borrowed_arguments<'a, 'py>(
    _py: Python<'py>,
    args: *const *mut ffi::PyObject,
    count: usize,
    names: *mut ffi::PyObject,
) -> (&'a [Bound<'py, PyAny>], &'a [Bound<'py, PyAny>]) {
    if args.is_null() {
        return (&[], &[]);
    }
    // SAFETY: names is a tuple when it is not null.
    let named = if names.is_null() { 0 } else { unsafe { ffi::PyTuple_Size(names) as usize } };
    // SAFETY: a Bound is a transparent wrapper of a non-null object pointer, and these are alive.
    let all = unsafe { std::slice::from_raw_parts(args.cast::<Bound<'py, PyAny>>(), count + named) };
    all.split_at(count)
}

#[inline]
unsafe fn dispatch(
    py: Python<'_>,
    this: *mut ffi::PyObject,
    args: *const *mut ffi::PyObject,
    count: usize,
    names: *mut ffi::PyObject,
) -> PyResult<Py<PyAny>> {
    // SAFETY: `this` is the Handle given to PyCFunction_NewEx above.
    let this = unsafe { Bound::from_borrowed_ptr(py, this) };
    let handle = unsafe { this.cast_unchecked::<Handle>() };
    // SAFETY: as the caller says.
    let (positional, named) = unsafe { borrowed_arguments(py, args, count, names) };
    let mut keywords: SmallVec<[(Bound<'_, PyAny>, Bound<'_, PyAny>); 4]> = SmallVec::new();
    if !names.is_null() {
        // SAFETY: names is a tuple of str.
        let names = unsafe { Bound::from_borrowed_ptr(py, names).cast_into_unchecked::<PyTuple>() };
        keywords.extend(names.iter().zip(named.iter().cloned()));
    }
    planned::call(py, &handle.get().operator, positional, &keywords)
}

unsafe extern "C" fn call_ufunc(
    this: *mut ffi::PyObject,
    args: *const *mut ffi::PyObject,
    count: usize,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: Python calls this with the interpreter attached.
    let py = unsafe { Python::assume_attached() };
    let called = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: only objects made by `operator` carry this function; the caller keeps them alive.
        let this = unsafe { Bound::from_borrowed_ptr(py, this).cast_into_unchecked::<Ufunc>() };
        // SAFETY: the vectorcall protocol.
        let (positional, named) = unsafe { borrowed_arguments(py, args, vectorcall::positional(count), names) };
        let operator = &this.get().operator;
        if names.is_null() {
            return Ok(ops::apply(py, operator, positional, None, None)?.into_any());
        }
        // SAFETY: names is a tuple of str.
        let names = unsafe { Bound::from_borrowed_ptr(py, names).cast_into_unchecked::<PyTuple>() };
        let named: SmallVec<[(Bound<'_, PyAny>, Bound<'_, PyAny>); 4]> =
            names.iter().zip(named.iter().cloned()).collect();
        elementwise(py, operator, positional, &named)
    }));
    match called {
        Ok(Ok(result)) => result.into_ptr(),
        Ok(Err(error)) => {
            error.restore(py);
            std::ptr::null_mut()
        }
        Err(_) => panicked(py),
    }
}

/// A call with keywords. Python makes those that NumPy has and launches do not (`where`, `dtype`) of other operators.
fn elementwise<'py>(
    py: Python<'py>,
    operator: &Operator,
    positional: &[Bound<'py, PyAny>],
    named: &[(Bound<'py, PyAny>, Bound<'py, PyAny>)],
) -> PyResult<Py<PyAny>> {
    let (mut out, mut stream) = (None, None);
    for (name, value) in named {
        match &*name.cast::<PyString>()?.to_cow()? {
            "out" if value.is_none() => {}
            "out" => out = Some(array_argument(operator, value.clone())?),
            "stream" if value.is_none() => {}
            "stream" => stream = Some(value.clone().cast_into::<PyStream>()?),
            _ => {
                let keywords = PyDict::new(py);
                for (name, value) in named {
                    keywords.set_item(name, value)?;
                }
                let _inside = Inside::enter().py()?;
                let extended = ops::extended(py)?;
                return Ok(extended.call1((&operator.name, PyTuple::new(py, positional)?, keywords))?.unbind());
            }
        }
    }
    Ok(ops::apply(py, operator, positional, out.as_ref(), stream.as_ref())?.into_any())
}

/// Apply an operator by name; the way for code that does not hold its function.
#[pyfunction]
#[pyo3(signature = (name, operands, out=None, stream=None))]
fn apply<'py>(
    py: Python<'py>,
    name: &str,
    operands: Vec<Bound<'py, PyAny>>,
    out: Option<Bound<'py, GPUArray>>,
    stream: Option<Bound<'py, PyStream>>,
) -> PyResult<Py<GPUArray>> {
    ops::apply(py, &*ops::find(name)?, &operands, out.as_ref(), stream.as_ref())
}

fn array_argument<'py>(operator: &Operator, value: Bound<'py, PyAny>) -> PyResult<Bound<'py, GPUArray>> {
    let kind = value.get_type().name()?.to_string();
    value
        .cast_into::<GPUArray>()
        .map_err(|_| PyTypeError::new_err(format!("{}(): out must be a GPUArray, not {kind}", operator.name)))
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(operator, m)?)?;
    m.add_function(wrap_pyfunction!(apply, m)?)?;
    Ok(())
}
