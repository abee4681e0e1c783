//! Values as mongod prints them inside error messages.

use std::fmt::Write;

use sheaf_bson::{RawDoc, Value};

/// `{ a: 1, b: "x" }`.
pub(crate) fn document(doc: RawDoc<'_>) -> String {
    let mut out = String::new();
    put_document(&mut out, doc);
    out
}

/// `a: 1`.
pub(crate) fn element(key: &str, value: Value<'_>) -> String {
    let mut out = format!("{key}: ");
    put_value(&mut out, value);
    out
}

/// `1`, `"x"`, `[ 1, 2 ]`.
pub(crate) fn value(value: Value<'_>) -> String {
    let mut out = String::new();
    put_value(&mut out, value);
    out
}

fn put_document(out: &mut String, doc: RawDoc<'_>) {
    if doc.is_empty() {
        out.push_str("{}");
        return;
    }
    for (at, element) in doc.iter().enumerate() {
        out.push_str(if at == 0 { "{ " } else { ", " });
        out.push_str(element.key());
        out.push_str(": ");
        put_value(out, element.value());
    }
    out.push_str(" }");
}

fn put_array(out: &mut String, array: RawDoc<'_>) {
    if array.is_empty() {
        out.push_str("[]");
        return;
    }
    for (at, value) in array.values().enumerate() {
        out.push_str(if at == 0 { "[ " } else { ", " });
        put_value(out, value);
    }
    out.push_str(" ]");
}

fn put_value(out: &mut String, value: Value<'_>) {
    // Writing into a String cannot fail.
    let _ = match value {
        Value::Missing => write!(out, "EOO"),
        Value::MinKey => write!(out, "MinKey"),
        Value::MaxKey => write!(out, "MaxKey"),
        Value::Undefined => write!(out, "undefined"),
        Value::Null => write!(out, "null"),
        Value::Int32(n) => write!(out, "{n}"),
        Value::Int64(n) => write!(out, "{n}"),
        Value::Double(n) if n == n.trunc() && n.abs() < 1e15 => write!(out, "{n:.1}"),
        Value::Double(n) => write!(out, "{n}"),
        Value::Decimal128(n) => write!(out, "{n}"),
        Value::String(text) | Value::Symbol(text) => write!(out, "\"{text}\""),
        Value::Document(doc) => {
            put_document(out, doc);
            Ok(())
        }
        Value::Array(array) => {
            put_array(out, array);
            Ok(())
        }
        Value::Binary(binary) => {
            let _ = write!(out, "BinData({}, ", binary.subtype);
            binary.bytes.iter().for_each(|byte| _ = write!(out, "{byte:02X}"));
            write!(out, ")")
        }
        Value::ObjectId(id) => {
            out.push_str("ObjectId('");
            id.0.iter().for_each(|byte| _ = write!(out, "{byte:02x}"));
            write!(out, "')")
        }
        Value::Bool(b) => write!(out, "{b}"),
        Value::DateTime(ms) => write!(out, "new Date({ms})"),
        Value::Timestamp(t) => write!(out, "Timestamp({}, {})", t.seconds(), t.increment()),
        Value::Regex(regex) => write!(out, "/{}/{}", regex.pattern, regex.options),
        Value::DbPointer(pointer) => write!(out, "DBRef('{}')", pointer.namespace),
        Value::JavaScript(code) => write!(out, "{code}"),
        Value::CodeWithScope(code) => write!(out, "CodeWScope( {})", code.code),
    };
}
