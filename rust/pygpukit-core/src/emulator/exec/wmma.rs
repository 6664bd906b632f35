//! `wmma.load` and `wmma.store`: whole matrices between memory and the fragments of a warp.

use super::fragments::Fragment;
use super::lanes::Row;
use super::matrix::{converge, rows};
use super::memory::translate;
use crate::emulator::code::{FULL, Flow, Instr, LANES};
use crate::emulator::fault::FaultKind;
use crate::emulator::warp::Cx;

/// Where the matrix of an instruction lies: address of its first element, and elements from line to line.
///
/// # Safety
/// `a` must be a 64-bit row and `b` a 32-bit row.
unsafe fn origin(cx: &mut Cx<'_>, i: &Instr, bytes: u64) -> Result<(u64, u64), Flow> {
    // SAFETY: the caller's contract.
    let (bases, strides) = unsafe { (cx.get::<u64>(i.a), cx.get::<u32>(i.b)) };
    let different = (1..LANES).find(|&lane| bases[lane] != bases[0] || strides[lane] != strides[0]);
    if let Some(lane) = different {
        let text = "the lanes of a warp name different matrices: address and stride must be the same for all 32 lanes";
        return Err(cx.raise(FaultKind::Invalid { text: text.to_string() }, 1 << lane));
    }
    let (base, stride) = (bases[0].wrapping_add(i.c as i32 as i64 as u64), u64::from(strides[0]));
    if !base.is_multiple_of(32) || !(stride * bytes).is_multiple_of(16) {
        let text = format!(
            "a matrix at {base:#x} with lines {} bytes apart: its address must be a multiple of 32 bytes, and the \
             distance of 16",
            stride * bytes
        );
        return Err(cx.raise(FaultKind::Invalid { text }, 1));
    }
    Ok((base, stride))
}

/// Run `each` for every register and element in it, with the host addresses of the lanes' elements.
///
/// # Safety
/// As `origin`; `d` must be a list.
#[inline(always)]
unsafe fn elements(
    cx: &mut Cx<'_>,
    i: &Instr,
    m: u32,
    write: bool,
    each: impl Fn(&mut Cx<'_>, u32, usize, u64, &Row<u64>),
) -> Result<(), Flow> {
    converge(cx, m)?;
    let fragment = Fragment::unpack(i.x);
    let (shape, element) = (fragment.shape, fragment.element);
    let (per, bytes) = (element.per_register(), element.bits() as u64 / 8);
    // SAFETY: the caller's contract.
    let (base, stride) = unsafe { origin(cx, i, bytes)? };
    let needed = shape.registers(fragment.matrix, element).max(1);
    for (r, &register) in rows(cx, i.d).iter().enumerate() {
        for e in 0..per {
            let mut addresses = [0; LANES];
            for (lane, address) in addresses.iter_mut().enumerate() {
                let (row, column) = shape.place(fragment.matrix, per, lane, r % needed, e);
                let (line, at) = if fragment.column_major { (column, row) } else { (row, column) };
                *address = base.wrapping_add((line as u64 * stride + at as u64) * bytes);
            }
            translate(cx, fragment.kind, &mut addresses, FULL, bytes as u32, write)?;
            each(cx, register, e, bytes, &addresses);
        }
    }
    Ok(())
}

/// `wmma.load`: `d` lists the registers, `a` holds the address (`c` is added), `b` the stride, `x` is the fragment.
pub(crate) unsafe fn load(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    // SAFETY: lowering gave rows of these widths; the addresses were checked.
    let done = unsafe {
        elements(cx, i, m, false, |cx, register, e, bytes, addresses| {
            if bytes == 8 {
                cx.put::<u64>(register, FULL, addresses.map(|address| (address as *const u64).read()));
                return;
            }
            let mut words = if e == 0 { [0; LANES] } else { cx.get::<u32>(register) };
            for (word, &address) in words.iter_mut().zip(addresses) {
                let value = match bytes {
                    1 => u32::from((address as *const u8).read()),
                    2 => u32::from((address as *const u16).read()),
                    _ => (address as *const u32).read(),
                };
                *word |= value << (e as u64 * bytes * 8);
            }
            cx.put::<u32>(register, FULL, words);
        })
    };
    done.err().unwrap_or(Flow::Next)
}

/// `wmma.store`: the reverse.
pub(crate) unsafe fn store(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    // SAFETY: lowering gave rows of these widths; the addresses were checked.
    let done = unsafe {
        elements(cx, i, m, true, |cx, register, e, bytes, addresses| {
            if bytes == 8 {
                for (value, &address) in cx.get::<u64>(register).iter().zip(addresses) {
                    (address as *mut u64).write(*value);
                }
                return;
            }
            for (word, &address) in cx.get::<u32>(register).iter().zip(addresses) {
                let value = word >> (e as u64 * bytes * 8);
                match bytes {
                    2 => (address as *mut u16).write(value as u16),
                    _ => (address as *mut u32).write(value),
                }
            }
        })
    };
    done.err().unwrap_or(Flow::Next)
}
