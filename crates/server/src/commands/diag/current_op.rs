//! `currentOp`, and `killOp`.

use std::sync::Arc;

use sheaf_bson::{DocBuf, DocWriter, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_expr::ParseCx;
use sheaf_query::matcher::Matcher;

use crate::args::{Args, Loose};
use crate::client::Client;
use crate::command::{Command, Spec};
use crate::cursors::{CursorInfo, IdleCursor};
use crate::node::Node;
use crate::op::Operation;
use crate::reply::Reply;

/// `{currentOp: 1, $all: bool, $ownOps: bool, <filter>}`.
pub struct CurrentOp<'a> {
    all: bool,
    filter: Vec<sheaf_bson::Element<'a>>,
}

impl<'a> Command<'a, Operation<'a>> for CurrentOp<'a> {
    const NAME: &'static str = "currentOp";
    const SPEC: Spec = Spec::plain().control().admin_only().help("operations under way");

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let all = args.optional::<Loose>("$all")?.is_some_and(|b| b.0);
        args.ignore(&["$ownOps", "$truncateOps"]);
        let filter = args
            .body()
            .iter()
            .skip(1)
            .filter(|f| !f.key().starts_with('$') && !crate::generic::is_generic(f.key_bytes()))
            .collect();
        args.ignore_rest();
        Ok(CurrentOp { all, filter })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let filter = DocBuf::build(|doc| {
            for field in &self.filter {
                doc.append_element(*field);
            }
        });
        let matcher = Matcher::parse(filter.as_raw(), &mut ParseCx::new())?;
        let mut matching = Vec::new();
        for operation in operations(op.node(), self.all) {
            if matcher.matches_doc(operation.as_raw())? {
                matching.push(operation);
            }
        }
        Ok(Reply::ok().with_array("inprog", |inprog| {
            matching.iter().for_each(|operation| {
                inprog.push_raw_document(operation.as_bytes());
            });
        }))
    }
}

/// A document for each operation under way, and with `all` for each idle connection.
pub fn operations(node: &Arc<Node>, all: bool) -> Vec<DocBuf> {
    let host = node.host_and_port();
    let now = crate::log::json::iso_date(node.clock.now_millis());
    let describe = |client: Arc<Client>| {
        let active = client.current.lock().op_id != 0;
        (active || all).then(|| describe(node, &client, &host, &now))
    };
    node.clients().into_iter().filter_map(describe).collect()
}

/// A document for each cursor between two batches.
pub fn idle_cursors(node: &Arc<Node>) -> Vec<DocBuf> {
    let host = node.host_and_port();
    let now = node.clock.now_millis();
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
    node.cursors.idle().into_iter().map(describe).collect()
}

fn append_cursor(doc: &mut DocWriter<'_, Vec<u8>>, cursor: &CursorInfo) {
    doc.append("cursorId", cursor.id);
    doc.append("createdDate", Value::DateTime(cursor.created_millis));
    doc.append("noCursorTimeout", cursor.no_timeout);
    doc.append("tailable", cursor.command.as_raw().get("tailable").is_some_and(|v| v.truthy()));
    doc.append("originatingCommand", &cursor.command);
}

fn describe(node: &Node, client: &Client, host: &str, now: &str) -> DocBuf {
    let app_name = client.app_name();
    let metadata = client.handshake.lock().metadata.clone();
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
        doc.append("active", active);
        doc.append("currentOpTime", now);
        if !active {
            return;
        }
        if let Some(lsid) = current.lsid {
            lsid.write(doc, "lsid");
        }
        running(doc, &current, node, client);
    })
}

fn running(
    doc: &mut DocWriter<'_, Vec<u8>>,
    current: &crate::client::CurrentOp,
    node: &Node,
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
    let cursor = first.as_exact_i64().filter(|_| op == "getmore").and_then(|id| node.cursors.info(id));
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

/// `{killOp: 1, op: n}`.
pub struct KillOp {
    op_id: i64,
}

impl<'a> Command<'a, Operation<'a>> for KillOp {
    const NAME: &'static str = "killOp";
    const SPEC: Spec = Spec::plain().control().admin_only().help("stops an operation");

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let value = args.value("op");
        let op_id = match value {
            Value::Missing => bail!(Code::NO_SUCH_KEY, "Did not provide \"op\" field"),
            number => crate::args::exact_i64(number, "op")?,
        };
        Ok(KillOp { op_id })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        for client in op.node().clients() {
            if client.current.lock().op_id as i32 == self.op_id as i32 {
                client.kill();
            }
        }
        // MongoDB answers alike whether or not there was such an operation.
        Ok(Reply::ok().with("info", "attempting to kill op"))
    }
}
