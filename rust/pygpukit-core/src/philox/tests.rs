use super::*;
use crate::dtype::DType;

fn words_of(key: u64, block: u64, attempt: u32, stream: u32) -> [u32; 4] {
    let [a, b] = block_of(Place { key, block, attempt, stream });
    [a as u32, (a >> 32) as u32, b as u32, (b >> 32) as u32]
}

#[test]
fn published_vectors() {
    // Random123, kat_vectors.
    assert_eq!(words_of(0, 0, 0, 0), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
    assert_eq!(words_of(u64::MAX, u64::MAX, u32::MAX, u32::MAX), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
    let (key, block) = (0x299f_31d0_a409_3822, 0x85a3_08d3_243f_6a88);
    assert_eq!(words_of(key, block, 0x1319_8a2e, 0x0370_7344), [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]);
}

#[test]
fn words_do_not_depend_on_the_piece_or_the_vectors() {
    let place = Place { key: 77, block: u64::MAX - 5, attempt: 3, stream: 9 };
    let (mut wide, mut base) = ([[0; 2]; 251], [[0; 2]; 251]);
    piece(place, &mut wide);
    words_from(place, &mut base);
    assert_eq!(wide, base);
    for (i, one) in wide.iter().enumerate() {
        assert_eq!(*one, block_of(Place { block: place.block.wrapping_add(i as u64), ..place }));
    }
}

#[test]
fn a_vector_is_the_start_of_a_longer_one_in_every_distribution() {
    let place = Place { key: 5, block: 1, attempt: 0, stream: 2 };
    for (_, distribution) in Distribution::ALL {
        for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
            let fill = Fill { distribution, dtype, a: 0.5, b: 2.0 };
            let (mut long, mut short) = (vec![0u64; 1500], vec![0u64; 1500]);
            // SAFETY: the vectors have room for as many elements of 8 bytes.
            unsafe { fill.write(place, long.as_mut_ptr().cast(), 1500) };
            for n in [0, 1, 3, 511, 513, 1025] {
                short.fill(0);
                // SAFETY: as above.
                unsafe { fill.write(place, short.as_mut_ptr().cast(), n) };
                let bytes = |v: &[u64]| v.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
                let size = n * dtype.itemsize();
                assert_eq!(bytes(&long)[..size], bytes(&short)[..size], "{distribution:?} {dtype:?} {n}");
                assert!(bytes(&short)[size..].iter().all(|byte| *byte == 0), "{distribution:?} {dtype:?} {n}");
            }
        }
    }
}

#[test]
fn refused_words_are_drawn_again() {
    // Three quarters of 2^32 values: a quarter of the words is refused.
    let last = (3u64 << 30) - 1;
    let drawn = Integers { low: 10, last, reject: (1 << 32) % (last + 1), wide: false };
    let place = Place { key: 8, block: 0, attempt: 0, stream: 0 };
    let mut out = [0u64; 4001];
    // SAFETY: the vector has room.
    unsafe { drawn.write(place, out.as_mut_ptr().cast(), 4001, 8) };
    assert!(out.iter().all(|&x| (10..=10 + last).contains(&x)));
    for (i, &x) in out.iter().enumerate().filter(|(i, _)| i % 90 < 7 || *i > 3990) {
        let mut attempt = 0;
        let want = loop {
            let word = u64::from(words_of(8, i as u64 / 4, attempt, 0)[i % 4]);
            let product = word * (last + 1);
            if product as u32 as u64 >= drawn.reject {
                break 10 + (product >> 32);
            }
            attempt += 1;
        };
        assert_eq!(x, want, "element {i}");
    }
}
