//! Statements that concern one document, of which the router does not know which shard has it: all that may have it are asked, and one that
//! is found is written by its `_id`, with the statement's own filter beside, so that it is still what was meant.
//!
//! A statement that is sent again may have been executed before, by another document than the one that is found now. So the shards are
//! asked for that at the same time.

use std::cmp::Ordering;

use sheaf_bson::{ArrayBuf, DocBuf, DocWriter, OwnedValue, RawDoc, Timestamp, Value, compare, doc};
use sheaf_client::Message;
use sheaf_cluster::{Answer, Sharded};
use sheaf_errors::{Code, Error, Result};
use sheaf_shard::ShardId;
use sheaf_timeseries::unpack_stage;

use super::Batch;
use super::outcome::is_stale;
use crate::addressed::Addressed;
use crate::forward::{self, Body};
use crate::op::Operation;
use crate::session::append_snapshot;

/// The field with what a document is sorted by.
const SORT_KEY: &str = "sortKey";

/// Which document is looked for.
pub struct Search<'d> {
    /// The database.
    pub db: &'d str,
    /// The collection.
    pub collection: &'d str,
    /// What it must match.
    pub filter: RawDoc<'d>,
    /// Which of several, if that matters.
    pub sort: Option<RawDoc<'d>>,
    /// How strings compare.
    pub collation: Option<RawDoc<'d>>,
    /// The index that is to be used, or missing.
    pub hint: Value<'d>,
    /// `let`.
    pub variables: Option<RawDoc<'d>>,
    /// The stage that makes measurements of the collection's documents, if the search is for one of these.
    pub unpack: Option<ArrayBuf>,
}

/// A document that a shard has found.
pub struct Candidate {
    /// Which shard, in the list of those that were asked.
    pub at: usize,
    id: OwnedValue,
    key: Vec<OwnedValue>,
}

impl Search<'_> {
    /// Asks one shard, for what is there or was at this time.
    pub fn message(&self, op: &Operation<'_>, to: &Addressed, at: Option<Timestamp>) -> Message {
        if let Some(unpack) = &self.unpack {
            return self.message_for_measurement(op, to, unpack);
        }
        let sort = self.sort.filter(|sort| !sort.is_empty());
        let mut body =
            doc! { "find": self.collection, "filter": self.filter, "limit": 1, "singleBatch": true };
        body.edit(|out| {
            let mut projection = out.document("projection");
            projection.append("_id", 1);
            if sort.is_some() {
                projection.document(SORT_KEY).append("$meta", "sortKey");
            }
            drop(projection);
            for (name, value) in [("sort", sort), ("collation", self.collation), ("let", self.variables)] {
                if let Some(value) = value {
                    out.append(name, value);
                }
            }
            if !self.hint.is_missing() {
                out.append("hint", self.hint);
            }
            append_surroundings(op, out);
            if let Some(at) = at {
                append_snapshot(at, out);
            }
        });
        forward::command(op, to, &Body { db: self.db, body: body.as_raw() }, |_| false, |_| {})
    }

    /// The time at which a second look is taken that is to find nothing: shards that are asked one after the other may each not have a document
    /// that goes from one to the other meanwhile. `None`: there is nothing more to see.
    pub fn second_look(
        &self,
        op: &Operation<'_>,
        to: &[Addressed],
        first: Option<Timestamp>,
    ) -> Option<Timestamp> {
        let sees_all = first.is_some() || op.in_transaction() || to.len() < 2 || self.unpack.is_some();
        (!sees_all).then(|| op.present())
    }

    /// Asks one shard for a measurement.
    fn message_for_measurement(&self, op: &Operation<'_>, to: &Addressed, unpack: &ArrayBuf) -> Message {
        let stages = ArrayBuf::build(|out| {
            unpack.as_raw().values().for_each(|stage| _ = out.push(stage));
            out.document().append("$match", self.filter);
            out.document().append("$limit", 1);
            out.document().document("$project").append("_id", 1);
        });
        let body = DocBuf::build(|out| {
            out.append("aggregate", self.collection).append("pipeline", Value::Array(stages.as_raw()));
            drop(out.document("cursor"));
            for (name, value) in [("collation", self.collation), ("let", self.variables)] {
                if let Some(value) = value {
                    out.append(name, value);
                }
            }
            append_surroundings(op, out);
        });
        forward::command(op, to, &Body { db: self.db, body: body.as_raw() }, |_| false, |_| {})
    }

    /// The document that comes first, of those that the shards have found.
    pub fn best(&self, answers: &[Answer]) -> Option<Candidate> {
        let found = answers.iter().enumerate().filter_map(|(at, answer)| {
            let batch = answer.reply().get("cursor")?.as_doc()?.get("firstBatch")?.as_array()?;
            let document = batch.values().next()?.as_doc()?;
            let key = document.get(SORT_KEY).and_then(|key| key.as_array());
            Some(Candidate {
                at,
                id: OwnedValue::from(document.get_or_missing("_id")),
                key: key.into_iter().flat_map(|key| key.values()).map(OwnedValue::from).collect(),
            })
        });
        let directions: Vec<bool> =
            self.sort.into_iter().flat_map(|sort| sort.values()).map(is_descending).collect();
        found.min_by(|a, b| by_sort(&directions, a, b))
    }

    /// The search's filter for no document: whoever is sent it says what was executed before, or what is wrong.
    pub fn filter_of_nothing(&self) -> DocBuf {
        DocBuf::build(|out| {
            out.append_all(self.filter).append("$alwaysFalse", 1);
        })
    }

    /// A search has failed. If something is wrong with it the statement itself, which `ask` sends for no document, says so: as the client is
    /// to hear it.
    ///
    /// Errors: the search's, if `ask` finds nothing wrong, or it is about something else; those of `ask`.
    pub fn explain<T>(&self, error: Error, ask: impl FnOnce() -> Result<Option<T>>) -> Result<T> {
        let code = error.code();
        let is_about_it = matches!(code, Code::BAD_VALUE | Code::FAILED_TO_PARSE | Code::TYPE_MISMATCH)
            || (code.0 > 10_000 && !is_stale(code));
        if is_about_it && let Some(answer) = ask()? {
            return Ok(answer);
        }
        Err(error)
    }

    /// The search's filter for this document only.
    pub fn filter_of(&self, candidate: &Candidate) -> DocBuf {
        only(self.filter, candidate.id.as_value())
    }
}

/// What a search has of the operation that it is for.
fn append_surroundings(op: &Operation<'_>, out: &mut DocWriter<'_, Vec<u8>>) {
    for field in op.body().iter() {
        let goes = match field.key() {
            "lsid" | "txnNumber" | "autocommit" => op.in_transaction(),
            "maxTimeMS" | "comment" => true,
            _ => false,
        };
        if goes {
            out.append_element(field);
        }
    }
}

fn is_descending(value: Value<'_>) -> bool {
    value.as_f64().is_some_and(|direction| direction < 0.0)
}

fn by_sort(descending: &[bool], a: &Candidate, b: &Candidate) -> Ordering {
    let pairs = a.key.iter().zip(&b.key).zip(descending);
    let mut orders = pairs.map(|((a, b), descending)| {
        let order = compare(a.as_value(), b.as_value());
        if *descending { order.reverse() } else { order }
    });
    orders.find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
}

/// The filter with an `_id` beside its own conditions, which may have one too.
fn only(filter: RawDoc<'_>, id: Value<'_>) -> DocBuf {
    DocBuf::build(|out| {
        out.append_all(filter);
        let mut and = out.array("$and");
        let mut own = and.document();
        match id {
            // Measurements may have none.
            Value::Missing => _ = own.document("_id").append("$exists", false),
            id => _ = own.append("_id", id),
        }
    })
}

/// The statement with another filter, for one document that is there.
fn with_filter(statement: RawDoc<'_>, name: &str, filter: &DocBuf) -> DocBuf {
    DocBuf::build(|out| {
        for field in statement.iter() {
            match field.key() {
                key if key == name => _ = out.append(name, filter.as_raw()),
                "upsert" => {}
                _ => _ = out.append_element(field),
            }
        }
    })
}

/// Runs a statement of a batch that one of these shards has the document for; gives the shard that has answered it, and the answer.
///
/// Errors: the first that a shard answers; those of the way there.
pub fn run(
    op: &Operation<'_>,
    batch: &Batch<'_>,
    at: u32,
    sharded: &Sharded,
    shards: &[&ShardId],
) -> Result<(Addressed, Answer)> {
    let statement = batch.statements[at as usize];
    let namespace = &batch.namespaces[batch.namespace_of(at)];
    let document = |name: &str| statement.get(name).and_then(|value| value.as_doc());
    let search = Search {
        db: namespace.db,
        collection: namespace.collection,
        filter: document(batch.kind.filter()).unwrap_or(RawDoc::EMPTY),
        sort: document("sort"),
        collation: document("collation"),
        hint: statement.get_or_missing("hint"),
        variables: op.body().get("let").and_then(|variables| variables.as_doc()),
        unpack: sharded.timeseries.as_ref().filter(|_| namespace.measured).map(unpack_stage),
    };
    let to: Vec<Addressed> =
        shards.iter().map(|shard| op.addressed(sharded, shard)).collect::<Result<_>>()?;
    let send_as = |to: &Addressed, statement: RawDoc<'_>, asks| {
        let mut message = batch.message_at(op, to, at, statement, asks);
        forward::exchange(op, &to.target, &mut message).map(|answer| (to.clone(), answer))
    };
    let send = |to: &Addressed, statement: RawDoc<'_>| send_as(to, statement, false);
    let upserts = statement.get("upsert").is_some_and(|upsert| upsert.truthy());
    let probe = with_filter(statement, batch.kind.filter(), &search.filter_of_nothing());
    if op.is_retryable_write() {
        let asked = may_execute(op, sharded, &to, upserts)?;
        let messages = asked.iter().map(|to| (to, batch.message_at(op, to, at, probe.as_raw(), true)));
        for (to, answer) in asked.iter().zip(forward::exchange_all(op, messages.collect())) {
            let answer = answer?;
            if says_something(answer.reply()) {
                return Ok((to.clone(), answer));
            }
        }
    }
    op.choose_read_time();
    let mut look = None;
    loop {
        op.check_interrupt()?;
        let messages = to.iter().map(|to| (to, search.message(op, to, look))).collect();
        let answers: Vec<Answer> = match forward::exchange_all(op, messages).into_iter().collect() {
            Ok(answers) => answers,
            Err(error) => {
                let is_error = |(_, answer): &(Addressed, Answer)| says_something(answer.reply());
                return search.explain(error, || {
                    send_as(&to[0], probe.as_raw(), true).map(|said| Some(said).filter(is_error))
                });
            }
        };
        let Some(candidate) = search.best(&answers) else {
            drop(answers);
            look = search.second_look(op, &to, look);
            if look.is_some() {
                continue;
            }
            return if upserts { send(&to[0], statement) } else { send_as(&to[0], probe.as_raw(), true) };
        };
        drop(answers);
        look = None;
        let written = with_filter(statement, batch.kind.filter(), &search.filter_of(&candidate));
        let (to, answer) = send(&to[candidate.at], written.as_raw())?;
        // Somebody may have been faster.
        if !has_done_nothing(answer.reply()) {
            return Ok((to, answer));
        }
    }
}

/// The shards that may execute a statement whose document one of these may have: what it upserts may be any shard's.
///
/// Errors: those of finding the shards.
pub fn may_execute(
    op: &Operation<'_>,
    sharded: &Sharded,
    those: &[Addressed],
    upserts: bool,
) -> Result<Vec<Addressed>> {
    match upserts {
        true => sharded.table.shards().map(|shard| op.addressed(sharded, shard)).collect(),
        false => Ok(those.to_vec()),
    }
}

/// Whether the answer to one statement is that there was no document for it.
pub fn has_done_nothing(reply: RawDoc<'_>) -> bool {
    !says_something(reply) && !changed(reply)
}

/// Whether the answer to one statement is an error, or what was executed before.
fn says_something(reply: RawDoc<'_>) -> bool {
    let failed = reply.get("nErrors").and_then(|errors| errors.as_exact_i64()).unwrap_or(0);
    failed > 0 || ["retriedStmtIds", "writeErrors"].iter().any(|field| reply.get(field).is_some())
}

/// Whether a document was there to be changed.
fn changed(reply: RawDoc<'_>) -> bool {
    ["n", "nMatched", "nDeleted", "nUpserted"]
        .iter()
        .any(|field| reply.get(field).and_then(|n| n.as_exact_i64()).is_some_and(|n| n > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filter_stays_beside_the_id() {
        let filter = doc! { "_id": { "$gt": 1 }, "$and": [{ "a": 1 }] };
        let expected = doc! { "_id": { "$gt": 1 }, "$and": [{ "a": 1 }], "$and": [{ "_id": 7 }] };
        assert_eq!(only(filter.as_raw(), 7.into()), expected);
        let statement = doc! { "q": {}, "u": { "$set": { "a": 1 } }, "upsert": true, "collation": {} };
        let expected = doc! { "q": { "b": 1 }, "u": { "$set": { "a": 1 } }, "collation": {} };
        assert_eq!(with_filter(statement.as_raw(), "q", &doc! { "b": 1 }), expected);
    }

    #[test]
    fn candidates_come_in_the_sort_s_order() {
        let candidate = |key: [i32; 2]| Candidate {
            at: 0,
            id: OwnedValue::from(Value::Null),
            key: key.map(|value| OwnedValue::from(Value::Int32(value))).to_vec(),
        };
        let order = |a, b| by_sort(&[false, true], &candidate(a), &candidate(b));
        assert_eq!(order([1, 1], [2, 1]), Ordering::Less);
        assert_eq!(order([1, 1], [1, 2]), Ordering::Greater);
        assert_eq!(order([1, 1], [1, 1]), Ordering::Equal);
    }
}
