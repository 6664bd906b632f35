//! Integers of equal probability in a range, as `kernels/random/integers.cu`.

use super::{PIECE, Place, block_of, piece, vectorised};

/// A vector of integers in `low ..= low + last`.
#[derive(Clone, Copy, Debug)]
pub struct Integers {
    pub low: u64,
    pub last: u64,
    /// 2^32, for wide words 2^64, modulo the number of integers.
    pub reject: u64,
    /// Words of 64 bits: for more than 2^32 integers.
    pub wide: bool,
}

/// An element of 8 to 64 bits.
trait Integer: Copy {
    fn of(x: u64) -> Self;
}

macro_rules! integer {
    ($($T:ty)*) => {$(
        impl Integer for $T {
            #[inline(always)]
            fn of(x: u64) -> $T {
                x as $T
            }
        }
    )*};
}
integer!(u8 u16 u32 u64);

#[inline(always)]
fn narrow_body<T: Integer>(blocks: &[[u64; 2]], of: &Integers, out: &mut [T]) -> bool {
    let mut again = false;
    for (part, words) in out.chunks_mut(4).zip(blocks) {
        for (i, to) in part.iter_mut().enumerate() {
            let word = words[i / 2] >> (i % 2 * 32) & 0xFFFF_FFFF;
            let product = word * of.last + word;
            again |= (product & 0xFFFF_FFFF) < of.reject;
            *to = T::of(of.low.wrapping_add(product >> 32));
        }
    }
    again
}

#[inline(always)]
fn wide_body(blocks: &[[u64; 2]], of: &Integers, out: &mut [u64]) -> bool {
    let mut again = false;
    for (to, &word) in out.iter_mut().zip(blocks.as_flattened()) {
        let product = u128::from(word) * (u128::from(of.last) + 1);
        again |= (product as u64) < of.reject;
        *to = of.low.wrapping_add((product >> 64) as u64);
    }
    again
}

vectorised! { fn narrow<T: Integer> = narrow_body(blocks: &[[u64; 2]], of: &Integers, out: &mut [T]) -> bool }
vectorised! { fn wide_words = wide_body(blocks: &[[u64; 2]], of: &Integers, out: &mut [u64]) -> bool }

impl Integers {
    /// Write `n` elements of `itemsize` bytes.
    ///
    /// # Safety
    /// `out` is memory for them, aligned to them, that nothing else uses meanwhile. With wide words they have 8 bytes.
    pub unsafe fn write(&self, place: Place, out: *mut u8, n: usize, itemsize: usize) {
        // SAFETY: the caller's contract.
        unsafe {
            match itemsize {
                1 => self.fill::<u8>(place, std::slice::from_raw_parts_mut(out.cast(), n)),
                2 => self.fill::<u16>(place, std::slice::from_raw_parts_mut(out.cast(), n)),
                4 => self.fill::<u32>(place, std::slice::from_raw_parts_mut(out.cast(), n)),
                _ if self.wide => self.fill_wide(place, std::slice::from_raw_parts_mut(out.cast(), n)),
                _ => self.fill::<u64>(place, std::slice::from_raw_parts_mut(out.cast(), n)),
            }
        }
    }

    fn fill<T: Integer>(&self, place: Place, out: &mut [T]) {
        let mut blocks = [[0; 2]; PIECE];
        for (i, part) in out.chunks_mut(PIECE * 4).enumerate() {
            let place = Place { block: place.block.wrapping_add((i * PIECE) as u64), ..place };
            let blocks = &mut blocks[..part.len().div_ceil(4)];
            piece(place, blocks);
            if narrow(blocks, self, part) {
                let at = |words: [u64; 2], i: usize| words[i / 2] >> (i % 2 * 32) & 0xFFFF_FFFF;
                let lower = |word: u64| (word * self.last + word) & 0xFFFF_FFFF;
                let made = |word: u64| (word * self.last + word) >> 32;
                self.draw_again((place, 4), blocks, part, at, |word| lower(word) < self.reject, made);
            }
        }
    }

    fn fill_wide(&self, place: Place, out: &mut [u64]) {
        let mut blocks = [[0; 2]; PIECE];
        for (i, part) in out.chunks_mut(PIECE * 2).enumerate() {
            let place = Place { block: place.block.wrapping_add((i * PIECE) as u64), ..place };
            let blocks = &mut blocks[..part.len().div_ceil(2)];
            piece(place, blocks);
            if wide_words(blocks, self, part) {
                let product = |word: u64| u128::from(word) * (u128::from(self.last) + 1);
                let made = |word| (product(word) >> 64) as u64;
                self.draw_again(
                    (place, 2),
                    blocks,
                    part,
                    |words, i| words[i],
                    |word| (product(word) as u64) < self.reject,
                    made,
                );
            }
        }
    }

    /// Replace what came of words that are refused, by the words of further attempts.
    fn draw_again<T: Integer>(
        &self,
        (place, count): (Place, usize),
        blocks: &[[u64; 2]],
        out: &mut [T],
        at: impl Fn([u64; 2], usize) -> u64,
        refused: impl Fn(u64) -> bool,
        made: impl Fn(u64) -> u64,
    ) {
        for (block, part) in out.chunks_mut(count).enumerate() {
            for (i, to) in part.iter_mut().enumerate() {
                let mut word = at(blocks[block], i);
                let mut place = Place { block: place.block.wrapping_add(block as u64), ..place };
                if !refused(word) {
                    continue;
                }
                while refused(word) {
                    place.attempt += 1;
                    word = at(block_of(place), i);
                }
                *to = T::of(self.low.wrapping_add(made(word)));
            }
        }
    }
}
