//! Physical memory in pieces: what segments are made of, and what is kept between two of them.
//!
//! A piece cannot be split. Evictable segments are made of pieces of few sizes, so that what one leaves serves the next.

use std::collections::BTreeMap;
use std::sync::Arc;

use smallvec::smallvec;

use super::arena::Arena;
use super::segment::Pieces;
use super::stock::Stock;
use crate::device::{DevPtr, PhysHandle};
use crate::error::Result;

/// The largest piece of an evictable segment.
pub(super) const PIECE_MAX: usize = 64 << 20;

/// Pieces nobody uses, by size.
#[derive(Debug, Default)]
pub(crate) struct Spare {
    pieces: BTreeMap<usize, Vec<PhysHandle>>,
    pub bytes: usize,
}

impl Spare {
    pub fn take(&mut self, bytes: usize) -> Option<PhysHandle> {
        let handle = self.pieces.get_mut(&bytes)?.pop()?;
        self.bytes -= bytes;
        Some(handle)
    }

    pub fn put(&mut self, handle: PhysHandle, bytes: usize) {
        self.pieces.entry(bytes).or_default().push(handle);
        self.bytes += bytes;
    }

    /// The largest piece of at most this many bytes.
    pub fn take_up_to(&mut self, bytes: usize) -> Option<(PhysHandle, usize)> {
        let has = |(size, handles): (&usize, &Vec<PhysHandle>)| (!handles.is_empty()).then_some(*size);
        let size = self.pieces.range(..=bytes).rev().find_map(has)?;
        self.take(size).map(|handle| (handle, size))
    }

    pub fn take_smallest(&mut self) -> Option<(PhysHandle, usize)> {
        let size = self.pieces.iter().find_map(|(size, handles)| (!handles.is_empty()).then_some(*size))?;
        self.take(size).map(|handle| (handle, size))
    }
}

/// Sizes of the pieces of a segment: as many of the largest as fit, then halves. All are multiples of the granularity.
pub(super) fn sizes(bytes: usize, granule: usize) -> impl Iterator<Item = usize> {
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
    /// Memory for a segment: in one piece when it stays and nobody's guarantee is touched.
    pub(super) fn take_pieces(&self, stock: Option<&Arc<Stock>>, bytes: usize, evictable: bool) -> Result<Pieces> {
        if !evictable && stock.is_none() {
            return Ok(smallvec![(self.create(bytes)?, bytes)]);
        }
        let mut pieces = Pieces::new();
        for size in sizes(bytes, self.granule()) {
            let drawn = self.draw(stock, size, &mut pieces);
            drawn.inspect_err(|_| self.put_back(stock, std::mem::take(&mut pieces)))?;
        }
        Ok(pieces)
    }

    /// New physical memory.
    pub(super) fn create(&self, bytes: usize) -> Result<PhysHandle> {
        let _one_at_a_time = self.creating.lock();
        self.device().create(bytes)
    }

    /// Keep pieces for the next segment.
    pub(super) fn keep_spare(&self, pieces: Pieces) {
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

    /// Every stream has passed the last use. All of them or, when the driver refuses one, none.
    pub(super) fn unmap_pieces(&self, va: DevPtr, pieces: &Pieces) -> Result<()> {
        let mut at = va;
        for (index, (_, bytes)) in pieces.iter().enumerate() {
            if let Err(error) = self.device().unmap(at, *bytes) {
                let unmapped: Pieces = pieces[..index].iter().copied().collect();
                self.record(self.map_pieces(va, &unmapped));
                return Err(error);
            }
            at += *bytes as u64;
        }
        Ok(())
    }

    /// Give pieces back to the device, but for those a guarantee holds.
    pub(super) fn release_pieces(&self, stock: Option<&Arc<Stock>>, pieces: Pieces) -> Result<()> {
        let pieces = self.hold_back(stock, pieces);
        let mut released = Ok(());
        for (handle, bytes) in pieces {
            released = released.and(self.release_piece(handle, bytes));
        }
        released
    }

    /// What the driver refuses to take back stays ours.
    fn release_piece(&self, handle: PhysHandle, bytes: usize) -> Result<()> {
        self.device().release(handle, bytes).inspect_err(|_| self.spare.lock().put(handle, bytes))
    }

    /// Give spare pieces back to the device until at most this many bytes are left.
    pub(super) fn release_spare(&self, keep: usize) -> Result<()> {
        loop {
            let piece = {
                let mut spare = self.spare.lock();
                if spare.bytes <= keep { None } else { spare.take_up_to(usize::MAX) }
            };
            let Some((handle, bytes)) = piece else { return Ok(()) };
            self.release_piece(handle, bytes)?;
        }
    }

    /// Physical bytes kept for the next segment.
    pub fn spare_bytes(&self) -> usize {
        self.spare.lock().bytes
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
