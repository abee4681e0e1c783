//! `$zip`.

use sheaf_bson::{Bump, Value, array_in, document_in};
use sheaf_errors::{Result, bail};

use super::{build_array, grown, items, show};
use crate::context::ParseCx;
use crate::expr::{Call, Cx, Expr};
use crate::operator::{Operator, State, custom};

pub(crate) static OPERATORS: &[Operator] = &[custom("$zip", parse_zip, zip).serialized(serialize_zip)];

/// Arguments: the inputs, then the defaults (none, or as many as inputs).
fn parse_zip(op: &'static Operator, argument: Value<'_>, cx: &mut ParseCx) -> Result<Expr> {
    let Value::Document(doc) = argument else {
        bail!(34460, "$zip only supports an object as an argument, found {}", argument.type_name());
    };
    let (mut inputs, mut defaults, mut longest) = (Vec::new(), Vec::new(), false);
    for element in doc.iter() {
        match (element.key(), element.value()) {
            ("inputs", Value::Array(array)) => inputs = parse_all(array, cx)?,
            ("inputs", other) => {
                bail!(34461, "inputs must be an array of expressions, found {}", other.type_name())
            }
            ("defaults", Value::Array(array)) => defaults = parse_all(array, cx)?,
            ("defaults", other) => {
                bail!(34462, "defaults must be an array of expressions, found {}", other.type_name())
            }
            ("useLongestLength", Value::Bool(given)) => longest = given,
            ("useLongestLength", other) => {
                bail!(34463, "useLongestLength must be a bool, found {}", other.type_name())
            }
            (other, _) => bail!(34464, "$zip found an unknown argument: {other}"),
        }
    }
    if inputs.is_empty() {
        bail!(34465, "$zip requires at least one input array");
    }
    if !defaults.is_empty() && !longest {
        bail!(34466, "cannot specify defaults unless useLongestLength is true");
    }
    if !defaults.is_empty() && defaults.len() != inputs.len() {
        bail!(34467, "defaults and inputs must have the same length");
    }
    let count = inputs.len();
    inputs.extend(defaults);
    Ok(Expr::call(op, inputs, State::Zip { inputs: count, longest }, cx))
}

fn parse_all(array: sheaf_bson::RawDoc<'_>, cx: &mut ParseCx) -> Result<Vec<Expr>> {
    array.values().map(|item| Expr::parse(item, cx)).collect()
}

fn zip<'a>(call: &'a Call, cx: Cx<'a, '_>) -> Result<Value<'a>> {
    let State::Zip { inputs, longest } = call.state else { return Ok(Value::Null) };
    let (inputs, defaults) = call.args.split_at(inputs);
    let mut columns = Vec::with_capacity(inputs.len());
    for input in inputs {
        match input.value(cx)? {
            Value::Array(array) => columns.push(items(array, cx)?),
            value if value.is_nullish() => return Ok(Value::Null),
            other => bail!(34468, "$zip found a non-array expression in input: {}", show(other)),
        }
    }
    let fallbacks = defaults.iter().map(|expr| expr.value(cx)).collect::<Result<Vec<_>>>()?;
    let lengths = columns.iter().map(|column| column.len());
    let rows = if longest { lengths.max() } else { lengths.min() }.unwrap_or(0);
    build_array(cx, |out| {
        for row in 0..rows {
            let mut tuple = out.array();
            for (at, column) in columns.iter().enumerate() {
                let fallback = fallbacks.get(at).copied().unwrap_or(Value::Null);
                tuple.push(column.get(row).copied().unwrap_or(fallback));
                grown(cx, tuple.size())?;
            }
            drop(tuple);
            grown(cx, out.size())?;
        }
        Ok(())
    })
}

fn serialize_zip<'a>(call: &'a Call, arena: &'a Bump) -> Value<'a> {
    let State::Zip { inputs, longest } = call.state else { return Value::Null };
    let (inputs, defaults) = call.args.split_at(inputs);
    let list = |exprs: &'a [Expr]| {
        Value::Array(array_in(arena, |out| exprs.iter().for_each(|expr| _ = out.push(expr.serialize(arena)))))
    };
    Value::Document(document_in(arena, |out| {
        out.append("inputs", list(inputs));
        if !defaults.is_empty() {
            out.append("defaults", list(defaults));
        }
        out.append("useLongestLength", longest);
    }))
}
