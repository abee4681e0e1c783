//! `replSetFreeze` and `replSetMaintenance`.

use sheaf_errors::{Code, Result, bail};
use sheaf_repl::MemberState;

use super::membership::replica;
use crate::args::Args;
use crate::command::*;
use crate::op::Operation;
use crate::reply::Reply;

/// `{replSetFreeze: seconds}`: this member does not stand for election for that long.
pub struct ReplSetFreeze {
    secs: i64,
}

impl<'a> Command<'a, Operation<'a>> for ReplSetFreeze {
    const NAME: &'static str = "replSetFreeze";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "keeps this member from becoming primary",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: true,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Cluster, &[Action::ReplSetStateChange])]),
        spread: Spread::Refused,
        counter: Counter::Command,
        threads: Threads::Data,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let secs = args.own_value().as_f64().map_or(0, |secs| secs as i64);
        args.ignore_rest();
        Ok(ReplSetFreeze { secs })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        replica(op)?.with(|core| core.freeze(self.secs.max(0) as u64 * 1000))?;
        Ok(match self.secs {
            0 => Reply::ok().with("info", "unfreezing"),
            1 => Reply::ok().with("warning", "you really want to freeze for only 1 second?"),
            _ => Reply::ok(),
        })
    }
}

/// `{replSetMaintenance: true}`: this secondary is not read and not elected.
pub struct ReplSetMaintenance {
    on: bool,
}

impl<'a> Command<'a, Operation<'a>> for ReplSetMaintenance {
    const NAME: &'static str = "replSetMaintenance";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "takes this member out of use, or back",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: true,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Cluster, &[Action::ReplSetStateChange])]),
        spread: Spread::Refused,
        counter: Counter::Command,
        threads: Threads::Data,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let on = args.own_value().truthy();
        args.ignore_rest();
        Ok(ReplSetMaintenance { on })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let replica = replica(op)?;
        let state = replica.role().state;
        if state == MemberState::Primary {
            bail!(Code::NOT_SECONDARY, "primaries can't modify maintenance mode");
        }
        if !self.on && state != MemberState::Recovering {
            bail!(Code::OPERATION_FAILED, "already out of maintenance mode");
        }
        replica.with(|core| core.set_maintenance(self.on))?;
        Ok(Reply::ok())
    }
}
