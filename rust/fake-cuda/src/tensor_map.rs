//! Tensor maps: the arguments of the encoder are checked as the driver does, and kept in the object.

use std::ffi::c_void;

use crate::api::{exports, put};
use crate::state::*;

/// Bytes of an element by `CUtensorMapDataType`.
const ITEMS: [u64; 13] = [1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4];

exports! {
    needs Init fn cuTensorMapEncodeTiled(
        state; map: *mut [u64; 16], kind: u32, rank: u32, address: *const c_void, dims: *const u64, strides: *const u64,
        extents: *const u32, steps: *const u32, interleave: u32, swizzle: u32, promotion: u32, fill: u32,
    ) {
        let _ = state;
        let item = *ITEMS.get(kind as usize).ok_or(INVALID_VALUE)?;
        let rank_ok = (1..=5).contains(&rank);
        let aligned = (map as usize).is_multiple_of(64) && (address as usize).is_multiple_of(16);
        if !rank_ok || !aligned || interleave != 0 || swizzle > 3 || promotion > 3 || fill > 1 {
            return Err(INVALID_VALUE);
        }
        let count = rank as usize;
        // SAFETY: the arrays have the lengths the driver asks for.
        let (dims, strides, extents, steps) = unsafe {
            (
                std::slice::from_raw_parts(dims, count),
                if count > 1 { std::slice::from_raw_parts(strides, count - 1) } else { &[] },
                std::slice::from_raw_parts(extents, count),
                std::slice::from_raw_parts(steps, count),
            )
        };
        let row = u64::from(extents[0]) * item;
        let bad = dims.iter().any(|d| *d == 0 || *d > 1 << 32)
            || strides.iter().any(|s| s % 16 != 0 || *s >= 1 << 40)
            || extents.iter().any(|e| *e == 0 || *e > 256)
            || steps.iter().any(|s| *s == 0 || *s > 8)
            || row % 16 != 0
            || swizzle > 0 && row > 16 << swizzle;
        if bad {
            return Err(INVALID_VALUE);
        }
        let mut words = [0; 16];
        words[0] = u64::from(kind) | u64::from(rank) << 8 | u64::from(swizzle) << 16 | u64::from(promotion) << 24
            | u64::from(fill) << 32;
        words[1] = address as u64;
        words[2..2 + count].copy_from_slice(dims);
        words[7..6 + count].copy_from_slice(strides);
        for i in 0..count {
            words[11 + i] = u64::from(extents[i]) | u64::from(steps[i]) << 32;
        }
        put(map, words)
    }
}
