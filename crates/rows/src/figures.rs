//! Figures of operators, for explain.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use sheaf_bson::RawDoc;
use sheaf_errors::Result;
use sheaf_query::sort::Spills;

use crate::{BoxOperator, Cx, Operator, Row, Step};

/// Figures of one operator.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Calls of `work`.
    pub works: u64,
    /// Rows given.
    pub advanced: u64,
    /// Calls that came to nothing yet.
    pub need_time: u64,
    /// Whether it has come to its end.
    pub eof: bool,
    /// Times its state was saved (one for each batch).
    pub saves: u64,
    /// Index keys looked at.
    pub keys_examined: u64,
    /// Documents looked at.
    pub docs_examined: u64,
    /// Seeks in an index.
    pub seeks: u64,
    /// Keys or rows dropped because their record was given already.
    pub dups_dropped: u64,
    /// Keys or rows tested for that.
    pub dups_tested: u64,
    /// Whether it sorts.
    pub sorts: bool,
    /// Bytes sorted.
    pub sorted_bytes: u64,
    /// Rows sorted.
    pub sorted_rows: u64,
    /// What was put on disk for want of memory.
    pub spilled: Spills,
    /// Bytes of the documents given, where it is measured.
    pub output_bytes: u64,
    /// Nanoseconds spent with the operators below, where it is measured.
    pub nanos: u64,
    /// Scans of other collections.
    pub collection_scans: u64,
    /// Names of the indexes used in other collections.
    pub indexes_used: BTreeSet<String>,
    /// Of each pipeline inside a stage that it has started: the figures of that one's input and stages, where they are measured.
    pub parts: Vec<Vec<Figures>>,
}

impl Figures {
    /// Counts a piece of work.
    #[inline]
    pub fn count(&mut self, step: Step) -> Step {
        self.works += 1;
        match step {
            Step::Row => self.advanced += 1,
            Step::More => self.need_time += 1,
            Step::Eof => self.eof = true,
        }
        step
    }

    /// Adds what an operator on another collection has read.
    pub fn add_foreign(&mut self, other: &Figures) {
        self.keys_examined += other.keys_examined;
        self.docs_examined += other.docs_examined;
        self.collection_scans += other.collection_scans;
        self.indexes_used.extend(other.indexes_used.iter().cloned());
    }
}

/// Shows the figures of an operator and of all below it, an operator before its inputs.
pub fn report(operator: &mut dyn Operator, show: &mut dyn FnMut(&Figures)) {
    match operator.figures() {
        Some(figures) => show(figures),
        None => show(&Figures::default()),
    }
    operator.inputs(&mut |input| report(input, show));
}

/// Keys and documents that an operator and all below it have looked at.
pub fn examined(operator: &mut dyn Operator) -> (u64, u64) {
    let (mut keys, mut docs) = (0, 0);
    report(operator, &mut |figures| {
        keys += figures.keys_examined;
        docs += figures.docs_examined;
    });
    (keys, docs)
}

/// What an operator and all below it have sorted so far; `None`: none of them sorts.
pub fn sorted(operator: &mut dyn Operator) -> Option<Sorted> {
    let mut sorted: Option<Sorted> = None;
    report(operator, &mut |figures| {
        if figures.sorts {
            let all = sorted.get_or_insert_default();
            all.bytes += figures.sorted_bytes;
            all.rows += figures.sorted_rows;
            all.spills += figures.spilled.count;
        }
    });
    sorted
}

/// What sorts have come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sorted {
    /// Bytes of what was sorted.
    pub bytes: u64,
    /// Rows.
    pub rows: u64,
    /// How often they were written to disk for want of memory.
    pub spills: u64,
}

impl Sorted {
    /// What has come since `before`.
    #[must_use]
    pub fn since(self, before: Sorted) -> Sorted {
        Sorted {
            bytes: self.bytes.saturating_sub(before.bytes),
            rows: self.rows.saturating_sub(before.rows),
            spills: self.spills.saturating_sub(before.spills),
        }
    }
}

/// What an operator and all below it have read.
pub fn tally(operator: &mut dyn Operator) -> Figures {
    let mut all = Figures::default();
    report(operator, &mut |figures| all.add_foreign(figures));
    all
}

/// An operator whose time and output are measured; only explain does.
pub struct Measured {
    inner: BoxOperator,
    output_bytes: u64,
    advanced: u64,
    nanos: u64,
    shown: Figures,
}

impl Measured {
    /// Measures an operator with those below it.
    pub fn new(inner: BoxOperator) -> Self {
        Measured { inner, output_bytes: 0, advanced: 0, nanos: 0, shown: Figures::default() }
    }
}

impl Operator for Measured {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        let began = Instant::now();
        let step = self.inner.work(cx);
        self.nanos += began.elapsed().as_nanos() as u64;
        if let Ok(Step::Row) = step {
            self.advanced += 1;
            self.output_bytes += self.inner.row().doc.map_or(0, |doc| doc.len() as u64);
        }
        step
    }

    fn row(&self) -> Row<'_> {
        self.inner.row()
    }

    fn metadata(&self) -> Option<RawDoc<'_>> {
        self.inner.metadata()
    }

    fn inputs(&mut self, visit: &mut dyn FnMut(&mut dyn Operator)) {
        self.inner.inputs(visit);
    }

    fn is_eof(&self) -> bool {
        self.inner.is_eof()
    }

    fn suspend(&mut self) {
        self.inner.suspend();
    }

    fn release(&mut self) {
        self.inner.release();
    }

    /// The operator's own figures with what was measured.
    fn figures(&mut self) -> Option<&mut Figures> {
        let own = self.inner.figures().cloned().unwrap_or_default();
        let (output_bytes, advanced, nanos) = (self.output_bytes, self.advanced, self.nanos);
        self.shown = Figures { output_bytes, advanced, nanos, ..own };
        Some(&mut self.shown)
    }
}

/// Figures of operators that are gone: of one, and of those below it.
#[derive(Clone, Default)]
pub struct Seen(Arc<Mutex<Vec<Figures>>>);

impl Seen {
    /// All of them, the operator's own first. None before it is gone.
    pub fn all(&self) -> Vec<Figures> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The operator's own.
    pub fn own(&self) -> Figures {
        self.all().into_iter().next().unwrap_or_default()
    }
}

/// Tells the figures of an operator and those below it when it is gone, whoever it has been given to.
pub struct Witness {
    inner: BoxOperator,
    seen: Seen,
}

impl Witness {
    /// With the operator itself measured.
    pub fn measured(inner: BoxOperator) -> Self {
        Witness::new(Box::new(Measured::new(inner)))
    }

    /// Of an operator that has figures.
    pub fn new(inner: BoxOperator) -> Self {
        Witness { inner, seen: Seen::default() }
    }

    /// Where the figures will be.
    pub fn seen(&self) -> Seen {
        self.seen.clone()
    }
}

impl Operator for Witness {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        self.inner.work(cx)
    }

    fn row(&self) -> Row<'_> {
        self.inner.row()
    }

    fn metadata(&self) -> Option<RawDoc<'_>> {
        self.inner.metadata()
    }

    fn inputs(&mut self, visit: &mut dyn FnMut(&mut dyn Operator)) {
        visit(&mut self.inner);
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        let mut seen = Vec::new();
        report(&mut self.inner, &mut |figures| seen.push(figures.clone()));
        *self.seen.0.lock().unwrap_or_else(PoisonError::into_inner) = seen;
    }
}
