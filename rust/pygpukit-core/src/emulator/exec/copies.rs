//! `cp.async`: copies from global to shared memory that end when they are waited for.

use smallvec::SmallVec;

use super::mbarrier::{objects, update};
use super::memory::{Kind, addresses_of, translate};
use super::warpwide::lanes_of;
use crate::emulator::code::{FULL, Flow, Instr, LANES};
use crate::emulator::copies::{Pending, Tracked};
use crate::emulator::fault::{FaultKind, MemorySpace};
use crate::emulator::warp::Cx;

/// `cp.async [d], [a]`: the row `b` gives the bytes that are read (row 0: all), none where the predicate `c` holds. `x`
/// is a list: bytes, offsets of the target and of the source, whether the target's address is wide, whether there is a
/// predicate, and whether it is negated.
pub(crate) unsafe fn copy(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    let list = &cx.grid.code().lists[i.x as usize + 1..];
    let (bytes, target_offset, source_offset) = (list[0], list[1] as i32, list[2] as i32);
    let (wide, predicated, negated) = (list[3] != 0, list[4] != 0, list[5] != 0);
    // SAFETY: rows of addresses, a 32-bit row and a predicate.
    let (mut targets, mut sources, mut reads, skipped) = unsafe {
        let targets = addresses_of(cx, i.d, target_offset, wide);
        let reads = if i.b == 0 { [bytes; LANES] } else { cx.get::<u32>(i.b) };
        let skipped = if predicated { cx.pred(i.c) ^ if negated { FULL } else { 0 } } else { 0 };
        (targets, addresses_of(cx, i.a, source_offset, true), reads, skipped)
    };
    for lane in lanes_of(m) {
        match cx.place_in_cluster(targets[lane]) {
            Some((rank, offset)) if rank == cx.block.rank => targets[lane] = u64::from(offset),
            Some((rank, _)) => {
                let text = format!("cp.async to the shared memory of block {rank} of the cluster, not its own");
                return cx.raise(FaultKind::Invalid { text }, 1 << lane);
            }
            None => {}
        }
    }
    let offsets = targets;
    if let Err(flow) = translate(cx, Kind::Shared, &mut targets, m, bytes, true) {
        return flow;
    }
    let (mut whole, mut part) = (0, 0);
    for lane in lanes_of(m) {
        if reads[lane] > bytes {
            let text = format!("cp.async of {bytes} bytes is to read {} of them", reads[lane]);
            return cx.raise(FaultKind::Invalid { text }, 1 << lane);
        }
        if skipped >> lane & 1 != 0 {
            reads[lane] = 0;
        }
        // A source of which nothing is read may be any address.
        match reads[lane] {
            0 => {}
            n if n == bytes => whole |= 1 << lane,
            _ => part |= 1 << lane,
        }
    }
    if whole != 0
        && let Err(flow) = translate(cx, Kind::Global, &mut sources, whole, bytes, false)
    {
        return flow;
    }
    for lane in lanes_of(part) {
        let (space, write, address) = (MemorySpace::Global, false, sources[lane]);
        let kind = if !address.is_multiple_of(u64::from(bytes)) {
            FaultKind::Misaligned { space, write, address, bytes }
        } else if !cx.is_valid(address, address.wrapping_add(u64::from(reads[lane]))) {
            FaultKind::OutOfBounds { space, write, address, bytes: reads[lane], limit: 0 }
        } else {
            continue;
        };
        return cx.raise(kind, 1 << lane);
    }
    let copies = &mut cx.warp.copies;
    for lane in lanes_of(m) {
        copies.pending.push(Pending {
            lane: lane as u8,
            bytes: bytes as u8,
            read: reads[lane] as u8,
            target: offsets[lane] as u32,
            source: sources[lane],
            group: copies.committed[lane],
        });
    }
    Flow::Next
}

/// `cp.async.commit_group`
pub(crate) unsafe fn commit(cx: &mut Cx<'_>, _i: &Instr, m: u32) -> Flow {
    for lane in lanes_of(m) {
        let committed = &mut cx.warp.copies.committed[lane];
        *committed = committed.wrapping_add(1);
    }
    Flow::Next
}

/// `cp.async.wait_group x`: all groups but the last `x` are complete.
pub(crate) unsafe fn wait_group(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    let committed = cx.warp.copies.committed;
    let due = |copy: &Pending| u64::from(committed[usize::from(copy.lane & 31)].wrapping_sub(copy.group)) > i.x;
    match finish(cx, m, due) {
        Ok(()) => Flow::Next,
        Err(kind) => cx.raise(kind, m),
    }
}

/// `cp.async.wait_all`
pub(crate) unsafe fn wait_all(cx: &mut Cx<'_>, _i: &Instr, m: u32) -> Flow {
    match finish(cx, m, |_| true) {
        Ok(()) => Flow::Next,
        Err(kind) => cx.raise(kind, m),
    }
}

/// Lanes exit: what they have begun ends.
pub(crate) fn finish_all(cx: &mut Cx<'_>, m: u32) -> Result<(), FaultKind> {
    if cx.checker.is_some()
        && let Some(copy) = cx.warp.copies.pending.iter().find(|copy| m >> copy.lane & 1 != 0).copied()
    {
        return Err(cx.forgotten_copy(u64::from(copy.target), u32::from(copy.bytes)));
    }
    super::bulk::finish_stores(cx, m, false, |_| true);
    finish(cx, m, |_| true)
}

/// Complete the copies of these lanes that are due, and all of theirs that an object tracks.
fn finish(cx: &mut Cx<'_>, m: u32, due: impl Fn(&Pending) -> bool) -> Result<(), FaultKind> {
    if cx.checker.is_some() {
        let done: Vec<Pending> =
            (cx.warp.copies.pending.iter()).filter(|copy| m >> copy.lane & 1 != 0 && due(copy)).copied().collect();
        cx.check_copied(cx.warp.id, &done, None);
    }
    let memory = cx.block.memory.as_mut_ptr();
    cx.warp.copies.pending.retain(|copy| {
        let now = m >> copy.lane & 1 != 0 && due(copy);
        if now {
            // SAFETY: checked when it was issued.
            unsafe { copy.complete(memory) };
        }
        !now
    });
    let warp = cx.warp.id;
    finish_tracked(cx, |tracked| tracked.warp == warp && m >> tracked.lane & 1 != 0)
}

/// Complete tracked copies, and arrive for them.
pub(crate) fn finish_tracked(cx: &mut Cx<'_>, due: impl Fn(&Tracked) -> bool) -> Result<(), FaultKind> {
    let memory = cx.block.memory.as_mut_ptr();
    let mut index = 0;
    while index < cx.block.tracked.len() {
        if !due(&cx.block.tracked[index]) {
            index += 1;
            continue;
        }
        let tracked = cx.block.tracked.remove(index);
        for copy in &tracked.copies {
            // SAFETY: checked when it was issued.
            unsafe { copy.complete(memory) };
        }
        cx.check_copied(tracked.warp, &tracked.copies, Some((tracked.lane, u64::from(tracked.barrier))));
        update(cx, u64::from(tracked.barrier), |object| object.arrive(1))?;
    }
    Ok(())
}

/// `cp.async.mbarrier.arrive [a]`: the object hears of the end of the copies a lane has issued. Without `.noinc` (the
/// flag) that arrival is one more than the object expects.
pub(crate) unsafe fn track(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    // SAFETY: a row of addresses.
    let at = match unsafe { objects(cx, i, m) } {
        Ok(at) => at,
        Err(flow) => return flow,
    };
    let noinc = i.x >> 48 != 0;
    for lane in lanes_of(m) {
        let known = update(cx, at[lane], |object| if noinc { Ok(()) } else { object.expect_arrival() });
        if let Err(kind) = known {
            return cx.raise(kind, 1 << lane);
        }
        let mut copies = SmallVec::new();
        cx.warp.copies.pending.retain(|copy| {
            let mine = usize::from(copy.lane) == lane;
            if mine {
                copies.push(*copy);
            }
            !mine
        });
        let (barrier, warp) = (at[lane] as u32, cx.warp.id);
        cx.block.tracked.push(Tracked { barrier, warp, lane: lane as u8, copies });
    }
    Flow::Next
}
