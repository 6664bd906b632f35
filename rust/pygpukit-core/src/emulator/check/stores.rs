//! Stores that others do not see yet: what a GPU may do with them, in a random way.
//!
//! When schedules are fuzzed, plain stores to global and shared memory are held back per warp. A lane sees its own at
//! once; others see them in any order, some time later, and at the latest when the lane comes to a fence or a barrier, or
//! ends. Code that lacks a fence then reads old values.

use crate::emulator::code::{Effect, LANES};
use crate::emulator::exec::lanes::Lane;
use crate::emulator::warp::Cx;
use crate::random::Random;

/// Most stores of a warp that are held back.
const MOST: usize = 96;

#[derive(Clone, Copy, Debug)]
struct Held {
    lane: u8,
    bytes: u8,
    /// Host address.
    at: u64,
    value: [u8; 8],
}

impl Held {
    /// # Safety
    /// The address is still that of checked memory.
    unsafe fn write(self) {
        // SAFETY: the caller's contract; no more than eight bytes are held.
        unsafe { std::ptr::copy_nonoverlapping(self.value.as_ptr(), self.at as *mut u8, usize::from(self.bytes)) };
    }
}

/// The stores of a warp that are held back.
#[derive(Debug, Default)]
pub(crate) struct Stores(Vec<Held>);

impl Stores {
    /// Let those go that `which` says.
    fn drain(&mut self, which: impl Fn(&Held) -> bool) {
        self.0.retain(|held| {
            let goes = which(held);
            if goes {
                // SAFETY: checked when it was issued. Shared memory lives as long as the block, and global memory that
                // a launch may touch is not unmapped before its end.
                unsafe { held.write() };
            }
            !goes
        });
    }

    fn trickle(&mut self, random: &mut Random) {
        while self.0.len() > MOST || (!self.0.is_empty() && random.below(4) == 0) {
            let held = self.0.swap_remove(random.below(self.0.len()));
            // SAFETY: as in `drain`.
            unsafe { held.write() };
        }
    }
}

fn bytes_of<W: Lane>(value: &W) -> [u8; 8] {
    let mut bytes = [0; 8];
    // SAFETY: a lane's value is plain bytes, eight at most.
    unsafe {
        let from = std::ptr::from_ref(value).cast::<u8>();
        std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), size_of::<W>().min(8));
    }
    bytes
}

impl Cx<'_> {
    /// The lanes of a checked store that change what was there.
    ///
    /// # Safety
    /// The addresses of these lanes were checked for this width.
    pub(crate) unsafe fn changing<W: Lane + PartialEq>(
        &mut self,
        a: &[u64; LANES],
        m: u32,
        values: &[W; LANES],
    ) -> u32 {
        let known = self.checker.as_ref().and_then(|checker| checker.values.as_ref());
        let mut changed = 0;
        for lane in (0..LANES).filter(|lane| m >> lane & 1 != 0) {
            let same = match known.and_then(|known| known.get(&a[lane])) {
                Some((bytes, value)) => *bytes == size_of::<W>() && *value == bytes_of(&values[lane]),
                // SAFETY: the caller's contract.
                None => unsafe { (a[lane] as *const W).read() == values[lane] },
            };
            changed |= u32::from(!same) << lane;
        }
        changed
    }

    /// Hold a checked store back, where stores are; false when it is to be done now.
    ///
    /// # Safety
    /// The addresses of these lanes were checked for this width.
    pub(crate) unsafe fn hold<W: Lane>(&mut self, a: &[u64; LANES], m: u32, values: &[W; LANES]) -> bool {
        let plain = self.grid.code().effects.get(self.pc as usize).is_some_and(|effect| effect.is(Effect::STORE));
        let local = self.warp.local.as_ptr_range();
        let Some(stores) = self.warp.stores.as_mut().filter(|_| plain) else { return false };
        for lane in (0..LANES).filter(|lane| m >> lane & 1 != 0) {
            let value = bytes_of(&values[lane]);
            let held = Held { lane: lane as u8, bytes: size_of::<W>() as u8, at: a[lane], value };
            if local.contains(&(a[lane] as *const u8)) {
                // SAFETY: the caller's contract.
                unsafe { held.write() };
            } else {
                stores.0.push(held);
                if let Some(values) = self.checker.as_mut().and_then(|checker| checker.values.as_mut()) {
                    values.insert(a[lane], (size_of::<W>(), value));
                }
            }
        }
        true
    }

    /// Before an access at host addresses: what these lanes have stored there goes first, and some others may.
    pub(crate) fn forward(&mut self, a: &[u64; LANES], m: u32, bytes: u32) {
        let Some(stores) = &mut self.warp.stores else { return };
        if stores.0.is_empty() {
            return;
        }
        let end = |start: u64, bytes: u64| start.wrapping_add(bytes);
        stores.drain(|held| {
            let lane = usize::from(held.lane);
            m >> lane & 1 != 0
                && held.at < end(a[lane], u64::from(bytes))
                && a[lane] < end(held.at, u64::from(held.bytes))
        });
        if let Some(random) = &mut self.block.order {
            stores.trickle(random);
        }
    }

    /// These lanes are at a fence or a barrier, or end: all of their stores go.
    pub(crate) fn release_stores(&mut self, lanes: u32) {
        if let Some(stores) = &mut self.warp.stores {
            stores.drain(|held| lanes >> held.lane & 1 != 0);
        }
    }
}
