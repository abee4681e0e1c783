//! What readers see: the newest state that was published, and the database that it is in.
//!
//! A [`View`](crate::View) stands on this and on nothing else of an open engine. Commits publish here: the batch is in
//! RocksDB, then the catalog that belongs to it, then the position. Who reads takes a snapshot together with the catalog
//! and the position, and reads the catalog again where it changed meanwhile.

use std::fs::File;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Weak};

use arc_swap::{ArcSwap, Guard};

use crate::catalog::Catalog;
use crate::critical::must;
use crate::db::Db;
use crate::options::OpTime;
use crate::order::{Mutex, rank};
use crate::plans::ChosenPlans;
use crate::read::oplog_collection::OplogCollection;

/// The newest published state. Its lock has the rank [`rank::LAST`].
pub(crate) struct Published {
    pub db: Arc<Db>,
    /// The log as a collection, whose tailing cursors wake with every commit. `None` without a journal.
    pub oplog: Option<OplogCollection>,
    /// The plans chosen for queries' shapes.
    pub plans: ChosenPlans,
    catalog: ArcSwap<Catalog>,
    /// Where that is, for who asks whether it is still the same.
    shown: AtomicPtr<Catalog>,
    last: Mutex<{ rank::LAST }, OpTime>,
    /// The data folder is this process's as long as anybody can read it.
    _lock: File,
}

impl Published {
    /// The state that the files hold, up to `at`; the log's tail is to be applied to it.
    pub fn new(
        lock: File,
        db: Arc<Db>,
        catalog: Catalog,
        oplog: Option<OplogCollection>,
        at: OpTime,
    ) -> Published {
        let plans = ChosenPlans::default();
        let catalog = Arc::new(catalog);
        let shown = AtomicPtr::new(Arc::as_ptr(&catalog).cast_mut());
        let catalog = ArcSwap::new(catalog);
        Published { db, oplog, plans, catalog, shown, last: Mutex::new(at), _lock: lock }
    }

    /// The newest catalog, to be kept.
    pub fn catalog(&self) -> Arc<Catalog> {
        self.catalog.load_full()
    }

    /// The newest catalog, for a look at it.
    pub fn peek_catalog(&self) -> Guard<Arc<Catalog>> {
        self.catalog.load()
    }

    /// Publishes a catalog. The pipeline is held, or nobody else is there yet.
    pub fn show_catalog(&self, catalog: Arc<Catalog>) {
        let before = self.catalog.load();
        must!(
            catalog.version() >= before.version(),
            "a catalog of version {} would take the place of version {}: a change of definitions would be undone",
            catalog.version(),
            before.version()
        );
        drop(before);
        let shown = Arc::as_ptr(&catalog).cast_mut();
        self.catalog.store(catalog);
        self.shown.store(shown, Ordering::Release);
    }

    /// Whether this is the newest catalog. That it is held, if weakly, keeps another one from being made at its place.
    pub fn shows(&self, catalog: &Weak<Catalog>) -> bool {
        std::ptr::eq(self.shown.load(Ordering::Acquire), catalog.as_ptr())
    }

    /// Position of the newest commit.
    pub fn last(&self) -> OpTime {
        *self.last.lock()
    }

    /// Publishes a position. The pipeline is held, or nobody else is there yet.
    pub fn advance(&self, at: OpTime) {
        let mut last = self.last.lock();
        must!(
            at.index >= last.index && at.term >= last.term && at.time >= last.time,
            "{at:?} is published after {:?}: what is visible never goes back",
            *last
        );
        *last = at;
    }

    /// Wakes those who read the log as it grows.
    pub fn wake_log_readers(&self) {
        if let Some(oplog) = &self.oplog {
            oplog.collection.state.wake();
        }
    }
}
