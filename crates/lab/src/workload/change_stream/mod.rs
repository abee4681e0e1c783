//! Writers, and streams of changes over what they write: every acknowledged majority write must be seen once and in
//! order, whatever happens to the members and however often a stream is resumed ([`crate::check::stream`]).
//!
//! Each document has one writer, which numbers its writes. When a writer does not know how a write ended, it leaves the
//! document alone from then on: the write might still come.

mod watcher;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use serde::Deserialize;
use sheaf_bson::doc;

use self::watcher::Watcher;
use super::endure::{self, pause};
use super::{Figure, Workload};
use crate::check::stream::{Written, compare, judge};
use crate::check::{self};
use crate::client::{Client, Collection, ReadPreference};
use crate::context::{Context, Group, Worker};
use crate::error::{Error, Result};
use crate::experiment::Settings;
use crate::measure::{Arrival, Load, Span};
use crate::results::Check;

/// Settings of the workload.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Own {
    writers: u32,
    /// Documents that each writer has in use at a time.
    documents: u32,
    /// Milliseconds from one write of a writer to its next.
    pause_ms: u64,
    /// Where each of the streams is read: "primary", "secondary", ...
    streams: Vec<String>,
    /// Milliseconds after which a stream is closed and resumed, on average, without any need; 0 for never.
    resume_every_ms: u64,
    database: String,
    /// What counts as safe; see [`endure::safest`].
    #[serde(default)]
    concern: Option<String>,
}

/// See the module.
#[derive(Default)]
pub struct ChangeStream {
    own: Option<Own>,
    written: Mutex<Vec<Written>>,
    watchers: Vec<Mutex<Watcher>>,
    /// Writers that are still at work.
    busy: AtomicU32,
}

const COLLECTION: &str = "watched";
/// The document that is written when everything else has been.
const LAST: i64 = -1;

impl ChangeStream {
    fn own(&self) -> Result<&Own> {
        self.own.as_ref().ok_or_else(|| Error::failed("the workload has no settings"))
    }

    fn write(&self, worker: &mut Worker<'_>, own: &Own) -> Result<()> {
        let mut client = endure::connect(worker.context())?;
        let collection = Collection::new(&own.database, COLLECTION)
            .with_concern(&endure::safest(worker.context(), own.concern.as_deref())?);
        // Of each document in use: its `_id`, and how often it was written.
        let mut next_id = i64::from(worker.index) << 32;
        let mut fresh = || {
            next_id += 1;
            (next_id, 0)
        };
        let mut documents: Vec<(i64, i64)> = (0..own.documents).map(|_| fresh()).collect();
        while let Some(ticket) = worker.next() {
            let at = worker.random.below(documents.len() as u64) as usize;
            let (id, number) = &mut documents[at];
            *number += 1;
            let outcome = write_one(&mut client, &collection, *id, *number, worker.random.below(3) == 0);
            let written = Written { document: *id, number: *number, acknowledged: outcome.is_ok() };
            self.written.lock().unwrap_or_else(PoisonError::into_inner).push(written);
            match outcome {
                Ok(()) => worker.done("watched write", ticket),
                Err(error) => {
                    documents[at] = fresh();
                    worker.endured("watched write", ticket, error)?;
                }
            }
            pause(worker, own.pause_ms);
        }
        Ok(())
    }

    fn watch(&self, worker: &mut Worker<'_>, own: &Own) -> Result<()> {
        let mut watcher = self.watchers[worker.index as usize].lock().unwrap_or_else(PoisonError::into_inner);
        let mean_s = own.resume_every_ms as f64 / 1e3;
        let mut resume_s = worker.random.exponential(mean_s);
        let mut opened = Instant::now();
        while self.busy.load(Ordering::Relaxed) > 0 && !worker.stopping() {
            let Some(ticket) = worker.next() else { break };
            match watcher.look(worker.context()) {
                Ok(0) => {}
                Ok(_) => worker.done("events", ticket),
                Err(error) => {
                    // Nothing is lost: it goes on from its token. What cannot be gone on from is kept as an anomaly.
                    watcher.lost(&error);
                    worker.endured("events", ticket, error)?;
                    pause(worker, 20);
                }
            }
            if own.resume_every_ms > 0 && opened.elapsed().as_secs_f64() > resume_s {
                watcher.close();
                resume_s = worker.random.exponential(mean_s);
                opened = Instant::now();
            }
        }
        watcher.close();
        Ok(())
    }
}

/// Inserts a document with its first number, later updates or replaces it.
fn write_one(client: &mut Client, to: &Collection, id: i64, number: i64, replace: bool) -> Result<()> {
    if number == 1 {
        let mut insert = client.insert(to);
        insert.push(|document| {
            document.append("_id", id).append("number", number);
        });
        return insert.send().map(drop);
    }
    let mut update = client.update(to);
    update.push(|statement| {
        statement.document("q").append("_id", id);
        if replace {
            statement.document("u").append("number", number);
        } else {
            statement.document("u").document("$set").append("number", number);
        }
    });
    match update.send()?.n {
        1 => Ok(()),
        n => Err(Error::failed(format!("an update of document {id} matched {n} documents"))),
    }
}

impl Workload for ChangeStream {
    fn configure(&mut self, settings: &Settings) -> Result<()> {
        let own: Own = settings.parse()?;
        if own.writers == 0 || own.documents == 0 || own.streams.is_empty() {
            return Err(Error::usage("change-stream needs writers, documents and streams"));
        }
        for preference in &own.streams {
            preference.parse::<ReadPreference>()?;
        }
        self.own = Some(own);
        Ok(())
    }

    fn setup(&mut self, context: &Context) -> Result<()> {
        let own = self.own()?.clone();
        let mut client = endure::connect(context)?;
        endure::create(context, &mut client, &Collection::new(&own.database, COLLECTION))?;
        let mut watchers = Vec::new();
        for preference in &own.streams {
            // On a server that is alone, it is read there.
            let preference = match preference.parse()? {
                ReadPreference::Secondary => ReadPreference::SecondaryPreferred,
                other => other,
            };
            let to = context.mongodb()?.enduring().reading(preference);
            let name = format!("stream {} ({})", watchers.len() + 1, preference.name());
            // Before anything is written, so that it must see everything.
            watchers.push(Mutex::new(Watcher::open(name, to, &own.database, COLLECTION)?));
        }
        self.watchers = watchers;
        Ok(())
    }

    fn groups<'a>(&'a self, context: &Context) -> Result<Vec<Group<'a>>> {
        let own = self.own()?;
        self.busy.store(own.writers, Ordering::Relaxed);
        let writers = Group::new("writer", own.writers, move |worker| {
            let outcome = self.write(worker, own);
            self.busy.fetch_sub(1, Ordering::Relaxed);
            outcome
        });
        let watchers =
            Group::new("stream", self.watchers.len() as u32, move |worker| self.watch(worker, own));
        // They end with the writers.
        let load = Load { arrival: Arrival::Closed, measure: Span::Unbounded, ..context.load };
        Ok(vec![writers.without_client(), watchers.load(load).without_client()])
    }

    fn databases(&self) -> Vec<String> {
        self.own.iter().map(|own| own.database.clone()).collect()
    }

    fn check_own(&mut self, context: &Context) -> Result<Vec<Check>> {
        let own = self.own()?;
        let mut client = endure::connect(context)?;
        let last = Collection::new(&own.database, COLLECTION).with_concern(&endure::safest(context, None)?);
        write_one(&mut client, &last, LAST, 1, false).map_err(|error| error.context("the last write"))?;
        let mut written = std::mem::take(&mut *self.written.lock().unwrap_or_else(PoisonError::into_inner));
        written.push(Written { document: LAST, number: 1, acknowledged: true });
        let mut anomalies = Vec::new();
        let mut watchers = Vec::new();
        for watcher in &self.watchers {
            let mut watcher = watcher.lock().unwrap_or_else(PoisonError::into_inner);
            watcher.read_until(context, LAST)?;
            anomalies.append(&mut watcher.anomalies);
            anomalies.extend(judge(&watcher.name, &written, &watcher.events));
            watchers.push(watcher);
        }
        for pair in watchers.windows(2) {
            let names = (pair[0].name.as_str(), pair[1].name.as_str());
            anomalies.extend(compare(names, (&pair[0].events, &pair[1].events)));
        }
        let acknowledged = written.iter().filter(|write| write.acknowledged).count();
        let fine = format!(
            "{acknowledged} acknowledged writes seen once and in order by each of {} streams, resumed {} times; {} \
             more writes nobody knows of",
            watchers.len(),
            watchers.iter().map(|watcher| watcher.resumed).sum::<u64>(),
            written.len() - acknowledged
        );
        drop(watchers);
        Ok(vec![check::check("change streams", &anomalies, fine)])
    }

    fn metrics(&self, context: &Context) -> Vec<Figure> {
        let measured = context.measured();
        let totals = measured.operation("watched write");
        let resumed: u64 = self
            .watchers
            .iter()
            .map(|watcher| watcher.lock().unwrap_or_else(PoisonError::into_inner).resumed)
            .sum();
        vec![
            Figure::higher("writes/s", "1/s", measured.rate("watched write")),
            Figure::lower("write median", "us", totals.percentile_us(50.0)),
            Figure::lower("write max", "us", totals.max_us()),
            Figure::plain("streams resumed", "", resumed as f64),
        ]
    }
}
