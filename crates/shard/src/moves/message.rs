//! Moves as documents: requests and statements as commands named after what they ask, answers as replies, and the document of a move,
//! which is that of `config.migrations` too.
//!
//! ```text
//! {receiveRange: {_id: UUID, ns: "db.c", uuid: UUID, key: {a: 1}, min: {a: 0}, max: {a: 9}, fromShard: "a", toShard: "b"}}
//! {changesOfRange: UUID, donation: {term: 3, number: 1}, received: 20, close: true}
//! {state: "changed", upto: 25, count: 5, left: 0, closing: {term: 3, number: 2}}
//! ```

use std::sync::Arc;

use sheaf_bson::{Binary, DocBuf, DocWriter, RawDoc, Value};
use sheaf_errors::{Code, Error, Result, bail};

use crate::placement::{Key, KeyPattern};
use crate::types::ShardId;

use super::change::{uuid_in, uuid_value};
use super::{Move, MoveAnswer, MoveId, MoveRequest, MoveStatement, Progress, Token};

/// The commands' names.
pub mod name {
    /// Of [`MoveRequest::Receive`](crate::moves::MoveRequest::Receive).
    pub const RECEIVE: &str = "receiveRange";
    /// Of [`MoveRequest::Finish`](crate::moves::MoveRequest::Finish).
    pub const FINISH: &str = "finishRange";
    /// Of [`MoveRequest::GiveUp`](crate::moves::MoveRequest::GiveUp).
    pub const GIVE_UP: &str = "giveUpRange";
    /// Of [`MoveRequest::Donate`](crate::moves::MoveRequest::Donate).
    pub const DONATE: &str = "donateRange";
    /// Of [`MoveRequest::Copy`](crate::moves::MoveRequest::Copy).
    pub const COPY: &str = "copyRange";
    /// Of [`MoveRequest::Changes`](crate::moves::MoveRequest::Changes).
    pub const CHANGES: &str = "changesOfRange";
    /// Of [`MoveStatement::Leave`](crate::moves::MoveStatement::Leave).
    pub const LEAVE: &str = "leaveRange";
    /// Of [`MoveStatement::Own`](crate::moves::MoveStatement::Own).
    pub const OWN: &str = "ownRange";
}

impl Move {
    /// The document in `config.migrations`.
    pub fn document(&self) -> DocBuf {
        DocBuf::build(|out| self.append(out))
    }

    fn append(&self, out: &mut DocWriter<'_, Vec<u8>>) {
        out.append("_id", uuid_value(&self.id.0))
            .append("ns", &*self.ns)
            .append("uuid", uuid_value(&self.uuid))
            .append("key", self.pattern.document())
            .append("min", self.min.document())
            .append("max", self.max.document())
            .append("fromShard", self.from.as_str())
            .append("toShard", self.to.as_str());
    }

    /// The move of such a document.
    ///
    /// Errors: `FailedToParse`; `BadValue`, if the bounds are not of the key.
    pub fn parse(document: RawDoc<'_>) -> Result<Move> {
        let lacks = |name: &'static str| malformed("a move", name);
        let doc = |name| document.get(name).and_then(|value| value.as_doc()).ok_or_else(|| lacks(name));
        let text = |name| document.get(name).and_then(|value| value.as_str()).ok_or_else(|| lacks(name));
        let pattern = KeyPattern::parse(doc("key")?)?;
        let bound = |name| -> Result<Key> { pattern.key(doc(name)?) };
        let (min, max) = (bound("min")?, bound("max")?);
        Ok(Move {
            id: MoveId(uuid_in(document, "_id").ok_or_else(|| lacks("_id"))?),
            ns: Arc::from(text("ns")?),
            uuid: uuid_in(document, "uuid").ok_or_else(|| lacks("uuid"))?,
            min,
            max,
            from: ShardId::new(text("fromShard")?),
            to: ShardId::new(text("toShard")?),
            pattern,
        })
    }
}

impl MoveRequest {
    /// The name of its command.
    pub fn name(&self) -> &'static str {
        match self {
            MoveRequest::Receive { .. } => name::RECEIVE,
            MoveRequest::Finish { .. } => name::FINISH,
            MoveRequest::GiveUp { .. } => name::GIVE_UP,
            MoveRequest::Donate { .. } => name::DONATE,
            MoveRequest::Copy { .. } => name::COPY,
            MoveRequest::Changes { .. } => name::CHANGES,
        }
    }

    /// The command.
    pub fn command(&self) -> DocBuf {
        DocBuf::build(|out| {
            match self {
                MoveRequest::Receive { the_move } | MoveRequest::Donate { the_move, .. } => {
                    the_move.append(&mut out.document(self.name()));
                }
                request => {
                    out.append(self.name(), uuid_value(&request.id().0));
                }
            }
            match self {
                MoveRequest::Donate { attempt, .. } => attempt.append("attempt", out),
                MoveRequest::Copy { donation, after, .. } => {
                    donation.append("donation", out);
                    if let Some(after) = after {
                        out.append("after", bytes(after));
                    }
                }
                MoveRequest::Changes { donation, received, close, .. } => {
                    donation.append("donation", out);
                    out.append("received", *received as i64).append("close", *close);
                }
                MoveRequest::Receive { .. } | MoveRequest::Finish { .. } | MoveRequest::GiveUp { .. } => {}
            }
        })
    }

    /// What the command of this name asks.
    ///
    /// Errors: `FailedToParse`, and those of [`Move::parse`].
    pub fn parse(command: &str, body: RawDoc<'_>) -> Result<MoveRequest> {
        let id = || uuid_in(body, command).map(MoveId).ok_or_else(|| malformed(command, command));
        let the_move = || whole_move(command, body);
        let token = |name: &'static str| Token::parse(body, name).ok_or_else(|| malformed(command, name));
        Ok(match command {
            name::RECEIVE => MoveRequest::Receive { the_move: the_move()? },
            name::FINISH => MoveRequest::Finish { id: id()? },
            name::GIVE_UP => MoveRequest::GiveUp { id: id()? },
            name::DONATE => MoveRequest::Donate { the_move: the_move()?, attempt: token("attempt")? },
            name::COPY => {
                let after = match body.get("after") {
                    None => None,
                    Some(Value::Binary(after)) => Some(after.bytes.to_vec()),
                    Some(_) => return Err(malformed(command, "after")),
                };
                MoveRequest::Copy { id: id()?, donation: token("donation")?, after }
            }
            name::CHANGES => MoveRequest::Changes {
                id: id()?,
                donation: token("donation")?,
                received: number(body, "received").ok_or_else(|| malformed(command, "received"))?,
                close: body.get("close").and_then(|close| close.as_bool()).unwrap_or(false),
            },
            other => bail!(Code::COMMAND_NOT_FOUND, "no such command: '{other}'"),
        })
    }
}

impl MoveStatement {
    /// The command that executes it on a shard, in a transaction; none for the config servers, whose primary it is that executes it.
    pub fn command(&self) -> Option<DocBuf> {
        let (name, the_move, closing, lastmod) = match self {
            MoveStatement::Leave { the_move, closing, lastmod } => (name::LEAVE, the_move, closing, lastmod),
            MoveStatement::Own { the_move, closing, lastmod } => (name::OWN, the_move, closing, lastmod),
            MoveStatement::Directory { .. } => return None,
        };
        Some(DocBuf::build(|out| {
            the_move.append(&mut out.document(name));
            closing.append("closing", out);
            out.append("lastmod", *lastmod);
        }))
    }

    /// What the command of this name executes.
    ///
    /// Errors: `FailedToParse`, and those of [`Move::parse`].
    pub fn parse(command: &str, body: RawDoc<'_>) -> Result<MoveStatement> {
        let the_move = whole_move(command, body)?;
        let closing = Token::parse(body, "closing").ok_or_else(|| malformed(command, "closing"))?;
        let Some(Value::Timestamp(lastmod)) = body.get("lastmod") else {
            return Err(malformed(command, "lastmod"));
        };
        Ok(match command {
            name::LEAVE => MoveStatement::Leave { the_move, closing, lastmod },
            name::OWN => MoveStatement::Own { the_move, closing, lastmod },
            other => bail!(Code::COMMAND_NOT_FOUND, "no such command: '{other}'"),
        })
    }
}

impl MoveAnswer {
    /// The fields of the reply.
    pub fn append(&self, out: &mut DocWriter<'_, Vec<u8>>) {
        match self {
            MoveAnswer::Receiving(progress) => {
                out.append("state", "receiving")
                    .append("batches", progress.batches as i64)
                    .append("caughtUp", progress.caught_up);
            }
            MoveAnswer::Ready { closing } => {
                out.append("state", "ready");
                closing.append("closing", out);
            }
            MoveAnswer::Busy => {
                out.append("state", "busy");
            }
            MoveAnswer::GivenUp { why } => {
                out.append("state", "givenUp").append("why", why.as_str());
            }
            MoveAnswer::Donating { donation } => {
                out.append("state", "donating");
                donation.append("donation", out);
            }
            MoveAnswer::Copied { last } => {
                out.append("state", "copied");
                if let Some(last) = last {
                    out.append("last", bytes(last));
                }
            }
            MoveAnswer::Changed { upto, count, left, closing } => {
                out.append("state", "changed")
                    .append("upto", *upto as i64)
                    .append("count", *count as i64)
                    .append("left", *left as i64);
                if let Some(closing) = closing {
                    closing.append("closing", out);
                }
            }
            MoveAnswer::Refused { why } => {
                out.append("state", "refused").append("why", why.as_str());
            }
        }
    }

    /// What a reply says; `None` if that is nothing of these.
    pub fn parse(reply: RawDoc<'_>) -> Option<MoveAnswer> {
        let why = || Some(reply.get("why")?.as_str()?.to_owned());
        Some(match reply.get("state")?.as_str()? {
            "receiving" => MoveAnswer::Receiving(Progress {
                batches: number(reply, "batches")?,
                caught_up: reply.get("caughtUp")?.as_bool()?,
            }),
            "ready" => MoveAnswer::Ready { closing: Token::parse(reply, "closing")? },
            "busy" => MoveAnswer::Busy,
            "givenUp" => MoveAnswer::GivenUp { why: why()? },
            "donating" => MoveAnswer::Donating { donation: Token::parse(reply, "donation")? },
            "copied" => match reply.get("last") {
                None => MoveAnswer::Copied { last: None },
                Some(Value::Binary(last)) => MoveAnswer::Copied { last: Some(last.bytes.to_vec()) },
                Some(_) => return None,
            },
            "changed" => MoveAnswer::Changed {
                upto: number(reply, "upto")?,
                count: number(reply, "count")?,
                left: number(reply, "left")?,
                closing: match reply.get("closing") {
                    None => None,
                    Some(_) => Some(Token::parse(reply, "closing")?),
                },
            },
            "refused" => MoveAnswer::Refused { why: why()? },
            _ => return None,
        })
    }
}

impl Token {
    fn append(self, name: &str, out: &mut DocWriter<'_, Vec<u8>>) {
        out.document(name).append("term", self.term as i64).append("number", self.number as i64);
    }

    fn parse(body: RawDoc<'_>, name: &str) -> Option<Token> {
        let token = body.get(name)?.as_doc()?;
        Some(Token { term: number(token, "term")?, number: number(token, "number")? })
    }
}

fn bytes(bytes: &[u8]) -> Value<'_> {
    Value::Binary(Binary { subtype: 0, bytes })
}

fn number(doc: RawDoc<'_>, name: &str) -> Option<u64> {
    doc.get(name)?.as_exact_i64().and_then(|number| u64::try_from(number).ok())
}

fn whole_move(command: &str, body: RawDoc<'_>) -> Result<Arc<Move>> {
    let document = body.get(command).and_then(|value| value.as_doc());
    Move::parse(document.ok_or_else(|| malformed(command, command))?).map(Arc::new)
}

fn malformed(command: &str, field: &str) -> Error {
    let what = if command == field { command.to_owned() } else { format!("{command}.{field}") };
    Error::new(Code::FAILED_TO_PARSE, format!("'{what}' is missing or not what it must be"))
}
