//! Operators as built-in functions: `pygpukit.add` is one of these, called without building a tuple.

use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyModule, PyString, PyTuple};
use smallvec::SmallVec;

use crate::array::GPUArray;
use crate::errors::ToPy;
use crate::inside::Inside;
use crate::ops::{self, Operator};
use crate::planned::{self, PlannedOperator};
use crate::stream::PyStream;

/// What a built-in operator function runs.
enum Target {
    Elementwise(Arc<Operator>),
    Planned(PlannedOperator),
}

/// What it carries as its self.
#[pyclass(frozen, module = "pygpukit", name = "_Operator")]
struct Handle {
    target: Target,
}

/// Make the built-in function of a table row. `signature` is the text Python shows, e.g. "x, y, /".
#[pyfunction]
fn operator(py: Python<'_>, name: &str, arity: usize, signature: &str, doc: &str) -> PyResult<Py<PyAny>> {
    let operator = ops::intern(name, arity)?;
    function(py, Target::Elementwise(operator), name, signature, doc)
}

/// The same for an operator of the registry.
pub fn builtin(
    py: Python<'_>,
    operator: PlannedOperator,
    name: &str,
    signature: &str,
    doc: &str,
) -> PyResult<Py<PyAny>> {
    function(py, Target::Planned(operator), name, signature, doc)
}

fn function(py: Python<'_>, target: Target, name: &str, signature: &str, doc: &str) -> PyResult<Py<PyAny>> {
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
    let handle = Bound::new(py, Handle { target })?;
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
            // SAFETY: as above.
            match unsafe { taken_over(py, this, args, count as usize, names, error) } {
                Ok(result) => result.into_ptr(),
                Err(error) => {
                    error.restore(py);
                    std::ptr::null_mut()
                }
            }
        }
        Err(_) => panicked(py),
    }
}

/// A call that failed for a type not known here, given to an argument that has the method `__gp_operator__(name, args,
/// kwargs)`: arrays that `pygpukit.fuse` traces stand for values that do not exist yet.
///
/// # Safety
/// As `call`.
#[cold]
unsafe fn taken_over(
    py: Python<'_>,
    this: *mut ffi::PyObject,
    args: *const *mut ffi::PyObject,
    count: usize,
    names: *mut ffi::PyObject,
    error: PyErr,
) -> PyResult<Py<PyAny>> {
    if !error.is_instance_of::<PyTypeError>(py) {
        return Err(error);
    }
    // SAFETY: as the caller says.
    let (positional, named) = unsafe { borrowed_arguments(py, args, count, names) };
    let hook = intern!(py, "__gp_operator__");
    let method = |value: &Bound<'_, PyAny>| value.getattr_opt(hook).ok().flatten().map(Bound::unbind);
    let Some(method) = positional.iter().chain(named).find_map(method) else { return Err(error) };
    // SAFETY: `this` is the Handle given to PyCFunction_NewEx, and names a tuple of str where it is not null.
    let (this, names) = unsafe { (Bound::from_borrowed_ptr(py, this), Bound::from_borrowed_ptr_or_opt(py, names)) };
    // SAFETY: as above.
    let name = match unsafe { &this.cast_unchecked::<Handle>().get().target } {
        Target::Elementwise(operator) => operator.name.clone(),
        Target::Planned(operator) => operator.name.clone(),
    };
    let keywords = PyDict::new(py);
    if let Some(names) = names {
        for (key, value) in names.cast_into::<PyTuple>()?.iter().zip(named) {
            keywords.set_item(key, value)?;
        }
    }
    let _inside = Inside::enter().py()?;
    method.call1(py, (name, PyTuple::new(py, positional)?, keywords))
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
    let operator = match &handle.get().target {
        Target::Elementwise(operator) => operator,
        Target::Planned(operator) => {
            let mut keywords: SmallVec<[(Bound<'_, PyAny>, Bound<'_, PyAny>); 4]> = SmallVec::new();
            if !names.is_null() {
                // SAFETY: names is a tuple of str.
                let names = unsafe { Bound::from_borrowed_ptr(py, names).cast_into_unchecked::<PyTuple>() };
                keywords.extend(names.iter().zip(named.iter().cloned()));
            }
            return planned::call(py, operator, positional, &keywords);
        }
    };
    let (mut out, mut stream) = (None, None);
    if !names.is_null() {
        // SAFETY: names is a tuple of str.
        let names = unsafe { Bound::from_borrowed_ptr(py, names).cast_into_unchecked::<PyTuple>() };
        for (name, value) in names.iter().zip(named) {
            let value = value.clone();
            let name = name.cast::<PyString>()?.to_cow()?;
            match &*name {
                "out" if value.is_none() => {}
                "out" => out = Some(array_argument(operator, value)?),
                "stream" if value.is_none() => {}
                "stream" => stream = Some(value.cast_into::<PyStream>()?),
                other => {
                    return Err(PyTypeError::new_err(format!(
                        "{}() got an unexpected keyword argument '{other}'",
                        operator.name
                    )));
                }
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
