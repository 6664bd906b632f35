//! Rounding by its definition: search the two neighbours of an exact number, then choose.

use std::cmp::Ordering;

use super::super::{Format, Round, Specials};

/// `limbs * 2^exp`, not negative, least limb first.
#[derive(Clone, Debug)]
pub struct Exact {
    limbs: Vec<u32>,
    exp: i32,
}

impl Exact {
    pub fn new(value: u64, exp: i32) -> Exact {
        Exact { limbs: vec![value as u32, (value >> 32) as u32], exp }
    }

    /// The magnitude of these bits. The pattern after the largest number reads as the next power of two.
    pub fn decode(format: Format, bits: u64) -> Exact {
        let magnitude = bits % format.sign_bit();
        let fraction = magnitude % (1 << format.man_bits);
        let field = (magnitude >> format.man_bits) as i32;
        let least = 1 - ((1 << (format.exp_bits - 1)) - 1) - format.man_bits as i32;
        match field {
            0 => Exact::new(fraction, least),
            _ => Exact::new(fraction + (1 << format.man_bits), least + field - 1),
        }
    }

    pub fn is_zero(&self) -> bool {
        self.limbs.iter().all(|&limb| limb == 0)
    }

    /// The limbs at a lower exponent.
    fn at(&self, exp: i32) -> Vec<u32> {
        let shift = (self.exp - exp) as usize;
        let mut limbs = vec![0; shift / 32];
        let mut carry = 0u64;
        for &limb in &self.limbs {
            carry |= u64::from(limb) << (shift % 32);
            limbs.push(carry as u32);
            carry >>= 32;
        }
        limbs.push(carry as u32);
        limbs
    }

    fn aligned(&self, other: &Exact) -> (Vec<u32>, Vec<u32>, i32) {
        let exp = self.exp.min(other.exp);
        let (mut a, mut b) = (self.at(exp), other.at(exp));
        let length = a.len().max(b.len()) + 1;
        a.resize(length, 0);
        b.resize(length, 0);
        (a, b, exp)
    }

    pub fn compare(&self, other: &Exact) -> Ordering {
        let (a, b, _) = self.aligned(other);
        a.iter().rev().cmp(b.iter().rev())
    }

    pub fn add(&self, other: &Exact) -> Exact {
        let (a, b, exp) = self.aligned(other);
        let mut carry = 0u64;
        let limbs = a.iter().zip(&b).map(|(&x, &y)| {
            carry += u64::from(x) + u64::from(y);
            let limb = carry as u32;
            carry >>= 32;
            limb
        });
        Exact { limbs: limbs.collect(), exp }
    }

    /// Of a smaller number.
    pub fn sub(&self, other: &Exact) -> Exact {
        let (a, b, exp) = self.aligned(other);
        let mut borrow = 0i64;
        let limbs = a.iter().zip(&b).map(|(&x, &y)| {
            let difference = i64::from(x) - i64::from(y) + borrow;
            borrow = difference >> 32;
            difference as u32
        });
        Exact { limbs: limbs.collect(), exp }
    }

    pub fn mul(&self, other: &Exact) -> Exact {
        let mut limbs = vec![0u32; self.limbs.len() + other.limbs.len() + 1];
        for (i, &x) in self.limbs.iter().enumerate() {
            let mut carry = 0u64;
            for (j, &y) in other.limbs.iter().chain(&[0]).enumerate() {
                carry += u64::from(limbs[i + j]) + u64::from(x) * u64::from(y);
                limbs[i + j] = carry as u32;
                carry >>= 32;
            }
        }
        Exact { limbs, exp: self.exp + other.exp }
    }
}

/// The bits of a number that is not zero and of which is known only how candidates compare with its magnitude.
pub fn rounded(format: Format, negative: bool, round: Round, compare: impl Fn(&Exact) -> Ordering) -> u64 {
    let (mut low, mut high) = (0, format.max_finite() + 1);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if compare(&Exact::decode(format, middle)) == Ordering::Greater { high = middle } else { low = middle }
    }
    // Where the largest number is the last pattern, the next one has to be made up.
    let (below, above) = (Exact::decode(format, low), next(format, low));
    let mut half = below.add(&above);
    half.exp -= 1;
    let chosen = match round {
        _ if compare(&below) == Ordering::Equal => low,
        Round::Zero => low,
        Round::Down => low + u64::from(negative),
        Round::Up => low + u64::from(!negative),
        Round::Nearest | Round::Away => match compare(&half) {
            Ordering::Less => low + 1,
            Ordering::Greater => low,
            Ordering::Equal if round == Round::Away => low + 1,
            Ordering::Equal => low + (low & 1),
        },
    };
    let sign = if negative { format.sign_bit() } else { 0 };
    let finite = if format.specials == Specials::Ieee { chosen } else { chosen.min(format.max_finite()) };
    sign | finite
}

fn next(format: Format, low: u64) -> Exact {
    if low + 1 == format.sign_bit() {
        Exact::new(1, 1 << (format.exp_bits - 1)).add(&Exact::new(1, 1))
    } else {
        Exact::decode(format, low + 1)
    }
}
