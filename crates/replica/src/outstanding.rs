//! What is on its way to a member: when the next entries go out.
//!
//! Every message costs both sides changes of thread, and the member a sync of its log. Where processors are short, what comes while a member has
//! entries to answer waits for that answer and goes out as one message: the busier the set, the larger its messages, and the fewer. (TCP does
//! the same with small segments: Nagle, RFC 896.) Where few write at a time, a second message may follow, so that the member's disk is at work
//! while its answer travels; who writes one entry after another never waits. Where processors are to spare, whoever waits is better served
//! at once: entries that are there when a sync begins need not wait for the next one.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// For so long after a message more entries are held back, to go out together. (The link's task sleeps for it, so it may be twice as long.)
pub const TOGETHER: Duration = Duration::from_millis(1);

/// A message of so many entries may have another one behind it. With none 4 clients have 5 percent less, with more 64 clients 10 percent.
const FEW: usize = 1;

/// Of so many it is known where they end. Who answers none is waited for as who answers the oldest of these.
const KNOWN_MAX: usize = 64;

/// What has been written on a link and is not answered.
#[derive(Default)]
pub struct Outstanding {
    /// Of each message the index of its last entry, ascending, and how many it has.
    messages: VecDeque<(u64, usize)>,
    /// When the last one was written.
    sent: Option<Instant>,
}

impl Outstanding {
    /// So many entries have been written, of which the last has this index.
    pub fn sent(&mut self, last: u64, entries: usize, now: Instant) {
        // What came after it before is replaced, or sent once more.
        while self.messages.back().is_some_and(|(end, _)| *end >= last) {
            self.messages.pop_back();
        }
        if self.messages.len() == KNOWN_MAX {
            self.messages.pop_front();
        }
        self.messages.push_back((last, entries));
        self.sent = Some(now);
    }

    /// The member has everything up to this index.
    pub fn answered(&mut self, index: u64) {
        while self.messages.front().is_some_and(|(end, _)| *end <= index) {
            self.messages.pop_front();
        }
    }

    /// Whether more entries are to go out now; `wanted`: somebody waits for them; `short`: processors are.
    pub fn lets_go(&self, wanted: bool, short: bool, now: Instant) -> bool {
        let lately = self.sent.is_some_and(|sent| now.saturating_duration_since(sent) < TOGETHER);
        let few = match self.messages.len() {
            0 => true,
            1 => self.messages[0].1 <= FEW,
            _ => false,
        };
        !lately || (wanted && (few || !short))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_wait_for_an_answer_or_for_their_time() {
        let now = Instant::now();
        let mut outstanding = Outstanding::default();
        assert!(outstanding.lets_go(false, true, now) && outstanding.lets_go(true, true, now));
        outstanding.sent(5, FEW + 1, now);
        assert!(!outstanding.lets_go(true, true, now));
        assert!(outstanding.lets_go(true, false, now), "there are processors to spare");
        assert!(
            outstanding.lets_go(true, true, now + TOGETHER)
                && outstanding.lets_go(false, true, now + TOGETHER)
        );
        outstanding.answered(4);
        assert!(!outstanding.lets_go(true, true, now));
        outstanding.answered(5);
        assert!(outstanding.lets_go(true, true, now));
        assert!(!outstanding.lets_go(false, true, now), "nobody waits for more");
    }

    #[test]
    fn a_second_message_follows_a_small_one() {
        let now = Instant::now();
        let mut outstanding = Outstanding::default();
        outstanding.sent(5, FEW, now);
        assert!(outstanding.lets_go(true, true, now) && !outstanding.lets_go(false, true, now));
        outstanding.sent(6, 1, now);
        assert!(!outstanding.lets_go(true, true, now));
        outstanding.answered(5);
        assert!(outstanding.lets_go(true, true, now));
    }

    #[test]
    fn what_is_sent_again_counts_once() {
        let now = Instant::now();
        let mut outstanding = Outstanding::default();
        (1..=3).for_each(|last| outstanding.sent(last, 1, now));
        outstanding.sent(1, 1, now);
        assert_eq!(outstanding.messages, [(1, 1)]);
        (2..1000).for_each(|last| outstanding.sent(last, 1, now));
        assert_eq!(outstanding.messages.len(), KNOWN_MAX);
    }
}
