//! The operator that reads the log.

use sheaf_bson::{Bump, DocBuf, RawDoc, Timestamp, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_query::matcher::{CompareOp, MatchExpr, Test};
use sheaf_rows::{Cx, Figures, Operator, Row, Step};
use sheaf_storage::{BackwardOplogCursor, OplogCursor};

use super::shown;
use crate::plan::FilterPart;
use crate::plan::analyze::conjuncts;
use crate::run::Reads;

/// Operations of the log, all or a range of times.
pub struct OplogScan {
    reads: Reads,
    filter: Option<FilterPart>,
    arena: Bump,
    backward: bool,
    tailable: bool,
    range: Times,
    stand: Stand,
    /// The present operation, if it is not shown as it is stored.
    shown: Option<DocBuf>,
    /// Its time, which is its record's key.
    key: [u8; 8],
    figures: Figures,
}

enum Stand {
    Fresh,
    Forward(OplogCursor),
    Backward(BackwardOplogCursor),
    Done,
}

/// Times from `low` to `high`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Times {
    pub low: u64,
    pub high: u64,
}

impl Times {
    /// What a filter's conditions on `ts` leave.
    pub fn of(filter: Option<&FilterPart>) -> Times {
        let mut times = Times { low: 0, high: u64::MAX };
        for condition in filter.into_iter().flat_map(FilterPart::conditions) {
            match condition {
                MatchExpr::And(_) => conjuncts(condition).iter().for_each(|part| times.narrow(part)),
                leaf => times.narrow(leaf),
            }
        }
        times
    }

    fn narrow(&mut self, condition: &MatchExpr) {
        let MatchExpr::Leaf(leaf) = condition else { return };
        let Test::Compare { op, operand } = &leaf.test else { return };
        let Value::Timestamp(time) = operand.as_value() else { return };
        if leaf.path.dotted() != "ts" {
            return;
        }
        let time = time.0;
        match op {
            CompareOp::Eq => (self.low, self.high) = (self.low.max(time), self.high.min(time)),
            CompareOp::Gte => self.low = self.low.max(time),
            CompareOp::Gt => self.low = self.low.max(time.saturating_add(1)),
            CompareOp::Lte => self.high = self.high.min(time),
            CompareOp::Lt => self.high = self.high.min(time.saturating_sub(1)),
        }
    }
}

impl OplogScan {
    /// A scan that has not begun.
    pub fn new(reads: &Reads, filter: Option<FilterPart>, backward: bool, tailable: bool) -> Self {
        let range = Times::of(filter.as_ref());
        OplogScan {
            reads: reads.clone(),
            filter,
            arena: Bump::new(),
            backward,
            tailable,
            range,
            stand: Stand::Fresh,
            shown: None,
            key: [0; 8],
            figures: Figures::default(),
        }
    }

    fn open(&mut self) -> Result<()> {
        if !matches!(self.stand, Stand::Fresh) {
            return Ok(());
        }
        let view = self.reads.view();
        let Some(oplog) = view.oplog() else {
            bail!(Code::ILLEGAL_OPERATION, "there is no oplog without a journal");
        };
        self.stand = if self.backward {
            Stand::Backward(oplog.backward(Timestamp(self.range.high.min(view.time().0))))
        } else {
            Stand::Forward(oplog.from_time(Timestamp(self.range.low))?)
        };
        Ok(())
    }

    /// Moves to the next operation; its time, if there is one in the range.
    fn advance(&mut self) -> Result<Option<u64>> {
        let until = Timestamp(self.range.high.min(self.reads.view().time().0));
        let found = match &mut self.stand {
            Stand::Forward(cursor) => cursor.next(until)?,
            Stand::Backward(cursor) => cursor.next()?,
            Stand::Fresh | Stand::Done => None,
        };
        Ok(found.map(time_of).filter(|time| *time >= self.range.low))
    }

    fn doc(&self) -> RawDoc<'_> {
        self.stand.shown_as(self.shown.as_ref())
    }
}

impl Stand {
    fn raw(&self) -> RawDoc<'_> {
        match self {
            Stand::Forward(cursor) => cursor.doc(),
            Stand::Backward(cursor) => cursor.doc(),
            Stand::Fresh | Stand::Done => RawDoc::EMPTY,
        }
    }

    /// The present operation as it is shown.
    fn shown_as<'s>(&'s self, shown: Option<&'s DocBuf>) -> RawDoc<'s> {
        shown.map_or_else(|| self.raw(), DocBuf::as_raw)
    }
}

/// Whether it is an operation on `local`, which MongoDB does not log. Here it is logged for recovery.
fn is_local(doc: RawDoc<'_>) -> bool {
    doc.get("ns").and_then(|ns| ns.as_str()).is_some_and(|ns| ns.starts_with("local."))
}

/// An operation's `ts`.
fn time_of(doc: RawDoc<'_>) -> u64 {
    match doc.get("ts") {
        Some(Value::Timestamp(time)) => time.0,
        _ => 0,
    }
}

impl Operator for OplogScan {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        self.open()?;
        let Some(time) = self.advance()? else {
            if !self.tailable {
                self.stand = Stand::Done;
            }
            return Ok(self.figures.count(Step::Eof));
        };
        if is_local(self.stand.raw()) {
            return Ok(self.figures.count(Step::More));
        }
        self.key = time.to_be_bytes();
        self.shown = shown(self.stand.raw());
        self.figures.docs_examined += 1;
        let passes = match &self.filter {
            None => true,
            Some(filter) => filter.passes(self.stand.shown_as(self.shown.as_ref()), cx, &mut self.arena)?,
        };
        Ok(self.figures.count(if passes { Step::Row } else { Step::More }))
    }

    fn row(&self) -> Row<'_> {
        Row { doc: Some(self.doc()), record: &self.key, key: None }
    }

    fn inputs(&mut self, _visit: &mut dyn FnMut(&mut dyn Operator)) {}

    fn figures(&mut self) -> Option<&mut Figures> {
        Some(&mut self.figures)
    }

    fn suspend(&mut self) {
        self.figures.saves += 1;
        // A cursor on the log holds nothing of a view.
        if let Stand::Forward(cursor) = &mut self.stand {
            cursor.suspend();
        }
    }
}
