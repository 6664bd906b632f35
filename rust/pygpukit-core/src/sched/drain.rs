//! Waiting until a lane, or a tenant, has nothing on the device any more.

use std::sync::Arc;

use crate::error::Result;
use crate::stream::wait_until;

use super::gate::{Gate, Marks};
use super::lease::Lease;

impl Gate {
    /// Wait until nothing that was submitted before a `set_lane` runs on the lane it left.
    pub fn drain(&self, check: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        wait_until(check, || {
            self.poll()?;
            let mut inner = self.lock();
            let settled = inner.settle(self)?;
            if !settled {
                inner.refuse_own_wait()?;
            }
            inner.harvest(self)?;
            Ok(settled && inner.has_moved() && are_passed(&inner.last)?)
        })
    }

    /// Wait until nothing of a tenant that has ended runs any more, whoever has the lane now.
    pub fn drain_of(&self, lease: &Arc<Lease>, check: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        let mut ends: Option<Marks> = None;
        wait_until(check, || {
            self.poll()?;
            let mut inner = self.lock();
            inner.settle(self)?;
            inner.harvest(self)?;
            let seated = inner.seats.get(lease.seat()).and_then(Option::as_ref);
            if ends.is_none() && seated.is_none_or(|other| !Arc::ptr_eq(other, lease)) {
                // Its last turn has ended, and later ones wait for its work.
                ends = Some(inner.last.clone());
            }
            ends.as_ref().map_or(Ok(false), are_passed)
        })
    }
}

fn are_passed(marks: &Marks) -> Result<bool> {
    marks.iter().try_fold(true, |all, mark| Ok(all && mark.is_passed()?))
}
