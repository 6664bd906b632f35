//! Floating point on one lane, with the modes of PTX: f32 and f64. `half` has the 16-bit formats.
//!
//! An operation is written once, for any mode. The handler runs it with constant modes where code is hot, so that the
//! lane loop vectorises, and with the mode of the instruction everywhere else.

use super::lanes::{Compare, Lane, gather_bits, handlers};
use crate::emulator::code::{Flow, Handler, Instr, LANES};
use crate::emulator::float::{self, Class, Round};
use crate::emulator::warp::Cx;

/// What the words of an opcode ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mode {
    pub round: Round,
    pub ftz: bool,
    pub sat: bool,
    pub relu: bool,
    /// `.NaN`: a NaN operand is the result of a minimum.
    pub nan: bool,
    /// `.xorsign.abs`
    pub xorsign: bool,
    pub satfinite: bool,
    /// A rounding to an integral value: `.rni` and its kin.
    pub integral: bool,
}

impl Mode {
    pub const PLAIN: Mode = Mode {
        round: Round::Nearest,
        ftz: false,
        sat: false,
        relu: false,
        nan: false,
        xorsign: false,
        satfinite: false,
        integral: false,
    };
    pub const FTZ: Mode = Mode { ftz: true, ..Mode::PLAIN };

    /// As the low 16 bits of an instruction's `x`.
    pub fn pack(self) -> u64 {
        let round = match self.round {
            Round::Nearest => 0,
            Round::Zero => 1,
            Round::Down => 2,
            Round::Up => 3,
            Round::Away => 4,
        };
        let flags = [self.ftz, self.sat, self.relu, self.nan, self.xorsign, self.satfinite, self.integral];
        flags.iter().rev().fold(0, |bits, &flag| bits << 1 | u64::from(flag)) << 3 | round
    }

    #[inline(always)]
    pub fn unpack(x: u64) -> Mode {
        let flag = |bit: u32| x >> bit & 1 != 0;
        Mode {
            round: match x & 7 {
                0 => Round::Nearest,
                1 => Round::Zero,
                2 => Round::Down,
                3 => Round::Up,
                _ => Round::Away,
            },
            ftz: flag(3),
            sat: flag(4),
            relu: flag(5),
            nan: flag(6),
            xorsign: flag(7),
            satfinite: flag(8),
            integral: flag(9),
        }
    }
}

/// An operation of one to three operands of one type, in any mode.
pub(crate) trait Modal {
    type T: Lane;
    type D: Lane;
    /// How many operands.
    const N: usize;
    /// Is `.ftz` hot?
    const FTZ: bool = false;
    /// Are the directed roundings hot?
    const ROUNDS: bool = false;
    /// Does any mode change it?
    const MODES: bool = true;
    /// Does `quick` leave NaNs to be made those of a GPU?
    const NANS: bool = false;

    fn op(v: [Self::T; 3], mode: Mode) -> Self::D;

    /// The operation without modes.
    #[inline(always)]
    fn quick(v: [Self::T; 3]) -> Self::D {
        Self::op(v, Mode::PLAIN)
    }

    #[inline(always)]
    fn is_nan(_: Self::D) -> bool {
        false
    }
}

/// The handlers of an operation: without modes, with `.ftz` alone, and with any mode.
pub(crate) struct Modes {
    plain: Handler,
    flushed: Handler,
    any: Handler,
}

impl Modes {
    pub fn of(&self, mode: Mode) -> Handler {
        match mode {
            Mode::PLAIN => self.plain,
            Mode::FTZ => self.flushed,
            _ => self.any,
        }
    }
}

pub(crate) fn modal<O: Modal + 'static>() -> Modes {
    let plain = plain::<O>();
    let any = if O::MODES { any::<O>() } else { plain };
    Modes { plain, flushed: if O::FTZ { flushed::<O>() } else { any }, any }
}

/// Run an expression of the operands of a lane for all lanes and write what it gives.
///
/// A macro, as a closure might not be inlined, and then would not be compiled for this machine.
macro_rules! each {
    ($cx:ident, $i:ident, $m:ident, $v:ident => $value:expr) => {{
        // SAFETY: the operands are rows of these types.
        unsafe {
            let a = $cx.get::<O::T>($i.a);
            let b = if O::N > 1 { $cx.get::<O::T>($i.b) } else { a };
            let c = if O::N > 2 { $cx.get::<O::T>($i.c) } else { a };
            let mut d = [O::D::default(); LANES];
            for lane in 0..LANES {
                let $v = [a[lane], b[lane], c[lane]];
                d[lane] = $value;
            }
            $cx.put($i.d, $m, d);
        }
        Flow::Next
    }};
}

#[inline(always)]
unsafe fn plain_body<O: Modal>(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    if !O::NANS {
        return each!(cx, i, m, v => O::op(v, Mode::PLAIN));
    }
    // SAFETY: the operands are rows of these types.
    unsafe {
        let a = cx.get::<O::T>(i.a);
        let b = if O::N > 1 { cx.get::<O::T>(i.b) } else { a };
        let c = if O::N > 2 { cx.get::<O::T>(i.c) } else { a };
        let mut d = [O::D::default(); LANES];
        let mut any = false;
        for lane in 0..LANES {
            let value = O::quick([a[lane], b[lane], c[lane]]);
            d[lane] = value;
            any |= O::is_nan(value);
        }
        if !any {
            cx.put(i.d, m, d);
            return Flow::Next;
        }
    }
    // Which NaN it is costs a look at the operands, so only where there is one.
    each!(cx, i, m, v => O::op(v, Mode::PLAIN))
}

#[inline(always)]
unsafe fn flushed_body<O: Modal>(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    each!(cx, i, m, v => O::op(v, Mode::FTZ))
}

/// The mode is in `x`.
#[inline(always)]
unsafe fn any_body<O: Modal>(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    let mode = Mode::unpack(i.x);
    match mode.round {
        Round::Nearest => each!(cx, i, m, v => O::op(v, Mode { round: Round::Nearest, ..mode })),
        Round::Zero if O::ROUNDS => each!(cx, i, m, v => O::op(v, Mode { round: Round::Zero, ..mode })),
        Round::Down if O::ROUNDS => each!(cx, i, m, v => O::op(v, Mode { round: Round::Down, ..mode })),
        Round::Up if O::ROUNDS => each!(cx, i, m, v => O::op(v, Mode { round: Round::Up, ..mode })),
        _ => each!(cx, i, m, v => O::op(v, mode)),
    }
}

handlers! {
    plain = plain_body<O: Modal>;
    flushed = flushed_body<O: Modal>;
    any = any_body<O: Modal>;
    testp = testp_body<O: Classify>;
}

/// Define operations: `Name(T; n) -> D, FTZ = true: |[a, b, _], m| result;`
macro_rules! modal_operations {
    ($($name:ident($T:ty; $n:literal) -> $D:ty $(, $flag:ident = $value:literal)*: |$v:pat_param, $m:pat_param| $body:expr;)*) => {$(
        pub(crate) struct $name;
        impl $crate::emulator::exec::float::Modal for $name {
            type T = $T;
            type D = $D;
            const N: usize = $n;
            $(const $flag: bool = $value;)*
            #[inline(always)]
            fn op($v: [$T; 3], $m: $crate::emulator::exec::float::Mode) -> $D {
                $body
            }
        }
    )*};
}
pub(crate) use modal_operations;

#[inline(always)]
fn sat_f32(value: u32, mode: Mode) -> u32 {
    if mode.sat { float::saturate_f32(value) } else { value }
}

#[inline(always)]
fn in_f32(value: u32, mode: Mode) -> u32 {
    if mode.ftz { float::flush_f32(value) } else { value }
}

/// f32 arithmetic that has a function with and one without `.ftz`.
macro_rules! single {
    ($($name:ident($n:literal: $($v:ident),*) = $plain:ident, $ftz:ident;)*) => {$(
        pub(crate) struct $name;
        impl Modal for $name {
            type T = u32;
            type D = u32;
            const N: usize = $n;
            const FTZ: bool = true;
            #[inline(always)]
            fn op(v: [u32; 3], m: Mode) -> u32 {
                let [$($v),*, ..] = v;
                let value = if m.ftz { float::$ftz($($v),*, m.round) } else { float::$plain($($v),*, m.round) };
                sat_f32(value, m)
            }
        }
    )*};
}

single! {
    AddF32(2: a, b) = add_f32, add_ftz_f32;
    SubF32(2: a, b) = sub_f32, sub_ftz_f32;
    MulF32(2: a, b) = mul_f32, mul_ftz_f32;
    FmaF32(3: a, b, c) = fma_f32, fma_ftz_f32;
    DivF32(2: a, b) = div_f32, div_ftz_f32;
    SqrtF32(1: a) = sqrt_f32, sqrt_ftz_f32;
    RcpF32(1: a) = rcp_f32, rcp_ftz_f32;
}

#[inline(always)]
fn min_f32(a: u32, b: u32, m: Mode) -> u32 {
    let (a, b) = (in_f32(a, m), in_f32(b, m));
    if m.xorsign { float::min_xorsign_f32(a, b, m.nan) } else { float::min_f32(a, b, m.nan) }
}

#[inline(always)]
fn max_f32(a: u32, b: u32, m: Mode) -> u32 {
    let (a, b) = (in_f32(a, m), in_f32(b, m));
    if m.xorsign { float::max_xorsign_f32(a, b, m.nan) } else { float::max_f32(a, b, m.nan) }
}

modal_operations! {
    NegF32(u32; 1) -> u32, FTZ = true: |[a, ..], m| float::neg_f32(in_f32(a, m));
    AbsF32(u32; 1) -> u32, FTZ = true: |[a, ..], m| float::abs_f32(in_f32(a, m));
    MinF32(u32; 2) -> u32, FTZ = true: |[a, b, _], m| min_f32(a, b, m);
    MaxF32(u32; 2) -> u32, FTZ = true: |[a, b, _], m| max_f32(a, b, m);
    Min3F32(u32; 3) -> u32: |[a, b, c], m| min_f32(min_f32(a, b, m), c, m);
    Max3F32(u32; 3) -> u32: |[a, b, c], m| max_f32(max_f32(a, b, m), c, m);
    CopysignF32(u32; 2) -> u32, MODES = false: |[a, b, _], _| float::copysign_f32(a, b);
    DivApproxF32(u32; 2) -> u32, FTZ = true: |[a, b, _], m| float::div_approx_f32(a, b, m.ftz);
    DivFullF32(u32; 2) -> u32, FTZ = true: |[a, b, _], m| float::div_full_f32(a, b, m.ftz);
    RcpApproxF32(u32; 1) -> u32, FTZ = true: |[a, ..], m| float::rcp_approx_f32(a, m.ftz);
    SqrtApproxF32(u32; 1) -> u32, FTZ = true: |[a, ..], m| float::sqrt_approx_f32(a, m.ftz);
    RsqrtF32(u32; 1) -> u32, FTZ = true: |[a, ..], m| float::rsqrt_f32(a, m.ftz);
    SinF32(u32; 1) -> u32: |[a, ..], m| float::sin_f32(a, m.ftz);
    CosF32(u32; 1) -> u32: |[a, ..], m| float::cos_f32(a, m.ftz);
    Lg2F32(u32; 1) -> u32: |[a, ..], m| float::lg2_f32(a, m.ftz);
    Ex2F32(u32; 1) -> u32, FTZ = true: |[a, ..], m| float::ex2_f32(a, m.ftz);
    TanhF32(u32; 1) -> u32, MODES = false: |[a, ..], _| float::tanh_f32(a);
    NegF64(u64; 1) -> u64, MODES = false: |[a, ..], _| float::neg_f64(a);
    AbsF64(u64; 1) -> u64, MODES = false: |[a, ..], _| float::abs_f64(a);
    MinF64(u64; 2) -> u64, MODES = false: |[a, b, _], _| float::min_f64(a, b, false);
    MaxF64(u64; 2) -> u64, MODES = false: |[a, b, _], _| float::max_f64(a, b, false);
    CopysignF64(u64; 2) -> u64, MODES = false: |[a, b, _], _| float::copysign_f64(a, b);
    RcpApproxF64(u64; 1) -> u64, MODES = false: |[a, ..], _| float::rcp_approx_f64(a);
    RsqrtApproxF64(u64; 1) -> u64: |[a, ..], m| {
        if m.ftz { float::rsqrt_approx_ftz_f64(a) } else { float::rsqrt_approx_f64(a) }
    };
}

/// f64 arithmetic: what the host computes, and the function that knows the NaN of a GPU.
macro_rules! double {
    ($($name:ident($n:literal: $($v:ident),*) = $full:ident, $host:expr;)*) => {$(
        pub(crate) struct $name;
        impl Modal for $name {
            type T = u64;
            type D = u64;
            const N: usize = $n;
            const NANS: bool = true;
            #[inline(always)]
            fn op(v: [u64; 3], m: Mode) -> u64 {
                let [$($v),*, ..] = v;
                float::$full($($v),*, m.round)
            }
            #[inline(always)]
            fn quick(v: [u64; 3]) -> u64 {
                let [$($v),*, ..] = [f64::from_bits(v[0]), f64::from_bits(v[1]), f64::from_bits(v[2])];
                ($host).to_bits()
            }
            #[inline(always)]
            fn is_nan(value: u64) -> bool {
                f64::from_bits(value).is_nan()
            }
        }
    )*};
}

double! {
    AddF64(2: a, b) = add_f64, a + b;
    SubF64(2: a, b) = sub_f64, a - b;
    MulF64(2: a, b) = mul_f64, a * b;
    FmaF64(3: a, b, c) = fma_f64, a.mul_add(b, c);
    DivF64(2: a, b) = div_f64, a / b;
    SqrtF64(1: a) = sqrt_f64, a.sqrt();
    RcpF64(1: a) = rcp_f64, 1.0 / a;
}

/// A format to compare in.
pub(crate) trait Compared: 'static {
    type T: Lane;
    fn compare(relation: float::Compare, a: Self::T, b: Self::T) -> bool;
}

/// Define the comparisons all others are made of, by order of operands and negation.
macro_rules! relations {
    ($($name:ident)*) => {$(
        pub(crate) struct $name<F>(std::marker::PhantomData<F>);
        impl<F: Compared> Compare for $name<F> {
            type A = F::T;
            #[inline(always)]
            fn op(a: F::T, b: F::T) -> bool {
                F::compare(float::Compare::$name, a, b)
            }
        }
    )*};
}

relations! { Eq Ne Lt Le Num }

macro_rules! compared {
    ($($name:ident: $T:ty, |$relation:ident, $a:ident, $b:ident| $body:expr;)*) => {$(
        pub(crate) struct $name;
        impl Compared for $name {
            type T = $T;
            #[inline(always)]
            fn compare($relation: float::Compare, $a: $T, $b: $T) -> bool {
                $body
            }
        }
    )*};
}

compared! {
    AsF32: u32, |relation, a, b| float::compare_f32(relation, a, b);
    AsF32Ftz: u32, |relation, a, b| float::compare_f32(relation, float::flush_f32(a), float::flush_f32(b));
    AsF64: u64, |relation, a, b| float::compare_f64(relation, a, b);
    AsF16: u16, |relation, a, b| float::compare_f16(relation, a, b);
    AsBf16: u16, |relation, a, b| float::compare_bf16(relation, a, b);
}

/// A format `testp` knows.
pub(crate) trait Classify {
    type T: Lane;
    fn test(class: Class, a: Self::T) -> bool;
}

impl Classify for AsF32 {
    type T = u32;
    #[inline(always)]
    fn test(class: Class, a: u32) -> bool {
        float::testp_f32(class, a)
    }
}

impl Classify for AsF64 {
    type T = u64;
    #[inline(always)]
    fn test(class: Class, a: u64) -> bool {
        float::testp_f64(class, a)
    }
}

/// The questions of `testp`, in the order of `x`.
pub(crate) const CLASSES: [(&str, Class); 6] = [
    ("finite", Class::Finite),
    ("infinite", Class::Infinite),
    ("number", Class::Number),
    ("notanumber", Class::NotANumber),
    ("normal", Class::Normal),
    ("subnormal", Class::Subnormal),
];

#[inline(always)]
unsafe fn testp_body<O: Classify>(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    let (_, class) = CLASSES[i.x as usize % CLASSES.len()];
    // SAFETY: a row of this type, and a predicate.
    unsafe {
        let a = cx.get::<O::T>(i.a);
        let mut bytes = [0u8; LANES];
        for lane in 0..LANES {
            bytes[lane] = if O::test(class, a[lane]) { 0xff } else { 0 };
        }
        cx.put_pred(i.d, m, gather_bits(&bytes));
    }
    Flow::Next
}
