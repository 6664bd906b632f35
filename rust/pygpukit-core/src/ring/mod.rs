//! Ring kernels, as far as the host sees them: mailboxes, waiting for them, and what they measure.

pub mod histogram;
pub mod park;
pub mod queue;

/// What the queue locks with. A model checker's test compiles the queue against its own.
mod sync {
    pub use parking_lot::{Mutex, MutexGuard};
}

#[cfg(test)]
mod tests;
