//! Tests of the number work against exact arithmetic and exhaustive tables.

mod approx;
mod convert;
mod half;
mod oracle;
mod order;
mod soft;

use proptest::prelude::*;

use super::{Format, Round};

const ROUNDS: [Round; 5] = [Round::Nearest, Round::Zero, Round::Down, Round::Up, Round::Away];

fn any_round() -> impl Strategy<Value = Round> {
    prop::sample::select(ROUNDS.to_vec())
}

/// Any bits, with many special values, subnormals, and pairs of few bits and near exponents, which tie and cancel.
fn any_bits(format: Format) -> BoxedStrategy<u64> {
    let mask = format.sign_bit() | (format.sign_bit() - 1);
    let man = format.man_bits;
    let special = vec![
        0,
        1,
        2,
        (1 << man) - 1,
        1 << man,
        (1 << man) + 1,
        (format.bias() as u64) << man,
        format.max_finite(),
        format.max_finite() - 1,
        format.infinity(),
        format.sign_bit() - 1,
        format.infinity() + (1 << (man - 1)),
        format.infinity() + 1,
    ];
    let signed = move |(bits, negative): (u64, bool)| bits | if negative { format.sign_bit() } else { 0 };
    let sparse = (0u64..64, 0u32..man, -4i64..4).prop_map(move |(few, shift, exp)| {
        let fraction = (few << shift) & ((1 << man) - 1);
        ((format.bias() as i64 + exp) as u64) << man | fraction
    });
    prop_oneof![
        3 => any::<u64>().prop_map(move |bits| bits & mask),
        2 => (prop::sample::select(special), any::<bool>()).prop_map(signed),
        2 => (sparse, any::<bool>()).prop_map(signed),
        1 => (any::<u64>().prop_map(move |bits| bits & ((2 << man) - 1)), any::<bool>()).prop_map(signed),
    ]
    .boxed()
}

/// A plain generator for loops too long for proptest.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}
