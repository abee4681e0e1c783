//! Making collections at a router's wish: only in databases that live on this shard.
//!
//! A router may believe for a moment what another one has changed. A request for a collection that is here finds what it wants; one that
//! would make the collection, in a database that was dropped meanwhile and perhaps made anew elsewhere, would leave it where nobody looks.
//! So the directory is asked before. When a database is dropped it leaves the directory first and the shards last, so one that is
//! there when it is asked, and has not been dropped here since, is dropped with the new collection.
//!
//! Nor does a router read, or change, what it believes to be here of a database that this process has dropped as primary: the directory is asked whether it has
//! been made here again since, once.

use std::sync::Arc;

use sheaf_bson::{DocBuf, doc};
use sheaf_errors::{Code, Error, Result};
use sheaf_storage::{CreateCollection, Interrupt};

use super::ShardServer;
use crate::op::Operation;

/// Where a database lives.
#[derive(PartialEq, Eq)]
enum Home {
    Here,
    Elsewhere,
    Nowhere,
}

impl ShardServer {
    /// Where the directory has a database, asked now. Everything lives on a set that is no shard yet.
    fn home_of(&self, db: &str, go_on: Interrupt<'_>) -> Result<Home> {
        let Some(own) = self.shard_name() else { return Ok(Home::Here) };
        let found = self.directory()?.find("databases", &doc! { "_id": db }, go_on)?;
        let primary = found.first().and_then(|entry| entry.as_raw().get("primary")?.as_str());
        Ok(match primary {
            Some(primary) if primary == own => Home::Here,
            Some(_) => Home::Elsewhere,
            None => Home::Nowhere,
        })
    }
}

impl Operation<'_> {
    /// Whether a database that a router takes for one of this shard's has been made elsewhere since it was dropped here.
    ///
    /// Errors: `StaleDbVersion`; those of asking the config servers.
    pub(super) fn check_not_dropped(&self, db: &str) -> Result<()> {
        let Some(sharding) = self.node.sharding() else { return Ok(()) };
        let Some(dropped) = sharding.dropped.when(db) else { return Ok(()) };
        let stop = self.interrupter();
        match self.blocking(|| sharding.home_of(db, &|| stop.check()))? {
            Home::Here => sharding.dropped.is_here(db, dropped),
            Home::Elsewhere => return Err(stale_database(db)),
            // That nothing is here is right.
            Home::Nowhere => {}
        }
        Ok(())
    }

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
        if self.blocking(|| sharding.home_of(&db, &|| stop.check()))? != Home::Here {
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
