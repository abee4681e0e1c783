//! The log's file descriptors. Others in the process may take all that are free: the log keeps some back for what it has to
//! open, and readers, however many there are, share a few.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};

use crate::lock::lock;

/// What readers have open at most. One needs a file for as long as a read takes; it is kept for the next.
const READ_FILES_MAX: usize = 8;

/// Descriptors kept back for the writer (the next segment, while the one before it is not synced yet), and for readers.
const WRITER_SPARES: usize = 2;
const READER_SPARES: usize = 1;

/// Descriptors that stand for nothing until one is needed.
pub(crate) struct Reserve {
    /// What the spare ones are duplicates of.
    folder: Arc<File>,
    size: usize,
    spares: Mutex<Vec<OwnedFd>>,
}

impl Reserve {
    pub fn for_writer(folder: &Arc<File>) -> Reserve {
        Reserve::new(folder, WRITER_SPARES)
    }

    fn new(folder: &Arc<File>, size: usize) -> Reserve {
        let reserve = Reserve { folder: folder.clone(), size, spares: Mutex::default() };
        reserve.fill();
        reserve
    }

    /// Opens a file, in the place of a spare descriptor if no other is free.
    pub fn open(&self, mut open: impl FnMut() -> io::Result<File>) -> io::Result<File> {
        loop {
            match open() {
                Err(error) if lacks_descriptors(&error) => match lock(&self.spares).pop() {
                    Some(spare) => drop(spare),
                    None => return Err(error),
                },
                opened => {
                    self.fill();
                    return opened;
                }
            }
        }
    }

    /// Closes a file. Its descriptor is kept if one is wanting, without being free for a moment.
    pub fn close(&self, file: File) {
        let mut spares = lock(&self.spares);
        if spares.len() < self.size {
            let mut spare = OwnedFd::from(file);
            if rustix::io::dup3(&*self.folder, &mut spare, rustix::io::DupFlags::CLOEXEC).is_ok() {
                spares.push(spare);
            }
        }
    }

    fn fill(&self) {
        let mut spares = lock(&self.spares);
        while spares.len() < self.size
            && let Ok(spare) = self.folder.try_clone()
        {
            spares.push(spare.into());
        }
    }
}

/// The segments' files that readers have open.
pub(crate) struct ReadFiles {
    files: Mutex<Files>,
    /// Told when a file is not being read any more.
    unread: Condvar,
    reserve: Reserve,
}

#[derive(Default)]
struct Files {
    open: Vec<OpenFile>,
    /// Counts the reads.
    clock: u64,
}

struct OpenFile {
    /// [`crate::segment::Segment::id`].
    id: u64,
    file: Arc<File>,
    /// Reads under way.
    reads: usize,
    /// The clock when it was read last.
    used: u64,
}

impl Files {
    /// Lets go of the file that nobody has read for the longest; false if all are being read.
    fn close_one(&mut self) -> bool {
        let unread = self.open.iter().enumerate().filter(|(_, file)| file.reads == 0);
        let oldest = unread.min_by_key(|(_, file)| file.used).map(|(at, _)| at);
        oldest.map(|at| self.open.swap_remove(at)).is_some()
    }
}

impl ReadFiles {
    pub fn new(folder: &Arc<File>) -> ReadFiles {
        let reserve = Reserve::new(folder, READER_SPARES);
        ReadFiles { files: Mutex::default(), unread: Condvar::new(), reserve }
    }

    /// Fills `bytes` from the segment's file at `at`.
    pub fn read(&self, id: u64, path: &Path, bytes: &mut [u8], at: u64) -> io::Result<()> {
        let file = self.begin(id, path)?;
        let outcome = file.read_exact_at(bytes, at);
        drop(file);
        let mut files = lock(&self.files);
        if let Some(open) = files.open.iter_mut().find(|open| open.id == id) {
            open.reads -= 1;
        }
        drop(files);
        self.unread.notify_all();
        outcome
    }

    fn begin(&self, id: u64, path: &Path) -> io::Result<Arc<File>> {
        let mut files = lock(&self.files);
        loop {
            files.clock += 1;
            let used = files.clock;
            if let Some(open) = files.open.iter_mut().find(|open| open.id == id) {
                open.reads += 1;
                open.used = used;
                return Ok(open.file.clone());
            }
            if files.open.len() >= READ_FILES_MAX && !files.close_one() {
                files = self.unread.wait(files).unwrap_or_else(|poisoned| poisoned.into_inner());
                continue;
            }
            match self.reserve.open(|| File::open(path)) {
                Ok(file) => {
                    let file = Arc::new(file);
                    files.open.push(OpenFile { id, file: file.clone(), reads: 1, used });
                    return Ok(file);
                }
                // One of those that are open has to do.
                Err(error) if lacks_descriptors(&error) && !files.open.is_empty() => {
                    if !files.close_one() {
                        files = self.unread.wait(files).unwrap_or_else(|poisoned| poisoned.into_inner());
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Closes the files of segments that are no more, when those who read them now are done.
    pub fn close(&self, gone: impl Fn(u64) -> bool) {
        let mut files = lock(&self.files);
        while let Some(at) = files.open.iter().position(|open| gone(open.id)) {
            if files.open[at].reads > 0 {
                files = self.unread.wait(files).unwrap_or_else(|poisoned| poisoned.into_inner());
            } else {
                files.open.swap_remove(at);
            }
        }
    }
}

/// Whether the process or the system has no descriptor left.
pub(crate) fn lacks_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}
