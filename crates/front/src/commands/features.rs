//! `features`.

use sheaf_errors::Result;

use crate::args::Args;
use crate::command::*;
use crate::reply::Reply;
use crate::request::Request;

/// `{features: 1}`.
pub struct Features;

impl<'a> Command<'a, Request<'a>> for Features {
    const NAME: &'static str = "features";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "what this build can do",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: false,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Cluster, &[Action::OidReset])
            .if_asked("oidReset", |asked| asked.is_true("oidReset"))]),
        spread: Spread::Router,
        counter: Counter::Command,
        threads: Threads::Data,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        args.ignore(&["oidReset"]);
        Ok(Features)
    }

    fn run(self, op: &Request<'a>) -> Result<Reply> {
        let machine = op.front.process_id.0;
        let machine = i32::from_le_bytes([machine[4], machine[5], machine[6], 0]);
        Ok(Reply::ok().with("oidMachine", machine))
    }
}
