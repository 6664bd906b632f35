//! The arrays of a launch: where they lie, what they are called, and the shadow of their words.

use std::sync::Arc;

use super::shadow::{Cell, LINE, Line, Parts, expand, touched_line};
use crate::command::ArrayArg;
use crate::emulator::code::Variable;
use crate::emulator::memory::Memory;
use crate::memory::registry::Written;

/// Larger arrays have no shadow: their bounds are checked, races in them are not.
const MOST_BYTES: u64 = 1 << 36;

/// An array that a kernel touches.
pub(crate) struct Array {
    pub start: u64,
    pub bytes: u64,
    pub written: Option<Arc<Written>>,
    /// The shadow of its lines of 128 bytes, and the words of those that need more than a line tells.
    lines: Vec<Line>,
    cells: Vec<[Cell; LINE]>,
    parts: Parts,
}

impl Array {
    fn new(start: u64, bytes: u64, written: Option<Arc<Written>>) -> Array {
        let lines = if bytes <= MOST_BYTES { (start + bytes).div_ceil(128) - start / 128 } else { 0 };
        // Zeroed pages cost nothing before they are touched.
        let lines = vec![[0; 10]; lines as usize];
        Array { start, bytes, written, lines, cells: Vec::new(), parts: Parts::default() }
    }

    #[inline(always)]
    pub fn holds(&self, address: u64, bytes: u32) -> bool {
        address >= self.start
            && address.wrapping_add(u64::from(bytes)) <= self.start + self.bytes
            && address != u64::MAX
    }

    /// Each piece that was touched: whether it was written, its first address and the one behind it, and the instruction.
    pub fn each_touched(&self, mut note: impl FnMut(bool, u64, u64, u32)) {
        for (index, line) in self.lines.iter().enumerate() {
            let at = self.start / 128 * 128 + 128 * index as u64;
            if line[9] == 0 {
                let (start, end) = (at.max(self.start), (at + 128).min(self.start + self.bytes));
                touched_line(line, |write, entry| note(write, start, end, entry.pc()));
                continue;
            }
            for (word, cell) in self.cells[line[9] as usize - 1].iter().enumerate() {
                self.parts.each_touched(cell, |offset, bytes, write, entry| {
                    let start = at + 4 * word as u64 + offset;
                    note(write, start, start + bytes, entry.pc());
                });
            }
        }
    }

    fn line(&self, address: u64) -> usize {
        (address / 128 - self.start / 128) as usize
    }

    /// The shadow of a line, while one entry stands for all of its words.
    #[inline(always)]
    pub fn whole_line(&mut self, address: u64) -> Option<&mut Line> {
        let index = self.line(address);
        self.lines.get_mut(index).filter(|line| line[9] == 0)
    }

    /// The shadow of the words of an access, which lie in one line, and the parts of words.
    #[inline(always)]
    pub fn words(&mut self, address: u64, count: usize) -> Option<(&mut [Cell], &mut Parts)> {
        let index = self.line(address);
        let line = self.lines.get_mut(index)?;
        if line[9] == 0 {
            self.cells.push(expand(line));
            line[9] = self.cells.len() as u32;
        }
        let first = (address / 4) as usize % LINE;
        let words = self.cells.get_mut(line[9] as usize - 1)?.get_mut(first..first + count)?;
        Some((words, &mut self.parts))
    }
}

/// Where arrays are found.
#[derive(Clone, Copy)]
pub(crate) struct Known<'a> {
    pub memory: &'a dyn Memory,
    pub named: &'a [ArrayArg],
    pub variables: &'a [Variable],
    /// Only those of `named` and `variables` may be touched.
    pub closed: bool,
}

/// The arrays seen so far, sorted by address.
#[derive(Default)]
pub(crate) struct Arrays {
    pub all: Vec<Array>,
    last: usize,
}

impl Arrays {
    /// Index of the array around an access.
    #[inline(always)]
    pub fn find(&mut self, known: &Known<'_>, address: u64, bytes: u32) -> Option<usize> {
        if self.all.get(self.last).is_some_and(|array| array.holds(address, bytes)) {
            return Some(self.last);
        }
        self.look_up(known, address, bytes)
    }

    fn look_up(&mut self, known: &Known<'_>, address: u64, bytes: u32) -> Option<usize> {
        let after = self.all.partition_point(|array| array.start <= address);
        if let Some(at) = after.checked_sub(1)
            && self.all[at].holds(address, bytes)
        {
            self.last = at;
            return Some(at);
        }
        let array = new_array(known, address)?;
        if !array.holds(address, bytes) {
            return None;
        }
        // An array that was freed while the launch ran made room for this one.
        self.all.retain(|old| old.start + old.bytes <= array.start || old.start >= array.start + array.bytes);
        let at = self.all.partition_point(|old| old.start < array.start);
        self.all.insert(at, array);
        self.last = at;
        Some(at)
    }
}

fn new_array(known: &Known<'_>, address: u64) -> Option<Array> {
    let Known { memory, named, variables, closed } = *known;
    let inside = |start: u64, bytes: u64| address >= start && address - start < bytes;
    if let Some(var) = variables.iter().find(|var| inside(var.start, var.bytes)) {
        return Some(Array::new(var.start, var.bytes, None));
    }
    // An argument may be freed, in stream order, before the launch runs, and another array have its place.
    let found = match named.iter().map(|arg| &arg.memory).find(|of| inside(of.start, of.bytes)) {
        Some(argument) => argument.clone(),
        None if closed => return None,
        None => memory.array(address)?,
    };
    Some(Array::new(found.start, found.bytes, found.written))
}

/// What a place in memory is called.
pub(crate) struct Named {
    /// `x[12]`
    pub element: String,
    /// `which has 1000 elements (shape (10, 100))`
    pub extent: String,
}

fn index(name: &str, offset: i64, item: u64) -> String {
    let item = item.max(1) as i64;
    match offset.rem_euclid(item) {
        0 => format!("{name}[{}]", offset.div_euclid(item)),
        rest => format!("{name}[{}] (byte {rest} of it)", offset.div_euclid(item)),
    }
}

/// Name an address by the variable it should lie in.
pub(crate) fn name_variable(var: &Variable, address: u64, width: u32) -> Named {
    let item = if var.item > 1 { var.item } else { u64::from(width) };
    let element = match (var.bytes == item, address == var.start) {
        (true, true) => plain_name(&var.name).to_string(),
        _ => index(plain_name(&var.name), address.wrapping_sub(var.start) as i64, item),
    };
    Named { element, extent: format!("which has {}", elements(var.bytes, item)) }
}

/// As `name_variable`, by an argument.
pub(crate) fn name_argument(arg: &ArrayArg, address: u64) -> Named {
    let element = index(&arg.name, address.wrapping_sub(arg.address) as i64, arg.item);
    let shape = if arg.shape.len() > 1 { format!(" (shape {})", show(&arg.shape)) } else { String::new() };
    Named { element, extent: format!("which has {}{shape}", elements(arg.size * arg.item, arg.item)) }
}

/// Name a global address, as part of the array `[start, start + bytes)`.
pub(crate) fn name(named: &[ArrayArg], vars: &[Variable], start: u64, bytes: u64, address: u64, width: u32) -> Named {
    if let Some(var) = vars.iter().find(|var| var.start == start && var.bytes == bytes) {
        return name_variable(var, address, width);
    }
    let same: Vec<&ArrayArg> =
        named.iter().filter(|arg| arg.memory.start == start && arg.memory.bytes == bytes).collect();
    let inside = same.iter().find(|arg| address >= arg.address && address - arg.address < arg.size * arg.item);
    match inside.or(same.first()) {
        Some(arg) => name_argument(arg, address),
        None => {
            let offset = address.wrapping_sub(start) as i64;
            let element = format!("byte {offset} of an array that is no argument of this kernel");
            Named { element, extent: format!("which has {bytes} bytes") }
        }
    }
}

fn elements(bytes: u64, item: u64) -> String {
    let count = bytes / item.max(1);
    format!("{count} element{}", if count == 1 { "" } else { "s" })
}

fn show(shape: &[i64]) -> String {
    let inner: Vec<String> = shape.iter().map(i64::to_string).collect();
    format!("({})", inner.join(", "))
}

/// Name an offset of shared memory by the variable it lies in.
pub(crate) fn name_shared(vars: &[Variable], kernel: usize, dynamic: u64, offset: u64, width: u32) -> String {
    let mine = |var: &&Variable| var.function.is_none_or(|f| f == kernel);
    let found = vars.iter().filter(mine).find(|var| offset >= var.start && offset - var.start < var.bytes);
    match found {
        Some(var) => {
            let item = if var.item > 1 { var.item } else { u64::from(width) };
            match var.bytes == item {
                true => plain_name(&var.name).to_string(),
                false => index(plain_name(&var.name), (offset - var.start) as i64, item),
            }
        }
        None if offset >= dynamic => {
            format!("byte {} of dynamic shared memory", offset - dynamic)
        }
        None => format!("byte {offset} of shared memory"),
    }
}

/// The last identifier of a mangled name: `_ZZ1kPfE4tile` is `tile`.
pub(crate) fn plain_name(name: &str) -> &str {
    if !name.starts_with("_Z") {
        return name;
    }
    let mut best = name;
    let bytes = name.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        if !bytes[at].is_ascii_digit() {
            at += 1;
            continue;
        }
        let digits = bytes[at..].iter().take_while(|b| b.is_ascii_digit()).count();
        let length: usize = name[at..at + digits].parse().unwrap_or(0);
        let start = at + digits;
        match name.get(start..start.saturating_add(length)) {
            Some(part) if length > 0 && !part.as_bytes()[0].is_ascii_digit() => {
                best = part;
                at = start + length;
            }
            _ => at = start,
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mangled_names_end_with_the_variable() {
        assert_eq!(plain_name("_ZZ1kPfE4tile"), "tile");
        assert_eq!(plain_name("_ZZ6kernelE1s"), "s");
        assert_eq!(plain_name("_ZN3pgk5tableE"), "table");
        assert_eq!(plain_name("_ZZN3pgk8sum_rowsIffEEvPfE7partial"), "partial");
        assert_eq!(plain_name("plain"), "plain");
    }

    #[test]
    fn elements_and_bytes_have_indices() {
        assert_eq!(index("x", 4000, 4), "x[1000]");
        assert_eq!(index("x", -4, 4), "x[-1]");
        assert_eq!(index("x", 6, 4), "x[1] (byte 2 of it)");
    }
}
