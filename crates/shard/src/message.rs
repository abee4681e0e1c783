//! Requests and answers as commands and replies: a command is named after what it asks, and its own value names the transaction.
//!
//! ```text
//! {prepareTransaction: {lsid: {id: ...}, txnNumber: 3}, participants: ["a", "b"],
//!  executed: {term: 5, opening: 41, statements: 2}}
//! {state: "prepared", time: Timestamp(...)}
//! ```

use std::sync::Arc;

use sheaf_bson::{DocBuf, DocWriter, RawDoc, Timestamp, Value};
use sheaf_errors::{Code, Error, Result, bail};

use crate::time::ClusterTime;
use crate::transaction::{Answer, Executed, Request};
use crate::types::{ShardId, TransactionId};

/// The commands' names.
pub mod name {
    /// Of [`Request::Prepare`](crate::Request::Prepare).
    pub const PREPARE: &str = "prepareTransaction";
    /// Of [`Request::CommitAlone`](crate::Request::CommitAlone).
    pub const COMMIT_ALONE: &str = "commitLoneTransaction";
    /// Of [`Request::Confirm`](crate::Request::Confirm).
    pub const CONFIRM: &str = "confirmTransaction";
    /// Of [`Request::Commit`](crate::Request::Commit), with `commitTimestamp`, and of [`Request::Abort`](crate::Request::Abort).
    pub const DECIDE: &str = "decideTransaction";
    /// Of [`Decisions`](crate::Decisions); its value is an array of transactions.
    pub const DECIDE_SEVERAL: &str = "decideTransactions";
    /// Of [`Request::Abandon`](crate::Request::Abandon).
    pub const ABANDON: &str = "abandonTransaction";
    /// Of [`Request::Ask`](crate::Request::Ask).
    pub const ASK: &str = "askTransaction";
    /// Of [`Request::Recover`](crate::Request::Recover).
    pub const RECOVER: &str = "recoverTransaction";
    /// Of [`Request::Settled`](crate::Request::Settled); its value is an array of transactions.
    pub const SETTLE: &str = "settleTransactions";
}

impl Request {
    /// The name of its command.
    pub fn name(&self) -> &'static str {
        match self {
            Request::Prepare { .. } => name::PREPARE,
            Request::CommitAlone { .. } => name::COMMIT_ALONE,
            Request::Confirm { .. } => name::CONFIRM,
            Request::Commit { .. } | Request::Abort { .. } => name::DECIDE,
            Request::Abandon { .. } => name::ABANDON,
            Request::Ask { .. } => name::ASK,
            Request::Recover { .. } => name::RECOVER,
            Request::Settled { .. } => name::SETTLE,
        }
    }

    /// The command.
    pub fn command(&self) -> DocBuf {
        DocBuf::build(|out| {
            match self {
                Request::Settled { ids } => {
                    let mut list = out.array(self.name());
                    ids.iter().for_each(|id| put_id(id, list.document()));
                }
                request => put_id(request.id().expect("it names a transaction"), out.document(self.name())),
            }
            match self {
                Request::Prepare { participants, executed, .. } => {
                    let mut list = out.array("participants");
                    participants.iter().for_each(|shard| {
                        list.push(shard.as_str());
                    });
                    drop(list);
                    executed.append(out);
                }
                Request::CommitAlone { executed, .. } => executed.append(out),
                Request::Confirm { executed, read_at, .. } => {
                    executed.append(out);
                    out.append("readAt", Timestamp::from(*read_at));
                }
                Request::Commit { at, .. } => {
                    out.append("commitTimestamp", Timestamp::from(*at));
                }
                Request::Abort { .. }
                | Request::Abandon { .. }
                | Request::Ask { .. }
                | Request::Recover { .. }
                | Request::Settled { .. } => {}
            }
        })
    }

    /// What the command of this name asks.
    ///
    /// Errors: `FailedToParse`.
    pub fn parse(command: &str, body: RawDoc<'_>) -> Result<Request> {
        let own = body.get_or_missing(command);
        if command == name::SETTLE {
            let ids = own.as_array().ok_or_else(|| malformed(command, command))?;
            let ids = ids.values().map(|id| transaction(command, id)).collect::<Result<_>>()?;
            return Ok(Request::Settled { ids });
        }
        let id = transaction(command, own)?;
        let executed = || Executed::parse(body).ok_or_else(|| malformed(command, EXECUTED));
        Ok(match command {
            name::PREPARE => {
                let participants = participants(body).ok_or_else(|| malformed(command, "participants"))?;
                Request::Prepare { id, participants, executed: executed()? }
            }
            name::COMMIT_ALONE => Request::CommitAlone { id, executed: executed()? },
            name::CONFIRM => {
                let read_at = time(body, "readAt").ok_or_else(|| malformed(command, "readAt"))?;
                Request::Confirm { id, executed: executed()?, read_at }
            }
            name::DECIDE => match time(body, "commitTimestamp") {
                Some(at) => Request::Commit { id, at },
                None if body.get("commitTimestamp").is_none() => Request::Abort { id },
                None => return Err(malformed(command, "commitTimestamp")),
            },
            name::ABANDON => Request::Abandon { id },
            name::ASK => Request::Ask { id },
            name::RECOVER => Request::Recover { id },
            other => bail!(Code::COMMAND_NOT_FOUND, "no such command: '{other}'"),
        })
    }
}

/// Commits of several transactions, of which a shard is told at once.
///
/// ```text
/// {decideTransactions: [{lsid: {id: ...}, txnNumber: 3, commitTimestamp: Timestamp(...)}, ...], applied: true}
/// {decided: [true, ...]}
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Decisions {
    /// Each with its time.
    pub all: Vec<(TransactionId, ClusterTime)>,
    /// Whether the answer is to come when they are applied. Else it comes when they are on a majority, and only then may they be settled.
    pub applied: bool,
}

impl Decisions {
    /// The command.
    pub fn command(&self) -> DocBuf {
        DocBuf::build(|out| {
            let mut list = out.array(name::DECIDE_SEVERAL);
            for (id, at) in &self.all {
                let mut one = list.document();
                one.append("lsid", RawDoc::new(&id.lsid)).append("txnNumber", id.number);
                one.append("commitTimestamp", Timestamp::from(*at));
            }
            drop(list);
            out.append("applied", self.applied);
        })
    }

    /// What the command says.
    ///
    /// Errors: `FailedToParse`.
    pub fn parse(body: RawDoc<'_>) -> Result<Decisions> {
        let command = name::DECIDE_SEVERAL;
        let own = body.get(command).and_then(|list| list.as_array());
        let own = own.ok_or_else(|| malformed(command, command))?;
        let decision = |value: Value<'_>| {
            let at = value.as_doc().and_then(|doc| time(doc, "commitTimestamp"));
            Ok((transaction(command, value)?, at.ok_or_else(|| malformed(command, "commitTimestamp"))?))
        };
        let all = own.values().map(decision).collect::<Result<_>>()?;
        Ok(Decisions { all, applied: body.get("applied").is_some_and(|applied| applied.truthy()) })
    }

    /// The field of the reply: which of them the shard has.
    pub fn append_answer(out: &mut DocWriter<'_, Vec<u8>>, has: &[bool]) {
        let mut list = out.array("decided");
        has.iter().for_each(|has| {
            list.push(*has);
        });
    }

    /// What a reply says.
    pub fn parse_answer(reply: RawDoc<'_>) -> Option<Vec<bool>> {
        let list = reply.get("decided")?.as_array()?;
        Some(list.values().map(|has| has.truthy()).collect())
    }
}

/// The field in which shards say what they have executed, and routers say it back.
const EXECUTED: &str = "executed";

impl Executed {
    /// Adds it to the answer of a statement, and to the requests that it comes back with.
    pub fn append(&self, out: &mut DocWriter<'_, Vec<u8>>) {
        out.document(EXECUTED)
            .append("term", self.term as i64)
            .append("opening", self.opening as i64)
            .append("statements", i64::from(self.statements));
    }

    /// What an answer or a request says.
    pub fn parse(body: RawDoc<'_>) -> Option<Executed> {
        let told = body.get(EXECUTED)?.as_doc()?;
        let number =
            |name: &str| told.get(name)?.as_exact_i64().and_then(|number| u64::try_from(number).ok());
        let statements = u32::try_from(number("statements")?).ok()?;
        Some(Executed { term: number("term")?, opening: number("opening")?, statements })
    }
}

fn put_id(id: &TransactionId, mut out: DocWriter<'_, Vec<u8>>) {
    out.append("lsid", RawDoc::new(&id.lsid)).append("txnNumber", id.number);
}

fn transaction(command: &str, value: Value<'_>) -> Result<TransactionId> {
    let read = || {
        let doc = value.as_doc()?;
        let lsid = doc.get("lsid")?.as_doc()?;
        Some(TransactionId::new(lsid.as_bytes(), doc.get("txnNumber")?.as_exact_i64()?))
    };
    read().ok_or_else(|| malformed(command, command))
}

fn participants(body: RawDoc<'_>) -> Option<Arc<[ShardId]>> {
    let list = body.get("participants")?.as_array()?;
    let names: Option<Vec<ShardId>> = list.values().map(|name| name.as_str().map(ShardId::new)).collect();
    names.filter(|names| !names.is_empty()).map(Arc::from)
}

fn time(doc: RawDoc<'_>, name: &str) -> Option<ClusterTime> {
    match doc.get(name)? {
        Value::Timestamp(time) => Some(ClusterTime::from(time)),
        _ => None,
    }
}

fn malformed(command: &str, field: &str) -> Error {
    let what = if command == field { command.to_owned() } else { format!("{command}.{field}") };
    Error::new(Code::FAILED_TO_PARSE, format!("'{what}' is missing or not what it must be"))
}

impl Answer {
    /// The fields of the reply.
    pub fn append(&self, out: &mut DocWriter<'_, Vec<u8>>) {
        let (state, time) = match self {
            Answer::Prepared(at) => ("prepared", Some(*at)),
            Answer::Committed(at) => ("committed", Some(*at)),
            Answer::Aborted => ("aborted", None),
            Answer::TooOld => ("tooOld", None),
            Answer::Confirmed => ("confirmed", None),
            Answer::Abandoned => ("abandoned", None),
        };
        out.append("state", state);
        if let Some(time) = time {
            out.append("time", Timestamp::from(time));
        }
    }

    /// What a reply says; `None` if that is nothing of these.
    pub fn parse(reply: RawDoc<'_>) -> Option<Answer> {
        Some(match reply.get("state")?.as_str()? {
            "prepared" => Answer::Prepared(time(reply, "time")?),
            "committed" => Answer::Committed(time(reply, "time")?),
            "aborted" => Answer::Aborted,
            "tooOld" => Answer::TooOld,
            "confirmed" => Answer::Confirmed,
            "abandoned" => Answer::Abandoned,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use sheaf_bson::doc;

    use super::*;

    fn id() -> TransactionId {
        TransactionId::new(doc! { "id": 7 }.into_bytes(), 3)
    }

    #[test]
    fn requests_are_commands() {
        let at = ClusterTime::from_micros(9_000_001);
        let participants: Arc<[ShardId]> = [ShardId::new("a"), ShardId::new("b")].into();
        let executed = Executed { term: 3, opening: 9, statements: 2 };
        for request in [
            Request::Prepare { id: id(), participants, executed },
            Request::CommitAlone { id: id(), executed },
            Request::Confirm { id: id(), executed, read_at: at },
            Request::Commit { id: id(), at },
            Request::Abort { id: id() },
            Request::Abandon { id: id() },
            Request::Ask { id: id() },
            Request::Recover { id: id() },
            Request::Settled { ids: vec![id(), id()] },
        ] {
            let command = request.command();
            assert_eq!(Request::parse(request.name(), command.as_raw()).unwrap(), request, "{command:?}");
        }
    }

    #[test]
    fn decisions_go_together() {
        let all = vec![(id(), ClusterTime::from_micros(9)), (id(), ClusterTime::from_micros(10))];
        for applied in [true, false] {
            let decisions = Decisions { all: all.clone(), applied };
            assert_eq!(Decisions::parse(decisions.command().as_raw()).unwrap(), decisions);
        }
        let reply = DocBuf::build(|out| Decisions::append_answer(out, &[true, false]));
        assert_eq!(Decisions::parse_answer(reply.as_raw()), Some(vec![true, false]));
        assert_eq!(Decisions::parse_answer(doc! { "ok": 1.0 }.as_raw()), None);
        let one = doc! { "lsid": { "id": 7 }, "txnNumber": 3 };
        for body in [
            doc! { "decideTransactions": 1 },
            doc! { "decideTransactions": [one.as_raw()] },
            doc! { "decideTransactions": [1] },
        ] {
            assert_eq!(
                Decisions::parse(body.as_raw()).unwrap_err().code(),
                Code::FAILED_TO_PARSE,
                "{body:?}"
            );
        }
    }

    #[test]
    fn answers_are_replies() {
        let at = ClusterTime::from_micros(9_000_001);
        for answer in [
            Answer::Prepared(at),
            Answer::Committed(at),
            Answer::Aborted,
            Answer::TooOld,
            Answer::Confirmed,
            Answer::Abandoned,
        ] {
            let reply = DocBuf::build(|out| answer.append(out));
            assert_eq!(Answer::parse(reply.as_raw()), Some(answer));
        }
        assert_eq!(Answer::parse(doc! { "ok": 1.0 }.as_raw()), None);
    }

    #[test]
    fn what_is_malformed_is_refused() {
        let id = doc! { "lsid": { "id": 7 }, "txnNumber": 3 };
        for (command, body) in [
            (name::ASK, doc! { "askTransaction": 1 }),
            (name::ASK, doc! { "askTransaction": { "lsid": 1, "txnNumber": 3 } }),
            (name::PREPARE, doc! { "prepareTransaction": id.as_raw() }),
            (name::PREPARE, doc! { "prepareTransaction": id.as_raw(), "participants": [] }),
            (
                name::PREPARE,
                doc! { "prepareTransaction": id.as_raw(), "participants": ["a"], "executed": { "term": -1 } },
            ),
            (name::DECIDE, doc! { "decideTransaction": id.as_raw(), "commitTimestamp": 5 }),
            (name::SETTLE, doc! { "settleTransactions": id.as_raw() }),
            (name::SETTLE, doc! { "settleTransactions": [1] }),
        ] {
            let error = Request::parse(command, body.as_raw()).unwrap_err();
            assert_eq!(error.code(), Code::FAILED_TO_PARSE, "{body:?}");
        }
    }
}
