//! Loads, stores and address arithmetic.

use std::marker::PhantomData;

use super::lanes::{Lane, Row, handlers};
use crate::emulator::code::{FULL, Flow, Instr, LANES};
use crate::emulator::fault::{FaultKind, MemorySpace};
use crate::emulator::memory::{LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW, WINDOW_MASK};
use crate::emulator::warp::Cx;

/// A state space as handlers know it.
pub(crate) trait SpaceKind: 'static {
    const KIND: Kind;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Global,
    Shared,
    Local,
    Generic,
}

pub(crate) struct Global;
pub(crate) struct Shared;
pub(crate) struct Local;
pub(crate) struct Generic;

impl SpaceKind for Global {
    const KIND: Kind = Kind::Global;
}
impl SpaceKind for Shared {
    const KIND: Kind = Kind::Shared;
}
impl SpaceKind for Local {
    const KIND: Kind = Kind::Local;
}
impl SpaceKind for Generic {
    const KIND: Kind = Kind::Generic;
}

/// A register that holds an address.
pub(crate) trait Address: Lane {
    /// The address at an offset. One of 32 bits wraps there, as the sum in hardware does.
    fn plus(self, offset: i32) -> u64;
}

impl Address for u32 {
    #[inline(always)]
    fn plus(self, offset: i32) -> u64 {
        u64::from(self.wrapping_add_signed(offset))
    }
}

impl Address for u64 {
    #[inline(always)]
    fn plus(self, offset: i32) -> u64 {
        self.wrapping_add_signed(offset.into())
    }
}

/// A value in memory and the register it is loaded to: widened on the way in, cut on the way out.
pub(crate) trait Word<D: Lane>: Lane + PartialEq {
    fn widen(self) -> D;
    fn narrow(value: D) -> Self;
}

macro_rules! words {
    ($($W:ident -> $($D:ident),*;)*) => {$($(
        impl Word<$D> for $W {
            #[inline(always)]
            fn widen(self) -> $D { self as $D }
            #[inline(always)]
            fn narrow(value: $D) -> $W { value as $W }
        }
    )*)*};
}

words! {
    u8 -> u16, u32, u64;
    i8 -> u16, u32, u64;
    u16 -> u16, u32, u64;
    i16 -> u16, u32, u64;
    u32 -> u32, u64;
    i32 -> u32, u64;
    u64 -> u64;
}

/// One kind of access: space, address register, value in memory, value in a register.
pub(crate) trait AccessKind: 'static {
    type Space: SpaceKind;
    type Address: Address;
    type Register: Lane;
    type Word: Word<Self::Register>;
}

pub(crate) struct Access<S, A, W, D>(PhantomData<(S, A, W, D)>);

impl<S: SpaceKind, A: Address, W: Word<D>, D: Lane> AccessKind for Access<S, A, W, D> {
    type Space = S;
    type Address = A;
    type Register = D;
    type Word = W;
}

/// The `x` of an access: offset of the address, and the list of rows of a vector (0 for a single row).
pub(crate) fn pack_access(offset: i32, list: u32) -> u64 {
    u64::from(offset as u32) | u64::from(list) << 32
}

/// The addresses in a row, at an offset.
///
/// # Safety
/// The operand is a row of addresses of this width.
#[inline(always)]
unsafe fn addresses<A: Address>(cx: &Cx<'_>, row: u32, offset: i32) -> Row<u64> {
    // SAFETY: the operand is a row of addresses.
    let base = unsafe { cx.get::<A>(row) };
    let mut result = [0u64; LANES];
    for lane in 0..LANES {
        result[lane] = base[lane].plus(offset);
    }
    result
}

/// The same where the instruction says how wide they are.
///
/// # Safety
/// The operand is a row of addresses of 64 bits, if they are wide, or of 32.
pub(crate) unsafe fn addresses_of(cx: &Cx<'_>, row: u32, offset: i32, wide: bool) -> Row<u64> {
    // SAFETY: the caller's contract.
    unsafe { if wide { addresses::<u64>(cx, row, offset) } else { addresses::<u32>(cx, row, offset) } }
}

/// Turn the addresses of an access into host addresses, or say what is wrong with one.
#[inline(always)]
pub(crate) fn translate(
    cx: &mut Cx<'_>,
    kind: Kind,
    a: &mut Row<u64>,
    m: u32,
    bytes: u32,
    write: bool,
) -> Result<(), Flow> {
    if cx.watched {
        cx.observe(kind, a, m, bytes, write)?;
        place(cx, kind, a, m, bytes, write)?;
        cx.forward(a, m, bytes);
        return Ok(());
    }
    place(cx, kind, a, m, bytes, write)
}

#[inline(always)]
fn place(cx: &mut Cx<'_>, kind: Kind, a: &mut Row<u64>, m: u32, bytes: u32, write: bool) -> Result<(), Flow> {
    match kind {
        Kind::Global => global(cx, a, m, bytes, write),
        Kind::Generic => {
            let mut top = 0;
            for (lane, address) in a.iter().enumerate() {
                top |= if m >> lane & 1 != 0 { *address } else { 0 };
            }
            if top & WINDOW_MASK == 0 { global(cx, a, m, bytes, write) } else { windows(cx, a, m, bytes, write) }
        }
        Kind::Shared => {
            let limit = cx.block.memory.bytes as u64;
            let (mut high, mut bits) = (0, 0);
            for (lane, address) in a.iter().enumerate() {
                let address = if m >> lane & 1 != 0 { *address } else { 0 };
                high = high.max(address);
                bits |= address;
            }
            if bits & u64::from(bytes - 1) != 0 || high.saturating_add(u64::from(bytes)) > limit {
                return each_shared(cx, a, m, bytes, write);
            }
            let base = cx.block.memory.as_mut_ptr() as u64;
            for address in a.iter_mut() {
                *address = address.wrapping_add(base);
            }
            Ok(())
        }
        Kind::Local => {
            for lane in (0..LANES).filter(|lane| m >> lane & 1 != 0) {
                match cx.resolve_local(lane, a[lane], bytes, write) {
                    Ok(pointer) => a[lane] = pointer as u64,
                    Err(kind) => return Err(cx.raise(kind, 1 << lane)),
                }
            }
            Ok(())
        }
    }
}

#[inline(always)]
fn global(cx: &mut Cx<'_>, a: &Row<u64>, m: u32, bytes: u32, write: bool) -> Result<(), Flow> {
    match cx.check_global(a, m, bytes, write) {
        None => Ok(()),
        Some((lane, kind)) => Err(cx.raise(kind, lane)),
    }
}

/// Addresses of which some are in the shared memory of another block, or bad.
#[cold]
fn each_shared(cx: &mut Cx<'_>, a: &mut Row<u64>, m: u32, bytes: u32, write: bool) -> Result<(), Flow> {
    for lane in (0..LANES).filter(|lane| m >> lane & 1 != 0) {
        match cx.resolve_shared(a[lane], bytes, write) {
            Ok(pointer) => a[lane] = pointer as u64,
            Err(kind) => return Err(cx.raise(kind, 1 << lane)),
        }
    }
    Ok(())
}

/// Generic addresses, some of which are not global.
fn windows(cx: &mut Cx<'_>, a: &mut Row<u64>, m: u32, bytes: u32, write: bool) -> Result<(), Flow> {
    for lane in (0..LANES).filter(|lane| m >> lane & 1 != 0) {
        match cx.resolve(lane, a[lane], bytes, write) {
            Ok(pointer) => a[lane] = pointer as u64,
            Err(kind) => return Err(cx.raise(kind, 1 << lane)),
        }
    }
    Ok(())
}

/// Are the lanes' addresses one after the other?
#[inline(always)]
fn contiguous<W>(a: &Row<u64>) -> bool {
    let mut differ = 0;
    for (lane, address) in a.iter().enumerate() {
        differ |= address ^ a[0].wrapping_add((lane * size_of::<W>()) as u64);
    }
    differ == 0
}

#[inline(always)]
unsafe fn gather<W: Word<D>, D: Lane>(a: &Row<u64>, m: u32) -> Row<D> {
    let mut values = [D::default(); LANES];
    // SAFETY: the addresses of these lanes were checked.
    unsafe {
        if m == FULL && contiguous::<W>(a) {
            let row = (a[0] as *const Row<W>).read();
            for lane in 0..LANES {
                values[lane] = row[lane].widen();
            }
        } else {
            for lane in 0..LANES {
                if m >> lane & 1 != 0 {
                    values[lane] = (a[lane] as *const W).read().widen();
                }
            }
        }
    }
    values
}

#[inline(always)]
unsafe fn scatter<W: Word<D>, D: Lane>(a: &Row<u64>, m: u32, values: &Row<D>) {
    // SAFETY: the addresses of these lanes were checked.
    unsafe {
        if m == FULL && contiguous::<W>(a) {
            let mut row = [W::default(); LANES];
            for lane in 0..LANES {
                row[lane] = W::narrow(values[lane]);
            }
            (a[0] as *mut Row<W>).write(row);
        } else {
            for lane in 0..LANES {
                if m >> lane & 1 != 0 {
                    (a[lane] as *mut W).write(W::narrow(values[lane]));
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn load_body<O: AccessKind>(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    let list = (i.x >> 32) as usize;
    // SAFETY: the operands are rows of the access's types, and addresses are checked before use.
    unsafe {
        let mut a = addresses::<O::Address>(cx, i.a, i.x as i32);
        let word = size_of::<O::Word>();
        let count = if list == 0 { 1 } else { cx.grid.code().lists[list] };
        if let Err(flow) = translate(cx, O::Space::KIND, &mut a, m, word as u32 * count, false) {
            return flow;
        }
        if list == 0 {
            let values = gather::<O::Word, O::Register>(&a, m);
            cx.put(i.d, m, values);
            return Flow::Next;
        }
        for k in 0..count as usize {
            let values = gather::<O::Word, O::Register>(&a, m);
            cx.put(cx.grid.code().lists[list + 1 + k], m, values);
            for address in &mut a {
                *address = address.wrapping_add(word as u64);
            }
        }
    }
    Flow::Next
}

#[inline(always)]
unsafe fn store_body<O: AccessKind>(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    let list = (i.x >> 32) as usize;
    // SAFETY: the operands are rows of the access's types, and addresses are checked before use.
    unsafe {
        let mut a = addresses::<O::Address>(cx, i.a, i.x as i32);
        let word = size_of::<O::Word>();
        let count = if list == 0 { 1 } else { cx.grid.code().lists[list] };
        if let Err(flow) = translate(cx, O::Space::KIND, &mut a, m, word as u32 * count, true) {
            return flow;
        }
        if list == 0 {
            let values = cx.get::<O::Register>(i.b);
            if cx.watched {
                if let Err(flow) = checked_scatter::<O>(cx, &a, m, &values) {
                    return flow;
                }
            } else {
                scatter::<O::Word, O::Register>(&a, m, &values);
            }
            return Flow::Next;
        }
        for k in 0..count as usize {
            let values = cx.get::<O::Register>(cx.grid.code().lists[list + 1 + k]);
            if cx.watched {
                if let Err(flow) = checked_scatter::<O>(cx, &a, m, &values) {
                    return flow;
                }
            } else {
                scatter::<O::Word, O::Register>(&a, m, &values);
            }
            for address in &mut a {
                *address = address.wrapping_add(word as u64);
            }
        }
    }
    Flow::Next
}

/// The store of a launch that is watched.
///
/// # Safety
/// As `scatter`.
#[cold]
unsafe fn checked_scatter<O: AccessKind>(
    cx: &mut Cx<'_>,
    a: &Row<u64>,
    m: u32,
    values: &Row<O::Register>,
) -> Result<(), Flow> {
    same_values::<O>(cx, a, m, values)?;
    // SAFETY: the caller's contract.
    unsafe {
        if !cx.hold::<O::Word>(a, m, &values.map(O::Word::narrow)) {
            scatter::<O::Word, O::Register>(a, m, values);
        }
    }
    Ok(())
}

/// Lanes of a checked store that write to one place must write the same, and what another thread wrote at any time may
/// only be written again.
#[cold]
fn same_values<O: AccessKind>(cx: &mut Cx<'_>, a: &Row<u64>, m: u32, values: &Row<O::Register>) -> Result<(), Flow> {
    if !cx.checker.as_ref().is_some_and(|checker| checker.compares()) {
        return Ok(());
    }
    // SAFETY: the addresses of these lanes were checked.
    let changed = unsafe { cx.changing::<O::Word>(a, m, &values.map(O::Word::narrow)) };
    cx.check_again(changed, size_of::<O::Word>() as u32)?;
    let of = |lane: usize| O::Word::narrow(values[lane]);
    for lane in (0..LANES).filter(|lane| m >> lane & 1 != 0) {
        let other = (0..lane).find(|&other| m >> other & 1 != 0 && a[other] == a[lane] && of(other) != of(lane));
        if let Some(other) = other {
            return Err(cx.conflicting_values(a[lane], (other, lane), size_of::<O::Word>() as u32));
        }
    }
    Ok(())
}

/// `ld.param` of a kernel: the same value for all lanes, at offset `x` of the argument block.
#[inline(always)]
unsafe fn load_param_body<O: AccessKind>(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    let list = (i.x >> 32) as usize;
    let word = size_of::<O::Word>();
    let count = if list == 0 { 1 } else { cx.grid.code().lists[list] as usize };
    let (start, params) = (i.x as u32 as usize, cx.grid.params());
    if start + word * count > params.len() {
        let kind = FaultKind::OutOfBounds {
            space: MemorySpace::Param,
            write: false,
            address: start as u64,
            bytes: (word * count) as u32,
            limit: params.len() as u64,
        };
        return cx.raise(kind, m);
    }
    for k in 0..count {
        // SAFETY: inside the argument block, and the targets are rows of this type.
        unsafe {
            let value = params.as_ptr().add(start + word * k).cast::<O::Word>().read_unaligned();
            let row = if list == 0 { i.d } else { cx.grid.code().lists[list + 1 + k] };
            cx.put(row, m, [value.widen(); LANES]);
        }
    }
    Flow::Next
}

handlers! {
    load = load_body<O: AccessKind>;
    store = store_body<O: AccessKind>;
    load_param = load_param_body<O: AccessKind>;
}

/// `cvta` to or from a window: adds `x`, or takes the window off when it is zero.
pub(crate) unsafe fn convert_address(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    // SAFETY: both operands are 64-bit rows.
    unsafe {
        let a = cx.get::<u64>(i.a);
        let window = i.x;
        cx.put(i.d, m, a.map(|address| if window == 0 { address & !WINDOW_MASK } else { address | window }));
    }
    Flow::Next
}

/// In the `x` of `isspacep`: the memory of other blocks of the cluster does not count.
pub(crate) const OWN_BLOCK: u64 = 1;

/// `isspacep`: is a generic address in the space `x` stands for?
pub(crate) unsafe fn is_space(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    // SAFETY: a 64-bit row and a predicate.
    unsafe {
        let a = cx.get::<u64>(i.a);
        let mut bits = 0;
        for (lane, address) in a.iter().enumerate() {
            let window = address & WINDOW_MASK;
            let known = matches!(window, SHARED_WINDOW | LOCAL_WINDOW | PARAM_WINDOW);
            let own = || cx.place_in_cluster(address & !WINDOW_MASK).is_none_or(|(rank, _)| rank == cx.block.rank);
            let inside = match i.x {
                0 => !known,
                x => window == x & WINDOW_MASK && (x & OWN_BLOCK == 0 || own()),
            };
            bits |= u32::from(inside) << lane;
        }
        cx.put_pred(i.d, m, bits);
    }
    Flow::Next
}

/// `fence.proxy.async`: what was written before is visible to bulk copies and products of warp groups.
pub(crate) unsafe fn proxy_fence(cx: &mut Cx<'_>, _i: &Instr, m: u32) -> Flow {
    if cx.watched {
        cx.check_proxy_fence(m);
    }
    Flow::Next
}

/// `fence` and `membar`: memory of this process is ordered at least as strongly as its scope asks.
pub(crate) unsafe fn fence(cx: &mut Cx<'_>, _i: &Instr, m: u32) -> Flow {
    if cx.watched {
        cx.check_fence(m);
    }
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    Flow::Next
}
