//! The storage engine: catalog, records, indexes, capped collections, snapshots, locks and the
//! commit pipeline, over the one log (`sheaf-log`) and RocksDB as its materialisation.
//!
//! - [`Engine`] is a data folder that is open. It hands out [`View`]s to read and [`WriteUnit`]s or
//!   [`Transaction`]s to write; DDL is methods on it.
//! - [`View`] is one consistent state (snapshot and catalog together); cursors come from it and own
//!   what they need, so they can be kept and moved.
//! - [`Write`] is what statements do to the database, whether each stands alone ([`WriteUnit`]) or
//!   belongs to a transaction ([`Transaction`]).
//! - Nothing here is async and nothing here knows a socket. Long waits go through [`Options::block`].
//!
//! # The life of a write
//!
//! `WriteUnit::insert` computes the document's index keys (`Index::generate`), takes the locks of its
//! record key and unique keys, looks for duplicates, and appends to a RocksDB batch and to the oplog
//! payload. `Core::commit` orders the unit, appends the payload to the log in one write, writes the
//! batch, publishes counters and catalog, and wakes tailing cursors. A flush (`Core::checkpoint`) writes
//! the position, counters and multikey bits along with the data, atomically; start-up applies the log
//! from there (`Core::recover`) with the same code that prepared the batches.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "a test sends a message or two"))]

mod apply;
mod base;
mod build;
mod catalog;
mod commit;
mod copy;
mod core;
pub mod critical;
mod db;
mod definitions;
mod durability;
mod engine;
mod flush;
mod folder;
mod hooks;
mod index;
mod keys;
mod locks;
mod oplog;
mod options;
pub mod order;
mod plans;
mod read;
mod recovery;
mod sequencer;
mod states;
mod stats;
#[cfg(test)]
mod tests;
mod transactions;
mod tuning;
mod values;
mod write;

pub use apply::check_entry;
pub use catalog::{Capped, Catalog, Changes, Collection};
pub use commit::transaction_rows::TransactionRow;
pub use commit::transactions::TransactionListener;
pub use commit::watch::{Touched, Watcher};
pub use copy::Copied;
pub use definitions::command::Told;
pub use definitions::ddl::{Check, CollectionChange, DropCheck, NamedSpecs, RenameCheck, Said};
pub use durability::{LogPin, LogTail};
pub use engine::Engine;
pub use hooks::{Hook, HookPoint};
pub use index::{Accesses, Index, IndexKind};
pub use locks::Hold;
pub use oplog::damaged::DamagedLog;
pub use oplog::skipped::{OperationId, Repair, Unapplied};
pub use oplog::{LogEntry, Statement, TransactionKey, TransactionRecord};
pub use options::{Block, Interrupt, OpTime, Options, Reopen};
pub use plans::{ChosenPlans, PlanFigures};
pub use read::cursor::{Cut, Direction, IndexCursor, IndexEntry, Position, Range, RecordCursor};
pub use read::oplog::{BackwardOplogCursor, Oplog, OplogCursor};
pub use read::oplog_collection::OPLOG_NAMESPACE;
pub use read::undecided::InDoubt;
pub use read::validate::{Inconsistency, Validation};
pub use read::view::{Doc, View};
pub use recovery::install::install_at_next_open;
pub use recovery::repair::{Repaired, cut_log, repair};
pub use recovery::rollback::RolledBack;
pub use sequencer::{LogUnit, Seal, Sequencer};
pub use sheaf_log::{Damage, Kept, Mending};
pub use stats::{Applied, AppliedOps, Stats};
pub use uuid::Uuid;
pub use write::sessions::SessionRecord;
pub use write::transaction::Transaction;
pub use write::unit::WriteUnit;
pub use write::{CreateCollection, DocumentKey, MayCreate, Write, WrittenKeys};
