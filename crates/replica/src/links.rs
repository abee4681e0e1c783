//! Connections between members.
//!
//! Each member dials every other one and sends on the connection that it has dialled, so a link is one-way. It starts
//! with a magic word that no client's message can start with, on the port that clients use, and says whose it is
//! ([`crate::confirm`]); then come messages, each behind its length. What cannot be sent is dropped: the core sends again
//! what matters. The other end of a link is in [`crate::receiving`].

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sheaf_client::dial::dial_async;
use sheaf_repl::Envelope;
use sheaf_storage::critical::Critical;
use tokio::net::TcpStream;
use tokio::sync::Notify;

use crate::Replica;
use crate::confirm::{Hello, Nonce};
use crate::errors::Lost;
use crate::memory::Share;
use crate::receiving::MESSAGE_BYTES_MAX;

/// The first word on a link: read as a message's length it would be above the largest allowed.
pub const MAGIC: [u8; 4] = *b"ShMb";

/// Messages that may wait for a link.
const WAITING_MAX: usize = 4096;

/// How long a connection may take to come about.
const CONNECT_PATIENCE: Duration = Duration::from_secs(2);

/// A connection on which nothing is acknowledged for so long is given up, and dialled anew.
const UNANSWERED: Duration = Duration::from_secs(5);

/// Pause after a link broke.
const PAUSE: Duration = Duration::from_millis(50);

/// How long entries that nobody waits for are held back, to go out together with more.
const TOGETHER: Duration = Duration::from_millis(1);

/// Encoded bytes beyond which messages wait as they are.
const BUFFER_BYTES: usize = 1 << 20;

/// The links of this member, by the addresses of the configuration.
pub struct Links {
    replica: Weak<Replica>,
    /// Where to dial for an address, if not there.
    elsewhere: HashMap<String, String>,
    links: Mutex<HashMap<Arc<str>, Arc<Link>>>,
    /// Links with messages that nobody has begun to write.
    dirty: Mutex<Vec<Arc<Link>>>,
    runtime: tokio::runtime::Handle,
}

impl Links {
    /// `elsewhere` is the parameter `peerAddresses`: `HOST:PORT=ADDRESS:PORT`, with commas between.
    pub fn new(replica: &Arc<Replica>, elsewhere: &str) -> Links {
        let pairs = elsewhere.split(',').filter_map(|pair| pair.split_once('='));
        Links {
            replica: Arc::downgrade(replica),
            elsewhere: pairs.map(|(host, to)| (host.trim().to_owned(), to.trim().to_owned())).collect(),
            links: Mutex::default(),
            dirty: Mutex::default(),
            runtime: tokio::runtime::Handle::current(),
        }
    }

    /// Puts a message in its link's queue, or drops it if too many wait already. [`Links::flush`] sends it. Where there is no link
    /// yet, `is_member` is asked whether the address is one of the configuration. Others are told once that they are not;
    /// a few at a time, as anybody can say that he is somebody who was removed.
    pub fn send(&self, host: &Arc<str>, envelope: Envelope, is_member: impl FnOnce() -> bool) {
        let mut links = self.links.lock();
        let link = match links.get(host) {
            Some(link) => link,
            None => {
                let stranger = !is_member();
                if stranger
                    && links.values().filter(|link| link.stranger.load(Ordering::Acquire)).count()
                        >= STRANGERS_MAX
                {
                    return;
                }
                let link = Arc::new(self.link(stranger));
                let (replica, to) = (self.replica.clone(), self.address(host));
                if stranger {
                    self.runtime.spawn(run_for_a_while(replica, host.clone(), to, link.clone()));
                } else {
                    self.runtime.spawn(run(replica, host.clone(), to, link.clone()));
                }
                links.entry(host.clone()).or_insert(link)
            }
        };
        let first = {
            let mut waiting = link.waiting.lock();
            let first = waiting.is_empty();
            waiting.push(envelope);
            first
        };
        if first {
            self.dirty.lock().push(link.clone());
        }
    }

    fn link(&self, stranger: bool) -> Link {
        let link = Link { nonce: rand::random(), stranger: AtomicBool::new(stranger), ..Link::default() };
        if let Some(replica) = self.replica.upgrade() {
            link.waiting.lock().share = replica.memory.share();
            link.writer.lock().share = replica.memory.share();
        }
        link
    }

    /// Like [`Links::flush`], for when nobody waits for it: entries for a member that has just been sent some follow a
    /// moment later, all together.
    pub fn flush_soon(&self) {
        let now = Instant::now();
        let mut due = Vec::new();
        self.dirty.lock().retain(|link| {
            if link.is_due(now) {
                due.push(link.clone());
                return false;
            }
            if !link.later.swap(true, Ordering::AcqRel) {
                link.work.notify_one();
            }
            true
        });
        for link in due {
            link.flush();
        }
    }

    /// Writes what waits, on this thread as far as the sockets take it at once: each change of thread would cost a
    /// write that waits for a majority more than the message itself. Not to be called with the core locked.
    pub fn flush(&self) {
        let dirty = std::mem::take(&mut *self.dirty.lock());
        for link in dirty {
            link.flush();
        }
    }

    /// Whether this process has given one of its links this number.
    pub fn has(&self, nonce: Nonce) -> bool {
        self.links.lock().values().any(|link| link.nonce == nonce)
    }

    /// The number of the link to this address; nothing has been sent there, if there is none.
    pub fn nonce_for(&self, host: &str) -> Option<Nonce> {
        self.links.lock().get(host).map(|link| link.nonce)
    }

    /// Where to dial for this address of the configuration.
    pub fn address(&self, host: &str) -> String {
        self.elsewhere.get(host).map_or(host, String::as_str).to_owned()
    }
}

/// Messages to be written.
#[derive(Default)]
struct Waiting {
    messages: VecDeque<Envelope>,
    /// Bytes of the last one's entries, and of all of them.
    last_bytes: usize,
    bytes: usize,
    share: Share,
}

impl Waiting {
    /// Adds a message, as a part of the last one if possible, or drops it if too many wait already.
    fn push(&mut self, envelope: Envelope) {
        let bytes = envelope.entry_bytes();
        let rest = match self.messages.back_mut() {
            Some(last) if self.last_bytes + bytes <= BUFFER_BYTES => last.absorb(envelope),
            _ => Some(envelope),
        };
        match rest {
            None => self.last_bytes += bytes,
            Some(envelope) if self.messages.len() < WAITING_MAX => {
                self.messages.push_back(envelope);
                self.last_bytes = bytes;
            }
            Some(_) => return,
        }
        self.count(self.bytes + bytes);
    }

    fn count(&mut self, bytes: usize) {
        self.bytes = bytes;
        self.share.set(bytes);
    }

    fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// The next message.
    fn take(&mut self) -> Option<Envelope> {
        let envelope = self.messages.pop_front()?;
        let (bytes, all) = (envelope.entry_bytes(), self.bytes);
        assert!(bytes <= all, "a message of {bytes} bytes waits among {all}");
        assert!(!self.messages.is_empty() || bytes == all, "{all} bytes wait in a message of {bytes}");
        self.count(all - bytes);
        Some(envelope)
    }

    /// The connection is lost, and what was to go over it.
    fn clear(&mut self) {
        self.messages.clear();
        self.count(0);
    }
}

/// The way to one member.
#[derive(Default)]
struct Link {
    /// By which the other side can ask whether it is this process's.
    nonce: Nonce,
    /// Whether the link leads to none of the configuration's addresses.
    stranger: AtomicBool,
    waiting: Mutex<Waiting>,
    writer: Mutex<Writer>,
    /// When entries were last written here.
    fed: Mutex<Option<Instant>>,
    /// What waits is to be written by the link's task, in a moment.
    later: AtomicBool,
    broken: AtomicBool,
    /// Wakes the link's task: to connect, to write the rest, to give up a broken connection.
    work: Notify,
}

#[derive(Default)]
struct Writer {
    stream: Option<Arc<TcpStream>>,
    /// Encoded, from `written` on still to be written.
    buffer: Vec<u8>,
    written: usize,
    share: Share,
}

impl Link {
    /// The connection has ended; what waited for it is lost with it.
    fn end(&self) {
        self.writer.lock().begin(None, Vec::new());
        self.broken.store(false, Ordering::Release);
        self.waiting.lock().clear();
        self.later.store(false, Ordering::Release);
    }

    /// Whether what waits, if anything does, should be written now.
    fn is_due(&self, now: Instant) -> bool {
        let waiting = self.waiting.lock();
        waiting.is_empty()
            || !waiting.messages.iter().all(Envelope::feeds)
            || self.fed.lock().is_none_or(|at| now.saturating_duration_since(at) >= TOGETHER)
    }

    /// Writes what waits, unless somebody is at it, who then does it.
    fn flush(&self) {
        loop {
            let Some(mut writer) = self.writer.try_lock() else { return };
            let all = writer.write(self);
            drop(writer);
            match all {
                Ok(true) if self.waiting.lock().is_empty() => return,
                Ok(true) => {}
                Ok(false) => return self.work.notify_one(),
                Err(_) => {
                    self.broken.store(true, Ordering::Release);
                    return self.work.notify_one();
                }
            }
        }
    }
}

impl Writer {
    /// Writes as much as the socket takes at once; false if that is not all.
    fn write(&mut self, link: &Link) -> io::Result<bool> {
        let Some(stream) = self.stream.clone() else { return Ok(false) };
        loop {
            self.encode(link);
            if self.written == self.buffer.len() {
                self.buffer.clear();
                self.written = 0;
                return Ok(true);
            }
            match stream.try_write(&self.buffer[self.written..]) {
                Ok(n) => self.written += n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
            if self.written == self.buffer.len() {
                self.buffer.clear();
                self.buffer.shrink_to(BUFFER_BYTES);
                self.share.set(self.buffer.capacity());
                self.written = 0;
            }
        }
    }

    /// Encodes messages that wait, one after another, until there is enough to be written: as they are they share their
    /// entries' memory with others.
    fn encode(&mut self, link: &Link) {
        assert!(
            self.written <= self.buffer.len(),
            "{} of {} bytes are written",
            self.written,
            self.buffer.len()
        );
        while self.buffer.len() < BUFFER_BYTES {
            let Some(envelope) = link.waiting.lock().take() else { break };
            if envelope.brings_entries() {
                *link.fed.lock() = Some(Instant::now());
            }
            put(&mut self.buffer, &envelope.encode());
        }
        self.share.set(self.buffer.capacity());
    }

    /// Without a connection, or with another one.
    fn begin(&mut self, stream: Option<Arc<TcpStream>>, buffer: Vec<u8>) {
        (self.stream, self.buffer, self.written) = (stream, buffer, 0);
        self.share.set(self.buffer.capacity());
    }
}

/// Links to those who are not in the configuration, at once.
const STRANGERS_MAX: usize = 8;

/// How long such a link lasts, if nobody becomes a member meanwhile: one that has been removed is told so.
const STRANGERS_LIFE: Duration = Duration::from_secs(5);

/// Sends what there is to say to one who is not in the configuration, and forgets the link, unless he is by then.
async fn run_for_a_while(replica: Weak<Replica>, host: Arc<str>, to: String, link: Arc<Link>) {
    let critical = Critical::enter("a link to one who is no member");
    let ended = {
        let serving = serve(&replica, &to, &link);
        tokio::pin!(serving);
        loop {
            tokio::select! {
                ended = &mut serving => break ended,
                () = tokio::time::sleep(STRANGERS_LIFE) => {
                    let Some(replica) = replica.upgrade() else { return };
                    if !replica.is_address(&host) {
                        break Ok(());
                    }
                    link.stranger.store(false, Ordering::Release);
                }
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(host = &*host, %error, "a link to one who is no member ended");
    }
    {
        let Some(replica) = replica.upgrade() else { return };
        if let Some(links) = replica.links.get().filter(|_| !replica.is_address(&host)) {
            links.links.lock().remove(&host);
            link.writer.lock().begin(None, Vec::new());
            return;
        }
    }
    link.stranger.store(false, Ordering::Release);
    link.end();
    drop(critical);
    run(replica, host, to, link).await;
}

/// Keeps one link up while there is something to send.
async fn run(replica: Weak<Replica>, host: Arc<str>, to: String, link: Arc<Link>) {
    // A panic would leave the other member without a word from this one for as long as it runs.
    let _critical = Critical::enter("a link to another member");
    loop {
        // A message that waits is the reason to connect.
        while link.waiting.lock().is_empty() {
            link.work.notified().await;
        }
        let ended = serve(&replica, &to, &link).await;
        link.end();
        let Some(replica) = replica.upgrade() else { return };
        if let Err(error) = ended {
            tracing::debug!(host = &*host, %error, "a link to a member ended");
            if Lost::by(&error) == Lost::Member {
                replica.connection_lost(&host);
            }
        }
        drop(replica);
        tokio::time::sleep(PAUSE).await;
    }
}

async fn serve(replica: &Weak<Replica>, to: &str, link: &Link) -> io::Result<()> {
    let stream = Arc::new(dial_async(to, CONNECT_PATIENCE, UNANSWERED).await?);
    let Some(replica) = replica.upgrade() else { return Ok(()) };
    let host = Arc::from(replica.own_address());
    let hello = Hello::Link { set: replica.initial_sync.set_name().to_owned(), host, nonce: link.nonce };
    drop(replica);
    let mut buffer = MAGIC.to_vec();
    put(&mut buffer, hello.encode().as_bytes());
    link.writer.lock().begin(Some(stream.clone()), buffer);
    link.flush();
    let mut nothing = [0; 16];
    loop {
        tokio::select! {
            () = link.work.notified() => {
                if link.broken.load(Ordering::Acquire) {
                    return Err(io::ErrorKind::ConnectionReset.into());
                }
                if link.later.load(Ordering::Acquire) {
                    tokio::time::sleep(TOGETHER).await;
                    // Before what waits is taken: whoever adds something from now on asks again.
                    link.later.store(false, Ordering::Release);
                }
                stream.writable().await?;
                link.flush();
            }
            // The other side never sends: what comes is the end.
            readable = stream.readable() => {
                readable?;
                match stream.try_read(&mut nothing) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Ok(_) => return Err(io::ErrorKind::ConnectionReset.into()),
                    Err(error) => return Err(error),
                }
            }
        }
    }
}

/// Adds a frame: the bytes behind their length.
pub(super) fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    assert!(bytes.len() <= MESSAGE_BYTES_MAX, "a frame of {} bytes, which nobody reads", bytes.len());
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}
