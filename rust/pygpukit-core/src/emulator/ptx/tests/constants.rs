//! Literals and constant expressions.

use super::super::ast::{Init, Number};
use super::{read, refuse, text};
use proptest::prelude::*;

fn value(expression: &str) -> Number {
    let text = text(&format!(".global .b64 x = {expression};"));
    match read(&text).variables[0].init[0] {
        Init::Value(number) => number,
        ref other => panic!("{other:?}"),
    }
}

fn integer(expression: &str) -> i64 {
    match value(expression) {
        Number::Int(value) => value,
        other => panic!("{other:?}"),
    }
}

#[test]
fn integers_are_read_in_every_base() {
    let cases: [(&str, i64); 16] = [
        ("0", 0),
        ("0U", 0),
        ("42", 42),
        ("42U", 42),
        ("-1", -1),
        ("0x7f", 127),
        ("0XFFU", 255),
        ("017", 15),
        ("017U", 15),
        ("0b101", 5),
        ("0B11U", 3),
        ("0xffffffffffffffff", -1),
        ("18446744073709551615", -1),
        ("-9223372036854775808", i64::MIN),
        ("+5", 5),
        ("WARP_SZ", 32),
    ];
    for (text, expected) in cases {
        assert_eq!(integer(text), expected, "{text}");
    }
}

#[test]
fn floats_are_read_as_bits_or_decimals() {
    assert_eq!(value("0f3F800000"), Number::F32(0x3f80_0000));
    assert_eq!(value("0Fff800000"), Number::F32(0xff80_0000));
    assert_eq!(value("0d3FF0000000000000"), Number::F64(1f64.to_bits()));
    assert_eq!(value("-0d3FF0000000000000"), Number::F64((-1f64).to_bits()));
    assert_eq!(value("-0f3F800000"), Number::F32(0xbf80_0000));
    for (text, expected) in [("1.5", 1.5), (".25", 0.25), ("1.", 1.0), ("1e3", 1e3), ("-2.5E-2", -0.025), ("0e+5", 0.0)]
    {
        assert_eq!(value(text), Number::F64(f64::to_bits(expected)), "{text}");
    }
}

#[test]
fn operators_bind_and_convert_as_in_the_manual() {
    let cases: [(&str, i64); 32] = [
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("10 - 4 - 3", 3),
        ("1 << 2 + 1", 8),
        ("-7 / 2", -3),
        ("-1 / 2U", i64::MAX),
        ("7 % 4", 3),
        ("-1 % 10", 5),
        ("-8 >> 1", -4),
        ("-8 >> 100", -1),
        ("0xffffffffffffffff >> 60", 15),
        ("1 << 64", 0),
        ("~0 >> 63", 1),
        ("6 & 3 | 8", 10),
        ("6 ^ 3", 5),
        ("!5", 0),
        ("!0", 1),
        ("!!7", 1),
        ("~5", -6),
        ("-(-42)", 42),
        ("3 < 4", 1),
        ("-1 < 0U", 0),
        ("-1 >= 0", 0),
        ("3 <= 3", 1),
        ("4 > 5", 0),
        ("3 == 3 && 4 != 4", 0),
        ("0 || 2", 1),
        ("1 ? 2 : 3", 2),
        ("0 ? 2 : 0 ? 4 : 5", 5),
        ("(.s64)0xffffffffffffffff < 0", 1),
        ("(.u64)-1 > 5", 1),
        ("(.s64)0x8000000000000000 / -1", i64::MIN),
    ];
    for (text, expected) in cases {
        assert_eq!(integer(text), expected, "{text}");
    }
}

#[test]
fn bad_literals_and_expressions_are_named() {
    for (text, message) in [
        ("08", "the number `08` is malformed"),
        ("0x", "the number `0x` is malformed"),
        ("0b2", "the number `0b2` is malformed"),
        ("12ab", "the number `12ab` is malformed"),
        ("0f3F8", "is not `0f` and 8 hexadecimal digits"),
        ("0d3F800000", "is not `0d` and 16 hexadecimal digits"),
        ("1e999", "is too large for a 64-bit float"),
        ("1.2.3", "the number `1.2.3` is malformed"),
        ("18446744073709551616", "does not fit in 64 bits"),
        ("1 / 0", "division by zero"),
        ("1 % (2 - 2)", "division by zero"),
        ("1.5 + 2", "`+` is supported between integers only"),
        ("~1.5", "found a float where an integer is needed"),
        ("1 ? 2 : 3.0", "the two values of `?`"),
        ("1 ? 2", "found `;`, expected `:` between the two values of `?`"),
        ("(1 + 2", "found `;`, expected `)` after a constant expression"),
        ("1 +", "found `;`, expected a number"),
    ] {
        let error = refuse(&format!(".global .b64 x = {text};"));
        assert!(error.message.contains(message), "{text}: {error}");
        assert_eq!(error.line, 4, "{text}");
    }
}

/// An expression with its value, every operator in parentheses.
fn expressions() -> impl Strategy<Value = (String, i64)> {
    let leaf = any::<i64>().prop_map(|value| (format!("{value}"), value));
    leaf.prop_recursive(6, 64, 2, |inner| {
        (inner.clone(), inner, 0..6usize).prop_map(|((left, a), (right, b), operator)| {
            let (symbol, value) = match operator {
                0 => ("+", a.wrapping_add(b)),
                1 => ("-", a.wrapping_sub(b)),
                2 => ("*", a.wrapping_mul(b)),
                3 => ("&", a & b),
                4 => ("|", a | b),
                _ => ("^", a ^ b),
            };
            (format!("({left} {symbol} {right})"), value)
        })
    })
}

proptest! {
    #[test]
    fn expressions_have_their_value((text, expected) in expressions()) {
        prop_assert_eq!(integer(&text), expected);
    }

    #[test]
    fn integers_survive_printing(value: u64) {
        for text in [format!("{value}"), format!("{value:#x}U"), format!("0{value:o}"), format!("{value:#b}")] {
            prop_assert_eq!(integer(&text), value as i64);
        }
    }

    #[test]
    fn floats_survive_printing(bits: u64) {
        let number = f64::from_bits(bits);
        prop_assert_eq!(value(&format!("0d{bits:016X}")), Number::F64(bits));
        if number.is_finite() {
            prop_assert_eq!(value(&format!("{number:e}")), Number::F64(bits));
        }
    }
}
