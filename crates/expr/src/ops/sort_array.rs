//! `$sortArray`.

use std::cmp::Ordering;

use sheaf_bson::{Bump, DocBuf, RawDoc, Value, document_in};
use sheaf_errors::{Result, bail};

use super::{array_of, exact_i32, items};
use crate::context::ParseCx;
use crate::env::size_of_value;
use crate::expr::{Call, Cx, Expr};
use crate::operator::{Operator, State, custom};

pub(crate) static OPERATORS: &[Operator] =
    &[custom("$sortArray", parse_sort_array, sort_array).serialized(serialize)];

/// How `$sortArray` orders elements.
#[derive(Debug)]
pub(crate) enum SortBy {
    /// By the whole element; true for descending.
    Whole(bool),
    /// By dotted paths.
    Paths(Vec<SortKey>),
}

/// One path of an order; true for descending.
type SortKey = (Box<[Box<str>]>, bool);

fn parse_sort_array(op: &'static Operator, argument: Value<'_>, cx: &mut ParseCx) -> Result<Expr> {
    let Value::Document(doc) = argument else {
        bail!(2942500, "$sortArray requires an object as an argument, found: {}", argument.type_name());
    };
    let (mut input, mut sort_by) = (None, None);
    for element in doc.iter() {
        match element.key() {
            "input" => input = Some(Expr::parse(element.value(), cx)?),
            "sortBy" => sort_by = Some(element.value()),
            other => bail!(2942501, "$sortArray found an unknown argument: {other}"),
        }
    }
    let Some(input) = input else { bail!(2942502, "$sortArray requires 'input' to be specified") };
    let Some(sort_by) = sort_by else { bail!(2942503, "$sortArray requires 'sortBy' to be specified") };
    let order = match sort_by {
        Value::Document(pattern) => SortBy::Paths(parse_pattern(pattern)?),
        value if value.is_number() => match exact_i32(value) {
            Some(1) => SortBy::Whole(false),
            Some(-1) => SortBy::Whole(true),
            _ => bail!(2942506, "The $sort element value must be either 1 or -1"),
        },
        _ => bail!(
            2942507,
            "The $sort is invalid: use 1/-1 to sort the whole element, or {{field:1/-1}} to sort embedded fields"
        ),
    };
    let source = DocBuf::new().with("sortBy", sort_by);
    Ok(Expr::call(op, vec![input], State::SortBy(order, source), cx))
}

fn parse_pattern(pattern: RawDoc<'_>) -> Result<Vec<SortKey>> {
    if pattern.is_empty() {
        bail!(2942505, "The $sort pattern is empty when it should be a set of fields.");
    }
    let mut keys = Vec::new();
    for element in pattern.iter() {
        let descending = match exact_i32(element.value()) {
            Some(1) => false,
            Some(-1) => true,
            _ => bail!(2942505, "The $sort element value must be either 1 or -1"),
        };
        let path = element.key();
        if path.is_empty() || path.split('.').any(str::is_empty) {
            bail!(2942505, "The $sort field is a dotted field but has an empty part: {path}");
        }
        keys.push((path.split('.').map(Box::from).collect(), descending));
    }
    Ok(keys)
}

fn sort_array<'a>(call: &'a Call, cx: Cx<'a, '_>) -> Result<Value<'a>> {
    let State::SortBy(order, _) = &call.state else { return Ok(Value::Null) };
    let array = match call.arg(0, cx)? {
        Value::Array(array) => array,
        value if value.is_nullish() => return Ok(Value::Null),
        other => bail!(
            2942504,
            "The input argument to $sortArray must be an array, but was of type: {}",
            other.type_name()
        ),
    };
    let mut items = items(array, cx)?;
    sheaf_meter::sort_by(&mut items, |a, b| compare_by(order, *a, *b, cx))?;
    array_of(items.iter().copied(), cx)
}

fn compare_by(order: &SortBy, a: Value<'_>, b: Value<'_>, cx: Cx<'_, '_>) -> Result<Ordering> {
    let directed = |order: Ordering, descending| if descending { order.reverse() } else { order };
    match order {
        SortBy::Whole(descending) => Ok(directed(cx.try_compare(a, b)?, *descending)),
        SortBy::Paths(keys) => {
            for (path, descending) in keys {
                cx.env.spend_for(size_of_value(a) + size_of_value(b))?;
                let order = directed(cx.try_compare(at_path(a, path), at_path(b, path))?, *descending);
                if order.is_ne() {
                    return Ok(order);
                }
            }
            Ok(Ordering::Equal)
        }
    }
}

/// The value at a path; null if there is none. Arrays are entered by index, as the sort of `$push` does.
fn at_path<'a>(value: Value<'a>, path: &[Box<str>]) -> Value<'a> {
    let mut at = value;
    for name in path {
        at = match at {
            Value::Document(doc) | Value::Array(doc) => doc.get_or_missing(name),
            _ => Value::Missing,
        };
    }
    if at.is_missing() { Value::Null } else { at }
}

fn serialize<'a>(call: &'a Call, arena: &'a Bump) -> Value<'a> {
    Value::Document(document_in(arena, |out| {
        out.append("input", call.args[0].serialize(arena));
        if let State::SortBy(_, source) = &call.state {
            out.append_all(source.as_raw());
        }
    }))
}
