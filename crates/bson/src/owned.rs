//! Values that own their bytes, and values as keys of sets and maps.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};

use smallvec::SmallVec;

use crate::build::{ArrayWriter, Sink, put_value};
use crate::compare::{compare, hash_text, hash_value, text_bytes};
use crate::raw::decode;
use crate::value::{Type, Value};

/// One value with its bytes; small ones (numbers, dates, ObjectIds) are kept without an allocation.
///
/// Equality, order and hash are MongoDB's: `1` equals `1.0`. See [`compare()`].
#[derive(Clone)]
pub struct OwnedValue {
    kind: Type,
    data: SmallVec<[u8; 16]>,
}

impl OwnedValue {
    /// A value by type and the bytes that BSON has for it.
    pub(crate) fn from_parts(kind: Type, data: SmallVec<[u8; 16]>) -> Self {
        OwnedValue { kind, data }
    }

    /// A borrowed view.
    pub fn as_value(&self) -> Value<'_> {
        if self.kind == Type::Missing { Value::Missing } else { decode(self.kind as u8, &self.data) }
    }

    /// The value's type.
    pub fn kind(&self) -> Type {
        self.kind
    }

    /// The value's bytes, as [`crate::Element::data`] gives them.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// Whether it equals a value, as [`compare()`] says.
    pub fn equals(&self, other: Value<'_>) -> bool {
        match other {
            // Undecoded: bytes need no check for UTF-8 to be equal.
            Value::String(text) if self.kind == Type::String => text_bytes(&self.data) == text.as_bytes(),
            other => compare(self.as_value(), other).is_eq(),
        }
    }

    /// Appends it to an array, without decoding it.
    pub fn push_to<S: Sink>(&self, out: &mut ArrayWriter<'_, S>) {
        match self.kind {
            Type::Missing => _ = out.push(Value::Null),
            kind => out.push_raw(kind, &self.data),
        }
    }

    /// Bytes that it takes in memory.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>() + if self.data.spilled() { self.data.capacity() } else { 0 }
    }
}

impl From<Value<'_>> for OwnedValue {
    fn from(value: Value<'_>) -> Self {
        let mut data = SmallVec::new();
        put_value(&mut data, value);
        OwnedValue { kind: value.kind(), data }
    }
}

impl<'a> From<&'a OwnedValue> for Value<'a> {
    fn from(owned: &'a OwnedValue) -> Self {
        owned.as_value()
    }
}

impl Default for OwnedValue {
    /// [`Value::Missing`].
    fn default() -> Self {
        Value::Missing.into()
    }
}

impl fmt::Debug for OwnedValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_value().fmt(f)
    }
}

impl PartialEq for OwnedValue {
    fn eq(&self, other: &Self) -> bool {
        match (self.kind, other.kind) {
            (Type::String, Type::String) => self.data == other.data,
            _ => self.cmp(other).is_eq(),
        }
    }
}

impl Eq for OwnedValue {}

impl PartialOrd for OwnedValue {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for OwnedValue {
    fn cmp(&self, other: &Self) -> Ordering {
        compare(self.as_value(), other.as_value())
    }
}

impl Hash for OwnedValue {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self.kind {
            Type::String => hash_text(Type::String, text_bytes(&self.data), state),
            _ => hash_value(self.as_value(), state),
        }
    }
}

/// A borrowed value with MongoDB's equality, order and hash, for sets and maps of values.
#[derive(Clone, Copy, Debug)]
pub struct Ordered<'a>(pub Value<'a>);

impl PartialEq for Ordered<'_> {
    fn eq(&self, other: &Self) -> bool {
        compare(self.0, other.0).is_eq()
    }
}

impl Eq for Ordered<'_> {}

impl PartialOrd for Ordered<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ordered<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        compare(self.0, other.0)
    }
}

impl Hash for Ordered<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        hash_value(self.0, state);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::{array, doc};

    #[test]
    fn keeps_any_value() {
        let doc = doc! { "a": 1, "b": "text", "c": { "d": [1, 2] }, "e": (), "f": 2.5, "g": true };
        for element in doc.as_raw().iter() {
            let owned = OwnedValue::from(element.value());
            let copy = doc! { "x": &owned };
            assert_eq!(copy.as_raw().element("x").unwrap().data(), element.data());
            assert_eq!(owned.kind(), element.kind());
            let pushed = crate::ArrayBuf::build(|out| owned.push_to(out));
            assert_eq!(pushed.as_raw(), array![element.value()].as_raw());
        }
        let missing = crate::ArrayBuf::build(|out| OwnedValue::default().push_to(out));
        assert_eq!(missing.as_raw(), array![()].as_raw());
        assert!(OwnedValue::default().as_value().is_missing());
    }

    #[test]
    fn owned_and_borrowed_values_are_equal_and_hash_alike() {
        use std::hash::BuildHasher;
        let hasher = std::hash::RandomState::new();
        let values = array![1, 1.0, "", "a", "ab", "a\0b", (), true, { "a": "b" }, ["a", "b"]];
        for a in values.as_raw().values() {
            let owned = OwnedValue::from(a);
            assert_eq!(hasher.hash_one(&owned), hasher.hash_one(Ordered(a)), "{a:?}");
            for b in values.as_raw().values() {
                let equal = Ordered(a) == Ordered(b);
                assert_eq!((owned.equals(b), owned == OwnedValue::from(b)), (equal, equal), "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn sets_know_equal_numbers() {
        let values = array![1, 1.0, 1i64, 2, "a", "a"];
        let borrowed: HashSet<_> = values.as_raw().values().map(Ordered).collect();
        let owned: HashSet<_> = values.as_raw().values().map(OwnedValue::from).collect();
        assert_eq!((borrowed.len(), owned.len()), (3, 3));
    }
}
