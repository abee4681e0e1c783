//! `addShard`, `listShards`, `enableSharding`, `getShardMap`, `flushRouterConfig`: the shards of the cluster.

use std::time::{Duration, Instant};

use sheaf_bson::{DocBuf, RawDoc, Value, doc};
use sheaf_cluster::{ReplicaSet, SetAddress, Shard};
use sheaf_errors::{Code, Result, bail};
use sheaf_front::args::Args;
use sheaf_front::command::*;
use sheaf_front::reply::Reply;

use crate::op::Operation;

/// What is true of every command about the shards of a cluster.
pub(super) const fn spec(aliases: &'static [&'static str], help: &'static str, access: Access) -> Spec {
    Spec {
        aliases,
        help,
        access,
        transaction: Transaction::Refused,
        secondary: Secondary::Never,
        maintenance: false,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: true,
        test_only: false,
        concerns: Concerns::WRITE,
        privileges: Privileges::ByCommand(super::rights::WORDS, super::rights::may),
        spread: Spread::ConfigServers,
        counter: Counter::Command,
        threads: Threads::DataMayBlock,
        ends_with_client: false,
    }
}

/// `{listShards: 1}`.
pub struct ListShards;

impl<'a> Command<'a, Operation<'a>> for ListShards {
    const NAME: &'static str = "listShards";
    const SPEC: Spec = spec(&["listshards"], "lists the shards of the cluster", Access::None);

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        args.ignore_rest();
        Ok(ListShards)
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let shards =
            op.blocking(|| op.router.directory.find("shards", &doc! {}, &|| op.check_interrupt()))?;
        Ok(Reply::ok().with_array("shards", |list| {
            for shard in &shards {
                list.push(shard);
            }
        }))
    }
}

/// `{addShard: "set/host:port,...", name: "shard0"}`.
pub struct AddShard<'a> {
    address: &'a str,
    name: Option<&'a str>,
}

/// How long a new shard's set may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The same where none of its members' names leads to an address.
const NOWHERE_PATIENCE: Duration = Duration::from_secs(2);

impl<'a> Command<'a, Operation<'a>> for AddShard<'a> {
    const NAME: &'static str = "addShard";
    const SPEC: Spec = spec(&["addshard"], "adds a replica set to the cluster as a shard", Access::Write);

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let Value::String(address) = args.own_value() else {
            bail!(
                Code::TYPE_MISMATCH,
                "BSON field 'addShard.addShard' is the wrong type '{}', expected type 'string'",
                args.own_value().type_name()
            );
        };
        let name = args.optional("name")?;
        args.ignore(&["maxSize"]);
        Ok(AddShard { address, name })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        op.blocking(|| self.add(op))
    }
}

impl AddShard<'_> {
    fn add(&self, op: &Operation<'_>) -> Result<Reply> {
        let go_on = || op.check_interrupt();
        let address: SetAddress = self.address.parse()?;
        let name = self.name.unwrap_or(&address.name);
        if name.is_empty() || name == "config" {
            bail!(Code::BAD_VALUE, "'{name}' cannot be the name of a shard");
        }
        let known = op.router.directory.find("shards", &doc! {}, &go_on)?;
        for shard in &known {
            if let Some(done) = same_shard(shard.as_raw(), name, &address)? {
                return Ok(done);
            }
        }
        self.check_name(op, name, &address)?;
        let set = ReplicaSet::new(&address, &op.router.membership);
        let brought = self.check_empty(op, &set, &known)?;
        let cluster_id = op.router.cluster_id(&go_on)?;
        self.identify(op, &set, name, cluster_id)?;
        // Before it is one: a shard that has not been told would run by other parameters than the rest.
        let shard = Shard { name: name.into(), set: set.clone(), draining: false };
        op.router.tell_parameters(&shard, &go_on)?;
        for db in &brought {
            op.router.directory.adopt_database(db, name, &go_on)?;
        }
        let time = op.router.clock.now().unwrap_or(sheaf_bson::Timestamp(0));
        let entry = doc! {
            "_id": name, "host": &set.address().to_string(), "state": 1, "topologyTime": Value::Timestamp(time),
            "replSetConfigVersion": -1i64
        };
        op.router.directory.write(&doc! { "insert": "shards", "documents": [entry.as_raw()] }, &go_on)?;
        op.router.directory.forget();
        // What was set meanwhile was told to the others. Should it be out of reach just now, each router goes on to tell it.
        let _ = op.router.tell_parameters(&shard, &go_on);
        Ok(Reply::ok().with("shardAdded", name))
    }

    /// Refuses a removed shard's name to another set: members that know the first one by it may ask that one, how a transaction has ended, too.
    fn check_name(&self, op: &Operation<'_>, name: &str, address: &SetAddress) -> Result<()> {
        let go_on = || op.check_interrupt();
        let removed = op.router.directory.find("removedShards", &doc! { "_id": name }, &go_on)?;
        let host = removed.first().and_then(|shard| shard.as_raw().get("host")?.as_str());
        let Some(host) = host else { return Ok(()) };
        if host.parse::<SetAddress>()?.name == address.name {
            return Ok(());
        }
        bail!(
            Code::ILLEGAL_OPERATION,
            "'{}' cannot be added as '{name}': another set, '{host}', has been the shard of this name. Give the new one another name",
            self.address
        )
    }

    /// A new shard brings no databases: what a cluster has is made through it. Gives those that a cluster's first shard brings.
    fn check_empty(
        &self,
        op: &Operation<'_>,
        set: &std::sync::Arc<ReplicaSet>,
        known: &[DocBuf],
    ) -> Result<Vec<String>> {
        let mut brought = Vec::new();
        let began = Instant::now();
        let go_on = || {
            op.check_interrupt()?;
            if let Some((_, other)) = set.stranger() {
                bail!(
                    Code::OPERATION_FAILED,
                    "the provided connection string ({}) does not match the actual set name {other}",
                    self.address
                );
            }
            let patience = if set.leads_nowhere() { NOWHERE_PATIENCE } else { PATIENCE };
            if began.elapsed() >= patience {
                bail!(
                    Code::OPERATION_FAILED,
                    "failed to run command on {}: no primary of set '{}' has answered{}",
                    self.address,
                    set.name(),
                    set.what_is_missing().map_or(String::new(), |why| format!(": {why}"))
                );
            }
            Ok(())
        };
        let list = doc! { "listDatabases": 1, "nameOnly": true };
        let databases = sheaf_cluster::run(set, &op.router.clock, "admin", &list, true, &go_on)?;
        let options = doc! { "getCmdLineOpts": 1 };
        let options = sheaf_cluster::run(set, &op.router.clock, "admin", &options, true, &go_on)?;
        let sharding =
            options.as_raw().get("parsed").and_then(|parsed| parsed.as_doc()?.get("sharding")?.as_doc());
        let role = sharding.and_then(|sharding| sharding.get("clusterRole")?.as_str());
        if set.is_config() != Some(true) && role != Some("shardsvr") {
            bail!(
                Code::OPERATION_FAILED,
                "Cannot add {} as a shard: its members were not started with --shardsvr",
                self.address
            );
        }
        if set.is_config() == Some(true) {
            bail!(
                Code::OPERATION_FAILED,
                "Cannot add {} as a shard since it is a config server",
                self.address
            );
        }
        let databases = databases.as_raw().get("databases").and_then(|list| list.as_array());
        for entry in databases.into_iter().flat_map(|list| list.values()).filter_map(|entry| entry.as_doc()) {
            let db = entry.get("name").and_then(|name| name.as_str()).unwrap_or_default();
            if matches!(db, "admin" | "config" | "local") {
                continue;
            }
            let is_first = known.is_empty();
            let taken = op.router.directory.database(db, &go_on)?.is_some();
            if taken || !is_first {
                bail!(
                    Code::OPERATION_FAILED,
                    "can't add shard '{}' because a local database '{db}' exists{}",
                    self.address,
                    if taken {
                        " in another shard"
                    } else {
                        ": only a cluster's first shard may bring data with it"
                    }
                );
            }
            // The first shard may be a set that has been used by itself.
            brought.push(db.to_owned());
        }
        Ok(brought)
    }

    /// Tells the set that it is a shard now, and of which cluster.
    fn identify(
        &self,
        op: &Operation<'_>,
        set: &std::sync::Arc<ReplicaSet>,
        name: &str,
        cluster_id: sheaf_bson::ObjectId,
    ) -> Result<()> {
        let config = op.router.directory.config().address().to_string();
        let identity = doc! {
            "shardName": name, "clusterId": cluster_id, "configsvrConnectionString": &config
        };
        let update = doc! {
            "update": "system.version",
            "updates": [{ "q": { "_id": "shardIdentity" }, "u": { "$setOnInsert": identity.as_raw() }, "upsert": true }],
            "writeConcern": { "w": "majority" }
        };
        let go_on = || op.check_interrupt();
        sheaf_cluster::run(set, &op.router.clock, "admin", &update, false, &go_on)?;
        let find = doc! { "find": "system.version", "filter": { "_id": "shardIdentity" } };
        let reply = sheaf_cluster::run(set, &op.router.clock, "admin", &find, true, &go_on)?;
        let found = sheaf_cluster::first_batch(reply.as_raw());
        let same = found.first().map(DocBuf::as_raw).is_some_and(|found| {
            found.get("shardName").and_then(|name| name.as_str()) == Some(name)
                && matches!(found.get("clusterId"), Some(Value::ObjectId(id)) if id == cluster_id)
        });
        if !same {
            let text = |field: &str| found.first()?.as_raw().get(field)?.as_str().map(str::to_owned);
            bail!(
                Code::ILLEGAL_OPERATION,
                "'{}' cannot be added as '{name}': it has been the shard '{}' of the cluster of '{}', and says so in its document 'shardIdentity' in admin.system.version",
                self.address,
                text("shardName").unwrap_or_default(),
                text("configsvrConnectionString").unwrap_or_default()
            );
        }
        Ok(())
    }
}

/// Whether the cluster has this shard already, and answers so. Errors: it has another one of the name, or the set under another name.
fn same_shard(known: RawDoc<'_>, name: &str, address: &SetAddress) -> Result<Option<Reply>> {
    let text = |key: &str| known.get(key).and_then(|value| value.as_str()).unwrap_or_default();
    let set = text("host").split('/').next().unwrap_or_default();
    match (text("_id") == name, set == address.name) {
        (true, true) => Ok(Some(Reply::ok().with("shardAdded", name))),
        (false, false) => Ok(None),
        (true, false) => {
            bail!(
                Code::ILLEGAL_OPERATION,
                "A shard named {name} containing the replica set '{set}' already exists"
            )
        }
        (false, true) => bail!(
            Code::ILLEGAL_OPERATION,
            "A shard already exists containing the replica set '{set}': it is named {0}, and cannot be added again as {name} before {0} is removed",
            text("_id")
        ),
    }
}

/// `{enableSharding: "garden", primaryShard: "shard0"}`: makes the database.
pub struct EnableSharding<'a> {
    db: &'a str,
    primary: Option<&'a str>,
}

impl<'a> Command<'a, Operation<'a>> for EnableSharding<'a> {
    const NAME: &'static str = "enableSharding";
    const SPEC: Spec = spec(&["enablesharding"], "makes a database", Access::Write);

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let Value::String(db) = args.own_value() else {
            bail!(
                Code::TYPE_MISMATCH,
                "BSON field 'enableSharding.enableSharding' is the wrong type '{}', expected type 'string'",
                args.own_value().type_name()
            );
        };
        Ok(EnableSharding { db, primary: args.optional("primaryShard")? })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        sheaf_front::args::check_db_name(self.db)?;
        if matches!(self.db, "admin" | "config" | "local") {
            bail!(Code::INVALID_OPTIONS, "can't shard {} database", self.db);
        }
        // What was believed of it counts for nothing: another router may have dropped it just now.
        op.blocking(|| op.router.directory.enter_database(self.db, self.primary, &|| op.check_interrupt()))?;
        Ok(Reply::ok())
    }
}

/// `{getShardMap: 1}`.
pub struct GetShardMap;

impl<'a> Command<'a, Operation<'a>> for GetShardMap {
    const NAME: &'static str = "getShardMap";
    const SPEC: Spec = spec(&[], "tells where each shard is reached", Access::None);

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        args.ignore_rest();
        Ok(GetShardMap)
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let map = op.blocking(|| op.router.directory.shard_map(&|| op.check_interrupt()))?;
        let mut reply = Reply::ok();
        reply.fill(|out| _ = out.append_all(map.as_raw()));
        Ok(reply)
    }
}

/// `{flushRouterConfig: 1}`: what is remembered of the directory is asked for again.
pub struct FlushRouterConfig;

impl<'a> Command<'a, Operation<'a>> for FlushRouterConfig {
    const NAME: &'static str = "flushRouterConfig";
    const SPEC: Spec =
        spec(&["flushrouterconfig"], "forgets what is remembered of the directory", Access::None);

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        args.ignore_rest();
        Ok(FlushRouterConfig)
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        op.router.directory.forget();
        Ok(Reply::ok().with("flushed", true))
    }
}
