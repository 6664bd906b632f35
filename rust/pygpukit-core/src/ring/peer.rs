//! An actor of the device, as the host knows it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;

use super::mapped::{BulkInlet, BulkOutlet, Inlet, Message, Outlet, Word};

/// What happens to a message for which there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    Block,
    Reject,
    DropOldest,
    DropNew,
}

/// Fate of a message that was to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    Accepted,
    Rejected,
    Dropped,
    TimedOut,
    /// It came back as a dead letter.
    Died,
    /// It was accepted, and the answer has not come yet.
    Unanswered,
    /// The actor is to end, and takes no more.
    Closed,
}

/// Words an actor's owner on the device writes; by their order in `ring::Figure`.
#[derive(Clone, Copy, Debug)]
pub struct Seen(usize);

impl Seen {
    pub const NAMES: [&'static str; 16] = [
        "mode",
        "generation",
        "processed",
        "from_host",
        "sent",
        "displaced",
        "expired",
        "discarded",
        "failed",
        "restarts",
        "busy",
        "depth",
        "max_depth",
        "waiting",
        "dead",
        "reads",
    ];

    /// # Safety
    /// There are these words at this address, and the buckets behind them, which live as long as this value.
    pub unsafe fn new(address: usize) -> Seen {
        Seen(address)
    }

    pub fn word(&self, index: usize) -> u64 {
        debug_assert!(index < Seen::NAMES.len());
        // SAFETY: as `new` demands.
        unsafe { Word::new(self.0 + 8 * index) }.load()
    }

    /// Latencies counted by powers of two of nanoseconds.
    pub fn buckets(&self) -> [u32; 32] {
        // SAFETY: as `new` demands; they follow the figures.
        std::array::from_fn(|i| (unsafe { Word::new(self.0 + 128 + 8 * (i / 2)) }.load() >> (32 * (i % 2))) as u32)
    }

    pub(super) fn mode(&self) -> u64 {
        self.word(0)
    }

    pub(super) fn generation(&self) -> u64 {
        self.word(1)
    }

    pub(super) fn handled_of_host(&self) -> u64 {
        self.word(3)
    }
}

/// How an actor's messages travel.
pub enum Way {
    /// With all others'.
    Shared,
    /// In rings of its own.
    Own(Inlet, Outlet),
    /// Many at a time.
    Bulk(BulkInlet, BulkOutlet),
}

pub struct Peer {
    pub seen: Seen,
    /// How many of its messages the host took.
    pub taken: Word,
    pub way: Way,
    /// Messages of the host it has room for.
    pub room: u64,
    pub full: Full,
    /// Bytes of a payload.
    pub bytes: usize,
    pub kind: u32,
    pub(super) sent: Mutex<u64>,
    /// How many it takes at all; changes while `sent` is held.
    pub(super) most: AtomicU64,
    /// Up to which of them room was asked for.
    pub(super) asked: Mutex<u64>,
    pub(super) refused: AtomicU64,
    /// Answers to calls among what it sent.
    pub(super) answered: AtomicU64,
    pub(super) output: Mutex<VecDeque<Message>>,
    /// Who wants its output: threads that sleep, and event loops.
    pub(super) awaited: AtomicU32,
    /// Event loops that do.
    pub(super) watched: AtomicU32,
}

impl Peer {
    pub fn new(seen: Seen, taken: Word, way: Way, room: u64, full: Full, bytes: usize, kind: u32) -> Peer {
        let (sent, most, asked) = (Mutex::new(0), AtomicU64::new(u64::MAX), Mutex::new(0));
        let (refused, answered, output) = (AtomicU64::new(0), AtomicU64::new(0), Mutex::default());
        let (awaited, watched) = (AtomicU32::new(0), AtomicU32::new(0));
        Peer {
            seen,
            taken,
            way,
            room,
            full,
            bytes,
            kind,
            sent,
            most,
            asked,
            refused,
            answered,
            output,
            awaited,
            watched,
        }
    }

    /// What the host sent, what it could not send, answers that came, and what waits to be received.
    pub fn counts(&self) -> (u64, u64, u64, u64) {
        let (refused, answered) = (self.refused.load(Ordering::Relaxed), self.answered.load(Ordering::Relaxed));
        (*self.sent.lock(), refused, answered, self.depth())
    }

    /// Take no more messages of the host than so many, counted from the first; than were sent, unless it is said.
    pub fn close(&self, most: Option<u64>) {
        let sent = self.sent.lock();
        self.most.fetch_min(most.unwrap_or(*sent).max(*sent), Ordering::Relaxed);
    }

    /// The actor need not wait for who receives any more.
    pub fn unbound(&self) {
        self.taken.add(1 << 40);
        self.awaited.fetch_add(1, Ordering::AcqRel);
    }

    /// Messages in the output.
    pub fn depth(&self) -> u64 {
        self.output.lock().len() as u64
    }
}
