//! cuSOLVER: opened when present, with a handle per device, and plans of its factorisations.

mod api;

mod plan;
mod shape;
mod solver_call;

use std::collections::HashMap;
use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::cuda::loader::{self, describe};
use crate::cuda::status::Status;
use crate::cuda::table::{BASELINE, GetProc, Resolver};
use crate::error::{Error, Result};

use api::{GeevApi, SolverApi};

pub use plan::SolverPlan;
pub use shape::{Function, SolverShape};
pub use solver_call::SolverCall;

/// The opened library.
pub struct CuSolver {
    api: SolverApi,
    geev: Option<GeevApi>,
    version: i32,
    path: String,
    /// By device number. They live as long as the process.
    handles: Mutex<HashMap<i32, Arc<DeviceHandle>>>,
}

/// `cusolverDnHandle_t` and `cusolverDnParams_t` of a device. A handle has one stream at a time, so it is locked from
/// setting that to the end of the call.
struct DeviceHandle {
    handle: usize,
    params: usize,
    turn: Mutex<()>,
}

impl fmt::Debug for CuSolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CuSolver({}, {})", dotted(self.version), self.path)
    }
}

/// Check a call of the library: `call!(library, library.api.cusolverDnCreate(&mut handle))` is a `Result<()>` that
/// carries the call's name.
macro_rules! call {
    ($library:expr, $api:expr, $name:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: the arguments have the call's C types; handles are ours and pointers live for the call.
        let status = unsafe { ($api.$name)($($argument),*) };
        $library.check(stringify!($name), status)
    }};
}
use call;

impl CuSolver {
    /// Open the first of the candidates (absolute paths or bare names); a copy already loaded is preferred.
    pub fn open(candidates: &[String]) -> Result<Arc<CuSolver>> {
        let library = loader::open(candidates).map_err(|attempts| missing(&describe(&attempts)))?;
        let path = library
            .symbol("cusolverDnCreate")
            .and_then(|address| loader::path_of(address))
            .unwrap_or_else(|| library.name.clone());
        CuSolver::resolve(&Resolver::Symbols(&library), path)
    }

    /// Open over a function that finds the calls.
    ///
    /// # Safety
    /// Every address the function hands out has the signature of its name.
    pub unsafe fn from_proc(get_proc: GetProc) -> Result<Arc<CuSolver>> {
        CuSolver::resolve(&Resolver::Proc(get_proc), "given function".to_string())
    }

    fn resolve(resolver: &Resolver<'_>, path: String) -> Result<Arc<CuSolver>> {
        let lacks = |names: Vec<&str>| missing(&format!("{path} has no symbol {}.", names.join(", ")));
        let api = SolverApi::resolve(resolver).map_err(lacks)?;
        let geev = GeevApi::resolve(resolver).ok();
        let version = resolver.find("cusolverGetVersion", "cusolverGetVersion", BASELINE).map_or(0, |address| {
            // SAFETY: this symbol has this signature in every cuSOLVER.
            let ask = unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut i32) -> Status>(address) };
            let mut version = 0;
            // SAFETY: writes one integer.
            unsafe { ask(&mut version) };
            version
        });
        Ok(Arc::new(CuSolver { api, geev, version, path, handles: Mutex::default() }))
    }

    /// As the library says it: 1000 * major + 100 * minor + patch (12305 is 12.3.5); 0 where it does not.
    pub fn version(&self) -> i32 {
        self.version
    }

    pub fn path(&self) -> &str {
        &self.path
    }

    /// The handle of a device, whose context is current. Making it may wait for running kernels: the caller has parked
    /// what is resident.
    fn handle(&self, ordinal: i32) -> Result<Arc<DeviceHandle>> {
        let mut handles = self.handles.lock();
        if let Some(handle) = handles.get(&ordinal) {
            return Ok(handle.clone());
        }
        let (mut handle, mut params) = (std::ptr::null_mut(), std::ptr::null_mut());
        call!(self, self.api, cusolverDnCreate(&mut handle))?;
        call!(self, self.api, cusolverDnCreateParams(&mut params))?;
        let made = Arc::new(DeviceHandle { handle: handle as usize, params: params as usize, turn: Mutex::new(()) });
        handles.insert(ordinal, made.clone());
        Ok(made)
    }

    #[inline]
    fn check(&self, call: &str, status: Status) -> Result<()> {
        if status == Status::SUCCESS { Ok(()) } else { Err(self.error(call, status.0)) }
    }

    #[cold]
    fn error(&self, call: &str, code: i32) -> Error {
        let (name, advice) = match code {
            1 => ("CUSOLVER_STATUS_NOT_INITIALIZED", "Check that the library is of the driver's CUDA version."),
            2 => ("CUSOLVER_STATUS_ALLOC_FAILED", "Free arrays, or make the pool smaller."),
            3 => ("CUSOLVER_STATUS_INVALID_VALUE", "The sizes or types do not fit together."),
            4 => ("CUSOLVER_STATUS_ARCH_MISMATCH", "The library has no code for this GPU: install a newer one."),
            6 => ("CUSOLVER_STATUS_EXECUTION_FAILED", "Work before it may have failed; synchronize to see."),
            7 => ("CUSOLVER_STATUS_INTERNAL_ERROR", "Work before it may have failed; synchronize to see."),
            9 => ("CUSOLVER_STATUS_NOT_SUPPORTED", "The library does not compute this on this GPU."),
            31 => ("CUSOLVER_STATUS_INVALID_WORKSPACE", ""),
            _ => ("cuSOLVER status", ""),
        };
        let text = format!("{call} failed with {name} ({code}), cuSOLVER {}. {advice}", dotted(self.version));
        Error::Device(text.trim_end().to_string())
    }
}

/// "12.3.5" for 12305.
fn dotted(version: i32) -> String {
    format!("{}.{}.{}", version / 1000, version / 100 % 10, version % 100)
}

fn missing(detail: &str) -> Error {
    Error::LibraryNotFound(format!(
        "cuSOLVER is not available. {detail}\nInstall it with `pip install \"pygpukit[cusolver]\"` (CUDA 13) or `pip \
         install nvidia-cusolver-cu12` (CUDA 12), or set CUDA_PATH to a CUDA toolkit."
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_lists_the_search_and_the_remedy() {
        let text = CuSolver::open(&["/nonexistent/libcusolver.so.99".to_string()]).unwrap_err().to_string();
        for part in ["cuSOLVER is not available", "/nonexistent/libcusolver.so.99: no such file", "pip install"] {
            assert!(text.contains(part), "{text}");
        }
    }
}
