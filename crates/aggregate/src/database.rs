//! What stages need from the rest of the server.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_errors::Result;

use crate::pipeline::Pipeline;
use crate::source::{BoxSource, RunCx};

/// A database and a collection in it.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Namespace {
    /// The database's name.
    pub database: String,
    /// The collection's name; empty for `aggregate: 1`.
    pub collection: String,
}

impl Namespace {
    /// From its two parts.
    pub fn new(database: impl Into<String>, collection: impl Into<String>) -> Self {
        Namespace { database: database.into(), collection: collection.into() }
    }

    /// Whether both names are such that a collection may have them.
    pub(crate) fn is_valid(&self) -> bool {
        let Namespace { database, collection } = self;
        let database = !database.is_empty() && !database.contains(['/', '\\', '.', ' ', '"', '$', '\0']);
        let collection = !collection.is_empty()
            && !collection.starts_with('.')
            && !collection.ends_with('.')
            && !collection.contains('\0');
        database && collection
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.database, self.collection)
    }
}

/// How `$merge` treats one document; what it becomes is the stage's business, writing it the database's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MergeWrite {
    /// Insert; a document that exists is `DuplicateKey`.
    Insert,
    /// Replace the document with this `_id` by this new version.
    Replace,
}

/// A unique index on the fields that `$merge` tells documents apart by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MergeIndex {
    /// Whether documents without the fields are not in it, so that those cannot be told apart.
    pub sparse: bool,
}

/// The stages whose documents come from the server itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StatsSource {
    /// `$collStats`: one document.
    CollStats,
    /// `$indexStats`: one document for each index.
    IndexStats,
    /// `$currentOp`: one document for each operation.
    CurrentOp,
    /// `$listLocalSessions`: one document for each session.
    ListLocalSessions,
}

impl StatsSource {
    /// The name of the stage that asks for it.
    pub fn stage_name(self) -> &'static str {
        match self {
            StatsSource::CollStats => "$collStats",
            StatsSource::IndexStats => "$indexStats",
            StatsSource::CurrentOp => "$currentOp",
            StatsSource::ListLocalSessions => "$listLocalSessions",
        }
    }
}

/// The rest of the server, as stages see it. One value lives as long as one command; it is given with every
/// pull, so that a cursor holds no snapshot between its batches.
pub trait Database {
    /// For the sources that the implementor makes itself and that find their own state again here.
    fn as_any(&self) -> &dyn Any;

    /// The error to end with, if the operation was killed or is out of time.
    fn check_interrupt(&self) -> Result<()>;

    /// Starts a pipeline on a namespace, which may be a view or not exist (it is empty then). The implementor
    /// may run leading stages itself, through [`Pipeline::head`], and opens the rest with
    /// [`Pipeline::open_from`]. Variables that the pipeline reads are set in the context of the pulls.
    fn run(&self, namespace: &Namespace, pipeline: &Arc<Pipeline>, cx: &RunCx<'_>) -> Result<BoxSource>;

    /// Whether [`Database::find_equal`] can use an index (or another fast path) for this field.
    fn can_find_equal(&self, namespace: &Namespace, field: &str) -> Result<bool>;

    /// All documents that match `{field: {$eq: value}}` (missing, null, array and regular expression as a query
    /// by equality treats them), in any order.
    fn find_equal(&self, namespace: &Namespace, field: &str, value: Value<'_>) -> Result<Vec<DocBuf>>;

    /// The documents of a stage that reads no collection's documents. `spec` is the stage's argument.
    fn stats(&self, source: StatsSource, namespace: &Namespace, spec: RawDoc<'_>) -> Result<Vec<DocBuf>>;

    /// Starts `$out`: gives the writer of a temporary collection that takes the target's place in the end.
    /// `spec` is the stage's argument, which may hold `timeseries`.
    fn begin_out(&self, namespace: &Namespace, spec: Value<'_>) -> Result<Box<dyn OutWriter>>;

    /// The index that tells documents apart by exactly these fields, which `$merge` needs. `_id` alone always has
    /// one, also where there is no collection yet.
    fn merge_index(&self, namespace: &Namespace, on: &[String]) -> Result<Option<MergeIndex>>;

    /// Finds the target of `$merge`: the document whose fields equal those of `key`. Its names are the dotted
    /// paths of `on`; null also stands for a missing field.
    fn find_merge_target(&self, namespace: &Namespace, key: RawDoc<'_>) -> Result<Option<DocBuf>>;

    /// Writes one document for `$merge`. A [`MergeWrite::Replace`] gives the version that was read, `old`; if it
    /// has changed since, the result is false and the stage tries again.
    fn merge_write(
        &self,
        namespace: &Namespace,
        write: MergeWrite,
        old: Option<RawDoc<'_>>,
        document: RawDoc<'_>,
    ) -> Result<bool>;

    /// Where a sort that outgrows its memory puts its runs; `None` if there is no such place.
    fn sort_runs(&self) -> Result<Option<Box<dyn sheaf_query::sort::Runs + Send>>>;

    /// Twelve bytes that no other ObjectId has.
    fn new_object_id(&self) -> sheaf_bson::ObjectId;

    /// A random number, for `$sample`.
    fn random(&self) -> u64;
}

/// Writes the documents of `$out`.
pub trait OutWriter: Send {
    /// Adds one document (it has an `_id`, which stands first).
    fn write(&mut self, database: &dyn Database, document: DocBuf) -> Result<()>;

    /// Puts the new collection in the target's place.
    fn finish(&mut self, database: &dyn Database) -> Result<()>;
}
