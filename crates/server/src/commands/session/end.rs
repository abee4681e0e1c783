//! `endSessions` and `refreshSessions`.

use sheaf_bson::{RawDoc, Value};
use sheaf_errors::{Code, Result, bail};

use crate::args::Args;
use crate::command::{Command, Spec};
use crate::op::OpContext;
use crate::reply::Reply;
use crate::session::LogicalSessionId;

/// The most sessions that one command may name.
const MAX_SESSIONS: usize = 10_000;

/// The array of `lsid`s that is a command's own value.
pub fn session_list(args: &mut Args<'_>) -> Result<Vec<LogicalSessionId>> {
    let command = args.command();
    let list = match args.own_value() {
        Value::Array(list) => list,
        other => bail!(
            Code::TYPE_MISMATCH,
            "BSON field '{command}.{command}' is the wrong type '{}', expected type 'array'",
            other.type_name()
        ),
    };
    let ids: Vec<_> = list
        .values()
        .map(|value| LogicalSessionId::parse(value.as_doc().unwrap_or(RawDoc::EMPTY)))
        .collect::<Result<_>>()?;
    if ids.len() > MAX_SESSIONS {
        bail!(Code::BAD_VALUE, "Too many sessions: {}", ids.len());
    }
    Ok(ids)
}

/// `{endSessions: [lsid, ...]}`.
pub struct EndSessions(Vec<LogicalSessionId>);

impl<'a> Command<'a> for EndSessions {
    const NAME: &'static str = "endSessions";
    const SPEC: Spec = Spec::plain().api_v1().may_block().help("ends sessions");

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        Ok(EndSessions(session_list(args)?))
    }

    fn run(self, op: &OpContext<'a>) -> Result<Reply> {
        for id in self.0 {
            op.node().end_session(id);
        }
        Ok(Reply::ok())
    }
}

/// `{refreshSessions: [lsid, ...]}`.
pub struct RefreshSessions(Vec<LogicalSessionId>);

impl<'a> Command<'a> for RefreshSessions {
    const NAME: &'static str = "refreshSessions";
    const SPEC: Spec = Spec::plain().api_v1().help("keeps sessions alive");

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        Ok(RefreshSessions(session_list(args)?))
    }

    fn run(self, op: &OpContext<'a>) -> Result<Reply> {
        for id in self.0 {
            op.node().session(id)?;
        }
        Ok(Reply::ok())
    }
}
