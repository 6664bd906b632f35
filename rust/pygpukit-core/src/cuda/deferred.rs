//! Errors that have no caller to go to: kept, and reported by the next call that has one.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::command::HostFn;
use crate::error::{Error, Result};

#[derive(Default)]
struct Kept {
    /// The first error since the last report; later ones usually follow from it.
    error: Option<Error>,
    /// Host functions that have run. They are dropped by the next call, not in the driver's callback, where
    /// dropping the last owner of an array would call the driver.
    finished: Vec<HostFn>,
}

#[derive(Default)]
pub(super) struct Deferred {
    set: AtomicBool,
    kept: Mutex<Kept>,
}

impl Deferred {
    /// Keep the error of a call whose caller cannot receive one.
    pub fn note(&self, result: Result<()>) {
        if let Err(error) = result {
            self.kept.lock().error.get_or_insert(error);
            self.set.store(true, Ordering::Release);
        }
    }

    /// Keep a host function that has run, and what it said.
    pub fn finish(&self, function: HostFn, result: Result<()>) {
        self.kept.lock().finished.push(function);
        self.set.store(true, Ordering::Release);
        self.note(result);
    }

    /// Report what was kept, once.
    #[inline]
    pub fn report(&self) -> Result<()> {
        if self.set.load(Ordering::Acquire) { self.report_kept() } else { Ok(()) }
    }

    #[cold]
    fn report_kept(&self) -> Result<()> {
        let kept = {
            let mut kept = self.kept.lock();
            self.set.store(false, Ordering::Release);
            std::mem::take(&mut *kept)
        };
        // Dropped without the lock: an owner's end may come back here.
        drop(kept.finished);
        kept.error.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn the_first_error_is_reported_once() {
        let deferred = Deferred::default();
        assert!(deferred.report().is_ok());
        deferred.note(Ok(()));
        deferred.note(Err(Error::Value("first".into())));
        deferred.note(Err(Error::Value("second".into())));
        assert_eq!(deferred.report().unwrap_err().to_string(), "first");
        assert!(deferred.report().is_ok());
    }

    #[test]
    fn a_function_whose_end_comes_back_here_does_not_lock_up() {
        struct Comes(Arc<Deferred>);
        impl Drop for Comes {
            fn drop(&mut self) {
                self.0.note(Err(Error::Value("late".into())));
                let _ = self.0.report();
            }
        }
        let deferred = Arc::new(Deferred::default());
        let comes = Comes(deferred.clone());
        deferred.finish(
            Arc::new(move || {
                let _keep = &comes;
                Ok(())
            }),
            Err(Error::Host("said".into())),
        );
        assert_eq!(deferred.report().unwrap_err().to_string(), "said");
    }
}
