//! Resampling by a rational ratio: an output is a sum over the inputs under one phase of a filter.

use super::lanes::{Lanes, Plain, Width};
use super::linear::{Call, tile};
use crate::error::{Error, Result};

/// Rows of inputs, one behind the other, and a filter in phases.
#[derive(Debug, Clone, Copy)]
pub struct Resample<'a> {
    pub x: &'a [f32],
    pub rows: usize,
    /// (up, taps), one phase behind the other.
    pub filters: &'a [f32],
    pub up: usize,
    pub down: usize,
    /// Tap that belongs to output 0.
    pub center: usize,
    /// Outputs of a row.
    pub length: usize,
}

/// Outputs of one phase that are computed while their inputs are in the caches.
const BLOCK: usize = 16;

struct Plan {
    /// Rows of inputs with zeros around them.
    padded: Vec<f32>,
    width: usize,
    /// Of output `first` below `up`: its phase with the taps turned round, so that both are read forwards.
    lines: Vec<f32>,
    /// And the first of its inputs.
    begins: Vec<usize>,
    taps: usize,
    up: usize,
    down: usize,
    length: usize,
}

/// Write `out[r, m] = sum of filters[phase, k] * x[r, i - k]`, `i = (m down + center) / up`, `phase` the remainder; zeros
/// lie around the inputs. An output's bits depend on the inputs under the filter alone.
pub fn resample(call: &Resample<'_>, out: &mut [f32]) -> Result<()> {
    resample_by(Width::widest(), call, out)
}

pub(super) fn resample_by(width: Width, call: &Resample<'_>, out: &mut [f32]) -> Result<()> {
    let Some(plan) = Plan::new(call, out.len())? else { return Ok(()) };
    let (blocks, out) = (plan.length.div_ceil(plan.up).div_ceil(BLOCK), Target(out.as_mut_ptr()));
    let (units, plan, out) = (call.rows * blocks, &plan, &out);
    super::by_threads(call.rows.saturating_mul(plan.length).saturating_mul(plan.taps), |part, parts| {
        for unit in units * part / parts..units * (part + 1) / parts {
            let (row, first) = (unit / blocks, unit % blocks * BLOCK);
            // SAFETY: the plan has checked the sizes; units write different outputs.
            unsafe {
                match width {
                    Width::Plain => block::<Plain, 1>(plan, row, first, out.0),
                    #[cfg(target_arch = "x86_64")]
                    Width::Avx2 => avx2(plan, row, first, out.0),
                    #[cfg(target_arch = "x86_64")]
                    Width::Avx512 => avx512(plan, row, first, out.0),
                }
            }
        }
    });
    Ok(())
}

struct Target(*mut f32);

// SAFETY: threads write different outputs.
unsafe impl Sync for Target {}

impl Plan {
    /// None where there is nothing to compute.
    fn new(call: &Resample<'_>, outputs: usize) -> Result<Option<Plan>> {
        let Resample { x, rows, filters, up, down, center, length } = *call;
        let taps = filters.len().checked_div(up).unwrap_or(0);
        let n = x.len().checked_div(rows).unwrap_or(0);
        if up == 0
            || down == 0
            || taps * up != filters.len()
            || n * rows != x.len()
            || rows.checked_mul(length) != Some(outputs)
        {
            return Err(Error::Value(format!(
                "{rows} rows of {} inputs, {up} phases of {} taps and {outputs} outputs do not fit",
                x.len(),
                filters.len()
            )));
        }
        if outputs == 0 || taps == 0 {
            return Ok(None);
        }
        let too_large = || Error::Value(format!("{length} outputs, {down} / {up} inputs each, are too many"));
        let last = ((length - 1).checked_mul(down).and_then(|m| m.checked_add(center))).ok_or_else(too_large)? / up;
        let width = last.checked_add(taps).ok_or_else(too_large)?;
        let mut padded = vec![0.0; rows.checked_mul(width).ok_or_else(too_large)?];
        let kept = n.min(last + 1);
        for (row, values) in padded.chunks_exact_mut(width).enumerate() {
            values[taps - 1..taps - 1 + kept].copy_from_slice(&x[row * n..row * n + kept]);
        }
        let (mut lines, mut begins) = (Vec::new(), Vec::new());
        for first in 0..up.min(length) {
            let place = first * down + center;
            let phase = &filters[place % up * taps..][..taps];
            lines.extend(phase.iter().rev());
            begins.push(place / up);
        }
        Ok(Some(Plan { padded, width, lines, begins, taps, up, down, length }))
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn avx2(plan: &Plan, row: usize, first: usize, out: *mut f32) {
    // SAFETY: the caller's contract.
    unsafe { block::<super::lanes::x86::Avx2, 4>(plan, row, first, out) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx2,fma")]
unsafe fn avx512(plan: &Plan, row: usize, first: usize, out: *mut f32) {
    // SAFETY: the caller's contract.
    unsafe { block::<super::lanes::x86::Avx512, 8>(plan, row, first, out) }
}

/// Outputs `(first + i) * up + phase` of a row, `i` below `BLOCK`, of all phases: tiles of `R` outputs of a phase.
///
/// # Safety
/// The machine has the instructions of `V`; `out` is good for all rows.
#[inline(always)]
unsafe fn block<V: Lanes, const R: usize>(plan: &Plan, row: usize, first: usize, out: *mut f32) {
    let x = plan.padded[row * plan.width..(row + 1) * plan.width].as_ptr();
    for (phase, &begin) in plan.begins.iter().enumerate() {
        // Outputs of this phase in the row.
        let count = (plan.length - phase).div_ceil(plan.up);
        let end = count.min(first + BLOCK);
        if first >= end {
            continue;
        }
        // SAFETY: the last input of the last output lies in the padded row, and its outputs in `out`.
        unsafe {
            let call = Call {
                x: x.add(begin + first * plan.down),
                x_stride: plan.down,
                weight: plan.lines[phase * plan.taps..].as_ptr(),
                weight_stride: 0,
                k: plan.taps,
                out: out.add(row * plan.length + phase + first * plan.up),
                out_stride: plan.up,
            };
            let (rows, mut at) = (end - first, 0);
            while at + R <= rows {
                tile::<V, R, 1>(&call, at, 0);
                at += R;
            }
            while at < rows {
                tile::<V, 1, 1>(&call, at, 0);
                at += 1;
            }
        }
    }
}
