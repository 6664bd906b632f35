//! `x @ weight.T` row by row.

use super::lanes::{LANES, Lanes, Plain, Width};
use crate::error::{Error, Result};

/// Rows of float32 whose elements lie side by side.
#[derive(Debug, Clone, Copy)]
pub struct Matrix<'a> {
    pub data: &'a [f32],
    pub rows: usize,
    pub columns: usize,
    /// Elements from one row to the next.
    pub stride: usize,
}

impl Matrix<'_> {
    fn check(&self, name: &str) -> Result<()> {
        let end =
            self.rows.checked_sub(1).map_or(Some(0), |last| last.checked_mul(self.stride)?.checked_add(self.columns));
        if end.is_none_or(|end| end > self.data.len()) || (self.rows > 1 && self.stride < self.columns) {
            return Err(Error::Value(format!(
                "{name}: {} rows of {} elements, {} apart, do not lie in {} elements",
                self.rows,
                self.columns,
                self.stride,
                self.data.len()
            )));
        }
        Ok(())
    }
}

/// Rows of `x` that are multiplied while rows of the weight are in the caches.
const BLOCK: usize = 64;

pub(super) struct Call {
    pub x: *const f32,
    pub x_stride: usize,
    pub weight: *const f32,
    pub weight_stride: usize,
    pub k: usize,
    pub out: *mut f32,
    pub out_stride: usize,
}

// SAFETY: threads write different columns of `out`.
unsafe impl Sync for Call {}

/// `out[i, j] = sum(x[i, :] * weight[j, :])`; `out` has `x.rows` rows of `weight.rows` elements, one behind the other.
pub fn linear(x: Matrix<'_>, weight: Matrix<'_>, out: &mut [f32]) -> Result<()> {
    linear_by(Width::widest(), x, weight, out)
}

pub(super) fn linear_by(width: Width, x: Matrix<'_>, weight: Matrix<'_>, out: &mut [f32]) -> Result<()> {
    x.check("x")?;
    weight.check("weight")?;
    if x.columns != weight.columns || Some(out.len()) != x.rows.checked_mul(weight.rows) {
        return Err(Error::Value(format!(
            "x has rows of {} elements and the weight of {}; {} results do not fit {} x {}",
            x.columns,
            weight.columns,
            out.len(),
            x.rows,
            weight.rows
        )));
    }
    let (m, n) = (x.rows, weight.rows);
    let call = Call {
        x: x.data.as_ptr(),
        x_stride: x.stride,
        weight: weight.data.as_ptr(),
        weight_stride: weight.stride,
        k: x.columns,
        out: out.as_mut_ptr(),
        out_stride: n,
    };
    let call = &call;
    super::by_threads(m.saturating_mul(n).saturating_mul(x.columns), |part, parts| {
        let (first, end) = (n * part / parts, n * (part + 1) / parts);
        // SAFETY: both matrices were checked, `out` has m * n elements, and parts write different columns.
        unsafe {
            match width {
                Width::Plain => columns::<Plain, 1, 1, 1>(call, m, first, end),
                #[cfg(target_arch = "x86_64")]
                Width::Avx2 => avx2(call, m, first, end),
                #[cfg(target_arch = "x86_64")]
                Width::Avx512 => avx512(call, m, first, end),
            }
        }
    });
    Ok(())
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn avx2(call: &Call, m: usize, first: usize, end: usize) {
    // SAFETY: the caller's contract.
    unsafe { columns::<super::lanes::x86::Avx2, 3, 2, 4>(call, m, first, end) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx2,fma")]
unsafe fn avx512(call: &Call, m: usize, first: usize, end: usize) {
    // SAFETY: the caller's contract.
    unsafe { columns::<super::lanes::x86::Avx512, 4, 4, 8>(call, m, first, end) }
}

/// Columns `first` to `end` of the result: tiles of `R` x `C` elements, and of 1 x `ALONE` where there is one row.
///
/// # Safety
/// The machine has the instructions of `V`; the pointers of the call are good for all rows and columns.
#[inline(always)]
unsafe fn columns<V: Lanes, const R: usize, const C: usize, const ALONE: usize>(
    call: &Call,
    m: usize,
    first: usize,
    end: usize,
) {
    // SAFETY: the caller's contract.
    unsafe {
        for block in (0..m).step_by(BLOCK) {
            let last = m.min(block + BLOCK);
            let mut column = first;
            if m == 1 {
                while column + ALONE <= end {
                    tile::<V, 1, ALONE>(call, 0, column);
                    column += ALONE;
                }
            }
            while column + C <= end {
                let mut row = block;
                while row + R <= last {
                    tile::<V, R, C>(call, row, column);
                    row += R;
                }
                while row < last {
                    tile::<V, 1, C>(call, row, column);
                    row += 1;
                }
                column += C;
            }
            for column in column..end {
                for row in block..last {
                    tile::<V, 1, 1>(call, row, column);
                }
            }
        }
    }
}

/// `R` rows by `C` columns from a row and a column on.
///
/// # Safety
/// As `columns`.
#[allow(clippy::needless_range_loop, reason = "counts known to the compiler keep the sums in registers")]
#[inline(always)]
pub(super) unsafe fn tile<V: Lanes, const R: usize, const C: usize>(call: &Call, row: usize, column: usize) {
    // SAFETY: the caller's contract.
    unsafe {
        let x = call.x.add(row * call.x_stride);
        let weight = call.weight.add(column * call.weight_stride);
        let mut sums = [[V::zero(); C]; R];
        let whole = call.k / LANES * LANES;
        let mut at = 0;
        while at < whole {
            let mut w = [V::zero(); C];
            for c in 0..C {
                w[c] = V::load(weight.add(c * call.weight_stride + at));
            }
            for r in 0..R {
                let a = V::load(x.add(r * call.x_stride + at));
                for c in 0..C {
                    sums[r][c] = sums[r][c].fma(a, w[c]);
                }
            }
            at += LANES;
        }
        let rest = call.k - whole;
        if rest > 0 {
            for r in 0..R {
                let a = V::load_part(x.add(r * call.x_stride + at), rest);
                for c in 0..C {
                    let w = V::load_part(weight.add(c * call.weight_stride + at), rest);
                    sums[r][c] = sums[r][c].fma(a, w);
                }
            }
        }
        for r in 0..R {
            for c in 0..C {
                *call.out.add((row + r) * call.out_stride + column + c) = sums[r][c].sum();
            }
        }
    }
}
