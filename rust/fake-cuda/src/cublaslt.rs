//! A stand-in for cuBLASLt: matrix products from the descriptors it was given, in its column-major terms.
//!
//! It is strict about sizes, leading dimensions, alignments and workspaces, so that a wrong descriptor is an error or a
//! wrong result. It knows two algorithms: one chain over k in ascending order, and four chains whose sums are added in a
//! workspace, which it prefers wherever both are allowed.

use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void};

use crate::api::{Export, exports, get, put};
use crate::memory::Memory;
use crate::state::*;
use crate::stream::{Op, enqueue};

const INVALID: i32 = 7;
const NOT_INITIALISED: i32 = 1;
const NOT_SUPPORTED: i32 = 15;

const TRANSPOSED: i32 = 1;
/// `cudaDataType` and bytes of an element.
const TYPES: [(i32, usize); 7] = [(F32, 4), (F64, 8), (2, 2), (I8, 1), (I32, 4), (14, 2), (E4M3, 1)];
const F32: i32 = 0;
const F64: i32 = 1;
const I8: i32 = 3;
const I32: i32 = 10;
const E4M3: i32 = 28;
/// `cublasComputeType_t` and the type of alpha and beta: float32, the same through tf32, float64, int32.
const COMPUTE: [(i32, i32); 4] = [(68, F32), (TF32, F32), (70, F64), (72, I32)];
const TF32: i32 = 77;

/// Marks the algorithms of this library.
const MARK: u64 = 0x7067_6b5f_616c_676f;
const CHAIN: u64 = 66;
const SPLIT: u64 = 67;
const SPLIT_WORKSPACE: usize = 4096;

/// What the library holds.
#[derive(Default)]
pub(crate) struct Lt {
    /// The device of each handle.
    handles: HashMap<usize, i32>,
    descs: HashMap<usize, Desc>,
    layouts: HashMap<usize, Layout>,
    preferences: HashMap<usize, Preference>,
}

#[derive(Clone, Copy)]
struct Desc {
    compute: i32,
    scale: i32,
    transposed: [bool; 2],
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Layout {
    kind: i32,
    item: usize,
    rows: u64,
    cols: u64,
    ld: i64,
    batch: i32,
    offset: i64,
}

#[derive(Clone, Copy)]
struct Preference {
    workspace: u64,
    reductions: u32,
    alignment: [u32; 4],
}

/// `cublasLtMatmulAlgo_t`: here the mark, the algorithm's number, its alignment, and zeros.
type Algo = [u64; 8];

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Chosen {
    algo: Algo,
    workspace: usize,
    state: i32,
    waves: f32,
    reserved: [i32; 4],
}

/// One product on its way to a stream.
#[derive(Clone, Debug)]
pub(crate) struct Gemm {
    transposed: [bool; 2],
    layouts: [Layout; 3],
    /// Of a, b, c and d.
    addresses: [u64; 4],
    /// Type of alpha and beta, and of the sums.
    scale: i32,
    alpha: f64,
    beta: f64,
    /// Chains that the sum over k is made of.
    parts: usize,
    workspace: Option<u64>,
}

impl Layout {
    fn bytes(&self) -> usize {
        let last = (self.batch as i64 - 1) * self.offset + (self.cols as i64 - 1) * self.ld + self.rows as i64;
        last.max(0) as usize * self.item
    }

    fn at(&self, batch: usize, row: usize, col: usize) -> usize {
        batch * self.offset as usize + col * self.ld as usize + row
    }
}

/// An element; float64 holds those of every type.
unsafe fn load(base: u64, layout: &Layout, index: usize) -> f64 {
    let address = base + (index * layout.item) as u64;
    // SAFETY: the caller has checked the matrix's range.
    unsafe {
        match layout.kind {
            F32 => f64::from((address as *const f32).read_unaligned()),
            F64 => (address as *const f64).read_unaligned(),
            I8 => f64::from((address as *const i8).read()),
            I32 => f64::from((address as *const i32).read_unaligned()),
            E4M3 => f64::from(e4m3_to_f32((address as *const u8).read())),
            2 => f64::from(half_to_f32((address as *const u16).read_unaligned())),
            _ => f64::from(f32::from_bits(u32::from((address as *const u16).read_unaligned()) << 16)),
        }
    }
}

unsafe fn store(base: u64, layout: &Layout, index: usize, value: f64) {
    let address = base + (index * layout.item) as u64;
    // SAFETY: the caller has checked the matrix's range.
    unsafe {
        match layout.kind {
            F32 => (address as *mut f32).write_unaligned(value as f32),
            F64 => (address as *mut f64).write_unaligned(value),
            I32 => (address as *mut i32).write_unaligned(value as i32),
            2 => (address as *mut u16).write_unaligned(f32_to_half(value as f32)),
            _ => {
                let value = value as f32;
                let bits = value.to_bits();
                let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
                (address as *mut u16).write_unaligned(if value.is_nan() { 0x7fc0 } else { rounded as u16 });
            }
        }
    }
}

fn e4m3_to_f32(code: u8) -> f32 {
    let (sign, exponent, fraction) = (f32::from(1 - 2 * (code >> 7) as i8), code >> 3 & 15, f32::from(code & 7));
    match (exponent, code & 7) {
        (15, 7) => f32::NAN,
        (0, _) => sign * fraction * (-9f32).exp2(),
        _ => sign * (1.0 + fraction / 8.0) * (f32::from(exponent) - 7.0).exp2(),
    }
}

fn half_to_f32(half: u16) -> f32 {
    let (sign, exponent, fraction) = (f32::from(1 - 2 * (half >> 15) as i16), half >> 10 & 31, f32::from(half & 1023));
    match exponent {
        0 => sign * fraction * (-24f32).exp2(),
        31 if fraction == 0.0 => sign * f32::INFINITY,
        31 => f32::NAN,
        _ => sign * (1.0 + fraction / 1024.0) * (f32::from(exponent) - 15.0).exp2(),
    }
}

fn f32_to_half(value: f32) -> u16 {
    let sign = if value.is_sign_negative() { 0x8000 } else { 0 };
    let size = value.abs();
    if value.is_nan() {
        return 0x7e00;
    }
    if size >= 65520.0 {
        return sign | 0x7c00;
    }
    // The unit of the last place; the nearest multiple of it, ties to even, is exact in float32.
    let exponent = ((size.to_bits() >> 23) as i32 - 127).max(-14);
    let unit = ((exponent - 10) as f32).exp2();
    let steps = (size / unit).round_ties_even() as u16;
    sign | (((exponent + 14) as u16) << 10).wrapping_add(steps)
}

impl Gemm {
    pub fn reachable(&self, memory: &Memory) -> bool {
        let [a, b, d] = &self.layouts;
        let matrices =
            self.addresses.iter().zip([a, b, d, d]).all(|(at, layout)| memory.reachable(*at, layout.bytes()));
        matrices && self.workspace.is_none_or(|at| memory.reachable(at, SPLIT_WORKSPACE))
    }

    /// # Safety
    /// The matrices are reachable.
    pub unsafe fn run(&self) {
        let [a, b, d] = &self.layouts;
        let [at_a, at_b, at_c, at_d] = self.addresses;
        let (m, n) = (d.rows as usize, d.cols as usize);
        let k = if self.transposed[0] { a.rows } else { a.cols } as usize;
        let place = |layout: &Layout, transposed: bool, batch, row, col| match transposed {
            true => layout.at(batch, col, row),
            false => layout.at(batch, row, col),
        };
        for batch in 0..d.batch as usize {
            for (row, col) in (0..m).flat_map(|row| (0..n).map(move |col| (row, col))) {
                let chain = |range: std::ops::Range<usize>| {
                    // SAFETY: as the caller promised.
                    range.fold(0.0, |sum, i| unsafe {
                        let x = load(at_a, a, place(a, self.transposed[0], batch, row, i));
                        let y = load(at_b, b, place(b, self.transposed[1], batch, i, col));
                        match self.scale {
                            F32 => f64::from((x as f32).mul_add(y as f32, sum as f32)),
                            F64 => x.mul_add(y, sum),
                            _ => f64::from((x as i32 * y as i32).wrapping_add(sum as i32)),
                        }
                    })
                };
                let rounded = |value: f64| if self.scale == F32 { f64::from(value as f32) } else { value };
                let sums = (0..self.parts).map(|part| chain(k * part / self.parts..k * (part + 1) / self.parts));
                let sum = sums.fold(0.0, |all, part| rounded(all + part));
                let index = d.at(batch, row, col);
                // SAFETY: as the caller promised; c is not read without need.
                unsafe {
                    let before = if self.beta == 0.0 { 0.0 } else { rounded(self.beta * load(at_c, d, index)) };
                    store(at_d, d, index, rounded(rounded(self.alpha * sum) + before));
                }
            }
        }
        if let Some(workspace) = self.workspace {
            // SAFETY: as the caller promised.
            unsafe { std::ptr::write_bytes(workspace as *mut u8, 0xcd, SPLIT_WORKSPACE) };
        }
    }
}

fn handle_of(state: &State, handle: usize) -> Result<(), i32> {
    let device = state.lt.handles.get(&handle).ok_or(NOT_INITIALISED)?;
    if current_device() == Ok(*device) { Ok(()) } else { Err(INVALID) }
}

/// The matrices of a product, when they fit together.
fn checked(state: &State, desc: usize, layouts: [usize; 4]) -> Result<(Desc, [Layout; 3]), i32> {
    let desc = *state.lt.descs.get(&desc).ok_or(INVALID)?;
    let [a, b, c, d] = layouts.map(|handle| state.lt.layouts.get(&handle).copied());
    let (a, b, c, d) = (a.ok_or(INVALID)?, b.ok_or(INVALID)?, c.ok_or(INVALID)?, d.ok_or(INVALID)?);
    let op = |layout: &Layout, transposed: bool| match transposed {
        true => (layout.cols, layout.rows),
        false => (layout.rows, layout.cols),
    };
    let ((m, k), (k2, n)) = (op(&a, desc.transposed[0]), op(&b, desc.transposed[1]));
    let fits = k == k2 && (d.rows, d.cols) == (m, n) && c == d && a.batch == d.batch && b.batch == d.batch;
    if !fits || a.kind != b.kind {
        return Err(INVALID);
    }
    let supported = match a.kind {
        F32 => d.kind == F32 && desc.scale == F32,
        F64 => d.kind == F64 && desc.scale == F64,
        // Both lie along k.
        I8 => d.kind == I32 && desc.scale == I32 && desc.transposed == [true, false],
        E4M3 => ![F64, I8, I32, E4M3].contains(&d.kind) && desc.scale == F32 && desc.transposed == [true, false],
        kind => [F32, kind].contains(&d.kind) && desc.scale == F32,
    };
    if !supported || desc.compute == TF32 && a.kind != F32 {
        return Err(NOT_SUPPORTED);
    }
    Ok((desc, [a, b, d]))
}

/// Number and needed alignment of an algorithm.
fn known(algo: &Algo) -> Result<(u64, u64), i32> {
    let good = algo[0] == MARK && matches!(algo[1], CHAIN | SPLIT) && algo[3..] == [0; 5];
    if good { Ok((algo[1], algo[2])) } else { Err(INVALID) }
}

fn chosen(number: u64, alignment: u64) -> Chosen {
    let workspace = if number == SPLIT { SPLIT_WORKSPACE } else { 0 };
    Chosen { algo: [MARK, number, alignment, 0, 0, 0, 0, 0], workspace, state: 0, waves: 0.5, reserved: [0; 4] }
}

/// Alpha or beta.
fn factor(value: *const c_void, scale: i32) -> Result<f64, i32> {
    let read = match scale {
        F64 => get(value.cast::<f64>()),
        I32 => get(value.cast::<i32>()).map(f64::from),
        _ => get(value.cast::<f32>()).map(f64::from),
    };
    read.map_err(|_| INVALID)
}

/// Read an attribute whose size must be its type's.
fn value<T: Copy>(buffer: *const c_void, size: usize) -> Result<T, i32> {
    if size == size_of::<T>() { get(buffer.cast::<T>()).map_err(|_| INVALID) } else { Err(INVALID) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtGetVersion() -> usize {
    with_state(|state| state.config.cublas_version)
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasLtGetStatusName(status: c_int) -> *const c_char {
    match status {
        NOT_INITIALISED => c"CUBLAS_STATUS_NOT_INITIALIZED".as_ptr(),
        INVALID => c"CUBLAS_STATUS_INVALID_VALUE".as_ptr(),
        13 => c"CUBLAS_STATUS_EXECUTION_FAILED".as_ptr(),
        NOT_SUPPORTED => c"CUBLAS_STATUS_NOT_SUPPORTED".as_ptr(),
        _ => c"CUBLAS_STATUS_UNKNOWN".as_ptr(),
    }
}

/// The calls that return no status.
pub(crate) fn questions() -> Vec<Export> {
    let (version, name) = (cublasLtGetVersion as *mut c_void, cublasLtGetStatusName as *mut c_void);
    let export = |name, address| Export { name, since: 12000, address };
    vec![export("cublasLtGetVersion", version), export("cublasLtGetStatusName", name)]
}

exports! {
    needs Context fn cublasLtCreate(state; handle: *mut usize) {
        let made = state.handle();
        let device = current_device()?;
        state.lt.handles.insert(made, device);
        put(handle, made)
    }

    needs Nothing fn cublasLtDestroy(state; handle: usize) {
        state.lt.handles.remove(&handle).map(drop).ok_or(NOT_INITIALISED)
    }

    needs Nothing fn cublasLtMatmulDescCreate(state; desc: *mut usize, compute: i32, scale: i32) {
        if !COMPUTE.contains(&(compute, scale)) {
            return Err(INVALID);
        }
        let made = state.handle();
        state.lt.descs.insert(made, Desc { compute, scale, transposed: [false; 2] });
        put(desc, made)
    }

    needs Nothing fn cublasLtMatmulDescDestroy(state; desc: usize) {
        state.lt.descs.remove(&desc).map(drop).ok_or(INVALID)
    }

    needs Nothing fn cublasLtMatmulDescSetAttribute(
        state; desc: usize, attribute: i32, buffer: *const c_void, size: usize,
    ) {
        let known = state.lt.descs.get_mut(&desc).ok_or(INVALID)?;
        let operation: i32 = value(buffer, size)?;
        match (attribute, operation) {
            (3 | 4, 0 | TRANSPOSED) => known.transposed[attribute as usize - 3] = operation == TRANSPOSED,
            _ => return Err(INVALID),
        }
        Ok(())
    }

    needs Nothing fn cublasLtMatrixLayoutCreate(state; layout: *mut usize, kind: i32, rows: u64, cols: u64, ld: i64) {
        let (_, item) = *TYPES.iter().find(|(known, _)| *known == kind).ok_or(NOT_SUPPORTED)?;
        if rows == 0 || cols == 0 || ld < rows as i64 {
            return Err(INVALID);
        }
        let made = state.handle();
        state.lt.layouts.insert(made, Layout { kind, item, rows, cols, ld, batch: 1, offset: 0 });
        put(layout, made)
    }

    needs Nothing fn cublasLtMatrixLayoutDestroy(state; layout: usize) {
        state.lt.layouts.remove(&layout).map(drop).ok_or(INVALID)
    }

    needs Nothing fn cublasLtMatrixLayoutSetAttribute(
        state; layout: usize, attribute: i32, buffer: *const c_void, size: usize,
    ) {
        let known = state.lt.layouts.get_mut(&layout).ok_or(INVALID)?;
        match attribute {
            5 => known.batch = value(buffer, size)?,
            6 => known.offset = value(buffer, size)?,
            _ => return Err(INVALID),
        }
        if known.batch < 1 || known.offset < 0 { Err(INVALID) } else { Ok(()) }
    }

    needs Nothing fn cublasLtMatmulPreferenceCreate(state; preference: *mut usize) {
        let made = state.handle();
        state.lt.preferences.insert(made, Preference { workspace: 0, reductions: 7, alignment: [256; 4] });
        put(preference, made)
    }

    needs Nothing fn cublasLtMatmulPreferenceDestroy(state; preference: usize) {
        state.lt.preferences.remove(&preference).map(drop).ok_or(INVALID)
    }

    needs Nothing fn cublasLtMatmulPreferenceSetAttribute(
        state; preference: usize, attribute: i32, buffer: *const c_void, size: usize,
    ) {
        let known = state.lt.preferences.get_mut(&preference).ok_or(INVALID)?;
        match attribute {
            1 => known.workspace = value(buffer, size)?,
            3 => known.reductions = value(buffer, size)?,
            5..=8 => known.alignment[attribute as usize - 5] = value(buffer, size)?,
            _ => return Err(INVALID),
        }
        Ok(())
    }

    needs Context fn cublasLtMatmulAlgoGetHeuristic(
        state; handle: usize, desc: usize, a: usize, b: usize, c: usize, d: usize, preference: usize, wanted: c_int,
        results: *mut Chosen, returned: *mut c_int,
    ) {
        handle_of(state, handle)?;
        checked(state, desc, [a, b, c, d])?;
        let asked = *state.lt.preferences.get(&preference).ok_or(INVALID)?;
        let alignment = u64::from(asked.alignment.into_iter().min().unwrap_or(1).min(16));
        let mut found = Vec::new();
        if asked.reductions != 0 && asked.workspace >= SPLIT_WORKSPACE as u64 {
            found.push(chosen(SPLIT, alignment));
        }
        found.push(chosen(CHAIN, alignment));
        found.truncate(usize::try_from(wanted).map_err(|_| INVALID)?);
        for (i, result) in found.iter().enumerate() {
            // SAFETY: the caller has room for as many as it asks for.
            put(unsafe { results.add(i) }, *result)?;
        }
        put(returned, found.len() as c_int)
    }

    needs Context fn cublasLtMatmulAlgoCheck(
        state; handle: usize, desc: usize, a: usize, b: usize, c: usize, d: usize, algo: *const Algo,
        result: *mut Chosen,
    ) {
        handle_of(state, handle)?;
        checked(state, desc, [a, b, c, d])?;
        let (number, alignment) = known(&get(algo)?)?;
        let mut found = chosen(number, alignment);
        found.workspace = found.workspace.max(state.config.cublas_check);
        put(result, found)
    }

    needs Nothing fn cublasLtMatmulAlgoConfigGetAttribute(
        state; algo: *const Algo, attribute: i32, buffer: *mut c_void, size: usize, written: *mut usize,
    ) {
        let _ = state;
        let (number, _) = known(&get(algo)?)?;
        let split = number == SPLIT;
        let value = match attribute {
            0 => number as u32,
            1 => 20,
            2 => if split { 4 } else { 1 },
            3 => if split { 2 } else { 0 },
            6 => 8,
            4 | 5 | 7 | 8 => 0,
            _ => return Err(INVALID),
        };
        let bytes = if matches!(attribute, 7 | 8) { 2 } else { 4 };
        if size < bytes || buffer.is_null() {
            return Err(INVALID);
        }
        // SAFETY: the buffer has that many bytes.
        unsafe { std::ptr::copy_nonoverlapping(value.to_le_bytes().as_ptr(), buffer.cast::<u8>(), bytes) };
        put(written, bytes)
    }

    needs Context fn cublasLtMatmul(
        state; handle: usize, desc: usize, alpha: *const c_void, a: u64, a_layout: usize, b: u64, b_layout: usize,
        beta: *const c_void, c: u64, c_layout: usize, d: u64, d_layout: usize, algo: *const Algo, workspace: u64,
        bytes: usize, stream: usize,
    ) {
        handle_of(state, handle)?;
        let (desc, layouts) = checked(state, desc, [a_layout, b_layout, c_layout, d_layout])?;
        let (number, alignment) = known(&get(algo)?)?;
        let split = number == SPLIT;
        if [a, b, c, d].iter().any(|address| address % alignment != 0) || split && bytes < SPLIT_WORKSPACE {
            return Err(INVALID);
        }
        let gemm = Gemm {
            transposed: desc.transposed,
            layouts,
            addresses: [a, b, c, d],
            scale: desc.scale,
            alpha: factor(alpha, desc.scale)?,
            beta: factor(beta, desc.scale)?,
            parts: if split { 4 } else { 1 },
            workspace: split.then_some(workspace),
        };
        enqueue(state, stream, Op::Gemm(gemm)).map_err(|_| 13)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn float8_codes_are_what_they_say() {
        for (code, value) in [(0x00, 0.0), (0x01, 2f32.powi(-9)), (0x38, 1.0), (0xbc, -1.5), (0x7e, 448.0)] {
            assert_eq!(e4m3_to_f32(code), value, "{code:#x}");
        }
        assert!(e4m3_to_f32(0x7f).is_nan());
    }

    #[test]
    fn halves_round_trip_and_round_to_even() {
        for bits in (0..0x7c00u16).chain(0x8000..0xfc00) {
            assert_eq!(f32_to_half(half_to_f32(bits)), bits, "{bits:#x}");
        }
        assert_eq!(f32_to_half(2049.0), f32_to_half(2048.0));
        assert_eq!(f32_to_half(2051.0), f32_to_half(2052.0));
        assert_eq!(f32_to_half(1e6), 0x7c00);
    }
}
