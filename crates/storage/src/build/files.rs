//! Table files made beside the database and taken into it whole.

use std::path::{Path, PathBuf};

use rocksdb::{IngestExternalFileOptions, SstFileWriter};
use sheaf_errors::{Code, Result, bail};

use crate::catalog::Collection;
use crate::core::Core;
use crate::db::{Db, io_error};
use crate::keys::PREFIX;
use crate::write::changes::REFUSED_KEY_BYTES;

/// A file is closed when it has grown to this.
const FILE_BYTES: u64 = 64 << 20;

/// Or when its long keys are so many bytes: they may be compressed to nearly none.
const LONG_KEYS_BYTES: u64 = 16 << 20;

/// A key of which a block has only a few.
const LONG_KEY_BYTES: usize = 1 << 10;

/// What long keys of a build will take of memory: the smallest and largest key of each file are there.
pub(super) struct LongKeys {
    bytes: u64,
    max: u64,
}

impl LongKeys {
    pub fn new(core: &Core) -> LongKeys {
        let flushes = &core.flushes;
        LongKeys { bytes: 0, max: flushes.file_key_bytes_max().saturating_sub(flushes.file_key_bytes()) }
    }

    /// Counts a key of this length.
    ///
    /// Errors: `ExceededMemoryLimit`, where an insert of so long a key would be refused, too.
    pub fn add(&mut self, len: usize, collection: &Collection) -> Result<()> {
        if len <= REFUSED_KEY_BYTES {
            return Ok(());
        }
        let len = len as u64;
        // Two of those that are in a file.
        self.bytes += (len * len * 2 / LONG_KEYS_BYTES).min(len);
        if self.bytes <= self.max {
            return Ok(());
        }
        bail!(
            Code::EXCEEDED_MEMORY_LIMIT,
            "Index keys of over {REFUSED_KEY_BYTES} bytes would take more memory than {} bytes, so that {} cannot be indexed by them",
            self.max,
            collection.namespace
        );
    }
}

/// Writes entries, which come in order of their keys, to files: each holds entries of one number only.
pub(super) struct Files<'o> {
    db: &'o Db,
    dir: PathBuf,
    name: &'static str,
    writer: Option<SstFileWriter<'o>>,
    ident: [u8; PREFIX],
    /// Bytes of the keys in the file that is being written.
    key_bytes: u64,
    paths: Vec<PathBuf>,
}

impl<'o> Files<'o> {
    /// Files named after `name` in `dir`.
    pub fn new(db: &'o Db, dir: &Path, name: &'static str) -> Files<'o> {
        Files {
            db,
            dir: dir.to_owned(),
            name,
            writer: None,
            ident: [0; PREFIX],
            key_bytes: 0,
            paths: Vec::new(),
        }
    }

    /// Adds an entry, whose key is greater than the last one's.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let full = self.writer.as_ref().is_some_and(|writer| writer.file_size() >= FILE_BYTES);
        // A long key is in the index that the writer has in memory.
        let long = key.len() >= LONG_KEY_BYTES;
        if full || long && self.key_bytes >= LONG_KEYS_BYTES || !key.starts_with(&self.ident) {
            self.close()?;
            self.ident.copy_from_slice(&key[..PREFIX]);
        }
        if self.writer.is_none() {
            let path = self.dir.join(format!("{}{:06}.sst", self.name, self.paths.len()));
            let writer = SstFileWriter::create(self.db.index_options());
            writer.open(&path).map_err(io_error)?;
            self.paths.push(path);
            self.writer = Some(writer);
            self.key_bytes = 0;
        }
        self.key_bytes += if long { key.len() as u64 } else { 0 };
        let Some(writer) = &mut self.writer else { return Ok(()) };
        writer.put(key, value).map_err(io_error)
    }

    fn close(&mut self) -> Result<()> {
        match self.writer.take() {
            Some(mut writer) => writer.finish().map_err(io_error),
            None => Ok(()),
        }
    }

    /// The finished files.
    pub fn finish(mut self) -> Result<Vec<PathBuf>> {
        self.close()?;
        Ok(self.paths)
    }
}

impl Core {
    /// Takes files into the indexes, all or none. They are on stable storage when this returns.
    pub(super) fn take_in(&self, files: Vec<PathBuf>) -> Result<()> {
        if files.is_empty() {
            return Ok(());
        }
        let mut options = IngestExternalFileOptions::default();
        options.set_move_files(true);
        // Older snapshots do not know the index, so they may see it.
        options.set_snapshot_consistency(false);
        // A flush is ours to trigger, with its log position. There is nothing of these indexes in memtables.
        options.set_allow_blocking_flush(false);
        self.base.db.ingest(&options, files)
    }
}
