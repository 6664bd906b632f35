//! Matrix products of a warp group (`wgmma`): four warps multiply matrices of which B, and A too if not in registers, are
//! in shared memory.
//!
//! Each warp makes its 16 of the 64 rows, at once: registers of the sums may be moved before the wait, which compilers
//! do, and then hold what the hardware gives after it. That shared memory stays as it is until the wait is left to the
//! checker. The arithmetic is that of [`super::tensor_core`].
//!
//! A descriptor tells how a matrix lies in shared memory: the address of its start (bits 0 to 13), the leading (16 to 29)
//! and the stride byte offset (32 to 45), all in units of 16 bytes, and the swizzle (62 and 63). With `W` the bytes of a
//! row of the swizzle (16 without one), and a unit of 16 bytes along the contiguous dimension:
//!
//! | contiguous | row `r` (of M or N) and `k` lie at |
//! |---|---|
//! | k, no swizzle | `r % 8 * 16 + r / 8 * stride + unit of k * leading` |
//! | k, swizzle | `r % 8 * W + r / 8 * stride + byte of k` |
//! | M or N, no swizzle | `unit of r * stride + k % 8 * 16 + k / 8 * leading` |
//! | M or N, swizzle | `byte of r / W * leading + byte of r % W + k % 8 * W + k / 8 * stride` |

use super::fragments::{Element, Matrix, Shape, floats};
use super::lanes::handlers;
use super::matrix::{converge, rows};
use super::tensor_core::{self, Adder, COLUMNS, FRACTION, QUAD, SHORT_FRACTION};
use crate::emulator::code::{FULL, Flow, Instr, LANES};
use crate::emulator::fault::{FaultKind, MemorySpace};
use crate::emulator::float;
use crate::emulator::tensor_map::Swizzle;
use crate::emulator::warp::Cx;

/// Rows of D that a warp makes, and the most elements along k.
const ROWS: usize = 16;
const MAX_K: usize = 32;

/// A product as the list of an instruction holds it: these numbers, rows of A (or of its descriptor), rows of D.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Product {
    pub n: usize,
    pub k: usize,
    pub a: Element,
    pub b: Element,
    /// A is in registers.
    pub fragment: bool,
    /// Factors of A and B are negated; they are contiguous along M and N.
    pub negated: [bool; 2],
    pub turned: [bool; 2],
    /// Row of the predicate that tells whether D is added to, and its negation.
    pub adds: (u32, bool),
}

/// Numbers of a list before the rows.
const FIXED: usize = 7;

impl Product {
    pub fn pack(&self) -> [u32; FIXED] {
        let flags = [self.negated[0], self.negated[1], self.turned[0], self.turned[1], self.fragment, self.adds.1];
        let flags = flags.iter().enumerate().fold(0, |all, (bit, &flag)| all | u32::from(flag) << bit);
        [self.n as u32, self.k as u32, self.a as u32, self.b as u32, flags, self.adds.0, 0]
    }

    fn unpack(list: &[u32]) -> Product {
        let flag = |bit: u32| list[4] >> bit & 1 != 0;
        Product {
            n: list[0] as usize,
            k: list[1] as usize,
            a: Element::from_byte(list[2] as u8),
            b: Element::from_byte(list[3] as u8),
            fragment: flag(4),
            negated: [flag(0), flag(1)],
            turned: [flag(2), flag(3)],
            adds: (list[5], flag(5)),
        }
    }
}

/// A matrix in shared memory.
#[derive(Clone, Copy, Debug)]
struct Descriptor {
    start: u32,
    leading: u32,
    stride: u32,
    swizzle: Swizzle,
}

impl Descriptor {
    fn new(bits: u64) -> Result<Descriptor, FaultKind> {
        let field = |at: u32| (bits >> at) as u32 & 0x3fff;
        if bits >> 49 & 7 != 0 {
            let text = format!(
                "the matrix descriptor {bits:#x} has a base offset: matrices must start where the swizzle's pattern does"
            );
            return Err(FaultKind::Invalid { text });
        }
        let swizzle = match bits >> 62 {
            0 => Swizzle::None,
            1 => Swizzle::B128,
            2 => Swizzle::B64,
            _ => Swizzle::B32,
        };
        Ok(Descriptor { start: field(0) << 4, leading: field(16) << 4, stride: field(32) << 4, swizzle })
    }

    /// Address of the 16 bytes that hold the elements of a row from `k` on, or with `turned` of `k` from that row on.
    #[inline(always)]
    fn unit(&self, row: u32, k: u32, item: u32, turned: bool) -> u32 {
        let span = self.swizzle.span();
        let plain = self.swizzle == Swizzle::None;
        let offset = match (turned, plain) {
            (false, true) => row % 8 * 16 + row / 8 * self.stride + k * item / 16 * self.leading,
            (false, false) => row % 8 * span + row / 8 * self.stride + k * item,
            (true, true) => row * item / 16 * self.stride + k % 8 * 16 + k / 8 * self.leading,
            (true, false) => row * item / span * self.leading + row * item % span + k % 8 * span + k / 8 * self.stride,
        };
        self.swizzle.apply(self.start + offset)
    }
}

/// What the sums of a product are.
pub(crate) trait Sum: 'static {
    /// Sums of a register.
    const PER: usize;
    /// The type of the sums.
    const ELEMENT: Element;
    fn read(word: u32, e: usize) -> f64;
    /// Sums rounded, to this many fraction bits where they are f32.
    fn write(sums: [f64; 2], fraction: i32) -> u32;
}

pub(crate) struct Singles;
pub(crate) struct Halves;
/// Of integers, which wrap or stop at the limits. A product of 32 factors fits a double exactly.
pub(crate) struct Integers<const SATURATE: bool>;

impl Sum for Singles {
    const PER: usize = 1;
    const ELEMENT: Element = Element::F32;

    #[inline(always)]
    fn read(word: u32, _e: usize) -> f64 {
        f64::from(f32::from_bits(word))
    }

    #[inline(always)]
    fn write(sums: [f64; 2], fraction: i32) -> u32 {
        tensor_core::single(sums[0], fraction)
    }
}

impl Sum for Halves {
    const PER: usize = 2;
    const ELEMENT: Element = Element::F16;

    #[inline(always)]
    fn read(word: u32, e: usize) -> f64 {
        f64::from(f32::from_bits(float::f16_to_f32((word >> (16 * e)) as u16)))
    }

    #[inline(always)]
    fn write(sums: [f64; 2], _fraction: i32) -> u32 {
        let half = |x: f64| u32::from(tensor_core::half(x));
        half(sums[0]) | half(sums[1]) << 16
    }
}

impl<const SATURATE: bool> Sum for Integers<SATURATE> {
    const PER: usize = 1;
    const ELEMENT: Element = Element::S32;

    #[inline(always)]
    fn read(word: u32, _e: usize) -> f64 {
        f64::from(word as i32)
    }

    #[inline(always)]
    fn write(sums: [f64; 2], _fraction: i32) -> u32 {
        // A conversion from floating point stops at the limits by itself.
        if SATURATE { sums[0] as i32 as u32 } else { sums[0] as i64 as u32 }
    }
}

/// Read a matrix of `count` rows from the row `first` on: the element of a row and `k` goes to `place(row, k)`.
#[inline(always)]
fn read_matrix(
    cx: &mut Cx<'_>,
    descriptor: Descriptor,
    (element, turned, negated): (Element, bool, bool),
    (first, count, k): (usize, usize, usize),
    units: &mut Vec<u32>,
    mut put: impl FnMut(usize, usize, f64),
) -> Result<(), FaultKind> {
    let item = element.bits() / 8;
    let per = 16 / item;
    let (step_row, step_k) = if turned { (per, 1) } else { (1, per) };
    let (memory, limit) = (cx.block.memory.as_mut_ptr(), cx.block.memory.bytes as u64);
    let watched = cx.checker.is_some();
    let sign = if negated { -1.0 } else { 1.0 };
    for row in (0..count).step_by(step_row) {
        for column in (0..k).step_by(step_k) {
            let at = descriptor.unit((first + row) as u32, column as u32, item as u32, turned);
            if u64::from(at) + 16 > limit {
                let (space, write, address) = (MemorySpace::Shared, false, u64::from(at));
                return Err(FaultKind::OutOfBounds { space, write, address, bytes: 16, limit });
            }
            if watched {
                units.push(at);
            }
            // SAFETY: inside the block's shared memory.
            let words = unsafe { memory.add(at as usize).cast::<[u32; 4]>().read_unaligned() };
            for e in 0..per {
                let value = sign * scalar(element, words[e * item / 4], e % (4 / item));
                if turned { put(row + e, column, value) } else { put(row, column + e, value) }
            }
        }
    }
    Ok(())
}

/// Element `e` of a word, exactly.
#[inline(always)]
fn scalar(element: Element, word: u32, e: usize) -> f64 {
    let bits = match element {
        Element::F16 => float::f16_to_f32((word >> (16 * e)) as u16),
        Element::Bf16 => float::bf16_to_f32((word >> (16 * e)) as u16),
        Element::E4m3 => float::e4m3_to_f32((word >> (8 * e)) as u8),
        Element::E5m2 => float::e5m2_to_f32((word >> (8 * e)) as u8),
        Element::S8 => return f64::from((word >> (8 * e)) as i8),
        Element::U8 => return f64::from((word >> (8 * e)) as u8),
        // Hardware does not look at the 13 lowest bits.
        _ => word & 0xffff_e000,
    };
    f64::from(f32::from_bits(bits))
}

/// `wgmma.mma_async`: `x` is the list of the product, `a` that of A's rows, `b` the descriptor of B, `d` D's list.
#[inline(always)]
unsafe fn multiply_body<S: Sum>(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    if let Err(flow) = converge(cx, m) {
        return flow;
    }
    let group = cx.warp.id / 4 * 4 + 4;
    if group * LANES as u32 > cx.grid.threads() {
        let text = "'wgmma' needs a group of four whole warps, the first one's number a multiple of four".to_string();
        return cx.raise(FaultKind::Invalid { text }, m);
    }
    let product = Product::unpack(rows(cx, i.x as u32));
    // SAFETY: lists and rows are those of the product.
    match unsafe { multiply::<S>(cx, i, &product) } {
        Ok(flow) => flow,
        Err(kind) => cx.raise(kind, m),
    }
}

/// # Safety
/// The instruction's lists are those of the product.
#[inline(always)]
unsafe fn multiply<S: Sum>(cx: &mut Cx<'_>, i: &Instr, product: &Product) -> Result<Flow, FaultKind> {
    let Product { n, k, .. } = *product;
    let warp = cx.warp.id as usize % 4;
    let mut units = Vec::new();
    let mut a = [[0f64; MAX_K]; ROWS];
    let a_rows = rows(cx, i.a);
    if product.fragment {
        let shape = Shape { m: ROWS, n: 8, k };
        let per = product.a.per_register();
        let sign = if product.negated[0] { -1.0 } else { 1.0 };
        for (r, &row) in a_rows.iter().enumerate() {
            // SAFETY: the caller's contract.
            let words = unsafe { cx.get::<u32>(row) };
            for e in 0..per {
                let values = match product.a {
                    Element::S8 | Element::U8 => words.map(|word| scalar(product.a, word, e)),
                    _ => floats(product.a, &words, e),
                };
                for (lane, value) in values.into_iter().enumerate() {
                    let (row, column) = shape.place(Matrix::A, per, lane, r, e);
                    a[row % ROWS][column % MAX_K] = sign * value;
                }
            }
        }
    } else {
        // SAFETY: the caller's contract.
        let bits = unsafe { cx.get::<u64>(a_rows[0]) };
        let kind = (product.a, product.turned[0], product.negated[0]);
        read_matrix(cx, Descriptor::new(bits[0])?, kind, (ROWS * warp, ROWS, k), &mut units, |row, k, value| {
            a[row % ROWS][k % MAX_K] = value;
        })?;
    }
    // By k, so that the sums of a row lie next to each other.
    let mut b = vec![0f64; k * n];
    // SAFETY: the caller's contract.
    let bits = unsafe { cx.get::<u64>(i.b) };
    let kind = (product.b, product.turned[1], product.negated[1]);
    read_matrix(cx, Descriptor::new(bits[0])?, kind, (0, n, k), &mut units, |column, k, value| {
        if let Some(slot) = b.get_mut(k * n + column) {
            *slot = value;
        }
    })?;
    if !units.is_empty()
        && let Err(flow) = note_units(cx, units)
    {
        return Ok(flow);
    }
    // SAFETY: the caller's contract.
    let adds = unsafe { cx.pred(product.adds.0) } & 1 != u32::from(product.adds.1);
    let d_rows = rows(cx, i.d);
    let shape = Shape { m: ROWS, n, k };
    let mut sums = vec![0f64; ROWS * n];
    if adds {
        for (r, &row) in d_rows.iter().enumerate() {
            // SAFETY: the caller's contract.
            let words = unsafe { cx.get::<u32>(row) };
            for e in 0..S::PER {
                for (lane, &word) in words.iter().enumerate() {
                    let (row, column) = shape.place(Matrix::C, S::PER, lane, r, e);
                    sums[row * n + column] = S::read(word, e);
                }
            }
        }
    }
    // Sums of 8-bit floats keep no more fraction bits than their terms.
    let short = matches!(product.a, Element::E4m3 | Element::E5m2);
    let (terms, fraction) = if short { (SHORT_FRACTION, SHORT_FRACTION) } else { (FRACTION, 23) };
    if S::ELEMENT == Element::S32 {
        for (a, sums) in a.iter().zip(sums.chunks_exact_mut(n)) {
            for (&factor, b) in a.iter().zip(b.chunks_exact(n)) {
                for (sum, &b) in sums.iter_mut().zip(b) {
                    *sum += factor * b;
                }
            }
        }
    } else {
        let adder = Adder::new(product.a, product.b, S::ELEMENT, terms);
        add_group(&adder, &a, &b, (n, k), &mut sums);
    }
    for (r, &row) in d_rows.iter().enumerate() {
        let mut words = [0u32; LANES];
        for (lane, word) in words.iter_mut().enumerate() {
            let sum = |e: usize| {
                let (row, column) = shape.place(Matrix::C, S::PER, lane, r, e);
                sums[row * n + column]
            };
            *word = S::write([sum(0), sum(S::PER - 1)], fraction);
        }
        // SAFETY: the caller's contract.
        unsafe { cx.put::<u32>(row, FULL, words) };
    }
    Ok(Flow::Next)
}

/// `sums += a * b`, where all k are one group.
#[inline(always)]
fn add_group(adder: &Adder, a: &[[f64; MAX_K]; ROWS], b: &[f64], (n, k): (usize, usize), sums: &mut [f64]) {
    const QUADS: usize = MAX_K / QUAD;
    let mut powers_a = [[0.0; MAX_K]; ROWS];
    adder.powers_a(a.as_flattened(), powers_a.as_flattened_mut());
    let quads: [usize; QUADS] = std::array::from_fn(|quad| quad);
    let quads = &quads[..(k / QUAD).min(QUADS)];
    for column in (0..n).step_by(COLUMNS) {
        // These stay in the first cache while all rows use them.
        let (mut factors, mut powers) = ([[[0.0; COLUMNS]; QUAD]; QUADS], [[[0.0; COLUMNS]; QUAD]; QUADS]);
        for (factors, b) in factors.as_flattened_mut().iter_mut().zip(b.chunks_exact(n)) {
            factors.copy_from_slice(&b[column..][..COLUMNS]);
        }
        for (powers, factors) in powers.iter_mut().zip(&factors).take(quads.len()) {
            adder.powers_b(factors.as_flattened(), powers.as_flattened_mut());
        }
        for ((a, powers_a), sums) in a.iter().zip(&powers_a).zip(sums.chunks_exact_mut(n)) {
            let of_a = |quad: usize| (&a.as_chunks().0[quad % QUADS], &powers_a.as_chunks().0[quad % QUADS]);
            let of_b = |quad: usize| (&factors[quad % QUADS], &powers[quad % QUADS]);
            if let Some(sums) = sums[column..].first_chunk_mut() {
                adder.add_group(quads, of_a, of_b, sums);
            }
        }
    }
}

handlers! {
    multiply_group = multiply_body<S: Sum>;
}

/// Shared memory that a product reads until it is waited for.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    group: u32,
    pc: u32,
    units: Vec<u32>,
    held: u64,
}

/// Products of a warp that are not waited for, where the launch is checked.
#[derive(Clone, Debug, Default)]
pub(crate) struct Products {
    readings: Vec<Reading>,
    committed: u32,
}

/// What 16-byte units of shared memory hold, in short.
fn fingerprint(cx: &mut Cx<'_>, units: &[u32]) -> u64 {
    let memory = cx.block.memory.as_mut_ptr();
    units.iter().fold(0, |all: u64, &at| {
        // SAFETY: units were checked when they were read.
        let [low, high] = unsafe { memory.add(at as usize).cast::<[u64; 2]>().read_unaligned() };
        let mixed = (all ^ low).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        (mixed ^ high).wrapping_mul(0xbf58_476d_1ce4_e5b9).rotate_left(31)
    })
}

#[cold]
fn note_units(cx: &mut Cx<'_>, units: Vec<u32>) -> Result<(), Flow> {
    for part in units.chunks(LANES) {
        let mut at = [0; LANES];
        at.iter_mut().zip(part).for_each(|(at, &unit)| *at = u64::from(unit));
        let lanes = if part.len() == LANES { FULL } else { (1 << part.len()) - 1 };
        cx.check_async_read(&at, lanes, "'wgmma'")?;
    }
    let held = fingerprint(cx, &units);
    let (group, pc) = (cx.warp.products.committed, cx.pc);
    cx.warp.products.readings.push(Reading { group, pc, units, held });
    Ok(())
}

/// `wgmma.fence`
pub(crate) unsafe fn fence(cx: &mut Cx<'_>, _i: &Instr, m: u32) -> Flow {
    converge(cx, m).map_or_else(|flow| flow, |()| Flow::Next)
}

/// `wgmma.commit_group`
pub(crate) unsafe fn commit(cx: &mut Cx<'_>, _i: &Instr, m: u32) -> Flow {
    if let Err(flow) = converge(cx, m) {
        return flow;
    }
    cx.warp.products.committed = cx.warp.products.committed.wrapping_add(1);
    Flow::Next
}

/// `wgmma.wait_group x`: all groups but the last `x` are complete.
pub(crate) unsafe fn wait_group(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    if let Err(flow) = converge(cx, m) {
        return flow;
    }
    let committed = cx.warp.products.committed;
    let mut readings = std::mem::take(&mut cx.warp.products.readings);
    let due = |reading: &mut Reading| u64::from(committed.wrapping_sub(reading.group)) > i.x;
    for reading in readings.extract_if(.., due) {
        if fingerprint(cx, &reading.units) != reading.held {
            let place = cx.grid.code().place(reading.pc);
            let line = if place.line > 0 { place.line } else { place.ptx };
            let text = format!(
                "shared memory that the 'wgmma' of line {line} reads was overwritten before this wait for it: \
                 wait before the memory is used again"
            );
            return cx.raise(FaultKind::Check { text }, m);
        }
    }
    cx.warp.products.readings = readings;
    Flow::Next
}
