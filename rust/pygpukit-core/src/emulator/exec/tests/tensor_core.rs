//! What a group of products should be, in integers.

/// A finite number as an integer in units of 2^`unit`, and its exponent, at least `smallest`; None for zero.
#[derive(Clone, Copy)]
struct Term {
    integer: i128,
    unit: i32,
    exponent: i32,
}

fn term(x: f64, smallest: i32) -> Option<Term> {
    let (bits, field) = (x.to_bits(), (x.to_bits() >> 52 & 0x7ff) as i32 - 1023);
    let magnitude = i128::from(bits & ((1 << 52) - 1) | 1 << 52);
    let integer = if x < 0.0 { -magnitude } else { magnitude };
    (x != 0.0).then_some(Term { integer, unit: field - 52, exponent: field.max(smallest) })
}

/// A sum, exact: this integer in units of 2 to this power.
pub struct Sum(i128, i32);

/// `c` and products of pairs, cut to `fraction` bits below the largest term. Exponents of A, B and C are at least those
/// given.
pub fn add_group(c: f64, pairs: &[(f64, f64)], smallest: [i32; 3], fraction: i32) -> Sum {
    let products = pairs.iter().filter_map(|&(a, b)| {
        let (a, b) = (term(a, smallest[0])?, term(b, smallest[1])?);
        let (unit, exponent) = (a.unit + b.unit, a.exponent + b.exponent);
        Some(Term { integer: a.integer * b.integer, unit, exponent })
    });
    let terms: Vec<Term> = products.chain(term(c, smallest[2])).collect();
    let Some(top) = terms.iter().map(|term| term.exponent).max() else { return Sum(0, 0) };
    let unit = top - fraction;
    // Division cuts toward zero. Here are no terms that would move up.
    let cut = |term: &Term| match unit - term.unit {
        down @ 0..=126 => term.integer / (1 << down),
        down if down > 126 => 0,
        up => term.integer << -up,
    };
    Sum(terms.iter().map(cut).sum(), unit)
}

impl Sum {
    /// Bits to drop for numbers of `bits` significant bits and multiples of 2^`least`.
    fn excess(&self, bits: u32, least: i32) -> u32 {
        let top = 128 - self.0.unsigned_abs().leading_zeros();
        top.saturating_sub(bits).max((least - self.1).max(0) as u32).min(127)
    }

    fn signed(&self, magnitude: u128, drop: u32) -> f64 {
        let value = magnitude as f64 * 2f64.powi(self.1 + drop as i32);
        if self.0 < 0 { -value } else { value }
    }

    /// As an f32 of `fraction` fraction bits, rounded toward zero.
    pub fn single(&self, fraction: u32) -> f64 {
        let drop = self.excess(fraction + 1, -149);
        self.signed(self.0.unsigned_abs() >> drop, drop)
    }

    /// As an f16, rounded to nearest even.
    pub fn half(&self) -> f64 {
        let drop = self.excess(11, -24);
        let (kept, rest) = (self.0.unsigned_abs() >> drop, self.0.unsigned_abs() & ((1 << drop) - 1));
        let half = if drop == 0 { 1 } else { 1u128 << (drop - 1) };
        let rounded = self.signed(kept + u128::from(rest > half || (rest == half && kept & 1 == 1)), drop);
        if rounded.abs() > 65504.0 { f64::INFINITY.copysign(rounded) } else { rounded }
    }
}

/// A sum cut below the first place is that of its largest terms.
#[test]
fn terms_far_below_the_largest_are_cut() {
    let sum =
        add_group(1.0, &[(2f64.powi(-14), 2f64.powi(-11)), (2f64.powi(-14), -(2f64.powi(-12)))], [-14, -14, -126], 25);
    assert_eq!(sum.single(23), 1.0);
    let cut = add_group(-1.0, &[(3.0, 2f64.powi(-13) * 1.5)], [-14, -14, -126], 13);
    assert_eq!((cut.0, cut.1), (-(1 << 13) + 4, -13));
}
