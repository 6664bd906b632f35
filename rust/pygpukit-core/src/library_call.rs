//! `LibraryCall`: work that a library, such as cuBLASLt, puts on a stream itself.

use std::sync::Arc;

use crate::device::{Device, RawStream};
use crate::error::Result;

/// One call of a library. It owns what it needs but the memory, which the command's uses name.
pub trait LibraryCall: Send + Sync {
    /// For fault reports: the library's function and the sizes.
    fn name(&self) -> &Arc<str>;

    /// Calls with the same key cost the same; 0 means unknown.
    fn cost_key(&self) -> u64;

    /// Put the work on a stream. On CUDA the device's context is current, and the stream may be capturing; on the CPU device
    /// the stream has reached the call, and the work has ended when this returns.
    fn enqueue(&self, stream: RawStream) -> Result<()>;

    /// Have on the device what the first call would load, which waits for running kernels. Called before a stream is
    /// entered or a command recorded.
    fn prepare(&self, _device: &dyn Device) -> Result<()> {
        Ok(())
    }

    /// The call as a part of a command.
    fn to_arc(&self) -> Arc<dyn LibraryCall>;
}
