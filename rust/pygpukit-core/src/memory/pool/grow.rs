//! A pool's part in blocks that grow: their charge, and memory that is put behind their addresses and taken again.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Pool;
use crate::error::{Error, Result};
use crate::memory::segment::{Backing, Pieces, Segment};
use crate::memory::size_class::{Fit, Request};
use crate::memory::storage::Storage;
use crate::stream::Stream;

impl Pool {
    /// A block with this many bytes of addresses and no memory.
    pub(crate) fn allocate_growing(self: &Arc<Self>, range: usize, stream: &Arc<Stream>) -> Result<Arc<Storage>> {
        if crate::memory::is_shut_down() {
            return Err(Error::ShuttingDown);
        }
        self.check_open()?;
        let va = self.arena.take_range(range)?;
        let segment = Segment::growing(va, range, self.id, self.stock.clone(), self.evicting);
        let mut cache = self.cache.lock();
        self.keep_alive(&mut cache);
        let block = cache.adopt(segment, stream);
        drop(cache);
        Ok(Storage::new(block, &Request { bytes: 0, rounded: 0, fit: Fit::Empty }, self))
    }

    /// Charge this much more for a segment, and find the memory for it.
    pub(crate) fn take_more(
        self: &Arc<Self>,
        segment: &Arc<Segment>,
        more: usize,
        check: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Pieces> {
        let whole = segment.bytes() + more;
        self.heed_claims(more)?;
        let mut cache = self.cache.lock();
        while let Err(refusing) = self.charge(more) {
            drop(cache);
            // Room for a part is of no use: all of it is used at once.
            let hopeless = refusing.is_closed() || !refusing.could_hold(whole);
            if hopeless || !refusing.make_room(more, self.requester(), check)? {
                return Err(refusing.refusal(more));
            }
            cache = self.cache.lock();
        }
        self.pending.fetch_add(more, Ordering::Relaxed);
        drop(cache);
        // In pieces of few sizes even if it never moves, so that a part can be given back.
        let taken = self
            .arena
            .under_pressure(more, self.requester(), check, || self.arena.take_pieces(segment.stock(), more, true));
        taken.map_err(|error| {
            self.give_more_back(segment, Pieces::new(), more);
            self.arena.explain(error, more)
        })
    }

    /// The opposite of `take_more`.
    pub(crate) fn give_more_back(&self, segment: &Segment, pieces: Pieces, more: usize) {
        self.arena.put_back(segment.stock(), pieces);
        let _lock = self.cache.lock();
        self.pending.fetch_sub(more, Ordering::Relaxed);
        self.uncharge(more);
    }

    /// Put memory of `take_more` behind a segment that is on the device and stays there.
    pub(crate) fn extend(&self, segment: &Arc<Segment>, pieces: &Pieces) -> Result<()> {
        let more = pieces.iter().map(|(_, bytes)| bytes).sum::<usize>();
        let mut cache = self.cache.lock();
        let mut backing = segment.backing();
        let Backing::Mapped(own) = &mut *backing else {
            return Err(Error::Value("a growable buffer that is not on the device cannot grow".to_string()));
        };
        self.arena.map_pieces(segment.va() + segment.bytes() as u64, pieces)?;
        own.extend(pieces.iter().copied());
        self.change(segment, |pool| {
            cache.resize(segment, segment.bytes() + more);
            pool.arena.count_moved(more, true);
            pool.pending.fetch_sub(more, Ordering::Relaxed);
            pool.note_charge(segment, more);
        });
        Ok(())
    }

    /// Take the memory of whole pieces beyond `wanted` bytes from a segment that is on the device, stays there and is not in
    /// use.
    pub(crate) fn cut(&self, segment: &Arc<Segment>, wanted: usize) -> Result<()> {
        let mut cache = self.cache.lock();
        let mut backing = segment.backing();
        let Backing::Mapped(own) = &mut *backing else { return Ok(()) };
        let (mut kept, mut count) = (segment.bytes(), own.len());
        while count > 0 && kept - own[count - 1].1 >= wanted {
            count -= 1;
            kept -= own[count].1;
        }
        let tail: Pieces = own[count..].iter().copied().collect();
        self.arena.unmap_pieces(segment.va() + kept as u64, &tail)?;
        own.truncate(count);
        let less = segment.bytes() - kept;
        self.change(segment, |pool| {
            cache.resize(segment, kept);
            pool.arena.count_moved(less, false);
            if pool.evicting {
                segment.subtract_charge(less);
            }
            pool.uncharge(less);
        });
        self.arena.put_back(segment.stock(), tail);
        Ok(())
    }

    /// Change a segment's size; to the journal it is a block that ends and one that begins. The cache's lock is held.
    fn change(&self, segment: &Arc<Segment>, change: impl FnOnce(&Pool)) {
        // Its copy on the host, if there is one, has another size.
        segment.set_dirty();
        self.arena.journal.resized(self, segment.va(), segment.bytes(), || {
            change(self);
            segment.bytes()
        });
    }
}
