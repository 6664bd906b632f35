//! `cvt` on one lane: between integers, floats and packed formats.
//!
//! `number` converts between any two types; handlers for common pairs are the same function with constant types.

use std::marker::PhantomData;

use super::float::{Modal, Mode, modal_operations};
use super::integer::Int as Bits;
use super::lanes::{Lane, Row, Unary, handlers};
use crate::emulator::code::{Flow, Instr, LANES};
use crate::emulator::float::{self, Int, Round};
use crate::emulator::warp::Cx;

/// A type `cvt` converts from or to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    F16,
    Bf16,
    F32,
    F64,
}

impl Kind {
    const ALL: [Kind; 12] = [
        Kind::U8,
        Kind::U16,
        Kind::U32,
        Kind::U64,
        Kind::S8,
        Kind::S16,
        Kind::S32,
        Kind::S64,
        Kind::F16,
        Kind::Bf16,
        Kind::F32,
        Kind::F64,
    ];

    pub fn parse(word: &str) -> Option<Kind> {
        Some(match word {
            "u8" | "b8" => Kind::U8,
            "u16" | "b16" => Kind::U16,
            "u32" | "b32" => Kind::U32,
            "u64" | "b64" => Kind::U64,
            "s8" => Kind::S8,
            "s16" => Kind::S16,
            "s32" => Kind::S32,
            "s64" => Kind::S64,
            "f16" => Kind::F16,
            "bf16" => Kind::Bf16,
            "f32" => Kind::F32,
            "f64" => Kind::F64,
            _ => return None,
        })
    }

    pub const fn of(number: u8) -> Kind {
        Kind::ALL[number as usize % Kind::ALL.len()]
    }

    /// The integer type, where it is one.
    pub const fn int(self) -> Option<Int> {
        Some(match self {
            Kind::U8 => Int::U8,
            Kind::U16 => Int::U16,
            Kind::U32 => Int::U32,
            Kind::U64 => Int::U64,
            Kind::S8 => Int::S8,
            Kind::S16 => Int::S16,
            Kind::S32 => Int::S32,
            Kind::S64 => Int::S64,
            _ => return None,
        })
    }

    pub const fn bits(self) -> u32 {
        match self {
            Kind::F16 | Kind::Bf16 => 16,
            Kind::F32 => 32,
            Kind::F64 => 64,
            Kind::U8 | Kind::S8 => 8,
            Kind::U16 | Kind::S16 => 16,
            Kind::U32 | Kind::S32 => 32,
            Kind::U64 | Kind::S64 => 64,
        }
    }
}

/// Convert the lowest bits of `bits`; an integer result is extended to 64 bits by its sign.
#[inline(always)]
pub(crate) fn number(bits: u64, from: Kind, to: Kind, mode: Mode) -> u64 {
    match (from.int(), to.int()) {
        (Some(from), Some(to)) => between_integers(from.extend(bits), from, to, mode.sat),
        (Some(from), None) => saturate(from_integer(from.extend(bits), from.signed(), to, mode.round), to, mode),
        (None, Some(to)) => to_integer(bits, from, to, mode),
        (None, None) => saturate(between_floats(bits, from, to, mode), to, mode),
    }
}

#[inline(always)]
fn to_integer(bits: u64, from: Kind, to: Int, mode: Mode) -> u64 {
    let single = flush(bits as u32, mode);
    match (from, to) {
        (Kind::F32, Int::S32) => s32_from_f32(integral_f32(single, mode.round)) as u64,
        (Kind::F32, Int::U32) => u32_from_f32(integral_f32(single, mode.round)).into(),
        (Kind::F64, Int::S32) => s32_from_f64(integral_f64(bits, mode.round)) as u64,
        (Kind::F16, _) => float::f16_to_int(bits as u16, to, mode.round),
        (Kind::Bf16, _) => float::bf16_to_int(bits as u16, to, mode.round),
        (Kind::F32, _) => float::f32_to_int(single, to, mode.round),
        _ => float::f64_to_int(bits, to, mode.round),
    }
}

/// The integral value; a cast cuts off a fraction by itself.
#[inline(always)]
fn integral_f32(bits: u32, round: Round) -> f32 {
    f32::from_bits(if round == Round::Zero { bits } else { float::round_int_f32(bits, round) })
}

#[inline(always)]
fn integral_f64(bits: u64, round: Round) -> f64 {
    f64::from_bits(if round == Round::Zero { bits } else { float::round_int_f64(bits, round) })
}

/// Casts as those of `float`, in steps that vectorise, which a saturating cast does not.
macro_rules! cast {
    ($name:ident, $from:ty, $to:ty, $low:expr, $high:expr, $nan:expr) => {
        #[inline(always)]
        fn $name(x: $from) -> $to {
            // All values between these, which are outside, fit when their fraction is cut off.
            let fits = (x > $low) & (x < $high);
            let inside = if fits { x } else { 0.0 };
            // SAFETY: the value is finite and fits.
            let number = unsafe { inside.to_int_unchecked::<$to>() };
            let beyond = if x < 0.0 { <$to>::MIN } else { $nan };
            let beyond = if x > 0.0 { <$to>::MAX } else { beyond };
            if fits { number } else { beyond }
        }
    };
}

// The f32 below -2^31 is -2^31 - 256.
cast!(s32_from_f32, f32, i32, -2147483904.0, 2147483648.0, 0);
cast!(u32_from_f32, f32, u32, -1.0, 4294967296.0, 0);
cast!(s32_from_f64, f64, i32, -2147483649.0, 2147483648.0, i32::MIN);

#[inline(always)]
fn flush(value: u32, mode: Mode) -> u32 {
    if mode.ftz { float::flush_f32(value) } else { value }
}

#[inline(always)]
fn relu(value: u32, mode: Mode) -> u32 {
    if mode.relu { float::relu_f32(value) } else { value }
}

#[inline(always)]
fn between_integers(value: u64, from: Int, to: Int, sat: bool) -> u64 {
    if !sat {
        return to.extend(value);
    }
    let (bits, signed) = (to.bits(), to.signed());
    let least = if signed { i64::MIN >> (64 - bits) } else { 0 };
    let most = u64::MAX >> (64 - bits + u32::from(signed));
    let negative = from.signed() & (value >> 63 != 0);
    if negative { (value as i64).max(least) as u64 } else { value.min(most) }
}

#[inline(always)]
fn from_integer(value: u64, signed: bool, to: Kind, round: Round) -> u64 {
    let value_s = value as i64;
    match (to, signed) {
        (Kind::F16, true) => float::s64_to_f16(value_s, round).into(),
        (Kind::F16, false) => float::u64_to_f16(value, round).into(),
        (Kind::Bf16, true) => float::s64_to_bf16(value_s, round).into(),
        (Kind::Bf16, false) => float::u64_to_bf16(value, round).into(),
        (Kind::F32, true) => float::s64_to_f32(value_s, round).into(),
        (Kind::F32, false) => float::u64_to_f32(value, round).into(),
        (_, true) => float::s64_to_f64(value_s, round),
        (_, false) => float::u64_to_f64(value, round),
    }
}

#[inline(always)]
fn between_floats(bits: u64, from: Kind, to: Kind, mode: Mode) -> u64 {
    let half = bits as u16;
    let single = relu(flush(bits as u32, mode), mode);
    let round = mode.round;
    match (from, to) {
        (Kind::F16, Kind::F16) if mode.integral => float::round_int_f16(half, round).into(),
        (Kind::F16, Kind::F16) => float::canon_f16(half).into(),
        (Kind::F16, Kind::Bf16) => float::f16_to_bf16(half, round).into(),
        (Kind::F16, Kind::F32) => float::f16_to_f32(half).into(),
        (Kind::F16, _) => float::f16_to_f64(half),
        (Kind::Bf16, Kind::Bf16) if mode.integral => float::round_int_bf16(half, round).into(),
        (Kind::Bf16, Kind::Bf16) => float::canon_bf16(half).into(),
        (Kind::Bf16, Kind::F16) => float::bf16_to_f16(half, round).into(),
        (Kind::Bf16, Kind::F32) => flush(float::bf16_to_f32(half), mode).into(),
        (Kind::Bf16, _) => float::bf16_to_f64(half),
        (Kind::F32, Kind::F16) => finite_f16(float::f32_to_f16(single, round), mode).into(),
        (Kind::F32, Kind::Bf16) => finite_bf16(float::f32_to_bf16(single, round), mode).into(),
        (Kind::F32, Kind::F32) if mode.integral => float::round_int_f32(single, round).into(),
        (Kind::F32, Kind::F32) => float::canon_f32(f32::from_bits(single)).into(),
        (Kind::F32, _) if mode.ftz => float::f32_to_f64(float::canon_f32(f32::from_bits(single))),
        (Kind::F32, _) => float::f32_to_f64(single),
        (_, Kind::F16) => float::f64_to_f16(bits, round).into(),
        (_, Kind::Bf16) => float::f64_to_bf16(bits, round).into(),
        (_, Kind::F32) if mode.ftz => float::f64_to_ftz_f32(bits, round).into(),
        (_, Kind::F32) => float::f64_to_f32(bits, round).into(),
        _ if mode.integral => float::round_int_f64(bits, round),
        _ => bits,
    }
}

#[inline(always)]
fn finite_f16(value: u16, mode: Mode) -> u16 {
    if mode.satfinite { float::satfinite_f16(value) } else { value }
}

#[inline(always)]
fn finite_bf16(value: u16, mode: Mode) -> u16 {
    if mode.satfinite { float::satfinite_bf16(value) } else { value }
}

/// `.sat` of a float: into 0..=1.
#[inline(always)]
fn saturate(bits: u64, to: Kind, mode: Mode) -> u64 {
    match to {
        _ if !mode.sat => bits,
        Kind::F16 => float::saturate_f16(bits as u16).into(),
        Kind::Bf16 => float::saturate_bf16(bits as u16).into(),
        Kind::F32 => float::saturate_f32(bits as u32).into(),
        _ => float::saturate_f64(bits),
    }
}

/// A conversion between types known at compile time, each in a register of its width.
pub(crate) struct Fixed<A, D, const FROM: u8, const TO: u8>(PhantomData<(A, D)>);

impl<A: Bits, D: Bits, const FROM: u8, const TO: u8> Modal for Fixed<A, D, FROM, TO> {
    type T = A;
    type D = D;
    const N: usize = 1;
    const FTZ: bool = FROM == Kind::F32 as u8 || TO == Kind::F32 as u8;
    /// To an integer of 32 bits, or to an integral value: casts that vectorise.
    const ROUNDS: bool = FROM >= Kind::F32 as u8 && (TO == Kind::S32 as u8 || TO == Kind::U32 as u8 || FROM == TO);

    #[inline(always)]
    fn op([a, ..]: [A; 3], mode: Mode) -> D {
        D::from_u64(number(a.to_u64(), Kind::of(FROM), Kind::of(TO), mode))
    }
}

/// The lowest bits as an integer type, extended or cut to the width of another register.
pub(crate) struct Resize<A, D, const VIA: u8>(PhantomData<(A, D)>);

impl<A: Bits, D: Bits, const VIA: u8> Unary for Resize<A, D, VIA> {
    type A = A;
    type D = D;
    #[inline(always)]
    fn op(a: A) -> D {
        D::from_u64(number(a.to_u64(), Kind::of(VIA), Kind::of(VIA), Mode::PLAIN))
    }
}

/// Pack what `any` needs into `x`; widths are in bytes.
pub(crate) fn pack_any(mode: Mode, from: Kind, to: Kind, from_bytes: u32, to_bytes: u32) -> u64 {
    mode.pack() | (from as u64) << 16 | (to as u64) << 24 | u64::from(from_bytes) << 32 | u64::from(to_bytes) << 40
}

/// A conversion between any types, in registers of any width.
#[inline(always)]
unsafe fn any_body<T: Lane>(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    let (from, to) = (Kind::of((i.x >> 16) as u8), Kind::of((i.x >> 24) as u8));
    let mode = Mode::unpack(i.x);
    // SAFETY: the widths are those of the registers.
    unsafe {
        let a: Row<u64> = match i.x >> 32 & 0xff {
            2 => cx.get::<u16>(i.a).map(u64::from),
            4 => cx.get::<u32>(i.a).map(u64::from),
            _ => cx.get::<u64>(i.a),
        };
        let mut d = [0u64; LANES];
        for lane in 0..LANES {
            d[lane] = number(a[lane], from, to, mode);
        }
        match i.x >> 40 & 0xff {
            2 => cx.put(i.d, m, d.map(|x| x as u16)),
            4 => cx.put(i.d, m, d.map(|x| x as u32)),
            _ => cx.put(i.d, m, d),
        }
    }
    let _ = T::default();
    Flow::Next
}

handlers! {
    any = any_body<T: Lane>;
}

/// `.relu` of both halves of a result.
#[inline(always)]
fn relu_f16x2(value: u32, mode: Mode) -> u32 {
    if mode.relu { float::each_half(value, float::relu_f16) } else { value }
}

#[inline(always)]
fn relu_bf16x2(value: u32, mode: Mode) -> u32 {
    if mode.relu { float::each_half(value, float::relu_bf16) } else { value }
}

modal_operations! {
    F16x2(u32; 2) -> u32: |[a, b, _], m| {
        let pair = float::f32x2_to_f16x2(relu(a, m), relu(b, m), m.round);
        if m.satfinite { float::each_half(pair, float::satfinite_f16) } else { pair }
    };
    Bf16x2(u32; 2) -> u32: |[a, b, _], m| {
        let pair = float::f32x2_to_bf16x2(relu(a, m), relu(b, m), m.round);
        if m.satfinite { float::each_half(pair, float::satfinite_bf16) } else { pair }
    };
    Tf32(u32; 1) -> u32: |[a, ..], m| float::f32_to_tf32(relu(a, m), m.round, m.satfinite);
    E4m3FromF32(u32; 2) -> u16: |[a, b, _], m| float::f32x2_to_e4m3x2(relu(a, m), relu(b, m));
    E5m2FromF32(u32; 2) -> u16: |[a, b, _], m| float::f32x2_to_e5m2x2(relu(a, m), relu(b, m));
    E4m3FromF16(u32; 1) -> u16: |[a, ..], m| float::f16x2_to_e4m3x2(relu_f16x2(a, m));
    E5m2FromF16(u32; 1) -> u16: |[a, ..], m| float::f16x2_to_e5m2x2(relu_f16x2(a, m));
    E4m3FromBf16(u32; 1) -> u16: |[a, ..], m| float::bf16x2_to_e4m3x2(relu_bf16x2(a, m));
    E5m2FromBf16(u32; 1) -> u16: |[a, ..], m| float::bf16x2_to_e5m2x2(relu_bf16x2(a, m));
    E4m3ToF16(u16; 1) -> u32: |[a, ..], m| relu_f16x2(float::e4m3x2_to_f16x2(a), m);
    E5m2ToF16(u16; 1) -> u32: |[a, ..], m| relu_f16x2(float::e5m2x2_to_f16x2(a), m);
}

/// `cvt.pack`: two integers clamped to fewer bits, the lowest of a third above them.
pub(crate) struct Pack<const BITS: u32, const SIGNED: bool>;

impl<const BITS: u32, const SIGNED: bool> Modal for Pack<BITS, SIGNED> {
    type T = u32;
    type D = u32;
    const N: usize = 3;
    const MODES: bool = false;

    #[inline(always)]
    fn op([a, b, c]: [u32; 3], _: Mode) -> u32 {
        let (low, high) = if SIGNED { (-(1 << (BITS - 1)), (1 << (BITS - 1)) - 1) } else { (0, (1 << BITS) - 1) };
        let clamp = |value: u32| (value as i32).clamp(low, high) as u32 & ((1 << BITS) - 1);
        let above = if BITS < 16 { c << (2 * BITS % 32) } else { 0 };
        above | clamp(a) << BITS | clamp(b)
    }
}
