//! `replSetGetRBID`.

use sheaf_errors::Result;

use super::membership::replica;
use crate::args::Args;
use crate::command::*;
use crate::op::Operation;
use crate::reply::Reply;

/// `{replSetGetRBID: 1}`: a number that changes with every rollback.
pub struct ReplSetGetRbid;

impl<'a> Command<'a, Operation<'a>> for ReplSetGetRbid {
    const NAME: &'static str = "replSetGetRBID";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "a number that changes with every rollback",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: true,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Cluster, &[Action::Internal])]),
        spread: Spread::Refused,
        counter: Counter::Command,
        threads: Threads::Data,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        args.ignore_rest();
        Ok(ReplSetGetRbid)
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        Ok(Reply::ok().with("rbid", replica(op)?.rollback_id()))
    }
}
