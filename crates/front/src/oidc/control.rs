//! The keys of identity providers are read when they are due.

use std::sync::Arc;
use std::time::Duration;

use crate::front::Front;

/// How often it is looked whether keys are to be read.
const STEP: Duration = Duration::from_secs(1);

/// Reads the keys when they are due, until the server ends.
pub(crate) async fn watch(front: Arc<Front>) {
    loop {
        if front.oidc.providers().iter().any(|provider| front.oidc.is_due(provider)) {
            let front = front.clone();
            let read = tokio::task::spawn_blocking(move || {
                // What fails is in the log.
                let _ = front.oidc.refresh(|provider| front.oidc.is_due(provider));
            });
            let _ = read.await;
        }
        tokio::select! {
            () = tokio::time::sleep(STEP) => {}
            () = front.until_shutdown() => return,
        }
    }
}
