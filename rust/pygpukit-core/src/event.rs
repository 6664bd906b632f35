//! Events: a point on a stream that others can wait for and time.

use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::device::{RawEvent, SharedDevice, Waited};
use crate::error::{Error, Result};
use crate::exec::ExecCtx;
use crate::graph::Recorder;
use crate::stream::{same_backend, same_device, wait_until};

#[derive(Clone)]
enum Mark {
    Never,
    Recorded,
    /// Recorded during a capture: the graph nodes it stands for.
    Captured(Arc<Recorder>, SmallVec<[usize; 4]>),
}

pub struct Event {
    device: SharedDevice,
    raw: RawEvent,
    timing: bool,
    mark: Mutex<Mark>,
}

impl Event {
    pub fn new(device: &SharedDevice, timing: bool) -> Result<Event> {
        let raw = device.event_create(timing)?;
        Ok(Event { device: device.clone(), raw, timing, mark: Mutex::new(Mark::Never) })
    }

    pub fn timing(&self) -> bool {
        self.timing
    }

    pub fn is_recorded(&self) -> bool {
        !matches!(*self.mark.lock(), Mark::Never)
    }

    /// Mark the point the context's stream has reached.
    pub fn record(&self, ctx: &ExecCtx) -> Result<()> {
        ctx.state.check()?;
        let mut mark = self.mark.lock();
        if let Some(recorder) = &ctx.recorder {
            *mark = Mark::Captured(recorder.clone(), recorder.tip(ctx.stream.id()));
            return Ok(());
        }
        if !same_device(&self.device, &ctx.state.device) {
            return Err(Error::Device("the event was made on another device than the stream it is recorded on".into()));
        }
        self.device.event_record(self.raw, ctx.stream.enter().raw())?;
        *mark = Mark::Recorded;
        Ok(())
    }

    /// Make the context's stream wait, on the device, for this event. One never recorded is no wait.
    pub fn wait_on(&self, ctx: &ExecCtx) -> Result<()> {
        ctx.state.check()?;
        match (&*self.mark.lock(), &ctx.recorder) {
            (Mark::Never, _) => Ok(()),
            (Mark::Captured(theirs, nodes), Some(ours)) if Arc::ptr_eq(theirs, ours) => {
                ours.join(ctx.stream.id(), nodes);
                Ok(())
            }
            (Mark::Captured(..), _) => Err(Error::Graph(
                "this event was recorded while a graph was captured; outside that capture it marks nothing. Record it again"
                    .to_string(),
            )),
            (Mark::Recorded, Some(_)) => Err(Error::Graph(
                "a captured stream cannot wait for an event recorded outside the capture; wait for it before the capture starts"
                    .to_string(),
            )),
            (Mark::Recorded, None) => {
                same_backend(&ctx.state.device, &self.device, "a stream", "an event")?;
                ctx.state.device.stream_wait(ctx.stream.enter().raw(), self.raw)?;
                ctx.stream.note_wait();
                Ok(())
            }
        }
    }

    fn plain(&self, what: &str) -> Result<bool> {
        match &*self.mark.lock() {
            Mark::Never => Ok(false),
            Mark::Recorded => Ok(true),
            Mark::Captured(..) => {
                Err(Error::Graph(format!("cannot {what} an event that was recorded while a graph was captured")))
            }
        }
    }

    /// Has the recorded point been passed? Asking again and again must come to an end, so work moves on meanwhile.
    pub fn query(&self) -> Result<bool> {
        if !self.plain("query")? {
            return Ok(true);
        }
        self.device.poll()?;
        self.device.event_query(self.raw)
    }

    pub fn synchronize(&self, check: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        if !self.plain("wait for")? {
            return Ok(());
        }
        let mut check = || check().inspect_err(|_| self.device.interrupt(Waited::Event(self.raw)));
        wait_until(&mut check, || {
            self.device.poll()?;
            self.device.event_query(self.raw)
        })
    }

    /// Milliseconds from this event to a later one. Both must have completed.
    pub fn elapsed_ms(&self, end: &Event) -> Result<f32> {
        for (event, which) in [(self, "first"), (end, "second")] {
            if !event.timing {
                return Err(Error::Value(format!("the {which} event was made with timing=False")));
            }
            if !event.plain("time")? {
                return Err(Error::Value(format!("the {which} event was never recorded")));
            }
            if !self.device.event_query(event.raw)? {
                return Err(Error::Value(format!(
                    "the {which} event has not completed yet; call its synchronize() first"
                )));
            }
        }
        self.device.event_elapsed_ms(self.raw, end.raw)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if !crate::runtime::exiting() {
            self.device.event_destroy(self.raw);
        }
    }
}
