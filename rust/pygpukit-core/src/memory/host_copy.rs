//! `HostStore`: host memory that evicted segments move to, page-locked as far as its pool goes and plain beyond.
//!
//! Page-locked memory comes in pieces of few sizes, as the device's does, so that what one segment leaves serves the
//! next, and memory that was locked ahead of need serves all.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;

use super::pieces;
use crate::error::{Error, Result, human};
use crate::host::{PinnedBlock, PinnedPool};
use crate::stream::Stream;

/// The smallest piece.
const GRANULE: usize = 2 << 20;

const UNLIMITED: usize = usize::MAX;

/// Bytes of host memory behind segments, evicted ones and those that keep their copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostStats {
    pub pinned: usize,
    pub pageable: usize,
    pub pageable_limit: usize,
}

/// What a pool's segments, and those of the pools below it, may use of the host.
#[derive(Debug)]
pub(crate) struct HostBudget {
    name: String,
    parent: Option<Arc<HostBudget>>,
    limit: AtomicUsize,
    used: AtomicUsize,
}

impl HostBudget {
    pub fn new(name: &str, limit: Option<usize>, parent: Option<Arc<HostBudget>>) -> Arc<HostBudget> {
        let limit = AtomicUsize::new(limit.unwrap_or(UNLIMITED));
        Arc::new(HostBudget { name: name.to_string(), parent, limit, used: AtomicUsize::new(0) })
    }

    pub fn limit(&self) -> Option<usize> {
        Some(self.limit.load(Ordering::Relaxed)).filter(|limit| *limit != UNLIMITED)
    }

    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    fn charge(&self, bytes: usize) -> Result<()> {
        let limit = self.limit.load(Ordering::Relaxed);
        let fits = |used: usize| used.checked_add(bytes).filter(|total| *total <= limit);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).map_err(|used| {
            Error::HostMemory(format!(
                "no host memory for an evicted array of {}: pool '{}' uses {} of its host quota of {}. Raise host_quota, or \
                 drop arrays",
                human(bytes),
                self.name,
                human(used),
                human(limit)
            ))
        })?;
        if let Some(parent) = &self.parent
            && let Err(error) = parent.charge(bytes)
        {
            self.used.fetch_sub(bytes, Ordering::Relaxed);
            return Err(error);
        }
        Ok(())
    }

    fn uncharge(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
        if let Some(parent) = &self.parent {
            parent.uncharge(bytes);
        }
    }
}

/// A charge that is given back when dropped.
#[derive(Debug)]
struct Charge {
    budget: Arc<HostBudget>,
    bytes: usize,
}

impl Charge {
    fn new(budget: &Arc<HostBudget>, bytes: usize) -> Result<Charge> {
        budget.charge(bytes)?;
        Ok(Charge { budget: budget.clone(), bytes })
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.uncharge(self.bytes);
    }
}

#[derive(Debug)]
pub(crate) struct HostStore {
    pool: OnceLock<Arc<PinnedPool>>,
    pinned: AtomicUsize,
    pageable: AtomicUsize,
    pageable_limit: AtomicUsize,
}

#[derive(Debug)]
pub(crate) enum Memory {
    Pinned(SmallVec<[PinnedBlock; 2]>),
    Pageable(Box<[u8]>),
}

/// Host memory of one segment.
#[derive(Debug)]
pub(crate) struct HostCopy {
    store: Arc<HostStore>,
    memory: Memory,
    charge: Charge,
}

impl HostStore {
    pub fn new(pageable_limit: usize) -> Arc<HostStore> {
        Arc::new(HostStore {
            pool: OnceLock::new(),
            pinned: AtomicUsize::new(0),
            pageable: AtomicUsize::new(0),
            pageable_limit: AtomicUsize::new(pageable_limit),
        })
    }

    /// Where page-locked memory comes from.
    pub fn set_pool(&self, pool: &Arc<PinnedPool>) {
        let _ = self.pool.set(pool.clone());
    }

    pub fn pool(&self) -> Option<&Arc<PinnedPool>> {
        self.pool.get()
    }

    pub fn set_pageable_limit(&self, bytes: usize) {
        self.pageable_limit.store(bytes, Ordering::Relaxed);
    }

    /// Page-locked memory for a copy of this size; None when the pool has no more. Fails only where the budget does.
    pub fn take_pinned(self: &Arc<Self>, bytes: usize, budget: &Arc<HostBudget>) -> Result<Option<HostCopy>> {
        let charge = Charge::new(budget, bytes)?;
        let Some(pool) = self.pool.get() else { return Ok(None) };
        let mut blocks = SmallVec::new();
        for size in pieces::sizes(bytes, GRANULE) {
            match pool.take(size) {
                Ok(block) => blocks.push(block),
                Err(_) => return Ok(None),
            }
        }
        self.pinned.fetch_add(bytes, Ordering::Relaxed);
        Ok(Some(HostCopy { store: self.clone(), memory: Memory::Pinned(blocks), charge }))
    }

    /// Other memory for a copy of this size.
    pub fn take_pageable(self: &Arc<Self>, bytes: usize, budget: &Arc<HostBudget>) -> Result<HostCopy> {
        let charge = Charge::new(budget, bytes)?;
        let limit = self.pageable_limit.load(Ordering::Relaxed);
        let fits = |used: usize| used.checked_add(bytes).filter(|total| *total <= limit);
        if self.pageable.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok() {
            let mut room: Vec<u8> = Vec::new();
            if room.try_reserve_exact(bytes).is_ok() {
                room.resize(bytes, 0);
                let memory = Memory::Pageable(room.into_boxed_slice());
                return Ok(HostCopy { store: self.clone(), memory, charge });
            }
            self.pageable.fetch_sub(bytes, Ordering::Relaxed);
        }
        let pinned = self.pool.get().map(|pool| pool.stats()).unwrap_or_default();
        Err(Error::HostMemory(format!(
            "no host memory for an evicted array of {}: {} of {} page-locked and {} of {} other bytes are in use. Raise \
             PYGPUKIT_PINNED_LIMIT or PYGPUKIT_SPILL_LIMIT, or drop arrays",
            human(bytes),
            human(pinned.used),
            human(pinned.limit),
            human(self.pageable.load(Ordering::Relaxed)),
            human(limit),
        )))
    }

    pub fn stats(&self) -> HostStats {
        HostStats {
            pinned: self.pinned.load(Ordering::Relaxed),
            pageable: self.pageable.load(Ordering::Relaxed),
            pageable_limit: self.pageable_limit.load(Ordering::Relaxed),
        }
    }
}

impl HostCopy {
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    pub fn bytes(&self) -> usize {
        self.charge.bytes
    }

    /// Does it wait for copies from and to it when it is dropped?
    pub fn is_ordered(&self) -> bool {
        matches!(self.memory, Memory::Pinned(_))
    }

    /// A copy with number `seq` on `stream` reads or writes it.
    pub fn note_use(&self, stream: &Arc<Stream>, seq: u64) {
        if let Memory::Pinned(blocks) = &self.memory {
            blocks.iter().for_each(|block| block.note_use(stream, seq));
        }
    }
}

impl Drop for HostCopy {
    fn drop(&mut self) {
        let used = match &self.memory {
            Memory::Pinned(_) => &self.store.pinned,
            Memory::Pageable(_) => &self.store.pageable,
        };
        used.fetch_sub(self.charge.bytes, Ordering::Relaxed);
    }
}
