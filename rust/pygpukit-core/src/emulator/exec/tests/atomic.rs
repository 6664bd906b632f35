//! Atomic operations, alone and from many blocks.

use crate::emulator::testing::{Aligned, Case, kernel, run};
use crate::random::Random;

/// Run one operation per thread on words of its own, and compare the old and new values.
fn check<T: Copy + PartialEq + std::fmt::Debug + Default>(
    instruction: &str,
    (bits, register): (u32, &str),
    inputs: &[(T, T, T)],
    expected: impl Fn(T, T, T) -> T,
) {
    let n = inputs.len();
    for space in ["global", "shared", ""] {
        let mut memory: Vec<T> = inputs.iter().map(|input| input.0).collect();
        let mut operands: Vec<T> = inputs.iter().flat_map(|input| [input.1, input.2]).collect();
        let mut old = vec![T::default(); n];
        let bytes = bits / 8;
        let space_word = if space.is_empty() { String::new() } else { format!(".{space}") };
        let operation = instruction.replace("SPACE", &space_word);
        let third = if instruction.contains(".cas") { format!(", {register}33") } else { String::new() };
        // Shared memory is loaded before and stored after; a generic address goes to shared memory for odd lanes.
        let body = format!(
            "
    .shared .align 16 .b8 words[2048];
    mov.u32 %r40, words;
    mad.lo.u32 %r41, %r0, {bytes}, %r40;
    mad.wide.u32 %rd40, %r0, {bytes}, %rd0;
    mad.wide.u32 %rd41, %r0, {twice}, %rd1;
    mad.wide.u32 %rd42, %r0, {bytes}, %rd2;
    ld.global.b{bits} {register}31, [%rd40];
    st.shared.b{bits} [%r41], {register}31;
    ld.global.b{bits} {register}32, [%rd41];
    ld.global.b{bits} {register}33, [%rd41+{bytes}];
    mov.u32 %r43, 0;
    mov.b64 %rd43, {{%r41, %r43}};
    cvta.shared.u64 %rd44, %rd43;
    and.b32 %r42, %r0, 1;
    setp.eq.u32 %p1, %r42, 1;
    selp.b64 %rd45, %rd44, %rd40, %p1;
    {operation} {register}34, [{address}], {register}32{third};
    st.global.b{bits} [%rd42], {register}34;
    ld.shared.b{bits} {register}35, [%r41];
    {move_back} st.global.b{bits} [%rd40], {register}35;",
            twice = bytes * 2,
            address = match space {
                "global" => "%rd40",
                "shared" => "%r41",
                _ => "%rd45",
            },
            move_back = match space {
                "global" => "setp.ne.u32 %p2, %r0, %r0; @%p2",
                "shared" => "",
                _ => "@%p1",
            },
        );
        run(&body, (1, n as u32), (&mut memory, &mut operands, &mut old)).unwrap_or_else(|e| panic!("{e}\n{body}"));
        for (k, input) in inputs.iter().enumerate() {
            assert_eq!(old[k], input.0, "old value of {operation}");
            assert_eq!(memory[k], expected(input.0, input.1, input.2), "{operation} of {input:x?}");
        }
    }
}

fn words(seed: u64) -> Vec<(u32, u32, u32)> {
    let mut random = Random::new(seed);
    let mut word = || match random.below(4) {
        0 => random.below(4) as u32,
        1 => u32::MAX - random.below(3) as u32,
        _ => random.next() as u32,
    };
    let all = (0..64).map(|k| (word(), word(), word(), k));
    // A comparison that holds now and then.
    all.map(|(a, b, c, k)| if k % 3 == 0 { (a, a, c) } else { (a, b, c) }).collect()
}

fn double_words(seed: u64) -> Vec<(u64, u64, u64)> {
    let wide = |(a, b): (u32, u32)| u64::from(a) << 32 | u64::from(b);
    let (high, low) = (words(seed), words(seed + 1));
    high.iter().zip(&low).map(|(h, l)| (wide((h.0, l.0)), wide((h.1, l.1)), wide((h.2, l.2)))).collect()
}

#[test]
fn integers_of_32_bits() {
    type F = fn(u32, u32, u32) -> u32;
    let operations: [(&str, F); 14] = [
        ("add.u32", |a, b, _| a.wrapping_add(b)),
        ("add.s32", |a, b, _| a.wrapping_add(b)),
        ("min.u32", |a, b, _| if a < b { a } else { b }),
        ("max.u32", |a, b, _| if a > b { a } else { b }),
        ("min.s32", |a, b, _| if (a as i32) < b as i32 { a } else { b }),
        ("max.s32", |a, b, _| if a as i32 > b as i32 { a } else { b }),
        ("inc.u32", |a, b, _| if a >= b { 0 } else { a + 1 }),
        ("dec.u32", |a, b, _| if a == 0 || a > b { b } else { a - 1 }),
        ("and.b32", |a, b, _| a & b),
        ("or.b32", |a, b, _| a | b),
        ("xor.b32", |a, b, _| a ^ b),
        ("exch.b32", |_, b, _| b),
        ("cas.b32", |a, b, c| if a == b { c } else { a }),
        ("relaxed.sys.cas.b32", |a, b, c| if a == b { c } else { a }),
    ];
    for (name, f) in operations {
        let instruction = match name.strip_prefix("relaxed.sys.") {
            Some(rest) => format!("atom.relaxed.sysSPACE.{rest}"),
            None => format!("atomSPACE.{name}"),
        };
        check(&instruction, (32, "%r"), &words(name.len() as u64), f);
    }
}

#[test]
fn integers_of_64_bits() {
    type F = fn(u64, u64, u64) -> u64;
    let operations: [(&str, F); 10] = [
        ("add.u64", |a, b, _| a.wrapping_add(b)),
        ("min.u64", |a, b, _| if a < b { a } else { b }),
        ("max.u64", |a, b, _| if a > b { a } else { b }),
        ("min.s64", |a, b, _| if (a as i64) < b as i64 { a } else { b }),
        ("max.s64", |a, b, _| if a as i64 > b as i64 { a } else { b }),
        ("and.b64", |a, b, _| a & b),
        ("or.b64", |a, b, _| a | b),
        ("xor.b64", |a, b, _| a ^ b),
        ("exch.b64", |_, b, _| b),
        ("cas.b64", |a, b, c| if a == b { c } else { a }),
    ];
    for (name, f) in operations {
        check(&format!("atomSPACE.{name}"), (64, "%rd"), &double_words(name.len() as u64), f);
    }
    let short: Vec<(u16, u16, u16)> = words(9).iter().map(|w| (w.0 as u16, w.1 as u16, w.2 as u16)).collect();
    check("atomSPACE.cas.b16", (16, "%h"), &short, |a, b, c| if a == b { c } else { a });
}

fn flushed(bits: u32) -> u32 {
    if bits & 0x7f80_0000 == 0 { bits & 0x8000_0000 } else { bits }
}

/// Global memory flushes subnormal numbers of `add.f32`, shared memory keeps them; a generic address does as its memory.
#[test]
fn floats_of_32_bits() {
    let tiny = [1, 0x8000_0001, 0x007f_ffff, 0x0080_0000, 0x8080_0000, 0x0080_0001];
    let mut random = Random::new(4);
    let mut float = || match random.below(3) {
        0 => tiny[random.below(tiny.len())],
        _ => (random.below(2000) as f32 / 7.0 - 100.0).to_bits(),
    };
    let mut values: Vec<u32> = (0..64).map(|_| float()).collect();
    let start: Vec<u32> = (0..64).map(|_| float()).collect();
    let body = "
    .shared .b32 words[64];
    mov.u32 %r10, words;
    mad.lo.u32 %r10, %r0, 4, %r10;
    ld.global.u32 %r11, [%rd3];
    ld.global.u32 %r12, [%rd4];
    st.shared.u32 [%r10], %r11;
    atom.global.add.f32 %r13, [%rd3], %r12;
    red.shared.add.f32 [%r10], %r12;
    ld.shared.u32 %r14, [%r10];
    mad.wide.u32 %rd10, %r0, 4, %rd2;
    st.global.u32 [%rd10], %r14;";
    let mut global = start.clone();
    let mut shared = [0u32; 64];
    run(body, (1, 64), (&mut global, &mut values, &mut shared)).unwrap();
    let add = |a: u32, b: u32| (f32::from_bits(a) + f32::from_bits(b)).to_bits();
    for k in 0..64 {
        assert_eq!(shared[k], add(start[k], values[k]), "{:x} + {:x} in shared memory", start[k], values[k]);
        let want = flushed(add(flushed(start[k]), flushed(values[k])));
        assert_eq!(global[k], want, "{:x} + {:x} in global memory", start[k], values[k]);
    }
}

#[test]
fn floats_of_64_bits() {
    let mut random = Random::new(5);
    let mut float = || (random.below(1 << 40) as f64 / 3.0 - 1e11).to_bits();
    let inputs: Vec<(u64, u64, u64)> = (0..64).map(|_| (float(), float(), 0)).collect();
    check("atomSPACE.add.f64", (64, "%rd"), &inputs, |a, b, _| (f64::from_bits(a) + f64::from_bits(b)).to_bits());
}

/// The value of 16 bits with a 10-bit mantissa; finite ones only.
fn half(bits: u16) -> f64 {
    let (exponent, mantissa) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
    let size =
        if exponent == 0 { mantissa / 1024.0 / 16384.0 } else { (1.0 + mantissa / 1024.0) * 2f64.powi(exponent - 15) };
    if bits >> 15 == 0 { size } else { -size }
}

/// The nearest half, by a look at all of them; ties go to the even one.
fn nearest_half(value: f64) -> u16 {
    let distance = |bits: &u16| (half(*bits) - value).abs();
    let all = (0..0x7c00).chain(0x8000..0xfc00);
    all.min_by(|a, b| distance(a).total_cmp(&distance(b)).then((a & 1).cmp(&(b & 1)))).unwrap()
}

fn nearest_bfloat(value: f32) -> u16 {
    let bits = value.to_bits();
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

#[test]
fn floats_of_16_bits() {
    let mut random = Random::new(6);
    // Sums that do not cancel, so that no zero has a sign to argue about.
    let mut bits = || (random.below(0x7000) as u16).max(1);
    let halves: Vec<(u16, u16, u16)> = (0..32).map(|_| (bits(), bits(), 0)).collect();
    let add_half = |a, b| nearest_half(half(a) + half(b));
    check("atomSPACE.add.noftz.f16", (16, "%h"), &halves, |a, b, _| add_half(a, b));
    // Exponents near each other: the sum is exact before it is rounded.
    let mut random = Random::new(7);
    let mut bits = || 0x4000 + random.below(0x400) as u16;
    let bfloats: Vec<(u16, u16, u16)> = (0..32).map(|_| (bits(), bits(), 0)).collect();
    let value = |bits: u16| f32::from_bits(u32::from(bits) << 16);
    let add_bfloat = |a, b| nearest_bfloat(value(a) + value(b));
    check("atomSPACE.add.noftz.bf16", (16, "%h"), &bfloats, |a, b, _| add_bfloat(a, b));
    let pair = |low: u16, high: u16| u32::from(low) | u32::from(high) << 16;
    let pairs = |list: &[(u16, u16, u16)]| {
        list.chunks_exact(2).map(|two| (pair(two[0].0, two[1].0), pair(two[0].1, two[1].1), 0)).collect::<Vec<_>>()
    };
    let each = |f: &dyn Fn(u16, u16) -> u16, a: u32, b: u32| {
        pair(f(a as u16, b as u16), f((a >> 16) as u16, (b >> 16) as u16))
    };
    check("atomSPACE.add.noftz.f16x2", (32, "%r"), &pairs(&halves), |a, b, _| each(&add_half, a, b));
    check("atomSPACE.add.noftz.bf16x2", (32, "%r"), &pairs(&bfloats), |a, b, _| each(&add_bfloat, a, b));
}

/// The words of a vector change each on its own; results may go to registers that are operands.
#[test]
fn vectors() {
    let body = "
    mad.wide.u32 %rd10, %r0, 16, %rd0;
    mov.u32 %r10, 0f3f800000;
    mov.u32 %r11, 0f40000000;
    mov.u32 %r12, 0f40400000;
    mov.u32 %r13, 0f40800000;
    atom.global.add.v4.f32 {%r11, %r12, %r13, %r10}, [%rd10], {%r10, %r11, %r12, %r13};
    red.global.add.v2.f32 [%rd10+8], {%r10, %r10};
    mad.wide.u32 %rd11, %r0, 16, %rd1;
    st.global.v4.u32 [%rd11], {%r11, %r12, %r13, %r10};";
    let mut memory: Vec<f32> = (0..128).map(|k| 10.0 * k as f32).collect();
    let mut old = [0f32; 128];
    run(body, (1, 32), (&mut memory, &mut old, &mut [0u32])).unwrap();
    for thread in 0..32 {
        let before: Vec<f32> = (0..4).map(|k| 10.0 * (thread * 4 + k) as f32).collect();
        assert_eq!(old[thread * 4..][..4], before);
        let more = before[3];
        let want = [before[0] + 1.0, before[1] + 2.0, before[2] + 3.0 + more, before[3] + 4.0 + more];
        assert_eq!(memory[thread * 4..][..4], want);
    }
}

/// Threads of a warp at one word act one after the other, in order of lanes.
#[test]
fn lanes_take_turns() {
    for (space, address) in [("global", "%rd1"), ("shared", "word")] {
        let body = format!(
            "
    .shared .b32 word;
    mov.u32 %r10, 1;
    st.shared.u32 [word], 100;
    st.global.u32 [%rd1], 100;
    atom.{space}.add.u32 %r11, [{address}], %r0;
    st.global.u32 [%rd3], %r11;"
        );
        let mut out = [0u32; 32];
        run(&body, (1, 32), (&mut out, &mut [0u32], &mut [0u32])).unwrap();
        let want: Vec<u32> = (0..32).map(|lane| 100 + (0..lane).sum::<u32>()).collect();
        assert_eq!(out[..], want);
    }
}

/// Blocks on several host threads at the same words.
#[test]
fn nothing_is_lost_between_blocks() {
    let body = "
    and.b32 %r10, %r0, 3;
    mad.wide.u32 %rd10, %r10, 4, %rd0;
    red.relaxed.gpu.global.add.u32 [%rd0+16], 1;
    atom.global.add.u32 %r11, [%rd10], %r0;
    red.global.add.f32 [%rd0+20], 0f3f800000;
    red.global.max.u32 [%rd0+24], %r2;
    red.global.inc.u32 [%rd0+28], 99;
    mov.u64 %rd11, 1;
    red.global.add.u64 [%rd0+32], %rd11;
    shl.b32 %r12, %r10, 1;
    mov.u32 %r13, 1;
    shl.b32 %r13, %r13, %r1;
    red.global.or.b32 [%rd0+40], %r13;
    red.global.xor.b32 [%rd0+44], %r2;
    mov.u16 %h1, 0x3c00;
    red.global.add.noftz.f16 [%rd0+48], %h1;
LOOP:
    ld.volatile.global.u32 %r20, [%rd0+52];
    add.u32 %r21, %r20, 3;
    atom.global.cas.b32 %r22, [%rd0+52], %r20, %r21;
    setp.ne.u32 %p0, %r22, %r20;
    @%p0 bra LOOP;";
    let text = kernel(body);
    let (blocks, threads) = (16u32, 96u32);
    let mut memory = Aligned::new(&[0u32; 16]);
    let mut case = Case::new(&text, blocks, threads);
    case.options.workers = 4;
    case.run(&[memory.address(), 0, 0]).unwrap();
    let mut out = [0u32; 16];
    memory.copy_to(&mut out);
    let all = blocks * threads;
    for k in 0..4 {
        assert_eq!(out[k as usize], blocks * (0..threads).filter(|t| t % 4 == k).sum::<u32>());
    }
    assert_eq!(out[4], all);
    assert_eq!(f32::from_bits(out[5]), all as f32);
    assert_eq!(out[6], all - 1);
    assert_eq!(out[7], all % 100);
    assert_eq!(out[8..10], [all, 0]);
    assert_eq!(out[10], 0xffff);
    assert_eq!(out[11], (0..all).fold(0, |x, t| x ^ t));
    assert_eq!(half(out[12] as u16), f64::from(all));
    assert_eq!(out[13], 3 * all);
}

#[test]
fn bad_operations_are_told() {
    for (instruction, want) in [
        ("atom.global.add.u32 %r10, [%rd0+2], 1;", "misaligned write of 4 bytes"),
        ("red.global.add.u64 [8], %rd0;", "write of 8 bytes at 0x8 (a null pointer)"),
        ("atom.shared.add.u32 %r10, [%r0], 1;", "of shared memory, which has 0 bytes"),
        ("atom.global.add.b32 %r10, [%rd0], 1;", "instruction 'atom.global.add.b32' is not supported"),
        ("atom.local.add.u32 %r10, [%rd0], 1;", "is not an operation on this memory"),
        ("atom.global.cas.b32 %r10, [%rd0], 1;", "takes 4 operands, not 3"),
    ] {
        let error = run(instruction, (1, 32), (&mut [0u32; 4], &mut [0u32], &mut [0u32])).unwrap_err();
        assert!(error.contains(want), "{instruction}: {error}");
    }
}
