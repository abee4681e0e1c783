//! One connection through a link: two streams, each with its delay, carried by one thread.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Bell, Cut, Shared, Way};

/// Bytes that are read at once.
const READ: usize = 64 << 10;
/// Bytes that may be under way without a delay: enough to keep the receiver busy.
const WINDOW: usize = 256 << 10;
/// Bytes that may be under way with a delay. What a stream can carry is this by the delay: 470 MB/s at 36 ms.
const WINDOW_DELAYED: usize = 16 << 20;
/// How long a member may take to accept.
const DIAL: Duration = Duration::from_secs(5);

/// Carries one connection to its end.
pub(super) fn carry(dialled: TcpStream, from: usize, to: usize, shared: &Shared) {
    let Ok((number, bell)) = shared.new_bell() else { return };
    if dialled.set_nonblocking(true).is_ok()
        && let Some(target) = dial(&dialled, from, to, shared, &bell)
    {
        let forth = Stream::new(shared.way(from, to));
        let back = Stream::new(shared.way(to, from));
        Carried { dialled, target, forth, back }.run(shared, &bell);
    }
    shared.forget_bell(number);
}

/// Connects to the target once both ways are open and a round trip has passed, as it would over that distance. `None`
/// when the connection is to be closed.
fn dial(dialled: &TcpStream, from: usize, to: usize, shared: &Shared, bell: &Bell) -> Option<TcpStream> {
    let (forth, back) = (shared.way(from, to), shared.way(to, from));
    let mut ready = Instant::now() + forth.delay() + back.delay();
    let (mut lost, mut ended) = (false, false);
    loop {
        if shared.stop.load(Ordering::SeqCst) || forth.cut() == Cut::Refused || back.cut() == Cut::Refused {
            return None;
        }
        let cut = forth.cut() == Cut::Silent || back.cut() == Cut::Silent;
        let now = Instant::now();
        if cut {
            // Nobody has answered yet when the ways are open again.
            ready = now + forth.delay() + back.delay();
        } else if lost || ended {
            return None;
        } else if now >= ready {
            let target = TcpStream::connect_timeout(&shared.targets[to], DIAL).ok()?;
            dialled.set_nodelay(true).ok()?;
            target.set_nodelay(true).ok()?;
            target.set_nonblocking(true).ok()?;
            return Some(target);
        }
        let mut fds = vec![PollFd::from_borrowed_fd(bell.0.as_fd(), PollFlags::IN)];
        if cut && !ended {
            fds.push(PollFd::new(dialled, PollFlags::IN));
        }
        let wait = (!cut).then(|| ready.saturating_duration_since(now));
        wait_for(&mut fds, wait);
        bell.silence();
        if cut {
            match (&mut &*dialled).read(&mut [0; READ / 16]) {
                Ok(0) => ended = true,
                Ok(count) => {
                    lost = true;
                    forth.dropped(count);
                }
                Err(error) if again(&error) => {}
                Err(_) => ended = true,
            }
        }
    }
}

fn again(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// Waits until one of them can be used or the time is over; without a time, until one can.
fn wait_for(fds: &mut [PollFd<'_>], at_most: Option<Duration>) {
    let timeout = at_most
        .map(|time| Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) });
    // Interrupted: the caller looks again anyway.
    let _ = poll(fds, timeout.as_ref());
}

/// Bytes that may go on from a moment on.
struct Chunk {
    due: Instant,
    bytes: Vec<u8>,
    written: usize,
}

/// One direction.
struct Stream<'a> {
    way: &'a Way,
    queue: VecDeque<Chunk>,
    /// Bytes in the queue.
    queued: usize,
    /// No chunk is due before the one in front of it.
    last_due: Option<Instant>,
    /// The sender has ended; from this moment on the receiver may know.
    ended: Option<Instant>,
    /// The receiver knows.
    told: bool,
    /// Something was swallowed.
    lost: bool,
}

/// What becomes of the connection.
#[derive(PartialEq)]
enum Fate {
    Goes,
    Ends,
}

impl<'a> Stream<'a> {
    fn new(way: &'a Way) -> Stream<'a> {
        Stream {
            way,
            queue: VecDeque::new(),
            queued: 0,
            last_due: None,
            ended: None,
            told: false,
            lost: false,
        }
    }

    fn window(&self) -> usize {
        if self.way.delay().is_zero() { WINDOW } else { WINDOW_DELAYED }
    }

    /// Whether it would take more from the sender.
    fn reads(&self) -> bool {
        self.ended.is_none() && self.queued < self.window()
    }

    /// When it next has something for the receiver.
    fn due(&self) -> Option<Instant> {
        match self.queue.front() {
            Some(chunk) => Some(chunk.due),
            None if self.told => None,
            None => self.ended,
        }
    }

    fn writes(&self, now: Instant) -> bool {
        self.due().is_some_and(|due| due <= now)
    }

    /// The way was cut: what is under way is lost. Healed after a loss, the connection ends.
    fn obey(&mut self) -> Fate {
        match self.way.cut() {
            Cut::Refused => Fate::Ends,
            Cut::Open if self.lost => Fate::Ends,
            Cut::Open => Fate::Goes,
            Cut::Silent => {
                if !self.queue.is_empty() || self.ended.is_some() && !self.told {
                    self.lost = true;
                    self.queue.clear();
                    self.way.dropped(std::mem::take(&mut self.queued));
                    self.told = self.ended.is_some();
                }
                Fate::Goes
            }
        }
    }

    /// Takes what the sender has, and passes it on at once where nothing holds it up.
    fn read(&mut self, from: &TcpStream, to: &TcpStream, buffer: &mut [u8]) -> Fate {
        match (&mut &*from).read(buffer) {
            Ok(0) => {
                self.ended = Some(self.next_due());
                if self.way.cut() == Cut::Silent {
                    self.told = true;
                    self.lost = true;
                }
                Fate::Goes
            }
            Ok(count) if self.way.cut() == Cut::Silent => {
                self.lost |= count > 0;
                self.way.dropped(count);
                Fate::Goes
            }
            Ok(count) => self.pass(&buffer[..count], to),
            Err(error) if again(&error) => Fate::Goes,
            Err(_) if self.way.cut() == Cut::Silent => {
                // A reset that nobody hears of.
                (self.ended, self.told, self.lost) = (Some(Instant::now()), true, true);
                Fate::Goes
            }
            Err(_) => Fate::Ends,
        }
    }

    fn next_due(&mut self) -> Instant {
        let due = Instant::now() + self.way.delay();
        let due = self.last_due.map_or(due, |last| last.max(due));
        self.last_due = Some(due);
        due
    }

    fn pass(&mut self, bytes: &[u8], to: &TcpStream) -> Fate {
        let mut written = 0;
        if self.queue.is_empty() && self.way.delay().is_zero() {
            match (&mut &*to).write(bytes) {
                Ok(count) => written = count,
                Err(error) if again(&error) => {}
                Err(_) => return Fate::Ends,
            }
            self.way.passed.fetch_add(written as u64, Ordering::Relaxed);
        }
        if written < bytes.len() {
            let due = self.next_due();
            self.queued += bytes.len() - written;
            self.queue.push_back(Chunk { due, bytes: bytes[written..].to_vec(), written: 0 });
        }
        Fate::Goes
    }

    /// Gives the receiver what is due.
    fn write(&mut self, to: &TcpStream) -> Fate {
        let now = Instant::now();
        while let Some(chunk) = self.queue.front_mut().filter(|chunk| chunk.due <= now) {
            match (&mut &*to).write(&chunk.bytes[chunk.written..]) {
                Ok(count) => {
                    chunk.written += count;
                    self.queued -= count;
                    self.way.passed.fetch_add(count as u64, Ordering::Relaxed);
                    if chunk.written == chunk.bytes.len() {
                        self.queue.pop_front();
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Fate::Goes,
                Err(_) => return Fate::Ends,
            }
        }
        if self.queue.is_empty() && !self.told && self.ended.is_some_and(|ended| ended <= now) {
            self.told = true;
            // It fails when the receiver has gone already.
            let _ = to.shutdown(Shutdown::Write);
        }
        Fate::Goes
    }
}

struct Carried<'a> {
    dialled: TcpStream,
    target: TcpStream,
    forth: Stream<'a>,
    back: Stream<'a>,
}

impl Carried<'_> {
    fn run(mut self, shared: &Shared, bell: &Bell) {
        let mut buffer = vec![0; READ];
        // Both streams are closed with their sockets.
        while !shared.stop.load(Ordering::SeqCst) {
            if self.step(bell, &mut buffer) == Fate::Ends {
                return;
            }
        }
    }

    fn step(&mut self, bell: &Bell, buffer: &mut [u8]) -> Fate {
        if self.forth.obey() == Fate::Ends
            || self.back.obey() == Fate::Ends
            || self.forth.told && self.back.told
        {
            return Fate::Ends;
        }
        let now = Instant::now();
        let flags = |reads: bool, writes: bool| {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, reads);
            flags.set(PollFlags::OUT, writes);
            flags
        };
        let sides = [
            (&self.dialled, flags(self.forth.reads(), self.back.writes(now))),
            (&self.target, flags(self.back.reads(), self.forth.writes(now))),
        ];
        let mut fds = vec![PollFd::from_borrowed_fd(bell.0.as_fd(), PollFlags::IN)];
        // One that nothing is wanted of would be reported again and again when its other end has gone.
        fds.extend(sides.into_iter().filter(|(_, f)| !f.is_empty()).map(|(side, f)| PollFd::new(side, f)));
        let later = [&self.forth, &self.back].into_iter().filter_map(Stream::due).filter(|due| *due > now);
        wait_for(&mut fds, later.min().map(|due| due.saturating_duration_since(now)));
        bell.silence();
        // Cut meanwhile: what was read before must not come through.
        if self.forth.obey() == Fate::Ends || self.back.obey() == Fate::Ends {
            return Fate::Ends;
        }
        self.exchange(buffer)
    }

    /// Tries everything that may be possible; sockets that are not ready say so.
    fn exchange(&mut self, buffer: &mut [u8]) -> Fate {
        let Carried { dialled, target, forth, back } = self;
        for (stream, from, to) in [(forth, &*dialled, &*target), (back, &*target, &*dialled)] {
            if stream.write(to) == Fate::Ends || stream.reads() && stream.read(from, to, buffer) == Fate::Ends
            {
                return Fate::Ends;
            }
        }
        Fate::Goes
    }
}
