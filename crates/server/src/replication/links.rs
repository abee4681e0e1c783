//! Connections between members.
//!
//! Each member dials every other one and sends on the connection that it has dialled, so a link is one-way. It starts
//! with a magic word that no client's message can start with, on the port that clients use, and the sender's own
//! address; then come messages, each behind its length. What cannot be sent is dropped: the core sends again what
//! matters.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use parking_lot::Mutex;
use sheaf_repl::Envelope;
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use super::Replica;

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

/// The most that one message may have: an entry is a commit group, and a transaction can be large.
const MESSAGE_BYTES_MAX: usize = 1 << 30;

/// Bytes that are gathered into one write.
const WRITE_BYTES: usize = 1 << 20;

/// The links of this member, by the addresses of the configuration.
pub struct Links {
    replica: Weak<Replica>,
    /// Where to dial for an address, if not there.
    elsewhere: HashMap<String, String>,
    links: Mutex<HashMap<Arc<str>, mpsc::Sender<Envelope>>>,
    runtime: tokio::runtime::Handle,
}

impl Links {
    /// `elsewhere` is the parameter `peerAddresses`: `HOST:PORT=ADDRESS:PORT`, with commas between.
    pub fn new(replica: Weak<Replica>, elsewhere: &str) -> Links {
        let pairs = elsewhere.split(',').filter_map(|pair| pair.split_once('='));
        Links {
            replica,
            elsewhere: pairs.map(|(host, to)| (host.trim().to_owned(), to.trim().to_owned())).collect(),
            links: Mutex::default(),
            runtime: tokio::runtime::Handle::current(),
        }
    }

    /// Sends a message, or drops it if too many wait already.
    pub fn send(&self, host: &Arc<str>, envelope: Envelope) {
        let mut links = self.links.lock();
        let link = links.entry(host.clone()).or_insert_with(|| {
            let (sender, receiver) = mpsc::channel(WAITING_MAX);
            let to = self.address(host);
            self.runtime.spawn(run(self.replica.clone(), host.clone(), to, receiver));
            sender
        });
        let _ = link.try_send(envelope);
    }

    /// Where to dial for this address of the configuration.
    pub fn address(&self, host: &str) -> String {
        self.elsewhere.get(host).map_or(host, String::as_str).to_owned()
    }
}

/// Keeps one link up while there is something to send.
async fn run(replica: Weak<Replica>, host: Arc<str>, to: String, mut messages: mpsc::Receiver<Envelope>) {
    let mut waiting = Vec::new();
    // One after another: a message that waits is the reason to connect.
    while messages.recv_many(&mut waiting, 64).await > 0 {
        let ended = serve(&replica, &to, &mut waiting, &mut messages).await;
        waiting.clear();
        while messages.try_recv().is_ok() {}
        let Some(replica) = replica.upgrade() else { return };
        if let Err(error) = ended {
            tracing::debug!(host = &*host, %error, "a link to a member ended");
            // Silence may be the network's; a connection that is refused or reset tells that nobody is there.
            if error.kind() != io::ErrorKind::TimedOut {
                replica.connection_lost(&host);
            }
        }
        drop(replica);
        tokio::time::sleep(PAUSE).await;
    }
}

async fn serve(
    replica: &Weak<Replica>,
    to: &str,
    waiting: &mut Vec<Envelope>,
    messages: &mut mpsc::Receiver<Envelope>,
) -> io::Result<()> {
    let connected = tokio::time::timeout(CONNECT_PATIENCE, TcpStream::connect(to)).await;
    let mut stream = connected.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    stream.set_nodelay(true)?;
    SockRef::from(&stream).set_tcp_user_timeout(Some(UNANSWERED))?;
    let Some(own) = replica.upgrade().map(|replica| replica.own_address()) else { return Ok(()) };
    let mut out = Vec::new();
    out.extend_from_slice(&MAGIC);
    put(&mut out, own.as_bytes());
    let (mut reader, mut writer) = stream.split();
    let mut nothing = [0; 16];
    loop {
        for envelope in waiting.drain(..) {
            put(&mut out, &envelope.encode());
            if out.len() >= WRITE_BYTES {
                writer.write_all(&out).await?;
                out.clear();
            }
        }
        writer.write_all(&out).await?;
        out.clear();
        tokio::select! {
            n = messages.recv_many(waiting, 256) => if n == 0 { return Ok(()) },
            // The other side never sends: what comes is the end.
            read = reader.read(&mut nothing) => {
                return Err(read.err().unwrap_or(io::ErrorKind::ConnectionReset.into()));
            }
        }
    }
}

fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

/// Receives on a link that another member has dialled, until it ends.
pub async fn receive(mut stream: TcpStream, replica: Arc<Replica>) -> io::Result<()> {
    let mut buffer = BytesMut::with_capacity(64 << 10);
    let mut magic = [0; MAGIC.len()];
    stream.read_exact(&mut magic).await?;
    let mut from: Option<Arc<str>> = None;
    let mut batch = Vec::new();
    loop {
        while let Some(frame) = take(&mut buffer)? {
            match &from {
                None => {
                    let host = std::str::from_utf8(&frame).map_err(|_| bad("an address is not UTF-8"))?;
                    from = Some(Arc::from(host));
                }
                Some(_) => batch.push(Envelope::decode(&frame).map_err(|error| bad(&error.to_string()))?),
            }
        }
        if let Some(from) = from.as_ref().filter(|_| !batch.is_empty()) {
            replica.receive(from, batch.drain(..));
        }
        if stream.read_buf(&mut buffer).await? == 0 {
            return Ok(());
        }
    }
}

fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// The next whole frame of the buffer.
fn take(buffer: &mut BytesMut) -> io::Result<Option<Bytes>> {
    let Some(length) = buffer.first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_le_bytes(*length) as usize;
    if length > MESSAGE_BYTES_MAX {
        return Err(bad("a message is too long"));
    }
    if buffer.len() < 4 + length {
        // What is allocated follows what has arrived.
        buffer.reserve((4 + length - buffer.len()).min(buffer.len().max(64 << 10)));
        return Ok(None);
    }
    buffer.advance(4);
    Ok(Some(buffer.split_to(length).freeze()))
}
