//! `currentOp` and `killOp`: the operations of the shards, which go by `<shard>:<number>` here, and the router's own.

use sheaf_auth::Action;
use sheaf_bson::{RawDoc, Value, doc};
use sheaf_errors::{Code, Result, bail};
use sheaf_front::args::{Args, exact_i64};
use sheaf_front::dispatch::authorize;
use sheaf_front::operations;
use sheaf_front::reply::Reply;

use crate::forward::{self, Body};
use crate::op::Operation;
use crate::stats::append_operation;
use crate::target::Target;

/// `{currentOp: 1, <field>: <filter>}`: those of all shards and of the config servers.
pub fn current<'a>(_: &mut Args<'a>, op: &Operation<'a>) -> Result<Reply> {
    let own_only = op.body().get("$ownOps").is_some_and(|own| own.truthy());
    if own_only && !op.rights.are_everything() {
        return Ok(own(op));
    }
    let (targets, answers) = forward::ask_those_soon(op, forward::all_sets)?;
    Ok(Reply::ok().with_array("inprog", |list| {
        for (to, answer) in targets.iter().zip(&answers) {
            let target = &to.target;
            let shown = answer.reply().get("inprog").and_then(|shown| shown.as_array());
            for entry in shown.into_iter().flat_map(|shown| shown.values()).filter_map(|entry| entry.as_doc())
            {
                append_operation(&mut list.document(), target.name(), entry);
            }
        }
    }))
}

/// Those of the user's own on this router; on shards they are the router's.
fn own(op: &Operation<'_>) -> Reply {
    let all = op.body().get("$all").is_some_and(|all| all.truthy());
    let shown = operations::under_way(op.router.front(), op.role.cursors(), all);
    Reply::ok().with_array("inprog", |list| {
        for operation in shown.iter().filter(|shown| operations::is_of(shown.as_raw(), &op.rights)) {
            list.push(operation);
        }
    })
}

/// `{killOp: 1, op: "shard0:5"}`, or a number: an operation of this router.
pub fn kill<'a>(args: &mut Args<'a>, op: &Operation<'a>) -> Result<Reply> {
    let value = args.value("op");
    let Some(name) = value.as_str() else {
        if value.is_missing() {
            bail!(Code::NO_SUCH_KEY, "Did not provide \"op\" field");
        }
        let number = exact_i64(value, "op")?;
        for client in op.router.clients() {
            if client.current.lock().op_id as i32 == number as i32 {
                if client.access.lock().user() != op.rights.user() {
                    check_kills(op)?;
                }
                client.kill();
            }
        }
        return Ok(told());
    };
    let Some((shard, number)) =
        name.rsplit_once(':').and_then(|(shard, number)| Some((shard, number.parse::<i32>().ok()?)))
    else {
        bail!(
            Code::BAD_VALUE,
            "The op argument to killOp must be of the format shardid:opid but found \"{name}\""
        );
    };
    // On shards all are the router's.
    check_kills(op)?;
    let go_on = || op.check_interrupt();
    let target = match shard {
        "config" => Target::Config(op.router.directory.config().clone()),
        _ => Target::Shard(op.router.directory.shard(shard, &go_on)?),
    };
    let command = doc! { "killOp": 1, "op": number };
    let body: RawDoc<'_> = command.as_raw();
    forward::ask(op, &target.into(), &Body { db: "admin", body })?;
    Ok(told())
}

/// Errors: `Unauthorized`, for who may not stop others' operations.
fn check_kills(op: &Operation<'_>) -> Result<()> {
    match op.rights.may(sheaf_auth::Target::Cluster, &[Action::Killop]) {
        true => Ok(()),
        false => Err(authorize::refused(op)),
    }
}

/// MongoDB answers alike whether or not there was such an operation.
fn told() -> Reply {
    Reply::ok().with("info", Value::String("attempting to kill op"))
}
