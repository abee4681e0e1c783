//! What routers and shards ask each other's primaries.

mod hold;
mod internal;
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

use hold::HoldSnapshots;
use internal::{ByConductor, ByRouter};
use transactions::OfTransaction;

/// The commands of this group.
pub static COMMANDS: &[Entry<RunOnMongod>] = &[
    registered!(HoldSnapshots),
    registered!(OfTransaction<asked::Abandon>),
    registered!(OfTransaction<asked::Ask>),
    registered!(OfTransaction<asked::CommitAlone>),
    registered!(OfTransaction<asked::Confirm>),
    registered!(OfTransaction<asked::Decide>),
    registered!(OfTransaction<asked::Prepare>),
    registered!(OfTransaction<asked::Recover>),
    registered!(OfTransaction<asked::Settle>),
    registered!(ByConductor<internal::Block>),
    registered!(ByConductor<internal::Close>),
    registered!(ByConductor<internal::DropDatabase>),
    registered!(ByConductor<internal::Drop>),
    registered!(ByConductor<internal::Check>),
    registered!(ByConductor<internal::Clean>),
    registered!(ByConductor<internal::Documents>),
    registered!(ByConductor<internal::Hashes>),
    registered!(ByConductor<internal::Receive>),
    registered!(ByConductor<internal::Set>),
    registered!(ByConductor<internal::Figures>),
    registered!(ByConductor<internal::Sample>),
    registered!(ByConductor<internal::ListDatabase>),
    registered!(ByConductor<internal::LeaveDatabase>),
    registered!(ByConductor<internal::ArriveDatabase>),
    registered!(ByConductor<internal::SettleDatabase>),
    registered!(ByConductor<internal::TakeCollection>),
    registered!(ByConductor<internal::Records>),
    registered!(ByConductor<internal::Sync>),
    registered!(ByConductor<internal::Describe>),
    registered!(ByConductor<internal::Median>),
    registered!(ByConductor<internal::Rename>),
    registered!(ByConductor<internal::Open>),
    registered!(ByConductor<internal::Place>),
    registered!(ByRouter<internal::AddShardToZone>),
    registered!(ByRouter<internal::BalancerStart>),
    registered!(ByRouter<internal::BalancerStatus>),
    registered!(ByRouter<internal::BalancerStop>),
    registered!(ByRouter<internal::CollectionStatus>),
    registered!(ByRouter<internal::ClearJumboFlag>),
    registered!(ByRouter<internal::ConfigureBalancing>),
    registered!(ByRouter<internal::MergeAllChunks>),
    registered!(ByRouter<internal::MergeChunks>),
    registered!(ByRouter<internal::CommitRemoval>),
    registered!(ByRouter<internal::DrainingStatus>),
    registered!(ByRouter<internal::RemoveShard>),
    registered!(ByRouter<internal::StartDraining>),
    registered!(ByRouter<internal::StopDraining>),
    registered!(ByRouter<internal::RemoveShardFromZone>),
    registered!(ByRouter<internal::CheckConsistency>),
    registered!(ByRouter<internal::MoveChunk>),
    registered!(ByRouter<internal::MovePrimary>),
    registered!(ByRouter<internal::MoveRange>),
    registered!(ByRouter<internal::RefineShardKey>),
    registered!(ByRouter<internal::RenameACollection>),
    registered!(ByRouter<internal::Split>),
    registered!(ByRouter<internal::UpdateZoneKeyRange>),
    registered!(ByRouter<internal::DropACollection>),
    registered!(ByRouter<internal::CreateADatabase>),
    registered!(ByRouter<internal::DropADatabase>),
    registered!(ByRouter<internal::ShardACollection>),
];
