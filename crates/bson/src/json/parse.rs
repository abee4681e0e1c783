//! Extended JSON to BSON, canonical and relaxed forms alike.

use std::fmt;

use super::text::{Fault, Json};
use super::{base64, parse_iso_date, text};
use crate::build::{ArrayWriter, DocWriter, Sink};
use crate::id::parse_uuid;
use crate::value::{Binary, CodeWithScope, DbPointer, Decimal128, ObjectId, Regex, Timestamp, Value};
use crate::{ArrayBuf, DocBuf};

/// Why a text gave no BSON.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParseJsonError(String);

impl fmt::Display for ParseJsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ParseJsonError {}

impl From<Fault> for ParseJsonError {
    fn from((at, what): Fault) -> Self {
        ParseJsonError(format!("JSON at byte {at}: {what}"))
    }
}

type Result<T> = std::result::Result<T, ParseJsonError>;

/// Reads a document. Numbers without a wrapper become int32, int64 or double, whichever is the first
/// that holds them; those with a point or an exponent are doubles.
pub fn parse_document(json: &str) -> Result<DocBuf> {
    match text::parse(json)? {
        Json::Object(fields) => {
            let mut bytes = Vec::with_capacity(json.len());
            put_fields(&mut DocWriter::new(&mut bytes), &fields)?;
            Ok(DocBuf::from_bytes(bytes))
        }
        _ => Err(ParseJsonError("a document was expected".to_owned())),
    }
}

/// Reads an array.
pub fn parse_array(json: &str) -> Result<ArrayBuf> {
    match text::parse(json)? {
        Json::Array(items) => {
            let mut outcome = Ok(());
            let array =
                ArrayBuf::build(|writer| outcome = items.iter().try_for_each(|item| push(writer, item)));
            outcome.map(|()| array)
        }
        _ => Err(ParseJsonError("an array was expected".to_owned())),
    }
}

fn put_fields<S: Sink>(writer: &mut DocWriter<'_, S>, fields: &[(String, Json)]) -> Result<()> {
    for (name, json) in fields {
        if name.contains('\0') {
            return Err(ParseJsonError("a field name holds a NUL".to_owned()));
        }
        match json {
            Json::Array(items) => {
                let mut array = writer.array(name);
                items.iter().try_for_each(|item| push(&mut array, item))?;
            }
            _ => match scalar(json)? {
                Scalar::Value(value) => _ = writer.append(name, value),
                Scalar::Owned(value) => _ = writer.append(name, value.as_value()),
                Scalar::Document(fields) => put_fields(&mut writer.document(name), fields)?,
            },
        }
    }
    Ok(())
}

fn push<S: Sink>(writer: &mut ArrayWriter<'_, S>, json: &Json) -> Result<()> {
    match json {
        Json::Array(items) => {
            let mut array = writer.array();
            items.iter().try_for_each(|item| push(&mut array, item))
        }
        _ => match scalar(json)? {
            Scalar::Value(value) => {
                writer.push(value);
                Ok(())
            }
            Scalar::Owned(value) => {
                writer.push(value.as_value());
                Ok(())
            }
            Scalar::Document(fields) => put_fields(&mut writer.document(), fields),
        },
    }
}

/// What is no array.
enum Scalar<'j> {
    Value(Value<'j>),
    /// A value with bytes that the JSON does not have as such.
    Owned(crate::OwnedValue),
    /// An object that is just a document.
    Document(&'j [(String, Json)]),
}

fn scalar(json: &Json) -> Result<Scalar<'_>> {
    Ok(Scalar::Value(match json {
        Json::Null => Value::Null,
        Json::Bool(b) => Value::Bool(*b),
        Json::String(text) => Value::String(text),
        Json::Number(text) => number(text),
        Json::Array(_) => unreachable!("arrays were written by the caller"),
        Json::Object(fields) => return object(fields),
    }))
}

/// A number without a wrapper.
fn number(text: &str) -> Value<'static> {
    if let Ok(n) = text.parse::<i32>() {
        // "-0" has no integer form.
        return if n == 0 && text.starts_with('-') { Value::Double(-0.0) } else { Value::Int32(n) };
    }
    match text.parse::<i64>() {
        Ok(n) => Value::Int64(n),
        Err(_) => Value::Double(text.parse().unwrap_or(f64::NAN)),
    }
}

/// An object: a wrapped value if its first name is that of a wrapper, else a document.
fn object(fields: &[(String, Json)]) -> Result<Scalar<'_>> {
    let Some(((name, body), rest)) = fields.split_first() else { return Ok(Scalar::Document(fields)) };
    let value = match (name.as_str(), body, rest) {
        ("$binary", Json::String(base64), [(kind, Json::String(subtype))]) if kind == "$type" => {
            return binary(base64, subtype).ok_or_else(|| malformed(name));
        }
        ("$code", Json::String(code), [(scope, Json::Object(variables))]) if scope == "$scope" => {
            let mut bytes = Vec::new();
            put_fields(&mut DocWriter::new(&mut bytes), variables)?;
            let code = CodeWithScope { code, scope: crate::RawDoc::new(&bytes) };
            return Ok(Scalar::Owned(Value::CodeWithScope(code).into()));
        }
        ("$binary", Json::Object(parts), []) => match &parts[..] {
            [(a, Json::String(base64)), (b, Json::String(subtype))]
            | [(b, Json::String(subtype)), (a, Json::String(base64))]
                if a == "base64" && b == "subType" =>
            {
                return binary(base64, subtype).ok_or_else(|| malformed(name));
            }
            _ => return Err(malformed(name)),
        },
        ("$uuid", Json::String(text), []) => {
            let bytes = parse_uuid(text).map_err(|_| malformed(name))?;
            return Ok(Scalar::Owned(Value::Binary(Binary { subtype: 4, bytes: &bytes }).into()));
        }
        (_, _, []) => match wrapped(name, body) {
            Some(value) => value.ok_or_else(|| malformed(name))?,
            None => return Ok(Scalar::Document(fields)),
        },
        _ => return Ok(Scalar::Document(fields)),
    };
    Ok(Scalar::Value(value))
}

fn malformed(name: &str) -> ParseJsonError {
    ParseJsonError(format!("malformed {name}"))
}

/// The value of a wrapper of one field: `None` if the name is no wrapper's, `Some(None)` if the body
/// does not fit.
fn wrapped<'j>(name: &str, body: &'j Json) -> Option<Option<Value<'j>>> {
    let text = if let Json::String(text) = body { Some(text.as_str()) } else { None };
    Some(match name {
        "$oid" => text.and_then(|text| text.parse::<ObjectId>().ok()).map(Value::ObjectId),
        "$symbol" => text.map(Value::Symbol),
        "$code" => text.map(Value::JavaScript),
        "$numberInt" => text.and_then(|text| text.parse().ok()).map(Value::Int32),
        "$numberLong" => text.and_then(|text| text.parse().ok()).map(Value::Int64),
        "$numberDouble" => text.and_then(double).map(Value::Double),
        "$numberDecimal" => text.and_then(|text| text.parse::<Decimal128>().ok()).map(Value::Decimal128),
        "$date" => date(body).map(Value::DateTime),
        "$timestamp" => timestamp(body).map(Value::Timestamp),
        "$regularExpression" => regex(body).map(Value::Regex),
        "$dbPointer" => pointer(body).map(Value::DbPointer),
        "$minKey" => (*body == Json::Number("1".to_owned())).then_some(Value::MinKey),
        "$maxKey" => (*body == Json::Number("1".to_owned())).then_some(Value::MaxKey),
        "$undefined" => (*body == Json::Bool(true)).then_some(Value::Undefined),
        _ => return None,
    })
}

fn double(text: &str) -> Option<f64> {
    match text {
        "Infinity" => Some(f64::INFINITY),
        "-Infinity" => Some(f64::NEG_INFINITY),
        "NaN" => Some(f64::NAN),
        _ => text.parse().ok().filter(|n: &f64| n.is_finite()),
    }
}

fn binary(base64: &str, subtype: &str) -> Option<Scalar<'static>> {
    let subtype = u8::from_str_radix(subtype, 16).ok()?;
    let mut bytes = base64::decode(base64)?;
    if subtype == 2 {
        let len = i32::try_from(bytes.len()).ok()?.to_le_bytes();
        bytes.splice(0..0, len);
    }
    Some(Scalar::Owned(Value::Binary(Binary { subtype, bytes: &bytes }).into()))
}

fn date(body: &Json) -> Option<i64> {
    match body {
        Json::String(text) => parse_iso_date(text),
        Json::Number(text) => text.parse().ok(),
        Json::Object(fields) => match &fields[..] {
            [(name, Json::String(text))] if name == "$numberLong" => text.parse().ok(),
            _ => None,
        },
        _ => None,
    }
}

/// Two fields by name, in either order.
fn pair<'j>(body: &'j Json, first: &str, second: &str) -> Option<(&'j Json, &'j Json)> {
    match body {
        Json::Object(fields) => match &fields[..] {
            [(a, x), (b, y)] if a == first && b == second => Some((x, y)),
            [(b, y), (a, x)] if a == first && b == second => Some((x, y)),
            _ => None,
        },
        _ => None,
    }
}

fn timestamp(body: &Json) -> Option<Timestamp> {
    match pair(body, "t", "i")? {
        (Json::Number(t), Json::Number(i)) => Some(Timestamp::new(t.parse().ok()?, i.parse().ok()?)),
        _ => None,
    }
}

fn regex(body: &Json) -> Option<Regex<'_>> {
    match pair(body, "pattern", "options")? {
        (Json::String(pattern), Json::String(options))
            if !pattern.contains('\0') && !options.contains('\0') =>
        {
            Some(Regex { pattern, options })
        }
        _ => None,
    }
}

fn pointer(body: &Json) -> Option<DbPointer<'_>> {
    match pair(body, "$ref", "$id")? {
        (Json::String(namespace), Json::Object(id)) => match &id[..] {
            [(name, Json::String(text))] if name == "$oid" => {
                Some(DbPointer { namespace, id: text.parse().ok()? })
            }
            _ => None,
        },
        _ => None,
    }
}
