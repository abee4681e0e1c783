//! What must be there before a request reads as its read concern says.

use std::time::Duration;

use sheaf_bson::{ClusterTime, DocBuf, Timestamp, doc};
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_storage::{Transaction, View};

use crate::commands::crud::change_stream;
use crate::concern::ReadLevel;
use crate::op::Operation;
use crate::parked::{Parked, StateWanted, Waits, parked};
use crate::replication::Replica;
use crate::session::TxnPart;

/// Gives what has to be waited for; then the request is to be run again. If there is nothing, the operation reads the
/// right state from here on.
///
/// Errors: `NotWritablePrimary` for `linearizable` on another member, `SnapshotTooOld`, `MaxTimeMSExpired`.
pub fn prepare(op: &Operation<'_>, part: TxnPart) -> Result<Option<Parked>> {
    let Some(replica) = op.node.replica() else { return Ok(None) };
    if matches!(part, TxnPart::Continue | TxnPart::Commit | TxnPart::Abort) {
        return Ok(None);
    }
    let concern = op.read_concern();
    let level = concern.level.unwrap_or(ReadLevel::Local);
    if level == ReadLevel::Linearizable && !replica.is_writable() {
        bail!(Code::NOT_WRITABLE_PRIMARY, "cannot satisfy linearizable read concern on non-primary node");
    }
    let draws_line = op.node.is_in_cluster() && replica.is_writable();
    if draws_line && part == TxnPart::Start {
        return Ok(None);
    }
    let of_one_moment = level == ReadLevel::Snapshot && part == TxnPart::Plain;
    if let Some(at) = concern.at_cluster_time.filter(|_| draws_line && of_one_moment) {
        op.snapshot.replace(Some(final_snapshot(op, replica, at)?));
        return Ok(None);
    }
    let is_stream = op.command.name == "aggregate" && change_stream::is_opened_by(op.body);
    // A transaction reads the newest state; its commit waits until a majority has what it has read.
    let majority = is_stream || of_one_moment || (level == ReadLevel::Majority && part == TxnPart::Plain);
    let time = concern.after_cluster_time.max(concern.at_cluster_time);
    if time.is_none() && !majority {
        return Ok(None);
    }
    let wanted = StateWanted { time: time.map_or(0, |time| time.0), majority };
    if !wanted.is_here(op.engine()) {
        op.check_interrupt()?;
        bring_about(replica, op, wanted)?;
        op.want_majority();
        return Ok(Some(parked(op.node, op.deadline(), Waits::State(wanted))));
    }
    if of_one_moment {
        op.snapshot.replace(Some(snapshot(op, concern.at_cluster_time)?));
    }
    Ok(None)
}

/// Begins a transaction. It reads at the time that its read concern names, and in a sharded cluster at the present where that names none:
/// the line is drawn there, and what may be on its near side awaited. That is a commit that is under way just now.
///
/// Errors: `SnapshotTooOld`; those of the operation while it waits.
pub fn begin(op: &Operation<'_>, session: (DocBuf, i64)) -> Result<Transaction> {
    let named = op.read_concern().at_cluster_time;
    let draws_line = named.is_some() || op.node.is_in_cluster();
    let replica = op.node.replica().filter(|replica| draws_line && replica.is_writable());
    let Some(replica) = replica else { return op.engine().begin(Some(session)) };
    let (at, last) = replica.draw_line(named, present(op));
    let stop = op.interrupter();
    op.engine().wait_applied(last, &|| stop.check())?;
    op.engine().begin_at(Some(session), at)
}

/// Keeps the state at a time for transactions that will begin there.
///
/// Errors: `SnapshotTooOld`; `ClusterTimeFailsRateLimiter`; those of the operation while it waits.
pub fn hold(op: &Operation<'_>, at: Timestamp, age: Duration) -> Result<()> {
    let Some(replica) = op.node.replica() else { return Ok(()) };
    crate::check::time_seen(op.node, at)?;
    let (at, last) = replica.draw_line(Some(at), present(op));
    let stop = op.interrupter();
    op.engine().wait_applied(last, &|| stop.check())?;
    op.engine().hold_state(at, age)
}

/// Waits until nothing can be committed at or below a time any more that majority reads do not show; false where this is no primary, which
/// alone can know.
///
/// Errors: `ClusterTimeFailsRateLimiter`; those of the operation while it waits.
pub fn promise(op: &Operation<'_>, at: Timestamp) -> Result<bool> {
    let Some(replica) = op.node.replica().filter(|replica| replica.is_writable()) else { return Ok(false) };
    let Some(sharding) = op.node.sharding() else { return Ok(false) };
    crate::check::time_seen(op.node, at)?;
    let (at, last) = replica.draw_line(Some(at), present(op));
    let stop = op.interrupter();
    match op.blocking(|| sharding.make_final(at, last, &|| stop.check())) {
        Err(error) if error.code() == Code::NOT_WRITABLE_PRIMARY => Ok(false),
        done => done.map(|()| true),
    }
}

/// The time of day as a cluster time.
fn present(op: &Operation<'_>) -> Timestamp {
    ClusterTime::from_micros(op.node.clock.now_micros()).into()
}

/// The state at a time that this primary has seen, once nothing of it can change any more.
fn final_snapshot(op: &Operation<'_>, replica: &Replica, at: Timestamp) -> Result<View> {
    if let Some(known) = op.engine().named_view(at) {
        return Ok(known);
    }
    let (at, last) = replica.draw_line(Some(at), present(op));
    let stop = op.interrupter();
    op.blocking(|| match op.node.sharding() {
        Some(sharding) => sharding.make_final(at, last, &|| stop.check()),
        None => op.engine().wait_committed(last, &|| stop.check()),
    })?;
    op.engine().view_at(at, true).ok_or_else(|| too_old(at))
}

/// A primary whose log has not come as far as the time that a client has seen elsewhere writes an entry; a member of a shard that follows
/// has its primary write it.
fn bring_about(replica: &Replica, op: &Operation<'_>, wanted: StateWanted) -> Result<()> {
    if replica.is_writable() && op.last_applied().time < wanted.time {
        let note = doc! { "msg": "no-op for afterClusterTime", "readConcern": Timestamp(wanted.time) };
        let stop = op.interrupter();
        op.blocking(|| replica.write_noop(&note, &|| stop.check()))?;
    }
    if let Some(sharding) = op.node.sharding().filter(|_| !replica.is_writable()) {
        let stop = op.interrupter();
        // Without a primary nothing comes, and it is waited for all the same: there will be one.
        let engine = op.engine();
        let go_on = || match engine.last_applied().time < wanted.time {
            true => stop.check(),
            false => bail!(Code::STALE_CLUSTER_TIME, "it has come meanwhile"),
        };
        match op.blocking(|| sharding.have_noted(Timestamp(wanted.time), &go_on)) {
            Err(error) if stop.check().is_err() => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

fn snapshot(op: &Operation<'_>, at: Option<Timestamp>) -> Result<View> {
    let engine = op.engine();
    match at {
        None => engine.snapshot_view().ok_or_else(|| {
            let text = "Read concern snapshot reads are currently not possible.";
            Error::new(Code::SNAPSHOT_UNAVAILABLE, text)
        }),
        Some(at) => engine.view_at(at, false).ok_or_else(|| too_old(at)),
    }
}

fn too_old(at: Timestamp) -> Error {
    let text = format!(
        "Read timestamp Timestamp({}, {}) is older than the oldest available timestamp.",
        at.0 >> 32,
        at.0 as u32
    );
    Error::new(Code::SNAPSHOT_TOO_OLD, text)
}
