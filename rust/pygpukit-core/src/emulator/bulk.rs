//! Bulk copies that have been issued and are not complete.
//!
//! As other asynchronous copies they happen as late as is allowed: one to shared memory when somebody asks the mbarrier
//! object that hears of it, one to global memory when its thread waits for it or exits. They read their source then too.

use super::tensor_map::{MAX_RANK, Swizzle, TensorMap};

/// A box of a tensor, at some coordinates.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tile {
    pub map: TensorMap,
    pub at: [i32; MAX_RANK],
}

impl Tile {
    /// Copy the box to shared memory, from `start` on.
    ///
    /// # Safety
    /// The box must lie in the memory, and the parts of the tensor must be valid.
    pub unsafe fn load(&self, memory: *mut u8, start: u32) {
        let bytes = self.map.row_bytes() as usize;
        let mut row = [0u8; 256 * 8];
        let done: Result<(), ()> = self.map.each_row(&self.at, |offset, part| {
            row[..bytes].fill(0);
            // SAFETY: the caller's contract; a part is not longer than its row, which has at most 256 elements of 8.
            unsafe {
                if let Some(part) = part {
                    let to = row.as_mut_ptr().add(part.skip as usize);
                    std::ptr::copy(part.address as *const u8, to, part.bytes as usize);
                }
                for unit in (0..bytes).step_by(16) {
                    let to = self.map.swizzle.apply(start + offset + unit as u32);
                    std::ptr::copy_nonoverlapping(row.as_ptr().add(unit), memory.add(to as usize), 16);
                }
            }
            Ok(())
        });
        let _ = done;
    }

    /// Take the box out of shared memory, in the order of its elements.
    ///
    /// # Safety
    /// The box must lie in the memory.
    pub unsafe fn gather(&self, memory: *const u8, start: u32) -> Vec<u8> {
        let bytes = self.map.box_bytes() as usize;
        let mut data = vec![0; bytes];
        for unit in (0..bytes).step_by(16) {
            let from = self.map.swizzle.apply(start + unit as u32);
            // SAFETY: the caller's contract; a box is whole units.
            unsafe { std::ptr::copy_nonoverlapping(memory.add(from as usize), data.as_mut_ptr().add(unit), 16) };
        }
        data
    }

    /// Write such data to the tensor.
    ///
    /// # Safety
    /// The parts of the tensor must be valid.
    pub unsafe fn store(&self, data: &[u8]) {
        let done: Result<(), ()> = self.map.each_row(&self.at, |offset, part| {
            if let Some(part) = part
                && let Some(from) = data.get((offset + part.skip) as usize..).and_then(|d| d.get(..part.bytes as usize))
            {
                // SAFETY: the caller's contract.
                unsafe { std::ptr::copy(from.as_ptr(), part.address as *mut u8, from.len()) };
            }
            Ok(())
        });
        let _ = done;
    }

    /// End of the box in shared memory; units may move within lines of the swizzle's pattern.
    pub fn end(&self, start: u32) -> u64 {
        let end = u64::from(start) + self.map.box_bytes();
        if self.map.swizzle == Swizzle::None { end } else { end.next_multiple_of(u64::from(self.map.swizzle.span())) }
    }
}

/// What is copied to shared memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source {
    Tile(Tile),
    /// A host address that was checked.
    Bytes(u64, u32),
    /// Values of registers.
    Values([u8; 16], u32),
}

/// A copy to shared memory that an mbarrier object hears of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bulk {
    /// Rank and offset of the object, and of where the copy goes.
    pub object: (u32, u32),
    pub target: (u32, u32),
    pub source: Source,
    /// Who issued it: rank and thread in its block.
    pub issuer: (u32, u32),
}

impl Bulk {
    pub fn bytes(&self) -> u32 {
        match self.source {
            Source::Tile(tile) => tile.map.box_bytes() as u32,
            Source::Bytes(_, bytes) | Source::Values(_, bytes) => bytes,
        }
    }

    /// Do it, in the memory of the target's block.
    ///
    /// # Safety
    /// The target lies in that memory and the source is valid: both were checked when the copy was issued.
    pub unsafe fn complete(&self, memory: *mut u8) {
        // SAFETY: the caller's contract.
        unsafe {
            let target = memory.add(self.target.1 as usize);
            match self.source {
                Source::Tile(tile) => tile.load(memory, self.target.1),
                Source::Bytes(from, bytes) => std::ptr::copy(from as *const u8, target, bytes as usize),
                Source::Values(values, bytes) => {
                    std::ptr::copy_nonoverlapping(values.as_ptr(), target, bytes.min(16) as usize);
                }
            }
        }
    }
}

/// Where a copy from shared memory goes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    Tile(Tile),
    /// A global address that was checked.
    Bytes(u64, u32),
}

/// A copy from the block's shared to global memory.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    pub lane: u8,
    /// Number of the group it belongs to.
    pub group: u32,
    /// Offset in shared memory.
    pub source: u32,
    pub target: Target,
    /// What was read, once it was.
    pub data: Option<Vec<u8>>,
}

impl Store {
    /// Read the source, if that has not been done.
    ///
    /// # Safety
    /// The source was checked when the copy was issued, and `memory` is the block's.
    pub unsafe fn read(&mut self, memory: *const u8) {
        if self.data.is_some() {
            return;
        }
        // SAFETY: the caller's contract.
        self.data = Some(unsafe {
            match self.target {
                Target::Tile(tile) => tile.gather(memory, self.source),
                Target::Bytes(_, bytes) => {
                    std::slice::from_raw_parts(memory.add(self.source as usize), bytes as usize).to_vec()
                }
            }
        });
    }

    /// Write what was read.
    ///
    /// # Safety
    /// The target was checked when the copy was issued.
    pub unsafe fn write(&self) {
        let data = self.data.as_deref().unwrap_or_default();
        // SAFETY: the caller's contract.
        unsafe {
            match self.target {
                Target::Tile(tile) => tile.store(data),
                Target::Bytes(to, _) => std::ptr::copy(data.as_ptr(), to as *mut u8, data.len()),
            }
        }
    }
}
