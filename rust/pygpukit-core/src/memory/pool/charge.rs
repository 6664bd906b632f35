//! What a pool counts: bytes handed out against quotas, and what its guarantee covers.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::MutexGuard;

use super::Pool;
use crate::error::Result;
use crate::memory::account::Account;
use crate::memory::stock::Stock;

impl Pool {
    /// Count bytes here and in every pool above, or name the pool that is closed or whose quota has no room. The
    /// cache's lock is held.
    #[inline]
    pub(super) fn charge(&self, bytes: usize) -> std::result::Result<(), &Pool> {
        self.charge_for(bytes, false)
    }

    /// With `back`, for memory that was handed out before: a closed pool takes it too.
    #[inline]
    pub(super) fn charge_for(&self, bytes: usize, back: bool) -> std::result::Result<(), &Pool> {
        self.charge_with(bytes, back, Account::add_own, Account::subtract_own)
    }

    pub(super) fn charge_below(&self, bytes: usize, back: bool) -> std::result::Result<(), &Pool> {
        self.charge_with(bytes, back, Account::add_below, Account::subtract_below)
    }

    #[inline]
    fn charge_with(
        &self,
        bytes: usize,
        back: bool,
        add: impl Fn(&Account, usize) -> bool,
        subtract: impl Fn(&Account, usize),
    ) -> std::result::Result<(), &Pool> {
        let exact = self.exactly();
        let before = if exact.is_some() { self.account.used() } else { 0 };
        if (self.is_closed() && !back) || (bytes > 0 && !add(&self.account, bytes)) {
            return Err(self);
        }
        if let Some(parent) = &self.parent
            && let Err(refusing) = parent.charge_below(self.above_guarantee(before, bytes), back)
        {
            subtract(&self.account, bytes);
            return Err(refusing);
        }
        self.account.raise_peak();
        Ok(())
    }

    /// The cache's lock is held.
    #[inline]
    pub(super) fn uncharge(&self, bytes: usize) {
        self.uncharge_with(bytes, Account::subtract_own);
    }

    pub(super) fn uncharge_below(&self, bytes: usize) {
        self.uncharge_with(bytes, Account::subtract_below);
    }

    #[inline]
    fn uncharge_with(&self, bytes: usize, subtract: impl Fn(&Account, usize)) {
        let exact = self.exactly();
        subtract(&self.account, bytes);
        if let Some(parent) = &self.parent {
            let after = if exact.is_some() { self.account.used() } else { 0 };
            parent.uncharge_below(self.above_guarantee(after, bytes));
        }
    }

    #[inline]
    fn exactly(&self) -> Option<MutexGuard<'_, ()>> {
        (self.guarantee() > 0).then(|| self.exact.lock())
    }

    /// Of `bytes` more than `used`, those that the guarantee does not cover.
    #[inline]
    fn above_guarantee(&self, used: usize, bytes: usize) -> usize {
        bytes.min((used + bytes).saturating_sub(self.guarantee()))
    }

    /// Evict until the quota has room for this much, for a pool that it has refused. False, with nothing moved, when it
    /// could not have it even if it were empty.
    pub(super) fn make_room(
        &self,
        bytes: usize,
        requester: u32,
        check: &mut dyn FnMut() -> Result<()>,
    ) -> Result<bool> {
        Ok(self.could_hold(bytes) && self.arena.make_room(Some(self), bytes, requester, check)?)
    }

    pub(crate) fn could_hold(&self, bytes: usize) -> bool {
        self.quota().is_none_or(|quota| bytes <= quota)
    }

    /// Does the pool's own quota leave this much?
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        self.account.room() >= bytes
    }

    /// What the quotas from here to the root leave.
    pub(super) fn quota_room(&self) -> usize {
        let own = self.account.room();
        self.parent.as_ref().map_or(own, |parent| own.min(parent.quota_room()))
    }

    /// Hold no more than what is in use.
    pub(super) fn end_guarantee(&self) {
        if let Some(stock) = self.own_stock() {
            self.arena.dissolve(stock);
        }
        let Some(_exact) = self.exactly() else { return };
        let unused = self.guarantee.swap(0, Ordering::Relaxed).saturating_sub(self.account.used());
        if let Some(parent) = &self.parent {
            parent.uncharge_below(unused);
        }
    }

    /// What it holds by its guarantee and does not use, for reports.
    pub(crate) fn held_unused(&self) -> Option<(usize, String)> {
        let unused = self.own_stock().map_or(0, |stock| stock.unused());
        (unused > 0).then(|| (unused, format!("held by the guarantee of pool '{}'", self.name)))
    }

    pub(crate) fn own_stock(&self) -> Option<&Arc<Stock>> {
        self.stock.as_ref().filter(|_| self.guarantee() > 0)
    }

    /// The outermost pool from here to the root whose arrays have a host quota.
    pub(crate) fn host_bound(&self) -> Option<&Pool> {
        let above = self.parent.as_ref().and_then(|parent| parent.host_bound());
        above.or_else(|| self.host_quota().map(|_| self))
    }
}
