//! Physical memory in pieces: what segments are made of, and what is kept between two of them.
//!
//! A piece cannot be split. Evictable segments are made of pieces of few sizes, so that what one leaves serves the next.

use std::collections::BTreeMap;

use smallvec::smallvec;

use super::arena::Arena;
use super::segment::Pieces;
use crate::device::{DevPtr, PhysHandle};
use crate::error::Result;

/// The largest piece of an evictable segment.
const PIECE_MAX: usize = 64 << 20;

/// Pieces nobody uses, by size.
#[derive(Debug, Default)]
pub(crate) struct Spare {
    pieces: BTreeMap<usize, Vec<PhysHandle>>,
    pub bytes: usize,
}

impl Spare {
    fn take(&mut self, bytes: usize) -> Option<PhysHandle> {
        let handle = self.pieces.get_mut(&bytes)?.pop()?;
        self.bytes -= bytes;
        Some(handle)
    }

    fn put(&mut self, handle: PhysHandle, bytes: usize) {
        self.pieces.entry(bytes).or_default().push(handle);
        self.bytes += bytes;
    }

    fn take_largest(&mut self) -> Option<(PhysHandle, usize)> {
        let bytes = self.pieces.iter().rev().find(|(_, handles)| !handles.is_empty()).map(|(bytes, _)| *bytes)?;
        self.take(bytes).map(|handle| (handle, bytes))
    }
}

/// Sizes of the pieces of a segment: as many of the largest as fit, then halves. All are multiples of the granularity.
fn sizes(bytes: usize, granule: usize) -> impl Iterator<Item = usize> {
    let mut left = bytes;
    let mut size = granule << (PIECE_MAX / granule).checked_ilog2().unwrap_or(0);
    std::iter::from_fn(move || {
        if left == 0 {
            return None;
        }
        while size > left && size > granule {
            size /= 2;
        }
        let piece = size.min(left);
        left -= piece;
        Some(piece)
    })
}

impl Arena {
    /// Memory for an evictable segment.
    pub(super) fn take_pieces(&self, bytes: usize) -> Result<Pieces> {
        let mut pieces = Pieces::new();
        for size in sizes(bytes, self.granule()) {
            let spare = self.spare.lock().take(size);
            match spare.map_or_else(|| self.device().create(size), Ok) {
                Ok(handle) => pieces.push((handle, size)),
                Err(error) => {
                    self.put_pieces(pieces);
                    return Err(error);
                }
            }
        }
        Ok(pieces)
    }

    /// Memory for a segment that stays, in one piece.
    pub(super) fn take_piece(&self, bytes: usize) -> Result<Pieces> {
        Ok(smallvec![(self.device().create(bytes)?, bytes)])
    }

    /// Keep pieces for the next segment.
    pub(super) fn put_pieces(&self, pieces: Pieces) {
        let mut spare = self.spare.lock();
        for (handle, bytes) in pieces {
            spare.put(handle, bytes);
        }
    }

    pub(super) fn map_pieces(&self, va: DevPtr, pieces: &Pieces) -> Result<()> {
        let mut at = va;
        for (index, (handle, bytes)) in pieces.iter().enumerate() {
            if let Err(error) = self.device().map(at, *bytes, *handle) {
                let mapped: Pieces = pieces[..index].iter().copied().collect();
                self.record(self.unmap_pieces(va, &mapped));
                return Err(error);
            }
            at += *bytes as u64;
        }
        Ok(())
    }

    /// Every stream has passed the last use.
    pub(super) fn unmap_pieces(&self, va: DevPtr, pieces: &Pieces) -> Result<()> {
        let mut at = va;
        for (_, bytes) in pieces {
            self.device().unmap(at, *bytes)?;
            at += *bytes as u64;
        }
        Ok(())
    }

    pub(super) fn release_pieces(&self, pieces: Pieces) -> Result<()> {
        let released: Vec<Result<()>> =
            pieces.into_iter().map(|(handle, bytes)| self.device().release(handle, bytes)).collect();
        released.into_iter().collect()
    }

    /// Give spare pieces back to the device until at most this many bytes are left.
    pub(super) fn release_spare(&self, keep: usize) -> Result<()> {
        loop {
            let piece = {
                let mut spare = self.spare.lock();
                if spare.bytes <= keep { None } else { spare.take_largest() }
            };
            let Some((handle, bytes)) = piece else { return Ok(()) };
            self.device().release(handle, bytes)?;
        }
    }

    /// Physical bytes kept for the next segment.
    pub fn spare_bytes(&self) -> usize {
        self.spare.lock().bytes
    }

    /// A segment's memory leaves it for the next one.
    pub(super) fn spare_from(&self, va: DevPtr, pieces: Pieces) -> Result<()> {
        self.unmap_pieces(va, &pieces)?;
        self.put_pieces(pieces);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn pieces_add_up_and_are_of_few_sizes() {
        for granules in 1..200 {
            let bytes = granules * 2 * MIB;
            let pieces: Vec<usize> = sizes(bytes, 2 * MIB).collect();
            assert_eq!(pieces.iter().sum::<usize>(), bytes);
            assert!(pieces.iter().all(|piece| piece.is_power_of_two() && (2 * MIB..=PIECE_MAX).contains(piece)));
            assert!(pieces.len() <= bytes / PIECE_MAX + 5);
        }
        assert_eq!(sizes(9 * MIB, 3 * MIB).collect::<Vec<_>>(), [6 * MIB, 3 * MIB]);
        assert_eq!(sizes(100 * MIB, 100 * MIB).collect::<Vec<_>>(), [100 * MIB]);
    }
}
