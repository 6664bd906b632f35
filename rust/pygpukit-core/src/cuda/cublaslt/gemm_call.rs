//! `GemmCall`: one use of a plan, as work for the submit path.

use std::sync::Arc;

use crate::device::{Device, RawStream};
use crate::error::{Error, Result};
use crate::library_call::LibraryCall;

use super::loading;
use super::plan::GemmPlan;

/// A planned product of matrices at these addresses.
#[derive(Clone)]
pub struct GemmCall {
    plan: Arc<GemmPlan>,
    out: u64,
    a: u64,
    b: u64,
    workspace: u64,
}

impl GemmCall {
    /// The workspace is an address and its bytes; the plan says how many it needs.
    #[inline]
    pub fn new(plan: &Arc<GemmPlan>, out: u64, a: u64, b: u64, workspace: Option<(u64, usize)>) -> Result<GemmCall> {
        let shape = plan.shape();
        for (what, address, operand) in [("a", a, &shape.a), ("b", b, &shape.b), ("out", out, &shape.out)] {
            if address & u64::from(operand.alignment - 1) != 0 {
                return Err(misaligned(what, address, operand.alignment));
            }
        }
        let (workspace, bytes) = workspace.unwrap_or((0, 0));
        if bytes < plan.workspace() || plan.workspace() > 0 && workspace & 255 != 0 {
            return Err(small(plan, workspace, bytes));
        }
        Ok(GemmCall { plan: plan.clone(), out, a, b, workspace })
    }
}

#[cold]
fn misaligned(what: &str, address: u64, alignment: u32) -> Error {
    Error::Value(format!(
        "{what} begins at {address:#x}, which is not a multiple of the {alignment} bytes it was planned for: plan the \
         product with alignment={}",
        1u64 << address.trailing_zeros().min(8)
    ))
}

#[cold]
fn small(plan: &GemmPlan, address: u64, bytes: usize) -> Error {
    let needed = plan.workspace();
    if bytes < needed {
        return Error::Value(format!("{} needs a workspace of {needed} bytes, and {bytes} were given", plan.name()));
    }
    Error::Value(format!("a workspace begins at a multiple of 256 bytes, not at {address:#x}"))
}

impl LibraryCall for GemmCall {
    fn name(&self) -> &Arc<str> {
        self.plan.name()
    }

    fn cost_key(&self) -> u64 {
        self.plan.cost_key()
    }

    #[inline]
    fn enqueue(&self, stream: RawStream) -> Result<()> {
        self.plan.enqueue(self.out, self.a, self.b, self.workspace, stream.0)
    }

    #[inline]
    fn prepare(&self, device: &dyn Device) -> Result<()> {
        if self.plan.is_loaded() { Ok(()) } else { load(self, device) }
    }

    fn to_arc(&self) -> Arc<dyn LibraryCall> {
        Arc::new(self.clone())
    }
}

/// The first call of a plan loads its kernel, and that waits for all that runs.
#[cold]
fn load(call: &GemmCall, device: &dyn Device) -> Result<()> {
    let props = device.props();
    if !call.plan.is_of(props) {
        return Err(Error::Device(format!("{} was planned for another device than {}", call.plan.name(), props.name)));
    }
    loading(device, || device.load_library_call(call))?;
    call.plan.set_loaded();
    Ok(())
}
