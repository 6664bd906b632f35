//! The host's end of a ring kernel: what comes back from the device, and who waits for it.
//!
//! Whoever waits reads the device's rings itself, for all; a keeper thread does so for those who sleep and for event
//! loops, keeps the heartbeat, and looks after the kernel (`resident`). Messages are sent and received in `calls`.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::error::{Error, Result};

use super::list::List;
use super::mapped::{ANSWER, BulkReader, DEAD, HOST, Inlet, Message, Outlet, Word};
use super::orders::Orders;
use super::park::patience;
use super::peer::{Peer, Way};
use super::resident::{Care, Resident};
use super::signal::Signal;

/// How long a thread spins before it sleeps, unless it has said otherwise.
pub(super) const SPIN: Duration = Duration::from_micros(100);

/// How long it sleeps between two looks.
pub(super) const NAP: Duration = Duration::from_micros(50);

/// The keeper's longest sleep.
const IDLE: Duration = Duration::from_millis(1);

/// How often a wait looks for signals.
pub(super) const CHECK: Duration = Duration::from_millis(5);

/// How often the host shows that it lives.
const BEAT: Duration = Duration::from_millis(10);

/// What a wait does now and then; an error ends it.
pub type Check<'a> = &'a mut dyn FnMut() -> Result<()>;

/// Somebody waits for an answer of an actor. It is done when that has come, or none will come.
pub(super) struct Call {
    pub actor: usize,
    pub reply: Mutex<Option<Message>>,
    pub done: AtomicBool,
}

impl Call {
    pub fn new(actor: usize) -> Call {
        Call { actor, reply: Mutex::new(None), done: AtomicBool::new(false) }
    }
}

/// Words that the host and the kernel share.
pub struct Words {
    /// The host's heartbeat, and the device's.
    pub beat: Word,
    pub device_beat: Word,
    /// Number of the last launch that ended, times 256, and how it did.
    pub exited: Word,
    /// The device's clock when it was last asked for.
    pub clock: Word,
    pub alarms: Alarms,
}

/// Words by which the device tells of handlers that do not return: how often that changed and how many there are, then
/// for each block the actor whose handler it is in, plus 1.
pub struct Alarms {
    base: usize,
    count: usize,
}

impl Alarms {
    /// # Safety
    /// There are `count` words at the address, aligned to 8, which live as long as this value.
    pub unsafe fn new(base: usize, count: usize) -> Alarms {
        Alarms { base, count }
    }

    /// Changes whenever an actor gets stuck, and when it is not any more.
    pub(super) fn state(&self) -> u64 {
        self.word(0).load()
    }

    /// Those that are.
    fn actors(&self) -> Vec<usize> {
        let many = self.state() as u32 as usize;
        let found = (1..self.count).filter_map(|block| (self.word(block).load() as usize).checked_sub(1));
        found.take(many).collect()
    }

    fn word(&self, index: usize) -> Word {
        // SAFETY: as `new` demands.
        unsafe { Word::new(self.base + 8 * index) }
    }
}

pub struct Link {
    pub(super) peers: List<Peer>,
    /// Those of them that have rings of their own.
    ringed: List<usize>,
    pub(super) common_in: Inlet,
    common_out: Outlet,
    pub(super) orders: Orders,
    pub(super) words: Words,
    pub(super) generation: AtomicU64,
    pub(super) calls: Mutex<HashMap<u64, Arc<Call>>>,
    pub(super) answers: Mutex<Vec<Message>>,
    pub(super) letters: Mutex<Vec<Message>>,
    pub(super) letter_count: AtomicU64,
    sleepers: AtomicU32,
    /// Event loops that wait for output, and answers that they wait for.
    watched: AtomicI64,
    expected: AtomicI64,
    /// Somebody has begun to wait.
    stirred: AtomicBool,
    bell: (Mutex<()>, Condvar),
    pub(super) signal: Signal,
    ended: AtomicBool,
    keeper: Mutex<Option<std::thread::JoinHandle<()>>>,
    keeper_thread: OnceLock<std::thread::Thread>,
    pub(super) resident: Resident,
    /// The process it belongs to: a forked child has neither the keeper nor the kernel.
    process: u32,
}

impl Link {
    pub fn new(common: (Inlet, Outlet), orders: Orders, words: Words) -> Link {
        let (common_in, common_out) = common;
        Link {
            peers: List::default(),
            ringed: List::default(),
            common_in,
            common_out,
            orders,
            words,
            generation: AtomicU64::new(0),
            calls: Mutex::default(),
            answers: Mutex::default(),
            letters: Mutex::default(),
            letter_count: AtomicU64::new(0),
            sleepers: AtomicU32::new(0),
            watched: AtomicI64::new(0),
            expected: AtomicI64::new(0),
            stirred: AtomicBool::new(false),
            bell: (Mutex::new(()), Condvar::new()),
            signal: Signal::default(),
            ended: AtomicBool::new(false),
            keeper: Mutex::new(None),
            keeper_thread: OnceLock::new(),
            resident: Resident::default(),
            process: std::process::id(),
        }
    }

    /// Add an actor, at any time; its number.
    pub fn add(&self, peer: Peer) -> Result<usize> {
        let has_rings = !matches!(peer.way, Way::Shared);
        let full = || Error::Value("a ring cannot have that many actors".to_string());
        let index = self.peers.push(peer).ok_or_else(full)?;
        if has_rings {
            self.ringed.push(index).ok_or_else(full)?;
        }
        Ok(index)
    }

    pub fn actors(&self) -> usize {
        self.peers.len()
    }

    pub fn peer(&self, actor: usize) -> Result<&Peer> {
        let there = || Error::Value(format!("there is no actor {actor}: this ring has {}", self.peers.len()));
        self.peers.get(actor).ok_or_else(there)
    }

    /// Actors whose handlers have worked on one message for longer than they may.
    pub fn stuck_actors(&self) -> Vec<usize> {
        self.words.alarms.actors()
    }

    /// Begin the heartbeat, and reading for those who sleep.
    pub fn start(self: &Arc<Self>) -> Result<()> {
        let mut keeper = self.keeper.lock();
        if keeper.is_none() && !self.ended.load(Ordering::Acquire) {
            let link = self.clone();
            let thread = std::thread::Builder::new().name("pygpukit-ring".into()).spawn(move || link.keep());
            let thread = thread.map_err(|error| Error::Device(format!("a ring needs a thread: {error}")))?;
            let _ = self.keeper_thread.set(thread.thread().clone());
            *keeper = Some(thread);
        }
        Ok(())
    }

    /// End the heartbeat and every wait. The kernel has left before.
    pub fn stop(&self) {
        self.ended.store(true, Ordering::Release);
        self.ring_bell();
        let keeper = self.keeper.lock().take();
        if let Some(keeper) = keeper
            && self.is_ours()
        {
            keeper.thread().unpark();
            let _ = keeper.join();
        }
    }

    /// Is this the process that made it?
    pub(super) fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }

    fn keep(&self) {
        let (mut beats, mut beaten, mut heard) = (0, Instant::now(), Instant::now());
        let mut care = Care::default();
        while !self.ended.load(Ordering::Acquire) {
            let now = Instant::now();
            if beats == 0 || now - beaten > BEAT {
                (beats, beaten) = (beats + 1, now);
                self.words.beat.store(beats);
            }
            self.care(&mut care, now);
            if self.stirred.swap(false, Ordering::AcqRel) {
                heard = now;
            }
            if self.drain() > 0 {
                heard = now;
            } else if !self.is_awaited() {
                std::thread::park_timeout(IDLE);
            } else if now - heard > SPIN {
                // The longer nothing comes, the longer it may take to be noticed.
                std::thread::park_timeout(((now - heard) / 8).clamp(NAP, IDLE));
            } else {
                std::hint::spin_loop();
            }
        }
    }

    /// Does anybody rely on the keeper?
    fn is_awaited(&self) -> bool {
        self.sleepers.load(Ordering::Acquire) > 0
            || self.watched.load(Ordering::Acquire) > 0
            || self.expected.load(Ordering::Acquire) > 0
    }

    /// Something was sent: event loops that wait for output shall hear of it soon.
    #[inline]
    pub(super) fn stir_for_loops(&self) {
        if self.watched.load(Ordering::Relaxed) > 0 {
            self.stir();
        }
    }

    /// Have the keeper look often for a while.
    fn stir(&self) {
        self.stirred.store(true, Ordering::Release);
        if let Some(keeper) = self.keeper_thread.get() {
            keeper.unpark();
        }
    }

    /// Tell event loops of news by this descriptor; -1 for none.
    pub fn set_signal(&self, descriptor: i32) {
        self.signal.set(descriptor);
    }

    /// The event loop is about to look for news.
    pub fn signalled(&self) {
        self.signal.seen();
    }

    /// An event loop waits for an actor's output, or does not any more.
    pub fn watch(&self, actor: usize, on: bool) -> Result<()> {
        let peer = self.peer(actor)?;
        if on {
            peer.watched.fetch_add(1, Ordering::AcqRel);
            peer.awaited.fetch_add(1, Ordering::AcqRel);
            self.watched.fetch_add(1, Ordering::AcqRel);
            self.stir();
            return Ok(());
        }
        let less = |count: u32| count.checked_sub(1);
        if peer.watched.fetch_update(Ordering::AcqRel, Ordering::Acquire, less).is_err() {
            return Err(Error::Value(format!("actor {actor} is not watched")));
        }
        peer.awaited.fetch_sub(1, Ordering::AcqRel);
        self.watched.fetch_sub(1, Ordering::AcqRel);
        Ok(())
    }

    /// Event loops wait for that many answers more, or less.
    pub fn expect(&self, count: i64) {
        self.expected.fetch_add(count, Ordering::AcqRel);
        if count > 0 {
            self.stir();
        }
    }

    /// Hand out what the device has written, unless another thread does. Returns how many.
    pub(super) fn drain(&self) -> u64 {
        let mut news = false;
        let mut count = self.common_out.drain(|message| news |= self.deliver(message));
        let expected = self.expected.load(Ordering::Acquire) > 0;
        for peer in self.ringed.iter().filter_map(|&index| self.peers.get(index)) {
            // What comes in bulk is left to those who want it: their rings are as large as they need to be.
            if !matches!(peer.way, Way::Bulk(..)) || expected || peer.awaited.load(Ordering::Acquire) > 0 {
                count += self.drain_of(peer, &mut news);
            }
        }
        self.announce(count, news);
        count
    }

    pub(super) fn drain_of(&self, peer: &Peer, news: &mut bool) -> u64 {
        match &peer.way {
            Way::Shared => 0,
            Way::Own(_, outlet) => outlet.drain(|message| *news |= self.deliver(message)),
            Way::Bulk(_, outlet) => self.drain_bulk(outlet.try_read(), news),
        }
    }

    fn drain_bulk(&self, reader: Option<BulkReader<'_>>, news: &mut bool) -> u64 {
        let Some(mut reader) = reader else { return 0 };
        let mut count = 0;
        while let Some(new) = reader.next(|header, payload| self.deliver(Message { header, payload: payload.into() })) {
            *news |= new;
            count += 1;
        }
        count
    }

    /// What an actor has written until now is handed out when this returns, also what another thread was about to.
    pub(super) fn drain_all(&self, peer: &Peer) {
        let mut news = false;
        let mut count = self.common_out.drain_all(|message| news |= self.deliver(message));
        count += match &peer.way {
            Way::Shared => 0,
            Way::Own(_, outlet) => outlet.drain_all(|message| news |= self.deliver(message)),
            Way::Bulk(_, outlet) => self.drain_bulk(outlet.read(), &mut news),
        };
        self.announce(count, news);
    }

    /// An actor has ended, and the kernel is away: let go of its rings. It takes nothing more. False while it has not taken
    /// all that was sent.
    pub fn retire(&self, actor: usize) -> Result<bool> {
        let peer = self.peer(actor)?;
        {
            let sent = peer.sent.lock();
            if *sent != peer.seen.handled_of_host() {
                return Ok(false);
            }
            peer.most.fetch_min(*sent, Ordering::Relaxed);
        }
        let is_closed = || match &peer.way {
            Way::Shared => true,
            Way::Own(_, outlet) => outlet.close(),
            Way::Bulk(_, outlet) => outlet.close(),
        };
        while !is_closed() {
            let mut news = false;
            let count = self.drain_of(peer, &mut news);
            self.announce(count, news);
        }
        Ok(true)
    }

    pub(super) fn announce(&self, count: u64, news: bool) {
        if count > 0 && self.sleepers.load(Ordering::Acquire) > 0 {
            self.ring_bell();
        }
        if news {
            self.signal.give();
        }
    }

    pub(super) fn ring_bell(&self) {
        let _guard = self.bell.0.lock();
        self.bell.1.notify_all();
    }

    /// Put a message where it belongs; whether event loops should look.
    pub(super) fn deliver(&self, message: Message) -> bool {
        let header = message.header;
        if header.flags & DEAD != 0 {
            let mut news = false;
            // What the actor answered before it failed has been written before.
            if let Some(peer) = self.peers.get(header.destination as usize) {
                self.drain_of(peer, &mut news);
            }
            // A letter of a call that failed ends the call, and that is all.
            let left = if header.source == HOST { self.complete(header.id, message) } else { Some(message) };
            let Some(message) = left else { return news };
            self.letter_count.fetch_add(1, Ordering::Relaxed);
            self.letters.lock().push(message);
            return true;
        }
        let Some(peer) = self.peers.get(header.source as usize) else { return false };
        if header.flags & ANSWER != 0 {
            peer.answered.fetch_add(1, Ordering::Relaxed);
            let Some(message) = self.complete(header.correlation, message) else {
                peer.taken.add(1);
                return false;
            };
            self.answers.lock().push(message);
            return true;
        }
        peer.output.lock().push_back(message);
        peer.watched.load(Ordering::Acquire) > 0
    }

    /// End the call that waits for this; the message again if there is none.
    fn complete(&self, id: u64, message: Message) -> Option<Message> {
        // Whoever gives up takes the call off, and then sees whether it was answered: so both happen as one.
        let mut calls = self.calls.lock();
        let Some(call) = calls.remove(&id) else { return Some(message) };
        *call.reply.lock() = Some(message);
        call.done.store(true, Ordering::Release);
        None
    }

    /// What ended a call whose caller has gone belongs to nobody.
    pub(super) fn put_back(&self, message: Message) {
        if message.header.flags & DEAD != 0 {
            self.letter_count.fetch_add(1, Ordering::Relaxed);
            self.letters.lock().push(message);
        } else {
            if let Some(peer) = self.peers.get(message.header.source as usize) {
                peer.taken.add(1u64.wrapping_neg());
            }
            self.answers.lock().push(message);
        }
        self.signal.give();
    }

    /// Wait until something is there, reading for everybody meanwhile. None: it took too long.
    pub(super) fn wait<T>(
        &self,
        of: Option<&Peer>,
        in_bulk: bool,
        timeout: Option<Duration>,
        check: Check<'_>,
        mut get: impl FnMut() -> Option<T>,
    ) -> Result<Option<T>> {
        let began = Instant::now();
        let patience = patience(SPIN);
        let mut looked = began;
        let mut slept = false;
        for turn in 0u32.. {
            // Whoever waits for one actor looks at the others now and then.
            match of {
                Some(peer) if turn % 16 != 15 && !matches!(peer.way, Way::Shared) => {
                    if !matches!(peer.way, Way::Bulk(..)) || !in_bulk {
                        let mut news = false;
                        let count = self.drain_of(peer, &mut news);
                        self.announce(count, news);
                    }
                }
                _ => _ = self.drain(),
            }
            if let Some(found) = get() {
                return Ok(Some(found));
            }
            self.check_failure()?;
            let now = Instant::now();
            if timeout.is_some_and(|limit| now - began >= limit) {
                return Ok(None);
            }
            if now - looked > CHECK {
                check()?;
                self.check_ended()?;
                looked = now;
            }
            if now - began >= patience {
                self.sleep(of, &mut slept);
            } else {
                stay_awake(now - began);
            }
        }
        Ok(None)
    }

    /// Sleep until something comes, for a moment.
    fn sleep(&self, of: Option<&Peer>, slept: &mut bool) {
        let mut guard = self.bell.0.lock();
        if let Some(peer) = of {
            peer.awaited.fetch_add(1, Ordering::AcqRel);
        }
        if self.sleepers.fetch_add(1, Ordering::AcqRel) == 0 || !*slept {
            self.stir();
        }
        *slept = true;
        self.bell.1.wait_for(&mut guard, IDLE);
        self.sleepers.fetch_sub(1, Ordering::AcqRel);
        if let Some(peer) = of {
            peer.awaited.fetch_sub(1, Ordering::AcqRel);
        }
    }

    pub(super) fn check_ended(&self) -> Result<()> {
        if self.ended.load(Ordering::Acquire) {
            return Err(Error::Device("the ring was closed while somebody waited for it".to_string()));
        }
        Ok(())
    }
}

/// Between two looks of a wait that has taken so long: who waits longer than most lets others have the processor.
pub(super) fn stay_awake(waited: Duration) {
    if waited < SPIN {
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}
