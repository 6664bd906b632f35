//! The kernel that serves a ring: when it is on the device, and when it leaves.
//!
//! It is on the device while it is wanted and nobody holds it away. Driver calls that wait for the whole device hold it
//! away (`Park`). The keeper brings it back when it left by itself, and notices when it is gone for another reason: that
//! is latched, and every wait ends with it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use crate::command::{Launch, LaunchAttributes};
use crate::device::{RawStream, SharedDevice};
use crate::error::{Error, Result};
use crate::kernel::Kernel;
use crate::lane::Lane;
use crate::launch::{check_dimensions, put_resident};
use crate::runtime;
use crate::sync::{Park, register_parker, unregister_parker};

use super::link::{CHECK, Check, Link, NAP};
use super::orders::{CLOCK, LEAVE, Offset, monotonic_ns};

/// What is launched, and where.
pub trait Program: Send + Sync {
    /// Launch it, under this number.
    fn launch(&self, number: u64) -> Result<()>;
    /// Has everything that was launched ended? Never blocks; an error is a fault of the kernel.
    fn is_idle(&self) -> Result<bool>;
}

/// How long a leave is waited for without sleeping.
const LOOK: Duration = Duration::from_millis(1);

/// A kernel that has not left after this time is stuck.
const STUCK: Duration = Duration::from_secs(1);

/// How often the keeper asks whether the kernel is still there.
const QUERY: Duration = Duration::from_millis(20);

/// How often the clocks are compared, how many times each, and how long a comparison may take: the first one waits for
/// the kernel to come up.
const COMPARE: Duration = Duration::from_secs(1);
const EXCHANGES: usize = 5;
const EXCHANGE: Duration = Duration::from_millis(20);
const FIRST_EXCHANGE: Duration = Duration::from_secs(5);

/// How long after its last word a kernel may take to end.
const RETIRED: Duration = Duration::from_millis(100);

/// How long the end of the process waits for a kernel to leave.
const LAST: Duration = Duration::from_secs(1);

#[derive(Default)]
struct State {
    program: Option<Arc<dyn Program>>,
    wanted: bool,
    /// Who holds it away.
    holds: u32,
    running: bool,
    registered: bool,
    launches: u64,
    parks: u64,
    last_exit: u64,
    /// When the present launch was asked to leave.
    asked: Option<Instant>,
}

#[derive(Default)]
pub struct Resident {
    state: Mutex<State>,
    /// One `up` or `down` at a time.
    turn: Mutex<()>,
    /// Number of the launch that is on the device, or 0.
    present: AtomicU64,
    stuck: AtomicBool,
    failed: AtomicBool,
    failure: OnceLock<Error>,
    /// Numbers of handlers, which faults name, and ids of their actors.
    handlers: Mutex<Vec<(u32, String)>>,
    /// The host has ordered the kernel to end itself.
    pub(super) aborted: AtomicBool,
    pub(super) offset: Offset,
    comparing: Mutex<()>,
}

/// What the keeper did last.
#[derive(Default)]
pub struct Care {
    queried: Option<Instant>,
    compared: Option<Instant>,
    alarms: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    pub up: bool,
    pub launches: u64,
    pub parks: u64,
    /// How the last launch that ended did: 1 asked to, 2 the host was gone, 3 its slice was over; 0 none has.
    pub last_exit: u64,
    pub device_beat: u64,
    pub host_beat: u64,
    /// It does not leave, or a handler does not return.
    pub stuck: bool,
    pub orders_pending: u64,
}

/// Links whose kernel may be on the device.
static LINKS: Mutex<Vec<Weak<Link>>> = Mutex::new(Vec::new());

/// The process ends: kernels leave first.
pub fn shutdown() {
    let links = std::mem::take(&mut *LINKS.lock());
    for link in links.iter().filter_map(Weak::upgrade).filter(|link| link.is_ours()) {
        link.down(LAST);
        link.stop();
    }
}

impl Link {
    /// Say what is launched from now on. It is not on the device meanwhile.
    pub fn set_program(&self, program: Arc<dyn Program>) -> Result<()> {
        let mut state = self.resident.state.lock();
        self.settle(&mut state);
        if state.running || (state.wanted && state.holds == 0) {
            return Err(Error::Value("the ring's kernel is on the device: take it down before it is exchanged".into()));
        }
        let before = state.program.replace(program);
        drop(state);
        drop(before);
        Ok(())
    }

    /// Bring the kernel to the device and keep it there.
    pub fn up(self: &Arc<Self>) -> Result<()> {
        let resident = &self.resident;
        if !self.is_ours() {
            return Err(Error::Forked("a ring belongs to the process that made it: make another one here".to_string()));
        }
        let _turn = resident.turn.lock();
        self.check_failure()?;
        self.check_ended()?;
        let registered = {
            let mut state = resident.state.lock();
            if state.program.is_none() {
                return Err(Error::Value("there is no kernel to bring up: say which one first".to_string()));
            }
            std::mem::replace(&mut state.registered, true)
        };
        self.start()?;
        if !registered {
            // Before it is launched: driver calls in progress hold it away from here on.
            register_parker(self.clone());
            let mut links = LINKS.lock();
            links.retain(|link| link.strong_count() > 0);
            if !links.iter().any(|link| std::ptr::eq(link.as_ptr(), Arc::as_ptr(self))) {
                links.push(Arc::downgrade(self));
            }
        }
        let mut state = resident.state.lock();
        state.wanted = true;
        self.launch_if_wanted(&mut state);
        drop(state);
        if resident.failed.load(Ordering::Acquire) {
            self.forget_parker();
        }
        self.check_failure()?;
        if resident.offset.get().is_none() && resident.present.load(Ordering::Acquire) != 0 {
            self.compare_clocks(FIRST_EXCHANGE);
            self.check_failure()?;
        }
        Ok(())
    }

    /// Take the kernel off the device; false if it has not left in time, and it still may later.
    pub fn down(self: &Arc<Self>, timeout: Duration) -> bool {
        if !self.is_ours() {
            return false;
        }
        let began = Instant::now();
        let Some(_turn) = self.resident.turn.try_lock_for(timeout) else { return false };
        self.resident.state.lock().wanted = false;
        let gone = matches!(self.await_exit(timeout.saturating_sub(began.elapsed()), &mut || Ok(())), Ok(true));
        if gone {
            self.forget_parker();
        }
        gone
    }

    /// Hold the kernel away until as many calls of `resume`; it has left when this returns. After an error it is not held.
    pub fn park(&self, limit: Duration, check: Check<'_>) -> Result<()> {
        self.hold();
        self.await_left(limit, check).inspect_err(|_| self.resume())
    }

    fn forget_parker(self: &Arc<Self>) {
        if std::mem::take(&mut self.resident.state.lock().registered) {
            let parker: Arc<dyn Park> = self.clone();
            unregister_parker(&parker);
        }
    }

    /// Ask the kernel that is there to leave and wait until it has; false if that took too long.
    fn await_exit(&self, limit: Duration, check: Check<'_>) -> Result<bool> {
        let began = Instant::now();
        let mut looked = began;
        let number = {
            let mut state = self.resident.state.lock();
            self.settle(&mut state);
            state.running.then_some(state.launches)
        };
        let Some(number) = number else { return Ok(true) };
        loop {
            if self.words.exited.load() >> 8 >= number || self.resident.present.load(Ordering::Acquire) != number {
                self.settle(&mut self.resident.state.lock());
                return Ok(true);
            }
            self.ask_to_leave(number);
            self.drain();
            let now = Instant::now();
            let waited = now - began;
            if waited >= limit {
                return Ok(false);
            }
            if now - looked > CHECK {
                check()?;
                looked = now;
            }
            if waited > LOOK {
                std::thread::sleep(NAP);
            } else {
                std::hint::spin_loop();
            }
        }
    }

    /// Once per launch, as soon as there is room for the order.
    fn ask_to_leave(&self, number: u64) {
        let mut state = self.resident.state.lock();
        if state.running
            && state.launches == number
            && state.asked.is_none()
            && self.orders.try_push([LEAVE, number, 0, 0, 0]).is_some()
        {
            state.asked = Some(Instant::now());
        }
    }

    /// Has the launch that is on the device left?
    fn settle(&self, state: &mut State) -> bool {
        let word = self.words.exited.load();
        if !state.running || word >> 8 < state.launches {
            return false;
        }
        state.running = false;
        state.last_exit = word & 255;
        state.asked = None;
        self.resident.stuck.store(false, Ordering::Release);
        self.resident.present.store(0, Ordering::Release);
        true
    }

    fn launch_if_wanted(&self, state: &mut MutexGuard<'_, State>) {
        self.settle(state);
        if !state.wanted || state.holds > 0 || state.running || self.resident.failed.load(Ordering::Acquire) {
            return;
        }
        let Some(program) = state.program.clone() else { return };
        let number = state.launches + 1;
        match program.launch(number) {
            Ok(()) => {
                state.launches = number;
                state.running = true;
                self.resident.present.store(number, Ordering::Release);
            }
            Err(error) => self.fail(state, error),
        }
    }

    /// The kernel is lost, or cannot be launched: for good.
    fn fail(&self, state: &mut State, error: Error) {
        state.wanted = false;
        state.running = false;
        let resident = &self.resident;
        // The error before the flag, and both before the kernel is known to be gone.
        let _ = resident.failure.set(self.describe(runtime::attribute(error)));
        resident.failed.store(true, Ordering::Release);
        resident.present.store(0, Ordering::Release);
        self.ring_bell();
        self.signal.give();
    }

    /// What users can read in a fault: their handlers by the actors' ids, and that it was they who ended the kernel.
    fn describe(&self, error: Error) -> Error {
        let resident = &self.resident;
        match error {
            Error::Kernel(_) if resident.aborted.load(Ordering::Acquire) => {
                Error::Kernel("the ring was ended by runtime.abort()".into())
            }
            Error::Kernel(text) => {
                let handlers = resident.handlers.lock();
                let name = |text: String, (number, id): &(u32, String)| {
                    text.replace(&format!("handler {number}:"), &format!("handler of '{id}':"))
                };
                Error::Kernel(handlers.iter().fold(text, name))
            }
            other => other,
        }
    }

    /// Give the actors' ids of handlers, by number.
    pub fn name_handlers(&self, handlers: Vec<(u32, String)>) {
        *self.resident.handlers.lock() = handlers;
    }

    /// Why the kernel is lost, if it is.
    pub fn failure(&self) -> Option<&Error> {
        self.resident.failure.get()
    }

    #[inline]
    pub(super) fn check_failure(&self) -> Result<()> {
        if self.resident.failed.load(Ordering::Acquire) { self.refuse() } else { Ok(()) }
    }

    #[cold]
    fn refuse(&self) -> Result<()> {
        self.failure().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// What the keeper does for the kernel.
    pub(super) fn care(&self, care: &mut Care, now: Instant) {
        let resident = &self.resident;
        let alarms = self.words.alarms.state();
        if std::mem::replace(&mut care.alarms, alarms) != alarms {
            self.signal.give();
        }
        let number = resident.present.load(Ordering::Acquire);
        if number == 0 {
            return;
        }
        if self.words.exited.load() >> 8 >= number {
            let mut state = resident.state.lock();
            self.settle(&mut state);
            self.launch_if_wanted(&mut state);
            drop(state);
            return self.signal.give();
        }
        if care.queried.is_none_or(|last| now - last > QUERY) {
            care.queried = Some(now);
            self.look_for_faults(number, now);
        }
        // The first comparison is made by whoever brings it up, or here when it was held away then.
        let due = care.compared.map_or(resident.offset.get().is_none(), |last| now - last > COMPARE);
        // Orders that are not taken say that the answer would not come soon.
        if due && self.orders.pending() == 0 {
            self.compare_clocks(EXCHANGE);
        }
        if due || care.compared.is_none() {
            care.compared = Some(now);
        }
    }

    fn look_for_faults(&self, number: u64, now: Instant) {
        let state = self.resident.state.lock();
        if state.asked.is_some_and(|asked| now.saturating_duration_since(asked) > STUCK) && state.running {
            self.resident.stuck.store(true, Ordering::Release);
        }
        let Some(program) = state.program.clone() else { return };
        drop(state);
        let error = match program.is_idle() {
            Ok(false) => return,
            Ok(true) => Error::Device(
                "the ring's kernel ended without saying why: its last block did not come to its end".to_string(),
            ),
            Err(error) => error,
        };
        let mut state = self.resident.state.lock();
        // It may have left by itself meanwhile, and even come back.
        if self.settle(&mut state) {
            self.launch_if_wanted(&mut state);
            drop(state);
            self.signal.give();
        } else if state.running && state.launches == number {
            self.fail(&mut state, error);
        }
    }

    /// Ask for the device's clock a few times and keep the answer that came fastest.
    fn compare_clocks(&self, patience: Duration) {
        let Some(_comparing) = self.resident.comparing.try_lock() else { return };
        let mut best: Option<(u64, i64)> = None;
        let began = Instant::now();
        for _ in 0..EXCHANGES {
            let (asked, since) = (monotonic_ns(), Instant::now());
            let Some(number) = self.orders.try_push([CLOCK, 0, 0, 0, 0]) else { break };
            while self.orders.taken() < number {
                if began.elapsed() > patience || self.resident.present.load(Ordering::Acquire) == 0 {
                    break;
                }
                self.drain();
                if since.elapsed() > LOOK {
                    std::thread::sleep(NAP);
                }
            }
            if self.orders.taken() < number {
                break;
            }
            let answered = monotonic_ns();
            let took = answered - asked;
            let offset = self.words.clock.load().wrapping_sub(asked + took / 2) as i64;
            if best.is_none_or(|(fastest, _)| took < fastest) {
                best = Some((took, offset));
            }
        }
        if let Some((_, offset)) = best {
            self.resident.offset.set(offset);
        }
    }

    /// The device's clock less the host's monotonic one, in nanoseconds; None before they were first compared.
    pub fn device_time_offset(&self) -> Option<i64> {
        self.resident.offset.get()
    }

    pub fn status(&self) -> Status {
        let mut state = self.resident.state.lock();
        let word = self.words.exited.load();
        if state.running && word >> 8 >= state.launches {
            state.last_exit = word & 255;
        }
        Status {
            up: state.running && word >> 8 < state.launches,
            launches: state.launches,
            parks: state.parks,
            last_exit: state.last_exit,
            device_beat: self.words.device_beat.load(),
            host_beat: self.words.beat.load(),
            stuck: self.resident.stuck.load(Ordering::Acquire) || self.words.alarms.state() as u32 != 0,
            orders_pending: self.orders.pending(),
        }
    }
}

impl Park for Link {
    fn hold(&self) {
        let mut state = self.resident.state.lock();
        state.holds += 1;
        state.parks += u64::from(state.running);
    }

    fn await_left(&self, limit: Duration, check: Check<'_>) -> Result<()> {
        if self.await_exit(limit, check)? {
            return Ok(());
        }
        Err(Error::Device(format!(
            "a ring's kernel was to leave the device for a moment, for a call of the driver that waits for all kernels, and has \
             not within {} s: a handler of it does not return. Wait for it, or end it with abort() of its runtime, whose \
             status() says which actor it is",
            limit.as_secs_f64()
        )))
    }

    fn resume(&self) {
        let mut state = self.resident.state.lock();
        state.holds = state.holds.saturating_sub(1);
        self.launch_if_wanted(&mut state);
    }
}

/// A kernel that takes the engine's address and the launch's number, on a stream of its own.
pub struct KernelProgram {
    kernel: Arc<Kernel>,
    place: Arc<Place>,
    engine: u64,
    blocks: u32,
    threads: u32,
    shared: u32,
}

/// A stream of resident kernels.
pub struct Place {
    device: SharedDevice,
    stream: RawStream,
}

impl Place {
    /// On a lane, and before other work there.
    pub fn new(lane: &Lane) -> Result<Arc<Place>> {
        let device = lane.device().clone();
        let stream = lane.stream(device.priority_range().1)?;
        Ok(Arc::new(Place { device, stream }))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let began = Instant::now();
        while !runtime::exiting() {
            match self.device.resident_query(self.stream) {
                Ok(true) => return self.device.stream_destroy(self.stream),
                // A kernel that has said that it leaves ends soon; a stream that stays busy is left alone.
                Ok(false) if began.elapsed() < RETIRED => std::thread::sleep(NAP),
                _ => return,
            }
        }
    }
}

impl KernelProgram {
    pub fn new(
        kernel: &Arc<Kernel>,
        place: &Arc<Place>,
        engine: u64,
        blocks: u32,
        threads: u32,
        shared: u32,
    ) -> Result<KernelProgram> {
        let max_threads = kernel.attributes().max_threads;
        let (grid, block) = ([i64::from(blocks), 1, 1], [i64::from(threads), 1, 1]);
        check_dimensions(place.device.props(), kernel.name(), max_threads, grid, block)?;
        kernel.allow_shared(shared)?;
        Ok(KernelProgram { kernel: kernel.clone(), place: place.clone(), engine, blocks, threads, shared })
    }
}

impl Program for KernelProgram {
    fn launch(&self, number: u64) -> Result<()> {
        let mut args = [0; 16];
        args[..8].copy_from_slice(&self.engine.to_le_bytes());
        args[8..].copy_from_slice(&number.to_le_bytes());
        let launch = Launch {
            kernel: &self.kernel,
            grid: [self.blocks, 1, 1],
            block: [self.threads, 1, 1],
            shared: self.shared,
            attributes: LaunchAttributes { resident: true, ..LaunchAttributes::default() },
            args: &args,
            arrays: &[],
        };
        put_resident(&self.place.device, self.place.stream, &launch)
    }

    fn is_idle(&self) -> Result<bool> {
        self.place.device.resident_query(self.place.stream)
    }
}
