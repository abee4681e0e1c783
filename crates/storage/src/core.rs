//! What all parts of an open engine share, and its background work.

use std::sync::{Arc, OnceLock, Weak};

use sheaf_errors::{Code, Error, Result};

use crate::base::Base;
use crate::commit::Commits;
use crate::critical::Critical;
use crate::definitions::Definitions;
use crate::durability::Durability;
use crate::flush::Flushes;
use crate::read::published::Published;

/// An open data folder: four owners, each with its own fields and locks, on common ground; and what spans them.
///
/// | owner | has |
/// | --- | --- |
/// | [`Commits`] | the pipeline, locks of records, conflicts, the set's states |
/// | [`Definitions`] | numbers of collections and indexes, the DDL's turn, builds, dropped data |
/// | [`Flushes`] | what RocksDB's files hold, memory of memtables, stable copies |
/// | [`Durability`] | the log, its syncs and who waits for them, whether writes are taken |
///
/// An owner calls none of the others. What needs several of them (a commit is ordered, logged, applied and published) is a
/// method here, in the module of the owner whose work it begins. Locks are taken in the order of [`crate::order::rank`].
pub(crate) struct Core {
    pub base: Arc<Base>,
    /// What readers see.
    pub published: Arc<Published>,
    pub commits: Commits,
    pub definitions: Definitions,
    pub flushes: Flushes,
    pub durability: Durability,
    /// Itself, once it is open.
    me: OnceLock<Weak<Core>>,
}

impl Drop for Core {
    fn drop(&mut self) {
        self.base.db.end_background();
    }
}

impl Core {
    /// Of these owners; nobody knows it yet.
    pub fn new(
        base: Arc<Base>,
        published: Arc<Published>,
        commits: Commits,
        definitions: Definitions,
        flushes: Flushes,
        durability: Durability,
    ) -> Core {
        Core { base, published, commits, definitions, flushes, durability, me: OnceLock::new() }
    }

    /// Starts the background threads. They end when the engine is dropped or shut down.
    pub fn start(self: &Arc<Self>) -> Result<Vec<std::thread::JoinHandle<()>>> {
        let spawn = |name: &str, run: fn(&Core)| {
            let core = self.clone();
            std::thread::Builder::new()
                .name(name.to_owned())
                .spawn(move || {
                    let _critical = Critical::enter("a thread of storage");
                    run(&core);
                })
                .map_err(|e| Error::new(Code::INTERNAL_ERROR, format!("cannot start thread {name}: {e}")))
        };
        assert!(self.me.set(Arc::downgrade(self)).is_ok(), "an engine is started once");
        self.guard_flushes();
        self.flushes.signals().begin();
        let mut threads = vec![spawn("sheaf-keeper", Core::run_keeper)?];
        if !self.base.is_replica() {
            threads.push(spawn("sheaf-values", Core::run_values)?);
        }
        if self.durability.log().is_some() {
            threads.push(spawn("sheaf-sync", |core| core.durability.run_syncs())?);
        }
        Ok(threads)
    }

    /// Ends background work.
    pub fn stop(&self) {
        self.base.db.events().close();
        self.durability.stop();
        self.flushes.stop();
    }

    /// Itself, to be kept by a thread; `None` while it is being opened.
    pub fn me(&self) -> Option<Arc<Core>> {
        self.me.get().and_then(Weak::upgrade)
    }

    /// Whether background work is to end.
    pub fn is_stopping(&self) -> bool {
        self.flushes.signals().is_stopping()
    }
}
