//! Commands of sessions and transactions.

pub mod transaction;

use crate::command::{Entry, RunOnMongod};
use crate::op::Operation;
use crate::registered;

/// The commands of this group.
pub static COMMANDS: &[Entry<RunOnMongod>] =
    &[registered!(transaction::AbortTransaction), registered!(transaction::CommitTransaction)];
