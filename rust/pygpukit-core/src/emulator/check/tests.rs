//! Small kernels with and without bugs; larger ones are compiled and run in the Python tests.

use crate::emulator::Options;
use crate::emulator::testing::{Aligned, Case, kernel};

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
