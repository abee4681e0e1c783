//! What members say to each other.

use std::sync::Arc;

use crate::config::{ConfigVersion, ReplSetConfig};
use crate::log_view::time_of;
use crate::types::{LogPosition, MemberState, Positions};

/// With a primary's entries: nobody waits for what is applied and not yet on disk.
pub(crate) const QUIET: &[u8] = b"q";

/// A message with its address.
#[derive(Clone, Debug, PartialEq)]
pub struct Envelope {
    /// `_id` of the member that sends.
    pub from: u64,
    /// `_id` of the member it is for. It tells a member without a configuration who it is.
    pub to: u64,
    /// The configuration that the sender has installed; lets the older side be updated.
    pub config: ConfigVersion,
    /// A number that the sender drew at its start: tells a restarted member from one that went on.
    pub incarnation: u64,
    /// What is said.
    pub body: Body,
}

impl Envelope {
    /// Whether the message brings entries of the log, or says that they are to be copied.
    pub fn brings_entries(&self) -> bool {
        use raft::eraftpb::MessageType;
        let Body::Raft(message) = &self.body else { return false };
        match message.get_msg_type() {
            MessageType::MsgAppend => !message.entries.is_empty(),
            kind => kind == MessageType::MsgSnapshot,
        }
    }
}

/// Entries that a message may have for another one to be put behind it.
const ABSORBED_ENTRIES: usize = 1024;

impl Envelope {
    /// Takes in a message that was to be sent next, if one message can say what the two say: entries that follow on these,
    /// or how far a member is by now. Gives it back otherwise.
    pub fn absorb(&mut self, next: Envelope) -> Option<Envelope> {
        let same = (self.from, self.to, self.config, self.incarnation)
            == (next.from, next.to, next.config, next.incarnation);
        match (&mut self.body, next.body) {
            (Body::Progress(report), Body::Progress(newer)) if same && report.term == newer.term => {
                *report = newer;
                None
            }
            (Body::Raft(message), Body::Raft(mut newer)) if same && follows(message, &newer) => {
                message.entries.extend(newer.take_entries());
                message.commit = message.commit.max(newer.commit);
                if newer.context.is_empty() {
                    message.context.clear();
                }
                None
            }
            (Body::Raft(message), Body::Raft(newer)) if same && says_more(message, &newer) => {
                *message = newer;
                None
            }
            (_, body) => Some(Envelope { body, ..next }),
        }
    }

    /// Whether the message continues a member's log, or tells how much of that log is committed.
    pub fn feeds(&self) -> bool {
        matches!(&self.body, Body::Raft(message) if message.get_msg_type() == raft::eraftpb::MessageType::MsgAppend)
    }

    /// Index of the last entry that it brings.
    pub fn last_entry(&self) -> Option<u64> {
        let Body::Raft(message) = &self.body else { return None };
        message.entries.last().map(|entry| entry.index)
    }

    /// How far the sender says that it has a primary's entries.
    pub fn acknowledged(&self) -> Option<u64> {
        match &self.body {
            Body::Progress(report) => Some(report.positions.applied.index),
            Body::Raft(message) => acknowledges(message).then_some(message.index),
            _ => None,
        }
    }

    /// Bytes of the entries that it brings.
    pub fn entry_bytes(&self) -> usize {
        let Body::Raft(message) = &self.body else { return 0 };
        message.entries.iter().map(|entry| entry.data.len()).sum()
    }
}

/// Whether both acknowledge entries, and the second one all that the first does.
fn says_more(message: &raft::eraftpb::Message, next: &raft::eraftpb::Message) -> bool {
    acknowledges(message)
        && acknowledges(next)
        && message.term == next.term
        && message.index <= next.index
        && message.commit <= next.commit
}

fn acknowledges(message: &raft::eraftpb::Message) -> bool {
    message.get_msg_type() == raft::eraftpb::MessageType::MsgAppendResponse && !message.reject
}

/// Whether what the second message appends begins where the first one's ends.
fn follows(message: &raft::eraftpb::Message, next: &raft::eraftpb::Message) -> bool {
    use raft::eraftpb::MessageType::MsgAppend;
    let end =
        message.entries.last().map_or((message.log_term, message.index), |last| (last.term, last.index));
    message.get_msg_type() == MsgAppend
        && next.get_msg_type() == MsgAppend
        && message.term == next.term
        && end == (next.log_term, next.index)
        && message.entries.len() + next.entries.len() <= ABSORBED_ENTRIES
}

impl Envelope {
    /// The entries that it brings: position, cluster time, payload.
    pub fn entries(&self) -> impl Iterator<Item = (LogPosition, u64, &[u8])> {
        let message = match &self.body {
            Body::Raft(message) => Some(message),
            _ => None,
        };
        let entries = message.into_iter().flat_map(|message| message.entries.iter());
        entries.map(|entry| (LogPosition::new(entry.term, entry.index), time_of(entry), &entry.data[..]))
    }

    /// The payloads of the entries that it brings.
    pub fn payloads(&self) -> impl Iterator<Item = &[u8]> {
        let message = match &self.body {
            Body::Raft(message) => Some(message),
            _ => None,
        };
        message.into_iter().flat_map(|message| message.entries.iter()).map(|entry| &entry.data[..])
    }
}

/// What is said.
#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    /// A message of the consensus protocol.
    Raft(Box<raft::eraftpb::Message>),
    /// A member tells the primary how far it is.
    Progress(Report),
    /// A heartbeat, which is to be answered.
    Ping(Heartbeat),
    /// The answer.
    Pong(Heartbeat),
    /// The sender's configuration, for a member that has an older one.
    Config(Arc<ReplSetConfig>),
}

/// How far a member is, as of a term.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The member's term. Within a term a member never takes back what its primary has, so a report of
    /// the primary's own term stays true until the member restarts.
    pub term: u64,
    /// How far.
    pub positions: Positions,
}

/// What members tell each other at intervals.
#[derive(Clone, Debug, PartialEq)]
pub struct Heartbeat {
    /// The set's name: members of another set are not listened to.
    pub set_name: Arc<str>,
    /// How far the sender is.
    pub report: Report,
    /// What the sender is.
    pub state: MemberState,
    /// The primary that the sender knows.
    pub primary: Option<u64>,
    /// Whether the sender would take over as primary, once its disk has what is on its way there.
    pub electable: bool,
    /// Whether the sender copies its data from another member now.
    pub syncing: bool,
    /// Whether the sender's disk soon has no room for what adds to its data.
    pub short_of_room: bool,
    /// Whether it would be so before long if the sender led.
    pub little_room: bool,
    /// The sender's commit point.
    pub commit: u64,
    /// The time of the sender of the ping, given back in the answer.
    pub sent_at: u64,
}

#[cfg(test)]
mod tests {
    use raft::eraftpb::{Entry, Message, MessageType};

    use super::*;

    fn envelope(body: Body) -> Envelope {
        Envelope { from: 1, to: 2, config: ConfigVersion { term: 1, version: 1 }, incarnation: 7, body }
    }

    /// Appends entries of these (term, index) after `(log_term, index)`.
    fn append(after: (u64, u64), entries: &[(u64, u64)], commit: u64) -> Envelope {
        let mut message =
            Message { term: 5, log_term: after.0, index: after.1, commit, ..Message::default() };
        message.set_msg_type(MessageType::MsgAppend);
        let entry = |(term, index): &(u64, u64)| Entry { term: *term, index: *index, ..Entry::default() };
        message.set_entries(entries.iter().map(entry).collect::<Vec<_>>().into());
        envelope(Body::Raft(Box::new(message)))
    }

    #[test]
    fn entries_that_follow_go_into_one_message() {
        let mut first = append((4, 10), &[(5, 11), (5, 12)], 9);
        assert_eq!(first.absorb(append((5, 12), &[(5, 13)], 11)), None);
        // A word of the commit point alone.
        assert_eq!(first.absorb(append((5, 13), &[], 12)), None);
        assert_eq!(first, append((4, 10), &[(5, 11), (5, 12), (5, 13)], 12));
        let mut empty = append((4, 10), &[], 9);
        assert_eq!(empty.absorb(append((4, 10), &[(5, 11)], 9)), None);
        assert_eq!(empty, append((4, 10), &[(5, 11)], 9));
    }

    #[test]
    fn others_stay_apart() {
        let first = append((4, 10), &[(5, 11)], 9);
        let gap = append((5, 12), &[(5, 13)], 9);
        let other_entry = append((4, 11), &[(5, 12)], 9);
        let again = append((4, 10), &[(5, 11)], 9);
        let restarted = Envelope { incarnation: 8, ..append((5, 11), &[(5, 12)], 9) };
        for next in [gap, other_entry, again, restarted, envelope(Body::Progress(Report::default()))] {
            let mut kept = first.clone();
            assert_eq!(kept.absorb(next.clone()), Some(next));
            assert_eq!(kept, first);
        }
    }

    #[test]
    fn what_is_wanted_once_is_wanted() {
        let quiet = |envelope: Envelope| {
            let Body::Raft(mut message) = envelope.body else { panic!() };
            message.context = QUIET.into();
            Envelope { body: Body::Raft(message), ..envelope }
        };
        let mut both = quiet(append((4, 10), &[(5, 11)], 9));
        assert_eq!(both.absorb(quiet(append((5, 11), &[(5, 12)], 9))), None);
        assert_eq!(both, quiet(append((4, 10), &[(5, 11), (5, 12)], 9)));
        assert_eq!(both.absorb(append((5, 12), &[(5, 13)], 9)), None);
        assert_eq!(both, append((4, 10), &[(5, 11), (5, 12), (5, 13)], 9));
        let mut loud = append((4, 10), &[(5, 11)], 9);
        assert_eq!(loud.absorb(quiet(append((5, 11), &[(5, 12)], 9))), None);
        assert_eq!(loud, append((4, 10), &[(5, 11), (5, 12)], 9));
    }

    #[test]
    fn the_newer_acknowledgement_is_enough() {
        let answer = |term, index, reject| {
            let mut message = Message { term, index, reject, ..Message::default() };
            message.set_msg_type(MessageType::MsgAppendResponse);
            envelope(Body::Raft(Box::new(message)))
        };
        let mut first = answer(5, 11, false);
        assert_eq!(first.absorb(answer(5, 13, false)), None);
        assert_eq!(first, answer(5, 13, false));
        for other in [answer(5, 12, false), answer(6, 14, false), answer(5, 14, true)] {
            assert_eq!(first.absorb(other.clone()), Some(other.clone()));
            assert_eq!(first, answer(5, 13, false));
        }
    }

    #[test]
    fn the_newer_report_of_a_term_is_enough() {
        let report = |term, index| {
            let positions = Positions { written: LogPosition { term, index }, ..Positions::default() };
            envelope(Body::Progress(Report { term, positions }))
        };
        let mut first = report(3, 10);
        assert_eq!(first.absorb(report(3, 12)), None);
        assert_eq!(first, report(3, 12));
        assert_eq!(first.absorb(report(4, 5)), Some(report(4, 5)));
    }
}
