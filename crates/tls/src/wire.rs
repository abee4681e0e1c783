//! A connection between servers in a reactor, with TLS on it or without.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::Connection;
use rustls::pki_types::{CertificateDer, UnixTime};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::blocking::Blocking;
use crate::client::TlsClient;
use crate::stream::TlsStream;

/// A socket, with TLS on it or without.
pub enum Wire {
    /// Without.
    Plain(TcpStream),
    /// With.
    Tls(Box<TlsStream<TcpStream>>),
}

impl Wire {
    /// Of a connection to "host:port" that was just made.
    ///
    /// Errors: the network's, `PermissionDenied` for a certificate that is not taken, `TimedOut`.
    pub async fn connect(
        socket: TcpStream,
        tls: Option<&TlsClient>,
        address: &str,
        patience: Duration,
    ) -> io::Result<Wire> {
        let Some(client) = tls else { return Ok(Wire::Plain(socket)) };
        let connection = Connection::Client(client.connection(address)?);
        let stream = TlsStream::shaken(socket, connection, patience).await?;
        client.check_resumed(stream.connection(), address, UnixTime::now())?;
        Ok(Wire::Tls(Box::new(stream)))
    }

    /// The socket.
    pub fn socket(&self) -> &TcpStream {
        match self {
            Wire::Plain(socket) => socket,
            Wire::Tls(tls) => tls.inner(),
        }
    }

    /// The certificates that the other side has shown.
    pub fn certificates(&self) -> Option<&[CertificateDer<'static>]> {
        match self {
            Wire::Plain(_) => None,
            Wire::Tls(tls) => tls.certificates(),
        }
    }

    /// The socket, and what is on it.
    pub fn into_parts(self) -> (TcpStream, Option<Connection>) {
        match self {
            Wire::Plain(socket) => (socket, None),
            Wire::Tls(tls) => {
                let (socket, connection) = tls.into_parts();
                (socket, Some(connection))
            }
        }
    }

    /// The same connection for a thread.
    ///
    /// Errors: the system's.
    pub fn into_blocking(self) -> io::Result<Blocking> {
        let (socket, connection) = self.into_parts();
        let socket = socket.into_std()?;
        socket.set_nonblocking(false)?;
        Ok(Blocking::new(socket, connection))
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Wire::Plain(socket) => Pin::new(socket).poll_read(cx, buffer),
            Wire::Tls(tls) => Pin::new(&mut **tls).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Wire::Plain(socket) => Pin::new(socket).poll_write(cx, bytes),
            Wire::Tls(tls) => Pin::new(&mut **tls).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Wire::Plain(socket) => Pin::new(socket).poll_flush(cx),
            Wire::Tls(tls) => Pin::new(&mut **tls).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Wire::Plain(socket) => Pin::new(socket).poll_shutdown(cx),
            Wire::Tls(tls) => Pin::new(&mut **tls).poll_shutdown(cx),
        }
    }
}
