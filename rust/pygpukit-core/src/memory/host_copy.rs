//! `HostStore`: host memory that evicted segments move to, page-locked as far as its limit goes and plain beyond.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::device::SharedDevice;
use crate::error::{Error, Result, human};

/// Bytes of one kind, in use and allowed.
#[derive(Debug)]
struct Budget {
    used: AtomicUsize,
    limit: AtomicUsize,
}

impl Budget {
    fn new(limit: usize) -> Budget {
        Budget { used: AtomicUsize::new(0), limit: AtomicUsize::new(limit) }
    }

    fn take(&self, bytes: usize) -> bool {
        let limit = self.limit.load(Ordering::Relaxed);
        let fits = |used: usize| used.checked_add(bytes).filter(|total| *total <= limit);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }

    fn give_back(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }
}

/// Bytes of host memory behind evicted segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostStats {
    pub pinned: usize,
    /// Page-locked bytes kept for the next eviction.
    pub pinned_cached: usize,
    pub pinned_limit: usize,
    pub pageable: usize,
    pub pageable_limit: usize,
}

#[derive(Debug)]
pub(crate) struct HostStore {
    device: SharedDevice,
    /// Page-locked blocks nobody uses, smallest first.
    free: Mutex<Vec<(usize, usize)>>,
    pinned: Budget,
    pageable: Budget,
}

#[derive(Debug)]
enum Memory {
    /// Address of a page-locked block.
    Pinned(usize),
    Pageable(Box<[u8]>),
}

/// Host memory of one segment.
#[derive(Debug)]
pub(crate) struct HostCopy {
    store: Arc<HostStore>,
    memory: Memory,
    bytes: usize,
}

impl HostStore {
    pub fn new(device: &SharedDevice, pinned_limit: usize, pageable_limit: usize) -> Arc<HostStore> {
        Arc::new(HostStore {
            device: device.clone(),
            free: Mutex::default(),
            pinned: Budget::new(pinned_limit),
            pageable: Budget::new(pageable_limit),
        })
    }

    pub fn set_limits(&self, pinned: usize, pageable: usize) {
        self.pinned.limit.store(pinned, Ordering::Relaxed);
        self.pageable.limit.store(pageable, Ordering::Relaxed);
    }

    /// Memory for a copy of this size.
    pub fn take(self: &Arc<Self>, bytes: usize) -> Result<HostCopy> {
        let copy = |memory, bytes| HostCopy { store: self.clone(), memory, bytes };
        {
            let mut free = self.free.lock();
            let at = free.partition_point(|(size, _)| *size < bytes);
            if free.get(at).is_some_and(|(size, _)| *size <= bytes + bytes / 4) {
                let (size, address) = free.remove(at);
                return Ok(copy(Memory::Pinned(address), size));
            }
        }
        if self.pinned.take(bytes) {
            match self.device.host_alloc(bytes) {
                Ok(ptr) => return Ok(copy(Memory::Pinned(ptr as usize), bytes)),
                Err(_) => self.pinned.give_back(bytes),
            }
        }
        if self.pageable.take(bytes) {
            let mut room: Vec<u8> = Vec::new();
            if room.try_reserve_exact(bytes).is_ok() {
                room.resize(bytes, 0);
                return Ok(copy(Memory::Pageable(room.into_boxed_slice()), bytes));
            }
            self.pageable.give_back(bytes);
        }
        Err(Error::Value(format!(
            "no host memory for an evicted array of {}: {} of {} page-locked and {} of {} other bytes are in use",
            human(bytes),
            human(self.pinned.used()),
            human(self.pinned.limit.load(Ordering::Relaxed)),
            human(self.pageable.used()),
            human(self.pageable.limit.load(Ordering::Relaxed)),
        )))
    }

    /// Page-lock memory now rather than during the first evictions.
    pub fn prepare(self: &Arc<Self>, bytes: usize, count: usize) -> Result<()> {
        let copies: Result<Vec<HostCopy>> = (0..count).map(|_| self.take(bytes)).collect();
        copies.map(drop)
    }

    pub fn stats(&self) -> HostStats {
        let cached: usize = self.free.lock().iter().map(|(size, _)| size).sum();
        HostStats {
            pinned: self.pinned.used() - cached,
            pinned_cached: cached,
            pinned_limit: self.pinned.limit.load(Ordering::Relaxed),
            pageable: self.pageable.used(),
            pageable_limit: self.pageable.limit.load(Ordering::Relaxed),
        }
    }

    /// Give page-locked memory back that holds nothing.
    pub fn trim(&self) -> Result<()> {
        for (bytes, address) in std::mem::take(&mut *self.free.lock()) {
            self.pinned.give_back(bytes);
            self.device.host_free(address as *mut u8, bytes)?;
        }
        Ok(())
    }
}

impl HostCopy {
    pub fn address(&self) -> u64 {
        match &self.memory {
            Memory::Pinned(address) => *address as u64,
            Memory::Pageable(bytes) => bytes.as_ptr() as u64,
        }
    }

    pub fn is_pinned(&self) -> bool {
        matches!(self.memory, Memory::Pinned(_))
    }
}

impl Drop for HostCopy {
    fn drop(&mut self) {
        match &self.memory {
            Memory::Pinned(address) => {
                let mut free = self.store.free.lock();
                let at = free.partition_point(|(size, _)| *size < self.bytes);
                free.insert(at, (self.bytes, *address));
            }
            Memory::Pageable(_) => self.store.pageable.give_back(self.bytes),
        }
    }
}
