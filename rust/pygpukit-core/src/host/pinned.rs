//! `PinnedPool`: page-locked host memory, kept for reuse.
//!
//! Blocks have size classes: up to 1 MiB those of the device's pools, cut from slabs; above, multiples of 2 MiB. A block
//! that a stream still reads or writes is not handed out before that stream has passed. Freeing page-locked memory may
//! wait for the whole device, so a block that comes back is kept; only `trim`, and a request at the limit, free.
//!
//! Lock order: the pool's state, then a stream's. Neither is held while memory is allocated or freed.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::numa;
use crate::device::SharedDevice;
use crate::error::{Error, OutOfMemory, Result};
use crate::memory::size_class::{ALIGN, SMALL_MAX, class_bytes, class_of, slab_bytes};
use crate::memory::uses::Uses;
use crate::stream::Stream;
use crate::sync::{SyncKind, may_sync};

/// Larger blocks are multiples of this.
const GRANULE: usize = 2 << 20;

/// The numbers of a pool at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PinnedStats {
    /// Bytes handed out, rounded to their size class.
    pub used: usize,
    /// Most bytes ever handed out at a time.
    pub peak: usize,
    /// Bytes held for reuse.
    pub cached: usize,
    /// Most bytes the pool may hold, handed out or not.
    pub limit: usize,
    /// Requests served from memory the pool held, and those that had to ask the driver.
    pub hits: u64,
    pub misses: u64,
}

/// One piece of a region.
#[derive(Debug)]
struct Piece {
    address: usize,
    bytes: usize,
    region: usize,
}

/// Free pieces of one size.
#[derive(Debug, Default)]
struct Free {
    ready: Vec<Piece>,
    /// Still used by streams; the oldest in front.
    waiting: VecDeque<(Piece, Uses)>,
}

impl Free {
    /// A piece, and whether it was ready or had to be waited for until now.
    fn take(&mut self) -> Result<Option<(Piece, bool)>> {
        if let Some(piece) = self.ready.pop() {
            return Ok(Some((piece, true)));
        }
        match self.waiting.front() {
            Some((_, uses)) if uses.passed()? => Ok(self.waiting.pop_front().map(|(piece, _)| (piece, false))),
            _ => Ok(None),
        }
    }
}

/// One allocation of the driver.
#[derive(Debug)]
struct Region {
    bytes: usize,
    pieces: usize,
    /// Pieces that nobody holds and no stream uses.
    ready: usize,
}

#[derive(Debug, Default)]
struct State {
    /// By address.
    regions: BTreeMap<usize, Region>,
    /// By size.
    free: BTreeMap<usize, Free>,
    used: usize,
    peak: usize,
    /// Bytes of all regions, and of those about to be made.
    held: usize,
    /// Bytes of pieces that came back and are still used by streams.
    waiting: usize,
    hits: u64,
    misses: u64,
}

pub struct PinnedPool {
    device: SharedDevice,
    node: Option<u32>,
    limit: AtomicUsize,
    state: Mutex<State>,
}

impl fmt::Debug for PinnedPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PinnedPool({:?})", self.stats())
    }
}

impl PinnedPool {
    /// A pool that may hold a quarter of the machine's memory.
    pub fn new(device: &SharedDevice) -> Arc<PinnedPool> {
        Arc::new(PinnedPool {
            device: device.clone(),
            node: numa::node_of(&device.props().pci_bus_id),
            limit: AtomicUsize::new(crate::cpu::host_memory() / 4),
            state: Mutex::default(),
        })
    }

    pub fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// Memory held above a new limit stays until it is trimmed.
    pub fn set_limit(&self, bytes: usize) {
        self.limit.store(bytes, Ordering::Relaxed);
    }

    /// A block of at least this many bytes. At the limit cached memory is given back first; then it is an error.
    pub fn take(self: &Arc<Self>, bytes: usize) -> Result<PinnedBlock> {
        let Some(rounded) = round(bytes) else { return Err(self.refusal(bytes)) };
        if let Some(block) = self.reuse(rounded)? {
            return Ok(block);
        }
        match self.grow(rounded) {
            Err(error) if error.is_out_of_memory() && self.stats().cached > 0 => {
                self.trim()?;
                self.grow(rounded)
            }
            other => other,
        }
    }

    fn reuse(self: &Arc<Self>, rounded: usize) -> Result<Option<PinnedBlock>> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let most = if rounded > SMALL_MAX { rounded + rounded / 8 } else { rounded };
        for (_, free) in state.free.range_mut(rounded..=most) {
            let Some((piece, ready)) = free.take()? else { continue };
            match state.regions.get_mut(&piece.region) {
                Some(region) if ready => region.ready -= 1,
                _ => state.waiting -= piece.bytes,
            }
            state.hits += 1;
            return Ok(Some(self.hand_out(state, piece)));
        }
        Ok(None)
    }

    /// Ask the driver: a slab, or where the limit is too near just the block.
    fn grow(self: &Arc<Self>, rounded: usize) -> Result<PinnedBlock> {
        let small = rounded <= SMALL_MAX;
        let slab = if small { slab_bytes(class_of(rounded), GRANULE) } else { rounded };
        let bytes = {
            let mut state = self.state.lock();
            let room = self.limit().saturating_sub(state.held);
            let bytes = if slab <= room { slab } else { rounded };
            if bytes > room {
                drop(state);
                return Err(self.refusal(rounded));
            }
            state.held += bytes;
            bytes
        };
        let made = numa::near(self.node, || self.device.host_alloc(bytes));
        let mut state = self.state.lock();
        let start = match made {
            Ok(pointer) => pointer as usize,
            Err(error) => {
                state.held -= bytes;
                return Err(error);
            }
        };
        let pieces = bytes / rounded;
        state.regions.insert(start, Region { bytes, pieces, ready: pieces - 1 });
        let piece = |i: usize| Piece { address: start + i * rounded, bytes: rounded, region: start };
        state.free.entry(rounded).or_default().ready.extend((1..pieces).rev().map(piece));
        state.misses += 1;
        Ok(self.hand_out(&mut state, piece(0)))
    }

    fn hand_out(self: &Arc<Self>, state: &mut State, piece: Piece) -> PinnedBlock {
        state.used += piece.bytes;
        state.peak = state.peak.max(state.used);
        PinnedBlock { piece: Some(piece), uses: Mutex::default(), pool: self.clone() }
    }

    fn refusal(&self, bytes: usize) -> Error {
        let held = self.state.lock().held;
        let limit = self.limit();
        Error::OutOfMemory(Box::new(OutOfMemory {
            requested: bytes,
            free: limit.saturating_sub(held),
            total: limit,
            quota: Some(("pinned host memory (PYGPUKIT_PINNED_LIMIT)".to_string(), held, limit)),
            ..OutOfMemory::default()
        }))
    }

    /// Are these bytes inside memory of the pool?
    pub fn contains(&self, address: usize, bytes: usize) -> bool {
        let state = self.state.lock();
        let around = state.regions.range(..=address).next_back();
        around.is_some_and(|(start, region)| address.saturating_add(bytes) <= start + region.bytes)
    }

    /// Bytes that came back while streams still used them, and still do.
    pub fn waiting(&self) -> Result<usize> {
        let mut state = self.state.lock();
        settle(&mut state)?;
        Ok(state.waiting)
    }

    /// The same without asking the driver: those over since the last question are counted too.
    pub(crate) fn waiting_at_most(&self) -> usize {
        self.state.lock().waiting
    }

    pub fn stats(&self) -> PinnedStats {
        let state = self.state.lock();
        PinnedStats {
            used: state.used,
            peak: state.peak,
            cached: state.held.saturating_sub(state.used),
            limit: self.limit(),
            hits: state.hits,
            misses: state.misses,
        }
    }

    /// Give memory that nobody uses back to the system; returns its bytes. May wait for the whole device.
    pub fn trim(&self) -> Result<usize> {
        let is_unused = |region: &Region| region.ready == region.pieces;
        {
            let mut state = self.state.lock();
            settle(&mut state)?;
            if !state.regions.values().any(is_unused) {
                return Ok(0);
            }
        }
        may_sync(SyncKind::HostFree, || {
            let unused: Vec<(usize, usize)> = {
                let State { regions, free, .. } = &mut *self.state.lock();
                let unused: Vec<_> =
                    regions.iter().filter(|(_, r)| is_unused(r)).map(|(start, r)| (*start, r.bytes)).collect();
                for (start, _) in &unused {
                    regions.remove(start);
                }
                for free in free.values_mut() {
                    free.ready.retain(|piece| regions.contains_key(&piece.region));
                }
                unused
            };
            let (mut freed, mut result) = (0, Ok(()));
            for (start, bytes) in unused {
                let done = self.device.host_free(start as *mut u8, bytes);
                // What the driver does not take back is lost to us all the same.
                self.state.lock().held -= bytes;
                freed += bytes;
                result = result.and(done);
            }
            result.map(|()| freed)
        })
    }
}

/// Move what streams have passed to the lists of ready pieces.
fn settle(state: &mut State) -> Result<()> {
    let State { regions, free, waiting, .. } = state;
    for free in free.values_mut() {
        let mut still = VecDeque::new();
        while let Some((piece, uses)) = free.waiting.pop_front() {
            match uses.passed() {
                Ok(true) => {
                    *waiting -= piece.bytes;
                    if let Some(region) = regions.get_mut(&piece.region) {
                        region.ready += 1;
                    }
                    free.ready.push(piece);
                }
                Ok(false) => still.push_back((piece, uses)),
                Err(error) => {
                    still.push_back((piece, uses));
                    still.append(&mut free.waiting);
                    free.waiting = still;
                    return Err(error);
                }
            }
        }
        free.waiting = still;
    }
    Ok(())
}

/// The size class of a request; None when it does not fit an address.
fn round(bytes: usize) -> Option<usize> {
    if bytes > SMALL_MAX {
        return bytes.checked_next_multiple_of(GRANULE).filter(|rounded| *rounded <= isize::MAX as usize);
    }
    Some(class_bytes(class_of(bytes.max(ALIGN))))
}

/// A block of page-locked memory; it goes back to its pool when dropped, in the order of its uses.
pub struct PinnedBlock {
    /// None only while it is dropped.
    piece: Option<Piece>,
    uses: Mutex<Uses>,
    pool: Arc<PinnedPool>,
}

impl fmt::Debug for PinnedBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PinnedBlock({:#x}, {} bytes)", self.ptr() as usize, self.len())
    }
}

impl PinnedBlock {
    #[inline]
    pub fn ptr(&self) -> *mut u8 {
        self.piece.as_ref().map_or(std::ptr::null_mut(), |piece| piece.address as *mut u8)
    }

    /// Bytes that may be used: at least those asked for.
    #[inline]
    pub fn len(&self) -> usize {
        self.piece.as_ref().map_or(0, |piece| piece.bytes)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A command with number `seq` on `stream` reads or writes the block.
    pub fn note_use(&self, stream: &Arc<Stream>, seq: u64) {
        self.uses.lock().note(stream, seq);
    }
}

impl Drop for PinnedBlock {
    fn drop(&mut self) {
        let Some(piece) = self.piece.take() else { return };
        if crate::memory::is_shut_down() {
            return;
        }
        let mut uses = std::mem::take(self.uses.get_mut());
        uses.drop_completed();
        let mut state = self.pool.state.lock();
        state.used -= piece.bytes;
        let bytes = piece.bytes;
        if uses.is_empty() {
            if let Some(region) = state.regions.get_mut(&piece.region) {
                region.ready += 1;
            }
            state.free.entry(bytes).or_default().ready.push(piece);
        } else {
            state.free.entry(bytes).or_default().waiting.push_back((piece, uses));
            state.waiting += bytes;
        }
    }
}
