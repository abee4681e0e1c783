//! What routers and shards ask each other's primaries.

mod transactions;

use sheaf_shard::message::name;

use crate::command::{Entry, RunOnMongod};
use crate::op::Operation;
use crate::registered;

/// Commands about transactions over several shards, each with what it is for.
mod asked {
    use super::{name, transactions::Asked};

    macro_rules! asked {
        ($($kind:ident = $name:expr, $help:literal;)+) => {
            $(
                pub struct $kind;

                impl Asked for $kind {
                    const NAME: &'static str = $name;
                    const HELP: &'static str = $help;
                }
            )+
        };
    }

    asked! {
        Prepare = name::PREPARE, "prepares a transaction that writes on several shards";
        CommitAlone = name::COMMIT_ALONE, "commits a transaction that writes on this shard only";
        Confirm = name::CONFIRM, "vouches for what a transaction has read";
        Decide = name::DECIDE, "tells how a transaction over several shards has ended";
        Abandon = name::ABANDON, "gives up a transaction that was not prepared";
        Ask = name::ASK, "tells what has become of a transaction; what has not prepared will not any more";
        Recover = name::RECOVER, "tells how a transaction has ended, for a client's recovery token";
        Settle = name::SETTLE, "tells which commits all shards have";
    }
}

use transactions::OfTransaction;

/// The commands of this group.
pub static COMMANDS: &[Entry<RunOnMongod>] = &[
    registered!(OfTransaction<asked::Abandon>),
    registered!(OfTransaction<asked::Ask>),
    registered!(OfTransaction<asked::CommitAlone>),
    registered!(OfTransaction<asked::Confirm>),
    registered!(OfTransaction<asked::Decide>),
    registered!(OfTransaction<asked::Prepare>),
    registered!(OfTransaction<asked::Recover>),
    registered!(OfTransaction<asked::Settle>),
];
