//! `Claim`: a guarantee that waits for memory. Others take no more meanwhile, so that what they give back is enough one day.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::arena::Arena;
use super::pool::Pool;
use crate::error::{Error, Result, human};

/// Lasts until it is dropped.
#[derive(Debug)]
pub struct Claim(Arc<Arena>);

impl Claim {
    pub fn new(arena: &Arc<Arena>) -> Claim {
        arena.claims.fetch_add(1, Ordering::Relaxed);
        Claim(arena.clone())
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.0.claims.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Pool {
    /// Refuse memory that was promised to nobody while a promise waits for some.
    #[inline]
    pub(super) fn heed_claims(&self, bytes: usize) -> Result<()> {
        if self.arena().claims.load(Ordering::Relaxed) == 0 || !self.is_evicting() || self.is_promised(bytes) {
            return Ok(());
        }
        Err(Error::HostMemory(format!(
            "no memory for an array of {}: a task that was promised memory waits for its start, and the arrays in its way \
             cannot move, because host memory for evicted arrays is used up. Drop arrays, or raise \
             PYGPUKIT_PINNED_LIMIT or PYGPUKIT_SPILL_LIMIT",
            human(bytes)
        )))
    }

    /// Do these bytes more lie within a guarantee, the pool's own or that of a pool around?
    fn is_promised(&self, bytes: usize) -> bool {
        let mut around = std::iter::successors(Some(self), |pool| pool.parent().map(|parent| &**parent));
        around.any(|pool| pool.used().saturating_add(bytes) <= pool.guarantee())
    }
}
