//! f16 and bf16: arithmetic rounded once to nearest even, and conversions.
//!
//! Why the host's wider formats are enough:
//! - A sum or product of two f16, or of two bf16, is computed in f32. With at least 2p + 2 bits (p = 11 or 8) the second
//!   rounding cannot change the first; sums in the subnormal range are exact. A bf16 product has 16 bits, so it is
//!   exact in f32 from half the smallest bf16 subnormal upward, and below that it is zero either way.
//! - fma: the product is exact in f32 for f16, and in f64 for bf16, whose exponents range further. The sum is rounded to
//!   odd, which keeps for the second rounding what a tiny addend has to say about a tie.

use super::{Format, NAN_BF16, NAN_F16, NAN_F32, Round, convert, flush_f16, is_nan};

#[inline(always)]
pub fn f16_to_f32(a: u16) -> u32 {
    let sign = u32::from(a & 0x8000) << 16;
    let magnitude = u32::from(a & 0x7fff);
    let shifted = (magnitude << 13) + (112 << 23);
    // A subnormal fraction counts units of 2^-24: put it below the hidden bit of 2^-14 and take that away.
    let subnormal = (f32::from_bits(shifted + (1 << 23)) - f32::from_bits(113 << 23)).to_bits();
    let number = if magnitude < 0x0400 { subnormal } else { shifted };
    let special = if magnitude == 0x7c00 { sign | 0x7f80_0000 } else { NAN_F32 };
    if magnitude >= 0x7c00 { special } else { sign | number }
}

#[inline(always)]
pub fn f32_to_f16(a: u32, round: Round) -> u16 {
    if round != Round::Nearest {
        return convert(a.into(), Format::F32, Format::F16, round) as u16;
    }
    let sign = (a >> 16) as u16 & 0x8000;
    let magnitude = a & 0x7fff_ffff;
    // Rounding may carry into the exponent and from the largest number to infinity, as it should.
    let normal = (magnitude.wrapping_add(0x0fff + ((magnitude >> 13) & 1)).wrapping_sub(112 << 23) >> 13) as u16;
    // 0.5 has its last bit at 2^-24, that of f16 subnormals.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0x3f00_0000) as u16;
    let number = if magnitude < 0x3880_0000 { subnormal } else { normal };
    let finite = if magnitude >= 0x4780_0000 { 0x7c00 } else { number };
    if magnitude > 0x7f80_0000 { NAN_F16 } else { sign | finite }
}

/// The bits move up; so does what a NaN carries.
#[inline(always)]
pub fn bf16_to_f32(a: u16) -> u32 {
    u32::from(a) << 16
}

#[inline(always)]
pub fn f32_to_bf16(a: u32, round: Round) -> u16 {
    let number = (drop_bits(a, 16, round) >> 16) as u16;
    if a & 0x7fff_ffff > 0x7f80_0000 { NAN_BF16 } else { number }
}

/// An f32 that is no NaN, rounded to a multiple of its bit `count`; the bits below are left as they come.
#[inline(always)]
pub(super) fn drop_bits(a: u32, count: u32, round: Round) -> u32 {
    let below = (1 << count) - 1;
    let outward = if a & below == 0 { 0 } else { below };
    // A carry into the exponent is right, and at the top gives infinity.
    let add = match round {
        Round::Nearest => (below >> 1) + ((a >> count) & 1),
        Round::Away => (below >> 1) + 1,
        Round::Zero => 0,
        Round::Down => (a >> 31) * outward,
        Round::Up => (1 - (a >> 31)) * outward,
    };
    a.wrapping_add(add)
}

/// Exact; a NaN keeps its sign and what it carries, and becomes quiet.
#[inline(always)]
pub fn f16_to_f64(a: u16) -> u64 {
    let nan = u64::from(a & 0x8000) << 48 | 0x7ff8_0000_0000_0000 | u64::from(a & 0x03ff) << 42;
    if a & 0x7fff > 0x7c00 { nan } else { super::f32_to_f64(f16_to_f32(a)) }
}

#[inline(always)]
pub fn bf16_to_f64(a: u16) -> u64 {
    super::f32_to_f64(bf16_to_f32(a))
}

#[inline(always)]
pub fn f16_to_bf16(a: u16, round: Round) -> u16 {
    f32_to_bf16(f16_to_f32(a), round)
}

#[inline(always)]
pub fn bf16_to_f16(a: u16, round: Round) -> u16 {
    f32_to_f16(bf16_to_f32(a), round)
}

/// `cvt`: a NaN keeps its sign and the upper bits of what it carries, and becomes quiet.
#[inline(always)]
pub fn f64_to_f16(a: u64, round: Round) -> u16 {
    let nan = (a >> 48) as u16 & 0x8000 | 0x7e00 | (a >> 42) as u16 & 0x01ff;
    if is_nan(a) { nan } else { f16_of(f64::from_bits(a), round) }
}

#[inline(always)]
pub fn f64_to_bf16(a: u64, round: Round) -> u16 {
    let nan = (a >> 48) as u16 & 0x8000 | 0x7fc0 | (a >> 45) as u16 & 0x003f;
    if is_nan(a) { nan } else { bf16_of(f64::from_bits(a), round) }
}

/// A result of arithmetic, rounded.
#[inline(always)]
pub fn f16_of(x: f64, round: Round) -> u16 {
    if round != Round::Nearest {
        return convert(x.to_bits(), Format::F64, Format::F16, round) as u16;
    }
    f32_to_f16((shorten(x, Format::F16) as f32).to_bits(), Round::Nearest)
}

#[inline(always)]
pub fn bf16_of(x: f64, round: Round) -> u16 {
    if round != Round::Nearest {
        return convert(x.to_bits(), Format::F64, Format::BF16, round) as u16;
    }
    f32_to_bf16((shorten(x, Format::BF16) as f32).to_bits(), Round::Nearest)
}

/// `x` rounded to nearest at the format's last bit; what is too large stays too large.
#[inline(always)]
fn shorten(x: f64, format: Format) -> f64 {
    let field = ((x.to_bits() >> 52) & 0x7ff) as i32;
    // Beyond 2^200 there is nothing to round, only an overflow to keep.
    let top = (field - 1023).clamp(1 - format.bias(), 200);
    // The last bit of this number is the one to round at, and adding it rounds there.
    let anchor = f64::from_bits((((top - format.man_bits as i32 + 52 + 1023) as u64) << 52) | 1 << 51);
    ((x.abs() + anchor) - anchor).copysign(x)
}

macro_rules! through_f32 {
    ($name:ident, $operator:tt, $widen:ident, $narrow:ident) => {
        #[inline(always)]
        pub fn $name(a: u16, b: u16) -> u16 {
            let result = f32::from_bits($widen(a)) $operator f32::from_bits($widen(b));
            $narrow(result.to_bits(), Round::Nearest)
        }
    };
}

through_f32!(add_f16, +, f16_to_f32, f32_to_f16);
through_f32!(sub_f16, -, f16_to_f32, f32_to_f16);
through_f32!(mul_f16, *, f16_to_f32, f32_to_f16);
through_f32!(add_bf16, +, bf16_to_f32, f32_to_bf16);
through_f32!(sub_bf16, -, bf16_to_f32, f32_to_bf16);
through_f32!(mul_bf16, *, bf16_to_f32, f32_to_bf16);

#[inline(always)]
pub fn fma_f16(a: u16, b: u16, c: u16) -> u16 {
    let wide = |x| f32::from_bits(f16_to_f32(x));
    f32_to_f16(sum_to_odd_f32(wide(a) * wide(b), wide(c)).to_bits(), Round::Nearest)
}

/// `.ftz`: what would stay below the smallest normal number after rounding with all 11 bits becomes zero.
#[inline(always)]
fn narrow_ftz(x: f32) -> u16 {
    const LEAST: f32 = f32::from_bits(113 << 23);
    let zero = (x.to_bits() >> 16) as u16 & 0x8000;
    if x.abs() < LEAST - LEAST / 4096.0 { zero } else { f32_to_f16(x.to_bits(), Round::Nearest) }
}

#[inline(always)]
pub fn mul_ftz_f16(a: u16, b: u16) -> u16 {
    let wide = |x| f32::from_bits(f16_to_f32(flush_f16(x)));
    narrow_ftz(wide(a) * wide(b))
}

#[inline(always)]
pub fn fma_ftz_f16(a: u16, b: u16, c: u16) -> u16 {
    let wide = |x| f32::from_bits(f16_to_f32(flush_f16(x)));
    narrow_ftz(sum_to_odd_f32(wide(a) * wide(b), wide(c)))
}

#[inline(always)]
pub fn fma_bf16(a: u16, b: u16, c: u16) -> u16 {
    let wide = |x| f64::from(f32::from_bits(bf16_to_f32(x)));
    bf16_of(sum_to_odd(wide(a) * wide(b), wide(c)), Round::Nearest)
}

macro_rules! sum_to_odd {
    ($name:ident, $float:ty) => {
        /// `x + y`, where an inexact sum gets an odd last bit.
        #[inline(always)]
        pub(super) fn $name(x: $float, y: $float) -> $float {
            let sum = x + y;
            let of_y = sum - x;
            let error = (x - (sum - of_y)) + (y - of_y);
            let bits = sum.to_bits();
            // What was lost lies on the outer side of an even sum, or on the inner.
            let outward = (error > 0.0) == (sum > 0.0);
            let odd = if outward { bits.wrapping_add(1) } else { bits.wrapping_sub(1) };
            let inexact = (error < 0.0) | (error > 0.0);
            if inexact & (bits & 1 == 0) { <$float>::from_bits(odd) } else { sum }
        }
    };
}

sum_to_odd!(sum_to_odd, f64);
sum_to_odd!(sum_to_odd_f32, f32);

/// Both halves of f16x2 and bf16x2. These are not built on `each_half`: a call through a closure stays a call in a
/// function compiled for other CPU features, and then the loop around it does not vectorise.
macro_rules! both_halves {
    ($($name:ident($($x:ident),+) = $of:ident;)*) => {$(
        #[inline(always)]
        pub fn $name($($x: u32),+) -> u32 {
            u32::from($of($($x as u16),+)) | u32::from($of($(($x >> 16) as u16),+)) << 16
        }
    )*};
}

both_halves! {
    add_f16x2(x, y) = add_f16;
    sub_f16x2(x, y) = sub_f16;
    mul_f16x2(x, y) = mul_f16;
    fma_f16x2(x, y, z) = fma_f16;
    add_bf16x2(x, y) = add_bf16;
    sub_bf16x2(x, y) = sub_bf16;
    mul_bf16x2(x, y) = mul_bf16;
    fma_bf16x2(x, y, z) = fma_bf16;
}

/// Applies `f` to the lower and the upper half: f16x2, bf16x2.
#[inline(always)]
pub fn each_half(x: u32, f: impl Fn(u16) -> u16) -> u32 {
    u32::from(f(x as u16)) | u32::from(f((x >> 16) as u16)) << 16
}

#[inline(always)]
pub fn each_half2(x: u32, y: u32, f: impl Fn(u16, u16) -> u16) -> u32 {
    u32::from(f(x as u16, y as u16)) | u32::from(f((x >> 16) as u16, (y >> 16) as u16)) << 16
}

#[inline(always)]
pub fn each_half3(x: u32, y: u32, z: u32, f: impl Fn(u16, u16, u16) -> u16) -> u32 {
    let upper = f((x >> 16) as u16, (y >> 16) as u16, (z >> 16) as u16);
    u32::from(f(x as u16, y as u16, z as u16)) | u32::from(upper) << 16
}
