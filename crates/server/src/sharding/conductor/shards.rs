//! The shards as the conductor reaches them.

use std::sync::Arc;

use sheaf_bson::{DocBuf, Value, doc};
use sheaf_cluster::{ReplicaSet, SetAddress};
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_storage::Interrupt;

use super::Conductor;

/// A shard as the directory has it.
pub(super) struct Known {
    /// Its name.
    pub name: String,
    /// Whether it is being emptied.
    pub draining: bool,
    /// The zones that it belongs to.
    pub zones: Vec<String>,
}

impl Conductor {
    /// All shards, by name.
    pub(super) fn shards(&self) -> Result<Vec<Known>> {
        let found = self.find("config.shards", |_| true)?;
        Ok(found
            .iter()
            .filter_map(|shard| {
                let shard = shard.as_raw();
                let zones = shard.get("tags").and_then(|tags| tags.as_array());
                Some(Known {
                    name: shard.get("_id")?.as_str()?.to_owned(),
                    draining: shard.get("draining").is_some_and(|draining| draining.truthy()),
                    zones: zones
                        .into_iter()
                        .flat_map(|zones| zones.values())
                        .filter_map(|zone| zone.as_str().map(str::to_owned))
                        .collect(),
                })
            })
            .collect())
    }

    pub(super) fn set(&self, shard: &str) -> Result<Arc<ReplicaSet>> {
        let found = self.get("config.shards", Value::String(shard))?;
        let Some(host) = found.as_ref().and_then(|found| found.as_raw().get("host")?.as_str()) else {
            bail!(Code::SHARD_NOT_FOUND, "Shard {shard} not found");
        };
        let mut sets = self.sets.lock();
        if let Some((address, set)) = sets.get(shard)
            && address == host
        {
            return Ok(set.clone());
        }
        let set = ReplicaSet::new(&host.parse::<SetAddress>()?, &self.front.membership);
        sets.insert(shard.to_owned(), (host.to_owned(), set.clone()));
        Ok(set)
    }

    /// Has a shard's primary run an internal command that may be run twice, and gives its reply.
    ///
    /// Errors: as [`Conductor::tell`].
    pub(super) fn ask(&self, shard: &str, command: &DocBuf, go_on: Interrupt<'_>) -> Result<DocBuf> {
        self.ask_of(shard, "admin", command, go_on)
    }

    /// The same of a command on a database.
    ///
    /// Errors: as [`Conductor::tell`].
    pub(super) fn ask_of(
        &self,
        shard: &str,
        db: &str,
        command: &DocBuf,
        go_on: Interrupt<'_>,
    ) -> Result<DocBuf> {
        let set = self.set(shard)?;
        let reply = sheaf_cluster::run(&set, &self.clock, db, command, true, &|| go_on());
        if let Some(time) = self.clock.now() {
            self.replica.observe_time(time);
        }
        reply.map_err(|error| of_shard(shard, error))
    }

    /// Has a shard's primary run an internal command, and waits until a majority of the shard has what it did.
    ///
    /// Errors: that of the reply; the shard does not answer (`HostUnreachable` and its kin); those of `go_on`.
    pub(super) fn tell(&self, shard: &str, command: &DocBuf, go_on: Interrupt<'_>) -> Result<DocBuf> {
        let set = self.set(shard)?;
        let command = DocBuf::from(command.as_raw()).with("writeConcern", doc! { "w": "majority" }.as_raw());
        let reply = sheaf_cluster::run(&set, &self.clock, "admin", &command, true, &|| go_on())
            .map_err(|error| of_shard(shard, error))?;
        if let Some(time) = self.clock.now() {
            self.replica.observe_time(time);
        }
        if let Some(failed) = reply.as_raw().get("writeConcernError").and_then(|error| error.as_doc()) {
            let text = failed.get("errmsg").and_then(|text| text.as_str()).unwrap_or_default();
            bail!(Code::HOST_UNREACHABLE, "shard {shard}: {text}");
        }
        Ok(reply)
    }
}

/// A shard's error as this member's: that a shard's member is no primary says nothing of this one.
fn of_shard(shard: &str, error: Error) -> Error {
    if sheaf_cluster::is_not_primary(error.code()) {
        return Error::new(Code::HOST_UNREACHABLE, format!("shard {shard}: {}", error.message()));
    }
    if error.code() == Code::NO_SHARDING_ENABLED {
        return error.context(format_args!("shard {shard}"));
    }
    error
}

/// Whether what failed may succeed when it is tried again: nobody has answered that it cannot be.
pub(super) fn may_pass(error: &Error) -> bool {
    let code = error.code();
    sheaf_cluster::is_not_primary(code)
        || matches!(
            code,
            Code::HOST_UNREACHABLE
                | Code::HOST_NOT_FOUND
                | Code::NETWORK_TIMEOUT
                | Code::FAILED_TO_SATISFY_READ_PREFERENCE
                | Code::WRITE_CONFLICT
                | Code::LOCK_TIMEOUT
                | Code::SNAPSHOT_UNAVAILABLE
                | Code::STALE_CONFIG
                // A shard that has just started, and is about to look which one it is.
                | Code::SHARDING_STATE_NOT_INITIALIZED
                | Code::CONFLICTING_OPERATION_IN_PROGRESS
                | Code::EXCEEDED_TIME_LIMIT
                | Code::PROTOCOL_ERROR
        )
}
