//! The host's side: page-locked memory, and copies between host and device at the speed of the bus.
//!
//! ```text
//! PinnedPool   page-locked blocks, kept for reuse; one per device
//! Engine       threads and streams that move transfers; one per device
//!  +- Transfer one copy, cut into chunks; can be waited for and cancelled
//!  +- Ring     the slots that pageable memory and files pass through
//! upload ...   copies as arrays make them, small ones on the caller's stream
//! ```

mod copies;
mod file;
mod memcpy;
mod numa;
mod pinned;
mod ring;
mod staging;
mod transfer;

pub use copies::{Pair, SMALL, download, is_large, upload, upload_many};
pub use file::FileSource;
pub(crate) use memcpy::copy_by_threads;
pub use pinned::{PinnedBlock, PinnedPool, PinnedStats};
pub(crate) use staging::EngineSlot;
pub use staging::{Engine, Options, engine, quiesce};
pub use transfer::{Direction, HostSide, Keep, Priority, Request, Transfer, Until};

#[cfg(test)]
mod tests;
