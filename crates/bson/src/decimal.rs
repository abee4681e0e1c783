//! Decimal128: its parts, exact comparison, and conversions.

mod arithmetic;
mod text;
mod trigonometry;
mod turns;

use std::cmp::Ordering;

pub use arithmetic::Rounding;
pub use text::ParseDecimalError;

use crate::value::Decimal128;

/// The largest coefficient: 34 nines.
pub(crate) const MAX_COEFFICIENT: u128 = 9_999_999_999_999_999_999_999_999_999_999_999;
/// Smallest exponent of the coefficient's last digit.
pub(crate) const MIN_EXPONENT: i32 = -6176;
/// Largest exponent of the coefficient's last digit.
pub(crate) const MAX_EXPONENT: i32 = 6111;
/// Digits of a coefficient.
pub(crate) const PRECISION: i32 = 34;

/// What a decimal is, taken apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// `(-1)^negative * coefficient * 10^exponent`; zeros have signs and exponents too.
    Finite {
        /// Sign.
        negative: bool,
        /// At most 34 digits.
        coefficient: u128,
        /// Of the last digit of the coefficient.
        exponent: i32,
    },
    /// Infinity with its sign.
    Infinite {
        /// Sign.
        negative: bool,
    },
    /// Not a number.
    Nan,
}

impl Decimal128 {
    /// `0`.
    pub const ZERO: Decimal128 = Decimal128::from_parts(false, 0, 0);
    /// `NaN`.
    pub const NAN: Decimal128 = Decimal128((0x7C_u128 << 120).to_le_bytes());
    /// `Infinity`.
    pub const INFINITY: Decimal128 = Decimal128((0x78_u128 << 120).to_le_bytes());
    /// `-Infinity`.
    pub const NEG_INFINITY: Decimal128 = Decimal128((0xF8_u128 << 120).to_le_bytes());

    /// The decimal of these parts, which must be in range.
    pub const fn from_parts(negative: bool, coefficient: u128, exponent: i32) -> Decimal128 {
        debug_assert!(coefficient <= MAX_COEFFICIENT);
        debug_assert!(exponent >= MIN_EXPONENT && exponent <= MAX_EXPONENT);
        let biased = (exponent - MIN_EXPONENT) as u128;
        Decimal128((((negative as u128) << 127) | (biased << 113) | coefficient).to_le_bytes())
    }

    /// The decimal of these parts, if they are in range.
    pub fn checked(negative: bool, coefficient: u128, exponent: i32) -> Option<Decimal128> {
        let fits = coefficient <= MAX_COEFFICIENT && (MIN_EXPONENT..=MAX_EXPONENT).contains(&exponent);
        fits.then(|| Decimal128::from_parts(negative, coefficient, exponent))
    }

    /// Takes the decimal apart. Coefficients beyond 34 digits count as zero, as IEEE 754 has it.
    pub fn class(self) -> Class {
        let bits = u128::from_le_bytes(self.0);
        let negative = bits >> 127 == 1;
        match (bits >> 122) & 0x1F {
            0x1E => Class::Infinite { negative },
            0x1F => Class::Nan,
            0x18.. => {
                let exponent = ((bits >> 111) & 0x3FFF) as i32 + MIN_EXPONENT;
                Class::Finite { negative, coefficient: 0, exponent }
            }
            _ => {
                let exponent = ((bits >> 113) & 0x3FFF) as i32 + MIN_EXPONENT;
                let coefficient = bits & ((1 << 113) - 1);
                let coefficient = if coefficient > MAX_COEFFICIENT { 0 } else { coefficient };
                Class::Finite { negative, coefficient, exponent }
            }
        }
    }

    /// Whether it is a zero of any sign and exponent.
    pub fn is_zero(self) -> bool {
        matches!(self.class(), Class::Finite { coefficient: 0, .. })
    }

    /// Whether it is NaN.
    pub fn is_nan(self) -> bool {
        self.class() == Class::Nan
    }

    /// Whether it is an infinity.
    pub fn is_infinite(self) -> bool {
        matches!(self.class(), Class::Infinite { .. })
    }

    /// Whether it is neither NaN nor an infinity.
    pub fn is_finite(self) -> bool {
        matches!(self.class(), Class::Finite { .. })
    }

    /// Whether its sign bit is set (also that of -0 and NaN).
    pub fn is_negative(self) -> bool {
        self.0[15] & 0x80 != 0
    }

    /// The same number with the opposite sign.
    #[must_use]
    pub fn negated(mut self) -> Decimal128 {
        self.0[15] ^= 0x80;
        self
    }

    /// The same number without sign.
    #[must_use]
    pub fn abs(mut self) -> Decimal128 {
        self.0[15] &= 0x7F;
        self
    }

    /// Whether 34 digits are enough to write it, up to its point, without an exponent.
    pub fn fits_without_exponent(self) -> bool {
        match self.class() {
            Class::Finite { coefficient: 0, .. } => true,
            Class::Finite { coefficient, exponent, .. } => coefficient.ilog10() as i32 + exponent < PRECISION,
            _ => false,
        }
    }

    /// The same value with the fewest digits: `1.00` becomes `1`, `100` becomes `1E+2`, zeros `0`.
    #[must_use]
    pub fn stripped(self) -> Decimal128 {
        match self.class() {
            Class::Finite { coefficient: 0, .. } => Decimal128::ZERO,
            Class::Finite { negative, mut coefficient, mut exponent } => {
                while coefficient % 10 == 0 && exponent < MAX_EXPONENT {
                    coefficient /= 10;
                    exponent += 1;
                }
                Decimal128::from_parts(negative, coefficient, exponent)
            }
            _ => self,
        }
    }

    /// The decimal of an integer.
    pub fn from_i64(n: i64) -> Decimal128 {
        Decimal128::from_parts(n < 0, u128::from(n.unsigned_abs()), 0)
    }

    /// The decimal of an integer.
    pub fn from_i32(n: i32) -> Decimal128 {
        Decimal128::from_i64(i64::from(n))
    }

    /// The decimal of a double as MongoDB converts it: exactly 15 significant digits, so that 0.1
    /// becomes `0.100000000000000`; zeros, infinities and NaN as themselves.
    pub fn from_f64(n: f64) -> Decimal128 {
        Self::from_f64_digits(n, 15)
    }

    /// The decimal nearest to a double, with up to 34 significant digits: for sums that are
    /// computed in double-double and rounded once at the end.
    pub fn from_f64_exact(n: f64) -> Decimal128 {
        // An exactly represented value takes the exponent nearest to zero.
        let full = Self::from_f64_digits(n, PRECISION as usize);
        match full.class() {
            Class::Finite { negative, mut coefficient, mut exponent } => {
                while exponent < 0 && coefficient % 10 == 0 && coefficient != 0 {
                    coefficient /= 10;
                    exponent += 1;
                }
                while exponent > 0 && coefficient <= MAX_COEFFICIENT / 10 {
                    coefficient *= 10;
                    exponent -= 1;
                }
                Decimal128::from_parts(negative, coefficient, exponent)
            }
            _ => full,
        }
    }

    fn from_f64_digits(n: f64, digits: usize) -> Decimal128 {
        if n.is_nan() {
            return Decimal128::NAN;
        }
        if n.is_infinite() {
            return if n < 0.0 { Decimal128::NEG_INFINITY } else { Decimal128::INFINITY };
        }
        let negative = n.is_sign_negative();
        if n == 0.0 {
            return Decimal128::from_parts(negative, 0, 0);
        }
        // Rust prints doubles exactly and rounds half to even, as the conversion needs.
        let text = format!("{:.*e}", digits - 1, n.abs());
        let (mantissa, power) = text.split_once('e').unwrap_or((&text, "0"));
        let coefficient =
            mantissa.bytes().filter(u8::is_ascii_digit).fold(0, |n, digit| n * 10 + u128::from(digit - b'0'));
        let exponent = power.parse::<i32>().unwrap_or(0) - (digits as i32 - 1);
        Decimal128::from_parts(negative, coefficient, exponent)
    }

    /// The integer that it stands for exactly, if it fits.
    pub fn to_i64_exact(self) -> Option<i64> {
        let Class::Finite { negative, coefficient, exponent } = self.class() else { return None };
        if coefficient == 0 {
            return Some(0);
        }
        let magnitude = if exponent >= 0 {
            coefficient.checked_mul(10u128.checked_pow(exponent as u32)?)?
        } else {
            // A coefficient has at most 34 digits, so more places than that cannot all be zeros.
            let unit = 10u128.checked_pow(exponent.unsigned_abs())?;
            (coefficient % unit == 0).then_some(coefficient / unit)?
        };
        let signed = i128::try_from(magnitude).ok()?;
        i64::try_from(if negative { -signed } else { signed }).ok()
    }

    /// The nearest double.
    pub fn to_f64(self) -> f64 {
        let (negative, coefficient, exponent) = match self.class() {
            Class::Finite { negative, coefficient, exponent } => (negative, coefficient, exponent),
            Class::Infinite { negative } => return if negative { f64::NEG_INFINITY } else { f64::INFINITY },
            Class::Nan => return f64::NAN,
        };
        let magnitude = if coefficient == 0 {
            0.0
        } else if coefficient < 1 << 53 && exponent.abs() <= 22 {
            // Both operands are exact, so one rounding happens: the right one.
            let unit = POWERS_F64[exponent.unsigned_abs() as usize];
            if exponent < 0 { coefficient as f64 / unit } else { coefficient as f64 * unit }
        } else {
            format!("{coefficient}e{exponent}").parse().unwrap_or(0.0)
        };
        if negative { -magnitude } else { magnitude }
    }

    /// Order by value: NaN first and equal to itself, -0 equal to 0, trailing zeros ignored.
    pub fn compare(self, other: Decimal128) -> Ordering {
        match (self.class(), other.class()) {
            (Class::Finite { .. }, Class::Finite { .. }) => {}
            (a, b) => return rank(a).cmp(&rank(b)),
        }
        let (left, right) = (self.signum(), other.signum());
        if left != right || left == 0 {
            return left.cmp(&right);
        }
        let (Some(a), Some(b)) = (self.normalized(), other.normalized()) else { return Ordering::Equal };
        let magnitudes = (a.exponent, a.coefficient).cmp(&(b.exponent, b.coefficient));
        if left < 0 { magnitudes.reverse() } else { magnitudes }
    }

    /// Order against a double, by exact value.
    pub fn compare_f64(self, other: f64) -> Ordering {
        if other.is_nan() || other.is_infinite() || !self.is_finite() {
            return rank(self.class()).cmp(&rank(Decimal128::from_f64(other).class()));
        }
        let near = self.to_f64();
        // Rounding keeps order, so only the double nearest to the decimal needs a closer look.
        match near.partial_cmp(&other) {
            Some(Ordering::Equal) | None => {}
            Some(unequal) => return unequal,
        }
        let sign = self.signum();
        if other == 0.0 {
            return sign.cmp(&0);
        }
        let Class::Finite { coefficient, exponent, .. } = self.class() else { return Ordering::Equal };
        let magnitudes = compare_magnitudes(coefficient, exponent, other.abs());
        if sign < 0 { magnitudes.reverse() } else { magnitudes }
    }

    /// -1, 0 or 1 for finite numbers.
    pub(crate) fn signum(self) -> i32 {
        match self.class() {
            Class::Finite { coefficient: 0, .. } => 0,
            _ if self.is_negative() => -1,
            _ => 1,
        }
    }

    /// A finite nonzero number's magnitude with a coefficient of exactly 34 digits.
    pub(crate) fn normalized(self) -> Option<Normalized> {
        let Class::Finite { coefficient, exponent, .. } = self.class() else { return None };
        let missing = PRECISION - coefficient.checked_ilog10()? as i32 - 1;
        Some(Normalized {
            coefficient: coefficient * 10u128.pow(missing as u32),
            exponent: exponent - missing,
        })
    }
}

/// `coefficient * 10^exponent` with a coefficient of 34 digits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Normalized {
    pub coefficient: u128,
    pub exponent: i32,
}

const POWERS_F64: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18,
    1e19, 1e20, 1e21, 1e22,
];

/// Places of what is not finite around what is.
fn rank(class: Class) -> u8 {
    match class {
        Class::Nan => 0,
        Class::Infinite { negative: true } => 1,
        Class::Finite { .. } => 2,
        Class::Infinite { negative: false } => 3,
    }
}

/// A double's integer mantissa and power of two; for finite nonnegative ones.
pub(crate) fn double_parts(n: f64) -> (u64, i32) {
    let bits = n.to_bits();
    let fraction = bits & ((1 << 52) - 1);
    match (bits >> 52) & 0x7FF {
        0 => (fraction, -1074),
        biased => (fraction | 1 << 52, biased as i32 - 1075),
    }
}

/// Compares `coefficient * 10^exponent` with a positive double of nearly the same size.
fn compare_magnitudes(coefficient: u128, exponent: i32, double: f64) -> Ordering {
    let (mantissa, power) = double_parts(double);
    // c * 10^q against m * 2^e: fives and twos are moved to the side where they multiply.
    let mut left = Wide::new(coefficient);
    let mut right = Wide::new(u128::from(mantissa));
    let fives = exponent.unsigned_abs();
    if exponent > 0 {
        left.times_five(fives)
    } else {
        right.times_five(fives)
    };
    let twos = exponent - power;
    if twos > 0 {
        left.shift_left(twos as u32)
    } else {
        right.shift_left(twos.unsigned_abs())
    };
    left.0.iter().rev().cmp(right.0.iter().rev())
}

/// An unsigned integer wide enough for [`compare_magnitudes`]: a double and a decimal that round
/// to each other need less than 1100 bits.
struct Wide([u64; 24]);

impl Wide {
    fn new(n: u128) -> Wide {
        let mut limbs = [0; 24];
        limbs[0] = n as u64;
        limbs[1] = (n >> 64) as u64;
        Wide(limbs)
    }

    fn times_five(&mut self, mut power: u32) {
        while power > 0 {
            // 5^27 is the largest power of five in 64 bits.
            let step = power.min(27);
            let factor = u128::from(5u64.pow(step));
            let mut carry = 0u128;
            for limb in &mut self.0 {
                let product = u128::from(*limb) * factor + carry;
                *limb = product as u64;
                carry = product >> 64;
            }
            power -= step;
        }
    }

    fn shift_left(&mut self, by: u32) {
        let (limbs, bits) = ((by / 64) as usize, by % 64);
        for at in (0..self.0.len()).rev() {
            let part = |back: usize| at.checked_sub(limbs + back).map_or(0, |from| self.0[from]);
            let carried = if bits == 0 { 0 } else { part(1) >> (64 - bits) };
            self.0[at] = (part(0) << bits) | carried;
        }
    }
}

#[cfg(test)]
mod tests;
