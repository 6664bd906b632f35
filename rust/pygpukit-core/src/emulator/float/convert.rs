//! `cvt`: between integers and floating point, between float formats, and to integers in a float.
//!
//! A float outside the range of an integer type gives the nearest end of that range. A NaN gives 0, except that with an
//! f64 source or a 64-bit target it gives the target's top bit alone (`0x80000000` for s32), as the PTX ISA says.
//!
//! Modifiers compose from the functions beside these: `.ftz` flushes the f32 operand and the f32 result, `.sat` is
//! `saturate_*` and `.satfinite` `satfinite_*` of the result, and `.relu` may be applied to the source because no
//! conversion changes a sign.

use super::{
    Format, NAN_F32, Round, bf16_to_f32, canon_f32, f16_to_f32, f32_to_bf16, f32_to_f16,
    half::drop_bits,
    is_nan, is_nan_f32, nan_f64, round_pack,
    single::{narrow, narrow_ftz},
};

/// An integer type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Int {
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
}

impl Int {
    pub const fn bits(self) -> u32 {
        match self {
            Int::U8 | Int::S8 => 8,
            Int::U16 | Int::S16 => 16,
            Int::U32 | Int::S32 => 32,
            Int::U64 | Int::S64 => 64,
        }
    }

    pub const fn signed(self) -> bool {
        matches!(self, Int::S8 | Int::S16 | Int::S32 | Int::S64)
    }

    /// The lowest bits of `value` as this type, extended to 64 bits.
    #[inline(always)]
    pub const fn extend(self, value: u64) -> u64 {
        match self {
            Int::U8 => value as u8 as u64,
            Int::U16 => value as u16 as u64,
            Int::U32 => value as u32 as u64,
            Int::U64 | Int::S64 => value,
            Int::S8 => value as i8 as u64,
            Int::S16 => value as i16 as u64,
            Int::S32 => value as i32 as u64,
        }
    }
}

/// Exact; a NaN keeps what it carries and becomes quiet.
#[inline(always)]
pub fn f32_to_f64(a: u32) -> u64 {
    let nan = u64::from(a & 0x8000_0000) << 32 | 0x7ff8_0000_0000_0000 | u64::from(a & 0x007f_ffff) << 29;
    if a & 0x7fff_ffff > 0x7f80_0000 { nan } else { f64::from(f32::from_bits(a)).to_bits() }
}

#[inline(always)]
pub fn f64_to_f32(a: u64, round: Round) -> u32 {
    nan_of_f64(a, narrow(f64::from_bits(a), round))
}

/// A NaN keeps its sign on the way from f64 to f32, as a GPU's does, and the upper bits of its payload.
#[inline(always)]
fn nan_of_f64(a: u64, otherwise: u32) -> u32 {
    let kept = (a >> 32) as u32 & 0x8000_0000 | 0x7fc0_0000 | (a >> 29) as u32 & 0x003f_ffff;
    if is_nan(a) { kept } else { otherwise }
}

/// `cvt.ftz.f32.f64`
#[inline(always)]
pub fn f64_to_ftz_f32(a: u64, round: Round) -> u32 {
    nan_of_f64(a, narrow_ftz(f64::from_bits(a), round))
}

/// The integral value, still a float: `cvt.rni.f32.f32` and its kin.
#[inline(always)]
pub fn round_int_f32(a: u32, round: Round) -> u32 {
    canon_f32(integral_f32(f32::from_bits(a), round))
}

#[inline(always)]
pub fn round_int_f64(a: u64, round: Round) -> u64 {
    nan_f64(integral_f64(f64::from_bits(a), round), a, a, a)
}

#[inline(always)]
pub fn round_int_f16(a: u16, round: Round) -> u16 {
    f32_to_f16(round_int_f32(f16_to_f32(a), round), Round::Nearest)
}

#[inline(always)]
pub fn round_int_bf16(a: u16, round: Round) -> u16 {
    f32_to_bf16(round_int_f32(bf16_to_f32(a), round), Round::Nearest)
}

#[inline(always)]
fn integral_f32(x: f32, round: Round) -> f32 {
    match round {
        Round::Nearest => x.round_ties_even(),
        Round::Zero => x.trunc(),
        Round::Down => x.floor(),
        Round::Up => x.ceil(),
        Round::Away => x.round(),
    }
}

#[inline(always)]
fn integral_f64(x: f64, round: Round) -> f64 {
    match round {
        Round::Nearest => x.round_ties_even(),
        Round::Zero => x.trunc(),
        Round::Down => x.floor(),
        Round::Up => x.ceil(),
        Round::Away => x.round(),
    }
}

macro_rules! clamp {
    ($x:expr, $to:expr) => {
        match $to {
            Int::U8 => $x as u8 as u64,
            Int::U16 => $x as u16 as u64,
            Int::U32 => $x as u32 as u64,
            Int::U64 => $x as u64,
            Int::S8 => $x as i8 as u64,
            Int::S16 => $x as i16 as u64,
            Int::S32 => $x as i32 as u64,
            Int::S64 => $x as i64 as u64,
        }
    };
}

/// The integer, sign- or zero-extended to 64 bits.
#[inline(always)]
pub fn f32_to_int(a: u32, to: Int, round: Round) -> u64 {
    let x = f32::from_bits(a);
    // The cast cuts off a fraction by itself.
    let number = if round == Round::Zero { clamp!(x, to) } else { clamp!(integral_f32(x, round), to) };
    if to.bits() == 64 && x.is_nan() { 1 << 63 } else { number }
}

#[inline(always)]
pub fn f64_to_int(a: u64, to: Int, round: Round) -> u64 {
    let x = f64::from_bits(a);
    let number = if round == Round::Zero { clamp!(x, to) } else { clamp!(integral_f64(x, round), to) };
    if x.is_nan() { to.extend(1 << (to.bits() - 1)) } else { number }
}

#[inline(always)]
pub fn f16_to_int(a: u16, to: Int, round: Round) -> u64 {
    f32_to_int(f16_to_f32(a), to, round)
}

#[inline(always)]
pub fn bf16_to_int(a: u16, to: Int, round: Round) -> u64 {
    f32_to_int(bf16_to_f32(a), to, round)
}

fn from_integer(format: Format, negative: bool, magnitude: u64, round: Round) -> u64 {
    round_pack(format, negative, 0, magnitude.into(), false, round)
}

macro_rules! from_int {
    ($name:ident, $from:ty, $to:ty, $float:ty, $format:expr) => {
        #[inline(always)]
        pub fn $name(value: $from, round: Round) -> $to {
            if round == Round::Nearest {
                (value as $float).to_bits()
            } else {
                #[allow(unused_comparisons)]
                let negative = value < 0;
                let magnitude = if negative { (value as u64).wrapping_neg() } else { value as u64 };
                from_integer($format, negative, magnitude, round) as $to
            }
        }
    };
}

from_int!(s32_to_f32, i32, u32, f32, Format::F32);
from_int!(u32_to_f32, u32, u32, f32, Format::F32);
from_int!(s64_to_f32, i64, u32, f32, Format::F32);
from_int!(u64_to_f32, u64, u32, f32, Format::F32);
from_int!(s64_to_f64, i64, u64, f64, Format::F64);
from_int!(u64_to_f64, u64, u64, f64, Format::F64);

/// Exact.
#[inline(always)]
pub fn s32_to_f64(value: i32) -> u64 {
    f64::from(value).to_bits()
}

#[inline(always)]
pub fn u32_to_f64(value: u32) -> u64 {
    f64::from(value).to_bits()
}

/// Narrower integers are extended first.
#[inline(always)]
pub fn s64_to_f16(value: i64, round: Round) -> u16 {
    // What is far too large stays so, and the rest is exact as an f32.
    f32_to_f16((value.clamp(-(1 << 20), 1 << 20) as f32).to_bits(), round)
}

#[inline(always)]
pub fn u64_to_f16(value: u64, round: Round) -> u16 {
    s64_to_f16(value.min(1 << 20) as i64, round)
}

#[inline(always)]
pub fn s64_to_bf16(value: i64, round: Round) -> u16 {
    if value.unsigned_abs() <= 1 << 24 {
        f32_to_bf16((value as f32).to_bits(), round)
    } else {
        from_integer(Format::BF16, value < 0, value.unsigned_abs(), round) as u16
    }
}

#[inline(always)]
pub fn u64_to_bf16(value: u64, round: Round) -> u16 {
    if value <= 1 << 24 {
        f32_to_bf16((value as f32).to_bits(), round)
    } else {
        from_integer(Format::BF16, false, value, round) as u16
    }
}

/// `cvt.rn.f16x2.f32 d, hi, lo`: the first operand goes to the upper half.
#[inline(always)]
pub fn f32x2_to_f16x2(hi: u32, lo: u32, round: Round) -> u32 {
    u32::from(f32_to_f16(hi, round)) << 16 | u32::from(f32_to_f16(lo, round))
}

#[inline(always)]
pub fn f32x2_to_bf16x2(hi: u32, lo: u32, round: Round) -> u32 {
    u32::from(f32_to_bf16(hi, round)) << 16 | u32::from(f32_to_bf16(lo, round))
}

/// An f32 of ten fraction bits: the lower 13 are zero. Rounding ties away is arithmetic on the bits, in which a NaN may
/// lose what makes it one; `satfinite` moves whatever lies above the largest number down by one.
#[inline(always)]
pub fn f32_to_tf32(a: u32, round: Round, satfinite: bool) -> u32 {
    let nan = if round == Round::Away { a & !0x1fff } else { NAN_F32 & !0x1fff };
    let value = if is_nan_f32(a) { nan } else { drop_bits(a, 13, round) & !0x1fff };
    let above =
        if round == Round::Away { value & 0x7f80_0000 == 0x7f80_0000 } else { value & 0x7fff_ffff == 0x7f80_0000 };
    if satfinite & above { value - 0x2000 } else { value }
}
