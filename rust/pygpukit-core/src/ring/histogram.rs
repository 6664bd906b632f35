//! Latencies in logarithmic buckets: eight per power of two, so a percentile is wrong by 6 % at most.

const SUB_BITS: u32 = 3;
const SUB: usize = 1 << SUB_BITS;
const BUCKETS: usize = (64 - SUB_BITS as usize + 1) * SUB;

#[derive(Clone, Debug)]
pub struct Histogram {
    buckets: Box<[u64]>,
    count: u64,
    sum: u64,
    least: u64,
    most: u64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { buckets: vec![0; BUCKETS].into_boxed_slice(), count: 0, sum: 0, least: u64::MAX, most: 0 }
    }
}

/// Number of the bucket of a value. Values below `SUB` have one each.
#[inline]
fn index(value: u64) -> usize {
    if value < SUB as u64 {
        return value as usize;
    }
    let exponent = 63 - value.leading_zeros();
    let sub = (value >> (exponent - SUB_BITS)) as usize & (SUB - 1);
    (exponent - SUB_BITS + 1) as usize * SUB + sub
}

/// Smallest value of a bucket, and how many values it holds.
fn bounds(index: usize) -> (u64, u64) {
    if index < SUB {
        return (index as u64, 1);
    }
    let shift = (index / SUB - 1) as u32;
    (((SUB + index % SUB) as u64) << shift, 1 << shift)
}

impl Histogram {
    #[inline]
    pub fn record(&mut self, value: u64) {
        self.buckets[index(value)] += 1;
        self.count += 1;
        self.sum = self.sum.saturating_add(value);
        self.least = self.least.min(value);
        self.most = self.most.max(value);
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    pub fn max(&self) -> u64 {
        self.most
    }

    pub fn mean(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum as f64 / self.count as f64 }
    }

    /// The value below which the part `q` of all values lies: the middle of its bucket, never outside of what was seen.
    /// 0 when nothing was.
    pub fn quantile(&self, q: f64) -> u64 {
        if self.count == 0 {
            return 0;
        }
        let rank = ((q.clamp(0.0, 1.0) * self.count as f64).ceil() as u64).clamp(1, self.count);
        let mut seen = 0;
        for (at, &n) in self.buckets.iter().enumerate() {
            seen += n;
            if seen >= rank {
                let (low, width) = bounds(at);
                return (low + width / 2).clamp(self.least, self.most);
            }
        }
        self.most
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn nothing_seen_is_zero() {
        let histogram = Histogram::default();
        assert_eq!((histogram.quantile(0.5), histogram.max(), histogram.count()), (0, 0, 0));
        assert_eq!(histogram.mean(), 0.0);
    }

    #[test]
    fn buckets_meet_without_gaps() {
        for at in 0..BUCKETS {
            let (low, width) = bounds(at);
            assert_eq!(index(low), at);
            assert_eq!(index(low + (width - 1)), at);
        }
        assert_eq!(index(u64::MAX), BUCKETS - 1);
    }

    proptest! {
        #[test]
        fn quantiles_are_near_the_exact_ones(mut values in proptest::collection::vec(0u64..1 << 40, 1..200), q in 0.0f64..1.0) {
            let mut histogram = Histogram::default();
            for &value in &values {
                histogram.record(value);
            }
            values.sort_unstable();
            let rank = ((q * values.len() as f64).ceil() as usize).clamp(1, values.len());
            let exact = values[rank - 1];
            let shown = histogram.quantile(q);
            prop_assert!(shown.abs_diff(exact) <= exact / 8, "{shown} for {exact}");
            prop_assert_eq!(histogram.max(), values[values.len() - 1]);
        }
    }
}
