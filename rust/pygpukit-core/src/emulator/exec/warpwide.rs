//! Instructions of a whole warp: shuffles, votes, matches and reductions.
//!
//! A `.sync` instruction runs once all lanes of its mask that have not exited are here. Lanes of one group that name
//! different masks are teams of their own.

use smallvec::SmallVec;

use super::lanes::{Lane, handlers};
use crate::emulator::code::{Flow, Instr, LANES};
use crate::emulator::fault::FaultKind;
use crate::emulator::float;
use crate::emulator::warp::{Cx, Group, Wait};

/// Lanes of a mask, in order.
#[inline(always)]
pub(crate) fn lanes_of(mask: u32) -> impl Iterator<Item = usize> {
    (0..LANES).filter(move |lane| mask >> lane & 1 != 0)
}

/// Run something for each team of lanes that is complete; the mask each lane names is in the row `masks`.
#[inline(always)]
unsafe fn together(cx: &mut Cx<'_>, masks: u32, m: u32, run: impl Fn(&mut Cx<'_>, u32)) -> Flow {
    // SAFETY: the caller gives a 32-bit row.
    let masks = unsafe { cx.get::<u32>(masks) };
    let need = masks[m.trailing_zeros() as usize & 31];
    let mut differ = 0;
    for (lane, mask) in masks.iter().enumerate() {
        differ |= if m >> lane & 1 != 0 { mask ^ need } else { 0 };
    }
    if differ == 0 && m & !need == 0 {
        if need & cx.warp.live & !m != 0 {
            cx.wait = Wait::Lanes(need);
            return Flow::Wait;
        }
        run(cx, m);
        return Flow::Next;
    }
    apart(cx, &masks, m, run)
}

/// As `together`, for lanes that name different masks.
#[cold]
fn apart(cx: &mut Cx<'_>, masks: &[u32; LANES], m: u32, run: impl Fn(&mut Cx<'_>, u32)) -> Flow {
    if let Some(lane) = lanes_of(m).find(|&lane| masks[lane] >> lane & 1 == 0) {
        let text = format!("lane {lane} is not in the mask {:#010x} it names", masks[lane]);
        return cx.raise(FaultKind::Invalid { text }, 1 << lane);
    }
    let (pc, base) = (cx.pc, cx.base);
    let mut complete = SmallVec::<[u32; 8]>::new();
    let mut left = m;
    while left != 0 {
        let need = masks[left.trailing_zeros() as usize & 31];
        let team = lanes_of(left).filter(|&lane| masks[lane] == need).fold(0, |all, lane| all | 1 << lane);
        left &= !team;
        if need & cx.warp.live & !team == 0 {
            complete.push(team);
        } else {
            cx.warp.groups.push(Group { mask: team, pc, base, wait: Wait::Lanes(need), stamp: 0 });
            cx.active &= !team;
        }
    }
    for team in complete {
        run(cx, team);
    }
    cx.pc = pc + 1;
    Flow::Jump
}

/// Where a lane of a shuffle reads, and whether that is in its segment.
pub(crate) trait Shuffle {
    fn source(lane: i32, b: i32, low: i32, high: i32, segment: i32) -> (i32, bool);
}

macro_rules! shuffles {
    ($($name:ident: ($lane:ident, $b:ident, $low:ident, $high:ident, $segment:ident) => $source:expr, $inside:expr;)*) => {$(
        pub(crate) struct $name;
        impl Shuffle for $name {
            #[inline(always)]
            fn source($lane: i32, $b: i32, $low: i32, $high: i32, $segment: i32) -> (i32, bool) {
                let source = $source;
                #[allow(clippy::redundant_closure_call)]
                (source, ($inside)(source))
            }
        }
    )*};
}

shuffles! {
    Up: (lane, b, _low, high, _segment) => lane - b, |j| j >= high;
    Down: (lane, b, _low, high, _segment) => lane + b, |j| j <= high;
    Butterfly: (lane, b, _low, high, _segment) => lane ^ b, |j| j <= high;
    Index: (_lane, b, low, high, segment) => low | (b & !segment), |j| j <= high;
}

/// `shfl.sync d|x, a, b, list[0], list[1]`; `c` is the list: the clamp's row and the mask's row, `x` the predicate or 0.
///
/// A lane that is not here (exited, or not in the mask) has no value to give: the reader keeps its own.
#[inline(always)]
unsafe fn shuffle_body<O: Shuffle>(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    let lists = &cx.grid.code().lists;
    let (clamps, masks) = (lists[i.c as usize], lists[i.c as usize + 1]);
    // SAFETY: the operands are 32-bit rows and a predicate.
    unsafe {
        together(cx, masks, m, |cx, team| {
            let (a, b, c) = (cx.get::<u32>(i.a), cx.get::<u32>(i.b), cx.get::<u32>(clamps));
            let mut from = [0u32; LANES];
            let mut inside = 0;
            for lane in 0..LANES {
                let (clamp, segment) = ((c[lane] & 31) as i32, (c[lane] >> 8 & 31) as i32);
                let low = lane as i32 & segment;
                let high = low | (clamp & !segment);
                let (source, ok) = O::source(lane as i32, (b[lane] & 31) as i32, low, high, segment);
                inside |= u32::from(ok) << lane;
                let here = ok && team >> (source & 31) & 1 != 0;
                from[lane] = if here { source as u32 } else { lane as u32 };
            }
            let mut d = [0u32; LANES];
            for lane in 0..LANES {
                d[lane] = a[from[lane] as usize & 31];
            }
            cx.put(i.d, team, d);
            if i.x != 0 {
                cx.put_pred(i.x as u32, team, inside);
            }
        })
    }
}

handlers! {
    shuffle = shuffle_body<O: Shuffle>;
}

/// `vote.sync`: all, any, uni (x = 0, 1, 2) of the predicate `a`; the mask is the row `b`.
pub(crate) unsafe fn vote(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    // SAFETY: a 32-bit row and predicates.
    unsafe {
        together(cx, i.b, m, |cx, team| {
            let votes = cx.pred(i.a) & team;
            let holds = match i.x {
                0 => votes == team,
                1 => votes != 0,
                _ => votes == team || votes == 0,
            };
            cx.put_pred(i.d, team, if holds { u32::MAX } else { 0 });
        })
    }
}

/// `vote.sync.ballot`
pub(crate) unsafe fn ballot(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    // SAFETY: 32-bit rows and a predicate.
    unsafe {
        together(cx, i.b, m, |cx, team| {
            let votes = cx.pred(i.a) & team;
            cx.put(i.d, team, [votes; LANES]);
        })
    }
}

/// `match.any.sync`: the lanes that have the same value; the mask is the row `b`.
pub(crate) unsafe fn match_any<T: Lane + PartialEq>(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    // SAFETY: rows of the value's width and of 32 bits.
    unsafe {
        together(cx, i.b, m, |cx, team| {
            let a = cx.get::<T>(i.a);
            let mut d = [0u32; LANES];
            let mut left = team;
            while left != 0 {
                let value = a[left.trailing_zeros() as usize & 31];
                let same = lanes_of(left).filter(|&lane| a[lane] == value).fold(0, |all, lane| all | 1 << lane);
                lanes_of(same).for_each(|lane| d[lane] = same);
                // A NaN pattern is compared as bits, so a lane always matches itself.
                left &= !same;
            }
            cx.put(i.d, team, d);
        })
    }
}

/// `match.all.sync`: the whole mask where all lanes have the same value, else 0; `c` is the predicate or 0.
pub(crate) unsafe fn match_all<T: Lane + PartialEq>(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    // SAFETY: rows of the value's width and of 32 bits, and a predicate.
    unsafe {
        together(cx, i.b, m, |cx, team| {
            let a = cx.get::<T>(i.a);
            let value = a[team.trailing_zeros() as usize & 31];
            let same = lanes_of(team).all(|lane| a[lane] == value);
            cx.put(i.d, team, [if same { team } else { 0 }; LANES]);
            if i.c != 0 {
                cx.put_pred(i.c, team, if same { u32::MAX } else { 0 });
            }
        })
    }
}

/// How `redux.sync` joins two values.
pub(crate) trait Reduce {
    fn join(a: u32, b: u32) -> u32;
    fn first(a: u32) -> u32 {
        a
    }
}

macro_rules! reductions {
    ($($name:ident: |$a:ident, $b:ident| $value:expr $(, first |$f:ident| $first:expr)?;)*) => {$(
        pub(crate) struct $name;
        impl Reduce for $name {
            #[inline(always)]
            fn join($a: u32, $b: u32) -> u32 { $value }
            $(
                #[inline(always)]
                fn first($f: u32) -> u32 { $first }
            )?
        }
    )*};
}

reductions! {
    Sum: |a, b| a.wrapping_add(b);
    MinU: |a, b| a.min(b);
    MaxU: |a, b| a.max(b);
    MinS: |a, b| (a as i32).min(b as i32) as u32;
    MaxS: |a, b| (a as i32).max(b as i32) as u32;
    And: |a, b| a & b;
    Or: |a, b| a | b;
    Xor: |a, b| a ^ b;
    MinF: |a, b| float::min_f32(a, b, false), first |a| float::min_f32(a, a, false);
    MaxF: |a, b| float::max_f32(a, b, false), first |a| float::max_f32(a, a, false);
    MinNan: |a, b| float::min_f32(a, b, true), first |a| float::min_f32(a, a, true);
    MaxNan: |a, b| float::max_f32(a, b, true), first |a| float::max_f32(a, a, true);
}

/// `redux.sync`; the mask is the row `b`, `x` clears bits of the operands (the sign, for `.abs`).
pub(crate) unsafe fn reduce<O: Reduce>(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    // SAFETY: 32-bit rows.
    unsafe {
        together(cx, i.b, m, |cx, team| {
            let a = cx.get::<u32>(i.a).map(|value| value & !(i.x as u32));
            let first = team.trailing_zeros() as usize & 31;
            let rest = team & (team - 1);
            let value = lanes_of(rest).fold(O::first(a[first]), |all, lane| O::join(all, a[lane]));
            cx.put(i.d, team, [value; LANES]);
        })
    }
}

/// `elect.sync`: the lowest lane of the team leads; `c` is the predicate that holds for it.
pub(crate) unsafe fn elect(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    // SAFETY: 32-bit rows and a predicate.
    unsafe {
        together(cx, i.b, m, |cx, team| {
            let leader = team.trailing_zeros();
            cx.put(i.d, team, [leader; LANES]);
            cx.put_pred(i.c, team, 1 << (leader & 31));
        })
    }
}

/// `activemask`: the lanes that run together now.
pub(crate) unsafe fn active_mask(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    // SAFETY: a 32-bit row.
    unsafe { cx.put(i.d, m, [m; LANES]) };
    Flow::Next
}

/// `bar.warp.sync`: lanes of the mask `a` wait for each other, wherever in the code they do so.
pub(crate) unsafe fn warp_barrier(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    // SAFETY: a 32-bit row.
    let masks = unsafe { cx.get::<u32>(i.a) };
    if let Some(lane) = lanes_of(m).find(|&lane| masks[lane] >> lane & 1 == 0) {
        let text = format!("lane {lane} is not in the mask {:#010x} it names", masks[lane]);
        return cx.raise(FaultKind::Invalid { text }, 1 << lane);
    }
    let need = masks[m.trailing_zeros() as usize & 31];
    let same = lanes_of(m).filter(|&lane| masks[lane] == need).fold(0, |all, lane| all | 1 << lane);
    if same == m {
        if need & cx.warp.live & !m == 0 {
            if cx.watched {
                cx.check_warp_barrier(m);
            }
            return Flow::Next;
        }
        cx.wait = Wait::WarpBarrier(need);
        return Flow::Wait;
    }
    // Teams that are complete pass when the groups are looked at next.
    let (pc, base) = (cx.pc, cx.base);
    let mut left = m;
    while left != 0 {
        let need = masks[left.trailing_zeros() as usize & 31];
        let team = lanes_of(left).filter(|&lane| masks[lane] == need).fold(0, |all, lane| all | 1 << lane);
        left &= !team;
        cx.warp.groups.push(Group { mask: team, pc, base, wait: Wait::WarpBarrier(need), stamp: 0 });
    }
    cx.active &= !m;
    cx.pc = pc + 1;
    Flow::Jump
}
