//! Device memory as host memory: reservations, physical handles, mappings, whole allocations, pinned memory.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{c_int, c_void};

use crate::api::{exports, get, put};
use crate::state::*;
use crate::stream::{Op, check_stream, enqueue};

pub(crate) const GRANULARITY: usize = 2 << 20;

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct AllocationProp {
    kind: u32,
    handle_types: u32,
    location_kind: u32,
    location_id: c_int,
    win32_meta: usize,
    flags: [u8; 8],
}

impl AllocationProp {
    /// The device asked for; only pinned device memory is offered.
    pub(crate) fn device(&self) -> Result<i32, i32> {
        if self.kind == 1 && self.handle_types <= 1 && self.location_kind == 1 {
            Ok(self.location_id)
        } else {
            Err(INVALID_VALUE)
        }
    }
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct AccessDesc {
    location_kind: u32,
    location_id: c_int,
    flags: u32,
}

struct Physical {
    bytes: usize,
    device: i32,
    mappings: usize,
    released: bool,
}

struct Mapping {
    bytes: usize,
    handle: u64,
    accessible: bool,
}

struct Plain {
    bytes: usize,
    device: i32,
}

#[derive(Default)]
pub(crate) struct Memory {
    reserved: BTreeMap<u64, usize>,
    physical: HashMap<u64, Physical>,
    mapped: BTreeMap<u64, Mapping>,
    plain: BTreeMap<u64, Plain>,
    pinned: BTreeMap<u64, usize>,
}

impl Memory {
    /// Bytes taken on a device.
    pub fn used(&self, device: i32) -> usize {
        let physical = self.physical.values().filter(|p| p.device == device).map(|p| p.bytes).sum::<usize>();
        physical + self.plain.values().filter(|p| p.device == device).map(|p| p.bytes).sum::<usize>()
    }

    /// May the device touch this range?
    pub fn reachable(&self, address: u64, bytes: usize) -> bool {
        let Some(end) = address.checked_add(bytes as u64) else { return false };
        let inside = |start: u64, size: usize| end <= start + size as u64;
        if self.plain.range(..=address).next_back().is_some_and(|(start, p)| inside(*start, p.bytes))
            || self.pinned.range(..=address).next_back().is_some_and(|(start, size)| inside(*start, *size))
        {
            return true;
        }
        // Neighbouring mappings may be used as one.
        let mut at = address;
        while at < end {
            match self.mapped.range(..=at).next_back() {
                Some((start, m)) if m.accessible && at < start + m.bytes as u64 => at = start + m.bytes as u64,
                _ => return false,
            }
        }
        bytes > 0
    }

    pub fn is_pinned(&self, address: u64, bytes: usize) -> bool {
        let found = self.pinned.range(..=address).next_back();
        found.is_some_and(|(start, size)| address + bytes as u64 <= start + *size as u64)
    }

    /// Starts of the mappings that together are exactly this range.
    fn whole_mappings(&self, address: u64, bytes: usize) -> Result<Vec<u64>, i32> {
        let end = address.checked_add(bytes as u64).ok_or(INVALID_VALUE)?;
        let mut at = address;
        let mut starts = Vec::new();
        while at < end {
            starts.push(at);
            at += self.mapped.get(&at).ok_or(INVALID_VALUE)?.bytes as u64;
        }
        if at == end && !starts.is_empty() { Ok(starts) } else { Err(INVALID_VALUE) }
    }

    fn forget_if_unused(&mut self, handle: u64) {
        if self.physical.get(&handle).is_some_and(|p| p.released && p.mappings == 0) {
            self.physical.remove(&handle);
        }
    }

    /// A whole allocation on the current device, zeroed.
    pub fn plain(&mut self, bytes: usize) -> Result<u64, i32> {
        let start = map_pages(bytes, libc::PROT_READ | libc::PROT_WRITE)?;
        self.plain.insert(start, Plain { bytes, device: current_device()? });
        Ok(start)
    }

    /// Give back a whole allocation.
    pub fn free_plain(&mut self, address: u64) {
        if let Some(plain) = self.plain.remove(&address) {
            unmap_pages(address, plain.bytes);
        }
    }
}

fn map_pages(bytes: usize, protection: c_int) -> Result<u64, i32> {
    // SAFETY: a new private anonymous mapping; nothing existing is touched.
    let pointer = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            protection,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if pointer == libc::MAP_FAILED { Err(OUT_OF_MEMORY) } else { Ok(pointer as u64) }
}

fn unmap_pages(address: u64, bytes: usize) {
    // SAFETY: only ranges from map_pages come here, once.
    unsafe { libc::munmap(address as *mut c_void, bytes) };
}

fn protect(address: u64, bytes: usize, protection: c_int) -> Outcome {
    // SAFETY: the range lies in a reservation of ours.
    let failed = unsafe { libc::mprotect(address as *mut c_void, bytes, protection) };
    if failed == 0 { Ok(()) } else { Err(OUT_OF_MEMORY) }
}

/// Reserve a range that starts at a multiple of the granularity.
fn reserve_aligned(bytes: usize) -> Result<u64, i32> {
    let start = map_pages(bytes.checked_add(GRANULARITY).ok_or(OUT_OF_MEMORY)?, libc::PROT_NONE)?;
    let aligned = start.next_multiple_of(GRANULARITY as u64);
    let before = (aligned - start) as usize;
    if before > 0 {
        unmap_pages(start, before);
    }
    if GRANULARITY > before {
        unmap_pages(aligned + bytes as u64, GRANULARITY - before);
    }
    Ok(aligned)
}

fn granular(bytes: usize) -> Result<(), i32> {
    if bytes > 0 && bytes.is_multiple_of(GRANULARITY) { Ok(()) } else { Err(INVALID_VALUE) }
}

fn check_room(state: &State, device: i32, bytes: usize) -> Result<(), i32> {
    let used = state.memory.used(device);
    match used.checked_add(bytes) {
        Some(total) if total <= state.config.memory => Ok(()),
        _ => Err(OUT_OF_MEMORY),
    }
}

exports! {
    needs Context fn cuMemAddressReserve(state; address: *mut u64, bytes: usize, _alignment: usize, _hint: u64, flags: u64) {
        granular(bytes)?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        let start = reserve_aligned(bytes)?;
        state.memory.reserved.insert(start, bytes);
        put(address, start)
    }

    needs Context fn cuMemAddressFree(state; address: u64, bytes: usize) {
        let memory = &mut state.memory;
        let inside = memory.mapped.range(address..address.saturating_add(bytes as u64)).next().is_some();
        if memory.reserved.get(&address) != Some(&bytes) || inside {
            return Err(INVALID_VALUE);
        }
        memory.reserved.remove(&address);
        unmap_pages(address, bytes);
        Ok(())
    }

    needs Context fn cuMemCreate(state; handle: *mut u64, bytes: usize, prop: *const AllocationProp, _flags: u64) {
        granular(bytes)?;
        let device = get(prop)?.device()?;
        if !(0..state.config.devices).contains(&device) {
            return Err(INVALID_DEVICE);
        }
        check_room(state, device, bytes)?;
        let made = state.handle() as u64;
        state.memory.physical.insert(made, Physical { bytes, device, mappings: 0, released: false });
        put(handle, made)
    }

    needs Context fn cuMemRelease(state; handle: u64) {
        match state.memory.physical.get_mut(&handle) {
            Some(physical) if !physical.released => physical.released = true,
            _ => return Err(INVALID_VALUE),
        }
        state.memory.forget_if_unused(handle);
        Ok(())
    }

    needs Context fn cuMemMap(state; address: u64, bytes: usize, offset: usize, handle: u64, flags: u64) {
        granular(bytes)?;
        let memory = &mut state.memory;
        let end = address.checked_add(bytes as u64).ok_or(INVALID_VALUE)?;
        let reserved = memory.reserved.range(..=address).next_back();
        let inside = reserved.is_some_and(|(start, size)| end <= start + *size as u64);
        let before = memory.mapped.range(..end).next_back();
        let overlaps = before.is_some_and(|(start, m)| start + m.bytes as u64 > address);
        let aligned = address.is_multiple_of(GRANULARITY as u64);
        if !inside || overlaps || !aligned || offset != 0 || flags != 0 {
            return Err(INVALID_VALUE);
        }
        match memory.physical.get_mut(&handle) {
            // Handles are mapped whole.
            Some(physical) if !physical.released && physical.bytes == bytes => physical.mappings += 1,
            _ => return Err(INVALID_VALUE),
        }
        memory.mapped.insert(address, Mapping { bytes, handle, accessible: false });
        Ok(())
    }

    needs Context fn cuMemSetAccess(state; address: u64, bytes: usize, access: *const AccessDesc, count: usize) {
        let access = get(access)?;
        if count != 1 || access.location_kind != 1 || access.flags != 3 || access.location_id >= state.config.devices {
            return Err(INVALID_VALUE);
        }
        for start in state.memory.whole_mappings(address, bytes)? {
            if let Some(mapping) = state.memory.mapped.get_mut(&start) {
                protect(start, mapping.bytes, libc::PROT_READ | libc::PROT_WRITE)?;
                mapping.accessible = true;
            }
        }
        Ok(())
    }

    needs Context fn cuMemUnmap(state; address: u64, bytes: usize) {
        for start in state.memory.whole_mappings(address, bytes)? {
            let Some(mapping) = state.memory.mapped.remove(&start) else { continue };
            // SAFETY: the pages are ours; their contents end with the mapping.
            unsafe { libc::madvise(start as *mut c_void, mapping.bytes, libc::MADV_DONTNEED) };
            protect(start, mapping.bytes, libc::PROT_NONE)?;
            if let Some(physical) = state.memory.physical.get_mut(&mapping.handle) {
                physical.mappings -= 1;
            }
            state.memory.forget_if_unused(mapping.handle);
        }
        Ok(())
    }

    needs Context fn cuMemAllocAsync(state; address: *mut u64, bytes: usize, stream: usize) {
        check_stream(state, stream)?;
        if bytes == 0 {
            return Err(INVALID_VALUE);
        }
        check_room(state, current_device()?, bytes)?;
        put(address, state.memory.plain(bytes)?)
    }

    needs Context fn cuMemFreeAsync(state; address: u64, stream: usize) {
        if !state.memory.plain.contains_key(&address) {
            return Err(INVALID_VALUE);
        }
        enqueue(state, stream, Op::FreePlain(address))
    }

    needs Context fn cuMemHostAlloc(state; address: *mut u64, bytes: usize, _flags: u32) {
        if bytes == 0 {
            return Err(INVALID_VALUE);
        }
        let start = map_pages(bytes, libc::PROT_READ | libc::PROT_WRITE)?;
        state.memory.pinned.insert(start, bytes);
        put(address, start)
    }

    needs Context fn cuMemFreeHost(state; address: u64) {
        let bytes = state.memory.pinned.remove(&address).ok_or(INVALID_VALUE)?;
        unmap_pages(address, bytes);
        Ok(())
    }
}
