//! Comparisons, minimum and maximum, classes, clamps.

use super::super::*;

const VALUES: [u32; 14] = [
    0xffc0_0000,
    0xff80_0000,
    0xff7f_ffff,
    0xbf80_0000,
    0x8000_0001,
    0x8000_0000,
    0,
    1,
    0x007f_ffff,
    0x3f80_0000,
    0x3f80_0001,
    0x7f7f_ffff,
    0x7f80_0000,
    0x7f80_0001,
];

#[test]
fn comparisons_match_the_definition_for_every_format() {
    use Compare::*;
    for a in VALUES {
        for b in VALUES {
            let (x, y) = (f32::from_bits(a), f32::from_bits(b));
            let order = x.partial_cmp(&y);
            for (op, of_orders, of_nan) in [
                (Eq, "=", false),
                (Ne, "<>", false),
                (Lt, "<", false),
                (Le, "<=", false),
                (Gt, ">", false),
                (Ge, ">=", false),
                (Equ, "=", true),
                (Neu, "<>", true),
                (Ltu, "<", true),
                (Leu, "<=", true),
                (Gtu, ">", true),
                (Geu, ">=", true),
                (Num, "<=>", false),
                (Nan, "", true),
            ] {
                let expected = order.map_or(of_nan, |o| of_orders.contains(["<", "=", ">"][(o as i8 + 1) as usize]));
                assert_eq!(compare_f32(op, a, b), expected, "{op:?} {x} {y}");
                assert_eq!(compare_f64(op, f32_to_f64(a), f32_to_f64(b)), expected, "{op:?} {x} {y}");
                let (low, lower) = ((a >> 16) as u16, (b >> 16) as u16);
                let cut = (bf16_to_f32(low), bf16_to_f32(lower));
                assert_eq!(compare_bf16(op, low, lower), compare_f32(op, cut.0, cut.1));
                let wide = (f16_to_f32(low), f16_to_f32(lower));
                assert_eq!(compare_f16(op, low, lower), compare_f32(op, wide.0, wide.1));
            }
        }
    }
}

#[test]
fn minimum_and_maximum_order_zeros_and_lose_nans() {
    for (i, &a) in VALUES.iter().enumerate() {
        for (j, &b) in VALUES.iter().enumerate() {
            let (a_nan, b_nan) = (f32::from_bits(a).is_nan(), f32::from_bits(b).is_nan());
            // The list ascends, apart from the NaNs at its ends.
            let (low, high) = (VALUES[i.min(j)], VALUES[i.max(j)]);
            let (min, max) = match (a_nan, b_nan) {
                (true, true) => (NAN_F32, NAN_F32),
                (true, false) => (b, b),
                (false, true) => (a, a),
                (false, false) => (low, high),
            };
            assert_eq!((min_f32(a, b, false), max_f32(a, b, false)), (min, max), "{a:x} {b:x}");
            let nan = a_nan || b_nan;
            let expected = if nan { (NAN_F32, NAN_F32) } else { (low, high) };
            assert_eq!((min_f32(a, b, true), max_f32(a, b, true)), expected, "{a:x} {b:x}");
            if !nan {
                let (x, y) = (f32_to_f64(a), f32_to_f64(b));
                assert_eq!((min_f64(x, y, true), max_f64(x, y, false)), (f32_to_f64(low), f32_to_f64(high)));
                let sign = (a ^ b) & 0x8000_0000;
                let magnitudes = (a & 0x7fff_ffff, b & 0x7fff_ffff);
                assert_eq!(min_xorsign_f32(a, b, false), sign | magnitudes.0.min(magnitudes.1));
                assert_eq!(max_xorsign_f32(a, b, true), sign | magnitudes.0.max(magnitudes.1));
            }
        }
    }
    assert_eq!(min_xorsign_f32(0xffc0_0000, 0x3f80_0000, true), NAN_F32);
    assert_eq!(min_xorsign_f32(0xffc0_0000, 0x3f80_0000, false), 0xbf80_0000);
    assert_eq!([min_f16(0x8000, 0, false), max_f16(0x8000, 0, false)], [0x8000, 0]);
    assert_eq!([min_f16(0x7e00, 0x3c00, false), min_f16(0x7e00, 0x3c00, true)], [0x3c00, 0x7fff]);
    assert_eq!([max_bf16(0xbf80, 0xc000, false), max_bf16(0x7fc1, 0xc000, true)], [0xbf80, 0x7fff]);
    assert_eq!(max_xorsign_bf16(0xbf80, 0x4000, false), 0xc000);
    assert_eq!(min_xorsign_f16(0xbc00, 0xc000, false), 0x3c00);
}

#[test]
fn classes_and_signs() {
    use Class::*;
    let of = |a: u32| {
        [Finite, Infinite, Number, NotANumber, Normal, Subnormal].map(|class| {
            let result = testp_f32(class, a);
            if class != Normal && class != Subnormal {
                assert_eq!(testp_f64(class, f32_to_f64(a)), result);
            }
            result
        })
    };
    assert_eq!(of(0x8000_0000), [true, false, true, false, true, false]);
    assert_eq!(of(0x3f80_0000), [true, false, true, false, true, false]);
    assert_eq!(of(0x8000_0001), [true, false, true, false, false, true]);
    assert_eq!(of(0xff80_0000), [false, true, true, false, false, false]);
    assert_eq!(of(0x7f80_0001), [false, false, false, true, false, false]);
    assert!(testp_f64(Subnormal, 1) && testp_f64(Normal, 1 << 63));
    assert_eq!(copysign_f32(0x8000_0000, 0x3f80_0000), 0xbf80_0000);
    assert_eq!(copysign_f64(0, 0xbff0_0000_0000_0000), 0x3ff0_0000_0000_0000);
}

#[test]
fn clamps() {
    let f32s = [0xbf80_0000, 0x8000_0000, 0x7fc0_0000, 0xffc0_0000, 0x3f00_0000, 0x3f80_0001, 0x7f80_0000];
    assert_eq!(f32s.map(saturate_f32), [0, 0, 0, 0, 0x3f00_0000, 0x3f80_0000, 0x3f80_0000]);
    assert_eq!(f32s.map(relu_f32), [0, 0, NAN_F32, NAN_F32, 0x3f00_0000, 0x3f80_0001, 0x7f80_0000]);
    for a in 0..=u16::MAX {
        let (f16, bf16) = (f32::from_bits(f16_to_f32(a)), f32::from_bits(bf16_to_f32(a)));
        let narrow = |x: f32| f32_to_f16(x.to_bits(), Round::Nearest);
        assert_eq!(saturate_f16(a), narrow(f32::from_bits(saturate_f32(f16.to_bits()))));
        assert_eq!(saturate_bf16(a), f32_to_bf16(saturate_f32(bf16.to_bits()), Round::Nearest));
        assert_eq!(relu_f16(a), narrow(f32::from_bits(relu_f32(f16.to_bits()))));
        assert_eq!(relu_bf16(a), f32_to_bf16(relu_f32(bf16.to_bits()), Round::Nearest));
        assert_eq!(satfinite_f16(a), if f16.is_infinite() { a - 1 } else { a });
        assert_eq!(satfinite_bf16(a), if bf16.is_infinite() { a - 1 } else { a });
        assert_eq!(neg_f16(a), if f16.is_nan() { NAN_F16 } else { narrow(-f16) });
        assert_eq!(abs_bf16(a), if bf16.is_nan() { NAN_BF16 } else { a & 0x7fff });
    }
    assert_eq!(saturate_f64(f64::NAN.to_bits()), 0);
    assert_eq!(saturate_f64(2f64.to_bits()), 1f64.to_bits());
    assert_eq!(saturate_f64(0.25f64.to_bits()), 0.25f64.to_bits());
    assert_eq!([neg_f32(0xffc0_0000), abs_f32(0x8000_0000), neg_f32(0)], [NAN_F32, 0, 0x8000_0000]);
    assert_eq!([neg_f64(0), abs_f64(1 << 63)], [1 << 63, 0]);
}
