//! Effects and messages as words.

use raft::eraftpb::{Message, MessageType};
use sheaf_repl::write_concern::{W, WriteConcern};
use sheaf_repl::{Body, Effect, Entry, Envelope, LogPosition, MemberRole, Persist};

pub fn at(at: LogPosition) -> String {
    format!("({},{})", at.term, at.index)
}

fn entries(entries: &[Entry]) -> String {
    entries.iter().map(|entry| at(entry.at)).collect::<Vec<_>>().join(" ")
}

/// `(1,4)`.
pub fn parse_at(word: &str) -> LogPosition {
    let numbers = word.trim_matches(['(', ')']).split_once(',');
    let (term, index) = numbers.unwrap_or_else(|| panic!("{word} is no position"));
    LogPosition::new(term.parse().unwrap(), index.parse().unwrap())
}

/// `majority`, `2` or `2j`.
pub fn parse_concern(word: &str) -> WriteConcern {
    let journal = word.ends_with('j');
    let w = match word.trim_end_matches('j') {
        "ma" | "majority" => W::Majority,
        number => W::Nodes(number.parse().unwrap_or_else(|_| panic!("{word} is no write concern"))),
    };
    WriteConcern { w, journal: journal && word != "majority" }
}

/// An effect, or nothing for heartbeats between members.
pub fn effect(effect: &Effect, name: &dyn Fn(&str) -> String) -> Option<String> {
    Some(match effect {
        Effect::Send { host, envelope } => format!("-> {} {}", name(host), message(envelope)?),
        Effect::Persist(unit) => format!("persists {}", persist(unit)),
        Effect::CommitPoint(point) => format!("commits {}", at(*point)),
        Effect::Role(now) => role(now),
        Effect::Resolved { waiter, outcome } => format!("ends wait {}: {outcome:?}", waiter.0),
        Effect::Fetch { low, high, .. } => format!("reads entries {low} to {}", high - 1),
        Effect::InitialSync { source, at_least } => {
            format!("needs a copy from {source}, at least as of {}", at(*at_least))
        }
        Effect::Refused { host, what, .. } => format!("refuses {}: {what}", name(host)),
        Effect::SteppedDown(Ok(())) => "has stepped down".to_owned(),
        Effect::SteppedDown(Err(error)) => format!("has not stepped down: {}", error.code().name()),
        Effect::Reconfigured(Ok(version)) => {
            format!("has configuration {} of term {}", version.version, version.term)
        }
        Effect::Reconfigured(Err(error)) => format!("has not reconfigured: {}", error.message()),
    })
}

pub fn role(now: &MemberRole) -> String {
    let primary = now.primary.map_or("no primary".to_owned(), |id| format!("primary {id}"));
    let writable = if now.writable { ", takes writes" } else { "" };
    format!("is {} in term {}, {primary}{writable}", now.state.name(), now.term)
}

fn persist(unit: &Persist) -> String {
    let mut words = vec![format!("unit {}:", unit.seq)];
    if let Some(hard_state) = unit.hard_state {
        let vote = hard_state.vote.map_or("none".to_owned(), |vote| vote.to_string());
        words.push(format!("term {} vote {vote} commit {}", hard_state.term, hard_state.commit));
    }
    if let Some((config, me)) = &unit.config {
        let me = me.map_or("nobody".to_owned(), |me| me.to_string());
        words.push(format!("configuration {} of term {} as {me}", config.version, config.term));
    }
    if let Some(copy) = unit.install {
        words.push(format!("copy as of {}", at(copy)));
    }
    if let Some(rollback) = unit.rollback {
        words.push(format!("rollback from {} to {}", at(rollback.last), at(rollback.keep)));
    }
    if !unit.entries.is_empty() {
        words.push(format!("entries {}", entries(&unit.entries)));
    }
    words.join(" ")
}

/// A message, or nothing for heartbeats between members.
pub fn message(envelope: &Envelope) -> Option<String> {
    Some(match &envelope.body {
        Body::Ping(_) | Body::Pong(_) => return None,
        Body::Config(config) => format!("configuration {} of term {}", config.version, config.term),
        Body::Progress(report) => {
            let here = report.positions;
            let places = (at(here.written), at(here.applied), at(here.durable));
            format!("progress written {} applied {} durable {}", places.0, places.1, places.2)
        }
        Body::Raft(message) => raft_message(message),
    })
}

fn raft_message(message: &Message) -> String {
    let mut words = vec![format!("{:?} term {}", message.get_msg_type(), message.term)];
    let before = at(LogPosition::new(message.log_term, message.index));
    match message.get_msg_type() {
        MessageType::MsgAppend => {
            words.push(format!("after {before}"));
            if !message.entries.is_empty() {
                let of = |entry: &raft::eraftpb::Entry| at(LogPosition::new(entry.term, entry.index));
                words.push(format!(
                    "entries {}",
                    message.entries.iter().map(of).collect::<Vec<_>>().join(" ")
                ));
            }
            words.push(format!("commit {}", message.commit));
        }
        MessageType::MsgAppendResponse => words.push(format!("index {}", message.index)),
        MessageType::MsgRequestVote | MessageType::MsgRequestPreVote => words.push(format!("last {before}")),
        MessageType::MsgHeartbeat => words.push(format!("commit {}", message.commit)),
        MessageType::MsgSnapshot => {
            let metadata = message.get_snapshot().get_metadata();
            words.push(format!("as of {}", at(LogPosition::new(metadata.term, metadata.index))));
        }
        _ => {}
    }
    if message.reject {
        words.push("rejected".to_owned());
        if message.get_msg_type() == MessageType::MsgAppendResponse {
            words.push(format!("hint {}", at(LogPosition::new(message.log_term, message.reject_hint))));
        }
    }
    words.join(" ")
}
