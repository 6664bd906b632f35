//! Memory that crosses to and from other libraries: arrays in their memory, and arrays of ours that they use.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::registry::Extent;
use super::storage::{Storage, Until, release};
use super::uses::Uses;
use crate::device::{DevPtr, RawStream};
use crate::error::Result;
use crate::exec::ExecCtx;
use crate::runtime::DeviceState;
use crate::stream::Stream;

/// Host memory of other libraries that kernels of CPU devices may use. The same memory may be there several times.
#[derive(Default)]
struct Ranges {
    /// Imports of a range, by its start and end.
    all: BTreeMap<(DevPtr, DevPtr), usize>,
    /// No range was ever longer.
    longest: u64,
}

static RANGES: Mutex<Ranges> = Mutex::new(Ranges { all: BTreeMap::new(), longest: 0 });

/// The range an address lies in: the one that reaches furthest.
pub(crate) fn find(address: DevPtr) -> Option<(DevPtr, DevPtr)> {
    let ranges = RANGES.lock();
    let first = address.saturating_sub(ranges.longest);
    let around = ranges.all.range((first, 0)..=(address, DevPtr::MAX)).map(|(range, _)| *range);
    around.filter(|(_, end)| address < *end).max_by_key(|(_, end)| *end)
}

/// The array an address lies in; all of it counts as written.
pub(crate) fn extent(address: DevPtr) -> Option<Extent> {
    find(address).map(|(start, end)| Extent { start, bytes: end - start, written: None })
}

/// A range that is known for as long as this lives, and what keeps its memory.
struct Adopted {
    range: Option<(DevPtr, DevPtr)>,
    _owner: Arc<dyn Any + Send + Sync>,
}

impl Adopted {
    fn new(range: Option<(DevPtr, DevPtr)>, owner: Arc<dyn Any + Send + Sync>) -> Adopted {
        if let Some((start, end)) = range {
            let mut ranges = RANGES.lock();
            *ranges.all.entry((start, end)).or_default() += 1;
            ranges.longest = ranges.longest.max(end - start);
        }
        Adopted { range, _owner: owner }
    }
}

impl Drop for Adopted {
    fn drop(&mut self) {
        let Some(range) = self.range else { return };
        let mut ranges = RANGES.lock();
        if let Some(count) = ranges.all.get_mut(&range) {
            *count -= 1;
            if *count == 0 {
                ranges.all.remove(&range);
            }
        }
    }
}

/// Memory of another library as that of an array, for work of the context's device. It is neither charged nor evicted.
/// `owner` keeps it, and is dropped when the array is gone and work that was given to the device has ended. Its content
/// is there when the context's stream has passed what it was given so far.
pub fn adopt(ctx: &ExecCtx, address: DevPtr, bytes: usize, owner: Arc<dyn Any + Send + Sync>) -> Arc<Storage> {
    let range = (!ctx.state.is_cuda() && bytes > 0).then(|| (address, address + bytes as u64));
    Storage::adopted(ctx, address, bytes, Arc::new(Adopted::new(range, owner)))
}

/// Work given to the device so far that may use the memory.
fn uses(storage: &Storage) -> Uses {
    let mut uses = storage.segment().uses();
    uses.merge(&storage.pool().replays());
    uses.note(storage.home(), storage.home().seq());
    uses
}

/// Wait until work given to the device so far no longer uses the memory.
pub fn wait_unused(storage: &Storage, check: &mut dyn FnMut() -> Result<()>) -> Result<()> {
    uses(storage).iter().try_for_each(|(stream, seq)| stream.wait_passed(seq, check))
}

/// Make a stream wait, on the device, until work given to the device so far no longer uses the memory. The stream may
/// belong to another library, or be one of the driver's own (1 and 2).
pub fn order_before(ctx: &ExecCtx, storage: &Storage, stream: RawStream) -> Result<()> {
    ctx.state.check()?;
    let ours = ctx.state.streams().into_iter().find(|ours| ours.has_handle(stream));
    for (user, seq) in uses(storage).iter() {
        match &ours {
            Some(ours) => ours.wait_for(user, seq)?,
            None => user.hold_back(stream, seq)?,
        }
    }
    Ok(())
}

/// Another library gives an export back. What it has put on one of the driver's own streams (1 and 2) may still use the
/// memory, which is kept until that has ended: our streams do not wait for those. Any other stream may be gone by now.
pub fn end_export(state: &DeviceState, storage: Arc<Storage>, consumer: Option<RawStream>) {
    storage.unexport();
    let Some(stream) = consumer.filter(|stream| state.is_cuda() && matches!(stream.0, 1 | 2)) else { return };
    if state.check().is_err() {
        return;
    }
    let device = &state.device;
    let Ok(event) = device.event_create(false) else { return };
    match device.event_record(event, stream) {
        Ok(()) => release(Until::Passed(device.clone(), event), storage),
        Err(_) => device.event_destroy(event),
    }
}

/// Make the context's stream wait, on the device, for work of a stream that may belong to another library.
pub fn wait_for(ctx: &ExecCtx, stream: RawStream) -> Result<()> {
    ctx.state.check()?;
    if let Some(ours) = ctx.state.streams().into_iter().find(|ours| ours.has_handle(stream)) {
        return ctx.stream.wait_for(&ours, ours.seq());
    }
    let device = &ctx.state.device;
    let event = device.event_create(false)?;
    let entered = ctx.stream.enter();
    let waits = device.event_record(event, stream).and_then(|()| device.stream_wait(entered.raw(), event));
    drop(entered);
    device.event_destroy(event);
    waits?;
    ctx.stream.note_wait();
    Ok(())
}

/// A stream's handle in the hands of another library, which makes it wait for work of its own. It stays the same
/// meanwhile, and afterwards the wait counts as given to the stream.
pub struct Lent(Arc<Stream>);

impl Lent {
    pub fn new(stream: &Arc<Stream>) -> Lent {
        stream.hold();
        Lent(stream.clone())
    }

    pub fn handle(&self) -> RawStream {
        self.0.raw()
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.0.release();
        self.0.note_wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_found_in_the_range_that_reaches_furthest_until_the_last_import_ends() {
        // Addresses no allocation has.
        let base = 0x7300_0000_0000_0000;
        let import = |start: u64, bytes: u64| Adopted::new(Some((base + start, base + start + bytes)), Arc::new(()));
        let (whole, again, part) = (import(0, 100), import(0, 100), import(40, 100));
        assert_eq!(find(base + 50), Some((base + 40, base + 140)));
        assert_eq!(find(base + 39), Some((base, base + 100)));
        assert_eq!(find(base + 140), None);
        drop(whole);
        assert_eq!(find(base), Some((base, base + 100)));
        drop(part);
        assert_eq!(find(base + 99), Some((base, base + 100)));
        drop(again);
        assert_eq!(find(base), None);
    }
}
