//! `SolverShape`: which function, of which type, sizes and letters, and how many elements each of its arrays has.

use std::fmt;

use smallvec::{SmallVec, smallvec};

use crate::dtype::DType;
use crate::error::{Error, Result};

/// A function of LAPACK that the library has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    Potrf,
    Getrf,
    Getrs,
    Geqrf,
    Orgqr,
    Syevd,
    Gesvd,
    Geev,
}

impl Function {
    pub fn from_name(name: &str) -> Option<Function> {
        Some(match name {
            "potrf" => Function::Potrf,
            "getrf" => Function::Getrf,
            "getrs" => Function::Getrs,
            "geqrf" => Function::Geqrf,
            "orgqr" => Function::Orgqr,
            "syevd" => Function::Syevd,
            "gesvd" => Function::Gesvd,
            "geev" => Function::Geev,
            _ => return None,
        })
    }

    /// The letters it takes: those allowed for each.
    fn letters(self) -> &'static [&'static str] {
        match self {
            Function::Potrf => &["LU"],
            Function::Getrs => &["NT"],
            Function::Syevd => &["NV", "LU"],
            Function::Gesvd => &["ASN", "ASN"],
            Function::Geev => &["N", "NV"],
            Function::Getrf | Function::Geqrf | Function::Orgqr => &[],
        }
    }
}

/// A call for one column-major matrix without gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SolverShape {
    pub function: Function,
    pub dtype: DType,
    /// As LAPACK names them; of getrs n, the number of right sides, and 0.
    pub m: i64,
    pub n: i64,
    pub k: i64,
    /// Letters in LAPACK's order, 0 for none.
    pub flags: [u8; 2],
}

impl SolverShape {
    /// Check that the function takes these.
    pub fn new(function: Function, dtype: DType, (m, n, k): (i64, i64, i64), letters: &str) -> Result<SolverShape> {
        let refuse = |what: String| Err(Error::Value(format!("cuSOLVER's {function:?}: {what}")));
        if !matches!(dtype, DType::F32 | DType::F64 | DType::C64 | DType::C128) {
            return Err(Error::DType(format!("cuSOLVER computes float32, float64 and complex, not {}", dtype.name())));
        }
        let allowed = function.letters();
        let fits = letters.len() == allowed.len() && letters.chars().zip(allowed).all(|(c, known)| known.contains(c));
        if !fits {
            return refuse(format!("the letters {letters:?} are not those of {allowed:?}"));
        }
        let square = matches!(function, Function::Potrf | Function::Getrf | Function::Syevd | Function::Geev);
        let sizes_fit = match function {
            _ if m < 1 || n < 1 || k < 0 => false,
            Function::Orgqr => k >= 1 && k <= n && n <= m && m <= i64::from(i32::MAX),
            Function::Gesvd => n <= m,
            _ => !square || m == n,
        };
        // No product of two sizes overflows.
        if !sizes_fit || m.max(n) > 1 << 31 {
            return refuse(format!("the sizes m={m} n={n} k={k} do not fit"));
        }
        let mut flags = [0; 2];
        flags[..letters.len()].copy_from_slice(letters.as_bytes());
        Ok(SolverShape { function, dtype, m, n, k, flags })
    }

    /// The type of singular values and of eigenvalues of Hermitian matrices.
    pub fn real(&self) -> DType {
        if matches!(self.dtype, DType::F32 | DType::C64) { DType::F32 } else { DType::F64 }
    }

    /// The type of eigenvalues of general matrices.
    pub fn complex(&self) -> DType {
        if self.real() == DType::F32 { DType::C64 } else { DType::C128 }
    }

    /// Columns of U that `gesvd` writes.
    pub fn left(&self) -> i64 {
        if self.flags[0] == b'A' { self.m } else { self.n }
    }

    /// Type, number of elements and whether they are only read, of each array; the matrix first.
    pub fn arrays(&self) -> SmallVec<[(DType, i64, bool); 4]> {
        let (m, n, kind) = (self.m, self.n, self.dtype);
        match self.function {
            Function::Potrf => smallvec![(kind, n * n, false)],
            Function::Getrf => smallvec![(kind, n * n, false), (DType::I64, n, false)],
            Function::Getrs => smallvec![(kind, m * m, true), (DType::I64, m, true), (kind, m * n, false)],
            Function::Geqrf => smallvec![(kind, m * n, false), (kind, m.min(n), false)],
            Function::Orgqr => smallvec![(kind, m * n, false), (kind, self.k, true)],
            Function::Syevd => smallvec![(kind, n * n, false), (self.real(), n, false)],
            Function::Gesvd => {
                let (left, right) = if self.flags[0] == b'N' { (0, 0) } else { (m * self.left(), n * n) };
                smallvec![(kind, m * n, false), (self.real(), n, false), (kind, left, false), (kind, right, false)]
            }
            Function::Geev => {
                let vectors = if self.flags[1] == b'V' { n * n } else { 0 };
                smallvec![(kind, n * n, false), (self.complex(), n, false), (kind, vectors, false)]
            }
        }
    }
}

impl fmt::Display for SolverShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letters: String = self.flags.iter().filter(|c| **c != 0).map(|c| char::from(*c)).collect();
        write!(f, "{:?} {} m={} n={} k={} {letters}", self.function, self.dtype.tag(), self.m, self.n, self.k)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused() {
        let new =
            |name, sizes, letters| SolverShape::new(Function::from_name(name).unwrap(), DType::C64, sizes, letters);
        for (name, sizes, letters) in [
            ("potrf", (3, 3, 0), ""),
            ("potrf", (3, 3, 0), "LL"),
            ("potrf", (3, 3, 0), "N"),
            ("potrf", (3, 4, 0), "L"),
            ("getrf", (0, 0, 0), ""),
            ("orgqr", (3, 4, 3), ""),
            ("orgqr", (4, 3, 0), ""),
            ("orgqr", (1 << 31, 1, 1), ""),
            ("gesvd", (3, 4, 0), "SS"),
            ("geev", (3, 3, 0), "VV"),
            ("getrf", (1 << 40, 1 << 40, 0), ""),
        ] {
            assert!(new(name, sizes, letters).is_err(), "{name} {sizes:?} {letters}");
        }
        let shape = new("gesvd", (5, 3, 0), "AA").unwrap();
        let elements: Vec<i64> = shape.arrays().iter().map(|x| x.1).collect();
        assert_eq!(elements, [15, 3, 25, 9]);
        assert_eq!(shape.arrays()[1].0, DType::F32);
        assert!(SolverShape::new(Function::Getrf, DType::F16, (1, 1, 0), "").is_err());
        assert!(Function::from_name("getri").is_none());
    }
}
