//! Forks of the process: what a child finds depends on where the parent's other threads were.
//!
//! A thread in native code that does not hold the interpreter may hold any lock, and so may a thread of our own that
//! works. When one of them was at work at the fork, the child refuses every use of a device: no wait for a missing
//! thread can end. A thread that was in the interpreter, or in a function that it runs, holds no lock; but work that it
//! was in the middle of never ends, so the child refuses the streams of such work alone.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::runtime;

/// How long a fork waits for other threads to leave native code. They cannot enter it meanwhile without the interpreter,
/// which the thread that forks has.
const PATIENCE: Duration = Duration::from_millis(20);

/// Threads in native code without the interpreter, and threads of our own at work.
static BUSY: AtomicUsize = AtomicUsize::new(0);

/// How often the process was forked, on the way from the first one to this.
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// The thread that forked this process.
static FORKER: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Is this thread counted?
    static HERE: Cell<bool> = const { Cell::new(false) };
}

fn here() -> usize {
    HERE.with(|here| std::ptr::from_ref(here) as usize)
}

/// While it lives its thread is in native code without the interpreter, or is not, as was said.
#[must_use]
pub struct Native {
    before: bool,
    /// The thread's own.
    _here: PhantomData<*const ()>,
}

impl Native {
    /// The interpreter was released.
    pub fn enter() -> Native {
        Native::set(true)
    }

    /// Python code runs; no lock is held.
    pub fn leave() -> Native {
        Native::set(false)
    }

    fn set(now: bool) -> Native {
        let before = HERE.replace(now);
        match (before, now) {
            (false, true) => _ = BUSY.fetch_add(1, Ordering::SeqCst),
            (true, false) => _ = BUSY.fetch_sub(1, Ordering::SeqCst),
            _ => {}
        }
        Native { before, _here: PhantomData }
    }
}

impl Drop for Native {
    fn drop(&mut self) {
        std::mem::forget(Native::set(self.before));
    }
}

/// A thread of our own is at work; it may be another than the one that says so.
#[must_use]
pub struct Working(());

impl Working {
    pub fn begin() -> Working {
        BUSY.fetch_add(1, Ordering::SeqCst);
        Working(())
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        BUSY.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The thread that does a piece of work.
#[derive(Clone, Copy, Debug, Default)]
pub struct Runner {
    generation: u64,
    thread: usize,
}

impl Runner {
    pub fn this() -> Runner {
        Runner { generation: GENERATION.load(Ordering::Relaxed), thread: here() }
    }

    /// Was it a thread of the process that this one was forked from?
    pub fn is_missing(self) -> bool {
        self.generation != GENERATION.load(Ordering::Relaxed) && self.thread != FORKER.load(Ordering::Relaxed)
    }

    /// Refuse to wait for it.
    pub fn check(self) -> Result<()> {
        if self.is_missing() { Err(in_the_middle()) } else { Ok(()) }
    }
}

#[cold]
pub(crate) fn in_the_middle() -> Error {
    Error::Forked(
        "this process was forked while another thread was in the middle of work on this stream, and that thread is not \
         here to end it. Use another stream and new arrays, fork while no other thread uses arrays, or start processes \
         with the 'spawn' method"
            .to_string(),
    )
}

#[cold]
pub(crate) fn with_locks() -> Error {
    Error::Forked(
        "this process was forked while another thread was using the device, and locks which that thread had stay locked \
         here. Fork while no other thread uses arrays, or start processes with multiprocessing's 'spawn' method"
            .to_string(),
    )
}

/// Other threads that are busy, this one not counted.
pub fn others() -> usize {
    BUSY.load(Ordering::SeqCst).saturating_sub(usize::from(HERE.get()))
}

extern "C" fn before() {
    if others() == 0 {
        return;
    }
    let start = Instant::now();
    while others() > 0 && start.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_micros(50));
    }
}

extern "C" fn in_child() {
    // Atomics only: locks and memory may be another thread's.
    if others() > 0 {
        runtime::strand();
    }
    runtime::note_fork();
    BUSY.store(usize::from(HERE.get()), Ordering::SeqCst);
    GENERATION.fetch_add(1, Ordering::SeqCst);
    FORKER.store(here(), Ordering::SeqCst);
}

/// Follow forks from now on; there is a device, and with it something to follow.
#[cfg(unix)]
pub(crate) fn watch() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    // SAFETY: the handlers run on the thread that forks; the child's touches atomics only.
    ONCE.call_once(|| unsafe {
        libc::pthread_atfork(Some(before), None, Some(in_child));
    });
}

#[cfg(not(unix))]
pub(crate) fn watch() {
    let _ = (before as extern "C" fn(), in_child as extern "C" fn());
}
