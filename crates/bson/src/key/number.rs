//! Numbers in keys: one form for all four types.
//!
//! The tag gives sign and size; what follows it is inverted for negative numbers.
//!
//! - From 1 to below 2^63: the integer part doubled, in as few bytes as it takes; its lowest bit says
//!   that there is a fraction. The fraction fills up to 8 bytes in all: as many binary places as fit
//!   above a lowest bit that says that the number goes on.
//! - Between 0 and 1, and from 2^63: the bits of the double next to it towards zero, doubled; the
//!   lowest bit says that the number goes on.
//! - Going on, which only decimals do: the exponent of the first digit and all digits, two by two.
//!
//! So every double is exact in at most 9 bytes, and a decimal is compared with doubles by its first
//! bytes and with other decimals by its digits.

use super::bits::{BitReader, DECIMAL, DOUBLE, INT32, INT64, TypeBits};
use super::decode::Reader;
use super::{END, tag};
use crate::decimal::{Class, MIN_EXPONENT, PRECISION, double_parts};
use crate::value::{Decimal128, Value};

/// 2^63.
const BIG: f64 = 9_223_372_036_854_775_808.0;

pub(super) fn put_integer(n: i64, out: &mut Vec<u8>) {
    match n.unsigned_abs() {
        0 => out.push(tag::ZERO),
        magnitude if magnitude >> 63 == 1 => put_large(magnitude as f64, None, true, out),
        magnitude => {
            put_whole(magnitude << 1, n < 0, out);
        }
    }
}

pub(super) fn put_double(n: f64, out: &mut Vec<u8>, types: &mut TypeBits) {
    types.push(DOUBLE, 2);
    if n.is_nan() {
        out.push(tag::NAN);
        let odd = n.to_bits() != f64::NAN.to_bits();
        types.push(u64::from(odd), 1);
        if odd {
            types.push(n.to_bits(), 64);
        }
        return;
    }
    let (magnitude, negative) = (n.abs(), n < 0.0);
    if n == 0.0 {
        types.push(u64::from(n.is_sign_negative()), 1);
        out.push(tag::ZERO);
    } else if n.is_infinite() {
        out.push(if negative { tag::MINUS_INFINITY } else { tag::INFINITY });
    } else if !(1.0..BIG).contains(&magnitude) {
        put_large(magnitude, None, negative, out);
    } else {
        let whole = magnitude as u64;
        let fraction = magnitude - whole as f64;
        if fraction == 0.0 {
            put_whole(whole << 1, negative, out);
            return;
        }
        let size = put_whole(whole << 1 | 1, negative, out);
        // A double with a fraction has room for all its binary places here, so this is exact.
        let places = (fraction * (1u64 << fraction_bits(size)) as f64) as u64;
        put_bytes(places << 1, 8 - size, negative, out);
    }
}

pub(super) fn put_decimal(n: Decimal128, out: &mut Vec<u8>, types: &mut TypeBits) {
    types.push(DECIMAL, 2);
    let class = n.class();
    let usual = match class {
        Class::Nan => Decimal128::NAN,
        Class::Infinite { negative: true } => Decimal128::NEG_INFINITY,
        Class::Infinite { negative: false } => Decimal128::INFINITY,
        Class::Finite { negative, coefficient, exponent } => {
            Decimal128::from_parts(negative, coefficient, exponent)
        }
    };
    types.push(u64::from(usual != n), 1);
    if usual != n {
        let bits = u128::from_le_bytes(n.0);
        types.push(bits as u64, 64);
        types.push((bits >> 64) as u64, 64);
    }
    match class {
        Class::Nan => out.push(tag::NAN),
        Class::Infinite { negative: true } => out.push(tag::MINUS_INFINITY),
        Class::Infinite { negative: false } => out.push(tag::INFINITY),
        Class::Finite { negative, coefficient: 0, exponent } => {
            if usual == n {
                types.push(u64::from(negative), 1);
                // Counted from zero upwards, so that the usual zeros have few bits.
                types.push((exponent - MIN_EXPONENT) as u64 ^ ZERO_EXPONENT, 14);
            }
            out.push(tag::ZERO);
        }
        Class::Finite { negative, coefficient, exponent } => {
            let zeros = trailing_zeros(coefficient);
            types.push(zeros as u64, 6);
            put_finite_decimal(n, negative, coefficient / 10u128.pow(zeros), exponent + zeros as i32, out);
        }
    }
}

/// The biased exponent of a plain `0`.
const ZERO_EXPONENT: u64 = -MIN_EXPONENT as u64;

fn trailing_zeros(mut coefficient: u128) -> u32 {
    let mut zeros = 0;
    while coefficient.is_multiple_of(10) {
        coefficient /= 10;
        zeros += 1;
    }
    zeros
}

/// A nonzero decimal whose coefficient does not end in a zero.
fn put_finite_decimal(n: Decimal128, negative: bool, coefficient: u128, exponent: i32, out: &mut Vec<u8>) {
    let unit = exponent
        .checked_neg()
        .and_then(|places| u32::try_from(places).ok())
        .map_or(Some(1), |p| 10u128.checked_pow(p));
    let whole = match unit {
        Some(unit) if exponent < 0 => Some(coefficient / unit),
        Some(_) => 10u128.checked_pow(exponent as u32).and_then(|power| coefficient.checked_mul(power)),
        None => Some(0),
    };
    match (whole, unit) {
        (Some(whole), Some(unit)) if (1..1 << 63).contains(&whole) => {
            let rest = if exponent < 0 { coefficient % unit } else { 0 };
            if rest == 0 {
                put_whole((whole as u64) << 1, negative, out);
                return;
            }
            let size = put_whole((whole as u64) << 1 | 1, negative, out);
            let (places, goes_on) = binary_places(rest, unit, fraction_bits(size));
            put_bytes(places << 1 | u64::from(goes_on), 8 - size, negative, out);
            if goes_on || size == 8 {
                put_digits(coefficient, exponent, negative, out);
            }
        }
        _ => {
            let magnitude = n.abs();
            let mut double = magnitude.to_f64().min(f64::MAX);
            if magnitude.compare_f64(double).is_lt() {
                double = double.next_down();
            }
            let exact = magnitude.compare_f64(double).is_eq();
            put_large(double, (!exact).then_some((coefficient, exponent)), negative, out);
        }
    }
}

/// How many binary places follow an integer part of so many bytes.
fn fraction_bits(size: usize) -> u32 {
    (64 - 8 * size as u32).saturating_sub(1)
}

/// The first `bits` binary places of `rest / unit`, and whether anything is left after them.
fn binary_places(mut rest: u128, unit: u128, mut bits: u32) -> (u64, bool) {
    let mut places = 0;
    while bits > 0 {
        // `unit` is at most 10^33, which leaves 17 bits of room.
        let step = bits.min(17);
        rest <<= step;
        places = places << step | (rest / unit) as u64;
        rest %= unit;
        bits -= step;
    }
    (places, rest != 0)
}

/// Writes the integer part in as few bytes as it takes, with its tag, and returns their number.
fn put_whole(doubled: u64, negative: bool, out: &mut Vec<u8>) -> usize {
    let size = 8 - doubled.leading_zeros() as usize / 8;
    out.push(if negative { tag::MINUS_SMALL - size as u8 } else { tag::SMALL + size as u8 });
    put_bytes(doubled, size, negative, out);
    size
}

/// The last `size` bytes of `n`, big-endian, inverted for a negative number.
fn put_bytes(n: u64, size: usize, negative: bool, out: &mut Vec<u8>) {
    let n = if negative { !n } else { n };
    out.extend_from_slice(&n.to_be_bytes()[8 - size..]);
}

/// A magnitude below 1 or from 2^63, by the double next to it towards zero and, if that is not all,
/// its digits.
fn put_large(double: f64, goes_on: Option<(u128, i32)>, negative: bool, out: &mut Vec<u8>) {
    out.push(match (negative, double < 1.0) {
        (true, true) => tag::MINUS_SMALL,
        (true, false) => tag::MINUS_BIG,
        (false, true) => tag::SMALL,
        (false, false) => tag::BIG,
    });
    put_bytes(double.to_bits() << 1 | u64::from(goes_on.is_some()), 8, negative, out);
    if let Some((coefficient, exponent)) = goes_on {
        put_digits(coefficient, exponent, negative, out);
    }
}

/// The exponent of the first digit in two bytes, then the digits in pairs, closed by [`END`].
fn put_digits(coefficient: u128, exponent: i32, negative: bool, out: &mut Vec<u8>) {
    let digits = coefficient.ilog10() as i32 + 1;
    let first = (exponent + digits - 1 - MIN_EXPONENT) as u64;
    put_bytes(first, 2, negative, out);
    let mut rest = coefficient * 10u128.pow((PRECISION - digits) as u32);
    let mut unit = 10u128.pow(PRECISION as u32 - 2);
    let flip = if negative { 0xFF } else { 0 };
    while rest > 0 {
        out.push(((rest / unit) as u8 + 1) ^ flip);
        rest %= unit;
        unit = (unit / 100).max(1);
    }
    out.push(END ^ flip);
}

/// A number without its type.
struct Parts {
    negative: bool,
    kind: Kind,
}

enum Kind {
    Nan,
    Infinite,
    Zero,
    /// `whole + places / 2^bits`, exactly.
    Plain {
        whole: u64,
        places: u64,
        bits: u32,
    },
    /// This double's value, exactly.
    Large(f64),
    /// `coefficient * 10^exponent`.
    Digits(u128, i32),
}

/// Reads the number after its tag; `None` for bytes that no number has.
pub(super) fn read(tag: u8, bytes: &mut Reader<'_>, types: &mut BitReader<'_>) -> Option<Value<'static>> {
    let parts = read_parts(tag, bytes)?;
    match types.take(2) {
        INT32 => i32::try_from(parts.integer()?).ok().map(Value::Int32),
        INT64 => parts.integer().map(Value::Int64),
        DOUBLE => parts.double(types).map(Value::Double),
        _ => parts.decimal(types).map(Value::Decimal128),
    }
}

/// Steps over the number after its tag.
pub(super) fn skip(tag: u8, bytes: &mut Reader<'_>) -> Option<()> {
    read_parts(tag, bytes).map(|_| ())
}

fn read_parts(tag: u8, bytes: &mut Reader<'_>) -> Option<Parts> {
    let negative = tag < tag::ZERO;
    let kind = match tag {
        tag::NAN => Kind::Nan,
        tag::MINUS_INFINITY | tag::INFINITY => Kind::Infinite,
        tag::ZERO => Kind::Zero,
        tag::MINUS_BIG | tag::MINUS_SMALL | tag::SMALL | tag::BIG => {
            let bits = read_bytes(8, negative, bytes)?;
            if bits & 1 == 1 { read_digits(negative, bytes)? } else { Kind::Large(f64::from_bits(bits >> 1)) }
        }
        _ => {
            let size = usize::from(if negative { tag::MINUS_SMALL - tag } else { tag - tag::SMALL });
            let doubled = read_bytes(size, negative, bytes)?;
            let (whole, bits) = (doubled >> 1, fraction_bits(size));
            if doubled & 1 == 0 {
                Kind::Plain { whole, places: 0, bits: 0 }
            } else {
                let fraction = read_bytes(8 - size, negative, bytes)?;
                if size == 8 || fraction & 1 == 1 {
                    read_digits(negative, bytes)?
                } else {
                    Kind::Plain { whole, places: fraction >> 1, bits }
                }
            }
        }
    };
    Some(Parts { negative, kind })
}

fn read_bytes(size: usize, negative: bool, bytes: &mut Reader<'_>) -> Option<u64> {
    let mut n = 0;
    for _ in 0..size {
        n = n << 8 | u64::from(if negative { !bytes.byte()? } else { bytes.byte()? });
    }
    Some(n)
}

fn read_digits(negative: bool, bytes: &mut Reader<'_>) -> Option<Kind> {
    let first = read_bytes(2, negative, bytes)? as i32 + MIN_EXPONENT;
    let (mut coefficient, mut digits) = (0u128, 0);
    loop {
        match read_bytes(1, negative, bytes)? {
            0 => break,
            pair if pair <= 100 && digits < PRECISION => {
                coefficient = coefficient * 100 + u128::from(pair - 1);
                digits += 2;
            }
            _ => return None,
        }
    }
    let exponent = first - (digits - 1);
    if coefficient == 0 {
        return None;
    }
    let zeros = trailing_zeros(coefficient);
    Some(Kind::Digits(coefficient / 10u128.pow(zeros), exponent + zeros as i32))
}

impl Parts {
    fn integer(&self) -> Option<i64> {
        match self.kind {
            Kind::Zero => Some(0),
            Kind::Plain { whole, places: 0, .. } => {
                let whole = i64::try_from(whole).ok()?;
                Some(if self.negative { -whole } else { whole })
            }
            Kind::Large(BIG) if self.negative => Some(i64::MIN),
            _ => None,
        }
    }

    fn double(&self, types: &mut BitReader<'_>) -> Option<f64> {
        let magnitude = match self.kind {
            Kind::Nan if types.take(1) == 1 => return Some(f64::from_bits(types.take(64))),
            Kind::Nan => return Some(f64::NAN),
            Kind::Zero => return Some(if types.take(1) == 1 { -0.0 } else { 0.0 }),
            Kind::Infinite => f64::INFINITY,
            Kind::Plain { whole, places, bits } => whole as f64 + places as f64 / (1u64 << bits) as f64,
            Kind::Large(double) => double,
            Kind::Digits(..) => return None,
        };
        Some(if self.negative { -magnitude } else { magnitude })
    }

    fn decimal(&self, types: &mut BitReader<'_>) -> Option<Decimal128> {
        if types.take(1) == 1 {
            let bits = u128::from(types.take(64)) | u128::from(types.take(64)) << 64;
            return Some(Decimal128(bits.to_le_bytes()));
        }
        let (coefficient, exponent) = match self.kind {
            Kind::Nan => return Some(Decimal128::NAN),
            Kind::Infinite if self.negative => return Some(Decimal128::NEG_INFINITY),
            Kind::Infinite => return Some(Decimal128::INFINITY),
            Kind::Zero => {
                let negative = types.take(1) == 1;
                let exponent = (types.take(14) ^ ZERO_EXPONENT) as i32 + MIN_EXPONENT;
                return Decimal128::checked(negative, 0, exponent);
            }
            Kind::Plain { whole, places, bits } => {
                from_binary(u128::from(whole) << bits | u128::from(places), -(bits as i32))?
            }
            Kind::Large(double) => {
                let (mantissa, power) = double_parts(double);
                from_binary(u128::from(mantissa), power)?
            }
            Kind::Digits(coefficient, exponent) => (coefficient, exponent),
        };
        let zeros = types.take(6) as u32;
        let coefficient = 10u128.checked_pow(zeros)?.checked_mul(coefficient)?;
        Decimal128::checked(self.negative, coefficient, exponent - zeros as i32)
    }
}

/// `n * 2^power` as a coefficient that does not end in zero and a power of ten, if decimal128 can
/// hold it.
fn from_binary(mut n: u128, mut power: i32) -> Option<(u128, i32)> {
    if n == 0 {
        return None;
    }
    let twos = n.trailing_zeros();
    n >>= twos;
    power += twos as i32;
    let mut exponent = power.min(0);
    if power < 0 {
        n = 5u128.checked_pow(power.unsigned_abs())?.checked_mul(n)?;
    }
    while power > 0 && n.is_multiple_of(5) {
        n /= 5;
        power -= 1;
        exponent += 1;
    }
    if power > 0 {
        n = n.checked_mul(1u128.checked_shl(power as u32)?)?;
    }
    Some((n, exponent))
}
