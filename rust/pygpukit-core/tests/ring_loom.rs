//! The queue's waiting, model-checked: every order of steps of two or three threads, with the checker's own lock.

#[allow(dead_code)]
#[path = "../src/ring/histogram.rs"]
mod histogram;
#[allow(dead_code)]
#[path = "../src/ring/queue.rs"]
mod queue;

/// What the queue locks with, as the checker sees it.
mod sync {
    pub use loom::sync::MutexGuard;

    pub struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub fn new(value: T) -> Mutex<T> {
            Mutex(loom::sync::Mutex::new(value))
        }

        pub fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().expect("no thread fails with the lock")
        }
    }
}

use loom::sync::atomic::{AtomicBool, Ordering};
use loom::sync::{Arc, Notify};
use loom::thread;
use queue::{Get, NEVER, Outcome, Policy, Queue, Wake};

#[derive(Clone)]
struct Waiter(Arc<(AtomicBool, Notify)>);

impl Wake for Waiter {
    fn wake(self) -> bool {
        self.0.0.store(true, Ordering::Release);
        self.0.1.notify();
        true
    }
}

impl Waiter {
    fn new() -> Waiter {
        Waiter(Arc::new((AtomicBool::new(false), Notify::new())))
    }

    /// The checker also wakes without a reason, and the queue would wake a wait that is left.
    fn wait(&self) {
        while !self.0.0.load(Ordering::Acquire) {
            self.0.1.wait();
        }
    }
}

type Mailbox = Queue<u32, Waiter>;

fn take(queue: &Mailbox) -> Option<u32> {
    loop {
        match queue.get(|| 0, &mut Vec::new()) {
            Get::Item(value) => return Some(value),
            Get::Finished => return None,
            Get::Empty => {}
        }
        let waiter = Waiter::new();
        if queue.await_item(waiter.clone()).is_some() {
            waiter.wait();
        }
    }
}

fn give(queue: &Mailbox, value: u32) -> bool {
    loop {
        match queue.put(value, 0, NEVER, || 0).outcome {
            Outcome::Accepted => return true,
            Outcome::Full => {}
            _ => return false,
        }
        let waiter = Waiter::new();
        if queue.await_space(waiter.clone()).is_some() {
            waiter.wait();
        }
    }
}

/// A lost wake-up is a deadlock here, which the checker reports.
fn check(scenario: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(scenario);
}

#[test]
fn what_is_put_is_got_once_in_order() {
    check(|| {
        let queue = Arc::new(Mailbox::new(1, Policy::Block, false));
        let producer = {
            let queue = queue.clone();
            thread::spawn(move || {
                for value in 0..3 {
                    assert!(give(&queue, value));
                }
                queue.close();
            })
        };
        let got: Vec<u32> = std::iter::from_fn(|| take(&queue)).collect();
        producer.join().expect("the producer ends");
        assert_eq!(got, [0, 1, 2]);
    });
}

#[test]
fn two_consumers_share_what_two_puts_bring() {
    check(|| {
        let queue = Arc::new(Mailbox::new(1, Policy::Block, false));
        let other = {
            let queue = queue.clone();
            thread::spawn(move || take(&queue).expect("it is not closed"))
        };
        let producer = {
            let queue = queue.clone();
            thread::spawn(move || assert!(give(&queue, 1) && give(&queue, 2)))
        };
        let mut got = [take(&queue).expect("it is not closed"), other.join().expect("it ends")];
        producer.join().expect("the producer ends");
        got.sort_unstable();
        assert_eq!(got, [1, 2]);
    });
}

#[test]
fn closing_ends_every_wait() {
    check(|| {
        let queue = Arc::new(Mailbox::new(1, Policy::Block, false));
        let consumer = {
            let queue = queue.clone();
            thread::spawn(move || std::iter::from_fn(|| take(&queue)).count() as u64)
        };
        let producer = {
            let queue = queue.clone();
            thread::spawn(move || (0..2).filter(|&value| give(&queue, value)).count() as u64)
        };
        queue.close();
        let (taken, given) = (consumer.join().expect("it ends"), producer.join().expect("it ends"));
        assert_eq!(taken, given, "what was accepted before the end is delivered after it");
        assert_eq!(queue.counts().accepted, taken);
    });
}

#[test]
fn closing_ends_the_wait_of_a_producer_that_nobody_makes_room_for() {
    check(|| {
        let queue = Arc::new(Mailbox::new(1, Policy::Block, false));
        assert!(give(&queue, 1));
        let producer = {
            let queue = queue.clone();
            thread::spawn(move || give(&queue, 2))
        };
        queue.close();
        assert!(!producer.join().expect("it ends"));
        assert_eq!(queue.discard(), [1]);
    });
}

#[test]
fn a_pause_is_acknowledged_and_ends() {
    check(|| {
        let queue = Arc::new(Mailbox::new(2, Policy::Block, true));
        let consumer = {
            let queue = queue.clone();
            thread::spawn(move || std::iter::from_fn(|| take(&queue)).count())
        };
        assert!(give(&queue, 1));
        queue.pause();
        let waiter = Waiter::new();
        if queue.await_parked(waiter.clone()).is_some() {
            waiter.wait();
        }
        let before = queue.counts().delivered;
        assert!(give(&queue, 2));
        assert_eq!(queue.counts().delivered, before, "nothing is delivered while it stands still");
        queue.resume();
        queue.close();
        assert_eq!(consumer.join().expect("it ends"), 2);
    });
}

#[test]
fn a_wait_given_up_too_late_is_passed_on() {
    check(|| {
        let queue = Arc::new(Mailbox::new(2, Policy::Block, false));
        let hasty = {
            let queue = queue.clone();
            thread::spawn(move || {
                if let Some(ticket) = queue.await_item(Waiter::new()) {
                    queue.forget(ticket);
                }
            })
        };
        let patient = {
            let queue = queue.clone();
            thread::spawn(move || take(&queue).map_or(0, |_| 1))
        };
        assert!(give(&queue, 1));
        hasty.join().expect("it ends");
        assert_eq!(patient.join().expect("it ends"), 1);
    });
}
