//! Floating point as NVIDIA GPUs compute it: bits in, bits out, one value at a time.
//!
//! `u32` holds an f32, `u64` an f64, `u16` an f16 or bf16, `u8` an fp8. Rounding to nearest runs on the host's IEEE
//! arithmetic and is written without branches where a loop over lanes should vectorise. The other modes go through f64
//! for f32 ([`single`]), and through exact integer work for f64 ([`soft`]).
//!
//! What a GPU puts into a NaN is decided only here, in `canon_*` and `nan_f64`:
//!
//! | format | NaN result |
//! |---|---|
//! | f32, tf32 | `0x7fffffff` |
//! | f16, bf16 | `0x7fff` |
//! | e4m3, e5m2 | `0x7f` |
//! | f64 | a NaN operand, made quiet: the second before the first, and before the third; `0xfff8000000000000` for an invalid operation |

pub mod approx;
pub mod convert;
pub mod fp8;
pub mod half;
pub mod order;
pub mod single;
pub mod soft;

#[cfg(test)]
mod tests;

pub use approx::*;
pub use convert::*;
pub use fp8::*;
pub use half::*;
pub use order::*;
pub use single::*;
pub use soft::*;

/// How a result that does not fit is rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Round {
    /// `.rn`, `.rni`: nearest, ties to even.
    Nearest,
    /// `.rz`, `.rzi`
    Zero,
    /// `.rm`, `.rmi`: towards negative infinity.
    Down,
    /// `.rp`, `.rpi`: towards positive infinity.
    Up,
    /// `.rna`: nearest, ties away from zero.
    Away,
}

/// What the largest exponent field of a format means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Specials {
    /// Infinity and NaNs.
    Ieee,
    /// Numbers, except that all ones is a NaN. Overflow gives the largest number.
    Nan,
    /// Numbers. Overflow, and a NaN, give the largest number.
    None,
}

/// A binary floating-point format of sign, exponent and fraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Format {
    pub exp_bits: u32,
    /// Without the hidden bit.
    pub man_bits: u32,
    pub specials: Specials,
}

impl Format {
    pub const F64: Format = Format::ieee(11, 52);
    pub const F32: Format = Format::ieee(8, 23);
    /// In 19 bits; as a value of PTX these are the upper bits of an f32.
    pub const TF32: Format = Format::ieee(8, 10);
    pub const BF16: Format = Format::ieee(8, 7);
    pub const F16: Format = Format::ieee(5, 10);
    pub const E5M2: Format = Format::ieee(5, 2);
    pub const E4M3: Format = Format { exp_bits: 4, man_bits: 3, specials: Specials::Nan };
    pub const E3M2: Format = Format { exp_bits: 3, man_bits: 2, specials: Specials::None };
    pub const E2M3: Format = Format { exp_bits: 2, man_bits: 3, specials: Specials::None };
    pub const E2M1: Format = Format { exp_bits: 2, man_bits: 1, specials: Specials::None };

    const fn ieee(exp_bits: u32, man_bits: u32) -> Format {
        Format { exp_bits, man_bits, specials: Specials::Ieee }
    }

    pub const fn bias(self) -> i32 {
        (1 << (self.exp_bits - 1)) - 1
    }

    /// Exponent of the least bit of a subnormal number.
    pub const fn min_exp(self) -> i32 {
        1 - self.bias() - self.man_bits as i32
    }

    pub const fn sign_bit(self) -> u64 {
        1 << (self.exp_bits + self.man_bits)
    }

    /// Bits of positive infinity, where the format has one.
    pub const fn infinity(self) -> u64 {
        ((1 << self.exp_bits) - 1) << self.man_bits
    }

    /// Bits of the largest finite number.
    pub const fn max_finite(self) -> u64 {
        match self.specials {
            Specials::Ieee => self.infinity() - 1,
            Specials::Nan => self.sign_bit() - 2,
            Specials::None => self.sign_bit() - 1,
        }
    }

    /// The NaN a GPU gives; the largest number where the format has none.
    pub const fn nan(self) -> u64 {
        if self.man_bits == 52 { NAN_F64 } else { self.sign_bit() - 1 }
    }
}

pub const NAN_F32: u32 = 0x7fff_ffff;
pub const NAN_F16: u16 = 0x7fff;
pub const NAN_BF16: u16 = 0x7fff;
/// What an invalid f64 operation gives.
pub const NAN_F64: u64 = 0xfff8_0000_0000_0000;

const QUIET_F64: u64 = 0x0008_0000_0000_0000;

/// Bits of an f32 result, with the GPU's NaN.
///
/// It asks the bits, not `is_nan`: to the compiler one NaN is as good as another, and it has been seen to drop a choice
/// between two of them.
#[inline(always)]
pub fn canon_f32(x: f32) -> u32 {
    let bits = x.to_bits();
    if bits & 0x7fff_ffff > 0x7f80_0000 { NAN_F32 } else { bits }
}

#[inline(always)]
pub fn canon_f16(bits: u16) -> u16 {
    if bits & 0x7fff > 0x7c00 { NAN_F16 } else { bits }
}

#[inline(always)]
pub fn canon_bf16(bits: u16) -> u16 {
    if bits & 0x7fff > 0x7f80 { NAN_BF16 } else { bits }
}

#[inline(always)]
pub fn is_nan_f32(f32: u32) -> bool {
    f32 & 0x7fff_ffff > 0x7f80_0000
}

#[inline(always)]
pub fn is_nan(f64: u64) -> bool {
    f64 & 0x7fff_ffff_ffff_ffff > 0x7ff0_0000_0000_0000
}

/// Bits of an f64 result of these operands (repeat one where there are fewer), with the GPU's NaN: the first of them
/// that is one.
#[inline(always)]
pub fn nan_f64(x: f64, a: u64, b: u64, c: u64) -> u64 {
    let or = |x: u64, other: u64| if is_nan(x) { x | QUIET_F64 } else { other };
    let bits = x.to_bits();
    if is_nan(bits) { or(a, or(b, or(c, NAN_F64))) } else { bits }
}

/// `.ftz`: a subnormal number becomes zero of its sign.
#[inline(always)]
pub fn flush_f32(a: u32) -> u32 {
    if a & 0x7f80_0000 == 0 { a & 0x8000_0000 } else { a }
}

#[inline(always)]
pub fn flush_f64(a: u64) -> u64 {
    if a & 0x7ff0_0000_0000_0000 == 0 { a & 0x8000_0000_0000_0000 } else { a }
}

#[inline(always)]
pub fn flush_f16(a: u16) -> u16 {
    if a & 0x7c00 == 0 { a & 0x8000 } else { a }
}

#[inline(always)]
pub fn flush_bf16(a: u16) -> u16 {
    if a & 0x7f80 == 0 { a & 0x8000 } else { a }
}

/// `.sat`: into 0..=1, a NaN becomes +0.
#[inline(always)]
pub fn saturate_f32(a: u32) -> u32 {
    let x = f32::from_bits(a);
    let low = if x > 0.0 { a } else { 0 };
    if x > 1.0 { 0x3f80_0000 } else { low }
}

#[inline(always)]
pub fn saturate_f64(a: u64) -> u64 {
    let x = f64::from_bits(a);
    let low = if x > 0.0 { a } else { 0 };
    if x > 1.0 { 0x3ff0_0000_0000_0000 } else { low }
}

#[inline(always)]
pub fn saturate_f16(a: u16) -> u16 {
    // A set sign or a NaN, then values above one.
    let low = if a > 0x7c00 { 0 } else { a };
    low.min(0x3c00)
}

#[inline(always)]
pub fn saturate_bf16(a: u16) -> u16 {
    let low = if a > 0x7f80 { 0 } else { a };
    low.min(0x3f80)
}

/// `.relu`: negative numbers and -0 become +0, a NaN the GPU's NaN.
#[inline(always)]
pub fn relu_f32(a: u32) -> u32 {
    let low = if a >> 31 != 0 { 0 } else { a };
    if a & 0x7fff_ffff > 0x7f80_0000 { NAN_F32 } else { low }
}

#[inline(always)]
pub fn relu_f16(a: u16) -> u16 {
    let low = if a >> 15 != 0 { 0 } else { a };
    if a & 0x7fff > 0x7c00 { NAN_F16 } else { low }
}

#[inline(always)]
pub fn relu_bf16(a: u16) -> u16 {
    let low = if a >> 15 != 0 { 0 } else { a };
    if a & 0x7fff > 0x7f80 { NAN_BF16 } else { low }
}

/// `.satfinite` on a converted result: an infinity becomes the largest number.
#[inline(always)]
pub fn satfinite_f16(a: u16) -> u16 {
    if a & 0x7fff == 0x7c00 { a - 1 } else { a }
}

#[inline(always)]
pub fn satfinite_bf16(a: u16) -> u16 {
    if a & 0x7fff == 0x7f80 { a - 1 } else { a }
}

#[inline(always)]
pub fn neg_f32(a: u32) -> u32 {
    canon_f32(-f32::from_bits(a))
}

#[inline(always)]
pub fn abs_f32(a: u32) -> u32 {
    canon_f32(f32::from_bits(a).abs())
}

/// Quiet, a NaN passes; its sign too.
#[inline(always)]
pub fn neg_f64(a: u64) -> u64 {
    if is_nan(a) { a | QUIET_F64 } else { a ^ 0x8000_0000_0000_0000 }
}

#[inline(always)]
pub fn abs_f64(a: u64) -> u64 {
    if is_nan(a) { a | QUIET_F64 } else { a & 0x7fff_ffff_ffff_ffff }
}

#[inline(always)]
pub fn neg_f16(a: u16) -> u16 {
    canon_f16(a ^ 0x8000)
}

#[inline(always)]
pub fn abs_f16(a: u16) -> u16 {
    canon_f16(a & 0x7fff)
}

#[inline(always)]
pub fn neg_bf16(a: u16) -> u16 {
    canon_bf16(a ^ 0x8000)
}

#[inline(always)]
pub fn abs_bf16(a: u16) -> u16 {
    canon_bf16(a & 0x7fff)
}
