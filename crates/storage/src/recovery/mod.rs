//! Start-up: the log's entries behind the last flush are applied again.
//!
//! It is the same code that applies what other members of a set have ordered ([`crate::apply`]).
//!
//! - [`open`]: the folder, from its lock to an engine;
//! - [`damage`]: a log that is damaged, and what of it can be kept;
//! - [`missing`]: a log that is not there;
//! - [`install`]: another member's data taken into use before that;
//! - [`reconcile`]: files that RocksDB had flushed by itself;
//! - [`rekey`]: keys as an earlier version wrote them;
//! - [`repair`]: operations that cannot be applied, left out;
//! - [`rollback`]: the log's end taken back, and what is kept of it.

pub(crate) mod damage;
pub(crate) mod install;
mod missing;
mod open;
mod reconcile;
mod rekey;
pub(crate) mod repair;
pub(crate) mod rollback;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::Scope;
use std::time::{Duration, Instant};

use sheaf_errors::{Code, Error, Result};
use sheaf_log::{Log, Reader};

use crate::apply::{Behind, Writing, apply_entries_at_start};
use crate::catalog::Collection;
use crate::core::Core;
use crate::critical::must;
use crate::db::{Cf, io_error};
use crate::definitions::command::build_command;
use crate::definitions::{Garbage, LOCAL_IDENTS, remove_prefixes};
use crate::index::side_ident;
use crate::keys::catalog_key;
use crate::oplog::{LogEntry, log_error};

/// So much of the log is read before it is applied: little, so that reading, taking apart and writing are soon all at work.
const READ_BYTES: usize = 1 << 20;
/// A longer start keeps what it has done, so that another crash soon after it does not cost all of it again.
const FLUSH_AFTER: Duration = Duration::from_secs(3);

impl Core {
    /// Brings RocksDB from its last flush to the end of the log.
    pub fn recover(&self) -> Result<()> {
        let started = Instant::now();
        let flushed = self.flushes.flushed();
        let count = match self.durability.log() {
            Some(log) if log.last().index > flushed.index => self.apply_from(log, flushed.index + 1)?,
            _ => 0,
        };
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

    /// Applies the log from this entry on, and gives how many there were. It is read on one thread, taken apart on this one, and written to
    /// memtables on a third.
    fn apply_from(&self, log: &Log, first: u64) -> Result<usize> {
        let reader = log.read_from(first).map_err(log_error)?;
        let writing = Writing::default();
        std::thread::scope(|scope| {
            let behind = Behind::start(scope, &self.base.db, &writing)?;
            let mut last_flush = Instant::now();
            let mut count = 0;
            for entries in read_ahead(scope, reader)? {
                let entries = entries?;
                if entries.is_empty() {
                    break;
                }
                apply_entries_at_start(self, &entries, &behind)?;
                count += entries.len();
                // What was read need not lie beside what is being flushed.
                drop(entries);
                if self.flushes.is_due() || last_flush.elapsed() >= FLUSH_AFTER {
                    behind.catch_up()?;
                    self.flush_while_starting()?;
                    last_flush = Instant::now();
                }
            }
            behind.catch_up().map(|()| count)
        })
    }

    fn flush_while_starting(&self) -> Result<()> {
        // A repair changes nothing unless it comes to the end.
        if self.base.options.repair.is_some() {
            return Ok(());
        }
        // In a set only the replication core, which begins later, knows what of it is committed.
        let ahead = self.base.is_replica() && self.flushes.is_due();
        match if ahead { self.flush_ahead() } else { self.checkpoint() } {
            // A full disk must not keep the data from being read.
            Err(error) if error.code() == Code::OUT_OF_DISK_SPACE => {
                tracing::warn!(%error, "what the log has is not flushed while starting");
                Ok(())
            }
            done => done,
        }
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

/// The entries of the log from a reader on, some at a time; one such piece is read ahead.
fn read_ahead<'s>(scope: &'s Scope<'s, '_>, mut reader: Reader) -> Result<Receiver<Result<Vec<LogEntry>>>> {
    let (pieces, read) = sync_channel(0);
    let work = move || {
        loop {
            let piece = read_some(&mut reader);
            let goes_on = piece.as_ref().is_ok_and(|entries| !entries.is_empty());
            // Nobody takes it where the start has failed.
            if pieces.send(piece).is_err() || !goes_on {
                return;
            }
        }
    };
    std::thread::Builder::new()
        .name("sheaf-start".to_owned())
        .spawn_scoped(scope, work)
        .map_err(|error| Error::new(Code::INTERNAL_ERROR, format!("no thread for a start: {error}")))?;
    Ok(read)
}

/// The next entries of the log.
fn read_some(reader: &mut Reader) -> Result<Vec<LogEntry>> {
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
