//! What the machine wants done: entries of the log, messages to other shards, ends of open transactions.

use std::sync::Arc;

use sheaf_errors::Result;
use sheaf_shard::{LogRecord, Record, ShardEffect};
use sheaf_storage::{Interrupt, OpTime};

use super::names::{array_of, key_of};
use super::shard_server::{Deferred, ShardServer};
use crate::log::ids;

/// Whether somebody waits until a majority has this. A decision is seen as soon as it is applied, and comes to a majority with what is
/// written next, or when those who want it confirmed have waited for a while ([`Outstanding`](super::requests::Outstanding)).
fn is_urgent(record: &LogRecord) -> bool {
    !matches!(record, LogRecord::Transaction(Record::Commit { .. } | Record::Settled { .. }))
}

impl ShardServer {
    /// Does what the machine wants done, in its order. The machine is not locked.
    pub(super) fn perform(self: &Arc<Self>, deferred: Deferred, go_on: Interrupt<'_>) {
        for effect in deferred {
            match effect {
                ShardEffect::Observe(time) => self.replica.observe_time(time.into()),
                ShardEffect::Append(record) => match self.append(&record, go_on) {
                    Ok(at) if is_urgent(&record) => self.replica.hurry(at),
                    Ok(_) => {}
                    Err(error) => self.failed(&record, &error),
                },
                ShardEffect::Discard { id, opening } => {
                    if let Some(sessions) = self.sessions.upgrade() {
                        sessions.discard(&id, opening);
                    }
                }
                ShardEffect::Send { to, request } => self.send(to, request),
                ShardEffect::Contradiction { id, what } => {
                    let about = sheaf_bson::doc! { "transaction": &format!("{id:?}"), "what": &what };
                    let text = "Shards contradict each other about a transaction";
                    crate::log::seldom::error("TXN", ids::SHARDS_CONTRADICT, "shard", text, about);
                }
                ShardEffect::Reply { .. } | ShardEffect::NotPrimary { .. } | ShardEffect::Ready(_) => {
                    unreachable!("answers are given under the lock")
                }
                ShardEffect::Wake { .. } => unreachable!("readers wait for the log, not for the machine"),
            }
        }
    }

    fn append(&self, record: &LogRecord, go_on: Interrupt<'_>) -> Result<OpTime> {
        let record = match record {
            LogRecord::Ceiling(at) => {
                *self.own_ceiling.lock() = self.term().map(|term| (term, (*at).into()));
                return self.engine.write_ceiling((*at).into(), go_on);
            }
            LogRecord::Transaction(record) => record,
        };
        match record {
            Record::Prepare { id, participants } => {
                let prepared = self.take_held(id)?.prepare(&array_of(participants), go_on);
                self.let_go(id);
                prepared
            }
            Record::Alone { id } => {
                let committed = self.take_held(id)?.commit(go_on);
                self.let_go(id);
                committed
            }
            Record::Commit { id, at } => self.engine.commit_prepared(&key_of(id), (*at).into(), go_on),
            Record::Abort { id } => self.engine.write_abort(&key_of(id), go_on),
            Record::Settled { ids } => {
                let keys: Vec<_> = ids.iter().map(key_of).collect();
                self.engine.write_settled(&keys, go_on)
            }
        }
    }
}
