//! Windows into an array that go on beyond its edges: padding and rolling, as `kernels/shape/window.cu` has them.

use smallvec::SmallVec;

use super::by_size;

/// How the array goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It repeats.
    Wrap,
    /// The nearest element.
    Edge,
    /// Mirrored at its last element.
    Reflect,
    /// Mirrored behind its last element.
    Symmetric,
    /// A number for each side of an axis; the last axis that is left decides.
    Constant,
}

impl Mode {
    pub fn from_name(name: &str) -> Option<Mode> {
        Some(match name {
            "roll" | "wrap" => Mode::Wrap,
            "edge" => Mode::Edge,
            "reflect" => Mode::Reflect,
            "symmetric" => Mode::Symmetric,
            "constant" => Mode::Constant,
            _ => return None,
        })
    }
}

type Row = SmallVec<[i64; 8]>;

/// A window: out[c] = x[f(c - before)] along each axis. The result is contiguous; strides of x are in bytes.
#[derive(Clone, Debug)]
pub struct Window {
    pub mode: Mode,
    pub shape: Row,
    pub extent: Row,
    pub strides: Row,
    pub before: Row,
    pub item: usize,
}

/// What neighbouring elements of a row are: those of x from an index on by a step of -1, 0 or 1, or a constant.
#[derive(Clone, Copy)]
enum Run {
    Elements { count: i64, from: i64, step: i64 },
    Constant { count: i64, number: usize },
}

/// The element of x behind index `i`, how the next ones go on from it, and for how many.
fn continued(mode: Mode, i: i64, n: i64) -> (i64, i64, i64) {
    // Indices r and top - r are the same element; the rising part has the turning element.
    let mirrored = |period: i64, top: i64| {
        let r = i.rem_euclid(period);
        if r < n { (r, 1, n - r) } else { (top - r, -1, period - r) }
    };
    match mode {
        Mode::Edge | Mode::Constant => (if i < 0 { 0 } else { n - 1 }, 0, i64::MAX),
        Mode::Wrap => (i.rem_euclid(n), 1, n - i.rem_euclid(n)),
        Mode::Reflect if n == 1 => (0, 0, i64::MAX),
        Mode::Reflect => mirrored(2 * n - 2, 2 * n - 2),
        Mode::Symmetric => mirrored(2 * n, 2 * n - 1),
    }
}

impl Window {
    /// The runs of a row of the last axis.
    fn runs(&self) -> Vec<Run> {
        let axis = self.shape.len() - 1;
        let (total, n, before) = (self.shape[axis], self.extent[axis], self.before[axis]);
        let (mut runs, mut at) = (Vec::new(), 0);
        while at < total {
            let i = at - before;
            // Up to where x begins or the row ends.
            let most = if i < 0 { (-i).min(total - at) } else { total - at };
            let run = if (0..n).contains(&i) {
                Run::Elements { count: (n - i).min(total - at), from: i, step: 1 }
            } else if self.mode == Mode::Constant {
                Run::Constant { count: most, number: 2 * axis + usize::from(i >= 0) }
            } else {
                let (from, step, count) = continued(self.mode, i, n);
                Run::Elements { count: count.min(most), from, step }
            };
            let (Run::Elements { count, .. } | Run::Constant { count, .. }) = run;
            runs.push(run);
            at += count;
        }
        runs
    }

    /// Write the window.
    ///
    /// # Safety
    /// x has the extent and strides, and `value` two elements per axis where the mode is constant; there is room for the
    /// window at `out`, which is other memory. No extent is 0 unless the mode is constant.
    pub unsafe fn write(&self, x: *const u8, value: *const u8, out: *mut u8) {
        // SAFETY: the caller's contract.
        unsafe { by_size!(self.item, write_as(self, x, value, out)) }
    }
}

unsafe fn write_as<T: Copy>(w: &Window, x: *const u8, value: *const u8, out: *mut u8) {
    if w.shape.contains(&0) {
        return;
    }
    let Some((_, outer)) = w.shape.split_last() else { return };
    let (runs, step) = (w.runs(), w.strides[outer.len()]);
    let (value, mut to) = (value.cast::<T>(), out.cast::<T>());
    let mut at: Row = outer.iter().map(|_| 0).collect();
    for _ in 0..outer.iter().product() {
        let (mut source, mut constant) = (x, None);
        for (axis, &c) in at.iter().enumerate() {
            let (mut i, n) = (c - w.before[axis], w.extent[axis]);
            if !(0..n).contains(&i) {
                if w.mode == Mode::Constant {
                    constant = Some(2 * axis + usize::from(i >= 0));
                    continue;
                }
                i = continued(w.mode, i, n).0;
            }
            source = source.wrapping_offset((i * w.strides[axis]) as isize);
        }
        for run in &runs {
            // SAFETY: the caller's contract; runs end where the row does.
            unsafe {
                let count = match (*run, constant) {
                    (Run::Constant { count, number }, _) | (Run::Elements { count, .. }, Some(number)) => {
                        let value = value.add(number).read_unaligned();
                        (0..count as usize).for_each(|j| to.add(j).write_unaligned(value));
                        count
                    }
                    (Run::Elements { count, from, step: turn }, None) => {
                        let first = source.offset((from * step) as isize);
                        if turn * step == size_of::<T>() as i64 {
                            first.copy_to_nonoverlapping(to.cast::<u8>(), count as usize * size_of::<T>());
                        } else {
                            for j in 0..count {
                                let element = first.offset((j * turn * step) as isize).cast::<T>();
                                to.add(j as usize).write_unaligned(element.read_unaligned());
                            }
                        }
                        count
                    }
                };
                to = to.add(count as usize);
            }
        }
        for (index, &n) in at.iter_mut().zip(outer).rev() {
            *index += 1;
            if *index < n {
                break;
            }
            *index = 0;
        }
    }
}
