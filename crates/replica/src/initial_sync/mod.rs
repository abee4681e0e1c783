//! Initial sync: a member whose log has no overlap with the primary's copies another member's data.
//!
//! The copy is RocksDB's files as they are at a flush of the source ([`source`]), fetched over a connection of its own
//! ([`frames`], [`target`]). A copy costs the source a flush and keeps its log: it is made for members only. Who asks for one
//! names its `_id` and the number of its link to the source, and is asked back under the address that the source knows
//! ([`super::confirm`]). When it is whole the core is told; it says when the copy takes the place of the data, which
//! happens in a restart in place. From there the member follows the log like any other.

mod copying;
mod frames;
mod progress;
mod serving;
mod source;
mod target;
#[cfg(test)]
mod tests;
mod who;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

pub use frames::MAGIC;
pub use serving::serve;
use source::Source;
use target::Target;

/// Members that may fetch copies at a time: each has a thread and a megabyte here.
const SERVING_MAX: usize = 8;

/// Both sides of initial sync.
pub struct InitialSync {
    source: Source,
    target: Target,
    running: AtomicBool,
    serving: Arc<Semaphore>,
}

impl InitialSync {
    /// For this data folder. What an earlier run has fetched in part is kept.
    pub fn open(dbpath: &Path) -> InitialSync {
        InitialSync {
            source: Source::open(dbpath),
            target: Target::open(dbpath),
            running: AtomicBool::new(false),
            serving: Arc::new(Semaphore::new(SERVING_MAX)),
        }
    }

    /// The right to fetch a copy here, as long as it is kept.
    ///
    /// Errors: too many have it already.
    fn place(&self) -> io::Result<OwnedSemaphorePermit> {
        let refused = |_| io::Error::new(io::ErrorKind::ConnectionRefused, "too many fetch copies already");
        self.serving.clone().try_acquire_owned().map_err(refused)
    }
}
