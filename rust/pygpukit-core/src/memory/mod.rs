//! Memory: one arena per device, segments, pools with size-class free lists and quotas.

use std::sync::Arc;

use crate::device::{DevPtr, SharedDevice};
use crate::error::Result;
use crate::stream::Stream;

/// A block handed out by a pool; it goes back, in stream order, when the last owner drops it.
#[derive(Debug)]
pub struct Storage {
    ptr: DevPtr,
    bytes: usize,
}

impl Storage {
    pub fn ptr(&self) -> DevPtr {
        self.ptr
    }
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

#[derive(Debug)]
pub struct Pool {
    #[allow(dead_code)]
    device: SharedDevice,
}

impl Pool {
    pub fn allocate(self: &Arc<Self>, _bytes: usize, _stream: &Arc<Stream>) -> Result<Arc<Storage>> {
        unimplemented!()
    }
}
