//! How much is on its way to each member at a time, and how much is kept.
//!
//! raft-rs counts the messages that are on their way, but an entry may have a kilobyte or sixteen megabytes. So a primary
//! counts the bytes of what it has sent and has no acknowledgement for; while these are as many as may be, raft-rs is told that as
//! many messages are under way as may be, too.

use raft::ProgressState;
use raft::eraftpb::{Message as RaftMessage, MessageType};

use super::Member;
use super::ids::{member_id, raft_id};
use super::parts::Window;

/// Of what is kept and sent ahead otherwise, so much remains while memory is short, as a divisor.
const SPARING: usize = 4;

impl Member {
    /// Bytes of the entries that this member keeps in memory: for others, or because they came and are not in the driver's
    /// log yet.
    pub fn kept_bytes(&self) -> usize {
        self.view().kept_bytes().0
    }

    /// Bytes of the entries that came, or were proposed, and are not in the driver's log yet.
    pub fn unwritten_bytes(&self) -> usize {
        self.view().kept_bytes().1
    }

    /// Memory is short, or is not any more: less is kept and sent ahead.
    pub fn be_sparing(&mut self, sparing: bool) {
        if std::mem::replace(&mut self.sparing, sparing) != sparing {
            let limit = self.cache_limit();
            self.view_mut().shrink(limit);
        }
    }

    /// How many bytes of entries may be kept that are in the driver's log.
    pub(super) fn cache_limit(&self) -> usize {
        self.options.cache_bytes / if self.sparing { SPARING } else { 1 }
    }

    fn window_limit(&self) -> usize {
        let bytes = self.options.message_bytes_max as usize;
        (self.options.messages_in_flight_max.saturating_mul(bytes) / if self.sparing { SPARING } else { 1 })
            .max(1)
    }

    /// A message goes out. One with entries adds to what is under way.
    pub(super) fn note_feeding(&mut self, message: &RaftMessage) {
        let Some(to) = member_id(message.to) else { return };
        let (MessageType::MsgAppend, Some(last)) = (message.get_msg_type(), message.entries.last()) else {
            return;
        };
        let bytes = message.entries.iter().map(|entry| entry.data.len()).sum();
        self.look_at_window(to, |window| window.add(last.index, bytes));
    }

    /// A member has everything up to here. Before raft-rs hears of it, so that it goes on feeding at once.
    pub(super) fn note_fed(&mut self, from: u64, index: u64) {
        self.look_at_window(from, |window| window.arrived(index));
    }

    fn look_at_window(&mut self, id: u64, change: impl FnOnce(&mut Window)) {
        let (limit, most) = (self.window_limit(), self.options.messages_in_flight_max);
        let Some(raft) = &mut self.raft else { return };
        let leads = raft.raft.state == raft::StateRole::Leader;
        let Some(progress) = raft.raft.mut_prs().get_mut(raft_id(id)).filter(|_| leads) else { return };
        let window = self.windows.entry(id).or_default();
        if progress.state != ProgressState::Replicate {
            // What was sent ahead is lost, or a single message finds out how far the member is.
            *window = Window::default();
        }
        change(window);
        window.arrived(progress.matched);
        let full = window.bytes() >= limit;
        progress.ins.set_cap(if full { progress.ins.count().clamp(1, most) } else { most });
    }

    /// Another term: nothing is under way from this member.
    pub(super) fn forget_windows(&mut self) {
        self.windows.clear();
        let most = self.options.messages_in_flight_max;
        let raft = self.raft.as_mut().expect("who has won an election has a raft node");
        raft.raft.mut_prs().iter_mut().for_each(|(_, progress)| progress.ins.set_cap(most));
    }
}
