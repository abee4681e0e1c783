//! `configureFailPoint`.

use sheaf_bson::{RawDoc, Value};
use sheaf_errors::Result;

use crate::args::Args;
use crate::command::*;
use crate::reply::Reply;
use crate::request::Request;

/// `{configureFailPoint: name, mode: ..., data: {...}}`.
pub struct ConfigureFailPoint<'a> {
    name: &'a str,
    mode: Value<'a>,
    data: RawDoc<'a>,
}

impl<'a> Command<'a, Request<'a>> for ConfigureFailPoint<'a> {
    const NAME: &'static str = "configureFailPoint";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "switches a fault on or off, for tests",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: true,
        test_only: true,
        concerns: Concerns::NONE,
        privileges: Privileges::None,
        spread: Spread::Router,
        counter: Counter::Command,
        threads: Threads::Data,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let name = args.own_value().as_str().unwrap_or("");
        let data = args.optional("data")?.unwrap_or(RawDoc::EMPTY);
        Ok(ConfigureFailPoint { name, mode: args.value("mode"), data })
    }

    fn run(self, op: &Request<'a>) -> Result<Reply> {
        let entered = op.front.fail_points.configure(self.name, self.mode, self.data)?;
        Ok(Reply::ok().with("count", entered as i32))
    }
}
