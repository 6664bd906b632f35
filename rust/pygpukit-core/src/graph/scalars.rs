//! Numbers that a graph reads from device memory, so that a replay can set them.

use std::sync::Arc;

use smallvec::smallvec;

use crate::command::{Access, ArgTag, Command, Copy, CopyKind, Use, Work};
use crate::error::{Error, Result};
use crate::exec::ExecCtx;
use crate::launch::submit;
use crate::memory::Storage;

/// Bytes of a chunk, and of one number in it.
pub const CHUNK: usize = 4096;
pub const SLOT: usize = 16;
const PER_CHUNK: usize = CHUNK / SLOT;

/// The numbers' memory. It grows by chunks, so that addresses already recorded stay.
#[derive(Clone, Debug, Default)]
pub struct Scalars {
    chunks: Vec<Arc<Storage>>,
}

/// A number by its place, in the bytes of its type.
pub type ScalarValue = (usize, [u8; SLOT]);

impl Scalars {
    /// Is there memory for the number at this place?
    pub fn has_room(&self, slot: usize) -> bool {
        slot / PER_CHUNK < self.chunks.len()
    }

    /// Add memory for more numbers.
    pub fn grow(&mut self, chunk: Arc<Storage>) {
        self.chunks.push(chunk);
    }

    /// Memory of a place, and where it is there.
    pub fn place(&self, slot: usize) -> (Arc<Storage>, usize) {
        (self.chunks[slot / PER_CHUNK].clone(), slot % PER_CHUNK * SLOT)
    }

    /// Set numbers, in stream order: they are written to one page-locked block, which is read by one copy for all that
    /// lie beside each other. The block of an earlier call is used again when its copies have been made, and never before,
    /// so nothing is waited for.
    pub fn write(&self, ctx: &ExecCtx, values: &mut [ScalarValue]) -> Result<()> {
        if values.is_empty() {
            return Ok(());
        }
        values.sort_unstable_by_key(|(slot, _)| *slot);
        let bytes: Vec<u8> = values.iter().flat_map(|(_, value)| *value).collect();
        // A recording reads its own bytes again at each replay.
        let (start, pinned, keep): (u64, _, Arc<dyn std::any::Any + Send + Sync>) = if ctx.recorder.is_some() {
            let bytes: Arc<[u8]> = bytes.into();
            (bytes.as_ptr() as u64, None, Arc::new(bytes))
        } else {
            let block = Arc::new(ctx.state.pinned.take(bytes.len())?);
            // SAFETY: the block has at least as many bytes, and no copy reads it yet.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), block.ptr(), bytes.len()) };
            (block.ptr() as u64, Some(block.clone()), block)
        };
        let mut at = 0;
        while at < values.len() {
            let first = values[at].0;
            let beside =
                |(i, (slot, _)): &(usize, &ScalarValue)| *slot == first + i && slot / PER_CHUNK == first / PER_CHUNK;
            let count = values[at..].iter().enumerate().take_while(beside).count();
            let Some(chunk) = self.chunks.get(first / PER_CHUNK) else {
                return Err(Error::Graph(format!("the graph has no parameter number {first}")));
            };
            let copy = Copy {
                kind: CopyKind::HostToDevice,
                dst: chunk.ptr() + (first % PER_CHUNK * SLOT) as u64,
                src: start + (at * SLOT) as u64,
                bytes: count * SLOT,
                keep: Some(keep.clone()),
            };
            let used = Use { storage: chunk.clone(), access: Access::Write, tag: ArgTag::default() };
            submit(ctx, Command { work: Work::Copy(copy), uses: smallvec![used], cost_key: 0 })?;
            at += count;
        }
        if let Some(block) = pinned {
            block.note_use(&ctx.stream, ctx.stream.seq());
        }
        Ok(())
    }
}
