//! The analysis of a shard key: `analyzeShardKey`.

use sheaf_aggregate::{Namespace, StatsSource};
use sheaf_bson::{ArrayBuf, DocBuf, RawDoc, Value, doc};
use sheaf_errors::{Code, Result, bail};
use sheaf_front::args::{Args, check_collection_name, check_db_name};
use sheaf_front::reply::Reply;
use sheaf_rows::Cx;
use sheaf_shard::placement::KeyPattern;

use super::distribution::Subject;
use super::ground::{Ground, each_row, limits};
use super::monotonicity::{self, Monotonicity};

/// Documents that are looked at, where nothing is said.
const SAMPLE_SIZE: i64 = 10_000_000;

/// So many of the most common values are shown.
const MOST_COMMON: usize = 5;

const NOTE: &str = "If \"numOrphanDocs\" is large relative to \"numDocsTotal\", you may want to rerun the command at some other time to get \
                    more accurate \"numDistinctValues\" and \"mostCommonValues\" metrics.";

/// `{analyzeShardKey: "garden.plants", key: {name: 1}}`.
pub struct Analysis<'a> {
    namespace: Namespace,
    pattern: KeyPattern,
    key: RawDoc<'a>,
    characteristics: bool,
    distribution: bool,
    sample_rate: Option<f64>,
    sample_size: Option<i64>,
}

impl<'a> Analysis<'a> {
    /// Reads what is to be analyzed.
    ///
    /// Errors: `TypeMismatch`, `InvalidNamespace`, `InvalidOptions`, `BadValue`.
    pub fn parse(args: &mut Args<'a>) -> Result<Self> {
        let Value::String(namespace) = args.own_value() else {
            bail!(
                Code::TYPE_MISMATCH,
                "BSON field 'analyzeShardKey.analyzeShardKey' is the wrong type '{}', expected type 'string'",
                args.own_value().type_name()
            );
        };
        let (db, collection) = namespace.split_once('.').unwrap_or((namespace, ""));
        if check_db_name(db).is_err() || check_collection_name(collection).is_err() {
            bail!(Code::INVALID_NAMESPACE, "Invalid namespace specified '{namespace}'");
        }
        let key: RawDoc<'a> = args.required("key")?;
        let characteristics = args.optional::<bool>("keyCharacteristics")?.unwrap_or(true);
        let distribution = args.optional::<bool>("readWriteDistribution")?.unwrap_or(true);
        let (rate, size) = (args.value("sampleRate"), args.optional::<i64>("sampleSize")?);
        let sample_rate = if rate.is_missing() { None } else { rate.as_f64() };
        if !characteristics && !distribution {
            bail!(Code::INVALID_OPTIONS, "Cannot skip analyzing all metrics");
        }
        if !rate.is_missing() && !sample_rate.is_some_and(|rate| rate > 0.0 && rate <= 1.0) {
            bail!(Code::BAD_VALUE, "BSON field 'analyzeShardKey.sampleRate' must be above 0 and not above 1");
        }
        if size.is_some_and(|size| size <= 0) {
            bail!(Code::BAD_VALUE, "BSON field 'analyzeShardKey.sampleSize' must be above 0");
        }
        if sample_rate.is_some() && size.is_some() {
            bail!(Code::INVALID_OPTIONS, "Cannot specify both 'sampleRate' and 'sampleSize'");
        }
        Ok(Analysis {
            namespace: Namespace::new(db, collection),
            pattern: KeyPattern::parse(key)?,
            key,
            characteristics,
            distribution,
            sample_rate,
            sample_size: size,
        })
    }

    /// What there is to say of the key.
    ///
    /// Errors: `IllegalOperation` for collections of the server's own, empty ones, and a key without an index of which nothing else is
    /// asked; those of the ground.
    pub fn run(&self, ground: &dyn Ground) -> Result<Reply> {
        let db = &*self.namespace.database;
        if matches!(db, "admin" | "config" | "local") || self.namespace.collection.starts_with("system.") {
            bail!(Code::ILLEGAL_OPERATION, "Cannot run against an internal collection");
        }
        let (uuid, collation) = ground.identity(&self.namespace)?;
        let mut reply = Reply::ok();
        if self.characteristics {
            match self.analyze(ground)? {
                Some(found) => _ = reply.append("keyCharacteristics", found.as_raw()),
                None if self.distribution => {}
                None => bail!(
                    Code::ILLEGAL_OPERATION,
                    "Cannot analyze the characteristics of a shard key that does not have a supporting index"
                ),
            }
        }
        if self.distribution {
            let subject = Subject { namespace: &self.namespace, uuid, collation, pattern: &self.pattern };
            let (reads, writes) = subject.distributions(ground)?;
            reply.append("readDistribution", reads.as_raw()).append("writeDistribution", writes.as_raw());
        }
        Ok(reply)
    }
}

/// An index that has the key.
struct Supporting {
    unique: bool,
}

impl Analysis<'_> {
    /// An index that begins with the key's fields and has all documents.
    fn index(&self, ground: &dyn Ground) -> Result<Option<Supporting>> {
        let mut found: Option<Supporting> = None;
        for index in ground.indexes(&self.namespace)? {
            let index = index.as_raw();
            let simple = |collation: RawDoc<'_>| {
                collation.get("locale").and_then(|locale| locale.as_str()) == Some("simple")
            };
            let whole = !index.get("sparse").is_some_and(|sparse| sparse.truthy())
                && index.get("partialFilterExpression").is_none()
                && index.get("collation").and_then(|collation| collation.as_doc()).is_none_or(simple);
            let own = index.get("key").and_then(|key| key.as_doc()).unwrap_or(RawDoc::EMPTY);
            let mut fields = own.iter();
            let begins =
                self.key.iter().all(|field| fields.next().is_some_and(|other| other.key() == field.key()));
            if !whole || !begins {
                continue;
            }
            let alone = own.iter().count() == self.key.iter().count();
            let unique = index.get("unique").is_some_and(|unique| unique.truthy())
                || own.iter().next().is_some_and(|first| first.key() == "_id");
            let unique = alone && unique && !own.values().any(|value| value.as_str() == Some("hashed"));
            found = Some(Supporting { unique: unique || found.is_some_and(|before| before.unique) });
        }
        Ok(found)
    }

    /// The figures about the key; `None`, where no index has it.
    fn analyze(&self, ground: &dyn Ground) -> Result<Option<DocBuf>> {
        let stop = ground.interrupter();
        let interrupt = || stop.check();
        let mut cx = Cx::new(limits(ground), &interrupt);
        let (database, spec) = (ground.database()?, doc! { "storageStats": {} });
        let stats = database.stats(StatsSource::CollStats, &self.namespace, spec.as_raw(), &mut cx)?;
        let sum = |name: &str| -> i64 {
            let number =
                |told: &DocBuf| told.as_raw().get("storageStats")?.as_doc()?.get(name)?.as_exact_i64();
            stats.iter().filter_map(number).sum()
        };
        let (total, size, orphans) = (sum("count"), sum("size"), sum("numOrphanDocs"));
        if total == 0 {
            bail!(
                Code::ILLEGAL_OPERATION,
                "Cannot analyze the characteristics of a shard key for an empty collection"
            );
        }
        let Some(index) = self.index(ground)? else { return Ok(None) };
        let mut seen = Seen::default();
        each_row(ground, &self.namespace, &self.stages(total), |row| {
            seen.note(row);
            Ok(())
        })?;
        let monotonicity = self.monotonicity(ground, total)?;
        let threshold = ground.parameters().double(monotonicity::THRESHOLD);
        let is_spread = ground.is_spread(&self.namespace)?;
        Ok(Some(DocBuf::build(|out| {
            out.append("numDocsTotal", total);
            if is_spread {
                out.append("numOrphanDocs", orphans);
            }
            out.append("avgDocSizeBytes", size / total);
            out.append("numDocsSampled", seen.documents);
            out.append("isUnique", index.unique);
            out.append("numDistinctValues", seen.values);
            let mut common = out.array("mostCommonValues");
            for (count, value) in &seen.most_common {
                let mut entry = common.document();
                self.append_value(&mut entry.document("value"), value.as_raw());
                entry.append("frequency", *count);
            }
            drop(common);
            monotonicity.append(&self.pattern, threshold, &mut out.document("monotonicity"));
            if is_spread {
                out.append("note", NOTE);
            }
        })))
    }

    fn monotonicity(&self, ground: &dyn Ground, total: i64) -> Result<Monotonicity> {
        let mut found = Monotonicity::default();
        if monotonicity::is_open(&self.pattern) {
            each_row(ground, &self.namespace, &monotonicity::stages(&self.pattern, total), |row| {
                found.note(row);
                Ok(())
            })?;
        }
        Ok(found)
    }

    /// Counts each value of the key, over a sample if there are many documents.
    fn stages(&self, total: i64) -> ArrayBuf {
        let size = match self.sample_rate {
            Some(rate) => ((total as f64 * rate).ceil() as i64).max(1),
            None => self.sample_size.unwrap_or(SAMPLE_SIZE),
        };
        let id = DocBuf::build(|out| {
            for (at, field) in self.key.iter().enumerate() {
                out.append(&format!("k{at}"), &format!("${}", field.key()));
            }
        });
        let group = doc! { "$group": { "_id": id.as_raw(), "n": { "$sum": 1i64 } } };
        let sample = (size < total).then(|| doc! { "$sample": { "size": size } });
        ArrayBuf::of(&sample.into_iter().chain([group]).collect::<Vec<_>>())
    }

    /// A value of the key by the names of its fields.
    fn append_value(&self, out: &mut sheaf_bson::DocWriter<'_, Vec<u8>>, value: RawDoc<'_>) {
        for (at, field) in self.pattern.document().iter().enumerate() {
            out.append(field.key(), value.get(&format!("k{at}")).unwrap_or(Value::Null));
        }
    }
}

/// What was seen of the key's values.
#[derive(Default)]
struct Seen {
    documents: i64,
    values: i64,
    /// How often, the most often first.
    most_common: Vec<(i64, DocBuf)>,
}

impl Seen {
    fn note(&mut self, row: RawDoc<'_>) {
        let count = row.get("n").and_then(|n| n.as_exact_i64()).unwrap_or(0);
        self.documents += count;
        self.values += 1;
        let least = self.most_common.last().map_or(0, |(least, _)| *least);
        if self.most_common.len() == MOST_COMMON && count <= least {
            return;
        }
        let value = row.get("_id").and_then(|id| id.as_doc()).unwrap_or(RawDoc::EMPTY);
        let at = self.most_common.partition_point(|(other, _)| *other >= count);
        self.most_common.insert(at, (count, DocBuf::from(value)));
        self.most_common.truncate(MOST_COMMON);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_common_values_come_first() {
        let mut seen = Seen::default();
        for (value, n) in [(1, 5i64), (2, 9), (3, 1), (4, 7), (5, 2), (6, 8), (7, 1)] {
            seen.note(doc! { "_id": { "k0": value }, "n": n }.as_raw());
        }
        assert_eq!((seen.documents, seen.values), (33, 7));
        let counts: Vec<i64> = seen.most_common.iter().map(|(count, _)| *count).collect();
        assert_eq!(counts, [9, 8, 7, 5, 2]);
    }
}
