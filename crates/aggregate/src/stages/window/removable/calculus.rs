//! `$integral`, `$expMovingAvg` and `$locf`.

use std::collections::VecDeque;

use sheaf_bson::{Bump, Decimal128, OwnedValue, Value, number};
use sheaf_errors::{Code, Result, bail};

use super::Removable;
use super::numeric::RemovableSum;
use crate::accumulators::copy_in;

/// The difference of two numbers, or of two dates in milliseconds.
///
/// Errors: `TypeMismatch`.
pub(crate) fn difference(a: Value<'_>, b: Value<'_>) -> Result<Value<'static>> {
    match (a, b) {
        (Value::DateTime(a), Value::DateTime(b)) => Ok(Value::Int64(a.saturating_sub(b))),
        _ if a.is_nullish() || b.is_nullish() => Ok(Value::Null),
        _ => match number::subtract(a, b) {
            Some(difference) => Ok(difference),
            None => bail!(Code::TYPE_MISMATCH, "can't $subtract {} from {}", b.type_name(), a.type_name()),
        },
    }
}

/// `$integral`, by the trapezoidal rule.
pub(crate) struct Integral {
    /// The length of the unit, if there is one.
    unit_millis: Option<i64>,
    /// Whether values never leave, so that only the last point is looked at again.
    grows: bool,
    points: VecDeque<(OwnedValue, OwnedValue)>,
    areas: RemovableSum,
    nans: i64,
    bytes: usize,
}

fn is_nan(value: Value<'_>) -> bool {
    match value {
        Value::Double(n) => n.is_nan(),
        Value::Decimal128(n) => n.is_nan(),
        _ => false,
    }
}

/// The area below the line between two points.
fn area(from: &(OwnedValue, OwnedValue), to: &(OwnedValue, OwnedValue)) -> Result<Value<'static>> {
    let (x1, y1, x2, y2) = (from.0.as_value(), from.1.as_value(), to.0.as_value(), to.1.as_value());
    if [x1, y1, x2, y2].into_iter().any(is_nan) {
        return Ok(Value::Int32(0));
    }
    let width = difference(x2, x1)?;
    let twice = number::add(y1, y2).and_then(|sum| number::multiply(sum, width));
    Ok(twice.and_then(|twice| number::divide(twice, Value::Double(2.0))).unwrap_or(Value::Null))
}

impl Integral {
    pub(crate) fn new(unit_millis: Option<i64>, grows: bool) -> Integral {
        Integral {
            unit_millis,
            grows,
            points: VecDeque::new(),
            areas: RemovableSum::default(),
            nans: 0,
            bytes: 0,
        }
    }

    fn drop_first(&mut self) -> Option<(OwnedValue, OwnedValue)> {
        let first = self.points.pop_front()?;
        self.bytes -= first.0.memory_bytes() + first.1.memory_bytes();
        Some(first)
    }
}

impl Removable for Integral {
    fn add(&mut self, value: Value<'_>, sort: Value<'_>) -> Result<()> {
        let is_date = matches!(sort, Value::DateTime(_));
        if !value.is_number() || !(sort.is_number() || is_date) {
            bail!(
                5423900,
                "The input value of $integral window function must be a vector of 2 value, the first value must be \
                 numeric or date type and the second must be numeric."
            );
        }
        if self.unit_millis.is_some() && !is_date {
            bail!(5423901, "$integral with 'outputUnit' expects the sortBy field to be a Date");
        }
        if self.unit_millis.is_none() && is_date {
            bail!(5423902, "$integral (with no 'outputUnit') expects the sortBy field to be numeric");
        }
        let point = (OwnedValue::from(sort), OwnedValue::from(value));
        self.nans += i64::from(is_nan(sort) || is_nan(value));
        if let Some(last) = self.points.back() {
            self.areas.add(area(last, &point)?);
        }
        if self.grows {
            self.drop_first();
        }
        self.bytes += point.0.memory_bytes() + point.1.memory_bytes();
        self.points.push_back(point);
        Ok(())
    }

    fn remove(&mut self, _value: Value<'_>) -> Result<()> {
        let first = self.drop_first().expect("what leaves has come");
        self.nans -= i64::from(is_nan(first.0.as_value()) || is_nan(first.1.as_value()));
        if let Some(second) = self.points.front() {
            self.areas.remove(area(&first, second)?);
        }
        Ok(())
    }

    fn result<'a>(&mut self, _current: Value<'_>, _arena: &'a Bump) -> Result<Value<'a>> {
        if self.points.is_empty() {
            return Ok(Value::Null);
        }
        if self.nans > 0 {
            return Ok(Value::Double(f64::NAN));
        }
        let total = self.areas.total();
        Ok(match self.unit_millis {
            Some(millis) => number::divide(total, Value::Int64(millis)).unwrap_or(Value::Null),
            None => total,
        })
    }

    fn needs_sort(&self) -> bool {
        true
    }

    fn memory_bytes(&self) -> usize {
        self.bytes
    }
}

/// `$expMovingAvg`: each number counts `alpha`, all before it the rest.
pub(crate) struct ExpMovingAvg {
    alpha: Decimal128,
    current: Option<Decimal128>,
    is_decimal: bool,
}

impl ExpMovingAvg {
    pub(crate) fn new(alpha: Decimal128) -> ExpMovingAvg {
        ExpMovingAvg { alpha, current: None, is_decimal: false }
    }
}

impl Removable for ExpMovingAvg {
    fn add(&mut self, value: Value<'_>, _sort: Value<'_>) -> Result<()> {
        let Some(n) = number::to_decimal(value) else { return Ok(()) };
        self.is_decimal |= matches!(value, Value::Decimal128(_));
        self.current = Some(match self.current {
            None => n,
            Some(before) => {
                let rest = Decimal128::from_i32(1).subtract(self.alpha);
                n.multiply(self.alpha).add(before.multiply(rest))
            }
        });
        Ok(())
    }

    fn remove(&mut self, _value: Value<'_>) -> Result<()> {
        unreachable!("$expMovingAvg has no window");
    }

    fn result<'a>(&mut self, _current: Value<'_>, _arena: &'a Bump) -> Result<Value<'a>> {
        Ok(match self.current {
            None => Value::Null,
            Some(n) if self.is_decimal => Value::Decimal128(n),
            Some(n) => Value::Double(n.to_f64()),
        })
    }
}

/// `$locf`: the last value that was there.
#[derive(Default)]
pub(crate) struct Locf(Option<OwnedValue>);

impl Removable for Locf {
    fn add(&mut self, value: Value<'_>, _sort: Value<'_>) -> Result<()> {
        if !value.is_nullish() {
            self.0 = Some(OwnedValue::from(value));
        }
        Ok(())
    }

    fn remove(&mut self, _value: Value<'_>) -> Result<()> {
        unreachable!("$locf has no window");
    }

    fn result<'a>(&mut self, _current: Value<'_>, arena: &'a Bump) -> Result<Value<'a>> {
        Ok(self.0.as_ref().map_or(Value::Null, |value| copy_in(value, arena)))
    }

    fn memory_bytes(&self) -> usize {
        self.0.as_ref().map_or(0, OwnedValue::memory_bytes)
    }
}
