//! `$sum`, `$avg`, `$count` and the standard deviations.

use sheaf_bson::number::Sum;
use sheaf_bson::{Bump, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_expr::{Expr, ParseCx};

use super::state::{Parsed, State};

/// `$sum`.
#[derive(Default)]
pub(super) struct Total(Sum);

impl State for Total {
    fn add(&mut self, value: Value<'_>) -> Result<()> {
        self.0.add(value);
        Ok(())
    }

    fn result<'a>(&self, _arena: &'a Bump) -> Result<Value<'a>> {
        Ok(self.0.total())
    }
}

/// `$count: {}` is `$sum: 1`.
pub(super) fn parse_count(_name: &'static str, argument: Value<'_>, _cx: &mut ParseCx) -> Result<Parsed> {
    match argument {
        Value::Document(doc) if doc.is_empty() => Ok(Parsed {
            input: Expr::literal(Value::Int32(1)),
            init: None,
            make: Box::new(|_| Ok(Box::new(Total::default()))),
        }),
        _ => bail!(Code::TYPE_MISMATCH, "$count takes no arguments, i.e. $count:{{}}"),
    }
}

/// `$avg`.
#[derive(Default)]
pub(super) struct Average {
    sum: Sum,
    count: i64,
}

impl State for Average {
    fn add(&mut self, value: Value<'_>) -> Result<()> {
        if value.is_number() {
            self.sum.add(value);
            self.count += 1;
        }
        Ok(())
    }

    fn result<'a>(&self, _arena: &'a Bump) -> Result<Value<'a>> {
        Ok(if self.count == 0 { Value::Null } else { self.sum.average(self.count) })
    }
}

/// `$stdDevPop` and `$stdDevSamp`, by Welford's method.
pub(super) struct Deviation {
    sample: bool,
    count: i64,
    mean: f64,
    squares: f64,
}

impl Deviation {
    pub(super) fn population() -> Self {
        Deviation { sample: false, count: 0, mean: 0.0, squares: 0.0 }
    }

    pub(super) fn sample() -> Self {
        Deviation { sample: true, ..Self::population() }
    }
}

impl State for Deviation {
    fn add(&mut self, value: Value<'_>) -> Result<()> {
        let Some(n) = value.as_f64() else { return Ok(()) };
        self.count += 1;
        let delta = n - self.mean;
        if delta != 0.0 {
            self.mean += delta / self.count as f64;
            self.squares += delta * (n - self.mean);
        }
        Ok(())
    }

    fn result<'a>(&self, _arena: &'a Bump) -> Result<Value<'a>> {
        let divisor = if self.sample { self.count - 1 } else { self.count };
        Ok(if divisor <= 0 { Value::Null } else { Value::Double((self.squares / divisor as f64).sqrt()) })
    }
}
