//! Lanes: the part of the device that work may occupy.
//!
//! Whoever needs "how many SMs" asks the lane of its stream, never the device: grids, persistent kernels, split counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;

use crate::device::{RawLane, RawStream, SharedDevice};
use crate::error::{Error, Result};
use crate::sync::{SyncKind, may_sync};

/// Lanes are kept once made, since streams and graphs refer to them; more than this many different ones are refused.
const KEPT: usize = 64;

pub struct Lane {
    id: u32,
    sm_count: u32,
    /// None: the whole device, without a context of its own.
    raw: Option<RawLane>,
    device: SharedDevice,
}

impl std::fmt::Debug for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Lane({}, {} SMs)", self.id, self.sm_count)
    }
}

impl Lane {
    /// The lane that is the whole device.
    pub fn whole(device: &SharedDevice) -> Arc<Lane> {
        Arc::new(Lane { id: 0, sm_count: device.props().sm_count, raw: None, device: device.clone() })
    }

    /// Key of per-lane caches (a graph's nodes are fixed to a lane when it is built).
    pub fn id(&self) -> u32 {
        self.id
    }

    pub fn sm_count(&self) -> u32 {
        self.sm_count
    }

    pub fn raw(&self) -> Option<RawLane> {
        self.raw
    }

    pub(crate) fn device(&self) -> &SharedDevice {
        &self.device
    }

    /// A stream whose work stays on this lane.
    pub(crate) fn stream(&self, priority: i32) -> Result<RawStream> {
        match self.raw {
            Some(lane) => self.device.lane_stream(lane, priority),
            None => self.device.stream_create(priority),
        }
    }
}

/// The lanes of one device, made when first asked for.
pub struct Lanes {
    device: SharedDevice,
    next_id: AtomicU32,
    made: Mutex<Vec<Made>>,
}

/// Granularity and groups of a lane.
type Made = (bool, Vec<usize>, Arc<Lane>);

impl Lanes {
    pub fn new(device: &SharedDevice) -> Lanes {
        Lanes { device: device.clone(), next_id: AtomicU32::new(1), made: Mutex::default() }
    }

    /// SMs of the groups lanes are made of; empty where the device cannot be divided.
    pub fn groups(&self, fine: bool) -> Result<Vec<u32>> {
        Ok(self.device.division(fine)?.groups)
    }

    /// The lane of these groups.
    pub fn get(&self, fine: bool, groups: &[usize]) -> Result<Arc<Lane>> {
        let mut wanted = groups.to_vec();
        wanted.sort_unstable();
        let mut made = self.made.lock();
        if let Some((.., lane)) = made.iter().find(|(f, g, _)| *f == fine && *g == wanted) {
            return Ok(lane.clone());
        }
        if made.len() >= KEPT {
            return Err(Error::Device(format!(
                "{KEPT} different lanes were made on this device, and lanes are kept; no further one can be made. Ask for \
                 shares that were used before, or restart the process"
            )));
        }
        let sm_count = self.device.division(fine)?.sm_count(&wanted)?;
        let raw = may_sync(SyncKind::GreenContext, || self.device.lane_create(fine, &wanted))?;
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let lane = Arc::new(Lane { id, sm_count, raw: Some(raw), device: self.device.clone() });
        made.push((fine, wanted, lane.clone()));
        Ok(lane)
    }
}
