//! The end of things by themselves: idle cursors, old sessions, transactions that live too long.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::commands::admin::parameters;
use crate::node::Node;
use crate::session::{Leftovers, SessionState, TxnState};

/// How often the reaper looks.
const PERIOD: Duration = Duration::from_millis(500);

/// For so long a router's own transaction may rest between two statements. One whose router is gone would hold its locks, and with them the closing
/// of a collection, as long as transactions may live; one whose router was paused is run again by that.
const ROUTERS_SILENCE: Duration = Duration::from_secs(5);

/// How often sessions in use are noted in `config.system.sessions`, as in MongoDB.
const SESSIONS_PERIOD: Duration = Duration::from_secs(300);

/// Runs until shutdown.
pub async fn run(node: Arc<Node>) {
    tokio::spawn(crate::commands::repl::keep_config_published(node.clone()));
    tokio::spawn(crate::sampling::run(node.clone()));
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
    let mut leftovers = Leftovers::default();
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
            let in_sessions = node.parameters.bool("enableTimeoutOfInactiveSessionCursors");
            node.cursors.expire(Duration::from_millis(idle), in_sessions);
        }
        tokio::task::block_in_place(|| parameters::refresh(&node));
        tokio::task::block_in_place(|| node.reap_sessions());
        tokio::task::block_in_place(|| leftovers.forget(&node));
        tokio::task::block_in_place(|| quiet.note(&node));
        if sessions_noted.elapsed() >= SESSIONS_PERIOD && node.is_writable() {
            sessions_noted = Instant::now();
            if let Err(error) = tokio::task::block_in_place(|| crate::first_start::note_sessions(&node)) {
                let about = sheaf_bson::doc! { "error": error.message() };
                let text = "Failed to refresh session cache, will try again at the next refresh interval";
                crate::log::warning(
                    "CONTROL",
                    crate::log::ids::SESSIONS_NOT_REFRESHED,
                    "LogicalSessionCacheRefresh",
                    text,
                    Some(about),
                );
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
        let last = node.last_applied().index;
        let since = *self.since.get_or_insert_with(Instant::now);
        if last != self.last {
            *self = Quiet { last, since: Some(Instant::now()) };
        } else if since.elapsed() >= QUIET {
            self.since = None;
            // Whoever leads now does it; and behind an fsyncLock there is nothing to be known.
            let note = sheaf_bson::doc! { "msg": "periodic noop" };
            let _ = replica.write_noop(&note, &|| node.unless_locked());
        }
    }
}

impl Node {
    /// Aborts transactions whose lifetime is over or whose memory is needed, and ends sessions that nobody has used for half an
    /// hour; of very many it looks only at the next ones.
    pub fn reap_sessions(&self) {
        let lifetime =
            Duration::from_secs(self.parameters.int("transactionLifetimeLimitSeconds").max(0) as u64);
        let now = self.uptime_millis();
        self.refresh_busy_sessions(now);
        self.sessions.each_open(SessionState::is_open, |session, mut state| {
            if let TxnState::InProgress { started, used, routers_own, transaction, .. } = &state.txn
                && (started.elapsed() >= lifetime
                    || (*routers_own && used.elapsed() >= ROUTERS_SILENCE)
                    || transaction.as_ref().is_some_and(|transaction| transaction.is_shed()))
            {
                let (number, lived) = (state.txn_number, started.elapsed());
                state.txn = TxnState::Aborted;
                drop(state);
                self.transaction_gone(session.id, number, lived);
            }
        });
        let timeout = self.session_timeout();
        let idle = self.sessions.those_of_the_next(|session| session.is_idle(now, timeout));
        self.expire_sessions(&idle, now, timeout);
    }
}
