//! The row protocol: how operators give rows to each other, in plans of a query and in stages of a pipeline alike.
//!
//! An [`Operator`] does one small piece of work per call, so that candidate plans can be tried against each other, killed
//! operations stop soon, and a cursor can pause anywhere. A row is borrowed from the operator that made it; who has to keep
//! it copies it. Between two commands operators hold positions and what they have gathered, but no snapshot
//! ([`Operator::suspend`]). What belongs to the command that pulls (time, variables, limits) comes with every call ([`Cx`]);
//! where the documents come from is the business of the leaves alone.

#![forbid(unsafe_code)]

mod cx;
mod deep;
mod figures;
mod narrow;
mod scratch;
mod simple;
mod sort;
mod spill;

use sheaf_bson::{Bump, RawDoc};
use sheaf_errors::{Error, Result};
use sheaf_meter::Held;

pub use cx::{Cx, Interrupt, Limits};
pub use deep::Deep;
pub use figures::{Figures, Measured, Seen, Sorted, Witness, examined, report, sorted, tally};
pub use narrow::Fields;
pub use scratch::Scratch;
pub use simple::{Documents, Empty, Limit, Skip};
pub use sort::Sort;
pub use spill::{spill_into, temporary_runs};

/// What a piece of work came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// A row is ready: see [`Operator::row`].
    Row,
    /// Nothing yet.
    More,
    /// The end. Of a tailable source it is the end for now.
    Eof,
}

/// One row: a document, or an index key that stands for one, with what is known besides.
#[derive(Clone, Copy, Default)]
pub struct Row<'r> {
    /// The document, once it is fetched.
    pub doc: Option<RawDoc<'r>>,
    /// The record's key; empty where the row is no record.
    pub record: &'r [u8],
    /// The index key: bytes and type bits.
    pub key: Option<(&'r [u8], &'r [u8])>,
}

impl<'r> Row<'r> {
    /// A row that is just a document.
    pub fn of(doc: RawDoc<'r>) -> Self {
        Row { doc: Some(doc), record: &[], key: None }
    }

    /// The document. Operators of pipelines see nothing else: what reads records makes documents of keys before them.
    pub fn document(&self) -> RawDoc<'r> {
        self.doc.expect("a row without its document came to an operator that reads documents")
    }
}

/// A step in the making of rows.
pub trait Operator: Send {
    /// Does one piece of work: takes at most one row from below, unless it says otherwise.
    ///
    /// Errors: those of the work; the operator is not to be called again after one.
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step>;

    /// The row that the last [`Step::Row`] announced; valid until the next call of `work` or `suspend`.
    fn row(&self) -> Row<'_>;

    /// The row's metadata (`$meta`) by name, if an operator below has any. What makes documents of others passes it on.
    fn metadata(&self) -> Option<RawDoc<'_>> {
        None
    }

    /// Shows the operators that this one takes its rows from.
    fn inputs(&mut self, visit: &mut dyn FnMut(&mut dyn Operator));

    /// Whether it is known, without more work, that there are no more rows.
    fn is_eof(&self) -> bool {
        false
    }

    /// Keeps positions and lets go of everything that belongs to the state that is read, and of the row: the command is over, and another
    /// may pull on, perhaps never.
    fn suspend(&mut self) {
        self.release();
        self.inputs(&mut |input| input.suspend());
    }

    /// The row is not needed any more: an operator that holds a large one lets it go, and one that passes rows on says so below.
    /// Without this each stage of a long pipeline would keep a document of its own.
    fn release(&mut self) {}

    /// The operator's figures, if it keeps any.
    fn figures(&mut self) -> Option<&mut Figures> {
        None
    }
}

/// More than this is not kept from row to row.
const KEPT_BYTES: usize = 64 << 10;

/// Empties an operator's buffer, which keeps its memory for the next row unless that is much.
pub fn let_go(buffer: &mut Vec<u8>) {
    buffer.clear();
    if buffer.capacity() > KEPT_BYTES {
        *buffer = Vec::new();
    }
}

/// The same of an operator's arena.
pub fn let_go_arena(arena: &mut Bump) {
    match arena.allocated_bytes() > KEPT_BYTES {
        true => *arena = Bump::new(),
        false => arena.reset(),
    }
}

/// The account of what an operator has to keep while nobody pulls: of a cursor that is not asked any more it would be memory without a bound.
#[derive(Default)]
pub struct Idle {
    held: Held,
    /// There was no room, which whoever pulls on is told.
    refused: Option<Error>,
}

impl Idle {
    /// The operator is suspended with so many bytes.
    pub fn suspend(&mut self, bytes: usize) {
        self.held = Held::default();
        let kept = if bytes > KEPT_BYTES { bytes as u64 } else { 0 };
        match sheaf_meter::reserve(kept) {
            Ok(held) => self.held = held,
            Err(error) => self.refused = Some(error),
        }
    }

    /// The operator goes on.
    ///
    /// Errors: `ExceededMemoryLimit`, if there was no room for what it kept.
    pub fn resume(&mut self) -> Result<()> {
        self.refused.take().map_or(Ok(()), Err)
    }
}

/// An operator of any kind.
pub type BoxOperator = Box<dyn Operator>;

/// Works until there is a row; false at the end. Looks for an interrupt at each piece of work.
pub fn pull(operator: &mut (impl Operator + ?Sized), cx: &mut Cx<'_>) -> Result<bool> {
    loop {
        match operator.work(cx)? {
            Step::Row => return Ok(true),
            Step::Eof => return Ok(false),
            Step::More => cx.check_interrupt()?,
        }
    }
}

impl<O: Operator + ?Sized> Operator for Box<O> {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        (**self).work(cx)
    }

    fn row(&self) -> Row<'_> {
        (**self).row()
    }

    fn metadata(&self) -> Option<RawDoc<'_>> {
        (**self).metadata()
    }

    fn inputs(&mut self, visit: &mut dyn FnMut(&mut dyn Operator)) {
        (**self).inputs(visit);
    }

    fn is_eof(&self) -> bool {
        (**self).is_eof()
    }

    fn suspend(&mut self) {
        (**self).suspend();
    }

    fn release(&mut self) {
        (**self).release();
    }

    fn figures(&mut self) -> Option<&mut Figures> {
        (**self).figures()
    }
}
