//! What every workload must be able to do.

use super::endure;
use super::figure::Figure;
use crate::context::{Context, Group};
use crate::error::{Error, Result};
use crate::experiment::Settings;
use crate::results::Check;

/// One kind of load, with its invariants.
pub trait Workload: Send + Sync {
    /// Takes the settings in ([`Settings::parse`]); refuses what makes no sense.
    fn configure(&mut self, settings: &Settings) -> Result<()>;

    /// Bytes of documents that it will load, at this scale and into servers with this limit of memory in bytes, for one
    /// that loads so much that a disk may not have the room. `None`: that is not known.
    fn bytes_to_load(&self, _limit: Option<u64>, _scale: f64) -> Option<u64> {
        None
    }

    /// Prepares the database. Nothing of it is measured.
    fn setup(&mut self, context: &Context) -> Result<()>;

    /// The clients of the load, for a workload that several can be run at once of. Their work may be started once.
    fn groups<'a>(&'a self, _context: &Context) -> Result<Vec<Group<'a>>> {
        Err(Error::usage("this workload cannot be combined with others"))
    }

    /// Drives the load, warm-up included.
    fn run(&mut self, context: &Context) -> Result<()> {
        context.run(&self.groups(context)?).map(drop)
    }

    /// Looks whether what must be true is true. An error means that it could not be looked at, which fails the row too.
    fn check(&mut self, context: &Context) -> Result<Vec<Check>> {
        let mut checks = self.check_own(context)?;
        for db in self.databases() {
            checks.extend(endure::members_hold_the_same(context, &db)?);
        }
        Ok(checks)
    }

    /// The same without what all workloads of a deployment have in common: for one that several can be run at once of.
    fn check_own(&mut self, _context: &Context) -> Result<Vec<Check>> {
        Err(Error::usage("this workload cannot be combined with others"))
    }

    /// The databases of which all members of a set must hold the same at the end; asked after the set-up.
    fn databases(&self) -> Vec<String> {
        Vec::new()
    }

    /// The columns of the table, in order.
    fn metrics(&self, context: &Context) -> Vec<Figure>;

    /// Whether it tells of stalls: for a load in which somebody always asks for something.
    fn looks_for_stalls(&self) -> bool {
        false
    }

    /// Whether it runs on PostgreSQL too.
    fn knows_postgresql(&self) -> bool {
        false
    }
}
