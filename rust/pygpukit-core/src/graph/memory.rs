//! Memory of graphs: of one graph alone, or of several that never run at the same time.
//!
//! Graphs that share memory lay out their arrays over each other, each as if the memory were its own. Their replays are in
//! order, whatever streams they are on, so that none overwrites what another one still works with.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use crate::counters::Counters;
use crate::error::{Error, Result};
use crate::exec::ExecCtx;
use crate::memory::{ArenaMode, Pool, Segment, SharedArena, Storage};
use crate::runtime;
use crate::stream::Stream;

/// The last replay: on a stream, with a number there.
pub(super) type Last = Option<(Arc<Stream>, u64)>;

/// How often a thread that waits for another one's replay looks for signals.
const CHECK: Duration = Duration::from_millis(5);

pub struct GraphMemory {
    /// Of one graph: all its arrays. Shared: what is not laid out anew for each graph.
    pool: Arc<Pool>,
    arena: Option<Arc<SharedArena>>,
    /// Held while a replay is submitted.
    last: Mutex<Last>,
    counters: Counters,
}

impl fmt::Debug for GraphMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GraphMemory({:?}, {} bytes shared)", self.pool, self.shared_bytes())
    }
}

impl GraphMemory {
    /// The memory of one graph, charged to the context's pool.
    pub(super) fn own(ctx: &ExecCtx) -> Arc<GraphMemory> {
        GraphMemory::over(ctx, None)
    }

    /// Memory for graphs that never run at the same time. Where memory cannot be mapped piece by piece (PYGPUKIT_POOL=none)
    /// their replays are in order, but their arrays do not overlap.
    pub fn shared(ctx: &ExecCtx) -> Result<Arc<GraphMemory>> {
        ctx.state.check()?;
        let arena = match ctx.state.arena.mode() {
            ArenaMode::Vmm => Some(SharedArena::new(&ctx.pool, &ctx.stream, ctx.state.device.props().total_memory)?),
            _ => None,
        };
        Ok(GraphMemory::over(ctx, arena))
    }

    fn over(ctx: &ExecCtx, arena: Option<Arc<SharedArena>>) -> Arc<GraphMemory> {
        let pool = Pool::private(&ctx.pool);
        Arc::new(GraphMemory { pool, arena, last: Mutex::default(), counters: Counters::default() })
    }

    /// Bytes of the device that the graphs share: as much as the largest of them needs.
    pub fn shared_bytes(&self) -> usize {
        self.arena.as_ref().map_or(0, |arena| arena.bytes())
    }

    pub(super) fn begin_capture(&self) -> Result<()> {
        match &self.arena {
            Some(arena) if !arena.begin() => Err(Error::Graph(
                "another graph with the same memory is being captured; end that capture first".to_string(),
            )),
            _ => Ok(()),
        }
    }

    pub(super) fn end_capture(&self) {
        if let Some(arena) = &self.arena {
            arena.end();
        }
    }

    pub(super) fn allocate(
        &self,
        bytes: usize,
        stream: &Arc<Stream>,
        check: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Arc<Storage>> {
        match &self.arena {
            Some(arena) if bytes > 0 => arena.allocate(bytes, stream, check),
            _ => self.pool.allocate_with_check(bytes, stream, check),
        }
    }

    /// See `ExecCtx::counters`.
    pub(crate) fn counters(
        &self,
        ctx: &ExecCtx,
        bytes: usize,
        which: u8,
        check: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Arc<Storage>> {
        self.counters.get(ctx, &self.pool, bytes, which, check)
    }

    pub(super) fn await_counters(&self, stream: &Stream) -> Result<()> {
        self.counters.await_zero(stream)
    }

    /// Does the recording's own order on this stream say when the memory is used again?
    pub(super) fn is_own(&self, storage: &Storage, stream: &Stream) -> bool {
        let Some(part) = storage.part() else {
            return Arc::ptr_eq(storage.pool(), &self.pool) && storage.home().id() == stream.id();
        };
        part.is_current() && part.stream() == stream.id() && self.has_part(storage)
    }

    /// Is it an array of another graph with the same memory, or of an earlier capture?
    pub(super) fn is_foreign(&self, storage: &Storage) -> bool {
        self.has_part(storage) && storage.part().is_some_and(|part| !part.is_current())
    }

    pub(super) fn has_part(&self, storage: &Storage) -> bool {
        let (Some(arena), Some(part)) = (&self.arena, storage.part()) else { return false };
        Arc::ptr_eq(part.arena(), arena)
    }

    pub(super) fn is_shared(&self) -> bool {
        self.arena.is_some()
    }

    pub(super) fn segments(&self) -> Vec<Arc<Segment>> {
        let mut segments = self.pool.segments();
        segments.extend(self.arena.as_ref().map(|arena| arena.segment()));
        segments
    }

    /// Replays up to this number on a stream use it.
    pub(super) fn note_use(&self, stream: &Arc<Stream>, seq: u64) {
        self.pool.note_use(stream, seq);
        if let Some(arena) = &self.arena {
            arena.note_use(stream, seq);
        }
    }

    /// The right to submit a replay. What waits for it holds no lock of ours and no interpreter.
    pub(super) fn turn(&self) -> Result<MutexGuard<'_, Last>> {
        if let Some(turn) = self.last.try_lock() {
            return Ok(turn);
        }
        let mut turn = None;
        runtime::blocking(&mut || {
            while turn.is_none() {
                turn = self.last.try_lock_for(CHECK);
                runtime::wait_check()?;
            }
            Ok(())
        })?;
        turn.ok_or_else(|| Error::Graph("the wait for another replay was given up".to_string()))
    }
}
