//! Reading: one consistent state.

use std::ops::Deref;
use std::sync::Arc;

use rocksdb::ReadOptions;
use sheaf_bson::{RawDoc, Timestamp};
use sheaf_errors::Result;

use crate::catalog::{Catalog, Collection};
use crate::db::values::Stored;
use crate::db::{Cf, SnapshotCell};
use crate::keys::{full_key, prefix_range};
use crate::plans::ChosenPlans;
use crate::read::overlay::Overlay;
use crate::read::published::Published;
use crate::read::undecided::Past;

/// One consistent state: a snapshot with the catalog that describes it, and in a transaction its own
/// writes. Cheap to clone; old states stay readable as long as a view on them lives.
#[derive(Clone)]
pub struct View {
    pub(crate) at: Arc<SnapshotState>,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) overlay: Option<Arc<Overlay>>,
    /// What is prepared, or was; above the snapshot, and below the own writes.
    pub(crate) past: Option<Arc<Past>>,
    /// The time that was asked for, if one was.
    pub(crate) read_at: u64,
}

pub(crate) struct SnapshotState {
    // Before the snapshot, because it points to it.
    pub options: ReadOptions,
    pub snapshot: Arc<SnapshotCell>,
    pub published: Arc<Published>,
    pub time: u64,
}

impl SnapshotState {
    pub fn take(published: &Arc<Published>) -> SnapshotState {
        let time = published.last().time;
        SnapshotState::of(published, Arc::new(SnapshotCell::take(&published.db)), time)
    }

    pub fn of(published: &Arc<Published>, snapshot: Arc<SnapshotCell>, time: u64) -> SnapshotState {
        SnapshotState { options: snapshot.read_options(), snapshot, published: published.clone(), time }
    }
}

impl View {
    /// The plans that were chosen for queries of a shape.
    pub fn plans(&self) -> &ChosenPlans {
        &self.at.published.plans
    }

    /// The newest state. A catalog that changes meanwhile is read again, so that both belong together.
    pub(crate) fn newest(published: &Arc<Published>) -> View {
        loop {
            let catalog = published.catalog();
            let at = Arc::new(SnapshotState::take(published));
            if Arc::ptr_eq(&catalog, &published.peek_catalog()) {
                return View { at, catalog, overlay: None, past: None, read_at: 0 };
            }
        }
    }

    pub(crate) fn of(at: SnapshotState, catalog: Arc<Catalog>) -> View {
        View { at: Arc::new(at), catalog, overlay: None, past: None, read_at: 0 }
    }

    /// The catalog of this state.
    pub fn catalog(&self) -> &Arc<Catalog> {
        &self.catalog
    }

    /// The collection or view of a full name.
    pub fn collection(&self, namespace: &str) -> Option<&Arc<Collection>> {
        self.catalog.collection(namespace)
    }

    /// The time that was asked for, if one was; else the cluster time up to which everything is visible. A state at a time within an entry
    /// has all of that entry, and is still the one of that time: who reads other shards as of the entry's end sees another state there.
    pub fn time(&self) -> Timestamp {
        Timestamp(if self.read_at == 0 { self.at.time } else { self.read_at })
    }

    /// Whether who reads records that are prepared and not decided waits for that: then a cursor over more than is wanted may wait for
    /// what it does not want.
    pub fn may_wait(&self) -> bool {
        self.past.is_some()
    }

    /// Waits for what is prepared in a collection and not decided, where this view does: for who asks for its counters, which
    /// have it afterwards.
    pub fn await_decisions(&self, collection: &Collection) -> Result<()> {
        if let Some(past) = &self.past {
            let (lower, upper) = prefix_range(collection.ident);
            past.over(Cf::Records, &lower, &upper, None)?;
        }
        Ok(())
    }

    /// One record.
    pub fn get(&self, collection: &Collection, key: &[u8]) -> Result<Option<Doc<'_>>> {
        self.get_full(Cf::Records, &full_key(collection.ident, key))
    }

    /// By a key with its prefix.
    pub(crate) fn get_full(&self, cf: Cf, full: &[u8]) -> Result<Option<Doc<'_>>> {
        if let Some(own) = self.overlay.as_ref().and_then(|overlay| overlay.of(cf).get(full)) {
            return Ok(own.as_deref().map(Doc::borrowed));
        }
        if let Some(past) = &self.past
            && let Some(prepared) = past.get(cf, full)?
        {
            return Ok(prepared.map(Doc::borrowed));
        }
        let found = self.at.published.db.get_with(cf, full, &self.at.options)?;
        Ok(found.map(Doc::stored))
    }
}

/// A document's bytes: pinned in RocksDB's memory, read from the log's files, or borrowed from a transaction's own writes.
pub struct Doc<'a>(Bytes<'a>);

enum Bytes<'a> {
    Stored(Stored<'a>),
    Borrowed(&'a [u8]),
}

impl<'a> Doc<'a> {
    pub(crate) fn stored(bytes: Stored<'a>) -> Self {
        Doc(Bytes::Stored(bytes))
    }

    pub(crate) fn borrowed(bytes: &'a [u8]) -> Self {
        Doc(Bytes::Borrowed(bytes))
    }

    /// The document.
    pub fn as_raw(&self) -> RawDoc<'_> {
        RawDoc::new(self)
    }
}

impl Deref for Doc<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Bytes::Stored(bytes) => bytes,
            Bytes::Borrowed(bytes) => bytes,
        }
    }
}
