//! `SharedArena`: memory whose blocks are laid out anew for each capture of a graph.
//!
//! The blocks of two captures overlap, so the memory is as large as the largest capture needs, in whatever order they are
//! made. It is one growable buffer: addresses that were recorded stay.

use std::sync::Arc;

use parking_lot::Mutex;

use super::grow::GrowBuffer;
use super::pool::Pool;
use super::segment::Segment;
use super::size_class::{ALIGN, round_up};
use super::storage::Storage;
use crate::error::{Error, Result};
use crate::stream::Stream;

#[derive(Debug)]
pub struct SharedArena {
    buffer: GrowBuffer,
    root: Arc<Storage>,
    layout: Mutex<Layout>,
}

/// Freed in the order of one stream, and so free for that stream alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Free {
    start: usize,
    bytes: usize,
    stream: u32,
}

#[derive(Debug, Default)]
struct Layout {
    /// Number of the capture, and whether it goes on.
    capture: u64,
    open: bool,
    /// Nothing lies behind this.
    end: usize,
    /// By start.
    free: Vec<Free>,
}

impl Layout {
    /// A place for a block of a stream.
    fn place(&mut self, bytes: usize, stream: u32) -> Option<usize> {
        let fits = |(_, free): &(usize, &Free)| free.stream == stream && free.bytes >= bytes;
        let best = self.free.iter().enumerate().filter(fits).min_by_key(|(_, free)| free.bytes).map(|(at, _)| at);
        if let Some(at) = best {
            let free = &mut self.free[at];
            let start = free.start;
            (free.start, free.bytes) = (start + bytes, free.bytes - bytes);
            if free.bytes == 0 {
                self.free.remove(at);
            }
            return Some(start);
        }
        // What is free at the end becomes a part of it.
        let last = self.free.last().filter(|free| free.stream == stream && free.start + free.bytes == self.end);
        let start = last.map_or(self.end, |free| free.start);
        let end = start.checked_add(bytes)?;
        if start < self.end {
            self.free.pop();
        }
        self.end = end;
        Some(start)
    }

    fn give_back(&mut self, mut block: Free) {
        let at = self.free.partition_point(|free| free.start < block.start);
        if let Some(next) = self.free.get(at).copied()
            && next.stream == block.stream
            && block.start + block.bytes == next.start
        {
            block.bytes += next.bytes;
            self.free.remove(at);
        }
        match at.checked_sub(1).map(|before| &mut self.free[before]) {
            Some(before) if before.stream == block.stream && before.start + before.bytes == block.start => {
                before.bytes += block.bytes;
            }
            _ => self.free.insert(at, block),
        }
    }
}

impl SharedArena {
    /// Of at most `capacity` bytes, charged to a pool as it grows.
    pub fn new(pool: &Arc<Pool>, stream: &Arc<Stream>, capacity: usize) -> Result<Arc<SharedArena>> {
        let buffer = GrowBuffer::new(pool, capacity, stream, &mut || Ok(()))?;
        buffer.set_label("memory of graphs");
        let root = buffer.storage();
        Ok(Arc::new(SharedArena { buffer, root, layout: Mutex::default() }))
    }

    /// Bytes of memory it has.
    pub fn bytes(&self) -> usize {
        self.buffer.bytes()
    }

    pub fn segment(&self) -> Arc<Segment> {
        self.root.segment().clone()
    }

    pub fn note_use(&self, stream: &Arc<Stream>, seq: u64) {
        self.root.note_use(stream, seq);
    }

    /// Lay blocks out from the start again. False: another capture does that now.
    pub fn begin(&self) -> bool {
        let mut layout = self.layout.lock();
        if layout.open {
            return false;
        }
        *layout = Layout { capture: layout.capture + 1, open: true, ..Layout::default() };
        true
    }

    pub fn end(&self) {
        self.layout.lock().open = false;
    }

    pub fn allocate(
        self: &Arc<Self>,
        bytes: usize,
        stream: &Arc<Stream>,
        check: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Arc<Storage>> {
        let too_large = || Error::Value(format!("{bytes} bytes do not fit any memory"));
        let rounded = round_up(bytes, ALIGN).ok_or_else(too_large)?;
        let (start, capture, end) = {
            let mut layout = self.layout.lock();
            let start = layout.place(rounded, stream.id()).ok_or_else(too_large)?;
            (start, layout.capture, start + rounded)
        };
        let part = Part { arena: self.clone(), capture, block: Free { start, bytes: rounded, stream: stream.id() } };
        if end > self.buffer.bytes() {
            self.buffer.ensure(end, check)?;
        }
        Ok(Storage::part_of(&self.root, start, bytes, part))
    }
}

/// A block of the arena, and the capture it belongs to.
#[derive(Debug)]
pub struct Part {
    arena: Arc<SharedArena>,
    capture: u64,
    block: Free,
}

impl Part {
    pub fn arena(&self) -> &Arc<SharedArena> {
        &self.arena
    }

    /// The stream in whose recorded order it is used.
    pub fn stream(&self) -> u32 {
        self.block.stream
    }

    /// Does it belong to the last capture? Those of earlier ones have others laid over them.
    pub fn is_current(&self) -> bool {
        self.arena.layout.lock().capture == self.capture
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let mut layout = self.arena.layout.lock();
        if layout.open && layout.capture == self.capture {
            layout.give_back(self.block);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn blocks_never_overlap_and_freed_ones_serve_their_stream_only() {
        let mut random = Random::new(11);
        for _ in 0..200 {
            let mut layout = Layout::default();
            let mut live: Vec<Free> = Vec::new();
            let mut owner: Vec<Option<u32>> = Vec::new();
            for _ in 0..100 {
                if random.below(3) == 0 && !live.is_empty() {
                    layout.give_back(live.swap_remove(random.below(live.len())));
                    continue;
                }
                let (bytes, stream) = (1 + random.below(9), random.below(3) as u32);
                let start = layout.place(bytes, stream).unwrap();
                owner.resize(owner.len().max(start + bytes), None);
                for cell in &mut owner[start..start + bytes] {
                    assert!(cell.is_none_or(|of| of == stream), "memory of another stream");
                    *cell = Some(stream);
                }
                let block = Free { start, bytes, stream };
                let apart = |other: &Free| other.start + other.bytes <= start || start + bytes <= other.start;
                assert!(live.iter().all(apart), "{block:?} overlaps {live:?}");
                live.push(block);
            }
            live.drain(..).for_each(|block| layout.give_back(block));
            let total: usize = layout.free.iter().map(|free| free.bytes).sum();
            assert_eq!(total, layout.end, "everything is free at the end");
            let merged = layout.free.windows(2).all(|pair| pair[0].stream != pair[1].stream);
            assert!(merged, "neighbours of one stream are one: {:?}", layout.free);
        }
    }

    #[test]
    fn a_chain_of_temporaries_needs_two_of_them() {
        let mut layout = Layout::default();
        let mut last: Option<Free> = None;
        for i in 0..50 {
            let bytes = 100 + i % 3;
            let block = Free { start: layout.place(bytes, 1).unwrap(), bytes, stream: 1 };
            last.replace(block).into_iter().for_each(|old| layout.give_back(old));
        }
        assert!(layout.end <= 400, "{}", layout.end);
    }
}
