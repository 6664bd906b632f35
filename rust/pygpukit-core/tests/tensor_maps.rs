//! Tensor maps: encoded by the fake driver with the arguments that cuda.h asks for, and refused with the wrong value.
#![cfg(unix)]

mod fake;

use fake::*;
use pygpukit_core::Error;
use pygpukit_core::cpu::{CpuConfig, CpuDevice};
use pygpukit_core::device::Device;
use pygpukit_core::dtype::DType;
use pygpukit_core::emulator::tensor_map::{Swizzle, TensorMap};
use pygpukit_core::tensor_map::{L2Promotion, TensorMapDesc};

fn desc() -> TensorMapDesc {
    let map = TensorMap {
        address: 0x7000,
        rank: 3,
        item: 2,
        swizzle: Swizzle::B64,
        dims: [100, 7, 5, 1, 1],
        strides: [0, 208, 1456, 0, 0],
        extents: [32, 4, 3, 1, 1],
        steps: [1, 2, 1, 1, 1],
        read_only: false,
    };
    TensorMapDesc { map, dtype: DType::BF16, promotion: L2Promotion::B128, nan_fill: true }
}

#[test]
fn the_driver_is_given_what_the_map_says() {
    let _guard = fake(&[]);
    let bytes = device().encode_tensor_map(&desc()).unwrap();
    let words: Vec<u64> = bytes.chunks_exact(8).map(|b| u64::from_le_bytes(b.try_into().unwrap())).collect();
    // Type, rank, swizzle, promotion and fill, a byte each, as the stand-in keeps them.
    assert_eq!(words[0], 9 | 3 << 8 | 2 << 16 | 2 << 24 | 1 << 32);
    assert_eq!(words[1..7], [0x7000, 100, 7, 5, 0, 0]);
    assert_eq!(words[7..9], [208, 1456]);
    assert_eq!(words[11..14], [32 | 1 << 32, 4 | 2 << 32, 3 | 1 << 32]);
    let kinds = [
        (DType::E4M3, 0),
        (DType::I8, 0),
        (DType::I16, 1),
        (DType::U32, 2),
        (DType::I32, 3),
        (DType::U64, 4),
        (DType::I64, 5),
        (DType::F16, 6),
        (DType::F32, 7),
        (DType::F64, 8),
    ];
    for (dtype, kind) in kinds {
        let mut desc = TensorMapDesc { dtype, nan_fill: false, ..desc() };
        (desc.map.item, desc.map.swizzle, desc.map.extents[0]) = (dtype.itemsize() as u32, Swizzle::None, 16);
        assert_eq!(device().encode_tensor_map(&desc).unwrap()[0], kind, "{}", dtype.name());
    }
}

#[test]
fn what_hardware_refuses_is_refused_on_every_device_with_the_value() {
    type Change = fn(&mut TensorMapDesc);
    let bad: [(Change, &str); 6] = [
        (|d| d.dtype = DType::C64, "complex64; view the array as float32"),
        (|d| d.dtype = DType::F32, "float32 do not have 2 bytes"),
        (|d| d.dtype = DType::I16, "int16 cannot be filled with NaN"),
        (|d| d.map.address = 0x7008, "0x7008"),
        (|d| d.map.extents[0] = 40, "80 bytes"),
        (|d| d.map.strides[2] = 1450, "stride 1450"),
    ];
    let _guard = fake(&[]);
    for (change, part) in bad {
        let mut desc = desc();
        change(&mut desc);
        let cpu = CpuDevice::new(CpuConfig::default());
        for error in [device().encode_tensor_map(&desc), cpu.encode_tensor_map(&desc)].map(Result::unwrap_err) {
            assert!(matches!(error, Error::Value(_) | Error::DType(_)) && error.to_string().contains(part), "{error}");
        }
        assert_eq!(fake_cuda::counter("cuTensorMapEncodeTiled"), 0);
    }
    let error = CpuDevice::new(CpuConfig::default()).encode_tensor_map(&desc()).unwrap_err();
    assert!(error.to_string().contains("NaN needs a GPU"), "{error}");
}

#[test]
fn devices_and_drivers_without_them_say_so() {
    for settings in [("CAPABILITY", "8.9"), ("WITHHOLD", "cuTensorMapEncodeTiled")] {
        let _guard = fake(&[settings]);
        let error = device().encode_tensor_map(&desc()).unwrap_err();
        assert!(matches!(error, Error::Device(_)) && error.to_string().contains("9.0 (Hopper)"), "{error}");
    }
    let _guard = fake(&[("FAIL", "cuTensorMapEncodeTiled:1:1")]);
    let text = device().encode_tensor_map(&desc()).unwrap_err().to_string();
    assert!(text.starts_with("cuTensorMapEncodeTiled failed") && text.contains("box [32, 4, 3]"), "{text}");
}
