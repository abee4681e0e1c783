//! What every command needs, done once: names, generic arguments, limits, fail points, counting, the slow log. The command
//! itself is its role's.

pub mod authorize;
mod by_uuid;
mod check;
mod fail;
mod finish;
mod slow_log;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sheaf_auth::{Action, Target};
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_meter::Conduct;

use crate::args::{FEW_FIELDS, Fields};
use crate::audit::noted;
use crate::client::Client;
use crate::command::{Access, Counter, Description};
use crate::front::Front;
use crate::generic::{GenericArgs, is_generic};
use crate::message::{Message, Place};
use crate::outcome::RequestOutcome;
use crate::reactor::{self, give_way};
use crate::request::{AskedFor, Request};
use crate::role::Role;
use crate::sampling::Asked;

use by_uuid::Named;
pub use check::end_fields;
pub use finish::{RETRYABLE, is_not_primary, is_retryable, is_state_change, without_transient};
pub use slow_log::entries::Entries;
pub use slow_log::statement::{Statement, StatementKind, tell as tell_statement};

/// Runs one request to the point where its answer only has to wait and be sent.
pub fn run(role: &dyn Role, client: &Arc<Client>, message: &Message<'_>) -> RequestOutcome {
    run_counted(role, client, message, false)
}

/// Runs a request again that was [parked](RequestOutcome::parked); it was counted already.
pub fn resume(role: &dyn Role, client: &Arc<Client>, message: &Message<'_>) -> RequestOutcome {
    run_counted(role, client, message, true)
}

fn run_counted(
    role: &dyn Role,
    client: &Arc<Client>,
    message: &Message<'_>,
    resumed: bool,
) -> RequestOutcome {
    let started = Instant::now();
    let front = role.front();
    if !resumed {
        front.metrics.requests.add(1);
    }
    let told = authorize::with_user_of_session(role, client, message.body);
    let message = &match &told {
        Some(told) => Message { body: told.as_raw(), ..*message },
        None => Message { ..*message },
    };
    let named = by_uuid::resolve(role, message.body, message.query_db);
    let sent = message.body;
    let renamed = match &named {
        Named::Found(body) => Some(Message { body: body.as_raw(), ..*message }),
        Named::Plain | Named::Unknown(_) => None,
    };
    let message = renamed.as_ref().unwrap_or(message);
    let mut fields = Fields::with_capacity(FEW_FIELDS);
    let mut generic = GenericArgs::default();
    let refused = |error: &Error| {
        front.metrics.asserts_user.add(1);
        settle(front, client, message.place);
        RequestOutcome::of_error(error)
    };
    let asked = match asked(role, message, &mut generic, &mut fields) {
        Ok(asked) => asked,
        Err(error) => return refused(&error),
    };
    // It is large: made where it stays, and changed there.
    let mut request = Request::new(role, client, asked, (message, sent), generic, started);
    if let Err(error) = prepare(&mut request, resumed).and_then(|()| check_uuid(&named, &request)) {
        return refused(&error);
    }
    let command = request.command;
    let count = front.command_counts.get(command.name);
    if !resumed {
        count_operations(front, message, command.spec.counter);
        if let Some(count) = count {
            count.total.add(1);
        }
    }
    request.deadline.set(deadline(&request, begin(&request, resumed)));
    let long = command.spec.threads.may_block() || message.place == Place::ReactorLong;
    let mut outcome =
        give_way(long && message.place != Place::Thread, || execute(role, &request, fields, resumed));
    settle(front, client, message.place);
    crate::guard::after_operation(&client.meter);
    // What waits for other members is still under way.
    if outcome.parked.is_none() && outcome.wait.is_none() {
        client.current.lock().end();
    }
    if !outcome.ok {
        front.metrics.asserts_user.add(1);
        if let Some(count) = count {
            count.failed.add(1);
        }
    }
    outcome.exhaust &= outcome.ok;
    outcome
}

/// Whether a client that names a collection by its UUID may do so, and whether it is the UUID of one.
fn check_uuid(named: &Named, request: &Request<'_>) -> Result<()> {
    if matches!(named, Named::Plain) {
        return Ok(());
    }
    if !request.rights.may(Target::Cluster, &[Action::UseUuid]) {
        return Err(authorize::refused(request));
    }
    match named {
        Named::Unknown(error) => Err(error.clone()),
        Named::Plain | Named::Found(_) => Ok(()),
    }
}

/// Has what the audit log says of this request on the disk before it is answered.
fn settle(front: &Front, client: &Client, place: Place) {
    if client.audited.load(Ordering::Relaxed) != 0 {
        give_way(place != Place::Thread, || noted::settle(front, client));
    }
}

/// Notes that the operation is under way, and says since when: a parked one has been all the time.
fn begin(request: &Request<'_>, resumed: bool) -> Instant {
    let (client, command) = (request.client, request.command);
    let mut current = client.current.lock();
    if resumed {
        return current.started;
    }
    client.stop.clear();
    client.stop.watch(request.started, request.ends_with_client());
    let op_id = request.front.next_op_id();
    current.begin(op_id, request.started, request.db, command.name, request.body, request.lsid());
    current.needs_primary = command.spec.access.is_write() || request.in_transaction();
    request.started
}

fn count_operations(front: &Front, message: &Message<'_>, counter: Counter) {
    let counters = &front.metrics.opcounters;
    if counter != Counter::Bulk {
        return counters.count(counter, statements(message, counter));
    }
    match message.sequences.iter().find(|sequence| sequence.name == "ops") {
        Some(sequence) => counters.count_bulk(sequence.iter()),
        None => {
            let list = message.body.get("ops").and_then(|list| list.as_array());
            counters
                .count_bulk(list.into_iter().flat_map(|list| list.values()).filter_map(|one| one.as_doc()));
        }
    }
}

/// Statements of a write command, which `opcounters` counts one by one.
fn statements(message: &Message<'_>, counter: Counter) -> u64 {
    let list = match counter {
        Counter::Insert => "documents",
        Counter::Update => "updates",
        Counter::Delete => "deletes",
        Counter::Query | Counter::GetMore | Counter::Command | Counter::Bulk => return 1,
    };
    match message.sequences.iter().find(|sequence| sequence.name == list) {
        Some(sequence) => sequence.iter().count() as u64,
        None => message.body.get(list).and_then(|v| v.as_array()).map_or(1, |array| array.count() as u64),
    }
}

/// The error of a command that there is not, of which nothing but the database is looked at.
fn unknown(message: &Message<'_>, called: &str) -> Error {
    let mut generic = GenericArgs::default();
    let database = message.body.iter().find(|field| field.key() == "$db");
    if let Some(Err(error)) = database.map(|field| generic.take(called, field)) {
        return error;
    }
    match generic.db.or(message.query_db).map(crate::args::check_db_name) {
        None => Error::location(40571, "OP_MSG requests require a $db argument"),
        Some(Err(error)) => error,
        Some(Ok(())) => Error::new(Code::COMMAND_NOT_FOUND, format!("no such command: '{called}'")),
    }
}

/// Finds the command, sorts its fields into those that every command has and its own, and checks what needs nothing else.
fn asked<'a>(
    role: &dyn Role,
    message: &Message<'a>,
    generic: &mut GenericArgs<'a>,
    fields: &mut Fields<'a>,
) -> Result<AskedFor<'a>> {
    let front = role.front();
    let Some(first) = message.body.iter().next() else {
        bail!(Code::FAILED_TO_PARSE, "OP_MSG requests require a command");
    };
    let called = first.key();
    let Some(found) = role.find(called).filter(|found| is_there(front, found.command)) else {
        return Err(unknown(message, called));
    };
    for field in message.body {
        if is_generic(field.key_bytes()) {
            generic.take(found.command.name, field)?;
        } else {
            fields.push((field, false));
        }
    }
    let Some(db) = generic.db.or(message.query_db) else {
        bail!(40571, "OP_MSG requests require a $db argument");
    };
    crate::args::check_db_name(db)?;
    let command = found.command;
    if command.spec.admin_only && db != "admin" {
        bail!(Code::UNAUTHORIZED, "{} may only be run against the admin database.", command.name);
    }
    let api = check::api_version(front, command, generic, fields)?;
    let part = check::session_arguments(command, generic, fields)?;
    Ok(AskedFor { found, called, db, api, part })
}

/// Checks what concerns no session: who asks for it, and when.
fn prepare(request: &mut Request<'_>, resumed: bool) -> Result<()> {
    let Request { front, role, command, part, .. } = *request;
    if front.oidc.is_on() {
        authorize::fresh(request)?;
    }
    if front.access.enabled {
        request.rights = authorize::rights(request)?;
        authorize::between_servers(request)?;
        authorize::judge_time(request);
        if command.name == "getMore" {
            authorize::of_cursor(request)?;
        }
    }
    check::session_of_nobody(request);
    authorize::own_session(request)?;
    // What goes on has been allowed, and noted, before.
    if !resumed {
        noted::authorized(request)?;
    }
    role.check(request)?;
    check::in_transaction(request)?;
    check::within_transaction(command, request.part)?;
    // A hello says by itself what it has to say at the end.
    if front.is_shutting_down() && command.name != "hello" {
        return Err(finish::labelled(crate::front::shutting_down_error(), part));
    }
    Ok(())
}

/// Whether a command can be had, as this server was started.
pub fn is_there(front: &Front, command: &Description) -> bool {
    let audits = front.audit.is_some() || !noted::OWN_COMMANDS.contains(&command.name);
    let tokens = !crate::oidc::OWN_COMMANDS.contains(&command.name)
        || crate::sasl::takes(&front.parameters, crate::oidc::OIDC);
    audits && tokens && (!command.spec.test_only || front.test_commands())
}

/// Runs a prepared request.
fn execute<'a>(
    role: &'a dyn Role,
    request: &'a Request<'a>,
    fields: Fields<'a>,
    resumed: bool,
) -> RequestOutcome {
    let struck = if resumed { Ok(fail::Additions::default()) } else { fail::before(request, &fields) };
    let injected = match struck {
        Ok(injected) => injected,
        Err(fail::Injected::Close) => {
            let error = Error::new(Code::INTERNAL_ERROR, "closed by a fail point");
            return RequestOutcome { close: true, ..RequestOutcome::of_error(&error) };
        }
        Err(fail::Injected::Error(error, labels)) => {
            return finish::failed(request.part, error, labels);
        }
    };
    if let Err(error) = role.place(request) {
        return finish::failed(request.part, error, None);
    }
    // What was parked has been noted before.
    if !resumed && request.front.sampling.is_active() {
        sample(request);
    }
    let _room = noted::Room(request);
    if let Err(error) = noted::before(request) {
        return finish::failed(request.part, error, None);
    }
    request.client.meter.begin(request.deadline());
    request.client.meter.set_owner(request.owner());
    // What writes, or has written in a transaction, may hold what others wait for, so it waits for no turn.
    let takes_turns = request.only_reads() && !request.in_transaction();
    let conduct = Conduct {
        when_long: (!request.may_block).then_some(reactor::leave),
        takes_turns: takes_turns.then_some(reactor::park),
    };
    let _entered = sheaf_meter::enter_as(request.client.meter.clone(), conduct);
    request.struck.set(injected.data.is_some());
    let ran = role.run(request, fields);
    finish::finish(role, request, ran, injected)
}

/// Notes a request for `analyzeShardKey`, if it is its turn.
#[cold]
fn sample(request: &Request<'_>) {
    let Request { front, db, body, sequences, command, .. } = request;
    let asked = Asked { command: command.name, db, body: *body, sequences };
    request.sampled.replace(front.sampling.note(&asked, front.samples_expire()));
}

/// The time of a client's read that says nothing of it; whoever says 0 means no limit.
fn default_limit(request: &Request<'_>) -> Option<u64> {
    let limit = request.front.read_time_ms.load(Ordering::Relaxed);
    if limit == 0 {
        return None;
    }
    let access = request.command.spec.access;
    let reads =
        matches!(access, Access::Read | Access::ReadOrWrite(_)) && !access.writes_after_all(request.body);
    let own = request.client.access.lock().is_server;
    (reads && !own && request.body.element("maxTimeMS").is_none()).then_some(limit)
}

/// When the operation's time is over. `getMore` gives `maxTimeMS` a meaning of its own.
fn deadline(request: &Request<'_>, began: Instant) -> Option<Instant> {
    let limit = request.max_time_ms().or_else(|| default_limit(request));
    let limit = limit.into_iter().chain(request.generic.max_time_ms_op_only).min();
    let limit = limit.filter(|_| request.command.name != "getMore")?;
    let fail_points = &request.front.fail_points;
    if fail_points.enter("maxTimeNeverTimeOut", |_| true).is_some() {
        return None;
    }
    if fail_points.enter("maxTimeAlwaysTimeOut", |_| true).is_some() {
        return Some(began);
    }
    Some(began + Duration::from_millis(limit))
}
