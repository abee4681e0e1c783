//! Writes: what each statement of a write command does to a collection.

mod check;
mod delete;
mod find_and_modify;
mod found;
pub mod open_buckets;
mod point;
mod seen;
pub mod timeseries;
mod update;
mod validator;

use std::sync::Arc;

use sheaf_bson::{ObjectId, RawDoc, Timestamp};
use sheaf_errors::{Code, Error};
use sheaf_query::update::Update;
use sheaf_storage::{View, Write};

use crate::run::{Ownership, Reads};

pub use check::{check_document, check_made, prepare_insert};
pub use delete::{Delete, run_delete};
pub use find_and_modify::{FindAndModify, Modified, run_find_and_modify};
pub use point::{PointChange, delete_by_id, find_and_modify_by_id, update_by_id};
pub use seen::Seen;
pub use update::{UpdateResult, UpdateStatement, run_update};
pub use validator::{Report, Validation, Validator};

/// What writes need of their surroundings.
#[derive(Clone, Copy)]
pub struct WriteCx<'c> {
    /// The error to end with, if the operation was killed or is out of time.
    pub interrupt: sheaf_rows::Interrupt<'c>,
    /// `$$NOW`, milliseconds since the epoch.
    pub now_millis: i64,
    /// A time for `$currentDate` and for empty timestamps.
    pub timestamp: Timestamp,
    /// Makes an `_id`.
    pub new_object_id: &'c dyn Fn() -> ObjectId,
    /// `bypassDocumentValidation`.
    pub bypass_validation: bool,
    /// Told of documents that fail a validator which wants that to be logged.
    pub report: Report,
    /// `bypassEmptyTsReplacement`.
    pub keep_empty_timestamps: bool,
    /// Which documents a search may find; `None`: all.
    pub ownership: Option<&'c Arc<dyn Ownership>>,
    /// Called just before each change is given to storage: a retryable write names its statement and what a
    /// retry is to be answered with.
    pub before_change: Option<&'c BeforeChange<'c>>,
    /// What documents have to be beside what validators ask for; `None`: they may be anything.
    pub judge: Option<&'c Judge<'c>>,
    /// How many documents a record stands for, which updates count; `None`: each stands for itself.
    pub stands_for: Option<&'c StandsFor<'c>>,
    /// `notablescan`
    pub refuses_scans: bool,
    /// Where what a statement looks at is noted.
    pub seen: &'c Seen,
}

impl WriteCx<'_> {
    /// What an empty timestamp at the top level of an inserted document becomes.
    pub fn empty_timestamp(&self) -> Timestamp {
        if self.keep_empty_timestamps { Timestamp(0) } else { self.timestamp }
    }

    /// What a search reads.
    fn reads(&self, view: View) -> Reads {
        Reads::of(view, self.ownership.cloned()).refusing_scans(self.refuses_scans)
    }

    /// The time that an update works with: a replacement needs it for empty timestamps only.
    fn update_timestamp(&self, update: &Update) -> Timestamp {
        if update.is_replacement() { self.empty_timestamp() } else { self.timestamp }
    }
}

/// See [`WriteCx::judge`].
pub type Judge<'c> = dyn Fn(RawDoc<'_>) -> sheaf_errors::Result<()> + 'c;

/// See [`WriteCx::stands_for`].
pub type StandsFor<'c> = dyn Fn(RawDoc<'_>) -> sheaf_errors::Result<u64> + 'c;

/// See [`WriteCx::before_change`].
pub type BeforeChange<'c> = dyn Fn(&mut dyn Write, Change<'_>) + 'c;

/// A change about to be made to a document.
#[derive(Clone, Copy)]
pub enum Change<'d> {
    /// A new document by an upsert.
    Upsert(RawDoc<'d>),
    /// A new version.
    Update {
        /// The document as it is.
        before: RawDoc<'d>,
        /// The document as it will be.
        after: RawDoc<'d>,
    },
    /// The document goes.
    Delete(RawDoc<'d>),
}

impl WriteCx<'_> {
    fn announce(&self, w: &mut dyn Write, change: Change<'_>) {
        if let Some(tell) = self.before_change {
            tell(w, change);
        }
    }
}

/// Whether an error belongs to one statement of a write command (and goes into `writeErrors`), or ends the
/// command.
pub fn ends_command(error: &Error) -> bool {
    matches!(
        error.code(),
        Code::WRITE_CONFLICT
            | Code::INTERRUPTED
            | Code::INTERRUPTED_AT_SHUTDOWN
            | Code::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE
            | Code::NOT_WRITABLE_PRIMARY
            | Code::PRIMARY_STEPPED_DOWN
            | Code::MAX_TIME_MS_EXPIRED
            | Code::NO_SUCH_TRANSACTION
            | Code::LOCK_TIMEOUT
            | Code::SNAPSHOT_UNAVAILABLE
            | Code::SNAPSHOT_TOO_OLD
    ) || error.is_of_several()
        || error.labels().contains(&"TransientTransactionError")
}
