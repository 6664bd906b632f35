//! Arithmetic of every format.

use super::harness::{check, f32s};
use crate::emulator::float::{self, Round};

const F32: [u32; 4] = [32; 4];

#[test]
fn f32_plain() {
    let cases = f32s(1);
    check("add.f32 %d, %a, %b", F32, &cases, |[a, b, _]| float::add_f32(a as u32, b as u32, Round::Nearest).into());
    check("fma.rn.f32 %d, %a, %b, %c", F32, &cases, |[a, b, c]| {
        float::fma_f32(a as u32, b as u32, c as u32, Round::Nearest).into()
    });
    check("cvt.rzi.s32.f32 %d, %a", F32, &cases, |[a, ..]| f32::from_bits(a as u32) as i32 as u64);
}
