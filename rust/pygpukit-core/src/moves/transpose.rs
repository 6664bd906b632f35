//! Copies of an array whose neighbours in memory lie along another axis than those of the result.

use smallvec::SmallVec;

use super::by_size;

/// Bytes of a cache line: a tile reads and writes whole lines.
const LINE: usize = 64;

/// A copy by tiles: strides in bytes, of the source and of the result.
#[derive(Clone, Debug)]
pub struct Transpose {
    /// The plane in which lines cross: the axis along which the source lies in memory, and that of the result.
    plane: [Axis; 2],
    others: SmallVec<[Axis; 8]>,
    item: usize,
}

#[derive(Clone, Copy, Debug)]
struct Axis {
    length: isize,
    source: isize,
    target: isize,
}

impl Transpose {
    /// A copy of elements of `item` bytes.
    pub fn new(shape: &[usize], source: &[isize], target: &[isize], item: usize) -> Transpose {
        let mut axes: SmallVec<[Axis; 8]> = shape
            .iter()
            .zip(source.iter().zip(target))
            .map(|(&n, (&source, &target))| Axis { length: n as isize, source, target })
            .filter(|axis| axis.length != 1)
            .collect();
        // Axes of one element have no lines.
        while axes.len() < 2 {
            axes.push(Axis { length: 1, source: 0, target: 0 });
        }
        let nearest = |axes: &[Axis], stride: fn(&Axis) -> isize| {
            (0..axes.len()).min_by_key(|&i| stride(&axes[i]).unsigned_abs()).unwrap_or(0)
        };
        let at = nearest(&axes, |axis| axis.target);
        let across = axes.remove(at);
        let at = nearest(&axes, |axis| axis.source);
        let along = axes.remove(at);
        Transpose { plane: [along, across], others: axes, item }
    }

    /// Copy.
    ///
    /// # Safety
    /// The addresses are those of the first elements of arrays of the shape and the strides, which are separate memory.
    pub unsafe fn copy(&self, source: *const u8, target: *mut u8) {
        let count: isize = self.others.iter().map(|axis| axis.length).product();
        let mut at: SmallVec<[isize; 8]> = self.others.iter().map(|_| 0).collect();
        for _ in 0..count {
            let offset = |stride: fn(&Axis) -> isize| at.iter().zip(&self.others).map(|(i, a)| i * stride(a)).sum();
            let (from, to) =
                (source.wrapping_offset(offset(|a| a.source)), target.wrapping_offset(offset(|a| a.target)));
            // SAFETY: the caller's contract.
            unsafe { by_size!(self.item, plane(from, to, self.plane[0], self.plane[1])) };
            for (index, axis) in at.iter_mut().zip(&self.others).rev() {
                *index += 1;
                if *index < axis.length {
                    break;
                }
                *index = 0;
            }
        }
    }
}

/// Copy a plane whose lines lie along `along` in the source and along `across` in the result.
unsafe fn plane<T: Copy + Default>(source: *const u8, target: *mut u8, along: Axis, across: Axis) {
    let side = (LINE / size_of::<T>()) as isize;
    let dense = along.source == size_of::<T>() as isize && across.target == size_of::<T>() as isize;
    for j in (0..across.length).step_by(side as usize) {
        let columns = side.min(across.length - j);
        for i in (0..along.length).step_by(side as usize) {
            let rows = side.min(along.length - i);
            // SAFETY: the caller's contract.
            unsafe {
                let from = source.offset(i * along.source + j * across.source);
                let to = target.offset(i * along.target + j * across.target);
                if dense && rows == side && columns == side {
                    match side {
                        64 => tile::<T, 64>(from, to, along.target, across.source),
                        32 => tile::<T, 32>(from, to, along.target, across.source),
                        16 => tile::<T, 16>(from, to, along.target, across.source),
                        8 => tile::<T, 8>(from, to, along.target, across.source),
                        _ => tile::<T, 4>(from, to, along.target, across.source),
                    }
                    continue;
                }
                for r in 0..rows {
                    for c in 0..columns {
                        let element = from.offset(r * along.source + c * across.source).cast::<T>().read_unaligned();
                        to.offset(r * along.target + c * across.target).cast::<T>().write_unaligned(element);
                    }
                }
            }
        }
    }
}

/// A square of whole lines, through memory that stays in the first cache: lines of a large array share places there.
#[inline(always)]
unsafe fn tile<T: Copy + Default, const N: usize>(source: *const u8, target: *mut u8, down: isize, right: isize) {
    let mut lines = [[T::default(); N]; N];
    for (c, line) in lines.iter_mut().enumerate() {
        // SAFETY: the caller's contract.
        *line = unsafe { source.offset(c as isize * right).cast::<[T; N]>().read_unaligned() };
    }
    // Columns as an iterator would be slower: the compiler then moves the whole square for each.
    #[allow(clippy::needless_range_loop)]
    for r in 0..N {
        let turned: [T; N] = std::array::from_fn(|c| lines[c][r]);
        // SAFETY: as above.
        unsafe { target.offset(r as isize * down).cast::<[T; N]>().write_unaligned(turned) };
    }
}
