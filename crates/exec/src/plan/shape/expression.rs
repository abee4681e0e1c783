//! Expressions in shapes.

use sheaf_bson::{ArrayWriter, DocBuf, DocWriter, RawDoc, Value};

use super::goes_on;
use super::literal::{Constants, put_literal};

/// What it costs to write a part of an expression.
const PART: u32 = 4;

/// Writes an expression as a field.
pub(super) fn put(out: &mut DocWriter<'_, Vec<u8>>, name: &str, value: Value<'_>, constants: Constants) {
    if !goes_on(PART) {
        return;
    }
    match value {
        Value::String(path) if path.starts_with('$') => _ = out.append(name, path),
        Value::Document(operator) if is_operator(operator) => put_operator(out, name, operator, constants),
        Value::Document(fields) => {
            let mut inner = out.document(name);
            for field in fields.iter().take_while(|_| goes_on(1)) {
                put(&mut inner, field.key(), field.value(), constants);
            }
        }
        Value::Array(items) => put_items(out, name, items, constants),
        constant => put_constant(out, name, constant, constants),
    }
}

fn is_operator(fields: RawDoc<'_>) -> bool {
    fields.iter().next().is_some_and(|first| first.key().starts_with('$'))
}

/// A constant, wrapped where it would be read as something else.
fn put_constant(out: &mut DocWriter<'_, Vec<u8>>, name: &str, value: Value<'_>, constants: Constants) {
    match constants {
        Constants::Representative => put_literal(&mut out.document(name), "$const", value, constants),
        Constants::TypeNames => put_literal(out, name, value, constants),
    }
}

fn put_operator(out: &mut DocWriter<'_, Vec<u8>>, name: &str, operator: RawDoc<'_>, constants: Constants) {
    let Some(first) = operator.iter().next() else { return };
    match (first.key(), first.value()) {
        ("$literal" | "$const", value) => put_constant(out, name, value, constants),
        // What metadata is asked for is no constant.
        ("$meta", value) => _ = out.document(name).append("$meta", value),
        // The name of a variable is none either.
        (operator @ ("$map" | "$filter"), Value::Document(fields)) => {
            let mut outer = out.document(name);
            let mut inner = outer.document(operator);
            for field in fields.iter() {
                match (field.key(), field.value()) {
                    ("as", Value::String(_)) => _ = inner.append_element(field),
                    (key, value) => put(&mut inner, key, value, constants),
                }
            }
        }
        (operator, Value::Array(items)) => put_items(&mut out.document(name), operator, items, constants),
        (operator, argument @ Value::Document(fields)) if !is_operator(fields) => {
            put(&mut out.document(name), operator, argument, constants);
        }
        // The only argument stands in a list like others.
        (operator, argument) => {
            let mut inner = out.document(name);
            push(&mut inner.array(operator), argument, constants);
        }
    }
}

fn put_items(out: &mut DocWriter<'_, Vec<u8>>, name: &str, items: RawDoc<'_>, constants: Constants) {
    let mut list = out.array(name);
    items.values().take_while(|_| goes_on(1)).for_each(|item| push(&mut list, item, constants));
}

fn push(list: &mut ArrayWriter<'_, Vec<u8>>, item: Value<'_>, constants: Constants) {
    let one = DocBuf::build(|out| put(out, "0", item, constants));
    list.push(one.as_raw().get_or_missing("0"));
}
