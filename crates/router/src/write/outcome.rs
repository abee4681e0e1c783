//! What shards have answered to the parts of a batch, put together as one server's answer.

use std::collections::{BTreeMap, BTreeSet};

use sheaf_bson::{DocBuf, DocWriter, OwnedValue, RawDoc, Value};
use sheaf_cluster::Answer;
use sheaf_errors::{Code, Error, Result};
use sheaf_front::dispatch;
use sheaf_front::reply::Reply;
use sheaf_front::session::TxnPart;

use super::own::ConcernErrors;
use crate::forward::is_change;
use crate::op::Operation;
use crate::target::Target;

/// What shards have answered to the parts of a batch so far.
pub trait Answers: Default {
    /// Whether nothing has been answered yet.
    fn is_empty(&self) -> bool;

    /// Whether a statement has failed.
    fn has_failed(&self) -> bool;

    /// Takes in a shard's answer to the statements at these places.
    ///
    /// Errors: those of getting the rest of an answer.
    fn take(&mut self, op: &Operation<'_>, to: &Target, places: &[u32], answer: &Answer) -> Result<Taken>;

    /// A statement that fails without having been sent, or of which no shard has said more.
    fn fail(&mut self, at: u32, error: &Error);

    /// A statement has changed the document's shard, or has made one with this `_id` on another shard than it was sent to.
    fn moved(&mut self, at: u32, upserted: Option<OwnedValue>, concerns: ConcernErrors);

    /// Inserts of a transaction went to all shards at once, and the first error, after which nothing counts, is what is to be told.
    fn cut_behind_error(&mut self);

    /// Takes in what several shards have answered to inserts that happen together, and errors of the write concerns of their commits.
    fn add(&mut self, other: Self, concerns: ConcernErrors);
}

/// What shards have answered to the parts of an insert, update or delete so far.
#[derive(Default)]
pub struct Outcome {
    n: i64,
    /// Updates only.
    modified: Option<i64>,
    upserted: BTreeMap<u32, OwnedValue>,
    /// Entries of `writeErrors` without their index.
    errors: BTreeMap<u32, DocBuf>,
    /// Those of write concerns, and the shards that they are of.
    concerns: Vec<(String, DocBuf)>,
    retried: BTreeSet<i32>,
    /// Statements of a retryable write whose documents are counted, as far as that is known.
    counted: BTreeSet<i32>,
}

/// What became of the statements that a shard was sent.
#[derive(Debug, Default)]
pub struct Taken {
    /// From this place of the list on nothing was executed: the shard's view is not the router's, says the error.
    pub stale: Option<(usize, Error)>,
    /// Places in the list of statements whose documents are to be another shard's.
    pub moving: Vec<usize>,
    /// Places in the list of statements that have failed.
    pub refused: Vec<usize>,
    /// How many documents were there for the statements; for one of a retryable write there is one at most.
    pub found: i64,
}

/// The numbers that the statements of a command have.
pub struct StmtIds {
    ids: Vec<i32>,
    first: i32,
}

impl StmtIds {
    /// Those of a command.
    pub fn of(body: RawDoc<'_>) -> Self {
        let number = |value: Value<'_>| value.as_exact_i64().unwrap_or(0) as i32;
        let ids = body.get("stmtIds").and_then(|ids| ids.as_array());
        StmtIds {
            ids: ids.into_iter().flat_map(|ids| ids.values()).map(number).collect(),
            first: number(body.get_or_missing("stmtId")),
        }
    }

    /// That of the statement at this place.
    pub fn of_place(&self, at: u32) -> i32 {
        self.ids.get(at as usize).copied().unwrap_or_else(|| self.first.wrapping_add(at as i32))
    }
}

/// The error in an entry of `writeErrors`, or of a `bulkWrite`'s answers, that says that the shard's view is another.
pub fn stale_entry(entry: RawDoc<'_>) -> Option<Error> {
    let code = entry.get("code").and_then(|code| code.as_exact_i64()).map_or(0, |code| code as i32);
    let text = entry.get("errmsg").and_then(|text| text.as_str()).unwrap_or_default();
    is_stale(Code(code)).then(|| Error::new(Code(code), text))
}

/// Whether an error says that a request was sent by an older or newer view than the shard's.
pub fn is_stale(code: Code) -> bool {
    matches!(code, Code::STALE_CONFIG | Code::STALE_DB_VERSION)
}

impl Answers for Outcome {
    fn is_empty(&self) -> bool {
        self.n == 0 && self.upserted.is_empty() && self.errors.is_empty() && self.retried.is_empty()
    }

    fn has_failed(&self) -> bool {
        !self.errors.is_empty()
    }

    fn take(&mut self, op: &Operation<'_>, to: &Target, places: &[u32], answer: &Answer) -> Result<Taken> {
        op.note_diffs(answer.reply());
        let ids = StmtIds::of(op.body());
        let ids = places.iter().filter(|_| op.is_retryable_write()).map(|at| ids.of_place(*at)).collect();
        Ok(self.take_reply(to.name(), (places, ids), answer.reply()))
    }

    fn fail(&mut self, at: u32, error: &Error) {
        self.errors.entry(at).or_insert_with(|| DocBuf::build(|out| write_error(out, error)));
    }

    fn moved(&mut self, at: u32, upserted: Option<OwnedValue>, concerns: ConcernErrors) {
        self.n += 1;
        *self.modified.get_or_insert(0) += i64::from(upserted.is_none());
        self.upserted.extend(upserted.map(|id| (at, id)));
        self.concerns.extend(concerns);
    }

    fn cut_behind_error(&mut self) {
        if let Some(first) = self.errors.keys().next().copied() {
            self.errors.retain(|at, _| *at == first);
            self.n = i64::from(first);
        }
    }

    fn add(&mut self, other: Self, concerns: ConcernErrors) {
        self.n += other.n;
        self.retried.extend(other.retried);
        self.concerns.extend(other.concerns);
        self.concerns.extend(concerns);
    }
}

/// Writes an error's code, what stands beside it, and its text.
pub fn write_error(out: &mut DocWriter<'_, Vec<u8>>, error: &Error) {
    out.append("code", error.code().0);
    if let Some(extra) = error.extra() {
        out.append_all(RawDoc::new(extra));
    }
    if let Some(info) = error.err_info() {
        out.append("errInfo", RawDoc::new(info));
    }
    out.append("errmsg", error.message());
}

impl Outcome {
    /// Takes in a shard's reply to the statements at these places, which have these numbers, if they are retryable.
    fn take_reply(&mut self, shard: &str, (places, ids): (&[u32], Vec<i32>), reply: RawDoc<'_>) -> Taken {
        let number = |value: Value<'_>| value.as_exact_i64().unwrap_or(0);
        let place = |entry: RawDoc<'_>| {
            let index = entry.get("index").and_then(|index| index.as_exact_i64())?;
            let index = usize::try_from(index).ok()?;
            Some((index, *places.get(index)?))
        };
        let (mut taken, mut retried) = (Taken::default(), BTreeSet::new());
        for field in reply.iter() {
            let value = field.value();
            let entries = || {
                let entries = value.as_array().into_iter().flat_map(|list| list.values());
                entries.filter_map(|entry| entry.as_doc())
            };
            match field.key() {
                "n" => taken.found = number(value),
                "nModified" => *self.modified.get_or_insert(0) += number(value),
                "upserted" => {
                    for (entry, (_, at)) in entries().filter_map(|entry| Some((entry, place(entry)?))) {
                        self.upserted.insert(at, OwnedValue::from(entry.get_or_missing("_id")));
                    }
                }
                "writeErrors" => {
                    for (entry, (index, at)) in entries().filter_map(|entry| Some((entry, place(entry)?))) {
                        match stale_entry(entry) {
                            Some(error) => taken.stale = Some((index, error)),
                            None if is_change(entry) => taken.moving.push(index),
                            None => {
                                taken.refused.push(index);
                                self.errors.entry(at).or_insert_with(|| without_index(entry));
                            }
                        }
                    }
                }
                "retriedStmtIds" => {
                    let ids = value.as_array().into_iter().flat_map(|ids| ids.values());
                    retried.extend(ids.map(|id| number(id) as i32));
                }
                "writeConcernError" => {
                    if let Some(error) = value.as_doc() {
                        self.concerns.push((shard.to_owned(), error.into()));
                    }
                }
                _ => {}
            }
        }
        let end = taken.stale.as_ref().map_or(ids.len(), |(from, _)| *from);
        let again = self.counted_before(&ids[..end.min(ids.len())], &retried, taken.found);
        self.n += taken.found - again;
        self.modified = self.modified.map(|modified| (modified - again).max(0));
        self.retried.extend(retried);
        taken
    }

    /// How many of the documents that a shard has found for retryable statements another one has told of. The record of a statement goes with
    /// a range that moves, and says the same there as where it was executed, now or by an earlier attempt.
    fn counted_before(&mut self, executed: &[i32], retried: &BTreeSet<i32>, found: i64) -> i64 {
        let mut told = retried.clone();
        // Of some of several nobody knows which.
        if found == executed.len() as i64 {
            told.extend(executed);
        }
        told.into_iter().filter(|id| !self.counted.insert(*id)).count() as i64
    }

    /// Writes it as a mongod writes its own; `updates` have `nModified` in any case.
    pub fn write(&self, reply: &mut Reply, updates: bool, part: TxnPart) {
        reply.fill(|out| {
            out.append("n", self.n as i32);
            if !self.upserted.is_empty() {
                let mut list = out.array("upserted");
                for (at, id) in &self.upserted {
                    list.document().append("index", *at as i32).append("_id", id.as_value());
                }
            }
            if updates {
                out.append("nModified", self.modified.unwrap_or(0) as i32);
            }
            if !self.errors.is_empty() {
                let mut list = out.array("writeErrors");
                for (at, error) in &self.errors {
                    list.document().append("index", *at as i32).append_all(error.as_raw());
                }
            }
            if !self.retried.is_empty() {
                let mut list = out.array("retriedStmtIds");
                self.retried.iter().for_each(|id| _ = list.push(*id));
            }
            write_concern_error(out, &self.concerns, part);
        });
    }
}

/// `writeConcernError`: one shard's as it is, of several one that names them all; with the label by which drivers send a
/// retryable write again, where one of them deserves it.
pub fn write_concern_error(out: &mut DocWriter<'_, Vec<u8>>, errors: &[(String, DocBuf)], part: TxnPart) {
    let passes = |error: &DocBuf| {
        let code = error.as_raw().get("code").and_then(|code| code.as_exact_i64()).unwrap_or(0);
        dispatch::is_retryable(Code(code as i32))
    };
    if part == TxnPart::RetryableWrite && errors.iter().any(|(_, error)| passes(error)) {
        out.array("errorLabels").push(dispatch::RETRYABLE);
    }
    let [(_, first), others @ ..] = errors else { return };
    if others.is_empty() {
        out.append("writeConcernError", first.as_raw());
        return;
    }
    let text = |error: &DocBuf| {
        let text = error.as_raw().get("errmsg").and_then(|text| text.as_str());
        text.unwrap_or_default().to_owned()
    };
    let all: Vec<String> =
        errors.iter().map(|(shard, error)| format!("{} at {shard}", text(error))).collect();
    let code = Code::WRITE_CONCERN_FAILED;
    let mut shown = out.document("writeConcernError");
    shown.append("code", code.0).append("codeName", &*code.name());
    shown.append("errmsg", &format!("multiple errors reported : {}", all.join(" :: and :: ")));
    if let Some(info) = first.as_raw().element("errInfo") {
        shown.append_element(info);
    }
}

fn without_index(entry: RawDoc<'_>) -> DocBuf {
    DocBuf::build(|out| {
        for field in entry.iter().filter(|field| field.key() != "index") {
            out.append_element(field);
        }
    })
}

#[cfg(test)]
mod tests {
    use sheaf_bson::doc;

    use super::*;

    fn written(outcome: &Outcome, updates: bool) -> DocBuf {
        written_as(outcome, updates, TxnPart::Plain)
    }

    fn written_as(outcome: &Outcome, updates: bool, part: TxnPart) -> DocBuf {
        let mut reply = Reply::ok();
        outcome.write(&mut reply, updates, part);
        let mut bytes = (reply.elements().len() as i32 + 5).to_le_bytes().to_vec();
        bytes.extend_from_slice(reply.elements());
        bytes.push(0);
        DocBuf::from(RawDoc::new(&bytes))
    }

    #[test]
    fn places_are_the_client_s() {
        let mut outcome = Outcome::default();
        let first = doc! { "n": 2, "nModified": 1, "upserted": [{ "index": 1, "_id": 7 }], "ok": 1.0 };
        assert!(outcome.take_reply("s0", (&[0, 4], vec![]), first.as_raw()).stale.is_none());
        let second = doc! {
            "n": 1, "nModified": 1, "writeErrors": [{ "index": 1, "code": 11000, "keyValue": { "_id": 1 }, "errmsg": "twice" }],
            "retriedStmtIds": [1], "ok": 1.0
        };
        assert!(outcome.take_reply("s1", (&[1, 2, 3], vec![]), second.as_raw()).stale.is_none());
        outcome.fail(5, &Error::new(Code(61), "no key"));
        let expected = doc! {
            "n": 3, "upserted": [{ "index": 4, "_id": 7 }], "nModified": 2,
            "writeErrors": [
                { "index": 2, "code": 11000, "keyValue": { "_id": 1 }, "errmsg": "twice" },
                { "index": 5, "code": 61, "errmsg": "no key" }
            ],
            "retriedStmtIds": [1]
        };
        assert_eq!(written(&outcome, true), expected);
    }

    #[test]
    fn a_statement_on_record_on_two_shards_counts_once() {
        let mut outcome = Outcome::default();
        let recorded = doc! { "n": 1, "nModified": 1, "retriedStmtIds": [0], "ok": 1.0 };
        for shard in ["s0", "s1"] {
            assert!(outcome.take_reply(shard, (&[0], vec![0]), recorded.as_raw()).stale.is_none());
        }
        assert_eq!(written(&outcome, true), doc! { "n": 1, "nModified": 1, "retriedStmtIds": [0] });
    }

    #[test]
    fn a_statement_that_is_executed_and_comes_as_a_record_counts_once() {
        let recorded = doc! { "n": 1, "nModified": 1, "retriedStmtIds": [0], "ok": 1.0 };
        let executed = doc! { "n": 1, "nModified": 1, "ok": 1.0 };
        for replies in [[&executed, &recorded], [&recorded, &executed]] {
            let mut outcome = Outcome::default();
            for (shard, reply) in ["s0", "s1"].into_iter().zip(replies) {
                outcome.take_reply(shard, (&[4], vec![0]), reply.as_raw());
            }
            assert_eq!(written(&outcome, true), doc! { "n": 1, "nModified": 1, "retriedStmtIds": [0] });
        }
    }

    #[test]
    fn what_is_stale_is_no_error() {
        let mut outcome = Outcome::default();
        let reply =
            doc! { "n": 1, "writeErrors": [{ "index": 1, "code": 13388, "errmsg": "stale" }], "ok": 1.0 };
        assert!(matches!(outcome.take_reply("s0", (&[3, 5, 6], vec![]), reply.as_raw()).stale, Some((1, _))));
        assert!(!outcome.has_failed() && !outcome.is_empty());
    }

    #[test]
    fn behind_the_first_error_of_a_transaction_nothing_counts() {
        let mut outcome = Outcome::default();
        outcome.take_reply("s0", (&[0, 2, 4], vec![]), doc! { "n": 3 }.as_raw());
        let twice = doc! { "n": 1, "writeErrors": [{ "index": 1, "code": 11000, "errmsg": "twice" }] };
        outcome.take_reply("s1", (&[1, 3], vec![]), twice.as_raw());
        outcome.fail(4, &Error::new(Code(61), "no key"));
        outcome.cut_behind_error();
        let expected = doc! { "n": 3, "writeErrors": [{ "index": 3, "code": 11000, "errmsg": "twice" }] };
        assert_eq!(written(&outcome, false), expected);
    }

    #[test]
    fn a_retryable_write_whose_concern_fails_is_labelled() {
        let label = |outcome: &Outcome, part| {
            let reply = written_as(outcome, true, part);
            let labels = reply.as_raw().get("errorLabels").and_then(|labels| labels.as_array());
            labels.is_some_and(|labels| {
                labels.values().any(|label| label.as_str() == Some("RetryableWriteError"))
            })
        };
        let stopped = doc! {
            "n": 1, "writeConcernError": { "code": 11602, "codeName": "InterruptedDueToReplStateChange", "errmsg": "over" }
        };
        let late = doc! { "n": 1, "writeConcernError": { "code": 64, "codeName": "WriteConcernFailed", "errmsg": "late" } };
        for (replies, is_labelled) in [
            (vec![&stopped], true),
            (vec![&late], false),
            // One of several is enough, whichever.
            (vec![&stopped, &late], true),
            (vec![&late, &stopped], true),
        ] {
            let mut outcome = Outcome::default();
            for (at, reply) in replies.into_iter().enumerate() {
                outcome.take_reply(&format!("s{at}"), (&[at as u32], vec![at as i32]), reply.as_raw());
            }
            assert_eq!(label(&outcome, TxnPart::RetryableWrite), is_labelled);
            assert!(!label(&outcome, TxnPart::Plain), "nobody sends it again");
        }
    }

    #[test]
    fn errors_of_write_concerns_are_merged() {
        let mut outcome = Outcome::default();
        let late = doc! { "n": 1, "writeConcernError": { "code": 64, "codeName": "WriteConcernFailed", "errmsg": "late" } };
        outcome.take_reply("s0", (&[0], vec![]), late.as_raw());
        let one = doc! { "n": 1, "writeConcernError": { "code": 64, "codeName": "WriteConcernFailed", "errmsg": "late" } };
        assert_eq!(written(&outcome, false), one);
        outcome.take_reply("s1", (&[1], vec![]), late.as_raw());
        let text = written(&outcome, false);
        let error = text.as_raw().get("writeConcernError").and_then(|error| error.as_doc()).unwrap();
        assert_eq!(
            error.get("errmsg").and_then(|text| text.as_str()),
            Some("multiple errors reported : late at s0 :: and :: late at s1")
        );
    }
}
