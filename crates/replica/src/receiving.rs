//! Links that other members have dialled.
//!
//! Nothing that comes on one reaches the core before the member that it claims to be from has said, asked at the address
//! under which this member knows it, that it has opened the link ([`crate::confirm`]). What is not believed is passed over
//! without being kept. What is believed is read as a whole first, the entries for the log with it.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes, BytesMut};
use sheaf_bson::DocBuf;
use sheaf_front::audit::noted;
use sheaf_front::front::Guest;
use sheaf_front::log::ids;
use sheaf_repl::Envelope;
use sheaf_tls::Wire;
use tokio::io::AsyncReadExt;

use crate::Replica;
use crate::confirm::{self, Answer, Side};
use crate::memory::Share;
use crate::protocol::{Hello, MAGIC, MESSAGE_BYTES_MAX, Nonce};
use crate::secured::{self, Incoming, Secrets, WrongProofs};
use crate::strangers::Stranger;

/// How long the other side may take to say who it is.
const GREETING_PATIENCE: Duration = Duration::from_secs(10);

/// A member that did not answer is asked again after this.
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// Who was found out is not let go at once, so that it cannot try often.
const FORGED_PAUSE: Duration = Duration::from_secs(1);

/// Entries of more bytes are checked on another thread.
const CHECK_HERE_BYTES: usize = 64 << 10;

/// Room for what is read at once, made when less than the other is left. Entries stay in the memory that they were read to: were
/// it new for each read, each small one would keep all of it.
const READ_BYTES: usize = 64 << 10;
const READ_BYTES_MIN: usize = 4 << 10;

/// While a message of a member comes, the core is told so often that more of it has.
const STILL_SENDS: Duration = Duration::from_millis(100);

/// Bytes of a message that tell whose it is.
const HEAD: usize = 9;

/// How long one that nobody has confirmed may send nothing. Members send pings.
const STRANGERS_PATIENCE: Duration = Duration::from_secs(60);

/// The most that a message of one may have who is not in the configuration: nobody takes entries from it.
const STRANGERS_BYTES_MAX: usize = 1 << 20;

/// Serves a connection that begins with [`MAGIC`], until it ends, or until it has to make room for others before anybody has
/// confirmed that it is a member's.
pub async fn serve(stream: Wire, replica: Arc<Replica>, guest: Guest) -> io::Result<()> {
    let stranger = replica.strangers.enter(guest);
    let told = stranger.told();
    tokio::select! {
        served = greet(stream, replica, stranger) => served,
        () = told.notified() => Err(bad("others have come, and nobody has confirmed this one")),
    }
}

async fn greet(mut stream: Wire, replica: Arc<Replica>, stranger: Stranger) -> io::Result<()> {
    let secrets = Secrets::of(&replica.front);
    let remote = stream.socket().peer_addr().map(|address| address.to_string()).unwrap_or_default();
    let greeting = async {
        let mut magic = [0; MAGIC.len()];
        stream.read_exact(&mut magic).await?;
        let (mut incoming, sealer) = secured::accept(&mut stream, &secrets, MAGIC).await?.on(stream);
        Ok((incoming.short().await?, incoming, sealer))
    };
    let (greeting, mut incoming, mut sealer) = tokio::time::timeout(GREETING_PATIENCE, greeting)
        .await?
        .map_err(|error: io::Error| not_believed(&replica, &remote, error))?;
    let own_set = replica.set_name().to_owned();
    match Hello::decode(&greeting) {
        Ok(Hello::Question { set, nonce, by }) => {
            let ok = set == own_set && replica.has_link(nonce, by);
            confirm::answer(incoming.stream(), sealer.as_mut(), &own_set, ok).await
        }
        Ok(Hello::Link { set, host, .. }) if set != own_set => {
            let why = format!("it belongs to the replica set {set}, not {own_set}");
            Err(refuse(&replica, &host, &why))
        }
        Ok(Hello::Link { host, nonce, .. }) => {
            Receiver::new(replica, host, nonce, stranger, incoming).run().await
        }
        Err(why) => Err(refuse(&replica, &remote, &why)),
    }
}

/// Names who has not proved that it is a member.
pub(super) fn not_believed(replica: &Replica, remote: &str, error: io::Error) -> io::Error {
    let wrong = error.get_ref().and_then(|why| why.downcast_ref::<WrongProofs>());
    match wrong {
        Some(wrong) => {
            if let Some(count) = wrong.told {
                let about = sheaf_bson::doc! { "host": remote, "why": &wrong.to_string(), "connections": count as i64 };
                warn(about);
                if let Ok(remote) = remote.parse() {
                    tokio::task::block_in_place(|| noted::refused_member(&replica.front, remote));
                }
            }
            error
        }
        None if error.kind() == io::ErrorKind::PermissionDenied => {
            refuse(replica, remote, &error.to_string())
        }
        None => error,
    }
}

/// Names a link of another member that is refused.
pub(super) fn refuse(replica: &Replica, host: &str, why: &str) -> io::Error {
    name(replica, Side::Other, host, why);
    bad(why)
}

/// Names a link of this member that cannot be.
pub(super) fn refuse_own(replica: &Replica, host: &str, why: &str) {
    name(replica, Side::Own, host, why);
}

fn name(replica: &Replica, by: Side, host: &str, why: &str) {
    if replica.confirmations.is_to_be_named(by) {
        name_own(host, why);
    }
}

/// The same of one that is not named often.
pub(super) fn name_own(host: &str, why: &str) {
    warn(sheaf_bson::doc! { "host": host, "why": why });
}

fn warn(attributes: DocBuf) {
    let text = "A link of a member is refused";
    sheaf_front::log::warning("REPL", ids::LINK_REFUSED, "listener", text, Some(attributes));
}

fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// What is thought of the messages of one sender.
enum Belief {
    /// The member at this address has sent them.
    Member(Arc<str>),
    /// The member at the claimed address has not sent them.
    Forged(String),
    /// The member at the claimed address does not say now.
    Unknown,
}

struct Receiver {
    replica: Arc<Replica>,
    /// The sender's address, as it says.
    host: Arc<str>,
    nonce: Nonce,
    /// Until a member has confirmed it.
    stranger: Option<Stranger>,
    /// Of which `_id` messages are believed, under which address, as of which change of the configuration.
    believed: Option<(u64, u64, Arc<str>)>,
    /// When the sender's member was last asked in vain.
    asked: Option<Instant>,
    /// When the core was last told that a message goes on.
    told: Instant,
    incoming: Incoming,
    /// What the buffer takes.
    share: Share,
    /// Bytes of a message that is passed over which have not come yet.
    skip: usize,
}

impl Receiver {
    fn new(
        replica: Arc<Replica>,
        host: Arc<str>,
        nonce: Nonce,
        stranger: Stranger,
        incoming: Incoming,
    ) -> Receiver {
        let (stranger, share) = (Some(stranger), replica.memory.share());
        let told = Instant::now();
        Receiver {
            replica,
            host,
            nonce,
            stranger,
            believed: None,
            asked: None,
            told,
            incoming,
            share,
            skip: 0,
        }
    }

    async fn run(mut self) -> io::Result<()> {
        loop {
            self.read_messages().await?;
            make_room(&mut self.incoming.buffer);
            self.share.set(self.incoming.capacity());
            let read = self.incoming.fill();
            let read = match &self.stranger {
                Some(_) => tokio::time::timeout(STRANGERS_PATIENCE, read).await?,
                None => read.await,
            };
            let count = read.map_err(|error| match error.kind() {
                io::ErrorKind::PermissionDenied => self.refuse(&error.to_string()),
                _ => error,
            })?;
            if count == 0 {
                return Ok(());
            }
        }
    }

    /// Hands over all whole messages of the buffer.
    async fn read_messages(&mut self) -> io::Result<()> {
        let mut batch = Vec::new();
        let mut host = self.host.clone();
        loop {
            self.skip_bytes();
            let Some((length, from)) = self.next_head()? else { break };
            let belief = match &self.believed {
                Some((id, at, host)) if *id == from && *at == self.replica.topology_version() => {
                    Belief::Member(host.clone())
                }
                _ => {
                    self.hand_over(&host, &mut batch);
                    self.find_out(from).await
                }
            };
            match belief {
                Belief::Member(_) if self.stranger.is_some() && length > STRANGERS_BYTES_MAX => {
                    self.skip = 4 + length;
                }
                Belief::Member(of) => {
                    if of != host {
                        self.hand_over(&host, &mut batch);
                        host = of;
                    }
                    let Some(frame) = self.take(length) else {
                        self.goes_on(from);
                        break;
                    };
                    let envelope =
                        Envelope::decode(&frame).map_err(|error| self.refuse(&error.to_string()))?;
                    self.replica.figures.received(&envelope, frame.len());
                    if envelope.entry_bytes() > CHECK_HERE_BYTES {
                        batch.push(self.check_elsewhere(envelope).await?);
                    } else {
                        check(&envelope).map_err(|why| self.refuse(&why))?;
                        batch.push(envelope);
                    }
                }
                Belief::Unknown => {
                    self.skip = 4 + length;
                }
                Belief::Forged(why) => {
                    let error = self.refuse(&why);
                    tokio::time::sleep(FORGED_PAUSE).await;
                    return Err(error);
                }
            }
        }
        self.hand_over(&host, &mut batch);
        Ok(())
    }

    fn hand_over(&self, host: &Arc<str>, batch: &mut Vec<Envelope>) {
        if !batch.is_empty() {
            self.replica.receive(host, batch.drain(..));
        }
    }

    /// More has come of a message that is not whole yet.
    fn goes_on(&mut self, from: u64) {
        if self.told.elapsed() >= STILL_SENDS {
            self.told = Instant::now();
            self.replica.with_unhurried(|core| core.still_sends(from));
        }
    }

    fn refuse(&self, why: &str) -> io::Error {
        refuse(&self.replica, &self.host, why)
    }

    fn skip_bytes(&mut self) {
        let now = self.skip.min(self.incoming.buffer.len());
        self.incoming.buffer.advance(now);
        self.skip -= now;
        assert!(
            self.skip == 0 || self.incoming.buffer.is_empty(),
            "{} bytes to skip, and some are read",
            self.skip
        );
    }

    /// Length and sender of the next message, if that much of it is there.
    fn next_head(&self) -> io::Result<Option<(usize, u64)>> {
        let Some(length) = self.incoming.buffer.first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        if !(HEAD..=MESSAGE_BYTES_MAX).contains(&length) {
            return Err(self.refuse(&format!("a message of {length} bytes")));
        }
        let Some(head) = self.incoming.buffer.get(4..4 + HEAD) else { return Ok(None) };
        match Envelope::sender(head) {
            Some(from) => Ok(Some((length, from))),
            None => Err(self.refuse(&format!("a message of another version: {}", head[0]))),
        }
    }

    /// The next message, if it is there as a whole.
    fn take(&mut self, length: usize) -> Option<Bytes> {
        if self.incoming.buffer.len() < 4 + length {
            // What is allocated follows what has arrived.
            self.incoming.buffer.reserve(
                (4 + length - self.incoming.buffer.len()).min(self.incoming.buffer.len().max(64 << 10)),
            );
            return None;
        }
        self.incoming.buffer.advance(4);
        Some(self.incoming.buffer.split_to(length).freeze())
    }

    /// Asks the member of this `_id` whether it has opened this link. One that is not in the configuration can only be asked
    /// at the address that it gives: a member without a configuration takes its first one from it, others tell it no more than
    /// that it is not in theirs.
    async fn find_out(&mut self, from: u64) -> Belief {
        if self.asked.is_some_and(|at| at.elapsed() < ASK_AGAIN) {
            return Belief::Unknown;
        }
        let topology = self.replica.topology_version();
        let known = self.replica.addresses_of(from);
        let stranger = known.is_empty();
        let hosts = if stranger { vec![self.host.clone()] } else { known };
        let mut denied = false;
        for host in &hosts {
            let address = self.replica.dialled(host);
            let confirmations = &self.replica.confirmations;
            let me = (self.replica.set_name(), self.replica.own_id());
            match confirmations.ask(me, (host, address.as_str()), self.nonce, stranger).await {
                Answer::Yes => {
                    // A stranger may become a member at any time, and is asked at its address in the configuration then.
                    self.believed = (!stranger).then(|| (from, topology, host.clone()));
                    if !stranger {
                        self.stranger = None;
                    }
                    self.asked = None;
                    return Belief::Member(host.clone());
                }
                Answer::No => denied = true,
                Answer::None => {}
            }
        }
        self.asked = Some(Instant::now());
        if denied {
            let who = if stranger {
                "the address it gives".to_owned()
            } else {
                format!("member {from} at {}", hosts[0])
            };
            return Belief::Forged(format!("{who} says that it has not opened this link"));
        }
        Belief::Unknown
    }

    /// Checks a message that takes its time.
    async fn check_elsewhere(&self, envelope: Envelope) -> io::Result<Envelope> {
        let checked = tokio::task::spawn_blocking(move || check(&envelope).map(|()| envelope)).await;
        checked.map_err(io::Error::other)?.map_err(|why| self.refuse(&why))
    }
}

/// Reads the entries that a message brings as those do who will apply them.
fn check(envelope: &Envelope) -> Result<(), String> {
    for (at, time, payload) in envelope.entries() {
        sheaf_storage::check_entry(at.term, time, payload).map_err(|why| {
            format!("entry {} of term {} cannot be one of the log: {why}", at.index, at.term)
        })?;
    }
    Ok(())
}

fn make_room(buffer: &mut BytesMut) {
    if buffer.capacity() - buffer.len() < READ_BYTES_MIN {
        buffer.reserve(READ_BYTES);
    }
}

#[cfg(test)]
mod tests {
    use bytes::BufMut;

    use super::*;

    /// What is kept of small messages keeps little more than their own bytes.
    #[test]
    fn small_messages_share_their_memory() {
        const MESSAGE: usize = 300;
        let mut buffer = BytesMut::new();
        let mut kept: Vec<Bytes> = Vec::new();
        let mut blocks = 0;
        for _ in 0..10_000 {
            make_room(&mut buffer);
            buffer.put_bytes(1, MESSAGE);
            let message = buffer.split_to(MESSAGE).freeze();
            let follows = |last: &Bytes| last.as_ptr() as usize + MESSAGE == message.as_ptr() as usize;
            blocks += usize::from(!kept.last().is_some_and(follows));
            kept.push(message);
        }
        assert!(blocks * READ_BYTES < 2 * 10_000 * MESSAGE, "{blocks} blocks");
    }
}
