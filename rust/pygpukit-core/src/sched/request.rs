//! What a task asks for, checked before admission looks at it.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::error::{Error, human};

/// Counts up; never used twice.
pub type TaskId = u64;

/// A request that makes no sense on any device; the text says which value and what to do.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct RequestError(pub String);

impl From<RequestError> for Error {
    fn from(error: RequestError) -> Error {
        Error::Value(error.0)
    }
}

pub(super) fn invalid<T>(text: String) -> Result<T, RequestError> {
    Err(RequestError(text))
}

/// A part of the device's compute in parts per million, so that sums are exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Share(u32);

impl Share {
    pub const ZERO: Share = Share(0);
    pub const ONE: Share = Share(1_000_000);

    /// Parts per million, at most the whole.
    pub const fn from_ppm(ppm: u32) -> Share {
        if ppm > Share::ONE.0 { Share::ONE } else { Share(ppm) }
    }

    /// A number from 0 to 1; `name` is the argument it came from. What is above zero stays above zero.
    pub fn from_f64(name: &str, value: f64) -> Result<Share, RequestError> {
        if !(0.0..=1.0).contains(&value) {
            return invalid(format!("{name}={value} is not a share of the GPU: give a number from 0 to 1"));
        }
        let ppm = (value * f64::from(Share::ONE.0)).round() as u32;
        Ok(Share(if value > 0.0 { ppm.max(1) } else { ppm }))
    }

    /// `part / whole`, rounded up and at most the whole.
    pub fn ratio(part: u64, whole: u64) -> Share {
        Share(ppm_ceil(part, whole).min(u64::from(Share::ONE.0)) as u32)
    }

    pub const fn ppm(self) -> u32 {
        self.0
    }

    pub fn as_f64(self) -> f64 {
        f64::from(self.0) / f64::from(Share::ONE.0)
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&percent(u64::from(self.0)))
    }
}

/// `part / whole` in parts per million, rounded up; as much as fits where `whole` is zero.
pub(super) fn ppm_ceil(part: u64, whole: u64) -> u64 {
    if whole == 0 {
        return u64::MAX;
    }
    let ppm = (u128::from(part) * u128::from(Share::ONE.0)).div_ceil(u128::from(whole));
    u64::try_from(ppm).unwrap_or(u64::MAX)
}

/// Parts per million as a percentage with exactly the digits it needs.
pub(super) fn percent(ppm: u64) -> String {
    let (whole, rest) = (ppm / 10_000, ppm % 10_000);
    if rest == 0 {
        return format!("{whole}%");
    }
    let digits = format!("{rest:04}");
    format!("{whole}.{}%", digits.trim_end_matches('0'))
}

/// What is kept for a task when others press.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    Guaranteed,
    Burstable,
    BestEffort,
}

impl Class {
    pub const ALL: [Class; 3] = [Class::Guaranteed, Class::Burstable, Class::BestEffort];

    pub fn name(self) -> &'static str {
        match self {
            Class::Guaranteed => "guaranteed",
            Class::Burstable => "burstable",
            Class::BestEffort => "besteffort",
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a user may ask for by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    Guaranteed,
    Burstable,
    BestEffort,
    /// Leftover time, strictly by priority.
    Priority,
    /// Earliest deadline first, with a test that all deadlines can be met.
    Deadline,
    /// Leftover time, by weight.
    Fair,
}

impl Policy {
    pub const ALL: [Policy; 6] =
        [Policy::Guaranteed, Policy::Burstable, Policy::BestEffort, Policy::Priority, Policy::Deadline, Policy::Fair];

    pub fn name(self) -> &'static str {
        match self {
            Policy::Guaranteed => "guaranteed",
            Policy::Burstable => "burstable",
            Policy::BestEffort => "besteffort",
            Policy::Priority => "priority",
            Policy::Deadline => "deadline",
            Policy::Fair => "fair",
        }
    }

    /// The policy of a request that names none.
    pub fn default_for(given: Given) -> Policy {
        if given.memory || given.bandwidth || given.deadline { Policy::Burstable } else { Policy::BestEffort }
    }

    /// The class a policy stands for, when the request has what the policy needs.
    pub fn class(self, given: Given) -> Result<Class, RequestError> {
        match self {
            Policy::Guaranteed => Ok(Class::Guaranteed),
            Policy::Burstable => Ok(Class::Burstable),
            Policy::BestEffort | Policy::Fair => Ok(Class::BestEffort),
            Policy::Priority if given.priority => Ok(Class::BestEffort),
            Policy::Priority => invalid("policy='priority' needs a priority: give priority=, an int".to_string()),
            Policy::Deadline if given.deadline && given.cost => Ok(Class::Burstable),
            Policy::Deadline => invalid(
                "policy='deadline' needs deadline= (or period=) and cost=, the longest time one run takes".to_string(),
            ),
        }
    }
}

impl FromStr for Policy {
    type Err = RequestError;

    fn from_str(name: &str) -> Result<Policy, RequestError> {
        known("policy", name, &Policy::ALL, Policy::name)
    }
}

/// Which arguments a user has given; a policy may need some of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Given {
    pub memory: bool,
    pub bandwidth: bool,
    /// A deadline or a period.
    pub deadline: bool,
    pub cost: bool,
    pub priority: bool,
}

/// What separates a task from the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Isolation {
    #[default]
    Auto,
    /// SMs of its own.
    Sm,
    /// Windows in which it has the whole GPU.
    Time,
    /// A process of its own.
    Process,
}

impl Isolation {
    pub const ALL: [Isolation; 4] = [Isolation::Auto, Isolation::Sm, Isolation::Time, Isolation::Process];

    pub fn name(self) -> &'static str {
        match self {
            Isolation::Auto => "auto",
            Isolation::Sm => "sm",
            Isolation::Time => "time",
            Isolation::Process => "process",
        }
    }
}

impl FromStr for Isolation {
    type Err = RequestError;

    fn from_str(name: &str) -> Result<Isolation, RequestError> {
        known("isolation", name, &Isolation::ALL, Isolation::name)
    }
}

/// What becomes of a request that fits an empty device but not this one now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnFull {
    #[default]
    Queue,
    Reject,
}

impl OnFull {
    pub const ALL: [OnFull; 2] = [OnFull::Queue, OnFull::Reject];

    pub fn name(self) -> &'static str {
        match self {
            OnFull::Queue => "queue",
            OnFull::Reject => "reject",
        }
    }
}

impl FromStr for OnFull {
    type Err = RequestError;

    fn from_str(name: &str) -> Result<OnFull, RequestError> {
        known("on_full", name, &OnFull::ALL, OnFull::name)
    }
}

impl FromStr for Class {
    type Err = RequestError;

    fn from_str(name: &str) -> Result<Class, RequestError> {
        known("class", name, &Class::ALL, Class::name)
    }
}

fn known<T: Copy>(what: &str, name: &str, all: &[T], text: fn(T) -> &'static str) -> Result<T, RequestError> {
    all.iter().copied().find(|&one| text(one) == name).ok_or_else(|| {
        let names: Vec<&str> = all.iter().map(|&one| text(one)).collect();
        RequestError(format!("{what}='{name}' is not known: use one of {}", names.join(", ")))
    })
}

/// A part of the device with its own limits; the first is the device itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartitionId(pub u32);

impl PartitionId {
    pub const DEFAULT: PartitionId = PartitionId(0);
}

/// What a task asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    pub class: Class,
    /// Bytes that are taken from the device at admission.
    pub memory: u64,
    /// Bytes that are never evicted; 0 where none are asked for.
    pub memory_soft: u64,
    /// Most bytes in use at a time.
    pub memory_limit: Option<u64>,
    /// Part of the device's compute that is kept for the task.
    pub bandwidth: Share,
    /// Most of the device's compute it may get.
    pub bandwidth_limit: Option<Share>,
    pub weight: u32,
    /// Higher ones wait less.
    pub priority: i32,
    pub deadline_ns: Option<u64>,
    pub period_ns: Option<u64>,
    /// The longest time one run takes on the device.
    pub cost_ns: Option<u64>,
    pub isolation: Isolation,
    pub on_full: OnFull,
    pub partition: PartitionId,
}

impl Request {
    /// A request of a class that asks for nothing yet.
    pub fn new(class: Class) -> Request {
        Request {
            class,
            memory: 0,
            memory_soft: 0,
            memory_limit: None,
            bandwidth: Share::ZERO,
            bandwidth_limit: None,
            weight: 1,
            priority: 0,
            deadline_ns: None,
            period_ns: None,
            cost_ns: None,
            isolation: Isolation::Auto,
            on_full: OnFull::Queue,
            partition: PartitionId::DEFAULT,
        }
    }

    /// Bytes that count against the partition: those taken, or those never evicted where they are more.
    pub fn reserved_memory(&self) -> u64 {
        self.memory.max(self.memory_soft)
    }

    /// Time from release to deadline: the period where no deadline is given.
    pub fn relative_deadline(&self) -> Option<u64> {
        self.deadline_ns.or(self.period_ns)
    }

    /// Part of the device's time that is kept for the task where it shares a lane.
    pub fn time_share(&self) -> Share {
        let needed = match (self.cost_ns, self.period_ns.or(self.deadline_ns)) {
            (Some(cost), Some(every)) => Share::ratio(cost, every),
            _ => Share::ZERO,
        };
        needed.max(self.bandwidth)
    }

    /// Refuse what makes no sense on any device.
    pub fn validate(&self) -> Result<(), RequestError> {
        self.validate_memory()?;
        if let Some(limit) = self.bandwidth_limit
            && limit < self.bandwidth
        {
            return invalid(format!(
                "bandwidth_limit={limit} is below bandwidth={}: raise the limit or ask for less",
                self.bandwidth
            ));
        }
        if self.bandwidth_limit == Some(Share::ZERO) {
            return invalid("bandwidth_limit=0 would never let the task run: give a number above 0".to_string());
        }
        if self.weight == 0 {
            return invalid("weight=0 would never let the task run: give an int from 1".to_string());
        }
        if self.isolation == Isolation::Sm {
            if self.class != Class::Guaranteed {
                return invalid(format!(
                    "isolation='sm' gives SMs of its own, which class {} does not have: use policy='guaranteed'",
                    self.class
                ));
            }
            if self.bandwidth == Share::ZERO {
                return invalid("isolation='sm' needs bandwidth above 0, the part of the SMs to have".to_string());
            }
        }
        self.validate_deadline()
    }

    fn validate_memory(&self) -> Result<(), RequestError> {
        if self.memory_soft != 0 && self.memory_soft < self.memory {
            return invalid(format!(
                "memory_soft={} is below memory={}: what is reserved is never evicted, so the floor is at least that",
                human_u64(self.memory_soft),
                human_u64(self.memory)
            ));
        }
        if let Some(limit) = self.memory_limit
            && limit < self.reserved_memory()
        {
            return invalid(format!(
                "memory_limit={} is below the {} that are reserved: raise the limit or reserve less",
                human_u64(limit),
                human_u64(self.reserved_memory())
            ));
        }
        if self.class == Class::BestEffort {
            let asked = [
                (self.reserved_memory() > 0, "memory"),
                (self.bandwidth > Share::ZERO, "bandwidth"),
                (self.relative_deadline().is_some(), "deadline"),
            ];
            if let Some((_, what)) = asked.iter().find(|(asked, _)| *asked) {
                return invalid(format!(
                    "class besteffort reserves nothing, so {what}= cannot be kept: use policy='burstable', or limits"
                ));
            }
        }
        Ok(())
    }

    fn validate_deadline(&self) -> Result<(), RequestError> {
        let named = [("deadline", self.deadline_ns), ("period", self.period_ns), ("cost", self.cost_ns)];
        if let Some((name, _)) = named.iter().find(|(_, value)| *value == Some(0)) {
            return invalid(format!("{name}=0 is not a time: give seconds above 0"));
        }
        let Some(deadline) = self.relative_deadline() else {
            return match self.cost_ns {
                Some(cost) => invalid(format!("cost={} needs a deadline= or period= to be met", seconds(cost))),
                None => Ok(()),
            };
        };
        let Some(cost) = self.cost_ns else {
            return invalid(format!(
                "deadline={} needs cost=, the longest time one run takes, to say whether it can be met",
                seconds(deadline)
            ));
        };
        if let Some(period) = self.period_ns
            && deadline > period
        {
            return invalid(format!(
                "deadline={} is after the next release at period={}: give a deadline of at most the period",
                seconds(deadline),
                seconds(period)
            ));
        }
        if cost > deadline {
            return invalid(format!(
                "cost={} is more than deadline={}: it can never be met",
                seconds(cost),
                seconds(deadline)
            ));
        }
        Ok(())
    }
}

/// Bytes as a person writes them, whatever the pointer width.
pub(super) fn human_u64(bytes: u64) -> String {
    human(usize::try_from(bytes).unwrap_or(usize::MAX))
}

/// Nanoseconds as a person writes them: "4 ms", "12.5 us".
pub(super) fn seconds(ns: u64) -> String {
    let (scale, unit) = match ns {
        0..1_000 => (1, "ns"),
        1_000..1_000_000 => (1_000, "us"),
        1_000_000..1_000_000_000 => (1_000_000, "ms"),
        _ => (1_000_000_000, "s"),
    };
    let (whole, rest) = (ns / scale, ns % scale);
    if rest == 0 {
        return format!("{whole} {unit}");
    }
    let digits = format!("{:09}", rest * (1_000_000_000 / scale));
    format!("{whole}.{} {unit}", digits.trim_end_matches('0'))
}
