//! Deadlines of the tasks that share a lane: can all be met by earliest deadline first, without preemption?

use std::cmp::Ordering;

use super::request::{Share, TaskId, ppm_ceil};

/// One run of a task: it takes `cost` and has to end `deadline` after its release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Job {
    pub deadline: u64,
    pub cost: u64,
    /// Part of the lane's time it needs at worst, in parts per million. Deadlines are at most the period.
    pub density: u64,
}

impl Job {
    pub fn new(deadline: u64, cost: u64) -> Job {
        Job { deadline, cost, density: ppm_ceil(cost, deadline) }
    }
}

/// The inequality that failed, in parts per million of the lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Missed {
    pub asked: u64,
    pub used: u64,
    pub bound: u64,
}

/// What deadlines of a lane may rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rules {
    /// The longest work of others that cannot be stopped.
    pub blocking: u64,
    pub bound: Share,
}

/// The jobs of a lane in order of their deadlines.
#[derive(Clone, Debug, Default)]
pub(super) struct Deadlines {
    jobs: Vec<(Job, TaskId)>,
    density: u64,
    /// The largest cost, and how many jobs have it.
    longest: (u64, usize),
}

impl Deadlines {
    pub fn insert(&mut self, job: Job, id: TaskId) {
        let at = self.jobs.partition_point(|(other, known)| (other.deadline, *known) < (job.deadline, id));
        self.jobs.insert(at, (job, id));
        self.density += job.density;
        match job.cost.cmp(&self.longest.0) {
            Ordering::Greater => self.longest = (job.cost, 1),
            Ordering::Equal => self.longest.1 += 1,
            Ordering::Less => {}
        }
    }

    pub fn remove(&mut self, job: Job, id: TaskId) {
        let at = self.jobs.partition_point(|(other, known)| (other.deadline, *known) < (job.deadline, id));
        if self.jobs.get(at).is_some_and(|(_, known)| *known == id) {
            self.jobs.remove(at);
            self.density -= job.density;
            self.longest.1 -= usize::from(job.cost == self.longest.0);
            if self.longest.1 == 0 {
                let cost = self.jobs.iter().map(|(job, _)| job.cost).max().unwrap_or(0);
                self.longest = (cost, self.jobs.iter().filter(|(job, _)| job.cost == cost).count());
            }
        }
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty() && self.density == 0 && self.longest == (0, 0)
    }

    /// Are all deadlines met when the job joins? Otherwise the inequality of the earliest deadline that is not.
    ///
    /// For every deadline D: the densities of jobs with deadlines up to D, and the longest that can be in the way (work
    /// of others and a job with a later deadline) over D, are at most the bound. The known jobs pass this among
    /// themselves.
    pub fn admits(&self, new: Job, rules: Rules) -> Result<(), Missed> {
        let blocked = |cost: u64| rules.blocking.saturating_add(cost);
        // Most sets pass with the worst of everything at once.
        let earliest = self.jobs.first().map_or(new.deadline, |(first, _)| first.deadline.min(new.deadline));
        if fits(self.density + new.density, blocked(self.longest.0.max(new.cost)), earliest, rules.bound) {
            return Ok(());
        }
        let mut missed = None;
        let mut density = self.density;
        let mut later = 0; // the largest cost of known jobs with later deadlines
        let mut end = self.jobs.len();
        let mut new_due = true;
        // From the latest deadline to the earliest, one step per distinct deadline.
        while end > 0 || new_due {
            let known = end.checked_sub(1).map_or(0, |last| self.jobs[last].0.deadline);
            let deadline = if new_due { known.max(new.deadline) } else { known };
            let (share, in_the_way) = if new.deadline <= deadline {
                (density + new.density, blocked(later))
            } else if new.cost > later {
                (density, blocked(new.cost))
            } else {
                // The new job changes nothing from here on.
                break;
            };
            if !fits(share, in_the_way, deadline, rules.bound) {
                let used = density.saturating_add(ppm_ceil(blocked(later), deadline));
                let total = share.saturating_add(ppm_ceil(in_the_way, deadline));
                missed = Some(Missed { asked: total - used, used, bound: u64::from(rules.bound.ppm()) });
            }
            new_due &= deadline != new.deadline;
            while let Some((job, _)) = self.jobs[..end].last()
                && job.deadline == deadline
            {
                density -= job.density;
                later = later.max(job.cost);
                end -= 1;
            }
        }
        missed.map_or(Ok(()), Err)
    }
}

/// `share + in_the_way / deadline <= bound`, without a division.
fn fits(share: u64, in_the_way: u64, deadline: u64, bound: Share) -> bool {
    let Some(left) = u64::from(bound.ppm()).checked_sub(share) else { return false };
    u128::from(in_the_way) * u128::from(Share::ONE.ppm()) <= u128::from(left) * u128::from(deadline)
}
