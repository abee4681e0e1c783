//! MongoDB's order of values, and a hash that agrees with it.

use std::cmp::Ordering;
use std::hash::{Hash, Hasher};

use crate::decimal::Class;
use crate::raw::{Element, RawDoc};
use crate::value::{Decimal128, Type, Value};

/// MongoDB's total order: by type place ([`crate::Type::order`]), then by value. Numbers compare
/// by exact mathematical value whatever their types; NaN is smallest among numbers and equals
/// itself; -0.0 equals 0.0.
///
/// ```
/// use sheaf_bson::{Value, compare};
///
/// assert!(compare(Value::Int32(2), Value::Double(2.0)).is_eq());
/// // Every number comes before every string.
/// assert!(compare(Value::Int64(i64::MAX), Value::String("")).is_lt());
/// ```
#[inline]
pub fn compare(a: Value<'_>, b: Value<'_>) -> Ordering {
    match (a, b) {
        // The pairs that indexes and sorts meet most.
        (Value::Int32(a), Value::Int32(b)) => a.cmp(&b),
        (Value::String(a), Value::String(b)) => a.as_bytes().cmp(b.as_bytes()),
        (Value::ObjectId(a), Value::ObjectId(b)) => a.cmp(&b),
        (Value::Double(a), Value::Double(b)) => compare_doubles(a, b),
        _ => {
            let places = a.kind().order().cmp(&b.kind().order());
            if places.is_ne() { places } else { compare_same_place(a, b) }
        }
    }
}

/// Order of two documents: field by field; first by the fields' type places, then by names, then by values.
pub fn compare_docs(a: RawDoc<'_>, b: RawDoc<'_>) -> Ordering {
    compare_fields(a, b, true)
}

/// Order of two arrays: element by element by value, whatever the keys say; a prefix comes first.
pub fn compare_arrays(a: RawDoc<'_>, b: RawDoc<'_>) -> Ordering {
    compare_fields(a, b, false)
}

fn compare_fields(a: RawDoc<'_>, b: RawDoc<'_>, names: bool) -> Ordering {
    if a == b {
        return Ordering::Equal;
    }
    let (mut left, mut right) = (a.iter(), b.iter());
    loop {
        let (x, y) = match (left.next(), right.next()) {
            (Some(x), Some(y)) => (x, y),
            (None, None) => return Ordering::Equal,
            (None, Some(_)) => return Ordering::Less,
            (Some(_), None) => return Ordering::Greater,
        };
        let order = compare_elements(&x, &y, names);
        if order.is_ne() {
            return order;
        }
    }
}

/// Order of two elements; names count, after the type's place, only if `names` is set.
fn compare_elements(a: &Element<'_>, b: &Element<'_>, names: bool) -> Ordering {
    let (left, right) = (a.kind(), b.kind());
    let places = left.order().cmp(&right.order());
    if places.is_ne() {
        return places;
    }
    if names {
        let names = a.key_bytes().cmp(b.key_bytes());
        if names.is_ne() {
            return names;
        }
    }
    match (left, right) {
        // Undecoded: no check for UTF-8 is needed to compare bytes.
        (Type::String, Type::String) => text_bytes(a.data()).cmp(text_bytes(b.data())),
        _ => compare_same_place(a.value(), b.value()),
    }
}

/// The text of a string's value bytes, without length and NUL.
pub(crate) fn text_bytes(data: &[u8]) -> &[u8] {
    data.get(4..data.len().saturating_sub(1)).unwrap_or_default()
}

/// Order of two values whose types share a place.
fn compare_same_place(a: Value<'_>, b: Value<'_>) -> Ordering {
    match (a, b) {
        (Value::String(x) | Value::Symbol(x), Value::String(y) | Value::Symbol(y)) => {
            x.as_bytes().cmp(y.as_bytes())
        }
        (Value::Document(x), Value::Document(y)) => compare_docs(x, y),
        (Value::Array(x), Value::Array(y)) => compare_arrays(x, y),
        (Value::Binary(x), Value::Binary(y)) => x
            .bytes
            .len()
            .cmp(&y.bytes.len())
            .then(x.subtype.cmp(&y.subtype))
            .then_with(|| x.bytes.cmp(y.bytes)),
        (Value::ObjectId(x), Value::ObjectId(y)) => x.cmp(&y),
        (Value::Bool(x), Value::Bool(y)) => x.cmp(&y),
        (Value::DateTime(x), Value::DateTime(y)) => x.cmp(&y),
        (Value::Timestamp(x), Value::Timestamp(y)) => x.cmp(&y),
        (Value::Regex(x), Value::Regex(y)) => x
            .pattern
            .as_bytes()
            .cmp(y.pattern.as_bytes())
            .then_with(|| x.options.as_bytes().cmp(y.options.as_bytes())),
        (Value::DbPointer(x), Value::DbPointer(y)) => x
            .namespace
            .len()
            .cmp(&y.namespace.len())
            .then_with(|| x.namespace.as_bytes().cmp(y.namespace.as_bytes()))
            .then_with(|| x.id.cmp(&y.id)),
        (Value::JavaScript(x), Value::JavaScript(y)) => x.as_bytes().cmp(y.as_bytes()),
        (Value::CodeWithScope(x), Value::CodeWithScope(y)) => {
            x.code.as_bytes().cmp(y.code.as_bytes()).then_with(|| compare_docs(x.scope, y.scope))
        }
        _ if a.is_number() && b.is_number() => compare_numbers(a, b),
        // MinKey, MaxKey, null, and undefined with missing: one value per place.
        _ => Ordering::Equal,
    }
}

/// Order of two numbers of any types by exact value.
fn compare_numbers(a: Value<'_>, b: Value<'_>) -> Ordering {
    match (a, b) {
        (Value::Double(x), Value::Double(y)) => compare_doubles(x, y),
        (Value::Decimal128(x), Value::Decimal128(y)) => x.compare(y),
        (Value::Double(x), Value::Decimal128(y)) => y.compare_f64(x).reverse(),
        (Value::Decimal128(x), Value::Double(y)) => x.compare_f64(y),
        (Value::Double(x), y) => compare_int_double(integer(y), x).reverse(),
        (x, Value::Double(y)) => compare_int_double(integer(x), y),
        (Value::Decimal128(x), y) => x.compare(Decimal128::from_i64(integer(y))),
        (x, Value::Decimal128(y)) => Decimal128::from_i64(integer(x)).compare(y),
        (x, y) => integer(x).cmp(&integer(y)),
    }
}

fn integer(value: Value<'_>) -> i64 {
    match value {
        Value::Int32(n) => i64::from(n),
        Value::Int64(n) => n,
        _ => 0,
    }
}

/// Doubles with NaN first and -0.0 equal to 0.0.
fn compare_doubles(a: f64, b: f64) -> Ordering {
    a.partial_cmp(&b).unwrap_or_else(|| b.is_nan().cmp(&a.is_nan()))
}

/// An integer against a double, without the loss that converting the integer would bring.
fn compare_int_double(n: i64, d: f64) -> Ordering {
    // 2^63, the first double that no int64 reaches.
    const LIMIT: f64 = 9_223_372_036_854_775_808.0;
    if d.is_nan() || d < -LIMIT {
        Ordering::Greater
    } else if d >= LIMIT {
        Ordering::Less
    } else {
        let whole = d.trunc();
        n.cmp(&(whole as i64)).then_with(|| compare_doubles(whole, d))
    }
}

/// Feeds a value to a hasher so that values that compare equal hash equally: `1`, `1.0` and
/// `NumberDecimal("1.00")` are one value.
pub fn hash_value<H: Hasher>(value: Value<'_>, state: &mut H) {
    state.write_u8(value.kind().order());
    match value {
        Value::Missing | Value::Undefined | Value::Null | Value::MinKey | Value::MaxKey => {}
        Value::Int32(n) => state.write_i64(i64::from(n)),
        Value::Int64(n) => state.write_i64(n),
        Value::Double(n) => hash_double(n, state),
        Value::Decimal128(n) => hash_decimal(n, state),
        Value::String(text) | Value::Symbol(text) | Value::JavaScript(text) => text.as_bytes().hash(state),
        Value::Document(doc) => hash_document(doc, state),
        Value::Array(array) => {
            array.values().for_each(|item| hash_value(item, state));
            state.write_u8(0xFF);
        }
        Value::Binary(binary) => {
            state.write_u8(binary.subtype);
            binary.bytes.hash(state);
        }
        Value::ObjectId(id) => state.write(&id.0),
        Value::Bool(b) => state.write_u8(u8::from(b)),
        Value::DateTime(millis) => state.write_i64(millis),
        Value::Timestamp(time) => state.write_u64(time.0),
        Value::Regex(regex) => {
            regex.pattern.hash(state);
            regex.options.hash(state);
        }
        Value::DbPointer(pointer) => {
            pointer.namespace.hash(state);
            state.write(&pointer.id.0);
        }
        Value::CodeWithScope(code) => {
            code.code.hash(state);
            hash_document(code.scope, state);
        }
    }
}

/// Feeds a text of this type to a hasher.
pub(crate) fn hash_text<H: Hasher>(kind: Type, text: &[u8], state: &mut H) {
    state.write_u8(kind.order());
    text.hash(state);
}

fn hash_document<H: Hasher>(doc: RawDoc<'_>, state: &mut H) {
    for element in doc.iter() {
        element.key_bytes().hash(state);
        hash_value(element.value(), state);
    }
    state.write_u8(0xFF);
}

fn hash_double<H: Hasher>(n: f64, state: &mut H) {
    match Value::Double(n).as_exact_i64() {
        Some(whole) => state.write_i64(whole),
        None if n.is_nan() => state.write_u64(f64::NAN.to_bits()),
        None => state.write_u64(n.to_bits()),
    }
}

fn hash_decimal<H: Hasher>(n: Decimal128, state: &mut H) {
    if let Some(whole) = n.to_i64_exact() {
        return state.write_i64(whole);
    }
    let double = n.to_f64();
    if n.compare_f64(double).is_eq() {
        return hash_double(double, state);
    }
    if let Class::Finite { negative, coefficient, exponent } = n.stripped().class() {
        state.write_u8(u8::from(negative));
        state.write_u128(coefficient);
        state.write_i32(exponent);
    }
}

#[cfg(test)]
mod tests;
