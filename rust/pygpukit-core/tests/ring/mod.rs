//! A device's side of a ring in plain memory: a thread that does what the resident kernel does.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pygpukit_core::error::{Error, Result};
use pygpukit_core::ring::link::{Alarms, Link, Words};
use pygpukit_core::ring::mapped::{ANSWER, CALL, DEAD, HOST, Header, Inlet, MORE, Message, Outlet, Slots, Word};
use pygpukit_core::ring::orders::{CLOCK, LEAVE, Orders, SET_MODE, TRAP, TRIM, monotonic_ns};
use pygpukit_core::ring::peer::{Full, Peer, Seen, Way};
use pygpukit_core::ring::resident::Program;

/// How far the device's clock is ahead.
pub const AHEAD: u64 = 1 << 50;

pub const PARKED: u64 = 1;
pub const SLICE_ENDED: u64 = 3;

const ORDERS: u64 = 4;
const SLOTS: u64 = 8;
const SLOT: usize = 32;
const ACTORS: usize = 8;
const SEEN: usize = 16;

/// What the payload's first byte asks for.
pub const ANSWERED: u8 = 0;
pub const BURIED: u8 = 1;
pub const TOLD: u8 = 2;
pub const SWALLOWED: u8 = 3;
pub const BEGUN: u8 = 4;

/// The memory that both sides see.
pub struct Shared(Box<[AtomicU64]>);

impl Shared {
    fn new() -> Arc<Shared> {
        Arc::new(Shared((0..4096).map(|_| AtomicU64::new(0)).collect()))
    }

    fn at(&self, index: usize) -> usize {
        std::ptr::from_ref(&self.0[index]) as usize
    }

    fn word(&self, index: usize) -> Word {
        // SAFETY: the tests keep the memory as long as whoever uses it.
        unsafe { Word::new(self.at(index)) }
    }

    fn slots(&self, index: usize) -> Slots {
        // SAFETY: as above; there are that many words.
        unsafe { Slots::new(self.at(index), SLOTS, SLOT) }
    }

    fn inlet(&self, head: usize, index: usize) -> Inlet {
        Inlet::new(self.word(head), self.slots(index))
    }

    fn outlet(&self, head: usize, index: usize) -> Outlet {
        Outlet::new(self.word(head), self.slots(index))
    }
}

const TAIL: usize = 0;
const HEAD: usize = 1;
const BEAT: usize = 2;
const DEVICE_BEAT: usize = 3;
const EXITED: usize = 4;
const CLOCK_WORD: usize = 5;
const IN_HEAD: usize = 6;
const OUT_HEAD: usize = 7;
const ORDER_SLOTS: usize = 16;
const IN: usize = 64;
const OUT: usize = IN + SLOTS as usize * SLOT;
const SEEN_AT: usize = OUT + SLOTS as usize * SLOT;
const TAKEN: usize = SEEN_AT + ACTORS * SEEN;
const ALARMS: usize = TAKEN + ACTORS;
const ALARM_WORDS: usize = 4;
const OWN_IN_HEAD: usize = ALARMS + ALARM_WORDS;
const OWN_OUT_HEAD: usize = OWN_IN_HEAD + 1;
const OWN_IN: usize = OWN_OUT_HEAD + 1;
const OWN_OUT: usize = OWN_IN + SLOTS as usize * SLOT;

/// What the thread has in its memory between two launches.
struct Warden {
    /// The common rings, and those of the actor that has its own.
    asked: [Outlet; 2],
    told: [Inlet; 2],
    orders_taken: u64,
    next_id: u64,
}

pub struct Fake {
    shared: Arc<Shared>,
    warden: Mutex<Warden>,
    alive: AtomicU32,
    /// Does not look at messages, at orders.
    pub idle: AtomicBool,
    pub deaf: AtomicBool,
    /// Leaves by itself after as many turns, if not 0.
    pub slice: AtomicU32,
    /// Its slice is over in the moment somebody asks whether it is there.
    pub leaves: AtomicBool,
    over: AtomicBool,
    /// Ends without a word.
    pub vanishes: AtomicBool,
    pub refuses: AtomicBool,
    pub fault: AtomicBool,
    pub trims: Mutex<Vec<(u64, u64)>>,
    pub headers: Mutex<Vec<Header>>,
}

pub struct FakeProgram(Arc<Fake>);

impl Program for FakeProgram {
    fn launch(&self, number: u64) -> Result<()> {
        if self.0.refuses.load(Ordering::Acquire) {
            return Err(Error::Launch("it was refused".to_string()));
        }
        self.0.alive.fetch_add(1, Ordering::AcqRel);
        let fake = self.0.clone();
        std::thread::spawn(move || fake.run(number));
        Ok(())
    }

    fn is_idle(&self) -> Result<bool> {
        if self.0.leaves.swap(false, Ordering::AcqRel) {
            self.0.over.store(true, Ordering::Release);
            while self.0.alive.load(Ordering::Acquire) != 0 {
                std::thread::yield_now();
            }
        }
        match self.0.fault.load(Ordering::Acquire) {
            true => Err(Error::Kernel("it trapped".to_string())),
            false => Ok(self.0.alive.load(Ordering::Acquire) == 0),
        }
    }
}

/// A link with that many actors without rings of their own, and its device.
pub fn pair(actors: usize, room: u64, full: Full) -> (Arc<Link>, Arc<Fake>) {
    let shared = Shared::new();
    let common = (shared.inlet(IN_HEAD, IN), shared.outlet(OUT_HEAD, OUT));
    // SAFETY: the fake lives as long as its program, which the link keeps.
    let orders = unsafe { Orders::new(shared.word(TAIL), shared.word(HEAD), shared.at(ORDER_SLOTS), ORDERS) };
    let words = Words {
        beat: shared.word(BEAT),
        device_beat: shared.word(DEVICE_BEAT),
        exited: shared.word(EXITED),
        clock: shared.word(CLOCK_WORD),
        // SAFETY: as above.
        alarms: unsafe { Alarms::new(shared.at(ALARMS), ALARM_WORDS) },
    };
    let link = Arc::new(Link::new(common, orders, words));
    let warden = Warden {
        asked: [shared.outlet(IN_HEAD, IN), shared.outlet(OWN_IN_HEAD, OWN_IN)],
        told: [shared.inlet(OUT_HEAD, OUT), shared.inlet(OWN_OUT_HEAD, OWN_OUT)],
        orders_taken: 0,
        next_id: 1 << 40,
    };
    let fake = Arc::new(Fake {
        shared,
        warden: Mutex::new(warden),
        alive: AtomicU32::new(0),
        idle: AtomicBool::new(false),
        deaf: AtomicBool::new(false),
        slice: AtomicU32::new(0),
        leaves: AtomicBool::new(false),
        over: AtomicBool::new(false),
        vanishes: AtomicBool::new(false),
        refuses: AtomicBool::new(false),
        fault: AtomicBool::new(false),
        trims: Mutex::default(),
        headers: Mutex::default(),
    });
    for actor in 0..actors {
        fake.add(&link, actor, room, full);
    }
    link.set_program(Arc::new(FakeProgram(fake.clone()))).unwrap();
    (link, fake)
}

impl Fake {
    pub fn add(&self, link: &Link, actor: usize, room: u64, full: Full) {
        self.add_with(link, actor, Way::Shared, room, full);
    }

    /// One that has rings of its own; there are such for one.
    pub fn add_own(&self, link: &Link, actor: usize, full: Full) {
        let way = Way::Own(self.shared.inlet(OWN_IN_HEAD, OWN_IN), self.shared.outlet(OWN_OUT_HEAD, OWN_OUT));
        self.add_with(link, actor, way, SLOTS, full);
    }

    fn add_with(&self, link: &Link, actor: usize, way: Way, room: u64, full: Full) {
        // SAFETY: as for the rest.
        let seen = unsafe { Seen::new(self.shared.at(SEEN_AT + actor * SEEN)) };
        let peer = Peer::new(seen, self.shared.word(TAKEN + actor), way, room, full, 8, 7);
        assert_eq!(link.add(peer).unwrap(), actor);
    }

    /// Say in which blocks a handler does not return, and whose.
    pub fn accuse(&self, actors: [Option<usize>; ALARM_WORDS - 1]) {
        for (block, actor) in actors.into_iter().enumerate() {
            self.shared.word(ALARMS + 1 + block).store(actor.map_or(0, |actor| actor as u64 + 1));
        }
        let head = self.shared.word(ALARMS);
        let changes = (head.load() >> 32) + 1;
        head.store(changes << 32 | actors.iter().flatten().count() as u64);
    }

    /// How many of the actor's messages the host took.
    pub fn taken(&self, actor: usize) -> u64 {
        self.shared.word(TAKEN + actor).load()
    }

    fn seen(&self, actor: u64, field: usize) -> Word {
        self.shared.word(SEEN_AT + actor as usize * SEEN + field)
    }

    fn run(&self, number: u64) {
        // As on a stream, the launch before has ended.
        let mut warden = self.warden.lock().unwrap();
        let why = self.serve(&mut warden);
        drop(warden);
        if let Some(why) = why {
            self.shared.word(EXITED).store(number << 8 | why);
        }
        self.alive.fetch_sub(1, Ordering::AcqRel);
    }

    /// None: it is gone without a word.
    fn serve(&self, warden: &mut Warden) -> Option<u64> {
        let slice = self.slice.load(Ordering::Acquire);
        for turn in 0u32.. {
            if self.vanishes.load(Ordering::Acquire) {
                return None;
            }
            if slice != 0 && turn == slice || self.over.swap(false, Ordering::AcqRel) {
                return Some(SLICE_ENDED);
            }
            if !self.deaf.load(Ordering::Acquire) {
                while warden.orders_taken < self.shared.word(TAIL).load() {
                    let slot = ORDER_SLOTS + 8 * (warden.orders_taken % ORDERS) as usize;
                    let order = [0, 1, 2, 3, 4].map(|index| self.shared.word(slot + index).load());
                    warden.orders_taken += 1;
                    let end = self.obey(order);
                    self.shared.word(HEAD).store(warden.orders_taken);
                    match end {
                        Some(TRAP) => return None,
                        Some(_) => return Some(PARKED),
                        None => {}
                    }
                }
            }
            if !self.idle.load(Ordering::Acquire) {
                for ring in 0..2 {
                    let mut asked = Vec::new();
                    warden.asked[ring].drain(|message| asked.push(message));
                    for message in asked {
                        self.handle(warden, ring, message);
                    }
                }
            }
            std::thread::sleep(Duration::from_micros(20));
        }
        None
    }

    fn obey(&self, [verb, actor, what, generation, _]: [u64; 5]) -> Option<u64> {
        match verb {
            SET_MODE => {
                self.seen(actor, 0).store(what);
                self.seen(actor, 1).store(generation);
            }
            TRIM => {
                self.trims.lock().unwrap().push((actor, what));
                // So many are gone.
                let gone = self.seen(actor, 3);
                gone.add(what.saturating_sub(gone.load()));
            }
            CLOCK => self.shared.word(CLOCK_WORD).store(monotonic_ns() + AHEAD),
            TRAP => self.fault.store(true, Ordering::Release),
            _ => {}
        }
        (verb == LEAVE || verb == TRAP).then_some(verb)
    }

    fn handle(&self, warden: &mut Warden, ring: usize, message: Message) {
        let asked = message.header;
        self.headers.lock().unwrap().push(asked);
        self.seen(u64::from(asked.destination), 3).add(1);
        warden.next_id += 1;
        let answer = if asked.flags & CALL != 0 { ANSWER } else { 0 };
        let told = Header {
            id: warden.next_id,
            correlation: asked.id,
            source: asked.destination,
            destination: HOST,
            flags: answer,
            ..asked
        };
        let header = match message.payload[0] {
            BURIED => Header { flags: asked.flags | DEAD, reason: 6, ..asked },
            TOLD => Header { flags: 0, ..told },
            SWALLOWED => return,
            BEGUN => Header { flags: told.flags | MORE, ..told },
            _ => told,
        };
        while warden.told[ring].push(1, &|_| (header, &message.payload)) == 0 {
            std::thread::yield_now();
        }
    }
}
