//! BSON as relaxed extended JSON, for log lines.

use std::fmt::Write;

use sheaf_bson::{RawDoc, Value};

/// Appends `text` in quotes, escaped.
pub fn string(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if (c as u32) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// Appends a document.
pub fn document(out: &mut String, doc: RawDoc<'_>) {
    out.push('{');
    for (at, field) in doc.iter().enumerate() {
        if at > 0 {
            out.push(',');
        }
        string(out, field.key());
        out.push(':');
        value(out, field.value());
    }
    out.push('}');
}

/// Appends a value.
pub fn value(out: &mut String, value: Value<'_>) {
    let _ = match value {
        Value::Missing | Value::Null => write!(out, "null"),
        Value::Undefined => write!(out, "{{\"$undefined\":true}}"),
        Value::MinKey => write!(out, "{{\"$minKey\":1}}"),
        Value::MaxKey => write!(out, "{{\"$maxKey\":1}}"),
        Value::Bool(b) => write!(out, "{b}"),
        Value::Int32(n) => write!(out, "{n}"),
        Value::Int64(n) => write!(out, "{n}"),
        Value::Double(n) if n.is_finite() => write!(out, "{n:?}"),
        Value::Double(n) if n.is_nan() => write!(out, "{{\"$numberDouble\":\"NaN\"}}"),
        Value::Double(n) => {
            write!(out, "{{\"$numberDouble\":\"{}Infinity\"}}", if n < 0.0 { "-" } else { "" })
        }
        Value::Decimal128(n) => write!(out, "{{\"$numberDecimal\":\"{n}\"}}"),
        Value::String(text) | Value::Symbol(text) => {
            string(out, text);
            Ok(())
        }
        Value::Document(doc) => {
            document(out, doc);
            Ok(())
        }
        Value::Array(array) => {
            items(out, array);
            Ok(())
        }
        Value::ObjectId(id) => write!(out, "{{\"$oid\":\"{}\"}}", hex(&id.0)),
        Value::DateTime(millis) => write!(out, "{{\"$date\":\"{}\"}}", iso_date(millis)),
        Value::Timestamp(t) => {
            write!(out, "{{\"$timestamp\":{{\"t\":{},\"i\":{}}}}}", t.seconds(), t.increment())
        }
        Value::Binary(binary) if binary.subtype == 4 && binary.bytes.len() == 16 => {
            let id = uuid::Uuid::from_slice(binary.bytes).unwrap_or_default();
            write!(out, "{{\"$uuid\":\"{id}\"}}")
        }
        Value::Binary(binary) => {
            write!(
                out,
                "{{\"$binary\":{{\"hex\":\"{}\",\"subType\":\"{:x}\"}}}}",
                hex(binary.bytes),
                binary.subtype
            )
        }
        Value::Regex(regex) => {
            out.push_str("{\"$regularExpression\":{\"pattern\":");
            string(out, regex.pattern);
            out.push_str(",\"options\":");
            string(out, regex.options);
            write!(out, "}}}}")
        }
        Value::JavaScript(code) => {
            out.push_str("{\"$code\":");
            string(out, code);
            write!(out, "}}")
        }
        Value::CodeWithScope(code) => {
            out.push_str("{\"$code\":");
            string(out, code.code);
            out.push_str(",\"$scope\":");
            document(out, code.scope);
            write!(out, "}}")
        }
        Value::DbPointer(pointer) => {
            out.push_str("{\"$dbPointer\":{\"$ref\":");
            string(out, pointer.namespace);
            write!(out, ",\"$id\":{{\"$oid\":\"{}\"}}}}}}", hex(&pointer.id.0))
        }
    };
}

fn items(out: &mut String, array: RawDoc<'_>) {
    out.push('[');
    for (at, item) in array.values().enumerate() {
        if at > 0 {
            out.push(',');
        }
        value(out, item);
    }
    out.push(']');
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// `2026-11-21T01:02:03.004+00:00`.
pub fn iso_date(millis: i64) -> String {
    let days = millis.div_euclid(86_400_000);
    let of_day = millis.rem_euclid(86_400_000);
    let (year, month, day) = civil(days);
    let (h, m, s, ms) = (of_day / 3_600_000, of_day / 60_000 % 60, of_day / 1000 % 60, of_day % 1000);
    format!("{year:04}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}.{ms:03}+00:00")
}

/// `Sat Nov 21 01:02:03.004`.
pub fn long_date(millis: i64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let days = millis.div_euclid(86_400_000);
    let of_day = millis.rem_euclid(86_400_000);
    let (_, month, day) = civil(days);
    let (h, m, s, ms) = (of_day / 3_600_000, of_day / 60_000 % 60, of_day / 1000 % 60, of_day % 1000);
    let (weekday, month) = (DAYS[days.rem_euclid(7) as usize], MONTHS[month as usize - 1]);
    format!("{weekday} {month} {day} {h:02}:{m:02}:{s:02}.{ms:03}")
}

/// The calendar date of a day counted from 1970-01-01 (Howard Hinnant's algorithm).
fn civil(days: i64) -> (i64, i64, i64) {
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let doe = z.rem_euclid(146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let day = doy - (153 * mp + 2) / 5 + 1;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    (yoe + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sheaf_bson::doc;

    #[test]
    fn dates() {
        assert_eq!(iso_date(0), "1970-01-01T00:00:00.000+00:00");
        assert_eq!(iso_date(951_782_400_123), "2000-02-29T00:00:00.123+00:00");
        assert_eq!(iso_date(-1), "1969-12-31T23:59:59.999+00:00");
        assert_eq!(long_date(951_782_400_123), "Tue Feb 29 00:00:00.123");
    }

    #[test]
    fn documents() {
        let mut out = String::new();
        document(&mut out, doc! { "a": "q\"\n", "b": [1, 2.0, ()], "c": { "d": true } }.as_raw());
        assert_eq!(out, r#"{"a":"q\"\n","b":[1,2.0,null],"c":{"d":true}}"#);
    }
}
