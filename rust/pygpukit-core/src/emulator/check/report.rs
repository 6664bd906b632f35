//! What is found, in words.

use super::access::{Finding, Problem};
use super::arrays::{self, Known, Named};
use super::shadow::{ASYNC, ATOMIC, Entry, NARROW, STRONG};
use super::{Shares, argument};
use crate::emulator::code::{Flow, LANES, Source, Variable};
use crate::emulator::fault::{FaultKind, MemorySpace};
use crate::emulator::warp::Cx;

/// An array this far from a stray address is still named: an argument where the kernel has no other arrays, and others.
const FAR: u64 = 1 << 36;
const NEAR: u64 = 1 << 20;

fn verb(write: bool, atomic: bool, bytes: u32) -> &'static str {
    match (write, atomic) {
        (_, true) => "atomic operation on",
        // More than any load or store has.
        (true, _) if bytes > 32 => "bulk copy to",
        (false, _) if bytes > 32 => "bulk copy from",
        (true, _) => "write of",
        (false, _) => "read of",
    }
}

fn bytes_text(bytes: u64) -> String {
    format!("{bytes} byte{}", if bytes == 1 { "" } else { "s" })
}

impl Cx<'_> {
    /// End the launch with what was found.
    #[cold]
    pub(super) fn report(&mut self, finding: Finding, bytes: u32, write: bool, atomic: bool) -> Result<(), Flow> {
        let Finding { problem, space, lane, address } = finding;
        let what = verb(write, atomic, bytes);
        let (text, notes) = match problem {
            Problem::Outside => match self.outside(space, address, bytes, what) {
                Some(found) => found,
                // In no memory at all, and near nothing: the emulator says it best.
                None => return Ok(()),
            },
            Problem::Misaligned => {
                let element = self.name(space, address, bytes).element;
                let text = format!(
                    "misaligned {what} {bytes} bytes at {element} ({address:#x}): the address must be a multiple of {bytes}"
                );
                (text, Vec::new())
            }
            Problem::Undefined => self.undefined(space, address, bytes, what),
            Problem::Stale(entry) => self.stale(&finding, entry),
            Problem::Early { kernel, pc, wrote } => self.early(&finding, (kernel, pc, wrote), (bytes, write), what),
            Problem::Race(entry, other_write) => self.race(&finding, entry, other_write, bytes, what),
        };
        let flow = self.raise(FaultKind::Check { text }, 1 << lane);
        if let Some(fault) = &mut self.fault {
            fault.notes.extend(notes);
        }
        Err(flow)
    }

    pub(super) fn name(&mut self, space: MemorySpace, address: u64, bytes: u32) -> Named {
        let grid = self.grid;
        let code = grid.code();
        match space {
            MemorySpace::Global => {
                let Some(checker) = self.checker.as_deref_mut() else {
                    return Named { element: format!("{address:#x}"), extent: String::new() };
                };
                let closed = checker.closed;
                let known = Known { memory: grid.memory(), named: &checker.named, variables: &code.variables, closed };
                let found = checker.arrays.find(&known, address, 1);
                match found.map(|index| &checker.arrays.all[index]) {
                    Some(array) => {
                        arrays::name(&checker.named, &code.variables, array.start, array.bytes, address, bytes)
                    }
                    None => Named { element: format!("address {address:#x}"), extent: String::new() },
                }
            }
            MemorySpace::Shared => {
                let dynamic = u64::from(grid.dynamic_start());
                let element = arrays::name_shared(&code.shared, grid.kernel, dynamic, address, bytes);
                Named { element, extent: String::new() }
            }
            _ => Named { element: format!("byte {address} of {} memory", space.name()), extent: String::new() },
        }
    }

    /// What the current instruction's addresses in this space are derived from, where it is known.
    fn source(&self, space: MemorySpace) -> Option<&Source> {
        let code = self.grid.code();
        let sight = code.sights.get(self.pc as usize)?;
        let number = if space == MemorySpace::Shared { sight.shared } else { sight.global };
        code.sources.get(usize::from(number).checked_sub(1)?)
    }

    /// An access in no array, or over the end of one.
    fn outside(&self, space: MemorySpace, address: u64, bytes: u32, what: &str) -> Option<(String, Vec<String>)> {
        let grid = self.grid;
        let code = grid.code();
        let checker = self.checker.as_deref()?;
        let tell = |Named { element, extent }: Named, start: u64, size: u64| {
            let by = match address < start {
                true => format!("{} before its start", bytes_text(start - address)),
                false => format!("{} past its end", bytes_text(address.wrapping_add(u64::from(bytes)) - start - size)),
            };
            Some((format!("out of bounds: {what} {element}, {extent} ({by})"), Vec::new()))
        };
        let dynamic = u64::from(grid.dynamic_start());
        match self.source(space) {
            Some(Source::Param(offset)) => {
                if let Some(arg) = argument(grid, &checker.named, *offset) {
                    return tell(arrays::name_argument(arg, address), arg.memory.start, arg.memory.bytes);
                }
            }
            Some(Source::Global(index)) => {
                let var = code.variables.get(*index)?;
                return tell(arrays::name_variable(var, address, bytes), var.start, var.bytes);
            }
            Some(Source::Shared(index)) => {
                let var = code.shared.get(*index)?;
                return tell(arrays::name_variable(var, address, bytes), var.start, var.bytes);
            }
            Some(Source::Dynamic(name)) => {
                let size = (grid.shared_bytes() as u64).saturating_sub(dynamic);
                let var = Variable { name: name.clone(), start: dynamic, bytes: size, item: 1, function: None };
                return tell(arrays::name_variable(&var, address, bytes), dynamic, size);
            }
            None => {}
        }
        // The array it begins in, else the nearest: the kernel's own arrays first.
        let mut near: Vec<(u64, u64, u64)> = Vec::new();
        let distance = |start: u64, size: u64| match address {
            a if a < start => start - a,
            a => (a - start).saturating_sub(size.saturating_sub(1)),
        };
        near.extend(
            checker
                .named
                .iter()
                .map(|arg| (distance(arg.memory.start, arg.memory.bytes), arg.memory.start, arg.memory.bytes)),
        );
        near.extend(code.variables.iter().map(|var| (distance(var.start, var.bytes), var.start, var.bytes)));
        near.sort_unstable();
        let most = if checker.closed { FAR } else { NEAR };
        let mut best = near.first().copied().filter(|found| found.0 < most);
        if best.is_none() {
            let (before, after) = grid.memory().neighbours(address);
            let others = [before, after].into_iter().flatten();
            best = others.map(|e| (distance(e.start, e.bytes), e.start, e.bytes)).min().filter(|found| found.0 < NEAR);
        }
        let Some((_, start, size)) = best else {
            let valid = grid.memory().find(address).is_some();
            return valid.then(|| {
                let text = format!("{what} {bytes} bytes at {address:#x}, which is in no array");
                (text, vec!["was the array freed, or its pointer computed wrongly?".to_string()])
            });
        };
        tell(arrays::name(&checker.named, &code.variables, start, size, address, bytes), start, size)
    }

    fn undefined(&mut self, space: MemorySpace, address: u64, bytes: u32, what: &str) -> (String, Vec<String>) {
        let element = self.name(space, address, bytes).element;
        let text = format!("uninitialised {} memory: {what} {element}, which has not been written", space.name());
        let note = match space {
            MemorySpace::Shared => {
                "shared memory has no value when a block begins; is a barrier missing between the write and this?"
            }
            MemorySpace::Local => "local variables have no value before one is assigned",
            _ => "the array was made by empty() and nobody has written this part of it; zeros() gives it a value",
        };
        (text, vec![note.to_string()])
    }

    fn stale(&mut self, finding: &Finding, entry: Entry) -> (String, Vec<String>) {
        let Finding { space, address, lane, .. } = *finding;
        let element = self.name(space, address, 1).element;
        let stride = self.checker.as_deref().map_or(32, |checker| checker.numbers.stride);
        let who = self.who(entry, stride, false);
        let text = format!(
            "missing order in {} memory: read of {element} is not ordered with a write by {who}, though a flag of its \
             block was read before",
            space.name()
        );
        let hint = match self.has_seen(lane, entry) {
            true => "volatile accesses have no order: put __threadfence() after the flag is read",
            false => {
                "volatile accesses have no order: write the data, then __threadfence(), then the flag, and put \
                 __threadfence() after the flag is read"
            }
        };
        (text, vec![format!("the write was at {}", self.place_text(entry.pc())), hint.to_string()])
    }

    fn race(&mut self, finding: &Finding, entry: Entry, write: bool, bytes: u32, what: &str) -> (String, Vec<String>) {
        let Finding { space, address, lane, .. } = *finding;
        let element = self.name(space, address, bytes).element;
        let stride = self.checker.as_deref().map_or(32, |checker| checker.numbers.stride);
        let first = self.block.check.as_deref().map_or(0, |block| block.first);
        let mine = first + self.warp.id * LANES as u32 + lane as u32;
        let (same_block, same_warp) = (entry.thread / stride == mine / stride, entry.thread / 32 == mine / 32);
        let other = match (entry.is(ATOMIC), write) {
            (true, _) => "an atomic operation",
            (_, true) => "a write",
            (_, false) => "a read",
        };
        if entry.is(ASYNC) {
            let text = format!(
                "data race in {} memory: {what} {element} while an asynchronous copy to it is not complete",
                space.name()
            );
            let whose = format!("the copy was issued by {}", self.who(entry, stride, same_block));
            let hint = "wait for it with cp.async.wait_group (or __pipeline_wait_prior), then synchronise the threads";
            return (text, vec![whose, hint.to_string()]);
        }
        let who = self.who(entry, stride, same_block);
        let text =
            format!("data race in {} memory: {what} {element} is not ordered with {other} by {who}", space.name());
        let hint = if same_warp && stride <= LANES as u32 {
            "threads of a warp run on their own: put __syncwarp() between the two"
        } else if same_warp {
            "put __syncthreads() between the two, or __syncwarp() if no other warp uses what one warp writes here"
        } else if same_block {
            "put __syncthreads() between the two"
        } else if self.has_seen(lane, entry) {
            "what orders the two was read, but no __threadfence() followed: put one after it, or after the barrier"
        } else if entry.is(NARROW) && entry.is(STRONG) {
            "blocks run in any order: the other access has the scope of its block only"
        } else if entry.is(STRONG) {
            "blocks run in any order: one of the two is atomic or volatile, the other must be too, or be ordered by fences"
        } else {
            "blocks run in any order: use atomics, or a flag with __threadfence() before it is set and after it is read"
        };
        (text, vec![format!("the other access was at {}", self.place_text(entry.pc())), hint.to_string()])
    }

    /// Would a fence now make this access known to the lane?
    fn has_seen(&self, lane: usize, entry: Entry) -> bool {
        let (Some(checker), Some(block), Some(warp)) =
            (self.checker.as_deref(), self.block.check.as_deref(), self.warp.check.as_deref())
        else {
            return false;
        };
        let knows = |seen: &Shares| seen.as_ref().is_some_and(|k| k.knows(entry.thread, entry.time, checker.numbers));
        knows(&block.wide_seen) || knows(&warp.lanes[lane].wide_seen)
    }

    /// A thread by its place in its block, and its block where it is another.
    pub(super) fn who(&self, entry: Entry, stride: u32, same_block: bool) -> String {
        let threads = self.grid.threads;
        let (x, y) = (threads[0].max(1), threads[1].max(1));
        let linear = entry.thread % stride;
        let thread = [linear % x, linear / x % y, linear / (x * y)];
        if same_block {
            return format!("thread {thread:?} (warp {})", linear / LANES as u32);
        }
        let block = self.grid.block_index(u64::from(entry.thread / stride));
        format!("thread {thread:?} of block {block:?}")
    }

    pub(super) fn place_text(&self, pc: u32) -> String {
        self.grid.code().place_text(pc)
    }

    /// These lanes of a store change what was there: a write that was not ordered with it is then a race.
    pub(crate) fn check_again(&mut self, changed: u32, bytes: u32) -> Result<(), Flow> {
        let again = self.checker.as_ref().map(|checker| checker.again.as_slice()).unwrap_or_default();
        match again.iter().find(|finding| changed >> finding.lane & 1 != 0).copied() {
            Some(finding) => self.report(finding, bytes, true, false),
            None => Ok(()),
        }
    }

    /// A thread ends with an asynchronous copy that it never waited for.
    #[cold]
    pub(crate) fn forgotten_copy(&mut self, address: u64, bytes: u32) -> FaultKind {
        let element = self.name(MemorySpace::Shared, address, bytes).element;
        let text = format!(
            "a thread ends without having waited for its asynchronous copy to {element}: \
             end with cp.async.wait_all (or __pipeline_wait_prior(0))"
        );
        FaultKind::Check { text }
    }

    /// Two lanes of one store wrote different values to the same bytes.
    #[cold]
    pub(crate) fn conflicting_values(&mut self, pointer: u64, lanes: (usize, usize), bytes: u32) -> Flow {
        // The address is translated already.
        let shared = self.block.memory.as_mut_ptr() as u64;
        let offset = pointer.wrapping_sub(shared);
        let (kind, address) = match offset < self.block.memory.bytes as u64 {
            true => (MemorySpace::Shared, offset),
            false => (MemorySpace::Global, pointer),
        };
        let element = self.name(kind, address, bytes).element;
        let thread = |lane: usize| self.warp.id * LANES as u32 + lane as u32;
        let text = format!(
            "data race in {} memory: threads {} and {} of the block write different values to {element} in one instruction",
            kind.name(),
            thread(lanes.0),
            thread(lanes.1)
        );
        self.raise(FaultKind::Check { text }, 1 << lanes.1)
    }
}
