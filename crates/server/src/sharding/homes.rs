//! Databases that move from one shard to another (`movePrimary`): what of them is here.
//!
//! A database that was never moved has no document. `leaving` and `arriving`: it is under way, and requests of routers for what is not
//! sharded in it are refused, so that they wait until the directory tells where it is. `gone`: it has left; a router that does not know
//! yet is told so. `here`: it has come; what is read as of a time before is not here.

use std::collections::BTreeSet;
use std::sync::Arc;

use sheaf_bson::{ArrayBuf, Binary, DocBuf, RawDoc, Value, doc};
use sheaf_errors::{Code, Result, bail};
use sheaf_storage::{Collection, Interrupt, Told, Uuid, View, Write};

use super::databases::stale_database;
use super::marks::{PLACEMENTS, uuid_value};
use super::participants::{Asked, HOMES, STEPS, description, name, only_closed};
use super::rows;
use crate::node::Node;
use crate::op::Operation;

/// So many bytes of a capped collection are inserted together.
const TOGETHER: usize = 4 << 20;

fn state_of(known: Option<&DocBuf>) -> &str {
    known.and_then(|known| known.as_raw().get("state")?.as_str()).unwrap_or_default()
}

fn is_away(state: &str) -> bool {
    matches!(state, "leaving" | "arriving" | "gone")
}

impl Operation<'_> {
    /// Whether what is read in this state of a database that may have moved is what the cluster has of it.
    ///
    /// Errors: `StaleDbVersion`, where it does not live here; `SnapshotUnavailable`, where it did not at the time that is read.
    pub(crate) fn check_home(&self, view: &View, db: &str) -> Result<()> {
        let is_own = matches!(db, "admin" | "config" | "local");
        if is_own {
            return Ok(());
        }
        self.check_not_dropped(db)?;
        if self.catalog().collection(HOMES).is_none_or(|homes| homes.count() == 0) {
            return Ok(());
        }
        let then = rows::get(view, HOMES, Value::String(db))?;
        let now = rows::get(&self.engine().view()?, HOMES, Value::String(db))?;
        let (then, now) = (state_of(then.as_ref()), state_of(now.as_ref()));
        let reads_a_time = self.in_transaction() || self.snapshot.borrow().is_some();
        if now == "here" && then != "here" && reads_a_time {
            bail!(Code::SNAPSHOT_UNAVAILABLE, "database {db} was on another shard at the time that is read");
        }
        if is_away(then) || (now == "here" && then.is_empty()) {
            return Err(stale_database(db));
        }
        Ok(())
    }

    /// The same for a write in the newest state.
    ///
    /// Errors: `StaleDbVersion`.
    pub(crate) fn check_home_now(&self, db: &str) -> Result<()> {
        self.check_not_dropped(db)?;
        self.check_not_away(db)
    }

    /// The same as far as this shard knows it, where nobody can be asked.
    ///
    /// Errors: `StaleDbVersion`.
    pub(crate) fn check_not_away(&self, db: &str) -> Result<()> {
        if is_away(&self.home_state(db)?) { Err(stale_database(db)) } else { Ok(()) }
    }

    /// Whether a client that is connected to this shard may change collections of a database: not while that moves.
    ///
    /// Errors: `ConflictingOperationInProgress`.
    pub(crate) fn check_home_for_client(&self, db: &str) -> Result<()> {
        match &*self.home_state(db)? {
            "leaving" | "arriving" => {
                bail!(
                    Code::CONFLICTING_OPERATION_IN_PROGRESS,
                    "database {db} moves to another shard: try again, through a router (mongos)"
                )
            }
            _ => Ok(()),
        }
    }

    /// The newest state of a database that has ever moved; empty of any other.
    fn home_state(&self, db: &str) -> Result<String> {
        let catalog = self.catalog();
        let Some(homes) = catalog.collection(HOMES).filter(|homes| homes.count() > 0) else {
            return Ok(String::new());
        };
        let key = homes.record_key(Value::String(db))?;
        let state = self.engine().get(homes, &key)?;
        let state = state.as_ref().and_then(|known| RawDoc::new(known).get("state")?.as_str());
        Ok(state.unwrap_or_default().to_owned())
    }
}

fn set_state(asked: &Asked<'_>, state: &str) -> Result<()> {
    rows::ensure(asked.engine, HOMES, asked.go_on)?;
    let known = doc! { "_id": asked.namespace, "state": state };
    rows::change(asked.engine, asked.go_on, |change| change.put(HOMES, known.as_raw())).map(|_| ())
}

/// Collections are not made by what was known before, and those that are just being made are there.
fn pass_creations(node: &Node, asked: &Asked<'_>) -> Result<()> {
    if let Some(sharding) = node.sharding() {
        sharding.note_leave();
    }
    asked.engine.coll_mod(STEPS, &only_closed, asked.go_on).map(|_| ())
}

/// The collections and views of a database that are not sharded.
fn unsharded(asked: &Asked<'_>, db: &str) -> Result<Vec<Arc<Collection>>> {
    let view = asked.engine.view()?;
    let mut sharded = BTreeSet::new();
    rows::find(&view, PLACEMENTS, |placement| {
        if let Some(Value::Binary(Binary { bytes, .. })) = placement.get("_id") {
            sharded.insert(bytes.to_vec());
        }
        false
    })?;
    let catalog = asked.engine.catalog();
    let all =
        catalog.collections(db).filter(|collection| !sharded.contains(collection.uuid.as_bytes().as_slice()));
    Ok(all.cloned().collect())
}

fn listed(asked: &Asked<'_>) -> Result<DocBuf> {
    let mut list = Vec::new();
    for collection in unsharded(asked, asked.namespace)? {
        let mut entry = description(&collection);
        entry.append("ns", collection.namespace.as_str());
        entry.append("capped", collection.capped.is_some()).append("view", collection.is_view());
        list.push(entry);
    }
    let list = ArrayBuf::of(list.iter().map(DocBuf::as_raw));
    Ok(doc! { "collections": Value::Array(list.as_raw()) })
}

/// [`name::LIST_DATABASE`]: what of a database is not sharded.
pub fn list(node: &Arc<Node>, body: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
    Asked::with(node, body, go_on, listed)
}

/// [`name::LEAVE_DATABASE`]: nothing unsharded changes in it any more. Gives what there is.
pub fn leave(node: &Arc<Node>, body: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
    Asked::with(node, body, go_on, |asked| {
        set_state(asked, "leaving")?;
        pass_creations(node, asked)?;
        for collection in unsharded(asked, asked.namespace)?.iter().filter(|found| !found.is_view()) {
            match asked.engine.coll_mod(&collection.namespace, &only_closed, go_on) {
                Err(error) if error.code() != Code::NAMESPACE_NOT_FOUND => return Err(error),
                _ => {}
            }
        }
        listed(asked)
    })
}

/// [`name::ARRIVE_DATABASE`]: nobody finds what is about to come.
pub fn arrive(node: &Arc<Node>, body: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
    Asked::with(node, body, go_on, |asked| {
        set_state(asked, "arriving")?;
        pass_creations(node, asked)?;
        Ok(doc! {})
    })
}

/// [`name::SETTLE_DATABASE`]: the database has come (`here`), or has left (`gone`): what of it is not sharded is dropped then. Without a
/// state it stays, and is open as before.
pub fn settle(node: &Arc<Node>, body: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
    Asked::with(node, body, go_on, |asked| {
        let state = body.get("state").and_then(|state| state.as_str());
        let Some(state) = state else {
            rows::ensure(asked.engine, HOMES, go_on)?;
            let id = Value::String(asked.namespace);
            rows::change(asked.engine, go_on, |change| change.remove(HOMES, id).map(|_| ()))?;
            return Ok(doc! {});
        };
        set_state(asked, state)?;
        if state == "gone" {
            for collection in unsharded(asked, asked.namespace)? {
                drop_it(asked, &collection)?;
                node.metrics.forget(&collection.namespace);
            }
        }
        Ok(doc! {})
    })
}

fn drop_it(asked: &Asked<'_>, collection: &Collection) -> Result<()> {
    let uuid = collection.uuid;
    let check = |now: &Collection| match now.uuid == uuid {
        true => Ok(()),
        false => bail!(Code::NAMESPACE_NOT_FOUND, "{} is another collection now", now.namespace),
    };
    match asked.engine.drop_collection_if(&collection.namespace, &check, Told::Elsewhere, asked.go_on) {
        Err(error) if error.code() != Code::NAMESPACE_NOT_FOUND => Err(error),
        _ => Ok(()),
    }
}

/// [`name::TAKE_COLLECTION`]: a collection is as it is on the shard that its database leaves, apart from its documents; a capped one is made
/// anew with them, in their order.
///
/// Errors: `InvalidUUID`, if this shard has documents of another collection of this name.
pub fn take(node: &Arc<Node>, body: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
    Asked::with(node, body, go_on, |asked| {
        let uuid = asked.uuid("uuid")?;
        let is_capped = body.get("capped").is_some_and(|capped| capped.truthy());
        let is_fresh = is_capped || body.get("fresh").is_some_and(|fresh| fresh.truthy());
        let catalog = asked.engine.catalog();
        if let Some(known) = catalog.collection(asked.namespace).filter(|known| known.uuid == uuid)
            && (is_fresh || !is_same(known, body))
        {
            drop_it(asked, known)?;
        }
        asked.make(uuid)?;
        if is_capped {
            copy_in_order(node, asked, uuid)?;
        }
        Ok(doc! {})
    })
}

/// Whether a collection has the options and indexes that the command names.
fn is_same(known: &Collection, body: RawDoc<'_>) -> bool {
    let own = description(known);
    ["options", "indexes"]
        .iter()
        .all(|name| sheaf_bson::compare(own.as_raw().get_or_missing(name), body.get_or_missing(name)).is_eq())
}

fn copy_in_order(node: &Arc<Node>, asked: &Asked<'_>, uuid: Uuid) -> Result<()> {
    let (Some(sharding), catalog) = (node.sharding(), asked.engine.catalog()) else { return Ok(()) };
    let Some(collection) = catalog.by_uuid(&uuid) else { return Ok(()) };
    let from = asked.text("from");
    let mut after: Option<Vec<u8>> = None;
    loop {
        let mut ask = doc! { (name::RECORDS): asked.namespace, "uuid": uuid_value(uuid.as_bytes()) };
        if let Some(after) = &after {
            ask.append("after", Value::Binary(Binary { subtype: 0, bytes: after }));
        }
        let told = sharding.ask_shard(from, &ask, asked.go_on)?;
        let told = told.as_raw();
        let list = told.get("documents").and_then(|list| list.as_array()).unwrap_or(RawDoc::EMPTY);
        let mut unit = asked.engine.write(asked.go_on);
        let passed = unit.collection(asked.namespace)?;
        if passed.is_none_or(|now| now.uuid != collection.uuid) {
            bail!(Code::NAMESPACE_NOT_FOUND, "{} was dropped meanwhile", asked.namespace);
        }
        for document in list.values().filter_map(|document| document.as_doc()) {
            unit.insert(collection, document)?;
        }
        unit.commit()?;
        match told.get("last") {
            Some(Value::Binary(Binary { bytes, .. })) => after = Some(bytes.to_vec()),
            _ => return Ok(()),
        }
    }
}

/// [`name::RECORDS`]: documents of a collection in the order of its records, behind `after`; `last` where there may be more.
pub fn records(node: &Arc<Node>, body: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
    let uuid = match body.get("uuid") {
        Some(Value::Binary(Binary { bytes, .. })) => Uuid::from_slice(bytes).unwrap_or_default(),
        _ => bail!(Code::FAILED_TO_PARSE, "an internal command names no collection"),
    };
    let view = node.engine().decided_view()?;
    let Some(collection) = view.catalog().by_uuid(&uuid).cloned() else {
        bail!(Code::NAMESPACE_NOT_FOUND, "the collection {uuid} is not here");
    };
    let mut range = sheaf_storage::Range::ALL;
    if let Some(Value::Binary(Binary { bytes, .. })) = body.get("after") {
        range.lower = std::ops::Bound::Excluded(bytes.to_vec());
    }
    let mut cursor = view.records(&collection, range, sheaf_storage::Direction::Forward)?;
    let (mut found, mut size) = (Vec::new(), 0);
    let mut last = None;
    while cursor.next()? {
        go_on()?;
        size += cursor.bytes().len();
        found.push(DocBuf::from(cursor.doc()));
        if size >= TOGETHER {
            last = Some(cursor.key().to_vec());
            break;
        }
    }
    let list = ArrayBuf::of(found.iter().map(DocBuf::as_raw));
    let mut told = doc! { "documents": Value::Array(list.as_raw()) };
    if let Some(last) = &last {
        told.append("last", Value::Binary(Binary { subtype: 0, bytes: last }));
    }
    Ok(told)
}
