//! Operations under way and idle cursors, as `currentOp` and `$currentOp` show them.

use std::sync::Arc;

use sheaf_auth::UserName;
use sheaf_bson::{DocBuf, DocWriter, RawDoc, Value};

use crate::access::Rights;
use crate::client::{Client, CurrentOp};
use crate::cursors::{CursorInfo, IdleCursor, OpenCursors};
use crate::front::Front;

/// A document for each operation under way, and with `all` for each idle connection.
pub fn under_way(front: &Front, cursors: &dyn OpenCursors, all: bool) -> Vec<DocBuf> {
    let host = front.host_and_port();
    let now = crate::log::date::iso_date(front.clock.now_millis());
    let describe = |client: Arc<Client>| {
        let active = client.current.lock().op_id != 0;
        (active || all).then(|| describe(cursors, &client, &host, &now))
    };
    front.clients().into_iter().filter_map(describe).collect()
}

/// Whether an operation is one of the user's own, or everything may be seen.
pub fn is_of(operation: RawDoc<'_>, rights: &Rights) -> bool {
    let users = operation.get("effectiveUsers").and_then(|users| users.as_array());
    let user = users.and_then(|users| UserName::read(users.values().next()?.as_doc()?));
    rights.are_everything() || (user.is_some() && user.as_ref() == rights.user())
}

/// A document for each cursor between two batches.
pub fn idle_cursors(front: &Front, cursors: &dyn OpenCursors) -> Vec<DocBuf> {
    let host = front.host_and_port();
    let now = front.clock.now_millis();
    let describe = |cursor: IdleCursor| {
        DocBuf::build(|doc| {
            doc.append("type", "idleCursor");
            doc.append("host", &host);
            if let Some(lsid) = cursor.info.lsid {
                lsid.write(doc, "lsid");
            }
            doc.append("ns", &cursor.info.namespace);
            let mut shown = doc.document("cursor");
            append_cursor(&mut shown, &cursor.info);
            shown.append("lastAccessDate", Value::DateTime(now - cursor.idle.as_millis() as i64));
            shown.append("nDocsReturned", cursor.returned as i64);
            shown.append("nBatchesReturned", cursor.batches as i64);
            shown.append("awaitData", cursor.awaits);
        })
    };
    cursors.idle().into_iter().map(describe).collect()
}

fn append_cursor(doc: &mut DocWriter<'_, Vec<u8>>, cursor: &CursorInfo) {
    doc.append("cursorId", cursor.id);
    doc.append("createdDate", Value::DateTime(cursor.created_millis));
    doc.append("noCursorTimeout", cursor.no_timeout);
    doc.append("tailable", cursor.command.as_raw().get("tailable").is_some_and(|v| v.truthy()));
    doc.append("originatingCommand", &cursor.command);
}

fn describe(cursors: &dyn OpenCursors, client: &Client, host: &str, now: &str) -> DocBuf {
    let app_name = client.app_name();
    let metadata = client.handshake.lock().metadata.clone();
    let user = client.access.lock().user().cloned();
    let current = client.current.lock();
    let active = current.op_id != 0;
    DocBuf::build(|doc| {
        doc.append("type", "op");
        doc.append("host", host);
        doc.append("desc", &client.context());
        doc.append("connectionId", client.id as i32);
        doc.append("client", &client.remote_text());
        if let Some(name) = &app_name {
            doc.append("appName", name);
        }
        if let Some(metadata) = &metadata {
            doc.append("clientMetadata", metadata);
        }
        if let Some(user) = &user {
            user.write(&mut doc.array("effectiveUsers").document());
        }
        doc.append("active", active);
        doc.append("currentOpTime", now);
        if !active {
            return;
        }
        if let Some(lsid) = current.lsid {
            lsid.write(doc, "lsid");
        }
        running(doc, &current, cursors, client);
    })
}

fn running(
    doc: &mut DocWriter<'_, Vec<u8>>,
    current: &CurrentOp,
    cursors: &dyn OpenCursors,
    client: &Client,
) {
    let took = current.started.elapsed();
    doc.append("isFromUserConnection", true);
    doc.append("opid", current.op_id as i32);
    doc.append("secs_running", took.as_secs() as i64);
    doc.append("microsecs_running", took.as_micros() as i64);
    let op = match current.name {
        "getMore" => "getmore",
        "insert" => "insert",
        "update" => "update",
        "delete" => "remove",
        "find" => "query",
        _ => "command",
    };
    doc.append("op", op);
    let command = RawDoc::new(&current.command);
    let first = command.iter().next().map_or(Value::Missing, |first| first.value());
    let cursor = first.as_exact_i64().filter(|_| op == "getmore").and_then(|id| cursors.info(id));
    let collection = if op == "getmore" { command.get("collection") } else { Some(first) };
    let collection = collection.and_then(|name| name.as_str());
    let namespace = format!("{}.{}", current.db, collection.unwrap_or("$cmd"));
    doc.append("ns", &namespace);
    if command.is_empty() {
        doc.document("command").append(current.name, 1).append("$truncated", true);
    } else if let Some(cursor) = cursor {
        doc.append("command", &cursor.get_more(command));
        append_cursor(&mut doc.document("cursor"), &cursor);
    } else {
        doc.append("command", command);
    }
    doc.append("numYields", 0);
    let _ = doc.document("locks");
    doc.append("waitingForLock", false);
    doc.append("killPending", client.stop.is_set());
}
