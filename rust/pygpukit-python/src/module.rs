//! `_Module`: a loaded image with several kernels and the variables they share.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use pygpukit_core::dtype::DType;
use pygpukit_core::kernel::{Kernel, KernelMeta, Library};
use pygpukit_core::layout::Layout;
use pygpukit_core::memory::Storage;
use pygpukit_core::runtime::DeviceState;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyModule};

use crate::array::GPUArray;
use crate::device::PyDevice;
use crate::dtype::DataType;
use crate::errors::ToPy;
use crate::inside::detached;
use crate::kernel::{PyKernel, check_of};
use crate::vectorcall;

/// An image loaded on a device; see `pygpukit.module`.
#[pyclass(frozen, module = "pygpukit", name = "_Module")]
pub struct PyLoadedModule {
    library: Arc<Library>,
    state: &'static DeviceState,
    image: Py<PyBytes>,
    arch: String,
    source: String,
    meta: KernelMeta,
    /// Memory of the variables that were asked for.
    variables: Mutex<HashMap<String, Arc<Storage>>>,
}

impl PyLoadedModule {
    fn storage(&self, py: Python<'_>, name: &str) -> PyResult<Arc<Storage>> {
        if let Some(known) = self.variables.lock().get(name) {
            return Ok(known.clone());
        }
        let storage = detached(py, || self.library.variable(self.state, name))?;
        Ok(self.variables.lock().entry(name.to_string()).or_insert(storage).clone())
    }
}

#[pymethods]
impl PyLoadedModule {
    /// One of its kernels.
    fn kernel(&self, py: Python<'_>, entry: &str, name: &str, params: Vec<(String, String)>) -> PyResult<Py<PyKernel>> {
        let made = detached(py, || Kernel::new(&self.library, entry, name, self.meta.clone()))?;
        let mut kernel = PyKernel::of(made, self.state, Some(params), self.image.clone_ref(py), &self.arch)?;
        kernel.source = Some(self.source.clone());
        vectorcall::object(py, kernel).map(Bound::unbind)
    }

    /// Bytes of a variable.
    fn variable_bytes(&self, py: Python<'_>, name: &str) -> PyResult<usize> {
        Ok(self.storage(py, name)?.bytes())
    }

    /// A variable as an array over its memory; shape and type fill it exactly.
    fn variable(&self, py: Python<'_>, name: &str, shape: Vec<i64>, dtype: &Bound<'_, DataType>) -> PyResult<GPUArray> {
        let storage = self.storage(py, name)?;
        let dtype: DType = dtype.get().dtype;
        let layout = Layout::contiguous(&shape).py()?;
        let bytes = layout.size() as u64 * dtype.itemsize() as u64;
        if bytes != storage.bytes() as u64 {
            return Err(pyo3::exceptions::PyValueError::new_err(format!(
                "variable '{name}' has {} bytes, but shape {shape:?} of {} has {bytes}",
                storage.bytes(),
                dtype.name()
            )));
        }
        Ok(GPUArray::of(self.state, storage, 0, layout, dtype))
    }

    /// Device it is loaded on.
    #[getter]
    fn device(&self) -> PyDevice {
        PyDevice { state: self.state }
    }
}

/// Load an image whose kernels share their variables.
#[pyfunction]
#[pyo3(signature = (image, device, arch, source, file, check=false, seed=None))]
#[allow(clippy::too_many_arguments)]
fn load_module(
    py: Python<'_>,
    image: Bound<'_, PyBytes>,
    device: &Bound<'_, PyDevice>,
    arch: &str,
    source: &str,
    file: &str,
    check: bool,
    seed: Option<u64>,
) -> PyResult<PyLoadedModule> {
    let state = device.get().state;
    state.check().py()?;
    let bytes = image.as_bytes();
    let library = detached(py, || Library::load(&state.device, bytes))?;
    library.set_source(file, source);
    Ok(PyLoadedModule {
        library,
        state,
        image: image.unbind(),
        arch: arch.to_string(),
        source: source.to_string(),
        meta: KernelMeta { check: check_of(check, seed), access_from_types: true, ..KernelMeta::default() },
        variables: Mutex::default(),
    })
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyLoadedModule>()?;
    m.add_function(wrap_pyfunction!(load_module, m)?)?;
    Ok(())
}
