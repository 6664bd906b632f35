//! Integer and bit operations on one lane, and those with a carry.

use std::marker::PhantomData;

use super::lanes::{Binary, Compare, Lane, Ternary, Unary, handlers, operations};
use crate::emulator::code::{Flow, Handler, Instr, LANES};
use crate::emulator::warp::Cx;

/// What the operations need of an integer type.
pub(crate) trait Int: Lane + Ord {
    const BITS: u32;
    const SIGNED: bool;
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn mul_high(self, other: Self) -> Self;
    fn add_sat(self, other: Self) -> Self;
    fn sub_sat(self, other: Self) -> Self;
    /// The hardware's results where division is undefined: all ones for a divisor of zero.
    fn div(self, other: Self) -> Self;
    fn rem(self, other: Self) -> Self;
    fn abs(self) -> Self;
    fn and(self, other: Self) -> Self;
    fn or(self, other: Self) -> Self;
    fn xor(self, other: Self) -> Self;
    fn not(self) -> Self;
    fn is_zero(self) -> bool;
    fn from_bool(value: bool) -> Self;
    /// Shifts by more than the width give zero, or the sign.
    fn shl(self, by: u32) -> Self;
    fn shr(self, by: u32) -> Self;
    fn popc(self) -> u32;
    fn clz(self) -> u32;
    fn brev(self) -> Self;
    fn to_u64(self) -> u64;
    fn from_u64(value: u64) -> Self;
}

macro_rules! int {
    ($($T:ident $wide:ident $signed:literal;)*) => {$(
        impl Int for $T {
            const BITS: u32 = $T::BITS;
            const SIGNED: bool = $signed;
            #[inline(always)]
            fn add(self, other: Self) -> Self { self.wrapping_add(other) }
            #[inline(always)]
            fn sub(self, other: Self) -> Self { self.wrapping_sub(other) }
            #[inline(always)]
            fn mul(self, other: Self) -> Self { self.wrapping_mul(other) }
            #[inline(always)]
            fn mul_high(self, other: Self) -> Self { (($wide::from(self) * $wide::from(other)) >> $T::BITS) as $T }
            #[inline(always)]
            fn add_sat(self, other: Self) -> Self { self.saturating_add(other) }
            #[inline(always)]
            fn sub_sat(self, other: Self) -> Self { self.saturating_sub(other) }
            #[inline(always)]
            fn div(self, other: Self) -> Self {
                if other == 0 { !0 } else { self.wrapping_div(other) }
            }
            #[inline(always)]
            fn rem(self, other: Self) -> Self {
                if other == 0 { self } else { self.wrapping_rem(other) }
            }
            #[allow(unused_comparisons)]
            #[inline(always)]
            fn abs(self) -> Self { if self < 0 { (0 as $T).wrapping_sub(self) } else { self } }
            #[inline(always)]
            fn and(self, other: Self) -> Self { self & other }
            #[inline(always)]
            fn or(self, other: Self) -> Self { self | other }
            #[inline(always)]
            fn xor(self, other: Self) -> Self { self ^ other }
            #[inline(always)]
            fn not(self) -> Self { !self }
            #[inline(always)]
            fn is_zero(self) -> bool { self == 0 }
            #[inline(always)]
            fn from_bool(value: bool) -> Self { value as $T }
            #[inline(always)]
            fn shl(self, by: u32) -> Self { if by < $T::BITS { self << (by & ($T::BITS - 1)) } else { 0 } }
            #[inline(always)]
            fn shr(self, by: u32) -> Self {
                if $signed {
                    self >> (if by < $T::BITS { by } else { $T::BITS - 1 } & ($T::BITS - 1))
                } else if by < $T::BITS {
                    self >> (by & ($T::BITS - 1))
                } else {
                    0
                }
            }
            #[inline(always)]
            fn popc(self) -> u32 { self.count_ones() }
            #[inline(always)]
            fn clz(self) -> u32 { self.leading_zeros() }
            #[inline(always)]
            fn brev(self) -> Self { self.reverse_bits() }
            #[inline(always)]
            fn to_u64(self) -> u64 { self as u64 }
            #[inline(always)]
            fn from_u64(value: u64) -> Self { value as $T }
        }
    )*};
}

int! {
    u16 u32 false;
    i16 i32 true;
    u32 u64 false;
    i32 i64 true;
    u64 u128 false;
    i64 i128 true;
}

/// Define operations that are generic over their integer type.
macro_rules! generic_unary {
    ($($name:ident: |$a:ident| -> $D:ty { $body:expr })*) => {$(
        pub(crate) struct $name<T>(PhantomData<T>);
        impl<T: Int> Unary for $name<T> {
            type A = T;
            type D = $D;
            #[inline(always)]
            fn op($a: T) -> $D { $body }
        }
    )*};
}

macro_rules! generic_binary {
    ($($name:ident: |$a:ident, $b:ident: $B:ty| -> $D:ty { $body:expr })*) => {$(
        pub(crate) struct $name<T>(PhantomData<T>);
        impl<T: Int> Binary for $name<T> {
            type A = T;
            type B = $B;
            type D = $D;
            #[inline(always)]
            fn op($a: T, $b: $B) -> $D { $body }
        }
    )*};
}

macro_rules! generic_ternary {
    ($($name:ident: |$a:ident, $b:ident, $c:ident| { $body:expr })*) => {$(
        pub(crate) struct $name<T>(PhantomData<T>);
        impl<T: Int> Ternary for $name<T> {
            type A = T;
            type B = T;
            type C = T;
            type D = T;
            #[inline(always)]
            fn op($a: T, $b: T, $c: T) -> T { $body }
        }
    )*};
}

macro_rules! comparisons {
    ($($name:ident: |$a:ident, $b:ident| $body:expr;)*) => {$(
        pub(crate) struct $name<T>(PhantomData<T>);
        impl<T: Int> Compare for $name<T> {
            type A = T;
            #[inline(always)]
            fn op($a: T, $b: T) -> bool { $body }
        }
    )*};
}

generic_unary! {
    Neg: |a| -> T { T::from_u64(0).sub(a) }
    Abs: |a| -> T { a.abs() }
    Not: |a| -> T { a.not() }
    Cnot: |a| -> T { T::from_bool(a.is_zero()) }
    Popc: |a| -> u32 { a.popc() }
    Clz: |a| -> u32 { a.clz() }
    Brev: |a| -> T { a.brev() }
    Bfind: |a| -> u32 { bfind(a) }
    BfindShift: |a| -> u32 { match bfind(a) { u32::MAX => u32::MAX, at => T::BITS - 1 - at } }
}

generic_binary! {
    Add: |a, b: T| -> T { a.add(b) }
    Sub: |a, b: T| -> T { a.sub(b) }
    Mul: |a, b: T| -> T { a.mul(b) }
    MulHigh: |a, b: T| -> T { a.mul_high(b) }
    AddSat: |a, b: T| -> T { a.add_sat(b) }
    SubSat: |a, b: T| -> T { a.sub_sat(b) }
    Div: |a, b: T| -> T { a.div(b) }
    Rem: |a, b: T| -> T { a.rem(b) }
    Min: |a, b: T| -> T { if a < b { a } else { b } }
    Max: |a, b: T| -> T { if a > b { a } else { b } }
    And: |a, b: T| -> T { a.and(b) }
    Or: |a, b: T| -> T { a.or(b) }
    Xor: |a, b: T| -> T { a.xor(b) }
    Shl: |a, b: u32| -> T { a.shl(b) }
    Shr: |a, b: u32| -> T { a.shr(b) }
}

generic_ternary! {
    Mad: |a, b, c| { a.mul(b).add(c) }
    MadHigh: |a, b, c| { a.mul_high(b).add(c) }
    MadHighSat: |a, b, c| { a.mul_high(b).add_sat(c) }
    Sad: |a, b, c| { c.add(if a > b { a.sub(b) } else { b.sub(a) }) }
}

comparisons! {
    Eq: |a, b| a == b;
    Ne: |a, b| a != b;
    Lt: |a, b| a < b;
    Le: |a, b| a <= b;
    Gt: |a, b| a > b;
    Ge: |a, b| a >= b;
}

operations! {
    Widen: (a: u32) -> u64 { u64::from(a) }
    Narrow: (a: u32) -> u16 { a as u16 }
    LowWord: (a: u64) -> u32 { a as u32 }
}

/// Position of the highest bit that is not the sign's; all ones when there is none.
#[inline(always)]
fn bfind<T: Int>(a: T) -> u32 {
    let bits = if T::SIGNED && a < T::from_u64(0) { a.not() } else { a };
    if bits.is_zero() { u32::MAX } else { T::BITS - 1 - bits.clz() }
}

operations! {
    MinRelu: (a: i32, b: i32) -> i32 { a.min(b).max(0) }
    MaxRelu: (a: i32, b: i32) -> i32 { a.max(b).max(0) }
    MinReluHalves: (a: u32, b: u32) -> u32 { halves(a, b, |x, y| (x as i16).min(y as i16).max(0) as u16) }
    MaxReluHalves: (a: u32, b: u32) -> u32 { halves(a, b, |x, y| (x as i16).max(y as i16).max(0) as u16) }
    AddHalves: (a: u32, b: u32) -> u32 { halves(a, b, u16::wrapping_add) }
    MinHalvesU: (a: u32, b: u32) -> u32 { halves(a, b, |x, y| x.min(y)) }
    MaxHalvesU: (a: u32, b: u32) -> u32 { halves(a, b, |x, y| x.max(y)) }
    MinHalvesS: (a: u32, b: u32) -> u32 { halves(a, b, |x, y| (x as i16).min(y as i16) as u16) }
    MaxHalvesS: (a: u32, b: u32) -> u32 { halves(a, b, |x, y| (x as i16).max(y as i16) as u16) }
    MulWideU16: (a: u16, b: u16) -> u32 { u32::from(a) * u32::from(b) }
    MulWideS16: (a: i16, b: i16) -> i32 { i32::from(a) * i32::from(b) }
    MulWideU32: (a: u32, b: u32) -> u64 { u64::from(a) * u64::from(b) }
    MulWideS32: (a: i32, b: i32) -> i64 { i64::from(a) * i64::from(b) }
    Mul24LowU: (a: u32, b: u32) -> u32 { (u64::from(a & 0xff_ffff) * u64::from(b & 0xff_ffff)) as u32 }
    Mul24LowS: (a: u32, b: u32) -> u32 { (sign24(a) * sign24(b)) as u32 }
    Mul24HighU: (a: u32, b: u32) -> u32 { ((u64::from(a & 0xff_ffff) * u64::from(b & 0xff_ffff)) >> 16) as u32 }
    Mul24HighS: (a: u32, b: u32) -> u32 { ((sign24(a) * sign24(b)) >> 16) as u32 }
    BmskClamp: (a: u32, b: u32) -> u32 { mask_bits(a.min(32), b.min(32)) }
    BmskWrap: (a: u32, b: u32) -> u32 { mask_bits(a & 31, b & 31) }
    SzextClampS: (a: u32, b: u32) -> u32 { extend(a, b.min(32), true) }
    SzextWrapS: (a: u32, b: u32) -> u32 { extend(a, b & 31, true) }
    SzextClampU: (a: u32, b: u32) -> u32 { extend(a, b.min(32), false) }
    SzextWrapU: (a: u32, b: u32) -> u32 { extend(a, b & 31, false) }
}

operations! {
    MadWideU16: (a: u16, b: u16, c: u32) -> u32 { (u32::from(a) * u32::from(b)).wrapping_add(c) }
    MadWideS16: (a: i16, b: i16, c: i32) -> i32 { (i32::from(a) * i32::from(b)).wrapping_add(c) }
    MadWideU32: (a: u32, b: u32, c: u64) -> u64 { (u64::from(a) * u64::from(b)).wrapping_add(c) }
    MadWideS32: (a: i32, b: i32, c: i64) -> i64 { (i64::from(a) * i64::from(b)).wrapping_add(c) }
    Mad24LowU: (a: u32, b: u32, c: u32) -> u32 { ((u64::from(a & 0xff_ffff) * u64::from(b & 0xff_ffff)) as u32).wrapping_add(c) }
    Mad24LowS: (a: u32, b: u32, c: u32) -> u32 { ((sign24(a) * sign24(b)) as u32).wrapping_add(c) }
    ShfLeftWrap: (a: u32, b: u32, c: u32) -> u32 { funnel(a, b, c & 31, true) }
    ShfLeftClamp: (a: u32, b: u32, c: u32) -> u32 { funnel(a, b, c.min(32), true) }
    ShfRightWrap: (a: u32, b: u32, c: u32) -> u32 { funnel(a, b, c & 31, false) }
    ShfRightClamp: (a: u32, b: u32, c: u32) -> u32 { funnel(a, b, c.min(32), false) }
    BfeU32: (a: u32, b: u32, c: u32) -> u32 { extract(u64::from(a), b, c, 32, false) as u32 }
    BfeS32: (a: u32, b: u32, c: u32) -> u32 { extract(u64::from(a), b, c, 32, true) as u32 }
    BfeU64: (a: u64, b: u32, c: u32) -> u64 { extract(a, b, c, 64, false) }
    BfeS64: (a: u64, b: u32, c: u32) -> u64 { extract(a, b, c, 64, true) }
    Dp4aUU: (a: u32, b: u32, c: u32) -> u32 { dp4(a, b, c, false, false) }
    Dp4aUS: (a: u32, b: u32, c: u32) -> u32 { dp4(a, b, c, false, true) }
    Dp4aSU: (a: u32, b: u32, c: u32) -> u32 { dp4(a, b, c, true, false) }
    Dp4aSS: (a: u32, b: u32, c: u32) -> u32 { dp4(a, b, c, true, true) }
    PrmtDefault: (a: u32, b: u32, c: u32) -> u32 { permute(a, b, c) }
    PrmtF4e: (a: u32, b: u32, c: u32) -> u32 { permute(a, b, [0x3210, 0x4321, 0x5432, 0x6543][(c & 3) as usize]) }
    PrmtB4e: (a: u32, b: u32, c: u32) -> u32 { permute(a, b, [0x5670, 0x6701, 0x7012, 0x0123][(c & 3) as usize]) }
    PrmtRc8: (a: u32, b: u32, c: u32) -> u32 { permute(a, b, [0x0000, 0x1111, 0x2222, 0x3333][(c & 3) as usize]) }
    PrmtEcl: (a: u32, b: u32, c: u32) -> u32 { permute(a, b, [0x3210, 0x3211, 0x3222, 0x3333][(c & 3) as usize]) }
    PrmtEcr: (a: u32, b: u32, c: u32) -> u32 { permute(a, b, [0x0000, 0x1110, 0x2210, 0x3210][(c & 3) as usize]) }
    PrmtRc16: (a: u32, b: u32, c: u32) -> u32 { permute(a, b, [0x1010, 0x3232, 0x1010, 0x3232][(c & 3) as usize]) }
    Fns: (a: u32, b: u32, c: u32) -> u32 { find_nth_set(a, b, c as i32) }
    Mad24HighU: (a: u32, b: u32, c: u32) -> u32 { (((u64::from(a & 0xff_ffff) * u64::from(b & 0xff_ffff)) >> 16) as u32).wrapping_add(c) }
    Mad24HighS: (a: u32, b: u32, c: u32) -> u32 { (((sign24(a) * sign24(b)) >> 16) as u32).wrapping_add(c) }
    Mad24HighSat: (a: u32, b: u32, c: u32) -> u32 { (((sign24(a) * sign24(b)) >> 16) as i32).saturating_add(c as i32) as u32 }
    SlctU16: (a: u16, b: u16, c: i32) -> u16 { if c >= 0 { a } else { b } }
    SlctF16: (a: u16, b: u16, c: f32) -> u16 { if c >= 0.0 { a } else { b } }
    SlctU32: (a: u32, b: u32, c: i32) -> u32 { if c >= 0 { a } else { b } }
    SlctU64: (a: u64, b: u64, c: i32) -> u64 { if c >= 0 { a } else { b } }
    SlctF32: (a: u32, b: u32, c: f32) -> u32 { if c >= 0.0 { a } else { b } }
    SlctF64: (a: u64, b: u64, c: f32) -> u64 { if c >= 0.0 { a } else { b } }
    SlctFtz16: (a: u16, b: u16, c: f32) -> u16 { if c > -f32::MIN_POSITIVE { a } else { b } }
    SlctFtz32: (a: u32, b: u32, c: f32) -> u32 { if c > -f32::MIN_POSITIVE { a } else { b } }
    SlctFtz64: (a: u64, b: u64, c: f32) -> u64 { if c > -f32::MIN_POSITIVE { a } else { b } }
}

#[inline(always)]
fn halves(a: u32, b: u32, f: impl Fn(u16, u16) -> u16) -> u32 {
    u32::from(f(a as u16, b as u16)) | u32::from(f((a >> 16) as u16, (b >> 16) as u16)) << 16
}

#[inline(always)]
fn sign24(value: u32) -> i64 {
    i64::from((value << 8) as i32 >> 8)
}

#[inline(always)]
fn mask_bits(at: u32, width: u32) -> u32 {
    let ones = if width >= 32 { u64::from(u32::MAX) } else { (1u64 << width) - 1 };
    (ones << at) as u32
}

#[inline(always)]
fn extend(value: u32, width: u32, signed: bool) -> u32 {
    match width {
        0 => 0,
        32.. => value,
        _ if signed => ((value << (32 - width)) as i32 >> (32 - width)) as u32,
        _ => value & ((1 << width) - 1),
    }
}

#[inline(always)]
fn funnel(low: u32, high: u32, by: u32, left: bool) -> u32 {
    let both = u64::from(high) << 32 | u64::from(low);
    if left { ((both << by) >> 32) as u32 } else { (both >> by) as u32 }
}

#[inline(always)]
fn extract(value: u64, at: u32, width: u32, bits: u32, signed: bool) -> u64 {
    let (at, width) = (at & 0xff, width & 0xff);
    if width == 0 {
        return 0;
    }
    // The field may reach beyond the value: the sign, or zeros, stand there.
    let sign_at = (at + width - 1).min(bits - 1);
    let fill = signed && value >> sign_at & 1 != 0;
    let field = if at < bits { value >> at } else { 0 };
    let kept = width.min(bits.saturating_sub(at));
    let ones = |n: u32| if n >= 64 { u64::MAX } else { (1u64 << n) - 1 };
    let field = field & ones(kept);
    if fill { (field | !ones(kept)) & ones(bits) } else { field }
}

#[inline(always)]
pub(crate) fn insert(a: u64, b: u64, at: u32, width: u32, bits: u32) -> u64 {
    let (at, width) = (at & 0xff, width & 0xff);
    if at >= bits || width == 0 {
        return b;
    }
    let width = width.min(bits - at);
    let ones = if width >= 64 { u64::MAX } else { (1u64 << width) - 1 };
    (b & !(ones << at)) | ((a & ones) << at)
}

#[inline(always)]
fn dp4(a: u32, b: u32, c: u32, a_signed: bool, b_signed: bool) -> u32 {
    let part = |v: u32, k: u32, signed: bool| {
        let byte = (v >> (8 * k)) as u8;
        if signed { i32::from(byte as i8) } else { i32::from(byte) }
    };
    (0..4).fold(c, |sum, k| sum.wrapping_add((part(a, k, a_signed) * part(b, k, b_signed)) as u32))
}

/// `dp2a`: two 16-bit values of `a` with two bytes of `b`, the low or the high pair.
#[inline(always)]
pub(crate) fn dp2(a: u32, b: u32, c: u32, a_signed: bool, b_signed: bool, high: bool) -> u32 {
    let b = if high { b >> 16 } else { b };
    (0..2).fold(c, |sum, k| {
        let (x, y) = ((a >> (16 * k)) as u16, (b >> (8 * k)) as u8);
        let x = if a_signed { i32::from(x as i16) } else { i32::from(x) };
        let y = if b_signed { i32::from(y as i8) } else { i32::from(y) };
        sum.wrapping_add((x * y) as u32)
    })
}

#[inline(always)]
fn permute(a: u32, b: u32, selector: u32) -> u32 {
    let bytes = u64::from(b) << 32 | u64::from(a);
    let mut result = 0;
    for k in 0..4 {
        let choice = selector >> (4 * k);
        let byte = (bytes >> (8 * (choice & 7))) as u8;
        let byte = if choice & 8 != 0 { ((byte as i8) >> 7) as u8 } else { byte };
        result |= u32::from(byte) << (8 * k);
    }
    result
}

/// Position of the n-th set bit of `mask` from `base`, upward for positive n.
fn find_nth_set(mask: u32, base: u32, n: i32) -> u32 {
    let base = base & 31;
    if n == 0 {
        return if mask >> base & 1 != 0 { base } else { u32::MAX };
    }
    let mut left = n.unsigned_abs();
    let mut at = base as i32;
    while (0..32).contains(&at) {
        if mask >> at & 1 != 0 {
            left -= 1;
            if left == 0 {
                return at as u32;
            }
        }
        at += n.signum();
    }
    u32::MAX
}

/// Flags of instructions with a carry, in `x`; the carry predicate is at the top half of `x`.
pub(crate) const CARRY_IN: u64 = 1;
pub(crate) const CARRY_OUT: u64 = 2;
pub(crate) const CARRY_SUB: u64 = 4;
pub(crate) const CARRY_MAD_LOW: u64 = 8;
pub(crate) const CARRY_MAD_HIGH: u64 = 16;

/// `add`, `sub` and `mad` with a carry or borrow in or out.
#[inline(always)]
unsafe fn carry_body<T: Int>(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    let flag = (i.x >> 32) as u32;
    // SAFETY: the operands are rows of this type, and the flag is a predicate.
    unsafe {
        let (a, b) = (cx.get::<T>(i.a), cx.get::<T>(i.b));
        let carry = if i.x & CARRY_IN != 0 { cx.pred(flag) } else { 0 };
        let c = if i.x & (CARRY_MAD_LOW | CARRY_MAD_HIGH) != 0 { cx.get::<T>(i.c) } else { a };
        let mask = if T::BITS == 64 { u64::MAX } else { (1u64 << T::BITS) - 1 };
        let mut d = [T::default(); LANES];
        let mut out = 0u32;
        for lane in 0..LANES {
            let (mut x, mut y) = (a[lane].to_u64() & mask, b[lane].to_u64() & mask);
            if i.x & CARRY_MAD_LOW != 0 {
                (x, y) = (a[lane].mul(b[lane]).to_u64() & mask, c[lane].to_u64() & mask);
            } else if i.x & CARRY_MAD_HIGH != 0 {
                (x, y) = (a[lane].mul_high(b[lane]).to_u64() & mask, c[lane].to_u64() & mask);
            }
            // The hardware subtracts by adding the complement: its carry then says that nothing was borrowed.
            let flag = carry >> lane & 1;
            let (y, extra) = match i.x & CARRY_SUB != 0 {
                true => (!y & mask, if i.x & CARRY_IN != 0 { flag } else { 1 }),
                false => (y, flag),
            };
            let sum = u128::from(x) + u128::from(y) + u128::from(extra);
            d[lane] = T::from_u64(sum as u64);
            out |= u32::from(sum >> T::BITS != 0) << lane;
        }
        cx.put(i.d, m, d);
        if i.x & CARRY_OUT != 0 {
            cx.put_pred(flag, m, out);
        }
    }
    Flow::Next
}

/// `lop3`: any function of three bits, its table in `x`.
#[inline(always)]
unsafe fn lop3_body<T: Lane>(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    // SAFETY: the operands are 32-bit rows.
    unsafe {
        let (a, b, c) = (cx.get::<u32>(i.a), cx.get::<u32>(i.b), cx.get::<u32>(i.c));
        let table = i.x as u32;
        let mut d = [0u32; LANES];
        for k in 0..8 {
            if table >> k & 1 != 0 {
                let flip = |bit: u32| if k >> bit & 1 != 0 { 0 } else { u32::MAX };
                let (fa, fb, fc) = (flip(2), flip(1), flip(0));
                for lane in 0..LANES {
                    d[lane] |= (a[lane] ^ fa) & (b[lane] ^ fb) & (c[lane] ^ fc);
                }
            }
        }
        cx.put(i.d, m, d);
    }
    let _ = T::default();
    Flow::Next
}

/// `bfi`: four operands; the width is the row at `x`.
#[inline(always)]
unsafe fn bfi_body<T: Int>(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    // SAFETY: the operands are rows of this type and two 32-bit rows.
    unsafe {
        let (a, b) = (cx.get::<T>(i.a), cx.get::<T>(i.b));
        let (at, width) = (cx.get::<u32>(i.c), cx.get::<u32>(i.x as u32));
        let mut d = [T::default(); LANES];
        for lane in 0..LANES {
            d[lane] = T::from_u64(insert(a[lane].to_u64(), b[lane].to_u64(), at[lane], width[lane], T::BITS));
        }
        cx.put(i.d, m, d);
    }
    Flow::Next
}

/// `dp2a`, its signs and half in `x`.
#[inline(always)]
unsafe fn dp2a_body<T: Lane>(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    // SAFETY: the operands are 32-bit rows.
    unsafe {
        let (a, b, c) = (cx.get::<u32>(i.a), cx.get::<u32>(i.b), cx.get::<u32>(i.c));
        let mut d = [0u32; LANES];
        for lane in 0..LANES {
            d[lane] = dp2(a[lane], b[lane], c[lane], i.x & 1 != 0, i.x & 2 != 0, i.x & 4 != 0);
        }
        cx.put(i.d, m, d);
    }
    let _ = T::default();
    Flow::Next
}

handlers! {
    carry = carry_body<T: Int>;
    lop3 = lop3_body<T: Lane>;
    bfi = bfi_body<T: Int>;
    dp2a = dp2a_body<T: Lane>;
}

/// Types of a value and of a part of it.
pub(crate) trait Parts: 'static {
    type Whole: Int;
    type Part: Int;
}

pub(crate) struct PartOf<W, P>(PhantomData<(W, P)>);

impl<W: Int, P: Int> Parts for PartOf<W, P> {
    type Whole = W;
    type Part = P;
}

/// One part of a value: what is above bit `x`.
#[inline(always)]
unsafe fn part_body<O: Parts>(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    // SAFETY: the operands are rows of these types.
    unsafe {
        let a = cx.get::<O::Whole>(i.a);
        let mut d = [O::Part::default(); LANES];
        for lane in 0..LANES {
            d[lane] = O::Part::from_u64(a[lane].to_u64() >> i.x);
        }
        cx.put(i.d, m, d);
    }
    Flow::Next
}

/// A byte of a value, in a 16-bit register.
#[inline(always)]
unsafe fn byte_body<T: Int>(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    // SAFETY: the operands are rows of these types.
    unsafe {
        let a = cx.get::<T>(i.a);
        let mut d = [0u16; LANES];
        for lane in 0..LANES {
            d[lane] = (a[lane].to_u64() >> i.x) as u16 & 0xff;
        }
        cx.put(i.d, m, d);
    }
    Flow::Next
}

/// A value from its parts, the lowest first; their rows are the list `x`.
#[inline(always)]
unsafe fn join_body<O: Parts>(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    let start = i.x as usize;
    let count = cx.grid.code().lists[start] as usize;
    let mut whole = [0u64; LANES];
    let ones = (1u64 << O::Part::BITS.min(63)) - 1;
    for k in 0..count {
        // SAFETY: the list holds rows of this type.
        let part = unsafe { cx.get::<O::Part>(cx.grid.code().lists[start + 1 + k]) };
        for lane in 0..LANES {
            whole[lane] |= (part[lane].to_u64() & ones) << (k as u32 * O::Part::BITS);
        }
    }
    // SAFETY: the target is a row of this type.
    unsafe { cx.put(i.d, m, whole.map(O::Whole::from_u64)) };
    Flow::Next
}

#[inline(always)]
unsafe fn join_bytes_body<T: Int>(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    let start = i.x as usize;
    let count = cx.grid.code().lists[start] as usize;
    let mut whole = [0u64; LANES];
    for k in 0..count {
        // SAFETY: the list holds 16-bit rows.
        let part = unsafe { cx.get::<u16>(cx.grid.code().lists[start + 1 + k]) };
        for lane in 0..LANES {
            whole[lane] |= u64::from(part[lane] & 0xff) << (8 * k);
        }
    }
    // SAFETY: the target is a row of this type.
    unsafe { cx.put(i.d, m, whole.map(T::from_u64)) };
    Flow::Next
}

handlers! {
    part_of = part_body<O: Parts>;
    part_byte = byte_body<T: Int>;
    join_of = join_body<O: Parts>;
    join_bytes = join_bytes_body<T: Int>;
}

pub(crate) fn part<W: Int, P: Int>() -> Handler {
    part_of::<PartOf<W, P>>()
}

pub(crate) fn join<P: Int, W: Int>() -> Handler {
    join_of::<PartOf<W, P>>()
}

/// Logic on predicates: `x` is the operation, `d`, `a` and `b` are predicates.
pub(crate) unsafe fn pred_logic(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    // SAFETY: the operands are predicates.
    unsafe {
        let (a, b) = (cx.pred(i.a), cx.pred(i.b));
        let value = match i.x {
            0 => a & b,
            1 => a | b,
            2 => a ^ b,
            3 => !a,
            _ => a,
        };
        cx.put_pred(i.d, m, value);
    }
    Flow::Next
}
