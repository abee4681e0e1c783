//! `checkMetadataConsistency`: whether the directory and the shards say the same of sharded collections.

use std::collections::BTreeSet;

use sheaf_bson::{ArrayBuf, DocBuf, RawDoc, Value, doc};
use sheaf_errors::{Code, Result};
use sheaf_shard::ShardId;
use sheaf_storage::Interrupt;

use super::chunks::{COLLECTIONS, Entry};
use super::ddl::text;
use super::{Conductor, db_of, uuid_of, uuid_value};
use crate::args::{Args, Loose};
use crate::sharding::participants::name;

/// What does not fit.
struct Inconsistency<'a> {
    kind: &'a str,
    description: &'a str,
    details: DocBuf,
}

impl Conductor {
    /// Looks at one collection, a database's, or with an empty name at all of the cluster; `checkIndexes` compares indexes, too.
    ///
    /// Errors: those of asking the shards.
    pub fn check_consistency(&self, args: &mut Args<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
        let scope = args.own_value().as_str().unwrap_or_default().to_owned();
        let indexes = args.optional::<Loose>("checkIndexes")?.is_some_and(|flag| flag.0);
        args.ignore(&["cursor"]);
        args.finish()?;
        let concerned = |namespace: &str| scope.is_empty() || scope == namespace || scope == db_of(namespace);
        let found = self.find(COLLECTIONS, |entry| concerned(text(entry, "_id")))?;
        let mut all = Vec::new();
        for document in found {
            let entry = Entry::parse(document)?;
            // What changes right now is not compared.
            let _turn = self.turn(db_of(entry.namespace()), go_on)?;
            let Some(entry) = self.entry(entry.namespace())? else { continue };
            self.check_collection(&entry, indexes, &mut all, go_on)?;
        }
        let batch = ArrayBuf::build(|list| {
            for found in &all {
                let shown =
                    doc! { "type": found.kind, "description": found.description, "details": &found.details };
                list.push(shown.as_raw());
            }
        });
        Ok(doc! { "inconsistencies": Value::Array(batch.as_raw()) })
    }

    fn check_collection(
        &self,
        entry: &Entry,
        indexes: bool,
        all: &mut Vec<Inconsistency<'_>>,
        go_on: Interrupt<'_>,
    ) -> Result<()> {
        let namespace = entry.namespace().to_owned();
        let uuid = uuid_value(&entry.uuid);
        let table = match self.table(entry) {
            Ok(table) => table,
            Err(error) if error.code() == Code::CONFLICTING_OPERATION_IN_PROGRESS => {
                all.push(Inconsistency {
                    kind: "RoutingTableRangeGap",
                    description: "The collection's chunks do not fit together",
                    details: doc! { "namespace": &namespace, "collectionUUID": uuid, "why": error.message() },
                });
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let primary = ShardId::new(self.primary_shard(db_of(&namespace))?);
        let mut shards: BTreeSet<ShardId> = table.shards().cloned().collect();
        shards.insert(primary);
        let mut first: Option<(String, DocBuf)> = None;
        for shard in &shards {
            let told = self.tell(shard.as_str(), &doc! { (name::DESCRIBE): &namespace }, go_on)?;
            let told = told.as_raw();
            let details = |more: RawDoc<'_>| {
                DocBuf::build(|out| {
                    out.append("namespace", &namespace)
                        .append("shard", shard.as_str())
                        .append("collectionUUID", uuid);
                    out.append_all(more);
                })
            };
            match uuid_of(told, "uuid") {
                None => {
                    all.push(Inconsistency {
                        kind: "MissingLocalCollection",
                        description: "The shard owns ranges of the collection, and does not have it",
                        details: details(RawDoc::EMPTY),
                    });
                    continue;
                }
                Some(own) if own != entry.uuid => {
                    all.push(Inconsistency {
                        kind: "CollectionUUIDMismatch",
                        description: "The shard has another collection of this name",
                        details: details(doc! { "localUUID": uuid_value(&own) }.as_raw()),
                    });
                    continue;
                }
                Some(_) => {}
            }
            let placement =
                told.get("placement").and_then(|placement| placement.as_doc()).unwrap_or(RawDoc::EMPTY);
            let wanted = entry.placement(&table, shard);
            let same = ["key", "owned"].iter().all(|name| {
                sheaf_bson::compare(placement.get_or_missing(name), wanted.as_raw().get_or_missing(name))
                    .is_eq()
            });
            if !same {
                all.push(Inconsistency {
                    kind: "InconsistentOwnership",
                    description: "The shard does not own what the directory says",
                    details: details(doc! { "local": placement, "directory": wanted.as_raw() }.as_raw()),
                });
            }
            if !indexes {
                continue;
            }
            let own = names_of(told);
            match &first {
                Some((other, names)) if *names != own => all.push(Inconsistency {
                    kind: "InconsistentIndex",
                    description: "Not all shards have the same indexes",
                    details: details(
                        doc! { "indexes": own.as_raw(), "otherShard": other, "otherIndexes": names.as_raw() }
                            .as_raw(),
                    ),
                }),
                Some(_) => {}
                None => first = Some((shard.as_str().to_owned(), own)),
            }
        }
        Ok(())
    }
}

/// The indexes by their names.
fn names_of(told: RawDoc<'_>) -> DocBuf {
    let specs = told.get("indexes").and_then(|specs| specs.as_array()).unwrap_or(RawDoc::EMPTY);
    let mut specs: Vec<RawDoc<'_>> = specs.values().filter_map(|spec| spec.as_doc()).collect();
    specs.sort_by_key(|spec| text(*spec, "name"));
    DocBuf::build(|out| specs.iter().for_each(|spec| _ = out.append(text(*spec, "name"), *spec)))
}
