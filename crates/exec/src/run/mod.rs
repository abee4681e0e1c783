//! Running plans: pull operators on a view.
//!
//! An operator does one small piece of work per call ([`Stage::work`]), so that candidates can be tried
//! against each other, killed operations stop soon, and a cursor can pause anywhere. Between batches operators
//! hold positions, no snapshot ([`Stage::suspend`]).

mod build;
mod executor;
mod fetch;
mod merge;
mod metadata;
mod project;
mod scan;
mod sort;

use std::sync::Arc;

use sheaf_bson::{Bump, OwnedValue, RawDoc};
use sheaf_errors::Result;
use sheaf_expr::{Env, Slot};
use sheaf_storage::{Collection, View};

use crate::plan::FilterPart;

pub use executor::{Batch, Executor, ReadCx};
pub use sort::{Spills, temporary_runs};

/// What a piece of work came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// A row is ready: see [`Stage::row`].
    Row,
    /// Nothing yet.
    More,
    /// The end.
    Eof,
}

/// One row: a document, or an index key that stands for one.
#[derive(Clone, Copy, Default)]
pub struct Row<'r> {
    /// The document, once it is fetched.
    pub doc: Option<RawDoc<'r>>,
    /// The record's key.
    pub record: &'r [u8],
    /// The index key: bytes and type bits.
    pub key: Option<(&'r [u8], &'r [u8])>,
}

/// Figures of one operator, for explain.
#[derive(Clone, Debug, Default)]
pub struct Stats {
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
    /// Bytes sorted.
    pub sorted_bytes: u64,
    /// Rows sorted.
    pub sorted_rows: u64,
    /// Times that a sort went to disk, and the bytes that it put there.
    pub spills: u64,
    /// See `spills`.
    pub spilled_bytes: u64,
    /// Time spent, where it is measured.
    pub nanos: u64,
}

/// What belongs to one command that pulls rows.
pub struct Cx<'c> {
    /// The state that is read.
    pub view: &'c View,
    /// The collection in it.
    pub collection: &'c Arc<Collection>,
    /// The error to end with, if the operation was killed or is out of time.
    pub interrupt: &'c dyn Fn() -> Result<()>,
    /// Values of variables that change while a pipeline runs.
    pub variables: &'c [(Slot, OwnedValue)],
    /// `$$NOW` for expressions parsed without it.
    pub now_millis: i64,
    /// Memory that a sort may take.
    pub sort_memory_bytes: usize,
    /// Whether a sort may go on past that.
    pub allow_disk_use: bool,
    /// One entry for each operator, in the plan's order.
    pub stats: &'c mut [Stats],
}

impl Cx<'_> {
    /// Whether all conditions hold for a document.
    pub fn passes(&self, filter: &FilterPart, doc: RawDoc<'_>) -> Result<bool> {
        if !filter.has_expr() {
            for condition in filter.conditions() {
                if !condition.matches_plain(doc)? {
                    return Ok(false);
                }
            }
            return Ok(true);
        }
        let arena = Bump::new();
        let env = self.env(&arena);
        for condition in filter.conditions() {
            if !condition.matches(doc, &env, None)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Surroundings for expressions.
    pub fn env<'a>(&'a self, arena: &'a Bump) -> Env<'a> {
        let env = Env::new(arena).with_now(self.now_millis);
        for (slot, value) in self.variables {
            env.set(*slot, value.as_value());
        }
        env
    }
}

/// An operator.
pub trait Stage: Send {
    /// Does one piece of work.
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step>;

    /// The row that the last [`Step::Row`] announced; valid until the next call of `work` or `suspend`.
    fn row(&self) -> Row<'_>;

    /// Whether it is known, without more work, that there are no more rows.
    fn is_eof(&self) -> bool {
        false
    }

    /// Keeps positions and lets go of everything that belongs to the view.
    fn suspend(&mut self);
}

/// Measures the time of an operator with those below it; only explain does.
struct Timed {
    id: usize,
    inner: Box<dyn Stage>,
}

impl Stage for Timed {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        let began = std::time::Instant::now();
        let step = self.inner.work(cx);
        cx.stats[self.id].nanos += began.elapsed().as_nanos() as u64;
        step
    }
    fn row(&self) -> Row<'_> {
        self.inner.row()
    }
    fn is_eof(&self) -> bool {
        self.inner.is_eof()
    }
    fn suspend(&mut self) {
        self.inner.suspend();
    }
}

/// Counts a step in an operator's figures.
pub(crate) fn count(stats: &mut Stats, step: Step) -> Step {
    stats.works += 1;
    match step {
        Step::Row => stats.advanced += 1,
        Step::More => stats.need_time += 1,
        Step::Eof => stats.eof = true,
    }
    step
}

/// No rows.
struct Nothing {
    id: usize,
}

impl Stage for Nothing {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        Ok(count(&mut cx.stats[self.id], Step::Eof))
    }
    fn row(&self) -> Row<'_> {
        Row::default()
    }
    fn suspend(&mut self) {}
}
