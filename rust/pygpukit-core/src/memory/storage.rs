//! `Storage`: a block handed out by a pool.

use std::any::Any;
use std::fmt;
use std::mem::{ManuallyDrop, take};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::cache::Block;
use super::pool::Pool;
use super::registry::Extent;
use super::segment::{Backing, Segment, SegmentClass, SegmentState};
use super::shared::Part;
use super::size_class::Request;
use super::uses::Uses;
use crate::device::{DevPtr, RawEvent, SharedDevice};
use crate::error::Result;
use crate::exec::ExecCtx;
use crate::runtime::DeviceState;
use crate::stream::Stream;

/// A block handed out by a pool; it goes back, in stream order, when the last owner drops it.
pub struct Storage {
    block: ManuallyDrop<Block>,
    /// Changes for blocks that grow.
    bytes: AtomicUsize,
    charged: usize,
    born: u64,
    /// Not counted: the pool keeps itself alive while it has live blocks, which saves two atomic operations.
    pool: ManuallyDrop<Arc<Pool>>,
    exports: AtomicU32,
    pins: AtomicU32,
    /// Uses enter its segment first.
    evictable: bool,
    /// Uses by streams other than home.
    uses: Mutex<Uses>,
    /// Owner of memory that no pool handed out (`outside`, `adopted`).
    owner: Option<Owner>,
    /// The checker has it in its own table.
    listed: bool,
    /// Of memory that graphs share (`part_of`).
    part: Option<Part>,
    /// Every kernel leaves it zero (`ExecCtx::counters`).
    counters: AtomicBool,
}

/// What keeps memory alive that no pool handed out.
type Owner = Arc<dyn Any + Send + Sync>;

/// When memory is no longer in use.
pub(super) enum Until {
    Unused(Uses),
    /// Another library's work has passed this.
    Passed(SharedDevice, RawEvent),
}

impl Until {
    /// Asked until it is. An error of the device means that nothing can be known: the memory stays.
    fn is_over(&self, asked: &mut Asked) -> bool {
        match self {
            Until::Unused(uses) => uses.iter().all(|(stream, seq)| {
                let is_asked = asked.streams.contains(&Arc::as_ptr(stream));
                if stream.completed() < seq && !is_asked {
                    asked.streams.push(Arc::as_ptr(stream));
                    return stream.passed(seq).unwrap_or(false);
                }
                stream.completed() >= seq
            }),
            Until::Passed(..) if asked.is_driver_behind => false,
            Until::Passed(device, event) => {
                let over = device.event_query(*event).unwrap_or(false);
                if over {
                    device.event_destroy(*event);
                }
                asked.is_driver_behind = !over;
                over
            }
        }
    }
}

/// What was asked in one pass over all that waits: once a stream, which tells of everything it has passed.
#[derive(Default)]
struct Asked {
    streams: SmallVec<[*const Stream; 8]>,
    /// One of the driver's own streams has not passed an event, and so none that was recorded later.
    is_driver_behind: bool,
}

/// Owners whose memory may still be in use.
static LEAVING: Mutex<Vec<(Until, Owner)>> = Mutex::new(Vec::new());
static IS_LEAVING: AtomicBool = AtomicBool::new(false);

/// Drop the owner when its memory is no longer in use, at the latest by a later call.
pub(super) fn release(until: Until, owner: Owner) {
    LEAVING.lock().push((until, owner));
    IS_LEAVING.store(true, Ordering::Release);
    release_unused();
}

/// Drop owners of memory that was in use when its array or another library gave it up, and is no longer.
#[inline]
pub fn release_unused() {
    if IS_LEAVING.load(Ordering::Acquire) && !super::is_shut_down() {
        drop_unused();
    }
}

#[cold]
fn drop_unused() {
    let mut done = Vec::new();
    let mut leaving = LEAVING.lock();
    let mut asked = Asked::default();
    leaving.retain_mut(|(until, owner)| {
        let over = until.is_over(&mut asked);
        if over {
            done.push(owner.clone());
        }
        !over
    });
    IS_LEAVING.store(!leaving.is_empty(), Ordering::Release);
    drop(leaving);
    // An owner may call the driver when it goes, without our lock.
    drop(done);
}

impl fmt::Debug for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Storage({:#x}, {} bytes)", self.ptr(), self.bytes())
    }
}

impl Storage {
    /// `block` counts as live in `pool`.
    #[inline]
    pub(crate) fn new(block: Block, request: &Request, pool: &Arc<Pool>) -> Arc<Storage> {
        let born = block.home.seq();
        if request.bytes > 0 && pool.is_listed() {
            if pool.is_private() {
                super::registry::add_lasting(block.ptr, request.bytes);
            } else {
                super::registry::add(block.ptr, request.bytes);
            }
        }
        let evictable = block.segment.is_evictable();
        // SAFETY: the pool holds a reference to itself as long as this block is live, that is, until the drop below
        // has given it back; this copy is never dropped.
        let pool = ManuallyDrop::new(unsafe { Arc::from_raw(Arc::as_ptr(pool)) });
        Arc::new(Storage {
            block: ManuallyDrop::new(block),
            bytes: AtomicUsize::new(request.bytes),
            charged: request.rounded,
            born,
            pool,
            exports: AtomicU32::new(0),
            pins: AtomicU32::new(0),
            evictable,
            uses: Mutex::default(),
            owner: None,
            listed: true,
            part: None,
            counters: AtomicBool::new(false),
        })
    }

    /// Memory that is not from a pool, such as a variable of a module. It is never moved or charged; `owner` keeps it, and
    /// is dropped when the last use has ended.
    pub(crate) fn outside(state: &'static DeviceState, address: DevPtr, bytes: usize, owner: Owner) -> Arc<Storage> {
        if bytes > 0 && state.root_pool.is_listed() {
            super::registry::add_lasting(address, bytes);
        }
        Storage::owned(&state.root_pool, &state.default_stream, 0, address, bytes, owner, true)
    }

    /// Memory of another library, whose content is there when the context's stream has passed what it was given so far.
    pub(super) fn adopted(ctx: &ExecCtx, address: DevPtr, bytes: usize, owner: Owner) -> Arc<Storage> {
        Storage::owned(&ctx.state.root_pool, &ctx.stream, ctx.stream.seq(), address, bytes, owner, false)
    }

    fn owned(
        pool: &Arc<Pool>,
        home: &Arc<Stream>,
        born: u64,
        address: DevPtr,
        bytes: usize,
        owner: Owner,
        listed: bool,
    ) -> Arc<Storage> {
        let segment = Segment::new(address, bytes, Backing::Nothing, SegmentClass::Large, 0, None, false);
        // SAFETY: the state and with it the pool lives as long as the process; this copy is never dropped.
        let pool = ManuallyDrop::new(unsafe { Arc::from_raw(Arc::as_ptr(pool)) });
        Arc::new(Storage {
            block: ManuallyDrop::new(Block { ptr: address, segment, home: home.clone() }),
            bytes: bytes.into(),
            charged: 0,
            born,
            pool,
            exports: AtomicU32::new(0),
            pins: AtomicU32::new(0),
            evictable: false,
            uses: Mutex::default(),
            owner: Some(owner),
            listed,
            part: None,
            counters: AtomicBool::new(false),
        })
    }

    /// A block that lies in another one, which it keeps alive.
    pub(super) fn part_of(root: &Arc<Storage>, start: usize, bytes: usize, part: Part) -> Arc<Storage> {
        let Block { ptr, segment, home } = &*root.block;
        let block = Block { ptr: ptr + start as u64, segment: segment.clone(), home: home.clone() };
        // SAFETY: `part` keeps the other block, and that keeps its pool; this copy is never dropped.
        let pool = ManuallyDrop::new(unsafe { Arc::from_raw(Arc::as_ptr(&root.pool)) });
        Arc::new(Storage {
            block: ManuallyDrop::new(block),
            bytes: bytes.into(),
            charged: 0,
            born: root.born,
            pool,
            exports: AtomicU32::new(0),
            pins: AtomicU32::new(0),
            evictable: root.evictable,
            uses: Mutex::default(),
            owner: None,
            listed: true,
            part: Some(part),
            counters: AtomicBool::new(false),
        })
    }

    /// Of memory that graphs share.
    pub(crate) fn part(&self) -> Option<&Part> {
        self.part.as_ref()
    }

    /// Every kernel that uses it leaves it zero.
    pub(crate) fn set_counters(&self) {
        self.counters.store(true, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn is_counters(&self) -> bool {
        self.counters.load(Ordering::Relaxed)
    }

    #[inline]
    pub fn ptr(&self) -> DevPtr {
        self.block.ptr
    }

    /// Bytes asked for.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// It has grown or shrunk. The checker follows its bounds, but not which of its bytes have a value.
    pub(super) fn set_bytes(&self, bytes: usize) {
        self.bytes.store(bytes, Ordering::Relaxed);
        if self.pool.is_listed() {
            super::registry::resize(self.ptr(), bytes);
        }
    }

    /// Bytes that may be used.
    pub fn capacity(&self) -> usize {
        self.block.capacity()
    }

    /// The stream it was allocated for; its uses there need no note.
    #[inline]
    pub fn home(&self) -> &Arc<Stream> {
        &self.block.home
    }

    /// Number of the home stream when the block was handed out. Earlier work there may still use the same memory, so
    /// another stream waits for this number before it touches the block for the first time.
    #[inline]
    pub fn born(&self) -> u64 {
        self.born
    }

    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// What the checker knows of it now; another block may have its address later.
    pub fn extent(&self) -> Extent {
        let known = super::registry::find(self.ptr()).filter(|known| known.bytes == self.bytes() as u64);
        known.unwrap_or(Extent { start: self.ptr(), bytes: self.bytes() as u64, written: None })
    }

    /// May its memory move to the host?
    #[inline]
    pub fn is_evictable(&self) -> bool {
        self.evictable
    }

    /// Is its content on the device?
    pub fn is_resident(&self) -> bool {
        self.block.segment.state() != SegmentState::Evicted
    }

    pub fn segment(&self) -> &Arc<Segment> {
        &self.block.segment
    }

    /// Does the block have a segment of its own? Only then its label appears in reports.
    pub fn owns_segment(&self) -> bool {
        self.part.is_none() && matches!(self.block.segment.class(), SegmentClass::Large | SegmentClass::Grow)
    }

    /// A command with number `seq` on `stream` uses the block.
    #[inline]
    pub fn note_use(&self, stream: &Arc<Stream>, seq: u64) {
        let elsewhere = stream.id() != self.block.home.id();
        if (elsewhere || self.evictable) && self.bytes() > 0 {
            if elsewhere {
                self.uses.lock().note(stream, seq);
            }
            self.block.segment.note_use(stream, seq);
        }
    }

    /// Stay on the device until as many calls of `unpin`, or until it is dropped. It must be brought there first.
    pub(crate) fn pin(&self) {
        self.pins.fetch_add(1, Ordering::AcqRel);
        self.block.segment.enter();
    }

    /// False when it was not pinned.
    pub fn unpin(&self) -> bool {
        let before = self.pins.fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| n.checked_sub(1));
        if before.is_ok() {
            self.block.segment.leave();
        }
        before.is_ok()
    }

    /// Times it was pinned and not unpinned.
    pub fn pins(&self) -> u32 {
        self.pins.load(Ordering::Acquire)
    }

    /// Move its segment to the host now, and wait for that. False when it cannot move: somebody uses or has pinned a
    /// part of it.
    pub fn evict(&self, check: &mut dyn FnMut() -> Result<()>) -> Result<bool> {
        self.pool.arena().evict(&self.block.segment, check)
    }

    /// A pointer to the block leaves our sight: its segment stays where it is until as many calls of `unexport`, or
    /// until the storage is dropped.
    pub fn export(&self) {
        // Whoever has the pointer may write what nobody here sees.
        super::registry::define(self.ptr(), self.bytes() as u64);
        if self.exports.fetch_add(1, Ordering::AcqRel) == 0 {
            self.block.segment.pin_exported();
        }
    }

    /// Does nothing when nothing is exported.
    pub fn unexport(&self) {
        let before = self.exports.fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| n.checked_sub(1));
        if before == Ok(1) {
            self.block.segment.unpin_exported();
        }
    }

    /// What reports of large holders say about the block (type, shape, whose it is).
    pub fn set_label(&self, label: &str) {
        if self.owns_segment() {
            self.block.segment.set_label(Some(label.into()));
        }
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        // SAFETY: the block is taken here only, and a drop runs once.
        let block = unsafe { ManuallyDrop::take(&mut self.block) };
        if super::is_shut_down() {
            std::mem::forget(self.owner.take());
            return;
        }
        if self.bytes() > 0 && self.listed && self.pool.is_listed() && !self.pool.is_private() && self.part.is_none() {
            // Before somebody else may get the memory.
            super::registry::remove(block.ptr);
        }
        if let Some(owner) = self.owner.take() {
            let mut uses = take(self.uses.get_mut());
            uses.note(&block.home, block.home.seq());
            return release(Until::Unused(uses), owner);
        }
        if *self.exports.get_mut() > 0 {
            block.segment.unpin_exported();
        }
        for _ in 0..*self.pins.get_mut() {
            block.segment.leave();
        }
        if self.part.is_some() {
            return;
        }
        let charged = if block.segment.class() == SegmentClass::Grow { block.segment.bytes() } else { self.charged };
        let keep = self.pool.give_back(block, charged, take(self.uses.get_mut()));
        // The pool may end here; nothing below touches it.
        drop(keep);
    }
}
