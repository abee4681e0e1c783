//! Values of a shard key.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use sheaf_bson::{DocBuf, RawDoc, Value, document_text, key};
use sheaf_errors::Result;

use super::KeyPattern;

/// A value of a shard key, hashed fields as their hashes: an end of a range, or where a document belongs. Ordered as its values are.
#[derive(Clone)]
pub struct Key {
    document: Arc<DocBuf>,
    /// The values, one after another, as bytes that compare as they do.
    order: Arc<[u8]>,
}

impl Key {
    /// The key of these values, one for each field of the pattern.
    pub(super) fn of<'a>(pattern: &KeyPattern, values: impl Iterator<Item = Value<'a>>) -> Self {
        let mut order = Vec::new();
        let document = DocBuf::build(|doc| {
            for (field, value) in pattern.fields().iter().zip(values) {
                key::encode_bound(value, false, &mut order);
                doc.append(field.path.dotted(), value);
            }
        });
        Key { document: Arc::new(document), order: order.into() }
    }

    /// The document with a field for each of the pattern's, as `config.chunks` has it in `min` and `max`.
    pub fn document(&self) -> RawDoc<'_> {
        self.document.as_raw()
    }

    /// The same end of a range by a pattern with more fields behind those of its own.
    ///
    /// Errors: `BadValue`, if the longer pattern begins otherwise.
    pub fn refined(&self, pattern: &KeyPattern, longer: &KeyPattern) -> Result<Self> {
        if *self == pattern.max() { Ok(longer.max()) } else { longer.key_of_prefix(self.document()) }
    }

    /// Bytes that compare as keys of the same pattern do; those of its first values are a prefix.
    pub fn order(&self) -> &[u8] {
        &self.order
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}

impl Eq for Key {}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        self.order.cmp(&other.order)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&document_text(self.document.as_raw()))
    }
}
