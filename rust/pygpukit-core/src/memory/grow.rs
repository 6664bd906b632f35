//! `GrowBuffer`: a block whose memory grows and shrinks in place, so that pointers into it stay valid.
//!
//! Addresses for the largest size are taken once. Memory is put behind them as it is asked for, charged to the pool as an
//! array's is, and the whole moves to the host and back as one segment. Without virtual memory management everything is
//! allocated at once.

use std::sync::Arc;

use parking_lot::Mutex;

use super::arena::ArenaMode;
use super::pool::Pool;
use super::segment::{Segment, SegmentClass};
use super::size_class::round_up;
use super::storage::Storage;
use crate::error::{Error, Result, human};
use crate::runtime;
use crate::stream::Stream;

type Check<'a> = &'a mut dyn FnMut() -> Result<()>;

#[derive(Debug)]
pub struct GrowBuffer {
    storage: Arc<Storage>,
    max_bytes: usize,
    /// How often the storage was handed out. Held while memory is added or taken; nothing is waited for under it.
    handed_out: Mutex<u64>,
}

/// The segment stays where it is as long as this lives.
struct Inside<'a>(&'a Arc<Segment>);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl GrowBuffer {
    /// A buffer of at most this many bytes, with no memory yet, for use on `stream`.
    pub fn new(pool: &Arc<Pool>, max_bytes: usize, stream: &Arc<Stream>, check: Check<'_>) -> Result<GrowBuffer> {
        if max_bytes == 0 {
            return Err(Error::Value("a growable buffer needs a capacity above zero".to_string()));
        }
        let range = round_up(max_bytes, pool.arena().granule())
            .ok_or_else(|| Error::Value(format!("a growable buffer of {max_bytes} bytes does not fit any address")))?;
        let storage = match pool.arena().mode() {
            ArenaMode::Vmm => pool.allocate_growing(range, stream)?,
            _ => pool.allocate_with_check(max_bytes, stream, check)?,
        };
        Ok(GrowBuffer { storage, max_bytes, handed_out: Mutex::default() })
    }

    /// The memory, for arrays in it. The address of its first byte never changes.
    pub fn storage(&self) -> Arc<Storage> {
        let mut handed_out = self.handed_out.lock();
        *handed_out += 1;
        self.storage.clone()
    }

    /// Bytes that may be used now.
    pub fn bytes(&self) -> usize {
        self.storage.bytes()
    }

    pub fn max_bytes(&self) -> usize {
        self.max_bytes
    }

    /// The pool its memory is charged to.
    pub fn pool(&self) -> &Arc<Pool> {
        self.storage.pool()
    }

    /// What reports of large holders say about it.
    pub fn set_label(&self, label: &str) {
        self.storage.set_label(label);
    }

    fn segment(&self) -> &Arc<Segment> {
        self.storage.segment()
    }

    fn is_fixed(&self) -> bool {
        self.segment().class() != SegmentClass::Grow
    }

    /// Have it on the device, and keep it there.
    fn enter(&self, check: Check<'_>) -> Result<Inside<'_>> {
        let segment = self.segment();
        let here = segment.enter();
        let inside = Inside(segment);
        if !here {
            runtime::blocking(&mut || self.pool().arena().bring_in(&[segment], check))?;
        }
        Ok(inside)
    }

    /// Make at least `bytes` usable, and return how many are. A full quota or device is made room in, as for an array; when
    /// there is none the buffer stays as it was.
    pub fn ensure(&self, bytes: usize, check: Check<'_>) -> Result<usize> {
        if bytes > self.max_bytes {
            return Err(Error::Value(format!(
                "a growable buffer with a capacity of {} cannot grow to {}; make it with a larger capacity",
                human(self.max_bytes),
                human(bytes)
            )));
        }
        let (pool, segment) = (self.pool(), self.segment());
        loop {
            let now = segment.bytes();
            if self.is_fixed() || bytes <= now {
                return Ok(self.bytes());
            }
            let wanted = round_up(bytes, pool.arena().granule()).unwrap_or(segment.range()).min(segment.range());
            let more = wanted - now;
            let pieces = pool.take_more(segment, more, check)?;
            // Not before the memory is there: nobody is kept from evicting it while room is made.
            let added = self.enter(check).and_then(|_inside| {
                let _lock = self.handed_out.lock();
                let unchanged = segment.bytes() == now;
                if unchanged {
                    pool.extend(segment, &pieces)?;
                    self.storage.set_bytes(wanted.min(self.max_bytes));
                }
                Ok(unchanged)
            });
            if !matches!(added, Ok(true)) {
                pool.give_more_back(segment, pieces, more);
            }
            if added? {
                return Ok(self.bytes());
            }
        }
    }

    /// Give memory beyond `bytes` back to the pool, in whole pieces, and return how many bytes may still be used. Waits for
    /// the work that uses the buffer. Refused while anything but this buffer holds its memory, which may reach that far.
    pub fn shrink(&self, bytes: usize, check: Check<'_>) -> Result<usize> {
        let segment = self.segment();
        let wanted = round_up(bytes, self.pool().arena().granule()).unwrap_or(usize::MAX);
        if self.is_fixed() || wanted >= segment.bytes() {
            return Ok(self.bytes());
        }
        loop {
            let before = {
                let handed_out = self.handed_out.lock();
                self.check_alone()?;
                *handed_out
            };
            // Nobody has an array of it now, so these are all its uses unless one is handed out meanwhile.
            let mut uses = segment.uses();
            uses.note(self.storage.home(), self.storage.home().seq());
            for (stream, seq) in uses.iter() {
                stream.wait_passed(seq, check)?;
            }
            let _inside = self.enter(check)?;
            self.pool().arena().wait_arrival(segment, check)?;
            let handed_out = self.handed_out.lock();
            self.check_alone()?;
            if *handed_out == before {
                self.pool().cut(segment, wanted)?;
                self.storage.set_bytes(segment.bytes().min(self.max_bytes));
                return Ok(self.bytes());
            }
        }
    }

    fn check_alone(&self) -> Result<()> {
        match Arc::strong_count(&self.storage) - 1 {
            0 => Ok(()),
            others => Err(Error::Value(format!(
                "a growable buffer cannot shrink while its memory is in use: {others} arrays or recorded commands of graphs \
                 hold it. Drop them first"
            ))),
        }
    }
}
