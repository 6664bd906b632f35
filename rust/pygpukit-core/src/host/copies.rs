//! Copies as the array API makes them: complete as far as the caller can see when they return.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::pinned::PinnedBlock;
use super::staging::engine;
use super::transfer::{Direction, HostSide, Keep, Priority, Request, Transfer, Until};
use crate::command::{Access, Command, Copy, CopyKind, Use, Work};
use crate::device::DevPtr;
use crate::error::{Error, Result};
use crate::exec::ExecCtx;
use crate::launch::submit;
use crate::stream::wait_until;

/// Copies up to this size go through one block, on the caller's own stream.
pub const SMALL: usize = 256 << 10;

/// Blocks of small uploads that have not been read yet: more are not left behind.
const MOST_WAITING: usize = 32 << 20;

/// Small copies are packed into blocks of this size.
const PACK: usize = 1 << 20;

type Check<'a> = &'a mut dyn FnMut() -> Result<()>;

/// Bytes of an array, and of the host.
pub struct Pair {
    pub device: DevPtr,
    pub used: Use,
    pub host: *mut u8,
    pub bytes: usize,
}

// SAFETY: a pointer for the thread that makes the copy; the caller holds what it points to.
unsafe impl Send for Pair {}
// SAFETY: as above; nothing is changed through a shared one.
unsafe impl Sync for Pair {}

impl Pair {
    fn command(&self, direction: Direction, host: *const u8, keep: Option<Arc<Vec<u8>>>) -> Command {
        copy(direction, self.device, host, self.bytes, smallvec![self.used.clone()], keep)
    }
}

fn copy(
    direction: Direction,
    device: DevPtr,
    host: *const u8,
    bytes: usize,
    uses: SmallVec<[Use; 4]>,
    keep: Option<Arc<Vec<u8>>>,
) -> Command {
    let (kind, dst, src) = match direction {
        Direction::Upload => (CopyKind::HostToDevice, device, host as u64),
        Direction::Download => (CopyKind::DeviceToHost, host as u64, device),
    };
    let keep = keep.map(|bytes| bytes as Arc<dyn std::any::Any + Send + Sync>);
    Command { work: Work::Copy(Copy { kind, dst, src, bytes, keep }), uses, cost_key: 0 }
}

/// Does a copy of this size go through the engine, which may take a while and needs its memory kept?
pub fn is_large(ctx: &ExecCtx, bytes: usize) -> bool {
    bytes > SMALL && ctx.recorder.is_none()
}

/// Copy to the device, ordered on the context's stream. When it returns the host's bytes may change.
///
/// # Safety
/// `pair.host` is readable for `pair.bytes` until this returns, and as long as `keep` lives.
pub unsafe fn upload(ctx: &ExecCtx, pair: &Pair, keep: Option<Keep>, check: Check<'_>) -> Result<()> {
    if pair.bytes == 0 {
        return Ok(());
    }
    if ctx.recorder.is_some() {
        // SAFETY: the caller's contract.
        return unsafe { upload_owned(ctx, pair) };
    }
    if pair.bytes <= SMALL {
        // SAFETY: the caller's contract.
        return unsafe { upload_small(ctx, pair, check) };
    }
    let transfer = start(ctx, pair, Direction::Upload, keep)?;
    transfer.wait(Until::HostDone, None, check).inspect_err(|error| give_up(ctx, &transfer, error))?;
    let (stream, seq) = transfer.last_copy();
    ctx.stream.wait_for(&stream, seq)
}

/// Through bytes that the command owns: a recorded one outlives this call.
unsafe fn upload_owned(ctx: &ExecCtx, pair: &Pair) -> Result<()> {
    // SAFETY: the caller's contract.
    let bytes = Arc::new(unsafe { std::slice::from_raw_parts(pair.host, pair.bytes) }.to_vec());
    submit(ctx, pair.command(Direction::Upload, bytes.as_ptr(), Some(bytes.clone())))
}

unsafe fn upload_small(ctx: &ExecCtx, pair: &Pair, check: Check<'_>) -> Result<()> {
    let Some(block) = small_block(ctx, pair.bytes, check)? else {
        // SAFETY: the caller's contract.
        unsafe { upload_owned_and_wait(ctx, pair, check)? };
        return Ok(());
    };
    // SAFETY: the caller's contract; the block is ours and no stream uses it.
    unsafe { std::ptr::copy_nonoverlapping(pair.host, block.ptr(), pair.bytes) };
    submit(ctx, pair.command(Direction::Upload, block.ptr(), None))?;
    block.note_use(&ctx.stream, ctx.stream.seq());
    Ok(())
}

/// Without page-locked memory. The driver promises nothing about when it has read pageable bytes: wait, where the command
/// does not own them.
unsafe fn upload_owned_and_wait(ctx: &ExecCtx, pair: &Pair, check: Check<'_>) -> Result<()> {
    if !ctx.state.is_cuda() {
        // SAFETY: the caller's contract.
        return unsafe { upload_owned(ctx, pair) };
    }
    submit(ctx, pair.command(Direction::Upload, pair.host, None))?;
    ctx.stream.wait_passed(ctx.stream.seq(), check)
}

/// A block for a small copy; None when there is no page-locked memory.
fn small_block(ctx: &ExecCtx, bytes: usize, check: Check<'_>) -> Result<Option<PinnedBlock>> {
    ctx.state.check()?;
    let pool = &ctx.state.pinned;
    if pool.waiting_at_most() > MOST_WAITING && pool.waiting()? > MOST_WAITING {
        wait_until(check, || {
            ctx.state.device.poll()?;
            Ok(pool.waiting()? <= MOST_WAITING)
        })?;
    }
    match pool.take(bytes) {
        Ok(block) => Ok(Some(block)),
        Err(error) if error.is_out_of_memory() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Copy to the host and wait for it.
///
/// # Safety
/// `pair.host` is writable for `pair.bytes` until this returns, and as long as `keep` lives.
pub unsafe fn download(ctx: &ExecCtx, pair: &Pair, keep: Option<Keep>, check: Check<'_>) -> Result<()> {
    if pair.bytes == 0 {
        return Ok(());
    }
    if ctx.recorder.is_some() {
        return Err(Error::Graph("an array cannot be copied to the host while a graph is captured".to_string()));
    }
    if pair.bytes <= SMALL {
        // SAFETY: the caller's contract.
        unsafe { download_small(ctx, pair, check)? };
    } else {
        let transfer = start(ctx, pair, Direction::Download, keep)?;
        transfer.wait(Until::Over, None, check).inspect_err(|error| give_up(ctx, &transfer, error))?;
    }
    // Reports what failed on another thread that ran the work.
    ctx.state.device.stream_query(ctx.stream.raw()).map(|_| ())
}

/// Through a block of its own: the copy stays queued when the wait fails, and must not write to the caller then.
unsafe fn download_small(ctx: &ExecCtx, pair: &Pair, check: Check<'_>) -> Result<()> {
    let block = small_block(ctx, pair.bytes, check)?;
    let plain = Arc::new(vec![0u8; if block.is_none() { pair.bytes } else { 0 }]);
    let target = block.as_ref().map_or(plain.as_ptr().cast_mut(), PinnedBlock::ptr);
    if block.is_none() && ctx.state.is_cuda() {
        // A copy to pageable memory blocks in the driver until the stream gets there: wait where Ctrl-C is heard.
        ctx.stream.synchronize(check)?;
    }
    submit(ctx, pair.command(Direction::Download, target, block.is_none().then(|| plain.clone())))?;
    let seq = ctx.stream.seq();
    if let Some(block) = &block {
        block.note_use(&ctx.stream, seq);
    }
    // Up to the copy, not until the stream is idle: other threads may keep it busy.
    ctx.stream.wait_passed(seq, check)?;
    // SAFETY: the copy has filled the bytes, and nothing writes to them any more; the caller's contract.
    unsafe { std::ptr::copy_nonoverlapping(target, pair.host, pair.bytes) };
    Ok(())
}

/// Nobody waits for this transfer any more. Kernels of the stream end when somebody wanted them to: not for want of memory.
fn give_up(ctx: &ExecCtx, transfer: &Transfer, error: &Error) {
    transfer.cancel();
    if matches!(error, Error::Host(_) | Error::ShuttingDown) {
        ctx.stream.interrupt();
    }
}

fn start(ctx: &ExecCtx, pair: &Pair, direction: Direction, keep: Option<Keep>) -> Result<Arc<Transfer>> {
    let request = Request {
        direction,
        priority: Priority::Normal,
        device: pair.device,
        bytes: pair.bytes,
        used: pair.used.clone(),
        host: HostSide::Memory(pair.host),
        after: (ctx.stream.clone(), ctx.stream.seq()),
        keep,
    };
    engine(ctx.state).start(ctx, request, true)
}

/// Copy many small pieces to the device, ordered on the context's stream: packed into few blocks, neighbours on the
/// device in one copy. When it returns the host's bytes may change.
///
/// # Safety
/// Each `host` is readable for its `bytes` until this returns, and the larger ones as long as their `keep` lives.
pub unsafe fn upload_many(ctx: &ExecCtx, pairs: &mut [(Pair, Option<Keep>)], check: Check<'_>) -> Result<()> {
    let mut at = 0;
    while at < pairs.len() {
        let mut end = at;
        let mut bytes = 0usize;
        while end < pairs.len() && pairs[end].0.bytes <= SMALL && bytes + pairs[end].0.bytes <= PACK {
            bytes += pairs[end].0.bytes;
            end += 1;
        }
        let block =
            if end > at + 1 && ctx.recorder.is_none() && bytes > 0 { small_block(ctx, bytes, check)? } else { None };
        match block {
            // SAFETY: the caller's contract.
            Some(block) => unsafe { upload_packed(ctx, &pairs[at..end], &block)? },
            None => {
                end = end.max(at + 1);
                for (pair, keep) in &mut pairs[at..end] {
                    // SAFETY: the caller's contract.
                    unsafe { upload(ctx, pair, keep.take(), check)? };
                }
            }
        }
        at = end;
    }
    Ok(())
}

unsafe fn upload_packed(ctx: &ExecCtx, pairs: &[(Pair, Option<Keep>)], block: &PinnedBlock) -> Result<()> {
    let mut packed = 0;
    for (pair, _) in pairs {
        // SAFETY: the caller's contract; the block has room for all of them.
        unsafe { std::ptr::copy_nonoverlapping(pair.host, block.ptr().add(packed), pair.bytes) };
        packed += pair.bytes;
    }
    let (mut first, mut from) = (0, 0);
    while first < pairs.len() {
        let start = pairs[first].0.device;
        let (mut bytes, mut next) = (pairs[first].0.bytes, first + 1);
        let mut uses: SmallVec<[Use; 4]> = smallvec![pairs[first].0.used.clone()];
        while next < pairs.len() && pairs[next].0.device == start + bytes as u64 {
            let (pair, _) = &pairs[next];
            if !uses.iter().any(|used| Arc::ptr_eq(&used.storage, &pair.used.storage)) {
                uses.push(Use { access: Access::Write, ..pair.used.clone() });
            }
            bytes += pair.bytes;
            next += 1;
        }
        if bytes > 0 {
            let source = block.ptr().wrapping_add(from);
            let submitted = submit(ctx, copy(Direction::Upload, start, source, bytes, uses, None));
            block.note_use(&ctx.stream, ctx.stream.seq());
            submitted?;
        }
        from += bytes;
        first = next;
    }
    Ok(())
}
