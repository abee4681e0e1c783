//! `decideTransactions`: a router tells of several commits at once, or asks whether a majority has them.

use sheaf_errors::{Code, Result, bail};
use sheaf_shard::message::name;
use sheaf_shard::{ClusterTime, Decisions, Request, TransactionId};

use super::transactions::session_of;
use crate::args::Args;
use crate::check::time_seen;
use crate::command::*;
use crate::op::Operation;
use crate::reply::Reply;

/// So many are applied by a thread that has other duties.
const FEW: usize = 8;

/// `{decideTransactions: [{lsid: {...}, txnNumber: 3, commitTimestamp: <time>}, ...], applied: true}`: the answer says which of these
/// commits are applied here; without `applied`, which a majority has.
pub struct DecideTransactions(Decisions);

impl<'a> Command<'a, Operation<'a>> for DecideTransactions {
    const NAME: &'static str = name::DECIDE_SEVERAL;
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "tells how transactions over several shards have ended",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Never,
        maintenance: false,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: true,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: INTERNAL,
        spread: Spread::Refused,
        counter: Counter::Command,
        threads: Threads::Data,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        args.ignore_rest();
        let decisions = Decisions::parse(args.body())?;
        decisions.all.iter().try_for_each(|(id, _)| session_of(id).map(|_| ()))?;
        Ok(DecideTransactions(decisions))
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let Some(sharding) = op.node().sharding() else {
            bail!(
                Code::SHARDING_STATE_NOT_INITIALIZED,
                "Cannot accept sharding commands if not started with --shardsvr"
            );
        };
        let Decisions { all, applied } = self.0;
        if let Some(newest) = all.iter().map(|(_, at)| *at).max() {
            // What is stamped from now on is later.
            time_seen(op.node(), newest.into())?;
        }
        let stop = op.interrupter();
        let go_on = || stop.check();
        let ask = |(id, at): &(TransactionId, ClusterTime)| {
            sharding.request(Request::Commit { id: id.clone(), at: *at }, None, &go_on)
        };
        let ask_all = || all.iter().map(ask).collect::<Result<Vec<_>>>();
        // Each is applied in there: many together take long.
        let asked = if all.len() > FEW { op.blocking(ask_all) } else { ask_all() }?;
        let has: Vec<bool> = if applied {
            all.iter().map(|(id, at)| sharding.has_committed(id, *at)).collect()
        } else {
            op.blocking(|| {
                let waited = asked.into_iter().zip(&all).map(|(asked, (_, at))| {
                    // Where there is no answer, the shards find out by themselves.
                    let answer = asked.and_then(|asked| asked.wait(&go_on).ok());
                    answer == Some(sheaf_shard::Answer::Committed(*at))
                });
                waited.collect()
            })
        };
        let mut reply = Reply::ok();
        reply.fill(|out| Decisions::append_answer(out, &has));
        Ok(reply)
    }
}
