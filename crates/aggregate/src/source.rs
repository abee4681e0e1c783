//! Streams of documents, and what running a pipeline needs besides them.

use std::sync::Arc;

use sheaf_bson::{Bump, DocBuf, OwnedValue};
use sheaf_errors::{Code, Result, bail};
use sheaf_expr::{Env, Slot};
use sheaf_meter::Held;
use sheaf_query::sort::Sorter;
pub use sheaf_query::sort::Spills;

use crate::database::Database;

/// A stream of documents, pulled one at a time. A cursor keeps it between commands; what belongs to one
/// command (snapshot, database, deadline) comes with every call.
pub trait Source: Send {
    /// The next document; `None` at the end, and from then on.
    fn next(&mut self, cx: &mut RunCx<'_>) -> Result<Option<DocBuf>>;
}

/// A running pipeline whose stages are large: their memory is the cursor's for as long as it runs.
pub(crate) struct Large {
    pub(crate) source: BoxSource,
    pub(crate) _held: Vec<Arc<Held>>,
}

impl Source for Large {
    fn next(&mut self, cx: &mut RunCx<'_>) -> Result<Option<DocBuf>> {
        self.source.next(cx)
    }
}

/// The end of every pipeline's input chain.
pub type BoxSource = Box<dyn Source>;

/// How a pipeline may use memory, and when it runs.
#[derive(Clone, Copy, Debug)]
pub struct RunOptions {
    /// Memory that one blocking stage may hold, in bytes. Default: 100 MiB.
    pub stage_memory_bytes: usize,
    /// Whether a blocking stage may go on past its memory (`allowDiskUse`). Default: yes.
    pub allow_disk_use: bool,
    /// The value of `$$NOW`, in milliseconds since the epoch, for expressions that were parsed without.
    pub now_millis: i64,
}

impl Default for RunOptions {
    fn default() -> Self {
        RunOptions { stage_memory_bytes: 100 << 20, allow_disk_use: true, now_millis: 0 }
    }
}

/// What belongs to one command that pulls documents.
pub struct RunCx<'d> {
    /// Collections and everything else outside the pipeline.
    pub database: &'d dyn Database,
    /// Limits and time.
    pub options: RunOptions,
    /// Variables whose values change while the pipeline runs: the `let` of enclosing `$lookup` stages.
    pub(crate) variables: Vec<(Slot, OwnedValue)>,
    pulled: u32,
    spills: Spills,
}

impl<'d> RunCx<'d> {
    /// A context without variables.
    pub fn new(database: &'d dyn Database, options: RunOptions) -> Self {
        let stage_memory_bytes = sheaf_meter::spill_bytes(options.stage_memory_bytes);
        let options = RunOptions { stage_memory_bytes, ..options };
        RunCx { database, options, variables: Vec::new(), pulled: 0, spills: Spills::default() }
    }

    /// Surroundings for evaluating expressions, with all variables set.
    pub fn env<'a>(&'a self, arena: &'a Bump) -> Env<'a> {
        let env = Env::new(arena).with_now(self.options.now_millis);
        for (slot, value) in &self.variables {
            env.set(*slot, value.as_value());
        }
        env
    }

    /// The variables set at present: `(slot, value)`.
    pub fn variables(&self) -> impl Iterator<Item = (Slot, &OwnedValue)> {
        self.variables.iter().map(|(slot, value)| (*slot, value))
    }

    /// Asks now and then whether the operation was killed or has run out of time. Blocking stages call this
    /// for every document that they take in.
    pub fn check_interrupt(&mut self) -> Result<()> {
        sheaf_meter::tick(4)?;
        self.pulled = self.pulled.wrapping_add(1);
        if self.pulled.is_multiple_of(128) { self.database.check_interrupt() } else { Ok(()) }
    }

    /// What blocking stages have put on disk during this command.
    pub fn spills(&self) -> Spills {
        self.spills
    }

    /// Notes what a sorter has spilled, which is about to give its items.
    pub(crate) fn note_spills(&mut self, sorter: &Sorter) {
        let spilled = sorter.spills();
        self.spills.count += spilled.count;
        self.spills.records += spilled.records;
        self.spills.bytes += spilled.bytes;
    }

    /// Sets variables while `run` runs.
    pub(crate) fn with_variables<T>(
        &mut self,
        values: impl IntoIterator<Item = (Slot, OwnedValue)>,
        run: impl FnOnce(&mut Self) -> T,
    ) -> T {
        let before = self.variables.len();
        self.variables.extend(values);
        let result = run(self);
        self.variables.truncate(before);
        result
    }

    /// Sets variables while `run` runs, and gives them back: for who pulls one document at a time.
    pub(crate) fn lend_variables<T>(
        &mut self,
        values: &mut Vec<(Slot, OwnedValue)>,
        run: impl FnOnce(&mut Self) -> T,
    ) -> T {
        let before = self.variables.len();
        self.variables.append(values);
        let result = run(self);
        values.extend(self.variables.drain(before..));
        result
    }

    /// An error if a blocking stage holds more than it may and must not go on.
    pub(crate) fn check_memory(&self, held: usize, message: impl FnOnce(usize) -> String) -> Result<()> {
        if held > self.options.stage_memory_bytes && !self.options.allow_disk_use {
            bail!(
                Code::QUERY_EXCEEDED_MEMORY_LIMIT_NO_DISK_USE_ALLOWED,
                "{}",
                message(self.options.stage_memory_bytes)
            );
        }
        Ok(())
    }
}

/// No documents.
#[derive(Debug, Default)]
pub struct Empty;

impl Source for Empty {
    fn next(&mut self, _cx: &mut RunCx<'_>) -> Result<Option<DocBuf>> {
        Ok(None)
    }
}

/// Documents that are already in memory.
#[derive(Debug)]
pub struct Documents(std::vec::IntoIter<DocBuf>);

impl Documents {
    /// These documents, in this order.
    pub fn new(documents: Vec<DocBuf>) -> Self {
        Documents(documents.into_iter())
    }
}

impl Source for Documents {
    fn next(&mut self, _cx: &mut RunCx<'_>) -> Result<Option<DocBuf>> {
        Ok(self.0.next())
    }
}

/// A source with stack to spare: pulling and dropping it goes on on a new stack where this thread's comes to an end.
///
/// Stages call each other, so a pipeline is as deep as it is long, and pipelines within pipelines add to that. One of
/// these stands between every few stages.
pub(crate) struct Deep(Option<BoxSource>);

/// What must be left of a stack: for a few stages, and for an expression as deep as they get.
const STACK_LEFT_BYTES: usize = 512 << 10;
/// The size of a new stack; what is not used of it takes no memory.
const STACK_BYTES: usize = 4 << 20;

impl Deep {
    pub(crate) fn new(source: BoxSource) -> Self {
        Deep(Some(source))
    }
}

impl Source for Deep {
    fn next(&mut self, cx: &mut RunCx<'_>) -> Result<Option<DocBuf>> {
        let Some(source) = &mut self.0 else { return Ok(None) };
        stacker::maybe_grow(STACK_LEFT_BYTES, STACK_BYTES, || source.next(cx))
    }
}

impl Drop for Deep {
    fn drop(&mut self) {
        stacker::maybe_grow(STACK_LEFT_BYTES, STACK_BYTES, || drop(self.0.take()));
    }
}
