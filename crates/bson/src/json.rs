//! MongoDB Extended JSON v2: BSON as text that a person can read and a program can turn back.

mod base64;
mod date;
mod parse;
mod text;

use std::fmt::Write;

pub use date::{iso_date, parse_iso_date};
pub use parse::{ParseJsonError, parse_array, parse_document};

use crate::id::uuid_text;
use crate::raw::RawDoc;
use crate::value::{Binary, Value};

/// How much of the types the text keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Style {
    /// All of them: `{"$numberInt":"1"}`.
    Canonical,
    /// Plain numbers and readable dates: `1`.
    Relaxed,
    /// [`Style::Relaxed`] as mongod's log has it: dates always with milliseconds, UUIDs as such.
    Log,
}

/// A document as Extended JSON, on one line.
///
/// ```
/// use sheaf_bson::{doc, json};
///
/// let plant = doc! { "name": "rye", "grams": 38i64 };
/// assert_eq!(json::to_json(plant.as_raw(), json::Style::Relaxed), r#"{"name":"rye","grams":38}"#);
/// assert_eq!(json::to_json(plant.as_raw(), json::Style::Canonical), r#"{"name":"rye","grams":{"$numberLong":"38"}}"#);
/// ```
pub fn to_json(doc: RawDoc<'_>, style: Style) -> String {
    let mut out = String::with_capacity(doc.len() * 2);
    put_document(&mut out, doc, style);
    out
}

/// A value as Extended JSON. [`Value::Missing`] is written as undefined.
pub fn value_to_json(value: Value<'_>, style: Style) -> String {
    let mut out = String::new();
    put_value(&mut out, value, style);
    out
}

/// Bytes as base64 with padding.
pub fn base64(bytes: &[u8]) -> String {
    base64::encode(bytes)
}

/// Appends a document as Extended JSON.
pub fn put_document(out: &mut String, doc: RawDoc<'_>, style: Style) {
    out.push('{');
    for (at, element) in doc.iter().enumerate() {
        if at > 0 {
            out.push(',');
        }
        put_string(out, element.key());
        out.push(':');
        put_value(out, element.value(), style);
    }
    out.push('}');
}

/// Appends a value as Extended JSON.
pub fn put_value(out: &mut String, value: Value<'_>, style: Style) {
    let canonical = style == Style::Canonical;
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(b) => out.push_str(if b { "true" } else { "false" }),
        Value::String(text) => put_string(out, text),
        Value::Document(doc) => put_document(out, doc, style),
        Value::Array(array) => put_array(out, array, style),
        Value::Int32(n) if canonical => put_wrapped(out, "$numberInt", &n.to_string()),
        Value::Int64(n) if canonical => put_wrapped(out, "$numberLong", &n.to_string()),
        Value::Int32(n) => put_display(out, n),
        Value::Int64(n) => put_display(out, n),
        Value::Double(n) if canonical || !n.is_finite() => put_wrapped(out, "$numberDouble", &double(n)),
        Value::Double(n) => out.push_str(&double(n)),
        Value::Decimal128(n) => put_wrapped(out, "$numberDecimal", &n.to_string()),
        Value::ObjectId(id) => put_wrapped(out, "$oid", &id.to_string()),
        Value::Symbol(text) => put_wrapped(out, "$symbol", text),
        Value::JavaScript(code) => put_wrapped(out, "$code", code),
        Value::MinKey => out.push_str("{\"$minKey\":1}"),
        Value::MaxKey => out.push_str("{\"$maxKey\":1}"),
        Value::Undefined | Value::Missing => out.push_str("{\"$undefined\":true}"),
        Value::DateTime(millis) => put_date(out, millis, style),
        Value::Binary(binary) => put_binary(out, binary, style),
        Value::Timestamp(time) => {
            let (t, i) = (time.seconds(), time.increment());
            put_display(out, format_args!("{{\"$timestamp\":{{\"t\":{t},\"i\":{i}}}}}"));
        }
        Value::Regex(regex) => {
            out.push_str("{\"$regularExpression\":{\"pattern\":");
            put_string(out, regex.pattern);
            out.push_str(",\"options\":");
            put_string(out, regex.options);
            out.push_str("}}");
        }
        Value::DbPointer(pointer) => {
            out.push_str("{\"$dbPointer\":{\"$ref\":");
            put_string(out, pointer.namespace);
            put_display(out, format_args!(",\"$id\":{{\"$oid\":\"{}\"}}}}}}", pointer.id));
        }
        Value::CodeWithScope(code) => {
            out.push_str("{\"$code\":");
            put_string(out, code.code);
            out.push_str(",\"$scope\":");
            put_document(out, code.scope, style);
            out.push('}');
        }
    }
}

fn put_array(out: &mut String, array: RawDoc<'_>, style: Style) {
    out.push('[');
    for (at, value) in array.values().enumerate() {
        if at > 0 {
            out.push(',');
        }
        put_value(out, value, style);
    }
    out.push(']');
}

/// `{"$name":"text"}`.
fn put_wrapped(out: &mut String, name: &str, text: &str) {
    put_display(out, format_args!("{{\"{name}\":"));
    put_string(out, text);
    out.push('}');
}

fn put_date(out: &mut String, millis: i64, style: Style) {
    match iso_date(millis, style == Style::Log) {
        Some(text) if style != Style::Canonical => put_wrapped(out, "$date", &text),
        _ => put_display(out, format_args!("{{\"$date\":{{\"$numberLong\":\"{millis}\"}}}}")),
    }
}

fn put_binary(out: &mut String, binary: Binary<'_>, style: Style) {
    match <[u8; 16]>::try_from(binary.bytes) {
        Ok(uuid) if binary.subtype == 4 && style == Style::Log => put_wrapped(out, "$uuid", &uuid_text(uuid)),
        _ => {
            // The old subtype keeps a second length inside, which is no part of the data.
            let data =
                if binary.subtype == 2 { binary.bytes.get(4..).unwrap_or_default() } else { binary.bytes };
            let (text, subtype) = (base64::encode(data), binary.subtype);
            let body =
                format_args!("{{\"$binary\":{{\"base64\":\"{text}\",\"subType\":\"{subtype:02x}\"}}}}");
            put_display(out, body);
        }
    }
}

/// The shortest text that reads back as the same double, always with a point or an exponent.
fn double(n: f64) -> String {
    match n {
        _ if n.is_nan() => "NaN".to_owned(),
        f64::INFINITY => "Infinity".to_owned(),
        f64::NEG_INFINITY => "-Infinity".to_owned(),
        _ => format!("{n:?}"),
    }
}

fn put_display(out: &mut String, what: impl std::fmt::Display) {
    // Writing into a string does not fail.
    let _ = write!(out, "{what}");
}

/// Appends a JSON string with its quotes.
pub fn put_string(out: &mut String, text: &str) {
    out.push('"');
    let mut plain = 0;
    for (at, byte) in text.bytes().enumerate() {
        let escape = match byte {
            b'"' => "\\\"",
            b'\\' => "\\\\",
            b'\n' => "\\n",
            b'\r' => "\\r",
            b'\t' => "\\t",
            0x08 => "\\b",
            0x0C => "\\f",
            0x00..0x20 | 0x7F => "",
            _ => continue,
        };
        out.push_str(&text[plain..at]);
        plain = at + 1;
        if escape.is_empty() {
            put_display(out, format_args!("\\u{byte:04x}"));
        } else {
            out.push_str(escape);
        }
    }
    out.push_str(&text[plain..]);
    out.push('"');
}

#[cfg(test)]
mod tests;
