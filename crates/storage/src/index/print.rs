//! Values as MongoDB prints them in duplicate key messages.

use std::fmt::Write;

use sheaf_bson::{RawDoc, Value};

/// Appends `value` in the shell's notation.
pub(crate) fn value(out: &mut String, value: Value<'_>) {
    let _ = match value {
        Value::Missing | Value::Undefined => write!(out, "undefined"),
        Value::Null => write!(out, "null"),
        Value::MinKey => write!(out, "MinKey"),
        Value::MaxKey => write!(out, "MaxKey"),
        Value::Bool(b) => write!(out, "{b}"),
        Value::Int32(n) => write!(out, "{n}"),
        Value::Int64(n) => write!(out, "{n}"),
        Value::Double(n) if n.fract() == 0.0 && n.abs() < 1e15 => write!(out, "{n:.1}"),
        Value::Double(n) => write!(out, "{n}"),
        Value::Decimal128(n) => write!(out, "{n}"),
        Value::String(text) | Value::Symbol(text) => write!(out, "\"{}\"", text.escape_default()),
        Value::ObjectId(id) => write!(out, "ObjectId('{}')", Hex(&id.0)),
        Value::DateTime(millis) => write!(out, "new Date({millis})"),
        Value::Timestamp(t) => write!(out, "Timestamp({}, {})", t.seconds(), t.increment()),
        Value::Binary(binary) if binary.subtype == 4 && binary.bytes.len() == 16 => {
            let hex = format!("{}", Hex(binary.bytes));
            write!(
                out,
                "UUID(\"{}-{}-{}-{}-{}\")",
                &hex[..8],
                &hex[8..12],
                &hex[12..16],
                &hex[16..20],
                &hex[20..]
            )
        }
        Value::Binary(binary) => write!(out, "BinData({}, {})", binary.subtype, Hex(binary.bytes)),
        Value::Regex(regex) => write!(out, "/{}/{}", regex.pattern, regex.options),
        Value::JavaScript(code) => write!(out, "{code}"),
        Value::CodeWithScope(code) => write!(out, "CodeWScope( {}, {:?})", code.code, code.scope),
        Value::DbPointer(pointer) => write!(out, "DBRef('{}', {})", pointer.namespace, Hex(&pointer.id.0)),
        Value::Document(doc) => {
            document(out, doc);
            Ok(())
        }
        Value::Array(array) => {
            list(out, array);
            Ok(())
        }
    };
}

fn document(out: &mut String, doc: RawDoc<'_>) {
    if doc.is_empty() {
        out.push_str("{}");
        return;
    }
    for (at, element) in doc.iter().enumerate() {
        out.push_str(if at == 0 { "{ " } else { ", " });
        out.push_str(element.key());
        out.push_str(": ");
        value(out, element.value());
    }
    out.push_str(" }");
}

fn list(out: &mut String, array: RawDoc<'_>) {
    for (at, item) in array.values().enumerate() {
        out.push_str(if at == 0 { "[ " } else { ", " });
        value(out, item);
    }
    out.push_str(if array.is_empty() { "[]" } else { " ]" });
}

struct Hex<'a>(&'a [u8]);

impl std::fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
