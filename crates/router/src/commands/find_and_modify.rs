//! `findAndModify`.

use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_client::Message;
use sheaf_cluster::{Answer, Sharded};
use sheaf_errors::{Code, Error, Result};
use sheaf_front::args::Args;
use sheaf_front::reply::Reply;
use sheaf_timeseries::unpack_stage;

use crate::addressed::{Addressed, Placed};
use crate::forward::{self, Body};
use crate::op::Operation;
use crate::route::until_fresh;
use crate::sampling::with_sample;
use crate::write::{
    Aim, Attempts, Change, ConcernErrors, Moving, Search, Selection, may_execute, said, within,
    write_concern_error,
};

/// `{findAndModify: "plants", query, sort, remove | update, new, fields, upsert}`: on the shard that has the document.
pub fn run<'a>(args: &mut Args<'a>, op: &Operation<'a>) -> Result<Reply> {
    let collection = args.collection()?;
    args.ignore_rest();
    let told = op.sample_at(0).map(|id| with_sample(op.body(), &id));
    let body = told.as_ref().map_or(op.body(), DocBuf::as_raw);
    let done = until_fresh(op, op.db(), collection, true, |placed| match placed {
        Placed::Whole(to) => send(op, to, body),
        Placed::Spread(sharded) => spread(op, collection, sharded, body),
    })?;
    match done {
        Done::Answered(to, answer) => {
            op.note_diffs(answer.reply());
            forward::reply(op, &to.target, &answer)
        }
        Done::Moved(shown, concerns) => {
            let mut reply = Reply::ok();
            reply.fill(|out| {
                out.append_all(shown.as_raw());
                write_concern_error(out, &concerns, op.part);
            });
            if let Some(transaction) = &*op.transaction.borrow() {
                transaction.append_token(&mut reply);
            }
            Ok(reply)
        }
    }
}

/// What came of the command.
enum Done {
    /// A shard has answered this.
    Answered(Addressed, Answer),
    /// The document is another shard's now; this is the answer.
    Moved(DocBuf, ConcernErrors),
}

fn send(op: &Operation<'_>, to: &Addressed, body: RawDoc<'_>) -> Result<Done> {
    exchange(op, to, message(op, to, body, false))
}

/// Sends it for no document.
fn ask(op: &Operation<'_>, to: &Addressed, body: RawDoc<'_>) -> Result<Done> {
    exchange(op, to, message(op, to, body, true))
}

fn exchange(op: &Operation<'_>, to: &Addressed, mut message: Message) -> Result<Done> {
    forward::exchange(op, &to.target, &mut message).map(|answer| Done::Answered(to.clone(), answer))
}

fn message(op: &Operation<'_>, to: &Addressed, body: RawDoc<'_>, asks: bool) -> Message {
    forward::message_with(op, to, &Body { db: op.db(), body }, |out| {
        if let Some(attempt) = said(op, asks) {
            attempt.append(out);
        }
    })
}

/// On the shards of a collection, again where another router is about to execute the same.
fn spread<'a>(op: &Operation<'a>, collection: &'a str, sharded: &Sharded, body: RawDoc<'_>) -> Result<Done> {
    let upserts = body.get("upsert").is_some_and(|upsert| upsert.truthy());
    let selection = Selection::of(body, "query").of_measurements(is_measured(body));
    let aim = if upserts { selection.upsert(sharded, false) } else { selection.aim(sharded, false) };
    let shards = match aim? {
        Aim::One(shard) => {
            return write(op, collection, sharded, &op.addressed(sharded, shard)?, body);
        }
        Aim::Each(shards) | Aim::Anywhere(shards) => shards,
    };
    let to: Vec<Addressed> =
        shards.iter().map(|shard| op.addressed(sharded, shard)).collect::<Result<_>>()?;
    let mut attempts = Attempts::default();
    loop {
        attempts.begin(op);
        let done = anywhere(op, collection, sharded, &to, body);
        op.attempt.set(None);
        match done {
            Err(error) if attempts.has_given_way(op, &error) => op.check_interrupt()?,
            done => return done.map_err(Attempts::for_client),
        }
    }
}

/// On the one of these shards that has the document.
fn anywhere<'a>(
    op: &Operation<'a>,
    collection: &'a str,
    sharded: &Sharded,
    to: &[Addressed],
    body: RawDoc<'_>,
) -> Result<Done> {
    let upserts = body.get("upsert").is_some_and(|upsert| upsert.truthy());
    let search = search(op, collection, sharded);
    let probe = with_query(body, &search.filter_of_nothing());
    if op.is_retryable_write() {
        let asked = may_execute(op, sharded, to, upserts)?;
        let messages = asked.iter().map(|to| (to, message(op, to, probe.as_raw(), true))).collect();
        for (to, answer) in asked.iter().zip(forward::exchange_all(op, messages)) {
            let answer = answer?;
            if answer.reply().get("retriedStmtId").is_some() {
                return Ok(Done::Answered(to.clone(), answer));
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
            Err(error) => return search.explain(error, || ask(op, &to[0], probe.as_raw()).map(|_| None)),
        };
        let Some(candidate) = search.best(&answers) else {
            drop(answers);
            look = search.second_look(op, to, look);
            if look.is_some() {
                continue;
            }
            return match upserts {
                true => write(op, collection, sharded, &to[0], body),
                false => ask(op, &to[0], probe.as_raw()),
            };
        };
        drop(answers);
        look = None;
        let written = with_query(body, &search.filter_of(&candidate));
        let done = write(op, collection, sharded, &to[candidate.at], written.as_raw())?;
        // Somebody may have been faster.
        if !matches!(&done, Done::Answered(_, answer) if has_done_nothing(answer.reply())) {
            return Ok(done);
        }
    }
}

fn has_done_nothing(reply: RawDoc<'_>) -> bool {
    let last = reply.get("lastErrorObject").and_then(|last| last.as_doc());
    last.and_then(|last| last.get("n")).is_some_and(|n| n.as_exact_i64() == Some(0))
}

/// Has the shard that has the document change it, and moves it if it is to be another one's.
fn write(
    op: &Operation<'_>,
    collection: &str,
    sharded: &Sharded,
    to: &Addressed,
    body: RawDoc<'_>,
) -> Result<Done> {
    match send(op, to, body) {
        Err(error) => match Change::refused(&error) {
            Some(change) if change.upserts => {}
            Some(change) => op.note_change(0, change.before.as_raw(), change.after.as_raw()),
            None => return Err(error),
        },
        done => return done,
    }
    let stmt_id = body.get("stmtId").and_then(|id| id.as_exact_i64()).unwrap_or(0) as i32;
    let moving = Moving { op, sharded, to, db: op.db(), collection, stmt_id };
    let mut refused = None;
    let done = within(op, || match send(op, to, body) {
        Ok(done) => Ok(done),
        Err(error) => match Change::refused(&error) {
            Some(change) => match move_document(&moving, &change)? {
                Ok(shown) => Ok(Done::Moved(shown, Vec::new())),
                Err(error) => {
                    refused = Some(error);
                    Err(Error::new(Code::OPERATION_FAILED, "the document cannot be inserted"))
                }
            },
            None => Err(error),
        },
    });
    match (done, refused) {
        (_, Some(error)) => Err(error),
        (Ok((Done::Moved(shown, _), concerns)), None) => Ok(Done::Moved(shown, concerns)),
        (done, None) => done.map(|(done, _)| done),
    }
}

/// Inserts the document where it belongs and deletes it where it was; gives the command's answer, or why it cannot be inserted.
fn move_document(moving: &Moving<'_, '_>, change: &Change) -> Result<std::result::Result<DocBuf, Error>> {
    let body = moving.op.body();
    let is_new = body.get("new").is_some_and(|new| new.truthy());
    let projection =
        body.get("fields").and_then(|fields| fields.as_doc()).filter(|fields| !fields.is_empty());
    if change.upserts {
        // Its refusal did not say what the shard has executed; a reply does, without which it does not commit.
        moving.find(moving.to, change.id(), None)?;
    }
    let before = match change.upserts || is_new {
        true => None,
        false => moving.find(moving.to, change.id(), projection)?,
    };
    let inserted = answer(change, is_new.then_some(&change.after));
    if let Some(error) = moving.insert(change, &inserted)? {
        return Ok(Err(error));
    }
    let after = if is_new { moving.find(&moving.owner(change)?, change.id(), projection)? } else { None };
    let shown = answer(change, before.or(after).as_ref());
    moving.delete(change, &shown)?;
    Ok(Ok(shown))
}

fn answer(change: &Change, value: Option<&DocBuf>) -> DocBuf {
    DocBuf::build(|out| {
        let mut last = out.document("lastErrorObject");
        last.append("n", 1).append("updatedExisting", !change.upserts);
        if change.upserts {
            last.append("upserted", change.id());
        }
        drop(last);
        match value {
            Some(value) => out.append("value", value.as_raw()),
            None => out.append("value", Value::Null),
        };
    })
}

/// Whether the command is about measurements, and names their buckets.
/// Whether a command names buckets, and means their measurements.
pub fn is_measured(body: RawDoc<'_>) -> bool {
    body.get("isTimeseriesNamespace").is_some_and(|flag| flag.truthy())
}

fn search<'d>(op: &Operation<'d>, collection: &'d str, sharded: &Sharded) -> Search<'d> {
    let body = op.body();
    let document = |name: &str| body.get(name).and_then(|value| value.as_doc());
    Search {
        db: op.db(),
        collection,
        filter: document("query").unwrap_or(RawDoc::EMPTY),
        sort: document("sort"),
        collation: document("collation"),
        hint: body.get("hint").unwrap_or(Value::Missing),
        variables: document("let"),
        unpack: sharded.timeseries.as_ref().filter(|_| is_measured(body)).map(unpack_stage),
    }
}

/// The command for another query, which one document matches at most.
fn with_query(body: RawDoc<'_>, query: &DocBuf) -> DocBuf {
    DocBuf::build(|out| {
        for field in body.iter().filter(|field| !matches!(field.key(), "query" | "upsert" | "sort")) {
            out.append_element(field);
        }
        out.append("query", query.as_raw());
    })
}
