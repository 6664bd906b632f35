//! Every operation in every rounding mode, against exact numbers.

use std::cmp::Ordering;

use proptest::prelude::*;

use super::super::*;
use super::oracle::{Exact, rounded};
use super::{ROUNDS, Random, any_bits, any_round};

fn negative(format: Format, bits: u64) -> bool {
    bits & format.sign_bit() != 0
}

fn finite(format: Format, bits: u64) -> bool {
    bits & (format.sign_bit() - 1) <= format.max_finite()
}

/// The sum of numbers with signs, as sign and magnitude; equal and opposite ones give the sign of `Down`.
fn signed_sum(x: (bool, Exact), y: (bool, Exact), round: Round) -> (bool, Exact) {
    if x.0 == y.0 {
        return (x.0, x.1.add(&y.1));
    }
    match x.1.compare(&y.1) {
        Ordering::Greater => (x.0, x.1.sub(&y.1)),
        Ordering::Less => (y.0, y.1.sub(&x.1)),
        Ordering::Equal => (round == Round::Down, Exact::new(0, 0)),
    }
}

fn pack(format: Format, (negative, value): (bool, Exact), round: Round) -> u64 {
    if value.is_zero() {
        return if negative { format.sign_bit() } else { 0 };
    }
    rounded(format, negative, round, |candidate| candidate.compare(&value))
}

/// `a * b + c` of finite numbers.
pub fn exact_fma(format: Format, a: u64, b: u64, c: u64, round: Round) -> u64 {
    let product = Exact::decode(format, a).mul(&Exact::decode(format, b));
    let x = (negative(format, a) != negative(format, b), product);
    let y = (negative(format, c), Exact::decode(format, c));
    pack(format, signed_sum(x, y, round), round)
}

fn exact_add(format: Format, a: u64, b: u64, round: Round) -> u64 {
    let x = (negative(format, a), Exact::decode(format, a));
    let y = (negative(format, b), Exact::decode(format, b));
    pack(format, signed_sum(x, y, round), round)
}

fn exact_mul(format: Format, a: u64, b: u64, round: Round) -> u64 {
    let product = Exact::decode(format, a).mul(&Exact::decode(format, b));
    pack(format, (negative(format, a) != negative(format, b), product), round)
}

fn exact_div(format: Format, a: u64, b: u64, round: Round) -> u64 {
    let (x, y) = (Exact::decode(format, a), Exact::decode(format, b));
    rounded(format, negative(format, a) != negative(format, b), round, |candidate| candidate.mul(&y).compare(&x))
}

fn exact_sqrt(format: Format, a: u64, round: Round) -> u64 {
    let x = Exact::decode(format, a);
    rounded(format, false, round, |candidate| candidate.mul(candidate).compare(&x))
}

/// An f32 with more exponents.
const WIDE: Format = Format::ieee(10, 23);

/// With `.ftz`: zero where the result, rounded as if there were more exponents, lies below the normal numbers.
fn flushed(result: impl Fn(Format, &dyn Fn(u64) -> u64) -> u64) -> u64 {
    let wide = result(WIDE, &|x| convert(x, Format::F32, WIDE, Round::Nearest));
    let tiny = wide & (WIDE.sign_bit() - 1) < convert(0x0080_0000, Format::F32, WIDE, Round::Nearest);
    if tiny { wide >> 33 << 31 } else { result(Format::F32, &|x| x) }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn ftz_flushes_operands_and_results(a in any_bits(Format::F32), b in any_bits(Format::F32), c in any_bits(Format::F32), r in any_round()) {
        let f = Format::F32;
        let (x, y, z) = (a as u32, b as u32, c as u32);
        let flush = |x: u64| u64::from(flush_f32(x as u32));
        let (a, b, c) = (flush(a), flush(b), flush(c));
        if finite(f, a) && finite(f, b) {
            let of = |exact: fn(Format, u64, u64, Round) -> u64, b| flushed(|f, to| exact(f, to(a), to(b), r));
            prop_assert_eq!(u64::from(add_ftz_f32(x, y, r)), of(exact_add, b));
            prop_assert_eq!(u64::from(sub_ftz_f32(x, y, r)), of(exact_add, b ^ f.sign_bit()));
            prop_assert_eq!(u64::from(mul_ftz_f32(x, y, r)), of(exact_mul, b));
            if finite(f, c) {
                let expected = flushed(|f, to| exact_fma(f, to(a), to(b), to(c), r));
                prop_assert_eq!(u64::from(fma_ftz_f32(x, y, z, r)), expected);
            }
            if a << 33 != 0 && b << 33 != 0 {
                prop_assert_eq!(u64::from(div_ftz_f32(x, y, r)), of(exact_div, b));
            }
        }
    }

    #[test]
    fn f32_is_exactly_rounded(a in any_bits(Format::F32), b in any_bits(Format::F32), c in any_bits(Format::F32), r in any_round()) {
        let f = Format::F32;
        let (x, y, z) = (a as u32, b as u32, c as u32);
        if finite(f, a) && finite(f, b) {
            prop_assert_eq!(u64::from(add_f32(x, y, r)), exact_add(f, a, b, r));
            prop_assert_eq!(u64::from(sub_f32(x, y, r)), exact_add(f, a, b ^ f.sign_bit(), r));
            prop_assert_eq!(u64::from(mul_f32(x, y, r)), exact_mul(f, a, b, r));
            if finite(f, c) {
                prop_assert_eq!(u64::from(fma_f32(x, y, z, r)), exact_fma(f, a, b, c, r));
            }
            if x << 1 != 0 && y << 1 != 0 {
                prop_assert_eq!(u64::from(div_f32(x, y, r)), exact_div(f, a, b, r));
            }
        }
        if finite(f, a) && !negative(f, a) && a != 0 {
            prop_assert_eq!(u64::from(sqrt_f32(x, r)), exact_sqrt(f, a, r));
            prop_assert_eq!(u64::from(rcp_f32(x, r)), exact_div(f, 0x3f80_0000, a, r));
        }
    }

    #[test]
    fn f64_is_exactly_rounded(a in any_bits(Format::F64), b in any_bits(Format::F64), c in any_bits(Format::F64), r in any_round()) {
        let f = Format::F64;
        if finite(f, a) && finite(f, b) {
            prop_assert_eq!(add_f64(a, b, r), exact_add(f, a, b, r));
            prop_assert_eq!(sub_f64(a, b, r), exact_add(f, a, b ^ f.sign_bit(), r));
            prop_assert_eq!(mul_f64(a, b, r), exact_mul(f, a, b, r));
            if finite(f, c) {
                prop_assert_eq!(fma_f64(a, b, c, r), exact_fma(f, a, b, c, r));
            }
            if a << 1 != 0 && b << 1 != 0 {
                prop_assert_eq!(div_f64(a, b, r), exact_div(f, a, b, r));
            }
        }
        if finite(f, a) && !negative(f, a) && a != 0 {
            prop_assert_eq!(sqrt_f64(a, r), exact_sqrt(f, a, r));
            prop_assert_eq!(rcp_f64(a, r), exact_div(f, 1f64.to_bits(), a, r));
        }
    }

    /// A small addend far below or near the end of a product decides its rounding.
    #[test]
    fn fma_cancels_exactly(a in any_bits(Format::F64), b in any_bits(Format::F64), offset in -3i64..4, r in any_round()) {
        let f = Format::F64;
        let product = mul_f64(a, b, Round::Nearest);
        let c = (product ^ f.sign_bit()).wrapping_add_signed(offset);
        if [a, b, c].iter().all(|&x| finite(f, x)) {
            prop_assert_eq!(fma_f64(a, b, c, r), exact_fma(f, a, b, c, r));
        }
        let (a, b) = (a as u32, b as u32);
        let c = (mul_f32(a, b, Round::Nearest) ^ 0x8000_0000).wrapping_add_signed(offset as i32);
        let f = Format::F32;
        if [a, b, c].iter().all(|&x| finite(f, x.into())) {
            prop_assert_eq!(u64::from(fma_f32(a, b, c, r)), exact_fma(f, a.into(), b.into(), c.into(), r));
        }
    }

    #[test]
    fn every_format_converts_to_every_format(value in any::<u64>(), from in 0usize..10, to in 0usize..10, r in any_round()) {
        let formats = [
            Format::F64, Format::F32, Format::TF32, Format::BF16, Format::F16,
            Format::E5M2, Format::E4M3, Format::E3M2, Format::E2M3, Format::E2M1,
        ];
        let (from, to) = (formats[from], formats[to]);
        let bits = value & (from.sign_bit() | (from.sign_bit() - 1));
        if finite(from, bits) {
            let exact = (negative(from, bits), Exact::decode(from, bits));
            prop_assert_eq!(convert(bits, from, to, r), pack(to, exact, r));
        }
    }
}

/// With an infinity or a NaN nothing is rounded, so every mode gives what the host gives.
#[test]
fn special_values_follow_ieee() {
    let f = Format::F64;
    let magnitudes = [0.0, 5e-324, 1.0, f64::MAX, f64::INFINITY, f64::NAN];
    let values: Vec<u64> = magnitudes.iter().flat_map(|&x: &f64| [x.to_bits(), (-x).to_bits()]).collect();
    let same = |bits: Option<u64>, host: f64| bits == Some(host.to_bits()).filter(|_| !host.is_nan());
    for (&a, &b, r) in values.iter().flat_map(|a| values.iter().flat_map(move |b| ROUNDS.map(|r| (a, b, r)))) {
        let (x, y) = (f64::from_bits(a), f64::from_bits(b));
        let special = !finite(f, a) || !finite(f, b);
        if special {
            assert!(same(soft_add(f, a, b, r), x + y), "{x} + {y}");
            assert!(same(soft_mul(f, a, b, r), x * y), "{x} * {y}");
        }
        if special || y == 0.0 {
            assert!(same(soft_div(f, a, b, r), x / y), "{x} / {y}");
        }
        if x <= 0.0 || !finite(f, a) {
            assert!(same(soft_sqrt(f, a, r), x.sqrt()), "sqrt {x}");
        }
        for &c in &values {
            let z = f64::from_bits(c);
            if special || !finite(f, c) {
                assert!(same(soft_fma(f, a, b, c, r), x.mul_add(y, z)), "{x} * {y} + {z}");
            }
        }
    }
}

/// The f32 functions work through f64; the integer ones do not.
#[test]
fn f32_agrees_with_integer_arithmetic() {
    let f = Format::F32;
    let mut random = Random(1);
    let pack = |bits: Option<u64>| bits.map_or(NAN_F32, |bits| bits as u32);
    for i in 0..20_000 {
        let (bits, more) = (random.next(), random.next());
        // Every field at full range, then few bits and near exponents, then the ends of the range.
        let shape = |x: u32| match i % 4 {
            0 => x,
            1 => x & 0x83f8_0000 | 0x3c00_0000,
            2 => x & 0x80ff_ffff,
            _ => x | 0x7f00_0000,
        };
        let (a, b, c) = (shape(bits as u32), shape((bits >> 32) as u32), shape(more as u32));
        let (x, y, z) = (a.into(), b.into(), c.into());
        for r in ROUNDS {
            assert_eq!(add_f32(a, b, r), pack(soft_add(f, x, y, r)), "{a:x} {b:x} {r:?}");
            assert_eq!(mul_f32(a, b, r), pack(soft_mul(f, x, y, r)), "{a:x} {b:x} {r:?}");
            assert_eq!(fma_f32(a, b, c, r), pack(soft_fma(f, x, y, z, r)), "{a:x} {b:x} {c:x} {r:?}");
            assert_eq!(div_f32(a, b, r), pack(soft_div(f, x, y, r)), "{a:x} {b:x} {r:?}");
            assert_eq!(sqrt_f32(a, r), pack(soft_sqrt(f, x, r)), "{a:x} {r:?}");
            if !f64::from_bits(bits).is_nan() {
                assert_eq!(f64_to_f32(bits, r), convert(bits, Format::F64, f, r) as u32);
            }
        }
    }
}

#[test]
fn zeros_keep_or_choose_their_sign() {
    const MINUS: u32 = 0x8000_0000;
    for r in ROUNDS {
        let mixed = if r == Round::Down { MINUS } else { 0 };
        assert_eq!(add_f32(0, MINUS, r), mixed);
        assert_eq!(add_f32(MINUS, MINUS, r), MINUS);
        assert_eq!(sub_f32(0x3f80_0000, 0x3f80_0000, r), mixed);
        assert_eq!(fma_f32(0x3f80_0000, 0x3f80_0000, 0xbf80_0000, r), mixed);
        assert_eq!(fma_f32(MINUS, 0x3f80_0000, 0, r), mixed);
        assert_eq!(mul_f32(MINUS, 0x3f80_0000, r), MINUS);
        assert_eq!(sqrt_f32(MINUS, r), MINUS);
        assert_eq!(div_f32(MINUS, 0x4000_0000, r), MINUS);
        assert_eq!(rcp_f32(MINUS, r), 0xff80_0000);
    }
}

#[test]
fn overflow_ends_at_infinity_or_the_largest_number() {
    const MAX: u32 = 0x7f7f_ffff;
    const INF: u32 = 0x7f80_0000;
    let results = [(Round::Nearest, INF, INF), (Round::Away, INF, INF), (Round::Zero, MAX, MAX)];
    for (r, positive, negative) in results.into_iter().chain([(Round::Down, MAX, INF), (Round::Up, INF, MAX)]) {
        assert_eq!(add_f32(MAX, MAX, r), positive, "{r:?}");
        assert_eq!(mul_f32(MAX, MAX | 1 << 31, r), negative | 1 << 31, "{r:?}");
        assert_eq!(f64_to_f32(1e300f64.to_bits(), r), positive, "{r:?}");
        assert_eq!(f32_to_f16(1e30f32.to_bits(), r), if positive == INF { 0x7c00 } else { 0x7bff }, "{r:?}");
    }
}

#[test]
fn underflow_rounds_by_mode() {
    let tiny = 1;
    assert_eq!(mul_f32(tiny, tiny, Round::Nearest), 0);
    assert_eq!(mul_f32(tiny, tiny, Round::Up), 1);
    assert_eq!(mul_f32(tiny, tiny | 1 << 31, Round::Up), 1 << 31);
    assert_eq!(mul_f32(tiny, tiny | 1 << 31, Round::Down), 1 << 31 | 1);
    // Half of the least number is a tie.
    assert_eq!(mul_f32(tiny, 0x3f00_0000, Round::Nearest), 0);
    assert_eq!(mul_f32(tiny, 0x3f00_0000, Round::Away), 1);
    assert_eq!(mul_f32(3, 0x3f00_0000, Round::Nearest), 2);
}

#[test]
fn nans_are_those_of_a_gpu() {
    for r in ROUNDS {
        for nan in [0x7fc0_0000, 0xffc0_1234, 0x7f80_0001] {
            assert_eq!(add_f32(nan, 0, r), 0x7fff_ffff);
            assert_eq!(mul_f32(0, nan, r), 0x7fff_ffff);
            assert_eq!(div_f32(nan, nan, r), 0x7fff_ffff);
            assert_eq!(fma_f32(0, 0, nan, r), 0x7fff_ffff);
            assert_eq!(sqrt_f32(nan, r), 0x7fff_ffff);
        }
        assert_eq!(sqrt_f32(0xbf80_0000, r), 0x7fff_ffff);
        assert_eq!(mul_f32(0, 0x7f80_0000, r), 0x7fff_ffff);
        let (signalling, quiet) = (0x7ff0_0000_0000_0abc, 0xfff8_0000_0000_0001);
        assert_eq!(add_f64(quiet, signalling, r), 0x7ff8_0000_0000_0abc);
        assert_eq!(mul_f64(signalling, quiet, r), quiet);
        assert_eq!(div_f64(signalling, quiet, r), 0x7ff8_0000_0000_0abc);
        assert_eq!(fma_f64(signalling, quiet, signalling, r), quiet);
        assert_eq!(sub_f64(1, quiet, r), quiet);
        assert_eq!(fma_f64(1, 2, quiet, r), quiet);
        assert_eq!(mul_f64(0, 0x7ff0_0000_0000_0000, r), NAN_F64);
        assert_eq!(sqrt_f64(0xbff0_0000_0000_0000, r), NAN_F64);
    }
}

#[test]
fn flushing_looks_at_the_value_rounded_with_all_its_bits() {
    // Below the smallest normal number by so little that it rounds up to it.
    let (a, b) = (0x0080_0001, 0x3f7f_fffe);
    assert_eq!(mul_ftz_f32(a, b, Round::Nearest), 0x0080_0000);
    assert_eq!(mul_ftz_f32(a | 1 << 31, b, Round::Up), 1 << 31);
    assert_eq!(fma_ftz_f32(a, b, 1, Round::Nearest), 0x0080_0000);
    // By more, though the f32 nearest to it is the same.
    let (a, b) = (0x0080_0000, 0x3f7f_ffff);
    assert_eq!(mul_f32(a, b, Round::Nearest), 0x0080_0000);
    assert_eq!(mul_ftz_f32(a, b, Round::Nearest), 0);
    assert_eq!([mul_f16(0x0400, 0x3bff), mul_ftz_f16(0x0400, 0x3bff)], [0x0400, 0]);
    assert_eq!(fma_ftz_f16(0x0400, 0x0400, 0x8400), 0x8400);
    assert_eq!(div_ftz_f32(0x0080_0000, 0x3f80_0001, Round::Nearest), 0);
    assert_eq!(mul_ftz_f32(0x0080_0000, 0x3f80_0000, Round::Nearest), 0x0080_0000);
    assert_eq!(add_ftz_f32(0x0080_0000, 0x8080_0001, Round::Nearest), 1 << 31);
    assert_eq!(sub_ftz_f32(0x007f_ffff, 0x0080_0000, Round::Nearest), 0x8080_0000);
    assert_eq!([sqrt_ftz_f32(1, Round::Up), rcp_ftz_f32(1, Round::Down)], [0, 0x7f80_0000]);
    assert_eq!([flush_f32(0x807f_ffff), flush_f32(0x0080_0000)], [0x8000_0000, 0x0080_0000]);
    assert_eq!([flush_f16(0x83ff), flush_f16(0x0400)], [0x8000, 0x0400]);
    assert_eq!([flush_bf16(0x807f), flush_bf16(0x0080)], [0x8000, 0x0080]);
    assert_eq!(flush_f64(0x800f_ffff_ffff_ffff), 1 << 63);
}
