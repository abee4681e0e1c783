//! Data several times the server's memory: loaded, then YCSB's workloads one after another on the same data.
//!
//! What is looked at is what more data than memory does to a store: stalls, reads as far as they are the disk's, and how much
//! is written for what the clients write.

use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use sheaf_bson::{RawDoc, doc};

use super::record::{LEAST_BYTES, Maker};
use super::{COLLECTION, OPERATIONS, Own, Parsed, State, Weights, checked};
use crate::client::Collection;
use crate::context::{Context, Group, Worker};
use crate::doctor::{self, Reads};
use crate::error::{Error, Result};
use crate::experiment::Settings;
use crate::measure::{Load, Measured, Span};
use crate::results::Check;
use crate::workload::findings::Findings;
use crate::workload::{Figure, LONGEST_STALL, Workload, memory, stalls};

/// Settings of the workload.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Settled {
    /// Bytes of documents, as a multiple of `server.memory_mb`.
    times: f64,
    /// Instead of that: megabytes (2^20) of documents at full scale, for a deployment that runs already.
    #[serde(default)]
    data_mb: Option<u64>,
    /// The letters of YCSB's workloads, in order.
    workloads: String,
    fields: u32,
    field_bytes: usize,
    longest_scan: u64,
    clients: u32,
    /// Clients that load.
    loaders: u32,
    concern: String,
    database: String,
}

/// The name of the part in which the records are loaded, and of its operations, which are batches.
const LOAD: &str = "load";
/// Bytes of documents in a batch of the load, and the most documents.
const BATCH_BYTES: u64 = 1 << 20;
const BATCH_DOCUMENTS: u64 = 1000;
/// The file of which blocks are read to learn what the disk's reads take, and for how long.
const PROBE_BYTES: usize = 256 << 20;
const PROBE: Duration = Duration::from_secs(2);
/// Documents from here on are large: they stand in the log once, or once more in a file of their own.
const LARGE: u64 = 8 << 10;

/// Nothing of any kind may stand still for longer, in microseconds.
const STALL_US: f64 = 250_000.0;
/// The 99.9th percentile of reads, in reads of the disk.
const DISK_READS: f64 = 4.0;
/// Bytes written to disk for a byte of small and of large documents.
const AMPLIFICATION: [f64; 2] = [6.0, 1.6];

/// See the module.
#[derive(Default)]
pub struct AtSize {
    own: Option<Settled>,
    mixes: Vec<(char, Parsed)>,
    state: Option<State>,
    findings: Findings,
    disk: Option<Reads>,
    parts: Vec<Part>,
    document_bytes: u64,
}

/// The load, or one of the workloads.
struct Part {
    /// "load", "A".
    name: String,
    measured: Measured,
    /// Bytes of documents that were written, and bytes that the servers wrote to disk meanwhile, if they are ours.
    documents: u64,
    disk: Option<u64>,
}

/// What YCSB's letters stand for, and how keys are chosen.
fn mix(letter: char) -> Option<(Weights, &'static str)> {
    let zipfian = "scrambled:0.99";
    let none = Weights::default();
    Some(match letter {
        'a' => (Weights { read: 50, update: 50, ..none }, zipfian),
        'b' => (Weights { read: 95, update: 5, ..none }, zipfian),
        'c' => (Weights { read: 100, ..none }, zipfian),
        'd' => (Weights { read: 95, insert: 5, ..none }, "latest:0.99"),
        'e' => (Weights { scan: 95, insert: 5, ..none }, zipfian),
        'f' => (Weights { read: 50, read_modify_write: 50, ..none }, zipfian),
        _ => return None,
    })
}

impl Settled {
    fn parsed(&self, letter: char) -> Result<Parsed> {
        let (weights, keys) = mix(letter.to_ascii_lowercase()).ok_or_else(|| {
            Error::usage(format!("workloads: there is no workload {letter}; there are a to f"))
        })?;
        let own = Own {
            records: 1,
            fields: self.fields,
            field_bytes: self.field_bytes,
            weights,
            key_generator: keys.to_owned(),
            longest_scan: self.longest_scan,
            clients: self.clients,
            concern: self.concern.clone(),
            database: self.database.clone(),
        };
        Parsed::new(own, &format!("{} ", letter.to_ascii_uppercase()))
    }

    /// Bytes of documents that are loaded, if anything says how many.
    fn data_bytes(&self, limit: Option<u64>, scale: f64) -> Option<u64> {
        match self.data_mb {
            Some(mb) => Some((mb as f64 * f64::from(1 << 20) * scale) as u64),
            None => Some((limit? as f64 * self.times) as u64),
        }
    }
}

impl AtSize {
    fn own(&self) -> Result<&Settled> {
        self.own.as_ref().ok_or_else(|| Error::failed("the workload has no settings"))
    }

    fn state(&self) -> Result<&State> {
        self.state.as_ref().ok_or_else(|| Error::failed("the workload was not set up"))
    }

    /// Loads the records, then runs each workload.
    fn run_parts(
        &mut self,
        context: &Context,
        own: &Settled,
        state: &State,
        findings: &Findings,
        mixes: &[(char, Parsed)],
    ) -> Result<()> {
        let per_batch = (BATCH_BYTES / self.document_bytes).clamp(1, BATCH_DOCUMENTS);
        let into = &mixes[0].1.collection;
        let loaders = Group::new("loader", own.loaders, |worker| load(worker, into, state, per_batch))
            .load(Load::closed(Span::Operations(state.loaded.div_ceil(per_batch))));
        let mut part = self.part(context, state, LOAD, &loaders)?;
        // What was loaded was there from the beginning, as far as the sequence knows.
        part.documents = state.loaded * self.document_bytes;
        self.parts.push(part);
        for (letter, parsed) in mixes {
            let name = letter.to_ascii_uppercase().to_string();
            let part = self.part(context, state, &name, &parsed.group(state, findings))?;
            self.parts.push(part);
        }
        Ok(())
    }

    /// Runs a part and notes what was written meanwhile: an update counts as its whole document.
    fn part(&self, context: &Context, state: &State, name: &str, group: &Group<'_>) -> Result<Part> {
        let written = || state.versions.issued() + state.sequence.taken();
        let (documents, disk) = (written(), disk_bytes(context));
        let measured = context.run(std::slice::from_ref(group))?;
        let disk = disk_bytes(context).zip(disk).map(|(now, before)| now.saturating_sub(before));
        let documents = (written() - documents) * self.document_bytes;
        Ok(Part { name: name.to_owned(), measured, documents, disk })
    }

    /// The figures of a part: its speed, its reads, its stalls, and what it wrote.
    fn of_part(&self, context: &Context, part: &Part) -> Vec<Figure> {
        let Part { name, measured, .. } = part;
        let named = |what: &str| format!("{name}: {what}");
        let mut figures = Vec::new();
        let operations: Vec<&str> = measured.operations.keys().map(String::as_str).collect();
        let rate: f64 = operations.iter().map(|operation| measured.rate(operation)).sum();
        if name == LOAD {
            let speed = part.documents as f64 / 1e6 / measured.seconds.max(1e-9);
            figures.push(Figure::higher(named("MB/s"), "MB/s", speed));
        } else {
            figures.push(Figure::higher(named("operations/s"), "1/s", rate));
        }
        for operation in &operations {
            let kind = operation.rsplit(' ').next().unwrap_or(operation);
            let totals = measured.operation(operation);
            for percent in [50.0, 99.9] {
                figures.push(Figure::lower(
                    named(&format!("{kind} p{percent}")),
                    "us",
                    totals.percentile_us(percent),
                ));
            }
        }
        let reads = measured.operation(&format!("{name} {}", OPERATIONS[0]));
        if let Some(disk) = self.disk.filter(|disk| disk.p999_us > 0.0 && reads.count() > 0) {
            let times = reads.percentile_us(99.9) / disk.p999_us;
            figures.push(Figure::lower(named("read p99.9 in disk reads"), "", times).aim(DISK_READS));
        }
        for figure in stalls(context, &operations, measured.seconds) {
            let aim = (figure.name == LONGEST_STALL).then_some(STALL_US);
            figures.push(Figure { name: named(&figure.name), aim, ..figure });
        }
        if let Some(disk) = part.disk.filter(|_| part.documents > 0) {
            figures.push(amplification(name, disk, part.documents));
        }
        figures
    }
}

/// Bytes that came to disk for each byte of documents.
fn amplification(name: &str, disk: u64, documents: u64) -> Figure {
    Figure::lower(format!("{name}: write amplification"), "", disk as f64 / documents.max(1) as f64)
}

/// What one client loads: a batch each turn.
fn load(worker: &mut Worker<'_>, into: &Collection, state: &State, per_batch: u64) -> Result<()> {
    let mut bytes = Vec::new();
    while let Some(ticket) = worker.next() {
        let first = ticket.number * per_batch;
        let mut insert = worker.client().insert(into);
        for key in first..(first + per_batch).min(state.loaded) {
            bytes.clear();
            state.maker.append(&mut bytes, key);
            insert.push_raw(RawDoc::new(&bytes));
        }
        insert.send().map_err(|error| error.context("loading"))?;
        worker.done(LOAD, ticket);
    }
    Ok(())
}

/// Bytes that the servers have written to disk.
fn disk_bytes(context: &Context) -> Option<u64> {
    let servers = context.meter.servers();
    let all: Option<Vec<u64>> = servers.iter().map(|server| Some(server.disk_bytes()?.written)).collect();
    all.filter(|all| !all.is_empty()).map(|all| all.into_iter().sum())
}

/// What the disk's reads take, beside the data folder of the first server.
fn probe(context: &Context, clients: u32) -> Option<Reads> {
    let folder = context.data_members().find_map(|member| member.data.clone())?;
    match doctor::measure_reads(
        folder.parent().unwrap_or(Path::new(".")),
        PROBE_BYTES,
        clients as usize,
        PROBE,
    ) {
        Ok(reads) => Some(reads),
        Err(error) => {
            context.warn(format!("what a read of the disk takes was not measured: {error}"));
            None
        }
    }
}

impl Workload for AtSize {
    fn configure(&mut self, settings: &Settings) -> Result<()> {
        let own: Settled = settings.parse()?;
        if own.field_bytes < LEAST_BYTES || own.loaders == 0 || own.times.is_nan() || own.times <= 0.0 {
            return Err(Error::usage("at-size needs loaders, times above 0, and fields that can be checked"));
        }
        if own.workloads.is_empty() {
            return Err(Error::usage("workloads: name at least one, as in \"abcdef\""));
        }
        self.mixes =
            own.workloads.chars().map(|letter| Ok((letter, own.parsed(letter)?))).collect::<Result<_>>()?;
        self.own = Some(own);
        Ok(())
    }

    fn bytes_to_load(&self, limit: Option<u64>, scale: f64) -> Option<u64> {
        self.own.as_ref()?.data_bytes(limit, scale)
    }

    fn setup(&mut self, context: &Context) -> Result<()> {
        let own = self.own()?.clone();
        if context.load.measure == Span::Unbounded {
            return Err(Error::usage("at-size: phases.measure says how long each workload runs"));
        }
        let maker = Maker::new(own.fields, own.field_bytes);
        let mut first = Vec::new();
        maker.append(&mut first, 0);
        self.document_bytes = first.len() as u64;
        let data = own.data_bytes(context.memory.limit, context.scale).ok_or_else(|| {
            Error::usage(
                "at-size: nothing says how much memory the server has: set server.memory_mb, or data_mb",
            )
        })?;
        let records = (data / self.document_bytes).max(1);
        let acknowledged = self.mixes[0].1.collection.write_concern.acknowledged();
        self.state = Some(State::new(records, maker, acknowledged));
        self.disk = probe(context, own.clients);
        let mut client = context.connect()?;
        client.drop_collection(&Collection::new(&own.database, COLLECTION))?;
        context.admin(&mut client, &own.database, &doc! { "create": COLLECTION }).map(drop)
    }

    fn run(&mut self, context: &Context) -> Result<()> {
        let own = self.own()?.clone();
        let state = self.state.take().ok_or_else(|| Error::failed("the workload was not set up"))?;
        let findings = std::mem::take(&mut self.findings);
        let mixes = std::mem::take(&mut self.mixes);
        let outcome = self.run_parts(context, &own, &state, &findings, &mixes);
        (self.state, self.findings, self.mixes) = (Some(state), findings, mixes);
        outcome
    }

    fn check_own(&mut self, context: &Context) -> Result<Vec<Check>> {
        let mut checks = checked(context, &self.own()?.database, self.state()?, &self.findings)?;
        checks.extend(memory::check(context));
        Ok(checks)
    }

    fn databases(&self) -> Vec<String> {
        self.own.iter().map(|own| own.database.clone()).collect()
    }

    fn looks_for_stalls(&self) -> bool {
        true
    }

    fn metrics(&self, context: &Context) -> Vec<Figure> {
        let mut figures: Vec<Figure> =
            self.parts.iter().flat_map(|part| self.of_part(context, part)).collect();
        let disk: Option<u64> = self.parts.iter().map(|part| part.disk).sum();
        let documents: u64 = self.parts.iter().map(|part| part.documents).sum();
        if let Some(disk) = disk {
            let aim = AMPLIFICATION[usize::from(self.document_bytes >= LARGE)];
            figures.push(amplification("all", disk, documents).aim(aim));
        }
        figures.extend(memory::figures(context, "all: "));
        if let Some(reads) = &self.disk {
            figures.push(Figure::plain("all: disk read p50", "us", reads.median_us));
            figures.push(Figure::plain("all: disk read p99.9", "us", reads.p999_us));
        }
        figures
    }
}
