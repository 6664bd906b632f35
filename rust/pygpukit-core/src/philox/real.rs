//! Functions of random words in f32 and f64, rounded step by step as the kernels do.

use std::ops::{Add, Div, Mul, Neg, Sub};

/// What the formulas need of f32 and f64.
pub(super) trait Real:
    Copy
    + Default
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
{
    /// The words of one number.
    type Word: Copy + Default;
    /// The last powers of the series of the logarithm and of sine and cosine.
    const LOG_LAST: i32;
    const SINE_LAST: usize;

    fn of(x: f64) -> Self;
    fn sqrt(self) -> Self;
    /// `-e` and `m` of a positive normal number 2^e m, with m around 1.
    fn parts(self) -> (Self, Self);
    /// A number in (0, 1), finer near 0.
    fn positive(word: Self::Word) -> Self;
    /// The same from the upper bits: the lowest is left for a sign.
    fn positive_half(word: Self::Word) -> Self;
    /// An angle in (-pi/4, pi/4), from the bits below the two highest.
    fn angle(word: Self::Word) -> Self;
    fn lowest(word: Self::Word) -> bool;
    fn highest(word: Self::Word) -> bool;
    fn second_highest(word: Self::Word) -> bool;
}

impl Real for f32 {
    type Word = u32;
    const LOG_LAST: i32 = 9;
    const SINE_LAST: usize = 9;

    #[inline(always)]
    fn of(x: f64) -> f32 {
        x as f32
    }
    #[inline(always)]
    fn sqrt(self) -> f32 {
        f32::sqrt(self)
    }
    #[inline(always)]
    fn parts(self) -> (f32, f32) {
        let bits = self.to_bits();
        let e = (bits.wrapping_sub(0x3F35_04F3) as i32) >> 23;
        ((-e) as f32, f32::from_bits(bits.wrapping_sub((e as u32) << 23)))
    }
    #[inline(always)]
    fn positive(x: u32) -> f32 {
        least(x as f32 * (1.0 / 4_294_967_296.0) + 0.5 / 4_294_967_296.0, 1.0 - 1.0 / 16_777_216.0)
    }
    #[inline(always)]
    fn positive_half(x: u32) -> f32 {
        least((x >> 1) as f32 * (1.0 / 2_147_483_648.0) + 0.5 / 2_147_483_648.0, 1.0 - 1.0 / 16_777_216.0)
    }
    #[inline(always)]
    fn angle(x: u32) -> f32 {
        (2 * (x & 0x3FFF_FFFF) as i32 - 0x3FFF_FFFF) as f32 * (std::f64::consts::FRAC_PI_2 / 2_147_483_648.0) as f32
    }
    #[inline(always)]
    fn lowest(x: u32) -> bool {
        x & 1 != 0
    }
    #[inline(always)]
    fn highest(x: u32) -> bool {
        x >> 31 != 0
    }
    #[inline(always)]
    fn second_highest(x: u32) -> bool {
        x & 1 << 30 != 0
    }
}

impl Real for f64 {
    type Word = u64;
    const LOG_LAST: i32 = 21;
    const SINE_LAST: usize = 15;

    #[inline(always)]
    fn of(x: f64) -> f64 {
        x
    }
    #[inline(always)]
    fn sqrt(self) -> f64 {
        f64::sqrt(self)
    }
    #[inline(always)]
    fn parts(self) -> (f64, f64) {
        let bits = self.to_bits();
        // The exponent lies in the upper half, which is shifted with its sign by every machine.
        let e = ((bits.wrapping_sub(0x3FE6_A09E_667F_3BCD) >> 32) as i32) >> 20;
        (f64::from(-e), f64::from_bits(bits.wrapping_sub(u64::from(e as u32) << 52)))
    }
    #[inline(always)]
    fn positive(x: u64) -> f64 {
        least(((x >> 11) as f64 + 1.0) * (1.0 / 9_007_199_254_740_992.0), 1.0 - 1.0 / 9_007_199_254_740_992.0)
    }
    #[inline(always)]
    fn positive_half(x: u64) -> f64 {
        Self::positive(x)
    }
    #[inline(always)]
    fn angle(x: u64) -> f64 {
        let turned = 2 * (x & 0x3FFF_FFFF_FFFF_FFFF) as i64 - 0x3FFF_FFFF_FFFF_FFFF;
        turned as f64 * (std::f64::consts::FRAC_PI_2 / 9_223_372_036_854_775_808.0)
    }
    #[inline(always)]
    fn lowest(x: u64) -> bool {
        x & 1 != 0
    }
    #[inline(always)]
    fn highest(x: u64) -> bool {
        x >> 63 != 0
    }
    #[inline(always)]
    fn second_highest(x: u64) -> bool {
        x & 1 << 62 != 0
    }
}

#[inline(always)]
fn least<T: Real>(a: T, b: T) -> T {
    if a < b { a } else { b }
}

/// ln((1 + s) / (1 - s)) = 2 atanh(s) of |s| < 0.172 by its series.
#[inline(always)]
fn log_of_quotient<T: Real>(s: T) -> T {
    let z = s * s;
    let mut p = T::of(2.0 / f64::from(T::LOG_LAST));
    let mut k = T::LOG_LAST - 2;
    while k >= 1 {
        p = p * z + T::of(2.0 / f64::from(k));
        k -= 2;
    }
    s * p
}

/// -ln(u) of a positive normal number.
#[inline(always)]
pub(super) fn minus_log<T: Real>(u: T) -> T {
    let (e, m) = u.parts();
    let f = m - T::of(1.0);
    let s = f / (f + T::of(2.0));
    e * T::of(std::f64::consts::LN_2) - log_of_quotient(s)
}

/// -ln(1 - p) for 0 <= p < 1, with a small relative error where p is small.
#[inline(always)]
pub(super) fn minus_log_rest<T: Real>(p: T) -> T {
    let (near, far) = (log_of_quotient(p / (T::of(2.0) - p)), minus_log(T::of(1.0) - p));
    if p < T::of(0.25) { near } else { far }
}

const FACTORIALS: [f64; 16] = {
    let mut made = [1.0; 16];
    let mut i = 1;
    while i < 16 {
        made[i] = made[i - 1] * (i + 1) as f64;
        i += 1;
    }
    made
};

/// Sine and cosine of |x| <= pi / 4 by their series.
#[inline(always)]
pub(super) fn sine_cosine<T: Real>(x: T) -> (T, T) {
    let inverse = |k: usize| T::of(1.0 / FACTORIALS[k]);
    let z = -(x * x);
    let (mut odd, mut even) = (inverse(T::SINE_LAST - 1), inverse(T::SINE_LAST));
    let mut k = T::SINE_LAST;
    while k > 1 {
        k -= 2;
        odd = odd * z + inverse(k - 1);
        even = even * z + inverse(k);
    }
    (x * odd, even * z + T::of(1.0))
}
