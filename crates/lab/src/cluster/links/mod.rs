//! The links between members, as TCP proxies that can cut and delay them.
//!
//! Each member has an address of its own for each of its peers, so that every directed link is known by the port that is
//! dialled. What travels from `a` to `b` does so on the connections that `a` has dialled and, as their answers, on those
//! that `b` has dialled; cutting the way from `a` to `b` stops both, and nothing that travels from `b` to `a`. So a
//! network can be lost in one direction only.
//!
//! A cut way swallows what is sent, and the end of a connection with it: neither side learns of it, as when a cable is
//! pulled. When the way is healed, a connection that has lost something is reset, because a stream with a hole in it
//! must not go on; one that was idle all the time goes on as if nothing had happened.

mod connection;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use crate::error::{Error, Result};

/// What a way does with what is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// It comes through.
    Open,
    /// It is lost, and nobody is told.
    Silent,
    /// Connections are closed, and new ones too.
    Refused,
}

/// The way from one member to another.
#[derive(Debug)]
struct Way {
    cut: AtomicU8,
    delay_ns: AtomicU64,
    /// Bytes that have come through.
    passed: AtomicU64,
    /// Bytes that a cut has swallowed.
    dropped: AtomicU64,
}

impl Way {
    fn cut(&self) -> Cut {
        match self.cut.load(Ordering::SeqCst) {
            0 => Cut::Open,
            1 => Cut::Silent,
            _ => Cut::Refused,
        }
    }

    fn delay(&self) -> Duration {
        Duration::from_nanos(self.delay_ns.load(Ordering::Relaxed))
    }

    fn dropped(&self, bytes: usize) {
        self.dropped.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// What wakes a thread that waits for sockets.
#[derive(Debug)]
struct Bell(OwnedFd);

impl Bell {
    fn new() -> Result<Bell> {
        Ok(Bell(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).map_err(std::io::Error::from)?))
    }

    fn ring(&self) {
        // It fails only when it rings already.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    fn silence(&self) {
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }
}

/// What the threads share.
#[derive(Debug)]
struct Shared {
    targets: Vec<SocketAddr>,
    /// From row to column.
    ways: Vec<Way>,
    stop: AtomicBool,
    /// Of the thread that accepts, and of every connection by its number.
    bells: Mutex<BTreeMap<u64, Arc<Bell>>>,
    next: AtomicU64,
}

impl Shared {
    fn way(&self, from: usize, to: usize) -> &Way {
        &self.ways[from * self.targets.len() + to]
    }

    fn ring_all(&self) {
        let bells = self.bells.lock().unwrap_or_else(PoisonError::into_inner);
        bells.values().for_each(|bell| bell.ring());
    }

    fn new_bell(&self) -> Result<(u64, Arc<Bell>)> {
        let (number, bell) = (self.next.fetch_add(1, Ordering::Relaxed), Arc::new(Bell::new()?));
        self.bells.lock().unwrap_or_else(PoisonError::into_inner).insert(number, bell.clone());
        Ok((number, bell))
    }

    fn forget_bell(&self, number: u64) {
        self.bells.lock().unwrap_or_else(PoisonError::into_inner).remove(&number);
    }
}

/// Proxies on all links between some members. They end with this value.
#[derive(Debug)]
pub struct Links {
    shared: Arc<Shared>,
    /// Row: who dials. Column: whom. No port where they are the same.
    ports: Vec<u16>,
    accepting: Option<JoinHandle<()>>,
}

impl Links {
    /// Starts the proxies for members that listen, or will listen, at these addresses.
    pub fn start(members: &[SocketAddr]) -> Result<Links> {
        let count = members.len();
        let mut listeners = Vec::new();
        let mut ports = vec![0; count * count];
        for from in 0..count {
            for to in (0..count).filter(|to| *to != from) {
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
                listener.set_nonblocking(true)?;
                ports[from * count + to] = listener.local_addr()?.port();
                listeners.push((from, to, listener));
            }
        }
        let way = |_| Way {
            cut: AtomicU8::new(0),
            delay_ns: AtomicU64::new(0),
            passed: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        };
        let shared = Arc::new(Shared {
            targets: members.to_vec(),
            ways: (0..count * count).map(way).collect(),
            stop: AtomicBool::new(false),
            bells: Mutex::default(),
            next: AtomicU64::new(0),
        });
        let (_, bell) = shared.new_bell()?;
        let accepting = {
            let shared = shared.clone();
            spawn("links", move || accept(&listeners, &bell, &shared))?
        };
        Ok(Links { shared, ports, accepting: Some(accepting) })
    }

    /// How many members there are.
    pub fn members(&self) -> usize {
        self.shared.targets.len()
    }

    /// Where member `from` reaches member `to`. There is none for oneself.
    pub fn address(&self, from: usize, to: usize) -> Option<SocketAddr> {
        let port = *self.ports.get(from * self.members() + to)?;
        (from != to && to < self.members()).then(|| (Ipv4Addr::LOCALHOST, port).into())
    }

    /// The value of a member's parameter `peerAddresses`: `HOST:PORT=ADDRESS:PORT,...` for all its peers.
    pub fn peer_addresses(&self, member: usize) -> String {
        let peer = |(to, target): (usize, &SocketAddr)| {
            self.address(member, to).map(|proxy| format!("{target}={proxy}"))
        };
        self.shared.targets.iter().enumerate().filter_map(peer).collect::<Vec<_>>().join(",")
    }

    fn check(&self, from: usize, to: usize) -> Result<&Way> {
        if from >= self.members() || to >= self.members() || from == to {
            return Err(Error::usage(format!("there is no link from member {from} to member {to}")));
        }
        Ok(self.shared.way(from, to))
    }

    /// Cuts or heals the way from one member to another.
    pub fn set(&self, from: usize, to: usize, cut: Cut) -> Result<()> {
        let value = match cut {
            Cut::Open => 0,
            Cut::Silent => 1,
            Cut::Refused => 2,
        };
        self.check(from, to)?.cut.store(value, Ordering::SeqCst);
        self.shared.ring_all();
        Ok(())
    }

    /// Whether the way from one member to another is cut.
    pub fn get(&self, from: usize, to: usize) -> Result<Cut> {
        Ok(self.check(from, to)?.cut())
    }

    /// Loses what is sent from one member to another.
    pub fn cut(&self, from: usize, to: usize) -> Result<()> {
        self.set(from, to, Cut::Silent)
    }

    /// Lets through again what is sent from one member to another.
    pub fn heal(&self, from: usize, to: usize) -> Result<()> {
        self.set(from, to, Cut::Open)
    }

    /// Cuts or heals everything, in both directions, between these members and all others.
    pub fn set_around(&self, side: &[usize], cut: Cut) -> Result<()> {
        for a in 0..self.members() {
            for b in (0..self.members()).filter(|b| side.contains(&a) && !side.contains(b)) {
                self.set(a, b, cut)?;
                self.set(b, a, cut)?;
            }
        }
        Ok(())
    }

    /// Heals everything. Delays stay.
    pub fn heal_all(&self) {
        self.shared.ways.iter().for_each(|way| way.cut.store(0, Ordering::SeqCst));
        self.shared.ring_all();
    }

    /// What is sent from one member to another takes so long: half of their round trip. What is under way already is
    /// not overtaken.
    pub fn set_delay(&self, from: usize, to: usize, delay: Duration) -> Result<()> {
        let nanos = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
        self.check(from, to)?.delay_ns.store(nanos, Ordering::Relaxed);
        self.shared.ring_all();
        Ok(())
    }

    /// How long what is sent from one member to another takes.
    pub fn delay(&self, from: usize, to: usize) -> Result<Duration> {
        Ok(self.check(from, to)?.delay())
    }

    /// Bytes that have come through from one member to another.
    pub fn passed(&self, from: usize, to: usize) -> Result<u64> {
        Ok(self.check(from, to)?.passed.load(Ordering::Relaxed))
    }

    /// Bytes that were sent from one member to another and lost in a cut.
    pub fn dropped(&self, from: usize, to: usize) -> Result<u64> {
        Ok(self.check(from, to)?.dropped.load(Ordering::Relaxed))
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.ring_all();
        if let Some(thread) = self.accepting.take() {
            let _ = thread.join();
        }
    }
}

/// Each thread has a small stack: a set of seven has 42 links and more connections.
fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    Ok(std::thread::Builder::new().name(name.to_owned()).stack_size(256 << 10).spawn(work)?)
}

/// Takes connections in until the links end.
fn accept(listeners: &[(usize, usize, TcpListener)], bell: &Bell, shared: &Arc<Shared>) {
    loop {
        let mut fds: Vec<PollFd<'_>> =
            listeners.iter().map(|(_, _, listener)| PollFd::new(listener, PollFlags::IN)).collect();
        fds.push(PollFd::from_borrowed_fd(bell.0.as_fd(), PollFlags::IN));
        // Interrupted: look again.
        let _ = poll(&mut fds, None);
        bell.silence();
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        for (from, to, listener) in listeners {
            while let Ok((dialled, _)) = listener.accept() {
                let (from, to, shared) = (*from, *to, shared.clone());
                // Where no thread is to be had, the connection is closed, and the member will dial again.
                let _ = spawn("link", move || connection::carry(dialled, from, to, &shared));
            }
        }
    }
}
