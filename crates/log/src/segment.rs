//! Segment files: names, headers, the list of them.

use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::entry::Salt;
use crate::files::Reserve;
use crate::marks::Marks;
use crate::{Error, Result};

pub(crate) const MAGIC: &[u8; 8] = b"SHEAFLOG";
/// The version written. In version 1 segments have no salt, and headers no checks of their own.
const VERSION: u32 = 2;

/// Bytes of a segment before its first entry.
pub(crate) const SEGMENT_HEADER_LEN: u64 = 32;

/// One segment file as the list of segments knows it.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    /// Names it in this process: after a cut, another may have the same path.
    pub id: u64,
    pub path: PathBuf,
    pub first_index: u64,
    /// Length of the file, as far as it is known to hold whole entries. Zeros may follow.
    pub bytes: u64,
    /// What the checks of its headers know.
    pub salt: Salt,
    /// The writer's file, while it writes here: readers need none of their own.
    pub file: Option<Arc<File>>,
    /// Where some of its entries begin.
    pub marks: Arc<Marks>,
}

/// Gives numbers to segments.
static IDS: AtomicU64 = AtomicU64::new(1);

impl Segment {
    fn new(path: PathBuf, first_index: u64, bytes: u64, salt: Salt) -> Segment {
        let id = IDS.fetch_add(1, Ordering::Relaxed);
        Segment { id, path, first_index, bytes, salt, file: None, marks: Arc::default() }
    }

    pub fn name(&self) -> String {
        self.path.file_name().expect("a segment is a file").to_string_lossy().into_owned()
    }

    /// Creates a segment file with its header. All segments have the same salt, so that one whose header is lost can still
    /// be read; `before` is that of the segment before it. The folder is not synced here.
    pub fn create(
        dir: &Path,
        first_index: u64,
        before: Salt,
        reserve: &Reserve,
    ) -> Result<(Segment, Arc<File>)> {
        let path = dir.join(format!("{first_index:020}.log"));
        let salt = if before.checks() { before } else { Salt::new() };
        let what = || format!("creating {}", path.display());
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true);
        let mut file = reserve.open(|| options.open(&path)).map_err(|e| Error::io(what(), e))?;
        if let Err(error) = file.write_all(&segment_header(first_index, salt)) {
            // Nothing of value is in the file; leaving it would only confuse the next start.
            let _ = fs::remove_file(&path);
            return Err(Error::io(what(), error));
        }
        let file = Arc::new(file);
        let mut segment = Segment::new(path, first_index, SEGMENT_HEADER_LEN, salt);
        segment.file = Some(file.clone());
        Ok((segment, file))
    }

    pub fn open(&self, write: bool) -> Result<File> {
        OpenOptions::new()
            .read(true)
            .write(write)
            .open(&self.path)
            .map_err(|e| Error::io(format!("opening {}", self.path.display()), e))
    }

    /// Opens it to be written on from its last whole entry.
    pub fn open_at_end(&mut self, reserve: &Reserve) -> Result<Arc<File>> {
        let what = |e| Error::io(format!("opening {}", self.path.display()), e);
        let options = OpenOptions::new().read(true).write(true).clone();
        let mut file = reserve.open(|| options.open(&self.path)).map_err(what)?;
        file.seek(SeekFrom::Start(self.bytes)).map_err(|e| Error::io("finding a segment's end", e))?;
        let file = Arc::new(file);
        self.file = Some(file.clone());
        Ok(file)
    }
}

pub(crate) fn segment_header(first_index: u64, salt: Salt) -> [u8; SEGMENT_HEADER_LEN as usize] {
    let mut header = [0; SEGMENT_HEADER_LEN as usize];
    header[..8].copy_from_slice(MAGIC);
    let version: u32 = if salt.checks() { VERSION } else { 1 };
    header[8..12].copy_from_slice(&version.to_le_bytes());
    header[16..24].copy_from_slice(&first_index.to_le_bytes());
    header[24..32].copy_from_slice(&salt.0.to_le_bytes());
    let crc = crc32c::crc32c(&header);
    header[12..16].copy_from_slice(&crc.to_le_bytes());
    header
}

/// Lists the folder's segments in order: those with whole headers, and all from the first on whose header is not whole. That
/// one had not been synced, if it and what comes after it was written shortly before a crash; recovery finds out.
pub(crate) fn list(dir: &Path) -> Result<(Vec<Segment>, Vec<Segment>)> {
    let what = || format!("listing {}", dir.display());
    let mut segments = Vec::new();
    for item in fs::read_dir(dir).map_err(|e| Error::io(what(), e))? {
        let path = item.map_err(|e| Error::io(what(), e))?.path();
        let first_index = path
            .file_name()
            .and_then(|name| name.to_str())
            .and_then(|name| name.strip_suffix(".log"))
            .and_then(|digits| digits.parse::<u64>().ok());
        let Some(first_index) = first_index else { continue };
        let bytes = fs::metadata(&path).map_err(|e| Error::io(what(), e))?.len();
        segments.push(Segment::new(path, first_index, bytes, Salt(0)));
    }
    segments.sort_by_key(|segment| segment.first_index);
    let mut torn = None;
    let mut salt = Salt(0);
    for (at, segment) in segments.iter_mut().enumerate() {
        match check_header(segment)? {
            Ok(own) => salt = own,
            Err(what) => torn = torn.or(Some((at, what))),
        }
        segment.salt = salt;
    }
    match torn {
        None => Ok((segments, Vec::new())),
        Some((0, what)) if segments.len() > 1 => {
            Err(Error::Damaged { segment: segments[0].name(), offset: 0, what })
        }
        Some((at, _)) => {
            let torn = segments.split_off(at);
            Ok((segments, torn))
        }
    }
}

fn check_header(segment: &Segment) -> Result<std::result::Result<Salt, String>> {
    let file = segment.open(false)?;
    let mut found = [0; SEGMENT_HEADER_LEN as usize];
    if segment.bytes < SEGMENT_HEADER_LEN {
        return Ok(Err("segment header is cut".into()));
    }
    file.read_exact_at(&mut found, 0).map_err(|e| Error::io("reading a segment header", e))?;
    let salt = Salt(u64::from_le_bytes(std::array::from_fn(|i| found[24 + i])));
    if found == segment_header(segment.first_index, salt) {
        return Ok(Ok(salt));
    }
    let version = u32::from_le_bytes([found[8], found[9], found[10], found[11]]);
    if found[..8] == *MAGIC && version > VERSION {
        // Only believed if the rest of the header is whole, else it is a flipped bit.
        let crc = u32::from_le_bytes([found[12], found[13], found[14], found[15]]);
        let mut plain = found;
        plain[12..16].fill(0);
        if crc32c::crc32c(&plain) == crc {
            return Err(Error::TooNew { segment: segment.name(), version });
        }
    }
    Ok(Err("segment header is not readable".into()))
}

/// Makes created and removed names in the folder durable.
pub(crate) fn sync_dir(dir: &File) -> Result<()> {
    dir.sync_all().map_err(|e| Error::io("syncing the log folder", e))
}
