//! `advanceStreams`: a router has events of other shards and asks whether anything comes before them here.

use std::sync::atomic::Ordering;

use sheaf_bson::{RawDoc, Timestamp, Value, doc};
use sheaf_errors::{Code, Result, bail};

use crate::args::Args;
use crate::command::*;
use crate::cursors::OpenCursors;
use crate::op::Operation;
use crate::reply::Reply;

/// `{advanceStreams: [<cursor>, ...], upTo: <time>}`: a `getMore` of theirs that waits answers when all is told that happened here up to
/// that time. Where a secondary has the cursors, the primary is asked with `write: true` that its log comes that far.
pub struct AdvanceStreams<'a> {
    cursors: RawDoc<'a>,
    up_to: Timestamp,
    write: bool,
}

impl<'a> Command<'a, Operation<'a>> for AdvanceStreams<'a> {
    const NAME: &'static str = "advanceStreams";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "asks change streams to tell what they know up to a time",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: false,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: true,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: INTERNAL,
        spread: Spread::Refused,
        counter: Counter::Command,
        threads: Threads::DataMayBlock,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        args.ignore_rest();
        let body = args.body();
        let Some(Value::Timestamp(up_to)) = body.get("upTo") else {
            bail!(Code::FAILED_TO_PARSE, "advanceStreams names a time");
        };
        let cursors = body.get(Self::NAME).and_then(|list| list.as_array()).unwrap_or(RawDoc::EMPTY);
        let write = body.get("write").is_some_and(|write| write.truthy());
        Ok(AdvanceStreams { cursors, up_to, write })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        crate::check::time_seen(op.node(), self.up_to)?;
        for id in self.cursors.values().filter_map(|id| id.as_exact_i64()) {
            if let Some(info) = op.node().cursors.info(id) {
                info.up_to.fetch_max(self.up_to.0, Ordering::AcqRel);
                info.wake.notify_one();
            }
        }
        let primary = op.node().replica().filter(|replica| replica.is_writable());
        let is_behind = op.last_applied().time <= self.up_to.0;
        if let Some(replica) = primary.filter(|_| self.write && is_behind) {
            let note = doc! { "msg": "no-op for change streams", "upTo": self.up_to };
            let stop = op.interrupter();
            op.blocking(|| replica.write_noop(&note, &|| stop.check()))?;
        }
        Ok(Reply::ok().with("isPrimary", primary.is_some()))
    }
}
