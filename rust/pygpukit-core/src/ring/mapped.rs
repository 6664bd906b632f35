//! Rings in memory that the host and a device both see.
//!
//! Every word has one writer. Messages travel as words of 8 bytes, half of them a tag that says which round of the ring
//! they belong to: a word is there or it is not, so that no flag has to follow the message. Rings for many messages at a
//! time hold them plainly, and a count says how many there are. Nothing here calls a driver.

use smallvec::SmallVec;

use super::sync::{AtomicU64, Mutex, MutexGuard, Ordering};

/// Source of messages that come from the host.
pub const HOST: u32 = u32::MAX;

/// Flags of a message: its sender waits for the answer, it is such an answer, it could not be handled, more answers to the
/// same message follow.
pub const CALL: u16 = 1;
pub const ANSWER: u16 = 2;
pub const DEAD: u16 = 4;
pub const MORE: u16 = 16;

/// As `ring::Header` in `ring.cuh`.
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
    pub bytes: u32,
    /// When it was sent on the device's clock, of some messages: else 0.
    pub stamp: u32,
}

pub const HEADER: usize = size_of::<Header>();
const HEADER_WORDS: usize = HEADER / 4;

/// Words that the device looks at together.
const WARP: usize = 32;
const _: () = assert!(HEADER == 48);

impl Header {
    fn to_words(self) -> [u32; HEADER_WORDS] {
        // SAFETY: both are 48 bytes without padding, and any bits make words.
        unsafe { std::mem::transmute(self) }
    }

    fn from_words(words: [u32; HEADER_WORDS]) -> Header {
        // SAFETY: as above; any bits make a header.
        unsafe { std::mem::transmute(words) }
    }
}

#[derive(Clone, Debug)]
pub struct Message {
    pub header: Header,
    pub payload: SmallVec<[u8; 64]>,
}

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

/// Slots of tagged words, a power of two of them.
#[derive(Clone, Copy, Debug)]
pub struct Slots {
    base: *const AtomicU64,
    mask: u64,
    words: usize,
}

// SAFETY: the memory outlives the slots and is only used as atomics.
unsafe impl Send for Slots {}
// SAFETY: as above.
unsafe impl Sync for Slots {}

impl Slots {
    /// # Safety
    /// There are `count` slots of as many words at this address, aligned to 8, which live as long as this value; `count`
    /// is a power of two, and a slot has more than a header's words.
    pub unsafe fn new(address: usize, count: u64, words: usize) -> Slots {
        debug_assert!(count.is_power_of_two() && words > HEADER_WORDS);
        Slots { base: address as *const AtomicU64, mask: count - 1, words }
    }

    pub fn count(&self) -> u64 {
        self.mask + 1
    }

    /// Most bytes of a payload.
    pub fn room(&self) -> usize {
        4 * (self.words - HEADER_WORDS)
    }

    fn slot(&self, position: u64) -> &[AtomicU64] {
        // SAFETY: the masked position is inside.
        unsafe { std::slice::from_raw_parts(self.base.add((position & self.mask) as usize * self.words), self.words) }
    }

    fn write(&self, position: u64, header: &Header, payload: &[u8]) {
        let tag = u64::from((position as u32).wrapping_add(1)) << 32;
        let slot = self.slot(position);
        let payload = &payload[..payload.len().min(self.room())];
        let bytes = payload.len().next_multiple_of(4);
        let header = Header { bytes: bytes as u32, ..*header }.to_words();
        for (cell, word) in slot.iter().zip(header) {
            cell.store(tag | u64::from(word), Ordering::Relaxed);
        }
        for (cell, part) in slot[HEADER_WORDS..].iter().zip(payload.chunks(4)) {
            let mut word = [0; 4];
            word[..part.len()].copy_from_slice(part);
            cell.store(tag | u64::from(u32::from_le_bytes(word)), Ordering::Relaxed);
        }
        // A warp looks at all of the first words at once.
        for cell in slot.iter().take(WARP).skip(HEADER_WORDS + bytes / 4) {
            cell.store(tag, Ordering::Relaxed);
        }
    }

    /// The message at a position, if it is there.
    fn read(&self, position: u64) -> Option<Message> {
        let tag = (position as u32).wrapping_add(1);
        let slot = self.slot(position);
        let get = |cell: &AtomicU64| {
            let word = cell.load(Ordering::Acquire);
            ((word >> 32) as u32 == tag).then_some(word as u32)
        };
        let mut words = [0; HEADER_WORDS];
        for (word, cell) in words.iter_mut().zip(slot) {
            *word = get(cell)?;
        }
        let header = Header::from_words(words);
        let count = (header.bytes as usize / 4).min(self.words - HEADER_WORDS);
        let mut payload = SmallVec::from_elem(0, 4 * count);
        for (bytes, cell) in payload.chunks_exact_mut(4).zip(&slot[HEADER_WORDS..]) {
            // The header may be faster than the rest, by a moment: then there is no message yet.
            bytes.copy_from_slice(&get(cell)?.to_le_bytes());
        }
        Some(Message { header, payload })
    }
}

/// How far a ring was written, and how far its reader was when that was last looked at: who writes seldom needs to know,
/// and the word comes from the other side of the bus.
#[derive(Debug)]
struct Written {
    at: u64,
    seen: u64,
}

impl Written {
    /// How many of so many there is room for in a ring of this size.
    fn room(&mut self, size: u64, count: u64, head: &Word) -> u64 {
        if count > size - (self.at - self.seen) {
            self.seen = head.load();
        }
        count.min(size - (self.at - self.seen))
    }
}

/// A ring the host writes and the device reads.
#[derive(Debug)]
pub struct Inlet {
    head: Word,
    slots: Slots,
    written: Mutex<Written>,
}

impl Inlet {
    pub fn new(head: Word, slots: Slots) -> Inlet {
        Inlet { head, slots, written: Mutex::new(Written { at: 0, seen: 0 }) }
    }

    /// Write as many of these as there is room for. `message` gives each one.
    pub fn push<'a>(&self, count: u64, message: &dyn Fn(u64) -> (Header, &'a [u8])) -> u64 {
        let mut written = self.written.lock();
        let count = written.room(self.slots.count(), count, &self.head);
        for index in 0..count {
            let (header, payload) = message(index);
            self.slots.write(written.at + index, &header, payload);
        }
        written.at += count;
        count
    }
}

/// How far a ring was read that is not looked at any more: its memory may be gone.
const CLOSED: u64 = u64::MAX;

/// A ring the device writes and the host reads.
#[derive(Debug)]
pub struct Outlet {
    head: Word,
    slots: Slots,
    read: Mutex<u64>,
}

impl Outlet {
    pub fn new(head: Word, slots: Slots) -> Outlet {
        Outlet { head, slots, read: Mutex::new(0) }
    }

    /// Hand out the messages that are there, unless another thread does. Returns how many.
    pub fn drain(&self, take: impl FnMut(Message)) -> u64 {
        self.read.try_lock().map_or(0, |read| self.drain_from(read, take))
    }

    /// The same after another thread has done so.
    pub fn drain_all(&self, take: impl FnMut(Message)) -> u64 {
        self.drain_from(self.read.lock(), take)
    }

    fn drain_from(&self, mut read: MutexGuard<'_, u64>, mut take: impl FnMut(Message)) -> u64 {
        if *read == CLOSED {
            return 0;
        }
        let mut count = 0;
        while let Some(message) = self.slots.read(*read) {
            *read += 1;
            count += 1;
            // The device needs to know now and then, not for every message.
            if count % (self.slots.count() / 4).max(1) == 0 {
                self.head.store(*read);
            }
            take(message);
        }
        if count > 0 {
            self.head.store(*read);
        }
        count
    }

    /// Do not look at it any more; false while there are messages in it.
    pub fn close(&self) -> bool {
        let mut read = self.read.lock();
        let is_empty = *read == CLOSED || self.slots.read(*read).is_none();
        if is_empty {
            *read = CLOSED;
        }
        is_empty
    }
}

/// Where plain messages are: so many places of that many bytes, a header and a payload in each.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    base: *mut u8,
    mask: u64,
    stride: usize,
}

// SAFETY: who uses which row when is the rings' matter.
unsafe impl Send for Rows {}
// SAFETY: as above.
unsafe impl Sync for Rows {}

impl Rows {
    /// # Safety
    /// There are `count` rows of `stride` bytes at this address, aligned to 16, which live as long as this value;
    /// `count` is a power of two and `stride` a multiple of 16, larger than a header.
    pub unsafe fn new(address: usize, count: u64, stride: usize) -> Rows {
        debug_assert!(count.is_power_of_two() && stride.is_multiple_of(16) && stride > HEADER);
        Rows { base: address as *mut u8, mask: count - 1, stride }
    }

    fn at(&self, position: u64) -> *mut u8 {
        // SAFETY: the masked position is inside.
        unsafe { self.base.add((position & self.mask) as usize * self.stride) }
    }
}

/// A ring of plain messages the host writes.
#[derive(Debug)]
pub struct BulkInlet {
    tail: Word,
    head: Word,
    rows: Rows,
    written: Mutex<Written>,
}

impl BulkInlet {
    pub fn new(tail: Word, head: Word, rows: Rows) -> BulkInlet {
        BulkInlet { tail, head, rows, written: Mutex::new(Written { at: 0, seen: 0 }) }
    }

    /// Write as many of these as there is room for, and publish them together.
    #[inline]
    pub fn push<'a>(&self, count: u64, message: impl Fn(u64) -> (Header, &'a [u8])) -> u64 {
        let mut written = self.written.lock();
        let count = written.room(self.rows.mask + 1, count, &self.head);
        for index in 0..count {
            let (header, payload) = message(index);
            let bytes = payload.len().min(self.rows.stride - HEADER);
            let row = self.rows.at(written.at + index);
            // SAFETY: inside of the row, which is ours until it is published.
            unsafe {
                row.cast::<Header>().write(Header { bytes: bytes as u32, ..header });
                std::ptr::copy_nonoverlapping(payload.as_ptr(), row.add(HEADER), bytes);
            }
        }
        if count > 0 {
            written.at += count;
            self.tail.store(written.at);
        }
        count
    }
}

/// A ring of plain messages the device writes.
#[derive(Debug)]
pub struct BulkOutlet {
    tail: Word,
    head: Word,
    rows: Rows,
    read: Mutex<u64>,
}

/// The reading end, held by one thread.
pub struct BulkReader<'a> {
    outlet: &'a BulkOutlet,
    read: MutexGuard<'a, u64>,
    tail: u64,
}

impl BulkOutlet {
    pub fn new(tail: Word, head: Word, rows: Rows) -> BulkOutlet {
        BulkOutlet { tail, head, rows, read: Mutex::new(0) }
    }

    /// Begin to read, unless another thread does or there is nothing.
    pub fn try_read(&self) -> Option<BulkReader<'_>> {
        self.reader(self.read.try_lock()?)
    }

    /// The same after another thread has done so.
    pub fn read(&self) -> Option<BulkReader<'_>> {
        self.reader(self.read.lock())
    }

    fn reader<'a>(&'a self, read: MutexGuard<'a, u64>) -> Option<BulkReader<'a>> {
        if *read == CLOSED {
            return None;
        }
        let tail = self.tail.load();
        (tail != *read).then_some(BulkReader { outlet: self, read, tail })
    }

    /// Do not look at it any more; false while there are messages in it.
    pub fn close(&self) -> bool {
        let mut read = self.read.lock();
        let is_empty = *read == CLOSED || self.tail.load() == *read;
        if is_empty {
            *read = CLOSED;
        }
        is_empty
    }
}

impl BulkReader<'_> {
    /// The next message, if there is one.
    #[inline]
    pub fn next<R>(&mut self, look: impl FnOnce(Header, &[u8]) -> R) -> Option<R> {
        if *self.read == self.tail {
            return None;
        }
        let row = self.outlet.rows.at(*self.read);
        // SAFETY: the device has published the row, and does not write it until it was passed.
        let result = unsafe {
            let header = row.cast::<Header>().read();
            let bytes = (header.bytes as usize).min(self.outlet.rows.stride - HEADER);
            look(header, std::slice::from_raw_parts(row.add(HEADER), bytes))
        };
        *self.read += 1;
        Some(result)
    }
}

impl Drop for BulkReader<'_> {
    fn drop(&mut self) {
        self.outlet.head.store(*self.read);
    }
}
