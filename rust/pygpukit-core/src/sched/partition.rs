//! Parts of the device with limits of their own, in which tasks are admitted as on a small device.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use thiserror::Error;

use super::admission::Key;
use super::decision::Shortage;
use super::edf::Deadlines;
use super::ledger::{Capacity, Compute, Demand, Ledger, Lines, Space};
use super::request::{Class, Isolation, PartitionId, RequestError, Share, human_u64, invalid};
use crate::error::Error;

/// What a partition is to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionSpec {
    pub name: String,
    /// Bytes that its tasks can reserve; nobody else can.
    pub memory: u64,
    /// Most bytes its tasks have together.
    pub memory_limit: Option<u64>,
    /// Part of the device's compute that is kept for its tasks.
    pub compute: Share,
    pub compute_limit: Option<Share>,
    /// The lowest and the highest priority of its tasks.
    pub priority_band: (i32, i32),
    /// `Sm` gives it SMs of its own, `Time` windows of the whole GPU; the others share the common lane.
    pub isolation: Isolation,
    /// Classes it takes.
    pub classes: Vec<Class>,
    /// Most requests that wait in it; None means the device's bound.
    pub queue_limit: Option<usize>,
}

impl PartitionSpec {
    /// A partition that reserves nothing and takes every task.
    pub fn new(name: &str) -> PartitionSpec {
        PartitionSpec {
            name: name.to_string(),
            memory: 0,
            memory_limit: None,
            compute: Share::ZERO,
            compute_limit: None,
            priority_band: (i32::MIN, i32::MAX),
            isolation: Isolation::Auto,
            classes: Class::ALL.to_vec(),
            queue_limit: None,
        }
    }

    pub fn validate(&self) -> Result<(), RequestError> {
        let name = &self.name;
        if name.is_empty() {
            return invalid("a partition needs a name".to_string());
        }
        if let Some(limit) = self.memory_limit
            && limit < self.memory
        {
            let (limit, memory) = (human_u64(limit), human_u64(self.memory));
            return invalid(format!("memory_limit={limit} of partition '{name}' is below memory={memory}: raise it"));
        }
        if let Some(limit) = self.compute_limit
            && limit < self.compute
        {
            let compute = self.compute;
            return invalid(format!(
                "compute_limit={limit} of partition '{name}' is below compute={compute}: raise it"
            ));
        }
        if self.compute_limit == Some(Share::ZERO) {
            return invalid(format!(
                "compute_limit=0 of partition '{name}' would never let a task run: give a number above 0"
            ));
        }
        let (lowest, highest) = self.priority_band;
        if lowest > highest {
            return invalid(format!(
                "priority_band=({lowest}, {highest}) of partition '{name}' is empty: give the lower priority first"
            ));
        }
        if self.isolation == Isolation::Sm && self.compute == Share::ZERO {
            return invalid(format!("isolation='sm' of partition '{name}' needs compute above 0, the part of the SMs"));
        }
        if self.classes.is_empty() {
            return invalid(format!("partition '{name}' would take no class: name at least one"));
        }
        Ok(())
    }

    /// What it takes from the device.
    pub(super) fn demand(&self, device: &Capacity) -> Demand {
        let compute = match self.isolation {
            Isolation::Sm => Compute::Lane(device.width(self.compute)),
            _ => Compute::Time(self.compute),
        };
        Demand { memory: self.memory, compute, windows: self.isolation == Isolation::Time, job: None }
    }
}

/// Why a partition was not made or removed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PartitionError {
    #[error(transparent)]
    Invalid(#[from] RequestError),
    /// The device has too little left; a partition never waits.
    #[error("partition '{name}' does not fit: {shortage}")]
    Refused { name: String, shortage: Shortage },
    #[error("partition '{name}' is in use (tasks: {tasks}, waiting: {waiting}): end or cancel them first")]
    Busy { name: String, tasks: usize, waiting: usize },
}

impl From<PartitionError> for Error {
    fn from(error: PartitionError) -> Error {
        match error {
            PartitionError::Invalid(error) => error.into(),
            refused => Error::Device(refused.to_string()),
        }
    }
}

/// What is reserved in a partition, and of how much.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionUsage {
    pub id: PartitionId,
    pub name: Arc<str>,
    pub memory_reserved: u64,
    pub memory_capacity: u64,
    /// SMs in lanes of its tasks.
    pub lane_sms: u32,
    /// SMs of the partition; 0 where it shares the device's common lane.
    pub sms: u32,
    /// Lanes of its tasks.
    pub lanes: u32,
    /// Parts per million of the device's time that its tasks have reserved, beside their lanes.
    pub time_reserved: u64,
    pub time_capacity: u64,
    /// Admitted tasks.
    pub tasks: usize,
    pub waiting: usize,
}

/// A partition and the tasks in it.
pub(super) struct Partition {
    pub id: PartitionId,
    pub name: Arc<str>,
    pub spec: PartitionSpec,
    /// What it has taken from the device.
    pub demand: Demand,
    pub ledger: Ledger,
    /// Deadlines of its common lane; those of a partition without SMs are in the device's.
    pub deadlines: Deadlines,
    pub memory_line: BTreeSet<Key>,
    pub compute_line: BTreeSet<Key>,
    pub deadline_line: BTreeSet<Key>,
    pub tasks: usize,
    pub waiting: usize,
}

impl Partition {
    pub fn new(id: PartitionId, spec: PartitionSpec, demand: Demand) -> Partition {
        let space = match demand.compute {
            Compute::Lane(width) => Space::Sms(width),
            Compute::Time(share) => Space::Time(share),
        };
        Partition {
            id,
            name: spec.name.as_str().into(),
            ledger: Ledger::new(spec.memory, space),
            spec,
            demand,
            deadlines: Deadlines::default(),
            memory_line: BTreeSet::new(),
            compute_line: BTreeSet::new(),
            deadline_line: BTreeSet::new(),
            tasks: 0,
            waiting: 0,
        }
    }

    /// The device itself.
    pub fn of_device(device: &Capacity) -> Partition {
        let spec = PartitionSpec { memory: device.memory, compute: Share::ONE, ..PartitionSpec::new("default") };
        let demand = Demand { memory: device.memory, compute: Compute::Lane(device.sms), windows: false, job: None };
        Partition::new(PartitionId::DEFAULT, spec, demand)
    }

    /// Has it SMs, and with them a common lane of its own?
    pub fn has_sms(&self) -> bool {
        matches!(self.ledger.space, Space::Sms(_))
    }

    /// Its line of a resource that partitions have.
    pub fn line(&self, line: Lines) -> &BTreeSet<Key> {
        match line {
            Lines::MEMORY => &self.memory_line,
            Lines::COMPUTE => &self.compute_line,
            _ => &self.deadline_line,
        }
    }

    pub fn line_mut(&mut self, line: Lines) -> &mut BTreeSet<Key> {
        match line {
            Lines::MEMORY => &mut self.memory_line,
            Lines::COMPUTE => &mut self.compute_line,
            _ => &mut self.deadline_line,
        }
    }

    pub fn usage(&self, device: &Capacity) -> PartitionUsage {
        PartitionUsage {
            id: self.id,
            name: self.name.clone(),
            memory_reserved: self.ledger.memory_used,
            memory_capacity: self.ledger.memory,
            lane_sms: self.ledger.lane_sms,
            sms: self.ledger.sms(),
            lanes: self.ledger.lanes,
            time_reserved: self.ledger.time_used,
            time_capacity: self.ledger.time(device),
            tasks: self.tasks,
            waiting: self.waiting,
        }
    }
}

impl fmt::Debug for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Partition").field("name", &self.name).field("ledger", &self.ledger).finish_non_exhaustive()
    }
}
