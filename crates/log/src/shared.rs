//! What a log's writer and its readers share.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::entry::{HEADER_LEN, Header};
use crate::files::ReadFiles;
use crate::lock::lock;
use crate::rate::Rate;
use crate::segment::{SEGMENT_HEADER_LEN, Segment};
use crate::{Error, Result};

/// What readers see without the writer's lock.
pub(crate) struct Shared {
    pub last_index: AtomicU64,
    pub segments: Mutex<Vec<Segment>>,
    pub files: ReadFiles,
    pub durable_index: AtomicU64,
    /// Counts the cuts: a sync that began before one says nothing about what was appended after it.
    pub cuts: AtomicU64,
    /// Set for good when a sync failed, or a failed append could not be taken back.
    pub failed: AtomicBool,
    pub syncs: AtomicU64,
    pub files_synced: AtomicU64,
    pub sync_micros: AtomicU64,
    pub appends: AtomicU64,
    pub append_bytes: AtomicU64,
    /// How many of these the last sync has covered.
    pub synced_bytes: AtomicU64,
    pub rate: Rate,
    pub read_bytes: AtomicU64,
}

impl Shared {
    /// Of a log that ends at `last`; up to `durable` it survives a crash of the machine.
    pub fn new(files: ReadFiles, segments: Vec<Segment>, last: u64, durable: u64) -> Shared {
        Shared {
            last_index: AtomicU64::new(last),
            segments: Mutex::new(segments),
            files,
            durable_index: AtomicU64::new(durable),
            cuts: AtomicU64::new(0),
            failed: AtomicBool::new(false),
            syncs: AtomicU64::new(0),
            files_synced: AtomicU64::new(0),
            sync_micros: AtomicU64::new(0),
            appends: AtomicU64::new(0),
            append_bytes: AtomicU64::new(0),
            synced_bytes: AtomicU64::new(0),
            rate: Rate::default(),
            read_bytes: AtomicU64::new(0),
        }
    }

    /// Fills `bytes` from a segment at `at`.
    ///
    /// Errors: `Gone` if the log does not have the segment any more.
    pub fn read(&self, id: u64, bytes: &mut [u8], at: u64) -> Result<()> {
        let failed = |e| Error::io("reading a segment", e);
        self.read_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        let place = {
            let segments = lock(&self.segments);
            let Some(segment) = segments.iter().rfind(|segment| segment.id == id) else {
                return Err(Error::Gone { first: first_index(&segments) });
            };
            match segment.file.clone() {
                Some(file) => Ok(file),
                None => Err(segment.path.clone()),
            }
        };
        let outcome = match place {
            Ok(file) => file.read_exact_at(bytes, at),
            Err(path) => self.files.read(id, || File::open(&path), bytes, at),
        };
        let segments = lock(&self.segments);
        if !segments.iter().any(|segment| segment.id == id) {
            // Removed meanwhile, perhaps before the file was opened. It may be another segment's by now.
            let first = first_index(&segments);
            drop(segments);
            self.files.close(|open| open == id);
            return Err(Error::Gone { first });
        }
        outcome.map_err(failed)
    }

    /// Header of a segment's first entry, if it has one.
    pub fn first_entry(&self, segment: &Segment) -> Result<Option<Header>> {
        if segment.bytes < SEGMENT_HEADER_LEN + HEADER_LEN as u64 {
            return Ok(None);
        }
        let mut bytes = [0; HEADER_LEN];
        self.read(segment.id, &mut bytes, SEGMENT_HEADER_LEN)?;
        Ok(Header::decode(&bytes, segment.salt))
    }
}

/// Index of the oldest entry that these segments, a log's, can hold.
pub(crate) fn first_index(segments: &[Segment]) -> u64 {
    segments.first().expect("a log has a segment at all times").first_index
}
