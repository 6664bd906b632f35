//! Prompt tenants and the interpreter's lock: launches of other tenants make way for a thread that wants it back.
//!
//! A thread of a guaranteed task, or of one with a deadline, says that it comes back before it asks for the interpreter
//! at the end of a native wait. Until it has it, launches of other tenants in this process wait without the interpreter,
//! for a bounded time each. While no such task exists this costs one load per launch of scheduled work, and nothing else.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::exec;

/// The longest that one launch makes way: nothing can wait without end.
const MOST: Duration = Duration::from_micros(300);

/// So long the wait spins before it sleeps between looks.
const SPIN: Duration = Duration::from_micros(20);

/// A thread that launched so recently is taken to hold the interpreter until it launches again.
const RECENT: Duration = Duration::from_micros(50);

/// The longest that a prompt thread waits for such a launch before it asks the interpreter itself, which puts it to sleep.
const HANDOVER: Duration = Duration::from_micros(20);

static INTERPRETER: Way = Way::new();

/// One lock that prompt threads want back.
#[derive(Debug)]
pub struct Way {
    /// Prompt tenants.
    tenants: AtomicU32,
    /// Their threads that ask for the lock now.
    returning: AtomicU32,
    /// Threads of other tenants that wait here without the lock.
    parked: AtomicU32,
    /// When a thread of another tenant launched last, in nanoseconds of the caller's clock.
    launched: AtomicU64,
}

impl Way {
    pub const fn new() -> Way {
        Way {
            tenants: AtomicU32::new(0),
            returning: AtomicU32::new(0),
            parked: AtomicU32::new(0),
            launched: AtomicU64::new(0),
        }
    }

    /// A thread asks for the lock until the result is dropped.
    pub fn come_back(&self) -> Returning<'_> {
        self.returning.fetch_add(1, Ordering::AcqRel);
        Returning(self)
    }

    #[inline]
    pub fn is_wanted(&self) -> bool {
        self.returning.load(Ordering::Relaxed) > 0
    }

    /// Wait until no thread asks for the lock, or for `MOST`. `elapsed` is the time since the call; `pause` lets others
    /// run.
    pub fn make_way(&self, mut elapsed: impl FnMut() -> Duration, mut pause: impl FnMut(Duration)) {
        let _parked = self.park();
        while self.returning.load(Ordering::Acquire) > 0 {
            let waited = elapsed();
            if waited >= MOST {
                return;
            }
            pause(waited);
        }
    }

    fn park(&self) -> Parked<'_> {
        self.parked.fetch_add(1, Ordering::AcqRel);
        Parked(self)
    }

    /// A thread of another tenant launches at this time.
    #[inline]
    pub fn launches(&self, now: Duration) {
        self.launched.store(now.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Wait until a thread of another tenant waits without the lock, if one launched lately and is likely to hold it: a free
    /// lock is taken at once, while one that is held puts its next owner to sleep, and waking costs longer than this.
    pub fn await_free(&self, mut now: impl FnMut() -> Duration) {
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

/// Counts a thread that makes way.
struct Parked<'a>(&'a Way);

impl Drop for Parked<'_> {
    fn drop(&mut self) {
        self.0.parked.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Default for Way {
    fn default() -> Way {
        Way::new()
    }
}

/// A prompt thread on its way to the lock.
#[derive(Debug)]
pub struct Returning<'a>(&'a Way);

impl Drop for Returning<'_> {
    fn drop(&mut self) {
        self.0.returning.fetch_sub(1, Ordering::AcqRel);
    }
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

/// This thread is about to ask for the interpreter: what to keep until it has it, if it is a prompt tenant's.
#[inline]
pub fn coming_back() -> Option<Returning<'static>> {
    if INTERPRETER.tenants.load(Ordering::Relaxed) == 0 { None } else { coming_back_promptly() }
}

#[cold]
fn coming_back_promptly() -> Option<Returning<'static>> {
    let lease = exec::current()?.lease.clone()?;
    lease.is_prompt().then(|| {
        let returning = INTERPRETER.come_back();
        INTERPRETER.await_free(since_start);
        returning
    })
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

/// A thread releases the interpreter: the one that launched last is no longer taken to hold it.
#[inline]
pub fn released() {
    if INTERPRETER.tenants.load(Ordering::Relaxed) > 0 {
        INTERPRETER.launches(Duration::ZERO);
    }
}

/// Does a prompt thread ask for the interpreter now?
#[inline]
pub(crate) fn is_wanted() -> bool {
    INTERPRETER.is_wanted()
}

/// Wait, without the interpreter, until it has it.
#[cold]
pub(crate) fn make_way() {
    let start = Instant::now();
    INTERPRETER.make_way(
        || start.elapsed(),
        |waited| if waited < SPIN { std::hint::spin_loop() } else { std::thread::sleep(Duration::from_micros(10)) },
    );
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_launch_waits_until_the_prompt_thread_has_the_lock() {
        let way = Way::new();
        way.make_way(|| Duration::ZERO, |_| panic!("it waits for no thread"));
        let (first, second) = (Cell::new(Some(way.come_back())), Cell::new(Some(way.come_back())));
        let mut looks = 0;
        way.make_way(
            || Duration::ZERO,
            |_| {
                looks += 1;
                // One has the lock after two looks, the other after four.
                match looks {
                    2 => drop(first.take()),
                    4 => drop(second.take()),
                    _ => assert!(looks < 5 && way.is_wanted()),
                }
            },
        );
        assert_eq!((looks, way.is_wanted()), (4, false));
    }

    #[test]
    fn a_launch_waits_for_a_bounded_time() {
        let way = Way::new();
        let _stuck = way.come_back();
        let now = Cell::new(Duration::ZERO);
        way.make_way(|| now.get(), |_| now.set(now.get() + Duration::from_micros(7)));
        assert!((MOST..MOST + Duration::from_micros(7)).contains(&now.get()), "{:?}", now.get());
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
            Duration::from_secs(1) + Duration::from_nanos(looks.get())
        };
        // No other tenant has launched, or none lately.
        way.await_free(|| look(&|| ()));
        way.launches(Duration::from_millis(1));
        way.await_free(|| look(&|| ()));
        assert_eq!(looks.get(), 2);
        // One launched just now, and makes way after some looks.
        way.launches(Duration::from_secs(1));
        way.await_free(|| look(&|| std::mem::forget(way.park())));
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
        let now = Cell::new(Duration::from_secs(1));
        way.launches(now.get());
        way.await_free(|| now.replace(now.get() + Duration::from_micros(3)));
        let waited = now.get() - Duration::from_secs(1);
        assert!((HANDOVER..HANDOVER + Duration::from_micros(12)).contains(&waited), "{waited:?}");
    }
}
