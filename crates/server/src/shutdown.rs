//! How a member of a set ends so that its clients notice little of it.
//!
//! Its lead is gone by then. For a moment it is *quiet*: hellos, those that wait too, are answered with an error that
//! makes drivers turn to other members, and everything else is served as before. This is over as soon as no operation is
//! under way, and at the latest when its time is up. Then what is left is interrupted.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sheaf_bson::doc;
use sheaf_repl::MemberState;

use crate::node::Node;

/// How long it lasts at least where there are clients: what they send before they know shall be answered.
const LEAST: Duration = Duration::from_millis(100);

/// How often it is asked whether operations are under way.
const STEP: Duration = Duration::from_millis(5);

impl Node {
    /// Whether this node is about to end, quiet or not.
    pub fn is_ending(&self) -> bool {
        self.is_shutting_down() || self.quiesce.has_begun()
    }

    /// Lets the operations under way end and sends clients to other members, if there are any, for no longer than `limit`.
    pub async fn become_quiet(&self, limit: Duration) {
        if !self.can_send_clients_away() {
            return;
        }
        let began = Instant::now();
        let until = self.quiesce.begin(began + limit);
        let attributes = doc! { "quiesceTimeMillis": limit.as_millis() as i64 };
        let text = "Entering quiesce mode for shutdown";
        crate::log::info("REPL", crate::log::ids::QUIESCE_MODE, "SignalHandler", text, Some(attributes));
        loop {
            let now = Instant::now();
            let clients = self.clients();
            let busy = clients.iter().any(|client| client.is_busy());
            let told = clients.is_empty() || now >= began + LEAST;
            if now >= until || (told && !busy) {
                return;
            }
            tokio::time::sleep(STEP).await;
        }
    }

    /// Waits until all messages that have come are answered, for no longer than `limit`. Nothing new is begun by then.
    pub async fn until_answered(&self, limit: Duration) {
        let until = Instant::now() + limit;
        while self.clients().iter().any(|client| client.answering.load(Ordering::Acquire))
            && Instant::now() < until
        {
            tokio::time::sleep(STEP).await;
        }
    }

    fn can_send_clients_away(&self) -> bool {
        let Some(replica) = self.replica() else { return false };
        // Without another one to turn to, clients are better off with the errors of a member that has gone.
        replica.role().state == MemberState::Secondary && replica.with(|core| core.hears_data_bearing())
    }
}
