//! `logApplicationMessage`.

use sheaf_errors::Result;

use crate::args::Args;
use crate::command::*;
use crate::reply::Reply;
use crate::request::Request;

/// `{logApplicationMessage: "text"}`: writes it into the audit log, where there is one.
pub struct LogApplicationMessage;

impl<'a> Command<'a, Request<'a>> for LogApplicationMessage {
    const NAME: &'static str = "logApplicationMessage";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "writes a text into the audit log",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: true,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Cluster, &[Action::ApplicationMessage])]),
        spread: Spread::Router,
        counter: Counter::Command,
        threads: Threads::DataMayBlock,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        // The event is told by the command itself, when it has run.
        args.own::<&str>()?;
        Ok(LogApplicationMessage)
    }

    fn run(self, _: &Request<'a>) -> Result<Reply> {
        Ok(Reply::ok())
    }
}
