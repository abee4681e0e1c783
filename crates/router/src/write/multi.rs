//! Statements that several shards execute, each on its own documents: each document once, also where some shards have done it and a range
//! has moved before others did.

use std::collections::{BTreeMap, BTreeSet};

use sheaf_bson::{ArrayWriter, DocBuf, DocWriter, RawDoc, Value};
use sheaf_cluster::Sharded;
use sheaf_shard::ShardId;
use sheaf_shard::placement::{Key, KeyPattern};

use super::Batch;

/// From a key on and below another; to the end, where that is the highest.
type Piece = (Key, Key);

/// What shards have done of the statements that several were sent.
#[derive(Default)]
pub struct Multis {
    /// The statements that several were sent.
    several: BTreeSet<u32>,
    /// Keys of documents with which a statement is done, from earlier rounds.
    done: BTreeMap<u32, Vec<Piece>>,
    /// What was done in this round, by the names of shards.
    now: Vec<(u32, String)>,
}

impl Multis {
    /// The shards, of these, that have something left to do of a statement.
    pub fn left_on<'s>(
        &mut self,
        at: u32,
        sharded: &'s Sharded,
        shards: Vec<&'s ShardId>,
    ) -> Vec<&'s ShardId> {
        self.several.insert(at);
        match self.done.get(&at) {
            None => shards,
            Some(done) => {
                shards.into_iter().filter(|shard| !left(sharded, shard.as_str(), done).is_empty()).collect()
            }
        }
    }

    /// A shard has executed these statements.
    pub fn done_on(&mut self, shard: &str, places: &[u32]) {
        if !self.several.is_empty() {
            let several = places.iter().filter(|at| self.several.contains(at));
            self.now.extend(several.map(|at| (*at, shard.to_owned())));
        }
    }

    /// The round is over; if it is `stale`, some have not done what others have: statements and the shards that have done them.
    pub fn end_round(&mut self, stale: bool) -> Vec<(u32, String)> {
        let now = std::mem::take(&mut self.now);
        if stale { now } else { Vec::new() }
    }

    /// A shard has done a statement with all documents that it owned.
    pub fn is_done(&mut self, at: u32, shard: &str, sharded: &Sharded) {
        let chunks = sharded.table.chunks().iter().filter(|chunk| chunk.shard().as_str() == shard);
        let done = self.done.entry(at).or_default();
        done.extend(chunks.map(|chunk| (chunk.min.clone(), chunk.max.clone())));
        done.sort();
    }

    /// The statements for a shard, where some are to do without documents with which they are done.
    pub fn narrowed(
        &self,
        batch: &Batch<'_>,
        sharded: &Sharded,
        shard: &str,
        places: &[u32],
    ) -> Option<Vec<DocBuf>> {
        if !places.iter().any(|at| self.done.contains_key(at)) {
            return None;
        }
        let narrowed = |at: &u32| {
            let statement = batch.statements[*at as usize];
            let Some(done) = self.done.get(at) else { return statement.into() };
            let left = left(sharded, shard, done);
            let all = sharded.table.chunks().iter().filter(|chunk| chunk.shard().as_str() == shard);
            if all.map(|chunk| (&chunk.min, &chunk.max)).eq(left.iter().map(|(min, max)| (min, max))) {
                return statement.into();
            }
            within(statement, batch.kind.filter(), sharded.pattern(), &left)
        };
        Some(places.iter().map(narrowed).collect())
    }
}

/// What a shard owns without these keys, which are sorted.
fn left(sharded: &Sharded, shard: &str, done: &[Piece]) -> Vec<Piece> {
    let mut left = Vec::new();
    for chunk in sharded.table.chunks().iter().filter(|chunk| chunk.shard().as_str() == shard) {
        let mut from = chunk.min.clone();
        for (low, high) in done.iter().filter(|(low, high)| *low < chunk.max && *high > chunk.min) {
            if from < *low {
                left.push((from.clone(), low.clone()));
            }
            from = from.max(high.clone());
        }
        if from < chunk.max {
            left.push((from, chunk.max.clone()));
        }
    }
    left
}

/// The statement for documents with these keys only.
fn within(statement: RawDoc<'_>, name: &str, pattern: &KeyPattern, pieces: &[Piece]) -> DocBuf {
    DocBuf::build(|out| {
        for field in statement.iter() {
            match (field.key(), field.value()) {
                (key, Value::Document(filter)) if key == name => {
                    let mut both = out.document(name);
                    let mut both = both.array("$and");
                    both.push(filter);
                    let mut own = both.document();
                    let mut expression = own.document("$expr");
                    let mut any = expression.array("$or");
                    for (min, max) in pieces {
                        let mut piece = any.document();
                        let mut ends = piece.array("$and");
                        compared(&mut ends, pattern, min, ["$gt", "$gte"]);
                        if *max != pattern.max() {
                            compared(&mut ends, pattern, max, ["$lt", "$lt"]);
                        }
                    }
                }
                _ => _ = out.append_element(field),
            }
        }
    })
}

/// That a document's key is above or below another, value for value: `operators` for all values but the last, and for that.
fn compared(out: &mut ArrayWriter<'_, Vec<u8>>, pattern: &KeyPattern, end: &Key, operators: [&str; 2]) {
    let values: Vec<Value<'_>> = end.document().values().collect();
    let mut either = out.document();
    let mut either = either.array("$or");
    for last in 0..values.len() {
        let mut all = either.document();
        let mut all = all.array("$and");
        for (at, value) in values[..=last].iter().enumerate() {
            let operator = match (at == last, last + 1 == values.len()) {
                (false, _) => "$eq",
                (true, false) => operators[0],
                (true, true) => operators[1],
            };
            let mut compared = all.document();
            let mut sides = compared.array(operator);
            field(&mut sides, pattern, at);
            sides.document().append("$literal", *value);
        }
    }
}

/// The value that a key has of a document's field.
fn field(out: &mut ArrayWriter<'_, Vec<u8>>, pattern: &KeyPattern, at: usize) {
    let field = &pattern.fields()[at];
    let or_null = |doc: &mut DocWriter<'_, Vec<u8>>| {
        let path = format!("${}", field.path.dotted());
        doc.array("$ifNull").push(path.as_str()).push(Value::Null);
    };
    let mut value = out.document();
    if field.hashed {
        or_null(&mut value.document("$toHashedIndexKey"));
    } else {
        or_null(&mut value);
    }
}
