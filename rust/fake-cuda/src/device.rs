//! Initialisation, devices, contexts and error texts.

use std::ffi::{CStr, c_char, c_int};

use crate::api::{exports, get, put};
use crate::memory::{AllocationProp, GRANULARITY};
use crate::state::*;

/// A code with the driver's name and text for it.
type Code = (i32, &'static CStr, &'static CStr);

const CODES: &[Code] = &[
    (0, c"CUDA_SUCCESS", c"no error"),
    (1, c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"),
    (2, c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
    (3, c"CUDA_ERROR_NOT_INITIALIZED", c"initialization error"),
    (100, c"CUDA_ERROR_NO_DEVICE", c"no CUDA-capable device is detected"),
    (101, c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal"),
    (200, c"CUDA_ERROR_INVALID_IMAGE", c"device kernel image is invalid"),
    (201, c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context"),
    (209, c"CUDA_ERROR_NO_BINARY_FOR_GPU", c"no kernel image is available for execution on the device"),
    (218, c"CUDA_ERROR_INVALID_PTX", c"a PTX JIT compilation failed"),
    (222, c"CUDA_ERROR_UNSUPPORTED_PTX_VERSION", c"the provided PTX was compiled with an unsupported toolchain."),
    (400, c"CUDA_ERROR_INVALID_HANDLE", c"invalid resource handle"),
    (500, c"CUDA_ERROR_NOT_FOUND", c"named symbol not found"),
    (600, c"CUDA_ERROR_NOT_READY", c"device not ready"),
    (700, c"CUDA_ERROR_ILLEGAL_ADDRESS", c"an illegal memory access was encountered"),
    (701, c"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", c"too many resources requested for launch"),
    (719, c"CUDA_ERROR_LAUNCH_FAILED", c"unspecified launch failure"),
    (800, c"CUDA_ERROR_NOT_PERMITTED", c"operation not permitted"),
    (801, c"CUDA_ERROR_NOT_SUPPORTED", c"operation not supported"),
    (914, c"CUDA_ERROR_INVALID_RESOURCE_TYPE", c"invalid resource type"),
    (915, c"CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION", c"invalid resource configuration"),
    (917, c"CUDA_ERROR_STREAM_DETACHED", c"the stream is detached from its context"),
    (999, c"CUDA_ERROR_UNKNOWN", c"unknown error"),
];

/// Attributes of the pretended GPU, by their number in cuda.h.
const ATTRIBUTES: &[(c_int, c_int)] = &[
    (1, 1024),
    (2, 1024),
    (3, 1024),
    (4, 64),
    (5, 2_147_483_647),
    (6, 65_535),
    (7, 65_535),
    (8, 49_152),
    (13, 1_980_000),
    (16, 132),
    (36, 3_201_000),
    (37, 6_144),
    (38, 62_914_560),
    (39, 2_048),
    (81, 233_472),
    (95, 1),
    (97, 232_448),
    (102, 1),
    (103, 1),
    (115, 1),
    (120, 1),
];

pub(crate) fn check_device(state: &State, device: c_int) -> Result<(), i32> {
    if (0..state.config.devices).contains(&device) { Ok(()) } else { Err(INVALID_DEVICE) }
}

/// Fill the caller's buffer with a C string, cut to its length.
fn put_text(target: *mut c_char, length: c_int, text: &str) -> Result<(), i32> {
    let length = usize::try_from(length).map_err(|_| INVALID_VALUE)?;
    if target.is_null() || length == 0 {
        return Err(INVALID_VALUE);
    }
    let bytes = &text.as_bytes()[..text.len().min(length - 1)];
    // SAFETY: the caller's buffer holds `length` bytes.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), target, bytes.len());
        target.add(bytes.len()).write(0);
    }
    Ok(())
}

fn words(code: c_int, target: *mut *const c_char, pick: fn(&Code) -> &'static CStr) -> Outcome {
    match CODES.iter().find(|row| row.0 == code) {
        Some(row) => put(target, pick(row).as_ptr()),
        None => {
            put(target, std::ptr::null())?;
            Err(INVALID_VALUE)
        }
    }
}

exports! {
    needs Nothing fn cuInit(state; flags: u32) {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        if state.config.devices <= 0 {
            return Err(NO_DEVICE);
        }
        state.initialised = true;
        Ok(())
    }

    since 0 needs Nothing fn cuDriverGetVersion(state; version: *mut c_int) {
        put(version, state.config.version)
    }

    needs Nothing fn cuGetErrorName(_state; code: c_int, name: *mut *const c_char) {
        words(code, name, |row| row.1)
    }

    needs Nothing fn cuGetErrorString(_state; code: c_int, text: *mut *const c_char) {
        words(code, text, |row| row.2)
    }

    needs Init fn cuDeviceGetCount(state; count: *mut c_int) {
        put(count, state.config.devices)
    }

    needs Init fn cuDeviceGet(state; device: *mut c_int, ordinal: c_int) {
        check_device(state, ordinal)?;
        put(device, ordinal)
    }

    needs Init fn cuDeviceGetName(state; name: *mut c_char, length: c_int, device: c_int) {
        check_device(state, device)?;
        put_text(name, length, "Fake GPU")
    }

    needs Init fn cuDeviceGetAttribute(state; value: *mut c_int, attribute: c_int, device: c_int) {
        check_device(state, device)?;
        match attribute {
            75 => put(value, state.config.capability.0),
            76 => put(value, state.config.capability.1),
            _ => {
                let row = ATTRIBUTES.iter().find(|row| row.0 == attribute).ok_or(INVALID_VALUE)?;
                put(value, row.1)
            }
        }
    }

    needs Init fn cuDeviceTotalMem_v2(state; bytes: *mut usize, device: c_int) {
        check_device(state, device)?;
        put(bytes, state.config.memory)
    }

    needs Init fn cuDeviceGetUuid_v2(state; uuid: *mut [u8; 16], device: c_int) {
        check_device(state, device)?;
        let mut bytes = [0xfa; 16];
        bytes[15] = device as u8;
        put(uuid, bytes)
    }

    needs Init fn cuDeviceGetPCIBusId(state; id: *mut c_char, length: c_int, device: c_int) {
        check_device(state, device)?;
        put_text(id, length, &format!("0000:{:02X}:00.0", device + 1))
    }

    needs Init fn cuDevicePrimaryCtxRetain(state; context: *mut usize, device: c_int) {
        check_device(state, device)?;
        put(context, context_of(device))
    }

    needs Init fn cuCtxGetCurrent(_state; context: *mut usize) {
        put(context, current())
    }

    needs Init fn cuCtxSetCurrent(state; context: usize) {
        if context != 0 {
            check_device(state, device_of(context).ok_or(INVALID_CONTEXT)?).map_err(|_| INVALID_CONTEXT)?;
        }
        set_current(context);
        Ok(())
    }

    needs Context fn cuCtxGetStreamPriorityRange(_state; least: *mut c_int, greatest: *mut c_int) {
        put(least, 0)?;
        put(greatest, -5)
    }

    needs Context fn cuMemGetInfo_v2(state; free: *mut usize, total: *mut usize) {
        let used = state.memory.used(current_device()?);
        put(free, state.config.memory.saturating_sub(used))?;
        put(total, state.config.memory)
    }

    needs Context fn cuMemGetAllocationGranularity(_state; bytes: *mut usize, prop: *const AllocationProp, _which: u32) {
        get(prop)?.device()?;
        put(bytes, GRANULARITY)
    }
}
