//! e4m3 and e5m2: conversions from and to the wider formats.
//!
//! To fp8 is always `.rn.satfinite`: what is too large, infinity too, becomes the largest number (448 and 57344), and a
//! NaN 0x7f. The first operand of a pair is the upper byte.

use super::{Round, bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};

const NAN_FP8: u8 = 0x7f;

macro_rules! fp8 {
    ($from:ident, $to:ident, $shift:expr, $rebias:expr, $anchor:expr, $max:expr, $is_nan:expr, $infinity:expr) => {
        #[inline(always)]
        pub fn $from(a: u32) -> u8 {
            const MIN_NORMAL: u32 = ($rebias + 1) << 23;
            let sign = (a >> 24) as u8 & 0x80;
            let magnitude = a & 0x7fff_ffff;
            let odd = (magnitude >> $shift) & 1;
            let normal = (magnitude.wrapping_add((1 << ($shift - 1)) - 1 + odd) >> $shift)
                .wrapping_sub($rebias << (23 - $shift));
            // The anchor's last bit is that of the smallest fp8 number.
            let anchor: f32 = $anchor;
            let subnormal = (f32::from_bits(magnitude) + anchor).to_bits().wrapping_sub(anchor.to_bits());
            let number = if magnitude < MIN_NORMAL { subnormal } else { normal };
            let finite = number.min($max) as u8;
            if magnitude > 0x7f80_0000 { NAN_FP8 } else { sign | finite }
        }

        #[inline(always)]
        pub fn $to(a: u8) -> u32 {
            let sign = u32::from(a & 0x80) << 24;
            let magnitude = u32::from(a & 0x7f);
            let shifted = (magnitude << $shift) + ($rebias << 23);
            let hidden: u32 = ($rebias + 1) << 23;
            let subnormal = (f32::from_bits(shifted + (1 << 23)) - f32::from_bits(hidden)).to_bits();
            let number = if magnitude < 1 << (23 - $shift) { subnormal } else { shifted };
            let finite = if magnitude == $infinity { 0x7f80_0000 } else { number };
            if magnitude > $is_nan { super::NAN_F32 } else { sign | finite }
        }
    };
}

// e4m3 has no infinity: no pattern of seven bits is 0x80.
fp8!(f32_to_e4m3, e4m3_to_f32, 20, 120u32, 16384.0, 0x7e, 0x7e, 0x80);
fp8!(f32_to_e5m2, e5m2_to_f32, 21, 112u32, 128.0, 0x7b, 0x7c, 0x7c);

macro_rules! through_f32 {
    ($($name:ident($a:ident: $from:ty) -> $to:ty = $convert:expr;)*) => {$(
        #[inline(always)]
        pub fn $name($a: $from) -> $to {
            $convert
        }
    )*};
}

through_f32! {
    f16_to_e4m3(a: u16) -> u8 = f32_to_e4m3(f16_to_f32(a));
    f16_to_e5m2(a: u16) -> u8 = f32_to_e5m2(f16_to_f32(a));
    bf16_to_e4m3(a: u16) -> u8 = f32_to_e4m3(bf16_to_f32(a));
    bf16_to_e5m2(a: u16) -> u8 = f32_to_e5m2(bf16_to_f32(a));
    e4m3_to_f16(a: u8) -> u16 = f32_to_f16(e4m3_to_f32(a), Round::Nearest);
    e5m2_to_f16(a: u8) -> u16 = f32_to_f16(e5m2_to_f32(a), Round::Nearest);
    e4m3_to_bf16(a: u8) -> u16 = f32_to_bf16(e4m3_to_f32(a), Round::Nearest);
    e5m2_to_bf16(a: u8) -> u16 = f32_to_bf16(e5m2_to_f32(a), Round::Nearest);
    f16x2_to_e4m3x2(a: u32) -> u16 = pair(f16_to_e4m3((a >> 16) as u16), f16_to_e4m3(a as u16));
    f16x2_to_e5m2x2(a: u32) -> u16 = pair(f16_to_e5m2((a >> 16) as u16), f16_to_e5m2(a as u16));
    bf16x2_to_e4m3x2(a: u32) -> u16 = pair(bf16_to_e4m3((a >> 16) as u16), bf16_to_e4m3(a as u16));
    bf16x2_to_e5m2x2(a: u32) -> u16 = pair(bf16_to_e5m2((a >> 16) as u16), bf16_to_e5m2(a as u16));
    e4m3x2_to_f16x2(a: u16) -> u32 = u32::from(e4m3_to_f16((a >> 8) as u8)) << 16 | u32::from(e4m3_to_f16(a as u8));
    e5m2x2_to_f16x2(a: u16) -> u32 = u32::from(e5m2_to_f16((a >> 8) as u8)) << 16 | u32::from(e5m2_to_f16(a as u8));
}

#[inline(always)]
fn pair(hi: u8, lo: u8) -> u16 {
    u16::from(hi) << 8 | u16::from(lo)
}

#[inline(always)]
pub fn f32x2_to_e4m3x2(hi: u32, lo: u32) -> u16 {
    pair(f32_to_e4m3(hi), f32_to_e4m3(lo))
}

#[inline(always)]
pub fn f32x2_to_e5m2x2(hi: u32, lo: u32) -> u16 {
    pair(f32_to_e5m2(hi), f32_to_e5m2(lo))
}
