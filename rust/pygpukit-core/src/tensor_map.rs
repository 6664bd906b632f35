//! `TensorMapDesc`: an array and the box of it that one instruction of a kernel moves, before it is encoded for a device.

use crate::dtype::{DType, Kind};
use crate::emulator::tensor_map::{BYTES, TensorMap};
use crate::error::{Error, Result};

/// The encoded object (`CUtensorMap`).
pub type TensorMapBytes = [u8; BYTES];

/// How much of what is read is kept in the L2 cache, from each unit of so many bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum L2Promotion {
    None,
    B64,
    B128,
    #[default]
    B256,
}

/// What to encode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorMapDesc {
    /// Address, sizes, strides, box and swizzle; its elements have the size of `dtype`.
    pub map: TensorMap,
    pub dtype: DType,
    pub promotion: L2Promotion,
    /// Elements outside of the array read as NaN, else as zero.
    pub nan_fill: bool,
}

impl TensorMapDesc {
    /// Refuse what hardware refuses, with the value that is wrong.
    pub fn check(&self) -> Result<()> {
        if self.dtype.kind() == Kind::Complex {
            return Err(Error::DType(format!(
                "a tensor map has no elements of {}; view the array as {}",
                self.dtype.name(),
                if self.dtype == DType::C64 { "float32" } else { "float64" }
            )));
        }
        if self.map.item as usize != self.dtype.itemsize() {
            return Err(Error::Value(format!("elements of {} do not have {} bytes", self.dtype.name(), self.map.item)));
        }
        if self.nan_fill && (self.dtype.kind() != Kind::Float || self.dtype.itemsize() == 1) {
            return Err(Error::Value(format!("elements of {} cannot be filled with NaN", self.dtype.name())));
        }
        match self.map.problem() {
            Some(problem) => Err(Error::Value(format!("tensor map: {problem}"))),
            None => Ok(()),
        }
    }

    pub(crate) fn encode_for_emulator(&self) -> Result<TensorMapBytes> {
        self.check()?;
        if self.nan_fill {
            return Err(Error::Device(
                "the CPU device reads zeros outside of an array: a tensor map that is filled with NaN needs a GPU"
                    .to_string(),
            ));
        }
        self.map.encode().map_err(Error::Value)
    }
}
