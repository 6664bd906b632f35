//! Barriers of the block.

use smallvec::SmallVec;

use super::warpwide::lanes_of;
use crate::emulator::block::BARRIERS;
use crate::emulator::code::{Flow, Instr, LANES};
use crate::emulator::fault::FaultKind;
use crate::emulator::warp::{Cx, Group, Wait};

/// What a barrier instruction does, packed into `x` of its instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mode {
    /// All lanes of the warp come together, with the same operands.
    pub aligned: bool,
    /// Wait until the barrier completes.
    pub wait: bool,
    /// A reduction: the predicate `c` is gathered.
    pub reduce: bool,
}

impl Mode {
    pub fn pack(self) -> u64 {
        u64::from(self.aligned) | u64::from(self.wait) << 1 | u64::from(self.reduce) << 2
    }

    fn unpack(x: u64) -> Mode {
        Mode { aligned: x & 1 != 0, wait: x & 2 != 0, reduce: x & 4 != 0 }
    }
}

/// Arrive at the barrier `a`, of `b` threads (row 0: all of the block), and wait as `x` says. A reduction gathers the
/// predicate `c` and leaves the phase in the row `d`, for `reduced`.
///
/// A lane passes to the next instruction when its wait is over, see `Cx::wake`: it must not arrive twice.
pub(crate) unsafe fn barrier(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    let mode = Mode::unpack(i.x);
    let live = cx.warp.live;
    if mode.aligned && m != live {
        cx.wait = Wait::Aligned(live);
        return Flow::Wait;
    }
    // SAFETY: 32-bit rows and a predicate.
    let (ids, counts, votes) = unsafe {
        let counts = if i.b == 0 { [0; LANES] } else { cx.get::<u32>(i.b) };
        (cx.get::<u32>(i.a), counts, cx.pred(i.c))
    };
    let mut waiting = SmallVec::<[(u32, Wait); 1]>::new();
    let mut left = m;
    while left != 0 {
        let first = left.trailing_zeros() as usize & 31;
        let (id, count) = (ids[first], counts[first]);
        let same = |&lane: &usize| ids[lane] == id && counts[lane] == count;
        let team = lanes_of(left).filter(same).fold(0, |all, lane| all | 1 << lane);
        if let Some(text) = problem(cx, id, count, i.b != 0, mode.aligned && team != m) {
            return cx.raise(FaultKind::Invalid { text }, team);
        }
        left &= !team;
        // A warp counts in full: lanes that do not exist or have exited arrive with the lowest one that lives.
        let absent = if count != 0 && team >> (live.trailing_zeros() & 31) & 1 != 0 { live.count_zeros() } else { 0 };
        let barrier = &mut cx.block.barriers[id as usize];
        barrier.expected = count;
        barrier.arrived += team.count_ones() + absent;
        let phase = barrier.phase;
        if mode.reduce {
            barrier.readers += team.count_ones();
            barrier.count += (votes & team).count_ones();
            barrier.all &= votes & team == team;
            // SAFETY: a reduction has a 32-bit row for the phase.
            unsafe { cx.put(i.d, team, [phase; LANES]) };
        }
        if cx.watched {
            cx.check_barrier(id as usize, team, mode.wait, count != 0);
        }
        cx.block.settle(id as usize);
        if cx.watched {
            cx.check_inbox();
        }
        if mode.wait && cx.block.barriers[id as usize].phase == phase {
            waiting.push((team, Wait::Barrier { id: id as u8, phase }));
        }
    }
    match waiting[..] {
        [] => Flow::Next,
        [(team, wait)] if team == m => {
            cx.wait = wait;
            Flow::Wait
        }
        _ => {
            let (pc, base) = (cx.pc, cx.base);
            for (team, wait) in waiting {
                cx.warp.groups.push(Group { mask: team, pc, base, wait, stamp: 0 });
                cx.active &= !team;
            }
            cx.pc = pc + 1;
            Flow::Jump
        }
    }
}

/// What is wrong with the operands of a barrier?
fn problem(cx: &Cx<'_>, id: u32, count: u32, counted: bool, parted: bool) -> Option<String> {
    if parted {
        return Some("lanes of a warp name different barriers or counts at an aligned barrier".to_string());
    }
    if id as usize >= BARRIERS {
        return Some(format!("barrier {id} does not exist: a block has barriers 0 to {}", BARRIERS - 1));
    }
    if counted && (count == 0 || !count.is_multiple_of(LANES as u32)) {
        return Some(format!("barrier {id} is used with {count} threads: the count must be a multiple of 32, from 32"));
    }
    let barrier = &cx.block.barriers[id as usize];
    if barrier.arrived > 0 && barrier.expected != count {
        let name = |n: u32| if n == 0 { "all threads".to_string() } else { format!("{n} threads") };
        let (before, now) = (name(barrier.expected), name(count));
        return Some(format!("barrier {id} is used with {now} while others wait at it with {before}"));
    }
    None
}

/// The result of a reduction at the barrier `a`, whose phase is in the row `b`: the count (x = 0), all, any.
pub(crate) unsafe fn reduced(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    // SAFETY: 32-bit rows, and a predicate or a 32-bit row for the result.
    unsafe {
        let (ids, phases) = (cx.get::<u32>(i.a), cx.get::<u32>(i.b));
        for lane in lanes_of(m) {
            let (count, all) = cx.block.take_result(ids[lane] as usize, phases[lane]);
            match i.x {
                0 => cx.put(i.d, 1 << lane, [count; LANES]),
                1 => cx.put_pred(i.d, 1 << lane, if all { u32::MAX } else { 0 }),
                _ => cx.put_pred(i.d, 1 << lane, if count > 0 { u32::MAX } else { 0 }),
            }
        }
    }
    Flow::Next
}
