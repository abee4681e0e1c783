//! What stages need from the rest of the server.

use std::sync::Arc;

use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_collation::SharedCollator;
use sheaf_errors::Result;
use sheaf_rows::{BoxOperator, Cx, Operator};
use sheaf_timeseries::TimeseriesOptions;

use crate::namespace::Namespace;
use crate::pipeline::Pipeline;

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
    /// `$listClusterCatalog`: one document for each collection and view.
    ListClusterCatalog,
    /// `$listSessions`: one document for each session of the deployment.
    ListSessions,
    /// `$planCacheStats`: one document for each plan that is remembered.
    PlanCacheStats,
    /// `$querySettings`: one document for each query shape that has settings.
    QuerySettings,
    /// `$queryStats`: one document for each query shape that was measured.
    QueryStats,
    /// `$listSampledQueries`: one document for each sample.
    ListSampledQueries,
    /// `$shardedDataDistribution`: one document for each sharded collection.
    ShardedDataDistribution,
}

impl StatsSource {
    /// The name of the stage that asks for it.
    pub fn stage_name(self) -> &'static str {
        match self {
            StatsSource::CollStats => "$collStats",
            StatsSource::IndexStats => "$indexStats",
            StatsSource::CurrentOp => "$currentOp",
            StatsSource::ListLocalSessions => "$listLocalSessions",
            StatsSource::ListClusterCatalog => "$listClusterCatalog",
            StatsSource::ListSessions => "$listSessions",
            StatsSource::PlanCacheStats => "$planCacheStats",
            StatsSource::QuerySettings => "$querySettings",
            StatsSource::QueryStats => "$queryStats",
            StatsSource::ListSampledQueries => "$listSampledQueries",
            StatsSource::ShardedDataDistribution => "$shardedDataDistribution",
        }
    }
}

/// The rest of the server, as stages see it. One value lives as long as a pipeline runs, over all batches of its cursor;
/// what belongs to one command comes with the [`Cx`].
pub trait Database: Send + Sync {
    /// Starts a pipeline on a namespace, which may be a view or not exist (it is empty then). The implementor
    /// may run leading stages itself, through [`Pipeline::head`], and opens the rest with
    /// [`Pipeline::open_from`]. Variables that the pipeline reads are set in the context of the pulls.
    fn run(&self, namespace: &Namespace, pipeline: &Arc<Pipeline>, cx: &mut Cx<'_>) -> Result<BoxOperator>;

    /// Plans questions for documents whose field equals a value, as the collator compares; `None` if no index helps to answer them.
    fn prepare_equal(
        &self,
        namespace: &Namespace,
        field: &str,
        collator: Option<&SharedCollator>,
    ) -> Result<Option<Box<dyn Probe>>>;

    /// The documents of a stage that reads no collection's documents. `spec` is the stage's argument.
    fn stats(
        &self,
        source: StatsSource,
        namespace: &Namespace,
        spec: RawDoc<'_>,
        cx: &mut Cx<'_>,
    ) -> Result<Vec<DocBuf>>;

    /// Starts `$out`: gives the writer of a temporary collection that takes the target's place in the end.
    /// `timeseries`: the target is to be such a collection.
    fn begin_out(
        &self,
        namespace: &Namespace,
        timeseries: Option<&TimeseriesOptions>,
        cx: &Cx<'_>,
    ) -> Result<Box<dyn OutWriter>>;

    /// The index that tells documents apart by exactly these fields, which `$merge` needs. `_id` alone always has
    /// one, also where there is no collection yet. It must compare strings as the pipeline does.
    fn merge_index(
        &self,
        namespace: &Namespace,
        on: &[String],
        collator: Option<&SharedCollator>,
    ) -> Result<Option<MergeIndex>>;

    /// Finds the target of `$merge`: the document whose fields equal those of `key`. Its names are the dotted
    /// paths of `on`; null also stands for a missing field.
    fn find_merge_target(
        &self,
        namespace: &Namespace,
        key: RawDoc<'_>,
        collator: Option<&SharedCollator>,
        cx: &mut Cx<'_>,
    ) -> Result<Option<DocBuf>>;

    /// Writes one document for `$merge`. A [`MergeWrite::Replace`] gives the version that was read, `old`; if it
    /// has changed since, the result is false and the stage tries again.
    fn merge_write(
        &self,
        namespace: &Namespace,
        write: MergeWrite,
        old: Option<RawDoc<'_>>,
        document: RawDoc<'_>,
        cx: &mut Cx<'_>,
    ) -> Result<bool>;

    /// Twelve bytes that no other ObjectId has.
    fn new_object_id(&self) -> sheaf_bson::ObjectId;

    /// A random number, for `$sample`.
    fn random(&self) -> u64;
}

/// A database that the operators of a pipeline share.
pub type SharedDatabase = Arc<dyn Database>;

/// A lookup by one field, planned once and asked many times. Its rows are what the last question found.
pub trait Probe: Operator {
    /// Begins to look for all documents that match `{field: {$eq: value}}` (missing, null, array and regular expression as
    /// a query by equality treats them), which come in any order.
    fn find(&mut self, value: Value<'_>, cx: &mut Cx<'_>) -> Result<()>;

    /// How large the collection is: who asks very often had better read it once.
    fn size(&self) -> CollectionSize;

    /// So many questions take as long as reading the whole collection.
    fn worth_reading(&self) -> u64 {
        ASKED_BY_INDEX.max(self.size().documents / SCAN_GAIN)
    }
}

/// So many values are always asked for by an index of this server.
const ASKED_BY_INDEX: u64 = 1000;
/// Reading a document in a scan takes this much less time than asking such an index for one.
const SCAN_GAIN: u64 = 8;

/// How large a collection is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CollectionSize {
    /// Its documents.
    pub documents: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Writes the documents of `$out`.
pub trait OutWriter: Send {
    /// Adds one document (it has an `_id`, which stands first).
    fn write(&mut self, document: DocBuf, cx: &Cx<'_>) -> Result<()>;

    /// Puts the new collection in the target's place.
    fn finish(&mut self, cx: &Cx<'_>) -> Result<()>;
}
