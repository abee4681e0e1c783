//! A database with nothing in it.

use std::sync::Arc;

use sheaf_aggregate::{
    Database, MergeIndex, MergeWrite, Namespace, OutWriter, Pipeline, Probe, SharedDatabase, StatsSource,
};
use sheaf_bson::{DocBuf, ObjectId, RawDoc};
use sheaf_collation::SharedCollator;
use sheaf_errors::{Code, Error, Result};
use sheaf_rows::{BoxOperator, Cx};

pub struct Nowhere;

/// It, as pipelines take it.
pub fn nowhere() -> SharedDatabase {
    Arc::new(Nowhere)
}

/// Never ends an operation.
pub fn go_on() -> Result<()> {
    Ok(())
}

impl Database for Nowhere {
    fn run(&self, _namespace: &Namespace, pipeline: &Arc<Pipeline>, _cx: &mut Cx<'_>) -> Result<BoxOperator> {
        Ok(pipeline.open_own(&nowhere()))
    }
    fn prepare_equal(
        &self,
        _namespace: &Namespace,
        _field: &str,
        _: Option<&sheaf_collation::SharedCollator>,
    ) -> Result<Option<Box<dyn Probe>>> {
        Ok(None)
    }
    fn stats(
        &self,
        _source: StatsSource,
        _namespace: &Namespace,
        _spec: RawDoc<'_>,
        _cx: &mut Cx<'_>,
    ) -> Result<Vec<DocBuf>> {
        Ok(Vec::new())
    }
    fn begin_out(
        &self,
        namespace: &Namespace,
        _timeseries: Option<&sheaf_timeseries::TimeseriesOptions>,
        _cx: &Cx<'_>,
    ) -> Result<Box<dyn OutWriter>> {
        Err(Error::new(Code::NAMESPACE_NOT_FOUND, namespace.to_string()))
    }
    fn merge_index(
        &self,
        _namespace: &Namespace,
        _on: &[String],
        _collator: Option<&SharedCollator>,
    ) -> Result<Option<MergeIndex>> {
        Ok(None)
    }
    fn find_merge_target(
        &self,
        _namespace: &Namespace,
        _key: RawDoc<'_>,
        _collator: Option<&SharedCollator>,
        _cx: &mut Cx<'_>,
    ) -> Result<Option<DocBuf>> {
        Ok(None)
    }
    fn merge_write(
        &self,
        namespace: &Namespace,
        _write: MergeWrite,
        _old: Option<RawDoc<'_>>,
        _document: RawDoc<'_>,
        _cx: &mut Cx<'_>,
    ) -> Result<bool> {
        Err(Error::new(Code::NAMESPACE_NOT_FOUND, namespace.to_string()))
    }
    fn new_object_id(&self) -> ObjectId {
        ObjectId([0; 12])
    }
    fn random(&self) -> u64 {
        0
    }
}
