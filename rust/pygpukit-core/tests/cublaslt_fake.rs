//! Matrix products through a stand-in for cuBLASLt, on the fake driver.
#![cfg(unix)]

mod fake;

use std::sync::Arc;
use std::time::Duration;

use fake::*;
use parking_lot::Mutex;
use pygpukit_core::command::{Access, Command, CopyKind, UseRef, Work};
use pygpukit_core::cuda::cublaslt::{Compute, CublasLt, GemmCall, GemmPlan, GemmShape, SavedAlgorithm};
use pygpukit_core::cuda::device::CudaDevice;
use pygpukit_core::device::{Device, GraphNode, RawStream};
use pygpukit_core::dtype::DType;
use pygpukit_core::exec::ExecCtx;
use pygpukit_core::graph::Recorder;
use pygpukit_core::launch::{call_library, submit};
use pygpukit_core::library_call::LibraryCall;
use pygpukit_core::memory::{ArenaMode, Storage};
use pygpukit_core::runtime::DeviceState;
use pygpukit_core::sync::{Park, register_parker, unregister_parker};
use pygpukit_core::{Error, Result};

fn library() -> Arc<CublasLt> {
    // SAFETY: the stand-in hands out calls with the library's signatures.
    unsafe { CublasLt::from_proc(get_proc) }.unwrap()
}

/// Device memory of float32 numbers.
struct Matrix {
    address: u64,
    values: Vec<f32>,
}

struct Bench {
    device: Arc<CudaDevice>,
    stream: RawStream,
    lt: Arc<CublasLt>,
}

impl Bench {
    fn new() -> Bench {
        let device = device();
        let stream = device.stream_create(0).unwrap();
        Bench { device, stream, lt: library() }
    }

    /// Numbers whose sums depend on their order.
    fn matrix(&self, count: usize, seed: u32) -> Matrix {
        let mut state = seed;
        let values: Vec<f32> = (0..count)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / (1 << 23) as f32 - 1.0
            })
            .collect();
        let address = self.device.plain_alloc(count * 4).unwrap();
        let work = copy(CopyKind::HostToDevice, address, values.as_ptr() as u64, count * 4);
        self.device.enqueue(self.stream, &work).unwrap();
        Matrix { address, values }
    }

    fn read(&self, address: u64, count: usize) -> Vec<f32> {
        let bytes = read(&self.device, self.stream, address, count * 4);
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    }

    fn plan(&self, shape: &GemmShape, workspace: usize) -> Result<Arc<GemmPlan>> {
        GemmPlan::new(&self.lt, &*self.device, shape, workspace, None)
    }

    fn run(&self, plan: &Arc<GemmPlan>, out: &Matrix, a: &Matrix, b: &Matrix) -> Vec<f32> {
        let call = GemmCall::new(plan, out.address, a.address, b.address, None).unwrap();
        call.prepare(&*self.device).unwrap();
        self.device.enqueue(self.stream, &Work::Library(call.to_arc())).unwrap();
        self.read(out.address, out.values.len())
    }
}

/// The product by its definition, in ascending order of k.
fn expected(shape: &GemmShape, a: &[f32], b: &[f32], before: &[f32]) -> Vec<f32> {
    let mut out = before.to_vec();
    for batch in 0..shape.batch as i64 {
        for (i, j) in (0..shape.m).flat_map(|i| (0..shape.n).map(move |j| (i, j))) {
            let mut sum = 0.0f32;
            for k in 0..shape.k {
                let (row, col) = if shape.a.transposed { (k, i) } else { (i, k) };
                let x = a[(batch * shape.a.batch_stride + row * shape.a.ld + col) as usize];
                let (row, col) = if shape.b.transposed { (j, k) } else { (k, j) };
                sum = x.mul_add(b[(batch * shape.b.batch_stride + row * shape.b.ld + col) as usize], sum);
            }
            let at = (batch * shape.out.batch_stride + i * shape.out.ld + j) as usize;
            out[at] = if shape.accumulate { sum + before[at] } else { sum };
        }
    }
    out
}

fn dense(m: i64, n: i64, k: i64) -> GemmShape {
    GemmShape::dense(m, n, k, DType::F32, DType::F32)
}

#[test]
fn row_major_products_of_every_layout_are_the_sums_they_are_defined_by() {
    let _guard = fake(&[]);
    let bench = Bench::new();
    for case in 0..32u32 {
        let (turn_a, turn_b, padded, stacked) = (case & 1 != 0, case & 2 != 0, case & 4 != 0, case & 8 != 0);
        let (m, n, k) = (3, 5, 7);
        let mut shape = dense(m, n, k);
        (shape.a.transposed, shape.b.transposed, shape.accumulate) = (turn_a, turn_b, case & 16 != 0);
        let pad = if padded { 3 } else { 0 };
        shape.a.ld = if turn_a { m } else { k } + pad;
        shape.b.ld = if turn_b { k } else { n } + pad;
        shape.out.ld = n + pad;
        if stacked {
            shape.batch = 3;
            // All matrices of the stack share one b.
            (shape.a.batch_stride, shape.b.batch_stride, shape.out.batch_stride) = (80, 0, 40);
        }
        let (a, b, out) = (bench.matrix(300, 1), bench.matrix(100, 2), bench.matrix(150, 3));
        let plan = bench.plan(&shape, 0).unwrap();
        let result = bench.run(&plan, &out, &a, &b);
        assert_eq!(result, expected(&shape, &a.values, &b.values, &out.values), "{shape}");
    }
}

#[test]
fn sums_are_not_split_unless_a_workspace_is_given() {
    let _guard = fake(&[]);
    let bench = Bench::new();
    let shape = dense(2, 2, 401);
    let (a, b, out) = (bench.matrix(802, 1), bench.matrix(802, 2), bench.matrix(4, 3));
    let plain = bench.plan(&shape, 0).unwrap();
    assert_eq!((plain.algorithm().id, plain.algorithm().split_k, plain.workspace()), (66, 1, 0));
    let chain = bench.run(&plain, &out, &a, &b);
    assert_eq!(chain, expected(&shape, &a.values, &b.values, &out.values));
    // A workspace that is too small for the other algorithm changes nothing.
    assert_eq!(bench.plan(&shape, 4095).unwrap().algorithm(), plain.algorithm());
    let split = bench.plan(&shape, 1 << 20).unwrap();
    assert_eq!((split.algorithm().id, split.algorithm().split_k, split.workspace()), (67, 4, 4096));
    let workspace = bench.matrix(1024, 4).address;
    for (given, part) in [
        (None, "4096 bytes, and 0 were given"),
        (Some((workspace, 4095)), "4095"),
        (Some((workspace + 4, 4096)), "256"),
    ] {
        let error = GemmCall::new(&split, out.address, a.address, b.address, given).err().unwrap();
        assert!(error.to_string().contains(part), "{error}");
    }
    let call = GemmCall::new(&split, out.address, a.address, b.address, Some((workspace, 4096))).unwrap();
    bench.device.enqueue(bench.stream, &Work::Library(call.to_arc())).unwrap();
    assert_ne!(bench.read(out.address, 4), chain, "four sums added up round otherwise");
    assert_eq!(read(&bench.device, bench.stream, workspace, 4096), [0xcd; 4096]);
}

#[test]
fn small_floats_are_multiplied_in_float32_and_rounded_once() {
    let _guard = fake(&[]);
    let bench = Bench::new();
    // bfloat16 1.0 and 2^-8, float16 the same.
    for (dtype, one, small) in [(DType::BF16, 0x3f80u16, 0x3b80u16), (DType::F16, 0x3c00, 0x1c00)] {
        let (words, ones) = ([one, small, one, 0], [one; 4]);
        let address = bench.device.plain_alloc(64).unwrap();
        for (at, from) in [(0, &words), (16, &ones)] {
            let work = copy(CopyKind::HostToDevice, address + at, from.as_ptr() as u64, 8);
            bench.device.enqueue(bench.stream, &work).unwrap();
        }
        for (out, bytes) in [(dtype, 2), (DType::F32, 4)] {
            let plan = bench.plan(&GemmShape::dense(1, 1, 3, dtype, out), 0).unwrap();
            let call = GemmCall::new(&plan, address + 32, address, address + 16, None).unwrap();
            bench.device.enqueue(bench.stream, &Work::Library(call.to_arc())).unwrap();
            let result = read(&bench.device, bench.stream, address + 32, bytes);
            let sum = 2.0f32 + 2f32.powi(-8);
            match (out, bytes) {
                (_, 4) => assert_eq!(result, sum.to_le_bytes()),
                (DType::BF16, _) => assert_eq!(result, 0x4000u16.to_le_bytes()),
                _ => assert_eq!(result, 0x4002u16.to_le_bytes()),
            }
        }
    }
}

#[test]
fn other_types_are_summed_in_their_own() {
    let _guard = fake(&[]);
    let bench = Bench::new();
    // A chain of float64 loses the 1 beside 2^53; 3 * 128 * 128 needs int32; 448 is the largest float8.
    let tall = 2f64.powi(53);
    let doubles: Vec<u8> = [tall, 1.0, -tall].iter().flat_map(|x| x.to_le_bytes()).collect();
    let ones: Vec<u8> = [1.0f64; 3].iter().flat_map(|x| x.to_le_bytes()).collect();
    let mut integers = vec![0x80; 3];
    integers.resize(16, 0);
    let mut floats = vec![0x7e, 0x38, 0xb8];
    floats.resize(16, 0);
    type Case<'a> = (DType, DType, &'a [u8], &'a [u8], Vec<u8>);
    let cases: [Case<'_>; 4] = [
        (DType::F64, DType::F64, &doubles, &ones, 0f64.to_le_bytes().to_vec()),
        (DType::I8, DType::I32, &integers, &integers, 49152i32.to_le_bytes().to_vec()),
        (DType::E4M3, DType::F32, &floats, &floats, 200706f32.to_le_bytes().to_vec()),
        (DType::E4M3, DType::F16, &floats, &floats, 0x7c00u16.to_le_bytes().to_vec()),
    ];
    for (dtype, out, a, b, wanted) in cases {
        let address = bench.device.plain_alloc(96).unwrap();
        for (at, from) in [(0, a), (32, b)] {
            let work = copy(CopyKind::HostToDevice, address + at, from.as_ptr() as u64, from.len());
            bench.device.enqueue(bench.stream, &work).unwrap();
        }
        let mut shape = GemmShape::dense(1, 1, 3, dtype, out);
        (shape.b.transposed, shape.b.ld) = (true, 3);
        let plan = bench.plan(&shape, 0).unwrap();
        let call = GemmCall::new(&plan, address + 64, address, address + 32, None).unwrap();
        bench.device.enqueue(bench.stream, &Work::Library(call.to_arc())).unwrap();
        let result = read(&bench.device, bench.stream, address + 64, wanted.len());
        assert_eq!(result, wanted, "{dtype:?} to {out:?}");
    }
}

#[test]
fn a_product_keeps_its_algorithm_and_takes_a_loaded_one() {
    let _guard = fake(&[]);
    let bench = Bench::new();
    let shape = dense(2, 2, 64);
    let pinned = |workspace| GemmPlan::pinned(&bench.lt, &*bench.device, &shape, workspace).unwrap();
    let first = pinned(0);
    let asked = fake_cuda::counter("cublasLtMatmulAlgoGetHeuristic");
    assert_eq!(pinned(0).saved(), first.saved());
    assert_eq!(fake_cuda::counter("cublasLtMatmulAlgoGetHeuristic"), asked, "chosen once");
    assert_eq!(bench.lt.pinned(), [first.saved()]);
    let split = bench.plan(&shape, 4096).unwrap().saved();
    let chain = SavedAlgorithm { algo: first.saved().algo, ..split.clone() };
    bench.lt.pin(vec![chain.clone()]).unwrap();
    assert_eq!(pinned(4096).algorithm().split_k, 1, "the library would have chosen another");
    assert_eq!(bench.lt.pinned().len(), 2);
    let error = bench.lt.pin(vec![SavedAlgorithm { version: 120_000, ..chain }]).unwrap_err().to_string();
    assert!(error.contains("12.0.0") && error.contains("13.1.0"), "{error}");
}

#[test]
fn what_cannot_be_multiplied_is_refused_with_the_value() {
    let _guard = fake(&[]);
    let bench = Bench::new();
    type Change = fn(&mut GemmShape);
    let bad: [(Change, &str); 13] = [
        (|s| s.k = 0, "k is 0"),
        (|s| s.m = 1 << 31, "m is 2147483648"),
        (|s| s.batch = 0, "batch is 0"),
        (|s| s.a.ld = 4, "a has rows of 5 elements, but 4"),
        (|s| s.b.batch_stride = -1, "b has -1"),
        (|s| s.batch = 2, "matrices of out overlap"),
        (|s| s.a.alignment = 12, "alignment of 12"),
        (|s| s.b.alignment = 2, "alignment of 2"),
        (|s| s.out.transposed = true, "out is transposed"),
        (|s| (s.a.dtype, s.b.dtype) = (DType::I16, DType::I16), "a is int16"),
        (|s| s.a.dtype = DType::F16, "float16 and float32"),
        (|s| (s.a.dtype, s.b.dtype) = (DType::I8, DType::I8), "int8 and int8 to float32"),
        (|s| (s.a.dtype, s.b.dtype, s.out.dtype) = (DType::I8, DType::I8, DType::I32), "lines along k"),
    ];
    for (change, part) in bad {
        let mut shape = dense(3, 4, 5);
        change(&mut shape);
        let error = bench.plan(&shape, 0).err().unwrap();
        assert!(matches!(error, Error::Value(_) | Error::DType(_)) && error.to_string().contains(part), "{error}");
    }
    let mut half = GemmShape::dense(3, 4, 5, DType::F16, DType::F16);
    half.compute = Compute::Tf32;
    assert!(bench.plan(&half, 0).err().unwrap().to_string().contains("tf32"));
    let plan = bench.plan(&dense(3, 4, 5), 0).unwrap();
    let error = GemmCall::new(&plan, 0x1000, 0x1008, 0x1000, None).err().unwrap().to_string();
    assert!(error.contains("a begins at 0x1008") && error.contains("alignment=8"), "{error}");
}

#[test]
fn a_saved_choice_is_taken_for_the_same_library_and_product_only() {
    let _guard = fake(&[]);
    let bench = Bench::new();
    let shape = dense(3, 4, 5);
    let plan = bench.plan(&shape, 0).unwrap();
    let text = plan.saved().to_string();
    let saved: SavedAlgorithm = text.parse().unwrap();
    let load = |lt: &Arc<CublasLt>, shape: &GemmShape, workspace, saved: &SavedAlgorithm| {
        GemmPlan::new(lt, &*bench.device, shape, workspace, Some(saved)).map(|plan| plan.saved().to_string())
    };
    let asked = fake_cuda::counter("cublasLtMatmulAlgoGetHeuristic");
    assert_eq!(load(&bench.lt, &shape, 0, &saved).unwrap(), text);
    assert_eq!(fake_cuda::counter("cublasLtMatmulAlgoGetHeuristic"), asked, "the library is not asked to choose");
    let refused = |lt: &Arc<CublasLt>, shape: &GemmShape, workspace, saved: &SavedAlgorithm, part: &str| {
        let error = load(lt, shape, workspace, saved).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    };
    refused(&bench.lt, &dense(3, 4, 6), 0, &saved, "k=6");
    refused(&bench.lt, &shape, 4096, &saved, "0 bytes, and this is 4096");
    refused(&bench.lt, &shape, 0, &SavedAlgorithm { device: "8.0/108".into(), ..saved.clone() }, "8.0/108");
    refused(&bench.lt, &shape, 0, &SavedAlgorithm { algo: [7; 8], ..saved.clone() }, "cublasLtMatmulAlgoCheck");
    // An algorithm that needs more than is allowed, under the name of one that does not.
    let split = bench.plan(&shape, 4096).unwrap().saved().algo;
    refused(&bench.lt, &shape, 0, &SavedAlgorithm { algo: split, ..saved.clone() }, "4096 bytes");
    fake_cuda::configure("CUBLAS_VERSION", "130200").unwrap();
    refused(&library(), &shape, 0, &saved, "13.1.0, and this is 13.2.0");
}

#[test]
fn an_algorithm_whose_check_states_more_than_its_proposal_is_taken_where_it_is_proposed_again() {
    let _guard = fake(&[]);
    let bench = Bench::new();
    let shape = dense(3, 4, 5);
    let saved: SavedAlgorithm = bench.plan(&shape, 0).unwrap().saved().to_string().parse().unwrap();
    fake_cuda::configure("CUBLAS_CHECK", "4").unwrap();
    let again = GemmPlan::new(&bench.lt, &*bench.device, &shape, 0, Some(&saved)).unwrap();
    assert_eq!((again.workspace(), again.saved().algo), (0, saved.algo));
    let split = bench.plan(&shape, 4096).unwrap().saved().algo;
    let other = SavedAlgorithm { algo: split, ..saved };
    assert!(GemmPlan::new(&bench.lt, &*bench.device, &shape, 0, Some(&other)).is_err());
}

#[test]
fn missing_symbols_are_named() {
    let _guard = fake(&[("WITHHOLD", "cublasLtMatmul,cublasLtMatmulAlgoCheck")]);
    // SAFETY: the stand-in hands out calls with the library's signatures.
    let error = unsafe { CublasLt::from_proc(get_proc) }.unwrap_err();
    let text = error.to_string();
    assert!(
        matches!(error, Error::LibraryNotFound(_)) && text.contains("cublasLtMatmulAlgoCheck, cublasLtMatmul"),
        "{text}"
    );
}

const MADE: [(&str, &str); 3] = [
    ("cublasLtMatmulDescCreate", "cublasLtMatmulDescDestroy"),
    ("cublasLtMatrixLayoutCreate", "cublasLtMatrixLayoutDestroy"),
    ("cublasLtMatmulPreferenceCreate", "cublasLtMatmulPreferenceDestroy"),
];

#[test]
fn a_failure_at_any_step_of_a_plan_is_named_and_leaks_nothing() {
    let steps = [
        "cublasLtCreate:1",
        "cublasLtMatmulDescCreate:1",
        "cublasLtMatmulDescSetAttribute:1",
        "cublasLtMatrixLayoutCreate:3",
        "cublasLtMatrixLayoutSetAttribute:2",
        "cublasLtMatmulPreferenceCreate:1",
        "cublasLtMatmulPreferenceSetAttribute:4",
        "cublasLtMatmulAlgoGetHeuristic:1",
        "cublasLtMatmulAlgoConfigGetAttribute:1",
    ];
    for step in steps {
        let _guard = fake(&[]);
        let bench = Bench::new();
        let mut shape = dense(3, 4, 5);
        (shape.batch, shape.out.batch_stride, shape.a.transposed, shape.a.ld) = (2, 12, true, 3);
        fake_cuda::configure("FAIL", &format!("{step}:15")).unwrap();
        let error = bench.plan(&shape, 0).err().unwrap().to_string();
        let call = step.split(':').next().unwrap();
        assert!(error.starts_with(&format!("{call} failed with CUBLAS_STATUS_NOT_SUPPORTED (15)")), "{error}");
        bench.plan(&shape, 0).expect("the next try works");
        for (make, end) in MADE {
            let failed = u64::from(make == call);
            assert_eq!(fake_cuda::counter(make) - failed, fake_cuda::counter(end), "{step}: {make}");
        }
        assert!(fake_cuda::counter("cublasLtCreate") <= 2, "one handle for all plans");
    }
}

#[test]
fn a_graph_holds_a_librarys_work_in_the_lane_and_replays_the_same_bits() {
    let _guard = fake(&[]);
    let bench = Bench::new();
    let shape = dense(4, 4, 33);
    let (a, b, out) = (bench.matrix(132, 1), bench.matrix(132, 2), bench.matrix(16, 3));
    let plan = bench.plan(&shape, 0).unwrap();
    let eager = bench.run(&plan, &out, &a, &b);
    let lane = bench.device.lane_create(false, &[1, 2]).unwrap();
    let call = GemmCall::new(&plan, out.address, a.address, b.address, None).unwrap();
    let clear = copy(CopyKind::DeviceToDevice, out.address, a.address, 64);
    let commands = [command(clear), command(Work::Library(call.to_arc()))];
    let nodes = [
        GraphNode { command: &commands[0], after: &[], early: false, changes: false },
        GraphNode { command: &commands[1], after: &[0], early: false, changes: false },
    ];
    let green = fake_cuda::green_contexts()[&lane.0].context;
    for (lane, context) in [(None, bench.device.context()), (Some(lane), green)] {
        let streams =
            || fake_cuda::counter("cuStreamCreateWithPriority") + fake_cuda::counter("cuGreenCtxStreamCreate");
        let (made, ended) = (streams(), fake_cuda::counter("cuStreamDestroy"));
        let graph = bench.device.graph_build(&nodes, lane).unwrap().unwrap();
        assert_eq!(fake_cuda::graph_contexts(graph.0), [context; 2]);
        assert_eq!((streams() - made, fake_cuda::counter("cuStreamDestroy") - ended), (1, 1));
        for _ in 0..2 {
            bench.device.enqueue(bench.stream, &Work::Graph(graph)).unwrap();
            assert_eq!(bench.read(out.address, 16), eager);
        }
        bench.device.graph_destroy(graph);
    }
    let graphs = || fake_cuda::counter("cuGraphCreate") + fake_cuda::counter("cuStreamEndCapture");
    assert_eq!(graphs(), fake_cuda::counter("cuGraphDestroy"), "captured graphs and drafts are destroyed");
    for (step, part) in [
        ("cublasLtMatmul:1:13", "cublasLtMatmul failed with CUBLAS_STATUS_EXECUTION_FAILED (13)"),
        ("cuStreamBeginCapture:1:901", "cuStreamBeginCapture"),
        ("cuGraphAddChildGraphNode:1:1", "cuGraphAddChildGraphNode"),
    ] {
        fake_cuda::configure("FAIL", step).unwrap();
        let (made, ended) = (graphs(), fake_cuda::counter("cuGraphDestroy"));
        let error = bench.device.graph_build(&nodes, Some(lane)).unwrap_err().to_string();
        assert!(error.starts_with(part), "{error}");
        assert_eq!(graphs() - made, fake_cuda::counter("cuGraphDestroy") - ended, "{step}");
    }
    bench.device.lane_destroy(lane);
    bench.device.memory_info().expect("no stream is destroyed twice");
}

/// A resident kernel that writes down which calls were made while it was away.
#[derive(Default)]
struct Resident {
    multiplied: Mutex<Vec<u64>>,
}

impl Park for Resident {
    fn hold(&self) {
        self.multiplied.lock().push(fake_cuda::counter("cublasLtMatmul"));
    }
    fn await_left(&self, _limit: Duration, _check: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        Ok(())
    }
    fn resume(&self) {
        self.multiplied.lock().push(fake_cuda::counter("cublasLtMatmul"));
    }
}

/// An array of the context's pool.
fn array(ctx: &ExecCtx, values: &[f32]) -> Arc<Storage> {
    let storage = ctx.allocate(values.len() * 4, &mut || Ok(())).unwrap();
    let bytes = values.len() * 4;
    let work = copy(CopyKind::HostToDevice, storage.ptr(), values.as_ptr() as u64, bytes);
    submit(ctx, command(work)).unwrap();
    storage
}

fn values_of(ctx: &ExecCtx, storage: &Storage, count: usize) -> Vec<f32> {
    let mut values = vec![0f32; count];
    submit(ctx, command(copy(CopyKind::DeviceToHost, values.as_mut_ptr() as u64, storage.ptr(), count * 4))).unwrap();
    ctx.stream.synchronize(&mut || Ok(())).unwrap();
    values
}

#[test]
fn products_go_through_the_submit_path() {
    let _guard = fake(&[]);
    let state = DeviceState::new(device(), ArenaMode::Vmm, true).unwrap();
    let ctx = ExecCtx::default_for(state);
    let lt = library();
    let shape = dense(2, 3, 4);
    let numbers: Vec<f32> = (0..12).map(|i| i as f32 / 7.0).collect();
    let (a, b, out) = (array(&ctx, &numbers[..8]), array(&ctx, &numbers), array(&ctx, &[0.0; 6]));
    let resident = Arc::new(Resident::default());
    let parker: Arc<dyn Park> = resident.clone();
    register_parker(parker.clone());
    let plan = GemmPlan::new(&lt, &*state.device, &shape, 0, None).unwrap();
    let call = GemmCall::new(&plan, out.ptr(), a.ptr(), b.ptr(), None).unwrap();
    let uses = [(&out, Access::Write), (&a, Access::Read), (&b, Access::Read)].map(|(storage, access)| UseRef {
        storage,
        access,
        tag: Default::default(),
    });
    assert!(!plan.is_loaded());
    call_library(&ctx, &call, &uses).unwrap();
    call_library(&ctx, &call, &uses).unwrap();
    unregister_parker(&parker);
    assert_eq!(*resident.multiplied.lock(), [0, 0, 0, 1], "away for the choice and the first call, which was recorded");
    assert_eq!((fake_cuda::counter("cublasLtMatmul"), fake_cuda::counter("cuStreamEndCapture")), (3, 1));
    let wanted = expected(&shape, &numbers, &numbers, &[0.0; 6]);
    assert_eq!(values_of(&ctx, &out, 6), wanted);
    let lines: Vec<String> = ctx.stream.history().iter().map(|record| record.describe()).collect();
    assert!(lines.iter().any(|line| line.contains("library call cublasLtMatmul m=2 n=3 k=4")), "{lines:?}");
    // Recorded, it runs with each replay and on whatever lane that is.
    let recorder = Recorder::new(&ctx, None, Vec::new()).unwrap();
    let mut inside = ctx.clone();
    inside.recorder = Some(recorder.clone());
    call_library(&inside, &call, &uses).unwrap();
    submit(&inside, Command { work: Work::Library(call.to_arc()), uses: Default::default(), cost_key: 0 }).unwrap();
    let graph = recorder.finish(state);
    assert_eq!(graph.num_nodes(), 2);
    submit(&ctx, command(copy(CopyKind::DeviceToDevice, out.ptr(), a.ptr(), 24))).unwrap();
    assert_ne!(values_of(&ctx, &out, 6), wanted);
    for _ in 0..2 {
        graph.replay(&ctx).unwrap();
        assert_eq!(values_of(&ctx, &out, 6), wanted);
    }
    // A failed call is the caller's error, and the stream goes on.
    fake_cuda::configure("FAIL", "cublasLtMatmul:1:14").unwrap();
    let error = call_library(&ctx, &call, &uses).unwrap_err().to_string();
    assert!(error.contains("cublasLtMatmul failed") && error.contains("(14)"), "{error}");
    call_library(&ctx, &call, &uses).unwrap();
}

#[test]
fn a_plan_of_another_device_is_refused() {
    let _guard = fake(&[("DEVICES", "2")]);
    let driver = driver().unwrap();
    let (first, second) = (CudaDevice::open(driver.clone(), 0).unwrap(), CudaDevice::open(driver, 1).unwrap());
    let lt = library();
    let shape = dense(2, 3, 4);
    let plan = GemmPlan::new(&lt, &*first, &shape, 0, None).unwrap();
    let call = GemmCall::new(&plan, 0x1000, 0x1000, 0x1000, None).unwrap();
    let error = call.prepare(&*second).unwrap_err().to_string();
    assert!(error.contains("another device"), "{error}");
    GemmPlan::new(&lt, &*second, &shape, 0, None).unwrap();
    assert_eq!(fake_cuda::counter("cublasLtCreate"), 2, "a handle per device");
}
