//! `connPoolStats` and `lockInfo`: what a node without outgoing connections and with record locks
//! of its own kind can say.

use sheaf_errors::Result;

use crate::args::Args;
use crate::command::{Command, Spec};
use crate::op::Operation;
use crate::reply::Reply;

/// `{connPoolStats: 1}`.
pub struct ConnPoolStats;

impl<'a> Command<'a, Operation<'a>> for ConnPoolStats {
    const NAME: &'static str = "connPoolStats";
    const SPEC: Spec = Spec::plain().help("outgoing connections");

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        // One of the commands of which MongoDB does not check the fields.
        args.ignore_rest();
        Ok(ConnPoolStats)
    }

    fn run(self, _: &Operation<'a>) -> Result<Reply> {
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

/// `{lockInfo: 1}`.
pub struct LockInfo;

impl<'a> Command<'a, Operation<'a>> for LockInfo {
    const NAME: &'static str = "lockInfo";
    const SPEC: Spec = Spec::plain().admin_only().help("locks held and waited for");

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        args.ignore(&["includeStorageEngineDump"]);
        Ok(LockInfo)
    }

    fn run(self, _: &Operation<'a>) -> Result<Reply> {
        // Locks here are on records and held for microseconds: there are no hierarchical ones to list.
        Ok(Reply::ok().with_array("lockInfo", |_| {}))
    }
}
