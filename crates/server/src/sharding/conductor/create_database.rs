//! Making databases: each lives on one shard, which the directory names.
//!
//! It is done in the database's turn, so it waits while one of that name is being dropped: what shards drop then, the last time after
//! the directory has forgotten the old one, is never the new one's.

use std::collections::BTreeMap;

use sheaf_bson::{DocBuf, RawDoc, Value, doc};
use sheaf_errors::{Code, Result, bail};
use sheaf_storage::{Interrupt, Uuid};

use super::ddl::text;
use super::{Conductor, DATABASES, uuid_value};
use crate::sharding::turns::Turn;

impl Conductor {
    /// Makes a database on the shard that has the fewest, or on `wanted`, if there is none of this name. Gives the fields of the reply.
    ///
    /// Errors: `DatabaseDifferCase`; `ShardNotFound`.
    pub fn create_database(&self, db: &str, wanted: Option<&str>, go_on: Interrupt<'_>) -> Result<DocBuf> {
        if matches!(db, "admin" | "config" | "local") {
            bail!(Code::INVALID_OPTIONS, "Cannot manually create or shard the '{db}' database");
        }
        let turn = self.turn(db, go_on)?;
        self.ensure_database(&turn, db, wanted, go_on)
    }

    /// The same in the database's turn, by whoever does more in it.
    pub(super) fn ensure_database(
        &self,
        _turn: &Turn<'_>,
        db: &str,
        wanted: Option<&str>,
        go_on: Interrupt<'_>,
    ) -> Result<DocBuf> {
        if let Some(known) = self.get(DATABASES, Value::String(db))? {
            return Ok(shown(known.as_raw()));
        }
        self.check_case(db)?;
        let primary = match wanted {
            Some(wanted) if self.shards()?.iter().any(|shard| shard.name == wanted) => wanted.to_owned(),
            Some(wanted) => bail!(Code::SHARD_NOT_FOUND, "Shard {wanted} not found"),
            None => self.emptiest()?,
        };
        let entry = self.database_entry(db, &primary);
        self.change(go_on, |change| change.put(DATABASES, entry.as_raw()))?;
        Ok(shown(entry.as_raw()))
    }

    /// The directory's document for a new database that lives on this shard.
    pub(super) fn database_entry(&self, db: &str, primary: &str) -> DocBuf {
        let uuid = *Uuid::new_v4().as_bytes();
        doc! {
            "_id": db, "primary": primary,
            "version": { "uuid": uuid_value(&uuid), "timestamp": self.now(), "lastMod": 1 }
        }
    }

    /// Two databases must not differ by case alone.
    fn check_case(&self, db: &str) -> Result<()> {
        let like = self.find(DATABASES, |known| text(known, "_id").eq_ignore_ascii_case(db))?;
        let Some(other) = like.first() else { return Ok(()) };
        bail!(
            Code::DATABASE_DIFFER_CASE,
            "can't have 2 databases that just differ on case  have: {} want to add: {db}",
            text(other.as_raw(), "_id")
        );
    }

    /// The shard that has the fewest databases, of those that are not being emptied.
    fn emptiest(&self) -> Result<String> {
        let shards = self.shards()?;
        let stay = shards.iter().filter(|shard| !shard.draining);
        let mut counts: BTreeMap<&str, usize> = stay.map(|shard| (shard.name.as_str(), 0)).collect();
        for known in self.find(DATABASES, |_| true)? {
            if let Some(count) = counts.get_mut(text(known.as_raw(), "primary")) {
                *count += 1;
            }
        }
        let emptiest = counts.into_iter().min_by_key(|(_, count)| *count);
        let Some((name, _)) = emptiest else { bail!(Code::SHARD_NOT_FOUND, "No shards found") };
        Ok(name.to_owned())
    }
}

fn shown(entry: RawDoc<'_>) -> DocBuf {
    doc! { "primaryShard": text(entry, "primary"), "databaseVersion": entry.get_or_missing("version") }
}
