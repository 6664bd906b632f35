//! Programmatic launches: may a kernel be started before its predecessor has ended?
//!
//! Such a kernel waits on the device for its predecessors before it touches memory that they write, except for what it
//! declares constant, which it may read at once. A kernel that writes this must have ended by then, and so must every kernel
//! before it that was itself started early: it may still run although its successor does too.

use smallvec::SmallVec;

use crate::command::{Access, LaunchAttributes};
use crate::device::DevPtr;
use crate::kernel::Kernel;
use crate::memory::Storage;

/// The compute capability from which devices start kernels early.
pub(crate) const EARLY_CAPABILITY: (i32, i32) = (9, 0);

/// First address, and the one behind the last.
pub(crate) type Range = (DevPtr, DevPtr);

/// More ranges than this are not told apart: the next kernel with constants is then started in order, which ends the chain.
const MAX_RANGES: usize = 128;

/// What the kernels write that may run when the next command of a stream is started early.
#[derive(Clone, Debug, Default)]
pub(crate) struct InFlight {
    /// The last command is a kernel. Only behind kernels can another one be started early.
    kernel: bool,
    /// Any address may be written.
    anywhere: bool,
    written: SmallVec<[Range; 4]>,
}

/// The addresses of a block of memory.
pub(crate) fn range_of(storage: &Storage) -> Range {
    (storage.ptr(), storage.ptr() + storage.bytes() as u64)
}

pub(crate) fn overlap(a: Range, b: Range) -> bool {
    a.0 < b.1 && b.0 < a.1
}

/// Does a launch ask to be started early?
#[inline]
pub(crate) fn asks(kernel: &Kernel, attributes: &LaunchAttributes) -> bool {
    // Blocks that wait for each other need their places at the same time.
    (attributes.programmatic || kernel.meta().programmatic) && !attributes.cooperative
}

impl InFlight {
    /// May a kernel that uses this memory be started early behind these commands?
    pub fn admits<'a>(&self, mut uses: impl Iterator<Item = (&'a Storage, Access)>) -> bool {
        let is_safe = |storage| {
            let range = range_of(storage);
            !self.anywhere && !self.written.iter().any(|written| overlap(*written, range))
        };
        self.kernel && uses.all(|(storage, access)| access != Access::Constant || is_safe(storage))
    }

    /// Everything before the next command has ended when it starts.
    #[inline]
    pub fn clear(&mut self) {
        self.kernel = false;
        self.anywhere = false;
        self.written.clear();
    }

    /// A kernel that uses this memory follows; `early` says how it was started.
    #[inline]
    pub fn add<'a>(&mut self, early: bool, uses: impl Iterator<Item = (&'a Storage, Access)>) {
        if !early {
            self.clear();
        }
        self.kernel = true;
        for (storage, _) in uses.filter(|(_, access)| access.is_written()) {
            self.write(range_of(storage));
        }
    }

    /// The commands of another branch, which the next one follows too.
    pub fn merge(&mut self, other: &InFlight) {
        self.kernel = other.kernel;
        self.anywhere |= other.anywhere;
        for range in &other.written {
            self.write(*range);
        }
    }

    /// Memory is written that is not known yet.
    pub fn write_anywhere(&mut self) {
        self.anywhere = true;
    }

    fn write(&mut self, range: Range) {
        if self.anywhere || self.written.contains(&range) {
            return;
        }
        if self.written.len() == MAX_RANGES {
            self.anywhere = true;
            return;
        }
        self.written.push(range);
    }
}
