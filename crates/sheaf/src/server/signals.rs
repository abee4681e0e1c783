//! Signals and what they ask for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sheaf_front::log;
use sheaf_server::node::Node;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGTERM, SIGINT and SIGHUP stop the server, as they do mongod; SIGUSR1 rotates the log.
pub struct Signals {
    term: Signal,
    int: Signal,
    hangup: Signal,
    rotate: Signal,
}

impl Signals {
    /// From now on signals wait for [`Signals::serve`] instead of ending the process.
    pub fn listen() -> std::io::Result<Signals> {
        Ok(Signals {
            term: signal(SignalKind::terminate())?,
            int: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            rotate: signal(SignalKind::user_defined1())?,
        })
    }

    pub async fn serve(mut self, node: Arc<Node>, reopen: bool) {
        loop {
            let (number, called) = tokio::select! {
                _ = self.term.recv() => (15, "Terminated"),
                _ = self.int.recv() => (2, "Interrupt"),
                _ = self.hangup.recv() => (1, "Hangup"),
                _ = self.rotate.recv() => {
                    if let Err(error) = log::rotate(!reopen) {
                        eprintln!("cannot rotate the log: {error}");
                    }
                    continue;
                }
                () = node.until_shutdown() => return,
            };
            let attributes = sheaf_bson::doc! { "signal": number, "error": called };
            log::info(
                "CONTROL",
                log::ids::SIGNAL_RECEIVED,
                "SignalHandler",
                "Received signal",
                Some(attributes),
            );
            if let Some(replica) = node.replica().cloned() {
                // Another member takes over while this one still answers. Together with what is under way it has this time.
                let millis = node.parameters.int("shutdownTimeoutMillisForSignaledShutdown").max(0) as u64;
                let until = Instant::now() + Duration::from_millis(millis);
                let _ = tokio::task::spawn_blocking(move || replica.hand_over(millis)).await;
                node.become_quiet(until.saturating_duration_since(Instant::now())).await;
            }
            node.begin_shutdown();
            return;
        }
    }
}
