//! Messages to actors of the device and from them, and orders to it.

use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

use super::link::{CHECK, Call, Check, Link, NAP, SPIN, stay_awake};
use super::mapped::{ANSWER, DEAD, Header, MORE, Message};
use super::orders::{SET_MODE, TRAP, TRIM, monotonic_ns};
use super::park::patience;
use super::peer::{Full, Peer, Sent, Way};

/// How long the device may take to make room by dropping messages, unless the sender says.
const TRIMMED: Duration = Duration::from_secs(5);

/// How long the device's clock is waited for, unless the sender says.
const CLOCKED: Duration = Duration::from_secs(5);

/// One in so many messages says when it was sent.
const STAMPED: u64 = 16;

/// Modes from this one on are final.
const ENDED: u64 = 4;

/// Has it been given all that it takes?
fn is_closed(peer: &Peer) -> bool {
    let sent = peer.sent.lock();
    *sent == peer.most.load(Ordering::Relaxed)
}

/// A call whose message was sent, or is still to be sent.
pub struct Begun<'a> {
    link: &'a Link,
    peer: &'a Peer,
    call: Arc<Call>,
    header: Header,
    payload: &'a [u8],
    is_sent: bool,
}

impl Begun<'_> {
    /// Wait for the answer, and before that for room.
    pub fn finish(self, timeout: Option<Duration>, check: Check<'_>) -> Result<(Sent, Option<Message>)> {
        let fate = self.wait(timeout, check)?;
        if fate != Sent::Accepted {
            // It may have come in the moment of giving up; from now on it does not.
            self.link.calls.lock().remove(&self.header.id);
        }
        let reply = self.call.reply.lock().take();
        Ok(match &reply {
            Some(letter) if letter.header.flags & DEAD != 0 => (Sent::Died, reply),
            Some(_) => (Sent::Accepted, reply),
            // It is done without an answer: the actor has ended.
            None if fate == Sent::Accepted => (Sent::Closed, None),
            None => (fate, None),
        })
    }

    fn wait(&self, timeout: Option<Duration>, check: Check<'_>) -> Result<Sent> {
        let mut left = timeout;
        if !self.is_sent {
            let began = Instant::now();
            let (sent, fate) = self.link.send(self.call.actor, 1, timeout, check, |_| (self.header, self.payload))?;
            if sent == 0 {
                return Ok(fate);
            }
            left = timeout.map(|limit| limit.saturating_sub(began.elapsed()));
        }
        let is_done = || self.call.done.load(Ordering::Acquire).then_some(());
        let done = self.link.wait(Some(self.peer), false, left, check, is_done)?;
        Ok(if done.is_some() { Sent::Accepted } else { Sent::Unanswered })
    }
}

impl Drop for Begun<'_> {
    /// Of a call that nobody waits for any more the answer is one that comes late.
    fn drop(&mut self) {
        if !self.call.done.load(Ordering::Acquire) {
            self.link.calls.lock().remove(&self.header.id);
        }
        let late = self.call.reply.lock().take();
        if let Some(late) = late {
            self.link.put_back(late);
        }
    }
}

impl Link {
    /// Send messages to one actor; `message` gives each one's header and payload. Returns how many were accepted, and
    /// what became of the next.
    pub fn send<'a>(
        &self,
        actor: usize,
        count: u64,
        timeout: Option<Duration>,
        check: Check<'_>,
        message: impl Fn(u64) -> (Header, &'a [u8]),
    ) -> Result<(u64, Sent)> {
        self.check_failure()?;
        let peer = self.peer(actor)?;
        let mut done = self.put(peer, count, &message);
        self.stir_for_loops();
        if done == count {
            return Ok((done, Sent::Accepted));
        }
        if is_closed(peer) {
            return Ok((done, Sent::Closed));
        }
        let timeout = match peer.full {
            Full::Reject | Full::DropNew => {
                peer.refused.fetch_add(count - done, Ordering::Relaxed);
                return Ok((done, if peer.full == Full::Reject { Sent::Rejected } else { Sent::Dropped }));
            }
            Full::Block => timeout,
            Full::DropOldest => timeout.or(Some(TRIMMED)),
        };
        let began = Instant::now();
        let patience = patience(SPIN);
        let mut looked = began;
        loop {
            if peer.full == Full::DropOldest {
                // For as many as fit at a time.
                self.ask_for_room(peer, actor, (count - done).min(peer.room.max(1)));
            }
            self.drain();
            let now = Instant::now();
            if timeout.is_some_and(|limit| now - began >= limit) {
                return Ok((done, Sent::TimedOut));
            }
            if now - looked > CHECK {
                check()?;
                self.check_ended()?;
                looked = now;
            }
            if now - began > patience {
                std::thread::sleep(NAP);
            } else {
                stay_awake(now - began);
            }
            self.check_failure()?;
            done += self.put(peer, count - done, |index| message(done + index));
            if done == count {
                return Ok((done, Sent::Accepted));
            }
            if is_closed(peer) {
                return Ok((done, Sent::Closed));
            }
        }
    }

    /// Have the oldest messages go, once for every new one: whoever gives up leaves the room to the next.
    fn ask_for_room(&self, peer: &Peer, actor: usize, missing: u64) {
        let mut asked = peer.asked.lock();
        let sent = *peer.sent.lock();
        let until = sent + missing;
        // So many have to be gone then, handled or not.
        let gone = until.saturating_sub(peer.room);
        if until > *asked && self.orders.try_push([TRIM, actor as u64, gone, 0, 0]).is_some() {
            *asked = until;
        }
    }

    fn put<'a>(&self, peer: &Peer, count: u64, message: impl Fn(u64) -> (Header, &'a [u8])) -> u64 {
        self.put_next(peer, &mut peer.sent.lock(), count, message)
    }

    fn put_next<'a>(
        &self,
        peer: &Peer,
        sent: &mut u64,
        count: u64,
        message: impl Fn(u64) -> (Header, &'a [u8]),
    ) -> u64 {
        let first = *sent;
        let count = count.min(peer.most.load(Ordering::Relaxed) - first);
        let stamped = |index, is_due| {
            let (mut header, payload) = message(index);
            if is_due {
                header.stamp = self.stamp();
            }
            (header, payload)
        };
        let some = &|index| stamped(index, (first + index).is_multiple_of(STAMPED));
        let pushed = match &peer.way {
            Way::Own(inlet, _) => inlet.push(count, some),
            // Of those that are read together only the first is looked at.
            Way::Bulk(inlet, _) => {
                inlet.push(count, |index| stamped(index, index == 0 && first.is_multiple_of(STAMPED)))
            }
            Way::Shared => {
                let room = peer.room.saturating_sub(sent.saturating_sub(peer.seen.handled_of_host()));
                self.common_in.push(count.min(room), some)
            }
        };
        *sent += pushed;
        pushed
    }

    /// Now, as messages say it: the low half of the device's clock, and 0 while that is not known.
    #[cold]
    fn stamp(&self) -> u32 {
        let now = |offset| monotonic_ns().wrapping_add_signed(offset) as u32 | 1;
        self.resident.offset.get().map_or(0, now)
    }

    /// The first part of a call, which waits for nobody: send the message if that can be done now. An answer that comes after
    /// the caller has given up goes to those that nobody waits for.
    pub fn begin<'a>(&'a self, actor: usize, header: Header, payload: &'a [u8]) -> Result<Begun<'a>> {
        self.check_failure()?;
        let peer = self.peer(actor)?;
        let call = Arc::new(Call::new(actor));
        match self.calls.lock().entry(header.id) {
            Entry::Vacant(entry) => _ = entry.insert(call.clone()),
            Entry::Occupied(_) => return Err(Error::Value(format!("message {} is on its way already", header.id))),
        }
        // What all actors share may be in use for longer.
        let is_sent = !matches!(peer.way, Way::Shared)
            && peer
                .sent
                .try_lock()
                .is_some_and(|mut sent| self.put_next(peer, &mut sent, 1, |_| (header, payload)) == 1);
        self.stir_for_loops();
        Ok(Begun { link: self, peer, call, header, payload, is_sent })
    }

    /// An actor has ended: whoever waits for an answer of it is told so, unless that has come.
    pub fn end_calls(&self, actor: usize) -> Result<()> {
        let peer = self.peer(actor)?;
        self.drain_all(peer);
        self.calls.lock().retain(|_, call| {
            let is_left = call.actor != actor;
            if !is_left {
                call.done.store(true, Ordering::Release);
            }
            is_left
        });
        self.ring_bell();
        Ok(())
    }

    /// The next message of an actor's output.
    pub fn receive(&self, actor: usize, timeout: Option<Duration>, check: Check<'_>) -> Result<Option<Message>> {
        let peer = self.peer(actor)?;
        let message = self.wait(Some(peer), false, timeout, check, || peer.output.lock().pop_front())?;
        if message.is_some() {
            peer.taken.add(1);
        }
        Ok(message)
    }

    /// The same without waiting.
    pub fn try_receive(&self, actor: usize) -> Result<Option<Message>> {
        let peer = self.peer(actor)?;
        let mut message = peer.output.lock().pop_front();
        if message.is_none() {
            match &peer.way {
                Way::Shared => _ = self.drain(),
                _ => {
                    let mut news = false;
                    let count = self.drain_of(peer, &mut news);
                    self.announce(count, news);
                }
            }
            message = peer.output.lock().pop_front();
        }
        if message.is_some() {
            peer.taken.add(1);
        }
        Ok(message)
    }

    /// Messages of an actor's output into rows of `row` bytes; returns how many, at least one unless it took too long.
    /// When nothing waits in between, they go straight from the device's ring to where they are wanted.
    pub fn receive_into(
        &self,
        actor: usize,
        rows: &mut [u8],
        row: usize,
        timeout: Option<Duration>,
        check: Check<'_>,
    ) -> Result<usize> {
        let peer = self.peer(actor)?;
        let wanted = rows.len() / row.max(1);
        let mut places = rows.chunks_exact_mut(row.max(1));
        let mut count = 0;
        let outcome = self.wait(Some(peer), true, timeout, check, || {
            let mut output = peer.output.lock();
            while count < wanted {
                let Some(message) = output.pop_front() else { break };
                if let Some(place) = places.next() {
                    let bytes = place.len().min(message.payload.len());
                    place[..bytes].copy_from_slice(&message.payload[..bytes]);
                    count += 1;
                }
            }
            drop(output);
            if let Way::Bulk(_, outlet) = &peer.way
                && count < wanted
                && let Some(mut reader) = outlet.try_read()
            {
                let (mut others, mut news) = (0, false);
                while count < wanted {
                    let taken = reader.next(|header, payload| {
                        if header.flags & (ANSWER | DEAD) == 0
                            && let Some(place) = places.next()
                        {
                            let bytes = place.len().min(payload.len());
                            place[..bytes].copy_from_slice(&payload[..bytes]);
                            count += 1;
                        } else {
                            news |= self.deliver(Message { header, payload: payload.into() });
                            others += 1;
                        }
                    });
                    if taken.is_none() {
                        break;
                    }
                }
                drop(reader);
                self.announce(others, news);
            }
            (count > 0).then_some(())
        });
        if count > 0 {
            peer.taken.add(count as u64);
        }
        outcome.map(|_| count)
    }

    /// Rows that were taken are the first of an actor's output again. Their headers are not known any more.
    pub fn give_back(&self, actor: usize, rows: &[u8], row: usize) -> Result<()> {
        let peer = self.peer(actor)?;
        let rows = rows.chunks_exact(row.max(1));
        let count = rows.len() as u64;
        let mut output = peer.output.lock();
        for payload in rows.rev() {
            output.push_front(Message { header: Header::default(), payload: payload.into() });
        }
        drop(output);
        peer.taken.add(count.wrapping_neg());
        self.announce(count, peer.watched.load(Ordering::Acquire) > 0);
        Ok(())
    }

    /// Answers that no thread waits for, since the last look. Those that more follow are counted by `took`: whoever gets
    /// them may keep them waiting, and then their actor waits too.
    pub fn take_answers(&self) -> Vec<Message> {
        let answers = std::mem::take(&mut *self.answers.lock());
        for answer in answers.iter().filter(|answer| answer.header.flags & MORE == 0) {
            if let Some(peer) = self.peers.get(answer.header.source as usize) {
                peer.taken.add(1);
            }
        }
        answers
    }

    /// So many of an actor's answers that more follow are out of the way.
    pub fn took(&self, actor: usize, count: u64) -> Result<()> {
        self.peer(actor)?.taken.add(count);
        Ok(())
    }

    /// Dead letters that ended no call, since the last look.
    pub fn take_letters(&self) -> Vec<Message> {
        std::mem::take(&mut *self.letters.lock())
    }

    /// How many there were in all.
    pub fn letter_count(&self) -> u64 {
        self.letter_count.load(Ordering::Relaxed)
    }

    /// Give an order, when there is room for it; false if it took too long.
    fn order(&self, order: [u64; 5], timeout: Option<Duration>, check: Check<'_>) -> Result<bool> {
        Ok(self.wait(None, false, timeout, check, || self.orders.try_push(order))?.is_some())
    }

    /// Tell the device what an actor shall do; it has answered when this returns true. While the kernel is away the
    /// order waits for it.
    pub fn set_mode(&self, actor: usize, mode: u64, timeout: Option<Duration>, check: Check<'_>) -> Result<bool> {
        let peer = self.peer(actor)?;
        let began = Instant::now();
        let generation = self.generation.fetch_add(1, Ordering::Relaxed) + 1;
        // Until when it drains: all that it takes, or what it has been given.
        let sent = *peer.sent.lock();
        let last = Some(peer.most.load(Ordering::Relaxed)).filter(|most| *most != u64::MAX).unwrap_or(sent);
        if !self.order([SET_MODE, actor as u64, mode, generation, last], timeout, check)? {
            return Ok(false);
        }
        let left = timeout.map(|limit| limit.saturating_sub(began.elapsed()));
        let answered = || (peer.seen.generation() >= generation || peer.seen.mode() >= ENDED).then_some(());
        let done = self.wait(Some(peer), false, left, check, answered)?.is_some();
        // What the actor sent before is there too, and may have come after the last look.
        self.drain();
        Ok(done)
    }

    /// Have the kernel end itself by a trap, which ends CUDA in the process; false if the order found no room.
    pub fn trap(&self) -> bool {
        self.resident.aborted.store(true, std::sync::atomic::Ordering::Release);
        let ordered = self.orders.try_push([TRAP, 0, 0, 0, 0]).is_some();
        if !ordered {
            self.resident.aborted.store(false, std::sync::atomic::Ordering::Release);
        }
        ordered
    }

    /// A moment of the host's monotonic clock on the device's; 0 stays 0. Waits for the first look at that clock.
    pub fn to_device(&self, deadline: u64, timeout: Option<Duration>, check: Check<'_>) -> Result<u64> {
        if deadline == 0 {
            return Ok(0);
        }
        let offset = match self.resident.offset.get() {
            Some(offset) => offset,
            None => self
                .wait(None, false, timeout.or(Some(CLOCKED)), check, || self.resident.offset.get())?
                .ok_or_else(|| {
                    Error::Value(
                        "a deadline needs the device's clock, which is not known: bring the ring up first".into(),
                    )
                })?,
        };
        Ok(deadline.saturating_add_signed(offset).max(1))
    }

    /// The same the other way.
    pub fn to_host(&self, deadline: u64) -> u64 {
        match (deadline, self.resident.offset.get()) {
            (0, _) | (_, None) => deadline,
            (deadline, Some(offset)) => deadline.saturating_add_signed(offset.saturating_neg()).max(1),
        }
    }
}
