//! Addresses of a kernel: windows of the generic address space, and which global addresses are valid.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use super::cluster::RANK_SHIFT;
use super::code::{FULL, LANES};
use super::fault::{FaultKind, MemorySpace};
use super::warp::Cx;
use smallvec::SmallVec;

use crate::command::ArrayArg;
use crate::memory::registry::Extent;

/// Generic addresses with this in their top byte are shared, local or parameter memory; host addresses never have it.
pub(crate) const SHARED_WINDOW: u64 = 0x10 << 56;
pub(crate) const LOCAL_WINDOW: u64 = 0x20 << 56;
pub(crate) const PARAM_WINDOW: u64 = 0x30 << 56;
pub(crate) const FUNCTION_WINDOW: u64 = 0x40 << 56;
pub(crate) const WINDOW_MASK: u64 = 0xff << 56;

/// Which addresses belong to allocations.
pub trait Memory: Send + Sync {
    /// The valid range around an address: start and end.
    fn find(&self, address: u64) -> Option<(u64, u64)>;

    /// The array an address lies in; by default the valid range around it.
    fn array(&self, address: u64) -> Option<Extent> {
        let (start, end) = self.find(address)?;
        Some(Extent { start, bytes: end - start, written: None })
    }

    /// The arrays before and after an address that lies in none.
    fn neighbours(&self, _address: u64) -> (Option<Extent>, Option<Extent>) {
        (None, None)
    }
}

/// The memory of a cooperative launch: the device's, and the words at which the blocks of its grid wait for each other.
///
/// The driver gives such a launch a workspace and its address in `%envreg1` and `%envreg2`; the layout is that of
/// `cooperative_groups::details::grid_workspace`: bytes of the workspace, then the barrier.
pub(crate) struct GridBarrier {
    memory: Arc<dyn Memory>,
    words: Box<[AtomicU32; 2]>,
}

impl GridBarrier {
    const BYTES: u64 = 8;

    pub fn new(memory: Arc<dyn Memory>) -> GridBarrier {
        GridBarrier { memory, words: Box::new([AtomicU32::new(GridBarrier::BYTES as u32), AtomicU32::new(0)]) }
    }

    pub fn address(&self) -> u64 {
        self.words.as_ptr() as u64
    }

    /// What the checker knows of the workspace at an address; nothing where there is none.
    pub fn described(address: u64) -> Option<ArrayArg> {
        let memory = Extent { start: address, bytes: GridBarrier::BYTES, written: None };
        let name = "workspace_of_the_grid".into();
        (address != 0).then(|| ArrayArg {
            name,
            address,
            size: 2,
            item: 4,
            shape: SmallVec::new(),
            memory,
            ends_zero: false,
        })
    }
}

impl Memory for GridBarrier {
    fn find(&self, address: u64) -> Option<(u64, u64)> {
        let start = self.address();
        let ours = (start..start + GridBarrier::BYTES).contains(&address);
        if ours { Some((start, start + GridBarrier::BYTES)) } else { self.memory.find(address) }
    }

    fn array(&self, address: u64) -> Option<Extent> {
        let start = self.address();
        if (start..start + GridBarrier::BYTES).contains(&address) {
            return Some(Extent { start, bytes: GridBarrier::BYTES, written: None });
        }
        self.memory.array(address)
    }

    fn neighbours(&self, address: u64) -> (Option<Extent>, Option<Extent>) {
        self.memory.neighbours(address)
    }
}

impl Cx<'_> {
    /// Is `[address, address + bytes)` global memory a kernel may touch?
    #[inline]
    pub fn is_valid(&mut self, first: u64, last: u64) -> bool {
        for &(start, end) in &self.known {
            if first >= start && last <= end {
                return true;
            }
        }
        self.look_up(first, last)
    }

    #[cold]
    fn look_up(&mut self, first: u64, last: u64) -> bool {
        match self.grid.memory().find(first) {
            Some(range) => {
                self.known[self.next_known] = range;
                self.next_known = (self.next_known + 1) % self.known.len();
                last <= range.1
            }
            None => false,
        }
    }

    /// Check the addresses of a global access of `bytes` each; Some names the lane and what is wrong with it.
    #[inline]
    pub fn check_global(
        &mut self,
        addresses: &[u64; LANES],
        mask: u32,
        bytes: u32,
        write: bool,
    ) -> Option<(u32, FaultKind)> {
        let mut low = u64::MAX;
        let mut high = 0;
        let mut bits = 0;
        if mask == FULL {
            for &address in addresses {
                low = low.min(address);
                high = high.max(address);
                bits |= address;
            }
        } else {
            for (lane, &address) in addresses.iter().enumerate() {
                if mask >> lane & 1 != 0 {
                    low = low.min(address);
                    high = high.max(address);
                    bits |= address;
                }
            }
        }
        if bits & u64::from(bytes - 1) == 0 && self.is_valid(low, high.wrapping_add(u64::from(bytes))) {
            return None;
        }
        self.find_bad(addresses, mask, bytes, write)
    }

    /// The first lane whose address is bad; none when the lanes are in several allocations, all valid.
    #[cold]
    fn find_bad(&mut self, addresses: &[u64; LANES], mask: u32, bytes: u32, write: bool) -> Option<(u32, FaultKind)> {
        let space = MemorySpace::Global;
        for (lane, &address) in addresses.iter().enumerate() {
            if mask >> lane & 1 == 0 {
                continue;
            }
            let bad = if !address.is_multiple_of(u64::from(bytes)) {
                FaultKind::Misaligned { space, write, address, bytes }
            } else if !self.is_valid(address, address.wrapping_add(u64::from(bytes))) {
                FaultKind::OutOfBounds { space, write, address, bytes, limit: 0 }
            } else {
                continue;
            };
            return Some((1 << lane, bad));
        }
        None
    }

    /// Host pointer for one access of one lane to a generic address.
    pub fn resolve(&mut self, lane: usize, address: u64, bytes: u32, write: bool) -> Result<*mut u8, FaultKind> {
        match address & WINDOW_MASK {
            SHARED_WINDOW => self.resolve_shared(address & !WINDOW_MASK, bytes, write),
            LOCAL_WINDOW => self.resolve_local(lane, address & !WINDOW_MASK, bytes, write),
            PARAM_WINDOW => self.resolve_param(address & !WINDOW_MASK, bytes, write),
            _ => {
                let space = MemorySpace::Global;
                if !address.is_multiple_of(u64::from(bytes)) {
                    return Err(FaultKind::Misaligned { space, write, address, bytes });
                }
                if !self.is_valid(address, address.wrapping_add(u64::from(bytes))) {
                    return Err(FaultKind::OutOfBounds { space, write, address, bytes, limit: 0 });
                }
                Ok(address as *mut u8)
            }
        }
    }

    #[inline]
    pub fn resolve_shared(&mut self, address: u64, bytes: u32, write: bool) -> Result<*mut u8, FaultKind> {
        let (space, limit) = (MemorySpace::Shared, self.block.memory.bytes as u64);
        if !address.is_multiple_of(u64::from(bytes)) {
            return Err(FaultKind::Misaligned { space, write, address, bytes });
        }
        if address.saturating_add(u64::from(bytes)) > limit {
            return self.resolve_cluster(address, bytes, write);
        }
        // SAFETY: inside the block's shared memory.
        Ok(unsafe { self.block.memory.as_mut_ptr().add(address as usize) })
    }

    /// An address that is not an offset in the block's shared memory: one `mapa` gave, or an error.
    #[cold]
    fn resolve_cluster(&mut self, address: u64, bytes: u32, write: bool) -> Result<*mut u8, FaultKind> {
        let own = self.block.memory.bytes as u64;
        let outside =
            |address, limit| Err(FaultKind::OutOfBounds { space: MemorySpace::Shared, write, address, bytes, limit });
        let (rank, offset) = match self.place_in_cluster(address) {
            Some(place) => place,
            None => return outside(address, own),
        };
        if u64::from(offset) + u64::from(bytes) > own {
            return outside(u64::from(offset), own);
        }
        let memory = if rank == self.block.rank {
            self.block.memory.as_mut_ptr()
        } else if let Some((memory, _)) = self.block.cluster.memory(rank) {
            if write && self.checker.is_some() {
                self.block.cluster.written.push((rank, offset, bytes));
            }
            memory
        } else {
            let verb = if write { "write to" } else { "read from" };
            let text = format!(
                "{verb} offset {offset} of the shared memory of the block with rank {rank}, which has ended: a block must \
                 not end while others of its cluster use its memory, so let all of them meet at a barrier before"
            );
            return Err(FaultKind::Invalid { text });
        };
        // SAFETY: all blocks have as much shared memory, and the block has not ended.
        Ok(unsafe { memory.add(offset as usize) })
    }

    /// Rank and offset of an address of the cluster's shared memory.
    #[inline]
    pub fn place_in_cluster(&self, address: u64) -> Option<(u32, u32)> {
        if address < self.block.memory.bytes as u64 {
            return Some((self.block.rank, address as u32));
        }
        let rank = u32::try_from(address >> RANK_SHIFT).ok()?.checked_sub(1)?;
        let offset = address as u32 & ((1 << RANK_SHIFT) - 1);
        (rank < self.block.cluster.size()).then_some((rank, offset))
    }

    #[inline]
    pub fn resolve_local(&mut self, lane: usize, address: u64, bytes: u32, write: bool) -> Result<*mut u8, FaultKind> {
        let (space, limit) = (MemorySpace::Local, self.warp.local_bytes as u64);
        if !address.is_multiple_of(u64::from(bytes)) {
            return Err(FaultKind::Misaligned { space, write, address, bytes });
        }
        if address.saturating_add(u64::from(bytes)) > limit {
            return Err(FaultKind::OutOfBounds { space, write, address, bytes, limit });
        }
        // SAFETY: inside this lane's part of local memory.
        Ok(unsafe { self.warp.local.as_mut_ptr().add(lane * self.warp.local_bytes + address as usize) })
    }

    #[inline]
    pub fn resolve_param(&mut self, address: u64, bytes: u32, write: bool) -> Result<*mut u8, FaultKind> {
        let params = self.grid.params();
        let (space, limit) = (MemorySpace::Param, params.len() as u64);
        if write || address.saturating_add(u64::from(bytes)) > limit {
            return Err(FaultKind::OutOfBounds { space, write, address, bytes, limit });
        }
        // SAFETY: inside the argument block; only read.
        Ok(unsafe { params.as_ptr().add(address as usize).cast_mut() })
    }
}
