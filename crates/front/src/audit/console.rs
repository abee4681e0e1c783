//! Standard output as the place for events.
//!
//! Who reads it may be slow, or have stopped to. What is only about to be waits for [`PATIENCE`] and is refused then; so does a command
//! before it begins that will have events. What has been done waits until its event is written, or the server is to end. Therefore a
//! thread of its own writes, for which those who wait can cease to.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::reactor::give_way;

/// How long something waits that has not been done yet.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// How long events still wait when the server ends.
const LAST_WAIT: Duration = Duration::from_secs(2);

/// How often it is looked whether it ends.
const STEP: Duration = Duration::from_millis(20);

/// Who reads takes no longer, mostly: before that nobody's thread is given away.
const SOON: Duration = Duration::from_millis(2);

const NOT_READ: &str = "nobody reads standard output";

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

/// Where a console writes.
pub trait Output: Write + Send + Sync + 'static {
    /// Whether it takes something without waiting for who reads.
    ///
    /// Errors: nobody will ever read it.
    fn takes_some(&self) -> io::Result<bool>;
}

impl Output for io::Stdout {
    fn takes_some(&self) -> io::Result<bool> {
        let stdout = self.as_fd();
        let mut polled = [PollFd::from_borrowed_fd(stdout, PollFlags::OUT)];
        let ready = poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
        match polled[0].revents().contains(PollFlags::ERR) {
            true => Err(io::ErrorKind::BrokenPipe.into()),
            false => Ok(ready > 0),
        }
    }
}

/// A thread that writes events, and those who wait for it.
pub struct Console {
    shared: Arc<Shared>,
    takes_some: Box<dyn Fn() -> io::Result<bool> + Send + Sync>,
    pub ending: Ending,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// There is something to write, or there never will be.
    work: Condvar,
    /// Something has been written.
    moved: Condvar,
}

/// As many events wait as there are requests that have one.
#[derive(Default)]
struct State {
    queue: VecDeque<Writing>,
    /// The number of the next event.
    next: u64,
    /// Whether one is being written.
    busy: bool,
    /// How many have been.
    written: u64,
    closed: bool,
}

struct Writing {
    number: u64,
    bytes: Vec<u8>,
    done: SyncSender<io::Result<()>>,
}

impl Console {
    /// Writes to what this makes, twice: once to write, once to ask whether it takes something.
    ///
    /// Errors: there is no thread.
    pub fn new<O: Output>(open: impl Fn() -> O) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let (out, asked, writer) = (open(), open(), shared.clone());
        std::thread::Builder::new().name("sheaf-audit".to_owned()).spawn(move || writer.write(out))?;
        let takes_some = Box::new(move || asked.takes_some());
        Ok(Console { shared, takes_some, ending: Ending::default() })
    }

    /// Writes an event, and waits so long until that is done; without a limit, until the server is to end.
    ///
    /// Errors: those of writing; `TimedOut`, if nobody reads. The event is left out then, unless its first bytes are written already: the
    /// rest comes when somebody reads.
    pub fn append(&self, bytes: &[u8], patience: Option<Duration>) -> io::Result<()> {
        let began = Instant::now();
        if let Some(patience) = patience {
            self.takes_some(patience)?;
        }
        self.write(bytes, patience.map(|patience| patience.saturating_sub(began.elapsed())))
    }

    fn write(&self, bytes: &[u8], patience: Option<Duration>) -> io::Result<()> {
        let (number, waiting) = self.shared.push(bytes);
        match waiting.recv_timeout(SOON) {
            Err(RecvTimeoutError::Timeout) => {}
            done => return received(done),
        }
        let began = Instant::now();
        give_way(true, || {
            loop {
                match waiting.recv_timeout(STEP) {
                    Err(RecvTimeoutError::Timeout) if self.ending.is_over() => {
                        return gave_up(&format!("{NOT_READ}, and the server is to end"));
                    }
                    Err(RecvTimeoutError::Timeout)
                        if patience.is_some_and(|patience| began.elapsed() >= patience) =>
                    {
                        self.shared.state.lock().queue.retain(|writing| writing.number != number);
                        // It may have been written just now.
                        return waiting.try_recv().unwrap_or_else(|_| gave_up(NOT_READ));
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                    done => return received(done),
                }
            }
        })
    }

    /// Waits so long until something would be written: what will have an event must not begin where that is known not to arrive.
    ///
    /// Errors: `TimedOut`; `BrokenPipe`, if nobody will ever read.
    pub fn takes_some(&self, patience: Duration) -> io::Result<()> {
        let before = self.shared.state.lock().written;
        if self.moves(before, SOON)? {
            return Ok(());
        }
        let began = Instant::now();
        give_way(true, || {
            loop {
                if self.moves(before, STEP)? {
                    return Ok(());
                }
                if self.ending.is_over() || began.elapsed() >= patience {
                    return gave_up(NOT_READ);
                }
            }
        })
    }

    /// Whether something was written since this number was, or could be; waits a moment for it.
    fn moves(&self, before: u64, moment: Duration) -> io::Result<bool> {
        let mut state = self.shared.state.lock();
        if state.busy || !state.queue.is_empty() {
            if state.written == before {
                self.shared.moved.wait_for(&mut state, moment);
            }
            return Ok(state.written != before);
        }
        drop(state);
        let ready = (self.takes_some)()?;
        if !ready {
            std::thread::park_timeout(moment);
        }
        Ok(ready)
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        self.shared.state.lock().closed = true;
        self.shared.work.notify_all();
    }
}

impl Shared {
    fn push(&self, bytes: &[u8]) -> (u64, Receiver<io::Result<()>>) {
        let (done, waiting) = sync_channel(1);
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        state.queue.push_back(Writing { number, bytes: bytes.to_owned(), done });
        self.work.notify_one();
        (number, waiting)
    }

    fn write(&self, mut out: impl Write) {
        let mut state = self.state.lock();
        while !state.closed {
            let Some(Writing { bytes, done, .. }) = state.queue.pop_front() else {
                self.work.wait(&mut state);
                continue;
            };
            state.busy = true;
            drop(state);
            let _ = done.send(out.write_all(&bytes).and_then(|()| out.flush()));
            state = self.state.lock();
            state.busy = false;
            state.written += 1;
            self.moved.notify_all();
        }
    }
}

fn received(done: Result<io::Result<()>, RecvTimeoutError>) -> io::Result<()> {
    done.unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))
}

fn gave_up(why: &str) -> io::Result<()> {
    Err(io::Error::new(io::ErrorKind::TimedOut, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(1);

    /// A pipe of which somebody reads so many writes.
    #[derive(Clone)]
    struct Pipe {
        reads: Arc<Mutex<Receiver<()>>>,
        arrived: Arc<Mutex<Vec<String>>>,
        full: Arc<Mutex<bool>>,
    }

    impl Pipe {
        fn new() -> (SyncSender<()>, Self) {
            let (reader, reads) = sync_channel(10);
            let reads = Arc::new(Mutex::new(reads));
            (reader, Pipe { reads, arrived: Arc::default(), full: Arc::default() })
        }

        fn arrived(&self) -> Vec<String> {
            self.arrived.lock().clone()
        }
    }

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.reads.lock().recv().map_err(io::Error::other)?;
            self.arrived.lock().push(String::from_utf8_lossy(bytes).into_owned());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Output for Pipe {
        fn takes_some(&self) -> io::Result<bool> {
            Ok(!*self.full.lock())
        }
    }

    fn timed_out(done: io::Result<()>) {
        assert_eq!(done.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    fn until(condition: impl Fn() -> bool) {
        while !condition() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn events_wait_for_who_reads_them_until_the_server_ends() {
        let (reader, pipe) = Pipe::new();
        let console = Console::new(|| pipe.clone()).unwrap();
        reader.send(()).unwrap();
        console.append(b"one", None).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| console.append(b"two", None));
            assert!(!console.ending.is_over());
            console.ending.begin();
            timed_out(waiting.join().unwrap());
        });
        assert!(console.ending.is_over());
        timed_out(console.append(b"three", None));
    }

    #[test]
    fn where_nobody_reads_what_is_not_done_is_refused_and_what_is_done_waits() {
        let (reader, pipe) = Pipe::new();
        let console = Console::new(|| pipe.clone()).unwrap();
        console.takes_some(SHORT).unwrap();
        *pipe.full.lock() = true;
        timed_out(console.takes_some(SHORT));
        *pipe.full.lock() = false;
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| console.append(b"done", None));
            until(|| console.shared.state.lock().busy);
            timed_out(console.takes_some(SHORT));
            timed_out(console.append(b"refused", Some(SHORT)));
            timed_out(console.write(b"given up", Some(SHORT)));
            reader.send(()).unwrap();
            waiting.join().unwrap().unwrap();
        });
        until(|| !console.shared.state.lock().busy);
        console.takes_some(SHORT).unwrap();
        reader.send(()).unwrap();
        console.append(b"next", None).unwrap();
        assert_eq!(pipe.arrived(), ["done", "next"], "what was refused is left out");
    }

    #[test]
    fn one_that_is_read_takes_more_though_it_is_always_at_work() {
        let (reader, pipe) = Pipe::new();
        let console = Console::new(|| pipe.clone()).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| console.append(b"event", None).unwrap());
            }
            until(|| console.shared.state.lock().queue.len() == 2);
            assert!(!console.moves(0, SHORT).unwrap());
            reader.send(()).unwrap();
            until(|| console.shared.state.lock().written == 1);
            assert!(console.moves(0, SHORT).unwrap());
            assert!(!console.moves(1, SHORT).unwrap());
            reader.send(()).unwrap();
            reader.send(()).unwrap();
        });
    }
}
