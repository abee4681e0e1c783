//! Six writers fill a collection of a replica set, while others read each batch back from secondaries as soon as it was
//! acknowledged (without acknowledgements: sent): the share of documents that are there by then, as they were written, is
//! what the write concern buys. Afterwards everything is read once more, from the primary alone.
//!
//! A reader always takes the newest batch that nobody has read, so that it never reads what has been there for long.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Deserialize;
use sheaf_bson::doc;

use super::batches::{self, Batches};
use super::endure;
use super::findings::Findings;
use super::placing::ShardKey;
use super::{Figure, Workload};
use crate::client::{Client, Collection, ReadPreference, W, WriteConcern};
use crate::context::{Context, Group, Worker};
use crate::error::{Error, Result};
use crate::experiment::Settings;
use crate::generate::document;
use crate::measure::{Load, Span};
use crate::part::parts_of;
use crate::results::Check;

/// Settings of the workload.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Own {
    /// Documents at full scale.
    documents: u64,
    document_bytes: usize,
    /// Documents per insert command.
    batch: u64,
    writers: u32,
    readers: u32,
    /// "w:0" (normal), "w:1" (safe), "w:2", "w:5".
    concern: String,
    /// "j:false" or "j:true"; nothing is said with `w:0`, which waits for nothing.
    journal: bool,
    capped: bool,
    /// Size of a capped collection as a part of the data that are written to it.
    capped_part: f64,
    /// Part of each document that a compressor can remove.
    compressible: f64,
    database: String,
    /// In a sharded cluster: how the collection is spread by `_id`. Without it, it lies on one shard.
    #[serde(default)]
    shard_key: Option<ShardKey>,
}

/// See the module.
#[derive(Default)]
pub struct MostReplicaSet {
    own: Option<Own>,
    concern: WriteConcern,
    /// Whether the write concern asks every member that holds data.
    asks_all: bool,
    documents: u64,
    batches: Batches,
    /// Batches that were written and not yet read, the newest last.
    fresh: Mutex<Vec<u64>>,
    /// Writers that are still at work.
    busy: AtomicU32,
    secondaries: Reads,
    primary: Reads,
    written_s: f64,
    torn: Findings,
    early: Findings,
}

/// What the readers found.
#[derive(Debug, Default)]
struct Reads {
    found: AtomicU64,
    missing: AtomicU64,
    bytes: AtomicU64,
    /// Seconds that it took, in microseconds.
    took_us: AtomicU64,
}

impl Reads {
    fn took(&self, since: Instant) {
        self.took_us.fetch_max(since.elapsed().as_micros() as u64, Ordering::Relaxed);
    }

    fn megabytes_per_second(&self) -> f64 {
        megabytes(
            self.bytes.load(Ordering::Relaxed) as f64,
            self.took_us.load(Ordering::Relaxed) as f64 / 1e6,
        )
    }

    fn consistent_percent(&self) -> f64 {
        let (found, missing) = (self.found.load(Ordering::Relaxed), self.missing.load(Ordering::Relaxed));
        found as f64 * 100.0 / (found + missing).max(1) as f64
    }
}

fn megabytes(bytes: f64, seconds: f64) -> f64 {
    if seconds > 0.0 { bytes / (1 << 20) as f64 / seconds } else { 0.0 }
}

const COLLECTION: &str = "most";
/// Data of which the members' hashes are still compared.
const HASHED_BYTES: u64 = 1 << 30;

impl MostReplicaSet {
    fn own(&self) -> Result<&Own> {
        self.own.as_ref().ok_or_else(|| Error::failed("the workload has no settings"))
    }

    fn collection(&self, own: &Own) -> Collection {
        Collection::new(&own.database, COLLECTION).with_concern(&self.concern)
    }

    fn capped_bytes(&self, own: &Own) -> u64 {
        let data = self.documents as f64 * own.document_bytes as f64;
        // Room for a batch even in the smallest run.
        (data * own.capped_part).max((own.batch * 2 * own.document_bytes as u64) as f64) as u64
    }

    fn read_fresh(&self, worker: &mut Worker<'_>, own: &Own, began: Instant) -> Result<()> {
        let to = worker.context().mongodb()?.reading(ReadPreference::SecondaryPreferred);
        let mut client = Client::connect(&to)?;
        let collection = self.collection(own);
        while !worker.stopping() {
            let batch = self.fresh.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let Some(batch) = batch else {
                if self.busy.load(Ordering::SeqCst) == 0 {
                    break;
                }
                std::thread::sleep(Duration::from_micros(200));
                continue;
            };
            for key in self.batches.keys_of(batch) {
                if !self.read_one(
                    worker,
                    &mut client,
                    &collection,
                    key,
                    "read of a secondary",
                    &self.secondaries,
                )? {
                    self.early
                        .add(format!("document {key} was acknowledged by all members and not found on one"));
                }
            }
            self.secondaries.took(began);
            if self.busy.load(Ordering::SeqCst) == 0 {
                // What is left was written long ago.
                break;
            }
        }
        Ok(())
    }

    /// Reads everything that must be there, the newest first.
    fn read_again(&self, worker: &mut Worker<'_>, own: &Own, began: Instant) -> Result<()> {
        let collection = self.collection(own);
        let to = worker.context().mongodb()?.reading(ReadPreference::Primary);
        let mut client = Client::connect(&to)?;
        while let Some(ticket) = worker.next() {
            let key = self.documents as i64 - ticket.number as i64;
            self.read_one(worker, &mut client, &collection, key, "read of the primary", &self.primary)?;
        }
        self.primary.took(began);
        Ok(())
    }

    fn read_one(
        &self,
        worker: &mut Worker<'_>,
        client: &mut Client,
        from: &Collection,
        key: i64,
        operation: &str,
        reads: &Reads,
    ) -> Result<bool> {
        let ticket = crate::measure::Ticket { number: 0, due: Instant::now(), measured: true };
        let found = client.find_by_id(from, key)?;
        match found.map(|found| (document::verify(found, key), found.len())) {
            Some((Ok(_), length)) => {
                reads.found.fetch_add(1, Ordering::Relaxed);
                reads.bytes.fetch_add(length as u64, Ordering::Relaxed);
                worker.done(operation, ticket);
                Ok(true)
            }
            Some((Err(wrong), _)) => {
                self.torn.add(format!("document {key}: {wrong}"));
                worker.failed(operation, ticket);
                Ok(true)
            }
            None => {
                reads.missing.fetch_add(1, Ordering::Relaxed);
                worker.done("read of what is not there", ticket);
                Ok(false)
            }
        }
    }
}

impl Workload for MostReplicaSet {
    fn configure(&mut self, settings: &Settings) -> Result<()> {
        let own: Own = settings.parse()?;
        self.concern = WriteConcern::parse(&own.concern).map_err(Error::usage)?;
        if self.concern.acknowledged() {
            self.concern.j = Some(own.journal);
        }
        if own.writers == 0
            || own.writers > batches::MOST_WRITERS
            || own.readers == 0
            || own.batch == 0
            || own.documents == 0
        {
            return Err(Error::usage("most-replicaset needs documents, a batch size, writers and readers"));
        }
        if own.capped && own.shard_key.is_some() {
            return Err(Error::usage("a capped collection cannot be sharded"));
        }
        if own.capped_part.is_nan()
            || own.capped_part <= 0.0
            || own.batch as usize * own.document_bytes > 47_000_000
        {
            return Err(Error::usage(
                "capped_part must be more than 0, and a batch fit in a message of 48 MB",
            ));
        }
        self.own = Some(own);
        Ok(())
    }

    fn setup(&mut self, context: &Context) -> Result<()> {
        let own = self.own()?.clone();
        self.documents = context.scaled(own.documents);
        self.batches = Batches::new(self.documents, own.batch, own.document_bytes);
        // Of each shard, where there are several.
        let sets = parts_of(context.data_members().map(|member| member.part)).len().max(1);
        let members = context.data_members().count() / sets;
        self.asks_all = matches!(self.concern.w, Some(W::Nodes(n)) if members > 0 && n as usize >= members);
        let mut client = context.connect()?;
        client.drop_collection(&self.collection(&own))?;
        let mut create = doc! { "create": COLLECTION };
        if own.capped {
            create.append("capped", true).append("size", self.capped_bytes(&own) as i64);
        }
        // Whoever reads from a secondary is to find the collection.
        create.append("writeConcern", doc! { "w": "majority" }.as_raw());
        context.admin(&mut client, &own.database, &create)?;
        ShardKey::spread(own.shard_key, context, &mut client, &self.collection(&own)).map(drop)
    }

    fn run(&mut self, context: &Context) -> Result<()> {
        let own = self.own()?.clone();
        self.busy.store(own.writers, Ordering::SeqCst);
        let (began, written) = (Instant::now(), AtomicU64::new(0));
        let this = &*self;
        context.run(&[
            Group::new("writer", own.writers, |worker| {
                let outcome = this.batches.write(worker, &this.collection(&own), own.compressible, |batch| {
                    this.fresh.lock().unwrap_or_else(PoisonError::into_inner).push(batch);
                });
                written.fetch_max(began.elapsed().as_micros() as u64, Ordering::Relaxed);
                this.busy.fetch_sub(1, Ordering::SeqCst);
                outcome
            })
            .load(Load::closed(Span::Operations(this.batches.len()))),
            Group::new("reader", own.readers, |worker| this.read_fresh(worker, &own, began))
                .load(Load::unbounded())
                .without_client(),
        ])?;
        let again = Instant::now();
        // Of a capped collection only what has room for certain.
        let share = if own.capped {
            self.capped_bytes(&own) * 8 / 10 / own.document_bytes as u64
        } else {
            self.documents
        };
        let load = Load::closed(Span::Operations(share.clamp(1, self.documents)));
        let this = &*self;
        context.run(&[Group::new("reader", own.readers, |worker| this.read_again(worker, &own, again))
            .load(load)
            .without_client()])?;
        self.written_s = written.into_inner() as f64 / 1e6;
        Ok(())
    }

    fn check(&mut self, context: &Context) -> Result<Vec<Check>> {
        let own = self.own()?;
        let mut client = context.connect()?;
        let contents = self.batches.read(&mut client, &self.collection(own))?;
        let mut checks = vec![contents.check_whole()];
        if own.capped {
            checks.push(self.batches.check_newest(&contents, self.capped_bytes(own)));
        } else {
            checks.push(contents.check_complete());
        }
        let count = |n: &AtomicU64| n.load(Ordering::Relaxed);
        checks.push(self.torn.check(
            "reads",
            format!(
                "{} on secondaries and {} on the primary were whole",
                count(&self.secondaries.found),
                count(&self.primary.found)
            ),
        ));
        if self.asks_all && !own.capped {
            let fine = "what all members acknowledged was found on each".to_owned();
            checks.push(self.early.check("acknowledged by all", fine));
        }
        if self.documents * own.document_bytes as u64 <= HASHED_BYTES {
            checks.extend(endure::members_hold_the_same(context, &own.database)?);
        }
        Ok(checks)
    }

    fn metrics(&self, context: &Context) -> Vec<Figure> {
        let Some(own) = &self.own else { return Vec::new() };
        let measured = context.measured();
        let data = self.documents as f64 * own.document_bytes as f64;
        let mut figures = vec![
            Figure::higher("MB/s written", "MB/s", megabytes(data, self.written_s)),
            Figure::higher("MB/s read from secondaries", "MB/s", self.secondaries.megabytes_per_second()),
            Figure::plain("consistent", "%", self.secondaries.consistent_percent()),
            Figure::higher("MB/s read from the primary", "MB/s", self.primary.megabytes_per_second()),
        ];
        let operations = [("insert", "batch"), ("read of a secondary", "read")];
        figures.extend(super::latencies(&measured, &operations, &[50.0, 99.0]));
        figures
    }
}
