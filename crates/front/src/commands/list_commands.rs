//! `listCommands`.

use sheaf_errors::Result;

use crate::args::Args;
use crate::command::*;
use crate::dispatch::is_there;
use crate::reply::Reply;
use crate::request::Request;

/// `{listCommands: 1}`.
pub struct ListCommands;

impl<'a> Command<'a, Request<'a>> for ListCommands {
    const NAME: &'static str = "listCommands";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "all commands",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Before,
        api_v1: false,
        admin_only: false,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::None,
        spread: Spread::Router,
        counter: Counter::Command,
        threads: Threads::Control,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        args.ignore_rest();
        Ok(ListCommands)
    }

    fn run(self, op: &Request<'a>) -> Result<Reply> {
        let commands = op.front.commands.iter().filter(|command| is_there(op.front, command));
        Ok(Reply::ok().with_document("commands", |doc| {
            for command in commands {
                let mut about = doc.document(command.name);
                about.append("help", command.spec.help);
                about.append("requiresAuth", command.spec.authentication == Authentication::Required);
                about.append("secondaryOk", !command.spec.access.is_write());
                about.append("adminOnly", command.spec.admin_only);
                {
                    let mut versions = about.array("apiVersions");
                    if command.spec.api_v1 {
                        versions.push("1");
                    }
                }
                let _ = about.array("deprecatedApiVersions");
            }
        }))
    }
}
