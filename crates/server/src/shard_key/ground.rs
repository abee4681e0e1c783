//! What is asked of where a collection is that is analyzed.

use std::sync::Arc;

use sheaf_aggregate::{Database, Namespace, Pipeline};
use sheaf_bson::{ArrayBuf, DocBuf, RawDoc};
use sheaf_errors::Result;
use sheaf_expr::ParseCx;
use sheaf_front::params::Parameters;
use sheaf_front::request::Interrupter;
use sheaf_rows::{BoxOperator, Cx, Limits, Operator};

/// Where a collection is that is analyzed: on a set, or on the shards of a cluster.
pub trait Ground {
    /// What pipelines read.
    ///
    /// Errors: those of the operation.
    fn database(&self) -> Result<Box<dyn Database>>;

    /// The collection's UUID, and the collation of queries that name none, unless that is the simple one.
    ///
    /// Errors: `NamespaceNotFound`; `CommandNotSupportedOnView`; those of asking.
    fn identity(&self, namespace: &Namespace) -> Result<([u8; 16], Option<DocBuf>)>;

    /// The collection's indexes, as `listIndexes` shows them.
    ///
    /// Errors: those of asking.
    fn indexes(&self, namespace: &Namespace) -> Result<Vec<DocBuf>>;

    /// Whether the collection is sharded.
    ///
    /// Errors: those of asking.
    fn is_spread(&self, namespace: &Namespace) -> Result<bool>;

    /// Writes the samples of queries that were taken and are not written yet.
    ///
    /// Errors: those of writing.
    fn write_samples(&self) -> Result<()>;

    /// What was noted of queries in this collection of `config`.
    ///
    /// Errors: those of reading.
    fn noted(&self, collection: &str, filter: &DocBuf, cx: &mut Cx<'_>) -> Result<BoxOperator>;

    /// The process's parameters.
    fn parameters(&self) -> &Parameters;

    /// Tells when to stop.
    fn interrupter(&self) -> Interrupter<'_>;

    /// The time of day.
    fn now_millis(&self) -> i64;
}

/// The limits of what is read for an analysis.
pub fn limits(ground: &dyn Ground) -> Limits {
    Limits { now_millis: ground.now_millis(), ..Limits::default() }
}

/// Runs these stages on a collection.
///
/// Errors: those of parsing, of reading and of `each`.
pub fn each_row(
    ground: &dyn Ground,
    namespace: &Namespace,
    stages: &ArrayBuf,
    mut each: impl FnMut(RawDoc<'_>) -> Result<()>,
) -> Result<()> {
    let stop = ground.interrupter();
    let interrupt = || stop.check();
    let mut cx = Cx::new(limits(ground), &interrupt);
    let mut parse = ParseCx::new().with_now(ground.now_millis());
    let pipeline = Arc::new(Pipeline::parse(stages.as_raw(), namespace, &mut parse)?);
    parse.finish()?;
    let database = ground.database()?;
    let mut run = database.run(namespace, &pipeline, &mut cx)?;
    while sheaf_rows::pull(&mut run, &mut cx)? {
        each(run.row().document())?;
    }
    Ok(())
}
