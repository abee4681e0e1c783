//! Clients of which nobody knows yet who they are, where clients must prove it: what they may send, how many there may be, and how
//! often they may be wrong.

pub mod establishment;

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::client::Client;

/// The longest message of one.
pub const MESSAGE_BYTES: usize = 16 * 1024;

/// How long one may take to say its first word.
pub const FIRST_WORD: Duration = Duration::from_secs(30);

/// Of all connections, one in so many is kept for those who have logged in.
const ROOM_SHARE: usize = 5;

/// So many failures of an address within a minute after the last one cost nothing...
const FREE_FAILURES: u32 = 16;
/// ...each further one doubles this...
const FIRST_DELAY: Duration = Duration::from_millis(50);
/// ...up to this.
const LONGEST_DELAY: Duration = Duration::from_secs(3);

/// Proofs for whose answer somebody would wait longer are not looked at: so many stand before them.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// So many users of one address have a turn of their own, the others have one together.
const TURNS: usize = 64;

/// Failures are forgotten when an address has had none for so long.
const REMEMBERED: Duration = Duration::from_secs(60);

/// Addresses that are remembered; with one more those are forgotten that are of no interest any more, or the one that was heard of first.
const ADDRESSES: usize = 10_000;

/// Addresses that one may have as many of as there are count as one: of IPv6 the network.
fn whose(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => IpAddr::V6((u128::from(address) >> 64 << 64).into()),
    }
}

/// Why a stranger's connection ends.
pub fn makes_room() -> std::io::Error {
    std::io::Error::other("a client that has not logged in makes room for another one")
}

/// The clients that nobody knows yet.
#[derive(Default)]
pub struct Strangers {
    waiting: Mutex<Waiting>,
    failures: Mutex<HashMap<IpAddr, Debt, ahash::RandomState>>,
}

/// An address from which proofs were wrong.
struct Debt {
    failures: u32,
    last: Instant,
    /// When the next proof may be answered, of each user: whoever is meant by the guesses keeps none of the others out that come from there.
    turns: HashMap<String, Instant, ahash::RandomState>,
    /// The same of all users that have no turn of their own.
    others: Option<Instant>,
}

impl Debt {
    fn delay(&self) -> Duration {
        match self.failures.checked_sub(FREE_FAILURES + 1) {
            None => Duration::ZERO,
            Some(more) => (FIRST_DELAY * (1 << more.min(10))).min(LONGEST_DELAY),
        }
    }

    fn turn(&mut self, user: &str, now: Instant) -> &mut Instant {
        if self.turns.len() >= TURNS && !self.turns.contains_key(user) {
            self.turns.retain(|_, until| *until > now);
        }
        if self.turns.len() >= TURNS && !self.turns.contains_key(user) {
            return self.others.get_or_insert(now);
        }
        self.turns.entry(user.to_owned()).or_insert(now)
    }
}

/// Those that are connected, the one first that has been silent for longest.
#[derive(Default)]
struct Waiting {
    clients: BTreeMap<u64, Weak<Client>>,
    newest: u64,
}

impl Strangers {
    /// Whether one more may come, of so many connections. Who has been silent for longest goes for it: somebody who logs in, or a member of
    /// the set, is not kept out by those who only sit there.
    pub fn make_room(&self, connections: usize) -> bool {
        let mut waiting = self.waiting.lock();
        if waiting.clients.len() < connections - connections / ROOM_SHARE {
            return true;
        }
        while let Some((_, client)) = waiting.clients.pop_first() {
            if let Some(client) = client.upgrade() {
                client.stranger.place.store(0, Ordering::Relaxed);
                client.stranger.goes.notify_one();
                return true;
            }
        }
        false
    }

    /// One has come, or has logged out, or has said something.
    pub fn put_last(&self, client: &Arc<Client>) {
        let mut waiting = self.waiting.lock();
        waiting.newest += 1;
        let last = waiting.newest;
        let before = client.stranger.place.swap(last, Ordering::Relaxed);
        waiting.clients.remove(&before);
        waiting.clients.insert(last, Arc::downgrade(client));
    }

    /// One has said something.
    pub fn spoke(&self, client: &Arc<Client>) {
        // Who has to go goes.
        if client.stranger.place.load(Ordering::Relaxed) != 0 {
            self.put_last(client);
        }
    }

    /// One has gone, or is known from now on.
    pub fn remove(&self, client: &Client) {
        let mut waiting = self.waiting.lock();
        let place = client.stranger.place.swap(0, Ordering::Relaxed);
        waiting.clients.remove(&place);
    }

    /// A proof from this address was wrong: for how long its answer is held back.
    pub fn failed(&self, from: IpAddr) -> Duration {
        self.failed_at(from, Instant::now())
    }

    fn failed_at(&self, from: IpAddr, now: Instant) -> Duration {
        let mut failures = self.failures.lock();
        if failures.len() >= ADDRESSES {
            failures.retain(|_, debt| now.duration_since(debt.last) < REMEMBERED);
            // Nobody is forgiven for bringing many others.
            if failures.len() >= ADDRESSES
                && let Some(oldest) = failures.iter().min_by_key(|(_, debt)| debt.last).map(|(from, _)| *from)
            {
                failures.remove(&oldest);
            }
        }
        let debt = failures.entry(whose(from)).or_insert_with(|| Debt {
            failures: 0,
            last: now,
            turns: HashMap::default(),
            others: None,
        });
        if now.duration_since(debt.last) >= REMEMBERED {
            debt.failures = 0;
        }
        (debt.failures, debt.last) = (debt.failures.saturating_add(1), now);
        debt.delay()
    }

    /// For how long the answer to a proof is held back, be it right or wrong, that somebody from this address gives for this user: from where
    /// many were wrong they are answered one after the other, on however many connections they come, and whether anybody waits for it. `None`
    /// if it is not to be looked at: so many wait already.
    pub fn takes_turn(&self, from: IpAddr, user: &str) -> Option<Duration> {
        self.takes_turn_at(from, user, Instant::now())
    }

    fn takes_turn_at(&self, from: IpAddr, user: &str, now: Instant) -> Option<Duration> {
        let mut failures = self.failures.lock();
        let Some(debt) = failures.get_mut(&whose(from)) else { return Some(Duration::ZERO) };
        let delay = debt.delay();
        if delay.is_zero() || now.duration_since(debt.last) >= REMEMBERED {
            return Some(Duration::ZERO);
        }
        let turn = debt.turn(user, now);
        let wait = turn.saturating_duration_since(now);
        if wait > LONGEST_WAIT {
            return None;
        }
        *turn = now + wait + delay;
        Some(wait)
    }

    /// The proof that took a turn was right: that was no guess.
    pub fn gives_turn_back(&self, from: IpAddr, user: &str) {
        let now = Instant::now();
        let mut failures = self.failures.lock();
        if let Some(debt) = failures.get_mut(&whose(from)) {
            let delay = debt.delay();
            let turn = debt.turn(user, now);
            *turn = turn.checked_sub(delay).map_or(now, |earlier| earlier.max(now));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has_to_go(client: &Client) -> bool {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        std::pin::pin!(client.stranger.goes()).poll(&mut context).is_ready()
    }

    #[test]
    fn who_is_silent_for_longest_makes_room() {
        let memory = sheaf_meter::Process::share_of(64 << 20);
        let clients: Vec<_> = (0..9).map(|id| Arc::new(Client::new(id, None, &memory))).collect();
        let strangers = Strangers::default();
        clients[..8].iter().for_each(|client| strangers.put_last(client));
        // A fifth is kept for those who are known.
        assert!(strangers.make_room(11) && !clients.iter().any(|client| has_to_go(client)));
        strangers.spoke(&clients[0]);
        strangers.remove(&clients[1]);
        assert!(strangers.make_room(10) && !has_to_go(&clients[2]));
        strangers.put_last(&clients[8]);
        assert!(strangers.make_room(10));
        let gone: Vec<_> = (0..9).filter(|at| has_to_go(&clients[*at])).collect();
        assert_eq!(gone, [2]);
        // It is none of them any more, whatever it says.
        strangers.spoke(&clients[2]);
        strangers.remove(&clients[2]);
        assert!(strangers.make_room(10) && !clients.iter().any(|client| has_to_go(client)));
        assert!(Strangers::default().make_room(1) && !Strangers::default().make_room(0));
    }

    #[test]
    fn who_fails_often_waits_longer_each_time() {
        let strangers = Strangers::default();
        let (one, other) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        let delays: Vec<Duration> = (0..30).map(|_| strangers.failed(one)).collect();
        assert!(delays[..16].iter().all(Duration::is_zero) && delays[16] == FIRST_DELAY);
        assert!(delays.is_sorted() && delays[29] == LONGEST_DELAY);
        assert!(strangers.failed(other).is_zero());
        // So does their network.
        for host in 1..40 {
            strangers.failed(format!("2001:db8::{host}").parse().unwrap());
        }
        assert!(strangers.failed("2001:db8::ffff".parse().unwrap()) == LONGEST_DELAY);
        assert!(strangers.failed("2001:db8:0:1::1".parse().unwrap()).is_zero());
        // Many addresses are no way to be forgiven.
        for host in 0..ADDRESSES as u32 + 10 {
            strangers.failed(std::net::Ipv4Addr::from_bits(host).into());
            if host % 1000 == 0 {
                strangers.failed(one);
            }
        }
        assert_eq!(strangers.failed(one), LONGEST_DELAY);
    }

    #[test]
    fn guesses_are_answered_one_after_the_other_on_however_many_connections() {
        let (strangers, now) = (Strangers::default(), Instant::now());
        let (one, other) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        let fail = |times: usize| (0..times).for_each(|_| _ = strangers.failed_at(one, now));
        let turn = |user: &str, after: Duration| strangers.takes_turn_at(one, user, now + after);
        fail(16);
        assert_eq!([turn("a", Duration::ZERO), turn("a", Duration::ZERO)], [Some(Duration::ZERO); 2]);
        fail(20);
        let waits: Vec<_> = (0..12).map(|_| turn("a", Duration::ZERO)).collect();
        let each_after: Vec<_> = (0..11).map(|at| Some(LONGEST_DELAY * at)).collect();
        // What would take too long is not looked at, and takes no turn.
        assert_eq!((&waits[..11], waits[11]), (&each_after[..], None));
        assert_eq!(turn("a", LONGEST_DELAY), Some(LONGEST_WAIT));
        // Neither other users wait for that, nor other addresses.
        assert_eq!(turn("b", Duration::ZERO), Some(Duration::ZERO));
        assert_eq!(strangers.takes_turn_at(other, "a", now), Some(Duration::ZERO));
        strangers.gives_turn_back(one, "b");
        assert!(turn("b", Duration::ZERO).unwrap() < LONGEST_DELAY);
        // Of many users those wait together that have no turn of their own.
        (0..TURNS * 2).for_each(|user| _ = turn(&user.to_string(), Duration::ZERO));
        assert_eq!(turn("one more", Duration::ZERO), None);
        assert_eq!(turn("a", REMEMBERED), Some(Duration::ZERO));
    }
}
