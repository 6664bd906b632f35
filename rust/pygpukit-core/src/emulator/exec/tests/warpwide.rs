//! Shuffles, votes, matches, reductions.

use crate::emulator::testing::run;
use crate::random::Random;

const SHUFFLE: &str = "
    ld.global.u32 %r10, [%rd4];
    ld.global.u32 %r11, [%rd2];
    ld.global.u32 %r12, [%rd2+4];
    ld.global.u32 %r13, [%rd2+8];
    add.u32 %r11, %r11, %r0;
    shfl.sync.MODE.b32 %r14|%p1, %r10, %r11, %r12, -1;
    selp.u32 %r15, 1, 0, %p1;
    mad.wide.u32 %rd10, %r0, 8, %rd0;
    st.global.v2.u32 [%rd10], {%r14, %r15};";

#[test]
fn shuffles_follow_the_definition() {
    let mut random = Random::new(1);
    for mode in ["up", "down", "bfly", "idx"] {
        for _ in 0..60 {
            let mut values: Vec<u32> = (0..32).map(|_| random.next() as u32).collect();
            let width = 1 << random.below(6);
            let base = random.next() as u32;
            // Half of the clamps are those CUDA uses, half are anything.
            let clamp = match random.below(2) {
                0 => (32 - width) << 8 | if mode == "up" { 0 } else { 31 },
                _ => random.next() as u32,
            };
            let mut out = [u32::MAX; 64];
            run(&SHUFFLE.replace("MODE", mode), (1, 32), (&mut out, &mut values, &mut [base, clamp, 0])).unwrap();
            for lane in 0..32i64 {
                let b = i64::from(base.wrapping_add(lane as u32) % 32);
                let (c, segment) = (i64::from(clamp % 32), i64::from(clamp / 256 % 32));
                let max = (lane & segment) | (c & !segment);
                let (from, inside) = match mode {
                    "up" => (lane - b, lane - b >= max),
                    "down" => (lane + b, lane + b <= max),
                    "bfly" => (lane ^ b, lane ^ b <= max),
                    _ => ((lane & segment) | (b & !segment), (lane & segment) | (b & !segment) <= max),
                };
                // A lane past the warp has no value; the reader keeps its own.
                let from = if inside && (0..32).contains(&from) { from } else { lane };
                let got = (out[lane as usize * 2], out[lane as usize * 2 + 1]);
                assert_eq!(got, (values[from as usize], u32::from(inside)), "{mode} lane {lane} b {b} c {clamp:#x}");
            }
        }
    }
}

#[test]
fn a_lane_that_is_gone_gives_no_value() {
    let body = "
    setp.gt.u32 %p0, %r0, 15;
    @%p0 exit;
    add.u32 %r10, %r0, 100;
    shfl.sync.down.b32 %r11, %r10, 8, 31, -1;
    st.global.u32 [%rd3], %r11;";
    let mut out = [0u32; 32];
    run(body, (1, 32), (&mut out, &mut [0u32], &mut [0u32])).unwrap();
    for lane in 0..16u32 {
        let from = if lane < 8 { lane + 8 } else { lane };
        assert_eq!(out[lane as usize], from + 100);
    }
    assert_eq!(out[16..], [0; 16]);
}

#[test]
fn lanes_meet_at_a_shuffle() {
    // Odd lanes go a longer way; the shuffle waits for all.
    let body = "
    mov.u32 %r10, %r0;
    and.b32 %r11, %r0, 1;
    setp.eq.u32 %p0, %r11, 0;
    @%p0 bra MEET;
    mul.lo.u32 %r10, %r10, 3;
    add.u32 %r10, %r10, 1;
MEET:
    shfl.sync.bfly.b32 %r12, %r10, 1, 31, -1;
    st.global.u32 [%rd3], %r12;";
    let mut out = [0u32; 64];
    run(body, (1, 64), (&mut out, &mut [0u32], &mut [0u32])).unwrap();
    for (thread, value) in out.iter().enumerate() {
        let other = thread as u32 ^ 1;
        assert_eq!(*value, if other & 1 == 0 { other } else { other * 3 + 1 });
    }
}

#[test]
fn teams_of_different_masks() {
    // The upper half reaches the instruction later; each half is a team of its own, quarters of the upper one too.
    let body = "
    setp.lt.u32 %p0, %r0, 16;
    setp.lt.u32 %p1, %r0, 24;
    selp.u32 %r10, 0x00ff0000, 0xff000000, %p1;
    selp.u32 %r10, 0x0000ffff, %r10, %p0;
    @%p0 bra MEET;
    add.u32 %r11, %r0, 1;
MEET:
    redux.sync.add.u32 %r12, %r0, %r10;
    vote.sync.ballot.b32 %r13, %p1, %r10;
    add.u32 %r12, %r12, %r13;
    st.global.u32 [%rd3], %r12;";
    let mut out = [0u32; 32];
    run(body, (1, 32), (&mut out, &mut [0u32], &mut [0u32])).unwrap();
    for (lane, value) in out.iter().enumerate() {
        let want = match lane {
            0..16 => (0..16).sum::<u32>() + 0xffff,
            16..24 => (16..24).sum::<u32>() + 0xff_0000,
            _ => (24..32).sum::<u32>(),
        };
        assert_eq!(*value, want, "lane {lane}");
    }
}

#[test]
fn masks_split_a_group_that_waits() {
    // Lanes 0 and 1 wait for lanes 2 and 3 with different masks, and must not hinder each other.
    let body = "
    and.b32 %r10, %r0, 1;
    setp.eq.u32 %p1, %r10, 0;
    selp.u32 %r11, 5, 10, %p1;
    setp.ge.u32 %p0, %r0, 2;
    @%p0 bra LATE;
    bra MEET;
LATE:
    add.u32 %r12, %r0, 7;
    bra MEET;
MEET:
    match.any.sync.b32 %r13, %r10, %r11;
    st.global.u32 [%rd3], %r13;";
    let mut out = [0u32; 4];
    run(body, (1, 4), (&mut out, &mut [0u32], &mut [0u32])).unwrap();
    assert_eq!(out, [5, 10, 5, 10]);
}

#[test]
fn votes() {
    let body = "
    ld.global.u32 %r10, [%rd4];
    setp.ne.u32 %p0, %r10, 0;
    vote.sync.all.pred %p1, %p0, -1;
    vote.sync.any.pred %p2, %p0, -1;
    vote.sync.uni.pred %p3, %p0, -1;
    vote.sync.ballot.b32 %r11, !%p0, -1;
    selp.u32 %r12, 1, 0, %p1;
    selp.u32 %r13, 2, 0, %p2;
    selp.u32 %r14, 4, 0, %p3;
    add.u32 %r12, %r12, %r13;
    add.u32 %r12, %r12, %r14;
    mad.wide.u32 %rd10, %r0, 8, %rd0;
    st.global.v2.u32 [%rd10], {%r11, %r12};";
    for pattern in [0u32, u32::MAX, 0x8000_0001, 0x7fff_ffff] {
        let mut input: Vec<u32> = (0..32).map(|lane| pattern >> lane & 1).collect();
        let mut out = [0u32; 64];
        run(body, (1, 32), (&mut out, &mut input, &mut [0u32])).unwrap();
        let uniform = pattern == 0 || pattern == u32::MAX;
        let want = u32::from(pattern == u32::MAX) + 2 * u32::from(pattern != 0) + 4 * u32::from(uniform);
        for lane in 0..32 {
            assert_eq!(out[lane * 2..][..2], [!pattern, want]);
        }
    }
}

#[test]
fn matches() {
    let body = "
    ld.global.u64 %rd10, [%rd6];
    mov.b64 {%r10, %r20}, %rd10;
    match.any.sync.b32 %r11, %r10, -1;
    match.any.sync.b64 %r12, %rd10, -1;
    match.all.sync.b32 %r13|%p0, %r10, -1;
    match.all.sync.b64 %r14|%p1, %rd10, -1;
    selp.u32 %r15, 1, 0, %p0;
    selp.u32 %r16, 1, 0, %p1;
    mad.wide.u32 %rd11, %r0, 24, %rd0;
    st.global.v2.u32 [%rd11], {%r11, %r12};
    st.global.v2.u32 [%rd11+8], {%r13, %r14};
    st.global.v2.u32 [%rd11+16], {%r15, %r16};";
    let mut random = Random::new(2);
    for round in 0..20 {
        let kinds = if round == 0 { 1 } else { 3 };
        let high = |random: &mut Random| if round < 2 { 0 } else { (random.below(2) as u64) << 32 };
        let mut input: Vec<u64> = (0..32).map(|_| random.below(kinds) as u64 | high(&mut random)).collect();
        let mut out = [0u32; 192];
        run(body, (1, 32), (&mut out, &mut input, &mut [0u32])).unwrap();
        for lane in 0..32 {
            let same = |f: fn(u64) -> u64| (0..32).map(|l| u32::from(f(input[l]) == f(input[lane])) << l).sum::<u32>();
            let (low, whole) = (same(|v| v & 0xffff_ffff), same(|v| v));
            let all = |mask: u32| if mask == u32::MAX { mask } else { 0 };
            let want = [low, whole, all(low), all(whole), u32::from(low == u32::MAX), u32::from(whole == u32::MAX)];
            assert_eq!(out[lane * 6..][..6], want, "lane {lane}");
        }
    }
}

#[test]
fn reductions() {
    let mut random = Random::new(3);
    let mut input: Vec<u32> = (0..32).map(|_| random.next() as u32).collect();
    let signed = |v: &u32| *v as i32;
    let wants = [
        ("add.u32", input.iter().fold(0u32, |a, b| a.wrapping_add(*b))),
        ("add.s32", input.iter().fold(0u32, |a, b| a.wrapping_add(*b))),
        ("min.u32", *input.iter().min().unwrap()),
        ("max.u32", *input.iter().max().unwrap()),
        ("min.s32", input.iter().map(signed).min().unwrap() as u32),
        ("max.s32", input.iter().map(signed).max().unwrap() as u32),
        ("and.b32", input.iter().fold(u32::MAX, |a, b| a & b)),
        ("or.b32", input.iter().fold(0, |a, b| a | b)),
        ("xor.b32", input.iter().fold(0, |a, b| a ^ b)),
    ];
    for (operation, want) in wants {
        let body =
            format!("ld.global.u32 %r10, [%rd4]; redux.sync.{operation} %r11, %r10, -1; st.global.u32 [%rd3], %r11;");
        let mut out = [0u32; 32];
        run(&body, (1, 32), (&mut out, &mut input, &mut [0u32])).unwrap();
        assert_eq!(out, [want; 32], "{operation}");
    }
}

#[test]
fn float_reductions() {
    let mut input: Vec<f32> = (0..32).map(|lane| lane as f32 - 20.0).collect();
    input[7] = f32::NAN;
    for (operation, want) in [("min", -20.0), ("max", 11.0), ("min.abs", 0.0), ("max.abs", 20.0), ("max.NaN", f32::NAN)]
    {
        let body = format!(
            "ld.global.u32 %r10, [%rd4]; redux.sync.{operation}.f32 %r11, %r10, -1; st.global.u32 [%rd3], %r11;"
        );
        let mut out = [0f32; 32];
        run(&body, (1, 32), (&mut out, &mut input, &mut [0u32])).unwrap();
        for value in out {
            assert!(value == want || value.is_nan() && want.is_nan(), "{operation} gives {value}");
        }
    }
}

#[test]
fn one_lane_is_elected() {
    let body = "
    setp.lt.u32 %p0, %r0, 5;
    @%p0 exit;
    elect.sync %r10|%p1, -1;
    selp.u32 %r11, 100, 0, %p1;
    add.u32 %r11, %r11, %r10;
    activemask.b32 %r12;
    mad.wide.u32 %rd10, %r0, 8, %rd0;
    st.global.v2.u32 [%rd10], {%r11, %r12};";
    let mut out = [0u32; 64];
    run(body, (1, 32), (&mut out, &mut [0u32], &mut [0u32])).unwrap();
    for lane in 5..32 {
        assert_eq!(out[lane * 2..][..2], [if lane == 5 { 105 } else { 5 }, 0xffff_ffe0]);
    }
}

#[test]
fn faults_of_masks() {
    let refuse = |body: &str| run(body, (1, 32), (&mut [0u32; 32], &mut [0u32], &mut [0u32])).unwrap_err();
    let error = refuse("vote.sync.ballot.b32 %r10, %p0, 0x0000ffff;");
    assert!(error.contains("lane 16 is not in the mask 0x0000ffff"), "{error}");
    let error = refuse("bar.warp.sync 0xfffffffe;");
    assert!(error.contains("lane 0 is not in the mask 0xfffffffe"), "{error}");
    // Half of the warp is at one shuffle, half at another, each waiting for the whole warp.
    let error = refuse(
        "
    setp.lt.u32 %p0, %r0, 16;
    @%p0 bra OTHER;
    shfl.sync.idx.b32 %r10, %r0, 0, 31, -1;
    ret;
OTHER:
    shfl.sync.idx.b32 %r10, %r0, 1, 31, -1;",
    );
    assert!(error.contains("deadlock in a warp"), "{error}");
}

#[test]
fn warp_barriers_join_different_places() {
    // Each half writes, waits at a barrier of its own place, and reads what the other wrote.
    let body = "
    .shared .b32 words[32];
    mov.u32 %r10, words;
    mad.lo.u32 %r11, %r0, 4, %r10;
    xor.b32 %r12, %r0, 16;
    mad.lo.u32 %r12, %r12, 4, %r10;
    setp.lt.u32 %p0, %r0, 16;
    @%p0 bra LOW;
    add.u32 %r13, %r0, 1000;
    st.shared.u32 [%r11], %r13;
    bar.warp.sync -1;
    ld.shared.u32 %r14, [%r12];
    st.global.u32 [%rd3], %r14;
    ret;
LOW:
    add.u32 %r13, %r0, 2000;
    st.shared.u32 [%r11], %r13;
    bar.warp.sync -1;
    ld.shared.u32 %r14, [%r12];
    st.global.u32 [%rd3], %r14;";
    let mut out = [0u32; 32];
    run(body, (1, 32), (&mut out, &mut [0u32], &mut [0u32])).unwrap();
    for lane in 0..32u32 {
        let want = if lane < 16 { lane + 16 + 1000 } else { lane - 16 + 2000 };
        assert_eq!(out[lane as usize], want, "lane {lane}");
    }
}
