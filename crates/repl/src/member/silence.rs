//! Silence as a hint that the primary is gone.
//!
//! A primary whose process is paused or whose link is cut breaks no connection, and the election time-out, which must bear with everything,
//! is long. So a voter asks a primary that has said nothing for a moment, and learns how long it usually takes until it says something.
//! When it is silent for much longer than that, this is a [hint](super::hints) like a broken connection: the member asks whether it would be
//! elected, and says yes to others that ask. Whoever still hears the primary says no, a word from the primary makes the hint void, and
//! hints that prove wrong are not believed for long.
//!
//! Only where the election time-out is the default, 10 seconds, whether somebody has written it down or not: another one is kept as it is.

use super::{Body, Member, NoticesSilence};
use crate::config::DEFAULT_ELECTION_TIMEOUT;

impl Member {
    /// Whether silence that is shorter than the election time-out counts.
    fn notices_silence(&self) -> bool {
        let notices = match self.options.notices_silence {
            NoticesSilence::Unset => self.election_timeout() == DEFAULT_ELECTION_TIMEOUT.unsigned_abs(),
            NoticesSilence::Always => true,
            NoticesSilence::Never => false,
        };
        notices && self.my_config().is_some_and(|me| me.is_voter())
    }

    /// Time has passed: asks a primary that says nothing, and takes it for gone if it goes on saying nothing.
    pub(super) fn listen(&mut self, passed: u64) {
        let leader = self.leader().filter(|leader| Some(*leader) != self.me);
        let Some(leader) = leader.filter(|_| self.notices_silence()) else { return self.listening.stop() };
        // Who gets no turn has not read what may have come meanwhile.
        let awake = passed.min(2 * self.tick_millis());
        let (term, timeout) = (self.term(), self.election_timeout());
        self.listening.pass((leader, term), awake);
        if self.listening.is_to_ask(timeout / 40) {
            let heartbeat = self.heartbeat(self.precise);
            self.send_to(leader, Body::Ping(heartbeat));
        }
        if self.listening.has_fallen_silent(timeout) {
            if let Some(peer) = self.peers.get_mut(&leader) {
                peer.silent = true;
            }
            self.hint_at_loss();
        }
    }

    /// A part of a long message has come from this member, which is as good a sign of life as a whole one: whatever it says besides waits
    /// behind that message. The election time-out is not put off by it.
    pub fn still_sends(&mut self, from: u64) {
        let now = self.now;
        let Some(peer) = self.peers.get_mut(&from) else { return };
        peer.heard_at = Some(now);
        (peer.lost, peer.silent) = (false, false);
        self.listening.heard(from, self.election_timeout());
    }
}
