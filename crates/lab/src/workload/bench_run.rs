//! Large documents, six queries to one update, and clients doubled from step to step: how reads and writes per second
//! grow with the number of clients, and where they stop.
//!
//! An update increments a counter in a document of 512 KB. After the run the counters together must be exactly the
//! updates that were acknowledged, and every document must still fit its checksum.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::Deserialize;
use sheaf_bson::doc;

use super::contents::Contents;
use super::findings::Findings;
use super::{Figure, Workload, load};
use crate::client::{Collection, WriteConcern};
use crate::context::{Context, Group, Worker};
use crate::error::{Error, Result};
use crate::experiment::Settings;
use crate::generate::document::{self, DocumentMaker};
use crate::generate::keys::{Distribution, KeyChooser};
use crate::results::{Check, Step};

/// Settings of the workload.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Own {
    /// Documents at full scale; at least one for each client in any run.
    documents: u64,
    document_bytes: usize,
    /// Numbers of clients, one step each. The experiment's phases are those of every step.
    clients: Vec<u32>,
    /// Queries per update.
    queries: u32,
    updates: u32,
    /// How keys are chosen: see [`Distribution`].
    key_generator: String,
    concern: String,
    /// Part of each document that a compressor can remove.
    compressible: f64,
    database: String,
}

/// See the module.
#[derive(Default)]
pub struct BenchRun {
    own: Option<(Own, Distribution, Collection)>,
    documents: u64,
    updated: AtomicU64,
    /// Updates whose outcome nobody knows.
    open: AtomicU64,
    findings: Findings,
    steps: Vec<Step>,
}

const COLLECTION: &str = "benchrun";

impl BenchRun {
    fn own(&self) -> Result<&(Own, Distribution, Collection)> {
        self.own.as_ref().ok_or_else(|| Error::failed("the workload has no settings"))
    }
}

impl Workload for BenchRun {
    fn configure(&mut self, settings: &Settings) -> Result<()> {
        let own: Own = settings.parse()?;
        if own.documents == 0
            || own.clients.is_empty()
            || own.clients.contains(&0)
            || own.queries + own.updates == 0
        {
            return Err(Error::usage(
                "bench-run needs documents, steps of at least one client, and operations",
            ));
        }
        let concern = WriteConcern::parse(&own.concern).map_err(Error::usage)?;
        let keys = own.key_generator.parse().map_err(Error::usage)?;
        let collection = Collection::new(&own.database, COLLECTION).with_concern(&concern);
        self.own = Some((own, keys, collection));
        Ok(())
    }

    fn setup(&mut self, context: &Context) -> Result<()> {
        let (own, _, collection) = self.own()?;
        let most = own.clients.iter().copied().max().unwrap_or(1);
        let documents = context.scaled(own.documents).max(u64::from(most).min(own.documents));
        let mut client = context.connect()?;
        client.drop_collection(collection)?;
        context.admin(&mut client, &own.database, &doc! { "create": COLLECTION })?;
        let into = Collection::new(&own.database, COLLECTION);
        load::fill(context, &into.into(), 0..documents as i64, || {
            let mut maker = DocumentMaker::new(context.seed, own.compressible);
            move |bytes: &mut Vec<u8>, key: i64| {
                maker.append(bytes, key, 0, own.document_bytes, |document| {
                    document.append("updates", 0i64);
                });
            }
        })?;
        self.documents = documents;
        Ok(())
    }

    fn run(&mut self, context: &Context) -> Result<()> {
        let mut steps = Vec::new();
        for &clients in &self.own()?.0.clients {
            let group = Group::new("client", clients, |worker| self.work(worker, clients));
            let step = context.run(&[group])?.step();
            context.add_step(step.clone());
            steps.push(step);
        }
        self.steps = steps;
        Ok(())
    }

    fn check(&mut self, context: &Context) -> Result<Vec<Check>> {
        let (_, _, collection) = self.own()?;
        let mut client = context.connect()?;
        let mut counted = 0;
        let contents = Contents::read(
            &mut client,
            collection,
            0..self.documents as i64,
            |_, _, document| match document.get("updates").and_then(|n| n.as_exact_i64()) {
                Some(n) => {
                    counted += n;
                    None
                }
                None => Some("the counter is missing".to_owned()),
            },
        )?;
        let (sent, open) = (self.updated.load(Ordering::Relaxed), self.open.load(Ordering::Relaxed));
        let counted = u64::try_from(counted).unwrap_or(0);
        let updates = Check {
            name: "updates".to_owned(),
            passed: (sent..=sent + open).contains(&counted),
            detail: format!(
                "the documents count {counted} updates, {sent} were made and {open} may have been"
            ),
        };
        let queries = self.findings.check("queries", "each found its document whole");
        Ok(vec![contents.check_whole(), contents.check_complete(), updates, queries])
    }

    fn metrics(&self, _: &Context) -> Vec<Figure> {
        let mut figures = Vec::new();
        for (operation, label) in [("query", "reads/s"), ("update", "writes/s")] {
            let rates =
                || self.steps.iter().filter_map(|step| Some((step.clients, step.rates.get(operation)?)));
            // The steps themselves have a table of their own.
            if let Some((clients, best)) = rates().max_by(|a, b| a.1.average.total_cmp(&b.1.average)) {
                figures.push(Figure::higher(format!("best {label}"), "1/s", best.average));
                figures.push(Figure::plain(format!("clients at best {label}"), "", f64::from(clients)));
            }
        }
        figures
    }
}

impl BenchRun {
    fn work(&self, worker: &mut Worker<'_>, clients: u32) -> Result<()> {
        let (own, keys, collection) = self.own()?;
        let mut chooser = KeyChooser::new(*keys, worker.index as usize, clients as usize);
        while let Some(ticket) = worker.next() {
            let key = chooser.next(&mut worker.random, self.documents) as i64;
            if worker.random.weighted(&[own.queries, own.updates]) == 0 {
                let problem = match worker.client().find_by_id(collection, key) {
                    Ok(Some(found)) => document::verify(found, key).err().map(|wrong| wrong.to_string()),
                    Ok(None) => Some("not found".to_owned()),
                    Err(error) => {
                        worker.endured("query", ticket, error)?;
                        continue;
                    }
                };
                match problem {
                    None => worker.done("query", ticket),
                    Some(problem) => {
                        self.findings.add(format!("document {key}: {problem}"));
                        worker.failed("query", ticket);
                    }
                }
                continue;
            }
            let mut update = worker.client().update(collection);
            update.push(|statement| {
                statement.document("q").append("_id", key);
                statement.document("u").document("$inc").append("updates", 1i64);
            });
            match update.send() {
                Ok(_) => {
                    self.updated.fetch_add(1, Ordering::Relaxed);
                    worker.done("update", ticket);
                }
                Err(error) => {
                    self.open.fetch_add(1, Ordering::Relaxed);
                    worker.endured("update", ticket, error)?;
                }
            }
        }
        if !collection.write_concern.acknowledged() {
            worker.client().command("admin", &doc! { "ping": 1 })?;
        }
        Ok(())
    }
}
