//! A database with nothing in it.

use std::any::Any;
use std::sync::Arc;

use sheaf_aggregate::{
    BoxSource, Database, Empty, MergeIndex, MergeWrite, Namespace, OutWriter, Pipeline, RunCx, StatsSource,
};
use sheaf_bson::{DocBuf, ObjectId, RawDoc, Value};
use sheaf_errors::{Code, Error, Result};

pub struct Nowhere;

impl Database for Nowhere {
    fn as_any(&self) -> &dyn Any {
        self
    }
    fn check_interrupt(&self) -> Result<()> {
        Ok(())
    }
    fn run(&self, _namespace: &Namespace, pipeline: &Arc<Pipeline>, _cx: &RunCx<'_>) -> Result<BoxSource> {
        Ok(pipeline.open(Box::new(Empty)))
    }
    fn can_find_equal(&self, _namespace: &Namespace, _field: &str) -> Result<bool> {
        Ok(true)
    }
    fn find_equal(&self, _namespace: &Namespace, _field: &str, _value: Value<'_>) -> Result<Vec<DocBuf>> {
        Ok(Vec::new())
    }
    fn stats(&self, _source: StatsSource, _namespace: &Namespace, _spec: RawDoc<'_>) -> Result<Vec<DocBuf>> {
        Ok(Vec::new())
    }
    fn begin_out(&self, namespace: &Namespace, _spec: Value<'_>) -> Result<Box<dyn OutWriter>> {
        Err(Error::new(Code::NAMESPACE_NOT_FOUND, namespace.to_string()))
    }
    fn merge_index(&self, _namespace: &Namespace, _on: &[String]) -> Result<Option<MergeIndex>> {
        Ok(None)
    }
    fn find_merge_target(&self, _namespace: &Namespace, _key: RawDoc<'_>) -> Result<Option<DocBuf>> {
        Ok(None)
    }
    fn merge_write(
        &self,
        namespace: &Namespace,
        _write: MergeWrite,
        _old: Option<RawDoc<'_>>,
        _document: RawDoc<'_>,
    ) -> Result<bool> {
        Err(Error::new(Code::NAMESPACE_NOT_FOUND, namespace.to_string()))
    }
    fn sort_runs(&self) -> Result<Option<Box<dyn sheaf_query::sort::Runs + Send>>> {
        Ok(None)
    }
    fn new_object_id(&self) -> ObjectId {
        ObjectId([0; 12])
    }
    fn random(&self) -> u64 {
        0
    }
}
