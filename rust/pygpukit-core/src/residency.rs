//! Keeping memory on the device while work that uses it is submitted.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::command::Access;
use crate::error::Result;
use crate::exec::ExecCtx;
use crate::memory::{Segment, Storage};
use crate::runtime;

/// Segments that stay where they are as long as this lives.
#[derive(Default)]
pub(crate) struct Held<'a>(SmallVec<[&'a Arc<Segment>; 4]>);

impl Held<'_> {
    /// The work that uses them has reached the driver.
    #[inline]
    pub fn submitted(&self, ctx: &ExecCtx) {
        if !self.0.is_empty() && ctx.state.arena.is_moving() {
            ctx.stream.note_movable(self.0.iter().map(|segment| segment.block_bytes()).sum());
        }
    }
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        for segment in &self.0 {
            segment.leave();
        }
    }
}

/// Have the memory of a submission on the device until the uses are noted. Memory that never moves costs one look.
#[inline]
pub(crate) fn hold<'a>(
    ctx: &ExecCtx,
    uses: impl Iterator<Item = (&'a Arc<Storage>, Access)> + Clone,
) -> Result<Held<'a>> {
    let movable = uses.filter(|(storage, _)| storage.is_evictable());
    hold_segments(ctx, movable.map(|(storage, access)| (storage.segment(), access.is_written())))
}

/// The same for segments, each with whether it is written.
#[inline]
pub(crate) fn hold_segments<'a>(
    ctx: &ExecCtx,
    segments: impl Iterator<Item = (&'a Arc<Segment>, bool)> + Clone,
) -> Result<Held<'a>> {
    let mut held = Held::default();
    let mut here = true;
    for (segment, _) in segments.clone() {
        here &= segment.enter();
        held.0.push(segment);
    }
    if held.0.is_empty() {
        return Ok(held);
    }
    let arena = &ctx.state.arena;
    if !here {
        ctx.state.check()?;
        runtime::blocking(&mut || arena.bring_in(&held.0, &mut runtime::wait_check))?;
    }
    let now = arena.tick();
    for (segment, writes) in segments {
        segment.touch(now, writes);
        arena.await_arrival(segment, &ctx.stream)?;
    }
    Ok(held)
}

/// Start to bring memory to the device; work that uses it waits for it there.
pub fn prefetch(ctx: &ExecCtx, storage: &Arc<Storage>) -> Result<()> {
    hold(ctx, std::iter::once((storage, Access::Read))).map(drop)
}

/// Bring memory to the device and keep it there until `Storage::unpin`.
pub fn pin(ctx: &ExecCtx, storage: &Arc<Storage>) -> Result<()> {
    let held = hold(ctx, std::iter::once((storage, Access::Read)))?;
    storage.pin();
    drop(held);
    Ok(())
}

/// A pointer to the memory leaves our sight, to be written through or not: it is on the device, and stays there, until
/// `Storage::unexport`.
pub fn export(ctx: &ExecCtx, storage: &Arc<Storage>, writes: bool) -> Result<()> {
    let access = if writes { Access::ReadWrite } else { Access::Read };
    let held = hold(ctx, std::iter::once((storage, access)))?;
    storage.export();
    drop(held);
    if storage.is_evictable() {
        // Nobody can tell the holder of the pointer to wait for what is on its way.
        let wait = &mut || ctx.state.arena.wait_arrival(storage.segment(), &mut runtime::wait_check);
        runtime::blocking(wait).inspect_err(|_| storage.unexport())?;
    }
    Ok(())
}
