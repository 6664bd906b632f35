//! Numbers of a continuous distribution: `a + b * x`, rounded after each step, as `kernels/random/fill.cu`.

use super::real::{Real, minus_log, minus_log_rest, sine_cosine};
use super::{PIECE, Place, piece, vectorised};
use crate::dtype::DType;
use crate::emulator::float::{Round, f32_to_bf16, f32_to_f16};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distribution {
    Uniform,
    Normal,
    Exponential,
    Rayleigh,
    Gumbel,
    Laplace,
    Logistic,
    Cauchy,
}

impl Distribution {
    pub const ALL: [(&'static str, Distribution); 8] = [
        ("uniform", Distribution::Uniform),
        ("normal", Distribution::Normal),
        ("exponential", Distribution::Exponential),
        ("rayleigh", Distribution::Rayleigh),
        ("gumbel", Distribution::Gumbel),
        ("laplace", Distribution::Laplace),
        ("logistic", Distribution::Logistic),
        ("cauchy", Distribution::Cauchy),
    ];

    pub fn from_name(name: &str) -> Option<Distribution> {
        Self::ALL.iter().find(|one| one.0 == name).map(|one| one.1)
    }
}

/// Words as the numbers of a type take them.
trait Words: Real {
    /// Of a block.
    const COUNT: usize;
    fn of_blocks(blocks: &[[u64; 2]]) -> &[Self::Word];
    /// A fraction with `bits` random bits, in [0, 1).
    fn fraction(word: Self::Word, bits: u32, unit: Self) -> Self;
}

impl Words for f32 {
    const COUNT: usize = 4;
    #[inline(always)]
    fn of_blocks(blocks: &[[u64; 2]]) -> &[u32] {
        // SAFETY: the same memory; on the machines that are supported, the lower half of an integer comes first.
        unsafe { std::slice::from_raw_parts(blocks.as_ptr().cast(), blocks.len() * 4) }
    }
    #[inline(always)]
    fn fraction(word: u32, bits: u32, unit: f32) -> f32 {
        (word >> (32 - bits)) as f32 * unit
    }
}

impl Words for f64 {
    const COUNT: usize = 2;
    #[inline(always)]
    fn of_blocks(blocks: &[[u64; 2]]) -> &[u64] {
        blocks.as_flattened()
    }
    #[inline(always)]
    fn fraction(word: u64, bits: u32, unit: f64) -> f64 {
        (word >> (64 - bits)) as f64 * unit
    }
}

/// A distribution whose numbers are made of a word each.
trait Each<T: Words> {
    fn of(word: T::Word) -> T;
}

struct Exponential;
impl<T: Words> Each<T> for Exponential {
    #[inline(always)]
    fn of(word: T::Word) -> T {
        minus_log(T::positive(word))
    }
}

struct Rayleigh;
impl<T: Words> Each<T> for Rayleigh {
    #[inline(always)]
    fn of(word: T::Word) -> T {
        let e = minus_log(T::positive(word));
        (e + e).sqrt()
    }
}

struct Gumbel;
impl<T: Words> Each<T> for Gumbel {
    #[inline(always)]
    fn of(word: T::Word) -> T {
        // Large numbers come of small fractions, which are the finer ones.
        minus_log(minus_log_rest(T::positive(word)))
    }
}

struct Laplace;
impl<T: Words> Each<T> for Laplace {
    #[inline(always)]
    fn of(word: T::Word) -> T {
        let e = minus_log(T::positive_half(word));
        if T::lowest(word) { -e } else { e }
    }
}

struct Logistic;
impl<T: Words> Each<T> for Logistic {
    #[inline(always)]
    fn of(word: T::Word) -> T {
        let u = T::positive_half(word);
        let e = minus_log(u) - minus_log(T::of(2.0) - u);
        if T::lowest(word) { -e } else { e }
    }
}

struct Cauchy;
impl<T: Words> Each<T> for Cauchy {
    #[inline(always)]
    fn of(word: T::Word) -> T {
        let (s, c) = sine_cosine(T::angle(word));
        let (over, under) = if T::highest(word) { (c, s) } else { (s, c) };
        over / under
    }
}

#[inline(always)]
fn each_body<T: Words, D: Each<T>>(blocks: &[[u64; 2]], out: &mut [T]) {
    for (x, &word) in out.iter_mut().zip(T::of_blocks(blocks)) {
        *x = D::of(word);
    }
}

vectorised! { fn each<T: Words, D: Each<T>> = each_body(blocks: &[[u64; 2]], out: &mut [T]) }

#[inline(always)]
fn uniform_body<T: Words>(blocks: &[[u64; 2]], bits: u32, out: &mut [T]) {
    let unit = T::of(1.0 / (1u64 << bits) as f64);
    for (x, &word) in out.iter_mut().zip(T::of_blocks(blocks)) {
        *x = T::fraction(word, bits, unit);
    }
}

vectorised! { fn uniform<T: Words> = uniform_body(blocks: &[[u64; 2]], bits: u32, out: &mut [T]) }

/// Box and Muller: pairs of a radius and an angle, which two bits turn.
#[inline(always)]
fn normal_body<T: Words>(blocks: &[[u64; 2]], out: &mut [T]) {
    for (pair, words) in out.chunks_exact_mut(2).zip(T::of_blocks(blocks).chunks_exact(2)) {
        let (radius, turn) = (words[0], words[1]);
        let r = (T::of(2.0) * minus_log(T::positive(radius))).sqrt();
        let (s, c) = sine_cosine(T::angle(turn));
        let c = if T::second_highest(turn) { -c } else { c };
        let swap = T::highest(turn);
        pair[0] = r * if swap { s } else { c };
        pair[1] = r * if swap { c } else { s };
    }
}

vectorised! { fn normal<T: Words> = normal_body(blocks: &[[u64; 2]], out: &mut [T]) }

/// What an array's element is made of a number.
trait Element<T>: Copy {
    fn of(x: T) -> Self;
}

impl Element<f32> for f32 {
    #[inline(always)]
    fn of(x: f32) -> f32 {
        x
    }
}

impl Element<f64> for f64 {
    #[inline(always)]
    fn of(x: f64) -> f64 {
        x
    }
}

#[derive(Clone, Copy)]
#[repr(transparent)]
struct F16(u16);

impl Element<f32> for F16 {
    #[inline(always)]
    fn of(x: f32) -> F16 {
        F16(f32_to_f16(x.to_bits(), Round::Nearest))
    }
}

#[derive(Clone, Copy)]
#[repr(transparent)]
struct BF16(u16);

impl Element<f32> for BF16 {
    #[inline(always)]
    fn of(x: f32) -> BF16 {
        BF16(f32_to_bf16(x.to_bits(), Round::Nearest))
    }
}

#[inline(always)]
fn store_body<T: Real, E: Element<T>>(a: T, b: T, numbers: &[T], out: &mut [E]) {
    for (to, &x) in out.iter_mut().zip(numbers) {
        *to = E::of(a + b * x);
    }
}

vectorised! { fn store<T: Real, E: Element<T>> = store_body(a: T, b: T, numbers: &[T], out: &mut [E]) }

/// A vector of a distribution.
#[derive(Clone, Copy, Debug)]
pub struct Fill {
    pub distribution: Distribution,
    /// float16, bfloat16, float32 or float64.
    pub dtype: DType,
    pub a: f64,
    pub b: f64,
}

impl Fill {
    /// Does this draw elements of a type?
    pub fn gives(dtype: DType) -> bool {
        matches!(dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64)
    }

    /// Write `n` elements.
    ///
    /// # Safety
    /// `out` is memory for `n` elements of `dtype`, aligned to them, that nothing else uses meanwhile.
    pub unsafe fn write(&self, place: Place, out: *mut u8, n: usize) {
        // SAFETY: the caller's contract.
        unsafe {
            match self.dtype {
                DType::F64 => self.fill::<f64, f64>(place, 53, std::slice::from_raw_parts_mut(out.cast(), n)),
                DType::F32 => self.fill::<f32, f32>(place, 24, std::slice::from_raw_parts_mut(out.cast(), n)),
                DType::F16 => self.fill::<f32, F16>(place, 11, std::slice::from_raw_parts_mut(out.cast(), n)),
                DType::BF16 => self.fill::<f32, BF16>(place, 8, std::slice::from_raw_parts_mut(out.cast(), n)),
                other => unreachable!("no distribution gives {}", other.name()),
            }
        }
    }

    fn fill<T: Words, E: Element<T>>(&self, place: Place, bits: u32, out: &mut [E]) {
        let (a, b) = (T::of(self.a), T::of(self.b));
        let (mut numbers, mut blocks) = ([T::default(); PIECE * 4], [[0; 2]; PIECE]);
        for (i, part) in out.chunks_mut(PIECE * T::COUNT).enumerate() {
            let place = Place { block: place.block.wrapping_add((i * PIECE) as u64), ..place };
            // Whole blocks, because a block may be a pair.
            let count = part.len().div_ceil(T::COUNT);
            let (blocks, numbers) = (&mut blocks[..count], &mut numbers[..count * T::COUNT]);
            piece(place, blocks);
            match self.distribution {
                Distribution::Uniform => uniform(blocks, bits, numbers),
                Distribution::Normal => normal(blocks, numbers),
                Distribution::Exponential => each::<T, Exponential>(blocks, numbers),
                Distribution::Rayleigh => each::<T, Rayleigh>(blocks, numbers),
                Distribution::Gumbel => each::<T, Gumbel>(blocks, numbers),
                Distribution::Laplace => each::<T, Laplace>(blocks, numbers),
                Distribution::Logistic => each::<T, Logistic>(blocks, numbers),
                Distribution::Cauchy => each::<T, Cauchy>(blocks, numbers),
            }
            store(a, b, numbers, part);
        }
    }
}
