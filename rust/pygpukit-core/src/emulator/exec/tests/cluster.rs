//! Clusters: kernels that NVRTC compiled, and what the instructions refuse.

use crate::emulator::testing::{Aligned, Case, kernel};

const CLUSTER: &str = include_str!("cuda/cluster.sm_90a.ptx");

/// Run a kernel in order, in random orders and checked; `args` follow the output.
fn each_way(name: &str, (blocks, threads, cluster): (u32, u32, u32), args: &[u64], words: usize) -> Vec<Vec<u32>> {
    let mut all = Vec::new();
    for (fuzz, check) in [(None, false), (Some(1), false), (Some(2), false), (None, true), (Some(3), true)] {
        let mut out = vec![u32::MAX; words];
        let mut memory = Aligned::new(&out);
        let mut case = Case { kernel: name, cluster, ..Case::new(CLUSTER, blocks, threads) };
        (case.options.fuzz, case.options.check) = (fuzz, check);
        let args: Vec<u64> = std::iter::once(memory.address()).chain(args.iter().copied()).collect();
        case.run(&args).unwrap_or_else(|error| panic!("{name} (fuzz {fuzz:?}, check {check}): {error}"));
        memory.copy_to(&mut out);
        all.push(out);
    }
    all
}

#[test]
fn blocks_read_each_other() {
    for out in each_way("neighbour", (12, 64, 0), &[], 12 * 64) {
        for (at, value) in out.iter().enumerate() {
            let (block, thread) = (at as u32 / 64, at as u32 % 64);
            let next = block / 4 * 4 + (block + 1) % 4;
            assert_eq!(*value, 2 * (1000 * next + thread) + 11_000_000 * (next % 4), "block {block} thread {thread}");
        }
    }
}

#[test]
fn atomics_on_the_memory_of_others() {
    let input: Vec<u32> = (0..5000u32).map(|k| k.wrapping_mul(2_654_435_761) >> 7).collect();
    for cluster in [1, 2, 8] {
        let mut want = vec![0u32; 8 / cluster as usize * 32 * cluster as usize];
        for (i, value) in input.iter().enumerate() {
            let block = i as u32 / 96 % 8;
            want[(block / cluster * 32 * cluster + value % (32 * cluster)) as usize] += 1;
        }
        let mut memory = Aligned::new(&input);
        for out in each_way("histogram", (8, 96, cluster), &[memory.address(), 5000], want.len()) {
            assert_eq!(out, want, "clusters of {cluster}");
        }
    }
}

#[test]
fn arrivals_at_an_object_of_another_block() {
    for out in each_way("gather", (8, 40, 4), &[], 8) {
        assert_eq!(out, (7..15).collect::<Vec<u32>>());
    }
}

#[test]
fn a_block_must_not_leave_early() {
    let mut out = [0u32; 2];
    let case = Case { kernel: "leave", cluster: 2, ..Case::new(CLUSTER, 2, 32) };
    let error = case.run(&[out.as_mut_ptr() as u64]).unwrap_err();
    assert!(error.contains("rank 1, which has ended"), "{error}");
}

fn run_text(body: &str, blocks: u32, threads: u32, cluster: u32) -> Result<Vec<u32>, String> {
    let text = kernel(body);
    let mut out = vec![0u32; (blocks * threads) as usize];
    Case { cluster, ..Case::new(&text, blocks, threads) }.run(&[out.as_mut_ptr() as u64, 0, 0])?;
    Ok(out)
}

#[test]
fn ranks_and_shapes() {
    let out = run_text(
        "mov.u32 %r10, %cluster_ctarank;
    mov.u32 %r11, %cluster_nctarank;
    mov.u32 %r12, %clusterid.x;
    mov.u32 %r13, %nclusterid.x;
    mad.lo.u32 %r14, %r10, 10, %r11;
    mad.lo.u32 %r14, %r14, 10, %r12;
    mad.lo.u32 %r14, %r14, 10, %r13;
    st.global.u32 [%rd3], %r14;",
        6,
        1,
        3,
    );
    assert_eq!(out, Ok(vec![302, 1302, 2302, 312, 1312, 2312]));
    assert!(run_text("", 5, 1, 2).unwrap_err().contains("not a multiple"));
    assert!(run_text("", 32, 1, 32).unwrap_err().contains("the most is 16"));
}

/// Threads that have exited do not keep others waiting, and phases follow each other.
#[test]
fn many_phases_and_threads_that_leave() {
    let out = run_text(
        "setp.ge.u32 %p0, %r2, 70;
    @%p0 exit;
    mov.u32 %r10, 0;
LOOP:
    barrier.cluster.arrive.release;
    barrier.cluster.wait.acquire;
    add.u32 %r10, %r10, 1;
    setp.lt.u32 %p1, %r10, 10;
    @%p1 bra LOOP;
    st.global.u32 [%rd3], %r10;",
        4,
        40,
        2,
    );
    let want: Vec<u32> = (0..160).map(|thread| if thread < 70 { 10 } else { 0 }).collect();
    assert_eq!(out, Ok(want));
}

#[test]
fn what_is_refused() {
    for (body, text) in [
        ("barrier.cluster.wait;", "without an arrival"),
        ("barrier.cluster.arrive;\n barrier.cluster.arrive;", "a second arrival"),
        (
            "setp.eq.u32 %p0, %r1, 0;\n @%p0 bra END;\n barrier.cluster.arrive;\n barrier.cluster.wait;\nEND: bar.sync 0;\n @%p0 trap;",
            "trap",
        ),
        ("setp.lt.u32 %p0, %r0, 4;\n @%p0 barrier.cluster.arrive.aligned;\n bar.sync 0;", "divergent"),
        ("mov.u32 %r10, 0;\n mapa.shared::cluster.u32 %r11, %r10, 2;", "rank 2 of a cluster of 2"),
        ("mov.u32 %r11, 0x5000000;\n ld.shared::cluster.u32 %r12, [%r11];", "which has"),
        ("setmaxnreg.inc.sync.aligned.u32 100;", "multiple of 8"),
    ] {
        let error = run_text(&format!(".shared .align 4 .b8 bytes[64];\n{body}"), 2, 32, 2).unwrap_err();
        assert!(error.contains(text), "{body}: {error}");
    }
    let one_sided = "setp.eq.u32 %p0, %r1, 0;\n @%p0 bra LOOP;\n barrier.cluster.arrive;\n barrier.cluster.wait;\n ret;
LOOP: mov.u32 %r10, 1;\n bar.sync 1, 64;";
    let error = run_text(one_sided, 2, 32, 2).unwrap_err();
    assert!(error.contains("deadlock"), "{error}");
    assert!(run_text("setmaxnreg.dec.sync.aligned.u32 40;", 1, 32, 0).is_ok());
}
