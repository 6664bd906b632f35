//! Arithmetic of f32 and f64.

use super::harness::{check, f32s, f64s, refusal};
use crate::emulator::float::{self, Round};

const W: [u32; 4] = [32; 4];
const D: [u32; 4] = [64; 4];

const ROUNDS: [(&str, Round); 4] =
    [(".rn", Round::Nearest), (".rz", Round::Zero), (".rm", Round::Down), (".rp", Round::Up)];

type Two = fn(u32, u32, Round) -> u32;

fn single(x: u64) -> f32 {
    f32::from_bits(x as u32)
}

fn double(x: u64) -> f64 {
    f64::from_bits(x)
}

/// The bits of an f32 result, every NaN the same.
fn bits(x: f32) -> u64 {
    if x.is_nan() { 0x7fff_ffff } else { x.to_bits().into() }
}

/// The bits of an f64 result of operands.
fn bits64(x: f64, operands: &[u64]) -> u64 {
    let nan = operands.iter().find(|bits| double(**bits).is_nan());
    match nan {
        _ if !x.is_nan() => x.to_bits(),
        Some(nan) => nan | 1 << 51,
        None => 0xfff8_0000_0000_0000,
    }
}

#[test]
fn f32_to_nearest_is_what_the_host_computes() {
    let cases = f32s(1);
    check("add.f32 %d, %a, %b", W, &cases, |[a, b, _]| bits(single(a) + single(b)));
    check("sub.f32 %d, %a, %b", W, &cases, |[a, b, _]| bits(single(a) - single(b)));
    check("mul.f32 %d, %a, %b", W, &cases, |[a, b, _]| bits(single(a) * single(b)));
    check("fma.rn.f32 %d, %a, %b, %c", W, &cases, |[a, b, c]| bits(single(a).mul_add(single(b), single(c))));
    check("mad.rn.f32 %d, %a, %b, %c", W, &cases, |[a, b, c]| bits(single(a).mul_add(single(b), single(c))));
    check("div.rn.f32 %d, %a, %b", W, &cases, |[a, b, _]| bits(single(a) / single(b)));
    check("rcp.rn.f32 %d, %a", W, &cases, |[a, ..]| bits(1.0 / single(a)));
    check("sqrt.rn.f32 %d, %a", W, &cases, |[a, ..]| bits(single(a).sqrt()));
    check("neg.f32 %d, %a", W, &cases, |[a, ..]| bits(-single(a)));
    check("abs.f32 %d, %a", W, &cases, |[a, ..]| bits(single(a).abs()));
    check("add.f32 %d, %a, 0f40200000", W, &cases, |[a, ..]| bits(single(a) + 2.5));
    check("mul.f32 %d, 2.5, %a", W, &cases, |[a, ..]| bits(single(a) * 2.5));
}

#[test]
fn f32_in_every_rounding_and_with_modifiers() {
    let cases = f32s(2);
    let plain: [(&str, Two, Two); 4] = [
        ("add", float::add_f32, float::add_ftz_f32),
        ("sub", float::sub_f32, float::sub_ftz_f32),
        ("mul", float::mul_f32, float::mul_ftz_f32),
        ("div", float::div_f32, float::div_ftz_f32),
    ];
    for (word, round) in ROUNDS {
        for (name, op, flushed) in plain {
            check(&format!("{name}{word}.f32 %d, %a, %b"), W, &cases, |[a, b, _]| op(a as u32, b as u32, round).into());
            check(&format!("{name}{word}.ftz.f32 %d, %a, %b"), W, &cases, |[a, b, _]| {
                flushed(a as u32, b as u32, round).into()
            });
        }
        for (name, op, flushed) in &plain[..3] {
            check(&format!("{name}{word}.sat.f32 %d, %a, %b"), W, &cases, |[a, b, _]| {
                float::saturate_f32(op(a as u32, b as u32, round)).into()
            });
            check(&format!("{name}{word}.ftz.sat.f32 %d, %a, %b"), W, &cases, |[a, b, _]| {
                float::saturate_f32(flushed(a as u32, b as u32, round)).into()
            });
        }
        check(&format!("fma{word}.f32 %d, %a, %b, %c"), W, &cases, |[a, b, c]| {
            float::fma_f32(a as u32, b as u32, c as u32, round).into()
        });
        check(&format!("fma{word}.ftz.sat.f32 %d, %a, %b, %c"), W, &cases, |[a, b, c]| {
            float::saturate_f32(float::fma_ftz_f32(a as u32, b as u32, c as u32, round)).into()
        });
        check(&format!("rcp{word}.f32 %d, %a"), W, &cases, |[a, ..]| float::rcp_f32(a as u32, round).into());
        check(&format!("rcp{word}.ftz.f32 %d, %a"), W, &cases, |[a, ..]| float::rcp_ftz_f32(a as u32, round).into());
        check(&format!("sqrt{word}.f32 %d, %a"), W, &cases, |[a, ..]| float::sqrt_f32(a as u32, round).into());
        check(&format!("sqrt{word}.ftz.f32 %d, %a"), W, &cases, |[a, ..]| float::sqrt_ftz_f32(a as u32, round).into());
    }
}

/// Directed results enclose the exact sum, and differ where it is not a number of the format.
#[test]
fn directed_sums_enclose_the_exact_one() {
    let cases = f32s(3);
    let [down, up, zero] =
        ["rm", "rp", "rz"].map(|word| super::harness::apply(&format!("add.{word}.f32 %d, %a, %b"), W, &cases));
    let mut inexact = 0;
    for (i, case) in cases.iter().enumerate() {
        // Two f32 of similar size have an exact sum in f64.
        let exact = f64::from(single(case[0])) + f64::from(single(case[1]));
        let apart = case[0] >> 23 & 0xff;
        if !exact.is_finite() || apart.abs_diff(case[1] >> 23 & 0xff) > 28 {
            continue;
        }
        let (low, high) = (f64::from(single(down[i])), f64::from(single(up[i])));
        assert!(low <= exact && exact <= high, "{case:x?}: {low} {exact} {high}");
        assert_eq!(low == high, low == exact, "{case:x?}");
        assert_eq!(f64::from(single(zero[i])), if exact < 0.0 { high } else { low }, "{case:x?}");
        inexact += usize::from(low != high);
    }
    assert!(inexact > 100);
}

#[test]
fn f64_in_every_rounding() {
    let cases = f64s(4);
    check("add.f64 %d, %a, %b", D, &cases, |[a, b, _]| bits64(double(a) + double(b), &[b, a]));
    check("sub.f64 %d, %a, %b", D, &cases, |[a, b, _]| bits64(double(a) - double(b), &[b, a]));
    check("mul.f64 %d, %a, %b", D, &cases, |[a, b, _]| bits64(double(a) * double(b), &[b, a]));
    check("fma.rn.f64 %d, %a, %b, %c", D, &cases, |[a, b, c]| {
        bits64(double(a).mul_add(double(b), double(c)), &[b, a, c])
    });
    check("div.rn.f64 %d, %a, %b", D, &cases, |[a, b, _]| bits64(double(a) / double(b), &[a, b]));
    check("rcp.rn.f64 %d, %a", D, &cases, |[a, ..]| bits64(1.0 / double(a), &[a]));
    check("sqrt.rn.f64 %d, %a", D, &cases, |[a, ..]| bits64(double(a).sqrt(), &[a]));
    check("neg.f64 %d, %a", D, &cases, |[a, ..]| if double(a).is_nan() { a | 1 << 51 } else { a ^ 1 << 63 });
    check("abs.f64 %d, %a", D, &cases, |[a, ..]| if double(a).is_nan() { a | 1 << 51 } else { a & !(1 << 63) });
    for (word, round) in ROUNDS {
        check(&format!("add{word}.f64 %d, %a, %b"), D, &cases, |[a, b, _]| float::add_f64(a, b, round));
        check(&format!("sub{word}.f64 %d, %a, %b"), D, &cases, |[a, b, _]| float::sub_f64(a, b, round));
        check(&format!("mul{word}.f64 %d, %a, %b"), D, &cases, |[a, b, _]| float::mul_f64(a, b, round));
        check(&format!("div{word}.f64 %d, %a, %b"), D, &cases, |[a, b, _]| float::div_f64(a, b, round));
        check(&format!("fma{word}.f64 %d, %a, %b, %c"), D, &cases, |[a, b, c]| float::fma_f64(a, b, c, round));
        check(&format!("mad{word}.f64 %d, %a, %b, %c"), D, &cases, |[a, b, c]| float::fma_f64(a, b, c, round));
        check(&format!("rcp{word}.f64 %d, %a"), D, &cases, |[a, ..]| float::rcp_f64(a, round));
        check(&format!("sqrt{word}.f64 %d, %a"), D, &cases, |[a, ..]| float::sqrt_f64(a, round));
    }
}

/// The least or greatest of f32 values, as the ISA says it in words.
fn extreme(values: &[u64], max: bool, nan: bool) -> u64 {
    let numbers: Vec<f32> = values.iter().map(|&x| single(x)).filter(|x| !x.is_nan()).collect();
    if numbers.is_empty() || (nan && numbers.len() < values.len()) {
        return 0x7fff_ffff;
    }
    let order = |x: &&f32, y: &&f32| x.total_cmp(y);
    let found = if max { numbers.iter().max_by(order) } else { numbers.iter().min_by(order) };
    found.map_or(0, |x| x.to_bits().into())
}

fn flush(x: u64) -> u64 {
    if single(x).is_subnormal() { x & 0x8000_0000 } else { x }
}

#[test]
fn minimum_and_maximum() {
    let cases = f32s(5);
    for (name, max) in [("min", false), ("max", true)] {
        check(&format!("{name}.f32 %d, %a, %b"), W, &cases, |[a, b, _]| extreme(&[a, b], max, false));
        check(&format!("{name}.NaN.f32 %d, %a, %b"), W, &cases, |[a, b, _]| extreme(&[a, b], max, true));
        check(&format!("{name}.ftz.f32 %d, %a, %b"), W, &cases, |[a, b, _]| extreme(&[flush(a), flush(b)], max, false));
        check(&format!("{name}.f32 %d, %a, %b, %c"), W, &cases, |v| extreme(&v, max, false));
        check(&format!("{name}.ftz.NaN.f32 %d, %a, %b, %c"), W, &cases, |v| extreme(&v.map(flush), max, true));
        check(&format!("{name}.ftz.NaN.xorsign.abs.f32 %d, %a, %b"), W, &cases, |[a, b, _]| {
            let magnitude = extreme(&[flush(a) & 0x7fff_ffff, flush(b) & 0x7fff_ffff], max, true);
            magnitude | if magnitude > 0x7f80_0000 { 0 } else { (a ^ b) & 0x8000_0000 }
        });
        let cases = f64s(6);
        check(&format!("{name}.f64 %d, %a, %b"), D, &cases, |[a, b, _]| match (double(a), double(b)) {
            (x, y) if x.is_nan() && y.is_nan() => b | 1 << 51,
            (x, _) if x.is_nan() => b,
            (_, y) if y.is_nan() => a,
            (x, y) => if x.total_cmp(&y).is_gt() == max { x } else { y }.to_bits(),
        });
    }
}

#[test]
fn signs_and_classes() {
    let cases = f32s(7);
    let wide = f64s(8);
    check("copysign.f32 %d, %a, %b", W, &cases, |[a, b, _]| (a & 0x8000_0000) | (b & 0x7fff_ffff));
    check("copysign.f64 %d, %a, %b", D, &wide, |[a, b, _]| (a & 1 << 63) | (b & !(1 << 63)));
    check("neg.ftz.f32 %d, %a", W, &cases, |[a, ..]| bits(-single(flush(a))));
    check("abs.ftz.f32 %d, %a", W, &cases, |[a, ..]| bits(single(flush(a)).abs()));
    type Question = (&'static str, fn(f32) -> bool, fn(f64) -> bool);
    let questions: [Question; 6] = [
        ("finite", f32::is_finite, f64::is_finite),
        ("infinite", f32::is_infinite, f64::is_infinite),
        ("number", |x| !x.is_nan(), |x| !x.is_nan()),
        ("notanumber", f32::is_nan, f64::is_nan),
        ("normal", |x| x.is_normal() || x == 0.0, |x| x.is_normal() || x == 0.0),
        ("subnormal", f32::is_subnormal, f64::is_subnormal),
    ];
    for (word, narrow, double_test) in questions {
        let code = |ty: &str| format!("testp.{word}.{ty} %p, %a; selp.b32 %d, 7, 3, %p");
        check(&code("f32"), W, &cases, |[a, ..]| if narrow(single(a)) { 7 } else { 3 });
        check(&code("f64"), [32, 64, 64, 64], &wide, |[a, ..]| if double_test(double(a)) { 7 } else { 3 });
    }
}

/// Within the bounds of the ISA of an f64 result; what is special must be exact.
fn near(code: &str, ulps: f64, absolute: f64, exact: impl Fn(f64, f64) -> f64) {
    let cases = f32s(9);
    let got = super::harness::apply(code, W, &cases);
    for (case, got) in cases.iter().zip(got) {
        let want = exact(single(case[0]).into(), single(case[1]).into());
        let got = single(got);
        let rounded = want as f32;
        if rounded.is_nan() || rounded.is_infinite() || rounded == 0.0 {
            assert_eq!(bits(got), bits(rounded), "'{code}' of {case:x?}");
            continue;
        }
        let ulp = f64::from(f32::from_bits(rounded.to_bits() + 1)) - f64::from(rounded);
        let error = (f64::from(got) - want).abs();
        assert!(error <= (ulps * ulp.abs()).max(absolute), "'{code}' of {case:x?}: {got} for {want}");
    }
}

#[test]
fn approximations_are_within_their_bounds() {
    near("ex2.approx.f32 %d, %a", 2.0, 0.0, |x, _| x.exp2());
    near("lg2.approx.f32 %d, %a", 2.0, 2f64.powi(-22), |x, _| x.log2());
    near("rcp.approx.f32 %d, %a", 1.0, 0.0, |x, _| 1.0 / x);
    near("rsqrt.approx.f32 %d, %a", 2.0, 0.0, |x, _| 1.0 / x.sqrt());
    near("sqrt.approx.f32 %d, %a", 2.0, 0.0, |x, _| x.sqrt());
    near("tanh.approx.f32 %d, %a", 8192.0, 0.0, |x, _| x.tanh());
    near("div.full.f32 %d, %a, %b", 2.0, 0.0, |x, y| x / y);
    near("sin.approx.f32 %d, %a", 2.0, 2f64.powf(-20.5), |x, _| x.sin());
    near("cos.approx.f32 %d, %a", 2.0, 2f64.powf(-20.5), |x, _| x.cos());
}

#[test]
fn approximations_are_the_scalar_functions() {
    let cases = f32s(10);
    type One = fn(u32, bool) -> u32;
    let functions: [(&str, One); 7] = [
        ("ex2.approx", float::ex2_f32),
        ("lg2.approx", float::lg2_f32),
        ("sin.approx", float::sin_f32),
        ("cos.approx", float::cos_f32),
        ("rcp.approx", float::rcp_approx_f32),
        ("rsqrt.approx", float::rsqrt_f32),
        ("sqrt.approx", float::sqrt_approx_f32),
    ];
    for (name, op) in functions {
        check(&format!("{name}.f32 %d, %a"), W, &cases, |[a, ..]| op(a as u32, false).into());
        check(&format!("{name}.ftz.f32 %d, %a"), W, &cases, |[a, ..]| op(a as u32, true).into());
    }
    for (word, ftz) in [("", false), (".ftz", true)] {
        check(&format!("div.approx{word}.f32 %d, %a, %b"), W, &cases, |[a, b, _]| {
            float::div_approx_f32(a as u32, b as u32, ftz).into()
        });
        check(&format!("div.full{word}.f32 %d, %a, %b"), W, &cases, |[a, b, _]| {
            float::div_full_f32(a as u32, b as u32, ftz).into()
        });
    }
    let wide = f64s(11);
    check("rcp.approx.ftz.f64 %d, %a", D, &wide, |[a, ..]| float::rcp_approx_f64(a));
    check("rsqrt.approx.ftz.f64 %d, %a", D, &wide, |[a, ..]| float::rsqrt_approx_ftz_f64(a));
    check("rsqrt.approx.f64 %d, %a", D, &wide, |[a, ..]| float::rsqrt_approx_f64(a));
}

#[test]
fn what_the_isa_does_not_have_is_refused() {
    for code in [
        "add.rna.f32 %d, %a, %b",
        "add.ftz.f64 %d, %a, %b",
        "add.relu.f32 %d, %a, %b",
        "add.f32 %d, %a",
        "add.f32 %d, %a, %b, %c",
        "fma.f99 %d, %a, %b, %c",
        "div.f32 %d, %a, %b",
        "div.full.rn.f32 %d, %a, %b",
        "rsqrt.rn.f32 %d, %a",
        "sin.approx.f64 %d, %a",
        "min.xorsign.f32 %d, %a, %b",
        "min.f32 %d, %a, %b, %c, %a",
        "testp.odd.f32 %p, %a",
        "copysign.f16 %d, %a, %b",
        "setp.lo.f32 %p, %a, %b",
        "tanh.approx.ftz.f32 %d, %a",
        "copysign.ftz.f32 %d, %a, %b",
        "ex2.approx.sat.f32 %d, %a",
    ] {
        let message = refusal(code, if code.contains("f64") { D } else { W });
        assert!(message.contains("PTX line"), "'{code}': {message}");
        let name = code.split(['.', ' ']).next().unwrap_or("");
        assert!(message.contains(name), "'{code}': {message}");
    }
}
