//! Values in the text form in which MongoDB shows them in messages and in the bounds of explain.

use std::fmt::Write;

use crate::{RawDoc, Value};

/// The text of one bound, as explain prints it: `1`, `5.5`, `"a"`, `new Date(0)`, `MinKey`.
pub fn value_text(value: Value<'_>) -> String {
    let mut out = String::new();
    write_value(&mut out, value);
    out
}

/// Strings longer than this are cut in explain's bounds.
const STRING_SHOWN: usize = 160;

fn write_value(out: &mut String, value: Value<'_>) {
    // Writing to a String cannot fail.
    let _ = match value {
        Value::Missing => write!(out, "EOO"),
        Value::MinKey => write!(out, "MinKey"),
        Value::MaxKey => write!(out, "MaxKey"),
        Value::Undefined => write!(out, "undefined"),
        Value::Null => write!(out, "null"),
        Value::Int32(n) => write!(out, "{n}"),
        Value::Int64(n) => write!(out, "{n}"),
        Value::Double(n) => write!(out, "{}", double_text(n)),
        Value::Decimal128(n) => write!(out, "{n}"),
        Value::String(text) | Value::Symbol(text) => write_string(out, text),
        Value::Document(doc) => write_document(out, doc),
        Value::Array(array) => write_array(out, array),
        Value::Binary(binary) => {
            let _ = write!(out, "BinData({}, ", binary.subtype);
            for byte in binary.bytes.iter().take(80) {
                let _ = write!(out, "{byte:02X}");
            }
            write!(out, ")")
        }
        Value::ObjectId(id) => {
            let _ = write!(out, "ObjectId('");
            for byte in id.0 {
                let _ = write!(out, "{byte:02x}");
            }
            write!(out, "')")
        }
        Value::Bool(b) => write!(out, "{b}"),
        Value::DateTime(millis) => write!(out, "new Date({millis})"),
        Value::Timestamp(t) => write!(out, "Timestamp({}, {})", t.seconds(), t.increment()),
        Value::Regex(regex) => write!(out, "/{}/{}", regex.pattern, regex.options),
        Value::DbPointer(pointer) => {
            let _ = write!(out, "DBRef('{}',", pointer.namespace);
            for byte in pointer.id.0 {
                let _ = write!(out, "{byte:02x}");
            }
            write!(out, ")")
        }
        Value::JavaScript(code) => write!(out, "{code}"),
        Value::CodeWithScope(code) => {
            let _ = write!(out, "CodeWScope( {}, ", code.code);
            let _ = write_document(out, code.scope);
            write!(out, ")")
        }
    };
}

/// A double always shows that it is one: `5.0`, `inf.0`, `1e+100`.
fn double_text(n: f64) -> String {
    if n.is_nan() {
        return "nan.0".into();
    }
    if n.is_infinite() {
        return if n > 0.0 { "inf.0" } else { "-inf.0" }.into();
    }
    let magnitude = n.abs();
    let text = if magnitude != 0.0 && !(1e-5..1e16).contains(&magnitude) {
        let text = format!("{n:e}");
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        match exponent.strip_prefix('-') {
            Some(digits) => format!("{mantissa}e-{digits:0>2}"),
            None => format!("{mantissa}e+{exponent:0>2}"),
        }
    } else {
        format!("{n}")
    };
    if text.contains('.') { text } else { text + ".0" }
}

fn write_string(out: &mut String, text: &str) -> std::fmt::Result {
    if text.len() > STRING_SHOWN {
        let cut = (0..=150).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        write!(out, "\"{}...\"", &text[..cut])
    } else {
        write!(out, "\"{text}\"")
    }
}

fn write_document(out: &mut String, doc: RawDoc<'_>) -> std::fmt::Result {
    if doc.is_empty() {
        return write!(out, "{{}}");
    }
    for (at, element) in doc.iter().enumerate() {
        write!(out, "{}{}: ", if at == 0 { "{ " } else { ", " }, element.key())?;
        write_value(out, element.value());
    }
    write!(out, " }}")
}

fn write_array(out: &mut String, array: RawDoc<'_>) -> std::fmt::Result {
    if array.is_empty() {
        return write!(out, "[]");
    }
    for (at, value) in array.values().enumerate() {
        write!(out, "{}", if at == 0 { "[ " } else { ", " })?;
        write_value(out, value);
    }
    write!(out, " ]")
}
