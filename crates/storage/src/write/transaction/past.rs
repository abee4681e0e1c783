//! Transactions that read at a cluster time: what came after it is a conflict, what was prepared below it is not.

use std::sync::Arc;

use sheaf_bson::{DocBuf, Timestamp};
use sheaf_errors::Result;

use super::Transaction;
use crate::core::Core;
use crate::db::Cf;
use crate::locks::{LockKey, Locked};
use crate::read::undecided::{Ended, Past};
use crate::read::view::{SnapshotState, View};

impl Transaction {
    /// One that reads at a cluster time.
    pub(crate) fn begin_at(
        core: &Arc<Core>,
        session: Option<(DocBuf, i64)>,
        time: Timestamp,
    ) -> Result<Transaction> {
        let since = core.commits.others();
        let mut found = core.state_at(time.0)?;
        found.view.overlay = Some(Arc::default());
        if core.commits.recent().begin_at(found.start) {
            return Transaction::new(core, session, since, found.view, found.start, None);
        }
        let (start, base) = now(core, time.0);
        Transaction::new(core, session, since, found.view, start, Some(base))
    }

    /// Takes a lock that another transaction has, if that is prepared and may commit below the time that this one reads at: then its
    /// writes are seen here, and are no conflict.
    ///
    /// Errors: `WriteConflict`; those of the operation that waits.
    pub(super) fn wait_for_decision(&self, key: LockKey) -> Result<()> {
        let locks = self.core.commits.locks();
        loop {
            let open = self.core.commits.transactions().open();
            let Some(holder) = locks.holder(key) else {
                match locks.try_lock(key, self.owner) {
                    Locked::Taken => return Ok(()),
                    _ => continue,
                }
            };
            let holder = open.iter().find(|open| open.owner == holder && open.prepared <= self.read_at);
            let Some(holder) = holder else { return Err(self.conflict()) };
            let ended = holder.wait(&self.core.base.options.block)?;
            if matches!(ended, Ended::Committed(at) if at > self.read_at) {
                return Err(self.conflict());
            }
        }
    }

    /// Where nothing is known of what came between the view and this transaction's begin: whether a record is what it was.
    ///
    /// Errors: `WriteConflict`.
    pub(super) fn check_unchanged(&self, full: &[u8]) -> Result<()> {
        let Some(base) = &self.base else { return Ok(()) };
        let own = self.view.overlay.as_ref().is_some_and(|own| own.of(Cf::Records).contains_key(full));
        if own
            || self.view.get_full(Cf::Records, full)?.as_deref()
                == base.get_full(Cf::Records, full)?.as_deref()
        {
            return Ok(());
        }
        Err(self.conflict())
    }
}

/// The newest state, for a transaction that reads at a time, and where it begins.
fn now(core: &Core, read_at: u64) -> (u64, View) {
    let transactions = core.commits.transactions();
    loop {
        let (open, catalog) = (transactions.open(), core.published.catalog());
        let mut recent = core.commits.recent();
        let at = SnapshotState::take(&core.published);
        let start = recent.begin();
        if transactions.is_open(&open) {
            let past = Past::new(Some(read_at), open, &core.base.options.block);
            return (start, View { past, ..View::of(at, catalog) });
        }
        recent.end(start);
    }
}
