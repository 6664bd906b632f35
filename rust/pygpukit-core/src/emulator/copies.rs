//! Asynchronous copies that have been issued and are not complete.
//!
//! A copy happens as late as is allowed, reading its source then too: when its thread waits for it or exits, or when
//! somebody looks at the mbarrier object that tracks it. Code that reads too early sees what was there before.

use smallvec::SmallVec;

use super::bulk::Store;
use super::code::LANES;

/// One `cp.async` of one lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    pub lane: u8,
    /// Bytes written, of which `read` come from memory and the rest are zero.
    pub bytes: u8,
    pub read: u8,
    /// Offset in shared memory.
    pub target: u32,
    pub source: u64,
    /// Number of the group it belongs to.
    pub group: u32,
}

impl Pending {
    /// Do it.
    ///
    /// # Safety
    /// `memory` is the block's shared memory, in which the target lies, and the source is valid: both were checked when
    /// the copy was issued.
    pub unsafe fn complete(&self, memory: *mut u8) {
        // SAFETY: the caller's contract; no more than `bytes` are read.
        unsafe {
            let target = memory.add(self.target as usize);
            std::ptr::copy(self.source as *const u8, target, usize::from(self.read));
            std::ptr::write_bytes(target.add(usize::from(self.read)), 0, usize::from(self.bytes - self.read));
        }
    }
}

/// The copies of a warp.
#[derive(Clone, Debug, Default)]
pub(crate) struct Copies {
    pub pending: Vec<Pending>,
    /// Groups each lane has committed.
    pub committed: [u32; LANES],
    /// Bulk copies to global memory, and groups of them that each lane has committed.
    pub stores: Vec<Store>,
    pub stored: [u32; LANES],
}

/// Copies of one lane whose end makes it arrive at an mbarrier object.
#[derive(Clone, Debug)]
pub(crate) struct Tracked {
    /// Offset of the object in shared memory.
    pub barrier: u32,
    pub warp: u32,
    pub lane: u8,
    pub copies: SmallVec<[Pending; 4]>,
}
