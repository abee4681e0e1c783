//! `split`, `mergeChunks`, `mergeAllChunksOnShard`, `clearJumboFlag`: the directory's chunks, without any document changing its owner.
//! Shards hear nothing of it, since they know what they own as merged ranges.

use std::collections::BTreeMap;

use sheaf_bson::{DocBuf, RawDoc, Value, doc};
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_shard::placement::{Chunk, Key, RoutingTable};
use sheaf_storage::Interrupt;

use super::chunks::{CHUNKS, COLLECTIONS, Entry, table_of};
use super::{Conductor, uuid_of, uuid_value};
use crate::args::{Args, Array};
use crate::sharding::participants::name;
use crate::sharding::rows::Change;

/// How a command names a chunk.
#[derive(Clone, Copy)]
pub(super) enum Which<'a> {
    /// The one in which the documents are that this finds.
    Find(RawDoc<'a>),
    /// The one with these ends.
    Bounds(RawDoc<'a>),
}

/// A collection's chunks within a change.
pub(super) struct Chunks {
    /// Its entry.
    pub entry: Entry,
    documents: Vec<DocBuf>,
    /// What they make.
    pub table: RoutingTable,
}

impl Chunks {
    /// Reads them.
    ///
    /// Errors: `NamespaceNotSharded`.
    pub fn read(change: &mut Change, namespace: &str) -> Result<Chunks> {
        let entry = change.get(COLLECTIONS, Value::String(namespace))?;
        let entry = Entry::parse(entry.ok_or_else(|| not_sharded(namespace))?)?;
        if entry.unsplittable() {
            return Err(not_sharded(namespace));
        }
        let documents = change.find(CHUNKS, |chunk| uuid_of(chunk, "uuid") == Some(entry.uuid))?;
        let table = table_of(&entry.pattern, entry.uuid, documents.iter().map(DocBuf::as_raw))?;
        Ok(Chunks { entry, documents, table })
    }

    /// Writes chunks in the place of all that they overlap. One that begins where another did keeps its `_id`.
    pub fn write(&self, change: &mut Change, changed: &[Chunk]) -> Result<()> {
        let mut ids = BTreeMap::new();
        for document in &self.documents {
            let own = Chunk::parse(&self.entry.pattern, document.as_raw())?;
            let Some(new) = changed.iter().find(|new| new.min < own.max && own.min < new.max) else {
                continue;
            };
            let id = document.as_raw().get_or_missing("_id");
            match id {
                Value::ObjectId(id) if new.min == own.min => _ = ids.insert(own.min, id),
                _ => _ = change.remove(CHUNKS, id)?,
            }
        }
        for chunk in changed {
            let id = ids.get(&chunk.min).copied().unwrap_or_else(sheaf_front::front::new_object_id);
            change.put(CHUNKS, chunk.document(id, self.entry.uuid).as_raw())?;
        }
        Ok(())
    }

    /// The chunk that a command names.
    pub fn find(&self, which: Which<'_>) -> Result<&Chunk> {
        match which {
            Which::Find(filter) => Ok(self.table.chunk_of(&self.key_of(filter)?)),
            Which::Bounds(bounds) => {
                let (min, max) = self.ends(bounds)?;
                let found = self.table.chunk_of(&min);
                if found.min != min || found.max != max {
                    bail!(
                        Code::INVALID_OPTIONS,
                        "no chunk found with the shard key bounds [{min}, {max}) of {}",
                        self.entry.namespace()
                    );
                }
                Ok(found)
            }
        }
    }

    /// The shard key of the documents that a filter of equalities finds.
    fn key_of(&self, filter: RawDoc<'_>) -> Result<Key> {
        let pattern = &self.entry.pattern;
        let missing = pattern.fields().iter().find(|field| {
            let name = field.path.dotted();
            let at_once = filter.get(name).is_some();
            !at_once
                && field
                    .path
                    .names()
                    .try_fold(filter, |at, part| at.get(part)?.as_doc().or(Some(RawDoc::EMPTY)))
                    .is_none()
        });
        if missing.is_some() {
            bail!(
                Code::SHARD_KEY_NOT_FOUND,
                "Query {} does not contain an equality for each field of the shard key {}",
                sheaf_bson::document_text(filter),
                sheaf_bson::document_text(pattern.document())
            );
        }
        // Dotted names are paths here, as in any filter.
        let nested = filter.iter().any(|field| field.key().contains('.'));
        if !nested {
            return pattern.key_of(filter);
        }
        let flat = doc! {};
        let flat = pattern.fields().iter().fold(flat, |flat, field| {
            let mut names: Vec<&str> = field.path.names().collect();
            let value = filter.get(field.path.dotted());
            let value = value.or_else(|| {
                names.iter().try_fold(Value::Document(filter), |at, part| at.as_doc()?.get(part))
            });
            let last = names.pop().unwrap_or_default();
            let inner = DocBuf::new().with(last, value.unwrap_or(Value::Null));
            let whole =
                names.iter().rev().fold(inner, |inner, part| DocBuf::new().with(part, inner.as_raw()));
            DocBuf::build(|out| {
                out.append_all(flat.as_raw());
                out.append_all(whole.as_raw());
            })
        });
        pattern.key_of(flat.as_raw())
    }

    /// The two ends that `bounds` names.
    fn ends(&self, bounds: RawDoc<'_>) -> Result<(Key, Key)> {
        let ends: Vec<RawDoc<'_>> = bounds.values().filter_map(|end| end.as_doc()).collect();
        let [min, max] = ends[..] else {
            bail!(
                Code::FAILED_TO_PARSE,
                "bounds must be an array of two documents, the lower and the upper end"
            );
        };
        Ok((self.entry.pattern.key(min)?, self.entry.pattern.key(max)?))
    }
}

fn not_sharded(namespace: &str) -> Error {
    Error::new(Code::NAMESPACE_NOT_SHARDED, format!("Collection {namespace} is not sharded"))
}

/// The namespace that is a command's own value.
pub(super) fn namespace_of(args: &mut Args<'_>) -> Result<String> {
    let command = args.command();
    match args.own_value() {
        Value::String(namespace) if namespace.split_once('.').is_some_and(|(_, name)| !name.is_empty()) => {
            Ok(namespace.to_owned())
        }
        Value::String(other) => bail!(Code::INVALID_NAMESPACE, "Invalid namespace specified '{other}'"),
        other => bail!(
            Code::TYPE_MISMATCH,
            "BSON field '{command}.{command}' is the wrong type '{}', expected type 'string'",
            other.type_name()
        ),
    }
}

impl Conductor {
    /// `{split: "garden.plants", find | middle | bounds}`.
    ///
    /// Errors: `NamespaceNotSharded`, `InvalidOptions`, `CannotSplit`.
    pub fn split(&self, args: &mut Args<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
        let namespace = namespace_of(args)?;
        let find: Option<RawDoc<'_>> = args.optional("find")?;
        let middle: Option<RawDoc<'_>> = args.optional("middle")?;
        let bounds: Option<Array<'_>> = args.optional("bounds")?;
        args.finish()?;
        self.prepare(go_on)?;
        let which = match (find, middle, bounds) {
            (None, Some(middle), None) => {
                return self.cut(&namespace, go_on, |chunks| {
                    let key = chunks.entry.pattern.key(middle)?;
                    check_inside(chunks, &key)?;
                    Ok(key)
                });
            }
            (Some(find), None, None) => Which::Find(find),
            (None, None, Some(bounds)) => Which::Bounds(bounds.0),
            (None, None, None) => bail!(Code::INVALID_OPTIONS, "need to specify find/bounds or middle"),
            _ => bail!(Code::INVALID_OPTIONS, "cannot specify more than one of find, bounds and middle"),
        };
        let (chunk, uuid) = self.change(go_on, |change| {
            let chunks = Chunks::read(change, &namespace)?;
            Ok((chunks.find(which)?.clone(), chunks.entry.uuid))
        })?;
        let ask = doc! {
            (name::MEDIAN): &namespace, "uuid": uuid_value(&uuid), "min": chunk.min.document(), "max": chunk.max.document()
        };
        let told = self.tell(chunk.shard().as_str(), &ask, go_on)?;
        let Some(median) = told.as_raw().get("median").and_then(|median| median.as_doc()) else {
            bail!(
                Code::CANNOT_SPLIT,
                "unable to find the median in the chunk [{}, {}), because it has too few different shard keys",
                chunk.min,
                chunk.max
            );
        };
        self.cut(&namespace, go_on, |chunks| chunks.entry.pattern.key(median))
    }

    fn cut(
        &self,
        namespace: &str,
        go_on: Interrupt<'_>,
        at: impl Fn(&Chunks) -> Result<Key>,
    ) -> Result<DocBuf> {
        self.change(go_on, |change| {
            let chunks = Chunks::read(change, namespace)?;
            let key = at(&chunks)?;
            let changed = chunks.table.split(std::slice::from_ref(&key));
            chunks.write(change, &changed)?;
            let details = doc! { "splitPoint": key.document() };
            self.note(change, "split", namespace, details.as_raw())
        })?;
        Ok(doc! {})
    }

    /// `{mergeChunks: "garden.plants", bounds: [min, max]}`.
    ///
    /// Errors: `NamespaceNotSharded`, `BadValue`.
    pub fn merge_chunks(&self, args: &mut Args<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
        let namespace = namespace_of(args)?;
        let bounds: Array<'_> = args.required("bounds")?;
        args.ignore(&["epoch", "config"]);
        args.finish()?;
        self.prepare(go_on)?;
        self.change(go_on, |change| {
            let chunks = Chunks::read(change, &namespace)?;
            let (min, max) = chunks.ends(bounds.0)?;
            let first = chunks.table.chunk_of(&min);
            if first.min == min && first.max == max {
                // They are one already.
                return Ok(());
            }
            let merged = chunks.table.merge(&min, &max)?;
            chunks.write(change, std::slice::from_ref(&merged))?;
            self.note_merge(change, &namespace, &merged)
        })?;
        Ok(doc! {})
    }

    /// `{mergeAllChunksOnShard: "garden.plants", shard: "s0", maxNumberOfChunksToMerge: 100}`.
    ///
    /// Errors: `NamespaceNotSharded`, `ShardNotFound`.
    pub fn merge_all_chunks(&self, args: &mut Args<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
        let namespace = namespace_of(args)?;
        let shard: &str = args.required("shard")?;
        let most: Option<i64> = args.optional("maxNumberOfChunksToMerge")?;
        args.ignore(&["maxTimeProcessingChunksMS"]);
        args.finish()?;
        if most.is_some_and(|most| most < 2) {
            bail!(Code::BAD_VALUE, "BSON field 'maxNumberOfChunksToMerge' value must be >= 2");
        }
        self.prepare(go_on)?;
        if self.get("config.shards", Value::String(shard))?.is_none() {
            bail!(Code::SHARD_NOT_FOUND, "Shard {shard} not found");
        }
        self.change(go_on, |change| self.merge_on(change, &namespace, shard, most.unwrap_or(i64::MAX)))?;
        Ok(doc! {})
    }

    /// Merges what can be merged on a shard, `most` chunks at most.
    fn merge_on(&self, change: &mut Change, namespace: &str, shard: &str, most: i64) -> Result<()> {
        let mut chunks = Chunks::read(change, namespace)?;
        let mut left = most;
        for (min, max, count) in runs(&chunks.table, shard) {
            if count > left {
                break;
            }
            left -= count;
            let merged = chunks.table.merge(&min, &max)?;
            chunks.write(change, std::slice::from_ref(&merged))?;
            self.note_merge(change, namespace, &merged)?;
            chunks = Chunks::read(change, namespace)?;
        }
        Ok(())
    }

    /// Merges what can be merged on every shard.
    pub(super) fn merge_everything(&self, change: &mut Change, namespace: &str) -> Result<()> {
        let shards: Vec<String> =
            Chunks::read(change, namespace)?.table.shards().map(|shard| shard.as_str().to_owned()).collect();
        shards.iter().try_for_each(|shard| self.merge_on(change, namespace, shard, i64::MAX))
    }

    fn note_merge(&self, change: &mut Change, namespace: &str, merged: &Chunk) -> Result<()> {
        let details = doc! {
            "min": merged.min.document(), "max": merged.max.document(), "owningShard": merged.shard().as_str()
        };
        self.note(change, "merge", namespace, details.as_raw())
    }

    /// `{clearJumboFlag: "garden.plants", find | bounds}`. Chunks are moved whatever their size, so no flag is ever in the way.
    ///
    /// Errors: `NamespaceNotSharded`, `InvalidOptions`.
    pub fn clear_jumbo_flag(&self, args: &mut Args<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
        let namespace = namespace_of(args)?;
        let find: Option<RawDoc<'_>> = args.optional("find")?;
        let bounds: Option<Array<'_>> = args.optional("bounds")?;
        args.finish()?;
        let which = match (find, bounds) {
            (Some(find), None) => Which::Find(find),
            (None, Some(bounds)) => Which::Bounds(bounds.0),
            _ => bail!(Code::INVALID_OPTIONS, "must specify either the find or the bounds"),
        };
        self.prepare(go_on)?;
        self.change(go_on, |change| Chunks::read(change, &namespace)?.find(which).map(|_| ()))?;
        Ok(doc! {})
    }
}

fn check_inside(chunks: &Chunks, key: &Key) -> Result<()> {
    let chunk = chunks.table.chunk_of(key);
    if *key == chunk.min || *key == chunks.entry.pattern.max() {
        bail!(
            Code::INVALID_OPTIONS,
            "new split key {key} is a boundary key of existing chunk [{},{})",
            chunk.min,
            chunk.max
        );
    }
    Ok(())
}

/// The neighbouring chunks of a shard: where each run of more than one begins and ends, and how many there are.
fn runs(table: &RoutingTable, shard: &str) -> Vec<(Key, Key, i64)> {
    let mut runs: Vec<(Key, Key, i64)> = Vec::new();
    for chunk in table.chunks().iter().filter(|chunk| chunk.shard().as_str() == shard) {
        match runs.last_mut() {
            Some((_, max, count)) if *max == chunk.min => {
                *max = chunk.max.clone();
                *count += 1;
            }
            _ => runs.push((chunk.min.clone(), chunk.max.clone(), 1)),
        }
    }
    runs.retain(|(_, _, count)| *count > 1);
    runs
}
