//! `shutdown`.

use sheaf_errors::Result;

use crate::args::{Args, Loose};
use crate::command::{Command, Spec};
use crate::op::OpContext;
use crate::reply::Reply;

/// `{shutdown: 1, force: bool, timeoutSecs: n}`.
pub struct Shutdown;

impl<'a> Command<'a> for Shutdown {
    const NAME: &'static str = "shutdown";
    const SPEC: Spec = Spec::plain().admin_only().help("stops the server");

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        args.optional::<Loose>("force")?;
        args.optional::<i64>("timeoutSecs")?;
        Ok(Shutdown)
    }

    fn run(self, op: &OpContext<'a>) -> Result<Reply> {
        crate::log::info("COMMAND", 4695400, &op.client().context(), "Shutdown command received", None);
        op.node().begin_shutdown();
        Ok(Reply::ok())
    }
}
