//! Keys of documents that are asked for again and again, one key at a time.

use ahash::AHashMap;
use sheaf_errors::Result;

use super::KeySet;

/// Key sets are kept up to this size together. A document that has more keys than fit is alone here.
const KEPT_BYTES: usize = 32 << 20;

/// Keys of one index's documents, by record key: an index entry is looked at for each key, but the document has to be
/// taken apart only once. Otherwise one with a hundred thousand keys would be taken apart a hundred thousand times.
#[derive(Default)]
pub(crate) struct KeyCache {
    sets: AHashMap<Vec<u8>, Option<KeySet>>,
    bytes: usize,
}

impl KeyCache {
    /// The keys of a document, which `make` fills in; `None` if it returned false: then there is nothing to have keys.
    pub fn keys_of(
        &mut self,
        record_key: &[u8],
        make: impl FnOnce(&mut KeySet) -> Result<bool>,
    ) -> Result<Option<&KeySet>> {
        if !self.sets.contains_key(record_key) {
            let mut keys = KeySet::default();
            let keys = make(&mut keys)?.then_some(keys);
            let bytes = keys.as_ref().map_or(0, KeySet::capacity) + record_key.len() + 64;
            if self.bytes + bytes > KEPT_BYTES {
                self.sets.clear();
                self.bytes = 0;
            }
            self.bytes += bytes;
            self.sets.insert(record_key.to_vec(), keys);
        }
        Ok(self.sets.get(record_key).and_then(Option::as_ref))
    }
}
