//! f32 arithmetic: on the host's f32 to nearest, through its f64 in every other mode and with `.ftz`.
//!
//! In f64 a product of two f32 is exact, and a sum is rounded to odd. A quotient or root that is not exact differs from
//! every f32, and from the middle between two, by more than an f64 rounding. So the f64 always tells on which side of
//! an f32 the exact result lies, which is all that a directed rounding asks.

use super::{Round, canon_f32, flush_f32, half::sum_to_odd};

const LEAST: f64 = f32::MIN_POSITIVE as f64;
/// Distance of f32 below the smallest normal number, if they had 24 bits there as elsewhere.
const STEP: f64 = LEAST / (1 << 24) as f64;

/// Does `.ftz` make this result zero? It is too small if it would be after rounding with all 24 bits.
#[inline(always)]
pub(crate) fn is_tiny(x: f64, round: Round) -> bool {
    let outward = x.abs() <= LEAST - STEP;
    let inward = x.abs() < LEAST;
    match round {
        Round::Nearest | Round::Away => x.abs() < LEAST - STEP / 2.0,
        Round::Zero => inward,
        Round::Down => {
            if x < 0.0 {
                outward
            } else {
                inward
            }
        }
        Round::Up => {
            if x < 0.0 {
                inward
            } else {
                outward
            }
        }
    }
}

#[inline(always)]
fn wide(a: u32) -> f64 {
    f32::from_bits(a).into()
}

#[inline(always)]
pub(crate) fn narrow(x: f64, round: Round) -> u32 {
    let nearest = x as f32;
    let bits = canon_f32(nearest);
    if round == Round::Nearest {
        return bits;
    }
    let back = f64::from(nearest);
    let negative = bits >> 31 != 0;
    let (inward, outward) = match round {
        Round::Nearest => (false, false),
        Round::Zero => (back.abs() > x.abs(), false),
        Round::Down => ((back > x) & !negative, (back > x) & negative),
        Round::Up => ((back < x) & negative, (back < x) & !negative),
        Round::Away => {
            let next = f64::from(f32::from_bits(bits + 1));
            (false, (back.abs() < x.abs()) & ((x + x).abs() >= (back + next).abs()))
        }
    };
    // Neighbours in magnitude have neighbouring bits, from zero to infinity.
    bits + u32::from(outward) - u32::from(inward)
}

/// A sum of f64 values for one more rounding, with the sign of an exact zero.
#[inline(always)]
fn sum(x: f64, y: f64, round: Round) -> f64 {
    let sum = sum_to_odd(x, y);
    let cancelled = (sum == 0.0) & (x.is_sign_negative() != y.is_sign_negative());
    if (round == Round::Down) & cancelled { -0.0 } else { sum }
}

#[inline(always)]
pub(crate) fn narrow_ftz(x: f64, round: Round) -> u32 {
    let zero = (x.to_bits() >> 32) as u32 & 0x8000_0000;
    if is_tiny(x, round) { zero } else { narrow(x, round) }
}

#[inline(always)]
pub fn add_f32(a: u32, b: u32, round: Round) -> u32 {
    if round == Round::Nearest {
        canon_f32(f32::from_bits(a) + f32::from_bits(b))
    } else {
        narrow(sum(wide(a), wide(b), round), round)
    }
}

#[inline(always)]
pub fn sub_f32(a: u32, b: u32, round: Round) -> u32 {
    add_f32(a, b ^ 0x8000_0000, round)
}

#[inline(always)]
pub fn mul_f32(a: u32, b: u32, round: Round) -> u32 {
    if round == Round::Nearest {
        canon_f32(f32::from_bits(a) * f32::from_bits(b))
    } else {
        narrow(wide(a) * wide(b), round)
    }
}

#[inline(always)]
pub fn fma_f32(a: u32, b: u32, c: u32, round: Round) -> u32 {
    if round == Round::Nearest {
        canon_f32(f32::from_bits(a).mul_add(f32::from_bits(b), f32::from_bits(c)))
    } else {
        narrow(sum(wide(a) * wide(b), wide(c), round), round)
    }
}

#[inline(always)]
pub fn div_f32(a: u32, b: u32, round: Round) -> u32 {
    if round == Round::Nearest {
        canon_f32(f32::from_bits(a) / f32::from_bits(b))
    } else {
        narrow(wide(a) / wide(b), round)
    }
}

#[inline(always)]
pub fn sqrt_f32(a: u32, round: Round) -> u32 {
    if round == Round::Nearest { canon_f32(f32::from_bits(a).sqrt()) } else { narrow(wide(a).sqrt(), round) }
}

#[inline(always)]
pub fn rcp_f32(a: u32, round: Round) -> u32 {
    div_f32(1f32.to_bits(), a, round)
}

/// Sums below the normal range are exact, so they need no look before rounding.
#[inline(always)]
pub fn add_ftz_f32(a: u32, b: u32, round: Round) -> u32 {
    flush_f32(add_f32(flush_f32(a), flush_f32(b), round))
}

#[inline(always)]
pub fn sub_ftz_f32(a: u32, b: u32, round: Round) -> u32 {
    add_ftz_f32(a, b ^ 0x8000_0000, round)
}

#[inline(always)]
pub fn mul_ftz_f32(a: u32, b: u32, round: Round) -> u32 {
    narrow_ftz(wide(flush_f32(a)) * wide(flush_f32(b)), round)
}

#[inline(always)]
pub fn fma_ftz_f32(a: u32, b: u32, c: u32, round: Round) -> u32 {
    narrow_ftz(sum(wide(flush_f32(a)) * wide(flush_f32(b)), wide(flush_f32(c)), round), round)
}

#[inline(always)]
pub fn div_ftz_f32(a: u32, b: u32, round: Round) -> u32 {
    narrow_ftz(wide(flush_f32(a)) / wide(flush_f32(b)), round)
}

/// No root is subnormal.
#[inline(always)]
pub fn sqrt_ftz_f32(a: u32, round: Round) -> u32 {
    sqrt_f32(flush_f32(a), round)
}

#[inline(always)]
pub fn rcp_ftz_f32(a: u32, round: Round) -> u32 {
    div_ftz_f32(1f32.to_bits(), a, round)
}
