//! How many bytes an event takes, told before it is written: that is what room is promised for.

use sheaf_bson::{RawDoc, Value};

/// The longest text of a number in JSON, of a date, an id and whatever else has no length of its own, with its name.
const SCALAR_BYTES: usize = 96;

/// What stands around a text, a document, binary data: the longest is that of a regular expression.
const AROUND_BYTES: usize = 64;

/// As many bytes as a document takes as JSON, or some more.
pub fn as_json(doc: RawDoc<'_>) -> usize {
    2 + doc.iter().map(|field| text(field.key()) + 4 + value(field.value())).sum::<usize>()
}

/// A text with its quotes, as JSON escapes it.
pub fn text(text: &str) -> usize {
    2 + text
        .bytes()
        .map(|byte| match byte {
            b'"' | b'\\' => 2,
            0..0x20 | 0x7F => 6,
            _ => 1,
        })
        .sum::<usize>()
}

fn value(value: Value<'_>) -> usize {
    match value {
        Value::String(content) => text(content),
        Value::Document(doc) => as_json(doc),
        Value::Array(array) => 2 + array.values().map(|item| 1 + self::value(item)).sum::<usize>(),
        Value::Symbol(content) | Value::JavaScript(content) => AROUND_BYTES + text(content),
        Value::CodeWithScope(code) => AROUND_BYTES + text(code.code) + as_json(code.scope),
        Value::Regex(regex) => AROUND_BYTES + text(regex.pattern) + text(regex.options),
        Value::DbPointer(pointer) => SCALAR_BYTES + text(pointer.namespace),
        Value::Binary(binary) => AROUND_BYTES + binary.bytes.len().div_ceil(3) * 4,
        Value::Null | Value::Bool(_) => 5,
        Value::Int32(_) | Value::Int64(_) => 20,
        Value::Undefined | Value::Missing | Value::MinKey | Value::MaxKey => 20,
        _ => SCALAR_BYTES,
    }
}

#[cfg(test)]
mod tests {
    use sheaf_bson::json::{self, Style};
    use sheaf_bson::{Binary, CodeWithScope, DbPointer, DocBuf, ObjectId, Regex, Timestamp};

    use super::*;

    #[test]
    fn no_value_is_longer_than_told() {
        let id = ObjectId([0xff; 12]);
        let strange = "\u{1}\"\\\n\u{7f}\u{e9}\u{1f600}";
        let scope = DocBuf::new().with(strange, i64::MIN);
        for value in [
            Value::Null,
            Value::Bool(false),
            Value::Int32(i32::MIN),
            Value::Int64(i64::MIN),
            Value::Double(f64::NEG_INFINITY),
            Value::Double(-f64::MIN_POSITIVE / 3.0),
            Value::Double(-f64::MAX),
            Value::Double(-123_456_789_012_345.67),
            Value::Decimal128("-1.234567890123456789012345678901234E-6143".parse().unwrap()),
            Value::ObjectId(id),
            Value::DateTime(i64::MIN),
            Value::DateTime(253_402_300_799_999),
            Value::Timestamp(Timestamp(u64::MAX)),
            Value::Undefined,
            Value::Missing,
            Value::MinKey,
            Value::MaxKey,
            Value::String(strange),
            Value::Symbol(strange),
            Value::JavaScript(strange),
            Value::CodeWithScope(CodeWithScope { code: strange, scope: scope.as_raw() }),
            Value::Regex(Regex { pattern: "", options: "" }),
            Value::Regex(Regex { pattern: "\u{1}\"", options: "imsx" }),
            Value::DbPointer(DbPointer { namespace: strange, id }),
            Value::Binary(Binary { subtype: 0xff, bytes: b"" }),
            Value::Binary(Binary { subtype: 0, bytes: &[7; 100] }),
            Value::Binary(Binary { subtype: 4, bytes: &[7; 16] }),
            Value::Document(scope.as_raw()),
        ] {
            let one = DocBuf::new().with("", value);
            let list = DocBuf::build(|doc| {
                let mut list = doc.array(strange);
                (0..20).for_each(|_| _ = list.push(value));
            });
            for document in [&one, &list] {
                let written = json::to_json(document.as_raw(), Style::Log).len();
                assert!(written <= as_json(document.as_raw()), "{value:?} takes {written}");
            }
        }
        assert_eq!(as_json(RawDoc::EMPTY), 2);
    }
}
