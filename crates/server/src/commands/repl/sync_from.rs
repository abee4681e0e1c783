//! `replSetSyncFrom`.

use sheaf_errors::{Code, Result, bail};
use sheaf_repl::{MemberState, Positions};

use super::membership::replica;
use crate::args::Args;
use crate::command::*;
use crate::op::Operation;
use crate::reply::Reply;

/// A member that is so far behind is a poor source.
const LAG_SECS: u64 = 10;

/// `{replSetSyncFrom: "host:port"}`: accepted, without effect. The primary feeds every member by itself.
pub struct ReplSetSyncFrom<'a> {
    target: &'a str,
}

impl<'a> Command<'a, Operation<'a>> for ReplSetSyncFrom<'a> {
    const NAME: &'static str = "replSetSyncFrom";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "asks for another member to sync from",
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
        let target = args.own_value().as_str().unwrap_or_default();
        args.ignore_rest();
        Ok(ReplSetSyncFrom { target })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let (config, status) = replica(op)?.with(|core| (core.config().cloned(), core.status()));
        if self.target.is_empty() {
            bail!(Code::FAILED_TO_PARSE, "Empty host component parsing HostAndPort from \"\"");
        }
        let own = config.as_ref().zip(status.me).and_then(|(config, me)| config.member(me));
        let (Some(config), Some(own)) = (&config, own) else {
            bail!(Code::NOT_SECONDARY, "Removed and uninitialized nodes do not sync");
        };
        if own.arbiter_only {
            bail!(Code::NOT_SECONDARY, "arbiters don't sync");
        }
        if status.state == MemberState::Primary {
            bail!(Code::NOT_SECONDARY, "primaries don't sync");
        }
        let target =
            if self.target.contains(':') { self.target.to_owned() } else { format!("{}:27017", self.target) };
        let Some(member) = config.member_at(&target) else {
            bail!(Code::NODE_NOT_FOUND, "Could not find member \"{target}\" in replica set");
        };
        if member.id == own.id {
            bail!(Code::INVALID_OPTIONS, "I cannot sync from myself");
        }
        if member.arbiter_only {
            bail!(Code::INVALID_OPTIONS, "Cannot sync from \"{target}\" because it is an arbiter");
        }
        if own.build_indexes && !member.build_indexes {
            bail!(Code::INVALID_OPTIONS, "Cannot sync from \"{target}\" because it does not build indexes");
        }
        let peer = status.peers.iter().find(|peer| peer.id == member.id);
        let Some(peer) = peer.filter(|peer| peer.up) else {
            bail!(Code::HOST_UNREACHABLE, "I cannot reach the requested member: {target}");
        };
        let applied_secs = |positions: &Positions| positions.times[1] >> 32;
        let lags = applied_secs(&peer.positions) + LAG_SECS < applied_secs(&status.positions);
        let source = status.primary.and_then(|id| config.member(id));
        Ok(Reply::ok().with_fields(|doc| {
            doc.append("syncFromRequested", target.as_str());
            if lags {
                let text = format!("requested member \"{target}\" is more than {LAG_SECS} seconds behind us");
                doc.append("warning", text.as_str());
            }
            if let Some(source) = source {
                doc.append("prevSyncTarget", &*source.host);
            }
        }))
    }
}
