//! Arrays that replays of a graph may exchange for others.
//!
//! Kernels, copies and fills have addresses in them. Before the capture an array is named; when the capture has ended, the
//! places of its addresses are known: words of argument blocks that point into it, and ends of copies. A replay on another
//! array shifts these. On CUDA the executable graph is changed in place (`Device::graph_update`), which later launches see
//! and those under way do not. Work whose addresses cannot be seen (host functions, tensor maps) keeps the named array: during
//! the replay that has the other one's content, which is copied back if it is written.

use std::collections::BTreeMap;
use std::sync::Arc;

use smallvec::SmallVec;

use super::Node;
use crate::command::{Access, ArgTag, Command, Copy, CopyKind, Use, Work};
use crate::device::DevPtr;
use crate::early::{Range, overlap, range_of};
use crate::error::Result;
use crate::exec::ExecCtx;
use crate::launch::submit;
use crate::memory::Storage;
use crate::runtime;

/// A named array: where it lies, and its memory.
#[derive(Clone, Debug)]
pub struct ArrayParameter {
    pub first: DevPtr,
    pub bytes: u64,
    pub storage: Arc<Storage>,
}

/// The array that takes its place.
#[derive(Clone, Debug)]
pub struct Given {
    pub first: DevPtr,
    pub storage: Arc<Storage>,
    pub writeable: bool,
}

/// Where an address is in a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Offset in the argument block.
    Argument(usize),
    Source,
    Destination,
}

pub(super) struct Exchange {
    parameter: ArrayParameter,
    /// Its memory is written.
    pub written: bool,
    /// Its addresses cannot all be seen.
    pub copied: bool,
    pub given: Given,
}

/// The parameters of a graph, and where they are.
#[derive(Default)]
pub(super) struct Exchanges {
    pub all: Vec<Exchange>,
    /// Places by node.
    places: BTreeMap<usize, Vec<(usize, Place)>>,
}

impl ArrayParameter {
    fn range(&self) -> Range {
        (self.first, self.first + self.bytes)
    }

    fn has(&self, address: u64) -> bool {
        (self.range().0..self.range().1).contains(&address)
    }

    fn side(&self) -> Side<'_> {
        (self.first, &self.storage)
    }

    /// Is this the whole of its memory?
    fn is_whole(&self) -> bool {
        self.range() == range_of(&self.storage)
    }

    /// Where a command that uses its memory has its address. None: it may have it where it cannot be seen.
    fn places(&self, work: &Work) -> Option<SmallVec<[Place; 2]>> {
        let mut found = SmallVec::new();
        // The whole range is exchanged, or none of it.
        let mut side = |address: u64, bytes: u64, place: Place| {
            let end = address + bytes;
            if self.has(address) && end <= self.range().1 {
                found.push(place);
                return true;
            }
            !overlap((address, end), self.range())
        };
        match work {
            Work::Copy(copy) => {
                let bytes = copy.bytes as u64;
                let source = copy.kind == CopyKind::HostToDevice || side(copy.src, bytes, Place::Source);
                let target = copy.kind == CopyKind::DeviceToHost || side(copy.dst, bytes, Place::Destination);
                (source && target).then_some(found)
            }
            Work::Fill(fill) => {
                side(fill.dst, fill.count as u64 * u64::from(fill.width), Place::Destination).then_some(found)
            }
            Work::Kernel(launch) => {
                let words = launch.args.chunks_exact(8).enumerate();
                let points = |word: &[u8]| word.try_into().is_ok_and(|word| self.has(u64::from_le_bytes(word)));
                found.extend(words.filter(|(_, word)| points(word)).map(|(at, _)| Place::Argument(8 * at)));
                (!found.is_empty() || !self.is_whole()).then_some(found)
            }
            _ => None,
        }
    }
}

impl Exchanges {
    pub fn new(parameters: Vec<ArrayParameter>, nodes: &[Node]) -> Exchanges {
        let mut exchanges = Exchanges::default();
        for (index, parameter) in parameters.into_iter().enumerate() {
            let (mut written, mut copied) = (false, false);
            for (at, node) in nodes.iter().enumerate() {
                let same = |used: &&Use| Arc::ptr_eq(&used.storage, &parameter.storage);
                if node.command.uses.iter().find(same).is_none() {
                    continue;
                }
                let places = parameter.places(&node.command.work);
                if places.as_ref().is_some_and(|places| places.is_empty()) {
                    continue;
                }
                written |= node.command.uses.iter().filter(same).any(|used| used.access.is_written());
                copied |= places.is_none();
                for place in places.into_iter().flatten() {
                    exchanges.places.entry(at).or_default().push((index, place));
                }
            }
            let given = Given { first: parameter.first, storage: parameter.storage.clone(), writeable: true };
            exchanges.all.push(Exchange { parameter, written, copied, given });
        }
        exchanges
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Has the node an address that may change?
    pub fn touches(&self, node: usize) -> bool {
        self.places.contains_key(&node)
    }

    /// The addresses that the commands have to have now, by parameter.
    pub fn addresses(&self) -> Vec<DevPtr> {
        self.all.iter().map(|e| if e.copied { e.parameter.first } else { e.given.first }).collect()
    }

    /// Nodes that are different with the one set of addresses and the other.
    pub fn changed(&self, before: &[DevPtr], now: &[DevPtr]) -> Vec<usize> {
        let differs = |places: &Vec<(usize, Place)>| places.iter().any(|(index, _)| before[*index] != now[*index]);
        self.places.iter().filter(|(_, places)| differs(places)).map(|(node, _)| *node).collect()
    }

    /// The command of a node with the addresses of now.
    pub fn command(&self, node: usize, recorded: &Command) -> Command {
        let mut command = recorded.clone();
        for (index, place) in self.places.get(&node).into_iter().flatten() {
            let exchange = &self.all[*index];
            if exchange.copied {
                continue;
            }
            exchange.shift(&mut command, *place);
        }
        command
    }

    /// What a replay uses of the given arrays.
    pub fn uses(&self) -> impl Iterator<Item = (&Arc<Storage>, bool)> + Clone {
        self.all.iter().map(|exchange| (&exchange.given.storage, exchange.written))
    }

    /// Put the content of given arrays into the named ones where these are kept. What those held is saved.
    pub fn copy_in(&self, ctx: &ExecCtx) -> Result<Saved> {
        let mut saved = Saved::new();
        for (index, exchange) in self.all.iter().enumerate() {
            let (named, given) = (exchange.parameter.side(), exchange.given.side());
            if !exchange.copied || named.0 == given.0 {
                continue;
            }
            let storage = ctx.allocate(exchange.parameter.bytes as usize, &mut runtime::wait_check)?;
            submit(ctx, exchange.copy((storage.ptr(), &storage), named))?;
            submit(ctx, exchange.copy(named, given))?;
            saved.push((index, storage));
        }
        Ok(saved)
    }

    /// Put what is written back into the given arrays, and into the named ones what they held.
    pub fn copy_out(&self, ctx: &ExecCtx, saved: Saved) -> Result<()> {
        for (index, storage) in saved {
            let exchange = &self.all[index];
            let (named, given) = (exchange.parameter.side(), exchange.given.side());
            if exchange.written {
                submit(ctx, exchange.copy(given, named))?;
            }
            submit(ctx, exchange.copy(named, (storage.ptr(), &storage)))?;
        }
        Ok(())
    }
}

/// What named arrays held, by the number of the parameter.
pub(super) type Saved = SmallVec<[(usize, Arc<Storage>); 1]>;

/// An end of a copy.
type Side<'a> = (DevPtr, &'a Arc<Storage>);

impl Given {
    fn side(&self) -> Side<'_> {
        (self.first, &self.storage)
    }
}

impl Exchange {
    fn shift(&self, command: &mut Command, place: Place) {
        let (from, to) = (self.parameter.first, self.given.first);
        let moved = |address: u64| to + (address - from);
        let access = if self.written { Access::ReadWrite } else { Access::Read };
        match (&mut command.work, place) {
            (Work::Kernel(launch), Place::Argument(at)) => {
                if let Some(word) = launch.args.get_mut(at..at + 8)
                    && let Ok(old) = <[u8; 8]>::try_from(&*word)
                {
                    word.copy_from_slice(&moved(u64::from_le_bytes(old)).to_le_bytes());
                }
                for array in launch.arrays.iter_mut().filter(|array| self.parameter.has(array.address)) {
                    array.address = moved(array.address);
                    array.memory = self.given.storage.extent();
                }
            }
            (Work::Copy(copy), Place::Source) => copy.src = moved(copy.src),
            (Work::Copy(copy), Place::Destination) => copy.dst = moved(copy.dst),
            (Work::Fill(fill), Place::Destination) => fill.dst = moved(fill.dst),
            _ => return,
        }
        let storage = self.given.storage.clone();
        command.uses.push(Use { storage, access, tag: ArgTag::default() });
    }

    /// Copy all of it from one place to another.
    fn copy(&self, (dst, to): Side<'_>, (src, from): Side<'_>) -> Command {
        let bytes = self.parameter.bytes as usize;
        let used = |storage: &Arc<Storage>, access| Use { storage: storage.clone(), access, tag: ArgTag::default() };
        let uses = [used(to, Access::Write), used(from, Access::Read)].into_iter().collect();
        let copy = Copy { kind: CopyKind::DeviceToDevice, dst, src, bytes, keep: None };
        Command { work: Work::Copy(copy), uses, cost_key: 0 }
    }
}
