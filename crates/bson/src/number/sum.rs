//! Sums that lose nothing on the way, for `$sum` and `$avg`.

use crate::build::DocBuf;
use crate::number::widest;
use crate::raw::RawDoc;
use crate::value::{Decimal128, Type, Value};

/// A running total with MongoDB's rules: integers and doubles are added in twice a double's
/// precision, decimals apart, and the result has the widest type seen, so that the order of the
/// operands hardly matters.
#[derive(Clone, Copy, Debug)]
pub struct Sum {
    /// The total of what is not decimal is `high + low`, where `low` is the rounding error of `high`.
    high: f64,
    low: f64,
    /// What is neither finite nor decimal: once met it decides the sum.
    special: f64,
    decimal: Decimal128,
    kind: Type,
}

impl Default for Sum {
    fn default() -> Self {
        Sum { high: 0.0, low: 0.0, special: 0.0, decimal: Decimal128::ZERO, kind: Type::Int32 }
    }
}

impl Sum {
    /// A total of nothing: int32 zero.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a number; values that are none are ignored.
    pub fn add(&mut self, value: Value<'_>) {
        match value {
            Value::Int32(n) => self.add_double(f64::from(n)),
            Value::Int64(n) => self.add_long(n),
            Value::Double(n) => self.add_double(n),
            Value::Decimal128(n) => self.decimal = self.decimal.add(n),
            _ => return,
        }
        self.kind = widest(self.kind, value.kind());
    }

    /// Adds what another total has gathered.
    pub fn merge(&mut self, other: &Sum) {
        self.add_double(other.high);
        self.add_double(other.low);
        self.special += other.special;
        self.decimal = self.decimal.add(other.decimal);
        self.kind = widest(self.kind, other.kind);
    }

    /// The widest type added so far.
    pub fn kind(&self) -> Type {
        self.kind
    }

    /// The total: an int32 sum that does not fit becomes int64, an int64 sum a double.
    pub fn total(&self) -> Value<'static> {
        match self.kind {
            Type::Decimal128 => Value::Decimal128(self.decimal_total()),
            Type::Double => Value::Double(self.double_total()),
            kind => match (self.long(), kind) {
                (Some(n), Type::Int32) => i32::try_from(n).map_or(Value::Int64(n), Value::Int32),
                (Some(n), _) => Value::Int64(n),
                (None, _) => Value::Double(self.double_total()),
            },
        }
    }

    /// The total divided by a count: a decimal if any decimal was added, else a double.
    pub fn average(&self, count: i64) -> Value<'static> {
        match self.kind {
            Type::Decimal128 => Value::Decimal128(self.decimal_total().divide(Decimal128::from_i64(count))),
            _ => Value::Double(self.double_total() / count as f64),
        }
    }

    /// All that was gathered, as a document from which [`Sum::from_doc`] makes the same total again.
    pub fn to_doc(&self) -> DocBuf {
        DocBuf::build(|doc| {
            doc.append("type", self.kind.number()).append("high", self.high).append("low", self.low);
            if self.special != 0.0 {
                doc.append("special", self.special);
            }
            if self.kind == Type::Decimal128 {
                doc.append("decimal", Value::Decimal128(self.decimal));
            }
        })
    }

    /// The total that [`Sum::to_doc`] wrote; `None` if it was not that.
    pub fn from_doc(doc: RawDoc<'_>) -> Option<Sum> {
        let double = |name: &str| match doc.get(name) {
            Some(Value::Double(n)) => Some(n),
            _ => None,
        };
        let Some(Value::Int32(number)) = doc.get("type") else { return None };
        let kind = Type::from_number(number)
            .filter(|kind| matches!(kind, Type::Int32 | Type::Int64 | Type::Double | Type::Decimal128))?;
        let (high, low) = (double("high")?, double("low")?);
        let special = double("special").unwrap_or(0.0);
        let decimal = match doc.get("decimal") {
            Some(Value::Decimal128(n)) => n,
            _ => Decimal128::ZERO,
        };
        (high.is_finite() && low.is_finite()).then_some(Sum { high, low, special, decimal, kind })
    }

    fn double_total(&self) -> f64 {
        if self.special == 0.0 { self.high + self.low } else { self.special }
    }

    fn decimal_total(&self) -> Decimal128 {
        if self.special != 0.0 {
            return self.decimal.add(Decimal128::from_f64(self.special));
        }
        let total = self.decimal;
        match self.long() {
            Some(n) => total.add(Decimal128::from_i64(n)),
            None => {
                let binary = Decimal128::from_f64_exact(self.high).add(Decimal128::from_f64_exact(self.low));
                total.add(binary)
            }
        }
    }

    /// The total as an integer, if it is one and fits.
    fn long(&self) -> Option<i64> {
        let whole = |part: f64| part.is_finite() && part.fract() == 0.0 && part.abs() < 1e20;
        if self.special != 0.0 || !whole(self.high) || !whole(self.low) {
            return None;
        }
        i64::try_from(self.high as i128 + self.low as i128).ok()
    }

    fn add_long(&mut self, n: i64) {
        // Both halves are exact doubles, which the whole need not be.
        let low = i64::from(n as u32);
        self.add_double((n - low) as f64);
        self.add_double(low as f64);
    }

    fn add_double(&mut self, n: f64) {
        if !n.is_finite() {
            // NaN and opposite infinities give NaN; a nonzero special marks that there was one.
            self.special += n;
            return;
        }
        // Knuth's two-sum, of the number and the correction kept so far.
        let (sum, error) = two_sum(self.high, n);
        if sum.is_finite() {
            (self.high, self.low) = two_sum(sum, error + self.low);
        } else {
            self.special += sum;
        }
    }
}

/// The rounded sum of two doubles and the error of the rounding.
fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    let part = sum - a;
    (sum, (a - (sum - part)) + (b - part))
}
