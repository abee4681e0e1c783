//! Trigonometry.

use sheaf_bson::{Decimal128, Value, compare, number};
use sheaf_errors::{Result, bail};

use super::arithmetic::numeric;
use super::show;
use crate::expr::Cx;
use crate::operator::{Operator, binary, unary};

pub(crate) static OPERATORS: &[Operator] = &[
    unary("$sin", |v, _| bounded("$sin", v[0], (f64::sin, Decimal128::sin), FINITE)),
    unary("$cos", |v, _| bounded("$cos", v[0], (f64::cos, Decimal128::cos), FINITE)),
    unary("$tan", |v, _| bounded("$tan", v[0], (f64::tan, Decimal128::tan), FINITE)),
    unary("$asin", |v, _| bounded("$asin", v[0], (f64::asin, Decimal128::asin), UNIT)),
    unary("$acos", |v, _| bounded("$acos", v[0], (f64::acos, Decimal128::acos), UNIT)),
    unary("$atan", |v, _| bounded("$atan", v[0], (f64::atan, Decimal128::atan), ANY)),
    unary("$sinh", |v, _| bounded("$sinh", v[0], (f64::sinh, Decimal128::sinh), ANY)),
    unary("$cosh", |v, _| bounded("$cosh", v[0], (f64::cosh, Decimal128::cosh), ANY)),
    unary("$tanh", |v, _| bounded("$tanh", v[0], (f64::tanh, Decimal128::tanh), ANY)),
    unary("$asinh", |v, _| bounded("$asinh", v[0], (f64::asinh, Decimal128::asinh), ANY)),
    unary("$acosh", |v, _| bounded("$acosh", v[0], (f64::acosh, Decimal128::acosh), FROM_ONE)),
    unary("$atanh", |v, _| bounded("$atanh", v[0], (f64::atanh, Decimal128::atanh), UNIT)),
    binary("$atan2", atan2),
    unary("$degreesToRadians", |v, _| scaled("$degreesToRadians", v[0], 180.0, true)),
    unary("$radiansToDegrees", |v, _| scaled("$radiansToDegrees", v[0], 180.0, false)),
];

/// The arguments for which a function is defined, in MongoDB's notation and as bounds.
struct Domain {
    text: &'static str,
    low: Value<'static>,
    high: Value<'static>,
    /// Whether the bounds are in it.
    closed: bool,
}

impl Domain {
    /// Compares decimals as such: a double may not reach them.
    fn holds(&self, value: Value<'_>) -> bool {
        let (low, high) = (compare(value, self.low), compare(value, self.high));
        if self.closed { low.is_ge() && high.is_le() } else { low.is_gt() && high.is_lt() }
    }
}

const LEAST: Value<'static> = Value::Double(f64::NEG_INFINITY);
const GREATEST: Value<'static> = Value::Double(f64::INFINITY);
const ANY: Domain = Domain { text: "[-inf,inf]", low: LEAST, high: GREATEST, closed: true };
const FINITE: Domain = Domain { text: "(-inf,inf)", low: LEAST, high: GREATEST, closed: false };
const UNIT: Domain =
    Domain { text: "[-1,1]", low: Value::Double(-1.0), high: Value::Double(1.0), closed: true };
const FROM_ONE: Domain = Domain { text: "[1,inf]", low: Value::Double(1.0), high: GREATEST, closed: true };

/// A function of one number: of doubles, and of decimals.
type Functions = (fn(f64) -> f64, fn(Decimal128) -> Decimal128);

fn bounded<'a>(
    name: &str,
    value: Value<'a>,
    (doubles, decimals): Functions,
    domain: Domain,
) -> Result<Value<'a>> {
    if let Some(n) = value.as_f64()
        && !n.is_nan()
        && !domain.holds(value)
    {
        bail!(50989, "cannot apply {name} to {}, value must be in {}", show(value), domain.text);
    }
    numeric(name, value, |value| match value {
        Value::Decimal128(n) => Some(Value::Decimal128(decimals(n))),
        value => value.as_f64().map(|n| Value::Double(doubles(n))),
    })
}

fn atan2<'a>(v: &[Value<'a>], _: Cx<'a, '_>) -> Result<Value<'a>> {
    let (y, x) = (v[0], v[1]);
    // Each is looked at by itself: what is wrong with the first comes before a null that is the second.
    if y.is_nullish() {
        return Ok(Value::Null);
    }
    let Some(a) = y.as_f64() else {
        bail!(51044, "$atan2 only supports numeric types, not {}", y.type_name());
    };
    if x.is_nullish() {
        return Ok(Value::Null);
    }
    let Some(b) = x.as_f64() else {
        bail!(51045, "$atan2 only supports numeric types, not {}", x.type_name());
    };
    let decimal = matches!(y, Value::Decimal128(_)) || matches!(x, Value::Decimal128(_));
    Ok(match (number::to_decimal(y), number::to_decimal(x)) {
        (Some(y), Some(x)) if decimal => Value::Decimal128(y.atan2(x)),
        _ => Value::Double(a.atan2(b)),
    })
}

/// Multiplies by pi/180 or its inverse.
fn scaled<'a>(name: &str, value: Value<'a>, half_turn: f64, to_radians: bool) -> Result<Value<'a>> {
    numeric(name, value, |value| match value {
        Value::Decimal128(n) => {
            let pi: Decimal128 = "3.141592653589793238462643383279503".parse().ok()?;
            let half_turn = number::to_decimal(Value::Double(half_turn))?;
            let factor = if to_radians { pi.divide(half_turn) } else { half_turn.divide(pi) };
            Some(Value::Decimal128(n.multiply(factor)))
        }
        value if to_radians => value.as_f64().map(|n| Value::Double(n * (std::f64::consts::PI / half_turn))),
        value => value.as_f64().map(|n| Value::Double(n * (half_turn / std::f64::consts::PI))),
    })
}
