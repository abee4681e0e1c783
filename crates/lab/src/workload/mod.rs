//! Workloads: what is done to the database, and what must be true of it afterwards.
//!
//! A workload is made anew for each repetition. [`Workload::configure`] comes before any server is started, so that a
//! wrong setting costs nothing. Then `setup` prepares the data, `run` drives it through [`Context::run`], `check` looks
//! at the invariants, and `metrics` gives the columns of the table. Figures of a run whose check fails are no result.

mod bank;
mod batches;
mod bench_run;
mod bulk_import;
mod change_stream;
mod contents;
mod endure;
mod findings;
mod insert_latency;
mod ladder;
mod list_append;
mod load;
mod mixed_kv;
mod most_replicaset;
mod most_single;
mod register;
mod slots;
mod torment;
mod versions;
mod ycsb;

use crate::context::{Context, Group};
use crate::error::{Error, Result};
use crate::experiment::Settings;
use crate::measure::Measured;
use crate::results::{Better, Check};

/// One kind of load, with its invariants.
pub trait Workload: Send + Sync {
    /// Takes the settings in ([`Settings::parse`]); refuses what makes no sense.
    fn configure(&mut self, settings: &Settings) -> Result<()>;

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
        if let Some(db) = self.database() {
            checks.extend(endure::members_hold_the_same(context, db)?);
        }
        Ok(checks)
    }

    /// The same without what all workloads of a deployment have in common: for one that several can be run at once of.
    fn check_own(&mut self, _context: &Context) -> Result<Vec<Check>> {
        Err(Error::usage("this workload cannot be combined with others"))
    }

    /// The database of which all members must hold the same at the end.
    fn database(&self) -> Option<&str> {
        None
    }

    /// The columns of the table, in order.
    fn metrics(&self, context: &Context) -> Vec<Figure>;

    /// Whether it runs on PostgreSQL too.
    fn knows_postgresql(&self) -> bool {
        false
    }
}

/// One column's value of one repetition.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// "MB/s written".
    pub name: String,
    /// "MB/s", "us", "%", "1/s".
    pub unit: &'static str,
    /// Which direction is good.
    pub better: Option<Better>,
    /// The value.
    pub value: f64,
}

impl Figure {
    /// A figure of which more is better.
    pub fn higher(name: impl Into<String>, unit: &'static str, value: f64) -> Figure {
        Figure { name: name.into(), unit, better: Some(Better::Higher), value }
    }

    /// A figure of which less is better.
    pub fn lower(name: impl Into<String>, unit: &'static str, value: f64) -> Figure {
        Figure { name: name.into(), unit, better: Some(Better::Lower), value }
    }

    /// A figure without a good direction.
    pub fn plain(name: impl Into<String>, unit: &'static str, value: f64) -> Figure {
        Figure { name: name.into(), unit, better: None, value }
    }
}

/// Percentiles of the latencies of some operations, each with the label that it has in the table.
fn latencies(measured: &Measured, operations: &[(&str, &str)], percentiles: &[f64]) -> Vec<Figure> {
    let of = |(operation, label): &(&str, &str)| {
        let totals = measured.operation(operation);
        let figure = |percentile: &f64| {
            Figure::lower(format!("{label} p{percentile}"), "us", totals.percentile_us(*percentile))
        };
        percentiles.iter().map(figure).collect::<Vec<_>>()
    };
    operations.iter().flat_map(of).collect()
}

/// Makes a workload.
type Make = fn() -> Box<dyn Workload>;

/// Every workload by the name that experiments use.
const ALL: &[(&str, Make)] = &[
    ("most-single", || Box::<most_single::MostSingle>::default()),
    ("most-replicaset", || Box::<most_replicaset::MostReplicaSet>::default()),
    ("insert-latency", || Box::<insert_latency::InsertLatency>::default()),
    ("mixed-kv", || Box::<mixed_kv::MixedKv>::default()),
    ("bench-run", || Box::<bench_run::BenchRun>::default()),
    ("bulk-import", || Box::<bulk_import::BulkImport>::default()),
    ("ycsb", || Box::<ycsb::Ycsb>::default()),
    ("bank", || Box::<bank::Bank>::default()),
    ("list-append", || Box::<list_append::ListAppend>::default()),
    ("register", || Box::<register::Register>::default()),
    ("change-stream", || Box::<change_stream::ChangeStream>::default()),
    ("ladder", || Box::<ladder::Ladder>::default()),
    ("torment", || Box::<torment::Torment>::default()),
];

/// The workload with this name.
pub fn by_name(name: &str) -> Option<Box<dyn Workload>> {
    ALL.iter().find(|(known, _)| *known == name).map(|(_, make)| make())
}

/// The names of all workloads.
pub fn names() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|(name, _)| *name)
}
