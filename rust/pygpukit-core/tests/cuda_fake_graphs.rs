//! Launch attributes, workspace and graph parameters on the fake driver: what reaches the driver, and how often.
#![cfg(unix)]

mod fake;

use std::sync::Arc;

use fake::*;
use pygpukit_core::Result;
use pygpukit_core::command::{Access, ArgTag, Command, CopyKind, Fill, LaunchAttributes, Use, Work};
use pygpukit_core::exec::ExecCtx;
use pygpukit_core::graph::{ArrayParameter, CHUNK, Given, Graph, GraphMemory, Recorder, Scalars, Values};
use pygpukit_core::kernel::{Kernel, KernelMeta, Library};
use pygpukit_core::launch::submit;
use pygpukit_core::memory::{ArenaMode, Storage};
use pygpukit_core::runtime::DeviceState;

const EARLY: (u32, [u32; 3]) = (6, [1, 0, 0]);

struct Bench {
    state: &'static DeviceState,
    ctx: ExecCtx,
    add: Arc<Kernel>,
}

fn never() -> Result<()> {
    Ok(())
}

fn bench() -> Bench {
    let state = DeviceState::new(device(), ArenaMode::Vmm, false).unwrap();
    let library = Library::load(&state.device, IMAGE).unwrap();
    let add = Kernel::new(&library, "add", "add", KernelMeta::default()).unwrap();
    Bench { state, ctx: ExecCtx::default_for(state), add }
}

fn used(storage: &Arc<Storage>, access: Access) -> Use {
    Use { storage: storage.clone(), access, tag: ArgTag::default() }
}

impl Bench {
    fn array(&self) -> Arc<Storage> {
        self.ctx.allocate(4096, &mut never).unwrap()
    }

    /// out, x and w of `add`, with what it does to them; `early` asks for the programmatic attribute.
    fn step(&self, ctx: &ExecCtx, early: bool, uses: [(&Arc<Storage>, Access); 3]) {
        let mut args = Vec::new();
        uses.iter().for_each(|(storage, _)| args.extend(storage.ptr().to_le_bytes()));
        args.extend([0; 4]);
        let mut work = launch(&self.add, &args);
        work.attributes = LaunchAttributes { programmatic: early, ..Default::default() };
        let uses = uses.iter().map(|(storage, access)| used(storage, *access)).collect();
        submit(ctx, Command { work: Work::Kernel(work), uses, cost_key: 0 }).unwrap();
    }

    fn capture(&self, parameters: Vec<ArrayParameter>, record: impl FnOnce(&ExecCtx)) -> Graph {
        let recorder = Recorder::new(&self.ctx, None, parameters).unwrap();
        let ctx = self.ctx.recording(&recorder);
        record(&ctx);
        recorder.finish(self.state)
    }

    fn wait(&self) {
        self.state.synchronize(&mut never).unwrap();
    }
}

/// Which launches of the log were started early.
fn early() -> Vec<bool> {
    fake_cuda::launches().iter().map(|launch| launch.attributes.contains(&EARLY)).collect()
}

use Access::{Constant, Read, Write};

#[test]
fn a_kernel_starts_early_unless_its_constants_may_still_be_written() {
    for graph in [false, true] {
        let _guard = fake(&[]);
        let b = bench();
        let (w, x, y, z) = (b.array(), b.array(), b.array(), b.array());
        let steps = |ctx: &ExecCtx| {
            b.step(ctx, true, [(&x, Write), (&y, Read), (&w, Constant)]); // no predecessor that is a kernel
            b.step(ctx, true, [(&y, Write), (&x, Read), (&w, Constant)]); // early, though it reads what the first writes
            b.step(ctx, true, [(&z, Write), (&y, Read), (&x, Constant)]); // the first one writes x and may still run
            b.step(ctx, true, [(&w, Write), (&y, Read), (&x, Constant)]); // it has ended now
            b.step(ctx, true, [(&y, Write), (&x, Read), (&w, Constant)]); // its predecessor writes w
            b.step(ctx, false, [(&x, Write), (&y, Read), (&w, Constant)]); // not asked for
            b.step(ctx, true, [(&z, Write), (&x, Read), (&w, Read)]);
            let fill = Fill { dst: x.ptr(), value: 0, width: 4, count: 8 };
            submit(ctx, Command { work: Work::Fill(fill), uses: [used(&x, Write)].into_iter().collect(), cost_key: 0 })
                .unwrap();
            b.step(ctx, true, [(&z, Write), (&x, Read), (&w, Read)]); // behind something else than a kernel
        };
        if graph {
            b.capture(Vec::new(), steps).replay(&b.ctx).unwrap();
        } else {
            steps(&b.ctx);
        }
        b.wait();
        assert_eq!(early(), [false, true, false, true, false, false, true, false], "in a graph: {graph}");
    }
}

#[test]
fn nothing_starts_early_behind_a_wait_or_a_graph_or_where_the_device_cannot() {
    for (capability, can) in [("9.0", true), ("8.6", false)] {
        let _guard = fake(&[("CAPABILITY", capability)]);
        let b = bench();
        let (x, y, z) = (b.array(), b.array(), b.array());
        let step = |ctx: &ExecCtx| b.step(ctx, true, [(&x, Write), (&y, Read), (&z, Read)]);
        step(&b.ctx);
        step(&b.ctx);
        let other = b.state.stream(0).unwrap();
        step(&b.ctx.on_stream(&other));
        fake_cuda::configure("LAZY", "3").unwrap();
        step(&b.ctx.on_stream(&other));
        b.ctx.stream.wait_for(&other, other.seq()).unwrap();
        step(&b.ctx);
        let graph = b.capture(Vec::new(), |ctx| {
            step(ctx);
            step(ctx);
        });
        graph.replay(&b.ctx).unwrap();
        step(&b.ctx);
        step(&b.ctx);
        b.wait();
        let here: Vec<bool> = early();
        // In the order they ran: two here, one and one there, then the rest.
        assert_eq!(here.len(), 9);
        assert_eq!(here.iter().filter(|early| **early).count(), if can { 4 } else { 0 }, "{here:?}");
        assert!(!here[4] && !here[5] && !here[7], "{here:?}");
    }
}

#[test]
fn counters_are_zeroed_once_per_stream_and_once_per_graph() {
    let _guard = fake(&[]);
    let b = bench();
    let fills = || fake_cuda::counter("cuMemsetD32Async");
    let before = fills();
    let counters = b.ctx.counters(100, 0, &mut never).unwrap();
    assert_eq!((counters.bytes(), fills() - before), (256, 1));
    for _ in 0..3 {
        assert_eq!(b.ctx.counters(256, 0, &mut never).unwrap().ptr(), counters.ptr());
    }
    assert_eq!(fills() - before, 1);
    let other = b.ctx.on_stream(&b.state.stream(0).unwrap());
    assert_ne!(other.counters(1, 0, &mut never).unwrap().ptr(), counters.ptr());
    assert_eq!(fills() - before, 2);
    let x = b.array();
    let graph = b.capture(Vec::new(), |ctx| {
        for _ in 0..2 {
            let own = ctx.counters(4, 0, &mut never).unwrap();
            assert_ne!(own.ptr(), counters.ptr());
            b.step(ctx, false, [(&x, Write), (&x, Read), (&own, Access::ReadWrite)]);
        }
    });
    assert_eq!((graph.num_nodes(), fills() - before), (2, 3));
    graph.replay(&b.ctx).unwrap();
    graph.replay(&other).unwrap();
    b.wait();
    assert_eq!(fills() - before, 3);
    assert_eq!(fake_cuda::launches().len(), 4);
}

#[test]
fn exchanged_arrays_change_the_executable_and_build_it_anew_only_where_it_cannot_be_changed() {
    let update = "cuGraphExecKernelNodeSetParams";
    let cases = [(&[][..], 1), (&[("WITHHOLD", update)], 3), (&[("FAIL", "cuGraphExecKernelNodeSetParams:1:1:*")], 3)];
    for (settings, built) in cases {
        let _guard = fake(settings);
        let b = bench();
        let (x, y, out) = (b.array(), b.array(), b.array());
        let parameter = ArrayParameter { first: x.ptr(), bytes: 4096, storage: x.clone() };
        let graph = b.capture(vec![parameter], |ctx| {
            b.step(ctx, false, [(&out, Write), (&x, Read), (&y, Read)]);
            let copied = copy(CopyKind::DeviceToDevice, out.ptr() + 64, x.ptr() + 128, 32);
            let uses = [used(&out, Write), used(&x, Read)].into_iter().collect();
            submit(ctx, Command { work: copied, uses, cost_key: 0 }).unwrap();
            b.step(ctx, false, [(&y, Write), (&out, Read), (&out, Read)]);
        });
        let others = [b.array(), b.array()];
        for (value, array) in (1..).zip(&others) {
            let fill = Fill { dst: array.ptr(), value, width: 1, count: 4096 };
            submit(&b.ctx, Command { work: Work::Fill(fill), uses: Default::default(), cost_key: 0 }).unwrap();
        }
        graph.prepare(&b.ctx).unwrap();
        for (value, array) in (1..).zip(&others) {
            // The second replay has nothing to change.
            for round in 0..2 {
                let given = Given { first: array.ptr(), storage: array.clone(), writeable: true };
                let arrays = if round == 0 { vec![(0, given)] } else { Vec::new() };
                graph.replay_with(&b.ctx, Values { arrays, ..Values::default() }).unwrap();
            }
            b.wait();
            // SAFETY: the fake device's memory is host memory.
            let copied = unsafe { std::slice::from_raw_parts((out.ptr() + 64) as *const u8, 32) };
            assert_eq!(copied, [value as u8; 32]);
        }
        let log = fake_cuda::launches();
        let word =
            |launch: usize, at: usize| u64::from_le_bytes(log[launch].args[8 * at..8 * at + 8].try_into().unwrap());
        for launch in 0..8 {
            let array = &others[launch / 4];
            let want =
                if launch % 2 == 0 { [out.ptr(), array.ptr(), y.ptr()] } else { [y.ptr(), out.ptr(), out.ptr()] };
            assert_eq!([0, 1, 2].map(|at| word(launch, at)), want, "launch {launch} with {settings:?}");
        }
        assert_eq!(fake_cuda::counter("cuGraphInstantiateWithFlags"), built, "{settings:?}");
        if built == 1 {
            assert_eq!(fake_cuda::counter(update), 2);
            assert_eq!(fake_cuda::counter("cuGraphExecMemcpyNodeSetParams"), 2);
        }
        drop(graph);
        assert_eq!(fake_cuda::counter("cuGraphCreate"), fake_cuda::counter("cuGraphDestroy"));
        assert_eq!(fake_cuda::counter("cuGraphExecDestroy"), built);
    }
}

#[test]
fn numbers_of_a_replay_are_one_copy_from_page_locked_memory_that_is_not_waited_for() {
    let _guard = fake(&[("LAZY", "4")]);
    let b = bench();
    let x = b.array();
    let mut scalars = Scalars::default();
    scalars.grow(b.ctx.allocate(CHUNK, &mut never).unwrap());
    let graph = b.capture(Vec::new(), |ctx| {
        let block = scalars.place(0).0;
        let copied = copy(CopyKind::DeviceToDevice, x.ptr(), block.ptr(), 48);
        let uses = [used(&x, Write), used(&block, Read)].into_iter().collect();
        submit(ctx, Command { work: copied, uses, cost_key: 0 }).unwrap();
        let sum = copy(CopyKind::DeviceToDevice, x.ptr() + 48, x.ptr(), 48);
        submit(ctx, Command { work: sum, uses: Default::default(), cost_key: 0 }).unwrap();
    });
    let copies = || fake_cuda::counter("cuMemcpyHtoDAsync");
    let before = copies();
    let replay = |value: u8| {
        let numbers = (0..3).rev().map(|slot| (slot, [value + slot as u8; 16])).collect();
        graph.replay_with(&b.ctx, Values { scalars: Some((&scalars, numbers)), ..Values::default() }).unwrap();
    };
    for round in 0..4 {
        replay(10 * round);
    }
    assert_eq!(copies() - before, 4);
    // The former replays have not run, so each has a block of its own.
    assert_eq!(b.state.pinned.stats().used, 0);
    assert!(b.state.pinned.waiting().unwrap() >= 3, "{:?}", b.state.pinned.stats());
    b.wait();
    // SAFETY: the fake device's memory is host memory.
    let read = unsafe { std::slice::from_raw_parts((x.ptr() + 48) as *const u8, 48) };
    let want: Vec<u8> = [[30u8; 16], [31; 16], [32; 16]].concat();
    assert_eq!(read, want);
    let gap = vec![(0, [1; 16]), (2, [3; 16])];
    graph.replay_with(&b.ctx, Values { scalars: Some((&scalars, gap)), ..Values::default() }).unwrap();
    b.wait();
    assert_eq!(copies() - before, 6);
    assert_eq!((read[0], read[16], read[32]), (1, 31, 3), "a number that was not named keeps its value");
}

#[test]
fn graphs_that_share_memory_wait_for_each_other_on_the_device() {
    let _guard = fake(&[("LAZY", "6")]);
    let b = bench();
    let memory = GraphMemory::shared(&b.ctx).unwrap();
    let out = b.array();
    let capture = |value: u32| {
        let recorder = Recorder::new(&b.ctx, Some(memory.clone()), Vec::new()).unwrap();
        let ctx = b.ctx.recording(&recorder);
        let own = ctx.allocate(256, &mut never).unwrap();
        let fill = Work::Fill(Fill { dst: own.ptr(), value, width: 4, count: 64 });
        submit(&ctx, Command { work: fill, uses: [used(&own, Write)].into_iter().collect(), cost_key: 0 }).unwrap();
        let copied = copy(CopyKind::DeviceToDevice, out.ptr() + u64::from(value) * 256, own.ptr(), 256);
        let uses = [used(&out, Write), used(&own, Read)].into_iter().collect();
        submit(&ctx, Command { work: copied, uses, cost_key: 0 }).unwrap();
        (recorder.finish(b.state), own)
    };
    let (first, one) = capture(1);
    let (second, two) = capture(2);
    assert_eq!(one.ptr(), two.ptr());
    let bytes = memory.shared_bytes();
    let other = b.ctx.on_stream(&b.state.stream(0).unwrap());
    let waits = fake_cuda::counter("cuStreamWaitEvent");
    first.replay(&b.ctx).unwrap();
    second.replay(&other).unwrap();
    assert!(fake_cuda::counter("cuStreamWaitEvent") > waits, "the second stream waits for the first");
    first.replay(&other).unwrap();
    b.wait();
    for value in [1u32, 2] {
        // SAFETY: the fake device's memory is host memory.
        let read = unsafe { std::slice::from_raw_parts((out.ptr() + u64::from(value) * 256) as *const u32, 64) };
        assert_eq!(read, [value; 64]);
    }
    assert_eq!(memory.shared_bytes(), bytes);
}
