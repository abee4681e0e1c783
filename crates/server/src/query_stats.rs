//! Figures of queries by their shapes, for `$queryStats`: kept in memory by each server, and only as far as
//! `internalQueryStatsRateLimit` allows.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use parking_lot::Mutex;
use sheaf_auth::Mechanism;
use sheaf_bson::{Binary, Decimal128, DocBuf, DocWriter, RawDoc, Timestamp, Value};
use sheaf_exec::plan::shape::{Constants, QueryShape};
use sheaf_front::outcome::RequestOutcome;
use sheaf_front::params::Parameters;
use sheaf_front::request::Request;

/// How many queries are measured in a second.
pub const RATE_LIMIT: &str = "internalQueryStatsRateLimit";
/// The memory of all figures: a share of the machine's, or a number of bytes.
pub const CACHE_SIZE: &str = "internalQueryStatsCacheSize";
/// What an entry takes besides its key.
const ENTRY_BYTES: usize = 1024;
/// Cursors whose figures are not complete yet; beyond this all of them are given up.
const OPEN_MAX: usize = 10_000;

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
#[derive(Debug, Default)]
struct Entry {
    /// The key as people read it, its shape last.
    key: DocBuf,
    shape_hash: String,
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
#[derive(Clone, Debug, Default)]
struct Run {
    hash: String,
    micros: u64,
    first_micros: u64,
    returned: u64,
    keys: u64,
    docs: u64,
    sorted: bool,
}

#[derive(Debug, Default)]
struct Kept {
    entries: HashMap<String, Entry>,
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
    /// 0: nothing is measured. Negative: everything.
    rate: AtomicI64,
    limit: AtomicU64,
    kept: Mutex<Kept>,
}

impl QueryStats {
    /// Takes over the parameters.
    pub fn configure(&self, parameters: &Parameters, machine_bytes: u64) {
        let text = parameters.text(CACHE_SIZE);
        self.limit.store(size_of_text(&text, machine_bytes), Ordering::Relaxed);
        self.rate.store(parameters.int(RATE_LIMIT), Ordering::Release);
    }

    /// Notes an operation that has ended.
    pub fn note(&self, op: &Request<'_>, outcome: &RequestOutcome, took: Duration) {
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
            run.sorted |= metrics.has_sort_stage.get();
        };
        let cursor = metrics.cursor_id.get().filter(|id| *id != 0 && !metrics.cursor_exhausted.get());
        let mut kept = self.kept.lock();
        if op.command.name == "getMore" {
            let id = op.body.iter().next().and_then(|first| first.value().as_exact_i64()).unwrap_or(0);
            let Some(mut run) = kept.open.remove(&id) else { return };
            figures(&mut run);
            match cursor {
                Some(id) => _ = kept.open.insert(id, run),
                None => kept.add(&run),
            }
            return;
        }
        let Some(shape) = QueryShape::of(op.db, op.body) else { return };
        if op.body.get("explain").is_some_and(|flag| flag.truthy()) || !kept.lets_in(rate) {
            return;
        }
        let key = key(op, &shape);
        let hash = hex(&Mechanism::Sha256.hash(key.as_raw().as_bytes()));
        let mut run = Run { hash: hash.clone(), first_micros: micros, ..Run::default() };
        figures(&mut run);
        kept.make(&hash, key, &shape, op.now_millis());
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

    /// The documents of `$queryStats`.
    pub fn list(&self, spec: RawDoc<'_>, now_millis: i64) -> Vec<DocBuf> {
        let transform = spec.get("transformIdentifiers").and_then(|spec| spec.as_doc());
        let secret = transform.and_then(|transform| match transform.get("hmacKey") {
            Some(Value::Binary(Binary { bytes, .. })) => Some(bytes),
            _ => None,
        });
        let secret = if transform.is_some() { Some(secret.unwrap_or(&[])) } else { None };
        let kept = self.kept.lock();
        let shown = kept.entries.iter().filter(|(_, entry)| entry.count > 0);
        shown.map(|(hash, entry)| entry.shown(hash, secret, now_millis)).collect()
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

    fn make(&mut self, hash: &str, key: DocBuf, shape: &QueryShape<'_>, now_millis: i64) {
        self.uses += 1;
        let used = self.uses;
        if let Some(entry) = self.entries.get_mut(hash) {
            entry.latest_seen = now_millis;
            entry.used = used;
            return;
        }
        self.bytes += key.as_raw().len() + ENTRY_BYTES;
        let entry = Entry {
            key,
            shape_hash: shape.hash(),
            first_seen: now_millis,
            latest_seen: now_millis,
            used,
            ..Entry::default()
        };
        self.entries.insert(hash.to_owned(), entry);
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
                    *bytes -= entry.key.as_raw().len() + ENTRY_BYTES;
                }
                stays
            });
        }
    }
}

impl Entry {
    fn shown(&self, hash: &str, secret: Option<&[u8]>, now_millis: i64) -> DocBuf {
        let key = match secret {
            Some(secret) => transformed(self.key.as_raw(), secret),
            None => self.key.clone(),
        };
        DocBuf::build(|out| {
            out.append("key", &key)
                .append("keyHash", hash)
                .append("queryShapeHash", self.shape_hash.as_str());
            let mut metrics = out.document("metrics");
            metrics
                .append("lastExecutionMicros", self.last_micros as i64)
                .append("execCount", self.count as i64);
            self.total.write("totalExecMicros", &mut metrics);
            self.first_response.write("firstResponseExecMicros", &mut metrics);
            self.returned.write("docsReturned", &mut metrics);
            self.keys.write("keysExamined", &mut metrics);
            self.docs.write("docsExamined", &mut metrics);
            metrics
                .document("hasSortStage")
                .append("true", self.with_sort as i64)
                .append("false", (self.count - self.with_sort) as i64);
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
fn key(op: &Request<'_>, shape: &QueryShape<'_>) -> DocBuf {
    DocBuf::build(|out| {
        out.append("queryShape", &shape.to_doc(Constants::TypeNames));
        out.append("collectionType", "collection");
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
                Some(value) => _ = out.append(name, value),
                None => {}
            }
        }
        if let Some(application) = op.client().app_name() {
            out.document("client").document("application").append("name", &application);
        }
    })
}

/// The document with a keyed hash in the place of each name that is an application's own.
fn transformed(document: RawDoc<'_>, secret: &[u8]) -> DocBuf {
    DocBuf::build(|out| {
        for field in document.iter() {
            let (name, value) = (field.key(), field.value());
            match (name, value) {
                ("cmdNs", Value::Document(namespace)) => {
                    let mut inner = out.document("cmdNs");
                    for part in namespace.iter() {
                        inner.append(part.key(), &hashed(part.value().as_str().unwrap_or(""), secret));
                    }
                }
                ("client", Value::Document(client)) => {
                    let application =
                        client.get("application").and_then(|part| part.as_doc()?.get("name")?.as_str());
                    let name = hashed(application.unwrap_or(""), secret);
                    out.document("client").document("application").append("name", &name);
                }
                ("queryShape", Value::Document(shape)) => {
                    _ = out.append("queryShape", &transformed(shape, secret))
                }
                (
                    "filter" | "query" | "sort" | "projection" | "min" | "max" | "let" | "hint",
                    Value::Document(part),
                ) => {
                    out.append(name, &names_hashed(part, secret));
                }
                ("key", Value::String(path)) => _ = out.append("key", &path_hashed(path, secret)),
                ("pipeline", Value::Array(stages)) => {
                    let mut list = out.array("pipeline");
                    for stage in stages.values().filter_map(|stage| stage.as_doc()?.iter().next()) {
                        list.push(&stage_hashed(stage.key(), stage.value(), secret));
                    }
                }
                _ => _ = out.append_element(field),
            }
        }
    })
}

fn hashed(name: &str, secret: &[u8]) -> String {
    STANDARD.encode(Mechanism::Sha256.hmac(secret, name.as_bytes()))
}

fn path_hashed(path: &str, secret: &[u8]) -> String {
    path.split('.').map(|part| hashed(part, secret)).collect::<Vec<_>>().join(".")
}

/// Stages whose own fields are names of a client's fields; those of others are options.
const OF_FIELDS: [&str; 6] = ["$addFields", "$group", "$match", "$project", "$set", "$sort"];

fn stage_hashed(name: &str, argument: Value<'_>, secret: &[u8]) -> DocBuf {
    let Value::Document(fields) = argument else {
        return DocBuf::build(|out| put_hashed(out, name, argument, secret));
    };
    let kept = |field: &str| !OF_FIELDS.contains(&name) || (name == "$group" && field == "_id");
    DocBuf::build(|out| {
        let mut stage = out.document(name);
        for field in fields.iter() {
            match field.key() {
                operator if operator.starts_with('$') => {
                    put_hashed(&mut stage, operator, field.value(), secret)
                }
                option if kept(option) => put_hashed(&mut stage, option, field.value(), secret),
                path => put_hashed(&mut stage, &path_hashed(path, secret), field.value(), secret),
            }
        }
    })
}

fn names_hashed(document: RawDoc<'_>, secret: &[u8]) -> DocBuf {
    DocBuf::build(|out| {
        for field in document.iter() {
            let name = field.key();
            let name = if name.starts_with('$') { name.to_owned() } else { path_hashed(name, secret) };
            put_hashed(out, &name, field.value(), secret);
        }
    })
}

fn put_hashed(out: &mut DocWriter<'_, Vec<u8>>, name: &str, value: Value<'_>, secret: &[u8]) {
    match value {
        Value::Document(inner) => _ = out.append(name, &names_hashed(inner, secret)),
        Value::Array(items) => {
            let mut list = out.array(name);
            for item in items.values() {
                let one = DocBuf::build(|one| put_hashed(one, "0", item, secret));
                list.push(one.as_raw().get_or_missing("0"));
            }
        }
        // What stands for a constant tells nothing; all other texts are names and paths.
        Value::String(text) if text.starts_with('?') || text == "[]" || text.starts_with("$$") => {
            out.append(name, text);
        }
        Value::String(text) => match text.strip_prefix('$') {
            Some(path) => _ = out.append(name, &format!("${}", path_hashed(path, secret))),
            None => _ = out.append(name, &path_hashed(text, secret)),
        },
        other => _ = out.append(name, other),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02X}")).collect()
}

/// The bytes that a size says: a share of the machine's memory (`1%`), or a number with a unit.
fn size_of_text(text: &str, machine_bytes: u64) -> u64 {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number: f64 = text[..digits].parse().unwrap_or(0.0);
    let unit = match text[digits..].trim().to_ascii_uppercase().as_str() {
        "%" => machine_bytes as f64 / 100.0,
        "KB" => 1024.0,
        "MB" => 1024.0 * 1024.0,
        "GB" => 1024.0 * 1024.0 * 1024.0,
        _ => 1.0,
    };
    (number * unit) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use sheaf_bson::doc;

    #[test]
    fn names_are_hashed_as_mongodb_hashes_them() {
        let secret = STANDARD.decode("MjM0NTY3ODkxMDExMTIxMzE0MTUxNjE3MTgxOTIwMjE=").expect("a key");
        let hashed = names_hashed(doc! { "v": { "$eq": "?number" } }.as_raw(), &secret);
        assert_eq!(hashed, doc! { "lU7Z0mLRPRUL+RfAD5jhYPRRpXBsZBxS/20EzDwfOG4=": { "$eq": "?number" } });
    }

    #[test]
    fn sizes_are_shares_or_bytes() {
        assert_eq!(size_of_text("1%", 1000), 10);
        assert_eq!(size_of_text("2MB", 0), 2 << 20);
        assert_eq!(size_of_text("77", 0), 77);
    }
}
