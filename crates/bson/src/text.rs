//! Values in the text form in which mongod's query language shows them in messages and in the bounds of explain.
//!
//! It is the form of `BSONElement::toString`; aggregation has another one, without blanks inside braces.

use std::fmt::Write;

use crate::{Binary, RawDoc, Value, uuid_text};

/// The subtype of UUIDs.
const UUID: u8 = 4;

/// A value: `1`, `5.5`, `"a"`, `new Date(0)`, `MinKey`, `{ a: 1 }`.
pub fn value_text(value: Value<'_>) -> String {
    let mut out = String::new();
    write_value(&mut out, value);
    out
}

/// A document: `{ a: 1, b: "x" }`.
pub fn document_text(doc: RawDoc<'_>) -> String {
    value_text(Value::Document(doc))
}

/// A field: `a: 1`.
pub fn element_text(key: &str, value: Value<'_>) -> String {
    let mut out = format!("{key}: ");
    write_value(&mut out, value);
    out
}

/// Strings of this many bytes are cut, after [`STRING_SHOWN`].
const STRING_LONG: usize = 160;
const STRING_SHOWN: usize = 150;

/// Binary data of more bytes than this is cut after as many.
const BINARY_SHOWN: usize = 80;

/// Code of this many bytes is cut, after [`CODE_SHOWN`].
const CODE_LONG: usize = 80;
const CODE_SHOWN: usize = 70;

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
        Value::Binary(binary) => write_binary(out, binary),
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
        Value::JavaScript(code) if code.len() >= CODE_LONG => write!(out, "{}...", cut(code, CODE_SHOWN)),
        Value::JavaScript(code) => write!(out, "{code}"),
        Value::CodeWithScope(code) => {
            let _ = write!(out, "CodeWScope( {}, ", code.code);
            let _ = write_document(out, code.scope);
            write!(out, ")")
        }
    };
}

/// Digits of a double, as `printf("%.16g")` has them.
const DIGITS: usize = 16;

/// A double always shows that it is one: `5.0`, `inf.0`, `1e+100.0`. It is `%.16g` of C, and `.0` where that has no point.
fn double_text(n: f64) -> String {
    if n.is_nan() {
        return "nan.0".into();
    }
    if n.is_infinite() {
        return if n > 0.0 { "inf.0" } else { "-inf.0" }.into();
    }
    let scientific = format!("{n:.*e}", DIGITS - 1);
    let (mantissa, exponent) = scientific.split_once('e').expect("the format has an exponent");
    let exponent: i32 = exponent.parse().expect("the exponent is a number");
    let text = if (-4..DIGITS as i32).contains(&exponent) {
        let decimals = (DIGITS as i32 - 1 - exponent) as usize;
        without_zeros(&format!("{n:.decimals$}")).to_owned()
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{}e{sign}{:02}", without_zeros(mantissa), exponent.abs())
    };
    if text.contains('.') { text } else { text + ".0" }
}

/// Digits without the zeros behind a point that add nothing, and without a point that nothing follows.
fn without_zeros(digits: &str) -> &str {
    if digits.contains('.') { digits.trim_end_matches('0').trim_end_matches('.') } else { digits }
}

fn write_binary(out: &mut String, binary: Binary<'_>) -> std::fmt::Result {
    if let (UUID, Ok(uuid)) = (binary.subtype, <[u8; 16]>::try_from(binary.bytes)) {
        return write!(out, "UUID(\"{}\")", uuid_text(uuid));
    }
    write!(out, "BinData({}, ", binary.subtype)?;
    let shown = &binary.bytes[..binary.bytes.len().min(BINARY_SHOWN)];
    shown.iter().try_for_each(|byte| write!(out, "{byte:02X}"))?;
    write!(out, "{})", if shown.len() < binary.bytes.len() { "..." } else { "" })
}

fn write_string(out: &mut String, text: &str) -> std::fmt::Result {
    if text.len() >= STRING_LONG {
        write!(out, "\"{}...\"", cut(text, STRING_SHOWN))
    } else {
        write!(out, "\"{text}\"")
    }
}

/// The beginning of a text, at most so many bytes of it.
fn cut(text: &str, bytes: usize) -> &str {
    let end = (0..=bytes).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    &text[..end]
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ObjectId, Regex, Timestamp, doc};

    #[test]
    fn doubles_as_mongod_prints_them() {
        for (double, text) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (5.0, "5.0"),
            (-5.5, "-5.5"),
            (0.1, "0.1"),
            (0.1 + 0.2, "0.3"),
            (1.0 / 3.0, "0.3333333333333333"),
            (2.0 / 3.0, "0.6666666666666666"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05.0"),
            (1.5e-7, "1.5e-07"),
            (1e15, "1000000000000000.0"),
            (123_456_789_012_345_680.0, "1.234567890123457e+17"),
            (1e16, "1e+16.0"),
            (1e100, "1e+100.0"),
            (f64::MAX, "1.797693134862316e+308"),
            (5e-324, "4.940656458412465e-324"),
            (f64::NAN, "nan.0"),
            (f64::INFINITY, "inf.0"),
            (f64::NEG_INFINITY, "-inf.0"),
        ] {
            assert_eq!(double_text(double), text);
        }
    }

    #[test]
    fn values_as_mongod_prints_them() {
        let long = "x".repeat(200);
        let scope = doc! { "a": 1 };
        let binary = |subtype, bytes| Value::Binary(Binary { subtype, bytes });
        let inner = doc! { "a": 1, "b": [1, "x", {}, []], "c": {} };
        for (value, text) in [
            (Value::Missing, "EOO".to_owned()),
            (Value::MinKey, "MinKey".to_owned()),
            (Value::Null, "null".to_owned()),
            (Value::Int64(7), "7".to_owned()),
            (Value::Bool(true), "true".to_owned()),
            (Value::String("a\"b"), "\"a\"b\"".to_owned()),
            (Value::Symbol("s"), "\"s\"".to_owned()),
            (Value::String(&long[..159]), format!("\"{}\"", &long[..159])),
            (Value::String(&long[..160]), format!("\"{}...\"", &long[..150])),
            (Value::JavaScript("f()"), "f()".to_owned()),
            (Value::JavaScript(&long), format!("{}...", &long[..70])),
            (
                Value::CodeWithScope(crate::CodeWithScope { code: "f()", scope: scope.as_raw() }),
                "CodeWScope( f(), { a: 1 })".to_owned(),
            ),
            (Value::DateTime(-5), "new Date(-5)".to_owned()),
            (Value::Timestamp(Timestamp((3 << 32) | 4)), "Timestamp(3, 4)".to_owned()),
            (Value::ObjectId(ObjectId([1; 12])), format!("ObjectId('{}')", "01".repeat(12))),
            (Value::Regex(Regex { pattern: "^a", options: "i" }), "/^a/i".to_owned()),
            (binary(0, &[0xAB, 1]), "BinData(0, AB01)".to_owned()),
            (binary(0, &[1; 81]), format!("BinData(0, {}...)", "01".repeat(80))),
            (binary(4, &[0x1F; 16]), "UUID(\"1f1f1f1f-1f1f-1f1f-1f1f-1f1f1f1f1f1f\")".to_owned()),
            (Value::Document(inner.as_raw()), "{ a: 1, b: [ 1, \"x\", {}, [] ], c: {} }".to_owned()),
        ] {
            assert_eq!(value_text(value), text);
        }
        assert_eq!(element_text("a", Value::Int32(1)), "a: 1");
        assert_eq!(document_text(inner.as_raw()), value_text(Value::Document(inner.as_raw())));
    }
}
