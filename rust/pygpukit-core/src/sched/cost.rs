//! What work costs: device time predicted from what was measured before.
//!
//! Only batches are measured, because a mark per kernel would cost more than small kernels do. A batch of one kind of
//! work tells its cost directly; a mixed one corrects all its kinds by the same factor.

use std::collections::HashMap;

use smallvec::SmallVec;

/// Weight of a new measurement.
const BLEND: f64 = 0.25;

/// Kinds of work remembered; past that the table starts anew.
const KINDS: usize = 16_384;

/// Work of one batch: its kind, and how often.
pub type Batch = SmallVec<[(u64, u32); 8]>;

/// Count one more piece of work of a kind.
#[inline]
pub fn count(batch: &mut Batch, kind: u64) {
    match batch.iter_mut().rev().find(|(known, _)| *known == kind) {
        Some((_, times)) => *times += 1,
        None => batch.push((kind, 1)),
    }
}

#[derive(Debug, Default)]
pub struct Costs {
    by_kind: HashMap<u64, f64>,
}

impl Costs {
    /// Nanoseconds, or None for work never measured.
    #[inline]
    pub fn predict(&self, kind: u64) -> Option<i64> {
        self.by_kind.get(&kind).map(|ns| *ns as i64)
    }

    /// Assume a cost until one is measured.
    pub fn suppose(&mut self, kind: u64, ns: i64) {
        self.by_kind.entry(kind).or_insert(ns as f64);
    }

    pub fn forget(&mut self, kind: u64) {
        self.by_kind.remove(&kind);
    }

    /// A batch took that long.
    pub fn learn(&mut self, batch: &Batch, measured_ns: i64) {
        let measured = measured_ns.max(1) as f64;
        if self.by_kind.len() >= KINDS {
            self.by_kind.clear();
        }
        if let [(kind, times)] = batch[..] {
            let each = measured / f64::from(times.max(1));
            self.by_kind.entry(kind).and_modify(|ns| *ns += (each - *ns) * BLEND).or_insert(each);
            return;
        }
        let known = |(kind, times): &(u64, u32)| self.by_kind.get(kind).map(|ns| ns * f64::from(*times));
        let predicted: f64 = batch.iter().filter_map(known).sum();
        if predicted <= 0.0 {
            return;
        }
        let factor = 1.0 + (measured / predicted - 1.0).clamp(-0.9, 9.0) * BLEND;
        for (kind, _) in batch {
            if let Some(ns) = self.by_kind.get_mut(kind) {
                *ns = (*ns * factor).max(1.0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_kind_is_learned_directly_and_smoothed() {
        let mut costs = Costs::default();
        assert_eq!(costs.predict(1), None);
        costs.learn(&Batch::from_slice(&[(1, 4)]), 400);
        assert_eq!(costs.predict(1), Some(100));
        costs.learn(&Batch::from_slice(&[(1, 1)]), 200);
        assert_eq!(costs.predict(1), Some(125));
    }

    #[test]
    fn a_mixed_batch_moves_all_its_kinds_towards_the_measurement() {
        let mut costs = Costs::default();
        costs.learn(&Batch::from_slice(&[(1, 1)]), 100);
        costs.learn(&Batch::from_slice(&[(2, 1)]), 300);
        for _ in 0..50 {
            costs.learn(&Batch::from_slice(&[(1, 1), (2, 1)]), 800);
        }
        let (one, two) = (costs.predict(1).unwrap(), costs.predict(2).unwrap());
        assert!((790..=810).contains(&(one + two)), "{one} + {two}");
        assert!((2.9..3.1).contains(&(two as f64 / one as f64)));
    }

    #[test]
    fn work_is_counted_by_kind() {
        let mut batch = Batch::new();
        for kind in [1, 2, 1, 1, 3] {
            count(&mut batch, kind);
        }
        assert_eq!(batch[..], [(1, 3), (2, 1), (3, 1)]);
    }
}
