//! What a member of a shard counts for `shardingStatistics`, since it was started.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use sheaf_bson::DocWriter;
use sheaf_shard::moves::MoveId;

/// A move of a range away from here.
struct Donation {
    began: Instant,
    closed: Option<Instant>,
}

/// What a member of a shard counts.
#[derive(Default)]
pub struct Statistics {
    pub(super) stale_config: AtomicU64,
    donations: Mutex<HashMap<MoveId, Donation>>,
    donated: AtomicU64,
    committed: AtomicU64,
    aborted: AtomicU64,
    donating_millis: AtomicU64,
    cloning_millis: AtomicU64,
    closed_millis: AtomicU64,
    pub(super) cloned_here: AtomicU64,
    pub(super) cloned_from_here: AtomicU64,
    pub(super) cloned_bytes_here: AtomicU64,
    pub(super) cloned_bytes_from_here: AtomicU64,
    pub(super) caught_up_here: AtomicU64,
    pub(super) caught_up_bytes_here: AtomicU64,
    pub(super) received: AtomicU64,
}

fn add(to: &AtomicU64, more: u64) {
    to.fetch_add(more, Ordering::Relaxed);
}

fn millis_since(then: Instant) -> u64 {
    then.elapsed().as_millis() as u64
}

impl Statistics {
    /// Counts one more.
    pub(super) fn count(of: &AtomicU64) {
        add(of, 1);
    }

    /// Documents and bytes, one of them more.
    pub(super) fn cloned(documents: &AtomicU64, bytes: &AtomicU64, size: usize) {
        add(documents, 1);
        add(bytes, size as u64);
    }

    /// A range is being moved away from here; told once or more often.
    pub(super) fn donates(&self, id: MoveId) {
        self.donations.lock().entry(id).or_insert_with(|| {
            add(&self.donated, 1);
            Donation { began: Instant::now(), closed: None }
        });
    }

    /// It is closed.
    pub(super) fn closes(&self, id: MoveId) {
        if let Some(donation) = self.donations.lock().get_mut(&id) {
            donation.closed = Some(Instant::now());
        }
    }

    /// It is open again.
    pub(super) fn opens(&self, id: MoveId) {
        if let Some(donation) = self.donations.lock().get_mut(&id)
            && let Some(closed) = donation.closed.take()
        {
            add(&self.closed_millis, millis_since(closed));
        }
    }

    /// Its transaction has committed: the documents were copied until it was closed for that.
    pub(super) fn commits(&self, id: MoveId) {
        let Some(donation) = self.donations.lock().remove(&id) else { return };
        add(&self.committed, 1);
        add(&self.donating_millis, millis_since(donation.began));
        let closed = donation.closed.unwrap_or_else(Instant::now);
        add(&self.cloning_millis, closed.duration_since(donation.began).as_millis() as u64);
        add(&self.closed_millis, millis_since(closed));
    }

    /// Of all these moves nothing is heard any more but of those that are running.
    pub(super) fn runs(&self, is_running: impl Fn(&MoveId) -> bool) {
        self.donations.lock().retain(|id, donation| {
            let runs = is_running(id);
            if !runs {
                add(&self.aborted, 1);
                add(&self.donating_millis, millis_since(donation.began));
            }
            runs
        });
    }

    /// Writes them as `shardingStatistics` has them.
    pub fn write(&self, doc: &mut DocWriter<'_, Vec<u8>>) {
        let all = [
            ("countStaleConfigErrors", &self.stale_config),
            ("countDonorMoveChunkStarted", &self.donated),
            ("countDonorMoveChunkCommitted", &self.committed),
            ("countDonorMoveChunkAborted", &self.aborted),
            ("totalDonorMoveChunkTimeMillis", &self.donating_millis),
            ("totalDonorChunkCloneTimeMillis", &self.cloning_millis),
            ("totalCriticalSectionTimeMillis", &self.closed_millis),
            ("countDocsClonedOnRecipient", &self.cloned_here),
            ("countBytesClonedOnRecipient", &self.cloned_bytes_here),
            ("countDocsClonedOnCatchUpOnRecipient", &self.caught_up_here),
            ("countBytesClonedOnCatchUpOnRecipient", &self.caught_up_bytes_here),
            ("countDocsClonedOnDonor", &self.cloned_from_here),
            ("countBytesClonedOnDonor", &self.cloned_bytes_from_here),
            ("countRecipientMoveChunkStarted", &self.received),
        ];
        for (name, count) in all {
            doc.append(name, count.load(Ordering::Relaxed) as i64);
        }
    }
}

#[cfg(test)]
mod tests {
    use sheaf_bson::DocBuf;

    use super::*;

    #[test]
    fn each_move_is_started_once_and_ends_once() {
        let statistics = Statistics::default();
        let told = |name: &str| {
            let told = DocBuf::build(|out| statistics.write(out));
            told.as_raw().get(name).and_then(|count| count.as_exact_i64()).unwrap()
        };
        let [a, b] = [MoveId([1; 16]), MoveId([2; 16])];
        statistics.donates(a);
        statistics.donates(a);
        statistics.donates(b);
        assert_eq!(told("countDonorMoveChunkStarted"), 2);
        statistics.closes(a);
        statistics.commits(a);
        statistics.commits(a);
        statistics.opens(a);
        assert_eq!((told("countDonorMoveChunkCommitted"), told("countDonorMoveChunkAborted")), (1, 0));
        statistics.runs(|id| *id == b);
        assert_eq!(told("countDonorMoveChunkAborted"), 0);
        statistics.runs(|_| false);
        assert_eq!((told("countDonorMoveChunkCommitted"), told("countDonorMoveChunkAborted")), (1, 1));
    }
}
