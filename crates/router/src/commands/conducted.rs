//! Commands about sharded collections that the conductor on the config servers does: the router makes what they need, and hands them on.

use std::marker::PhantomData;

use sheaf_bson::{DocBuf, RawDoc, Value, doc};
use sheaf_errors::{Code, Result};
use sheaf_front::args::Args;
use sheaf_front::audit::noted::note;
use sheaf_front::command::*;
use sheaf_front::generic::is_generic;
use sheaf_front::reply::Reply;
use sheaf_timeseries::buckets_namespace;

use super::shards;
use crate::op::Operation;
use sheaf_cluster::for_client;

/// A command that the conductor does.
pub trait Asked {
    /// Its name.
    const NAME: &'static str;
    /// The same in lower case, as older clients say it.
    const ALIASES: &'static [&'static str];
    /// What it is for.
    const HELP: &'static str;
    /// The conductor's name for it.
    const INTERNAL: &'static str;
}

/// [`Asked`] as a command.
pub struct Conducted<K>(PhantomData<K>);

impl<'a, K: Asked> Command<'a, Operation<'a>> for Conducted<K> {
    const NAME: &'static str = K::NAME;
    const SPEC: Spec = shards::spec(K::ALIASES, K::HELP, Access::Write);

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        // The conductor looks at them.
        args.ignore_rest();
        Ok(Conducted(PhantomData))
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let body = op.body();
        op.blocking(|| {
            let own = body.iter().next().map_or(Value::Missing, |field| field.value());
            ask(op, K::INTERNAL, own, body)
        })
    }
}

/// Has the conductor do something, for as long as this takes: the internal command of this name about `own`, with the arguments of
/// `body`. Gives its reply for the client.
///
/// Errors: those of the conductor, as a client may see them.
pub fn ask(op: &Operation<'_>, internal: &str, own: Value<'_>, body: RawDoc<'_>) -> Result<Reply> {
    let told = tell(op, internal, own, body)?;
    Ok(Reply::ok().with_fields(|out| {
        for field in told.as_raw().iter().filter(|field| !is_between(field.key())) {
            out.append_element(field);
        }
    }))
}

fn tell(op: &Operation<'_>, internal: &str, own: Value<'_>, body: RawDoc<'_>) -> Result<DocBuf> {
    let command = DocBuf::build(|out| {
        out.append(internal, own);
        for field in body.iter().skip(1).filter(|field| !is_generic(field.key_bytes())) {
            out.append_element(field);
        }
        if let Some(left) = op.time_left() {
            out.append("maxTimeMS", left.as_millis().max(1) as i64);
        }
        out.append("writeConcern", doc! { "w": "majority" }.as_raw());
    });
    // Each of them may be done again: a conductor that takes another's place goes on with what that has begun.
    op.router.directory.run("admin", &command, true, &|| op.check_interrupt()).map_err(for_client)
}

/// Whether a collection is sharded: the config servers are asked, as changes of collections are rare and must not err.
pub fn is_sharded(op: &Operation<'_>, namespace: &str) -> Result<bool> {
    let found =
        op.router.directory.find("collections", &doc! { "_id": namespace }, &|| op.check_interrupt())?;
    Ok(!found.is_empty())
}

/// `drop`: of a sharded collection by the conductor, of another one on its database's primary shard. Of a time-series collection both: its
/// buckets, if they are sharded, and then what shows them.
pub fn drop_collection<'a>(args: &mut Args<'a>, op: &Operation<'a>) -> Result<Reply> {
    let collection = args.collection()?;
    let (namespace, buckets) = (op.namespace(collection), buckets_namespace(op.db(), collection));
    let dropped = crate::forward::until_right(op, op.db(), || {
        if op.blocking(|| is_sharded(op, &namespace))? {
            let body = op.body();
            let reply =
                op.blocking(|| ask(op, "_configsvrDropCollection", Value::String(&namespace), body))?;
            // The shards are asked by the conductor, which does not know for whom.
            note(op, "dropCollection", Code::OK, || doc! { "ns": &namespace });
            return Ok(reply);
        }
        if !collection.starts_with("system.") && op.blocking(|| is_sharded(op, &buckets))? {
            let body = op.body();
            op.blocking(|| ask(op, "_configsvrDropCollection", Value::String(&buckets), body))?;
        }
        crate::forward::to_plain(op, op.target(op.db(), false)?)
    })?;
    op.blocking(|| op.router.end_sampling(&doc! { "_id": &namespace }, &|| op.check_interrupt()));
    Ok(dropped)
}

fn is_between(name: &str) -> bool {
    matches!(name, "ok" | "$clusterTime" | "operationTime" | "topologyVersion" | "opTime" | "electionId")
}

macro_rules! conducted {
    ($($kind:ident = $name:literal, $aliases:expr, $internal:literal, $help:literal;)+) => {
        $(
            #[doc = concat!("`", $name, "`.")]
            pub struct $kind;

            impl Asked for $kind {
                const NAME: &'static str = $name;
                const ALIASES: &'static [&'static str] = $aliases;
                const HELP: &'static str = $help;
                const INTERNAL: &'static str = $internal;
            }
        )+
    };
}

conducted! {
    AddShardToZone = "addShardToZone", &["addshardtozone"], "_configsvrAddShardToZone", "adds a shard to a zone";
    BalancerCollectionStatus = "balancerCollectionStatus", &["balancercollectionstatus"], "_configsvrBalancerCollectionStatus",
        "tells whether a collection is where it belongs";
    BalancerStart = "balancerStart", &["balancerstart"], "_configsvrBalancerStart", "has chunks moved by themselves";
    BalancerStatus = "balancerStatus", &["balancerstatus"], "_configsvrBalancerStatus", "tells whether chunks are moved";
    BalancerStop = "balancerStop", &["balancerstop"], "_configsvrBalancerStop", "has no chunks moved by themselves";
    ClearJumboFlag = "clearJumboFlag", &["clearjumboflag"], "_configsvrClearJumboFlag", "takes a chunk's jumbo flag away";
    ConfigureCollectionBalancing = "configureCollectionBalancing", &["configurecollectionbalancing"],
        "_configsvrConfigureCollectionBalancing", "changes how a collection is balanced";
    MergeAllChunksOnShard = "mergeAllChunksOnShard", &["mergeallchunksonshard"], "_configsvrMergeAllChunksOnShard",
        "merges a shard's neighbouring chunks";
    MergeChunks = "mergeChunks", &["mergechunks"], "_configsvrMergeChunks", "merges neighbouring chunks";
    MoveChunk = "moveChunk", &["movechunk"], "_configsvrMoveChunk", "moves a chunk to another shard";
    MoveCollection = "moveCollection", &[], "_configsvrMoveCollection", "moves a collection that is not sharded";
    ReshardCollection = "reshardCollection", &[], "_configsvrReshardCollection", "gives a collection another shard key";
    UnshardCollection = "unshardCollection", &[], "_configsvrUnshardCollection", "puts a sharded collection on one shard";
    AbortMoveCollection = "abortMoveCollection", &[], "_configsvrAbortMoveCollection", "gives the move of a collection up";
    AbortUnshardCollection = "abortUnshardCollection", &[], "_configsvrAbortUnshardCollection", "has a collection stay sharded";
    AbortReshardCollection = "abortReshardCollection", &[], "_configsvrAbortReshardCollection", "gives the change of a shard key up";
    CommitReshardCollection = "commitReshardCollection", &[], "_configsvrCommitReshardCollection",
        "brings the change of a shard key to its end";
    CleanupReshardCollection = "cleanupReshardCollection", &[], "_configsvrCleanupReshardCollection",
        "waits until nothing is left of the change of a shard key";
    SetAllowMigrations = "setAllowMigrations", &[], "_configsvrSetAllowMigrations", "says whether a collection's ranges may move";
    MovePrimary = "movePrimary", &["moveprimary"], "_configsvrMovePrimary", "moves a database to another shard";
    MoveRange = "moveRange", &["moverange"], "_configsvrMoveRange", "moves a range to another shard";
    RefineCollectionShardKey = "refineCollectionShardKey", &["refinecollectionshardkey"], "_configsvrRefineCollectionShardKey",
        "adds fields to a shard key";
    CommitShardRemoval = "commitShardRemoval", &[], "_configsvrCommitShardRemoval", "removes a drained shard";
    RemoveShard = "removeShard", &["removeshard"], "_configsvrRemoveShard", "drains a shard, and removes it";
    ShardDrainingStatus = "shardDrainingStatus", &[], "_configsvrShardDrainingStatus", "tells how far a shard is drained";
    ShardCollection = "shardCollection", &["shardcollection"], "_configsvrShardCollection", "spreads a collection over shards";
    StartShardDraining = "startShardDraining", &[], "_configsvrStartShardDraining", "drains a shard";
    StopShardDraining = "stopShardDraining", &[], "_configsvrStopShardDraining", "drains a shard no more";
    RemoveShardFromZone = "removeShardFromZone", &["removeshardfromzone"], "_configsvrRemoveShardFromZone",
        "takes a shard out of a zone";
    TransitionFromDedicatedConfigServer = "transitionFromDedicatedConfigServer", &[],
        "_configsvrTransitionFromDedicatedConfigServer", "makes the config servers a shard";
    TransitionToDedicatedConfigServer = "transitionToDedicatedConfigServer", &[],
        "_configsvrTransitionToDedicatedConfigServer", "drains the config servers, and has them be no shard any more";
    Split = "split", &[], "_configsvrSplitChunk", "cuts a chunk in two";
    UpdateZoneKeyRange = "updateZoneKeyRange", &["updatezonekeyrange"], "_configsvrUpdateZoneKeyRange",
        "assigns a range of keys to a zone";
}

/// `{checkMetadataConsistency: 1}` or `{checkMetadataConsistency: "plants"}`.
pub struct CheckMetadataConsistency<'a> {
    collection: Option<&'a str>,
}

impl<'a> Command<'a, Operation<'a>> for CheckMetadataConsistency<'a> {
    const NAME: &'static str = "checkMetadataConsistency";
    const SPEC: Spec = Spec {
        admin_only: false,
        concerns: Concerns::NONE,
        ..shards::spec(&[], "compares the directory with what shards have", Access::None)
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let collection = args.own_value().as_str();
        // The conductor looks at the rest.
        args.ignore_rest();
        Ok(CheckMetadataConsistency { collection })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let scope = match (self.collection, op.db()) {
            (Some(collection), db) => format!("{db}.{collection}"),
            (None, "admin") => String::new(),
            (None, db) => db.to_owned(),
        };
        let body = op.body();
        let told =
            op.blocking(|| tell(op, "_configsvrCheckMetadataConsistency", Value::String(&scope), body))?;
        let found = told.as_raw().get("inconsistencies").and_then(|found| found.as_array());
        let namespace = format!("{}.$cmd.aggregate", op.db());
        Ok(Reply::ok().with_document("cursor", |cursor| {
            cursor.append("id", 0i64).append("ns", &namespace);
            cursor.append("firstBatch", Value::Array(found.unwrap_or(RawDoc::EMPTY)));
        }))
    }
}
