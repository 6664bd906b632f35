//! Branches, calls, returns, and the end of threads.

use std::sync::OnceLock;
use std::time::{Instant, SystemTime};

use crate::emulator::code::{Code, Flow, Instr, LANES, LOCAL_BASE_ROW, RETURN_BASE, RETURN_PC};
use crate::emulator::fault::FaultKind;
use crate::emulator::frames::Base;
use crate::emulator::memory::FUNCTION_WINDOW;
use crate::emulator::warp::{Cx, Group, Wait};

/// Go to `x`; lanes that the guard leaves out go on.
pub(crate) unsafe fn branch(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    let (target, next) = (i.x as u32, cx.pc + 1);
    if m == cx.active {
        cx.pc = target;
        return Flow::Jump;
    }
    // The part with the lesser place goes on.
    let rest = cx.active & !m;
    let (now, later) = if target < next { ((m, target), (rest, next)) } else { ((rest, next), (m, target)) };
    cx.warp.groups.push(Group { mask: later.0, pc: later.1, base: cx.base, wait: Wait::Ready, stamp: 0 });
    (cx.active, cx.pc) = now;
    Flow::Jump
}

/// `brx.idx`: each lane goes to the target its index names; `x` is the list, its length first.
pub(crate) unsafe fn branch_indexed(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    // SAFETY: the operand is a 32-bit row.
    let index = unsafe { cx.get::<u32>(i.a) };
    let start = i.x as usize;
    let count = cx.grid.code().lists[start];
    let pc = cx.pc;
    if m != cx.active {
        let rest = Group { mask: cx.active & !m, pc: pc + 1, base: cx.base, wait: Wait::Ready, stamp: 0 };
        cx.warp.groups.push(rest);
    }
    let mut left = m;
    cx.active = 0;
    while left != 0 {
        let lane = left.trailing_zeros() as usize;
        if index[lane] >= count {
            let text = format!("branch to entry {} of a table of {count}", index[lane]);
            return cx.raise(FaultKind::Invalid { text }, 1 << lane);
        }
        let same = (0..LANES).filter(|&l| left >> l & 1 != 0 && index[l] == index[lane]).fold(0, |all, l| all | 1 << l);
        left &= !same;
        let target = cx.grid.code().lists[start + 1 + index[lane] as usize];
        cx.warp.groups.push(Group { mask: same, pc: target, base: cx.base, wait: Wait::Ready, stamp: 0 });
    }
    Flow::Jump
}

/// `exit`: these lanes are done.
pub(crate) unsafe fn exit(cx: &mut Cx<'_>, _i: &Instr, m: u32) -> Flow {
    leave(cx, m)
}

fn leave(cx: &mut Cx<'_>, mask: u32) -> Flow {
    cx.release_stores(mask);
    if let Err(kind) = super::copies::finish_all(cx, mask) {
        return cx.raise(kind, mask);
    }
    cx.warp.live &= !mask;
    cx.warp.frames.exit(mask);
    cx.active &= !mask;
    cx.block.leave(mask.count_ones());
    cx.pc += 1;
    Flow::Jump
}

/// `ret`: back to the caller, or the end of the thread in a kernel.
pub(crate) unsafe fn ret(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    if i.x != 0 {
        return leave(cx, m);
    }
    // SAFETY: every frame of a function has these rows.
    let (pcs, bases) = unsafe { (cx.get::<u32>(RETURN_PC), cx.get::<u32>(RETURN_BASE)) };
    if m != cx.active {
        let rest = Group { mask: cx.active & !m, pc: cx.pc + 1, base: cx.base, wait: Wait::Ready, stamp: 0 };
        cx.warp.groups.push(rest);
    }
    cx.warp.frames.leave(cx.base, m);
    let first = m.trailing_zeros() as usize;
    let mut same = 0;
    let mut left = m;
    while left != 0 {
        let lane = left.trailing_zeros() as usize;
        let with = |l: &usize| left >> l & 1 != 0 && pcs[*l] == pcs[lane] && bases[*l] == bases[lane];
        let mask = (0..LANES).filter(with).fold(0, |all, l| all | 1 << l);
        left &= !mask;
        if lane == first {
            same = mask;
        } else {
            cx.warp.groups.push(Group { mask, pc: pcs[lane], base: Base(bases[lane]), wait: Wait::Ready, stamp: 0 });
        }
    }
    cx.active = same;
    (cx.pc, cx.base) = (pcs[first], Base(bases[first]));
    cx.set_frame();
    Flow::Jump
}

/// Call of the function with index `a`; `b` is the caller's. `x` is a list: for each argument where it lies in the
/// caller's local memory, where in the callee's, and its size.
pub(crate) unsafe fn call(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    let pc = cx.pc;
    if m != cx.active {
        let rest = Group { mask: cx.active & !m, pc: pc + 1, base: cx.base, wait: Wait::Ready, stamp: 0 };
        cx.warp.groups.push(rest);
        cx.active = m;
    }
    enter(cx, i, m, i.a as usize)
}

/// Is this the index of a function that takes and returns what the call says?
fn can_call(code: &Code, i: &Instr, address: u64, index: u64) -> Result<(), FaultKind> {
    let invalid = |text: String| Err(FaultKind::Invalid { text });
    let function = match usize::try_from(index).ok().and_then(|index| code.functions.get(index)) {
        Some(function) if !function.entry => function,
        _ => return Err(FaultKind::BadCall { address }),
    };
    if !function.defined {
        return invalid(format!("call of '{}', which has no body in this module", function.name));
    }
    let fits = |list: u32, places: &[(u32, u32)]| {
        let list = &code.lists[list as usize..];
        let moves = list[1..=list[0] as usize * 3].chunks_exact(3);
        moves.map(|m| (m[1], m[2])).eq(places.iter().copied())
    };
    if !fits(i.x as u32, &function.params) || !fits(i.c, &function.returns) {
        let name = &function.name;
        return invalid(format!("call of '{name}' through a pointer to a function with other parameters or results"));
    }
    Ok(())
}

/// Call through a pointer, the 64-bit row `a`; lanes with different targets go apart. `c` is the list of results.
pub(crate) unsafe fn call_indirect(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    // SAFETY: the operand is a 64-bit row.
    let targets = unsafe { cx.get::<u64>(i.a) };
    let lane = m.trailing_zeros() as usize;
    let same = (0..LANES).filter(|&l| m >> l & 1 != 0 && targets[l] == targets[lane]).fold(0, |all, l| all | 1 << l);
    let index = targets[lane] ^ FUNCTION_WINDOW;
    if let Err(kind) = can_call(cx.grid.code(), i, targets[lane], index) {
        return cx.raise(kind, 1 << lane);
    }
    let (pc, base) = (cx.pc, cx.base);
    let rest = m & !same;
    if rest != 0 {
        // They make the same call afterwards.
        cx.warp.groups.push(Group { mask: rest, pc, base, wait: Wait::Ready, stamp: 0 });
    }
    let outside = cx.active & !m;
    if outside != 0 {
        cx.warp.groups.push(Group { mask: outside, pc: pc + 1, base, wait: Wait::Ready, stamp: 0 });
    }
    cx.active = same;
    enter(cx, i, same, index as usize)
}

fn enter(cx: &mut Cx<'_>, i: &Instr, m: u32, index: usize) -> Flow {
    let grid = cx.grid;
    let code = grid.code();
    let (callee, caller) = (&code.functions[index], &code.functions[i.b as usize]);
    let base = match cx.push_frame(index, caller, m) {
        Ok(base) => base,
        Err(kind) => return cx.raise(kind, m),
    };
    cx.set_frame();
    // SAFETY: the caller's frame has this row.
    let local = unsafe { cx.get::<u32>(LOCAL_BASE_ROW) };
    if cx.watched {
        cx.check_enter(m, &local, caller, callee);
    }
    let list = &code.lists[i.x as usize..];
    for argument in list[1..=list[0] as usize * 3].chunks_exact(3) {
        let (from, to, bytes) = (argument[0] as usize, argument[1] as usize, argument[2] as usize);
        for lane in (0..LANES).filter(|lane| m >> lane & 1 != 0) {
            let start = lane * cx.warp.local_bytes + local[lane] as usize;
            let target = start + (caller.local as usize).next_multiple_of(16) + to;
            cx.warp.local.copy_within(start + from..start + from + bytes, target);
            if cx.watched {
                cx.check_local(lane, target % cx.warp.local_bytes, bytes);
            }
        }
    }
    let (pc, old) = (cx.pc + 1, cx.base);
    cx.base = base;
    cx.set_frame();
    // SAFETY: the new frame has these rows.
    unsafe {
        cx.put(RETURN_PC, m, [pc; LANES]);
        cx.put(RETURN_BASE, m, [old.0; LANES]);
    }
    cx.pc = callee.start;
    Flow::Jump
}

/// After a call: copy what was returned from where the callee left it. `x` is a list as that of `call`, `b` the caller.
pub(crate) unsafe fn take_returns(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    let grid = cx.grid;
    let code = grid.code();
    let caller = &code.functions[i.b as usize];
    // SAFETY: every frame has this row.
    let local = unsafe { cx.get::<u32>(LOCAL_BASE_ROW) };
    let list = &code.lists[i.x as usize..];
    for value in list[1..=list[0] as usize * 3].chunks_exact(3) {
        let (to, from, bytes) = (value[0] as usize, value[1] as usize, value[2] as usize);
        for lane in (0..LANES).filter(|lane| m >> lane & 1 != 0) {
            let start = lane * cx.warp.local_bytes + local[lane] as usize;
            let source = start + (caller.local as usize).next_multiple_of(16) + from;
            cx.warp.local.copy_within(source..source + bytes, start + to);
            if cx.watched {
                cx.check_local(lane, local[lane] as usize + to, bytes);
            }
        }
    }
    Flow::Next
}

pub(crate) unsafe fn trap(cx: &mut Cx<'_>, _i: &Instr, m: u32) -> Flow {
    cx.raise(FaultKind::Trap, m)
}

pub(crate) unsafe fn nothing(_cx: &mut Cx<'_>, _i: &Instr, _m: u32) -> Flow {
    Flow::Next
}

/// `griddepcontrol.wait`: the kernels before have ended.
pub(crate) unsafe fn await_kernels(cx: &mut Cx<'_>, _i: &Instr, m: u32) -> Flow {
    cx.check_awaited(m);
    Flow::Next
}

/// `nanosleep`: others run first.
pub(crate) unsafe fn sleep(_cx: &mut Cx<'_>, _i: &Instr, _m: u32) -> Flow {
    Flow::Yield
}

/// Nanoseconds since 1970 as the first launch found it, and on without a jump: the same clock for all launches.
fn global_timer() -> u64 {
    static START: OnceLock<(Instant, u64)> = OnceLock::new();
    let (start, then) = START.get_or_init(|| {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        (Instant::now(), since.as_nanos() as u64)
    });
    then + start.elapsed().as_nanos() as u64
}

/// Of `clock`: the clock of the device.
pub(crate) const GLOBAL: u64 = 4;

/// Nanoseconds since the launch began, or of the device's clock: all 64 bits, the low half (x = 2) or the high (x = 3).
pub(crate) unsafe fn clock(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    let now = if i.x & GLOBAL != 0 { global_timer() } else { cx.grid.started.elapsed().as_nanos() as u64 };
    // SAFETY: the result is a row of the width `x` says.
    unsafe {
        match i.x & !GLOBAL {
            2 => cx.put(i.d, m, [now as u32; LANES]),
            3 => cx.put(i.d, m, [(now >> 32) as u32; LANES]),
            _ => cx.put(i.d, m, [now; LANES]),
        }
    }
    Flow::Next
}

/// Local address of a variable: `x` bytes after the start of the function's part of local memory.
pub(crate) unsafe fn local_address(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    // SAFETY: every frame has this row; the result is a 64-bit row.
    unsafe {
        let base = cx.get::<u32>(LOCAL_BASE_ROW);
        cx.put(i.d, m, base.map(|b| u64::from(b) + i.x));
    }
    Flow::Next
}
