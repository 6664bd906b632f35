//! Opening shared libraries at run time: prefer a copy the process already has, and remember every attempt.

use std::ffi::{CString, c_void};
use std::fmt;
use std::mem::ManuallyDrop;
use std::path::Path;

use libloading::Library;

/// One candidate that did not open, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    pub name: String,
    pub reason: String,
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.reason)
    }
}

/// The list of attempts as the indented lines of an error text.
pub(crate) fn describe(attempts: &[Attempt]) -> String {
    if attempts.is_empty() {
        return "Searched: nothing, this platform has no such library.".to_string();
    }
    let mut text = "Searched:".to_string();
    for attempt in attempts {
        text.push_str(&format!("\n  {attempt}"));
    }
    text
}

/// A library that stays loaded for the life of the process: unloading one that holds driver state is not safe.
pub(crate) struct Opened {
    library: ManuallyDrop<Library>,
    /// The candidate that opened.
    pub name: String,
}

impl Opened {
    /// Address of a symbol, or None.
    pub fn symbol(&self, name: &str) -> Option<*mut c_void> {
        let name = CString::new(name).ok()?;
        // SAFETY: only the address is taken; whoever calls it gives it its C signature.
        let found = unsafe { self.library.get::<*mut c_void>(name.as_bytes_with_nul()) }.ok()?;
        (!found.is_null()).then_some(*found)
    }
}

/// Open the first of the candidates (absolute paths or bare names), in order; a copy of any of them that the
/// process has already loaded goes first, since two copies of a CUDA library in one process do not mix.
pub(crate) fn open(candidates: &[String]) -> Result<Opened, Vec<Attempt>> {
    for candidate in candidates {
        if let Some(library) = already_loaded(candidate) {
            return Ok(Opened { library: ManuallyDrop::new(library), name: candidate.clone() });
        }
    }
    let mut attempts = Vec::new();
    for candidate in candidates {
        match open_exact(candidate) {
            Ok(opened) => return Ok(opened),
            Err(attempt) => attempts.push(attempt),
        }
    }
    Err(attempts)
}

/// Open exactly this library.
pub(crate) fn open_exact(candidate: &str) -> Result<Opened, Attempt> {
    let failed = |reason: String| Attempt { name: candidate.to_string(), reason };
    if candidate.is_empty() || candidate.contains('\0') {
        return Err(failed("not a file name".to_string()));
    }
    if Path::new(candidate).is_absolute() && !Path::new(candidate).exists() {
        return Err(failed("no such file".to_string()));
    }
    match load(candidate) {
        Ok(library) => Ok(Opened { library: ManuallyDrop::new(library), name: candidate.to_string() }),
        Err(error) => Err(failed(reason_of(candidate, &error))),
    }
}

/// The loader repeats the file name before its reason; the attempt has it already.
fn reason_of(candidate: &str, error: &libloading::Error) -> String {
    let mut reason = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        reason = inner.to_string();
        source = inner.source();
    }
    reason.strip_prefix(candidate).map_or(reason.as_str(), |rest| rest.trim_start_matches([':', ' '])).to_string()
}

#[cfg(unix)]
fn load(candidate: &str) -> Result<Library, libloading::Error> {
    use libloading::os::unix;
    // SAFETY: opening runs the library's initialisers; the candidates are the vendor's own libraries.
    unsafe { unix::Library::open(Some(candidate), unix::RTLD_NOW | unix::RTLD_LOCAL) }.map(Library::from)
}

#[cfg(windows)]
fn load(candidate: &str) -> Result<Library, libloading::Error> {
    use libloading::os::windows;
    // Not from the working directory; with an absolute path, its neighbours from its own folder.
    let flags = if Path::new(candidate).is_absolute() {
        windows::LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR | windows::LOAD_LIBRARY_SEARCH_DEFAULT_DIRS
    } else {
        windows::LOAD_LIBRARY_SEARCH_DEFAULT_DIRS
    };
    // SAFETY: opening runs the library's initialisers; the candidates are the vendor's own libraries.
    unsafe { windows::Library::load_with_flags(candidate, flags) }.map(Library::from)
}

#[cfg(unix)]
fn already_loaded(candidate: &str) -> Option<Library> {
    use libloading::os::unix;
    // The SONAME of these libraries is their file name.
    let name = Path::new(candidate).file_name()?;
    // SAFETY: nothing new is loaded and no initialiser runs.
    unsafe { unix::Library::open(Some(name), unix::RTLD_NOW | unix::RTLD_LOCAL | libc::RTLD_NOLOAD) }
        .ok()
        .map(Library::from)
}

#[cfg(windows)]
fn already_loaded(candidate: &str) -> Option<Library> {
    let name = Path::new(candidate).file_name()?;
    libloading::os::windows::Library::open_already_loaded(name).ok().map(Library::from)
}

/// The file that holds this address, where the platform can say.
#[cfg(unix)]
pub(crate) fn path_of(address: *const c_void) -> Option<String> {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: dladdr accepts any address and fills the record when it returns non-zero.
    let info = unsafe {
        if libc::dladdr(address, info.as_mut_ptr()) == 0 {
            return None;
        }
        info.assume_init()
    };
    if info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: a non-null name from dladdr is a C string owned by the loader.
    let name = unsafe { std::ffi::CStr::from_ptr(info.dli_fname) };
    Some(name.to_string_lossy().into_owned())
}

#[cfg(windows)]
pub(crate) fn path_of(_address: *const c_void) -> Option<String> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_attempt_is_remembered_with_its_reason() {
        let candidates = ["/nonexistent/libpgk_none.so".to_string(), "libpgk_none.so.9".to_string(), String::new()];
        let attempts = open(&candidates).err().unwrap();
        assert_eq!(attempts.len(), 3);
        assert_eq!(attempts[0].to_string(), "/nonexistent/libpgk_none.so: no such file");
        assert_eq!(attempts[1].name, "libpgk_none.so.9");
        assert!(!attempts[1].reason.is_empty() && !attempts[1].reason.starts_with("libpgk_none"), "{}", attempts[1]);
        let text = describe(&attempts);
        assert!(text.starts_with("Searched:\n  /nonexistent/"), "{text}");
        assert!(describe(&[]).contains("nothing"));
    }

    #[test]
    fn a_file_that_is_not_a_library_says_so() {
        let path = std::env::temp_dir().join(format!("pgk-not-a-library-{}.so", std::process::id()));
        std::fs::write(&path, b"plain text").unwrap();
        let attempt = open_exact(path.to_str().unwrap()).err().unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(!attempt.reason.is_empty() && attempt.reason != "no such file", "{attempt}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_copy_in_the_process_is_preferred_and_its_path_is_known() {
        // libc is always there; the directory in the candidate does not exist.
        let opened = open(&["/nonexistent/libc.so.6".to_string()]).ok().unwrap();
        let address = opened.symbol("malloc").unwrap();
        let path = path_of(address).unwrap();
        assert!(path.starts_with('/') && path.contains("libc"), "{path}");
        assert!(opened.symbol("pgk_no_such_symbol").is_none());
        assert!(opened.symbol("nul\0inside").is_none());
    }
}
