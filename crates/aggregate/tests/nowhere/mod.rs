//! A database with nothing in it; what is spilled stays in memory.

use std::any::Any;
use std::sync::Arc;

use sheaf_aggregate::{
    BoxSource, Database, Empty, MergeIndex, MergeWrite, Namespace, OutWriter, Pipeline, RunCx, StatsSource,
};
use sheaf_bson::{DocBuf, ObjectId, RawDoc, Value};
use sheaf_errors::{Code, Error, Result};
use sheaf_query::sort::{Run, Runs};

pub struct Nowhere;

/// Runs kept in memory.
#[derive(Default)]
struct MemoryRuns(Vec<Vec<(Vec<u8>, Vec<u8>)>>);

impl Runs for MemoryRuns {
    fn write(&mut self, items: &mut dyn Iterator<Item = (&[u8], &[u8])>) -> Result<()> {
        self.0.push(items.map(|(key, payload)| (key.to_vec(), payload.to_vec())).collect());
        Ok(())
    }
    fn open(&mut self) -> Result<Vec<Run>> {
        let runs = self.0.clone();
        Ok(runs.into_iter().map(|run| Box::new(run.into_iter().map(Ok)) as Run).collect())
    }
}

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
    fn sort_runs(&self) -> Result<Option<Box<dyn Runs + Send>>> {
        Ok(Some(Box::new(MemoryRuns::default())))
    }
    fn new_object_id(&self) -> ObjectId {
        ObjectId([0; 12])
    }
    fn random(&self) -> u64 {
        0
    }
}
