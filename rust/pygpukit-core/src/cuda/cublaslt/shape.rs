//! `GemmShape`: what a matrix product multiplies, in the row-major terms of arrays.

use std::fmt;

use crate::dtype::DType;
use crate::error::{Error, Result};

use super::api::{compute_type, data_type};

/// How float32 operands are multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Compute {
    /// Products and sums in float32.
    #[default]
    F32,
    /// Operands are rounded to tf32 first.
    Tf32,
}

/// A stack of row-major matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operand {
    pub dtype: DType,
    /// The matrix that is stored is the transpose of the operand.
    pub transposed: bool,
    /// Elements from one stored row to the next.
    pub ld: i64,
    /// Elements from one matrix of the stack to the next; 0 where all use the same.
    pub batch_stride: i64,
    /// Bytes that the address of the first element is a multiple of.
    pub alignment: u32,
}

/// `out[m, n] = a[m, k] @ b[k, n]`, or the same added to `out`, for each matrix of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GemmShape {
    pub m: i64,
    pub n: i64,
    pub k: i64,
    pub batch: i32,
    pub a: Operand,
    pub b: Operand,
    pub out: Operand,
    pub compute: Compute,
    pub accumulate: bool,
}

impl GemmShape {
    /// A single product of dense matrices, aligned to 16 bytes.
    pub fn dense(m: i64, n: i64, k: i64, dtype: DType, out: DType) -> GemmShape {
        let operand = |dtype, ld| Operand { dtype, transposed: false, ld, batch_stride: 0, alignment: 16 };
        let (a, b, out) = (operand(dtype, k), operand(dtype, n), operand(out, n));
        GemmShape { m, n, k, batch: 1, a, b, out, compute: Compute::F32, accumulate: false }
    }

    /// Stored rows and columns of a, b and out.
    pub(super) fn stored(&self) -> [(i64, i64); 3] {
        let turn = |(rows, cols): (i64, i64), transposed| if transposed { (cols, rows) } else { (rows, cols) };
        [turn((self.m, self.k), self.a.transposed), turn((self.k, self.n), self.b.transposed), (self.m, self.n)]
    }

    pub(super) fn operands(&self) -> [(&'static str, Operand); 3] {
        [("a", self.a), ("b", self.b), ("out", self.out)]
    }

    /// Bytes from the first element to the end of the last, of a, b and out.
    pub fn reach(&self) -> [usize; 3] {
        let [a, b, out] = self.stored();
        let bytes = |operand: &Operand, (rows, cols): (i64, i64)| {
            let last = i64::from(self.batch - 1) * operand.batch_stride + (rows - 1) * operand.ld + cols;
            last as usize * operand.dtype.itemsize()
        };
        [bytes(&self.a, a), bytes(&self.b, b), bytes(&self.out, out)]
    }

    pub(super) fn check(&self) -> Result<()> {
        let fail = |text: String| Err(Error::Value(format!("matrix product: {text}")));
        for (what, size) in [("m", self.m), ("n", self.n), ("k", self.k), ("batch", i64::from(self.batch))] {
            if !(1..=i64::from(i32::MAX)).contains(&size) {
                return fail(format!("{what} is {size}; it must be from 1 to {}", i32::MAX));
            }
        }
        for ((what, operand), (rows, cols)) in self.operands().into_iter().zip(self.stored()) {
            let Operand { dtype, ld, batch_stride, alignment, .. } = operand;
            data_type_of(dtype)
                .ok_or_else(|| Error::DType(format!("matrix product: {what} is {}; {TYPES}", dtype.name())))?;
            let longest = i64::MAX / 16;
            if ld < cols || ld > longest / rows {
                return fail(format!("{what} has rows of {cols} elements, but {ld} elements from one to the next"));
            }
            if batch_stride < 0 || batch_stride > longest / i64::from(self.batch) {
                return fail(format!("{what} has {batch_stride} elements from one matrix to the next"));
            }
            let rows_overlap = self.batch > 1 && batch_stride < (rows - 1) * ld + cols;
            if what == "out" && rows_overlap {
                return fail(format!("the matrices of out overlap: {batch_stride} elements from one to the next"));
            }
            let item = dtype.itemsize() as u32;
            if !alignment.is_power_of_two() || !(item..=256).contains(&alignment) {
                return fail(format!(
                    "{what} has an alignment of {alignment} bytes; use a power of two, {item} to 256"
                ));
            }
        }
        if self.out.transposed {
            return fail("out is transposed; exchange the operands and transpose them".to_string());
        }
        let (a, b, out) = (self.a.dtype, self.b.dtype, self.out.dtype);
        let fits = match a {
            DType::F32 | DType::F64 => out == a,
            DType::F16 | DType::BF16 => out == a || out == DType::F32,
            DType::I8 => out == DType::I32,
            DType::E4M3 => matches!(out, DType::BF16 | DType::F16 | DType::F32),
            _ => false,
        };
        if a != b || !fits {
            let names = (a.name(), b.name(), out.name());
            return Err(Error::DType(format!("matrix product of {} and {} to {}: {TYPES}", names.0, names.1, names.2)));
        }
        if self.compute == Compute::Tf32 && a != DType::F32 {
            return fail(format!("only float32 is multiplied through tf32, not {}", a.name()));
        }
        if matches!(a, DType::I8 | DType::E4M3) && (self.a.transposed || !self.b.transposed) {
            return fail(format!(
                "{} is multiplied with lines along k: a as it is, b stored as its transpose",
                a.name()
            ));
        }
        Ok(())
    }

    pub(super) fn compute_type(&self) -> i32 {
        match (self.a.dtype, self.compute) {
            (DType::F64, _) => compute_type::F64,
            (DType::I8, _) => compute_type::I32,
            (_, Compute::F32) => compute_type::F32,
            (_, Compute::Tf32) => compute_type::FAST_TF32,
        }
    }

    /// Type of the factors alpha and beta.
    pub(super) fn scale_type(&self) -> i32 {
        match self.a.dtype {
            DType::F64 => data_type::F64,
            DType::I8 => data_type::I32,
            _ => data_type::F32,
        }
    }
}

const TYPES: &str = "both operands are bfloat16 or float16 (out: the same or float32), float32 or float64 (the same), \
                     int8 (int32) or float8_e4m3fn (bfloat16, float16 or float32)";

pub(super) fn data_type_of(dtype: DType) -> Option<i32> {
    match dtype {
        DType::F32 => Some(data_type::F32),
        DType::F64 => Some(data_type::F64),
        DType::F16 => Some(data_type::F16),
        DType::BF16 => Some(data_type::BF16),
        DType::I8 => Some(data_type::I8),
        DType::I32 => Some(data_type::I32),
        DType::E4M3 => Some(data_type::E4M3),
        _ => None,
    }
}

/// All that an algorithm was chosen for, in one line.
impl fmt::Display for GemmShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let GemmShape { m, n, k, batch, .. } = self;
        write!(f, "m={m} n={n} k={k} batch={batch}")?;
        for (name, x) in self.operands() {
            let t = if x.transposed { "t" } else { "n" };
            write!(f, " {name}={},{t},{},{},{}", x.dtype.tag(), x.ld, x.batch_stride, x.alignment)?;
        }
        let compute = if self.compute == Compute::Tf32 { "tf32" } else { "f32" };
        write!(f, " compute={compute} accumulate={}", u8::from(self.accumulate))
    }
}
