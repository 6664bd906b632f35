//! Memory: one arena per device, segments, pools with size-class free lists and quotas.
//!
//! ```text
//! Arena        one per device: addresses, physical memory, what waits to be released
//!  +- Segment  one range of addresses with memory behind it: a slab of one size class, one large array, or a
//!              GrowBuffer. Evictable ones lose their memory to others, and their content waits on the host
//! Pool         a tree of budgets; each pool owns its segments and caches freed blocks per stream
//!  +- Storage  one block handed out; dropping it gives it back in stream order
//! GrowBuffer   a block of a pool whose memory grows and shrinks in place
//! ```
//!
//! Stream order. A block is handed out for a *home* stream. When it is dropped it may serve that stream again at
//! once, since the stream itself orders the two uses. Another stream gets it only when the home stream has passed
//! the number it had at the drop, and when other streams used it (`Storage::note_use`) nobody gets it before each
//! of them has passed that use. Memory goes back to the device under the same rule, because unmapping does not wait
//! for running kernels.
//!
//! Lock order: the turn of the one thread that makes room, then a segment's copy on the host (whoever has a pool's
//! lock only tries to get it), then the ferries or a pool's cache or a growable buffer, then the arena, then the
//! making of physical memory, then a stock, then a stream's state, then the device's own locks. No two pool locks are
//! held together: quotas along the parent chain are atomics, and pools with a guarantee have a small lock for their
//! count, taken from the inside out. But for the turn, and for what is left of a copy that failed, no lock is held
//! while a stream is waited for, because work that runs meanwhile may allocate.

mod account;
mod arena;
mod cache;
mod claim;
mod evict;
pub mod external;
mod ferry;
pub mod foreign;
mod grow;
mod host_copy;
mod journal;
mod pieces;
mod pool;
mod protect;
mod ranges;
pub mod registry;
mod segment;
mod shared;
pub(crate) mod size_class;
mod snapshot;
mod stats;
mod stock;
mod storage;
pub(crate) mod uses;

use std::sync::atomic::{AtomicBool, Ordering};

pub use arena::{Arena, ArenaMode};
pub use claim::Claim;
pub use evict::MoveStats;
pub use grow::GrowBuffer;
pub use host_copy::HostStats;
pub use journal::{Event, EventKind, Record, Recorder};
pub use pool::{Pool, PoolOptions};
pub use segment::{Segment, SegmentClass, SegmentState};
pub use shared::SharedArena;
pub use size_class::{ALIGN, SMALL_MAX};
pub use snapshot::{PoolInfo, SegmentInfo};
pub use stats::PoolStats;
pub use storage::{Storage, release_unused};

static SHUT_DOWN: AtomicBool = AtomicBool::new(false);

/// The process is ending: from now on drops touch neither pools nor devices, and allocation is refused.
pub fn shutdown() {
    SHUT_DOWN.store(true, Ordering::Release);
}

#[inline]
pub(crate) fn is_shut_down() -> bool {
    SHUT_DOWN.load(Ordering::Acquire)
}

#[cfg(test)]
mod tests;
