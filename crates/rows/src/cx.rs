//! What belongs to the command that pulls.

use sheaf_bson::{Bump, OwnedValue, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_expr::{Env, Slot};

use crate::Operator;

/// Gives the error to end with, if the operation was killed or is out of time.
pub type Interrupt<'c> = &'c (dyn Fn() -> Result<()> + Sync);

/// Rows between two looks for an interrupt.
const CHECK_EVERY: u32 = 128;
/// Rows that are counted as work together.
const COUNT_EVERY: u32 = 8;

/// How a command may use memory, and when it runs.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Memory that one blocking operator may hold, in bytes. Default: 100 MiB.
    pub memory_bytes: usize,
    /// Whether a blocking operator may go on past its memory (`allowDiskUse`). Default: yes.
    pub allow_disk_use: bool,
    /// The value of `$$NOW`, in milliseconds since the epoch, for expressions that were parsed without.
    pub now_millis: i64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { memory_bytes: 100 << 20, allow_disk_use: true, now_millis: 0 }
    }
}

/// What belongs to one command that pulls rows.
pub struct Cx<'c> {
    /// Memory and time.
    pub limits: Limits,
    /// Whether stages with pipelines inside keep those' figures ([`Figures::parts`](crate::Figures::parts)). Only explain wants them.
    pub measures: bool,
    interrupt: Interrupt<'c>,
    /// Variables whose values change while a pipeline runs: the `let` of enclosing `$lookup` stages.
    variables: Vec<(Slot, OwnedValue)>,
    worked: u32,
}

impl<'c> Cx<'c> {
    /// A context without variables. `interrupt` gives the error to end with, if the operation was killed or is out of time.
    pub fn new(limits: Limits, interrupt: Interrupt<'c>) -> Self {
        let memory_bytes = sheaf_meter::spill_bytes(limits.memory_bytes);
        let limits = Limits { memory_bytes, ..limits };
        Cx { limits, measures: false, interrupt, variables: Vec::new(), worked: 0 }
    }

    /// The error to end with, if the operation was killed or is out of time.
    pub fn interrupt(&self) -> Interrupt<'c> {
        self.interrupt
    }

    /// Surroundings for evaluating expressions, with all variables set.
    pub fn env<'a>(&'a self, arena: &'a Bump) -> Env<'a> {
        let env = Env::new(arena).with_now(self.limits.now_millis);
        for (slot, value) in &self.variables {
            env.set(*slot, value.as_value());
        }
        env
    }

    /// Like [`Cx::env`], with the metadata of an operator's row.
    pub fn env_over<'a>(&'a self, rows: &'a dyn Operator, arena: &'a Bump) -> Env<'a> {
        let env = self.env(arena);
        if let Some(metadata) = rows.metadata() {
            env.set_metadata(metadata);
        }
        env
    }

    /// Asks now and then whether the operation was killed or has run out of time. Called for every row that is taken in.
    #[inline]
    pub fn check_interrupt(&mut self) -> Result<()> {
        self.worked = self.worked.wrapping_add(1);
        if self.worked.is_multiple_of(COUNT_EVERY) { self.look() } else { Ok(()) }
    }

    fn look(&self) -> Result<()> {
        sheaf_meter::tick(4 * COUNT_EVERY)?;
        if self.worked.is_multiple_of(CHECK_EVERY) { (self.interrupt)() } else { Ok(()) }
    }

    /// The value of a variable that is set at present.
    pub fn variable(&self, slot: Slot) -> Option<Value<'_>> {
        let set = self.variables.iter().rev().find(|(set, _)| *set == slot);
        set.map(|(_, value)| value.as_value())
    }

    /// Sets variables while `run` runs.
    pub fn with_variables<T>(
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

    /// Sets variables while `run` runs, and gives them back: for who pulls one row at a time.
    pub fn lend_variables<T>(
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

    /// Checks what a blocking operator holds against its memory.
    ///
    /// Errors: `QueryExceededMemoryLimitNoDiskUseAllowed` if it holds more than it may and must not go on.
    pub fn check_memory(&self, held: usize, message: impl FnOnce(usize) -> String) -> Result<()> {
        if held > self.limits.memory_bytes && !self.limits.allow_disk_use {
            bail!(
                Code::QUERY_EXCEEDED_MEMORY_LIMIT_NO_DISK_USE_ALLOWED,
                "{}",
                message(self.limits.memory_bytes)
            );
        }
        Ok(())
    }
}
