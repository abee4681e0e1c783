//! A request on its way to a shard, and a shard's reply on its way to the client. Documents are not looked at in either direction: a
//! request's fields are copied once, for what is added to them, and a reply goes out from where it came in with one copy.

use std::time::Duration;

use sheaf_bson::{DocBuf, DocWriter, Element, RawDoc, Value};
use sheaf_client::Message;
use sheaf_cluster::{Answer, ELECTION, SELECTION, ask_together, error_in, for_client};
use sheaf_errors::{Code, Result};
use sheaf_front::reply::Reply;
use sheaf_front::sampling::TOLD_DIFFS;
use sheaf_server::commands::crud::change_stream;
use sheaf_server::query_settings::FIELD;

use crate::addressed::{Addressed, ShardVersion, on_the_way};
use crate::cursor::RouterCursor;
use crate::gather::OnMember;
use crate::op::Operation;
use crate::route::Route;
use crate::session::{Own, append_snapshot};
use crate::target::Target;

/// Fields of a request that are between the client and this router, or that are made anew for each shard. Names are compared as bytes, here
/// and below: that they are text was seen when they came.
fn is_own(name: &[u8]) -> bool {
    matches!(
        name,
        b"$db"
            | b"$audit"
            | b"$clusterTime"
            | b"startTransaction"
            | b"recoveryToken"
            | b"apiDeprecationErrors"
            | b"retryOf"
            | b"routersOwn"
            | b"retryAttempt"
    ) || name == FIELD.as_bytes()
}

/// Fields of a reply that are between this router and a shard.
pub fn is_between(name: &[u8]) -> bool {
    matches!(
        name,
        b"ok"
            | b"$clusterTime"
            | b"operationTime"
            | b"topologyVersion"
            | b"electionId"
            | b"opTime"
            | b"$configTime"
            | b"$topologyTime"
            | b"executed"
            | b"readAt"
    ) || name == TOLD_DIFFS.as_bytes()
}

/// What of a request goes to a shard as it is.
pub struct Body<'b> {
    /// The database that it names.
    pub db: &'b str,
    /// The command.
    pub body: RawDoc<'b>,
}

impl<'b> Body<'b> {
    /// The operation's own request, as it came.
    pub fn of(op: &Operation<'b>) -> Self {
        Body { db: op.db(), body: op.body() }
    }
}

/// The request as a message to this target.
pub fn message(op: &Operation<'_>, to: &Addressed, body: &Body<'_>) -> Message {
    message_with(op, to, body, |_| {})
}

/// The request as a message to this target, with fields added.
pub fn message_with(
    op: &Operation<'_>,
    to: &Addressed,
    body: &Body<'_>,
    add: impl FnOnce(&mut DocWriter<'_, Vec<u8>>),
) -> Message {
    let mut message = command(op, to, body, |_| false, add);
    for sequence in op.sequences {
        message.begin_sequence(sequence.name);
        message.bytes().extend_from_slice(sequence.bytes);
        message.end_sequence();
    }
    message
}

/// The request without its sequences and the fields that stay behind, as a message to this target, with fields added.
pub fn command(
    op: &Operation<'_>,
    to: &Addressed,
    body: &Body<'_>,
    stays: impl Fn(&[u8]) -> bool,
    add: impl FnOnce(&mut DocWriter<'_, Vec<u8>>),
) -> Message {
    let mut message = Message::new();
    let (transaction, own) = (op.transaction.borrow(), op.own.borrow());
    let read_at = op.read_at();
    message.begin(0, |out| {
        let goes = |field: Element<'_>| {
            let name = field.key_bytes();
            let is_concern = name == b"readConcern" && (transaction.is_some() || read_at.is_some());
            let is_replaced = own.is_some() && Own::replaces(field.key());
            !(is_own(name) || is_concern || is_replaced || stays(name))
        };
        // Of a getMore it is how long it waits.
        let left = op.time_left().filter(|_| op.command.name != "getMore");
        // Fields that follow each other are copied at once.
        let fields = body.body.iter().rest();
        let (mut copied, mut seen) = (0, 0);
        for field in body.body {
            let end = seen + field.as_bytes().len();
            let limit = left.filter(|_| field.key_bytes() == b"maxTimeMS");
            if limit.is_some() || !goes(field) {
                out.append_raw_elements(&fields[copied..seen]);
                copied = end;
            }
            if let Some(left) = limit {
                out.append("maxTimeMS", left.as_millis().max(1) as i64);
            }
            seen = end;
        }
        out.append_raw_elements(&fields[copied..seen]);
        if let Some(own) = &*own {
            own.append(out);
        }
        if let Some(asked_for) = op.rights.asked_for() {
            out.append("$audit", &asked_for);
        }
        add(out);
        to.append_versions(out);
        if let Some(settings) = op.settings.borrow().as_ref().filter(|_| to.version.is_some()) {
            out.append(FIELD, settings.as_raw());
        }
        if let Some(transaction) = &*transaction {
            transaction.append_start(to.target.name(), out);
        }
        if let Some(at) = read_at {
            append_snapshot(at, out);
        }
        op.router.clock.append(out, op.generic.cluster_time);
        out.append("$db", body.db);
    });
    message
}

/// Sends the request to one target, and gives its answer.
///
/// Errors: the error that it answers; those of the way there.
pub fn ask(op: &Operation<'_>, to: &Addressed, body: &Body<'_>) -> Result<Answer> {
    let mut message = message(op, to, body);
    exchange(op, &to.target, &mut message)
}

/// Sends a message to one target, and gives its answer.
///
/// Errors: the error that it answers; those of the way there.
pub fn exchange(op: &Operation<'_>, target: &Target, message: &mut Message) -> Result<Answer> {
    note_participant(op, target);
    let go_on = || op.check_interrupt();
    let answer = op.blocking(|| target.set().ask(message, &op.asker(&go_on))).map_err(on_the_way)?;
    check(op, target, answer)
}

/// Sends the request to all of these, and gives their answers in the same order.
///
/// Errors: the first error that one of them answers; those of the way there.
pub fn ask_all(op: &Operation<'_>, all: &[Addressed], body: &Body<'_>) -> Result<Vec<Answer>> {
    ask_each(op, all, body)?.into_iter().collect()
}

/// Sends the request to all of these, and gives what each of them answers, in the same order.
///
/// Errors: those of the way to them.
pub fn ask_each(op: &Operation<'_>, all: &[Addressed], body: &Body<'_>) -> Result<Vec<Result<Answer>>> {
    if all.len() > 1 {
        op.choose_read_time();
    }
    Ok(exchange_all(op, all.iter().map(|to| (to, message(op, to, body))).collect()))
}

/// Sends these messages, and gives what became of each, in the same order. Shards that are out of reach are waited for together.
pub fn exchange_all(op: &Operation<'_>, messages: Vec<(&Addressed, Message)>) -> Vec<Result<Answer>> {
    exchange_within(op, messages, SELECTION)
}

/// The same; so long a shard may have nobody who can answer.
fn exchange_within(
    op: &Operation<'_>,
    messages: Vec<(&Addressed, Message)>,
    most: Duration,
) -> Vec<Result<Answer>> {
    let go_on = || op.check_interrupt();
    let (all, messages): (Vec<&Addressed>, Vec<_>) =
        messages.into_iter().map(|(to, message)| (to, (to.target.set(), message))).unzip();
    for to in &all {
        note_participant(op, &to.target);
    }
    let answers = op.blocking(|| ask_together(messages, &op.asker(&go_on), most));
    let checked = all.into_iter().zip(answers).map(|(to, answer)| {
        let answer = answer.map_err(|error| to.unanswered(error))?;
        check(op, &to.target, answer)
    });
    checked.collect()
}

/// Notes that a transaction takes part there.
pub fn note_participant(op: &Operation<'_>, target: &Target) {
    if let Some(transaction) = &mut *op.transaction.borrow_mut() {
        transaction.take_part(target, op.writes());
    }
}

/// Takes in what an answer tells of times and of the transaction.
///
/// Errors: the one that it answers.
pub fn check(op: &Operation<'_>, target: &Target, answer: Answer) -> Result<Answer> {
    op.heard(answer.reply());
    if let Some(transaction) = &mut *op.transaction.borrow_mut() {
        transaction.answered(target, answer.reply())?;
        if has_failed(answer.reply()) {
            transaction.fail();
        }
    }
    match error_in(answer.reply()) {
        Some(error) => Err(for_client(error)),
        None => Ok(answer),
    }
}

/// Whether an entry of `writeErrors`, or of a `bulkWrite`'s answers, says that a document is to be another shard's.
pub fn is_change(entry: RawDoc<'_>) -> bool {
    let code = entry.get("code").and_then(|code| code.as_exact_i64());
    code == Some(i64::from(Code::WOULD_CHANGE_OWNING_SHARD.0))
}

/// Whether an answer tells of a statement that has failed; one whose document is to be another shard's has not.
pub fn has_failed(reply: RawDoc<'_>) -> bool {
    let changes = |list: RawDoc<'_>| {
        list.values().filter_map(|entry| entry.as_doc()).filter(|entry| is_change(*entry)).count()
    };
    if let Some(errors) = reply.get("writeErrors").and_then(|errors| errors.as_array()) {
        return errors.iter().count() > changes(errors);
    }
    // That of `bulkWrite` counts them; some may come with a later batch.
    let count = reply.get("nErrors").and_then(|count| count.as_exact_i64()).unwrap_or(0);
    let batch = reply.get("cursor").and_then(|cursor| cursor.as_doc()?.get("firstBatch")?.as_array());
    count > batch.map_or(0, |batch| changes(batch) as i64)
}

/// The reply for the client. A cursor that is open on the shard is registered here, and the reply has its id here.
///
/// Errors: `TooManyLogicalSessions` and the like have been before; none.
pub fn reply(op: &Operation<'_>, target: &Target, answer: &Answer) -> Result<Reply> {
    let body = answer.reply();
    let mut reply = Reply::with_capacity(body.len() + 256);
    let _held = sheaf_meter::reserve(body.len() as u64)?;
    for field in body.iter().filter(|field| !is_between(field.key_bytes())) {
        let start = reply.raw().len();
        reply.raw().extend_from_slice(field.as_bytes());
        if field.key_bytes() != b"cursor" {
            continue;
        }
        let Some(cursor) = field.value().as_doc() else { continue };
        let batch = cursor.get("firstBatch").and_then(|batch| batch.as_array());
        op.metrics().returned.set(batch.map(|batch| batch.count() as u64));
        op.metrics().cursor_exhausted.set(true);
        if let Some(id) = cursor.element("id")
            && let Value::Int64(shards_id @ 1..) = id.value()
        {
            let at = start + (id.data().as_ptr() as usize - field.as_bytes().as_ptr() as usize);
            let namespace = cursor.get("ns").and_then(|ns| ns.as_str()).unwrap_or_default();
            let own_id = register(op, target, answer, namespace, shards_id);
            reply.raw()[at..at + 8].copy_from_slice(&own_id.to_le_bytes());
            op.metrics().cursor_id.set(Some(own_id));
            op.metrics().cursor_exhausted.set(false);
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
    let on = OnMember::new(&op.router.abandoned, target, answer.host(), namespace, id);
    let cursor = RouterCursor::Passed { on, awaits: flag("awaitData") || is_stream };
    op.router.cursors.register(op, namespace, flag("noCursorTimeout"), cursor)
}

/// Runs the command on the primary shard of its database.
pub fn to_database(op: &Operation<'_>, makes: bool) -> Result<Reply> {
    to_home(op, op.db(), || op.target(op.db(), makes))
}

/// Runs the command on the primary shard of this database, wherever that moves meanwhile.
pub fn to_home(op: &Operation<'_>, db: &str, home: impl Fn() -> Result<Target>) -> Result<Reply> {
    until_right(op, db, || to_plain(op, home()?))
}

/// Runs it again where a shard says that what is not sharded of the database is elsewhere, or is sharded now.
///
/// Errors: those of `run`; the last of those, after a while.
pub fn until_right(op: &Operation<'_>, db: &str, run: impl Fn() -> Result<Reply>) -> Result<Reply> {
    let mut route = Route::new(op, db, "", false);
    loop {
        match run() {
            Err(error) => route.stale(error)?,
            done => return done,
        }
    }
}

/// Runs the command there, on a collection that is not sharded.
pub fn to_plain(op: &Operation<'_>, target: Target) -> Result<Reply> {
    let version = matches!(target, Target::Shard(_)).then_some(ShardVersion::Plain);
    to_one(op, &Addressed { target, version })
}

/// Runs the command there.
pub fn to_one(op: &Operation<'_>, to: &Addressed) -> Result<Reply> {
    let answer = ask(op, to, &Body::of(op))?;
    reply(op, &to.target, &answer)
}

/// Runs the command on the config servers.
pub fn to_config(op: &Operation<'_>) -> Result<Reply> {
    to_one(op, &Target::Config(op.router.directory.config().clone()).into())
}

/// All shards.
///
/// Errors: those of asking the config servers.
pub fn all_shards(op: &Operation<'_>) -> Result<Vec<Addressed>> {
    let go_on = || op.check_interrupt();
    Ok(op.router.directory.shards(&go_on)?.into_iter().map(|shard| Target::Shard(shard).into()).collect())
}

/// All sets of the cluster: the shards, and the config servers where they are none.
///
/// Errors: those of asking the config servers.
pub fn all_sets(op: &Operation<'_>) -> Result<Vec<Addressed>> {
    let go_on = || op.check_interrupt();
    Ok(op.router.directory.sets(&go_on)?.into_iter().map(|set| Target::Shard(set).into()).collect())
}

/// Sends the request to all that `who` gives, and once more if one of these turns out to be no shard any more.
///
/// Errors: those of [`ask_all`]; those of asking the config servers.
pub fn ask_those(
    op: &Operation<'_>,
    who: impl Fn(&Operation<'_>) -> Result<Vec<Addressed>>,
) -> Result<(Vec<Addressed>, Vec<Answer>)> {
    ask_those_within(op, who, SELECTION)
}

/// The same for who looks how the cluster does, and is told soon that a shard is out of reach.
///
/// Errors: as [`ask_those`].
pub fn ask_those_soon(
    op: &Operation<'_>,
    who: impl Fn(&Operation<'_>) -> Result<Vec<Addressed>>,
) -> Result<(Vec<Addressed>, Vec<Answer>)> {
    ask_those_within(op, who, ELECTION)
}

fn ask_those_within(
    op: &Operation<'_>,
    who: impl Fn(&Operation<'_>) -> Result<Vec<Addressed>>,
    most: Duration,
) -> Result<(Vec<Addressed>, Vec<Answer>)> {
    let ask = |all: &[Addressed]| -> Result<Vec<Answer>> {
        if all.len() > 1 {
            op.choose_read_time();
        }
        let messages = all.iter().map(|to| (to, message(op, to, &Body::of(op)))).collect();
        exchange_within(op, messages, most).into_iter().collect()
    };
    let first = who(op)?;
    match ask(&first) {
        Err(error) if error.code() == Code::SHARD_NOT_FOUND => {
            let left = who(op)?;
            let answers = ask(&left)?;
            Ok((left, answers))
        }
        answers => Ok((first, answers?)),
    }
}

/// Runs the command on all shards; the reply is the first one's, with all of them in `raw`.
pub fn to_all_shards(op: &Operation<'_>) -> Result<Reply> {
    let (shards, answers) = ask_those(op, all_shards)?;
    Ok(Reply::ok().with_document("raw", |raw| {
        for (shard, answer) in shards.iter().zip(&answers) {
            let shown = DocBuf::build(|out| {
                for field in answer
                    .reply()
                    .iter()
                    .filter(|field| !is_between(field.key_bytes()) || field.key_bytes() == b"ok")
                {
                    out.append_element(field);
                }
            });
            raw.append(&shard.target.set().address().to_string(), shown.as_raw());
        }
    }))
}
