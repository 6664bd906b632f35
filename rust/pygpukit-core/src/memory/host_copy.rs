//! `HostStore`: host memory that evicted segments move to, page-locked as far as its pool goes and plain beyond.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use crate::error::{Error, Result, human};
use crate::host::{PinnedBlock, PinnedPool};

/// Bytes of host memory behind segments, evicted ones and those that keep their copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostStats {
    pub pinned: usize,
    pub pageable: usize,
    pub pageable_limit: usize,
}

#[derive(Debug)]
pub(crate) struct HostStore {
    pool: OnceLock<Arc<PinnedPool>>,
    pinned: AtomicUsize,
    pageable: AtomicUsize,
    pageable_limit: AtomicUsize,
}

#[derive(Debug)]
enum Memory {
    Pinned(PinnedBlock),
    Pageable(Box<[u8]>),
}

/// Host memory of one segment.
#[derive(Debug)]
pub(crate) struct HostCopy {
    store: Arc<HostStore>,
    memory: Memory,
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

    pub fn set_pageable_limit(&self, bytes: usize) {
        self.pageable_limit.store(bytes, Ordering::Relaxed);
    }

    /// Memory for a copy of this size.
    pub fn take(self: &Arc<Self>, bytes: usize) -> Result<HostCopy> {
        if let Some(block) = self.pool.get().and_then(|pool| pool.take(bytes).ok()) {
            self.pinned.fetch_add(block.len(), Ordering::Relaxed);
            return Ok(HostCopy { store: self.clone(), memory: Memory::Pinned(block) });
        }
        let limit = self.pageable_limit.load(Ordering::Relaxed);
        let fits = |used: usize| used.checked_add(bytes).filter(|total| *total <= limit);
        if self.pageable.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok() {
            let mut room: Vec<u8> = Vec::new();
            if room.try_reserve_exact(bytes).is_ok() {
                room.resize(bytes, 0);
                return Ok(HostCopy { store: self.clone(), memory: Memory::Pageable(room.into_boxed_slice()) });
            }
            self.pageable.fetch_sub(bytes, Ordering::Relaxed);
        }
        let pinned = self.pool.get().map(|pool| pool.stats()).unwrap_or_default();
        Err(Error::Value(format!(
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
    pub fn address(&self) -> u64 {
        match &self.memory {
            Memory::Pinned(block) => block.ptr() as u64,
            Memory::Pageable(bytes) => bytes.as_ptr() as u64,
        }
    }
}

impl Drop for HostCopy {
    fn drop(&mut self) {
        match &self.memory {
            Memory::Pinned(block) => self.store.pinned.fetch_sub(block.len(), Ordering::Relaxed),
            Memory::Pageable(bytes) => self.store.pageable.fetch_sub(bytes.len(), Ordering::Relaxed),
        };
    }
}
