//! Six writers fill a collection with documents of 16 KB in batches, while others read the same documents back from
//! the last to the first. Readers and writers meet in the middle, so that a good part of the reads comes too early:
//! the share of reads that found their document, with the right contents, is one of the figures.
//!
//! Without acknowledgements (`w:0`) nobody tells a writer of a failure. So a writer ends with a ping on its own
//! connection, which is answered when everything before it was worked off, and the check afterwards reads everything.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use serde::Deserialize;
use sheaf_bson::doc;

use super::batches::{self, Batches};
use super::placing::ShardKey;
use super::{Figure, Workload};
use crate::client::{Collection, WriteConcern};
use crate::context::{Context, Group, Worker};
use crate::error::{Error, Result};
use crate::experiment::Settings;
use crate::generate::document;
use crate::measure::{Load, Span};
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
    /// "w:0" (normal) or "w:1" (safe).
    concern: String,
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
pub struct MostSingle {
    own: Option<Own>,
    concern: WriteConcern,
    ran: Option<Ran>,
}

/// What a run leaves for the check and the figures.
struct Ran {
    documents: u64,
    batches: Batches,
    reads: Reads,
    written_s: f64,
    read_s: f64,
}

#[derive(Debug, Default)]
struct Reads {
    found: AtomicU64,
    bytes: AtomicU64,
    early: AtomicU64,
    /// Not found although its insert had been acknowledged before the read began.
    lost: AtomicU64,
    wrong: AtomicU64,
    first_problem: Mutex<Option<String>>,
}

impl Reads {
    fn problem(&self, counter: &AtomicU64, text: String) {
        counter.fetch_add(1, Ordering::Relaxed);
        self.first_problem.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(text);
    }

    fn all(&self) -> u64 {
        [&self.found, &self.early, &self.lost, &self.wrong].iter().map(|n| n.load(Ordering::Relaxed)).sum()
    }
}

const COLLECTION: &str = "most";

impl MostSingle {
    fn own(&self) -> Result<&Own> {
        self.own.as_ref().ok_or_else(|| Error::failed("the workload has no settings"))
    }

    fn collection(&self, own: &Own) -> Collection {
        Collection::new(&own.database, COLLECTION).with_concern(&self.concern)
    }

    fn capped_bytes(own: &Own, documents: u64) -> u64 {
        let data = documents as f64 * own.document_bytes as f64;
        // Room for a few documents even in the smallest run.
        (data * own.capped_part).max(own.document_bytes as f64 * 4.0) as u64
    }
}

impl Workload for MostSingle {
    fn configure(&mut self, settings: &Settings) -> Result<()> {
        let own: Own = settings.parse()?;
        self.concern = WriteConcern::parse(&own.concern).map_err(Error::usage)?;
        if own.writers == 0 || own.writers > batches::MOST_WRITERS || own.batch == 0 || own.documents == 0 {
            return Err(Error::usage("most-single needs documents, a batch size, and 1 to 255 writers"));
        }
        if own.capped && own.shard_key.is_some() {
            return Err(Error::usage("a capped collection cannot be sharded"));
        }
        if own.capped_part.is_nan() || own.capped_part <= 0.0 {
            return Err(Error::usage("capped_part must be more than 0"));
        }
        if own.batch as usize * own.document_bytes > 47_000_000 {
            return Err(Error::usage("a batch must fit in a message of 48 MB"));
        }
        self.own = Some(own);
        Ok(())
    }

    fn setup(&mut self, context: &Context) -> Result<()> {
        let own = self.own()?;
        let mut client = context.connect()?;
        client.drop_collection(&self.collection(own))?;
        let create = if own.capped {
            let size = MostSingle::capped_bytes(own, context.scaled(own.documents)) as i64;
            doc! { "create": COLLECTION, "capped": true, "size": size }
        } else {
            doc! { "create": COLLECTION }
        };
        context.admin(&mut client, &own.database, &create)?;
        ShardKey::spread(own.shard_key, context, &mut client, &self.collection(own)).map(drop)
    }

    fn run(&mut self, context: &Context) -> Result<()> {
        let own = self.own()?.clone();
        let documents = context.scaled(own.documents);
        let collection = self.collection(&own);
        let batches = Batches::new(documents, own.batch, own.document_bytes);
        let (reads, written, read) = (Reads::default(), Mutex::new(None), Mutex::new(None));
        let began = Instant::now();
        let all_batches = Load::closed(Span::Operations(batches.len()));
        let all_documents = Load::closed(Span::Operations(documents));
        context.run(&[
            Group::new("writer", own.writers, |worker| {
                batches.write(worker, &collection, own.compressible, |_| ())?;
                ended(&written);
                Ok(())
            })
            .load(all_batches),
            Group::new("reader", own.readers, |worker| {
                read_back(worker, own.capped, documents, &collection, &batches, &reads)?;
                ended(&read);
                Ok(())
            })
            .load(all_documents),
        ])?;
        let since = |end: Mutex<Option<Instant>>| {
            let end = end.into_inner().unwrap_or_else(PoisonError::into_inner);
            end.map_or(0.0, |end| (end - began).as_secs_f64())
        };
        self.ran = Some(Ran { documents, batches, reads, written_s: since(written), read_s: since(read) });
        Ok(())
    }

    fn check(&mut self, context: &Context) -> Result<Vec<Check>> {
        let own = self.own()?;
        let ran = self.ran.as_ref().ok_or_else(|| Error::failed("the workload has not run"))?;
        let mut client = context.connect()?;
        let contents = ran.batches.read(&mut client, &self.collection(own))?;
        let complete = if own.capped {
            ran.batches.check_newest(&contents, MostSingle::capped_bytes(own, ran.documents))
        } else {
            contents.check_complete()
        };
        Ok(vec![contents.check_whole(), complete, while_writing(&ran.reads, own.readers)])
    }

    fn metrics(&self, context: &Context) -> Vec<Figure> {
        let (Some(own), Some(ran)) = (&self.own, &self.ran) else { return Vec::new() };
        let measured = context.measured();
        let megabytes =
            |bytes: f64, seconds: f64| if seconds > 0.0 { bytes / (1 << 20) as f64 / seconds } else { 0.0 };
        let mut figures = vec![Figure::higher(
            "MB/s written",
            "MB/s",
            megabytes(ran.documents as f64 * own.document_bytes as f64, ran.written_s),
        )];
        if own.readers > 0 {
            let (found, all) = (ran.reads.found.load(Ordering::Relaxed), ran.reads.all().max(1));
            let bytes = ran.reads.bytes.load(Ordering::Relaxed) as f64;
            figures.push(Figure::higher("MB/s read", "MB/s", megabytes(bytes, ran.read_s)));
            figures.push(Figure::plain("consistent reads", "%", found as f64 * 100.0 / all as f64));
        }
        for (operation, label) in [("insert", "batch"), ("read", "read")] {
            if operation == "read" && own.readers == 0 {
                continue;
            }
            let totals = measured.operation(operation);
            for percentile in [50.0, 99.0] {
                let name = format!("{label} p{percentile}");
                figures.push(Figure::lower(name, "us", totals.percentile_us(percentile)));
            }
            figures.push(Figure::lower(format!("{label} max"), "us", totals.max_us()));
        }
        figures
    }
}

fn ended(end: &Mutex<Option<Instant>>) {
    // The last one's time stays.
    *end.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
}

fn read_back(
    worker: &mut Worker<'_>,
    capped: bool,
    documents: u64,
    collection: &Collection,
    batches: &Batches,
    reads: &Reads,
) -> Result<()> {
    while let Some(ticket) = worker.next() {
        let key = (documents - ticket.number) as i64;
        let must_be_there = !capped && batches.was_acknowledged(key);
        let found = worker.client().find_by_id(collection, key)?;
        let outcome = found.map(|found| (document::verify(found, key), found.len()));
        match outcome {
            Some((Ok(_), length)) => {
                reads.found.fetch_add(1, Ordering::Relaxed);
                reads.bytes.fetch_add(length as u64, Ordering::Relaxed);
                worker.done("read", ticket);
            }
            Some((Err(wrong), _)) => {
                reads.problem(&reads.wrong, format!("document {key}: {wrong}"));
                worker.failed("read", ticket);
            }
            None if must_be_there => {
                reads.problem(&reads.lost, format!("document {key} was acknowledged and then not found"));
                worker.failed("read", ticket);
            }
            None => {
                reads.early.fetch_add(1, Ordering::Relaxed);
                worker.done("read of what is not there", ticket);
            }
        }
    }
    Ok(())
}

/// What the readers saw: nothing torn, and nothing gone that had been acknowledged.
fn while_writing(reads: &Reads, readers: u32) -> Check {
    let count = |n: &AtomicU64| n.load(Ordering::Relaxed);
    let problem = reads.first_problem.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Check {
        name: "reads while writing".to_owned(),
        passed: problem.is_none(),
        detail: match problem {
            _ if readers == 0 => "there were no readers".to_owned(),
            Some(first) => format!("{} torn, {} lost: {first}", count(&reads.wrong), count(&reads.lost)),
            None => format!(
                "{} found and whole, {} too early or already dropped",
                count(&reads.found),
                count(&reads.early)
            ),
        },
    }
}
