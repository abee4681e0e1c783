//! Files of which little is wanted.
//!
//! The log lets go of a segment after a while; as a file of values it stays as long as half of it is wanted. When less is, that is copied into
//! RocksDB, and the file goes. Where room on the disk is short a larger part is copied, but no more than can be flushed. What is wanted is counted as documents come and go, and looked for before anything is done about
//! it: an entry's operation names the record that it has written, and that record refers to the entry or does not.

use std::collections::BTreeMap;
use std::time::Duration;

use rocksdb::WriteBatch;
use sheaf_errors::{Code, Error, Result};
use sheaf_log::SegmentFile;

use crate::core::Core;
use crate::db::Cf;
use crate::db::values::{LEAST_BYTES, Part, Reference, offset_in};
use crate::keys::{catalog_key, prefixed};
use crate::oplog::{self, Operation, log_error};

/// How often it is looked for files to be collected.
const LOOK_AROUND: Duration = Duration::from_millis(if cfg!(test) { 20 } else { 1000 });

/// A file that cannot be collected is tried again after the first of these, and one that is damaged after the second.
const PAUSE: Duration = Duration::from_secs(10);
const DAMAGED_PAUSE: Duration = Duration::from_secs(3600);

/// So many bytes of documents are copied with the pipeline held.
const COPIED_AT_ONCE: usize = 1 << 20;

/// A file of which less than this part is wanted goes; and where room is short, in which more is copied for each byte that it gives back.
const LITTLE: Part = Part(1, 2);
const LITTLE_IF_SHORT: Part = Part(7, 8);

/// So many files go with one flush at most.
const FILES_AT_ONCE: usize = 16;

/// A record, and where its document is.
type Wanted = (Vec<u8>, Reference);

impl Core {
    /// The work of a thread, until background work is to end.
    pub fn run_values(&self) {
        let mut told = false;
        while self.flushes.signals().rest(LOOK_AROUND) {
            let mut done = self.collect_values();
            while let Ok(true) = done {
                done = self.collect_values();
            }
            if let Err(error) = &done
                && !told
                && !self.is_stopping()
            {
                tracing::warn!(%error, "files of values of which little is wanted cannot be removed; trying again");
            }
            told = done.is_err();
        }
    }

    /// Copies what is wanted of files of which little is, and removes these. Says whether there may be more that this has given room for.
    pub fn collect_values(&self) -> Result<bool> {
        let values = self.base.db.values();
        let begins = self.durability.log().map_or(u64::MAX, |log| log.stats().first_index);
        let (mut files, mut given_up, mut more, mut failed) = (0, 0, false, Ok(()));
        let part = self.little();
        // While somebody reads what was given up nothing is gained by more.
        let files_most = if self.flushes.wants_room() && values.has_retired() { 0 } else { FILES_AT_ONCE };
        while files < files_most
            && !self.is_stopping()
            && let Some(number) = values.little_wanted(begins, part)
        {
            // Who copies the folder meanwhile finds it as it is.
            let Some(_pass) = self.commits.try_pass() else { return failed.map(|()| false) };
            self.durability.check_writable()?;
            files += 1;
            let lacks_room = match self.collect_file(number, part) {
                Ok(is_given_up) => {
                    given_up += u32::from(is_given_up);
                    false
                }
                Err(error) => {
                    let lacks_room = error.code() == Code::OUT_OF_DISK_SPACE;
                    // Those that were given up before may give some.
                    if !lacks_room || given_up == 0 {
                        let damaged = error.code() == Code::CHECKSUM_MISMATCH;
                        values.pass_over(number, if damaged { DAMAGED_PAUSE } else { PAUSE });
                        failed = failed.and(Err(error));
                    }
                    lacks_room
                }
            };
            // Where room is scarce each gives some before the next one takes any; and of the others more would have to be copied.
            more = given_up > 0 && (lacks_room || self.flushes.wants_room());
            if more || lacks_room {
                break;
            }
        }
        let Some(_pass) = self.commits.try_pass() else { return failed.map(|()| false) };
        if values.waits_for_flush() {
            match self.try_checkpoint() {
                Ok(true) => values.note_flushed(),
                Ok(false) => {}
                Err(error) => failed = failed.and(Err(error)),
            }
        }
        values.remove_retired().and(failed).map(|()| more)
    }

    /// Of what part of a file what is wanted is copied now.
    fn little(&self) -> Part {
        if self.flushes.wants_room() { LITTLE_IF_SHORT } else { LITTLE }
    }

    /// Looks what of a file is wanted. Where it is less than this part, that is copied, and the file is given up; whether it was.
    ///
    /// Errors: `OutOfDiskSpace` before anything is copied that could not be flushed.
    fn collect_file(&self, number: u32, part: Part) -> Result<bool> {
        let values = self.base.db.values();
        let (end, size, noted) = values.about(number);
        let wanted = self.wanted_of_file(number, end)?;
        let bytes: u64 = wanted.iter().map(|(_, reference)| u64::from(reference.length)).sum();
        if !part.is_more(bytes, size) {
            let ident = |key: &[u8]| key.first_chunk().map_or(0, |ident| u32::from_be_bytes(*ident));
            let mut by_ident = BTreeMap::<u32, u64>::new();
            for (key, reference) in &wanted {
                *by_ident.entry(ident(key)).or_default() += u64::from(reference.length);
            }
            values.note_wanted(number, by_ident, noted);
            return Ok(false);
        }
        self.check_room_for_copy(bytes)?;
        let mut rest = &wanted[..];
        while !rest.is_empty() {
            let mut bytes = 0;
            let fit = rest.iter().take_while(|(_, reference)| {
                let before = bytes;
                bytes += reference.length as usize;
                before < COPIED_AT_ONCE
            });
            let (now, later) = rest.split_at(fit.count());
            self.copy_values(now)?;
            rest = later;
        }
        let mut batch = WriteBatch::default();
        let row = catalog_key::of(catalog_key::VALUES, number);
        batch.delete_cf(self.base.db.cf(Cf::Catalog), row);
        let _still = self.still();
        let (bytes, written) = self.commits.write(batch, &[], None, 0);
        written?;
        self.flushes.note_written(bytes);
        values.retire(number);
        tracing::debug!(number, copied = wanted.len(), "gave up a file of values");
        Ok(true)
    }

    fn check_room_for_copy(&self, bytes: u64) -> Result<()> {
        if bytes == 0 || self.flushes.has_room_for_copy(bytes) {
            return Ok(());
        }
        Err(Error::new(
            Code::OUT_OF_DISK_SPACE,
            format!("no room on the disk for copying {} KB that are wanted of a file of values", bytes >> 10),
        ))
    }

    /// The records that refer to a file now, with their keys. Something may do so up to `end`.
    ///
    /// Errors: the file is damaged.
    fn wanted_of_file(&self, number: u32, end: u64) -> Result<Vec<Wanted>> {
        let values = self.base.db.values();
        let mut file = SegmentFile::open(&values.path(number)).map_err(log_error)?;
        let mut wanted = Vec::new();
        let mut key = Vec::new();
        let mut full = Vec::new();
        let catalog = self.published.catalog();
        while let Some((_, offset, payload)) = file.next().map_err(log_error)? {
            for doc in oplog::documents(payload) {
                let fields = Operation::read(doc);
                if !matches!(fields.op, Some("i" | "u")) || fields.o.len() < LEAST_BYTES {
                    continue;
                }
                // Of a collection that is no more nothing is wanted.
                let uuid = oplog::value_uuid(fields.uuid);
                let Some(collection) = uuid.and_then(|uuid| catalog.by_uuid(&uuid)) else { continue };
                key.clear();
                fields.put_record_key(&mut key)?;
                prefixed(collection.ident, &key, &mut full);
                let at = offset + offset_in(payload, fields.o) as u64;
                if let Some(reference) = self.reference_of(&full)?
                    && (reference.file, u64::from(reference.offset)) == (number, at)
                {
                    wanted.push((full.clone(), reference));
                }
            }
            if self.is_stopping() {
                return Err(Error::new(Code::INTERRUPTED_AT_SHUTDOWN, "the server is shutting down"));
            }
        }
        if file.offset() < end {
            return Err(Error::new(
                Code::CHECKSUM_MISMATCH,
                format!(
                    "{} is damaged at byte {}: what is in it up to byte {end} cannot be read",
                    values.path(number).display(),
                    file.offset()
                ),
            ));
        }
        Ok(wanted)
    }

    /// Where a record's document is, if it is in a file.
    fn reference_of(&self, full: &[u8]) -> Result<Option<Reference>> {
        let found = self.base.db.get_unresolved(Cf::Records, full)?;
        Ok(found.as_deref().and_then(Reference::read))
    }

    /// Writes documents into RocksDB whose records still refer to where they were found.
    fn copy_values(&self, wanted: &[Wanted]) -> Result<()> {
        let values = self.base.db.values();
        let mut documents = Vec::with_capacity(wanted.len());
        for (_, reference) in wanted {
            let mut bytes = Vec::new();
            values.read(reference, &mut bytes)?;
            documents.push(bytes);
        }
        self.wait_for_memory(false)?;
        let _still = self.still();
        self.durability.check_writable()?;
        let mut batch = WriteBatch::default();
        for ((full, reference), document) in wanted.iter().zip(&documents) {
            if self.reference_of(full)? == Some(*reference) {
                batch.put_cf(self.base.db.cf(Cf::Records), full, document);
                values.note_copied(document.len() as u64);
            }
        }
        let (bytes, written) = self.commits.write(batch, &[], None, 0);
        written?;
        self.flushes.note_written(bytes);
        Ok(())
    }
}
