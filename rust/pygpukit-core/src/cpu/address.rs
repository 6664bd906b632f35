//! The CPU device's memory: reserved addresses, pages behind them, and an account of both.
//!
//! Pages come and go with the protection of their addresses, so a stray access to memory that was unmapped faults
//! as it would on a GPU. The account refuses what a driver would refuse: overlap, unknown handles, wrong sizes.

use std::alloc::{Layout, alloc, dealloc};
use std::collections::{BTreeMap, HashMap};

use parking_lot::Mutex;

use super::{CpuUsage, code, failure};
use crate::device::{DevPtr, PhysHandle};
use crate::error::{Result, human};

/// Granularity of reservations and mappings; None where addresses cannot be reserved.
pub(crate) const GRANULARITY: Option<usize> = if cfg!(unix) { Some(GRANULE) } else { None };
const GRANULE: usize = 2 << 20;

/// Alignment of plain allocations, the same as CUDA's.
const PLAIN_ALIGN: usize = 256;

#[derive(Debug, Default)]
struct Account {
    reservations: BTreeMap<DevPtr, usize>,
    handles: HashMap<usize, Handle>,
    next_handle: usize,
    mappings: BTreeMap<DevPtr, (usize, PhysHandle)>,
    plain: BTreeMap<DevPtr, Layout>,
    used: usize,
}

#[derive(Debug)]
struct Handle {
    bytes: usize,
    mapped: bool,
}

#[derive(Debug)]
pub(crate) struct AddressSpace {
    total: usize,
    account: Mutex<Account>,
}

impl AddressSpace {
    pub fn new(total: usize) -> AddressSpace {
        AddressSpace { total, account: Mutex::default() }
    }

    pub fn free(&self) -> usize {
        self.total.saturating_sub(self.account.lock().used)
    }

    pub fn usage(&self) -> CpuUsage {
        let account = self.account.lock();
        CpuUsage {
            reserved: account.reservations.values().sum(),
            created: account.handles.values().map(|handle| handle.bytes).sum(),
            mapped: account.mappings.values().map(|(bytes, _)| bytes).sum(),
            plain: account.plain.values().map(Layout::size).sum(),
        }
    }

    /// The memory around an address: where it starts and ends.
    pub fn find(&self, address: DevPtr) -> Option<(DevPtr, DevPtr)> {
        let account = self.account.lock();
        if let Some((start, layout)) = account.plain.range(..=address).next_back()
            && address < start + layout.size() as u64
        {
            return Some((*start, start + layout.size() as u64));
        }
        let (start, (bytes, _)) = account.mappings.range(..=address).next_back()?;
        let (mut start, mut end) = (*start, start + *bytes as u64);
        if address >= end {
            return None;
        }
        // Neighbours are one range: an array may lie in several mappings.
        while let Some((_, (bytes, _))) = account.mappings.get_key_value(&end) {
            end += *bytes as u64;
        }
        while let Some((before, (bytes, _))) = account.mappings.range(..start).next_back()
            && before + *bytes as u64 == start
        {
            start = *before;
        }
        Some((start, end))
    }

    pub fn reserve(&self, bytes: usize) -> Result<DevPtr> {
        check_size("cpu.reserve", bytes)?;
        let mut account = self.account.lock();
        let va = pages::reserve(bytes)?;
        account.reservations.insert(va, bytes);
        Ok(va)
    }

    pub fn unreserve(&self, va: DevPtr, bytes: usize) -> Result<()> {
        const CALL: &str = "cpu.unreserve";
        let mut account = self.account.lock();
        if account.reservations.get(&va) != Some(&bytes) {
            return Err(invalid(CALL, format!("{bytes} bytes at {va:#x} are not one reservation")));
        }
        if account.mappings.range(va..va + bytes as u64).next().is_some() {
            return Err(invalid(CALL, format!("memory is still mapped in the {bytes} bytes at {va:#x}")));
        }
        pages::unreserve(va, bytes)?;
        account.reservations.remove(&va);
        Ok(())
    }

    pub fn create(&self, bytes: usize) -> Result<PhysHandle> {
        check_size("cpu.create", bytes)?;
        let mut account = self.account.lock();
        self.charge(&mut account, "cpu.create", bytes)?;
        account.next_handle += 1;
        let id = account.next_handle;
        account.handles.insert(id, Handle { bytes, mapped: false });
        Ok(PhysHandle(id))
    }

    pub fn release(&self, handle: PhysHandle, bytes: usize) -> Result<()> {
        let mut account = self.account.lock();
        match account.handles.get(&handle.0) {
            Some(known) if known.bytes == bytes && !known.mapped => {}
            known => return Err(invalid("cpu.release", format!("{bytes} bytes asked, handle is {known:?}"))),
        }
        account.handles.remove(&handle.0);
        account.used -= bytes;
        Ok(())
    }

    pub fn map(&self, va: DevPtr, bytes: usize, handle: PhysHandle) -> Result<()> {
        const CALL: &str = "cpu.map";
        let mut account = self.account.lock();
        match account.handles.get(&handle.0) {
            Some(known) if known.bytes == bytes && !known.mapped => {}
            known => return Err(invalid(CALL, format!("{bytes} bytes asked, handle is {known:?}"))),
        }
        let end = va.checked_add(bytes as u64).ok_or_else(|| invalid(CALL, format!("{va:#x} is out of range")))?;
        let reserved = account.reservations.range(..=va).next_back();
        if reserved.is_none_or(|(base, size)| end > base + *size as u64) || !va.is_multiple_of(GRANULE as u64) {
            return Err(invalid(CALL, format!("{bytes} bytes at {va:#x} are not inside one reservation")));
        }
        if let Some((other, (size, _))) = account.mappings.range(..end).next_back()
            && other + *size as u64 > va
        {
            return Err(invalid(CALL, format!("{bytes} bytes at {va:#x} overlap a mapping at {other:#x}")));
        }
        pages::commit(va, bytes)?;
        if let Some(known) = account.handles.get_mut(&handle.0) {
            known.mapped = true;
        }
        account.mappings.insert(va, (bytes, handle));
        Ok(())
    }

    pub fn unmap(&self, va: DevPtr, bytes: usize) -> Result<()> {
        let mut account = self.account.lock();
        let handle = match account.mappings.get(&va) {
            Some((size, handle)) if *size == bytes => *handle,
            known => {
                return Err(invalid("cpu.unmap", format!("{bytes} bytes asked at {va:#x}, mapping is {known:?}")));
            }
        };
        pages::drop_pages(va, bytes)?;
        account.mappings.remove(&va);
        if let Some(known) = account.handles.get_mut(&handle.0) {
            known.mapped = false;
        }
        Ok(())
    }

    pub fn plain_alloc(&self, bytes: usize) -> Result<DevPtr> {
        const CALL: &str = "cpu.plain_alloc";
        let layout = Layout::from_size_align(bytes, PLAIN_ALIGN)
            .map_err(|_| failure(CALL, code::OUT_OF_MEMORY, format!("out of memory: {bytes} bytes are too many")))?;
        if bytes == 0 {
            return Err(invalid(CALL, "zero bytes asked".to_string()));
        }
        let mut account = self.account.lock();
        self.charge(&mut account, CALL, bytes)?;
        // SAFETY: the layout's size is not zero.
        let ptr = unsafe { alloc(layout) };
        if ptr.is_null() {
            account.used -= bytes;
            return Err(failure(CALL, code::OUT_OF_MEMORY, format!("out of memory: the host has no {bytes} bytes")));
        }
        account.plain.insert(ptr as DevPtr, layout);
        Ok(ptr as DevPtr)
    }

    pub fn plain_free(&self, ptr: DevPtr) -> Result<()> {
        let mut account = self.account.lock();
        let Some(layout) = account.plain.remove(&ptr) else {
            return Err(invalid("cpu.plain_free", format!("{ptr:#x} was not allocated")));
        };
        account.used -= layout.size();
        // SAFETY: the table held this pointer with the layout it was allocated with, and it is gone from there.
        unsafe { dealloc(ptr as *mut u8, layout) };
        Ok(())
    }

    fn charge(&self, account: &mut Account, call: &'static str, bytes: usize) -> Result<()> {
        match account.used.checked_add(bytes).filter(|used| *used <= self.total) {
            Some(used) => {
                account.used = used;
                Ok(())
            }
            None => {
                let text =
                    format!("out of memory: {} asked, {} of {}", human(bytes), human(account.used), human(self.total));
                Err(failure(call, code::OUT_OF_MEMORY, text + " in use"))
            }
        }
    }
}

impl Drop for AddressSpace {
    fn drop(&mut self) {
        let account = self.account.get_mut();
        for (va, bytes) in &account.reservations {
            // Nobody is left to tell.
            let _ = pages::unreserve(*va, *bytes);
        }
        for (ptr, layout) in &account.plain {
            // SAFETY: allocated with this layout and never freed.
            unsafe { dealloc(*ptr as *mut u8, *layout) };
        }
    }
}

fn check_size(call: &'static str, bytes: usize) -> Result<()> {
    if bytes == 0 || !bytes.is_multiple_of(GRANULE) {
        return Err(invalid(call, format!("{bytes} bytes are not a multiple of {GRANULE}")));
    }
    Ok(())
}

fn invalid(call: &'static str, text: String) -> crate::error::Error {
    failure(call, code::INVALID_VALUE, text)
}

#[cfg(unix)]
mod pages {
    use super::*;

    const QUIET: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

    /// Addresses without access, aligned to the granularity.
    pub fn reserve(bytes: usize) -> Result<DevPtr> {
        let padded = bytes.checked_add(GRANULE).ok_or_else(|| no_addresses(bytes))?;
        // SAFETY: a new anonymous mapping; nothing exists there yet.
        let raw = unsafe { libc::mmap(std::ptr::null_mut(), padded, libc::PROT_NONE, QUIET, -1, 0) };
        if raw == libc::MAP_FAILED {
            return Err(no_addresses(bytes));
        }
        let start = raw as usize;
        let va = start.next_multiple_of(GRANULE);
        let (before, after) = (va - start, padded - bytes - (va - start));
        // SAFETY: both pieces are the unused ends of the mapping just made.
        unsafe {
            if before > 0 {
                libc::munmap(raw, before);
            }
            if after > 0 {
                libc::munmap((va + bytes) as *mut libc::c_void, after);
            }
        }
        Ok(va as DevPtr)
    }

    pub fn unreserve(va: DevPtr, bytes: usize) -> Result<()> {
        // SAFETY: the account says this whole range is ours and nothing in it is mapped.
        let status = unsafe { libc::munmap(va as *mut libc::c_void, bytes) };
        done("cpu.unreserve", status == 0)
    }

    pub fn commit(va: DevPtr, bytes: usize) -> Result<()> {
        // SAFETY: the range lies in a reservation of ours.
        let status = unsafe { libc::mprotect(va as *mut libc::c_void, bytes, libc::PROT_READ | libc::PROT_WRITE) };
        done("cpu.map", status == 0)
    }

    /// A fresh mapping without access takes the place of the old one, and its pages go.
    pub fn drop_pages(va: DevPtr, bytes: usize) -> Result<()> {
        // SAFETY: the range is a mapping of ours; replacing it is what unmapping means here.
        let raw =
            unsafe { libc::mmap(va as *mut libc::c_void, bytes, libc::PROT_NONE, QUIET | libc::MAP_FIXED, -1, 0) };
        done("cpu.unmap", raw != libc::MAP_FAILED)
    }

    fn done(call: &'static str, ok: bool) -> Result<()> {
        if ok { Ok(()) } else { Err(invalid(call, std::io::Error::last_os_error().to_string())) }
    }

    fn no_addresses(bytes: usize) -> crate::error::Error {
        let reason = std::io::Error::last_os_error();
        failure("cpu.reserve", code::OUT_OF_MEMORY, format!("no {bytes} bytes of addresses: {reason}"))
    }
}

#[cfg(not(unix))]
mod pages {
    use super::*;

    pub fn reserve(_bytes: usize) -> Result<DevPtr> {
        unsupported("cpu.reserve").map(|()| 0)
    }

    pub fn unreserve(_va: DevPtr, _bytes: usize) -> Result<()> {
        unsupported("cpu.unreserve")
    }

    pub fn commit(_va: DevPtr, _bytes: usize) -> Result<()> {
        unsupported("cpu.map")
    }

    pub fn drop_pages(_va: DevPtr, _bytes: usize) -> Result<()> {
        unsupported("cpu.unmap")
    }

    fn unsupported(call: &'static str) -> Result<()> {
        Err(invalid(call, "this system has no virtual memory management; use plain allocations".to_string()))
    }
}
