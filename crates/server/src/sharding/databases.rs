//! Making collections at a router's wish: only in databases that live on this shard.
//!
//! A router may believe for a moment what another one has changed. A request for a collection that is here finds what it wants; one that
//! would make the collection, in a database that was dropped meanwhile and perhaps made anew elsewhere, would leave it where nobody looks.
//! So the directory is asked before. When a database is dropped it leaves the directory first and the shards last, so one that is
//! there when it is asked, and has not been dropped here since, is dropped with the new collection.

use std::sync::Arc;

use sheaf_bson::{DocBuf, doc};
use sheaf_errors::{Code, Error, Result};
use sheaf_storage::{CreateCollection, Interrupt};

use super::ShardServer;
use crate::op::Operation;

impl ShardServer {
    /// Whether the directory has this shard as the database's primary shard, asked now. Everything lives on a set that is no shard yet.
    fn has_database(&self, db: &str, go_on: Interrupt<'_>) -> Result<bool> {
        let Some(own) = self.shard_name() else { return Ok(true) };
        let found = self.directory()?.find("databases", &doc! { "_id": db }, go_on)?;
        let primary = found.first().and_then(|entry| entry.as_raw().get("primary")?.as_str());
        Ok(primary == Some(own))
    }
}

impl Operation<'_> {
    /// How a collection is made for this request: a router's may do so only in a database that lives here.
    ///
    /// Errors: `StaleDbVersion`; those of asking the config servers.
    pub(crate) fn making(&self, namespace: &str, spec: CreateCollection) -> Result<CreateCollection> {
        let (Some(sharding), Some(_)) = (self.node.sharding(), self.version_for(namespace)) else {
            return Ok(spec);
        };
        let db = namespace.split_once('.').map_or(namespace, |(db, _)| db).to_owned();
        if matches!(&*db, "admin" | "config" | "local") {
            return Ok(spec);
        }
        let drops = sharding.drops();
        self.check_home_now(&db)?;
        let stop = self.interrupter();
        if !self.blocking(|| sharding.has_database(&db, &|| stop.check()))? {
            return Err(stale_database(&db));
        }
        let sharding = sharding.clone();
        let check = move || if sharding.drops() == drops { Ok(()) } else { Err(stale_database(&db)) };
        Ok(CreateCollection { check: Some(Arc::new(check)), ..spec })
    }
}

/// The error for a request whose router has to look again where the database lives.
pub(super) fn stale_database(db: &str) -> Error {
    let extra = DocBuf::build(|out| _ = out.append("db", db));
    let text = format!("database {db} does not live on this shard");
    Error::new(Code::STALE_DB_VERSION, text).with_extra(extra.into_bytes())
}
