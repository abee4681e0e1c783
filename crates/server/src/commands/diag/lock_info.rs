//! `lockInfo`.

use sheaf_errors::Result;

use crate::args::Args;
use crate::command::*;
use crate::op::Operation;
use crate::reply::Reply;

/// `{lockInfo: 1}`.
pub struct LockInfo;

impl<'a> Command<'a, Operation<'a>> for LockInfo {
    const NAME: &'static str = "lockInfo";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "locks held and waited for",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: true,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Cluster, &[Action::ServerStatus])]),
        spread: Spread::Refused,
        counter: Counter::Command,
        threads: Threads::Data,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        args.ignore(&["includeStorageEngineDump"]);
        Ok(LockInfo)
    }

    fn run(self, _: &Operation<'a>) -> Result<Reply> {
        // Locks here are on records and held for microseconds: there are no hierarchical ones to list.
        Ok(Reply::ok().with_array("lockInfo", |_| {}))
    }
}
