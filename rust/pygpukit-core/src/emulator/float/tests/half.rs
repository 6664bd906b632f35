//! f16, bf16 and fp8: exhaustive conversions and exact arithmetic.

use proptest::prelude::*;

use super::super::*;
use super::soft::exact_fma;
use super::{ROUNDS, Random, any_bits, any_round};

/// The value by the definition of a format, for those an f64 holds.
fn value(format: Format, bits: u64) -> f64 {
    let sign = if bits & format.sign_bit() != 0 { -1.0 } else { 1.0 };
    let field = (bits % format.sign_bit()) >> format.man_bits;
    let fraction = (bits % (1 << format.man_bits)) as f64 / 2f64.powi(format.man_bits as i32);
    let bias = 2i32.pow(format.exp_bits - 1) - 1;
    match field {
        0 => sign * fraction * 2f64.powi(1 - bias),
        _ if format.specials == Specials::Ieee && field + 1 == 1 << format.exp_bits => {
            if fraction == 0.0 {
                sign * f64::INFINITY
            } else {
                f64::NAN
            }
        }
        _ => sign * (1.0 + fraction) * 2f64.powi(field as i32 - bias),
    }
}

#[test]
fn every_half_widens_to_its_value_and_back() {
    for a in 0..=u16::MAX {
        for (format, wide, widen64, back) in [
            (Format::F16, f16_to_f32(a), f16_to_f64(a), [f32_to_f16, |x, r| f16_of(f32::from_bits(x).into(), r)]),
            (Format::BF16, bf16_to_f32(a), bf16_to_f64(a), [f32_to_bf16, |x, r| bf16_of(f32::from_bits(x).into(), r)]),
        ] {
            let expected = value(format, a.into());
            if expected.is_nan() {
                assert!(f32::from_bits(wide).is_nan() && f64::from_bits(widen64).is_nan());
            } else {
                assert_eq!(wide, (expected as f32).to_bits(), "{a:x}");
                assert_eq!(widen64, expected.to_bits(), "{a:x}");
            }
            for (narrow, r) in back.into_iter().flat_map(|narrow| ROUNDS.map(|r| (narrow, r))) {
                assert_eq!(narrow(wide, r), if expected.is_nan() { NAN_F16 } else { a }, "{a:x} {r:?}");
            }
        }
    }
}

/// Around every number: the middle to the next, and the f32 on either side of number and middle.
#[test]
fn every_half_is_rounded_to_from_its_surroundings() {
    for a in 0..0x7f80u16 {
        for (format, infinity, narrow, narrow64) in [
            (Format::F16, 0x7c00, f32_to_f16 as fn(u32, Round) -> u16, f64_to_f16 as fn(u64, Round) -> u16),
            (Format::BF16, 0x7f80, f32_to_bf16, f64_to_bf16),
        ] {
            if a >= infinity {
                continue;
            }
            let low = value(format, a.into());
            let spacing = if a == 0 { value(format, 1) } else { low - value(format, (a - 1).into()) };
            // The spacing above a power of two is twice that below, but in the subnormal range.
            let high = if a + 1 == infinity { low + spacing } else { value(format, (a + 1).into()) };
            let middle = (low + high) / 2.0;
            let even = a + (a & 1);
            let above = |x: f64| f64::from_bits(x.to_bits() + 1);
            let below = |x: f64| f64::from_bits(x.to_bits() - 1);
            let cases = [
                (above(low), a, a, a, a + 1),
                (below(middle), a, a, a, a + 1),
                (middle, even, a + 1, a, a + 1),
                (above(middle), a + 1, a + 1, a, a + 1),
                (below(high), a + 1, a + 1, a, a + 1),
            ];
            for (x, nearest, away, down, up) in cases {
                let expected = [nearest, down, down, up, away];
                for (r, expected) in ROUNDS.into_iter().zip(expected) {
                    assert_eq!(narrow64(x.to_bits(), r), expected, "{x:e} {r:?}");
                    let mirrored = match r {
                        Round::Down => up,
                        Round::Up => down,
                        _ => expected,
                    };
                    assert_eq!(narrow64((-x).to_bits(), r), mirrored | 0x8000, "{x:e} {r:?}");
                    // The same with the f32 numbers next to these.
                    let single = x as f32;
                    let single = match (x > f64::from(single), x < f64::from(single)) {
                        _ if x == middle => single,
                        (true, _) => f32::from_bits(single.to_bits() + 1),
                        (_, true) => f32::from_bits(single.to_bits() - 1),
                        _ => single,
                    };
                    if f64::from(single) == x || (f64::from(single) > low && f64::from(single) < high && x != middle) {
                        let beyond = |y: f64| (f64::from(single) > y) == (x > y) && f64::from(single) != y;
                        if x == middle || (beyond(middle) && beyond(low) && beyond(high)) {
                            assert_eq!(narrow(single.to_bits(), r), expected, "{single:e} {r:?}");
                            assert_eq!(narrow((-single).to_bits(), r), mirrored | 0x8000, "{single:e} {r:?}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn every_fp8_has_the_value_of_its_formula() {
    for a in 0..=u8::MAX {
        for (format, is_nan, wide, f16, bf16) in [
            (Format::E4M3, a & 0x7f == 0x7f, e4m3_to_f32(a), e4m3_to_f16(a), e4m3_to_bf16(a)),
            (Format::E5M2, a & 0x7f > 0x7c, e5m2_to_f32(a), e5m2_to_f16(a), e5m2_to_bf16(a)),
        ] {
            if is_nan {
                assert_eq!((wide, f16, bf16), (NAN_F32, NAN_F16, NAN_BF16));
                continue;
            }
            let expected = value(format, a.into());
            assert_eq!(wide, (expected as f32).to_bits(), "{a:x}");
            assert_eq!(f16_to_f32(f16), wide, "{a:x}");
            assert_eq!(bf16_to_f32(bf16), wide, "{a:x}");
        }
        if a & 0x7f < 0x7f {
            assert_eq!([f32_to_e4m3(e4m3_to_f32(a)), f16_to_e4m3(e4m3_to_f16(a))], [a, a]);
        }
        if a & 0x7f < 0x7c {
            assert_eq!([f32_to_e5m2(e5m2_to_f32(a)), bf16_to_e5m2(e5m2_to_bf16(a))], [a, a]);
        }
    }
}

#[test]
fn fp8_saturates_and_every_half_narrows_as_the_exact_conversion_does() {
    let e4m3 = |x: f32| f32_to_e4m3(x.to_bits());
    let e5m2 = |x: f32| f32_to_e5m2(x.to_bits());
    assert_eq!([e4m3(448.0), e4m3(464.0), e4m3(1e9), e4m3(f32::INFINITY), e4m3(-1e9)], [0x7e, 0x7e, 0x7e, 0x7e, 0xfe]);
    assert_eq!([e5m2(57344.0), e5m2(61440.0), e5m2(1e9), e5m2(f32::NEG_INFINITY)], [0x7b, 0x7b, 0x7b, 0xfb]);
    assert_eq!([e4m3(f32::NAN), e5m2(-f32::NAN)], [0x7f, 0x7f]);
    assert_eq!([e4m3(-0.0), e4m3(1.0), e5m2(1.0), e4m3(-1e-9)], [0x80, 0x38, 0x3c, 0x80]);
    // Ties: half the least number, and one and a half of it.
    assert_eq!([e4m3(2f32.powi(-10)), e4m3(3.0 * 2f32.powi(-10)), e5m2(2f32.powi(-17))], [0, 2, 0]);
    for a in 0..=u16::MAX {
        for (format, from, got) in [
            (Format::E4M3, Format::F16, f16_to_e4m3(a)),
            (Format::E5M2, Format::F16, f16_to_e5m2(a)),
            (Format::E4M3, Format::BF16, bf16_to_e4m3(a)),
            (Format::E5M2, Format::BF16, bf16_to_e5m2(a)),
        ] {
            let exact = convert(a.into(), from, format, Round::Nearest) as u8;
            // The general conversion overflows e5m2 to infinity.
            let expected = if format == Format::E5M2 && exact & 0x7f == 0x7c { exact - 1 } else { exact };
            assert_eq!(got, expected, "{format:?} {from:?} {a:x}");
        }
    }
    assert_eq!(f32x2_to_e4m3x2(1f32.to_bits(), 448f32.to_bits()), 0x387e);
    assert_eq!(f32x2_to_e5m2x2(1f32.to_bits(), 0), 0x3c00);
    assert_eq!(f16x2_to_e4m3x2(0x3c00_0000), 0x3800);
    assert_eq!(f16x2_to_e5m2x2(0x3c00_c000), 0x3cc0);
    assert_eq!(bf16x2_to_e4m3x2(0x3f80_0000), 0x3800);
    assert_eq!(bf16x2_to_e5m2x2(0x3f80_0000), 0x3c00);
    assert_eq!(e4m3x2_to_f16x2(0x3880), 0x3c00_8000);
    assert_eq!(e5m2x2_to_f16x2(0x3c80), 0x3c00_8000);
}

fn check_arithmetic(format: Format, a: u16, b: u16, c: u16) {
    let soft = |bits: Option<u64>| bits.map_or(0x7fff, |bits| bits as u16);
    let (x, y, z) = (u64::from(a), u64::from(b), u64::from(c));
    let r = Round::Nearest;
    let expected = [
        soft(soft_add(format, x, y, r)),
        soft(soft_add(format, x, y ^ 0x8000, r)),
        soft(soft_mul(format, x, y, r)),
        soft(soft_fma(format, x, y, z, r)),
    ];
    let got = if format == Format::F16 {
        [add_f16(a, b), sub_f16(a, b), mul_f16(a, b), fma_f16(a, b, c)]
    } else {
        [add_bf16(a, b), sub_bf16(a, b), mul_bf16(a, b), fma_bf16(a, b, c)]
    };
    assert_eq!(got, expected, "{format:?} {a:04x} {b:04x} {c:04x}");
}

#[test]
fn arithmetic_rounds_once() {
    let mut random = Random(7);
    for format in [Format::F16, Format::BF16] {
        for _ in 0..150_000 {
            let bits = random.next();
            let (a, b, c) = (bits as u16, (bits >> 16) as u16, (bits >> 32) as u16);
            check_arithmetic(format, a, b, c);
            // Few bits make ties of products; a small addend then decides.
            let keep = !((1u16 << (bits >> 48 & 7)) - 1);
            check_arithmetic(format, a & keep, b & keep, c);
            check_arithmetic(format, a & 0x83ff, b, c & 0x83ff);
        }
    }
    // 1.0078125 is 1 + 2^-7; 1.5 times it lies between two bf16 numbers, and the addend pushes it.
    assert_eq!(fma_bf16(0x3f81, 0x3fc0, 0x0001), 0x3fc2);
    assert_eq!(fma_bf16(0x3f81, 0x3fc0, 0x8001), 0x3fc1);
    assert_eq!(mul_bf16(0x3f81, 0x3fc0), 0x3fc2);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn fma_matches_exact_numbers(
        (f16, bf16) in (
            (any_bits(Format::F16), any_bits(Format::F16), any_bits(Format::F16)),
            (any_bits(Format::BF16), any_bits(Format::BF16), any_bits(Format::BF16)),
        )
    ) {
        let finite = |format: Format, x: u64| x % 0x8000 <= format.max_finite();
        let (a, b, c) = f16;
        if [a, b, c].iter().all(|&x| finite(Format::F16, x)) {
            let expected = exact_fma(Format::F16, a, b, c, Round::Nearest);
            prop_assert_eq!(u64::from(fma_f16(a as u16, b as u16, c as u16)), expected);
        }
        let (a, b, c) = bf16;
        if [a, b, c].iter().all(|&x| finite(Format::BF16, x)) {
            let expected = exact_fma(Format::BF16, a, b, c, Round::Nearest);
            prop_assert_eq!(u64::from(fma_bf16(a as u16, b as u16, c as u16)), expected);
        }
    }

    #[test]
    fn f32_narrows_as_the_exact_conversion_does(a in any_bits(Format::F32), r in any_round()) {
        let bits = a as u32;
        prop_assert_eq!(u64::from(f32_to_f16(bits, r)), convert(a, Format::F32, Format::F16, r));
        prop_assert_eq!(u64::from(f32_to_bf16(bits, r)), convert(a, Format::F32, Format::BF16, r));
        let r = Round::Nearest;
        prop_assert_eq!(u64::from(f32_to_e4m3(bits)), convert(a, Format::F32, Format::E4M3, r));
        let e5m2 = convert(a, Format::F32, Format::E5M2, r);
        prop_assert_eq!(u64::from(f32_to_e5m2(bits)), if e5m2 & 0x7f == 0x7c { e5m2 - 1 } else { e5m2 });
    }

    #[test]
    fn f64_narrows_as_the_exact_conversion_does(a in any_bits(Format::F64), exp in 800u64..1200) {
        for a in [a, a & 0x800f_ffff_ffff_ffff | exp << 52] {
            for (format, got) in [
                (Format::F16, f16_of(f64::from_bits(a), Round::Nearest)),
                (Format::BF16, bf16_of(f64::from_bits(a), Round::Nearest)),
            ] {
                prop_assert_eq!(u64::from(got), convert(a, Format::F64, format, Round::Nearest));
            }
        }
    }
}

#[test]
fn nans_keep_their_sign_and_upper_bits_between_f64_and_halves() {
    for r in ROUNDS {
        assert_eq!([f64_to_f16(0x7ff0_0000_0000_0001, r), f64_to_f16(u64::MAX, r)], [0x7e00, 0xffff]);
        assert_eq!([f64_to_bf16(0x7ff0_0000_0000_0001, r), f64_to_bf16(u64::MAX, r)], [0x7fc0, 0xffff]);
    }
    assert_eq!([f16_to_f64(0x7c01), f16_to_f64(0xffff)], [0x7ff8_0400_0000_0000, 0xffff_fc00_0000_0000]);
}

#[test]
fn halves_of_a_word() {
    assert_eq!(each_half(0x3c00_4000, neg_f16), 0xbc00_c000);
    assert_eq!(each_half2(0x3c00_4000, 0x3c00_3c00, add_f16), 0x4000_4200);
    assert_eq!(each_half3(0x3c00_4000, 0x3c00_3c00, 0x3c00_0000, fma_f16), 0x4000_4000);
    let (x, y, z) = (0x3c00_4000, 0x3e00_3c00, 0x7bff_8000);
    assert_eq!(add_f16x2(x, y), each_half2(x, y, add_f16));
    assert_eq!(sub_f16x2(x, y), each_half2(x, y, sub_f16));
    assert_eq!(mul_f16x2(x, y), each_half2(x, y, mul_f16));
    assert_eq!(fma_f16x2(x, y, z), each_half3(x, y, z, fma_f16));
    assert_eq!(add_bf16x2(x, y), each_half2(x, y, add_bf16));
    assert_eq!(sub_bf16x2(x, y), each_half2(x, y, sub_bf16));
    assert_eq!(mul_bf16x2(x, y), each_half2(x, y, mul_bf16));
    assert_eq!(fma_bf16x2(x, y, z), each_half3(x, y, z, fma_bf16));
    assert_eq!(f16_to_bf16(0x3c00, Round::Nearest), 0x3f80);
    assert_eq!(bf16_to_f16(0x7f00, Round::Zero), 0x7bff);
}
