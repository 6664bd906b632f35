//! Sets that the deadline test admits never miss in a simulation of non-preemptive earliest deadline first.

use crate::random::Random;
use crate::sched::edf::{Deadlines, Job, Rules};
use crate::sched::{Request, Share};

use super::*;

struct Periodic {
    job: Job,
    period: u64,
    offset: u64,
}

/// Run the lane tick by tick with other work of `blocking` ticks in every gap; says the first deadline that is missed.
fn simulate(tasks: &[Periodic], blocking: u64, end: u64, random: &mut Random) -> Option<String> {
    let mut next: Vec<u64> = tasks.iter().map(|task| task.offset).collect();
    let mut pending: Vec<(u64, usize)> = Vec::new(); // deadline, task
    let mut now = 0;
    while now < end {
        for (at, task) in tasks.iter().enumerate() {
            while next[at] <= now {
                pending.push((next[at] + task.job.deadline, at));
                // Releases come at the period or later.
                next[at] += task.period + if random.below(3) == 0 { random.below(4) as u64 } else { 0 };
            }
        }
        pending.sort_unstable();
        if pending.is_empty() {
            now += blocking.max(1);
            continue;
        }
        let (deadline, at) = pending.remove(0);
        now += tasks[at].job.cost;
        if now > deadline {
            return Some(format!("task {at} ended at {now}, after its deadline at {deadline}"));
        }
    }
    None
}

#[test]
fn admitted_sets_never_miss() {
    let mut random = Random::new(7);
    let (mut admitted, mut refused) = (0, 0);
    for _ in 0..if cfg!(debug_assertions) { 3_000 } else { 30_000 } {
        let blocking = random.below(4) as u64;
        let rules = Rules { blocking, bound: Share::ONE };
        let mut lane = Deadlines::default();
        let mut tasks: Vec<Periodic> = Vec::new();
        for id in 0..1 + random.below(6) as u64 {
            let period = [6, 8, 10, 12, 15, 20, 24, 30, 40, 60][random.below(10)];
            let deadline = period - random.below(period as usize / 2) as u64;
            let job = Job::new(deadline, 1 + random.below(deadline as usize / 3) as u64);
            if lane.admits(job, rules).is_ok() {
                lane.insert(job, id);
                let offset = if random.below(2) == 0 { 0 } else { random.below(period as usize) as u64 };
                tasks.push(Periodic { job, period, offset });
                admitted += 1;
            } else {
                refused += 1;
            }
        }
        // Twice the least common multiple of all periods.
        if let Some(missed) = simulate(&tasks, blocking, 240, &mut random) {
            let jobs: Vec<_> = tasks.iter().map(|t| (t.job.cost, t.job.deadline, t.period, t.offset)).collect();
            panic!("{missed}: (cost, deadline, period, offset) {jobs:?}, blocking {blocking}");
        }
    }
    assert!(admitted > 1_000 && refused > 1_000, "{admitted} admitted, {refused} refused: the test shows nothing");
}

#[test]
fn the_simulation_finds_misses() {
    // The short one is late when it comes right after the long one has started.
    let late = |cost| {
        let tasks = [
            Periodic { job: Job::new(60, cost), period: 60, offset: 0 },
            Periodic { job: Job::new(6, 2), period: 60, offset: 1 },
        ];
        simulate(&tasks, 0, 120, &mut Random::new(1)).is_some()
    };
    assert!(late(10) && !late(3));
    let mut lane = Deadlines::default();
    let rules = Rules { blocking: 0, bound: Share::ONE };
    lane.insert(Job::new(60, 10), 1);
    assert!(lane.admits(Job::new(6, 2), rules).is_err());
    lane.remove(Job::new(60, 10), 1);
    lane.insert(Job::new(60, 3), 1);
    assert!(lane.admits(Job::new(6, 2), rules).is_ok());
}

#[test]
fn the_inequality_names_what_the_others_take() {
    let mut books = admission(Capacity { blocking_ns: 1_000_000, ..Capacity::new(100) });
    let task = |cost: u64, deadline: u64| Request {
        cost_ns: Some(cost * 1_000_000),
        deadline_ns: Some(deadline * 1_000_000),
        ..Request::new(Class::Burstable)
    };
    let (first, decision) = books.submit(task(4, 10)).unwrap();
    assert_eq!(decision.verdict, Verdict::Admitted);
    let (waits, decision) = books.submit(task(5, 10)).unwrap();
    // 50 % for itself, 40 % for the first, 10 % blocking.
    assert_eq!(
        reason(&decision),
        "deadlines: 50% asked + 50% for deadlines and blocking > 95% of the lane of partition 'default'"
    );
    let (_, decision) = books.submit(task(9, 10)).unwrap();
    assert_eq!(decision.verdict, Verdict::Rejected);
    assert_eq!(
        reason(&decision),
        "deadlines: 90% asked + 10% for deadlines and blocking > 95% of the lane of partition 'default'"
    );
    assert_eq!(books.release(first), [waits]);
}

#[test]
fn a_long_job_is_refused_for_the_short_ones_it_would_block() {
    let mut books = admission(Capacity::new(100));
    let task =
        |cost, deadline| Request { cost_ns: Some(cost), deadline_ns: Some(deadline), ..Request::new(Class::Burstable) };
    assert_eq!(books.submit(task(20, 100)).unwrap().1.verdict, Verdict::Admitted);
    let (_, decision) = books.submit(task(90, 1_000)).unwrap();
    assert_eq!(decision.verdict, Verdict::Queued);
    assert_eq!(
        reason(&decision),
        "deadlines: 90% asked + 20% for deadlines and blocking > 95% of the lane of partition 'default'"
    );
    assert_eq!(
        books.submit(Request { on_full: OnFull::Reject, ..task(70, 1_000) }).unwrap().1.verdict,
        Verdict::Rejected
    );
}
