//! Operators as callable objects: `pygpukit.add` is one of these, called without building a tuple.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use pyo3::exceptions::{PyAttributeError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::intern;
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

/// What a built-in operator function runs.
enum Target {
    Elementwise(Arc<Operator>),
    Planned(PlannedOperator),
}

/// An operator of arrays: called like a built-in function. Attributes may be added, such as `add.at`.
#[pyclass(subclass, dict, weakref, frozen, module = "pygpukit", name = "_OperatorBase")]
pub struct Handle {
    target: Target,
    name: String,
}

thread_local! {
    /// What the `__new__` running on this thread is to hold.
    static PENDING: RefCell<Option<Handle>> = const { RefCell::new(None) };
}

static CLASS: PyOnceLock<(Py<PyType>, usize)> = PyOnceLock::new();

fn class(py: Python<'_>) -> PyResult<&'static (Py<PyType>, usize)> {
    CLASS.get_or_try_init(py, || vectorcall::callable(py, &py.get_type::<Handle>(), c"pygpukit.Operator"))
}

#[pymethods]
impl Handle {
    #[new]
    fn new() -> PyResult<Handle> {
        let pending = PENDING.with(|p| p.borrow_mut().take());
        pending.ok_or_else(|| PyTypeError::new_err("operators are registered, not made by calling their class"))
    }

    // Calls go through `call`; this is for callers that hold a tuple and a dict already.
    #[pyo3(signature = (*args, **kwargs))]
    fn __call__(
        &self,
        py: Python<'_>,
        args: &Bound<'_, PyTuple>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Py<PyAny>> {
        let positional: Vec<_> = args.iter().collect();
        let keywords: Vec<_> = kwargs.map(|k| k.iter().collect()).unwrap_or_default();
        self.run(py, &positional, &keywords)
    }

    /// Number of operands of an elementwise operator.
    #[getter]
    fn nin(&self) -> PyResult<usize> {
        match &self.target {
            Target::Elementwise(operator) => Ok(operator.arity),
            Target::Planned(_) => Err(PyAttributeError::new_err(format!("operator '{}' has no 'nin'", self.name))),
        }
    }

    /// Number of results of an elementwise operator.
    #[getter]
    fn nout(&self) -> PyResult<usize> {
        self.nin().map(|_| 1)
    }

    /// As with built-in functions, an attribute of a class that is an operator is the operator itself.
    fn __get__<'py>(
        slf: Bound<'py, Self>,
        _object: &Bound<'py, PyAny>,
        _class: Option<&Bound<'py, PyAny>>,
    ) -> Bound<'py, Self> {
        slf
    }

    fn __repr__(&self) -> String {
        format!("<operator pygpukit.{}>", self.name)
    }

    /// Pickled by name, as functions are.
    fn __reduce__(&self) -> &str {
        &self.name
    }
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
    let (class, offset) = class(py)?;
    PENDING.with(|p| *p.borrow_mut() = Some(Handle { target, name: name.to_string() }));
    let made = class.bind(py).call0()?;
    // SAFETY: the object is of the class made above, and nothing else has it yet.
    unsafe { vectorcall::enable(&made, *offset, call) };
    made.setattr("__name__", name)?;
    made.setattr("__qualname__", name)?;
    made.setattr("__module__", "pygpukit")?;
    made.setattr("__doc__", doc)?;
    made.setattr("__text_signature__", format!("({signature})"))?;
    Ok(made.unbind())
}

unsafe extern "C" fn call(
    this: *mut ffi::PyObject,
    args: *const *mut ffi::PyObject,
    count: usize,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: Python calls this with the interpreter attached.
    let py = unsafe { Python::assume_attached() };
    let count = count & !vectorcall::ARGUMENTS_OFFSET;
    // SAFETY: the vectorcall protocol: `count` positional arguments, then one per name in the tuple `names`.
    let result = catch_unwind(AssertUnwindSafe(|| unsafe { dispatch(py, this, args, count, names) }));
    match result {
        Ok(Ok(result)) => result.into_ptr(),
        Ok(Err(error)) => {
            // SAFETY: as above.
            match unsafe { taken_over(py, this, args, count, names, error) } {
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
    // SAFETY: `this` is an object that `function` made, and names a tuple of str where it is not null.
    let (this, names) = unsafe { (Bound::from_borrowed_ptr(py, this), Bound::from_borrowed_ptr_or_opt(py, names)) };
    // SAFETY: as above.
    let name = unsafe { &this.cast_unchecked::<Handle>().get().name };
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
    // SAFETY: only objects made by `function` carry `call`; the caller keeps them alive.
    let this = unsafe { Bound::from_borrowed_ptr(py, this) };
    let handle = unsafe { this.cast_unchecked::<Handle>() };
    // SAFETY: as the caller says.
    let (positional, named) = unsafe { borrowed_arguments(py, args, count, names) };
    let mut keywords: Keywords<'_> = SmallVec::new();
    if !names.is_null() {
        // SAFETY: names is a tuple of str.
        let names = unsafe { Bound::from_borrowed_ptr(py, names).cast_into_unchecked::<PyTuple>() };
        keywords.extend(names.iter().zip(named.iter().cloned()));
    }
    handle.get().run(py, positional, &keywords)
}

type Keywords<'py> = SmallVec<[(Bound<'py, PyAny>, Bound<'py, PyAny>); 4]>;

impl Handle {
    #[inline]
    fn run<'py>(
        &self,
        py: Python<'py>,
        positional: &[Bound<'py, PyAny>],
        named: &[(Bound<'py, PyAny>, Bound<'py, PyAny>)],
    ) -> PyResult<Py<PyAny>> {
        let operator = match &self.target {
            Target::Elementwise(operator) => operator,
            Target::Planned(operator) => return planned::call(py, operator, positional, named),
        };
        let (mut out, mut stream) = (None, None);
        // As in NumPy, what stands behind the operands is where the result is written.
        let (positional, behind) = match positional.split_at_checked(operator.arity) {
            Some((operands, [target])) if !operator.condition => (operands, Some(target)),
            _ => (positional, None),
        };
        if let Some(target) = behind.filter(|target| !target.is_none()) {
            out = array_argument(operator, target.clone())?;
        }
        for (name, value) in named {
            match &*name.cast::<PyString>()?.to_cow()? {
                "out" if behind.is_some() => {
                    return Err(PyTypeError::new_err(format!(
                        "{}(): out is given twice, behind the operands and by name",
                        operator.name
                    )));
                }
                "out" | "stream" if value.is_none() => {}
                "out" => out = array_argument(operator, value.clone())?,
                "stream" => stream = Some(value.clone().cast_into::<PyStream>()?),
                // Python composes what NumPy's keywords (`where`, `dtype`) mean of other operators.
                _ => {
                    let keywords = PyDict::new(py);
                    for (name, value) in named {
                        keywords.set_item(name, value)?;
                    }
                    if let Some(target) = behind {
                        keywords.set_item("out", target)?;
                    }
                    let _inside = Inside::enter().py()?;
                    let extended = ops::extended(py)?;
                    return Ok(extended.call1((&operator.name, PyTuple::new(py, positional)?, keywords))?.unbind());
                }
            }
        }
        if operator.condition && positional.len() == 1 && named.is_empty() {
            return ops::places(py, &positional[0]);
        }
        if operator.condition && positional.len() == 2 {
            let text = format!("{}(): either both or neither of x and y should be given", operator.name);
            return Err(PyValueError::new_err(text));
        }
        Ok(ops::apply(py, operator, positional, out.as_ref(), stream.as_ref())?.into_any())
    }
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

/// Where a result is written: an array, or as in NumPy a tuple of one, which may be None.
fn array_argument<'py>(operator: &Operator, value: Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, GPUArray>>> {
    let value = match value.cast::<PyTuple>() {
        Ok(one) if one.len() == 1 => one.get_item(0)?,
        _ => value,
    };
    if value.is_none() {
        return Ok(None);
    }
    let kind = value.get_type().name()?.to_string();
    match value.cast_into::<GPUArray>() {
        Ok(array) => Ok(Some(array)),
        Err(_) => Err(PyTypeError::new_err(format!("{}(): out must be a GPUArray, not {kind}", operator.name))),
    }
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add("Operator", class(m.py())?.0.bind(m.py()))?;
    m.add_function(wrap_pyfunction!(operator, m)?)?;
    m.add_function(wrap_pyfunction!(apply, m)?)?;
    Ok(())
}
