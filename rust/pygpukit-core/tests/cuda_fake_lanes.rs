//! Lanes on the fake driver: how the SMs are divided, and what happens when a step of making a lane fails.
#![cfg(unix)]

mod fake;

use std::collections::BTreeSet;

use fake::*;
use proptest::prelude::*;
use pygpukit_core::Error;
use pygpukit_core::command::{CopyKind, Fill, Work};
use pygpukit_core::cuda::device::CudaDevice;
use pygpukit_core::device::{Device, GraphNode, RawLane, RawStream};

/// The calls that make a lane, in their order.
const STEPS: [&str; 4] =
    ["cuDevResourceGenerateDesc", "cuGreenCtxCreate", "cuGreenCtxGetDevResource", "cuCtxFromGreenCtx"];

fn sms_of(lane: RawLane) -> BTreeSet<u32> {
    fake_cuda::green_contexts()[&lane.0].sms.clone()
}

fn context_of(lane: RawLane) -> usize {
    fake_cuda::green_contexts()[&lane.0].context
}

fn streams_of(lane: RawLane) -> Vec<usize> {
    fake_cuda::green_contexts()[&lane.0].streams.clone()
}

#[test]
fn the_sms_are_divided_by_eight_or_by_two() {
    let _guard = fake(&[]);
    let device = device();
    let coarse = device.division(false).unwrap();
    let mut eights = vec![8; 15];
    eights.push(12);
    assert_eq!(coarse.groups, eights, "what is left over is a group of its own");
    assert_eq!(device.division(true).unwrap().groups, [2; 66]);
    let splits = fake_cuda::counter("cuDevSmResourceSplitByCount");
    assert_eq!(device.division(false).unwrap(), coarse);
    assert_eq!(fake_cuda::counter("cuDevSmResourceSplitByCount"), splits, "divided once");
}

#[test]
fn a_remainder_that_does_not_merge_is_left_out() {
    let _guard = fake(&[("FAIL", "cuDevResourceGenerateDesc:1:915")]);
    let device = device();
    assert_eq!(device.division(false).unwrap().groups, [8; 15]);
    let error = device.lane_create(false, &[0, 15]).unwrap_err();
    assert!(matches!(error, Error::Value(_)), "{error}");
    assert!(error.to_string().contains("group 15") && error.to_string().contains("from 0 to 14"), "{error}");
    device.lane_create(false, &[0, 14]).unwrap();
}

#[test]
fn without_clusters_coarse_groups_are_as_small_as_fine_ones() {
    let _guard = fake(&[("CAPABILITY", "8.0")]);
    let device = device();
    assert_eq!(device.division(false).unwrap().groups, [2; 66]);
    assert_eq!(device.division(true).unwrap().groups, [2; 66]);
}

#[test]
fn lanes_merge_their_groups_and_may_overlap() {
    let _guard = fake(&[]);
    let device = device();
    let small = device.lane_create(false, &[1, 3]).unwrap();
    let wide = device.lane_create(false, &(0..16).collect::<Vec<_>>()).unwrap();
    let fine = device.lane_create(true, &(0..14).collect::<Vec<_>>()).unwrap();
    assert_eq!(sms_of(small), (8..16).chain(24..32).collect());
    assert_eq!(sms_of(wide), (0..132).collect());
    assert_eq!(sms_of(fine).len(), 28);
    for lane in [small, wide, fine] {
        device.lane_destroy(lane);
    }
    assert!(fake_cuda::green_contexts().is_empty());
    device.memory_info().unwrap();
}

#[test]
fn groups_that_cannot_make_a_lane_are_refused() {
    let _guard = fake(&[]);
    let device = device();
    for (groups, part) in [(&[][..], "at least one"), (&[16], "group 16"), (&[2, 5, 2], "group 2 twice")] {
        let error = device.lane_create(false, groups).unwrap_err();
        assert!(matches!(error, Error::Value(_)) && error.to_string().contains(part), "{error}");
    }
    assert_eq!(fake_cuda::counter("cuGreenCtxCreate"), 0);
}

#[test]
fn work_on_a_lanes_stream_runs_in_its_context() {
    let _guard = fake(&[]);
    let device = device();
    let lane = device.lane_create(false, &[4]).unwrap();
    let (plain, bound) = (device.stream_create(0).unwrap(), device.lane_stream(lane, -5).unwrap());
    assert_eq!(streams_of(lane), [bound.0]);
    let add = kernel(&device, "add");
    for stream in [plain, bound] {
        device.enqueue(stream, &Work::Kernel(launch(&add, &[0; 28]))).unwrap();
    }
    let ran: Vec<usize> = fake_cuda::launches().iter().map(|launch| launch.context).collect();
    assert_eq!(ran, [device.context(), context_of(lane)]);
    let address = device.plain_alloc(8).unwrap();
    device.enqueue(bound, &Work::Fill(Fill { dst: address, value: 3, width: 1, count: 8 })).unwrap();
    assert_eq!(read(&device, bound, address, 8), [3; 8]);
    let events = [device.event_create(true).unwrap(), device.event_create(true).unwrap()];
    device.event_record(events[0], bound).unwrap();
    device.stream_wait(plain, events[0]).unwrap();
    device.event_record(events[1], plain).unwrap();
    assert!(device.event_elapsed_ms(events[0], events[1]).unwrap() > 0.0);
}

#[test]
fn no_green_context_is_made_current() {
    let _guard = fake(&[]);
    let device = device();
    let current = || {
        let mut context = std::ptr::null_mut();
        // SAFETY: the context is written to a live local.
        unsafe { (device.driver().api.cuCtxGetCurrent)(&mut context) };
        context as usize
    };
    let lane = device.lane_create(false, &[0]).unwrap();
    assert_eq!(current(), device.context());
    device.lane_stream(lane, 0).unwrap();
    assert_eq!(current(), device.context());
    device.lane_destroy(lane);
    assert_eq!(current(), device.context());
}

#[test]
fn a_lane_ends_with_its_streams() {
    let _guard = fake(&[]);
    let device = device();
    let (lane, other) = (device.lane_create(false, &[0]).unwrap(), device.lane_create(false, &[0]).unwrap());
    let streams = [device.lane_stream(lane, 0).unwrap(), device.lane_stream(lane, 0).unwrap()];
    let kept = device.lane_stream(other, 0).unwrap();
    device.lane_destroy(lane);
    for stream in streams {
        assert_eq!(code_of(&device.stream_query(stream).unwrap_err()), 400);
    }
    assert!(device.stream_query(kept).unwrap());
    assert_eq!(fake_cuda::green_contexts().len(), 1);
    let error = device.lane_stream(lane, 0).unwrap_err();
    assert!(matches!(error, Error::Device(_)) && error.to_string().contains("was destroyed"), "{error}");
    device.lane_destroy(lane);
    let error = device.memory_info().unwrap_err();
    assert!(error.to_string().contains("was destroyed"), "the second end is reported by the next call: {error}");
}

#[test]
fn a_stream_ends_before_its_lane() {
    let _guard = fake(&[]);
    let device = device();
    let lane = device.lane_create(false, &[0]).unwrap();
    let (first, second) = (device.lane_stream(lane, 0).unwrap(), device.lane_stream(lane, 0).unwrap());
    let plain = device.stream_create(0).unwrap();
    for stream in [first, plain] {
        assert!(device.resident_query(stream).unwrap());
        device.stream_destroy(stream);
        assert_eq!(code_of(&device.resident_query(stream).unwrap_err()), 400);
    }
    assert!(device.stream_query(second).unwrap());
    device.lane_destroy(lane);
    device.memory_info().expect("no stream is destroyed twice");
}

#[test]
fn every_node_of_a_graph_carries_the_lanes_context() {
    let _guard = fake(&[]);
    let device = device();
    let lane = device.lane_create(false, &[2, 7]).unwrap();
    let stream = device.stream_create(0).unwrap();
    let address = device.plain_alloc(32).unwrap();
    let add = kernel(&device, "add");
    let commands = [
        command(Work::Fill(Fill { dst: address, value: 5, width: 1, count: 8 })),
        command(copy(CopyKind::DeviceToDevice, address + 8, address, 8)),
        command(Work::Kernel(launch(&add, &[0; 28]))),
        command(Work::Fill(Fill { dst: address, value: 0, width: 1, count: 0 })),
    ];
    let after: [&[usize]; 4] = [&[], &[0], &[1], &[2]];
    let nodes: Vec<GraphNode> = commands
        .iter()
        .zip(after)
        .map(|(command, after)| GraphNode { command, after, early: false, changes: false })
        .collect();
    let plain = device.graph_build(&nodes, None).unwrap().unwrap();
    let bound = device.graph_build(&nodes, Some(lane)).unwrap().unwrap();
    let (primary, green) = (device.context(), context_of(lane));
    assert_eq!(fake_cuda::graph_contexts(plain.0), [primary, primary, primary, 0]);
    assert_eq!(fake_cuda::graph_contexts(bound.0), [green, green, green, 0]);
    device.enqueue(stream, &Work::Graph(bound)).unwrap();
    assert_eq!(fake_cuda::launches()[0].context, green, "the nodes' context counts, not the stream's");
    assert_eq!(read(&device, stream, address + 8, 8), [5; 8]);
    device.lane_destroy(lane);
    assert_eq!(code_of(&device.enqueue(stream, &Work::Graph(bound)).unwrap_err()), 201);
    let drafts = fake_cuda::counter("cuGraphCreate");
    assert!(matches!(device.graph_build(&nodes, Some(lane)).unwrap_err(), Error::Device(_)));
    assert_eq!(fake_cuda::counter("cuGraphCreate"), drafts);
}

#[test]
fn a_failure_at_any_step_of_making_a_lane_leaks_nothing() {
    for call in STEPS {
        let _guard = fake(&[]);
        let device = device();
        device.division(false).unwrap();
        fake_cuda::configure("FAIL", &format!("{call}:1:2")).unwrap();
        let error = device.lane_create(false, &[0, 1]).unwrap_err();
        assert!(error.to_string().starts_with(call), "{error}");
        assert!(fake_cuda::green_contexts().is_empty(), "{call}");
        let lane = device.lane_create(false, &[0, 1]).unwrap();
        assert_eq!(sms_of(lane).len(), 16, "{call}: the next try works");
    }
}

#[test]
fn a_stream_that_fails_leaves_the_lane_usable() {
    let _guard = fake(&[("FAIL", "cuGreenCtxStreamCreate:1:2")]);
    let device = device();
    let lane = device.lane_create(true, &[9]).unwrap();
    assert!(device.lane_stream(lane, 0).unwrap_err().is_out_of_memory());
    assert!(streams_of(lane).is_empty());
    device.lane_stream(lane, 0).unwrap();
    device.lane_destroy(lane);
    assert!(fake_cuda::green_contexts().is_empty());
}

#[test]
fn a_lane_whose_end_fails_is_reported_by_the_next_call() {
    for call in ["cuStreamDestroy", "cuGreenCtxDestroy"] {
        let _guard = fake(&[]);
        let device = device();
        let lane = device.lane_create(false, &[0]).unwrap();
        device.lane_stream(lane, 0).unwrap();
        fake_cuda::configure("FAIL", &format!("{call}:1:999")).unwrap();
        device.lane_destroy(lane);
        let error = device.memory_info().unwrap_err();
        assert!(error.to_string().starts_with(call), "{error}");
        device.memory_info().unwrap();
    }
}

#[test]
fn a_lane_of_another_size_than_asked_for_is_refused() {
    let _guard = fake(&[("LANE_SMS", "6")]);
    let device = device();
    let error = device.lane_create(false, &[0]).unwrap_err();
    assert!(error.to_string().contains("of 8 SMs was asked for and the driver made one of 6"), "{error}");
    assert!(fake_cuda::green_contexts().is_empty());
}

#[test]
fn a_division_that_fails_is_tried_again() {
    for (call, nth) in
        [("cuDeviceGetDevResource", 1), ("cuDevSmResourceSplitByCount", 1), ("cuDevSmResourceSplitByCount", 2)]
    {
        let _guard = fake(&[("FAIL", &format!("{call}:{nth}:999"))]);
        let device = device();
        let error = device.division(false).unwrap_err();
        assert!(error.to_string().starts_with(call), "{error}");
        assert_eq!(device.division(false).unwrap().groups.len(), 16);
    }
}

#[test]
fn a_driver_or_gpu_without_green_contexts_is_not_divided() {
    let withheld = ["cuGreenCtxCreate", "cuCtxFromGreenCtx", "cuGreenCtxGetDevResource", "cuGreenCtxStreamCreate"];
    let mut settings: Vec<(&str, &str)> = withheld.iter().map(|call| ("WITHHOLD", *call)).collect();
    settings.extend([("VERSION", "12040"), ("FAIL", "cuDeviceGetDevResource:1:801:*")]);
    for setting in settings {
        let _guard = fake(&[setting]);
        let device = device();
        assert_eq!(device.props().features.contains(&"green_contexts"), setting.0 == "FAIL", "{setting:?}");
        for fine in [false, true] {
            assert!(device.division(fine).unwrap().groups.is_empty(), "{setting:?}");
            let error = device.lane_create(fine, &[0]).unwrap_err();
            assert!(matches!(error, Error::Device(_)) && error.to_string().contains("cannot be divided"), "{error}");
        }
        assert!(matches!(device.lane_stream(RawLane(1), 0).unwrap_err(), Error::Device(_)));
    }
}

#[test]
fn after_a_fault_lanes_fail_and_nothing_panics() {
    let _guard = fake(&[]);
    let device = device();
    let lane = device.lane_create(false, &[0]).unwrap();
    let stream = device.lane_stream(lane, 0).unwrap();
    let add = kernel(&device, "add");
    fake_cuda::configure("FAIL", "cuLaunchKernelEx:1:700").unwrap();
    assert_eq!(code_of(&device.enqueue(stream, &Work::Kernel(launch(&add, &[0; 28]))).unwrap_err()), 700);
    assert_eq!(code_of(&device.lane_create(false, &[0]).unwrap_err()), 700);
    assert_eq!(code_of(&device.lane_stream(lane, 0).unwrap_err()), 700);
    assert_eq!(code_of(&device.division(true).unwrap_err()), 700);
    device.lane_destroy(lane);
    assert_eq!(code_of(&device.memory_info().unwrap_err()), 700);
}

/// The variable is set once in a process, so the question is asked in new ones.
#[test]
fn as_many_hardware_queues_as_there_are_unless_somebody_chose() {
    const ASKED: &str = "CUDA_DEVICE_MAX_CONNECTIONS";
    const WANTED: &str = "PYGPUKIT_TEST_WANTED";
    if let Ok(wanted) = std::env::var(WANTED) {
        let _guard = fake(&[]);
        driver().unwrap();
        assert_eq!(std::env::var(ASKED).unwrap(), wanted);
        return;
    }
    for (set, wanted) in [(None, "32"), (Some("5"), "5"), (Some(""), "")] {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "as_many_hardware_queues_as_there_are_unless_somebody_chose"]).env(WANTED, wanted);
        match set {
            Some(value) => child.env(ASKED, value),
            None => child.env_remove(ASKED),
        };
        let out = child.output().unwrap();
        assert!(out.status.success(), "{set:?}: {}", String::from_utf8_lossy(&out.stdout));
    }
}

/// Streams and green contexts alive agree with a plain list of lanes.
fn check_alive(device: &CudaDevice, model: &[(RawLane, BTreeSet<u32>, Vec<RawStream>)]) {
    let alive = fake_cuda::green_contexts();
    assert_eq!(alive.len(), model.len());
    for (lane, sms, streams) in model {
        let known = &alive[&lane.0];
        assert_eq!(&known.sms, sms);
        assert_eq!(known.streams, streams.iter().map(|stream| stream.0).collect::<Vec<_>>());
        assert!(streams.iter().all(|stream| device.stream_query(*stream).unwrap()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is made, ended or made to fail, the driver holds what a list of the lanes says and nothing else.
    #[test]
    fn the_driver_holds_the_lanes_that_are_alive(
        steps in prop::collection::vec((0u8..4, any::<bool>(), prop::collection::btree_set(0usize..16, 1..16), 0usize..8), 1..30),
    ) {
        let _guard = fake(&[]);
        let device = device();
        let mut model: Vec<(RawLane, BTreeSet<u32>, Vec<RawStream>)> = Vec::new();
        for (what, fine, groups, pick) in steps {
            let groups: Vec<usize> = groups.into_iter().collect();
            match what {
                0 => {
                    let lane = device.lane_create(fine, &groups).unwrap();
                    let size = if fine { 2 } else { 8 };
                    let end = |group: usize| if group == 15 && !fine { 132 } else { (group + 1) * size };
                    let sms = groups.iter().flat_map(|&g| (g * size) as u32..end(g) as u32).collect();
                    model.push((lane, sms, Vec::new()));
                }
                1 if !model.is_empty() => {
                    let index = pick % model.len();
                    let stream = device.lane_stream(model[index].0, 0).unwrap();
                    model[index].2.push(stream);
                }
                2 if !model.is_empty() => device.lane_destroy(model.swap_remove(pick % model.len()).0),
                _ => {
                    device.division(fine).unwrap();
                    fake_cuda::configure("FAIL", &format!("{}:1:2", STEPS[pick % STEPS.len()])).unwrap();
                    prop_assert!(device.lane_create(fine, &groups).is_err());
                }
            }
            check_alive(&device, &model);
        }
    }
}
