//! Where events go: a file whose syncs serve all that wait, standard output, the system's log.

use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use super::console::{Console, Ending, PATIENCE};
use super::options::{Destination, Format};
use super::syslog::Syslog;
use crate::log::SYSTEM_LOG;

/// Room is taken from the disk in pieces of this size.
const ROOM_BYTES: u64 = 1 << 20;

/// No event in BSON is longer: a message, and what events have besides.
const LARGEST_EVENT: u64 = 64 << 20;

/// What a datagram takes, with room to spare: Linux has 208 KB for each socket unless told otherwise.
const DATAGRAM_BYTES: u64 = 150 << 10;

/// What the name of an old file has besides that of the file.
const STAMP_BYTES: usize = 64;

/// Where events go.
pub enum Sink {
    File(FileSink),
    Console(Console),
    Syslog(Syslog),
}

impl Sink {
    /// Errors: a text for the user.
    pub fn open(destination: &Destination, format: Format) -> Result<Self, String> {
        match destination {
            Destination::File(path) => {
                let opened = FileSink::open(path, format);
                let failed = |error| format!("Failed to open the audit log \"{}\": {error}", path.display());
                opened.map(Sink::File).map_err(failed)
            }
            Destination::Console => Console::new(io::stdout)
                .map(Sink::Console)
                .map_err(|error| format!("Failed to write the audit log to standard output: {error}")),
            Destination::Syslog => Syslog::new(Path::new(SYSTEM_LOG))
                .map(Sink::Syslog)
                .map_err(|error| format!("Failed to open the system's log {SYSTEM_LOG}: {error}")),
        }
    }

    /// Appends an event as a whole, for which this is promised: what it takes of that is promised no more. Gives the place where it ends.
    /// What has not `happened` yet need not be written: it waits for nobody for long.
    pub fn append(&self, bytes: &[u8], promised: &Cell<u64>, happened: bool) -> io::Result<u64> {
        let patience: Option<Duration> = (!happened).then_some(PATIENCE);
        match self {
            Sink::File(file) => file.append(bytes, promised),
            Sink::Console(console) => console.append(bytes, patience).map(|()| 0),
            Sink::Syslog(syslog) => syslog.append(bytes, patience).map(|()| 0),
        }
    }

    /// The server is to end: nothing waits for long any more.
    pub fn end(&self) {
        if let Some(ending) = self.ending() {
            ending.begin();
        }
    }

    /// Whether it ends and what is appended does not arrive.
    pub fn has_given_up(&self) -> bool {
        self.ending().is_some_and(Ending::is_over)
    }

    fn ending(&self) -> Option<&Ending> {
        match self {
            Sink::File(_) => None,
            Sink::Console(console) => Some(&console.ending),
            Sink::Syslog(syslog) => Some(&syslog.ending),
        }
    }

    /// Waits until everything up to this place is on the disk.
    pub fn sync(&self, place: u64) -> io::Result<()> {
        match self {
            Sink::File(file) if place > 0 => file.sync(place),
            _ => Ok(()),
        }
    }

    /// Takes room for so many bytes as long as the result lives.
    pub fn promise(&self, bytes: u64) -> io::Result<Promise<'_>> {
        match self {
            Sink::File(file) => file.promise(bytes),
            Sink::Syslog(_) if bytes > DATAGRAM_BYTES => Err(io::ErrorKind::FileTooLarge.into()),
            Sink::Console(console) => {
                console.takes_some(PATIENCE)?;
                Ok(Promise { file: None, bytes: Cell::new(0) })
            }
            Sink::Syslog(syslog) => {
                syslog.takes_some(PATIENCE)?;
                Ok(Promise { file: None, bytes: Cell::new(0) })
            }
        }
    }

    /// The longest that the name of an old file may be as JSON.
    pub fn name_bytes(&self) -> u64 {
        match self {
            Sink::File(file) => (super::size::text(&file.path.display().to_string()) + STAMP_BYTES) as u64,
            Sink::Console(_) | Sink::Syslog(_) => 0,
        }
    }

    /// Gives back room that was [kept](Promise::keep).
    pub fn give_back(&self, bytes: u64) {
        if let Sink::File(file) = self {
            file.state.lock().promised -= bytes;
        }
    }

    /// Begins a new file; gives the name of the old one, if it was renamed.
    pub fn rotate(&self, rename: bool) -> io::Result<Option<PathBuf>> {
        match self {
            Sink::File(file) => file.rotate(rename),
            Sink::Console(_) | Sink::Syslog(_) => Ok(None),
        }
    }
}

/// Room on the disk that is kept for events to come.
pub struct Promise<'a> {
    file: Option<&'a FileSink>,
    bytes: Cell<u64>,
}

impl Promise<'_> {
    /// What is left of it.
    pub fn left(&self) -> &Cell<u64> {
        &self.bytes
    }

    /// Keeps the room beyond the promise's life: these bytes are given back one day.
    pub fn keep(self) -> u64 {
        self.bytes.take()
    }
}

impl Drop for Promise<'_> {
    fn drop(&mut self) {
        if let Some(file) = self.file {
            file.state.lock().promised -= self.bytes.get();
        }
    }
}

pub struct FileSink {
    path: PathBuf,
    state: Mutex<FileState>,
    synced: Mutex<Synced>,
    woken: Condvar,
}

struct FileState {
    file: Arc<File>,
    /// Bytes in the file.
    length: u64,
    /// What has been taken from the disk for the file; 0 where the file system cannot do that.
    room: u64,
    /// What is kept for those who have asked.
    promised: u64,
    /// Bytes that have been appended since the start.
    appended: u64,
    /// A disk that is full from there on.
    #[cfg(test)]
    most: u64,
}

impl FileState {
    /// Takes room for a file of this length.
    fn take(&mut self, room: u64) -> io::Result<()> {
        let (begin, more) = (self.length, room - self.length);
        #[cfg(test)]
        if room > self.most {
            return Err(Errno::NOSPC.into());
        }
        match rustix::fs::fallocate(&*self.file, FallocateFlags::KEEP_SIZE, begin, more) {
            Ok(()) => self.room = room,
            Err(error @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG | Errno::IO)) => return Err(error.into()),
            // There it shows only when it is written.
            Err(_) => {}
        }
        Ok(())
    }

    /// Takes so much that the file may have this length.
    fn take_for(&mut self, needed: u64) -> io::Result<()> {
        if needed <= self.room {
            return Ok(());
        }
        // Where there is no room for a piece there may be for what is needed.
        self.take(needed + ROOM_BYTES).or_else(|_| self.take(needed))
    }
}

#[derive(Default)]
struct Synced {
    /// Bytes since the start that are on the disk.
    up_to: u64,
    /// Whether somebody syncs.
    leads: bool,
    /// A sync has failed: what came before it may be lost, though a later one goes well.
    failed: bool,
}

impl FileSink {
    fn open(path: &Path, format: Format) -> io::Result<Self> {
        let mut file = open(path)?;
        let length = mend(&mut file, format)?;
        let state = FileState {
            file: Arc::new(file),
            length,
            room: 0,
            promised: 0,
            appended: 0,
            #[cfg(test)]
            most: u64::MAX,
        };
        Ok(FileSink {
            path: path.to_owned(),
            state: Mutex::new(state),
            synced: Mutex::default(),
            woken: Condvar::new(),
        })
    }

    fn append(&self, bytes: &[u8], promised: &Cell<u64>) -> io::Result<u64> {
        let mut state = self.state.lock();
        let length = bytes.len() as u64;
        let own = length.min(promised.get());
        // What is promised to others is theirs. Whoever has all that he needs tries to write it, whatever the file system says.
        let needed = state.length + state.promised + length - own;
        let taken = state.take_for(needed);
        if own < length {
            taken?;
        }
        let file = state.file.clone();
        if let Err(error) = (&*file).write_all(bytes) {
            // No half an event. What cannot be cut off is mended by the next start.
            let _ = file.set_len(state.length);
            state.room = 0;
            // What has been promised is had again, if it can be.
            let room = state.length + state.promised;
            let _ = state.take(room);
            return Err(error);
        }
        promised.update(|promised| promised - own);
        state.promised -= own;
        state.length += length;
        state.appended += length;
        Ok(state.appended)
    }

    /// What is kept for those who have asked.
    #[cfg(test)]
    pub fn promised(&self) -> u64 {
        self.state.lock().promised
    }

    fn sync(&self, place: u64) -> io::Result<()> {
        let mut synced = self.synced.lock();
        while synced.up_to < place {
            if synced.failed {
                return Err(io::Error::other("an earlier sync has failed"));
            }
            if synced.leads {
                self.woken.wait(&mut synced);
                continue;
            }
            synced.leads = true;
            drop(synced);
            let (file, appended) = {
                let state = self.state.lock();
                (state.file.clone(), state.appended)
            };
            let done = data_on_disk(&file);
            synced = self.synced.lock();
            synced.leads = false;
            synced.failed = done.is_err();
            self.woken.notify_all();
            done?;
            synced.up_to = synced.up_to.max(appended);
        }
        Ok(())
    }

    fn promise(&self, bytes: u64) -> io::Result<Promise<'_>> {
        let mut state = self.state.lock();
        let needed = state.length + state.promised + bytes;
        state.take_for(needed)?;
        state.promised += bytes;
        Ok(Promise { file: Some(self), bytes: Cell::new(bytes) })
    }

    fn rotate(&self, rename: bool) -> io::Result<Option<PathBuf>> {
        let mut state = self.state.lock();
        // What waits for a sync waits for that of the new file.
        data_on_disk(&state.file)?;
        let old = crate::log::rotated_name(&self.path);
        let renamed = rename && self.path.exists();
        if renamed {
            // Names differ by seconds, and what was written in this one before must stay.
            if old.exists() {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            std::fs::rename(&self.path, &old)?;
        }
        match self.begin(&mut state) {
            Ok(()) => Ok(renamed.then_some(old)),
            Err(error) => {
                if renamed {
                    std::fs::rename(&old, &self.path)?;
                }
                Err(error)
            }
        }
    }

    /// Goes on in the file that has the name now, with room for what has been promised. Whatever fails, it goes on in the one from before.
    fn begin(&self, state: &mut FileState) -> io::Result<()> {
        let is_new = !self.path.exists();
        let file = open(&self.path)?;
        let (found, before) = (file.metadata()?, state.file.metadata()?);
        if (found.dev(), found.ino()) == (before.dev(), before.ino()) {
            return Ok(());
        }
        let promised = state.promised;
        let mut next = FileState { file: Arc::new(file), length: found.len(), room: 0, ..*state };
        if let Err(error) = next.take_for(next.length + promised) {
            if is_new {
                let _ = std::fs::remove_file(&self.path);
            }
            return Err(error);
        }
        let old = std::mem::replace(state, next);
        // Gives back what was taken for what comes elsewhere.
        let _ = old.file.set_len(old.length);
        Ok(())
    }
}

fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().create(true).append(true).read(true).mode(0o600).open(path)?;
    // The name has to outlive a crash, too.
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        let _ = File::open(folder).and_then(|folder| folder.sync_all());
    }
    Ok(file)
}

/// What cannot be synced (a pipe, a terminal) has no disk.
fn data_on_disk(file: &File) -> io::Result<()> {
    match file.sync_data() {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
        done => done,
    }
}

/// What a crash has left of an event must not spoil the next; gives the file's length.
fn mend(file: &mut File, format: Format) -> io::Result<u64> {
    if !file.metadata()?.is_file() {
        return Ok(0);
    }
    let length = file.seek(SeekFrom::End(0))?;
    match format {
        Format::Json if length > 0 => {
            file.seek(SeekFrom::Start(length - 1))?;
            let mut last = [0];
            file.read_exact(&mut last)?;
            if last != *b"\n" {
                file.write_all(b"\n")?;
                return Ok(length + 1);
            }
            Ok(length)
        }
        Format::Json => Ok(0),
        Format::Bson => {
            let whole = whole_documents(file, length)?;
            // A crash leaves one event that is not whole. More than that is not ours to cut off.
            if length - whole > LARGEST_EVENT {
                let text = "it has what is no event in BSON";
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
            if whole == 0 && length > 0 && !may_begin_document(file)? {
                let text = "it is no audit log in BSON";
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
            if whole < length {
                file.set_len(whole)?;
            }
            Ok(whole)
        }
    }
}

/// Whether a file that has no whole document may begin with one: its length is one that an event has.
fn may_begin_document(file: &mut File) -> io::Result<bool> {
    let mut size = [0; 4];
    file.seek(SeekFrom::Start(0))?;
    Ok(match file.read_exact(&mut size) {
        Ok(()) => (5..=LARGEST_EVENT).contains(&u64::from(u32::from_le_bytes(size))),
        Err(_) => true,
    })
}

/// Where the last whole document ends.
fn whole_documents(file: &mut File, length: u64) -> io::Result<u64> {
    let mut at = 0;
    while at + 5 <= length {
        file.seek(SeekFrom::Start(at))?;
        let mut size = [0; 4];
        file.read_exact(&mut size)?;
        let size = u64::from(u32::from_le_bytes(size));
        if size < 5 || at + size > length {
            break;
        }
        at += size;
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_rotation_in_the_same_second_loses_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.json");
        let sink = FileSink::open(&path, Format::Json).unwrap();
        let mut written = 0;
        let text = || -> usize {
            let files = std::fs::read_dir(folder.path()).unwrap();
            files.map(|file| std::fs::read(file.unwrap().path()).unwrap().len()).sum()
        };
        for _ in 0..20 {
            sink.append(b"{}\n", &Cell::new(0)).unwrap();
            written += 3;
            let _ = sink.rotate(true);
            assert_eq!(text(), written);
        }
        // A promise after a failed rotation has room of its own.
        drop(sink.promise(100).unwrap());
    }

    #[test]
    fn what_is_promised_is_taken_by_nobody_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.json");
        let sink = FileSink::open(&path, Format::Json).unwrap();
        let full = |error: io::Error| error.kind() == io::ErrorKind::StorageFull;
        sink.state.lock().most = 1000;
        let room = sink.promise(600).unwrap();
        let nothing = Cell::new(0);
        for size in [300, 90, 9, 1] {
            sink.append(&vec![b'x'; size], &nothing).unwrap();
        }
        assert!(full(sink.append(b"x", &nothing).unwrap_err()));
        assert!(full(sink.promise(1).err().unwrap()));
        // What is longer than its promise is so at its own cost.
        assert!(full(sink.append(&[b'x'; 601], room.left()).unwrap_err()));
        assert_eq!(room.left().get(), 600);
        sink.append(&[b'y'; 250], room.left()).unwrap();
        assert!(full(sink.append(b"x", &nothing).unwrap_err()));
        sink.append(&[b'y'; 250], room.left()).unwrap();
        assert_eq!(room.left().get(), 100);
        drop(room);
        sink.append(&[b'x'; 100], &nothing).unwrap();
        assert_eq!(std::fs::read(&path).unwrap().len(), 1000);
    }

    #[test]
    fn what_is_promised_is_promised_in_the_next_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.json");
        let sink = FileSink::open(&path, Format::Json).unwrap();
        let room = sink.promise(600).unwrap();
        sink.append(b"one", &Cell::new(0)).unwrap();
        // Where it cannot be had there is no next file.
        sink.state.lock().most = 599;
        for rename in [true, false] {
            let moved = folder.path().join("moved");
            if !rename {
                std::fs::rename(&path, &moved).unwrap();
            }
            assert_eq!(sink.rotate(rename).unwrap_err().kind(), io::ErrorKind::StorageFull);
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
            if !rename {
                std::fs::rename(&moved, &path).unwrap();
            }
        }
        sink.append(b"two", room.left()).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"onetwo");
        sink.state.lock().most = 600;
        assert!(sink.rotate(true).unwrap().is_some());
        sink.append(b"x", &Cell::new(0)).unwrap();
        sink.append(b"x", &Cell::new(0)).unwrap();
        sink.append(b"x", &Cell::new(0)).unwrap();
        assert!(sink.append(b"x", &Cell::new(0)).is_err());
        sink.append(&[b'y'; 597], room.left()).unwrap();
        assert_eq!(std::fs::read(&path).unwrap().len(), 600);
        // The same file is no other one.
        assert_eq!(sink.rotate(false).unwrap(), None);
        sink.state.lock().most = u64::MAX;
        sink.append(b"x", &Cell::new(0)).unwrap();
        assert_eq!(std::fs::read(&path).unwrap().len(), 601);
    }

    #[test]
    fn only_the_torn_end_of_events_in_bson_is_cut_off() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        let empty = [5u8, 0, 0, 0, 0];
        let torn = [empty.as_slice(), &empty, &[9, 0, 0, 0, 1]].concat();
        std::fs::write(&path, torn).unwrap();
        drop(FileSink::open(&path, Format::Bson).unwrap());
        assert_eq!(std::fs::read(&path).unwrap(), [empty, empty].concat());

        let json = b"{\"atype\": \"startup\"}\n";
        std::fs::write(&path, json).unwrap();
        assert_eq!(FileSink::open(&path, Format::Bson).err().unwrap().kind(), io::ErrorKind::InvalidData);
        assert_eq!(std::fs::read(&path).unwrap(), json);
    }
}
