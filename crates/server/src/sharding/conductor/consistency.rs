//! `checkMetadataConsistency`: whether the directory and the shards say the same of sharded collections, and the others lie where they are
//! looked for.

use std::collections::BTreeSet;

use sheaf_bson::{ArrayBuf, DocBuf, RawDoc, Value, doc};
use sheaf_errors::{Code, Result};
use sheaf_shard::ShardId;
use sheaf_storage::Interrupt;
use sheaf_timeseries::BUCKETS_PREFIX;

use super::chunks::{COLLECTIONS, Entry};
use super::ddl::{name_of, text};
use super::{Conductor, DATABASES, db_of, uuid_of, uuid_value};
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
        for db in self.find(DATABASES, |db| scope.is_empty() || name_of(db) == db_of(&scope))? {
            self.check_database(name_of(db.as_raw()), &concerned, &mut all, go_on)?;
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

    /// Looks for collections that are not sharded and lie where no router looks for them.
    fn check_database(
        &self,
        db: &str,
        concerned: &dyn Fn(&str) -> bool,
        all: &mut Vec<Inconsistency<'_>>,
        go_on: Interrupt<'_>,
    ) -> Result<()> {
        let _turn = self.turn(db, go_on)?;
        // It may have been dropped since.
        let Some(known) = self.get(DATABASES, Value::String(db))? else { return Ok(()) };
        let placed = self.find(COLLECTIONS, |entry| db_of(name_of(entry)) == db)?;
        let has_place = |namespace: &str| placed.iter().any(|entry| name_of(entry.as_raw()) == namespace);
        for shard in self.shards()? {
            if shard.name == text(known.as_raw(), "primary") {
                continue;
            }
            for found in self.collections_on(&shard.name, db, go_on)? {
                let found = found.as_raw();
                let own = text(found, "name");
                let namespace = format!("{db}.{own}");
                let is_internal = own.starts_with("system.") && !own.starts_with(BUCKETS_PREFIX);
                if is_internal
                    || text(found, "type") == "view"
                    || has_place(&namespace)
                    || !concerned(&namespace)
                {
                    continue;
                }
                let info = found.get("info").and_then(|info| info.as_doc()).unwrap_or(RawDoc::EMPTY);
                all.push(Inconsistency {
                    kind: "MisplacedCollection",
                    description: "A collection that is not sharded lies on another shard than its database's",
                    details: doc! {
                        "namespace": &namespace, "shard": &shard.name, "localUUID": info.get_or_missing("uuid")
                    },
                });
            }
        }
        Ok(())
    }

    /// What `listCollections` tells of a database on a shard.
    fn collections_on(&self, shard: &str, db: &str, go_on: Interrupt<'_>) -> Result<Vec<DocBuf>> {
        let mut found = Vec::new();
        let mut command = doc! { "listCollections": 1 };
        loop {
            let told = self.ask_of(shard, db, &command, go_on)?;
            let cursor =
                told.as_raw().get("cursor").and_then(|cursor| cursor.as_doc()).unwrap_or(RawDoc::EMPTY);
            let batch = cursor.get("firstBatch").or_else(|| cursor.get("nextBatch"));
            let batch = batch.and_then(|batch| batch.as_array()).unwrap_or(RawDoc::EMPTY);
            found.extend(batch.values().filter_map(|entry| entry.as_doc().map(DocBuf::from)));
            match cursor.get("id").and_then(|id| id.as_exact_i64()).unwrap_or(0) {
                0 => return Ok(found),
                id => command = doc! { "getMore": id, "collection": "$cmd.listCollections" },
            }
        }
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
