//! The config servers as a shard for users' data: `transitionFromDedicatedConfigServer`, `transitionToDedicatedConfigServer`.
//!
//! They are one as soon as `config.shards` has a document with their name, and no more when that has gone. What is on them is drained as
//! from any shard; then what is left of its definitions is dropped, so that they may become a shard once more.

use sheaf_bson::{DocBuf, Value, doc};
use sheaf_cluster::{CONFIG_SHARD, SetAddress};
use sheaf_errors::{Code, Result, bail};
use sheaf_storage::Interrupt;

use super::ddl::{name_of, text};
use super::drain::SHARDS;
use super::{Conductor, DATABASES, db_of};
use crate::args::Args;
use crate::sharding::marks::{PLACEMENTS, ranges_of};
use crate::sharding::participants::name;

/// Whether a database is a server's own, and none of the cluster's.
fn is_own(db: &str) -> bool {
    matches!(db, "admin" | "config" | "local")
}

/// What keeps the config servers from becoming dedicated, though they own nothing any more.
enum Left {
    /// So many ranges that were moved away are not removed yet.
    Ranges(i64),
    /// This collection has documents that nobody owns.
    Documents(String),
}

impl Left {
    fn reply(&self) -> DocBuf {
        let mut reply = doc! { "msg": "waiting for data to be cleaned up", "state": "pendingDataCleanup" };
        match self {
            Left::Ranges(count) => _ = reply.append("pendingRangeDeletions", *count),
            Left::Documents(namespace) => {
                reply.append("pendingRangeDeletions", 0i64);
                reply.append("firstNonEmptyCollection", namespace.as_str());
            }
        }
        reply
    }
}

impl Conductor {
    /// `{transitionFromDedicatedConfigServer: 1}`: the config servers are a shard from now on. Nothing happens if they are one.
    ///
    /// Errors: `OperationFailed`, if they have a database that they may not bring with them.
    pub fn transition_from_dedicated(&self, args: &mut Args<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
        args.finish()?;
        self.prepare(go_on)?;
        let config = self.replica.with(|core| core.config().cloned());
        let Some(config) = config else {
            bail!(Code::NOT_YET_INITIALIZED, "no replset config has been received")
        };
        let hosts = config.members.iter().map(|member| member.host.to_string()).collect();
        let host = SetAddress { name: config.set_name.to_string(), hosts }.to_string();
        let catalog = self.engine.catalog();
        let brought: Vec<&str> = catalog.databases().filter(|db| !is_own(db)).collect();
        let shard = doc! {
            "_id": CONFIG_SHARD, "host": &host, "state": 1, "topologyTime": self.now(), "replSetConfigVersion": -1i64
        };
        self.change(go_on, |change| {
            if change.get(SHARDS, Value::String(CONFIG_SHARD))?.is_some() {
                return Ok(());
            }
            let is_first = change.find(SHARDS, |_| true)?.is_empty();
            for db in &brought {
                let known = change.get(DATABASES, Value::String(db))?;
                if known.is_some() || !is_first {
                    let why = match known {
                        Some(_) => " in another shard",
                        None => ": only a cluster's first shard may bring data with it",
                    };
                    bail!(
                        Code::OPERATION_FAILED,
                        "can't add shard '{host}' because a local database '{db}' exists{why}"
                    );
                }
                change.put(DATABASES, self.database_entry(db, CONFIG_SHARD).as_raw())?;
            }
            change.put(SHARDS, shard.as_raw())?;
            let details = doc! { "name": CONFIG_SHARD, "host": &host };
            self.note(change, "addShard", "", details.as_raw())
        })?;
        Ok(doc! {})
    }

    /// `{transitionToDedicatedConfigServer: 1}`: begins to drain the config servers, tells how far that is, and has them be no shard any more
    /// when nothing is left.
    ///
    /// Errors: `ShardNotFound`, if they are none; otherwise as [`Conductor::remove_shard`].
    pub fn transition_to_dedicated(&self, args: &mut Args<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
        args.finish()?;
        self.prepare(go_on)?;
        self.drain(CONFIG_SHARD, &|| self.leave_config_shard(go_on), go_on)
    }

    /// Drops what the config servers have of databases that live on other shards: all of it is empty. A reply, if it is not.
    fn leave_config_shard(&self, go_on: Interrupt<'_>) -> Result<Option<DocBuf>> {
        if let Some(left) = self.left_behind()? {
            return Ok(Some(left.reply()));
        }
        let databases: Vec<String> = self.engine.catalog().databases().map(str::to_owned).collect();
        for db in databases.iter().filter(|db| !is_own(db)) {
            // Nothing comes to the config servers while the database's turn is taken.
            let _turn = self.turn(db, go_on)?;
            let Some(known) = self.get(DATABASES, Value::String(db))? else { continue };
            if text(known.as_raw(), "primary") == CONFIG_SHARD || self.has_chunks_of(db)? {
                bail!(
                    Code::CONFLICTING_OPERATION_IN_PROGRESS,
                    "something has come to shard {CONFIG_SHARD} meanwhile"
                );
            }
            if let Some(left) = self.left_behind()? {
                return Ok(Some(left.reply()));
            }
            let step = self.step()?;
            let command = doc! { (name::DROP_DATABASE): db.as_str(), "step": step, "copy": true };
            self.tell(CONFIG_SHARD, &command, go_on)?;
        }
        Ok(None)
    }

    /// Whether the config servers own something in a database.
    fn has_chunks_of(&self, db: &str) -> Result<bool> {
        let of_db = self.find("config.collections", |entry| db_of(text(entry, "_id")) == db)?;
        for entry in &of_db {
            let uuid = super::uuid_of(entry.as_raw(), "uuid");
            let owns = |chunk: sheaf_bson::RawDoc<'_>| {
                super::uuid_of(chunk, "uuid") == uuid && text(chunk, "shard") == CONFIG_SHARD
            };
            if !self.find(super::chunks::CHUNKS, owns)?.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// What of others' documents is still on the config servers.
    fn left_behind(&self) -> Result<Option<Left>> {
        let mut ranges = 0;
        for placement in &self.find(PLACEMENTS, |_| true)? {
            ranges += ["receiving", "leaving"]
                .map(|name| ranges_of(placement, name).count() as i64)
                .iter()
                .sum::<i64>();
        }
        if ranges > 0 {
            return Ok(Some(Left::Ranges(ranges)));
        }
        let known = self.find(DATABASES, |_| true)?;
        let catalog = self.engine.catalog();
        for db in known.iter().map(|known| name_of(known.as_raw())) {
            let full = catalog.collections(db).find(|collection| {
                !collection.is_view() && !collection.name().starts_with("system.") && collection.count() > 0
            });
            if let Some(full) = full {
                return Ok(Some(Left::Documents(full.namespace.clone())));
            }
        }
        Ok(None)
    }
}
