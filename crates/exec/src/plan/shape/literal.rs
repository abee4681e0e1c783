//! What stands in a shape for a constant.

use sheaf_bson::{DocBuf, DocWriter, ObjectId, RawDoc, Regex, Timestamp, Value};

/// What stands for the constants of a shape.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Constants {
    /// A constant of its type, so that the shape can be read as a query: what is hashed.
    Representative,
    /// The name of its type: what people read.
    TypeNames,
}

/// The name under which constants of a type go: all numbers are alike.
pub(super) fn type_name(value: Value<'_>) -> &'static str {
    match value {
        Value::Int32(_) | Value::Int64(_) | Value::Double(_) | Value::Decimal128(_) => "number",
        Value::String(_) | Value::Symbol(_) => "string",
        Value::Missing => "undefined",
        other => other.type_name(),
    }
}

/// The type of an array's items, if all have the same.
fn item_type<'a>(items: RawDoc<'a>) -> Option<Value<'a>> {
    let mut values = items.values();
    let first = values.next()?;
    values.all(|item| item.kind() == first.kind()).then_some(first)
}

/// Writes what stands for the constant.
pub(super) fn put_literal(
    out: &mut DocWriter<'_, Vec<u8>>,
    name: &str,
    value: Value<'_>,
    constants: Constants,
) {
    match constants {
        Constants::TypeNames => _ = out.append(name, debug_text(value).as_str()),
        Constants::Representative => put_representative(out, name, value),
    }
}

fn debug_text(value: Value<'_>) -> String {
    match value {
        Value::Array(items) if items.is_empty() => "[]".to_owned(),
        Value::Array(items) => match item_type(items) {
            Some(first) => format!("?array<?{}>", type_name(first)),
            None => "?array<>".to_owned(),
        },
        value => format!("?{}", type_name(value)),
    }
}

fn put_representative(out: &mut DocWriter<'_, Vec<u8>>, name: &str, value: Value<'_>) {
    let Value::Array(items) = value else {
        put_one(out, name, value);
        return;
    };
    if items.is_empty() {
        out.array(name);
        return;
    }
    match item_type(items) {
        Some(first) => {
            let one = DocBuf::build(|one| put_one(one, "0", first));
            out.array(name).push(one.as_raw().get_or_missing("0"));
        }
        None => _ = out.array(name).push(2).push("or more types"),
    }
}

/// The representative of what is no array, or of an array in an array.
fn put_one(out: &mut DocWriter<'_, Vec<u8>>, name: &str, value: Value<'_>) {
    match value {
        Value::String(_) | Value::Symbol(_) => _ = out.append(name, "?"),
        Value::Int32(_) | Value::Int64(_) | Value::Double(_) | Value::Decimal128(_) => {
            _ = out.append(name, 1);
        }
        Value::Document(_) => _ = out.document(name).append("?", "?"),
        Value::Array(_) => drop(out.array(name)),
        Value::Binary(_) => {
            let empty = sheaf_bson::Binary { subtype: 0, bytes: &[] };
            out.append(name, Value::Binary(empty));
        }
        Value::ObjectId(_) => _ = out.append(name, Value::ObjectId(ObjectId([0xFF; 12]))),
        Value::Bool(_) => _ = out.append(name, true),
        Value::DateTime(_) => _ = out.append(name, Value::DateTime(0)),
        Value::Regex(_) => {
            _ = out.append(name, Value::Regex(Regex { pattern: "/\\?/", options: "" }));
        }
        Value::JavaScript(_) => _ = out.append(name, Value::JavaScript("return ?;")),
        Value::Timestamp(_) => _ = out.append(name, Timestamp(0)),
        Value::Missing | Value::Undefined => _ = out.append(name, Value::Undefined),
        other => _ = out.append(name, other),
    }
}
