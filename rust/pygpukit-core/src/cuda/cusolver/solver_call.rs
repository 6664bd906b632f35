//! `SolverCall`: one use of a plan, as work for the submit path.

use std::sync::Arc;

use crate::device::{Device, RawStream};
use crate::error::{Error, Result};
use crate::library_call::LibraryCall;

use super::plan::{Addresses, SolverPlan};

/// A planned function of arrays at these addresses.
#[derive(Clone)]
pub struct SolverCall {
    plan: Arc<SolverPlan>,
    arrays: Addresses,
    info: u64,
    workspace: u64,
}

impl SolverCall {
    /// The workspace is an address and its bytes; the plan says how many it needs.
    pub fn new(
        plan: &Arc<SolverPlan>,
        arrays: Addresses,
        info: u64,
        workspace: Option<(u64, usize)>,
    ) -> Result<SolverCall> {
        let (workspace, bytes) = workspace.unwrap_or((0, 0));
        if bytes < plan.workspace() || plan.workspace() > 0 && workspace & 255 != 0 {
            return Err(Error::Value(format!(
                "{} needs a workspace of {} bytes at a multiple of 256, and {bytes} at {workspace:#x} were given",
                plan.name(),
                plan.workspace()
            )));
        }
        Ok(SolverCall { plan: plan.clone(), arrays, info, workspace })
    }
}

impl LibraryCall for SolverCall {
    fn name(&self) -> &Arc<str> {
        self.plan.name()
    }

    fn cost_key(&self) -> u64 {
        self.plan.cost_key()
    }

    fn enqueue(&self, stream: RawStream) -> Result<()> {
        self.plan.enqueue(&self.arrays, self.info, self.workspace, stream.0)
    }

    fn prepare(&self, device: &dyn Device) -> Result<()> {
        let props = device.props();
        if self.plan.is_of(props) {
            return Ok(());
        }
        Err(Error::Device(format!("{} was planned for another device than {}", self.plan.name(), props.name)))
    }

    fn to_arc(&self) -> Arc<dyn LibraryCall> {
        Arc::new(self.clone())
    }
}
