//! The end of things by themselves: idle cursors, old sessions, transactions that live too long.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::node::Node;
use crate::session::{LogicalSessionId, Session, TxnState};

/// How often the reaper looks.
const PERIOD: Duration = Duration::from_millis(500);

/// How often sessions in use are noted in `config.system.sessions`, as in MongoDB.
const SESSIONS_PERIOD: Duration = Duration::from_secs(300);

/// Runs until shutdown.
pub async fn run(node: Arc<Node>) {
    tokio::spawn(crate::commands::repl::keep_config_published(node.clone()));
    if let Err(error) = tokio::task::block_in_place(|| crate::oplog_size::restore(&node)) {
        let about = sheaf_bson::doc! { "error": error.message() };
        crate::log::warning(
            "REPL",
            crate::log::ids::OPLOG_SIZE_NOT_RESTORED,
            "oplog",
            "The log's size is the one of the start",
            Some(about),
        );
    }
    let mut quiet = Quiet::default();
    let mut cursors_seen = Instant::now();
    let mut sessions_noted = Instant::now();
    loop {
        tokio::select! {
            () = tokio::time::sleep(PERIOD) => {}
            () = node.until_shutdown() => return,
        }
        let between =
            Duration::from_secs(node.parameters.int("clientCursorMonitorFrequencySecs").max(1) as u64);
        if cursors_seen.elapsed() >= between {
            cursors_seen = Instant::now();
            let idle = node.parameters.int("cursorTimeoutMillis").max(0) as u64;
            node.cursors.expire(Duration::from_millis(idle));
        }
        tokio::task::block_in_place(|| node.reap_sessions());
        tokio::task::block_in_place(|| quiet.note(&node));
        if sessions_noted.elapsed() >= SESSIONS_PERIOD && node.is_writable() {
            sessions_noted = Instant::now();
            if let Err(error) = tokio::task::block_in_place(|| crate::first_start::note_sessions(&node)) {
                let about = sheaf_bson::doc! { "error": error.message() };
                let text = "Failed to refresh session cache, will try again at the next refresh interval";
                crate::log::warning("CONTROL", 20710, "LogicalSessionCacheRefresh", text, Some(about));
            }
        }
    }
}

/// How long a primary's log may be without entries; then it gets one, so that clients and members know its time.
const QUIET: Duration = Duration::from_secs(10);

/// The end of the log, and since when it has been there.
#[derive(Default)]
struct Quiet {
    last: u64,
    since: Option<Instant>,
}

impl Quiet {
    fn note(&mut self, node: &Node) {
        let Some(replica) = node.replica().filter(|replica| replica.is_writable()) else { return };
        let last = node.engine().last_applied().index;
        let since = *self.since.get_or_insert_with(Instant::now);
        if last != self.last {
            *self = Quiet { last, since: Some(Instant::now()) };
        } else if since.elapsed() >= QUIET {
            self.since = None;
            // Whoever leads now does it.
            let _ = replica.write_noop(&sheaf_bson::doc! { "msg": "periodic noop" });
        }
    }
}

impl Node {
    /// Aborts transactions whose lifetime is over, and forgets sessions that nobody has used for
    /// half an hour.
    pub fn reap_sessions(&self) {
        let now = self.clock.now_millis();
        let idle_limit = self.parameters.int("localLogicalSessionTimeoutMinutes") * 60_000;
        let lifetime =
            Duration::from_secs(self.parameters.int("transactionLifetimeLimitSeconds").max(0) as u64);
        for session in self.sessions.list() {
            if now - session.last_used.load(Ordering::Relaxed) >= idle_limit {
                self.end_session(session.id);
                continue;
            }
            // A session that is busy shows that its client lives; it is looked at again soon.
            let Some(mut state) = session.state.try_lock() else { continue };
            match &state.txn {
                TxnState::InProgress { started, .. } if started.elapsed() >= lifetime => {
                    let (number, lived) = (state.txn_number, started.elapsed());
                    state.txn = TxnState::Aborted;
                    drop(state);
                    self.transaction_gone(session.id, number, lived);
                }
                _ => {}
            }
        }
    }

    /// Ends a session: its transaction is aborted, its cursors close, it is forgotten.
    pub fn end_session(&self, id: LogicalSessionId) {
        if let Some(session) = self.sessions.remove(id) {
            self.kill_session(&session);
            // What the set remembers of a session is the primary's to forget.
            if session.state.lock().txn_number >= 0 && self.is_writable() {
                self.forget(id);
            }
        }
        self.cursors.kill_where(|cursor| cursor.lsid == Some(id));
    }

    /// Removes what storage keeps of a session's retryable writes. A record that stays behind
    /// costs a few bytes and is never asked for, so a failure is only worth a line in the log.
    fn forget(&self, id: LogicalSessionId) {
        if let Err(error) = self.engine().forget_session(id.document().as_raw()) {
            let attributes = sheaf_bson::doc! { "error": error.message() };
            crate::log::warning(
                "CONTROL",
                crate::log::ids::SESSION_NOT_FORGOTTEN,
                "reaper",
                "Cannot forget session",
                Some(attributes),
            );
        }
    }

    /// Stops what a session is doing: its running operations, its transaction and its cursors.
    pub fn kill_session(&self, session: &Session) {
        for client in self.clients() {
            let current = client.current.lock();
            let ends = matches!(current.name, "endSessions" | "killSessions" | "killAllSessions");
            if current.op_id != 0 && current.lsid == Some(session.id) && !ends {
                client.kill();
            }
        }
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

    /// Counts an aborted transaction and closes its cursors.
    pub fn transaction_gone(&self, id: LogicalSessionId, number: i64, lived: Duration) {
        self.metrics.txn.aborted.add(1);
        self.metrics.transaction_ended(lived);
        self.cursors.kill_where(|cursor| cursor.lsid == Some(id) && cursor.txn_number == Some(number));
    }
}
