//! The approximate instructions. Where the ISA promises only a bound, the result here is the correctly rounded value.
//!
//! What hardware may be off by, as the PTX ISA says it:
//!
//! | instruction | bound |
//! |---|---|
//! | ex2.approx.f32 | 2 ulp |
//! | lg2.approx.f32 | absolute 2^-22 for operands in (0.5, 2), elsewhere relative 2^-22 |
//! | sin.approx.f32, cos.approx.f32 | absolute 2^-20.5 in -2pi..2pi, 2^-14.7 in -100pi..100pi, none promised beyond |
//! | tanh.approx.f32 | relative 2^-11 |
//! | rcp.approx.f32 | 1 ulp |
//! | rsqrt.approx.f32 | relative 2^-22.9 |
//! | sqrt.approx.f32 | relative 2^-23 |
//! | div.approx.f32 | 2 ulp for a divisor in 2^-126..2^126; beyond, a zero, or NaN for an infinite dividend |
//! | div.full.f32 | 2 ulp |
//! | rcp.approx.ftz.f64, rsqrt.approx.ftz.f64 | the upper words are read and written; no bound given |
//! | rsqrt.approx.f64 | no bound given |
//! | ex2.approx.f16 | relative 2^-9.9; one unit among subnormal numbers |
//! | ex2.approx.ftz.bf16 | relative 2^-7 |
//! | tanh.approx.f16 | absolute 2^-10.987 |
//! | tanh.approx.bf16 | absolute 2^-8 |
//!
//! "Correctly rounded" holds up to the f64 function it is rounded from, which decides wrongly in about one of 2^28
//! cases.

use super::single::is_tiny;
use super::{
    NAN_F32, Round, bf16_of, bf16_to_f32, canon_f32, f16_of, f16_to_f32, flush_bf16, flush_f32, flush_f64, nan_f64,
};

#[inline(always)]
fn input(a: u32, ftz: bool) -> f64 {
    f32::from_bits(if ftz { flush_f32(a) } else { a }).into()
}

#[inline(always)]
fn output(x: f64, ftz: bool) -> u32 {
    let zero = (x.to_bits() >> 32) as u32 & 0x8000_0000;
    if ftz & is_tiny(x, Round::Nearest) { zero } else { canon_f32(x as f32) }
}

#[inline(always)]
pub fn ex2_f32(a: u32, ftz: bool) -> u32 {
    output(exp2(input(a, ftz)), ftz)
}

/// 2^x to about 60 bits, for the exponents an f32 can use; without a call, so that lanes vectorise.
#[inline(always)]
fn exp2(x: f64) -> f64 {
    // 1/n! times ln(2)^n, from n = 13 down to 1.
    const TERMS: [f64; 13] = exp2_terms();
    // Beyond these the result is 0 or infinity as an f32. A NaN passes.
    let x = if x < -160.0 { -160.0 } else { x };
    let x = if x > 130.0 { 130.0 } else { x };
    let anchor = 6755399441055744.0; // 1.5 * 2^52: its last bit is one
    let shifted = x + anchor;
    let whole = shifted - anchor;
    let fraction = x - whole;
    let mut sum = 0.0;
    for term in TERMS {
        sum = (sum + term) * fraction;
    }
    let power = f64::from_bits((shifted.to_bits().wrapping_add(1023)) << 52);
    if x.is_nan() { x } else { power + power * sum }
}

const fn exp2_terms() -> [f64; 13] {
    let mut terms = [0.0; 13];
    let mut term = 1.0;
    let mut n = 1;
    while n <= 13 {
        term = term * std::f64::consts::LN_2 / n as f64;
        terms[13 - n] = term;
        n += 1;
    }
    terms
}

#[inline]
pub fn lg2_f32(a: u32, ftz: bool) -> u32 {
    output(input(a, ftz).log2(), ftz)
}

#[inline]
pub fn sin_f32(a: u32, ftz: bool) -> u32 {
    output(input(a, ftz).sin(), ftz)
}

#[inline]
pub fn cos_f32(a: u32, ftz: bool) -> u32 {
    output(input(a, ftz).cos(), ftz)
}

/// Subnormal operands pass through, as tanh(x) is near x.
#[inline]
pub fn tanh_f32(a: u32) -> u32 {
    output(input(a, false).tanh(), false)
}

#[inline(always)]
pub fn rcp_approx_f32(a: u32, ftz: bool) -> u32 {
    output(1.0 / input(a, ftz), ftz)
}

/// The root of -0 is -0, and its reciprocal -inf.
#[inline(always)]
pub fn rsqrt_f32(a: u32, ftz: bool) -> u32 {
    output(1.0 / input(a, ftz).sqrt(), ftz)
}

#[inline(always)]
pub fn sqrt_approx_f32(a: u32, ftz: bool) -> u32 {
    output(input(a, ftz).sqrt(), ftz)
}

#[inline(always)]
pub fn div_approx_f32(a: u32, b: u32, ftz: bool) -> u32 {
    let (x, y) = (input(a, ftz), input(b, ftz));
    // The reciprocal of a huge divisor is subnormal, which this instruction takes for zero. A subnormal divisor is scaled.
    let huge = f64::from(f32::from_bits(0x7e80_0000));
    output(if y.abs() > huge { x * 0f64.copysign(y) } else { x / y }, ftz)
}

/// The quotient in f64 rounds to the same f32 as the exact one does: f64 has more than twice the bits.
#[inline(always)]
pub fn div_full_f32(a: u32, b: u32, ftz: bool) -> u32 {
    output(input(a, ftz) / input(b, ftz), ftz)
}

/// `rcp.approx.ftz.f64`
#[inline]
pub fn rcp_approx_f64(a: u64) -> u64 {
    upper_word(a, |x| 1.0 / x)
}

#[inline]
pub fn rsqrt_approx_ftz_f64(a: u64) -> u64 {
    upper_word(a, |x| 1.0 / x.sqrt())
}

/// Operand and result have only their upper 32 bits: 20 of fraction.
fn upper_word(a: u64, f: impl Fn(f64) -> f64) -> u64 {
    const UPPER: u64 = 0xffff_ffff_0000_0000;
    let bits = f(f64::from_bits(flush_f64(a & UPPER))).to_bits();
    if bits & 0x7fff_ffff_ffff_ffff > 0x7ff0_0000_0000_0000 {
        return u64::from(NAN_F32) << 32;
    }
    // To nearest even; an infinity has no lower bits to carry.
    flush_f64((bits + 0x7fff_ffff + ((bits >> 32) & 1)) & UPPER)
}

/// `rsqrt.approx.f64`
#[inline]
pub fn rsqrt_approx_f64(a: u64) -> u64 {
    nan_f64(1.0 / f64::from_bits(a).sqrt(), a, a, a)
}

#[inline(always)]
pub fn ex2_f16(a: u16) -> u16 {
    f16_of(exp2(f32::from_bits(f16_to_f32(a)).into()), Round::Nearest)
}

/// `ex2.approx.ftz.bf16`
#[inline(always)]
pub fn ex2_bf16(a: u16) -> u16 {
    let x = f32::from_bits(bf16_to_f32(flush_bf16(a)));
    flush_bf16(bf16_of(exp2(x.into()), Round::Nearest))
}

#[inline]
pub fn tanh_f16(a: u16) -> u16 {
    f16_of(f64::from(f32::from_bits(f16_to_f32(a))).tanh(), Round::Nearest)
}

#[inline]
pub fn tanh_bf16(a: u16) -> u16 {
    bf16_of(f64::from(f32::from_bits(bf16_to_f32(a))).tanh(), Round::Nearest)
}
