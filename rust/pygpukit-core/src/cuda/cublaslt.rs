//! cuBLASLt: opened when present.

use std::ffi::c_void;
use std::sync::Arc;

use crate::cuda::loader::{self, describe};
use crate::error::{Error, Result};

#[derive(Debug)]
pub struct CublasLt {
    version: usize,
    path: String,
}

impl CublasLt {
    /// What the library of a CUDA major version is called here.
    pub fn file_name(major: u32) -> String {
        if cfg!(windows) { format!("cublasLt64_{major}.dll") } else { format!("libcublasLt.so.{major}") }
    }

    /// Open the first of the candidates (absolute paths or bare names); a copy already loaded is preferred.
    pub fn open(candidates: &[String]) -> Result<Arc<CublasLt>> {
        let library = loader::open(candidates).map_err(|attempts| missing(&describe(&attempts)))?;
        let address = library
            .symbol("cublasLtGetVersion")
            .ok_or_else(|| missing(&format!("{} has no symbol cublasLtGetVersion.", library.name)))?;
        // SAFETY: this symbol has this signature in every cuBLASLt.
        let get_version = unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> usize>(address) };
        // SAFETY: takes nothing and only returns a number.
        let version = unsafe { get_version() };
        let path = loader::path_of(address).unwrap_or_else(|| library.name.clone());
        Ok(Arc::new(CublasLt { version, path }))
    }

    /// As the library says it: 10000 * major + 100 * minor + patch (130100 is 13.1.0).
    pub fn version(&self) -> usize {
        self.version
    }

    pub fn path(&self) -> &str {
        &self.path
    }
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
