//! NVRTC: CUDA C++ compiled at run time.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::path::Path;
use std::sync::Arc;

use crate::cuda::loader::{self, Opened, describe};
use crate::error::{Error, Result};

type Program = *mut c_void;

/// `nvrtcResult` codes we act on.
const SUCCESS: i32 = 0;
const BUILTINS_FAILED: i32 = 7;

macro_rules! nvrtc_table {
    ($( $field:ident = $symbol:literal ($($argument:ty),*) -> $result:ty; )*) => {
        struct Table {
            $( $field: unsafe extern "C" fn($($argument),*) -> $result, )*
        }

        impl Table {
            /// The table, or the first symbol that is missing.
            fn resolve(library: &Opened) -> std::result::Result<Table, &'static str> {
                Ok(Table {
                    $( $field: {
                        let address = library.symbol($symbol).ok_or($symbol)?;
                        // SAFETY: the symbol has this signature in every NVRTC since 11.2.
                        unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> $result>(address)
                        }
                    }, )*
                })
            }
        }
    };
}

nvrtc_table! {
    version = "nvrtcVersion"(*mut c_int, *mut c_int) -> i32;
    error_string = "nvrtcGetErrorString"(i32) -> *const c_char;
    create = "nvrtcCreateProgram"(
        *mut Program, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char
    ) -> i32;
    destroy = "nvrtcDestroyProgram"(*mut Program) -> i32;
    add_expression = "nvrtcAddNameExpression"(Program, *const c_char) -> i32;
    compile = "nvrtcCompileProgram"(Program, c_int, *const *const c_char) -> i32;
    lowered_name = "nvrtcGetLoweredName"(Program, *const c_char, *mut *const c_char) -> i32;
    log_size = "nvrtcGetProgramLogSize"(Program, *mut usize) -> i32;
    log = "nvrtcGetProgramLog"(Program, *mut c_char) -> i32;
    ptx_size = "nvrtcGetPTXSize"(Program, *mut usize) -> i32;
    ptx = "nvrtcGetPTX"(Program, *mut c_char) -> i32;
    cubin_size = "nvrtcGetCUBINSize"(Program, *mut usize) -> i32;
    cubin = "nvrtcGetCUBIN"(Program, *mut c_char) -> i32;
}

/// What to make of the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageKind {
    /// Machine code for one architecture: needs an option such as `--gpu-architecture=sm_90a`.
    Cubin,
    /// PTX text, without the trailing NUL.
    Ptx,
}

#[derive(Clone, Debug)]
pub struct Compiled {
    pub image: Vec<u8>,
    /// Warnings and remarks; empty when there were none.
    pub log: String,
    /// The symbol of each name expression, in the order they were given.
    pub lowered: Vec<String>,
}

/// `nvrtcInstallBundledHeaders`: path, flags, and where to put the text of an error.
type InstallHeaders = unsafe extern "C" fn(*const c_char, c_uint, *mut *const c_char) -> i32;

pub struct Nvrtc {
    table: Table,
    /// Since NVRTC 13.3.
    install_headers: Option<InstallHeaders>,
    version: (i32, i32),
    path: String,
}

impl std::fmt::Debug for Nvrtc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Nvrtc({}.{}, {})", self.version.0, self.version.1, self.path)
    }
}

/// Destroys the program on every path out of `compile`.
struct ProgramGuard<'a> {
    table: &'a Table,
    program: Program,
}

impl Drop for ProgramGuard<'_> {
    fn drop(&mut self) {
        // SAFETY: created by us and destroyed once. Its failure has no consequence worth an error.
        unsafe { (self.table.destroy)(&mut self.program) };
    }
}

impl Nvrtc {
    /// What the library of a CUDA major version is called here.
    pub fn file_name(major: u32) -> String {
        if cfg!(windows) { format!("nvrtc64_{major}0_0.dll") } else { format!("libnvrtc.so.{major}") }
    }

    /// Open the first of the candidates (absolute paths or bare names); a copy already loaded is preferred.
    pub fn open(candidates: &[String]) -> Result<Arc<Nvrtc>> {
        let library = loader::open(candidates).map_err(|attempts| missing(&describe(&attempts)))?;
        let table =
            Table::resolve(&library).map_err(|symbol| missing(&format!("{} has no symbol {symbol}.", library.name)))?;
        let path = loader::path_of(table.version as *const c_void).unwrap_or_else(|| library.name.clone());
        preload_builtins(Path::new(&path));
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the numbers are written to live locals.
        let code = unsafe { (table.version)(&mut major, &mut minor) };
        if code != SUCCESS {
            return Err(missing(&format!("{path} does not tell its version (code {code}).")));
        }
        let install_headers = library.symbol("nvrtcInstallBundledHeaders").map(|address| {
            // SAFETY: the symbol has this signature in every NVRTC that has it.
            unsafe { std::mem::transmute::<*mut c_void, InstallHeaders>(address) }
        });
        Ok(Arc::new(Nvrtc { table, install_headers, version: (major, minor), path }))
    }

    pub fn version(&self) -> (i32, i32) {
        self.version
    }

    pub fn path(&self) -> &str {
        &self.path
    }

    /// Unpack the headers that the library carries into a folder; false where it carries none or they cannot be
    /// written. Other processes may do the same: the library takes turns.
    pub fn install_headers(&self, folder: &str) -> Result<bool> {
        let Some(install) = self.install_headers else { return Ok(false) };
        let folder = c_string("the folder of headers", folder)?;
        let mut log = std::ptr::null();
        // SAFETY: the path is a C string that outlives the call, and the text's address is written to a live local.
        Ok(unsafe { install(folder.as_ptr(), 0, &mut log) } == SUCCESS)
    }

    /// Compile `source`, shown as `name` in messages. `headers` are (include name, text) pairs; `expressions` are
    /// C++ names such as `add<float>` whose symbols are wanted.
    pub fn compile(
        &self,
        source: &str,
        name: &str,
        options: &[String],
        headers: &[(String, String)],
        expressions: &[String],
        kind: ImageKind,
    ) -> Result<Compiled> {
        let source = c_string("the source", source)?;
        let name = c_string("the source name", name)?;
        let options = c_strings("a compiler option", options.iter())?;
        let header_names = c_strings("a header name", headers.iter().map(|(name, _)| name))?;
        let header_texts = c_strings("a header", headers.iter().map(|(_, text)| text))?;
        let expressions = c_strings("a name expression", expressions.iter())?;

        let mut program: Program = std::ptr::null_mut();
        let (texts, names) = (pointers(&header_texts), pointers(&header_names));
        // SAFETY: every pointer is to a C string that outlives the call, and the counts match the arrays.
        let code = unsafe {
            (self.table.create)(
                &mut program,
                source.as_ptr(),
                name.as_ptr(),
                c_int::try_from(texts.len()).unwrap_or(c_int::MAX),
                texts.as_ptr(),
                names.as_ptr(),
            )
        };
        self.check("nvrtcCreateProgram", code)?;
        let guard = ProgramGuard { table: &self.table, program };
        for expression in &expressions {
            // SAFETY: the program is alive and the expression is a C string.
            let code = unsafe { (self.table.add_expression)(guard.program, expression.as_ptr()) };
            self.check("nvrtcAddNameExpression", code)?;
        }
        let option_pointers = pointers(&options);
        let count = c_int::try_from(option_pointers.len()).unwrap_or(c_int::MAX);
        // SAFETY: the program is alive; the options are C strings and their count matches.
        let code = unsafe { (self.table.compile)(guard.program, count, option_pointers.as_ptr()) };
        let log = self.log(&guard);
        if code != SUCCESS {
            return Err(Error::Compile { log: self.failure(code, &log) });
        }
        let mut lowered = Vec::with_capacity(expressions.len());
        for expression in &expressions {
            lowered.push(self.lowered(&guard, expression)?);
        }
        let image = match kind {
            ImageKind::Cubin => self.bytes(&guard, "nvrtcGetCUBIN", self.table.cubin_size, self.table.cubin)?,
            ImageKind::Ptx => {
                let mut text = self.bytes(&guard, "nvrtcGetPTX", self.table.ptx_size, self.table.ptx)?;
                while text.last() == Some(&0) {
                    text.pop();
                }
                text
            }
        };
        if image.is_empty() {
            return Err(Error::Value(format!(
                "NVRTC made no {kind:?} image: pass --gpu-architecture=sm_XX for machine code, compute_XX for PTX"
            )));
        }
        Ok(Compiled { image, log, lowered })
    }

    fn lowered(&self, guard: &ProgramGuard<'_>, expression: &CStr) -> Result<String> {
        let mut symbol = std::ptr::null();
        // SAFETY: the program is compiled; the symbol points into it and is copied before it is destroyed.
        unsafe {
            let code = (self.table.lowered_name)(guard.program, expression.as_ptr(), &mut symbol);
            self.check("nvrtcGetLoweredName", code)?;
            if symbol.is_null() {
                return Err(Error::Value(format!("NVRTC has no symbol for {expression:?}")));
            }
            Ok(CStr::from_ptr(symbol).to_string_lossy().into_owned())
        }
    }

    fn bytes(
        &self,
        guard: &ProgramGuard<'_>,
        call: &str,
        size_of: unsafe extern "C" fn(Program, *mut usize) -> i32,
        read: unsafe extern "C" fn(Program, *mut c_char) -> i32,
    ) -> Result<Vec<u8>> {
        let mut size = 0;
        // SAFETY: the program is alive and the size is written to a live local.
        self.check(call, unsafe { size_of(guard.program, &mut size) })?;
        let mut bytes = vec![0u8; size];
        if size > 0 {
            // SAFETY: the buffer has exactly the size the library asked for.
            self.check(call, unsafe { read(guard.program, bytes.as_mut_ptr().cast()) })?;
        }
        Ok(bytes)
    }

    /// The compiler's log; a log that cannot be read is an empty one.
    fn log(&self, guard: &ProgramGuard<'_>) -> String {
        let bytes = self.bytes(guard, "nvrtcGetProgramLog", self.table.log_size, self.table.log).unwrap_or_default();
        let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..end]).trim_end().to_string()
    }

    fn error_text(&self, code: i32) -> String {
        // SAFETY: returns a static C string for every code.
        let text = unsafe { (self.table.error_string)(code) };
        if text.is_null() {
            return format!("NVRTC code {code}");
        }
        // SAFETY: not null, and static.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }

    fn failure(&self, code: i32, log: &str) -> String {
        let mut text = if log.is_empty() { self.error_text(code) } else { log.to_string() };
        if code == BUILTINS_FAILED {
            text.push_str(&format!(
                "\nNVRTC did not find libnvrtc-builtins beside {}: reinstall the package it comes from.",
                self.path
            ));
        }
        text
    }

    fn check(&self, call: &str, code: i32) -> Result<()> {
        if code == SUCCESS {
            return Ok(());
        }
        Err(Error::Compile { log: format!("{call} failed: {} ({code})", self.error_text(code)) })
    }
}

fn missing(detail: &str) -> Error {
    Error::NvrtcNotFound(format!(
        "NVRTC JIT compiler not available. {detail}\nInstall it with `pip install nvidia-cuda-nvrtc` (CUDA 13) or `pip \
         install nvidia-cuda-nvrtc-cu12` (CUDA 12), or set CUDA_PATH to a CUDA toolkit."
    ))
}

/// NVRTC opens its builtins library by bare name at the first compile. Wheels of 13.0 carry no search path for
/// it, so it is loaded from the same folder before that.
fn preload_builtins(nvrtc: &Path) {
    let (Some(folder), Some(file)) = (nvrtc.parent(), nvrtc.file_name().and_then(|f| f.to_str())) else { return };
    let prefix = builtins_prefix(file);
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        if entry.file_name().to_str().is_some_and(|name| name.starts_with(&prefix))
            && let Some(path) = entry.path().to_str()
        {
            // A copy that does not open is not the one NVRTC needs; a compile says what is missing.
            let _ = loader::open_exact(path);
        }
    }
}

/// "libnvrtc-builtins.so.13" beside "libnvrtc.so.13" or "libnvrtc.so.13.0.88": the same major version.
fn builtins_prefix(file: &str) -> String {
    match file.strip_prefix("libnvrtc.so.") {
        Some(version) => format!("libnvrtc-builtins.so.{}", version.split('.').next().unwrap_or_default()),
        None if cfg!(windows) => "nvrtc-builtins64_".to_string(),
        None => "libnvrtc-builtins.so".to_string(),
    }
}

fn c_string(what: &str, text: &str) -> Result<CString> {
    CString::new(text)
        .map_err(|error| Error::Value(format!("{what} holds a NUL character at {}", error.nul_position())))
}

fn c_strings<'a>(what: &str, texts: impl Iterator<Item = &'a String>) -> Result<Vec<CString>> {
    texts.map(|text| c_string(what, text)).collect()
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|s| s.as_ptr()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_lists_the_search_and_the_remedy() {
        let text = Nvrtc::open(&["/nonexistent/libnvrtc.so.99".to_string()]).unwrap_err().to_string();
        assert!(text.starts_with("NVRTC JIT compiler not available"), "{text}");
        for part in ["/nonexistent/libnvrtc.so.99: no such file", "pip install nvidia-cuda-nvrtc"] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_library_that_is_not_nvrtc_is_refused() {
        let text = Nvrtc::open(&["libc.so.6".to_string()]).unwrap_err().to_string();
        assert!(text.starts_with("NVRTC JIT compiler not available") && text.contains("nvrtcVersion"), "{text}");
    }

    #[test]
    fn builtins_of_the_same_major_are_taken() {
        assert_eq!(builtins_prefix("libnvrtc.so.13"), "libnvrtc-builtins.so.13");
        assert_eq!(builtins_prefix("libnvrtc.so.12.9.86"), "libnvrtc-builtins.so.12");
    }
}
