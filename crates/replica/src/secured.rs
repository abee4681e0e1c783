//! Connections whose ends have proved to each other that they are of the deployment: that they have its key ([`sheaf_auth::link`]), or by
//! certificates, with TLS. Without either they are what they were.
//!
//! Who dials has proved itself, and had the other side prove itself, before it says anything; who is dialled reads nothing but the
//! word by which a connection is known and the proof. From there on every byte is in a record that carries its number and its code.

use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use sheaf_auth::Keys;
use sheaf_auth::link::seal::{Opener, Sealer};
use sheaf_auth::link::{Accepting, Dialling, MARK, OPENING_BYTES, PROOF_BYTES, Session, VERDICT_BYTES};
use sheaf_client::Membership;
use sheaf_front::front::Front;
use sheaf_front::strangers::members::Members;
use sheaf_tls::{Blocking, CertificateDer, TlsClient, Wire};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::protocol::GREETING_BYTES_MAX;

/// Room for what is read of records at once.
const READ_BYTES: usize = 64 << 10;

/// Why a connection is not believed.
fn refused(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

fn forged() -> io::Error {
    refused("what came was not sent like this by who has proved itself")
}

/// How a member proves that it is one, where it dials.
#[derive(Clone, Copy)]
pub enum Way<'k> {
    /// It does not.
    Nothing,
    /// By the key.
    Keys(&'k Keys),
    /// By its certificate.
    Certificate(&'k Membership),
}

const MANY: &str = "many proofs from there were wrong";
/// The same of one whose certificate says who it is.
fn no_member(named: Option<String>) -> io::Error {
    let why = match named {
        Some(subject) => format!("{NO_MEMBER}: {subject}"),
        None => NO_MEMBER.to_owned(),
    };
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

const NO_MEMBER: &str = "its certificate is not one of a member";

impl<'k> Way<'k> {
    /// The key to prove; asks the other side for its certificate, where that is what counts.
    ///
    /// Errors: it has none of a member.
    fn key(self, shown: Option<&[CertificateDer<'_>]>) -> io::Result<Option<&'k Keys>> {
        match self {
            Way::Nothing => Ok(None),
            Way::Keys(keys) => Ok(Some(keys)),
            Way::Certificate(of) if of.tls().is_some_and(|tls| tls.is_member(shown)) => Ok(None),
            Way::Certificate(of) => Err(no_member(of.tls().and_then(|tls| tls.subject_of(shown)))),
        }
    }
}

/// Says the word by which a new connection is known, and proves the key.
///
/// Errors: the network's; `PermissionDenied`, if the other side does not have it.
pub async fn dial(stream: &mut Wire, way: Way<'_>, word: [u8; 4]) -> io::Result<Option<Session>> {
    let keys = way.key(stream.certificates())?;
    stream.write_all(&word).await?;
    let Some(keys) = keys else { return Ok(None) };
    let (dialling, opening) = Dialling::new(keys, word, rand::random());
    stream.write_all(&opening).await?;
    let mut answer = [0; OPENING_BYTES];
    stream.read_exact(&mut answer).await?;
    let (proving, proofs) = dialling.prove(&answer).map_err(refused)?;
    stream.write_all(&proofs).await?;
    let mut verdict = [0; VERDICT_BYTES];
    stream.read_exact(&mut verdict).await.map_err(refused_proof)?;
    proving.finish(&verdict).map(Some).map_err(refused)
}

/// Who has another key ends the connection behind the proof, without a word: to whoever has dialled that must not look as if nobody
/// listened.
fn refused_proof(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
            refused("it does not take the proof of the key: it has another key, or is ending")
        }
        _ => error,
    }
}

/// The same on a thread.
pub fn dial_blocking(mut stream: Blocking, way: Way<'_>, word: [u8; 4]) -> io::Result<Secured> {
    let keys = way.key(stream.certificates())?;
    stream.write_all(&word)?;
    let Some(keys) = keys else { return Ok(Secured::new(stream, None, BytesMut::new(), BytesMut::new())) };
    let (dialling, opening) = Dialling::new(keys, word, rand::random());
    stream.write_all(&opening)?;
    let mut answer = [0; OPENING_BYTES];
    stream.read_exact(&mut answer)?;
    let (proving, proofs) = dialling.prove(&answer).map_err(refused)?;
    stream.write_all(&proofs)?;
    let mut verdict = [0; VERDICT_BYTES];
    stream.read_exact(&mut verdict).map_err(refused_proof)?;
    let session = proving.finish(&verdict).map_err(refused)?;
    Ok(Secured::new(stream, Some(session), BytesMut::new(), BytesMut::new()))
}

/// By what a member knows the others of its deployment.
#[derive(Clone, Default)]
pub struct Secrets {
    keys: Option<Keys>,
    /// Whether others may prove nothing yet.
    optional: bool,
    membership: Membership,
    /// From where they were proved, rightly or wrongly.
    proofs: Arc<Members>,
}

impl Secrets {
    /// Of this server.
    pub fn of(front: &Front) -> Secrets {
        Secrets {
            keys: front.access.keys().cloned(),
            optional: front.options.transition_to_auth,
            membership: front.membership.clone(),
            proofs: front.strangers.members.clone(),
        }
    }

    /// Whoever was dialled there has proved that it is a member.
    pub fn is_a_members(&self, address: IpAddr) {
        self.proofs.was_right(address);
    }

    /// The ways to dial, in the order in which to try: as the deployment does, and without a proof if others may have none.
    pub fn to_dial_with(&self) -> impl Iterator<Item = Way<'_>> {
        let first = match &self.keys {
            _ if self.sends_certificate() => Way::Certificate(&self.membership),
            Some(keys) => Way::Keys(keys),
            None => Way::Nothing,
        };
        let none = (self.optional && !matches!(first, Way::Nothing)).then_some(Way::Nothing);
        std::iter::once(first).chain(none)
    }

    /// By what others are dialled; `None` for without TLS.
    pub fn tls(&self) -> Option<&TlsClient> {
        self.membership.to_dial()
    }

    fn sends_certificate(&self) -> bool {
        self.membership.mode().sends_certificate() && self.tls().is_some()
    }

    /// Whether anything is asked of who dials.
    fn ask(&self) -> bool {
        self.keys.is_some() || self.membership.mode().takes_certificates()
    }

    /// Whom a certificate names that somebody has signed.
    fn subject_of(&self, shown: Option<&[CertificateDer<'_>]>) -> Option<String> {
        self.membership.tls()?.subject_of(shown)
    }

    /// Whether who dials is known by what TLS has shown of it.
    fn know(&self, shown: Option<&[CertificateDer<'_>]>) -> bool {
        self.membership.mode().takes_certificates()
            && self.membership.tls().is_some_and(|tls| tls.is_member(shown))
    }
}

/// What has come of who dials.
#[derive(Default)]
pub struct Accepted {
    /// The two directions, if they are sealed.
    session: Option<Session>,
    /// What was read behind the word that is no proof.
    read: BytesMut,
}

/// Proofs by keys that this member does not have, or that it has not looked at.
#[derive(Debug)]
pub struct WrongProofs {
    why: &'static str,
    /// How many connections with such proofs have come from the address since it was told last; `None` if it is not to be told now.
    pub told: Option<u64>,
}

impl std::error::Error for WrongProofs {}

impl std::fmt::Display for WrongProofs {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(self.why)
    }
}

/// Ends a connection with such proofs, some time after they came, so that it is not tried often.
async fn refuse_proofs(
    secrets: &Secrets,
    from: IpAddr,
    proofs: usize,
    why: &'static str,
    waited: Duration,
) -> io::Error {
    let wrong = secrets.proofs.were_wrong(from, proofs);
    tokio::time::sleep(wrong.held.saturating_sub(waited)).await;
    io::Error::new(io::ErrorKind::PermissionDenied, WrongProofs { why, told: wrong.told })
}

/// Has the other side prove itself on a connection that has begun with `word`.
///
/// Errors: the network's; `PermissionDenied`, if it does not have the key, with [`WrongProofs`] if it has given some.
pub async fn accept(stream: &mut Wire, secrets: &Secrets, word: [u8; 4]) -> io::Result<Accepted> {
    if !secrets.ask() {
        return Ok(Accepted::default());
    }
    let mut opening = [0; OPENING_BYTES];
    let (mark, nonce) = opening.split_at_mut(MARK.len());
    stream.read_exact(mark).await?;
    if mark != MARK {
        if secrets.optional || secrets.know(stream.certificates()) {
            return Ok(Accepted { session: None, read: BytesMut::from(&*mark) });
        }
        return Err(match secrets.membership.mode().takes_keys() {
            true => refused("it does not prove that it has the key"),
            false => no_member(secrets.subject_of(stream.certificates())),
        });
    }
    let keys = secrets.keys.as_ref().filter(|_| secrets.membership.mode().takes_keys());
    let keys = keys.ok_or_else(|| refused("it proves a key, and certificates are asked for"))?;
    stream.read_exact(nonce).await?;
    let (accepting, answer) = Accepting::new(keys, word, rand::random(), &opening).map_err(refused)?;
    stream.write_all(&answer).await?;
    let mut proofs = Vec::with_capacity(PROOF_BYTES);
    let number = stream.read_u8().await?;
    proofs.resize(Accepting::proof_bytes(number).map_err(refused)?, 0);
    stream.read_exact(&mut proofs).await?;
    let (from, number) = (stream.socket().peer_addr()?.ip(), usize::from(number));
    let Some(wait) = secrets.proofs.takes_turn(from) else {
        return Err(refuse_proofs(secrets, from, number, MANY, Duration::ZERO).await);
    };
    tokio::time::sleep(wait).await;
    let (session, verdict) = match accepting.finish(&proofs) {
        Ok(proved) => proved,
        Err(why) => return Err(refuse_proofs(secrets, from, number, why, wait).await),
    };
    secrets.proofs.was_right(from);
    stream.write_all(&verdict).await?;
    Ok(Accepted { session: Some(session), read: BytesMut::new() })
}

impl Accepted {
    /// The receiving end, and what seals what is sent.
    pub fn on(self, stream: Wire) -> (Incoming, Option<Sealer>) {
        let (sealer, opener) = self.session.map(|session| (session.seal, session.open)).unzip();
        (Incoming { buffer: self.read, ..Incoming::new(stream, opener) }, sealer)
    }
}

/// Writes these bytes, sealed if the connection is.
pub async fn send(stream: &mut Wire, sealer: Option<&mut Sealer>, bytes: &[u8]) -> io::Result<()> {
    let Some(sealer) = sealer else { return stream.write_all(bytes).await };
    let mut sealed = Vec::new();
    sealer.seal(bytes, &mut sealed);
    stream.write_all(&sealed).await
}

/// The receiving end.
pub struct Incoming {
    stream: Wire,
    opener: Option<Opener>,
    /// What has come and was not opened yet.
    raw: BytesMut,
    /// What was sent, and not taken yet.
    pub buffer: BytesMut,
}

impl Incoming {
    /// Of this connection.
    pub fn new(stream: Wire, opener: Option<Opener>) -> Incoming {
        Incoming { stream, opener, raw: BytesMut::new(), buffer: BytesMut::new() }
    }

    /// The connection, to send on.
    pub fn stream(&mut self) -> &mut Wire {
        &mut self.stream
    }

    /// Memory that it holds.
    pub fn capacity(&self) -> usize {
        self.buffer.capacity() + self.raw.capacity()
    }

    /// Reads what there is into the buffer, waiting for some; 0 at the end.
    pub async fn fill(&mut self) -> io::Result<usize> {
        let Some(opener) = &mut self.opener else { return self.stream.read_buf(&mut self.buffer).await };
        let before = self.buffer.len();
        loop {
            open_records(opener, &mut self.raw, &mut self.buffer)?;
            if self.buffer.len() > before {
                return Ok(self.buffer.len() - before);
            }
            self.raw.reserve(READ_BYTES);
            if self.stream.read_buf(&mut self.raw).await? == 0 {
                return if self.raw.is_empty() { Ok(0) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            }
        }
    }

    /// Reads a frame that cannot be long.
    pub async fn short(&mut self) -> io::Result<Vec<u8>> {
        let length = u32::from_le_bytes(self.first().await?);
        if self.opener.is_none() && length.to_le_bytes() == MARK {
            return Err(refused("it has a key, and this member has none"));
        }
        let length = length as usize;
        if length > GREETING_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a greeting is too long"));
        }
        self.have(4 + length).await?;
        self.buffer.advance(4);
        Ok(self.buffer.split_to(length).to_vec())
    }

    /// The first four bytes of what comes, which stay there.
    pub async fn first(&mut self) -> io::Result<[u8; 4]> {
        self.have(4).await?;
        Ok(std::array::from_fn(|at| self.buffer[at]))
    }

    /// Waits until so many bytes are there.
    pub async fn have(&mut self, bytes: usize) -> io::Result<()> {
        while self.buffer.len() < bytes {
            self.buffer.reserve(bytes - self.buffer.len());
            if self.fill().await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    }

    /// The same connection for a thread.
    pub fn into_blocking(self, sealer: Option<Sealer>) -> io::Result<Secured> {
        let stream = self.stream.into_blocking()?;
        let session = sealer.zip(self.opener).map(|(seal, open)| Session { seal, open });
        Ok(Secured::new(stream, session, self.raw, self.buffer))
    }
}

/// Moves what records bring from one buffer to the other.
fn open_records(opener: &mut Opener, raw: &mut BytesMut, into: &mut BytesMut) -> io::Result<()> {
    while let Some((bytes, length)) = opener.open(raw).map_err(|_| forged())? {
        into.reserve(bytes.len());
        into.extend_from_slice(bytes);
        raw.advance(length);
    }
    Ok(())
}

/// A connection of a thread.
pub struct Secured {
    stream: Blocking,
    session: Option<Session>,
    raw: BytesMut,
    buffer: BytesMut,
}

impl Secured {
    fn new(stream: Blocking, session: Option<Session>, raw: BytesMut, buffer: BytesMut) -> Secured {
        Secured { stream, session, raw, buffer }
    }

    /// One that nothing is proved on.
    #[cfg(test)]
    pub fn plain(stream: std::net::TcpStream) -> Secured {
        Secured::new(Blocking::plain(stream), None, BytesMut::new(), BytesMut::new())
    }

    /// The socket, for its times.
    pub fn socket(&self) -> &std::net::TcpStream {
        self.stream.socket()
    }
}

impl Read for Secured {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.buffer.is_empty() {
            let Some(session) = &mut self.session else { return self.stream.read(into) };
            open_records(&mut session.open, &mut self.raw, &mut self.buffer)?;
            if !self.buffer.is_empty() {
                break;
            }
            let filled = self.raw.len();
            self.raw.resize(filled + READ_BYTES, 0);
            let read = self.stream.read(&mut self.raw[filled..]);
            self.raw.truncate(filled + *read.as_ref().unwrap_or(&0));
            if read? == 0 {
                return if self.raw.is_empty() { Ok(0) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            }
        }
        let count = into.len().min(self.buffer.len());
        into[..count].copy_from_slice(&self.buffer[..count]);
        self.buffer.advance(count);
        Ok(count)
    }
}

impl Write for Secured {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(session) = &mut self.session else { return self.stream.write(bytes) };
        let mut sealed = Vec::with_capacity(bytes.len() + 256);
        session.seal.seal(bytes, &mut sealed);
        self.stream.write_all(&sealed)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    const WORD: [u8; 4] = *b"ShMb";

    fn keys(text: &str) -> Keys {
        Keys::parse(text, "f").unwrap()
    }

    async fn pair() -> (Wire, Wire) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (Wire::Plain(one), Wire::Plain(listener.accept().await.unwrap().0))
    }

    async fn meet(one: Option<Keys>, other: Secrets) -> (io::Result<()>, io::Result<Vec<u8>>) {
        let (mut dialling, mut accepting) = pair().await;
        let sent = async move {
            let mut session = dial(&mut dialling, one.as_ref().map_or(Way::Nothing, Way::Keys), WORD).await?;
            let mut greeting = Vec::new();
            crate::protocol::put(&mut greeting, b"who I am");
            send(&mut dialling, session.as_mut().map(|session| &mut session.seal), &greeting).await
        };
        let received = async move {
            let mut word = [0; 4];
            accepting.read_exact(&mut word).await?;
            accept(&mut accepting, &other, WORD).await?.on(accepting).0.short().await
        };
        tokio::join!(sent, received)
    }

    #[tokio::test]
    async fn both_have_the_key_or_nothing_is_read() {
        let one = || Some(keys("aaaaaa"));
        let with =
            |text: &str, optional: bool| Secrets { keys: Some(keys(text)), optional, ..Secrets::default() };
        assert_eq!(meet(None, Secrets::default()).await.1.unwrap(), b"who I am");
        assert_eq!(meet(one(), with("aaaaaa", false)).await.1.unwrap(), b"who I am");
        assert_eq!(meet(one(), with("aaaaaa", true)).await.1.unwrap(), b"who I am");
        assert_eq!(meet(None, with("aaaaaa", true)).await.1.unwrap(), b"who I am");
        let why = |(_, received): (io::Result<()>, io::Result<Vec<u8>>)| received.unwrap_err().to_string();
        assert_eq!(why(meet(one(), with("bbbbbb", false)).await), "it has another key");
        assert_eq!(why(meet(one(), with("bbbbbb", true)).await), "it has another key");
        assert_eq!(why(meet(None, with("aaaaaa", false)).await), "it does not prove that it has the key");
        assert_eq!(why(meet(one(), Secrets::default()).await), "it has a key, and this member has none");
        assert_eq!(with("aaaaaa", true).to_dial_with().count(), 2);
    }

    #[tokio::test]
    async fn guessed_keys_are_counted_and_keep_no_member_out() {
        let secrets = Secrets { keys: Some(keys("aaaaaa")), ..Secrets::default() };
        let from = IpAddr::from([127, 0, 0, 1]);
        let dialled_with = async |key: &str| meet(Some(keys(key)), secrets.clone()).await.1;
        let mut told = Vec::new();
        for _ in 0..2 {
            let error = dialled_with("- bbbbbb\n- cccccc").await.unwrap_err();
            told.push(error.get_ref().unwrap().downcast_ref::<WrongProofs>().unwrap().told);
        }
        assert_eq!(told, [Some(1), None]);
        // The four were counted; twenty more, and the right key is not looked at any more...
        secrets.proofs.were_wrong(from, 20);
        while secrets.proofs.takes_turn(from).is_some() {}
        assert_eq!(dialled_with("aaaaaa").await.unwrap_err().to_string(), MANY);
        // ...but from where a member was.
        secrets.is_a_members(from);
        assert_eq!(dialled_with("aaaaaa").await.unwrap(), b"who I am");
        assert_eq!(dialled_with("bbbbbb").await.unwrap_err().to_string(), "it has another key");
    }

    #[tokio::test]
    async fn what_is_altered_on_the_way_is_not_read() {
        let (mut dialling, mut accepting) = pair().await;
        let key = keys("aaaaaa");
        let dialled = dial(&mut dialling, Way::Keys(&key), WORD);
        let accepted = async {
            let mut word = [0; 4];
            accepting.read_exact(&mut word).await?;
            accept(&mut accepting, &Secrets { keys: Some(key.clone()), ..Secrets::default() }, WORD).await
        };
        let (dialled, accepted) = tokio::join!(dialled, accepted);
        let mut session = dialled.unwrap().unwrap();
        let mut sealed = Vec::new();
        session.seal.seal(b"one", &mut sealed);
        // The same record twice.
        dialling.write_all(&[sealed.clone(), sealed].concat()).await.unwrap();
        let (mut incoming, _) = accepted.unwrap().on(accepting);
        let read = incoming.fill().await;
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }
}
