//! How sessions end, and what is on record of them.
//!
//! Idleness is measured by the time that this server has run ([`Node::uptime_millis`]). What storage has on record of a
//! session's retryable writes goes by a write of its own, for all members and for good, while nobody can use the session.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sheaf_bson::DocBuf;
use sheaf_errors::Result;
use sheaf_front::session::SessionRegistry;

use super::{LogicalSessionId, Session, SessionState, TxnState};
use crate::log::ids;
use crate::node::Node;
use crate::sharding::transaction_id;

/// Sessions that end together: so many are kept from being used while their records go.
const AT_ONCE: usize = 1000;

impl Node {
    /// How long a session may be idle.
    pub fn session_timeout(&self) -> Duration {
        if let Some(data) = self.fail_points.enter("shortSessionTimeout", |_| true) {
            let millis = data.as_raw().get("millis").and_then(|millis| millis.as_exact_i64());
            return Duration::from_millis(millis.unwrap_or(0).max(0) as u64);
        }
        Duration::from_secs(self.parameters.int("localLogicalSessionTimeoutMinutes").max(0) as u64 * 60)
    }

    /// An operation that is under way is use of its session: a long one does not end by its session's end. That of a
    /// `getMore` which waits counts, too, and so a cursor in use keeps its session; an idle one ends with it.
    pub fn refresh_busy_sessions(&self, now: u64) {
        for client in self.clients() {
            let current = client.current.lock();
            let busy = current.lsid.filter(|_| current.op_id != 0);
            drop(current);
            if let Some(session) = busy.and_then(|id| self.sessions.get(id)) {
                // Later than the time to which idleness is measured.
                session.last_used.fetch_max(now + 1, Ordering::Relaxed);
            }
        }
    }

    /// Ends sessions that had been idle for too long at `now`, unless they have been used again.
    pub fn expire_sessions(&self, idle: &[Arc<Session>], now: u64, timeout: Duration) {
        for some in idle.chunks(AT_ONCE) {
            let ended = self.forget(some, |session| session.is_idle(now, timeout));
            self.close_cursors_of(ended);
        }
    }

    fn close_cursors_of(&self, ended: HashSet<LogicalSessionId>) {
        if !ended.is_empty() {
            self.cursors.kill_where(|cursor| cursor.lsid.is_some_and(|lsid| ended.contains(&lsid)));
        }
    }

    /// Forgets these sessions, as far as nobody uses them and `which` holds, and gives those. Their records go if this node
    /// writes for the set; where that fails, they are left to [`Leftovers`].
    fn forget(
        &self,
        sessions: &[Arc<Session>],
        which: impl Fn(&Session) -> bool,
    ) -> HashSet<LogicalSessionId> {
        // Whoever holds a session's state keeps retryable writes and transactions out.
        let mut held: Vec<_> = sessions
            .iter()
            .filter_map(|session| Some((session, session.state.try_lock()?)))
            .filter(|(session, state)| state.open_since().is_none() && which(session))
            .collect();
        if held.is_empty() {
            return HashSet::new();
        }
        if self.is_writable() {
            let lsids: Vec<DocBuf> = held.iter().map(|(session, _)| session.id.document()).collect();
            self.forget_records(&lsids);
        }
        let ended = held.iter().map(|(session, _)| session.id).collect();
        for (_, state) in &mut held {
            // Who has been waiting for it begins anew.
            **state = SessionState::default();
        }
        let gone: Vec<_> = held.into_iter().map(|(session, _)| session).collect();
        self.sessions.remove_unused(&gone);
        ended
    }

    fn forget_records(&self, lsids: &[DocBuf]) {
        if let Err(error) = self.engine().forget_sessions(lsids) {
            let attributes = sheaf_bson::doc! { "error": error.message() };
            let text = "Cannot forget sessions";
            crate::log::warning("CONTROL", ids::SESSION_NOT_FORGOTTEN, "reaper", text, Some(attributes));
        }
    }

    /// Removes the records of all sessions that this node does not know.
    fn forget_unknown_sessions(&self) -> Result<()> {
        let mut after: Option<DocBuf> = None;
        while !self.is_shutting_down() {
            let page = self.engine().recorded_sessions(after.as_ref().map(DocBuf::as_raw), AT_ONCE)?;
            let Some(last) = page.last() else { return Ok(()) };
            let recalled: Vec<_> = page
                .iter()
                .filter_map(|lsid| LogicalSessionId::parse(lsid.as_raw()).ok())
                .filter_map(|id| self.sessions.recall(id, self.uptime_millis()))
                .collect();
            self.forget(&recalled, |_| true);
            after = Some(last.clone());
        }
        Ok(())
    }

    /// Stops what a session is doing: its running operations, its transaction and its cursors.
    pub fn kill_session(&self, session: &Session) {
        self.stop_operations(|lsid| lsid == session.id);
        let gone = {
            let mut state = session.state.lock();
            let gone = state.open_since().map(|started| (state.txn_number, started.elapsed()));
            if gone.is_some() {
                state.txn = TxnState::Aborted;
            }
            gone
        };
        if let Some((number, lived)) = gone {
            self.transaction_gone(session.id, number, lived);
        }
        self.cursors.kill_where(|cursor| cursor.lsid == Some(session.id));
    }

    /// Whoever was killed makes room at once; if they come again they are read from their records, as after a restart.
    fn give_places_back(&self, sessions: &[Arc<Session>]) {
        let mut held: Vec<_> = sessions
            .iter()
            .filter_map(|session| Some((session, session.state.try_lock()?)))
            // What becomes of one that was handed over is not in the records yet.
            .filter(|(_, state)| state.open_since().is_none() && !matches!(state.txn, TxnState::HandedOver))
            .collect();
        for (_, state) in &mut held {
            **state = SessionState::default();
        }
        let gone: Vec<_> = held.into_iter().map(|(session, _)| session).collect();
        self.sessions.remove_unused(&gone);
    }

    /// Counts an aborted transaction and closes its cursors.
    pub fn transaction_gone(&self, id: LogicalSessionId, number: i64, lived: Duration) {
        self.metrics.txn.aborted.add(1);
        self.metrics.transaction_ended(lived);
        self.cursors.kill_where(|cursor| cursor.lsid == Some(id) && cursor.txn_number == Some(number));
        if let Some(sharding) = self.sharding() {
            sharding.abandon(&transaction_id(id, number));
        }
    }
}

impl SessionRegistry for Node {
    fn touch(&self, id: LogicalSessionId) -> Result<()> {
        self.session(id).map(|_| ())
    }

    fn those(&self, of: &dyn Fn(Option<&[u8; 32]>) -> bool) -> Vec<LogicalSessionId> {
        let all = self.sessions.list();
        all.iter().filter(|session| of(session.id.uid.as_ref())).map(|session| session.id).collect()
    }

    /// Their operations are stopped, their transactions aborted, their cursors closed; they are forgotten.
    fn end(&self, ids: &[LogicalSessionId]) {
        let known: Vec<_> = ids.iter().filter_map(|id| self.sessions.get(*id)).collect();
        known.iter().for_each(|session| self.kill_session(session));
        for some in known.chunks(AT_ONCE) {
            self.forget(some, |_| true);
        }
        self.close_cursors_of(ids.iter().copied().collect());
    }

    /// There may be a million, and each one's operations are looked for among all clients'.
    fn kill(
        &self,
        meant: Option<&[LogicalSessionId]>,
        spared: Option<LogicalSessionId>,
        check: &dyn Fn() -> Result<()>,
    ) -> Result<()> {
        let meant = match meant {
            None => self.sessions.list(),
            Some(ids) => ids.iter().filter_map(|id| self.sessions.get(*id)).collect(),
        };
        let meant: Vec<_> = meant.into_iter().filter(|session| spared != Some(session.id)).collect();
        for some in meant.chunks(AT_ONCE) {
            for session in some {
                check()?;
                self.kill_session(session);
            }
            self.give_places_back(some);
        }
        Ok(())
    }
}

/// Records of sessions that nobody has used since this node became the one that writes (or started): those of an earlier
/// run or primary. Nothing says when these were used last, so they get a full timeout anew; from then on, what this node
/// has not seen in use is over. Looks again after each further timeout, for what could not be removed when it was time.
#[derive(Default)]
pub struct Leftovers {
    /// [`Node::role_changes`], and since when it has been that and this node writes.
    role: u64,
    since: Option<Instant>,
}

impl Leftovers {
    /// Removes them when it is time.
    pub fn forget(&mut self, node: &Node) {
        let role = node.role_changes.load(Ordering::Acquire);
        if role != self.role || !node.is_writable() {
            *self = Leftovers { role, since: None };
        }
        if !node.is_writable() {
            return;
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() < node.session_timeout() {
            return;
        }
        self.since = Some(Instant::now());
        if let Err(error) = node.forget_unknown_sessions() {
            let attributes = sheaf_bson::doc! { "error": error.message() };
            let text = "Cannot forget sessions";
            crate::log::warning("CONTROL", ids::SESSION_NOT_FORGOTTEN, "reaper", text, Some(attributes));
        }
    }
}
