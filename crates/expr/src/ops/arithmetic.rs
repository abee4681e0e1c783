//! Arithmetic: sums, products, powers, roots, logarithms, rounding.

use sheaf_bson::{Decimal128, Rounding, Type, Value, doc, number};
use sheaf_errors::{Code, Error, Result, bail};

use super::{convert, show};
use crate::context::ParseCx;
use crate::expr::{Cx, Expr};
use crate::operator::{Operator, between, binary, custom, nary, unary};

pub(crate) static OPERATORS: &[Operator] = &[
    unary("$abs", abs),
    nary("$add", add),
    unary("$ceil", |v, _| numeric("$ceil", v[0], number::ceil)),
    binary("$divide", divide),
    unary("$exp", |v, _| numeric("$exp", v[0], number::exp)),
    unary("$floor", |v, _| numeric("$floor", v[0], number::floor)),
    unary("$ln", ln),
    binary("$log", log),
    unary("$log10", log10),
    binary("$mod", modulo),
    nary("$multiply", multiply),
    binary("$pow", pow),
    between("$round", 1, 2, |v, _| round("$round", v, Rounding::HalfEven)),
    custom("$sigmoid", parse_sigmoid, |_, _| Ok(Value::Null)),
    unary("$sqrt", sqrt),
    binary("$subtract", subtract),
    between("$trunc", 1, 2, |v, _| round("$trunc", v, Rounding::Truncate)),
];

/// `$sigmoid: x` is `1 / (1 + e^-x)`, written with the other operators, whose errors it has.
fn parse_sigmoid(_: &'static Operator, argument: Value<'_>, cx: &mut ParseCx) -> Result<Expr> {
    let power = doc! { "$exp": { "$multiply": [-1, argument] } };
    let quotient = doc! { "$divide": [1, { "$add": [1, &power] }] };
    Expr::parse(Value::Document(quotient.as_raw()), cx)
}

/// An operator on one number: null stays null, what is no number is refused.
pub(super) fn numeric<'a>(
    name: &str,
    value: Value<'a>,
    apply: impl FnOnce(Value<'a>) -> Option<Value<'static>>,
) -> Result<Value<'a>> {
    if value.is_nullish() {
        return Ok(Value::Null);
    }
    match apply(value) {
        Some(result) if value.is_number() => Ok(result),
        _ => bail!(28765, "{name} only supports numeric types, not {}", value.type_name()),
    }
}

fn abs<'a>(v: &[Value<'a>], _: Cx<'a, '_>) -> Result<Value<'a>> {
    if let Value::Int64(i64::MIN) = v[0] {
        bail!(28680, "can't take $abs of long long min");
    }
    numeric("$abs", v[0], number::abs)
}

fn is_nan(value: Value<'_>) -> bool {
    match value {
        Value::Double(n) => n.is_nan(),
        Value::Decimal128(n) => n.is_nan(),
        _ => false,
    }
}

/// Whether a number is at or below zero; NaN is not.
fn is_not_positive(value: Value<'_>) -> bool {
    !is_nan(value) && sheaf_bson::compare(value, Value::Int32(0)).is_le()
}

fn sqrt<'a>(v: &[Value<'a>], _: Cx<'a, '_>) -> Result<Value<'a>> {
    let negative = v[0].is_number() && !is_nan(v[0]) && sheaf_bson::compare(v[0], Value::Int32(0)).is_lt();
    if negative {
        bail!(28714, "$sqrt's argument must be greater than or equal to 0");
    }
    numeric("$sqrt", v[0], number::sqrt)
}

fn ln<'a>(v: &[Value<'a>], _: Cx<'a, '_>) -> Result<Value<'a>> {
    if v[0].is_number() && is_not_positive(v[0]) {
        bail!(28766, "$ln's argument must be a positive number, but is {}", show(v[0]));
    }
    numeric("$ln", v[0], number::ln)
}

fn log10<'a>(v: &[Value<'a>], _: Cx<'a, '_>) -> Result<Value<'a>> {
    if v[0].is_number() && is_not_positive(v[0]) {
        bail!(28761, "$log10's argument must be a positive number, but is {}", show(v[0]));
    }
    numeric("$log10", v[0], number::log10)
}

fn log<'a>(v: &[Value<'a>], _: Cx<'a, '_>) -> Result<Value<'a>> {
    let (value, base) = (v[0], v[1]);
    if value.is_nullish() || base.is_nullish() {
        return Ok(Value::Null);
    }
    if !value.is_number() {
        bail!(28756, "$log's argument must be numeric, not {}", value.type_name());
    }
    if !base.is_number() {
        bail!(28757, "$log's base must be numeric, not {}", base.type_name());
    }
    if is_not_positive(value) {
        bail!(28758, "$log's argument must be a positive number, but is {}", show(value));
    }
    if is_not_positive(base) || sheaf_bson::compare(base, Value::Int32(1)).is_eq() {
        bail!(28759, "$log's base must be a positive number not equal to 1, but is {}", show(base));
    }
    // NaN is a double's, also of decimals.
    if is_nan(value) || is_nan(base) {
        return Ok(Value::Double(f64::NAN));
    }
    let decimal = matches!(value, Value::Decimal128(_)) || matches!(base, Value::Decimal128(_));
    if let (true, Some(value), Some(base)) = (decimal, number::to_decimal(value), number::to_decimal(base)) {
        return Ok(Value::Decimal128(value.ln().divide(base.ln())));
    }
    let (value, base) = (value.as_f64().unwrap_or(f64::NAN), base.as_f64().unwrap_or(f64::NAN));
    Ok(Value::Double(value.ln() / base.ln()))
}

fn divide<'a>(v: &[Value<'a>], _: Cx<'a, '_>) -> Result<Value<'a>> {
    let (a, b) = (v[0], v[1]);
    if a.is_number() && b.is_number() {
        return number::divide(a, b).ok_or_else(|| Error::bad_value("can't $divide by zero"));
    }
    if a.is_nullish() || b.is_nullish() {
        return Ok(Value::Null);
    }
    bail!(
        Code::TYPE_MISMATCH,
        "$divide only supports numeric types, not {} and {}",
        a.type_name(),
        b.type_name()
    )
}

fn modulo<'a>(v: &[Value<'a>], _: Cx<'a, '_>) -> Result<Value<'a>> {
    let (a, b) = (v[0], v[1]);
    if a.is_number() && b.is_number() {
        return match number::modulo(a, b) {
            Some(rest) => Ok(rest),
            None if matches!(a, Value::Decimal128(_)) || matches!(b, Value::Decimal128(_)) => {
                bail!(5733415, "can't $mod by zero")
            }
            None => bail!(16610, "can't $mod by zero"),
        };
    }
    if a.is_nullish() || b.is_nullish() {
        return Ok(Value::Null);
    }
    bail!(16611, "$mod only supports numeric types, not {} and {}", a.type_name(), b.type_name())
}

fn pow<'a>(v: &[Value<'a>], _: Cx<'a, '_>) -> Result<Value<'a>> {
    let (base, exponent) = (v[0], v[1]);
    if base.is_nullish() || exponent.is_nullish() {
        return Ok(Value::Null);
    }
    if !base.is_number() {
        bail!(28762, "$pow's base must be numeric, not {}", base.type_name());
    }
    if !exponent.is_number() {
        bail!(28763, "$pow's exponent must be numeric, not {}", exponent.type_name());
    }
    if number::is_zero(base) && !is_nan(exponent) && sheaf_bson::compare(exponent, Value::Int32(0)).is_lt() {
        bail!(28764, "$pow cannot take a base of 0 and a negative exponent");
    }
    Ok(number::pow(base, exponent).unwrap_or(Value::Null))
}

fn multiply<'a>(v: &[Value<'a>], _: Cx<'a, '_>) -> Result<Value<'a>> {
    let mut product = Value::Int32(1);
    for value in v {
        if value.is_nullish() {
            return Ok(Value::Null);
        }
        match number::multiply(product, *value) {
            Some(next) => product = next,
            None => {
                bail!(Code::TYPE_MISMATCH, "$multiply only supports numeric types, not {}", value.type_name())
            }
        }
    }
    Ok(product)
}

fn add<'a>(v: &[Value<'a>], _: Cx<'a, '_>) -> Result<Value<'a>> {
    // Two integers or doubles, the most frequent case, need no summing state.
    if let [a, b] = v
        && let Some(sum) = plain_sum(*a, *b)
    {
        return Ok(sum);
    }
    let mut sum = Adding::default();
    let mut date: Option<i64> = None;
    let overflow = || Error::new(Code::OVERFLOW, "date overflow");
    for value in v {
        match (value, date) {
            (Value::DateTime(_), Some(_)) => bail!(16612, "only one date allowed in an $add expression"),
            (Value::DateTime(millis), None) => {
                let sum = millis_of(sum.total()).and_then(|before| before.checked_add(*millis));
                date = Some(sum.ok_or_else(overflow)?);
            }
            // From the date on each number is rounded to milliseconds by itself.
            (value, Some(before)) if value.is_number() => {
                let sum = millis_of(*value).and_then(|more| before.checked_add(more));
                date = Some(sum.ok_or_else(overflow)?);
            }
            (value, None) if value.is_number() => sum.add(*value),
            (value, _) if value.is_nullish() => return Ok(Value::Null),
            (other, _) => bail!(
                Code::TYPE_MISMATCH,
                "$add only supports numeric or date types, not {}",
                other.type_name()
            ),
        }
    }
    Ok(date.map_or_else(|| sum.total(), Value::DateTime))
}

/// The sum of `$add` so far: unlike that of `$sum` it is rounded at each step, and integers that overflow become a double for
/// good.
struct Adding {
    kind: Type,
    long: i64,
    double: f64,
    decimal: Decimal128,
}

impl Default for Adding {
    fn default() -> Self {
        Adding { kind: Type::Int32, long: 0, double: 0.0, decimal: Decimal128::from_i64(0) }
    }
}

impl Adding {
    /// Adds a number.
    fn add(&mut self, value: Value<'_>) {
        let before = self.kind;
        self.kind = number::widest(before, value.kind());
        match self.kind {
            Type::Decimal128 => {
                match before {
                    Type::Decimal128 => {}
                    Type::Double => self.decimal = Decimal128::from_f64(self.double),
                    _ => self.decimal = Decimal128::from_i64(self.long),
                }
                let more = number::to_decimal(value).unwrap_or(Decimal128::NAN);
                self.decimal = self.decimal.add(more);
            }
            Type::Double => {
                if before != Type::Double {
                    self.double = self.long as f64;
                }
                self.double += value.as_f64().unwrap_or(f64::NAN);
            }
            _ => {
                let more = value.as_exact_i64().unwrap_or(0);
                match self.long.checked_add(more) {
                    Some(sum) => self.long = sum,
                    None => {
                        self.kind = Type::Double;
                        self.double = self.long as f64 + more as f64;
                    }
                }
            }
        }
    }

    fn total(&self) -> Value<'static> {
        match self.kind {
            Type::Decimal128 => Value::Decimal128(self.decimal),
            Type::Double => Value::Double(self.double),
            Type::Int32 => i32::try_from(self.long).map_or(Value::Int64(self.long), Value::Int32),
            _ => Value::Int64(self.long),
        }
    }
}

fn plain_sum(a: Value<'_>, b: Value<'_>) -> Option<Value<'static>> {
    match (a, b) {
        (Value::Int32(a), Value::Int32(b)) => {
            Some(a.checked_add(b).map_or(Value::Int64(i64::from(a) + i64::from(b)), Value::Int32))
        }
        (Value::Int64(a), Value::Int64(b)) => a.checked_add(b).map(Value::Int64),
        // A sum begins with 0, so that none is -0.
        (Value::Double(a), Value::Double(b)) => Some(Value::Double(0.0 + a + b)),
        _ => None,
    }
}

/// A number as whole milliseconds, fractions rounded half away from zero.
fn millis_of(value: Value<'_>) -> Option<i64> {
    match value {
        Value::Double(n) => Value::Double(n.round()).as_exact_i64(),
        Value::Decimal128(n) => n.to_integral(Rounding::HalfEven).to_i64_exact(),
        other => other.as_exact_i64(),
    }
}

fn subtract<'a>(v: &[Value<'a>], _: Cx<'a, '_>) -> Result<Value<'a>> {
    let (a, b) = (v[0], v[1]);
    if let Some(difference) = number::subtract(a, b) {
        return Ok(difference);
    }
    if a.is_nullish() || b.is_nullish() {
        return Ok(Value::Null);
    }
    let overflow = || Error::new(Code::OVERFLOW, "date overflow in $subtract");
    match (a, b) {
        (Value::DateTime(a), Value::DateTime(b)) => a.checked_sub(b).map(Value::Int64).ok_or_else(overflow),
        (Value::DateTime(a), b) if b.is_number() => {
            millis_of(b).and_then(|b| a.checked_sub(b)).map(Value::DateTime).ok_or_else(overflow)
        }
        _ => bail!(Code::TYPE_MISMATCH, "can't $subtract {} from {}", b.type_name(), a.type_name()),
    }
}

fn round<'a>(name: &str, v: &[Value<'a>], rounding: Rounding) -> Result<Value<'a>> {
    let value = v[0];
    let place = v.get(1).copied().unwrap_or(Value::Int32(0));
    if value.is_nullish() {
        return Ok(Value::Null);
    }
    if !value.is_number() {
        bail!(51081, "{name} only supports numeric types, not {}", value.type_name());
    }
    if place.is_nullish() {
        return Ok(Value::Null);
    }
    convert::coerce_i64(place)?;
    let Some(place) = place.as_exact_i64().filter(|n| i32::try_from(*n).is_ok()) else {
        bail!(51082, "precision argument to  {name} must be a integral value");
    };
    if !(-20..=100).contains(&place) {
        bail!(51083, "cannot apply {name} with precision value {place} value must be in [-20, 100]");
    }
    match number::round(value, place as i32, rounding) {
        Some(rounded) => Ok(rounded),
        None => bail!(
            51080,
            "invalid conversion from Decimal128 result in {name} resulting from arguments: [{}, {place}]",
            show(value)
        ),
    }
}
