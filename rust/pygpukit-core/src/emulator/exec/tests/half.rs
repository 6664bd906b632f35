//! Arithmetic of f16 and bf16, alone and in pairs.

use super::harness::{apply, bf16s, check, f16s, pairs, refusal};
use crate::emulator::float;

const H: [u32; 4] = [16; 4];
const W: [u32; 4] = [32; 4];

/// Exact value of an f16 or bf16.
fn value(bits: u64, exp_bits: u32, man_bits: u32) -> f64 {
    let sign = if bits >> 15 & 1 != 0 { -1.0 } else { 1.0 };
    let (field, fraction) = (bits >> man_bits & ((1 << exp_bits) - 1), bits & ((1 << man_bits) - 1));
    let bias = (1 << (exp_bits - 1)) - 1;
    let scale = |exp: i64| 2f64.powi((exp - bias - i64::from(man_bits)) as i32);
    sign * match field {
        0 => fraction as f64 * scale(1),
        _ if field == (1 << exp_bits) - 1 && fraction == 0 => f64::INFINITY,
        _ if field == (1 << exp_bits) - 1 => f64::NAN,
        _ => ((1 << man_bits) + fraction) as f64 * scale(field as i64),
    }
}

/// The result must be one of the two numbers around the exact one, and the nearer.
fn nearest(code: &str, exp_bits: u32, man_bits: u32, cases: &[[u64; 3]], exact: impl Fn([f64; 3]) -> f64) {
    let of = |bits| value(bits, exp_bits, man_bits);
    let infinity = ((1u64 << exp_bits) - 1) << man_bits;
    for (case, got) in cases.iter().zip(apply(code, H, cases)) {
        let want = exact(case.map(of));
        if want.is_nan() {
            assert_eq!(got, 0x7fff, "'{code}' of {case:x?}");
            continue;
        }
        let magnitude = got & 0x7fff;
        assert!(magnitude <= infinity, "'{code}' of {case:x?} gave a NaN");
        if want != 0.0 {
            assert_eq!(got >> 15 != 0, want < 0.0, "'{code}' of {case:x?}");
        }
        // Infinity stands for the number after the largest.
        let finite = |bits: u64| if bits < infinity { of(bits) } else { 2.0 * of(infinity - 1) - of(infinity - 2) };
        let error = (want.abs().min(finite(infinity)) - finite(magnitude)).abs();
        for other in [magnitude.wrapping_sub(1), magnitude + 1] {
            if other <= infinity {
                let distance = (want.abs().min(finite(infinity)) - finite(other)).abs();
                let even = magnitude & 1 == 0;
                assert!(error < distance || (error == distance && even), "'{code}' of {case:x?}: {got:#x}");
            }
        }
    }
}

#[test]
fn scalars_round_to_the_nearest() {
    for (ty, exp_bits, man_bits, cases) in [("f16", 5, 10, f16s(20)), ("bf16", 8, 7, bf16s(21))] {
        let run = |code: &str, exact: fn([f64; 3]) -> f64| {
            nearest(&code.replace("TY", ty), exp_bits, man_bits, &cases, exact);
        };
        run("add.TY %d, %a, %b", |[a, b, _]| a + b);
        run("sub.rn.TY %d, %a, %b", |[a, b, _]| a - b);
        run("mul.TY %d, %a, %b", |[a, b, _]| a * b);
        run("neg.TY %d, %a", |[a, ..]| -a);
        run("abs.TY %d, %a", |[a, ..]| a.abs());
    }
    // The product and the sum of f16 are exact in f64.
    nearest("fma.rn.f16 %d, %a, %b, %c", 5, 10, &f16s(22), |[a, b, c]| a * b + c);
}

type One = fn(u16) -> u16;
type Two = fn(u16, u16) -> u16;
type Three = fn(u16, u16, u16) -> u16;

/// Check an instruction for one value, and for pairs of them.
fn both(code: &str, ty: &str, cases: &[[u64; 3]], want: impl Fn([u16; 3]) -> u16) {
    let one = |v: [u64; 3]| u64::from(want(v.map(|x| x as u16)));
    check(&code.replace("TY", ty), H, cases, one);
    check(&code.replace("TY", &format!("{ty}x2")), W, &pairs(cases), |v| one(v) | one(v.map(|x| x >> 16)) << 16);
}

#[test]
fn f16_with_every_modifier() {
    let cases = f16s(23);
    let flush = float::flush_f16;
    let two: [(&str, Two); 3] = [("add", float::add_f16), ("sub", float::sub_f16), ("mul", float::mul_f16)];
    for (name, op) in two {
        both(&format!("{name}.TY %d, %a, %b"), "f16", &cases, |[a, b, _]| op(a, b));
        both(&format!("{name}.rn.ftz.TY %d, %a, %b"), "f16", &cases, |[a, b, _]| flush(op(flush(a), flush(b))));
        both(&format!("{name}.sat.TY %d, %a, %b"), "f16", &cases, |[a, b, _]| float::saturate_f16(op(a, b)));
        both(&format!("{name}.ftz.sat.TY %d, %a, %b"), "f16", &cases, |[a, b, _]| {
            float::saturate_f16(flush(op(flush(a), flush(b))))
        });
    }
    let fma: Three = float::fma_f16;
    both("fma.rn.TY %d, %a, %b, %c", "f16", &cases, |[a, b, c]| fma(a, b, c));
    both("fma.rn.relu.TY %d, %a, %b, %c", "f16", &cases, |[a, b, c]| float::relu_f16(fma(a, b, c)));
    both("fma.rn.ftz.relu.TY %d, %a, %b, %c", "f16", &cases, |[a, b, c]| {
        float::relu_f16(flush(fma(flush(a), flush(b), flush(c))))
    });
    both("fma.rn.sat.TY %d, %a, %b, %c", "f16", &cases, |[a, b, c]| float::saturate_f16(fma(a, b, c)));
    let one: [(&str, One); 4] = [
        ("neg.TY", float::neg_f16),
        ("abs.TY", float::abs_f16),
        ("ex2.approx.TY", float::ex2_f16),
        ("tanh.approx.TY", float::tanh_f16),
    ];
    for (name, op) in one {
        both(&format!("{name} %d, %a"), "f16", &cases, |[a, ..]| op(a));
    }
    both("ex2.approx.ftz.TY %d, %a", "f16", &cases, |[a, ..]| flush(float::ex2_f16(flush(a))));
    both("neg.ftz.TY %d, %a", "f16", &cases, |[a, ..]| float::neg_f16(flush(a)));
    both("abs.ftz.TY %d, %a", "f16", &cases, |[a, ..]| float::abs_f16(flush(a)));
    for (word, nan) in [("", false), (".NaN", true)] {
        both(&format!("min{word}.TY %d, %a, %b"), "f16", &cases, |[a, b, _]| float::min_f16(a, b, nan));
        both(&format!("max.ftz{word}.TY %d, %a, %b"), "f16", &cases, |[a, b, _]| {
            float::max_f16(flush(a), flush(b), nan)
        });
        both(&format!("min{word}.xorsign.abs.TY %d, %a, %b"), "f16", &cases, |[a, b, _]| {
            float::min_xorsign_f16(a, b, nan)
        });
        both(&format!("max.ftz{word}.xorsign.abs.TY %d, %a, %b"), "f16", &cases, |[a, b, _]| {
            float::max_xorsign_f16(flush(a), flush(b), nan)
        });
    }
}

#[test]
fn bf16_with_every_modifier() {
    let cases = bf16s(24);
    both("add.TY %d, %a, %b", "bf16", &cases, |[a, b, _]| float::add_bf16(a, b));
    both("sub.rn.TY %d, %a, %b", "bf16", &cases, |[a, b, _]| float::sub_bf16(a, b));
    both("mul.TY %d, %a, %b", "bf16", &cases, |[a, b, _]| float::mul_bf16(a, b));
    both("fma.rn.TY %d, %a, %b, %c", "bf16", &cases, |[a, b, c]| float::fma_bf16(a, b, c));
    both("fma.rn.relu.TY %d, %a, %b, %c", "bf16", &cases, |[a, b, c]| float::relu_bf16(float::fma_bf16(a, b, c)));
    both("neg.TY %d, %a", "bf16", &cases, |[a, ..]| float::neg_bf16(a));
    both("abs.TY %d, %a", "bf16", &cases, |[a, ..]| float::abs_bf16(a));
    both("ex2.approx.ftz.TY %d, %a", "bf16", &cases, |[a, ..]| float::ex2_bf16(a));
    both("tanh.approx.TY %d, %a", "bf16", &cases, |[a, ..]| float::tanh_bf16(a));
    for (word, nan) in [("", false), (".NaN", true)] {
        both(&format!("min{word}.TY %d, %a, %b"), "bf16", &cases, |[a, b, _]| float::min_bf16(a, b, nan));
        both(&format!("max{word}.TY %d, %a, %b"), "bf16", &cases, |[a, b, _]| float::max_bf16(a, b, nan));
        both(&format!("min{word}.xorsign.abs.TY %d, %a, %b"), "bf16", &cases, |[a, b, _]| {
            float::min_xorsign_bf16(a, b, nan)
        });
        both(&format!("max{word}.xorsign.abs.TY %d, %a, %b"), "bf16", &cases, |[a, b, _]| {
            float::max_xorsign_bf16(a, b, nan)
        });
    }
}

#[test]
fn what_halves_do_not_have_is_refused() {
    for code in [
        "add.rz.f16 %d, %a, %b",
        "add.ftz.bf16 %d, %a, %b",
        "add.sat.bf16 %d, %a, %b",
        "add.relu.f16 %d, %a, %b",
        "mad.rn.f16 %d, %a, %b, %c",
        "sin.approx.f16 %d, %a",
        "div.rn.f16 %d, %a, %b",
        "min.f16 %d, %a, %b, %c",
    ] {
        let message = refusal(code, H);
        assert!(message.contains("PTX line"), "'{code}': {message}");
    }
}
