//! One access of a warp: bounds, values, races.

use super::arrays::{Arrays, Known};
use super::shadow::{
    ASYNC, ATOMIC, Access, Cell, Entry, NARROW, STORE, STRONG, Seen, info, row_key, row_thread, touch, touch_line,
};
use super::{BlockCheck, Checker, Numbers, WarpCheck};
use crate::emulator::cluster::RANK_SHIFT;
use crate::emulator::code::{Effect, FULL, Flow, Function, LANES};
use crate::emulator::exec::memory::Kind;
use crate::emulator::fault::MemorySpace;
use crate::emulator::memory::{LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW, WINDOW_MASK};
use crate::emulator::warp::Cx;

/// What is wrong with an access of one lane.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Problem {
    Outside,
    Misaligned,
    Undefined,
    Race(Entry, bool),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Finding {
    pub problem: Problem,
    pub space: MemorySpace,
    pub lane: usize,
    pub address: u64,
}

/// The access of an instruction, the same for all lanes.
#[derive(Clone, Copy)]
struct Shape {
    bytes: u32,
    write: bool,
    /// It reads what it changes.
    atomic: bool,
    info: u32,
}

/// Is an earlier access not ordered before one of this lane?
#[cold]
#[inline(never)]
pub(super) fn unordered(entry: Entry, mine: Entry, block: &BlockCheck, warp: &WarpCheck, numbers: Numbers) -> bool {
    if entry.is(ASYNC) {
        return true;
    }
    let near = entry.thread.wrapping_sub(block.first) < numbers.stride;
    let both_strong = entry.info & mine.info & STRONG != 0;
    if both_strong && (near || (entry.info | mine.info) & NARROW == 0) {
        return false;
    }
    if near && entry.time <= block.barrier {
        return false;
    }
    let lane = mine.thread as usize % LANES;
    if entry.thread / 32 == mine.thread / 32 {
        let pair = warp.pairs.as_ref().map_or(0, |pairs| pairs[lane][entry.thread as usize % LANES]);
        if entry.time <= warp.sync.max(pair) {
            return false;
        }
    }
    let knows = |known: &super::Shares| known.as_ref().is_some_and(|k| k.knows(entry.thread, entry.time, numbers));
    !(knows(&block.known) || knows(&warp.lanes[lane].known))
}

/// Compare the access of a lane with those before, for each word of it.
#[inline(always)]
fn touch_words(
    cells: &mut [Cell],
    address: u64,
    shape: Shape,
    access: &mut Access,
    record: bool,
    mut unordered: impl FnMut(Entry) -> bool,
) -> Seen {
    let bits = if shape.bytes >= 4 { 0xf } else { ((1 << shape.bytes) - 1) << (address % 4) };
    access.entry.info = shape.info | bits as u32;
    let mut seen = Seen::Fine;
    for cell in cells {
        match touch(cell, access, shape.write, record, &mut unordered) {
            Seen::Fine => {}
            Seen::Overlap => seen = Seen::Overlap,
            again @ Seen::Again(_) => seen = again,
            race => return race,
        }
    }
    seen
}

/// A warp that touches whole lines in order: one comparison for each line. False when more must be looked at.
#[inline(always)]
fn rows(
    arrays: &mut Arrays,
    known: &Known<'_>,
    (block, warp, numbers): (&BlockCheck, &WarpCheck, Numbers),
    a: &[u64; LANES],
    shape: Shape,
    mine: Entry,
) -> bool {
    let shift = match shape.bytes {
        4 => 0,
        8 => 1,
        16 => 2,
        _ => return false,
    };
    let mut differ = a[0] % 128;
    for (lane, address) in a.iter().enumerate() {
        differ |= address ^ a[0].wrapping_add(u64::from(shape.bytes) * lane as u64);
    }
    let total = shape.bytes * LANES as u32;
    if differ != 0 || shape.atomic {
        return false;
    }
    let Some(index) = arrays.find(known, a[0], total) else { return false };
    let array = &mut arrays.all[index];
    let offset = a[0] - array.start;
    if let Some(written) = array.written.as_ref().filter(|written| !written.is_whole())
        && !shape.write
        && !written.all(offset, u64::from(total))
    {
        return false;
    }
    for part in 0..total / 128 {
        let first = mine.thread + part * (LANES as u32 >> shift);
        let Some(key) = row_key(first, shift) else { return false };
        let Some(line) = array.whole_line(a[0] + u64::from(part) * 128) else { return false };
        let suspicious = |entry: Entry| {
            let near = (entry.thread & !(3 << 30)).wrapping_sub(block.first) < numbers.stride;
            if near && entry.time <= block.barrier {
                return false;
            }
            (0..LANES).any(|word| {
                let (before, now) = (row_thread(entry.thread, word), row_thread(key, word));
                before != now
                    && unordered(Entry { thread: before, ..entry }, Entry { thread: now, ..mine }, block, warp, numbers)
            })
        };
        let entry = Entry { thread: key, info: shape.info | 0xf, ..mine };
        // A line that was recorded already may be recorded again.
        if !touch_line(line, entry, shape.write, suspicious) {
            return false;
        }
    }
    if let Some(written) = array.written.as_ref().filter(|written| shape.write && !written.is_whole()) {
        written.set(offset, u64::from(total));
    }
    true
}

impl Checker {
    /// Look at the lanes of `mask` that touch shared memory at offsets `a`.
    fn shared(
        &mut self,
        (block, warp): (&mut BlockCheck, &WarpCheck),
        a: &[u64; LANES],
        mask: u32,
        shape: Shape,
        thread: u32,
    ) -> Option<Finding> {
        let mut access =
            Access { entry: Entry { time: self.clock, thread, info: 0 }, floor: block.barrier, born: block.born };
        let mut cells = std::mem::take(&mut block.cells);
        let mut found = None;
        let count = shape.bytes.div_ceil(4) as usize;
        // The place read last, if no write to it is left to compare with.
        let mut quiet = u64::MAX;
        // Lanes of an atomic instruction that meet are all compared before one of them is recorded.
        let (mut left, mut record) = (mask, !shape.atomic);
        while left != 0 {
            let lane = left.trailing_zeros() as usize;
            left &= left - 1;
            let address = a[lane];
            if address == quiet {
                continue;
            }
            let at = (address / 4) as usize;
            // What is outside or misaligned is a fault of its own.
            let Some(words) = cells.get_mut(at..at.wrapping_add(count)) else { continue };
            if !address.is_multiple_of(u64::from(shape.bytes)) {
                continue;
            }
            access.entry.thread = thread + lane as u32;
            if (!shape.write || shape.atomic) && !block.defined.any(address, shape.bytes) {
                let space = MemorySpace::Shared;
                // An asynchronous copy that is not complete explains more than a value that is missing.
                let pending = words.iter().find(|cell| cell[0] > access.born && cell[2] & ASYNC != 0);
                let problem = match pending {
                    Some(cell) => Problem::Race(Entry { time: cell[0], thread: cell[1], info: cell[2] }, true),
                    None => Problem::Undefined,
                };
                found = Some(Finding { problem, space, lane, address });
                break;
            }
            if !shape.write && words.iter().all(|cell| cell[0] <= access.floor && cell[2] & ASYNC == 0) {
                quiet = address;
            }
            let numbers = self.numbers;
            let mine = Entry { info: shape.info, ..access.entry };
            let seen =
                touch_words(words, address, shape, &mut access, record, |e| unordered(e, mine, block, warp, numbers));
            match seen {
                Seen::Fine => {}
                Seen::Overlap => self.overlap = true,
                Seen::Again(entry) => {
                    let problem = Problem::Race(entry, true);
                    self.again.push(Finding { problem, space: MemorySpace::Shared, lane, address });
                }
                Seen::Race(entry, write) => {
                    let problem = Problem::Race(entry, write);
                    found = Some(Finding { problem, space: MemorySpace::Shared, lane, address });
                    break;
                }
            }
            if shape.write && shape.info & ASYNC == 0 {
                block.defined.set(address, shape.bytes);
                if block.proxied {
                    block.dirty.set(address, shape.bytes);
                }
            }
            if left == 0 && !record {
                (left, record) = (mask, true);
            }
        }
        block.cells = cells;
        found
    }

    /// As `shared`, for global addresses.
    fn global(
        &mut self,
        cx: (&BlockCheck, &WarpCheck, &crate::emulator::grid::Grid),
        a: &[u64; LANES],
        mask: u32,
        shape: Shape,
        thread: u32,
    ) -> Option<Finding> {
        let (block, warp, grid) = cx;
        let mut access = Access { entry: Entry { time: self.clock, thread, info: 0 }, floor: 0, born: 0 };
        let numbers = self.numbers;
        let space = MemorySpace::Global;
        let closed = self.closed;
        let known = Known { memory: grid.memory(), named: &self.named, variables: &grid.code().variables, closed };
        if mask == FULL {
            let mine = Entry { time: self.clock, thread, info: shape.info };
            if rows(&mut self.arrays, &known, (block, warp, numbers), a, shape, mine) {
                return None;
            }
        }
        let (mut left, mut record) = (mask, !shape.atomic);
        while left != 0 {
            let lane = left.trailing_zeros() as usize;
            left &= left - 1;
            let address = a[lane];
            if !address.is_multiple_of(u64::from(shape.bytes)) {
                return Some(Finding { problem: Problem::Misaligned, space, lane, address });
            }
            let Some(index) = self.arrays.find(&known, address, shape.bytes) else {
                return Some(Finding { problem: Problem::Outside, space, lane, address });
            };
            let array = &mut self.arrays.all[index];
            let offset = address - array.start;
            if let Some(written) = &array.written
                && !written.is_whole()
            {
                if (!shape.write || shape.atomic) && !written.any(offset, u64::from(shape.bytes)) {
                    return Some(Finding { problem: Problem::Undefined, space, lane, address });
                }
                if shape.write {
                    written.set(offset, u64::from(shape.bytes));
                }
            }
            access.entry.thread = thread + lane as u32;
            let mine = Entry { info: shape.info, ..access.entry };
            let Some(words) = array.words(address, shape.bytes.div_ceil(4) as usize) else { continue };
            match touch_words(words, address, shape, &mut access, record, |e| unordered(e, mine, block, warp, numbers))
            {
                Seen::Fine => {}
                Seen::Overlap => self.overlap = true,
                Seen::Again(entry) => {
                    self.again.push(Finding { problem: Problem::Race(entry, true), space, lane, address });
                }
                Seen::Race(entry, write) => {
                    return Some(Finding { problem: Problem::Race(entry, write), space, lane, address });
                }
            }
            if left == 0 && !record {
                (left, record) = (mask, true);
            }
        }
        None
    }
}

impl WarpCheck {
    /// Local memory: only values can be missing.
    fn local(&mut self, a: &[u64; LANES], mask: u32, bytes: u32, write: bool, limit: u64) -> Option<Finding> {
        for lane in (0..LANES).filter(|lane| mask >> lane & 1 != 0) {
            let address = a[lane];
            if !address.is_multiple_of(u64::from(bytes)) || address.saturating_add(u64::from(bytes)) > limit {
                continue;
            }
            let defined = &mut self.lanes[lane].local;
            if write {
                defined.set(address, bytes);
            } else if !defined.any(address, bytes) {
                return Some(Finding { problem: Problem::Undefined, space: MemorySpace::Local, lane, address });
            }
        }
        None
    }
}

impl Cx<'_> {
    /// Bytes of local memory got a value without a store: arguments and results of calls.
    pub(crate) fn check_local(&mut self, lane: usize, start: usize, bytes: usize) {
        if let Some(warp) = &mut self.warp.check {
            warp.lanes[lane].local.set_range(start as u64, bytes as u64, true);
        }
    }

    /// A call begins for these lanes: local variables of the function have no value. `local` is where those of the
    /// caller begin.
    pub(crate) fn check_enter(&mut self, mask: u32, local: &[u32; LANES], caller: &Function, callee: &Function) {
        let Some(warp) = &mut self.warp.check else { return };
        for lane in (0..LANES).filter(|lane| mask >> lane & 1 != 0) {
            let start = u64::from(local[lane]) + u64::from(caller.local.next_multiple_of(16));
            warp.lanes[lane].local.set_range(start, u64::from(callee.local), false);
        }
    }

    /// Check an access of the current instruction before it happens.
    pub(crate) fn check_access(
        &mut self,
        kind: Kind,
        a: &[u64; LANES],
        mask: u32,
        bytes: u32,
        write: bool,
    ) -> Result<(), Flow> {
        let effect = self.grid.code().effects.get(self.pc as usize).copied().unwrap_or_default();
        let (Some(checker), Some(block), Some(warp)) =
            (self.checker.as_deref_mut(), self.block.check.as_deref_mut(), self.warp.check.as_deref_mut())
        else {
            return Ok(());
        };
        let atomic = effect.is(Effect::ATOMIC);
        let flags = if effect.is(Effect::STRONG) { STRONG } else { 0 }
            | if effect.is(Effect::NARROW) { NARROW } else { 0 }
            | if effect.is(Effect::ASYNC) && write { ASYNC } else { 0 }
            | if atomic { ATOMIC } else { 0 }
            | if effect.is(Effect::STORE) { STORE } else { 0 };
        let shape = Shape { bytes, write, atomic, info: info(self.pc, flags) };
        checker.overlap = false;
        checker.again.clear();
        let now = checker.tick();
        block.last = now;
        let thread = block.first + self.warp.id * LANES as u32;
        let limit = self.warp.local_bytes as u64;
        let mut plain = *a;
        let (mut shared, mut local, mut global) = (0u32, 0u32, 0u32);
        match kind {
            Kind::Shared => shared = mask,
            Kind::Local => local = mask,
            Kind::Global => global = mask,
            Kind::Generic => {
                for lane in (0..LANES).filter(|lane| mask >> lane & 1 != 0) {
                    match a[lane] & WINDOW_MASK {
                        SHARED_WINDOW => shared |= 1 << lane,
                        LOCAL_WINDOW => local |= 1 << lane,
                        PARAM_WINDOW => {}
                        _ => global |= 1 << lane,
                    }
                    plain[lane] = if global >> lane & 1 != 0 { a[lane] } else { a[lane] & !WINDOW_MASK };
                }
            }
        }
        // What is in the memory of another block is left to the bounds.
        let tag = (u64::from(self.block.rank) + 1) << RANK_SHIFT;
        for lane in (0..LANES).filter(|lane| shared >> lane & 1 != 0) {
            if plain[lane] >> RANK_SHIFT == tag >> RANK_SHIFT && plain[lane] >= self.block.memory.bytes as u64 {
                plain[lane] -= tag;
            }
        }
        let mut found = None;
        if shared != 0 {
            found = checker.shared((block, warp), &plain, shared, shape, thread);
        }
        if found.is_none() && global != 0 {
            found = checker.global((block, warp, self.grid), &plain, global, shape, thread);
        }
        if found.is_none() && local != 0 {
            found = warp.local(&plain, local, bytes, write && !atomic, limit);
        }
        match found {
            Some(finding) => self.report(finding, bytes, write, atomic),
            None => {
                if effect.is(Effect::STRONG) {
                    self.exchange(&plain, shared, global, effect, write);
                }
                Ok(())
            }
        }
    }
}
