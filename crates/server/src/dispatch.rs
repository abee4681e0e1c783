//! What every command needs, done once: names, generic arguments, sessions, concerns, limits,
//! fail points, counting, the slow log. The command itself is in its handler.

mod check;
mod fail;
mod finish;
mod place;
mod read;
mod transaction;

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bumpalo::Bump;
use sheaf_bson::{RawDoc, Value};
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_meter::Conduct;
use sheaf_storage::OpTime;
use sheaf_wire::{Flags, Sequence};

use crate::args::{Args, Fields};
use crate::client::Client;
use crate::command::{Access, Counter, Registered};
use crate::concern::{Effective, ReadConcern};
use crate::generic::{GenericArgs, is_generic};
use crate::node::Node;
use crate::op::{ApiParams, OpContext, OpMetrics};
use crate::parked::Parked;
use crate::reactor::{self, give_way};
use crate::reply::Reply;
use crate::session::{Role, Session};

pub use finish::{
    RETRYABLE, append_command, figures, is_not_primary, is_retryable, is_state_change, without_transient,
};

/// A request as the connection read it.
pub struct Request<'a> {
    /// The command.
    pub body: RawDoc<'a>,
    /// Its kind-1 sections.
    pub sequences: &'a [Sequence<'a>],
    /// Flags of the message; those of OP_QUERY are 0.
    pub flags: Flags,
    /// The database that an OP_QUERY names; OP_MSG has it in `$db`.
    pub query_db: Option<&'a str>,
    /// Where it runs.
    pub place: Place,
}

/// Where a request runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// On a thread that also serves others, which must not wait for it.
    Reactor,
    /// The same, and the request is so large that it takes long.
    ReactorLong,
    /// On a thread on which nobody else waits.
    Thread,
}

/// Whether the command of this name is answered by the control threads; see [`crate::reactor`].
pub fn is_control(name: &str) -> bool {
    crate::commands::find(name).is_some_and(|command| command.spec.control)
}

/// What came of a request; the connection completes and sends it.
pub struct Outcome {
    /// The reply, still open: `ok` and what the wait brings are added at the end.
    pub reply: Reply,
    /// Whether the command succeeded.
    pub ok: bool,
    /// The error that is the whole answer.
    pub error: Option<Error>,
    /// What must be so before the reply goes out.
    pub wait: Option<Wait>,
    /// Code of the `writeConcernError` that a fail point has put into the reply.
    pub write_concern_code: Option<Code>,
    /// Whether a driver may send the command again: a retryable write, or the end of a transaction.
    pub retryable: bool,
    /// `operationTime`: what the command wrote or read.
    pub operation_time: Option<u64>,
    /// Labels to add to a successful reply, from a fail point.
    pub labels: Vec<String>,
    /// The reply goes out at this time (or when the server shuts down): an awaitable hello.
    pub hold_until: Option<Instant>,
    /// Instead of an answer: wait, and run the same request again.
    pub parked: Option<Parked>,
    /// The same request runs again after this reply, which is marked `moreToCome`.
    pub exhaust: bool,
    /// Close the connection instead of answering.
    pub close: bool,
}

/// What must be so before a reply goes out.
pub struct Wait {
    /// Everything up to here...
    pub at: OpTime,
    /// ...fulfils this.
    pub concern: Effective,
    /// When the operation's own time is over.
    pub deadline: Option<Instant>,
    /// Without it the reply is worth nothing: a linearizable read.
    pub vital: bool,
}

impl Wait {
    /// Whether the wait may be over before it is fulfilled.
    pub fn is_limited(&self) -> bool {
        self.deadline.is_some() || !self.concern.timeout.is_zero()
    }
}

impl Outcome {
    /// An error as the whole answer.
    pub fn of_error(error: &Error) -> Self {
        Outcome { ok: false, error: Some(error.clone()), ..Outcome::of_reply(Reply::error(error)) }
    }

    fn of_reply(reply: Reply) -> Self {
        Outcome {
            reply,
            ok: true,
            error: None,
            wait: None,
            write_concern_code: None,
            retryable: false,
            operation_time: None,
            labels: Vec::new(),
            hold_until: None,
            parked: None,
            exhaust: false,
            close: false,
        }
    }
}

/// A command with its arguments taken apart.
struct Prepared<'a> {
    command: &'static Registered,
    /// The name that the client used, which may be an alias.
    called: &'a str,
    db: &'a str,
    generic: GenericArgs<'a>,
    /// The command's own fields; taken out when it runs.
    fields: Fields<'a>,
    api: ApiParams,
    role: Role,
    /// Whether it is an aggregation that writes, however much.
    aggregation_writes: bool,
}

impl Prepared<'_> {
    /// Whether the operation only reads. Then it ends when its client has gone, as in MongoDB, and takes turns with others.
    /// What an aggregation writes is written to the end.
    fn only_reads(&self) -> bool {
        self.command.spec.ends_with_client && !self.aggregation_writes
    }
}

/// Runs one request to the point where its answer only has to wait and be sent.
pub fn run(node: &Arc<Node>, client: &Arc<Client>, request: &Request<'_>) -> Outcome {
    run_counted(node, client, request, false)
}

/// Runs a request again that was [parked](Outcome::parked); it was counted already.
pub fn resume(node: &Arc<Node>, client: &Arc<Client>, request: &Request<'_>) -> Outcome {
    run_counted(node, client, request, true)
}

fn run_counted(node: &Arc<Node>, client: &Arc<Client>, request: &Request<'_>, resumed: bool) -> Outcome {
    let started = Instant::now();
    if !resumed {
        node.metrics.requests.add(1);
    }
    let mut prepared = match prepare(node, request) {
        Ok(prepared) => prepared,
        Err(error) => {
            node.metrics.asserts_user.add(1);
            return Outcome::of_error(&error);
        }
    };
    let command = prepared.command;
    if !resumed {
        node.metrics.opcounters.count(command.spec.counter, statements(request, command.spec.counter));
        if let Some(count) = node.command_counts.get(command.name) {
            count.total.add(1);
        }
    }
    // A parked request has been under way all the time.
    let mut began = started;
    {
        let mut current = client.current.lock();
        if resumed {
            began = current.started;
        } else {
            let op_id = node.next_op_id();
            client.stop.clear();
            client.stop.watch(started, prepared.only_reads());
            current.begin(op_id, started, prepared.db, command.name, request.body, prepared.generic.lsid);
            current.needs_primary = command.spec.access == Access::Write || prepared.role.in_transaction();
        }
    }
    let long = command.spec.may_block || request.place == Place::ReactorLong;
    let mut outcome = give_way(long && request.place != Place::Thread, || {
        execute(node, client, request, &mut prepared, (started, began, resumed))
    });
    crate::guard::after_operation(&client.meter);
    // What waits for other members is still under way.
    if outcome.parked.is_none() && outcome.wait.is_none() {
        client.current.lock().end();
    }
    if !outcome.ok {
        node.metrics.asserts_user.add(1);
        if let Some(count) = node.command_counts.get(command.name) {
            count.failed.add(1);
        }
    }
    outcome.exhaust &= outcome.ok;
    outcome
}

/// Whether this is an aggregation that writes, however much.
fn aggregation_writes(command: &Registered, body: RawDoc<'_>) -> bool {
    let pipeline = || body.get("pipeline").and_then(|stages| stages.as_array());
    command.name == "aggregate" && pipeline().is_some_and(crate::forward::writes)
}

/// Statements of a write command, which `opcounters` counts one by one.
fn statements(request: &Request<'_>, counter: Counter) -> u64 {
    let list = match counter {
        Counter::Insert => "documents",
        Counter::Update => "updates",
        Counter::Delete => "deletes",
        Counter::Query | Counter::GetMore | Counter::Command => return 1,
    };
    match request.sequences.iter().find(|sequence| sequence.name == list) {
        Some(sequence) => sequence.iter().count() as u64,
        None => request.body.get(list).and_then(|v| v.as_array()).map_or(1, |array| array.count() as u64),
    }
}

/// Finds the command, sorts its fields, and checks what concerns no session.
fn prepare<'a>(node: &Node, request: &Request<'a>) -> Result<Prepared<'a>> {
    let Some(first) = request.body.iter().next() else {
        bail!(Code::FAILED_TO_PARSE, "OP_MSG requests require a command");
    };
    let called = first.key();
    let found = crate::commands::find(called).filter(|c| !c.spec.test_only || node.test_commands());
    let name = found.map_or(called, |command| command.name);
    let mut generic = GenericArgs::default();
    let mut fields = Fields::new();
    for field in request.body {
        if is_generic(field.key_bytes()) {
            generic.take(name, field)?;
        } else {
            fields.push((field, false));
        }
    }
    let Some(db) = generic.db.or(request.query_db) else {
        bail!(40571, "OP_MSG requests require a $db argument");
    };
    crate::args::check_db_name(db)?;
    let Some(command) = found else {
        bail!(Code::COMMAND_NOT_FOUND, "no such command: '{called}'");
    };
    if command.spec.admin_only && db != "admin" {
        bail!(Code::UNAUTHORIZED, "{} may only be run against the admin database.", command.name);
    }
    let api = check::api_version(node, command, &generic, &fields)?;
    let role = check::session_arguments(command, &generic, &fields)?;
    check::cluster_time_seen(node, &generic)?;
    check::concerns(node, command, &generic, role)?;
    check::in_transaction(command, db, &generic, role)?;
    check::within_transaction(command, role)?;
    if node.is_shutting_down() && (command.name != "hello" || node.replica().is_some()) {
        return Err(finish::labelled(crate::node::shutting_down_error(), role));
    }
    let aggregation_writes = aggregation_writes(command, request.body);
    Ok(Prepared { command, called, db, generic, fields, api, role, aggregation_writes })
}

/// Runs a prepared command within its session.
fn execute<'a>(
    node: &'a Arc<Node>,
    client: &'a Arc<Client>,
    request: &'a Request<'a>,
    prepared: &mut Prepared<'a>,
    (started, began, resumed): (Instant, Instant, bool),
) -> Outcome {
    let struck = if resumed { Ok(fail::Additions::default()) } else { fail::before(node, client, prepared) };
    let injected = match struck {
        Ok(injected) => injected,
        Err(fail::Injected::Close) => {
            let error = Error::new(Code::INTERNAL_ERROR, "closed by a fail point");
            return Outcome { close: true, ..Outcome::of_error(&error) };
        }
        Err(fail::Injected::Error(error, labels)) => {
            return finish::failed(prepared, error, labels);
        }
    };
    if let Err(error) = place::check(node, client, prepared) {
        return finish::failed(prepared, error, None);
    }
    let session: Option<Arc<Session>> = match prepared.generic.lsid.map(|id| node.session(id)).transpose() {
        Ok(session) => session,
        Err(error) => return finish::failed(prepared, error, None),
    };
    let fields = std::mem::take(&mut prepared.fields);
    let Prepared { command, db, ref generic, api, role, .. } = *prepared;
    let mut op = OpContext {
        node,
        client,
        db,
        body: request.body,
        arena: Bump::new(),
        lsid: generic.lsid,
        txn_number: generic.txn_number,
        read_concern: Cell::new(read_concern(node, command, generic, role)),
        snapshot: RefCell::new(None),
        write_concern: generic.write_concern,
        comment: generic.comment.unwrap_or(Value::Missing),
        api,
        started,
        deadline: Cell::new(deadline(node, command, generic, began)),
        max_time_ms: generic.max_time_ms,
        stop: &client.stop,
        may_block: command.spec.may_block || request.place != Place::Reactor,
        exhaust: request.flags.exhaust_allowed(),
        exhaust_reply: Cell::new(false),
        hold_until: Cell::new(None),
        parked: RefCell::new(None),
        transaction: RefCell::new(None),
        in_transaction: role.in_transaction(),
        txn_ended: Cell::new(None),
        txn_found: Cell::new(None),
        committed: Cell::new(None),
        close_after_write: Cell::new(false),
        metrics: OpMetrics::default(),
    };
    client.meter.begin(op.deadline());
    // What writes, or has written in a transaction, may hold what others wait for, so it waits for no turn.
    let takes_turns = prepared.only_reads() && !op.in_transaction;
    let conduct = Conduct {
        when_long: (!op.may_block).then_some(reactor::leave),
        takes_turns: takes_turns.then_some(reactor::park),
    };
    let _entered = sheaf_meter::enter_as(client.meter.clone(), conduct);
    match read::prepare(&op, command, role) {
        Ok(None) => {}
        Ok(Some(parked)) => {
            prepared.fields = fields;
            return Outcome { parked: Some(parked), ..Outcome::of_reply(Reply::ok()) };
        }
        Err(error) => return finish::finish(&op, prepared, Err(error), injected),
    }
    let work = |op: &OpContext<'a>| {
        let mut args = Args::new(command.name, request.body, fields, request.sequences)?;
        if node.fail_points.any() || injected.data.is_some() {
            // `maxTimeAlwaysTimeOut` strikes commands that are too short to look at the clock, too, and what a fail
            // point held back until its time was over must not take effect any more.
            op.interrupter().check()?;
        }
        invoke(command, &mut args, op)
    };
    let result = match (&session, op.txn_number) {
        (Some(session), Some(txn_number)) if role != Role::Plain => {
            transaction::run_in_session(&mut op, session, role, txn_number, work)
        }
        _ => work(&op),
    };
    finish::finish(&op, prepared, result, injected)
}

/// Calls the handler; a panic in it becomes an error of this one command.
fn invoke<'a>(command: &Registered, args: &mut Args<'a>, op: &OpContext<'a>) -> Result<Reply> {
    let _active = Active::begin(op.node, command.spec.access);
    crate::log::set_connection(op.client.id);
    match catch_unwind(AssertUnwindSafe(|| (command.invoke)(args, op))) {
        Ok(result) => result,
        Err(panic) => {
            let text = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied())
                .unwrap_or("unknown panic");
            op.node.metrics.asserts_regular.add(1);
            let attributes = sheaf_bson::doc! { "command": command.name, "error": text };
            crate::log::error(
                "COMMAND",
                crate::log::ids::COMMAND_PANICKED,
                &op.client.context(),
                "Command panicked",
                Some(attributes),
            );
            bail!(Code::INTERNAL_ERROR, "internal error in command {}: {text}", command.name)
        }
    }
}

/// Counts running reads and writes for `globalLock.activeClients`.
struct Active<'n>(Option<&'n std::sync::atomic::AtomicU64>);

impl<'n> Active<'n> {
    fn begin(node: &'n Node, access: Access) -> Self {
        let gauge = match access {
            Access::None => None,
            Access::Read => Some(&node.metrics.active_reads),
            Access::Write => Some(&node.metrics.active_writes),
        };
        if let Some(gauge) = gauge {
            gauge.fetch_add(1, Ordering::Relaxed);
        }
        Active(gauge)
    }
}

impl Drop for Active<'_> {
    fn drop(&mut self) {
        if let Some(gauge) = self.0 {
            gauge.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// The client's read concern, with the default level if it names none.
fn read_concern(node: &Node, command: &Registered, generic: &GenericArgs<'_>, role: Role) -> ReadConcern {
    let mut concern = generic.read_concern.unwrap_or_default();
    let open = concern.level.is_none() && command.spec.read_concern;
    if open && node.replica().is_some() && matches!(role, Role::Plain | Role::Start) {
        concern.level = node.defaults.current(node).read_level();
    }
    concern
}

/// When the operation's time is over. `getMore` gives `maxTimeMS` a meaning of its own.
fn deadline(
    node: &Node,
    command: &Registered,
    generic: &GenericArgs<'_>,
    started: Instant,
) -> Option<Instant> {
    let limit = generic.max_time_ms.filter(|_| command.name != "getMore")?;
    if node.fail_points.enter("maxTimeNeverTimeOut", |_| true).is_some() {
        return None;
    }
    if node.fail_points.enter("maxTimeAlwaysTimeOut", |_| true).is_some() {
        return Some(started);
    }
    Some(started + Duration::from_millis(limit))
}
