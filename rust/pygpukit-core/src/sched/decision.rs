//! What admission answers, and the inequality behind a refusal.

use std::fmt;
use std::sync::Arc;

use super::request::{Class, TaskId, human_u64, percent};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    Admitted,
    /// It fits an empty device, but not this one now.
    Queued,
    Rejected,
}

impl Verdict {
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Admitted => "admitted",
            Verdict::Queued => "queued",
            Verdict::Rejected => "rejected",
        }
    }
}

/// The answer to a request; there is a shortage unless it was admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    pub verdict: Verdict,
    pub shortage: Option<Shortage>,
}

/// What was short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Bytes of the partition.
    Memory,
    /// The partition does not take tasks of this class.
    Class(Class),
    /// A priority outside the partition's band.
    Priority { asked: i32, lowest: i32, highest: i32 },
    /// A lane was asked for while tasks have the whole GPU in windows; `used` counts these.
    Division,
    /// The whole GPU was asked for while it is divided; `used` counts the lanes.
    Windows,
    /// SMs of the partition.
    Sms,
    /// Live lanes of the device.
    Lanes,
    /// Device time of the partition, in parts per million.
    Time,
    /// Time that deadlines can count on, in parts per million of a lane.
    Deadline,
    /// Places in the queue of the partition.
    Queue,
}

impl Resource {
    pub fn name(self) -> &'static str {
        match self {
            Resource::Memory => "memory",
            Resource::Class(_) => "class",
            Resource::Priority { .. } => "priority",
            Resource::Division | Resource::Windows => "isolation",
            Resource::Sms => "SMs",
            Resource::Lanes => "lanes",
            Resource::Time => "time",
            Resource::Deadline => "deadlines",
            Resource::Queue => "queue",
        }
    }
}

/// The inequality that failed: `asked + used + kept > capacity`. It is displayed with its numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    pub resource: Resource,
    /// Name of the partition whose resource it is.
    pub partition: Arc<str>,
    pub asked: u64,
    pub used: u64,
    /// SMs that the common lane keeps; 0 for other resources.
    pub kept: u64,
    pub capacity: u64,
    /// There is enough, but this request came first and waits for it.
    pub behind: Option<TaskId>,
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let partition = &self.partition;
        if let Some(first) = self.behind {
            return f.write_str(&self.behind_task(&first.to_string()));
        }
        match self.resource {
            Resource::Class(class) => write!(f, "class: {class} is not taken by partition '{partition}'"),
            Resource::Priority { asked, lowest, highest } => {
                write!(f, "priority: {asked} is outside the band {lowest} to {highest} of partition '{partition}'")
            }
            Resource::Division => {
                let windows = self.used;
                write!(
                    f,
                    "isolation: SMs of its own asked, but the whole GPU goes to others in windows ('time': {windows})"
                )
            }
            Resource::Windows => {
                let lanes = self.used;
                write!(f, "isolation: windows of the whole GPU asked, but it is divided into {lanes} lanes ('sm')")
            }
            Resource::Memory => self.inequality(f, "reserved", &self.bytes()),
            Resource::Sms => self.inequality(f, "in lanes", &u64::to_string),
            Resource::Lanes => self.inequality(f, "in use", &u64::to_string),
            Resource::Time => self.inequality(f, "reserved", &|ppm| percent(*ppm)),
            Resource::Deadline => self.inequality(f, "for deadlines and blocking", &|ppm| percent(*ppm)),
            Resource::Queue => self.inequality(f, "waiting", &u64::to_string),
        }
    }
}

impl Shortage {
    /// The text for a request that waits behind a task which its reader knows by this name.
    pub fn behind_task(&self, task: &str) -> String {
        let (resource, partition) = (self.resource.name(), &self.partition);
        format!("{resource}: task {task} came first and waits for it in partition '{partition}'")
    }

    fn inequality(&self, f: &mut fmt::Formatter<'_>, used_as: &str, text: &dyn Fn(&u64) -> String) -> fmt::Result {
        write!(f, "{}: {} asked", self.resource.name(), text(&self.asked))?;
        if self.used > 0 {
            write!(f, " + {} {used_as}", text(&self.used))?;
        }
        if self.kept > 0 {
            write!(f, " + {} kept for the common lane", text(&self.kept))?;
        }
        write!(f, " > {}", text(&self.capacity))?;
        match self.resource {
            Resource::Lanes => write!(f, " of the device"),
            Resource::Deadline => write!(f, " of the lane of partition '{}'", self.partition),
            _ => write!(f, " of partition '{}'", self.partition),
        }
    }

    /// Rounded bytes, or exact ones where rounding would hide the inequality.
    fn bytes(&self) -> fn(&u64) -> String {
        if rounded(self.asked) + rounded(self.used) > rounded(self.capacity) {
            |bytes| human_u64(*bytes)
        } else {
            |bytes| format!("{bytes} B")
        }
    }
}

/// The number that `human_u64` shows, in bytes.
fn rounded(bytes: u64) -> f64 {
    let mut unit = 1.0;
    while bytes as f64 / unit >= 1024.0 && unit < 1024f64.powi(4) {
        unit *= 1024.0;
    }
    if unit == 1.0 { bytes as f64 } else { (bytes as f64 / unit * 10.0).round() / 10.0 * unit }
}
