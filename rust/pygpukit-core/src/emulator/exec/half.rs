//! f16 and bf16 on one lane, and pairs of them.

use super::float::{Modal, Mode, modal_operations};
use crate::emulator::float;

/// Both halves of a pair, by the operation of one.
pub(crate) struct Pair<O>(std::marker::PhantomData<O>);

impl<O: Modal<T = u16, D = u16>> Modal for Pair<O> {
    type T = u32;
    type D = u32;
    const N: usize = O::N;
    const MODES: bool = O::MODES;
    #[inline(always)]
    fn op([a, b, c]: [u32; 3], mode: Mode) -> u32 {
        let low = O::op([a as u16, b as u16, c as u16], mode);
        let high = O::op([(a >> 16) as u16, (b >> 16) as u16, (c >> 16) as u16], mode);
        u32::from(low) | u32::from(high) << 16
    }
}

#[inline(always)]
fn in_f16(value: u16, m: Mode) -> u16 {
    if m.ftz { float::flush_f16(value) } else { value }
}

/// `.ftz`, `.sat` and `.relu` of a result.
#[inline(always)]
fn out_f16(value: u16, m: Mode) -> u16 {
    let value = in_f16(value, m);
    let value = if m.sat { float::saturate_f16(value) } else { value };
    if m.relu { float::relu_f16(value) } else { value }
}

#[inline(always)]
fn out_bf16(value: u16, m: Mode) -> u16 {
    if m.relu { float::relu_bf16(value) } else { value }
}

#[inline(always)]
fn min_f16(a: u16, b: u16, m: Mode) -> u16 {
    let (a, b) = (in_f16(a, m), in_f16(b, m));
    if m.xorsign { float::min_xorsign_f16(a, b, m.nan) } else { float::min_f16(a, b, m.nan) }
}

#[inline(always)]
fn max_f16(a: u16, b: u16, m: Mode) -> u16 {
    let (a, b) = (in_f16(a, m), in_f16(b, m));
    if m.xorsign { float::max_xorsign_f16(a, b, m.nan) } else { float::max_f16(a, b, m.nan) }
}

#[inline(always)]
fn min_bf16(a: u16, b: u16, m: Mode) -> u16 {
    if m.xorsign { float::min_xorsign_bf16(a, b, m.nan) } else { float::min_bf16(a, b, m.nan) }
}

#[inline(always)]
fn max_bf16(a: u16, b: u16, m: Mode) -> u16 {
    if m.xorsign { float::max_xorsign_bf16(a, b, m.nan) } else { float::max_bf16(a, b, m.nan) }
}

modal_operations! {
    AddF16(u16; 2) -> u16: |[a, b, _], m| out_f16(float::add_f16(in_f16(a, m), in_f16(b, m)), m);
    SubF16(u16; 2) -> u16: |[a, b, _], m| out_f16(float::sub_f16(in_f16(a, m), in_f16(b, m)), m);
    MulF16(u16; 2) -> u16: |[a, b, _], m| {
        out_f16(if m.ftz { float::mul_ftz_f16(a, b) } else { float::mul_f16(a, b) }, m)
    };
    FmaF16(u16; 3) -> u16: |[a, b, c], m| {
        out_f16(if m.ftz { float::fma_ftz_f16(a, b, c) } else { float::fma_f16(a, b, c) }, m)
    };
    NegF16(u16; 1) -> u16: |[a, ..], m| float::neg_f16(in_f16(a, m));
    AbsF16(u16; 1) -> u16: |[a, ..], m| float::abs_f16(in_f16(a, m));
    MinF16(u16; 2) -> u16: |[a, b, _], m| min_f16(a, b, m);
    MaxF16(u16; 2) -> u16: |[a, b, _], m| max_f16(a, b, m);
    Ex2F16(u16; 1) -> u16: |[a, ..], m| out_f16(float::ex2_f16(in_f16(a, m)), m);
    TanhF16(u16; 1) -> u16, MODES = false: |[a, ..], _| float::tanh_f16(a);
    FlushF16(u16; 1) -> u16, MODES = false: |[a, ..], _| float::flush_f16(a);
    AddBf16(u16; 2) -> u16: |[a, b, _], m| out_bf16(float::add_bf16(a, b), m);
    SubBf16(u16; 2) -> u16: |[a, b, _], m| out_bf16(float::sub_bf16(a, b), m);
    MulBf16(u16; 2) -> u16: |[a, b, _], m| out_bf16(float::mul_bf16(a, b), m);
    FmaBf16(u16; 3) -> u16: |[a, b, c], m| out_bf16(float::fma_bf16(a, b, c), m);
    NegBf16(u16; 1) -> u16, MODES = false: |[a, ..], _| float::neg_bf16(a);
    AbsBf16(u16; 1) -> u16, MODES = false: |[a, ..], _| float::abs_bf16(a);
    MinBf16(u16; 2) -> u16: |[a, b, _], m| min_bf16(a, b, m);
    MaxBf16(u16; 2) -> u16: |[a, b, _], m| max_bf16(a, b, m);
    Ex2Bf16(u16; 1) -> u16, MODES = false: |[a, ..], _| float::ex2_bf16(a);
    TanhBf16(u16; 1) -> u16, MODES = false: |[a, ..], _| float::tanh_bf16(a);
}
