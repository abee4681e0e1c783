//! `$type`, `$isNumber`, and sizes and parts of values.

use sheaf_bson::Value;
use sheaf_errors::{Result, bail};

use crate::operator::{Operator, unary};

pub(crate) static OPERATORS: &[Operator] = &[
    unary("$type", |v, _| Ok(Value::String(v[0].type_name()))),
    unary("$toHashedIndexKey", |v, _| Ok(Value::Int64(sheaf_bson::hashed_index_value(v[0])))),
    unary("$isNumber", |v, _| Ok(Value::Bool(v[0].is_number()))),
    unary("$bsonSize", |v, _| match v[0] {
        Value::Document(doc) => Ok(Value::Int32(doc.len() as i32)),
        value => nullish_or(value, || {
            (31393, format!("$bsonSize requires a document input, found: {}", value.type_name()))
        }),
    }),
    unary("$binarySize", |v, _| match v[0] {
        Value::String(text) => Ok(Value::Int32(text.len() as i32)),
        Value::Binary(binary) => Ok(Value::Int32(binary.bytes.len() as i32)),
        value => nullish_or(value, || {
            (
                51276,
                format!("$binarySize requires a string or BinData argument, found: {}", value.type_name()),
            )
        }),
    }),
    unary("$tsSecond", |v, _| match v[0] {
        Value::Timestamp(time) => Ok(Value::Int64(i64::from(time.seconds()))),
        value => nullish_or(value, || {
            (5687301, format!("Argument to $tsSecond must be a timestamp, but is {}", value.type_name()))
        }),
    }),
    unary("$tsIncrement", |v, _| match v[0] {
        Value::Timestamp(time) => Ok(Value::Int64(i64::from(time.increment()))),
        value => nullish_or(value, || {
            (5687302, format!("Argument to $tsIncrement must be a timestamp, but is {}", value.type_name()))
        }),
    }),
];

/// Null for a null-like value, and an error for any other.
fn nullish_or<'a>(value: Value<'a>, error: impl FnOnce() -> (i32, String)) -> Result<Value<'a>> {
    if value.is_nullish() {
        return Ok(Value::Null);
    }
    let (code, message) = error();
    bail!(sheaf_errors::Code(code), "{message}")
}
