//! Arrays as sets.

use std::cmp::Ordering;

use bumpalo::collections::Vec as BumpVec;
use sheaf_bson::{RawDoc, Value};
use sheaf_errors::{Code, Error, Result, bail};

use super::{array_of, items, sort};
use crate::context::ParseCx;
use crate::expr::{Call, Cx, Expr};
use crate::operator::{Arity, Operator, State, binary, custom, lazy, unary};
use crate::parse::parse_arguments;

pub(crate) static OPERATORS: &[Operator] = &[
    unary("$allElementsTrue", |v, _| elements_true("$allElementsTrue", 17040, v[0], true)),
    unary("$anyElementTrue", |v, _| elements_true("$anyElementTrue", 17041, v[0], false)),
    binary("$setDifference", set_difference),
    custom("$setEquals", parse_set_equals, set_equals),
    lazy("$setIntersection", Arity::Any, set_intersection),
    custom("$setIsSubset", parse_set_is_subset, set_is_subset),
    lazy("$setUnion", Arity::Any, set_union),
];

/// Whether all elements are true, or any is.
fn elements_true<'a>(name: &str, code: i32, value: Value<'a>, all: bool) -> Result<Value<'a>> {
    let Value::Array(array) = value else {
        bail!(Code(code), "{name}'s argument must be an array, but is {}", value.type_name());
    };
    Ok(Value::Bool(if all {
        array.values().all(|item| item.truthy())
    } else {
        array.values().any(|item| item.truthy())
    }))
}

/// The distinct elements in order.
fn sorted<'a>(array: RawDoc<'a>, cx: Cx<'a, '_>) -> Result<BumpVec<'a, Value<'a>>> {
    let mut items = items(array, cx)?;
    sort(&mut items, cx)?;
    dedup(&mut items, cx, |item| *item)?;
    Ok(items)
}

/// Keeps the first of equal neighbours.
fn dedup<'a, T: Copy>(
    items: &mut BumpVec<'a, T>,
    cx: Cx<'a, '_>,
    value: impl Fn(&T) -> Value<'a>,
) -> Result<()> {
    let mut kept = 0;
    for at in 0..items.len() {
        let repeated =
            kept > 0 && cx.try_compare(value(&items[kept - 1]), value(&items[at]))? == Ordering::Equal;
        if !repeated {
            items[kept] = items[at];
            kept += 1;
        }
    }
    items.truncate(kept);
    Ok(())
}

fn contains(sorted: &[Value<'_>], value: Value<'_>, cx: Cx<'_, '_>) -> Result<bool> {
    let (mut low, mut high) = (0, sorted.len());
    while low < high {
        let middle = low.midpoint(high);
        match cx.try_compare(sorted[middle], value)? {
            Ordering::Equal => return Ok(true),
            Ordering::Less => low = middle + 1,
            Ordering::Greater => high = middle,
        }
    }
    Ok(false)
}

fn set_difference<'a>(v: &[Value<'a>], cx: Cx<'a, '_>) -> Result<Value<'a>> {
    if v[0].is_nullish() || v[1].is_nullish() {
        return Ok(Value::Null);
    }
    let Value::Array(left) = v[0] else {
        bail!(
            17048,
            "both operands of $setDifference must be arrays. First argument is of type: {}",
            v[0].type_name()
        );
    };
    let Value::Array(right) = v[1] else {
        bail!(
            17049,
            "both operands of $setDifference must be arrays. Second argument is of type: {}",
            v[1].type_name()
        );
    };
    let right = sorted(right, cx)?;
    // What is left keeps the order of first appearance.
    let mut seen = BumpVec::new_in(cx.env.arena());
    let left = items(left, cx)?;
    for (at, item) in left.iter().enumerate() {
        if !contains(&right, *item, cx)? {
            if seen.len() == seen.capacity() {
                cx.env.expect(seen.len() * 2 * size_of::<(usize, Value<'_>)>())?;
            }
            seen.push((at, *item));
        }
    }
    sheaf_meter::sort_by(&mut seen, |a: &(usize, Value<'a>), b| cx.try_compare(a.1, b.1))?;
    dedup(&mut seen, cx, |(_, item)| *item)?;
    seen.sort_unstable_by_key(|(at, _)| *at);
    array_of(seen.iter().map(|(_, item)| *item), cx)
}

fn parse_set_equals(op: &'static Operator, argument: Value<'_>, cx: &mut ParseCx) -> Result<Expr> {
    let args = parse_arguments(op.name, Arity::Any, argument, cx)?;
    if args.len() < 2 {
        bail!(17045, "$setEquals needs at least two arguments had: {}", args.len());
    }
    // A constant operand that is no array is found while optimising, even beside unknown ones.
    for known in args.iter().filter_map(Expr::constant) {
        if known.as_array().is_none() {
            cx.fold_failed(Error::location(
                5887502,
                format!(
                    "All operands of $setEquals must be arrays. One argument is of type: {}",
                    known.type_name()
                ),
            ));
        }
    }
    Ok(Expr::call(op, args, State::None, cx))
}

fn set_equals<'a>(call: &'a Call, cx: Cx<'a, '_>) -> Result<Value<'a>> {
    let mut first: Option<BumpVec<'a, Value<'a>>> = None;
    for (at, arg) in call.args.iter().enumerate() {
        let value = arg.value(cx)?;
        let Value::Array(array) = value else {
            bail!(
                17044,
                "All operands of $setEquals must be arrays. {}-th argument is of type: {}",
                at + 1,
                value.type_name()
            );
        };
        let set = sorted(array, cx)?;
        match &first {
            None => first = Some(set),
            Some(first) => {
                if first.len() != set.len() {
                    return Ok(Value::Bool(false));
                }
                for (a, b) in first.iter().zip(&set) {
                    if cx.try_compare(*a, *b)? != Ordering::Equal {
                        return Ok(Value::Bool(false));
                    }
                }
            }
        }
    }
    Ok(Value::Bool(true))
}

fn set_intersection<'a>(call: &'a Call, cx: Cx<'a, '_>) -> Result<Value<'a>> {
    let mut common: Option<BumpVec<'a, Value<'a>>> = None;
    for arg in &call.args {
        let array = match arg.value(cx)? {
            Value::Array(array) => array,
            value if value.is_nullish() => return Ok(Value::Null),
            other => bail!(
                17047,
                "All operands of $setIntersection must be arrays. One argument is of type: {}",
                other.type_name()
            ),
        };
        let set = sorted(array, cx)?;
        match &mut common {
            None => common = Some(set),
            Some(common) => {
                let mut kept = 0;
                for at in 0..common.len() {
                    if contains(&set, common[at], cx)? {
                        common[kept] = common[at];
                        kept += 1;
                    }
                }
                common.truncate(kept);
            }
        }
    }
    array_of(common.iter().flatten().copied(), cx)
}

fn parse_set_is_subset(op: &'static Operator, argument: Value<'_>, cx: &mut ParseCx) -> Result<Expr> {
    let args = parse_arguments(op.name, Arity::Exactly(2), argument, cx)?;
    // A constant that is no array is found while optimising, with a number of its own, if the other operand is unknown.
    if let (None, Some(known)) = (args[0].constant(), args[1].constant())
        && known.as_array().is_none()
    {
        cx.fold_failed(Error::location(17311, not_second_array(known)));
    }
    Ok(Expr::call(op, args, State::None, cx))
}

fn not_second_array(value: Value<'_>) -> String {
    format!("both operands of $setIsSubset must be arrays. Second argument is of type: {}", value.type_name())
}

fn set_is_subset<'a>(call: &'a Call, cx: Cx<'a, '_>) -> Result<Value<'a>> {
    let value = call.arg(0, cx)?;
    let Value::Array(left) = value else {
        bail!(
            17046,
            "both operands of $setIsSubset must be arrays. First argument is of type: {}",
            value.type_name()
        );
    };
    let value = call.arg(1, cx)?;
    let Value::Array(right) = value else {
        return Err(Error::location(17042, not_second_array(value)));
    };
    cx.env.spend_for(left.len())?;
    let right = sorted(right, cx)?;
    for item in left.values() {
        if !contains(&right, item, cx)? {
            return Ok(Value::Bool(false));
        }
    }
    Ok(Value::Bool(true))
}

fn set_union<'a>(call: &'a Call, cx: Cx<'a, '_>) -> Result<Value<'a>> {
    let mut all = BumpVec::new_in(cx.env.arena());
    for arg in &call.args {
        match arg.value(cx)? {
            Value::Array(array) => {
                cx.env.spend_for(array.len())?;
                // It may be moved to a place twice as large.
                cx.env.expect((all.len() + array.count()) * 2 * size_of::<Value<'_>>())?;
                all.extend(array.values());
            }
            value if value.is_nullish() => return Ok(Value::Null),
            other => bail!(
                17043,
                "All operands of $setUnion must be arrays. One argument is of type: {}",
                other.type_name()
            ),
        }
    }
    sort(&mut all, cx)?;
    dedup(&mut all, cx, |item| *item)?;
    array_of(all.iter().copied(), cx)
}
