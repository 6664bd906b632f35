//! Plans of matrix products by cuBLASLt, for the operators.

use std::sync::Arc;

use pygpukit_core::command::{Access, UseRef};
use pygpukit_core::cuda::cublaslt::{Compute, GemmCall, GemmPlan, GemmShape, Operand, SavedAlgorithm};
use pygpukit_core::dtype::DType;
use pygpukit_core::error::Error;
use pygpukit_core::launch::call_library;
use pygpukit_core::library_call::LibraryCall;
use pygpukit_core::runtime::DeviceState;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use smallvec::{SmallVec, smallvec};

use crate::array::GPUArray;
use crate::device::{PyDevice, context, context_for};
use crate::dtype::DataType;
use crate::errors::ToPy;
use crate::inside::detached;
use crate::libraries::opened_cublaslt;
use crate::stream::PyStream;
use crate::transfer::on;

/// A matrix product on a device, with its algorithm.
#[pyclass(frozen, module = "pygpukit", name = "_GemmPlan")]
pub struct PyGemmPlan {
    pub plan: Arc<GemmPlan>,
    state: &'static DeviceState,
    /// Bytes that the product reaches from the first element of a, b and out.
    reach: [usize; 3],
}

/// A product and the memory it uses.
type Work<'a> = (GemmCall, SmallVec<[UseRef<'a>; 4]>);

impl PyGemmPlan {
    /// The product of these arrays, whose first elements are those of the matrices.
    #[inline]
    pub fn work<'a>(
        &self,
        out: &'a GPUArray,
        a: &'a GPUArray,
        b: &'a GPUArray,
        workspace: Option<&'a GPUArray>,
    ) -> PyResult<Work<'a>> {
        let shape = self.plan.shape();
        let planned = [shape.a.dtype, shape.b.dtype, shape.out.dtype];
        for (i, array) in [a, b, out].into_iter().enumerate() {
            let fits = array.dtype == planned[i]
                && std::ptr::eq(array.state, self.state)
                && array.offset + self.reach[i] <= array.storage.bytes();
            if !fits {
                return Err(self.misfit(i, array, planned[i]));
            }
        }
        let access = if shape.accumulate { Access::ReadWrite } else { Access::Write };
        let mut uses = smallvec![out.touched(access)?, a.touched(Access::Read)?, b.touched(Access::Read)?];
        let mut given = None;
        if let Some(array) = workspace.filter(|_| self.plan.workspace() > 0) {
            uses.push(array.touched(Access::Write)?);
            given = Some((array.ptr(), array.bytes()));
        }
        Ok((GemmCall::new(&self.plan, out.ptr(), a.ptr(), b.ptr(), given).py()?, uses))
    }

    #[cold]
    fn misfit(&self, which: usize, array: &GPUArray, planned: DType) -> PyErr {
        let name = ["a", "b", "out"][which];
        let text = if array.dtype != planned {
            format!("{name} has dtype {}, and the product was planned for {}", array.dtype.name(), planned.name())
        } else if !std::ptr::eq(array.state, self.state) {
            format!("{name} lives on another device than the plan")
        } else {
            format!(
                "the product reaches {} bytes from the first element of {name}, and its memory has {} there",
                self.reach[which],
                array.storage.bytes() - array.offset
            )
        };
        crate::errors::to_py(Error::Value(text))
    }
}

#[pymethods]
impl PyGemmPlan {
    /// Compute the product on the current stream, or on this one.
    #[pyo3(signature = (out, a, b, workspace=None, stream=None))]
    fn run(
        &self,
        py: Python<'_>,
        out: &Bound<'_, GPUArray>,
        a: &Bound<'_, GPUArray>,
        b: &Bound<'_, GPUArray>,
        workspace: Option<&Bound<'_, GPUArray>>,
        stream: Option<&Bound<'_, PyStream>>,
    ) -> PyResult<()> {
        let (call, uses) = self.work(out.get(), a.get(), b.get(), workspace.map(|array| array.get()))?;
        let ctx = on(py, context_for(py, self.state)?, stream)?;
        if !self.plan.is_loaded() {
            // It waits for what runs.
            detached(py, || call.prepare(&*self.state.device))?;
        }
        call_library(&ctx, &call, &uses).py()
    }

    /// What the library says about the algorithm.
    fn describe<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let told = self.plan.algorithm();
        let found = PyDict::new(py);
        found.set_item("product", self.plan.shape().to_string())?;
        found.set_item("id", told.id)?;
        found.set_item("tile", told.tile)?;
        found.set_item("stages", told.stages)?;
        found.set_item("split_k", told.split_k)?;
        found.set_item("reduction", told.reduction)?;
        found.set_item("swizzling", told.swizzling)?;
        found.set_item("custom_option", told.custom_option)?;
        found.set_item("inner_shape", told.inner_shape)?;
        found.set_item("cluster_shape", told.cluster_shape)?;
        found.set_item("workspace", told.workspace)?;
        found.set_item("waves", told.waves)?;
        Ok(found)
    }

    /// The algorithm as the library's own bytes.
    #[getter]
    fn algorithm<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let bytes: Vec<u8> = self.plan.saved().algo.iter().flat_map(|word| word.to_le_bytes()).collect();
        PyBytes::new(py, &bytes)
    }

    /// Bytes of workspace that `run` must be given.
    #[getter]
    fn workspace(&self) -> usize {
        self.plan.workspace()
    }

    /// The choice as a line of text, which `cublaslt_plan` takes again as `saved`.
    fn save(&self) -> String {
        self.plan.saved().to_string()
    }

    fn __repr__(&self) -> String {
        format!("<_GemmPlan {} algorithm={}>", self.plan.shape(), self.plan.algorithm().id)
    }
}

/// Plan ``out[m, n] = a[m, k] @ b[k, n]`` for each matrix of a stack. `ld` and `batch_strides` are those of a, b and out, in
/// elements; a transposed operand is stored as its transpose.
#[pyfunction]
#[pyo3(signature = (
    m, n, k, dtype, out_dtype=None, *, batch=1, transpose_a=false, transpose_b=false, ld=None, batch_strides=(0, 0, 0),
    compute="f32", accumulate=false, workspace=0, alignment=(16, 16, 16), saved=None, device=None
))]
#[allow(clippy::too_many_arguments)]
fn cublaslt_plan(
    py: Python<'_>,
    m: i64,
    n: i64,
    k: i64,
    dtype: &Bound<'_, DataType>,
    out_dtype: Option<&Bound<'_, DataType>>,
    batch: i32,
    transpose_a: bool,
    transpose_b: bool,
    ld: Option<(i64, i64, i64)>,
    batch_strides: (i64, i64, i64),
    compute: &str,
    accumulate: bool,
    workspace: usize,
    alignment: (u32, u32, u32),
    saved: Option<&str>,
    device: Option<&Bound<'_, PyDevice>>,
) -> PyResult<PyGemmPlan> {
    let state = match device {
        Some(device) => device.get().state,
        None => context(py)?.state,
    };
    if !state.is_cuda() {
        return Err(Error::Device("cuBLASLt runs on CUDA devices only".to_string())).py();
    }
    state.check().py()?;
    let compute = match compute {
        "f32" => Compute::F32,
        "tf32" => Compute::Tf32,
        other => return Err(Error::Value(format!("compute must be 'f32' or 'tf32', not '{other}'"))).py(),
    };
    let dtype = dtype.get().dtype;
    let out_dtype = out_dtype.map_or(dtype, |given| given.get().dtype);
    let ld = ld.unwrap_or((if transpose_a { m } else { k }, if transpose_b { k } else { n }, n));
    let operand =
        |dtype, transposed, ld, batch_stride, alignment| Operand { dtype, transposed, ld, batch_stride, alignment };
    let shape = GemmShape {
        m,
        n,
        k,
        batch,
        a: operand(dtype, transpose_a, ld.0, batch_strides.0, alignment.0),
        b: operand(dtype, transpose_b, ld.1, batch_strides.1, alignment.1),
        out: operand(out_dtype, false, ld.2, batch_strides.2, alignment.2),
        compute,
        accumulate,
    };
    let saved = saved.map(str::parse::<SavedAlgorithm>).transpose().py()?;
    let lt = opened_cublaslt().py()?;
    let plan = detached(py, || match &saved {
        Some(saved) => GemmPlan::new(&lt, &*state.device, &shape, workspace, Some(saved)),
        None => GemmPlan::pinned(&lt, &*state.device, &shape, workspace),
    })?;
    Ok(PyGemmPlan { plan, state, reach: shape.reach() })
}

/// The algorithms of all products planned or loaded so far, a line of text each.
#[pyfunction]
fn cublaslt_pinned() -> PyResult<Vec<String>> {
    Ok(opened_cublaslt().py()?.pinned().iter().map(ToString::to_string).collect())
}

/// Let products planned from now on use the algorithms of these lines, which `cublaslt_pinned` gave.
#[pyfunction]
fn cublaslt_pin(lines: Vec<String>) -> PyResult<()> {
    let parsed: Result<Vec<SavedAlgorithm>, Error> = lines.iter().map(|line| line.parse()).collect();
    opened_cublaslt().py()?.pin(parsed.py()?).py()
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(cublaslt_pinned, m)?)?;
    m.add_function(wrap_pyfunction!(cublaslt_pin, m)?)?;
    m.add_class::<PyGemmPlan>()?;
    m.add_function(wrap_pyfunction!(cublaslt_plan, m)?)?;
    Ok(())
}
