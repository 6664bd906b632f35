//! The CUDA path of the core on the fake driver: opening it, memory, and what happens after a fault.
#![cfg(unix)]

mod fake;

use fake::*;
use pygpukit_core::Error;
use pygpukit_core::command::{Fill, Work};
use pygpukit_core::cuda::cublaslt::CublasLt;
use pygpukit_core::cuda::device::{CudaDevice, is_sticky};
use pygpukit_core::cuda::driver::Driver;
use pygpukit_core::device::{Device, DeviceKind, RawEvent, RawGraph, RawKernel, RawLibrary, RawStream};

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
    assert_eq!(kernel(&device, "add").params(4), None);
    let address = device.plain_alloc(100).unwrap();
    device.plain_free(address).unwrap();
}

#[test]
fn no_devices_is_a_fixed_sentence() {
    let _guard = fake(&[("DEVICES", "0")]);
    let error = driver().unwrap_err();
    assert!(matches!(error, Error::NoDevice(_)));
    assert!(error.to_string().starts_with("No GPU devices found (cudaGetDeviceCount == 0)"), "{error}");
}

#[test]
fn a_device_number_out_of_range_says_what_there_is() {
    let _guard = fake(&[("DEVICES", "2")]);
    let driver = driver().unwrap();
    for ordinal in [-1, 2, i32::MAX] {
        let error = CudaDevice::open(driver.clone(), ordinal).unwrap_err();
        assert!(matches!(error, Error::NoDevice(_)));
        assert!(error.to_string().contains(&format!("There is no GPU {ordinal}: the driver offers 2")), "{error}");
    }
}

#[test]
fn a_gpu_below_sm_80_is_refused_by_name() {
    let _guard = fake(&[("CAPABILITY", "7.5")]);
    let error = CudaDevice::open(driver().unwrap(), 0).unwrap_err();
    assert!(matches!(error, Error::DeviceUnsupported(_)));
    let text = error.to_string();
    assert!(
        text.starts_with("PyGPUkit requires SM >= 80 (Ampere)") && text.contains("Fake GPU") && text.contains("7.5"),
        "{text}"
    );
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
