//! Leases: a tenant's right to submit work on its lane.
//!
//! A submission takes its predicted cost from the turn's quantum under one small lock; it waits only when the lane is
//! somebody else's or the quantum is used up. The thread that submits does all of it itself: it takes turns, ends idle
//! ones of others and reads what was measured. There is no scheduler thread.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use smallvec::SmallVec;

use crate::error::{Error, Result};
use crate::lane::Lane;
use crate::launch::mix;
use crate::runtime;
use crate::slices::SLICE_NS;
use crate::stream::{Entered, Stream};

use super::cost::{Batch, Costs, count};
use super::external::Held;
use super::gate::{Gate, INSIDE_NS, Inner, Mark};
use super::prompt::Prompt;
#[cfg(unix)]
use super::remote::{Away, Health};
use super::request::Class;
use super::turns::{Seat, Step, Terms};
use super::usage::{Usage, Wait, Waited};

/// Work is measured in batches of at least this length.
const BATCH_NS: i64 = 1_000_000;

/// Assumed of work never measured.
const UNKNOWN_NS: i64 = 50_000;

/// After this much predicted idle time the lane is looked at again.
const GAP_NS: u64 = 20_000;

/// A longer pause between a tenant's submissions counts as this one.
const LONGEST_GAP_NS: u64 = 4_000_000;

/// How often signals are looked for in a wait.
const CHECK_NS: u64 = 5_000_000;

/// One in so many is measured of the batches that nobody waits for, and of those that need not be measured: marks take
/// longer than a short request, and every hundredth would show in its tail.
const SAMPLE: u32 = 16;
const RARE_SAMPLE: u32 = 256;

/// Work submitted since the last mark.
pub(super) struct Open {
    /// None: it is not measured, but charged as predicted.
    pub start: Option<Arc<Mark>>,
    pub predicted: i64,
    pub batch: Batch,
    /// When it was opened.
    pub begun: u64,
}

/// What the tenant's threads share while it has a turn.
#[derive(Default)]
pub(super) struct Own {
    /// Does the tenant have the lane?
    pub holds: bool,
    /// Which one.
    pub lane: u32,
    /// Others use the lane meanwhile.
    pub lent: bool,
    /// Predicted device time it may still submit.
    pub left: i64,
    /// Submitted since the turns were told.
    pub spent: i64,
    /// When the device will have ended what was submitted.
    pub busy_until: u64,
    pub streams: SmallVec<[Arc<Stream>; 2]>,
    pub open: Option<Open>,
    /// Somebody wants to be woken when the operator that runs has ended.
    pub awaited: bool,
    /// Work of the turn ended without a mark.
    pub unmarked: bool,
    /// The next submission is of a kind that was never measured, and is measured alone.
    probe: Option<u64>,
    /// Nothing joins the open batch any more.
    cut: bool,
    /// The device has ended the last submission at this time, and there has been none since.
    ended: Option<u64>,
    /// Mean time from there to the next submission.
    pub gap_ns: u64,
    gaps: u32,
    rests: u32,
    /// Of the tenant's own work: others may call the same kernels with other arguments.
    costs: Costs,
    pub submissions: u64,
    slices: u64,
    /// Other libraries submit to streams of the turn.
    pub held: Held,
    /// The turn is in another process.
    #[cfg(unix)]
    pub away: Option<Away>,
    #[cfg(unix)]
    pub health: Health,
}

impl Own {
    pub fn has(&self, stream: &Stream) -> bool {
        self.streams.iter().any(|known| known.id() == stream.id())
    }

    pub fn is_away(&self) -> bool {
        #[cfg(unix)]
        return self.away.is_some();
        #[cfg(not(unix))]
        false
    }

    /// Are turns taken for another process?
    pub fn is_apart(&self) -> bool {
        #[cfg(unix)]
        return self.health != Health::Absent;
        #[cfg(not(unix))]
        false
    }

    /// Can lent SMs not be given back at once?
    pub fn is_slow_to_leave(&self) -> bool {
        self.is_apart() || self.held.ever()
    }

    /// May something still join the turn, though it was closed?
    pub fn is_busy(&self) -> bool {
        self.is_away() || self.held.any() || self.is_entered()
    }

    pub fn is_entered(&self) -> bool {
        self.streams.iter().any(|stream| stream.is_entered())
    }
}

pub struct Lease {
    gate: Arc<Gate>,
    seat: Seat,
    name: Arc<str>,
    /// Its threads must not wait for the interpreter.
    prompt: OnceLock<Prompt>,
    own: Mutex<Own>,
    usage: Mutex<Usage>,
    ended: AtomicBool,
    /// Told apart: being woken, and waiting.
    woken: Mutex<bool>,
    bell: Condvar,
    waiting: AtomicU32,
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Lease({})", self.name)
    }
}

impl Lease {
    pub(super) fn new(gate: &Arc<Gate>, seat: Seat, name: &str, class: Class) -> Lease {
        let prompt = OnceLock::new();
        if class == Class::Guaranteed {
            prompt.get_or_init(Prompt::new);
        }
        Lease {
            prompt,
            gate: gate.clone(),
            seat,
            name: name.into(),
            own: Mutex::default(),
            usage: Mutex::default(),
            ended: AtomicBool::new(false),
            woken: Mutex::new(false),
            bell: Condvar::new(),
            waiting: AtomicU32::new(0),
        }
    }

    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    pub fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    pub(super) fn seat(&self) -> Seat {
        self.seat
    }

    pub(super) fn own(&self) -> parking_lot::MutexGuard<'_, Own> {
        self.own.lock()
    }

    pub(super) fn usage(&self) -> parking_lot::MutexGuard<'_, Usage> {
        self.usage.lock()
    }

    /// Where the tenant's work runs now.
    pub fn lane(&self) -> Arc<Lane> {
        self.gate.lane()
    }

    pub fn set_terms(&self, terms: Terms) {
        self.gate.set_terms(self.seat, terms);
    }

    /// Do launches of others make way for its threads?
    pub fn is_prompt(&self) -> bool {
        self.prompt.get().is_some()
    }

    /// A job is due at `deadline` on the scheduler's clock and may use this much device time first.
    pub fn begin_job(&self, deadline: u64, budget_ns: u64) {
        self.prompt.get_or_init(Prompt::new);
        self.gate.begin_job(self.seat, deadline, budget_ns);
    }

    pub fn end_job(&self) {
        self.gate.end_job(self.seat);
    }

    /// What was used so far, with everything the device has finished.
    pub fn used(&self) -> Usage {
        self.gate.look();
        let own = self.own.lock();
        let (submissions, slices) = (own.submissions, own.slices);
        drop(own);
        let mut usage = self.usage.lock().clone();
        (usage.submissions, usage.slices) = (submissions, slices);
        usage
    }

    /// Threads that wait in a submission now.
    pub fn waiting(&self) -> u32 {
        self.waiting.load(Ordering::Acquire)
    }

    /// Refuse further submissions, those that wait included. What is in flight goes on.
    pub fn end(self: &Arc<Self>) {
        self.ended.store(true, Ordering::Release);
        self.gate.leave(self);
        self.wake();
    }

    pub fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Wait to be woken, for that long at most.
    #[cfg(unix)]
    pub(super) fn sleep(&self, timeout: Duration) {
        let mut woken = self.woken.lock();
        if !*woken {
            self.bell.wait_for(&mut woken, timeout.min(Duration::from_millis(20)));
        }
    }

    #[cfg(unix)]
    pub(super) fn woken(&self) -> parking_lot::MutexGuard<'_, bool> {
        self.woken.lock()
    }

    pub(super) fn wake(&self) {
        let mut woken = self.woken.lock();
        *woken = true;
        self.bell.notify_all();
    }

    /// Enter a stream for work of this kind, if the turn allows it now.
    #[inline]
    pub(crate) fn try_enter<'a>(&self, stream: &'a Arc<Stream>, kind: u64) -> Option<Entered<'a>> {
        let now = self.gate.now();
        let mut own = self.own.lock();
        if own.held.any() && own.held.is_here() {
            // The turn is this thread's until it lets go of it.
            let joined = own.has(stream);
            own.submissions += u64::from(joined);
            return joined.then(|| stream.enter());
        }
        self.reserve(&mut own, stream, kind, now)?;
        Some(stream.enter())
    }

    /// Take the predicted cost of work of this kind from the turn, if that allows it now.
    #[inline]
    pub(super) fn reserve(&self, own: &mut Own, stream: &Stream, kind: u64, now: u64) -> Option<()> {
        if let Some(ended) = own.ended.take() {
            let gap = now.saturating_sub(ended).min(LONGEST_GAP_NS);
            own.gap_ns = own.gap_ns - own.gap_ns / 4 + gap.div_ceil(4);
        }
        let kind = on_lane(kind, own.lane);
        // A batch that another thread's library submits to goes on until that has ended, whatever else joins it.
        let held = own.held.any();
        if !own.holds || own.lent || own.left <= 0 || (own.cut && !held) || !own.has(stream) {
            return None;
        }
        let open = own.open.as_mut()?;
        let gap = open.start.is_some() && open.predicted > 0 && now > own.busy_until + GAP_NS;
        if (gap || open.predicted >= BATCH_NS) && !held {
            return None;
        }
        let cost = match own.costs.predict(kind) {
            Some(cost) => cost,
            None if own.probe == Some(kind) => {
                own.probe = None;
                own.cut = true;
                UNKNOWN_NS
            }
            None if held => UNKNOWN_NS,
            None => return None,
        };
        open.predicted += cost;
        count(&mut open.batch, kind);
        own.left -= cost;
        own.spent += cost;
        own.busy_until = own.busy_until.max(now) + cost as u64;
        own.submissions += 1;
        Some(())
    }

    /// Wait until `try_enter` has a chance.
    pub(crate) fn await_turn(self: &Arc<Self>, stream: &Arc<Stream>, kind: u64) -> Result<()> {
        let waited = match self.advance(stream, kind) {
            Ok(Some(_)) => {
                self.waiting.fetch_add(1, Ordering::AcqRel);
                let waited = runtime::blocking(&mut || self.wait(stream, kind));
                self.waiting.fetch_sub(1, Ordering::AcqRel);
                waited
            }
            done => done.map(drop),
        };
        if waited.is_err() {
            // Others would leave the next turn to one that never comes.
            self.gate.withdraw(self);
        }
        waited
    }

    fn wait(self: &Arc<Self>, stream: &Arc<Stream>, kind: u64) -> Result<()> {
        let began = self.gate.now();
        let mut checked = began;
        let mut why = Waited::Turn;
        loop {
            *self.woken.lock() = false;
            let Some((until, reason)) = self.advance(stream, kind)? else { break };
            why = reason;
            // The holder may be a coroutine of this very thread, and nobody else would let its work run.
            self.gate.poll()?;
            let now = self.gate.now();
            if now > checked + CHECK_NS {
                runtime::wait_check()?;
                checked = now;
            }
            let mut woken = self.woken.lock();
            if !*woken && until > now {
                self.bell.wait_for(&mut woken, Duration::from_nanos((until - now).min(self.gate.longest_nap_ns)));
            }
        }
        let ns = self.gate.now().saturating_sub(began);
        self.usage.lock().waited(Wait { at: began, ns, why });
        Ok(())
    }

    /// Do what can be done now. Some: ask again at that time, or when woken.
    fn advance(self: &Arc<Self>, stream: &Arc<Stream>, kind: u64) -> Result<Option<(u64, Waited)>> {
        let gate = &self.gate;
        let mut inner = gate.lock();
        if self.is_ended() {
            return Err(Error::TaskEnded(format!("task '{}' has ended and cannot use the device any more", self.name)));
        }
        inner.catch_up(gate, self.seat)?;
        if self.own.lock().held.is_here() {
            let joined = inner.join_held(gate, self, stream)?;
            return Ok((!joined).then_some((gate.now() + 20_000, Waited::Turn)));
        }
        loop {
            let now = gate.now();
            if !inner.settle(gate)? {
                // Somebody is inside a stream of a turn that has ended: a moment on CUDA, an operator on the CPU device.
                inner.refuse_own_wait()?;
                if gate.runs_at_once || inner.is_slow() {
                    // An operator, or a turn that another process or library has, takes longer. Its end wakes whoever is
                    // next.
                    inner.turns.arrive(self.seat, now);
                    return Ok(Some((now + INSIDE_NS, Waited::Turn)));
                }
                return Ok(Some((now + 20_000, Waited::Turn)));
            }
            if self.own.lock().lent {
                let Some(marks) = gate.take_back()? else { return Ok(Some((now + 20_000, Waited::Turn))) };
                inner.follow(marks);
                let mut own = self.own.lock();
                own.lent = false;
                own.streams.clear();
                own.open = None;
                // It was idle when the lane was lent.
                own.unmarked = false;
            }
            if inner.leave_lent(self) {
                continue;
            }
            if inner.turns.holds(self.seat) && self.own.lock().left > 0 {
                let ready = self.prepare(&mut inner, stream, kind)?;
                return Ok((!ready).then_some((now + 20_000, Waited::Turn)));
            }
            if !inner.turns.holds(self.seat) {
                inner.look_at_holder(gate, now)?;
            }
            inner.turns.arrive(self.seat, now);
            #[cfg(unix)]
            if !inner.is_allowed(gate, now)? {
                inner.pause(gate, self)?;
                return Ok(Some((now + 20_000_000, Waited::Turn)));
            }
            match inner.turns.step(self.seat, now) {
                Step::Open => {
                    inner.open(self, now);
                    // Whoever is next now has an eye on this turn: it may end without another word.
                    inner.wake_next();
                }
                Step::Renew => {
                    if let Some(left) = inner.renew(self, now) {
                        let mut own = self.own.lock();
                        own.left = left;
                        own.busy_until = inner.turns.busy_until();
                    }
                }
                Step::Close => inner.close(),
                Step::Wait { until, wake } => {
                    if let Some(next) = wake {
                        inner.wake(next);
                    }
                    // The batch ends before the pause, or the pause would be in it.
                    inner.pause(gate, self)?;
                    let why = match wake {
                        _ if inner.turns.is_limited(self.seat) => Waited::Limit,
                        Some(_) => Waited::Turn,
                        None if inner.turns.holder().is_none_or(|seat| seat == self.seat) => Waited::InFlight,
                        None => Waited::Turn,
                    };
                    return Ok(Some((until, why)));
                }
            }
        }
    }

    /// Have the stream in the turn, a batch open, and a cost for the kind. False: the stream is in use elsewhere.
    fn prepare(self: &Arc<Self>, inner: &mut Inner, stream: &Arc<Stream>, kind: u64) -> Result<bool> {
        let gate = &self.gate;
        let joined = self.own.lock().has(stream);
        if !joined {
            // Not under the tenant's own lock: a thread that holds it may be about to enter the stream.
            if !inner.admit(gate, self, stream)? {
                return Ok(false);
            }
            self.own.lock().streams.push(stream.clone());
        }
        let now = gate.now();
        let mut own = self.own.lock();
        let kind = on_lane(kind, own.lane);
        let known = own.costs.predict(kind).or_else(|| inner.costs.predict(kind));
        if let Some(cost) = known {
            own.costs.suppose(kind, cost);
        }
        let probe = known.is_none();
        let (mut full, mut idle) = (false, false);
        if let Some(open) = &own.open {
            let gap = open.start.is_some() && open.predicted > 0 && now > own.busy_until + GAP_NS;
            idle = gap && !own.held.any() && inner.is_idle(gate, &own)?;
            full = own.cut || open.predicted >= BATCH_NS || (probe && open.predicted > 0);
            // What another library submits meanwhile belongs to the batch that is open.
            full &= !own.held.any();
            if gap && !idle {
                own.busy_until = now;
            }
        }
        if idle {
            inner.give_up(gate, self, &mut own);
        } else if full {
            inner.cut(gate, self, &mut own)?;
            own.open = None;
        }
        if own.open.is_none() {
            own.cut = false;
            let start = Some(inner.start(gate, stream, !joined)?);
            own.open = Some(Open { start, predicted: 0, batch: Batch::new(), begun: now });
            own.gaps += u32::from(idle);
        }
        own.probe = probe.then_some(kind);
        if idle && own.gaps % SAMPLE == 1 {
            own.costs.forget(kind);
            own.probe = Some(kind);
        }
        Ok(true)
    }

    /// The tenant's thread waits for its work: end the batch here, so that idle time is not counted.
    pub(crate) fn rest(self: &Arc<Self>) {
        let gate = &self.gate;
        let mut inner = gate.lock();
        let mut own = self.own.lock();
        if !own.holds || own.held.any() || own.open.as_ref().is_none_or(|open| open.predicted == 0) {
            return;
        }
        // What cannot be marked now is charged as predicted.
        if inner.cut(gate, self, &mut own).is_err() {
            inner.give_up(gate, self, &mut own);
        }
        own.rests += 1;
        if inner.turns.is_alone(self.seat) && !own.rests.is_multiple_of(RARE_SAMPLE) {
            // Marks around a short request would take as long as the request; on a lane of its own nobody needs them.
            own.open = Some(Open { start: None, predicted: 0, batch: Batch::new(), begun: gate.now() });
            own.unmarked = true;
            own.cut = false;
        }
    }

    /// Let others have the lane, if they want it.
    pub fn give_way(&self) {
        let gate = &self.gate;
        let mut inner = gate.lock();
        #[cfg(unix)]
        inner.offer(gate.now());
        if inner.turns.holds(self.seat) && inner.turns.is_contended(self.seat) {
            inner.close();
            // Should the end not be marked now, whoever is next does it.
            let _ = inner.settle(gate);
            inner.wake_next();
        }
    }

    /// The device runs work when it is submitted, and has ended it: the batch ends here.
    pub(crate) fn caught_up(self: &Arc<Self>) {
        let gate = &self.gate;
        let mut inner = gate.lock();
        let mut own = self.own.lock();
        if own.held.any() {
            return;
        }
        own.busy_until = gate.now();
        own.ended = Some(own.busy_until);
        if own.holds && own.open.as_ref().is_some_and(|open| open.start.is_some()) {
            // What cannot be marked now is charged as predicted.
            let _ = inner.cut(gate, self, &mut own);
        }
        let (awaited, now) = (std::mem::take(&mut own.awaited), own.busy_until);
        drop(own);
        if awaited {
            inner.turns.expect_idle_by(now);
        }
        if awaited || inner.closing {
            // Should the end not be marked now, whoever is next does it.
            let _ = inner.settle(gate);
            inner.wake_next();
        }
    }

    /// What work of this kind costs, when it is long and the tenant one that gives way: then it is launched in parts.
    pub(crate) fn cost_to_slice(&self, kind: u64) -> Option<i64> {
        let own = self.own.lock();
        let kind = on_lane(kind, own.lane);
        let known = own.costs.predict(kind);
        drop(own);
        if known.is_some_and(|cost| cost <= 2 * SLICE_NS) {
            return None;
        }
        let inner = self.gate.lock();
        let cost = known.or_else(|| inner.costs.predict(kind)).filter(|cost| *cost > 2 * SLICE_NS)?;
        inner.turns.gives_way(self.seat).then_some(cost)
    }

    /// Work of one kind is launched in parts, each a kind and a fraction of the whole, and a rest. What is known of the
    /// parts tells what the whole costs, which tells the others until they are measured.
    pub(crate) fn relate(&self, whole: u64, parts: [(u64, f64); 2]) {
        let mut inner = self.gate.lock();
        let mut own = self.own.lock();
        let whole = on_lane(whole, own.lane);
        let parts = parts.map(|(kind, fraction)| (on_lane(kind, own.lane), fraction));
        let [(part, fraction), _] = parts;
        let from_part = own.costs.predict(part).map(|cost| cost as f64 / fraction);
        let known = || own.costs.predict(whole).or_else(|| inner.costs.predict(whole)).map(|cost| cost as f64);
        let Some(cost) = from_part.or_else(known) else { return };
        own.costs.set(whole, cost);
        for (kind, fraction) in parts {
            let cost = (cost * fraction) as i64;
            own.costs.suppose(kind, cost);
            inner.costs.suppose(kind, cost);
        }
    }

    /// A part of a kernel was launched. The next one does not begin in what is left of the quantum unless it fits: who
    /// cuts kernels wants little in flight.
    pub(crate) fn count_slice(&self) {
        let mut own = self.own.lock();
        own.slices += 1;
        if own.left < SLICE_NS {
            own.left = own.left.min(0);
        }
    }

    /// A batch of the tenant took that long.
    pub(super) fn learned(&self, batch: &Batch, measured_ns: i64) {
        self.own.lock().costs.learn(batch, measured_ns);
    }
}

/// What work costs depends on the lane.
fn on_lane(kind: u64, lane: u32) -> u64 {
    mix(kind, u64::from(lane))
}
