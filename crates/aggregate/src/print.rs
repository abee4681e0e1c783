//! Values as mongod's aggregation prints them inside error messages: `{a: 1, b: ["x"]}`.

use std::fmt::Write;

use sheaf_bson::{RawDoc, Value};

/// A document: `{a: 1}`.
pub fn document(doc: RawDoc<'_>) -> String {
    value(Value::Document(doc))
}

/// Any value; missing prints as `MISSING`.
pub(crate) fn value(value: Value<'_>) -> String {
    let mut out = String::new();
    put(&mut out, value);
    out
}

fn put(out: &mut String, value: Value<'_>) {
    // Writing into a String cannot fail.
    let _ = match value {
        Value::Missing => write!(out, "MISSING"),
        Value::MinKey => write!(out, "MinKey"),
        Value::MaxKey => write!(out, "MaxKey"),
        Value::Undefined => write!(out, "undefined"),
        Value::Null => write!(out, "null"),
        Value::Int32(n) => write!(out, "{n}"),
        Value::Int64(n) => write!(out, "{n}"),
        Value::Double(n) => write!(out, "{n}"),
        Value::Decimal128(n) => write!(out, "{n}"),
        Value::String(text) | Value::Symbol(text) => write!(out, "\"{text}\""),
        Value::Document(doc) => {
            out.push('{');
            for (at, element) in doc.iter().enumerate() {
                let _ = write!(out, "{}{}: ", if at == 0 { "" } else { ", " }, element.key());
                put(out, element.value());
            }
            write!(out, "}}")
        }
        Value::Array(array) => {
            out.push('[');
            for (at, item) in array.values().enumerate() {
                out.push_str(if at == 0 { "" } else { ", " });
                put(out, item);
            }
            write!(out, "]")
        }
        Value::Binary(binary) => {
            let _ = write!(out, "BinData({}, \"", binary.subtype);
            binary.bytes.iter().for_each(|byte| _ = write!(out, "{byte:02X}"));
            write!(out, "\")")
        }
        Value::ObjectId(id) => id.0.iter().try_for_each(|byte| write!(out, "{byte:02x}")),
        Value::Bool(b) => write!(out, "{b}"),
        Value::DateTime(ms) => write!(out, "new Date({ms})"),
        Value::Timestamp(t) => write!(out, "Timestamp({}, {})", t.seconds(), t.increment()),
        Value::Regex(regex) => write!(out, "/{}/{}", regex.pattern, regex.options),
        Value::DbPointer(pointer) => write!(out, "DBRef(\"{}\")", pointer.namespace),
        Value::JavaScript(code) => write!(out, "Code(\"{code}\")"),
        Value::CodeWithScope(code) => write!(out, "CodeWScope(\"{}\")", code.code),
    };
}
