//! What takes several steps: documents of `config.ddl`, each with the phase that it has reached.

use sheaf_bson::{DocBuf, RawDoc, Value, doc};
use sheaf_errors::{Code, Error, Result};
use sheaf_storage::Interrupt;

use super::Conductor;
use super::shards::may_pass;
use crate::sharding::participants::name;

/// Where they are.
pub(super) const DDL: &str = "config.ddl";

/// What has come of a phase.
pub(super) enum Phase {
    /// The document now: it goes on from there.
    Reached(DocBuf),
    /// It is over, and its document has gone; the fields of the reply.
    Over(DocBuf),
    /// It is over without having changed anything, for this reason; its document has gone.
    Refused(Error),
}

impl Conductor {
    /// Has a shard tell change streams what is done to the collection that the document is about. Who does it again after a death tells it
    /// again.
    pub(super) fn notify(
        &self,
        shard: &str,
        at: RawDoc<'_>,
        event: &DocBuf,
        go_on: Interrupt<'_>,
    ) -> Result<()> {
        let step = self.step()?;
        let command = doc! {
            (name::NOTIFY): name_of(at), "step": step, "uuid": at.get_or_missing("uuid"), "event": event.as_raw()
        };
        self.tell(shard, &command, go_on).map(|_| ())
    }

    /// After a phase that has failed: the phase in which what was done is taken back. What may pass is tried again, and whoever waits no
    /// more has not found that anything cannot be.
    pub(super) fn back(error: Error, at: RawDoc<'_>, phase: &str, go_on: Interrupt<'_>) -> Result<Phase> {
        if may_pass(&error) || go_on().is_err() {
            return Err(error);
        }
        let mut reason = DocBuf::new();
        reason.append("code", error.code().0).append("errmsg", error.message());
        Ok(Phase::Reached(with(at, &[("phase", phase.into()), ("reason", reason.as_raw().into())])))
    }
}

/// Why it was taken back.
pub(super) fn reason(at: RawDoc<'_>) -> Error {
    let reason = at.get("reason").and_then(|reason| reason.as_doc()).unwrap_or(RawDoc::EMPTY);
    let code = reason.get("code").and_then(|code| code.as_exact_i64()).unwrap_or(1);
    Error::new(Code(code as i32), text(reason, "errmsg"))
}

/// What it is about: a namespace, or a database.
pub(super) fn name_of(at: RawDoc<'_>) -> &str {
    text(at, "_id")
}

/// A string of the document; empty without one.
pub(super) fn text<'d>(at: RawDoc<'d>, name: &str) -> &'d str {
    at.get(name).and_then(|value| value.as_str()).unwrap_or_default()
}

/// The document with these fields changed or added.
pub(super) fn with(at: RawDoc<'_>, changes: &[(&str, Value<'_>)]) -> DocBuf {
    DocBuf::build(|out| {
        for field in at.iter().filter(|field| changes.iter().all(|(name, _)| *name != field.key())) {
            out.append_element(field);
        }
        for (name, value) in changes {
            out.append(name, *value);
        }
    })
}
