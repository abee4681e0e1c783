//! Commands to other members, as a client sends them: a pipeline that writes, which a secondary hands on to the primary,
//! and what a new set's first member asks the others.

use std::io::ErrorKind;
use std::time::Duration;

use sheaf_aggregate::{StagePosition, stage_entry};
use sheaf_bson::{DocBuf, RawDoc};
use sheaf_errors::{Code, Error, Result};

use crate::node::Node;
use crate::op::Operation;
use crate::reply::Reply;

/// How long the primary may take to accept a connection.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);

/// How long it may take to answer, if the client names no time.
const ANSWER_PATIENCE: Duration = Duration::from_secs(3600);

/// Fields of a request that are between the client and this member.
const OWN_FIELDS: [&str; 3] = ["$readPreference", "lsid", "$db"];

/// Fields of a reply that this member adds by itself.
const ADDED_FIELDS: [&str; 4] = ["ok", "$clusterTime", "operationTime", "topologyVersion"];

/// Has the primary run the operation's command, and answers what it answers.
///
/// Errors: `NotWritablePrimary` without a primary; the primary's own; `HostUnreachable`.
pub fn to_primary(op: &Operation<'_>) -> Result<Reply> {
    let command = DocBuf::build(|out| {
        for field in op.body().iter().filter(|field| !OWN_FIELDS.contains(&field.key())) {
            out.append(field.key(), field.value());
        }
    });
    let patience = op.time_left().unwrap_or(ANSWER_PATIENCE);
    let answer = op.blocking(|| ask(op.node(), &primary(op)?, op.db(), &command, patience))?;
    let answer = answer.as_raw();
    if answer.get("ok").is_none_or(|ok| !ok.truthy()) {
        let code = answer.get("code").and_then(|code| code.as_exact_i64()).unwrap_or(1) as i32;
        let text = answer.get("errmsg").and_then(|text| text.as_str()).unwrap_or_default();
        return Err(Error::new(Code(code), text));
    }
    Ok(Reply::ok().with_fields(|out| {
        for field in answer.iter().filter(|field| !ADDED_FIELDS.contains(&field.key())) {
            out.append(field.key(), field.value());
        }
    }))
}

/// Where the primary is reached.
fn primary(op: &Operation<'_>) -> Result<String> {
    let replica = op.node().replica();
    let primary = replica.and_then(|replica| {
        let host = replica.with(|core| {
            let primary = core.role().primary?;
            Some(core.config()?.member(primary)?.host.to_string())
        })?;
        Some(replica.dialled(&host))
    });
    primary.ok_or_else(|| Error::new(Code::NOT_WRITABLE_PRIMARY, "not primary"))
}

/// Sends one command to another server, as a client would, and gives the answer.
///
/// Errors: `HostUnreachable`, `NetworkTimeout`, `ProtocolError`.
pub fn ask(node: &Node, server: &str, db: &str, command: &DocBuf, patience: Duration) -> Result<DocBuf> {
    let mut to = node.membership.direct(server);
    to.connect_timeout = CONNECT_PATIENCE;
    to.socket_timeout = patience.max(Duration::from_millis(1));
    node.peers.run(&to, db, command).map_err(|error| {
        let code = match &error {
            sheaf_client::Error::Io(error) if error.kind() == ErrorKind::TimedOut => Code::NETWORK_TIMEOUT,
            sheaf_client::Error::Io(_) => Code::HOST_UNREACHABLE,
            _ => Code::PROTOCOL_ERROR,
        };
        Error::new(code, format!("Error connecting to {server} :: caused by :: {error}"))
    })
}

/// Whether a pipeline ends with a stage that writes.
pub fn writes(stages: RawDoc<'_>) -> bool {
    let last = stages.values().last().and_then(|stage| stage.as_doc()?.iter().next());
    let entry = last.and_then(|stage| stage_entry(stage.key()));
    entry.is_some_and(|entry| entry.position == StagePosition::Last)
}
