//! `$out` where the documents of several shards come together: a temporary collection on the shard of the target's database, which takes the
//! target's place in the end. `$merge` into a sharded collection tells documents apart by their shard key, too.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sheaf_aggregate::{Namespace, OutWriter};
use sheaf_bson::{ArrayBuf, DocBuf, RawDoc, Value, doc};
use sheaf_cluster::{GoOn, first_batch};
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_rows::Cx;
use sheaf_timeseries::{BUCKETS_PREFIX, TimeseriesOptions};

use crate::addressed::Addressed;
use crate::gather::Link;

/// Bytes of documents that go as one command.
const BATCH_BYTES: usize = 4 << 20;

/// Documents that one command may have.
const BATCH_MAX: usize = 100_000;

/// How long dropping what was written in vain may take: shards drop it themselves at the next start or by the next primary.
const PATIENCE: Duration = Duration::from_secs(1);

/// A run of `$out`.
pub struct Out {
    link: Arc<Link>,
    to: Addressed,
    target: Namespace,
    /// The temporary collection, without its database.
    temporary: String,
    /// What the target was when this began.
    options: DocBuf,
    indexes: Vec<DocBuf>,
    /// The target is a time-series collection, or to be one: with these options, if some were given. The temporary collection is a plain one then,
    /// from which the shard makes buckets in the end.
    timeseries: Option<Option<DocBuf>>,
    bypass_validation: bool,
    pending: Vec<DocBuf>,
    pending_bytes: usize,
    finished: bool,
}

/// Makes the temporary collection with the target's options and indexes.
///
/// Errors: `Location28769` for a sharded target; those for views and capped collections; those of the shard.
pub fn begin(
    link: &Arc<Link>,
    target: &Namespace,
    timeseries: Option<&TimeseriesOptions>,
    bypass_validation: bool,
    cx: &Cx<'_>,
) -> Result<Box<dyn OutWriter>> {
    let interrupt = cx.interrupt();
    let go_on: GoOn<'_> = &|| interrupt();
    refuse_sharded(link, target, go_on)?;
    let to = link.whole(&target.database, true, go_on)?;
    let to = Addressed { version: None, ..to };
    let unique = sheaf_front::front::new_object_id();
    let hex: String = unique.0.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut out = Out {
        link: link.clone(),
        to,
        target: target.clone(),
        temporary: format!("tmp.agg_out.{hex}"),
        options: DocBuf::new(),
        indexes: Vec::new(),
        timeseries: timeseries.map(|options| Some(options.to_doc())),
        bypass_validation,
        pending: Vec::new(),
        pending_bytes: 0,
        finished: false,
    };
    out.look_at_target(go_on)?;
    out.make(go_on)?;
    Ok(Box::new(out))
}

/// Errors: `Location28769` for a collection that is sharded, or whose buckets are; those of asking the config servers.
fn refuse_sharded(link: &Link, target: &Namespace, go_on: GoOn<'_>) -> Result<()> {
    let buckets = Namespace::new(&*target.database, format!("{BUCKETS_PREFIX}{}", target.collection));
    if link.is_sharded(target, go_on)? || link.is_sharded(&buckets, go_on)? {
        bail!(28769, "{target} cannot be sharded");
    }
    Ok(())
}

impl Out {
    fn run(&self, db: &str, command: &DocBuf, writes: bool, go_on: GoOn<'_>) -> Result<DocBuf> {
        let to = std::slice::from_ref(&self.to);
        let answer = self.link.ask_each(to, db, command, writes, go_on)?.swap_remove(0)?;
        Ok(DocBuf::from(answer.reply()))
    }

    fn look_at_target(&mut self, go_on: GoOn<'_>) -> Result<()> {
        let (db, name) = (&*self.target.database, &*self.target.collection);
        let list = doc! { "listCollections": 1, "filter": { "name": name } };
        let found = first_batch(self.run(db, &list, false, go_on)?.as_raw());
        let Some(found) = found.first().map(DocBuf::as_raw) else { return Ok(()) };
        let target = &self.target;
        let is_timeseries = found.get("type").and_then(|kind| kind.as_str()) == Some("timeseries");
        if is_timeseries || self.timeseries.is_some() {
            return self.look_at_timeseries(found, is_timeseries);
        }
        if found.get("type").and_then(|kind| kind.as_str()) == Some("view") {
            bail!(Code::COMMAND_NOT_SUPPORTED_ON_VIEW, "Namespace {target} is a view, not a collection");
        }
        let options = found.get("options").and_then(|options| options.as_doc()).unwrap_or(RawDoc::EMPTY);
        if options.get("capped").is_some_and(|capped| capped.truthy()) {
            bail!(17152, "namespace '{target}' is capped so it can't be used for $out");
        }
        let list = doc! { "listIndexes": name, "cursor": { "batchSize": 1000 } };
        let indexes = first_batch(self.run(db, &list, false, go_on)?.as_raw());
        self.options = DocBuf::from(options);
        self.indexes = indexes;
        Ok(())
    }

    /// The errors that a shard would give when everything has been written.
    fn look_at_timeseries(&mut self, found: RawDoc<'_>, is_timeseries: bool) -> Result<()> {
        let target = &self.target;
        if !is_timeseries {
            bail!(
                7268700,
                "Cannot create a time-series collection from a non time-series collection: {target}"
            );
        }
        let known = found.get("options").and_then(|options| options.as_doc());
        let known = known.and_then(TimeseriesOptions::of_catalog).map(|known| known.to_doc());
        if let Some(Some(wanted)) = &self.timeseries
            && known.as_ref() != Some(wanted)
        {
            bail!(
                7406103,
                "Time field or other time-series options given to $out do not match those of the existing collection {target}"
            );
        }
        self.timeseries.get_or_insert(None);
        Ok(())
    }

    fn make(&self, go_on: GoOn<'_>) -> Result<()> {
        let mut create = doc! { "create": &*self.temporary };
        create.edit(|out| {
            for option in self.options.as_raw().iter().filter(|option| option.key() != "temp") {
                out.append_element(option);
            }
            out.append("temp", true);
        });
        self.run(&self.target.database, &create, true, go_on)?;
        // The one on `_id` is there.
        let others: Vec<&DocBuf> = self.indexes.iter().filter(|index| !is_on_id(index.as_raw())).collect();
        if !others.is_empty() {
            let specs = ArrayBuf::of(others.iter().map(|index| index.as_raw()));
            let indexes = doc! { "createIndexes": &*self.temporary, "indexes": Value::Array(specs.as_raw()) };
            self.run(&self.target.database, &indexes, true, go_on)?;
        }
        Ok(())
    }

    fn flush(&mut self, go_on: GoOn<'_>) -> Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let documents = ArrayBuf::of(&self.pending);
        let insert = doc! {
            "insert": &*self.temporary, "documents": Value::Array(documents.as_raw()),
            "bypassDocumentValidation": self.bypass_validation
        };
        self.pending.clear();
        self.pending_bytes = 0;
        let reply = self.run(&self.target.database, &insert, true, go_on)?;
        match super::database::first_write_error(reply.as_raw()) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    fn replace(&self, go_on: GoOn<'_>) -> Result<()> {
        if let Some(options) = &self.timeseries {
            return self.measure(options.as_ref(), go_on);
        }
        let indexes = ArrayBuf::of(&self.indexes);
        let from = format!("{}.{}", self.target.database, self.temporary);
        let rename = doc! {
            "internalRenameIfOptionsAndIndexesMatch": 1, "from": &*from, "to": &*self.target.to_string(),
            "collectionOptions": self.options.as_raw(), "indexes": Value::Array(indexes.as_raw())
        };
        self.run("admin", &rename, true, go_on).map(|_| ())
    }
}

impl Out {
    /// Has the shard make a time-series collection of the temporary one, which goes.
    fn measure(&self, options: Option<&DocBuf>, go_on: GoOn<'_>) -> Result<()> {
        let db = &*self.target.database;
        let out = DocBuf::build(|stage| {
            let mut out = stage.document("$out");
            out.append("db", db).append("coll", &*self.target.collection);
            if let Some(options) = options {
                out.append("timeseries", options);
            }
        });
        let aggregate = doc! { "aggregate": &*self.temporary, "pipeline": [out.as_raw()], "cursor": {} };
        self.run(db, &aggregate, true, go_on)?;
        self.run(db, &doc! { "drop": &*self.temporary }, true, go_on).map(|_| ())
    }
}

fn is_on_id(index: RawDoc<'_>) -> bool {
    let key = index.get("key").and_then(|key| key.as_doc()).unwrap_or(RawDoc::EMPTY);
    key.iter().count() == 1 && key.element("_id").is_some()
}

impl OutWriter for Out {
    fn write(&mut self, document: DocBuf, cx: &Cx<'_>) -> Result<()> {
        self.pending_bytes += document.as_bytes().len();
        self.pending.push(document);
        if self.pending_bytes < BATCH_BYTES && self.pending.len() < BATCH_MAX {
            return Ok(());
        }
        let interrupt = cx.interrupt();
        self.flush(&|| interrupt())
    }

    fn finish(&mut self, cx: &Cx<'_>) -> Result<()> {
        let interrupt = cx.interrupt();
        let go_on: GoOn<'_> = &|| interrupt();
        self.flush(go_on)?;
        refuse_sharded(&self.link, &self.target, go_on)?;
        self.replace(go_on)?;
        self.finished = true;
        Ok(())
    }
}

impl Drop for Out {
    /// Removes what was written in vain.
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        let began = Instant::now();
        let go_on = || match began.elapsed() < PATIENCE {
            true => Ok(()),
            false => Err(Error::new(Code::NETWORK_TIMEOUT, "no answer in time")),
        };
        let drop = doc! { "drop": &*self.temporary };
        if let Err(error) = self.run(&self.target.database, &drop, true, &go_on) {
            tracing::debug!(%error, collection = self.temporary, "a temporary collection stays");
        }
    }
}

/// The pipeline's stages, where a last `$merge` into a sharded collection that does not say how it tells documents apart does it by the shard
/// key and `_id`.
///
/// Errors: those of `key_of`, which gives the shard key's fields of a collection that is sharded.
pub fn with_merge_fields(
    stages: RawDoc<'_>,
    db: &str,
    key_of: impl Fn(&str, &str) -> Result<Option<Vec<String>>>,
) -> Result<Option<ArrayBuf>> {
    let all: Vec<RawDoc<'_>> = stages.values().filter_map(|stage| stage.as_doc()).collect();
    let Some((last, before)) = all.split_last() else { return Ok(None) };
    let Some(spec) = last.get("$merge") else { return Ok(None) };
    let into = match spec {
        Value::Document(spec) if spec.get("on").is_some() => return Ok(None),
        Value::Document(spec) => spec.get_or_missing("into"),
        other => other,
    };
    let (db, collection) = match into {
        Value::String(name) => (db, name),
        Value::Document(into) => {
            let text = |name: &str| into.get(name).and_then(|text| text.as_str());
            (text("db").unwrap_or(db), text("coll").unwrap_or_default())
        }
        _ => return Ok(None),
    };
    let Some(mut fields) = key_of(db, collection)? else { return Ok(None) };
    if !fields.iter().any(|field| field == "_id") {
        fields.push("_id".to_owned());
    }
    let on = ArrayBuf::of(fields.iter().map(|field| Value::String(field)));
    let merge = DocBuf::build(|out| {
        let mut merge = out.document("$merge");
        match spec {
            Value::Document(spec) => _ = merge.append_all(spec),
            name => _ = merge.append("into", name),
        }
        merge.append("on", Value::Array(on.as_raw()));
    });
    Ok(Some(ArrayBuf::of(before.iter().copied().chain([merge.as_raw()]))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewritten(stage: DocBuf) -> Option<DocBuf> {
        let stages = ArrayBuf::of(&[doc! { "$match": {} }, stage]);
        let key_of = |db: &str, collection: &str| {
            Ok((db == "garden" && collection == "plants").then(|| vec!["bed".to_owned()]))
        };
        let all = with_merge_fields(stages.as_raw(), "garden", key_of).unwrap()?;
        all.as_raw().values().last().and_then(|last| last.as_doc()).map(DocBuf::from)
    }

    #[test]
    fn merging_into_sharded_collections_is_by_the_shard_key() {
        let on = doc! { "$merge": { "into": "plants", "on": ["bed", "_id"] } };
        assert_eq!(rewritten(doc! { "$merge": "plants" }), Some(on));
        let of_other =
            doc! { "$merge": { "into": { "db": "garden", "coll": "plants" }, "whenMatched": "fail" } };
        let on = doc! { "$merge": {
            "into": { "db": "garden", "coll": "plants" }, "whenMatched": "fail", "on": ["bed", "_id"]
        } };
        assert_eq!(rewritten(of_other), Some(on));
        assert_eq!(rewritten(doc! { "$merge": "herbs" }), None);
        assert_eq!(rewritten(doc! { "$merge": { "into": "plants", "on": "bed" } }), None);
        assert_eq!(rewritten(doc! { "$match": {} }), None);
    }
}
