//! Barrier objects in shared memory.
//!
//! An object is a word of 64 bits. From the lowest bit: arrivals that are pending (20 bits), arrivals expected in a
//! phase (20), bytes of transactions that are pending (21, two's complement), the parity of the phase (1), and a mark
//! that tells an object from other memory (2). The state that an arrival returns is the word before it.

use super::bulk::finish_bulk;
use super::copies::finish_tracked;
use super::lanes::Row;
use super::memory::{Kind, addresses_of};
use super::warpwide::lanes_of;
use crate::emulator::code::{Flow, Instr, LANES};
use crate::emulator::fault::FaultKind;
use crate::emulator::memory::{SHARED_WINDOW, WINDOW_MASK};
use crate::emulator::warp::Cx;

/// Most arrivals, and most bytes of transactions, of a phase.
const MOST: u32 = (1 << 20) - 1;
const MARK: u64 = 0b10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Object {
    pending: u32,
    expected: u32,
    bytes: i32,
    phase: bool,
}

impl Object {
    fn unpack(word: u64) -> Option<Object> {
        let field = |at: u32| (word >> at) as u32 & MOST;
        // The sign of the bytes is the highest bit of their field.
        let bytes = ((word << 3) as i64 >> 43) as i32;
        (word >> 62 == MARK).then(|| Object { pending: field(0), expected: field(20), bytes, phase: parity(word) })
    }

    fn pack(self) -> u64 {
        let bytes = u64::from(self.bytes as u32 & ((1 << 21) - 1));
        u64::from(self.pending)
            | u64::from(self.expected) << 20
            | bytes << 40
            | u64::from(self.phase) << 61
            | MARK << 62
    }

    fn new(count: u32) -> Result<Object, String> {
        if count == 0 || count > MOST {
            return Err(format!("an mbarrier object for {count} arrivals: the count must be from 1 to {MOST}"));
        }
        Ok(Object { pending: count, expected: count, bytes: 0, phase: false })
    }

    pub fn arrive(&mut self, count: u32) -> Result<(), String> {
        if count == 0 || count > self.pending {
            let pending = self.pending;
            return Err(format!("{count} arrivals at an mbarrier object of which {pending} are pending in this phase"));
        }
        self.pending -= count;
        self.settle();
        Ok(())
    }

    /// One more arrival is pending in this phase.
    pub fn expect_arrival(&mut self) -> Result<(), String> {
        if self.pending == MOST {
            return Err(format!("more than {MOST} arrivals are pending at an mbarrier object"));
        }
        self.pending += 1;
        Ok(())
    }

    /// More bytes are expected (a positive number), or fewer, since they came.
    pub fn transact(&mut self, bytes: i64) -> Result<(), String> {
        let sum = i64::from(self.bytes) + bytes;
        if sum.unsigned_abs() > u64::from(MOST) {
            return Err(format!("{sum} bytes are pending at an mbarrier object: the most is {MOST}"));
        }
        self.bytes = sum as i32;
        self.settle();
        Ok(())
    }

    fn settle(&mut self) {
        if self.pending == 0 && self.bytes == 0 {
            self.pending = self.expected;
            self.phase = !self.phase;
        }
    }
}

fn parity(word: u64) -> bool {
    word >> 61 & 1 != 0
}

/// Change the object at an offset of shared memory; its word before.
pub(crate) fn update(
    cx: &mut Cx<'_>,
    address: u64,
    change: impl FnOnce(&mut Object) -> Result<(), String>,
) -> Result<u64, FaultKind> {
    let word = cx.resolve_shared(address, 8, true)?.cast::<u64>();
    // SAFETY: just resolved, alignment included.
    let old = unsafe { word.read() };
    let Some(mut object) = Object::unpack(old) else {
        let text = format!(
            "there is no mbarrier object at offset {address} of shared memory: it was not initialised, or invalidated"
        );
        return Err(FaultKind::Invalid { text });
    };
    change(&mut object).map_err(|text| FaultKind::Invalid { text: format!("{text} (offset {address})") })?;
    // SAFETY: as above.
    unsafe { word.write(object.pack()) };
    Ok(old)
}

/// The `x` of an instruction on an object: offset of its address, width, generic or not, and what else it does.
pub(crate) fn pack_object(offset: i32, wide: bool, generic: bool, flags: u64) -> u64 {
    u64::from(offset as u32) | u64::from(wide) << 40 | u64::from(generic) << 41 | flags << 48
}

/// Offsets in shared memory of the objects that the address `a` names.
///
/// # Safety
/// `a` is a row of addresses of the width `x` says.
pub(crate) unsafe fn objects(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Result<Row<u64>, Flow> {
    // SAFETY: the caller's contract.
    let mut at = unsafe { addresses_of(cx, i.a, i.x as i32, i.x >> 40 & 1 != 0) };
    if i.x >> 41 & 1 != 0 {
        for lane in lanes_of(m) {
            if at[lane] & WINDOW_MASK != SHARED_WINDOW {
                let text = format!("the address {:#x} of an mbarrier object is not in shared memory", at[lane]);
                return Err(cx.raise(FaultKind::Invalid { text }, 1 << lane));
            }
            at[lane] &= !WINDOW_MASK;
        }
    }
    if cx.checker.is_some() {
        cx.check_access(Kind::Shared, &at, m, 8, true)?;
    }
    Ok(at)
}

/// `mbarrier.init [a], b`
pub(crate) unsafe fn init(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    // SAFETY: a row of addresses, and a 32-bit row.
    let (at, counts) = match unsafe { (objects(cx, i, m), cx.get::<u32>(i.b)) } {
        (Ok(at), counts) => (at, counts),
        (Err(flow), _) => return flow,
    };
    for lane in lanes_of(m) {
        let object = Object::new(counts[lane]).map_err(|text| FaultKind::Invalid { text });
        match object.and_then(|object| Ok((object, cx.resolve_shared(at[lane], 8, true)?))) {
            // SAFETY: just resolved.
            Ok((object, word)) => unsafe { word.cast::<u64>().write(object.pack()) },
            Err(kind) => return cx.raise(kind, 1 << lane),
        }
    }
    Flow::Next
}

/// `mbarrier.inval [a]`
pub(crate) unsafe fn invalidate(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    // SAFETY: a row of addresses.
    let at = match unsafe { objects(cx, i, m) } {
        Ok(at) => at,
        Err(flow) => return flow,
    };
    for lane in lanes_of(m) {
        match update(cx, at[lane], |_| Ok(())).and_then(|_| cx.resolve_shared(at[lane], 8, true)) {
            // SAFETY: just resolved.
            Ok(word) => unsafe { word.cast::<u64>().write(0) },
            Err(kind) => return cx.raise(kind, 1 << lane),
        }
    }
    Flow::Next
}

/// What an arrival does besides: `EXPECT` reads `b` as bytes rather than as a number of arrivals.
pub(crate) const DROP: u64 = 1;
pub(crate) const NO_COMPLETE: u64 = 2;
pub(crate) const EXPECT: u64 = 4;

/// `mbarrier.arrive d, [a], b`: row 0 stands for no result, and for one arrival.
pub(crate) unsafe fn arrive(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    let flags = i.x >> 48;
    // SAFETY: a row of addresses, and a 32-bit row.
    let (at, operands) = match unsafe { (objects(cx, i, m), if i.b == 0 { [1; LANES] } else { cx.get::<u32>(i.b) }) } {
        (Ok(at), operands) => (at, operands),
        (Err(flow), _) => return flow,
    };
    let mut states = [0u64; LANES];
    for lane in lanes_of(m) {
        let changed = update(cx, at[lane], |object| {
            let phase = object.phase;
            let mut count = operands[lane];
            if flags & EXPECT != 0 {
                // The phase cannot end in between: an arrival is still to come.
                object.transact(i64::from(count))?;
                count = 1;
            }
            if flags & DROP != 0 {
                object.expected = object.expected.saturating_sub(count);
            }
            object.arrive(count)?;
            if flags & NO_COMPLETE != 0 && object.phase != phase {
                return Err("'mbarrier.arrive.noComplete' completes a phase".to_string());
            }
            Ok(())
        });
        match changed {
            Ok(state) => {
                states[lane] = state;
                cx.check_object(lane, at[lane], false);
            }
            Err(kind) => return cx.raise(kind, 1 << lane),
        }
    }
    if i.d != 0 {
        // SAFETY: the result is a 64-bit row.
        unsafe { cx.put(i.d, m, states) };
    }
    Flow::Next
}

/// `mbarrier.expect_tx [a], b` and, with a flag, `complete_tx`.
pub(crate) unsafe fn transact(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    let sign = if i.x >> 48 != 0 { -1 } else { 1 };
    // SAFETY: a row of addresses, and a 32-bit row.
    let (at, bytes) = match unsafe { (objects(cx, i, m), cx.get::<u32>(i.b)) } {
        (Ok(at), bytes) => (at, bytes),
        (Err(flow), _) => return flow,
    };
    for lane in lanes_of(m) {
        if let Err(kind) = update(cx, at[lane], |object| object.transact(sign * i64::from(bytes[lane]))) {
            return cx.raise(kind, 1 << lane);
        }
    }
    Flow::Next
}

/// `test_wait` and `try_wait`: is the phase of the state `b` over, or (with a flag) that of the parity `b`?
///
/// Where no lane has what it waits for, others run before this warp asks again.
pub(crate) unsafe fn test(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    // SAFETY: a row of addresses, and a row of parities or of states.
    let (at, phases) = unsafe {
        let phases = match i.x >> 48 {
            0 => cx.get::<u64>(i.b).map(parity),
            _ => cx.get::<u32>(i.b).map(|parity| parity & 1 != 0),
        };
        match objects(cx, i, m) {
            Ok(at) => (at, phases),
            Err(flow) => return flow,
        }
    };
    let mut over = 0;
    for lane in lanes_of(m) {
        let mut now = update(cx, at[lane], |_| Ok(()));
        if now.as_ref().is_ok_and(|word| parity(*word) == phases[lane]) {
            now = finish_tracked(cx, |tracked| u64::from(tracked.barrier) == at[lane])
                .and_then(|()| finish_bulk(cx, at[lane]))
                .and_then(|()| update(cx, at[lane], |_| Ok(())));
        }
        match now {
            Ok(word) if parity(word) == phases[lane] => {}
            Ok(_) => {
                over |= 1 << lane;
                cx.check_object(lane, at[lane], true);
            }
            Err(kind) => return cx.raise(kind, 1 << lane),
        }
    }
    // SAFETY: the result is a predicate.
    unsafe { cx.put_pred(i.d, m, over) };
    if over == 0 { Flow::Yield } else { Flow::Next }
}

/// `mbarrier.pending_count d, a`: the arrivals that were pending when a state was made.
pub(crate) unsafe fn pending_count(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    // SAFETY: a 64-bit row and a 32-bit row.
    unsafe {
        let states = cx.get::<u64>(i.a);
        cx.put(i.d, m, states.map(|state| state as u32 & MOST));
    }
    Flow::Next
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_hold_what_they_are_made_of() {
        for bytes in [0, 1, -1, MOST as i32, -(MOST as i32)] {
            for (pending, expected, phase) in [(0, 1, false), (MOST, MOST, true), (5, 9, true)] {
                let object = Object { pending, expected, bytes, phase };
                assert_eq!(Object::unpack(object.pack()), Some(object));
            }
        }
        assert_eq!(Object::unpack(0), None);
        assert_eq!(Object::unpack(0xcdcd_cdcd_cdcd_cdcd), None);
    }
}
