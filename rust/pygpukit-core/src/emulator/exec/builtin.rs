//! Functions the driver provides.

use std::fmt::Write;

use crate::emulator::code::{Flow, Instr, LANES, LOCAL_BASE_ROW};
use crate::emulator::fault::FaultKind;
use crate::emulator::warp::Cx;

/// Most characters of a string argument.
const MAX_TEXT: usize = 4096;

/// Read a 64-bit (or smaller) argument of a call from local memory.
fn argument(cx: &Cx<'_>, i: &Instr, lane: usize, index: usize, local: u32) -> u64 {
    let list = &cx.grid.code().lists[i.a as usize..];
    if index >= list[0] as usize {
        return 0;
    }
    let at = lane * cx.warp.local_bytes + local as usize + list[1 + index] as usize;
    let bytes = cx.warp.local.get(at..at + 8).unwrap_or(&[]);
    bytes.try_into().map_or(0, u64::from_le_bytes)
}

fn read<const N: usize>(cx: &mut Cx<'_>, lane: usize, address: u64) -> Result<[u8; N], FaultKind> {
    let mut bytes = [0; N];
    for (k, byte) in bytes.iter_mut().enumerate() {
        let pointer = cx.resolve(lane, address.wrapping_add(k as u64), 1, false)?;
        // SAFETY: just resolved.
        *byte = unsafe { pointer.read() };
    }
    Ok(bytes)
}

fn text(cx: &mut Cx<'_>, lane: usize, address: u64) -> Result<String, FaultKind> {
    let mut bytes = Vec::new();
    for k in 0..MAX_TEXT as u64 {
        match read::<1>(cx, lane, address.wrapping_add(k))? {
            [0] => break,
            [byte] => bytes.push(byte),
        }
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// `vprintf(format, arguments)`: each lane prints, in order of lanes.
pub(crate) unsafe fn print(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    // SAFETY: every frame has this row.
    let local = unsafe { cx.get::<u32>(LOCAL_BASE_ROW) };
    let mut out = String::new();
    for lane in (0..LANES).filter(|lane| m >> lane & 1 != 0) {
        let (format, values) = (argument(cx, i, lane, 0, local[lane]), argument(cx, i, lane, 1, local[lane]));
        let count = match print_lane(cx, lane, format, values, &mut out) {
            Ok(count) => count,
            Err(kind) => return cx.raise(kind, 1 << lane),
        };
        if i.b != u32::MAX {
            let at = lane * cx.warp.local_bytes + local[lane] as usize + i.b as usize;
            if let Some(slot) = cx.warp.local.get_mut(at..at + 4) {
                slot.copy_from_slice(&count.to_le_bytes());
                if cx.watched {
                    cx.check_local(lane, local[lane] as usize + i.b as usize, 4);
                }
            }
        }
    }
    cx.grid.print(&out);
    Flow::Next
}

fn print_lane(cx: &mut Cx<'_>, lane: usize, format: u64, values: u64, out: &mut String) -> Result<u32, FaultKind> {
    let format = text(cx, lane, format)?;
    let mut at = values;
    let mut count = 0;
    let mut rest = format.as_str();
    while let Some(percent) = rest.find('%') {
        out.push_str(&rest[..percent]);
        rest = &rest[percent + 1..];
        let end = rest.find(|c: char| c.is_ascii_alphabetic() && !"hlLzjt".contains(c) || c == '%');
        let Some(end) = end else { break };
        let (spec, kind) = (&rest[..end], rest.as_bytes()[end] as char);
        rest = &rest[end + 1..];
        if kind == '%' {
            out.push('%');
            continue;
        }
        let mut take = |bytes: u64| {
            at = at.next_multiple_of(bytes);
            at += bytes;
            at - bytes
        };
        // A star takes its width from the arguments.
        let mut spec = spec.to_string();
        while let Some(star) = spec.find('*') {
            let width = i32::from_le_bytes(read(cx, lane, take(4))?);
            spec.replace_range(star..=star, &width.to_string());
        }
        let long = spec.contains('l') || spec.contains('z') || spec.contains('j') || spec.contains('t') || kind == 'p';
        let piece = match kind {
            's' => match u64::from_le_bytes(read(cx, lane, take(8))?) {
                0 => "(null)".to_string(),
                pointer => text(cx, lane, pointer)?,
            },
            'f' | 'F' | 'e' | 'E' | 'g' | 'G' | 'a' | 'A' => {
                float_text(f64::from_le_bytes(read(cx, lane, take(8))?), &spec, kind)
            }
            _ => {
                let bits = if long {
                    i64::from_le_bytes(read(cx, lane, take(8))?)
                } else {
                    i64::from(i32::from_le_bytes(read(cx, lane, take(4))?))
                };
                integer_text(bits, long, &spec, kind)
            }
        };
        pad(out, &piece, &spec, kind);
        count += 1;
    }
    out.push_str(rest);
    Ok(count)
}

fn precision(spec: &str) -> Option<usize> {
    let digits: String = spec.split_once('.')?.1.chars().take_while(char::is_ascii_digit).collect();
    Some(digits.parse().unwrap_or(0).min(200))
}

fn sign(negative: bool, spec: &str) -> &'static str {
    match (negative, spec.contains('+'), spec.contains(' ')) {
        (true, _, _) => "-",
        (false, true, _) => "+",
        (false, false, true) => " ",
        _ => "",
    }
}

fn integer_text(bits: i64, long: bool, spec: &str, kind: char) -> String {
    let (bits, unsigned) = match (long, spec.matches('h').count()) {
        (true, _) => (bits, bits as u64),
        (false, 0) => (bits, u64::from(bits as u32)),
        (false, 1) => (i64::from(bits as i16), u64::from(bits as u16)),
        _ => (i64::from(bits as i8), u64::from(bits as u8)),
    };
    let alternate = spec.contains('#');
    let digits = match kind {
        'd' | 'i' => bits.unsigned_abs().to_string(),
        'x' | 'p' => format!("{unsigned:x}"),
        'X' => format!("{unsigned:X}"),
        'o' => format!("{unsigned:o}"),
        'c' => return char::from(bits as u8).to_string(),
        _ => unsigned.to_string(),
    };
    let digits = format!("{digits:0>width$}", width = precision(spec).unwrap_or(0));
    let prefix = match kind {
        'p' => "0x",
        'x' if alternate && unsigned != 0 => "0x",
        'X' if alternate && unsigned != 0 => "0X",
        'o' if alternate => "0",
        'd' | 'i' => sign(bits < 0, spec),
        _ => "",
    };
    format!("{prefix}{digits}")
}

fn float_text(value: f64, spec: &str, kind: char) -> String {
    let sign = sign(value.is_sign_negative(), spec);
    let value = value.abs();
    let upper = kind.is_ascii_uppercase();
    let body = if value.is_nan() {
        "nan".to_string()
    } else if value.is_infinite() {
        "inf".to_string()
    } else {
        let digits = precision(spec).unwrap_or(6);
        match kind.to_ascii_lowercase() {
            'f' => format!("{value:.digits$}"),
            'e' => exponent_text(value, digits),
            'g' => general_text(value, digits.max(1), spec.contains('#')),
            _ => hex_text(value),
        }
    };
    let text = format!("{sign}{body}");
    if upper { text.to_uppercase() } else { text }
}

/// `1.5e+03`, as C writes it.
fn exponent_text(value: f64, digits: usize) -> String {
    let text = format!("{value:.digits$e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    format!("{mantissa}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
}

fn general_text(value: f64, digits: usize, keep: bool) -> String {
    let scientific = exponent_text(value, digits - 1);
    let exponent: i32 = scientific.split_once('e').map_or(0, |(_, e)| e.parse().unwrap_or(0));
    let trim = |text: &str| match text.contains('.') && !keep {
        true => text.trim_end_matches('0').trim_end_matches('.').to_string(),
        false => text.to_string(),
    };
    if exponent < -4 || exponent >= digits as i32 {
        let (mantissa, tail) = scientific.split_once('e').unwrap_or((&scientific, "+00"));
        return format!("{}e{tail}", trim(mantissa));
    }
    let decimals = (digits as i32 - 1 - exponent).max(0) as usize;
    trim(&format!("{value:.decimals$}"))
}

fn hex_text(value: f64) -> String {
    if value == 0.0 {
        return "0x0p+0".to_string();
    }
    let bits = value.to_bits();
    let (exponent, fraction) = ((bits >> 52 & 0x7ff) as i32, bits & ((1 << 52) - 1));
    let (lead, exponent) = if exponent == 0 { (0, -1022) } else { (1, exponent - 1023) };
    let mut digits = format!("{fraction:013x}");
    while digits.ends_with('0') {
        digits.pop();
    }
    let point = if digits.is_empty() { "" } else { "." };
    format!("0x{lead}{point}{digits}p{exponent:+}")
}

/// Bring a piece to the width of its specification.
fn pad(out: &mut String, piece: &str, spec: &str, kind: char) {
    let flags: String = spec.chars().take_while(|c| "-+ #0".contains(*c)).collect();
    let width: String = spec[flags.len()..].chars().take_while(char::is_ascii_digit).collect();
    let width = width.parse().unwrap_or(0).min(1000);
    let piece = match (kind, precision(spec)) {
        ('s', Some(limit)) => piece.chars().take(limit).collect(),
        _ => piece.to_string(),
    };
    let numeric = "diuxXofFeEgGaA".contains(kind) && piece.chars().any(|c| c.is_ascii_digit());
    let integer_precision = "diuxXo".contains(kind) && spec.contains('.');
    if flags.contains('-') || spec.starts_with('-') {
        let _ = write!(out, "{piece:<width$}");
    } else if flags.contains('0') && numeric && !integer_precision {
        let start = piece.find(|c: char| c.is_ascii_hexdigit()).unwrap_or(0);
        let (lead, digits) = piece.split_at(start);
        let _ = write!(out, "{lead}{digits:0>rest$}", rest = width.saturating_sub(lead.len()));
    } else {
        let _ = write!(out, "{piece:>width$}");
    }
}

/// `__assertfail(message, file, line, function, size)`
pub(crate) unsafe fn assert_fail(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    // SAFETY: every frame has this row.
    let local = unsafe { cx.get::<u32>(LOCAL_BASE_ROW) };
    let lane = m.trailing_zeros() as usize;
    let mut part = |index: usize| {
        let pointer = argument(cx, i, lane, index, local[lane]);
        text(cx, lane, pointer).unwrap_or_default()
    };
    let (message, file, function) = (part(0), part(1), part(3));
    let line = argument(cx, i, lane, 2, local[lane]) as u32;
    let message = format!("assertion failed: {message}, in {function} at {file}:{line}");
    cx.raise(FaultKind::Assert { message }, 1 << lane)
}

/// `malloc` and `free`: code that never runs may contain them, such as destructors of objects that nobody deletes.
pub(crate) unsafe fn heap(cx: &mut Cx<'_>, i: &Instr, m: u32) -> Flow {
    let name = cx.grid.code().functions.get(i.x as usize).map_or("malloc", |function| &function.name);
    let text = format!("call of '{name}': the CPU device has no heap for kernels; pass them the memory that they need");
    cx.raise(FaultKind::Invalid { text }, m)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_print_as_in_c() {
        let f = |value, spec: &str, kind| {
            let mut out = String::new();
            pad(&mut out, &float_text(value, spec, kind), spec, kind);
            out
        };
        assert_eq!(f(1.5, "", 'f'), "1.500000");
        assert_eq!(f(-1234.5, ".2", 'e'), "-1.23e+03");
        assert_eq!(f(0.0001, "", 'g'), "0.0001");
        assert_eq!(f(0.00001, "", 'g'), "1e-05");
        assert_eq!(f(100000.0, "", 'g'), "100000");
        assert_eq!(f(1000000.0, "", 'g'), "1e+06");
        assert_eq!(f(3.25, "08.3", 'f'), "0003.250");
        assert_eq!(f(-3.25, "08.3", 'f'), "-003.250");
        assert_eq!(f(f64::INFINITY, "5", 'f'), "  inf");
        assert_eq!(f(0.5, "", 'a'), "0x1p-1");
        let d = |value, spec: &str, kind| {
            let mut out = String::new();
            pad(&mut out, &integer_text(value, spec.contains('l'), spec, kind), spec, kind);
            out
        };
        assert_eq!(d(-1, "", 'd'), "-1");
        assert_eq!(d(-1, "", 'u'), "4294967295");
        assert_eq!(d(-1, "ll", 'x'), "ffffffffffffffff");
        assert_eq!(d(42, "-5", 'd'), "42   ");
        assert_eq!(d(42, "05", 'd'), "00042");
        assert_eq!(d(-42, "+06", 'd'), "-00042");
        assert_eq!(d(65, "", 'c'), "A");
        assert_eq!(d(255, "#", 'x'), "0xff");
        assert_eq!(d(7, ".3", 'd'), "007");
        assert_eq!(d(300, "hh", 'd'), "44");
        assert_eq!(d(200, "hh", 'd'), "-56");
        assert_eq!(d(-1, "hh", 'x'), "ff");
        assert_eq!(d(-1, "h", 'u'), "65535");
        assert_eq!(d(40_000, "6h", 'd'), "-25536");
    }
}
