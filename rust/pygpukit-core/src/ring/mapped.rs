//! Rings in memory that the host and a device both see.
//!
//! Every word has one writer. The host fills slots and then publishes a count; the device gives the slots of its ring a
//! turn each, and the host publishes how far it has read. Nothing here calls a driver.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};

/// Source of messages that come from the host.
pub const HOST: u32 = u32::MAX;

/// Flags of a message.
pub const REPLY: u16 = 1;
pub const DEAD: u16 = 2;

/// What precedes a payload in a slot: a turn, the payload's bytes, and the header.
pub const PREFIX: usize = 64;

/// As `ring::Header` in `ring.cuh` and `pygpukit.ring.header`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Header {
    pub kind: u32,
    pub flags: u16,
    pub priority: u8,
    pub reason: u8,
    pub id: u64,
    pub correlation: u64,
    pub deadline: u64,
    pub source: u32,
    pub destination: u32,
    pub sent: u64,
}

const _: () = assert!(size_of::<Header>() == 48);

/// A word of mapped memory.
#[derive(Clone, Copy, Debug)]
pub struct Word(*const AtomicU64);

// SAFETY: the memory outlives the word, as `new` demands, and is only used as an atomic.
unsafe impl Send for Word {}
// SAFETY: as above.
unsafe impl Sync for Word {}

impl Word {
    /// # Safety
    /// The address is that of a naturally aligned word which lives as long as this value.
    pub unsafe fn new(address: usize) -> Word {
        Word(address as *const AtomicU64)
    }

    fn cell(&self) -> &AtomicU64 {
        // SAFETY: as `new` demands.
        unsafe { &*self.0 }
    }

    pub fn load(&self) -> u64 {
        self.cell().load(Ordering::Acquire)
    }

    pub fn store(&self, value: u64) {
        self.cell().store(value, Ordering::Release);
    }

    /// Of the host's own words: several threads may add.
    pub fn add(&self, value: u64) {
        self.cell().fetch_add(value, Ordering::AcqRel);
    }
}

/// Slots of one size, a power of two of them.
#[derive(Clone, Copy, Debug)]
pub struct Slots {
    base: *mut u8,
    mask: u64,
    stride: usize,
}

// SAFETY: who writes which slot when is the rings' matter.
unsafe impl Send for Slots {}
// SAFETY: as above.
unsafe impl Sync for Slots {}

impl Slots {
    /// # Safety
    /// There are `count` slots of `stride` bytes at this address, aligned to 16, which live as long as this value;
    /// `count` is a power of two and `stride` a multiple of 16, larger than `PREFIX`.
    pub unsafe fn new(address: usize, count: u64, stride: usize) -> Slots {
        debug_assert!(count.is_power_of_two() && stride.is_multiple_of(16) && stride > PREFIX);
        Slots { base: address as *mut u8, mask: count - 1, stride }
    }

    pub fn count(&self) -> u64 {
        self.mask + 1
    }

    /// Most bytes of a payload.
    pub fn room(&self) -> usize {
        self.stride - PREFIX
    }

    fn at(&self, position: u64) -> *mut u8 {
        // SAFETY: the masked position is inside.
        unsafe { self.base.add((position & self.mask) as usize * self.stride) }
    }

    fn turn(&self, position: u64) -> &AtomicU64 {
        // SAFETY: a slot begins with its turn.
        unsafe { &*self.at(position).cast::<AtomicU64>() }
    }

    fn write(&self, position: u64, header: &Header, payload: &[u8]) {
        let slot = self.at(position);
        let bytes = payload.len().min(self.room());
        // SAFETY: inside of the slot, which is the writer's until it is published.
        unsafe {
            slot.add(8).cast::<u64>().write((bytes as u64).next_multiple_of(16).min(self.room() as u64));
            slot.add(16).cast::<Header>().write(*header);
            std::ptr::copy_nonoverlapping(payload.as_ptr(), slot.add(PREFIX), bytes);
        }
    }

    /// Header and payload of a slot that is the reader's.
    fn read(&self, position: u64) -> (Header, &[u8]) {
        let slot = self.at(position);
        // SAFETY: inside of the slot, which nobody writes until the reader has passed it.
        unsafe {
            let bytes = slot.add(8).cast::<u64>().read() as usize;
            let header = slot.add(16).cast::<Header>().read();
            (header, std::slice::from_raw_parts(slot.add(PREFIX), bytes.min(self.room())))
        }
    }
}

/// A ring the host writes and the device reads.
#[derive(Debug)]
pub struct Inlet {
    tail: Word,
    head: Word,
    slots: Slots,
    written: Mutex<u64>,
}

impl Inlet {
    pub fn new(tail: Word, head: Word, slots: Slots) -> Inlet {
        Inlet { tail, head, slots, written: Mutex::new(0) }
    }

    pub fn slots(&self) -> &Slots {
        &self.slots
    }

    /// Write as many of these as there is room for, and publish them together. `message` gives each one.
    pub fn push<'a>(&self, count: u64, mut message: impl FnMut(u64) -> (Header, &'a [u8])) -> u64 {
        let mut written = self.written.lock();
        let free = self.slots.count() - (*written - self.head.load());
        let count = count.min(free);
        for index in 0..count {
            let (header, payload) = message(index);
            self.slots.write(*written + index, &header, payload);
        }
        if count > 0 {
            *written += count;
            self.tail.store(*written);
        }
        count
    }

    /// What the device has not taken yet.
    pub fn depth(&self) -> u64 {
        let written = self.written.lock();
        *written - self.head.load()
    }
}

/// A ring the device writes and the host reads.
#[derive(Debug)]
pub struct Outlet {
    head: Word,
    slots: Slots,
    read: Mutex<u64>,
}

/// The reading end, held by one thread.
pub struct Reader<'a> {
    outlet: &'a Outlet,
    read: MutexGuard<'a, u64>,
    published: u64,
}

impl Outlet {
    pub fn new(head: Word, slots: Slots) -> Outlet {
        Outlet { head, slots, read: Mutex::new(0) }
    }

    /// Begin to read, unless another thread does.
    pub fn try_read(&self) -> Option<Reader<'_>> {
        let read = self.read.try_lock()?;
        let published = *read;
        Some(Reader { outlet: self, read, published })
    }

    /// Is there a message? A hint: another thread may take it.
    pub fn is_ready(&self) -> bool {
        self.read.try_lock().is_some_and(|read| self.slots.turn(*read).load(Ordering::Acquire) == *read + 1)
    }
}

impl Reader<'_> {
    /// Look at the next message, if there is one; it is passed when the closure returns.
    pub fn next<R>(&mut self, look: impl FnOnce(Header, &[u8]) -> R) -> Option<R> {
        let position = *self.read;
        if self.outlet.slots.turn(position).load(Ordering::Acquire) != position + 1 {
            return None;
        }
        let (header, payload) = self.outlet.slots.read(position);
        let result = look(header, payload);
        *self.read += 1;
        // The device needs to know now and then, not for every message.
        if *self.read - self.published >= self.outlet.slots.count() / 8 {
            self.publish();
        }
        Some(result)
    }

    fn publish(&mut self) {
        self.published = *self.read;
        self.outlet.head.store(self.published);
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        if self.published != *self.read {
            self.publish();
        }
    }
}
