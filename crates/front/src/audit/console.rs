//! Standard output as the place for events.
//!
//! Who reads it may have stopped to: events wait for it then, and their commands with them. But a server that is to end does. Therefore a
//! thread of its own writes, for which those who wait can cease to.

use std::io::{self, Write};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How long events still wait when the server ends.
const LAST_WAIT: Duration = Duration::from_secs(2);

/// How often it is looked whether it ends.
const STEP: Duration = Duration::from_millis(50);

type Writing = (Vec<u8>, SyncSender<io::Result<()>>);

/// When events do not wait any more, since the server ends.
#[derive(Default)]
pub struct Ending {
    until: OnceLock<Instant>,
}

impl Ending {
    /// The server is to end.
    pub fn begin(&self) {
        self.until.get_or_init(|| Instant::now() + LAST_WAIT);
    }

    /// Whether events do not wait any more.
    pub fn is_over(&self) -> bool {
        self.until.get().is_some_and(|until| Instant::now() >= *until)
    }
}

/// A thread that writes events, and those who wait for it.
pub struct Console {
    sender: Mutex<Sender<Writing>>,
    pub ending: Ending,
}

impl Console {
    /// Writes to `out`.
    ///
    /// Errors: there is no thread.
    #[expect(
        clippy::disallowed_methods,
        reason = "who has an event in it waits for that: as many as there are requests"
    )]
    pub fn new(out: impl Write + Send + 'static) -> io::Result<Self> {
        let (sender, receiver) = channel();
        std::thread::Builder::new().name("sheaf-audit".to_owned()).spawn(move || write(out, &receiver))?;
        Ok(Console { sender: Mutex::new(sender), ending: Ending::default() })
    }

    /// Writes an event, and waits until that is done.
    ///
    /// Errors: those of writing; `TimedOut`, if nobody reads, and the server is to end.
    pub fn append(&self, bytes: &[u8]) -> io::Result<()> {
        let (done, waiting) = sync_channel(1);
        let sent = self.sender.lock().send((bytes.to_owned(), done));
        sent.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        loop {
            match waiting.recv_timeout(STEP) {
                Ok(written) => return written,
                Err(RecvTimeoutError::Timeout) if self.ending.is_over() => {
                    let why = "nobody reads it, and the server is to end";
                    return Err(io::Error::new(io::ErrorKind::TimedOut, why));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(io::ErrorKind::BrokenPipe.into()),
            }
        }
    }
}

fn write(mut out: impl Write, receiver: &Receiver<Writing>) {
    for (bytes, done) in receiver {
        let _ = done.send(out.write_all(&bytes).and_then(|()| out.flush()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pipe of which somebody reads so many writes.
    struct Pipe(std::sync::mpsc::Receiver<()>);

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.recv().map_err(io::Error::other)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn events_wait_for_who_reads_them_until_the_server_ends() {
        let (reads, pipe) = sync_channel(1);
        let console = Console::new(Pipe(pipe)).unwrap();
        reads.send(()).unwrap();
        console.append(b"one").unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| console.append(b"two"));
            assert!(!console.ending.is_over());
            console.ending.begin();
            assert_eq!(waiting.join().unwrap().unwrap_err().kind(), io::ErrorKind::TimedOut);
        });
        assert!(console.ending.is_over());
        assert_eq!(console.append(b"three").unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
