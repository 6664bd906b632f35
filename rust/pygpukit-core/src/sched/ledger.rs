//! Running sums of what is reserved, and the inequalities a demand has to pass.

use std::ops::{BitAnd, BitOr, BitOrAssign};

use super::decision::Resource;
use super::edf::{Deadlines, Job, Missed, Rules};
use super::request::{RequestError, Share, invalid};

/// What a device has to give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    pub memory: u64,
    pub sms: u32,
    /// SMs by which a lane grows.
    pub granule: u32,
    /// Can the device be divided into lanes?
    pub divisible: bool,
    /// Most live lanes, the common one included.
    pub max_lanes: u32,
    /// SMs the common lane keeps while there are others.
    pub min_common: u32,
    /// Part of the time that nobody can reserve.
    pub time_margin: Share,
    /// Most requests that wait in a partition that has no bound of its own.
    pub queue_limit: usize,
    /// The longest work of others that a job with a deadline may find on its lane.
    pub blocking_ns: u64,
    /// Part of a lane's time that deadlines may count on.
    pub edf_bound: Share,
}

impl Capacity {
    /// A device that cannot be divided.
    pub fn new(memory: u64) -> Capacity {
        Capacity {
            memory,
            sms: 1,
            granule: 1,
            divisible: false,
            max_lanes: 8,
            min_common: 1,
            time_margin: Share::from_ppm(20_000),
            queue_limit: 10_000,
            blocking_ns: 0,
            edf_bound: Share::from_ppm(950_000),
        }
    }

    /// A device whose SMs can be given to lanes, `granule` at a time.
    pub fn divided(memory: u64, sms: u32, granule: u32) -> Capacity {
        Capacity { sms, granule, min_common: granule, divisible: true, ..Capacity::new(memory) }
    }

    pub fn validate(&self) -> Result<(), RequestError> {
        let counts = [("sms", self.sms), ("granule", self.granule), ("max_lanes", self.max_lanes)];
        match counts.iter().find(|(_, value)| *value == 0) {
            Some((name, _)) => invalid(format!("{name}=0 describes no device: give an int from 1")),
            None => Ok(()),
        }
    }

    /// SMs of a lane for a share of the device: whole granules, rounded up.
    pub(super) fn width(&self, share: Share) -> u32 {
        let whole = u64::from(Share::ONE.ppm()) * u64::from(self.granule);
        let granules = (u64::from(share.ppm()) * u64::from(self.sms)).div_ceil(whole);
        u32::try_from(granules * u64::from(self.granule)).unwrap_or(u32::MAX)
    }

    /// Parts per million of the whole device's time that this many SMs can promise.
    fn time_of(&self, sms: u32) -> u64 {
        u64::from(sms) * self.sellable() / u64::from(self.sms)
    }

    /// SMs it takes to keep a promise of this much time.
    fn sms_for(&self, time: u64) -> u64 {
        // Where nothing can be sold nothing was promised.
        (time * u64::from(self.sms)).div_ceil(self.sellable().max(1))
    }

    /// Most live lanes: one where the device cannot be divided.
    pub(super) fn lane_limit(&self) -> u32 {
        if self.divisible { self.max_lanes } else { 1 }
    }

    fn sellable(&self) -> u64 {
        u64::from(Share::ONE.ppm() - self.time_margin.ppm())
    }
}

/// A set of lines in which requests wait for a resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lines(pub u8);

impl Lines {
    pub const NONE: Lines = Lines(0);
    pub const MEMORY: Lines = Lines(1);
    /// SMs and time are one resource: a lane takes from what can be shared, and the other way round.
    pub const COMPUTE: Lines = Lines(2);
    pub const DEADLINE: Lines = Lines(4);
    pub const LANES: Lines = Lines(8);
    /// The device divided, or whole in windows.
    pub const ISOLATION: Lines = Lines(16);
    /// In the order in which shortages are reported.
    pub const ALL: [Lines; 5] = [Lines::MEMORY, Lines::ISOLATION, Lines::COMPUTE, Lines::LANES, Lines::DEADLINE];

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn has(self, other: Lines) -> bool {
        self.0 & other.0 != 0
    }

    pub fn without(self, other: Lines) -> Lines {
        Lines(self.0 & !other.0)
    }

    pub fn when(self, condition: bool) -> Lines {
        if condition { self } else { Lines::NONE }
    }

    pub fn each(self) -> impl Iterator<Item = Lines> {
        Lines::ALL.into_iter().filter(move |line| self.has(*line))
    }
}

impl BitOr for Lines {
    type Output = Lines;

    fn bitor(self, other: Lines) -> Lines {
        Lines(self.0 | other.0)
    }
}

impl BitOrAssign for Lines {
    fn bitor_assign(&mut self, other: Lines) {
        self.0 |= other.0;
    }
}

impl BitAnd for Lines {
    type Output = Lines;

    fn bitand(self, other: Lines) -> Lines {
        Lines(self.0 & other.0)
    }
}

/// Where the work of a demand runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compute {
    /// On this many SMs of its own.
    Lane(u32),
    /// In the common lane, with this part of the device's time.
    Time(Share),
}

/// What is taken from a partition when a request is admitted or a partition is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Demand {
    pub memory: u64,
    pub compute: Compute,
    /// Needs the whole GPU while it runs.
    pub windows: bool,
    pub job: Option<Job>,
}

impl Demand {
    /// Lines of the resources the demand takes from.
    pub fn asked(&self) -> Lines {
        let compute = match self.compute {
            Compute::Lane(_) => Lines::COMPUTE | Lines::LANES | Lines::ISOLATION,
            Compute::Time(share) => {
                Lines::COMPUTE.when(share > Share::ZERO)
                    | Lines::ISOLATION.when(self.windows)
                    | Lines::DEADLINE.when(self.job.is_some())
            }
        };
        compute | Lines::MEMORY.when(self.memory > 0)
    }
}

/// What a partition can give of compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Space {
    /// SMs: lanes are cut from them, the rest is shared.
    Sms(u32),
    /// A part of the time of the device's common lane.
    Time(Share),
}

/// The sums of one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ledger {
    /// Bytes that can be reserved.
    pub memory: u64,
    pub space: Space,
    /// Time given to partitions that share the common lane, in parts per million.
    pub lent: u64,
    pub memory_used: u64,
    /// SMs in lanes of tasks.
    pub lane_sms: u32,
    /// Lanes of tasks.
    pub lanes: u32,
    /// Time of tasks that share, in parts per million.
    pub time_used: u64,
}

/// Sums that concern the device as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Whole {
    /// Live lanes, the common one included.
    pub lanes: u32,
    /// Tasks and partitions that need the whole GPU in turns.
    pub windows: u32,
}

impl Whole {
    pub fn take(&mut self, demand: &Demand) {
        self.lanes += u32::from(matches!(demand.compute, Compute::Lane(_)));
        self.windows += u32::from(demand.windows);
    }

    pub fn give_back(&mut self, demand: &Demand) {
        self.lanes -= u32::from(matches!(demand.compute, Compute::Lane(_)));
        self.windows -= u32::from(demand.windows);
    }
}

impl Ledger {
    pub fn new(memory: u64, space: Space) -> Ledger {
        Ledger { memory, space, lent: 0, memory_used: 0, lane_sms: 0, lanes: 0, time_used: 0 }
    }

    /// What it would be if all its tasks had ended.
    pub fn without_tasks(&self) -> Ledger {
        Ledger { lent: self.lent, ..Ledger::new(self.memory, self.space) }
    }

    pub fn sms(&self) -> u32 {
        match self.space {
            Space::Sms(sms) => sms,
            Space::Time(_) => 0,
        }
    }

    /// Parts per million of the device's time that tasks which share may reserve.
    pub fn time(&self, device: &Capacity) -> u64 {
        match self.space {
            Space::Sms(sms) => device.time_of(sms.saturating_sub(self.lane_sms)).saturating_sub(self.lent),
            Space::Time(share) => u64::from(share.ppm()),
        }
    }

    /// SMs that a lane must leave to those who share.
    fn kept(&self, device: &Capacity) -> u64 {
        match self.space {
            Space::Sms(_) => device.sms_for(self.time_used + self.lent).max(u64::from(device.min_common)),
            Space::Time(_) => 0,
        }
    }

    /// Give a part to a partition: nobody else can reserve it then.
    pub fn lend(&mut self, demand: &Demand) {
        self.memory -= demand.memory;
        match (demand.compute, &mut self.space) {
            (Compute::Lane(width), Space::Sms(sms)) => *sms -= width,
            (Compute::Time(share), _) => self.lent += u64::from(share.ppm()),
            // A partition without SMs has no lanes to lend.
            (Compute::Lane(_), Space::Time(_)) => {}
        }
    }

    /// Undo `lend`.
    pub fn get_back(&mut self, demand: &Demand) {
        self.memory += demand.memory;
        match (demand.compute, &mut self.space) {
            (Compute::Lane(width), Space::Sms(sms)) => *sms += width,
            (Compute::Time(share), _) => self.lent -= u64::from(share.ppm()),
            (Compute::Lane(_), Space::Time(_)) => {}
        }
    }

    pub fn take(&mut self, demand: &Demand) {
        self.memory_used += demand.memory;
        match demand.compute {
            Compute::Lane(width) => {
                self.lane_sms += width;
                self.lanes += 1;
            }
            Compute::Time(share) => self.time_used += u64::from(share.ppm()),
        }
    }

    pub fn give_back(&mut self, demand: &Demand) {
        self.memory_used -= demand.memory;
        match demand.compute {
            Compute::Lane(width) => {
                self.lane_sms -= width;
                self.lanes -= 1;
            }
            Compute::Time(share) => self.time_used -= u64::from(share.ppm()),
        }
    }
}

/// Everything a demand is tested against.
pub(super) struct State<'a> {
    pub device: &'a Capacity,
    pub whole: Whole,
    pub ledger: &'a Ledger,
    /// Deadlines of the common lane.
    pub deadlines: &'a Deadlines,
}

impl State<'_> {
    /// Lines of the resources that are short for the demand.
    pub fn short(&self, demand: &Demand) -> Lines {
        let (device, ledger) = (self.device, self.ledger);
        let mut short = Lines::MEMORY.when(ledger.memory.saturating_sub(ledger.memory_used) < demand.memory);
        match demand.compute {
            Compute::Lane(width) => {
                let taken = u64::from(ledger.lane_sms) + u64::from(width) + ledger.kept(device);
                short |= Lines::COMPUTE.when(taken > u64::from(ledger.sms()));
                short |= Lines::LANES.when(self.whole.lanes >= device.lane_limit());
                short |= Lines::ISOLATION.when(self.whole.windows > 0);
            }
            Compute::Time(share) => {
                let taken = ledger.time_used + u64::from(share.ppm());
                short |= Lines::COMPUTE.when(share > Share::ZERO && taken > ledger.time(device));
                short |= Lines::ISOLATION.when(demand.windows && self.whole.lanes > 1);
            }
        }
        short | Lines::DEADLINE.when(demand.job.is_some_and(|job| self.meets(demand.compute, job).is_err()))
    }

    /// The numbers of the inequality of one line: resource, asked, used, kept, capacity.
    pub fn inequality(&self, line: Lines, demand: &Demand) -> (Resource, [u64; 4]) {
        let (device, ledger, whole) = (self.device, self.ledger, self.whole);
        match (line, demand.compute) {
            (Lines::MEMORY, _) => (Resource::Memory, [demand.memory, ledger.memory_used, 0, ledger.memory]),
            (Lines::ISOLATION, Compute::Lane(_)) => (Resource::Division, [1, u64::from(whole.windows), 0, 0]),
            (Lines::ISOLATION, Compute::Time(_)) => (Resource::Windows, [1, u64::from(whole.lanes), 0, 1]),
            (Lines::COMPUTE, Compute::Lane(width)) => {
                let (lanes, sms) = (u64::from(ledger.lane_sms), u64::from(ledger.sms()));
                (Resource::Sms, [u64::from(width), lanes, ledger.kept(device), sms])
            }
            (Lines::COMPUTE, Compute::Time(share)) => {
                (Resource::Time, [u64::from(share.ppm()), ledger.time_used, 0, ledger.time(device)])
            }
            (Lines::LANES, _) => (Resource::Lanes, [1, u64::from(whole.lanes), 0, u64::from(device.lane_limit())]),
            _ => {
                let numbers = demand.job.map_or([0; 4], |job| match self.meets(demand.compute, job) {
                    Ok(()) => [job.density, 0, 0, u64::from(device.edf_bound.ppm())],
                    Err(missed) => [missed.asked, missed.used, 0, missed.bound],
                });
                (Resource::Deadline, numbers)
            }
        }
    }

    /// Do all meet their deadlines with this job? In a lane of its own nothing is in its way.
    fn meets(&self, compute: Compute, job: Job) -> Result<(), Missed> {
        let bound = self.device.edf_bound;
        match compute {
            Compute::Lane(_) => Deadlines::default().admits(job, Rules { blocking: 0, bound }),
            Compute::Time(_) => self.deadlines.admits(job, Rules { blocking: self.device.blocking_ns, bound }),
        }
    }
}
