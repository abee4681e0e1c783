//! Millions of small records into one collection, from a generator or a file, as fast as they go.
//!
//! `order: ascending` inserts by increasing `_id`; `order: hashed` by keys that a hash has spread, so that every insert
//! is somewhere else. Afterwards the collection is read whole: the count, and a checksum over every byte of every
//! document, must be what was sent. In a sharded cluster it is also seen how long the shards take until they hold equal parts.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use serde::Deserialize;
use sheaf_bson::{DocBuf, ObjectIdGenerator, RawDoc, Value, doc, hashed_index_value};

use super::evenness::{self, Evenness};
use super::figure::AFTER_FIRST;
use super::placing::{self, ShardKey};
use super::{Figure, Workload};
use crate::client::{Collection, WriteConcern};
use crate::context::{Context, Group, Worker};
use crate::error::{Error, Result};
use crate::experiment::Settings;
use crate::generate::files::{Format, Records};
use crate::generate::records::{self, Tally};
use crate::measure::{Load, Span};
use crate::results::Check;

/// Settings of the workload.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Own {
    /// Records of the generator at full scale; of a file all are taken, whatever the scale.
    records: u64,
    /// A file of records instead of the generator.
    #[serde(default)]
    file: Option<PathBuf>,
    /// "ndjson", "csv" or "bson"; by default the file's name says it.
    #[serde(default)]
    format: Option<String>,
    order: Order,
    /// Records per insert command.
    batch: u64,
    clients: u32,
    concern: String,
    /// What to do about a record of a file that cannot be read.
    #[serde(default)]
    bad_records: BadRecords,
    database: String,
    /// In a sharded cluster: how the collection is spread by `_id`.
    #[serde(default)]
    shard_key: Option<ShardKey>,
    /// In a sharded cluster: whether the ranges are cut and placed by hand before the import, with the balancer off.
    #[serde(default)]
    tuned: bool,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Order {
    /// By increasing key; of a file: as they come.
    Ascending,
    /// By keys spread by a hash; of a file: the hash of what was `_id`, which becomes the field `key`.
    Hashed,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum BadRecords {
    /// The first one ends the run.
    #[default]
    Fail,
    /// They are left out and reported.
    Skip,
}

/// See the module.
#[derive(Default)]
pub struct BulkImport {
    own: Option<(Own, Collection)>,
    sent: Mutex<Tally>,
    /// Records that were acknowledged later than [`FIRST`].
    late: AtomicU64,
    /// The collection is sharded.
    sharded: bool,
    evenness: Option<Evenness>,
}

/// Seconds after which an import into a sharded collection should go at full speed.
const FIRST: f64 = 3.0;

const COLLECTION: &str = "imported";
/// Largest batch in bytes, whatever its number of records.
const BATCH_BYTES: usize = 16 << 20;

impl BulkImport {
    fn own(&self) -> Result<&(Own, Collection)> {
        self.own.as_ref().ok_or_else(|| Error::failed("the workload has no settings"))
    }
}

impl Workload for BulkImport {
    fn configure(&mut self, settings: &Settings) -> Result<()> {
        let own: Own = settings.parse()?;
        if own.clients == 0
            || own.batch == 0
            || own.batch > 100_000
            || (own.records == 0 && own.file.is_none())
        {
            return Err(Error::usage("bulk-import needs clients, records, and batches of 1 to 100000"));
        }
        if let Some(file) = &own.file {
            format_of(&own, file)?;
        }
        let concern = WriteConcern::parse(&own.concern).map_err(Error::usage)?;
        let collection = Collection::new(&own.database, COLLECTION).with_concern(&concern);
        self.own = Some((own, collection));
        Ok(())
    }

    fn setup(&mut self, context: &Context) -> Result<()> {
        let (own, collection) = self.own()?;
        let mut client = context.connect()?;
        client.drop_collection(collection)?;
        context.admin(&mut client, &own.database, &doc! { "create": COLLECTION })?;
        let sharded = ShardKey::spread(own.shard_key, context, &mut client, collection)?;
        if sharded && own.tuned && own.shard_key == Some(ShardKey::Ranged) {
            let cuts = cuts(own.order, context.scaled(own.records), placing::shard_names(&mut client)?.len());
            placing::pre_split(context, &mut client, collection, &cuts)?;
        }
        self.sharded = sharded;
        Ok(())
    }

    fn run(&mut self, context: &Context) -> Result<()> {
        let (own, collection) = self.own()?;
        let feed = match &own.file {
            None => Feed::Generated {
                total: context.scaled(own.records),
                batch: own.batch,
                seed: context.seed,
                order: own.order,
            },
            Some(file) => {
                let records = Records::open(file, format_of(own, file)?)
                    .map_err(|bad| Error::usage(bad.to_string()))?;
                Feed::File(Box::new(Mutex::new(FileFeed {
                    records,
                    own: own.clone(),
                    ids: ObjectIdGenerator::new(context.seed),
                    skipped: 0,
                    first_skipped: None,
                    ended: false,
                })))
            }
        };
        let measure = match &feed {
            Feed::Generated { total, batch, .. } => Span::Operations(total.div_ceil(*batch)),
            Feed::File(_) => Span::Unbounded,
        };
        let group = Group::new("client", own.clients, |worker| self.import(worker, &feed, collection));
        context.run(&[group.load(Load::closed(measure))])?;
        if let Feed::File(file) = &feed {
            let file = file.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(first) = &file.first_skipped {
                context.warn(format!("{} records were left out: {first}", file.skipped));
            }
        }
        if self.sharded {
            self.evenness = Some(evenness::wait(context, collection)?);
        }
        Ok(())
    }

    fn check(&mut self, context: &Context) -> Result<Vec<Check>> {
        let (own, collection) = self.own()?;
        let sent = *self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        let mut client = context.connect()?;
        let mut found = Tally::default();
        client.for_each(&own.database, &doc! { "find": collection.name.as_str() }, |document| {
            found.add(document);
            Ok(())
        })?;
        Ok(vec![
            Check {
                name: "count".to_owned(),
                passed: found.count == sent.count,
                detail: format!("{} records are there, {} were sent", found.count, sent.count),
            },
            Check {
                name: "checksum of all records".to_owned(),
                passed: found == sent,
                detail: format!(
                    "{:016x} over {} bytes; sent: {:016x} over {} bytes",
                    found.sum, found.bytes, sent.sum, sent.bytes
                ),
            },
        ])
    }

    fn metrics(&self, context: &Context) -> Vec<Figure> {
        let measured = context.measured();
        let sent = *self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        let batch = measured.operation("batch");
        let per_second = |amount: f64| if measured.seconds > 0.0 { amount / measured.seconds } else { 0.0 };
        let mut figures = vec![
            Figure::higher("inserts/s", "1/s", per_second(sent.count as f64)),
            Figure::higher("MB/s", "MB/s", per_second(sent.bytes as f64 / (1 << 20) as f64)),
            Figure::lower("batch p50", "us", batch.percentile_us(50.0)),
            Figure::lower("batch p99", "us", batch.percentile_us(99.0)),
            Figure::lower("batch max", "us", batch.max_us()),
        ];
        if context.mongodb().is_ok_and(|to| to.routed) {
            let late = self.late.load(Ordering::Relaxed) as f64;
            let seconds = measured.seconds - FIRST;
            // Of a shorter run it would say nothing.
            if seconds > FIRST {
                figures.insert(1, Figure::higher(AFTER_FIRST, "1/s", late / seconds));
            }
        }
        if let Some(evenness) = &self.evenness {
            figures.extend(evenness.figures());
        }
        figures
    }
}

impl BulkImport {
    fn import(&self, worker: &mut Worker<'_>, feed: &Feed, collection: &Collection) -> Result<()> {
        let (mut tally, mut batch) = (Tally::default(), Vec::new());
        while let Some(mut ticket) = worker.next() {
            batch.clear();
            feed.next(ticket.number, &mut batch)?;
            if batch.is_empty() {
                break;
            }
            // Making or reading the records is the client's work.
            ticket.due = std::time::Instant::now();
            let mut insert = worker.client().insert(collection);
            for record in &batch {
                insert.push_raw(record.as_raw());
            }
            insert.send()?;
            let origin = worker.context().recorder.origin();
            if origin.is_some_and(|origin| origin.elapsed().as_secs_f64() > FIRST) {
                self.late.fetch_add(batch.len() as u64, Ordering::Relaxed);
            }
            worker.done("batch", ticket);
            if let Feed::Generated { total, batch, .. } = feed {
                worker.context().set_progress((ticket.number + 1) as f64 * *batch as f64 / *total as f64);
            }
            batch.iter().for_each(|record| tally.add(record.as_raw()));
        }
        if !collection.write_concern.acknowledged() {
            // Answered when everything before it was worked off.
            worker.client().command("admin", &doc! { "ping": 1 })?;
        }
        self.sent.lock().unwrap_or_else(PoisonError::into_inner).merge(tally);
        Ok(())
    }
}

/// Pieces for each shard where ranges are cut by hand.
const PIECES: u64 = 4;

/// Where a person who knows the keys cuts them.
fn cuts(order: Order, records: u64, shards: usize) -> Vec<i64> {
    let pieces = PIECES * shards as u64;
    let cut = |at: u64| match order {
        Order::Ascending => (records * at / pieces) as i64,
        // Hashes are spread over all numbers.
        Order::Hashed => (i128::from(i64::MIN) + (1i128 << 64) * i128::from(at) / i128::from(pieces)) as i64,
    };
    (1..pieces).map(cut).collect()
}

/// Where records come from.
enum Feed {
    Generated { total: u64, batch: u64, seed: u64, order: Order },
    File(Box<Mutex<FileFeed>>),
}

struct FileFeed {
    records: Records,
    own: Own,
    ids: ObjectIdGenerator,
    skipped: u64,
    first_skipped: Option<String>,
    ended: bool,
}

impl Feed {
    /// The records of the batch with this number; none when all have been taken.
    fn next(&self, number: u64, batch: &mut Vec<DocBuf>) -> Result<()> {
        match self {
            Feed::Generated { total, batch: size, seed, order } => {
                let first = number * size;
                batch.extend((first..(first + size).min(*total)).map(|n| {
                    let id = if *order == Order::Hashed { records::hashed_id(n) } else { n as i64 };
                    records::generated(*seed, n, id)
                }));
                Ok(())
            }
            Feed::File(file) => file.lock().unwrap_or_else(PoisonError::into_inner).next(batch),
        }
    }
}

impl FileFeed {
    fn next(&mut self, batch: &mut Vec<DocBuf>) -> Result<()> {
        let mut bytes = 0;
        while !self.ended && (batch.len() as u64) < self.own.batch && bytes < BATCH_BYTES {
            match self.records.next() {
                None => self.ended = true,
                Some(Ok(record)) => {
                    let record = with_id(record.as_raw(), self.own.order, &self.ids);
                    bytes += record.as_bytes().len();
                    batch.push(record);
                }
                Some(Err(bad)) if self.own.bad_records == BadRecords::Skip => {
                    self.skipped += 1;
                    self.first_skipped.get_or_insert(bad.to_string());
                }
                Some(Err(bad)) => return Err(Error::failed(bad.to_string())),
            }
        }
        Ok(())
    }
}

/// The record with its `_id` first, as a server would put it, so that what is read back is byte for byte what was sent.
fn with_id(record: RawDoc<'_>, order: Order, ids: &ObjectIdGenerator) -> DocBuf {
    let own = record.get("_id");
    let fresh = Value::ObjectId(ids.next((crate::journal::now_ms() / 1000) as u32));
    let id = own.unwrap_or(fresh);
    DocBuf::build(|document| {
        match order {
            Order::Ascending => document.append("_id", id),
            Order::Hashed => document.append("_id", hashed_index_value(id)).append("key", id),
        };
        for element in record.iter().filter(|element| element.key() != "_id") {
            document.append_element(element);
        }
    })
}

fn format_of(own: &Own, file: &Path) -> Result<Format> {
    match &own.format {
        Some(name) => name.parse().map_err(Error::usage),
        None => Format::of(file).map_err(|bad| Error::usage(bad.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hands_cut_evenly() {
        assert_eq!(cuts(Order::Ascending, 800, 2), [100, 200, 300, 400, 500, 600, 700]);
        let hashed = cuts(Order::Hashed, 800, 1);
        assert_eq!(hashed, [-(1 << 62), 0, 1 << 62]);
    }

    #[test]
    fn records_of_files_get_their_id_in_front() {
        let ids = ObjectIdGenerator::new(1);
        let record = doc! { "a": 1, "_id": "x", "b": 2 };
        let front = with_id(record.as_raw(), Order::Ascending, &ids);
        assert_eq!(front.as_bytes(), doc! { "_id": "x", "a": 1, "b": 2 }.as_bytes());
        let hashed = with_id(record.as_raw(), Order::Hashed, &ids);
        assert_eq!(hashed.as_raw().get("key").and_then(|k| k.as_str()), Some("x"));
        assert!(matches!(hashed.as_raw().get("_id"), Some(Value::Int64(_))));
        let fresh = with_id(doc! { "a": 1 }.as_raw(), Order::Ascending, &ids);
        assert!(matches!(fresh.as_raw().get("_id"), Some(Value::ObjectId(_))));
    }
}
