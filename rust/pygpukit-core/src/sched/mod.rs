//! The scheduler: who may use the device, how much of it, and when.

pub mod admission;
pub mod clock;
pub mod cost;
pub mod decision;
mod drain;
mod edf;
mod external;
mod gate;
mod lease;
mod ledger;
mod lending;
pub mod partition;
pub mod prompt;
#[cfg(unix)]
mod remote;
pub mod request;
mod scheduler;
pub mod turns;
pub mod usage;

#[cfg(test)]
mod tests;

pub use admission::{Admission, Mode, Placement};
pub use decision::{Decision, Resource, Shortage, Verdict};
pub use gate::{Gate, Row};
pub use lease::Lease;
pub use ledger::Capacity;
pub use partition::{PartitionError, PartitionSpec, PartitionUsage};
#[cfg(unix)]
pub use remote::{Health, Orders};
pub use request::{Class, Given, Isolation, OnFull, PartitionId, Policy, Request, RequestError, Share, TaskId};
pub use scheduler::{Check, Options, Scheduler, Tenant};
