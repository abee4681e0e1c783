//! `$sum`, `$avg`, the standard deviations and the covariances, from which values can be taken back.

use sheaf_bson::number::{self, Sum};
use sheaf_bson::{Bump, Decimal128, Value};
use sheaf_errors::Result;

use super::Removable;

/// A sum from which numbers can be taken back. What is not finite is counted apart, as no sum that it has come into
/// could be the same without it again.
#[derive(Default)]
pub(super) struct RemovableSum {
    finite: Sum,
    nans: i64,
    positive: i64,
    negative: i64,
    /// How many doubles and decimals have come, less those that have left: with none, the sum is an integer again.
    doubles: i64,
    decimals: i64,
}

impl RemovableSum {
    pub(super) fn add(&mut self, value: Value<'_>) {
        self.count(value, 1);
    }

    pub(super) fn remove(&mut self, value: Value<'_>) {
        self.count(value, -1);
    }

    fn count(&mut self, value: Value<'_>, quantity: i64) {
        match value {
            Value::Double(_) => self.doubles += quantity,
            Value::Decimal128(_) => self.decimals += quantity,
            Value::Int32(_) | Value::Int64(_) => {}
            _ => return,
        }
        match special_of(value) {
            Some(Special::NaN) => self.nans += quantity,
            Some(Special::Positive) => self.positive += quantity,
            Some(Special::Negative) => self.negative += quantity,
            None if quantity > 0 => self.finite.add(value),
            None => self.subtract(value),
        }
    }

    fn subtract(&mut self, value: Value<'_>) {
        match value {
            // Their opposites do not fit into their types.
            Value::Int32(i32::MIN) => {
                self.finite.add(Value::Int32(i32::MAX));
                self.finite.add(Value::Int32(1));
            }
            Value::Int64(i64::MIN) => {
                self.finite.add(Value::Int64(i64::MAX));
                self.finite.add(Value::Int32(1));
            }
            Value::Int32(n) => self.finite.add(Value::Int32(-n)),
            Value::Int64(n) => self.finite.add(Value::Int64(-n)),
            Value::Double(n) => self.finite.add(Value::Double(-n)),
            Value::Decimal128(n) => self.finite.add(Value::Decimal128(n.negated())),
            _ => {}
        }
    }

    pub(super) fn total(&self) -> Value<'static> {
        let special = if self.nans > 0 || (self.positive > 0 && self.negative > 0) {
            Some(f64::NAN)
        } else if self.positive > 0 {
            Some(f64::INFINITY)
        } else {
            (self.negative > 0).then_some(f64::NEG_INFINITY)
        };
        match special {
            Some(n) if self.decimals > 0 => return Value::Decimal128(Decimal128::from_f64(n)),
            Some(n) => return Value::Double(n),
            None => {}
        }
        match self.finite.total() {
            Value::Decimal128(n) if self.decimals == 0 && self.doubles > 0 => Value::Double(n.to_f64()),
            Value::Decimal128(n) if self.decimals == 0 => {
                n.to_i64_exact().map_or(Value::Double(n.to_f64()), narrowest)
            }
            Value::Double(n) if self.doubles == 0 && n.abs() < i64::MAX as f64 => narrowest(n.round() as i64),
            Value::Int64(n) => narrowest(n),
            other => other,
        }
    }
}

/// An integer as int32 if it fits.
pub(crate) fn narrowest(n: i64) -> Value<'static> {
    i32::try_from(n).map_or(Value::Int64(n), Value::Int32)
}

/// What is not finite.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Special {
    NaN,
    Positive,
    Negative,
}

fn special_of(value: Value<'_>) -> Option<Special> {
    let (finite, nan, negative) = match value {
        Value::Double(n) => (n.is_finite(), n.is_nan(), n.is_sign_negative()),
        Value::Decimal128(n) => (n.is_finite(), n.is_nan(), n.is_negative()),
        _ => return None,
    };
    match (finite, nan, negative) {
        (true, ..) => None,
        (_, true, _) => Some(Special::NaN),
        (.., false) => Some(Special::Positive),
        (.., true) => Some(Special::Negative),
    }
}

/// `$sum` and `$count`.
#[derive(Default)]
pub(crate) struct Total(RemovableSum);

impl Removable for Total {
    fn add(&mut self, value: Value<'_>, _sort: Value<'_>) -> Result<()> {
        self.0.add(value);
        Ok(())
    }

    fn remove(&mut self, value: Value<'_>) -> Result<()> {
        self.0.remove(value);
        Ok(())
    }

    fn result<'a>(&mut self, _current: Value<'_>, _arena: &'a Bump) -> Result<Value<'a>> {
        Ok(self.0.total())
    }
}

/// A mean from which numbers can be taken back.
#[derive(Default)]
pub(crate) struct Mean {
    sum: RemovableSum,
    count: i64,
}

impl Mean {
    fn put(&mut self, value: Value<'_>, quantity: i64) {
        if value.is_number() {
            self.sum.count(value, quantity);
            self.count += quantity;
        }
    }

    /// Null if there is none.
    fn mean(&self) -> Value<'static> {
        if self.count == 0 {
            return Value::Null;
        }
        match self.sum.total() {
            Value::Decimal128(n) if n.is_finite() => {
                Value::Decimal128(n.divide(Decimal128::from_i64(self.count)))
            }
            Value::Double(n) if !n.is_finite() => Value::Double(n),
            other @ Value::Decimal128(_) => other,
            other => Value::Double(other.as_f64().unwrap_or(0.0) / self.count as f64),
        }
    }
}

impl Removable for Mean {
    fn add(&mut self, value: Value<'_>, _sort: Value<'_>) -> Result<()> {
        self.put(value, 1);
        Ok(())
    }

    fn remove(&mut self, value: Value<'_>) -> Result<()> {
        self.put(value, -1);
        Ok(())
    }

    fn result<'a>(&mut self, _current: Value<'_>, _arena: &'a Bump) -> Result<Value<'a>> {
        Ok(self.mean())
    }
}

/// `$stdDevPop` and `$stdDevSamp`. What is not finite gives null while it is in the window.
pub(crate) struct Deviation {
    sample: bool,
    sum: Sum,
    squares: Sum,
    count: i64,
    specials: i64,
}

impl Deviation {
    pub(crate) fn new(sample: bool) -> Deviation {
        Deviation { sample, sum: Sum::new(), squares: Sum::new(), count: 0, specials: 0 }
    }

    fn put(&mut self, value: Value<'_>, quantity: i64) {
        let Some(n) = value.as_f64() else { return };
        if special_of(value).is_some() {
            self.specials += quantity;
            return;
        }
        if self.count == 0 {
            self.count = 1;
            self.sum.add(value);
            return;
        }
        if self.count + quantity == 0 {
            (self.sum, self.squares, self.count) = (Sum::new(), Sum::new(), 0);
            return;
        }
        let before = self.count as f64;
        let x = before * n - self.sum.total().as_f64().unwrap_or(0.0);
        self.count += quantity;
        self.sum.add(Value::Double(n * quantity as f64));
        self.squares.add(Value::Double(x * x * quantity as f64 / (self.count as f64 * before)));
    }
}

impl Removable for Deviation {
    fn add(&mut self, value: Value<'_>, _sort: Value<'_>) -> Result<()> {
        self.put(value, 1);
        Ok(())
    }

    fn remove(&mut self, value: Value<'_>) -> Result<()> {
        self.put(value, -1);
        Ok(())
    }

    fn result<'a>(&mut self, _current: Value<'_>, _arena: &'a Bump) -> Result<Value<'a>> {
        let divisor = if self.sample { self.count - 1 } else { self.count };
        if self.specials > 0 || divisor <= 0 {
            return Ok(Value::Null);
        }
        let squares = self.squares.total().as_f64().unwrap_or(0.0);
        // Rounding can leave less than nothing.
        if squares < 0.0 || (!self.sample && self.count == 1) {
            self.squares = Sum::new();
            return Ok(Value::Int32(0));
        }
        Ok(Value::Double((squares / divisor as f64).sqrt()))
    }
}

/// `$covariancePop` and `$covarianceSamp`, of pairs of numbers.
pub(crate) struct Covariance {
    sample: bool,
    count: i64,
    mean_x: Mean,
    mean_y: Mean,
    /// The sum of the products of distances from the means.
    products: RemovableSum,
}

/// The pair of numbers that a value is.
fn pair_of(value: Value<'_>) -> Option<(Value<'_>, Value<'_>)> {
    let mut values = value.as_array()?.values();
    match (values.next(), values.next(), values.next()) {
        (Some(x), Some(y), None) if x.is_number() && y.is_number() => Some((x, y)),
        _ => None,
    }
}

/// What a pair adds to the covariance that has something in it that is not finite.
fn special_pair(x: Value<'_>, y: Value<'_>) -> Option<Value<'static>> {
    let specials = [special_of(x), special_of(y)];
    let has = |special| specials.contains(&Some(special));
    if specials == [None, None] {
        return None;
    }
    let n = if has(Special::NaN) || (has(Special::Positive) && has(Special::Negative)) {
        f64::NAN
    } else if has(Special::Positive) {
        f64::INFINITY
    } else {
        f64::NEG_INFINITY
    };
    // A decimal NaN does not make the result decimal.
    let is_decimal =
        |value: Value<'_>| matches!(value, Value::Decimal128(_)) && special_of(value) != Some(Special::NaN);
    Some(if is_decimal(x) || is_decimal(y) {
        Value::Decimal128(Decimal128::from_f64(n))
    } else {
        Value::Double(n)
    })
}

/// The product of the distances of two numbers from two means; null where a mean is not known yet.
fn product(x: Value<'_>, mean_x: Value<'_>, y: Value<'_>, mean_y: Value<'_>) -> Value<'static> {
    let of = |a, b| number::subtract(a, b).unwrap_or(Value::Null);
    number::multiply(of(x, mean_x), of(y, mean_y)).unwrap_or(Value::Null)
}

impl Covariance {
    pub(crate) fn new(sample: bool) -> Covariance {
        Covariance {
            sample,
            count: 0,
            mean_x: Mean::default(),
            mean_y: Mean::default(),
            products: RemovableSum::default(),
        }
    }
}

impl Removable for Covariance {
    fn add(&mut self, value: Value<'_>, _sort: Value<'_>) -> Result<()> {
        let Some((x, y)) = pair_of(value) else { return Ok(()) };
        if let Some(special) = special_pair(x, y) {
            self.products.add(special);
            return Ok(());
        }
        self.count += 1;
        let mean_x = self.mean_x.mean();
        self.mean_x.put(x, 1);
        self.mean_y.put(y, 1);
        self.products.add(product(x, mean_x, y, self.mean_y.mean()));
        Ok(())
    }

    fn remove(&mut self, value: Value<'_>) -> Result<()> {
        let Some((x, y)) = pair_of(value) else { return Ok(()) };
        if let Some(special) = special_pair(x, y) {
            self.products.remove(special);
            return Ok(());
        }
        self.count -= 1;
        if self.count == 0 {
            *self = Covariance::new(self.sample);
            return Ok(());
        }
        self.mean_x.put(x, -1);
        self.products.remove(product(x, self.mean_x.mean(), y, self.mean_y.mean()));
        self.mean_y.put(y, -1);
        Ok(())
    }

    fn result<'a>(&mut self, _current: Value<'_>, _arena: &'a Bump) -> Result<Value<'a>> {
        if self.count == 1 && !self.sample {
            return Ok(Value::Double(0.0));
        }
        let divisor = if self.sample { self.count - 1 } else { self.count };
        if divisor <= 0 {
            return Ok(Value::Null);
        }
        let total = match self.products.total() {
            total @ Value::Decimal128(_) => total,
            total => Value::Double(total.as_f64().unwrap_or(0.0)),
        };
        Ok(number::divide(total, Value::Double(divisor as f64)).unwrap_or(Value::Null))
    }
}
