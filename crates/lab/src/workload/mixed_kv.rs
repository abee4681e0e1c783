//! A mix of gets and puts of whole documents by key, after basho_bench: N clients, each doing as much as it can or all
//! together a fixed number of operations per second, with generators of keys and of values.
//!
//! Every document carries a checksum and a version. A get must find it whole, and never older than what had been
//! acknowledged before the get began.

use std::sync::atomic::{AtomicBool, Ordering};

use serde::Deserialize;
use sheaf_bson::{RawDoc, doc};

use super::contents::Contents;
use super::findings::Findings;
use super::versions::Versions;
use super::{Figure, Workload, endure, load};
use crate::client::{Collection, WriteConcern};
use crate::context::{Context, Group, Worker};
use crate::error::{Error, Result};
use crate::experiment::Settings;
use crate::generate::document::{self, DocumentMaker};
use crate::generate::keys::{Distribution, KeyChooser};
use crate::generate::{Random, Sequence, Sizes};
use crate::measure::Ticket;
use crate::results::Check;

/// Settings of the workload.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Own {
    clients: u32,
    /// Documents that are there at the start, at full scale.
    keys: u64,
    /// How keys are chosen: see [`Distribution`].
    key_generator: String,
    /// How long values are: see [`Sizes`].
    value_generator: String,
    weights: Weights,
    concern: String,
    /// Part of each value that a compressor can remove.
    compressible: f64,
    database: String,
}

/// How often each operation is done, in relation to the others.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "weights, as in {get: 10, put: 1}")]
struct Weights {
    /// Reads a document.
    get: u32,
    /// Replaces a document.
    put: u32,
    /// Adds a document with the next key.
    insert: u32,
}

impl Default for Weights {
    fn default() -> Self {
        Weights { get: 10, put: 1, insert: 0 }
    }
}

const OPERATIONS: [&str; 3] = ["get", "put", "insert"];
const COLLECTION: &str = "kv";

/// See the module.
#[derive(Default)]
pub struct MixedKv {
    own: Option<Parsed>,
    state: Option<State>,
    findings: Findings,
}

#[derive(Clone, Debug)]
struct Parsed {
    own: Own,
    keys: Distribution,
    sizes: Sizes,
    collection: Collection,
}

struct State {
    loaded: u64,
    sequence: Sequence,
    versions: Versions,
    /// An insert failed, and may be there or not.
    unknown: AtomicBool,
}

impl MixedKv {
    fn parsed(&self) -> Result<&Parsed> {
        self.own.as_ref().ok_or_else(|| Error::failed("the workload has no settings"))
    }

    fn state(&self) -> Result<&State> {
        self.state.as_ref().ok_or_else(|| Error::failed("the workload was not set up"))
    }
}

impl Workload for MixedKv {
    fn configure(&mut self, settings: &Settings) -> Result<()> {
        let own: Own = settings.parse()?;
        let Weights { get, put, insert } = own.weights;
        if own.clients == 0 || own.keys == 0 || get + put + insert == 0 {
            return Err(Error::usage("mixed-kv needs clients, keys and weights"));
        }
        let concern = WriteConcern::parse(&own.concern).map_err(Error::usage)?;
        self.own = Some(Parsed {
            keys: own.key_generator.parse().map_err(Error::usage)?,
            sizes: own.value_generator.parse().map_err(Error::usage)?,
            collection: Collection::new(&own.database, COLLECTION).with_concern(&concern),
            own,
        });
        Ok(())
    }

    fn setup(&mut self, context: &Context) -> Result<()> {
        let parsed = self.parsed()?;
        let mut client = context.connect()?;
        client.drop_collection(&parsed.collection)?;
        context.admin(&mut client, &parsed.own.database, &doc! { "create": COLLECTION })?;
        let loaded = context.scaled(parsed.own.keys);
        let into = Collection::new(&parsed.own.database, COLLECTION);
        load::fill(context, &into.into(), 0..loaded as i64, || {
            let mut maker = DocumentMaker::new(context.seed, parsed.own.compressible);
            move |bytes: &mut Vec<u8>, key: i64| {
                // The size follows from the key, whoever loads it.
                let size =
                    parsed.sizes.next(&mut Random::new(context.seed ^ crate::generate::mix(key as u64)));
                maker.append(bytes, key, 0, size, |_| {});
            }
        })?;
        let acknowledged = parsed.collection.write_concern.acknowledged();
        self.state = Some(State {
            loaded,
            sequence: Sequence::new(loaded),
            versions: Versions::new(loaded, acknowledged),
            unknown: AtomicBool::new(false),
        });
        Ok(())
    }

    fn run(&mut self, context: &Context) -> Result<()> {
        let (parsed, state) = (self.parsed()?, self.state()?);
        let clients = parsed.own.clients;
        let group = Group::new("client", clients, |worker| {
            let mut client = KvClient {
                parsed,
                state,
                findings: &self.findings,
                chooser: KeyChooser::new(parsed.keys, worker.index as usize, clients as usize),
                maker: DocumentMaker::new(context.seed ^ u64::from(worker.index), parsed.own.compressible),
                bytes: Vec::new(),
            };
            client.work(worker)
        });
        context.run(&[group]).map(drop)
    }

    fn check(&mut self, context: &Context) -> Result<Vec<Check>> {
        let (parsed, state) = (self.parsed()?, self.state()?);
        let mut client = context.connect()?;
        let keys = 0..state.sequence.taken() as i64;
        let stale = Findings::default();
        let contents = Contents::read(&mut client, &parsed.collection, keys, |key, version, _| {
            if (key as u64) < state.loaded {
                let key = key as u64;
                let problem = state.versions.judge(key, state.versions.floor(key), version);
                problem.into_iter().for_each(|problem| stale.add(format!("document {key}: {problem}")));
            }
            None
        })?;
        // Inserts that failed may be there or not; of the others each must be.
        let acknowledged = !state.unknown.load(Ordering::Relaxed);
        let mut checks = vec![
            contents.check_whole(),
            stale.check(
                "newest versions",
                format!("after {} puts no document is older", state.versions.issued()),
            ),
            self.findings.check("gets", match endure::reads_may_be_old(context) {
                false => "each found its document whole and not older than was acknowledged",
                true => "each found its document whole; a primary that was replaced may have shown an older one",
            }),
        ];
        if acknowledged {
            checks.push(contents.check_complete());
        }
        Ok(checks)
    }

    fn metrics(&self, context: &Context) -> Vec<Figure> {
        let Some(Parsed { own: Own { weights, .. }, .. }) = &self.own else { return Vec::new() };
        let measured = context.measured();
        let total: f64 = OPERATIONS.iter().map(|name| measured.rate(name)).sum();
        let mut figures = vec![Figure::higher("operations/s", "1/s", total)];
        let mut done = Vec::new();
        for (name, weight) in OPERATIONS.into_iter().zip([weights.get, weights.put, weights.insert]) {
            if weight == 0 {
                continue;
            }
            let totals = measured.operation(name);
            figures.push(Figure::higher(format!("{name}/s"), "1/s", measured.rate(name)));
            for (label, percentile) in [("median", 50.0), ("p99", 99.0), ("p99.9", 99.9)] {
                figures.push(Figure::lower(
                    format!("{name} {label}"),
                    "us",
                    totals.percentile_us(percentile),
                ));
            }
            done.push(name);
        }
        figures.extend(super::stalls(context, &done, measured.seconds));
        figures
    }

    fn looks_for_stalls(&self) -> bool {
        true
    }
}

/// One client.
struct KvClient<'a> {
    parsed: &'a Parsed,
    state: &'a State,
    findings: &'a Findings,
    chooser: KeyChooser,
    maker: DocumentMaker,
    bytes: Vec<u8>,
}

impl KvClient<'_> {
    fn work(&mut self, worker: &mut Worker<'_>) -> Result<()> {
        let Weights { get, put, insert } = self.parsed.own.weights;
        while let Some(ticket) = worker.next() {
            match worker.random.weighted(&[get, put, insert]) {
                0 => self.get(worker, ticket)?,
                1 => self.put(worker, ticket)?,
                _ => self.insert(worker, ticket)?,
            }
        }
        if !self.parsed.collection.write_concern.acknowledged() {
            // Answered when everything before it was worked off, so that the check sees all of it.
            worker.client().command("admin", &doc! { "ping": 1 })?;
        }
        Ok(())
    }

    fn get(&mut self, worker: &mut Worker<'_>, ticket: Ticket) -> Result<()> {
        let State { sequence, versions, loaded, .. } = self.state;
        let key = self.chooser.next(&mut worker.random, sequence.limit());
        let may_be_old = endure::reads_may_be_old(worker.context());
        let floor = if key < *loaded && !may_be_old { versions.floor(key) } else { 0 };
        let problem = match worker.client().find_by_id(&self.parsed.collection, key as i64) {
            Err(error) => return worker.endured("get", ticket, error),
            Ok(None) if may_be_old && key >= *loaded => None,
            Ok(None) => Some("not found".to_owned()),
            Ok(Some(found)) => match document::verify(found, key as i64) {
                Err(wrong) => Some(wrong.to_string()),
                Ok(version) if key < *loaded => versions.judge(key, floor, version),
                Ok(_) => None,
            },
        };
        match problem {
            None => worker.done("get", ticket),
            Some(problem) => {
                self.findings.add(format!("document {key}: {problem}"));
                worker.failed("get", ticket);
            }
        }
        Ok(())
    }

    fn put(&mut self, worker: &mut Worker<'_>, ticket: Ticket) -> Result<()> {
        let State { versions, loaded, .. } = self.state;
        let key = self.chooser.next(&mut worker.random, *loaded);
        let writing = versions.begin(key);
        self.make(worker, key as i64, writing.version);
        let mut update = worker.client().update(&self.parsed.collection);
        update.push(|statement| {
            statement.document("q").append("_id", key as i64);
            statement.append("u", RawDoc::new(&self.bytes));
        });
        let matched = match update.send() {
            Ok(written) => written.n,
            Err(error) => return worker.endured("put", ticket, error),
        };
        if matched == 1 {
            versions.finish(writing);
            worker.done("put", ticket);
        } else {
            self.findings.add(format!("document {key}: a put matched {matched} documents"));
            worker.failed("put", ticket);
        }
        Ok(())
    }

    fn insert(&mut self, worker: &mut Worker<'_>, ticket: Ticket) -> Result<()> {
        let key = self.state.sequence.take();
        self.make(worker, key as i64, 0);
        let mut insert = worker.client().insert(&self.parsed.collection);
        insert.push_raw(RawDoc::new(&self.bytes));
        if let Err(error) = insert.send() {
            self.state.unknown.store(true, Ordering::Relaxed);
            return worker.endured("insert", ticket, error);
        }
        // Without an acknowledgement nobody may look for it before the end.
        if self.parsed.collection.write_concern.acknowledged() {
            self.state.sequence.acknowledge(key);
        }
        worker.done("insert", ticket);
        Ok(())
    }

    fn make(&mut self, worker: &mut Worker<'_>, key: i64, version: i64) {
        let size = self.parsed.sizes.next(&mut worker.random);
        self.bytes.clear();
        self.maker.append(&mut self.bytes, key, version, size, |_| {});
    }
}
