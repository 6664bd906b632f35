//! `Segment`: the unit of memory, one mapping with its state, owner and uses.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use parking_lot::Mutex;

use super::size_class::class_bytes;
use super::uses::Uses;
use crate::device::{DevPtr, PhysHandle};
use crate::stream::Stream;

/// Where a segment's content is. Memory is resident as long as nothing evicts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SegmentState {
    Resident,
    Evicting,
    Evicted,
    Loading,
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
    /// A piece of a `GrowBuffer`.
    Grow,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backing {
    Nothing,
    Mapped(PhysHandle),
    Plain,
}

#[derive(Debug)]
pub struct Segment {
    va: DevPtr,
    bytes: usize,
    backing: Backing,
    class: SegmentClass,
    owner: u32,
    state: AtomicU8,
    pins: AtomicU32,
    exports: AtomicU32,
    /// Blocks handed out; changed under the owner's lock only.
    live: AtomicU32,
    /// Uses by streams other than a block's home. The home stream's own number bounds its uses.
    last_use: Mutex<Uses>,
    label: Mutex<Option<Box<str>>>,
}

impl Segment {
    pub(crate) fn new(va: DevPtr, bytes: usize, backing: Backing, class: SegmentClass, owner: u32) -> Arc<Segment> {
        Arc::new(Segment {
            va,
            bytes,
            backing,
            class,
            owner,
            state: AtomicU8::new(SegmentState::Resident as u8),
            pins: AtomicU32::new(0),
            exports: AtomicU32::new(0),
            live: AtomicU32::new(0),
            last_use: Mutex::default(),
            label: Mutex::new(None),
        })
    }

    pub fn va(&self) -> DevPtr {
        self.va
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn class(&self) -> SegmentClass {
        self.class
    }

    /// Id of the pool it belongs to; 0 for a `GrowBuffer`.
    pub fn owner(&self) -> u32 {
        self.owner
    }

    pub fn state(&self) -> SegmentState {
        match self.state.load(Ordering::Acquire) {
            0 => SegmentState::Resident,
            1 => SegmentState::Evicting,
            2 => SegmentState::Evicted,
            _ => SegmentState::Loading,
        }
    }

    /// A pinned segment stays where it is.
    pub fn is_pinned(&self) -> bool {
        self.pins.load(Ordering::Acquire) > 0
    }

    /// Has a pointer into it left our sight?
    pub fn is_exported(&self) -> bool {
        self.exports.load(Ordering::Acquire) > 0
    }

    /// Highest number at which a stream other than a block's home has used it.
    pub fn last_use(&self, stream: &Stream) -> Option<u64> {
        self.last_use.lock().iter().find(|(known, _)| known.id() == stream.id()).map(|(_, seq)| seq)
    }

    pub(crate) fn backing(&self) -> Backing {
        self.backing
    }

    /// Bytes of one block in it.
    #[inline]
    pub(crate) fn block_bytes(&self) -> usize {
        match self.class {
            SegmentClass::Slab(class) => class_bytes(class as usize),
            _ => self.bytes,
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
        self.pins.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn unpin_exported(&self) {
        self.pins.fetch_sub(1, Ordering::AcqRel);
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
