//! Turns, on a simulated device: shares, tiers, limits and waits.

use proptest::prelude::*;

use crate::sched::request::Class;
use crate::sched::turns::{Seat, Step, Terms, Tier, Turns, WHOLE};

const MS: u64 = 1_000_000;

/// A tenant that submits kernels of one length, one after the other.
#[derive(Clone, Debug)]
struct Client {
    terms: Terms,
    kernel_ns: u64,
    /// What the cost model believes.
    predicted_ns: i64,
    /// Does it come closer to the truth?
    learns: bool,
    /// Waits for each kernel before the next, and thinks for a while in between.
    think_ns: Option<u64>,
    /// Has work only in these times.
    active: (u64, u64),
    /// Submissions end with their work, as on the CPU device.
    at_once: bool,
    /// Is held up after every so many kernels, for so long.
    hiccup: Option<(u64, u64)>,
}

impl Client {
    fn new(class: Class, kernel_ns: u64) -> Client {
        let terms =
            Terms { class, request: 0, limit: WHOLE, weight: 1, priority: 0, quantum_ns: 1_000_000, lead_ns: 150_000 };
        Client {
            terms,
            kernel_ns,
            predicted_ns: kernel_ns as i64,
            learns: true,
            think_ns: None,
            at_once: false,
            active: (0, u64::MAX),
            hiccup: None,
        }
    }

    fn weight(mut self, weight: u32) -> Client {
        self.terms.weight = weight;
        self
    }

    fn request(mut self, share: f64) -> Client {
        self.terms.request = (share * f64::from(WHOLE)) as u32;
        self
    }

    fn limit(mut self, share: f64) -> Client {
        self.terms.limit = (share * f64::from(WHOLE)) as u32;
        self
    }

    fn priority(mut self, priority: i32) -> Client {
        self.terms.priority = priority;
        self
    }

    fn believed(mut self, ns: i64) -> Client {
        self.predicted_ns = ns;
        self
    }

    fn stubborn(mut self) -> Client {
        self.learns = false;
        self
    }

    fn synchronous(mut self, think_ns: u64) -> Client {
        self.think_ns = Some(think_ns);
        self
    }

    /// On a device that runs work when it is submitted, with so long a pause after each.
    fn at_once(self, think_ns: u64) -> Client {
        Client { at_once: true, ..self.synchronous(think_ns) }
    }

    fn held_up(mut self, every: u64, ns: u64) -> Client {
        self.hiccup = Some((every, ns));
        self
    }

    fn active(mut self, from: u64, to: u64) -> Client {
        self.active = (from, to);
        self
    }
}

struct Batch {
    seat: Seat,
    tier: Tier,
    predicted: i64,
    kernels: i64,
    start: u64,
    end: u64,
}

/// Device time of each client in every window, and in all; and the time the device was busy.
struct Outcome {
    windows: Vec<Vec<u64>>,
    total: Vec<u64>,
    /// Longest time from wanting the lane to the first kernel's start, per client.
    worst_wait: Vec<u64>,
}

impl Outcome {
    fn share(&self, client: usize) -> f64 {
        self.total[client] as f64 / self.total.iter().sum::<u64>() as f64
    }
}

/// Play clients against a lane. The device runs submissions in order; marks are seen when somebody asks.
fn simulate(clients: &[Client], duration: u64, window: u64) -> Outcome {
    let mut clients = clients.to_vec();
    let mut turns = Turns::default();
    let seats: Vec<Seat> = clients.iter().map(|c| turns.join(c.terms, 0)).collect();
    let mut wakes: Vec<u64> = clients.iter().map(|c| c.active.0).collect();
    let mut wanted_since: Vec<Option<u64>> = vec![None; clients.len()];
    let mut worst_wait = vec![0; clients.len()];
    let mut batches: Vec<Batch> = Vec::new();
    let mut open: Option<Batch> = None;
    let mut free_at = 0u64;
    let mut windows = vec![vec![0u64; clients.len()]; (duration / window) as usize];
    let mut total = vec![0u64; clients.len()];
    let mut ended: Vec<Option<u64>> = vec![None; clients.len()];
    let mut gaps = vec![0u64; clients.len()];
    let mut guard = 0u64;
    loop {
        let (me, now) = wakes.iter().copied().enumerate().min_by_key(|&(i, at)| (at, i)).unwrap();
        if now >= duration {
            break;
        }
        guard += 1;
        assert!(guard < 50_000_000, "the simulation does not move on");
        if now >= clients[me].active.1 {
            turns.withdraw(seats[me]);
            wakes[me] = u64::MAX;
            continue;
        }
        batches.retain(|b| {
            let seen = b.end <= now;
            if seen {
                turns.measured(Some(b.seat), b.tier, b.start, b.predicted, (b.end - b.start) as i64);
                let client = seats.iter().position(|s| *s == b.seat).map(|i| &mut clients[i]).unwrap();
                if client.learns {
                    client.predicted_ns += ((b.end - b.start) as i64 / b.kernels - client.predicted_ns) / 4;
                }
            }
            !seen
        });
        let client = &clients[me];
        if let Some(ended) = ended[me].take_if(|ended| client.at_once && *ended <= now) {
            gaps[me] = gaps[me] - gaps[me] / 4 + (now - ended).div_ceil(4);
            turns.set_gap(seats[me], gaps[me]);
        }
        // Submit while the turn lasts.
        if turns.holds(seats[me]) && turns.left_ns() > 0 {
            let start = free_at.max(now);
            let end = start + client.kernel_ns;
            if let Some(since) = wanted_since[me].take() {
                worst_wait[me] = worst_wait[me].max(start - since);
            }
            free_at = end;
            ended[me] = Some(end);
            turns.submitted(client.predicted_ns, turns.busy_until().max(now) + client.predicted_ns as u64);
            let batch = open.get_or_insert(Batch {
                seat: seats[me],
                tier: turns.tier().unwrap(),
                predicted: 0,
                kernels: 0,
                start,
                end,
            });
            batch.kernels += 1;
            batch.predicted += client.predicted_ns;
            batch.end = end;
            total[me] += client.kernel_ns;
            let mut at = start;
            while at < end {
                let index = (at / window) as usize;
                let stop = end.min((at / window + 1) * window);
                if let Some(row) = windows.get_mut(index) {
                    row[me] += stop - at;
                }
                at = stop;
            }
            wakes[me] = match client.think_ns {
                Some(think) => end + think,
                None => now + 3_000,
            };
            if let Some((every, ns)) = client.hiccup
                && (total[me] / client.kernel_ns).is_multiple_of(every)
            {
                wakes[me] += ns;
            }
            continue;
        }
        wanted_since[me].get_or_insert(now);
        turns.arrive(seats[me], now);
        match turns.step(seats[me], now) {
            Step::Open | Step::Renew => {
                batches.extend(open.take());
                turns.open(seats[me], now);
                // Whoever is next has an eye on the holder, at the worst of times.
                if let Some(index) = turns.next_seat().and_then(|next| seats.iter().position(|s| *s == next)) {
                    wakes[index] = wakes[index].min(now + client.kernel_ns + 1);
                }
            }
            Step::Close => {
                batches.extend(open.take());
                turns.close();
            }
            Step::Wait { until, wake } => {
                wakes[me] = until.max(now + 1);
                if let Some(other) = wake {
                    let index = seats.iter().position(|s| *s == other).unwrap();
                    if wanted_since[index].is_some() {
                        wakes[index] = wakes[index].min(now + 20_000);
                    }
                }
            }
        }
    }
    Outcome { windows, total, worst_wait }
}

#[test]
fn weights_are_kept_in_every_window() {
    let clients =
        [Client::new(Class::BestEffort, 300_000).weight(3), Client::new(Class::BestEffort, 300_000).weight(7)];
    let outcome = simulate(&clients, 5_000 * MS, 1_000 * MS);
    for row in &outcome.windows[..4] {
        let share = row[0] as f64 / (row[0] + row[1]) as f64;
        assert!((share - 0.3).abs() < 0.005, "{share}");
    }
    assert!(outcome.total.iter().sum::<u64>() as f64 > 0.995 * 5e9, "{:?}", outcome.total);
}

#[test]
fn who_was_held_up_for_a_moment_gets_its_share_all_the_same() {
    for (first, second) in [
        (Client::new(Class::BestEffort, 50_000), Client::new(Class::BestEffort, 50_000).weight(9)),
        (Client::new(Class::Burstable, 50_000).request(0.1), Client::new(Class::Burstable, 50_000).request(0.9)),
    ] {
        let outcome = simulate(&[first, second.held_up(400, 1_200_000)], 5_000 * MS, 1_000 * MS);
        let ratio = outcome.total[1] as f64 / outcome.total[0] as f64;
        assert!((ratio / 9.0 - 1.0).abs() < 0.01, "{ratio}");
    }
}

#[test]
fn weights_hold_where_every_submission_ends_with_its_work() {
    for (weight, think) in [(9, 20_000), (9, 200_000), (3, 50_000), (3, 400_000)] {
        let client = |weight| Client::new(Class::BestEffort, 1_200_000).weight(weight).at_once(think);
        let outcome = simulate(&[client(1), client(weight)], 5_000 * MS, 1_000 * MS);
        let ratio = outcome.total[1] as f64 / outcome.total[0] as f64;
        assert!((ratio / f64::from(weight) - 1.0).abs() < 0.03, "{ratio} of {weight}, pauses of {think} ns");
        // Nothing is lost but the pauses of the program that is ahead.
        let least = 1.2e6 / (1.2e6 + think as f64 + 100_000.0);
        assert!(outcome.total.iter().sum::<u64>() as f64 > least * 5e9, "{:?}", outcome.total);
    }
}

#[test]
fn the_lane_does_not_wait_for_a_program_with_long_pauses() {
    let clients = [
        Client::new(Class::BestEffort, 1_000_000),
        Client::new(Class::BestEffort, 1_000_000).weight(9).at_once(20 * MS),
    ];
    let outcome = simulate(&clients, 2_000 * MS, 1_000 * MS);
    assert!(outcome.total[0] > 1_850 * MS, "{:?}", outcome.total);
}

#[test]
fn the_lane_is_not_taken_from_one_who_may_come_back_with_a_better_claim() {
    for (weight, closes) in [(9, false), (1, true)] {
        let mut turns = Turns::default();
        let watcher = turns.join(Client::new(Class::BestEffort, 0).terms, 0);
        let holder = turns.join(Client::new(Class::BestEffort, 0).weight(weight).terms, 0);
        // Each has had one quantum; the holder has used up a second one, and its work still runs.
        for seat in [watcher, holder, holder] {
            turns.arrive(seat, 0);
            turns.open(seat, 0);
            turns.submitted(MS as i64, MS);
        }
        assert!(turns.left_ns() <= 0);
        turns.arrive(watcher, 0);
        assert_eq!(turns.step(watcher, 0) == Step::Close, closes, "weight {weight}");
        // Once the device has been idle for a while it is taken in any case.
        assert_eq!(turns.step(watcher, 2 * MS), Step::Close);
    }
}

#[test]
fn requests_are_kept_whatever_the_predictions_say() {
    for (believed_a, believed_b) in [(100_000, 900_000), (900_000, 100_000), (300_000, 300_000)] {
        let clients = [
            Client::new(Class::Burstable, 300_000).request(0.3).believed(believed_a).stubborn(),
            Client::new(Class::Burstable, 300_000).request(0.7).believed(believed_b).stubborn(),
        ];
        let outcome = simulate(&clients, 5_000 * MS, 1_000 * MS);
        for row in &outcome.windows[1..4] {
            let share = row[0] as f64 / (row[0] + row[1]) as f64;
            assert!((share - 0.3).abs() < 0.01, "{share} believing {believed_a}, {believed_b}");
        }
    }
}

#[test]
fn eight_weights_with_kernels_from_microseconds_to_milliseconds() {
    let lengths = [5_000, 5_000_000, 20_000, 1_000_000, 50_000, 200_000, 2_000_000, 500_000];
    let clients: Vec<Client> =
        (0..8).map(|i| Client::new(Class::BestEffort, lengths[i]).weight(i as u32 + 1)).collect();
    let outcome = simulate(&clients, 20_000 * MS, 1_000 * MS);
    for client in 0..8 {
        let expected = (client + 1) as f64 / 36.0;
        let error = outcome.share(client) / expected - 1.0;
        assert!(error.abs() < 0.02, "client {client}: {error}");
    }
}

#[test]
fn a_lone_tenant_has_the_lane_whatever_it_asked_for() {
    let outcome = simulate(&[Client::new(Class::Burstable, 100_000).request(0.2)], 1_000 * MS, 1_000 * MS);
    assert!(outcome.total[0] > 990 * MS, "{}", outcome.total[0]);
}

#[test]
fn a_limit_holds_for_a_lone_tenant_too() {
    for limit in [0.1, 0.25, 0.6] {
        let outcome = simulate(&[Client::new(Class::BestEffort, 100_000).limit(limit)], 4_000 * MS, 1_000 * MS);
        for row in &outcome.windows[1..] {
            let share = row[0] as f64 / 1e9;
            assert!((share - limit).abs() < 0.005, "{share} of {limit}");
        }
    }
}

#[test]
fn one_at_its_limit_waits_until_it_may_go_on_whoever_else_wants_the_lane() {
    let mut turns = Turns::default();
    let limited = turns.join(Client::new(Class::Burstable, MS).limit(0.5).terms, 0);
    let other = turns.join(Client::new(Class::Burstable, MS).terms, 0);
    turns.arrive(limited, 0);
    assert_eq!(turns.step(limited, 0), Step::Open);
    turns.open(limited, 0);
    turns.submitted(3 * MS as i64, 3 * MS);
    turns.close();
    turns.arrive(limited, 0);
    turns.arrive(other, 0);
    // Two milliseconds too many, at half of the lane's time.
    assert_eq!(turns.step(limited, 0), Step::Wait { until: 4 * MS + 2, wake: Some(other) });
    assert!(turns.is_limited(limited));
}

#[test]
fn requests_come_before_leftovers_and_higher_priority_before_lower() {
    let clients = [
        Client::new(Class::Burstable, 100_000).request(0.25).limit(0.25),
        Client::new(Class::BestEffort, 100_000).weight(100),
    ];
    let outcome = simulate(&clients, 2_000 * MS, 1_000 * MS);
    assert!((outcome.share(0) - 0.25).abs() < 0.01, "{}", outcome.share(0));

    let clients =
        [Client::new(Class::BestEffort, 100_000).priority(1), Client::new(Class::BestEffort, 100_000).weight(100)];
    let outcome = simulate(&clients, 1_000 * MS, 1_000 * MS);
    assert!(outcome.share(0) > 0.99, "{}", outcome.share(0));
}

#[test]
fn a_guaranteed_tenant_takes_the_lane_within_what_is_in_flight() {
    let clients = [
        Client::new(Class::Guaranteed, 2 * MS).request(0.6).synchronous(5 * MS),
        Client::new(Class::BestEffort, 100_000),
    ];
    let outcome = simulate(&clients, 2_000 * MS, 1_000 * MS);
    assert!(outcome.worst_wait[0] < 600_000, "{}", outcome.worst_wait[0]);
    assert!(outcome.total[1] > 1_350 * MS, "{}", outcome.total[1]);
}

#[test]
fn whoever_was_away_does_not_bring_the_share_it_did_not_use() {
    let clients = [
        Client::new(Class::BestEffort, 100_000),
        Client::new(Class::BestEffort, 100_000).active(1_000 * MS, 2_000 * MS),
    ];
    let outcome = simulate(&clients, 2_000 * MS, 100 * MS);
    let row = &outcome.windows[10];
    let share = row[1] as f64 / (row[0] + row[1]) as f64;
    assert!((share - 0.5).abs() < 0.05, "{share}");
}

#[test]
fn a_deadline_job_goes_first_until_it_has_used_its_budget() {
    let mut turns = Turns::default();
    let terms = Client::new(Class::Burstable, 0).terms;
    let (job, other) = (turns.join(terms, 0), turns.join(Client::new(Class::Guaranteed, 0).request(0.5).terms, 0));
    turns.begin_job(job, 0, 10 * MS, 2 * MS);
    turns.arrive(other, 0);
    assert_eq!(turns.step(other, 0), Step::Open);
    turns.open(other, 0);
    turns.submitted(100_000, 100_000);
    turns.arrive(job, 0);
    assert_eq!(turns.step(job, 0), Step::Close);
    turns.close();
    assert_eq!(turns.step(job, 0), Step::Open);
    turns.open(job, 0);
    assert_eq!(turns.tier(), Some(Tier::Deadline));
    turns.submitted(3 * MS as i64, 3 * MS);
    turns.arrive(job, 0);
    turns.arrive(other, 0);
    assert_eq!(turns.step(job, 0), Step::Close);
    turns.close();
    assert!(matches!(turns.step(job, 0), Step::Wait { wake: Some(seat), .. } if seat == other));
}

#[test]
fn what_an_earlier_job_took_is_not_taken_from_the_next_one() {
    let mut turns = Turns::default();
    let (job, other) = (
        turns.join(Client::new(Class::BestEffort, 0).terms, 0),
        turns.join(Client::new(Class::Burstable, 0).request(0.5).terms, 0),
    );
    turns.begin_job(job, 0, 10 * MS, 2 * MS);
    turns.arrive(job, 0);
    turns.open(job, 0);
    turns.submitted(50_000, 50_000);
    turns.close();
    turns.end_job(job);
    turns.begin_job(job, 10 * MS, 20 * MS, 2 * MS);
    // The first one took 40 times what was believed, and that is known only now.
    turns.measured(Some(job), Tier::Deadline, 0, 50_000, 2 * MS as i64);
    turns.arrive(other, 10 * MS);
    turns.arrive(job, 10 * MS);
    assert_eq!(turns.next_seat(), Some(job));
    turns.measured(Some(job), Tier::Deadline, 10 * MS, 50_000, 2 * MS as i64 + 50_000);
    assert_eq!(turns.next_seat(), Some(other));
}

#[test]
fn a_job_queues_up_only_shortly_before_the_one_ahead_of_it_ends() {
    let mut turns = Turns::default();
    let terms = Client::new(Class::Burstable, 0).terms;
    let jobs = [turns.join(terms, 0), turns.join(terms, 0), turns.join(terms, 0)];
    for (job, deadline) in [(jobs[0], 20 * MS), (jobs[1], 30 * MS)] {
        turns.begin_job(job, 0, deadline, 5 * MS);
        turns.arrive(job, 0);
    }
    assert_eq!(turns.step(jobs[0], 0), Step::Open);
    turns.open(jobs[0], 0);
    turns.submitted(4 * MS as i64, 4 * MS);
    turns.arrive(jobs[0], 0);
    assert_eq!(turns.step(jobs[0], 0), Step::Renew, "its own work goes on at once");
    turns.withdraw(jobs[0]);
    turns.close();
    let Step::Wait { until, wake: None } = turns.step(jobs[1], MS) else { panic!("it has queued up") };
    assert!(until > 3 * MS && until < 4 * MS, "{until}");
    // One with an earlier deadline comes meanwhile.
    turns.begin_job(jobs[2], 2 * MS, 10 * MS, MS);
    turns.arrive(jobs[2], 2 * MS);
    assert_eq!(turns.step(jobs[2], until), Step::Open);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Among backlogged tenants of one tier nobody is ahead of its share by more than what one turn, one kernel and
    /// what was in flight can make.
    #[test]
    fn shares_of_the_backlogged_follow_weights(
        weights in prop::collection::vec(1u32..16, 2..6),
        kernels in prop::collection::vec(10_000u64..3_000_000, 6),
        beliefs in prop::collection::vec(0.3f64..3.0, 6),
    ) {
        let clients: Vec<Client> = weights.iter().enumerate().map(|(i, w)| {
            let believed = (kernels[i] as f64 * beliefs[i]) as i64;
            Client::new(Class::BestEffort, kernels[i]).weight(*w).believed(believed)
        }).collect();
        let duration = 3_000 * MS;
        let outcome = simulate(&clients, duration, duration);
        let sum: u32 = weights.iter().sum();
        let slack: u64 = 8_000_000 + 4 * kernels.iter().max().unwrap();
        for (i, weight) in weights.iter().enumerate() {
            let expected = outcome.total.iter().sum::<u64>() as f64 * f64::from(*weight) / f64::from(sum);
            let error = (outcome.total[i] as f64 - expected).abs();
            prop_assert!(error < slack as f64, "client {i}: {} of {expected}", outcome.total[i]);
        }
        prop_assert!(outcome.total.iter().sum::<u64>() > duration * 98 / 100);
    }

    /// Whatever the mix, limits hold and the lane does not idle while somebody may use it.
    #[test]
    fn limits_hold_and_nothing_is_wasted(
        limits in prop::collection::vec(0.05f64..0.5, 1..4),
        kernels in prop::collection::vec(10_000u64..400_000, 4),
    ) {
        let mut clients: Vec<Client> = limits.iter().enumerate()
            .map(|(i, l)| Client::new(Class::Burstable, kernels[i]).limit(*l)).collect();
        clients.push(Client::new(Class::BestEffort, kernels[3]));
        let duration = 2_000 * MS;
        let outcome = simulate(&clients, duration, duration);
        for (i, limit) in limits.iter().enumerate() {
            let most = limit * duration as f64 + 4e6;
            prop_assert!((outcome.total[i] as f64) < most, "client {i}: {} of {most}", outcome.total[i]);
        }
        prop_assert!(outcome.total.iter().sum::<u64>() > duration * 97 / 100);
    }
}

#[test]
fn long_work_is_cut_for_those_who_must_give_way() {
    let mut turns = Turns::default();
    let besteffort = turns.join(Client::new(Class::BestEffort, MS).terms, 0);
    let burstable = turns.join(Client::new(Class::Burstable, MS).terms, 0);
    let gives_way = |turns: &Turns| [besteffort, burstable].map(|seat| turns.gives_way(seat));
    assert_eq!(gives_way(&turns), [true, false]);
    let promised = turns.join(Client::new(Class::Burstable, MS).request(0.25).terms, 0);
    assert_eq!(gives_way(&turns), [true, true]);
    // It is the only one who is promised something.
    assert!(!turns.gives_way(promised));
    turns.quit(promised);
    assert_eq!(gives_way(&turns), [true, false]);
    turns.begin_job(besteffort, 0, 10 * MS, MS);
    assert_eq!(gives_way(&turns), [true, true]);
    let guaranteed = turns.join(Client::new(Class::Guaranteed, MS).request(0.5).terms, 0);
    assert!(!turns.gives_way(guaranteed));
    assert!(!turns.gives_way(99));
}
