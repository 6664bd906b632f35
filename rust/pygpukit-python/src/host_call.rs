//! Python callables as work of the CPU device: NumPy's functions on NumPy's views of arrays.

use std::cell::RefCell;
use std::sync::Arc;

use pygpukit_core::command::{HostFn, HostResult, UseRef};
use pygpukit_core::exec::ExecCtx;
use pygpukit_core::launch::run_inline;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyModule, PyTuple};
use smallvec::SmallVec;

use crate::array::GPUArray;
use crate::errors::{ToPy, carry};
use crate::inside::{Inside, attached};
use crate::numpy;

thread_local! {
    /// The `run` of contexts (`contextvars`) in which NumPy does not warn of what kernels say nothing of: NaN, overflow,
    /// division by zero. A context is entered once at a time, so a call inside a call takes another.
    static QUIET: RefCell<Vec<Py<PyAny>>> = const { RefCell::new(Vec::new()) };
}

static SETERR: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

#[cold]
fn new_quiet(py: Python<'_>) -> PyResult<Py<PyAny>> {
    let seterr = SETERR.get_or_try_init(py, || PyModule::import(py, "numpy")?.getattr("seterr").map(Bound::unbind))?;
    let run = PyModule::import(py, "contextvars")?.getattr("Context")?.call0()?.getattr("run")?;
    let options = PyDict::new(py);
    options.set_item("all", "ignore")?;
    run.call((seterr,), Some(&options))?;
    Ok(run.unbind())
}

/// Call the first object of a tuple with the others, without NumPy's floating-point warnings.
#[inline]
fn call_quietly(call: &Bound<'_, PyTuple>) -> PyResult<()> {
    let py = call.py();
    let _inside = Inside::enter().py()?;
    let run = match QUIET.with_borrow_mut(Vec::pop) {
        Some(run) => run,
        None => new_quiet(py)?,
    };
    let result = run.bind(py).call1(call);
    QUIET.with_borrow_mut(|all| all.push(run));
    // Dropped only now: its end may run Python code, which calls this.
    result.map(drop)
}

/// The function of a call, or one of its arguments.
pub enum Part<'a, 'py> {
    Object(Bound<'py, PyAny>),
    /// NumPy's view of an array.
    Array(&'a GPUArray),
}

type View<'py> = fn(Python<'py>, &GPUArray) -> PyResult<Bound<'py, PyAny>>;

fn tuple<'py>(py: Python<'py>, call: &[Part<'_, 'py>], view: View<'py>) -> PyResult<Bound<'py, PyTuple>> {
    let object = |part: &Part<'_, 'py>| match part {
        Part::Object(object) => Ok(object.clone()),
        Part::Array(array) => view(py, array),
    };
    PyTuple::new(py, call.iter().map(object).collect::<PyResult<SmallVec<[_; 6]>>>()?)
}

fn carried(error: PyErr) -> String {
    carry(error).to_string()
}

/// Submit a call on the CPU device: of the first part with the others. It runs before this returns where the stream runs
/// work at once; what it raises comes out of the call that ran it.
#[inline]
pub fn run(py: Python<'_>, ctx: &ExecCtx, uses: &[UseRef<'_>], call: &[Part<'_, '_>]) -> PyResult<()> {
    let mut now = || -> HostResult {
        let call = tuple(py, call, |py, array| numpy::view(py, array).cloned()).map_err(carried)?;
        call_quietly(&call).map_err(carried)
    };
    let later = || -> HostFn {
        let call = tuple(py, call, numpy::borrowed).map(Bound::unbind).map_err(carried);
        Arc::new(move || {
            let call = call.as_ref().map_err(String::clone)?;
            attached(|py| call_quietly(call.bind(py))).map_err(carried)
        })
    };
    run_inline(ctx, uses, &mut now, later).py()
}
