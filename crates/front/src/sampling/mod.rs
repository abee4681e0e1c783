//! Samples of queries, for `analyzeShardKey`: which requests are noted, how many, and in what shape. Where they are kept is the role's.

mod configuration;
mod diff;
mod shape;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sheaf_bson::{Binary, DocBuf, DocWriter, RawDoc, Value};
use sheaf_errors::Result;

use crate::params::Parameters;

pub use configuration::{Configure, namespace_parts};
pub use diff::{changes, inline_diff};
use shape::Kind;
pub use shape::{Asked, bulk_namespace};

/// Where configurations are.
pub const ANALYZERS: &str = "queryAnalyzers";
/// Where samples are.
pub const SAMPLES: &str = "sampledQueries";
/// Where it is told what sampled updates have changed.
pub const DIFFS: &str = "sampledQueriesDiff";
/// For how long samples are kept, in seconds.
pub const EXPIRATION: &str = "queryAnalysisSampleExpirationSecs";
/// How often rates are asked for, in seconds.
pub const REFRESH: &str = "queryAnalysisSamplerConfigurationRefreshSecs";
/// How often samples are written, in seconds.
pub const WRITE: &str = "queryAnalysisWriterIntervalSecs";

/// What samples that are not written yet may take.
const MOST_BYTES: usize = 16 << 20;

/// What one batch of them takes, unless a single one takes more.
const BATCH_BYTES: usize = 4 << 20;

/// A larger sample is not kept: it could be no document.
const LARGEST: usize = 15 << 20;

/// The field of a statement, or of `findAndModify`, with the number of its sample: a shard tells what it has changed.
pub const SAMPLE_ID: &str = "sampleId";

/// The field of a shard's reply in which it does.
pub const TOLD_DIFFS: &str = "sampledDiffs";

/// The index by which documents of this collection go away.
pub fn expiry_index(collection: &str) -> &'static str {
    if collection == DIFFS { "SampledQueriesDiffTTLIndex" } else { "SampledQueriesTTLIndex" }
}

/// An update that was sampled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sample {
    /// Its place among the statements.
    pub at: usize,
    /// Its number.
    pub id: [u8; 16],
}

/// The samples of one server.
#[derive(Default)]
pub struct Sampling {
    /// Whether anything is sampled: all that other requests look at.
    active: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    collections: HashMap<String, Sampled, ahash::RandomState>,
    samples: Vec<DocBuf>,
    diffs: Vec<DocBuf>,
    /// Of both.
    bytes: usize,
}

impl State {
    fn queue(&mut self, collection: &str) -> &mut Vec<DocBuf> {
        if collection == DIFFS { &mut self.diffs } else { &mut self.samples }
    }
}

/// A collection whose queries are sampled.
struct Sampled {
    analyzer: Analyzer,
    /// Samples a second on this server.
    rate: f64,
    /// Samples that may be taken now.
    tokens: f64,
    counted: Instant,
    reads: Figures,
    writes: Figures,
}

#[derive(Clone, Copy, Default)]
struct Figures {
    count: i64,
    bytes: i64,
}

/// A document of `config.queryAnalyzers` whose mode is `full`.
#[derive(Clone, PartialEq, Debug)]
pub struct Analyzer {
    /// The collection.
    pub namespace: String,
    /// Its UUID.
    pub uuid: [u8; 16],
    /// Samples a second in the whole cluster.
    pub samples_per_second: f64,
    /// When it began.
    pub start: i64,
}

impl Analyzer {
    /// Reads the document; `None` where nothing is to be sampled.
    pub fn parse(document: RawDoc<'_>) -> Option<Analyzer> {
        if document.get("mode")?.as_str()? != "full" {
            return None;
        }
        let Value::Binary(uuid) = document.get("collUuid")? else { return None };
        let Value::DateTime(start) = document.get("startTime")? else { return None };
        Some(Analyzer {
            namespace: document.get("_id")?.as_str()?.to_owned(),
            uuid: uuid.bytes.try_into().ok()?,
            samples_per_second: document.get("samplesPerSecond")?.as_f64()?,
            start,
        })
    }
}

impl Sampled {
    fn new(analyzer: Analyzer, rate: f64) -> Sampled {
        let (reads, writes) = Default::default();
        Sampled { analyzer, rate, tokens: rate.max(1.0), counted: Instant::now(), reads, writes }
    }

    /// Whether one more may be taken.
    fn may_take(&mut self, now: Instant) -> bool {
        let since = now.saturating_duration_since(self.counted).as_secs_f64();
        self.counted = now;
        self.tokens = (self.tokens + since * self.rate).min(self.rate.max(1.0));
        self.tokens >= 1.0
    }

    fn take(&mut self, now: Instant) -> bool {
        let may = self.may_take(now);
        self.tokens -= f64::from(u8::from(may));
        may
    }
}

impl Sampled {
    /// Writes what a sample begins with.
    fn begin(&self, out: &mut DocWriter<'_, Vec<u8>>, id: &[u8; 16]) {
        out.append("_id", Value::Binary(Binary { subtype: 4, bytes: id }));
        out.append("ns", self.analyzer.namespace.as_str());
        out.append("collectionUuid", Value::Binary(Binary { subtype: 4, bytes: &self.analyzer.uuid }));
    }
}

impl Sampling {
    /// Whether anything is sampled.
    pub fn is_active(&self) -> bool {
        self.active.load(Ordering::Relaxed)
    }

    /// Samples these collections from now on; `share` of their rates falls to this server.
    pub fn configure(&self, analyzers: Vec<Analyzer>, share: f64) {
        let state = &mut *self.state.lock();
        let mut before = std::mem::take(&mut state.collections);
        for analyzer in analyzers {
            let rate = analyzer.samples_per_second * share;
            let known = before.remove(&analyzer.namespace).filter(|known| {
                (known.analyzer.uuid, known.analyzer.start) == (analyzer.uuid, analyzer.start)
            });
            let name = analyzer.namespace.clone();
            let sampled = match known {
                Some(known) if known.rate == rate => known,
                Some(known) => {
                    Sampled { reads: known.reads, writes: known.writes, ..Sampled::new(analyzer, rate) }
                }
                None => Sampled::new(analyzer, rate),
            };
            state.collections.insert(name, sampled);
        }
        self.active.store(!state.collections.is_empty(), Ordering::Relaxed);
    }

    /// What is sampled.
    pub fn analyzers(&self) -> Vec<Analyzer> {
        if !self.is_active() {
            return Vec::new();
        }
        self.state.lock().collections.values().map(|sampled| sampled.analyzer.clone()).collect()
    }

    /// Notes a request, if its collection is sampled and it is its turn. Gives those of its statements that may change documents.
    ///
    /// `expires`: when the samples go, in milliseconds.
    pub fn note(&self, asked: &Asked<'_>, expires: i64) -> Vec<Sample> {
        let mut updates = Vec::new();
        let Some(kind) = Kind::of(asked.command) else { return updates };
        let namespaces = kind.namespaces(asked);
        let state = &mut *self.state.lock();
        let now = Instant::now();
        let mut may_take = |namespace: &String| {
            state.collections.get_mut(namespace).is_some_and(|sampled| sampled.may_take(now))
        };
        if !namespaces.iter().any(&mut may_take) {
            return updates;
        }
        for (at, statement) in kind.statements(asked).into_iter().enumerate() {
            let namespace = kind.namespace_of(statement).and_then(|number| namespaces.get(number));
            let sampled = namespace.and_then(|namespace| state.collections.get_mut(namespace));
            let Some(sampled) = sampled.filter(|_| state.bytes < MOST_BYTES) else { continue };
            if !sampled.take(now) {
                continue;
            }
            let id = *uuid::Uuid::new_v4().as_bytes();
            let sample = DocBuf::build(|out| {
                sampled.begin(out, &id);
                out.append("cmdName", kind.name());
                kind.write(asked, statement, &mut out.document("cmd"));
                out.append("expireAt", Value::DateTime(expires));
            });
            let size = sample.as_bytes().len();
            if size > LARGEST {
                continue;
            }
            let figures = if kind.is_write() { &mut sampled.writes } else { &mut sampled.reads };
            figures.count += 1;
            figures.bytes += size as i64;
            state.bytes += size;
            state.samples.push(sample);
            if kind.changes(asked, statement) {
                updates.push(Sample { at, id });
            }
        }
        updates
    }

    /// Notes what a sampled update has changed.
    pub fn note_diff(&self, namespace: &str, id: &[u8; 16], diff: RawDoc<'_>, expires: i64) {
        let state = &mut *self.state.lock();
        let Some(sampled) = state.collections.get(namespace) else { return };
        let size = diff.as_bytes().len();
        if state.bytes >= MOST_BYTES || size > LARGEST {
            return;
        }
        let told = DocBuf::build(|out| {
            sampled.begin(out, id);
            out.append("diff", diff);
            out.append("expireAt", Value::DateTime(expires));
        });
        state.bytes += told.as_bytes().len();
        state.diffs.push(told);
    }

    /// Writes what was noted, in batches, of which `write` is told the collection. What cannot be written is the next again.
    ///
    /// Errors: that of `write`, after which nothing more is written this time.
    pub fn flush(&self, write: impl Fn(&'static str, &[DocBuf]) -> Result<()>) -> Result<()> {
        for collection in [SAMPLES, DIFFS] {
            loop {
                let batch = self.take_batch(collection);
                if batch.is_empty() {
                    break;
                }
                if let Err(error) = write(collection, &batch) {
                    self.put_back(collection, batch);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// The next that are to be written, which are forgotten here; none, when all are.
    fn take_batch(&self, collection: &str) -> Vec<DocBuf> {
        let state = &mut *self.state.lock();
        let pending = state.queue(collection);
        let mut bytes = 0;
        let fits = |sample: &&DocBuf| {
            bytes += sample.as_bytes().len();
            bytes <= BATCH_BYTES
        };
        let count = pending.iter().take(1000).take_while(fits).count().max(1).min(pending.len());
        let batch: Vec<DocBuf> = pending.drain(..count).collect();
        state.bytes -= size_of_all(&batch);
        batch
    }

    fn put_back(&self, collection: &str, mut batch: Vec<DocBuf>) {
        let state = &mut *self.state.lock();
        state.bytes += size_of_all(&batch);
        let pending = state.queue(collection);
        batch.append(pending);
        *pending = batch;
    }

    /// Forgets what is not written.
    pub fn discard(&self) {
        let state = &mut *self.state.lock();
        (state.samples, state.diffs, state.bytes) = Default::default();
    }

    /// What `$currentOp` shows of it; the bytes and the rate are those that a member of a set tells.
    pub fn operations(&self, is_router: bool) -> Vec<DocBuf> {
        if !self.is_active() {
            return Vec::new();
        }
        let state = self.state.lock();
        let shown = state.collections.values().map(|sampled| {
            let Analyzer { namespace, uuid, samples_per_second, start } = &sampled.analyzer;
            DocBuf::build(|out| {
                out.append("desc", "query analyzer");
                out.append("ns", namespace.as_str());
                out.append("collUuid", Value::Binary(Binary { subtype: 4, bytes: uuid }));
                out.append("samplesPerSecond", *samples_per_second);
                out.append("startTime", Value::DateTime(*start));
                out.append("sampledReadsCount", sampled.reads.count);
                if !is_router {
                    out.append("sampledReadsBytes", sampled.reads.bytes);
                }
                out.append("sampledWritesCount", sampled.writes.count);
                if !is_router {
                    out.append("sampledWritesBytes", sampled.writes.bytes);
                }
            })
        });
        shown.collect()
    }
}

fn size_of_all(batch: &[DocBuf]) -> usize {
    batch.iter().map(|sample| sample.as_bytes().len()).sum()
}

/// When a server asks for configurations, and when it writes samples.
pub struct Due {
    asked: Option<Instant>,
    written: Instant,
}

impl Default for Due {
    fn default() -> Self {
        Due { asked: None, written: Instant::now() }
    }
}

impl Due {
    /// How often is looked whether something is due.
    pub const TICK: Duration = Duration::from_millis(500);

    /// Whether configurations are to be asked for now.
    pub fn asks(&mut self, parameters: &Parameters) -> bool {
        let is_due = self.asked.is_none_or(|asked| asked.elapsed() >= seconds(parameters, REFRESH));
        self.asked = if is_due { Some(Instant::now()) } else { self.asked };
        is_due
    }

    /// Whether samples are to be written now.
    pub fn writes(&mut self, parameters: &Parameters) -> bool {
        let is_due = self.written.elapsed() >= seconds(parameters, WRITE);
        self.written = if is_due { Instant::now() } else { self.written };
        is_due
    }
}

fn seconds(parameters: &Parameters, name: &str) -> Duration {
    Duration::from_secs(parameters.int(name).max(1) as u64)
}

#[cfg(test)]
mod tests {
    use sheaf_errors::Error;

    use super::*;

    fn analyzer(samples_per_second: f64) -> Analyzer {
        Analyzer { namespace: "garden.plants".to_owned(), uuid: [7; 16], samples_per_second, start: 5 }
    }

    #[test]
    fn no_more_are_taken_than_the_rate_says() {
        let mut sampled = Sampled::new(analyzer(10.0), 10.0);
        let began = sampled.counted;
        let taken = (0..100).filter(|_| sampled.take(began)).count();
        assert_eq!(taken, 10, "what one second gives");
        let half = began + Duration::from_millis(500);
        assert_eq!((0..100).filter(|_| sampled.take(half)).count(), 5);
        let long = began + Duration::from_secs(60);
        assert_eq!((0..100).filter(|_| sampled.take(long)).count(), 10, "what was not used is lost");
        let mut rare = Sampled::new(analyzer(0.5), 0.5);
        let began = rare.counted;
        assert!(rare.take(began) && !rare.take(began + Duration::from_secs(1)));
        assert!(rare.take(began + Duration::from_secs(3)));
    }

    #[test]
    fn what_cannot_be_written_comes_again_first() {
        let sampling = Sampling::default();
        let sample = |at: i32| sheaf_bson::doc! { "_id": at };
        sampling.put_back(DIFFS, (0..3).map(sample).collect());
        let failed = sampling.flush(|collection, batch| {
            assert_eq!(collection, DIFFS);
            assert_eq!((batch.len(), sampling.state.lock().bytes), (3, 0));
            sampling.put_back(DIFFS, vec![sample(9)]);
            Err(Error::bad_value("nobody is there"))
        });
        assert!(failed.is_err());
        let again: Vec<_> = sampling
            .take_batch(DIFFS)
            .iter()
            .map(|doc| doc.as_raw().get("_id").unwrap().as_exact_i64())
            .collect();
        assert_eq!(again, [Some(0), Some(1), Some(2), Some(9)]);
        assert!(sampling.take_batch(DIFFS).is_empty());
    }

    #[test]
    fn what_was_counted_is_kept_while_the_analyzer_stays() {
        let sampling = Sampling::default();
        assert!(!sampling.is_active() && sampling.operations(true).is_empty());
        sampling.configure(vec![analyzer(5.0)], 0.5);
        assert!(sampling.is_active());
        sampling.state.lock().collections.get_mut("garden.plants").unwrap().reads.count = 4;
        sampling.configure(vec![analyzer(8.0)], 0.5);
        let shown = sampling.operations(true);
        assert_eq!(shown[0].as_raw().get("sampledReadsCount").unwrap().as_exact_i64(), Some(4));
        sampling.configure(vec![Analyzer { start: 6, ..analyzer(8.0) }], 0.5);
        let shown = sampling.operations(false);
        assert_eq!(shown[0].as_raw().get("sampledReadsCount").unwrap().as_exact_i64(), Some(0));
        sampling.configure(Vec::new(), 1.0);
        assert!(!sampling.is_active());
    }
}
