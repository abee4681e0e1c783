//! From keys to documents.

use std::sync::Arc;

use sheaf_bson::{Bump, RawDoc};
use sheaf_errors::Result;
use sheaf_rows::{BoxOperator, Cx, Figures, Operator, Row, Step, let_go};
use sheaf_storage::Collection;

use super::Reads;
use super::reads::Reader;
use crate::plan::FilterPart;

/// Reads the documents of the keys below.
pub struct Fetch {
    input: BoxOperator,
    collection: Arc<Collection>,
    reader: Reader,
    filter: Option<FilterPart>,
    arena: Bump,
    doc: Vec<u8>,
    /// The input's row holds the document already: nothing was copied.
    inner: bool,
    figures: Figures,
}

impl Fetch {
    pub fn new(
        reads: &Reads,
        collection: &Arc<Collection>,
        input: BoxOperator,
        filter: Option<FilterPart>,
    ) -> Self {
        Fetch {
            input,
            collection: collection.clone(),
            reader: Reader::new(reads),
            filter,
            arena: Bump::new(),
            doc: Vec::new(),
            inner: false,
            figures: Figures::default(),
        }
    }
}

impl Operator for Fetch {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        match self.input.work(cx)? {
            Step::Row => {}
            other => return Ok(self.figures.count(other)),
        }
        let row = self.input.row();
        self.inner = row.doc.is_some();
        if !self.inner {
            // A record that vanished between index and fetch cannot be within one view; a cursor that was
            // restored on a newer view skips what is gone.
            let Some(doc) = self.reader.view().get(&self.collection, row.record)? else {
                return Ok(self.figures.count(Step::More));
            };
            self.doc.clear();
            self.doc.extend_from_slice(&doc);
        }
        self.figures.docs_examined += 1;
        if let Some(filter) = &self.filter {
            let doc = row.doc.unwrap_or(RawDoc::new(&self.doc));
            if !filter.passes(doc, cx, &mut self.arena)? {
                return Ok(self.figures.count(Step::More));
            }
        }
        Ok(self.figures.count(Step::Row))
    }

    fn row(&self) -> Row<'_> {
        let row = self.input.row();
        if self.inner { row } else { Row { doc: Some(RawDoc::new(&self.doc)), ..row } }
    }

    fn metadata(&self) -> Option<RawDoc<'_>> {
        self.input.metadata()
    }

    fn inputs(&mut self, visit: &mut dyn FnMut(&mut dyn Operator)) {
        visit(&mut self.input);
    }

    fn is_eof(&self) -> bool {
        self.input.is_eof()
    }

    fn release(&mut self) {
        let_go(&mut self.doc);
    }

    fn suspend(&mut self) {
        self.figures.saves += 1;
        self.reader.suspend();
        self.input.suspend();
    }

    fn figures(&mut self) -> Option<&mut Figures> {
        Some(&mut self.figures)
    }
}
