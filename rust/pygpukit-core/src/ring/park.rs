//! A thread that waits for a mailbox: for a moment awake, then asleep.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::queue::Wake;

/// How long a thread looks before it sleeps. An answer often comes sooner than a sleeping processor wakes.
const LOOK: Duration = Duration::from_micros(20);

/// One wait of one thread.
#[derive(Debug, Default)]
pub struct Parker {
    woken: AtomicBool,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Parker {
    /// Look for a moment without sleeping; whether it was woken. Others may have the processor meanwhile.
    pub fn look(&self) -> bool {
        let start = Instant::now();
        while !self.woken.load(Ordering::Acquire) {
            if start.elapsed() > LOOK {
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
