//! The arithmetic of tensor cores: sums of groups of products, bit for bit as an H200 (SM 90) makes them.
//!
//! A step takes a group of products and the sum so far, c:
//! 1. E is the largest exponent of a term: of a product, that of its factors added; of c, its own. Exponents of subnormal
//!    numbers are their type's smallest, and a term that is zero has none.
//! 2. Each term, exact until here, is cut toward zero to F fraction bits below 2^E.
//! 3. The terms are added exactly.
//! 4. The sum is rounded once: to f32 toward zero, to f16 to the nearest. A sum of zero is +0; one beyond the largest
//!    number is infinite, toward zero too. Infinities and NaNs are those of IEEE arithmetic, a NaN the canonical one.
//!
//! | instruction | groups | F | known from |
//! |---|---|---|---|
//! | `mma`, `wmma` of f16 and bf16 | all k, 8 or 16 | 25 | recorded vectors |
//! | `mma`, `wmma` of tf32 | all k, 4 or 8 | 25 | recorded vectors |
//! | `mma` of e4m3, e5m2, k16 | all k, from zero; then c is added | 25 | recorded vectors |
//! | `mma` of e4m3, e5m2, k32 | k % 4 < 2 from zero, then the others; then c is added | 25 | recorded vectors |
//! | `wgmma` of f16, bf16 (k16), tf32 (k8) | all k | 25 | measured, sums of f32 |
//! | `wgmma` of e4m3, k32 | all k; the sum keeps 13 fraction bits | 13 | measured, sums of f32 |
//!
//! `mma` of 8-bit floats runs on the units of f16: the factors are converted first, so that subnormal e4m3 are normal
//! numbers, and c is added by an ordinary instruction that rounds to the nearest.
//!
//! Not known, and taken as in the rows above: f16 sums of `wgmma`, e5m2 in `wgmma`, the exponent of a term that is zero
//! (no recorded result depends on it), and other architectures.
//!
//! Why f64 is enough: a product has 22 bits, and its exponent fits. Cut terms are integers in units of 2^(E - F) below
//! 2^(F + 2), so 33 of them add up exactly.

use super::fragments::Element;
use crate::emulator::float::{self, Round};

/// Fraction bits of the terms, and of sums of 8-bit products in `wgmma`.
pub(crate) const FRACTION: i32 = 25;
pub(crate) const SHORT_FRACTION: i32 = 13;

/// Columns whose sums are made at once: they fit the vector registers of a core.
pub(crate) const COLUMNS: usize = 8;
/// Terms come in fours.
pub(crate) const QUAD: usize = 4;

/// Numbers of four terms: one of A each, and those of the columns of B.
pub(crate) type QuadA = [f64; QUAD];
pub(crate) type QuadB = [[f64; COLUMNS]; QUAD];

/// How a group of products is added.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Adder {
    /// 2 to the number of fraction bits of the terms.
    fraction: f64,
    /// 2 to the smallest exponents of A's and B's type, and of the sums'.
    a: f64,
    b: f64,
    sum: f64,
}

impl Adder {
    pub fn new(a: Element, b: Element, sum: Element, fraction: i32) -> Adder {
        let [a, b, sum] = [a, b, sum].map(|element| power_of_two(smallest_exponent(element)));
        Adder { fraction: power_of_two(fraction), a, b, sum }
    }

    /// 2 to the exponent of each factor of A.
    #[inline(always)]
    pub fn powers_a(&self, factors: &[f64], powers: &mut [f64]) {
        powers.iter_mut().zip(factors).for_each(|(own, factor)| *own = power(*factor, self.a));
    }

    #[inline(always)]
    pub fn powers_b(&self, factors: &[f64], powers: &mut [f64]) {
        powers.iter_mut().zip(factors).for_each(|(own, factor)| *own = power(*factor, self.b));
    }

    /// `sums += a * b` for the products of a group, exact but for the bits that are cut. `a` and `b` give the factors of
    /// four terms, and 2 to their exponents; the order of the terms does not matter.
    #[inline(always)]
    pub fn add_group<'a, T: Copy>(
        &self,
        quads: &[T],
        a: impl Fn(T) -> (&'a QuadA, &'a QuadA),
        b: impl Fn(T) -> (&'a QuadB, &'a QuadB),
        sums: &mut [f64; COLUMNS],
    ) {
        // Below every term: of bf16 numbers the smallest product is 2^-266.
        let mut top = [const { power_of_two(-300) }; COLUMNS];
        for column in 0..COLUMNS {
            top[column] = larger(top[column], power(sums[column], self.sum));
        }
        for &quad in quads {
            let (a, b) = (a(quad).1, b(quad).1);
            for t in 0..QUAD {
                for column in 0..COLUMNS {
                    top[column] = larger(top[column], a[t] * b[t][column]);
                }
            }
        }
        let mut scale = [0.0; COLUMNS];
        for column in 0..COLUMNS {
            scale[column] = self.fraction / top[column];
            // Begins with +0, so that a sum of zeros is +0.
            sums[column] = 0.0 + (sums[column] * scale[column]).trunc();
        }
        for &quad in quads {
            let (a, b) = (a(quad).0, b(quad).0);
            for t in 0..QUAD {
                for column in 0..COLUMNS {
                    sums[column] += (a[t] * b[t][column] * scale[column]).trunc();
                }
            }
        }
        let unit = 1.0 / self.fraction;
        for column in 0..COLUMNS {
            sums[column] *= top[column] * unit;
        }
    }
}

/// Exponent of the smallest normal number of a type.
fn smallest_exponent(element: Element) -> i32 {
    match element {
        Element::E4m3 => -6,
        Element::F16 | Element::E5m2 => -14,
        _ => -126,
    }
}

/// 2^`exponent`, for exponents of normal numbers.
const fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

#[inline(always)]
fn larger(a: f64, b: f64) -> f64 {
    if b > a { b } else { a }
}

/// 2 to the exponent of a number, at least `smallest`; zero for zero. Of infinity and NaN it is only finite, so that the
/// number itself decides the sum.
#[inline(always)]
fn power(x: f64, smallest: f64) -> f64 {
    let top = const { power_of_two(130) };
    let own = larger(smallest, f64::from_bits(x.to_bits() & 0x7ff0_0000_0000_0000));
    let own = if own < top { own } else { top };
    if x == 0.0 { 0.0 } else { own }
}

/// An exact sum rounded toward zero to an f32 of `fraction` fraction bits; what is too large becomes infinite in the f32.
#[inline(always)]
pub(crate) fn toward_zero(x: f64, fraction: i32) -> f64 {
    const SMALLEST: f64 = f32::MIN_POSITIVE as f64;
    // 2^149 and its inverse: subnormal numbers are multiples of the latter.
    let (up, down) = const { (power_of_two(149), power_of_two(-149)) };
    let normal = f64::from_bits(x.to_bits() & (u64::MAX << (52 - fraction)));
    let subnormal = (x * up).trunc() * down;
    if x.abs() < SMALLEST { subnormal } else { normal }
}

/// A sum as f32 bits.
#[inline(always)]
pub(crate) fn single(x: f64, fraction: i32) -> u32 {
    float::canon_f32(toward_zero(x, fraction) as f32)
}

/// A sum as f16 bits.
#[inline(always)]
pub(crate) fn half(x: f64) -> u16 {
    float::f16_of(x, Round::Nearest)
}

/// A sum as hardware keeps it between groups.
#[inline(always)]
pub(crate) fn rounded(x: f64, sum: Element) -> f64 {
    match sum {
        Element::F16 => f64::from(f32::from_bits(float::f16_to_f32(half(x)))),
        _ => f64::from(toward_zero(x, 23) as f32),
    }
}

/// An ordinary sum of two numbers of a type, rounded to the nearest.
#[inline(always)]
pub(crate) fn add_nearest(a: f64, b: f64, sum: Element) -> f64 {
    match sum {
        // The sum of two f16 is exact in f64.
        Element::F16 => f64::from(f32::from_bits(float::f16_to_f32(half(a + b)))),
        _ => f64::from(a as f32 + b as f32),
    }
}
