//! What operators must promise about the bits of their results: a level of the thread's context, or of the process.

use pygpukit_core::exec::{self, Determinism, ExecCtx};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyModule;

use crate::device::context;
use crate::errors::ToPy;

fn parse(level: &str) -> PyResult<Determinism> {
    Determinism::parse(level).ok_or_else(|| {
        PyValueError::new_err(format!(
            "there is no level of determinism '{level}'; use 'batch_invariant', 'run_to_run' or 'not_guaranteed'"
        ))
    })
}

/// A level for the work of this thread, inside a `with` block.
#[pyclass(frozen, module = "pygpukit", name = "DeterminismScope")]
pub struct DeterminismScope {
    level: Determinism,
}

#[pymethods]
impl DeterminismScope {
    #[new]
    fn new(level: &str) -> PyResult<DeterminismScope> {
        Ok(DeterminismScope { level: parse(level)? })
    }

    /// The level's name.
    #[getter]
    fn level(&self) -> &'static str {
        self.level.name()
    }

    fn __enter__<'py>(slf: Bound<'py, Self>, py: Python<'py>) -> PyResult<Bound<'py, Self>> {
        let mut ctx = ExecCtx::clone(&*context(py)?);
        ctx.determinism = Some(slf.get().level);
        exec::enter(ctx, slf.as_ptr() as usize);
        Ok(slf)
    }

    #[pyo3(signature = (*_args))]
    fn __exit__(slf: &Bound<'_, Self>, _args: &Bound<'_, PyAny>) -> PyResult<()> {
        exec::leave(slf.as_ptr() as usize).py()
    }

    fn __repr__(&self) -> String {
        format!("<deterministic '{}'>", self.level.name())
    }
}

/// The level of contexts that were not asked for another, in all threads.
#[pyfunction]
fn set_default_determinism(level: &str) -> PyResult<()> {
    parse(level)?.set_default();
    Ok(())
}

/// The level of this thread's work now.
#[pyfunction]
fn current_determinism() -> &'static str {
    // A thread without a context need not get one for this.
    exec::current().map_or_else(Determinism::of_process, |ctx| ctx.determinism()).name()
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<DeterminismScope>()?;
    m.add_function(wrap_pyfunction!(set_default_determinism, m)?)?;
    m.add_function(wrap_pyfunction!(current_determinism, m)?)
}
