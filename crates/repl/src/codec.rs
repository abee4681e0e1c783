//! Messages as bytes, for the wire between members.
//!
//! Little-endian throughout; a length is 32 bits and is checked against what is left. raft-rs's own
//! protobuf form is not used: its parser has known weaknesses with hostile bytes, and needs more of them.

use std::sync::Arc;

use bytes::Bytes;
use raft::eraftpb::{Entry as RaftEntry, Message as RaftMessage, MessageType, Snapshot};

use crate::config::{ConfigVersion, ReplSetConfig};
use crate::message::{Body, Envelope, Heartbeat, Report};
use crate::types::{LogPosition, MemberState, Positions};

/// First byte of every message: the version of this form.
const VERSION: u8 = 2;

/// No log has an index, a term or a position beyond this, so that what is counted on from one does not overflow.
const NUMBER_MAX: u64 = 1 << 62;

/// Cluster times end some minutes before a clock of 32 bits does, so that there is always a next one.
const TIME_MAX: u64 = u64::MAX - (1 << 40);

/// No member has a higher `_id`.
const ID_MAX: u64 = u32::MAX as u64;

/// Room for what most messages say besides their entries' payloads.
const HEAD_BYTES: usize = 256;

/// Messages of the consensus protocol that travel, by their number here.
const KINDS: [MessageType; 12] = [
    MessageType::MsgAppend,
    MessageType::MsgAppendResponse,
    MessageType::MsgRequestVote,
    MessageType::MsgRequestVoteResponse,
    MessageType::MsgSnapshot,
    MessageType::MsgHeartbeat,
    MessageType::MsgHeartbeatResponse,
    MessageType::MsgTimeoutNow,
    MessageType::MsgReadIndex,
    MessageType::MsgReadIndexResp,
    MessageType::MsgRequestPreVote,
    MessageType::MsgRequestPreVoteResponse,
];

/// The bytes are no message that this version knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodeError(pub &'static str);

impl std::fmt::Display for DecodeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "not a replication message: {}", self.0)
    }
}

impl std::error::Error for DecodeError {}

type Result<T> = std::result::Result<T, DecodeError>;

impl Envelope {
    /// The message as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.encode_to(&mut out);
        out
    }

    /// Puts the message as bytes behind what is there.
    pub fn encode_to(&self, out: &mut Vec<u8>) {
        out.reserve(HEAD_BYTES + self.entry_bytes());
        let mut out = Writer(out);
        out.u8(VERSION);
        out.u64(self.from);
        out.u64(self.to);
        out.u64(self.config.term as u64);
        out.u64(self.config.version as u64);
        out.u64(self.incarnation);
        match &self.body {
            Body::Raft(message) => {
                out.u8(0);
                out.raft(message);
            }
            Body::Progress(report) => {
                out.u8(1);
                out.report(report);
            }
            Body::Ping(heartbeat) => {
                out.u8(2);
                out.heartbeat(heartbeat);
            }
            Body::Pong(heartbeat) => {
                out.u8(3);
                out.heartbeat(heartbeat);
            }
            Body::Config(config) => {
                out.u8(4);
                out.bytes(&config.to_document().into_bytes());
            }
        }
    }

    /// The message of these bytes. Entries share them.
    pub fn decode(bytes: &Bytes) -> Result<Envelope> {
        let mut input = Reader { whole: bytes, rest: bytes };
        if input.u8()? != VERSION {
            return Err(DecodeError("of another version"));
        }
        let (from, to) = (input.u64()?, input.u64()?);
        if from > ID_MAX || to > ID_MAX {
            return Err(DecodeError("no member has this _id"));
        }
        let config = ConfigVersion { term: input.u64()? as i64, version: input.u64()? as i64 };
        if !is_possible(config) {
            return Err(DecodeError("no configuration has this term and version"));
        }
        let incarnation = input.u64()?;
        let body = match input.u8()? {
            0 => Body::Raft(Box::new(input.raft()?)),
            1 => Body::Progress(input.report()?),
            2 => Body::Ping(input.heartbeat()?),
            3 => Body::Pong(input.heartbeat()?),
            4 => Body::Config(Arc::new(input.config()?)),
            _ => return Err(DecodeError("of unknown kind")),
        };
        if !input.rest.is_empty() {
            return Err(DecodeError("bytes are left over"));
        }
        Ok(Envelope { from, to, config, incarnation, body })
    }
}

impl Envelope {
    /// Who sends the message that begins with these bytes, as it says itself. `None`: there are too few, or they are no message.
    pub fn sender(bytes: &[u8]) -> Option<u64> {
        let from = bytes.first_chunk::<9>().filter(|head| head[0] == VERSION)?;
        from.last_chunk().map(|from| u64::from_le_bytes(*from))
    }
}

/// Whether a set can have it.
fn is_possible(config: ConfigVersion) -> bool {
    let range = |number: i64, least: i64| (least..=i64::from(i32::MAX)).contains(&number);
    range(config.term, -1) && range(config.version, 0)
}

/// Whether what a message appends can be a part of a log: indexes without gaps, terms that never fall, cluster times that
/// rise, none of a later term than the message's.
fn check_order(message: &RaftMessage) -> Result<()> {
    let mut before = (message.log_term, 0);
    for (entry, index) in message.entries.iter().zip(message.index + 1..) {
        let Ok(time) = entry.context.as_ref().try_into().map(u64::from_le_bytes) else {
            return Err(DecodeError("an entry has no cluster time"));
        };
        if entry.index != index {
            return Err(DecodeError("entries do not follow each other"));
        }
        if entry.term < before.0 || entry.term > message.term || entry.term == 0 {
            return Err(DecodeError("an entry's term cannot follow the one before it"));
        }
        if time > TIME_MAX {
            return Err(DecodeError("an entry's cluster time is beyond any clock"));
        }
        if time <= before.1 {
            return Err(DecodeError("an entry's cluster time is not after the one before it"));
        }
        before = (entry.term, time);
    }
    Ok(())
}

struct Writer<'o>(&'o mut Vec<u8>);

impl Writer<'_> {
    fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        self.0.extend_from_slice(bytes);
    }

    fn report(&mut self, report: &Report) {
        self.u64(report.term);
        for at in [report.positions.written, report.positions.applied, report.positions.durable] {
            self.u64(at.term);
            self.u64(at.index);
        }
        report.positions.times.into_iter().for_each(|time| self.u64(time));
    }

    fn heartbeat(&mut self, heartbeat: &Heartbeat) {
        self.bytes(heartbeat.set_name.as_bytes());
        self.report(&heartbeat.report);
        self.u8(heartbeat.state as u8);
        let flags = [heartbeat.electable, heartbeat.syncing, heartbeat.short_of_room, heartbeat.little_room];
        self.u8(flags.into_iter().enumerate().map(|(bit, flag)| u8::from(flag) << bit).sum());
        self.u64(heartbeat.primary.map_or(0, |id| id + 1));
        self.u64(heartbeat.commit);
        self.u64(heartbeat.sent_at);
    }

    fn raft(&mut self, message: &RaftMessage) {
        let kind = KINDS.iter().position(|kind| *kind == message.get_msg_type());
        self.u8(kind.map_or(u8::MAX, |kind| kind as u8));
        self.u8(u8::from(message.reject));
        let numbers = [
            message.to,
            message.from,
            message.term,
            message.log_term,
            message.index,
            message.commit,
            message.commit_term,
            message.reject_hint,
            message.request_snapshot,
        ];
        numbers.into_iter().for_each(|number| self.u64(number));
        self.bytes(&message.context);
        let snapshot = message.get_snapshot().get_metadata();
        self.u64(snapshot.index);
        self.u64(snapshot.term);
        self.u64(message.entries.len() as u64);
        for entry in &message.entries {
            self.u64(entry.term);
            self.u64(entry.index);
            self.bytes(&entry.context);
            self.bytes(&entry.data);
        }
    }
}

struct Reader<'a> {
    whole: &'a Bytes,
    /// What is not read yet: the end of it.
    rest: &'a [u8],
}

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk::<N>().ok_or(DecodeError("cut short"))?;
        self.rest = rest;
        Ok(*taken)
    }

    fn u8(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn bytes(&mut self) -> Result<Bytes> {
        let length = u32::from_le_bytes(self.array()?) as usize;
        let (_, rest) = self.rest.split_at_checked(length).ok_or(DecodeError("cut short"))?;
        let start = self.whole.len() - self.rest.len();
        self.rest = rest;
        Ok(self.whole.slice(start..start + length))
    }

    fn op_time(&mut self) -> Result<LogPosition> {
        Ok(LogPosition { term: self.u64()?, index: self.u64()? })
    }

    fn report(&mut self) -> Result<Report> {
        let term = self.u64()?;
        let (written, applied, durable) = (self.op_time()?, self.op_time()?, self.op_time()?);
        let times = [self.u64()?, self.u64()?, self.u64()?];
        Ok(Report { term, positions: Positions { written, applied, durable, times } })
    }

    fn heartbeat(&mut self) -> Result<Heartbeat> {
        let set_name = self.bytes()?;
        let set_name =
            std::str::from_utf8(&set_name).map_err(|_| DecodeError("the set's name is not text"))?;
        let set_name = Arc::from(set_name);
        let report = self.report()?;
        let state = MemberState::from_number(self.u8()?).ok_or(DecodeError("unknown member state"))?;
        let flags = self.u8()?;
        Ok(Heartbeat {
            set_name,
            report,
            state,
            electable: flags & 1 != 0,
            syncing: flags & 2 != 0,
            short_of_room: flags & 4 != 0,
            little_room: flags & 8 != 0,
            primary: self.u64()?.checked_sub(1),
            commit: self.u64()?,
            sent_at: self.u64()?,
        })
    }

    fn config(&mut self) -> Result<ReplSetConfig> {
        let bytes = self.bytes()?;
        sheaf_bson::validate(&bytes, sheaf_bson::MAX_DEPTH)
            .map_err(|_| DecodeError("the configuration is not BSON"))?;
        let config = ReplSetConfig::parse(sheaf_bson::RawDoc::new(&bytes))
            .map_err(|_| DecodeError("the configuration cannot be read"))?;
        let possible = is_possible(config.config_version());
        match config.validate() {
            Ok(()) if possible => Ok(config),
            _ => Err(DecodeError("no set can have this configuration")),
        }
    }

    fn raft(&mut self) -> Result<RaftMessage> {
        let mut message = RaftMessage::default();
        let kind = KINDS.get(self.u8()? as usize).ok_or(DecodeError("unknown consensus message"))?;
        message.set_msg_type(*kind);
        message.reject = self.u8()? != 0;
        message.to = self.u64()?;
        message.from = self.u64()?;
        message.term = self.u64()?;
        message.log_term = self.u64()?;
        message.index = self.u64()?;
        message.commit = self.u64()?;
        message.commit_term = self.u64()?;
        message.reject_hint = self.u64()?;
        message.request_snapshot = self.u64()?;
        let numbers = [
            message.to,
            message.from,
            message.term,
            message.log_term,
            message.index,
            message.commit,
            message.commit_term,
            message.reject_hint,
            message.request_snapshot,
        ];
        if numbers.into_iter().any(|number| number > NUMBER_MAX) {
            return Err(DecodeError("a number is beyond any log"));
        }
        message.context = self.bytes()?;
        let (index, term) = (self.u64()?, self.u64()?);
        if index > NUMBER_MAX || term > NUMBER_MAX {
            return Err(DecodeError("a number is beyond any log"));
        }
        if *kind == MessageType::MsgSnapshot {
            let mut snapshot = Snapshot::default();
            snapshot.mut_metadata().index = index;
            snapshot.mut_metadata().term = term;
            message.set_snapshot(snapshot);
        }
        let count = self.u64()?;
        let mut entries = Vec::new();
        for _ in 0..count {
            let (term, index) = (self.u64()?, self.u64()?);
            let context = self.bytes()?;
            let data = self.bytes()?;
            entries.push(RaftEntry { term, index, context, data, ..RaftEntry::default() });
        }
        message.set_entries(entries.into());
        check_order(&message)?;
        Ok(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    fn message(rng: &mut Rng) -> Envelope {
        let mut op_time = || LogPosition { term: rng.below(9), index: rng.below(1000) };
        let positions =
            Positions { written: op_time(), applied: op_time(), durable: op_time(), times: [7, u64::MAX, 0] };
        let report = Report { term: 3, positions };
        let body = match rng.below(5) {
            0 => Body::Progress(report),
            1 => Body::Config(Arc::new(ReplSetConfig::new(
                "rs",
                vec![
                    crate::config::MemberConfig::new(4, "host:1"),
                    crate::config::MemberConfig::new(5, "b:2"),
                ],
            ))),
            2 => {
                let mut raft = RaftMessage::default();
                raft.set_msg_type(*rng.pick(&KINDS));
                (raft.to, raft.from, raft.term, raft.index) = (1, 2, 3, 40);
                raft.context = Bytes::from_static(b"CampaignTransfer");
                if raft.get_msg_type() == MessageType::MsgSnapshot {
                    raft.mut_snapshot().mut_metadata().index = 9;
                }
                let entries = (0..rng.below(4)).map(|number| RaftEntry {
                    term: 3,
                    index: 41 + number,
                    data: vec![1; number as usize].into(),
                    context: (number + 1).to_le_bytes().to_vec().into(),
                    ..RaftEntry::default()
                });
                raft.set_entries(entries.collect::<Vec<_>>().into());
                Body::Raft(Box::new(raft))
            }
            kind => {
                let heartbeat = Heartbeat {
                    set_name: Arc::from("rs"),
                    report,
                    state: MemberState::Secondary,
                    primary: (kind == 3).then_some(0),
                    electable: kind == 3,
                    syncing: kind == 4,
                    short_of_room: kind == 4,
                    little_room: kind == 3,
                    commit: 12,
                    sent_at: 99,
                };
                if kind == 3 { Body::Ping(heartbeat) } else { Body::Pong(heartbeat) }
            }
        };
        Envelope { from: 1, to: 0, config: ConfigVersion { term: -1, version: 8 }, incarnation: 5, body }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let mut rng = Rng::new(1);
        for _ in 0..500 {
            let message = message(&mut rng);
            assert_eq!(Envelope::decode(&message.encode().into()), Ok(message));
        }
    }

    #[test]
    fn what_no_log_can_have_is_refused() {
        let append = |change: &dyn Fn(&mut RaftMessage)| {
            let mut raft =
                RaftMessage { to: 1, from: 2, term: 7, log_term: 5, index: 40, ..RaftMessage::default() };
            raft.set_msg_type(MessageType::MsgAppend);
            let entry = |(term, index, time): (u64, u64, u64)| RaftEntry {
                term,
                index,
                context: time.to_le_bytes().to_vec().into(),
                ..RaftEntry::default()
            };
            raft.set_entries([(5, 41, 100), (7, 42, 101)].map(entry).to_vec().into());
            change(&mut raft);
            let body = Body::Raft(Box::new(raft));
            let config = ConfigVersion { term: 7, version: 1 };
            let bytes = Envelope { from: 1, to: 0, config, incarnation: 5, body }.encode();
            assert_eq!(Envelope::sender(&bytes), Some(1));
            Envelope::decode(&bytes.into()).map(|_| ()).map_err(|error| error.0)
        };
        assert_eq!(append(&|_| ()), Ok(()));
        type Change<'c> = &'c dyn Fn(&mut RaftMessage);
        let refused: [(Change<'_>, &str); 8] = [
            (&|raft| raft.entries[1].index = 43, "follow each other"),
            (&|raft| raft.entries[1].term = 4, "term cannot follow"),
            (&|raft| raft.entries[1].term = 8, "term cannot follow"),
            (&|raft| raft.log_term = 6, "term cannot follow"),
            (
                &|raft| raft.entries[1].context = 100u64.to_le_bytes().to_vec().into(),
                "not after the one before",
            ),
            (&|raft| raft.entries[0].context = Bytes::from_static(b"short"), "no cluster time"),
            (&|raft| raft.index = u64::MAX, "beyond any log"),
            (&|raft| raft.commit = NUMBER_MAX + 1, "beyond any log"),
        ];
        for (change, why) in refused {
            let error = append(change).unwrap_err();
            assert!(error.contains(why), "{error} instead of {why}");
        }
    }

    #[test]
    fn broken_bytes_are_errors() {
        let mut rng = Rng::new(2);
        for _ in 0..300 {
            let bytes = message(&mut rng).encode();
            for cut in 0..bytes.len() {
                assert!(Envelope::decode(&bytes[..cut].to_vec().into()).is_err());
            }
            let mut longer = bytes.clone();
            longer.push(0);
            assert!(Envelope::decode(&longer.into()).is_err());
            // Anything may come of other changes, but no panic.
            let mut changed = bytes.clone();
            let at = rng.below(bytes.len() as u64) as usize;
            changed[at] ^= 1 << rng.below(8);
            let _ = Envelope::decode(&changed.into());
        }
    }
}
