//! The hash of hashed indexes, equal to MongoDB's, because clients can see it
//! (`convertShardKeyToHashed`, `$toHashedIndexKey`) and sharding will need it.

use md5::{Digest, Md5};
use sheaf_bson::{Element, Type, Value};

/// The closing byte of a document takes part like an element of no name, type 0.
const END_OF_DOCUMENT: i32 = 0;

/// The 64-bit hash of a value; a missing value hashes like null.
pub fn hash(value: Value<'_>) -> i64 {
    let mut md5 = Md5::new();
    // The seed.
    md5.update(0i32.to_le_bytes());
    let doc = sheaf_bson::DocBuf::build(|doc| {
        doc.append("", if value.is_missing() { Value::Null } else { value });
    });
    if let Some(element) = doc.as_raw().iter().next() {
        feed(&mut md5, element, false);
    }
    let digest = md5.finalize();
    i64::from_le_bytes(std::array::from_fn(|i| digest[i]))
}

fn feed(md5: &mut Md5, element: Element<'_>, with_name: bool) {
    let value = element.value();
    md5.update(i32::from(value.kind().order_for_hash()).to_le_bytes());
    if with_name {
        md5.update(element.key_bytes());
        md5.update([0]);
    }
    match value {
        Value::Int32(_) | Value::Int64(_) | Value::Double(_) | Value::Decimal128(_) => {
            md5.update(whole_number(value).to_le_bytes());
        }
        Value::Document(doc) | Value::Array(doc) => {
            for inner in doc.iter() {
                feed(md5, inner, true);
            }
            md5.update(END_OF_DOCUMENT.to_le_bytes());
        }
        Value::CodeWithScope(code) => {
            md5.update(code.code.as_bytes());
            md5.update([0]);
            for inner in code.scope.iter() {
                feed(md5, inner, true);
            }
            md5.update(END_OF_DOCUMENT.to_le_bytes());
        }
        _ => md5.update(element.data()),
    }
}

/// Numbers hash by their whole part, so that `1` and `1.0` meet; out of range ones by the nearest end, NaN as 0.
fn whole_number(value: Value<'_>) -> i64 {
    match value {
        Value::Int32(n) => i64::from(n),
        Value::Int64(n) => n,
        other => match other.as_f64() {
            Some(n) if n.is_nan() => 0,
            Some(n) => other.as_exact_i64().unwrap_or(n.trunc() as i64),
            None => 0,
        },
    }
}

trait OrderForHash {
    fn order_for_hash(self) -> i8;
}

impl OrderForHash for Type {
    /// MongoDB's canonical type: the order between types, with its ends at -1 and 127.
    fn order_for_hash(self) -> i8 {
        match self {
            Type::MinKey => -1,
            Type::MaxKey => 127,
            Type::Missing | Type::Undefined => 0,
            other => other.order() as i8,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equals_what_mongodb_shows() {
        assert_eq!(hash(Value::Int32(1)), 5_902_408_780_260_971_510);
        assert_eq!(hash(Value::Double(1.5)), hash(Value::Int64(1)));
        assert_eq!(hash(Value::Missing), hash(Value::Null));
        assert_ne!(hash(Value::String("a")), hash(Value::String("b")));
    }
}
