//! Chunks and placements as documents: of `config.chunks` in the directory, of `config.placements` on a shard.

use sheaf_bson::{Binary, DocBuf, ObjectId, RawDoc, Timestamp, Value};
use sheaf_errors::{Error, Result};

use crate::types::ShardId;

use super::{Chunk, KeyPattern, Owned, RoutingTable};

impl Chunk {
    /// The chunk that a document of `config.chunks` describes.
    ///
    /// Errors: `BadValue`, if it describes none of a collection with this shard key.
    pub fn parse(pattern: &KeyPattern, document: RawDoc<'_>) -> Result<Chunk> {
        let bound = |name: &str| match document.get(name) {
            Some(Value::Document(bound)) => pattern.key(bound),
            _ => Err(no_chunk(document)),
        };
        let Some(Value::Timestamp(lastmod)) = document.get("lastmod") else { return Err(no_chunk(document)) };
        let shard =
            document.get("shard").and_then(|shard| shard.as_str()).ok_or_else(|| no_chunk(document))?;
        let history = document.get("history").and_then(|history| history.as_array());
        let mut history: Vec<Owned> = history
            .into_iter()
            .flat_map(|history| history.values())
            .filter_map(|owned| {
                let owned = owned.as_doc()?;
                let Some(Value::Timestamp(since)) = owned.get("validAfter") else { return None };
                Some(Owned { since: since.into(), shard: ShardId::new(owned.get("shard")?.as_str()?) })
            })
            .collect();
        if history.is_empty() {
            // Nothing is known of before.
            history.push(Owned { since: Timestamp(0).into(), shard: ShardId::new(shard) });
        }
        Ok(Chunk { min: bound("min")?, max: bound("max")?, lastmod, history })
    }

    /// The document of `config.chunks` for it.
    pub fn document(&self, id: ObjectId, uuid: [u8; 16]) -> DocBuf {
        DocBuf::build(|out| {
            out.append("_id", id);
            out.append("uuid", uuid_value(&uuid));
            out.append("min", self.min.document());
            out.append("max", self.max.document());
            out.append("shard", self.shard().as_str());
            out.append("lastmod", self.lastmod);
            out.append("onCurrentShardSince", Timestamp::from(self.history[0].since));
            let mut history = out.array("history");
            for owned in &self.history {
                let mut entry = history.document();
                entry.append("validAfter", Timestamp::from(owned.since));
                entry.append("shard", owned.shard.as_str());
            }
        })
    }
}

impl RoutingTable {
    /// The document of `config.placements` by which a shard knows what this table gives it.
    pub fn placement(&self, ns: &str, unique: bool, shard: &ShardId) -> DocBuf {
        let version = self.version_of(shard);
        DocBuf::build(|out| {
            head(out, ns, version.uuid, self.pattern(), unique, version.lastmod);
            let mut owned = out.array("owned");
            let mut chunks = self.chunks().iter().filter(|chunk| chunk.shard() == shard).peekable();
            while let Some(first) = chunks.next() {
                let mut last = first;
                while let Some(next) = chunks.next_if(|next| next.min == last.max) {
                    last = next;
                }
                owned.document().append("min", first.min.document()).append("max", last.max.document());
            }
            drop(owned);
            out.array("receiving");
            out.array("leaving");
        })
    }
}

/// The version of a placement that is closed: a change of the collection is under way, and no request's version equals it.
pub const CLOSED: Timestamp = Timestamp(1);

/// The placement of a collection that is being changed as a whole: the shard owns nothing, and whoever asks it waits.
pub fn closed_placement(ns: &str, uuid: [u8; 16], pattern: &KeyPattern, unique: bool) -> DocBuf {
    DocBuf::build(|out| {
        head(out, ns, uuid, pattern, unique, CLOSED);
        for name in ["owned", "receiving", "leaving"] {
            out.array(name);
        }
    })
}

fn head(
    out: &mut sheaf_bson::DocWriter<'_, Vec<u8>>,
    ns: &str,
    uuid: [u8; 16],
    pattern: &KeyPattern,
    unique: bool,
    lastmod: Timestamp,
) {
    out.append("_id", uuid_value(&uuid));
    out.append("ns", ns)
        .append("key", pattern.document())
        .append("unique", unique)
        .append("lastmod", lastmod);
}

fn uuid_value(uuid: &[u8; 16]) -> Value<'_> {
    Value::Binary(Binary { subtype: 4, bytes: uuid })
}

fn no_chunk(document: RawDoc<'_>) -> Error {
    Error::bad_value(format!("no chunk of this collection: {}", sheaf_bson::document_text(document)))
}

#[cfg(test)]
mod tests {
    use sheaf_bson::doc;

    use super::*;
    use crate::time::ClusterTime;

    #[test]
    fn a_chunk_s_document_is_read_as_it_was_written() {
        let pattern = KeyPattern::parse(doc! { "a": 1, "b": "hashed" }.as_raw()).unwrap();
        let owned =
            |shard, since| Owned { since: ClusterTime::from(Timestamp(since)), shard: ShardId::new(shard) };
        let chunk = Chunk {
            min: pattern.min(),
            max: pattern.key(doc! { "a": 5, "b": 7i64 }.as_raw()).unwrap(),
            lastmod: Timestamp::new(3, 4),
            history: vec![owned("s1", 9), owned("s0", 2)],
        };
        let document = chunk.document(ObjectId([1; 12]), [2; 16]);
        assert_eq!(Chunk::parse(&pattern, document.as_raw()).unwrap(), chunk);
        assert_eq!(document.as_raw().get("shard").and_then(|shard| shard.as_str()), Some("s1"));
    }

    #[test]
    fn a_placement_has_neighbouring_chunks_as_one_range() {
        let pattern = KeyPattern::parse(doc! { "a": 1 }.as_raw()).unwrap();
        let key = |n: i32| pattern.key(doc! { "a": n }.as_raw()).unwrap();
        let shards = [ShardId::new("s0"), ShardId::new("s0"), ShardId::new("s1")];
        let cuts = [key(1), key(2), key(3)];
        let at = ClusterTime::from(Timestamp(1));
        let table = RoutingTable::create(pattern.clone(), [7; 16], &cuts, &shards, at).unwrap();
        let placement = table.placement("a.b", true, &ShardId::new("s0"));
        let list = |name: &str| placement.as_raw().get(name).and_then(|list| list.as_array()).unwrap();
        assert_eq!(list("owned").values().count(), 2);
        assert_eq!(list("receiving").values().count() + list("leaving").values().count(), 0);
        assert!(
            matches!(placement.as_raw().get("lastmod"), Some(Value::Timestamp(version)) if version == Timestamp::new(1, 3))
        );
        let closed = closed_placement("a.b", [7; 16], &pattern, true);
        assert!(closed.as_raw().get("owned").is_some_and(|owned| owned.as_array().is_some()));
    }
}
