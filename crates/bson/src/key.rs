//! Memcomparable keys: values as bytes whose plain order is [`crate::compare`]'s.
//!
//! A key is a row of *components*, one per value. Components are prefix-free, so that keys of
//! several values compare like tuples, and values that compare equal have equal bytes: `1`, `1.0`
//! and `NumberDecimal("1.00")` are one key. What that loses (numeric type, the sign of zero, digits
//! of a decimal, symbol or string) goes into [`TypeBits`], which is empty for int32, strings,
//! ObjectIds and everything else that has one form only. A descending component is the ascending
//! one with every bit inverted.
//!
//! # Layout
//!
//! A component starts with a byte for its type or, for numbers, its sign and size; never with 0x00,
//! 0x01, 0xFE or 0xFF in either direction, which leaves room for the [`LOW`] and [`HIGH`] bounds.
//!
//! - Numbers: see `number.rs`.
//! - Strings: the text with NUL as `01 01` and U+0001 as `01 02`, closed by `00`.
//! - Documents: per field, the type's place, the name closed by `00`, the value's component; closed by `00`.
//! - Arrays: the elements' components; closed by `00`. Array keys are not kept.
//! - Dates and timestamps: 8 bytes big-endian. ObjectIds: their 12 bytes.
//! - Binary: length (one byte, or `FF` and four), subtype, bytes.

mod bits;
mod decode;
mod number;

pub use bits::TypeBits;
pub use decode::{Decoder, component_len};

use crate::raw::RawDoc;
use crate::value::{Type, Value};
use bits::{INT32, INT64};

/// Appended to a prefix of components: a bound before every key that extends the prefix.
pub const LOW: u8 = 0x01;
/// Appended to a prefix of components: a bound after every key that extends the prefix.
pub const HIGH: u8 = 0xFE;

/// First bytes of components, in order.
mod tag {
    pub const MIN_KEY: u8 = 0x0A;
    pub const UNDEFINED: u8 = 0x0F;
    pub const NULL: u8 = 0x14;
    pub const NAN: u8 = 0x1E;
    pub const MINUS_INFINITY: u8 = 0x1F;
    /// -2^63 and below.
    pub const MINUS_BIG: u8 = 0x20;
    /// 0x21 to 0x28: -1 and below, with an integer part of 8 bytes to 1 byte.
    pub const MINUS_SMALL: u8 = 0x29;
    pub const ZERO: u8 = 0x2A;
    /// Between 0 and 1.
    pub const SMALL: u8 = 0x2B;
    /// 0x2C to 0x33: 1 and above, with an integer part of 1 byte to 8 bytes.
    pub const BIG: u8 = 0x34;
    pub const INFINITY: u8 = 0x35;
    pub const STRING: u8 = 0x3C;
    pub const DOCUMENT: u8 = 0x46;
    pub const ARRAY: u8 = 0x50;
    pub const BINARY: u8 = 0x5A;
    pub const OBJECT_ID: u8 = 0x64;
    pub const FALSE: u8 = 0x6E;
    pub const TRUE: u8 = 0x6F;
    pub const DATE_TIME: u8 = 0x78;
    pub const TIMESTAMP: u8 = 0x7A;
    pub const REGEX: u8 = 0x7D;
    pub const DB_POINTER: u8 = 0x82;
    pub const JAVASCRIPT: u8 = 0x87;
    pub const CODE_WITH_SCOPE: u8 = 0x8C;
    pub const MAX_KEY: u8 = 0xF0;
}

/// Closes strings, names, documents and arrays; below every tag and place.
const END: u8 = 0x00;
/// Before a byte of a string that is [`END`] or this one; the byte follows, made greater by one. (Were [`END`] escaped by
/// itself, the key of an empty string would begin that of a string that begins with NUL.)
const ESCAPE: u8 = 0x01;

/// Appends one component for `value` to `out`, and to `types` what its bytes do not say.
///
/// [`Value::Missing`] takes the place of undefined; callers for whom a missing field is null pass
/// [`Value::Null`].
///
/// ```
/// use sheaf_bson::Value;
/// use sheaf_bson::key::{TypeBits, encode};
///
/// let key = |value| {
///     let (mut bytes, mut types) = (Vec::new(), TypeBits::new());
///     encode(value, false, &mut bytes, &mut types);
///     bytes
/// };
/// // Bytes compare as the values do, across types too; equal numbers have equal keys.
/// assert!(key(Value::Int32(2)) < key(Value::Double(2.5)));
/// assert!(key(Value::Double(2.5)) < key(Value::String("")));
/// assert_eq!(key(Value::Int32(2)), key(Value::Int64(2)));
/// ```
pub fn encode(value: Value<'_>, descending: bool, out: &mut Vec<u8>, types: &mut TypeBits) {
    let start = out.len();
    put(value, out, types);
    if descending {
        out[start..].iter_mut().for_each(|byte| *byte = !*byte);
    }
}

/// Appends one component without keeping its types: for bounds and probes.
pub fn encode_bound(value: Value<'_>, descending: bool, out: &mut Vec<u8>) {
    encode(value, descending, out, &mut TypeBits::new());
}

/// The smallest key greater than every key that starts with `prefix`; `None` if there is none.
pub fn after_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte != 0xFF)?;
    let mut after = prefix[..=last].to_vec();
    after[last] += 1;
    Some(after)
}

fn put(value: Value<'_>, out: &mut Vec<u8>, types: &mut TypeBits) {
    match value {
        Value::Int32(n) => {
            types.push(INT32, 2);
            number::put_integer(i64::from(n), out);
        }
        Value::Int64(n) => {
            types.push(INT64, 2);
            number::put_integer(n, out);
        }
        Value::Double(n) => number::put_double(n, out, types),
        Value::Decimal128(n) => number::put_decimal(n, out, types),
        Value::String(text) => {
            types.push(0, 1);
            put_text(tag::STRING, text.as_bytes(), out);
        }
        Value::Symbol(text) => {
            types.push(1, 1);
            put_text(tag::STRING, text.as_bytes(), out);
        }
        Value::ObjectId(id) => {
            out.push(tag::OBJECT_ID);
            out.extend_from_slice(&id.0);
        }
        Value::Missing => {
            types.push(1, 1);
            out.push(tag::UNDEFINED);
        }
        Value::Undefined => {
            types.push(0, 1);
            out.push(tag::UNDEFINED);
        }
        Value::MinKey => out.push(tag::MIN_KEY),
        Value::Null => out.push(tag::NULL),
        Value::MaxKey => out.push(tag::MAX_KEY),
        Value::Bool(b) => out.push(if b { tag::TRUE } else { tag::FALSE }),
        Value::DateTime(millis) => put_u64(tag::DATE_TIME, millis as u64 ^ (1 << 63), out),
        Value::Timestamp(time) => put_u64(tag::TIMESTAMP, time.0, out),
        Value::Document(doc) => {
            out.push(tag::DOCUMENT);
            put_fields(doc, out, types);
        }
        Value::Array(array) => {
            out.push(tag::ARRAY);
            array.values().for_each(|item| put(item, out, types));
            out.push(END);
        }
        Value::Binary(binary) => {
            out.push(tag::BINARY);
            put_len(binary.bytes.len(), out);
            out.push(binary.subtype);
            out.extend_from_slice(binary.bytes);
        }
        Value::Regex(regex) => {
            put_text(tag::REGEX, regex.pattern.as_bytes(), out);
            put_escaped(regex.options.as_bytes(), out);
        }
        Value::DbPointer(pointer) => {
            out.push(tag::DB_POINTER);
            put_len(pointer.namespace.len(), out);
            out.extend_from_slice(pointer.namespace.as_bytes());
            out.extend_from_slice(&pointer.id.0);
        }
        Value::JavaScript(code) => put_text(tag::JAVASCRIPT, code.as_bytes(), out),
        Value::CodeWithScope(code) => {
            put_text(tag::CODE_WITH_SCOPE, code.code.as_bytes(), out);
            put_fields(code.scope, out, types);
        }
    }
}

fn put_fields(doc: RawDoc<'_>, out: &mut Vec<u8>, types: &mut TypeBits) {
    for element in doc.iter() {
        // The place comes before the name because documents compare in that order.
        out.push(place(element.kind()));
        out.extend_from_slice(element.key_bytes());
        out.push(END);
        put(element.value(), out, types);
    }
    out.push(END);
}

/// A type's place within documents, above [`END`].
fn place(kind: Type) -> u8 {
    kind.order() + 1
}

fn put_u64(tag: u8, n: u64, out: &mut Vec<u8>) {
    out.push(tag);
    out.extend_from_slice(&n.to_be_bytes());
}

fn put_len(len: usize, out: &mut Vec<u8>) {
    match u8::try_from(len) {
        Ok(len) if len < 0xFF => out.push(len),
        _ => {
            out.push(0xFF);
            out.extend_from_slice(&(len as u32).to_be_bytes());
        }
    }
}

fn put_text(tag: u8, text: &[u8], out: &mut Vec<u8>) {
    out.reserve(text.len() + 2);
    out.push(tag);
    put_escaped(text, out);
}

fn put_escaped(mut text: &[u8], out: &mut Vec<u8>) {
    while let Some(at) = memchr::memchr2(END, ESCAPE, text) {
        out.extend_from_slice(&text[..at]);
        out.extend_from_slice(&[ESCAPE, text[at] + 1]);
        text = &text[at + 1..];
    }
    out.extend_from_slice(text);
    out.push(END);
}

#[cfg(test)]
mod tests;
