//! A cluster: blocks that run together, reach each other's shared memory, and meet at a barrier.
//!
//! One host thread runs all blocks of a cluster, in turns. A launch without clusters has clusters of one block.
//!
//! Addresses of shared memory: an offset names the block's own memory. `mapa` gives `rank + 1` in the bits from 24 on,
//! so that it never looks like an offset, and names the same byte for all blocks of the cluster.

use super::block::{Block, BlockOutcome};
use super::bulk::Bulk;
use super::check::Checker;
use super::counters::Counters;
use super::grid::Grid;
use crate::random::Random;

/// Most blocks of a cluster.
pub(crate) const MAX_CLUSTER: u64 = 16;

/// Where the rank is in an address of a cluster's shared memory.
pub(crate) const RANK_SHIFT: u32 = 24;

/// Instructions of a round of turns below which others may have the thread: all blocks wait for something.
const QUIET: u64 = 1024;

/// A block as the others of its cluster see it.
#[derive(Clone, Copy)]
pub(crate) struct Peer {
    memory: *mut u8,
    pub bytes: usize,
    /// Linear number in the grid.
    pub number: u64,
    ended: bool,
}

// SAFETY: the memory belongs to a block of the same cluster, which moves between threads as a whole.
unsafe impl Send for Peer {}

/// What the blocks of a cluster share. It is with the block whose turn it is.
#[derive(Default)]
pub(crate) struct ClusterState {
    /// By rank; none where the cluster is one block.
    pub peers: Vec<Peer>,
    /// Phase of the cluster's barrier, and threads that have arrived in it.
    pub phase: u32,
    pub arrived: u32,
    /// Threads that have not exited.
    pub live: u32,
    /// Copies that mbarrier objects of the cluster wait for.
    pub bulk: Vec<Bulk>,
    /// What others wrote to a block's memory, for its checker: rank, offset and bytes.
    pub written: Vec<(u32, u32, u32)>,
}

impl ClusterState {
    /// Complete the barrier when all have arrived.
    pub fn settle(&mut self) {
        if self.arrived > 0 && self.arrived >= self.live {
            self.phase = self.phase.wrapping_add(1);
            self.arrived = 0;
        }
    }

    /// Blocks of the cluster.
    pub fn size(&self) -> u32 {
        self.peers.len().max(1) as u32
    }

    /// Memory of another block; none when it has ended.
    pub fn memory(&self, rank: u32) -> Option<(*mut u8, usize)> {
        self.peers.get(rank as usize).filter(|peer| !peer.ended).map(|peer| (peer.memory, peer.bytes))
    }
}

/// Blocks that are started, run and ended together.
pub(crate) struct Cluster {
    blocks: Vec<Block>,
    state: ClusterState,
    order: Option<Random>,
}

impl Cluster {
    pub fn new(grid: &Grid, number: u64) -> Cluster {
        let size = grid.cluster_size();
        let blocks = (0..size).map(|rank| Block::new(grid, grid.block_of(number, rank), rank)).collect();
        let mut cluster = Cluster { blocks, state: ClusterState::default(), order: None };
        cluster.begin(grid, number);
        cluster
    }

    /// Make it the cluster of this number, at its start.
    pub fn restart(&mut self, grid: &Grid, number: u64) {
        for (rank, block) in self.blocks.iter_mut().enumerate() {
            block.restart(grid, grid.block_of(number, rank as u32));
        }
        self.begin(grid, number);
    }

    fn begin(&mut self, grid: &Grid, number: u64) {
        let mut peers = std::mem::take(&mut self.state.peers);
        peers.clear();
        if self.blocks.len() > 1 {
            peers.extend(self.blocks.iter_mut().map(|block| {
                let (number, bytes) = (block.shared.number, block.shared.memory.bytes);
                Peer { memory: block.shared.memory.as_mut_ptr(), bytes, number, ended: false }
            }));
        }
        let live = grid.threads() * self.blocks.len() as u32;
        self.state = ClusterState { peers, live, ..ClusterState::default() };
        self.order = if self.blocks.len() > 1 { grid.order(!number) } else { None };
    }

    /// Give a block its turn.
    fn turn(&mut self, rank: usize, grid: &Grid, budget: u64, checker: Option<&mut Checker>) -> (BlockOutcome, u64) {
        let block = &mut self.blocks[rank];
        std::mem::swap(&mut block.shared.cluster, &mut self.state);
        let result = block.run(grid, budget, checker);
        std::mem::swap(&mut block.shared.cluster, &mut self.state);
        result
    }

    /// Run for about `budget` instructions. How it ended, and how many instructions ran.
    pub fn run(&mut self, grid: &Grid, budget: u64, mut checker: Option<&mut Checker>) -> (BlockOutcome, u64) {
        let size = self.blocks.len();
        if size == 1 {
            return match self.turn(0, grid, budget, checker) {
                (BlockOutcome::Waits, count) => (BlockOutcome::Fault(self.blocks[0].deadlock(grid)), count),
                other => other,
            };
        }
        let (mut total, share) = (0, (budget / size as u64).max(1));
        loop {
            let (mut round, mut waiting) = (0, true);
            let first = self.order.as_mut().map_or(0, |order| order.below(size));
            for step in 0..size {
                let rank = (first + step) % size;
                if self.state.peers[rank].ended {
                    continue;
                }
                let (outcome, count) = self.turn(rank, grid, share, checker.as_deref_mut());
                round += count;
                match outcome {
                    BlockOutcome::Done => (self.state.peers[rank].ended, waiting) = (true, false),
                    BlockOutcome::Slice => waiting = false,
                    BlockOutcome::Waits => waiting &= count == 0,
                    BlockOutcome::Fault(fault) => return (BlockOutcome::Fault(fault), total + round),
                }
            }
            total += round;
            let Some(rank) = self.state.peers.iter().position(|peer| !peer.ended) else {
                return (BlockOutcome::Done, total);
            };
            if waiting {
                return (BlockOutcome::Fault(self.blocks[rank].deadlock(grid)), total);
            }
            if total >= budget || round < QUIET {
                return (BlockOutcome::Slice, total);
            }
        }
    }

    /// Where a thread that has not ended is, for reports: instruction, thread, block.
    pub fn somewhere(&self) -> (u32, u32, [u32; 3]) {
        let alive = |rank: &usize| self.state.peers.get(*rank).is_none_or(|peer| !peer.ended);
        let block = &self.blocks[(0..self.blocks.len()).find(alive).unwrap_or(0)];
        let (pc, thread) = block.somewhere();
        (pc, thread, block.shared.index)
    }

    pub fn counters(&self) -> impl Iterator<Item = &Counters> {
        self.blocks.iter().filter_map(|block| block.shared.counters.as_deref())
    }
}
