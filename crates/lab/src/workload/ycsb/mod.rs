//! The workloads of the Yahoo! Cloud Serving Benchmark by their published definitions: records of ten fields of 100
//! bytes under keys that a hash has spread, and a mix of reads, updates of one field, inserts, scans and
//! read-modify-writes. What the letters A to F mean is in the experiments' files.
//!
//! Every field says which version it is and can be checked ([`record`]), so every read is.

mod at_size;
mod client;
mod record;

use std::sync::atomic::{AtomicBool, Ordering};

use serde::Deserialize;
use sheaf_bson::doc;

pub use self::at_size::AtSize;
use self::client::YcsbClient;
use self::record::Maker;
use super::findings::Findings;
use super::versions::Versions;
use super::{Figure, Workload, endure, load};
use crate::client::{Collection, WriteConcern};
use crate::context::{Context, Group};
use crate::error::{Error, Result};
use crate::experiment::Settings;
use crate::generate::Sequence;
use crate::generate::keys::{Distribution, KeyChooser};
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
#[serde(deny_unknown_fields, default, expecting = "weights, as in {read: 50, update: 50}")]
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
    /// What each of [`OPERATIONS`] is called in the results.
    names: [String; 5],
}

struct State {
    loaded: u64,
    sequence: Sequence,
    versions: Versions,
    maker: Maker,
    /// An insert failed, and may be there or not.
    unknown: AtomicBool,
}

impl Parsed {
    /// With what comes before the operations' names.
    fn new(own: Own, prefix: &str) -> Result<Parsed> {
        let weights = own.weights.in_order();
        if own.records == 0 || own.clients == 0 || weights.iter().all(|&w| w == 0) || own.longest_scan == 0 {
            return Err(Error::usage("ycsb needs records, clients, weights, and scans of at least 1"));
        }
        if own.fields == 0 || own.field_bytes < record::LEAST_BYTES {
            return Err(Error::usage(format!("fields must have at least {} bytes", record::LEAST_BYTES)));
        }
        let concern = WriteConcern::parse(&own.concern).map_err(Error::usage)?;
        Ok(Parsed {
            keys: own.key_generator.parse().map_err(Error::usage)?,
            collection: Collection::new(&own.database, COLLECTION).with_concern(&concern),
            names: OPERATIONS.map(|name| format!("{prefix}{name}")),
            own,
        })
    }

    /// The clients that do what it says.
    fn group<'a>(&'a self, state: &'a State, findings: &'a Findings) -> Group<'a> {
        let clients = self.own.clients;
        Group::new("client", clients, move |worker| {
            let chooser = KeyChooser::new(self.keys, worker.index as usize, clients as usize);
            YcsbClient { parsed: self, state, findings, chooser, bytes: Vec::new() }.work(worker)
        })
    }
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
        self.own = Some(Parsed::new(settings.parse()?, "")?);
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
        self.state = Some(State::new(loaded, maker, parsed.collection.write_concern.acknowledged()));
        Ok(())
    }

    fn run(&mut self, context: &Context) -> Result<()> {
        let (parsed, state) = (self.parsed()?, self.state()?);
        context.run(&[parsed.group(state, &self.findings)]).map(drop)
    }

    fn check(&mut self, context: &Context) -> Result<Vec<Check>> {
        let (parsed, state) = (self.parsed()?, self.state()?);
        checked(context, &parsed.own.database, state, &self.findings)
    }

    fn metrics(&self, context: &Context) -> Vec<Figure> {
        let Some(parsed) = &self.own else { return Vec::new() };
        let measured = context.measured();
        let total: f64 = OPERATIONS.iter().map(|name| measured.rate(name)).sum();
        let weights = parsed.own.weights.in_order();
        let done: Vec<&str> = OPERATIONS
            .into_iter()
            .zip(weights)
            .filter(|(_, weight)| *weight > 0)
            .map(|(name, _)| name)
            .collect();
        let mut figures = vec![Figure::higher("operations/s", "1/s", total)];
        for name in &done {
            figures.extend(super::latencies(&measured, &[(*name, *name)], &[50.0, 99.0]));
        }
        figures.extend(super::stalls(context, &done, measured.seconds));
        figures
    }

    fn looks_for_stalls(&self) -> bool {
        true
    }
}

impl State {
    fn new(loaded: u64, maker: Maker, acknowledged: bool) -> State {
        State {
            loaded,
            sequence: Sequence::new(loaded),
            versions: Versions::new(loaded, acknowledged),
            maker,
            unknown: AtomicBool::new(false),
        }
    }
}

/// Reads all records, and judges them and what the clients have found.
fn checked(context: &Context, database: &str, state: &State, findings: &Findings) -> Result<Vec<Check>> {
    let mut client = context.connect()?;
    let (contents, stale) = (Findings::default(), Findings::default());
    let mut found = vec![false; state.sequence.taken() as usize];
    client.for_each(database, &doc! { "find": COLLECTION }, |record| {
        match state.maker.verify(record) {
            Err(wrong) => contents.add(wrong),
            Ok((key, version)) => match found.get_mut(key as usize) {
                Some(seen) if !*seen => {
                    *seen = true;
                    let floor = if key < state.loaded { state.versions.floor(key) } else { 0 };
                    if version < floor {
                        stale.add(format!("record {key} is of version {version}, {floor} was acknowledged"));
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
    let must_be_there = if unknown { state.loaded.max(state.sequence.limit()) as usize } else { found.len() };
    for (key, _) in found[..must_be_there].iter().enumerate().filter(|(_, found)| !**found) {
        missing.add(format!("record {key} is missing"));
    }
    Ok(vec![
        contents.check("contents", "every field of every record is whole"),
        missing.check("count", format!("all {must_be_there} records are there")),
        stale.check("newest versions", format!("after {} updates none is older", state.versions.issued())),
        findings.check(
            "reads",
            match endure::reads_may_be_old(context) {
                false => "each found its records whole and not older than was acknowledged",
                true => "each found its records whole; a primary that was replaced may have shown older ones",
            },
        ),
    ])
}

impl Weights {
    fn in_order(&self) -> [u32; 5] {
        [self.read, self.update, self.insert, self.scan, self.read_modify_write]
    }
}

#[cfg(test)]
mod tests;
