//! Comparisons, minimum and maximum, classes and signs of floating-point numbers.

use super::{NAN_BF16, NAN_F16, NAN_F32, QUIET_F64, bf16_to_f32, f16_to_f32};

/// A comparison of `setp` and `set`. The names ending in u, and `Nan`, are true of a NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Compare {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    Equ,
    Neu,
    Ltu,
    Leu,
    Gtu,
    Geu,
    /// Both are numbers.
    Num,
    /// At least one is a NaN.
    Nan,
}

/// A question of `testp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    Finite,
    Infinite,
    Number,
    NotANumber,
    /// Zeros count as normal.
    Normal,
    Subnormal,
}

macro_rules! compare {
    ($name:ident, $bits:ty, $float:expr) => {
        #[inline(always)]
        pub fn $name(op: Compare, a: $bits, b: $bits) -> bool {
            let (x, y) = ($float(a), $float(b));
            let nan = x.is_nan() | y.is_nan();
            match op {
                Compare::Eq => x == y,
                Compare::Ne => (x != y) & !nan,
                Compare::Lt => x < y,
                Compare::Le => x <= y,
                Compare::Gt => x > y,
                Compare::Ge => x >= y,
                Compare::Equ => (x == y) | nan,
                Compare::Neu => x != y,
                Compare::Ltu => (x < y) | nan,
                Compare::Leu => (x <= y) | nan,
                Compare::Gtu => (x > y) | nan,
                Compare::Geu => (x >= y) | nan,
                Compare::Num => !nan,
                Compare::Nan => nan,
            }
        }
    };
}

compare!(compare_f32, u32, f32::from_bits);
compare!(compare_f64, u64, f64::from_bits);
compare!(compare_f16, u16, |x| f32::from_bits(f16_to_f32(x)));
compare!(compare_bf16, u16, |x| f32::from_bits(bf16_to_f32(x)));

/// Bits of numbers compare as integers once those of negative numbers are turned over.
macro_rules! choose {
    ($a:ident, $b:ident, $nan:ident, $less:tt, $bits:ty, $signed:ty, $infinity:expr, $canonical:expr) => {{
        const MAGNITUDE: $bits = <$bits>::MAX >> 1;
        let key = |x: $bits| x as $signed ^ ((x as $signed >> (<$bits>::BITS - 1)) & MAGNITUDE as $signed);
        let (a_nan, b_nan) = ($a & MAGNITUDE > $infinity, $b & MAGNITUDE > $infinity);
        let number = if key($a) $less key($b) { $a } else { $b };
        let one = if a_nan { $b } else if b_nan { $a } else { number };
        if (a_nan & b_nan) | ($nan & (a_nan | b_nan)) { $canonical($b) } else { one }
    }};
}

macro_rules! min_max {
    ($min:ident, $max:ident, $bits:ty, $signed:ty, $infinity:expr, $nan:expr) => {
        /// A NaN loses against a number, unless `nan` (`.NaN`) makes it the result; -0 is less than +0.
        #[inline(always)]
        pub fn $min(a: $bits, b: $bits, nan: bool) -> $bits {
            choose!(a, b, nan, <, $bits, $signed, $infinity, $nan)
        }

        /// As the minimum, of the other end.
        #[inline(always)]
        pub fn $max(a: $bits, b: $bits, nan: bool) -> $bits {
            choose!(a, b, nan, >, $bits, $signed, $infinity, $nan)
        }
    };
}

min_max!(min_f32, max_f32, u32, i32, 0x7f80_0000, |_| NAN_F32);
// Of two NaNs the second passes, made quiet.
min_max!(min_f64, max_f64, u64, i64, 0x7ff0_0000_0000_0000, |b| b | QUIET_F64);
min_max!(min_f16, max_f16, u16, i16, 0x7c00, |_| NAN_F16);
min_max!(min_bf16, max_bf16, u16, i16, 0x7f80, |_| NAN_BF16);

macro_rules! xorsign {
    ($name:ident, $of:ident, $bits:ty, $infinity:expr) => {
        /// `.xorsign.abs`: of the magnitudes, with the exclusive or of the signs.
        #[inline(always)]
        pub fn $name(a: $bits, b: $bits, nan: bool) -> $bits {
            const SIGN: $bits = 1 << (<$bits>::BITS - 1);
            let magnitude = $of(a & !SIGN, b & !SIGN, nan);
            if magnitude > $infinity { magnitude } else { magnitude | ((a ^ b) & SIGN) }
        }
    };
}

xorsign!(min_xorsign_f32, min_f32, u32, 0x7f80_0000);
xorsign!(max_xorsign_f32, max_f32, u32, 0x7f80_0000);
xorsign!(min_xorsign_f16, min_f16, u16, 0x7c00);
xorsign!(max_xorsign_f16, max_f16, u16, 0x7c00);
xorsign!(min_xorsign_bf16, min_bf16, u16, 0x7f80);
xorsign!(max_xorsign_bf16, max_bf16, u16, 0x7f80);

/// The sign of `a` and the magnitude of `b`, as PTX orders them.
#[inline(always)]
pub fn copysign_f32(a: u32, b: u32) -> u32 {
    (a & 0x8000_0000) | (b & 0x7fff_ffff)
}

#[inline(always)]
pub fn copysign_f64(a: u64, b: u64) -> u64 {
    (a & 0x8000_0000_0000_0000) | (b & 0x7fff_ffff_ffff_ffff)
}

macro_rules! testp {
    ($name:ident, $bits:ty, $float:ty) => {
        #[inline(always)]
        pub fn $name(class: Class, a: $bits) -> bool {
            let x = <$float>::from_bits(a);
            match class {
                Class::Finite => x.is_finite(),
                Class::Infinite => x.is_infinite(),
                Class::Number => !x.is_nan(),
                Class::NotANumber => x.is_nan(),
                Class::Normal => x.is_normal() || x == 0.0,
                Class::Subnormal => x.is_subnormal(),
            }
        }
    };
}

testp!(testp_f32, u32, f32);
testp!(testp_f64, u64, f64);
