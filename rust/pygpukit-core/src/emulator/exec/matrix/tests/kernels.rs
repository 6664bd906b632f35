//! Kernels as NVRTC compiles them.

use super::super::super::fragments::Element;
use super::oracle::value;
use super::*;

const TILE: &str = include_str!("tile.ptx");
const WMMA: &str = include_str!("wmma.ptx");

#[test]
fn product_of_64x64_matrices_by_tiles() {
    let mut random = Random::new(3);
    // Multiples of 1/64 below 4, whose sums are exact in f32.
    let mut matrix = || -> Vec<u16> {
        (0..64 * 64)
            .map(|_| {
                let number = random.below(512) as f32 / 64.0 - 4.0;
                crate::emulator::float::f32_to_f16(number.to_bits(), crate::emulator::float::Round::Nearest)
            })
            .collect()
    };
    let (a, b) = (matrix(), matrix());
    let buffer = |halves: &[u16]| Buffer::new(&halves.iter().flat_map(|half| half.to_le_bytes()).collect::<Vec<_>>());
    let mut c = Buffer::words(&[0x5555_5555; 64 * 64]);
    for fuzz in [None, Some(11)] {
        let options = Options { fuzz, ..Options::default() };
        launch(TILE, "tile", [1, 1, 1], 128, &mut [&mut c, &mut buffer(&a), &mut buffer(&b)], &[], options)
            .unwrap_or_else(|error| panic!("{error}"));
        for (at, word) in c.read_words().iter().enumerate() {
            let (row, column) = (at / 64, at % 64);
            let number = |half: u16| value(Element::F16, half.into());
            let want: f64 = (0..64).map(|k| number(a[row * 64 + k]) * number(b[k * 64 + column])).sum();
            assert_eq!(f64::from(f32::from_bits(*word)), want, "row {row}, column {column}");
        }
    }
}

/// A matrix in memory: element (row, column) lies at `row * by_row + column * by_column`.
struct Stored {
    element: Element,
    by_row: usize,
    by_column: usize,
    buffer: Buffer,
}

impl Stored {
    /// Small numbers, so that every sum is exact; lines are `stride` elements apart.
    fn random(random: &mut Random, element: Element, lines: usize, stride: usize, column_major: bool) -> Stored {
        let mut data = Vec::new();
        for _ in 0..lines * stride {
            let number = random.below(17) as f64 - 8.0;
            let bits = match element {
                Element::F16 => u64::from(crate::emulator::float::f64_to_f16(
                    number.to_bits(),
                    crate::emulator::float::Round::Nearest,
                )),
                Element::Bf16 => u64::from((number as f32).to_bits() >> 16),
                Element::Tf32 | Element::F32 => u64::from((number as f32).to_bits()),
                Element::F64 => number.to_bits(),
                _ => number as i64 as u64,
            };
            data.extend(&bits.to_le_bytes()[..element.bits() / 8]);
        }
        let (by_row, by_column) = if column_major { (1, stride) } else { (stride, 1) };
        Stored { element, by_row, by_column, buffer: Buffer::new(&data) }
    }

    fn numbers(&mut self) -> impl Fn(usize, usize) -> f64 + use<> {
        let (element, by_row, by_column, data) = (self.element, self.by_row, self.by_column, self.buffer.read());
        move |row, column| {
            let bytes = element.bits() / 8;
            let at = (row * by_row + column * by_column) * bytes;
            let bits = data[at..at + bytes].iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte));
            value(element, bits)
        }
    }
}

/// Run a kernel of wmma.cu with lines `pad` elements longer than they must be.
fn check(name: &str, shape: [usize; 3], element: Element, sum: Element, turned: bool, pad: [usize; 3]) {
    let [m, n, k] = shape;
    let mut random = Random::new(name.len() as u64);
    let (lda, ldb, ldc) = if turned { (m, n, m) } else { (k, k, n) };
    let (lda, ldb, ldc) = (lda + pad[0], ldb + pad[1], ldc + pad[2]);
    let mut a = Stored::random(&mut random, element, if turned { k } else { m }, lda, turned);
    let mut b = Stored::random(&mut random, element, if turned { k } else { n }, ldb, !turned);
    let mut c = Stored::random(&mut random, sum, if turned { n } else { m }, ldc, turned);
    let (fa, fb, before) = (a.numbers(), b.numbers(), c.numbers());
    let untouched = c.buffer.read();
    let numbers = [lda, ldb, ldc].map(|stride| stride as u32);
    let mut buffers = [&mut c.buffer, &mut a.buffer, &mut b.buffer];
    launch(WMMA, name, [1, 1, 1], 32, &mut buffers, &numbers, Options::default())
        .unwrap_or_else(|error| panic!("{error}"));
    let after = c.numbers();
    for (row, column) in (0..m * n).map(|at| (at / n, at % n)) {
        // Of small integers every sum is exact.
        let want = before(row, column) + (0..k).map(|k| fa(row, k) * fb(k, column)).sum::<f64>();
        assert_eq!(after(row, column), want, "{name}: row {row}, column {column}");
    }
    let bytes = sum.bits() / 8;
    let lines = c.buffer.read().chunks(ldc * bytes).map(<[u8]>::to_vec).collect::<Vec<_>>();
    let width = if turned { m } else { n } * bytes;
    for (line, old) in lines.iter().zip(untouched.chunks(ldc * bytes)) {
        assert_eq!(line[width..], old[width..], "{name}: what lies between lines stays");
    }
}

#[test]
fn wmma_of_every_type() {
    check("halves", [16, 16, 16], Element::F16, Element::F32, false, [8, 16, 4]);
    check("half_sums", [8, 32, 16], Element::F16, Element::F16, false, [0, 8, 8]);
    check("bfloats", [32, 8, 16], Element::Bf16, Element::F32, true, [8, 0, 4]);
    check("tf32s", [16, 16, 8], Element::Tf32, Element::F32, false, [4, 0, 8]);
    check("bytes", [8, 32, 16], Element::S8, Element::S32, false, [16, 0, 4]);
    check("doubles", [8, 8, 4], Element::F64, Element::F64, false, [2, 0, 4]);
}

#[test]
fn wmma_by_way_of_shared_memory() {
    let mut random = Random::new(5);
    let mut a = Stored::random(&mut random, Element::F16, 16, 16, false);
    let mut b = Stored::random(&mut random, Element::F16, 16, 16, true);
    let mut c = Stored::random(&mut random, Element::F32, 16, 16, false);
    let mut buffers = [&mut c.buffer, &mut a.buffer, &mut b.buffer];
    launch(WMMA, "staged", [1, 1, 1], 32, &mut buffers, &[16, 16], Options::default())
        .unwrap_or_else(|error| panic!("{error}"));
    let (fa, fb, fc) = (a.numbers(), b.numbers(), c.numbers());
    for (row, column) in (0..256).map(|at| (at / 16, at % 16)) {
        let want = 1.0 + (0..16).map(|k| fa(row, k) * fb(k, column)).sum::<f64>();
        assert_eq!(fc(row, column), want, "row {row}, column {column}");
    }
}

#[test]
fn wmma_with_wrong_matrices() {
    let mut random = Random::new(6);
    let mut fault = |lda: u32, ldb: u32, ldc: u32, threads: u32| {
        let mut a = Stored::random(&mut random, Element::F16, 16, 16, false);
        let mut b = Stored::random(&mut random, Element::F16, 16, 16, true);
        let mut c = Stored::random(&mut random, Element::F32, 16, 16, false);
        let mut buffers = [&mut c.buffer, &mut a.buffer, &mut b.buffer];
        launch(WMMA, "halves", [1, 1, 1], threads, &mut buffers, &[lda, ldb, ldc], Options::default())
    };
    assert_eq!(fault(16, 16, 16, 32), Ok(()));
    let stride = fault(17, 16, 16, 32).expect_err("a fault");
    assert!(stride.contains("lines 34 bytes apart"), "{stride}");
    let outside = fault(16, 24, 16, 32).expect_err("a fault");
    assert!(outside.contains("read of 2 bytes") && outside.contains("in no allocation"), "{outside}");
    let partial = fault(16, 16, 16, 24).expect_err("a fault");
    assert!(partial.contains("all 32 lanes"), "{partial}");
}
