//! Pages of a KV cache: which sequence has which, what they contain, and the arrays a step of an engine needs.
//!
//! A page holds keys and values of a fixed number of consecutive tokens. `PagePool` counts who uses a page and finds full
//! ones by their content, so that sequences with a common beginning share it. `PageCache` has the sequences: their
//! tokens, their pages, how many tokens are computed, and the way to the host and back. It moves no memory: callers get
//! lists of pages to copy. `step` writes the arrays of one step into memory of the caller.
//!
//! All work on the device is taken to be queued on one stream in the order of these calls, so a page may be given to
//! another sequence as soon as its last user is gone.

mod cache;
mod chain;
mod pool;
mod sequence;
mod step;
#[cfg(test)]
mod tests;

pub use cache::{Fork, PageCache, PageLimits, PageStats, SequenceState};
pub use chain::Chain;
pub use sequence::SequenceId;
pub use step::{StepArrays, StepRow, StepSize};
