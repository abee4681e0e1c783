//! Workloads: what is done to the database, and what must be true of it afterwards.
//!
//! A workload is made anew for each repetition. [`Workload::configure`] comes before any server is started, so that a
//! wrong setting costs nothing. Then `setup` prepares the data, `run` drives it through [`Context::run`](crate::context::Context::run), `check` looks
//! at the invariants, and `metrics` gives the columns of the table. Figures of a run whose check fails are no result.

mod bank;
mod batches;
mod bench_run;
mod bulk_import;
mod change_stream;
mod contents;
mod contract;
mod endure;
mod evenness;
mod figure;
mod findings;
mod insert_latency;
mod ladder;
mod list_append;
mod load;
mod memory;
mod mixed_kv;
mod most_replicaset;
mod most_single;
mod moves;
mod placing;
mod register;
mod slots;
mod torment;
mod versions;
mod ycsb;

pub use contract::Workload;
pub use figure::{Figure, MAY_LACK};
use figure::{LONGEST_STALL, latencies, stalls};
pub use memory::Memory;

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
    ("at-size", || Box::<ycsb::AtSize>::default()),
    ("bank", || Box::<bank::Bank>::default()),
    ("list-append", || Box::<list_append::ListAppend>::default()),
    ("register", || Box::<register::Register>::default()),
    ("change-stream", || Box::<change_stream::ChangeStream>::default()),
    ("ladder", || Box::<ladder::Ladder>::default()),
    ("moves", || Box::<moves::Moves>::default()),
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
