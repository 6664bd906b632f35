//! Memory for other libraries: a pair of C functions, as torch's pluggable allocators want them.
//!
//! Whoever calls them may hold locks of its own, so they never ask for the interpreter, and a failure is a null pointer.

use std::ffi::c_void;
use std::panic::catch_unwind;
use std::ptr::null_mut;

use pygpukit_core::device::RawStream;
use pygpukit_core::exec::{self, ExecCtx};
use pygpukit_core::memory::external;
use pygpukit_core::runtime::{self, DeviceState};

use crate::inside::Apart;

/// The CPU device's number here, which no GPU has.
const CPU: i32 = -1;

/// Where memory of a device comes from in this thread: the pool of its task, or the device's own.
fn source(device: i32) -> Option<ExecCtx> {
    let is_it =
        |state: &DeviceState| if state.is_cuda() { state.device.props().ordinal == device } else { device == CPU };
    let here = exec::current().filter(|ctx| is_it(ctx.state));
    let there = || runtime::devices().into_iter().find(|state| is_it(state));
    here.map(|ctx| (*ctx).clone()).or_else(|| there().map(ExecCtx::default_for))
}

/// Memory of the pool that is current in this thread, or null.
#[unsafe(no_mangle)]
pub extern "C" fn pygpukit_external_alloc(size: isize, device: i32, stream: *mut c_void) -> *mut c_void {
    let allocate = || {
        let _apart = Apart::enter();
        let bytes = usize::try_from(size).ok()?;
        let address = external::lend(&source(device)?, bytes, RawStream(stream as usize)).ok()?;
        usize::try_from(address).ok()
    };
    catch_unwind(allocate).ok().flatten().map_or(null_mut(), |address| address as *mut c_void)
}

/// Give memory back; it is used again when work on the stream has ended.
#[unsafe(no_mangle)]
pub extern "C" fn pygpukit_external_free(memory: *mut c_void, _size: isize, _device: i32, stream: *mut c_void) {
    let free = || {
        let _apart = Apart::enter();
        // What cannot be freed safely stays.
        let _ = external::give_back(memory as u64, RawStream(stream as usize));
    };
    let _ = catch_unwind(free);
}
