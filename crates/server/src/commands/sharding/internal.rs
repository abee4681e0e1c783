//! Internal commands about sharded collections: what routers ask the conductor, and what that has shards do.

use std::marker::PhantomData;
use std::sync::Arc;

use sheaf_bson::{DocBuf, RawDoc};
use sheaf_errors::{Code, Result, bail};
use sheaf_storage::{Interrupt, Uuid};

use crate::args::Args;
use crate::audited::Conducted;
use crate::command::*;
use crate::node::Node;
use crate::op::Operation;
use crate::reply::Reply;
use crate::sharding::conductor::{Conductor, ShardCollection};
use crate::sharding::figures;
use crate::sharding::homes;
use crate::sharding::moving;
use crate::sharding::participants::{self, name};
use crate::sharding::resharding;
use crate::sharding::room;
use crate::sharding::statements;

/// What is true of all of them.
pub(super) const fn spec(help: &'static str) -> Spec {
    Spec {
        aliases: &[],
        help,
        access: Access::Write,
        transaction: Transaction::Refused,
        secondary: Secondary::Never,
        maintenance: false,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: true,
        test_only: false,
        concerns: Concerns::WRITE,
        privileges: INTERNAL,
        spread: Spread::Refused,
        counter: Counter::Command,
        threads: Threads::DataMayBlock,
        ends_with_client: false,
    }
}

/// A command that the conductor sends to shards.
pub trait OnShard {
    /// The command's name.
    const NAME: &'static str;
    /// What it is for.
    const HELP: &'static str;
    /// Does it.
    const RUN: fn(&Arc<Node>, RawDoc<'_>, Interrupt<'_>) -> Result<DocBuf>;
}

/// [`OnShard`] as a command.
pub struct ByConductor<K>(PhantomData<K>);

impl<'a, K: OnShard> Command<'a, Operation<'a>> for ByConductor<K> {
    const NAME: &'static str = K::NAME;
    const SPEC: Spec = spec(K::HELP);

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        args.ignore_rest();
        Ok(ByConductor(PhantomData))
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let stop = op.interrupter();
        let audited = Conducted::of(op)?;
        let ran = op.blocking(|| K::RUN(op.node(), op.body, &|| stop.check()));
        if let Some(audited) = audited {
            audited.done();
        }
        let told = ran?;
        // Whether it was done now or before: what waits for a majority waits for all of it.
        op.note_newest_commit();
        Ok(Reply::ok().with_fields(|out| _ = out.append_all(told.as_raw())))
    }
}

/// A command of the conductor.
pub trait OnConfig {
    /// The command's name.
    const NAME: &'static str;
    /// The command of routers that it stands behind: errors name that.
    const OF: &'static str;
    /// What it is for.
    const HELP: &'static str;
    /// Does it.
    const RUN: fn(&Conductor, &mut Args<'_>, Interrupt<'_>) -> Result<DocBuf>;
}

/// [`OnConfig`] as a command.
pub struct ByRouter<K>(PhantomData<K>);

impl<'a, K: OnConfig> Command<'a, Operation<'a>> for ByRouter<K> {
    const NAME: &'static str = K::NAME;
    const SPEC: Spec = spec(K::HELP);

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        args.ignore_rest();
        Ok(ByRouter(PhantomData))
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let Some(conductor) = op.node().conductor() else {
            bail!(Code::ILLEGAL_OPERATION, "{} can only be run on config servers (--configsvr)", K::NAME);
        };
        let mut args = Args::of_document(K::OF, op.body)?;
        let stop = op.interrupter();
        let told = op.blocking(|| K::RUN(conductor, &mut args, &|| stop.check()))?;
        Ok(Reply::ok().with_fields(|out| _ = out.append_all(told.as_raw())))
    }
}

macro_rules! on_shards {
    ($($kind:ident = $name:expr, $run:expr, $help:literal;)+) => {
        $(
            pub struct $kind;

            impl OnShard for $kind {
                const NAME: &'static str = $name;
                const HELP: &'static str = $help;
                const RUN: fn(&Arc<Node>, RawDoc<'_>, Interrupt<'_>) -> Result<DocBuf> = $run;
            }
        )+
    };
}

macro_rules! on_config {
    ($($kind:ident = $name:literal, $of:literal, $run:expr, $help:literal;)+) => {
        $(
            pub struct $kind;

            impl OnConfig for $kind {
                const NAME: &'static str = $name;
                const OF: &'static str = $of;
                const HELP: &'static str = $help;
                const RUN: fn(&Conductor, &mut Args<'_>, Interrupt<'_>) -> Result<DocBuf> = $run;
            }
        )+
    };
}

on_shards! {
    Close = name::CLOSE, participants::close, "closes a collection that is to be sharded, and checks it";
    Place = name::PLACE, participants::place, "makes a sharded collection, and tells what the shard owns of it";
    Open = name::OPEN, participants::open, "opens a collection that could not be sharded";
    Block = name::BLOCK, participants::block, "closes a sharded collection";
    Check = name::CHECK, participants::check, "checks that a collection can have a shard key";
    Describe = name::DESCRIBE, participants::describe, "tells what a shard has of a collection";
    Rename = name::RENAME, participants::rename, "renames a sharded collection";
    Documents = name::DOCUMENTS, moving::documents, "shows documents of a range that is moved";
    Hashes = name::HASHES, moving::hashes, "shows hashes of a range that is moved";
    Sync = name::SYNC, moving::sync, "receives a range";
    Figures = name::FIGURES, figures::figures, "tells what is here of sharded collections, and what is being written";
    Sample = name::SAMPLE, figures::sample, "shows keys of a collection, evenly spaced";
    ListDatabase = name::LIST_DATABASE, homes::list, "tells what of a database is not sharded";
    LeaveDatabase = name::LEAVE_DATABASE, homes::leave, "closes a database that moves to another shard";
    ArriveDatabase = name::ARRIVE_DATABASE, homes::arrive, "hides a database that comes from another shard";
    SettleDatabase = name::SETTLE_DATABASE, homes::settle, "opens a database that has come, or drops one that has left";
    TakeCollection = name::TAKE_COLLECTION, homes::take, "makes a collection what it is on another shard";
    Records = name::RECORDS, homes::records, "shows the documents of a collection in its order";
    Statements = name::STATEMENTS, statements::tell, "tells what is on record of retryable statements about a collection";
    TakeStatements = name::TAKE_STATEMENTS, statements::take, "takes another shard's records of retryable statements";
    MakeRoom = name::MAKE_ROOM, room::make_room, "makes the collection of a range that is about to be received";
    PrepareResharding = name::PREPARE, resharding::prepare, "makes the collection that takes another one's place";
    FetchResharded = name::FETCH, resharding::fetch, "takes documents for a collection that takes another one's place";
    BeginNotes = name::BEGIN_NOTES, resharding::begin_notes, "notes what changes in a collection";
    Noted = name::NOTED, resharding::changes, "tells what has changed in a collection";
    EndNotes = name::END_NOTES, resharding::end_notes, "notes no more what changes in a collection";
    Shut = name::SHUT, resharding::shut, "closes a collection whose place another one takes";
    SampleFor = name::SAMPLE_FOR, resharding::sample, "shows keys that documents would have by another shard key";
    Swap = name::SWAP, resharding::swap, "puts a collection in the place of another one";
    Retire = name::RETIRE, resharding::retire, "drops a collection whose place another one has taken";
    GiveUpResharding = name::GIVE_UP, resharding::give_up, "drops the collection that was to take another one's place";
    SetSpans = name::SET_SPANS, participants::set_spans, "changes what buckets span";
    Median = name::MEDIAN, participants::median, "finds where a chunk can be cut";
    Notify = name::NOTIFY, participants::notify, "tells change streams of a collection";
    DropDatabase = name::DROP_DATABASE, participants::drop_database, "drops a database";
    Drop = name::DROP, participants::drop, "drops a sharded collection";
}

on_config! {
    AddShardToZone = "_configsvrAddShardToZone", "addShardToZone", Conductor::add_shard_to_zone, "adds a shard to a zone";
    BalancerStart = "_configsvrBalancerStart", "balancerStart", Conductor::balancer_start, "has chunks moved by themselves";
    BalancerStatus = "_configsvrBalancerStatus", "balancerStatus", Conductor::balancer_status, "tells whether chunks are moved";
    BalancerStop = "_configsvrBalancerStop", "balancerStop", Conductor::balancer_stop, "has no chunks moved by themselves";
    CollectionStatus = "_configsvrBalancerCollectionStatus", "balancerCollectionStatus", Conductor::collection_status,
        "tells whether a collection is where it belongs";
    ClearJumboFlag = "_configsvrClearJumboFlag", "clearJumboFlag", Conductor::clear_jumbo_flag, "takes a chunk's jumbo flag away";
    ConfigureBalancing = "_configsvrConfigureCollectionBalancing", "configureCollectionBalancing",
        Conductor::configure_balancing, "changes how a collection is balanced";
    SetAllowMigrations = "_configsvrSetAllowMigrations", "setAllowMigrations", Conductor::set_allow_migrations,
        "says whether a collection's ranges may move";
    MergeAllChunks = "_configsvrMergeAllChunksOnShard", "mergeAllChunksOnShard", Conductor::merge_all_chunks,
        "merges a shard's neighbouring chunks";
    MergeChunks = "_configsvrMergeChunks", "mergeChunks", Conductor::merge_chunks, "merges neighbouring chunks";
    CommitRemoval = "_configsvrCommitShardRemoval", "commitShardRemoval", Conductor::commit_removal, "removes a drained shard";
    DrainingStatus = "_configsvrShardDrainingStatus", "shardDrainingStatus", Conductor::draining_status,
        "tells how far a shard is drained";
    RemoveShard = "_configsvrRemoveShard", "removeShard", Conductor::remove_shard, "drains a shard, and removes it";
    StartDraining = "_configsvrStartShardDraining", "startShardDraining", Conductor::start_draining, "drains a shard";
    StopDraining = "_configsvrStopShardDraining", "stopShardDraining", Conductor::stop_draining,
        "drains a shard no more";
    RemoveShardFromZone = "_configsvrRemoveShardFromZone", "removeShardFromZone", Conductor::remove_shard_from_zone,
        "takes a shard out of a zone";
    CheckConsistency = "_configsvrCheckMetadataConsistency", "checkMetadataConsistency", Conductor::check_consistency,
        "compares the directory with the shards";
    MoveChunk = "_configsvrMoveChunk", "moveChunk", Conductor::move_chunk, "moves a chunk to another shard";
    MoveCollection = "_configsvrMoveCollection", "moveCollection", Conductor::move_collection,
        "moves a collection that is not sharded";
    ReshardCollection = "_configsvrReshardCollection", "reshardCollection", Conductor::reshard_collection,
        "gives a collection another shard key";
    UnshardCollection = "_configsvrUnshardCollection", "unshardCollection", Conductor::unshard_collection,
        "puts a sharded collection on one shard";
    AbortMoveCollection = "_configsvrAbortMoveCollection", "abortMoveCollection", Conductor::abort_move_collection,
        "gives the move of a collection up";
    AbortUnshardCollection = "_configsvrAbortUnshardCollection", "abortUnshardCollection", Conductor::abort_unshard,
        "has a collection stay sharded";
    AbortReshardCollection = "_configsvrAbortReshardCollection", "abortReshardCollection", Conductor::abort_reshard,
        "gives the change of a shard key up";
    CommitReshardCollection = "_configsvrCommitReshardCollection", "commitReshardCollection", Conductor::commit_reshard,
        "brings the change of a shard key to its end";
    CleanupReshardCollection = "_configsvrCleanupReshardCollection", "cleanupReshardCollection", Conductor::cleanup_reshard,
        "waits until nothing is left of the change of a shard key";
    MovePrimary = "_configsvrMovePrimary", "movePrimary", Conductor::move_primary, "moves a database to another shard";
    MoveRange = "_configsvrMoveRange", "moveRange", Conductor::move_range, "moves a range to another shard";
    RefineShardKey = "_configsvrRefineCollectionShardKey", "refineCollectionShardKey", Conductor::refine_shard_key,
        "adds fields to a shard key";
    ChangeSpans = "_configsvrCollMod", "collMod", Conductor::change_spans, "changes what the buckets of a sharded collection span";
    RenameACollection = "_configsvrRenameCollection", "renameCollection", Conductor::rename_collection,
        "renames a sharded collection";
    TransitionFrom = "_configsvrTransitionFromDedicatedConfigServer", "transitionFromDedicatedConfigServer",
        Conductor::transition_from_dedicated, "makes the config servers a shard";
    TransitionTo = "_configsvrTransitionToDedicatedConfigServer", "transitionToDedicatedConfigServer",
        Conductor::transition_to_dedicated, "drains the config servers, and has them be no shard any more";
    Split = "_configsvrSplitChunk", "split", Conductor::split, "cuts a chunk in two";
    UpdateZoneKeyRange = "_configsvrUpdateZoneKeyRange", "updateZoneKeyRange", Conductor::update_zone_key_range,
        "assigns a range of keys to a zone";
    DropACollection = "_configsvrDropCollection", "drop", |conductor, args, go_on| {
        let namespace = named(args)?;
        let uuid: Option<Uuid> = args.optional("collectionUUID")?;
        conductor.drop_collection(&namespace, uuid.map(|uuid| *uuid.as_bytes()), go_on)
    }, "drops a sharded collection";
    CreateADatabase = "_configsvrCreateDatabase", "createDatabase", |conductor, args, go_on| {
        let (db, wanted) = (named(args)?, args.optional::<&str>("primaryShardId")?);
        conductor.create_database(&db, wanted, go_on)
    }, "makes a database of the cluster";
    DropADatabase = "_configsvrDropDatabase", "dropDatabase", |conductor, args, go_on| {
        let db = named(args)?;
        conductor.drop_database(&db, go_on)
    }, "drops a database of the cluster";
    ShardACollection = "_configsvrShardCollection", "shardCollection", |conductor, args, go_on| {
        let asked = ShardCollection::parse(args)?;
        args.finish()?;
        conductor.shard_collection(&asked, go_on)
    }, "makes a collection sharded";
}

/// What the command's own field names.
fn named(args: &mut Args<'_>) -> Result<String> {
    match args.own_value() {
        sheaf_bson::Value::String(name) => Ok(name.to_owned()),
        _ => bail!(Code::FAILED_TO_PARSE, "an internal command names nothing"),
    }
}
