//! Operators that pass rows on or have them in memory.

use sheaf_bson::{DocBuf, RawDoc};
use sheaf_errors::Result;

use crate::{BoxOperator, Cx, Figures, Operator, Row, Step};

/// Leaves out the first rows.
pub struct Skip {
    input: BoxOperator,
    left: u64,
    figures: Figures,
}

impl Skip {
    /// Leaves out so many rows.
    pub fn new(input: BoxOperator, rows: u64) -> Self {
        Skip { input, left: rows, figures: Figures::default() }
    }
}

impl Operator for Skip {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        let step = match self.input.work(cx)? {
            Step::Row if self.left > 0 => {
                self.left -= 1;
                Step::More
            }
            other => other,
        };
        Ok(self.figures.count(step))
    }

    fn row(&self) -> Row<'_> {
        self.input.row()
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
        self.input.release();
    }

    fn figures(&mut self) -> Option<&mut Figures> {
        Some(&mut self.figures)
    }
}

/// Ends after some rows.
pub struct Limit {
    input: BoxOperator,
    left: u64,
    figures: Figures,
}

impl Limit {
    /// Ends after so many rows.
    pub fn new(input: BoxOperator, rows: u64) -> Self {
        Limit { input, left: rows, figures: Figures::default() }
    }
}

impl Operator for Limit {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        if self.left == 0 {
            return Ok(self.figures.count(Step::Eof));
        }
        let step = self.input.work(cx)?;
        if step == Step::Row {
            self.left -= 1;
        }
        Ok(self.figures.count(step))
    }

    fn row(&self) -> Row<'_> {
        self.input.row()
    }

    fn metadata(&self) -> Option<RawDoc<'_>> {
        self.input.metadata()
    }

    fn inputs(&mut self, visit: &mut dyn FnMut(&mut dyn Operator)) {
        visit(&mut self.input);
    }

    fn is_eof(&self) -> bool {
        self.left == 0 || self.input.is_eof()
    }

    fn release(&mut self) {
        self.input.release();
    }

    fn figures(&mut self) -> Option<&mut Figures> {
        Some(&mut self.figures)
    }
}

/// No rows.
#[derive(Default)]
pub struct Empty {
    figures: Figures,
}

impl Operator for Empty {
    fn work(&mut self, _cx: &mut Cx<'_>) -> Result<Step> {
        Ok(self.figures.count(Step::Eof))
    }

    fn row(&self) -> Row<'_> {
        Row::default()
    }

    fn inputs(&mut self, _visit: &mut dyn FnMut(&mut dyn Operator)) {}

    fn figures(&mut self) -> Option<&mut Figures> {
        Some(&mut self.figures)
    }
}

/// Documents that are already in memory.
pub struct Documents {
    rest: std::vec::IntoIter<DocBuf>,
    current: Option<DocBuf>,
}

impl Documents {
    /// These documents, in this order.
    pub fn new(documents: Vec<DocBuf>) -> Self {
        Documents { rest: documents.into_iter(), current: None }
    }
}

impl Operator for Documents {
    fn work(&mut self, _cx: &mut Cx<'_>) -> Result<Step> {
        self.current = self.rest.next();
        Ok(if self.current.is_some() { Step::Row } else { Step::Eof })
    }

    fn row(&self) -> Row<'_> {
        self.current.as_ref().map_or(Row::default(), |document| Row::of(document.as_raw()))
    }

    fn is_eof(&self) -> bool {
        self.rest.as_slice().is_empty()
    }

    fn inputs(&mut self, _visit: &mut dyn FnMut(&mut dyn Operator)) {}
}
