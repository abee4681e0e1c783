//! `hello` and `isMaster`: a router is always writable, and its topology changes only by its end.

use std::future::pending;
use std::time::{Duration, Instant};

use sheaf_bson::{RawDoc, Value};
use sheaf_errors::{Result, bail};
use sheaf_front::args::Args;
use sheaf_front::front::shutting_down_error;
use sheaf_front::handshake::Handshake;
use sheaf_front::outcome::Parked;
use sheaf_front::reply::Reply;
use sheaf_front::role::{Cause, Coming};

use crate::op::Operation;

/// What never happens: a router's topology stays as it is.
struct Never;

impl Cause for Never {
    fn over(&self) -> Coming<'_, ()> {
        Box::pin(pending())
    }
}

/// `{hello: 1}`.
pub fn hello<'a>(args: &mut Args<'a>, op: &Operation<'a>) -> Result<Reply> {
    answer(args, op, false)
}

/// `{isMaster: 1}`.
pub fn is_master<'a>(args: &mut Args<'a>, op: &Operation<'a>) -> Result<Reply> {
    answer(args, op, true)
}

fn answer<'a>(args: &mut Args<'a>, op: &Operation<'a>, legacy: bool) -> Result<Reply> {
    let handshake = Handshake::parse(args, legacy)?;
    let version: Option<RawDoc<'_>> = args.optional("topologyVersion")?;
    let max_await: Option<i64> = args.optional("maxAwaitTimeMS")?;
    // `loadBalanced` among the rest: to a client that did not come through a balancer mongos answers as to any other, and its
    // driver sees by the missing `serviceId` that there is none.
    args.ignore_rest();
    if op.router.is_shutting_down() {
        return Err(shutting_down_error());
    }
    match (version, max_await) {
        (Some(_), None) => bail!(31368, "A request with 'topologyVersion' must include 'maxAwaitTimeMS'"),
        (None, Some(_)) => bail!(31368, "A request with 'maxAwaitTimeMS' must include a 'topologyVersion'"),
        (_, Some(ms)) if ms < 0 => bail!(31373, "maxAwaitTimeMS must be a non-negative integer"),
        (Some(version), Some(ms)) if waits(op, version, ms) => return Ok(Reply::ok()),
        _ => {}
    }
    let agreed = handshake.settle(op)?;
    Ok(Reply::with_capacity(1024).with_fields(|doc| {
        handshake.begin(doc);
        doc.append(if legacy { "ismaster" } else { "isWritablePrimary" }, true);
        doc.append("msg", "isdbgrid");
        doc.document("topologyVersion").append("processId", op.router.process_id).append("counter", 0i64);
        handshake.end(op, &agreed, doc);
    }))
}

/// Whether the answer has to wait, as the client knows it already.
fn waits(op: &Operation<'_>, version: RawDoc<'_>, max_await: i64) -> bool {
    let waiting = op.client().await_until.lock().take();
    let is_ours = matches!(version.get("processId"), Some(Value::ObjectId(id)) if id == op.router.process_id);
    let until = waiting.unwrap_or_else(|| Instant::now() + Duration::from_millis(max_await as u64));
    if is_ours && Instant::now() < until {
        *op.client().await_until.lock() = Some(until);
        op.parked.replace(Some(Parked { until: Some(until), cause: Box::new(Never) }));
        return true;
    }
    op.set_exhaust_reply();
    false
}
