//! `GrowBuffer`: an address range that is mapped further in place, so that pointers into it stay valid.

use std::sync::Arc;

use parking_lot::Mutex;

use super::arena::{Arena, ArenaMode, Owner};
use super::segment::{Segment, SegmentClass};
use super::size_class::round_up;
use super::uses::Uses;
use crate::device::DevPtr;
use crate::error::{Error, Result, human};
use crate::stream::Stream;

/// Owner of segments that belong to no pool.
const NO_POOL: u32 = 0;

#[derive(Debug, Default)]
struct Grown {
    segments: Vec<Arc<Segment>>,
    mapped: usize,
    uses: Uses,
}

/// Memory for parameter blocks of graphs and caches that grow: the address never changes. Without virtual memory
/// management everything is allocated at once.
#[derive(Debug)]
pub struct GrowBuffer {
    arena: Arc<Arena>,
    base: DevPtr,
    /// Addresses taken, a multiple of the granularity.
    range: usize,
    max_bytes: usize,
    grown: Mutex<Grown>,
}

impl GrowBuffer {
    pub fn new(arena: &Arc<Arena>, max_bytes: usize) -> Result<GrowBuffer> {
        if max_bytes == 0 {
            return Err(Error::Value("a growable buffer needs a maximum size above zero".to_string()));
        }
        let range = round_up(max_bytes, arena.granule())
            .ok_or_else(|| Error::Value(format!("a growable buffer of {max_bytes} bytes does not fit any address")))?;
        let mut grown = Grown::default();
        let base = if arena.mode() == ArenaMode::Vmm {
            arena.take_range(range)?
        } else {
            let whole = arena
                .under_pressure(max_bytes, NO_POOL, &mut || Ok(()), || {
                    arena.obtain(max_bytes, SegmentClass::Grow, Owner::default(), false)
                })
                .map_err(|error| arena.explain(error, max_bytes))?;
            grown.mapped = max_bytes;
            let base = whole.va();
            grown.segments.push(whole);
            base
        };
        Ok(GrowBuffer { arena: arena.clone(), base, range, max_bytes, grown: Mutex::new(grown) })
    }

    /// The address of the first byte; valid as far as `mapped`.
    pub fn ptr(&self) -> DevPtr {
        self.base
    }

    /// Bytes that may be used now.
    pub fn mapped(&self) -> usize {
        self.grown.lock().mapped.min(self.max_bytes)
    }

    pub fn max_bytes(&self) -> usize {
        self.max_bytes
    }

    /// Make at least `bytes` usable, and return how many are. A full device is first trimmed, then waited for.
    pub fn ensure(&self, bytes: usize) -> Result<usize> {
        if bytes > self.max_bytes {
            return Err(Error::Value(format!(
                "a growable buffer of at most {} cannot hold {}; make it larger at the start",
                human(self.max_bytes),
                human(bytes)
            )));
        }
        let wanted = round_up(bytes, self.arena.granule()).unwrap_or(self.range);
        // Each attempt locks anew: the lock is not held while streams are waited for, and whoever was faster is seen.
        self.arena
            .under_pressure(wanted - self.mapped().min(wanted), NO_POOL, &mut || Ok(()), || {
                let mut grown = self.grown.lock();
                if bytes > grown.mapped {
                    let (va, more) = (self.base + grown.mapped as u64, wanted - grown.mapped);
                    let segment = self.arena.map_at(va, more, SegmentClass::Grow, Owner::default(), false)?;
                    grown.segments.push(segment);
                    grown.mapped = wanted;
                }
                Ok(grown.mapped.min(self.max_bytes))
            })
            .map_err(|error| self.arena.explain(error, bytes))
    }

    /// A command with number `seq` on `stream` uses the buffer.
    pub fn note_use(&self, stream: &Arc<Stream>, seq: u64) {
        self.grown.lock().uses.note(stream, seq);
    }
}

impl Drop for GrowBuffer {
    fn drop(&mut self) {
        if super::is_shut_down() {
            return;
        }
        let Grown { segments, mapped, uses } = std::mem::take(self.grown.get_mut());
        if self.arena.mode() == ArenaMode::Vmm && mapped < self.range {
            self.arena.give_back_range(self.base + mapped as u64, self.range - mapped);
        }
        self.arena.retire(segments.into_iter().map(|segment| (segment, uses.clone())));
    }
}
