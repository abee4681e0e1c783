//! What statements do to the database, alone or in a transaction.
//!
//! - [`unit`]: statements that stand alone;
//! - [`transaction`]: statements that take effect together;
//! - [`changes`]: what an operation means in keys;
//! - [`guard`]: what keeps writers and changes of what a shard owns apart;
//! - [`sessions`]: what is on record of retryable writes and transactions.

pub(crate) mod changes;
pub(crate) mod guard;
pub(crate) mod sessions;
pub(crate) mod transaction;
pub(crate) mod unit;

use std::sync::Arc;

use sheaf_bson::{DocBuf, MAX_STORED_DEPTH, RawDoc, Value};
use sheaf_errors::{Code, Error, Result, bail};
use uuid::Uuid;

use crate::catalog::Collection;
use crate::definitions::command::Told;
use crate::oplog::{self, Statement};
use crate::read::view::View;
pub use crate::write::changes::WrittenKeys;

/// What `create` makes: a collection, a capped collection or a view, by its checked options.
#[derive(Clone, Default)]
pub struct CreateCollection {
    /// As `listCollections` shows them under `options`: `{capped, size, max, validator, viewOn, ...}`.
    pub options: DocBuf,
    /// Keep this UUID (restores); otherwise a new one.
    pub uuid: Option<Uuid>,
    /// Asked when nobody else can change definitions any more: an error of it is that of the creation.
    pub check: Option<MayCreate>,
    /// The `_id` index's spec, if the caller has special wishes (name of a clustered index, collation).
    pub id_index: Option<DocBuf>,
    /// Complete, checked specs of the other indexes that it comes with.
    pub indexes: Vec<DocBuf>,
    /// Whose event it is.
    pub told: Told,
}

/// See [`CreateCollection::check`].
pub type MayCreate = Arc<dyn Fn() -> Result<()> + Send + Sync>;

impl CreateCollection {
    /// Errors: those of its check.
    pub(crate) fn check(&self) -> Result<()> {
        self.check.as_ref().map_or(Ok(()), |check| check())
    }
}

/// What statements do, alone ([`crate::WriteUnit`]) or in a transaction ([`crate::Transaction`]).
pub trait Write {
    /// The state that this writer reads now: the newest, or the transaction's own.
    fn view(&mut self) -> Result<View>;

    /// The current definition for writing; holds DDL on it off until the commit. Views are given too.
    fn collection(&mut self, namespace: &str) -> Result<Option<Arc<Collection>>>;

    /// Nothing is held from here on, while it is searched for what to write next: what is pending is committed, and whoever waits for the
    /// collection goes first. False: something is held all the same, by a transaction, or a shard that guards what it owns.
    ///
    /// Errors: those of a commit.
    fn set_down(&mut self) -> Result<bool> {
        Ok(false)
    }

    /// The definition for writing on, after [`Write::set_down`].
    ///
    /// Errors: `QueryPlanKilled`, where the collection has been dropped, renamed or replaced meanwhile.
    fn take_up(&mut self, collection: &Arc<Collection>) -> Result<Arc<Collection>> {
        Ok(collection.clone())
    }

    /// Locks a record and reads it as it is now; a plain write waits, a transaction fails with
    /// `WriteConflict`. The caller matches again if the bytes are not those that its cursor saw.
    fn read_for_update(&mut self, collection: &Arc<Collection>, key: &[u8]) -> Result<Option<Vec<u8>>>;

    /// Inserts a document that has an `_id` and has passed all checks of the command.
    fn insert(&mut self, collection: &Arc<Collection>, doc: RawDoc<'_>) -> Result<()>;

    /// Replaces a record that `read_for_update` gave as `old`. `diff` (`{$v: 2, diff}`'s `diff` field) goes
    /// to the oplog instead of the new document when it is given.
    fn update(
        &mut self,
        collection: &Arc<Collection>,
        key: &[u8],
        old: RawDoc<'_>,
        new: RawDoc<'_>,
        diff: Option<RawDoc<'_>>,
    ) -> Result<()>;

    /// Deletes a record that `read_for_update` gave as `old`.
    fn delete(&mut self, collection: &Arc<Collection>, key: &[u8], old: RawDoc<'_>) -> Result<()>;

    /// Creates a collection, in a transaction as part of it, otherwise at once. `NamespaceExists` if it exists.
    fn create_collection(&mut self, namespace: &str, spec: CreateCollection) -> Result<()>;

    /// Whether a statement that meets `WriteConflict` should look at its document again: a plain write had to
    /// give up the record's lock for a while. A transaction fails instead.
    fn retries_conflicts(&self) -> bool;

    /// Says how many bytes of documents are about to be inserted, so that buffers need not grow step by step.
    fn reserve(&mut self, bytes: usize);

    /// The following operations are this retryable statement's; its row is written with the first of them.
    fn statement(&mut self, statement: Option<Statement>);

    /// The next operation is these retryable statements', too: they are on record from the moment at which it counts.
    ///
    /// Errors: in a transaction, which has no use for it.
    fn joint_statements(&mut self, statements: Vec<Statement>) -> Result<()>;

    /// How documents of the collection that is written to next are named in the log; `None`: by their `_id`.
    fn document_key(&mut self, key: Option<Arc<DocumentKey>>);

    /// How many keys of indexes have come and gone. It only grows, and need not begin at 0.
    fn written_keys(&self) -> WrittenKeys;
}

/// How documents of a sharded collection are named in the log, and so in change streams: by the fields of the shard key, in its order, and
/// `_id`.
#[derive(Debug)]
pub struct DocumentKey {
    /// The collection.
    pub collection: Uuid,
    /// The fields of its shard key, as paths.
    pub fields: Vec<String>,
}

/// What the log says of operations besides what they do.
#[derive(Default)]
pub(crate) struct Marks {
    pub key: Option<Arc<DocumentKey>>,
    /// They copy what is on another shard, or remove what is there now: nobody's data change.
    pub from_migrate: bool,
}

/// Refuses to insert a document that is nested too deep: no driver could read it, and neither could other members.
///
/// Errors: `Overflow`.
pub(crate) fn check_inserted_depth(doc: RawDoc<'_>) -> Result<()> {
    if sheaf_bson::is_deeper(doc, MAX_STORED_DEPTH) {
        bail!(
            Code::OVERFLOW,
            "cannot insert document because it exceeds {MAX_STORED_DEPTH} levels of nesting"
        );
    }
    Ok(())
}

/// The same for the new version of a document.
///
/// Errors: `Overflow`.
pub(crate) fn check_updated_depth(doc: RawDoc<'_>) -> Result<()> {
    if sheaf_bson::is_deeper(doc, MAX_STORED_DEPTH) {
        bail!(Code::OVERFLOW, "Document exceeds maximum nesting depth of {MAX_STORED_DEPTH}");
    }
    Ok(())
}

/// An operation on one document, as the oplog has it.
#[derive(Clone, Copy)]
pub(crate) enum Op<'d> {
    Insert(RawDoc<'d>),
    Update { old: RawDoc<'d>, new: RawDoc<'d>, diff: Option<RawDoc<'d>> },
    Delete(RawDoc<'d>),
}

impl<'d> Op<'d> {
    pub fn before(&self) -> Option<RawDoc<'d>> {
        match self {
            Op::Insert(_) => None,
            Op::Update { old, .. } | Op::Delete(old) => Some(*old),
        }
    }

    pub fn after(&self) -> Option<RawDoc<'d>> {
        match self {
            Op::Insert(doc) => Some(*doc),
            Op::Update { new, .. } => Some(*new),
            Op::Delete(_) => None,
        }
    }

    /// The document after it, if the log has it as a whole.
    pub fn logged_whole(&self) -> Option<RawDoc<'d>> {
        match self {
            Op::Insert(doc) | Op::Update { new: doc, diff: None, .. } => Some(*doc),
            Op::Update { .. } | Op::Delete(_) => None,
        }
    }

    fn code(&self) -> u8 {
        match self {
            Op::Insert(_) => b'i',
            Op::Update { .. } => b'u',
            Op::Delete(_) => b'd',
        }
    }

    /// Changes to the collection's counters: documents and bytes.
    pub fn counts(&self) -> (i64, i64) {
        let size = |doc: Option<RawDoc<'_>>| doc.map_or((0, 0), |doc| (1, doc.len() as i64));
        let (old, new) = (size(self.before()), size(self.after()));
        (new.0 - old.0, new.1 - old.1)
    }

    /// Writes `o`, `o2` and what only this server has: `rid` for capped collections, and the document before
    /// the change where the collection keeps it.
    pub fn fill<S: sheaf_bson::Sink>(
        &self,
        doc: &mut sheaf_bson::DocWriter<'_, S>,
        rid: Option<u64>,
        collection: &Collection,
        marks: &Marks,
    ) {
        let key = marks.key.as_deref().filter(|key| key.collection == collection.uuid);
        if marks.from_migrate {
            doc.append("fromMigrate", true);
        }
        match self {
            Op::Insert(new) => {
                doc.append("o", *new);
                if key.is_some() {
                    key_only(doc, "o2", *new, key);
                }
            }
            Op::Update { old, new, diff } => {
                match diff {
                    Some(diff) => {
                        let mut o = doc.document("o");
                        o.append("$v", 2).append("diff", *diff);
                    }
                    None => {
                        doc.append("o", *new);
                    }
                }
                // The name under which it can be found now.
                key_only(doc, "o2", if key.is_some() { *new } else { *old }, key);
            }
            Op::Delete(old) => key_only(doc, "o", *old, key),
        }
        if let Some(rid) = rid {
            doc.append("rid", rid as i64);
        }
        if let Some(before) = self.before().filter(|_| collection.keeps_images) {
            doc.append("preImage", before);
        }
    }

    /// Appends the oplog document.
    pub fn log(
        &self,
        payload: &mut Vec<u8>,
        collection: &Collection,
        rid: Option<u64>,
        statement: Option<&Statement>,
        marks: &Marks,
    ) {
        oplog::write_operation(payload, self.code(), &collection.oplog_head, statement, |doc| {
            self.fill(doc, rid, collection, marks);
        });
    }

    /// Appends it as an element of `applyOps`: without times.
    pub fn log_inner(
        &self,
        payload: &mut Vec<u8>,
        collection: &Collection,
        statement: Option<&Statement>,
        marks: &Marks,
    ) {
        oplog::write_inner(payload, self.code(), &collection.oplog_head, statement, |doc| {
            self.fill(doc, None, collection, marks);
        });
    }
}

/// The fields that name a document: those of the shard key that it has, and `_id`.
fn key_only<S: sheaf_bson::Sink>(
    doc: &mut sheaf_bson::DocWriter<'_, S>,
    name: &str,
    of: RawDoc<'_>,
    key: Option<&DocumentKey>,
) {
    let mut only = doc.document(name);
    let fields = key.map_or(&[][..], |key| &key.fields);
    for path in fields {
        if let Some(value) = at_path(of, path) {
            only.append(path, value);
        }
    }
    if let Some(id) = of.element("_id").filter(|_| fields.iter().all(|path| path != "_id")) {
        only.append_element(id);
    }
}

/// The value at a path; a shard key does not lead through arrays.
fn at_path<'d>(document: RawDoc<'d>, path: &str) -> Option<Value<'d>> {
    let mut parts = path.split('.');
    let first = document.get(parts.next()?)?;
    parts.try_fold(first, |value, part| value.as_doc()?.get(part))
}

/// Errors: `CommandNotSupportedOnView`.
pub(crate) fn refuse_view(collection: &Collection) -> Result<()> {
    if collection.is_view() {
        bail!(
            Code::COMMAND_NOT_SUPPORTED_ON_VIEW,
            "Namespace {} is a view, not a collection",
            collection.namespace
        );
    }
    Ok(())
}

/// MongoDB's error of a transaction that met another writer.
pub(crate) fn write_conflict() -> Error {
    Error::new(
        Code::WRITE_CONFLICT,
        "Caused by :: Write conflict during plan execution and yielding is disabled. :: Please retry your operation or multi-document transaction.",
    )
}

/// Most bytes of the key of a clustered collection's record.
const CLUSTERED_KEY_MAX: usize = 8 << 20;

/// What is so of a clustered collection's keys: records of others have names of their own in MongoDB.
///
/// Errors: 5894900.
pub(crate) fn check_record_key(collection: &Collection, key: &[u8]) -> Result<()> {
    if key.len() > CLUSTERED_KEY_MAX && is_clustered(collection) {
        bail!(5894900, "Size of RecordId ({}) is above limit of {CLUSTERED_KEY_MAX} bytes", key.len());
    }
    Ok(())
}

fn is_clustered(collection: &Collection) -> bool {
    collection.options.as_raw().element("clusteredIndex").is_some()
}

/// The error where MongoDB cannot tell the `_id` of a clustered collection that exists: it has nothing but the record's name, which
/// does not say of what type a number is, and fails to read those that no int32 can be.
fn untold(id: Value<'_>) -> Option<Error> {
    const LARGE: f64 = 9_223_372_036_854_775_808.0;
    if matches!(id, Value::Int64(n) if n != i64::MIN) {
        return None;
    }
    match id.as_f64()? {
        n if n.is_nan() => Some(Error::new(Code(50819), "Invalid type bits for numeric NaN")),
        n if n.abs() >= LARGE => Some(Error::new(Code(50826), "Unexpected type of large number.")),
        _ => None,
    }
}

/// The error for an `_id` that exists.
pub(crate) fn duplicate_id(collection: &Collection, doc: RawDoc<'_>) -> Error {
    let id = doc.get("_id").unwrap_or(Value::Null);
    if let Some(error) = Some(id).filter(|id| id.is_number() && is_clustered(collection)).and_then(untold) {
        return error;
    }
    let index = collection.indexes.first().expect("a collection with records has an index on _id");
    index.duplicate_id(&collection.namespace, id)
}
