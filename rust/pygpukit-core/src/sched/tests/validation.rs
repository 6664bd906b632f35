//! Requests that make no sense are refused with the value and what to do.

use super::*;

fn refused(request: Request) -> String {
    request.validate().unwrap_err().to_string()
}

#[test]
fn shares_are_numbers_from_0_to_1() {
    for value in [-0.1, 1.000_001, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let text = Share::from_f64("bandwidth", value).unwrap_err().to_string();
        assert!(text.starts_with(&format!("bandwidth={value} ")) && text.contains("from 0 to 1"), "{text}");
    }
    assert_eq!(Share::from_f64("x", 1.0).unwrap(), Share::ONE);
    assert_eq!(Share::from_f64("x", -0.0).unwrap(), Share::ZERO);
    assert_eq!(Share::from_f64("x", 1e-12).unwrap().ppm(), 1);
    assert_eq!(Share::from_f64("x", 0.1).unwrap().ppm() * 10, Share::ONE.ppm());
    assert_eq!(Share::ratio(u64::MAX, 1), Share::ONE);
    assert_eq!(Share::ratio(1, 3).ppm(), 333_334);
    assert_eq!(Share::from_ppm(123_450).to_string(), "12.345%");
    assert_eq!(Share::from_ppm(50).to_string(), "0.005%");
}

#[test]
fn memory() {
    let soft_below = Request { memory_soft: 1024, ..burstable(4096) };
    assert_eq!(
        refused(soft_below),
        "memory_soft=1.0 KiB is below memory=4.0 KiB: what is reserved is never evicted, so the floor is at least that"
    );
    assert!(
        refused(Request { memory_limit: Some(10), ..burstable(20) }).contains("memory_limit=10 B is below the 20 B")
    );
    let limit = Request { memory_limit: Some(10), memory_soft: 11, ..burstable(5) };
    assert!(refused(limit).contains("below the 11 B"));
    assert!(Request { memory_limit: Some(20), memory_soft: 20, ..burstable(20) }.validate().is_ok());
}

#[test]
fn besteffort_reserves_nothing() {
    let nothing = Request::new(Class::BestEffort);
    let asking = [
        (Request { memory: 1, ..nothing }, "memory="),
        (Request { memory_soft: 1, ..nothing }, "memory="),
        (Request { bandwidth: share(0.1), ..nothing }, "bandwidth="),
        (Request { deadline_ns: Some(9), cost_ns: Some(1), ..nothing }, "deadline="),
    ];
    for (request, what) in asking {
        assert!(refused(request).contains(what), "{what}");
    }
    assert!(Request { memory_limit: Some(1), bandwidth_limit: Some(share(0.5)), ..nothing }.validate().is_ok());
}

#[test]
fn compute() {
    let over = Request { bandwidth: share(0.5), bandwidth_limit: Some(share(0.25)), ..burstable(0) };
    assert_eq!(refused(over), "bandwidth_limit=25% is below bandwidth=50%: raise the limit or ask for less");
    assert!(refused(Request { bandwidth_limit: Some(Share::ZERO), ..burstable(0) }).contains("never let the task run"));
    assert!(refused(Request { weight: 0, ..burstable(0) }).contains("weight=0"));
    assert!(refused(Request { isolation: Isolation::Sm, ..burstable(0) }).contains("policy='guaranteed'"));
    assert!(refused(Request { isolation: Isolation::Sm, ..guaranteed(0.0) }).contains("needs bandwidth above 0"));
}

#[test]
fn deadlines() {
    let task = |deadline, period, cost| {
        let ms = |time: Option<u64>| time.map(|time| time * 1_000_000);
        Request { deadline_ns: ms(deadline), period_ns: ms(period), cost_ns: ms(cost), ..burstable(0) }
    };
    assert!(refused(task(Some(10), None, None)).starts_with("deadline=10 ms needs cost="));
    assert!(refused(task(None, Some(10), None)).contains("needs cost="));
    assert!(refused(task(None, None, Some(3))).starts_with("cost=3 ms needs a deadline="));
    assert_eq!(refused(task(Some(10), None, Some(11))), "cost=11 ms is more than deadline=10 ms: it can never be met");
    assert!(refused(task(None, Some(10), Some(11))).contains("more than deadline=10 ms"));
    assert!(refused(task(Some(10), Some(9), Some(1))).contains("at most the period"));
    for zero in [task(Some(0), None, Some(1)), task(Some(1), Some(0), Some(1)), task(Some(1), None, Some(0))] {
        assert!(refused(zero).contains("=0 is not a time"));
    }
    let periodic = task(Some(10), Some(33), Some(4));
    assert!(periodic.validate().is_ok());
    assert_eq!(periodic.time_share(), Share::ratio(4, 33));
    assert_eq!(Request { bandwidth: share(0.5), ..periodic }.time_share(), share(0.5));
    assert_eq!(task(Some(10), None, Some(4)).time_share(), share(0.4));
}

#[test]
fn times_are_written_exactly() {
    use crate::sched::request::seconds;
    let texts = [(7, "7 ns"), (1_500, "1.5 us"), (12_345_678, "12.345678 ms"), (2_000_000_000, "2 s")];
    for (ns, text) in texts {
        assert_eq!(seconds(ns), text);
    }
}

#[test]
fn policies_by_name() {
    let asks = Given { memory: true, ..Given::default() };
    let nothing = Given::default();
    assert_eq!(Policy::default_for(asks).class(asks), Ok(Class::Burstable));
    assert_eq!(Policy::default_for(Given { deadline: true, ..nothing }), Policy::Burstable);
    assert_eq!(Policy::default_for(Given { bandwidth: true, ..nothing }), Policy::Burstable);
    assert_eq!(Policy::default_for(Given { priority: true, ..nothing }), Policy::BestEffort);
    for policy in Policy::ALL {
        assert_eq!(policy.name().parse(), Ok(policy));
    }
    let text = "fast".parse::<Policy>().unwrap_err().to_string();
    assert_eq!(
        text,
        "policy='fast' is not known: use one of guaranteed, burstable, besteffort, priority, deadline, fair"
    );
    assert_eq!(Policy::Fair.class(nothing), Ok(Class::BestEffort));
    assert_eq!(Policy::Priority.class(Given { priority: true, ..nothing }), Ok(Class::BestEffort));
    assert!(Policy::Priority.class(nothing).unwrap_err().to_string().contains("priority="));
    assert_eq!(Policy::Deadline.class(Given { deadline: true, cost: true, ..nothing }), Ok(Class::Burstable));
    assert!(Policy::Deadline.class(Given { deadline: true, ..nothing }).unwrap_err().to_string().contains("cost="));
    assert!("gpu".parse::<Isolation>().unwrap_err().to_string().contains("auto, sm, time, process"));
    assert!("wait".parse::<OnFull>().unwrap_err().to_string().contains("queue, reject"));
}

#[test]
fn partitions() {
    let spec = PartitionSpec::new("p");
    let refused = |spec: PartitionSpec| spec.validate().unwrap_err().to_string();
    assert!(refused(PartitionSpec::new("")).contains("needs a name"));
    assert!(refused(PartitionSpec { memory: 2, memory_limit: Some(1), ..spec.clone() }).contains("below memory=2 B"));
    let limit = PartitionSpec { compute: share(0.5), compute_limit: Some(share(0.4)), ..spec.clone() };
    assert!(refused(limit).contains("compute_limit=40% of partition 'p' is below compute=50%"));
    assert!(refused(PartitionSpec { priority_band: (3, 2), ..spec.clone() }).contains("(3, 2)"));
    assert!(refused(PartitionSpec { isolation: Isolation::Sm, ..spec.clone() }).contains("compute above 0"));
    assert!(refused(PartitionSpec { classes: Vec::new(), ..spec }).contains("no class"));
}

#[test]
fn devices_have_something() {
    for capacity in [Capacity::divided(1, 0, 1), Capacity::divided(1, 1, 0), Capacity { max_lanes: 0, ..h200(1) }] {
        assert!(Admission::new(capacity).unwrap_err().to_string().contains("=0 describes no device"));
    }
}

#[test]
fn extreme_numbers_are_answers_not_panics() {
    let capacity = Capacity { blocking_ns: u64::MAX, ..Capacity::divided(u64::MAX, u32::MAX, u32::MAX) };
    for capacity in [capacity, Capacity { granule: 1, min_common: u32::MAX, time_margin: Share::ONE, ..capacity }] {
        let mut books = admission(capacity);
        for bandwidth in [0.0, 1e-6, 0.5, 1.0] {
            let huge = Request { memory: u64::MAX, memory_limit: Some(u64::MAX), ..guaranteed(bandwidth) };
            let long = Request { cost_ns: Some(u64::MAX), deadline_ns: Some(u64::MAX), ..huge };
            for request in [huge, long, Request { cost_ns: Some(1), ..long }] {
                let (_, decision) = books.submit(request).unwrap();
                assert_eq!(decision.shortage.is_none(), decision.verdict == Verdict::Admitted);
                reason(&decision);
            }
        }
        let spec = PartitionSpec {
            memory: u64::MAX,
            compute: Share::ONE,
            isolation: Isolation::Sm,
            ..PartitionSpec::new("p")
        };
        let _ = books.create_partition(spec).map_err(|error| error.to_string());
        books.usage();
    }
}
