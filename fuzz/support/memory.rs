//! A database of a few documents in memory, for pipelines.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use sheaf_aggregate::{
    CollectionSize, Database, MergeIndex, MergeWrite, Namespace, OutWriter, Pipeline, Probe, SharedDatabase,
    StatsSource,
};
use sheaf_bson::{DocBuf, ObjectId, RawDoc, Value};
use sheaf_collation::SharedCollator;
use sheaf_errors::{Code, Error, Result};
use sheaf_expr::ParseCx;
use sheaf_query::matcher::Matcher;
use sheaf_rows::{BoxOperator, Cx, Documents, Operator, Row, Step};
use sheaf_timeseries::TimeseriesOptions;

/// Every collection has the same documents; what is written is thrown away. Copies are the same one.
#[derive(Clone)]
pub struct Memory(Arc<Contents>);

struct Contents {
    documents: Vec<DocBuf>,
    random: AtomicU64,
    patience: AtomicU32,
}

impl Memory {
    /// A database of these documents.
    pub fn new(documents: Vec<DocBuf>) -> Self {
        Memory(Arc::new(Contents { documents, random: AtomicU64::new(1), patience: AtomicU32::new(1000) }))
    }

    /// It, as pipelines take it.
    pub fn shared(&self) -> SharedDatabase {
        Arc::new(self.clone())
    }

    /// Its documents, as a pipeline's input.
    pub fn input(&self) -> BoxOperator {
        Box::new(Documents::new(self.0.documents.clone()))
    }

    /// Gives up on pipelines that multiply their documents without end.
    fn ask(&self) -> Result<()> {
        match self.0.patience.fetch_sub(1, Ordering::Relaxed) {
            ..=1 => {
                self.0.patience.store(1, Ordering::Relaxed);
                Err(Error::new(Code::INTERRUPTED, "enough"))
            }
            _ => Ok(()),
        }
    }

    fn matching(&self, filter: RawDoc<'_>, collator: Option<&SharedCollator>) -> Result<Vec<DocBuf>> {
        let matcher = Matcher::parse(filter, &mut ParseCx::new().with_collator(collator.cloned()))?;
        let mut found = Vec::new();
        for document in &self.0.documents {
            if matcher.matches_doc(document.as_raw())? {
                found.push(document.clone());
            }
        }
        Ok(found)
    }
}

/// Looks through all documents for each question.
struct Searching {
    memory: Memory,
    collator: Option<SharedCollator>,
    found: Documents,
}

impl Operator for Searching {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        self.found.work(cx)
    }

    fn row(&self) -> Row<'_> {
        self.found.row()
    }

    fn inputs(&mut self, _visit: &mut dyn FnMut(&mut dyn Operator)) {}
}

impl Probe for Searching {
    fn find(&mut self, value: Value<'_>, _cx: &mut Cx<'_>) -> Result<()> {
        self.memory.ask()?;
        let filter = DocBuf::new().with("_id", &DocBuf::new().with("$eq", value));
        self.found = Documents::new(self.memory.matching(filter.as_raw(), self.collator.as_ref())?);
        Ok(())
    }

    fn size(&self) -> CollectionSize {
        let bytes = self.memory.0.documents.iter().map(|document| document.as_bytes().len() as u64).sum();
        CollectionSize { documents: self.memory.0.documents.len() as u64, bytes }
    }
}

impl Database for Memory {
    fn run(&self, _namespace: &Namespace, pipeline: &Arc<Pipeline>, _cx: &mut Cx<'_>) -> Result<BoxOperator> {
        self.ask()?;
        Ok(pipeline.open(self.input(), &self.shared()))
    }

    fn prepare_equal(
        &self,
        _namespace: &Namespace,
        field: &str,
        collator: Option<&SharedCollator>,
    ) -> Result<Option<Box<dyn Probe>>> {
        if field != "_id" {
            return Ok(None);
        }
        let (memory, found) = (self.clone(), Documents::new(Vec::new()));
        Ok(Some(Box::new(Searching { memory, collator: collator.cloned(), found })))
    }

    fn stats(
        &self,
        source: StatsSource,
        namespace: &Namespace,
        spec: RawDoc<'_>,
        _cx: &mut Cx<'_>,
    ) -> Result<Vec<DocBuf>> {
        Ok(vec![DocBuf::new().with("stats", &*format!("{source:?} {namespace}")).with("spec", spec)])
    }

    fn begin_out(
        &self,
        _namespace: &Namespace,
        _timeseries: Option<&TimeseriesOptions>,
        _cx: &Cx<'_>,
    ) -> Result<Box<dyn OutWriter>> {
        Ok(Box::new(Nowhere))
    }

    fn merge_index(
        &self,
        _namespace: &Namespace,
        on: &[String],
        _collator: Option<&SharedCollator>,
    ) -> Result<Option<MergeIndex>> {
        Ok((on.len() == 1).then_some(MergeIndex { sparse: true }))
    }

    fn find_merge_target(
        &self,
        _namespace: &Namespace,
        key: RawDoc<'_>,
        collator: Option<&SharedCollator>,
        _cx: &mut Cx<'_>,
    ) -> Result<Option<DocBuf>> {
        Ok(self.matching(key, collator)?.into_iter().next())
    }

    fn merge_write(
        &self,
        _namespace: &Namespace,
        _write: MergeWrite,
        _old: Option<RawDoc<'_>>,
        document: RawDoc<'_>,
        _cx: &mut Cx<'_>,
    ) -> Result<bool> {
        assert!(sheaf_bson::validate(document.as_bytes(), 1000).is_ok());
        Ok(true)
    }

    fn new_object_id(&self) -> ObjectId {
        ObjectId([7; 12])
    }

    fn random(&self) -> u64 {
        let step = |n: u64| n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let before = self.0.random.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| Some(step(n)));
        step(before.unwrap_or(1))
    }
}

struct Nowhere;

impl OutWriter for Nowhere {
    fn write(&mut self, document: DocBuf, _cx: &Cx<'_>) -> Result<()> {
        assert!(sheaf_bson::validate(document.as_bytes(), 1000).is_ok());
        Ok(())
    }

    fn finish(&mut self, _cx: &Cx<'_>) -> Result<()> {
        Ok(())
    }
}
