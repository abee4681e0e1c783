//! Requests to the machine of this member: what routers, other shards, and sessions of its own ask of it.

use std::sync::Arc;
use std::time::Duration;

use sheaf_bson::Timestamp;
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_shard::{
    Answer, Executed, LogRecord, ReaderId, ReplyId, Request, ShardEffect, TransactionId, Until,
};
use sheaf_storage::{Interrupt, OpTime, Transaction};

use super::names::time_of;
use super::shard_server::{Route, ShardServer, not_primary, seen};
use super::slot::Slot;

/// How long a decision waits for the sync of something else. What it has changed is seen as soon as it is applied; only that it can be
/// settled is waited for.
const DECISION_WAITS: Duration = Duration::from_millis(4);

/// A request whose answer has not come yet. Who drops it gives up: what the machine has not begun is not done any more.
pub struct Outstanding {
    server: Arc<ShardServer>,
    to: ReplyId,
    id: TransactionId,
    slot: Arc<Slot<Answer>>,
    /// Whether it tells of a commit.
    decides: bool,
}

impl Outstanding {
    /// Waits for the answer, with this thread.
    ///
    /// Errors: `NotWritablePrimary`; what has kept the log from taking the entry; those of `go_on`. None of them says anything about the
    /// transaction.
    pub fn wait(self, go_on: Interrupt<'_>) -> Result<Answer> {
        if self.decides {
            self.server.hurry_to(self.server.engine.last_applied());
        }
        self.slot.wait(go_on)
    }

    /// Waits for the answer without a thread.
    ///
    /// Errors: as of [`wait`](Outstanding::wait), but for those of `go_on`.
    pub async fn come(&self) -> Result<Answer> {
        if self.decides {
            match tokio::time::timeout(DECISION_WAITS, self.slot.come()).await {
                Ok(answer) => return answer,
                Err(_) => self.server.hurry_to(self.server.engine.last_applied()),
            }
        }
        self.slot.come().await
    }
}

impl Drop for Outstanding {
    fn drop(&mut self) {
        let left = {
            let mut state = self.server.state.lock();
            state.replies.remove(&self.to);
            // Whoever is about to append it takes it off the list.
            match state.held.get(&self.id) {
                Some(Some(_)) => state.held.remove(&self.id),
                _ => None,
            }
        };
        // What it has locked is let go outside.
        drop(left);
    }
}

impl ShardServer {
    /// Asks the machine, with the transaction that its session hands over for it. `None`: nothing is answered.
    ///
    /// Errors: `ShardingStateNotInitialized`.
    pub fn request(
        self: &Arc<Self>,
        request: Request,
        transaction: Option<Box<Transaction>>,
        go_on: Interrupt<'_>,
    ) -> Result<Option<Outstanding>> {
        if !self.is_known()? {
            bail!(
                Code::SHARDING_STATE_NOT_INITIALIZED,
                "this set has not been added to a cluster as a shard"
            );
        }
        if let Request::Confirm { read_at, .. } = &request {
            self.replica.observe_time((*read_at).into());
        }
        let (now, last) = (time_of(self.replica.cluster_time()), self.engine.last_applied());
        let slot = Slot::new();
        let id = request.id().cloned();
        let decides = matches!(request, Request::Commit { .. });
        if matches!(request, Request::Confirm { .. }) {
            self.hurry_to(last);
        }
        let asked = self.now(go_on, |machine, entrance| {
            seen(machine, last);
            let to = entrance.number();
            if let Some(id) = &id {
                entrance.replies.insert(to, Route::Waiting(slot.clone(), id.clone()));
                if let Some(transaction) = transaction {
                    entrance.held.insert(id.clone(), Some(transaction));
                }
            }
            machine.request(to, request, now);
            to
        });
        Ok(asked.zip(id).map(|(to, id)| Outstanding { server: self.clone(), to, id, slot, decides }))
    }

    /// Who waits for a majority does not wait for decisions that wait for others.
    fn hurry_to(&self, last: OpTime) {
        if self.replica.commit_point().index < last.index {
            self.replica.hurry(last);
        }
    }

    /// Asks the machine and waits for the answer, with this thread.
    ///
    /// Errors: those of [`request`](ShardServer::request) and [`Outstanding::wait`].
    pub fn answer_to(
        self: &Arc<Self>,
        request: Request,
        transaction: Option<Box<Transaction>>,
        go_on: Interrupt<'_>,
    ) -> Result<Option<Answer>> {
        self.request(request, transaction, go_on)?.map(|asked| asked.wait(go_on)).transpose()
    }

    /// Waits until the past at a time cannot change any more. This member has seen the time; what had been proposed before ends at
    /// index `last`.
    ///
    /// Errors: `NotWritablePrimary`; those of `go_on`.
    pub fn make_final(self: &Arc<Self>, at: Timestamp, last: u64, go_on: Interrupt<'_>) -> Result<()> {
        if !self.is_known()? {
            return self.engine.wait_committed(last, go_on);
        }
        let (now, slot) = (time_of(self.replica.cluster_time()), Slot::new());
        let applied = self.engine.last_applied();
        let waiting = self.now(go_on, |machine, entrance| {
            seen(machine, applied);
            if !machine.is_leading() {
                return None;
            }
            let reader = ReaderId(entrance.number().0);
            entrance.readers.insert(reader, slot.clone());
            machine.read(reader, time_of(at), last, Until::Final, now);
            Some(reader)
        });
        let Some(reader) = waiting.flatten() else { return Err(not_primary()) };
        self.hurry_to(applied);
        let waited = slot.wait(go_on);
        if waited.is_err() {
            self.state.lock().readers.remove(&reader);
            self.later(|machine| machine.cancel_read(reader));
        }
        waited?;
        self.engine.wait_committed(last, go_on)
    }

    /// Commits a transaction that has written on this shard only.
    ///
    /// Errors: `NoSuchTransaction`, if somebody has asked about it before; those of the commit.
    pub fn commit_alone(
        self: &Arc<Self>,
        id: &TransactionId,
        executed: Executed,
        transaction: Transaction,
        go_on: Interrupt<'_>,
    ) -> Result<OpTime> {
        if transaction.is_read_only() || !self.is_known()? {
            self.abandon(id);
            return transaction.commit(go_on);
        }
        let now = time_of(self.replica.cluster_time());
        let request = Request::CommitAlone { id: id.clone(), executed };
        self.lead();
        let told = self.tell(|machine, entrance| machine.request(entrance.number(), request, now));
        let mut effects = told.map_or_else(Vec::new, |((), effects)| effects);
        let own = |effect: &ShardEffect| {
            use sheaf_shard::Record::Alone;
            matches!(effect, ShardEffect::Append(LogRecord::Transaction(Alone { id: alone })) if alone == id)
        };
        let Some(at) = effects.iter().position(own) else {
            self.perform(effects, go_on);
            let text = format!("Transaction with {{ txnNumber: {} }} has been aborted.", id.number);
            return Err(Error::new(Code::NO_SUCH_TRANSACTION, text).with_label("TransientTransactionError"));
        };
        let ShardEffect::Append(record) = effects.remove(at) else { unreachable!("it was just found") };
        self.perform(effects, go_on);
        transaction.commit(go_on).inspect_err(|error| self.failed(&record, error))
    }

    /// The log has not taken a record: who has asked for it is told.
    pub(super) fn failed(self: &Arc<Self>, record: &LogRecord, error: &Error) {
        use sheaf_shard::Record;
        self.later(|machine| {
            machine.append_failed(record);
            if let LogRecord::Transaction(Record::Prepare { id, .. } | Record::Alone { id }) = record {
                // Its operations went with the attempt.
                machine.abandon(id);
            }
        });
        let LogRecord::Transaction(record) = record else { return };
        let concerned = |id: &TransactionId| match record {
            Record::Prepare { id: of, .. }
            | Record::Alone { id: of }
            | Record::Commit { id: of, .. }
            | Record::Abort { id: of } => id == of,
            Record::Settled { ids } => ids.contains(id),
        };
        let mut state = self.state.lock();
        let answered = state.replies.extract_if(|_, route| concerned(route.id()));
        answered.for_each(|(_, route)| route.refuse(error.clone()));
    }

    /// The transaction that a session has handed over for its entry. It stays on the list until [`let_go`](ShardServer::let_go), so that
    /// nobody takes it for aborted before the log's rows tell of it.
    ///
    /// Errors: `NoSuchTransaction`.
    pub(super) fn take_held(&self, id: &TransactionId) -> Result<Transaction> {
        let held = self.state.lock().held.get_mut(id).and_then(Option::take);
        held.map(|held| *held).ok_or_else(|| {
            Error::new(Code::NO_SUCH_TRANSACTION, "whoever has handed the transaction over has given up")
        })
    }

    /// The entry of a transaction that was handed over is applied, or will not be.
    pub(super) fn let_go(&self, id: &TransactionId) {
        let held = self.state.lock().held.remove(id);
        drop(held);
    }
}
