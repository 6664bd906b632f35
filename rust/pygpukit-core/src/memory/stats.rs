//! What a pool tells about itself.

/// A pool's numbers at one moment. `used`, `peak` and `available` count the pools below it too, as its quota does;
/// the rest is the pool's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Bytes handed out, rounded to their size class.
    pub used: usize,
    pub peak: usize,
    /// Bytes the pool holds and could hand out without asking the device.
    pub cached: usize,
    /// Bytes the pool has from the device.
    pub reserved: usize,
    pub quota: Option<usize>,
    /// Bytes held for the pool and those below it, and those of them not in use.
    pub guarantee: usize,
    pub held: usize,
    /// Bytes of the pool's arrays that are on the host.
    pub evicted: usize,
    /// Bytes of host memory behind the arrays of the pool and those below it.
    pub host: usize,
    /// Bytes that may still be handed out: what all quotas above leave, and what the device and the cache have.
    pub available: usize,
    /// Requests served from memory the pool already held.
    pub hits: u64,
    /// Requests that had to ask the device.
    pub misses: u64,
    pub allocations: u64,
    pub frees: u64,
    /// Blocks handed out and not given back.
    pub live: u64,
}

impl PoolStats {
    /// Share of the requests that needed nothing from the device; 0 before the first.
    pub fn hit_rate(&self) -> f64 {
        if self.allocations == 0 { 0.0 } else { self.hits as f64 / self.allocations as f64 }
    }
}
