//! Decimal128 as text, in the forms that BSON's decimal128 specification sets.

use std::fmt;
use std::str::FromStr;

use super::{Class, MAX_COEFFICIENT, MAX_EXPONENT, MIN_EXPONENT};
use crate::value::Decimal128;

/// Why a text gave no decimal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ParseDecimalError {
    /// It is no number.
    Invalid,
    /// Too large for decimal128.
    Overflow,
    /// Too small for decimal128.
    Underflow,
}

impl fmt::Display for ParseDecimalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ParseDecimalError::Invalid => "Failed to parse string to decimal",
            ParseDecimalError::Overflow => "Conversion from string to decimal would overflow",
            ParseDecimalError::Underflow => "Conversion from string to decimal would underflow",
        })
    }
}

impl std::error::Error for ParseDecimalError {}

impl fmt::Display for Decimal128 {
    /// `1.50`, `1E+3`, `-Infinity`, `NaN`: an exponent is shown when the number has digits left out
    /// before the point, or more than five zeros after it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (negative, coefficient, exponent) = match self.class() {
            Class::Nan => return f.write_str("NaN"),
            Class::Infinite { negative } => {
                return f.write_str(if negative { "-Infinity" } else { "Infinity" });
            }
            Class::Finite { negative, coefficient, exponent } => (negative, coefficient, exponent),
        };
        if negative {
            f.write_str("-")?;
        }
        let digits = coefficient.to_string();
        let adjusted = exponent + digits.len() as i32 - 1;
        if exponent > 0 || adjusted < -6 {
            let (first, rest) = digits.split_at(1);
            f.write_str(first)?;
            if !rest.is_empty() {
                write!(f, ".{rest}")?;
            }
            return write!(f, "E{adjusted:+}");
        }
        let places = exponent.unsigned_abs() as usize;
        if places == 0 {
            f.write_str(&digits)
        } else if places < digits.len() {
            let (whole, fraction) = digits.split_at(digits.len() - places);
            write!(f, "{whole}.{fraction}")
        } else {
            write!(f, "0.{digits:0>places$}")
        }
    }
}

impl FromStr for Decimal128 {
    type Err = ParseDecimalError;

    /// Takes what MongoDB takes: digits with an optional point and exponent, `inf`, `infinity` and
    /// `nan` in any case, an optional sign. Digits beyond 34 are rounded half to even.
    fn from_str(text: &str) -> Result<Self, ParseDecimalError> {
        parse(text, rounds_up)
    }
}

impl Decimal128 {
    /// Like [`str::parse`], but digits beyond 34 are dropped: `$convert` reads decimals so.
    pub fn parse_truncated(text: &str) -> Result<Self, ParseDecimalError> {
        parse(text, |_, _| false)
    }
}

/// `up` says whether dropping digits rounds the last one, which may be odd, up.
fn parse(text: &str, up: fn(&[u8], bool) -> bool) -> Result<Decimal128, ParseDecimalError> {
    let (negative, body) = match text.as_bytes() {
        [b'-', ..] => (true, &text[1..]),
        [b'+', ..] => (false, &text[1..]),
        _ => (false, text),
    };
    if body.eq_ignore_ascii_case("inf") || body.eq_ignore_ascii_case("infinity") {
        return Ok(if negative { Decimal128::NEG_INFINITY } else { Decimal128::INFINITY });
    }
    if body.eq_ignore_ascii_case("nan") {
        return Ok(if negative { Decimal128::NAN.negated() } else { Decimal128::NAN });
    }
    let (mantissa, power) = match body.find(['e', 'E']) {
        Some(at) => (&body[..at], exponent(&body[at + 1..])?),
        None => (body, 0),
    };
    let (digits, point) = digits(mantissa)?;
    round(negative, &digits, power.saturating_sub(point), up)
}

/// The exponent after `E`; absurd sizes saturate, since any exponent beyond the range acts alike.
fn exponent(text: &str) -> Result<i32, ParseDecimalError> {
    let (negative, digits) = match text.as_bytes() {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        rest => (false, rest),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(ParseDecimalError::Invalid);
    }
    let size = digits
        .iter()
        .fold(0i32, |n, digit| n.saturating_mul(10).saturating_add(i32::from(digit - b'0')))
        .min(1_000_000_000);
    Ok(if negative { -size } else { size })
}

/// The digits without leading zeros, and how many of them stood after the point.
fn digits(mantissa: &str) -> Result<(Vec<u8>, i32), ParseDecimalError> {
    let mut digits = Vec::with_capacity(mantissa.len());
    let (mut point, mut seen_point, mut any) = (0i32, false, false);
    for byte in mantissa.bytes() {
        match byte {
            b'0'..=b'9' => {
                any = true;
                point += i32::from(seen_point);
                if byte != b'0' || !digits.is_empty() {
                    digits.push(byte - b'0');
                }
            }
            b'.' if !seen_point => seen_point = true,
            _ => return Err(ParseDecimalError::Invalid),
        }
    }
    if any { Ok((digits, point)) } else { Err(ParseDecimalError::Invalid) }
}

/// Rounds digits to 34 of them and into the exponent's range.
fn round(
    negative: bool,
    digits: &[u8],
    mut exponent: i32,
    up: fn(&[u8], bool) -> bool,
) -> Result<Decimal128, ParseDecimalError> {
    if digits.is_empty() {
        let exponent = exponent.clamp(MIN_EXPONENT, MAX_EXPONENT);
        return Ok(Decimal128::from_parts(negative, 0, exponent));
    }
    // Digits to drop: those beyond 34, and those below the smallest exponent.
    let below = MIN_EXPONENT.saturating_sub(exponent).max(0) as usize;
    let dropped = digits.len().saturating_sub(34).max(below);
    let kept = digits.len().saturating_sub(dropped);
    let mut coefficient = digits[..kept].iter().fold(0u128, |n, digit| n * 10 + u128::from(*digit));
    if dropped > 0 {
        exponent = exponent.saturating_add(i32::try_from(dropped).unwrap_or(i32::MAX));
        let lost_any = digits[kept..].iter().any(|digit| *digit != 0);
        if below > 0 && lost_any && kept == 0 {
            return Err(ParseDecimalError::Underflow);
        }
        coefficient += u128::from(up(&digits[kept..], coefficient % 2 == 1));
        if coefficient > MAX_COEFFICIENT {
            coefficient /= 10;
            exponent += 1;
        }
    }
    // Too large an exponent may be paid for with zeros in the coefficient.
    while exponent > MAX_EXPONENT && coefficient <= MAX_COEFFICIENT / 10 {
        coefficient *= 10;
        exponent -= 1;
    }
    if exponent > MAX_EXPONENT {
        return Err(ParseDecimalError::Overflow);
    }
    Ok(Decimal128::from_parts(negative, coefficient, exponent))
}

/// Whether dropping these digits rounds the last kept one up: half to even.
fn rounds_up(dropped: &[u8], odd: bool) -> bool {
    match dropped.split_first() {
        None => false,
        Some((5, rest)) => odd || rest.iter().any(|digit| *digit != 0),
        Some((first, _)) => *first > 5,
    }
}
