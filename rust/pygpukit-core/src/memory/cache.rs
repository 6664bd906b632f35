//! `Cache`: a pool's segments and freed blocks, by stream and size class. Guarded by the pool's lock.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::pool::Pool;
use super::segment::{Segment, SegmentClass};
use super::size_class::{CLASSES, Fit, Request, class_bytes};
use super::uses::Uses;
use crate::device::DevPtr;
use crate::error::Result;
use crate::stream::Stream;

/// A piece of a segment. It moves between the free lists and `Storage`, and takes its references along.
#[derive(Debug)]
pub(crate) struct Block {
    pub ptr: DevPtr,
    pub segment: Arc<Segment>,
    pub home: Arc<Stream>,
}

impl Block {
    #[inline]
    pub fn capacity(&self) -> usize {
        self.segment.block_bytes()
    }
}

/// A free block, and its home stream's number when it became free.
#[derive(Debug)]
struct Freed {
    block: Block,
    seq: u64,
}

/// A free block that other streams still use: first `on` must pass, then the rest.
#[derive(Debug)]
struct Waiting {
    freed: Freed,
    on: (Arc<Stream>, u64),
    rest: Uses,
}

/// Free blocks of one home stream, and blocks that wait for this stream.
#[derive(Debug)]
struct StreamCache {
    /// By class; the oldest in front, where other streams look, the newest at the back for the home stream.
    small: [VecDeque<Freed>; CLASSES],
    /// By size, smallest first.
    large: Vec<Freed>,
    waiting: VecDeque<Waiting>,
}

impl Default for StreamCache {
    fn default() -> StreamCache {
        StreamCache { small: std::array::from_fn(|_| VecDeque::new()), large: Vec::new(), waiting: VecDeque::new() }
    }
}

impl StreamCache {
    fn push(&mut self, freed: Freed) {
        match freed.block.segment.class() {
            SegmentClass::Slab(class) => self.small[class as usize].push_back(freed),
            _ => {
                let bytes = freed.block.segment.bytes();
                let at = self.large.partition_point(|other| other.block.segment.bytes() < bytes);
                self.large.insert(at, freed);
            }
        }
    }

    /// For the home stream: no question asked, the stream orders the uses.
    #[inline]
    fn take_own(&mut self, request: &Request) -> Option<Block> {
        match request.fit {
            Fit::Slab(class) => self.small[class as usize].pop_back().map(|freed| freed.block),
            Fit::Large => {
                let fitting = self.fitting(request.rounded);
                (!fitting.is_empty()).then(|| self.large.remove(fitting.start).block)
            }
            Fit::Empty => None,
        }
    }

    /// For another stream: only a block this stream is done with.
    fn take_passed(&mut self, request: &Request) -> Result<Option<Block>> {
        match request.fit {
            Fit::Slab(class) => {
                let list = &mut self.small[class as usize];
                match list.front() {
                    Some(freed) if freed.block.home.passed(freed.seq)? => Ok(list.pop_front().map(|f| f.block)),
                    _ => Ok(None),
                }
            }
            Fit::Large => {
                let fitting = self.fitting(request.rounded);
                let Some(oldest) = self.large[fitting.clone()].iter().min_by_key(|freed| freed.seq) else {
                    return Ok(None);
                };
                // One question to the driver; its answer may cover others too.
                oldest.block.home.passed(oldest.seq)?;
                let found = fitting.into_iter().find(|&i| {
                    let freed = &self.large[i];
                    freed.block.home.completed() >= freed.seq
                });
                Ok(found.map(|i| self.large.remove(i).block))
            }
            Fit::Empty => Ok(None),
        }
    }

    /// Cached large segments that may serve a request: at most an eighth of it is wasted, and nothing where a guarantee
    /// holds the memory: it promises as many bytes of arrays as it holds.
    fn fitting(&self, rounded: usize) -> std::ops::Range<usize> {
        let start = self.large.partition_point(|freed| freed.block.segment.bytes() < rounded);
        let held = self.large.get(start).is_some_and(|freed| freed.block.segment.stock().is_some());
        let most = if held { rounded } else { rounded.saturating_add(rounded / 8) };
        let end = self.large.partition_point(|freed| freed.block.segment.bytes() <= most);
        start..end
    }

    fn each_freed(&self) -> impl Iterator<Item = &Freed> {
        self.small.iter().flatten().chain(&self.large).chain(self.waiting.iter().map(|w| &w.freed))
    }

    fn retain(&mut self, keep: impl Fn(&Segment) -> bool) {
        for list in &mut self.small {
            list.retain(|freed| keep(&freed.block.segment));
        }
        self.large.retain(|freed| keep(&freed.block.segment));
        self.waiting.retain(|waiting| keep(&waiting.freed.block.segment));
    }
}

/// A slab whose end has never been handed out.
#[derive(Debug)]
struct Fresh {
    segment: Arc<Segment>,
    next: usize,
}

#[derive(Debug)]
pub(crate) struct Cache {
    /// By stream id.
    streams: Vec<StreamCache>,
    /// By class.
    fresh: [Vec<Fresh>; CLASSES],
    segments: Vec<Arc<Segment>>,
    waiting: usize,
    /// Bytes in `segments`, and those of them handed out.
    pub reserved: usize,
    pub live_bytes: usize,
    pub hits: u64,
    pub misses: u64,
    pub frees: u64,
    /// Uses of the whole pool: replays of a graph that owns it.
    pub replays: Uses,
    /// The pool itself, as long as it has live blocks: one reference for all of them.
    pub keep: Option<Arc<Pool>>,
}

impl Default for Cache {
    fn default() -> Cache {
        Cache {
            streams: Vec::new(),
            fresh: std::array::from_fn(|_| Vec::new()),
            segments: Vec::new(),
            waiting: 0,
            reserved: 0,
            live_bytes: 0,
            hits: 0,
            misses: 0,
            frees: 0,
            replays: Uses::default(),
            keep: None,
        }
    }
}

impl Cache {
    pub fn live(&self) -> u64 {
        self.hits + self.misses - self.frees
    }

    /// A block from what the stream itself has freed.
    #[inline]
    pub fn take_own(&mut self, request: &Request, stream: &Stream) -> Option<Block> {
        let block = self.streams.get_mut(stream.id() as usize)?.take_own(request)?;
        self.handed_out(&block);
        self.hits += 1;
        Some(block)
    }

    /// A block from anything else the pool holds. With `share`, blocks other streams have used count.
    pub fn take_held(&mut self, request: &Request, stream: &Arc<Stream>, share: bool) -> Result<Option<Block>> {
        let mut found = None;
        if share {
            self.settle()?;
            if let Some(block) = self.take_own(request, stream) {
                return Ok(Some(block));
            }
            for (id, cache) in self.streams.iter_mut().enumerate() {
                if id == stream.id() as usize {
                    continue;
                }
                if let Some(mut block) = cache.take_passed(request)? {
                    block.home = stream.clone();
                    found = Some(block);
                    break;
                }
            }
        }
        let found = found.or_else(|| self.carve(request, stream));
        if let Some(block) = &found {
            self.handed_out(block);
            self.hits += 1;
        }
        Ok(found)
    }

    /// Keep a new segment, and hand out its first block.
    pub fn adopt(&mut self, segment: Arc<Segment>, stream: &Arc<Stream>) -> Block {
        self.reserved += segment.bytes();
        self.segments.push(segment.clone());
        let block = Block { ptr: segment.va(), segment: segment.clone(), home: stream.clone() };
        if let SegmentClass::Slab(class) = segment.class() {
            self.fresh[class as usize].push(Fresh { next: segment.block_bytes(), segment });
        }
        self.handed_out(&block);
        self.misses += 1;
        block
    }

    /// Take a block back: to its home stream's list, or to wait for the other streams that use it.
    #[inline]
    pub fn give_back(&mut self, block: Block, mut uses: Uses, share: bool) {
        self.returned(&block);
        let seq = block.home.seq();
        let freed = Freed { block, seq };
        if share && !uses.is_empty() {
            uses.drop_completed();
        }
        match uses.pop() {
            None => self.stream(freed.block.home.id()).push(freed),
            Some(on) => self.wait(Waiting { freed, on, rest: uses }),
        }
    }

    /// A segment with one live block has another size now.
    pub fn resize(&mut self, segment: &Segment, bytes: usize) {
        self.reserved = self.reserved - segment.bytes() + bytes;
        self.live_bytes = self.live_bytes - segment.bytes() + bytes;
        segment.set_bytes(bytes);
    }

    /// Count a block as returned without keeping it.
    #[inline]
    pub fn returned(&mut self, block: &Block) {
        block.segment.block_returned();
        if block.segment.is_counted() {
            self.live_bytes -= block.capacity();
        }
        self.frees += 1;
    }

    /// Forget a segment that goes back to the device.
    pub fn forget(&mut self, segment: &Arc<Segment>) {
        if let Some(index) = self.segments.iter().position(|known| Arc::ptr_eq(known, segment)) {
            if segment.is_counted() {
                self.reserved -= segment.bytes();
            }
            self.segments.swap_remove(index);
        }
    }

    /// Take out the segments without live blocks: all of them, or those no stream needs any more.
    pub fn drain_idle(&mut self, all: bool) -> Result<Vec<(Arc<Segment>, Uses)>> {
        let mut idle: HashMap<DevPtr, Uses> = HashMap::new();
        for segment in self.segments.iter().filter(|segment| segment.live() == 0) {
            let mut uses = segment.uses();
            uses.merge(&self.replays);
            idle.insert(segment.va(), uses);
        }
        if idle.is_empty() {
            return Ok(Vec::new());
        }
        for freed in self.streams.iter().flat_map(StreamCache::each_freed) {
            if let Some(uses) = idle.get_mut(&freed.block.segment.va()) {
                uses.note(&freed.block.home, freed.seq);
            }
        }
        if !all {
            let mut failed = Ok(());
            idle.retain(|_, uses| {
                uses.passed().unwrap_or_else(|error| {
                    failed = Err(error);
                    false
                })
            });
            failed?;
        }
        let keep = |segment: &Segment| !idle.contains_key(&segment.va());
        for cache in &mut self.streams {
            cache.retain(keep);
        }
        for fresh in &mut self.fresh {
            fresh.retain(|fresh| keep(&fresh.segment));
        }
        self.waiting = self.streams.iter().map(|cache| cache.waiting.len()).sum();
        let mut drained = Vec::new();
        self.segments.retain(|segment| match idle.remove(&segment.va()) {
            Some(uses) => {
                if segment.is_counted() {
                    self.reserved -= segment.bytes();
                }
                drained.push((segment.clone(), uses));
                false
            }
            None => true,
        });
        Ok(drained)
    }

    /// Bytes of segments with live blocks that are on the device.
    pub fn held(&self) -> usize {
        let here = |segment: &&Arc<Segment>| segment.live() > 0 && segment.is_counted();
        self.segments.iter().filter(here).map(|segment| segment.bytes()).sum()
    }

    /// Bytes handed out that are on the host.
    pub fn evicted(&self) -> usize {
        self.segments.iter().filter(|segment| !segment.is_counted()).map(|segment| segment.charged()).sum()
    }

    pub fn segments(&self) -> &[Arc<Segment>] {
        &self.segments
    }

    /// The segment's memory goes, or has come back.
    pub fn count(&mut self, segment: &Segment, counted: bool) {
        let live = segment.live() as usize * segment.block_bytes();
        if counted {
            self.reserved += segment.bytes();
            self.live_bytes += live;
        } else {
            self.reserved -= segment.bytes();
            self.live_bytes -= live;
        }
        segment.set_counted(counted);
    }

    /// Note what free memory still waits for.
    pub fn note_unfinished(&self, uses: &mut Uses) {
        for cache in &self.streams {
            for freed in cache.each_freed().filter(|freed| freed.block.home.completed() < freed.seq) {
                uses.note(&freed.block.home, freed.seq);
            }
            for waiting in &cache.waiting {
                uses.note(&waiting.on.0, waiting.on.1);
                uses.merge(&waiting.rest);
            }
        }
    }

    /// Live memory on the device: each large array by itself, slabs by class.
    pub fn holders(&self, pool: &str) -> Vec<(usize, String)> {
        let mut by_class = [0usize; CLASSES];
        let mut holders = Vec::new();
        for segment in self.segments.iter().filter(|segment| segment.live() > 0 && segment.is_counted()) {
            match segment.class() {
                SegmentClass::Slab(class) => by_class[class as usize] += segment.live() as usize,
                _ => {
                    let label = segment.label().map_or_else(String::new, |label| format!("{label}, "));
                    holders.push((segment.bytes(), format!("{label}pool '{pool}'")));
                }
            }
        }
        for (class, &count) in by_class.iter().enumerate().filter(|(_, count)| **count > 0) {
            let each = crate::error::human(class_bytes(class));
            let blocks = if count == 1 { "block" } else { "blocks" };
            holders.push((count * class_bytes(class), format!("{count} {blocks} of {each}, pool '{pool}'")));
        }
        holders
    }

    #[inline]
    fn handed_out(&mut self, block: &Block) {
        block.segment.block_taken();
        if block.segment.is_counted() {
            self.live_bytes += block.capacity();
        }
    }

    fn carve(&mut self, request: &Request, stream: &Arc<Stream>) -> Option<Block> {
        let Fit::Slab(class) = request.fit else { return None };
        let slabs = &mut self.fresh[class as usize];
        loop {
            let fresh = slabs.last_mut()?;
            let size = fresh.segment.block_bytes();
            if fresh.next + size > fresh.segment.bytes() {
                slabs.pop();
                continue;
            }
            let ptr = fresh.segment.va() + fresh.next as u64;
            fresh.next += size;
            return Some(Block { ptr, segment: fresh.segment.clone(), home: stream.clone() });
        }
    }

    /// Move blocks whose other users have passed to their home lists. Each stream is asked once: its queue is
    /// nearly in order, and a block that could leave early only leaves later.
    fn settle(&mut self) -> Result<()> {
        let mut id = 0;
        while self.waiting > 0 && id < self.streams.len() {
            while let Some(first) = self.streams[id].waiting.front() {
                if !first.on.0.passed(first.on.1)? {
                    break;
                }
                let Some(mut done) = self.streams[id].waiting.pop_front() else { break };
                self.waiting -= 1;
                done.rest.drop_completed();
                match done.rest.pop() {
                    None => self.stream(done.freed.block.home.id()).push(done.freed),
                    Some(on) => self.wait(Waiting { on, ..done }),
                }
            }
            id += 1;
        }
        Ok(())
    }

    fn wait(&mut self, waiting: Waiting) {
        self.waiting += 1;
        self.stream(waiting.on.0.id()).waiting.push_back(waiting);
    }

    #[inline]
    fn stream(&mut self, id: u32) -> &mut StreamCache {
        let index = id as usize;
        if index >= self.streams.len() {
            self.streams.resize_with(index + 1, StreamCache::default);
        }
        &mut self.streams[index]
    }
}
