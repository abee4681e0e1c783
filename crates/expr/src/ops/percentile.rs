//! `$median` and `$percentile` as expressions: exact, which is as near as `approximate` can come.

use std::cmp::Ordering;

use sheaf_bson::{Bump, Value, document_in};
use sheaf_errors::{Code, Result, bail};

use super::{array_of, show};
use crate::context::ParseCx;
use crate::expr::{Call, Cx, Expr};
use crate::operator::{Operator, State, custom};

pub(crate) static OPERATORS: &[Operator] = &[
    custom("$median", parse, percentile).serialized(serialize),
    custom("$percentile", parse, percentile).serialized(serialize),
];

/// Arguments: the input, and for `$percentile` the constant `p`.
fn parse(op: &'static Operator, argument: Value<'_>, cx: &mut ParseCx) -> Result<Expr> {
    let (name, median) = (op.name, op.name == "$median");
    let Value::Document(doc) = argument else {
        let code = Code(if median { 7_436_201 } else { 7_436_200 });
        bail!(code, "specification must be an object; found {name}: {}", show(argument));
    };
    let (mut input, mut p, mut method) = (None, None, None);
    for element in doc.iter() {
        let place = match element.key() {
            "input" => &mut input,
            "p" if !median => &mut p,
            "method" => &mut method,
            other => bail!(40415, "BSON field '{name}.{other}' is an unknown field."),
        };
        if place.replace(element.value()).is_some() {
            bail!(40413, "BSON field '{name}.{}' is a duplicate field", element.key());
        }
    }
    match method {
        Some(Value::String("approximate")) | None => {}
        Some(Value::String(_)) => {
            bail!(Code::BAD_VALUE, "Currently only 'approximate' can be used as percentile 'method'.")
        }
        Some(other) => bail!(
            Code::TYPE_MISMATCH,
            "BSON field '{name}.method' is the wrong type '{}', expected type 'string'",
            other.type_name()
        ),
    }
    let missing = |field: &str| format!("BSON field '{name}.{field}' is missing but a required field");
    let Some(input) = input else { bail!(40414, "{}", missing("input")) };
    if p.is_none() && !median {
        bail!(40414, "{}", missing("p"));
    }
    if method.is_none() {
        bail!(40414, "{}", missing("method"));
    }
    let mut args = vec![Expr::parse(input, cx)?];
    if let Some(p) = p {
        args.push(parse_p(p, cx)?);
    }
    Ok(Expr::call(op, args, State::None, cx))
}

fn parse_p(p: Value<'_>, cx: &mut ParseCx) -> Result<Expr> {
    const MESSAGE: &str = "The $percentile 'p' field must be an array of numbers from [0.0, 1.0], but found:";
    let expr = Expr::parse(p, cx)?;
    let Some(value) = expr.constant() else {
        bail!(
            7750300,
            "The $percentile 'p' field must be an array of constant values, but found value: {}.",
            show(p)
        );
    };
    let values = match value {
        Value::Array(values) if !values.is_empty() => values,
        other => bail!(7750301, "{MESSAGE} {}", show(other)),
    };
    for value in values.values() {
        match value.as_f64() {
            None => bail!(7750302, "{MESSAGE} {}", show(value)),
            Some(p) if !(0.0..=1.0).contains(&p) => bail!(7750303, "{MESSAGE} {}", show(value)),
            Some(_) => {}
        }
    }
    Ok(expr)
}

/// Over the numbers of an array, or over one number; null for each if there are none.
fn percentile<'a>(call: &'a Call, cx: Cx<'a, '_>) -> Result<Value<'a>> {
    let mut numbers = Vec::new();
    match call.arg(0, cx)? {
        Value::Array(array) => {
            cx.env.spend_for(array.len())?;
            cx.env.expect(array.count() * size_of::<f64>())?;
            numbers.extend(array.values().filter_map(|value| value.as_f64()));
        }
        value => numbers.extend(value.as_f64()),
    }
    sheaf_meter::sort_by(&mut numbers, |a, b| Ok(order(*a, *b)))?;
    match call.args.get(1).and_then(Expr::constant) {
        Some(Value::Array(ps)) => {
            array_of(ps.values().map(|p| rank(&numbers, p.as_f64().unwrap_or(0.0))), cx)
        }
        _ => Ok(rank(&numbers, 0.5)),
    }
}

/// NaN before all others, zeros as they came.
fn order(a: f64, b: f64) -> Ordering {
    a.partial_cmp(&b).unwrap_or_else(|| b.is_nan().cmp(&a.is_nan()))
}

/// The number that stands at a share of the sorted ones.
fn rank(sorted: &[f64], p: f64) -> Value<'static> {
    let count = sorted.len() as f64;
    let rank = if p >= 1.0 { count - 1.0 } else { ((count * p).ceil() - 1.0).max(0.0) };
    sorted.get(rank as usize).map_or(Value::Null, |n| Value::Double(*n))
}

fn serialize<'a>(call: &'a Call, arena: &'a Bump) -> Value<'a> {
    Value::Document(document_in(arena, |out| {
        for (name, arg) in ["input", "p"].iter().zip(&call.args) {
            out.append(name, arg.serialize(arena));
        }
        out.append("method", "approximate");
    }))
}
