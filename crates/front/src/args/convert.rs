//! From BSON values to the types of handlers' fields, with the coercions of MongoDB's parsers.

use std::cmp::Ordering;

use sheaf_bson::{Binary, Decimal128, ObjectId, RawDoc, Timestamp, Value, compare};
use sheaf_errors::{Code, Error, Result, bail};
use uuid::Uuid;

use super::At;

/// A type that a command's field can have.
pub trait FromValue<'a>: Sized {
    /// Converts; `None` for null and undefined where the type takes neither.
    fn from_value(value: Value<'a>, at: &At<'_>) -> Result<Option<Self>>;
}

/// An array argument.
#[derive(Clone, Copy, Debug)]
pub struct Array<'a>(pub RawDoc<'a>);

/// An integer that must not be negative, such as `limit`; errors as MongoDB's validators do.
#[derive(Clone, Copy, Debug)]
pub struct NonNegative(pub i64);

/// A boolean that takes numbers too, as most of MongoDB's flags do.
#[derive(Clone, Copy, Debug)]
pub struct Loose(pub bool);

/// A boolean that takes nothing else, not even null: MongoDB reads these by hand, and keeps to it for the sake of its stable API.
#[derive(Clone, Copy, Debug)]
pub struct Flag(pub bool);

/// A document that takes nothing else, not even null, as the parts of a `find` are.
#[derive(Clone, Copy, Debug)]
pub struct Object<'a>(pub RawDoc<'a>);

/// `TypeMismatch` in the words of MongoDB's generated parsers.
pub(crate) fn wrong_type(value: &Value<'_>, at: &At<'_>, expected: &str) -> Error {
    Error::type_mismatch(format!(
        "BSON field '{at}' is the wrong type '{}', expected type '{expected}'",
        value.type_name()
    ))
}

fn wrong_types(value: &Value<'_>, at: &At<'_>, expected: &str) -> Error {
    Error::type_mismatch(format!(
        "BSON field '{at}' is the wrong type '{}', expected types '[{expected}]'",
        value.type_name()
    ))
}

/// MongoDB's `safeNumberLong`: fractions are cut (those of a decimal rounded, halves to the even neighbour), NaN is 0, what is too large becomes the limit.
pub fn safe_i64(value: Value<'_>) -> Option<i64> {
    match value {
        Value::Int32(n) => Some(i64::from(n)),
        Value::Int64(n) => Some(n),
        Value::Double(n) => Some(n as i64),
        Value::Decimal128(n) => {
            let whole = n.to_i64_exact();
            Some(whole.unwrap_or_else(|| rounded(n)))
        }
        _ => None,
    }
}

/// A decimal that is not whole, rounded; what a double cannot tell from a half is looked at once more.
fn rounded(n: Decimal128) -> i64 {
    let near = n.to_f64();
    let half = near.fract().abs() == 0.5;
    let up = near.trunc() + near.signum();
    let exact = Value::Decimal128(n);
    match compare(exact, Value::Double(near)) {
        Ordering::Greater if half && near > 0.0 => up as i64,
        Ordering::Less if half && near > 0.0 => near.trunc() as i64,
        Ordering::Less if half => up as i64,
        Ordering::Greater if half => near.trunc() as i64,
        _ => near.round_ties_even() as i64,
    }
}

macro_rules! plain {
    ($t:ty, $name:literal, $pattern:pat => $result:expr) => {
        impl<'a> FromValue<'a> for $t {
            fn from_value(value: Value<'a>, at: &At<'_>) -> Result<Option<Self>> {
                match value {
                    $pattern => Ok(Some($result)),
                    Value::Null | Value::Undefined | Value::Missing => Ok(None),
                    other => Err(wrong_type(&other, at, $name)),
                }
            }
        }
    };
}

plain!(&'a str, "string", Value::String(text) => text);
plain!(String, "string", Value::String(text) => text.to_owned());
plain!(RawDoc<'a>, "object", Value::Document(doc) => doc);
plain!(Array<'a>, "array", Value::Array(array) => Array(array));
plain!(bool, "bool", Value::Bool(b) => b);
plain!(ObjectId, "objectId", Value::ObjectId(id) => id);
plain!(Timestamp, "timestamp", Value::Timestamp(t) => t);

impl<'a> FromValue<'a> for Uuid {
    fn from_value(value: Value<'a>, at: &At<'_>) -> Result<Option<Self>> {
        match value {
            Value::Null | Value::Undefined | Value::Missing => Ok(None),
            Value::Binary(Binary { subtype: 4, bytes }) => match Uuid::from_slice(bytes) {
                Ok(uuid) => Ok(Some(uuid)),
                Err(_) => bail!(
                    Code::INVALID_UUID,
                    "uuid must be a 16-byte binary field with UUID (4) subtype, found {}",
                    bytes.len()
                ),
            },
            Value::Binary(other) => bail!(
                Code::TYPE_MISMATCH,
                "BSON field '{at}' is the wrong binData type '{}', expected type 'UUID'",
                subtype_name(other.subtype)
            ),
            other => Err(wrong_type(&other, at, "binData")),
        }
    }
}

impl<'a> FromValue<'a> for Value<'a> {
    fn from_value(value: Value<'a>, _: &At<'_>) -> Result<Option<Self>> {
        Ok(Some(value))
    }
}

impl<'a> FromValue<'a> for Loose {
    fn from_value(value: Value<'a>, at: &At<'_>) -> Result<Option<Self>> {
        match value {
            Value::Bool(b) => Ok(Some(Loose(b))),
            Value::Null | Value::Undefined | Value::Missing => Ok(None),
            number if number.is_number() => Ok(Some(Loose(number.truthy()))),
            other => Err(wrong_types(&other, at, "bool, long, int, decimal, double")),
        }
    }
}

impl<'a> FromValue<'a> for Flag {
    fn from_value(value: Value<'a>, at: &At<'_>) -> Result<Option<Self>> {
        match value {
            Value::Bool(b) => Ok(Some(Flag(b))),
            Value::Missing => Ok(None),
            other => bail!(
                Code::TYPE_MISMATCH,
                "Field '{}' should be a boolean value, but found: {}",
                at.field(),
                other.type_name()
            ),
        }
    }
}

impl<'a> FromValue<'a> for Object<'a> {
    fn from_value(value: Value<'a>, at: &At<'_>) -> Result<Option<Self>> {
        match value {
            Value::Document(doc) => Ok(Some(Object(doc))),
            Value::Missing => Ok(None),
            _ => bail!(Code::TYPE_MISMATCH, "Expected field {} to be of type object", at.field()),
        }
    }
}

impl<'a> FromValue<'a> for i64 {
    fn from_value(value: Value<'a>, at: &At<'_>) -> Result<Option<Self>> {
        match value {
            Value::Null | Value::Undefined | Value::Missing => Ok(None),
            _ => match safe_i64(value) {
                Some(n) => Ok(Some(n)),
                None => Err(wrong_types(&value, at, "long, int, decimal, double")),
            },
        }
    }
}

impl<'a> FromValue<'a> for i32 {
    fn from_value(value: Value<'a>, at: &At<'_>) -> Result<Option<Self>> {
        let wide = i64::from_value(value, at)?;
        Ok(wide.map(|n| n.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32))
    }
}

impl<'a> FromValue<'a> for f64 {
    fn from_value(value: Value<'a>, at: &At<'_>) -> Result<Option<Self>> {
        match value {
            Value::Null | Value::Undefined | Value::Missing => Ok(None),
            _ => match value.as_f64() {
                Some(n) => Ok(Some(n)),
                None => Err(wrong_types(&value, at, "long, int, decimal, double")),
            },
        }
    }
}

impl<'a> FromValue<'a> for NonNegative {
    fn from_value(value: Value<'a>, at: &At<'_>) -> Result<Option<Self>> {
        match i64::from_value(value, at)? {
            Some(n) if n < 0 => {
                bail!(Code::BAD_VALUE, "BSON field '{}' value must be >= 0, actual value '{n}'", at.field())
            }
            other => Ok(other.map(NonNegative)),
        }
    }
}

/// An integer within bounds, with MongoDB's message for one outside.
///
/// Errors: `BadValue`.
pub fn in_range(n: i64, low: i64, high: i64, field: &str) -> Result<i64> {
    if n < low {
        bail!(Code::BAD_VALUE, "BSON field '{field}' value must be >= {low}, actual value '{n}'");
    }
    if n > high {
        bail!(Code::BAD_VALUE, "BSON field '{field}' value must be <= {high}, actual value '{n}'");
    }
    Ok(n)
}

/// `FailedToParse` for a field that is no whole number: what MongoDB says where it insists.
pub fn exact_i64(value: Value<'_>, field: &str) -> Result<i64> {
    match value.as_exact_i64() {
        Some(n) => Ok(n),
        None if value.is_number() => {
            Err(Error::new(Code::FAILED_TO_PARSE, format!("Expected an integer: {field}")))
        }
        None => bail!(Code::TYPE_MISMATCH, "Expected a number in: {field}: {}", value.type_name()),
    }
}

/// The name of a subtype of binData, in messages.
pub fn subtype_name(subtype: u8) -> &'static str {
    match subtype {
        0 => "general",
        1 => "function",
        2 => "general(deprecated)",
        3 => "UUID(deprecated)",
        5 => "MD5",
        6 => "encrypt",
        7 => "column",
        8 => "sensitive",
        9 => "vector",
        _ => "user-defined",
    }
}
