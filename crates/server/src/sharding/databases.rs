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
use std::time::Instant;

use sheaf_bson::{DocBuf, doc};
use sheaf_cluster::QUICK;
use sheaf_errors::{Code, Error, Result};
use sheaf_storage::{CreateCollection, Interrupt, Told};

use super::ShardServer;
use super::home_asked::{Home, HomeAsked};
use crate::op::Operation;

impl ShardServer {
    /// Where the directory has a database, asked now. Everything lives on a set that is no shard yet.
    fn home_of(&self, db: &str, go_on: Interrupt<'_>) -> Result<Home> {
        let Some(identity) = self.identity()? else { return Ok(Home::Here) };
        let own = identity.shard.as_str();
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
    /// Asks where databases live, as far as that will have to be known: while nobody answers, other writers would wait for what this one
    /// has written. `namespaces`: what a router wants to be written, each with whether its collection may be made.
    ///
    /// Errors: those of asking the config servers.
    pub(crate) fn ask_homes<'n>(&self, namespaces: impl Iterator<Item = (&'n str, bool)>) -> Result<()> {
        let Some(sharding) = self.node.sharding() else { return Ok(()) };
        for (namespace, makes) in namespaces {
            let db = namespace.split_once('.').map_or(namespace, |(db, _)| db);
            if matches!(db, "admin" | "config" | "local") || self.version_for(namespace).is_none() {
                continue;
            }
            let dropped = sharding.dropped.when(db);
            let makes = makes && self.catalog().collection(namespace).is_none();
            let is_known = || self.homes.borrow().iter().any(|asked| asked.db == db);
            if (!makes && dropped.is_none()) || is_known() {
                continue;
            }
            let drops = sharding.drops();
            let home = self.ask_home(sharding, db)?;
            self.homes.borrow_mut().push(HomeAsked { db: db.to_owned(), dropped, drops, home });
        }
        Ok(())
    }

    fn ask_home(&self, sharding: &ShardServer, db: &str) -> Result<Home> {
        let stop = self.interrupter();
        self.blocking(|| sharding.home_of(db, &|| stop.check()))
    }

    /// Who tells change streams that something of a database is dropped. What a client drops here that is connected to this shard itself, of a
    /// database that lives on another one, is no news of the cluster's: remains of a shard that was removed, for instance.
    ///
    /// Errors: those of [`Request::check_interrupt`](sheaf_front::request::Request::check_interrupt).
    pub(crate) fn told_of_drop(&self, db: &str) -> Result<Told> {
        let own = matches!(db, "admin" | "config" | "local");
        let Some(sharding) = self.node.sharding().filter(|_| !own && !self.has_version()) else {
            return Ok(Told::Here);
        };
        let (stop, began) = (self.interrupter(), Instant::now());
        let in_time = || match began.elapsed() < QUICK {
            true => stop.check(),
            false => Err(Error::new(Code::NETWORK_TIMEOUT, "no answer in time")),
        };
        let home = self.blocking(|| sharding.home_of(db, &in_time));
        self.check_interrupt()?;
        Ok(if matches!(home, Ok(Home::Elsewhere)) { Told::Elsewhere } else { Told::Here })
    }

    /// Whether a database that a router takes for one of this shard's has been made elsewhere since it was dropped here.
    ///
    /// Errors: `StaleDbVersion`; those of asking the config servers.
    pub(super) fn check_not_dropped(&self, db: &str) -> Result<()> {
        let Some(sharding) = self.node.sharding() else { return Ok(()) };
        let Some(dropped) = sharding.dropped.when(db) else { return Ok(()) };
        let asked = self.homes.borrow().iter().find(|asked| asked.db == db).map(|of| (of.dropped, of.home));
        let home = match asked {
            Some((before, home)) if before == Some(dropped) => home,
            // It was dropped since: the router comes again, and then it is asked again, before anything is written.
            Some(_) => return Err(stale_database(db)),
            None => self.ask_home(sharding, db)?,
        };
        match home {
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
        let asked = self.homes.borrow().iter().find(|asked| asked.db == db).map(|of| (of.drops, of.home));
        let drops = asked.map_or_else(|| sharding.drops(), |(drops, _)| drops);
        self.check_home_now(&db)?;
        let home = match asked {
            Some((_, home)) => home,
            None => self.ask_home(sharding, &db)?,
        };
        if home != Home::Here {
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
