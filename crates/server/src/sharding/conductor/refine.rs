//! `refineCollectionShardKey`: fields are added at the end of the shard key.
//!
//! | phase | what is done in it |
//! | --- | --- |
//! | `closing` | all that have the collection close it |
//! | `entering` | the directory has the longer key, with new ends of all chunks and zones, in a new version |
//! | `opening` | all open it |

use std::collections::BTreeSet;

use sheaf_bson::{DocBuf, RawDoc, Timestamp, Value, doc};
use sheaf_errors::{Code, Result, bail};
use sheaf_shard::ShardId;
use sheaf_shard::placement::{Chunk, Key, KeyPattern};
use sheaf_storage::Interrupt;

use super::chunks::{CHUNKS, COLLECTIONS, Entry};
use super::ddl::{DDL, Phase, name_of, text, with};
use super::drop::{close, concerned};
use super::ranges::namespace_of;
use super::{Conductor, db_of, uuid_of, uuid_value};
use crate::args::{Args, Loose};
use crate::sharding::key_index::begins_with;
use crate::sharding::participants::name;

const TAGS: &str = "config.tags";

impl Conductor {
    /// `{refineCollectionShardKey: "garden.plants", key: {name: 1, year: 1}}`.
    ///
    /// Errors: `NamespaceNotSharded`; `InvalidOptions`, if it does not begin with the key of now or has no index.
    pub fn refine_shard_key(&self, args: &mut Args<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
        let namespace = namespace_of(args)?;
        let key: RawDoc<'_> = args.required("key")?;
        let unique = args.optional::<Loose>("unique")?.map(|unique| unique.0);
        args.ignore(&["enforceUniquenessCheck"]);
        args.finish()?;
        KeyPattern::parse(key)?;
        let turn = self.turn(db_of(&namespace), go_on)?;
        let named = self.named(&namespace)?;
        let namespace = named.namespace.as_str();
        let Some(entry) = self.entry(namespace)?.filter(|entry| !entry.unsplittable()) else {
            bail!(Code::NAMESPACE_NOT_SHARDED, "Collection {namespace} is not sharded");
        };
        // As buckets have it is how MongoDB 8.2 wants the key of measurements, as users see it how later versions do.
        let key = match begins_with(key, entry.pattern.document()) {
            true => DocBuf::from(key),
            false => named.key(key)?,
        };
        let key = key.as_raw();
        let pattern = KeyPattern::parse(key)?;
        if !begins_with(key, entry.pattern.document()) {
            bail!(
                Code::INVALID_OPTIONS,
                "refineCollectionShardKey shard key {} does not extend shard key {}",
                sheaf_bson::document_text(key),
                sheaf_bson::document_text(entry.pattern.document())
            );
        }
        if pattern.fields().len() == entry.pattern.fields().len() {
            return Ok(doc! {});
        }
        if unique.is_some_and(|unique| unique != entry.unique()) {
            bail!(
                Code::INVALID_OPTIONS,
                "refineCollectionShardKey cannot change whether the shard key of {namespace} is unique"
            );
        }
        let dropping = self.dropping(&entry)?;
        let table = self.table(&entry)?;
        let primary = self.primary_shard(db_of(namespace))?;
        let owners: BTreeSet<&str> = table.shards().map(ShardId::as_str).chain([primary.as_str()]).collect();
        for shard in owners {
            let check = doc! {
                (name::CHECK): namespace, "uuid": uuid_value(&entry.uuid), "key": key, "unique": entry.unique()
            };
            self.tell(shard, &check, go_on)?;
        }
        let begin = with(dropping.as_raw(), &[("op", "refine".into()), ("newKey", key.into())]);
        self.perform(&turn, begin, go_on)
    }
}

/// One phase of it.
pub(super) fn phase(conductor: &Conductor, at: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<Phase> {
    let namespace = name_of(at);
    let next = match text(at, "phase") {
        "closing" => {
            close(conductor, at, go_on)?;
            "entering"
        }
        "entering" => {
            enter(conductor, at, go_on)?;
            "opening"
        }
        _ => {
            let Some(entry) = conductor.entry(namespace)? else {
                bail!(Code::INTERNAL_ERROR, "config.collections has no entry of {namespace}");
            };
            let event = doc! {
                "refineCollectionShardKey": namespace, "shardKey": at.get_or_missing("newKey"), "oldShardKey": at.get_or_missing("key")
            };
            conductor.notify(text(at, "primary"), at, &event, go_on)?;
            conductor.open_everywhere(namespace, &entry, &concerned(conductor, at)?, go_on)?;
            conductor.change(go_on, |change| change.remove(DDL, Value::String(namespace)).map(|_| ()))?;
            return Ok(Phase::Over(doc! {}));
        }
    };
    Ok(Phase::Reached(with(at, &[("phase", next.into())])))
}

fn enter(conductor: &Conductor, at: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<()> {
    let namespace = name_of(at);
    let new = KeyPattern::parse(at.get("newKey").and_then(|key| key.as_doc()).unwrap_or(RawDoc::EMPTY))?;
    let since = conductor.now();
    conductor.change(go_on, |change| {
        let Some(entry) = change.get(COLLECTIONS, Value::String(namespace))? else { return Ok(()) };
        let entry = Entry::parse(entry)?;
        if entry.pattern.fields().len() == new.fields().len() {
            // It is so already.
            return Ok(());
        }
        let longer = |key: &Key| key.refined(&entry.pattern, &new);
        let documents = change.find(CHUNKS, |chunk| uuid_of(chunk, "uuid") == Some(entry.uuid))?;
        let mut chunks = Vec::with_capacity(documents.len());
        for document in &documents {
            chunks.push((document, Chunk::parse(&entry.pattern, document.as_raw())?));
        }
        chunks.sort_by(|(_, a), (_, b)| a.min.cmp(&b.min));
        let major = chunks.iter().map(|(_, chunk)| chunk.lastmod.seconds()).max().unwrap_or(0) + 1;
        for (minor, (document, chunk)) in (0..).zip(&chunks) {
            let lastmod = Timestamp::new(major, minor);
            let (min, max) = (longer(&chunk.min)?, longer(&chunk.max)?);
            let changes =
                [("min", min.document().into()), ("max", max.document().into()), ("lastmod", lastmod.into())];
            change.put(CHUNKS, with(document.as_raw(), &changes).as_raw())?;
        }
        for tag in change.find(TAGS, |tag| text(tag, "ns") == namespace)? {
            let end = |name: &str| {
                let end = tag.as_raw().get(name).and_then(|end| end.as_doc()).unwrap_or(RawDoc::EMPTY);
                entry.pattern.key(end).and_then(|key| longer(&key))
            };
            let (min, max) = (end("min")?, end("max")?);
            let changes = [("min", min.document().into()), ("max", max.document().into())];
            change.put(TAGS, with(tag.as_raw(), &changes).as_raw())?;
        }
        let epoch = Value::ObjectId(sheaf_front::front::new_object_id());
        let changes = [("key", new.document().into()), ("timestamp", since.into()), ("lastmodEpoch", epoch)];
        change.put(COLLECTIONS, with(entry.document.as_raw(), &changes).as_raw())?;
        let details = doc! { "newKey": new.document() };
        conductor.note(change, "refineCollectionShardKey.end", namespace, details.as_raw())
    })
}
