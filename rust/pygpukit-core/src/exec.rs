//! `ExecCtx`: where the current thread's work goes.
//!
//! `with stream`, `with pool`, a scheduled task and a capture all swap this one value. It is thread-local;
//! coroutines install it around each step, since a thread-local would leak across an await.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::error::{Error, Result};
use crate::graph::Recorder;
use crate::memory::{Pool, Storage};
use crate::runtime::DeviceState;
use crate::sched::Lease;
use crate::stream::Stream;

/// What the bits of a result may depend on, strongest promise first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Determinism {
    BatchInvariant,
    RunToRun,
    NotGuaranteed,
}

impl Determinism {
    pub const ALL: [(Determinism, &'static str); 3] = [
        (Determinism::BatchInvariant, "batch_invariant"),
        (Determinism::RunToRun, "run_to_run"),
        (Determinism::NotGuaranteed, "not_guaranteed"),
    ];

    pub fn parse(name: &str) -> Option<Determinism> {
        Determinism::ALL.iter().find(|(_, own)| *own == name).map(|(level, _)| *level)
    }

    pub fn name(self) -> &'static str {
        Determinism::ALL[self as usize].1
    }

    /// That of contexts that were not asked for another.
    #[inline]
    pub fn of_process() -> Determinism {
        Determinism::ALL[usize::from(DEFAULT_DETERMINISM.load(Ordering::Relaxed)) % 3].0
    }

    pub fn set_default(self) {
        DEFAULT_DETERMINISM.store(self as u8, Ordering::Relaxed);
    }
}

static DEFAULT_DETERMINISM: AtomicU8 = AtomicU8::new(0);

#[derive(Clone, Debug)]
pub struct ExecCtx {
    pub state: &'static DeviceState,
    pub stream: Arc<Stream>,
    pub pool: Arc<Pool>,
    pub task: Option<Arc<str>>,
    pub recorder: Option<Arc<Recorder>>,
    /// A scheduled task's. None: not limited, or as the device's other unscheduled work is.
    pub lease: Option<Arc<Lease>>,
    /// What operators must promise; None for the process's default.
    pub determinism: Option<Determinism>,
    /// Who entered it, as a number that is not reused meanwhile (an object's address): `leave` checks it.
    entered_by: usize,
    /// What `pop` goes back to. It travels with the context, so a coroutine carries its own nesting.
    previous: Option<Arc<ExecCtx>>,
}

impl ExecCtx {
    /// Work of nobody in particular on a device: its default stream and pool. What operators must promise stays as it is
    /// in this thread.
    pub fn default_for(state: &'static DeviceState) -> ExecCtx {
        ExecCtx {
            state,
            stream: state.default_stream.clone(),
            pool: state.root_pool.clone(),
            task: None,
            recorder: None,
            lease: None,
            determinism: current().and_then(|ctx| ctx.determinism),
            entered_by: 0,
            previous: None,
        }
    }

    /// Does a lease say when work of this context runs?
    #[inline]
    pub(crate) fn is_leased(&self) -> bool {
        self.lease.is_some() || self.state.is_scheduled()
    }

    /// What operators must promise in this context.
    #[inline]
    pub fn determinism(&self) -> Determinism {
        self.determinism.unwrap_or_else(Determinism::of_process)
    }

    /// The lease work of this context runs under now.
    pub fn current_lease(&self) -> Option<Arc<Lease>> {
        self.lease.clone().or_else(|| self.state.unscheduled())
    }

    /// The same context on another stream.
    pub fn on_stream(&self, stream: &Arc<Stream>) -> ExecCtx {
        ExecCtx { stream: stream.clone(), ..self.clone() }
    }

    /// The same context, recording what is submitted.
    pub fn recording(&self, recorder: &Arc<Recorder>) -> ExecCtx {
        ExecCtx { recorder: Some(recorder.clone()), ..self.clone() }
    }

    /// Does this context record, as the one that started the capture or as one entered inside it?
    pub fn records(&self, recorder: &Arc<Recorder>) -> bool {
        self.recorder.as_ref().is_some_and(|own| Arc::ptr_eq(own, recorder))
    }

    /// Was it entered inside the capture it belongs to?
    pub fn is_inside_capture(&self) -> bool {
        match (&self.recorder, &self.previous) {
            (Some(recorder), Some(previous)) => previous.records(recorder),
            _ => false,
        }
    }

    /// Memory for the current stream from the current pool. `check` runs while a full device is waited for and may
    /// end the wait with an error.
    #[inline]
    pub fn allocate(&self, bytes: usize, check: &mut dyn FnMut() -> Result<()>) -> Result<Arc<Storage>> {
        self.state.check()?;
        match &self.recorder {
            Some(recorder) => recorder.allocate(bytes, &self.stream, check),
            None => self.pool.allocate_with_check(bytes, &self.stream, check),
        }
    }

    /// Workspace of one launch: memory without a value, for the stream's next submissions. Drop it when they are submitted;
    /// what is allocated then may have the same memory.
    #[inline]
    pub fn scratch(&self, bytes: usize, check: &mut dyn FnMut() -> Result<()>) -> Result<Arc<Storage>> {
        self.allocate(bytes, check)
    }

    /// Counters of one launch: at least `bytes` bytes that are zero when its kernel starts, and that the kernel must leave
    /// zero. There is one buffer per stream, size (a power of two) and `which`, or per those of a graph that is recorded: a
    /// kernel that uses several numbers them. It belongs to the launch's uses, as `Access::ReadWrite`.
    #[inline]
    pub fn counters(&self, bytes: usize, which: u8, check: &mut dyn FnMut() -> Result<()>) -> Result<Arc<Storage>> {
        self.state.check()?;
        match &self.recorder {
            Some(recorder) => recorder.memory().counters(self, bytes, which, check),
            None => self.stream.counters.get(self, &self.state.root_pool, bytes, which, check),
        }
    }
}

thread_local! {
    static CURRENT: RefCell<Option<Arc<ExecCtx>>> = const { RefCell::new(None) };
}

/// The current thread's context, or None before the first use of a device in this thread.
#[inline]
pub fn current() -> Option<Arc<ExecCtx>> {
    CURRENT.with(|c| c.borrow().clone())
}

/// Install a context and return the one it replaces.
pub fn swap(ctx: Option<Arc<ExecCtx>>) -> Option<Arc<ExecCtx>> {
    CURRENT.with(|c| std::mem::replace(&mut *c.borrow_mut(), ctx))
}

/// Enter a context; `pop` goes back to the one before.
pub fn push(mut ctx: ExecCtx) {
    CURRENT.with(|c| {
        let mut current = c.borrow_mut();
        ctx.previous = current.take();
        *current = Some(Arc::new(ctx));
    });
}

/// Enter a context on behalf of somebody, who alone can `leave` it.
pub fn enter(mut ctx: ExecCtx, by: usize) {
    ctx.entered_by = by;
    push(ctx);
}

/// Leave the context that `by` entered last. Contexts are left in the reverse order of entering.
pub fn leave(by: usize) -> Result<()> {
    if current().is_none_or(|ctx| ctx.entered_by != by) {
        return Err(Error::Graph(
            "contexts (streams, pools, devices, captures) must be left in the reverse order of entering them, by the \
             thread that entered them"
                .to_string(),
        ));
    }
    pop();
    Ok(())
}

/// Take the context that `by` entered out, wherever it is among those that were entered: what it stands for is no more.
pub fn remove(by: usize) {
    let mut above = Vec::new();
    let mut next = current();
    while let Some(ctx) = next {
        if ctx.entered_by == by {
            let again = |previous, ctx: &Arc<ExecCtx>| Some(Arc::new(ExecCtx { previous, ..ExecCtx::clone(ctx) }));
            swap(above.iter().rev().fold(ctx.previous.clone(), again));
            return;
        }
        next = ctx.previous.clone();
        above.push(ctx);
    }
}

/// Leave the context entered last.
pub fn pop() {
    CURRENT.with(|c| {
        let mut current = c.borrow_mut();
        let left = current.take();
        *current = left.as_ref().and_then(|ctx| ctx.previous.clone());
        drop(current);
        drop(left);
    });
}
