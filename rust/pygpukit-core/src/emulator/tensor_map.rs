//! Tensor maps: what a kernel tells the tensor memory accelerator about an array in global memory.
//!
//! A map is an opaque object of 128 bytes, aligned to 64, that the host makes. Its layout here (little-endian):
//!
//! | bytes | field |
//! |---|---|
//! | 0..8 | a mark, `PGKTMAP` and the version 1 |
//! | 8..16 | address of the first element |
//! | 16, 17, 18 | rank (1 to 5), bytes of an element, swizzle (0 none, 1: 32, 2: 64, 3: 128 bytes) |
//! | 19..24 | element stride of each dimension |
//! | 24..64 | size of each dimension, in elements, the contiguous one first |
//! | 64..96 | stride in bytes of each dimension but the first |
//! | 96..106 | size of the box in each dimension, in elements |
//! | 106 | 1 where copies to the array are refused |
//! | 107..128 | zero |
//!
//! Elements outside of the array read as zero and are not written.

const MARK: [u8; 8] = *b"PGKTMAP\x01";

/// Bytes of a map.
pub const BYTES: usize = 128;

/// Most dimensions.
pub const MAX_RANK: usize = 5;

/// How the 16-byte units of a box are placed in shared memory, against bank conflicts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Swizzle {
    #[default]
    None,
    B32,
    B64,
    B128,
}

impl Swizzle {
    /// Bytes of a row of the pattern.
    pub fn span(self) -> u32 {
        match self {
            Swizzle::None => 16,
            Swizzle::B32 => 32,
            Swizzle::B64 => 64,
            Swizzle::B128 => 128,
        }
    }

    /// Where the byte of an address of shared memory lies: the number of its 128-byte line changes that of its unit.
    #[inline(always)]
    pub fn apply(self, address: u32) -> u32 {
        let mask = self.span() / 16 - 1;
        address ^ (address >> 7 & mask) << 4
    }
}

/// An array and the box of it that one instruction moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorMap {
    pub address: u64,
    pub rank: usize,
    /// Bytes of an element: 1, 2, 4 or 8.
    pub item: u32,
    pub swizzle: Swizzle,
    /// Elements of each dimension, the contiguous one first; what is beyond the rank does not count.
    pub dims: [u64; MAX_RANK],
    /// Bytes from one index to the next; the first is not used.
    pub strides: [u64; MAX_RANK],
    pub extents: [u32; MAX_RANK],
    /// Every how many elements of the box one is taken; the first is not used.
    pub steps: [u32; MAX_RANK],
    /// Copies to the array are errors: the command that uses the map says that it reads it only.
    pub read_only: bool,
}

/// Part of a row of a box that lies in the array: bytes of the row before it, address, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub skip: u32,
    pub address: u64,
    pub bytes: u32,
}

impl TensorMap {
    /// What is wrong with it, by the rules of the hardware.
    pub fn problem(&self) -> Option<String> {
        let TensorMap { address, rank, item, .. } = *self;
        if !(1..=MAX_RANK).contains(&rank) {
            return Some(format!("a tensor map of rank {rank}: it must be from 1 to {MAX_RANK}"));
        }
        if !matches!(item, 1 | 2 | 4 | 8) {
            return Some(format!("elements of {item} bytes: they must have 1, 2, 4 or 8"));
        }
        if !address.is_multiple_of(16) {
            return Some(format!("the address {address:#x} of a tensor must be a multiple of 16"));
        }
        for i in 0..rank {
            if self.dims[i] == 0 || self.dims[i] > 1 << 32 {
                return Some(format!("dimension {i} has {} elements: it must have from 1 to 2^32", self.dims[i]));
            }
            if self.extents[i] == 0 || self.extents[i] > 256 {
                return Some(format!(
                    "a box of {} elements in dimension {i}: from 1 to 256 are possible",
                    self.extents[i]
                ));
            }
            if i > 0 && (!self.strides[i].is_multiple_of(16) || self.strides[i] >= 1 << 40) {
                let stride = self.strides[i];
                return Some(format!("stride {stride} of dimension {i}: it must be a multiple of 16, below 2^40"));
            }
            if self.steps[i] == 0 || self.steps[i] > 8 {
                return Some(format!("element stride {} of dimension {i}: from 1 to 8 are possible", self.steps[i]));
            }
        }
        let row = self.row_bytes();
        if !row.is_multiple_of(16) {
            return Some(format!("rows of a box have {row} bytes: they must be a multiple of 16"));
        }
        if self.swizzle != Swizzle::None && row > self.swizzle.span() {
            let span = self.swizzle.span();
            return Some(format!("rows of a box have {row} bytes: no more than {span} with a swizzle of {span}"));
        }
        None
    }

    /// The object a kernel is given.
    ///
    /// # Errors
    /// What is wrong with the map.
    pub fn encode(&self) -> Result<[u8; BYTES], String> {
        if let Some(problem) = self.problem() {
            return Err(problem);
        }
        let mut bytes = [0; BYTES];
        let swizzle = match self.swizzle {
            Swizzle::None => 0,
            Swizzle::B32 => 1,
            Swizzle::B64 => 2,
            Swizzle::B128 => 3,
        };
        bytes[..8].copy_from_slice(&MARK);
        bytes[8..16].copy_from_slice(&self.address.to_le_bytes());
        bytes[16..19].copy_from_slice(&[self.rank as u8, self.item as u8, swizzle]);
        for i in 0..self.rank {
            bytes[19 + i] = self.steps[i] as u8;
            bytes[24 + 8 * i..][..8].copy_from_slice(&self.dims[i].to_le_bytes());
            if i > 0 {
                bytes[56 + 8 * i..][..8].copy_from_slice(&self.strides[i].to_le_bytes());
            }
            bytes[96 + 2 * i..][..2].copy_from_slice(&(self.extents[i] as u16).to_le_bytes());
        }
        bytes[106] = u8::from(self.read_only);
        Ok(bytes)
    }

    /// The map in an object.
    pub(crate) fn decode(bytes: &[u8; BYTES]) -> Result<TensorMap, String> {
        let word = |at: usize| bytes[at..].first_chunk().copied().map_or(0, u64::from_le_bytes);
        if bytes[..8] != MARK {
            return Err("there is no tensor map at this address, or it was not made for this device".to_string());
        }
        let rank = usize::from(bytes[16]);
        let swizzle = match bytes[18] {
            0 => Swizzle::None,
            1 => Swizzle::B32,
            2 => Swizzle::B64,
            _ => Swizzle::B128,
        };
        let mut map = TensorMap {
            address: word(8),
            rank,
            item: u32::from(bytes[17]),
            swizzle,
            dims: [1; MAX_RANK],
            strides: [0; MAX_RANK],
            extents: [1; MAX_RANK],
            steps: [1; MAX_RANK],
            read_only: bytes[106] != 0,
        };
        for i in 0..rank.min(MAX_RANK) {
            map.steps[i] = u32::from(bytes[19 + i]);
            map.dims[i] = word(24 + 8 * i);
            map.strides[i] = if i > 0 { word(56 + 8 * i) } else { 0 };
            map.extents[i] = u32::from(u16::from_le_bytes([bytes[96 + 2 * i], bytes[97 + 2 * i]]));
        }
        map.problem().map_or(Ok(map), Err)
    }

    /// Bytes of a row of the box.
    pub fn row_bytes(&self) -> u32 {
        self.extents[0].saturating_mul(self.item)
    }

    /// Rows of the box: elements of it in each dimension but the first.
    fn rows(&self) -> [u32; MAX_RANK] {
        let mut rows = [1; MAX_RANK];
        for (i, rows) in rows.iter_mut().enumerate().take(self.rank).skip(1) {
            *rows = self.extents[i].div_ceil(self.steps[i].max(1));
        }
        rows
    }

    /// Bytes of the box in shared memory.
    pub fn box_bytes(&self) -> u64 {
        self.rows().iter().fold(u64::from(self.row_bytes()), |bytes, &n| bytes.saturating_mul(u64::from(n)))
    }

    /// See each row of the box at some coordinates: its offset in the box, and the part of it that is in the array.
    pub(crate) fn each_row<E>(
        &self,
        at: &[i32; MAX_RANK],
        mut see: impl FnMut(u32, Option<Part>) -> Result<(), E>,
    ) -> Result<(), E> {
        let (rows, row_bytes) = (self.rows(), self.row_bytes());
        let count = rows.iter().fold(1u32, |all, &n| all.saturating_mul(n));
        // The first and the last element of the row that are in the array.
        let (start, end) = (i64::from(at[0]), i64::from(at[0]) + i64::from(self.extents[0]));
        let (low, high) = (start.max(0), end.min(self.dims[0] as i64));
        for row in 0..count {
            let (mut left, mut offset, mut inside) = (row, low as u64 * u64::from(self.item), low < high);
            for i in 1..self.rank {
                let index = i64::from(at[i]) + i64::from(left % rows[i] * self.steps[i]);
                left /= rows[i];
                inside &= index >= 0 && (index as u64) < self.dims[i];
                offset = offset.wrapping_add((index as u64).wrapping_mul(self.strides[i]));
            }
            let part = inside.then(|| Part {
                skip: (low - start) as u32 * self.item,
                address: self.address.wrapping_add(offset),
                bytes: (high - low) as u32 * self.item,
            });
            see(row.wrapping_mul(row_bytes), part)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    fn map() -> TensorMap {
        TensorMap {
            address: 0x7000,
            rank: 3,
            item: 2,
            swizzle: Swizzle::B64,
            dims: [100, 7, 5, 1, 1],
            strides: [0, 208, 1456, 0, 0],
            extents: [32, 4, 3, 1, 1],
            steps: [1, 2, 1, 1, 1],
            read_only: true,
        }
    }

    #[test]
    fn objects_hold_what_they_are_made_of() {
        let bytes = map().encode().expect("a map");
        assert_eq!(TensorMap::decode(&bytes), Ok(map()));
        assert!(TensorMap::decode(&[0; BYTES]).unwrap_err().contains("no tensor map"));
    }

    #[test]
    fn what_hardware_refuses_is_refused() {
        type Change = fn(&mut TensorMap);
        let bad: [(Change, &str); 9] = [
            (|m| m.rank = 6, "rank 6"),
            (|m| m.rank = 0, "rank 0"),
            (|m| m.item = 3, "3 bytes"),
            (|m| m.address = 8, "multiple of 16"),
            (|m| m.dims[1] = 0, "dimension 1"),
            (|m| m.extents[2] = 257, "257"),
            (|m| m.strides[1] = 200, "stride 200"),
            (|m| m.steps[1] = 9, "element stride 9"),
            (|m| m.extents[0] = 40, "80 bytes"),
        ];
        for (change, text) in bad {
            let mut map = map();
            change(&mut map);
            let error = map.encode().unwrap_err();
            assert!(error.contains(text), "{error}");
        }
    }

    /// No object makes trouble, whatever it holds.
    #[test]
    fn hostile_objects() {
        let mut random = Random::new(5);
        let good = map().encode().expect("a map");
        for _ in 0..20_000 {
            let mut bytes = good;
            for _ in 0..1 + random.below(6) {
                bytes[8 + random.below(BYTES - 8)] = random.next() as u8;
            }
            if let Ok(map) = TensorMap::decode(&bytes) {
                assert!(map.box_bytes() >= 16);
                if map.box_bytes() < 1 << 16 {
                    let at = [0; 5].map(|_: i32| random.next() as i32);
                    map.each_row(&at, |_, _| Ok::<(), ()>(())).expect("rows");
                }
            }
        }
    }

    #[test]
    fn swizzles_move_units_within_their_span() {
        for (swizzle, period) in [(Swizzle::None, 128), (Swizzle::B32, 256), (Swizzle::B64, 512), (Swizzle::B128, 1024)]
        {
            let mut seen = vec![false; period];
            for address in 0..period as u32 {
                let to = swizzle.apply(address);
                assert_eq!(to / swizzle.span(), address / swizzle.span());
                assert_eq!(swizzle.apply(address + period as u32), to + period as u32);
                // The unit within the span is the exclusive or of its number and that of the line.
                let units = swizzle.span() / 16;
                assert_eq!(to / 16 % units, (address / 16 % units) ^ (address / 128 % units));
                assert!(!std::mem::replace(&mut seen[to as usize], true));
            }
        }
    }
}
