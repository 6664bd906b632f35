//! Plans of cuSOLVER's factorisations, for linear algebra.

use std::sync::Arc;

use pygpukit_core::command::{Access, UseRef};
use pygpukit_core::cuda::cusolver::{Function, SolverCall, SolverPlan, SolverShape};
use pygpukit_core::dtype::DType;
use pygpukit_core::error::Error;
use pygpukit_core::launch::call_library;
use pygpukit_core::runtime::DeviceState;
use pyo3::prelude::*;
use smallvec::SmallVec;

use crate::array::GPUArray;
use crate::device::{context, context_for};
use crate::dtype::DataType;
use crate::errors::ToPy;
use crate::inside::detached;
use crate::libraries::opened_cusolver;

/// A function of cuSOLVER for matrices of one shape on a device.
#[pyclass(frozen, module = "pygpukit", name = "_SolverPlan")]
pub struct PySolverPlan {
    plan: Arc<SolverPlan>,
    state: &'static DeviceState,
}

/// Check the arrays of a call and return their addresses.
fn addresses(state: &DeviceState, shape: &SolverShape, arrays: &[PyRef<'_, GPUArray>]) -> PyResult<[u64; 4]> {
    let wanted = shape.arrays();
    let refuse = |text: String| Err(Error::Value(format!("{shape}: {text}"))).py();
    if arrays.len() != wanted.len() {
        return refuse(format!("takes {} arrays, not {}", wanted.len(), arrays.len()));
    }
    let mut found = [0; 4];
    for (i, (array, (kind, elements, _))) in arrays.iter().zip(&wanted).enumerate() {
        if !std::ptr::eq(array.state, state) {
            return refuse(format!("array {i} lives on another device"));
        }
        if array.dtype != *kind || !array.layout.is_contiguous() || array.layout.size() < *elements {
            return refuse(format!(
                "array {i} must have {elements} elements of {} without gaps, and has {} of {}",
                kind.name(),
                array.layout.size(),
                array.dtype.name()
            ));
        }
        found[i] = if *elements == 0 { 0 } else { array.ptr() };
    }
    Ok(found)
}

#[pymethods]
impl PySolverPlan {
    /// Put the function on the current stream; what it says of the matrix goes to `info`.
    #[pyo3(signature = (arrays, info, workspace=None))]
    fn run(
        &self,
        py: Python<'_>,
        arrays: Vec<PyRef<'_, GPUArray>>,
        info: &Bound<'_, GPUArray>,
        workspace: Option<&Bound<'_, GPUArray>>,
    ) -> PyResult<()> {
        let shape = self.plan.shape();
        let found = addresses(self.state, shape, &arrays)?;
        let info = info.get();
        if info.dtype != DType::I32 || info.layout.size() != 1 || !std::ptr::eq(info.state, self.state) {
            return Err(Error::Value("info must be one element of int32 on the plan's device".to_string())).py();
        }
        let mut uses: SmallVec<[UseRef<'_>; 8]> = SmallVec::new();
        for (array, (_, elements, constant)) in arrays.iter().zip(shape.arrays()) {
            if elements > 0 {
                uses.push(array.touched(if constant { Access::Read } else { Access::ReadWrite })?);
            }
        }
        uses.push(info.touched(Access::Write)?);
        let mut given = None;
        if let Some(array) = workspace.map(|array| array.get()).filter(|_| self.plan.workspace() > 0) {
            if !std::ptr::eq(array.state, self.state) {
                return Err(Error::Value("the workspace lives on another device".to_string())).py();
            }
            uses.push(array.touched(Access::Write)?);
            given = Some((array.ptr(), array.bytes()));
        }
        let call = SolverCall::new(&self.plan, found, info.ptr(), given).py()?;
        call_library(&*context_for(py, self.state)?, &call, &uses).py()
    }

    /// Bytes of workspace that `run` must be given.
    #[getter]
    fn workspace(&self) -> usize {
        self.plan.workspace()
    }

    fn __repr__(&self) -> String {
        format!("<_SolverPlan {}>", self.plan.shape())
    }
}

/// Plan a function for one column-major matrix without gaps; `arrays` are those of its first call.
#[pyfunction]
fn cusolver_plan(
    py: Python<'_>,
    name: &str,
    dtype: &Bound<'_, DataType>,
    sizes: (i64, i64, i64),
    flags: &str,
    arrays: Vec<PyRef<'_, GPUArray>>,
) -> PyResult<PySolverPlan> {
    let state = context(py)?.state;
    if !state.is_cuda() {
        return Err(Error::Device("cuSOLVER runs on CUDA devices only".to_string())).py();
    }
    state.check().py()?;
    let Some(function) = Function::from_name(name) else {
        return Err(Error::Value(format!("cuSOLVER's function {name:?} is not known here"))).py();
    };
    let shape = SolverShape::new(function, dtype.get().dtype, sizes, flags).py()?;
    let found = addresses(state, &shape, &arrays)?;
    let library = opened_cusolver().py()?;
    let plan = detached(py, || SolverPlan::new(&library, &*state.device, shape, &found))?;
    Ok(PySolverPlan { plan, state })
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PySolverPlan>()?;
    m.add_function(wrap_pyfunction!(cusolver_plan, m)?)?;
    Ok(())
}
