//! A database of a few documents in memory, for pipelines.

use std::any::Any;
use std::cell::Cell;
use std::sync::Arc;

use sheaf_aggregate::{
    BoxSource, Database, Documents, MergeIndex, MergeWrite, Namespace, OutWriter, Pipeline, RunCx,
    StatsSource,
};
use sheaf_bson::{DocBuf, ObjectId, RawDoc, Value};
use sheaf_errors::{Code, Error, Result};
use sheaf_expr::ParseCx;
use sheaf_query::matcher::Matcher;

/// Every collection has the same documents; what is written is thrown away.
pub struct Memory {
    /// The documents.
    pub documents: Vec<DocBuf>,
    random: Cell<u64>,
    patience: Cell<u32>,
}

impl Memory {
    /// A database of these documents.
    pub fn new(documents: Vec<DocBuf>) -> Self {
        Memory { documents, random: Cell::new(1), patience: Cell::new(1000) }
    }
}

impl Database for Memory {
    fn as_any(&self) -> &dyn Any {
        self
    }

    /// Gives up on pipelines that multiply their documents without end.
    fn check_interrupt(&self) -> Result<()> {
        self.patience.set(self.patience.get().saturating_sub(1));
        if self.patience.get() == 0 { Err(Error::new(Code::INTERRUPTED, "enough")) } else { Ok(()) }
    }

    fn run(&self, _namespace: &Namespace, pipeline: &Arc<Pipeline>, _cx: &RunCx<'_>) -> Result<BoxSource> {
        self.check_interrupt()?;
        Ok(pipeline.open(Box::new(Documents::new(self.documents.clone()))))
    }

    fn can_find_equal(&self, _namespace: &Namespace, field: &str) -> Result<bool> {
        Ok(field == "_id")
    }

    fn find_equal(&self, _namespace: &Namespace, field: &str, value: Value<'_>) -> Result<Vec<DocBuf>> {
        self.check_interrupt()?;
        let filter = DocBuf::new().with(field, &DocBuf::new().with("$eq", value));
        self.matching(filter.as_raw())
    }

    fn stats(&self, source: StatsSource, namespace: &Namespace, spec: RawDoc<'_>) -> Result<Vec<DocBuf>> {
        Ok(vec![DocBuf::new().with("stats", &*format!("{source:?} {namespace}")).with("spec", spec)])
    }

    fn begin_out(&self, _namespace: &Namespace, _spec: Value<'_>) -> Result<Box<dyn OutWriter>> {
        Ok(Box::new(Nowhere))
    }

    fn merge_index(&self, _namespace: &Namespace, on: &[String]) -> Result<Option<MergeIndex>> {
        Ok((on.len() == 1).then_some(MergeIndex { sparse: true }))
    }

    fn find_merge_target(&self, _namespace: &Namespace, key: RawDoc<'_>) -> Result<Option<DocBuf>> {
        Ok(self.matching(key)?.into_iter().next())
    }

    fn merge_write(
        &self,
        _namespace: &Namespace,
        _write: MergeWrite,
        _old: Option<RawDoc<'_>>,
        document: RawDoc<'_>,
    ) -> Result<bool> {
        assert!(sheaf_bson::validate(document.as_bytes(), 1000).is_ok());
        Ok(true)
    }

    fn sort_runs(&self) -> Result<Option<Box<dyn sheaf_query::sort::Runs + Send>>> {
        Ok(None)
    }

    fn new_object_id(&self) -> ObjectId {
        ObjectId([7; 12])
    }

    fn random(&self) -> u64 {
        let next =
            self.random.get().wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.random.set(next);
        next
    }
}

impl Memory {
    fn matching(&self, filter: RawDoc<'_>) -> Result<Vec<DocBuf>> {
        let matcher = Matcher::parse(filter, &mut ParseCx::new())?;
        let mut found = Vec::new();
        for document in &self.documents {
            if matcher.matches_doc(document.as_raw())? {
                found.push(document.clone());
            }
        }
        Ok(found)
    }
}

struct Nowhere;

impl OutWriter for Nowhere {
    fn write(&mut self, _database: &dyn Database, document: DocBuf) -> Result<()> {
        assert!(sheaf_bson::validate(document.as_bytes(), 1000).is_ok());
        Ok(())
    }

    fn finish(&mut self, _database: &dyn Database) -> Result<()> {
        Ok(())
    }
}
