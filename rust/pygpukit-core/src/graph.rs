//! Graphs: recorded command lists.
//!
//! The list is the truth. On CUDA an executable graph is a cache of it, one per lane, built without Python; on
//! the CPU device the list itself is replayed. Memory allocated during a capture comes from a pool private to
//! the graph, or from memory that several graphs share (`memory`), whose replays are in order.

mod exchange;
mod memory;
mod scalars;

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

use crate::command::{Access, Command, Work};
use crate::device::{DevPtr, GraphNode, RawGraph};
use crate::early::{self, InFlight};
use crate::error::{Error, Result};
use crate::exec::ExecCtx;
use crate::lane::Lane;
use crate::launch::{await_birth, enter_with, mix, put_entered, reach, submit};
use crate::memory::{Segment, Storage};
use crate::residency::{Held, hold_segments};
use crate::runtime::{self, DeviceState};
use crate::stream::Stream;

use exchange::Exchanges;
pub use exchange::{ArrayParameter, Given};
pub use memory::GraphMemory;
use memory::Last;
pub use scalars::{CHUNK, SLOT, ScalarValue, Scalars};

type Nodes = SmallVec<[usize; 4]>;
type Uses = SmallVec<[(Arc<Storage>, Access); 4]>;

/// Of the kinds of work that costs are kept for.
const KIND: u64 = 4;

/// One recorded command and the earlier ones it waits for.
#[derive(Clone)]
pub struct Node {
    pub command: Command,
    pub after: Nodes,
    /// A kernel that may be launched before those have ended.
    pub early: bool,
}

#[derive(Default)]
struct Recording {
    nodes: Vec<Node>,
    /// What may run when a node has been started, by node.
    in_flight: Vec<InFlight>,
    /// What the next command of each stream waits for.
    tips: Vec<(u32, Nodes)>,
    /// Memory of the graphs replayed into this recording.
    memories: Vec<Arc<GraphMemory>>,
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

    /// A command follows these nodes. May it be started before they have ended? What is exchanged may lie anywhere.
    fn follow(&mut self, work: &Work, after: &Nodes, uses: &Uses, exchanged: &[ArrayParameter]) -> bool {
        let mut next = InFlight::default();
        let mut early = false;
        if let Work::Kernel(launch) = work {
            let is_exchanged =
                |storage: &Arc<Storage>| exchanged.iter().any(|array| Arc::ptr_eq(&array.storage, storage));
            let any = |kind: fn(Access) -> bool| uses.iter().any(|(s, access)| kind(*access) && is_exchanged(s));
            let writes = any(Access::is_written);
            let constant = any(|access| access == Access::Constant);
            let uses = || uses.iter().map(|(storage, access)| (&**storage, *access));
            // A cooperative kernel becomes a graph in the graph, whose edges are whole ones.
            early = !constant
                && !launch.attributes.cooperative
                && early::asks(&launch.kernel, &launch.attributes)
                && !after.is_empty()
                && after.iter().all(|&node| self.in_flight[node].admits(uses()));
            if early {
                after.iter().for_each(|&node| next.merge(&self.in_flight[node]));
            }
            next.add(early, uses());
            if writes {
                next.write_anywhere();
            }
        }
        self.in_flight.push(next);
        early
    }
}

/// Collects what is submitted during a capture.
pub struct Recorder {
    memory: Arc<GraphMemory>,
    /// Arrays that replays may exchange.
    parameters: Vec<ArrayParameter>,
    recording: Mutex<Recording>,
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Recorder({} nodes)", self.recording.lock().nodes.len())
    }
}

impl Recorder {
    /// `shared` is memory of other graphs that never run at the same time; without it the graph gets its own.
    pub fn new(
        ctx: &ExecCtx,
        shared: Option<Arc<GraphMemory>>,
        parameters: Vec<ArrayParameter>,
    ) -> Result<Arc<Recorder>> {
        ctx.state.check()?;
        let memory = shared.unwrap_or_else(|| GraphMemory::own(ctx));
        memory.begin_capture()?;
        Ok(Arc::new(Recorder { memory, parameters, recording: Mutex::default() }))
    }

    pub fn memory(&self) -> &Arc<GraphMemory> {
        &self.memory
    }

    /// Memory for commands of a stream that are recorded.
    pub(crate) fn allocate(
        &self,
        bytes: usize,
        stream: &Arc<Stream>,
        check: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Arc<Storage>> {
        self.memory.allocate(bytes, stream, check)
    }

    pub fn record(&self, stream: &Stream, mut command: Command) -> Result<()> {
        if let Work::Kernel(launch) = &command.work {
            launch.kernel.allow_shared(launch.shared)?;
        }
        if command.uses.iter().any(|used| self.memory.is_foreign(&used.storage)) {
            return Err(Error::Graph(
                "an array of a graph that shares this one's memory cannot be used in it: its memory is this graph's too. \
                 Copy it to an array made outside of the captures"
                    .to_string(),
            ));
        }
        let uses: Uses = command.uses.iter().map(|used| (used.storage.clone(), used.access)).collect();
        // The graph owns its memory, so its own temporaries need no reference here; without one they can be
        // reused by later commands of the same stream. Memory from elsewhere is kept alive.
        command.uses.retain(|used| used.storage.is_counters() || !self.memory.is_own(&used.storage, stream));
        let mut recording = self.recording.lock();
        if recording.closed {
            return Err(Error::Graph("the capture has ended; its context cannot be used any more".to_string()));
        }
        let index = recording.nodes.len();
        let after = std::mem::replace(recording.tip(stream.id()), SmallVec::from_slice(&[index]));
        let early = recording.follow(&command.work, &after, &uses, &self.parameters);
        recording.nodes.push(Node { command, after, early });
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

    /// Keep the memory of a graph whose commands are recorded here, for as long as they can be replayed.
    fn keep(&self, memories: &[Arc<GraphMemory>]) -> Result<()> {
        if memories.iter().any(|memory| memory.is_shared() && Arc::ptr_eq(memory, &self.memory)) {
            return Err(Error::Graph(
                "a graph cannot be replayed into one that shares its memory: each would overwrite the other's arrays"
                    .to_string(),
            ));
        }
        let mut recording = self.recording.lock();
        for memory in memories {
            if !recording.memories.iter().any(|known| Arc::ptr_eq(known, memory)) {
                recording.memories.push(memory.clone());
            }
        }
        Ok(())
    }

    /// End the capture without a graph: nothing more can be recorded.
    pub fn abandon(&self) {
        let dropped = {
            let mut recording = self.recording.lock();
            recording.closed = true;
            std::mem::take(&mut recording.nodes)
        };
        drop(dropped);
        self.memory.end_capture();
    }

    /// End the capture.
    pub fn finish(self: &Arc<Self>, state: &'static DeviceState) -> Graph {
        let mut recording = self.recording.lock();
        recording.closed = true;
        let mut memories = vec![self.memory.clone()];
        memories.append(&mut recording.memories);
        // One order for all graphs, in which turns are taken.
        memories.sort_by_key(|memory| Arc::as_ptr(memory) as usize);
        let nodes = std::mem::take(&mut recording.nodes);
        drop(recording);
        self.memory.end_capture();
        Graph {
            state,
            movable: movable(&nodes, &memories),
            memories,
            exchanges: Mutex::new(Exchanges::new(self.parameters.clone(), &nodes)),
            nodes,
            execs: Mutex::default(),
            replays: Mutex::default(),
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        // A capture that was given up must not keep others from the memory.
        if !self.recording.get_mut().closed {
            self.memory.end_capture();
        }
    }
}

/// An executable graph: its lane, which is fixed when it is built, and the addresses of exchanged arrays in it.
struct Exec {
    lane: u32,
    raw: RawGraph,
    addresses: Vec<DevPtr>,
}

/// What a replay sets.
#[derive(Default)]
pub struct Values<'a> {
    /// Numbers, and where they are.
    pub scalars: Option<(&'a Scalars, Vec<ScalarValue>)>,
    /// Arrays by the number of the parameter.
    pub arrays: Vec<(usize, Given)>,
}

/// A captured graph.
pub struct Graph {
    state: &'static DeviceState,
    /// Memory the commands use: the graph's own, and that of graphs replayed into it.
    memories: Vec<Arc<GraphMemory>>,
    nodes: Vec<Node>,
    /// Executable graphs by lane.
    execs: Mutex<Vec<Exec>>,
    /// The last replay on each stream.
    replays: Mutex<Vec<(Arc<Stream>, u64)>>,
    /// Memory that may move to the host between replays, and whether they write it.
    movable: Vec<(Arc<Segment>, bool)>,
    /// Changed in the turns of replays only.
    exchanges: Mutex<Exchanges>,
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
        let exchanges = self.exchanges.lock();
        let _held = self.hold(ctx, &exchanges)?;
        self.executable(&ctx.stream.lane(), &exchanges)
    }

    /// Have the graph's memory, and that of arrays given to it, on the device.
    fn hold<'a>(&'a self, ctx: &ExecCtx, exchanges: &'a Exchanges) -> Result<Held<'a>> {
        if self.movable.is_empty() && exchanges.is_empty() {
            return Ok(Held::default());
        }
        let given = exchanges.uses().filter(|(storage, _)| storage.is_evictable());
        let given = given.map(|(storage, written)| (storage.segment(), written));
        hold_segments(ctx, self.movable.iter().map(|(segment, writes)| (segment, *writes)).chain(given))
    }

    /// The executable graph of a lane, with the addresses of now.
    fn executable(&self, lane: &Lane, exchanges: &Exchanges) -> Result<Option<RawGraph>> {
        let mut execs = self.execs.lock();
        let now = exchanges.addresses();
        let known = execs.iter().position(|exec| exec.lane == lane.id());
        if let Some(at) = known {
            let exec = &mut execs[at];
            let changed = exchanges.changed(&exec.addresses, &now);
            let commands: Vec<(usize, Command)> =
                changed.iter().map(|&node| (node, exchanges.command(node, &self.nodes[node].command))).collect();
            let works: Vec<(usize, &Work)> = commands.iter().map(|(node, command)| (*node, &command.work)).collect();
            if works.is_empty() || self.state.device.graph_update(exec.raw, &works)? {
                exec.addresses = now;
                return Ok(Some(exec.raw));
            }
            self.state.device.graph_destroy(execs.swap_remove(at).raw);
        }
        if self.nodes.is_empty() {
            return Ok(None);
        }
        let exchanged: Vec<Option<Command>> = (0..self.nodes.len())
            .map(|node| exchanges.touches(node).then(|| exchanges.command(node, &self.nodes[node].command)))
            .collect();
        let nodes: Vec<GraphNode<'_>> = self
            .nodes
            .iter()
            .zip(&exchanged)
            .map(|(recorded, changed)| GraphNode {
                command: changed.as_ref().unwrap_or(&recorded.command),
                after: &recorded.after,
                early: recorded.early,
                changes: changed.is_some(),
            })
            .collect();
        let built = self.state.device.graph_build(&nodes, lane.raw())?;
        if let Some(raw) = built {
            execs.push(Exec { lane: lane.id(), raw, addresses: now });
        }
        Ok(built)
    }

    /// Run everything that was recorded, in stream order, on the context's stream.
    pub fn replay(&self, ctx: &ExecCtx) -> Result<()> {
        self.replay_with(ctx, Values::default())
    }

    /// Replay after setting parameters. Parameters that are not named keep their last values.
    pub fn replay_with(&self, ctx: &ExecCtx, values: Values<'_>) -> Result<()> {
        if !std::ptr::eq(ctx.state, self.state) {
            return Err(Error::Graph("the graph was captured on another device than the current one".to_string()));
        }
        ctx.state.check()?;
        let mut turns = self.turns()?;
        if let Some(recorder) = &ctx.recorder {
            recorder.keep(&self.memories)?;
            self.give(ctx, values)?;
            let exchanges = self.exchanges.lock();
            let saved = exchanges.copy_in(ctx)?;
            let done = self.submit_all(ctx, &exchanges);
            return exchanges.copy_out(ctx, saved).and(done);
        }
        for (stream, seq) in turns.iter().filter_map(|turn| turn.as_ref()) {
            ctx.stream.wait_for(stream, *seq)?;
        }
        if !self.replays.lock().iter().any(|(stream, _)| Arc::ptr_eq(stream, &ctx.stream)) {
            self.memories.iter().try_for_each(|memory| memory.await_counters(&ctx.stream))?;
        }
        self.give(ctx, values)?;
        let exchanges = self.exchanges.lock();
        let saved = exchanges.copy_in(ctx)?;
        let done = self.run(ctx, &exchanges);
        let done = exchanges.copy_out(ctx, saved).and(done);
        let seq = ctx.stream.seq();
        for turn in &mut turns {
            **turn = Some((ctx.stream.clone(), seq));
        }
        done
    }
}

impl Graph {
    /// Submit what was recorded, and note what it uses.
    fn run(&self, ctx: &ExecCtx, exchanges: &Exchanges) -> Result<()> {
        let mut held = self.hold(ctx, exchanges)?;
        for (storage, _) in exchanges.uses() {
            await_birth(ctx, storage)?;
        }
        if self.executable(&self.lane_of(ctx), exchanges)?.is_some() {
            drop(held);
            held = self.launch(ctx, exchanges)?;
        } else {
            self.submit_all(ctx, exchanges)?;
            ctx.stream.end_chain();
        }
        let seq = ctx.stream.seq();
        for (segment, _) in &self.movable {
            segment.note_use(&ctx.stream, seq);
        }
        for (storage, _) in exchanges.uses() {
            storage.note_use(&ctx.stream, seq);
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

    /// The right to replay: graphs with the same memory, and this one, run one after the other.
    fn turns(&self) -> Result<SmallVec<[MutexGuard<'_, Last>; 2]>> {
        self.memories.iter().map(|memory| memory.turn()).collect()
    }

    /// Set parameters for this replay and those after it.
    fn give(&self, ctx: &ExecCtx, values: Values<'_>) -> Result<()> {
        let mut exchanges = self.exchanges.lock();
        for (index, given) in &values.arrays {
            let Some(exchange) = exchanges.all.get(*index) else {
                return Err(Error::Graph(format!("the graph has no array parameter number {index}")));
            };
            if exchange.written && !given.writeable {
                return Err(Error::Value(
                    "the graph writes this parameter, but the array is read-only; pass x.copy()".to_string(),
                ));
            }
            if self.memories.iter().any(|memory| memory.has_part(&given.storage)) {
                return Err(Error::Graph(
                    "an array of a graph cannot be a parameter of one that shares its memory; copy it".to_string(),
                ));
            }
            reach(ctx, &given.storage)?;
        }
        let mut old = Vec::with_capacity(values.arrays.len());
        for (index, given) in values.arrays {
            old.push(std::mem::replace(&mut exchanges.all[index].given, given));
        }
        drop(exchanges);
        // Arrays that were given before may end here, without our lock.
        drop(old);
        if let Some((scalars, mut numbers)) = values.scalars {
            scalars.write(ctx, &mut numbers)?;
        }
        Ok(())
    }

    fn submit_all(&self, ctx: &ExecCtx, exchanges: &Exchanges) -> Result<()> {
        self.nodes.iter().enumerate().try_for_each(|(at, node)| {
            let mut command = exchanges.command(at, &node.command);
            if let Work::Kernel(launch) = &mut command.work
                && ctx.recorder.is_none()
            {
                // As an executable graph would start it; a recording decides anew.
                launch.attributes.programmatic = node.early;
            }
            submit(ctx, command)
        })
    }

    /// Where a replay would run now.
    fn lane_of(&self, ctx: &ExecCtx) -> Arc<Lane> {
        ctx.current_lease().map_or_else(|| ctx.stream.lane(), |lease| lease.lane())
    }

    /// Launch the executable graph of the lane that the turn is on.
    fn launch<'a>(&'a self, ctx: &ExecCtx, exchanges: &'a Exchanges) -> Result<Held<'a>> {
        loop {
            let kind = ctx.is_leased().then(|| mix(KIND, std::ptr::from_ref(self) as u64));
            let (held, entered) = enter_with(ctx, kind, || self.hold(ctx, exchanges))?;
            let lane = ctx.stream.lane();
            let now = exchanges.addresses();
            let is_ready = |exec: &&Exec| exec.lane == lane.id() && exec.addresses == now;
            let there = self.execs.lock().iter().find(is_ready).map(|exec| exec.raw);
            let Some(raw) = there else {
                // The lane has changed since: build for it outside of the stream, and come again.
                drop((held, entered));
                self.executable(&lane, exchanges)?;
                continue;
            };
            self.await_births(ctx)?;
            put_entered(ctx, entered, Work::Graph(raw))?;
            return Ok(held);
        }
    }
}

/// Memory of these commands and graphs that may move to the host.
fn movable(nodes: &[Node], memories: &[Arc<GraphMemory>]) -> Vec<(Arc<Segment>, bool)> {
    let mut found: BTreeMap<DevPtr, (Arc<Segment>, bool)> = BTreeMap::new();
    for used in nodes.iter().flat_map(|node| &node.command.uses).filter(|used| used.storage.is_evictable()) {
        let segment = used.storage.segment();
        let entry = found.entry(segment.va()).or_insert_with(|| (segment.clone(), false));
        entry.1 |= used.access.is_written();
    }
    for segment in memories.iter().flat_map(|memory| memory.segments()).filter(|segment| segment.is_evictable()) {
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
        for exec in self.execs.get_mut().drain(..) {
            self.state.device.graph_destroy(exec.raw);
        }
        // The arena keeps the memory until these replays have finished.
        for (memory, (stream, seq)) in self.memories.iter().flat_map(|m| replays.iter().map(move |r| (m, r))) {
            memory.note_use(stream, *seq);
        }
        // So does the device with what the commands own: host bytes of copies, and kernels.
        self.state.retire(std::mem::take(&mut self.nodes), replays);
    }
}
