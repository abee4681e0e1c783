//! A client's socket, in one of two hands: the reactor's while little comes, a thread's while the client is busy.
//!
//! An idle connection must cost next to nothing, so it waits in the reactor with ten thousand others. A client that sends one
//! command after another is better served by a thread that sleeps in `recv`: the kernel wakes it directly, with
//! no `epoll_wait` in between and no second worker that is woken to look for work. [`Socket::to_thread`] and
//! [`Socket::to_reactor`] move a socket from one to the other; the connection decides when.

use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream as DirectTcp;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream as DirectUnix;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

use crate::watch::Watched;

/// What a connection is served on.
pub trait Socket: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// Whether a thread has it: reading and writing block.
    fn is_direct(&self) -> bool {
        false
    }

    /// Takes the socket from the reactor, if it can be. A read then waits `silence` and fails with `WouldBlock`;
    /// a write waits `patience`.
    fn to_thread(&mut self, _silence: Duration, _patience: Duration) -> io::Result<()> {
        Ok(())
    }

    /// Where a thread has it: looks for bytes to read again and again, for so long at most, without sleeping.
    fn look_for_bytes(&self, _at_most: Duration) {}

    /// Takes the socket from its reactor, to give it to another one.
    fn leave_reactor(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Gives the socket back to the reactor of the runtime that this is called in.
    fn to_reactor(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Whether the other side has closed the connection, or at least will send nothing any more.
    fn is_gone(&self) -> bool {
        false
    }
}

/// A socket that others may look at while nobody reads from it.
pub struct Shared<S>(Arc<Mutex<S>>);

impl<S: Socket> Shared<S> {
    /// Takes a socket.
    pub fn new(socket: S) -> Self {
        Shared(Arc::new(Mutex::new(socket)))
    }

    /// For those who look.
    pub fn watched(&self) -> Weak<dyn Watched> {
        let socket: Arc<dyn Watched> = self.0.clone();
        Arc::downgrade(&socket)
    }
}

impl<S: Socket> Socket for Shared<S> {
    fn is_direct(&self) -> bool {
        self.0.lock().is_direct()
    }

    fn to_thread(&mut self, silence: Duration, patience: Duration) -> io::Result<()> {
        self.0.lock().to_thread(silence, patience)
    }

    fn look_for_bytes(&self, at_most: Duration) {
        self.0.lock().look_for_bytes(at_most);
    }

    fn leave_reactor(&mut self) -> io::Result<()> {
        self.0.lock().leave_reactor()
    }

    fn to_reactor(&mut self) -> io::Result<()> {
        self.0.lock().to_reactor()
    }

    fn is_gone(&self) -> bool {
        self.0.lock().is_gone()
    }
}

impl<S: Socket> AsyncRead for Shared<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.lock()).poll_read(cx, buffer)
    }
}

impl<S: Socket> AsyncWrite for Shared<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0.lock()).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.lock()).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.lock()).poll_shutdown(cx)
    }
}

/// A pipe within the process has no other hand to go to.
impl Socket for tokio::io::DuplexStream {}

/// A connected socket. Reading and writing one that a thread has block that thread.
pub enum ClientStream {
    /// TCP, in the reactor.
    Tcp(TcpStream),
    /// Unix domain, in the reactor.
    Unix(UnixStream),
    /// TCP, in a thread's hands.
    DirectTcp(DirectTcp),
    /// Unix domain, in a thread's hands.
    DirectUnix(DirectUnix),
    /// Between two hands, after an error in changing them: reads as closed.
    Lost,
}

impl Socket for ClientStream {
    fn is_direct(&self) -> bool {
        matches!(self, ClientStream::DirectTcp(_) | ClientStream::DirectUnix(_))
    }

    fn leave_reactor(&mut self) -> io::Result<()> {
        *self = match std::mem::replace(self, ClientStream::Lost) {
            ClientStream::Tcp(stream) => ClientStream::DirectTcp(stream.into_std()?),
            ClientStream::Unix(stream) => ClientStream::DirectUnix(stream.into_std()?),
            other => other,
        };
        Ok(())
    }

    fn to_thread(&mut self, silence: Duration, patience: Duration) -> io::Result<()> {
        self.leave_reactor()?;
        let socket = match self {
            ClientStream::DirectTcp(stream) => SockRef::from(&*stream),
            ClientStream::DirectUnix(stream) => SockRef::from(&*stream),
            _ => return Ok(()),
        };
        socket.set_nonblocking(false)?;
        socket.set_read_timeout(Some(silence))?;
        socket.set_write_timeout(Some(patience))
    }

    fn look_for_bytes(&self, at_most: Duration) {
        match self {
            ClientStream::DirectTcp(stream) => look_for_bytes(stream.as_fd(), at_most),
            ClientStream::DirectUnix(stream) => look_for_bytes(stream.as_fd(), at_most),
            _ => {}
        }
    }

    fn to_reactor(&mut self) -> io::Result<()> {
        *self = match std::mem::replace(self, ClientStream::Lost) {
            ClientStream::DirectTcp(stream) => {
                stream.set_nonblocking(true)?;
                ClientStream::Tcp(TcpStream::from_std(stream)?)
            }
            ClientStream::DirectUnix(stream) => {
                stream.set_nonblocking(true)?;
                ClientStream::Unix(UnixStream::from_std(stream)?)
            }
            other => other,
        };
        Ok(())
    }

    fn is_gone(&self) -> bool {
        match self {
            ClientStream::Tcp(stream) => is_gone(stream),
            ClientStream::Unix(stream) => is_gone(stream),
            ClientStream::DirectTcp(stream) => is_gone(stream),
            ClientStream::DirectUnix(stream) => is_gone(stream),
            ClientStream::Lost => true,
        }
    }
}

/// Until there is something to read, or the other side has gone. (It does not yield: whoever yields stands behind everybody
/// who wants the processor at all, for milliseconds.)
// tests/perf/counts knows it by its name, and leaves out what it executes.
#[inline(never)]
fn look_for_bytes(socket: BorrowedFd<'_>, at_most: Duration) {
    let began = Instant::now();
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut asked = [PollFd::new(&socket, PollFlags::IN)];
    while poll(&mut asked, Some(&at_once)).is_ok_and(|ready| ready == 0) && began.elapsed() < at_most {
        std::hint::spin_loop();
    }
}

/// Asks the system, without waiting and without taking anything that the other side has sent.
fn is_gone(socket: impl AsFd) -> bool {
    let ended = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    let mut asked = [PollFd::new(&socket, PollFlags::RDHUP)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut asked, Some(&at_once)).is_ok_and(|n| n > 0) && asked[0].revents().intersects(ended)
}

/// A blocking read into the unfilled part of the buffer, which the caller has initialised already.
fn read_direct(mut stream: impl Read, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
    loop {
        match stream.read(buffer.initialize_unfilled()) {
            Ok(n) => {
                buffer.advance(n);
                return Poll::Ready(Ok(()));
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Poll::Ready(Err(error)),
        }
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ClientStream::Tcp(stream) => Pin::new(stream).poll_read(cx, buffer),
            ClientStream::Unix(stream) => Pin::new(stream).poll_read(cx, buffer),
            ClientStream::DirectTcp(stream) => read_direct(stream, buffer),
            ClientStream::DirectUnix(stream) => read_direct(stream, buffer),
            ClientStream::Lost => Poll::Ready(Ok(())),
        }
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            ClientStream::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            ClientStream::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
            ClientStream::DirectTcp(stream) => Poll::Ready(stream.write(bytes)),
            ClientStream::DirectUnix(stream) => Poll::Ready(stream.write(bytes)),
            ClientStream::Lost => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            ClientStream::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, pieces),
            ClientStream::Unix(stream) => Pin::new(stream).poll_write_vectored(cx, pieces),
            ClientStream::DirectTcp(stream) => Poll::Ready(stream.write_vectored(pieces)),
            ClientStream::DirectUnix(stream) => Poll::Ready(stream.write_vectored(pieces)),
            ClientStream::Lost => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Sockets keep nothing back.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ClientStream::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            ClientStream::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
            ClientStream::DirectTcp(stream) => Poll::Ready(stream.shutdown(std::net::Shutdown::Write)),
            ClientStream::DirectUnix(stream) => Poll::Ready(stream.shutdown(std::net::Shutdown::Write)),
            ClientStream::Lost => Poll::Ready(Ok(())),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_socket_goes_to_a_thread_and_back() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let mut stream = ClientStream::Tcp(listener.accept().await.unwrap().0);
        let mut room = [0; 8];

        stream.to_thread(Duration::from_millis(5), Duration::from_secs(1)).unwrap();
        assert!(stream.is_direct());
        let silent = stream.read(&mut room).await.unwrap_err();
        assert_eq!(silent.kind(), io::ErrorKind::WouldBlock);
        peer.write_all(b"one").await.unwrap();
        assert_eq!(stream.read(&mut room).await.unwrap(), 3);

        stream.to_reactor().unwrap();
        assert!(!stream.is_direct());
        peer.write_all(b"four").await.unwrap();
        assert_eq!(stream.read(&mut room).await.unwrap(), 4);
        stream.write_all(b"back").await.unwrap();
        assert_eq!(peer.read(&mut room).await.unwrap(), 4);

        // Sent, not yet read, and closed: what was sent can still be read.
        assert!(!stream.is_gone());
        peer.write_all(b"last").await.unwrap();
        drop(peer);
        while !stream.is_gone() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(stream.read(&mut room).await.unwrap(), 4);
    }
}
