//! The rings of tagged words, model-checked: every order of steps and of what becomes visible when, of a writer and a reader.

#[allow(dead_code)]
#[path = "../src/ring/mapped.rs"]
mod mapped;

/// What the rings are made of, as the checker sees it.
mod sync {
    pub use loom::sync::MutexGuard;
    pub use loom::sync::atomic::{AtomicU64, Ordering};

    #[derive(Debug)]
    pub struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub fn new(value: T) -> Mutex<T> {
            Mutex(loom::sync::Mutex::new(value))
        }

        pub fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().expect("no thread fails with the lock")
        }

        pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            self.0.try_lock().ok()
        }
    }
}

use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use loom::thread;
use mapped::{Header, Inlet, Message, Outlet, Slots, Word};

/// A header's words and one of the payload.
const WORDS: usize = 13;

/// Words that both sides see: how far the reader is, and the slots.
struct Memory(Vec<AtomicU64>);

impl Memory {
    fn new(slots: usize) -> Arc<Memory> {
        Arc::new(Memory((0..1 + slots * WORDS).map(|_| AtomicU64::new(0)).collect()))
    }

    fn at(&self, index: usize) -> usize {
        std::ptr::from_ref(&self.0[index]) as usize
    }

    fn inlet(&self) -> Inlet {
        Inlet::new(self.head(), self.slots())
    }

    fn outlet(&self) -> Outlet {
        Outlet::new(self.head(), self.slots())
    }

    fn head(&self) -> Word {
        // SAFETY: whoever uses it holds the memory.
        unsafe { Word::new(self.at(0)) }
    }

    fn slots(&self) -> Slots {
        // SAFETY: as above; there are that many words.
        unsafe { Slots::new(self.at(1), ((self.0.len() - 1) / WORDS) as u64, WORDS) }
    }
}

fn push(inlet: &Inlet, number: u64) -> bool {
    let payload = [number as u8 + 1; 4];
    inlet.push(1, &|_| (Header { id: number, correlation: !number, ..Header::default() }, &payload)) == 1
}

/// Whole, and the next one.
fn check(message: &Message, number: u64) {
    assert_eq!((message.header.id, message.header.correlation), (number, !number));
    assert_eq!(message.payload[..], [number as u8 + 1; 4]);
}

fn model(scenario: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.max_branches = 100_000;
    model.check(scenario);
}

/// The writer goes around the ring while the reader looks a few times; what is left is read in the end.
fn around(slots: usize, messages: u64, looks: usize) {
    model(move || {
        let memory = Memory::new(slots);
        let writer = {
            let memory = memory.clone();
            thread::spawn(move || {
                let inlet = memory.inlet();
                let written = (0..messages).take_while(|number| push(&inlet, *number)).count() as u64;
                (inlet, written)
            })
        };
        let outlet = memory.outlet();
        let mut read = 0;
        for _ in 0..looks {
            outlet.drain(|message| {
                check(&message, read);
                read += 1;
            });
        }
        let (inlet, mut written) = writer.join().expect("the writer ends");
        assert!(read <= written && written - read <= slots as u64);
        for _ in 0..2 {
            outlet.drain(|message| {
                check(&message, read);
                read += 1;
            });
            assert_eq!(read, written, "nothing is lost");
            // A ring that was full has room again.
            assert!(push(&inlet, written));
            written += 1;
        }
    });
}

#[test]
fn one_slot_is_used_again_and_again() {
    around(1, 2, 2);
}

#[test]
fn a_writer_goes_around_a_ring_that_is_read() {
    around(2, 3, 2);
}

#[test]
fn two_readers_take_turns() {
    model(|| {
        let memory = Memory::new(2);
        let inlet = memory.inlet();
        assert!(push(&inlet, 0) && push(&inlet, 1));
        let outlet = Arc::new(memory.outlet());
        let other = {
            let (outlet, memory) = (outlet.clone(), memory.clone());
            thread::spawn(move || {
                let count = outlet.drain(|_| ());
                drop(memory);
                count
            })
        };
        let count = outlet.drain(|_| ());
        assert_eq!(count + other.join().expect("it ends"), 2, "each message is read once");
        assert!(push(&inlet, 2) && push(&inlet, 3) && !push(&inlet, 4));
    });
}
