//! `$sum`, `$avg`, `$count` and the standard deviations.

use sheaf_bson::number::Sum;
use sheaf_bson::{Bump, DocBuf, RawDoc, Value, doc, document_in};
use sheaf_errors::{Code, Result, bail};
use sheaf_expr::{Expr, ParseCx};

use super::state::{Parsed, State, no_partial};

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

    fn partial<'a>(&self, arena: &'a Bump) -> Result<Value<'a>> {
        Ok(in_arena(&self.0.to_doc(), arena))
    }

    fn merge(&mut self, partial: Value<'_>) -> Result<()> {
        self.0.merge(&sum_of("$sum", partial)?);
        Ok(())
    }
}

/// The total in a partial result; nothing of a missing one.
fn sum_of(name: &str, partial: Value<'_>) -> Result<Sum> {
    match partial {
        Value::Missing => Ok(Sum::new()),
        Value::Document(doc) => Sum::from_doc(doc).map_or_else(|| no_partial(name, partial), Ok),
        other => no_partial(name, other),
    }
}

/// A document in an arena.
fn in_arena<'a>(document: &DocBuf, arena: &'a Bump) -> Value<'a> {
    Value::Document(document_in(arena, |out| _ = out.append_all(document.as_raw())))
}

/// The number in a field of a partial result.
fn number_in(name: &str, partial: RawDoc<'_>, field: &str) -> Result<f64> {
    match partial.get(field) {
        Some(Value::Double(n)) => Ok(n),
        _ => no_partial(name, Value::Document(partial)),
    }
}

/// The count of values in a partial result.
fn count_in(name: &str, partial: RawDoc<'_>) -> Result<i64> {
    match partial.get("count") {
        Some(Value::Int64(n)) if n >= 0 => Ok(n),
        _ => no_partial(name, Value::Document(partial)),
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

    fn partial<'a>(&self, arena: &'a Bump) -> Result<Value<'a>> {
        Ok(in_arena(&DocBuf::new().with("count", self.count).with("sum", &self.sum.to_doc()), arena))
    }

    fn merge(&mut self, partial: Value<'_>) -> Result<()> {
        let Value::Document(doc) = partial else {
            return if partial.is_missing() { Ok(()) } else { no_partial("$avg", partial) };
        };
        self.sum.merge(&sum_of("$avg", doc.get_or_missing("sum"))?);
        self.count = self.count.saturating_add(count_in("$avg", doc)?);
        Ok(())
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

    fn partial<'a>(&self, arena: &'a Bump) -> Result<Value<'a>> {
        let Deviation { count, mean, squares, .. } = *self;
        Ok(in_arena(&doc! { "count": count, "mean": mean, "squares": squares }, arena))
    }

    /// As Chan, Golub and LeVeque join two of Welford's sums.
    fn merge(&mut self, partial: Value<'_>) -> Result<()> {
        let name = if self.sample { "$stdDevSamp" } else { "$stdDevPop" };
        let Value::Document(doc) = partial else {
            return if partial.is_missing() { Ok(()) } else { no_partial(name, partial) };
        };
        let (count, mean) = (count_in(name, doc)?, number_in(name, doc, "mean")?);
        let squares = number_in(name, doc, "squares")?;
        if self.count == 0 || count == 0 {
            if count > 0 {
                (self.count, self.mean, self.squares) = (count, mean, squares);
            }
            return Ok(());
        }
        let all = self.count.saturating_add(count);
        let (own, its, whole) = (self.count as f64, count as f64, all as f64);
        let delta = mean - self.mean;
        if delta != 0.0 {
            self.mean += delta * its / whole;
            self.squares += delta * delta * own * its / whole;
        }
        self.squares += squares;
        self.count = all;
        Ok(())
    }
}
