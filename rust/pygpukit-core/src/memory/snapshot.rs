//! What an arena holds at one moment: its pools, and every segment with who holds it.

use super::arena::Arena;
use super::pool::Pool;
use super::segment::{Segment, SegmentClass, SegmentState};
use super::stats::PoolStats;

#[derive(Clone, Debug)]
pub struct PoolInfo {
    pub id: u32,
    pub parent: Option<u32>,
    pub name: String,
    pub evicting: bool,
    /// Bytes below which others take nothing from it.
    pub reserve: usize,
    pub stats: PoolStats,
}

#[derive(Clone, Debug)]
pub struct SegmentInfo {
    pub pool: u32,
    pub address: u64,
    pub bytes: usize,
    /// "array", or "slab" for small arrays of one size class.
    pub kind: &'static str,
    /// Bytes of one block, and how many of them are handed out.
    pub block_bytes: usize,
    pub live: u32,
    /// "device", "leaving" or "host".
    pub place: &'static str,
    pub evictable: bool,
    pub pinned: bool,
    pub exported: bool,
    /// Type and shape of a large array, and where it was made when that is followed.
    pub label: Option<String>,
}

impl Arena {
    /// Pools in the order they were made, and their segments by address. Other threads go on meanwhile, so the numbers
    /// of two pools need not be of the same moment.
    pub fn snapshot(&self) -> (Vec<PoolInfo>, Vec<SegmentInfo>) {
        let pools = self.pools();
        let mut segments: Vec<SegmentInfo> = pools.iter().flat_map(|pool| pool.segments()).map(|s| of(&s)).collect();
        segments.sort_by_key(|segment| segment.address);
        (pools.iter().map(|pool| info(pool)).collect(), segments)
    }
}

fn info(pool: &Pool) -> PoolInfo {
    PoolInfo {
        id: pool.id(),
        parent: pool.parent().map(|parent| parent.id()),
        name: pool.name().to_string(),
        evicting: pool.is_evicting(),
        reserve: pool.floor(),
        stats: pool.stats(),
    }
}

fn of(segment: &Segment) -> SegmentInfo {
    SegmentInfo {
        pool: segment.owner(),
        address: segment.va(),
        bytes: segment.bytes(),
        kind: if matches!(segment.class(), SegmentClass::Slab(_)) { "slab" } else { "array" },
        block_bytes: segment.block_bytes(),
        live: segment.live(),
        place: match segment.state() {
            SegmentState::Resident => "device",
            SegmentState::Leaving => "leaving",
            SegmentState::Evicted => "host",
        },
        evictable: segment.is_evictable(),
        pinned: segment.is_pinned(),
        exported: segment.is_exported(),
        label: segment.label(),
    }
}
