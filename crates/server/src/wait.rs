//! What an answer waits for: other members, the disk.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use sheaf_bson::{DocBuf, doc};
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_front::dispatch::is_not_primary;
use sheaf_front::role::{self, Coming};
use sheaf_repl::write_concern::W;
use sheaf_storage::OpTime;

use crate::concern::{Effective, ReadLevel};
use crate::node::Node;
use crate::op::Operation;
use crate::replication::Replica;
use crate::reply::Reply;

/// What must be so before a reply goes out.
struct Wait {
    node: Arc<Node>,
    /// Everything up to here...
    at: OpTime,
    /// ...fulfils this.
    concern: Effective,
    /// When the operation's own time is over.
    deadline: Option<Instant>,
    /// Without it the reply is worth nothing: a linearizable read.
    vital: bool,
}

impl Wait {
    /// Whether the wait may be over before it is fulfilled.
    fn is_limited(&self) -> bool {
        self.deadline.is_some() || !self.concern.timeout.is_zero()
    }
}

impl role::Wait for Wait {
    fn over(&self) -> Coming<'_, Result<()>> {
        Box::pin(fulfilled(&self.node, self))
    }

    fn is_vital(&self) -> bool {
        self.vital
    }

    fn error_info(&self, timed_out: bool) -> DocBuf {
        self.concern.error_info(timed_out)
    }
}

/// What the reply has to wait for.
///
/// Errors: those of a write that shows that this member still leads.
pub fn of(op: &Operation<'_>, result: &Result<Reply>) -> Result<Option<Box<dyn role::Wait>>> {
    if let Some(own) = op.later.take() {
        return Ok(Some(own));
    }
    let wait = find(op, result.as_ref().err().map(Error::code))?;
    Ok(wait.map(|wait| Box::new(wait) as Box<dyn role::Wait>))
}

/// `code` is that of the command's error.
fn find(op: &Operation<'_>, code: Option<Code>) -> Result<Option<Wait>> {
    let ends = op.part.ends();
    let writes = op.command.spec.access.is_write()
        || ends
        || op.committed.get().is_some()
        // On a secondary the primary has run it, and waited.
        || (op.writes_after_all && op.node.replica().is_none_or(|replica| replica.is_writable()));
    // Statements of a transaction wait when it commits.
    let writes = writes && (ends || !op.in_transaction());
    let Some(replica) = op.node.replica() else { return Ok(wait_alone(op, writes)) };
    let deadline = op.deadline();
    if op.read_concern().level == Some(ReadLevel::Linearizable) {
        if code.is_some() {
            return Ok(None);
        }
        if !replica.is_writable() {
            bail!(Code::NOT_WRITABLE_PRIMARY, "cannot satisfy linearizable read concern on non-primary node");
        }
        let at = op.last_applied();
        let concern = Effective { w: W::Majority, ..Effective::alone() };
        return Ok(Some(Wait { node: op.node.clone(), at, concern, deadline, vital: true }));
    }
    // What is in `local` has nobody else.
    if !writes || op.db == "local" {
        return Ok(None);
    }
    let default = op.node.default_concerns();
    let concern = Effective::of(op.write_concern().as_ref(), default.write());
    if concern.unacknowledged() || (concern.w == W::Nodes(1) && concern.journal != Some(true)) {
        return Ok(None);
    }
    if code.is_some_and(is_not_primary) {
        return Ok(None);
    }
    if code == Some(Code::NO_SUCH_TRANSACTION) && op.write_concern().is_some() && replica.is_writable() {
        // That there is no such transaction is certain once a majority agrees that this member leads.
        let (stop, note) = (op.interrupter(), doc! { "msg": "NoSuchTransaction error" });
        op.note_commit(op.blocking(|| replica.write_noop(&note, &|| stop.check()))?);
    }
    Ok(Some(Wait { node: op.node.clone(), at: relied_on(op), concern, deadline, vital: false }))
}

/// What an operation that writes has written. Who has changed nothing may have seen what others have written, or what
/// this client has written with a lesser concern, and relies on it.
fn relied_on(op: &Operation<'_>) -> OpTime {
    op.committed.get().unwrap_or_else(|| op.last_applied())
}

/// A node without others waits for its disk.
fn wait_alone(op: &Operation<'_>, writes: bool) -> Option<Wait> {
    let concern = Effective::of(op.write_concern().as_ref(), &Effective::alone());
    if !writes || !concern.wants_journal() || !op.node.options.journal {
        return None;
    }
    Some(Wait { node: op.node.clone(), at: relied_on(op), concern, deadline: None, vital: false })
}

/// The time of what the operation has written, or of what it may have read.
pub fn operation_time(op: &Operation<'_>) -> Option<u64> {
    op.node.replica()?;
    if let Some(committed) = op.committed.get() {
        let before = op.client.last_commit.fetch_max(committed.time, Ordering::Relaxed);
        return Some(committed.time.max(before));
    }
    if let Some(at) = op.at_cluster_time() {
        return Some(at.0);
    }
    if op.reads_majority() && !op.in_transaction() {
        return op.engine().majority_time().map(|time| time.0);
    }
    Some(op.last_applied().time)
}

/// Waits until what a reply waits for is so.
///
/// Errors: what stands in `writeConcernError` then.
async fn fulfilled(node: &Node, wait: &Wait) -> Result<()> {
    let concern = &wait.concern;
    let wtimeout = (!concern.timeout.is_zero()).then(|| Instant::now() + concern.timeout);
    let limit = match (wtimeout, wait.deadline) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    };
    let waiting = async {
        match node.replica() {
            Some(replica) => replicated(replica, wait).await,
            None => durable(node, wait.at.index, limit.is_some()).await,
        }
    };
    let Some(limit) = limit else { return waiting.await };
    let over = tokio::time::timeout_at(limit.into(), waiting).await;
    over.unwrap_or_else(|_| {
        Err(match wtimeout {
            Some(wtimeout) if wtimeout <= limit => {
                Error::new(Code::WRITE_CONCERN_FAILED, "waiting for replication timed out")
            }
            _ => Error::new(Code::MAX_TIME_MS_EXPIRED, "operation exceeded time limit"),
        })
    })
}

/// Waits until enough members have it.
async fn replicated(replica: &Replica, wait: &Wait) -> Result<()> {
    use sheaf_repl::write_concern::WaitOutcome as Ended;
    let stepped_down =
        || Error::new(Code::PRIMARY_STEPPED_DOWN, "Primary stepped down while waiting for replication");
    let mut ended = replica.wait(wait.at, wait.concern.for_set(), wait.is_limited()).await;
    if wait.vital && matches!(ended, Ok(Ended::Satisfied)) {
        // What was read is committed. If this member still leads, no other can have committed anything before the read.
        ended = replica.read_barrier().await;
    }
    match ended {
        Ok(Ended::Satisfied) => Ok(()),
        Ok(Ended::NotPrimary) => Err(stepped_down()),
        Ok(Ended::Unsatisfiable) => {
            Err(Error::new(Code::UNSATISFIABLE_WRITE_CONCERN, "Not enough data-bearing nodes"))
        }
        Err(error) if error.code() == Code::NOT_WRITABLE_PRIMARY => Err(stepped_down()),
        Err(error) => Err(error),
    }
}

/// Waits until the log is on stable storage up to `index`. Who has not for ever leaves the sync to others.
async fn durable(node: &Node, index: u64, limited: bool) -> Result<()> {
    let (done, waiting) = tokio::sync::oneshot::channel();
    let done = Box::new(move |result| {
        // Nobody listens any more when the connection is gone.
        let _ = done.send(result);
    });
    if limited {
        // Syncing by itself would make it wait for the disk past its time.
        node.engine().on_durable_later(index, done);
    } else {
        node.engine().on_durable(index, done);
    }
    waiting.await.unwrap_or_else(|_| Err(crate::node::shutting_down_error()))
}
