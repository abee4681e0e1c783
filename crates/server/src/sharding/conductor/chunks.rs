//! The directory's chunks of a collection.

use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_shard::ShardId;
use sheaf_shard::placement::{Chunk, KeyPattern, RoutingTable};

use super::ddl::name_of;
use super::{Conductor, uuid_of};

/// Where they are.
pub(super) const CHUNKS: &str = "config.chunks";

/// Where sharded collections are.
pub(super) const COLLECTIONS: &str = "config.collections";

/// A sharded collection as the directory has it.
pub(super) struct Entry {
    /// Its document in `config.collections`.
    pub document: DocBuf,
    /// Its UUID.
    pub uuid: [u8; 16],
    /// Its shard key.
    pub pattern: KeyPattern,
}

impl Entry {
    /// Reads it.
    ///
    /// Errors: `BadValue`, if it cannot be read.
    pub fn parse(document: DocBuf) -> Result<Entry> {
        let raw = document.as_raw();
        let key = raw.get("key").and_then(|key| key.as_doc());
        let (Some(uuid), Some(key)) = (uuid_of(raw, "uuid"), key) else {
            bail!(Code::BAD_VALUE, "config.collections has no uuid or no key: {document:?}");
        };
        let pattern = KeyPattern::parse(key)?;
        Ok(Entry { uuid, pattern, document })
    }

    /// Its name.
    pub fn namespace(&self) -> &str {
        name_of(self.document.as_raw())
    }

    /// Whether its shard key is unique.
    pub fn unique(&self) -> bool {
        self.document.as_raw().get("unique").is_some_and(|unique| unique.truthy())
    }

    /// Whether it is not sharded: it has a place of its own, in one piece.
    pub fn unsplittable(&self) -> bool {
        self.document.as_raw().get("unsplittable").is_some_and(|flag| flag.truthy())
    }

    /// What a shard knows of it.
    pub fn placement(&self, table: &RoutingTable, shard: &ShardId) -> DocBuf {
        let placement = table.placement(self.namespace(), self.unique(), shard);
        if self.unsplittable() { placement.with("unsplittable", true) } else { placement }
    }
}

impl Conductor {
    /// The entry of a sharded collection, if it is one.
    pub(super) fn entry(&self, namespace: &str) -> Result<Option<Entry>> {
        self.get(COLLECTIONS, Value::String(namespace))?.map(Entry::parse).transpose()
    }
}

/// The table that these documents of `config.chunks` make, each with its `_id`.
pub(super) fn table_of<'d>(
    pattern: &KeyPattern,
    uuid: [u8; 16],
    documents: impl Iterator<Item = RawDoc<'d>>,
) -> Result<RoutingTable> {
    let chunks: Result<Vec<Chunk>> = documents.map(|document| Chunk::parse(pattern, document)).collect();
    RoutingTable::new(pattern.clone(), uuid, chunks?)
}
