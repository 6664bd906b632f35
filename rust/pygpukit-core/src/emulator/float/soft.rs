//! Correctly rounded arithmetic in any format and rounding mode, on integers; f64 arithmetic with it.
//!
//! A finite number is a significand times a power of two; an operation builds the exact result in 128 bits, or its
//! upper bits and a sticky flag for what lies below, and [`round_pack`] rounds once.

use super::{Format, Round, Specials, nan_f64};

/// What a bit pattern stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Zero,
    /// The significand's top bit is bit 63: the value is `sig * 2^exp`.
    Finite {
        exp: i32,
        sig: u64,
    },
    Infinite,
    Nan,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unpacked {
    pub negative: bool,
    pub kind: Kind,
}

pub fn unpack(format: Format, bits: u64) -> Unpacked {
    let negative = bits & format.sign_bit() != 0;
    let magnitude = bits & (format.sign_bit() - 1);
    let fraction = magnitude & ((1 << format.man_bits) - 1);
    let field = (magnitude >> format.man_bits) as i32;
    let kind = if format.specials == Specials::Ieee && magnitude == format.infinity() {
        Kind::Infinite
    } else if format.specials != Specials::None && magnitude > format.max_finite() {
        Kind::Nan
    } else if magnitude == 0 {
        Kind::Zero
    } else {
        let sig = if field == 0 { fraction } else { fraction | 1 << format.man_bits };
        let shift = sig.leading_zeros();
        Kind::Finite { exp: format.min_exp() + field.max(1) - 1 - shift as i32, sig: sig << shift }
    };
    Unpacked { negative, kind }
}

/// Bits of `(sig + s) * 2^exp`, rounded, where s is 0, or somewhere between 0 and 1 when `sticky`.
///
/// A sticky significand needs at least two bits more than the format has.
pub fn round_pack(format: Format, negative: bool, exp: i32, sig: u128, sticky: bool, round: Round) -> u64 {
    let sign = if negative { format.sign_bit() } else { 0 };
    if sig == 0 {
        return sign;
    }
    let top = exp + 127 - sig.leading_zeros() as i32;
    let least = (top - format.man_bits as i32).max(format.min_exp());
    let shift = least - exp;
    let (kept, half, rest) = match shift {
        ..=0 => (sig << -shift, false, sticky),
        1..=127 => {
            let cut = sig & ((1 << shift) - 1);
            let half = 1 << (shift - 1);
            (sig >> shift, cut & half != 0, cut & (half - 1) != 0 || sticky)
        }
        128 => (0, sig >> 127 != 0, sig << 1 != 0 || sticky),
        _ => (0, false, true),
    };
    let up = match round {
        Round::Nearest => half && (rest || kept & 1 != 0),
        Round::Away => half,
        Round::Zero => false,
        Round::Down => negative && (half || rest),
        Round::Up => !negative && (half || rest),
    };
    // The hidden bit of a normal number carries into the exponent field, and so does rounding up to the next power.
    let magnitude = (((least - format.min_exp()) as u128) << format.man_bits) + kept + u128::from(up);
    if magnitude <= u128::from(format.max_finite()) {
        sign | magnitude as u64
    } else {
        overflow(format, negative, round)
    }
}

fn overflow(format: Format, negative: bool, round: Round) -> u64 {
    let sign = if negative { format.sign_bit() } else { 0 };
    let to_infinity = match round {
        Round::Nearest | Round::Away => true,
        Round::Zero => false,
        Round::Down => negative,
        Round::Up => !negative,
    };
    sign | if to_infinity && format.specials == Specials::Ieee { format.infinity() } else { format.max_finite() }
}

fn zero(format: Format, negative: bool) -> u64 {
    if negative { format.sign_bit() } else { 0 }
}

fn infinity(format: Format, negative: bool) -> u64 {
    zero(format, negative) | format.infinity()
}

/// A finite term of a sum, never zero.
#[derive(Clone, Copy)]
struct Term {
    negative: bool,
    exp: i32,
    sig: u128,
}

impl Term {
    /// The same value with its top bit at bit 125, so that a sum has room for a carry.
    fn normalised(self) -> Term {
        let shift = self.sig.leading_zeros() as i32 - 2;
        let sig = if shift >= 0 { self.sig << shift } else { self.sig >> -shift };
        Term { exp: self.exp - shift, sig, ..self }
    }
}

/// The rounded sum. Terms have at most 126 - 20 significant bits, so cancellation loses none.
fn add_terms(format: Format, x: Term, y: Term, round: Round) -> u64 {
    let (x, y) = (x.normalised(), y.normalised());
    let (big, small) = if (x.exp, x.sig) >= (y.exp, y.sig) { (x, y) } else { (y, x) };
    let distance = (big.exp - small.exp) as u32;
    let shifted = small.sig.checked_shr(distance).unwrap_or(0);
    let sticky = distance > 127 || shifted << distance != small.sig;
    let sig = if big.negative == small.negative {
        big.sig + shifted
    } else {
        // With something below the last bit, the difference is one less and that something's complement.
        big.sig - shifted - u128::from(sticky)
    };
    if sig == 0 {
        return zero(format, round == Round::Down);
    }
    round_pack(format, big.negative, big.exp, sig, sticky, round)
}

/// None is a NaN, as in all these.
pub fn soft_add(format: Format, a: u64, b: u64, round: Round) -> Option<u64> {
    let (x, y) = (unpack(format, a), unpack(format, b));
    Some(match (x.kind, y.kind) {
        (Kind::Nan, _) | (_, Kind::Nan) => return None,
        (Kind::Infinite, Kind::Infinite) if x.negative != y.negative => return None,
        (Kind::Infinite, _) | (_, Kind::Zero) if y.kind != x.kind => a,
        (_, Kind::Infinite) | (Kind::Zero, Kind::Finite { .. }) => b,
        (Kind::Finite { exp, sig }, Kind::Finite { exp: exp_y, sig: sig_y }) => {
            let x = Term { negative: x.negative, exp, sig: sig.into() };
            let y = Term { negative: y.negative, exp: exp_y, sig: sig_y.into() };
            add_terms(format, x, y, round)
        }
        _ => zero(format, if x.negative == y.negative { x.negative } else { round == Round::Down }),
    })
}

pub fn soft_sub(format: Format, a: u64, b: u64, round: Round) -> Option<u64> {
    soft_add(format, a, b ^ format.sign_bit(), round)
}

pub fn soft_mul(format: Format, a: u64, b: u64, round: Round) -> Option<u64> {
    let (x, y) = (unpack(format, a), unpack(format, b));
    let negative = x.negative != y.negative;
    Some(match (x.kind, y.kind) {
        (Kind::Nan, _) | (_, Kind::Nan) => return None,
        (Kind::Infinite, Kind::Zero) | (Kind::Zero, Kind::Infinite) => return None,
        (Kind::Infinite, _) | (_, Kind::Infinite) => infinity(format, negative),
        (Kind::Zero, _) | (_, Kind::Zero) => zero(format, negative),
        (Kind::Finite { exp, sig }, Kind::Finite { exp: exp_y, sig: sig_y }) => {
            round_pack(format, negative, exp + exp_y, u128::from(sig) * u128::from(sig_y), false, round)
        }
    })
}

pub fn soft_fma(format: Format, a: u64, b: u64, c: u64, round: Round) -> Option<u64> {
    let (x, y, z) = (unpack(format, a), unpack(format, b), unpack(format, c));
    let negative = x.negative != y.negative;
    Some(match (x.kind, y.kind, z.kind) {
        (Kind::Nan, ..) | (_, Kind::Nan, _) | (.., Kind::Nan) => return None,
        (Kind::Infinite, Kind::Zero, _) | (Kind::Zero, Kind::Infinite, _) => return None,
        (Kind::Infinite, ..) | (_, Kind::Infinite, _) => match z.kind {
            Kind::Infinite if z.negative != negative => return None,
            _ => infinity(format, negative),
        },
        (.., Kind::Infinite) => c,
        (Kind::Zero, _, Kind::Zero) | (_, Kind::Zero, Kind::Zero) => {
            zero(format, if z.negative == negative { negative } else { round == Round::Down })
        }
        (Kind::Zero, ..) | (_, Kind::Zero, _) => c,
        (Kind::Finite { exp, sig }, Kind::Finite { exp: exp_y, sig: sig_y }, z_kind) => {
            let product = u128::from(sig) * u128::from(sig_y);
            match z_kind {
                Kind::Finite { exp: exp_z, sig: sig_z } => {
                    let x = Term { negative, exp: exp + exp_y, sig: product };
                    let z = Term { negative: z.negative, exp: exp_z, sig: sig_z.into() };
                    add_terms(format, x, z, round)
                }
                _ => round_pack(format, negative, exp + exp_y, product, false, round),
            }
        }
    })
}

pub fn soft_div(format: Format, a: u64, b: u64, round: Round) -> Option<u64> {
    let (x, y) = (unpack(format, a), unpack(format, b));
    let negative = x.negative != y.negative;
    Some(match (x.kind, y.kind) {
        (Kind::Nan, _) | (_, Kind::Nan) => return None,
        (Kind::Infinite, Kind::Infinite) | (Kind::Zero, Kind::Zero) => return None,
        (Kind::Infinite, _) | (_, Kind::Zero) => infinity(format, negative),
        (Kind::Zero, _) | (_, Kind::Infinite) => zero(format, negative),
        (Kind::Finite { exp, sig }, Kind::Finite { exp: exp_y, sig: sig_y }) => {
            let dividend = u128::from(sig) << 64;
            let quotient = dividend / u128::from(sig_y);
            let sticky = dividend % u128::from(sig_y) != 0;
            round_pack(format, negative, exp - exp_y - 64, quotient, sticky, round)
        }
    })
}

pub fn soft_sqrt(format: Format, a: u64, round: Round) -> Option<u64> {
    let x = unpack(format, a);
    Some(match x.kind {
        Kind::Nan => return None,
        Kind::Zero => a,
        _ if x.negative => return None,
        Kind::Infinite => a,
        Kind::Finite { exp, sig } => {
            // The exponent must be even to be halved.
            let odd = exp & 1;
            let wide = u128::from(sig) << (62 + odd);
            let root = wide.isqrt();
            round_pack(format, false, (exp - 62 - odd) / 2, root, root * root != wide, round)
        }
    })
}

/// A number of one format in another; a NaN is the target's.
pub fn convert(bits: u64, from: Format, to: Format, round: Round) -> u64 {
    let x = unpack(from, bits);
    match x.kind {
        Kind::Nan => to.nan(),
        Kind::Zero => zero(to, x.negative),
        Kind::Infinite if to.specials == Specials::Ieee => infinity(to, x.negative),
        Kind::Infinite => zero(to, x.negative) | to.max_finite(),
        Kind::Finite { exp, sig } => round_pack(to, x.negative, exp, sig.into(), false, round),
    }
}

macro_rules! binary {
    ($name:ident($a:ident $operator:tt $b:ident), $soft:ident, $first:ident before $second:ident) => {
        #[inline(always)]
        pub fn $name($a: u64, $b: u64, round: Round) -> u64 {
            if round == Round::Nearest {
                nan_f64(f64::from_bits($a) $operator f64::from_bits($b), $first, $second, $second)
            } else {
                $soft(Format::F64, $a, $b, round).unwrap_or_else(|| invalid_f64($first, $second, $second))
            }
        }
    };
}

// Of two NaNs the second passes; a quotient, which is made of several instructions, gives the first.
binary!(add_f64(a + b), soft_add, b before a);
binary!(sub_f64(a - b), soft_sub, b before a);
binary!(mul_f64(a * b), soft_mul, b before a);
binary!(div_f64(a / b), soft_div, a before b);

fn invalid_f64(a: u64, b: u64, c: u64) -> u64 {
    nan_f64(f64::NAN, a, b, c)
}

#[inline(always)]
pub fn fma_f64(a: u64, b: u64, c: u64, round: Round) -> u64 {
    if round == Round::Nearest {
        nan_f64(f64::from_bits(a).mul_add(f64::from_bits(b), f64::from_bits(c)), b, a, c)
    } else {
        soft_fma(Format::F64, a, b, c, round).unwrap_or_else(|| invalid_f64(b, a, c))
    }
}

#[inline(always)]
pub fn sqrt_f64(a: u64, round: Round) -> u64 {
    if round == Round::Nearest {
        nan_f64(f64::from_bits(a).sqrt(), a, a, a)
    } else {
        soft_sqrt(Format::F64, a, round).unwrap_or_else(|| invalid_f64(a, a, a))
    }
}

#[inline(always)]
pub fn rcp_f64(a: u64, round: Round) -> u64 {
    div_f64(1f64.to_bits(), a, round)
}
