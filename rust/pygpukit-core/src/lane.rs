//! Lanes: the part of the device that work may occupy.
//!
//! Whoever needs "how many SMs" asks the lane, never the device: grids, persistent kernels, split counts.

use std::sync::Arc;

use crate::device::SharedDevice;

#[derive(Debug)]
pub struct Lane {
    id: u32,
    sm_count: u32,
}

impl Lane {
    /// The lane that is the whole device.
    pub fn whole(device: &SharedDevice) -> Arc<Lane> {
        Arc::new(Lane { id: 0, sm_count: device.props().sm_count })
    }

    /// Key of per-lane caches (a graph's nodes are fixed to a lane when it is built).
    pub fn id(&self) -> u32 {
        self.id
    }

    pub fn sm_count(&self) -> u32 {
        self.sm_count
    }
}
