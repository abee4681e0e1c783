//! Statements that several shards execute, each on its own documents: each document once, also where some shards have done it and a range
//! has moved before others did.

use std::collections::{BTreeMap, BTreeSet};

use sheaf_bson::{ArrayWriter, DocBuf, DocWriter, RawDoc, Value};
use sheaf_cluster::Sharded;
use sheaf_errors::{Code, Error, Result};
use sheaf_shard::ShardId;
use sheaf_shard::placement::{Key, KeyPattern};

use super::Batch;
use crate::addressed::Placed;

/// From a key on and below another; to the end, where that is the highest.
type Piece = (Key, Key);

/// What shards have done of the statements that several were sent.
#[derive(Default)]
pub struct Multis {
    /// The statements that several were sent.
    several: BTreeSet<u32>,
    /// What is done of a statement, from earlier rounds.
    done: BTreeMap<u32, Done>,
    /// What was done in this round, by the names of shards.
    now: Vec<(u32, Part)>,
}

/// What a shard has done of a statement.
pub struct Part {
    /// Its name.
    pub shard: String,
    /// Whether a document was there for it.
    pub changed: bool,
}

/// What is done of a statement.
struct Done {
    /// The collection: one that gets another key becomes another one, with all documents elsewhere.
    uuid: [u8; 16],
    /// Its key.
    pattern: KeyPattern,
    /// Keys of documents with which it is done.
    pieces: Vec<Piece>,
    /// Who has done it.
    shards: BTreeSet<String>,
    /// Whether a document was there for it.
    changed: bool,
}

impl Done {
    /// Takes the place of the collection's key, if it is the same collection's, and at most longer.
    fn agrees(&mut self, sharded: &Sharded) -> bool {
        let (pattern, newer) = (&self.pattern, sharded.pattern());
        if self.uuid != sharded.uuid {
            return false;
        }
        if pattern.fields().len() == newer.fields().len() {
            return true;
        }
        let longer = |(min, max): &Piece| Ok((min.refined(pattern, newer)?, max.refined(pattern, newer)?));
        let pieces: Result<Vec<Piece>> = self.pieces.iter().map(longer).collect();
        let Ok(pieces) = pieces else { return false };
        (self.pieces, self.pattern) = (pieces, newer.clone());
        true
    }
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
                let has_some = |shard: &&ShardId| !left(sharded, shard.as_str(), &done.pieces).is_empty();
                shards.into_iter().filter(has_some).collect()
            }
        }
    }

    /// A shard has executed these statements; for some of them it had documents, if it has `changed` any.
    pub fn done_on(&mut self, shard: &str, places: &[u32], changed: bool) {
        if !self.several.is_empty() {
            let several = places.iter().filter(|at| self.several.contains(at));
            self.now.extend(several.map(|at| (*at, Part { shard: shard.to_owned(), changed })));
        }
    }

    /// The collection of a statement is this now. What was done of the statement while it was another one says nothing of the documents of
    /// this: it begins anew, if that changes no document twice.
    ///
    /// Errors: `QueryPlanKilled`, where it would.
    pub fn meets(&mut self, batch: &Batch<'_>, at: u32, placed: &Placed) -> Result<()> {
        let Some(done) = self.done.get_mut(&at) else { return Ok(()) };
        // Of measurements nobody can say that those are meant whose buckets have certain keys.
        let may_go_on = !batch.is_measured(at);
        if may_go_on && matches!(placed, Placed::Spread(sharded) if done.agrees(sharded)) {
            return Ok(());
        }
        let namespace = &batch.namespaces[batch.namespace_of(at)];
        let shards: Vec<&str> = done.shards.iter().map(String::as_str).collect();
        let what = match may_go_on {
            true => "became another collection, by another key or elsewhere,",
            false => "has given ranges to other shards",
        };
        let text = format!(
            "{}.{} {what} when only {} had executed the statement",
            namespace.db,
            namespace.collection,
            shards.join(", ")
        );
        let begins = !done.changed || batch.deletes(at) || batch.may_be_done_twice(at);
        self.done.remove(&at);
        if begins { Ok(()) } else { Err(Error::new(Code::QUERY_PLAN_KILLED, text)) }
    }

    /// Nothing is done of a statement about one document: the shards that have said so looked where it was not any more, or not yet.
    pub fn begins_anew(&mut self, at: u32) {
        let done = self.done.remove(&at);
        assert!(!done.is_some_and(|done| done.changed), "one document is changed once");
    }

    /// Whether several shards were sent this statement.
    pub fn are_several(&self, at: u32) -> bool {
        self.several.contains(&at)
    }

    /// The round is over; if it is `stale`, some have not done what others have: statements and the shards that have done them.
    pub fn end_round(&mut self, stale: bool) -> Vec<(u32, Part)> {
        let now = std::mem::take(&mut self.now);
        if stale { now } else { Vec::new() }
    }

    /// A shard has done a statement with all documents that it owned.
    pub fn is_done(&mut self, at: u32, part: Part, sharded: &Sharded) {
        let chunks = sharded.table.chunks().iter().filter(|chunk| chunk.shard().as_str() == part.shard);
        let done = self.done.entry(at).or_insert_with(|| Done {
            uuid: sharded.uuid,
            pattern: sharded.pattern().clone(),
            pieces: Vec::new(),
            shards: BTreeSet::new(),
            changed: false,
        });
        assert!(done.uuid == sharded.uuid, "what was done in another collection is forgotten before");
        done.pieces.extend(chunks.map(|chunk| (chunk.min.clone(), chunk.max.clone())));
        done.pieces.sort();
        done.shards.insert(part.shard);
        done.changed |= part.changed;
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
            let left = left(sharded, shard, &done.pieces);
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
