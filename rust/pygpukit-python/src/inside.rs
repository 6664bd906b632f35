//! Threads inside native code that will want the interpreter again, and the end of the process, which waits for them.
//!
//! Before Python 3.14 a thread that asks for the interpreter while that goes away is ended by unwinding its stack, and
//! our frames do not survive it. So whoever runs Python code from here, or lets go of the interpreter, is counted.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use pygpukit_core::error::{Error, Result};
use pygpukit_core::forks::Native;
use pygpukit_core::runtime;
use pygpukit_core::sched::prompt;
use pyo3::prelude::*;

use crate::errors::ToPy;
use crate::foreign::give_back_unused;

/// How long the end waits: waits of streams give up at once, but a compile or a host function takes its time.
const PATIENCE: Duration = Duration::from_secs(5);

static INSIDE: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// How often this thread is counted.
    static HERE: Cell<usize> = const { Cell::new(0) };
}

/// Counts its thread for as long as it lives.
pub struct Inside(());

impl Inside {
    /// Refused once the end has begun.
    pub fn enter() -> Result<Inside> {
        INSIDE.fetch_add(1, Ordering::SeqCst);
        HERE.set(HERE.get() + 1);
        let inside = Inside(());
        if runtime::is_exiting() { Err(Error::ShuttingDown) } else { Ok(inside) }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.fetch_sub(1, Ordering::SeqCst);
        HERE.set(HERE.get() - 1);
    }
}

/// In a forked child: of all threads only this one is there.
pub fn forget_threads() {
    INSIDE.store(HERE.get(), Ordering::SeqCst);
}

thread_local! {
    /// Has this thread let go of the interpreter?
    static AWAY: Cell<bool> = const { Cell::new(false) };
}

/// Has this thread let go of the interpreter, or must it not ask for it?
#[inline]
pub fn is_away() -> bool {
    AWAY.get()
}

/// Marks its thread as one that does not hold the interpreter.
struct Away {
    before: bool,
    _native: Native,
}

impl Away {
    fn new() -> Away {
        prompt::released();
        Away { before: AWAY.replace(true), _native: Native::enter() }
    }
}

impl Drop for Away {
    fn drop(&mut self) {
        AWAY.set(self.before);
    }
}

thread_local! {
    /// Does this thread do something for a caller whose locks may be in the way of whoever has the interpreter?
    static APART: Cell<bool> = const { Cell::new(false) };
}

/// Never asks for the interpreter while it lives: signals wait, and what blocks blocks.
pub struct Apart {
    _away: Away,
    before: bool,
}

impl Apart {
    pub fn enter() -> Apart {
        Apart { _away: Away::new(), before: APART.replace(true) }
    }

    pub fn is_here() -> bool {
        APART.get()
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        APART.set(self.before);
    }
}

/// Run something that takes a while without holding the interpreter.
pub fn detached<T: Send>(py: Python<'_>, run: impl FnOnce() -> Result<T> + Send) -> PyResult<T> {
    let _inside = Inside::enter().py()?;
    let done = py.detach(|| {
        let _away = Away::new();
        let done = run();
        prompt::coming_back();
        done
    });
    give_back_unused();
    done.py()
}

/// The same for what always ends soon, and where the process may end meanwhile.
pub fn released<T: Send>(py: Python<'_>, run: impl FnOnce() -> T + Send) -> T {
    py.detach(|| {
        let _away = Away::new();
        run()
    })
}

/// Wait without the interpreter for something that no device has a part in. A fork meanwhile does no harm.
pub fn detached_from_devices<T: Send>(py: Python<'_>, run: impl FnOnce() -> Result<T> + Send) -> PyResult<T> {
    let _inside = Inside::enter().py()?;
    py.detach(|| {
        let _away = Away::new();
        let _no_lock_of_a_device = Native::leave();
        run()
    })
    .py()
}

/// Hold the interpreter for a moment, wherever the thread is.
pub fn attached<T>(run: impl FnOnce(Python<'_>) -> T) -> T {
    let away = AWAY.replace(false);
    let _python = Native::leave();
    if away {
        prompt::coming_back();
    }
    let result = Python::attach(run);
    if away {
        prompt::released();
    }
    AWAY.set(away);
    result
}

/// Something that may wait, deep inside a call that holds the interpreter or does not.
pub fn blocking(function: &mut dyn FnMut() -> Result<()>) -> Result<()> {
    struct Here<'a>(&'a mut dyn FnMut() -> Result<()>);
    // SAFETY: what is detached runs on this thread.
    unsafe impl Send for Here<'_> {}
    impl Here<'_> {
        fn run(self) -> Result<()> {
            (self.0)()
        }
    }
    let _inside = Inside::enter()?;
    let here = Here(function);
    if AWAY.get() {
        // Asking for the interpreter only to let go of it would wait for whoever has it.
        return here.run();
    }
    Python::attach(|py| {
        py.detach(move || {
            let _away = Away::new();
            let done = here.run();
            prompt::coming_back();
            done
        })
    })
}

/// Wait until no thread is inside.
pub fn wait(py: Python<'_>) {
    py.detach(|| {
        let start = Instant::now();
        while INSIDE.load(Ordering::SeqCst) > 0 && start.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
}
