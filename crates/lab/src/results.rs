//! What a run leaves behind: one tree of plain values, written as `results.json` and read back for reports and
//! comparisons. Everything that a report shows is in here; nothing is computed from anything else.

mod columns;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The layout of these types. A file with another number is refused.
pub const SCHEMA: u32 = 2;

/// One invocation of `sheaf bench run`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RunResult {
    /// [`SCHEMA`] of the program that wrote the file.
    pub schema: u32,
    /// The experiment's name, as in `sheaf bench run NAME`.
    pub experiment: String,
    /// One sentence for the head of the report.
    pub title: String,
    /// Milliseconds since 1970.
    pub started_ms: i64,
    /// How long the whole run took, set-up included.
    pub duration_s: f64,
    /// `--scale`.
    pub scale: f64,
    /// Every setting that differs from the experiment's file (`--set`), as text.
    pub settings: BTreeMap<String, String>,
    /// Where it ran.
    pub environment: Environment,
    /// Every command line and administrative command that was run, in order.
    pub commands: Vec<CommandLine>,
    /// One per variation of the matrix and target, in the experiment's order.
    pub rows: Vec<Row>,
    /// What a reader must know to judge the figures ("the client was the bottleneck in row 3").
    pub warnings: Vec<String>,
}

impl RunResult {
    /// Whether every check of every repetition passed and no row failed. Speed never matters here.
    pub fn passed(&self) -> bool {
        self.rows.iter().all(Row::passed)
    }
}

/// One variation of the experiment on one target.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Row {
    /// As in the classic tables: "safe, journal on, capped".
    pub name: String,
    /// The values of the matrix's axes for this row.
    pub variation: BTreeMap<String, String>,
    /// "sheaf 0.1.0", "mongod 8.2.1", "PostgreSQL 15.18".
    pub target: String,
    /// The columns of the final table, in order; each holds one value per repetition.
    pub metrics: Vec<Metric>,
    /// The repetitions that count (warm-up is not kept).
    pub repetitions: Vec<Repetition>,
    /// Why the row could not be finished.
    pub failed: Option<String>,
}

impl Row {
    /// Whether the row was finished and each of its checks passed.
    pub fn passed(&self) -> bool {
        self.failed.is_none() && self.repetitions.iter().all(|r| r.checks.iter().all(|c| c.passed))
    }
}

/// One figure of a row.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Metric {
    /// "MB/s written".
    pub name: String,
    /// "MB/s", "us", "%", "1/s".
    pub unit: String,
    /// Which direction is good; `None` when neither is.
    pub better: Option<Better>,
    /// One value per repetition, in their order.
    pub values: Vec<f64>,
    /// What it should be, or better.
    #[serde(default)]
    pub aim: Option<f64>,
}

/// The good direction of a [`Metric`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Throughputs.
    Higher,
    /// Latencies, bytes.
    Lower,
}

/// One execution of the workload.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Repetition {
    /// Length of the measured part.
    pub seconds: f64,
    /// One per kind of operation ("insert", "read", "transfer").
    pub operations: Vec<Operation>,
    /// Steps with growing numbers of clients, where the workload has them.
    pub steps: Vec<Step>,
    /// The invariants.
    pub checks: Vec<Check>,
    /// The servers, once a second.
    pub servers: Vec<ServerSeries>,
    /// Processor seconds used by the load generator, and by the servers it launched.
    pub client_cpu_s: f64,
    /// See `client_cpu_s`; `None` when the servers are not ours.
    pub server_cpu_s: Option<f64>,
    /// Bytes on disk when it ended, by node.
    pub disk_bytes: BTreeMap<String, u64>,
    /// What was done to the servers meanwhile (kills, pauses, cuts).
    pub faults: Vec<Fault>,
    /// Times in which nothing of a kind succeeded, where the workload has them looked for; the longest.
    #[serde(default)]
    pub stalls: Vec<Stall>,
}

/// A time in which operations of a kind were under way and none succeeded, of more than 100 ms.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stall {
    /// The kind.
    pub operation: String,
    /// Seconds since the measured part began.
    pub at_s: f64,
    /// Milliseconds.
    pub ms: f64,
}

/// The latencies of one kind of operation.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Operation {
    /// "insert".
    pub name: String,
    /// Operations that succeeded.
    pub count: u64,
    /// Operations that failed for good.
    pub errors: u64,
    /// Tries that were repeated.
    pub retries: u64,
    /// The whole HDR histogram of nanoseconds, in the V2 + DEFLATE form, base64.
    pub histogram: String,
    /// What happened in each second.
    #[serde(with = "columns::lines")]
    pub series: Vec<Second>,
    /// Each call's latency in microseconds in order, where the workload keeps them.
    #[serde(with = "columns::numbers")]
    pub calls_us: Vec<f64>,
}

/// One second of one kind of operation; latencies in microseconds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Second {
    /// Seconds since the measured part began.
    pub at_s: f64,
    /// Operations that ended in it.
    pub count: u64,
    /// Of those that failed.
    pub errors: u64,
    /// Arithmetic mean.
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 95th percentile.
    pub p95_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// Worst.
    pub max_us: f64,
}

/// A part of the run with its own number of clients.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Step {
    /// Clients that ran at once.
    pub clients: u32,
    /// By kind of operation: average and best second, operations per second.
    pub rates: BTreeMap<String, Rate>,
}

/// See [`Step`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Rate {
    /// Over the whole step.
    pub average: f64,
    /// The best second.
    pub peak: f64,
}

/// An invariant and whether it held.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Check {
    /// "total balance".
    pub name: String,
    /// Whether it held every time that it was looked at.
    pub passed: bool,
    /// What was seen ("1,000,000 at each of 31 looks"), or how it failed.
    pub detail: String,
}

/// Counters of one server process over the run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ServerSeries {
    /// "host:port".
    pub node: String,
    /// Once a second: seconds since the measured part began, and every figure by name
    /// ("cpu_percent", "resident_mb", "opcounters.insert", ...). Counters are kept as they are, not as differences.
    #[serde(with = "columns::samples")]
    pub samples: Vec<(f64, BTreeMap<String, f64>)>,
}

/// Something that was done to a server.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Fault {
    /// Seconds since the measured part began.
    pub at_s: f64,
    /// "kill -9 127.0.0.1:27018".
    pub what: String,
    /// When it was undone, if there was something to undo.
    #[serde(default)]
    pub until_s: Option<f64>,
    /// By kind of operation, the longest time without service that began with it, in milliseconds: operations were under
    /// way or tried again, and none succeeded.
    #[serde(default)]
    pub gaps_ms: BTreeMap<String, f64>,
    /// By kind of operation, how it went around the fault; of the faults that were felt most.
    #[serde(default, with = "columns::named_lines")]
    pub around: BTreeMap<String, Vec<Moment>>,
}

/// A tenth of a second of one kind of operation; latencies in microseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Moment {
    /// Seconds since the measured part began.
    pub at_s: f64,
    /// Operations that succeeded in it.
    pub count: u64,
    /// That failed.
    pub errors: u64,
    /// Median, within an eighth.
    pub p50_us: f64,
    /// Worst.
    pub max_us: f64,
}

/// A command that a person could repeat.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CommandLine {
    /// Milliseconds since 1970.
    pub at_ms: i64,
    /// "shell", or the node that an administrative command was sent to.
    pub to: String,
    /// As typed into a shell, or as extended JSON.
    pub text: String,
}

/// Where a run took place.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Environment {
    /// Name of the processor.
    pub cpu: String,
    /// Logical processors that this process may use.
    pub cores: u32,
    /// Bytes, after the limits of control groups.
    pub memory_bytes: u64,
    /// `uname -sr`.
    pub kernel: String,
    /// Of the data folders.
    pub filesystem: String,
    /// Device under the data folders.
    pub disk: String,
    /// Median of raw write+fdatasync in the data folder, microseconds.
    pub fsync_us: f64,
    /// Load average when it began.
    pub load: f64,
    /// Version of every program that took part, by name.
    pub versions: BTreeMap<String, String>,
}
