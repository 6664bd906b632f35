//! Tests of the allocator over the CPU device, whose deferred streams show what was handed out too early.

mod behaviour;
mod budgets;
mod eviction;
mod faults;
mod grow;
mod guarantee;
mod journal;
mod model;
mod shortage;
mod threads;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::SmallVec;

use super::*;
use crate::command::{Command, HostFn, Work};
use crate::cpu::{CpuConfig, CpuDevice};
use crate::device::{DevPtr, SharedDevice};
use crate::lane::Lane;
use crate::stream::Stream;

pub(super) const MIB: usize = 1 << 20;

/// A device with streams, and what has really run on each of them.
pub(super) struct Rig {
    pub cpu: Arc<CpuDevice>,
    pub device: SharedDevice,
    pub arena: Arc<Arena>,
    pub streams: Vec<Arc<Stream>>,
    /// By stream id: the number of submissions that have run.
    pub done: Arc<Vec<AtomicU64>>,
}

pub(super) fn rig(mode: ArenaMode, total: usize, deferred: Option<u64>, streams: u32) -> Rig {
    let cpu = CpuDevice::new(CpuConfig { total_memory: Some(total), deferred, ..CpuConfig::default() });
    let device: SharedDevice = cpu.clone();
    Rig {
        arena: Arena::new(device.clone(), mode),
        streams: (0..streams).map(|id| Stream::new(&Lane::whole(&device), id, 0).unwrap()).collect(),
        done: Arc::new((0..streams).map(|_| AtomicU64::new(0)).collect()),
        cpu,
        device,
    }
}

impl Rig {
    /// Submit work that touches both ends of the storage, as a launch would.
    pub fn use_on(&self, storage: &Storage, stream: usize) -> u64 {
        let (ptr, bytes) = (storage.ptr(), storage.bytes());
        let seq = self.submit(stream, move || {
            touch(ptr);
            touch(ptr + bytes as u64 - 1);
        });
        storage.note_use(&self.streams[stream], seq);
        seq
    }

    pub fn submit(&self, stream: usize, function: impl Fn() + Send + Sync + 'static) -> u64 {
        let done = self.done.clone();
        let function: HostFn = Arc::new(move || {
            function();
            done[stream].fetch_add(1, Ordering::SeqCst);
            Ok(())
        });
        let work = Work::Host(function);
        let stream = &self.streams[stream];
        self.device.enqueue(stream.raw(), &work).unwrap();
        stream.note(&Command { work, uses: SmallVec::new(), cost_key: 0 }, None)
    }

    pub fn ran(&self, stream: usize) -> u64 {
        self.done[stream].load(Ordering::SeqCst)
    }

    pub fn finish(&self) {
        for stream in &self.streams {
            stream.synchronize(&mut || Ok(())).unwrap();
        }
    }

    /// Everything is back: run what is queued, and look at the device's own account.
    pub fn assert_nothing_left(self) {
        self.finish();
        self.arena.trim().unwrap();
        assert_eq!(self.arena.take_error().map(|error| error.to_string()), None);
        assert_eq!(self.arena.reserved(), 0);
        let usage = self.cpu.usage();
        assert_eq!((usage.created, usage.mapped, usage.plain), (0, 0, 0));
        drop(self.arena);
        assert_eq!(self.cpu.usage().reserved, 0, "addresses go back with the arena");
    }
}

/// Memory that was unmapped faults here.
pub(super) fn touch(ptr: DevPtr) {
    let byte = ptr as *mut u8;
    // SAFETY: the tests only touch blocks the pool says are mapped.
    unsafe { byte.write_volatile(byte.read_volatile().wrapping_add(1)) };
}
