//! A thread that waits for a mailbox, asleep.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use super::queue::Wake;

/// One wait of one thread.
#[derive(Debug, Default)]
pub struct Parker {
    woken: Mutex<bool>,
    changed: Condvar,
}

impl Parker {
    /// Sleep until woken or until a moment; whether it was woken.
    pub fn sleep_until(&self, until: Instant) -> bool {
        let mut woken = self.woken.lock();
        while !*woken {
            if self.changed.wait_until(&mut woken, until).timed_out() {
                break;
            }
        }
        *woken
    }
}

impl Wake for Arc<Parker> {
    fn wake(self) -> bool {
        *self.woken.lock() = true;
        self.changed.notify_one();
        true
    }
}
