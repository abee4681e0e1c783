//! `shardingState`, `getShardVersion`, `getShardMap`, `cleanupOrphaned`: what a shard's administrators ask it directly.

use std::time::Duration;

use sheaf_bson::{Timestamp, Value};
use sheaf_errors::{Code, Result, bail};

use crate::args::{Args, check_collection_name, check_db_name};
use crate::command::*;
use crate::op::Operation;
use crate::reply::Reply;
use crate::sharding::{Placements, ShardServer, rows};

/// What is true of all of them.
const fn spec(help: &'static str, threads: Threads) -> Spec {
    Spec {
        aliases: &[],
        help,
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: false,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: true,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::ByCommand("the action of its name on the cluster", of_its_name),
        spread: Spread::Refused,
        counter: Counter::Command,
        threads,
        ends_with_client: false,
    }
}

/// The shard that this server is, and the config servers of its cluster; `None`: it is none, or was not added to a cluster yet. Config
/// servers know from the beginning as which shard they may hold documents.
fn shard<'a>(op: &Operation<'a>) -> Option<(&'a ShardServer, &'a str, String)> {
    let sharding = op.node().sharding()?;
    Some((&**sharding, sharding.shard_name()?, sharding.config_servers()?))
}

/// The namespace that a command is about.
fn namespace<'a>(args: &mut Args<'a>, command: &str) -> Result<&'a str> {
    let Value::String(namespace) = args.own_value() else {
        bail!(
            Code::TYPE_MISMATCH,
            "BSON field '{command}.{command}' is the wrong type '{}', expected type 'string'",
            args.own_value().type_name()
        );
    };
    let (db, collection) = namespace.split_once('.').unwrap_or((namespace, ""));
    if check_db_name(db).is_err() || check_collection_name(collection).is_err() {
        bail!(Code::INVALID_NAMESPACE, "Invalid namespace specified '{namespace}'");
    }
    Ok(namespace)
}

/// `{shardingState: 1}`.
pub struct ShardingState;

impl<'a> Command<'a, Operation<'a>> for ShardingState {
    const NAME: &'static str = "shardingState";
    const SPEC: Spec = spec("tells which shard of which cluster the server is", Threads::Data);

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        args.ignore_rest();
        Ok(ShardingState)
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let Some((_, name, config)) = shard(op) else { return Ok(Reply::ok().with("enabled", false)) };
        let mut reply =
            Reply::ok().with("enabled", true).with("configServer", &config).with("shardName", name);
        let view = op.engine().view()?;
        let identity = match op.node().conductor() {
            Some(_) => rows::get(&view, "config.version", Value::Int32(1))?,
            None => rows::get(&view, "admin.system.version", Value::String("shardIdentity"))?,
        };
        if let Some(id) = identity.as_ref().and_then(|identity| identity.as_raw().get("clusterId")) {
            reply.append("clusterId", id);
        }
        let versions = Placements::versions(&view)?;
        Ok(reply.with_document("versions", |out| {
            for (ns, version) in &versions {
                out.document(ns).append("placementVersion", *version);
            }
        }))
    }
}

/// `{getShardMap: 1}`: where each shard is reached, as the config servers say.
pub struct GetShardMap;

impl<'a> Command<'a, Operation<'a>> for GetShardMap {
    const NAME: &'static str = "getShardMap";
    const SPEC: Spec = spec("tells where each shard is reached", Threads::DataMayBlock);

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        args.ignore_rest();
        Ok(GetShardMap)
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let Some((sharding, ..)) = shard(op) else {
            bail!(Code::SHARDING_STATE_NOT_INITIALIZED, "Sharding is not enabled");
        };
        let stop = op.interrupter();
        let map = op.blocking(|| sharding.shard_map(&|| stop.check()))?;
        let mut reply = Reply::ok();
        reply.fill(|out| _ = out.append_all(map.as_raw()));
        Ok(reply)
    }
}

/// `{getShardVersion: "garden.plants"}`.
pub struct GetShardVersion<'a> {
    namespace: &'a str,
    full: bool,
}

impl<'a> Command<'a, Operation<'a>> for GetShardVersion<'a> {
    const NAME: &'static str = "getShardVersion";
    const SPEC: Spec = spec("tells by which version the shard knows a collection", Threads::Data);

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let namespace = namespace(args, Self::NAME)?;
        let full = args.value("fullMetadata").truthy();
        args.ignore_rest();
        Ok(GetShardVersion { namespace, full })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let Some((sharding, _, config)) = shard(op) else {
            return Ok(Reply::ok().with("configServer", "").with("global", Timestamp(0)));
        };
        let view = op.engine().view()?;
        let placed = match view.collection(self.namespace) {
            Some(collection) => sharding.placements().in_view(&view, &collection.uuid)?,
            None => None,
        };
        let version = placed.as_ref().map_or(Timestamp(0), |placed| placed.placement.version.lastmod);
        let reply = Reply::ok().with("configServer", &config).with("global", version);
        if !self.full {
            return Ok(reply);
        }
        Ok(reply.with_document("metadata", |out| {
            let Some(placed) = &placed else { return };
            out.append("shardVersion", version);
            out.append("keyPattern", placed.pattern.document());
            let mut chunks = out.array("chunks");
            placed.put_owned(&mut chunks);
            drop(chunks);
            drop(out.array("pending"));
        }))
    }
}

/// How often it is looked whether there are documents of other shards left.
const LOOK: Duration = Duration::from_millis(100);

/// `{cleanupOrphaned: "garden.plants"}`: waits until no documents of other shards are left of the collection.
pub struct CleanupOrphaned<'a> {
    namespace: &'a str,
}

impl<'a> Command<'a, Operation<'a>> for CleanupOrphaned<'a> {
    const NAME: &'static str = "cleanupOrphaned";
    const SPEC: Spec = Spec {
        secondary: Secondary::Never,
        ..spec("waits until documents that belong to other shards are removed", Threads::DataMayBlock)
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let namespace = namespace(args, Self::NAME)?;
        args.ignore(&["startingFromKey", "secondaryThrottle"]);
        Ok(CleanupOrphaned { namespace })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let Some((sharding, ..)) = shard(op) else {
            bail!(
                Code::SHARDING_STATE_NOT_INITIALIZED,
                "Cannot accept sharding commands if sharding state has not been initialized with a shardIdentity document"
            );
        };
        op.blocking(|| -> Result<()> {
            loop {
                let view = op.engine().view()?;
                let Some(collection) = view.collection(self.namespace) else { return Ok(()) };
                let placed = sharding.placements().in_view(&view, &collection.uuid)?;
                if placed.is_none_or(|placed| !placed.placement.filters()) {
                    return Ok(());
                }
                op.check_interrupt()?;
                std::thread::sleep(LOOK);
            }
        })?;
        Ok(Reply::ok())
    }
}
