//! What the tests on the fake driver share: a fresh driver, a device on it, and short ways to make work.
#![allow(dead_code)]

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use pygpukit_core::command::{ArgBlob, Command, Copy, CopyKind, KernelLaunch, LaunchAttributes, Work};
use pygpukit_core::cuda::device::CudaDevice;
use pygpukit_core::cuda::driver::Driver;
use pygpukit_core::cuda::status::Status;
use pygpukit_core::device::{Device, RawStream, SharedDevice};
use pygpukit_core::kernel::{Kernel, KernelMeta, Library};
use pygpukit_core::{Error, Result};

/// The fake driver has one state for the process.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
pub const MIB: usize = 1 << 20;
pub const IMAGE: &[u8] = b".entry add(8,8,8,4)\n.entry bare()\n";

/// A fresh fake driver with these settings.
pub fn fake(settings: &[(&str, &str)]) -> MutexGuard<'static, ()> {
    let guard = ONE_AT_A_TIME.lock();
    fake_cuda::reset();
    for (name, value) in settings {
        fake_cuda::configure(name, value).unwrap();
    }
    guard
}

pub extern "C" fn get_proc(
    symbol: *const std::ffi::c_char,
    address: *mut *mut std::ffi::c_void,
    version: i32,
    flags: u64,
    status: *mut i32,
) -> Status {
    // SAFETY: the arguments are the driver table's own.
    Status(unsafe { fake_cuda::cuGetProcAddress_v2(symbol, address, version, flags, status) })
}

pub fn driver() -> Result<Arc<Driver>> {
    // SAFETY: the fake driver hands out calls with the driver's signatures.
    unsafe { Driver::from_proc(get_proc) }
}

pub fn device() -> Arc<CudaDevice> {
    CudaDevice::open(driver().unwrap(), 0).unwrap()
}

pub fn code_of(error: &Error) -> i32 {
    match error {
        Error::Driver { code, .. } => *code,
        other => panic!("not a driver error: {other:?}"),
    }
}

pub fn wait(device: &CudaDevice, stream: RawStream) {
    for _ in 0..1000 {
        if device.stream_query(stream).unwrap() {
            return;
        }
    }
    panic!("the stream never finished");
}

pub fn copy(kind: CopyKind, dst: u64, src: u64, bytes: usize) -> Work {
    Work::Copy(Copy { kind, dst, src, bytes, keep: None })
}

pub fn read(device: &CudaDevice, stream: RawStream, src: u64, bytes: usize) -> Vec<u8> {
    let mut host = vec![0u8; bytes];
    device.enqueue(stream, &copy(CopyKind::DeviceToHost, host.as_mut_ptr() as u64, src, bytes)).unwrap();
    wait(device, stream);
    host
}

pub fn kernel(device: &Arc<CudaDevice>, entry: &str) -> Arc<Kernel> {
    let shared: SharedDevice = device.clone();
    let library = Library::load(&shared, IMAGE).unwrap();
    Kernel::new(&library, entry, entry, KernelMeta::default()).unwrap()
}

pub fn launch(kernel: &Arc<Kernel>, args: &[u8]) -> KernelLaunch {
    KernelLaunch {
        kernel: kernel.clone(),
        grid: [4, 2, 1],
        block: [128, 1, 1],
        shared: 16,
        attributes: LaunchAttributes::default(),
        args: ArgBlob::from_slice(args),
        arrays: Vec::new(),
    }
}

pub fn command(work: Work) -> Command {
    Command { work, uses: Default::default(), cost_key: 0 }
}
