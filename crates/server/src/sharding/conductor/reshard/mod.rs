//! Giving a collection another key or place: `reshardCollection`, `moveCollection`, `unshardCollection`.
//!
//! | phase | what is done in it |
//! | --- | --- |
//! | `preparing` | the recipients and the primary shard make a hidden collection with the new UUID |
//! | `copying` | the recipients take what is to be theirs, while others write in the collection, until little is left |
//! | `closing` | the donors close the collection, the recipients take the rest |
//! | `entering` | the directory has the new UUID, key and chunks: it is decided |
//! | `opening` | the hidden collection takes the name on its shards, the others drop what they had |
//! | `reopening` | instead of the last two, where it could not be: the hidden collection goes, the donors open |
//!
//! What it means is told in `docs/design/0029-resharding.md`.

mod begin;
mod ends;
mod fetching;
mod layout;
mod new_key;
mod progress;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use sheaf_bson::{ArrayBuf, DocBuf, RawDoc, Value, doc};
use sheaf_errors::{Code, Result, bail};
use sheaf_shard::ShardId;
use sheaf_shard::placement::{KeyPattern, RoutingTable};
use sheaf_storage::Interrupt;
use sheaf_timeseries::ENTRY_FIELD;

use super::chunks::{CHUNKS, COLLECTIONS, table_of};
use super::ddl::{DDL, Phase, name_of, reason, text, with};
use super::shards::may_pass;
use super::{Conductor, collection_entry, db_of, uuid_of, uuid_value};
use crate::sharding::hidden::{hidden_names, same_indexes};
use crate::sharding::participants::name;

/// How long writers may wait for shards that do not answer.
const CLOSED: Duration = Duration::from_secs(5);

/// How long what failed waits before it is tried again.
const PAUSE: Duration = Duration::from_millis(20);

/// The document as its fields.
#[derive(Clone, Copy)]
struct At<'d>(RawDoc<'d>);

impl<'d> At<'d> {
    fn namespace(self) -> &'d str {
        name_of(self.0)
    }

    fn pattern(self) -> Result<KeyPattern> {
        KeyPattern::parse(self.0.get("key").and_then(|key| key.as_doc()).unwrap_or(RawDoc::EMPTY))
    }

    fn new_uuid(self) -> [u8; 16] {
        uuid_of(self.0, "uuid").unwrap_or_default()
    }

    fn flag(self, name: &str) -> bool {
        self.0.get(name).is_some_and(|flag| flag.truthy())
    }

    fn list(self, name: &str) -> impl Iterator<Item = RawDoc<'d>> {
        let list = self.0.get(name).and_then(|list| list.as_array()).unwrap_or(RawDoc::EMPTY);
        list.values().filter_map(|entry| entry.as_doc())
    }

    /// The table that is to be.
    fn table(self) -> Result<RoutingTable> {
        table_of(&self.pattern()?, self.new_uuid(), self.list("chunks"))
    }

    /// The names of the hidden collection, and of an old one on its way out.
    fn hidden(self) -> (String, String) {
        hidden_names(
            db_of(self.namespace()),
            &self.new_uuid(),
            &uuid_of(self.0, "source").unwrap_or_default(),
        )
    }

    /// The shards that have the old collection: its owners and the primary shard.
    fn old(self) -> BTreeSet<&'d str> {
        self.list("donors").map(|donor| text(donor, "shard")).chain([text(self.0, "primary")]).collect()
    }

    /// The shards that will have the new one.
    fn participants(self) -> Result<BTreeSet<String>> {
        let table = self.table()?;
        let owners = table.shards().map(|shard| shard.as_str().to_owned());
        Ok(owners.chain([text(self.0, "primary").to_owned()]).collect())
    }

    fn placement(self, table: &RoutingTable, shard: &str) -> DocBuf {
        let placement = table.placement(self.namespace(), self.flag("unique"), &ShardId::new(shard));
        match self.flag("unsplittable") {
            true => placement.with("unsplittable", true),
            false => placement,
        }
    }
}

/// One phase of it.
pub(super) fn phase(conductor: &Conductor, at: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<Phase> {
    let state = match text(at, "phase") {
        "preparing" => Some("preparing-to-donate"),
        "copying" => Some("cloning"),
        "closing" => Some("blocking-writes"),
        "reopening" => Some("aborting"),
        _ => None,
    };
    if let Some(state) = state {
        progress::note(conductor, At(at), state, go_on)?;
    }
    let (of, is_next) = (At(at), |next: &str| Phase::Reached(with(at, &[("phase", next.into())])));
    match text(at, "phase") {
        "preparing" => match prepare(conductor, of, go_on) {
            Err(error) => Conductor::back(error, at, "reopening", go_on),
            Ok(()) => Ok(is_next("copying")),
        },
        "copying" => match fetching::until_near(conductor, of, go_on) {
            Err(error) => Conductor::back(error, at, "reopening", go_on),
            Ok(()) => Ok(is_next("closing")),
        },
        "closing" => match close_in_time(conductor, of, go_on) {
            Err(error) => Conductor::back(error, at, "reopening", go_on),
            Ok(()) => Ok(is_next("entering")),
        },
        "entering" => {
            enter(conductor, of, go_on)?;
            Ok(is_next("telling"))
        }
        "telling" => {
            tell_streams(conductor, of, go_on)?;
            Ok(is_next("opening"))
        }
        "opening" => {
            open(conductor, of, go_on)?;
            over(conductor, of, None, go_on)?;
            Ok(Phase::Over(doc! {}))
        }
        _ => {
            reopen(conductor, of, go_on)?;
            let why = reason(at);
            over(conductor, of, Some(why.message()), go_on)?;
            Ok(Phase::Refused(why))
        }
    }
}

fn prepare(conductor: &Conductor, at: At<'_>, go_on: Interrupt<'_>) -> Result<()> {
    let (hidden, _) = at.hidden();
    for shard in at.participants()? {
        let step = conductor.step()?;
        let command = doc! {
            (name::PREPARE): &hidden, "step": step, "uuid": at.0.get_or_missing("uuid"), "key": at.0.get_or_missing("key"),
            "options": at.0.get_or_missing("options"), "indexes": at.0.get_or_missing("indexes")
        };
        conductor.tell(&shard, &command, go_on)?;
    }
    Ok(())
}

/// Closes it, unless what may pass does not pass in time: writers wait meanwhile.
fn close_in_time(conductor: &Conductor, at: At<'_>, go_on: Interrupt<'_>) -> Result<()> {
    let began = Instant::now();
    loop {
        match close(conductor, at, go_on) {
            Err(error) if may_pass(&error) => {
                go_on()?;
                if began.elapsed() > CLOSED {
                    bail!(
                        Code::RESHARDING_CRITICAL_SECTION_TIMEOUT,
                        "the rest of {} could not be copied in time: {}",
                        at.namespace(),
                        error.message()
                    );
                }
                std::thread::sleep(PAUSE);
            }
            done => return done,
        }
    }
}

/// Nothing of the old collection changes any more, and the hidden one becomes the same.
fn close(conductor: &Conductor, at: At<'_>, go_on: Interrupt<'_>) -> Result<()> {
    for shard in at.old() {
        let step = conductor.step()?;
        let command = doc! {
            (name::SHUT): at.namespace(), "step": step, "uuid": at.0.get_or_missing("source"),
            "key": at.0.get_or_missing("oldKey"), "unique": at.0.get_or_missing("oldUnique"),
            "plain": !at.flag("tracked")
        };
        let closed = conductor.tell(shard, &command, go_on)?;
        let now = closed.as_raw().get_or_missing("indexes");
        let is_donor = at.list("donors").any(|donor| text(donor, "shard") == shard);
        if is_donor && !same_indexes(now, at.0.get_or_missing("oldIndexes")) {
            bail!(
                Code::RESHARD_COLLECTION_ABORTED,
                "the indexes of {} have changed while it was copied",
                at.namespace()
            );
        }
    }
    fetching::all(conductor, at, true, go_on).map(|_| ())
}

fn enter(conductor: &Conductor, at: At<'_>, go_on: Interrupt<'_>) -> Result<()> {
    let (namespace, pattern, new) = (at.namespace(), at.pattern()?, at.new_uuid());
    let old = uuid_of(at.0, "source").unwrap_or_default();
    let since = conductor.now();
    let collation = at.0.get("options").and_then(|options| options.as_doc()?.get("collation")?.as_doc());
    let lived = conductor.front.clock.now_millis();
    let entry =
        collection_entry(namespace, &new, pattern.document(), at.flag("unique"), collation, (since, lived));
    let entry = match at.flag("unsplittable") {
        true => entry.with("unsplittable", true),
        false => entry.with("reshardingUUID", at.0.get_or_missing("id")),
    };
    let timeseries = at.0.get("options").and_then(|options| options.as_doc()?.get("timeseries"));
    let entry = match timeseries {
        Some(timeseries) => entry.with(ENTRY_FIELD, timeseries),
        None => entry,
    };
    conductor.change(go_on, |change| {
        let known = change.get(COLLECTIONS, Value::String(namespace))?;
        if known.is_some_and(|known| uuid_of(known.as_raw(), "uuid") == Some(new)) {
            // It was entered before.
            return Ok(());
        }
        for chunk in change.find(CHUNKS, |chunk| uuid_of(chunk, "uuid") == Some(old))? {
            change.remove(CHUNKS, chunk.as_raw().get_or_missing("_id"))?;
        }
        for chunk in at.list("chunks") {
            change.put(CHUNKS, chunk)?;
        }
        for tag in change.find("config.tags", |tag| text(tag, "ns") == namespace)? {
            change.remove("config.tags", tag.as_raw().get_or_missing("_id"))?;
        }
        for tag in at.list("zones") {
            change.put("config.tags", tag)?;
        }
        change.put(COLLECTIONS, entry.as_raw())?;
        change.put(progress::OPERATIONS, progress::document(at, "committing")?.as_raw())?;
        let details = doc! {
            "reshardUUID": at.0.get_or_missing("id"), "newUUID": uuid_value(&new), "shardKey": pattern.document()
        };
        conductor.note(change, &format!("{}.commit", text(at.0, "command")), namespace, details.as_raw())
    })
}

/// Change streams are told, of the collection as it was before: it is closed still, so that what is done to the new one comes later.
fn tell_streams(conductor: &Conductor, at: At<'_>, go_on: Interrupt<'_>) -> Result<()> {
    let (command, key) = (text(at.0, "command"), at.0.get_or_missing("key"));
    let event = DocBuf::build(|event| match command {
        "shardCollection" => {
            event.append("shardCollection", at.namespace()).append("shardKey", key);
            event
                .append("unique", at.flag("unique"))
                .append("numInitialChunks", at.list("chunks").count() as i64);
            event.append("presplitHashedZones", false);
        }
        _ => {
            event
                .append("reshardCollection", at.namespace())
                .append("reshardUUID", at.0.get_or_missing("id"));
            event.append("shardKey", key).append("oldShardKey", at.0.get_or_missing("oldKey"));
            event.append("unique", at.flag("unique"));
            event.append_all(at.0.get("told").and_then(|told| told.as_doc()).unwrap_or(RawDoc::EMPTY));
            event.append("provenance", command);
            let zones = at.list("zones").map(|tag| {
                let (min, max) = (tag.get_or_missing("min"), tag.get_or_missing("max"));
                doc! { "zone": tag.get_or_missing("tag"), "min": min, "max": max }
            });
            let zones: Vec<DocBuf> = zones.collect();
            if !zones.is_empty() {
                let zones = ArrayBuf::of(zones.iter().map(DocBuf::as_raw));
                event.append("zones", Value::Array(zones.as_raw()));
            }
        }
    });
    let about = with(at.0, &[("uuid", at.0.get_or_missing("source"))]);
    conductor.notify(text(at.0, "primary"), about.as_raw(), &event, go_on)
}

fn open(conductor: &Conductor, at: At<'_>, go_on: Interrupt<'_>) -> Result<()> {
    let (table, (hidden, gone)) = (at.table()?, at.hidden());
    let participants = at.participants()?;
    let about = |what: &str| -> Result<DocBuf> {
        let step = conductor.step()?;
        Ok(doc! {
            (what): at.namespace(), "step": step, "id": at.0.get_or_missing("id"),
            "uuid": at.0.get_or_missing("uuid"), "source": at.0.get_or_missing("source")
        })
    };
    for shard in &participants {
        let placement = at.placement(&table, shard);
        let command = about(name::SWAP)?.with("hidden", &*hidden).with("placement", placement.as_raw());
        conductor.tell(shard, &command, go_on)?;
    }
    for shard in at.old().into_iter().filter(|shard| !participants.contains(*shard)) {
        conductor.tell(shard, &about(name::RETIRE)?.with("gone", &*gone), go_on)?;
    }
    Ok(())
}

/// Everything is as it was before. A shard that does not answer keeps the others from nothing.
fn reopen(conductor: &Conductor, at: At<'_>, go_on: Interrupt<'_>) -> Result<()> {
    let ((hidden, _), namespace) = (at.hidden(), at.namespace());
    let mut done = Vec::new();
    match conductor.entry(namespace)? {
        Some(entry) if uuid_of(at.0, "source") == Some(entry.uuid) => {
            for shard in at.old() {
                done.push(conductor.open_everywhere(namespace, &entry, &[shard.to_owned()], go_on));
            }
        }
        // It was dropped and made anew, by a router that knows nothing of this.
        Some(_) => {}
        None => {
            let step = conductor.step()?;
            let command = doc! { (name::OPEN): namespace, "step": step };
            done.push(conductor.tell(text(at.0, "primary"), &command, go_on).map(|_| ()));
        }
    }
    for shard in at.participants()? {
        let step = conductor.step()?;
        let command = doc! {
            (name::GIVE_UP): &hidden, "step": step, "id": at.0.get_or_missing("id"),
            "uuid": at.0.get_or_missing("uuid")
        };
        done.push(conductor.tell(&shard, &command, go_on).map(|_| ()));
    }
    for donor in at.list("donors") {
        let command = doc! { (name::END_NOTES): namespace, "id": at.0.get_or_missing("id") };
        done.push(conductor.tell(text(donor, "shard"), &command, go_on).map(|_| ()));
    }
    done.into_iter().collect()
}

/// The operation is over, or was given up for a reason.
fn over(conductor: &Conductor, at: At<'_>, why: Option<&str>, go_on: Interrupt<'_>) -> Result<()> {
    let command = text(at.0, "command");
    let what = if why.is_none() { format!("{command}.end") } else { format!("{command}.error") };
    conductor.change(go_on, |change| {
        let mut details = doc! { "reshardUUID": at.0.get_or_missing("id") };
        if let Some(why) = why {
            details.append("errmsg", why);
        }
        conductor.note(change, &what, at.namespace(), details.as_raw())?;
        change.remove(progress::OPERATIONS, at.0.get_or_missing("id"))?;
        change.remove(DDL, Value::String(at.namespace())).map(|_| ())
    })?;
    conductor.wishes.forget(at.namespace());
    Ok(())
}
