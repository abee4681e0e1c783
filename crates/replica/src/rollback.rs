//! Taking back what the set has not kept.
//!
//! The documents that are lost go to files first, then the end of the log is cut off, then the process restarts in place:
//! the start applies the log from the last flush, which never holds anything that was not committed.

use std::time::Duration;

use sheaf_errors::{Error, Result};
use sheaf_repl::Rollback;

use crate::Replica;
use crate::errors::keep_trying;
use crate::process::restart_in_place;
use crate::state::RollbackCount;

/// The folder of the files, in the data folder.
const FOLDER: &str = "rollback";

impl Replica {
    /// Takes back the end of the log. The pipeline is held, everything before is applied.
    pub(super) fn roll_back(&self, rollback: Rollback) -> ! {
        let (keep, last, commit) = (rollback.keep, rollback.last, self.commit_point());
        assert!(keep.index < last.index, "a rollback takes nothing back: {rollback:?}");
        assert!(keep.index >= commit.index, "{rollback:?} takes back {commit:?}, which is committed");
        // A disk that is full or broken must not make this member forget what it has to keep: it tries again.
        keep_trying(Duration::from_secs(1), log_failure, || self.try_roll_back(rollback));
        restart_in_place("rollback")
    }

    fn try_roll_back(&self, rollback: Rollback) -> Result<()> {
        let mut file = self.state.lock();
        let folder = self.dbpath.join(FOLDER);
        let saved = self.engine.save_rolled_back(rollback.keep.index, rollback.last.index, &folder)?;
        let attributes = sheaf_bson::doc! {
            "documents": saved.documents as i64,
            "files": saved.files.len() as i64,
            "lastKept": rollback.keep.index as i64,
            "last": rollback.last.index as i64,
        };
        sheaf_front::log::warning(
            "ROLLBACK",
            sheaf_front::log::ids::ROLLING_BACK,
            "ReplCoord",
            "Rolling back",
            Some(attributes),
        );
        file.state.rollbacks.count += 1;
        file.state.rollbacks.documents += saved.documents;
        file.save()?;
        self.engine.truncate_log(rollback.keep.index)
    }

    /// What rollbacks have taken back.
    pub fn rollbacks(&self) -> RollbackCount {
        self.state.lock().state.rollbacks
    }

    /// Changes with every rollback, as clients of mongod expect of it.
    pub fn rollback_id(&self) -> i32 {
        self.rollbacks().count as i32 + 1
    }
}

fn log_failure(error: &Error) {
    let attributes = sheaf_bson::doc! { "error": error.message() };
    let text = "A rollback cannot be done; trying again";
    sheaf_front::log::error(
        "ROLLBACK",
        sheaf_front::log::ids::ROLLBACK_FAILED,
        "ReplCoord",
        text,
        Some(attributes),
    );
}
