//! Turns of a time-shared lane: who uses it next, and for how long.
//!
//! Pure: time is an argument, and nothing here waits. A tenant that has work arrives, and asks by `step` what to do
//! until it holds the lane. A turn ends when its quantum is used up, when the holder leaves the lane idle while
//! others want it, or when somebody of a higher tier arrives. Device time is charged as predicted when it is
//! submitted, and corrected when it has been measured.

use super::request::Class;

/// One whole, in parts per million.
pub const WHOLE: u32 = 1_000_000;

/// Virtual time is kept in these parts of a nanosecond.
const FINE: u128 = 1 << 20;

/// What a tenant is promised on a lane. Shares are parts per million of the lane's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    pub class: Class,
    /// Given before anybody gets more than was asked for.
    pub request: u32,
    /// Never exceeded; `WHOLE` is no limit.
    pub limit: u32,
    /// Of what is left over.
    pub weight: u32,
    /// Among equals the higher one goes first.
    pub priority: i32,
    /// Device time of one turn.
    pub quantum_ns: u64,
    /// More is submitted when what was submitted before will end within this time.
    pub lead_ns: u64,
}

/// Turns and leads of those who must give way at once, while somebody is there they would have to give way to.
const SHORT_NS: u64 = 150_000;

impl Terms {
    /// What the request may save up: two turns, and five milliseconds' worth.
    fn burst_ns(&self) -> i64 {
        2 * self.quantum_ns as i64 + share_of(5_000_000, self.request)
    }
}

/// Device time that a tenant which was away may catch up on, at most.
const SAVED_NS: u128 = 20_000_000;

/// An idle holder keeps the lane this long: it may be about to submit more.
const GRACE_NS: u64 = 100_000;
const BESTEFFORT_GRACE_NS: u64 = 20_000;

/// The longest that the lane stays idle for a holder that goes before the tenant that waits, where submissions end with
/// their work: the holder comes back when its program has made the next one.
const PATIENCE_NS: u64 = 1_000_000;

/// Number of a tenant on its lane.
pub type Seat = usize;

/// Why somebody goes first; a smaller one does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// An admitted job with a deadline, within its declared cost.
    Deadline,
    /// A guaranteed tenant within its request.
    Guaranteed,
    /// A burstable tenant within its request.
    Request,
    /// More than was asked for.
    Excess,
    /// Leftover time.
    BestEffort,
}

impl Tier {
    fn is_entitled(self) -> bool {
        matches!(self, Tier::Guaranteed | Tier::Request)
    }

    fn spends_excess(self) -> bool {
        matches!(self, Tier::Excess | Tier::BestEffort)
    }
}

/// What a tenant that wants the lane does now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Begin a turn.
    Open,
    /// Go on with a new quantum.
    Renew,
    /// End the holder's turn, and ask again.
    Close,
    /// Ask again at this time, or when woken. Somebody else is next, or has to be looked at.
    Wait { until: u64, wake: Option<Seat> },
}

/// Order among those who want the lane.
type Rank = (Tier, i64, u128, Seat);

#[derive(Clone, Copy, Debug)]
struct Job {
    begun: u64,
    deadline: u64,
    budget_ns: i64,
}

#[derive(Clone, Debug)]
struct Tenant {
    terms: Terms,
    wants: bool,
    /// Charged time over request, and over weight.
    by_request: u128,
    by_weight: u128,
    /// What is left of the request, and of the limit; refilled with time.
    credit: i64,
    allowance: i64,
    refilled_at: u64,
    job: Option<Job>,
    /// Mean time from the end of its work to its next submission; 0 where submissions do not wait for their work.
    gap_ns: u64,
}

impl Tenant {
    fn refill(&mut self, now: u64) {
        let passed = now.saturating_sub(self.refilled_at);
        self.refilled_at = self.refilled_at.max(now);
        let terms = &self.terms;
        if terms.request > 0 {
            self.credit = (self.credit + share_of(passed, terms.request)).min(terms.burst_ns());
        }
        if terms.limit < WHOLE {
            self.allowance = (self.allowance + share_of(passed, terms.limit)).min(2 * terms.quantum_ns as i64);
        }
    }

    /// Is it promised something that others' work in flight delays?
    fn is_promised(&self) -> bool {
        self.terms.class == Class::Guaranteed || self.terms.request > 0 || self.job.is_some()
    }

    fn is_limited(&self) -> bool {
        self.terms.limit < WHOLE && self.allowance <= 0
    }

    fn tier(&self) -> Tier {
        let entitled = self.terms.request > 0 && self.credit > 0;
        match (self.job, self.terms.class) {
            (Some(job), _) if job.budget_ns > 0 => Tier::Deadline,
            (_, Class::Guaranteed) if entitled => Tier::Guaranteed,
            (_, Class::Burstable) if entitled => Tier::Request,
            (_, Class::BestEffort) => Tier::BestEffort,
            _ => Tier::Excess,
        }
    }

    fn rank(&self, seat: Seat) -> Rank {
        match self.tier() {
            Tier::Deadline => (Tier::Deadline, 0, self.job.map_or(0, |job| u128::from(job.deadline)), seat),
            tier if tier.is_entitled() => (tier, 0, self.by_request, seat),
            tier => (tier, -i64::from(self.terms.priority), self.by_weight, seat),
        }
    }

    /// Account for device time used in a turn of this tier; a negative amount takes some back.
    fn charge(&mut self, tier: Tier, ns: i64) {
        if self.terms.limit < WHOLE {
            self.allowance -= ns;
        }
        match tier {
            Tier::Deadline => {
                if let Some(job) = &mut self.job {
                    job.budget_ns -= ns;
                }
            }
            tier if tier.is_entitled() => {
                self.credit -= ns;
                advance(&mut self.by_request, ns, self.terms.request);
            }
            _ => advance(&mut self.by_weight, ns, self.terms.weight),
        }
    }
}

fn advance(virtual_time: &mut u128, ns: i64, weight: u32) {
    let step = u128::from(ns.unsigned_abs()) * FINE / u128::from(weight.max(1));
    *virtual_time = if ns < 0 { virtual_time.saturating_sub(step) } else { *virtual_time + step };
}

fn share_of(ns: u64, share: u32) -> i64 {
    (u128::from(ns) * u128::from(share) / u128::from(WHOLE)) as i64
}

/// An open turn.
#[derive(Clone, Copy, Debug)]
struct Hold {
    seat: Seat,
    tier: Tier,
    left_ns: i64,
}

#[derive(Debug, Default)]
pub struct Turns {
    tenants: Vec<Option<Tenant>>,
    holder: Option<Hold>,
    /// When the device will have finished what was submitted, as predicted.
    busy_until: u64,
    /// Virtual time reached by those who were served.
    request_clock: u128,
    weight_clock: u128,
}

impl Turns {
    pub fn join(&mut self, terms: Terms, now: u64) -> Seat {
        let tenant = Tenant {
            terms,
            wants: false,
            by_request: self.request_clock,
            by_weight: self.weight_clock,
            credit: terms.quantum_ns as i64,
            allowance: terms.quantum_ns as i64,
            refilled_at: now,
            job: None,
            gap_ns: 0,
        };
        match self.tenants.iter().position(Option::is_none) {
            Some(free) => {
                self.tenants[free] = Some(tenant);
                free
            }
            None => {
                self.tenants.push(Some(tenant));
                self.tenants.len() - 1
            }
        }
    }

    /// A tenant goes for good. Its turn has been closed.
    pub fn quit(&mut self, seat: Seat) {
        debug_assert!(self.holder.is_none_or(|hold| hold.seat != seat));
        if let Some(tenant) = self.tenants.get_mut(seat) {
            *tenant = None;
        }
    }

    /// Change what a tenant is promised; its history stays.
    pub fn set_terms(&mut self, seat: Seat, terms: Terms) {
        if let Some(tenant) = self.tenant(seat) {
            tenant.terms = terms;
        }
    }

    /// A job of the tenant is due at `deadline` and may use this much device time before it.
    pub fn begin_job(&mut self, seat: Seat, now: u64, deadline: u64, budget_ns: u64) {
        if let Some(tenant) = self.tenant(seat) {
            tenant.job = Some(Job { begun: now, deadline, budget_ns: budget_ns.min(i64::MAX as u64) as i64 });
        }
    }

    pub fn end_job(&mut self, seat: Seat) {
        if let Some(tenant) = self.tenant(seat) {
            tenant.job = None;
        }
    }

    pub fn holder(&self) -> Option<Seat> {
        self.holder.map(|hold| hold.seat)
    }

    pub fn holds_any(&self) -> bool {
        self.holder.is_some()
    }

    pub fn holds(&self, seat: Seat) -> bool {
        self.holder() == Some(seat)
    }

    /// Device time the holder may still submit.
    pub fn left_ns(&self) -> i64 {
        self.holder.map_or(0, |hold| hold.left_ns)
    }

    /// Why the holder has the lane.
    pub fn tier(&self) -> Option<Tier> {
        self.holder.map(|hold| hold.tier)
    }

    pub fn busy_until(&self) -> u64 {
        self.busy_until
    }

    /// Does anybody but this tenant want the lane?
    pub fn is_contended(&self, seat: Seat) -> bool {
        self.tenants.iter().enumerate().any(|(other, t)| other != seat && t.as_ref().is_some_and(|t| t.wants))
    }

    /// Is this tenant the only one there is?
    pub fn is_alone(&self, seat: Seat) -> bool {
        self.tenants.iter().enumerate().all(|(other, tenant)| other == seat || tenant.is_none())
    }

    /// Has the tenant reached its limit?
    pub fn is_limited(&self, seat: Seat) -> bool {
        self.tenants.get(seat).and_then(Option::as_ref).is_some_and(Tenant::is_limited)
    }

    /// Would the holder go first, if it wanted another turn?
    pub fn is_holder_ahead_of(&self, seat: Seat) -> bool {
        self.holder.is_some_and(|hold| self.outranks(hold.seat, seat))
    }

    /// Who has the next turn, of those who want one.
    pub fn next_seat(&self) -> Option<Seat> {
        self.next().map(|(.., seat)| seat)
    }

    /// A tenant wants the lane. Whoever was away brings along what it missed in two turns of the smallest of the others:
    /// it may have been held up for a moment, and who takes over then must not gain by it. But not more than `SAVED_NS`.
    pub fn arrive(&mut self, seat: Seat, now: u64) {
        let (requests, weights) = (self.request_clock, self.weight_clock);
        let least = |of: fn(&Terms) -> u32| {
            let all = self.tenants.iter().flatten().map(|tenant| of(&tenant.terms));
            u128::from(all.filter(|part| *part > 0).min().unwrap_or(1))
        };
        let (least_request, least_weight) = (least(|terms| terms.request), least(|terms| terms.weight));
        if let Some(tenant) = self.tenant(seat) {
            tenant.refill(now);
            if !tenant.wants {
                tenant.wants = true;
                let turns = 2 * u128::from(tenant.terms.quantum_ns) * FINE;
                let floor = |clock: u128, part: u32, least: u128| {
                    let part = u128::from(part.max(1));
                    clock.saturating_sub((turns / least).min((SAVED_NS * FINE).max(turns) / part))
                };
                tenant.by_request = tenant.by_request.max(floor(requests, tenant.terms.request, least_request));
                tenant.by_weight = tenant.by_weight.max(floor(weights, tenant.terms.weight, least_weight));
            }
        }
    }

    /// It no longer does.
    pub fn withdraw(&mut self, seat: Seat) {
        if let Some(tenant) = self.tenant(seat) {
            tenant.wants = false;
        }
    }

    /// What `me`, who has arrived, does now.
    pub fn step(&mut self, me: Seat, now: u64) -> Step {
        for tenant in self.tenants.iter_mut().flatten().filter(|tenant| tenant.wants) {
            tenant.refill(now);
        }
        let Some((tier, _, _, next)) = self.next() else {
            // Everybody who wants the lane, and so `me`, has reached a limit.
            return Step::Wait { until: self.allowed_at(me, now), wake: None };
        };
        let elsewhere = Step::Wait {
            until: if self.is_limited(me) { self.allowed_at(me, now) } else { now + 20_000_000 },
            wake: Some(next),
        };
        match self.holder {
            Some(hold) if hold.seat == me && next == me => self.when_near_end(me, tier, now, Step::Renew),
            Some(hold) if hold.seat == me => Step::Close,
            _ if next != me => elsewhere,
            Some(hold) => {
                let idle_at = self.busy_until + self.grace(hold.seat, me);
                // One that has used up its quantum may be about to come back, and then go before us.
                let over = hold.left_ns <= 0 && !self.outranks(hold.seat, me);
                if self.preempts(tier, me, &hold) || over || now >= idle_at {
                    Step::Close
                } else {
                    Step::Wait { until: idle_at, wake: None }
                }
            }
            None => self.when_near_end(me, tier, now, Step::Open),
        }
    }

    /// Those with a promise queue up at once; others wait until what runs is about to end. So does a job before its
    /// turn: whoever comes with an earlier deadline meanwhile goes first.
    fn when_near_end(&self, me: Seat, tier: Tier, now: u64, then: Step) -> Step {
        let (_, lead) = self.quantum_and_lead(me);
        let ready_at = self.busy_until.saturating_sub(lead);
        let at_once = tier == Tier::Guaranteed || (tier == Tier::Deadline && then == Step::Renew);
        if at_once || now >= ready_at { then } else { Step::Wait { until: ready_at, wake: None } }
    }

    /// A besteffort tenant keeps little in flight beside those who are promised something.
    fn quantum_and_lead(&self, seat: Seat) -> (u64, u64) {
        let Some(own) = self.tenants.get(seat).and_then(Option::as_ref) else { return (0, 0) };
        let (quantum, lead) = (own.terms.quantum_ns, own.terms.lead_ns);
        if own.terms.class == Class::BestEffort && self.tenants.iter().flatten().any(Tenant::is_promised) {
            return (quantum.min(SHORT_NS), lead.min(SHORT_NS));
        }
        (quantum, lead)
    }

    /// Is long work of this tenant launched in parts, so that others need not wait for its end?
    pub fn gives_way(&self, seat: Seat) -> bool {
        match self.tenants.get(seat).and_then(Option::as_ref).map(|own| own.terms.class) {
            Some(Class::BestEffort) => true,
            Some(Class::Burstable) => {
                let others = self.tenants.iter().enumerate().filter(|(other, _)| *other != seat);
                others.filter_map(|(_, tenant)| tenant.as_ref()).any(Tenant::is_promised)
            }
            Some(Class::Guaranteed) | None => false,
        }
    }

    /// Begin a turn or a further quantum. Returns the device time that may be submitted.
    pub fn open(&mut self, me: Seat, now: u64) -> i64 {
        let (quantum, _) = self.quantum_and_lead(me);
        let Some(tenant) = self.tenant(me) else { return 0 };
        tenant.refill(now);
        tenant.wants = false;
        let tier = tenant.tier();
        let (by_request, by_weight) = (tenant.by_request, tenant.by_weight);
        let quantum = quantum as i64;
        if tier.is_entitled() {
            self.request_clock = self.request_clock.max(by_request);
        } else if tier.spends_excess() {
            self.weight_clock = self.weight_clock.max(by_weight);
        }
        self.holder = Some(Hold { seat: me, tier, left_ns: quantum });
        quantum
    }

    /// The holder has submitted work of this predicted length; the device will have ended it at `busy_until`.
    pub fn submitted(&mut self, predicted_ns: i64, busy_until: u64) {
        self.busy_until = self.busy_until.max(busy_until);
        let Some(hold) = &mut self.holder else { return };
        hold.left_ns -= predicted_ns;
        let (seat, tier) = (hold.seat, hold.tier);
        if let Some(tenant) = self.tenant(seat) {
            tenant.charge(tier, predicted_ns);
        }
    }

    pub fn close(&mut self) {
        self.holder = None;
    }

    /// Work submitted at that time and charged as predicted, in a turn of this tier, took that long. None: whoever
    /// submitted it has gone.
    pub fn measured(&mut self, seat: Option<Seat>, tier: Tier, submitted: u64, predicted_ns: i64, measured_ns: i64) {
        let difference = measured_ns - predicted_ns;
        self.busy_until = self.busy_until.saturating_add_signed(difference);
        if let Some(tenant) = seat.and_then(|seat| self.tenant(seat)) {
            // What an earlier job took is not taken from the budget of this one.
            let earlier = tier == Tier::Deadline && tenant.job.is_none_or(|job| submitted < job.begun);
            if !earlier {
                tenant.charge(tier, difference);
            }
        }
    }

    /// Device time was used in a turn of this tier that is over.
    pub fn charge(&mut self, seat: Seat, tier: Tier, ns: i64) {
        if let Some(tenant) = self.tenant(seat) {
            tenant.charge(tier, ns);
        }
    }

    /// The tenant's next submission follows the end of its work after this time, on the mean.
    pub fn set_gap(&mut self, seat: Seat, ns: u64) {
        if let Some(tenant) = self.tenant(seat) {
            tenant.gap_ns = ns;
        }
    }

    /// The device is still busy, whatever was predicted: look again at this time.
    pub fn expect_busy_until(&mut self, at: u64) {
        self.busy_until = self.busy_until.max(at);
    }

    /// The device will not be busy for longer than this, whatever was predicted.
    pub fn expect_idle_by(&mut self, at: u64) {
        self.busy_until = self.busy_until.min(at);
    }

    fn tenant(&mut self, seat: Seat) -> Option<&mut Tenant> {
        self.tenants.get_mut(seat).and_then(Option::as_mut)
    }

    /// Who goes first of those who want the lane and may have it.
    fn next(&self) -> Option<Rank> {
        let wanting = self.tenants.iter().enumerate().filter_map(|(seat, t)| t.as_ref().map(|t| (seat, t)));
        wanting.filter(|(_, t)| t.wants && !t.is_limited()).map(|(seat, t)| t.rank(seat)).min()
    }

    fn preempts(&self, tier: Tier, me: Seat, hold: &Hold) -> bool {
        let priority = |seat: Seat| self.tenants.get(seat).and_then(Option::as_ref).map_or(0, |t| t.terms.priority);
        tier < hold.tier || (tier == hold.tier && tier.spends_excess() && priority(me) > priority(hold.seat))
    }

    /// Would one tenant go before the other, if both wanted the lane?
    fn outranks(&self, one: Seat, other: Seat) -> bool {
        let rank = |seat: Seat| self.tenants.get(seat).and_then(Option::as_ref).map(|tenant| tenant.rank(seat));
        match (rank(one), rank(other)) {
            (Some(one), Some(other)) => one < other,
            _ => false,
        }
    }

    /// How long an idle holder keeps the lane while `me` waits for it.
    fn grace(&self, holder: Seat, me: Seat) -> u64 {
        let Some(tenant) = self.tenants.get(holder).and_then(Option::as_ref) else { return BESTEFFORT_GRACE_NS };
        let grace = match tenant.terms.class {
            Class::BestEffort => BESTEFFORT_GRACE_NS,
            _ => GRACE_NS,
        };
        let waited_for = (1..=PATIENCE_NS).contains(&tenant.gap_ns) && self.outranks(holder, me);
        if waited_for { grace.max((4 * tenant.gap_ns).min(PATIENCE_NS)) } else { grace }
    }

    /// When a tenant that has reached its limit may go on.
    fn allowed_at(&self, seat: Seat, now: u64) -> u64 {
        let Some(tenant) = self.tenants.get(seat).and_then(Option::as_ref) else { return now };
        let missing = (1 - tenant.allowance).max(1) as u128;
        now + (missing * u128::from(WHOLE)).div_ceil(u128::from(tenant.terms.limit.max(1))) as u64
    }
}
