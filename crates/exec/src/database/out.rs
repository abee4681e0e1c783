//! `$out`: a new collection that takes the place of the target when it is complete.

use std::sync::Arc;

use sheaf_aggregate::{Database, Namespace, OutWriter};
use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_storage::{Collection, CreateCollection, Write};

use super::Db;

/// Bytes of documents that are written as one commit.
const COMMIT_BYTES: usize = 4 << 20;

struct Out {
    temporary: String,
    target: String,
    pending: Vec<DocBuf>,
    pending_bytes: usize,
    finished: bool,
}

/// Makes the temporary collection with the target's options and indexes.
pub fn begin(db: &Db, namespace: &Namespace, spec: Value<'_>) -> Result<Box<dyn OutWriter>> {
    db.refuse_in_transaction("$out")?;
    if matches!(spec, Value::Document(doc) if doc.get("timeseries").is_some()) {
        bail!(Code::NOT_IMPLEMENTED, "$out to a time-series collection is not supported by this server");
    }
    let target = namespace.to_string();
    let catalog = db.engine.catalog();
    let existing = catalog.collection(&target);
    let mut create = CreateCollection::default();
    if let Some(existing) = existing {
        if existing.is_view() {
            bail!(Code::COMMAND_NOT_SUPPORTED_ON_VIEW, "Namespace {target} is a view, not a collection");
        }
        if existing.capped.is_some() {
            bail!(17152, "namespace '{target}' is capped so it can't be used for $out");
        }
        create.options = existing.options.clone();
    }
    let unique = sheaf_bson::ObjectId(db.new_object_id().0);
    let temporary = format!("{}.tmp.agg_out.{}", namespace.database, hex(&unique.0));
    let interrupt = &*db.hooks.interrupt;
    db.note_commit(db.engine.create_collection(&temporary, &create, &interrupt)?);
    if let Some(existing) = existing {
        let specs: Vec<RawDoc<'_>> = existing
            .indexes
            .iter()
            .filter(|index| index.ready && index.name != "_id_")
            .map(|index| index.spec.as_raw())
            .collect();
        if !specs.is_empty() {
            db.note_commit(db.engine.create_indexes(&temporary, &specs, &interrupt)?);
        }
    }
    Ok(Box::new(Out { temporary, target, pending: Vec::new(), pending_bytes: 0, finished: false }))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn own(database: &dyn Database) -> Result<&Db> {
    match database.as_any().downcast_ref::<Db>() {
        Some(db) => Ok(db),
        None => bail!(Code::INTERNAL_ERROR, "$out was run without the database that it was made for"),
    }
}

impl Out {
    fn flush(&mut self, db: &Db) -> Result<()> {
        let interrupt = &*db.hooks.interrupt;
        let mut unit = db.engine.write(&interrupt);
        let collection = collection_for_write(&mut unit, &self.temporary)?;
        for doc in self.pending.drain(..) {
            unit.insert(&collection, doc.as_raw())?;
        }
        self.pending_bytes = 0;
        db.note_commit(unit.commit()?);
        Ok(())
    }
}

impl OutWriter for Out {
    fn write(&mut self, database: &dyn Database, document: DocBuf) -> Result<()> {
        let db = own(database)?;
        self.pending_bytes += document.as_bytes().len();
        self.pending.push(document);
        if self.pending_bytes < COMMIT_BYTES {
            return Ok(());
        }
        let written = self.flush(db);
        if written.is_err() {
            self.discard(db);
        }
        written
    }

    fn finish(&mut self, database: &dyn Database) -> Result<()> {
        let db = own(database)?;
        let interrupt = &*db.hooks.interrupt;
        let done = self
            .flush(db)
            .and_then(|()| db.engine.rename_collection(&self.temporary, &self.target, true, &interrupt));
        match done {
            Ok(position) => {
                self.finished = true;
                db.note_commit(position);
                Ok(())
            }
            Err(error) => {
                self.discard(db);
                Err(error)
            }
        }
    }
}

impl Out {
    /// Removes what a failed `$out` has written so far.
    fn discard(&mut self, db: &Db) {
        let go_on = || Ok(());
        if !self.finished {
            // What could not be dropped now is dropped by whoever drops the database.
            let _ = db.engine.drop_collection(&self.temporary, &go_on);
        }
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
