//! A thread that waits for a mailbox: for a moment awake, then asleep. How long it stays awake is its own choice.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::queue::Wake;

/// How long a thread looks before it sleeps. An answer often comes sooner than a sleeping processor wakes.
pub const LOOK: Duration = Duration::from_micros(20);

thread_local! {
    static PATIENCE: Cell<Option<Duration>> = const { Cell::new(None) };
}

/// Stay awake for so long in every wait of this thread from now on; None: as long as is best for most. Returns what it
/// was before. It is the thread's, because a wait passes many hands, and none but the last has to know.
pub fn set_patience(patience: Option<Duration>) -> Option<Duration> {
    PATIENCE.replace(patience)
}

/// How long a wait of this thread stays awake, if `usual` is best for most.
pub fn patience(usual: Duration) -> Duration {
    PATIENCE.get().unwrap_or(usual)
}

/// One wait of one thread.
#[derive(Debug, Default)]
pub struct Parker {
    woken: AtomicBool,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Parker {
    /// Look until a moment without sleeping; whether it was woken. Others may have the processor meanwhile.
    pub fn look_until(&self, until: Instant) -> bool {
        while !self.woken.load(Ordering::Acquire) {
            if Instant::now() > until {
                return false;
            }
            for _ in 0..16 {
                std::hint::spin_loop();
            }
            std::thread::yield_now();
        }
        true
    }

    /// Sleep until woken or until a moment; whether it was woken.
    pub fn sleep_until(&self, until: Instant) -> bool {
        let mut lock = self.lock.lock();
        while !self.woken.load(Ordering::Acquire) {
            if self.changed.wait_until(&mut lock, until).timed_out() {
                break;
            }
        }
        self.woken.load(Ordering::Acquire)
    }
}

impl Wake for Arc<Parker> {
    fn wake(self) -> bool {
        self.woken.store(true, Ordering::Release);
        // Who has looked at the flag under the lock is asleep by the time it is free.
        drop(self.lock.lock());
        self.changed.notify_one();
        true
    }
}
