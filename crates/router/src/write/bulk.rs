//! What shards have answered to the parts of a `bulkWrite`.

use std::collections::{BTreeMap, BTreeSet};

use sheaf_bson::{DocBuf, DocWriter, Element, OwnedValue, RawDoc, doc};
use sheaf_client::Message;
use sheaf_cluster::{Answer, Call, error_in, unreachable};
use sheaf_errors::{Error, Result, bail};
use sheaf_front::reply::Reply;
use sheaf_rows::{Documents, Limits};

use super::Answers;
use super::outcome::{StmtIds, Taken, stale_entry, write_concern_error, write_error};
use super::own::ConcernErrors;
use crate::cursor::Merged;
use crate::forward::{Body, command, is_change};
use crate::merged::{First, first_batch, link};
use crate::op::Operation;
use crate::target::Target;

/// Figures of a reply, which are summed up, except `nErrors`.
const FIGURES: [&str; 5] = ["nInserted", "nMatched", "nModified", "nUpserted", "nDeleted"];

/// By what name the cursors of answers go.
const NAMESPACE: &str = "admin.$cmd.bulkWrite";

/// What shards have answered to the parts of a `bulkWrite` so far.
#[derive(Default)]
pub struct BulkOutcome {
    figures: [i64; FIGURES.len()],
    /// What became of each statement, without its index.
    items: BTreeMap<u32, DocBuf>,
    failed: BTreeSet<u32>,
    concerns: Vec<(String, DocBuf)>,
    retried: BTreeSet<i32>,
    /// Each statement is about one document: the write is retryable.
    singles: bool,
}

impl Answers for BulkOutcome {
    fn is_empty(&self) -> bool {
        self.items.is_empty() && self.figures.iter().all(|n| *n == 0) && self.retried.is_empty()
    }

    fn has_failed(&self) -> bool {
        !self.failed.is_empty()
    }

    fn take(&mut self, op: &Operation<'_>, to: &Target, places: &[u32], answer: &Answer) -> Result<Taken> {
        let reply = answer.reply();
        op.note_diffs(reply);
        self.singles = op.is_retryable_write();
        for (figure, name) in self.figures.iter_mut().zip(FIGURES) {
            *figure += number(reply, name);
        }
        let repeated = self.note_retried(op.body(), places, reply);
        if let Some(error) = reply.get("writeConcernError").and_then(|error| error.as_doc()) {
            self.concerns.push((to.name().to_owned(), error.into()));
        }
        let Some(cursor) = reply.get("cursor").and_then(|cursor| cursor.as_doc()) else {
            return Ok(Taken::default());
        };
        let found = ["nMatched", "nUpserted", "nDeleted"].map(|name| number(reply, name)).iter().sum();
        let mut taken = Taken { found, ..Taken::default() };
        self.take_batch(places, &repeated, cursor, "firstBatch", &mut taken);
        let id = number(cursor, "id");
        if id != 0 {
            self.take_rest(op, to, answer.host(), id, (places, &repeated), &mut taken)?;
        }
        Ok(taken)
    }

    fn fail(&mut self, at: u32, error: &Error) {
        self.failed.insert(at);
        // What shards have found before it failed is known, and stands in the figures, too.
        let known = self.items.get(&at).map(|known| known.as_raw());
        let count = |name: &str| known.map_or(0, |known| number(known, name)) as i32;
        let item = DocBuf::build(|out| {
            out.append("ok", 0.0).append("n", count("n"));
            if count("n") > 0 && known.is_some_and(|known| known.element("nModified").is_some()) {
                out.append("nModified", count("nModified"));
            }
            write_error(out, error);
        });
        self.items.insert(at, item);
    }

    fn moved(&mut self, at: u32, upserted: Option<OwnedValue>, concerns: ConcernErrors) {
        let [_, matched, modified, inserted, _] = &mut self.figures;
        match &upserted {
            Some(_) => *inserted += 1,
            None => (*matched, *modified) = (*matched + 1, *modified + 1),
        }
        let mut item = doc! { "ok": 1.0, "n": 1, "nModified": i32::from(upserted.is_none()) };
        if let Some(id) = &upserted {
            item.edit(|out| _ = out.document("upserted").append("_id", id.as_value()));
        }
        self.items.insert(at, item);
        self.concerns.extend(concerns);
    }

    fn cut_behind_error(&mut self) {}

    fn add(&mut self, other: Self, concerns: ConcernErrors) {
        self.figures.iter_mut().zip(other.figures).for_each(|(sum, more)| *sum += more);
        self.singles |= other.singles;
        self.items.extend(other.items);
        self.retried.extend(other.retried);
        self.concerns.extend(other.concerns.into_iter().chain(concerns));
    }
}

impl BulkOutcome {
    /// Notes what this shard has on record of an earlier attempt; gives the places of statements that another shard has on record, too: the
    /// record goes with a range that moves, and by then two shards tell of the one document.
    fn note_retried(&mut self, body: RawDoc<'_>, places: &[u32], reply: RawDoc<'_>) -> Vec<u32> {
        let own = StmtIds::of(body);
        let ids = reply.get("retriedStmtIds").and_then(|ids| ids.as_array());
        let ids = ids.into_iter().flat_map(|ids| ids.values()).filter_map(|id| id.as_exact_i64());
        let repeated: Vec<i32> = ids.map(|id| id as i32).filter(|id| !self.retried.insert(*id)).collect();
        places.iter().copied().filter(|at| repeated.contains(&own.of_place(*at))).collect()
    }

    /// A statement that was counted before does not count; inserts go to one shard only.
    fn discount(&mut self, item: RawDoc<'_>) {
        let [_, matched, modified, upserted, deleted] = &mut self.figures;
        match (item.element("nModified"), item.element("upserted")) {
            (None, _) => *deleted -= number(item, "n"),
            (Some(_), Some(_)) => *upserted -= 1,
            (Some(_), None) => {
                *matched -= number(item, "n");
                *modified -= number(item, "nModified");
            }
        }
    }

    fn take_batch(
        &mut self,
        places: &[u32],
        repeated: &[u32],
        cursor: RawDoc<'_>,
        name: &str,
        taken: &mut Taken,
    ) {
        let batch = cursor.get(name).and_then(|batch| batch.as_array());
        for item in batch.into_iter().flat_map(|batch| batch.values()).filter_map(|item| item.as_doc()) {
            let index = number(item, "idx") as usize;
            let Some(at) = places.get(index) else { continue };
            if let Some(error) = stale_entry(item) {
                taken.stale = Some((index, error));
                continue;
            }
            if is_change(item) {
                taken.moving.push(index);
                continue;
            }
            if !item.get("ok").is_some_and(|ok| ok.truthy()) {
                self.failed.insert(*at);
                taken.refused.push(index);
            }
            let counted = self.items.get(at).is_some_and(|known| number(known.as_raw(), "n") > 0);
            if repeated.contains(at) || (self.singles && counted && number(item, "n") > 0) {
                self.discount(item);
                continue;
            }
            let shown = match self.items.get(at) {
                Some(other) => both(other.as_raw(), item),
                None => DocBuf::build(|out| fields(item).for_each(|field| _ = out.append_element(field))),
            };
            self.items.insert(*at, shown);
        }
    }

    /// Asks for what did not fit the first batch.
    fn take_rest(
        &mut self,
        op: &Operation<'_>,
        to: &Target,
        host: &str,
        id: i64,
        (places, repeated): (&[u32], &[u32]),
        taken: &mut Taken,
    ) -> Result<()> {
        let mut id = id;
        while id != 0 {
            let mut body = doc! { "getMore": id, "collection": "$cmd.bulkWrite" };
            for field in
                op.body().iter().filter(|field| matches!(field.key(), "lsid" | "txnNumber" | "autocommit"))
            {
                if field.key() == "lsid" || op.in_transaction() {
                    body.edit(|out| _ = out.append_element(field));
                }
            }
            let to = to.clone().into();
            let mut message: Message =
                command(op, &to, &Body { db: "admin", body: body.as_raw() }, |_| false, |_| {});
            let go_on = || op.check_interrupt();
            let answer = op.blocking(|| {
                Call::send_to(to.target.set(), host, &mut message)
                    .map_err(|error| unreachable(host, &error))?
                    .finish_there(&go_on)
            })?;
            op.heard(answer.reply());
            if let Some(transaction) = &mut *op.transaction.borrow_mut() {
                transaction.answered(&to.target, answer.reply())?;
            }
            if let Some(error) = error_in(answer.reply()) {
                return Err(error);
            }
            let Some(cursor) = answer.reply().get("cursor").and_then(|cursor| cursor.as_doc()) else {
                bail!(sheaf_errors::Code::INTERNAL_ERROR, "a getMore without a cursor");
            };
            self.take_batch(places, repeated, cursor, "nextBatch", taken);
            id = number(cursor, "id");
        }
        Ok(())
    }

    /// Answers as a mongod does: with the first batch of a cursor on what became of the statements, and with figures.
    ///
    /// Errors: those of [`first_batch`].
    pub fn reply(self, op: &Operation<'_>, errors_only: bool, batch_size: Option<usize>) -> Result<Reply> {
        let BulkOutcome { figures, items, failed, concerns, retried, .. } = self;
        let shown = items.iter().filter(|(at, _)| !errors_only || failed.contains(at));
        let shown = shown.map(|(at, item)| DocBuf::build(|out| write_item(out, *at, item.as_raw())));
        let shown = Documents::new(shown.collect());
        let cursor = Merged::new(Box::new(shown), link(op), Limits::default());
        let first = First { size: batch_size.or(Some(usize::MAX)), ..First::default() };
        let mut reply = first_batch(op, NAMESPACE, cursor, first)?;
        reply.fill(|out| {
            out.append("nErrors", failed.len() as i32);
            for (figure, name) in figures.iter().zip(FIGURES) {
                out.append(name, *figure as i32);
            }
            if !retried.is_empty() {
                let mut list = out.array("retriedStmtIds");
                retried.iter().for_each(|id| _ = list.push(*id));
            }
            write_concern_error(out, &concerns, op.part);
        });
        Ok(reply)
    }
}

fn number(document: RawDoc<'_>, name: &str) -> i64 {
    document.get(name).and_then(|value| value.as_exact_i64()).unwrap_or(0)
}

fn fields(item: RawDoc<'_>) -> impl Iterator<Item = Element<'_>> {
    item.iter().filter(|field| field.key() != "idx")
}

/// An item with its index behind `ok`.
fn write_item(out: &mut DocWriter<'_, Vec<u8>>, at: u32, item: RawDoc<'_>) {
    for field in item.iter() {
        out.append_element(field);
        if field.key() == "ok" {
            out.append("idx", at as i32);
        }
    }
}

/// What two shards have answered to the same statement: sums, or the error.
fn both(one: RawDoc<'_>, other: RawDoc<'_>) -> DocBuf {
    let failed = |item: RawDoc<'_>| !item.get("ok").is_some_and(|ok| ok.truthy());
    if failed(one) {
        return one.into();
    }
    if failed(other) {
        return DocBuf::build(|out| fields(other).for_each(|field| _ = out.append_element(field)));
    }
    DocBuf::build(|out| {
        for field in one.iter() {
            match field.key() {
                name @ ("n" | "nModified") => {
                    _ = out.append(name, (number(one, name) + number(other, name)) as i32)
                }
                _ => _ = out.append_element(field),
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_several_shards_are_one() {
        let mut outcome = BulkOutcome::default();
        let first = doc! { "firstBatch": [
            { "ok": 1.0, "idx": 0, "n": 1 },
            { "ok": 1.0, "idx": 1, "n": 2, "nModified": 1 }
        ] };
        let mut taken = Taken::default();
        outcome.take_batch(&[0, 2], &[], first.as_raw(), "firstBatch", &mut taken);
        assert!(taken.stale.is_none());
        let second = doc! { "firstBatch": [
            { "ok": 0.0, "idx": 0, "n": 0, "code": 11000, "errmsg": "twice" },
            { "ok": 1.0, "idx": 1, "n": 3, "nModified": 3 },
            { "ok": 0.0, "idx": 2, "n": 0, "code": 13388, "errmsg": "stale" }
        ] };
        outcome.take_batch(&[1, 2, 3], &[], second.as_raw(), "firstBatch", &mut taken);
        assert!(matches!(taken.stale, Some((2, _))));
        let items: Vec<DocBuf> = outcome
            .items
            .iter()
            .map(|(at, item)| DocBuf::build(|out| write_item(out, *at, item.as_raw())))
            .collect();
        let expected = [
            doc! { "ok": 1.0, "idx": 0, "n": 1 },
            doc! { "ok": 0.0, "idx": 1, "n": 0, "code": 11000, "errmsg": "twice" },
            doc! { "ok": 1.0, "idx": 2, "n": 5, "nModified": 4 },
        ];
        assert_eq!(items, expected);
        assert_eq!(outcome.failed, BTreeSet::from([1]));
        outcome.fail(2, &Error::new(sheaf_errors::Code(175), "another collection"));
        outcome.fail(3, &Error::new(sheaf_errors::Code(175), "another collection"));
        let shown = |at: u32| {
            let item = outcome.items[&at].as_raw();
            (number(item, "n"), number(item, "nModified"), number(item, "code"))
        };
        assert_eq!((shown(2), shown(3)), ((5, 4, 175), (0, 0, 175)), "what was found is said");
    }

    #[test]
    fn a_statement_on_record_on_two_shards_counts_once() {
        let mut outcome = BulkOutcome::default();
        let body = doc! { "stmtId": 5 };
        let reply = doc! { "retriedStmtIds": [5, 7], "cursor": { "firstBatch": [
            { "ok": 1.0, "idx": 0, "n": 1, "nModified": 1 }, { "ok": 1.0, "idx": 1, "n": 1 }
        ] } };
        let cursor = reply.as_raw().get("cursor").and_then(|cursor| cursor.as_doc()).unwrap();
        for again in [false, true] {
            outcome.figures = [0, 1, 1, 0, 1].map(|figure| figure * (1 + i64::from(again)));
            let repeated = outcome.note_retried(body.as_raw(), &[0, 2], reply.as_raw());
            assert_eq!(repeated, if again { vec![0, 2] } else { vec![] });
            outcome.take_batch(&[0, 2], &repeated, cursor, "firstBatch", &mut Taken::default());
        }
        assert_eq!(outcome.figures, [0, 1, 1, 0, 1]);
        assert_eq!(outcome.items[&0], doc! { "ok": 1.0, "n": 1, "nModified": 1 });
    }
}
