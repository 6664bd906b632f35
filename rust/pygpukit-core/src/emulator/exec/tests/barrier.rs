//! Barriers of the block, and what goes wrong with them.

use crate::emulator::testing::{Case, kernel, run};

fn refuse(body: &str, threads: u32) -> String {
    run(body, (1, threads), (&mut [0u32; 1024], &mut [0u32], &mut [0u32])).unwrap_err()
}

/// Every thread reads what another wrote before the barrier.
#[test]
fn all_threads_meet() {
    for (barrier, threads) in [
        ("bar.sync 0;", 256),
        ("bar.sync 0;", 77),
        ("barrier.sync 3;", 77),
        ("barrier.cta.sync.aligned 5, 96;", 96),
        ("barrier.sync 15, 96;", 77),
        ("mov.u32 %r20, 2; mov.u32 %r21, 128; bar.cta.sync %r20, %r21;", 100),
    ] {
        let body = format!(
            "
    .shared .b32 words[256];
    mov.u32 %r10, words;
    mad.lo.u32 %r11, %r0, 4, %r10;
    add.u32 %r12, %r0, 500;
    st.shared.u32 [%r11], %r12;
    {barrier}
    sub.u32 %r13, {last}, %r0;
    mad.lo.u32 %r11, %r13, 4, %r10;
    ld.shared.u32 %r14, [%r11];
    {barrier}
    st.global.u32 [%rd3], %r14;",
            last = threads - 1
        );
        let mut out = vec![0u32; threads as usize];
        run(&body, (1, threads), (&mut out, &mut [0u32], &mut [0u32])).unwrap();
        for (thread, value) in out.iter().enumerate() {
            assert_eq!(*value, threads - 1 - thread as u32 + 500, "{barrier} thread {thread}");
        }
    }
}

#[test]
fn threads_that_exit_are_not_waited_for() {
    let body = "
    .shared .b32 word;
    setp.ge.u32 %p0, %r0, 40;
    setp.eq.u32 %p1, %r0, 39;
    @%p0 exit;
    @%p1 st.shared.u32 [word], 77;
    bar.sync 0;
    ld.shared.u32 %r10, [word];
    st.global.u32 [%rd3], %r10;";
    let mut out = [0u32; 128];
    run(body, (1, 128), (&mut out, &mut [0u32], &mut [0u32])).unwrap();
    assert_eq!(out[..40], [77; 40]);
    assert_eq!(out[40..], [0; 88]);
}

#[test]
fn reductions_at_a_barrier() {
    let body = "
    ld.global.u32 %r10, [%rd4];
    setp.ne.u32 %p0, %r10, 0;
    bar.red.popc.u32 %r11, 0, %p0;
    bar.red.and.pred %p1, 0, %p0;
    bar.red.or.pred %p2, 0, %p0;
    barrier.red.popc.u32 %r12, 1, 96, !%p0;
    selp.u32 %r13, 1, 0, %p1;
    selp.u32 %r14, 1, 0, %p2;
    mad.wide.u32 %rd10, %r0, 16, %rd0;
    st.global.v4.u32 [%rd10], {%r11, %r12, %r13, %r14};";
    for set in [0u32, 1, 50, 95, 96] {
        let mut input: Vec<u32> = (0..96).map(|thread| u32::from((thread * 37) % 96 < set)).collect();
        let mut out = [0u32; 384];
        run(body, (1, 96), (&mut out, &mut input, &mut [0u32])).unwrap();
        let want = [set, 96 - set, u32::from(set == 96), u32::from(set > 0)];
        for thread in 0..96 {
            assert_eq!(out[thread * 4..][..4], want, "thread {thread} of {set}");
        }
    }
}

/// A result is kept until all have read it, even when the barrier is used again by others.
#[test]
fn results_of_a_barrier_in_use_again() {
    let body = "
    shr.u32 %r10, %r0, 6;
    and.b32 %r11, %r0, 63;
    setp.lt.u32 %p0, %r11, 10;
    mov.u32 %r12, 0;
    mov.u32 %r13, 0;
LOOP:
    barrier.red.popc.u32 %r14, %r10, 64, %p0;
    add.u32 %r13, %r13, %r14;
    add.u32 %r12, %r12, 1;
    setp.lt.u32 %p1, %r12, 20;
    @%p1 bra LOOP;
    st.global.u32 [%rd3], %r13;";
    let text = kernel(body);
    for seed in 0..8 {
        let mut out = [0u32; 256];
        let mut case = Case::new(&text, 1, 256);
        case.options.fuzz = Some(seed);
        case.run(&[out.as_mut_ptr() as u64, 0, 0]).unwrap();
        assert_eq!(out, [200; 256]);
    }
}

/// Warp 0 produces, warp 1 consumes, with a named barrier for each direction.
#[test]
fn producer_and_consumer() {
    let body = "
    .shared .b32 words[32];
    mov.u32 %r10, words;
    and.b32 %r11, %r0, 31;
    mad.lo.u32 %r12, %r11, 4, %r10;
    mov.u32 %r13, 0;
    mov.u32 %r14, 0;
    setp.ge.u32 %p0, %r0, 32;
    @%p0 bra CONSUME;
PRODUCE:
    bar.sync 2, 64;
    mad.lo.u32 %r15, %r13, 3, %r11;
    st.shared.u32 [%r12], %r15;
    bar.arrive 1, 64;
    add.u32 %r13, %r13, 1;
    setp.lt.u32 %p1, %r13, 50;
    @%p1 bra PRODUCE;
    ret;
CONSUME:
    bar.arrive 2, 64;
    bar.sync 1, 64;
    ld.shared.u32 %r15, [%r12];
    add.u32 %r14, %r14, %r15;
    add.u32 %r13, %r13, 1;
    setp.lt.u32 %p1, %r13, 50;
    @%p1 bra CONSUME;
    st.global.u32 [%rd3], %r14;";
    let mut out = [0u32; 64];
    run(body, (1, 64), (&mut out, &mut [0u32], &mut [0u32])).unwrap();
    for lane in 0..32u32 {
        assert_eq!(out[32 + lane as usize], (0..50).map(|i| i * 3 + lane).sum::<u32>());
    }
}

/// Lanes of a warp may arrive at a barrier that is not aligned from different places.
#[test]
fn lanes_arrive_apart() {
    let body = "
    setp.lt.u32 %p0, %r0, 7;
    @%p0 bra FEW;
    barrier.sync 0;
    bra JOIN;
FEW:
    barrier.sync 0;
JOIN:
    bar.sync 0;
    st.global.u32 [%rd3], 9;";
    let mut out = [0u32; 64];
    run(body, (1, 64), (&mut out, &mut [0u32], &mut [0u32])).unwrap();
    assert_eq!(out, [9; 64]);
}

/// A lane waits for another warp before it comes to the barrier that the rest of its warp is at already.
#[test]
fn an_aligned_barrier_waits_for_a_late_lane() {
    let body = "
    setp.ne.u32 %p0, %r0, 0;
    setp.lt.u32 %p1, %r0, 32;
    @!%p1 bra SECOND;
    @%p0 bra JOIN;
    barrier.sync 1, 64;
    bra JOIN;
SECOND:
    setp.eq.u32 %p2, %r0, 63;
    nanosleep.u32 100;
    @%p2 barrier.arrive 1, 64;
    @!%p2 barrier.arrive 1, 64;
JOIN:
    bar.sync 0;
    st.global.u32 [%rd3], 9;";
    // One lane of warp 0 and all of warp 1 are 33 arrivals; the other 31 never come.
    let error = refuse(body, 64);
    assert!(error.contains("divergent barrier") || error.contains("deadlock"), "{error}");
    let body = body.replace("@%p0 bra JOIN;", "@%p0 barrier.arrive 1, 64; @%p0 bra JOIN;");
    let mut out = [0u32; 64];
    run(&body, (1, 64), (&mut out, &mut [0u32], &mut [0u32])).unwrap();
    assert_eq!(out, [9; 64]);
}

#[test]
fn a_divergent_barrier_is_a_fault() {
    let body = "
    setp.lt.u32 %p0, %r0, 7;
    @%p0 bra FEW;
    bar.sync 0;
    bra JOIN;
FEW:
    bar.sync 0;
JOIN:
    st.global.u32 [%rd3], 9;";
    let error = refuse(body, 64);
    assert!(error.contains("divergent barrier: 25 of 32 lanes of the warp are at this barrier"), "{error}");
    assert!(error.contains("bar.sync 0;"), "{error}");
}

#[test]
fn deadlocks_are_told() {
    // Each warp waits where the other does not.
    let error = refuse("shr.u32 %r10, %r0, 5; bar.sync %r10, 64;", 64);
    assert!(error.contains("deadlock: every warp of the block waits"), "{error}");
    assert!(
        error.contains("warp 0 lanes 0xffffffff waits at barrier 0, where 32 of 64 threads have arrived"),
        "{error}"
    );
    assert!(error.contains("warp 1 lanes 0xffffffff waits at barrier 1"), "{error}");
}

#[test]
fn bad_operands_are_told() {
    for (body, want) in [
        ("mov.u32 %r10, 16; bar.sync %r10;", "barrier 16 does not exist: a block has barriers 0 to 15"),
        ("bar.sync 1, 33;", "barrier 1 is used with 33 threads: the count must be a multiple of 32"),
        ("bar.arrive 1, 0;", "the count must be a multiple of 32"),
        ("bar.sync %r0;", "lanes of a warp name different barriers"),
        ("shr.u32 %r10, %r0, 5; add.u32 %r10, %r10, 2; shl.b32 %r10, %r10, 5; bar.sync 3, %r10;", "while others wait"),
    ] {
        let error = refuse(body, 64);
        assert!(error.contains(want), "{body}: {error}");
    }
    let error = refuse("bar.arrive 1;", 64);
    assert!(error.contains("'bar.arrive' takes a barrier and a number of threads"), "{error}");
}
