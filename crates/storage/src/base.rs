//! What all owners of an open engine stand on: options, RocksDB, the hooks of tests, and the set that orders commits.

use std::sync::{Arc, OnceLock};

use sheaf_errors::{Code, Error, Result};

use crate::db::Db;
use crate::flush::disk::segment_bytes_on;
use crate::hooks::Hooks;
use crate::options::Options;
use crate::sequencer::Sequencer;
use crate::tuning::Tuning;

/// The common ground. It has no lock, and nothing in it changes but by its own rules.
pub(crate) struct Base {
    pub options: Options,
    /// What of the options can change.
    pub tuning: Tuning,
    pub db: Arc<Db>,
    pub hooks: Hooks,
    /// How much of a plain write's changes may come together before they are committed, and how much is one entry of the log: no more than a
    /// segment, and a batch of this size fits into one generation of memtables.
    pub pending_bytes: usize,
    sequencer: OnceLock<Arc<dyn Sequencer>>,
}

impl Base {
    /// Nobody orders the commits yet.
    pub fn new(options: Options, db: Arc<Db>) -> Base {
        let tuning = Tuning::of(&options);
        let segment_bytes = segment_bytes_on(&options.path).max(1 << 20) as usize;
        let pending_bytes = options.pending_bytes().min(segment_bytes);
        Base { options, tuning, db, hooks: Hooks::default(), pending_bytes, sequencer: OnceLock::new() }
    }

    /// Whether this is a member of a replica set.
    pub fn is_replica(&self) -> bool {
        self.options.replica
    }

    /// What orders the commits of a member of a replica set; `None` before the member has begun, and where a node is alone.
    pub fn sequencer(&self) -> Option<&Arc<dyn Sequencer>> {
        self.sequencer.get()
    }

    /// A member begins: its set orders the commits from now on. Once.
    pub fn set_sequencer(&self, sequencer: Arc<dyn Sequencer>) {
        assert!(self.is_replica(), "a node that is alone has been given a sequencer");
        assert!(self.sequencer.set(sequencer).is_ok(), "the sequencer is set once");
    }

    /// Whether a set orders the commits now.
    pub fn is_ordered(&self) -> bool {
        self.sequencer().is_some()
    }

    /// Whether no other member has what this node has, nor needs what it keeps for others. A member that has not begun does not know.
    pub fn is_by_itself(&self) -> bool {
        self.sequencer().map_or(!self.is_replica(), |sequencer| sequencer.is_alone())
    }

    /// Whether this member takes writes.
    pub fn leads(&self) -> bool {
        self.sequencer().is_none_or(|sequencer| sequencer.takes_writes())
    }

    /// Errors: this node orders nothing by itself.
    pub fn check_alone(&self) -> Result<()> {
        if self.is_replica() {
            return Err(Error::new(Code::NOT_WRITABLE_PRIMARY, "not primary"));
        }
        Ok(())
    }
}
