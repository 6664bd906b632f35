//! What a GPU is, as the driver tells it.

use std::ffi::c_char;

use crate::cuda::driver::{Driver, call};
use crate::cuda::status::Status;
use crate::cuda::types::*;
use crate::device::{DeviceKind, DeviceProps};
use crate::error::Result;

/// An attribute that only informs: 0 where the driver does not know it.
fn attribute_or_zero(driver: &Driver, which: i32, device: Ordinal) -> i32 {
    let mut value = 0;
    // SAFETY: the value is written to a live local.
    let status = unsafe { (driver.api.cuDeviceGetAttribute)(&mut value, which, device) };
    if status == Status::SUCCESS { value } else { 0 }
}

pub(super) fn flag(driver: &Driver, which: i32, device: Ordinal) -> bool {
    attribute_or_zero(driver, which, device) != 0
}

fn text_of(buffer: &[c_char]) -> String {
    let bytes: Vec<u8> = buffer.iter().take_while(|c| **c != 0).map(|c| *c as u8).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// "GPU-8c4f...": the form `nvidia-smi` prints.
fn uuid_text(bytes: &[u8; 16]) -> String {
    let mut text = "GPU".to_string();
    for (i, byte) in bytes.iter().enumerate() {
        if matches!(i, 0 | 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

pub(super) fn read_props(driver: &Driver, device: Ordinal, ordinal: i32) -> Result<DeviceProps> {
    let get = |which: i32| -> Result<u32> {
        let mut value = 0;
        call!(driver, driver.api, cuDeviceGetAttribute(&mut value, which, device))?;
        Ok(u32::try_from(value).unwrap_or(0))
    };
    let informs = |which: i32| u32::try_from(attribute_or_zero(driver, which, device)).unwrap_or(0);
    let mut name = [0 as c_char; 256];
    call!(driver, driver.api, cuDeviceGetName(name.as_mut_ptr(), name.len() as i32, device))?;
    let mut bus = [0 as c_char; 64];
    call!(driver, driver.api, cuDeviceGetPCIBusId(bus.as_mut_ptr(), bus.len() as i32, device))?;
    let mut uuid = [0u8; 16];
    call!(driver, driver.api, cuDeviceGetUuid(&mut uuid, device))?;
    let mut total_memory = 0;
    call!(driver, driver.api, cuDeviceTotalMem(&mut total_memory, device))?;
    let mut features = Vec::new();
    for (feature, which) in [
        ("cooperative", attribute::COOPERATIVE_LAUNCH),
        ("clusters", attribute::CLUSTER_LAUNCH),
        ("memory_pools", attribute::MEMORY_POOLS_SUPPORTED),
    ] {
        if flag(driver, which, device) {
            features.push(feature);
        }
    }
    Ok(DeviceProps {
        kind: DeviceKind::Cuda,
        ordinal,
        name: text_of(&name),
        capability: (get(attribute::CAPABILITY_MAJOR)? as i32, get(attribute::CAPABILITY_MINOR)? as i32),
        sm_count: get(attribute::SM_COUNT)?,
        total_memory,
        l2_bytes: informs(attribute::L2_CACHE_SIZE) as usize,
        max_threads_per_block: get(attribute::MAX_THREADS_PER_BLOCK)?,
        max_block: [
            get(attribute::MAX_BLOCK_DIM_X)?,
            get(attribute::MAX_BLOCK_DIM_X + 1)?,
            get(attribute::MAX_BLOCK_DIM_X + 2)?,
        ],
        max_grid: [
            get(attribute::MAX_GRID_DIM_X)?,
            get(attribute::MAX_GRID_DIM_X + 1)?,
            get(attribute::MAX_GRID_DIM_X + 2)?,
        ],
        shared_per_block: get(attribute::MAX_SHARED_PER_BLOCK)?,
        shared_per_block_optin: get(attribute::MAX_SHARED_PER_BLOCK_OPTIN)?,
        shared_per_sm: get(attribute::MAX_SHARED_PER_SM)?,
        max_threads_per_sm: get(attribute::MAX_THREADS_PER_SM)?,
        clock_khz: informs(attribute::CLOCK_RATE),
        memory_clock_khz: informs(attribute::MEMORY_CLOCK_RATE),
        memory_bus_bits: informs(attribute::MEMORY_BUS_WIDTH),
        driver_version: driver.version(),
        pci_bus_id: text_of(&bus),
        uuid: uuid_text(&uuid),
        features,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_end_at_the_first_nul() {
        let buffer: Vec<c_char> = b"GPU\0rest".iter().map(|b| *b as c_char).collect();
        assert_eq!(text_of(&buffer), "GPU");
        assert_eq!(text_of(&buffer[..2]), "GP");
    }

    #[test]
    fn uuids_read_as_in_nvidia_smi() {
        let bytes: [u8; 16] = std::array::from_fn(|i| i as u8);
        assert_eq!(uuid_text(&bytes), "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f");
    }
}
