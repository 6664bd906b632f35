//! Bulk copies: `cp.async.bulk`, with and without tensor maps, and `st.async`.

use super::mbarrier::update;
use super::warpwide::lanes_of;
use crate::emulator::bulk::{Bulk, Source, Store, Target, Tile};
use crate::emulator::cluster::RANK_SHIFT;
use crate::emulator::code::{Flow, Instr, LANES};
use crate::emulator::fault::{FaultKind, MemorySpace};
use crate::emulator::tensor_map::{BYTES, MAX_RANK, Part, TensorMap};
use crate::emulator::warp::Cx;

/// Operands of a bulk copy, a list that `x` names: rows of 64 bits and offsets of the shared side, of the other side
/// and of the object, the row of the size (32 bits) or of the mask of blocks (16 bits), and rows of coordinates.
pub(crate) struct Operands<'a>(&'a [u32]);

/// Numbers of the list before the coordinates.
pub(crate) const FIXED: usize = 8;

impl<'a> Operands<'a> {
    fn of(cx: &Cx<'a>, i: &Instr) -> Operands<'a> {
        Operands(super::matrix::rows(cx, i.x as u32))
    }

    /// # Safety
    /// The list was made by `lower`.
    unsafe fn address(&self, cx: &Cx<'_>, at: usize, lane: usize) -> u64 {
        // SAFETY: the caller's contract.
        let row = unsafe { cx.get::<u64>(self.0[at]) };
        row[lane].wrapping_add(self.0[at + 1] as i32 as i64 as u64)
    }

    unsafe fn shared(&self, cx: &Cx<'_>, lane: usize) -> u64 {
        // SAFETY: the caller's contract.
        unsafe { self.address(cx, 0, lane) }
    }

    unsafe fn other(&self, cx: &Cx<'_>, lane: usize) -> u64 {
        // SAFETY: the caller's contract.
        unsafe { self.address(cx, 2, lane) }
    }

    unsafe fn object(&self, cx: &Cx<'_>, lane: usize) -> u64 {
        // SAFETY: the caller's contract.
        unsafe { self.address(cx, 4, lane) }
    }

    unsafe fn size(&self, cx: &Cx<'_>, lane: usize) -> u32 {
        // SAFETY: the caller's contract.
        let row = unsafe { cx.get::<u32>(self.0[6]) };
        row[lane]
    }

    /// Blocks that get the copy; none where the instruction has no mask.
    unsafe fn blocks(&self, cx: &Cx<'_>, lane: usize) -> Option<u16> {
        // SAFETY: the caller's contract.
        (self.0[7] != 0).then(|| unsafe { cx.get::<u16>(self.0[7]) }[lane])
    }

    unsafe fn coordinates(&self, cx: &Cx<'_>, lane: usize) -> [i32; MAX_RANK] {
        let mut at = [0; MAX_RANK];
        for (at, &row) in at.iter_mut().zip(&self.0[FIXED..]) {
            // SAFETY: the caller's contract.
            *at = unsafe { cx.get::<u32>(row) }[lane] as i32;
        }
        at
    }
}

fn invalid<T>(text: String) -> Result<T, FaultKind> {
    Err(FaultKind::Invalid { text })
}

/// The tensor map at a generic address, for so many coordinates.
fn read_map(cx: &mut Cx<'_>, lane: usize, address: u64, rank: usize) -> Result<TensorMap, FaultKind> {
    if !address.is_multiple_of(64) {
        return invalid(format!("the tensor map at {address:#x} must be at a multiple of 64"));
    }
    let mut bytes = [0; BYTES];
    for half in [0, 64] {
        let from = cx.resolve(lane, address + half as u64, 64, false)?;
        // SAFETY: just resolved; parameters need not be aligned here, bytes are.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr().add(half), 64) };
    }
    let map = TensorMap::decode(&bytes).or_else(|text| invalid(format!("{text} ({address:#x})")))?;
    if map.rank != rank {
        return invalid(format!("a copy of {rank} dimensions with a tensor map of {}", map.rank));
    }
    Ok(map)
}

/// Are the parts of a tensor that a copy touches memory it may touch?
fn check_tile(cx: &mut Cx<'_>, lane: usize, tile: &Tile, write: bool) -> Result<(), Flow> {
    let tile = *tile;
    tile.map.each_row(&tile.at, |_, part| {
        let Some(Part { address, bytes, .. }) = part else { return Ok(()) };
        check_bytes(cx, lane, address, bytes, write)
    })
}

fn check_bytes(cx: &mut Cx<'_>, lane: usize, address: u64, bytes: u32, write: bool) -> Result<(), Flow> {
    if cx.checker.is_some() {
        cx.check_bulk(lane, address, bytes, write)?;
    }
    if cx.is_valid(address, address.wrapping_add(u64::from(bytes))) {
        return Ok(());
    }
    let kind = FaultKind::OutOfBounds { space: MemorySpace::Global, write, address, bytes, limit: 0 };
    Err(cx.raise(kind, 1 << lane))
}

/// Rank and offset of a range of the cluster's shared memory.
fn place(cx: &mut Cx<'_>, address: u64, end: u64, align: u64, write: bool) -> Result<(u32, u32), FaultKind> {
    let (space, limit) = (MemorySpace::Shared, cx.block.memory.bytes as u64);
    let bytes = end.min(u64::from(u32::MAX)) as u32;
    let place = cx.place_in_cluster(address).filter(|(_, offset)| u64::from(*offset) + end <= limit);
    match place {
        Some((_, offset)) if !u64::from(offset).is_multiple_of(align) => {
            invalid(format!("a bulk copy at offset {offset} of shared memory: it must be a multiple of {align}"))
        }
        Some(place) => Ok(place),
        None => Err(FaultKind::OutOfBounds { space, write, address, bytes, limit }),
    }
}

/// Issue a copy to shared memory, for all blocks of a mask where there is one.
fn issue(cx: &mut Cx<'_>, lane: usize, bulk: Bulk, blocks: Option<u16>) -> Result<(), Flow> {
    let own = cx.block.rank;
    let Some(blocks) = blocks else { return issue_one(cx, lane, bulk) };
    if u32::from(blocks) >> cx.block.cluster.size() != 0 {
        let text = format!("a copy to the blocks {blocks:#06x} of a cluster of {}", cx.block.cluster.size());
        return Err(cx.raise(FaultKind::Invalid { text }, 1 << lane));
    }
    // Each block gets the data and hears of it at the same offsets.
    let ranks = (0..16).filter(|rank| blocks >> rank & 1 != 0);
    for rank in ranks {
        let copy =
            Bulk { target: (rank, bulk.target.1), object: (rank, bulk.object.1), issuer: (own, bulk.issuer.1), ..bulk };
        issue_one(cx, lane, copy)?;
    }
    Ok(())
}

fn issue_one(cx: &mut Cx<'_>, lane: usize, bulk: Bulk) -> Result<(), Flow> {
    if cx.checker.is_some() && bulk.target.0 == cx.block.rank {
        let mut at = [0; LANES];
        let bytes = bulk.bytes();
        let unit = if bytes.is_multiple_of(16) { 16 } else { bytes.clamp(1, 8) };
        for offset in (0..bytes).step_by(unit as usize) {
            at[lane] = u64::from(bulk.target.1 + offset);
            cx.check_access(super::memory::Kind::Shared, &at, 1 << lane, unit, true)?;
        }
    }
    cx.block.cluster.bulk.push(bulk);
    Ok(())
}

/// Run a copy for each lane; an error is a fault of that lane.
fn each_lane(
    cx: &mut Cx<'_>,
    m: u32,
    mut run: impl FnMut(&mut Cx<'_>, usize) -> Result<Result<(), Flow>, FaultKind>,
) -> Flow {
    for lane in lanes_of(m) {
        match run(cx, lane) {
            Ok(Ok(())) => {}
            Ok(Err(flow)) => return flow,
            Err(kind) => return cx.raise(kind, 1 << lane),
        }
    }
    Flow::Next
}

fn issuer(cx: &Cx<'_>, lane: usize) -> (u32, u32) {
    (cx.block.rank, cx.warp.id * LANES as u32 + lane as u32)
}

/// `cp.async.bulk.tensor` from global to shared memory.
pub(crate) unsafe fn load_tile(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    let operands = Operands::of(cx, i);
    each_lane(cx, m, |cx, lane| {
        // SAFETY: the list was made by `lower`.
        let (target, map, object, blocks, at) = unsafe {
            let target = operands.shared(cx, lane);
            let at = operands.coordinates(cx, lane);
            (target, operands.other(cx, lane), operands.object(cx, lane), operands.blocks(cx, lane), at)
        };
        let map = read_map(cx, lane, map, operands.0.len() - FIXED)?;
        let tile = Tile { map, at };
        let target = place(cx, target, tile.end(0), 128, true)?;
        let object = place(cx, object, 8, 8, true)?;
        if let Err(flow) = check_tile(cx, lane, &tile, false) {
            return Ok(Err(flow));
        }
        let bulk = Bulk { object, target, source: Source::Tile(tile), issuer: issuer(cx, lane) };
        Ok(issue(cx, lane, bulk, blocks))
    })
}

/// `cp.async.bulk` to shared memory: from global memory, or with `c` from the block's shared memory.
pub(crate) unsafe fn load_bytes(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    let operands = Operands::of(cx, i);
    each_lane(cx, m, |cx, lane| {
        // SAFETY: the list was made by `lower`.
        let (target, source, object, blocks, size) = unsafe {
            let (target, source) = (operands.shared(cx, lane), operands.other(cx, lane));
            (target, source, operands.object(cx, lane), operands.blocks(cx, lane), operands.size(cx, lane))
        };
        check_size(size, source)?;
        let target = place(cx, target, u64::from(size), 16, true)?;
        let object = place(cx, object, 8, 8, true)?;
        let from = if i.c != 0 {
            let (rank, offset) = place(cx, source, u64::from(size), 16, false)?;
            if rank != cx.block.rank {
                return invalid(format!(
                    "a bulk copy from the shared memory of block {rank} of the cluster, not its own"
                ));
            }
            if let Err(flow) = read_units(cx, lane, offset, size) {
                return Ok(Err(flow));
            }
            // SAFETY: inside the block's shared memory.
            unsafe { cx.block.memory.as_mut_ptr().add(offset as usize) as u64 }
        } else if let Err(flow) = check_bytes(cx, lane, source, size, false) {
            return Ok(Err(flow));
        } else {
            source
        };
        let bulk = Bulk { object, target, source: Source::Bytes(from, size), issuer: issuer(cx, lane) };
        Ok(issue(cx, lane, bulk, blocks))
    })
}

fn check_size(size: u32, address: u64) -> Result<(), FaultKind> {
    if size == 0 || !size.is_multiple_of(16) || !address.is_multiple_of(16) {
        return invalid(format!("a bulk copy of {size} bytes at {address:#x}: both must be multiples of 16"));
    }
    Ok(())
}

/// `st.async [a], b, [c]`: values of the rows of a list, `x`: bytes of each, offsets of the addresses, the rows.
pub(crate) unsafe fn store_async(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    let list = super::matrix::rows(cx, i.x as u32);
    let (item, rows) = (list[0] as usize, &list[3..]);
    each_lane(cx, m, |cx, lane| {
        // SAFETY: rows of 64-bit addresses, and of values of the size the list says.
        let (target, object, values) = unsafe {
            let mut values = [0u8; 16];
            for (&row, to) in rows.iter().zip(values.chunks_exact_mut(item)) {
                match item {
                    8 => to.copy_from_slice(&cx.get::<u64>(row)[lane].to_le_bytes()),
                    _ => to.copy_from_slice(&cx.get::<u32>(row)[lane].to_le_bytes()),
                }
            }
            (cx.get::<u64>(i.a)[lane], cx.get::<u64>(i.c)[lane], values)
        };
        let bytes = (item * rows.len()) as u32;
        let target = target.wrapping_add(list[1] as i32 as i64 as u64);
        let object = object.wrapping_add(list[2] as i32 as i64 as u64);
        let target = place(cx, target, u64::from(bytes), u64::from(bytes), true)?;
        let object = place(cx, object, 8, 8, true)?;
        if target.0 != object.0 {
            return invalid("'st.async' to one block with an mbarrier object of another".to_string());
        }
        let bulk = Bulk { object, target, source: Source::Values(values, bytes), issuer: issuer(cx, lane) };
        Ok(issue(cx, lane, bulk, None))
    })
}

/// Complete the copies that the object at an address hears of.
pub(crate) fn finish_bulk(cx: &mut Cx<'_>, address: u64) -> Result<(), FaultKind> {
    if cx.block.cluster.bulk.is_empty() {
        return Ok(());
    }
    let Some(object) = cx.place_in_cluster(address) else { return Ok(()) };
    // Where orders are random, copies may take some time.
    if cx.block.order.as_mut().is_some_and(|order| order.below(2) == 0) {
        return Ok(());
    }
    let mut index = 0;
    while index < cx.block.cluster.bulk.len() {
        if cx.block.cluster.bulk[index].object != object {
            index += 1;
            continue;
        }
        let bulk = cx.block.cluster.bulk.remove(index);
        let rank = bulk.target.0;
        let memory = if rank == cx.block.rank {
            Some(cx.block.memory.as_mut_ptr())
        } else {
            cx.block.cluster.memory(rank).map(|(memory, _)| memory)
        };
        let Some(memory) = memory else {
            return invalid(format!("a bulk copy to the shared memory of the block with rank {rank}, which has ended"));
        };
        // SAFETY: checked when it was issued; all blocks have as much memory.
        unsafe { bulk.complete(memory) };
        cx.check_landed(&bulk, address);
        let at = u64::from(object.0 + 1) << RANK_SHIFT | u64::from(object.1);
        update(cx, at, |object| object.transact(-i64::from(bulk.bytes())))?;
    }
    Ok(())
}

/// The block's shared memory that an asynchronous copy reads.
fn read_units(cx: &mut Cx<'_>, lane: usize, start: u32, bytes: u32) -> Result<(), Flow> {
    if cx.checker.is_none() {
        return Ok(());
    }
    let mut at = [0; LANES];
    for offset in (0..bytes).step_by(16) {
        at[lane] = u64::from(start + offset);
        cx.check_async_read(&at, 1 << lane, "a bulk copy")?;
    }
    Ok(())
}

fn issue_store(cx: &mut Cx<'_>, lane: usize, source: u32, target: Target) {
    let group = cx.warp.copies.stored[lane];
    cx.warp.copies.stores.push(Store { lane: lane as u8, group, source, target, data: None });
}

/// The source of a copy to global memory: an offset in the block's own shared memory.
fn own_place(cx: &mut Cx<'_>, address: u64, end: u64, align: u64) -> Result<u32, FaultKind> {
    match place(cx, address, end, align, false)? {
        (rank, offset) if rank == cx.block.rank => Ok(offset),
        (rank, _) => invalid(format!("a bulk copy from the shared memory of block {rank} of the cluster, not its own")),
    }
}

/// `cp.async.bulk.tensor` from shared to global memory.
pub(crate) unsafe fn store_tile(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    let operands = Operands::of(cx, i);
    each_lane(cx, m, |cx, lane| {
        // SAFETY: the list was made by `lower`.
        let (source, map, at) =
            unsafe { (operands.shared(cx, lane), operands.other(cx, lane), operands.coordinates(cx, lane)) };
        let map = read_map(cx, lane, map, operands.0.len() - FIXED)?;
        if map.read_only {
            return invalid("a copy to an array whose tensor map was made for reading".to_string());
        }
        let tile = Tile { map, at };
        let source = own_place(cx, source, tile.end(0), 128)?;
        let checked = check_tile(cx, lane, &tile, true).and_then(|()| read_units(cx, lane, source, tile.end(0) as u32));
        if let Err(flow) = checked {
            return Ok(Err(flow));
        }
        issue_store(cx, lane, source, Target::Tile(tile));
        Ok(Ok(()))
    })
}

/// `cp.async.bulk` from shared to global memory.
pub(crate) unsafe fn store_bytes(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    let operands = Operands::of(cx, i);
    each_lane(cx, m, |cx, lane| {
        // SAFETY: the list was made by `lower`.
        let (source, target, size) =
            unsafe { (operands.shared(cx, lane), operands.other(cx, lane), operands.size(cx, lane)) };
        check_size(size, target)?;
        let source = own_place(cx, source, u64::from(size), 16)?;
        let checked = check_bytes(cx, lane, target, size, true).and_then(|()| read_units(cx, lane, source, size));
        if let Err(flow) = checked {
            return Ok(Err(flow));
        }
        issue_store(cx, lane, source, Target::Bytes(target, size));
        Ok(Ok(()))
    })
}

/// `cp.async.bulk.commit_group`
pub(crate) unsafe fn commit(cx: &mut Cx<'_>, _i: &Instr, m: u32) -> Flow {
    for lane in lanes_of(m) {
        let stored = &mut cx.warp.copies.stored[lane];
        *stored = stored.wrapping_add(1);
    }
    Flow::Next
}

/// `cp.async.bulk.wait_group x`: all groups but the last `x` are complete, or have read their source where `a` is set.
pub(crate) unsafe fn wait_group(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    let stored = cx.warp.copies.stored;
    let due = |store: &Store| u64::from(stored[usize::from(store.lane & 31)].wrapping_sub(store.group)) > i.x;
    finish_stores(cx, m, i.a != 0, due);
    Flow::Next
}

/// Complete the copies to global memory of these lanes that are due, or only read their source.
pub(crate) fn finish_stores(cx: &mut Cx<'_>, m: u32, read_only: bool, due: impl Fn(&Store) -> bool) {
    if cx.warp.copies.stores.is_empty() {
        return;
    }
    let memory = cx.block.memory.as_mut_ptr();
    cx.warp.copies.stores.retain_mut(|store| {
        if m >> store.lane & 1 == 0 || !due(store) {
            return true;
        }
        // SAFETY: checked when it was issued.
        unsafe {
            store.read(memory);
            if !read_only {
                store.write();
            }
        }
        read_only
    });
}
