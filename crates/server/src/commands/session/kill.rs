//! `killSessions`, `killAllSessions`, `killAllSessionsByPattern`.

use sheaf_bson::{RawDoc, Value};
use sheaf_errors::{Code, Result, bail};

use super::end::session_list;
use crate::args::Args;
use crate::command::{Command, Spec};
use crate::op::OpContext;
use crate::reply::Reply;
use crate::session::LogicalSessionId;

/// `{killSessions: [lsid, ...]}`; an empty list means all of the user's, and everybody is one user.
pub struct KillSessions(Vec<LogicalSessionId>);

impl<'a> Command<'a> for KillSessions {
    const NAME: &'static str = "killSessions";
    const SPEC: Spec = Spec::plain().may_block().help("stops what sessions are doing");

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        Ok(KillSessions(session_list(args)?))
    }

    fn run(self, op: &OpContext<'a>) -> Result<Reply> {
        let all = self.0.is_empty();
        kill(op, |id| all || self.0.contains(&id));
        Ok(Reply::ok())
    }
}

/// `{killAllSessions: [{user, db}, ...]}`.
pub struct KillAllSessions {
    anybody: bool,
}

impl<'a> Command<'a> for KillAllSessions {
    const NAME: &'static str = "killAllSessions";
    const SPEC: Spec = Spec::plain().may_block().help("stops what users' sessions are doing");

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        // Sessions here belong to nobody, so a list of users matches none of them.
        Ok(KillAllSessions { anybody: own_array(args)?.is_empty() })
    }

    fn run(self, op: &OpContext<'a>) -> Result<Reply> {
        kill(op, |_| self.anybody);
        Ok(Reply::ok())
    }
}

/// `{killAllSessionsByPattern: [{lsid: ...} | {uid: ...} | {users, roles}, ...]}`.
pub struct KillAllSessionsByPattern {
    all: bool,
    ids: Vec<LogicalSessionId>,
}

impl<'a> Command<'a> for KillAllSessionsByPattern {
    const NAME: &'static str = "killAllSessionsByPattern";
    const SPEC: Spec = Spec::plain().may_block().help("stops what the sessions of a pattern are doing");

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let patterns = own_array(args)?;
        let mut found = KillAllSessionsByPattern { all: patterns.is_empty(), ids: Vec::new() };
        for pattern in patterns.values() {
            let Some(pattern) = pattern.as_doc() else {
                bail!(Code::TYPE_MISMATCH, "a pattern must be an object");
            };
            if let Some(lsid) = pattern.get("lsid").and_then(|v| v.as_doc()) {
                found.ids.push(LogicalSessionId::parse(lsid)?);
            } else if pattern.get("uid").is_none() {
                found.all = true;
            }
        }
        Ok(found)
    }

    fn run(self, op: &OpContext<'a>) -> Result<Reply> {
        kill(op, |id| self.all || self.ids.contains(&id));
        Ok(Reply::ok())
    }
}

fn own_array<'a>(args: &mut Args<'a>) -> Result<RawDoc<'a>> {
    let command = args.command();
    match args.own_value() {
        Value::Array(array) => Ok(array),
        other => bail!(
            Code::TYPE_MISMATCH,
            "BSON field '{command}.{command}' is the wrong type '{}', expected type 'array'",
            other.type_name()
        ),
    }
}

fn kill(op: &OpContext<'_>, which: impl Fn(LogicalSessionId) -> bool) {
    let node = op.node();
    for session in node.sessions.list() {
        // The session of this very command goes on.
        if which(session.id) && op.lsid() != Some(session.id) {
            node.kill_session(&session);
        }
    }
}
