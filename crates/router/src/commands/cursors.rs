//! `getMore` and `killCursors`: the shard that has a cursor goes on with it.

use sheaf_bson::{DocBuf, Value, doc};
use sheaf_client::Message;
use sheaf_cluster::{Call, error_in, unreachable};
use sheaf_errors::{Code, Result, bail};
use sheaf_front::args::{Args, Array};
use sheaf_front::cursors::OpenCursors;
use sheaf_front::reply::Reply;

use sheaf_server::commands::crud::change_stream;

use crate::cursor::RouterCursor;
use crate::forward::{Body, for_client, message_with};
use crate::op::Operation;
use crate::router::Router;

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
    let cursor = pinned.cursor();
    let body = Body { db: op.db(), body: op.body(), without: &["getMore"] };
    let answer = {
        let mut message = next_batch(op, cursor, &body);
        let go_on = || op.check_interrupt();
        op.blocking(|| {
            let call = Call::send_to(cursor.target.set(), &cursor.host, &mut message)
                .map_err(|error| unreachable(&cursor.host, &error))?;
            call.finish_there(&go_on)
        })?
    };
    op.heard(answer.reply());
    if let Some(transaction) = &mut *op.transaction.borrow_mut() {
        transaction.answered(&pinned.cursor().target, answer.reply())?;
    }
    if let Some(error) = error_in(answer.reply()) {
        // The shard knows whether the cursor goes on after this error: the next getMore asks it.
        if !matches!(error.code(), Code::CURSOR_NOT_FOUND | Code::CURSOR_KILLED) {
            pinned.release(0);
        }
        return Err(for_client(error));
    }
    if pinned.is_killed() {
        kill_on_shard(op.router, namespace, pinned.cursor());
        bail!(Code::CURSOR_KILLED, "cursor was killed");
    }
    let mut reply = Reply::with_capacity(answer.reply().len() + 256);
    let (mut is_open, mut returned) = (false, 0);
    for field in answer.reply().iter() {
        let ("cursor", Some(shown)) = (field.key(), field.value().as_doc()) else {
            if !matches!(
                field.key(),
                "ok" | "$clusterTime" | "operationTime" | "topologyVersion" | "executed"
            ) {
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
    op.metrics().returned.set(Some(returned as u64));
    if is_open {
        pinned.release(returned);
    }
    Ok(reply)
}

/// The request with the shard's id of the cursor in place of this router's.
fn next_batch(op: &Operation<'_>, cursor: &RouterCursor, body: &Body<'_>) -> Message {
    let mut first = DocBuf::new().with("getMore", cursor.id);
    for field in body.body.iter().filter(|field| field.key() != "getMore") {
        first.edit(|out| {
            out.append_element(field);
        });
    }
    message_with(op, cursor.target.name(), &Body { db: body.db, body: first.as_raw(), without: &[] }, |_| {})
}

/// `{killCursors: "plants", cursors: [<id>, ...]}`.
pub fn kill_cursors<'a>(args: &mut Args<'a>, op: &Operation<'a>) -> Result<Reply> {
    let namespace = op.namespace(args.collection()?);
    let Array(ids) = args.required("cursors")?;
    let (mut killed, mut not_found) = (Vec::new(), Vec::new());
    for element in ids.iter() {
        let Value::Int64(id) = element.value() else {
            bail!(
                Code::TYPE_MISMATCH,
                "BSON field 'killCursors.cursors.{}' is the wrong type '{}', expected type 'long'",
                element.key(),
                element.value().type_name()
            );
        };
        let cursors = &op.router.cursors;
        let ours = cursors.info(id).is_some_and(|info| info.namespace == namespace);
        // One that is in use ends with the getMore that uses it.
        if ours && let Ok(mut pinned) = cursors.pin(op, id, &namespace) {
            op.blocking(|| kill_on_shard(op.router, &namespace, pinned.cursor()));
            killed.push(id);
        } else if ours && cursors.kill(id).is_some() {
            killed.push(id);
        } else {
            not_found.push(id);
        }
    }
    let list = |ids: Vec<i64>| {
        move |array: &mut sheaf_bson::ArrayWriter<'_, Vec<u8>>| {
            for id in ids {
                array.push(id);
            }
        }
    };
    Ok(Reply::ok()
        .with_array("cursorsKilled", list(killed))
        .with_array("cursorsNotFound", list(not_found))
        .with_array("cursorsAlive", list(Vec::new()))
        .with_array("cursorsUnknown", list(Vec::new())))
}

/// Closes a cursor on its shard. One that cannot be reached closes it when it has been idle for long enough.
fn kill_on_shard(router: &Router, namespace: &str, cursor: &RouterCursor) {
    let Some((db, collection)) = namespace.split_once('.') else { return };
    let mut message = Message::new();
    let ids = sheaf_bson::ArrayBuf::of([cursor.id]);
    let command = doc! { "killCursors": collection, "cursors": Value::Array(ids.as_raw()) };
    message.begin(0, |out| {
        out.append_all(command.as_raw());
        router.clock.append(out, None);
        out.append("$db", db);
    });
    let began = std::time::Instant::now();
    let go_on = || match began.elapsed() < std::time::Duration::from_secs(1) {
        true => Ok(()),
        false => bail!(Code::NETWORK_TIMEOUT, "no answer in time"),
    };
    if let Ok(call) = Call::send_to(cursor.target.set(), &cursor.host, &mut message) {
        let _ = call.finish_there(&go_on);
    }
}
