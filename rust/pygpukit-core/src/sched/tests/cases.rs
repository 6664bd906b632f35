//! What the contract promises, one example each.

use super::*;

const GIB: u64 = 1 << 30;

fn verdict(books: &mut Admission, request: Request) -> (TaskId, Verdict, String) {
    let (id, decision) = books.submit(request).unwrap();
    (id, decision.verdict, reason(&decision))
}

#[test]
fn memory_is_admitted_queued_or_rejected() {
    let mut books = admission(h200(125 * GIB + GIB / 2));
    let (first, answer, _) = verdict(&mut books, burstable(120 * GIB));
    assert_eq!(answer, Verdict::Admitted);
    let (second, answer, why) = verdict(&mut books, burstable(6 * GIB));
    assert_eq!(answer, Verdict::Queued);
    assert_eq!(why, "memory: 6.0 GiB asked + 120.0 GiB reserved > 125.5 GiB of partition 'default'");
    let (_, answer, why) = verdict(&mut books, burstable(126 * GIB));
    assert_eq!(answer, Verdict::Rejected);
    assert_eq!(why, "memory: 126.0 GiB asked > 125.5 GiB of partition 'default'");
    let (_, answer, _) = verdict(&mut books, Request { on_full: OnFull::Reject, ..burstable(6 * GIB) });
    assert_eq!(answer, Verdict::Rejected);
    assert_eq!(books.position(second), Some(0));
    assert_eq!(books.release(first), [second]);
    assert_eq!(books.placement(second).unwrap().memory_hard, 6 * GIB);
    assert_eq!((books.position(second), books.reason(second)), (None, None));
}

#[test]
fn the_inequality_is_exact_where_rounding_would_hide_it() {
    let mut books = admission(h200(2 * GIB));
    verdict(&mut books, burstable(GIB));
    let (_, _, why) = verdict(&mut books, burstable(GIB + 1));
    assert_eq!(why, "memory: 1073741825 B asked + 1073741824 B reserved > 2147483648 B of partition 'default'");
}

#[test]
fn the_floor_counts_where_it_is_larger() {
    let mut books = admission(h200(10));
    let (id, answer, _) = verdict(&mut books, Request { memory_soft: 7, ..burstable(2) });
    assert_eq!(answer, Verdict::Admitted);
    let placement = books.placement(id).unwrap();
    assert_eq!((placement.memory_hard, placement.memory_floor, placement.memory_quota), (2, 7, None));
    assert_eq!(verdict(&mut books, burstable(4)).1, Verdict::Queued);
    assert_eq!(books.usage()[0].memory_reserved, 7);
}

#[test]
fn quotas_of_guaranteed_tasks() {
    let mut books = admission(h200(100));
    let mut quota = |request| {
        let id = verdict(&mut books, request).0;
        books.placement(id).unwrap().memory_quota
    };
    assert_eq!(quota(Request { memory: 5, ..guaranteed(0.0) }), Some(5));
    assert_eq!(quota(Request { memory: 5, memory_limit: Some(9), ..guaranteed(0.0) }), Some(9));
    assert_eq!(quota(guaranteed(0.0)), None);
    assert_eq!(quota(burstable(5)), None);
}

#[test]
fn guaranteed_tasks_get_whole_granules() {
    let mut books = admission(h200(100));
    let (id, ..) = verdict(&mut books, guaranteed(0.1));
    let placement = books.placement(id).unwrap();
    assert_eq!((placement.mode, placement.share), (Mode::OwnLane(16), share(0.1)));
    let usage = &books.usage()[0];
    assert_eq!((usage.lane_sms, usage.lanes, usage.sms, books.lanes()), (16, 1, 132, 2));
    // 116 of 132 SMs and 2 % margin are left to those who share.
    assert_eq!(usage.time_capacity, 116 * 980_000 / 132);
}

#[test]
fn lanes_leave_room_for_what_is_shared() {
    let mut books = admission(h200(100));
    verdict(&mut books, Request { bandwidth: share(0.5), ..burstable(0) });
    let (_, answer, why) = verdict(&mut books, guaranteed(0.5));
    assert_eq!(answer, Verdict::Queued);
    assert_eq!(why, "SMs: 72 asked + 68 kept for the common lane > 132 of partition 'default'");
    let mut books = admission(h200(100));
    verdict(&mut books, guaranteed(0.5));
    let (_, answer, why) = verdict(&mut books, Request { bandwidth: share(0.5), ..burstable(0) });
    assert_eq!(answer, Verdict::Queued);
    assert_eq!(why, "time: 50% asked > 44.5454% of partition 'default'");
}

#[test]
fn guaranteed_tasks_share_where_lanes_cannot_be() {
    let cpu = Capacity::new(100);
    let mut books = admission(cpu);
    let (id, ..) = verdict(&mut books, guaranteed(0.5));
    assert_eq!(books.placement(id).unwrap().mode, Mode::TimeShare);
    let (_, answer, why) = verdict(&mut books, Request { isolation: Isolation::Sm, ..guaranteed(0.5) });
    assert_eq!(answer, Verdict::Rejected);
    assert_eq!(why, "SMs: 1 asked + 1 kept for the common lane > 1 of partition 'default'");
    // Too wide for a lane beside the common one, but not for its time.
    let mut books = admission(h200(100));
    let (id, ..) = verdict(&mut books, guaranteed(0.97));
    assert_eq!(books.placement(id).unwrap().mode, Mode::TimeShare);
    assert_eq!(verdict(&mut books, guaranteed(1.0)).2, "time: 100% asked > 98% of partition 'default'");
    // Without compute of its own there is nothing to make a lane of.
    let (id, ..) = verdict(&mut books, Request { memory: 3, ..guaranteed(0.0) });
    assert_eq!(books.placement(id).unwrap().mode, Mode::TimeShare);
}

#[test]
fn when_only_lanes_are_short_auto_shares_at_once() {
    let mut books = admission(Capacity { max_lanes: 3, ..h200(100) });
    verdict(&mut books, guaranteed(0.1));
    verdict(&mut books, guaranteed(0.1));
    let (id, answer, _) = verdict(&mut books, guaranteed(0.1));
    assert_eq!((answer, books.placement(id).unwrap().mode), (Verdict::Admitted, Mode::TimeShare));
    let (_, answer, why) = verdict(&mut books, Request { isolation: Isolation::Sm, ..guaranteed(0.1) });
    assert_eq!((answer, why.as_str()), (Verdict::Queued, "lanes: 1 asked + 3 in use > 3 of the device"));
    // SMs that are short are waited for.
    let (_, answer, why) = verdict(&mut books, guaranteed(0.8));
    assert_eq!(answer, Verdict::Queued);
    assert!(why.starts_with("SMs: 112 asked + 32 in lanes"), "{why}");
}

#[test]
fn whole_gpu_windows_and_lanes_exclude_each_other() {
    let mut books = admission(h200(100));
    let window = Request { isolation: Isolation::Time, bandwidth: share(0.2), ..burstable(0) };
    let (lane, ..) = verdict(&mut books, guaranteed(0.1));
    let (waits, answer, why) = verdict(&mut books, window);
    assert_eq!(answer, Verdict::Queued);
    assert_eq!(why, "isolation: windows of the whole GPU asked, but it is divided into 2 lanes ('sm')");
    assert_eq!(books.release(lane), [waits]);
    let (later, answer, why) = verdict(&mut books, guaranteed(0.1));
    assert_eq!(answer, Verdict::Queued);
    assert_eq!(why, "isolation: SMs of its own asked, but the whole GPU goes to others in windows ('time': 1)");
    assert_eq!(books.release(waits), [later]);
}

#[test]
fn nobody_passes_those_who_need_the_same() {
    let mut books = admission(h200(10));
    let (first, ..) = verdict(&mut books, burstable(8));
    let (large, answer, _) = verdict(&mut books, burstable(9));
    assert_eq!(answer, Verdict::Queued);
    let (small, answer, why) = verdict(&mut books, burstable(1));
    assert_eq!(answer, Verdict::Queued);
    assert_eq!(why, "memory: task 2 came first and waits for it in partition 'default'");
    // Who needs no memory passes.
    let time = Request { bandwidth: share(0.3), ..burstable(0) };
    assert_eq!(verdict(&mut books, time).1, Verdict::Admitted);
    assert_eq!((books.position(large), books.position(small)), (Some(0), Some(1)));
    assert_eq!(books.release(first), [large, small]);
}

#[test]
fn higher_priorities_wait_in_front() {
    let mut books = admission(h200(10));
    let (first, ..) = verdict(&mut books, burstable(9));
    let (low, ..) = verdict(&mut books, burstable(10));
    let (high, ..) = verdict(&mut books, Request { priority: 5, ..burstable(5) });
    assert_eq!((books.position(high), books.position(low)), (Some(0), Some(1)));
    // It fits, and those who wait have a lower priority.
    assert_eq!(
        verdict(&mut books, Request { priority: 1, ..burstable(1) }).2,
        format!("memory: task {high} came first and waits for it in partition 'default'")
    );
    assert_eq!(verdict(&mut books, Request { priority: 9, ..burstable(1) }).1, Verdict::Admitted);
    assert_eq!(books.release(first), [high, high + 1]);
    assert_eq!(books.reason(low).unwrap().used, 7);
}

#[test]
fn resources_cannot_be_taken_away_in_turns() {
    // The first one waits for memory; while it does, others take the time it needs too, but only once.
    let mut books = admission(Capacity::new(10));
    let timed = |bandwidth| Request { bandwidth: share(bandwidth), ..burstable(0) };
    let (memory, ..) = verdict(&mut books, burstable(5));
    let (both, answer, _) = verdict(&mut books, Request { memory: 8, ..timed(0.5) });
    assert_eq!(answer, Verdict::Queued);
    let (time, answer, _) = verdict(&mut books, timed(0.6));
    assert_eq!(answer, Verdict::Admitted);
    assert_eq!(books.release(memory), []);
    assert!(books.reason(both).unwrap().to_string().starts_with("time: 50% asked + 60%"));
    // Memory is free again, and stays claimed.
    assert_eq!(verdict(&mut books, burstable(5)).1, Verdict::Queued);
    assert_eq!(verdict(&mut books, timed(0.1)).1, Verdict::Queued);
    assert_eq!(books.release(time), [both, both + 3]);
}

#[test]
fn who_can_share_does_not_hold_lanes() {
    let mut books = admission(Capacity { max_lanes: 2, ..h200(10) });
    let (lane, ..) = verdict(&mut books, guaranteed(0.1));
    verdict(&mut books, burstable(8));
    let (auto, answer, _) = verdict(&mut books, Request { memory: 5, ..guaranteed(0.1) });
    assert_eq!(answer, Verdict::Queued);
    let (own, answer, _) = verdict(&mut books, Request { isolation: Isolation::Sm, ..guaranteed(0.1) });
    assert_eq!(answer, Verdict::Queued);
    assert_eq!(books.release(lane), [own]);
    assert!(books.reason(auto).unwrap().to_string().starts_with("memory: 5 B asked + 8 B"));
}

#[test]
fn who_could_never_share_waits_for_a_lane() {
    let mut books = admission(Capacity { max_lanes: 2, time_margin: share(0.5), ..h200(10) });
    let (first, ..) = verdict(&mut books, guaranteed(0.1));
    let (second, answer, why) = verdict(&mut books, guaranteed(0.6));
    assert_eq!((answer, why.as_str()), (Verdict::Queued, "lanes: 1 asked + 2 in use > 2 of the device"));
    assert_eq!(books.release(first), [second]);
    assert_eq!(books.placement(second).unwrap().mode, Mode::OwnLane(80));
}

#[test]
fn cancelling_one_who_waits_lets_others_in() {
    let mut books = admission(h200(10));
    verdict(&mut books, burstable(5));
    let (large, ..) = verdict(&mut books, burstable(6));
    let (small, ..) = verdict(&mut books, burstable(5));
    assert_eq!(books.release(large), [small]);
    assert_eq!(books.release(large), []);
    assert_eq!(books.release(999), []);
}

#[test]
fn the_queue_is_bounded() {
    let mut books = admission(Capacity { queue_limit: 2, ..h200(10) });
    for expected in [Verdict::Admitted, Verdict::Queued, Verdict::Queued, Verdict::Rejected] {
        assert_eq!(verdict(&mut books, burstable(10)).1, expected);
    }
    assert_eq!(verdict(&mut books, burstable(10)).2, "queue: 1 asked + 2 waiting > 2 of partition 'default'");
    assert_eq!(verdict(&mut books, Request::new(Class::BestEffort)).1, Verdict::Admitted);
}

#[test]
fn partitions_take_from_the_device_and_limit_their_tasks() {
    let mut books = admission(h200(100));
    let spec = PartitionSpec {
        memory: 40,
        memory_limit: Some(50),
        compute: share(0.5),
        compute_limit: Some(share(0.6)),
        priority_band: (0, 5),
        isolation: Isolation::Sm,
        classes: vec![Class::Guaranteed, Class::Burstable],
        ..PartitionSpec::new("inference")
    };
    let part = books.create_partition(spec.clone()).unwrap();
    assert_eq!(books.find_partition("inference"), Some(part));
    let usage = books.usage();
    assert_eq!((usage[0].memory_capacity, usage[0].sms, books.lanes()), (60, 60, 2));
    assert_eq!((usage[1].memory_capacity, usage[1].sms), (40, 72));
    let inside = |request: Request| Request { partition: part, ..request };
    let (id, ..) = verdict(&mut books, inside(guaranteed(0.2)));
    let placement = books.placement(id).unwrap();
    assert_eq!((placement.mode, placement.partition), (Mode::OwnLane(32), part));
    assert_eq!((placement.memory_quota, placement.share_limit), (Some(50), Some(share(0.6))));
    let (_, answer, why) = verdict(&mut books, inside(burstable(41)));
    assert_eq!(answer, Verdict::Rejected);
    assert_eq!(why, "memory: 41 B asked > 40 B of partition 'inference'");
    let outside = inside(Request { priority: 6, ..burstable(1) });
    assert_eq!(verdict(&mut books, outside).2, "priority: 6 is outside the band 0 to 5 of partition 'inference'");
    let (_, answer, why) = verdict(&mut books, inside(Request::new(Class::BestEffort)));
    assert_eq!((answer, why.as_str()), (Verdict::Rejected, "class: besteffort is not taken by partition 'inference'"));
    // 40 SMs are left to share there.
    let (_, answer, why) = verdict(&mut books, inside(Request { bandwidth: share(0.3), ..burstable(0) }));
    assert_eq!((answer, why.as_str()), (Verdict::Queued, "time: 30% asked > 29.6969% of partition 'inference'"));
    let error = books.remove_partition(part).unwrap_err().to_string();
    assert_eq!(error, "partition 'inference' is in use (tasks: 1, waiting: 1): end or cancel them first");
    let again = books.create_partition(spec).unwrap_err().to_string();
    assert!(again.contains("'inference' exists"), "{again}");
}

#[test]
fn partitions_are_made_or_refused() {
    let mut books = admission(h200(100));
    verdict(&mut books, burstable(80));
    let large = PartitionSpec { memory: 30, ..PartitionSpec::new("large") };
    assert_eq!(
        books.create_partition(large).unwrap_err().to_string(),
        "partition 'large' does not fit: memory: 30 B asked + 80 B reserved > 100 B of partition 'default'"
    );
    let wide = PartitionSpec { compute: share(0.98), isolation: Isolation::Sm, ..PartitionSpec::new("wide") };
    let text = books.create_partition(wide).unwrap_err().to_string();
    assert!(text.ends_with("SMs: 136 asked + 8 kept for the common lane > 132 of partition 'default'"), "{text}");
    let shared = PartitionSpec { compute: share(0.6), ..PartitionSpec::new("shared") };
    books.create_partition(shared.clone()).unwrap();
    let text = books.create_partition(PartitionSpec { name: "more".into(), ..shared }).unwrap_err().to_string();
    assert!(text.ends_with("time: 60% asked > 38% of partition 'default'"), "{text}");
    assert!(books.remove_partition(PartitionId::DEFAULT).is_err());
    assert!(books.remove_partition(PartitionId(77)).is_err());
}

#[test]
fn removing_a_partition_lets_others_in() {
    let mut books = admission(h200(100));
    let part = books.create_partition(PartitionSpec { memory: 60, ..PartitionSpec::new("p") }).unwrap();
    let (waits, answer, why) = verdict(&mut books, burstable(50));
    assert_eq!((answer, why.as_str()), (Verdict::Queued, "memory: 50 B asked > 40 B of partition 'default'"));
    assert_eq!(books.remove_partition(part).unwrap(), [waits]);
    let gone = books.submit(Request { partition: part, ..burstable(1) }).unwrap_err().to_string();
    assert!(gone.contains("there is no partition 1"), "{gone}");
}

#[test]
fn a_request_that_only_a_partition_is_in_the_way_of_holds_nobody_up() {
    let mut books = admission(h200(100));
    let part = books.create_partition(PartitionSpec { memory: 30, ..PartitionSpec::new("p") }).unwrap();
    let (large, answer, why) = verdict(&mut books, burstable(80));
    assert_eq!((answer, why.as_str()), (Verdict::Queued, "memory: 80 B asked > 70 B of partition 'default'"));
    let (small, answer, _) = verdict(&mut books, burstable(60));
    assert_eq!(answer, Verdict::Admitted);
    // Those that ended tasks can serve still stand in line.
    let (second, answer, _) = verdict(&mut books, burstable(20));
    assert_eq!(answer, Verdict::Queued);
    let (third, answer, why) = verdict(&mut books, burstable(5));
    assert_eq!(answer, Verdict::Queued);
    assert_eq!(why, format!("memory: task {second} came first and waits for it in partition 'default'"));
    // With the partition gone the first is served before all that came later.
    assert_eq!(books.remove_partition(part).unwrap(), []);
    assert_eq!(verdict(&mut books, burstable(1)).1, Verdict::Queued);
    assert_eq!(books.release(small), [large, second]);
    assert_eq!(books.queued().next(), Some(third));
}

#[test]
fn a_new_partition_takes_a_waiting_request_out_of_the_way() {
    let mut books = admission(h200(100));
    let (running, ..) = verdict(&mut books, burstable(40));
    let (large, ..) = verdict(&mut books, burstable(80));
    let (small, answer, _) = verdict(&mut books, burstable(10));
    assert_eq!(answer, Verdict::Queued);
    assert_eq!(books.admit_waiting(), []);
    let part = books.create_partition(PartitionSpec { memory: 30, ..PartitionSpec::new("p") }).unwrap();
    assert_eq!(books.admit_waiting(), [small]);
    assert_eq!(reason_of(&books, large), "memory: 80 B asked > 70 B of partition 'default'");
    assert_eq!(books.release(running), []);
    assert_eq!(books.remove_partition(part).unwrap(), [large]);
}

fn reason_of(books: &Admission, id: TaskId) -> String {
    books.reason(id).map(|shortage| shortage.to_string()).unwrap_or_default()
}

#[test]
fn partitions_of_time() {
    let mut books = admission(h200(100));
    let whole = PartitionSpec { compute: share(0.3), isolation: Isolation::Time, ..PartitionSpec::new("whole") };
    let part = books.create_partition(whole.clone()).unwrap();
    // Its tasks share, whatever their class, and lanes elsewhere have to wait.
    let (id, ..) = verdict(&mut books, Request { partition: part, ..guaranteed(0.2) });
    assert_eq!(books.placement(id).unwrap().mode, Mode::TimeShare);
    let lane = Request { isolation: Isolation::Sm, ..guaranteed(0.1) };
    assert_eq!(verdict(&mut books, Request { partition: part, ..lane }).1, Verdict::Rejected);
    let (waits, answer, _) = verdict(&mut books, lane);
    assert_eq!(answer, Verdict::Queued);
    assert_eq!(books.release(id), []);
    assert_eq!(books.remove_partition(part).unwrap(), [waits]);
    assert!(books.create_partition(whole).is_err());
    let process = PartitionSpec { compute: share(0.3), isolation: Isolation::Process, ..PartitionSpec::new("apart") };
    let part = books.create_partition(process).unwrap();
    let (id, ..) = verdict(&mut books, Request { partition: part, ..guaranteed(0.2) });
    assert_eq!(books.placement(id).unwrap().mode, Mode::Process);
}
