//! Tensor maps, encoded by the driver.

use std::ffi::c_void;

use crate::cuda::device::CudaDevice;
use crate::cuda::driver::call;
use crate::device::Device;
use crate::dtype::DType;
use crate::emulator::tensor_map::{BYTES, Swizzle};
use crate::error::{Error, Result};
use crate::tensor_map::{L2Promotion, TensorMapBytes, TensorMapDesc};

/// `CU_TENSOR_MAP_INTERLEAVE_NONE`.
const INTERLEAVE_NONE: u32 = 0;

/// The driver writes to a multiple of 64.
#[repr(C, align(64))]
struct Aligned(TensorMapBytes);

impl CudaDevice {
    pub(super) fn encode_map(&self, desc: &TensorMapDesc) -> Result<TensorMapBytes> {
        desc.check()?;
        let props = self.props();
        let api = self.driver.tensor_maps.as_ref().filter(|_| props.capability >= (9, 0)).ok_or_else(|| {
            Error::Device(format!(
                "{} (compute capability {}.{}) has no tensor maps: they need 9.0 (Hopper) or newer and its driver",
                props.name, props.capability.0, props.capability.1
            ))
        })?;
        let map = &desc.map;
        let mut object = Aligned([0; BYTES]);
        // The stride of the contiguous dimension is not given.
        let strides = &map.strides[1..];
        let encoded = call!(
            self.driver,
            api,
            cuTensorMapEncodeTiled(
                object.0.as_mut_ptr().cast::<c_void>(),
                data_type(desc.dtype),
                map.rank as u32,
                map.address as *const c_void,
                map.dims.as_ptr(),
                strides.as_ptr(),
                map.extents.as_ptr(),
                map.steps.as_ptr(),
                INTERLEAVE_NONE,
                swizzle(map.swizzle),
                promotion(desc.promotion),
                u32::from(desc.nan_fill),
            )
        );
        encoded.map_err(|error| {
            let (dims, strides, extents) = (&map.dims[..map.rank], &strides[..map.rank - 1], &map.extents[..map.rank]);
            crate::cuda::device::with_note(
                error,
                &format!(
                    "The tensor map was of {} at {:#x}, contiguous dimension first: sizes {dims:?}, strides {strides:?} \
                     bytes, box {extents:?}.",
                    desc.dtype.name(),
                    map.address
                ),
            )
        })?;
        Ok(object.0)
    }
}

/// `CUtensorMapDataType`; 8-bit types have none of their own, and nothing converts them on the way.
fn data_type(dtype: DType) -> u32 {
    match dtype {
        DType::U16 | DType::I16 => 1,
        DType::U32 => 2,
        DType::I32 => 3,
        DType::U64 => 4,
        DType::I64 => 5,
        DType::F16 => 6,
        DType::F32 => 7,
        DType::F64 => 8,
        DType::BF16 => 9,
        _ => 0,
    }
}

/// `CUtensorMapSwizzle`.
fn swizzle(swizzle: Swizzle) -> u32 {
    match swizzle {
        Swizzle::None => 0,
        Swizzle::B32 => 1,
        Swizzle::B64 => 2,
        Swizzle::B128 => 3,
    }
}

/// `CUtensorMapL2promotion`.
fn promotion(promotion: L2Promotion) -> u32 {
    match promotion {
        L2Promotion::None => 0,
        L2Promotion::B64 => 1,
        L2Promotion::B128 => 2,
        L2Promotion::B256 => 3,
    }
}
