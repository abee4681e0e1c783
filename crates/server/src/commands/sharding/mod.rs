//! What routers and shards ask each other's primaries.

mod decisions;
mod hold;
mod internal;
mod moves;
mod parameters;
mod state;
mod streams;
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

/// Commands about moves of ranges, each with what it is for.
mod moved {
    use std::sync::Arc;

    use sheaf_bson::{DocBuf, RawDoc};
    use sheaf_errors::Result;
    use sheaf_shard::moves::name;
    use sheaf_storage::Interrupt;

    use super::moves::OfMoves;
    use crate::sharding::moves::Moves;

    macro_rules! of_moves {
        ($($kind:ident = $name:expr, $run:expr, $help:literal;)+) => {
            $(
                pub struct $kind;

                impl OfMoves for $kind {
                    const NAME: &'static str = $name;
                    const HELP: &'static str = $help;
                    const RUN: fn(&Arc<Moves>, &str, RawDoc<'_>, Interrupt<'_>) -> Result<DocBuf> = $run;
                }
            )+
        };
    }

    of_moves! {
        Receive = name::RECEIVE, Moves::request, "receives a range, or goes on with it";
        Finish = name::FINISH, Moves::request, "receives the rest of a range, which its donor closes";
        GiveUp = name::GIVE_UP, Moves::request, "does not receive a range any more";
        Donate = name::DONATE, Moves::request, "notes what changes in a range from now on";
        Copy = name::COPY, Moves::request, "shows documents of a range that is moved";
        Changes = name::CHANGES, Moves::request, "shows what has changed in a range that is moved";
        Leave = name::LEAVE, Moves::statement, "gives a range away, in a transaction";
        Own = name::OWN, Moves::statement, "takes a range, in a transaction";
    }
}

use decisions::DecideTransactions;
use hold::HoldSnapshots;
use internal::{ByConductor, ByRouter};
use moves::OfMove;
pub use parameters::SET_PARAMETERS;
use streams::AdvanceStreams;
use transactions::OfTransaction;

/// The commands of this group.
pub static COMMANDS: &[Entry<RunOnMongod>] = &[
    registered!(AdvanceStreams),
    registered!(DecideTransactions),
    registered!(HoldSnapshots),
    registered!(parameters::SetParameters<'_>),
    registered!(state::CleanupOrphaned<'_>),
    registered!(state::GetShardMap),
    registered!(state::GetShardVersion<'_>),
    registered!(state::ShardingState),
    registered!(OfTransaction<asked::Abandon>),
    registered!(OfTransaction<asked::Ask>),
    registered!(OfTransaction<asked::CommitAlone>),
    registered!(OfTransaction<asked::Confirm>),
    registered!(OfTransaction<asked::Decide>),
    registered!(OfTransaction<asked::Prepare>),
    registered!(OfTransaction<asked::Recover>),
    registered!(OfTransaction<asked::Settle>),
    registered!(OfMove<moved::Receive>),
    registered!(OfMove<moved::Finish>),
    registered!(OfMove<moved::GiveUp>),
    registered!(OfMove<moved::Donate>),
    registered!(OfMove<moved::Copy>),
    registered!(OfMove<moved::Changes>),
    registered!(OfMove<moved::Leave>),
    registered!(OfMove<moved::Own>),
    registered!(ByConductor<internal::MakeRoom>),
    registered!(ByConductor<internal::Block>),
    registered!(ByConductor<internal::Close>),
    registered!(ByConductor<internal::Notify>),
    registered!(ByConductor<internal::DropDatabase>),
    registered!(ByConductor<internal::Drop>),
    registered!(ByConductor<internal::Check>),
    registered!(ByConductor<internal::Documents>),
    registered!(ByConductor<internal::Hashes>),
    registered!(ByConductor<internal::Figures>),
    registered!(ByConductor<internal::Sample>),
    registered!(ByConductor<internal::ListDatabase>),
    registered!(ByConductor<internal::LeaveDatabase>),
    registered!(ByConductor<internal::ArriveDatabase>),
    registered!(ByConductor<internal::SettleDatabase>),
    registered!(ByConductor<internal::TakeCollection>),
    registered!(ByConductor<internal::Records>),
    registered!(ByConductor<internal::Statements>),
    registered!(ByConductor<internal::TakeStatements>),
    registered!(ByConductor<internal::Sync>),
    registered!(ByConductor<internal::Describe>),
    registered!(ByConductor<internal::PrepareResharding>),
    registered!(ByConductor<internal::FetchResharded>),
    registered!(ByConductor<internal::BeginNotes>),
    registered!(ByConductor<internal::Noted>),
    registered!(ByConductor<internal::EndNotes>),
    registered!(ByConductor<internal::Shut>),
    registered!(ByConductor<internal::SampleFor>),
    registered!(ByConductor<internal::Swap>),
    registered!(ByConductor<internal::Retire>),
    registered!(ByConductor<internal::GiveUpResharding>),
    registered!(ByConductor<internal::SetSpans>),
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
    registered!(ByRouter<internal::SetAllowMigrations>),
    registered!(ByRouter<internal::MergeChunks>),
    registered!(ByRouter<internal::CommitRemoval>),
    registered!(ByRouter<internal::DrainingStatus>),
    registered!(ByRouter<internal::RemoveShard>),
    registered!(ByRouter<internal::StartDraining>),
    registered!(ByRouter<internal::StopDraining>),
    registered!(ByRouter<internal::RemoveShardFromZone>),
    registered!(ByRouter<internal::CheckConsistency>),
    registered!(ByRouter<internal::MoveChunk>),
    registered!(ByRouter<internal::MoveCollection>),
    registered!(ByRouter<internal::ReshardCollection>),
    registered!(ByRouter<internal::UnshardCollection>),
    registered!(ByRouter<internal::AbortMoveCollection>),
    registered!(ByRouter<internal::AbortUnshardCollection>),
    registered!(ByRouter<internal::AbortReshardCollection>),
    registered!(ByRouter<internal::CommitReshardCollection>),
    registered!(ByRouter<internal::CleanupReshardCollection>),
    registered!(ByRouter<internal::MovePrimary>),
    registered!(ByRouter<internal::MoveRange>),
    registered!(ByRouter<internal::ChangeSpans>),
    registered!(ByRouter<internal::RefineShardKey>),
    registered!(ByRouter<internal::RenameACollection>),
    registered!(ByRouter<internal::Split>),
    registered!(ByRouter<internal::TransitionFrom>),
    registered!(ByRouter<internal::TransitionTo>),
    registered!(ByRouter<internal::UpdateZoneKeyRange>),
    registered!(ByRouter<internal::DropACollection>),
    registered!(ByRouter<internal::CreateADatabase>),
    registered!(ByRouter<internal::DropADatabase>),
    registered!(ByRouter<internal::ShardACollection>),
];
