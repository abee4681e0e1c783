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
mod changes;
mod check;
mod commit;
mod copy;
mod core;
pub mod critical;
mod cursor;
mod db;
mod definitions;
mod durability;
mod engine;
mod flush;
mod folder;
mod hooks;
mod index;
mod keys;
mod listener;
mod locks;
mod manifest;
mod oplog;
mod oplog_reader;
mod options;
pub mod order;
mod overlay;
mod plans;
mod position;
mod print;
mod published;
mod recovery;
mod repair;
mod rollback;
mod sequencer;
mod sessions;
mod statement;
mod stats;
#[cfg(test)]
mod tests;
mod transaction;
mod tuning;
mod unit;
mod validate;
mod view;
mod write;

pub use catalog::{Capped, Catalog, Collection};
pub use check::check_entry;
pub use copy::{Copied, install_at_next_open};
pub use cursor::{Cut, Direction, IndexCursor, IndexEntry, Position, Range, RecordCursor};
pub use definitions::ddl::{Check, CollectionChange, NamedSpecs, RenameCheck};
pub use durability::{LogPin, LogTail};
pub use engine::Engine;
pub use hooks::{Hook, HookPoint};
pub use index::{Accesses, Index, IndexKind};
pub use oplog_reader::{BackwardOplogCursor, OPLOG_NAMESPACE, Oplog, OplogCursor};
pub use options::{Block, Interrupt, OpTime, Options, Reopen};
pub use plans::ChosenPlans;
pub use repair::{OperationId, Repair, Repaired, Unapplied, repair};
pub use rollback::RolledBack;
pub use sequencer::{LogEntry, LogUnit, Seal, Sequencer};
pub use sessions::SessionRecord;
pub use statement::Statement;
pub use stats::{Applied, AppliedOps, Stats};
pub use transaction::Transaction;
pub use unit::WriteUnit;
pub use uuid::Uuid;
pub use validate::{Inconsistency, Validation};
pub use view::{Doc, View};
pub use write::{CreateCollection, Write};
