//! `connPoolStats`.

use sheaf_errors::Result;

use crate::args::Args;
use crate::command::*;
use crate::reply::Reply;
use crate::request::Request;

/// `{connPoolStats: 1}`.
pub struct ConnPoolStats;

impl<'a> Command<'a, Request<'a>> for ConnPoolStats {
    const NAME: &'static str = "connPoolStats";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "outgoing connections",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: false,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Cluster, &[Action::ConnPoolStats])]),
        spread: Spread::Router,
        counter: Counter::Command,
        threads: Threads::Data,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        // One of the commands of which MongoDB does not check the fields.
        args.ignore_rest();
        Ok(ConnPoolStats)
    }

    fn run(self, _: &Request<'a>) -> Result<Reply> {
        Ok(Reply::ok().with_fields(|doc| {
            for name in ["numClientConnections", "numAScopedConnections", "totalInUse", "totalAvailable"] {
                doc.append(name, 0);
            }
            for name in ["totalLeased", "totalCreated", "totalRefreshing", "totalRefreshed"] {
                doc.append(name, 0);
            }
            let _ = doc.document("pools");
            let _ = doc.document("hosts");
            let _ = doc.document("replicaSets");
        }))
    }
}
