//! What products are of: places of elements by the formulas of the PTX manual, and the numbers that bits stand for.

use super::super::super::fragments::{Element, Shape};

/// Row and column of element `i` of a lane's fragment of A.
pub fn place_a(shape: Shape, element: Element, lane: usize, i: usize) -> (usize, usize) {
    let (g, t) = (lane >> 2, lane % 4);
    let low = |first: bool| if first { g } else { g + 8 };
    let f64 = element == Element::F64;
    match (shape.m, shape.k, element.bits()) {
        (8, 4, 64) => (g, t),
        (16, 4, _) => (low(i == 0), t),
        (16, 8, 32 | 64) => (low(i == 0 || i == 2), if i < 2 { t } else { t + 4 }),
        (16, 16, _) if f64 => (low(i & 1 == 0), if i & 1 == 0 { i * 2 + t } else { i * 2 - 2 + t }),
        (16, 8, 16) => (low(i < 2), t * 2 + (i & 1)),
        (16, 16, 16) => (low(i < 2 || (4..6).contains(&i)), t * 2 + (i & 1) + if i < 4 { 0 } else { 8 }),
        (8, 16, 8) => (g, t * 4 + i),
        (16, 16, 8) => (low(i < 4), t * 4 + (i & 3)),
        (16, 32, 8) => (low(i < 4 || (8..12).contains(&i)), t * 4 + (i & 3) + if i < 8 { 0 } else { 16 }),
        (8, 32, 4) => (g, t * 8 + i),
        (16, 32, 4) => (low(i < 8), t * 8 + (i & 7)),
        (16, 64, 4) => (low(i < 8 || (16..24).contains(&i)), t * 8 + (i & 7) + if i < 16 { 0 } else { 32 }),
        other => panic!("no such fragment: {other:?}"),
    }
}

/// Row and column of element `i` of a lane's fragment of B.
pub fn place_b(shape: Shape, element: Element, lane: usize, i: usize) -> (usize, usize) {
    let (g, t) = (lane >> 2, lane % 4);
    let k = match (shape.k, element.bits()) {
        (4, _) => t,
        (8 | 16, 32 | 64) => t + 4 * i,
        (8, 16) => t * 2 + i,
        (16, 16) => t * 2 + (i & 1) + if i < 2 { 0 } else { 8 },
        (16, 8) => t * 4 + i,
        (32, 8) => t * 4 + (i & 3) + if i < 4 { 0 } else { 16 },
        (32, 4) => t * 8 + i,
        (64, 4) => t * 8 + (i & 7) + if i < 8 { 0 } else { 32 },
        other => panic!("no such fragment: {other:?}"),
    };
    (k, g)
}

/// Row and column of element `i` of a lane's fragment of C or D.
pub fn place_c(shape: Shape, lane: usize, i: usize) -> (usize, usize) {
    let (g, t) = (lane >> 2, lane % 4);
    if shape.m == 8 { (g, t * 2 + i) } else { (if i < 2 { g } else { g + 8 }, t * 2 + (i & 1)) }
}

/// The number that bits of a format with these fields stand for; no infinities and NaN.
fn decode(bits: u64, exponent_bits: u32, fraction_bits: u32) -> f64 {
    let bias = (1i32 << (exponent_bits - 1)) - 1;
    let field = (bits >> fraction_bits & ((1 << exponent_bits) - 1)) as i32;
    let fraction = (bits & ((1 << fraction_bits) - 1)) as f64 / f64::from(1u32 << fraction_bits);
    let magnitude =
        if field == 0 { fraction * 2f64.powi(1 - bias) } else { (1.0 + fraction) * 2f64.powi(field - bias) };
    if bits >> (exponent_bits + fraction_bits) & 1 != 0 { -magnitude } else { magnitude }
}

/// The number an element's bits stand for.
pub fn value(element: Element, bits: u64) -> f64 {
    match element {
        Element::F16 => decode(bits, 5, 10),
        Element::Bf16 => decode(bits, 8, 7),
        Element::Tf32 => decode(bits >> 13, 8, 10),
        Element::E4m3 => decode(bits, 4, 3),
        Element::E5m2 => decode(bits, 5, 2),
        Element::F32 => decode(bits, 8, 23),
        Element::F64 => f64::from_bits(bits),
        Element::S8 => f64::from(bits as i8),
        Element::U8 => f64::from(bits as u8),
        Element::S4 => f64::from((bits as i8) << 4 >> 4),
        Element::U4 => f64::from(bits as u8 & 0xf),
        Element::S32 => f64::from(bits as i32),
    }
}
