//! How a member of a set ends so that its clients notice little of it.
//!
//! Its lead is gone by then. For a moment it is *quiet*: hellos, those that wait too, are answered with an error that
//! makes drivers turn to other members, and everything else is served as before. This is over as soon as no operation is
//! under way, and at the latest when its time is up. Then what is left is interrupted.

use std::time::{Duration, Instant};

use sheaf_bson::doc;
use sheaf_errors::{Code, Result};
use sheaf_repl::MemberState;

use crate::node::Node;

/// How long it lasts at least where there are clients: what they send before they know shall be answered.
const LEAST: Duration = Duration::from_millis(100);

/// How often it is asked whether operations are under way.
const STEP: Duration = Duration::from_millis(5);

/// How long a member that goes down does not stand for election.
const STEP_DOWN_MILLIS: u64 = 120_000;

impl Node {
    /// Hands the lead over if this member has it, for which others may take `patience` to catch up.
    ///
    /// Errors: nobody can take it over; not with `force`.
    pub fn hand_over(&self, patience: Duration, force: bool) -> Result<()> {
        let Some(replica) = self.replica().filter(|replica| replica.is_writable()) else { return Ok(()) };
        let alone = replica.with(|core| core.config().is_none_or(|config| config.members.len() == 1));
        if alone {
            return Ok(());
        }
        let millis = patience.as_millis() as u64;
        match replica.step_down(millis, millis.max(STEP_DOWN_MILLIS), false) {
            // Who has lost the lead meanwhile has nothing to hand over.
            Err(error) if error.code() != Code::NOT_WRITABLE_PRIMARY && !force => Err(error),
            _ => Ok(()),
        }
    }

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

    fn can_send_clients_away(&self) -> bool {
        let Some(replica) = self.replica() else { return false };
        // Without another one to turn to, clients are better off with the errors of a member that has gone.
        replica.role().state == MemberState::Secondary && replica.with(|core| core.hears_data_bearing())
    }
}
