//! `listCommands`.

use sheaf_errors::Result;

use crate::args::Args;
use crate::command::{Access, Command, Spec};
use crate::op::Operation;
use crate::reply::Reply;

/// `{listCommands: 1}`.
pub struct ListCommands;

impl<'a> Command<'a, Operation<'a>> for ListCommands {
    const NAME: &'static str = "listCommands";
    const SPEC: Spec = Spec::plain().control().help("all commands");

    fn parse(_: &mut Args<'a>) -> Result<Self> {
        Ok(ListCommands)
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let test = op.node().test_commands();
        let mut commands: Vec<_> = crate::commands::all().filter(|c| test || !c.spec.test_only).collect();
        commands.sort_by_key(|command| command.name);
        Ok(Reply::ok().with_document("commands", |doc| {
            for command in commands {
                let mut about = doc.document(command.name);
                about.append("help", command.spec.help);
                about.append("requiresAuth", !matches!(command.name, "hello" | "isMaster" | "ping"));
                about.append("secondaryOk", command.spec.access != Access::Write);
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
