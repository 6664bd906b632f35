//! Matrix products of a warp (`mma`, `wmma.mma`), and matrices of 16-bit elements in shared memory (`ldmatrix` and its
//! kin).
//!
//! Arithmetic, per element of D:
//! - f16, bf16, tf32, e4m3, e5m2: that of [`tensor_core`].
//! - f64: a chain of fma rounded to nearest, from c, in the order of k.
//! - integers: exact, then wrapped to 32 bits, or clamped with `.satfinite`.

use super::fragments::{Element, Matrix, Product, floats, integers};
use super::lanes::{Row, handlers};
use super::memory::{Kind, addresses_of, translate};
use super::tensor_core::{self, Adder, FRACTION};
use crate::emulator::code::{FULL, Flow, Instr, LANES};
use crate::emulator::fault::FaultKind;
use crate::emulator::float::{self, Round};
use crate::emulator::memory::{SHARED_WINDOW, WINDOW_MASK};
use crate::emulator::warp::{Cx, Wait};

/// Most rows of elements (one per lane) of matrices A and B, and 8x8 tiles of C, of any shape: m16n8k64 has the most
/// elements in A, m8n32k16 in B.
const MAX_A: usize = 16 * 64 / LANES;
const MAX_B: usize = 16 * 32 / LANES;
const MAX_C: usize = 4;

/// A tile of C, by rows.
type Tile<T> = [[T; 8]; 8];

/// Elements of A in the order of lanes, and of B by thread of a group and then by group.
type TableA<T> = [Row<T>; MAX_A];
type TableB<T> = [[[T; 8]; 4]; MAX_B];

/// All 32 lanes must be at the instruction; if they are not, what to do instead.
#[inline(always)]
pub(crate) fn converge(cx: &mut Cx<'_>, m: u32) -> Result<(), Flow> {
    if m == FULL { Ok(()) } else { Err(gather_lanes(cx, m)) }
}

#[cold]
fn gather_lanes(cx: &mut Cx<'_>, m: u32) -> Flow {
    let live = cx.warp.live;
    if live == FULL {
        cx.wait = Wait::Aligned(FULL);
        return Flow::Wait;
    }
    let text = format!(
        "a matrix instruction needs all 32 lanes of the warp, but lanes {:#010x} have exited or never were: blocks must \
         have a multiple of 32 threads, and none may return before it",
        !live
    );
    cx.raise(FaultKind::Invalid { text }, m)
}

/// The rows of a list of operands.
#[inline(always)]
pub(crate) fn rows<'a>(cx: &Cx<'a>, list: u32) -> &'a [u32] {
    let lists = &cx.grid.code().lists;
    let start = list as usize;
    let count = lists[start] as usize;
    &lists[start + 1..start + 1 + count]
}

/// A way to multiply: how elements are read, summed and written.
pub(crate) trait Arithmetic: 'static {
    type Value: Copy + Default;
    /// Element `e` of the register at `row`.
    ///
    /// # Safety
    /// The row must be one of the element's registers.
    unsafe fn read(cx: &Cx<'_>, element: Element, row: u32, e: usize) -> Row<Self::Value>;
    /// `c += a * b`, tile by tile.
    fn accumulate(
        product: &Product,
        a: &TableA<Self::Value>,
        b: &TableB<Self::Value>,
        c: &mut [Tile<Self::Value>; MAX_C],
    );
    /// Write a register of D: `sums` are the elements it holds, `c` the row of the same register of C.
    ///
    /// # Safety
    /// Both rows must be registers of these elements.
    unsafe fn write(cx: &mut Cx<'_>, product: &Product, d: u32, c: u32, sums: &[Row<Self::Value>; 2]);
    /// Do sums begin with C? If not, `write` adds it.
    const FROM_C: bool;
}

pub(crate) struct Floats;
pub(crate) struct Doubles;
pub(crate) struct Integers;

impl Arithmetic for Floats {
    type Value = f64;
    const FROM_C: bool = true;

    #[inline(always)]
    unsafe fn read(cx: &Cx<'_>, element: Element, row: u32, e: usize) -> Row<f64> {
        // SAFETY: the caller's contract.
        floats(element, &unsafe { cx.get::<u32>(row) }, e)
    }

    #[inline(always)]
    fn accumulate(product: &Product, a: &TableA<f64>, b: &TableB<f64>, c: &mut [Tile<f64>; MAX_C]) {
        add_groups(product, a, b, c);
    }

    #[inline(always)]
    unsafe fn write(cx: &mut Cx<'_>, product: &Product, d: u32, _c: u32, sums: &[Row<f64>; 2]) {
        let mut words = [0; LANES];
        if product.d == Element::F16 {
            for lane in 0..LANES {
                let half = |x: f64| u32::from(tensor_core::half(x));
                words[lane] = half(sums[0][lane]) | half(sums[1][lane]) << 16;
            }
        } else {
            for lane in 0..LANES {
                words[lane] = tensor_core::single(sums[0][lane], 23);
            }
        }
        // SAFETY: the caller's contract.
        unsafe { cx.put::<u32>(d, FULL, words) };
    }
}

impl Arithmetic for Doubles {
    type Value = u64;
    const FROM_C: bool = true;

    #[inline(always)]
    unsafe fn read(cx: &Cx<'_>, _element: Element, row: u32, _e: usize) -> Row<u64> {
        // SAFETY: the caller's contract.
        unsafe { cx.get::<u64>(row) }
    }

    #[inline(always)]
    fn accumulate(product: &Product, a: &TableA<u64>, b: &TableB<u64>, c: &mut [Tile<u64>; MAX_C]) {
        add_products(product, a, b, c, |sum, a, b| float::fma_f64(a, b, sum, Round::Nearest));
    }

    #[inline(always)]
    unsafe fn write(cx: &mut Cx<'_>, _product: &Product, d: u32, _c: u32, sums: &[Row<u64>; 2]) {
        // SAFETY: the caller's contract.
        unsafe { cx.put::<u64>(d, FULL, sums[0]) };
    }
}

impl Arithmetic for Integers {
    type Value = i32;
    const FROM_C: bool = false;

    #[inline(always)]
    unsafe fn read(cx: &Cx<'_>, element: Element, row: u32, e: usize) -> Row<i32> {
        // SAFETY: the caller's contract.
        integers(element, &unsafe { cx.get::<u32>(row) }, e)
    }

    /// 64 products of 8 bits by 8 do not leave the range.
    #[inline(always)]
    fn accumulate(product: &Product, a: &TableA<i32>, b: &TableB<i32>, c: &mut [Tile<i32>; MAX_C]) {
        add_products(product, a, b, c, |sum: i32, a: i32, b: i32| sum.wrapping_add(a.wrapping_mul(b)));
    }

    #[inline(always)]
    unsafe fn write(cx: &mut Cx<'_>, product: &Product, d: u32, c: u32, sums: &[Row<i32>; 2]) {
        // SAFETY: the caller's contract.
        let mut words = unsafe { cx.get::<i32>(c) };
        for lane in 0..LANES {
            let (sum, c) = (sums[0][lane], words[lane]);
            words[lane] = if product.saturate { c.saturating_add(sum) } else { c.wrapping_add(sum) };
        }
        // SAFETY: the caller's contract.
        unsafe { cx.put::<i32>(d, FULL, words) };
    }
}

/// `mma` and `wmma.mma`: `d`, `a`, `b` and `c` are lists of rows, `x` is the product.
///
/// The tables follow `Shape::place`, so that nothing depends on the lane: element `e` of register `r` of A is row
/// `r * per + e`, in the order of lanes; of B also, by thread of a group and then by group; C is in tiles.
#[inline(always)]
unsafe fn multiply_body<O: Arithmetic>(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    if let Err(flow) = converge(cx, m) {
        return flow;
    }
    let product = Product::unpack(i.x);
    let shape = product.shape;
    let mut a = [[O::Value::default(); LANES]; MAX_A];
    let mut b = [[[O::Value::default(); 8]; 4]; MAX_B];
    let mut c = [[[O::Value::default(); 8]; 8]; MAX_C];
    // SAFETY: the lists hold rows of the elements' registers.
    unsafe {
        // An f16 fragment of `wmma` may be longer than the matrix.
        let per = product.a.per_register();
        let registers = rows(cx, i.a).iter().take(shape.registers(Matrix::A, product.a));
        for (&row, table) in registers.zip(a.chunks_exact_mut(per)) {
            for (e, values) in table.iter_mut().enumerate() {
                *values = O::read(cx, product.a, row, e);
            }
        }
        let per = product.b.per_register();
        let registers = rows(cx, i.b).iter().take(shape.registers(Matrix::B, product.b));
        for (&row, table) in registers.zip(b.chunks_exact_mut(per)) {
            for (e, turned) in table.iter_mut().enumerate() {
                let values = O::read(cx, product.b, row, e);
                for t in 0..4 {
                    for g in 0..8 {
                        turned[t][g] = values[4 * g + t];
                    }
                }
            }
        }
        if O::FROM_C {
            let per = product.c.per_register();
            for (r, &row) in rows(cx, i.c).iter().enumerate() {
                for e in 0..per {
                    let values = O::read(cx, product.c, row, e);
                    let value = r * per + e;
                    put_values(&mut c[value / 2], value % 2, &values);
                }
            }
        }
    }
    O::accumulate(&product, &a, &b, &mut c);
    let (d_rows, c_rows) = (rows(cx, i.d), rows(cx, i.c));
    let per = product.d.per_register();
    for (r, &row) in d_rows.iter().enumerate() {
        let value = r * per;
        let first = values_of(&c[value / 2], value % 2);
        let sums = [first, if per == 2 { values_of(&c[value / 2], 1) } else { first }];
        // SAFETY: both are rows of these elements, and as many of C as of D where C is used.
        unsafe { O::write(cx, &product, row, c_rows.get(r).copied().unwrap_or(row), &sums) };
    }
    Flow::Next
}

/// Put the lanes' values of the even or odd columns into a tile.
#[inline(always)]
fn put_values<T: Copy>(tile: &mut Tile<T>, odd: usize, values: &Row<T>) {
    for g in 0..8 {
        for t in 0..4 {
            tile[g][2 * t + odd] = values[4 * g + t];
        }
    }
}

#[inline(always)]
fn values_of<T: Copy + Default>(tile: &Tile<T>, odd: usize) -> Row<T> {
    let mut values = [T::default(); LANES];
    for g in 0..8 {
        for t in 0..4 {
            values[4 * g + t] = tile[g][2 * t + odd];
        }
    }
    values
}

/// `c += a * b` for each product, tile by tile, in the order of k.
#[inline(always)]
fn add_products<T: Copy>(
    product: &Product,
    a: &TableA<T>,
    b: &TableB<T>,
    c: &mut [Tile<T>; MAX_C],
    add_product: impl Fn(T, T, T) -> T,
) {
    let per = product.a.per_register();
    let (tiles, steps) = (product.shape.m / 8, product.shape.k / (4 * per));
    for (at, c) in c.iter_mut().enumerate().take(tiles * product.shape.n / 8) {
        let b = &b[at / tiles * steps * per..][..steps * per];
        let a = &a[at % tiles * per..];
        // Half a tile of sums fits the vector registers of a core.
        for half in 0..2 {
            let mut sums = [c[4 * half], c[4 * half + 1], c[4 * half + 2], c[4 * half + 3]];
            for (a, b) in a.chunks(tiles * per).zip(b.chunks_exact(per)) {
                for t in 0..4 {
                    for (a, b) in a.iter().zip(b) {
                        for (g, sums) in sums.iter_mut().enumerate() {
                            let factor = a[4 * (4 * half + g) + t];
                            for column in 0..8 {
                                sums[column] = add_product(sums[column], factor, b[t][column]);
                            }
                        }
                    }
                }
            }
            c[4 * half..][..4].copy_from_slice(&sums);
        }
    }
}

/// `c += a * b` by the groups of a tensor core, tile by tile; the sums are still to be rounded.
#[inline(always)]
fn add_groups(product: &Product, a: &TableA<f64>, b: &TableB<f64>, c: &mut [Tile<f64>; MAX_C]) {
    let per = product.a.per_register();
    let (tiles, steps, columns) = (product.shape.m / 8, product.shape.k / (4 * per), product.shape.n / 8);
    // 8-bit floats are converted, and multiplied by the unit of f16.
    let converted = per == 4;
    let [of_a, of_b] = [product.a, product.b].map(|own| if converted { Element::F16 } else { own });
    let adder = Adder::new(of_a, of_b, product.d, FRACTION);
    let mut powers_a = [[0.0; LANES]; MAX_A];
    for (powers, factors) in powers_a.iter_mut().zip(a).take(tiles * steps * per) {
        adder.powers_a(factors, powers);
    }
    let mut powers_b = [[[0.0; 8]; 4]; MAX_B];
    for (powers, factors) in powers_b.iter_mut().zip(b).take(columns * steps * per) {
        adder.powers_b(factors.as_flattened(), powers.as_flattened_mut());
    }
    // The rows of A's table and of B's, but for the tile; each is four terms of a sum.
    let mut quads = [(0, 0); 8];
    let mut count = 0;
    for (e, step) in (0..per).flat_map(|e| (0..steps).map(move |step| (e, step))) {
        quads[count % 8] = (step * tiles * per + e, step * per + e);
        count += 1;
    }
    for (at, c) in c.iter_mut().enumerate().take(tiles * columns) {
        let (first_a, first_b) = (at % tiles * per, at / tiles * steps * per);
        for (g, c) in c.iter_mut().enumerate() {
            let of_a = |(row, _): (usize, usize)| {
                let row = (first_a + row) % MAX_A;
                (&a[row].as_chunks().0[g], &powers_a[row].as_chunks().0[g])
            };
            let of_b = |(_, row): (usize, usize)| {
                let row = (first_b + row) % MAX_B;
                (&b[row], &powers_b[row])
            };
            if !converted {
                adder.add_group(&quads[..count.min(8)], of_a, of_b, c);
                continue;
            }
            let mut sums = [0.0; 8];
            for group in quads[..count.min(8)].chunks(4) {
                adder.add_group(group, of_a, of_b, &mut sums);
                sums = sums.map(|sum| tensor_core::rounded(sum, product.d));
            }
            for (c, sum) in c.iter_mut().zip(sums) {
                *c = tensor_core::add_nearest(*c, sum, product.d);
            }
        }
    }
}

handlers! {
    multiply = multiply_body<O: Arithmetic>;
}

/// How `ldmatrix` and `stmatrix` find and arrange their rows: the `b` of the instruction.
pub(crate) const TRANSPOSED: u32 = 1;
pub(crate) const WIDE_ADDRESS: u32 = 2;
pub(crate) const GENERIC_ADDRESS: u32 = 4;

/// Host addresses of the rows of 8x8 matrices: lane `8 j + r` names row `r` of matrix `j`, at its own address.
///
/// # Safety
/// `a` must be a row of addresses of the width `b` says.
unsafe fn matrix_rows(cx: &mut Cx<'_>, i: &Instr, matrices: usize, write: bool) -> Result<Row<u64>, Flow> {
    // SAFETY: the caller's contract.
    let mut addresses = unsafe { addresses_of(cx, i.a, i.x as i32, i.b & WIDE_ADDRESS != 0) };
    let used = if matrices >= 4 { FULL } else { (1 << (8 * matrices)) - 1 };
    if i.b & GENERIC_ADDRESS != 0 {
        for (lane, address) in addresses.iter_mut().enumerate() {
            if used >> lane & 1 != 0 && *address & WINDOW_MASK != SHARED_WINDOW {
                let text = format!("the address {address:#x} of a row of a matrix is not in shared memory");
                return Err(cx.raise(FaultKind::Invalid { text }, 1 << lane));
            }
            *address &= !WINDOW_MASK;
        }
    }
    translate(cx, Kind::Shared, &mut addresses, used, 16, write)?;
    Ok(addresses)
}

/// Place in its matrix of the 16-bit half `h` of a lane's register.
#[inline(always)]
fn half_place(lane: usize, h: usize, transposed: bool) -> (usize, usize) {
    let (line, at) = (lane / 4, lane % 4 * 2 + h);
    if transposed { (at, line) } else { (line, at) }
}

/// `ldmatrix`: the matrices at the lanes' addresses (`a`) to the registers of a list, the upper half of `x`.
pub(crate) unsafe fn load_matrix(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    if let Err(flow) = converge(cx, m) {
        return flow;
    }
    let targets = rows(cx, (i.x >> 32) as u32);
    // SAFETY: lowering gave rows of these widths, and the addresses are checked before use.
    unsafe {
        let addresses = match matrix_rows(cx, i, targets.len(), false) {
            Ok(addresses) => addresses,
            Err(flow) => return flow,
        };
        for (addresses, &target) in addresses.chunks_exact(8).zip(targets) {
            let mut words = [0; LANES];
            for (lane, word) in words.iter_mut().enumerate() {
                for h in 0..2 {
                    let (row, column) = half_place(lane, h, i.b & TRANSPOSED != 0);
                    *word |= u32::from((addresses[row] as *const u16).add(column).read()) << (16 * h);
                }
            }
            cx.put::<u32>(target, FULL, words);
        }
    }
    Flow::Next
}

/// `stmatrix`: the reverse.
pub(crate) unsafe fn store_matrix(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    if let Err(flow) = converge(cx, m) {
        return flow;
    }
    let sources = rows(cx, (i.x >> 32) as u32);
    // SAFETY: lowering gave rows of these widths, and the addresses are checked before use.
    unsafe {
        let addresses = match matrix_rows(cx, i, sources.len(), true) {
            Ok(addresses) => addresses,
            Err(flow) => return flow,
        };
        for (addresses, &source) in addresses.chunks_exact(8).zip(sources) {
            for (lane, word) in cx.get::<u32>(source).iter().enumerate() {
                for h in 0..2 {
                    let (row, column) = half_place(lane, h, i.b & TRANSPOSED != 0);
                    (addresses[row] as *mut u16).add(column).write((word >> (16 * h)) as u16);
                }
            }
        }
    }
    Flow::Next
}

/// `movmatrix`: the 8x8 matrix that the lanes hold, transposed.
pub(crate) unsafe fn move_matrix(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    if let Err(flow) = converge(cx, m) {
        return flow;
    }
    // SAFETY: both operands are 32-bit rows.
    unsafe {
        let a = cx.get::<u32>(i.a);
        let mut words = [0; LANES];
        for (lane, word) in words.iter_mut().enumerate() {
            for h in 0..2 {
                let (row, column) = half_place(lane, h, true);
                *word |= (a[row * 4 + column / 2] >> (16 * (column % 2)) & 0xffff) << (16 * h);
            }
        }
        cx.put::<u32>(i.d, FULL, words);
    }
    Flow::Next
}

#[cfg(test)]
mod tests;
