//! `startSession`.

use sheaf_errors::Result;

use crate::args::Args;
use crate::command::*;
use crate::reply::Reply;
use crate::request::Request;
use crate::session::LogicalSessionId;

/// `{startSession: 1}`.
pub struct StartSession;

impl<'a> Command<'a, Request<'a>> for StartSession {
    const NAME: &'static str = "startSession";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "makes a session",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: false,
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
        args.ignore_rest();
        Ok(StartSession)
    }

    fn run(self, op: &Request<'a>) -> Result<Reply> {
        let id = LogicalSessionId::new(*uuid::Uuid::new_v4().as_bytes());
        op.role.sessions().touch(op.session(id))?;
        let minutes = op.front.parameters.int("localLogicalSessionTimeoutMinutes") as i32;
        Ok(Reply::ok().with_fields(|doc| {
            id.write(doc, "id");
            doc.append("timeoutMinutes", minutes);
        }))
    }
}
