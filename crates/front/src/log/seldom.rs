//! Lines that may come again and again about one thing, of which the first few tell enough.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sheaf_bson::DocBuf;

use super::{Severity, write};

/// So many lines of a kind are written in each [`PERIOD`].
const MOST: u32 = 10;

/// How long a kind that has had its lines is not written.
const PERIOD: Duration = Duration::from_secs(60);

/// Lines of one kind.
struct Lines {
    since: Instant,
    written: u32,
    left_out: u64,
}

/// What was written lately, by id and context: few, as both are literals of the program.
struct Kinds(BTreeMap<(i32, &'static str), Lines>);

static KINDS: Mutex<Kinds> = Mutex::new(Kinds(BTreeMap::new()));

impl Kinds {
    /// Whether a line of this kind is written now, and how many were left out before it.
    fn admit(&mut self, id: i32, context: &'static str, now: Instant) -> Option<u64> {
        let fresh = || Lines { since: now, written: 0, left_out: 0 };
        let lines = self.0.entry((id, context)).or_insert_with(fresh);
        if now.saturating_duration_since(lines.since) >= PERIOD {
            (lines.since, lines.written) = (now, 0);
        }
        if lines.written == MOST {
            lines.left_out += 1;
            return None;
        }
        lines.written += 1;
        Some(std::mem::take(&mut lines.left_out))
    }
}

/// An error that may be found again and again: ten lines a minute, and `leftOut` in the next one says how many there would have been.
pub fn error(component: &str, id: i32, context: &'static str, message: &str, attributes: DocBuf) {
    let admitted = KINDS.lock().admit(id, context, Instant::now());
    let Some(left_out) = admitted else { return };
    let attributes = match left_out {
        0 => attributes,
        left_out => attributes.with("leftOut", left_out as i64),
    };
    write(Severity::Error, component, id, context, message, Some(&attributes));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_has_some_lines_a_minute_whatever_others_do() {
        let (mut kinds, start) = (Kinds(BTreeMap::new()), Instant::now());
        for _ in 0..MOST {
            assert_eq!(kinds.admit(1, "shard", start), Some(0));
        }
        assert_eq!(kinds.admit(1, "shard", start), None);
        assert_eq!(kinds.admit(1, "shard", start + PERIOD / 2), None);
        assert_eq!(kinds.admit(2, "shard", start), Some(0));
        assert_eq!(kinds.admit(1, "config", start), Some(0));
        assert_eq!(kinds.admit(1, "shard", start + PERIOD), Some(2));
        assert_eq!(kinds.admit(1, "shard", start + PERIOD), Some(0));
    }
}
