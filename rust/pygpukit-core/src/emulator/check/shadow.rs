//! Who touched each word of memory last: the shadow of a word, and what is compared when it is touched again.

use super::clock::Time;

/// The last write of a word (time, thread, info), two reads (the same, and the lanes that read), and the number of the
/// word's parts. Of the reads, one is the last, and the other the last of another warp. Time 0 is none.
pub(crate) type Cell = [u32; 12];

const WRITE: usize = 0;
const READS: [usize; 2] = [3, 7];
const READERS: usize = 3;
const PARTS: usize = 11;

/// Flags of the info of an entry; the instruction is above them.
pub(crate) const STRONG: u32 = 1;
pub(crate) const NARROW: u32 = 1 << 1;
pub(crate) const ASYNC: u32 = 1 << 2;
pub(crate) const ATOMIC: u32 = 1 << 3;
/// A plain store, whose values can be compared.
pub(crate) const STORE: u32 = 1 << 4;
/// Of a read: its lanes read at different times, of which only the last is known.
const MIXED: u32 = 1 << 5;
const PLACE: u32 = 6;

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

/// The info of an instruction's accesses.
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
    /// What the thread's own warp did until then happened before. `plain`: it knows no more of its warp than that.
    pub sync: Time,
    pub plain: bool,
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

/// Compare an access with the last ones and record it, a write only if `record` says so. `unordered` decides about
/// those that are not trivially ordered.
#[inline(always)]
pub(crate) fn touch(
    cell: &mut Cell,
    access: &Access,
    write: bool,
    record: bool,
    mut unordered: impl FnMut(Entry) -> bool,
) -> Seen {
    let Access { entry: mine, floor, born, .. } = *access;
    let mut seen = Seen::Fine;
    let last = entry(cell, WRITE);
    let before = if last.is(ASYNC) { born } else { floor };
    if last.time > before && (last.thread != mine.thread || last.is(ASYNC)) {
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
        note_read(cell, access, 1 << (mine.thread % 32));
        return Seen::Fine;
    }
    for at in READS {
        if cell[at] > floor
            && let Some(read) = reader(entry(cell, at), cell[at + READERS], access, &mut unordered)
        {
            return Seen::Race(read, false);
        }
    }
    if !record {
        return seen;
    }
    set(cell, WRITE, mine);
    // Whoever comes later is compared with this write; what was before it is then ordered through it.
    cell[READS[0]] = 0;
    cell[READS[1]] = 0;
    seen
}

/// Record that lanes of a warp read. Nothing is compared.
#[inline(always)]
pub(crate) fn note_read(cell: &mut Cell, access: &Access, lanes: u32) {
    let mine = access.entry;
    let newest = entry(cell, READS[0]);
    if newest.time > access.floor {
        if newest.thread / 32 != mine.thread / 32 {
            cell.copy_within(READS[0]..READS[1], READS[1]);
        } else if newest.time == mine.time {
            cell[READS[0] + READERS] |= lanes;
            return;
        } else if newest.time > access.sync && cell[READS[0] + READERS] & !lanes != 0 {
            set(cell, READS[0], Entry { info: mine.info | MIXED, ..mine });
            cell[READS[0] + READERS] |= lanes;
            return;
        }
    }
    set(cell, READS[0], mine);
    cell[READS[0] + READERS] = lanes;
}

/// One of the lanes of a read that is not ordered before a write.
#[inline(always)]
fn reader(read: Entry, lanes: u32, access: &Access, mut unordered: impl FnMut(Entry) -> bool) -> Option<Entry> {
    let mine = access.entry;
    let near = read.thread / 32 == mine.thread / 32;
    let others = if near { lanes & !(1 << (mine.thread % 32)) } else { lanes };
    if others == 0 || near && read.time <= access.sync {
        return None;
    }
    let first = read.thread / 32 * 32;
    // When the others read is not known, but no order is lost by taking it to be now where only barriers of the whole
    // warp give one.
    let lanes = match read.is(MIXED) && !(near && access.plain) {
        true => others & 1 << (read.thread % 32),
        false => others,
    };
    (0..32)
        .filter(|lane| lanes >> lane & 1 != 0)
        .map(|lane| Entry { thread: first + lane, ..read })
        .find(|e| unordered(*e))
}

/// May a read of this word be recorded without a look at it? No write to it is left to compare with.
#[inline(always)]
pub(crate) fn is_quiet(cell: &Cell, floor: Time) -> bool {
    cell[WRITE] <= floor && cell[WRITE + 2] & ASYNC == 0 && cell[PARTS] == 0
}

/// The cells of parts of words: of those that are not always touched as a whole.
#[derive(Default)]
pub(crate) struct Parts {
    halves: Vec<[Cell; 2]>,
    bytes: Vec<[Cell; 4]>,
}

/// In the number of a word's parts: they are four bytes, not two halves.
const BYTES: u32 = 1 << 31;

impl Parts {
    /// The cells of some bytes of a word, which are its own as long as it is touched as a whole.
    #[inline(always)]
    pub fn within<'a>(&'a mut self, cell: &'a mut Cell, at: usize, bytes: usize) -> &'a mut [Cell] {
        if bytes == 4 && cell[PARTS] == 0 {
            return std::slice::from_mut(cell);
        }
        self.split(cell, at, bytes)
    }

    fn split(&mut self, cell: &mut Cell, at: usize, bytes: usize) -> &mut [Cell] {
        let number = cell[PARTS];
        if bytes == 1 && number & BYTES == 0 {
            self.bytes.push(match number {
                0 => [*cell; 4],
                _ => {
                    let [low, high] = self.halves[number as usize - 1];
                    [low, low, high, high]
                }
            });
            cell[PARTS] = BYTES | self.bytes.len() as u32;
        } else if number == 0 {
            self.halves.push([*cell; 2]);
            cell[PARTS] = self.halves.len() as u32;
        }
        match cell[PARTS] {
            number if number & BYTES != 0 => &mut self.bytes[(number & !BYTES) as usize - 1][at..at + bytes],
            number => &mut self.halves[number as usize - 1][at / 2..(at + bytes).div_ceil(2)],
        }
    }

    /// The parts of a word, or the word itself while it has none.
    fn of<'a>(&'a self, cell: &'a Cell) -> &'a [Cell] {
        match cell[PARTS] {
            0 => std::slice::from_ref(cell),
            number if number & BYTES != 0 => &self.bytes[(number & !BYTES) as usize - 1],
            number => &self.halves[number as usize - 1],
        }
    }

    /// The last write of any part of a word.
    pub fn last_write(&self, cell: &Cell) -> Entry {
        self.of(cell).iter().map(|cell| entry(cell, WRITE)).max_by_key(|write| write.time).unwrap_or(entry(cell, WRITE))
    }

    /// The accesses that are known of each part of a word: its offset, its bytes, and whether it was written.
    pub fn each_touched(&self, cell: &Cell, mut note: impl FnMut(u64, u64, bool, Entry)) {
        let cells = self.of(cell);
        let bytes = 4 / cells.len();
        for (k, cell) in cells.iter().enumerate() {
            let entries = [(true, WRITE), (false, READS[0])].map(|(write, at)| (write, entry(cell, at)));
            for (write, entry) in entries.into_iter().filter(|(_, entry)| entry.time != 0) {
                note((k * bytes) as u64, bytes as u64, write, entry);
            }
        }
    }

    /// Forget who touched a word.
    pub fn forget(&mut self, cell: &mut Cell) {
        for part in self.within(cell, 0, 4) {
            part[..PARTS].fill(0);
        }
    }

    /// An asynchronous write of this thread is complete now.
    pub fn complete(&mut self, cell: &mut Cell, thread: u32, time: Time) {
        for part in self.within(cell, 0, 4) {
            let last = entry(part, WRITE);
            if last.thread == thread && last.is(ASYNC) {
                set(part, WRITE, Entry { time, thread, info: last.info & !ASYNC });
            }
        }
    }
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

/// Where the reads of a line are.
const LINE_READS: [usize; 2] = [3, 6];

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
        let newest = at(line, LINE_READS[0]);
        if newest.time != 0 && newest.thread != mine.thread {
            put(line, LINE_READS[1], newest);
        }
        put(line, LINE_READS[0], mine);
        return true;
    }
    for place in LINE_READS {
        let read = at(line, place);
        if read.time != 0 && read.thread != mine.thread && suspicious(read) {
            return false;
        }
    }
    put(line, WRITE, mine);
    line[LINE_READS[0]] = 0;
    line[LINE_READS[1]] = 0;
    true
}

/// The last write and the last read of a line that whole warps have touched, where there are any.
pub(crate) fn touched_line(line: &Line, mut note: impl FnMut(bool, Entry)) {
    for (write, at) in [(true, WRITE), (false, LINE_READS[0])] {
        if line[at] != 0 {
            note(write, Entry { time: line[at], thread: line[at + 1], info: line[at + 2] });
        }
    }
}

/// The cells of a line that whole warps have touched so far.
pub(crate) fn expand(line: &Line) -> [Cell; LINE] {
    std::array::from_fn(|word| {
        let mut cell = [0; 12];
        for (from, to) in [(WRITE, WRITE), (LINE_READS[0], READS[0]), (LINE_READS[1], READS[1])] {
            let thread = row_thread(line[from + 1], word);
            set(&mut cell, to, Entry { time: line[from], thread, info: line[from + 2] });
            if to != WRITE {
                cell[to + READERS] = 1 << (thread % 32);
            }
        }
        cell
    })
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

    /// Have all bytes of an access a value?
    #[inline]
    pub fn all(&self, start: u64, bytes: u32) -> bool {
        let (word, mask) = span(start, bytes);
        self.0.get(word).is_some_and(|bits| bits & mask == mask)
    }

    /// As `all`, for any range.
    #[inline]
    pub fn all_of(&self, start: u64, bytes: u32) -> bool {
        let end = start.saturating_add(u64::from(bytes));
        if end > 64 * self.0.len() as u64 {
            return false;
        }
        (start / 64..end.div_ceil(64)).all(|word| {
            let (from, to) = (start.max(64 * word) % 64, end.min(64 * word + 64) - 64 * word);
            let mask = (u64::MAX << from) & (u64::MAX >> (64 - to));
            self.0[word as usize] & mask == mask
        })
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

    fn access(time: Time, thread: u32) -> Access {
        Access { entry: Entry { time, thread, info: info(1, 0) }, floor: 0, born: 0, sync: 0, plain: true }
    }

    fn read(cell: &mut Cell, time: Time, thread: u32) -> Seen {
        touch(cell, &access(time, thread), false, true, |_| true)
    }

    fn write(cell: &mut Cell, time: Time, thread: u32) -> Seen {
        touch(cell, &access(time, thread), true, true, |_| true)
    }

    #[test]
    fn parts_of_a_word_are_compared_with_accesses_of_the_same_bytes() {
        let (mut cell, mut parts) = ([0; 12], Parts::default());
        let mut at = |time, thread, start, bytes, is_write| {
            let found = parts.within(&mut cell, start, bytes).iter_mut().map(|part| match is_write {
                true => write(part, time, thread),
                false => read(part, time, thread),
            });
            found.filter(|seen| *seen != Seen::Fine).last()
        };
        assert_eq!(at(1, 5, 0, 4, false), None);
        assert_eq!(at(2, 5, 0, 2, true), None);
        // The read of the whole word is one of each half.
        assert!(matches!(at(3, 6, 2, 2, true), Some(Seen::Race(Entry { thread: 5, .. }, false))));
        assert_eq!(at(4, 5, 2, 2, true), None);
        assert!(matches!(at(5, 7, 0, 2, false), Some(Seen::Race(Entry { time: 2, .. }, true))));
        assert!(matches!(at(6, 7, 3, 1, false), Some(Seen::Race(Entry { time: 4, .. }, true))));
        assert!(matches!(at(7, 7, 0, 4, false), Some(Seen::Race(Entry { time: 4, .. }, true))));
        assert_eq!(parts.last_write(&cell).time, 4);
        parts.forget(&mut cell);
        assert_eq!(parts.last_write(&cell).time, 0);
    }

    #[test]
    fn a_second_reader_of_another_warp_is_remembered() {
        let mut cell = [0; 12];
        for thread in [70, 3, 4, 5] {
            assert_eq!(read(&mut cell, thread, thread), Seen::Fine);
        }
        let found = touch(&mut cell, &access(100, 5), true, true, |entry| entry.thread >= 64);
        assert!(matches!(found, Seen::Race(Entry { thread: 70, .. }, false)), "{found:?}");
    }

    #[test]
    fn all_readers_of_a_warp_are_remembered() {
        let mut cell = [0; 12];
        note_read(&mut cell, &access(1, 0), u32::MAX);
        let found = touch(&mut cell, &access(2, 0), true, false, |entry| entry.thread == 31);
        assert!(matches!(found, Seen::Race(Entry { thread: 31, .. }, false)), "{found:?}");
        // One of them reads again.
        read(&mut cell, 3, 0);
        assert!(matches!(touch(&mut cell, &access(4, 0), true, false, |_| true), Seen::Race(..)));
        // When the others read is not known, which matters where lanes meet in other ways.
        let knowing = Access { plain: false, ..access(4, 0) };
        assert_eq!(touch(&mut cell, &knowing, true, false, |_| true), Seen::Fine);
        // After a barrier of the warp old readers do not count.
        let later = Access { sync: 5, ..access(6, 0) };
        assert_eq!(touch(&mut cell, &later, true, false, |_| true), Seen::Fine);
        note_read(&mut cell, &later, 1);
        assert_eq!(write(&mut cell, 7, 0), Seen::Fine);
    }

    #[test]
    fn ranges_have_values_when_all_of_their_bytes_have() {
        let mut defined = Defined::default();
        defined.set_range(60, 140, true);
        for start in [56, 60, 64, 100, 128, 190] {
            for bytes in 1..150 {
                let want = start >= 60 && start + bytes <= 200;
                assert_eq!(defined.all_of(start, bytes as u32), want, "{bytes} bytes at {start}");
            }
        }
    }

    #[test]
    fn a_line_stands_for_its_words() {
        let mut line = [0; 10];
        let row = |time, first, shift| {
            let thread = row_key(first, shift).expect("few threads");
            Entry { time, thread, info: info(1, 0) }
        };
        assert!(touch_line(&mut line, row(1, 64, 0), true, |_| true));
        assert!(touch_line(&mut line, row(2, 64, 0), false, |_| true));
        assert!(touch_line(&mut line, row(3, 128, 2), false, |entry| entry.time != 1));
        assert!(!touch_line(&mut line, row(4, 64, 0), true, |entry| entry.time == 3));
        let cells = expand(&line);
        assert_eq!(cells[9][..3], [1, 73, line[2]]);
        assert_eq!((cells[9][3], cells[9][4], cells[9][6]), (3, 130, 1 << 2));
        assert_eq!((cells[9][7], cells[9][8], cells[9][10]), (2, 73, 1 << 9));
    }

    #[test]
    fn what_is_below_the_floor_is_over() {
        let mut cell = [0; 12];
        write(&mut cell, 9, 5);
        let later = Access { floor: 9, ..access(10, 6) };
        assert_eq!(touch(&mut cell, &later, true, true, |_| true), Seen::Fine);
    }

    #[test]
    fn an_asynchronous_write_is_not_ordered_with_its_own_thread() {
        let mut cell = [0; 12];
        let mut copy = access(1, 5);
        copy.entry.info |= ASYNC;
        touch(&mut cell, &copy, true, true, |_| true);
        assert!(matches!(read(&mut cell, 2, 5), Seen::Race(..)));
        Parts::default().complete(&mut cell, 5, 3);
        assert_eq!(read(&mut cell, 4, 5), Seen::Fine);
    }
}
