//! `ping`: the round trip and nothing else.

use sheaf_errors::Result;

use crate::args::Args;
use crate::command::{Command, Spec};
use crate::op::Operation;
use crate::reply::Reply;

/// `{ping: 1}`.
pub struct Ping;

impl<'a> Command<'a, Operation<'a>> for Ping {
    const NAME: &'static str = "ping";
    const SPEC: Spec = Spec::plain().control().api_v1().help("a way to check that the server is alive");

    fn parse(_: &mut Args<'a>) -> Result<Self> {
        Ok(Ping)
    }

    fn run(self, _: &Operation<'a>) -> Result<Reply> {
        Ok(Reply::ok())
    }
}
