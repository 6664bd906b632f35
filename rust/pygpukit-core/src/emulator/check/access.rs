//! One access of a warp: bounds, values, races.

use super::arrays::{Arrays, Known};
use super::shadow::{
    ASYNC, ATOMIC, Access, Cell, Defined, Entry, NARROW, Parts, STORE, STRONG, Seen, info, is_quiet, note_read,
    row_key, row_thread, touch, touch_line,
};
use super::{BlockCheck, Checker, Numbers, WarpCheck};
use crate::emulator::cluster::RANK_SHIFT;
use crate::emulator::code::{Effect, FULL, Flow, Function, LANES, Sight};
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
    /// A value that need not be there yet.
    Stale(Entry),
    /// A kernel that may run beside this one, by its number in `Early`, and what it does to the same bytes.
    Early {
        kernel: u32,
        pc: u32,
        wrote: bool,
    },
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
    sight: Sight,
}

impl Shape {
    /// The first part of a read that has no value, though one is needed: of a single element none of its bytes, of a
    /// vector none of an element's that is looked at.
    #[inline]
    fn undefined(self, address: u64, any: impl Fn(u64, u32) -> bool) -> Option<u64> {
        let Sight { unit, needed, .. } = self.sight;
        if unit == 0 {
            return (!any(address, self.bytes)).then_some(address);
        }
        let element = |k: u32| address + u64::from(k) * u64::from(unit);
        let count = self.bytes / u32::from(unit);
        (0..count).find(|&k| needed >> k & 1 != 0 && !any(element(k), unit.into())).map(element)
    }
}

/// Start and size of what an access must lie in.
pub(super) type Bound = (u64, u64);

#[inline(always)]
fn inside((start, size): Bound, address: u64, bytes: u32) -> bool {
    let offset = address.wrapping_sub(start);
    offset < size && size - offset >= u64::from(bytes)
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
    (cells, parts): (&mut [Cell], &mut Parts),
    address: u64,
    shape: Shape,
    access: &mut Access,
    record: bool,
    mut unordered: impl FnMut(Entry) -> bool,
) -> Seen {
    access.entry.info = shape.info;
    let mut seen = Seen::Fine;
    for word in cells {
        for cell in parts.within(word, (address % 4) as usize, shape.bytes.min(4) as usize) {
            match touch(cell, access, shape.write, record, &mut unordered) {
                Seen::Fine => {}
                Seen::Overlap => seen = Seen::Overlap,
                again @ Seen::Again(_) => seen = again,
                race => return race,
            }
        }
    }
    seen
}

/// The lanes of a whole warp that have the address of lane 0 because they repeat what the first ones do: all of them, one
/// in each half, or only lane 0.
#[inline(always)]
fn repeated(a: &[u64; LANES]) -> u32 {
    if a.iter().fold(0, |differ, address| differ | (address ^ a[0])) == 0 {
        return FULL;
    }
    if (0..16).fold(0, |differ, lane| differ | (a[lane] ^ a[lane + 16])) == 0 { 1 << 16 | 1 } else { 1 }
}

/// The lanes that others repeat.
#[inline(always)]
fn first_lanes(spread: u32) -> u32 {
    match spread {
        FULL => 1,
        1 => FULL,
        _ => 0xffff,
    }
}

/// A whole warp reads words of shared memory one after the other, which have values and no writes that are left to
/// compare with: its reads are recorded. False when more must be looked at.
#[inline(always)]
fn quiet_row(
    cells: &mut [Cell],
    defined: &Defined,
    a: &[u64; LANES],
    (shape, bound, spread): (Shape, Bound, u32),
    mut access: Access,
) -> bool {
    let (lanes, count) = (first_lanes(spread).count_ones(), shape.bytes as usize / 4);
    let total = shape.bytes * lanes;
    let mut differ = a[0] % u64::from(shape.bytes);
    for (lane, address) in a.iter().enumerate().take(lanes as usize) {
        differ |= address ^ a[0].wrapping_add(u64::from(shape.bytes) * lane as u64);
    }
    if differ != 0 || count == 0 || !inside(bound, a[0], total) || !defined.all_of(a[0], total) {
        return false;
    }
    let at = (a[0] / 4) as usize;
    let Some(words) = cells.get_mut(at..at + (total / 4) as usize) else { return false };
    if !words.iter().all(|word| is_quiet(word, access.floor)) {
        return false;
    }
    let mut lane = 1;
    for words in words.chunks_exact_mut(count) {
        words.iter_mut().for_each(|word| note_read(word, &access, spread.wrapping_mul(lane)));
        access.entry.thread += 1;
        lane <<= 1;
    }
    true
}

/// Take the lanes that follow with the same address.
#[inline(always)]
fn take_run(a: &[u64; LANES], lane: usize, left: &mut u32) -> u32 {
    let mut lanes = 1 << lane;
    while *left != 0 && a[left.trailing_zeros() as usize] == a[lane] {
        lanes |= *left & left.wrapping_neg();
        *left &= *left - 1;
    }
    lanes
}

/// A warp that touches whole lines in order: one comparison for each line. False when more must be looked at.
#[inline(always)]
fn rows(
    arrays: &mut Arrays,
    known: &Known<'_>,
    (block, warp, numbers, bound): (&BlockCheck, &WarpCheck, Numbers, Bound),
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
    if differ != 0 || shape.atomic || !inside(bound, a[0], total) {
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
        let entry = Entry { thread: key, info: shape.info, ..mine };
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
        let entry = Entry { time: self.clock, thread, info: shape.info };
        let mut access = Access { entry, floor: block.barrier, born: block.born, ..warp.access(block, entry) };
        let bound = self.bounds[usize::from(shape.sight.shared)];
        let (mut cells, mut parts) = (std::mem::take(&mut block.cells), std::mem::take(&mut block.parts));
        let mut found = None;
        let count = shape.bytes.div_ceil(4) as usize;
        // Lanes of an atomic instruction that meet are all compared before one of them is recorded.
        let (mut left, mut record) = (mask, !shape.atomic);
        let mut spread = if !shape.write && mask == FULL { repeated(a) } else { 1 };
        left &= first_lanes(spread);
        if !shape.write && mask == FULL && quiet_row(&mut cells, &block.defined, a, (shape, bound, spread), access) {
            left = 0;
        }
        while left != 0 {
            let lane = left.trailing_zeros() as usize;
            left &= left - 1;
            let address = a[lane];
            let space = MemorySpace::Shared;
            if !inside(bound, address, shape.bytes) {
                found = Some(Finding { problem: Problem::Outside, space, lane, address });
                break;
            }
            let at = (address / 4) as usize;
            // What is outside or misaligned is a fault of its own.
            let Some(words) = cells.get_mut(at..at.wrapping_add(count)) else { continue };
            if !address.is_multiple_of(u64::from(shape.bytes)) {
                continue;
            }
            access.entry.thread = thread + lane as u32;
            if (!shape.write || shape.atomic)
                && !block.defined.all(address, shape.bytes)
                && let Some(address) = shape.undefined(address, |at, bytes| block.defined.any(at, bytes))
            {
                // An asynchronous copy that is not complete explains more than a value that is missing.
                let mut pending = words.iter().map(|word| parts.last_write(word));
                let problem = match pending.find(|last| last.time > access.born && last.is(ASYNC)) {
                    Some(last) => Problem::Race(last, true),
                    None => Problem::Undefined,
                };
                found = Some(Finding { problem, space, lane, address });
                break;
            }
            if !shape.write && shape.bytes >= 4 && words.iter().all(|word| is_quiet(word, access.floor)) {
                let lanes = take_run(a, lane, &mut left).wrapping_mul(spread);
                words.iter_mut().for_each(|word| note_read(word, &access, lanes));
                continue;
            }
            // Each lane is compared by itself.
            left |= (spread & !1) << lane;
            spread = if spread == FULL { 1 } else { spread };
            let numbers = self.numbers;
            let mine = Entry { info: shape.info, ..access.entry };
            let words = (words, &mut parts);
            let seen =
                touch_words(words, address, shape, &mut access, record, |e| unordered(e, mine, block, warp, numbers));
            match seen {
                Seen::Fine => {}
                Seen::Overlap => self.overlap = true,
                Seen::Again(entry) => {
                    self.again.push(Finding { problem: Problem::Race(entry, true), space, lane, address });
                }
                Seen::Race(entry, write) => {
                    found = Some(Finding { problem: Problem::Race(entry, write), space, lane, address });
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
        (block.cells, block.parts) = (cells, parts);
        found
    }

    /// Volatile and relaxed accesses are no races, and order nothing either. A block that has read a flag of another one
    /// and then, not as a flag, what that one had stored before, needs an order of the two: without it a GPU may
    /// give the value from before. What is stored after the flag was read may come or not, as where a reader checks
    /// afterwards that nothing has changed.
    fn stale(
        &mut self,
        (block, warp, grid): (&mut BlockCheck, &WarpCheck, &crate::emulator::grid::Grid),
        a: &[u64; LANES],
        mask: u32,
        shape: Shape,
        thread: u32,
    ) -> Option<Finding> {
        let (numbers, closed, now) = (self.numbers, self.closed, self.clock);
        let known = Known { memory: grid.memory(), named: &self.named, variables: &grid.code().variables, closed };
        let own = block.first / numbers.stride;
        for lane in (0..LANES).filter(|lane| mask >> lane & 1 != 0) {
            let Some(index) = self.arrays.find(&known, a[lane], shape.bytes) else { continue };
            let Some((words, parts)) = self.arrays.all[index].words(a[lane], shape.bytes.div_ceil(4) as usize) else {
                continue;
            };
            let last = words.iter().map(|word| parts.last_write(word)).max_by_key(|entry| entry.time);
            let Some(last) = last.filter(|last| last.time != 0 && !last.is(ASYNC)) else { continue };
            let writer = last.thread / numbers.stride;
            if writer == own {
                continue;
            }
            if shape.atomic || shape.sight.decides {
                block.flags.insert(writer, now);
                continue;
            }
            let mine = Entry { time: now, thread: thread + lane as u32, info: shape.info & !STRONG };
            if last.is(STRONG)
                && block.flags.get(&writer).is_some_and(|&read| last.time < read)
                && unordered(last, mine, block, warp, numbers)
            {
                let (problem, space, address) = (Problem::Stale(last), MemorySpace::Global, a[lane]);
                return Some(Finding { problem, space, lane, address });
            }
        }
        None
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
        let mine = Entry { time: self.clock, thread, info: shape.info };
        let mut access = warp.access(block, mine);
        let numbers = self.numbers;
        let bound = self.bounds[usize::from(shape.sight.global)];
        let space = MemorySpace::Global;
        let closed = self.closed;
        let known = Known { memory: grid.memory(), named: &self.named, variables: &grid.code().variables, closed };
        if mask == FULL && rows(&mut self.arrays, &known, (block, warp, numbers, bound), a, shape, mine) {
            return None;
        }
        let (mut left, mut record) = (mask, !shape.atomic);
        while left != 0 {
            let lane = left.trailing_zeros() as usize;
            left &= left - 1;
            let address = a[lane];
            if !address.is_multiple_of(u64::from(shape.bytes)) {
                return Some(Finding { problem: Problem::Misaligned, space, lane, address });
            }
            let index = match inside(bound, address, shape.bytes) {
                true => self.arrays.find(&known, address, shape.bytes),
                false => None,
            };
            let Some(index) = index else {
                return Some(Finding { problem: Problem::Outside, space, lane, address });
            };
            let array = &mut self.arrays.all[index];
            let offset = address - array.start;
            if let Some(written) = &array.written
                && !written.is_whole()
            {
                if (!shape.write || shape.atomic)
                    && let Some(offset) = shape.undefined(offset, |at, bytes| written.any(at, u64::from(bytes)))
                {
                    let address = array.start + offset;
                    return Some(Finding { problem: Problem::Undefined, space, lane, address });
                }
                if shape.write {
                    written.set(offset, u64::from(shape.bytes));
                }
            }
            access.entry.thread = thread + lane as u32;
            let mine = Entry { info: shape.info, ..access.entry };
            let Some(words) = array.words(address, shape.bytes.div_ceil(4) as usize) else { continue };
            if !shape.write && shape.bytes >= 4 && words.0.iter().all(|word| is_quiet(word, 0)) {
                let lanes = take_run(a, lane, &mut left);
                words.0.iter_mut().for_each(|word| note_read(word, &access, lanes));
                continue;
            }
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
    /// An access of a thread of this warp to memory of which nothing is known to be over.
    fn access(&self, block: &BlockCheck, entry: Entry) -> Access {
        let plain = self.pairs.is_none() && !self.any;
        Access { entry, floor: 0, born: 0, sync: self.sync.max(block.barrier), plain }
    }

    /// Local memory: only values can be missing.
    fn local(&mut self, a: &[u64; LANES], mask: u32, shape: Shape, limit: u64) -> Option<Finding> {
        let bytes = shape.bytes;
        for lane in (0..LANES).filter(|lane| mask >> lane & 1 != 0) {
            let address = a[lane];
            if !address.is_multiple_of(u64::from(bytes)) || address.saturating_add(u64::from(bytes)) > limit {
                continue;
            }
            let defined = &mut self.lanes[lane].local;
            if shape.write && !shape.atomic {
                defined.set(address, bytes);
            } else if let Some(address) = shape.undefined(address, |at, bytes| defined.any(at, bytes)) {
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
        let code = self.grid.code();
        let effect = code.effects.get(self.pc as usize).copied().unwrap_or_default();
        let sight = code.sights.get(self.pc as usize).copied().unwrap_or_default();
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
        let shape = Shape { bytes, write, atomic, info: info(self.pc, flags), sight };
        checker.overlap = false;
        checker.again.clear();
        let now = checker.tick();
        block.keep_up(checker);
        warp.keep_up(checker);
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
        if global != 0 && effect.is(Effect::STRONG) && (!write || atomic) {
            found = found.or_else(|| checker.stale((block, warp, self.grid), &plain, global, shape, thread));
        }
        if found.is_none() && global != 0 {
            found = checker.global((block, warp, self.grid), &plain, global, shape, thread);
        }
        if found.is_none() && global != 0 && checker.early.is_some() {
            found = checker.too_early((block, warp), &plain, global, bytes, write);
        }
        if found.is_none() && local != 0 {
            found = warp.local(&plain, local, shape, limit);
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
