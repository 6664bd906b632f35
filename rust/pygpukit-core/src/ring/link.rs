//! The host's end of a ring kernel: messages to actors, what comes back, orders, and who waits for what.
//!
//! Whoever waits reads the device's ring itself, for all; a keeper thread does so for those who sleep, and keeps the
//! heartbeat. No call here reaches the driver, so nothing can wait for the resident kernel to end.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::error::Result;

use super::mapped::{BulkInlet, BulkOutlet, DEAD, HOST, Header, Inlet, Message, Outlet, REPLY, Word};

/// How long a thread spins before it sleeps.
const SPIN: Duration = Duration::from_micros(100);

/// How long it sleeps between two looks while it waits for room.
const NAP: Duration = Duration::from_micros(50);

/// The keeper's longest sleep while nobody waits.
const IDLE: Duration = Duration::from_millis(1);

/// Most dead letters kept.
const LETTERS: usize = 1024;

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
}

/// Words an actor's owner on the device writes; by their order in `ring::Seen`.
#[derive(Clone, Copy, Debug)]
pub struct Seen(usize);

impl Seen {
    pub const NAMES: [&'static str; 12] = [
        "mode",
        "generation",
        "processed",
        "from_host",
        "sent",
        "dropped",
        "dead",
        "failed",
        "restarts",
        "busy_ns",
        "depth",
        "max_depth",
    ];

    /// # Safety
    /// There is a `ring::Seen` at this address, which lives as long as this value.
    pub unsafe fn new(address: usize) -> Seen {
        Seen(address)
    }

    pub fn word(&self, index: usize) -> u64 {
        debug_assert!(index < Seen::NAMES.len());
        // SAFETY: as `new` demands.
        unsafe { Word::new(self.0 + 8 * index) }.load()
    }

    fn mode(&self) -> u64 {
        self.word(0)
    }

    fn generation(&self) -> u64 {
        self.word(1)
    }

    fn from_host(&self) -> u64 {
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

/// One actor, as the host knows it.
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
    sent: Mutex<u64>,
    refused: AtomicU64,
    output: Mutex<VecDeque<Message>>,
}

impl Peer {
    pub fn new(seen: Seen, taken: Word, way: Way, room: u64, full: Full, bytes: usize, kind: u32) -> Peer {
        let (sent, refused, output) = (Mutex::new(0), AtomicU64::new(0), Mutex::default());
        Peer { seen, taken, way, room, full, bytes, kind, sent, refused, output }
    }

    /// What the host sent, what it could not send, and what waits to be received.
    pub fn counts(&self) -> (u64, u64, u64) {
        (*self.sent.lock(), self.refused.load(Ordering::Relaxed), self.output.lock().len() as u64)
    }
}

#[derive(Default)]
struct Call {
    reply: Mutex<Option<Message>>,
    done: AtomicBool,
}

/// Orders to the kernel's warden: 64 bytes each.
pub struct Orders {
    pub tail: Word,
    pub head: Word,
    pub base: usize,
    pub count: u64,
    pub written: Mutex<u64>,
}

impl Orders {
    fn push(&self, order: [u64; 5]) {
        let mut written = self.written.lock();
        while *written - self.head.load() >= self.count {
            std::thread::sleep(NAP);
        }
        let slot = self.base + 64 * (*written % self.count) as usize;
        for (index, value) in order.into_iter().enumerate() {
            // SAFETY: one of the slots, which the warden has taken.
            unsafe { Word::new(slot + 8 * index) }.store(value);
        }
        *written += 1;
        self.tail.store(*written);
    }
}

/// Verbs of orders.
const SET_MODE: u64 = 1;
const LEAVE: u64 = 2;

type Arrival = Box<dyn Fn() + Send + Sync>;

pub struct Link {
    pub peers: Vec<Peer>,
    common_in: Inlet,
    common_out: Outlet,
    orders: Orders,
    /// The host's heartbeat, the device's, and how the last launch ended.
    beat: Word,
    pub device_beat: Word,
    pub exited: Word,
    generation: AtomicU64,
    next_id: AtomicU64,
    calls: Mutex<HashMap<u64, Arc<Call>>>,
    letters: Mutex<(VecDeque<Message>, u64)>,
    sleepers: AtomicU32,
    bell: (Mutex<()>, Condvar),
    on_arrival: Mutex<Option<Arrival>>,
    ended: AtomicBool,
    keeper: Mutex<Option<std::thread::JoinHandle<()>>>,
}

impl Link {
    pub fn new(peers: Vec<Peer>, common: (Inlet, Outlet), orders: Orders, beats: [Word; 2], exited: Word) -> Link {
        let (common_in, common_out) = common;
        let [beat, device_beat] = beats;
        Link {
            peers,
            common_in,
            common_out,
            orders,
            beat,
            device_beat,
            exited,
            generation: AtomicU64::new(0),
            next_id: AtomicU64::new(1),
            calls: Mutex::default(),
            letters: Mutex::default(),
            sleepers: AtomicU32::new(0),
            bell: (Mutex::new(()), Condvar::new()),
            on_arrival: Mutex::new(None),
            ended: AtomicBool::new(false),
            keeper: Mutex::new(None),
        }
    }

    /// Begin the heartbeat, and reading for those who sleep.
    pub fn start(self: &Arc<Self>) -> std::io::Result<()> {
        let mut keeper = self.keeper.lock();
        if keeper.is_none() {
            let link = self.clone();
            *keeper = Some(std::thread::Builder::new().name("pygpukit-ring".into()).spawn(move || link.keep())?);
        }
        Ok(())
    }

    pub fn stop(&self) {
        self.ended.store(true, Ordering::Release);
        self.bell.1.notify_all();
        if let Some(keeper) = self.keeper.lock().take() {
            keeper.thread().unpark();
            let _ = keeper.join();
        }
    }

    fn keep(&self) {
        let (mut beats, mut beaten, mut heard) = (0, Instant::now(), Instant::now());
        while !self.ended.load(Ordering::Acquire) {
            let now = Instant::now();
            if beats == 0 || now - beaten > Duration::from_millis(10) {
                (beats, beaten) = (beats + 1, now);
                self.beat.store(beats);
            }
            if self.drain() > 0 {
                heard = now;
            } else if self.sleepers.load(Ordering::Acquire) == 0 {
                std::thread::park_timeout(IDLE);
            } else if now - heard > SPIN {
                std::thread::park_timeout(NAP);
            } else {
                std::hint::spin_loop();
            }
        }
    }

    /// Tell this function whenever something arrives, from any thread.
    pub fn on_arrival(&self, arrival: Option<Arrival>) {
        *self.on_arrival.lock() = arrival;
    }

    /// A number no other message of the host has.
    pub fn new_ids(&self, count: u64) -> u64 {
        self.next_id.fetch_add(count, Ordering::Relaxed)
    }

    /// Hand out what the device has written, unless another thread does. Returns how many.
    fn drain(&self) -> u64 {
        let mut count = self.common_out.drain(|message| self.deliver(message));
        // What comes in bulk is left to those who want it: their rings are as large as they need to be.
        let asleep = self.sleepers.load(Ordering::Acquire) > 0;
        for peer in self.peers.iter().filter(|peer| asleep || !matches!(peer.way, Way::Bulk(..))) {
            count += self.drain_of(peer);
        }
        self.announce(count);
        count
    }

    fn drain_of(&self, peer: &Peer) -> u64 {
        match &peer.way {
            Way::Shared => 0,
            Way::Own(_, outlet) => outlet.drain(|message| self.deliver(message)),
            Way::Bulk(_, outlet) => {
                let Some(mut reader) = outlet.try_read() else { return 0 };
                let mut count = 0;
                while reader.next(|header, payload| self.deliver(Message { header, payload: payload.into() })).is_some()
                {
                    count += 1;
                }
                count
            }
        }
    }

    fn announce(&self, count: u64) {
        if count == 0 {
            return;
        }
        if self.sleepers.load(Ordering::Acquire) > 0 {
            let _guard = self.bell.0.lock();
            self.bell.1.notify_all();
        }
        if let Some(arrival) = &*self.on_arrival.lock() {
            arrival();
        }
    }

    fn deliver(&self, message: Message) {
        let header = message.header;
        if header.flags & DEAD != 0 {
            // A letter of a call that failed ends the call as well.
            if header.source == HOST && self.complete(header.id, message.clone()) {
                return;
            }
            let mut letters = self.letters.lock();
            letters.1 += 1;
            if letters.0.len() == LETTERS {
                letters.0.pop_front();
            }
            letters.0.push_back(message);
            return;
        }
        let Some(peer) = self.peers.get(header.source as usize) else { return };
        if header.flags & REPLY != 0 && self.complete(header.correlation, message.clone()) {
            peer.taken.add(1);
            return;
        }
        peer.output.lock().push_back(message);
    }

    fn complete(&self, id: u64, message: Message) -> bool {
        let Some(call) = self.calls.lock().remove(&id) else { return false };
        *call.reply.lock() = Some(message);
        call.done.store(true, Ordering::Release);
        true
    }

    /// Wait until something is there, reading for everybody meanwhile. None: it took too long.
    fn wait<T>(
        &self,
        of: Option<&Peer>,
        in_bulk: bool,
        timeout: Option<Duration>,
        check: &mut dyn FnMut() -> Result<()>,
        mut get: impl FnMut() -> Option<T>,
    ) -> Result<Option<T>> {
        let began = Instant::now();
        let mut looked = began;
        for turn in 0u32.. {
            // Whoever waits for one actor looks at the others now and then.
            match of {
                Some(peer) if turn % 16 != 15 && !matches!(peer.way, Way::Shared) => {
                    if !matches!(peer.way, Way::Bulk(..)) || !in_bulk {
                        let count = self.drain_of(peer);
                        self.announce(count);
                    }
                }
                _ => _ = self.drain(),
            }
            if let Some(found) = get() {
                return Ok(Some(found));
            }
            let now = Instant::now();
            if timeout.is_some_and(|limit| now - began >= limit) {
                return Ok(None);
            }
            if now - began < SPIN {
                std::hint::spin_loop();
                continue;
            }
            if now - looked > Duration::from_millis(5) {
                check()?;
                looked = now;
            }
            let mut guard = self.bell.0.lock();
            if self.sleepers.fetch_add(1, Ordering::AcqRel) == 0
                && let Some(keeper) = &*self.keeper.lock()
            {
                keeper.thread().unpark();
            }
            self.bell.1.wait_for(&mut guard, NAP * 20);
            self.sleepers.fetch_sub(1, Ordering::AcqRel);
        }
        Ok(None)
    }

    /// Send messages to one actor; `message` gives each one's header and payload. Returns how many were accepted, and
    /// what became of the next.
    pub fn send<'a>(
        &self,
        actor: usize,
        count: u64,
        timeout: Option<Duration>,
        check: &mut dyn FnMut() -> Result<()>,
        message: impl Fn(u64) -> (Header, &'a [u8]),
    ) -> Result<(u64, Sent)> {
        let peer = &self.peers[actor];
        let (began, mut looked) = (Instant::now(), Instant::now());
        let mut done = 0;
        loop {
            done += self.put(peer, count - done, &|index| message(done + index));
            if done == count {
                return Ok((done, Sent::Accepted));
            }
            match peer.full {
                Full::Reject | Full::DropNew => {
                    peer.refused.fetch_add(count - done, Ordering::Relaxed);
                    return Ok((done, if peer.full == Full::Reject { Sent::Rejected } else { Sent::Dropped }));
                }
                Full::Block | Full::DropOldest => {}
            }
            self.drain();
            let now = Instant::now();
            if timeout.is_some_and(|limit| now - began >= limit) {
                return Ok((done, Sent::TimedOut));
            }
            if now - looked > Duration::from_millis(5) {
                check()?;
                looked = now;
            }
            if now - began > SPIN {
                std::thread::sleep(NAP);
            }
        }
    }

    fn put<'a>(&self, peer: &Peer, count: u64, message: &dyn Fn(u64) -> (Header, &'a [u8])) -> u64 {
        let mut sent = peer.sent.lock();
        let pushed = match &peer.way {
            Way::Own(inlet, _) => inlet.push(count, message),
            Way::Bulk(inlet, _) => inlet.push(count, message),
            Way::Shared => {
                let room = peer.room.saturating_sub(*sent - peer.seen.from_host());
                self.common_in.push(count.min(room), message)
            }
        };
        *sent += pushed;
        pushed
    }

    /// Send a message and wait for the reply to it. None: it took too long, and a later reply goes to the output.
    pub fn call(
        &self,
        actor: usize,
        header: Header,
        payload: &[u8],
        timeout: Option<Duration>,
        check: &mut dyn FnMut() -> Result<()>,
    ) -> Result<(Sent, Option<Message>)> {
        let call = Arc::new(Call::default());
        self.calls.lock().insert(header.id, call.clone());
        let sent = self.send(actor, 1, timeout, check, |_| (header, payload));
        let outcome = match sent {
            Ok((1, _)) => self
                .wait(Some(&self.peers[actor]), false, timeout, check, || {
                    call.done.load(Ordering::Acquire).then(|| call.reply.lock().take()).flatten()
                })
                .map(|reply| (if reply.is_some() { Sent::Accepted } else { Sent::TimedOut }, reply)),
            Ok((_, fate)) => Ok((fate, None)),
            Err(error) => Err(error),
        };
        self.calls.lock().remove(&header.id);
        outcome
    }

    /// The next message of an actor's output.
    pub fn receive(
        &self,
        actor: usize,
        timeout: Option<Duration>,
        check: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Option<Message>> {
        let peer = &self.peers[actor];
        let message = self.wait(Some(peer), false, timeout, check, || peer.output.lock().pop_front())?;
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
        check: &mut dyn FnMut() -> Result<()>,
    ) -> Result<usize> {
        let peer = &self.peers[actor];
        let wanted = rows.len() / row.max(1);
        let mut places = rows.chunks_exact_mut(row.max(1));
        let mut count = 0;
        let found = self.wait(Some(peer), true, timeout, check, || {
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
                let called = !self.calls.lock().is_empty();
                while count < wanted {
                    let taken = reader.next(|header, payload| {
                        if !(called && self.is_called(header.correlation))
                            && let Some(place) = places.next()
                        {
                            let bytes = place.len().min(payload.len());
                            place[..bytes].copy_from_slice(&payload[..bytes]);
                            count += 1;
                        } else {
                            self.deliver(Message { header, payload: payload.into() });
                        }
                    });
                    if taken.is_none() {
                        break;
                    }
                }
            }
            (count > 0).then_some(())
        })?;
        debug_assert!(found.is_some() || count == 0);
        if count > 0 {
            peer.taken.add(count as u64);
        }
        Ok(count)
    }

    fn is_called(&self, id: u64) -> bool {
        self.calls.lock().contains_key(&id)
    }

    /// Tell the device what an actor shall do; it has answered when this returns true.
    pub fn set_mode(
        &self,
        actor: usize,
        mode: u64,
        timeout: Option<Duration>,
        check: &mut dyn FnMut() -> Result<()>,
    ) -> Result<bool> {
        let peer = &self.peers[actor];
        let generation = self.generation.fetch_add(1, Ordering::Relaxed) + 1;
        let sent = *peer.sent.lock();
        self.orders.push([SET_MODE, actor as u64, mode, generation, sent]);
        let answered = || (peer.seen.generation() >= generation || peer.seen.mode() >= 4).then_some(());
        Ok(self.wait(Some(peer), false, timeout, check, answered)?.is_some())
    }

    /// Ask the kernel to leave the device; true when all of it has. `launch` is the number it was launched with.
    pub fn leave(&self, launch: u64, timeout: Duration) -> Result<bool> {
        self.orders.push([LEAVE, 0, 0, 0, 0]);
        self.await_exit(launch, timeout)
    }

    pub fn await_exit(&self, launch: u64, timeout: Duration) -> Result<bool> {
        let exited = || (self.exited.load() >> 8 >= launch).then_some(());
        Ok(self.wait(None, false, Some(timeout), &mut || Ok(()), exited)?.is_some())
    }

    /// Dead letters since the last look, and how many there were in all.
    pub fn letters(&self) -> (Vec<Message>, u64) {
        self.drain();
        let mut letters = self.letters.lock();
        (letters.0.drain(..).collect(), letters.1)
    }
}
