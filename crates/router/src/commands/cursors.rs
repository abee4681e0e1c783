//! `getMore`: the shard that has a cursor goes on with it.

use std::time::Instant;

use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_client::Message;
use sheaf_cluster::{Call, error_in, for_client, unreachable};
use sheaf_errors::{Code, Result, bail};
use sheaf_front::args::{Args, NonNegative};
use sheaf_front::cursors::{Batch, OpenCursors, Pinned};
use sheaf_front::reply::Reply;

use sheaf_server::commands::crud::change_stream;

use crate::cursor::RouterCursor;
use crate::forward::{Body, is_between, message};
use crate::gather::{OnMember, is_out_of_reach};
use crate::op::Operation;
use crate::partial::{allows_partial, last_moment};

/// `{getMore: <id>, collection: "plants", batchSize: 100}`.
pub fn get_more<'a>(args: &mut Args<'a>, op: &Operation<'a>) -> Result<Reply> {
    let id = match args.own_value() {
        Value::Int64(id) => id,
        other => bail!(
            Code::TYPE_MISMATCH,
            "BSON field 'getMore.getMore' is the wrong type '{}', expected type 'long'",
            other.type_name()
        ),
    };
    let collection: &str = args.required("collection")?;
    if collection.is_empty() {
        bail!(Code::INVALID_NAMESPACE, "Collection names cannot be empty");
    }
    let namespace = op.namespace(collection);
    op.metrics().namespace.replace(Some(namespace.clone()));
    let opened = op.router.cursors.info(id);
    let is_stream = opened.is_some_and(|info| change_stream::is_opened_by(info.command.as_raw()));
    let result = continue_with(op, id, &namespace);
    if is_stream { result.map_err(change_stream::labelled) } else { result }
}

fn continue_with(op: &Operation<'_>, id: i64, namespace: &str) -> Result<Reply> {
    let mut pinned = op.router.cursors.pin(op, id, namespace)?;
    match pinned.cursor() {
        RouterCursor::Passed { .. } => pass_on(op, id, namespace, pinned),
        RouterCursor::Merged(_) => next_merged(op, id, namespace, pinned),
        RouterCursor::Stream(_) => super::change_stream::next(op, id, namespace, pinned),
    }
}

/// The next batch of rows that come together here.
fn next_merged(
    op: &Operation<'_>,
    id: i64,
    namespace: &str,
    mut pinned: Pinned<'_, RouterCursor>,
) -> Result<Reply> {
    if op.max_time_ms().is_some_and(|ms| ms > 0) {
        bail!(Code::BAD_VALUE, "cannot set maxTimeMS on getMore command for a non-awaitData cursor");
    }
    let began = Instant::now();
    let info = pinned.info().clone();
    if let Some(left) = *info.time_left.lock() {
        op.set_deadline(Some(began + left));
        op.check_interrupt()?;
    }
    let size = Args::of_document("getMore", op.body())?.optional::<NonNegative>("batchSize")?;
    // 0 stands for as many as fit.
    let limit = size.map(|size| size.0 as usize).filter(|size| *size > 0);
    let RouterCursor::Merged(merged) = pinned.cursor() else { bail!(Code::INTERNAL_ERROR, "no such cursor") };
    let mut reply = Reply::with_capacity(4096);
    let (mut filled, mut returned) = (Ok(true), 0);
    reply.fill(|out| {
        let mut body = out.document("cursor");
        let mut batch = Batch::new(body.array("nextBatch"), limit);
        filled = merged.fill(op, &mut batch, limit);
        returned = batch.count();
        drop(batch);
        if merged.is_partial() {
            body.append("partialResultsReturned", true);
        }
        let is_open = matches!(filled, Ok(true)) && !info.is_killed();
        body.append("id", if is_open { id } else { 0 }).append("ns", namespace);
    });
    let more = filled.map_err(|error| error.context("Executor error during getMore"))?;
    if info.is_killed() && returned == 0 {
        bail!(Code::CURSOR_KILLED, "cursor was killed");
    }
    op.metrics().returned.set(Some(returned as u64));
    op.metrics().cursor_id.set(Some(id));
    op.metrics().cursor_exhausted.set(!more);
    if more {
        if let Some(left) = &mut *info.time_left.lock() {
            *left = left.saturating_sub(began.elapsed());
        }
        pinned.release(returned);
    }
    Ok(reply)
}

/// The next batch of a shard's cursor, as it is.
fn pass_on(
    op: &Operation<'_>,
    id: i64,
    namespace: &str,
    mut pinned: Pinned<'_, RouterCursor>,
) -> Result<Reply> {
    let info = pinned.info().clone();
    let may_be_partial = allows_partial(op, info.command.as_raw());
    let RouterCursor::Passed { on, .. } = pinned.cursor() else {
        bail!(Code::INTERNAL_ERROR, "no such cursor")
    };
    let began = Instant::now();
    let answer = {
        let mut message = next_batch(op, on);
        // Who takes what is there waits for a member that says nothing as long as the find was given.
        let until = last_moment(*info.time_left.lock()).filter(|_| may_be_partial);
        let go_on = || {
            op.check_interrupt()?;
            match until {
                Some(until) if Instant::now() >= until => bail!(Code::NETWORK_TIMEOUT, "no answer in time"),
                _ => Ok(()),
            }
        };
        op.blocking(|| {
            let call = Call::send_to(on.target.set(), &on.host, &mut message)
                .map_err(|error| unreachable(&on.host, &error))?;
            call.finish_there(&go_on)
        })
    };
    let answer = match answer {
        Err(error) if may_be_partial && is_out_of_reach(&error) => {
            on.id = 0;
            op.check_interrupt()?;
            return Ok(nothing_more(op, namespace));
        }
        answer => answer?,
    };
    if may_be_partial && let Some(left) = &mut *info.time_left.lock() {
        *left = left.saturating_sub(began.elapsed());
    }
    op.heard(answer.reply());
    if let Some(transaction) = &mut *op.transaction.borrow_mut() {
        transaction.answered(&on.target, answer.reply())?;
    }
    if let Some(error) = error_in(answer.reply()) {
        // The shard knows whether the cursor goes on after this error: the next getMore asks it.
        if matches!(error.code(), Code::CURSOR_NOT_FOUND | Code::CURSOR_KILLED) {
            on.id = 0;
        } else {
            pinned.release(0);
        }
        return Err(for_client(error));
    }
    let (reply, returned, is_open) = passed(id, answer.reply());
    if !is_open {
        on.id = 0;
    }
    if pinned.is_killed() {
        bail!(Code::CURSOR_KILLED, "cursor was killed");
    }
    op.metrics().returned.set(Some(returned as u64));
    op.metrics().cursor_id.set(Some(id));
    op.metrics().cursor_exhausted.set(!is_open);
    if is_open {
        pinned.release(returned);
    }
    Ok(reply)
}

/// The last batch of a cursor whose member is out of reach, for those who take what is there.
fn nothing_more(op: &Operation<'_>, namespace: &str) -> Reply {
    op.metrics().returned.set(Some(0));
    op.metrics().cursor_exhausted.set(true);
    Reply::ok().with_document("cursor", |cursor| {
        drop(cursor.array("nextBatch"));
        cursor.append("partialResultsReturned", true).append("id", 0i64).append("ns", namespace);
    })
}

/// A shard's answer for the client, who knows the cursor by another id; how many documents it has, and whether more can follow.
fn passed(id: i64, answer: RawDoc<'_>) -> (Reply, usize, bool) {
    let mut reply = Reply::with_capacity(answer.len() + 256);
    let (mut is_open, mut returned) = (false, 0);
    for field in answer.iter() {
        let ("cursor", Some(shown)) = (field.key(), field.value().as_doc()) else {
            if !is_between(field.key_bytes()) {
                reply.raw().extend_from_slice(field.as_bytes());
            }
            continue;
        };
        let start = reply.raw().len();
        reply.raw().extend_from_slice(field.as_bytes());
        returned = shown.get("nextBatch").and_then(|batch| batch.as_array()).map_or(0, |batch| batch.count());
        if let Some(shards_id) = shown.element("id")
            && let Value::Int64(1..) = shards_id.value()
        {
            is_open = true;
            let at = start + (shards_id.data().as_ptr() as usize - field.as_bytes().as_ptr() as usize);
            reply.raw()[at..at + 8].copy_from_slice(&id.to_le_bytes());
        }
    }
    (reply, returned, is_open)
}

/// The request with the shard's id of the cursor in place of this router's.
fn next_batch(op: &Operation<'_>, cursor: &OnMember) -> Message {
    let mut first = DocBuf::new().with("getMore", cursor.id);
    for field in op.body().iter().filter(|field| field.key() != "getMore") {
        first.edit(|out| {
            out.append_element(field);
        });
    }
    message(op, &cursor.target.clone().into(), &Body { db: op.db(), body: first.as_raw() })
}
