//! Lanes of the CPU device: an SM is a worker thread, and kernels of a lane's streams get as many as it has SMs.

use std::collections::HashMap;

use parking_lot::Mutex;

use super::{code, failure};
use crate::device::{Division, RawLane};
use crate::error::Result;

#[derive(Default)]
struct Table {
    /// SMs of each lane alive.
    alive: HashMap<usize, u32>,
    last: usize,
}

pub(super) struct Lanes {
    division: Division,
    table: Mutex<Table>,
}

impl Lanes {
    pub fn new(sm_count: u32) -> Lanes {
        let groups = if sm_count > 1 { vec![1; sm_count as usize] } else { Vec::new() };
        Lanes { division: Division { groups }, table: Mutex::default() }
    }

    pub fn division(&self) -> &Division {
        &self.division
    }

    pub fn create(&self, groups: &[usize]) -> Result<RawLane> {
        let sms = self.division.sm_count(groups)?;
        let mut table = self.table.lock();
        table.last += 1;
        let id = table.last;
        table.alive.insert(id, sms);
        Ok(RawLane(id))
    }

    pub fn destroy(&self, lane: RawLane) {
        self.table.lock().alive.remove(&lane.0);
    }

    pub fn sm_count(&self, call: &'static str, lane: RawLane) -> Result<u32> {
        self.table
            .lock()
            .alive
            .get(&lane.0)
            .copied()
            .ok_or_else(|| failure(call, code::INVALID_HANDLE, format!("lane {} is unknown or was destroyed", lane.0)))
    }
}
