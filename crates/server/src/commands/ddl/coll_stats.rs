//! `collStats`; its figures are also those of `$collStats`.

use sheaf_bson::{DocWriter, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_storage::{Collection, Engine};

use super::size::{self, append_number};
use crate::args::{Args, safe_i64};
use crate::command::{Command, Spec};
use crate::op::OpContext;
use crate::reply::Reply;

/// `{collStats: "users", scale: 1}`
pub struct CollStats<'a> {
    collection: &'a str,
    scale: i64,
}

/// Reads `scale`.
///
/// Errors: `TypeMismatch`, 51024 if it is not positive.
pub fn scale(value: Value<'_>, command: &str) -> Result<i64> {
    if value.is_nullish() {
        return Ok(1);
    }
    match safe_i64(value) {
        Some(scale) if scale >= 1 => Ok(scale),
        Some(scale) => bail!(51024, "BSON field 'scale' value must be >= 1, actual value '{scale}'"),
        None => bail!(
            Code::TYPE_MISMATCH,
            "BSON field '{command}.scale' is the wrong type '{}', expected types '[long, int, decimal, double]'",
            value.type_name()
        ),
    }
}

impl<'a> Command<'a> for CollStats<'a> {
    const NAME: &'static str = "collStats";
    const SPEC: Spec =
        Spec::plain().aliases(&["collstats"]).may_block().help("figures about a collection");

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let collection = args.collection()?;
        args.ignore(&["verbose", "waitForLock", "numericOnly", "indexDetails", "queryExecStats"]);
        Ok(CollStats { collection, scale: scale(args.value("scale"), Self::NAME)? })
    }

    fn run(self, op: &OpContext<'a>) -> Result<Reply> {
        let namespace = op.namespace(self.collection);
        op.metrics().namespace.replace(Some(namespace.clone()));
        let catalog = op.engine().catalog();
        let collection = catalog.collection(&namespace);
        if let Some(view) = collection.filter(|collection| collection.is_view()) {
            bail!(Code::COMMAND_NOT_SUPPORTED_ON_VIEW, "Namespace {} is a view, not a collection", view.namespace);
        }
        Ok(Reply::ok().with("ns", &namespace).with_fields(|doc| match collection {
            Some(collection) => write_storage_stats(doc, op.engine(), collection, self.scale),
            None => write_absent(doc, self.scale),
        }))
    }
}

/// The figures of `storageStats`, sizes divided by `scale`.
pub fn write_storage_stats(doc: &mut DocWriter<'_, Vec<u8>>, engine: &Engine, collection: &Collection, scale: i64) {
    let scale = scale.max(1) as u64;
    let (count, bytes) = (collection.count(), collection.data_bytes());
    let storage = size::storage_bytes(engine, collection);
    let indexes = size::index_bytes(engine, collection);
    append_number(doc, "size", bytes / scale);
    append_number(doc, "count", count);
    if let Some(average) = bytes.checked_div(count) {
        append_number(doc, "avgObjSize", average);
    }
    doc.append("numOrphanDocs", 0);
    append_number(doc, "storageSize", storage / scale);
    doc.append("freeStorageSize", 0);
    doc.append("capped", collection.capped.is_some());
    if let Some(capped) = collection.capped {
        append_number(doc, "max", capped.max.unwrap_or(0).max(0) as u64);
        append_number(doc, "maxSize", capped.size.max(0) as u64 / scale);
    }
    write_engine(doc, "collection", collection.ident, storage);
    append_number(doc, "nindexes", collection.indexes.len() as u64);
    let mut details = doc.document("indexDetails");
    for index in &collection.indexes {
        let mut entry = details.document(&index.name);
        write_engine_fields(&mut entry, "index", index.ident, engine.index_bytes(index));
    }
    drop(details);
    let mut builds = doc.array("indexBuilds");
    for index in collection.indexes.iter().filter(|index| !index.ready) {
        builds.push(index.name.as_str());
    }
    drop(builds);
    append_number(doc, "totalIndexSize", indexes / scale);
    append_number(doc, "totalSize", (storage + indexes) / scale);
    let mut sizes = doc.document("indexSizes");
    for index in &collection.indexes {
        append_number(&mut sizes, &index.name, engine.index_bytes(index) / scale);
    }
    drop(sizes);
    append_number(doc, "scaleFactor", scale);
}

/// The figures under the name that tools look for.
fn write_engine(doc: &mut DocWriter<'_, Vec<u8>>, kind: &str, ident: u32, bytes: u64) {
    write_engine_fields(&mut doc.document("wiredTiger"), kind, ident, bytes);
}

fn write_engine_fields(doc: &mut DocWriter<'_, Vec<u8>>, kind: &str, ident: u32, bytes: u64) {
    doc.document("metadata").append("formatVersion", 1);
    doc.append("type", "file");
    doc.append("uri", &format!("statistics:table:{kind}-{ident}"));
    let mut blocks = doc.document("block-manager");
    append_number(&mut blocks, "file bytes available for reuse", 0);
    append_number(&mut blocks, "file size in bytes", bytes);
}

/// A collection that does not exist has nothing of anything.
fn write_absent(doc: &mut DocWriter<'_, Vec<u8>>, scale: i64) {
    for name in ["size", "count", "numOrphanDocs", "storageSize", "totalSize", "nindexes", "totalIndexSize"] {
        doc.append(name, 0);
    }
    drop(doc.document("indexDetails"));
    drop(doc.document("indexSizes"));
    append_number(doc, "scaleFactor", scale.max(1) as u64);
}
