//! The approximate instructions: tables of special cases, and agreement with independent f64 work.

use proptest::prelude::*;

use super::super::*;
use super::any_bits;

const INF: f32 = f32::INFINITY;
const SUBNORMAL: f32 = 1e-40;

/// NaN stands for any NaN; the result must then be the GPU's.
fn check(name: &str, f: impl Fn(u32) -> u32, table: &[(f32, f32)]) {
    for &(a, expected) in table {
        let bits = if expected.is_nan() { NAN_F32 } else { expected.to_bits() };
        assert_eq!(f(a.to_bits()), bits, "{name}({a:e}) should be {expected:e}");
    }
}

#[test]
fn special_cases_of_the_isa() {
    let nan = f32::NAN;
    for ftz in [false, true] {
        check(
            "ex2",
            |a| ex2_f32(a, ftz),
            &[(-INF, 0.0), (-0.0, 1.0), (0.0, 1.0), (INF, INF), (nan, nan), (SUBNORMAL, 1.0)],
        );
        check(
            "ex2",
            |a| ex2_f32(a, ftz),
            &[(3.0, 8.0), (-126.0, f32::MIN_POSITIVE), (128.0, INF), (-160.0, 0.0), (1e9, INF)],
        );
        check(
            "lg2",
            |a| lg2_f32(a, ftz),
            &[(-INF, nan), (-1.0, nan), (-0.0, -INF), (0.0, -INF), (INF, INF), (nan, nan), (8.0, 3.0), (1.0, 0.0)],
        );
        check("sin", |a| sin_f32(a, ftz), &[(-INF, nan), (-0.0, -0.0), (0.0, 0.0), (INF, nan), (nan, nan)]);
        check("cos", |a| cos_f32(a, ftz), &[(-INF, nan), (-0.0, 1.0), (0.0, 1.0), (INF, nan), (nan, nan)]);
        check(
            "rcp",
            |a| rcp_approx_f32(a, ftz),
            &[(-INF, -0.0), (-0.0, -INF), (0.0, INF), (INF, 0.0), (nan, nan), (4.0, 0.25)],
        );
        check(
            "rsqrt",
            |a| rsqrt_f32(a, ftz),
            &[(-INF, nan), (-1.0, nan), (-0.0, -INF), (0.0, INF), (INF, 0.0), (nan, nan), (4.0, 0.5)],
        );
        check(
            "sqrt",
            |a| sqrt_approx_f32(a, ftz),
            &[(-INF, nan), (-1.0, nan), (-0.0, -0.0), (0.0, 0.0), (INF, INF), (nan, nan), (4.0, 2.0)],
        );
    }
    check("tanh", tanh_f32, &[(-INF, -1.0), (-0.0, -0.0), (0.0, 0.0), (INF, 1.0), (nan, nan), (SUBNORMAL, SUBNORMAL)]);
    // Subnormal operands and results, kept or flushed.
    check("ex2", |a| ex2_f32(a, false), &[(-149.0, 1e-45), (-127.0, f32::MIN_POSITIVE / 2.0)]);
    check("ex2", |a| ex2_f32(a, true), &[(-149.0, 0.0), (-127.0, 0.0)]);
    check("lg2", |a| lg2_f32(a, false), &[(1e-45, -149.0), (-SUBNORMAL, nan)]);
    check("lg2", |a| lg2_f32(a, true), &[(1e-45, -INF), (-SUBNORMAL, -INF)]);
    check("sin", |a| sin_f32(a, false), &[(-SUBNORMAL, -SUBNORMAL)]);
    check("sin", |a| sin_f32(a, true), &[(-SUBNORMAL, -0.0)]);
    check("rcp", |a| rcp_approx_f32(a, false), &[(1e-45, INF), (2f32.powi(127), 2f32.powi(-127))]);
    check("rcp", |a| rcp_approx_f32(a, true), &[(SUBNORMAL, INF), (-SUBNORMAL, -INF), (-(2f32.powi(127)), -0.0)]);
    check("rsqrt", |a| rsqrt_f32(a, true), &[(SUBNORMAL, INF), (-SUBNORMAL, -INF)]);
    check("sqrt", |a| sqrt_approx_f32(a, true), &[(SUBNORMAL, 0.0), (-SUBNORMAL, -0.0)]);
}

#[test]
fn division_by_huge_numbers() {
    let div = |a: f32, b: f32, ftz| f32::from_bits(div_approx_f32(a.to_bits(), b.to_bits(), ftz));
    let full = |a: f32, b: f32, ftz| f32::from_bits(div_full_f32(a.to_bits(), b.to_bits(), ftz));
    let huge = 1.5 * 2f32.powi(126);
    for ftz in [false, true] {
        assert_eq!(div(1e38, huge, ftz).to_bits(), 0);
        assert_eq!(div(-1e38, huge, ftz).to_bits(), 0x8000_0000);
        assert!(div(INF, -huge, ftz).is_nan());
        assert_eq!(div(INF, 2f32.powi(126), ftz), INF);
        assert_eq!(div(2f32.powi(126), 2f32.powi(126), ftz), 1.0);
        assert!(div(0.0, 0.0, ftz).is_nan() && div(INF, INF, ftz).is_nan());
        assert_eq!(div(1.0, -0.0, ftz), -INF);
        assert_eq!(full(huge, huge, ftz), 1.0);
        assert_eq!(full(INF, huge, ftz), INF);
    }
    assert_eq!(full(SUBNORMAL, SUBNORMAL, false), 1.0);
    assert!(full(SUBNORMAL, SUBNORMAL, true).is_nan());
    assert_eq!(full(f32::MIN_POSITIVE, -2.0, true).to_bits(), 0x8000_0000);
}

#[test]
fn f64_estimates_have_an_upper_word() {
    let bits = |x: f64| x.to_bits();
    assert_eq!(rcp_approx_f64(bits(4.0)), bits(0.25));
    assert_eq!(rcp_approx_f64(bits(4.0) | 0xffff_ffff), bits(0.25));
    assert_eq!(rcp_approx_f64(bits(3.0)), 0x3fd5_5555_0000_0000);
    assert_eq!(rcp_approx_f64(bits(-0.0)), bits(f64::NEG_INFINITY));
    assert_eq!(rcp_approx_f64(1), bits(f64::INFINITY));
    assert_eq!(rcp_approx_f64(bits(f64::NEG_INFINITY)), bits(-0.0));
    assert_eq!(rcp_approx_f64(bits(f64::MAX)), 0);
    assert_eq!(rcp_approx_f64(bits(f64::NAN)), 0x7fff_ffff_0000_0000);
    assert_eq!(rsqrt_approx_ftz_f64(bits(4.0)), bits(0.5));
    assert_eq!(rsqrt_approx_ftz_f64(bits(-4.0)), 0x7fff_ffff_0000_0000);
    assert_eq!(rsqrt_approx_ftz_f64(1 << 63 | 1 << 40), bits(f64::NEG_INFINITY));
    assert_eq!(rsqrt_approx_ftz_f64(bits(f64::INFINITY)), 0);
    assert_eq!(rsqrt_approx_f64(bits(0.25)), bits(2.0));
    assert_eq!(rsqrt_approx_f64(bits(-1.0)), NAN_F64);
}

#[test]
fn half_functions_round_the_value_of_every_operand() {
    for a in 0..=u16::MAX {
        let x = f64::from_bits(f16_to_f64(a));
        if x.is_nan() {
            assert_eq!((ex2_f16(a), tanh_f16(a)), (NAN_F16, NAN_F16));
        } else {
            assert_eq!(ex2_f16(a), f64_to_f16(x.exp2().to_bits(), Round::Nearest), "{x:e}");
            assert_eq!(tanh_f16(a), f64_to_f16(x.tanh().to_bits(), Round::Nearest), "{x:e}");
        }
        let x = f64::from_bits(bf16_to_f64(a));
        if x.is_nan() {
            assert_eq!((ex2_bf16(a), tanh_bf16(a)), (NAN_BF16, NAN_BF16));
        } else {
            assert_eq!(ex2_bf16(a), flush_bf16(f64_to_bf16(x.exp2().to_bits(), Round::Nearest)), "{x:e}");
            assert_eq!(tanh_bf16(a), f64_to_bf16(x.tanh().to_bits(), Round::Nearest), "{x:e}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn ex2_agrees_with_the_host(a in any_bits(Format::F32), x in -155f32..130.0) {
        for x in [f32::from_bits(a as u32), x] {
            prop_assert_eq!(ex2_f32(x.to_bits(), false), canon_f32(f64::from(x).exp2() as f32), "{:e}", x);
        }
    }

    #[test]
    fn quotients_and_roots_are_correctly_rounded(a in any_bits(Format::F32), b in any_bits(Format::F32)) {
        let (a, b) = (a as u32, b as u32);
        prop_assert_eq!(div_full_f32(a, b, false), div_f32(a, b, Round::Nearest));
        prop_assert_eq!(rcp_approx_f32(a, false), rcp_f32(a, Round::Nearest));
        prop_assert_eq!(sqrt_approx_f32(a, false), sqrt_f32(a, Round::Nearest));
    }
}
