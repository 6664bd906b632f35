//! Sums of addresses: those of 32 bits wrap there, as in hardware.

use crate::emulator::testing::run;

/// `%r10` is the address of 128 words less 4096, a number below zero; thread t's word is at `[%r11+4096]`.
const SETUP: &str = "
    .shared .align 16 .b8 words[512];
    mov.u32 %r10, words;
    sub.u32 %r10, %r10, 4096;
    mad.lo.u32 %r11, %r0, 4, %r10;
    mad.lo.u32 %r12, %r0, 4, 4096;
    add.u32 %r12, %r12, %r10;
    mad.wide.u32 %rd10, %r0, 4, %rd0;
    mad.wide.u32 %rd11, %r0, 4, %rd1;
    ld.global.u32 %r20, [%rd11];
";

#[test]
fn addresses_of_32_bits_wrap_in_every_access() {
    for (what, body) in [
        ("st", "st.shared.u32 [%r11+4096], %r20; ld.shared.u32 %r21, [%r12];"),
        ("ld", "st.shared.u32 [%r12], %r20; ld.shared.u32 %r21, [%r11+4096];"),
        ("atom", "st.shared.u32 [%r12], 0; atom.shared.add.u32 %r22, [%r11+4096], %r20; ld.shared.u32 %r21, [%r12];"),
        ("red", "st.shared.u32 [%r12], 0; red.shared.add.u32 [%r11+4096], %r20; ld.shared.u32 %r21, [%r12];"),
        (
            "cp.async",
            "cp.async.ca.shared.global [%r11+4096], [%rd11], 4; cp.async.wait_all; bar.warp.sync 0xffffffff;
             ld.shared.u32 %r21, [%r12];",
        ),
        (
            "ldmatrix",
            // Each lane holds the words of a row of 8x8 16-bit elements: 4 words a row.
            "st.shared.u32 [%r12], %r20; bar.sync 0; and.b32 %r30, %r0, 7; mad.lo.u32 %r31, %r30, 16, %r10;
             ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r21}, [%r31+4096];",
        ),
        (
            "mbarrier",
            "mov.u32 %r21, %r20; setp.ne.u32 %p0, %r0, 0; @%p0 bra.uni DONE;
             mbarrier.init.shared.b64 [%r10+4096], 1; mbarrier.arrive.shared.b64 %rd12, [%r10+4096];
             ld.shared.u32 %r22, [%r12]; DONE:",
        ),
    ] {
        let body = format!("{SETUP} {body} st.global.u32 [%rd10], %r21;");
        let mut out = [0u32; 32];
        let mut input: [u32; 32] = std::array::from_fn(|i| 100 + i as u32);
        run(&body, (1, 32), (&mut out, &mut input, &mut [0u32])).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(out, input, "{what}");
    }
}

#[test]
fn a_sum_below_the_start_of_shared_memory_is_a_fault() {
    for access in ["ld.shared.u32 %r21, [%r10+4092];", "st.shared.u32 [%r10+4092], %r20;"] {
        let error = run(&format!("{SETUP} {access}"), (1, 1), (&mut [0u32; 32], &mut [0u32; 32], &mut [0u32]));
        let error = error.unwrap_err();
        assert!(error.contains("shared memory"), "{access}: {error}");
    }
}
