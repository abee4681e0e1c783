//! From keys to documents, and the simple operators between.

use sheaf_bson::RawDoc;
use sheaf_errors::Result;

use super::{Cx, Row, Stage, Step, count};
use crate::plan::FilterPart;

/// Reads the documents of the keys below.
pub struct Fetch {
    pub id: usize,
    pub input: Box<dyn Stage>,
    pub filter: Option<FilterPart>,
    doc: Vec<u8>,
    /// The input's row holds the document already: nothing was copied.
    inner: bool,
}

impl Fetch {
    pub fn new(id: usize, input: Box<dyn Stage>, filter: Option<FilterPart>) -> Self {
        Fetch { id, input, filter, doc: Vec::new(), inner: false }
    }
}

impl Stage for Fetch {
    fn is_eof(&self) -> bool {
        self.input.is_eof()
    }

    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        match self.input.work(cx)? {
            Step::Row => {}
            other => return Ok(count(&mut cx.stats[self.id], other)),
        }
        let row = self.input.row();
        self.inner = row.doc.is_some();
        if !self.inner {
            // A record that vanished between index and fetch cannot be within one view; a cursor that was
            // restored on a newer view skips what is gone.
            let Some(doc) = cx.view.get(cx.collection, row.record)? else {
                return Ok(count(&mut cx.stats[self.id], Step::More));
            };
            self.doc.clear();
            self.doc.extend_from_slice(&doc);
        }
        cx.stats[self.id].docs_examined += 1;
        if let Some(filter) = &self.filter {
            let doc = row.doc.unwrap_or(RawDoc::new(&self.doc));
            if !cx.passes(filter, doc)? {
                return Ok(count(&mut cx.stats[self.id], Step::More));
            }
        }
        Ok(count(&mut cx.stats[self.id], Step::Row))
    }

    fn row(&self) -> Row<'_> {
        let row = self.input.row();
        if self.inner { row } else { Row { doc: Some(RawDoc::new(&self.doc)), ..row } }
    }

    fn suspend(&mut self) {
        self.input.suspend();
    }
}

/// Leaves out the first rows.
pub struct Skip {
    pub id: usize,
    pub input: Box<dyn Stage>,
    pub left: u64,
}

impl Stage for Skip {
    fn is_eof(&self) -> bool {
        self.input.is_eof()
    }

    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        let step = match self.input.work(cx)? {
            Step::Row if self.left > 0 => {
                self.left -= 1;
                Step::More
            }
            other => other,
        };
        Ok(count(&mut cx.stats[self.id], step))
    }
    fn row(&self) -> Row<'_> {
        self.input.row()
    }
    fn suspend(&mut self) {
        self.input.suspend();
    }
}

/// Ends after some rows.
pub struct Limit {
    pub id: usize,
    pub input: Box<dyn Stage>,
    pub left: u64,
}

impl Stage for Limit {
    fn is_eof(&self) -> bool {
        self.left == 0 || self.input.is_eof()
    }

    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        if self.left == 0 {
            return Ok(count(&mut cx.stats[self.id], Step::Eof));
        }
        let step = self.input.work(cx)?;
        if step == Step::Row {
            self.left -= 1;
        }
        Ok(count(&mut cx.stats[self.id], step))
    }
    fn row(&self) -> Row<'_> {
        self.input.row()
    }
    fn suspend(&mut self) {
        self.input.suspend();
    }
}
