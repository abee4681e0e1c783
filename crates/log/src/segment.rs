//! Segment files: names, headers, the list of them.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::entry::{HEADER_LEN, Header, Salt};
use crate::files::Reserve;
use crate::marks::Marks;
use crate::spares::Spares;
use crate::{Error, Result};

pub(crate) const MAGIC: &[u8; 8] = b"SHEAFLOG";
/// Of a segment as this program makes it in a new file...
pub(crate) const VERSION: u32 = 3;
/// ...and in one that has been another segment: behind its entries are that one's.
pub(crate) const VERSION_RECYCLED: u32 = 4;
/// All entries have the log's salt. In version 1 there is none, and headers have no checks of their own.
const VERSION_ONE_SALT: u32 = 2;

/// The salt of a segment in a log with this one.
pub(crate) fn salt_of(version: u32, first_index: u64, base: Salt) -> Salt {
    if version <= VERSION_ONE_SALT || !base.checks() {
        return base;
    }
    // Other than for every segment before it, also in the checksum (which tells all differences within 32 bits).
    Salt(if base.0 == first_index { base.0 } else { base.0 ^ first_index })
}

/// The log's salt with which a segment has this one: what [`salt_of`] undoes.
pub(crate) fn base_for(version: u32, first_index: u64, salt: Salt) -> Salt {
    if version <= VERSION_ONE_SALT || salt.0 == first_index {
        return salt;
    }
    Salt(salt.0 ^ first_index)
}

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
    /// Of its format.
    pub version: u32,
    /// The log's salt.
    pub base: Salt,
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
    pub fn new(path: PathBuf, first_index: u64, bytes: u64, version: u32, base: Salt) -> Segment {
        let id = IDS.fetch_add(1, Ordering::Relaxed);
        let salt = salt_of(version, first_index, base);
        Segment { id, path, first_index, bytes, version, base, salt, file: None, marks: Arc::default() }
    }

    pub fn name(&self) -> String {
        self.path.file_name().expect("a segment is a file").to_string_lossy().into_owned()
    }

    /// Whether what is behind its entries may be those of another segment.
    pub fn is_recycled(&self) -> bool {
        self.version == VERSION_RECYCLED
    }

    /// Creates a segment file with its header, in a spare one if there is one, and gives its length. All segments of a log have the same
    /// `base`, so that one whose header is lost can still be read. The folder is not synced here.
    pub fn create(
        dir: &Path,
        first_index: u64,
        base: Salt,
        reserve: &Reserve,
        spares: &Spares,
    ) -> Result<(Segment, Arc<File>, u64)> {
        let path = segment_path(dir, first_index);
        let base = if base.checks() { base } else { Salt::new() };
        let failed = |e| Error::io(format!("creating {}", path.display()), e);
        let (file, version) = match spares.open_as(&path, reserve) {
            Some(file) => (file, VERSION_RECYCLED),
            None => {
                let mut options = OpenOptions::new();
                options.read(true).write(true).create(true).truncate(true);
                (reserve.open(|| options.open(&path)).map_err(failed)?, VERSION)
            }
        };
        let header = segment_header(first_index, base, version);
        let written = file.write_all_at(&header, 0).and_then(|()| Ok(file.metadata()?.len()));
        let length = written.map_err(|error| {
            // Nothing of value is in the file; leaving it would only confuse the next start.
            let _ = fs::remove_file(&path);
            failed(error)
        })?;
        let file = Arc::new(file);
        let mut segment = Segment::new(path, first_index, SEGMENT_HEADER_LEN, version, base);
        segment.file = Some(file.clone());
        Ok((segment, file, length))
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
        let file = Arc::new(reserve.open(|| options.open(&self.path)).map_err(what)?);
        self.file = Some(file.clone());
        Ok(file)
    }
}

/// The file of the segment that begins with this entry.
pub(crate) fn segment_path(dir: &Path, first_index: u64) -> PathBuf {
    dir.join(format!("{first_index:020}.log"))
}

pub(crate) fn segment_header(
    first_index: u64,
    base: Salt,
    version: u32,
) -> [u8; SEGMENT_HEADER_LEN as usize] {
    let mut header = [0; SEGMENT_HEADER_LEN as usize];
    header[..8].copy_from_slice(MAGIC);
    header[8..12].copy_from_slice(&version.to_le_bytes());
    header[16..24].copy_from_slice(&first_index.to_le_bytes());
    header[24..32].copy_from_slice(&base.0.to_le_bytes());
    let crc = crc32c::crc32c(&header);
    header[12..16].copy_from_slice(&crc.to_le_bytes());
    header
}

/// Lists the folder's segments in order: those with whole headers, and all from the first on whose header is not whole. That
/// one had not been synced, if it and what comes after it was written shortly before a crash; recovery finds out. Where a header is not
/// whole, the segment is taken to have the salt of others.
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
        segments.push(Segment::new(path, first_index, bytes, 1, Salt(0)));
    }
    segments.sort_by_key(|segment| segment.first_index);
    let headers = segments.iter().map(check_header).collect::<Result<Vec<_>>>()?;
    let whole = headers.iter().find_map(|header| header.clone().ok());
    let guessed = || segments.iter().find_map(guess_header);
    let mut known = whole.or_else(guessed).unwrap_or((1, Salt(0)));
    for (segment, header) in segments.iter_mut().zip(&headers) {
        known = header.clone().unwrap_or(known);
        (segment.version, segment.base) = known;
        segment.salt = salt_of(segment.version, segment.first_index, segment.base);
    }
    let whole = headers.iter().take_while(|header| header.is_ok()).count();
    let torn = segments.split_off(whole);
    Ok((segments, torn))
}

/// Version and log's salt of a segment, or what is wrong with its header.
pub(crate) fn check_header(segment: &Segment) -> Result<std::result::Result<(u32, Salt), String>> {
    let file = segment.open(false)?;
    let mut found = [0; SEGMENT_HEADER_LEN as usize];
    if segment.bytes < SEGMENT_HEADER_LEN {
        return Ok(Err("segment header is cut".into()));
    }
    file.read_exact_at(&mut found, 0).map_err(|e| Error::io("reading a segment header", e))?;
    let base = Salt(u64::from_le_bytes(std::array::from_fn(|i| found[24 + i])));
    let version = u32::from_le_bytes([found[8], found[9], found[10], found[11]]);
    let checks = base.checks() == (version > 1);
    if checks && version <= VERSION_RECYCLED && found == segment_header(segment.first_index, base, version) {
        return Ok(Ok((version, base)));
    }
    if found[..8] == *MAGIC && version > VERSION_RECYCLED {
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

/// Version and log's salt that a damaged header had, where the first entry behind it agrees: with the salt as it is found, or with another in one of its
/// bytes. Two of them may agree, since a salt of all segments may be that of one; the header that is most like the damaged one is taken.
fn guess_header(segment: &Segment) -> Option<(u32, Salt)> {
    let mut found = [0; SEGMENT_HEADER_LEN as usize + HEADER_LEN];
    segment.open(false).ok()?.read_exact_at(&mut found, 0).ok()?;
    let (header, entry) = found.split_first_chunk::<{ SEGMENT_HEADER_LEN as usize }>()?;
    let entry: &[u8; HEADER_LEN] = entry.try_into().ok()?;
    let base: [u8; 8] = std::array::from_fn(|i| header[24 + i]);
    let bases = (0..8 * 256).map(|n| {
        let mut other = base;
        other[n / 256] = (n % 256) as u8;
        Salt(u64::from_le_bytes(other))
    });
    let agrees = |version: u32, base: Salt| {
        let salt = salt_of(version, segment.first_index, base);
        let first = Header::decode(entry, salt).filter(|_| salt.checks());
        first.is_some_and(|first| first.at.index == segment.first_index)
    };
    let unlike = |version: u32, base: Salt| {
        let whole = segment_header(segment.first_index, base, version);
        whole.iter().zip(header).filter(|(whole, found)| whole != found).count()
    };
    bases
        .flat_map(|base| [VERSION_RECYCLED, VERSION, VERSION_ONE_SALT].map(|version| (version, base)))
        .filter(|&(version, base)| agrees(version, base))
        .min_by_key(|&(version, base)| unlike(version, base))
}

/// Makes created and removed names in the folder durable.
pub(crate) fn sync_dir(dir: &File) -> Result<()> {
    dir.sync_all().map_err(|e| Error::io("syncing the log folder", e))
}
