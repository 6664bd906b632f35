use proptest::prelude::*;

use super::*;

fn chosen(mask: &[u8]) -> Vec<usize> {
    (0..mask.len()).filter(|&i| mask[i] != 0).collect()
}

fn masks() -> impl Strategy<Value = Vec<u8>> {
    // Few, some and all; bytes other than 0 and 1 choose too.
    let byte = prop_oneof![Just(0u8), Just(1), Just(255)];
    prop_oneof![
        prop::collection::vec(byte, 0..70),
        prop::collection::vec(Just(1u8), 0..70),
        prop::collection::vec(prop_oneof![9 => Just(0u8), 1 => Just(7)], 0..600)
    ]
}

fn take_all<T: Copy + Default + PartialEq + std::fmt::Debug>(mask: &[u8], most: usize, element: impl Fn(usize) -> T) {
    let x: Vec<T> = (0..mask.len()).map(&element).collect();
    let mut out = vec![T::default(); most];
    let item = size_of::<T>();
    // SAFETY: the vectors have these lengths.
    let found = unsafe { take(x.as_ptr().cast(), mask.as_ptr(), x.len(), item, out.as_mut_ptr().cast(), most) };
    let wanted: Vec<T> = chosen(mask).into_iter().map(|i| x[i]).collect();
    assert_eq!(found, wanted.len());
    let kept = most.min(found);
    assert_eq!(out[..kept], wanted[..kept]);
}

proptest! {
    #[test]
    fn masks_count_and_take_what_they_choose(mask in masks(), less in 0usize..4) {
        let many = chosen(&mask).len();
        // SAFETY: as long as the mask.
        prop_assert_eq!(unsafe { count(mask.as_ptr(), mask.len()) }, many);
        // A mask may have changed since it was counted: nothing is written behind the room there is.
        for most in [many, many.saturating_sub(less), many + less] {
            take_all::<u8>(&mask, most, |i| i as u8);
            take_all::<u32>(&mask, most, |i| i as u32 + 1);
            take_all::<u128>(&mask, most, |i| u128::MAX - i as u128);
        }
    }

    #[test]
    fn places_are_coordinates(mask in masks(), width in 1usize..9) {
        let rows = mask.len() / width;
        let mask = &mask[..rows * width];
        let shape = [rows as i64, 1, width as i64];
        let wanted = chosen(mask);
        let mut out = vec![-1i64; 3 * wanted.len()];
        // SAFETY: the mask has that shape.
        let found = unsafe { places(mask.as_ptr(), &shape, out.as_mut_ptr(), wanted.len()) };
        prop_assert_eq!(found, wanted.len());
        for (k, &i) in wanted.iter().enumerate() {
            prop_assert_eq!(out[k], (i / width) as i64);
            prop_assert_eq!(out[found + k], 0);
            prop_assert_eq!(out[2 * found + k], (i % width) as i64);
        }
    }

    #[test]
    fn windows_go_on_as_their_mode_says(
        extent in prop::collection::vec(1i64..5, 1..4),
        around in prop::collection::vec((-3i64..12, 0i64..12), 3),
        mode in prop::sample::select(vec![Mode::Wrap, Mode::Edge, Mode::Reflect, Mode::Symmetric, Mode::Constant]),
        reversed in any::<bool>(),
    ) {
        let d = extent.len();
        let before: Vec<i64> = around[..d].iter().map(|pair| pair.0).collect();
        let shape: Vec<i64> = (0..d).map(|i| (extent[i] + before[i] + around[i].1).max(0)).collect();
        let x: Vec<u32> = (0..extent.iter().product::<i64>() as u32).collect();
        let value: Vec<u32> = (0..2 * d as u32).map(|i| 1000 + i).collect();
        // Axes in either order of memory.
        let mut strides = vec![4i64; d];
        for i in 1..d {
            let (from, to) = if reversed { (i - 1, i) } else { (d - i, d - i - 1) };
            strides[to] = strides[from] * extent[from];
        }
        let window = Window {
            mode,
            shape: shape.clone().into(),
            extent: extent.clone().into(),
            strides: strides.clone().into(),
            before: before.clone().into(),
            item: 4,
        };
        let total = shape.iter().product::<i64>();
        let mut out = vec![u32::MAX; total as usize];
        // SAFETY: the vectors have these sizes.
        unsafe { window.write(x.as_ptr().cast(), value.as_ptr().cast(), out.as_mut_ptr().cast()) };
        for (flat, &found) in out.iter().enumerate() {
            let (mut left, mut from, mut constant) = (flat as i64, 0, None);
            for axis in (0..d).rev() {
                let (i, n) = (left % shape[axis] - before[axis], extent[axis]);
                left /= shape[axis];
                let inside = (0..n).contains(&i);
                if !inside && mode == Mode::Constant {
                    constant = constant.or(Some(2 * axis + usize::from(i > 0)));
                }
                from += one(mode, i, n) * strides[axis] / 4;
            }
            let wanted = constant.map_or_else(|| x[from as usize], |number| value[number]);
            prop_assert_eq!(found, wanted, "{:?} at {}", window, flat);
        }
    }

    #[test]
    fn transposed_copies_have_every_element(
        lengths in prop::collection::vec(1usize..40, 1..4),
        turns in any::<bool>(),
        item in prop::sample::select(vec![1usize, 2, 4, 8, 16]),
    ) {
        let (d, n) = (lengths.len(), lengths.iter().product::<usize>());
        let mut source = vec![item as isize; d];
        let mut target = vec![item as isize; d];
        for i in 1..d {
            source[i] = source[i - 1] * lengths[i - 1] as isize;
            target[d - 1 - i] = target[d - i] * lengths[d - i] as isize;
        }
        if turns {
            std::mem::swap(&mut source, &mut target);
        }
        let from: Vec<u8> = (0..n * item).map(|i| (i * 7 % 251) as u8).collect();
        let mut to = vec![0u8; n * item];
        // SAFETY: both have all elements.
        unsafe { Transpose::new(&lengths, &source, &target, item).copy(from.as_ptr(), to.as_mut_ptr()) };
        for flat in 0..n {
            let (mut left, mut a, mut b) = (flat, 0, 0);
            for axis in (0..d).rev() {
                let i = (left % lengths[axis]) as isize;
                left /= lengths[axis];
                a += i * source[axis];
                b += i * target[axis];
            }
            prop_assert_eq!(&from[a as usize..a as usize + item], &to[b as usize..b as usize + item]);
        }
    }
}

/// The element of a line of n that index i is, by steps from where it is known.
fn one(mode: Mode, mut i: i64, n: i64) -> i64 {
    while !(0..n).contains(&i) {
        i = match mode {
            Mode::Wrap => i + if i < 0 { n } else { -n },
            Mode::Reflect if n > 1 => {
                if i < 0 {
                    -i
                } else {
                    2 * n - 2 - i
                }
            }
            Mode::Symmetric => {
                if i < 0 {
                    -1 - i
                } else {
                    2 * n - 1 - i
                }
            }
            _ => i.clamp(0, n - 1),
        };
    }
    i
}

#[test]
fn ranges_are_what_each_type_computes() {
    let mut bytes = [0u8; 5];
    // SAFETY: there is room for five.
    unsafe { Range::Integer { start: 250, step: 3 }.write(bytes.as_mut_ptr(), 5, 1) };
    assert_eq!(bytes, [250, 253, 0, 3, 6]);
    let mut words = [0i64; 3];
    // SAFETY: as above.
    unsafe { Range::Integer { start: i64::MAX, step: 1 }.write(words.as_mut_ptr().cast(), 3, 8) };
    assert_eq!(words, [i64::MAX, i64::MIN, i64::MIN + 1]);
    let mut floats = [0f32; 4];
    // SAFETY: as above.
    unsafe { Range::F32 { start: 0.1, step: 0.2, last: Some(9.0) }.write(floats.as_mut_ptr().cast(), 4, 4) };
    assert_eq!(floats, [0.1, 0.1 + 0.2f32, 2.0 * 0.2f32 + 0.1, 9.0]);
    let mut doubles = [0f64; 2];
    // SAFETY: as above.
    unsafe { Range::F64 { start: 1.5, step: -1.0, last: None }.write(doubles.as_mut_ptr().cast(), 2, 8) };
    assert_eq!(doubles, [1.5, 0.5]);
}
