//! `configureFailPoint`.

use sheaf_bson::{RawDoc, Value};
use sheaf_errors::Result;

use crate::args::Args;
use crate::command::{Command, Spec};
use crate::op::Operation;
use crate::reply::Reply;

/// `{configureFailPoint: name, mode: ..., data: {...}}`.
pub struct ConfigureFailPoint<'a> {
    name: &'a str,
    mode: Value<'a>,
    data: RawDoc<'a>,
}

impl<'a> Command<'a, Operation<'a>> for ConfigureFailPoint<'a> {
    const NAME: &'static str = "configureFailPoint";
    const SPEC: Spec = Spec::plain().admin_only().test_only().help("switches a fault on or off, for tests");

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let name = args.own_value().as_str().unwrap_or("");
        let data = args.optional("data")?.unwrap_or(RawDoc::EMPTY);
        Ok(ConfigureFailPoint { name, mode: args.value("mode"), data })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let entered = op.node().fail_points.configure(self.name, self.mode, self.data)?;
        Ok(Reply::ok().with("count", entered as i32))
    }
}
