//! Asynchronous copies: when they happen, and what they write.

use crate::emulator::testing::run;

/// Each thread has 16 bytes at `%r11` in shared memory, filled with sevens, and a source of its own at `%rd10`.
const SETUP: &str = "
    .shared .align 16 .b8 bytes[1024];
    mov.u32 %r10, bytes;
    mad.lo.u32 %r11, %r0, 16, %r10;
    mad.wide.u32 %rd10, %r0, 16, %rd1;
    mad.wide.u32 %rd11, %r0, 16, %rd0;
    mov.u32 %r12, 7;
    st.shared.v4.u32 [%r11], {%r12, %r12, %r12, %r12};
";

fn source() -> Vec<u32> {
    (0..64 * 4).map(|k| 1000 + k).collect()
}

#[test]
fn a_copy_is_seen_after_its_wait() {
    let body = format!(
        "{SETUP}
    cp.async.cg.shared.global [%r11], [%rd10], 16;
    cp.async.commit_group;
    cp.async.ca.shared::cta.global.L2::128B [%r11+4], [%rd10], 4;
    cp.async.commit_group;
    cp.async.wait_group 2;
    ld.shared.u32 %r20, [%r11];
    cp.async.wait_group 1;
    ld.shared.u32 %r21, [%r11];
    ld.shared.u32 %r22, [%r11+4];
    cp.async.wait_group 0;
    ld.shared.u32 %r23, [%r11+4];
    st.global.v4.u32 [%rd11], {{%r20, %r21, %r22, %r23}};"
    );
    let mut out = [0u32; 256];
    run(&body, (1, 64), (&mut out, &mut source(), &mut [0u32])).unwrap();
    for thread in 0..64 {
        let first = 1000 + 4 * thread;
        assert_eq!(out[thread as usize * 4..][..4], [7, first, first + 1, first]);
    }
}

#[test]
fn the_source_is_read_late() {
    let body = format!(
        "{SETUP}
    cp.async.ca.shared.global [%r11], [%rd10+8], 8;
    st.global.u32 [%rd10+8], 5;
    cp.async.wait_all;
    ld.shared.v4.u32 {{%r20, %r21, %r22, %r23}}, [%r11];
    st.global.v4.u32 [%rd11], {{%r20, %r21, %r22, %r23}};"
    );
    let mut out = [0u32; 256];
    run(&body, (1, 64), (&mut out, &mut source(), &mut [0u32])).unwrap();
    for thread in 0..64 {
        assert_eq!(out[thread as usize * 4..][..4], [5, 1003 + 4 * thread, 7, 7]);
    }
}

#[test]
fn what_is_not_read_is_zero() {
    // A thread reads as many bytes as its number; from 16 on the source is not read at all, and need not exist.
    let body = format!(
        "{SETUP}
    setp.ge.u32 %p0, %r0, 16;
    selp.u32 %r13, 0, %r0, %p0;
    selp.u64 %rd10, 0, %rd10, %p0;
    cp.async.ca.shared.global [%r11], [%rd10], 16, %r13;
    cp.async.wait_all;
    ld.shared.v4.u32 {{%r20, %r21, %r22, %r23}}, [%r11];
    st.global.v4.u32 [%rd11], {{%r20, %r21, %r22, %r23}};"
    );
    let mut out = [0u32; 256];
    run(&body, (1, 64), (&mut out, &mut source(), &mut [0u32])).unwrap();
    let bytes = |words: &[u32]| words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<_>>();
    for thread in 0..64 {
        let mut want = bytes(&source()[thread * 4..][..4]);
        want[if thread < 16 { thread } else { 0 }..].fill(0);
        assert_eq!(bytes(&out[thread * 4..][..4]), want, "thread {thread}");
    }
    let body = body.replace("16, %r13;", "16, %p0;");
    run(&body, (1, 64), (&mut out, &mut source(), &mut [0u32])).unwrap();
    for thread in 0..64 {
        let want = if thread < 16 { source()[thread * 4..][..4].to_vec() } else { vec![0; 4] };
        assert_eq!(out[thread * 4..][..4], want, "thread {thread}");
    }
}

/// Warp 1 exits with its copies under way; warp 0 waits for it at the barrier that the exit completes.
#[test]
fn copies_end_with_their_thread() {
    let body = format!(
        "{SETUP}
    setp.lt.u32 %p0, %r0, 32;
    @%p0 bra FIRST;
    cp.async.cg.shared.global [%r11], [%rd10], 16;
    exit;
FIRST:
    bar.sync 0;
    ld.shared.v4.u32 {{%r20, %r21, %r22, %r23}}, [%r11+512];
    st.global.v4.u32 [%rd11], {{%r20, %r21, %r22, %r23}};"
    );
    let mut out = [0u32; 256];
    run(&body, (1, 64), (&mut out, &mut source(), &mut [0u32])).unwrap();
    assert_eq!(out[..128], source()[128..]);
}

#[test]
fn bad_copies_are_told() {
    for (copy, want) in [
        ("[%r11+8], [%rd10], 16", "misaligned write of 16 bytes"),
        ("[%r11], [%rd10+4], 16", "misaligned read of 16 bytes"),
        ("[%r11], [%rd10+4], 16, 3", "misaligned read of 16 bytes"),
        ("[%r11+1024], [%rd10], 16", "write of 16 bytes at offset 1024 of shared memory, which has 1024 bytes"),
        ("[%r11], [16], 16", "read of 16 bytes at 0x10 (a null pointer)"),
        ("[%r11], [%rd10], 16, 17", "cp.async of 16 bytes is to read 17 of them"),
    ] {
        let body = format!("{SETUP} cp.async.ca.shared.global {copy};");
        let error = run(&body, (1, 64), (&mut [0u32], &mut source(), &mut [0u32])).unwrap_err();
        assert!(error.contains(want), "{copy}: {error}");
    }
    for (instruction, want) in [
        ("cp.async.cg.shared.global [%r11], [%rd10], 8;", "cannot copy 8 bytes"),
        ("cp.async.ca.shared.global [%r11], [%rd10], 12;", "cannot copy 12 bytes"),
        ("cp.async.wait_group -1;", "-1 must be a number from 0"),
        ("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd10], [%r11], 16;", "is not supported"),
        ("red.async.relaxed.cluster.add.u32 [%r11], %r0, [%r11];", "is not supported"),
    ] {
        let error = run(&format!("{SETUP} {instruction}"), (1, 64), (&mut [0u32], &mut source(), &mut [0u32]));
        let error = error.unwrap_err();
        assert!(error.contains(want), "{instruction}: {error}");
    }
}
