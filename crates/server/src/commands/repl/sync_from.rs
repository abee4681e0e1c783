//! `replSetSyncFrom`.

use sheaf_errors::{Code, Result, bail};
use sheaf_repl::MemberState;

use super::replica;
use crate::args::Args;
use crate::command::{Command, Spec};
use crate::op::OpContext;
use crate::reply::Reply;

/// `{replSetSyncFrom: "host:port"}`: accepted, without effect. The primary feeds every member by itself.
pub struct ReplSetSyncFrom<'a> {
    target: &'a str,
}

impl<'a> Command<'a> for ReplSetSyncFrom<'a> {
    const NAME: &'static str = "replSetSyncFrom";
    const SPEC: Spec = Spec::plain().admin_only().help("asks for another member to sync from");

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let Some(target) = args.own_value().as_str() else {
            bail!(Code::TYPE_MISMATCH, "\"replSetSyncFrom\" had the wrong type. Expected string");
        };
        args.ignore_rest();
        Ok(ReplSetSyncFrom { target })
    }

    fn run(self, op: &OpContext<'a>) -> Result<Reply> {
        let replica = replica(op)?;
        let (config, me, state, primary) = replica.with(|core| {
            let role = core.role();
            (core.config().cloned(), core.id(), role.state, role.primary)
        });
        let (Some(config), Some(me)) = (config, me) else {
            bail!(Code::NOT_YET_INITIALIZED, "no replset config has been received");
        };
        match state {
            MemberState::Primary => bail!(Code::NOT_SECONDARY, "primaries don't sync"),
            MemberState::Arbiter => bail!(Code::NOT_SECONDARY, "arbiters don't sync"),
            _ => {}
        }
        let target = self.target;
        let with_port = if target.contains(':') { target.to_owned() } else { format!("{target}:27017") };
        let Some(member) = config.member_at(&with_port) else {
            bail!(Code::NODE_NOT_FOUND, "Could not find member \"{with_port}\" in replica set");
        };
        if member.id == me {
            bail!(Code::INVALID_OPTIONS, "I cannot sync from myself");
        }
        if member.arbiter_only {
            bail!(Code::INVALID_OPTIONS, "Cannot sync from \"{with_port}\" because it is an arbiter");
        }
        let source = primary.and_then(|id| config.member(id)).map(|member| member.host.clone());
        Ok(Reply::ok().with_fields(|doc| {
            doc.append("syncFromRequested", with_port.as_str());
            if let Some(source) = &source {
                doc.append("prevSyncTarget", &**source);
            }
        }))
    }
}
