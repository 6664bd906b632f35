//! Frames of registers: where the functions that lanes of a warp are in keep theirs.
//!
//! Lanes that call the same function from the same frame share one, whenever each of them calls, so that they can join
//! in it. All other frames are apart from each other for as long as a lane is in them, or in what it called from there.

use super::code::*;
use super::fault::FaultKind;
use super::warp::{Cx, Line, fill_frame};

/// Most bytes of registers and of local memory of one warp; CUDA's limit of local memory is 512 KiB per thread.
const MAX_REGISTERS: usize = 16 << 20;
pub(crate) const MAX_LOCAL: usize = 512 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Frame {
    /// Where it lies in the register file; starts tell frames apart.
    start: u32,
    end: u32,
    /// Start of the frame it was called from.
    caller: u32,
    function: u32,
    depth: u32,
    /// Lanes that have not returned from it.
    lanes: u32,
}

/// Frames of a warp that are in use, in the order of their places. The kernel's own, at 0, is always there and not
/// among them.
#[derive(Debug, Default)]
pub(crate) struct Frames(Vec<Frame>);

impl Frames {
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Where a frame of a function lies that lanes call from the frame at `caller`; None when there is no room. The
    /// sizes are those of the two frames.
    fn enter(&mut self, (caller, size): (u32, u32), (function, bytes): (u32, u32), lanes: u32) -> Option<u32> {
        // What was called from a frame lies behind it.
        let first = self.0.partition_point(|frame| frame.start <= caller);
        for frame in &mut self.0[first..] {
            if frame.caller == caller && frame.function == function {
                frame.lanes |= lanes;
                return Some(frame.start);
            }
        }
        // The first gap, not the end of all frames: lanes that call in turns would drive each other up without end.
        let (mut index, mut start) = (first, caller.checked_add(size)?);
        while let Some(frame) = self.0.get(index).filter(|frame| frame.start.saturating_sub(start) < bytes) {
            (index, start) = (index + 1, frame.end);
        }
        let end = start.checked_add(bytes).filter(|&end| end as usize <= MAX_REGISTERS)?;
        let depth = self.depth(caller) + 1;
        self.0.insert(index, Frame { start, end, caller, function, depth, lanes });
        Some(start)
    }

    fn find(&self, start: u32) -> Option<usize> {
        match self.0.last() {
            Some(last) if last.start == start => Some(self.0.len() - 1),
            _ => self.0.binary_search_by_key(&start, |frame| frame.start).ok(),
        }
    }

    /// Lanes return from the frame at `start`.
    pub fn leave(&mut self, start: u32, lanes: u32) {
        if let Some(index) = self.find(start) {
            self.0[index].lanes &= !lanes;
            if self.0[index].lanes == 0 {
                self.0.remove(index);
            }
        }
    }

    /// Lanes end, wherever they are.
    pub fn exit(&mut self, lanes: u32) {
        if !self.0.is_empty() {
            self.0.retain_mut(|frame| {
                frame.lanes &= !lanes;
                frame.lanes != 0
            });
        }
    }

    /// How many calls lead to the frame at `start`.
    #[inline]
    pub fn depth(&self, start: u32) -> u32 {
        if start == 0 { 0 } else { self.find(start).map_or(0, |index| self.0[index].depth) }
    }
}

impl Cx<'_> {
    /// Begin a frame of the function with an index for lanes of the group: registers and local memory. Its place.
    pub fn push_frame(&mut self, index: usize, caller: &Function, mask: u32) -> Result<u32, FaultKind> {
        let grid = self.grid;
        let function = &grid.code().functions[index];
        let base = self.warp.frames.enter((self.base, caller.frame), (index as u32, function.frame), mask);
        let Some(base) = base else {
            return Err(FaultKind::StackOverflow { bytes: (MAX_REGISTERS + function.frame as usize) / LANES });
        };
        let lines = (base as usize + function.frame as usize).div_ceil(128);
        if lines > self.warp.registers.len() {
            self.warp.registers.resize(lines.next_power_of_two(), Line([0; 16]));
        }
        // SAFETY: the file has just been made large enough for both frames.
        let (local, frame) = unsafe {
            let file = self.warp.registers.as_mut_ptr().cast::<u8>();
            let row = file.add(self.base as usize + LOCAL_BASE_ROW as usize).cast::<[u32; LANES]>();
            (row.read(), file.add(base as usize))
        };
        let top = (0..LANES).filter(|l| mask >> l & 1 != 0).map(|l| local[l]).max().unwrap_or(0) as usize;
        let needed =
            top + (caller.local as usize).next_multiple_of(16) + (function.local as usize).next_multiple_of(16);
        self.reserve_local(needed)?;
        let (warp, block) = (self.warp.id, self.block.index);
        // SAFETY: the frame is inside the file.
        unsafe {
            fill_frame(frame, function.fills.iter(), mask, grid, warp, block);
            let rows = frame.add(LOCAL_BASE_ROW as usize).cast::<[u32; LANES]>();
            for (lane, value) in local.iter().enumerate() {
                if mask >> lane & 1 != 0 {
                    (*rows)[lane] = value + caller.local.next_multiple_of(16);
                }
            }
        }
        Ok(base)
    }

    /// Make local memory at least this large for every lane.
    pub fn reserve_local(&mut self, bytes: usize) -> Result<(), FaultKind> {
        if bytes <= self.warp.local_bytes {
            return Ok(());
        }
        if bytes > MAX_LOCAL {
            return Err(FaultKind::StackOverflow { bytes });
        }
        let new = bytes.next_power_of_two().min(MAX_LOCAL);
        let mut local = vec![0; new * LANES];
        let old = self.warp.local_bytes;
        for lane in 0..LANES {
            local[lane * new..lane * new + old].copy_from_slice(&self.warp.local[lane * old..(lane + 1) * old]);
        }
        self.warp.local = local;
        self.warp.local_bytes = new;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    const SIZES: [u32; 4] = [512, 4096, 640, 1920];

    /// Lanes call, return and end in a random order; each keeps a stack of its own to compare with.
    #[test]
    fn frames_in_use_are_apart() {
        let mut random = Random::new(3);
        let mut highest = 0;
        for _ in 0..40 {
            let (mut frames, mut live) = (Frames::default(), FULL);
            // Start, end and function of each frame that a lane is in, the kernel's first.
            let mut stacks = vec![vec![(0u32, 512u32, u32::MAX)]; LANES];
            for _ in 0..400 {
                let lane = random.below(LANES);
                let top = *stacks[lane].last().unwrap_or(&(0, 0, 0));
                // Some of the lanes that are where this one is.
                let same = (0..LANES).filter(|&l| live >> l & 1 != 0 && stacks[l].last() == Some(&top));
                let mask = same.filter(|_| random.below(3) > 0).fold(0, |all, l| all | 1 << l);
                if mask == 0 {
                    continue;
                }
                let lanes = (0..LANES).filter(|l| mask >> l & 1 != 0);
                match random.below(20) {
                    0 => {
                        live &= !mask;
                        frames.exit(mask);
                        lanes.for_each(|l| stacks[l].clear());
                    }
                    1..10 if top.0 > 0 => {
                        frames.leave(top.0, mask);
                        lanes.for_each(|l| stacks[l].truncate(stacks[l].len() - 1));
                    }
                    _ => {
                        let function = random.below(SIZES.len()) as u32;
                        let size = SIZES[function as usize];
                        let start = frames.enter((top.0, top.1 - top.0), (function, size), mask).expect("room");
                        lanes.for_each(|l| stacks[l].push((start, start + size, function)));
                    }
                }
                let mut all: Vec<(u32, u32, u32)> = stacks.iter().flatten().copied().collect();
                all.sort_unstable();
                all.dedup();
                assert!(all.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{all:?}");
                assert_eq!(frames.0.len(), all.iter().filter(|frame| frame.0 > 0).count());
                for stack in stacks.iter().filter(|stack| !stack.is_empty()) {
                    assert_eq!(frames.depth(stack[stack.len() - 1].0) as usize, stack.len() - 1);
                }
                highest = all.last().map_or(highest, |frame| highest.max(frame.1));
            }
        }
        assert!(highest > 20_000, "the test should nest calls: {highest}");
    }

    #[test]
    fn lanes_that_come_later_share_the_frame() {
        let mut frames = Frames::default();
        let first = frames.enter((0, 512), (1, 1024), 1);
        let other = frames.enter((0, 512), (2, 1024), 2);
        assert_eq!(frames.enter((0, 512), (1, 1024), 4), first);
        assert_ne!(first, other);
        frames.leave(first.unwrap_or(0), 1);
        assert_eq!(frames.enter((0, 512), (1, 1024), 8), first);
    }

    #[test]
    fn lanes_that_call_in_turns_need_no_more_room() {
        let mut frames = Frames::default();
        let mut old = frames.enter((0, 512), (0, 1024), 1).expect("room");
        for turn in 1..100_000 {
            let (function, lane) = (turn % 3, 1 << (turn % 2));
            let new = frames.enter((0, 512), (function, 1024), lane).expect("room");
            frames.leave(old, FULL);
            assert!(new < 4096);
            old = new;
        }
    }

    #[test]
    fn there_is_an_end() {
        let mut frames = Frames::default();
        let mut at = (0, 512);
        let mut depth = 0;
        while let Some(start) = frames.enter(at, (0, 4096), FULL) {
            (at, depth) = ((start, 4096), depth + 1);
        }
        assert_eq!(depth, (MAX_REGISTERS - 512) / 4096);
    }
}
