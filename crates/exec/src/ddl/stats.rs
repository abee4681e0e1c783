//! Figures about a collection: `collStats` and `$collStats`.

use sheaf_bson::DocWriter;
use sheaf_errors::Result;
use sheaf_storage::{Collection, Direction, Engine, Index, IndexKind};

use crate::write::open_buckets::OpenBuckets;

type Doc<'w> = DocWriter<'w, Vec<u8>>;

/// Appends a number as MongoDB does where it picks the smallest type: int32 while it is below 2^30.
pub fn append_number(doc: &mut Doc<'_>, key: &str, n: u64) {
    let n = i64::try_from(n).unwrap_or(i64::MAX);
    match i32::try_from(n) {
        Ok(small) if small < 1 << 30 => doc.append(key, small),
        _ => doc.append(key, n),
    };
}

/// Bytes that a collection's records take. What is only in memory yet counts with its plain size.
pub fn storage_bytes(engine: &Engine, collection: &Collection) -> u64 {
    match engine.storage_bytes(collection) {
        0 => collection.data_bytes(),
        bytes => bytes,
    }
}

/// Bytes that all indexes of a collection take.
pub fn index_bytes(engine: &Engine, collection: &Collection) -> u64 {
    collection.counted_indexes().map(|index| one_index_bytes(engine, collection, index)).sum()
}

/// Entries that are read to guess the size of an index that is only in memory yet.
const SAMPLED_ENTRIES: u64 = 1000;

/// Bytes that an index takes. While it is only in memory, its entries are counted, or guessed from the first.
/// The index on `_id` takes none: the records themselves are in its order.
pub fn one_index_bytes(engine: &Engine, collection: &Collection, index: &Index) -> u64 {
    match engine.index_bytes(index) {
        0 if index.kind != IndexKind::Id => sampled_bytes(engine, collection, index).unwrap_or(0),
        bytes => bytes,
    }
}

fn sampled_bytes(engine: &Engine, collection: &Collection, index: &Index) -> Result<u64> {
    let mut cursor = engine.view()?.index(index, Direction::Forward)?;
    let (mut entries, mut bytes) = (0, 0);
    while entries < SAMPLED_ENTRIES && cursor.next()? {
        let entry = cursor.entry();
        entries += 1;
        // The index's number, and a byte that says how long the record key is.
        bytes += (entry.key.len() + entry.record_key.len() + entry.type_bits.len() + 5) as u64;
    }
    if entries < SAMPLED_ENTRIES {
        return Ok(bytes);
    }
    Ok(bytes / entries * collection.count().max(entries))
}

/// The section `timeseries` of the figures of a collection of buckets.
pub fn write_bucket_stats(doc: &mut Doc<'_>, buckets: &Collection, open: &OpenBuckets) {
    let mut section = doc.document("timeseries");
    section.append("bucketsNs", buckets.namespace.as_str());
    append_number(&mut section, "bucketCount", buckets.count());
    if buckets.count() > 0 {
        append_number(&mut section, "avgBucketSize", buckets.data_bytes() / buckets.count());
    }
    open.write_counters(buckets, &mut section);
}

/// The figures of a collection, sizes divided by `scale`; `None` for one that does not exist. `orphans`: how many of its documents
/// belong to other shards.
pub fn write_storage_stats(
    doc: &mut Doc<'_>,
    engine: &Engine,
    collection: Option<&Collection>,
    orphans: u64,
    scale: i64,
) {
    let scale = scale.max(1) as u64;
    let Some(collection) = collection else { return write_absent(doc, scale) };
    let is_log = collection.is_oplog();
    if let Some(oplog) = engine.view().ok().filter(|_| is_log).and_then(|view| view.oplog()) {
        // Without a count the figures are those of an earlier one.
        let _ = oplog.count();
    }
    let (count, bytes) = (collection.count(), collection.data_bytes());
    let storage = if is_log { engine.stats().log_bytes } else { storage_bytes(engine, collection) };
    let sizes: Vec<u64> =
        collection.indexes.iter().map(|index| one_index_bytes(engine, collection, index)).collect();
    let indexes: u64 = sizes.iter().sum();
    append_number(doc, "size", bytes / scale);
    // Buckets are no documents that anybody counts.
    if collection.options.as_raw().element("timeseries").is_none() {
        append_number(doc, "count", count);
        if let Some(average) = bytes.checked_div(count) {
            append_number(doc, "avgObjSize", average);
        }
    }
    append_number(doc, "numOrphanDocs", orphans);
    append_number(doc, "storageSize", storage / scale);
    doc.append("freeStorageSize", 0);
    doc.append("capped", collection.capped.is_some());
    if let Some(capped) = collection.capped {
        append_number(doc, "max", capped.max.unwrap_or(0).max(0) as u64);
        // `replSetResizeOplog` changes the log's.
        let most = if is_log { engine.oplog_bytes() } else { capped.size.max(0) as u64 };
        append_number(doc, "maxSize", most / scale);
    }
    write_table(&mut doc.document("wiredTiger"), "collection", collection.ident, storage);
    append_number(doc, "nindexes", collection.counted_indexes().count() as u64);
    let mut details = doc.document("indexDetails");
    for (index, bytes) in collection.counted_indexes().zip(&sizes) {
        write_table(&mut details.document(&index.name), "index", index.ident, *bytes);
    }
    drop(details);
    let mut builds = doc.array("indexBuilds");
    for index in collection.indexes.iter().filter(|index| !index.ready) {
        builds.push(index.name.as_str());
    }
    drop(builds);
    append_number(doc, "totalIndexSize", indexes / scale);
    append_number(doc, "totalSize", (storage + indexes) / scale);
    let mut by_name = doc.document("indexSizes");
    for (index, bytes) in collection.counted_indexes().zip(&sizes) {
        append_number(&mut by_name, &index.name, bytes / scale);
    }
    drop(by_name);
    append_number(doc, "scaleFactor", scale);
}

/// What tools read of the storage engine's own figures, under the names that they look for.
fn write_table(doc: &mut Doc<'_>, kind: &str, ident: u32, bytes: u64) {
    doc.document("metadata").append("formatVersion", 1);
    doc.append("type", "file");
    doc.append("uri", &format!("statistics:table:{kind}-{ident}"));
    let mut blocks = doc.document("block-manager");
    append_number(&mut blocks, "file bytes available for reuse", 0);
    append_number(&mut blocks, "file size in bytes", bytes);
}

/// A collection that does not exist has nothing of anything.
fn write_absent(doc: &mut Doc<'_>, scale: u64) {
    for name in ["size", "count", "numOrphanDocs", "storageSize", "totalSize", "nindexes", "totalIndexSize"] {
        doc.append(name, 0);
    }
    drop(doc.document("indexDetails"));
    drop(doc.document("indexSizes"));
    append_number(doc, "scaleFactor", scale);
}

#[cfg(test)]
mod tests {
    use super::*;
    use sheaf_bson::{DocBuf, Value};

    #[test]
    fn small_numbers_are_int32() {
        for (n, is_long) in [(0, false), ((1 << 30) - 1, false), (1 << 30, true), (u64::MAX, true)] {
            let doc = DocBuf::build(|doc| append_number(doc, "n", n));
            assert_eq!(matches!(doc.as_raw().get("n"), Some(Value::Int64(_))), is_long, "{n}");
        }
    }
}
