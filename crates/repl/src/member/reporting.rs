//! How far this member is, told to its primary; and what a primary hears of the others.

use bytes::Bytes;
use raft::StateRole;
use raft::eraftpb::{Message as RaftMessage, MessageType};

use super::{Body, Member};
use crate::message::QUIET;
use crate::write_concern::{W, WriteConcern};

impl Member {
    /// Tells the primary how far this member is, if that has changed and it is to hear it now.
    pub(super) fn send_report(&mut self) {
        if !self.reporting.take() || self.is_leader() {
            return;
        }
        if let Some(leader) = self.leader() {
            let report = self.report();
            self.send_to(leader, Body::Progress(report));
        }
    }

    /// Whoever waits for what members have applied, though it is not on their disks yet, is served by reports that come at once.
    pub(super) fn note_wait(&mut self, concern: &WriteConcern) {
        if !concern.journal && !matches!(concern.w, W::Majority | W::Nodes(0 | 1)) {
            let is_news = !self.reporting.is_wanted(self.now);
            self.reporting.want(self.now);
            if is_news
                && let Some(raft) = self.raft.as_mut().filter(|raft| raft.raft.state == StateRole::Leader)
            {
                // The entry that is waited for has gone out without the word that somebody would.
                raft.raft.bcast_append();
            }
        }
    }

    /// A primary says with its entries whether reports are wanted before the acknowledgement, which comes when they are on disk.
    pub(super) fn say_what_is_wanted(&self, message: &mut RaftMessage) {
        let journaled = self.config.as_ref().is_none_or(|c| c.write_concern_majority_journal_default);
        if journaled && !self.reporting.is_wanted(self.now) {
            message.context = Bytes::from_static(QUIET);
        }
    }

    /// Whether a primary's message has no entries and moves the commit point: nobody waits for its answer. One that moves nothing asks how
    /// far this member is.
    pub(super) fn tells_commit_alone(&self, message: &RaftMessage) -> bool {
        let committed = self.raft.as_ref().map_or(0, |raft| raft.raft.raft_log.committed);
        message.term == self.term() && message.entries.is_empty() && message.commit > committed
    }

    /// raft-rs has answered a primary's entries. What says again what was said in this term is left out where nobody has asked for it.
    pub(super) fn note_answer(&mut self, asked_nothing: bool) {
        let Some(raft) = &mut self.raft else { return };
        let Some(answer) = raft.raft.msgs.last() else { return };
        if answer.get_msg_type() != MessageType::MsgAppendResponse || answer.reject {
            return;
        }
        let is_new = self.reporting.answer(answer.term, answer.index);
        if !is_new && asked_nothing {
            raft.raft.msgs.pop();
        }
    }

    /// A primary's entries have come.
    pub(super) fn heed_what_is_wanted(&mut self, message: &RaftMessage) {
        if message.term == self.term() {
            self.reporting.set_quiet(&message.context[..] == QUIET);
        }
    }
}
