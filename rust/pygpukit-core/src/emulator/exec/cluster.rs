//! Instructions of clusters: their barrier, and addresses in the shared memory of other blocks.

use super::warpwide::lanes_of;
use crate::emulator::cluster::RANK_SHIFT;
use crate::emulator::code::{Flow, Instr, LANES};
use crate::emulator::fault::FaultKind;
use crate::emulator::memory::{SHARED_WINDOW, WINDOW_MASK};
use crate::emulator::warp::{Cx, Group, Wait};

/// What an instruction of the barrier does: the `x` of it. An ordered one releases or acquires.
pub(crate) const ALIGNED: u64 = 1;
pub(crate) const ORDERED: u64 = 2;

/// All lanes of the warp that live must be at an aligned instruction.
fn gather(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Result<(), Flow> {
    let live = cx.warp.live;
    if i.x & ALIGNED != 0 && m != live {
        cx.wait = Wait::Aligned(live);
        return Err(Flow::Wait);
    }
    Ok(())
}

/// `barrier.cluster.arrive`
pub(crate) unsafe fn arrive(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    if let Err(flow) = gather(cx, i, m) {
        return flow;
    }
    let twice = cx.warp.at_cluster & m;
    if twice != 0 {
        let text = "a second arrival at the cluster's barrier without a wait for the first".to_string();
        return cx.raise(FaultKind::Invalid { text }, twice);
    }
    let phase = cx.block.cluster.phase;
    if cx.watched && i.x & ORDERED != 0 {
        cx.check_cluster(m, phase, false);
    }
    cx.warp.at_cluster |= m;
    lanes_of(m).for_each(|lane| cx.warp.cluster_phases[lane] = phase);
    cx.block.cluster.arrived += m.count_ones();
    cx.block.cluster.settle();
    Flow::Next
}

/// `barrier.cluster.wait`: lanes whose phase is over go on, the others wait here.
pub(crate) unsafe fn wait(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    if let Err(flow) = gather(cx, i, m) {
        return flow;
    }
    let missing = m & !cx.warp.at_cluster;
    if missing != 0 {
        let text = "a wait at the cluster's barrier without an arrival before it".to_string();
        return cx.raise(FaultKind::Invalid { text }, missing);
    }
    let phase = cx.block.cluster.phase;
    let early = lanes_of(m).filter(|&lane| cx.warp.cluster_phases[lane] == phase).fold(0, |all, lane| all | 1 << lane);
    cx.wait = Wait::Cluster { phase };
    if early == m {
        return Flow::Wait;
    }
    let over = m & !early;
    cx.warp.at_cluster &= !over;
    if cx.watched && i.x & ORDERED != 0 {
        cx.check_cluster(over, phase.wrapping_sub(1), true);
    }
    if early == 0 {
        return Flow::Next;
    }
    let (pc, base) = (cx.pc, cx.base);
    cx.warp.groups.push(Group { mask: early, pc, base, wait: cx.wait, stamp: 0 });
    cx.active &= !early;
    cx.pc = pc + 1;
    Flow::Jump
}

/// The `x` of `mapa` and `getctarank`: 64-bit registers, and generic addresses.
pub(crate) const WIDE: u64 = 1;
pub(crate) const GENERIC: u64 = 2;

/// Rank and offset of each lane's address `a`.
///
/// # Safety
/// `a` is a row of the width `x` says.
unsafe fn places(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Result<[(u32, u32); LANES], Flow> {
    // SAFETY: the caller's contract.
    let a = unsafe { if i.x & WIDE != 0 { cx.get::<u64>(i.a) } else { cx.get::<u32>(i.a).map(u64::from) } };
    let mut places = [(0, 0); LANES];
    for lane in lanes_of(m) {
        let generic = i.x & GENERIC != 0;
        let inside = !generic || a[lane] & WINDOW_MASK == SHARED_WINDOW;
        let address = if generic { a[lane] & !WINDOW_MASK } else { a[lane] };
        match cx.place_in_cluster(address).filter(|_| inside) {
            Some(place) => places[lane] = place,
            None => {
                let text = format!("{:#x} is not an address in the shared memory of the cluster", a[lane]);
                return Err(cx.raise(FaultKind::Invalid { text }, 1 << lane));
            }
        }
    }
    Ok(places)
}

/// `mapa d, a, b`: the address in the block of rank `b` that corresponds to `a`.
pub(crate) unsafe fn map_address(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    // SAFETY: a row of addresses, and a 32-bit row.
    let (places, ranks) = match unsafe { (places(cx, i, m), cx.get::<u32>(i.b)) } {
        (Ok(places), ranks) => (places, ranks),
        (Err(flow), _) => return flow,
    };
    let size = cx.block.cluster.size();
    let mut d = [0u64; LANES];
    for lane in lanes_of(m) {
        if ranks[lane] >= size {
            let text = format!("'mapa' to the block of rank {} of a cluster of {size}", ranks[lane]);
            return cx.raise(FaultKind::Invalid { text }, 1 << lane);
        }
        let window = if i.x & GENERIC != 0 { SHARED_WINDOW } else { 0 };
        d[lane] = u64::from(ranks[lane] + 1) << RANK_SHIFT | u64::from(places[lane].1) | window;
    }
    // SAFETY: the result is a row of the width of the addresses.
    unsafe {
        if i.x & WIDE != 0 {
            cx.put(i.d, m, d);
        } else {
            cx.put(i.d, m, d.map(|address| address as u32));
        }
    }
    Flow::Next
}

/// `getctarank d, a`: the rank of the block whose memory `a` is in.
pub(crate) unsafe fn rank_of(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    // SAFETY: a row of addresses, and a 32-bit row for the result.
    unsafe {
        match places(cx, i, m) {
            Ok(places) => cx.put(i.d, m, places.map(|(rank, _)| rank)),
            Err(flow) => return flow,
        }
    }
    Flow::Next
}
