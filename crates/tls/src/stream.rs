//! A socket with TLS on it, in whichever hand the socket is.

use std::future::poll_fn;
use std::io::{self, IoSlice, Read, Write};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::{Connection, ProtocolVersion};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::blocking::broken;
use crate::server::Tls;

/// How long the handshake may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// The first byte of a client that speaks TLS; read as the first of a message's length it would be one of 22 bytes and a multiple of
/// 256, whose next bytes no client sends.
const HANDSHAKE: u8 = 22;

/// Whether a client that has just connected begins with TLS; waits for its first bytes.
pub async fn begins(stream: &TcpStream) -> bool {
    let mut first = [0; 3];
    let mut begun: Option<Instant> = None;
    loop {
        let read = stream.peek(&mut first).await;
        if begun.is_some_and(|begun| begun.elapsed() > PATIENCE) {
            return false;
        }
        match read {
            // A record of a handshake, and the major version of all that there are.
            Ok(3) => return first[0] == HANDSHAKE && first[1] == 3 && first[2] <= 4,
            Ok(n) if n > 0 && first[0] == HANDSHAKE => {
                begun.get_or_insert_with(Instant::now);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            _ => return false,
        }
    }
}

/// What TLS is spoken on.
pub trait Inner: AsyncRead + AsyncWrite + Unpin {
    /// Whether a thread has it: reading and writing block.
    fn is_direct(&self) -> bool {
        false
    }
}

impl Inner for TcpStream {}

/// A socket with TLS on it.
pub struct TlsStream<S> {
    inner: S,
    connection: Connection,
    /// What was looked at before it is read, and how much of it there is.
    ahead: [u8; 4],
    ahead_bytes: usize,
    /// Bytes of a write that are encrypted, and of which not all have gone; who writes comes again with them.
    accepted: usize,
}

/// The socket as rustls wants it: what cannot be done now is `WouldBlock`.
struct Io<'s, 'c, S> {
    inner: &'s mut S,
    cx: &'s mut Context<'c>,
}

fn now<T>(polled: Poll<io::Result<T>>) -> io::Result<T> {
    match polled {
        Poll::Ready(result) => result,
        Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
    }
}

impl<S: Inner> Read for Io<'_, '_, S> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut buffer = ReadBuf::new(into);
        now(Pin::new(&mut *self.inner).poll_read(self.cx, &mut buffer))?;
        Ok(buffer.filled().len())
    }
}

impl<S: Inner> Write for Io<'_, '_, S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        now(Pin::new(&mut *self.inner).poll_write(self.cx, bytes))
    }

    /// Many records with one call of the system.
    fn write_vectored(&mut self, records: &[IoSlice<'_>]) -> io::Result<usize> {
        now(Pin::new(&mut *self.inner).poll_write_vectored(self.cx, records))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn would_block(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

impl<S: Inner> TlsStream<S> {
    /// Takes a client's handshake.
    ///
    /// Errors: it fails, or takes too long.
    pub async fn accept(inner: S, tls: &Tls) -> io::Result<TlsStream<S>> {
        let mut stream = TlsStream::shaken(inner, Connection::Server(tls.connection()?), PATIENCE).await?;
        if let Err(error) = tls.check_resumed(&stream.connection, UnixTime::now()) {
            // Nothing is to be read as if it were taken; what ends here may not have heard of it.
            stream.connection.send_close_notify();
            let _ = poll_fn(|cx| Poll::Ready(stream.poll_drain(cx))).await;
            return Err(broken(error));
        }
        Ok(stream)
    }

    /// What is spoken on it.
    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Whether TLS 1.3 is spoken, and not 1.2: there is no other.
    pub fn is_newest(&self) -> bool {
        self.connection.protocol_version() == Some(ProtocolVersion::TLSv1_3)
    }

    /// Shakes hands.
    ///
    /// Errors: it fails, or takes too long.
    pub(crate) async fn shaken(
        inner: S,
        connection: Connection,
        patience: Duration,
    ) -> io::Result<TlsStream<S>> {
        let mut stream = TlsStream { inner, connection, accepted: 0, ahead: [0; 4], ahead_bytes: 0 };
        let handshake = poll_fn(|cx| stream.shake(cx));
        tokio::time::timeout(patience, handshake).await.map_err(io::Error::from)??;
        Ok(stream)
    }

    /// The certificates that the other side has shown.
    pub fn certificates(&self) -> Option<&[CertificateDer<'static>]> {
        self.connection.peer_certificates()
    }

    /// What it is spoken on.
    pub fn inner(&self) -> &S {
        &self.inner
    }

    /// The same.
    pub fn inner_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// The same on what `other` makes of the socket; `None`, if it makes nothing.
    pub fn on<T>(self, other: impl FnOnce(S) -> Option<T>) -> Option<TlsStream<T>> {
        let TlsStream { inner, connection, ahead, ahead_bytes, accepted } = self;
        Some(TlsStream { inner: other(inner)?, connection, ahead, ahead_bytes, accepted })
    }

    /// The socket, and what is on it.
    pub(crate) fn into_parts(self) -> (S, Connection) {
        assert!(self.ahead_bytes == 0, "{} bytes were looked at and not read", self.ahead_bytes);
        (self.inner, self.connection)
    }

    /// The first four bytes of what comes, which are still to be read; fewer at the end.
    ///
    /// Errors: the network's.
    pub async fn first(&mut self) -> io::Result<&[u8]> {
        let mut first = [0; 4];
        let mut have = 0;
        while have < first.len() {
            match self.read(&mut first[have..]).await? {
                0 => break,
                read => have += read,
            }
        }
        (self.ahead, self.ahead_bytes) = (first, have);
        Ok(&self.ahead[..have])
    }

    fn shake(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if self.poll_drain(cx)?.is_pending() {
                return Poll::Pending;
            }
            if !self.connection.is_handshaking() {
                return Poll::Ready(Ok(()));
            }
            match self.receive(cx) {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                Ok(_) => {}
                Err(error) if would_block(&error) => return Poll::Pending,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// Reads records and takes them in; 0 at the end.
    fn receive(&mut self, cx: &mut Context<'_>) -> io::Result<usize> {
        let read = self.connection.read_tls(&mut Io { inner: &mut self.inner, cx })?;
        if let Err(error) = self.connection.process_new_packets() {
            // The other side is told why, if that can be done at once.
            let _ = self.connection.write_tls(&mut Io { inner: &mut self.inner, cx });
            return Err(broken(error));
        }
        Ok(read)
    }

    /// Writes what is encrypted.
    fn poll_drain(&mut self, cx: &mut Context<'_>) -> io::Result<Poll<()>> {
        while self.connection.wants_write() {
            match self.connection.write_tls(&mut Io { inner: &mut self.inner, cx }) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if would_block(&error) && !self.inner.is_direct() => return Ok(Poll::Pending),
                Err(error) => return Err(error),
            }
        }
        Ok(Poll::Ready(()))
    }
}

impl<S: Inner> AsyncRead for TlsStream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.ahead_bytes > 0 {
            let now = this.ahead_bytes.min(buffer.remaining());
            buffer.put_slice(&this.ahead[..now]);
            this.ahead.copy_within(now.., 0);
            this.ahead_bytes -= now;
            return Poll::Ready(Ok(()));
        }
        loop {
            match this.connection.reader().read(buffer.initialize_unfilled()) {
                Ok(n) => {
                    buffer.advance(n);
                    return Poll::Ready(Ok(()));
                }
                // Closed without a word: so do many.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Poll::Ready(Ok(())),
                Err(error) if would_block(&error) => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
            match this.receive(cx) {
                Ok(_) => {}
                Err(error) if would_block(&error) && !this.inner.is_direct() => return Poll::Pending,
                Err(error) => return Poll::Ready(Err(error)),
            }
            // Answers of the protocol itself go with what is written next, if not at once.
            if this.accepted == 0
                && let Err(error) = this.poll_drain(cx)
                && !would_block(&error)
            {
                return Poll::Ready(Err(error));
            }
        }
    }
}

impl<S: Inner> AsyncWrite for TlsStream<S> {
    /// Gives a number when so many bytes have gone, not before: nobody would write the rest.
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.accepted == 0 {
            this.accepted = this.connection.writer().write(bytes)?;
        }
        match this.poll_drain(cx) {
            Ok(Poll::Ready(())) => Poll::Ready(Ok(std::mem::take(&mut this.accepted))),
            Ok(Poll::Pending) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_drain(cx)?.map(Ok)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.connection.send_close_notify();
        let _ = this.poll_drain(cx);
        Pin::new(&mut this.inner).poll_shutdown(cx)
    }
}
