//! Shard keys: which fields, and how documents and bounds become keys and ranges of keys.

use sheaf_bson::path::FieldPath;
use sheaf_bson::{DocBuf, OwnedValue, RawDoc, Value, compare, document_text, hashed_index_value, key};
use sheaf_errors::{Code, Error, Result};

use super::{Key, KeyRange, Ranges};

/// How many ranges bounds may become before the rest of the fields is left to the shards.
const RANGES_MAX: usize = 1000;

/// A field of a shard key.
#[derive(Clone, Debug)]
pub struct KeyField {
    /// Where in a document.
    pub path: FieldPath,
    /// Whether the key has the value's hash.
    pub hashed: bool,
}

/// A collection's shard key.
#[derive(Clone, Debug)]
pub struct KeyPattern {
    fields: Vec<KeyField>,
    document: DocBuf,
}

/// All values between two ends, each end in or out.
#[derive(Clone, Debug)]
pub struct Interval {
    /// The lower end.
    pub low: OwnedValue,
    /// The upper end.
    pub high: OwnedValue,
    /// Whether the lower end belongs to it.
    pub low_in: bool,
    /// Whether the upper end belongs to it.
    pub high_in: bool,
}

impl Interval {
    /// Exactly one value.
    pub fn point(value: Value<'_>) -> Self {
        Interval { low: value.into(), high: value.into(), low_in: true, high_in: true }
    }

    /// Everything.
    pub fn all() -> Self {
        Interval { low: Value::MinKey.into(), high: Value::MaxKey.into(), low_in: true, high_in: true }
    }

    fn is_point(&self) -> bool {
        self.low_in && self.high_in && compare(self.low.as_value(), self.high.as_value()).is_eq()
    }

    fn is_empty(&self) -> bool {
        match compare(self.low.as_value(), self.high.as_value()) {
            std::cmp::Ordering::Less => false,
            std::cmp::Ordering::Equal => !(self.low_in && self.high_in),
            std::cmp::Ordering::Greater => true,
        }
    }
}

impl KeyPattern {
    /// A pattern as `shardCollection` takes it: `{a: 1, "b.c": "hashed"}`.
    ///
    /// Errors: `BadValue`, if a field is neither ascending nor hashed, more than one is hashed, or one stands twice.
    pub fn parse(document: RawDoc<'_>) -> Result<Self> {
        let mut fields: Vec<KeyField> = Vec::new();
        for element in document.iter() {
            let hashed = match element.value() {
                Value::String("hashed") => true,
                value if value.as_f64() == Some(1.0) => false,
                _ => {
                    let text = document_text(document);
                    return Err(Error::bad_value(format!(
                        "Unsupported shard key pattern {text}: a field is 1 or \"hashed\""
                    )));
                }
            };
            let name = element.key();
            if name.split('.').any(|part| part.is_empty() || part.starts_with('$')) {
                return Err(Error::bad_value(format!("Shard key field \"{name}\" is no path of a document")));
            }
            fields.push(KeyField { path: FieldPath::new(name), hashed });
        }
        if fields.is_empty() {
            return Err(Error::bad_value("Shard key is empty"));
        }
        if fields.iter().filter(|field| field.hashed).count() > 1 {
            let text = document_text(document);
            return Err(Error::bad_value(format!(
                "A maximum of one hashed field is allowed, but found more: {text}"
            )));
        }
        for (at, field) in fields.iter().enumerate() {
            let clashes = |other: &KeyField| {
                other.path.is_prefix_of(&field.path) || field.path.is_prefix_of(&other.path)
            };
            if fields[..at].iter().any(clashes) {
                let text = document_text(document);
                return Err(Error::bad_value(format!("Shard key fields contain one another: {text}")));
            }
        }
        Ok(KeyPattern { fields, document: DocBuf::from(document) })
    }

    /// The fields in order.
    pub fn fields(&self) -> &[KeyField] {
        &self.fields
    }

    /// The pattern as it was given, as `config.collections` has it in `key`.
    pub fn document(&self) -> RawDoc<'_> {
        self.document.as_raw()
    }

    /// Where a document belongs: a missing field counts as null.
    ///
    /// Errors: `ShardKeyNotFound`, if a field is an array or in one.
    pub fn key_of(&self, document: RawDoc<'_>) -> Result<Key> {
        let mut hashes = Vec::new();
        let mut values = Vec::with_capacity(self.fields.len());
        for field in &self.fields {
            let value = value_at(&field.path, document)?;
            hashes.push(field.hashed.then(|| hashed_index_value(value)));
            values.push(value);
        }
        let values = values.into_iter().zip(hashes);
        Ok(Key::of(self, values.map(|(value, hash)| hash.map_or(value, Value::Int64))))
    }

    /// Appends the order bytes of the key that a document has: where it belongs, without a [`Key`].
    ///
    /// Errors: as [`KeyPattern::key_of`].
    pub fn put_order(&self, document: RawDoc<'_>, order: &mut Vec<u8>) -> Result<()> {
        for field in &self.fields {
            let value = value_at(&field.path, document)?;
            let value = if field.hashed { Value::Int64(hashed_index_value(value)) } else { value };
            key::encode_bound(value, false, order);
        }
        Ok(())
    }

    /// A key from a document that has it ready, hashed fields as their hashes, as chunks do in `min` and `max`.
    ///
    /// Errors: `BadValue`, if its fields are not the pattern's.
    pub fn key(&self, document: RawDoc<'_>) -> Result<Key> {
        self.key_or(document, None)
    }

    /// The same of a prefix of the fields, as zones have it; the rest is `MinKey`.
    ///
    /// Errors: `BadValue`, if its fields are no prefix of the pattern's.
    pub fn key_of_prefix(&self, document: RawDoc<'_>) -> Result<Key> {
        self.key_or(document, Some(Value::MinKey))
    }

    fn key_or(&self, document: RawDoc<'_>, rest: Option<Value<'_>>) -> Result<Key> {
        let mut elements = document.iter();
        let mut values = Vec::with_capacity(self.fields.len());
        for field in &self.fields {
            match (elements.next(), rest) {
                (Some(element), _) if element.key() == field.path.dotted() => values.push(element.value()),
                (None, Some(rest)) => values.push(rest),
                _ => return Err(self.no_bound(document)),
            }
        }
        if elements.next().is_some() {
            return Err(self.no_bound(document));
        }
        Ok(Key::of(self, values.into_iter()))
    }

    fn no_bound(&self, document: RawDoc<'_>) -> Error {
        let (bound, pattern) = (document_text(document), document_text(self.document()));
        Error::bad_value(format!("bound {bound} is not valid for shard key pattern {pattern}"))
    }

    /// The lowest key.
    pub fn min(&self) -> Key {
        Key::of(self, self.fields.iter().map(|_| Value::MinKey))
    }

    /// The highest key.
    pub fn max(&self) -> Key {
        Key::of(self, self.fields.iter().map(|_| Value::MaxKey))
    }

    /// The ranges of keys that documents may have whose fields lie in these intervals: one list for each field, sorted and disjoint, an
    /// empty one where nothing matches. Of a hashed field only single values are of use.
    pub fn ranges_of(&self, bounds: &[Vec<Interval>]) -> Ranges {
        let mut prefixes = vec![Vec::new()];
        for (field, intervals) in self.fields.iter().zip(bounds) {
            let intervals: Vec<&Interval> =
                intervals.iter().filter(|interval| !interval.is_empty()).collect();
            if intervals.is_empty() {
                return Ranges::default();
            }
            let points = intervals.iter().all(|interval| interval.is_point());
            if prefixes.len() * intervals.len() > RANGES_MAX || (field.hashed && !points) {
                break;
            }
            if !points {
                return Ranges::new(
                    prefixes.iter().flat_map(|prefix| intervals.iter().map(|of| between(prefix, of))),
                );
            }
            let value = |interval: &Interval| field.value(interval.low.as_value());
            prefixes = prefixes
                .iter()
                .flat_map(|prefix| intervals.iter().map(|of| with(prefix, value(of).as_value())))
                .collect();
        }
        Ranges::new(prefixes.into_iter().map(KeyRange::with_prefix))
    }
}

impl KeyField {
    /// What a key has of this value.
    fn value(&self, value: Value<'_>) -> OwnedValue {
        if self.hashed { Value::Int64(hashed_index_value(value)).into() } else { value.into() }
    }
}

/// The value at a path of embedded documents.
fn value_at<'a>(path: &FieldPath, document: RawDoc<'a>) -> Result<Value<'a>> {
    let mut at = Value::Document(document);
    for name in path.names() {
        at = match at {
            Value::Document(document) => document.get_or_missing(name),
            Value::Array(_) => return Err(no_arrays()),
            _ => Value::Missing,
        };
    }
    match at {
        Value::Array(_) => Err(no_arrays()),
        Value::Missing => Ok(Value::Null),
        value => Ok(value),
    }
}

fn no_arrays() -> Error {
    Error::new(Code::SHARD_KEY_NOT_FOUND, "Shard key cannot contain array values or array descendants.")
}

/// The order bytes of a prefix with one more value.
fn with(prefix: &[u8], value: Value<'_>) -> Vec<u8> {
    let mut order = prefix.to_vec();
    key::encode_bound(value, false, &mut order);
    order
}

/// The keys that begin with this prefix, and go on in this interval.
fn between(prefix: &[u8], interval: &Interval) -> KeyRange {
    let (low, high) = (with(prefix, interval.low.as_value()), with(prefix, interval.high.as_value()));
    let low = if interval.low_in { Some(low) } else { key::after_prefix(&low) };
    let high = if interval.high_in { key::after_prefix(&high) } else { Some(high) };
    KeyRange::of_order(low, high)
}
