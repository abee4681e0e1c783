//! Connections between members.
//!
//! Each member dials every other one and sends on the connection that it has dialled, so a link is one-way. It starts
//! with a magic word that no client's message can start with, on the port that clients use, and says whose it is
//! ([`crate::confirm`]); then come messages, each behind its length. What cannot be sent is dropped: the core sends again
//! what matters. Here is what waits for each link; [`crate::dialling`] keeps it connected, and its other end is in
//! [`crate::receiving`].

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use sheaf_auth::link::seal::Sealer;
use sheaf_repl::Envelope;
use sheaf_tls::Connection;
use tokio::net::TcpStream;
use tokio::sync::Notify;

use crate::cover::Cover;
use crate::memory::Share;
use crate::outstanding::Outstanding;
use crate::protocol::{Nonce, put_message};

/// Messages that may wait for a link.
const WAITING_MAX: usize = 4096;

/// Links to those who are not in the configuration, at once.
const STRANGERS_MAX: usize = 8;

/// Entries of so many bytes wait for no others.
const MUCH_BYTES: usize = 64 << 10;

/// Encoded bytes beyond which messages wait as they are.
const BUFFER_BYTES: usize = 1 << 20;

/// The links of this member, by the addresses of the configuration.
pub struct Links {
    /// Where to dial for an address, if not there.
    elsewhere: HashMap<String, String>,
    links: Mutex<HashMap<Arc<str>, Arc<Link>>>,
    /// Processors are short.
    short: AtomicBool,
    /// Links with messages that nobody has begun to write.
    dirty: Mutex<Vec<Arc<Link>>>,
    /// Gives a new link its share of the memory.
    share: Box<dyn Fn() -> Share + Send + Sync>,
    /// Starts the task of a new link, which dials.
    dial: Box<dyn Fn(Begun) + Send + Sync>,
}

/// A link that has just been made, and has no connection yet.
pub struct Begun {
    /// The address in the configuration.
    pub host: Arc<str>,
    /// Where to dial for it.
    pub to: String,
    /// The queue to write from.
    pub link: Arc<Link>,
}

impl Links {
    /// `elsewhere` is the parameter `peerAddresses`: `HOST:PORT=ADDRESS:PORT`, with commas between. `share` gives a link its part of
    /// the memory, `dial` starts its task.
    pub fn new(
        elsewhere: &str,
        share: impl Fn() -> Share + Send + Sync + 'static,
        dial: impl Fn(Begun) + Send + Sync + 'static,
    ) -> Links {
        let pairs = elsewhere.split(',').filter_map(|pair| pair.split_once('='));
        Links {
            elsewhere: pairs.map(|(host, to)| (host.trim().to_owned(), to.trim().to_owned())).collect(),
            links: Mutex::default(),
            short: AtomicBool::new(false),
            dirty: Mutex::default(),
            share: Box::new(share),
            dial: Box::new(dial),
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
                (self.dial)(Begun { host: host.clone(), to: self.address(host), link: link.clone() });
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
        link.waiting.lock().share = (self.share)();
        link.writer.lock().share = (self.share)();
        link
    }

    /// Forgets the link to this address; nothing is connected any more.
    pub fn forget(&self, host: &str) {
        if let Some(link) = self.links.lock().remove(host) {
            link.writer.lock().end();
        }
    }

    /// Like [`Links::flush`], for when nobody waits for it: entries for a member that has just been sent some follow a
    /// moment later, all together.
    pub fn flush_soon(&self) {
        self.flush_due(false);
    }

    /// Writes what waits, on this thread as far as the sockets take it at once: each change of thread would cost a
    /// write that waits for a majority more than the message itself. Where processors are short, entries for a member that has some
    /// to answer wait for that ([`Outstanding`]). Not to be called with the core locked.
    pub fn flush(&self) {
        self.flush_due(true);
    }

    fn flush_due(&self, wanted: bool) {
        let (now, short) = (Instant::now(), self.short.load(Ordering::Relaxed));
        let mut due = Vec::new();
        self.dirty.lock().retain(|link| {
            if link.is_due(wanted, short, now) {
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

    /// Whether processors are short from now on: then entries go out in fewer messages.
    pub fn be_sparing(&self, short: bool) {
        self.short.store(short, Ordering::Relaxed);
    }

    /// The member at this address has everything up to this index: what somebody has waited for meanwhile goes out with the next flush.
    pub fn answered(&self, host: &str, index: u64) {
        let link = self.links.lock().get(host).cloned();
        if let Some(link) = link {
            link.outstanding.lock().answered(index);
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
pub struct Link {
    /// By which the other side can ask whether it is this process's.
    pub nonce: Nonce,
    /// How often it was dialled.
    pub dialled: AtomicUsize,
    /// Whether the link leads to none of the configuration's addresses.
    pub stranger: AtomicBool,
    waiting: Mutex<Waiting>,
    writer: Mutex<Writer>,
    /// Entries that are on their way.
    outstanding: Mutex<Outstanding>,
    /// Somebody waits for the entries that wait here.
    wanted: AtomicBool,
    /// What waits is to be written by the link's task, in a moment.
    pub later: AtomicBool,
    pub broken: AtomicBool,
    /// Wakes the link's task: to connect, to write the rest, to give up a broken connection.
    pub work: Notify,
}

/// A connection to a member, ready to be sent on.
pub struct Connected {
    /// The socket.
    pub stream: Arc<TcpStream>,
    /// TLS, if it is spoken.
    pub tls: Option<Connection>,
    /// Of ends that have proved to each other that they have a key.
    pub sealer: Option<Sealer>,
}

#[derive(Default)]
struct Writer {
    stream: Option<Arc<TcpStream>>,
    /// What keeps what is sent from being altered, and from being read.
    cover: Cover,
    /// Encoded, and to be covered.
    plain: Vec<u8>,
    /// Encoded, from `written` on still to be written.
    buffer: Vec<u8>,
    written: usize,
    share: Share,
}

impl Link {
    /// A connection is there, on which `greeting` goes first.
    ///
    /// Errors: TLS takes nothing more.
    pub fn begin(&self, connected: Connected, greeting: &[u8]) -> io::Result<()> {
        self.writer.lock().begin(connected, greeting)?;
        // Whoever has asked for it while the connection before ended has not been heard.
        self.later.store(false, Ordering::Release);
        self.flush();
        Ok(())
    }

    /// Takes in what has come from the other side, which has nothing to say itself: tickets of TLS.
    ///
    /// Errors: it is something else.
    pub fn take_in(&self, bytes: &[u8]) -> io::Result<()> {
        {
            let mut writer = self.writer.lock();
            let writer = &mut *writer;
            writer.cover.take_in(bytes, &mut writer.buffer)?;
        }
        // Whoever has found the writer taken meanwhile has left its messages to this.
        self.flush();
        Ok(())
    }

    /// Whether nothing waits to be written.
    pub fn is_empty(&self) -> bool {
        self.waiting.lock().is_empty()
    }

    /// The connection has ended; what waited for it is lost with it.
    pub fn end(&self) {
        self.writer.lock().end();
        self.broken.store(false, Ordering::Release);
        self.waiting.lock().clear();
        *self.outstanding.lock() = Outstanding::default();
        self.wanted.store(false, Ordering::Release);
        self.later.store(false, Ordering::Release);
    }

    /// Whether what waits, if anything does, should be written now. `wanted`: somebody waits for it, now and until it is written; `short`:
    /// processors are.
    fn is_due(&self, wanted: bool, short: bool, now: Instant) -> bool {
        let wanted = self.wanted.fetch_or(wanted, Ordering::AcqRel) || wanted;
        let waiting = self.waiting.lock();
        waiting.is_empty()
            || waiting.bytes >= MUCH_BYTES
            || !waiting.messages.iter().all(Envelope::feeds)
            || self.outstanding.lock().lets_go(wanted, short, now)
    }

    /// Writes what waits, unless somebody is at it, who then does it.
    pub fn flush(&self) {
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
            self.encode(link)?;
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
    fn encode(&mut self, link: &Link) -> io::Result<()> {
        assert!(
            self.written <= self.buffer.len(),
            "{} of {} bytes are written",
            self.written,
            self.buffer.len()
        );
        // Before anything is taken: what is wanted from now on may come too late for this.
        link.wanted.store(false, Ordering::Release);
        let (mut last, mut entries) = (None, 0);
        while self.buffer.len() < BUFFER_BYTES {
            let Some(envelope) = link.waiting.lock().take() else { break };
            last = envelope.last_entry().or(last);
            entries += envelope.entries().count();
            if self.cover.is_none() {
                put_message(&mut self.buffer, &envelope);
                continue;
            }
            put_message(&mut self.plain, &envelope);
            self.cover.put(&self.plain, &mut self.buffer)?;
            self.plain.clear();
            self.plain.shrink_to(BUFFER_BYTES);
        }
        if let Some(last) = last {
            link.outstanding.lock().sent(last, entries, Instant::now());
        }
        self.share.set(self.buffer.capacity() + self.plain.capacity());
        Ok(())
    }

    /// On another connection.
    fn begin(&mut self, connected: Connected, greeting: &[u8]) -> io::Result<()> {
        self.end();
        self.stream = Some(connected.stream);
        self.cover = Cover::new(connected.tls, connected.sealer);
        self.cover.put(greeting, &mut self.buffer)?;
        self.share.set(self.buffer.capacity());
        Ok(())
    }

    /// Without a connection.
    fn end(&mut self) {
        (self.stream, self.cover, self.buffer, self.written) = (None, Cover::default(), Vec::new(), 0);
        self.share.set(0);
    }
}

#[cfg(test)]
mod tests {
    use raft::eraftpb::{Entry, Message, MessageType};
    use sheaf_repl::config::ConfigVersion;
    use sheaf_repl::{Body, Report};

    use super::*;
    use crate::outstanding::TOGETHER;

    fn said(body: Body) -> Envelope {
        Envelope { from: 1, to: 2, config: ConfigVersion { term: 1, version: 1 }, incarnation: 1, body }
    }

    /// A message that brings the entry with this index, of so many bytes.
    fn entry(index: u64, bytes: usize) -> Envelope {
        let mut message = Message::default();
        message.set_msg_type(MessageType::MsgAppend);
        (message.term, message.log_term, message.index) = (1, 1, index - 1);
        let entry = Entry { term: 1, index, data: vec![0; bytes].into(), ..Entry::default() };
        message.entries = vec![entry].into();
        said(Body::Raft(Box::new(message)))
    }

    /// What waits is written, as far as the link can tell.
    fn write(link: &Link, now: Instant) {
        let mut waiting = link.waiting.lock();
        while let Some(envelope) = waiting.take() {
            let last = envelope.last_entry();
            last.into_iter()
                .for_each(|last| link.outstanding.lock().sent(last, envelope.entries().count(), now));
        }
        link.wanted.store(false, Ordering::Release);
    }

    #[test]
    fn entries_wait_while_some_are_to_be_answered() {
        let (link, now) = (Link::default(), Instant::now());
        assert!(link.is_due(false, true, now), "nothing waits");
        link.waiting.lock().push(entry(1, 10));
        link.waiting.lock().push(entry(2, 10));
        assert_eq!(link.waiting.lock().messages.len(), 1);
        assert!(link.is_due(true, true, now));
        write(&link, now);
        link.waiting.lock().push(entry(3, 10));
        assert!(!link.is_due(true, true, now), "two are on their way");
        link.outstanding.lock().answered(1);
        assert!(!link.is_due(false, true, now));
        link.outstanding.lock().answered(2);
        assert!(link.is_due(false, true, now), "somebody has waited for it since");
        write(&link, now);
        link.waiting.lock().push(entry(4, 10));
        assert!(!link.is_due(false, true, now), "nobody waits for it");
        assert!(link.is_due(true, true, now), "one entry alone is on its way");
        assert!(link.is_due(false, true, now + TOGETHER));
    }

    #[test]
    fn what_is_no_entry_and_what_is_large_waits_for_nothing() {
        let (link, now) = (Link::default(), Instant::now());
        link.outstanding.lock().sent(7, 3, now);
        link.waiting.lock().push(entry(8, MUCH_BYTES));
        assert!(link.is_due(false, true, now));
        write(&link, now);
        link.waiting.lock().push(entry(9, 10));
        assert!(!link.is_due(true, true, now));
        link.waiting.lock().push(said(Body::Progress(Report::default())));
        assert!(link.is_due(false, true, now));
    }
}
