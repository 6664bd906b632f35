//! Tells an event loop that there is something to look at, by a file descriptor.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

/// No descriptor.
pub const NONE: i32 = -1;

pub struct Signal {
    /// Locked while it is written to, so that whoever takes it away may close it.
    descriptor: Mutex<i32>,
    /// It was written to, and nobody has looked since.
    pending: AtomicBool,
}

impl Default for Signal {
    fn default() -> Signal {
        Signal { descriptor: Mutex::new(NONE), pending: AtomicBool::new(false) }
    }
}

impl Signal {
    /// Write to this one from now on; whoever sets it looks once without being told.
    pub fn set(&self, descriptor: i32) {
        *self.descriptor.lock() = descriptor;
        self.pending.store(false, Ordering::Release);
    }

    /// The reader is about to look.
    pub fn seen(&self) {
        self.pending.swap(false, Ordering::AcqRel);
    }

    /// There is something to look at.
    pub fn give(&self) {
        if self.pending.swap(true, Ordering::AcqRel) {
            return;
        }
        let descriptor = self.descriptor.lock();
        if *descriptor == NONE {
            self.pending.store(false, Ordering::Release);
        } else {
            write(*descriptor);
        }
    }
}

#[cfg(unix)]
fn write(descriptor: i32) {
    let one = 1u64.to_le_bytes();
    loop {
        // SAFETY: eight bytes of a live local.
        let written = unsafe { libc::write(descriptor, one.as_ptr().cast(), one.len()) };
        // A descriptor that takes no more wakes its reader as it is.
        if written >= 0 || std::io::Error::last_os_error().kind() != std::io::ErrorKind::Interrupted {
            return;
        }
    }
}

#[cfg(not(unix))]
fn write(_descriptor: i32) {}
