//! Who touched each word of memory last: the shadow of a word, and what is compared when it is touched again.

use super::clock::Time;

/// The last write and two reads of a word, each as time, thread and info. Of the reads, one is the last, and the other
/// the last of another warp. Time 0 is none.
pub(crate) type Cell = [u32; 9];

const WRITE: usize = 0;
const READS: [usize; 2] = [3, 6];

/// Flags of the info of an entry, above the four bits of its bytes; the instruction is above the flags.
pub(crate) const STRONG: u32 = 1 << 4;
pub(crate) const NARROW: u32 = 1 << 5;
pub(crate) const ASYNC: u32 = 1 << 6;
pub(crate) const ATOMIC: u32 = 1 << 7;
/// A plain store, whose values can be compared.
pub(crate) const STORE: u32 = 1 << 8;
const PLACE: u32 = 9;

/// One recorded access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub time: Time,
    pub thread: u32,
    pub info: u32,
}

impl Entry {
    pub fn pc(self) -> u32 {
        self.info >> PLACE
    }

    pub fn is(self, flag: u32) -> bool {
        self.info & flag != 0
    }
}

/// The info of an instruction's accesses, without bytes.
pub(crate) fn info(pc: u32, flags: u32) -> u32 {
    pc << PLACE | flags
}

#[inline(always)]
fn entry(cell: &Cell, at: usize) -> Entry {
    Entry { time: cell[at], thread: cell[at + 1], info: cell[at + 2] }
}

#[inline(always)]
fn set(cell: &mut Cell, at: usize, entry: Entry) {
    cell[at] = entry.time;
    cell[at + 1] = entry.thread;
    cell[at + 2] = entry.info;
}

/// The access that is made now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    pub entry: Entry,
    /// What happened until then, by any thread, happened before; asynchronous writes since `born` are never over before
    /// they are complete.
    pub floor: Time,
    pub born: Time,
}

/// What a look at a cell found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    Fine,
    /// Lanes of one instruction write the same bytes.
    Overlap,
    /// A write that is not ordered with this one, which does no harm if both write the same.
    Again(Entry),
    /// An access that is not ordered with this one, and whether it was a write.
    Race(Entry, bool),
}

/// Compare an access with the last ones and record it, a write only if `record` says so. `unordered` decides about those that are not trivially ordered.
#[inline(always)]
pub(crate) fn touch(
    cell: &mut Cell,
    access: &Access,
    write: bool,
    record: bool,
    mut unordered: impl FnMut(Entry) -> bool,
) -> Seen {
    let Access { entry: mine, floor, born } = *access;
    let mut seen = Seen::Fine;
    let last = entry(cell, WRITE);
    let before = if last.is(ASYNC) { born } else { floor };
    if last.time > before && last.info & mine.info & 0xf != 0 && (last.thread != mine.thread || last.is(ASYNC)) {
        if last.time == mine.time {
            seen = Seen::Overlap;
        } else if unordered(last) {
            if !write || !mine.is(STORE) || last.is(ASYNC) {
                return Seen::Race(last, true);
            }
            seen = Seen::Again(last);
        }
    }
    if !write {
        let newest = entry(cell, READS[0]);
        if newest.time > floor && newest.thread / 32 != mine.thread / 32 {
            set(cell, READS[1], newest);
        }
        set(cell, READS[0], mine);
        return Seen::Fine;
    }
    for at in READS {
        let read = entry(cell, at);
        if read.time > floor
            && read.info & mine.info & 0xf != 0
            && read.thread != mine.thread
            && read.time != mine.time
            && unordered(read)
        {
            return Seen::Race(read, false);
        }
    }
    if !record {
        return seen;
    }
    set(cell, WRITE, mine);
    // Whoever comes later is compared with this write; what was before it is then ordered through it. Reads of other
    // bytes of the word are not.
    if mine.info & 0xf == 0xf {
        cell[READS[0]] = 0;
        cell[READS[1]] = 0;
    }
    seen
}

/// Words of a line: what a warp reads or writes in one piece.
pub(crate) const LINE: usize = 32;

/// The shadow of a line: as long as whole warps touch it in order, one cell stands for all of its words, its threads
/// packed by `row_key`. Otherwise the number of its cells, from 1, is in the last place.
pub(crate) type Line = [u32; 10];

/// Threads of a line whose first word belongs to `first`, with `1 << shift` words for each.
pub(crate) fn row_key(first: u32, shift: u32) -> Option<u32> {
    (first < 1 << 30).then_some(first | shift << 30)
}

/// The thread of a word.
pub(crate) fn row_thread(key: u32, word: usize) -> u32 {
    (key & ((1 << 30) - 1)) + (word as u32 >> (key >> 30))
}

/// `touch` for a whole line. False, and nothing is recorded, where an entry is `suspicious`.
#[inline(always)]
pub(crate) fn touch_line(line: &mut Line, mine: Entry, write: bool, mut suspicious: impl FnMut(Entry) -> bool) -> bool {
    let at = |line: &Line, at: usize| Entry { time: line[at], thread: line[at + 1], info: line[at + 2] };
    let put = |line: &mut Line, at: usize, entry: Entry| {
        (line[at], line[at + 1], line[at + 2]) = (entry.time, entry.thread, entry.info);
    };
    let last = at(line, WRITE);
    if last.time != 0 && last.thread != mine.thread && suspicious(last) {
        return false;
    }
    if !write {
        let newest = at(line, READS[0]);
        if newest.time != 0 && newest.thread != mine.thread {
            put(line, READS[1], newest);
        }
        put(line, READS[0], mine);
        return true;
    }
    for place in READS {
        let read = at(line, place);
        if read.time != 0 && read.thread != mine.thread && suspicious(read) {
            return false;
        }
    }
    put(line, WRITE, mine);
    line[READS[0]] = 0;
    line[READS[1]] = 0;
    true
}

/// The cells of a line that whole warps have touched so far.
pub(crate) fn expand(line: &Line) -> [Cell; LINE] {
    std::array::from_fn(|word| {
        let mut cell = [0; 9];
        for at in [WRITE, READS[0], READS[1]] {
            let entry = Entry { time: line[at], thread: row_thread(line[at + 1], word), info: line[at + 2] };
            set(&mut cell, at, entry);
        }
        cell
    })
}

/// An asynchronous write of this thread is complete now.
pub(crate) fn complete(cell: &mut Cell, thread: u32, time: Time) {
    let last = entry(cell, WRITE);
    if last.thread == thread && last.is(ASYNC) {
        set(cell, WRITE, Entry { time, thread, info: last.info & !ASYNC });
    }
}

/// Bits of bytes that have a value.
#[derive(Clone, Debug, Default)]
pub(crate) struct Defined(Vec<u64>);

fn span(start: u64, bytes: u32) -> (usize, u64) {
    let mask = if bytes >= 64 { u64::MAX } else { (1 << bytes) - 1 };
    ((start / 64) as usize, mask << (start % 64))
}

impl Defined {
    /// Forget all; there are this many bytes.
    pub fn reset(&mut self, bytes: usize) {
        self.0.clear();
        self.0.resize(bytes.div_ceil(64), 0);
    }

    /// Set the bytes of an access, which is aligned to its size.
    #[inline]
    pub fn set(&mut self, start: u64, bytes: u32) {
        let (word, mask) = span(start, bytes);
        if word >= self.0.len() {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= mask;
    }

    /// Has any byte of an access a value?
    #[inline]
    pub fn any(&self, start: u64, bytes: u32) -> bool {
        let (word, mask) = span(start, bytes);
        self.0.get(word).is_some_and(|bits| bits & mask != 0)
    }

    /// Keep words of four bytes of which any is set where `keep` says so.
    pub fn retain_words(&mut self, mut keep: impl FnMut(usize) -> bool) {
        for (at, bits) in self.0.iter_mut().enumerate().filter(|(_, bits)| **bits != 0) {
            for word in 0..16 {
                let mask = 0xf << (4 * word);
                if *bits & mask != 0 && !keep(16 * at + word) {
                    *bits &= !mask;
                }
            }
        }
    }

    pub fn set_range(&mut self, start: u64, bytes: u64, value: bool) {
        for at in start..start + bytes {
            let (word, mask) = span(at, 1);
            if word >= self.0.len() {
                if !value {
                    return;
                }
                self.0.resize(word + 1, 0);
            }
            if value {
                self.0[word] |= mask;
            } else {
                self.0[word] &= !mask;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(time: Time, thread: u32, bytes: u32) -> Access {
        Access { entry: Entry { time, thread, info: info(1, 0) | bytes }, floor: 0, born: 0 }
    }

    #[test]
    fn writes_are_compared_with_writes_and_reads_of_the_same_bytes() {
        let mut cell = [0; 9];
        assert_eq!(touch(&mut cell, &access(1, 5, 0b0011), true, true, |_| true), Seen::Fine);
        assert_eq!(touch(&mut cell, &access(2, 6, 0b1100), false, true, |_| true), Seen::Fine);
        assert!(matches!(touch(&mut cell, &access(3, 6, 0b0010), false, true, |_| true), Seen::Race(_, true)));
        assert!(matches!(touch(&mut cell, &access(4, 7, 0b0001), true, true, |_| true), Seen::Race(_, true)));
        assert!(matches!(touch(&mut cell, &access(4, 5, 0b0100), true, true, |_| true), Seen::Race(_, false)));
    }

    #[test]
    fn a_second_reader_of_another_warp_is_remembered() {
        let mut cell = [0; 9];
        for thread in [70, 3, 4, 5] {
            assert_eq!(touch(&mut cell, &access(thread, thread, 15), false, true, |_| true), Seen::Fine);
        }
        let found = touch(&mut cell, &access(100, 5, 15), true, true, |entry| entry.thread >= 64);
        assert!(matches!(found, Seen::Race(Entry { thread: 70, .. }, false)), "{found:?}");
    }

    #[test]
    fn a_line_stands_for_its_words() {
        let mut line = [0; 10];
        let row = |time, first, shift| {
            let thread = row_key(first, shift).expect("few threads");
            Entry { time, thread, info: info(1, 0) | 15 }
        };
        assert!(touch_line(&mut line, row(1, 64, 0), true, |_| true));
        assert!(touch_line(&mut line, row(2, 64, 0), false, |_| true));
        assert!(touch_line(&mut line, row(3, 128, 2), false, |entry| entry.time != 1));
        assert!(!touch_line(&mut line, row(4, 64, 0), true, |entry| entry.time == 3));
        let cells = expand(&line);
        assert_eq!(cells[9][..3], [1, 73, line[2]]);
        assert_eq!((cells[9][3], cells[9][4]), (3, 130));
        assert_eq!((cells[9][6], cells[9][7]), (2, 73));
    }

    #[test]
    fn what_is_below_the_floor_is_over() {
        let mut cell = [0; 9];
        touch(&mut cell, &access(9, 5, 15), true, true, |_| true);
        let later = Access { floor: 9, ..access(10, 6, 15) };
        assert_eq!(touch(&mut cell, &later, true, true, |_| true), Seen::Fine);
    }

    #[test]
    fn an_asynchronous_write_is_not_ordered_with_its_own_thread() {
        let mut cell = [0; 9];
        let mut copy = access(1, 5, 15);
        copy.entry.info |= ASYNC;
        touch(&mut cell, &copy, true, true, |_| true);
        assert!(matches!(touch(&mut cell, &access(2, 5, 15), false, true, |_| true), Seen::Race(..)));
        complete(&mut cell, 5, 3);
        assert_eq!(touch(&mut cell, &access(4, 5, 15), false, true, |_| true), Seen::Fine);
    }
}
