//! The writing side: append, sync, retention, cutting.

use std::fs::{self, File};
use std::io::IoSlice;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use crate::entry::{HEADER_LEN, Header, MAX_PAYLOAD, Salt, following};
use crate::files::{ReadFiles, Reserve};
use crate::lock::lock;
use crate::position::{OpTime, Place};
use crate::reader::Reader;
use crate::recover::recover;
use crate::segment::{SEGMENT_HEADER_LEN, Segment, list, segment_path, sync_dir};
use crate::shared::{Shared, first_index};
use crate::spares::Spares;
use crate::write::{PAGE_BYTES, write_all, write_entry, zeros};
use crate::{Error, Result};

/// What one `write` of several entries may carry: the kernel takes 1024 pieces, two for each and one for zeros.
const RUN_ENTRIES: usize = 511;
const RUN_BYTES: u64 = 4 << 20;

/// What readers have open at most.
const READ_FILES_MAX: usize = 8;

/// So often a segment is tried to be made where there is no descriptor for it, a little longer apart each time.
const OPEN_TRIES: u64 = 10;

/// How to open a log.
#[derive(Clone, Debug)]
pub struct Options {
    /// The log's folder; created when missing.
    pub dir: PathBuf,
    /// A segment is closed when it would grow above this. Default 64 MiB.
    pub segment_bytes: u64,
    /// Segments are kept, newest first, until they make up this many bytes.
    pub retain_bytes: u64,
    /// So many files of segments that are not kept are held for new ones. Default 4.
    pub spare_segments: usize,
}

impl Options {
    /// Defaults for this folder.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Options { dir: dir.into(), segment_bytes: 64 << 20, retain_bytes: 990 << 20, spare_segments: 4 }
    }
}

/// What opening found and did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Recovered {
    /// The last whole entry (or what the caller said was applied, when the log holds nothing newer).
    pub last: OpTime,
    /// Bytes of a torn tail that were cut off.
    pub cut_bytes: u64,
}

/// Counters since the log was opened, and sizes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    /// Entries appended.
    pub appends: u64,
    /// Bytes appended, headers included.
    pub append_bytes: u64,
    /// Syncs done.
    pub syncs: u64,
    /// Files synced by them.
    pub files_synced: u64,
    /// Time spent in them.
    pub sync_micros: u64,
    /// Bytes of all segments.
    pub bytes: u64,
    /// Index of the oldest entry kept.
    pub first_index: u64,
    /// Bytes that readers have read.
    pub read_bytes: u64,
}

/// An open log. All methods take `&self`; appends are serialised inside.
pub struct Log {
    options: Options,
    /// The folder, open: a sync must not fail for want of a descriptor.
    dir: Arc<File>,
    /// Nor must the next segment, unless what was kept back for it is gone as well.
    reserve: Reserve,
    spares: Spares,
    retain_bytes: AtomicU64,
    /// See [`Log::be_lean`].
    lean: AtomicBool,
    writer: Mutex<Writer>,
    shared: Arc<Shared>,
}

/// Zeros are written ahead in pieces of this size, when less than the other size is left of them.
const ROOM_BYTES: u64 = 1 << 20;
const ROOM_BYTES_MIN: u64 = 32 << 10;
/// Disk space is reserved in pieces of this size where it is to be had.
const RESERVED_BYTES: u64 = 1 << 20;
/// So much of it is kept for entries that free what others hold.
const KEPT_BYTES: u64 = 512 << 10;
/// Who appends more than this between two syncs has its syncs last long anyway.
const SMALL_SYNC_BYTES: u64 = 128 << 10;

struct Writer {
    file: Arc<File>,
    /// That of the log...
    base: Salt,
    /// ...and that of the current segment.
    salt: Salt,
    /// Where the next entry goes in the current segment.
    offset: u64,
    /// Up to where the current segment has bytes behind `offset` already, if that is further: zeros, or...
    zeroed: u64,
    /// ...entries of the segment that its file was before, up to here.
    old: u64,
    /// Up to where pages of these have been written whole.
    written: u64,
    /// Up to where the current segment has its place on the disk, if that is further still.
    reserved: u64,
    /// `offset` when room was last asked for.
    room_asked: u64,
    last: OpTime,
    /// Files with bytes that no sync has covered yet, oldest first; the current one is the last. They stay here until a
    /// sync has succeeded: another one that begins meanwhile must not answer for what that one has not yet done.
    unsynced: Vec<Arc<File>>,
    /// Counts the changes of the folder; up to which of them it was synced.
    folder_changes: u64,
    folder_synced: u64,
}

impl Writer {
    /// How many zeros to write behind the next `size` bytes: to the end of a page that has other entries than this segment's.
    fn padding(&mut self, size: u64) -> usize {
        let end = self.offset + size;
        let page = end.next_multiple_of(PAGE_BYTES);
        if end <= self.written || page > self.old {
            return 0;
        }
        self.written = page;
        (page - end) as usize
    }

    /// Has the current segment's file end behind its last entry.
    fn end_file(&mut self) -> std::io::Result<()> {
        self.file.set_len(self.offset)?;
        (self.zeroed, self.reserved, self.old) = (self.offset, self.offset, 0);
        Ok(())
    }
}

impl Log {
    /// Opens or creates the log. `applied` is the position up to which the caller needs nothing from
    /// the log; entries after it are checked, one by one, and a torn tail is cut. A log that ends
    /// before `applied` starts anew behind it.
    ///
    /// ```
    /// use sheaf_log::{Log, Options, OpTime};
    ///
    /// # let folder = tempfile::tempdir().unwrap();
    /// let (log, _) = Log::open(Options::new(folder.path()), OpTime::default())?;
    /// // Term 1, time 7; the payload is these parts one after another.
    /// let position = log.append(1, 7, &[b"first ", b"entry"])?;
    /// assert_eq!(log.sync()?, position.index);
    ///
    /// let entry = log.read_from(position.index)?.next()?.expect("the entry");
    /// assert_eq!((entry.at, &entry.payload[..]), (position, &b"first entry"[..]));
    /// # Ok::<(), sheaf_log::Error>(())
    /// ```
    pub fn open(options: Options, applied: OpTime) -> Result<(Log, Recovered)> {
        fs::create_dir_all(&options.dir).map_err(|e| Error::io("creating the log folder", e))?;
        let dir = Arc::new(File::open(&options.dir).map_err(|e| Error::io("opening the log folder", e))?);
        let reserve = Reserve::for_writer(&dir);
        let spares = Spares::open(&options.dir, options.spare_segments)?;
        let (mut segments, torn) = list(&options.dir)?;
        let tail = recover(&mut segments, torn, applied)?;
        let continues = segments
            .last()
            .is_some_and(|s| s.first_index <= tail.last.index + 1 && ends_at(&segments, tail.last.index));
        let mut files_synced = 0;
        let file = match segments.last() {
            Some(_) if continues => {
                // What recovery has read may still be in the page cache only, whole segments and their names too. There may
                // be more of them than descriptors.
                let first = segments.iter().rposition(|s| s.first_index <= applied.index + 1).unwrap_or(0);
                let last = segments.len() - 1;
                for before in &segments[first..last] {
                    before.open(true)?.sync_data().map_err(|e| Error::io("syncing", e))?;
                    files_synced += 1;
                }
                segments[last].open_at_end(&reserve)?
            }
            _ => {
                let base = segments.last().map_or(Salt(0), |segment| segment.base);
                for old in segments.drain(..) {
                    fs::remove_file(&old.path).map_err(|e| Error::io("removing an old segment", e))?;
                }
                let (segment, file, _) =
                    Segment::create(&options.dir, tail.last.index + 1, base, &reserve, &spares)?;
                segments.push(segment);
                file
            }
        };
        let newest = segments.last().expect("a log has a segment at all times");
        let (offset, base, salt) = (newest.bytes, newest.base, newest.salt);
        let zeroed = file.metadata().map_err(|e| Error::io("reading a segment's length", e))?.len();
        let shared =
            Shared::new(ReadFiles::new(&dir, READ_FILES_MAX), segments, tail.last.index, applied.index);
        shared.files_synced.store(files_synced, Ordering::Relaxed);
        let shared = Arc::new(shared);
        let writer = Writer {
            unsynced: vec![file.clone()],
            file,
            base,
            salt,
            offset,
            zeroed,
            old: 0,
            written: 0,
            reserved: zeroed,
            room_asked: offset,
            last: tail.last,
            folder_changes: 1,
            folder_synced: 0,
        };
        let retain_bytes = AtomicU64::new(options.retain_bytes);
        let lean = AtomicBool::new(false);
        let log =
            Log { options, dir, reserve, spares, retain_bytes, lean, writer: Mutex::new(writer), shared };
        // From here on it counts as durable.
        log.sync()?;
        Ok((log, Recovered { last: tail.last, cut_bytes: tail.cut_bytes }))
    }

    /// Appends one entry, whose payload is these parts one after another, with one `write`. After an
    /// error nothing of it is in the log.
    pub fn append(&self, term: u64, time: u64, parts: &[&[u8]]) -> Result<OpTime> {
        self.append_placed(term, time, parts).map(|(at, _)| at)
    }

    /// [`Log::append`], which says as well where the payload is.
    pub fn append_placed(&self, term: u64, time: u64, parts: &[&[u8]]) -> Result<(OpTime, Place)> {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        assert!(length <= MAX_PAYLOAD, "a log entry of {length} bytes");
        let size = (HEADER_LEN + length) as u64;
        let mut writer = self.writer_for(size)?;
        let at = following(writer.last, term, time);
        let header =
            Header::encode(at, self.shared.durable_index.load(Ordering::Acquire), parts, writer.salt);
        let padding = writer.padding(size);
        let begin = writer.offset;
        let written = write_entry(&writer.file, &header, parts, begin, padding);
        let segment = self.appended(&mut writer, written, &[(at, begin)], size)?;
        Ok((at, Place { segment, offset: begin + HEADER_LEN as u64 }))
    }

    /// The file of the segment that begins with this entry, as long as the log has it.
    pub fn segment_path(&self, first_index: u64) -> PathBuf {
        segment_path(&self.options.dir, first_index)
    }

    /// Appends the first of these entries (term, time, payload), as many as one `write` may carry, at least one. Gives
    /// how many, and the position of the last of them. After an error nothing of them is in the log.
    pub fn append_run(&self, entries: &[(u64, u64, &[u8])]) -> Result<(usize, OpTime)> {
        let size_of = |payload: &[u8]| (HEADER_LEN + payload.len()) as u64;
        let (.., first) = entries.first().expect("a run has an entry");
        let first = size_of(first);
        let mut writer = self.writer_for(first)?;
        let room = RUN_BYTES.min(self.options.segment_bytes.saturating_sub(writer.offset));
        let durable = self.shared.durable_index.load(Ordering::Acquire);
        let (mut at, mut size) = (writer.last, 0);
        let mut headers = Vec::with_capacity(entries.len().min(RUN_ENTRIES));
        let mut places = Vec::with_capacity(headers.capacity());
        for (term, time, payload) in entries.iter().take(RUN_ENTRIES) {
            assert!(payload.len() <= MAX_PAYLOAD, "a log entry of {} bytes", payload.len());
            if !headers.is_empty() && size + size_of(payload) > room {
                break;
            }
            at = following(at, *term, *time);
            places.push((at, writer.offset + size));
            size += size_of(payload);
            headers.push(Header::encode(at, durable, &[payload], writer.salt));
        }
        let pairs = headers.iter().zip(entries);
        let mut slices: Vec<IoSlice<'_>> =
            pairs.flat_map(|(header, (.., payload))| [IoSlice::new(header), IoSlice::new(payload)]).collect();
        slices.push(zeros(writer.padding(size)));
        let written = write_all(&writer.file, &mut slices, writer.offset);
        self.appended(&mut writer, written, &places, size)?;
        Ok((headers.len(), at))
    }

    /// The writer, at a segment that has room for an entry of this size.
    fn writer_for(&self, size: u64) -> Result<MutexGuard<'_, Writer>> {
        let mut tries = 0;
        loop {
            let mut writer = lock(&self.writer);
            if self.shared.failed.load(Ordering::Acquire) {
                return Err(Error::Failed);
            }
            if writer.offset <= SEGMENT_HEADER_LEN || writer.offset + size <= self.options.segment_bytes {
                return Ok(writer);
            }
            let first_index = writer.last.index + 1;
            match self.next_segment(&mut writer, first_index) {
                Ok(()) => return Ok(writer),
                // Segments that are written and not synced have what was kept back; others may have taken the rest.
                Err(error) if error.lacks_descriptors() && tries < OPEN_TRIES => {
                    drop(writer);
                    self.sync()?;
                    std::thread::sleep(Duration::from_millis(tries));
                    tries += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Reserves disk space for an entry with a payload of this size, so that appending it cannot fail for want of that: for who cannot take
    /// an entry back. File systems that reserve nothing leave that to the append. Behind it [`KEPT_BYTES`] stay reserved, unless it may have
    /// the `last` of the space.
    ///
    /// Errors: the disk is full; nothing has changed then.
    pub fn reserve(&self, payload: usize, last: bool) -> Result<()> {
        let size = (HEADER_LEN + payload) as u64;
        let mut writer = self.writer_for(size)?;
        let end = writer.offset + size + if last { 0 } else { KEPT_BYTES };
        let from = writer.offset.max(writer.zeroed).max(writer.reserved);
        if end <= from {
            return Ok(());
        }
        let ahead = (end + RESERVED_BYTES).min(self.options.segment_bytes).max(end);
        for to in [ahead, end, end] {
            let reserve = || rustix::fs::fallocate(&writer.file, FallocateFlags::KEEP_SIZE, from, to - from);
            match rustix::io::retry_on_intr(reserve) {
                Ok(()) => {
                    writer.reserved = to;
                    return Ok(());
                }
                Err(Errno::NOSPC | Errno::DQUOT) if to > end || self.spares.clear() => {}
                // The file system reserves nothing.
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(()),
                Err(error) => return Err(Error::io("reserving space", error.into())),
            }
        }
        Ok(())
    }

    /// [`Log::reserve`] for what is to come, as much of it as leaves a segment room for more: one that has to be large enough for all of it would
    /// be followed by the next one each time.
    pub fn keep_room(&self, bytes: u64) -> Result<()> {
        self.reserve(bytes.min(self.options.segment_bytes / 2) as usize, true)
    }

    /// Takes note of entries that were written at these places, or takes back what a short write left, so that the log ends in a whole entry.
    /// Gives the segment that they are in.
    fn appended(
        &self,
        writer: &mut Writer,
        written: std::io::Result<()>,
        places: &[(OpTime, u64)],
        size: u64,
    ) -> Result<u64> {
        if let Err(error) = written {
            if writer.end_file().is_err() {
                self.shared.failed.store(true, Ordering::Release);
            }
            // Whatever the disk lacks, it has that much more.
            self.spares.clear();
            return Err(Error::io("appending", error));
        }
        let entries = places.len();
        let (last, _) = *places.last().expect("an entry was written");
        assert_eq!(
            last.index,
            writer.last.index + entries as u64,
            "{entries} entries were written after {:?}",
            writer.last
        );
        let first_index = {
            let mut segments = lock(&self.shared.segments);
            let segment = segments.last_mut().expect("a log has a segment at all times");
            assert_eq!(
                segment.bytes,
                writer.offset,
                "segment {} ends elsewhere for its writer than for readers",
                segment.name()
            );
            segment.bytes += size;
            places.iter().for_each(|(at, offset)| segment.marks.note(*at, *offset));
            writer.offset = segment.bytes;
            segment.first_index
        };
        writer.last = last;
        self.shared.last_index.store(last.index, Ordering::Release);
        self.shared.appends.fetch_add(entries as u64, Ordering::Relaxed);
        self.shared.append_bytes.fetch_add(size, Ordering::Relaxed);
        Ok(first_index)
    }

    fn next_segment(&self, writer: &mut Writer, first_index: u64) -> Result<()> {
        if writer.zeroed.max(writer.reserved) > writer.offset {
            writer.end_file().map_err(|e| Error::io("closing a segment", e))?;
        }
        let (segment, file, length) =
            Segment::create(&self.options.dir, first_index, writer.base, &self.reserve, &self.spares)?;
        writer.file = file;
        (writer.base, writer.salt) = (segment.base, segment.salt);
        writer.offset = segment.bytes;
        (writer.zeroed, writer.reserved) = (length, length);
        (writer.old, writer.written) = (if segment.is_recycled() { length } else { 0 }, 0);
        writer.room_asked = segment.bytes;
        writer.unsynced.push(writer.file.clone());
        writer.folder_changes += 1;
        let mut segments = lock(&self.shared.segments);
        let closed = segments.last_mut().expect("a log has a segment at all times");
        assert!(
            closed.first_index < segment.first_index,
            "segment {} follows {}",
            segment.name(),
            closed.name()
        );
        closed.file = None;
        segments.push(segment);
        Ok(())
    }

    /// Writes zeros ahead of the entries, if those come in small syncs and the zeros are running out. Called after a sync
    /// that somebody waited for.
    pub fn make_room(&self) {
        let mut writer = lock(&self.writer);
        let small = writer.offset.saturating_sub(writer.room_asked) <= SMALL_SYNC_BYTES;
        writer.room_asked = writer.offset;
        let from = writer.zeroed.max(writer.offset);
        let to = (from + ROOM_BYTES).min(self.options.segment_bytes);
        if !small || from - writer.offset >= ROOM_BYTES_MIN || to <= from {
            return;
        }
        let zeros = [0; 64 << 10];
        let mut at = from;
        while at < to {
            let len = zeros.len().min((to - at) as usize);
            if writer.file.write_all_at(&zeros[..len], at).is_err() {
                // Perhaps the disk is full, which the next append will find out and tell.
                break;
            }
            at += len as u64;
        }
        writer.zeroed = at;
    }

    /// Makes everything durable that was appended before the call, and returns the index of the last
    /// entry covered. Appends go on meanwhile. A failure is final: see [`Error::Failed`].
    pub fn sync(&self) -> Result<u64> {
        self.sync_in_steps(&mut || {})
    }

    /// `step` is called before each file is synced.
    pub(crate) fn sync_in_steps(&self, step: &mut dyn FnMut()) -> Result<u64> {
        let (files, folder, folder_synced, index, bytes, cuts) = {
            let writer = lock(&self.writer);
            if self.shared.failed.load(Ordering::Acquire) {
                return Err(Error::Failed);
            }
            let cuts = self.shared.cuts.load(Ordering::Acquire);
            let files = writer.unsynced.clone();
            let bytes = self.shared.append_bytes.load(Ordering::Relaxed);
            (files, writer.folder_changes, writer.folder_synced, writer.last.index, bytes, cuts)
        };
        let started = Instant::now();
        let mut result = if folder > folder_synced { sync_dir(&self.dir) } else { Ok(()) };
        for file in &files {
            step();
            result = result.and_then(|()| file.sync_data().map_err(|e| Error::io("syncing", e)));
        }
        if let Err(error) = result {
            self.shared.failed.store(true, Ordering::Release);
            return Err(error);
        }
        self.shared.syncs.fetch_add(1, Ordering::Relaxed);
        // Where two sync at a time, each tells of what the other has not.
        let before = self.shared.synced_bytes.fetch_max(bytes, Ordering::Relaxed);
        self.shared.rate.note(bytes.saturating_sub(before), started.elapsed());
        self.shared.files_synced.fetch_add(files.len() as u64, Ordering::Relaxed);
        self.shared.sync_micros.fetch_add(started.elapsed().as_micros() as u64, Ordering::Relaxed);
        let mut writer = lock(&self.writer);
        assert!(folder <= writer.folder_changes, "the folder's changes are counted backwards");
        writer.folder_synced = writer.folder_synced.max(folder);
        // The one that was current may have been appended to meanwhile.
        let (_current, done) = files.split_last().expect("the current segment's file is among the unsynced");
        writer.unsynced.retain(|file| !done.iter().any(|done| Arc::ptr_eq(done, file)));
        files.into_iter().filter_map(Arc::into_inner).for_each(|file| self.reserve.close(file));
        if self.shared.cuts.load(Ordering::Acquire) == cuts {
            assert!(
                index <= writer.last.index,
                "entry {index} was synced, and {:?} is the last",
                writer.last
            );
            self.shared.durable_index.fetch_max(index, Ordering::AcqRel);
        }
        Ok(index.min(self.durable_index()))
    }

    /// Position of the last entry.
    pub fn last(&self) -> OpTime {
        lock(&self.writer).last
    }

    /// Index up to which the log is durable.
    pub fn durable_index(&self) -> u64 {
        self.shared.durable_index.load(Ordering::Acquire)
    }

    /// Bytes that were appended and that no sync has covered yet.
    pub fn unsynced_bytes(&self) -> u64 {
        // In this order: appends go on meanwhile.
        let synced = self.shared.synced_bytes.load(Ordering::Relaxed);
        self.shared.append_bytes.load(Ordering::Relaxed).saturating_sub(synced)
    }

    /// How many bytes a sync writes in so long, as the last ones have shown; `None` where none has been large enough.
    pub fn synced_in(&self, time: Duration) -> Option<u64> {
        self.shared.rate.bytes_in(time)
    }

    /// Whether writes are refused for good.
    pub fn has_failed(&self) -> bool {
        self.shared.failed.load(Ordering::Acquire)
    }

    /// Refuses all further appends, as a failed sync does.
    pub fn fail(&self) {
        self.shared.failed.store(true, Ordering::Release);
    }

    /// Reads entries from this index on; the reader follows later appends.
    pub fn read_from(&self, index: u64) -> Result<Reader> {
        Reader::at_index(self.shared.clone(), index)
    }

    /// Reads from the first entry whose time is at or above `time`.
    pub fn read_from_time(&self, time: u64) -> Result<Reader> {
        Reader::at_time(self.shared.clone(), time)
    }

    /// Sets how many bytes are retained.
    pub fn set_retain_bytes(&self, bytes: u64) {
        self.retain_bytes.store(bytes, Ordering::Relaxed);
    }

    /// How many bytes are kept at least.
    pub fn retain_bytes(&self) -> u64 {
        self.retain_bytes.load(Ordering::Relaxed)
    }

    /// Begins a new segment, if the present one has an entry: it can be removed then when nobody needs it.
    pub fn end_segment(&self) -> Result<()> {
        let mut writer = lock(&self.writer);
        if self.shared.failed.load(Ordering::Acquire) {
            return Err(Error::Failed);
        }
        if writer.offset <= SEGMENT_HEADER_LEN {
            return Ok(());
        }
        let first_index = writer.last.index + 1;
        self.next_segment(&mut writer, first_index)
    }

    /// Whether the disk is short of room, so that it gets back the files that wait to become new segments; and whether not even the bytes are kept that
    /// [`Log::retain_bytes`] says.
    pub fn be_lean(&self, short: bool, lean: bool) {
        self.lean.store(lean, Ordering::Relaxed);
        self.spares.hold(if short { 0 } else { self.options.spare_segments });
    }

    /// Removes the oldest segments that hold only entries at or below `unneeded` and that are not
    /// within the bytes to retain. Returns how many were removed.
    pub fn retain(&self, unneeded: u64) -> Result<usize> {
        let keep = if self.lean.load(Ordering::Relaxed) { 0 } else { self.retain_bytes() };
        let mut removed = Vec::new();
        {
            let mut segments = lock(&self.shared.segments);
            let mut bytes: u64 = segments.iter().map(|s| s.bytes).sum();
            while segments.len() > 1
                && segments[1].first_index <= unneeded + 1
                && bytes.saturating_sub(segments[0].bytes) >= keep
            {
                bytes -= segments[0].bytes;
                removed.push(segments.remove(0));
            }
        }
        self.shared.files.close(|id| removed.iter().any(|segment| segment.id == id));
        self.spares.take_in(&removed, &self.dir)?;
        Ok(removed.len())
    }

    /// Cuts all entries after `at`, for good: what a rollback does. The next append gets `at.index + 1`. A crash on the way
    /// leaves a log that ends somewhere between.
    pub fn truncate_after(&self, at: OpTime) -> Result<()> {
        self.truncate_in_steps(at, &mut || {})
    }

    /// `step` is called between the changes of the folder.
    pub(crate) fn truncate_in_steps(&self, at: OpTime, step: &mut dyn FnMut()) -> Result<()> {
        let mut writer = lock(&self.writer);
        if at.index >= writer.last.index {
            return Ok(());
        }
        let end = Reader::at_index(self.shared.clone(), at.index + 1)?.offset();
        self.shared.last_index.store(at.index, Ordering::Release);
        let mut segments = lock(&self.shared.segments);
        let keep = segments.iter().rposition(|s| s.first_index <= at.index + 1);
        let keep = keep.expect("what is kept was found in a segment");
        assert!(
            (SEGMENT_HEADER_LEN..=segments[keep].bytes).contains(&end),
            "entry {} ends at byte {end} of {}, which has {}",
            at.index,
            segments[keep].name(),
            segments[keep].bytes
        );
        // The newest first, each for good before the next: a log with a hole in it would be a damaged one.
        while segments.len() > keep + 1 {
            let later = segments.pop().expect("there are more than those that stay");
            self.shared.files.close(|id| id == later.id);
            fs::remove_file(&later.path).map_err(|e| self.broken("removing a cut segment", e))?;
            sync_dir(&self.dir)?;
            step();
        }
        let segment = &mut segments[keep];
        segment.bytes = end;
        segment.marks = Arc::new(segment.marks.up_to(end));
        let file = segment.open_at_end(&self.reserve)?;
        file.set_len(end).and_then(|()| file.sync_all()).map_err(|e| self.broken("cutting the log", e))?;
        step();
        writer.file = file;
        writer.salt = segment.salt;
        writer.offset = end;
        (writer.zeroed, writer.reserved, writer.old) = (end, end, 0);
        writer.room_asked = end;
        writer.last = at;
        // Files before it may still have bytes that no sync has covered.
        let file = writer.file.clone();
        writer.unsynced.push(file);
        self.shared.cuts.fetch_add(1, Ordering::AcqRel);
        self.shared.durable_index.fetch_min(at.index, Ordering::AcqRel);
        Ok(())
    }

    /// The error of a change of which nobody knows how far it got: nothing is appended any more.
    fn broken(&self, what: &str, error: std::io::Error) -> Error {
        self.fail();
        Error::io(what, error)
    }

    /// Counters and sizes.
    pub fn stats(&self) -> Stats {
        let segments = lock(&self.shared.segments);
        Stats {
            appends: self.shared.appends.load(Ordering::Relaxed),
            append_bytes: self.shared.append_bytes.load(Ordering::Relaxed),
            syncs: self.shared.syncs.load(Ordering::Relaxed),
            files_synced: self.shared.files_synced.load(Ordering::Relaxed),
            sync_micros: self.shared.sync_micros.load(Ordering::Relaxed),
            bytes: segments.iter().map(|s| s.bytes).sum(),
            first_index: first_index(&segments),
            read_bytes: self.shared.read_bytes.load(Ordering::Relaxed),
        }
    }
}

/// Whether the newest segment can be continued with `last + 1`.
fn ends_at(segments: &[Segment], last: u64) -> bool {
    let Some(segment) = segments.last() else { return false };
    if segment.bytes == SEGMENT_HEADER_LEN {
        return segment.first_index == last + 1;
    }
    // Recovery scanned the newest segment, so a log that ends before `applied` is the only other case.
    let Ok(mut scanner) = crate::recover::Scanner::of(segment) else { return false };
    let mut index = segment.first_index.saturating_sub(1);
    while let Ok(Some((header, end))) = scanner.entry_at(scanner.offset) {
        index = header.at.index;
        scanner.offset = end;
    }
    index == last
}
