//! Commands to other members, as a client sends them: a pipeline that writes, which a secondary hands on to the primary,
//! and what a new set's first member asks the others.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_errors::{Code, Error, Result};
use sheaf_wire::{HEADER_LEN, Header, REPLY_HEAD, finish_msg};

use crate::op::Operation;
use crate::reply::Reply;

/// How long the primary may take to accept a connection.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);

/// How long it may take to answer, if the client names no time.
const ANSWER_PATIENCE: Duration = Duration::from_secs(3600);

/// Fields of a request that are between the client and this member.
const OWN_FIELDS: [&str; 2] = ["$readPreference", "lsid"];

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
    let answer = op.blocking(|| ask(&primary(op)?, &command, patience))?;
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
/// Errors: `HostUnreachable`, `HostNotFound`, `ProtocolError`.
pub fn ask(server: &str, command: &DocBuf, patience: Duration) -> Result<DocBuf> {
    let unreachable = |error: std::io::Error| {
        Error::new(Code::HOST_UNREACHABLE, format!("Error connecting to {server} :: caused by :: {error}"))
    };
    let address = server.to_socket_addrs().map_err(unreachable)?.next();
    let Some(address) = address else {
        return Err(Error::new(Code::HOST_NOT_FOUND, format!("Could not find address for {server}")));
    };
    let mut stream = TcpStream::connect_timeout(&address, CONNECT_PATIENCE).map_err(unreachable)?;
    stream.set_read_timeout(Some(patience.max(Duration::from_millis(1)))).map_err(unreachable)?;
    let mut request = vec![0; REPLY_HEAD];
    request.extend_from_slice(command.as_bytes());
    finish_msg(&mut request, 1, 0, 0);
    stream.write_all(&request).map_err(unreachable)?;
    let mut reply = vec![0; HEADER_LEN];
    stream.read_exact(&mut reply).map_err(unreachable)?;
    let broken = || Error::new(Code::PROTOCOL_ERROR, format!("{server} has not answered as a server does"));
    let length = Header::parse(&reply).map_err(|_| broken())?.length as usize;
    reply.resize(length.max(HEADER_LEN), 0);
    stream.read_exact(&mut reply[HEADER_LEN..]).map_err(unreachable)?;
    match sheaf_wire::parse(&reply) {
        Ok(sheaf_wire::Request::Msg(message)) => Ok(DocBuf::from(message.body)),
        _ => Err(broken()),
    }
}

/// Whether a pipeline ends with a stage that writes.
pub fn writes(stages: RawDoc<'_>) -> bool {
    let last = stages.values().last().and_then(|stage| stage.as_doc()?.iter().next());
    last.is_some_and(|stage| matches!(stage.key(), "$out" | "$merge"))
}

/// Which stage of a pipeline writes, for messages.
pub fn writing_stage(stages: RawDoc<'_>) -> &str {
    let last = stages.values().last().unwrap_or(Value::Missing);
    last.as_doc().and_then(|stage| stage.iter().next()).map_or("", |stage| stage.key())
}
