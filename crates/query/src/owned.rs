//! Values that trees own, counted as the trees grow.

use sheaf_bson::{OwnedValue, RawDoc, Value};
use sheaf_errors::Result;
use sheaf_meter::{ALLOCATION, grow};

/// Values up to this size are kept in place.
const IN_PLACE: usize = 16;

/// Copies a value into the tree that is being parsed.
///
/// Errors: `ExceededMemoryLimit`.
pub(crate) fn own(value: Value<'_>) -> Result<OwnedValue> {
    grow(owned_bytes(value))?;
    Ok(OwnedValue::from(value))
}

/// Copies the values of an array into the tree that is being parsed.
///
/// Errors: `ExceededMemoryLimit`.
pub(crate) fn own_all(array: RawDoc<'_>) -> Result<Vec<OwnedValue>> {
    array.values().map(own).collect()
}

/// What a copy of a value takes.
pub(crate) fn owned_bytes(value: Value<'_>) -> usize {
    let len = match value {
        Value::String(text) | Value::Symbol(text) | Value::JavaScript(text) => text.len() + 5,
        Value::Document(doc) | Value::Array(doc) => doc.len(),
        Value::Binary(binary) => binary.bytes.len() + 5,
        Value::Regex(regex) => regex.pattern.len() + regex.options.len() + 2,
        // The others are small, or so rare that nobody has many of them.
        _ => 0,
    };
    size_of::<OwnedValue>() + if len > IN_PLACE { len + ALLOCATION } else { 0 }
}

/// What a copy of a name takes besides its place in a list.
pub(crate) fn name_bytes(name: &str) -> usize {
    name.len() + ALLOCATION
}
