//! Taking back the end of the log that a replica set has not kept.
//!
//! As a rule RocksDB's files do not hold it: they are flushed up to the set's commit point. Where they were flushed ahead of
//! it, what they held before is there ([`crate::flush::stable`]). So it is enough to cut the log and to open the folder anew. Before that, what the documents are that the rollback changes or removes is written to files, one
//! document after another, as `mongorestore` reads them:
//!
//! ```text
//! <folder>/<collection uuid>/removed.<UTC time>.<number>.bson
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use sheaf_bson::RawDoc;
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_log::Log;
use uuid::Uuid;

use crate::core::Core;
use crate::db::Cf;
use crate::engine::Engine;
use crate::hooks::HookPoint;
use crate::keys::prefixed;
use crate::oplog::{self, LogEntry, Operation, log_error};
use crate::sequencer::stays_here;

/// What a rollback has saved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RolledBack {
    /// Documents in the files.
    pub documents: u64,
    /// The files, in no particular order.
    pub files: Vec<PathBuf>,
    /// Operations that are taken back: inserts, updates, deletes, commands.
    pub operations: [u64; 4],
}

/// So many bytes of record keys are gathered at a time. Where there are more, the log is read once for each part of them.
const KEYS_BYTES: usize = 64 << 20;

/// What a key takes in memory besides its bytes.
const KEY_COST: usize = 64;

/// Record keys by collection.
type Touched = BTreeMap<Uuid, BTreeSet<Vec<u8>>>;

impl Engine {
    /// Writes every document that entries after `keep`, up to `last`, have inserted or changed, as it is now, to files in
    /// `folder`. They are on stable storage when this returns; nothing is taken back yet.
    pub fn save_rolled_back(&self, keep: u64, last: u64, folder: &Path) -> Result<RolledBack> {
        self.core().save_rolled_back(keep, last, folder, KEYS_BYTES)
    }

    /// Cuts the log's entries after `keep`, for good. What was applied of them is still there: nothing can be written any
    /// more, and the folder must be opened anew. To be called with the pipeline held, or when nobody writes.
    pub fn truncate_log(&self, keep: u64) -> Result<()> {
        self.core().truncate_log(keep)
    }
}

impl Core {
    pub(crate) fn save_rolled_back(
        &self,
        keep: u64,
        last: u64,
        folder: &Path,
        keys_bytes: usize,
    ) -> Result<RolledBack> {
        remove_torn(folder);
        let mut saved = RolledBack::default();
        let mut bytes = 0;
        self.each_touched(keep, last, &mut |kind, key| {
            saved.operations[kind] += 1;
            bytes += key.map_or(0, |(_, key)| key.len() + KEY_COST);
        })?;
        let parts = (bytes / keys_bytes + 1) as u64;
        let time = file_time(self.base.options.wall_millis());
        let mut paths = BTreeMap::new();
        for part in 0..parts {
            // A key that is touched often is always in the same part.
            let mut touched = Touched::new();
            self.each_touched(keep, last, &mut |_, key| {
                if let Some((uuid, key)) = key.filter(|key| part_of(key, parts) == part) {
                    touched.entry(uuid).or_default().insert(key);
                }
            })?;
            for (uuid, keys) in &touched {
                saved.documents += self.save_keys(uuid, keys, folder, &time, &mut paths)?;
            }
        }
        for path in paths.values() {
            let whole = path.with_extension("");
            fs::rename(path, &whole).map_err(|e| file_error("renaming", path, &e))?;
            saved.files.push(whole);
        }
        for uuid in paths.keys() {
            sync_folder(&folder.join(uuid.to_string()))?;
        }
        if !paths.is_empty() {
            sync_folder(folder)?;
        }
        Ok(saved)
    }

    /// The kind of each operation after `keep`, up to `last`, and which document it concerns, if it is one that others have.
    fn each_touched(&self, keep: u64, last: u64, each: &mut Each<'_>) -> Result<()> {
        let Some(log) = self.durability.log().filter(|_| keep < last) else { return Ok(()) };
        // A transaction that loses its end is lost whole: its beginning goes, too, though its entries stay.
        let mut first = keep + 1;
        let continues = |first: u64| -> Result<bool> {
            let entry = log.read_from(first).and_then(|mut reader| reader.next()).map_err(log_error)?;
            Ok(entry
                .and_then(|entry| oplog::link(&entry.payload))
                .is_some_and(|link| link.previous.is_some()))
        };
        while first > 1 && continues(first)? {
            first -= 1;
        }
        let mut reader = log.read_from(first).map_err(log_error)?;
        while reader.index() <= last
            && let Some(entry) = reader.next().map_err(log_error)?
        {
            for doc in oplog::documents(&entry.payload) {
                let fields = Operation::read(doc);
                if fields.is_prepare() {
                    // Nothing of it has happened.
                    continue;
                }
                if let Some((prepared, _)) = fields.committed() {
                    for entry in prepare_at(log, prepared.0)? {
                        // Others may have been committed with it, as one entry.
                        let own = |doc: &RawDoc<'_>| {
                            oplog::time(doc.as_bytes()) == prepared.0 || oplog::link_of(*doc).is_some()
                        };
                        let operations = oplog::documents(&entry.payload).filter(own).map(Operation::read);
                        let mut inner = operations.filter_map(|fields| fields.operations()).flatten();
                        inner.try_for_each(|fields| touch(&fields, each))?;
                    }
                    continue;
                }
                match fields.operations() {
                    Some(inner) => inner.into_iter().try_for_each(|fields| touch(&fields, each))?,
                    None => touch(&fields, each)?,
                }
            }
        }
        Ok(())
    }

    /// Appends the documents of these keys to their collection's file, which `paths` names if there is one already. Gives how
    /// many there were. Collections that are gone have no documents left to save.
    fn save_keys(
        &self,
        uuid: &Uuid,
        keys: &BTreeSet<Vec<u8>>,
        folder: &Path,
        time: &str,
        paths: &mut BTreeMap<Uuid, PathBuf>,
    ) -> Result<u64> {
        let catalog = self.published.catalog();
        let Some(collection) = catalog.by_uuid(uuid) else { return Ok(0) };
        let mut out: Option<(BufWriter<File>, PathBuf)> = None;
        let (mut full, mut count) = (Vec::new(), 0);
        for key in keys {
            prefixed(collection.ident, key, &mut full);
            let Some(doc) = self.base.db.get(Cf::Records, &full)? else { continue };
            let (file, path) = match (&mut out, paths.get(uuid)) {
                (Some(out), _) => out,
                (out, Some(path)) => out.insert(append(path)?),
                (out, None) => out.insert(create(&folder.join(uuid.to_string()), time)?),
            };
            file.write_all(&doc).map_err(|e| file_error("writing", path, &e))?;
            count += 1;
        }
        let Some((file, path)) = out else { return Ok(0) };
        let synced = file.into_inner().map_err(|e| e.into_error()).and_then(|file| file.sync_all());
        synced.map_err(|e| file_error("writing", &path, &e))?;
        sync_folder(&folder.join(uuid.to_string()))?;
        paths.insert(*uuid, path);
        Ok(count)
    }

    fn truncate_log(&self, keep: u64) -> Result<()> {
        self.durability.refuse_writes("the end of the log is taken back");
        let Some(log) = self.durability.log() else {
            bail!(Code::ILLEGAL_OPERATION, "there is no log to be cut")
        };
        let base = self.flushes.base_for(keep)?;
        let at = if keep == base.index {
            base
        } else {
            let mut reader = log.read_from(keep).map_err(log_error)?;
            match reader.next().map_err(log_error)? {
                Some(entry) => entry.at,
                None => bail!(Code::UNRECOVERABLE_ROLLBACK_ERROR, "the log has no entry {keep}"),
            }
        };
        log.truncate_after(at).map_err(log_error)?;
        self.base.hooks.call(HookPoint::StableCopy)
    }
}

/// Is told the kind of an operation (insert, update, delete, command), and collection and record key of its document.
type Each<'e> = dyn FnMut(usize, Option<(Uuid, Vec<u8>)>) + 'e;

fn touch(fields: &Operation<'_>, each: &mut Each<'_>) -> Result<()> {
    let kind = match fields.op {
        Some("i") => 0,
        Some("u") => 1,
        Some("d") => 2,
        Some("c") => 3,
        _ => return Ok(()),
    };
    let uuid = oplog::value_uuid(fields.uuid).filter(|_| kind != 3 && !stays_here(fields.namespace));
    let key = uuid.map(|uuid| -> Result<_> {
        let mut key = Vec::new();
        fields.put_record_key(&mut key)?;
        Ok((uuid, key))
    });
    each(kind, key.transpose()?);
    Ok(())
}

/// The entries of the prepare that ends at this time. The log has them until its commit is settled; where it begins with a
/// copy that was made in between, there are none.
fn prepare_at(log: &Log, time: u64) -> Result<Vec<LogEntry>> {
    let mut entries: Vec<LogEntry> = Vec::new();
    let mut index = match log.read_from_time(time) {
        Ok(reader) => reader.index(),
        Err(sheaf_log::Error::Gone { .. }) => return Ok(entries),
        Err(error) => return Err(log_error(error)),
    };
    loop {
        let entry = match log.read_from(index).and_then(|mut reader| reader.next()) {
            Ok(Some(entry)) => LogEntry::from(entry),
            Ok(None) | Err(sheaf_log::Error::Gone { .. }) => return Ok(entries),
            Err(error) => return Err(log_error(error)),
        };
        let is_it =
            |doc: RawDoc<'_>| oplog::time(doc.as_bytes()) == time && Operation::read(doc).is_prepare();
        if entries.is_empty() && !oplog::documents(&entry.payload).any(is_it) {
            tracing::warn!("documents of a transaction are not saved: the log begins behind its prepare");
            return Ok(entries);
        }
        let continues = oplog::link(&entry.payload).is_some_and(|link| link.previous.is_some());
        entries.push(entry);
        if !continues || index <= 1 {
            return Ok(entries);
        }
        index -= 1;
    }
}

/// Which of so many parts a key belongs to.
fn part_of(key: &(Uuid, Vec<u8>), parts: u64) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish() % parts
}

fn append(path: &Path) -> Result<(BufWriter<File>, PathBuf)> {
    let file = File::options().append(true).open(path).map_err(|e| file_error("opening", path, &e))?;
    Ok((BufWriter::with_capacity(1 << 20, file), path.to_owned()))
}

/// What files are called after until they are whole: a full disk or a crash may leave them as they are.
const TORN: &str = "part";

/// Removes what an earlier attempt has left; one that cannot be removed does no harm.
fn remove_torn(folder: &Path) {
    let entries =
        |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    for path in entries(folder).flat_map(|collection| entries(&collection).collect::<Vec<_>>()) {
        if path.extension().is_some_and(|extension| extension == TORN) {
            let _ = fs::remove_file(path);
        }
    }
}

/// Creates the next file of this time; earlier rollbacks of the same second have left theirs.
fn create(folder: &Path, time: &str) -> Result<(BufWriter<File>, PathBuf)> {
    fs::create_dir_all(folder).map_err(|e| file_error("creating", folder, &e))?;
    let mut number = 0;
    let path = loop {
        let whole = folder.join(format!("removed.{time}.{number}.bson"));
        let path = whole.with_extension(format!("bson.{TORN}"));
        if !whole.exists() && !path.exists() {
            break path;
        }
        number += 1;
    };
    let file = File::create_new(&path).map_err(|e| file_error("creating", &path, &e))?;
    Ok((BufWriter::with_capacity(1 << 20, file), path))
}

/// Makes the folder's names durable, and its own in its parent.
fn sync_folder(folder: &Path) -> Result<()> {
    for folder in std::iter::once(folder).chain(folder.parent()) {
        let synced = File::open(folder).and_then(|folder| folder.sync_all());
        synced.map_err(|e| file_error("syncing", folder, &e))?;
    }
    Ok(())
}

fn file_error(what: &str, path: &Path, error: &std::io::Error) -> Error {
    let full = matches!(error.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded);
    let code = if full { Code::OUT_OF_DISK_SPACE } else { Code::FILE_STREAM_FAILED };
    Error::new(code, format!("{what} {} failed: {error}", path.display()))
}

/// `2026-11-21T08-53-07`, in UTC.
pub(super) fn file_time(millis: i64) -> String {
    let seconds = millis.div_euclid(1000);
    let (days, of_day) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Days since 1970 to a date, by eras of 400 years that begin in March.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}-{minute:02}-{second:02}")
}

#[cfg(test)]
mod tests {
    use super::file_time;

    #[test]
    fn times_in_file_names() {
        for (millis, expected) in [
            (0, "1970-01-01T00-00-00"),
            (951_827_696_999, "2000-02-29T12-34-56"),
            (1_763_715_187_000, "2025-11-21T08-53-07"),
            (4_107_542_399_000, "2100-02-28T23-59-59"),
        ] {
            assert_eq!(file_time(millis), expected);
        }
    }
}
