//! Integer and bit instructions, against arithmetic in 128 bits.

use super::harness::{apply_unguarded, check, refusal};
use crate::random::Random;

/// Operands: edges in all combinations, then random ones, wide and small.
fn integers(bits: u32, seed: u64) -> Vec<[u64; 3]> {
    let ones = u64::MAX >> (64 - bits);
    let top = 1u64 << (bits - 1);
    let edges = [0, 1, 2, 3, 7, 31, 32, 33, 63, 64, ones, ones - 1, top, top - 1, top + 1, ones >> 1];
    let mut random = Random::new(seed);
    let mut cases = Vec::new();
    for &a in &edges {
        for &b in &edges {
            cases.push([a & ones, b & ones, edges[random.below(edges.len())] & ones]);
        }
    }
    for i in 0..400 {
        let mut value = || random.next() & ones;
        let (a, b, c) = (value(), value(), value());
        cases.push(if i % 2 == 0 { [a, b, c] } else { [a, b % 70, c % 70] });
    }
    cases
}

/// A value as PTX's signed or unsigned type reads it.
fn read(value: u64, bits: u32, signed: bool) -> i128 {
    let value = value & (u64::MAX >> (64 - bits));
    if signed && value >> (bits - 1) != 0 { i128::from(value) - (1i128 << bits) } else { i128::from(value) }
}

fn clamp(value: i128, bits: u32, signed: bool) -> u64 {
    let (low, high) =
        if signed { (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1) } else { (0, (1i128 << bits) - 1) };
    value.clamp(low, high) as u64
}

const TYPES: [(&str, u32, bool); 6] = [
    ("u16", 16, false),
    ("s16", 16, true),
    ("u32", 32, false),
    ("s32", 32, true),
    ("u64", 64, false),
    ("s64", 64, true),
];

#[test]
fn arithmetic() {
    for (ty, n, signed) in TYPES {
        let cases = integers(n, 1);
        let w = [n; 4];
        let r = |x: u64| read(x, n, signed);
        check(&format!("add.{ty} %d, %a, %b"), w, &cases, |[a, b, _]| (r(a) + r(b)) as u64);
        check(&format!("sub.{ty} %d, %a, %b"), w, &cases, |[a, b, _]| (r(a) - r(b)) as u64);
        check(&format!("mul.lo.{ty} %d, %a, %b"), w, &cases, |[a, b, _]| r(a).wrapping_mul(r(b)) as u64);
        check(&format!("mad.lo.{ty} %d, %a, %b, %c"), w, &cases, |[a, b, c]| {
            r(a).wrapping_mul(r(b)).wrapping_add(r(c)) as u64
        });
        if n < 64 {
            check(&format!("mul.hi.{ty} %d, %a, %b"), w, &cases, |[a, b, _]| ((r(a) * r(b)) >> n) as u64);
            check(&format!("mad.hi.{ty} %d, %a, %b, %c"), w, &cases, |[a, b, c]| (((r(a) * r(b)) >> n) + r(c)) as u64);
            let wide = [2 * n, n, n, 2 * n];
            check(&format!("mul.wide.{ty} %d, %a, %b"), wide, &cases, |[a, b, _]| (r(a) * r(b)) as u64);
            check(&format!("mad.wide.{ty} %d, %a, %b, %c"), wide, &cases, |[a, b, c]| {
                (r(a) * r(b) + i128::from(c)) as u64
            });
        }
        check(&format!("min.{ty} %d, %a, %b"), w, &cases, |[a, b, _]| r(a).min(r(b)) as u64);
        check(&format!("max.{ty} %d, %a, %b"), w, &cases, |[a, b, _]| r(a).max(r(b)) as u64);
        check(&format!("sad.{ty} %d, %a, %b, %c"), w, &cases, |[a, b, c]| {
            ((r(a) - r(b)).unsigned_abs() as i128 + r(c)) as u64
        });
        let divisors: Vec<_> = cases.iter().copied().filter(|case| case[1] != 0).collect();
        check(&format!("div.{ty} %d, %a, %b"), w, &divisors, |[a, b, _]| (r(a) / r(b)) as u64);
        check(&format!("rem.{ty} %d, %a, %b"), w, &divisors, |[a, b, _]| (r(a) % r(b)) as u64);
        if signed {
            check(&format!("neg.{ty} %d, %a"), w, &cases, |[a, ..]| -r(a) as u64);
            check(&format!("abs.{ty} %d, %a"), w, &cases, |[a, ..]| r(a).unsigned_abs() as u64);
        }
    }
    let cases = integers(64, 2);
    let high = |a: u64, b: u64| ((u128::from(a) * u128::from(b)) >> 64) as u64;
    check("mul.hi.u64 %d, %a, %b", [64; 4], &cases, |[a, b, _]| high(a, b));
    check("mul.hi.s64 %d, %a, %b", [64; 4], &cases, |[a, b, _]| {
        ((i128::from(a as i64) * i128::from(b as i64)) >> 64) as u64
    });
}

#[test]
fn saturation_relu_and_pairs() {
    let cases = integers(32, 3);
    let r = |x: u64| read(x, 32, true);
    check("add.sat.s32 %d, %a, %b", [32; 4], &cases, |[a, b, _]| clamp(r(a) + r(b), 32, true));
    check("sub.sat.s32 %d, %a, %b", [32; 4], &cases, |[a, b, _]| clamp(r(a) - r(b), 32, true));
    check("mad.hi.sat.s32 %d, %a, %b, %c", [32; 4], &cases, |[a, b, c]| clamp(((r(a) * r(b)) >> 32) + r(c), 32, true));
    check("min.relu.s32 %d, %a, %b", [32; 4], &cases, |[a, b, _]| r(a).min(r(b)).max(0) as u64);
    check("max.relu.s32 %d, %a, %b", [32; 4], &cases, |[a, b, _]| r(a).max(r(b)).max(0) as u64);
    let each = |a: u64, b: u64, f: &dyn Fn(i128, i128) -> i128, signed: bool| {
        let part = |k: u32| f(read(a >> (16 * k), 16, signed), read(b >> (16 * k), 16, signed)) as u64 & 0xffff;
        part(0) | part(1) << 16
    };
    for (ty, signed) in [("u16x2", false), ("s16x2", true)] {
        check(&format!("add.{ty} %d, %a, %b"), [32; 4], &cases, |[a, b, _]| each(a, b, &|x, y| x + y, signed));
        check(&format!("min.{ty} %d, %a, %b"), [32; 4], &cases, |[a, b, _]| each(a, b, &|x, y| x.min(y), signed));
        check(&format!("max.{ty} %d, %a, %b"), [32; 4], &cases, |[a, b, _]| each(a, b, &|x, y| x.max(y), signed));
    }
    check("max.relu.s16x2 %d, %a, %b", [32; 4], &cases, |[a, b, _]| each(a, b, &|x, y| x.max(y).max(0), true));
}

#[test]
fn products_of_24_bits() {
    let cases = integers(32, 4);
    for (ty, signed) in [("u32", false), ("s32", true)] {
        let p = |a: u64, b: u64| read(a, 24, signed) * read(b, 24, signed);
        check(&format!("mul24.lo.{ty} %d, %a, %b"), [32; 4], &cases, |[a, b, _]| p(a, b) as u64);
        check(&format!("mul24.hi.{ty} %d, %a, %b"), [32; 4], &cases, |[a, b, _]| (p(a, b) >> 16) as u64);
        check(&format!("mad24.lo.{ty} %d, %a, %b, %c"), [32; 4], &cases, |[a, b, c]| (p(a, b) + i128::from(c)) as u64);
        check(&format!("mad24.hi.{ty} %d, %a, %b, %c"), [32; 4], &cases, |[a, b, c]| {
            ((p(a, b) >> 16) + i128::from(c)) as u64
        });
    }
    check("mad24.hi.sat.s32 %d, %a, %b, %c", [32; 4], &cases, |[a, b, c]| {
        let product = (read(a, 24, true) * read(b, 24, true)) >> 16;
        clamp(product + read(c, 32, true), 32, true)
    });
}

#[test]
fn carries() {
    let cases = integers(32, 5);
    let carry_after = |code: &str, d: &str| format!("{code}; addc.u32 %d, {d}, 0");
    check(&carry_after("add.cc.u32 %d, %a, %b", "0"), [32; 4], &cases, |[a, b, _]| (a + b) >> 32);
    check("sub.cc.u32 %d, %a, %b; subc.u32 %d, %c, 0", [32; 4], &cases, |[a, b, c]| c.wrapping_sub(u64::from(a < b)));
    check("mad.lo.cc.u32 %d, %a, %b, %c; madc.hi.u32 %d, %a, %b, %c", [32; 4], &cases, |[a, b, c]| {
        let low = (a * b) & 0xffff_ffff;
        ((a * b) >> 32) + c + ((low + c) >> 32)
    });
    let cases = integers(64, 6);
    check("add.cc.u64 %d, %a, %b; addc.cc.u64 %d, %c, %a; addc.u64 %d, 0, 0", [64; 4], &cases, |[a, b, c]| {
        let first = u128::from(a) + u128::from(b);
        ((u128::from(c) + u128::from(a) + (first >> 64)) >> 64) as u64
    });
}

#[test]
fn logic_and_shifts() {
    for n in [16, 32, 64] {
        let cases = integers(n, 7);
        check(&format!("and.b{n} %d, %a, %b"), [n; 4], &cases, |[a, b, _]| a & b);
        check(&format!("or.b{n} %d, %a, %b"), [n; 4], &cases, |[a, b, _]| a | b);
        check(&format!("xor.b{n} %d, %a, %b"), [n; 4], &cases, |[a, b, _]| a ^ b);
        check(&format!("not.b{n} %d, %a"), [n; 4], &cases, |[a, ..]| !a);
        check(&format!("cnot.b{n} %d, %a"), [n; 4], &cases, |[a, ..]| u64::from(a == 0));
        let by: Vec<_> = cases.iter().map(|&[a, b, c]| [a, b & 0xffff_ffff, c]).collect();
        let w = [n, n, 32, 32];
        let shift = |a: i128, b: u64, left: bool| if left { a << b.min(64) } else { a >> b.min(100) } as u64;
        check(&format!("shl.b{n} %d, %a, %b"), w, &by, |[a, b, _]| if b >= 64 { 0 } else { shift(a.into(), b, true) });
        check(&format!("shr.u{n} %d, %a, %b"), w, &by, |[a, b, _]| shift(read(a, n, false), b, false));
        check(&format!("shr.s{n} %d, %a, %b"), w, &by, |[a, b, _]| shift(read(a, n, true), b, false));
    }
    let cases = integers(32, 8);
    let both = |a: u64, b: u64| b << 32 | a;
    for (mode, by) in [("wrap", (|c| c & 31) as fn(u64) -> u64), ("clamp", |c| c.min(32))] {
        check(&format!("shf.l.{mode}.b32 %d, %a, %b, %c"), [32; 4], &cases, |[a, b, c]| (both(a, b) << by(c)) >> 32);
        check(&format!("shf.r.{mode}.b32 %d, %a, %b, %c"), [32; 4], &cases, |[a, b, c]| both(a, b) >> by(c));
    }
    for table in [0x00, 0x80, 0x96, 0xe8, 0xca, 0x1b, 0xff] {
        let bit = |a: u64, b: u64, c: u64, k: u32| table >> ((a >> k & 1) << 2 | (b >> k & 1) << 1 | c >> k & 1) & 1;
        let value = |a, b, c| (0..32).fold(0, |all, k| all | (bit(a, b, c, k) as u64) << k);
        check(&format!("lop3.b32 %d, %a, %b, %c, {table}"), [32; 4], &cases, |[a, b, c]| value(a, b, c));
        let with = "setp.gt.u32 %q, %a, %b; lop3.or.b32 %d|%p, %a, %b, %c, TABLE, %q; selp.u32 %d, 1, 0, %p";
        let code = with.replace("TABLE", &table.to_string());
        let got = apply_unguarded(&code, [32; 4], &cases);
        for (&[a, b, c], got) in cases.iter().zip(got) {
            assert_eq!(got, u64::from(value(a, b, c) != 0 || a > b), "'{code}' of {a:x} {b:x} {c:x}");
        }
    }
}

#[test]
fn bits_and_fields() {
    for n in [32u32, 64] {
        let cases = integers(n, 9);
        let w = [32, n, n, n];
        let ones = u64::MAX >> (64 - n);
        check(&format!("popc.b{n} %d, %a"), w, &cases, |[a, ..]| a.count_ones().into());
        check(&format!("clz.b{n} %d, %a"), w, &cases, |[a, ..]| u64::from((a << (64 - n)).leading_zeros().min(n)));
        check(&format!("brev.b{n} %d, %a"), [n; 4], &cases, |[a, ..]| a.reverse_bits() >> (64 - n));
        let highest = |x: u64| if x == 0 { u64::MAX } else { 63 - u64::from(x.leading_zeros()) };
        let plain = |a: u64, signed: bool| if signed && a >> (n - 1) != 0 { !a & ones } else { a };
        for (sign, signed) in [("u", false), ("s", true)] {
            check(&format!("bfind.{sign}{n} %d, %a"), w, &cases, |[a, ..]| highest(plain(a, signed)));
            check(&format!("bfind.shiftamt.{sign}{n} %d, %a"), w, &cases, |[a, ..]| match highest(plain(a, signed)) {
                u64::MAX => u64::MAX,
                at => u64::from(n) - 1 - at,
            });
            let fields: Vec<_> = cases.iter().map(|&[a, b, c]| [a, b & 0xffff, c & 0xffff]).collect();
            check(&format!("bfe.{sign}{n} %d, %a, %b, %c"), [n, n, 32, 32], &fields, |[a, b, c]| {
                let (at, len) = ((b & 255) as u32, (c & 255) as u32);
                let sign_bit = if len == 0 || !signed { 0 } else { a >> (at + len - 1).min(n - 1) & 1 };
                (0..n).fold(0, |all, k| {
                    let from = if k < len && at + k < n {
                        a >> (at + k) & 1
                    } else if len == 0 {
                        0
                    } else {
                        sign_bit
                    };
                    all | from << k
                })
            });
        }
        let code = format!("mov.b64 %wide, 0; bfi.b{n} %d, %a, %b, 5, 11");
        check(&code, [n; 4], &cases, |[a, b, _]| (b & !(0x7ff << 5)) | (a & 0x7ff) << 5);
        check(&format!("bfi.b{n} %d, %a, %b, {}, 40", n - 4), [n; 4], &cases, |[a, b, _]| {
            (b & !(0xf << (n - 4))) | (a & 0xf) << (n - 4)
        });
    }
}

#[test]
fn bytes_dots_and_masks() {
    let cases = integers(32, 10);
    let byte = |a: u64, b: u64, s: u64| {
        let v = (b << 32 | a) >> (8 * (s & 7)) & 255;
        if s & 8 == 0 {
            v
        } else if v & 128 != 0 {
            255
        } else {
            0
        }
    };
    check("prmt.b32 %d, %a, %b, %c", [32; 4], &cases, |[a, b, c]| {
        (0..4).fold(0, |all, k| all | byte(a, b, c >> (4 * k) & 15) << (8 * k))
    });
    type Select = fn(u64, u64) -> u64;
    let modes: [(&str, Select); 6] = [
        ("f4e", |k, c| k + c),
        ("b4e", |k, c| (c + 8 - k) % 8),
        ("rc8", |_, c| c),
        ("ecl", |k, c| k.max(c)),
        ("ecr", |k, c| k.min(c)),
        ("rc16", |k, c| k % 2 + 2 * (c & 1)),
    ];
    for (mode, select) in modes {
        check(&format!("prmt.b32.{mode} %d, %a, %b, %c"), [32; 4], &cases, |[a, b, c]| {
            (0..4).fold(0, |all, k| all | byte(a, b, select(k, c & 3)) << (8 * k))
        });
    }
    for (ta, sa) in [("u32", false), ("s32", true)] {
        for (tb, sb) in [("u32", false), ("s32", true)] {
            let part = |v: u64, k: u32, bits: u32, signed| read(v >> (bits * k), bits, signed);
            check(&format!("dp4a.{ta}.{tb} %d, %a, %b, %c"), [32; 4], &cases, |[a, b, c]| {
                (i128::from(c) + (0..4).map(|k| part(a, k, 8, sa) * part(b, k, 8, sb)).sum::<i128>()) as u64
            });
            for (half, skip) in [("lo", 0), ("hi", 2)] {
                check(&format!("dp2a.{half}.{ta}.{tb} %d, %a, %b, %c"), [32; 4], &cases, |[a, b, c]| {
                    (i128::from(c) + (0..2).map(|k| part(a, k, 16, sa) * part(b, k + skip, 8, sb)).sum::<i128>()) as u64
                });
            }
        }
    }
    check("bmsk.clamp.b32 %d, %a, %b", [32; 4], &cases, |[a, b, _]| ((1u64 << b.min(32)) - 1) << a.min(32));
    check("bmsk.wrap.b32 %d, %a, %b", [32; 4], &cases, |[a, b, _]| ((1u64 << (b & 31)) - 1) << (a & 31));
    for (ty, signed) in [("u32", false), ("s32", true)] {
        let extend = |a: u64, bits: u64| if bits == 0 { 0 } else { read(a, bits as u32, signed) as u64 };
        check(&format!("szext.clamp.{ty} %d, %a, %b"), [32; 4], &cases, |[a, b, _]| extend(a, b.min(32)));
        check(&format!("szext.wrap.{ty} %d, %a, %b"), [32; 4], &cases, |[a, b, _]| extend(a, b & 31));
    }
    check("fns.b32 %d, %a, 5, 3", [32; 4], &cases, |[a, ..]| {
        (5..32).filter(|k| a >> k & 1 != 0).nth(2).map_or(u64::from(u32::MAX), |k| k as u64)
    });
    check("fns.b32 %d, %a, 20, -2", [32; 4], &cases, |[a, ..]| {
        (0..=20).rev().filter(|k| a >> k & 1 != 0).nth(1).map_or(u64::from(u32::MAX), |k| k as u64)
    });
}

#[test]
fn comparisons_and_selection() {
    for (ty, n, signed) in TYPES {
        let cases = integers(n, 11);
        let r = |x: u64| read(x, n, signed);
        type Relation = fn(i128, i128) -> bool;
        let relations: [(&str, Relation); 6] = [
            ("eq", |a, b| a == b),
            ("ne", |a, b| a != b),
            ("lt", |a, b| a < b),
            ("le", |a, b| a <= b),
            ("gt", |a, b| a > b),
            ("ge", |a, b| a >= b),
        ];
        for (name, holds) in relations {
            let code = format!("setp.{name}.{ty} %p, %a, %b; selp.b{n} %d, %c, %b, %p");
            check(&code, [n; 4], &cases, |[a, b, c]| if holds(r(a), r(b)) { c } else { b });
            let code = format!("setp.ne.b{n} %q, %c, 0; setp.{name}.xor.{ty} %p, %a, %b, !%q; selp.b{n} %d, 1, 0, %p");
            check(&code, [n; 4], &cases, |[a, b, c]| u64::from(holds(r(a), r(b)) != (c == 0)));
        }
        let code = format!("slct.b{n}.s32 %d, %a, %b, %c");
        let by: Vec<_> = integers(32, 12).iter().zip(&cases).map(|(x, y)| [y[0], y[1], x[2]]).collect();
        check(&code, [n, n, n, 32], &by, |[a, b, c]| if read(c, 32, true) >= 0 { a } else { b });
    }
    let cases = integers(32, 13);
    check("set.lt.u32.s32 %d, %a, %b", [32; 4], &cases, |[a, b, _]| {
        if read(a, 32, true) < read(b, 32, true) { u64::MAX } else { 0 }
    });
    assert!(refusal("add.q32 %d, %a, %b", [32; 4]).contains("PTX line"));
    assert!(refusal("bfe.u16 %d, %a, %b, %c", [16; 4]).contains("bfe"));
}
