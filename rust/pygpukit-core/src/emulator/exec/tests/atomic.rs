//! Atomic operations, alone and from many blocks.

use crate::emulator::random::Random;
use crate::emulator::testing::run;

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
