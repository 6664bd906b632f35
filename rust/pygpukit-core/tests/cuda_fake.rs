//! The CUDA path of the core on the fake driver: opening, memory, streams, work, kernels, graphs, faults.
#![cfg(unix)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};
use proptest::prelude::*;
use pygpukit_core::command::{ArgBlob, Command, Copy, CopyKind, Fill, HostFn, KernelLaunch, LaunchAttributes, Work};
use pygpukit_core::cuda::cublaslt::CublasLt;
use pygpukit_core::cuda::device::{CudaDevice, is_sticky};
use pygpukit_core::cuda::driver::Driver;
use pygpukit_core::cuda::status::Status;
use pygpukit_core::device::{
    Device, DeviceKind, GraphNode, RawEvent, RawGraph, RawKernel, RawLibrary, RawStream, SharedDevice,
};
use pygpukit_core::kernel::{Kernel, KernelMeta, Library};
use pygpukit_core::{Error, Result};

/// The fake driver has one state for the process.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
const MIB: usize = 1 << 20;
const IMAGE: &[u8] = b".entry add(8,8,8,4)\n.entry bare()\n";

/// A fresh fake driver with these settings.
fn fake(settings: &[(&str, &str)]) -> MutexGuard<'static, ()> {
    let guard = ONE_AT_A_TIME.lock();
    fake_cuda::reset();
    for (name, value) in settings {
        fake_cuda::configure(name, value).unwrap();
    }
    guard
}

extern "C" fn get_proc(
    symbol: *const std::ffi::c_char,
    address: *mut *mut std::ffi::c_void,
    version: i32,
    flags: u64,
    status: *mut i32,
) -> Status {
    // SAFETY: the arguments are the driver table's own.
    Status(unsafe { fake_cuda::cuGetProcAddress_v2(symbol, address, version, flags, status) })
}

fn driver() -> Result<Arc<Driver>> {
    // SAFETY: the fake driver hands out calls with the driver's signatures.
    unsafe { Driver::from_proc(get_proc) }
}

fn device() -> Arc<CudaDevice> {
    CudaDevice::open(driver().unwrap(), 0).unwrap()
}

fn code_of(error: &Error) -> i32 {
    match error {
        Error::Driver { code, .. } => *code,
        other => panic!("not a driver error: {other:?}"),
    }
}

fn wait(device: &CudaDevice, stream: RawStream) {
    for _ in 0..1000 {
        if device.stream_query(stream).unwrap() {
            return;
        }
    }
    panic!("the stream never finished");
}

fn copy(kind: CopyKind, dst: u64, src: u64, bytes: usize) -> Work {
    Work::Copy(Copy { kind, dst, src, bytes, keep: None })
}

fn read(device: &CudaDevice, stream: RawStream, src: u64, bytes: usize) -> Vec<u8> {
    let mut host = vec![0u8; bytes];
    device.enqueue(stream, &copy(CopyKind::DeviceToHost, host.as_mut_ptr() as u64, src, bytes)).unwrap();
    wait(device, stream);
    host
}

fn kernel(device: &Arc<CudaDevice>, entry: &str) -> Arc<Kernel> {
    let shared: SharedDevice = device.clone();
    let library = Library::load(&shared, IMAGE).unwrap();
    Kernel::new(&library, entry, entry, KernelMeta::default()).unwrap()
}

fn launch(kernel: &Arc<Kernel>, args: &[u8]) -> KernelLaunch {
    KernelLaunch {
        kernel: kernel.clone(),
        grid: [4, 2, 1],
        block: [128, 1, 1],
        shared: 16,
        attributes: LaunchAttributes::default(),
        args: ArgBlob::from_slice(args),
    }
}

fn command(work: Work) -> Command {
    Command { work, uses: Default::default(), cost_key: 0 }
}

// -- opening -----------------------------------------------------------------------------------------------

#[test]
fn a_working_driver_tells_version_path_and_devices() {
    let _guard = fake(&[("DEVICES", "3"), ("VERSION", "12080")]);
    let driver = driver().unwrap();
    assert_eq!((driver.version(), driver.device_count().unwrap()), (12080, 3));
    assert!(driver.path().contains("cuda_fake"), "{}", driver.path());
    let device = CudaDevice::open(driver, 2).unwrap();
    let props = device.props();
    assert_eq!((props.kind, props.ordinal, props.capability), (DeviceKind::Cuda, 2, (9, 0)));
    assert_eq!(props.uuid, "GPU-fafafafa-fafa-fafa-fafa-fafafafafa02");
    assert_eq!(props.pci_bus_id, "0000:03:00.0");
    assert_eq!((props.sm_count, props.max_block, props.driver_version), (132, [1024, 1024, 64], 12080));
    for feature in ["vmm", "cooperative", "clusters", "green_contexts"] {
        assert!(props.features.contains(&feature), "{:?}", props.features);
    }
}

#[test]
fn an_old_driver_is_refused_with_its_version() {
    let _guard = fake(&[("VERSION", "12030")]);
    let error = driver().unwrap_err();
    assert!(matches!(error, Error::DriverUnsupported(_)));
    let text = error.to_string();
    assert!(text.contains("CUDA 12.3") && text.contains("12.4") && text.contains("Update"), "{text}");
    assert_eq!(fake_cuda::counter("cuInit"), 0);
}

#[test]
fn a_missing_required_symbol_is_named() {
    let _guard = fake(&[("WITHHOLD", "cuLaunchKernelEx,cuMemGetInfo_v2")]);
    let error = driver().unwrap_err();
    assert!(matches!(error, Error::DriverUnsupported(_)));
    let text = error.to_string();
    assert!(text.contains("cuLaunchKernelEx") && text.contains("cuMemGetInfo") && text.contains("13.0"), "{text}");
}

#[test]
fn missing_optional_symbols_degrade_by_name() {
    let _guard = fake(&[("WITHHOLD", "cuMemCreate,cuGreenCtxCreate,cuKernelGetParamInfo"), ("VERSION", "12060")]);
    let device = device();
    assert_eq!(device.vmm_granularity(), None);
    assert!(!device.props().features.iter().any(|f| matches!(*f, "vmm" | "green_contexts")));
    assert!(matches!(device.reserve(2 * MIB).unwrap_err(), Error::Device(_)));
    assert_eq!(kernel(&device, "add").attributes().params, None);
    let address = device.plain_alloc(100).unwrap();
    device.plain_free(address).unwrap();
}

#[test]
fn no_devices_is_a_fixed_sentence() {
    let _guard = fake(&[("DEVICES", "0")]);
    let error = driver().unwrap_err();
    assert!(matches!(error, Error::NoDevice(_)));
    assert!(error.to_string().starts_with("No GPU devices found"), "{error}");
}

#[test]
fn a_device_number_out_of_range_says_what_there_is() {
    let _guard = fake(&[("DEVICES", "2")]);
    let driver = driver().unwrap();
    for ordinal in [-1, 2, i32::MAX] {
        let error = CudaDevice::open(driver.clone(), ordinal).unwrap_err();
        assert!(matches!(error, Error::NoDevice(_)));
        assert!(error.to_string().contains(&format!("number {ordinal}: the driver offers 2")), "{error}");
    }
}

#[test]
fn a_gpu_below_sm_80_is_refused_by_name() {
    let _guard = fake(&[("CAPABILITY", "7.5")]);
    let error = CudaDevice::open(driver().unwrap(), 0).unwrap_err();
    assert!(matches!(error, Error::DeviceUnsupported(_)));
    let text = error.to_string();
    assert!(text.contains("Fake GPU") && text.contains("7.5") && text.contains("8.0"), "{text}");
    assert_eq!(fake_cuda::counter("cuDevicePrimaryCtxRetain"), 0);
}

#[test]
fn any_call_that_fails_while_opening_is_an_error_not_a_panic() {
    for call in [
        "cuInit",
        "cuDriverGetVersion",
        "cuDeviceGetCount",
        "cuDeviceGet",
        "cuDeviceGetName",
        "cuDeviceGetAttribute",
        "cuDeviceTotalMem",
        "cuDeviceGetUuid",
        "cuDeviceGetPCIBusId",
        "cuDevicePrimaryCtxRetain",
        "cuCtxGetCurrent",
        "cuCtxSetCurrent",
        "cuCtxGetStreamPriorityRange",
        "cuStreamCreateWithPriority",
    ] {
        let _guard = fake(&[("FAIL", &format!("{call}:1:999:*"))]);
        let result = driver().and_then(|d| CudaDevice::open(d, 0).map(drop));
        let text = result.err().unwrap_or_else(|| panic!("{call} failed unseen")).to_string();
        assert!(text.contains(call) && text.contains("999") || text.contains("version"), "{text}");
    }
}

/// The shared object that cargo builds beside the tests.
fn fake_library() -> std::path::PathBuf {
    match std::env::var_os("FAKECUDA_LIB") {
        Some(path) => path.into(),
        None => std::env::current_exe().unwrap().with_file_name("libfake_cuda.so"),
    }
}

#[test]
fn the_loader_opens_the_named_library_and_reports_a_missing_one() {
    let _guard = fake(&[]);
    // SAFETY: tests that read or write the environment hold the lock.
    let open_as = |path: &str| unsafe {
        std::env::set_var("PYGPUKIT_LIBCUDA", path);
        let result = Driver::open();
        std::env::remove_var("PYGPUKIT_LIBCUDA");
        result
    };
    let error = open_as("/nonexistent/libcuda.so.1").unwrap_err();
    assert!(matches!(error, Error::DriverNotFound(_)));
    let text = error.to_string();
    assert!(text.starts_with("CUDA driver not detected"), "{text}");
    for part in ["/nonexistent/libcuda.so.1: no such file", "Install the NVIDIA driver", "PYGPUKIT_LIBCUDA"] {
        assert!(text.contains(part), "{text}");
    }
    let library = fake_library();
    if !library.exists() {
        println!("skipped: no shared object at {}", library.display());
        return;
    }
    let driver = open_as(library.to_str().unwrap()).unwrap();
    assert_eq!(driver.path(), library.to_str().unwrap());
    let device = CudaDevice::open(driver, 0).unwrap();
    assert_eq!(device.props().name, "Fake GPU");
    let cublas = CublasLt::open(&[library.to_str().unwrap().to_string()]).unwrap();
    assert_eq!((cublas.version(), cublas.path()), (130_100, library.to_str().unwrap()));
}

// -- memory ------------------------------------------------------------------------------------------------

#[test]
fn mapped_memory_is_used_and_given_back() {
    let _guard = fake(&[("MEMORY", "16777216")]);
    let device = device();
    let stream = device.stream_create(0).unwrap();
    let grain = device.vmm_granularity().unwrap();
    assert_eq!(grain, 2 * MIB);
    let va = device.reserve(4 * grain).unwrap();
    let handles = [device.create(grain).unwrap(), device.create(2 * grain).unwrap()];
    assert_eq!(device.memory_info().unwrap(), (16 * MIB - 3 * grain, 16 * MIB));
    device.map(va, grain, handles[0]).unwrap();
    device.map(va + grain as u64, 2 * grain, handles[1]).unwrap();
    // A copy may cross from one mapping to its neighbour.
    let fill = Fill { dst: va, value: 0x0102_0304, width: 4, count: 3 * grain / 4 };
    device.enqueue(stream, &Work::Fill(fill)).unwrap();
    assert_eq!(read(&device, stream, va + grain as u64 - 4, 8), [4, 3, 2, 1, 4, 3, 2, 1]);
    device.unmap(va, grain).unwrap();
    device.unmap(va + grain as u64, 2 * grain).unwrap();
    for (handle, bytes) in [(handles[0], grain), (handles[1], 2 * grain)] {
        device.release(handle, bytes).unwrap();
    }
    device.unreserve(va, 4 * grain).unwrap();
    assert_eq!(device.memory_info().unwrap().0, 16 * MIB);
}

#[test]
fn wrong_use_of_address_space_is_refused() {
    let _guard = fake(&[("MEMORY", "16777216")]);
    let device = device();
    let grain = device.vmm_granularity().unwrap();
    let va = device.reserve(2 * grain).unwrap();
    let handle = device.create(grain).unwrap();
    assert_eq!(code_of(&device.create(grain / 2).unwrap_err()), 1);
    assert_eq!(code_of(&device.create(64 * grain).unwrap_err()), 2);
    assert!(device.create(64 * grain).unwrap_err().is_out_of_memory());
    assert_eq!(code_of(&device.map(va + 4096, grain, handle).unwrap_err()), 1);
    assert_eq!(code_of(&device.unmap(va, grain).unwrap_err()), 1);
    device.map(va, grain, handle).unwrap();
    assert_eq!(code_of(&device.map(va, grain, handle).unwrap_err()), 1);
    assert_eq!(code_of(&device.unreserve(va, 2 * grain).unwrap_err()), 1);
    device.unmap(va, grain).unwrap();
    device.release(handle, grain).unwrap();
    assert_eq!(code_of(&device.release(handle, grain).unwrap_err()), 1);
}

#[test]
fn the_nth_creation_fails_and_the_next_works() {
    let _guard = fake(&[("FAIL", "cuMemCreate:2:2")]);
    let device = device();
    let handle = device.create(2 * MIB).unwrap();
    let error = device.create(2 * MIB).unwrap_err();
    assert!(error.is_out_of_memory());
    let text = error.to_string();
    for part in ["cuMemCreate", "CUDA_ERROR_OUT_OF_MEMORY", "(2)", "out of memory", "Free arrays"] {
        assert!(text.contains(part), "{text}");
    }
    device.release(handle, 2 * MIB).unwrap();
    device.create(2 * MIB).unwrap();
}

#[test]
fn memory_that_may_not_be_exported_is_made_without() {
    let _guard = fake(&[("FAIL", "cuMemCreate:1:801")]);
    let device = device();
    device.create(2 * MIB).unwrap();
    assert_eq!(fake_cuda::counter("cuMemCreate"), 2);
    device.create(2 * MIB).unwrap();
    assert_eq!(fake_cuda::counter("cuMemCreate"), 3);
}

#[test]
fn a_mapping_that_cannot_be_opened_is_taken_back() {
    let _guard = fake(&[("FAIL", "cuMemSetAccess:1:1")]);
    let device = device();
    let va = device.reserve(2 * MIB).unwrap();
    let handle = device.create(2 * MIB).unwrap();
    let error = device.map(va, 2 * MIB, handle).unwrap_err();
    assert!(matches!(error, Error::Driver { call: "cuMemSetAccess", .. }));
    device.map(va, 2 * MIB, handle).unwrap();
}

#[test]
fn whole_allocations_wait_for_their_own_stream() {
    let _guard = fake(&[("LAZY", "3"), ("MEMORY", "1048576")]);
    let device = device();
    let address = device.plain_alloc(1000).unwrap();
    assert!(device.plain_alloc(MIB).unwrap_err().is_out_of_memory());
    let stream = device.stream_create(0).unwrap();
    device.enqueue(stream, &Work::Fill(Fill { dst: address, value: 7, width: 1, count: 1000 })).unwrap();
    assert_eq!(read(&device, stream, address, 1000), [7; 1000]);
    device.plain_free(address).unwrap();
    assert_eq!(device.memory_info().unwrap().0, MIB);
    assert_eq!(code_of(&device.plain_free(address).unwrap_err()), 1);
}

#[test]
fn pinned_memory_is_writable_and_freed_once() {
    let _guard = fake(&[]);
    let device = device();
    let pointer = device.host_alloc(4096).unwrap();
    // SAFETY: 4096 bytes were just allocated.
    unsafe { pointer.write_bytes(1, 4096) };
    device.host_free(pointer, 4096).unwrap();
    assert_eq!(code_of(&device.host_free(pointer, 4096).unwrap_err()), 1);
}

// -- work --------------------------------------------------------------------------------------------------

#[test]
fn copies_and_fills_round_trip() {
    let _guard = fake(&[]);
    let device = device();
    let stream = device.stream_create(0).unwrap();
    let address = device.plain_alloc(64).unwrap();
    let host: Vec<u8> = (0..32).collect();
    device.enqueue(stream, &copy(CopyKind::HostToDevice, address, host.as_ptr() as u64, 32)).unwrap();
    device.enqueue(stream, &copy(CopyKind::DeviceToDevice, address + 32, address, 32)).unwrap();
    device.enqueue(stream, &Work::Fill(Fill { dst: address + 4, value: 0xffff_abcd, width: 2, count: 2 })).unwrap();
    let back = read(&device, stream, address, 64);
    assert_eq!(back[32..], host);
    assert_eq!(back[..10], [0, 1, 2, 3, 0xcd, 0xab, 0xcd, 0xab, 8, 9]);
    // Nothing to do is nothing done.
    device.enqueue(stream, &copy(CopyKind::HostToDevice, 1, 1, 0)).unwrap();
    device.enqueue(stream, &Work::Fill(Fill { dst: 1, value: 0, width: 4, count: 0 })).unwrap();
    let error = device.enqueue(stream, &Work::Fill(Fill { dst: address, value: 0, width: 8, count: 1 })).unwrap_err();
    assert!(matches!(error, Error::Value(_)), "{error}");
    let error = device.enqueue(stream, &copy(CopyKind::DeviceToDevice, address, address + 60, 8)).unwrap_err();
    assert_eq!(code_of(&error), 1);
}

#[test]
fn the_default_stream_is_refused() {
    let _guard = fake(&[]);
    let device = device();
    let error = device.enqueue(RawStream(0), &Work::Fill(Fill { dst: 0, value: 0, width: 1, count: 1 })).unwrap_err();
    assert!(matches!(error, Error::Launch(_)));
}

#[test]
fn a_launch_carries_its_argument_block_and_nothing_it_did_not_ask_for() {
    let _guard = fake(&[]);
    let device = device();
    let stream = device.stream_create(0).unwrap();
    let add = kernel(&device, "add");
    assert_eq!(add.attributes().params, Some(vec![(0, 8), (8, 8), (16, 8), (24, 4)]));
    assert_eq!((add.attributes().registers, add.attributes().max_threads), (32, 1024));
    let args: Vec<u8> = (0..28).collect();
    device.enqueue(stream, &Work::Kernel(launch(&add, &args))).unwrap();
    let mut asked = launch(&add, &args);
    asked.attributes =
        LaunchAttributes { cluster: [2, 1, 1], cooperative: true, programmatic: true, priority: Some(-3) };
    device.enqueue(stream, &Work::Kernel(asked)).unwrap();
    let bare = kernel(&device, "bare");
    device.enqueue(stream, &Work::Kernel(launch(&bare, &[]))).unwrap();
    let log = fake_cuda::launches();
    assert_eq!(log.len(), 3);
    assert_eq!((log[0].entry.as_str(), log[0].grid, log[0].block, log[0].shared), ("add", [4, 2, 1], [128, 1, 1], 16));
    assert_eq!(log[0].args, args);
    assert_eq!(log[0].attributes, []);
    let attributes = [(4, [2, 1, 1]), (2, [1, 0, 0]), (8, [-3i32 as u32, 0, 0]), (6, [1, 0, 0])];
    assert_eq!(log[1].attributes, attributes);
    assert_eq!((log[2].entry.as_str(), log[2].args.len()), ("bare", 0));
}

#[test]
fn a_launch_asks_the_driver_once_and_needs_no_context() {
    let _guard = fake(&[]);
    let device = device();
    let stream = device.stream_create(0).unwrap();
    let add = kernel(&device, "add");
    let work = Work::Kernel(launch(&add, &[0; 28]));
    let asked = || ["cuCtxGetCurrent", "cuCtxSetCurrent"].map(fake_cuda::counter);
    let before = asked();
    // A thread that never had a context.
    std::thread::scope(|scope| scope.spawn(|| device.enqueue(stream, &work).unwrap()).join().unwrap());
    assert_eq!(asked(), before);
    assert_eq!(fake_cuda::launches().len(), 1);
}

#[test]
fn a_driver_that_wants_a_context_for_a_launch_gets_it() {
    let _guard = fake(&[]);
    let device = device();
    let stream = device.stream_create(0).unwrap();
    let add = kernel(&device, "add");
    fake_cuda::configure("FAIL", "cuLaunchKernelEx:1:201").unwrap();
    device.enqueue(stream, &Work::Kernel(launch(&add, &[0; 28]))).unwrap();
    assert_eq!(fake_cuda::launches().len(), 1);
}

#[test]
fn bad_launches_are_errors_that_name_the_call() {
    let _guard = fake(&[]);
    let device = device();
    let stream = device.stream_create(0).unwrap();
    let add = kernel(&device, "add");
    let mut large = launch(&add, &[0; 28]);
    large.block = [2048, 1, 1];
    let mut greedy = launch(&add, &[0; 28]);
    greedy.shared = 100_000;
    for work in [large, greedy.clone(), launch(&add, &[0; 8])] {
        let error = device.enqueue(stream, &Work::Kernel(work)).unwrap_err();
        assert!(error.to_string().contains("cuLaunchKernelEx failed with CUDA_ERROR_INVALID_VALUE (1)"), "{error}");
    }
    add.allow_shared(100_000).unwrap();
    device.enqueue(stream, &Work::Kernel(greedy)).unwrap();
    assert!(matches!(add.allow_shared(300_000).unwrap_err(), Error::Launch(_)));
    assert_eq!(add.occupancy(256, 0).unwrap(), 8);
    assert_eq!(add.occupancy(256, 100_000).unwrap(), 2);
}

#[test]
fn images_and_names_that_do_not_exist_say_so() {
    let _guard = fake(&[]);
    let device = device();
    for image in [&b"not an image"[..], b"\x7fELF\x02\x01\x01\0", b""] {
        let error = device.library_load(image).unwrap_err();
        assert_eq!(code_of(&error), 200);
        assert!(error.to_string().contains("compile it again"), "{error}");
    }
    let library = device.library_load(IMAGE).unwrap();
    let error = device.kernel_get(library, "mul").unwrap_err();
    assert!(error.to_string().contains("no kernel 'mul'") && error.to_string().contains("extern"), "{error}");
    assert!(matches!(device.kernel_get(library, "a\0b").unwrap_err(), Error::Value(_)));
    device.library_unload(library);
    device.library_unload(library);
    // The second unload had nobody to tell; the next call does.
    assert_eq!(code_of(&device.memory_info().unwrap_err()), 400);
    device.memory_info().unwrap();
}

#[test]
fn another_librarys_context_is_put_back() {
    let _guard = fake(&[("DEVICES", "2")]);
    let driver = driver().unwrap();
    let first = CudaDevice::open(driver.clone(), 0).unwrap();
    let second = CudaDevice::open(driver.clone(), 1).unwrap();
    let current = || {
        let mut context = std::ptr::null_mut();
        // SAFETY: the context is written to a live local.
        assert_eq!(unsafe { (driver.api.cuCtxGetCurrent)(&mut context) }, Status::SUCCESS);
        context as usize
    };
    assert_eq!(current(), first.context());
    second.memory_info().unwrap();
    assert_eq!(current(), first.context());
    first.memory_info().unwrap();
    assert_eq!(current(), first.context());
}

// -- streams and events ------------------------------------------------------------------------------------

#[test]
fn lazy_work_is_not_ready_until_asked_often_enough() {
    let _guard = fake(&[("LAZY", "2")]);
    let device = device();
    let stream = device.stream_create(-1).unwrap();
    assert_eq!(device.priority_range(), (0, -5));
    let address = device.plain_alloc(16).unwrap();
    let event = device.event_create(true).unwrap();
    assert!(device.event_query(event).unwrap(), "an event never recorded is complete");
    device.enqueue(stream, &Work::Fill(Fill { dst: address, value: 1, width: 4, count: 4 })).unwrap();
    device.event_record(event, stream).unwrap();
    let answers: Vec<bool> = (0..4).map(|_| device.event_query(event).unwrap()).collect();
    assert_eq!(answers, [false, false, true, true]);
    assert!(device.stream_query(stream).unwrap());
    device.event_destroy(event);
    device.event_destroy(event);
    assert!(device.stream_query(stream).is_err(), "the second destroy is reported");
}

#[test]
fn a_waiting_stream_sees_what_it_waited_for() {
    let _guard = fake(&[("LAZY", "1")]);
    let device = device();
    let (first, second) = (device.stream_create(0).unwrap(), device.stream_create(0).unwrap());
    let address = device.plain_alloc(8).unwrap();
    let event = device.event_create(false).unwrap();
    device.enqueue(first, &Work::Fill(Fill { dst: address, value: 5, width: 4, count: 1 })).unwrap();
    device.event_record(event, first).unwrap();
    device.stream_wait(second, event).unwrap();
    device.enqueue(second, &copy(CopyKind::DeviceToDevice, address + 4, address, 4)).unwrap();
    wait(&device, second);
    assert_eq!(read(&device, second, address, 8), [5, 0, 0, 0, 5, 0, 0, 0]);
}

#[test]
fn elapsed_time_works_with_and_without_the_newer_call() {
    for version in ["13000", "12060"] {
        let _guard = fake(&[("VERSION", version)]);
        let device = device();
        let stream = device.stream_create(0).unwrap();
        let events = [device.event_create(true).unwrap(), device.event_create(true).unwrap()];
        device.event_record(events[0], stream).unwrap();
        device.event_record(events[1], stream).unwrap();
        assert_eq!(device.event_elapsed_ms(events[0], events[1]).unwrap(), 0.001);
        let untimed = device.event_create(false).unwrap();
        device.event_record(untimed, stream).unwrap();
        assert_eq!(code_of(&device.event_elapsed_ms(events[0], untimed).unwrap_err()), 400);
    }
}

#[test]
fn host_functions_run_in_order_and_their_errors_are_reported_next() {
    let _guard = fake(&[("LAZY", "1")]);
    let device = device();
    let stream = device.stream_create(0).unwrap();
    let address = device.plain_alloc(4).unwrap();
    let seen = Arc::new(AtomicUsize::new(0));
    let note = seen.clone();
    let inside = device.clone();
    let function: HostFn = Arc::new(move || {
        // SAFETY: the fake device's memory is host memory, and the allocation is alive.
        note.store(unsafe { (address as *const u32).read() } as usize, Ordering::SeqCst);
        // A host function must not call the driver.
        assert!(inside.memory_info().is_err());
        Err("it said no".to_string())
    });
    device.enqueue(stream, &Work::Fill(Fill { dst: address, value: 9, width: 4, count: 1 })).unwrap();
    device.enqueue(stream, &Work::Host(function.clone())).unwrap();
    assert!(!device.stream_query(stream).unwrap());
    let error = device.stream_query(stream).unwrap_err();
    assert!(matches!(&error, Error::Host(text) if text == "it said no"), "{error}");
    assert_eq!(seen.load(Ordering::SeqCst), 9);
    assert_eq!(Arc::strong_count(&function), 1, "the function is let go");
    assert!(device.stream_query(stream).unwrap());
    device.enqueue(stream, &Work::Host(Arc::new(|| panic!("on purpose")))).unwrap();
    assert!(!device.stream_query(stream).unwrap());
    assert!(matches!(device.stream_query(stream).unwrap_err(), Error::Host(_)));
}

#[test]
fn a_refused_host_function_is_let_go() {
    let _guard = fake(&[("FAIL", "cuLaunchHostFunc:1:1")]);
    let device = device();
    let stream = device.stream_create(0).unwrap();
    let function: HostFn = Arc::new(|| Ok(()));
    assert!(device.enqueue(stream, &Work::Host(function.clone())).is_err());
    assert_eq!(Arc::strong_count(&function), 1);
}

// -- graphs ------------------------------------------------------------------------------------------------

#[test]
fn a_graph_replays_what_was_recorded() {
    let _guard = fake(&[]);
    let device = device();
    let stream = device.stream_create(0).unwrap();
    let address = device.plain_alloc(32).unwrap();
    let add = kernel(&device, "add");
    let mut input = [1u8; 8];
    let mut output = [0u8; 8];
    let mut coop = launch(&add, &[3; 28]);
    coop.attributes = LaunchAttributes { cooperative: true, programmatic: true, ..Default::default() };
    let commands = [
        command(copy(CopyKind::HostToDevice, address, input.as_ptr() as u64, 8)),
        command(Work::Fill(Fill { dst: address + 8, value: 0xaa, width: 1, count: 8 })),
        command(Work::Kernel(coop)),
        command(copy(CopyKind::DeviceToDevice, address + 16, address, 8)),
        command(Work::Fill(Fill { dst: address, value: 0, width: 4, count: 0 })),
        command(copy(CopyKind::DeviceToHost, output.as_mut_ptr() as u64, address + 16, 8)),
    ];
    let after: [&[usize]; 6] = [&[], &[], &[0, 1, 0], &[2], &[3], &[4]];
    let nodes: Vec<GraphNode> =
        commands.iter().zip(after).map(|(command, after)| GraphNode { command, after }).collect();
    let graph = device.graph_build(&nodes).unwrap().unwrap();
    assert!(fake_cuda::launches().is_empty(), "building runs nothing");
    for round in 1..=3u8 {
        input.fill(round);
        device.enqueue(stream, &Work::Graph(graph)).unwrap();
        wait(&device, stream);
        assert_eq!(output, [round; 8]);
        assert_eq!(fake_cuda::launches().len(), round as usize);
    }
    assert_eq!(read(&device, stream, address + 8, 8), [0xaa; 8]);
    let log = fake_cuda::launches();
    assert_eq!(log[2].args, [3; 28]);
    assert_eq!(log[2].attributes, [(2, [1, 0, 0])]);
    device.graph_destroy(graph);
    assert_eq!(code_of(&device.enqueue(stream, &Work::Graph(graph)).unwrap_err()), 400);
    assert_eq!(fake_cuda::counter("cuGraphDestroy"), 1);
}

#[test]
fn what_cannot_be_in_a_graph_is_refused_with_its_number() {
    let _guard = fake(&[]);
    let device = device();
    let fill = command(Work::Fill(Fill { dst: 0, value: 0, width: 1, count: 0 }));
    let host = command(Work::Host(Arc::new(|| Ok(()))));
    let nested = command(Work::Graph(RawGraph(1)));
    for (last, after, part) in [(&host, &[0][..], "host function"), (&nested, &[0], "nest"), (&fill, &[1], "node 1")] {
        let nodes = [GraphNode { command: &fill, after: &[] }, GraphNode { command: last, after }];
        let error = device.graph_build(&nodes).unwrap_err();
        assert!(matches!(error, Error::Graph(_)), "{error}");
        assert!(error.to_string().contains(part) && error.to_string().contains("node 1"), "{error}");
    }
    assert_eq!(fake_cuda::counter("cuGraphCreate"), fake_cuda::counter("cuGraphDestroy"), "drafts are destroyed");
}

#[test]
fn a_failure_at_any_step_of_building_a_graph_leaks_nothing() {
    for call in ["cuGraphCreate", "cuGraphAddMemsetNode", "cuGraphInstantiateWithFlags", "cuGraphUpload"] {
        let _guard = fake(&[]);
        let device = device();
        let address = device.plain_alloc(8).unwrap();
        let fill = command(Work::Fill(Fill { dst: address, value: 0, width: 1, count: 8 }));
        let nodes = [GraphNode { command: &fill, after: &[] }];
        fake_cuda::configure("FAIL", &format!("{call}:1:2")).unwrap();
        let error = device.graph_build(&nodes).unwrap_err();
        assert!(error.to_string().starts_with(call), "{error}");
        let created = fake_cuda::counter("cuGraphCreate") - u64::from(call == "cuGraphCreate");
        assert_eq!(created, fake_cuda::counter("cuGraphDestroy"), "{call}");
        assert_eq!(fake_cuda::counter("cuGraphExecDestroy"), u64::from(call == "cuGraphUpload"));
        let graph = device.graph_build(&nodes).unwrap().unwrap();
        device.graph_destroy(graph);
    }
}

// -- faults ------------------------------------------------------------------------------------------------

#[test]
fn after_a_fault_everything_fails_and_nothing_panics() {
    let _guard = fake(&[]);
    let device = device();
    let stream = device.stream_create(0).unwrap();
    let event = device.event_create(false).unwrap();
    let add = kernel(&device, "add");
    fake_cuda::configure("FAIL", "cuLaunchKernelEx:1:700").unwrap();
    let work = Work::Kernel(launch(&add, &[0; 28]));
    let error = device.enqueue(stream, &work).unwrap_err();
    assert!(is_sticky(code_of(&error)));
    let text = error.to_string();
    for part in ["cuLaunchKernelEx", "CUDA_ERROR_ILLEGAL_ADDRESS", "700", "restart", "PYGPUKIT_SYNC=1"] {
        assert!(text.contains(part), "{text}");
    }
    let results = [
        device.enqueue(stream, &work),
        device.stream_query(stream).map(drop),
        device.event_record(event, stream),
        device.event_query(event).map(drop),
        device.plain_alloc(8).map(drop),
        device.create(2 * MIB).map(drop),
        device.memory_info().map(drop),
        device.library_load(IMAGE).map(drop),
    ];
    for result in results {
        assert_eq!(code_of(&result.unwrap_err()), 700);
    }
    device.event_destroy(event);
    device.library_unload(RawLibrary(1));
    device.graph_destroy(RawGraph(1));
    drop(add);
    assert_eq!(code_of(&device.memory_info().unwrap_err()), 700);
}

#[test]
fn work_that_outlives_its_memory_is_a_fault() {
    let _guard = fake(&[("LAZY", "1")]);
    let device = device();
    let stream = device.stream_create(0).unwrap();
    let va = device.reserve(2 * MIB).unwrap();
    let handle = device.create(2 * MIB).unwrap();
    device.map(va, 2 * MIB, handle).unwrap();
    device.enqueue(stream, &Work::Fill(Fill { dst: va, value: 1, width: 1, count: 16 })).unwrap();
    device.unmap(va, 2 * MIB).unwrap();
    assert!(!device.stream_query(stream).unwrap());
    assert_eq!(code_of(&device.stream_query(stream).unwrap_err()), 700);
}

#[test]
fn handles_that_are_not_ours_are_errors() {
    let _guard = fake(&[]);
    let device = device();
    let stream = device.stream_create(0).unwrap();
    assert_eq!(code_of(&device.stream_query(RawStream(12)).unwrap_err()), 400);
    assert_eq!(code_of(&device.event_record(RawEvent(12), stream).unwrap_err()), 400);
    assert_eq!(code_of(&device.kernel_occupancy(RawKernel(12), 32, 0).unwrap_err()), 400);
    assert_eq!(code_of(&device.kernel_get(RawLibrary(12), "add").unwrap_err()), 400);
}

#[test]
fn a_code_no_driver_knows_is_still_an_error() {
    let _guard = fake(&[]);
    let device = device();
    fake_cuda::configure("FAIL", "cuMemGetInfo:1:12345").unwrap();
    let text = device.memory_info().unwrap_err().to_string();
    assert!(text.contains("cuMemGetInfo") && text.contains("12345") && text.contains("unknown code"), "{text}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any sequence of copies and fills gives, eager or lazy, what the same steps on a host array give.
    #[test]
    fn device_memory_behaves_like_host_memory(
        lazy in 0u32..4,
        steps in prop::collection::vec((0u8..4, 0usize..64, 0usize..64, 0usize..64, any::<u8>()), 1..40),
    ) {
        let _guard = fake(&[("LAZY", &lazy.to_string())]);
        let device = device();
        let stream = device.stream_create(0).unwrap();
        let address = device.plain_alloc(128).unwrap();
        let mut model = [0u8; 128];
        device.enqueue(stream, &Work::Fill(Fill { dst: address, value: 0, width: 1, count: 128 })).unwrap();
        for (what, a, b, n, value) in steps {
            match what {
                0 => {
                    let host = vec![value; n];
                    let work = copy(CopyKind::HostToDevice, address + a as u64, host.as_ptr() as u64, n);
                    device.enqueue(stream, &work).unwrap();
                    model[a..a + n].fill(value);
                }
                1 => {
                    // The driver leaves overlapping copies open.
                    let dst = b + 64;
                    let n = n.min(128 - dst).min(dst.abs_diff(a));
                    let work = copy(CopyKind::DeviceToDevice, address + dst as u64, address + a as u64, n);
                    device.enqueue(stream, &work).unwrap();
                    model.copy_within(a..a + n, dst);
                }
                2 => {
                    let (start, count) = (a / 4 * 4, n / 4);
                    let fill = Fill { dst: address + start as u64, value: value.into(), width: 4, count };
                    device.enqueue(stream, &Work::Fill(fill)).unwrap();
                    for word in model[start..start + 4 * count].chunks_mut(4) {
                        word.copy_from_slice(&u32::from(value).to_le_bytes());
                    }
                }
                _ => {
                    device.stream_query(stream).unwrap();
                }
            }
        }
        prop_assert_eq!(&read(&device, stream, address, 128)[..], &model[..]);
    }
}
