//! Barrier objects: phases, transactions, and the copies they track.

use crate::emulator::testing::{Case, kernel, run};

/// Thread 0 makes an object for the count in COUNT; `%r10` is its address.
const SETUP: &str = "
    .shared .align 8 .b64 object;
    .shared .align 16 .b8 bytes[2048];
    mov.u32 %r10, object;
    mov.u32 %r30, bytes;
    setp.eq.u32 %p0, %r0, 0;
    @%p0 mbarrier.init.shared::cta.b64 [%r10], COUNT;
    bar.sync 0;
";

fn setup(count: u32) -> String {
    SETUP.replace("COUNT", &count.to_string())
}

fn with_seeds(body: &str, threads: u32, words: usize, check: impl Fn(&[u32])) {
    let text = kernel(body);
    for fuzz in [None, Some(1), Some(2), Some(3)] {
        let mut out = vec![0u32; words];
        let mut input: Vec<u32> = (0..1024).map(|k| 1000 + k).collect();
        let mut case = Case::new(&text, 1, threads);
        case.options.fuzz = fuzz;
        case.run(&[out.as_mut_ptr() as u64, input.as_mut_ptr() as u64, 0]).unwrap();
        check(&out);
    }
}

/// A barrier for all threads, used for many phases: each thread reads what its neighbour wrote.
#[test]
fn phases_by_state_and_by_parity() {
    for (arrive, wait) in [
        ("mbarrier.arrive.shared.b64 %rd10, [%r10];", "mbarrier.test_wait.shared.b64 %p1, [%r10], %rd10;"),
        (
            "mbarrier.arrive.release.cta.shared::cta.b64 _, [%r10];",
            "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %p1, [%r10], %r13, 1000;",
        ),
        ("mbarrier.arrive.b64 %rd10, [%rd12], 1;", "mbarrier.try_wait.b64 %p1, [%rd12], %rd10;"),
    ] {
        let body = format!(
            "{}
    mov.u32 %r11, 0;
    mov.u32 %r14, 0;
    mov.b64 %rd11, {{%r10, %r14}};
    cvta.shared.u64 %rd12, %rd11;
    mad.lo.u32 %r20, %r0, 4, %r30;
    add.u32 %r21, %r0, 1;
    and.b32 %r21, %r21, 63;
    mad.lo.u32 %r21, %r21, 4, %r30;
LOOP:
    and.b32 %r13, %r11, 1;
    shl.b32 %r15, %r13, 8;
    add.u32 %r22, %r20, %r15;
    add.u32 %r23, %r21, %r15;
    add.u32 %r24, %r0, %r11;
    st.shared.u32 [%r22], %r24;
    {arrive}
WAIT:
    {wait}
    @!%p1 bra WAIT;
    ld.shared.u32 %r24, [%r23];
    add.u32 %r14, %r14, %r24;
    add.u32 %r11, %r11, 1;
    setp.lt.u32 %p2, %r11, 20;
    @%p2 bra LOOP;
    st.global.u32 [%rd3], %r14;",
            setup(64)
        );
        with_seeds(&body, 64, 64, |out| {
            for (thread, value) in out.iter().enumerate() {
                let neighbour = (thread as u32 + 1) % 64;
                assert_eq!(*value, (0..20).map(|k| neighbour + k).sum::<u32>());
            }
        });
    }
}

#[test]
fn arrivals_are_counted() {
    let body = format!(
        "{}
    @!%p0 exit;
    mbarrier.arrive.noComplete.shared.b64 %rd10, [%r10], 2;
    mbarrier.pending_count.b64 %r20, %rd10;
    mbarrier.arrive_drop.shared.b64 %rd11, [%r10];
    mbarrier.pending_count.b64 %r21, %rd11;
    mbarrier.test_wait.shared.b64 %p1, [%r10], %rd10;
    selp.u32 %r22, 1, 0, %p1;
    mbarrier.arrive.shared.b64 %rd12, [%r10], 2;
    mbarrier.pending_count.b64 %r23, %rd12;
    mbarrier.test_wait.shared.b64 %p1, [%r10], %rd10;
    selp.u32 %r24, 1, 0, %p1;
    mbarrier.arrive.shared.b64 %rd13, [%r10];
    mbarrier.pending_count.b64 %r25, %rd13;
    mbarrier.inval.shared.b64 [%r10];
    st.global.v2.u32 [%rd0], {{%r20, %r21}};
    st.global.v2.u32 [%rd0+8], {{%r22, %r23}};
    st.global.v2.u32 [%rd0+16], {{%r24, %r25}};",
        setup(5)
    );
    // The second phase expects one arrival less.
    with_seeds(&body, 32, 6, |out| assert_eq!(out, [5, 3, 0, 2, 1, 4]));
}

#[test]
fn a_phase_waits_for_its_bytes() {
    let body = format!(
        "{}
    @!%p0 exit;
    mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%r10], 96;
    mbarrier.test_wait.parity.shared.b64 %p1, [%r10], 0;
    mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r10], 64;
    mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r10], 8;
    mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r10], 32;
    mbarrier.test_wait.parity.shared.b64 %p2, [%r10], 0;
    mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r10], 8;
    mbarrier.test_wait.parity.shared.b64 %p3, [%r10], 0;
    selp.u32 %r20, 1, 0, %p1;
    selp.u32 %r21, 1, 0, %p2;
    selp.u32 %r22, 1, 0, %p3;
    st.global.v2.u32 [%rd0], {{%r20, %r21}};
    st.global.u32 [%rd0+8], %r22;",
        setup(1)
    );
    with_seeds(&body, 32, 3, |out| assert_eq!(out, [0, 0, 1]));
}

/// Bytes may be there before they are announced.
#[test]
fn bytes_before_their_announcement() {
    let body = format!(
        "{}
    @!%p0 exit;
    mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r10], 64;
    mbarrier.test_wait.parity.shared.b64 %p1, [%r10], 0;
    mbarrier.arrive.expect_tx.shared.b64 _, [%r10], 64;
    mbarrier.test_wait.parity.shared.b64 %p2, [%r10], 0;
    selp.u32 %r20, 1, 0, %p1;
    selp.u32 %r21, 1, 0, %p2;
    st.global.v2.u32 [%rd0], {{%r20, %r21}};",
        setup(1)
    );
    with_seeds(&body, 32, 2, |out| assert_eq!(out, [0, 1]));
}

/// Warp 0 copies, warp 1 waits for the object, with arrivals that the object expects and with additional ones.
#[test]
fn copies_tell_an_object() {
    for (count, arrive, extra) in [(32, "noinc.", ""), (32, "", "mbarrier.arrive.shared.b64 %rd20, [%r10];")] {
        let body = format!(
            "{}
    and.b32 %r11, %r0, 31;
    mad.lo.u32 %r12, %r11, 16, %r30;
    mad.wide.u32 %rd10, %r11, 16, %rd1;
    mov.u32 %r20, 0;
    setp.ge.u32 %p1, %r0, 32;
    @%p1 bra CONSUME;
    st.shared.u32 [%r12], 7;
    cp.async.cg.shared.global [%r12], [%rd10], 16;
    cp.async.mbarrier.arrive.{arrive}shared.b64 [%r10];
    {extra}
    ld.shared.u32 %r20, [%r12];
    st.global.u32 [%rd3], %r20;
    bar.sync 1, 64;
    ret;
CONSUME:
    mbarrier.try_wait.parity.shared.b64 %p2, [%r10], 0;
    @!%p2 bra CONSUME;
    ld.shared.u32 %r20, [%r12];
    st.global.u32 [%rd3], %r20;
    bar.sync 1, 64;",
            setup(count)
        );
        with_seeds(&body, 64, 64, |out| {
            for lane in 0..32 {
                // The producer, which does not wait, reads what was there, or what the consumer's wait has brought.
                assert!([7, 1000 + 4 * lane].contains(&out[lane as usize]));
                assert_eq!(out[32 + lane as usize], 1000 + 4 * lane);
            }
        });
        let mut out = vec![0u32; 64];
        let mut input: Vec<u32> = (0..1024).map(|k| 1000 + k).collect();
        run(&body, (1, 64), (&mut out, &mut input, &mut [0u32])).unwrap();
        assert_eq!(out[..32], [7; 32]);
    }
}

#[test]
fn misuse_is_told() {
    for (count, instruction, want) in [
        (1, "mbarrier.arrive.shared.b64 %rd10, [%r10+8];", "there is no mbarrier object at offset 8"),
        (1, "mbarrier.arrive.shared.b64 %rd10, [%r10+4];", "misaligned write of 8 bytes"),
        (1, "mbarrier.arrive.shared.b64 %rd10, [%r10], 2;", "2 arrivals at an mbarrier object of which 1 are pending"),
        (1, "mbarrier.init.shared.b64 [%r10], 0;", "the count must be from 1 to 1048575"),
        (1, "mbarrier.arrive.noComplete.shared.b64 %rd10, [%r10], 1;", "completes a phase"),
        (1, "mbarrier.arrive.b64 %rd10, [%rd0];", "is not in shared memory"),
        (1, "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r10], 1048576;", "the most is 1048575"),
        (2, "mbarrier.inval.shared.b64 [%r10]; mbarrier.arrive.shared.b64 %rd10, [%r10];", "no mbarrier object"),
    ] {
        let body = format!("{} @!%p0 exit; {instruction}", setup(count));
        let error = run(&body, (1, 32), (&mut [0u32], &mut [0u32], &mut [0u32])).unwrap_err();
        assert!(error.contains(want), "{instruction}: {error}");
    }
}
