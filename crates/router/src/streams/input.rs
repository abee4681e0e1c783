//! One shard's part of a change stream.

use std::sync::Arc;
use std::time::Instant;

use sheaf_aggregate::stages::change_stream::ResumeToken;
use sheaf_bson::{DocBuf, RawDoc, Timestamp};
use sheaf_cluster::{Answer, Call, ELECTION, GoOn};
use sheaf_errors::{Code, Error, Result};

use super::members::Change;
use crate::gather::{Abandoned, Link, Remote};
use crate::target::Target;

/// A cursor on a shard, and what has come of it.
pub struct Input {
    remote: Remote,
    /// The position of the event at hand; `None`: nothing is left here.
    next: Option<ResumeToken>,
    /// All that comes later is behind this position.
    mark: ResumeToken,
    /// The answer to this is awaited.
    call: Option<Call>,
    /// Up to when the shard was asked to tell what it knows.
    asked: u64,
    /// Up to when the shard was one, and since when that is known, if it is none any more.
    left: Option<(u64, Instant)>,
    /// Whether it may be removed at any time: it is being drained.
    leaving: bool,
}

impl Input {
    /// The cursor of an answer.
    ///
    /// Errors: `ExceededMemoryLimit`; the shard does not say how far it has come.
    pub fn of(abandoned: &Arc<Abandoned>, target: &Target, answer: &Answer) -> Result<Self> {
        let remote = Remote::of(abandoned, target, answer)?;
        let mark = mark_of(answer.reply())?;
        let mut input = Input { remote, next: None, mark, call: None, asked: 0, left: None, leaving: false };
        input.advance()?;
        Ok(input)
    }

    /// The shard's name.
    pub fn name(&self) -> &str {
        self.remote.cursor.target.name()
    }

    /// Where the cursor is.
    pub fn target(&self) -> &Target {
        &self.remote.cursor.target
    }

    /// The member that has it.
    pub fn host(&self) -> &str {
        &self.remote.cursor.host
    }

    /// Its id there.
    pub fn id(&self) -> i64 {
        self.remote.cursor.id
    }

    /// The position of the event at hand.
    pub fn next(&self) -> Option<&ResumeToken> {
        self.next.as_ref()
    }

    /// All that comes behind what is at hand is behind this position, too.
    pub fn mark(&self) -> &ResumeToken {
        &self.mark
    }

    /// The event at hand.
    pub fn document(&self) -> RawDoc<'_> {
        self.remote.document()
    }

    /// Whether the shard's cursor is closed.
    pub fn has_ended(&self) -> bool {
        self.remote.is_done()
    }

    /// The shard is one only up to this time: what is done there later is no event of the cluster's.
    pub fn leave(&mut self, until: u64) {
        self.left.get_or_insert((until, Instant::now()));
    }

    /// Up to when the shard was one, if it is none any more.
    pub fn until(&self) -> Option<u64> {
        self.left.map(|(until, _)| until)
    }

    /// Whether the shard is none any more.
    pub fn has_left(&self) -> bool {
        self.left.is_some()
    }

    /// Whether nothing more of it counts: the shard has left, and what was before that is told. One that does not say so is not waited for
    /// longer than an election takes.
    pub fn is_over(&self) -> bool {
        let Some((until, known)) = self.left else { return false };
        match &self.next {
            Some(next) => next.time > until,
            None => self.mark.time > until || known.elapsed() > ELECTION,
        }
    }

    /// The shard may be removed soon.
    pub fn may_leave(&mut self) {
        self.leaving = true;
    }

    /// Whether the shard may have been removed without that this is known.
    pub fn is_leaving(&self) -> bool {
        self.leaving && self.left.is_none()
    }

    /// The answer that is awaited.
    pub fn call(&self) -> Option<&Call> {
        self.call.as_ref()
    }

    /// Goes behind the event at hand.
    ///
    /// Errors: an event has no resume token.
    pub fn advance(&mut self) -> Result<()> {
        self.next = match self.remote.advance() {
            true => {
                let id = self.remote.document().get("_id").and_then(|id| id.as_doc());
                Some(ResumeToken::parse(id.unwrap_or(RawDoc::EMPTY))?)
            }
            false => None,
        };
        Ok(())
    }

    /// Asks for more, if nothing is left and nothing was asked yet. The shard waits so long for an event, unless it is to tell what it
    /// knows up to a time and has not told it.
    ///
    /// Errors: those of the way there.
    pub fn ask(&mut self, link: &Link, wait_millis: u64, up_to: Option<u64>) -> Result<()> {
        if self.next.is_some() || self.call.is_some() || self.has_ended() {
            return Ok(());
        }
        let mut fields = DocBuf::new().with("maxTimeMS", wait_millis.clamp(1, i32::MAX as u64) as i64);
        self.asked = 0;
        if let Some(time) = up_to.filter(|time| self.mark.time <= *time) {
            fields = fields.with("upTo", Timestamp(time));
        }
        self.call = Some(link.send_for_more(&self.remote.cursor, &fields)?);
        Ok(())
    }

    /// Whether the shard is waiting for events, and has not been told yet that up to this time is wanted; it is told now.
    pub fn is_to_be_told(&mut self, time: u64) -> bool {
        let is_to = self.call.is_some() && self.next.is_none() && self.asked < time && self.mark.time <= time;
        if is_to {
            self.asked = time;
        }
        is_to
    }

    /// Takes the answer in that is awaited, if it is there.
    ///
    /// Errors: what the shard answers; it is lost.
    pub fn receive(&mut self, link: &Link, go_on: GoOn<'_>) -> Result<()> {
        match self.call.take_if(|call| call.is_ready()) {
            Some(call) => self.take(call, link, go_on),
            None => Ok(()),
        }
    }

    fn take(&mut self, call: Call, link: &Link, go_on: GoOn<'_>) -> Result<()> {
        let answer = call.finish_there(go_on)?;
        if let Err(error) = link.check(&self.remote.cursor.target, &answer) {
            if matches!(error.code(), Code::CURSOR_NOT_FOUND | Code::CURSOR_KILLED) {
                self.remote.cursor.id = 0;
            }
            return Err(error);
        }
        self.mark = mark_of(answer.reply())?;
        self.remote.take(answer.reply())?;
        self.advance()
    }

    /// What is at hand, of a stream on `config.shards`.
    ///
    /// Errors: an event has no resume token.
    pub fn changes(&mut self) -> Result<Vec<Change>> {
        let mut changes = Vec::new();
        while let Some(time) = self.next.as_ref().map(|next| next.time) {
            changes.extend(Change::of(self.document(), time));
            self.advance()?;
        }
        Ok(changes)
    }

    /// All that happens up to a time, of a stream on `config.shards`. It is waited for.
    ///
    /// Errors: those of the way there; the stream is closed.
    pub fn changes_up_to(&mut self, time: u64, link: &Link, go_on: GoOn<'_>) -> Result<Vec<Change>> {
        let mut changes = self.changes()?;
        while self.mark.time <= time {
            if self.has_ended() {
                return Err(Error::new(Code::CURSOR_NOT_FOUND, "the stream of shards is over"));
            }
            self.ask(link, 1, Some(time))?;
            if let Some(call) = self.call.take() {
                self.take(call, link, go_on)?;
            }
            changes.extend(self.changes()?);
        }
        Ok(changes)
    }
}

/// `postBatchResumeToken`.
fn mark_of(reply: RawDoc<'_>) -> Result<ResumeToken> {
    let cursor = reply.get("cursor").and_then(|cursor| cursor.as_doc()).unwrap_or(RawDoc::EMPTY);
    match cursor.get("postBatchResumeToken").and_then(|token| token.as_doc()) {
        Some(token) => ResumeToken::parse(token),
        None => Err(Error::new(Code::INTERNAL_ERROR, "a shard's change stream does not say how far it is")),
    }
}
