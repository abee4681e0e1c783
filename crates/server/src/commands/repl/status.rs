//! `replSetGetStatus`.

use sheaf_errors::Result;
use sheaf_repl::status::StatusContext;

use super::membership::replica;
use crate::args::Args;
use crate::command::*;
use crate::op::Operation;
use crate::reply::Reply;

/// `{replSetGetStatus: 1}`.
pub struct ReplSetGetStatus;

impl<'a> Command<'a, Operation<'a>> for ReplSetGetStatus {
    const NAME: &'static str = "replSetGetStatus";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "state of the replica set",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: true,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Cluster, &[Action::ReplSetGetStatus])]),
        spread: Spread::Refused,
        counter: Counter::Command,
        threads: Threads::Control,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        args.ignore_rest();
        Ok(ReplSetGetStatus)
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let replica = replica(op)?;
        let initial_sync = replica.initial_sync_status();
        let context = StatusContext {
            initial_sync: initial_sync.as_ref().map(|status| status.as_raw()),
            now_millis: op.now_millis(),
            uptime_secs: replica.uptime().as_secs(),
            last_stable_recovery: Some(op.engine().last_flushed().time),
        };
        let mut reply = Reply::with_capacity(4096);
        let mut result = Ok(());
        reply.fill(|doc| result = replica.with(|core| core.write_status(doc, &context)));
        result.map(|()| reply)
    }
}
