//! Ring kernels, as far as the host sees them: mailboxes, waiting for them, and what they measure; and the host's end of
//! the rings that a device reads and writes.

mod calls;
pub mod histogram;
pub mod link;
pub mod list;
pub mod mapped;
pub mod orders;
pub mod park;
pub mod peer;
pub mod queue;
pub mod resident;
pub mod signal;

/// What queues and rings are made of. A model checker's test compiles them against its own.
mod sync {
    pub use std::sync::atomic::{AtomicU64, Ordering};

    pub use parking_lot::{Mutex, MutexGuard};
}

#[cfg(test)]
mod tests;
