//! `dropIndexes`.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use sheaf_bson::{RawDoc, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_exec::ddl::index_spec;
use sheaf_front::audit::noted::room_for;
use sheaf_storage::{Collection, Index, Uuid};
use sheaf_timeseries::index_for_buckets;

use super::names;
use crate::args::Args;
use crate::audited;
use crate::command::*;
use crate::commands::timeseries::{buckets_name, is_measured, options_of};
use crate::op::Operation;
use crate::reply::Reply;
use crate::sharding::key_rules;

/// `{dropIndexes: "users", index: "email_1" | ["a_1", "b_1"] | {email: 1} | "*"}`
pub struct DropIndexes<'a> {
    collection: &'a str,
    index: Value<'a>,
    uuid: Option<Uuid>,
}

impl<'a> Command<'a, Operation<'a>> for DropIndexes<'a> {
    const NAME: &'static str = "dropIndexes";
    const SPEC: Spec = Spec {
        aliases: &["deleteIndexes"],
        help: "drops indexes of a collection",
        access: Access::Write,
        transaction: Transaction::Refused,
        secondary: Secondary::Never,
        maintenance: false,
        authentication: Authentication::Required,
        api_v1: true,
        admin_only: false,
        test_only: false,
        concerns: Concerns::WRITE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Collection, &[Action::DropIndex])]),
        spread: Spread::PrimaryShard,
        counter: Counter::Command,
        threads: Threads::DataMayBlock,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let collection = args.collection()?;
        let index = args.required::<Value<'a>>("index")?;
        let good = match index {
            Value::String(_) | Value::Document(_) => true,
            Value::Array(list) => list.values().all(|name| name.as_str().is_some()),
            _ => false,
        };
        if !good {
            bail!(
                Code::TYPE_MISMATCH,
                "BSON field 'dropIndexes.index' is the wrong type '{}', expected types '[string, array, object]'",
                index.type_name()
            );
        }
        args.optional::<bool>("isTimeseriesNamespace")?;
        Ok(DropIndexes { collection, index, uuid: args.optional("collectionUUID")? })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let namespace = op.namespace(self.collection);
        op.metrics().namespace.replace(Some(namespace.clone()));
        let catalog = op.catalog();
        if let Some(view) = catalog.collection(&namespace).filter(|found| is_measured(op, found)) {
            return self.on_buckets(op, view);
        }
        self.drop_from(op, namespace)
    }
}

impl<'a> DropIndexes<'a> {
    /// Drops indexes of measurements, which are those of their buckets.
    fn on_buckets(&self, op: &Operation<'_>, view: &Collection) -> Result<Reply> {
        let options = options_of(view)?;
        let key = match self.index {
            Value::Document(key) => Some(index_for_buckets(key, &options)?),
            _ => None,
        };
        let index = key.as_ref().map_or(self.index, |key| Value::Document(key.as_raw()));
        let on_buckets = DropIndexes { collection: self.collection, index, uuid: self.uuid };
        on_buckets.drop_from(op, buckets_name(view))
    }

    /// Drops the indexes that are named.
    fn drop_from(&self, op: &Operation<'_>, namespace: String) -> Result<Reply> {
        let catalog = op.catalog();
        names::check_uuid(&catalog, &namespace, self.uuid)?;
        let collection = names::existing(&catalog, &namespace, &format!("ns not found {namespace}"))?;
        self.choose(op, collection)?;
        let (were, gone) = (Cell::new(0), RefCell::new(Vec::new()));
        let choose = |now: &Collection| {
            names::check_uuid(&op.catalog(), &namespace, self.uuid)?;
            names::refuse_view(now)?;
            op.check_changed(now)?;
            were.set(now.counted_indexes().count() as i32);
            let chosen = self.choose(op, now)?;
            room_for(op, chosen.iter().map(String::as_str))?;
            gone.replace(chosen.clone());
            Ok(chosen)
        };
        let stop = op.interrupter();
        op.note_commit(op.engine().drop_indexes(&namespace, &choose, &|| stop.check())?);
        audited::indexes_dropped(op, &namespace, &gone.take());
        let mut reply = Reply::ok().with("nIndexesWas", were.get());
        if matches!(self.index, Value::String("*")) {
            let text = match op.placed(collection)? {
                Some(_) => "non-_id indexes and non-shard key indexes dropped for collection",
                None => "non-_id indexes dropped for collection",
            };
            reply.append("msg", text);
        }
        Ok(reply)
    }
}

impl DropIndexes<'_> {
    /// Names of the indexes that are meant.
    ///
    /// Errors: `IndexNotFound` and kin; `CannotDropShardKeyIndex`.
    fn choose(&self, op: &Operation<'_>, collection: &Collection) -> Result<Vec<String>> {
        let placed = op.placed(collection)?;
        if matches!(self.index, Value::String("*")) {
            let stays = |index: &Index| match &placed {
                Some(placed) => key_rules::stays(&placed.pattern, index),
                None => is_id(index),
            };
            let others = collection.indexes.iter().filter(|index| !stays(index));
            return Ok(others.map(|index| index.name.clone()).collect());
        }
        let chosen = self.named(collection)?;
        for (at, name) in chosen.iter().enumerate() {
            let (Some(placed), Some(index)) = (&placed, collection.index(name)) else { continue };
            if key_rules::is_last_for_key(&placed.pattern, collection, index, &chosen[..at]) {
                bail!(
                    Code::CANNOT_DROP_SHARD_KEY_INDEX,
                    "Cannot drop the only compatible index for this collection's shard key"
                );
            }
        }
        Ok(chosen)
    }

    /// Names of the indexes that are named.
    fn named(&self, collection: &Collection) -> Result<Vec<String>> {
        Ok(match self.index {
            Value::String(name) => vec![by_name(collection, name)?.name.clone()],
            Value::Array(list) => {
                let mut chosen: Vec<String> = Vec::new();
                for name in list.values().filter_map(|name| name.as_str()) {
                    let name = &by_name(collection, name)?.name;
                    if !chosen.contains(name) {
                        chosen.push(name.clone());
                    }
                }
                chosen
            }
            other => vec![by_key(collection, other.as_doc().unwrap_or(RawDoc::EMPTY))?.name.clone()],
        })
    }
}

/// Whether it is the index on `_id`, which stays.
pub fn is_id(index: &Index) -> bool {
    index_spec::is_id_key(index.key_pattern())
}

fn by_name<'c>(collection: &'c Collection, name: &str) -> Result<&'c Arc<Index>> {
    match collection.index(name) {
        None => bail!(Code::INDEX_NOT_FOUND, "index not found with name [{name}]"),
        Some(index) => refuse_id(collection, index),
    }
}

fn by_key<'c>(collection: &'c Collection, key: RawDoc<'_>) -> Result<&'c Arc<Index>> {
    match find_by_key(collection, key)? {
        None => bail!(
            Code::INDEX_NOT_FOUND,
            "can't find index with key: {}",
            sheaf_bson::value_text(Value::Document(key))
        ),
        Some(index) => refuse_id(collection, index),
    }
}

/// The one index with this key pattern.
///
/// Errors: `AmbiguousIndexKeyPattern`.
pub fn find_by_key<'c>(collection: &'c Collection, key: RawDoc<'_>) -> Result<Option<&'c Arc<Index>>> {
    let found: Vec<_> =
        collection.indexes.iter().filter(|index| index_spec::same_key(index.key_pattern(), key)).collect();
    if found.len() > 1 {
        let text = |value| sheaf_bson::value_text(Value::Document(value));
        let conflicting: Vec<String> = found.iter().map(|index| text(index.spec.as_raw())).collect();
        bail!(
            Code::AMBIGUOUS_INDEX_KEY_PATTERN,
            "{} indexes found for key: {}, identify by name instead. Conflicting indexes: {}",
            found.len(),
            text(key),
            conflicting.join(", ")
        );
    }
    Ok(found.first().copied())
}

fn refuse_id<'c>(collection: &Collection, index: &'c Arc<Index>) -> Result<&'c Arc<Index>> {
    if is_id(index) {
        if collection.options.as_raw().element("clusteredIndex").is_some() {
            bail!(5979800, "It is illegal to drop the clusteredIndex");
        }
        bail!(Code::INVALID_OPTIONS, "cannot drop _id index");
    }
    Ok(index)
}
