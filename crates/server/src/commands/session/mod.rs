//! Commands of sessions and transactions.

mod end;
mod kill;
mod start;
pub mod transaction;

use crate::command::{Entry, RunOnMongod};
use crate::op::Operation;
use crate::registered;

/// The commands of this group.
pub static COMMANDS: &[Entry<RunOnMongod>] = &[
    registered!(end::EndSessions),
    registered!(end::RefreshSessions),
    registered!(kill::KillAllSessions),
    registered!(kill::KillAllSessionsByPattern),
    registered!(kill::KillSessions),
    registered!(start::StartSession),
    registered!(transaction::AbortTransaction),
    registered!(transaction::CommitTransaction),
];
