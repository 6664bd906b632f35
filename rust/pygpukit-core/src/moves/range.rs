//! Evenly spaced numbers.

/// What is computed, in the type it is stored in; integers modulo their size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Range {
    Integer {
        start: i64,
        step: i64,
    },
    /// The last number is given where it is not what the others lead to.
    F32 {
        start: f32,
        step: f32,
        last: Option<f32>,
    },
    F64 {
        start: f64,
        step: f64,
        last: Option<f64>,
    },
}

/// # Safety
/// There is room for `n` elements at `out`.
unsafe fn fill<T>(out: *mut u8, n: usize, value: impl Fn(usize) -> T) {
    let out = out.cast::<T>();
    for i in 0..n {
        // SAFETY: the caller's contract.
        unsafe { out.add(i).write_unaligned(value(i)) };
    }
}

impl Range {
    /// Write `n` numbers; integers of `item` bytes.
    ///
    /// # Safety
    /// There is room for them at `out`.
    pub unsafe fn write(self, out: *mut u8, n: usize, item: usize) {
        // SAFETY: the caller's contract.
        unsafe {
            match self {
                Range::Integer { start, step } => {
                    let value = |i: usize| start.wrapping_add(step.wrapping_mul(i as i64));
                    match item {
                        1 => fill(out, n, |i| value(i) as u8),
                        2 => fill(out, n, |i| value(i) as u16),
                        4 => fill(out, n, |i| value(i) as u32),
                        _ => fill(out, n, value),
                    }
                }
                Range::F32 { start, step, last } => {
                    fill(out, n, |i| i as i64 as f32 * step + start);
                    if let (Some(last), Some(end)) = (last, n.checked_sub(1)) {
                        out.cast::<f32>().add(end).write_unaligned(last);
                    }
                }
                Range::F64 { start, step, last } => {
                    fill(out, n, |i| i as i64 as f64 * step + start);
                    if let (Some(last), Some(end)) = (last, n.checked_sub(1)) {
                        out.cast::<f64>().add(end).write_unaligned(last);
                    }
                }
            }
        }
    }
}
