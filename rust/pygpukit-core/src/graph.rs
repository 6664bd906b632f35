//! Graphs: recorded command lists.
//!
//! The list is the truth. On CUDA an executable graph is a cache of it, one per lane, built without Python; on
//! the CPU device the list itself is replayed. Memory allocated during a capture comes from a pool private to
//! the graph, so replays never share it with anybody.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::command::{Command, Work};
use crate::device::{DevPtr, GraphNode, RawGraph};
use crate::error::{Error, Result};
use crate::exec::ExecCtx;
use crate::lane::Lane;
use crate::launch::{await_birth, enter_with, mix, put_entered, submit};
use crate::memory::{Pool, Segment};
use crate::residency::{Held, hold_segments};
use crate::runtime::{self, DeviceState};
use crate::stream::Stream;

type Nodes = SmallVec<[usize; 4]>;

/// Of the kinds of work that costs are kept for.
const KIND: u64 = 4;

/// One recorded command and the earlier ones it waits for.
#[derive(Clone)]
pub struct Node {
    pub command: Command,
    pub after: Nodes,
}

#[derive(Default)]
struct Recording {
    nodes: Vec<Node>,
    /// What the next command of each stream waits for.
    tips: Vec<(u32, Nodes)>,
    /// Memory of the graphs replayed into this recording.
    pools: Vec<Arc<Pool>>,
    closed: bool,
}

impl Recording {
    fn tip(&mut self, stream: u32) -> &mut Nodes {
        let at = match self.tips.iter().position(|(id, _)| *id == stream) {
            Some(at) => at,
            None => {
                self.tips.push((stream, Nodes::new()));
                self.tips.len() - 1
            }
        };
        &mut self.tips[at].1
    }
}

/// Collects what is submitted during a capture.
pub struct Recorder {
    pool: Arc<Pool>,
    recording: Mutex<Recording>,
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Recorder({} nodes)", self.recording.lock().nodes.len())
    }
}

impl Recorder {
    pub fn new(ctx: &ExecCtx) -> Result<Arc<Recorder>> {
        ctx.state.check()?;
        Ok(Arc::new(Recorder { pool: Pool::private(&ctx.pool), recording: Mutex::default() }))
    }

    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    pub fn record(&self, stream: &Stream, mut command: Command) -> Result<()> {
        if let Work::Kernel(launch) = &command.work {
            launch.kernel.allow_shared(launch.shared)?;
        }
        // The graph owns its pool, so its own temporaries need no reference here; without one they can be
        // reused by later commands of the same stream. Memory from elsewhere is kept alive.
        command.uses.retain(|u| !(Arc::ptr_eq(u.storage.pool(), &self.pool) && u.storage.home().id() == stream.id()));
        let mut recording = self.recording.lock();
        if recording.closed {
            return Err(Error::Graph("the capture has ended; its context cannot be used any more".to_string()));
        }
        let index = recording.nodes.len();
        let after = std::mem::replace(recording.tip(stream.id()), SmallVec::from_slice(&[index]));
        recording.nodes.push(Node { command, after });
        Ok(())
    }

    /// The nodes a stream has reached.
    pub fn tip(&self, stream: u32) -> Nodes {
        self.recording.lock().tip(stream).clone()
    }

    /// Make a stream's next command wait for these nodes too.
    pub fn join(&self, stream: u32, nodes: &[usize]) {
        let mut recording = self.recording.lock();
        let tip = recording.tip(stream);
        for node in nodes {
            if !tip.contains(node) {
                tip.push(*node);
            }
        }
    }

    /// Keep the memory of a graph whose commands were recorded here, for as long as they can be replayed.
    fn keep(&self, pools: &[Arc<Pool>]) {
        let mut recording = self.recording.lock();
        for pool in pools {
            if !recording.pools.iter().any(|known| Arc::ptr_eq(known, pool)) {
                recording.pools.push(pool.clone());
            }
        }
    }

    /// End the capture without a graph: nothing more can be recorded.
    pub fn abandon(&self) {
        let dropped = {
            let mut recording = self.recording.lock();
            recording.closed = true;
            std::mem::take(&mut recording.nodes)
        };
        drop(dropped);
    }

    /// End the capture.
    pub fn finish(self: &Arc<Self>, state: &'static DeviceState) -> Graph {
        let mut recording = self.recording.lock();
        recording.closed = true;
        let mut pools = vec![self.pool.clone()];
        pools.append(&mut recording.pools);
        let nodes = std::mem::take(&mut recording.nodes);
        Graph {
            state,
            movable: movable(&nodes, &pools),
            pools,
            nodes,
            execs: Mutex::default(),
            replays: Mutex::default(),
        }
    }
}

/// A captured graph.
pub struct Graph {
    state: &'static DeviceState,
    /// Memory the commands use: the graph's own pool, and those of graphs replayed into it.
    pools: Vec<Arc<Pool>>,
    nodes: Vec<Node>,
    /// Executable graphs by lane: a node's lane is fixed when it is built.
    execs: Mutex<Vec<(u32, RawGraph)>>,
    /// The last replay on each stream.
    replays: Mutex<Vec<(Arc<Stream>, u64)>>,
    /// Memory that may move to the host between replays, and whether they write it.
    movable: Vec<(Arc<Segment>, bool)>,
}

impl Graph {
    pub fn num_nodes(&self) -> usize {
        self.nodes.len()
    }

    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Make the executable graph for a lane now rather than at the first replay.
    pub fn prepare(&self, ctx: &ExecCtx) -> Result<Option<RawGraph>> {
        let _held = self.hold(ctx)?;
        self.executable(&ctx.stream.lane())
    }

    /// Have the graph's memory on the device.
    fn hold(&self, ctx: &ExecCtx) -> Result<Held<'_>> {
        if self.movable.is_empty() {
            return Ok(Held::default());
        }
        hold_segments(ctx, self.movable.iter().map(|(segment, writes)| (segment, *writes)))
    }

    fn executable(&self, lane: &Lane) -> Result<Option<RawGraph>> {
        let mut execs = self.execs.lock();
        if let Some((_, raw)) = execs.iter().find(|(id, _)| *id == lane.id()) {
            return Ok(Some(*raw));
        }
        if self.nodes.is_empty() {
            return Ok(None);
        }
        let nodes: Vec<GraphNode<'_>> =
            self.nodes.iter().map(|n| GraphNode { command: &n.command, after: &n.after }).collect();
        let built = self.state.device.graph_build(&nodes, lane.raw())?;
        if let Some(raw) = built {
            execs.push((lane.id(), raw));
        }
        Ok(built)
    }

    /// Run everything that was recorded, in stream order, on the context's stream.
    pub fn replay(&self, ctx: &ExecCtx) -> Result<()> {
        if !std::ptr::eq(ctx.state, self.state) {
            return Err(Error::Graph("the graph was captured on another device than the current one".to_string()));
        }
        ctx.state.check()?;
        let mut held = Held::default();
        match &ctx.recorder {
            Some(recorder) => {
                recorder.keep(&self.pools);
                self.submit_all(ctx)?;
            }
            None => {
                held = self.hold(ctx)?;
                if self.executable(&self.lane_of(ctx))?.is_some() {
                    drop(held);
                    held = self.launch(ctx)?;
                } else {
                    self.submit_all(ctx)?;
                }
            }
        }
        let seq = ctx.stream.seq();
        for (segment, _) in &self.movable {
            segment.note_use(&ctx.stream, seq);
        }
        {
            let mut replays = self.replays.lock();
            match replays.iter_mut().find(|(s, _)| s.id() == ctx.stream.id()) {
                Some((_, last)) => *last = seq,
                None => replays.push((ctx.stream.clone(), seq)),
            }
        }
        held.submitted(ctx);
        Ok(())
    }
}

impl Graph {
    fn submit_all(&self, ctx: &ExecCtx) -> Result<()> {
        self.nodes.iter().try_for_each(|node| submit(ctx, node.command.clone()))
    }

    /// Where a replay would run now.
    fn lane_of(&self, ctx: &ExecCtx) -> Arc<Lane> {
        ctx.current_lease().map_or_else(|| ctx.stream.lane(), |lease| lease.lane())
    }

    /// Launch the executable graph of the lane that the turn is on.
    fn launch(&self, ctx: &ExecCtx) -> Result<Held<'_>> {
        loop {
            let kind = ctx.is_leased().then(|| mix(KIND, std::ptr::from_ref(self) as u64));
            let (held, entered) = enter_with(ctx, kind, || self.hold(ctx))?;
            let lane = ctx.stream.lane();
            let there = self.execs.lock().iter().find(|(id, _)| *id == lane.id()).map(|(_, raw)| *raw);
            let Some(raw) = there else {
                // The lane has changed since: build for it outside of the stream, and come again.
                drop((held, entered));
                self.executable(&lane)?;
                continue;
            };
            self.await_births(ctx)?;
            put_entered(ctx, entered, Work::Graph(raw))?;
            return Ok(held);
        }
    }
}

/// Memory of these commands and pools that may move to the host.
fn movable(nodes: &[Node], pools: &[Arc<Pool>]) -> Vec<(Arc<Segment>, bool)> {
    let mut found: BTreeMap<DevPtr, (Arc<Segment>, bool)> = BTreeMap::new();
    for used in nodes.iter().flat_map(|node| &node.command.uses).filter(|used| used.storage.is_evictable()) {
        let segment = used.storage.segment();
        let entry = found.entry(segment.va()).or_insert_with(|| (segment.clone(), false));
        entry.1 |= used.access.is_written();
    }
    for segment in pools.iter().flat_map(|pool| pool.segments()).filter(|segment| segment.is_evictable()) {
        found.insert(segment.va(), (segment, true));
    }
    found.into_values().collect()
}

impl Graph {
    /// Before the first replay on a stream: memory from elsewhere may have been recycled on its home stream, and may
    /// still be in use there by earlier work.
    fn await_births(&self, ctx: &ExecCtx) -> Result<()> {
        if self.replays.lock().iter().any(|(s, _)| Arc::ptr_eq(s, &ctx.stream)) {
            return Ok(());
        }
        for used in self.nodes.iter().flat_map(|n| &n.command.uses) {
            await_birth(ctx, &used.storage)?;
        }
        Ok(())
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if runtime::exiting() {
            return;
        }
        let replays = std::mem::take(self.replays.get_mut());
        for node in &self.nodes {
            for used in &node.command.uses {
                for (stream, seq) in &replays {
                    used.storage.note_use(stream, *seq);
                }
            }
        }
        for (_, raw) in self.execs.get_mut().drain(..) {
            self.state.device.graph_destroy(raw);
        }
        // The arena keeps the memory until these replays have finished.
        for (pool, (stream, seq)) in self.pools.iter().flat_map(|p| replays.iter().map(move |r| (p, r))) {
            pool.note_use(stream, *seq);
        }
        // So does the device with what the commands own: host bytes of copies, and kernels.
        self.state.retire(std::mem::take(&mut self.nodes), replays);
    }
}
