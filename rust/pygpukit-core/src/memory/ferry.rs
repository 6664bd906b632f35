//! `Ferry`: copies between the device and the host's copies of segments, on streams alone.
//!
//! Page-locked pieces are copied directly. Other memory goes through page-locked slots: a stream of host functions
//! empties or fills them while the next one is on the bus, and the two streams wait for each other on the device.

use std::sync::Arc;

use super::host_copy::{HostCopy, Memory};
use crate::command::{Copy, CopyKind, Work};
use crate::device::DevPtr;
use crate::error::Result;
use crate::host::{PinnedBlock, PinnedPool, copy_by_threads};
use crate::launch::put_on;
use crate::stream::Stream;

/// Slots of each direction.
const SLOTS: usize = 2;

/// Bytes of a slot; less where all page-locked memory is little.
const SLOT_MAX: usize = 16 << 20;
const SLOT_MIN: usize = 512 << 10;

/// All slots take this part of the page-locked memory at most.
const SHARE: usize = 16;

/// One direction.
pub(super) struct Ferry {
    kind: CopyKind,
    /// Where copies of the bus are.
    pub bus: Arc<Stream>,
    /// Where host functions are.
    carriers: Arc<Stream>,
    /// Each with the number at which it can be used again: of the carriers on the way out, of the bus on the way in.
    slots: Vec<(PinnedBlock, u64)>,
    next: usize,
}

impl Ferry {
    /// With as many slots as the pool of page-locked memory gives: without any the driver copies in its own way.
    pub fn new(kind: CopyKind, bus: Arc<Stream>, carriers: Arc<Stream>, pool: Option<&Arc<PinnedPool>>) -> Ferry {
        let mut slots = Vec::new();
        if let Some(pool) = pool {
            let bytes = (pool.limit() / SHARE / SLOTS / 2).min(SLOT_MAX);
            if bytes >= SLOT_MIN {
                slots.extend((0..SLOTS).map_while(|_| pool.take(bytes).ok()).map(|block| (block, 0)));
            }
        }
        Ferry { kind, bus, carriers, slots, next: 0 }
    }

    /// Copy a segment to the host's copy, or from it. Returns the number on the bus at which everything is done. After a
    /// failure nothing of it is on its way any more.
    pub fn carry(&mut self, device: DevPtr, host: &HostCopy, bytes: usize) -> Result<u64> {
        if let Err(error) = self.send(device, host, bytes) {
            for stream in [&self.bus, &self.carriers] {
                // A stream that cannot be waited for is of a device that is lost.
                let _ = stream.wait_passed(stream.seq(), &mut || Ok(()));
            }
            return Err(error);
        }
        let seq = self.bus.seq();
        host.note_use(&self.bus, seq);
        // A marker here, so that whoever waits for this does not wait for what follows. Without one he does.
        let _ = self.bus.passed(seq);
        Ok(seq)
    }

    fn send(&mut self, device: DevPtr, host: &HostCopy, bytes: usize) -> Result<()> {
        match host.memory() {
            Memory::Pinned(blocks) => {
                let mut done = 0;
                for block in blocks {
                    let part = block.len().min(bytes - done);
                    self.direct(device + done as u64, block.ptr() as u64, part)?;
                    done += part;
                }
            }
            Memory::Pageable(memory) if self.slots.is_empty() => self.direct(device, memory.as_ptr() as u64, bytes)?,
            Memory::Pageable(memory) => self.through_slots(device, memory.as_ptr() as u64, bytes)?,
        }
        Ok(())
    }

    fn direct(&self, device: DevPtr, host: u64, bytes: usize) -> Result<()> {
        let (dst, src) = if self.kind == CopyKind::HostToDevice { (device, host) } else { (host, device) };
        put_on(&self.bus, Work::Copy(Copy { kind: self.kind, dst, src, bytes, keep: None })).map(drop)
    }

    fn through_slots(&mut self, device: DevPtr, host: u64, bytes: usize) -> Result<()> {
        let step = self.slots.iter().map(|(slot, _)| slot.len()).min().unwrap_or(bytes);
        for at in (0..bytes).step_by(step) {
            let part = step.min(bytes - at);
            let index = self.next;
            self.next = (index + 1) % self.slots.len();
            let (slot, free_at) = (self.slots[index].0.ptr() as u64, self.slots[index].1);
            let (device, host) = (device + at as u64, host + at as u64);
            self.slots[index].1 = if self.kind == CopyKind::DeviceToHost {
                self.bus.wait_for(&self.carriers, free_at)?;
                self.direct(device, slot, part)?;
                self.carriers.wait_for(&self.bus, self.bus.seq())?;
                self.by_host(host, slot, part)?
            } else {
                self.carriers.wait_for(&self.bus, free_at)?;
                let filled = self.by_host(slot, host, part)?;
                self.bus.wait_for(&self.carriers, filled)?;
                self.direct(device, slot, part)?;
                self.bus.seq()
            };
        }
        if self.kind == CopyKind::DeviceToHost {
            self.bus.wait_for(&self.carriers, self.carriers.seq())?;
        }
        Ok(())
    }

    /// The caller of `carry` keeps both until the bus has passed.
    fn by_host(&self, to: u64, from: u64, bytes: usize) -> Result<u64> {
        let function = move || {
            // SAFETY: both stay until this stream has passed, and nobody else touches them before.
            unsafe { copy_by_threads(to as *mut u8, from as *const u8, bytes) };
            Ok(())
        };
        put_on(&self.carriers, Work::Host(Arc::new(function)))
    }
}
