//! Every product of `mma`, with random operands, against sums of integers; special numbers; what is refused.

use super::super::super::fragments::{Element, Matrix, Product, Shape};
use super::super::super::tests::tensor_core::{Sum, add_group};
use super::oracle::{place_a, place_b, place_c, value};
use super::*;
use crate::emulator::float::{self, Round};

/// A kernel that runs one `mma` with the registers it finds in memory: register `r` of all lanes, then the next.
fn mma_kernel(name: &str, product: &Product) -> String {
    let Product { shape, a, b, c, d, .. } = *product;
    let mut body = String::new();
    let mut lists = Vec::new();
    let matrices = [("d", Matrix::C, d), ("a", Matrix::A, a), ("b", Matrix::B, b), ("c", Matrix::C, c)];
    for (letter, matrix, element) in matrices {
        let bits = if element == Element::F64 { 64 } else { 32 };
        let count = shape.registers(matrix, element);
        body += &format!(".reg .b{bits} %{letter}<{count}>;\n");
        lists.push((0..count).map(|r| format!("%{letter}{r}")).collect::<Vec<_>>().join(", "));
    }
    let at = |pointer: usize, element: Element| {
        let bytes = if element == Element::F64 { 8 } else { 4 };
        format!("mul.wide.u32 %at, %lane, {bytes};\nadd.s64 %at, %at, %p{pointer};\n")
    };
    let each = |instruction: &str, letter: &str, matrix, element: Element| -> String {
        let bits = if element == Element::F64 { 64 } else { 32 };
        let one = |r: usize| match instruction {
            "ld" => format!("ld.global.b{bits} %{letter}{r}, [%at+{}];\n", r * 4 * bits),
            _ => format!("st.global.b{bits} [%at+{}], %{letter}{r};\n", r * 4 * bits),
        };
        (0..shape.registers(matrix, element)).map(one).collect()
    };
    body += &(at(1, a) + &each("ld", "a", Matrix::A, a));
    body += &(at(2, b) + &each("ld", "b", Matrix::B, b));
    body += &(at(3, c) + &each("ld", "c", Matrix::C, c));
    body += &format!("{name} {{{}}}, {{{}}}, {{{}}}, {{{}}};\n", lists[0], lists[1], lists[2], lists[3]);
    body += &(at(0, d) + &each("st", "d", Matrix::C, d));
    kernel(4, &body)
}

/// Bits of a random element, of exponents that are not too far apart.
fn random_bits(random: &mut Random, element: Element) -> u64 {
    let bits = random.next();
    let near_one = |bits: u64, fraction: u32, bias: u64, range: u64| {
        let exponent = bias - range + (bits >> 40) % (2 * range);
        (bits & 1) << (fraction + 8) | exponent << fraction | bits >> 1 & ((1 << fraction) - 1)
    };
    match element {
        Element::F16 if bits >> 10 & 0x1f == 0x1f => bits & 0x83ff,
        Element::F16 => bits & 0xffff,
        Element::Bf16 => near_one(bits, 7, 127, 16),
        // The bits that hardware leaves out are set.
        Element::Tf32 => near_one(bits, 10, 127, 16) << 13 | 0x1fff,
        Element::F32 => near_one(bits, 23, 127, 16),
        Element::E4m3 if bits & 0x7f == 0x7f => bits & 0x80,
        Element::E5m2 if bits >> 2 & 0x1f == 0x1f => bits & 0x83,
        Element::F64 => ((bits >> 12) as f64 / 2f64.powi(40) - 1024.0).to_bits(),
        // Near the ends of the range, so that sums leave it.
        Element::S32 if bits >> 32 & 1 == 0 => 0x7fff_fff0 + (bits & 0x1f),
        Element::S32 => bits & 0xffff_ffff,
        Element::S4 | Element::U4 => bits & 0xf,
        _ => bits & 0xff,
    }
}

/// A matrix of random elements: rows of bits, and the registers of a warp that hold it at these places.
fn random_matrix(
    random: &mut Random,
    element: Element,
    size: (usize, usize),
    place: impl Fn(usize, usize) -> (usize, usize),
) -> (Vec<Vec<u64>>, Buffer) {
    let matrix: Vec<Vec<u64>> =
        (0..size.0).map(|_| (0..size.1).map(|_| random_bits(random, element)).collect()).collect();
    let (per, bytes) = (element.per_register(), if element == Element::F64 { 8 } else { 4 });
    let registers = size.0 * size.1 / 32 / per;
    let mut data = Vec::new();
    for r in 0..registers {
        for lane in 0..32 {
            let mut word = 0;
            for e in 0..per {
                let (row, column) = place(lane, r * per + e);
                word |= matrix[row][column] << (e * element.bits());
            }
            data.extend(&word.to_le_bytes()[..bytes]);
        }
    }
    (matrix, Buffer::new(&data))
}

/// The element at a place of D that sums should give.
fn expected(product: &Product, a: &[u64], b: &[u64], c: u64) -> f64 {
    let pairs = || a.iter().zip(b).map(|(&a, &b)| (value(product.a, a), value(product.b, b)));
    match product.d {
        Element::F64 => pairs().fold(value(product.c, c), |sum, (a, b)| a.mul_add(b, sum)),
        Element::S32 => {
            let sum = c as i32 as i64 + pairs().map(|(a, b)| (a * b) as i64).sum::<i64>();
            let clamped = sum.clamp(i32::MIN.into(), i32::MAX.into());
            if product.saturate { clamped as f64 } else { f64::from(sum as i32) }
        }
        _ => sum_of_groups(product, &pairs().collect::<Vec<_>>(), value(product.c, c)),
    }
}

/// A sum as tensor cores make it.
fn sum_of_groups(product: &Product, pairs: &[(f64, f64)], c: f64) -> f64 {
    let smallest = |element: Element| match element {
        // 8-bit floats become f16.
        Element::F16 | Element::E4m3 | Element::E5m2 => -14,
        _ => -126,
    };
    let exponents = [product.a, product.b, product.d].map(smallest);
    let rounded = |sum: Sum| if product.d == Element::F16 { sum.half() } else { sum.single(23) };
    if product.a.bits() > 8 {
        return rounded(add_group(c, pairs, exponents, 25));
    }
    // The lower halves of registers, then the upper ones; 16 products are one group.
    let half = |upper: bool| -> Vec<(f64, f64)> {
        pairs.iter().enumerate().filter(|(k, _)| pairs.len() == 16 || (k % 4 >= 2) == upper).map(|(_, p)| *p).collect()
    };
    let mut sum = rounded(add_group(0.0, &half(false), exponents, 25));
    if pairs.len() > 16 && sum.is_finite() {
        sum = rounded(add_group(sum, &half(true), exponents, 25));
    }
    if sum.is_infinite() {
        return sum;
    }
    // Then an ordinary sum, rounded to nearest.
    if product.d == Element::F32 {
        return f64::from(c as f32 + sum as f32);
    }
    let bits = float::f64_to_f16((c + sum).to_bits(), Round::Nearest);
    if bits & 0x7fff == 0x7c00 { f64::INFINITY.copysign(sum) } else { value(Element::F16, bits.into()) }
}

fn check(product: &Product, name: &str, seed: u64) {
    let Product { shape, a, b, c, d, .. } = *product;
    let text = mma_kernel(name, product);
    let mut random = Random::new(seed);
    for _ in 0..6 {
        let (ma, mut ra) = random_matrix(&mut random, a, (shape.m, shape.k), |l, i| place_a(shape, a, l, i));
        let (mb, mut rb) = random_matrix(&mut random, b, (shape.k, shape.n), |l, i| place_b(shape, b, l, i));
        let (mc, mut rc) = random_matrix(&mut random, c, (shape.m, shape.n), |l, i| place_c(shape, l, i));
        let registers = shape.registers(Matrix::C, d);
        let bytes = if d == Element::F64 { 8 } else { 4 };
        let mut rd = Buffer::new(&vec![0x55; registers * 32 * bytes]);
        run(&text, 32, &mut [&mut rd, &mut ra, &mut rb, &mut rc]).unwrap_or_else(|error| panic!("{error}"));
        let words = if bytes == 8 { rd.read_doubles() } else { rd.read_words().into_iter().map(u64::from).collect() };
        for (at, word) in words.iter().enumerate() {
            let (r, lane, per) = (at / 32, at % 32, d.per_register());
            for e in 0..per {
                let (row, column) = place_c(shape, lane, r * per + e);
                let line: Vec<u64> = mb.iter().map(|row| row[column]).collect();
                let want = expected(product, &ma[row], &line, mc[row][column]);
                let bits = word >> (e * d.bits()) & if per == 2 { 0xffff } else { u64::MAX };
                let infinite = d == Element::F16 && bits & 0x7fff == 0x7c00;
                let sign = if bits >> 15 == 0 { 1.0 } else { -1.0 };
                let got = if infinite { f64::INFINITY * sign } else { value(d, bits) };
                assert_eq!(got, want, "{name}: row {row}, column {column}");
            }
        }
    }
}

fn check_all(shapes: &[&str], a: &[&str], b: &[&str], sums: &[&str], suffixes: &[&str]) {
    for shape in shapes {
        for (a, b) in a.iter().flat_map(|a| b.iter().map(move |b| (a, b))) {
            // f16, bf16, tf32 and f64 matrices have the same type.
            if a != b && !(a.starts_with(['e', 's', 'u'])) {
                continue;
            }
            for (sum, suffix) in sums.iter().flat_map(|sum| suffixes.iter().map(move |suffix| (sum, suffix))) {
                let name = format!("mma.sync.aligned.{shape}.row.col{suffix}.{sum}.{a}.{b}.{sum}");
                let parse = |word: &str| Element::parse(word).expect("an element");
                let product = Product {
                    shape: Shape::parse(shape).expect("a shape"),
                    a: parse(a),
                    b: parse(b),
                    c: parse(sum),
                    d: parse(sum),
                    saturate: !suffix.is_empty(),
                };
                check(&product, &name, name.len() as u64);
            }
        }
    }
}

#[test]
fn places_are_those_of_the_manual() {
    let cases = [
        ("f16", &["m16n8k8", "m16n8k16"][..]),
        ("tf32", &["m16n8k4", "m16n8k8"]),
        ("f64", &["m8n8k4", "m16n8k4", "m16n8k8", "m16n8k16"]),
        ("s8", &["m8n8k16", "m16n8k16", "m16n8k32"]),
        ("u4", &["m8n8k32", "m16n8k32", "m16n8k64"]),
    ];
    for (element, shapes) in cases {
        let element = Element::parse(element).expect("an element");
        let per = element.per_register();
        for shape in shapes.iter().filter_map(|shape| Shape::parse(shape)) {
            for (lane, i) in (0..32).flat_map(|lane| (0..32).map(move |i| (lane, i))) {
                let place = |matrix, per| shape.place(matrix, per, lane, i / per, i % per);
                if i < shape.registers(Matrix::A, element) * per {
                    assert_eq!(place(Matrix::A, per), place_a(shape, element, lane, i));
                }
                if i < shape.registers(Matrix::B, element) * per {
                    assert_eq!(place(Matrix::B, per), place_b(shape, element, lane, i));
                }
                if i < shape.m * shape.n / 32 {
                    assert_eq!(place(Matrix::C, 1), place_c(shape, lane, i));
                    assert_eq!(place(Matrix::C, 2), place_c(shape, lane, i));
                }
            }
        }
    }
}

#[test]
fn halves() {
    check_all(&["m16n8k8", "m16n8k16"], &["f16"], &["f16"], &["f32", "f16"], &[""]);
}

#[test]
fn bfloats_and_tf32() {
    check_all(&["m16n8k8", "m16n8k16"], &["bf16"], &["bf16"], &["f32"], &[""]);
    check_all(&["m16n8k4", "m16n8k8"], &["tf32"], &["tf32"], &["f32"], &[""]);
}

#[test]
fn eight_bit_floats() {
    let types = ["e4m3", "e5m2"];
    check_all(&["m16n8k16", "m16n8k32"], &types, &types, &["f32", "f16"], &[""]);
}

#[test]
fn integers() {
    let bytes = ["s8", "u8"];
    check_all(&["m8n8k16", "m16n8k16", "m16n8k32"], &bytes, &bytes, &["s32"], &["", ".satfinite"]);
    let nibbles = ["s4", "u4"];
    check_all(&["m8n8k32", "m16n8k32", "m16n8k64"], &nibbles, &nibbles, &["s32"], &["", ".satfinite"]);
}

#[test]
fn doubles() {
    check_all(&["m8n8k4", "m16n8k4", "m16n8k8", "m16n8k16"], &["f64"], &["f64"], &["f64"], &[""]);
}

/// One product with the same word in all registers of A, of B and of C.
fn uniform(name: &str, words: [u32; 3]) -> u32 {
    let parts: Vec<_> = name.split('.').rev().collect();
    let parse = |word: &str| Element::parse(word).expect("an element");
    let shape = name.split('.').find_map(Shape::parse).expect("a shape");
    let [c, b, a, d] = [0, 1, 2, 3].map(|i| parse(parts[i]));
    let product = Product { shape, a, b, c, d, saturate: false };
    let [mut ra, mut rb, mut rc] = words.map(|word| Buffer::words(&[word; 128]));
    let mut rd = Buffer::words(&[0; 128]);
    run(&mma_kernel(name, &product), 32, &mut [&mut rd, &mut ra, &mut rb, &mut rc]).expect("no fault");
    let result = rd.read_words();
    assert!(result[..32].iter().all(|word| *word == result[0]));
    result[0]
}

#[test]
fn infinities_and_nans() {
    let halves = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32";
    let (one, infinity, nan) = (0x3c00_3c00, 0x7c00_7c00, 0xfe01_fe01);
    assert_eq!(uniform(halves, [one, one, 0]), 16f32.to_bits());
    assert_eq!(uniform(halves, [infinity, one, 0]), f32::INFINITY.to_bits());
    assert_eq!(uniform(halves, [infinity, one, 0xff80_0000]), 0x7fff_ffff);
    assert_eq!(uniform(halves, [infinity, 0, 0]), 0x7fff_ffff);
    assert_eq!(uniform(halves, [nan, one, 0]), 0x7fff_ffff);
    let half_sums = "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16";
    assert_eq!(uniform(half_sums, [0x7bff_7bff, 0x7bff_7bff, 0]), 0x7c00_7c00);
    assert_eq!(uniform(half_sums, [nan, one, 0]), 0x7fff_7fff);
    let bfloats = "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32";
    // The largest bf16 squared is no f32, the smallest squared is nothing to the sum.
    assert_eq!(uniform(bfloats, [0x7f7f_7f7f, 0x7f7f_7f7f, 0]), f32::INFINITY.to_bits());
    assert_eq!(uniform(bfloats, [0x0001_0001, 0x0001_0001, 7]), 7);
    let bytes = "mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e4m3.f32";
    assert_eq!(uniform(bytes, [0x7c7c_7c7c, 0x3838_3838, 0]), f32::INFINITY.to_bits());
    assert_eq!(uniform(bytes, [0x3c3c_3c3c, 0x7f7f_7f7f, 0]), 0x7fff_ffff);
}

#[test]
fn refuses_what_it_does_not_do() {
    let error =
        |instruction: &str| load_error(&kernel(0, &format!(".reg .b32 %r<32>;\n.reg .b64 %d<8>;\n{instruction}")));
    let cases = [
        ("mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%r0}, {%r1}, {%r2}, {%r3};", "use m16n8k8"),
        ("mma.sync.aligned.m8n8k128.row.col.s32.b1.b1.s32.xor.popc {%r0}, {%r1}, {%r2}, {%r3};", "single bits"),
        ("mma.sp.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 {%r0}, {%r1}, {%r2}, {%r3}, %r4, 0;", "sparse"),
        ("mma.sync.aligned.m16n8k16.row.row.f32.f16.f16.f32 {%r0}, {%r1}, {%r2}, {%r3};", "B '.col'"),
        ("mma.sync.aligned.m16n8k16.col.row.f32.f16.f16.f32 {%r0}, {%r1}, {%r2}, {%r3};", "B '.col'"),
        ("mma.sync.aligned.m16n8k16.row.col.f32.bf16.f16.f32 {%r0}, {%r1}, {%r2}, {%r3};", "do not go"),
        ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f16 {%r0}, {%r1}, {%r2}, {%r3};", "do not go"),
        ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%r0}, {%r1}, {%r2}, {%r3};", "4 registers, not 1"),
        ("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%r0, %r1}, %d0, %r2, {%r3, %r4};", "64 bits where 32"),
        ("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%r0, %r1}, %r2;", "4 operands"),
        ("mma.m16n8k16.row.col.f32.f16.f16.f32 {%r0}, {%r1}, {%r2}, {%r3};", ".sync.aligned"),
        ("mma.sync.aligned.row.col.f32.f16.f16.f32 {%r0}, {%r1}, {%r2}, {%r3};", "no shape"),
        ("mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32.e3m2.e2m1.f32 {%r0}, {%r1}, {%r2}, {%r3};", "sm_90"),
        ("mma.sync.aligned.m999n8k32.row.col.f32.f16.f16.f32 {%r0}, {%r1}, {%r2}, {%r3};", "no shape"),
        ("mma.sync.aligned.m0n8k32.row.col.f32.f16.f16.f32 {%r0}, {%r1}, {%r2}, {%r3};", "no shape"),
        ("ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {%r0, %r1}, [%r2];", "only 8x8"),
        ("ldmatrix.sync.aligned.m8n8.shared.b16 {%r0}, [%r2];", "how many"),
        ("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r0}, [%r2];", "2 registers, not 1"),
        ("ldmatrix.sync.aligned.m8n8.x1.b16 {%r0}, [%r2];", "64 bits"),
        ("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r0};", "2 operands"),
        ("movmatrix.sync.aligned.m8n8.b16 %r0, %r1;", "only m8n8.trans.b16"),
        ("wmma.load.a.sync.aligned.row.m8n8k32.s4 {%r0}, [%d0], %r1;", "does not go"),
        ("wmma.load.d.sync.aligned.row.m16n16k16.f32 {%r0}, [%d0], %r1;", "names no matrix"),
        ("wmma.mma.sync.aligned.row.col.m16n16k16.s32.s8.u8.f32 {%r0}, {%r1}, {%r2}, {%r3};", "do not go"),
        ("wmma.sync.aligned.row.col.m16n16k16.s32 {%r0}, {%r1}, {%r2}, {%r3};", "not an instruction"),
    ];
    for (instruction, part) in cases {
        let message = error(instruction);
        assert!(message.contains(part) && message.contains("PTX line"), "{instruction}\n{message}");
    }
}
