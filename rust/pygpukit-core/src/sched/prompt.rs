//! Prompt tenants and the interpreter's lock: launches of other tenants make way for a thread that wants it back.
//!
//! A thread of a guaranteed task, or of one with a deadline, claims the interpreter shortly before its native wait is
//! likely to end, and keeps the claim until it releases the interpreter again. Meanwhile launches of other tenants in this
//! process wait without the interpreter, for a bounded time. So the thread finds the lock free, wakes no other when it
//! releases it, and meets no other in the driver. While no such task exists this costs one load per launch of scheduled
//! work, and nothing else.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::exec;

/// The longest that one claim holds, and that one launch makes way: nothing can wait without end.
const MOST: Duration = Duration::from_micros(300);

/// So long a launch that makes way spins before it sleeps between looks.
const SPIN: Duration = Duration::from_micros(40);

/// A thread that launched so recently is taken to hold the interpreter until it launches again.
const RECENT: Duration = Duration::from_micros(50);

/// The longest that a prompt thread waits for such a launch before it asks the interpreter itself, which puts it to sleep.
const HANDOVER: Duration = Duration::from_micros(20);

/// How long before the likely end of a wait it claims the interpreter: a launch that has begun ends by then.
const LEAD: Duration = Duration::from_micros(10);

/// How long every wait leaves to launches of others first.
const LEFT: Duration = Duration::from_micros(5);

/// How long after its likely end the wait gives the claim up, until it ends.
const SLACK: Duration = Duration::from_micros(10);

static INTERPRETER: Way = Way::new();

/// One lock that prompt threads want back.
#[derive(Debug)]
struct Way {
    /// Prompt tenants.
    tenants: AtomicU32,
    /// Their threads that claim the lock now.
    claims: AtomicU32,
    /// When the last claim ends by itself, in nanoseconds of the caller's clock.
    until: AtomicU64,
    /// Threads of other tenants that wait here without the lock.
    parked: AtomicU32,
    /// When a thread of another tenant launched last, in nanoseconds of the caller's clock.
    launched: AtomicU64,
}

impl Way {
    const fn new() -> Way {
        Way {
            tenants: AtomicU32::new(0),
            claims: AtomicU32::new(0),
            until: AtomicU64::new(0),
            parked: AtomicU32::new(0),
            launched: AtomicU64::new(0),
        }
    }

    /// A thread claims the lock, or claims it for longer.
    fn claim(&self, mine: &Claim, now: Duration) {
        self.until.fetch_max((now + MOST).as_nanos() as u64, Ordering::AcqRel);
        if !mine.0.replace(true) {
            self.claims.fetch_add(1, Ordering::AcqRel);
        }
    }

    fn release(&self, mine: &Claim) {
        if mine.0.replace(false) {
            self.claims.fetch_sub(1, Ordering::AcqRel);
        }
    }

    #[inline]
    fn is_wanted(&self) -> bool {
        self.claims.load(Ordering::Relaxed) > 0
    }

    /// Wait until no thread claims the lock, or for `MOST`. `now` is the caller's clock; `pause` lets others run.
    fn make_way(&self, mut now: impl FnMut() -> Duration, mut pause: impl FnMut(Duration)) {
        let began = now();
        self.parked.fetch_add(1, Ordering::AcqRel);
        while self.claims.load(Ordering::Acquire) > 0 {
            let at = now();
            let until = Duration::from_nanos(self.until.load(Ordering::Acquire));
            if at >= until || at.saturating_sub(began) >= MOST {
                break;
            }
            pause(at.saturating_sub(began));
        }
        self.parked.fetch_sub(1, Ordering::AcqRel);
    }

    /// A thread of another tenant launches at this time.
    #[inline]
    fn launches(&self, now: Duration) {
        self.launched.store(now.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Wait until a thread of another tenant waits without the lock, if one launched lately and is likely to hold it: a free
    /// lock is taken at once, while one that is held puts its next owner to sleep, and waking costs longer than this.
    fn await_free(&self, mut now: impl FnMut() -> Duration) {
        let began = now();
        let launched = Duration::from_nanos(self.launched.load(Ordering::Relaxed));
        if launched.is_zero() || began.saturating_sub(launched) > RECENT {
            return;
        }
        while self.parked.load(Ordering::Acquire) == 0 && now().saturating_sub(began) < HANDOVER {
            std::hint::spin_loop();
        }
    }
}

/// Whether one thread claims the interpreter.
#[derive(Debug)]
struct Claim(Cell<bool>);

impl Drop for Claim {
    fn drop(&mut self) {
        INTERPRETER.release(self);
    }
}

thread_local! {
    static CLAIM: Claim = const { Claim(Cell::new(false)) };
    /// How long this thread's waits took of late, in nanoseconds: a moving average.
    static WAITED: Cell<u64> = const { Cell::new(0) };
}

/// When a wait is likely to end, by those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Window {
    begin: Duration,
    end: Duration,
}

impl Window {
    /// None: nothing is known.
    fn of(average: u64) -> Option<Window> {
        let likely = Duration::from_nanos(average);
        (average > 0).then(|| {
            let begin = likely.saturating_sub(LEAD).max(LEFT);
            Window { begin, end: begin + LEAD + SLACK }
        })
    }
}

/// The average after one more wait. A pause between jobs says nothing about the kernels of the next.
fn averaged(average: u64, waited: Duration) -> u64 {
    let waited = waited.as_nanos() as u64;
    if average == 0 || waited > 8 * average { waited.max(1) } else { (7 * average + waited) / 8 }
}

/// A prompt thread's wait, during which it claims the interpreter when the end is near.
#[derive(Debug)]
pub(crate) struct Wait {
    window: Option<Window>,
    waited: Duration,
}

/// Watch a wait of this thread if it is a prompt tenant's.
#[inline]
pub(crate) fn watch() -> Option<Wait> {
    if INTERPRETER.tenants.load(Ordering::Relaxed) == 0 || !is_prompt() {
        return None;
    }
    Some(Wait { window: Window::of(WAITED.get()), waited: Duration::ZERO })
}

impl Wait {
    /// Called again and again while the thread waits.
    pub fn look(&mut self, waited: Duration) {
        self.waited = waited;
        let Some(window) = self.window else { return };
        CLAIM.with(|claim| match waited {
            _ if waited < window.begin => {}
            _ if waited < window.end => {
                if !claim.0.get() {
                    INTERPRETER.claim(claim, since_start());
                }
            }
            _ => INTERPRETER.release(claim),
        });
    }

    /// A wait for what has ended before says nothing about others.
    pub fn ended(self) {
        if !self.waited.is_zero() {
            WAITED.set(averaged(WAITED.get(), self.waited));
        }
    }
}

/// Does this thread work for a prompt tenant?
fn is_prompt() -> bool {
    exec::current().is_some_and(|ctx| ctx.lease.as_ref().is_some_and(|lease| lease.is_prompt()))
}

/// Counts a prompt tenant.
#[derive(Debug)]
pub(super) struct Prompt(());

impl Prompt {
    pub fn new() -> Prompt {
        INTERPRETER.tenants.fetch_add(1, Ordering::AcqRel);
        Prompt(())
    }
}

impl Drop for Prompt {
    fn drop(&mut self) {
        INTERPRETER.tenants.fetch_sub(1, Ordering::AcqRel);
    }
}

/// This thread is about to ask for the interpreter. One of a prompt tenant claims it until it releases it again.
#[inline]
pub fn coming_back() {
    if INTERPRETER.tenants.load(Ordering::Relaxed) > 0 {
        come_back_promptly();
    }
}

#[cold]
fn come_back_promptly() {
    if is_prompt() {
        CLAIM.with(|claim| INTERPRETER.claim(claim, since_start()));
        INTERPRETER.await_free(since_start);
    }
}

/// Time since the first call.
fn since_start() -> Duration {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed() + Duration::from_nanos(1)
}

/// A thread of a tenant that is not prompt launches.
#[inline]
pub(crate) fn note_launch() {
    if INTERPRETER.tenants.load(Ordering::Relaxed) > 0 {
        INTERPRETER.launches(since_start());
    }
}

/// A thread releases the interpreter: it claims it no more, and is no longer taken to hold it.
#[inline]
pub fn released() {
    if INTERPRETER.is_wanted() {
        CLAIM.with(|claim| INTERPRETER.release(claim));
    }
    if INTERPRETER.tenants.load(Ordering::Relaxed) > 0 {
        INTERPRETER.launches(Duration::ZERO);
    }
}

/// Does a prompt thread claim the interpreter now?
#[inline]
pub fn is_wanted() -> bool {
    INTERPRETER.is_wanted()
}

/// Wait, without the interpreter, until no prompt thread claims it.
#[cold]
pub(crate) fn make_way() {
    INTERPRETER.make_way(since_start, |waited| {
        if waited < SPIN { std::hint::spin_loop() } else { std::thread::sleep(Duration::from_micros(10)) }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unclaimed() -> Claim {
        Claim(Cell::new(false))
    }

    const NOW: Duration = Duration::from_secs(1);

    #[test]
    fn a_launch_waits_until_no_thread_claims_the_lock() {
        let way = Way::new();
        way.make_way(|| NOW, |_| panic!("it waits for no thread"));
        let (first, second) = (unclaimed(), unclaimed());
        way.claim(&first, NOW);
        way.claim(&second, NOW);
        // To claim it for longer counts once.
        way.claim(&second, NOW);
        let mut looks = 0;
        way.make_way(
            || NOW,
            |_| {
                looks += 1;
                // One releases it after two looks, the other after four.
                match looks {
                    2 => way.release(&first),
                    4 => way.release(&second),
                    _ => assert!(looks < 5 && way.is_wanted()),
                }
            },
        );
        assert_eq!((looks, way.is_wanted()), (4, false));
    }

    #[test]
    fn a_claim_ends_by_itself_and_a_launch_waits_for_a_bounded_time() {
        let way = Way::new();
        let stuck = unclaimed();
        way.claim(&stuck, NOW);
        let now = Cell::new(NOW);
        let step = |_| now.set(now.get() + Duration::from_micros(7));
        way.make_way(|| now.get(), step);
        assert!((MOST..MOST + Duration::from_micros(7)).contains(&(now.get() - NOW)), "{:?}", now.get());
        // The next launch does not wait for it again.
        way.make_way(|| now.get(), |_| panic!("the claim has ended"));
        // One that claims it again and again is waited for as long, and no longer.
        let began = now.get();
        way.make_way(
            || now.get(),
            |waited| {
                way.claim(&stuck, now.get());
                step(waited);
            },
        );
        assert!((now.get() - began) < MOST + Duration::from_micros(7));
        way.release(&stuck);
    }

    #[test]
    fn a_prompt_thread_waits_for_the_lock_only_where_it_is_likely_to_be_handed_over() {
        let way = Way::new();
        let looks = Cell::new(0);
        let look = |then: &dyn Fn()| {
            looks.set(looks.get() + 1);
            if looks.get() == 5 {
                then();
            }
            NOW + Duration::from_nanos(looks.get())
        };
        // No other tenant has launched, or none lately.
        way.await_free(|| look(&|| ()));
        way.launches(Duration::from_millis(1));
        way.await_free(|| look(&|| ()));
        assert_eq!(looks.get(), 2);
        // One launched just now, and makes way after some looks.
        way.launches(NOW);
        way.await_free(|| look(&|| way.parked.store(1, Ordering::Relaxed)));
        assert_eq!(looks.get(), 5);
        // It waits already.
        way.await_free(|| look(&|| ()));
        assert_eq!(looks.get(), 6);
        // It released the lock to wait for something else.
        way.parked.store(0, Ordering::Relaxed);
        way.launches(Duration::ZERO);
        way.await_free(|| look(&|| ()));
        assert_eq!(looks.get(), 7);
    }

    #[test]
    fn a_prompt_thread_waits_for_the_lock_for_a_bounded_time() {
        let way = Way::new();
        let now = Cell::new(NOW);
        way.launches(now.get());
        way.await_free(|| now.replace(now.get() + Duration::from_micros(3)));
        let waited = now.get() - NOW;
        assert!((HANDOVER..HANDOVER + Duration::from_micros(12)).contains(&waited), "{waited:?}");
    }

    #[test]
    fn a_wait_claims_the_lock_around_its_likely_end() {
        let us = Duration::from_micros;
        assert_eq!(Window::of(0), None, "the first wait knows nothing");
        let mut average = 0;
        for _ in 0..100 {
            average = averaged(average, us(40));
        }
        assert_eq!(Window::of(average), Some(Window { begin: us(30), end: us(50) }));
        // Short waits leave something to others all the same.
        assert_eq!(Window::of(2_000), Some(Window { begin: us(5), end: us(25) }));
        // A wait of another order says nothing about kernels, and the next ones correct it soon.
        let mut after = averaged(average, Duration::from_millis(1));
        assert_eq!(after, 1_000_000);
        for _ in 0..40 {
            after = averaged(after, us(40));
        }
        assert!(Window::of(after).unwrap().begin < us(40), "{after}");
    }
}
