//! NVRTC, cuBLASLt and cuSOLVER: opening them and compiling.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use pygpukit_core::cuda::cublaslt::CublasLt;
use pygpukit_core::cuda::cusolver::CuSolver;
use pygpukit_core::cuda::nvrtc::{ImageKind, Nvrtc};
use pygpukit_core::error::Error;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyModule};

use crate::errors::ToPy;
use crate::inside::detached;

static NVRTC: Mutex<Option<Arc<Nvrtc>>> = Mutex::new(None);
static CUBLASLT: Mutex<Option<Arc<CublasLt>>> = Mutex::new(None);
static CUSOLVER: Mutex<Option<Arc<CuSolver>>> = Mutex::new(None);

/// What a compilation gave.
#[pyclass(frozen, module = "pygpukit", name = "NvrtcResult")]
struct NvrtcResult {
    #[pyo3(get)]
    image: Py<PyBytes>,
    #[pyo3(get)]
    log: String,
    /// Mangled entry name of each name expression.
    #[pyo3(get)]
    lowered: HashMap<String, String>,
}

/// Open NVRTC: an already loaded copy, or the first candidate that works. Returns its path and version.
#[pyfunction]
fn nvrtc_open(py: Python<'_>, candidates: Vec<String>) -> PyResult<(String, (i32, i32))> {
    let nvrtc = detached(py, || Nvrtc::open(&candidates))?;
    let found = (nvrtc.path().to_string(), nvrtc.version());
    *NVRTC.lock() = Some(nvrtc);
    Ok(found)
}

/// Compile CUDA C++ to a cubin or to PTX.
#[pyfunction]
fn nvrtc_compile(
    py: Python<'_>,
    source: String,
    name: String,
    options: Vec<String>,
    headers: HashMap<String, String>,
    expressions: Vec<String>,
    kind: &str,
) -> PyResult<NvrtcResult> {
    let kind = match kind {
        "cubin" => ImageKind::Cubin,
        "ptx" => ImageKind::Ptx,
        other => return Err(Error::Value(format!("kind must be 'cubin' or 'ptx', not '{other}'"))).py(),
    };
    let Some(nvrtc) = NVRTC.lock().clone() else {
        return Err(Error::NvrtcNotFound("NVRTC JIT compiler not available: it has not been opened".into())).py();
    };
    let headers: Vec<(String, String)> = headers.into_iter().collect();
    let made = detached(py, || nvrtc.compile(&source, &name, &options, &headers, &expressions, kind))?;
    Ok(NvrtcResult {
        image: PyBytes::new(py, &made.image).unbind(),
        log: made.log,
        lowered: expressions.into_iter().zip(made.lowered).collect(),
    })
}

/// Unpack the headers that NVRTC carries; false where it has none or the folder cannot be written.
#[pyfunction]
fn nvrtc_install_headers(py: Python<'_>, folder: String) -> PyResult<bool> {
    let Some(nvrtc) = NVRTC.lock().clone() else {
        return Err(Error::NvrtcNotFound("NVRTC JIT compiler not available: it has not been opened".into())).py();
    };
    detached(py, || nvrtc.install_headers(&folder))
}

/// Open cuBLASLt, or the copy opened before at its path, and return its path and version.
#[pyfunction]
fn cublaslt_open(py: Python<'_>, candidates: Vec<String>) -> PyResult<(String, usize)> {
    let library = detached(py, || CublasLt::open(&candidates))?;
    let found = (library.path().to_string(), library.version());
    let mut opened = CUBLASLT.lock();
    // Its handles are made once per device.
    if opened.as_ref().is_none_or(|before| before.path() != library.path()) {
        *opened = Some(library);
    }
    Ok(found)
}

pub fn opened_cublaslt() -> pygpukit_core::Result<Arc<CublasLt>> {
    let missing = || Error::LibraryNotFound("cuBLASLt is not available: it has not been opened".into());
    CUBLASLT.lock().clone().ok_or_else(missing)
}

/// Open cuSOLVER, or the copy opened before at its path, and return its path and version.
#[pyfunction]
fn cusolver_open(py: Python<'_>, candidates: Vec<String>) -> PyResult<(String, i32)> {
    let library = detached(py, || CuSolver::open(&candidates))?;
    let found = (library.path().to_string(), library.version());
    let mut opened = CUSOLVER.lock();
    // Its handles are made once per device.
    if opened.as_ref().is_none_or(|before| before.path() != library.path()) {
        *opened = Some(library);
    }
    Ok(found)
}

pub fn opened_cusolver() -> pygpukit_core::Result<Arc<CuSolver>> {
    let missing = || Error::LibraryNotFound("cuSOLVER is not available: it has not been opened".into());
    CUSOLVER.lock().clone().ok_or_else(missing)
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<NvrtcResult>()?;
    m.add_function(wrap_pyfunction!(nvrtc_open, m)?)?;
    m.add_function(wrap_pyfunction!(nvrtc_compile, m)?)?;
    m.add_function(wrap_pyfunction!(nvrtc_install_headers, m)?)?;
    m.add_function(wrap_pyfunction!(cublaslt_open, m)?)?;
    m.add_function(wrap_pyfunction!(cusolver_open, m)?)?;
    Ok(())
}
