//! `setp` and `set` of floats, against the order of their exact values.

use std::cmp::Ordering;

use super::harness::{bf16s, check, f16s, f32s, f64s, pairs, refusal};

const RELATIONS: [&str; 14] =
    ["eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"];

fn holds(relation: &str, order: Option<Ordering>) -> bool {
    let Some(order) = order else { return relation == "nan" || (relation.len() == 3 && relation.ends_with('u')) };
    match relation.trim_end_matches('u') {
        "eq" => order.is_eq(),
        // The last letter of "neu" is cut off, and "num" has none.
        "ne" => order.is_ne(),
        "lt" => order.is_lt(),
        "le" => order.is_le(),
        "gt" => order.is_gt(),
        "ge" => order.is_ge(),
        "num" => true,
        _ => false,
    }
}

fn single(x: u64) -> f64 {
    f32::from_bits(x as u32).into()
}

fn f16(x: u64) -> f64 {
    let magnitude = match x & 0x7fff {
        0x7c01.. => f64::NAN,
        0x7c00 => f64::INFINITY,
        small @ ..0x0400 => small as f64 * 2f64.powi(-24),
        normal => (0x400 + (normal & 0x3ff)) as f64 * 2f64.powi((normal >> 10) as i32 - 25),
    };
    if x & 0x8000 != 0 { -magnitude } else { magnitude }
}

fn bf16(x: u64) -> f64 {
    single((x & 0xffff) << 16)
}

fn flush(x: f64, least: f64) -> f64 {
    if x.abs() < least { 0.0 } else { x }
}

struct Format {
    name: &'static str,
    bits: u32,
    cases: Vec<[u64; 3]>,
    value: fn(u64) -> f64,
}

fn formats() -> [Format; 6] {
    [
        Format { name: "f32", bits: 32, cases: f32s(30), value: single },
        Format { name: "ftz.f32", bits: 32, cases: f32s(31), value: |x| flush(single(x), f32::MIN_POSITIVE.into()) },
        Format { name: "f64", bits: 64, cases: f64s(32), value: f64::from_bits },
        Format { name: "f16", bits: 16, cases: f16s(33), value: f16 },
        Format { name: "ftz.f16", bits: 16, cases: f16s(34), value: |x| flush(f16(x), 2f64.powi(-14)) },
        Format { name: "bf16", bits: 16, cases: bf16s(35), value: bf16 },
    ]
}

#[test]
fn every_relation_of_every_format() {
    for Format { name, bits, cases, value } in formats() {
        for relation in RELATIONS {
            let yes = |[a, b, _]: [u64; 3]| holds(relation, value(a).partial_cmp(&value(b)));
            let bits = [32, bits, bits, bits];
            // The pair is the relation and its complement.
            let one = format!("setp.{relation}.{name} %p, %a, %b; selp.b32 %d, 1, 0, %p");
            check(&one, bits, &cases, |v| yes(v).into());
            let two = format!("setp.{relation}.{name} %p|%q, %a, %b; selp.b32 %w, 2, 0, %q; selp.b32 %d, 1, %w, %p");
            check(&two, bits, &cases, |v| if yes(v) { 1 } else { 2 });
        }
    }
}

#[test]
fn relations_combined_with_a_predicate() {
    for Format { name, bits, cases, value } in formats() {
        for relation in ["lt", "neu", "geu", "nan"] {
            for (combine, truth) in [("and", 0b1000u32), ("or", 0b1110), ("xor", 0b0110)] {
                for negated in [false, true] {
                    let bits = [32, bits, bits, bits];
                    let not = if negated { "!" } else { "" };
                    // The third operand is the first result, too.
                    let code = format!(
                        "and.b32 %w, %i, 1; setp.eq.u32 %p, %w, 1; \
                         setp.{relation}.{combine}.{name} %p|%q, %a, %b, {not}%p; \
                         selp.b32 %w, 1, 0, %p; selp.b32 %w1, 2, 0, %q; or.b32 %d, %w, %w1"
                    );
                    let index = std::cell::Cell::new(0u64);
                    check(&code, bits, &cases, |[a, b, _]| {
                        let thread = index.replace(index.get() + 1);
                        let third = (thread & 1 == 1) != negated;
                        let yes = holds(relation, value(a).partial_cmp(&value(b)));
                        let bit = |yes: bool| u64::from(truth >> (u32::from(yes) * 2 + u32::from(third)) & 1);
                        bit(yes) | bit(!yes) << 1
                    });
                }
            }
        }
    }
}

#[test]
fn pairs_give_a_predicate_for_each_half() {
    for (name, cases, value) in [
        ("f16x2", pairs(&f16s(36)), f16 as fn(u64) -> f64),
        ("ftz.f16x2", pairs(&f16s(37)), |x| flush(f16(x), 2f64.powi(-14))),
        ("bf16x2", pairs(&bf16s(38)), bf16),
    ] {
        for relation in RELATIONS {
            let half = |a: u64, b: u64| holds(relation, value(a & 0xffff).partial_cmp(&value(b & 0xffff)));
            let both = |[a, b, _]: [u64; 3]| (half(a, b), half(a >> 16, b >> 16));
            let tail = "selp.b32 %w, 1, 0, %p; selp.b32 %w1, 2, 0, %q; or.b32 %d, %w, %w1";
            check(&format!("setp.{relation}.{name} %p|%q, %a, %b; {tail}"), [32; 4], &cases, |v| {
                let (low, high) = both(v);
                u64::from(low) | u64::from(high) << 1
            });
            let plain = name.trim_start_matches("ftz.");
            let one = if plain == "f16x2" { 0x3c00 } else { 0x3f80 };
            for (result, yes) in [(plain, one), ("u32", 0xffff)] {
                let code = if name == plain {
                    format!("set.{relation}.{result}.{name} %d, %a, %b")
                } else {
                    format!("set.{relation}.ftz.{result}.{plain} %d, %a, %b")
                };
                check(&code, [32; 4], &cases, |v| {
                    let (low, high) = both(v);
                    (u64::from(low) * yes) | ((u64::from(high) * yes) << 16)
                });
            }
        }
    }
}

/// A guard that is also a result decides for the whole instruction.
#[test]
fn a_pair_may_overwrite_its_guard() {
    let code = "and.b32 %w, %i, 1; setp.eq.u32 %p, %w, 1; setp.ne.u32 %q, %w, %w; \
                @%p setp.ne.xor.f16x2 %p|%q, %a, %b, %p; \
                selp.b32 %w, 1, 0, %p; selp.b32 %w1, 2, 0, %q; or.b32 %d, %w, %w1";
    let cases = pairs(&f16s(39));
    let got = super::harness::apply_unguarded(code, [32; 4], &cases);
    for (i, (case, got)) in cases.iter().zip(got).enumerate() {
        let half = |shift: u32| holds("ne", f16(case[0] >> shift).partial_cmp(&f16(case[1] >> shift)));
        let want = if i % 2 == 1 { u64::from(!half(0)) | u64::from(!half(16)) << 1 } else { 0 };
        assert_eq!(got, want, "{case:x?}, thread {i}");
    }
}

#[test]
fn set_writes_ones_of_the_result_type() {
    for Format { name, bits, cases, value } in formats() {
        let (ftz, source) = name.split_once('.').map_or(("", name), |(_, source)| (".ftz", source));
        for (result, width, one) in [
            ("u32", 32, 0xffff_ffff),
            ("s32", 32, 0xffff_ffff),
            ("f32", 32, 0x3f80_0000),
            ("f16", 16, 0x3c00),
            ("u16", 16, 0xffff),
        ] {
            for relation in ["lt", "neu"] {
                let code = format!("set.{relation}{ftz}.{result}.{source} %d, %a, %b");
                check(&code, [width, bits, bits, bits], &cases, |[a, b, _]| {
                    if holds(relation, value(a).partial_cmp(&value(b))) { one } else { 0 }
                });
            }
        }
    }
    check(
        "set.gt.f32.s32 %d, %a, %b",
        [32; 4],
        &f32s(40),
        |[a, b, _]| {
            if a as i32 > b as i32 { 0x3f80_0000 } else { 0 }
        },
    );
    check("set.lo.u32.u32 %d, %a, %b", [32; 4], &f32s(41), |[a, b, _]| if a < b { 0xffff_ffff } else { 0 });
}

#[test]
fn refused_comparisons() {
    for code in ["setp.f32 %p, %a, %b", "setp.lt.f32 %d, %a, %b", "setp.lt.f32 %p, %a", "set.lt.f64.f32 %d, %a, %b"] {
        let message = refusal(code, [32; 4]);
        assert!(message.contains("PTX line"), "'{code}': {message}");
    }
}
