//! Counters: small buffers that are zero when a kernel starts and that it leaves zero, so that no launch needs a memset.
//!
//! A kernel whose blocks count each other (the last one adds up what the others found) returns its counters to zero before it
//! ends. One buffer then serves all kernels of a stream, which run one after the other, and two streams never share one.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::command::{Access, ArgTag, Command, Fill, Use, Work};
use crate::error::{Error, Result};
use crate::exec::ExecCtx;
use crate::launch::{put_on, submit};
use crate::memory::{Pool, Storage};
use crate::residency;
use crate::stream::Stream;

/// Buffers come in powers of two from this size on.
const SMALLEST: usize = 256;

struct Buffer {
    storage: Arc<Storage>,
    /// The stream it is for, and which of a kernel's buffers of its size it is.
    stream: u32,
    which: u8,
    /// Where it was set to zero, and the number there from which on it is.
    on: Arc<Stream>,
    zeroed: u64,
}

/// The buffers of a stream, or those of a graph's streams.
#[derive(Default)]
pub(crate) struct Counters(Mutex<Vec<Buffer>>);

impl Counters {
    /// The buffer of at least this many bytes for the context's stream; made and set to zero when first asked for.
    pub fn get(
        &self,
        ctx: &ExecCtx,
        pool: &Arc<Pool>,
        bytes: usize,
        which: u8,
        check: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Arc<Storage>> {
        let size = bytes.max(SMALLEST).checked_next_power_of_two();
        let size = size.ok_or_else(|| Error::Value(format!("{bytes} bytes of counters do not fit any memory")))?;
        if let Some(known) = self.find(ctx, size, which) {
            return Ok(known);
        }
        let storage = pool.allocate_with_check(size, &ctx.stream, check)?;
        storage.set_counters();
        let fill = Work::Fill(Fill { dst: storage.ptr(), value: 0, width: 4, count: size / 4 });
        let (on, zeroed) = match &ctx.recorder {
            None => {
                let used = Use { storage: storage.clone(), access: Access::Write, tag: ArgTag::default() };
                submit(ctx, Command { work: fill, uses: [used].into_iter().collect(), cost_key: 0 })?;
                (ctx.stream.clone(), ctx.stream.seq())
            }
            Some(_) => zero_now(ctx, &storage, fill)?,
        };
        self.0.lock().push(Buffer { storage: storage.clone(), stream: ctx.stream.id(), which, on, zeroed });
        Ok(storage)
    }

    fn find(&self, ctx: &ExecCtx, size: usize, which: u8) -> Option<Arc<Storage>> {
        let buffers = self.0.lock();
        let key = (ctx.stream.id(), which, size);
        let fits = |buffer: &&Buffer| (buffer.stream, buffer.which, buffer.storage.bytes()) == key;
        buffers.iter().find(fits).map(|buffer| buffer.storage.clone())
    }

    /// Make a stream wait until all buffers have been set to zero.
    pub fn await_zero(&self, stream: &Stream) -> Result<()> {
        let marks: Vec<_> = self.0.lock().iter().map(|buffer| (buffer.on.clone(), buffer.zeroed)).collect();
        marks.iter().try_for_each(|(other, seq)| stream.wait_for(other, *seq))
    }
}

/// Run a fill while a graph is recorded, on a stream that nothing in the capture waits for.
fn zero_now(ctx: &ExecCtx, storage: &Arc<Storage>, fill: Work) -> Result<(Arc<Stream>, u64)> {
    let stream = ctx.state.stream(0)?;
    let done: Result<u64> = (|| {
        let held = residency::hold(ctx, std::iter::once((storage, Access::Write)))?;
        stream.wait_for(storage.home(), storage.born())?;
        let seq = put_on(&stream, fill)?;
        storage.note_use(&stream, seq);
        drop(held);
        Ok(seq)
    })();
    ctx.state.recycle(stream.clone());
    Ok((stream, done?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::{CpuConfig, CpuDevice};
    use crate::memory::ArenaMode;
    use crate::runtime::DeviceState;

    #[test]
    fn a_stream_keeps_its_counters_on_another_lane_and_when_it_is_handed_out_again() {
        let config = CpuConfig { total_memory: Some(1 << 28), sm_count: Some(4), ..CpuConfig::default() };
        let state = DeviceState::new(CpuDevice::new(config), ArenaMode::Vmm, false).unwrap();
        let stream = state.stream(0).unwrap();
        let ctx = ExecCtx::default_for(state).on_stream(&stream);
        let first = ctx.counters(1000, 0, &mut || Ok(())).unwrap().ptr();
        // SAFETY: the CPU device's memory is host memory, and the fill has run.
        let words = unsafe { std::slice::from_raw_parts(first as *const u32, 256) };
        assert!(words.iter().all(|word| *word == 0));
        let second = ctx.counters(1000, 1, &mut || Ok(())).unwrap().ptr();
        assert_ne!(second, first, "a kernel's second buffer of a size is another");
        assert_eq!(ctx.counters(1000, 1, &mut || Ok(())).unwrap().ptr(), second);
        let submitted = stream.seq();
        assert!(stream.try_bind(&state.lanes.get(false, &[0]).unwrap()).unwrap());
        assert_eq!(ctx.counters(1024, 0, &mut || Ok(())).unwrap().ptr(), first);
        assert!(stream.try_bind(&state.lane).unwrap());
        drop(ctx);
        state.recycle(stream.clone());
        drop(stream);
        let again = ExecCtx::default_for(state).on_stream(&state.stream(0).unwrap());
        assert_eq!(again.counters(513, 0, &mut || Ok(())).unwrap().ptr(), first);
        assert_eq!(again.stream.seq(), submitted, "nothing is filled again");
        assert_ne!(again.counters(2000, 0, &mut || Ok(())).unwrap().ptr(), first);
    }
}
