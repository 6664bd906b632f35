//! Gates: one lane, the tenants that take turns on it, and what the device measured of them.
//!
//! At most one tenant holds a lane at a time, and a turn's work waits on the device for the end of the turn before. So
//! intervals between marks never overlap, and their lengths are the lane's time exactly.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

use crate::device::{RawEvent, SharedDevice};
use crate::error::Result;
use crate::lane::Lane;
use crate::runtime;
use crate::stream::Stream;

use super::clock::Clock;
use super::cost::{Batch, Costs};
use super::lease::{Lease, Open, Own};
use super::lending::{LENT_NS, Wide};
#[cfg(unix)]
use super::remote::Allowance;
use super::turns::{Seat, Terms, Tier, Turns};

/// When to look again at a device that is busy for longer than predicted.
const AGAIN_NS: u64 = 30_000;

/// A lone tenant's batches are read when there are so many.
const UNREAD: usize = 4;

/// The longest nap of who waits for a turn, where a device runs by itself and where waits are what lets it run.
const NAP_NS: u64 = 20_000_000;
const DEFERRED_NAP_NS: u64 = 20_000;

/// The longest nap where the end of an operator wakes whoever waits for it.
pub(super) const INSIDE_NS: u64 = 1_000_000;

/// Rows of the trace kept.
const TRACE: usize = 100_000;

/// A point on a stream whose time the device notes.
pub(super) struct Mark {
    event: RawEvent,
    device: SharedDevice,
    spare: Arc<Mutex<Vec<RawEvent>>>,
}

impl Drop for Mark {
    fn drop(&mut self) {
        self.spare.lock().push(self.event);
    }
}

impl Mark {
    pub(super) fn is_passed(&self) -> Result<bool> {
        self.device.event_query(self.event)
    }

    /// Nanoseconds until a later mark; both have been passed.
    fn until(&self, later: &Mark) -> Result<i64> {
        Ok((f64::from(self.device.event_elapsed_ms(self.event, later.event)?) * 1e6) as i64)
    }
}

pub(super) type Marks = SmallVec<[Arc<Mark>; 2]>;

/// A batch whose end is marked.
pub(super) struct Span {
    lease: Arc<Lease>,
    tier: Tier,
    predicted: i64,
    batch: Batch,
    start: Arc<Mark>,
    ends: Marks,
    sms: u32,
    lane: u32,
    /// When its submission began and ended, on the scheduler's clock.
    submitted: (u64, u64),
}

/// One row of the trace: who had which lane, from when, how long.
#[derive(Clone, Debug)]
pub struct Row {
    pub name: Arc<str>,
    pub lane: u32,
    pub sms: u32,
    pub start_ns: u64,
    pub ns: u64,
    /// When the host began and ended to submit it.
    pub submitted_ns: (u64, u64),
    pub submissions: u32,
}

pub(super) struct Inner {
    /// The lane of the open turn.
    pub(super) lane: Arc<Lane>,
    /// The lane of later turns.
    pub(super) base: Arc<Lane>,
    pub(super) wide: Option<Wide>,
    pub turns: Turns,
    pub costs: Costs,
    pub(super) seats: Vec<Option<Arc<Lease>>>,
    /// The holder's turn has ended, but its last submission may still be on its way.
    pub(super) closing: bool,
    /// Ends of the last batch on the lane.
    pub(super) last: Marks,
    /// Ends of the last batch on a wider lane: owners of its parts wait for these, and for no later ones.
    pub(super) last_wide: Marks,
    pub(super) spans: VecDeque<Span>,
    /// A mark that was passed, and when on the scheduler's clock.
    anchor: Option<(Arc<Mark>, u64)>,
    trace: Option<VecDeque<Row>>,
    /// What another process lets the tenants here submit.
    #[cfg(unix)]
    pub allowance: Option<Allowance>,
}

pub struct Gate {
    /// Who may use this lane while its tenant is idle.
    pub(super) borrower: Mutex<Weak<Gate>>,
    device: SharedDevice,
    clock: Arc<dyn Clock>,
    pub(super) longest_nap_ns: u64,
    /// Submissions end with their work: whoever is inside says when it is not any more.
    pub(super) runs_at_once: bool,
    spare: Arc<Mutex<Vec<RawEvent>>>,
    pub(super) inner: Mutex<Inner>,
}

impl Gate {
    pub fn new(lane: &Arc<Lane>, clock: Arc<dyn Clock>) -> Arc<Gate> {
        let deferred = lane.device().props().features.contains(&"deferred");
        Arc::new(Gate {
            borrower: Mutex::default(),
            device: lane.device().clone(),
            clock,
            longest_nap_ns: if deferred { DEFERRED_NAP_NS } else { NAP_NS },
            runs_at_once: lane.device().runs_at_once(),
            spare: Arc::default(),
            inner: Mutex::new(Inner {
                lane: lane.clone(),
                base: lane.clone(),
                wide: None,
                turns: Turns::default(),
                costs: Costs::default(),
                seats: Vec::new(),
                closing: false,
                last: Marks::new(),
                last_wide: Marks::new(),
                spans: VecDeque::new(),
                anchor: None,
                trace: None,
                #[cfg(unix)]
                allowance: None,
            }),
        })
    }

    #[inline]
    pub fn now(&self) -> u64 {
        self.clock.now()
    }

    /// Let deferred work of the CPU device run.
    pub(super) fn poll(&self) -> Result<()> {
        self.device.poll()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    /// A new tenant.
    pub fn join(self: &Arc<Self>, name: &str, terms: Terms) -> Arc<Lease> {
        let mut inner = self.inner.lock();
        let seat = inner.turns.join(terms, self.now());
        let lease = Arc::new(Lease::new(self, seat, name, terms.class));
        if inner.seats.len() <= seat {
            inner.seats.resize(seat + 1, None);
        }
        inner.seats[seat] = Some(lease.clone());
        lease
    }

    /// The lane of turns that begin now.
    pub fn lane(&self) -> Arc<Lane> {
        let inner = self.inner.lock();
        if inner.turns.holds_any() && !inner.closing { inner.lane.clone() } else { inner.base.clone() }
    }

    /// Move the tenants to another lane; the turn that is open ends.
    pub fn set_lane(&self, lane: &Arc<Lane>) {
        let mut inner = self.inner.lock();
        inner.base = lane.clone();
        if inner.lane.id() != lane.id() {
            inner.close();
        }
    }

    pub(super) fn set_terms(&self, seat: Seat, terms: Terms) {
        self.inner.lock().turns.set_terms(seat, terms);
    }

    pub(super) fn begin_job(&self, seat: Seat, deadline: u64, budget_ns: u64) {
        let now = self.now();
        self.inner.lock().turns.begin_job(seat, now, deadline, budget_ns);
    }

    pub(super) fn end_job(&self, seat: Seat) {
        self.inner.lock().turns.end_job(seat);
    }

    /// A tenant that waited does not any more.
    pub(super) fn withdraw(&self, lease: &Arc<Lease>) {
        let mut inner = self.inner.lock();
        if inner.is_seated(lease) {
            inner.turns.withdraw(lease.seat());
        }
        inner.wake_next();
    }

    /// A tenant goes. What it submitted is measured when it ends.
    pub(super) fn leave(&self, lease: &Arc<Lease>) {
        let mut inner = self.inner.lock();
        if !inner.is_seated(lease) {
            return;
        }
        inner.turns.withdraw(lease.seat());
        if inner.turns.holds(lease.seat()) {
            inner.close();
            // Should somebody be inside, the turn ends later, under the seat it has.
            let _ = inner.settle(self);
        }
        if !inner.turns.holds(lease.seat()) {
            inner.free(lease.seat());
        }
        inner.wake_next();
    }

    /// Read what the device has finished.
    pub fn look(&self) {
        let mut inner = self.inner.lock();
        let _ = inner.settle(self);
        let _ = inner.harvest(self);
    }

    /// Name of the tenant that has the lane.
    pub fn holder(&self) -> Option<Arc<str>> {
        let inner = self.inner.lock();
        inner.turns.holder().and_then(|seat| inner.seats.get(seat)?.as_ref().map(|lease| lease.name().clone()))
    }

    /// When the device will have finished what was submitted, as predicted, on the scheduler's clock.
    pub fn busy_until(&self) -> u64 {
        let mut inner = self.inner.lock();
        inner.absorb();
        inner.turns.busy_until()
    }

    /// Begin or end keeping a trace.
    pub fn set_trace(&self, on: bool) {
        let mut inner = self.inner.lock();
        match (on, inner.trace.is_some()) {
            (true, false) => inner.trace = Some(VecDeque::new()),
            (false, true) => inner.trace = None,
            _ => {}
        }
    }

    /// Take the rows kept so far.
    pub fn take_trace(&self) -> Vec<Row> {
        self.look();
        self.inner.lock().trace.as_mut().map(std::mem::take).unwrap_or_default().into()
    }

    fn mark(&self, stream: &Stream) -> Result<Arc<Mark>> {
        let spare = self.spare.lock().pop();
        let event = match spare {
            Some(event) => event,
            None => self.device.event_create(true)?,
        };
        let mark = Arc::new(Mark { event, device: self.device.clone(), spare: self.spare.clone() });
        self.device.event_record(event, stream.enter().raw())?;
        Ok(mark)
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.inner.get_mut().spans.clear();
        if !runtime::exiting() {
            for event in self.spare.lock().drain(..) {
                self.device.event_destroy(event);
            }
        }
    }
}

impl Inner {
    /// Is nobody on the lane before the last `set_lane` any more?
    pub(super) fn has_moved(&self) -> bool {
        self.lane.id() == self.base.id() || !self.turns.holds_any()
    }

    /// A further quantum of the open turn; None when it has to begin anew, on another lane.
    pub(super) fn renew(&mut self, lease: &Lease, now: u64) -> Option<i64> {
        if self.wide.is_some() && self.lane_now(lease, now).id() != self.lane.id() {
            self.close();
            return None;
        }
        let left = self.turns.open(lease.seat(), now);
        Some(self.allowed(if self.is_wide() { left.min(LENT_NS) } else { left }))
    }

    /// Wait for these too before the next turn.
    pub(super) fn follow(&mut self, marks: Marks) {
        self.last.extend(marks);
    }

    /// Tell the turns what the holder has submitted.
    pub(super) fn absorb(&mut self) {
        let Some(holder) = self.turns.holder().and_then(|seat| self.seats.get(seat)?.clone()) else { return };
        let mut own = holder.own();
        let (spent, busy_until, gap) = (std::mem::take(&mut own.spent), own.busy_until, own.gap_ns);
        drop(own);
        self.turns.set_gap(holder.seat(), gap);
        self.turns.submitted(spent, busy_until);
        #[cfg(unix)]
        if let Some(allowance) = &mut self.allowance {
            allowance.spend(spent);
        }
    }

    /// A holder that should be idle by now may not be: its turn is not ended for a wrong prediction.
    pub(super) fn look_at_holder(&mut self, gate: &Gate, now: u64) -> Result<()> {
        if now < self.turns.busy_until() {
            return Ok(());
        }
        let Some(lease) = self.turns.holder().and_then(|seat| self.seats.get(seat)?.clone()) else { return Ok(()) };
        let mut own = lease.own();
        if own.held.is_long(now) {
            // It is waited for anyway, when the turn is closed, and wakes whoever waits.
            return Ok(());
        }
        let inside = own.is_entered();
        if inside || !self.is_idle(gate, &own)? {
            own.awaited = inside && gate.runs_at_once;
            own.busy_until = own.busy_until.max(now + if own.awaited { INSIDE_NS } else { AGAIN_NS });
            self.turns.expect_busy_until(own.busy_until);
        }
        Ok(())
    }

    /// End a turn that was closed, when nobody is inside any more. False: somebody still is.
    pub(super) fn settle(&mut self, gate: &Gate) -> Result<bool> {
        self.absorb();
        if !self.closing {
            return Ok(true);
        }
        let Some(lease) = self.turns.holder().and_then(|seat| self.seats.get(seat)?.clone()) else {
            self.closing = false;
            return Ok(true);
        };
        if lease.own().is_busy() {
            return Ok(false);
        }
        self.absorb();
        let mut own = lease.own();
        let mut cut = self.cut(gate, &lease, &mut own);
        if cut.is_err() {
            self.give_up(gate, &lease, &mut own);
        } else if own.unmarked {
            // Nobody else was there when the work began. Whoever is now follows it all the same.
            cut = self.mark_end(gate, &own).map(drop);
        }
        own.unmarked = false;
        own.streams.clear();
        own.left = 0;
        drop(own);
        self.turns.close();
        self.closing = false;
        if lease.is_ended() {
            self.free(lease.seat());
        }
        cut.map(|()| true)
    }

    /// Has another process the turn, or another library?
    pub(super) fn is_slow(&self) -> bool {
        let holder = self.turns.holder().and_then(|seat| self.seats.get(seat)?.as_ref());
        holder.is_some_and(|lease| {
            let own = lease.own();
            own.is_away() || own.held.any()
        })
    }

    /// End the holder's turn: nothing more joins it.
    pub(super) fn close(&mut self) {
        if let Some(lease) = self.turns.holder().and_then(|seat| self.seats.get(seat)?.clone()) {
            let mut own = lease.own();
            own.holds = false;
            #[cfg(unix)]
            if let Some(away) = &mut own.away {
                away.recall();
            }
            self.closing = true;
        }
    }

    /// Is the tenant still here? Its seat may be another's by now.
    pub(super) fn is_seated(&self, lease: &Arc<Lease>) -> bool {
        self.seats.get(lease.seat()).and_then(Option::as_ref).is_some_and(|known| Arc::ptr_eq(known, lease))
    }

    fn free(&mut self, seat: Seat) {
        self.turns.quit(seat);
        if let Some(place) = self.seats.get_mut(seat) {
            *place = None;
        }
    }

    /// Begin a tenant's turn.
    pub(super) fn open(&mut self, lease: &Arc<Lease>, now: u64) {
        self.lane = self.lane_now(lease, now);
        let mut left = self.turns.open(lease.seat(), now);
        if self.is_wide() {
            left = left.min(LENT_NS);
        }
        let left = self.allowed(left);
        lease.usage().turns += 1;
        let mut own = lease.own();
        own.holds = true;
        own.lane = self.lane.id();
        own.left = left;
        own.spent = 0;
        own.busy_until = self.turns.busy_until();
        own.streams.clear();
        own.open = None;
    }

    /// A quantum, or what another process allows of it.
    fn allowed(&self, left: i64) -> i64 {
        #[cfg(unix)]
        if let Some(allowance) = &self.allowance {
            return left.min(allowance.left());
        }
        left
    }

    pub(super) fn wake(&self, seat: Seat) {
        if let Some(Some(lease)) = self.seats.get(seat) {
            lease.wake();
        }
    }

    pub(super) fn wake_next(&self) {
        if let Some(seat) = self.turns.next_seat() {
            self.wake(seat);
        }
    }

    /// Let a stream into the open turn: onto the lane, and behind the turn before. False: it is in use elsewhere.
    pub(super) fn admit(&mut self, gate: &Gate, lease: &Arc<Lease>, stream: &Arc<Stream>) -> Result<bool> {
        if !stream.try_bind(&self.lane)? {
            return Ok(false);
        }
        for mark in &self.last {
            if !mark.is_passed()? {
                gate.device.stream_wait(stream.enter().raw(), mark.event)?;
            }
        }
        stream.set_tenant(lease);
        Ok(true)
    }

    /// Where the next batch of a turn begins: at the end of the one before while that runs, else here. The first one
    /// begins here, behind the turn before, so that nobody is charged for the change.
    pub(super) fn start(&mut self, gate: &Gate, stream: &Arc<Stream>, first: bool) -> Result<Arc<Mark>> {
        if let [last] = &self.last[..]
            && !first
            && !last.is_passed()?
        {
            return Ok(last.clone());
        }
        gate.mark(stream)
    }

    /// Account for what has ended, if there is anybody to whom it matters now.
    pub(super) fn catch_up(&mut self, gate: &Gate, seat: Seat) -> Result<()> {
        if self.spans.len() >= UNREAD || self.turns.is_contended(seat) { self.harvest(gate) } else { Ok(()) }
    }

    /// End the open batch here.
    pub(super) fn cut(&mut self, gate: &Gate, lease: &Arc<Lease>, own: &mut Own) -> Result<()> {
        let Some(mut open) = own.open.take_if(|open| open.predicted > 0) else { return Ok(()) };
        let Some(start) = open.start.take() else {
            own.open = Some(open);
            self.give_up(gate, lease, own);
            return Ok(());
        };
        let ends = match self.mark_end(gate, own) {
            Ok(ends) => ends,
            Err(error) => {
                own.open = Some(Open { start: Some(start), ..open });
                return Err(error);
            }
        };
        let tier = self.turns.tier().unwrap_or(Tier::Excess);
        let (sms, lane) = (self.lane.sm_count(), self.lane.id());
        let (predicted, batch) = (open.predicted, open.batch);
        let submitted = (open.begun, gate.now());
        self.spans.push_back(Span { lease: lease.clone(), tier, predicted, batch, start, ends, sms, lane, submitted });
        Ok(())
    }

    /// Whoever is next follows what is on the tenant's streams now.
    fn mark_end(&mut self, gate: &Gate, own: &Own) -> Result<Marks> {
        let ends = own.streams.iter().map(|stream| gate.mark(stream)).collect::<Result<Marks>>()?;
        if !ends.is_empty() {
            self.last.clone_from(&ends);
            if self.is_wide() {
                self.last_wide.clone_from(&ends);
            }
        }
        Ok(ends)
    }

    /// The open batch cannot be measured: it is charged as predicted.
    pub(super) fn give_up(&mut self, gate: &Gate, lease: &Lease, own: &mut Own) {
        if let Some(open) = own.open.take() {
            let sms = (self.lane.sm_count(), gate.device.props().sm_count);
            lease.usage().add(open.predicted.max(0) as u64, false, sms, gate.now());
            self.report(open.predicted, open.predicted);
        }
    }

    /// Has everything on the tenant's streams ended?
    pub(super) fn is_idle(&self, gate: &Gate, own: &Own) -> Result<bool> {
        own.streams.iter().try_fold(true, |all, stream| Ok(all && gate.device.stream_query(stream.raw())?))
    }

    /// Account for the batches that have ended.
    pub(super) fn harvest(&mut self, gate: &Gate) -> Result<()> {
        let before = self.spans.len();
        let read = self.read(gate);
        if self.spans.len() < before {
            // What is left cannot take longer than predicted from now, whatever was submitted when.
            let left: i64 = self.spans.iter().map(|span| span.predicted).sum();
            let mut idle_by = gate.now().saturating_add_signed(left);
            if let Some(holder) = self.turns.holder().and_then(|seat| self.seats.get(seat)?.as_ref()) {
                let mut own = holder.own();
                idle_by = idle_by.saturating_add_signed(own.open.as_ref().map_or(0, |open| open.predicted));
                own.busy_until = own.busy_until.min(idle_by);
            }
            self.turns.expect_idle_by(idle_by);
        }
        read
    }

    fn read(&mut self, gate: &Gate) -> Result<()> {
        while let Some(span) = self.spans.front() {
            for mark in &span.ends {
                if !mark.is_passed()? {
                    return Ok(());
                }
            }
            let Some(span) = self.spans.pop_front() else { break };
            let mut measured = 0;
            for mark in &span.ends {
                measured = measured.max(span.start.until(mark)?);
            }
            let seat = self.is_seated(&span.lease).then(|| span.lease.seat());
            self.turns.measured(seat, span.tier, span.submitted.0, span.predicted, measured);
            self.report(span.predicted, measured);
            self.costs.learn(&span.batch, measured);
            span.lease.learned(&span.batch, measured);
            let now = gate.now();
            let sms = (span.sms, gate.device.props().sm_count);
            span.lease.usage().add(measured as u64, true, sms, now);
            self.note(&span, measured as u64, now)?;
        }
        Ok(())
    }

    /// Tell the process that allowed it how long work took.
    fn report(&mut self, predicted: i64, measured: i64) {
        #[cfg(unix)]
        if let Some(allowance) = &mut self.allowance {
            allowance.report.measure(predicted, measured.max(0));
        }
        #[cfg(not(unix))]
        let _ = (predicted, measured);
    }

    fn note(&mut self, span: &Span, measured: u64, now: u64) -> Result<()> {
        let Some(end) = span.ends.first() else { return Ok(()) };
        if self.trace.is_none() {
            self.anchor = None;
            return Ok(());
        }
        let ended = match &self.anchor {
            Some((mark, at)) => at.saturating_add_signed(mark.until(end)?),
            None => now,
        };
        self.anchor = Some((end.clone(), ended));
        if let Some(trace) = &mut self.trace {
            if trace.len() == TRACE {
                trace.pop_front();
            }
            trace.push_back(Row {
                name: span.lease.name().clone(),
                lane: span.lane,
                sms: span.sms,
                start_ns: ended.saturating_sub(measured),
                ns: measured,
                submitted_ns: span.submitted,
                submissions: span.batch.iter().map(|(_, times)| times).sum(),
            });
        }
        Ok(())
    }
}

/// For turns of other processes.
#[cfg(unix)]
impl Inner {
    /// Has work of somebody who has ended not been measured yet?
    pub(super) fn awaits_ended(&self) -> bool {
        self.spans.iter().any(|span| span.lease.is_ended())
    }

    /// What is in flight will never be measured.
    pub(super) fn forget_spans(&mut self) {
        while let Some(span) = self.spans.pop_front() {
            self.report(span.predicted, span.predicted);
        }
    }

    /// Another process has used the lane.
    pub(super) fn note_remote(&mut self, gate: &Gate, lease: &Lease, measured: u64, now: u64) {
        let (sms, all) = (self.lane.sm_count(), gate.device.props().sm_count);
        lease.usage().add(measured, true, (sms, all), now);
        let lane = self.lane.id();
        if let Some(trace) = &mut self.trace {
            if trace.len() == TRACE {
                trace.pop_front();
            }
            let start_ns = now.saturating_sub(measured);
            trace.push_back(Row {
                name: lease.name().clone(),
                lane,
                sms,
                start_ns,
                ns: measured,
                submitted_ns: (start_ns, start_ns),
                submissions: 0,
            });
        }
    }
}
