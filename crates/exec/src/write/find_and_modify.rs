//! `findAndModify`.

use std::sync::Arc;

use sheaf_bson::{DocBuf, OwnedValue};
use sheaf_errors::Result;
use sheaf_storage::{Collection, Write};

use super::{Delete, UpdateStatement, WriteCx, run_delete, run_update};

/// What to do with the document found.
pub enum FindAndModify {
    /// Remove it.
    Remove(Delete),
    /// Update it; `new` asks for the version afterwards.
    Update {
        /// The update, which is never multi.
        statement: UpdateStatement,
        /// Whether the answer is the document after the update.
        new: bool,
    },
}

/// What `findAndModify` did.
#[derive(Debug, Default)]
pub struct Modified {
    /// Documents removed, updated or inserted.
    pub n: u64,
    /// Of those updated, the ones of which bytes changed.
    pub changed: u64,
    /// For updates: whether a document existed.
    pub updated_existing: Option<bool>,
    /// The `_id` of an inserted document.
    pub upserted: Option<OwnedValue>,
    /// The document to answer with, not projected yet.
    pub value: Option<DocBuf>,
}

/// Runs it.
pub fn run_find_and_modify(
    w: &mut dyn Write,
    cx: &WriteCx<'_>,
    collection: &Arc<Collection>,
    what: &FindAndModify,
) -> Result<Modified> {
    match what {
        FindAndModify::Remove(statement) => {
            let (n, value) = run_delete(w, cx, collection, statement, true)?;
            Ok(Modified { n, value, ..Modified::default() })
        }
        FindAndModify::Update { statement, new } => {
            let result = run_update(w, cx, collection, statement, true)?;
            Ok(Modified {
                n: result.matched + u64::from(result.upserted.is_some()),
                changed: result.modified,
                updated_existing: Some(result.matched > 0),
                value: if *new { result.after } else { result.before },
                upserted: result.upserted,
            })
        }
    }
}
