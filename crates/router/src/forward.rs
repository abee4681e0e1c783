//! A request on its way to a shard, and a shard's reply on its way to the client. Documents are not looked at in either direction: a
//! request's fields are copied once, for what is added to them, and a reply goes out from where it came in with one copy.

use sheaf_bson::{DocBuf, DocWriter, Element, RawDoc, Value};
use sheaf_client::Message;
use sheaf_cluster::{Answer, Call, error_in, is_not_primary};
use sheaf_errors::{Code, Error, Result};
use sheaf_front::reply::Reply;
use sheaf_server::commands::crud::change_stream;

use crate::cursor::RouterCursor;
use crate::op::Operation;
use crate::target::Target;

/// Fields of a request that are between the client and this router, or that are made anew for each shard.
fn is_own(name: &str) -> bool {
    matches!(name, "$db" | "$clusterTime" | "startTransaction" | "recoveryToken" | "apiDeprecationErrors")
}

/// Fields of a reply that are between this router and a shard.
fn is_between(name: &str) -> bool {
    matches!(
        name,
        "ok" | "$clusterTime"
            | "operationTime"
            | "topologyVersion"
            | "electionId"
            | "opTime"
            | "$configTime"
            | "$topologyTime"
            | "executed"
    )
}

/// Which fields of a request go to a shard as they are, and which others.
pub struct Body<'b> {
    /// The database that it names.
    pub db: &'b str,
    /// The command.
    pub body: RawDoc<'b>,
    /// Fields of it that stay behind.
    pub without: &'b [&'b str],
}

/// The request as a message to this target.
pub fn message(op: &Operation<'_>, target: &str, body: &Body<'_>) -> Message {
    message_with(op, target, body, |_| {})
}

/// The request as a message to this target, with fields added.
pub fn message_with(
    op: &Operation<'_>,
    target: &str,
    body: &Body<'_>,
    add: impl FnOnce(&mut DocWriter<'_, Vec<u8>>),
) -> Message {
    let mut message = Message::new();
    let transaction = op.transaction.borrow();
    message.begin(0, |out| {
        let goes = |field: &Element<'_>| {
            let name = field.key();
            let is_concern = name == "readConcern" && transaction.is_some();
            !is_own(name) && !is_concern && !body.without.contains(&name)
        };
        for field in body.body.iter().filter(goes) {
            out.append_element(field);
        }
        add(out);
        if let Some(transaction) = &*transaction {
            transaction.append_start(target, out);
        }
        op.router.clock.append(out, op.generic.cluster_time);
        out.append("$db", body.db);
    });
    for sequence in op.sequences {
        message.begin_sequence(sequence.name);
        message.bytes().extend_from_slice(sequence.bytes);
        message.end_sequence();
    }
    message
}

/// Sends the request to one target, and gives its answer.
///
/// Errors: the error that it answers; those of the way there.
pub fn ask(op: &Operation<'_>, target: &Target, body: &Body<'_>) -> Result<Answer> {
    let mut message = message(op, target.name(), body);
    exchange(op, target, &mut message)
}

/// Sends a message to one target, and gives its answer.
///
/// Errors: the error that it answers; those of the way there.
pub fn exchange(op: &Operation<'_>, target: &Target, message: &mut Message) -> Result<Answer> {
    note_participant(op, target);
    let go_on = || op.check_interrupt();
    let answer = op.blocking(|| target.set().ask(message, &op.asker(&go_on))).map_err(for_client)?;
    check(op, target, answer)
}

/// Sends the request to all of these, and gives their answers in the same order.
///
/// Errors: the first error that one of them answers; those of the way there.
pub fn ask_all(op: &Operation<'_>, targets: &[Target], body: &Body<'_>) -> Result<Vec<Answer>> {
    let go_on = || op.check_interrupt();
    let asker = op.asker(&go_on);
    for target in targets {
        note_participant(op, target);
    }
    op.blocking(|| {
        let mut under_way = Vec::with_capacity(targets.len());
        for target in targets {
            let mut message = message(op, target.name(), body);
            let call = Call::send(target.set(), &mut message, &asker).map_err(for_client)?;
            under_way.push((target, call, message));
        }
        let finish = |(target, call, mut message): (&Target, Call, Message)| {
            check(op, target, call.finish(&mut message, &asker).map_err(for_client)?)
        };
        under_way.into_iter().map(finish).collect()
    })
}

fn note_participant(op: &Operation<'_>, target: &Target) {
    if let Some(transaction) = &mut *op.transaction.borrow_mut() {
        transaction.take_part(target, op.writes());
    }
}

fn check(op: &Operation<'_>, target: &Target, answer: Answer) -> Result<Answer> {
    op.heard(answer.reply());
    if let Some(transaction) = &mut *op.transaction.borrow_mut() {
        transaction.answered(target, answer.reply())?;
        if answer.reply().get("writeErrors").is_some() {
            transaction.fail();
        }
    }
    match error_in(answer.reply()) {
        Some(error) => Err(for_client(error)),
        None => Ok(answer),
    }
}

/// An error of a member about itself would have drivers take this router for it.
pub fn for_client(error: Error) -> Error {
    if is_not_primary(error.code()) { Error::new(Code::HOST_UNREACHABLE, error.message()) } else { error }
}

/// The reply for the client. A cursor that is open on the shard is registered here, and the reply has its id here.
///
/// Errors: `TooManyLogicalSessions` and the like have been before; none.
pub fn reply(op: &Operation<'_>, target: &Target, answer: &Answer) -> Result<Reply> {
    let body = answer.reply();
    let mut reply = Reply::with_capacity(body.len() + 256);
    let _held = sheaf_meter::reserve(body.len() as u64)?;
    for field in body.iter().filter(|field| !is_between(field.key())) {
        let start = reply.raw().len();
        reply.raw().extend_from_slice(field.as_bytes());
        if field.key() == "cursor"
            && let Some(cursor) = field.value().as_doc()
            && let Some(id) = cursor.element("id")
            && let Value::Int64(shards_id @ 1..) = id.value()
        {
            let at = start + (id.data().as_ptr() as usize - field.as_bytes().as_ptr() as usize);
            let namespace = cursor.get("ns").and_then(|ns| ns.as_str()).unwrap_or_default();
            let own_id = register(op, target, answer, namespace, shards_id);
            reply.raw()[at..at + 8].copy_from_slice(&own_id.to_le_bytes());
        }
    }
    if let Some(transaction) = &*op.transaction.borrow() {
        transaction.append_token(&mut reply);
    }
    Ok(reply)
}

fn register(op: &Operation<'_>, target: &Target, answer: &Answer, namespace: &str, id: i64) -> i64 {
    let flag = |name: &str| op.body().get(name).is_some_and(|flag| flag.truthy());
    let is_stream = change_stream::is_opened_by(op.body());
    let cursor = RouterCursor {
        target: target.clone(),
        host: answer.host().to_owned(),
        id,
        awaits: flag("awaitData") || is_stream,
    };
    op.router.cursors.register(op, namespace, flag("noCursorTimeout"), cursor)
}

/// Runs the command on the primary shard of its database.
pub fn to_database(op: &Operation<'_>, makes: bool) -> Result<Reply> {
    let target = op.target(op.db(), makes)?;
    let answer = ask(op, &target, &Body { db: op.db(), body: op.body(), without: &[] })?;
    reply(op, &target, &answer)
}

/// Runs the command on the config servers.
pub fn to_config(op: &Operation<'_>) -> Result<Reply> {
    let target = Target::Config(op.router.directory.config().clone());
    let answer = ask(op, &target, &Body { db: op.db(), body: op.body(), without: &[] })?;
    reply(op, &target, &answer)
}

/// All shards.
///
/// Errors: those of asking the config servers.
pub fn all_shards(op: &Operation<'_>) -> Result<Vec<Target>> {
    let go_on = || op.check_interrupt();
    Ok(op.router.directory.shards(&go_on)?.into_iter().map(Target::Shard).collect())
}

/// Runs the command on all shards; the reply is the first one's, with all of them in `raw`.
pub fn to_all_shards(op: &Operation<'_>) -> Result<Reply> {
    let targets = all_shards(op)?;
    let answers = ask_all(op, &targets, &Body { db: op.db(), body: op.body(), without: &[] })?;
    Ok(Reply::ok().with_document("raw", |raw| {
        for (target, answer) in targets.iter().zip(&answers) {
            let shown = DocBuf::build(|out| {
                for field in
                    answer.reply().iter().filter(|field| !is_between(field.key()) || field.key() == "ok")
                {
                    out.append_element(field);
                }
            });
            raw.append(&target.set().address().to_string(), shown.as_raw());
        }
    }))
}
