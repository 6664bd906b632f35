//! Work on the fake driver: copies, fills, launches, host functions, events and graphs.
#![cfg(unix)]

mod fake;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fake::*;
use proptest::prelude::*;
use pygpukit_core::Error;
use pygpukit_core::command::{CopyKind, Fill, HostFn, LaunchAttributes, Work};
use pygpukit_core::cuda::device::CudaDevice;
use pygpukit_core::cuda::status::Status;
use pygpukit_core::device::{Device, GraphNode, RawGraph, RawStream};

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
    assert_eq!(add.params(4), Some(vec![(0, 8), (8, 8), (16, 8), (24, 4)]));
    assert_eq!(add.params(9).map(|p| p.len()), Some(4), "no more than there are");
    assert_eq!((add.attributes().registers, add.attributes().max_threads), (32, 1024));
    let args: Vec<u8> = (0..28).collect();
    device.enqueue(stream, &Work::Kernel(launch(&add, &args))).unwrap();
    let mut asked = launch(&add, &args);
    asked.attributes = LaunchAttributes {
        cluster: [2, 1, 1],
        cooperative: true,
        programmatic: true,
        priority: Some(-3),
        resident: false,
    };
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
fn variables_of_an_image_are_memory_like_any_other() {
    let _guard = fake(&[]);
    let device = device();
    let stream = device.stream_create(0).unwrap();
    let library = device.library_load(b".entry k()\n.global counter[4]\n.global taps[64]\n\0").unwrap();
    let (counter, bytes) = device.library_variable(library, "counter").unwrap();
    assert_eq!(bytes, 4);
    let (taps, bytes) = device.library_variable(library, "taps").unwrap();
    assert_eq!((bytes, taps == counter), (64, false));
    device.enqueue(stream, &Work::Fill(Fill { dst: taps, value: 7, width: 4, count: 16 })).unwrap();
    assert_eq!(read(&device, stream, taps, 8), [7, 0, 0, 0, 7, 0, 0, 0]);
    assert_eq!(read(&device, stream, counter, 4), [0; 4]);
    let error = device.library_variable(library, "none").unwrap_err();
    assert!(error.to_string().contains("no variable 'none'"), "{error}");
    assert!(matches!(device.library_variable(library, "a\0b").unwrap_err(), Error::Value(_)));
    device.library_unload(library);
    assert_eq!(code_of(&device.library_variable(library, "taps").unwrap_err()), 400);
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
fn a_resident_kernel_hears_of_no_others_errors() {
    let _guard = fake(&[]);
    let device = device();
    let (stream, own) = (device.stream_create(0).unwrap(), device.stream_create(0).unwrap());
    let mut launch = launch(&kernel(&device, "bare"), &[]);
    launch.attributes.resident = true;
    device.enqueue(stream, &Work::Host(Arc::new(|| Err("on purpose".to_string())))).unwrap();
    let waits = |device: &CudaDevice| device.resident_query(stream).is_ok_and(|finished| !finished);
    while waits(&device) {}
    assert!(device.resident_query(own).unwrap());
    device.enqueue(own, &Work::Kernel(launch)).unwrap();
    assert!(matches!(device.stream_query(stream), Err(Error::Host(_))), "the error is still there for its owner");
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
    let nodes: Vec<GraphNode> = commands
        .iter()
        .zip(after)
        .map(|(command, after)| GraphNode { command, after, early: false, changes: false })
        .collect();
    let graph = device.graph_build(&nodes, None).unwrap().unwrap();
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
    // The cooperative kernel was a graph of its own.
    assert_eq!(fake_cuda::counter("cuGraphDestroy"), 2);
}

#[test]
fn what_cannot_be_in_a_graph_is_refused_with_its_number() {
    let _guard = fake(&[]);
    let device = device();
    let fill = command(Work::Fill(Fill { dst: 0, value: 0, width: 1, count: 0 }));
    let host = command(Work::Host(Arc::new(|| Ok(()))));
    let nested = command(Work::Graph(RawGraph(1)));
    for (last, after, part) in [(&host, &[0][..], "host function"), (&nested, &[0], "nest"), (&fill, &[1], "node 1")] {
        let nodes = [
            GraphNode { command: &fill, after: &[], early: false, changes: false },
            GraphNode { command: last, after, early: false, changes: false },
        ];
        let error = device.graph_build(&nodes, None).unwrap_err();
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
        let nodes = [GraphNode { command: &fill, after: &[], early: false, changes: false }];
        fake_cuda::configure("FAIL", &format!("{call}:1:2")).unwrap();
        let error = device.graph_build(&nodes, None).unwrap_err();
        assert!(error.to_string().starts_with(call), "{error}");
        let created = fake_cuda::counter("cuGraphCreate") - u64::from(call == "cuGraphCreate");
        assert_eq!(created, fake_cuda::counter("cuGraphDestroy"), "{call}");
        assert_eq!(fake_cuda::counter("cuGraphExecDestroy"), u64::from(call == "cuGraphUpload"));
        let graph = device.graph_build(&nodes, None).unwrap().unwrap();
        device.graph_destroy(graph);
    }
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
