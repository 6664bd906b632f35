//! cuBLASLt: opened when present, with a handle per device, and plans of matrix products.

mod api;
mod gemm_call;
mod plan;
mod saved;
mod shape;

use std::collections::{BTreeMap, HashMap};
use std::ffi::{CStr, c_char, c_void};
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::cuda::loader::{self, describe};
use crate::cuda::status::Status;
use crate::cuda::table::{BASELINE, GetProc, Resolver};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::sync::{SyncKind, may_sync};

use api::LtApi;
pub use gemm_call::GemmCall;
pub use plan::{Algorithm, GemmPlan};
pub use saved::SavedAlgorithm;
pub use shape::{Compute, GemmShape, Operand};

type StatusText = unsafe extern "C" fn(i32) -> *const c_char;

/// The opened library.
pub struct CublasLt {
    api: LtApi,
    status_name: Option<StatusText>,
    version: usize,
    path: String,
    /// `cublasLtHandle_t` by device number. They live as long as the process: device code is loaded through them.
    handles: Mutex<HashMap<i32, usize>>,
    /// The algorithm of each product, by `pin_key`.
    pins: Mutex<BTreeMap<String, SavedAlgorithm>>,
}

impl fmt::Debug for CublasLt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CublasLt({}, {})", dotted(self.version), self.path)
    }
}

/// Check a call of the library: `call!(lt, cublasLtCreate(&mut handle))` is a `Result<()>` that carries the call's name.
macro_rules! call {
    ($lt:expr, $name:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: the arguments have the call's C types; handles are ours and pointers live for the call.
        let status = unsafe { ($lt.api.$name)($($argument),*) };
        $lt.check(stringify!($name), status)
    }};
}
use call;

impl CublasLt {
    /// What the library of a CUDA major version is called here.
    pub fn file_name(major: u32) -> String {
        if cfg!(windows) { format!("cublasLt64_{major}.dll") } else { format!("libcublasLt.so.{major}") }
    }

    /// Open the first of the candidates (absolute paths or bare names); a copy already loaded is preferred.
    pub fn open(candidates: &[String]) -> Result<Arc<CublasLt>> {
        let library = loader::open(candidates).map_err(|attempts| missing(&describe(&attempts)))?;
        let path = library
            .symbol("cublasLtGetVersion")
            .and_then(|address| loader::path_of(address))
            .unwrap_or_else(|| library.name.clone());
        CublasLt::resolve(&Resolver::Symbols(&library), path)
    }

    /// Open over a function that finds the calls.
    ///
    /// # Safety
    /// Every address the function hands out has the signature of its name.
    pub unsafe fn from_proc(get_proc: GetProc) -> Result<Arc<CublasLt>> {
        CublasLt::resolve(&Resolver::Proc(get_proc), "given function".to_string())
    }

    fn resolve(resolver: &Resolver<'_>, path: String) -> Result<Arc<CublasLt>> {
        let find = |name: &str| resolver.find(name, name, BASELINE);
        let lacks = |names: &str| missing(&format!("{path} has no symbol {names}."));
        let address = find("cublasLtGetVersion").ok_or_else(|| lacks("cublasLtGetVersion"))?;
        // SAFETY: this symbol has this signature in every cuBLASLt.
        let get_version = unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> usize>(address) };
        // SAFETY: takes nothing and only returns a number.
        let version = unsafe { get_version() };
        let api = LtApi::resolve(resolver).map_err(|names| lacks(&names.join(", ")))?;
        let status_name = find("cublasLtGetStatusName").map(|address| {
            // SAFETY: this symbol has this signature in every cuBLASLt.
            unsafe { std::mem::transmute::<*mut c_void, StatusText>(address) }
        });
        Ok(Arc::new(CublasLt { api, status_name, version, path, handles: Mutex::default(), pins: Mutex::default() }))
    }

    /// The algorithms of all products planned or loaded so far.
    pub fn pinned(&self) -> Vec<SavedAlgorithm> {
        self.pins.lock().values().cloned().collect()
    }

    /// Let products planned from now on use these algorithms. Those of another version of the library are refused; those
    /// of other devices stay without use.
    pub fn pin(&self, algorithms: Vec<SavedAlgorithm>) -> Result<()> {
        if let Some(other) = algorithms.iter().find(|saved| saved.version != self.version) {
            return Err(Error::Value(format!(
                "these algorithms were chosen by cuBLASLt {}, and this is {}: choose again",
                dotted(other.version),
                dotted(self.version)
            )));
        }
        let mut pins = self.pins.lock();
        for saved in algorithms {
            pins.insert(plan::pin_key(&saved.device, saved.workspace, &saved.shape), saved);
        }
        Ok(())
    }

    /// As the library says it: 10000 * major + 100 * minor + patch (130100 is 13.1.0).
    pub fn version(&self) -> usize {
        self.version
    }

    pub fn path(&self) -> &str {
        &self.path
    }

    /// The handle of a device, whose context is current. Making it may wait for running kernels: the caller has parked
    /// what is resident.
    fn handle(&self, ordinal: i32) -> Result<usize> {
        let mut handles = self.handles.lock();
        if let Some(handle) = handles.get(&ordinal) {
            return Ok(*handle);
        }
        let mut handle = std::ptr::null_mut();
        call!(self, cublasLtCreate(&mut handle))?;
        handles.insert(ordinal, handle as usize);
        Ok(handle as usize)
    }

    #[inline]
    fn check(&self, call: &str, status: Status) -> Result<()> {
        if status == Status::SUCCESS { Ok(()) } else { Err(self.error(call, status.0)) }
    }

    #[cold]
    fn error(&self, call: &str, code: i32) -> Error {
        let name = self.status_name.map(|ask| {
            // SAFETY: the library returns a static C string, or null.
            let text = unsafe { ask(code) };
            // SAFETY: not null, so a C string.
            (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
        });
        let name = name.flatten().unwrap_or_else(|| "cuBLAS status".to_string());
        let advice = match code {
            1 => "The library could not be initialised on this device: check that it is of the driver's CUDA version.",
            3 => "The library could not get the memory it needs: free arrays, or make the pool smaller.",
            7 => "The sizes, strides or alignments do not fit together, or the algorithm was chosen for others.",
            8 => "The library has no code for this GPU: install a newer nvidia-cublas.",
            13 | 14 => "Work before it may have failed; synchronize to see.",
            15 => "The library has no kernel for these types and layouts on this GPU.",
            _ => "",
        };
        let text = format!("{call} failed with {name} ({code}), cuBLASLt {}. {advice}", dotted(self.version));
        Error::Device(text.trim_end().to_string())
    }
}

/// Run with the device's context current and its resident kernels parked: the library may load code.
fn loading<R>(device: &dyn Device, mut run: impl FnMut() -> Result<R>) -> Result<R> {
    may_sync(SyncKind::ModuleLoad, || {
        let mut made = None;
        device.in_context(&mut || {
            made = Some(run()?);
            Ok(())
        })?;
        made.ok_or_else(|| Error::Device("the device did not run what was to run in its context".to_string()))
    })
}

/// "13.1.0" for 130100.
fn dotted(version: usize) -> String {
    format!("{}.{}.{}", version / 10000, version / 100 % 100, version % 100)
}

fn missing(detail: &str) -> Error {
    Error::LibraryNotFound(format!(
        "cuBLASLt is not available. {detail}\nInstall it with `pip install nvidia-cublas` (CUDA 13) or `pip install \
         nvidia-cublas-cu12` (CUDA 12), or set CUDA_PATH to a CUDA toolkit."
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_lists_the_search_and_the_remedy() {
        let text = CublasLt::open(&["/nonexistent/libcublasLt.so.99".to_string()]).unwrap_err().to_string();
        for part in ["cuBLASLt is not available", "/nonexistent/libcublasLt.so.99: no such file", "pip install"] {
            assert!(text.contains(part), "{text}");
        }
    }
}
