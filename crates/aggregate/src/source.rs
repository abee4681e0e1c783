//! Streams of documents, and what running a pipeline needs besides them.

use sheaf_bson::{Bump, DocBuf, OwnedValue};
use sheaf_errors::{Code, Result, bail};
use sheaf_expr::{Env, Slot};
use sheaf_query::sort::Sorter;
pub use sheaf_query::sort::Spills;

use crate::database::Database;

/// A stream of documents, pulled one at a time. A cursor keeps it between commands; what belongs to one
/// command (snapshot, database, deadline) comes with every call.
pub trait Source: Send {
    /// The next document; `None` at the end, and from then on.
    fn next(&mut self, cx: &mut RunCx<'_>) -> Result<Option<DocBuf>>;
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

/// Pulls a source to its end.
pub(crate) fn drain(source: &mut dyn Source, cx: &mut RunCx<'_>) -> Result<Vec<DocBuf>> {
    let mut documents = Vec::new();
    while let Some(document) = source.next(cx)? {
        documents.push(document);
    }
    Ok(documents)
}
