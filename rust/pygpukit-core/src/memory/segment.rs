//! `Segment`: the unit of memory, one mapping with its state, owner and uses.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

use super::host_copy::HostCopy;
use super::size_class::class_bytes;
use super::stock::Stock;
use super::uses::Uses;
use crate::device::{DevPtr, PhysHandle};
use crate::stream::Stream;

/// Where a segment's content is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum SegmentState {
    Resident = 0,
    /// On its way to the host: still mapped, and whoever wants it may keep it.
    Leaving = 1 << 30,
    /// On the host; nothing is mapped.
    Evicted = 2 << 30,
}

/// What a segment holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentClass {
    /// No memory at all: the segment of empty arrays.
    Empty,
    /// Blocks of one size class, by its index.
    Slab(u8),
    /// One array.
    Large,
    /// A `GrowBuffer`.
    Grow,
}

/// Physical memory behind a segment: pieces that lie one after the other.
pub(crate) type Pieces = SmallVec<[(PhysHandle, usize); 1]>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Backing {
    Nothing,
    Mapped(Pieces),
    Plain,
}

/// Bits of `Segment::word` that hold the state; the others count pins.
const STATE: u32 = 3 << 30;

#[derive(Debug)]
pub struct Segment {
    va: DevPtr,
    /// Bytes with memory behind them. Changed for `Grow` only, under the owner's lock, while it is on the device.
    bytes: AtomicUsize,
    /// Bytes of addresses.
    range: usize,
    backing: Mutex<Backing>,
    class: SegmentClass,
    owner: u32,
    /// Where its memory comes from and goes to, when somebody holds it.
    stock: Option<Arc<Stock>>,
    /// May move to the host. Whoever uses it then enters it first.
    evictable: bool,
    /// State and pins in one word, so that nothing is evicted that somebody has just entered.
    word: AtomicU32,
    exports: AtomicU32,
    /// Blocks handed out, and the bytes charged for them; changed under the owner's lock only.
    live: AtomicU32,
    charged: AtomicUsize,
    /// Its blocks are not charged, because it is evicted; changed under the owner's lock only.
    uncounted: AtomicBool,
    /// The arena's clock at the last use.
    touched: AtomicU64,
    /// Written since its copy on the host was made.
    dirty: AtomicBool,
    /// Number on the stream of arrivals that brings its content; 0 when nobody has to wait for it.
    arrival: AtomicU64,
    /// Its copy on the host; changed by the mover only.
    host: Mutex<Option<HostCopy>>,
    /// Uses by streams other than a block's home, and of evictable segments by all. The home stream's own number
    /// bounds its uses.
    last_use: Mutex<Uses>,
    label: Mutex<Option<Box<str>>>,
}

impl Segment {
    pub(crate) fn new(
        va: DevPtr,
        bytes: usize,
        backing: Backing,
        class: SegmentClass,
        owner: u32,
        stock: Option<Arc<Stock>>,
        evictable: bool,
    ) -> Arc<Segment> {
        Arc::new(Segment::build(va, bytes, backing, class, owner, stock, evictable))
    }

    /// Addresses that memory is put behind later.
    pub(crate) fn growing(
        va: DevPtr,
        range: usize,
        owner: u32,
        stock: Option<Arc<Stock>>,
        evictable: bool,
    ) -> Arc<Segment> {
        let nothing = Backing::Mapped(Pieces::new());
        Arc::new(Segment { range, ..Segment::build(va, 0, nothing, SegmentClass::Grow, owner, stock, evictable) })
    }

    fn build(
        va: DevPtr,
        bytes: usize,
        backing: Backing,
        class: SegmentClass,
        owner: u32,
        stock: Option<Arc<Stock>>,
        evictable: bool,
    ) -> Segment {
        Segment {
            va,
            bytes: AtomicUsize::new(bytes),
            range: bytes,
            backing: Mutex::new(backing),
            class,
            owner,
            stock,
            evictable,
            word: AtomicU32::new(SegmentState::Resident as u32),
            exports: AtomicU32::new(0),
            live: AtomicU32::new(0),
            charged: AtomicUsize::new(0),
            uncounted: AtomicBool::new(false),
            touched: AtomicU64::new(0),
            dirty: AtomicBool::new(true),
            arrival: AtomicU64::new(0),
            host: Mutex::default(),
            last_use: Mutex::default(),
            label: Mutex::new(None),
        }
    }

    pub fn va(&self) -> DevPtr {
        self.va
    }

    #[inline]
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn set_bytes(&self, bytes: usize) {
        self.bytes.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn range(&self) -> usize {
        self.range
    }

    pub fn class(&self) -> SegmentClass {
        self.class
    }

    /// Id of the pool it belongs to.
    pub fn owner(&self) -> u32 {
        self.owner
    }

    pub(crate) fn stock(&self) -> Option<&Arc<Stock>> {
        self.stock.as_ref()
    }

    pub fn state(&self) -> SegmentState {
        state_of(self.word.load(Ordering::Acquire))
    }

    /// Does it move to the host when memory is short?
    #[inline]
    pub fn is_evictable(&self) -> bool {
        self.evictable
    }

    /// A pinned segment stays where it is.
    pub fn is_pinned(&self) -> bool {
        self.word.load(Ordering::Acquire) & !STATE > 0
    }

    /// Stay where it is until as many calls of `leave`; says whether it is resident, and can be relied on then.
    #[inline]
    pub(crate) fn enter(&self) -> bool {
        self.word.fetch_add(1, Ordering::AcqRel) & STATE == SegmentState::Resident as u32
    }

    #[inline]
    pub(crate) fn leave(&self) {
        self.word.fetch_sub(1, Ordering::AcqRel);
    }

    /// Nobody is in it: begin to evict it.
    pub(crate) fn begin_leaving(&self) -> bool {
        self.exchange(SegmentState::Resident, SegmentState::Leaving)
    }

    /// Nobody has come back meanwhile: its memory may go.
    pub(crate) fn end_leaving(&self) -> bool {
        self.exchange(SegmentState::Leaving, SegmentState::Evicted)
    }

    fn exchange(&self, from: SegmentState, to: SegmentState) -> bool {
        self.word.compare_exchange(from as u32, to as u32, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// It is here, whatever was planned with it.
    pub(crate) fn set_resident(&self) {
        self.word.fetch_and(!STATE, Ordering::AcqRel);
    }

    /// An eviction that was begun is given up.
    pub(crate) fn set_resident_unless_evicted(&self) {
        if self.state() == SegmentState::Leaving {
            self.set_resident();
        }
    }

    /// A use at this time of the arena's clock.
    #[inline]
    pub(crate) fn touch(&self, clock: u64, writes: bool) {
        self.touched.store(clock, Ordering::Relaxed);
        if writes {
            self.dirty.store(true, Ordering::Release);
        }
    }

    pub(crate) fn touched(&self) -> u64 {
        self.touched.load(Ordering::Relaxed)
    }

    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty.load(Ordering::Acquire)
    }

    pub(crate) fn set_clean(&self) {
        self.dirty.store(false, Ordering::Release);
    }

    /// Its copy on the host is not to be relied on.
    pub(crate) fn set_dirty(&self) {
        self.dirty.store(true, Ordering::Release);
    }

    #[inline]
    pub(crate) fn arrival(&self) -> u64 {
        self.arrival.load(Ordering::Acquire)
    }

    pub(crate) fn set_arrival(&self, seq: u64) {
        self.arrival.store(seq, Ordering::Release);
    }

    /// The arrival with this number is over, unless there has been another since.
    pub(crate) fn arrived(&self, seq: u64) {
        let _ = self.arrival.compare_exchange(seq, 0, Ordering::AcqRel, Ordering::Relaxed);
    }

    pub(crate) fn host(&self) -> MutexGuard<'_, Option<HostCopy>> {
        self.host.lock()
    }

    pub(crate) fn try_host(&self) -> Option<MutexGuard<'_, Option<HostCopy>>> {
        self.host.try_lock()
    }

    /// Nobody needs its content any more, nor the copy of it. Copies from and to ordinary memory of the host may be on
    /// their way unless it is evicted.
    pub(crate) fn forget_copy(&self) {
        self.set_dirty();
        let evicted = self.state() == SegmentState::Evicted;
        if let Some(mut host) = self.try_host()
            && host.as_ref().is_some_and(|copy| copy.is_ordered() || evicted)
        {
            *host = None;
        }
    }

    /// The owner's lock is held.
    pub(crate) fn charged(&self) -> usize {
        self.charged.load(Ordering::Relaxed)
    }

    /// The owner's lock is held.
    pub(crate) fn add_charge(&self, bytes: usize) {
        self.charged.store(self.charged() + bytes, Ordering::Relaxed);
    }

    /// The owner's lock is held.
    pub(crate) fn subtract_charge(&self, bytes: usize) {
        self.charged.store(self.charged().saturating_sub(bytes), Ordering::Relaxed);
    }

    pub(crate) fn is_counted(&self) -> bool {
        !self.uncounted.load(Ordering::Relaxed)
    }

    /// The owner's lock is held.
    pub(crate) fn set_counted(&self, counted: bool) {
        self.uncounted.store(!counted, Ordering::Relaxed);
    }

    /// Has a pointer into it left our sight?
    pub fn is_exported(&self) -> bool {
        self.exports.load(Ordering::Acquire) > 0
    }

    /// Highest number at which a stream other than a block's home has used it.
    pub fn last_use(&self, stream: &Stream) -> Option<u64> {
        self.last_use.lock().iter().find(|(known, _)| known.id() == stream.id()).map(|(_, seq)| seq)
    }

    pub(crate) fn backing(&self) -> MutexGuard<'_, Backing> {
        self.backing.lock()
    }

    /// Bytes of one block in it.
    #[inline]
    pub(crate) fn block_bytes(&self) -> usize {
        match self.class {
            SegmentClass::Slab(class) => class_bytes(class as usize),
            _ => self.bytes(),
        }
    }

    pub(crate) fn live(&self) -> u32 {
        self.live.load(Ordering::Relaxed)
    }

    /// The owner's lock is held, so a load and a store are enough.
    #[inline]
    pub(crate) fn block_taken(&self) {
        self.live.store(self.live() + 1, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn block_returned(&self) {
        self.live.store(self.live().saturating_sub(1), Ordering::Relaxed);
    }

    pub(crate) fn pin_exported(&self) {
        self.exports.fetch_add(1, Ordering::AcqRel);
        self.enter();
    }

    pub(crate) fn unpin_exported(&self) {
        self.leave();
        self.exports.fetch_sub(1, Ordering::AcqRel);
    }

    pub(crate) fn note_use(&self, stream: &Arc<Stream>, seq: u64) {
        self.last_use.lock().note(stream, seq);
    }

    pub(crate) fn uses(&self) -> Uses {
        self.last_use.lock().clone()
    }

    pub(crate) fn set_label(&self, label: Option<Box<str>>) {
        *self.label.lock() = label;
    }

    pub(crate) fn label(&self) -> Option<String> {
        self.label.lock().as_deref().map(str::to_owned)
    }
}

fn state_of(word: u32) -> SegmentState {
    match word >> 30 {
        0 => SegmentState::Resident,
        1 => SegmentState::Leaving,
        _ => SegmentState::Evicted,
    }
}
