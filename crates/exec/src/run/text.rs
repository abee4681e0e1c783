//! `$text`: looking at documents, and how well they fit.

use std::sync::Arc;

use sheaf_bson::{DocBuf, RawDoc};
use sheaf_errors::Result;
use sheaf_rows::{BoxOperator, Cx, Figures, Operator, Row, Step};

use crate::plan::TextSearch;

/// Lets documents pass that match a `$text` condition, with their scores as metadata.
pub struct TextMatch {
    input: BoxOperator,
    search: Arc<TextSearch>,
    metadata: DocBuf,
    figures: Figures,
}

impl TextMatch {
    pub fn new(input: BoxOperator, search: Arc<TextSearch>) -> Self {
        TextMatch { input, search, metadata: DocBuf::new(), figures: Figures::default() }
    }
}

impl Operator for TextMatch {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        let step = self.input.work(cx)?;
        if step != Step::Row {
            return Ok(self.figures.count(step));
        }
        let score = match &self.search.index.text {
            Some(spec) => self.search.query.score(spec, self.input.row().document())?,
            None => None,
        };
        let Some(score) = score else { return Ok(self.figures.count(Step::More)) };
        // The one is also what the other asks for.
        self.metadata = DocBuf::new().with("textScore", score).with("score", score);
        Ok(self.figures.count(Step::Row))
    }

    fn row(&self) -> Row<'_> {
        self.input.row()
    }

    fn metadata(&self) -> Option<RawDoc<'_>> {
        Some(self.metadata.as_raw())
    }

    fn inputs(&mut self, visit: &mut dyn FnMut(&mut dyn Operator)) {
        visit(&mut self.input);
    }

    fn is_eof(&self) -> bool {
        self.input.is_eof()
    }

    fn suspend(&mut self) {
        self.figures.saves += 1;
        self.input.suspend();
    }

    fn figures(&mut self) -> Option<&mut Figures> {
        Some(&mut self.figures)
    }
}
