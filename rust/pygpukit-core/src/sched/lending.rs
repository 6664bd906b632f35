//! Lending: turns on a wider lane, while the tenants of the lanes it covers are idle.

use std::sync::Arc;

use parking_lot::MutexGuard;
use smallvec::SmallVec;

use crate::error::Result;
use crate::lane::Lane;

use super::gate::{Gate, Inner, Marks};
use super::lease::{Lease, Own};

/// A lane is lent when its tenant has been idle for this long, and a turn on it is this short.
const LEND_AFTER_NS: u64 = 1_000_000;
pub(super) const LENT_NS: i64 = 250_000;

/// A wider lane for turns that begin while its owners are idle.
pub(super) struct Wide {
    lane: Arc<Lane>,
    owners: Vec<Arc<Gate>>,
}

impl Gate {
    /// Let turns use a wider lane while the tenants of these gates, whose lanes it covers, are idle.
    pub fn set_wide(self: &Arc<Self>, lane: &Arc<Lane>, owners: Vec<Arc<Gate>>) {
        for owner in &owners {
            *owner.borrower.lock() = Arc::downgrade(self);
        }
        let mut inner = self.inner.lock();
        if inner.is_wide() {
            inner.close();
        }
        inner.wide = (!owners.is_empty()).then(|| Wide { lane: lane.clone(), owners });
    }

    /// Lend the lanes of these gates, if the tenants of all of them have been idle for a while: the next submission of
    /// each takes its own back.
    fn lend(owners: &[Arc<Gate>], now: u64) -> bool {
        let mut gates: SmallVec<[MutexGuard<'_, Inner>; 8]> = SmallVec::new();
        for owner in owners {
            // A tenant may be taking its lane back, and wait for us: then it is not idle.
            match owner.inner.try_lock() {
                Some(inner) if !inner.closing => gates.push(inner),
                _ => return false,
            }
        }
        // Nobody submits between the question and the mark, and nobody is marked for nothing.
        let leases = gates.iter().flat_map(|inner| inner.seats.iter().flatten());
        let mut owns: SmallVec<[MutexGuard<'_, Own>; 8]> = leases.map(|lease| lease.own()).collect();
        let lent = owns.iter().all(|own| now > own.busy_until + LEND_AFTER_NS && !own.held.any());
        if lent {
            owns.iter_mut().for_each(|own| own.lent = true);
        }
        lent
    }

    /// Take a lent lane back: the borrower's turn ends. None: somebody is still inside of it.
    pub(super) fn take_back(&self) -> Result<Option<Marks>> {
        let Some(borrower) = self.borrower.lock().upgrade() else { return Ok(Some(Marks::new())) };
        let mut inner = borrower.inner.lock();
        if inner.is_wide() {
            inner.close();
            if !inner.settle(&borrower)? {
                return Ok(None);
            }
            inner.wake_next();
        }
        Ok(Some(inner.last_wide.clone()))
    }
}

impl Inner {
    pub(super) fn is_wide(&self) -> bool {
        self.lane.id() != self.base.id()
    }

    /// The lane a tenant's turn that begins now is on.
    pub(super) fn lane_now(&self, lease: &Lease, now: u64) -> Arc<Lane> {
        match &self.wide {
            Some(_) if lease.own().is_slow_to_leave() => self.base.clone(),
            Some(wide) if Gate::lend(&wide.owners, now) => wide.lane.clone(),
            _ => self.base.clone(),
        }
    }
}
