//! Start-up: the log's entries behind the last flush are applied again.
//!
//! It is the same code that applies what other members of a set have ordered ([`crate::apply`]).
//!
//! - [`open`]: the folder, from its lock to an engine;
//! - [`install`]: another member's data taken into use before that;
//! - [`reconcile`]: files that RocksDB had flushed by itself;
//! - [`rekey`]: keys as an earlier version wrote them;
//! - [`repair`]: operations that cannot be applied, left out;
//! - [`rollback`]: the log's end taken back, and what is kept of it.

pub(crate) mod install;
mod open;
mod reconcile;
mod rekey;
pub(crate) mod repair;
pub(crate) mod rollback;

use std::sync::Arc;
use std::time::{Duration, Instant};

use sheaf_errors::{Code, Result};

use crate::apply::apply_entries;
use crate::catalog::Collection;
use crate::core::Core;
use crate::critical::must;
use crate::db::{Cf, io_error};
use crate::definitions::command::build_command;
use crate::definitions::{Garbage, LOCAL_IDENTS, remove_prefixes};
use crate::index::side_ident;
use crate::keys::catalog_key;
use crate::oplog::{LogEntry, log_error};

/// So much of the log is read before it is applied.
const READ_BYTES: usize = 4 << 20;
/// A longer start keeps what it has done, so that another crash soon after it does not cost all of it again.
const FLUSH_AFTER: Duration = Duration::from_secs(1);

impl Core {
    /// Brings RocksDB from its last flush to the end of the log.
    pub fn recover(&self) -> Result<()> {
        let started = Instant::now();
        let mut last_flush = started;
        let flushed = self.flushes.flushed();
        let mut count = 0;
        if let Some(log) = self.durability.log() {
            let mut reader = log.read_from(flushed.index + 1).map_err(log_error)?;
            loop {
                let entries = read_some(&mut reader)?;
                if entries.is_empty() {
                    break;
                }
                apply_entries(self, &entries)?;
                count += entries.len();
                // What was read need not lie beside what is being flushed.
                drop(entries);
                let full = self.flushes.is_due();
                // A repair changes nothing unless it comes to the end.
                if (full || last_flush.elapsed() >= FLUSH_AFTER) && self.base.options.repair.is_none() {
                    // In a set only the replication core, which begins later, knows what of it is committed.
                    let flushed =
                        if self.base.is_replica() && full { self.flush_ahead() } else { self.checkpoint() };
                    match flushed {
                        // A full disk must not keep the data from being read.
                        Err(error) if error.code() == Code::OUT_OF_DISK_SPACE => tracing::warn!(%error),
                        done => done?,
                    }
                    last_flush = Instant::now();
                }
            }
        }
        if let Some(log) = self.durability.log() {
            let (end, last) = (log.last(), self.published.last());
            must!(end.index == last.index, "the log ends with entry {}, and applied is {last:?}", end.index);
        }
        if !self.base.is_replica() {
            // In a set the rest may come from others.
            self.end_chain();
        }
        self.drop_unfinished_builds()?;
        self.resume_garbage()?;
        self.remove_unknown_indexes()?;
        if count > 0 {
            let millis = started.elapsed().as_millis() as u64;
            tracing::info!(entries = count, millis, "applied the log's tail");
        }
        Ok(())
    }

    /// Builds that had not committed leave nothing behind.
    fn drop_unfinished_builds(&self) -> Result<()> {
        let catalog = self.published.catalog();
        // What is in the log of a set, a later primary has to end.
        let ours =
            |c: &&Arc<Collection>| !self.base.is_replica() || crate::sequencer::stays_here(&c.namespace);
        for collection in catalog.all().filter(ours) {
            let unfinished: Vec<_> = collection.maintained().filter(|index| !index.ready).cloned().collect();
            if unfinished.is_empty() {
                continue;
            }
            let names: Vec<&str> = unfinished.iter().map(|index| index.name.as_str()).collect();
            tracing::info!(collection = collection.namespace, ?names, "dropped unfinished index builds");
            self.run_commands(&[build_command("abortIndexBuild", collection, &unfinished)], &[])?;
        }
        Ok(())
    }

    /// Index files that came in last longer than the log's unsynced end, in which the index may have been created.
    fn remove_unknown_indexes(&self) -> Result<()> {
        let (next, next_local) = self.definitions.next_idents();
        let known = self.definitions.garbage().prefixes();
        let mut iter = self.base.db.raw().raw_iterator_cf(self.base.db.cf(Cf::Indexes));
        let beside = side_ident(0);
        // In each space the numbers behind the last one given away.
        for (first, end) in [
            (next, LOCAL_IDENTS),
            (next_local, beside),
            (beside + if self.base.is_replica() { next } else { 0 }, beside + LOCAL_IDENTS),
            (beside + next_local, u32::MAX),
        ] {
            iter.seek(first.to_be_bytes());
            while let Some(ident) = iter.key().and_then(|key| key.first_chunk::<4>()).copied() {
                let ident = u32::from_be_bytes(ident);
                if ident >= end {
                    break;
                }
                let own = ident & !beside;
                // The log of the set may yet tell of an index whose files came with a copy.
                let expected = self.base.is_replica() && self.has_mark(own)?;
                if !known.contains(&(Cf::Indexes, ident)) && !expected {
                    remove_prefixes(&self.base.db, &[(Cf::Indexes, ident)])?;
                }
                // RocksDB takes in no files where memtables hold a deletion, so the number is not for a next index.
                self.definitions.note_ident(own);
                iter.seek((ident + 1).to_be_bytes());
            }
        }
        iter.status().map_err(io_error)
    }

    /// Takes up what was dropped before the crash and perhaps not removed.
    fn resume_garbage(&self) -> Result<()> {
        let mut prefixes = Vec::new();
        let mut iter = self.base.db.raw().raw_iterator_cf(self.base.db.cf(Cf::Catalog));
        iter.seek([catalog_key::GARBAGE]);
        while let Some(key) = iter.key().filter(|key| key[0] == catalog_key::GARBAGE) {
            if let [_, cf, a, b, c, d] = *key {
                let cf = if cf == Cf::Records as u8 { Cf::Records } else { Cf::Indexes };
                prefixes.push((cf, u32::from_be_bytes([a, b, c, d])));
            }
            iter.next();
        }
        iter.status().map_err(io_error)?;
        let index = self.published.last().index;
        let found = (!prefixes.is_empty()).then_some(Garbage { holder: None, prefixes, index });
        self.definitions.garbage().replace(found);
        Ok(())
    }
}

/// The next entries of the log.
fn read_some(reader: &mut sheaf_log::Reader) -> Result<Vec<LogEntry>> {
    let mut entries = Vec::new();
    let mut bytes = 0;
    while bytes < READ_BYTES
        && let Some(entry) = reader.next().map_err(log_error)?
    {
        bytes += entry.payload.len();
        entries.push(entry.into());
    }
    Ok(entries)
}
