//! The arithmetic that operators share, with MongoDB's result types: the wider type of the operands
//! wins (int32, int64, double, decimal128), an int32 result that does not fit becomes int64, and an
//! int64 result that does not fit becomes a double, or `None` in the `checked` forms, which are
//! those of `$inc` and `$mul`.
//!
//! Operands must be numbers; other values give `None`.

mod sum;

use crate::decimal::Rounding;
use crate::value::{Decimal128, Type, Value};

pub use sum::Sum;

/// The number as decimal128, as arithmetic with a decimal operand converts it: doubles with 15
/// significant digits.
pub fn to_decimal(value: Value<'_>) -> Option<Decimal128> {
    match value {
        Value::Int32(n) => Some(Decimal128::from_i32(n)),
        Value::Int64(n) => Some(Decimal128::from_i64(n)),
        Value::Double(n) => Some(Decimal128::from_f64(n)),
        Value::Decimal128(n) => Some(n),
        _ => None,
    }
}

/// The type that an operation on numbers of two types gives.
pub fn widest(a: Type, b: Type) -> Type {
    let rank = |kind: Type| match kind {
        Type::Int32 => 0,
        Type::Int64 => 1,
        Type::Double => 2,
        _ => 3,
    };
    if rank(a) >= rank(b) { a } else { b }
}

/// An integer as the narrowest of the types allowed: int32 only if `kind` is int32.
fn integer(n: i64, kind: Type) -> Value<'static> {
    match i32::try_from(n) {
        Ok(n) if kind == Type::Int32 => Value::Int32(n),
        _ => Value::Int64(n),
    }
}

/// What one arithmetic operation does in each type.
struct Operation {
    integers: fn(i64, i64) -> Option<i64>,
    doubles: fn(f64, f64) -> f64,
    decimals: fn(Decimal128, Decimal128) -> Decimal128,
}

const ADD: Operation =
    Operation { integers: i64::checked_add, doubles: |a, b| a + b, decimals: Decimal128::add };
const SUBTRACT: Operation =
    Operation { integers: i64::checked_sub, doubles: |a, b| a - b, decimals: Decimal128::subtract };
const MULTIPLY: Operation =
    Operation { integers: i64::checked_mul, doubles: |a, b| a * b, decimals: Decimal128::multiply };

impl Operation {
    fn run(&self, a: Value<'_>, b: Value<'_>, overflow_to_double: bool) -> Option<Value<'static>> {
        match widest(a.kind(), b.kind()) {
            Type::Decimal128 => Some(Value::Decimal128((self.decimals)(to_decimal(a)?, to_decimal(b)?))),
            Type::Double => Some(Value::Double((self.doubles)(a.as_f64()?, b.as_f64()?))),
            Type::Int32 | Type::Int64 => {
                let kind = widest(a.kind(), b.kind());
                match (self.integers)(a.as_exact_i64()?, b.as_exact_i64()?) {
                    Some(n) => Some(integer(n, kind)),
                    None if overflow_to_double => {
                        Some(Value::Double((self.doubles)(a.as_f64()?, b.as_f64()?)))
                    }
                    None => None,
                }
            }
            _ => None,
        }
    }
}

/// The sum of two numbers.
///
/// ```
/// use sheaf_bson::{Value, number};
///
/// // An int32 that does not suffice becomes an int64.
/// assert!(matches!(number::add(Value::Int32(i32::MAX), Value::Int32(1)), Some(Value::Int64(2147483648))));
/// assert!(number::add(Value::Int32(1), Value::Null).is_none());
/// ```
pub fn add(a: Value<'_>, b: Value<'_>) -> Option<Value<'static>> {
    ADD.run(a, b, true)
}

/// The sum of two numbers; `None` if it leaves int64.
pub fn checked_add(a: Value<'_>, b: Value<'_>) -> Option<Value<'static>> {
    ADD.run(a, b, false)
}

/// The difference of two numbers.
pub fn subtract(a: Value<'_>, b: Value<'_>) -> Option<Value<'static>> {
    SUBTRACT.run(a, b, true)
}

/// The product of two numbers.
pub fn multiply(a: Value<'_>, b: Value<'_>) -> Option<Value<'static>> {
    MULTIPLY.run(a, b, true)
}

/// The product of two numbers; `None` if it leaves int64.
pub fn checked_multiply(a: Value<'_>, b: Value<'_>) -> Option<Value<'static>> {
    MULTIPLY.run(a, b, false)
}

/// Whether a number is zero.
pub fn is_zero(value: Value<'_>) -> bool {
    value.is_number() && !value.truthy()
}

/// The quotient, a double or a decimal; `None` for a zero divisor.
pub fn divide(a: Value<'_>, b: Value<'_>) -> Option<Value<'static>> {
    if is_zero(b) {
        return None;
    }
    match widest(a.kind(), b.kind()) {
        Type::Decimal128 => Some(Value::Decimal128(to_decimal(a)?.divide(to_decimal(b)?))),
        _ => Some(Value::Double(a.as_f64()? / b.as_f64()?)),
    }
}

/// `$mod` of expressions: the remainder with the sign of the dividend; `None` for a zero divisor.
pub fn modulo(a: Value<'_>, b: Value<'_>) -> Option<Value<'static>> {
    if is_zero(b) {
        return None;
    }
    let kind = widest(a.kind(), b.kind());
    if kind == Type::Decimal128 {
        return Some(Value::Decimal128(to_decimal(a)?.modulo(to_decimal(b)?)));
    }
    if kind == Type::Double {
        return Some(Value::Double(a.as_f64()? % b.as_f64()?));
    }
    // i64::MIN % -1 overflows in the machine; it is 0.
    Some(integer(a.as_exact_i64()?.wrapping_rem(b.as_exact_i64()?), kind))
}

/// The absolute value; `None` for the smallest int64, which has none.
pub fn abs(value: Value<'_>) -> Option<Value<'static>> {
    match value {
        Value::Int32(n) => Some(integer(i64::from(n).abs(), Type::Int32)),
        Value::Int64(n) => n.checked_abs().map(Value::Int64),
        Value::Double(n) => Some(Value::Double(n.abs())),
        Value::Decimal128(n) => Some(Value::Decimal128(n.abs())),
        _ => None,
    }
}

/// The smallest integer not below; integers stay as they are.
pub fn ceil(value: Value<'_>) -> Option<Value<'static>> {
    integral(value, f64::ceil, Rounding::Ceiling)
}

/// The largest integer not above; integers stay as they are.
pub fn floor(value: Value<'_>) -> Option<Value<'static>> {
    integral(value, f64::floor, Rounding::Floor)
}

fn integral(value: Value<'_>, doubles: fn(f64) -> f64, rounding: Rounding) -> Option<Value<'static>> {
    match value {
        Value::Int32(n) => Some(Value::Int32(n)),
        Value::Int64(n) => Some(Value::Int64(n)),
        Value::Double(n) => Some(Value::Double(doubles(n))),
        // MongoDB writes the result without exponent, which large numbers have no digits for.
        Value::Decimal128(n) if n.is_finite() && !n.fits_without_exponent() => {
            Some(Value::Decimal128(Decimal128::NAN))
        }
        Value::Decimal128(n) => Some(Value::Decimal128(n.quantize(0, rounding))),
        _ => None,
    }
}

/// `$round` (half to even) and `$trunc` (`Rounding::Truncate`): to `place` digits after the point,
/// or before it if negative. `None` if an integer's result leaves int64.
pub fn round(value: Value<'_>, place: i32, rounding: Rounding) -> Option<Value<'static>> {
    match value {
        Value::Int32(_) | Value::Int64(_) => {
            let n = value.as_exact_i64()?;
            if place >= 0 {
                return Some(integer(n, value.kind()));
            }
            let rounded = Decimal128::from_i64(n).quantize(-place, rounding).to_i64_exact()?;
            Some(match value {
                // MongoDB looks only whether the number became too large, and wraps one that became too small.
                Value::Int32(_) if rounded <= i64::from(i32::MAX) => Value::Int32(rounded as i32),
                _ => Value::Int64(rounded),
            })
        }
        Value::Double(n) if place == 0 || !n.is_finite() => Some(Value::Double(match rounding {
            Rounding::HalfEven => n.round_ties_even(),
            _ => n.trunc(),
        })),
        Value::Double(n) => {
            Some(Value::Double(Decimal128::from_f64_exact(n).quantize(-place, rounding).to_f64()))
        }
        Value::Decimal128(n) => Some(Value::Decimal128(n.quantize(-place, rounding))),
        _ => None,
    }
}

/// The number with the opposite sign; the smallest integers widen.
pub fn negate(value: Value<'_>) -> Option<Value<'static>> {
    match value {
        Value::Int32(n) => Some(integer(-i64::from(n), Type::Int32)),
        Value::Int64(n) => Some(n.checked_neg().map_or(Value::Double(-(n as f64)), Value::Int64)),
        Value::Double(n) => Some(Value::Double(-n)),
        Value::Decimal128(n) => Some(Value::Decimal128(n.negated())),
        _ => None,
    }
}

/// A function that gives decimals for decimals and doubles for the rest.
fn real(
    value: Value<'_>,
    doubles: fn(f64) -> f64,
    decimals: fn(Decimal128) -> Decimal128,
) -> Option<Value<'static>> {
    match value {
        Value::Decimal128(n) => Some(Value::Decimal128(decimals(n))),
        _ => value.as_f64().map(|n| Value::Double(doubles(n))),
    }
}

/// e to the power of the number.
pub fn exp(value: Value<'_>) -> Option<Value<'static>> {
    real(value, f64::exp, Decimal128::exp)
}

/// The natural logarithm; NaN for negative numbers.
pub fn ln(value: Value<'_>) -> Option<Value<'static>> {
    real(value, f64::ln, Decimal128::ln)
}

/// The logarithm to base ten; NaN for negative numbers.
pub fn log10(value: Value<'_>) -> Option<Value<'static>> {
    real(value, f64::log10, Decimal128::log10)
}

/// The square root; NaN for negative numbers.
pub fn sqrt(value: Value<'_>) -> Option<Value<'static>> {
    real(value, f64::sqrt, Decimal128::sqrt)
}

/// `$pow`. Integers give integers as long as the exponent is not negative and the result fits.
pub fn pow(base: Value<'_>, exponent: Value<'_>) -> Option<Value<'static>> {
    let kind = widest(base.kind(), exponent.kind());
    match kind {
        Type::Decimal128 => return Some(Value::Decimal128(to_decimal(base)?.pow(to_decimal(exponent)?))),
        Type::Double => return Some(Value::Double(base.as_f64()?.powf(exponent.as_f64()?))),
        _ => {}
    }
    let (n, power) = (base.as_exact_i64()?, exponent.as_exact_i64()?);
    let whole = match n {
        0 if power > 0 => Some(0),
        1 => Some(1),
        -1 => Some(if power % 2 == 0 { 1 } else { -1 }),
        _ => u32::try_from(power).ok().and_then(|power| n.checked_pow(power)),
    };
    Some(match whole {
        Some(n) => integer(n, kind),
        None => Value::Double((n as f64).powf(power as f64)),
    })
}

/// What a number gives when made an integer by dropping its fraction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Truncated {
    /// The integer.
    Integer(i64),
    /// Beyond int64.
    Overflow,
    /// An infinity.
    Infinite,
    /// NaN.
    Nan,
}

/// Drops a number's fraction: the base of `$toInt` and `$toLong`. `None` for what is no number.
pub fn truncate_to_i64(value: Value<'_>) -> Option<Truncated> {
    let special = |nan: bool, infinite: bool| match (nan, infinite) {
        (true, _) => Truncated::Nan,
        (_, true) => Truncated::Infinite,
        _ => Truncated::Overflow,
    };
    Some(match value {
        Value::Int32(n) => Truncated::Integer(i64::from(n)),
        Value::Int64(n) => Truncated::Integer(n),
        Value::Double(n) => match Value::Double(n.trunc()).as_exact_i64() {
            Some(n) => Truncated::Integer(n),
            None => special(n.is_nan(), n.is_infinite()),
        },
        Value::Decimal128(n) => match n.to_integral(Rounding::Truncate).to_i64_exact() {
            Some(n) => Truncated::Integer(n),
            None => special(n.is_nan(), n.is_infinite()),
        },
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
