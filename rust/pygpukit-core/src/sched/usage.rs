//! What a tenant has used and waited for.

use std::collections::VecDeque;

/// Width and number of the intervals over which a recent share is told.
const BUCKET_NS: u64 = 100_000_000;
const BUCKETS: u64 = 10;

/// Entries of a tenant's log of waits.
const LOG: usize = 64;

/// Why a submission had to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// Somebody else had the lane.
    Turn,
    /// As much as is allowed was in flight already.
    InFlight,
    /// The limit was reached.
    Limit,
}

impl Waited {
    pub fn name(self) -> &'static str {
        match self {
            Waited::Turn => "turn",
            Waited::InFlight => "in_flight",
            Waited::Limit => "limit",
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Wait {
    /// When it began, on the scheduler's clock.
    pub at: u64,
    pub ns: u64,
    pub why: Waited,
}

#[derive(Clone, Debug, Default)]
pub struct Usage {
    /// Device time, as measured.
    pub measured_ns: u64,
    /// Device time of work that could not be measured, as predicted.
    pub predicted_ns: u64,
    /// Both, each weighted with the part of the device its lane was.
    pub weighted_ns: u64,
    pub submissions: u64,
    /// Submissions that were a part of a kernel.
    pub slices: u64,
    pub turns: u64,
    pub waits: u64,
    pub waited_ns: u64,
    log: VecDeque<Wait>,
    /// Weighted time by interval, oldest first; the first number is the interval's.
    recent: VecDeque<(u64, u64)>,
}

impl Usage {
    /// Device time on a lane of `sms` out of `of` was used, and ended at `now`.
    pub fn add(&mut self, ns: u64, exact: bool, (sms, of): (u32, u32), now: u64) {
        if exact {
            self.measured_ns += ns;
        } else {
            self.predicted_ns += ns;
        }
        let weighted = (u128::from(ns) * u128::from(sms) / u128::from(of.max(1))) as u64;
        self.weighted_ns += weighted;
        let bucket = now / BUCKET_NS;
        match self.recent.back_mut() {
            Some((last, sum)) if *last == bucket => *sum += weighted,
            _ => self.recent.push_back((bucket, weighted)),
        }
        self.forget(bucket);
    }

    fn forget(&mut self, bucket: u64) {
        while self.recent.front().is_some_and(|(old, _)| old + BUCKETS < bucket) {
            self.recent.pop_front();
        }
    }

    /// Part of the device used in the last whole second.
    pub fn share(&self, now: u64) -> f64 {
        let bucket = now / BUCKET_NS;
        let counted = self.recent.iter().filter(|(b, _)| *b < bucket && *b + BUCKETS >= bucket);
        counted.map(|(_, ns)| *ns).sum::<u64>() as f64 / (BUCKET_NS * BUCKETS) as f64
    }

    pub fn waited(&mut self, wait: Wait) {
        self.waits += 1;
        self.waited_ns += wait.ns;
        if self.log.len() == LOG {
            self.log.pop_front();
        }
        self.log.push_back(wait);
    }

    /// The last waits, oldest first.
    pub fn log(&self) -> impl Iterator<Item = &Wait> {
        self.log.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_that_of_the_last_second() {
        let mut usage = Usage::default();
        for bucket in 0..30u64 {
            usage.add(50_000_000, true, (66, 132), bucket * BUCKET_NS + 5);
        }
        let now = 30 * BUCKET_NS;
        assert!((usage.share(now) - 0.25).abs() < 1e-9, "{}", usage.share(now));
        assert_eq!(usage.share(now + 20 * BUCKET_NS), 0.0);
        assert_eq!((usage.measured_ns, usage.weighted_ns), (1_500_000_000, 750_000_000));
    }
}
