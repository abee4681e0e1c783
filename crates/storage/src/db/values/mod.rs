//! Large documents that stay where the log has them, so that they are written once.
//!
//! A document that is large, and does not become much smaller by compression, is not copied from the log into RocksDB: what RocksDB gets is a
//! [`Reference`] to the log's own bytes. The segment that has them gets a second name among RocksDB's files, `<number>.values`, which stays
//! when the log lets go of its own. (WiscKey: Lu et al., FAST '16, with the log as the file of values.)
//!
//! What holds at any moment:
//!
//! - a file has its name before anything refers to it, and that name is durable before a flush has such a reference
//!   ([`Values::sync_names`]). The bytes are, because what is flushed is durable in the log;
//! - for each file there is a row in the catalog's family ([`FileRow`]), which goes into the batch of the references: up to where they reach, and
//!   how much of it is thought to be wanted;
//! - a file goes when nothing in the newest state refers to it, that state is flushed, and nobody reads an older one ([`Values::pin`]).
//!   Where little of a file is wanted, that is first copied into RocksDB: see [`crate::values`].
//!
//! Only a node that orders its commits by itself leaves values in the log: the log of a member of a set can be cut.
//!
//! - [`reference`]: what stands in a document's place;
//! - [`rows`]: what is on record of files;
//! - [`place`]: from a commit's payload to its place in the log;
//! - [`retired`]: files that go;
//! - [`ahead`]: what a scan is about to come to.

mod ahead;
mod place;
mod reference;
mod retired;
mod rows;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use arc_swap::ArcSwap;
use rocksdb::DBPinnableSlice;
use sheaf_errors::{Code, Error, Result};
use sheaf_log::ReadFiles;

use crate::folder::file_error;
use crate::order::{Mutex, rank};
pub(crate) use ahead::{Ahead, Next};
pub(crate) use place::{LEAST_BYTES, Spot};
pub(crate) use reference::{Reference, offset_in};
pub(crate) use retired::Part;
use retired::Retired;
pub(crate) use rows::Families;
use rows::FileRow;

/// What the names of files end in.
const SUFFIX: &str = "values";

/// The files of values of one database.
pub(crate) struct Values {
    folder: PathBuf,
    read: ReadFiles,
    /// Whether large documents are left in the log.
    on: AtomicBool,
    /// Whether states are read that refer to files, or will be.
    pins: AtomicBool,
    /// Whether there are any.
    any: AtomicBool,
    /// What every pin has a share of, until the next generation begins.
    generation: ArcSwap<()>,
    /// How many names were given, and how many of them last.
    given: AtomicU64,
    synced: Mutex<{ rank::LEAF }, u64>,
    state: Mutex<{ rank::LEAF }, State>,
    /// Bytes that were left in the log.
    left: AtomicU64,
    /// Bytes that were copied out of files of which little was wanted.
    copied: AtomicU64,
}

#[derive(Default)]
struct State {
    files: BTreeMap<u32, FileRow>,
    /// The file that is the log's newest segment as well, if that has any values.
    current: Option<u32>,
    /// It was told that no file can be made.
    told: bool,
    /// The highest number that was given.
    last: u32,
    /// Generations before the present one of which somebody may have a share.
    generations: Vec<Weak<()>>,
    retired: Vec<Retired>,
}

/// Places of documents, with their collections' numbers, that records refer to no more when a commit is applied.
pub(crate) type Gone = Vec<(u32, Reference)>;

/// As long as it lives, no file goes that was wanted when it was taken.
#[derive(Clone)]
pub(crate) struct Pin(#[allow(dead_code)] Option<Arc<()>>);

impl Values {
    /// The files that are in RocksDB's folder, of which so many are open at a time.
    pub fn open(folder: &Path, open_files_max: usize) -> Result<Values> {
        let failed = |e| file_error("listing", folder, &e);
        let home = Arc::new(File::open(folder).map_err(failed)?);
        let mut last = 0;
        for item in fs::read_dir(folder).map_err(failed)? {
            last = last.max(number_of(&item.map_err(failed)?.path()).unwrap_or(0));
        }
        Ok(Values {
            folder: folder.to_owned(),
            read: ReadFiles::new(&home, open_files_max),
            on: AtomicBool::new(false),
            pins: AtomicBool::new(last > 0),
            any: AtomicBool::new(last > 0),
            generation: ArcSwap::default(),
            given: AtomicU64::new(0),
            synced: Mutex::new(0),
            state: Mutex::new(State { last, ..State::default() }),
            left: AtomicU64::new(0),
            copied: AtomicU64::new(0),
        })
    }

    /// A file of values, by its number.
    pub fn path(&self, number: u32) -> PathBuf {
        self.folder.join(format!("{number:010}.{SUFFIX}"))
    }

    /// Whether anything may refer to a file.
    pub fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Keeps the files that are wanted now, for who is about to read what may refer to them.
    pub fn pin(&self) -> Pin {
        Pin(self.pins.load(Ordering::Acquire).then(|| self.generation.load_full()))
    }

    /// The document that a record's value is, or refers to.
    ///
    /// Errors: `ChecksumMismatch`, also where the file went meanwhile, which happens to who has no pin.
    pub fn resolve<'v>(&self, value: &'v [u8]) -> Result<Cow<'v, [u8]>> {
        let Some(reference) = Reference::read(value) else { return Ok(Cow::Borrowed(value)) };
        let mut bytes = Vec::new();
        self.read(&reference, &mut bytes)?;
        Ok(Cow::Owned(bytes))
    }

    /// Reads what is referred to into `bytes`.
    ///
    /// Errors: `ChecksumMismatch`.
    pub fn read(&self, reference: &Reference, bytes: &mut Vec<u8>) -> Result<()> {
        bytes.resize(reference.length as usize, 0);
        match self.read_stretch(reference.file, u64::from(reference.offset), bytes) {
            Ok(()) if reference.fits(bytes) => Ok(()),
            Ok(()) => Err(self.damaged(reference, "is not what was written")),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                Err(self.damaged(reference, "is behind the end of the file"))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Err(self.damaged(reference, "is not there: the file is missing"))
            }
            Err(error) => Err(file_error("reading", &self.path(reference.file), &error)),
        }
    }

    /// Fills `bytes` from a place in a file, whatever is there.
    fn read_stretch(&self, file: u32, offset: u64, bytes: &mut [u8]) -> std::io::Result<()> {
        self.read.read(u64::from(file), || File::open(self.path(file)), bytes, offset)
    }

    fn damaged(&self, reference: &Reference, what: &str) -> Error {
        let Reference { file, offset, length, .. } = reference;
        let name = self.path(*file);
        Error::new(
            Code::CHECKSUM_MISMATCH,
            format!("storage: a document of {length} bytes at byte {offset} of {} {what}", name.display()),
        )
    }

    /// Has the names last that files have been given. Before a flush.
    pub fn sync_names(&self) -> Result<()> {
        // Who finds that it is being done waits for the end of it.
        let mut synced = self.synced.lock();
        let given = self.given.load(Ordering::Acquire);
        if *synced < given {
            crate::folder::sync(&self.folder)?;
            *synced = given;
        }
        Ok(())
    }

    /// Gives each file a name in a copy of RocksDB's folder, which is on the same file system.
    pub fn link_into(&self, copy: &Path) -> Result<()> {
        let numbers: Vec<u32> = {
            let state = self.state.lock();
            // What is flushed may refer to those that were given up as well.
            let given_up = state.retired.iter().map(|retired| retired.number);
            state.files.keys().copied().chain(given_up).collect()
        };
        for path in numbers.into_iter().map(|number| self.path(number)) {
            let Some(name) = path.file_name() else { continue };
            fs::hard_link(&path, copy.join(name)).map_err(|e| file_error("copying", &path, &e))?;
        }
        Ok(())
    }

    /// How many bytes of a file of this name are needed by who copies it: behind them the log may go on writing. `None`: it is none of these.
    pub fn needed_of(&self, name: &str) -> Option<u64> {
        let number = number_of(Path::new(name))?;
        self.state.lock().files.get(&number).map(|row| row.end)
    }

    /// Bytes of a collection's documents that are thought to be in files.
    pub fn bytes_of(&self, ident: u32) -> u64 {
        self.state.lock().files.values().map(|file| file.wanted_of(ident)).sum()
    }

    /// Nothing refers to these places any more.
    pub fn note_gone(&self, gone: &[(u32, Reference)]) {
        if gone.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        for (ident, reference) in gone {
            if let Some(file) = state.files.get_mut(&reference.file) {
                file.unwanted(*ident, u64::from(reference.length));
            }
        }
    }

    /// All documents of a collection are not wanted any more.
    pub fn note_dropped(&self, ident: u32) {
        self.state.lock().files.values_mut().for_each(|file| file.unwanted(ident, u64::MAX));
    }

    /// Bytes left in the log, and copied out of files, since the database was opened; files, and their bytes.
    #[cfg(test)]
    pub fn figures(&self) -> [u64; 4] {
        let state = self.state.lock();
        let bytes = state.files.values().map(|file| file.end).sum();
        let (left, copied) = (&self.left, &self.copied);
        [left.load(Ordering::Relaxed), copied.load(Ordering::Relaxed), state.files.len() as u64, bytes]
    }
}

/// The number of a file of values.
fn number_of(path: &Path) -> Option<u32> {
    path.file_name()?.to_str()?.strip_suffix(SUFFIX)?.strip_suffix('.')?.parse().ok()
}

/// The bytes of a value: as RocksDB has them, or read from a file.
pub(crate) enum Stored<'a> {
    Pinned(DBPinnableSlice<'a>),
    Read(Vec<u8>),
}

impl std::ops::Deref for Stored<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Stored::Pinned(slice) => slice,
            Stored::Read(bytes) => bytes,
        }
    }
}
