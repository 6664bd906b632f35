//! A tensor map as an argument of a plan: encoded for the address and sizes of each call, and kept until these change.

use parking_lot::Mutex;

use super::program::{NodeId, Values};
use crate::command::Access;
use crate::device::DevPtr;
use crate::dtype::DType;
use crate::emulator::tensor_map::{MAX_RANK, Swizzle, TensorMap};
use crate::error::{Error, Result};
use crate::exec::ExecCtx;
use crate::tensor_map::{L2Promotion, TensorMapBytes, TensorMapDesc};

/// Which array of the call an argument means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Input(u8),
    Output(u8),
    Scratch(u8),
}

/// The map's numbers, the contiguous dimension first; sizes and strides (in bytes) are nodes of the program.
#[derive(Debug)]
pub struct MapArg {
    pub source: Source,
    pub access: Access,
    pub dtype: DType,
    pub swizzle: Swizzle,
    pub promotion: L2Promotion,
    dims: Vec<NodeId>,
    strides: Vec<NodeId>,
    extents: Vec<u32>,
    /// The last map and its encoding, which costs a call of the driver.
    recent: Mutex<Option<(TensorMap, TensorMapBytes)>>,
}

impl MapArg {
    /// `strides` has one number less than `dims`: the first dimension is contiguous.
    pub fn new(
        (source, access, dtype): (Source, Access, DType),
        (swizzle, promotion): (Swizzle, L2Promotion),
        (dims, strides, extents): (Vec<NodeId>, Vec<NodeId>, Vec<u32>),
    ) -> Result<MapArg> {
        if !(1..=MAX_RANK).contains(&dims.len()) || strides.len() + 1 != dims.len() || extents.len() != dims.len() {
            return Err(Error::Value(format!(
                "a tensor map with {} sizes, {} strides and a box of {} numbers: it has 1 to {MAX_RANK} dimensions, and a \
                 stride for all but the contiguous one",
                dims.len(),
                strides.len(),
                extents.len()
            )));
        }
        Ok(MapArg { source, access, dtype, swizzle, promotion, dims, strides, extents, recent: Mutex::new(None) })
    }

    pub(super) fn nodes(&self) -> impl Iterator<Item = NodeId> {
        self.dims.iter().chain(&self.strides).copied()
    }

    /// The 128 bytes for an array that begins at `address`.
    pub(super) fn encode(&self, ctx: &ExecCtx, values: &Values, address: DevPtr) -> Result<TensorMapBytes> {
        let value = |node: &NodeId| u64::try_from(values[usize::from(*node)]).unwrap_or(0);
        let mut map = TensorMap {
            address,
            rank: self.dims.len(),
            item: self.dtype.itemsize() as u32,
            swizzle: self.swizzle,
            dims: [1; MAX_RANK],
            strides: [0; MAX_RANK],
            extents: [1; MAX_RANK],
            steps: [1; MAX_RANK],
            read_only: !self.access.is_written(),
        };
        for (i, (dim, extent)) in self.dims.iter().zip(&self.extents).enumerate() {
            (map.dims[i], map.extents[i]) = (value(dim), *extent);
            if i > 0 {
                // A dimension of one element may have any stride; hardware wants a good one all the same.
                map.strides[i] = if map.dims[i] == 1 { 16 } else { value(&self.strides[i - 1]) };
            }
        }
        let mut recent = self.recent.lock();
        if let Some((known, bytes)) = &*recent
            && *known == map
        {
            return Ok(*bytes);
        }
        let desc = TensorMapDesc { map, dtype: self.dtype, promotion: self.promotion, nan_fill: false };
        let bytes = ctx.state.device.encode_tensor_map(&desc)?;
        *recent = Some((map, bytes));
        Ok(bytes)
    }
}
