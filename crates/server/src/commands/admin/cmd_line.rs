//! `getCmdLineOpts`.

use sheaf_errors::Result;

use crate::args::Args;
use crate::command::{Command, Spec};
use crate::op::Operation;
use crate::reply::Reply;

/// `{getCmdLineOpts: 1}`.
pub struct GetCmdLineOpts;

impl<'a> Command<'a, Operation<'a>> for GetCmdLineOpts {
    const NAME: &'static str = "getCmdLineOpts";
    const SPEC: Spec =
        Spec::plain().control().admin_only().help("the command line and what it was parsed to");

    fn parse(_: &mut Args<'a>) -> Result<Self> {
        Ok(GetCmdLineOpts)
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
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
