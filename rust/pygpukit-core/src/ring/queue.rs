//! A mailbox: a bounded queue with priorities, a policy for when it is full, and those who wait for it.
//!
//! The queue has no clock and never sleeps: time is an argument, and a wait is an object it calls when there is something
//! to come back for. A caller who was woken asks again; somebody else may have been faster.

use std::collections::VecDeque;

use smallvec::SmallVec;

use super::histogram::Histogram;
use super::sync::{Mutex, MutexGuard};

/// No deadline.
pub const NEVER: u64 = u64::MAX;

/// Somebody who waits.
pub trait Wake {
    /// Let them ask again; false when they do not wait any more, and another has to be woken.
    fn wake(self) -> bool;
}

/// What happens to a message for a full queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The sender waits.
    Block,
    /// The sender is told.
    Reject,
    /// The least urgent message goes, the oldest of them first.
    DropOldest,
    /// The new message goes.
    DropNew,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Accepted,
    Dropped,
    Rejected,
    /// The policy is to wait.
    Full,
    Closed,
}

/// What became of a message.
#[derive(Debug)]
pub struct Put<T> {
    pub outcome: Outcome,
    /// The message that is not in the queue: the displaced one when the new one was accepted, else the new one.
    pub returned: Option<T>,
}

#[derive(Debug)]
pub enum Get<T> {
    Item(T),
    Empty,
    /// Closed, and nothing is left.
    Finished,
}

/// What happened so far. `accepted` is `delivered + displaced + expired + discarded` and what is in the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub accepted: u64,
    pub rejected: u64,
    /// Dropped instead of being accepted.
    pub dropped: u64,
    /// Accepted, then dropped for a newer one.
    pub displaced: u64,
    pub expired: u64,
    pub discarded: u64,
    pub delivered: u64,
    /// Delivered, and the consumer came back for more.
    pub done: u64,
    /// Delivered, and the consumer failed.
    pub failed: u64,
    pub depth: usize,
    pub max_depth: usize,
}

struct Item<T> {
    value: T,
    priority: u8,
    deadline: u64,
    accepted: u64,
}

/// What is measured of a queue with one consumer.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// Nanoseconds from acceptance to delivery.
    pub wait: Histogram,
    /// Nanoseconds from acceptance until the consumer came back.
    pub latency: Histogram,
    /// Nanoseconds the consumer spent with messages.
    pub busy: u64,
    /// When what it works on was accepted.
    serving: SmallVec<[u64; 4]>,
    since: u64,
}

impl Measured {
    fn finish(&mut self, now: u64) -> u64 {
        if self.serving.is_empty() {
            return 0;
        }
        self.busy += now.saturating_sub(self.since);
        for accepted in &self.serving {
            self.latency.record(now.saturating_sub(*accepted));
        }
        let done = self.serving.len() as u64;
        self.serving.clear();
        done
    }
}

type Waiters<W> = VecDeque<(u64, W)>;
type Woken<W> = SmallVec<[W; 2]>;

struct State<T, W> {
    /// Most urgent first, and in the order of arrival among equals.
    items: VecDeque<Item<T>>,
    capacity: usize,
    paused: bool,
    closed: bool,
    getters: Waiters<W>,
    putters: Waiters<W>,
    /// They wait for the consumer to stand still.
    watchers: Waiters<W>,
    tickets: u64,
    counts: Counts,
    measured: Option<Box<Measured>>,
}

pub struct Queue<T, W> {
    state: Mutex<State<T, W>>,
    policy: Policy,
}

fn wake_all<W>(waiters: &mut Waiters<W>, woken: &mut Woken<W>) {
    woken.extend(waiters.drain(..).map(|(_, waiter)| waiter));
}

impl<T, W> State<T, W> {
    fn ticket(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets
    }

    /// Somebody for whom there is something. One of each is enough: who was woken comes back here, and wakes the next.
    fn stir(&mut self, woken: &mut Woken<W>) {
        if let Some((_, waiter)) = (!self.paused && !self.items.is_empty()).then(|| self.getters.pop_front()).flatten()
        {
            woken.push(waiter);
        }
        if let Some((_, waiter)) = (self.items.len() < self.capacity).then(|| self.putters.pop_front()).flatten() {
            woken.push(waiter);
        }
        if self.parked() {
            wake_all(&mut self.watchers, woken);
        }
    }

    fn parked(&self) -> bool {
        self.paused && !self.getters.is_empty()
    }

    fn insert(&mut self, item: Item<T>) {
        // Nearly always all priorities are equal, and this is all there is to do.
        if self.items.back().is_none_or(|last| last.priority >= item.priority) {
            self.items.push_back(item);
        } else {
            let at = self.items.partition_point(|other| other.priority >= item.priority);
            self.items.insert(at, item);
        }
        self.counts.accepted += 1;
        self.counts.max_depth = self.counts.max_depth.max(self.items.len());
    }

    /// Make room by the oldest of the least urgent messages; none when the new one is less urgent than all.
    fn displace(&mut self, priority: u8) -> Option<T> {
        let lowest = self.items.back()?.priority;
        if priority < lowest {
            return None;
        }
        let at = self.items.partition_point(|other| other.priority > lowest);
        let displaced = self.items.remove(at)?;
        self.counts.displaced += 1;
        Some(displaced.value)
    }

    /// The next message; those that are too late are moved to `late`.
    fn take(&mut self, now: u64, late: &mut Vec<T>) -> Option<T> {
        while let Some(item) = self.items.pop_front() {
            if item.deadline < now {
                self.counts.expired += 1;
                late.push(item.value);
                continue;
            }
            self.counts.delivered += 1;
            if let Some(measured) = &mut self.measured {
                measured.wait.record(now.saturating_sub(item.accepted));
                measured.since = now;
                measured.serving.push(item.accepted);
            }
            return Some(item.value);
        }
        None
    }

    fn finish(&mut self, now: u64) {
        if let Some(measured) = &mut self.measured {
            self.counts.done += measured.finish(now);
        }
    }

    /// The time, where the next message depends on it: a clock takes as long to read as a message to take.
    fn time(&self, now: impl FnOnce() -> u64) -> u64 {
        let is_needed = self.measured.is_some() || self.items.front().is_some_and(|item| item.deadline != NEVER);
        if is_needed { now() } else { 0 }
    }
}

impl<T, W: Wake> Queue<T, W> {
    /// `measured`: there is one consumer, whose coming back means that it is done with what it had.
    pub fn new(capacity: usize, policy: Policy, measured: bool) -> Queue<T, W> {
        let state = State {
            items: VecDeque::new(),
            capacity: capacity.max(1),
            paused: false,
            closed: false,
            getters: VecDeque::new(),
            putters: VecDeque::new(),
            watchers: VecDeque::new(),
            tickets: 0,
            counts: Counts::default(),
            measured: measured.then(Box::default),
        };
        Queue { state: Mutex::new(state), policy }
    }

    /// Wake those collected under the lock, without it; who is gone already passes it on.
    fn rouse(&self, mut woken: Woken<W>) {
        while !woken.is_empty() {
            let mut next = Woken::new();
            for waiter in woken.drain(..) {
                if !waiter.wake() {
                    self.state.lock().stir(&mut next);
                }
            }
            woken = next;
        }
    }

    fn release(&self, mut state: MutexGuard<'_, State<T, W>>) {
        let mut woken = Woken::new();
        state.stir(&mut woken);
        drop(state);
        self.rouse(woken);
    }

    pub fn put(&self, value: T, priority: u8, deadline: u64, now: impl FnOnce() -> u64) -> Put<T> {
        let mut state = self.state.lock();
        let over = |outcome, value| Put { outcome, returned: Some(value) };
        if state.closed {
            return over(Outcome::Closed, value);
        }
        let mut returned = None;
        if state.items.len() >= state.capacity {
            match self.policy {
                Policy::Block => return over(Outcome::Full, value),
                Policy::Reject => {
                    state.counts.rejected += 1;
                    return over(Outcome::Rejected, value);
                }
                Policy::DropNew => {
                    state.counts.dropped += 1;
                    return over(Outcome::Dropped, value);
                }
                Policy::DropOldest => match state.displace(priority) {
                    Some(displaced) => returned = Some(displaced),
                    None => {
                        state.counts.dropped += 1;
                        return over(Outcome::Dropped, value);
                    }
                },
            }
        }
        let accepted = if state.measured.is_some() { now() } else { 0 };
        state.insert(Item { value, priority, deadline, accepted });
        self.release(state);
        Put { outcome: Outcome::Accepted, returned }
    }

    /// Take the next message. What has expired on the way is added to `late`.
    pub fn get(&self, now: impl FnOnce() -> u64, late: &mut Vec<T>) -> Get<T> {
        let mut state = self.state.lock();
        let now = state.time(now);
        state.finish(now);
        if state.paused {
            return Get::Empty;
        }
        let got = match state.take(now, late) {
            Some(value) => Get::Item(value),
            None if state.closed => Get::Finished,
            None => Get::Empty,
        };
        self.release(state);
        got
    }

    /// Take up to `most` messages that are there.
    pub fn get_many(&self, most: usize, now: u64, late: &mut Vec<T>) -> Vec<T> {
        let mut state = self.state.lock();
        state.finish(now);
        if state.paused {
            return Vec::new();
        }
        let mut taken = Vec::with_capacity(most.min(state.items.len()));
        while taken.len() < most
            && let Some(value) = state.take(now, late)
        {
            taken.push(value);
        }
        self.release(state);
        taken
    }

    /// Messages that were taken, with priority and deadline, are in it again, before others of their priority; also where
    /// there is no room. Not for a queue that is measured: its consumer has begun with them.
    pub fn give_back(&self, taken: Vec<(T, u8, u64)>) {
        let mut state = self.state.lock();
        debug_assert!(state.measured.is_none());
        state.counts.delivered -= taken.len() as u64;
        for (value, priority, deadline) in taken.into_iter().rev() {
            let at = state.items.partition_point(|other| other.priority > priority);
            state.items.insert(at, Item { value, priority, deadline, accepted: 0 });
        }
        self.release(state);
    }

    /// Wait for a message; None when it is time to ask. A consumer that waits here or below stands still.
    pub fn await_item(&self, waiter: W) -> Option<u64> {
        self.await_getting(waiter, |state| state.paused || (state.items.is_empty() && !state.closed))
    }

    /// Wait until the queue is not paused; None when it is not.
    pub fn await_active(&self, waiter: W) -> Option<u64> {
        self.await_getting(waiter, |state| state.paused)
    }

    fn await_getting(&self, waiter: W, is_needed: impl FnOnce(&State<T, W>) -> bool) -> Option<u64> {
        let mut state = self.state.lock();
        if !is_needed(&state) {
            return None;
        }
        let ticket = state.ticket();
        state.getters.push_back((ticket, waiter));
        self.release(state);
        Some(ticket)
    }

    /// Wait for room; None when it is time to try.
    pub fn await_space(&self, waiter: W) -> Option<u64> {
        let mut state = self.state.lock();
        if state.closed || state.items.len() < state.capacity {
            return None;
        }
        let ticket = state.ticket();
        state.putters.push_back((ticket, waiter));
        Some(ticket)
    }

    /// Wait until the consumer of a paused queue stands still; None when it does, or the queue is not paused.
    pub fn await_parked(&self, waiter: W) -> Option<u64> {
        let mut state = self.state.lock();
        if !state.paused || state.parked() {
            return None;
        }
        let ticket = state.ticket();
        state.watchers.push_back((ticket, waiter));
        Some(ticket)
    }

    /// Give up a wait. When it was woken already, somebody else is woken in its place.
    pub fn forget(&self, ticket: u64) {
        self.forget_where(|known, _| known == ticket);
    }

    /// The same for the one wait of which this is true.
    pub fn forget_where(&self, is_it: impl Fn(u64, &W) -> bool) {
        let mut state = self.state.lock();
        let State { getters, putters, watchers, .. } = &mut *state;
        let mut gone = None;
        for waiters in [getters, putters, watchers] {
            if let Some(at) = waiters.iter().position(|(ticket, waiter)| is_it(*ticket, waiter)) {
                gone = waiters.remove(at);
                break;
            }
        }
        match gone {
            Some(waiter) => {
                drop(state);
                // Dropped without the lock: its end may run the caller's code.
                drop(waiter);
            }
            None => self.release(state),
        }
    }

    /// Deliver nothing until `resume`.
    pub fn pause(&self) {
        let mut state = self.state.lock();
        state.paused = !state.closed;
        self.release(state);
    }

    pub fn resume(&self) {
        let mut state = self.state.lock();
        state.paused = false;
        let mut woken = Woken::new();
        wake_all(&mut state.getters, &mut woken);
        wake_all(&mut state.watchers, &mut woken);
        drop(state);
        self.rouse(woken);
    }

    /// Accept nothing more. What is there is still delivered, even if the queue was paused.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.paused = false;
        let mut woken = Woken::new();
        wake_all(&mut state.getters, &mut woken);
        wake_all(&mut state.putters, &mut woken);
        wake_all(&mut state.watchers, &mut woken);
        drop(state);
        self.rouse(woken);
    }

    /// Take everything out undelivered.
    pub fn discard(&self) -> Vec<T> {
        let mut state = self.state.lock();
        let gone: Vec<T> = state.items.drain(..).map(|item| item.value).collect();
        state.counts.discarded += gone.len() as u64;
        let mut woken = Woken::new();
        wake_all(&mut state.putters, &mut woken);
        drop(state);
        self.rouse(woken);
        gone
    }

    /// Room for so many from now on.
    pub fn set_capacity(&self, capacity: usize) {
        let mut state = self.state.lock();
        state.capacity = capacity.max(1);
        let mut woken = Woken::new();
        wake_all(&mut state.putters, &mut woken);
        drop(state);
        self.rouse(woken);
    }

    /// The consumer is done with what it had, and does not ask for more now.
    pub fn finish(&self, now: u64) {
        self.state.lock().finish(now);
    }

    /// The consumer failed with what it had; how many messages that were.
    pub fn fail(&self) -> u64 {
        let mut state = self.state.lock();
        let lost = state.measured.as_mut().map_or(0, |measured| {
            let lost = measured.serving.len() as u64;
            measured.serving.clear();
            lost
        });
        state.counts.failed += lost;
        lost
    }

    pub fn counts(&self) -> Counts {
        let state = self.state.lock();
        Counts { depth: state.items.len(), ..state.counts }
    }

    pub fn measured(&self) -> Option<Measured> {
        self.state.lock().measured.as_deref().cloned()
    }

    pub fn capacity(&self) -> usize {
        self.state.lock().capacity
    }

    pub fn policy(&self) -> Policy {
        self.policy
    }

    pub fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    pub fn is_paused(&self) -> bool {
        self.state.lock().paused
    }

    /// Closed, and nothing is left.
    pub fn is_finished(&self) -> bool {
        let state = self.state.lock();
        state.closed && state.items.is_empty()
    }
}
