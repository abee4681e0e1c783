//! `ping`: the round trip and nothing else.

use sheaf_errors::Result;

use crate::args::Args;
use crate::command::*;
use crate::reply::Reply;
use crate::request::Request;

/// `{ping: 1}`.
pub struct Ping;

impl<'a> Command<'a, Request<'a>> for Ping {
    const NAME: &'static str = "ping";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "a way to check that the server is alive",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Before,
        api_v1: true,
        admin_only: false,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::None,
        spread: Spread::Router,
        counter: Counter::Command,
        threads: Threads::Control,
        ends_with_client: false,
    };

    fn parse(_: &mut Args<'a>) -> Result<Self> {
        Ok(Ping)
    }

    fn run(self, _: &Request<'a>) -> Result<Reply> {
        Ok(Reply::ok())
    }
}
