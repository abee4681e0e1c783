//! Fetching a copy of another member's data.
//!
//! ```text
//! <dbpath>/sync/state.bson   which copy of which member, its files, and where the log goes on behind it
//! <dbpath>/sync/done         names of the files that are whole and on stable storage, one a line
//! <dbpath>/sync/files/       the copy, as far as it is here
//! ```
//!
//! After a broken connection it goes on with the byte that is missing, after a restart with the first file that is not
//! known to be whole.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sheaf_bson::{DocBuf, RawDoc};
use sheaf_client::dial::{Patience, dial};
use sheaf_storage::{Copied, OpTime};
use sheaf_tls::{Blocking, TlsClient};

use super::frames::{MAGIC, read_chunk, read_document, write_document};
use super::progress::Progress;
use super::who::Who;
use crate::secured::{Secrets, Secured, Way, dial_blocking};

/// Folder in the data folder.
const FOLDER: &str = "sync";

/// How long a connection may take to come about, and a source to send something.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_secs(60);

/// What is asked while bytes come.
pub struct Control<'c> {
    /// Bytes per second, 0 for as fast as it goes.
    pub bytes_per_second: &'c dyn Fn() -> u64,
    /// Whether to give up.
    pub stopped: &'c dyn Fn() -> bool,
    /// The deployment's key.
    pub secrets: &'c Secrets,
}

/// The folder of a copy that is being fetched.
pub struct Target {
    dbpath: PathBuf,
    pub progress: Mutex<Progress>,
}

/// A copy of a member.
#[derive(Clone, Debug, PartialEq)]
struct Known {
    source: String,
    name: String,
    copied: Copied,
}

impl Target {
    /// Removes what is left of a copy that was taken into use.
    pub fn open(dbpath: &Path) -> Target {
        let target = Target { dbpath: dbpath.to_owned(), progress: Mutex::default() };
        if !target.files().is_dir() {
            target.forget();
        }
        target
    }

    fn folder(&self) -> PathBuf {
        self.dbpath.join(FOLDER)
    }

    /// The folder of the copy's files.
    pub fn files(&self) -> PathBuf {
        self.folder().join("files")
    }

    /// Throws away what was fetched.
    pub fn forget(&self) {
        if let Err(error) = fs::remove_dir_all(self.folder())
            && error.kind() != ErrorKind::NotFound
        {
            tracing::warn!(%error, "a copy that is of no use stays");
        }
    }

    /// The member from which a part of a copy is here.
    pub fn begun_from(&self) -> Option<String> {
        self.known().map(|known| known.source)
    }

    fn known(&self) -> Option<Known> {
        let bytes = fs::read(self.folder().join("state.bson")).ok()?;
        sheaf_bson::validate(&bytes, 20).ok()?;
        let doc = RawDoc::new(&bytes);
        let source = doc.get("source")?.as_str()?.to_owned();
        read_reply(doc, &source).ok()
    }

    /// Fetches a copy, or the rest of the one that is here in part, from the member at `host`, dialled at `address`. A new
    /// copy is as new as `at_least`; one that was begun may be older, since its source keeps the log behind it. The copy is
    /// whole and on stable storage when this returns.
    pub fn fetch(
        &self,
        (host, address): (&str, &str),
        who: &Who,
        at_least: u64,
        control: &Control<'_>,
    ) -> io::Result<OpTime> {
        let begun = self.known().filter(|known| known.source == host);
        if let Some(known) = &begun
            && self.missing(known)?.is_empty()
        {
            return self.whole(known);
        }
        let request = DocBuf::build(|doc| {
            who.append_to(doc);
            doc.append("atLeast", at_least as i64);
            if let Some(known) = &begun {
                doc.append("copy", known.name.as_str());
            }
        });
        let mut asked = Err(io::Error::other("nothing to dial with"));
        for way in control.secrets.to_dial_with() {
            asked = ask((host, address), control.secrets.tls(), way, request.as_raw());
            if asked.is_ok() {
                break;
            }
        }
        let (mut stream, reply) = asked?;
        let known = read_reply(reply.as_raw(), host)?;
        if begun.as_ref() != Some(&known) {
            self.begin(&known, reply.as_raw())?;
        }
        self.fetch_files(&mut stream, &known, control)?;
        let at = self.whole(&known)?;
        // The source may forget it now; if it does not hear of it, it does so by and by.
        let _ = write_document(&mut stream, sheaf_bson::doc! { "done": true }.as_raw());
        Ok(at)
    }

    /// Starts a copy anew.
    fn begin(&self, known: &Known, reply: RawDoc<'_>) -> io::Result<()> {
        self.forget();
        // Files of another copy may have the same names.
        self.progress.lock().partial = None;
        fs::create_dir_all(self.files())?;
        let state = DocBuf::build(|doc| {
            doc.append("source", known.source.as_str()).append_all(reply);
        });
        let path = self.folder().join("state.bson");
        let mut file = File::create(&path)?;
        file.write_all(state.as_bytes())?;
        file.sync_all()?;
        sync(&self.folder())?;
        sync(&self.dbpath)
    }

    /// Numbers of files that are not whole, and how much of each is here.
    fn missing(&self, known: &Known) -> io::Result<Vec<(usize, u64)>> {
        let done = fs::read_to_string(self.folder().join("done")).unwrap_or_default();
        let done: HashSet<&str> = done.lines().collect();
        let mut progress = self.progress.lock();
        progress.total = known.copied.files.iter().map(|(_, size)| size).sum();
        let mut missing = Vec::new();
        let mut copied = 0;
        for (number, (name, size)) in known.copied.files.iter().enumerate() {
            if done.contains(name.as_str()) {
                copied += size;
                continue;
            }
            let here =
                progress.partial.as_ref().filter(|(partial, _)| partial == name).map_or(0, |(_, len)| *len);
            copied += here;
            missing.push((number, here));
        }
        progress.copied = copied;
        Ok(missing)
    }

    fn fetch_files(&self, stream: &mut Secured, known: &Known, control: &Control<'_>) -> io::Result<()> {
        let missing = self.missing(known)?;
        let request = DocBuf::build(|doc| {
            let mut wanted = doc.array("fetch");
            for (number, offset) in &missing {
                wanted.document().append("f", *number as i64).append("o", *offset as i64);
            }
        });
        write_document(stream, request.as_raw())?;
        let mut from = BufReader::with_capacity(1 << 16, stream);
        let mut done = OpenOptions::new().append(true).create(true).open(self.folder().join("done"))?;
        let mut throttle = Throttle::new();
        let mut bytes = Vec::new();
        for (number, offset) in missing {
            let (name, size) = &known.copied.files[number];
            let path = self.files().join(name);
            let file = OpenOptions::new().write(true).create(true).truncate(offset == 0).open(&path)?;
            let mut at = offset;
            while at < *size {
                if (control.stopped)() {
                    return Err(io::Error::other("this member is stopping"));
                }
                if read_chunk(&mut from, &mut bytes)? != Some((number as u32, at)) || bytes.is_empty() {
                    return Err(bad("the source sends what was not asked for"));
                }
                file.write_all_at(&bytes, at)?;
                at += bytes.len() as u64;
                self.progress.lock().received(name, at, bytes.len() as u64);
                throttle.received(bytes.len() as u64, control);
            }
            let synced = file.set_len(*size).and_then(|()| file.sync_all());
            // After a sync that failed the system takes the pages for written: whatever came of it, nothing goes on from here.
            self.progress.lock().partial = None;
            synced?;
            done.write_all(format!("{name}\n").as_bytes())?;
            done.sync_data()?;
        }
        match read_chunk(&mut from, &mut bytes)? {
            None => Ok(()),
            Some(_) => Err(bad("the source sends more than was asked for")),
        }
    }

    /// Makes sure that the copy is whole and on stable storage.
    fn whole(&self, known: &Known) -> io::Result<OpTime> {
        for (name, size) in &known.copied.files {
            if fs::metadata(self.files().join(name))?.len() != *size {
                self.forget();
                return Err(bad("a fetched file has not its size"));
            }
        }
        sync(&self.files())?;
        sync(&self.folder())?;
        Ok(known.copied.at)
    }
}

/// Asks the member `host` at this address for a copy; gives its answer.
fn ask(
    (host, address): (&str, &str),
    tls: Option<&TlsClient>,
    way: Way<'_>,
    request: RawDoc<'_>,
) -> io::Result<(Secured, DocBuf)> {
    let socket = dial(address, Patience { connect: CONNECT_PATIENCE, each: PATIENCE })?;
    let stream = match tls {
        Some(tls) => Blocking::connect(socket, tls, host, CONNECT_PATIENCE)?,
        None => Blocking::plain(socket),
    };
    let mut stream = dial_blocking(stream, way, MAGIC)?;
    write_document(&mut stream, request)?;
    let reply = read_document(&mut stream)?;
    Ok((stream, reply))
}

fn bad(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what)
}

fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Reads the source's answer.
fn read_reply(reply: RawDoc<'_>, source: &str) -> io::Result<Known> {
    if !reply.get("ok").is_some_and(|v| v.truthy()) {
        let why = reply.get("errmsg").and_then(|v| v.as_str()).unwrap_or_default();
        return Err(io::Error::other(format!("{source} gives no copy: {why}")));
    }
    let number = |name: &str| reply.get(name).and_then(|v| v.as_exact_i64()).map(|n| n as u64);
    let parsed = || {
        let at = OpTime { term: number("term")?, index: number("index")?, time: number("time")? };
        let mut files = Vec::new();
        for file in reply.get("files")?.as_array()?.values() {
            let file = file.as_doc()?;
            let name = file.get("n")?.as_str()?;
            // A name stays within the folder, and within its line of the list.
            let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
            if name.is_empty() || name.starts_with('.') || !name.chars().all(plain) {
                return None;
            }
            files.push((name.to_owned(), u64::try_from(file.get("s")?.as_exact_i64()?).ok()?));
        }
        let name = reply.get("copy")?.as_str()?.to_owned();
        Some(Known { source: source.to_owned(), name, copied: Copied { at, files } })
    };
    parsed().ok_or_else(|| bad("the source's answer cannot be read"))
}

/// Keeps to a number of bytes per second; the connection's window makes the source keep to it, too.
struct Throttle {
    since: Instant,
    bytes: u64,
    limit: u64,
}

impl Throttle {
    fn new() -> Throttle {
        Throttle { since: Instant::now(), bytes: 0, limit: 0 }
    }

    fn received(&mut self, bytes: u64, control: &Control<'_>) {
        let limit = (control.bytes_per_second)();
        if limit != self.limit {
            *self = Throttle { since: Instant::now(), bytes: 0, limit };
        }
        self.bytes += bytes;
        if limit == 0 {
            return;
        }
        // In short sleeps, so that a new limit or an end is noticed.
        loop {
            let due = Duration::from_secs_f64(self.bytes as f64 / limit as f64);
            let early = due.saturating_sub(self.since.elapsed());
            if early.is_zero() || (control.stopped)() || (control.bytes_per_second)() != limit {
                return;
            }
            std::thread::sleep(early.min(Duration::from_millis(200)));
        }
    }
}
