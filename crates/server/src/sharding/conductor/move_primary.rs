//! `movePrimary`: what is not sharded in a database goes to another shard, and the database with it.
//!
//! | phase | what is done in it |
//! | --- | --- |
//! | `copying` | the new shard takes the collections, while others write in them |
//! | `closing` | the old shard closes the database |
//! | `catching` | the new shard takes what has changed since, and what is capped |
//! | `entering` | the directory has the new primary shard |
//! | `opening` | the new shard opens the database, the old one drops what it had |
//! | `reopening` | instead, where it could not be: the new shard drops what it has taken, the old one opens |

use sheaf_bson::{ArrayBuf, DocBuf, RawDoc, Value, doc};
use sheaf_errors::{Code, Result, bail};
use sheaf_shard::ShardId;
use sheaf_shard::placement::KeyPattern;
use sheaf_storage::Interrupt;

use super::chunks::{COLLECTIONS, Entry};
use super::ddl::{DDL, Phase, name_of, reason, text, with};
use super::{Conductor, DATABASES, db_of, uuid_of, uuid_value};
use crate::args::Args;
use crate::sharding::participants::name;

impl Conductor {
    /// `{movePrimary: "garden", to: "s1"}`.
    ///
    /// Errors: `InvalidOptions`, `NamespaceNotFound`, `ShardNotFound`; those of the shards that may not pass.
    pub fn move_primary(&self, args: &mut Args<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
        let Value::String(db) = args.own_value() else {
            bail!(
                Code::TYPE_MISMATCH,
                "BSON field 'movePrimary.movePrimary' is the wrong type '{}', expected type 'string'",
                args.own_value().type_name()
            );
        };
        let to: &str = args.required("to")?;
        args.finish()?;
        crate::args::check_db_name(db)?;
        if matches!(db, "admin" | "config" | "local") {
            bail!(Code::INVALID_OPTIONS, "Can't move primary for {db} database");
        }
        if to.is_empty() {
            bail!(Code::INVALID_OPTIONS, "you have to specify where you want to move it");
        }
        let turn = self.turn(db, go_on)?;
        let from = self.primary_shard(db)?;
        let shards = self.shards()?;
        match shards.iter().find(|shard| shard.name == to) {
            None => bail!(Code::SHARD_NOT_FOUND, "Requested primary shard {to} does not exist"),
            Some(shard) if shard.draining && from != to => {
                bail!(Code::SHARD_NOT_FOUND, "Requested primary shard {to} is draining")
            }
            Some(_) if from == to => return Ok(doc! {}),
            Some(_) => {}
        }
        let begin = doc! { "_id": db, "op": "movePrimary", "phase": "copying", "from": &from, "to": to };
        self.perform(&turn, begin, go_on)
    }

    fn tell_of(&self, shard: &str, what: &str, named: &str, go_on: Interrupt<'_>) -> Result<DocBuf> {
        let step = self.step()?;
        self.tell(shard, &doc! { (what): named, "step": step }, go_on)
    }
}

/// One phase of it.
pub(super) fn phase(conductor: &Conductor, at: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<Phase> {
    let (db, from, to) = (name_of(at), text(at, "from"), text(at, "to"));
    let (done, next) = match text(at, "phase") {
        "copying" => (copy(conductor, at, go_on), "closing"),
        "closing" => {
            conductor.tell_of(from, name::LEAVE_DATABASE, db, go_on)?;
            (Ok(()), "catching")
        }
        "catching" => (catch_up(conductor, at, go_on), "entering"),
        "entering" => {
            enter(conductor, at, go_on)?;
            (Ok(()), "opening")
        }
        "opening" => {
            settle(conductor, to, db, Some("here"), go_on)?;
            settle(conductor, from, db, Some("gone"), go_on)?;
            conductor.change(go_on, |change| change.remove(DDL, Value::String(db)).map(|_| ()))?;
            return Ok(Phase::Over(doc! {}));
        }
        _ => {
            settle(conductor, to, db, Some("gone"), go_on)?;
            settle(conductor, from, db, None, go_on)?;
            conductor.change(go_on, |change| change.remove(DDL, Value::String(db)).map(|_| ()))?;
            return Ok(Phase::Refused(reason(at)));
        }
    };
    match done {
        Ok(()) => Ok(Phase::Reached(with(at, &[("phase", next.into())]))),
        Err(error) => Conductor::back(error, at, "reopening", go_on),
    }
}

fn settle(
    conductor: &Conductor,
    shard: &str,
    db: &str,
    state: Option<&str>,
    go_on: Interrupt<'_>,
) -> Result<()> {
    let step = conductor.step()?;
    let mut command = doc! { (name::SETTLE_DATABASE): db, "step": step };
    if let Some(state) = state {
        command.append("state", state);
    }
    conductor.tell(shard, &command, go_on).map(|_| ())
}

fn collections(told: RawDoc<'_>) -> impl Iterator<Item = RawDoc<'_>> {
    let list = told.get("collections").and_then(|list| list.as_array()).unwrap_or(RawDoc::EMPTY);
    list.values().filter_map(|collection| collection.as_doc())
}

fn is(collection: RawDoc<'_>, what: &str) -> bool {
    collection.get(what).is_some_and(|flag| flag.truthy())
}

/// The first copies, and the definitions of what is sharded, which every primary shard has.
fn copy(conductor: &Conductor, at: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<()> {
    let (db, from, to) = (name_of(at), text(at, "from"), text(at, "to"));
    conductor.tell_of(to, name::ARRIVE_DATABASE, db, go_on)?;
    for entry in conductor.find(COLLECTIONS, |entry| db_of(text(entry, "_id")) == db)? {
        define(conductor, &Entry::parse(entry)?, to, go_on)?;
    }
    let there = conductor.tell_of(from, name::LIST_DATABASE, db, go_on)?;
    for collection in collections(there.as_raw()).filter(|found| !is(*found, "view") && !is(*found, "capped"))
    {
        take(conductor, at, collection, false, go_on)?;
        sync(conductor, at, collection, go_on)?;
    }
    Ok(())
}

/// The new primary shard has a sharded collection, too.
fn define(conductor: &Conductor, entry: &Entry, to: &str, go_on: Interrupt<'_>) -> Result<()> {
    let (namespace, table) = (entry.namespace(), conductor.table(entry)?);
    if table.shards().any(|shard| shard.as_str() == to) {
        return Ok(());
    }
    let Some(owner) = table.shards().next() else { return Ok(()) };
    let described = conductor.tell(owner.as_str(), &doc! { (name::DESCRIBE): namespace }, go_on)?;
    let described = described.as_raw();
    let (placement, step) = (entry.placement(&table, &ShardId::new(to)), conductor.step()?);
    let command = doc! {
        (name::PLACE): namespace, "step": step, "uuid": uuid_value(&entry.uuid),
        "options": described.get_or_missing("options"), "indexes": described.get_or_missing("indexes"),
        "placement": placement.as_raw()
    };
    conductor.tell(to, &command, go_on).map(|_| ())
}

fn take(
    conductor: &Conductor,
    at: RawDoc<'_>,
    collection: RawDoc<'_>,
    fresh: bool,
    go_on: Interrupt<'_>,
) -> Result<()> {
    let step = conductor.step()?;
    let command = DocBuf::build(|out| {
        out.append(name::TAKE_COLLECTION, text(collection, "ns")).append("step", step);
        for field in ["uuid", "options", "indexes", "capped"] {
            out.append(field, collection.get_or_missing(field));
        }
        out.append("from", text(at, "from")).append("fresh", fresh);
    });
    conductor.tell(text(at, "to"), &command, go_on).map(|_| ())
}

/// All documents are taken as a range that has no ends.
fn sync(conductor: &Conductor, at: RawDoc<'_>, collection: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<()> {
    let pattern = KeyPattern::parse(doc! { "_id": 1 }.as_raw())?;
    let step = conductor.step()?;
    let command = doc! {
        (name::SYNC): text(collection, "ns"), "step": step, "uuid": collection.get_or_missing("uuid"),
        "key": pattern.document(), "min": pattern.min().document(), "max": pattern.max().document(),
        "from": text(at, "from")
    };
    conductor.tell(text(at, "to"), &command, go_on).map(|_| ())
}

/// So many collections are named to a shard in one go.
const COLLECTIONS_NAMED: usize = 10_000;

/// What is sent again is answered by the new shard as by the closed one. The closed one looks through its records of sessions once for
/// all collections, as there may be a million of sessions.
fn take_statements(
    conductor: &Conductor,
    at: RawDoc<'_>,
    all: &[RawDoc<'_>],
    go_on: Interrupt<'_>,
) -> Result<()> {
    for some in all.chunks(COLLECTIONS_NAMED) {
        let step = conductor.step()?;
        let namespaces = ArrayBuf::of(some.iter().map(|collection| text(*collection, "ns")));
        let command = doc! {
            (name::TAKE_STATEMENTS): name_of(at), "step": step, "from": text(at, "from"),
            "namespaces": Value::Array(namespaces.as_raw())
        };
        conductor.tell(text(at, "to"), &command, go_on)?;
    }
    Ok(())
}

/// The new shard has what the closed one has, and nothing else.
fn catch_up(conductor: &Conductor, at: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<()> {
    let (db, from, to) = (name_of(at), text(at, "from"), text(at, "to"));
    let there = conductor.tell_of(from, name::LEAVE_DATABASE, db, go_on)?;
    let there: Vec<RawDoc<'_>> = collections(there.as_raw()).collect();
    let here = conductor.tell_of(to, name::LIST_DATABASE, db, go_on)?;
    for old in collections(here.as_raw()) {
        if there
            .iter()
            .all(|now| uuid_of(*now, "uuid") != uuid_of(old, "uuid") || text(*now, "ns") != text(old, "ns"))
        {
            let step = conductor.step()?;
            let command =
                doc! { (name::DROP): text(old, "ns"), "step": step, "uuid": old.get_or_missing("uuid") };
            conductor.tell(to, &command, go_on)?;
        }
    }
    take_statements(conductor, at, &there, go_on)?;
    for collection in there {
        take(conductor, at, collection, false, go_on)?;
        if is(collection, "view") || is(collection, "capped") {
            continue;
        }
        match sync(conductor, at, collection, go_on) {
            // Documents have exchanged values that are unique.
            Err(error) if error.code() == Code::DUPLICATE_KEY => {
                take(conductor, at, collection, true, go_on)?;
                sync(conductor, at, collection, go_on)?;
            }
            done => done?,
        }
    }
    Ok(())
}

fn enter(conductor: &Conductor, at: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<()> {
    let (db, from, to) = (name_of(at), text(at, "from"), text(at, "to"));
    let now = conductor.now();
    conductor.change(go_on, |change| {
        let Some(known) = change.get(DATABASES, Value::String(db))? else {
            bail!(Code::NAMESPACE_NOT_FOUND, "database {db} not found");
        };
        if text(known.as_raw(), "primary") == to {
            // It was entered before.
            return Ok(());
        }
        let version =
            known.as_raw().get("version").and_then(|version| version.as_doc()).unwrap_or(RawDoc::EMPTY);
        let moved = version.get("lastMod").and_then(|count| count.as_exact_i64()).unwrap_or(0) as i32 + 1;
        let version = with(version, &[("timestamp", now.into()), ("lastMod", moved.into())]);
        let changes = [("primary", to.into()), ("version", version.as_raw().into())];
        change.put(DATABASES, with(known.as_raw(), &changes).as_raw())?;
        conductor.note(change, "movePrimary", db, doc! { "from": from, "to": to }.as_raw())
    })
}
