//! The hash of hashed indexes and hashed shard keys, equal to MongoDB's.

use md5::{Digest, Md5};

use crate::decimal::Rounding;
use crate::number::{Truncated, truncate_to_i64};
use crate::raw::RawDoc;
use crate::value::{Type, Value};

/// MongoDB's hash of a value with the default seed 0: the first half of an MD5, as a signed integer.
/// Numbers count as integers, so `1`, `NumberLong(1)`, `1.0` and `1.9` have one hash.
/// Missing hashes like null.
pub fn hashed_index_value(value: Value<'_>) -> i64 {
    hashed_index_value_seeded(value, 0)
}

/// [`hashed_index_value`] with a seed.
pub fn hashed_index_value_seeded(value: Value<'_>, seed: i32) -> i64 {
    let mut hasher = Md5::new();
    hasher.update(seed.to_le_bytes());
    feed(&mut hasher, value, None);
    let digest = hasher.finalize();
    i64::from_le_bytes(digest[..8].try_into().unwrap_or_default())
}

/// Feeds a value: its type's place, its name if it is a field, its data in a normalised form.
fn feed(hasher: &mut Md5, value: Value<'_>, name: Option<&[u8]>) {
    hasher.update(place(value.kind()).to_le_bytes());
    if let Some(name) = name {
        hasher.update(name);
        hasher.update([0]);
    }
    match value {
        Value::Int32(_) | Value::Int64(_) | Value::Double(_) | Value::Decimal128(_) => {
            hasher.update(whole(value).to_le_bytes());
        }
        Value::Document(doc) | Value::Array(doc) => feed_fields(hasher, doc),
        Value::CodeWithScope(code) => {
            hasher.update(code.code.as_bytes());
            hasher.update([0]);
            feed_fields(hasher, code.scope);
        }
        scalar => {
            let mut data = smallvec::SmallVec::<[u8; 64]>::new();
            crate::build::put_value(&mut data, scalar);
            hasher.update(&data);
        }
    }
}

fn feed_fields(hasher: &mut Md5, doc: RawDoc<'_>) {
    for element in doc.iter() {
        feed(hasher, element.value(), Some(element.key_bytes()));
    }
    // The closing byte takes part like an element of type 0.
    hasher.update(0i32.to_le_bytes());
}

/// A number as the hash sees it: doubles by their integer part, decimals rounded half to even,
/// what is out of range held at the ends of int64, NaN as 0.
fn whole(value: Value<'_>) -> i64 {
    /// Once an overflow in the conversion, kept because indexes on disk hold its hash.
    const TWO_TO_63: f64 = 9_223_372_036_854_775_808.0;
    let rounded = match value {
        Value::Double(TWO_TO_63) => return i64::MIN,
        Value::Decimal128(n) => Value::Decimal128(n.to_integral(Rounding::HalfEven)),
        _ => value,
    };
    match truncate_to_i64(rounded) {
        Some(Truncated::Integer(n)) => n,
        Some(Truncated::Nan) | None => 0,
        Some(Truncated::Overflow | Truncated::Infinite) => {
            let negative = value.as_f64().is_some_and(|n| n < 0.0);
            if negative { i64::MIN } else { i64::MAX }
        }
    }
}

/// The type's place as the hash has it.
fn place(kind: Type) -> i32 {
    match kind {
        Type::MinKey => -1,
        Type::MaxKey => 127,
        Type::Undefined => 0,
        Type::Missing => i32::from(Type::Null.order()),
        kind => i32::from(kind.order()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::{Binary, CodeWithScope, DbPointer, ObjectId, Regex};
    use crate::{array, doc};

    fn dec(text: &str) -> Value<'static> {
        Value::Decimal128(text.parse().unwrap())
    }

    #[test]
    fn equals_what_mongodb_computes() {
        let id = ObjectId([1, 2, 3, 4, 5, 6, 7, 8, 9, 0x10, 0x11, 0x12]);
        let bytes = [0, 1, 2, 3, 4, 6];
        let uuid: [u8; 16] = std::array::from_fn(|i| i as u8);
        let (object, array) = (doc! { "a": "abc", "b": 123i64 }, array!["bar", "baz", "qux"]);
        let (empty, none, scope) = (doc! {}, array![], doc! { "c": true });
        for (value, hash) in [
            (Value::Int64(42), -944302157085130861),
            (Value::Int32(0), 4854801880128277513),
            (Value::Double(0.456), 4854801880128277513),
            (Value::Double(f64::NAN), 4854801880128277513),
            (dec("NaN"), 4854801880128277513),
            (Value::Int32(1), 5902408780260971510),
            (Value::Double(1.987), 5902408780260971510),
            (Value::Int64(1), 5902408780260971510),
            (dec("1.2"), 5902408780260971510),
            (dec("0.6"), 5902408780260971510),
            (Value::Double(-1.789), 1140205862565771219),
            (Value::Int32(i32::MIN), 6165898260261354870),
            (Value::Double(2147483647.0), 1143184177162245883),
            (Value::Double(f64::MAX), 921523596458303250),
            (Value::Int64(i64::MAX), 921523596458303250),
            (Value::Double(-f64::MAX), 4532067210535695462),
            (Value::Double(9_223_372_036_854_775_808.0), 4532067210535695462),
            (Value::Double(9_223_372_036_854_777_856.0), 921523596458303250),
            (Value::Int64(i64::MIN), 4532067210535695462),
            (Value::MinKey, 7961148599568647290),
            (Value::MaxKey, 5504842513779440750),
            (Value::Undefined, 40158834000849533),
            (Value::Null, 2338878944348059895),
            (Value::Missing, 2338878944348059895),
            (Value::String("abc"), 8478485326885698097),
            (Value::Symbol(""), 2049396243249673340),
            (Value::from(&object), 4771603801758380216),
            (Value::from(&empty), 7980500913326740417),
            (Value::from(&array), -2938911267422831539),
            (Value::from(&none), 8849948234993459283),
            (Value::Binary(Binary { subtype: 0, bytes: &bytes }), 7252465090394235301),
            (Value::Binary(Binary { subtype: 128, bytes: &bytes }), 5736670452907618262),
            (Value::Binary(Binary { subtype: 4, bytes: &uuid }), 6084661258071355978),
            (Value::ObjectId(id), -5588663249627035708),
            (Value::Bool(true), 6405873908747105701),
            (Value::DateTime(0x5566778811223344), 4476222765095560467),
            (Value::Regex(Regex { pattern: ".*", options: "i" }), 7095855029187981886),
            (Value::DbPointer(DbPointer { namespace: "db.c", id }), 2426768198104018194),
            (Value::JavaScript("func f() { return 1; }"), 6861638109178014270),
            (
                Value::CodeWithScope(CodeWithScope { code: "func f() { return 1; }", scope: scope.as_raw() }),
                501342939894575968,
            ),
            (dec("1E+40"), 921523596458303250),
        ] {
            assert_eq!(hashed_index_value(value), hash, "{value:?}");
        }
    }

    #[test]
    fn the_seed_counts() {
        let (plain, odd) =
            (doc! { "a": 1.0, "b": 2.0 }, doc! { "a": 9_223_372_036_854_775_808.0, "b": f64::NAN });
        for (value, hash) in [
            (Value::String("hashthis"), 6271151123721111923),
            (Value::Double(f64::INFINITY), 1136124329541638701),
            (Value::Double(f64::NEG_INFINITY), 5744114172487291558),
            (Value::from(&plain), -7076810813311352857),
            (Value::from(&odd), 1223292051903137684),
        ] {
            assert_eq!(hashed_index_value_seeded(value, 1), hash, "{value:?}");
        }
    }
}
