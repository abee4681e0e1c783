//! The workloads of the Yahoo! Cloud Serving Benchmark by their published definitions: records of ten fields of 100
//! bytes under keys that a hash has spread, and a mix of reads, updates of one field, inserts, scans and
//! read-modify-writes. What the letters A to F mean is in the experiments' files.
//!
//! Every field says which version it is and can be checked ([`record`]), so every read is.

mod record;

use std::sync::atomic::{AtomicBool, Ordering};

use serde::Deserialize;
use sheaf_bson::{RawDoc, doc};

use self::record::Maker;
use super::findings::Findings;
use super::versions::Versions;
use super::{Figure, Workload, endure, load};
use crate::client::{Collection, WriteConcern};
use crate::context::{Context, Group, Worker};
use crate::error::{Error, Result};
use crate::experiment::Settings;
use crate::generate::Sequence;
use crate::generate::keys::{Distribution, KeyChooser};
use crate::measure::Ticket;
use crate::results::Check;

/// Settings of the workload.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Own {
    /// Records that are there at the start, at full scale.
    records: u64,
    fields: u32,
    field_bytes: usize,
    /// How often each operation is done, in relation to the others.
    weights: Weights,
    /// How records are chosen: see [`Distribution`].
    key_generator: String,
    /// Longest scan; lengths are uniform from 1 on.
    longest_scan: u64,
    clients: u32,
    concern: String,
    database: String,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Weights {
    read: u32,
    update: u32,
    insert: u32,
    scan: u32,
    read_modify_write: u32,
}

const OPERATIONS: [&str; 5] = ["read", "update", "insert", "scan", "read-modify-write"];
const COLLECTION: &str = "usertable";

/// See the module.
#[derive(Default)]
pub struct Ycsb {
    own: Option<Parsed>,
    state: Option<State>,
    findings: Findings,
}

struct Parsed {
    own: Own,
    keys: Distribution,
    collection: Collection,
}

struct State {
    loaded: u64,
    sequence: Sequence,
    versions: Versions,
    maker: Maker,
    /// An insert failed, and may be there or not.
    unknown: AtomicBool,
}

impl Ycsb {
    fn parsed(&self) -> Result<&Parsed> {
        self.own.as_ref().ok_or_else(|| Error::failed("the workload has no settings"))
    }

    fn state(&self) -> Result<&State> {
        self.state.as_ref().ok_or_else(|| Error::failed("the workload was not set up"))
    }
}

impl Workload for Ycsb {
    fn configure(&mut self, settings: &Settings) -> Result<()> {
        let own: Own = settings.parse()?;
        let weights = own.weights.in_order();
        if own.records == 0 || own.clients == 0 || weights.iter().all(|&w| w == 0) || own.longest_scan == 0 {
            return Err(Error::usage("ycsb needs records, clients, weights, and scans of at least 1"));
        }
        if own.fields == 0 || own.field_bytes < record::LEAST_BYTES {
            return Err(Error::usage(format!("fields must have at least {} bytes", record::LEAST_BYTES)));
        }
        let concern = WriteConcern::parse(&own.concern).map_err(Error::usage)?;
        self.own = Some(Parsed {
            keys: own.key_generator.parse().map_err(Error::usage)?,
            collection: Collection::new(&own.database, COLLECTION).with_concern(&concern),
            own,
        });
        Ok(())
    }

    fn setup(&mut self, context: &Context) -> Result<()> {
        let parsed = self.parsed()?;
        let own = &parsed.own;
        let mut client = context.connect()?;
        client.drop_collection(&parsed.collection)?;
        context.admin(&mut client, &own.database, &doc! { "create": COLLECTION })?;
        let (loaded, maker) = (context.scaled(own.records), Maker::new(own.fields, own.field_bytes));
        load::fill(context, &Collection::new(&own.database, COLLECTION).into(), 0..loaded as i64, || {
            let maker = maker.clone();
            move |bytes: &mut Vec<u8>, key: i64| maker.append(bytes, key as u64)
        })?;
        let versions = Versions::new(loaded, parsed.collection.write_concern.acknowledged());
        let (sequence, unknown) = (Sequence::new(loaded), AtomicBool::new(false));
        self.state = Some(State { loaded, sequence, versions, maker, unknown });
        Ok(())
    }

    fn run(&mut self, context: &Context) -> Result<()> {
        let (parsed, state) = (self.parsed()?, self.state()?);
        let clients = parsed.own.clients;
        let group = Group::new("client", clients, |worker| {
            let chooser = KeyChooser::new(parsed.keys, worker.index as usize, clients as usize);
            let mut client =
                YcsbClient { parsed, state, findings: &self.findings, chooser, bytes: Vec::new() };
            client.work(worker)
        });
        context.run(&[group]).map(drop)
    }

    fn check(&mut self, context: &Context) -> Result<Vec<Check>> {
        let (parsed, state) = (self.parsed()?, self.state()?);
        let mut client = context.connect()?;
        let (contents, stale) = (Findings::default(), Findings::default());
        let mut found = vec![false; state.sequence.taken() as usize];
        client.for_each(&parsed.own.database, &doc! { "find": COLLECTION }, |record| {
            match state.maker.verify(record) {
                Err(wrong) => contents.add(wrong),
                Ok((key, version)) => match found.get_mut(key as usize) {
                    Some(seen) if !*seen => {
                        *seen = true;
                        let floor = if key < state.loaded { state.versions.floor(key) } else { 0 };
                        if version < floor {
                            stale.add(format!(
                                "record {key} is of version {version}, {floor} was acknowledged"
                            ));
                        }
                    }
                    Some(_) => contents.add(format!("record {key} is there twice")),
                    None => contents.add(format!("record {key} was never written")),
                },
            }
            Ok(())
        })?;
        let missing = Findings::default();
        // Inserts that failed may be there or not; of the others each must be.
        let unknown = state.unknown.load(Ordering::Relaxed);
        let must_be_there =
            if unknown { state.loaded.max(state.sequence.limit()) as usize } else { found.len() };
        for (key, _) in found[..must_be_there].iter().enumerate().filter(|(_, found)| !**found) {
            missing.add(format!("record {key} is missing"));
        }
        Ok(vec![
            contents.check("contents", "every field of every record is whole"),
            missing.check("count", format!("all {must_be_there} records are there")),
            stale
                .check("newest versions", format!("after {} updates none is older", state.versions.issued())),
            self.findings.check(
                "reads",
                match endure::reads_may_be_old(context) {
                    false => "each found its records whole and not older than was acknowledged",
                    true => {
                        "each found its records whole; a primary that was replaced may have shown older ones"
                    }
                },
            ),
        ])
    }

    fn metrics(&self, context: &Context) -> Vec<Figure> {
        let Some(parsed) = &self.own else { return Vec::new() };
        let measured = context.measured();
        let total: f64 = OPERATIONS.iter().map(|name| measured.rate(name)).sum();
        let mut figures = vec![Figure::higher("operations/s", "1/s", total)];
        for (name, weight) in OPERATIONS.into_iter().zip(parsed.own.weights.in_order()) {
            if weight == 0 {
                continue;
            }
            figures.extend(super::latencies(&measured, &[(name, name)], &[50.0, 99.0]));
        }
        figures
    }
}

impl Weights {
    fn in_order(&self) -> [u32; 5] {
        [self.read, self.update, self.insert, self.scan, self.read_modify_write]
    }
}

/// One client.
struct YcsbClient<'a> {
    parsed: &'a Parsed,
    state: &'a State,
    findings: &'a Findings,
    chooser: KeyChooser,
    bytes: Vec<u8>,
}

impl YcsbClient<'_> {
    fn work(&mut self, worker: &mut Worker<'_>) -> Result<()> {
        let weights = self.parsed.own.weights.in_order();
        while let Some(ticket) = worker.next() {
            let operation = worker.random.weighted(&weights);
            match self.operate(worker, operation) {
                Ok(problem) => self.report(worker, OPERATIONS[operation], ticket, problem),
                Err(error) => worker.endured(OPERATIONS[operation], ticket, error)?,
            }
        }
        if !self.parsed.collection.write_concern.acknowledged() {
            // Answered when everything before it was worked off, so that the check sees all of it.
            worker.client().command("admin", &doc! { "ping": 1 })?;
        }
        Ok(())
    }

    /// One operation; what is wrong with what it gave.
    fn operate(&mut self, worker: &mut Worker<'_>, operation: usize) -> Result<Option<String>> {
        match operation {
            0 => {
                let key = self.existing(worker);
                self.read(worker, key)
            }
            1 => {
                let key = self.loaded(worker);
                self.update(worker, key)
            }
            2 => self.insert(worker),
            3 => self.scan(worker),
            _ => {
                let key = self.loaded(worker);
                let problem = self.read(worker, key)?;
                Ok(self.update(worker, key)?.or(problem))
            }
        }
    }

    fn report(&self, worker: &mut Worker<'_>, operation: &str, ticket: Ticket, problem: Option<String>) {
        match problem {
            None => worker.done(operation, ticket),
            Some(problem) => {
                self.findings.add(problem);
                worker.failed(operation, ticket);
            }
        }
    }

    /// A record whose insert was acknowledged.
    fn existing(&mut self, worker: &mut Worker<'_>) -> u64 {
        self.chooser.next(&mut worker.random, self.state.sequence.limit())
    }

    /// A record that was there at the start: of those the versions are known.
    fn loaded(&mut self, worker: &mut Worker<'_>) -> u64 {
        self.chooser.next(&mut worker.random, self.state.loaded)
    }

    fn read(&mut self, worker: &mut Worker<'_>, key: u64) -> Result<Option<String>> {
        let State { versions, loaded, maker, .. } = self.state;
        let may_be_old = endure::reads_may_be_old(worker.context());
        let floor = if key < *loaded && !may_be_old { versions.floor(key) } else { 0 };
        let id = record::id(key);
        let Some(found) = worker.client().find_by_id(&self.parsed.collection, id.as_str())? else {
            if may_be_old && key >= *loaded {
                return Ok(None);
            }
            return Ok(Some(format!("record {key} was not found")));
        };
        Ok(match maker.verify(found) {
            Err(wrong) => Some(wrong),
            Ok((other, _)) if other != key => Some(format!("record {other} came instead of {key}")),
            Ok((_, version)) if key < *loaded => {
                versions.judge(key, floor, version).map(|problem| format!("record {key}: {problem}"))
            }
            Ok(_) => None,
        })
    }

    fn update(&mut self, worker: &mut Worker<'_>, key: u64) -> Result<Option<String>> {
        let State { versions, maker, .. } = self.state;
        let field = worker.random.below(self.parsed.own.fields.into()) as u32;
        let writing = versions.begin(key);
        let text = maker.text(key, field, writing.version);
        let id = record::id(key);
        let mut update = worker.client().update(&self.parsed.collection);
        update.push(|statement| {
            statement.document("q").append("_id", id.as_str());
            statement.document("u").document("$set").append(maker.name(field), text.as_str());
        });
        match update.send()?.n {
            1 => {
                versions.finish(writing);
                Ok(None)
            }
            n => Ok(Some(format!("record {key}: an update matched {n} records"))),
        }
    }

    fn insert(&mut self, worker: &mut Worker<'_>) -> Result<Option<String>> {
        let key = self.state.sequence.take();
        self.bytes.clear();
        self.state.maker.append(&mut self.bytes, key);
        let mut insert = worker.client().insert(&self.parsed.collection);
        insert.push_raw(RawDoc::new(&self.bytes));
        if let Err(error) = insert.send() {
            self.state.unknown.store(true, Ordering::Relaxed);
            return Err(error);
        }
        // Without an acknowledgement nobody may look for it before the end.
        if self.parsed.collection.write_concern.acknowledged() {
            self.state.sequence.acknowledge(key);
        }
        Ok(None)
    }

    fn scan(&mut self, worker: &mut Worker<'_>) -> Result<Option<String>> {
        let key = self.existing(worker);
        let length = 1 + worker.random.below(self.parsed.own.longest_scan);
        let start = record::id(key);
        let find = doc! {
            "find": COLLECTION,
            "filter": { "_id": { "$gte": start.as_str() } },
            "sort": { "_id": 1 },
            "limit": length as i64,
            "batchSize": length as i64
        };
        let maker = &self.state.maker;
        let (mut problem, mut before, mut count) = (None, String::new(), 0);
        worker.client().for_each(&self.parsed.own.database, &find, |found| {
            problem = problem.take().or_else(|| maker.verify(found).err());
            let id = found.get("_id").and_then(|id| id.as_str()).unwrap_or_default();
            if count == 0 && id != start {
                problem.get_or_insert(format!("a scan from {start} began with {id}"));
            }
            if count > 0 && id <= before.as_str() {
                problem.get_or_insert(format!("in a scan {id} came after {before}"));
            }
            before.clear();
            before.push_str(id);
            count += 1;
            Ok(())
        })?;
        if count == 0 || count > length {
            problem.get_or_insert(format!("a scan of {length} from {start} gave {count} records"));
        }
        Ok(problem)
    }
}
