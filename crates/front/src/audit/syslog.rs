//! The system's log as the place for events: a socket of datagrams that another process reads.
//!
//! That one may be slow, hang, or be started anew at any time. So nothing blocks in the system: what is not taken is tried again, for as long
//! as the event may wait. What is only about to be waits for [`PATIENCE`](super::console::PATIENCE) and is refused then; so does a command before it begins that will
//! have events. What has been done waits until its event is taken, or the server is to end.

use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::console::Ending;
use crate::reactor::give_way;

/// How often it is tried.
const STEP: Duration = Duration::from_millis(20);

/// Facility `user`, severity `info`.
const PRIORITY: &str = "<14>";

/// The socket, and who waits for it.
pub struct Syslog {
    socket: UnixDatagram,
    /// Where the system's log listens.
    path: PathBuf,
    pub ending: Ending,
}

impl Syslog {
    /// Of the log that listens there.
    ///
    /// Errors: nobody does.
    pub fn new(path: &Path) -> io::Result<Self> {
        // Connected once only to see that somebody listens.
        UnixDatagram::unbound()?.connect(path)?;
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        Ok(Syslog { socket, path: path.to_owned(), ending: Ending::default() })
    }

    /// Sends an event, and waits so long for it to be taken; without a limit, until the server is to end.
    ///
    /// Errors: those of sending; `TimedOut`.
    pub fn append(&self, bytes: &[u8], patience: Option<Duration>) -> io::Result<()> {
        let header = format!("{PRIORITY}sheaf[{}]: ", std::process::id());
        let text = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        let datagram = [header.as_bytes(), text].concat();
        // By its name each time: the system's log may have been started anew.
        self.within(patience, || self.socket.send_to(&datagram, &self.path).map(drop))
    }

    /// Waits so long until something would be taken: what will have an event must not begin where that is known not to arrive.
    ///
    /// Errors: `TimedOut`, and those of the socket.
    pub fn takes_some(&self, patience: Duration) -> io::Result<()> {
        self.within(Some(patience), || {
            // Only of a socket that is connected the system tells whether the other side takes something.
            let socket = UnixDatagram::unbound()?;
            socket.connect(&self.path)?;
            let mut sockets = [PollFd::new(&socket, PollFlags::OUT)];
            match poll(&mut sockets, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))? {
                0 => Err(io::ErrorKind::WouldBlock.into()),
                _ => Ok(()),
            }
        })
    }

    fn within(&self, patience: Option<Duration>, attempt: impl Fn() -> io::Result<()>) -> io::Result<()> {
        match attempt() {
            Err(error) if may_pass(&error) => {}
            done => return done,
        }
        let began = Instant::now();
        let gave_up = |why: &str| Err(io::Error::new(io::ErrorKind::TimedOut, why));
        give_way(true, || {
            loop {
                std::thread::park_timeout(STEP);
                match attempt() {
                    Err(error) if !may_pass(&error) => return Err(error),
                    Ok(()) => return Ok(()),
                    Err(_) if self.ending.is_over() => {
                        return gave_up("the system's log does not take it, and the server is to end");
                    }
                    Err(error) if patience.is_some_and(|patience| began.elapsed() >= patience) => {
                        return gave_up(&format!("the system's log does not take it ({error})"));
                    }
                    Err(_) => {}
                }
            }
        })
    }
}

/// Whether it may go well a moment later: who reads is slow, or is being started anew.
fn may_pass(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, ConnectionReset, Interrupted, NotFound, WouldBlock};
    matches!(error.kind(), WouldBlock | Interrupted | ConnectionRefused | ConnectionReset | NotFound)
        || Errno::from_io_error(error) == Some(Errno::NOBUFS)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(1);

    fn timed_out(done: io::Result<()>) {
        assert_eq!(done.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    /// Sends until nothing is taken any more.
    fn fill(syslog: &Syslog) {
        let taken = (0..100_000).take_while(|_| syslog.append(b"event\n", Some(SHORT)).is_ok()).count();
        assert!((1..100_000).contains(&taken), "{taken}");
    }

    #[test]
    fn where_nobody_reads_what_is_not_done_is_refused_and_what_is_done_waits() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        assert!(Syslog::new(&path).is_err());
        let daemon = UnixDatagram::bind(&path).unwrap();
        let syslog = Syslog::new(&path).unwrap();
        syslog.takes_some(SHORT).unwrap();
        fill(&syslog);
        timed_out(syslog.takes_some(SHORT));
        timed_out(syslog.append(b"event\n", Some(SHORT)));
        let mut read = [0; 100];
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| syslog.append(b"done\n", None));
            // Whether it waits already or not, it arrives when there is room.
            while !read.ends_with(b"done") {
                let length = daemon.recv(&mut read).unwrap();
                read.copy_within(..length, 100 - length);
            }
            waiting.join().unwrap().unwrap();
        });
        syslog.takes_some(SHORT).unwrap();
    }

    #[test]
    fn one_that_is_started_anew_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        drop(UnixDatagram::bind(&path).unwrap());
        let daemon = |path: &Path| {
            std::fs::remove_file(path).unwrap();
            UnixDatagram::bind(path).unwrap()
        };
        let first = daemon(&path);
        let syslog = Syslog::new(&path).unwrap();
        drop(first);
        timed_out(syslog.takes_some(SHORT));
        timed_out(syslog.append(b"event\n", Some(SHORT)));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| syslog.append(b"done\n", None));
            let second = daemon(&path);
            let mut read = [0; 100];
            let length = second.recv(&mut read).unwrap();
            assert!(read[..length].ends_with(b"done"));
            waiting.join().unwrap().unwrap();
        });
    }

    #[test]
    fn a_server_that_is_to_end_does_not_wait() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let daemon = UnixDatagram::bind(&path).unwrap();
        let syslog = Syslog::new(&path).unwrap();
        drop(daemon);
        assert!(!syslog.ending.is_over());
        syslog.ending.begin();
        timed_out(syslog.append(b"done\n", None));
        assert!(syslog.ending.is_over());
    }
}
