//! Masks: a byte per element, which is chosen where the byte is not 0.

use std::slice;

use super::by_size;

/// Bytes that are read together.
const WORD: usize = 8;

/// Number of chosen elements.
///
/// # Safety
/// There are `n` bytes at `mask`.
pub unsafe fn count(mask: *const u8, n: usize) -> usize {
    // SAFETY: the caller's contract; no reference is made to nothing.
    let bytes = if n == 0 { &[] } else { unsafe { slice::from_raw_parts(mask, n) } };
    // A byte can count to 255: the inner sum then takes as many elements at once as a vector has bytes.
    bytes.chunks(255).map(|part| usize::from(part.iter().map(|b| u8::from(*b != 0)).sum::<u8>())).sum()
}

/// Call `write(k, i)` for the k-th chosen byte i, of those from `from` on; returns how many that were before and here.
///
/// # Safety
/// There are `n` bytes at `mask`, and `write` may be called with any k below `most`.
#[inline(always)]
unsafe fn each(mask: *const u8, n: usize, mut k: usize, most: usize, mut write: impl FnMut(usize, usize)) -> usize {
    let mut i = 0;
    while i + WORD <= n {
        // SAFETY: the caller's contract.
        let word = unsafe { mask.add(i).cast::<[u8; WORD]>().read() };
        if u64::from_ne_bytes(word) != 0 {
            if k + WORD <= most {
                // Without a branch: every element is written, and the next one over it where it was not chosen.
                for (j, byte) in word.iter().enumerate() {
                    write(k, i + j);
                    k += usize::from(*byte != 0);
                }
            } else {
                for (j, byte) in word.iter().enumerate() {
                    if *byte != 0 {
                        if k < most {
                            write(k, i + j);
                        }
                        k += 1;
                    }
                }
            }
        }
        i += WORD;
    }
    for i in i..n {
        // SAFETY: as above.
        if unsafe { *mask.add(i) } != 0 {
            if k < most {
                write(k, i);
            }
            k += 1;
        }
    }
    k
}

unsafe fn take_as<T: Copy>(x: *const u8, mask: *const u8, n: usize, out: *mut u8, most: usize, found: &mut usize) {
    let (x, out) = (x.cast::<T>(), out.cast::<T>());
    // SAFETY: `take` says so.
    *found = unsafe { each(mask, n, 0, most, |k, i| out.add(k).write_unaligned(x.add(i).read_unaligned())) };
}

/// Write the chosen ones of `n` elements one after another, `most` of them at most; returns how many are chosen.
///
/// # Safety
/// There are `n` bytes at `mask`, `n` elements of `item` bytes at `x` and room for `most` at `out`, which is other memory.
pub unsafe fn take(x: *const u8, mask: *const u8, n: usize, item: usize, out: *mut u8, most: usize) -> usize {
    let mut found = 0;
    // SAFETY: the caller's contract.
    unsafe { by_size!(item, take_as(x, mask, n, out, most, &mut found)) };
    found
}

/// Write where the chosen elements of a mask in row-major order are, a row of `most` integers per axis; returns how many
/// are chosen.
///
/// # Safety
/// The mask has as many bytes as `shape` says, and there is room for `most` integers per axis at `out`.
pub unsafe fn places(mask: *const u8, shape: &[i64], out: *mut i64, most: usize) -> usize {
    let Some((&last, outer)) = shape.split_last() else { return 0 };
    let rows: i64 = outer.iter().product();
    let (last, mut k) = (last as usize, 0);
    let mut at = vec![0i64; outer.len()];
    // SAFETY: the row of the last axis is the last of the result.
    let columns = unsafe { out.add(outer.len() * most) };
    for row in 0..rows as usize {
        // SAFETY: the caller's contract.
        let next =
            unsafe { each(mask.add(row * last), last, k, most, |k, i| columns.add(k).write_unaligned(i as i64)) };
        for (axis, &index) in at.iter().enumerate() {
            for place in k..next.min(most) {
                // SAFETY: as above.
                unsafe { out.add(axis * most + place).write_unaligned(index) };
            }
        }
        k = next;
        for (index, &n) in at.iter_mut().zip(outer).rev() {
            *index += 1;
            if *index < n {
                break;
            }
            *index = 0;
        }
    }
    k
}
