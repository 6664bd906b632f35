//! `cvt` between all types, against exact values.

use super::harness::{apply, bf16s, check, f16s, f32s, f64s, pairs, refusal};
use crate::emulator::float::{self, Format, Round};
use crate::random::Random;

const INTEGERS: [(&str, u32, bool); 8] = [
    ("u8", 8, false),
    ("u16", 16, false),
    ("u32", 32, false),
    ("u64", 64, false),
    ("s8", 8, true),
    ("s16", 16, true),
    ("s32", 32, true),
    ("s64", 64, true),
];

const FLOATS: [(&str, u32, Format); 4] =
    [("f16", 16, Format::F16), ("bf16", 16, Format::BF16), ("f32", 32, Format::F32), ("f64", 64, Format::F64)];

const ROUNDS: [(&str, Round); 4] =
    [("rn", Round::Nearest), ("rz", Round::Zero), ("rm", Round::Down), ("rp", Round::Up)];

/// The lowest bits as an integer.
fn integer(value: u64, bits: u32, signed: bool) -> i128 {
    let value = i128::from(value) & ((1 << bits) - 1);
    if signed && value >> (bits - 1) != 0 { value - (1 << bits) } else { value }
}

fn clamp(value: i128, bits: u32, signed: bool) -> i128 {
    let span = 1i128 << (bits - u32::from(signed));
    value.clamp(if signed { -span } else { 0 }, span - 1)
}

/// A value in a register, extended by its type.
fn extended(value: i128, bits: u32, signed: bool) -> u64 {
    integer(value as u64, bits, signed) as u64
}

/// Registers a type may lie in.
fn registers(bits: u32) -> impl Iterator<Item = u32> {
    [16, 32, 64].into_iter().filter(move |register| *register >= bits)
}

fn numbers(seed: u64, count: usize) -> Vec<[u64; 3]> {
    let mut random = Random::new(seed);
    let mut cases: Vec<u64> = vec![0, 1, u64::MAX];
    for shift in 0..64 {
        cases.extend([1 << shift, (1u64 << shift).wrapping_sub(1), !(1 << shift), (1u64 << shift) + 1]);
    }
    for _ in 0..count {
        cases.push(random.next() >> random.below(64));
    }
    cases.into_iter().map(|x| [x, x, x]).collect()
}

/// Operands of a format, each once.
fn floats_of(name: &str) -> Vec<[u64; 3]> {
    let mut cases = match name {
        "f16" => f16s(50),
        "bf16" => bf16s(51),
        "f32" => f32s(52),
        _ => f64s(53),
    };
    cases.sort_by_key(|case| case[0]);
    cases.dedup_by_key(|case| case[0]);
    cases
}

/// Exact value of a float.
fn exact(bits: u64, format: Format) -> f64 {
    f64::from_bits(float::convert(bits, format, Format::F64, Round::Nearest))
}

#[test]
fn integers_to_integers() {
    let cases = numbers(60, 100);
    for (from, from_bits, from_signed) in INTEGERS {
        for (to, to_bits, to_signed) in INTEGERS {
            for source in registers(from_bits) {
                for target in registers(to_bits) {
                    let bits = [target, source, source, source];
                    check(&format!("cvt.{to}.{from} %d, %a"), bits, &cases, |[a, ..]| {
                        extended(integer(a, from_bits, from_signed), to_bits, to_signed)
                    });
                    if target == to_bits.max(16) {
                        check(&format!("cvt.sat.{to}.{from} %d, %a"), bits, &cases, |[a, ..]| {
                            clamp(integer(a, from_bits, from_signed), to_bits, to_signed) as u64
                        });
                    }
                }
            }
        }
    }
}

#[test]
fn integers_to_floats() {
    let cases = numbers(61, 300);
    for (from, from_bits, signed) in INTEGERS {
        for (to, to_bits, format) in FLOATS {
            for (word, round) in ROUNDS {
                for source in registers(from_bits) {
                    let bits = [to_bits, source, source, source];
                    let want = |a: u64| {
                        let value = integer(a, from_bits, signed);
                        let magnitude = value.unsigned_abs();
                        float::round_pack(format, value < 0, 0, magnitude, false, round)
                    };
                    check(&format!("cvt.{word}.{to}.{from} %d, %a"), bits, &cases, |[a, ..]| want(a));
                    if to != "bf16" && source == from_bits.max(16) {
                        check(&format!("cvt.{word}.sat.{to}.{from} %d, %a"), bits, &cases, |[a, ..]| {
                            let one = float::convert(0x3f80_0000, Format::F32, format, Round::Nearest);
                            let value = integer(a, from_bits, signed);
                            if value > 0 { one } else { 0 }
                        });
                    }
                }
            }
        }
    }
    check("cvt.rn.f32.s32 %d, 7", [32; 4], &cases[..40], |_| 7f32.to_bits().into());
}

/// The integral value of a rounding.
fn integral(x: f64, round: Round) -> f64 {
    match round {
        Round::Zero => x.trunc(),
        Round::Down => x.floor(),
        Round::Up => x.ceil(),
        _ => x.round_ties_even(),
    }
}

#[test]
fn floats_to_integers() {
    let near_ends: Vec<f64> = (0..65)
        .flat_map(|shift| {
            let x = 2f64.powi(shift);
            [x, x - 1.0, x - 0.5, x + 0.5, x + 1.5, x.next_up(), x.next_down()]
        })
        .flat_map(|x| [x, -x])
        .collect();
    for (from, from_bits, format) in FLOATS {
        let mut cases = floats_of(from);
        for x in &near_ends {
            let bits = float::convert(x.to_bits(), Format::F64, format, Round::Nearest);
            cases.push([bits, bits, bits]);
        }
        for (to, to_bits, signed) in INTEGERS {
            for (word, round) in ROUNDS {
                let want = |a: u64| {
                    let x = integral(exact(a, format), round);
                    if x.is_nan() {
                        // Only wide conversions mark a NaN.
                        let marked = from == "f64" || to_bits == 64;
                        return if marked { extended(1 << (to_bits - 1), to_bits, signed) } else { 0 };
                    }
                    clamp(x.clamp(-1e30, 1e30) as i128, to_bits, signed) as u64
                };
                for target in registers(to_bits) {
                    let bits = [target, from_bits, from_bits, from_bits];
                    check(&format!("cvt.{word}i.{to}.{from} %d, %a"), bits, &cases, |[a, ..]| want(a));
                    if from == "f32" && target == to_bits.max(16) {
                        check(&format!("cvt.{word}i.ftz.{to}.f32 %d, %a"), bits, &cases, |[a, ..]| {
                            want(float::flush_f32(a as u32).into())
                        });
                        check(&format!("cvt.{word}i.sat.{to}.f32 %d, %a"), bits, &cases, |[a, ..]| want(a));
                    }
                }
            }
        }
    }
}

#[test]
fn floats_to_floats() {
    for (from, from_bits, format) in FLOATS {
        let cases = floats_of(from);
        for (to, to_bits, target) in FLOATS {
            let bits = [to_bits, from_bits, from_bits, from_bits];
            if from == to {
                for (word, round) in ROUNDS {
                    let code = format!("cvt.{word}i.{to}.{from} %d, %a");
                    for (case, got) in cases.iter().zip(apply(&code, bits, &cases)) {
                        let (want, got) = (integral(exact(case[0], format), round), exact(got, target));
                        // An integral value has few enough bits to be exact; zeros have their sign.
                        let same = want.to_bits() == got.to_bits() || (want.is_nan() && got.is_nan());
                        assert!(same, "'{code}' of {case:x?}: {got}, not {want}");
                    }
                }
                continue;
            }
            let widens = target.exp_bits >= format.exp_bits && target.man_bits >= format.man_bits;
            let rounds: &[(&str, Round)] = if widens { &[("", Round::Nearest)] } else { &ROUNDS };
            for &(word, round) in rounds {
                let dot = if word.is_empty() { "" } else { "." };
                let code = format!("cvt{dot}{word}.{to}.{from} %d, %a");
                for (case, got) in cases.iter().zip(apply(&code, bits, &cases)) {
                    let want = float::convert(case[0], format, target, round);
                    if exact(case[0], format).is_nan() {
                        assert!(exact(got, target).is_nan(), "'{code}' of {case:x?}: {got:#x}");
                    } else {
                        assert_eq!(got, want, "'{code}' of {case:x?}");
                    }
                }
            }
        }
    }
}

#[test]
fn floats_to_floats_with_modifiers() {
    let (singles, doubles) = (f32s(54), f64s(55));
    let single = |a: u64, r: Round, to: Format| float::convert(a, Format::F32, to, r);
    check("cvt.sat.f32.f32 %d, %a", [32; 4], &singles, |[a, ..]| float::saturate_f32(a as u32).into());
    check("cvt.ftz.f32.f32 %d, %a", [32; 4], &singles, |[a, ..]| {
        float::canon_f32(f32::from_bits(float::flush_f32(a as u32))).into()
    });
    check("cvt.rni.ftz.f32.f32 %d, %a", [32; 4], &singles, |[a, ..]| {
        float::round_int_f32(float::flush_f32(a as u32), Round::Nearest).into()
    });
    check("cvt.sat.f64.f64 %d, %a", [64; 4], &doubles, |[a, ..]| float::saturate_f64(a));
    check("cvt.ftz.f64.f32 %d, %a", [64, 32, 32, 32], &singles, |[a, ..]| {
        let wide = float::f32_to_f64(float::flush_f32(a as u32));
        if f32::from_bits(a as u32).is_nan() { 0x7fff_ffff_e000_0000 } else { wide }
    });
    for (word, round) in ROUNDS {
        check(&format!("cvt.{word}.ftz.f32.f64 %d, %a"), [32, 64, 64, 64], &doubles, |[a, ..]| {
            let (x, sign) = (f64::from_bits(a), a >> 32 & 0x8000_0000);
            match x.abs() {
                // A NaN keeps its sign and the top of its payload.
                magnitude if magnitude.is_nan() => sign | 0x7fc0_0000 | (a >> 29 & 0x3f_ffff),
                magnitude if magnitude < f64::from(f32::MIN_POSITIVE) * (1.0 - 2f64.powi(-24)) => sign,
                magnitude if magnitude < f64::from(f32::MIN_POSITIVE) => float::f64_to_ftz_f32(a, round).into(),
                _ => float::convert(a, Format::F64, Format::F32, round),
            }
        });
        check(&format!("cvt.{word}.ftz.f16.f32 %d, %a"), [16, 32, 32, 32], &singles, |[a, ..]| {
            single(float::flush_f32(a as u32).into(), round, Format::F16)
        });
        check(&format!("cvt.{word}.sat.f16.f32 %d, %a"), [16, 32, 32, 32], &singles, |[a, ..]| {
            float::saturate_f16(single(a, round, Format::F16) as u16).into()
        });
    }
    for (word, round) in &ROUNDS[..2] {
        for (to, format) in [("f16", Format::F16), ("bf16", Format::BF16)] {
            let infinity = format.infinity();
            let relu = |x: u64| if x >> 15 == 1 { 0 } else { x };
            let finite = |x: u64| if x & 0x7fff == infinity { x - 1 } else { x };
            let bits = [16, 32, 32, 32];
            check(&format!("cvt.{word}.relu.{to}.f32 %d, %a"), bits, &singles, |[a, ..]| {
                relu(single(a, *round, format))
            });
            check(&format!("cvt.{word}.satfinite.{to}.f32 %d, %a"), bits, &singles, |[a, ..]| {
                finite(single(a, *round, format))
            });
            // The first operand is the upper half.
            check(&format!("cvt.{word}.{to}x2.f32 %d, %a, %b"), [32; 4], &singles, |[a, b, _]| {
                single(a, *round, format) << 16 | single(b, *round, format)
            });
            check(&format!("cvt.{word}.relu.satfinite.{to}x2.f32 %d, %a, %b"), [32; 4], &singles, |[a, b, _]| {
                let one = |x| finite(relu(single(x, *round, format)));
                one(a) << 16 | one(b)
            });
        }
    }
}

#[test]
fn tf32() {
    let cases = f32s(56);
    let want = |a: u64, round: Round| {
        let bits = float::convert(a, Format::F32, Format::TF32, round) << 13;
        match f32::from_bits(a as u32).is_nan() {
            true if round == Round::Away => a & 0xffff_e000,
            true => 0x7fff_e000,
            false => bits,
        }
    };
    for (word, round) in [("rn", Round::Nearest), ("rz", Round::Zero), ("rna", Round::Away)] {
        check(&format!("cvt.{word}.tf32.f32 %d, %a"), [32; 4], &cases, |[a, ..]| want(a, round));
        check(&format!("cvt.{word}.satfinite.tf32.f32 %d, %a"), [32; 4], &cases, |[a, ..]| {
            let (value, above) =
                (want(a, round), if round == Round::Away { 0x7f80_0000..=u64::MAX } else { 0x7f80_0000..=0x7f80_0000 });
            if above.contains(&(value & 0x7fff_ffff)) { value - 0x2000 } else { value }
        });
    }
    check("cvt.rn.relu.tf32.f32 %d, %a", [32; 4], &cases, |[a, ..]| {
        let value = want(a, Round::Nearest);
        if value >> 31 == 1 { 0 } else { value }
    });
}

/// fp8 of an exact value: the nearest number, ties to even, the largest where there is none.
fn fp8(bits: u64, from: Format, to: Format, relu: bool) -> u64 {
    let x = exact(bits, from);
    if x.is_nan() {
        return 0x7f;
    }
    if relu && bits & from.sign_bit() != 0 {
        return 0;
    }
    let value = float::convert(bits, from, to, Round::Nearest);
    if value & 0x7f == to.infinity() && to == Format::E5M2 { value - 1 } else { value }
}

#[test]
fn fp8_in_both_directions() {
    let (singles, halves, brains) = (f32s(57), pairs(&f16s(58)), pairs(&bf16s(59)));
    let bytes: Vec<[u64; 3]> = (0..0x10000).step_by(7).chain(0..256).map(|x| [x, 0, 0]).collect();
    for (name, to) in [("e4m3x2", Format::E4M3), ("e5m2x2", Format::E5M2)] {
        for (word, relu) in [("", false), (".relu", true)] {
            check(&format!("cvt.rn.satfinite{word}.{name}.f32 %d, %a, %b"), [16, 32, 32, 32], &singles, |[a, b, _]| {
                fp8(a, Format::F32, to, relu) << 8 | fp8(b, Format::F32, to, relu)
            });
            for (pair, cases, from) in [("f16x2", &halves, Format::F16), ("bf16x2", &brains, Format::BF16)] {
                check(&format!("cvt.rn.satfinite{word}.{name}.{pair} %d, %a"), [16, 32, 32, 32], cases, |[a, ..]| {
                    fp8(a >> 16, from, to, relu) << 8 | fp8(a & 0xffff, from, to, relu)
                });
            }
            check(&format!("cvt.rn{word}.f16x2.{name} %d, %a"), [32, 16, 16, 16], &bytes, |[a, ..]| {
                let one = |byte: u64| match float::convert(byte, to, Format::F16, Round::Nearest) {
                    value if value & 0x7fff > 0x7c00 => 0x7fff,
                    value if relu && value >> 15 == 1 => 0,
                    value => value,
                };
                one(a >> 8) << 16 | one(a & 0xff)
            });
        }
    }
}

#[test]
fn packed_integers() {
    let cases: Vec<[u64; 3]> = {
        let mut random = Random::new(62);
        (0..500).map(|_| [0; 3].map(|_| (random.next() as i32 >> random.below(32)) as u32 as u64)).collect()
    };
    for (to, bits, signed) in [
        ("u16", 16, false),
        ("s16", 16, true),
        ("u8", 8, false),
        ("s8", 8, true),
        ("u4", 4, false),
        ("s4", 4, true),
        ("u2", 2, false),
        ("s2", 2, true),
    ] {
        let part = |x: u64| clamp(integer(x, 32, true), bits, signed) as u64 & ((1 << bits) - 1);
        let pair = |a: u64, b: u64| part(a) << bits | part(b);
        if bits == 16 {
            check(&format!("cvt.pack.sat.{to}.s32 %d, %a, %b"), [32; 4], &cases, |[a, b, _]| pair(a, b));
        } else {
            let code = format!("cvt.pack.sat.{to}.s32.b32 %d, %a, %b, %c");
            check(&code, [32; 4], &cases, |[a, b, c]| c << (2 * bits) | pair(a, b));
        }
    }
}

#[test]
fn refused_conversions() {
    for (code, bits) in [
        ("cvt.s32.f32 %d, %a", [32; 4]),
        ("cvt.rn.s32.f32 %d, %a", [32; 4]),
        ("cvt.rni.f32.s32 %d, %a", [32; 4]),
        ("cvt.rn.s32.s32 %d, %a", [32; 4]),
        ("cvt.rna.f16.f32 %d, %a", [16, 32, 32, 32]),
        ("cvt.rn.f16.f32 %d, %a", [32; 4]),
        ("cvt.u32.u32 %d, %a", [16, 32, 32, 32]),
        ("cvt.u64.u64 %d, %a", [64, 32, 32, 32]),
        ("cvt.rm.f16x2.f32 %d, %a, %b", [32; 4]),
        ("cvt.rn.f16x2.f32 %d, %a", [32; 4]),
        ("cvt.rn.tf32.f16 %d, %a", [32; 4]),
        ("cvt.relu.u32.u32 %d, %a", [32; 4]),
        ("cvt.rn.f32.q32 %d, %a", [32; 4]),
        ("cvt.u32 %d, %a", [32; 4]),
        ("cvt.pack.sat.q8.s32 %d, %a, %b", [32; 4]),
        ("cvt.rna.f32.f64 %d, %a", [32, 64, 64, 64]),
    ] {
        let message = refusal(code, bits);
        assert!(message.contains("PTX line") && message.contains("cvt"), "'{code}': {message}");
    }
}
