//! Questions for documents by one field's value, asked of the shards that can have them: what a join does for its first documents,
//! before it has asked so often that reading the other collection is quicker.

use std::sync::Arc;

use sheaf_aggregate::{CollectionSize, Database, Namespace, Pipeline, Probe};
use sheaf_bson::{ArrayBuf, DocBuf, RawDoc, Value, doc};
use sheaf_collation::SharedCollator;
use sheaf_errors::Result;
use sheaf_expr::ParseCx;
use sheaf_rows::{BoxOperator, Cx, Figures, Operator, Row, Step, tally};

/// In the time of a question, which is a round trip and a search, so many documents are read in a row.
const READ_IN_A_QUESTION: u64 = 64;

/// So many questions are always asked.
const ASKED_ALWAYS: u64 = 8;

/// Finds the documents of a collection on other servers whose field equals a value.
pub struct RemoteProbe {
    database: Arc<dyn Database>,
    namespace: Namespace,
    field: String,
    collator: Option<SharedCollator>,
    size: CollectionSize,
    /// The question that is being answered.
    run: Option<BoxOperator>,
    figures: Figures,
    shown: Figures,
}

impl RemoteProbe {
    /// One of a database that compares strings as the collator does, for a collection of this size.
    pub fn new(
        database: Arc<dyn Database>,
        namespace: Namespace,
        field: &str,
        collator: Option<SharedCollator>,
        size: CollectionSize,
    ) -> Self {
        RemoteProbe {
            database,
            namespace,
            field: field.to_owned(),
            collator,
            size,
            run: None,
            figures: Figures::default(),
            shown: Figures::default(),
        }
    }
}

impl Probe for RemoteProbe {
    fn find(&mut self, value: Value<'_>, cx: &mut Cx<'_>) -> Result<()> {
        if let Some(mut run) = self.run.take() {
            self.figures.add_foreign(&tally(&mut *run));
        }
        let value = if value.is_nullish() { Value::Null } else { value };
        let filter = DocBuf::build(|out| {
            out.document(&self.field).append("$eq", value);
        });
        let stages = ArrayBuf::of(&[doc! { "$match": filter.as_raw() }]);
        let mut parse = ParseCx::new().with_collator(self.collator.clone());
        let pipeline = Arc::new(Pipeline::parse(stages.as_raw(), &self.namespace, &mut parse)?);
        self.run = Some(self.database.run(&self.namespace, &pipeline, cx)?);
        Ok(())
    }

    fn size(&self) -> CollectionSize {
        self.size
    }

    fn worth_reading(&self) -> u64 {
        ASKED_ALWAYS.max(self.size.documents / READ_IN_A_QUESTION)
    }
}

impl Operator for RemoteProbe {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        match &mut self.run {
            Some(run) => run.work(cx),
            None => Ok(Step::Eof),
        }
    }

    fn row(&self) -> Row<'_> {
        self.run.as_ref().map_or_else(|| Row::of(RawDoc::EMPTY), |run| run.row())
    }

    fn inputs(&mut self, _visit: &mut dyn FnMut(&mut dyn Operator)) {}

    fn suspend(&mut self) {
        if let Some(run) = &mut self.run {
            run.suspend();
        }
    }

    fn release(&mut self) {
        if let Some(run) = &mut self.run {
            run.release();
        }
    }

    fn figures(&mut self) -> Option<&mut Figures> {
        self.shown = self.figures.clone();
        if let Some(run) = &mut self.run {
            self.shown.add_foreign(&tally(&mut **run));
        }
        Some(&mut self.shown)
    }
}
