//! Transactions that wait for their clients' next operation, as `currentOp` shows them.

use sheaf_bson::DocBuf;
use sheaf_front::log::date::iso_date;

use super::{Session, SessionState, TxnState};
use crate::node::Node;

impl Node {
    /// A document for each session with an open transaction in which no operation is under way.
    pub fn idle_transactions(&self) -> Vec<DocBuf> {
        let mut found = Vec::new();
        let host = self.host_and_port();
        self.sessions.each_open(SessionState::is_open, |session, state| {
            found.extend(self.describe(session, &state, &host));
        });
        found
    }

    fn describe(&self, session: &Session, state: &SessionState, host: &str) -> Option<DocBuf> {
        let TxnState::InProgress { started, read_concern, .. } = &state.txn else { return None };
        let open = started.elapsed();
        let began = self.clock.now_millis() - open.as_millis() as i64;
        let lifetime = self.parameters.int("transactionLifetimeLimitSeconds").saturating_mul(1000);
        Some(DocBuf::build(|doc| {
            doc.append("type", "idleSession");
            doc.append("host", host);
            doc.append("desc", "inactive transaction");
            session.id.write(doc, "lsid");
            {
                let mut transaction = doc.document("transaction");
                {
                    let mut parameters = transaction.document("parameters");
                    parameters.append("txnNumber", state.txn_number).append("autocommit", false);
                    if let Some(level) = read_concern.level {
                        parameters.document("readConcern").append("level", level.name());
                    }
                }
                transaction.append("startWallClockTime", &iso_date(began));
                transaction.append("timeOpenMicros", open.as_micros() as i64);
                transaction.append("expiryTime", &iso_date(began.saturating_add(lifetime)));
            }
            doc.append("waitingForLock", false);
            doc.append("active", false);
        }))
    }
}
