//! Philox4x32-10 on the CPU device: the words and the numbers of `kernels/common/philox.cuh`, in the same steps.
//!
//! A block of words is two integers of 64 bits, so that the words lie as the kernels take them. Words are made for a few
//! blocks at a time, and numbers of a piece of words that stays in the first cache; both loops vectorise.

mod fill;
mod integers;
mod real;
#[cfg(test)]
mod tests;

pub use fill::{Distribution, Fill};
pub use integers::Integers;

/// Blocks of a piece.
const PIECE: usize = 256;
/// Blocks whose words are made together.
const LANES: usize = 8;

const FACTORS: [u64; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const LOW: u64 = 0xFFFF_FFFF;

/// Where words come from: the key, the first block and the upper words of the counter.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub key: u64,
    pub block: u64,
    pub attempt: u32,
    pub stream: u32,
}

/// Run a body compiled for wide vectors where the machine has them, else for the baseline.
macro_rules! vectorised {
    ($(#[$doc:meta])* $vis:vis fn $name:ident $(<$($G:ident: $Bound:path),+>)? = $body:ident($($arg:ident: $T:ty),* $(,)?)
        $(-> $R:ty)?) => {
        $(#[$doc])*
        $vis fn $name $(<$($G: $Bound),+>)? ($($arg: $T),*) $(-> $R)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt,f16c")]
                fn wide $(<$($G: $Bound),+>)? ($($arg: $T),*) $(-> $R)? {
                    $body $(::<$($G),+>)? ($($arg),*)
                }
                if $crate::emulator::wide_lanes() {
                    // SAFETY: the machine has these features.
                    return unsafe { wide $(::<$($G),+>)? ($($arg),*) };
                }
            }
            $body $(::<$($G),+>)? ($($arg),*)
        }
    };
}
use vectorised;

type Lanes = [u64; LANES];

#[inline(always)]
fn product(words: Lanes, factor: u64) -> Lanes {
    let mut out = words;
    for lane in 0..LANES {
        out[lane] = (words[lane] & LOW) * factor;
    }
    out
}

#[inline(always)]
fn mixed(product: Lanes, word: Lanes, key: u32) -> Lanes {
    let mut out = product;
    for lane in 0..LANES {
        out[lane] = product[lane] >> 32 ^ word[lane] ^ u64::from(key);
    }
    out
}

#[inline(always)]
fn lanes(key: u64, blocks: Lanes, attempt: u32, stream: u32) -> [[u64; 2]; LANES] {
    // A word is the low half of a lane of 64 bits; what a product leaves above it is not looked at.
    let (mut c0, mut c1, mut c2, mut c3) = (blocks, blocks, [u64::from(attempt); LANES], [u64::from(stream); LANES]);
    for word in &mut c1 {
        *word >>= 32;
    }
    let mut keys = [key as u32, (key >> 32) as u32];
    // Written out: in a loop the words would go through memory.
    macro_rules! rounds {
        ($($round:literal)*) => {$(
            let _ = $round;
            let (p, q) = (product(c0, FACTORS[0]), product(c2, FACTORS[1]));
            (c0, c1, c2, c3) = (mixed(q, c1, keys[0]), q, mixed(p, c3, keys[1]), p);
            keys = [keys[0].wrapping_add(WEYL[0]), keys[1].wrapping_add(WEYL[1])];
        )*};
    }
    rounds!(0 1 2 3 4 5 6 7 8 9);
    let _ = keys;
    let mut out = [[0; 2]; LANES];
    for lane in 0..LANES {
        out[lane] = [c0[lane] & LOW | c1[lane] << 32, c2[lane] & LOW | c3[lane] << 32];
    }
    out
}

#[inline(always)]
fn words_body(key: u64, blocks: &[u64], attempt: u32, stream: u32, out: &mut [[u64; 2]]) {
    let (given, left) = blocks.as_chunks::<LANES>();
    for (blocks, group) in given.iter().zip(out.chunks_exact_mut(LANES)) {
        group.copy_from_slice(&lanes(key, *blocks, attempt, stream));
    }
    if !left.is_empty() {
        let mut blocks = [0; LANES];
        blocks[..left.len()].copy_from_slice(left);
        let rest = &mut out[given.len() * LANES..];
        rest.copy_from_slice(&lanes(key, blocks, attempt, stream)[..left.len()]);
    }
}

/// Words of consecutive blocks, a piece at most. Their numbers go through memory: computed in the lanes, they would keep the
/// compiler from vectorising the rounds.
#[inline(always)]
fn words_from(place: Place, out: &mut [[u64; 2]]) {
    let mut blocks = [0; PIECE];
    for (i, block) in blocks.iter_mut().enumerate() {
        *block = place.block.wrapping_add(i as u64);
    }
    words_body(place.key, &blocks[..out.len()], place.attempt, place.stream, out);
}

vectorised! { fn piece = words_from(place: Place, out: &mut [[u64; 2]]) }

vectorised! {
    /// The words of blocks, two integers of 64 bits for each.
    pub fn words = words_body(key: u64, blocks: &[u64], attempt: u32, stream: u32, out: &mut [[u64; 2]])
}

/// The words of one block.
fn block_of(place: Place) -> [u64; 2] {
    let mut out = [[0; 2]];
    words(place.key, &[place.block], place.attempt, place.stream, &mut out);
    out[0]
}
