//! Size classes: how a request is rounded, and how large the slab of a class is.
//!
//! Up to 1 KiB the classes are the multiples of 256 bytes; above, each doubling has four steps, up to 1 MiB. The
//! rounding wastes less than 256 bytes or less than a fifth of the block. A slab holds at least eight blocks, and
//! what is left at its end is at most a sixteenth of it.

/// Alignment of every block, and the smallest one.
pub const ALIGN: usize = 256;

/// Largest request served from a slab; a larger one owns its segment.
pub const SMALL_MAX: usize = 1 << 20;

pub(crate) const CLASSES: usize = 44;

/// Classes that are plain multiples of `ALIGN`.
const LINEAR: usize = 4;
/// log2 of the largest linear class.
const LINEAR_LOG: usize = 10;

const SLAB_MIN: usize = 2 << 20;
const SLAB_BLOCKS: usize = 8;

/// What kind of memory serves a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    Empty,
    Slab(u8),
    Large,
}

/// A request as the pool sees it: what was asked for, and what it is rounded to and charged as.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub bytes: usize,
    pub rounded: usize,
    pub fit: Fit,
}

impl Request {
    /// None when the rounded size does not fit an address.
    #[inline]
    pub fn new(bytes: usize, granule: usize) -> Option<Request> {
        if bytes == 0 {
            return Some(Request { bytes, rounded: 0, fit: Fit::Empty });
        }
        if bytes <= SMALL_MAX {
            let class = class_of(bytes);
            return Some(Request { bytes, rounded: class_bytes(class), fit: Fit::Slab(class as u8) });
        }
        let rounded = round_up(bytes, granule)?;
        Some(Request { bytes, rounded, fit: Fit::Large })
    }
}

/// The smallest class that holds `bytes`, which is between 1 and `SMALL_MAX`.
#[inline]
pub(crate) fn class_of(bytes: usize) -> usize {
    if bytes <= 1 << LINEAR_LOG {
        return (bytes - 1) / ALIGN;
    }
    let top = (usize::BITS - 1 - (bytes - 1).leading_zeros()) as usize;
    let step = ((bytes - 1) >> (top - 2)) & 3;
    LINEAR + (top - LINEAR_LOG) * 4 + step
}

#[inline]
pub(crate) fn class_bytes(class: usize) -> usize {
    if class < LINEAR {
        return (class + 1) * ALIGN;
    }
    let (octave, step) = ((class - LINEAR) / 4, (class - LINEAR) % 4);
    (5 + step) << (octave + LINEAR_LOG - 2)
}

/// Bytes of a slab of this class, a multiple of the device's granularity.
pub(crate) fn slab_bytes(class: usize, granule: usize) -> usize {
    let wanted = (class_bytes(class) * SLAB_BLOCKS).max(SLAB_MIN);
    round_up(wanted, SLAB_MIN).and_then(|bytes| round_up(bytes, granule)).unwrap_or(wanted)
}

#[inline]
pub(crate) fn round_up(bytes: usize, to: usize) -> Option<usize> {
    bytes.checked_next_multiple_of(to)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GRANULE: usize = 2 << 20;

    #[test]
    fn classes_grow_are_aligned_and_end_at_one_mebibyte() {
        for class in 1..CLASSES {
            assert!(class_bytes(class) > class_bytes(class - 1));
        }
        for class in 0..CLASSES {
            assert_eq!(class_bytes(class) % ALIGN, 0);
            assert_eq!(class_of(class_bytes(class)), class, "a class holds exactly its own size");
        }
        assert_eq!(class_bytes(CLASSES - 1), SMALL_MAX);
    }

    #[test]
    fn a_slab_holds_eight_blocks_and_wastes_a_sixteenth_at_most() {
        for class in 0..CLASSES {
            let (block, slab) = (class_bytes(class), slab_bytes(class, GRANULE));
            assert_eq!(slab % GRANULE, 0);
            assert!(slab / block >= SLAB_BLOCKS);
            assert!((slab % block) * 16 <= slab, "class {block}: {} left of {slab}", slab % block);
        }
    }

    #[test]
    fn empty_large_and_impossible_requests() {
        assert_eq!(Request::new(0, GRANULE).unwrap().fit, Fit::Empty);
        assert_eq!(Request::new(SMALL_MAX, GRANULE).unwrap().fit, Fit::Slab(CLASSES as u8 - 1));
        let large = Request::new(SMALL_MAX + 1, GRANULE).unwrap();
        assert_eq!((large.fit, large.rounded), (Fit::Large, GRANULE));
        assert!(Request::new(usize::MAX, GRANULE).is_none());
    }

    proptest! {
        #[test]
        fn the_smallest_class_that_fits_is_chosen(bytes in 1..=SMALL_MAX) {
            let class = class_of(bytes);
            prop_assert!(class < CLASSES);
            prop_assert!(class_bytes(class) >= bytes);
            prop_assert!(class == 0 || class_bytes(class - 1) < bytes);
            let waste = class_bytes(class) - bytes;
            prop_assert!(waste < ALIGN || waste * 5 < class_bytes(class));
        }
    }
}
