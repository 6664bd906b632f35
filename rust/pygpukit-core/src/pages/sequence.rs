//! A sequence: its tokens, and the pages with their keys and values.

use smallvec::SmallVec;

use super::chain::Chain;

/// Names a sequence; an id is never used for a second one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId(pub u64);

pub(super) struct Sequence {
    pub(super) tokens: Vec<u32>,
    /// Tokens that the device has drawn and the host does not know yet: rows of the step that drew each.
    pub(super) pending: SmallVec<[u32; 2]>,
    /// Tokens whose keys and values are in the pages, or queued to be.
    pub(super) computed: usize,
    /// Computed tokens that were found rather than computed.
    pub(super) found: usize,
    /// On the device, or on the host while it is swapped out.
    pub(super) pages: Vec<u32>,
    pub(super) on_host: bool,
    /// Leading pages that the index knows, and the chain at the end of them.
    pub(super) published: usize,
    pub(super) chain: Chain,
    pub(super) root: Chain,
}

impl Sequence {
    /// Tokens, drawn ones included.
    pub(super) fn length(&self) -> usize {
        self.tokens.len() + self.pending.len()
    }
}
