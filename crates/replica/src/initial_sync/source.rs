//! Letting other members fetch a copy of this one's data.
//!
//! A copy is a folder of hard links below `sync-source`. It is kept for a while after the last request, so that a member
//! whose connection broke goes on where it was; members that begin shortly after one another share one.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sheaf_bson::{DocBuf, RawDoc, doc};
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_storage::{Copied, LogPin};

use super::frames::{CHUNK_BYTES, read_document, write_chunk, write_document, write_end};
use crate::secured::Secured;

/// Folder of the copies in the data folder.
const FOLDER: &str = "sync-source";

/// How long a copy that nobody fetches is kept.
pub const KEEP: Duration = Duration::from_secs(600);

/// A copy that is not older than this is given to others, too.
const SHARED: Duration = Duration::from_secs(120);

/// How long the other side may take to read or to ask.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often the source tries to make a copy as new as the other member needs it, and the pause between.
const TRIES: u32 = 40;
const PAUSE: Duration = Duration::from_millis(250);

/// How long the log behind a copy is kept for the member that has it whole: it restarts before it follows.
pub const RESTART_PATIENCE: Duration = Duration::from_secs(60);

/// Makes a copy in a folder that does not exist yet, and has the log behind it kept.
pub type Export<'e> = &'e dyn Fn(&Path) -> Result<(Copied, LogPin)>;

/// The copies that others fetch.
pub struct Source {
    folder: PathBuf,
    copies: Mutex<HashMap<String, Copy>>,
    /// One copy is made at a time.
    making: Mutex<()>,
    /// The log behind copies that have gone to their members, and since when.
    pins: Mutex<Vec<(Instant, LogPin)>>,
}

struct Copy {
    copied: Copied,
    made: Instant,
    used: Instant,
    readers: usize,
    pin: LogPin,
}

impl Source {
    /// Removes what an earlier run has left.
    pub fn open(dbpath: &Path) -> Source {
        let folder = dbpath.join(FOLDER);
        if let Err(error) = fs::remove_dir_all(&folder)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%error, "old copies for other members stay");
        }
        Source { folder, copies: Mutex::default(), making: Mutex::default(), pins: Mutex::default() }
    }

    /// Serves one connection, behind its request, until the other side has what it wants.
    pub fn serve(
        &self,
        mut stream: Secured,
        request: RawDoc<'_>,
        set: &str,
        leads: bool,
        export: Export<'_>,
    ) -> io::Result<()> {
        stream.socket().set_read_timeout(Some(PATIENCE))?;
        stream.socket().set_write_timeout(Some(PATIENCE))?;
        let (name, copied) = match self.answer(request, set, leads, export) {
            Ok(found) => found,
            Err(error) => {
                let reply = doc! { "ok": false, "errmsg": error.message() };
                return write_document(&mut stream, reply.as_raw());
            }
        };
        let served = self.serve_copy(&mut stream, &name, &copied);
        let mut copies = self.copies.lock();
        if let Some(copy) = copies.get_mut(&name) {
            copy.readers -= 1;
            copy.used = Instant::now();
            if copy.readers == 0
                && matches!(served, Ok(true))
                && let Some(copy) = copies.remove(&name)
            {
                self.remove(&name);
                self.pins.lock().push((Instant::now(), copy.pin));
            }
        }
        served.map(|_| ())
    }

    /// Removes copies that nobody has fetched from for a while, and what was kept for members that have theirs.
    pub fn forget_old(&self, keep: Duration) {
        self.pins.lock().retain(|(since, _)| since.elapsed() < RESTART_PATIENCE.min(keep));
        self.copies.lock().retain(|name, copy| {
            let goes = copy.readers == 0 && copy.used.elapsed() >= keep;
            if goes {
                self.remove(name);
            }
            !goes
        });
    }

    fn remove(&self, name: &str) {
        if let Err(error) = fs::remove_dir_all(self.folder.join(name)) {
            tracing::warn!(%error, "a copy for another member stays");
        }
    }

    /// The copy that the request means, with one reader more.
    fn answer(
        &self,
        request: RawDoc<'_>,
        set: &str,
        leads: bool,
        export: Export<'_>,
    ) -> Result<(String, Copied)> {
        if request.get("set").and_then(|v| v.as_str()) != Some(set) {
            bail!(Code::INCONSISTENT_REPLICA_SET_NAMES, "this member belongs to the replica set {set}");
        }
        let at_least = request.get("atLeast").and_then(|v| v.as_exact_i64()).unwrap_or(0) as u64;
        let wanted = request.get("copy").and_then(|v| v.as_str());
        self.forget_old(KEEP);
        if let Some(found) = self.known(wanted, at_least) {
            return Ok(found);
        }
        let _one = self.making.lock();
        if let Some(found) = self.known(None, at_least) {
            return Ok(found);
        }
        let name = format!("{:016x}", rand::random::<u64>());
        let (copied, pin) = self.make(&name, at_least, leads, export)?;
        let now = Instant::now();
        let copy = Copy { copied: copied.clone(), made: now, used: now, readers: 1, pin };
        self.copies.lock().insert(name.clone(), copy);
        Ok((name, copied))
    }

    /// The copy of this name; without a name, one that is young enough to be shared.
    fn known(&self, wanted: Option<&str>, at_least: u64) -> Option<(String, Copied)> {
        let mut copies = self.copies.lock();
        let (name, copy) = copies.iter_mut().find(|(name, copy)| match wanted {
            Some(wanted) => wanted == **name,
            None => copy.made.elapsed() < SHARED && copy.copied.at.index >= at_least,
        })?;
        copy.readers += 1;
        copy.used = Instant::now();
        Some((name.clone(), copy.copied.clone()))
    }

    fn make(&self, name: &str, at_least: u64, leads: bool, export: Export<'_>) -> Result<(Copied, LogPin)> {
        let folder = self.folder.join(name);
        for attempt in 0..TRIES {
            if attempt > 0 {
                std::thread::sleep(PAUSE);
            }
            let made = export(&folder)?;
            // A primary keeps the log behind an older copy, too. More may not be committed before this very member is back.
            if made.0.at.index >= at_least || (leads && attempt + 1 == TRIES) {
                return Ok(made);
            }
            // The set has not committed that much yet.
            self.remove(name);
        }
        Err(Error::new(
            Code::NOT_YET_INITIALIZED,
            format!("nothing as new as {at_least} is committed here yet"),
        ))
    }

    /// Whether the other side says that it has everything.
    fn serve_copy(&self, stream: &mut Secured, name: &str, copied: &Copied) -> io::Result<bool> {
        let reply = DocBuf::build(|doc| {
            doc.append("ok", true).append("copy", name);
            doc.append("term", copied.at.term as i64);
            doc.append("index", copied.at.index as i64);
            doc.append("time", copied.at.time as i64);
            let mut files = doc.array("files");
            for (name, size) in &copied.files {
                files.document().append("n", name.as_str()).append("s", *size as i64);
            }
        });
        write_document(stream, reply.as_raw())?;
        let mut buffer = vec![0; CHUNK_BYTES];
        loop {
            let request = match read_document(stream) {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
                request => request?,
            };
            let Some(wanted) = request.as_raw().get("fetch").and_then(|v| v.as_array()) else {
                return Ok(request.as_raw().get("done").is_some_and(|v| v.truthy()));
            };
            for part in wanted.values().filter_map(|v| v.as_doc()) {
                let number = |name: &str| part.get(name).and_then(|v| v.as_exact_i64()).unwrap_or(-1);
                let file = copied.files.get(number("f") as usize);
                let (Some((file, size)), Ok(offset)) = (file, u64::try_from(number("o"))) else {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "there is no such file"));
                };
                let path = self.folder.join(name).join(file);
                send(stream, &path, number("f") as u32, offset, *size, &mut buffer)?;
            }
            write_end(stream)?;
        }
    }
}

fn send(
    stream: &mut Secured,
    path: &Path,
    number: u32,
    mut offset: u64,
    size: u64,
    buffer: &mut [u8],
) -> io::Result<()> {
    let file = File::open(path)?;
    while offset < size {
        let chunk = &mut buffer[..CHUNK_BYTES.min((size - offset) as usize)];
        file.read_exact_at(chunk, offset)?;
        write_chunk(stream, number, offset, chunk)?;
        offset += chunk.len() as u64;
    }
    Ok(())
}
