//! Accesses that do not go through ordinary loads and stores: bulk copies and products of warp groups.
//!
//! They are made through the async proxy. What ordinary stores wrote to shared memory must be made visible to it with
//! `fence.proxy.async`, by a thread that the writes are ordered before, and before the access.

use std::sync::Arc;

use super::access::{Finding, Problem, unordered};
use super::arrays::Known as Places;
use super::clock::{Known, learn};
use super::shadow::Entry;
use crate::emulator::bulk::Bulk;
use crate::emulator::code::{Flow, LANES};
use crate::emulator::exec::memory::Kind;
use crate::emulator::fault::{FaultKind, MemorySpace};
use crate::emulator::warp::Cx;

impl Cx<'_> {
    /// A range of global memory that a bulk copy touches: it must lie in an array, and what is read must have a value.
    pub(crate) fn check_bulk(&mut self, lane: usize, address: u64, bytes: u32, write: bool) -> Result<(), Flow> {
        let grid = self.grid;
        let Some(checker) = self.checker.as_deref_mut() else { return Ok(()) };
        let closed = checker.closed;
        let places = Places { memory: grid.memory(), named: &checker.named, variables: &grid.code().variables, closed };
        let space = MemorySpace::Global;
        let Some(index) = checker.arrays.find(&places, address, bytes) else {
            let finding = Finding { problem: Problem::Outside, space, lane, address };
            return self.report(finding, bytes, write, false);
        };
        let array = &checker.arrays.all[index];
        let (offset, length) = (address - array.start, u64::from(bytes));
        if let Some(written) = array.written.clone()
            && !written.is_whole()
        {
            if write {
                written.set(offset, length);
            } else if !written.any(offset, length) {
                let finding = Finding { problem: Problem::Undefined, space, lane, address };
                return self.report(finding, bytes, write, false);
            }
        }
        self.check_early_bulk(lane, address, bytes, write)
    }

    /// A bulk copy is complete, and the object at `address` hears of it.
    pub(crate) fn check_landed(&mut self, bulk: &Bulk, address: u64) {
        if self.checker.is_none() {
            return;
        }
        let (offset, bytes) = (bulk.target.1, bulk.bytes());
        if bulk.target.0 != self.block.rank {
            self.block.cluster.written.push((bulk.target.0, offset, bytes));
            return;
        }
        let own = bulk.issuer.0 == self.block.rank;
        let key = self.word_key(address);
        let (Some(checker), Some(block)) = (self.checker.as_deref_mut(), self.block.check.as_deref_mut()) else {
            return;
        };
        if !own {
            block.overwrite(offset, bytes);
            return;
        }
        let now = checker.tick();
        block.keep_up(checker);
        block.last = now;
        let thread = block.first + bulk.issuer.1;
        let words = (offset / 4) as usize..(offset + bytes).div_ceil(4) as usize;
        for cell in block.cells.get_mut(words).into_iter().flatten() {
            block.parts.complete(cell, thread, now);
        }
        block.defined.set_range(u64::from(offset), u64::from(bytes), true);
        block.dirty.set_range(u64::from(offset), u64::from(bytes), false);
        let mut known = Known::default();
        known.note_thread(thread, now);
        let known = Some(Arc::new(known));
        match key {
            Some(key) => learn(&mut checker.published.entry(key).or_default().wide, &known, now),
            None => {
                let number = block.first / checker.numbers.stride;
                let word = block.published.entry(address).or_default();
                let mut both = word.narrow.take().map(|(_, known)| known);
                learn(&mut both, &known, now);
                word.narrow = both.map(|known| (number, known));
            }
        }
    }

    /// `fence.proxy.async` of these lanes: what is ordered before it is visible to asynchronous accesses.
    pub(crate) fn check_proxy_fence(&mut self, lanes: u32) {
        self.release_stores(lanes);
        let id = self.warp.id;
        let (Some(checker), Some(block), Some(warp)) =
            (self.checker.as_deref(), self.block.check.as_deref_mut(), self.warp.check.as_deref())
        else {
            return;
        };
        let numbers = checker.numbers;
        let first = block.first + id * LANES as u32;
        let mut dirty = std::mem::take(&mut block.dirty);
        dirty.retain_words(|word| {
            let Some(cell) = block.cells.get(word) else { return false };
            let entry = block.parts.last_write(cell);
            let lane = entry.thread.wrapping_sub(first);
            let own = lane < LANES as u32 && lanes >> lane & 1 != 0;
            let before = |lane: usize| {
                let mine = Entry { time: checker.clock, thread: first + lane as u32, info: 0 };
                !unordered(entry, mine, block, warp, numbers)
            };
            !own && !(0..LANES).any(|lane| lanes >> lane & 1 != 0 && before(lane))
        });
        block.dirty = dirty;
    }

    /// Lanes read units of 16 bytes of shared memory through the async proxy.
    pub(crate) fn check_async_read(&mut self, a: &[u64; LANES], lanes: u32, what: &str) -> Result<(), Flow> {
        self.check_access(Kind::Shared, a, lanes, 16, false)?;
        let Some(block) = self.block.check.as_deref() else { return Ok(()) };
        let found = (0..LANES).find(|&lane| lanes >> lane & 1 != 0 && block.dirty.any(a[lane], 16));
        let Some(lane) = found else { return Ok(()) };
        let word = (a[lane]..a[lane] + 16).step_by(4).find(|&at| block.dirty.any(at, 4)).unwrap_or(a[lane]);
        let cell = block.cells.get(word as usize / 4).copied().unwrap_or_default();
        let entry = block.parts.last_write(&cell);
        Err(self.unfenced(lane, word, entry, what))
    }

    #[cold]
    fn unfenced(&mut self, lane: usize, address: u64, entry: Entry, what: &str) -> Flow {
        let stride = self.checker.as_deref().map_or(32, |checker| checker.numbers.stride);
        let element = self.name(MemorySpace::Shared, address, 4).element;
        let who = self.who(entry, stride, true);
        let text = format!(
            "missing fence.proxy.async: {what} reads {element}, which {who} wrote with an ordinary store, and no \
             fence.proxy.async was between the two"
        );
        let flow = self.raise(FaultKind::Check { text }, 1 << lane);
        let place = format!("the store was at {}", self.place_text(entry.pc()));
        if let Some(fault) = &mut self.fault {
            fault.notes.push(place);
            fault.notes.push(
                "after writing shared memory that an asynchronous access will read, each writer executes \
                 fence.proxy.async, and then the barrier"
                    .to_string(),
            );
        }
        flow
    }
}
