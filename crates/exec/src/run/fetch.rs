//! From keys to documents.

use std::sync::Arc;

use sheaf_bson::{Bump, RawDoc};
use sheaf_errors::Result;
use sheaf_rows::{BoxOperator, Cx, Figures, Operator, Row, Step, let_go};
use sheaf_storage::Collection;

use super::Reads;
use super::ahead::{Phase, Window};
use super::reads::Reader;
use crate::plan::{Ahead, FilterPart};

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
    /// How to fetch ahead once so many rows have come that it is worth it.
    ahead: Option<Ahead>,
    taken: usize,
    window: Option<Box<Window>>,
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
            ahead: None,
            taken: 0,
            window: None,
            figures: Figures::default(),
        }
    }

    /// The same with many documents fetched before it is their turn, if all are wanted.
    #[must_use]
    pub fn ahead(self, ahead: Option<Ahead>) -> Self {
        Fetch { ahead, ..self }
    }

    /// Gives the input's next row.
    fn alone(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        match self.input.work(cx)? {
            Step::Row => {}
            other => return Ok(other),
        }
        let row = self.input.row();
        self.inner = row.doc.is_some();
        if !self.inner && !read(&mut self.reader, &self.collection, row.record, &mut self.doc)? {
            return Ok(Step::More);
        }
        self.figures.docs_examined += 1;
        self.taken += 1;
        if !self.inner
            && Window::is_worth_it(self.taken)
            && let Some(ahead) = &self.ahead
        {
            self.window = Some(Box::new(Window::new(ahead.fields.clone())));
        }
        self.filtered(cx)
    }

    /// Does what the window has to do next.
    fn in_window(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        let window = self.window.as_mut().expect("documents are fetched ahead");
        match window.phase() {
            Phase::Taking => {
                for _ in 0..ROWS_AT_ONCE {
                    match self.input.work(cx)? {
                        Step::Row => window.take(self.input.row())?,
                        Step::More => {}
                        Step::Eof if window.is_empty() => return Ok(Step::Eof),
                        Step::Eof => window.begin_reading()?,
                    }
                    if window.phase() != Phase::Taking {
                        break;
                    }
                }
                Ok(Step::More)
            }
            Phase::Reading => {
                self.figures.docs_examined += window.read_some(&self.collection, self.reader.view(), cx)?;
                Ok(Step::More)
            }
            Phase::Giving => {
                if !window.advance(cx) || window.is_gone() {
                    return Ok(Step::More);
                }
                let row = window.row();
                self.inner = row.doc.is_some();
                if !self.inner {
                    if !read(&mut self.reader, &self.collection, row.record, &mut self.doc)? {
                        return Ok(Step::More);
                    }
                    self.figures.docs_examined += 1;
                }
                self.filtered(cx)
            }
        }
    }

    /// A row, unless the filter is against it.
    fn filtered(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        if let Some(filter) = &self.filter {
            let row = key_row(self.window.as_deref(), &self.input);
            let doc = row.doc.unwrap_or(RawDoc::new(&self.doc));
            if !filter.passes(doc, cx, &mut self.arena)? {
                return Ok(Step::More);
            }
        }
        Ok(Step::Row)
    }
}

/// Rows that are taken into a window in one piece of work.
const ROWS_AT_ONCE: usize = 32;

/// Reads the document of a record; false if it is not there.
///
/// A record that vanished between index and fetch cannot be within one view; a cursor that was restored on a newer view skips
/// what is gone.
fn read(reader: &mut Reader, collection: &Collection, record: &[u8], into: &mut Vec<u8>) -> Result<bool> {
    let Some(doc) = reader.view().get(collection, record)? else { return Ok(false) };
    into.clear();
    into.extend_from_slice(&doc);
    Ok(true)
}

/// The row that is given, as it came from below.
fn key_row<'r>(window: Option<&'r Window>, input: &'r BoxOperator) -> Row<'r> {
    match window {
        Some(window) if window.gives() => window.row(),
        _ => input.row(),
    }
}

impl Operator for Fetch {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        let step = if self.window.is_some() { self.in_window(cx)? } else { self.alone(cx)? };
        Ok(self.figures.count(step))
    }

    fn row(&self) -> Row<'_> {
        let row = key_row(self.window.as_deref(), &self.input);
        if self.inner { row } else { Row { doc: Some(RawDoc::new(&self.doc)), ..row } }
    }

    fn metadata(&self) -> Option<RawDoc<'_>> {
        match &self.window {
            Some(window) if window.gives() => None,
            _ => self.input.metadata(),
        }
    }

    fn inputs(&mut self, visit: &mut dyn FnMut(&mut dyn Operator)) {
        visit(&mut self.input);
    }

    fn is_eof(&self) -> bool {
        self.input.is_eof() && self.window.as_ref().is_none_or(|window| window.is_spent())
    }

    fn release(&mut self) {
        let_go(&mut self.doc);
    }

    fn suspend(&mut self) {
        self.release();
        self.figures.saves += 1;
        if let Some(window) = &mut self.window {
            window.suspend();
        }
        self.reader.suspend();
        self.input.suspend();
    }

    fn figures(&mut self) -> Option<&mut Figures> {
        Some(&mut self.figures)
    }
}
