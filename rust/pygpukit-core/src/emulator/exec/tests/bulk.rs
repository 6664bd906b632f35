//! Bulk copies: kernels that NVRTC compiled, against the same written down a second time.

use crate::emulator::tensor_map::{Swizzle, TensorMap};
use crate::emulator::testing::{Aligned, Case};
use crate::random::Random;

const BULK: &str = include_str!("cuda/bulk.sm_90a.ptx");

/// A tensor of three dimensions at most, in memory that is filled with numbers.
struct Tensor {
    memory: Aligned,
    map: TensorMap,
}

impl Tensor {
    fn new(random: &mut Random, rank: usize, item: u32, swizzle: Swizzle) -> Tensor {
        let mut map = TensorMap {
            address: 0,
            rank,
            item,
            swizzle,
            dims: [1; 5],
            strides: [0; 5],
            extents: [1; 5],
            steps: [1; 5],
            read_only: false,
        };
        map.dims[0] = 20 + random.below(60) as u64;
        let units = if swizzle == Swizzle::None { 1 + random.below(8) as u32 } else { swizzle.span() / 16 };
        map.extents[0] = units * 16 / item;
        let mut bytes = map.dims[0] * u64::from(item);
        for i in 1..rank {
            map.dims[i] = 3 + random.below(9) as u64;
            map.strides[i] = bytes.next_multiple_of(16) + 16 * random.below(3) as u64;
            map.extents[i] = 1 + random.below(8) as u32;
            map.steps[i] = 1 + random.below(3) as u32;
            bytes = map.strides[i] * map.dims[i];
        }
        let values: Vec<u8> = (0..bytes).map(|_| random.next() as u8).collect();
        let mut memory = Aligned::new(&values);
        map.address = memory.address();
        Tensor { memory, map }
    }

    /// Offset of an element in the memory, where it is in the tensor.
    fn offset(&self, index: [i64; 3]) -> Option<usize> {
        let mut offset = 0;
        for (i, &index) in index.iter().enumerate() {
            if index < 0 || index >= self.map.dims[i] as i64 {
                return None;
            }
            offset += index as usize * if i == 0 { self.map.item as usize } else { self.map.strides[i] as usize };
        }
        Some(offset)
    }

    fn bytes(&self) -> Vec<u8> {
        let last = [0, 1, 2].map(|i| self.map.dims[i] as i64 - 1);
        let mut bytes = vec![0u8; self.offset(last).expect("the last element") + self.map.item as usize];
        self.memory.copy_to(&mut bytes);
        bytes
    }

    /// For each element of the box at some coordinates: its place in shared memory, and in the tensor.
    fn places(&self, at: [i32; 3]) -> Vec<(usize, Option<usize>)> {
        let map = &self.map;
        let count = |i: usize| map.extents[i].div_ceil(if i == 0 { 1 } else { map.steps[i] });
        let mut places = Vec::new();
        let mut linear = 0;
        for z in 0..count(2) {
            for y in 0..count(1) {
                for x in 0..count(0) {
                    let index = [x, y * map.steps[1], z * map.steps[2]];
                    let index = [0, 1, 2].map(|i| i64::from(at[i]) + i64::from(index[i]));
                    places.push((swizzled(map.swizzle, linear), self.offset(index)));
                    linear += map.item as usize;
                }
            }
        }
        places
    }
}

/// The figures of the PTX manual: units of 16 bytes in lines of 128, in a pattern of 2, 4 or 8 lines.
fn swizzled(swizzle: Swizzle, offset: usize) -> usize {
    let (line, unit, byte) = (offset / 128, offset / 16 % 8, offset % 16);
    let unit = match swizzle {
        Swizzle::None => unit,
        Swizzle::B32 => unit ^ (line % 2),
        Swizzle::B64 => unit ^ (line % 4),
        Swizzle::B128 => unit ^ (line % 8),
    };
    line * 128 + unit * 16 + byte
}

const SWIZZLES: [Swizzle; 4] = [Swizzle::None, Swizzle::B32, Swizzle::B64, Swizzle::B128];

fn bytes_of(value: u64) -> Vec<u8> {
    value.to_le_bytes().to_vec()
}

fn case(kernel: &str, threads: u32, shared: u32) -> Case<'_> {
    Case { kernel, shared, ..Case::new(BULK, 1, threads) }
}

/// Boxes that hang over the ends of the tensor on any side read zeros there.
#[test]
fn boxes_come_to_shared_memory() {
    let mut random = Random::new(11);
    for round in 0..160 {
        let rank = 1 + round % 3;
        let tensor = Tensor::new(&mut random, rank, [1, 2, 4, 8][round / 3 % 4], SWIZZLES[round / 12 % 4]);
        let mut at = [0i32; 3];
        for (i, at) in at.iter_mut().enumerate().take(rank) {
            *at = random.below(2 * tensor.map.dims[i] as usize) as i32 - tensor.map.dims[i] as i32 / 2;
        }
        let bytes = tensor.map.box_bytes() as usize;
        let mut out = vec![0u8; bytes];
        let mut early = [0u8; 1];
        let mut case = case("load_box", 64, 32768);
        (case.options.check, case.options.fuzz) = (round % 5 == 0, (round % 3 == 0).then_some(round as u64));
        let mut args = vec![tensor.map.encode().expect("a map").to_vec()];
        let first = if case.options.check { 0 } else { early.as_mut_ptr() as u64 };
        args.extend([out.as_mut_ptr() as u64, first, rank as u64].map(bytes_of));
        args.extend(at.map(|at| bytes_of(at as u64)));
        args.push(bytes_of(bytes as u64));
        case.run_bytes(&args).unwrap_or_else(|error| panic!("{:?} at {at:?}: {error}", tensor.map));
        let source = tensor.bytes();
        let item = tensor.map.item as usize;
        for (to, from) in tensor.places(at) {
            let want = from.map_or(vec![0; item], |from| source[from..from + item].to_vec());
            assert_eq!(out[to..to + item], want, "{:?} at {at:?}, shared offset {to}", tensor.map);
        }
        if first != 0 && case.options.fuzz.is_none() {
            // Nobody has waited yet, so nothing has come.
            assert_eq!(early, [0xee]);
        }
    }
}

/// Arguments of `shift_box`, and its bytes of shared memory.
fn shift_args(from: &Tensor, to: &Tensor, at: [i32; 3], target: [i32; 3], fenced: bool) -> Vec<Vec<u8>> {
    let mut args = vec![from.map.encode().expect("a map").to_vec(), to.map.encode().expect("a map").to_vec()];
    args.push(bytes_of(from.map.rank as u64));
    args.extend(at.iter().chain(&target).map(|at| bytes_of(*at as u64)));
    args.push(bytes_of(from.map.box_bytes()));
    args.push(bytes_of(u64::from(fenced)));
    args
}

#[test]
fn boxes_go_to_global_memory() {
    let mut random = Random::new(12);
    for round in 0..90 {
        let rank = 1 + round % 3;
        let from = Tensor::new(&mut random, rank, 2, SWIZZLES[round / 3 % 4]);
        let mut to = Tensor::new(&mut random, rank, 2, SWIZZLES[round / 3 % 4]);
        (to.map.extents, to.map.steps) = (from.map.extents, from.map.steps);
        let mut coordinates = || {
            let mut at = [0i32; 3];
            (0..rank).for_each(|i| at[i] = random.below(30) as i32 - 12);
            at
        };
        let (at, target) = (coordinates(), coordinates());
        let mut want = to.bytes();
        let source = from.bytes();
        for ((_, from), (_, to)) in from.places(at).into_iter().zip(to.places(target)) {
            let value = from.map_or(0, |from| u16::from_le_bytes([source[from], source[from + 1]])).wrapping_add(1);
            if let Some(to) = to {
                want[to..to + 2].copy_from_slice(&value.to_le_bytes());
            }
        }
        let mut case = case("shift_box", 96, 32768);
        (case.options.check, case.options.fuzz) = (round % 2 == 0, (round % 3 == 0).then_some(round as u64));
        case.run_bytes(&shift_args(&from, &to, at, target, true)).unwrap_or_else(|error| panic!("{error}"));
        assert!(to.bytes() == want, "{:?} from {at:?} to {target:?}", to.map);
    }
}

#[test]
fn a_missing_proxy_fence_is_found() {
    let mut random = Random::new(13);
    let from = Tensor::new(&mut random, 2, 2, Swizzle::None);
    let mut to = Tensor::new(&mut random, 2, 2, Swizzle::None);
    (to.map.extents, to.map.steps) = (from.map.extents, from.map.steps);
    let mut case = case("shift_box", 32, 32768);
    case.run_bytes(&shift_args(&from, &to, [0; 3], [0; 3], false)).expect("only the checker looks");
    case.options.check = true;
    let error = case.run_bytes(&shift_args(&from, &to, [0; 3], [0; 3], false)).unwrap_err();
    assert!(error.contains("missing fence.proxy.async: a bulk copy reads"), "{error}");
}

#[test]
fn bytes_through_a_ring() {
    let (step, steps) = (160usize, 9usize);
    let input: Vec<u8> = (0..step * steps).map(|k| (k * 7 % 251) as u8).collect();
    let mut source = Aligned::new(&input);
    for (fuzz, check) in [(None, false), (Some(4), false), (None, true)] {
        let mut out = vec![0u8; input.len()];
        let mut target = Aligned::new(&out);
        let mut case = case("through", 32, 2 * step as u32);
        (case.options.fuzz, case.options.check) = (fuzz, check);
        case.run(&[target.address(), source.address(), step as u64, steps as u64]).unwrap_or_else(|e| panic!("{e}"));
        target.copy_to(&mut out);
        assert_eq!(out, input);
    }
    let error = case("through", 32, 320).run(&[source.address(), source.address() + 8, 160, 1]).unwrap_err();
    assert!(error.contains("must be multiples of 16"), "{error}");
    let error = case("through", 32, 144).run(&[source.address(), source.address(), 160, 2]).unwrap_err();
    assert!(error.contains("which has"), "{error}");
}

#[test]
fn one_copy_for_several_blocks() {
    let mut random = Random::new(14);
    let mut tensor = Tensor::new(&mut random, 2, 4, Swizzle::B32);
    tensor.map.steps[1] = 1;
    let bytes = tensor.map.box_bytes() as usize;
    let source = tensor.bytes();
    for (fuzz, check) in [(None, false), (Some(4), false), (Some(5), true)] {
        let mut out = vec![0xaau8; 8 * bytes];
        let mut case = case("spread", 32, 8192);
        (case.blocks, case.cluster) = (8, 4);
        (case.options.fuzz, case.options.check) = (fuzz, check);
        let mut args = vec![tensor.map.encode().expect("a map").to_vec()];
        args.extend([out.as_mut_ptr() as u64, bytes as u64, 0b1011].map(bytes_of));
        case.run_bytes(&args).unwrap_or_else(|error| panic!("{error}"));
        for block in 0..8 {
            let got = &out[block * bytes..][..bytes];
            if block % 4 == 2 {
                assert!(got.iter().all(|&byte| byte == 0xaa));
                continue;
            }
            for (to, from) in tensor.places([0, block as i32 / 4 * 4, 0]) {
                let want = from.map_or([0; 4].as_slice(), |from| &source[from..from + 4]);
                assert_eq!(&got[to..to + 4], want, "block {block}");
            }
        }
    }
}

#[test]
fn copies_between_blocks() {
    for (fuzz, check) in [(None, false), (Some(4), false), (None, true), (Some(6), true)] {
        let mut out = vec![0u32; 6 * 64];
        let mut case = case("pass_on", 64, 512);
        (case.blocks, case.cluster) = (6, 3);
        (case.options.fuzz, case.options.check) = (fuzz, check);
        case.run(&[out.as_mut_ptr() as u64]).unwrap_or_else(|error| panic!("{error}"));
        for (k, value) in out.iter().enumerate() {
            let block = k as u32 / 64;
            let before = block / 3 * 3 + (block + 2) % 3;
            assert_eq!(*value, 1000 * before + k as u32 % 64);
        }
        let mut out = vec![0u32; 6 * 4];
        (case.kernel, case.threads) = ("send", 32);
        case.run(&[out.as_mut_ptr() as u64]).unwrap_or_else(|error| panic!("{error}"));
        for (k, value) in out.iter().enumerate() {
            let block = k as u32 / 4;
            assert_eq!(*value, 100 * (block / 3 * 3 + (block + 2) % 3) + k as u32 % 4);
        }
    }
}

#[test]
fn bad_maps_are_refused() {
    let mut random = Random::new(15);
    let tensor = Tensor::new(&mut random, 2, 4, Swizzle::None);
    let run = |map: Vec<u8>, dims: u64, shared: u32| {
        let mut out = vec![0u8; 32768];
        let mut args = vec![map];
        args.extend([out.as_mut_ptr() as u64, 0, dims, 0, 0, 0, 64].map(bytes_of));
        case("load_box", 32, shared).run_bytes(&args).unwrap_err()
    };
    let good = tensor.map.encode().expect("a map").to_vec();
    assert!(run(vec![0; 128], 2, 32768).contains("no tensor map"));
    assert!(run(good.clone(), 3, 32768).contains("3 dimensions with a tensor map of 2"));
    assert!(run(good, 2, 8).contains("shared memory, which has"));
    let null = TensorMap { address: 16, dims: [8, 1, 1, 1, 1], ..tensor.map }.encode().expect("a map").to_vec();
    assert!(run(null, 2, 32768).contains("in no allocation"));
}
