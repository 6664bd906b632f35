//! Declaring the exported calls, and finding them by name.

use std::ffi::{CStr, c_char, c_int, c_void};

use crate::config::base_name;
use crate::state::{INVALID_VALUE, NOT_FOUND, SUCCESS, with_state};

/// One exported call: its name, the CUDA version that brought it, its address.
pub(crate) struct Export {
    pub name: &'static str,
    pub since: i32,
    pub address: *mut c_void,
}

/// Declare exported calls: `needs Context fn cuX(state; a: i32) { ... }`, whose body ends in an `Outcome`.
macro_rules! exports {
    ($( $(since $since:literal)? needs $needs:ident
        fn $name:ident($state:ident $(; $($argument:ident : $kind:ty),* $(,)?)?) $body:block )*) => {
        $(
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($($argument: $kind),*)?) -> std::ffi::c_int {
                $crate::state::enter(
                    $crate::config::base_name(stringify!($name)),
                    $crate::state::Needs::$needs,
                    |$state: &mut $crate::state::State| -> $crate::state::Outcome { $body },
                )
            }
        )*

        pub(crate) fn exports() -> Vec<$crate::api::Export> {
            vec![$( $crate::api::Export {
                name: stringify!($name),
                since: [12000 $(, $since)?].into_iter().last().unwrap_or(12000),
                address: $name as *mut std::ffi::c_void,
            } ),*]
        }
    };
}
pub(crate) use exports;

/// Write a result through a pointer the caller gave.
pub(crate) fn put<T>(target: *mut T, value: T) -> Result<(), i32> {
    if target.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, and the caller vouches for the type as with the driver.
    unsafe { target.write(value) };
    Ok(())
}

/// Read a structure the caller gave.
pub(crate) fn get<T: Copy>(source: *const T) -> Result<T, i32> {
    if source.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, and the caller vouches for the type as with the driver.
    Ok(unsafe { source.read() })
}

/// A string the caller gave.
pub(crate) fn text(source: *const c_char) -> Result<String, i32> {
    if source.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, and a C string as with the driver.
    Ok(unsafe { CStr::from_ptr(source) }.to_string_lossy().into_owned())
}

/// The newest revision of a call that `version` knows.
fn find(name: &str, version: i32) -> Option<*mut c_void> {
    let (withheld, known) = with_state(|state| (state.config.withhold.iter().any(|w| w == name), state.config.version));
    if withheld {
        return None;
    }
    [
        crate::device::exports(),
        crate::memory::exports(),
        crate::stream::exports(),
        crate::kernel::exports(),
        crate::graph::exports(),
        crate::green::exports(),
        crate::cublaslt::exports(),
        crate::cublaslt::questions(),
        crate::cusolver::exports(),
        crate::cusolver::typed::exports(),
        crate::tensor_map::exports(),
    ]
    .into_iter()
    .flatten()
    .filter(|export| base_name(export.name) == name && export.since <= version.min(known))
    .max_by_key(|export| export.since)
    .map(|export| export.address)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetProcAddress_v2(
    symbol: *const c_char,
    address: *mut *mut c_void,
    version: c_int,
    _flags: u64,
    status: *mut c_int,
) -> c_int {
    let Ok(name) = text(symbol) else { return INVALID_VALUE };
    let found = find(&name, version);
    if put(address, found.unwrap_or(std::ptr::null_mut())).is_err() {
        return INVALID_VALUE;
    }
    if !status.is_null() {
        // SAFETY: not null; 0 is found, 1 is not found.
        unsafe { status.write(c_int::from(found.is_none())) };
    }
    if found.is_some() { SUCCESS } else { NOT_FOUND }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetProcAddress(
    symbol: *const c_char,
    address: *mut *mut c_void,
    version: c_int,
    flags: u64,
) -> c_int {
    // SAFETY: the same contract, without the status.
    unsafe { cuGetProcAddress_v2(symbol, address, version, flags, std::ptr::null_mut()) }
}
