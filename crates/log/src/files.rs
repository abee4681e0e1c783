//! The log's file descriptors. Others in the process may take all that are free: the log keeps some back for what it has to
//! open, and readers, however many there are, share a few.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use crate::lock::lock;

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

/// Files that many read, each known by a number, of which a few are open. A read needs a file for as long as it takes; it stays open for the next.
/// One descriptor is kept back, so that there is always a file to be read.
pub struct ReadFiles {
    max: usize,
    files: Mutex<Files>,
    /// Told when a file is not being read any more.
    unread: Condvar,
    reserve: Reserve,
}

#[derive(Default)]
struct Files {
    /// By number: that of [`crate::segment::Segment::id`], where they are the log's.
    open: HashMap<u64, OpenFile>,
    /// Counts the reads.
    clock: u64,
    /// How many wait for one that is not being read.
    waiting: usize,
}

struct OpenFile {
    file: Arc<File>,
    /// Reads under way.
    reads: usize,
    /// The clock when it was read last.
    used: u64,
}

impl Files {
    /// Lets go of the file that nobody has read for the longest; false if all are being read.
    fn close_one(&mut self) -> bool {
        let unread = self.open.iter().filter(|(_, file)| file.reads == 0);
        let oldest = unread.min_by_key(|(_, file)| file.used).map(|(id, _)| *id);
        oldest.and_then(|id| self.open.remove(&id)).is_some()
    }
}

impl ReadFiles {
    /// At most so many are open at a time. `folder` is what the descriptor that is kept back stands for.
    pub fn new(folder: &Arc<File>, max: usize) -> ReadFiles {
        let reserve = Reserve::new(folder, READER_SPARES);
        ReadFiles { max, files: Mutex::default(), unread: Condvar::new(), reserve }
    }

    /// Fills `bytes` from the file of this number from `at` on. `open` opens it, where it is not open.
    pub fn read(
        &self,
        id: u64,
        open: impl FnMut() -> io::Result<File>,
        bytes: &mut [u8],
        at: u64,
    ) -> io::Result<()> {
        let file = self.begin(id, open)?;
        let outcome = file.read_exact_at(bytes, at);
        drop(file);
        let mut files = lock(&self.files);
        if let Some(open) = files.open.get_mut(&id) {
            open.reads -= 1;
        }
        if files.waiting > 0 {
            self.unread.notify_all();
        }
        outcome
    }

    fn begin(&self, id: u64, mut open: impl FnMut() -> io::Result<File>) -> io::Result<Arc<File>> {
        let mut files = lock(&self.files);
        loop {
            files.clock += 1;
            let used = files.clock;
            if let Some(open) = files.open.get_mut(&id) {
                open.reads += 1;
                open.used = used;
                return Ok(open.file.clone());
            }
            if files.open.len() >= self.max && !files.close_one() {
                files = self.wait(files);
                continue;
            }
            match self.reserve.open(&mut open) {
                Ok(file) => {
                    let file = Arc::new(file);
                    files.open.insert(id, OpenFile { file: file.clone(), reads: 1, used });
                    return Ok(file);
                }
                // One of those that are open has to do.
                Err(error) if lacks_descriptors(&error) && !files.open.is_empty() => {
                    if !files.close_one() {
                        files = self.wait(files);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits until a file is not being read any more.
    fn wait<'f>(&'f self, mut files: MutexGuard<'f, Files>) -> MutexGuard<'f, Files> {
        files.waiting += 1;
        files = self.unread.wait(files).unwrap_or_else(|poisoned| poisoned.into_inner());
        files.waiting -= 1;
        files
    }

    /// Closes the files of these numbers, when those who read them now are done.
    pub fn close(&self, gone: impl Fn(u64) -> bool) {
        let mut files = lock(&self.files);
        while let Some(id) = files.open.keys().copied().find(|id| gone(*id)) {
            if files.open.get(&id).is_some_and(|open| open.reads > 0) {
                files = self.wait(files);
            } else {
                files.open.remove(&id);
            }
        }
    }
}

/// Whether the process or the system has no descriptor left.
pub(crate) fn lacks_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}
