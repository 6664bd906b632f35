//! Products of warp groups: all layouts of shared memory, and a kernel that NVRTC compiled.

use super::tensor_core::{Sum, add_group};
use crate::emulator::float::{self, Round};
use crate::emulator::tensor_map::{Swizzle, TensorMap};
use crate::emulator::testing::{Aligned, Case};
use crate::random::Random;

const GEMM: &str = include_str!("cuda/gemm.sm_90a.ptx");

/// A matrix as shared memory holds it: where it starts, what its descriptor says, and where elements lie.
struct Layout {
    rows: usize,
    k: usize,
    item: usize,
    /// Rows, not k, are contiguous.
    turned: bool,
    swizzle: Swizzle,
    start: usize,
}

impl Layout {
    /// Atoms of eight lines of `W` bytes, one after the other: those along the contiguous dimension first where it is
    /// that of rows, else those along rows first.
    fn span(&self) -> usize {
        self.swizzle.span() as usize
    }

    fn atoms(&self) -> usize {
        if self.turned { self.rows * self.item / self.span() } else { self.rows / 8 }
    }

    fn bytes(&self) -> usize {
        (self.rows * self.k * self.item).next_multiple_of(1024)
    }

    fn offset(&self, row: usize, k: usize) -> usize {
        let (byte, line) = if self.turned { (row * self.item, k) } else { (k * self.item, row) };
        let (across, down) = (byte / self.span(), line / 8);
        let atom = if self.turned { down * self.atoms() + across } else { across * self.atoms() + down };
        let plain = atom * 8 * self.span() + line % 8 * self.span() + byte % self.span();
        // Units of 16 bytes change places within their line of 128, by its number.
        let mask = self.span() / 16 - 1;
        let unit = (plain / 16 % 8) ^ ((plain / 128) & mask);
        self.start + plain / 128 * 128 + unit * 16 + plain % 16
    }

    fn descriptor(&self) -> u64 {
        let atom = 8 * self.span();
        let far = atom * self.atoms();
        let none = self.swizzle == Swizzle::None;
        let (leading, stride) = match (self.turned, none) {
            (false, true) | (true, true) => (far, atom),
            (false, false) => (16, atom),
            (true, false) => (atom, far),
        };
        let mode = match self.swizzle {
            Swizzle::None => 0u64,
            Swizzle::B128 => 1,
            Swizzle::B64 => 2,
            Swizzle::B32 => 3,
        };
        (self.start as u64 >> 4) | (leading as u64 >> 4) << 16 | (stride as u64 >> 4) << 32 | mode << 62
    }
}

/// The value of an element's bits.
fn number(ty: &str, bits: u32) -> f64 {
    f64::from(f32::from_bits(match ty {
        "f16" => float::f16_to_f32(bits as u16),
        "bf16" => float::bf16_to_f32(bits as u16),
        "e4m3" => float::e4m3_to_f32(bits as u8),
        "e5m2" => float::e5m2_to_f32(bits as u8),
        "s8" => f32::from(bits as i8).to_bits(),
        "u8" => f32::from(bits as u8).to_bits(),
        _ => bits & 0xffff_e000,
    }))
}

/// Bits of an element; of some numbers, a part of a product's bits lies below what sums keep.
fn element(ty: &str, random: &mut Random) -> u32 {
    let value = (random.below(65) as f32 - 32.0) / 16.0 * 2f32.powi(-(random.below(9) as i32));
    match ty {
        "f16" => u32::from(float::f32_to_f16(value.to_bits(), Round::Nearest)),
        "bf16" => value.to_bits() >> 16,
        "e4m3" => (random.below(0x70) | random.below(2) << 7) as u32,
        "s8" | "u8" => random.below(256) as u32,
        "e5m2" => ((0x20 + random.below(0x20)) | (random.below(2) << 7)) as u32,
        _ => value.to_bits() | random.below(0x2000) as u32,
    }
}

fn registers(prefix: &str, count: usize) -> String {
    let names: Vec<_> = (0..count).map(|r| format!("%{prefix}{r}")).collect();
    format!("{{{}}}", names.join(", "))
}

struct Product<'a> {
    d: &'a str,
    a: &'a str,
    b: &'a str,
    n: usize,
    k: usize,
    fragment: bool,
    tail: String,
}

impl Product<'_> {
    /// Shared memory from `image`, A's registers and D from memory, one product, D to memory.
    fn text(&self, bytes: usize) -> String {
        let Product { d, a, b, n, k, tail, .. } = self;
        let count = if *d == "f16" { n / 4 } else { n / 2 };
        let left = if self.fragment { registers("a", 4) } else { "%da".to_string() };
        let moves = |prefix: &str, verb: &str, count: usize| -> String {
            let one = |r: usize| match verb {
                "ld" => format!("ld.global.b32 %{prefix}{r}, [%at+{}];\n", r * 512),
                _ => format!("st.global.b32 [%at+{}], %{prefix}{r};\n", r * 512),
            };
            (0..count).map(one).collect()
        };
        format!(
            ".version 8.0\n.target sm_90a\n.address_size 64
.visible .entry k(.param .u64 image, .param .u64 fragment, .param .u64 sums, .param .u64 da, .param .u64 db, .param .u32 adds) {{
.shared .align 1024 .b8 memory[{bytes}];
.reg .b32 %a<4>; .reg .b32 %s<{count}>; .reg .b32 %t, %i, %v, %to; .reg .b64 %image, %at, %da, %db, %wide; .reg .pred %p, %q;
ld.param.u64 %image, [image]; ld.param.u64 %da, [da]; ld.param.u64 %db, [db]; ld.param.u32 %i, [adds];
setp.ne.u32 %q, %i, 0;
mov.u32 %t, %tid.x;
mul.lo.u32 %i, %t, 4;
COPY:
cvt.u64.u32 %wide, %i; add.u64 %at, %image, %wide; ld.global.u32 %v, [%at];
mov.u32 %to, memory; add.u32 %to, %to, %i; st.shared.u32 [%to], %v;
add.u32 %i, %i, 512; setp.lt.u32 %p, %i, {bytes}; @%p bra COPY;
fence.proxy.async;
bar.sync 0;
ld.param.u64 %at, [fragment]; mad.wide.u32 %at, %t, 4, %at;
{}
ld.param.u64 %at, [sums]; mad.wide.u32 %at, %t, 4, %at;
{}
wgmma.fence.sync.aligned;
wgmma.mma_async.sync.aligned.m64n{n}k{k}.{d}.{a}.{b} {}, {left}, %db, %q{tail};
wgmma.commit_group.sync.aligned;
wgmma.wait_group.sync.aligned 0;
{}
ret;\n}}\n",
            moves("a", "ld", 4),
            moves("s", "ld", count),
            registers("s", count),
            moves("s", "st", count),
        )
    }
}

/// One product of random matrices in these layouts, against sums of integers.
fn check(types: [&str; 3], n: usize, modes: [(bool, Swizzle); 2], fragment: bool, seed: u64) {
    let [d, a, b] = types;
    let mut random = Random::new(seed);
    let item = match a {
        "f16" | "bf16" => 2,
        "tf32" => 4,
        _ => 1,
    };
    let k = 32 / item;
    // A tile that is wider than one product: it takes a part of k that does not start at zero.
    let wide = |(turned, swizzle): (bool, Swizzle)| if turned { k } else { k * (swizzle.span() as usize / 32).max(1) };
    let layout_a = Layout { rows: 64, k: wide(modes[0]), item, turned: modes[0].0, swizzle: modes[0].1, start: 1024 };
    let start = 1024 + layout_a.bytes();
    // Rows of B along the contiguous dimension fill whole lines of the swizzle.
    let rows = if modes[1].0 { (n * item).next_multiple_of(modes[1].1.span() as usize) / item } else { n };
    let layout_b = Layout { rows, k: wide(modes[1]), item, turned: modes[1].0, swizzle: modes[1].1, start };
    let bytes = start + layout_b.bytes();
    let mut image = vec![0u8; bytes];
    let mut fill = |layout: &Layout, ty: &str| -> Vec<u32> {
        let mut values = Vec::new();
        for row in 0..layout.rows {
            for k in 0..layout.k {
                let bits = element(ty, &mut random);
                let at = layout.offset(row, k);
                image[at..at + item].copy_from_slice(&bits.to_le_bytes()[..item]);
                values.push(bits);
            }
        }
        values
    };
    let (left, right) = (fill(&layout_a, a), fill(&layout_b, b));
    let part = |layout: &Layout| if layout.k > k { k * random_part(seed, layout.k / k) } else { 0 };
    let (from_a, from_b) = (part(&layout_a), part(&layout_b));
    let shift = |from: usize| ((from * item) >> 4) as u64;
    let (negate_a, negate_b, adds) = (seed % 3 == 1, seed % 4 == 2, !seed.is_multiple_of(5));
    let scale = |negated: bool| if negated { -1 } else { 1 };
    let whole = d.ends_with("s32");
    let (negate_a, negate_b) = (negate_a && !whole, negate_b && !whole);
    let mut tail = if whole { String::new() } else { format!(", {}, {}", scale(negate_a), scale(negate_b)) };
    if item == 2 {
        let turns = [u32::from(modes[0].0), u32::from(modes[1].0)];
        tail += &if fragment { format!(", {}", turns[1]) } else { format!(", {}, {}", turns[0], turns[1]) };
    }
    let product = Product { d, a, b, n, k, fragment, tail };
    let count = if d == "f16" { n / 4 } else { n / 2 };
    let mut old = vec![0f64; 64 * n];
    let mut sums = vec![0u32; 128 * count];
    let mut fragments = vec![0u32; 128 * 4];
    let place = |thread: usize, value: usize| {
        let (warp, g, t) = (thread / 32, thread % 32 / 4, thread % 4);
        (16 * warp + g + 8 * (value / 2 % 2), value / 4 * 8 + 2 * t + value % 2)
    };
    for thread in 0..128 {
        for value in 0..n / 2 {
            let (row, column) = place(thread, value);
            let number = random.below(400) as f32 / 8.0 - 20.0;
            old[row * n + column] = f64::from(number);
            match d {
                _ if whole => {
                    // Near the limits, where sums wrap or stop.
                    let limit = [i32::MIN, i32::MAX][random.below(2)];
                    let number = limit ^ random.below(1 << 19) as i32;
                    old[row * n + column] = f64::from(number);
                    sums[value * 128 + thread] = number as u32;
                }
                "f16" => {
                    let half = u32::from(float::f32_to_f16(number.to_bits(), Round::Nearest));
                    sums[value / 2 * 128 + thread] |= half << (16 * (value % 2));
                }
                _ => sums[value * 128 + thread] = number.to_bits(),
            }
        }
        let per = 4 / item;
        for value in 0..4 * per {
            let (warp, g, t) = (thread / 32, thread % 32 / 4, thread % 4);
            let (register, e) = (value / per, value % per);
            let (row, at) = (16 * warp + g + 8 * (register % 2), register / 2 * 4 * per + t * per + e);
            let bits = left[row * layout_a.k + from_a + at];
            fragments[register * 128 + thread] |= bits << (8 * item * e);
        }
    }
    let text = product.text(bytes);
    let (mut image, mut fragments) = (Aligned::new(&image), Aligned::new(&fragments));
    for checked in [false, true] {
        let mut memory = Aligned::new(&sums);
        let mut case = Case::new(&text, 1, 128);
        case.options.check = checked;
        let descriptors = [layout_a.descriptor() + shift(from_a), layout_b.descriptor() + shift(from_b)];
        let pointers = [image.address(), fragments.address(), memory.address()];
        let args: Vec<u64> = pointers.into_iter().chain(descriptors).chain([u64::from(adds)]).collect();
        case.run(&args).unwrap_or_else(|error| panic!("{types:?} {modes:?}: {error}"));
        let mut out = vec![0u32; sums.len()];
        memory.copy_to(&mut out);
        let sign = if negate_a != negate_b { -1.0 } else { 1.0 };
        for thread in 0..128 {
            for value in 0..n / 2 {
                let (row, column) = place(thread, value);
                let pairs: Vec<(f64, f64)> = (0..k)
                    .map(|at| {
                        let x = number(a, left[row * layout_a.k + from_a + at]);
                        (sign * x, number(b, right[column * layout_b.k + from_b + at]))
                    })
                    .collect();
                let before = if adds { old[row * n + column] } else { 0.0 };
                let sum = pairs.iter().map(|(x, y)| x * y).sum::<f64>() + before;
                let group = || sum_of_group([d, a, b], before, &pairs);
                let (got, want) = match d {
                    "satfinite.s32" => {
                        (out[value * 128 + thread], sum.clamp(f64::from(i32::MIN), f64::from(i32::MAX)) as i32 as u32)
                    }
                    "s32" => (out[value * 128 + thread], sum as i64 as u32),
                    "f16" => {
                        let got = out[value / 2 * 128 + thread] >> (16 * (value % 2)) & 0xffff;
                        (got, u32::from(float::f64_to_f16(group().half().to_bits(), Round::Nearest)))
                    }
                    _ => {
                        let fraction = if item == 1 { 13 } else { 23 };
                        (out[value * 128 + thread], (group().single(fraction) as f32).to_bits())
                    }
                };
                // A zero may have either sign.
                let size = if d == "f16" { 0x7fff } else { 0x7fff_ffff };
                let same = got == want || !whole && (got | want) & size == 0;
                assert!(same, "{types:?} n {n} {modes:?} at {row}, {column}: {got:#x}, not {want:#x}");
            }
        }
    }
}

fn sum_of_group(types: [&str; 3], before: f64, pairs: &[(f64, f64)]) -> Sum {
    let smallest = |ty: &str| match ty {
        "e4m3" => -6,
        "f16" | "e5m2" => -14,
        _ => -126,
    };
    let [d, a, b] = types.map(smallest);
    let short = types[1].starts_with('e');
    add_group(before, pairs, [a, b, d], if short { 13 } else { 25 })
}

fn random_part(seed: u64, parts: usize) -> usize {
    seed as usize % parts
}

const SWIZZLES: [Swizzle; 4] = [Swizzle::None, Swizzle::B32, Swizzle::B64, Swizzle::B128];

#[test]
fn all_layouts_of_16_bit_matrices() {
    let mut seed = 0;
    for turned_a in [false, true] {
        for turned_b in [false, true] {
            for swizzle_a in SWIZZLES {
                for swizzle_b in SWIZZLES {
                    seed += 1;
                    let types = [["f32", "f16", "f16"], ["f16", "f16", "f16"], ["f32", "bf16", "bf16"]];
                    let n = [8, 16, 24, 64, 96][seed as usize % 5];
                    let modes = [(turned_a, swizzle_a), (turned_b, swizzle_b)];
                    check(types[seed as usize % 3], n, modes, seed % 4 == 3 && !turned_a, seed);
                }
            }
        }
    }
}

#[test]
fn other_types_and_the_widest_shape() {
    let mut seed = 100;
    for (a, b) in [("e4m3", "e4m3"), ("e5m2", "e5m2"), ("e4m3", "e5m2"), ("tf32", "tf32")] {
        for swizzle in SWIZZLES {
            for fragment in [false, true] {
                seed += 1;
                let d = if a == "tf32" || seed % 2 == 0 { "f32" } else { "f16" };
                check([d, a, b], 16, [(false, swizzle), (false, swizzle)], fragment, seed);
            }
        }
    }
    check(["f32", "f16", "f16"], 256, [(false, Swizzle::B128), (true, Swizzle::B128)], false, 7);
    check(["f32", "e4m3", "e4m3"], 256, [(false, Swizzle::B128), (false, Swizzle::B128)], false, 8);
}

/// Tiles come by tensor maps, two at a time in flight, products add up, and the result goes by a tensor map.
#[test]
fn a_matrix_product_with_tensor_maps() {
    let mut random = Random::new(21);
    let (m, n, k) = (128usize, 192usize, 256usize);
    let mut matrix = |rows: usize| -> Vec<u16> {
        (0..rows * k)
            .map(|_| float::f32_to_f16((random.below(33) as f32 / 8.0 - 2.0).to_bits(), Round::Nearest))
            .collect()
    };
    let (a, b) = (matrix(m), matrix(n));
    let (mut left, mut right) = (Aligned::new(&a), Aligned::new(&b));
    let map = |address: u64, item: u32, dims: [usize; 2], extents: [u32; 2], swizzle: Swizzle| {
        let map = TensorMap {
            address,
            rank: 2,
            item,
            swizzle,
            dims: [dims[0] as u64, dims[1] as u64, 1, 1, 1],
            strides: [0, dims[0] as u64 * u64::from(item), 0, 0, 0],
            extents: [extents[0], extents[1], 1, 1, 1],
            steps: [1; 5],
            read_only: false,
        };
        map.encode().expect("a map").to_vec()
    };
    let value = |bits: u16| f64::from(f32::from_bits(float::f16_to_f32(bits)));
    for (fuzz, check, fault) in
        [(None, false, 0), (Some(3), false, 0), (None, true, 0), (Some(9), true, 0), (None, true, 1), (None, true, 2)]
    {
        let mut out = vec![0f32; m * n];
        let mut memory = Aligned::new(&out);
        let args = [
            map(left.address(), 2, [k, m], [64, 64], Swizzle::B128),
            map(right.address(), 2, [k, n], [64, 64], Swizzle::B128),
            map(memory.address(), 4, [n, m], [64, 64], Swizzle::None),
            (k as u64 / 64).to_le_bytes().to_vec(),
            (fault as u64).to_le_bytes().to_vec(),
        ];
        let mut case = Case { kernel: "gemm", shared: 65536, ..Case::new(GEMM, 6, 128) };
        (case.options.fuzz, case.options.check) = (fuzz, check);
        let result = case.run_bytes(&args);
        match fault {
            1 => {
                let error = result.unwrap_err();
                assert!(error.contains("missing fence.proxy.async"), "{error}");
                continue;
            }
            2 => {
                let error = result.unwrap_err();
                assert!(error.contains("overwritten before this wait"), "{error}");
                continue;
            }
            _ => result.unwrap_or_else(|error| panic!("fuzz {fuzz:?}, check {check}: {error}")),
        };
        memory.copy_to(&mut out);
        for row in 0..m {
            for column in 0..n {
                let want: f64 = (0..k).map(|at| value(a[row * k + at]) * value(b[column * k + at])).sum();
                assert_eq!(f64::from(out[row * n + column]), want, "row {row}, column {column}");
            }
        }
    }
}

#[test]
fn integers_wrap_or_stop_at_the_limits() {
    let mut seed = 300;
    for a in ["s8", "u8"] {
        for b in ["s8", "u8"] {
            for swizzle in SWIZZLES {
                seed += 1;
                let d = if seed % 2 == 0 { "s32" } else { "satfinite.s32" };
                let n = [8, 16, 24, 32, 48][seed as usize % 5];
                check([d, a, b], n, [(false, swizzle), (false, swizzle)], seed % 3 == 0, seed);
            }
        }
    }
    check(["s32", "s8", "s8"], 256, [(false, Swizzle::B128), (false, Swizzle::B128)], false, 9);
}

#[test]
fn what_is_refused() {
    let product = |d: &'static str, n: usize, k: usize| Product {
        d,
        a: "f16",
        b: "f16",
        n,
        k,
        fragment: false,
        tail: ", 1, 1, 0, 0".to_string(),
    };
    let run = |text: &str, threads: u32, descriptor: u64| {
        let mut memory = Aligned::new(&vec![0u32; 128 * 128]);
        let at = memory.address();
        Case::new(text, 1, threads).run(&[at, at, at, descriptor, descriptor, 0]).unwrap_err()
    };
    assert!(run(&product("f32", 12, 16).text(4096), 128, 0).contains("N a multiple of 8"));
    assert!(run(&product("f32", 8, 32).text(4096), 128, 0).contains("do not go with this shape"));
    let good = product("f32", 8, 16).text(4096);
    assert!(run(&good, 96, 0).contains("four whole warps"));
    assert!(run(&good, 128, 255).contains("shared memory, which has 4096 bytes"));
    assert!(run(&good, 128, 1 << 49).contains("base offset"));
    let bad = Product { tail: ", 2, 1, 0, 0".to_string(), ..product("f32", 8, 16) };
    assert!(run(&bad.text(4096), 128, 0).contains("2 must be a number from -1 to 1"));
}
