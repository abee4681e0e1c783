//! Updates after which a document belongs to another shard: it is inserted there and deleted where it was, in one transaction.
//!
//! The shard that has the document says what becomes of it and changes nothing (`WouldChangeOwningShard`). Within the transaction it is
//! asked once more, so that what is deleted is what was changed.

use sheaf_bson::{DocBuf, OwnedValue, RawDoc, Value, doc};
use sheaf_cluster::{Answer, Sharded};
use sheaf_errors::{Code, Error, Result};

use super::own::ConcernErrors;
use super::{Batch, within};
use crate::addressed::Addressed;
use crate::forward::{self, Body, is_change};
use crate::op::Operation;

/// What becomes of a document that is to be another shard's.
pub struct Change {
    /// The document as it was.
    pub before: DocBuf,
    /// The document as it is to be.
    pub after: DocBuf,
    /// There was none before.
    pub upserts: bool,
}

impl Change {
    /// What a shard says beside the code.
    pub fn of(told: RawDoc<'_>) -> Option<Change> {
        let document = |name: &str| told.get(name).and_then(|value| value.as_doc()).map(DocBuf::from);
        let upserts = told.get("shouldUpsert").is_some_and(|upserts| upserts.truthy());
        Some(Change { before: document("preImage")?, after: document("postImage")?, upserts })
    }

    /// What the error says by which a shard has refused a command.
    pub fn refused(error: &Error) -> Option<Change> {
        let told = error.extra().filter(|_| error.code() == Code::WOULD_CHANGE_OWNING_SHARD)?;
        Change::of(RawDoc::new(told))
    }

    /// What the answer to one statement says.
    fn answered(reply: RawDoc<'_>) -> Option<Change> {
        let first = |list: Option<Value<'_>>| list?.as_array()?.values().next()?.as_doc().map(DocBuf::from);
        let cursor = reply.get("cursor").and_then(|cursor| cursor.as_doc());
        let entry = match cursor {
            Some(cursor) => first(cursor.get("firstBatch"))?,
            None => first(reply.get("writeErrors"))?,
        };
        is_change(entry.as_raw()).then(|| Change::of(entry.as_raw())).flatten()
    }

    /// The `_id` of the document as it is to be.
    pub fn id(&self) -> Value<'_> {
        self.after.as_raw().get_or_missing("_id")
    }
}

/// What came of a statement.
pub enum Moved {
    /// This time the shard has answered something else.
    Answered(Answer),
    /// The document is where it belongs; with the `_id` of one that was not there before.
    Done(Option<OwnedValue>),
    /// It cannot be there.
    Refused(Error),
}

/// Runs a statement of a batch again that a shard has said such a thing of.
///
/// Errors: those of the way there, and of the commit.
pub fn run(
    op: &Operation<'_>,
    batch: &Batch<'_>,
    at: u32,
    to: &Addressed,
    sharded: &Sharded,
) -> Result<(Moved, ConcernErrors)> {
    let statement = batch.statements[at as usize];
    let namespace = &batch.namespaces[batch.namespace_of(at)];
    let mut refused = None;
    let done = within(op, || {
        let mut message = batch.message_at(op, to, at, statement, false);
        let answer = forward::exchange(op, &to.target, &mut message)?;
        let Some(change) = Change::answered(answer.reply()) else { return Ok(Moved::Answered(answer)) };
        drop(answer);
        let moving = Moving {
            op,
            sharded,
            to,
            db: namespace.db,
            collection: namespace.collection,
            stmt_id: batch.stmt_id(at),
        };
        let upserted = change.upserts.then(|| OwnedValue::from(change.id()));
        let result = match &upserted {
            Some(id) => doc! { "n": 1, "nModified": 0, "upserted": id.as_value() },
            None => doc! { "n": 1, "nModified": 1 },
        };
        match moving.insert(&change, &result)? {
            Some(error) => {
                refused = Some(error);
                return Err(Error::new(Code::OPERATION_FAILED, "the document cannot be inserted"));
            }
            None => moving.delete(&change, &result)?,
        }
        Ok(Moved::Done(upserted))
    });
    match (done, refused) {
        (Err(_), Some(error)) => Ok((Moved::Refused(error), Vec::new())),
        (done, _) => done,
    }
}

/// A document on its way from a shard to another.
pub struct Moving<'m, 'a> {
    /// The operation.
    pub op: &'m Operation<'a>,
    /// The collection.
    pub sharded: &'m Sharded,
    /// Where it was.
    pub to: &'m Addressed,
    /// The database.
    pub db: &'m str,
    /// The collection's name.
    pub collection: &'m str,
    /// The number of the client's statement.
    pub stmt_id: i32,
}

impl Moving<'_, '_> {
    /// Where the document belongs.
    ///
    /// Errors: `ShardKeyNotFound`; those of finding the shard.
    pub fn owner(&self, change: &Change) -> Result<Addressed> {
        let key = self.sharded.pattern().key_of(change.after.as_raw())?;
        self.op.addressed(self.sharded, self.sharded.table.owner(&key))
    }

    /// Inserts the document where it belongs. One that was not there before is there on record as the statement, which a retry is
    /// answered `result`. Gives the error by which its shard refuses it.
    ///
    /// Errors: those of the way there; `DuplicateKey` with the label of a transaction to be run again, while what is in the way is the
    /// document itself, as its range is being moved there.
    pub fn insert(&self, change: &Change, result: &DocBuf) -> Result<Option<Error>> {
        let documents = sheaf_bson::ArrayBuf::of([change.after.as_raw()]);
        let command = doc! { "insert": self.collection, "documents": Value::Array(documents.as_raw()) };
        let owner = self.owner(change)?;
        let answer = self.send(&owner, command, change.upserts.then_some(result))?;
        match first_error(answer.reply()) {
            Some(error) if error.code() == Code::DUPLICATE_KEY && self.owns_none(&owner, change.id())? => {
                Err(error.with_label("TransientTransactionError"))
            }
            refused => Ok(refused),
        }
    }

    /// Whether no document of this `_id` is a shard's own: what it has received of a range that is still another's, or has not removed yet
    /// of one that it has given away, is soon gone or its own. In a client's transaction nobody asks, since it has failed.
    ///
    /// Errors: those of the way there.
    fn owns_none(&self, shard: &Addressed, id: Value<'_>) -> Result<bool> {
        let Some(own) = self.op.own.take() else { return Ok(false) };
        let transaction = self.op.transaction.take();
        let command =
            doc! { "find": self.collection, "filter": { "_id": id }, "limit": 1, "singleBatch": true };
        let body = Body { db: self.db, body: command.as_raw() };
        let mut message = forward::command(self.op, shard, &body, |_| false, |_| {});
        let answer = forward::exchange(self.op, &shard.target, &mut message);
        self.op.transaction.replace(transaction);
        self.op.own.replace(Some(own));
        Ok(first_document(answer?.reply()).is_none())
    }

    /// Deletes the document where it was, if it was anywhere; this is on record as the statement, which a retry is answered `result`.
    ///
    /// Errors: those of the way there; `WriteConflict`, if it is not there.
    pub fn delete(&self, change: &Change, result: &DocBuf) -> Result<()> {
        if change.upserts {
            return Ok(());
        }
        let only = doc! { "q": { "_id": change.before.as_raw().get_or_missing("_id") }, "limit": 1 };
        let deletes = sheaf_bson::ArrayBuf::of([only.as_raw()]);
        let command = doc! { "delete": self.collection, "deletes": Value::Array(deletes.as_raw()) };
        let answer = self.send(self.to, command, Some(result))?;
        match answer.reply().get("n").and_then(|n| n.as_exact_i64()) {
            Some(1) => Ok(()),
            _ => Err(Error::new(
                Code::WRITE_CONFLICT,
                "a document whose shard key changes was changed meanwhile",
            )),
        }
    }

    /// The document with this `_id` on a shard, as a projection shows it.
    ///
    /// Errors: those of the way there.
    pub fn find(
        &self,
        on: &Addressed,
        id: Value<'_>,
        projection: Option<RawDoc<'_>>,
    ) -> Result<Option<DocBuf>> {
        let mut command =
            doc! { "find": self.collection, "filter": { "_id": id }, "limit": 1, "singleBatch": true };
        if let Some(projection) = projection {
            command = command.with("projection", projection);
        }
        let answer = self.send(on, command, None)?;
        Ok(first_document(answer.reply()).map(DocBuf::from))
    }

    /// Sends a command of the transaction, on record as the client's statement if that has a result.
    fn send(&self, to: &Addressed, command: DocBuf, result: Option<&DocBuf>) -> Result<Answer> {
        let mut command = command;
        let writes = command.as_raw().element("find").is_none();
        command.edit(|out| {
            for field in self.op.body().iter() {
                let goes = match field.key() {
                    "lsid" | "txnNumber" | "autocommit" => true,
                    "bypassDocumentValidation" | "bypassEmptyTsReplacement" => writes,
                    "comment" => true,
                    _ => false,
                };
                if goes {
                    out.append_element(field);
                }
            }
        });
        if let Some(own) = &mut *self.op.own.borrow_mut() {
            (own.records, own.result) = (result.is_some(), result.cloned());
        }
        let body = Body { db: self.db, body: command.as_raw() };
        // What stands in the body is the client's, which a transaction of the router's own leaves behind.
        let mut message = forward::command(
            self.op,
            to,
            &body,
            |_| false,
            |out| {
                if writes {
                    out.array("stmtIds").push(self.stmt_id);
                }
            },
        );
        forward::exchange(self.op, &to.target, &mut message)
    }
}

/// The first document of a find's answer.
fn first_document(reply: RawDoc<'_>) -> Option<RawDoc<'_>> {
    reply.get("cursor")?.as_doc()?.get("firstBatch")?.as_array()?.values().next()?.as_doc()
}

/// The first of an answer's write errors.
fn first_error(reply: RawDoc<'_>) -> Option<Error> {
    let entry = reply.get("writeErrors").and_then(|errors| errors.as_array()?.values().next()?.as_doc())?;
    let code = Code(entry.get("code").and_then(|code| code.as_exact_i64()).unwrap_or(1) as i32);
    let text = entry.get("errmsg").and_then(|text| text.as_str()).unwrap_or_default();
    let error = Error::new(code, text);
    let error = match code {
        Code::DUPLICATE_KEY => error.context("Failed to update document's shard key"),
        _ => error,
    };
    let extra = DocBuf::build(|out| {
        for field in
            entry.iter().filter(|field| !matches!(field.key(), "index" | "code" | "errmsg" | "errInfo"))
        {
            out.append_element(field);
        }
    });
    let info = entry.get("errInfo").and_then(|info| info.as_doc());
    let error = info.iter().fold(error, |error, info| error.with_err_info(info.as_bytes().to_vec()));
    Some(if extra.as_raw().is_empty() { error } else { error.with_extra(extra.into_bytes()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_shard_says_of_a_changed_key() {
        let told = doc! { "preImage": { "_id": 1, "k": 1 }, "postImage": { "_id": 1, "k": 2 }, "shouldUpsert": false };
        let error =
            Error::new(Code::WOULD_CHANGE_OWNING_SHARD, "it would").with_extra(told.clone().into_bytes());
        let change = Change::refused(&error).unwrap();
        assert!(!change.upserts && change.id().as_exact_i64() == Some(1));
        assert!(Change::refused(&Error::new(Code(20), "no").with_extra(told.clone().into_bytes())).is_none());
        let entry = DocBuf::build(|out| {
            out.append("index", 0).append("code", 283).append_all(told.as_raw());
        });
        let update = doc! { "n": 0, "writeErrors": [entry.as_raw()] };
        let bulk = doc! { "cursor": { "firstBatch": [entry.as_raw()] } };
        for reply in [update, bulk] {
            assert_eq!(Change::answered(reply.as_raw()).unwrap().after, doc! { "_id": 1, "k": 2 });
        }
        assert!(Change::answered(doc! { "n": 1 }.as_raw()).is_none());
    }
}
