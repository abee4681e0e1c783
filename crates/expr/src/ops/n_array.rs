//! `$firstN`, `$lastN`, `$maxN`, `$minN` over an array.

use sheaf_bson::Value;
use sheaf_errors::{Code, Result, bail};

use super::{array_of, items, show};
use crate::expr::{Call, Cx};
use crate::operator::{Named, Operator, named};

static FIELDS: Named =
    Named { fields: &[("n", 5787906), ("input", 5787907)], not_object: 5787801, unknown: 5787901 };

static EXTREMES: Named =
    Named { fields: &[("n", 5787906), ("input", 5787907)], not_object: 5787900, unknown: 5787901 };

pub(crate) static OPERATORS: &[Operator] = &[
    named("$firstN", &FIELDS, |call, cx| select(call, cx, Which::First)),
    named("$lastN", &FIELDS, |call, cx| select(call, cx, Which::Last)),
    named("$maxN", &EXTREMES, |call, cx| select(call, cx, Which::Max)),
    named("$minN", &EXTREMES, |call, cx| select(call, cx, Which::Min)),
];

#[derive(Clone, Copy, PartialEq)]
enum Which {
    First,
    Last,
    Max,
    Min,
}

fn select<'a>(call: &'a Call, cx: Cx<'a, '_>, which: Which) -> Result<Value<'a>> {
    let n = positive_n(call.arg(0, cx)?)?;
    let input = call.arg(1, cx)?;
    let Value::Array(array) = input else { bail!(5788200, "Input must be an array") };
    let mut items = items(array, cx)?;
    match which {
        Which::First => items.truncate(n),
        Which::Last => _ = items.drain(..items.len().saturating_sub(n)),
        Which::Max | Which::Min => {
            // Like the accumulators of these names, these do not see nulls.
            items.retain(|item| !item.is_nullish());
            sheaf_meter::sort_by(&mut items, |a, b| match which {
                Which::Max => cx.try_compare(*b, *a),
                _ => cx.try_compare(*a, *b),
            })?;
            items.truncate(n);
        }
    }
    array_of(items.iter().copied(), cx)
}

/// The count `n` of these operators.
fn positive_n(value: Value<'_>) -> Result<usize> {
    let n = match value {
        Value::Double(n) if !n.is_finite() => {
            bail!(31109, "Can't coerce out of range value {} to long", show(value))
        }
        Value::Decimal128(n) if !n.is_finite() => {
            bail!(31109, "Can't coerce out of range value {n} to long")
        }
        value => value.as_exact_i64(),
    };
    match n {
        Some(n) if n > 0 => Ok(usize::try_from(n).unwrap_or(usize::MAX)),
        _ => bail!(
            Code(7548606),
            "Value for 'n' must be of integral type and greater than 0, but found {}",
            show(value)
        ),
    }
}
