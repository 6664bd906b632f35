//! Memory of other libraries that arrays lie in, and the end of it: the function that gives it back may run Python code.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use pygpukit_core::memory::release_unused;
use pygpukit_core::runtime;
use pyo3::ffi;

use crate::inside::{attached, is_away};

/// A function of another library that gives memory back, and its argument.
struct GiveBack {
    function: unsafe extern "C" fn(*mut c_void),
    argument: *mut c_void,
}

// SAFETY: DLPack allows deleters to be called by any thread; the others are called with the interpreter held.
unsafe impl Send for GiveBack {}

/// No array uses their memory any more. Storage may be dropped under locks, and by threads without the interpreter.
static ENDED: Mutex<Vec<GiveBack>> = Mutex::new(Vec::new());
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Owner of memory of another library; gives it back when it is dropped, or a little later.
pub struct Foreign {
    function: unsafe extern "C" fn(*mut c_void),
    argument: *mut c_void,
}

// SAFETY: see `GiveBack`.
unsafe impl Send for Foreign {}
// SAFETY: nothing of it can be reached by a shared reference.
unsafe impl Sync for Foreign {}

impl Foreign {
    /// `function` is called once, with the interpreter held.
    ///
    /// # Safety
    ///
    /// The call must be allowed in any thread from now on.
    pub unsafe fn new(function: unsafe extern "C" fn(*mut c_void), argument: *mut c_void) -> Foreign {
        Foreign { function, argument }
    }

    /// Keeps a Python object, whose reference it takes.
    pub fn object(object: *mut ffi::PyObject) -> Foreign {
        unsafe extern "C" fn release(object: *mut c_void) {
            // SAFETY: the reference was taken below, and the interpreter is held.
            unsafe { ffi::Py_DECREF(object.cast()) }
        }
        Foreign { function: release, argument: object.cast() }
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        if runtime::is_exiting() {
            return;
        }
        let is_first = COUNT.fetch_add(1, Ordering::AcqRel) == 0;
        ENDED.lock().push(GiveBack { function: self.function, argument: self.argument });
        if is_first {
            extern "C" fn later(_: *mut c_void) -> c_int {
                give_back();
                0
            }
            // SAFETY: any thread may ask for this, with the interpreter or without.
            unsafe { ffi::Py_AddPendingCall(Some(later), std::ptr::null_mut()) };
        }
    }
}

/// Give memory back whose arrays have ended. Called where Python code may run.
#[inline]
pub fn give_back() {
    if COUNT.load(Ordering::Acquire) > 0 && !is_away() && !runtime::is_exiting() {
        give_back_all();
    }
}

/// The same after a wait, when work that used such memory may have ended.
#[inline]
pub fn give_back_unused() {
    release_unused();
    give_back();
}

#[cold]
fn give_back_all() {
    attached(|_| {
        let (mut kind, mut value, mut trace) = (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the interpreter is held. An object may end while an exception is on its way, which stays.
        unsafe { ffi::PyErr_Fetch(&mut kind, &mut value, &mut trace) };
        loop {
            let next = ENDED.lock().pop();
            let Some(GiveBack { function, argument }) = next else { break };
            COUNT.fetch_sub(1, Ordering::AcqRel);
            // SAFETY: it was promised to be callable once, and is called without our lock.
            unsafe { function(argument) };
        }
        // SAFETY: these were fetched above.
        unsafe { ffi::PyErr_Restore(kind, value, trace) };
    });
}

/// The last field of an array: memory of another library is given back right after the array's own end.
pub struct GivesBack;

impl Drop for GivesBack {
    #[inline]
    fn drop(&mut self) {
        give_back();
    }
}
