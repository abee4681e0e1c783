//! `getDiagnosticData`: the figures that MongoDB's full-time diagnostic data capture takes each second, for exporters that ask for all of them at once.

use sheaf_auth::Target;
use sheaf_bson::Value;
use sheaf_errors::Result;
use sheaf_exec::ddl::stats;
use sheaf_front::access::Rights;

use super::server_status::ServerStatus;
use crate::args::Args;
use crate::command::*;
use crate::commands::repl::ReplSetGetStatus;
use crate::op::Operation;
use crate::reply::Reply;

const OPLOG: &str = "local.oplog.rs";

/// `{getDiagnosticData: 1}`: taken when it is asked for. Of a member of a set also `replSetGetStatus` and the oplog's `collStats`; figures of the operating system are
/// not among them.
pub struct GetDiagnosticData;

/// What it shows must be allowed one by one.
fn judge(_: Asked<'_>, rights: &Rights) -> bool {
    rights.may(Target::Cluster, &[Action::ServerStatus, Action::ReplSetGetStatus])
        && rights.may(Target::Collection("local", "oplog.rs"), &[Action::CollStats])
}

impl<'a> Command<'a, Operation<'a>> for GetDiagnosticData {
    const NAME: &'static str = "getDiagnosticData";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "figures of this moment, as diagnostic data have them",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: true,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::ByCommand(
            "serverStatus and replSetGetStatus on the cluster, collStats on local.oplog.rs",
            judge,
        ),
        spread: Spread::Refused,
        counter: Counter::Command,
        threads: Threads::Data,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        args.ignore_rest();
        Ok(GetDiagnosticData)
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let now = || Value::DateTime(op.node().clock.now_millis());
        let begun = now();
        let mut parts = vec![("serverStatus", begun, ServerStatus::whole().run(op)?, now())];
        if op.node().replica().is_some() {
            let begun = now();
            // Before it has a configuration there is nothing to tell.
            if let Ok(status) = ReplSetGetStatus.run(op) {
                parts.push(("replSetGetStatus", begun, status, now()));
            }
            let begun = now();
            let catalog = op.catalog();
            let oplog = catalog.collection(OPLOG).map(|collection| &**collection);
            let stats = Reply::ok()
                .with("ns", OPLOG)
                .with_fields(|doc| stats::write_storage_stats(doc, op.engine(), oplog, 0, 1));
            parts.push(("local.oplog.rs.stats", begun, stats, now()));
        }
        Ok(Reply::ok().with_document("data", |data| {
            data.append("start", begun);
            for (name, begun, part, ended) in &parts {
                let mut doc = data.document(name);
                doc.append("start", *begun).append_raw_elements(part.elements()).append("end", *ended);
            }
            data.append("end", now());
        }))
    }
}
