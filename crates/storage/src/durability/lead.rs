//! How far writers may be ahead of the disk.
//!
//! Who writes with `w: 1` does not wait for the disk, so what it writes comes together in the system's page cache. That must not become more than
//! the disk writes within a moment: the next write with `j: true`, a flush and the server's end wait for all of it, and the system itself holds a
//! writer up for seconds when it finds that too much is unwritten.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Writers may be ahead of the disk by what it writes in so long...
const AHEAD: Duration = Duration::from_millis(250);

/// ...but by so much at least, and not by more.
const LEAST: u64 = 16 << 20;
const MOST: u64 = 256 << 20;

/// Smaller syncs tell nothing of the disk's rate.
const TELLING_BYTES: u64 = 4 << 20;

/// Bytes a second that syncs have written, averaged over the last ones; 0 before the first that tells.
#[derive(Default)]
pub(super) struct Lead(AtomicU64);

impl Lead {
    /// A sync of so many bytes took so long.
    pub fn note(&self, bytes: u64, took: Duration) {
        if bytes < TELLING_BYTES {
            return;
        }
        let this = (bytes as f64 / took.as_secs_f64().max(1e-6)) as u64;
        let before = self.0.load(Ordering::Relaxed);
        // Whoever syncs does so alone, so nothing is lost between these.
        self.0.store(if before == 0 { this } else { before / 4 * 3 + this / 4 }.max(1), Ordering::Relaxed);
    }

    /// By how many bytes writers may be ahead.
    pub fn most(&self) -> u64 {
        match self.0.load(Ordering::Relaxed) {
            0 => MOST / 4,
            rate => ((rate as f64 * AHEAD.as_secs_f64()) as u64).clamp(LEAST, MOST),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_disk_is_not_left_far_behind() {
        let lead = Lead::default();
        assert_eq!(lead.most(), 64 << 20, "nothing is known yet");
        lead.note(1 << 20, Duration::from_secs(10));
        assert_eq!(lead.most(), 64 << 20, "a small sync tells nothing");
        // 400 MB a second.
        lead.note(40 << 20, Duration::from_millis(100));
        assert_eq!(lead.most(), 100 << 20);
        // 20 MB a second, from now on.
        for _ in 0..20 {
            lead.note(10 << 20, Duration::from_millis(500));
        }
        assert_eq!(lead.most(), LEAST);
        for _ in 0..20 {
            lead.note(64 << 20, Duration::from_nanos(1));
        }
        assert_eq!(lead.most(), MOST);
    }
}
