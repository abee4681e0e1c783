//! `endSessions` and `refreshSessions`.

use sheaf_bson::{RawDoc, Value};
use sheaf_errors::{Code, Result, bail};

use crate::args::Args;
use crate::command::*;
use crate::reply::Reply;
use crate::request::Request;
use crate::session::LogicalSessionId;

/// The most sessions that one command may name.
const MAX_SESSIONS: usize = 10_000;

/// The documents of the array that is a command's own value. `parser` is the name that MongoDB's errors give to the
/// whole; nulls in the array count as absent.
pub fn own_documents<'a>(args: &mut Args<'a>, parser: &str) -> Result<Vec<RawDoc<'a>>> {
    let command = args.command();
    let list = match args.own_value() {
        Value::Array(list) => list,
        Value::Null | Value::Undefined => {
            bail!(40414, "BSON field '{parser}.{command}' is missing but a required field")
        }
        other => bail!(
            Code::TYPE_MISMATCH,
            "BSON field '{parser}.{command}' is the wrong type '{}', expected type 'array'",
            other.type_name()
        ),
    };
    let mut documents = Vec::new();
    for element in list.iter() {
        match element.value() {
            Value::Document(document) => documents.push(document),
            Value::Null | Value::Undefined => {}
            other => bail!(
                Code::TYPE_MISMATCH,
                "BSON field '{parser}.{command}.{}' is the wrong type '{}', expected type 'object'",
                element.key(),
                other.type_name()
            ),
        }
    }
    Ok(documents)
}

/// The array of `lsid`s that is a command's own value.
pub fn session_list(args: &mut Args<'_>, parser: &str) -> Result<Vec<LogicalSessionId>> {
    let place = format!("{parser}.{}", args.command());
    let documents = own_documents(args, parser)?;
    let ids: Vec<_> =
        documents.into_iter().map(|lsid| LogicalSessionId::parse_at(lsid, &place)).collect::<Result<_>>()?;
    if ids.len() > MAX_SESSIONS {
        bail!(Code::BAD_VALUE, "Too many sessions: {}", ids.len());
    }
    Ok(ids)
}

/// `{endSessions: [lsid, ...]}`.
pub struct EndSessions(Vec<LogicalSessionId>);

impl<'a> Command<'a, Request<'a>> for EndSessions {
    const NAME: &'static str = "endSessions";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "ends sessions",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: true,
        admin_only: false,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::None,
        spread: Spread::Router,
        counter: Counter::Command,
        threads: Threads::DataMayBlock,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        Ok(EndSessions(session_list(args, Self::NAME)?))
    }

    fn run(self, op: &Request<'a>) -> Result<Reply> {
        let ids: Vec<_> = op.own_sessions(self.0).collect();
        op.role.sessions().end(&ids);
        Ok(Reply::ok())
    }
}

/// `{refreshSessions: [lsid, ...]}`.
pub struct RefreshSessions(Vec<LogicalSessionId>);

impl<'a> Command<'a, Request<'a>> for RefreshSessions {
    const NAME: &'static str = "refreshSessions";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "keeps sessions alive",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: true,
        admin_only: false,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::None,
        spread: Spread::Router,
        counter: Counter::Command,
        threads: Threads::Data,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        Ok(RefreshSessions(session_list(args, Self::NAME)?))
    }

    fn run(self, op: &Request<'a>) -> Result<Reply> {
        for id in op.own_sessions(self.0) {
            op.role.sessions().touch(id)?;
        }
        Ok(Reply::ok())
    }
}
