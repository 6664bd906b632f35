//! The scheduler: who may use the device, how much of it, and when.

pub mod admission;
pub mod decision;
mod edf;
mod ledger;
pub mod partition;
pub mod request;

#[cfg(test)]
mod tests;

pub use admission::{Admission, Mode, Placement};
pub use decision::{Decision, Resource, Shortage, Verdict};
pub use ledger::Capacity;
pub use partition::{PartitionError, PartitionSpec, PartitionUsage};
pub use request::{Class, Given, Isolation, OnFull, PartitionId, Policy, Request, RequestError, Share, TaskId};
