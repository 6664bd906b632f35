//! Python scalars as operands: read from Python, rounded to the common type, encoded in the compute type.

use std::fmt;

use pygpukit_core::dtype::{DType, Kind};
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyComplex, PyComplexMethods, PyFloat, PyInt};

/// A Python scalar. Its type is weak: it adapts to the arrays it meets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scalar {
    Bool(bool),
    Int(i128),
    Float(f64),
    Complex(f64, f64),
}

impl Scalar {
    /// None for anything but an exact Python scalar (NumPy scalars carry a type and are handled elsewhere).
    #[inline]
    pub fn read(object: &Bound<'_, PyAny>) -> PyResult<Option<Scalar>> {
        if let Ok(x) = object.cast_exact::<PyFloat>() {
            return Ok(Some(Scalar::Float(x.value())));
        }
        if let Ok(x) = object.cast_exact::<PyInt>() {
            // What no integer type holds may still be beside floats.
            let value = x.extract::<i64>().map(i128::from).or_else(|_| x.extract::<i128>());
            return match value {
                Ok(value) => Ok(Some(Scalar::Int(value))),
                Err(_) => {
                    // Python does not write out integers of thousands of digits.
                    let shown = x.str().map_or_else(|_| "of more than 128 bits".to_string(), |text| text.to_string());
                    Err(PyOverflowError::new_err(format!("Python integer {shown} is too large")))
                }
            };
        }
        if let Ok(x) = object.cast_exact::<PyBool>() {
            return Ok(Some(Scalar::Bool(x.is_true())));
        }
        if let Ok(x) = object.cast_exact::<PyComplex>() {
            return Ok(Some(Scalar::Complex(x.real(), x.imag())));
        }
        Ok(None)
    }

    /// Code used in plan keys and, as a name, by the resolver.
    pub fn kind(&self) -> (u8, &'static str) {
        match self {
            Scalar::Bool(_) => (100, "bool"),
            Scalar::Int(_) => (101, "int"),
            Scalar::Float(_) => (102, "float"),
            Scalar::Complex(..) => (103, "complex"),
        }
    }

    /// The Python scalar again.
    pub fn object<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(match *self {
            Scalar::Bool(x) => PyBool::new(py, x).to_owned().into_any(),
            Scalar::Int(x) => x.into_pyobject(py)?.into_any(),
            Scalar::Float(x) => x.into_pyobject(py)?.into_any(),
            Scalar::Complex(x, y) => PyComplex::from_doubles(py, x, y).into_any(),
        })
    }

    /// Its truth value.
    pub fn truth(&self) -> Scalar {
        Scalar::Bool(self.real() != 0.0 || self.imag() != 0.0)
    }

    fn real(&self) -> f64 {
        match *self {
            Scalar::Bool(x) => f64::from(u8::from(x)),
            Scalar::Int(x) => x as f64,
            Scalar::Float(x) | Scalar::Complex(x, _) => x,
        }
    }

    fn imag(&self) -> f64 {
        if let Scalar::Complex(_, y) = *self { y } else { 0.0 }
    }

    /// Bytes of the value rounded to `common` and stored as `compute`.
    pub fn encode(&self, common: DType, compute: DType) -> PyResult<[u8; 16]> {
        let mut out = [0u8; 16];
        // The compute type of bool is an integer, but its value is a truth: 0.5 and 256 are true.
        let kind = if common.kind() == Kind::Bool { Kind::Bool } else { compute.kind() };
        match kind {
            Kind::Bool => out[0] = u8::from(self.truth() == Scalar::Bool(true)),
            Kind::Int | Kind::UInt => {
                let value = match *self {
                    Scalar::Int(x) => x,
                    Scalar::Bool(x) => i128::from(x),
                    // A float meets an integer compute type only where the operator casts on purpose.
                    Scalar::Float(x) | Scalar::Complex(x, _) => x as i128,
                };
                let bits = compute.itemsize() as u32 * 8;
                let (low, high) = match compute.kind() {
                    Kind::Int => (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1),
                    _ => (0, (1i128 << bits) - 1),
                };
                if value < low || value > high {
                    return Err(PyOverflowError::new_err(format!(
                        "Python integer {value} is out of bounds for {}",
                        compute.name()
                    )));
                }
                out.copy_from_slice(&value.to_le_bytes());
            }
            Kind::Float => put(&mut out, 0, round_to(self.real(), common), compute),
            Kind::Complex => {
                let part = if compute == DType::C64 { DType::F32 } else { DType::F64 };
                put(&mut out, 0, self.real(), part);
                put(&mut out, part.itemsize(), self.imag(), part);
            }
        }
        Ok(out)
    }

    /// Would a finite value become infinite or NaN in the float or complex type `dtype`?
    fn overflows(&self, dtype: DType) -> bool {
        let part = if dtype == DType::C64 { DType::F32 } else { dtype };
        let over = |x: f64| x.is_finite() && !round_to(x, part).is_finite();
        matches!(dtype.kind(), Kind::Float | Kind::Complex) && (over(self.real()) || over(self.imag()))
    }

    /// Can `dtype` hold the value? Integers exactly; floats up to rounding, but not by turning finite into infinite.
    pub fn fits(&self, dtype: DType) -> bool {
        match (dtype.kind(), *self) {
            (Kind::Complex, _) => !self.overflows(dtype),
            (_, Scalar::Complex(..)) => false,
            (Kind::Float, _) if dtype == DType::E4M3 && self.real().is_infinite() => false,
            (Kind::Float, _) => !self.overflows(dtype),
            (_, Scalar::Bool(_)) => true,
            (kind, Scalar::Int(x)) => {
                let bits = if kind == Kind::Bool { 1 } else { dtype.itemsize() as u32 * 8 };
                let signed = u32::from(kind == Kind::Int);
                let low = if signed == 1 { -(1i128 << (bits - 1)) } else { 0 };
                (low..1i128 << (bits - signed)).contains(&x)
            }
            // Beyond 1e38 no integer type holds it, and an i128 might not.
            (_, Scalar::Float(x)) => x.fract() == 0.0 && x.abs() < 1e38 && Scalar::Int(x as i128).fits(dtype),
        }
    }

    /// Bytes of the value as one element of `dtype`. A finite number that would become infinite or NaN is refused;
    /// operators differ: there a scalar is an operand, which rounds to infinity as in NumPy.
    pub fn element(&self, dtype: DType) -> PyResult<[u8; 16]> {
        if self.overflows(dtype) {
            return Err(PyOverflowError::new_err(format!(
                "{self} is out of bounds for {}; use a wider float type",
                dtype.name()
            )));
        }
        match dtype {
            DType::F16 | DType::BF16 | DType::E4M3 | DType::E5M2 => {
                let mut out = [0u8; 16];
                out[..4].copy_from_slice(&small_float_bits(self.real(), dtype).to_le_bytes());
                Ok(out)
            }
            _ => self.encode(dtype, dtype),
        }
    }
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scalar::Bool(x) => write!(f, "Python bool {x}"),
            Scalar::Int(x) => write!(f, "Python integer {x}"),
            Scalar::Float(x) => write!(f, "Python float {x:?}"),
            Scalar::Complex(x, y) => write!(f, "Python complex ({x:?}, {y:?})"),
        }
    }
}

fn put(out: &mut [u8; 16], at: usize, value: f64, dtype: DType) {
    match dtype {
        DType::F64 => out[at..at + 8].copy_from_slice(&value.to_le_bytes()),
        _ => out[at..at + 4].copy_from_slice(&(value as f32).to_le_bytes()),
    }
}

/// Mantissa bits, exponent bias, and whether the format has infinities (e4m3fn has none).
fn format_of(dtype: DType) -> Option<(i32, i32, bool)> {
    match dtype {
        DType::F16 => Some((10, 15, true)),
        DType::BF16 => Some((7, 127, true)),
        DType::E4M3 => Some((3, 7, false)),
        DType::E5M2 => Some((2, 15, true)),
        _ => None,
    }
}

/// The value nearest to `x` (ties to even) that `dtype` holds.
pub fn round_to(x: f64, dtype: DType) -> f64 {
    let Some((mantissa, bias, infinities)) = format_of(dtype) else {
        return if dtype == DType::F32 { f64::from(x as f32) } else { x };
    };
    if x == 0.0 || !x.is_finite() {
        return if x.is_infinite() && !infinities { f64::NAN } else { x };
    }
    let exponent = ((x.to_bits() >> 52 & 0x7ff) as i32 - 1023).max(1 - bias);
    // Multiplying by powers of two is exact, so the only rounding is the one wanted.
    let unit = 2f64.powi(exponent - mantissa);
    let rounded = (x / unit).round_ties_even() * unit;
    let top = if infinities { bias } else { bias + 1 };
    let steps = if infinities { 2.0 - 2f64.powi(-mantissa) } else { 2.0 - 2.0 * 2f64.powi(-mantissa) };
    let largest = steps * 2f64.powi(top);
    if rounded.abs() > largest {
        return if infinities { f64::INFINITY.copysign(x) } else { f64::NAN };
    }
    rounded
}

/// Bit pattern of `x` in a float format of 8 or 16 bits.
fn small_float_bits(x: f64, dtype: DType) -> u32 {
    let Some((mantissa, bias, infinities)) = format_of(dtype) else { return 0 };
    let bits = dtype.itemsize() as u32 * 8;
    let sign = u32::from(x.is_sign_negative()) << (bits - 1);
    let value = round_to(x, dtype).abs();
    let top = (1u32 << (bits - 1)) - 1;
    let infinity = (top >> mantissa) << mantissa;
    if value.is_nan() {
        // Quiet bit set; e4m3fn has one NaN, all ones.
        return sign | if infinities { infinity | 1 << (mantissa - 1) } else { top };
    }
    if value.is_infinite() {
        return sign | infinity;
    }
    if value == 0.0 {
        return sign;
    }
    let exponent = (value.to_bits() >> 52 & 0x7ff) as i32 - 1023;
    if exponent < 1 - bias {
        return sign | (value / 2f64.powi(1 - bias - mantissa)) as u32;
    }
    let fraction = (value / 2f64.powi(exponent) - 1.0) * 2f64.powi(mantissa);
    sign | ((exponent + bias) as u32) << mantissa | fraction as u32
}
