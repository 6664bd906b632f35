//! Integers and floats, integral values, tf32.

use proptest::prelude::*;

use super::super::*;
use super::oracle::{Exact, rounded};
use super::{ROUNDS, any_bits, any_round};

const INTS: [Int; 8] = [Int::U8, Int::U16, Int::U32, Int::U64, Int::S8, Int::S16, Int::S32, Int::S64];

fn range(to: Int) -> (i128, i128) {
    match to.signed() {
        true => (-(1 << (to.bits() - 1)), (1 << (to.bits() - 1)) - 1),
        false => (0, (1 << to.bits()) - 1),
    }
}

/// The integer by its definition, from a significand shifted by hand.
fn integer(a: f64, round: Round) -> i128 {
    let bits = a.abs().to_bits();
    let (field, fraction) = ((bits >> 52) as i32, i128::from(bits & ((1 << 52) - 1)));
    let significand = if field == 0 { fraction } else { fraction | 1 << 52 };
    let shift = field.max(1) - 1075;
    let (whole, rest, half) = match shift {
        // Larger than any range.
        60.. => (1 << 100, 0, 1),
        0..60 => (significand << shift, 0, 1),
        -60..0 => (significand >> -shift, significand & ((1 << -shift) - 1), 1 << (-shift - 1)),
        _ => (0, significand.min(1), 2),
    };
    let up = match round {
        Round::Nearest => rest > half || rest == half && whole & 1 == 1,
        Round::Away => rest >= half,
        Round::Zero => false,
        Round::Down => a < 0.0 && rest > 0,
        Round::Up => a > 0.0 && rest > 0,
    };
    let magnitude = whole + i128::from(up);
    if a < 0.0 { -magnitude } else { magnitude }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn floats_become_the_nearest_integer_in_range(
        a in any_bits(Format::F64), near in -600_000i64..600_000, scale in -40i32..70, to in 0usize..8, r in any_round()
    ) {
        let to = INTS[to];
        let (low, high) = range(to);
        for bits in [a, (near as f64 / 2.0).to_bits(), (near as f64 * 2f64.powi(scale)).to_bits()] {
            let x = f64::from_bits(bits);
            if !x.is_nan() {
                prop_assert_eq!(f64_to_int(bits, to, r), integer(x, r).clamp(low, high) as u64, "{} {:?}", x, to);
            }
            let single = x as f32;
            if !x.is_nan() {
                let expected = integer(single.into(), r).clamp(low, high) as u64;
                prop_assert_eq!(f32_to_int(single.to_bits(), to, r), expected, "{} {:?}", single, to);
            }
        }
    }

    #[test]
    fn integers_become_the_rounded_float(bits in any::<u64>(), shift in 0u32..64, r in any_round()) {
        let unsigned = bits >> shift;
        let signed = bits as i64 >> shift;
        let oracle = |format, negative, magnitude: u64| match magnitude {
            0 => 0,
            _ => rounded(format, negative, r, |candidate| candidate.compare(&Exact::new(magnitude, 0))),
        };
        let (negative, magnitude) = (signed < 0, signed.unsigned_abs());
        prop_assert_eq!(u64::from(u64_to_f32(unsigned, r)), oracle(Format::F32, false, unsigned));
        prop_assert_eq!(u64_to_f64(unsigned, r), oracle(Format::F64, false, unsigned));
        prop_assert_eq!(u64::from(u64_to_f16(unsigned, r)), oracle(Format::F16, false, unsigned));
        prop_assert_eq!(u64::from(u64_to_bf16(unsigned, r)), oracle(Format::BF16, false, unsigned));
        prop_assert_eq!(u64::from(s64_to_f32(signed, r)), oracle(Format::F32, negative, magnitude));
        prop_assert_eq!(s64_to_f64(signed, r), oracle(Format::F64, negative, magnitude));
        prop_assert_eq!(u64::from(s64_to_f16(signed, r)), oracle(Format::F16, negative, magnitude));
        prop_assert_eq!(u64::from(s64_to_bf16(signed, r)), oracle(Format::BF16, negative, magnitude));
        let (short, short_signed) = (unsigned as u32, signed as i32);
        prop_assert_eq!(u64::from(u32_to_f32(short, r)), oracle(Format::F32, false, short.into()));
        let magnitude = short_signed.unsigned_abs().into();
        prop_assert_eq!(u64::from(s32_to_f32(short_signed, r)), oracle(Format::F32, short_signed < 0, magnitude));
        prop_assert_eq!(u32_to_f64(short), oracle(Format::F64, false, short.into()));
        prop_assert_eq!(s32_to_f64(short_signed), oracle(Format::F64, short_signed < 0, magnitude));
    }

    #[test]
    fn f64_narrows_to_f32(a in any_bits(Format::F64), exp in 860u64..1160, r in any_round()) {
        for a in [a, a & 0x800f_ffff_ffff_ffff | exp << 52] {
            let x = f64::from_bits(a);
            if x.is_finite() && x != 0.0 {
                let exact = Exact::decode(Format::F64, a);
                let expected = rounded(Format::F32, x < 0.0, r, |candidate| candidate.compare(&exact));
                prop_assert_eq!(u64::from(f64_to_f32(a, r)), expected);
                // Scaled up, f32 has all its bits below the smallest normal number too.
                let scaled = f64_to_f32((x * f64::from_bits(0x4140_0000_0000_0000)).to_bits(), r);
                let tiny = f64::from(f32::from_bits(scaled)).abs() < f64::from(f32::MIN_POSITIVE) * f64::from_bits(0x4140_0000_0000_0000);
                let flushed = if tiny { expected & 0x8000_0000 } else { expected };
                prop_assert_eq!(u64::from(f64_to_ftz_f32(a, r)), flushed);
            }
        }
    }

    #[test]
    fn tf32_is_a_short_f32(a in any_bits(Format::F32), r in any_round()) {
        let expected = match f32::from_bits(a as u32).is_nan() {
            true if r == Round::Away => a as u32 & 0xffff_e000,
            true => 0x7fff_e000,
            false => (convert(a, Format::F32, Format::TF32, r) << 13) as u32,
        };
        prop_assert_eq!(f32_to_tf32(a as u32, r, false), expected);
    }

    #[test]
    fn a_saturated_tf32_is_finite(a in any_bits(Format::F32), r in any_round()) {
        let (a, value) = (a as u32, f32_to_tf32(a as u32, r, false));
        if !f32::from_bits(a).is_nan() {
            let expected = if f32::from_bits(value).is_infinite() { value - 0x2000 } else { value };
            prop_assert_eq!(f32_to_tf32(a, r, true), expected);
        }
    }

    #[test]
    fn integral_values_stay_floats(a in any_bits(Format::F32), quarters in -4000i32..4000, r in any_round()) {
        for x in [f32::from_bits(a as u32), quarters as f32 / 4.0] {
            if x.is_finite() && x.abs() < 1e30 {
                let expected = (integer(x.into(), r) as f32).copysign(x).to_bits();
                prop_assert_eq!(round_int_f32(x.to_bits(), r), expected);
                prop_assert_eq!(round_int_f64(f32_to_f64(x.to_bits()), r), f32_to_f64(expected));
            }
        }
    }
}

#[test]
fn nans_become_what_the_isa_says() {
    for r in ROUNDS {
        for to in INTS {
            let top = to.extend(1 << (to.bits() - 1));
            assert_eq!(f64_to_int(f64::NAN.to_bits(), to, r), top);
            let expected = if to.bits() == 64 { top } else { 0 };
            assert_eq!(f32_to_int(f32::NAN.to_bits(), to, r), expected);
            assert_eq!(f16_to_int(0xfe00, to, r), expected);
            assert_eq!(bf16_to_int(0x7fc0, to, r), expected);
        }
        assert_eq!(round_int_f32(0xffc0_0000, r), NAN_F32);
        assert_eq!(round_int_f64(0x7ff0_0000_0000_0001, r), 0x7ff8_0000_0000_0001);
        assert_eq!(f64_to_f32(0x7ff0_0000_0000_0001, r), 0x7fc0_0000);
        assert_eq!(f64_to_f32(0xfff8_0000_2000_0000, r), 0xffc0_0001);
    }
    assert_eq!(Int::S32.extend(0x8000_0000), 0xffff_ffff_8000_0000);
    assert_eq!(f32_to_f64(0xffc0_0001), 0xfff8_0000_2000_0000);
    assert_eq!(f32_to_f64(0x7f80_0001), 0x7ff8_0000_2000_0000);
}

#[test]
fn every_half_becomes_the_integer_its_f32_does() {
    for a in 0..=u16::MAX {
        for (wide, to_int, round_int) in [
            (f16_to_f32(a), f16_to_int as fn(u16, Int, Round) -> u64, f16_to_f32(round_int_f16(a, Round::Up))),
            (bf16_to_f32(a), bf16_to_int, bf16_to_f32(round_int_bf16(a, Round::Up))),
        ] {
            if f32::from_bits(wide).is_nan() {
                continue;
            }
            assert_eq!(to_int(a, Int::S8, Round::Down), f32_to_int(wide, Int::S8, Round::Down));
            assert_eq!(round_int, f32::from_bits(wide).ceil().to_bits(), "{a:x}");
        }
    }
    assert_eq!(f32_to_int((-1f32).to_bits(), Int::U32, Round::Zero), 0);
    assert_eq!(f32_to_int(1e20f32.to_bits(), Int::S32, Round::Zero), 0x7fff_ffff);
    assert_eq!(f32_to_int((-1e20f32).to_bits(), Int::S32, Round::Zero), 0xffff_ffff_8000_0000);
    assert_eq!(f32_to_int(2.5f32.to_bits(), Int::S32, Round::Nearest), 2);
    assert_eq!(f32_to_int((-0.5f32).to_bits(), Int::S8, Round::Down), u64::MAX);
    assert_eq!(f32x2_to_f16x2(1f32.to_bits(), 2f32.to_bits(), Round::Nearest), 0x3c00_4000);
    assert_eq!(f32x2_to_bf16x2(1f32.to_bits(), 2f32.to_bits(), Round::Zero), 0x3f80_4000);
}
