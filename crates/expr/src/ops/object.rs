//! `$mergeObjects`, `$getField`, `$setField`, `$unsetField`.

use sheaf_bson::{Bump, Value, document_in};
use sheaf_errors::{Code, Result, bail};

use super::array::FieldList;
use super::show;
use crate::context::ParseCx;
use crate::expr::{Call, Cx, Expr, Node};
use crate::operator::{Arity, Operator, State, custom, lazy};

pub(crate) static OPERATORS: &[Operator] = &[
    lazy("$mergeObjects", Arity::Any, merge_objects),
    custom("$getField", parse_get_field, get_field)
        .serialized(|call, arena| serialize(call, &["field", "input"], arena)),
    custom("$setField", parse_set_field, set_field)
        .serialized(|call, arena| serialize(call, &["field", "input", "value"], arena)),
    custom("$unsetField", parse_set_field, set_field)
        .serialized(|call, arena| serialize(call, &["field", "input"], arena)),
];

fn merge_objects<'a>(call: &'a Call, cx: Cx<'a, '_>) -> Result<Value<'a>> {
    let mut fields = FieldList::new(cx);
    for arg in &call.args {
        match arg.value(cx)? {
            Value::Document(doc) => {
                for element in doc.iter() {
                    fields.set(element.key(), element.value())?;
                    cx.env.spend(1)?;
                }
            }
            value if value.is_nullish() => {}
            other => bail!(
                40400,
                "$mergeObjects requires object inputs, but input {} is of type {}",
                show(other),
                other.type_name()
            ),
        }
    }
    fields.document()
}

/// Arguments: field, input.
fn parse_get_field(op: &'static Operator, argument: Value<'_>, cx: &mut ParseCx) -> Result<Expr> {
    let (mut field, mut input) = (None, None);
    match argument {
        // An object that is no operator names its parts; anything else is the field's name.
        Value::Document(doc) if !doc.iter().next().is_some_and(|first| first.key().starts_with('$')) => {
            for element in doc.iter() {
                match element.key() {
                    "field" => field = Some(Expr::parse(element.value(), cx)?),
                    "input" => input = Some(Expr::parse(element.value(), cx)?),
                    other => bail!(3041701, "$getField found an unknown argument: {other}"),
                }
            }
            if field.is_none() {
                bail!(3041702, "$getField requires 'field' to be specified");
            }
            if input.is_none() {
                bail!(3041703, "$getField requires 'input' to be specified");
            }
        }
        other => field = Some(Expr::parse(other, cx)?),
    }
    let field = field.unwrap_or(Expr::null());
    if let Some(known) = field.constant() {
        field_name("$getField", Code(3041704), known)?;
    }
    let input = match input {
        Some(input) => input,
        None => Expr::parse(Value::String("$$CURRENT"), cx)?,
    };
    Ok(Expr::call(op, vec![field, input], State::None, cx))
}

fn field_name<'v>(op: &str, code: Code, value: Value<'v>) -> Result<&'v str> {
    match value {
        Value::String(name) => Ok(name),
        other => {
            bail!(code, "{op} requires 'field' to evaluate to type String, but got {}", other.type_name())
        }
    }
}

fn get_field<'a>(call: &'a Call, cx: Cx<'a, '_>) -> Result<Value<'a>> {
    let name = field_name("$getField", Code(3041704), call.arg(0, cx)?)?;
    Ok(match call.arg(1, cx)? {
        Value::Document(doc) => doc.get_or_missing(name),
        Value::Null | Value::Undefined => Value::Null,
        _ => Value::Missing,
    })
}

/// Arguments: field (a constant), input, value; `$unsetField` has `$$REMOVE` for a value.
fn parse_set_field(op: &'static Operator, argument: Value<'_>, cx: &mut ParseCx) -> Result<Expr> {
    let name = op.name;
    let Value::Document(doc) = argument else {
        bail!(4161100, "{name} only supports an object as its argument");
    };
    let unset = name == "$unsetField";
    let (mut field, mut input, mut value) = (None, None, unset.then(|| Expr::literal(Value::Missing)));
    for element in doc.iter() {
        match element.key() {
            "field" => field = Some((Expr::parse(element.value(), cx)?, element.value())),
            "input" => input = Some(Expr::parse(element.value(), cx)?),
            "value" if !unset => value = Some(Expr::parse(element.value(), cx)?),
            other => bail!(4161101, "{name} found an unknown argument: {other}"),
        }
    }
    let Some(field) = field else { bail!(4161102, "{name} requires 'field' to be specified") };
    let Some(value) = value else { bail!(4161103, "{name} requires 'value' to be specified") };
    let Some(input) = input else { bail!(4161109, "{name} requires 'input' to be specified") };
    check_field_name(name, &field.0, field.1)?;
    Ok(Expr::call(op, vec![field.0, input, value], State::None, cx))
}

/// The name must be written out, or stand behind `$literal`: a constant that would have to be computed is
/// none yet when mongod looks.
fn check_field_name(name: &str, field: &Expr, value: Value<'_>) -> Result<()> {
    if let (Node::Path { .. }, Value::String(text)) = (&field.0, value) {
        bail!(
            4161108,
            "'{text}' is a field path reference which is not allowed in this context. Did you mean {{$literal: \
             '{text}'}}?"
        );
    }
    let written = match value {
        Value::Document(doc) => doc.iter().all(|only| matches!(only.key(), "$literal" | "$const")),
        other => other.as_array().is_none(),
    };
    let Some(known) = field.constant().filter(|_| written) else {
        bail!(4161106, "{name} requires 'field' to evaluate to a constant, but got a non-constant argument");
    };
    let text = field_name(name, Code(4161107), known)?;
    if text.contains('\0') {
        bail!(9534700, "{name} requires 'field' to not contain an embedded null byte");
    }
    Ok(())
}

fn set_field<'a>(call: &'a Call, cx: Cx<'a, '_>) -> Result<Value<'a>> {
    let name = call.arg(0, cx)?.as_str().unwrap_or("");
    let doc = match call.arg(1, cx)? {
        Value::Document(doc) => doc,
        value if value.is_nullish() => return Ok(Value::Null),
        _ => bail!(4161105, "{} requires 'input' to evaluate to type Object", call.op.name),
    };
    let value = call.arg(2, cx)?;
    Ok(Value::Document(document_in(cx.env.arena(), |out| {
        let mut found = false;
        for element in doc.iter() {
            if element.key_bytes() == name.as_bytes() {
                if !found {
                    out.append(name, value);
                }
                found = true;
            } else {
                out.append_element(element);
            }
        }
        if !found {
            out.append(name, value);
        }
    })))
}

fn serialize<'a>(call: &'a Call, names: &[&str], arena: &'a Bump) -> Value<'a> {
    Value::Document(document_in(arena, |out| {
        for (name, arg) in names.iter().zip(&call.args) {
            out.append(name, arg.serialize(arena));
        }
    }))
}
