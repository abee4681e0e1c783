//! `$out`: a new collection that takes the place of the target when it is complete.

use std::sync::Arc;

use sheaf_aggregate::{Database, Namespace, OutWriter};
use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_rows::Cx;
use sheaf_storage::{Catalog, Collection, CreateCollection, Told, Uuid, Write};
use sheaf_timeseries::{
    Measurement, TimeseriesOptions, bucket_id_index, bucket_options, buckets_namespace, default_index,
    view_options,
};

use super::Db;
use crate::write::open_buckets::OpenBuckets;
use crate::write::timeseries::Filling;
use crate::write::{Validator, check_document, check_made};

/// Bytes of documents that are written as one commit.
const COMMIT_BYTES: usize = 4 << 20;

struct Out {
    db: Db,
    temporary: String,
    /// Of the temporary collection: another one of this name is not this run's.
    uuid: Uuid,
    target: String,
    /// What the target was when this began.
    before: Shape,
    /// Of a time-series collection; then the other names are those of buckets.
    measurements: Option<Measurements>,
    pending: Vec<DocBuf>,
    pending_bytes: usize,
    finished: bool,
}

/// What `$out` to a time-series collection has besides.
struct Measurements {
    options: TimeseriesOptions,
    /// The name of the collection.
    namespace: String,
    /// The options of its view, if that is to be made.
    view: Option<DocBuf>,
    open: OpenBuckets,
}

/// What has to be the same of a target when it is replaced.
pub struct Shape {
    /// Its options.
    pub options: DocBuf,
    /// The specifications of its indexes.
    pub indexes: Vec<DocBuf>,
}

impl Shape {
    /// Of a target that does not exist there is nothing.
    fn of(target: Option<&Collection>) -> Shape {
        Shape {
            options: target.map_or_else(DocBuf::new, |target| target.options.clone()),
            indexes: target.map_or_else(Vec::new, |target| {
                target.indexes.iter().map(|index| index.spec.clone()).collect()
            }),
        }
    }

    /// Compares it with a target as it is now.
    ///
    /// Errors: `CommandFailed`, as MongoDB's.
    pub fn check(&self, target: &str, now: Option<&Collection>) -> Result<()> {
        let now = Shape::of(now);
        let text = |options: &DocBuf| sheaf_bson::value_text(Value::Document(options.as_raw()));
        if now.options != self.options {
            bail!(
                Code::COMMAND_FAILED,
                "collection options of target collection {target} changed during processing. Original options: {}, new options: {}",
                text(&self.options),
                text(&now.options)
            );
        }
        let mut indexes = now.indexes.iter();
        let same = self.indexes.iter().all(|index| indexes.next() == Some(index)) && indexes.next().is_none();
        if !same {
            bail!(Code::COMMAND_FAILED, "indexes of target collection {target} changed during processing.");
        }
        Ok(())
    }
}

/// Makes the temporary collection with the target's options and indexes.
///
/// Errors: those for targets that cannot be replaced; 7268700, 7406103 for time-series options that do not fit the target's.
pub fn begin(
    db: &Db,
    namespace: &Namespace,
    timeseries: Option<&TimeseriesOptions>,
    cx: &Cx<'_>,
) -> Result<Box<dyn OutWriter>> {
    db.refuse_in_transaction("$out")?;
    let catalog = db.engine.catalog();
    let measurements = measurements(&catalog, namespace, timeseries)?;
    let target = match &measurements {
        Some(_) => buckets_namespace(&namespace.database, &namespace.collection),
        None => namespace.to_string(),
    };
    let existing = catalog.collection(&target);
    let mut options = DocBuf::new();
    let mut id_index = None;
    if let Some(existing) = existing {
        if existing.is_view() {
            bail!(Code::COMMAND_NOT_SUPPORTED_ON_VIEW, "Namespace {target} is a view, not a collection");
        }
        may_replace(db, existing, &namespace.to_string())?;
        if existing.capped.is_some() {
            bail!(17152, "namespace '{target}' is capped so it can't be used for $out");
        }
        options = existing.options.clone();
        id_index = existing.indexes.first().map(|index| index.spec.clone());
    } else if let Some(new) = &measurements {
        options = bucket_options(RawDoc::EMPTY, None, &new.options);
        id_index = Some(bucket_id_index());
    }
    if options.as_raw().element("temp").is_none() {
        options.append("temp", true);
    }
    let unique = sheaf_bson::ObjectId(db.new_object_id().0);
    let temporary = format!("{}.tmp.agg_out.{}", namespace.database, hex(&unique.0));
    let uuid = Uuid::new_v4();
    let create = CreateCollection { options, uuid: Some(uuid), id_index, ..CreateCollection::default() };
    let out = Out {
        db: db.clone(),
        temporary,
        uuid,
        target,
        before: Shape::of(existing.map(|existing| &**existing)),
        measurements,
        pending: Vec::new(),
        pending_bytes: 0,
        finished: false,
    };
    db.note_commit(db.engine.create_collection(&out.temporary, &create, cx.interrupt())?);
    // The one on `_id` comes first, and is there.
    let mut specs: Vec<RawDoc<'_>> = out.before.indexes.iter().skip(1).map(DocBuf::as_raw).collect();
    let default = out.measurements.as_ref().filter(|_| existing.is_none());
    let default = default.map(|new| default_index(&new.options)).transpose()?.flatten();
    specs.extend(default.as_ref().map(DocBuf::as_raw));
    if !specs.is_empty() {
        db.note_commit(db.engine.create_indexes(&out.temporary, &specs, cx.interrupt())?);
    }
    Ok(Box::new(out))
}

/// Errors: those of collections that the server lets nobody replace.
fn may_replace(db: &Db, target: &Collection, shown: &str) -> Result<()> {
    db.hooks.may_replace.as_ref().map_or(Ok(()), |may_replace| may_replace(target, shown))
}

/// What is known of a target that is, or is to be, a time-series collection.
fn measurements(
    catalog: &Catalog,
    namespace: &Namespace,
    wanted: Option<&TimeseriesOptions>,
) -> Result<Option<Measurements>> {
    let target = namespace.to_string();
    let existing = catalog.collection(&target);
    let known = existing
        .filter(|existing| existing.is_timeseries())
        .and_then(|existing| TimeseriesOptions::of_catalog(existing.options.as_raw()));
    let options = match (wanted, known) {
        (None, None) => return Ok(None),
        (None, Some(known)) => known,
        (Some(wanted), Some(known)) if *wanted == known => known,
        (Some(_), Some(_)) => bail!(
            7406103,
            "Time field or other time-series options given to $out do not match those of the existing collection {target}"
        ),
        (Some(_), None) if existing.is_some() => {
            bail!(
                7268700,
                "Cannot create a time-series collection from a non time-series collection: {target}"
            )
        }
        (Some(wanted), None) => wanted.clone(),
    };
    let view = existing.is_none().then(|| view_options(&namespace.collection, Value::Missing, &options));
    let open = sheaf_meter::current().map(|meter| OpenBuckets::counted(meter.process())).unwrap_or_default();
    Ok(Some(Measurements { options, namespace: target, view, open }))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Out {
    fn flush(&mut self, cx: &Cx<'_>) -> Result<()> {
        let db = self.db.clone();
        let mut unit = db.engine.write(cx.interrupt());
        let collection = unit.collection(&self.temporary)?;
        // What was dropped, with its database perhaps, is not made anew: the documents that went with it would be missing.
        let Some(collection) = collection.filter(|collection| collection.uuid == self.uuid) else {
            bail!(
                Code::NAMESPACE_NOT_FOUND,
                "the temporary collection {} of $out to {} was dropped during processing",
                self.temporary,
                self.target
            );
        };
        if let Some(to) = &self.measurements {
            let rows: Vec<Measurement<'_>> = self
                .pending
                .iter()
                .map(|doc| Measurement::of(doc.as_raw(), &to.options))
                .collect::<Result<_>>()?;
            let filling = Filling {
                buckets: &collection,
                options: &to.options,
                open: &to.open,
                new_object_id: &db.hooks.new_object_id,
                interrupt: cx.interrupt(),
            };
            filling.insert(&mut unit, &rows, &|_| None)?;
            self.pending.clear();
        }
        let validator = if db.hooks.bypass_validation { None } else { Validator::of(&collection)? };
        for doc in self.pending.drain(..) {
            if let Some(validator) = &validator {
                validator.enforce(None, doc.as_raw(), db.hooks.report)?;
            }
            unit.insert(&collection, doc.as_raw())?;
        }
        self.pending_bytes = 0;
        db.note_commit(unit.commit()?);
        Ok(())
    }

    fn replace(&self, cx: &Cx<'_>) -> Result<()> {
        let db = &self.db;
        let check = |source: &Collection, target: Option<&Collection>| {
            if source.uuid != self.uuid {
                bail!(Code::NAMESPACE_NOT_FOUND, "{} was dropped during processing", self.temporary);
            }
            if let Some(target) = target {
                let shown = self.measurements.as_ref().map_or(&self.target, |to| &to.namespace);
                may_replace(db, target, shown)?;
            }
            self.before.check(&self.target, target)
        };
        let replaced = db.engine.rename_collection(
            &self.temporary,
            &self.target,
            true,
            &check,
            Told::Here,
            cx.interrupt(),
        )?;
        db.note_commit(replaced);
        Ok(())
    }
}

impl OutWriter for Out {
    fn write(&mut self, document: DocBuf, cx: &Cx<'_>) -> Result<()> {
        // Buckets check what becomes of a measurement's `_id`.
        match &self.measurements {
            Some(_) => check_document(document.as_raw())?,
            None => check_made(document.as_raw())?,
        }
        self.pending_bytes += document.as_bytes().len();
        self.pending.push(document);
        if self.pending_bytes < COMMIT_BYTES { Ok(()) } else { self.flush(cx) }
    }

    fn finish(&mut self, cx: &Cx<'_>) -> Result<()> {
        self.flush(cx)?;
        self.replace(cx)?;
        self.finished = true;
        if let Some((to, view)) = self.measurements.as_ref().and_then(|to| Some((to, to.view.as_ref()?))) {
            let made = (self.db.hooks.make_view)(&to.namespace, view, cx.interrupt())?;
            self.db.note_commit(made);
        }
        Ok(())
    }
}

impl Drop for Out {
    /// Removes what was written in vain, also when the pipeline before it has failed or was killed.
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        let _shield = sheaf_meter::shield();
        let own = |collection: &Collection| {
            if collection.uuid == self.uuid {
                return Ok(());
            }
            bail!(Code::NAMESPACE_NOT_FOUND, "it was dropped")
        };
        // What cannot be dropped now is dropped as a temporary collection, at the next start or by the next primary.
        let _ = self.db.engine.drop_collection_if(&self.temporary, &own, Told::Here, &|| Ok(()));
    }
}

/// The collection to write to, made if it does not exist.
pub(super) fn collection_for_write(w: &mut dyn Write, namespace: &str) -> Result<Arc<Collection>> {
    for _ in 0..10 {
        if let Some(collection) = w.collection(namespace)? {
            if collection.is_view() {
                bail!(
                    Code::COMMAND_NOT_SUPPORTED_ON_VIEW,
                    "Namespace {namespace} is a view, not a collection"
                );
            }
            return Ok(collection);
        }
        match w.create_collection(namespace, CreateCollection::default()) {
            Err(error) if error.code() != Code::NAMESPACE_EXISTS => return Err(error),
            _ => {}
        }
    }
    bail!(Code::WRITE_CONFLICT, "Collection {namespace} kept changing while it was written to")
}
