//! Connections of threads: reading and writing block, as long as the socket's times say.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustls::Connection;
use rustls::pki_types::{CertificateDer, UnixTime};

use crate::client::TlsClient;

/// Of a long write so much is encrypted at once.
const PIECE: usize = 64 << 10;

/// A socket, with TLS on it or without.
pub struct Blocking {
    socket: TcpStream,
    tls: Option<Box<Connection>>,
    /// Bytes of a write that are encrypted, and of which not all have gone; who writes comes again with them.
    accepted: usize,
}

/// Why the other side is not believed, or does not speak TLS.
pub(crate) fn broken(error: rustls::Error) -> io::Error {
    let kind = match error {
        rustls::Error::InvalidCertificate(_) | rustls::Error::AlertReceived(_) => {
            io::ErrorKind::PermissionDenied
        }
        _ => io::ErrorKind::InvalidData,
    };
    match explained(&error) {
        Some(words) => io::Error::new(kind, format!("{error} ({words})")),
        None => io::Error::new(kind, error),
    }
}

/// What is to be done about it, where the error's own words are for who knows the protocol.
fn explained(error: &rustls::Error) -> Option<&'static str> {
    use rustls::{CertificateError, Error};
    let Error::InvalidCertificate(why) = error else {
        return match error {
            Error::PeerIncompatible(_) => {
                Some("the other side does not speak TLS 1.2 or 1.3 as it is asked to here")
            }
            Error::NoCertificatesPresented => Some("the other side has to show a certificate"),
            _ => None,
        };
    };
    match why {
        CertificateError::UnknownIssuer => Some("none of the authorities that are known here has signed it"),
        CertificateError::UnknownRevocationStatus => {
            Some("the file of revocations has no list of the authority that has signed it")
        }
        CertificateError::ExpiredRevocationList | CertificateError::ExpiredRevocationListContext { .. } => {
            Some("the list of revocations of its authority is out of date")
        }
        CertificateError::InvalidPurpose => Some("its extendedKeyUsage is for something else"),
        CertificateError::Other(other) if format!("{other:?}").contains("CaUsedAsEndEntity") => {
            Some("it is an authority's, and one that such an authority has signed is needed")
        }
        CertificateError::Other(other) if format!("{other:?}").contains("UnsupportedCertVersion") => Some(
            "it is of X.509 version 1, and version 3 is needed: openssl x509 -req makes one with -extfile",
        ),
        _ => None,
    }
}

impl Blocking {
    /// Without TLS.
    pub fn plain(socket: TcpStream) -> Blocking {
        Blocking { socket, tls: None, accepted: 0 }
    }

    /// A socket whose handshake is over.
    pub(crate) fn new(socket: TcpStream, tls: Option<Connection>) -> Blocking {
        Blocking { socket, tls: tls.map(Box::new), accepted: 0 }
    }

    /// Shakes hands on a connection to "host:port", within so much time. The socket's times are set anew afterwards.
    ///
    /// Errors: the network's, `PermissionDenied` for a certificate that is not taken, `TimedOut`.
    pub fn connect(
        socket: TcpStream,
        client: &TlsClient,
        address: &str,
        patience: Duration,
    ) -> io::Result<Blocking> {
        let (read, write) = (socket.read_timeout()?, socket.write_timeout()?);
        let mut connection = Connection::Client(client.connection(address)?);
        socket.set_write_timeout(Some(patience))?;
        let until = Instant::now() + patience;
        let mut blocking = Blocking { socket, tls: None, accepted: 0 };
        while connection.is_handshaking() {
            drain(&mut connection, &mut blocking.socket)?;
            if !connection.is_handshaking() {
                break;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            blocking.socket.set_read_timeout(Some(left))?;
            match receive(&mut connection, &mut blocking.socket) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
        }
        drain(&mut connection, &mut blocking.socket)?;
        client.check_resumed(&connection, address, UnixTime::now())?;
        blocking.socket.set_read_timeout(read)?;
        blocking.socket.set_write_timeout(write)?;
        blocking.tls = Some(Box::new(connection));
        Ok(blocking)
    }

    /// The socket, for its times.
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// The certificates that the other side has shown.
    pub fn certificates(&self) -> Option<&[CertificateDer<'static>]> {
        self.tls.as_ref()?.peer_certificates()
    }

    /// Whether a read would not wait: there is something to be read, or the connection is over.
    pub fn is_readable(&mut self) -> bool {
        let Some(tls) = &mut self.tls else { return has_something(&self.socket) };
        loop {
            match tls.process_new_packets() {
                Ok(state) if state.plaintext_bytes_to_read() == 0 && !state.peer_has_closed() => {}
                _ => return true,
            }
            // A part of a record, or a record that is for this side's TLS alone, is nothing to be read.
            if !has_something(&self.socket) {
                return false;
            }
            if !matches!(tls.read_tls(&mut self.socket), Ok(1..)) {
                return true;
            }
        }
    }
}

/// Whether a socket has bytes, an end or an error. One question to the system: this is asked before each request on a connection that was
/// used before.
fn has_something(socket: &TcpStream) -> bool {
    let mut asked = [PollFd::new(socket, PollFlags::IN)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    !matches!(poll(&mut asked, Some(&at_once)), Ok(0))
}

/// Writes what is encrypted.
fn drain(tls: &mut Connection, socket: &mut TcpStream) -> io::Result<()> {
    while tls.wants_write() {
        match tls.write_tls(socket) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads records and takes them in; 0 at the end.
fn receive(tls: &mut Connection, socket: &mut TcpStream) -> io::Result<usize> {
    let read = tls.read_tls(socket)?;
    if let Err(error) = tls.process_new_packets() {
        // The other side is told why, if that can be done.
        let _ = tls.write_tls(socket);
        return Err(broken(error));
    }
    Ok(read)
}

impl Read for Blocking {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else { return self.socket.read(into) };
        loop {
            match tls.reader().read(into) {
                Ok(read) => return Ok(read),
                // Closed without a word: so do many.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            receive(tls, &mut self.socket)?;
            drain(tls, &mut self.socket)?;
        }
    }
}

impl Write for Blocking {
    /// Gives a number when so many bytes have gone, not before. Who is told `WouldBlock` comes again with the same.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else { return self.socket.write(bytes) };
        if self.accepted == 0 {
            self.accepted = bytes.len().min(PIECE);
            tls.writer().write_all(&bytes[..self.accepted])?;
        }
        drain(tls, &mut self.socket)?;
        Ok(std::mem::take(&mut self.accepted))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn whether_a_read_would_wait_is_seen_without_one() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut other, _) = listener.accept().unwrap();
        let mut connection = Blocking::plain(socket);
        assert!(!connection.is_readable());
        other.write_all(b"ab").unwrap();
        connection.socket().peek(&mut [0]).unwrap();
        assert!(connection.is_readable());
        let mut bytes = [0; 2];
        connection.read_exact(&mut bytes).unwrap();
        assert!(&bytes == b"ab" && !connection.is_readable(), "what was there is read, once");
        drop(other);
        connection.socket().peek(&mut [0]).unwrap();
        assert!(connection.is_readable(), "an end is something");
    }
}
