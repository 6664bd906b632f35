//! How the lanes of a warp hold a matrix: element types, and which lane and register an element lies in.
//!
//! One law covers every shape of `mma` but the oldest (`m8n8k4` of f16), for any element size. Lane `l` is thread
//! `t = l % 4` of group `g = l / 4`. A register holds `p` elements, neighbours along k:
//!
//! | matrix | register `r`, element `e` in it | place |
//! |---|---|---|
//! | A | `r % (M/8)` is the tile of 8 rows, `r / (M/8)` the step of `4p` along k | row `8 tile + g`, k `4p step + p t + e` |
//! | B | step along k first, then the tile of 8 columns | k `4p step + p t + e`, column `8 tile + g` |
//! | C, D | values in pairs: the tile of 8 rows first, then that of 8 columns | row `8 tile + g`, column `8 tile + 2t + e` |
//!
//! The fragments of `wmma`, which PTX leaves open, follow the same law with more tiles; those of f16 matrices A and B
//! have eight registers and hold the matrix again in the ones the law does not need.

use super::lanes::Row;
use super::memory::Kind;
use crate::emulator::code::LANES;
use crate::emulator::float;

/// Type of a matrix's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Element {
    F16,
    Bf16,
    Tf32,
    E4m3,
    E5m2,
    F32,
    F64,
    S8,
    U8,
    S4,
    U4,
    S32,
}

impl Element {
    const ALL: [(Element, &'static str); 12] = [
        (Element::F16, "f16"),
        (Element::Bf16, "bf16"),
        (Element::Tf32, "tf32"),
        (Element::E4m3, "e4m3"),
        (Element::E5m2, "e5m2"),
        (Element::F32, "f32"),
        (Element::F64, "f64"),
        (Element::S8, "s8"),
        (Element::U8, "u8"),
        (Element::S4, "s4"),
        (Element::U4, "u4"),
        (Element::S32, "s32"),
    ];

    pub fn parse(word: &str) -> Option<Element> {
        Element::ALL.iter().find(|(_, name)| *name == word).map(|(element, _)| *element)
    }

    pub fn bits(self) -> usize {
        match self {
            Element::S4 | Element::U4 => 4,
            Element::E4m3 | Element::E5m2 | Element::S8 | Element::U8 => 8,
            Element::F16 | Element::Bf16 => 16,
            Element::Tf32 | Element::F32 | Element::S32 => 32,
            Element::F64 => 64,
        }
    }

    /// Elements of one register, which has 32 bits, or 64 for f64.
    pub fn per_register(self) -> usize {
        if self == Element::F64 { 1 } else { 32 / self.bits() }
    }

    pub fn from_byte(byte: u8) -> Element {
        Element::ALL.get(usize::from(byte)).map_or(Element::F32, |(element, _)| *element)
    }
}

/// Which matrix of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Matrix {
    A,
    B,
    /// C, and D, which is held in the same way.
    C,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub m: usize,
    pub n: usize,
    pub k: usize,
}

impl Shape {
    /// The shape a word such as `m16n8k16` names.
    pub fn parse(word: &str) -> Option<Shape> {
        let (m, rest) = word.strip_prefix('m')?.split_once('n')?;
        let (n, k) = rest.split_once('k')?;
        let number = |text: &str| text.parse::<u8>().ok().filter(|n| *n > 0).map(usize::from);
        Some(Shape { m: number(m)?, n: number(n)?, k: number(k)? })
    }

    /// Registers of 32 bits (64 for f64) that a lane needs for a matrix.
    pub fn registers(self, matrix: Matrix, element: Element) -> usize {
        let elements = match matrix {
            Matrix::A => self.m * self.k,
            Matrix::B => self.k * self.n,
            Matrix::C => self.m * self.n,
        };
        elements / LANES / element.per_register()
    }

    /// Row and column of element `e` of register `r` of a lane, in a matrix with `per` elements to a register.
    #[inline(always)]
    pub fn place(self, matrix: Matrix, per: usize, lane: usize, r: usize, e: usize) -> (usize, usize) {
        let (g, t) = (lane / 4, lane % 4);
        match matrix {
            Matrix::A => {
                let tiles = self.m / 8;
                (r % tiles * 8 + g, r / tiles * 4 * per + t * per + e)
            }
            Matrix::B => {
                let steps = self.k / (4 * per);
                (r % steps * 4 * per + t * per + e, r / steps * 8 + g)
            }
            Matrix::C => {
                let (value, tiles) = (r * per + e, self.m / 8);
                (value / 2 % tiles * 8 + g, value / 2 / tiles * 8 + 2 * t + value % 2)
            }
        }
    }
}

/// A product `D = A * B + C`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Product {
    pub shape: Shape,
    pub a: Element,
    pub b: Element,
    pub c: Element,
    pub d: Element,
    /// Integer sums stop at the ends of their range instead of wrapping.
    pub saturate: bool,
}

impl Product {
    /// As the `x` of an instruction.
    pub fn pack(self) -> u64 {
        let Shape { m, n, k } = self.shape;
        let elements = [self.a, self.b, self.c, self.d].map(|element| element as u8);
        let [a, b, c, d] = elements;
        u64::from_le_bytes([m as u8, n as u8, k as u8, a, b, c, d, u8::from(self.saturate)])
    }

    pub fn unpack(x: u64) -> Product {
        let [m, n, k, a, b, c, d, saturate] = x.to_le_bytes();
        let [m, n, k] = [m, n, k].map(usize::from);
        let [a, b, c, d] = [a, b, c, d].map(Element::from_byte);
        Product { shape: Shape { m, n, k }, a, b, c, d, saturate: saturate != 0 }
    }
}

/// A matrix in memory that `wmma.load` or `wmma.store` moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fragment {
    pub shape: Shape,
    pub matrix: Matrix,
    pub element: Element,
    pub column_major: bool,
    pub kind: Kind,
}

impl Fragment {
    /// As the `x` of an instruction.
    pub fn pack(self) -> u64 {
        let Shape { m, n, k } = self.shape;
        let kind = match self.kind {
            Kind::Global => 0,
            Kind::Shared => 1,
            _ => 2,
        };
        let major = u8::from(self.column_major);
        u64::from_le_bytes([m as u8, n as u8, k as u8, self.matrix as u8, self.element as u8, major, kind, 0])
    }

    pub fn unpack(x: u64) -> Fragment {
        let [m, n, k, matrix, element, major, kind, _] = x.to_le_bytes();
        let [m, n, k] = [m, n, k].map(usize::from);
        let matrix = match matrix {
            0 => Matrix::A,
            1 => Matrix::B,
            _ => Matrix::C,
        };
        let kind = match kind {
            0 => Kind::Global,
            1 => Kind::Shared,
            _ => Kind::Generic,
        };
        let element = Element::from_byte(element);
        Fragment { shape: Shape { m, n, k }, matrix, element, column_major: major != 0, kind }
    }
}

/// Element `e` of each lane's register, exactly.
#[inline(always)]
pub(crate) fn floats(element: Element, words: &Row<u32>, e: usize) -> Row<f64> {
    let mut values = [0f32; LANES];
    macro_rules! each {
        ($word:ident => $bits:expr) => {
            for lane in 0..LANES {
                let $word = words[lane];
                values[lane] = f32::from_bits($bits);
            }
        };
    }
    match element {
        Element::F16 => each!(word => float::f16_to_f32((word >> (16 * e)) as u16)),
        Element::Bf16 => each!(word => float::bf16_to_f32((word >> (16 * e)) as u16)),
        // Hardware does not look at the 13 lowest bits.
        Element::Tf32 => each!(word => word & 0xffff_e000),
        Element::E4m3 => each!(word => float::e4m3_to_f32((word >> (8 * e)) as u8)),
        Element::E5m2 => each!(word => float::e5m2_to_f32((word >> (8 * e)) as u8)),
        _ => each!(word => word),
    }
    values.map(f64::from)
}

/// Element `e` of each lane's register of integers.
#[inline(always)]
pub(crate) fn integers(element: Element, words: &Row<u32>, e: usize) -> Row<i32> {
    match element {
        Element::S8 => words.map(|word| i32::from((word >> (8 * e)) as i8)),
        Element::U8 => words.map(|word| i32::from((word >> (8 * e)) as u8)),
        Element::S4 => words.map(|word| (word << (28 - 4 * e)) as i32 >> 28),
        Element::U4 => words.map(|word| (word >> (4 * e)) as i32 & 0xf),
        _ => words.map(|word| word as i32),
    }
}
