//! How far an initial sync is, for `replSetGetStatus`.

use std::time::Instant;

use sheaf_bson::{DocBuf, Value};

/// How often an initial sync is tried from the start before a pause.
pub const ATTEMPTS_MAX: usize = 10;

/// Figures of the initial sync under way, or of the last one.
#[derive(Default)]
pub struct Progress {
    /// When the initial sync began: by the wall clock in milliseconds, and by a clock that goes on evenly.
    pub began: Option<(i64, Instant)>,
    /// Attempts that failed: milliseconds, what happened, the source.
    pub failed: Vec<(i64, String, String)>,
    /// When this attempt began, and with whom.
    pub attempt: Option<(Instant, String)>,
    /// Bytes of the copy, and those that are here.
    pub total: u64,
    pub copied: u64,
    /// Bytes fetched since it began.
    pub received: u64,
    /// The file that is here in part, and how much of it.
    pub partial: Option<(String, u64)>,
    /// Whether an initial sync is under way.
    pub running: bool,
}

impl Progress {
    /// So many bytes of a file have come; it is here up to `len`.
    pub fn received(&mut self, name: &str, len: u64, bytes: u64) {
        self.copied += bytes;
        self.received += bytes;
        match &mut self.partial {
            Some((partial, known)) if partial == name => *known = len,
            partial => *partial = Some((name.to_owned(), len)),
        }
    }

    /// The attempt under way has failed.
    pub fn failed(&mut self, why: &str) {
        if let Some((began, source)) = self.attempt.take() {
            self.failed.push((began.elapsed().as_millis() as i64, why.to_owned(), source));
        }
    }

    /// The document `initialSyncStatus`; `None` if there is no initial sync.
    pub fn status(&self) -> Option<DocBuf> {
        let (wall, began) = self.began.filter(|_| self.running)?;
        let elapsed = began.elapsed().as_millis() as i64;
        Some(DocBuf::build(|doc| {
            doc.append("method", "fileCopyBased");
            doc.append("failedInitialSyncAttempts", self.failed.len() as i32);
            doc.append("maxFailedInitialSyncAttempts", ATTEMPTS_MAX as i32);
            doc.append("initialSyncStart", Value::DateTime(wall));
            doc.append("totalInitialSyncElapsedMillis", elapsed);
            let mut attempts = doc.array("initialSyncAttempts");
            for (millis, status, source) in &self.failed {
                let mut attempt = attempts.document();
                attempt.append("durationMillis", *millis).append("status", status.as_str());
                attempt.append("syncSource", source.as_str());
            }
            drop(attempts);
            if let Some((_, source)) = &self.attempt {
                doc.append("syncSource", source.as_str());
            }
            if self.total > 0 {
                doc.append("approxTotalDataSize", self.total as i64);
                doc.append("approxTotalBytesCopied", self.copied as i64);
            }
            if self.received > 0 {
                let left = self.total.saturating_sub(self.copied) as f64;
                let millis = left * elapsed as f64 / self.received as f64;
                doc.append("remainingInitialSyncEstimatedMillis", millis as i64);
            }
        }))
    }
}
