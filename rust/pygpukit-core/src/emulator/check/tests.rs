//! Small kernels with and without bugs; larger ones are compiled and run in the Python tests.

use std::cell::Cell;
use std::sync::Arc;

use super::clock::Time;
use crate::emulator::testing::{Aligned, Case, Everything, kernel};
use crate::emulator::{Chain, Image, Launch, Options};

thread_local! {
    static FIRST_TIME: Cell<Time> = const { Cell::new(0) };
}

/// The time before the first access of a launch.
pub(super) fn first_time() -> Time {
    FIRST_TIME.get()
}

/// Run instructions with 64 threads, checked, see `testing::kernel`; what the checker says, empty for nothing.
fn report(body: &str, fuzz: Option<u64>) -> String {
    let text = kernel(&format!(".shared .align 8 .b8 s[256];\n{body}"));
    let options = Options { check: true, fuzz, max_instructions: Some(1_000_000), ..Options::default() };
    let case = Case { options, ..Case::new(&text, 2, 64) };
    let [mut a, mut b, mut c] = [Aligned::new(&[0u64; 128]), Aligned::new(&[0u64; 128]), Aligned::new(&[0u64; 128])];
    case.run(&[a.address(), b.address(), c.address()]).err().unwrap_or_default()
}

const ADDRESSES: &str = "
    shl.b32 %r10, %r0, 2;
    mov.u32 %r11, s;
    add.u32 %r12, %r11, %r10;
    sub.u32 %r13, 252, %r10;
    add.u32 %r13, %r11, %r13;
";

#[test]
fn a_barrier_orders_the_threads_of_a_block() {
    let with = format!("{ADDRESSES} st.shared.u32 [%r12], %r0; bar.sync 0; ld.shared.u32 %r14, [%r13];");
    let without = format!(
        "{ADDRESSES} st.shared.u32 [%r12], 1; bar.sync 0; st.shared.u32 [%r12], %r0; ld.shared.u32 %r14, [%r13];"
    );
    for seed in [None, Some(1), Some(2), Some(3)] {
        assert_eq!(report(&with, seed), "");
        let text = report(&without, seed);
        assert!(text.contains("data race in shared memory") && text.contains("__syncthreads()"), "{text}");
    }
}

#[test]
fn a_barrier_of_the_warp_orders_its_lanes() {
    let exchange = |sync: &str| {
        format!(
            "{ADDRESSES} xor.b32 %r15, %r12, 4; st.shared.u32 [%r12], 1; bar.sync 0;
             st.shared.u32 [%r12], %r0; {sync} ld.shared.u32 %r14, [%r15];"
        )
    };
    for seed in [None, Some(1), Some(2)] {
        assert_eq!(report(&exchange("bar.warp.sync 0xffffffff;"), seed), "");
        // Shuffles meet, but order no memory.
        for none in ["", "shfl.sync.idx.b32 %r20, %r0, 0, 31, 0xffffffff;"] {
            let text = report(&exchange(none), seed);
            assert!(text.contains("data race in shared memory") && text.contains("__syncwarp()"), "{text}");
        }
    }
}

#[test]
fn shared_memory_has_no_value_at_first() {
    let text = report(&format!("{ADDRESSES} ld.shared.u32 %r14, [%r12];"), None);
    assert!(text.contains("uninitialised shared memory: read of s[0]"), "{text}");
    // The next block begins anew too.
    let first = "setp.ne.u32 %p1, %r1, 0; @!%p1 st.shared.u32 [%r12], 1; bar.sync 0; ld.shared.u32 %r14, [%r12];";
    let text = report(&format!("{ADDRESSES} {first}"), None);
    assert!(text.contains("uninitialised") && text.contains("block [1, 0, 0]"), "{text}");
}

#[test]
fn variables_of_shared_memory_have_bounds() {
    let second = ".shared .align 8 .b8 t[64];";
    // An address that is computed from `s` is one of `s`, whatever lies behind.
    let text = report(&format!("{second} {ADDRESSES} st.shared.u32 [%r12+256], 1;"), None);
    assert!(text.contains("out of bounds: write of s[64], which has 64 elements (4 bytes past its end)"), "{text}");
    let text = report(&format!("{second} mov.u32 %r14, t; ld.shared.u32 %r15, [%r14+-4];"), None);
    assert!(text.contains("out of bounds: read of t[-1], which has 16 elements (4 bytes before its start)"), "{text}");
    // One that is computed from both may be in either, and so may one from memory.
    let either = format!("{ADDRESSES} mov.u32 %r14, t; setp.gt.u32 %p1, %r0, 999; selp.b32 %r15, %r14, %r11, %p1;");
    assert_eq!(report(&format!("{second} {either} st.shared.u32 [%r15+256], 1;"), None), "");
    let loaded =
        format!("{ADDRESSES} add.u32 %r14, %r11, 256; st.shared.u32 [%r12], %r14; ld.shared.u32 %r15, [%r12];");
    assert_eq!(report(&format!("{second} {loaded} st.shared.u32 [%r15], 1;"), None), "");
}

#[test]
fn elements_of_a_vector_need_values_where_they_are_looked_at() {
    let load = |then: &str| {
        let first = "shl.b32 %r10, %r0, 4; mov.u32 %r11, v; add.u32 %r12, %r11, %r10; st.shared.u32 [%r12], 1;";
        let load = "ld.shared.v4.u32 {%r20, %r21, %r22, %r23}, [%r12];";
        report(&format!(".shared .align 16 .b8 v[1024]; {first} {load} {then}"), None)
    };
    assert_eq!(load("add.u32 %r24, %r20, 1;"), "");
    // A value that is only copied may be padding.
    assert_eq!(load("mov.u32 %r24, %r23; st.global.v2.u32 [%rd5], {%r20, %r24};"), "");
    for used in ["add.u32 %r24, %r20, %r23;", "mov.u32 %r24, %r23; setp.eq.u32 %p1, %r24, 0;"] {
        let text = load(used);
        assert!(text.contains("uninitialised shared memory: read of v[0] (byte 12 of it)"), "{text}");
    }
}

#[test]
fn atomic_operations_do_not_race_with_each_other() {
    let clear = "setp.eq.u32 %p1, %r0, 0; @%p1 st.shared.u32 [s], 0; bar.sync 0;";
    assert_eq!(
        report(&format!("{clear} atom.shared.add.u32 %r14, [s], 1; bar.sync 0; ld.shared.u32 %r14, [s];"), None),
        ""
    );
    let text = report(&format!("{clear} atom.shared.add.u32 %r14, [s], 1; ld.shared.u32 %r14, [s];"), None);
    assert!(text.contains("data race") && text.contains("an atomic operation by thread"), "{text}");
    // Without a barrier the first thread's store is not ordered with what the other lanes do.
    let text = report("setp.eq.u32 %p1, %r0, 0; @%p1 st.shared.u32 [s], 0; atom.shared.add.u32 %r14, [s], 1;", None);
    assert!(text.contains("data race"), "{text}");
}

#[test]
fn time_that_begins_anew_makes_up_no_races() {
    // Each thread writes its word and reads that of its neighbour, 40 times, in shared and in global memory.
    let body = format!(
        "{ADDRESSES} mov.u32 %r20, 0; xor.b32 %r15, %r12, 4; mov.u32 %r21, %r0; mul.wide.u32 %rd20, %r21, 4;
         mov.u32 %r22, %r1; mul.wide.u32 %rd22, %r22, 256; add.u64 %rd20, %rd20, %rd22;
         add.u64 %rd20, %rd20, %rd0; xor.b64 %rd21, %rd20, 4;
         AGAIN: st.shared.u32 [%r12], %r20; st.global.u32 [%rd20], %r20; SYNC
         ld.shared.u32 %r14, [%r15]; ld.global.u32 %r14, [%rd21]; SYNC
         add.u32 %r20, %r20, 1; setp.lt.u32 %p2, %r20, 40; @%p2 bra AGAIN;"
    );
    for sync in ["bar.sync 0;", "bar.warp.sync 0xffffffff;", "bar.sync 1, 64;"] {
        for before in [3, 50, 77, 200, 333] {
            FIRST_TIME.set(Time::MAX - before);
            let text = report(&body.replace("SYNC", sync), None);
            FIRST_TIME.set(0);
            assert_eq!(text, "", "{before} accesses before the end of time");
        }
    }
    // Errors are found as before.
    FIRST_TIME.set(Time::MAX - 50);
    let text = report(&body.replace("SYNC", ""), None);
    FIRST_TIME.set(0);
    assert!(text.contains("data race"), "{text}");
}

/// Run instructions as kernels that follow each other, with 64 threads in 2 blocks, all but the first one started early;
/// what the checker says of the last one. Each has its first time.
fn report_chain(bodies: &[(&str, Time)]) -> String {
    let mut memory: [Aligned; 3] = std::array::from_fn(|_| Aligned::new(&[0u64; 128]));
    let args: Vec<u8> = memory.iter_mut().flat_map(|buffer| buffer.address().to_le_bytes()).collect();
    let mut chain = Chain::default();
    for (at, (body, first)) in bodies.iter().enumerate() {
        let image = Image::load::<String>(&kernel(body), |_| Ok(0)).expect("a kernel");
        let (index, _) = image.kernel("k").expect("the kernel");
        let launch = Launch {
            kernel: index,
            name: "k",
            grid: [2, 1, 1],
            block: [64, 1, 1],
            shared: 0,
            cluster: [0; 3],
            cooperative: false,
            args: &args,
            arrays: &[],
        };
        let options = Options { check: true, keep: true, beside: chain.follow(at > 0), ..Options::default() };
        FIRST_TIME.set(*first);
        let running = image.launch(&launch, Arc::new(Everything), options).expect("a launch");
        FIRST_TIME.set(0);
        match running.wait() {
            Ok(_) => chain.push(running.ended().expect("what it touched")),
            Err(text) if at + 1 == bodies.len() => return text,
            Err(text) => panic!("{text}"),
        }
    }
    String::new()
}

#[test]
fn early_accesses_are_found_though_time_begins_anew() {
    let write = "st.global.u32 [%rd3], %r0; ld.global.u32 %r14, [%rd4]; ld.global.u32 %r14, [%rd4];";
    let read = "ld.global.u32 %r14, [%rd3];";
    let ordered =
        "griddepcontrol.wait; ld.global.u32 %r14, [%rd3]; ld.global.u32 %r14, [%rd3]; st.global.u32 [%rd4], 1;";
    // A barrier orders the threads after the first one's wait.
    let first = "setp.eq.u32 %p1, %r0, 0; @%p1 griddepcontrol.wait; bar.sync 0; ld.global.u32 %r14, [%rd3];";
    for before in (1..20).chain([200]) {
        let late = Time::MAX - before;
        for times in [(late, 0), (0, late), (late, late)] {
            let text = report_chain(&[(write, times.0), (ordered, 0), (read, times.1)]);
            assert!(text.contains("early access to global memory: read of byte"), "{before}: {text}");
            for body in [ordered, first] {
                let text = report_chain(&[(write, times.0), (ordered, 0), (body, times.1)]);
                assert_eq!(text, "", "{before}");
            }
        }
    }
}
