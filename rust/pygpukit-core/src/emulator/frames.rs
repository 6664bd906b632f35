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

/// A frame: the line of the register file where it starts, and how many calls lead to it, in one number that a register
/// holds. A frame has four lines or more, so the number of calls takes two bits less than the line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Base(pub u32);

const LINE: u32 = 128;
const LINE_BITS: u32 = (MAX_REGISTERS / LINE as usize).trailing_zeros();

impl Base {
    fn new(start: u32, depth: u32) -> Base {
        Base((depth << LINE_BITS) | (start / LINE))
    }

    /// Offset in the register file.
    #[inline]
    pub fn start(self) -> u32 {
        (self.0 & ((1 << LINE_BITS) - 1)) * LINE
    }

    #[inline]
    pub fn depth(self) -> u32 {
        self.0 >> LINE_BITS
    }

    #[inline]
    pub fn is_deeper_than(self, other: Base) -> bool {
        self.0 > other.0 | ((1 << LINE_BITS) - 1)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Frame {
    start: u32,
    end: u32,
    /// Start of the frame it was called from.
    caller: u32,
    function: u32,
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

    /// The frame of a function that lanes call from another frame; None when there is no room. The sizes are those of
    /// the two frames.
    fn enter(&mut self, (caller, size): (Base, u32), (function, bytes): (u32, u32), lanes: u32) -> Option<Base> {
        let (caller, depth) = (caller.start(), caller.depth() + 1);
        // What was called from a frame lies behind it, and mostly there is nothing yet.
        let mut index = match self.0.last() {
            Some(last) if last.start > caller => self.0.partition_point(|frame| frame.start <= caller),
            _ => self.0.len(),
        };
        for frame in &mut self.0[index..] {
            if frame.caller == caller && frame.function == function {
                frame.lanes |= lanes;
                return Some(Base::new(frame.start, depth));
            }
        }
        // The first gap, not the end of all frames: lanes that call in turns would drive each other up without end.
        let mut start = (caller + size).next_multiple_of(LINE);
        while let Some(frame) = self.0.get(index).filter(|frame| frame.start.saturating_sub(start) < bytes) {
            (index, start) = (index + 1, frame.end);
        }
        let end = (start + bytes).next_multiple_of(LINE);
        if end as usize > MAX_REGISTERS {
            return None;
        }
        self.0.insert(index, Frame { start, end, caller, function, lanes });
        Some(Base::new(start, depth))
    }

    /// Lanes return from a frame.
    pub fn leave(&mut self, base: Base, lanes: u32) {
        let start = base.start();
        let found = match self.0.last() {
            Some(last) if last.start == start => Ok(self.0.len() - 1),
            _ => self.0.binary_search_by_key(&start, |frame| frame.start),
        };
        if let Ok(index) = found {
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
}

impl Cx<'_> {
    /// Begin a frame of the function with an index for lanes of the group: registers and local memory.
    pub fn push_frame(&mut self, index: usize, caller: &Function, mask: u32) -> Result<Base, FaultKind> {
        let grid = self.grid;
        let function = &grid.code().functions[index];
        let base = self.warp.frames.enter((self.base, caller.frame), (index as u32, function.frame), mask);
        let Some(base) = base else {
            return Err(FaultKind::StackOverflow { bytes: (MAX_REGISTERS + function.frame as usize) / LANES });
        };
        let lines = (base.start() as usize + function.frame as usize).div_ceil(LINE as usize);
        if lines > self.warp.registers.len() {
            self.warp.registers.resize(lines.next_power_of_two(), Line([0; 16]));
        }
        // SAFETY: the file has just been made large enough for both frames.
        let (local, frame) = unsafe {
            let file = self.warp.registers.as_mut_ptr().cast::<u8>();
            let row = file.add(self.base.start() as usize + LOCAL_BASE_ROW as usize).cast::<[u32; LANES]>();
            (row.read(), file.add(base.start() as usize))
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
            // Start and end of each frame that a lane is in, and the frame; the kernel's first.
            let mut stacks = vec![vec![(0, 512, Base(0))]; LANES];
            for _ in 0..400 {
                let lane = random.below(LANES);
                let top = *stacks[lane].last().unwrap_or(&(0, 0, Base(0)));
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
                        frames.leave(top.2, mask);
                        lanes.for_each(|l| assert!(stacks[l].pop().is_some()));
                    }
                    _ => {
                        let function = random.below(SIZES.len()) as u32;
                        let size = SIZES[function as usize];
                        let base = frames.enter((top.2, top.1 - top.0), (function, size), mask).expect("room");
                        lanes.for_each(|l| stacks[l].push((base.start(), base.start() + size, base)));
                    }
                }
                let mut all: Vec<(u32, u32)> = stacks.iter().flatten().map(|frame| (frame.0, frame.1)).collect();
                all.sort_unstable();
                all.dedup();
                assert!(all.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{all:?}");
                assert_eq!(frames.0.len(), all.iter().filter(|frame| frame.0 > 0).count());
                for stack in stacks.iter().filter(|stack| !stack.is_empty()) {
                    assert_eq!(stack[stack.len() - 1].2.depth() as usize, stack.len() - 1);
                }
                highest = all.last().map_or(highest, |frame| highest.max(frame.1));
            }
        }
        assert!(highest > 20_000, "the test should nest calls: {highest}");
    }

    #[test]
    fn lanes_that_come_later_share_the_frame() {
        let mut frames = Frames::default();
        let first = frames.enter((Base(0), 512), (1, 1024), 1);
        let other = frames.enter((Base(0), 512), (2, 1024), 2);
        assert_eq!(frames.enter((Base(0), 512), (1, 1024), 4), first);
        assert_ne!(first, other);
        frames.leave(first.unwrap_or_default(), 1);
        assert_eq!(frames.enter((Base(0), 512), (1, 1024), 8), first);
    }

    #[test]
    fn lanes_that_call_in_turns_need_no_more_room() {
        let mut frames = Frames::default();
        let mut old = frames.enter((Base(0), 512), (0, 1024), 1).expect("room");
        for turn in 1..100_000 {
            let (function, lane) = (turn % 3, 1 << (turn % 2));
            let new = frames.enter((Base(0), 512), (function, 1024), lane).expect("room");
            frames.leave(old, FULL);
            assert!(new.start() < 4096);
            old = new;
        }
    }

    #[test]
    fn there_is_an_end() {
        let mut frames = Frames::default();
        let mut at = (Base(0), 512);
        let mut depth = 0;
        while let Some(base) = frames.enter(at, (0, FIRST_ROW), FULL) {
            (at, depth) = ((base, FIRST_ROW), depth + 1);
            assert_eq!((base.start(), base.depth()), (depth * FIRST_ROW, depth));
            assert!(base.is_deeper_than(Base::new(MAX_REGISTERS as u32 - LINE, depth - 1)));
            assert!(!base.is_deeper_than(Base::new(0, depth)));
        }
        assert_eq!(depth, MAX_REGISTERS as u32 / FIRST_ROW - 1);
    }
}
