//! Figures of queries by their shapes, for `$queryStats`: kept in memory by each server, and only as far as
//! `internalQueryStatsRateLimit` allows. A router has figures of what it was asked; what its shards have read for that is in theirs.

mod names;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sheaf_auth::Mechanism;
use sheaf_bson::{Binary, Decimal128, DocBuf, DocWriter, RawDoc, Timestamp, Value};
use sheaf_exec::plan::shape::{Constants, QueryShape};
use sheaf_front::cursors::OpenCursors;
use sheaf_front::outcome::RequestOutcome;
use sheaf_front::params::{Parameters, memory_size};
use sheaf_front::request::Request;

use sheaf_storage::Catalog;

use names::Secret;

/// How many queries are measured in a second.
pub const RATE_LIMIT: &str = "internalQueryStatsRateLimit";
/// The memory of all figures: a share of the machine's, or a number of bytes.
pub const CACHE_SIZE: &str = "internalQueryStatsCacheSize";
/// What an entry takes besides its key.
const ENTRY_BYTES: usize = 1024;
/// Cursors whose figures are not complete yet; beyond this those that are gone are looked for, and then all are given up.
const OPEN_MAX: usize = 10_000;
/// Figures have at most this part of the memory, whatever the parameter says.
const MEMORY_PART: u64 = 4;

/// A sum with its bounds.
#[derive(Clone, Debug)]
struct Spread {
    sum: u64,
    max: u64,
    min: u64,
    squares: f64,
}

impl Default for Spread {
    fn default() -> Self {
        Spread { sum: 0, max: 0, min: u64::MAX, squares: 0.0 }
    }
}

impl Spread {
    fn add(&mut self, value: u64) {
        self.sum = self.sum.saturating_add(value);
        self.max = self.max.max(value);
        self.min = self.min.min(value);
        self.squares += value as f64 * value as f64;
    }

    fn write(&self, name: &str, out: &mut DocWriter<'_, Vec<u8>>) {
        out.document(name)
            .append("sum", self.sum as i64)
            .append("max", self.max as i64)
            .append("min", self.min as i64)
            .append("sumOfSquares", Value::Decimal128(Decimal128::from_f64(self.squares)));
    }
}

/// What is known of all queries with one key.
#[derive(Clone, Debug)]
struct Entry {
    /// The key as people read it, its shape last.
    key: Arc<DocBuf>,
    shape_hash: Arc<str>,
    count: u64,
    last_micros: u64,
    total: Spread,
    first_response: Spread,
    returned: Spread,
    keys: Spread,
    docs: Spread,
    with_sort: u64,
    first_seen: i64,
    latest_seen: i64,
    /// Counts uses, for letting go of what nobody has used for longest.
    used: u64,
}

/// A query under way or just over.
#[derive(Clone, Debug)]
struct Run {
    hash: Arc<str>,
    micros: u64,
    first_micros: u64,
    returned: u64,
    keys: u64,
    docs: u64,
    sorted: bool,
}

impl Run {
    fn new(hash: Arc<str>, first_micros: u64) -> Run {
        Run { hash, micros: 0, first_micros, returned: 0, keys: 0, docs: 0, sorted: false }
    }
}

#[derive(Debug, Default)]
struct Kept {
    entries: HashMap<Arc<str>, Entry>,
    bytes: usize,
    uses: u64,
    /// Runs whose cursors are open, by these.
    open: HashMap<i64, Run>,
    /// The second that is counted, and the queries measured in it.
    window: Option<(Instant, i64)>,
}

/// All figures.
#[derive(Debug, Default)]
pub struct QueryStats {
    /// It reads nothing itself.
    of_router: bool,
    /// 0: nothing is measured. Negative: everything.
    rate: AtomicI64,
    limit: AtomicU64,
    kept: Mutex<Kept>,
}

/// What kind of collection has this name; `None`: that is not known here.
pub type KindOf<'k> = &'k dyn Fn(&str) -> Option<&'static str>;

impl QueryStats {
    /// Those of a router.
    pub fn of_router() -> Self {
        QueryStats { of_router: true, ..QueryStats::default() }
    }

    /// Takes over the parameters.
    pub fn configure(&self, parameters: &Parameters, machine_bytes: u64) {
        let text = parameters.text(CACHE_SIZE);
        let bytes = memory_size(&text, machine_bytes).unwrap_or(0).min(machine_bytes / MEMORY_PART);
        self.limit.store(bytes, Ordering::Relaxed);
        self.rate.store(parameters.int(RATE_LIMIT), Ordering::Release);
    }

    /// Notes an operation that has ended.
    pub fn note(
        &self,
        op: &Request<'_>,
        outcome: &RequestOutcome,
        took: Duration,
        cursors: &dyn OpenCursors,
        kind_of: KindOf<'_>,
    ) {
        let rate = self.rate.load(Ordering::Acquire);
        if rate == 0 || !outcome.ok {
            return;
        }
        let metrics = op.metrics();
        let micros = took.as_micros() as u64;
        let figures = |run: &mut Run| {
            run.micros += micros;
            run.returned += metrics.returned.get().unwrap_or(0);
            run.keys += metrics.keys_examined.get();
            run.docs += metrics.docs_examined.get();
            run.sorted |= metrics.sorts.get() > 0;
        };
        let cursor = metrics.cursor_id.get().filter(|id| *id != 0 && !metrics.cursor_exhausted.get());
        if op.command.name == "getMore" {
            let id = op.body.iter().next().and_then(|first| first.value().as_exact_i64()).unwrap_or(0);
            let mut kept = self.kept.lock();
            let Some(mut run) = kept.open.remove(&id) else { return };
            figures(&mut run);
            match cursor {
                Some(id) => _ = kept.open.insert(id, run),
                None => kept.add(&run),
            }
            return;
        }
        let Some(shape) = QueryShape::of(op.db, op.body) else { return };
        if op.body.get("explain").is_some_and(|flag| flag.truthy()) || !self.kept.lock().lets_in(rate) {
            return;
        }
        // Who has to stop by now is not counted.
        let (Ok(key), Ok(shape_hash)) = (key(op, &shape, collection_type(op, &shape, kind_of)), shape.hash())
        else {
            return;
        };
        let hash: Arc<str> = hex(&Mechanism::Sha256.hash(key.as_raw().as_bytes())).into();
        let mut run = Run::new(hash.clone(), micros);
        figures(&mut run);
        let new = Entry::new(key, shape_hash.into(), op.now_millis());
        let full = cursor.is_some() && self.kept.lock().open.len() >= OPEN_MAX;
        if full {
            self.end_runs(cursors);
        }
        let mut kept = self.kept.lock();
        kept.make(hash, new);
        match cursor {
            Some(id) => {
                if kept.open.len() >= OPEN_MAX {
                    kept.open.clear();
                }
                kept.open.insert(id, run);
            }
            None => kept.add(&run),
        }
        kept.shrink(self.limit.load(Ordering::Relaxed) as usize);
    }

    /// Ends the runs whose cursors are gone without a last `getMore`: killed, timed out, dropped with their collection.
    fn end_runs(&self, cursors: &dyn OpenCursors) {
        let open: Vec<i64> = self.kept.lock().open.keys().copied().collect();
        let gone: Vec<i64> = open.into_iter().filter(|id| cursors.info(*id).is_none()).collect();
        let mut kept = self.kept.lock();
        for id in gone {
            if let Some(run) = kept.open.remove(&id) {
                kept.add(&run);
            }
        }
    }

    /// The documents of `$queryStats`. Names are hashed once nobody waits for the figures any more.
    pub fn list(&self, spec: RawDoc<'_>, now_millis: i64, cursors: &dyn OpenCursors) -> Vec<DocBuf> {
        let transform = spec.get("transformIdentifiers").and_then(|spec| spec.as_doc());
        let secret = transform.map(|transform| match transform.get("hmacKey") {
            Some(Value::Binary(Binary { bytes, .. })) => Secret(bytes),
            _ => Secret(&[]),
        });
        self.end_runs(cursors);
        let entries: Vec<(Arc<str>, Entry)> = {
            let kept = self.kept.lock();
            let shown = kept.entries.iter().filter(|(_, entry)| entry.count > 0);
            shown.map(|(hash, entry)| (hash.clone(), entry.clone())).collect()
        };
        let shown =
            |(hash, entry): (Arc<str>, Entry)| entry.shown(&hash, secret, now_millis, !self.of_router);
        entries.into_iter().map(shown).collect()
    }
}

/// What a query reads from, as it is when the query is over.
fn collection_type(op: &Request<'_>, shape: &QueryShape<'_>, kind_of: KindOf<'_>) -> Option<&'static str> {
    let pipeline = op.body.get("pipeline").and_then(|list| list.as_array());
    let first = pipeline.and_then(|list| list.values().next()?.as_doc()?.iter().next());
    if first.is_some_and(|stage| stage.key() == "$changeStream") {
        return Some("changeStream");
    }
    if op.command.name == "aggregate" && op.body.iter().next().is_some_and(|first| first.value().is_number())
    {
        return Some("virtual");
    }
    kind_of(&shape.namespace())
}

/// What kind of collection this is in a catalog.
pub(crate) fn kind_in(catalog: &Catalog, namespace: &str) -> &'static str {
    match catalog.collection(namespace) {
        None => "nonExistent",
        Some(collection) if collection.is_timeseries() => "timeseries",
        Some(collection) if collection.is_view() => "view",
        Some(_) => "collection",
    }
}

impl Kept {
    /// Whether one more query may be measured in this second.
    fn lets_in(&mut self, rate: i64) -> bool {
        if rate < 0 {
            return true;
        }
        match &mut self.window {
            Some((since, count)) if since.elapsed() < Duration::from_secs(1) => {
                *count += 1;
                *count <= rate
            }
            window => {
                *window = Some((Instant::now(), 1));
                true
            }
        }
    }

    fn make(&mut self, hash: Arc<str>, new: Entry) {
        self.uses += 1;
        let used = self.uses;
        match self.entries.get_mut(&hash) {
            Some(entry) => (entry.latest_seen, entry.used) = (new.latest_seen, used),
            None => {
                self.bytes += new.bytes();
                self.entries.insert(hash, Entry { used, ..new });
            }
        }
    }

    fn add(&mut self, run: &Run) {
        let Some(entry) = self.entries.get_mut(&run.hash) else { return };
        entry.count += 1;
        entry.last_micros = run.micros;
        entry.total.add(run.micros);
        entry.first_response.add(run.first_micros);
        entry.returned.add(run.returned);
        entry.keys.add(run.keys);
        entry.docs.add(run.docs);
        entry.with_sort += u64::from(run.sorted);
    }

    /// Lets go of what nobody has used for longest until the rest fits: a tenth of the entries at a time.
    fn shrink(&mut self, limit: usize) {
        while self.bytes > limit && !self.entries.is_empty() {
            let mut uses: Vec<u64> = self.entries.values().map(|entry| entry.used).collect();
            uses.sort_unstable();
            let newest = uses[uses.len() / 10];
            let bytes = &mut self.bytes;
            self.entries.retain(|_, entry| {
                let stays = entry.used > newest;
                if !stays {
                    *bytes -= entry.bytes();
                }
                stays
            });
        }
    }
}

impl Entry {
    fn new(key: DocBuf, shape_hash: Arc<str>, now_millis: i64) -> Entry {
        Entry {
            key: Arc::new(key),
            shape_hash,
            count: 0,
            last_micros: 0,
            total: Spread::default(),
            first_response: Spread::default(),
            returned: Spread::default(),
            keys: Spread::default(),
            docs: Spread::default(),
            with_sort: 0,
            first_seen: now_millis,
            latest_seen: now_millis,
            used: 0,
        }
    }

    /// What it takes of the memory.
    fn bytes(&self) -> usize {
        self.key.as_raw().len() + ENTRY_BYTES
    }

    fn shown(&self, hash: &str, secret: Option<Secret<'_>>, now_millis: i64, reads: bool) -> DocBuf {
        let hashed = secret.map(|secret| secret.transformed(self.key.as_raw()));
        DocBuf::build(|out| {
            out.append("key", hashed.as_ref().unwrap_or(&self.key))
                .append("keyHash", hash)
                .append("queryShapeHash", &*self.shape_hash);
            let mut metrics = out.document("metrics");
            metrics
                .append("lastExecutionMicros", self.last_micros as i64)
                .append("execCount", self.count as i64);
            self.total.write("totalExecMicros", &mut metrics);
            self.first_response.write("firstResponseExecMicros", &mut metrics);
            self.returned.write("docsReturned", &mut metrics);
            if reads {
                self.keys.write("keysExamined", &mut metrics);
                self.docs.write("docsExamined", &mut metrics);
                metrics
                    .document("hasSortStage")
                    .append("true", self.with_sort as i64)
                    .append("false", (self.count - self.with_sort) as i64);
            }
            metrics
                .append("firstSeenTimestamp", Value::DateTime(self.first_seen))
                .append("latestSeenTimestamp", Value::DateTime(self.latest_seen));
            drop(metrics);
            out.append("asOf", Timestamp::new((now_millis / 1000) as u32, 0));
        })
    }
}

/// Fields of a command that tell measurements apart, besides its shape, as they are.
const PLAIN: [&str; 4] = ["comment", "hint", "readConcern", "apiVersion"];

/// What queries have in common that are counted together.
fn key(
    op: &Request<'_>,
    shape: &QueryShape<'_>,
    collection_type: Option<&str>,
) -> sheaf_errors::Result<DocBuf> {
    let shape = shape.to_doc(Constants::TypeNames)?;
    Ok(DocBuf::build(|out| {
        out.append("queryShape", &shape);
        if let Some(collection_type) = collection_type {
            out.append("collectionType", collection_type);
        }
        let batch = |spec: RawDoc<'_>| spec.get("batchSize").is_some();
        if batch(op.body) {
            out.append("batchSize", "?number");
        }
        if op.body.get("cursor").and_then(|cursor| cursor.as_doc()).is_some_and(batch) {
            out.document("cursor").append("batchSize", "?number");
        }
        if op.body.get("maxTimeMS").is_some() {
            out.append("maxTimeMS", "?number");
        }
        for name in PLAIN {
            match op.body.get(name) {
                Some(_) if name == "comment" => _ = out.append(name, "?string"),
                // Each read after a time has another one.
                Some(Value::Document(concern)) if name == "readConcern" => {
                    let mut inner = out.document(name);
                    for field in concern.iter() {
                        match field.value() {
                            Value::Timestamp(_) => _ = inner.append(field.key(), "?timestamp"),
                            value => _ = inner.append(field.key(), value),
                        }
                    }
                }
                // The name of an index is told from a pattern.
                Some(Value::String(index)) if name == "hint" => _ = out.document(name).append("$hint", index),
                Some(value) => _ = out.append(name, value),
                None => {}
            }
        }
        if let Some(application) = op.client().app_name() {
            out.document("client").document("application").append("name", &application);
        }
    }))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02X}")).collect()
}
