//! `getCmdLineOpts`.

use sheaf_errors::Result;

use crate::args::Args;
use crate::command::*;
use crate::reply::Reply;
use crate::request::Request;

/// `{getCmdLineOpts: 1}`.
pub struct GetCmdLineOpts;

impl<'a> Command<'a, Request<'a>> for GetCmdLineOpts {
    const NAME: &'static str = "getCmdLineOpts";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "the command line and what it was parsed to",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: true,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Cluster, &[Action::GetCmdLineOpts])]),
        spread: Spread::Router,
        counter: Counter::Command,
        threads: Threads::Control,
        ends_with_client: false,
    };

    fn parse(_: &mut Args<'a>) -> Result<Self> {
        Ok(GetCmdLineOpts)
    }

    fn run(self, op: &Request<'a>) -> Result<Reply> {
        let options = &op.front.options;
        Ok(Reply::ok()
            .with_array("argv", |argv| {
                for argument in &options.argv {
                    argv.push(argument.as_str());
                }
            })
            .with("parsed", &options.parsed))
    }
}
