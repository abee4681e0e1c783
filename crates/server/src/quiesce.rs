//! The moment in which a member that ends is quiet: it serves what is under way, and sends its clients to others.

use std::sync::OnceLock;
use std::time::Instant;

use sheaf_bson::doc;
use sheaf_errors::Error;
use sheaf_front::front::shutting_down_error;
use tokio::sync::Notify;

/// Whether a member is quiet, and until when.
#[derive(Default)]
pub struct Quiesce {
    until: OnceLock<Instant>,
    began: Notify,
}

impl Quiesce {
    /// The answer to a hello, if this member is quiet.
    pub fn error(&self) -> Option<Error> {
        let left = self.until.get()?.saturating_duration_since(Instant::now());
        let extra = doc! { "remainingQuiesceTimeMillis": left.as_millis() as i64 };
        Some(shutting_down_error().with_extra(extra.as_bytes().to_vec()))
    }

    /// Waits until it begins.
    pub async fn begun(&self) {
        let began = self.began.notified();
        tokio::pin!(began);
        // Register before looking, so that a beginning in between is not missed.
        began.as_mut().enable();
        if self.until.get().is_none() {
            began.await;
        }
    }

    /// Whether it has begun.
    pub fn has_begun(&self) -> bool {
        self.until.get().is_some()
    }

    /// Begins, to last until this time; gives the end of one that has begun already.
    pub fn begin(&self, until: Instant) -> Instant {
        let until = *self.until.get_or_init(|| until);
        self.began.notify_waiters();
        until
    }
}
