//! Turns in which another library submits to the tenant's stream itself.
//!
//! Such a turn is held: it ends when it is let go of, not between two submissions. The stream keeps its handle meanwhile,
//! and its lane. Whoever wants the lane closes the turn as always, and is woken by the end.

use std::sync::Arc;
use std::thread::{self, ThreadId};

use smallvec::SmallVec;

use crate::device::RawStream;
use crate::error::{Error, Result};
use crate::stream::Stream;

use super::gate::{Gate, Inner};
use super::lease::{Lease, Own};

/// A turn held for longer is waited for, rather than looked at again and again.
const LONG_NS: u64 = 1_000_000;

/// Who holds a turn.
#[derive(Default)]
pub(super) struct Held {
    holders: SmallVec<[(ThreadId, Arc<Stream>); 2]>,
    since: u64,
    /// Such a tenant keeps to its own SMs: lent ones could not be given back at once.
    ever: bool,
}

impl Held {
    #[inline]
    pub fn any(&self) -> bool {
        !self.holders.is_empty()
    }

    pub fn ever(&self) -> bool {
        self.ever
    }

    /// Does this thread hold it?
    pub fn is_here(&self) -> bool {
        let here = thread::current().id();
        self.holders.iter().any(|(thread, _)| *thread == here)
    }

    /// Has it been held for longer than turns usually are?
    pub fn is_long(&self, now: u64) -> bool {
        self.any() && now > self.since + LONG_NS
    }

    fn begin(&mut self, stream: &Arc<Stream>, now: u64) {
        stream.hold();
        if self.holders.is_empty() {
            self.since = now;
        }
        self.holders.push((thread::current().id(), stream.clone()));
    }

    /// False: this thread does not hold it.
    fn end(&mut self) -> bool {
        let here = thread::current().id();
        let last = self.holders.iter().rposition(|(thread, _)| *thread == here);
        if let Some(at) = last {
            self.holders.remove(at).1.release();
        }
        last.is_some()
    }

    fn end_all(&mut self) {
        for (_, stream) in self.holders.drain(..) {
            stream.release();
        }
    }
}

impl Lease {
    /// Wait for a turn and hold it for work of this kind, which somebody else submits to the handle that is returned, until
    /// as many calls of `end_external` in this thread. What the thread submits here meanwhile is in the same turn.
    pub fn begin_external(self: &Arc<Self>, stream: &Arc<Stream>, kind: u64) -> Result<RawStream> {
        loop {
            {
                let now = self.gate().now();
                let mut own = self.own();
                let own = &mut *own;
                // Not while the turn is on lent SMs: `advance` leaves them first.
                let ready = std::mem::replace(&mut own.held.ever, true);
                let inside = own.held.any() && own.held.is_here() && own.has(stream);
                if inside || (ready && self.reserve(own, stream, kind, now).is_some()) {
                    own.held.begin(stream, now);
                    return Ok(stream.raw());
                }
            }
            self.await_turn(stream, kind)?;
        }
    }

    /// Let go of the turn. With `measured` the batch ends here, so that its time is known apart from what follows.
    /// Nothing happens when this thread does not hold it.
    pub fn end_external(self: &Arc<Self>, measured: bool) {
        let mut own = self.own();
        if !own.held.end() || own.held.any() {
            return;
        }
        let closed = !own.holds;
        drop(own);
        if measured || closed {
            self.after_external();
        }
    }

    /// The task is over: whoever still holds its turn does not any more.
    pub fn end_all_external(self: &Arc<Self>) {
        let mut own = self.own();
        if own.held.any() {
            own.held.end_all();
            drop(own);
            self.after_external();
        }
    }

    /// Does this thread hold the turn?
    pub fn holds_external(&self) -> bool {
        self.own().held.is_here()
    }

    fn after_external(self: &Arc<Self>) {
        let gate = self.gate();
        let mut inner = gate.lock();
        inner.end_batch(gate, self);
        if inner.closing {
            // Should the end not be marked now, whoever is next does it.
            let _ = inner.settle(gate);
        }
        inner.wake_next();
    }
}

impl Inner {
    /// The tenant's open batch ends here, unless somebody still submits to it.
    fn end_batch(&mut self, gate: &Gate, lease: &Arc<Lease>) {
        let mut own = lease.own();
        if own.held.any() || !self.turns.holds(lease.seat()) {
            return;
        }
        for stream in &own.streams {
            // What was submitted past us has a number from now on.
            stream.note_wait();
        }
        // What cannot be marked now is charged as predicted.
        if self.cut(gate, lease, &mut own).is_err() {
            self.give_up(gate, lease, &mut own);
        }
        own.busy_until = own.busy_until.max(gate.now());
    }

    /// The tenant waits: its batch ends before the pause, or the pause would be in it.
    pub(super) fn pause(&mut self, gate: &Gate, lease: &Arc<Lease>) -> Result<()> {
        let mut own: parking_lot::MutexGuard<'_, Own> = lease.own();
        if own.held.any() { Ok(()) } else { self.cut(gate, lease, &mut own) }
    }

    /// Let a further stream into a turn that this thread holds. False: it is in use elsewhere.
    pub(super) fn join_held(&mut self, gate: &Gate, lease: &Arc<Lease>, stream: &Arc<Stream>) -> Result<bool> {
        if !lease.own().has(stream) {
            if !self.admit(gate, lease, stream)? {
                return Ok(false);
            }
            lease.own().streams.push(stream.clone());
        }
        Ok(true)
    }

    /// End a turn on lent SMs of a tenant that could not give them back at once.
    pub(super) fn leave_lent(&mut self, lease: &Lease) -> bool {
        let leaves = self.is_wide() && self.turns.holds(lease.seat()) && lease.own().held.ever();
        if leaves {
            self.close();
        }
        leaves
    }

    /// Nobody waits for a turn that its own thread holds: a coroutine of another task, or a task inside of the block.
    pub(super) fn refuse_own_wait(&self) -> Result<()> {
        let holder = self.turns.holder().and_then(|seat| self.seats.get(seat)?.as_ref());
        match holder.filter(|lease| lease.holds_external()) {
            Some(lease) => Err(Error::Device(format!(
                "task '{}' has the lane for another library in this very thread, which cannot wait for it: inside of \
                 external() do not await, and begin no other tasks in the same thread",
                lease.name()
            ))),
            None => Ok(()),
        }
    }
}
