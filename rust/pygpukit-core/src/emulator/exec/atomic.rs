//! Atomic operations on memory.
//!
//! Global memory is shared with other host threads, so its words change by compare-and-swap. Shared memory belongs to a
//! block, and a block runs on one host thread at a time: plain reads and writes are atomic there.

use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::lanes::{Lane, Row};
use super::memory::{Kind, addresses_of, translate};
use super::warpwide::lanes_of;
use crate::emulator::code::{Flow, Instr, LANES};
use crate::emulator::float::{self, Round};
use crate::emulator::memory::{SHARED_WINDOW, WINDOW_MASK};
use crate::emulator::warp::Cx;

/// A word the host can change atomically.
pub(crate) trait Word: Lane + PartialEq {
    /// # Safety
    /// The pointer must be valid and aligned.
    unsafe fn load(at: *mut Self) -> Self;

    /// # Safety
    /// As `load`.
    unsafe fn replace(at: *mut Self, old: Self, new: Self) -> Result<Self, Self>;
}

macro_rules! words {
    ($($T:ident as $Atomic:ident),*) => {$(
        impl Word for $T {
            #[inline(always)]
            unsafe fn load(at: *mut $T) -> $T {
                // SAFETY: the caller's contract.
                unsafe { $Atomic::from_ptr(at) }.load(Ordering::SeqCst)
            }
            #[inline(always)]
            unsafe fn replace(at: *mut $T, old: $T, new: $T) -> Result<$T, $T> {
                // SAFETY: the caller's contract.
                unsafe { $Atomic::from_ptr(at) }.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst)
            }
        }
    )*};
}

words!(u16 as AtomicU16, u32 as AtomicU32, u64 as AtomicU64);

/// What an atomic operation makes of a word: the old value and its operands give the new one.
pub(crate) trait Operation: 'static {
    type T: Word;
    fn apply(old: Self::T, b: Self::T, c: Self::T) -> Self::T;

    /// The same in global memory, where it differs.
    #[inline(always)]
    fn apply_global(old: Self::T, b: Self::T, c: Self::T) -> Self::T {
        Self::apply(old, b, c)
    }
}

macro_rules! atomics {
    ($($name:ident<$T:ty>: |$old:ident, $b:ident, $c:pat_param| $new:expr $(, global $global:expr)?;)*) => {$(
        pub(crate) struct $name;
        impl Operation for $name {
            type T = $T;
            #[inline(always)]
            fn apply($old: $T, $b: $T, $c: $T) -> $T { $new }
            $(
                #[inline(always)]
                fn apply_global($old: $T, $b: $T, $c: $T) -> $T { $global }
            )?
        }
    )*};
}

fn add_flushed(a: u32, b: u32) -> u32 {
    // A sum that is subnormal is exact, so it may be flushed afterwards.
    float::flush_f32(float::add_f32(float::flush_f32(a), float::flush_f32(b), Round::Nearest))
}

fn add_global_f64(old: u64, b: u64) -> u64 {
    if float::is_nan(old) & float::is_nan(b) { b } else { float::add_f64(old, b, Round::Nearest) }
}

atomics! {
    Add32<u32>: |old, b, _| old.wrapping_add(b);
    Add64<u64>: |old, b, _| old.wrapping_add(b);
    // PTX: subnormal numbers are flushed in global memory, and kept in shared memory.
    AddF32<u32>: |old, b, _| float::add_f32(old, b, Round::Nearest), global add_flushed(old, b);
    // Of two NaNs shared memory keeps its own; global memory takes the other, and makes neither quiet.
    AddF64<u64>: |old, b, _| float::add_f64(b, old, Round::Nearest), global add_global_f64(old, b);
    AddF16<u16>: |old, b, _| float::add_f16(old, b);
    AddBf16<u16>: |old, b, _| float::add_bf16(old, b);
    AddF16x2<u32>: |old, b, _| float::each_half2(old, b, float::add_f16);
    AddBf16x2<u32>: |old, b, _| float::each_half2(old, b, float::add_bf16);
    MinF16<u16>: |old, b, _| float::min_f16(old, b, false);
    MaxF16<u16>: |old, b, _| float::max_f16(old, b, false);
    MinBf16<u16>: |old, b, _| float::min_bf16(old, b, false);
    MaxBf16<u16>: |old, b, _| float::max_bf16(old, b, false);
    MinF16x2<u32>: |old, b, _| float::each_half2(old, b, |x, y| float::min_f16(x, y, false));
    MaxF16x2<u32>: |old, b, _| float::each_half2(old, b, |x, y| float::max_f16(x, y, false));
    MinBf16x2<u32>: |old, b, _| float::each_half2(old, b, |x, y| float::min_bf16(x, y, false));
    MaxBf16x2<u32>: |old, b, _| float::each_half2(old, b, |x, y| float::max_bf16(x, y, false));
    MinU32<u32>: |old, b, _| old.min(b);
    MaxU32<u32>: |old, b, _| old.max(b);
    MinS32<u32>: |old, b, _| (old as i32).min(b as i32) as u32;
    MaxS32<u32>: |old, b, _| (old as i32).max(b as i32) as u32;
    MinU64<u64>: |old, b, _| old.min(b);
    MaxU64<u64>: |old, b, _| old.max(b);
    MinS64<u64>: |old, b, _| (old as i64).min(b as i64) as u64;
    MaxS64<u64>: |old, b, _| (old as i64).max(b as i64) as u64;
    Increment<u32>: |old, b, _| if old >= b { 0 } else { old + 1 };
    Decrement<u32>: |old, b, _| if old == 0 || old > b { b } else { old - 1 };
    And32<u32>: |old, b, _| old & b;
    And64<u64>: |old, b, _| old & b;
    Or32<u32>: |old, b, _| old | b;
    Or64<u64>: |old, b, _| old | b;
    Xor32<u32>: |old, b, _| old ^ b;
    Xor64<u64>: |old, b, _| old ^ b;
    Exchange32<u32>: |_old, b, _| b;
    Exchange64<u64>: |_old, b, _| b;
    Compare16<u16>: |old, b, c| if old == b { c } else { old };
    Compare32<u32>: |old, b, c| if old == b { c } else { old };
    Compare64<u64>: |old, b, c| if old == b { c } else { old };
}

/// The `x` of an atomic operation: offset of the address, space, width of the address.
pub(crate) fn pack_atomic(offset: i32, kind: Kind, wide: bool) -> u64 {
    let kind = match kind {
        Kind::Global => 0,
        Kind::Shared => 1,
        Kind::Generic | Kind::Local => 2,
    };
    u64::from(offset as u32) | kind << 32 | u64::from(wide) << 40
}

/// `atom` and `red` (d = 0) at address `a` with operands `b` and `c`, lane after lane.
pub(crate) unsafe fn atomic<O: Operation>(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    // SAFETY: the operands are rows of the operation's width; one that is missing reads the start of the frame.
    let (mut at, b, c) =
        unsafe { (addresses_of(cx, i.a, i.x as i32, i.x >> 40 != 0), cx.get::<O::T>(i.b), cx.get::<O::T>(i.c)) };
    let (kind, private) = match i.x >> 32 & 0xff {
        0 => (Kind::Global, 0),
        1 => (Kind::Shared, m),
        _ => {
            let window = |lane: &usize| at[*lane] & WINDOW_MASK == SHARED_WINDOW;
            (Kind::Generic, lanes_of(m).filter(window).fold(0, |all, lane| all | 1 << lane))
        }
    };
    if let Err(flow) = translate(cx, kind, &mut at, m, size_of::<O::T>() as u32, true) {
        return flow;
    }
    let mut d = [O::T::default(); LANES];
    let first = at[m.trailing_zeros() as usize & 31];
    // SAFETY: the addresses of these lanes were checked, alignment included.
    unsafe {
        if private == m {
            for lane in lanes_of(m) {
                let word = at[lane] as *mut O::T;
                d[lane] = word.read();
                word.write(O::apply(d[lane], b[lane], c[lane]));
            }
        } else if private == 0 && lanes_of(m).all(|lane| at[lane] == first) {
            chain::<O>(first as *mut O::T, m, &b, &c, &mut d);
        } else {
            for lane in lanes_of(m) {
                let word = at[lane] as *mut O::T;
                if private >> lane & 1 != 0 {
                    d[lane] = word.read();
                    word.write(O::apply(d[lane], b[lane], c[lane]));
                } else {
                    chain::<O>(word, 1 << lane, &b, &c, &mut d);
                }
            }
        }
        if i.d != 0 {
            cx.put(i.d, m, d);
        }
    }
    Flow::Next
}

/// The operations of these lanes on one word, all at once.
///
/// # Safety
/// The pointer must be valid and aligned.
#[inline(always)]
unsafe fn chain<O: Operation>(word: *mut O::T, m: u32, b: &Row<O::T>, c: &Row<O::T>, d: &mut Row<O::T>) {
    // SAFETY: the caller's contract.
    let mut old = unsafe { O::T::load(word) };
    loop {
        let mut value = old;
        for lane in lanes_of(m) {
            d[lane] = value;
            value = O::apply_global(value, b[lane], c[lane]);
        }
        // SAFETY: the caller's contract.
        match unsafe { O::T::replace(word, old, value) } {
            Ok(_) => return,
            Err(now) => old = now,
        }
    }
}
