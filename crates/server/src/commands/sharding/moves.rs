//! Requests about moves of ranges, and the statements of their transactions. What they say and are answered is `sheaf_shard::moves`'; the
//! shard's machines answer.

use std::marker::PhantomData;
use std::sync::Arc;

use sheaf_bson::{DocBuf, RawDoc};
use sheaf_errors::{Code, Result, bail};
use sheaf_storage::Interrupt;

use crate::args::Args;
use crate::command::*;
use crate::op::Operation;
use crate::reply::Reply;
use crate::sharding::moves::Moves;

/// One of them.
pub trait OfMoves {
    /// The command's name.
    const NAME: &'static str;
    /// What it is for.
    const HELP: &'static str;
    /// Does it.
    const RUN: fn(&Arc<Moves>, &str, RawDoc<'_>, Interrupt<'_>) -> Result<DocBuf>;
}

/// `{receiveRange: {_id: UUID, ...}}` and its kin.
pub struct OfMove<K>(PhantomData<K>);

impl<'a, K: OfMoves> Command<'a, Operation<'a>> for OfMove<K> {
    const NAME: &'static str = K::NAME;
    const SPEC: Spec = Spec {
        aliases: &[],
        help: K::HELP,
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
        threads: Threads::DataMayBlock,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        args.ignore_rest();
        Ok(OfMove(PhantomData))
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let Some(moves) = op.node().moves() else {
            bail!(
                Code::NO_SHARDING_ENABLED,
                "Cannot accept sharding commands if not started with --shardsvr"
            );
        };
        let stop = op.interrupter();
        let told = op.blocking(|| K::RUN(moves, K::NAME, op.body, &|| stop.check()))?;
        Ok(Reply::ok().with_fields(|out| _ = out.append_all(told.as_raw())))
    }
}
