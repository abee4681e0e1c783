//! Trigonometry.

use sheaf_bson::{Decimal128, Value, number};
use sheaf_errors::{Result, bail};

use super::arithmetic::numeric;
use super::show;
use crate::expr::Cx;
use crate::operator::{Operator, binary, unary};

pub(crate) static OPERATORS: &[Operator] = &[
    unary("$sin", |v, _| bounded("$sin", v[0], f64::sin, FINITE)),
    unary("$cos", |v, _| bounded("$cos", v[0], f64::cos, FINITE)),
    unary("$tan", |v, _| bounded("$tan", v[0], f64::tan, FINITE)),
    unary("$asin", |v, _| bounded("$asin", v[0], f64::asin, UNIT)),
    unary("$acos", |v, _| bounded("$acos", v[0], f64::acos, UNIT)),
    unary("$atan", |v, _| bounded("$atan", v[0], f64::atan, ANY)),
    unary("$sinh", |v, _| bounded("$sinh", v[0], f64::sinh, ANY)),
    unary("$cosh", |v, _| bounded("$cosh", v[0], f64::cosh, ANY)),
    unary("$tanh", |v, _| bounded("$tanh", v[0], f64::tanh, ANY)),
    unary("$asinh", |v, _| bounded("$asinh", v[0], f64::asinh, ANY)),
    unary("$acosh", |v, _| bounded("$acosh", v[0], f64::acosh, FROM_ONE)),
    unary("$atanh", |v, _| bounded("$atanh", v[0], f64::atanh, UNIT)),
    binary("$atan2", atan2),
    unary("$degreesToRadians", |v, _| scaled("$degreesToRadians", v[0], 180.0, true)),
    unary("$radiansToDegrees", |v, _| scaled("$radiansToDegrees", v[0], 180.0, false)),
];

/// The arguments for which a function is defined, in MongoDB's notation and as a test.
struct Domain {
    text: &'static str,
    holds: fn(f64) -> bool,
}

const ANY: Domain = Domain { text: "[-inf,inf]", holds: |_| true };
const FINITE: Domain = Domain { text: "(-inf,inf)", holds: f64::is_finite };
const UNIT: Domain = Domain { text: "[-1,1]", holds: |n| (-1.0..=1.0).contains(&n) };
const FROM_ONE: Domain = Domain { text: "[1,inf]", holds: |n| n >= 1.0 };

/// A function of one number. Decimal arguments are computed as doubles, so that their results carry 15
/// digits instead of 34.
fn bounded<'a>(name: &str, value: Value<'a>, apply: fn(f64) -> f64, domain: Domain) -> Result<Value<'a>> {
    if let Some(n) = value.as_f64()
        && !n.is_nan()
        && !(domain.holds)(n)
    {
        bail!(50989, "cannot apply {name} to {}, value must be in {}", show(value), domain.text);
    }
    numeric(name, value, |value| of_double(value, apply))
}

fn of_double(value: Value<'_>, apply: impl FnOnce(f64) -> f64) -> Option<Value<'static>> {
    match value {
        Value::Decimal128(n) => Some(Value::Decimal128(Decimal128::from_f64(apply(n.to_f64())))),
        value => value.as_f64().map(|n| Value::Double(apply(n))),
    }
}

fn atan2<'a>(v: &[Value<'a>], _: Cx<'a, '_>) -> Result<Value<'a>> {
    let (y, x) = (v[0], v[1]);
    if y.is_nullish() || x.is_nullish() {
        return Ok(Value::Null);
    }
    let (Some(a), Some(b)) = (y.as_f64(), x.as_f64()) else {
        let (which, bad) = if y.is_number() { ("second", x) } else { ("first", y) };
        bail!(51044, "$atan2 only supports numeric types, not {} as its {which} argument", bad.type_name());
    };
    let angle = a.atan2(b);
    let decimal = matches!(y, Value::Decimal128(_)) || matches!(x, Value::Decimal128(_));
    Ok(if decimal { Value::Decimal128(Decimal128::from_f64(angle)) } else { Value::Double(angle) })
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
