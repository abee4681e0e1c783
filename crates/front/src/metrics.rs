//! Figures that the server keeps about itself.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use sheaf_bson::{DocWriter, RawDoc};

use crate::command::Counter;

/// A figure that only grows.
#[derive(Default, Debug)]
pub struct Count(AtomicU64);

impl Count {
    /// Adds.
    pub fn add(&self, n: u64) {
        // Nothing is what most figures of most operations grow by.
        if n != 0 {
            self.0.fetch_add(n, Ordering::Relaxed);
        }
    }

    /// The figure.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// `serverStatus.opcounters`.
#[derive(Default, Debug)]
#[allow(missing_docs)]
pub struct OpCounters {
    pub insert: Count,
    pub query: Count,
    pub update: Count,
    pub delete: Count,
    pub getmore: Count,
    pub command: Count,
}

impl OpCounters {
    /// Counts a command that consists of this many statements.
    pub fn count(&self, counter: Counter, statements: u64) {
        match counter {
            Counter::Insert => self.insert.add(statements),
            Counter::Update => self.update.add(statements),
            Counter::Delete => self.delete.add(statements),
            Counter::Query => self.query.add(1),
            Counter::GetMore => self.getmore.add(1),
            Counter::Command => self.command.add(1),
            Counter::Bulk => {}
        }
    }
}

impl OpCounters {
    /// Counts the operations of a `bulkWrite`.
    pub fn count_bulk<'d>(&self, operations: impl Iterator<Item = RawDoc<'d>>) {
        for operation in operations {
            match operation.iter().next().map(|first| first.key()) {
                Some("insert") => self.insert.add(1),
                Some("update") => self.update.add(1),
                Some("delete") => self.delete.add(1),
                _ => {}
            }
        }
    }
}

/// Calls and failures of one command.
#[derive(Default, Debug)]
#[allow(missing_docs)]
pub struct CommandCount {
    pub total: Count,
    pub failed: Count,
    /// Of those that failed, what settings for the query's shape refused.
    pub rejected: Count,
}

/// Number and time of operations of one class, for `top`.
#[derive(Default, Debug, Clone, Copy)]
#[allow(missing_docs)]
pub struct Usage {
    pub micros: u64,
    pub ops: u64,
}

impl Usage {
    fn add(&mut self, micros: u64) {
        self.micros += micros;
        self.ops += 1;
    }
}

/// Where the buckets of latencies begin, in microseconds, as MongoDB divides them.
const BUCKETS: [u64; 51] = [
    0,
    2,
    4,
    8,
    16,
    32,
    64,
    128,
    256,
    512,
    1024,
    2048,
    3072,
    4096,
    6144,
    8192,
    12288,
    16384,
    24576,
    32768,
    49152,
    65536,
    98304,
    131_072,
    196_608,
    262_144,
    393_216,
    524_288,
    786_432,
    1_048_576,
    1_572_864,
    2_097_152,
    4_194_304,
    8_388_608,
    16_777_216,
    33_554_432,
    67_108_864,
    134_217_728,
    268_435_456,
    536_870_912,
    1_073_741_824,
    2_147_483_648,
    4_294_967_296,
    8_589_934_592,
    17_179_869_184,
    34_359_738_368,
    68_719_476_736,
    137_438_953_472,
    274_877_906_944,
    549_755_813_888,
    1_099_511_627_776,
];

/// Number and time of operations of one class, and how the times are spread.
#[derive(Debug, Clone, Copy)]
pub struct Latency {
    usage: Usage,
    buckets: [u64; BUCKETS.len()],
}

impl Default for Latency {
    fn default() -> Self {
        Latency { usage: Usage::default(), buckets: [0; BUCKETS.len()] }
    }
}

impl Latency {
    fn add(&mut self, micros: u64) {
        self.usage.add(micros);
        // The first bucket begins at 0, so there is always one.
        self.buckets[BUCKETS.partition_point(|from| *from <= micros) - 1] += 1;
    }

    /// `{latency, ops}` and what belongs to them.
    pub fn write(&self, doc: &mut DocWriter<'_, Vec<u8>>, histogram: bool) {
        if histogram {
            let mut list = doc.array("histogram");
            for (from, count) in BUCKETS.iter().zip(&self.buckets).filter(|(_, count)| **count > 0) {
                list.document().append("micros", *from as i64).append("count", *count as i64);
            }
        }
        doc.append("latency", self.usage.micros as i64);
        doc.append("ops", self.usage.ops as i64);
        doc.append("queryableEncryptionLatencyMicros", 0i64);
    }
}

/// The classes of latencies.
pub const LATENCIES: [&str; 4] = ["reads", "writes", "commands", "transactions"];

/// Writes latencies by class.
pub fn write_latencies(doc: &mut DocWriter<'_, Vec<u8>>, latencies: &[Latency; 4], histograms: bool) {
    for (name, latency) in LATENCIES.iter().zip(latencies) {
        latency.write(&mut doc.document(name), histograms);
    }
}

/// What `top` shows for one collection.
#[derive(Default, Debug, Clone, Copy)]
#[allow(missing_docs)]
pub struct TopEntry {
    pub total: Usage,
    pub read_lock: Usage,
    pub write_lock: Usage,
    pub queries: Usage,
    pub getmore: Usage,
    pub insert: Usage,
    pub update: Usage,
    pub remove: Usage,
    pub commands: Usage,
    /// As `$collStats` shows them.
    pub latencies: [Latency; 4],
}

/// What sorts have come to.
#[derive(Default)]
#[allow(missing_docs)]
pub struct SortCounts {
    pub bytes: Count,
    pub rows: Count,
    pub spills: Count,
}

/// How many of certain commands had certain parts.
#[derive(Default)]
#[allow(missing_docs)]
pub struct PartCounts {
    pub update_pipelines: Count,
    pub update_array_filters: Count,
    pub modify_pipelines: Count,
    pub modify_array_filters: Count,
    pub aggregates_with_disk: Count,
}

/// All figures.
#[derive(Default)]
#[allow(missing_docs)]
pub struct Metrics {
    pub opcounters: OpCounters,
    pub bytes_in: Count,
    pub bytes_out: Count,
    pub physical_bytes_in: Count,
    pub physical_bytes_out: Count,
    pub requests: Count,
    pub connections_created: Count,
    pub connections_rejected: Count,
    /// Connections that speak TLS 1.2.
    pub tls_1_2: Count,
    /// Connections that speak TLS 1.3.
    pub tls_1_3: Count,
    pub docs_inserted: Count,
    pub docs_updated: Count,
    pub docs_deleted: Count,
    pub docs_returned: Count,
    pub keys_examined: Count,
    pub docs_examined: Count,
    pub sorts: Count,
    /// What has been sorted.
    pub sorted: SortCounts,
    pub write_conflicts: Count,
    /// Operations that ended because their time was over, and those whose clients had gone.
    pub max_time_expired: Count,
    pub clients_gone: Count,
    /// Of the commands that have such parts, how many had them.
    pub parts: PartCounts,
    pub asserts_user: Count,
    pub asserts_regular: Count,
    pub ttl_passes: Count,
    pub ttl_deleted: Count,
    pub slow_ops: Count,
    /// Operations that were stopped because this node ceased to be primary, and those that were not.
    pub ops_killed: Count,
    pub ops_running: Count,
    /// Writes without an answer that came to a member that is not primary; their connections were closed.
    pub not_primary_unacknowledged: Count,
    /// `stepUp` or `stepDown`.
    pub last_transition: Mutex<&'static str>,
    pub txn: TxnMetrics,
    /// Reads, writes, commands, transactions.
    pub latencies: [Mutex<Latency>; 4],
    pub top: Mutex<HashMap<String, TopEntry, ahash::RandomState>>,
    pub active_reads: AtomicU64,
    pub active_writes: AtomicU64,
    pub read_concerns: crate::concern::counters::ReadConcernCounters,
}

/// `serverStatus.transactions`.
#[derive(Default)]
#[allow(missing_docs)]
pub struct TxnMetrics {
    pub started: Count,
    pub committed: Count,
    pub aborted: Count,
    pub retried_commands: Count,
    pub retried_statements: Count,
    pub open: AtomicU64,
    /// Of the open ones, those with an operation under way.
    pub active: AtomicU64,
}

/// What an operation did, for `top`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Class {
    Read,
    Write,
    Command,
}

impl Metrics {
    /// Counts the end of an open transaction, committed or aborted.
    pub fn transaction_ended(&self, lived: Duration) {
        self.txn.open.fetch_sub(1, Ordering::Relaxed);
        self.latencies[3].lock().add(lived.as_micros() as u64);
    }

    /// Forgets a collection that is gone.
    pub fn forget(&self, namespace: &str) {
        self.top.lock().remove(namespace);
    }

    /// Forgets the collections of a database.
    pub fn forget_database(&self, db: &str) {
        self.top.lock().retain(|namespace, _| namespace.split_once('.').is_none_or(|(of, _)| of != db));
    }

    /// The latencies of a collection.
    pub fn latencies_of(&self, namespace: &str) -> [Latency; 4] {
        self.top.lock().get(namespace).map(|entry| entry.latencies).unwrap_or_default()
    }

    /// Counts one finished operation.
    pub fn finished(&self, class: Class, counter: Counter, namespace: Option<&str>, took: Duration) {
        let micros = took.as_micros() as u64;
        let at = match class {
            Class::Read => 0,
            Class::Write => 1,
            Class::Command => 2,
        };
        self.latencies[at].lock().add(micros);
        let Some(namespace) = namespace else { return };
        let mut top = self.top.lock();
        if !top.contains_key(namespace) {
            top.insert(namespace.to_owned(), TopEntry::default());
        }
        let Some(entry) = top.get_mut(namespace) else { return };
        entry.total.add(micros);
        entry.latencies[at].add(micros);
        match class {
            Class::Read => entry.read_lock.add(micros),
            Class::Write => entry.write_lock.add(micros),
            Class::Command => {}
        }
        match counter {
            Counter::Insert => entry.insert.add(micros),
            Counter::Query => entry.queries.add(micros),
            Counter::Update => entry.update.add(micros),
            Counter::Delete => entry.remove.add(micros),
            Counter::GetMore => entry.getmore.add(micros),
            Counter::Command => entry.commands.add(micros),
            // As in MongoDB: what is in it may be of several collections.
            Counter::Bulk => {}
        }
    }
}
