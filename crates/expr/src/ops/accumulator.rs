//! `$avg`, `$max`, `$min`, `$sum`, `$stdDevPop`, `$stdDevSamp` as expressions: over their operands, or over
//! the elements if the one operand is an array.

use std::cmp::Ordering;

use sheaf_bson::{Value, number};
use sheaf_errors::Result;

use crate::expr::Cx;
use crate::operator::{Operator, nary};

pub(crate) static OPERATORS: &[Operator] = &[
    nary("$sum", |v, _| {
        let mut sum = number::Sum::new();
        each(v, |value| sum.add(value))?;
        Ok(sum.total())
    }),
    nary("$avg", avg),
    nary("$max", |v, cx| extreme(v, cx, Ordering::Greater)),
    nary("$min", |v, cx| extreme(v, cx, Ordering::Less)),
    nary("$stdDevPop", |v, _| Ok(Deviation::of(v)?.population())),
    nary("$stdDevSamp", |v, _| Ok(Deviation::of(v)?.sample())),
];

/// Visits what the operator works on.
fn each<'a>(values: &[Value<'a>], mut visit: impl FnMut(Value<'a>)) -> Result<()> {
    let mut visit = |value| {
        visit(value);
        sheaf_meter::tick(1)
    };
    match values {
        [Value::Array(array)] => array.values().try_for_each(visit),
        values => values.iter().try_for_each(|value| visit(*value)),
    }
}

fn avg<'a>(values: &[Value<'a>], _: Cx<'a, '_>) -> Result<Value<'a>> {
    let mut sum = number::Sum::new();
    let mut count = 0;
    each(values, |value| {
        if value.is_number() {
            sum.add(value);
            count += 1;
        }
    })?;
    Ok(if count == 0 { Value::Null } else { sum.average(count) })
}

fn extreme<'a>(values: &[Value<'a>], cx: Cx<'a, '_>, wanted: Ordering) -> Result<Value<'a>> {
    let mut best: Option<Value<'a>> = None;
    each(values, |value| {
        if !value.is_nullish() && best.is_none_or(|best| cx.compare(value, best) == wanted) {
            best = Some(value);
        }
    })?;
    Ok(best.unwrap_or(Value::Null))
}

/// Mean and squared distances from it, by Welford's method.
#[derive(Default)]
struct Deviation {
    count: f64,
    mean: f64,
    squares: f64,
}

impl Deviation {
    fn of(values: &[Value<'_>]) -> Result<Self> {
        let mut deviation = Deviation::default();
        each(values, |value| {
            if let Some(n) = value.as_f64() {
                deviation.count += 1.0;
                let delta = n - deviation.mean;
                deviation.mean += delta / deviation.count;
                deviation.squares += delta * (n - deviation.mean);
            }
        })?;
        Ok(deviation)
    }

    /// NaN if infinities or NaN took part, but null for one such value alone.
    fn population(&self) -> Value<'static> {
        if self.count == 0.0 { Value::Null } else { Value::Double((self.squares / self.count).sqrt()) }
    }

    fn sample(&self) -> Value<'static> {
        if self.count < 2.0 { Value::Null } else { Value::Double((self.squares / (self.count - 1.0)).sqrt()) }
    }
}
