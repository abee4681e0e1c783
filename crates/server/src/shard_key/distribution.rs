//! How reads and writes would spread over the ranges of a shard key: what `analyzeShardKey` makes of samples of queries.

use sheaf_aggregate::Namespace;
use sheaf_bson::{ArrayBuf, Binary, DocBuf, DocWriter, RawDoc, Value, doc};
use sheaf_errors::{Code, Error, Result};
use sheaf_front::sampling::{DIFFS, SAMPLES, changes};
use sheaf_rows::{Cx, Operator};
use sheaf_shard::placement::{Key, KeyPattern, KeyRange, Ranges};

use super::ground::{Ground, each_row, limits};
use super::ranges::{compares_bytes, one_key, ranges_of_filter};

/// Into how many ranges the collection is cut.
const RANGES: &str = "analyzeShardKeyNumRanges";

/// So many documents are looked at for each range.
const DOCUMENTS_PER_RANGE: i64 = 10;

const READS: [&str; 4] = ["find", "aggregate", "count", "distinct"];
const WRITES: [&str; 3] = ["update", "delete", "findAndModify"];

/// A shard key for a collection.
pub struct Subject<'s> {
    /// The collection.
    pub namespace: &'s Namespace,
    /// Its UUID.
    pub uuid: [u8; 16],
    /// The collation of queries that name none, unless that is the simple one.
    pub collation: Option<DocBuf>,
    /// The shard key.
    pub pattern: &'s KeyPattern,
}

impl Subject<'_> {
    /// `readDistribution` and `writeDistribution`.
    ///
    /// Errors: 4952606, if the key has too few values for the ranges; `BadValue`, if it has arrays; those of reading.
    pub fn distributions(&self, ground: &dyn Ground) -> Result<(DocBuf, DocBuf)> {
        ground.write_samples()?;
        let (mut reads, mut writes) = (Figures::default(), Figures::default());
        let stop = ground.interrupter();
        let interrupt = || stop.check();
        let mut cx = Cx::new(limits(ground), &interrupt);
        let uuid = Value::Binary(Binary { subtype: 4, bytes: &self.uuid });
        let filter = doc! { "collectionUuid": uuid };
        let mut samples = ground.noted(SAMPLES, &filter, &mut cx)?;
        let mut cuts = None;
        while sheaf_rows::pull(&mut samples, &mut cx)? {
            let Some(query) = Query::parse(samples.row().document()) else { continue };
            // Where nothing was sampled nothing has to be cut.
            let cuts = match &mut cuts {
                Some(cuts) => cuts,
                none => none.insert(self.cuts(ground)?),
            };
            let figures = if query.is_read() { &mut reads } else { &mut writes };
            figures.add(&query, self, cuts);
        }
        let mut diffs = ground.noted(DIFFS, &filter, &mut cx)?;
        while sheaf_rows::pull(&mut diffs, &mut cx)? {
            let diff = diffs.row().document().get("diff").and_then(|diff| diff.as_doc());
            writes.key_updates += i64::from(diff.is_some_and(|diff| self.changes_key(diff)));
        }
        Ok((reads.document(true), writes.document(false)))
    }

    fn changes_key(&self, diff: RawDoc<'_>) -> bool {
        self.pattern.fields().iter().any(|field| changes(diff, field.path.dotted()))
    }

    /// The keys at which ranges of about as many documents begin, besides the first.
    fn cuts(&self, ground: &dyn Ground) -> Result<Vec<Key>> {
        let ranges = ground.parameters().int(RANGES).max(1) as usize;
        let mut keys = self.keys(ground, ranges as i64 * DOCUMENTS_PER_RANGE)?;
        keys.sort();
        cut(&keys, ranges).ok_or_else(|| {
            keys.dedup();
            Error::new(
                Code(4952606),
                format!(
                    "Failed to find split points that partition the data into {ranges} chunks with roughly equal number of documents using \
                     the shard key being analyzed: the shard key provided does not have enough cardinality, {} values were found. Set \
                     {RANGES} lower, or readWriteDistribution to false",
                    keys.len()
                ),
            )
        })
    }

    /// The keys of some documents.
    fn keys(&self, ground: &dyn Ground, size: i64) -> Result<Vec<Key>> {
        let fields = DocBuf::build(|out| {
            for field in self.pattern.fields() {
                out.append(field.path.dotted(), 1);
            }
        });
        let stages =
            ArrayBuf::of(&[doc! { "$sample": { "size": size } }, doc! { "$project": fields.as_raw() }]);
        let mut keys = Vec::new();
        each_row(ground, self.namespace, &stages, |row| {
            let key = self.pattern.key_of(row);
            keys.push(key.map_err(|error| Error::bad_value(error.message()))?);
            Ok(())
        })?;
        Ok(keys)
    }

    /// Whether strings of a query compare by their bytes.
    fn is_simple(&self, collation: Option<RawDoc<'_>>) -> bool {
        compares_bytes(self.collation.as_ref(), collation)
    }

    /// What a query needs, and the keys that it is about.
    fn reach(&self, query: &Query<'_>) -> (Reach, Ranges) {
        let simple = self.is_simple(query.collation);
        let ranges = ranges_of_filter(self.pattern, query.filter, simple);
        if let Some(key) = one_key(query.filter, self.pattern, simple) {
            return (Reach::Single, key);
        }
        if let Some(key) = query.replacement.and_then(|document| self.pattern.key_of(document).ok()) {
            return (Reach::Single, Ranges::new([KeyRange::point(&key)]));
        }
        match ranges.as_slice() == [KeyRange::all()] {
            // Each value that it may mean is named; which they are depends on the collation.
            true if !simple && one_key(query.filter, self.pattern, true).is_some() => {
                (Reach::Collated, ranges)
            }
            true => (Reach::ScatterGather, ranges),
            false => (Reach::Multi, ranges),
        }
    }
}

/// Keys that cut these, which are in order, into ranges of about as many; `None`: there are too few different ones.
fn cut(keys: &[Key], ranges: usize) -> Option<Vec<Key>> {
    let mut cuts: Vec<Key> = Vec::with_capacity(ranges);
    let mut next = 0;
    for at in 1..ranges {
        let before = cuts.last().or(keys.first())?;
        next = next.max(at * keys.len() / ranges);
        next += keys[next.min(keys.len())..].partition_point(|key| key <= before);
        cuts.push(keys.get(next)?.clone());
    }
    Some(cuts)
}

/// Which shards a query would need.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reach {
    /// One: it names a key.
    Single,
    /// One or several, by how ranges lie.
    Multi,
    /// The same; it names a key, but by a collation by which others are equal to it.
    Collated,
    /// All.
    ScatterGather,
}

/// A sampled query.
struct Query<'q> {
    /// Its command's place in [`READS`], or behind them in [`WRITES`].
    kind: usize,
    filter: RawDoc<'q>,
    collation: Option<RawDoc<'q>>,
    /// The whole document that it puts in the place of another.
    replacement: Option<RawDoc<'q>>,
    multi: bool,
}

impl<'q> Query<'q> {
    /// Reads a document of `config.sampledQueries`.
    fn parse(sample: RawDoc<'q>) -> Option<Query<'q>> {
        let name = sample.get("cmdName")?.as_str()?;
        let command = sample.get("cmd")?.as_doc()?;
        let first = |list: &str| command.get(list)?.as_array()?.values().next()?.as_doc();
        let is_bulk = name == "bulkWrite";
        // They count as what they are.
        let name = if is_bulk { first("ops")?.iter().next()?.key() } else { name };
        let kind = READS.iter().chain(&WRITES).position(|kind| *kind == name)?;
        let (statement, filter) = match name {
            _ if is_bulk => (first("ops")?, "filter"),
            "update" => (first("updates")?, "q"),
            "delete" => (first("deletes")?, "q"),
            "findAndModify" => (command, "query"),
            _ => (command, "filter"),
        };
        let document = |name: &str| statement.get(name).and_then(|value| value.as_doc());
        let flag = |name: &str| statement.get(name).is_some_and(|flag| flag.truthy());
        let is_whole =
            |document: &RawDoc<'_>| document.iter().next().is_none_or(|first| !first.key().starts_with('$'));
        Some(Query {
            kind,
            filter: document(filter).unwrap_or(RawDoc::EMPTY),
            collation: document("collation"),
            replacement: document(if is_bulk { "updateMods" } else { "u" })
                .filter(is_whole)
                .filter(|_| name == "update" && !flag("upsert")),
            multi: flag("multi") || (name == "delete" && !is_bulk && !flag("limit")),
        })
    }

    fn is_read(&self) -> bool {
        self.kind < READS.len()
    }
}

/// What was counted of reads, or of writes.
#[derive(Default)]
struct Figures {
    kinds: [i64; READS.len() + WRITES.len()],
    single: i64,
    multi: i64,
    scatter_gather: i64,
    by_range: Vec<i64>,
    key_updates: i64,
    single_without_key: i64,
    multi_without_key: i64,
}

impl Figures {
    fn add(&mut self, query: &Query<'_>, subject: &Subject<'_>, cuts: &[Key]) {
        let (reach, ranges) = subject.reach(query);
        self.kinds[query.kind] += 1;
        match reach {
            Reach::Single => self.single += 1,
            Reach::Multi | Reach::Collated => self.multi += 1,
            Reach::ScatterGather => self.scatter_gather += 1,
        }
        if matches!(reach, Reach::Multi | Reach::ScatterGather) {
            let without =
                if query.multi { &mut self.multi_without_key } else { &mut self.single_without_key };
            *without += 1;
        }
        self.by_range.resize(cuts.len() + 1, 0);
        let mut next = 0;
        for range in ranges.as_slice() {
            let first = cuts.partition_point(|cut| cut.order() <= range.low()).max(next);
            let last = range.high().map_or(cuts.len(), |high| cuts.partition_point(|cut| cut.order() < high));
            next = next.max(last + 1);
            self.by_range.get_mut(first..=last).into_iter().flatten().for_each(|count| *count += 1);
        }
    }

    fn document(&self, of_reads: bool) -> DocBuf {
        let (reads, writes) = self.kinds.split_at(READS.len());
        let (names, counts): (&[&str], _) = if of_reads { (&READS, reads) } else { (&WRITES, writes) };
        let total: i64 = counts.iter().sum();
        let what = if of_reads { "Reads" } else { "Writes" };
        DocBuf::build(|out| {
            let mut sizes = out.document("sampleSize");
            sizes.append("total", total);
            names.iter().zip(counts).for_each(|(name, count)| _ = sizes.append(name, *count));
            drop(sizes);
            if total == 0 {
                return;
            }
            let shares = [
                ("SingleShard", self.single),
                ("MultiShard", self.multi),
                ("ScatterGather", self.scatter_gather),
            ];
            for (name, part) in shares {
                share(out, &format!("percentageOf{name}{what}"), part, total);
            }
            let mut by_range = out.array(&format!("num{what}ByRange"));
            self.by_range.iter().for_each(|count| _ = by_range.push(*count));
            drop(by_range);
            if !of_reads {
                // The two collections are not read at one moment.
                share(out, "percentageOfShardKeyUpdates", self.key_updates.min(total), total);
                share(out, "percentageOfSingleWritesWithoutShardKey", self.single_without_key, total);
                share(out, "percentageOfMultiWritesWithoutShardKey", self.multi_without_key, total);
            }
        })
    }
}

/// A share in percent, to ten places.
fn share(out: &mut DocWriter<'_, Vec<u8>>, name: &str, part: i64, whole: i64) {
    let places = 1e10;
    out.append(name, (part as f64 / whole as f64 * 100.0 * places).ceil() / places);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(name: &str, command: DocBuf) -> DocBuf {
        doc! { "cmdName": name, "cmd": command.as_raw() }
    }

    fn keys(pattern: &KeyPattern, values: &[i32]) -> Vec<Key> {
        values.iter().map(|value| pattern.key(doc! { "k": *value }.as_raw()).unwrap()).collect()
    }

    fn figures(samples: &[DocBuf], collation: Option<DocBuf>) -> Figures {
        let pattern = KeyPattern::parse(doc! { "k": 1 }.as_raw()).unwrap();
        let namespace = Namespace::new("garden", "plants");
        let subject = Subject { namespace: &namespace, uuid: [0; 16], collation, pattern: &pattern };
        let cuts = keys(&pattern, &[10, 20, 30]);
        let mut figures = Figures::default();
        samples
            .iter()
            .for_each(|sample| figures.add(&Query::parse(sample.as_raw()).unwrap(), &subject, &cuts));
        figures
    }

    #[test]
    fn ranges_are_cut_where_documents_are() {
        let pattern = KeyPattern::parse(doc! { "k": 1 }.as_raw()).unwrap();
        let cut_of = |values: &[i32], ranges| cut(&keys(&pattern, values), ranges);
        assert_eq!(cut_of(&[1, 2, 3, 4], 2), Some(keys(&pattern, &[3])));
        assert_eq!(cut_of(&[1, 1, 1, 1, 2, 3], 3), Some(keys(&pattern, &[2, 3])));
        assert_eq!(cut_of(&[1, 1, 2, 2], 3), None);
        assert_eq!(cut_of(&[], 2), None);
        assert_eq!(cut_of(&[], 1), Some(Vec::new()));
    }

    #[test]
    fn reads_count_by_the_ranges_that_they_need() {
        let find = |filter: DocBuf| sample("find", doc! { "filter": filter.as_raw() });
        let told = figures(
            &[
                find(doc! { "k": 10 }),
                find(doc! { "k": { "$gte": 15, "$lt": 20 } }),
                find(doc! { "k": { "$in": [1, 2, 25] } }),
                find(doc! { "name": "fern" }),
            ],
            None,
        );
        assert_eq!((told.single, told.multi, told.scatter_gather), (1, 2, 1));
        assert_eq!(told.by_range, [2, 3, 2, 1]);
        let document = told.document(true);
        let names: Vec<&str> = document.as_raw().iter().map(|field| field.key()).collect();
        let expected = [
            "sampleSize",
            "percentageOfSingleShardReads",
            "percentageOfMultiShardReads",
            "percentageOfScatterGatherReads",
            "numReadsByRange",
        ];
        assert_eq!(names, expected);
        assert_eq!(document.as_raw().get("percentageOfMultiShardReads").unwrap().as_f64(), Some(50.0));
    }

    #[test]
    fn writes_tell_whether_they_name_the_key() {
        let told = figures(
            &[
                sample("update", doc! { "updates": [{ "q": { "k": 5 }, "u": { "$set": { "a": 1 } } }] }),
                sample("update", doc! { "updates": [{ "q": { "_id": 5 }, "u": { "k": 25 } }] }),
                sample(
                    "update",
                    doc! { "updates": [{ "q": { "_id": 5 }, "u": { "k": 25 }, "upsert": true }] },
                ),
                sample("delete", doc! { "deletes": [{ "q": { "k": { "$lt": 5 } }, "limit": 0 }] }),
                sample("findAndModify", doc! { "query": {}, "remove": true }),
            ],
            None,
        );
        assert_eq!((told.single, told.multi, told.scatter_gather), (2, 1, 2));
        let bulk = figures(
            &[
                sample(
                    "bulkWrite",
                    doc! { "ops": [{ "update": 0, "filter": { "_id": 5 }, "updateMods": { "k": 25 } }] },
                ),
                sample("bulkWrite", doc! { "ops": [{ "delete": 0, "filter": { "k": 5 } }] }),
            ],
            None,
        );
        assert_eq!((bulk.kinds, bulk.single), ([0, 0, 0, 0, 1, 1, 0], 2), "they count as what they are");
        assert_eq!((told.single_without_key, told.multi_without_key), (2, 1));
        assert_eq!(told.by_range, [4, 2, 3, 2]);
    }

    #[test]
    fn a_string_by_a_collation_may_be_any() {
        let find = sample("find", doc! { "filter": { "k": "Fern" } });
        let told = figures(std::slice::from_ref(&find), Some(doc! { "locale": "en" }));
        assert_eq!((told.single, told.multi), (0, 1));
        assert_eq!(figures(&[find], None).single, 1);
    }

    #[test]
    fn nothing_is_told_of_no_samples() {
        let none =
            doc! { "sampleSize": { "total": 0i64, "update": 0i64, "delete": 0i64, "findAndModify": 0i64 } };
        assert_eq!(Figures::default().document(false), none);
    }
}
