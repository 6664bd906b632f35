//! The CUDA driver: found, checked and opened once; every failure is an error that says what to do.

use std::ffi::{CStr, c_char, c_void};
use std::fmt;
use std::sync::{Arc, Once};

use crate::cuda::loader::{self, Opened, describe};
use crate::cuda::status::{Status, advice};
pub use crate::cuda::table::GetProc;
use crate::cuda::table::{
    Api, BASELINE, EdgeApi, ElapsedApi, GreenApi, ParamInfoApi, Resolver, TensorMapApi, UpdateApi, VersionCall, VmmApi,
};
use crate::error::{Error, Result};

/// Environment variable that names the driver library to use, and no other.
pub const LIBRARY_VARIABLE: &str = "PYGPUKIT_LIBCUDA";

/// How many hardware queues the driver's streams are spread over.
const QUEUES_VARIABLE: &str = "CUDA_DEVICE_MAX_CONNECTIONS";

const INSTALL: &str = "Install the NVIDIA driver 550 or newer (CUDA 12.4) and check that `nvidia-smi` works; in a \
                       container, start it with the GPU (docker run --gpus all). ";

/// The opened driver: its calls, version and file.
pub struct Driver {
    pub api: Api,
    pub vmm: Option<VmmApi>,
    pub green: Option<GreenApi>,
    pub(crate) param_info: Option<ParamInfoApi>,
    pub(crate) elapsed: Option<ElapsedApi>,
    pub(crate) edges: Option<EdgeApi>,
    pub(crate) updates: Option<UpdateApi>,
    pub(crate) tensor_maps: Option<TensorMapApi>,
    version: i32,
    path: String,
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Driver(CUDA {}, {})", dotted(self.version), self.path)
    }
}

/// Check a driver call: `call!(driver.api, cuInit(0))` is a `Result<()>` that carries the call's name.
macro_rules! call {
    ($driver:expr, $api:expr, $name:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: the arguments have the call's C types; handles are ours and pointers live for the call.
        let status = unsafe { ($api.$name)($($argument),*) };
        $driver.check(stringify!($name), status)
    }};
}
pub(crate) use call;

impl Driver {
    /// Find and open the driver, and initialise it.
    pub fn open() -> Result<Arc<Driver>> {
        let library = find_library()?;
        let path = library
            .symbol("cuInit")
            .and_then(|address| loader::path_of(address))
            .unwrap_or_else(|| library.name.clone());
        // The version is asked for by plain symbol: an old driver may refuse questions about newer ones.
        Driver::start(&Resolver::Symbols(&library), &Resolver::of(&library), path)
    }

    /// Open over a given `cuGetProcAddress_v2`.
    ///
    /// # Safety
    /// The function must behave as the driver's: every address it hands out has the signature of its name.
    pub unsafe fn from_proc(get_proc: GetProc) -> Result<Arc<Driver>> {
        let path = loader::path_of(get_proc as *const c_void).unwrap_or_else(|| "given function".to_string());
        let resolver = Resolver::Proc(get_proc);
        Driver::start(&resolver, &resolver, path)
    }

    fn start(version_by: &Resolver<'_>, resolver: &Resolver<'_>, path: String) -> Result<Arc<Driver>> {
        let mut version = 0;
        let call = VersionCall::resolve(version_by).map_err(|missing| lacks(&missing, None, &path))?;
        // SAFETY: the version is written to a live local.
        let status = unsafe { (call.cuDriverGetVersion)(&mut version) };
        if status != Status::SUCCESS {
            return Err(Error::DriverUnsupported(format!(
                "the CUDA driver {path} does not tell its version (code {}). {INSTALL}",
                status.0
            )));
        }
        if version < BASELINE {
            return Err(Error::DriverUnsupported(format!(
                "the CUDA driver {path} speaks CUDA {}; at least {} is needed. Update the NVIDIA driver to 550 or newer.",
                dotted(version),
                dotted(BASELINE)
            )));
        }
        let api = Api::resolve(resolver).map_err(|missing| lacks(&missing, Some(version), &path))?;
        let driver = Driver {
            api,
            vmm: VmmApi::resolve(resolver).ok(),
            green: GreenApi::resolve(resolver).ok(),
            param_info: ParamInfoApi::resolve(resolver).ok(),
            elapsed: ElapsedApi::resolve(resolver).ok(),
            edges: EdgeApi::resolve(resolver).ok(),
            updates: UpdateApi::resolve(resolver).ok(),
            tensor_maps: TensorMapApi::resolve(resolver).ok(),
            version,
            path,
        };
        ask_for_queues();
        // SAFETY: no arguments but the flags, which must be 0.
        match unsafe { (driver.api.cuInit)(0) } {
            Status::NO_DEVICE => Err(driver.no_devices()),
            Status::STUB_LIBRARY => Err(Error::DriverNotFound(format!(
                "CUDA driver not detected: {} is the toolkit's stub, not a driver. Remove the 'stubs' folder from the \
                 library path. {INSTALL}",
                driver.path
            ))),
            status => driver.check("cuInit", status).map(|()| Arc::new(driver)),
        }
    }

    /// CUDA version the driver speaks, as 1000 * major + 10 * minor.
    pub fn version(&self) -> i32 {
        self.version
    }

    /// The file the driver was opened from.
    pub fn path(&self) -> &str {
        &self.path
    }

    pub fn device_count(&self) -> Result<usize> {
        let mut count = 0;
        call!(self, self.api, cuDeviceGetCount(&mut count))?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// Turn a status into a result.
    #[inline]
    pub fn check(&self, call: &'static str, status: Status) -> Result<()> {
        if status == Status::SUCCESS { Ok(()) } else { Err(self.error(call, status)) }
    }

    /// The error of a failed call, with the driver's own words and our advice.
    #[cold]
    pub fn error(&self, call: &'static str, status: Status) -> Error {
        let name = self.words(self.api.cuGetErrorName, status).unwrap_or_else(|| "unknown code".to_string());
        let text = self.words(self.api.cuGetErrorString, status);
        let text = text.unwrap_or_else(|| "the driver has no text for it".to_string());
        let text = match advice(status.0) {
            Some(advice) => format!("{text}. {advice}"),
            None => text,
        };
        Error::Driver { call, code: status.0, name, text }
    }

    pub(crate) fn no_devices(&self) -> Error {
        let visible = match std::env::var("CUDA_VISIBLE_DEVICES") {
            Ok(value) => format!("CUDA_VISIBLE_DEVICES is '{value}'; unset it to see every GPU."),
            Err(_) => "CUDA_VISIBLE_DEVICES is not set.".to_string(),
        };
        Error::NoDevice(format!(
            "No GPU devices found (cudaGetDeviceCount == 0) by the CUDA {} driver {}. {visible} Check `nvidia-smi` and, in a container, that it \
             was started with the GPU.",
            dotted(self.version),
            self.path
        ))
    }

    fn words(&self, ask: unsafe extern "C" fn(i32, *mut *const c_char) -> Status, status: Status) -> Option<String> {
        let mut text = std::ptr::null();
        // SAFETY: the driver writes a pointer to a static C string, or leaves null for a code it does not know.
        unsafe {
            if ask(status.0, &mut text) != Status::SUCCESS || text.is_null() {
                return None;
            }
            Some(CStr::from_ptr(text).to_string_lossy().into_owned())
        }
    }
}

/// Ask for as many hardware queues as there are: streams of different lanes that share one wait for each other. The driver
/// reads this once, when it is initialised; a value that is already set stays.
fn ask_for_queues() {
    static ASKED: Once = Once::new();
    ASKED.call_once(|| {
        if std::env::var_os(QUEUES_VARIABLE).is_none() {
            // SAFETY: Rust code reads the environment under the lock that this takes. C code on other threads could only
            // see the table while it grows, once, before CUDA is first used.
            unsafe { std::env::set_var(QUEUES_VARIABLE, "32") };
        }
    });
}

/// "12.4" for 12040.
pub(crate) fn dotted(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

fn lacks(missing: &[&'static str], version: Option<i32>, path: &str) -> Error {
    let speaks = version.map_or_else(String::new, |v| format!(" (CUDA {})", dotted(v)));
    Error::DriverUnsupported(format!(
        "the CUDA driver {path}{speaks} lacks {}. Update the NVIDIA driver to 550 or newer (CUDA 12.4), or reinstall it.",
        missing.join(", ")
    ))
}

fn find_library() -> Result<Opened> {
    let found = match std::env::var(LIBRARY_VARIABLE) {
        Ok(path) if !path.is_empty() => loader::open_exact(&path).map_err(|attempt| vec![attempt]),
        _ => loader::open(&candidates()),
    };
    found.map_err(|attempts| {
        Error::DriverNotFound(format!(
            "CUDA driver not detected: {} could not be opened. {}\n{INSTALL}If the library is elsewhere, put its \
             absolute path in {LIBRARY_VARIABLE}.",
            LIBRARY_NAME,
            describe(&attempts)
        ))
    })
}

#[cfg(windows)]
const LIBRARY_NAME: &str = "nvcuda.dll";
#[cfg(not(windows))]
const LIBRARY_NAME: &str = "libcuda.so.1";

/// Where the driver may be; macOS has none.
fn candidates() -> Vec<String> {
    if cfg!(target_os = "macos") {
        return Vec::new();
    }
    let mut names = vec![LIBRARY_NAME.to_string()];
    if cfg!(target_os = "linux") {
        let multiarch = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
        let folders = [
            multiarch.as_str(),
            "/usr/lib64",
            "/usr/lib",
            "/usr/lib/wsl/lib",
            "/usr/local/nvidia/lib64",
            "/run/opengl-driver/lib",
        ];
        names.extend(folders.iter().map(|folder| format!("{folder}/{LIBRARY_NAME}")));
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_read_as_people_write_them() {
        assert_eq!(dotted(12040), "12.4");
        assert_eq!(dotted(13000), "13.0");
        assert_eq!(dotted(11080), "11.8");
    }

    #[test]
    fn missing_symbols_are_named_with_the_remedy() {
        let text = lacks(&["cuLaunchKernelEx", "cuFuncLoad"], Some(12080), "/x/libcuda.so.1").to_string();
        for part in ["cuLaunchKernelEx, cuFuncLoad", "CUDA 12.8", "/x/libcuda.so.1", "Update the NVIDIA driver"] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_bare_name_is_tried_before_the_known_folders() {
        let names = candidates();
        assert_eq!(names[0], "libcuda.so.1");
        assert!(names[1..].iter().all(|n| n.starts_with('/') && n.ends_with("/libcuda.so.1")), "{names:?}");
        assert!(names.iter().any(|n| n.contains("/wsl/")));
    }
}
