//! Turns of other processes: a lane's turn is lent to a process of its own, over a socket.
//!
//! A thread of the lane's process takes turns for the other one (`Lease::lend`), so that both kinds of tenants share by
//! the same books. Over there a gate is held back (`Gate::hold_back`, `Gate::obey`): it submits only what it was allowed,
//! measures it, and hands the turn back when it is recalled. Whoever does not hand it back in time loses it.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::runtime;

use super::gate::{Gate, Inner};
use super::lease::Lease;
use super::turns::{Step, Tier};

/// A turn that was recalled and is not back after this time is somebody else's.
const PATIENCE: Duration = Duration::from_millis(250);

/// How often ends, and turns that are not handed back, are looked for.
const LOOK: Duration = Duration::from_millis(50);

/// After so much idle time a process says that it is idle, and is believed that it wants no more.
const IDLE_NS: u64 = 250_000;

/// How soon something is looked at again that nobody tells about.
const AGAIN_NS: u64 = 20_000;

/// And something that wakes whoever waits for it.
const SLOW: Duration = Duration::from_millis(1);

/// Work that is on its way out is looked for this often when it takes longer than predicted.
const LATE_NS: u64 = 500_000;

/// Nobody uses more in one message: an hour.
const MOST_NS: i64 = 3_600_000_000_000;

const MESSAGE: usize = 33;

/// What the other process has submitted and measured since it last said so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Report {
    /// Predicted device time of what was submitted.
    spent: i64,
    /// Predicted and measured device time of what has ended.
    covered: i64,
    measured: i64,
    /// Predicted time until all of it has ended.
    ahead: i64,
}

impl Report {
    pub(super) fn spend(&mut self, predicted: i64) {
        self.spent += predicted;
    }

    pub(super) fn measure(&mut self, predicted: i64, measured: i64) {
        self.covered += predicted;
        self.measured += measured;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Message {
    /// It has work, and may not submit it.
    Want(Report),
    /// It has a turn, and nothing to do.
    Idle(Report),
    /// A recall was read: nothing more is submitted.
    Closing,
    /// Everything has ended.
    Done(Report),
    /// Submit as much.
    Go(i64),
    /// Hand the turn back.
    Recall,
}

impl Message {
    fn bytes(self) -> [u8; MESSAGE] {
        let (tag, report) = match self {
            Message::Want(report) => (1, report),
            Message::Idle(report) => (2, report),
            Message::Closing => (3, Report::default()),
            Message::Done(report) => (4, report),
            Message::Go(ns) => (5, Report { spent: ns, ..Report::default() }),
            Message::Recall => (6, Report::default()),
        };
        let mut bytes = [0; MESSAGE];
        bytes[0] = tag;
        let values = [report.spent, report.covered, report.measured, report.ahead];
        for (place, value) in bytes[1..].chunks_exact_mut(8).zip(values) {
            place.copy_from_slice(&value.to_le_bytes());
        }
        bytes
    }

    /// None: no such message. Numbers that nobody could mean are cut.
    fn read(bytes: &[u8; MESSAGE]) -> Option<Message> {
        let mut values = [0i64; 4];
        for (value, place) in values.iter_mut().zip(bytes[1..].chunks_exact(8)) {
            *value = i64::from_le_bytes(place.try_into().unwrap_or_default()).clamp(0, MOST_NS);
        }
        let [spent, covered, measured, ahead] = values;
        let report = Report { spent, covered, measured, ahead };
        Some(match bytes[0] {
            1 => Message::Want(report),
            2 => Message::Idle(report),
            3 => Message::Closing,
            4 => Message::Done(report),
            5 => Message::Go(spent),
            6 => Message::Recall,
            _ => return None,
        })
    }
}

/// The end that messages are sent through: by whoever has something to say, under the gate's lock.
#[derive(Debug)]
struct Sender(UnixStream);

impl Sender {
    /// A lost message means a lost process, which the reading end sees.
    fn send(&self, message: Message) {
        let _ = (&self.0).write_all(&message.bytes());
    }
}

/// The end that messages are read from.
struct Receiver {
    socket: UnixStream,
    buffer: [u8; MESSAGE],
    filled: usize,
}

impl Receiver {
    /// The next message, or None if there is none in time. An error is the end of the other process.
    fn receive(&mut self, timeout: Duration) -> io::Result<Option<Message>> {
        let mut waited = false;
        loop {
            match self.socket.read(&mut self.buffer[self.filled..]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.filled += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if waited {
                        return Ok(None);
                    }
                    waited = true;
                    wait_readable(&self.socket, timeout)?;
                }
                Err(error) => return Err(error),
            }
            if self.filled == MESSAGE {
                self.filled = 0;
                return Message::read(&self.buffer).map(Some).ok_or_else(|| ErrorKind::InvalidData.into());
            }
        }
    }
}

fn ends(socket: UnixStream) -> Result<(Sender, Receiver)> {
    let refused = |error: io::Error| Error::Device(format!("the socket of a process's turns cannot be used: {error}"));
    // Whoever sends holds a lock, and must never wait.
    socket.set_nonblocking(true).map_err(refused)?;
    let sender = Sender(socket.try_clone().map_err(refused)?);
    Ok((sender, Receiver { socket, buffer: [0; MESSAGE], filled: 0 }))
}

/// Wait until there is something to read, or for that long; a signal ends it early.
fn wait_readable(socket: &UnixStream, timeout: Duration) -> io::Result<()> {
    let mut poll = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    #[cfg(target_os = "linux")]
    let found = {
        let limit = libc::timespec {
            tv_sec: timeout.as_secs().min(1 << 30) as libc::time_t,
            tv_nsec: timeout.subsec_nanos() as _,
        };
        // SAFETY: one descriptor and one time that live through the call; no signal mask.
        unsafe { libc::ppoll(&mut poll, 1, &limit, std::ptr::null()) }
    };
    #[cfg(not(target_os = "linux"))]
    let found = {
        let limit = timeout.as_micros().div_ceil(1000).min(1 << 30) as libc::c_int;
        // SAFETY: one descriptor that lives through the call.
        unsafe { libc::poll(&mut poll, 1, limit) }
    };
    if found < 0 {
        let error = io::Error::last_os_error();
        return if error.kind() == ErrorKind::Interrupted { Ok(()) } else { Err(error) };
    }
    Ok(())
}

/// How a process that turns are lent to does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Health {
    /// No process is there yet, or any more.
    #[default]
    Absent,
    Running,
    /// It has lost its turn, because work of it did not end in time.
    Overrunning,
    /// It has lost its turn, because it does not answer.
    Unresponsive,
}

impl Health {
    pub fn name(self) -> &'static str {
        match self {
            Health::Absent => "absent",
            Health::Running => "running",
            Health::Overrunning => "overrunning",
            Health::Unresponsive => "unresponsive",
        }
    }
}

/// A turn that another process has.
#[derive(Debug)]
pub(super) struct Away {
    sender: Arc<Sender>,
    recalled: Option<Instant>,
}

impl Away {
    /// Ask for the turn, once.
    pub(super) fn recall(&mut self) {
        if self.recalled.is_none() {
            self.recalled = Some(Instant::now());
            self.sender.send(Message::Recall);
        }
    }
}

/// A process that turns are taken for.
struct Borrower {
    sender: Arc<Sender>,
    receiver: Receiver,
    wants: bool,
    /// It has lost a turn whose end it has not reported.
    owes: bool,
    closing: bool,
    tier: Tier,
}

impl Lease {
    /// How the process does that turns are lent to.
    pub fn health(&self) -> Health {
        self.own().health
    }

    /// Take turns for the process at the other end of a socket, until it or the lease ends.
    pub fn lend(self: &Arc<Self>, socket: UnixStream) -> Result<()> {
        let (sender, receiver) = ends(socket)?;
        let sender = Arc::new(sender);
        let (wants, owes, closing, tier) = (false, false, false, Tier::BestEffort);
        let mut borrower = Borrower { sender, receiver, wants, owes, closing, tier };
        self.own().health = Health::Running;
        let served = self.serve(&mut borrower);
        let mut inner = self.gate().lock();
        self.own().health = Health::Absent;
        inner.turns.withdraw(self.seat());
        self.take_back(&mut inner);
        served
    }

    fn serve(self: &Arc<Self>, borrower: &mut Borrower) -> Result<()> {
        while !self.is_ended() && !runtime::exiting() {
            let wait = if borrower.wants && !borrower.owes { self.ask(borrower)? } else { LOOK };
            let away = self.own().away.is_some();
            let heard = if borrower.wants && !borrower.owes && !away {
                // Whoever ends a turn rings the bell.
                self.sleep(wait);
                borrower.receiver.receive(Duration::ZERO)
            } else {
                borrower.receiver.receive(wait.min(LOOK))
            };
            match heard {
                Ok(Some(message)) => self.hear(borrower, message),
                Ok(None) => self.look_after(borrower),
                Err(_) => break,
            }
        }
        Ok(())
    }

    /// Take a turn, or go on with the one it has. Returns how long to wait before the next try.
    fn ask(self: &Arc<Self>, borrower: &mut Borrower) -> Result<Duration> {
        let gate = self.gate();
        let mut inner = gate.lock();
        inner.harvest(gate)?;
        *self.woken() = false;
        let wait = |until: u64, now: u64| Duration::from_nanos(until.saturating_sub(now).max(AGAIN_NS));
        loop {
            let now = gate.now();
            if self.is_ended() {
                return Ok(Duration::ZERO);
            }
            let settled = inner.settle(gate)?;
            inner.turns.arrive(self.seat(), now);
            if !settled {
                // A turn that another process or library has comes back with a word.
                return Ok(if inner.is_slow() { SLOW } else { Duration::from_nanos(AGAIN_NS) });
            }
            let step = inner.turns.step(self.seat(), now);
            match step {
                // It runs beside what is on the device, so that has to be over.
                Step::Open if !inner.is_over()? => return Ok(wait(inner.turns.busy_until(), now)),
                Step::Open | Step::Renew => {
                    let left = if step == Step::Open {
                        inner.open(self, now);
                        borrower.closing = false;
                        inner.turns.left_ns()
                    } else {
                        inner.turns.open(self.seat(), now)
                    };
                    borrower.tier = inner.turns.tier().unwrap_or(Tier::BestEffort);
                    borrower.wants = false;
                    let mut own = self.own();
                    // It says when it has nothing to do, or wants more. If it does not, it is asked.
                    own.busy_until = now + PATIENCE.as_nanos() as u64;
                    if own.away.is_none() {
                        own.away = Some(Away { sender: borrower.sender.clone(), recalled: None });
                    }
                    borrower.sender.send(Message::Go(left));
                    drop(own);
                    inner.absorb();
                    return Ok(LOOK);
                }
                Step::Close => {
                    // The turn would begin when the device is idle, so there is no haste: a holder that goes first has
                    // time to ask again.
                    let free_at = inner.holder_busy_until(now) + IDLE_NS;
                    if now < free_at && inner.turns.is_holder_ahead_of(self.seat()) {
                        return Ok(wait(free_at, now));
                    }
                    inner.close();
                }
                Step::Wait { until, wake } => {
                    if let Some(next) = wake.filter(|next| *next != self.seat()) {
                        inner.wake(next);
                    }
                    return Ok(wait(until, now));
                }
            }
        }
    }

    fn hear(self: &Arc<Self>, borrower: &mut Borrower, message: Message) {
        let gate = self.gate();
        let mut inner = gate.lock();
        match message {
            Message::Want(report) => {
                borrower.wants = true;
                inner.turns.arrive(self.seat(), gate.now());
                self.account(&mut inner, borrower.tier, report);
            }
            Message::Idle(report) => {
                self.account(&mut inner, borrower.tier, report);
                inner.wake_next();
            }
            Message::Closing => borrower.closing = true,
            Message::Done(report) => {
                self.account(&mut inner, borrower.tier, report);
                borrower.owes = false;
                self.own().health = Health::Running;
                self.take_back(&mut inner);
            }
            // What only this side says.
            Message::Go(_) | Message::Recall => {}
        }
    }

    /// Has a turn that was recalled been away for too long?
    fn look_after(self: &Arc<Self>, borrower: &mut Borrower) {
        let mut inner = self.gate().lock();
        let recalled = self.own().away.as_ref().and_then(|away| away.recalled);
        if recalled.is_some_and(|at| at.elapsed() >= PATIENCE) {
            borrower.owes = true;
            self.own().health = if borrower.closing { Health::Overrunning } else { Health::Unresponsive };
            self.take_back(&mut inner);
        }
    }

    /// The turn is not away any more, and ends.
    fn take_back(self: &Arc<Self>, inner: &mut Inner) {
        let was_away = self.own().away.take().is_some();
        if was_away && inner.turns.holds(self.seat()) {
            inner.close();
            // Nothing of this process is in the turn, so there is nothing to mark.
            let _ = inner.settle(self.gate());
        }
        inner.wake_next();
    }

    fn account(self: &Arc<Self>, inner: &mut Inner, tier: Tier, report: Report) {
        let now = self.gate().now();
        let seated = inner.is_seated(self);
        if seated && inner.turns.holds(self.seat()) {
            {
                let mut own = self.own();
                own.spent += report.spent;
                own.busy_until = now.saturating_add_signed(report.ahead);
            }
            inner.absorb();
            inner.turns.measured(Some(self.seat()), tier, now, report.covered, report.measured);
            inner.turns.expect_idle_by(now.saturating_add_signed(report.ahead));
        } else if seated {
            inner.turns.charge(self.seat(), tier, report.spent + report.measured - report.covered);
        }
        if report.measured > 0 {
            inner.note_remote(self.gate(), self, report.measured as u64, now);
        }
    }
}

/// What another process lets the tenants of a gate submit.
pub(super) struct Allowance {
    sender: Sender,
    left: i64,
    /// It was told that more is wanted, or that nothing is.
    asked: bool,
    idle: bool,
    pub report: Report,
}

impl Allowance {
    pub(super) fn left(&self) -> i64 {
        self.left
    }

    pub(super) fn spend(&mut self, predicted: i64) {
        self.left -= predicted;
        self.report.spend(predicted);
    }
}

impl Inner {
    /// May something be submitted? If not, the other process is asked.
    pub(super) fn is_allowed(&mut self, gate: &Gate, now: u64) -> Result<bool> {
        let Some(allowance) = &self.allowance else { return Ok(true) };
        if allowance.left > 0 {
            return Ok(true);
        }
        if !allowance.asked {
            self.harvest(gate)?;
            self.tell(now, Message::Want);
        }
        Ok(false)
    }

    /// Let the other process have the turn back, if somebody wants it there.
    pub(super) fn offer(&mut self, now: u64) {
        self.absorb();
        if self.is_idle_news() {
            self.tell(now, Message::Idle);
        }
    }

    /// Does the other process think that the device is in use here?
    fn is_idle_news(&self) -> bool {
        self.allowance.as_ref().is_some_and(|allowance| !allowance.idle && !allowance.asked)
    }

    fn tell(&mut self, now: u64, message: impl FnOnce(Report) -> Message) {
        let ahead = self.turns.busy_until().saturating_sub(now).min(MOST_NS as u64) as i64;
        let Some(allowance) = &mut self.allowance else { return };
        let message = message(Report { ahead, ..std::mem::take(&mut allowance.report) });
        match message {
            Message::Want(_) => allowance.asked = true,
            Message::Idle(_) => allowance.idle = true,
            _ => {}
        }
        allowance.sender.send(message);
    }
}

impl Inner {
    /// When the holder's work ends, as predicted, or has ended; it does not end while somebody is inside.
    pub(super) fn holder_busy_until(&self, now: u64) -> u64 {
        let holder = self.turns.holder().and_then(|seat| self.seats.get(seat)?.as_ref());
        holder.map_or(0, |lease| {
            let own = lease.own();
            let inside = own.is_busy() && !own.is_away();
            if inside { own.busy_until.max(now) } else { own.busy_until }
        })
    }

    pub(super) fn wake_all(&self) {
        for lease in self.seats.iter().flatten() {
            lease.wake();
        }
    }

    /// Has everything ended that was submitted in turns before?
    pub(super) fn is_over(&self) -> Result<bool> {
        let passed = self.last.iter().try_fold(true, |all, mark| Ok::<_, Error>(all && mark.is_passed()?))?;
        Ok(passed && self.spans.is_empty())
    }

    /// End a turn that was closed; has everything of it ended?
    fn try_end(&mut self, gate: &Gate) -> Result<bool> {
        if !self.settle(gate)? {
            return Ok(false);
        }
        self.harvest(gate)?;
        self.is_over()
    }

    /// Is the holder's work done, all of it?
    pub(super) fn is_at_rest(&mut self, gate: &Gate) -> Result<bool> {
        let holder = self.turns.holder().and_then(|seat| self.seats.get(seat)?.clone());
        if let Some(lease) = holder.filter(|_| !self.closing) {
            let mut own = lease.own();
            if own.is_busy() || !self.is_idle(gate, &own)? {
                return Ok(false);
            }
            self.cut(gate, &lease, &mut own)?;
        }
        self.harvest(gate)?;
        self.is_over()
    }
}

impl Gate {
    /// From now on work is submitted here only as the process at the other end of the socket allows; see `obey`.
    pub fn hold_back(&self, socket: UnixStream) -> Result<Orders> {
        let (sender, receiver) = ends(socket)?;
        let mut inner = self.lock();
        inner.close();
        inner.allowance = Some(Allowance { sender, left: 0, asked: false, idle: true, report: Report::default() });
        Ok(Orders(receiver))
    }

    /// Do what the other process says, until it ends.
    pub fn obey(&self, mut orders: Orders) -> Result<()> {
        while !runtime::exiting() {
            match orders.0.receive(self.until_idle()) {
                Ok(Some(Message::Go(ns))) => {
                    let mut inner = self.lock();
                    if let Some(allowance) = &mut inner.allowance {
                        (allowance.left, allowance.asked, allowance.idle) = (ns, false, false);
                    }
                    inner.wake_all();
                }
                Ok(Some(Message::Recall)) => self.hand_back(),
                Ok(Some(_)) => {}
                Ok(None) => self.tell_if_idle(),
                Err(_) => break,
            }
        }
        Ok(())
    }

    /// Say what those have used that have ended here: before anybody over there hears of their end.
    pub fn report(&self) -> Result<()> {
        while !runtime::exiting() {
            self.poll()?;
            let mut inner = self.lock();
            inner.settle(self)?;
            inner.harvest(self)?;
            if !inner.awaits_ended() {
                let now = self.now();
                let at_rest = inner.is_at_rest(self)?;
                inner.tell(now, Message::Idle);
                if let Some(allowance) = &mut inner.allowance {
                    allowance.idle = at_rest;
                }
                break;
            }
            drop(inner);
            std::thread::sleep(Duration::from_nanos(AGAIN_NS));
        }
        Ok(())
    }

    /// How long to listen before it is worth looking whether the device is idle.
    fn until_idle(&self) -> Duration {
        let mut inner = self.lock();
        if !inner.is_idle_news() {
            return LOOK;
        }
        inner.absorb();
        let now = self.now();
        match (inner.turns.busy_until() + IDLE_NS).saturating_sub(now) {
            0 => Duration::from_nanos(LATE_NS),
            left => Duration::from_nanos(left.max(IDLE_NS)).min(LOOK),
        }
    }

    fn tell_if_idle(&self) {
        if !self.lock().is_idle_news() || self.poll().is_err() {
            return;
        }
        let mut inner = self.lock();
        inner.absorb();
        let now = self.now();
        if now >= inner.turns.busy_until() + IDLE_NS && inner.is_at_rest(self).unwrap_or(false) {
            inner.tell(now, Message::Idle);
        }
    }

    /// Submit nothing more, wait for what was submitted, and say what it took.
    fn hand_back(&self) {
        {
            let mut inner = self.lock();
            inner.absorb();
            if let Some(allowance) = &mut inner.allowance {
                allowance.left = 0;
                allowance.sender.send(Message::Closing);
            }
            inner.close();
        }
        while !runtime::exiting() {
            // Not under the lock: what runs may want it, or the interpreter, whose holder waits for the lock.
            let polled = self.poll();
            let mut inner = self.lock();
            let over = polled.and_then(|()| inner.try_end(self));
            let now = self.now();
            match over {
                Ok(false) => {
                    let left = inner.turns.busy_until().saturating_sub(now).clamp(AGAIN_NS, 50 * AGAIN_NS);
                    drop(inner);
                    std::thread::sleep(Duration::from_nanos(left));
                }
                Ok(true) => {
                    inner.tell(now, Message::Done);
                    break;
                }
                Err(_) => {
                    // The device is lost, and with it what it measured.
                    inner.forget_spans();
                    inner.tell(now, Message::Done);
                    break;
                }
            }
        }
    }
}

/// What the other process has to say to a gate that is held back.
pub struct Orders(Receiver);
