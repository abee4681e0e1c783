//! What a node does when it begins or ceases to be primary.

use std::sync::atomic::Ordering;
use std::time::Duration;

use sheaf_bson::RawDoc;
use sheaf_errors::{Code, Result, bail};
use sheaf_replica::Host;
use sheaf_shard::TransactionId;

use crate::commands::admin::parameters;
use crate::first_start;
use crate::node::Node;
use crate::session::{LogicalSessionId, Session, SessionState, TxnState};
use crate::sharding::OpenTransactions;

/// How long what is running in a session is waited for before a record of it is written.
const REST: Duration = Duration::from_secs(10);

impl Host for Node {
    /// This node takes no more writes. Operations that write end with an error that tells drivers to look for the new
    /// primary, open transactions are gone; connections, reads and their cursors stay.
    fn stepped_down(&self) {
        self.role_changes.fetch_add(1, Ordering::AcqRel);
        if let Some(sharding) = self.sharding() {
            sharding.role_changed();
        }
        for client in self.clients() {
            let current = client.current.lock();
            if current.op_id == 0 {
                continue;
            }
            if current.needs_primary {
                client.interrupt(Code::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE);
                self.metrics.ops_killed.add(1);
            } else {
                self.metrics.ops_running.add(1);
            }
        }
        *self.metrics.last_transition.lock() = "stepDown";
        // A session that is in use drops its transaction when its operation, which was stopped, is over.
        // What else sessions know from before is forgotten when they are used.
        self.sessions
            .each_open(SessionState::is_open, |session, mut state| self.refresh_session(session, &mut state));
    }

    /// This node takes writes now: it writes what a primary has to have, and asks storage again for what sessions did
    /// under an earlier primary.
    fn stepped_up(&self) {
        // The only voter of a set may lead before its start has come to this.
        self.wait_for_engine();
        self.role_changes.fetch_add(1, Ordering::AcqRel);
        // What came with the log last.
        parameters::refresh(self);
        if let Some(sharding) = self.sharding() {
            sharding.role_changed();
        }
        *self.metrics.last_transition.lock() = "stepUp";
        let text = "Transition to primary complete; database writes are now permitted";
        crate::log::info("REPL", crate::log::ids::BECAME_PRIMARY, "OplogApplier-0", text, None);
        let prepared: Result<()> = first_start::prepare(self.engine(), &|| self.until_end())
            .and_then(|()| first_start::prepare_sessions(self));
        if let Err(error) = prepared {
            let attributes = sheaf_bson::doc! { "error": error.message() };
            let text = "A new primary cannot write its own collections";
            crate::log::warning(
                "REPL",
                crate::log::ids::PRIMARY_NOT_PREPARED,
                "ReplCoord",
                text,
                Some(attributes),
            );
        }
    }
}

impl OpenTransactions for Node {
    fn at_rest(&self, lsid: RawDoc<'_>, number: i64, work: &mut dyn FnMut() -> Result<()>) -> Result<bool> {
        let session = LogicalSessionId::parse(lsid).ok().and_then(|lsid| self.sessions.get(lsid));
        let Some(session) = session else { return Ok(false) };
        let Some(state) = session.state.try_lock_for(REST) else {
            bail!(Code::LOCK_TIMEOUT, "a session does not come to rest within {REST:?}");
        };
        if !state.loaded || state.txn_number <= number {
            work()?;
        }
        Ok(true)
    }

    fn ended(&self, id: &TransactionId, committed: bool) {
        if let Some(moves) = self.moves() {
            moves.note_end(id, committed);
        }
    }

    fn discard(&self, id: &TransactionId, opening: u64) {
        if let Some(moves) = self.moves() {
            moves.discard(id, opening);
        }
        let session =
            LogicalSessionId::parse(RawDoc::new(&id.lsid)).ok().and_then(|lsid| self.sessions.get(lsid));
        let Some(session) = session else { return };
        // Whoever uses it now finds at the end of its statement that it is not open any more.
        let Some(mut state) = session.state.try_lock() else { return };
        let is_that =
            matches!(&state.txn, TxnState::InProgress { executed, .. } if executed.opening == opening);
        let gone = state.open_since().filter(|_| is_that && state.txn_number == id.number);
        if let Some(started) = gone {
            state.txn = TxnState::Aborted;
            drop(state);
            self.transaction_gone(session.id, id.number, started.elapsed());
        }
    }
}

impl Node {
    /// Forgets what the session knows from before a change of role; an open transaction is gone with it.
    pub fn refresh_session(&self, session: &Session, state: &mut SessionState) {
        let now = self.role_changes.load(Ordering::Acquire);
        if state.role_changes == now {
            return;
        }
        let gone = state.open_since().map(|started| (state.txn_number, started.elapsed()));
        *state = SessionState { role_changes: now, ..SessionState::default() };
        if let Some((number, lived)) = gone {
            self.transaction_gone(session.id, number, lived);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::mongod::Mongod;

    /// A set's only voter on a fast disk is elected while its start is still on the way to handing over the engine.
    #[test]
    fn who_leads_before_its_engine_is_there_waits_for_it() {
        sheaf_front::log::to_nowhere();
        let folder = tempfile::tempdir().unwrap();
        let node = Mongod::new(Default::default(), Default::default()).unwrap().0;
        let leading = node.clone();
        let stepping_up = std::thread::spawn(move || leading.stepped_up());
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(100) {
            assert!(!stepping_up.is_finished(), "a new primary's first work has not waited");
            std::thread::yield_now();
        }
        node.set_engine(sheaf_storage::Engine::open(sheaf_storage::Options::new(folder.path())).unwrap());
        stepping_up.join().unwrap();
        assert_eq!(node.role_changes.load(Ordering::Acquire), 1);
    }
}
