//! Random sequences of requests, ends and partitions: the books and the brute-force model never differ.

use std::cell::RefCell;
use std::collections::HashMap;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::model::Model;
use super::*;

/// How often each answer was given.
type Seen = HashMap<(Verdict, Option<&'static str>), usize>;

/// One step; numbers are taken modulo what is there.
#[derive(Clone, Debug)]
enum Step {
    Submit(Request),
    Release(usize),
    ReleaseUnknown(TaskId),
    Create(PartitionSpec),
    Remove(usize),
}

fn capacities() -> impl Strategy<Value = Capacity> {
    let sizes = (1..=40u64, 1..=24u32, 1..=4u32, any::<bool>(), 1..=6u32);
    let rules = (0..=4u32, prop_oneof![Just(0u32), Just(20_000), Just(1_000_000)], 0..=6usize, 0..=3u64);
    (sizes, rules, prop_oneof![Just(1_000_000u32), Just(950_000), Just(500_000)]).prop_map(
        |((memory, sms, granule, divisible, max_lanes), (min_common, margin, queue_limit, blocking_ns), bound)| {
            Capacity {
                memory,
                sms,
                granule,
                divisible,
                max_lanes,
                min_common,
                time_margin: Share::from_ppm(margin),
                queue_limit,
                blocking_ns,
                edf_bound: Share::from_ppm(bound),
            }
        },
    )
}

fn shares() -> impl Strategy<Value = Share> {
    prop_oneof![
        3 => Just(0u32),
        4 => (1..=10u32).prop_map(|tenths| tenths * 100_000),
        2 => 0..=400_000u32,
    ]
    .prop_map(Share::from_ppm)
}

fn isolations() -> impl Strategy<Value = Isolation> {
    prop_oneof![
        5 => Just(Isolation::Auto),
        2 => Just(Isolation::Sm),
        1 => Just(Isolation::Time),
        1 => Just(Isolation::Process)
    ]
}

/// Requests that are valid; the partition is put in when it is known which there are.
fn requests() -> impl Strategy<Value = Request> {
    let class = prop_oneof![4 => Just(Class::Guaranteed), 4 => Just(Class::Burstable), 1 => Just(Class::BestEffort)];
    let memory = (0..=16u64, prop_oneof![3 => Just(0u64), 1 => 0..=20u64]);
    let job = prop_oneof![
        3 => Just(None),
        2 => (1..=5u64, 0..=12u64, prop_oneof![Just(None), (0..=9u64).prop_map(Some)]).prop_map(Some)
    ];
    (class, memory, shares(), job, isolations(), -1..=1i32, prop::bool::weighted(0.15), 0..=9u32).prop_map(
        |(class, (memory, soft), bandwidth, job, isolation, priority, reject, partition)| {
            let mut request = Request { isolation, priority, partition: PartitionId(partition), ..Request::new(class) };
            if class != Class::BestEffort {
                request.memory = memory;
                request.memory_soft = if soft >= memory { soft } else { 0 };
                request.bandwidth = bandwidth;
                if let Some((cost, slack, period)) = job {
                    request.cost_ns = Some(cost);
                    request.deadline_ns = Some(cost + slack);
                    request.period_ns = period.map(|more| cost + slack + more);
                }
            }
            if isolation == Isolation::Sm && (class != Class::Guaranteed || bandwidth == Share::ZERO) {
                request.isolation = Isolation::Auto;
            }
            request.on_full = if reject { OnFull::Reject } else { OnFull::Queue };
            request
        },
    )
}

fn partitions() -> impl Strategy<Value = PartitionSpec> {
    let classes = prop_oneof![
        4 => Just(Class::ALL.to_vec()),
        1 => Just(vec![Class::Burstable, Class::BestEffort])
    ];
    (0..=20u64, shares(), isolations(), classes, prop::option::weighted(0.3, 0..=2usize), prop::bool::weighted(0.2))
        .prop_map(|(memory, compute, isolation, classes, queue_limit, banded)| {
            let isolation = if compute == Share::ZERO { Isolation::Auto } else { isolation };
            let priority_band = if banded { (0, 1) } else { (i32::MIN, i32::MAX) };
            PartitionSpec { memory, compute, isolation, classes, queue_limit, priority_band, ..PartitionSpec::new("p") }
        })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        12 => requests().prop_map(Step::Submit),
        8 => any::<usize>().prop_map(Step::Release),
        1 => (0..200u64).prop_map(Step::ReleaseUnknown),
        2 => partitions().prop_map(Step::Create),
        1 => any::<usize>().prop_map(Step::Remove),
    ];
    prop::collection::vec(step, 1..100)
}

fn answer(decision: &Decision) -> (Verdict, Option<(&'static str, Option<TaskId>)>) {
    (decision.verdict, decision.shortage.as_ref().map(|s| (s.resource.name(), s.behind)))
}

/// An inequality that is shown as failed has failed.
fn assert_true(shortage: &Shortage) {
    let (left, text) = (shortage.asked + shortage.used + shortage.kept, shortage.to_string());
    let compared = ["memory", "SMs", "lanes", "time", "deadlines", "queue"].contains(&shortage.resource.name());
    if compared && shortage.behind.is_none() {
        assert!(left > shortage.capacity, "{text}");
        assert!(text.contains(" > "), "{text}");
    }
}

fn compare(books: &Admission, model: &Model) {
    for task in &model.admitted {
        let placement = books.placement(task.id).expect("admitted by the model");
        assert_eq!(matches!(placement.mode, Mode::OwnLane(_)), task.lane, "{:?}", task.request);
        assert!(placement.memory_quota.is_none_or(|quota| quota >= placement.memory_hard));
    }
    assert_eq!(books.queued().collect::<Vec<_>>(), model.waiting());
    for (place, id) in model.waiting().into_iter().enumerate() {
        assert_eq!(books.position(id), Some(place));
        let reason = books.reason(id).expect("who waits has a reason");
        assert_eq!(Some((reason.resource.name(), reason.behind)), model.reason(id));
        assert_true(&reason);
    }
    let usage = books.usage();
    assert_eq!(usage.len(), 1 + model.partitions().len());
    for part in &usage {
        let sums = (
            u128::from(part.memory_reserved),
            u128::from(part.lane_sms),
            u128::from(part.time_reserved),
            part.lanes as usize,
        );
        assert_eq!(sums, model.sums(part.id.0), "{part:?}");
        assert!(part.memory_reserved <= part.memory_capacity, "{part:?}");
        assert!(part.time_reserved <= part.time_capacity, "{part:?}");
    }
    assert_eq!(usage.iter().map(|part| part.waiting).sum::<usize>(), model.waiting().len());
    assert_eq!(usage.iter().map(|part| part.tasks).sum::<usize>(), model.admitted.len());
}

fn run(capacity: Capacity, steps: Vec<Step>, seen: &mut Seen) {
    let mut books = admission(capacity);
    let mut model = Model::new(capacity);
    for (number, step) in steps.into_iter().enumerate() {
        match step {
            Step::Submit(mut request) => {
                let there = model.partitions();
                // Half of them go to the device itself.
                let at = (request.partition.0 as usize).checked_sub(5);
                let id = at.and_then(|at| there.get(at % there.len().max(1)));
                request.partition = PartitionId(id.copied().unwrap_or(0));
                let foretold = books.evaluate(&request).unwrap();
                let (_, decision) = books.submit(request).unwrap();
                assert_eq!(foretold, decision, "evaluate differs from submit");
                assert_eq!(answer(&decision), model.submit(request), "{request:?}");
                decision.shortage.iter().for_each(assert_true);
                let resource = decision.shortage.as_ref().map(|shortage| shortage.resource.name());
                *seen.entry((decision.verdict, resource)).or_default() += 1;
            }
            Step::Release(at) => {
                let known: Vec<TaskId> = model.admitted.iter().map(|t| t.id).chain(model.waiting()).collect();
                if let Some(id) = known.get(at % known.len().max(1)) {
                    assert_eq!(books.release(*id), model.release(*id));
                }
            }
            Step::ReleaseUnknown(id) => {
                assert_eq!(books.release(id), model.release(id));
            }
            Step::Create(mut spec) => {
                spec.name = format!("p{number}");
                let made = books.create_partition(spec.clone()).map(|id| id.0);
                let made = made.map_err(|error| match error {
                    PartitionError::Refused { shortage, .. } => shortage.resource.name(),
                    other => panic!("{other}"),
                });
                assert_eq!(made, model.create_partition(spec));
                assert_eq!(books.admit_waiting(), model.admit_waiting());
            }
            Step::Remove(at) => {
                let there = model.partitions();
                if let Some(id) = there.get(at % there.len().max(1)) {
                    assert_eq!(books.remove_partition(PartitionId(*id)).ok(), model.remove_partition(*id));
                }
            }
        }
        compare(&books, &model);
    }
    // When all have left, nothing is reserved, and the whole device is there again.
    let ids: Vec<TaskId> = model.admitted.iter().map(|t| t.id).chain(model.waiting()).collect();
    for id in ids {
        books.release(id);
    }
    for part in books.usage() {
        let sums = (part.memory_reserved, part.lane_sms, part.time_reserved, part.lanes, part.tasks, part.waiting);
        assert_eq!(sums, (0, 0, 0, 0, 0, 0), "{part:?}");
    }
    for id in model.partitions() {
        books.remove_partition(PartitionId(id)).unwrap();
    }
    assert_eq!(books.usage(), admission(capacity).usage());
    assert_eq!(books.lanes(), 1);
    assert!(books.is_clean());
}

/// About 25 decisions each; PROPTEST_CASES raises them.
fn cases() -> u32 {
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok());
    asked.unwrap_or(if cfg!(debug_assertions) { 400 } else { 5_000 })
}

#[test]
fn books_and_brute_force_agree() {
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases()) };
    let seen = RefCell::new(HashMap::new());
    let outcome = TestRunner::new(config).run(&(capacities(), steps()), |(capacity, steps)| {
        run(capacity, steps, &mut seen.borrow_mut());
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
    // Every answer there is was among them; rare ones are missed in a short run.
    if cases() < 2_000 {
        return;
    }
    let seen = seen.into_inner();
    let waits = ["memory", "isolation", "SMs", "lanes", "time", "deadlines"];
    let wanted = waits.iter().map(|name| (Verdict::Queued, Some(*name)));
    let never = ["class", "priority", "queue"].iter().chain(&waits).map(|name| (Verdict::Rejected, Some(*name)));
    for answer in wanted.chain(never).chain([(Verdict::Admitted, None)]) {
        assert!(seen.contains_key(&answer), "no request was answered {answer:?}: {seen:?}");
    }
}
