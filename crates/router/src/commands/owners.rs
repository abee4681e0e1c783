//! Commands about one collection's definition and figures: on one shard where it is not sharded; else on all that own something of it and
//! on its database's primary shard, which always has it. Their answers become one.

use std::collections::BTreeMap;

use sheaf_bson::{DocBuf, DocWriter, RawDoc, Value};
use sheaf_cluster::{Answer, Sharded};
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_front::args::Args;
use sheaf_front::reply::Reply;
use sheaf_shard::ShardId;
use sheaf_timeseries::split_buckets;

use crate::addressed::{Addressed, Placed};
use crate::forward::{self, Body, is_between};
use crate::op::Operation;
use crate::route::until_fresh;

/// What a shard has answered.
struct Told {
    shard: String,
    /// Its set and members.
    address: String,
    answer: Answer,
}

impl Told {
    fn body(&self) -> RawDoc<'_> {
        self.answer.reply()
    }

    fn number(&self, name: &str) -> f64 {
        self.body().get(name).and_then(|value| value.as_f64()).unwrap_or(0.0)
    }

    /// The answer without what is between a shard and this router.
    fn shown(&self) -> DocBuf {
        DocBuf::build(|out| {
            let shown = |name: &[u8]| name == b"ok" || !is_between(name);
            self.body()
                .iter()
                .filter(|field| shown(field.key_bytes()))
                .for_each(|field| _ = out.append_element(field));
        })
    }
}

/// The shards that have something of a collection, and its database's primary shard.
fn everywhere(op: &Operation<'_>, sharded: &Sharded) -> Result<Vec<Addressed>> {
    let mut all = op.owners(sharded)?;
    let primary = op.target(op.db(), false)?;
    if all.iter().all(|to| to.target.name() != primary.name()) {
        all.push(op.addressed(sharded, &ShardId::new(primary.name()))?);
    }
    Ok(all)
}

/// Runs the command where its collection is, and makes one reply of the answers if that is on several shards.
fn run<'a>(
    args: &mut Args<'a>,
    op: &Operation<'a>,
    makes: bool,
    passes: fn(&Error) -> bool,
    merge: impl Fn(&Sharded, &[Told]) -> Reply,
) -> Result<Reply> {
    let Value::String(collection) = args.own_value() else { return forward::to_database(op, false) };
    until_fresh(op, op.db(), collection, makes, |placed| {
        let sharded = match placed {
            Placed::Whole(to) => return forward::to_one(op, to),
            Placed::Spread(sharded) => sharded,
        };
        let all = everywhere(op, sharded)?;
        let (mut told, mut passed) = (Vec::new(), None);
        for (to, answer) in all.iter().zip(forward::ask_each(op, &all, &Body::of(op))?) {
            let (shard, address) = (to.target.name().to_owned(), to.target.set().address().to_string());
            match answer {
                Ok(answer) => told.push(Told { shard, address, answer }),
                Err(error) if passes(&error) => passed = Some(error),
                Err(error) => return Err(error),
            }
        }
        match passed {
            Some(error) if told.is_empty() => Err(error),
            _ => Ok(merge(sharded, &told)),
        }
    })
}

fn never(_: &Error) -> bool {
    false
}

/// An index that one shard has dropped already, when the command came for the first time.
fn is_gone(error: &Error) -> bool {
    error.code() == Code::INDEX_NOT_FOUND
}

fn raw(told: &[Told]) -> Reply {
    Reply::ok().with_document("raw", |raw| {
        told.iter().for_each(|told| _ = raw.append(&told.address, told.shown().as_raw()));
    })
}

/// `createIndexes`.
pub fn create_indexes<'a>(args: &mut Args<'a>, op: &Operation<'a>) -> Result<Reply> {
    run(args, op, true, never, |_, told| raw(told))
}

/// `dropIndexes`.
pub fn drop_indexes<'a>(args: &mut Args<'a>, op: &Operation<'a>) -> Result<Reply> {
    run(args, op, false, is_gone, |_, told| raw(told))
}

/// `planCacheListFilters`: each shard has its own.
pub fn list_filters<'a>(args: &mut Args<'a>, op: &Operation<'a>) -> Result<Reply> {
    run(args, op, false, never, |_, told| raw(told))
}

/// `collMod`, `planCacheClear`, `planCacheSetFilter`, `planCacheClearFilters`.
pub fn change<'a>(args: &mut Args<'a>, op: &Operation<'a>) -> Result<Reply> {
    run(args, op, false, never, |_, told| raw(told))
}

/// `validate`.
pub fn validate<'a>(args: &mut Args<'a>, op: &Operation<'a>) -> Result<Reply> {
    run(args, op, false, never, |_, told| {
        let valid = told.iter().all(|told| told.body().get("valid").is_some_and(|valid| valid.truthy()));
        raw(told).with("valid", valid)
    })
}

/// `create`. A shard cannot tell a client's from that of a router, which makes temporary collections.
pub fn create<'a>(args: &mut Args<'a>, op: &Operation<'a>) -> Result<Reply> {
    if op
        .body()
        .get("temp")
        .is_some_and(|temp| temp.truthy() && (temp.is_number() || temp.as_bool().is_some()))
    {
        bail!(Code::INVALID_OPTIONS, "the 'temp' field is an invalid option");
    }
    on_primary(args, op)
}

/// `listIndexes`: by the primary shard, which has every collection's definition.
pub fn on_primary<'a>(args: &mut Args<'a>, op: &Operation<'a>) -> Result<Reply> {
    let Value::String(collection) = args.own_value() else { return forward::to_database(op, false) };
    until_fresh(op, op.db(), collection, op.writes(), |placed| match placed {
        Placed::Whole(to) => forward::to_one(op, to),
        Placed::Spread(sharded) => {
            let primary = op.target(op.db(), false)?;
            forward::to_one(op, &op.addressed(sharded, &ShardId::new(primary.name()))?)
        }
    })
}

/// `dataSize`.
pub fn data_size<'a>(args: &mut Args<'a>, op: &Operation<'a>) -> Result<Reply> {
    // It names a whole namespace.
    let Value::String(namespace) = args.own_value() else { return forward::to_database(op, false) };
    let (db, collection) = namespace.split_once('.').unwrap_or((namespace, ""));
    until_fresh(op, db, collection, false, |placed| {
        let all = match placed {
            Placed::Whole(to) => return forward::to_one(op, to),
            Placed::Spread(sharded) => op.owners(sharded)?,
        };
        let answers = forward::ask_all(op, &all, &Body::of(op))?;
        let sum = |name: &str| {
            answers.iter().filter_map(|answer| answer.reply().get(name)?.as_f64()).sum::<f64>() as i64
        };
        Ok(Reply::ok()
            .with("size", sum("size"))
            .with("numObjects", sum("numObjects"))
            .with("millis", sum("millis")))
    })
}

/// A number as the shards' figures have it: the smallest type that holds it.
fn append(out: &mut DocWriter<'_, Vec<u8>>, name: &str, number: f64) {
    match i32::try_from(number as i64) {
        Ok(small) => out.append(name, small),
        Err(_) => out.append(name, number as i64),
    };
}

/// `collStats`.
pub fn coll_stats<'a>(args: &mut Args<'a>, op: &Operation<'a>) -> Result<Reply> {
    run(args, op, false, never, |sharded, told| {
        let sum = |name: &str| told.iter().map(|told| told.number(name)).sum::<f64>();
        let (count, size) = (sum("count"), sum("size"));
        let first = told.first();
        let scale = first.map_or(1.0, |told| told.number("scaleFactor"));
        Reply::ok().with("sharded", !sharded.unsplittable).with("capped", false).with_fields(|out| {
            match split_buckets(&sharded.ns).filter(|_| sharded.timeseries.is_some()) {
                Some((db, name)) => {
                    out.append("ns", format!("{db}.{name}").as_str());
                    bucket_figures(told, &sharded.ns, out);
                }
                None => {
                    out.append("ns", &*sharded.ns);
                    append(out, "count", count);
                }
            }
            append(out, "size", size);
            append(out, "storageSize", sum("storageSize"));
            append(out, "freeStorageSize", sum("freeStorageSize"));
            append(out, "totalIndexSize", sum("totalIndexSize"));
            append(out, "totalSize", sum("totalSize"));
            let mut sizes = out.document("indexSizes");
            index_sizes(told).iter().for_each(|(name, size)| append(&mut sizes, name, *size));
            drop(sizes);
            if sharded.timeseries.is_none() {
                out.append("avgObjSize", if count > 0.0 { size * scale / count } else { 0.0 });
            }
            append(out, "nindexes", told.iter().map(|told| told.number("nindexes")).fold(0.0, f64::max));
            append(out, "scaleFactor", scale);
            append(out, "nchunks", sharded.table.chunks().len() as f64);
            let mut shards = out.document("shards");
            told.iter().for_each(|told| _ = shards.append(&told.shard, told.shown().as_raw()));
        })
    })
}

/// The section `timeseries`: what shards count of buckets, and the mean of all of these.
fn bucket_figures(told: &[Told], buckets: &str, out: &mut DocWriter<'_, Vec<u8>>) {
    let parts = || told.iter().filter_map(|told| told.body().get("timeseries")?.as_doc());
    let number =
        |part: RawDoc<'_>, name: &str| part.get(name).and_then(|number| number.as_f64()).unwrap_or(0.0);
    let sum = |name: &str| parts().map(|part| number(part, name)).sum::<f64>();
    let (count, commits) = (sum("bucketCount"), sum("numCommits"));
    let bytes: f64 = parts().map(|part| number(part, "bucketCount") * number(part, "avgBucketSize")).sum();
    let mut section = out.document("timeseries");
    section.append("bucketsNs", buckets);
    append(&mut section, "bucketCount", count);
    if count > 0.0 {
        append(&mut section, "avgBucketSize", bytes / count);
    }
    let counted = parts().next().into_iter().flat_map(|first| first.iter());
    for field in counted.filter(|field| field.key().starts_with("num")) {
        append(&mut section, field.key(), sum(field.key()));
    }
    let measurements = sum("numMeasurementsCommitted");
    append(
        &mut section,
        "avgNumMeasurementsPerCommit",
        if commits > 0.0 { measurements / commits } else { 0.0 },
    );
}

fn index_sizes(told: &[Told]) -> BTreeMap<&str, f64> {
    let mut sizes = BTreeMap::new();
    for told in told {
        let own = told.body().get("indexSizes").and_then(|sizes| sizes.as_doc()).unwrap_or(RawDoc::EMPTY);
        for field in own.iter() {
            *sizes.entry(field.key()).or_insert(0.0) += field.value().as_f64().unwrap_or(0.0);
        }
    }
    sizes
}

/// `dbStats`: the sums of all shards, with each of them in `raw`.
pub fn db_stats<'a>(_: &mut Args<'a>, op: &Operation<'a>) -> Result<Reply> {
    if matches!(op.db(), "admin" | "config") {
        return forward::to_config(op);
    }
    let (shards, answers) = forward::ask_those(op, forward::all_shards)?;
    let told: Vec<Told> = shards
        .iter()
        .zip(answers)
        .map(|(to, answer)| Told {
            shard: to.target.name().to_owned(),
            address: to.target.set().address().to_string(),
            answer,
        })
        .collect();
    let sum = |name: &str| told.iter().map(|told| told.number(name)).sum::<f64>();
    let scale = told.first().map_or(1.0, |told| told.number("scaleFactor"));
    let (objects, data) = (sum("objects"), sum("dataSize"));
    Ok(raw(&told).with_fields(|out| {
        out.append("db", op.db());
        for name in ["collections", "views", "objects"] {
            append(out, name, sum(name));
        }
        out.append("avgObjSize", if objects > 0.0 { data * scale / objects } else { 0.0 });
        out.append("dataSize", data).append("storageSize", sum("storageSize"));
        let has_free = told.iter().any(|told| told.body().get("freeStorageSize").is_some());
        if has_free {
            out.append("freeStorageSize", sum("freeStorageSize"));
        }
        append(out, "indexes", sum("indexes"));
        out.append("indexSize", sum("indexSize"));
        if has_free {
            out.append("indexFreeStorageSize", sum("indexFreeStorageSize"));
        }
        out.append("totalSize", sum("totalSize"));
        if has_free {
            out.append("totalFreeStorageSize", sum("totalFreeStorageSize"));
        }
        append(out, "scaleFactor", scale);
        out.append("fsUsedSize", sum("fsUsedSize")).append("fsTotalSize", sum("fsTotalSize"));
    }))
}
