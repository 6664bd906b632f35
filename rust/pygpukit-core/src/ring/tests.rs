//! The queue against a model, and threads that wait for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::park::Parker;
use super::queue::*;

type Mailbox = Queue<u64, Arc<Parker>>;

#[derive(Clone, Debug)]
enum Step {
    Put { priority: u8, deadline: u64 },
    Get,
    GetMany(usize),
    Pause,
    Resume,
    Discard,
    Close,
    Capacity(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let priority = prop_oneof![4 => Just(0u8), 2 => 0u8..4, 1 => any::<u8>()];
    let deadline = prop_oneof![6 => Just(NEVER), 1 => 0u64..80];
    let step = prop_oneof![
        12 => (priority, deadline).prop_map(|(priority, deadline)| Step::Put { priority, deadline }),
        6 => Just(Step::Get),
        1 => (0usize..5).prop_map(Step::GetMany),
        1 => Just(Step::Pause),
        2 => Just(Step::Resume),
        1 => Just(Step::Discard),
        1 => Just(Step::Close),
        1 => (1usize..8).prop_map(Step::Capacity),
    ];
    proptest::collection::vec(step, 0..80)
}

/// The same by the plainest means: a list, searched each time.
struct Model {
    items: Vec<(u64, u8, u64)>,
    capacity: usize,
    policy: Policy,
    paused: bool,
    closed: bool,
    counts: Counts,
}

impl Model {
    fn put(&mut self, value: u64, priority: u8, deadline: u64) -> (Outcome, Option<u64>) {
        if self.closed {
            return (Outcome::Closed, Some(value));
        }
        let mut gone = None;
        if self.items.len() >= self.capacity {
            match self.policy {
                Policy::Block => return (Outcome::Full, Some(value)),
                Policy::Reject => {
                    self.counts.rejected += 1;
                    return (Outcome::Rejected, Some(value));
                }
                Policy::DropNew => {
                    self.counts.dropped += 1;
                    return (Outcome::Dropped, Some(value));
                }
                Policy::DropOldest => {
                    let lowest = self.items.iter().map(|item| item.1).min().expect("full");
                    if priority < lowest {
                        self.counts.dropped += 1;
                        return (Outcome::Dropped, Some(value));
                    }
                    let at = self.items.iter().position(|item| item.1 == lowest).expect("just seen");
                    gone = Some(self.items.remove(at).0);
                    self.counts.displaced += 1;
                }
            }
        }
        self.items.push((value, priority, deadline));
        self.counts.accepted += 1;
        self.counts.max_depth = self.counts.max_depth.max(self.items.len());
        (Outcome::Accepted, gone)
    }

    fn get(&mut self, now: u64, late: &mut Vec<u64>) -> Option<u64> {
        while !self.paused && !self.items.is_empty() {
            let highest = self.items.iter().map(|item| item.1).max().expect("not empty");
            let at = self.items.iter().position(|item| item.1 == highest).expect("just seen");
            let (value, _, deadline) = self.items.remove(at);
            if deadline >= now {
                self.counts.delivered += 1;
                return Some(value);
            }
            self.counts.expired += 1;
            late.push(value);
        }
        None
    }
}

fn policies() -> impl Strategy<Value = Policy> {
    prop_oneof![Just(Policy::Block), Just(Policy::Reject), Just(Policy::DropOldest), Just(Policy::DropNew)]
}

proptest! {
    #[test]
    fn the_queue_does_what_the_model_does(steps in steps(), capacity in 1usize..6, policy in policies()) {
        let queue = Mailbox::new(capacity, policy, true);
        let mut model =
            Model { items: Vec::new(), capacity, policy, paused: false, closed: false, counts: Counts::default() };
        for (now, step) in steps.into_iter().enumerate() {
            let now = now as u64;
            let (mut late, mut wanted_late) = (Vec::new(), Vec::new());
            match step {
                Step::Put { priority, deadline } => {
                    let put = queue.put(now, priority, deadline, || now);
                    prop_assert_eq!((put.outcome, put.returned), model.put(now, priority, deadline));
                }
                Step::Get => {
                    let got = queue.get(|| now, &mut late);
                    match model.get(now, &mut wanted_late) {
                        Some(wanted) => prop_assert!(matches!(got, Get::Item(value) if value == wanted)),
                        None if model.closed && model.items.is_empty() => prop_assert!(matches!(got, Get::Finished)),
                        None => prop_assert!(matches!(got, Get::Empty)),
                    }
                }
                Step::GetMany(most) => {
                    let got = queue.get_many(most, now, &mut late);
                    let wanted: Vec<u64> = (0..most).map_while(|_| model.get(now, &mut wanted_late)).collect();
                    prop_assert_eq!(got, wanted);
                }
                Step::Pause => {
                    queue.pause();
                    model.paused = !model.closed;
                }
                Step::Resume => {
                    queue.resume();
                    model.paused = false;
                }
                Step::Discard => {
                    let mut gone = queue.discard();
                    gone.sort_unstable();
                    let mut wanted: Vec<u64> = model.items.drain(..).map(|item| item.0).collect();
                    wanted.sort_unstable();
                    model.counts.discarded += wanted.len() as u64;
                    prop_assert_eq!(gone, wanted);
                }
                Step::Close => {
                    queue.close();
                    model.closed = true;
                    model.paused = false;
                }
                Step::Capacity(capacity) => {
                    queue.set_capacity(capacity);
                    model.capacity = capacity;
                }
            }
            prop_assert_eq!(late, wanted_late);
            let counts = queue.counts();
            prop_assert_eq!(Counts { done: 0, ..counts }, Counts { depth: model.items.len(), ..model.counts });
            prop_assert_eq!(
                counts.accepted,
                counts.delivered + counts.displaced + counts.expired + counts.discarded + counts.depth as u64
            );
        }
        queue.finish(100);
        let measured = queue.measured().expect("asked for");
        prop_assert_eq!(queue.counts().done, model.counts.delivered);
        prop_assert_eq!(measured.latency.count(), model.counts.delivered);
        prop_assert_eq!(measured.wait.count(), model.counts.delivered);
    }
}

/// Ask until there is an answer, asleep in between.
fn take(queue: &Mailbox) -> Option<u64> {
    loop {
        match queue.get(|| 0, &mut Vec::new()) {
            Get::Item(value) => return Some(value),
            Get::Finished => return None,
            Get::Empty => {}
        }
        let parker = Arc::new(Parker::default());
        if queue.await_item(parker.clone()).is_some() {
            assert!(parker.sleep_until(Instant::now() + Duration::from_secs(60)), "nobody woke the consumer");
        }
    }
}

fn give(queue: &Mailbox, value: u64) {
    loop {
        match queue.put(value, 0, NEVER, || 0).outcome {
            Outcome::Accepted => return,
            other => assert_eq!(other, Outcome::Full),
        }
        let parker = Arc::new(Parker::default());
        if queue.await_space(parker.clone()).is_some() {
            assert!(parker.sleep_until(Instant::now() + Duration::from_secs(60)), "nobody woke the producer");
        }
    }
}

#[test]
fn many_threads_lose_and_repeat_nothing() {
    const EACH: u64 = 2000;
    let queue = Mailbox::new(3, Policy::Block, false);
    let (sum, taken) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let consumers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    while let Some(value) = take(&queue) {
                        sum.fetch_add(value, Ordering::Relaxed);
                        taken.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        let producers: Vec<_> = (0..4)
            .map(|producer| {
                let queue = &queue;
                scope.spawn(move || (0..EACH).for_each(|at| give(queue, producer * EACH + at)))
            })
            .collect();
        for producer in producers {
            producer.join().expect("no producer fails");
        }
        queue.close();
        for consumer in consumers {
            consumer.join().expect("no consumer fails");
        }
    });
    let all = 4 * EACH;
    assert_eq!((taken.into_inner(), sum.into_inner()), (all, all * (all - 1) / 2));
    let counts = queue.counts();
    assert_eq!((counts.accepted, counts.delivered, counts.depth), (all, all, 0));
    assert!(counts.max_depth <= 3);
}

#[test]
fn failing_is_counted_apart() {
    let queue = Mailbox::new(4, Policy::Block, true);
    for value in 0..3 {
        queue.put(value, 0, NEVER, || 10);
    }
    assert!(matches!(queue.get(|| 20, &mut Vec::new()), Get::Item(0)));
    assert!(matches!(queue.get(|| 50, &mut Vec::new()), Get::Item(1)));
    assert_eq!(queue.fail(), 1);
    assert_eq!(queue.fail(), 0);
    let counts = queue.counts();
    assert_eq!((counts.done, counts.failed, counts.depth), (1, 1, 1));
    let measured = queue.measured().expect("asked for");
    assert_eq!((measured.busy, measured.latency.max(), measured.wait.max()), (30, 40, 40));
}

#[test]
fn what_is_given_back_comes_first_among_equals() {
    let queue = Mailbox::new(2, Policy::Block, false);
    queue.put(1, 3, NEVER, || 0);
    queue.put(2, 0, 7, || 0);
    assert_eq!(queue.get_many(2, 0, &mut Vec::new()), [1, 2]);
    for (value, priority) in [(3, 5), (4, 0)] {
        queue.put(value, priority, NEVER, || 0);
    }
    let parker = Arc::new(Parker::default());
    queue.give_back(vec![(1, 3, NEVER), (2, 0, 7)]);
    assert!(queue.await_space(parker).is_some());
    assert_eq!((queue.counts().delivered, queue.counts().depth), (0, 4));
    assert_eq!(queue.get_many(3, 7, &mut Vec::new()), [3, 1, 2]);
    assert_eq!((queue.counts().delivered, queue.counts().depth), (3, 1));
    queue.give_back(vec![(2, 0, 7)]);
    let mut late = Vec::new();
    assert_eq!(queue.get_many(9, 8, &mut late), [4]);
    assert_eq!(late, [2]);
}

#[test]
fn a_given_up_wait_passes_the_wake_on() {
    let queue = Mailbox::new(4, Policy::Block, false);
    let (first, second) = (Arc::new(Parker::default()), Arc::new(Parker::default()));
    let ticket = queue.await_item(first.clone()).expect("it is empty");
    assert!(queue.await_item(second.clone()).is_some());
    queue.put(7, 0, NEVER, || 0);
    assert!(first.sleep_until(Instant::now()));
    assert!(!second.sleep_until(Instant::now()));
    queue.forget(ticket);
    assert!(second.sleep_until(Instant::now()));
}

#[test]
fn standing_still_is_acknowledged() {
    let queue = Mailbox::new(4, Policy::Block, true);
    let (consumer, watcher) = (Arc::new(Parker::default()), Arc::new(Parker::default()));
    queue.put(1, 0, NEVER, || 0);
    assert!(matches!(queue.get(|| 0, &mut Vec::new()), Get::Item(1)));
    queue.pause();
    queue.put(2, 0, NEVER, || 0);
    assert!(queue.await_parked(watcher.clone()).is_some());
    assert!(!watcher.sleep_until(Instant::now()));
    assert!(queue.await_item(consumer.clone()).is_some());
    assert!(watcher.sleep_until(Instant::now()));
    assert!(!consumer.sleep_until(Instant::now()));
    assert!(queue.await_parked(watcher).is_none());
    queue.resume();
    assert!(consumer.sleep_until(Instant::now()));
}
