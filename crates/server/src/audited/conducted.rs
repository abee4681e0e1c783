//! What a conductor has a shard do: its commands say what they are for in many ways, so the audit log is told of what has become of the
//! collections that they name.

use std::collections::BTreeMap;
use std::sync::Arc;

use sheaf_bson::RawDoc;
use sheaf_errors::{Code, Result};
use sheaf_front::audit::noted::{note, room_for};
use sheaf_storage::{Catalog, Collection, Index, Uuid};
use sheaf_timeseries::split_buckets;

use super::{Creation, dropped, indexes_built, indexes_dropped, renamed, room_for_indexes};
use crate::commands::ddl::names;
use crate::op::Operation;
use crate::sharding::participants::name::DROP_DATABASE;

/// Collections that are put in others' places, or wait for that.
const OF_RESHARDING: &str = "system.resharding.";

/// What a conductor's command is about, as it was before.
pub struct Conducted<'o, 'a> {
    op: &'o Operation<'a>,
    db: &'a str,
    /// Whether it is about the database as a whole.
    is_whole: bool,
    before: Arc<Catalog>,
}

type Known<'c> = BTreeMap<Uuid, &'c Arc<Collection>>;

impl<'o, 'a> Conducted<'o, 'a> {
    /// Looks at it, if there is an audit log.
    ///
    /// Errors: `OutOfDiskSpace`. Then the command must not run.
    pub fn of(op: &'o Operation<'a>) -> Result<Option<Self>> {
        if op.front.audit.is_none() {
            return Ok(None);
        }
        let named = op.body.iter().next().and_then(|first| first.value().as_str()).unwrap_or_default();
        let db = names::split(named).0;
        let conducted = Conducted { op, db, is_whole: db == named, before: op.engine().catalog() };
        let known = conducted.known(&conducted.before);
        let names = || known.values().map(|collection| collection.namespace.as_str()).chain([named]);
        // One may go, and one come in its place.
        room_for(op, names().chain(names()))?;
        // Their indexes go, or what comes has the same; and then there are those that are to be made.
        let own = known.values().flat_map(|collection| collection.indexes.iter());
        room_for_indexes(op, own.map(|index| index.spec.as_raw()))?;
        let new = op.body.iter().filter_map(|field| field.value().as_array()).flat_map(RawDoc::values);
        room_for_indexes(op, new.filter_map(|spec| spec.as_doc()))?;
        Ok(Some(conducted))
    }

    /// Whether a command is about this collection: it names it, or its whole database.
    fn is_meant(&self, collection: &Collection) -> bool {
        let body: RawDoc<'_> = self.op.body;
        let (_, name) = names::split(&collection.namespace);
        let measurements = split_buckets(&collection.namespace);
        self.is_whole
            || name.starts_with(OF_RESHARDING)
            || body.iter().filter_map(|field| field.value().as_str()).any(|named| {
                named == collection.namespace
                    || measurements.is_some_and(|(db, of)| named.strip_prefix(db) == Some(&format!(".{of}")))
                    || split_buckets(named) == Some((self.db, name))
            })
    }

    fn known<'c>(&self, catalog: &'c Catalog) -> Known<'c> {
        let meant = catalog.collections(self.db).filter(|collection| self.is_meant(collection));
        meant.map(|collection| (collection.uuid, collection)).collect()
    }

    /// The command has ended, in whichever way: tells what is another now.
    pub fn done(self) {
        let after = self.op.engine().catalog();
        self.database_is_gone(&after);
        if Arc::ptr_eq(&after, &self.before) {
            return;
        }
        let (old, new) = (self.known(&self.before), self.known(&after));
        for collection in old.values().filter(|collection| !new.contains_key(&collection.uuid)) {
            dropped(self.op, &collection.namespace, Code::OK);
        }
        let mut makes_database = !self.before.has_database(self.db);
        for (uuid, collection) in &new {
            match old.get(uuid) {
                Some(before) if before.namespace != collection.namespace => {
                    renamed(self.op, &before.namespace, &collection.namespace);
                }
                Some(_) => {}
                None => {
                    let view = collection.view.as_ref().map(|(on, stages)| (on.as_str(), stages.as_raw()));
                    Creation { makes_database: std::mem::take(&mut makes_database) }.done(
                        self.op,
                        &collection.namespace,
                        view,
                    );
                }
            }
            self.indexes(old.get(uuid).copied(), collection);
        }
    }

    /// A database whose sharded collections were all that there was is gone before the command comes that drops it.
    fn database_is_gone(&self, after: &Catalog) {
        let is_copy = self.op.body.get("copy").is_some_and(|copy| copy.truthy());
        let drops = self.op.command.name == DROP_DATABASE && !is_copy;
        if self.is_whole && !after.has_database(self.db) && (drops || self.before.has_database(self.db)) {
            note(self.op, "dropDatabase", Code::OK, || sheaf_bson::doc! { "ns": self.db });
        }
    }

    fn indexes(&self, before: Option<&Arc<Collection>>, now: &Arc<Collection>) {
        let ready = |index: &&Arc<Index>| index.ready && index.name != "_id_";
        let has =
            |collection: &Collection, name: &str| collection.index(name).is_some_and(|index| ready(&index));
        let made = now.indexes.iter().filter(ready);
        let made = made.filter(|index| before.is_none_or(|before| !has(before, &index.name)));
        let made: Vec<_> = made.map(|index| index.spec.clone()).collect();
        indexes_built(self.op, &now.namespace, &made, Code::OK);
        let gone = before.into_iter().flat_map(|before| before.indexes.iter().filter(ready));
        let gone = gone.filter(|index| now.index(&index.name).is_none());
        let gone: Vec<_> = gone.map(|index| index.name.clone()).collect();
        indexes_dropped(self.op, &now.namespace, &gone);
    }
}
