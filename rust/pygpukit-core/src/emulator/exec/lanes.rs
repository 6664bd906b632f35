//! Rows and lane loops: operations on one value become handlers over 32 lanes.
//!
//! Every handler exists twice where the machine may have wider vectors: the same body compiled for AVX2 and for the
//! baseline. Which one runs is decided once.

use crate::emulator::code::{FULL, Flow, Instr, LANES};
use crate::emulator::warp::Cx;

/// A value a register row may hold.
pub(crate) trait Lane: Copy + Default + 'static {}

impl Lane for u8 {}
impl Lane for i8 {}
impl Lane for u16 {}
impl Lane for i16 {}
impl Lane for u32 {}
impl Lane for i32 {}
impl Lane for u64 {}
impl Lane for i64 {}
impl Lane for f32 {}
impl Lane for f64 {}

pub(crate) type Row<T> = [T; LANES];

/// May handlers use AVX2 and its companions?
#[cfg(target_arch = "x86_64")]
pub(crate) fn wide_lanes() -> bool {
    use std::sync::LazyLock;
    static WIDE: LazyLock<bool> = LazyLock::new(|| {
        is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("lzcnt")
            && is_x86_feature_detected!("popcnt")
            && is_x86_feature_detected!("f16c")
    });
    #[cfg(test)]
    if BASELINE.get() {
        return false;
    }
    *WIDE
}

#[cfg(test)]
thread_local! {
    /// Take the baseline handlers for what this thread loads.
    pub(crate) static BASELINE: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

impl Cx<'_> {
    /// Read a row.
    ///
    /// # Safety
    /// `offset` is that of a row of `T` in the frame.
    #[inline(always)]
    pub unsafe fn get<T: Lane>(&self, offset: u32) -> Row<T> {
        // SAFETY: the caller's contract; rows are aligned to their elements.
        unsafe { self.frame.add(offset as usize).cast::<Row<T>>().read() }
    }

    /// Write the lanes of a mask.
    ///
    /// # Safety
    /// As `get`.
    #[inline(always)]
    pub unsafe fn put<T: Lane>(&mut self, offset: u32, mask: u32, values: Row<T>) {
        // SAFETY: the caller's contract.
        unsafe {
            let row = self.frame.add(offset as usize).cast::<Row<T>>();
            if mask == FULL {
                row.write(values);
            } else {
                let mut old = row.read();
                for lane in 0..LANES {
                    old[lane] = if mask & (1 << lane) != 0 { values[lane] } else { old[lane] };
                }
                row.write(old);
            }
        }
    }

    /// # Safety
    /// `offset` is that of a predicate in the frame.
    #[inline(always)]
    pub unsafe fn pred(&self, offset: u32) -> u32 {
        // SAFETY: the caller's contract.
        unsafe { self.frame.add(offset as usize).cast::<u32>().read() }
    }

    /// # Safety
    /// As `pred`.
    #[inline(always)]
    pub unsafe fn put_pred(&mut self, offset: u32, mask: u32, value: u32) {
        // SAFETY: the caller's contract.
        unsafe {
            let slot = self.frame.add(offset as usize).cast::<u32>();
            slot.write((slot.read() & !mask) | (value & mask));
        }
    }
}

/// One bit per lane from one byte (0 or 0xff) per lane.
#[inline(always)]
pub(crate) fn gather_bits(bytes: &[u8; LANES]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_movemask_epi8};
        // SAFETY: SSE2 is part of x86-64, and both halves are inside the array.
        unsafe {
            let low = _mm_movemask_epi8(_mm_loadu_si128(bytes.as_ptr().cast::<__m128i>()));
            let high = _mm_movemask_epi8(_mm_loadu_si128(bytes.as_ptr().add(16).cast::<__m128i>()));
            (low as u32) | ((high as u32) << 16)
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let mut bits = 0;
        for (lane, byte) in bytes.iter().enumerate() {
            bits |= u32::from(byte >> 7) << lane;
        }
        bits
    }
}

/// An operation on values of one lane.
pub(crate) trait Unary {
    type A: Lane;
    type D: Lane;
    fn op(a: Self::A) -> Self::D;
}

pub(crate) trait Binary {
    type A: Lane;
    type B: Lane;
    type D: Lane;
    fn op(a: Self::A, b: Self::B) -> Self::D;
}

pub(crate) trait Ternary {
    type A: Lane;
    type B: Lane;
    type C: Lane;
    type D: Lane;
    fn op(a: Self::A, b: Self::B, c: Self::C) -> Self::D;
}

/// A comparison of values of one lane.
pub(crate) trait Compare {
    type A: Lane;
    fn op(a: Self::A, b: Self::A) -> bool;
}

/// Define operations: `Add32: (a: u32, b: u32) -> u32 { a.wrapping_add(b) }`.
macro_rules! operations {
    ($($name:ident: ($a:ident: $A:ty) -> $D:ty $body:block)*) => {$(
        pub(crate) struct $name;
        impl $crate::emulator::exec::lanes::Unary for $name {
            type A = $A;
            type D = $D;
            #[inline(always)]
            fn op($a: $A) -> $D $body
        }
    )*};
    ($($name:ident: ($a:ident: $A:ty, $b:ident: $B:ty) -> $D:ty $body:block)*) => {$(
        pub(crate) struct $name;
        impl $crate::emulator::exec::lanes::Binary for $name {
            type A = $A;
            type B = $B;
            type D = $D;
            #[inline(always)]
            fn op($a: $A, $b: $B) -> $D $body
        }
    )*};
    ($($name:ident: ($a:ident: $A:ty, $b:ident: $B:ty, $c:ident: $C:ty) -> $D:ty $body:block)*) => {$(
        pub(crate) struct $name;
        impl $crate::emulator::exec::lanes::Ternary for $name {
            type A = $A;
            type B = $B;
            type C = $C;
            type D = $D;
            #[inline(always)]
            fn op($a: $A, $b: $B, $c: $C) -> $D $body
        }
    )*};
}
pub(crate) use operations;

/// Make `pick`: a function that returns the handler of a body for a type parameter, compiled for this machine.
macro_rules! handlers {
    ($($pick:ident = $body:ident<$O:ident: $Bound:path>;)*) => {$(
        pub(crate) fn $pick<$O: $Bound + 'static>() -> $crate::emulator::code::Handler {
            unsafe fn base<$O: $Bound>(
                cx: &mut $crate::emulator::warp::Cx<'_>,
                i: &$crate::emulator::code::Instr,
                m: u32,
            ) -> $crate::emulator::code::Flow {
                // SAFETY: the caller's contract is the body's.
                unsafe { $body::<$O>(cx, i, m) }
            }
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt,f16c")]
                unsafe fn wide<$O: $Bound>(
                    cx: &mut $crate::emulator::warp::Cx<'_>,
                    i: &$crate::emulator::code::Instr,
                    m: u32,
                ) -> $crate::emulator::code::Flow {
                    // SAFETY: the caller's contract is the body's.
                    unsafe { $body::<$O>(cx, i, m) }
                }
                if $crate::emulator::exec::lanes::wide_lanes() {
                    return wide::<$O>;
                }
            }
            base::<$O>
        }
    )*};
}
pub(crate) use handlers;

#[inline(always)]
unsafe fn unary_body<O: Unary>(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    // SAFETY: the operands are rows of these types.
    unsafe {
        let a = cx.get::<O::A>(i.a);
        let mut d = [O::D::default(); LANES];
        for lane in 0..LANES {
            d[lane] = O::op(a[lane]);
        }
        cx.put(i.d, m, d);
    }
    Flow::Next
}

#[inline(always)]
unsafe fn binary_body<O: Binary>(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    // SAFETY: the operands are rows of these types.
    unsafe {
        let (a, b) = (cx.get::<O::A>(i.a), cx.get::<O::B>(i.b));
        let mut d = [O::D::default(); LANES];
        for lane in 0..LANES {
            d[lane] = O::op(a[lane], b[lane]);
        }
        cx.put(i.d, m, d);
    }
    Flow::Next
}

#[inline(always)]
unsafe fn ternary_body<O: Ternary>(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    // SAFETY: the operands are rows of these types.
    unsafe {
        let (a, b, c) = (cx.get::<O::A>(i.a), cx.get::<O::B>(i.b), cx.get::<O::C>(i.c));
        let mut d = [O::D::default(); LANES];
        for lane in 0..LANES {
            d[lane] = O::op(a[lane], b[lane], c[lane]);
        }
        cx.put(i.d, m, d);
    }
    Flow::Next
}

#[inline(always)]
unsafe fn comparison<O: Compare>(cx: &Cx<'_>, i: &Instr) -> u32 {
    // SAFETY: the operands are rows of this type.
    let (a, b) = unsafe { (cx.get::<O::A>(i.a), cx.get::<O::A>(i.b)) };
    let mut bytes = [0u8; LANES];
    for lane in 0..LANES {
        bytes[lane] = if O::op(a[lane], b[lane]) { 0xff } else { 0 };
    }
    gather_bits(&bytes)
}

/// `setp` without a third operand: the predicate at `d`, its complement at the low half of `x`.
#[inline(always)]
unsafe fn setp_body<O: Compare>(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    // SAFETY: the operands are rows and predicates.
    unsafe {
        let bits = comparison::<O>(cx, i);
        cx.put_pred(i.d, m, bits);
        if i.x != 0 {
            cx.put_pred(i.x as u32, m, !bits);
        }
    }
    Flow::Next
}

/// How `setp` combines its comparison with a predicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Combine {
    And = 0,
    Or = 1,
    Xor = 2,
}

/// Pack what `setp_combined_body` needs into `x`: the complement's offset (0 for none), the combination, negation of `c`.
pub(crate) fn pack_setp(complement: u32, combine: Combine, negated: bool) -> u64 {
    u64::from(complement) | (combine as u64) << 32 | u64::from(negated) << 40
}

#[inline(always)]
unsafe fn setp_combined_body<O: Compare>(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    // SAFETY: the operands are rows and predicates.
    unsafe {
        let bits = comparison::<O>(cx, i);
        let other = cx.pred(i.c) ^ if i.x >> 40 != 0 { FULL } else { 0 };
        let combine = |bits: u32| match i.x >> 32 & 0xff {
            0 => bits & other,
            1 => bits | other,
            _ => bits ^ other,
        };
        cx.put_pred(i.d, m, combine(bits));
        if i.x as u32 != 0 {
            cx.put_pred(i.x as u32, m, combine(!bits));
        }
    }
    Flow::Next
}

/// `set`: all ones (or 1.0f, in `x`) where the comparison holds.
#[inline(always)]
unsafe fn set_body<O: Compare>(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    // SAFETY: the operands are rows; the result is a 32-bit row.
    unsafe {
        let mut bits = comparison::<O>(cx, i);
        if i.c != 0 {
            let other = cx.pred(i.c) ^ if i.x >> 40 != 0 { FULL } else { 0 };
            bits = match i.x >> 32 & 0xff {
                0 => bits & other,
                1 => bits | other,
                _ => bits ^ other,
            };
        }
        let value = i.x as u32;
        let mut d = [0u32; LANES];
        for (lane, slot) in d.iter_mut().enumerate() {
            *slot = if bits >> lane & 1 != 0 { value } else { 0 };
        }
        cx.put(i.d, m, d);
    }
    Flow::Next
}

/// `selp`: `a` where the predicate `c` holds (negated when `x` is set), else `b`.
#[inline(always)]
unsafe fn select_body<T: Lane>(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    // SAFETY: the operands are rows of this type and a predicate.
    unsafe {
        let (a, b) = (cx.get::<T>(i.a), cx.get::<T>(i.b));
        let p = cx.pred(i.c) ^ if i.x != 0 { FULL } else { 0 };
        let mut d = [T::default(); LANES];
        for lane in 0..LANES {
            d[lane] = if p & (1 << lane) != 0 { a[lane] } else { b[lane] };
        }
        cx.put(i.d, m, d);
    }
    Flow::Next
}

#[inline(always)]
unsafe fn move_body<T: Lane>(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    // SAFETY: the operands are rows of this type.
    unsafe {
        let a = cx.get::<T>(i.a);
        cx.put(i.d, m, a);
    }
    Flow::Next
}

handlers! {
    unary = unary_body<O: Unary>;
    binary = binary_body<O: Binary>;
    ternary = ternary_body<O: Ternary>;
    setp = setp_body<O: Compare>;
    setp_combined = setp_combined_body<O: Compare>;
    set = set_body<O: Compare>;
    select = select_body<T: Lane>;
    copy = move_body<T: Lane>;
}
