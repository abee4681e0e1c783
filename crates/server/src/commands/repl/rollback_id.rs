//! `replSetGetRBID`.

use sheaf_errors::Result;

use super::replica;
use crate::args::Args;
use crate::command::{Command, Spec};
use crate::op::Operation;
use crate::reply::Reply;

/// `{replSetGetRBID: 1}`: a number that changes with every rollback.
pub struct ReplSetGetRbid;

impl<'a> Command<'a, Operation<'a>> for ReplSetGetRbid {
    const NAME: &'static str = "replSetGetRBID";
    const SPEC: Spec = Spec::plain().admin_only().help("a number that changes with every rollback");

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        args.ignore_rest();
        Ok(ReplSetGetRbid)
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        Ok(Reply::ok().with("rbid", replica(op)?.rollback_id()))
    }
}
