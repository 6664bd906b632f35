//! Asynchronous copies of a warp that have been issued and not waited for.

use super::code::LANES;

/// One `cp.async` of one lane: it happens when it is waited for, as late as is allowed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    pub lane: u8,
    /// Bytes written, of which `read` come from memory and the rest are zero.
    pub bytes: u8,
    pub read: u8,
    pub target: u32,
    pub source: u64,
    /// Number of the group it belongs to.
    pub group: u32,
    pub pc: u32,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Copies {
    pub pending: Vec<Pending>,
    /// Groups each lane has committed.
    pub committed: [u32; LANES],
}
