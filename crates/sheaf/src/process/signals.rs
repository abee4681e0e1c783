//! Signals and what they ask for.

use std::sync::Arc;

use sheaf_front::front::Front;
use sheaf_front::log;
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

    /// Serves signals until the server ends; `before` is what it does first when it is told to.
    pub async fn serve(mut self, front: Arc<Front>, before: impl Future<Output = ()>) {
        loop {
            let (number, called) = tokio::select! {
                _ = self.term.recv() => (15, "Terminated"),
                _ = self.int.recv() => (2, "Interrupt"),
                _ = self.hangup.recv() => (1, "Hangup"),
                _ = self.rotate.recv() => {
                    if let Err(error) = log::rotate() {
                        eprintln!("cannot rotate the log: {error}");
                    }
                    if let Err(error) = tokio::task::block_in_place(|| front.rotate_audit()) {
                        eprintln!("cannot rotate the audit log: {error}");
                    }
                    continue;
                }
                () = front.until_shutdown() => return,
            };
            let attributes = sheaf_bson::doc! { "signal": number, "error": called };
            log::info(
                "CONTROL",
                log::ids::SIGNAL_RECEIVED,
                "SignalHandler",
                "Received signal",
                Some(attributes),
            );
            before.await;
            front.begin_shutdown();
            return;
        }
    }
}
