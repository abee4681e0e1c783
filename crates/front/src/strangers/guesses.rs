//! Proofs that were wrong, and how long the next ones wait for it.
//!
//! Who guesses does not have to wait for the answer, and may come on any number of connections; so proofs have turns, whatever they are, one
//! some time after the other. Turns keep others out, too, who come from where somebody guesses. Therefore whoever was right lately has turns of
//! its own ([`Known`]), as the same user, from the same address, with the same client: what others guess there counts for nothing there.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// So many failures within a minute after the last one cost nothing...
const FREE_FAILURES: u32 = 16;
/// ...each further one doubles this...
const FIRST_DELAY: Duration = Duration::from_millis(50);
/// ...up to this.
const LONGEST_DELAY: Duration = Duration::from_secs(3);

/// Proofs for whose answer somebody would wait longer are not looked at: so many stand before them.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// So many users of one address have a turn of their own, the others have one together.
const TURNS: usize = 64;

/// Failures are forgotten when there was none for so long.
const REMEMBERED: Duration = Duration::from_secs(60);

/// Addresses that are remembered; with one more those are forgotten that are of no interest any more, or the one that was heard of first.
pub(super) const ADDRESSES: usize = 10_000;

/// Users at an address that are known; with one more the one is forgotten that was right first.
const KNOWN: usize = 10_000;

/// Clients of one of them: nobody pushes others out by calling his own client ever something else.
const KNOWN_CLIENTS: usize = 16;

/// Addresses that one may have as many of as there are count as one: of IPv6 the network.
pub(super) fn whose(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => IpAddr::V6((u128::from(address) >> 64 << 64).into()),
    }
}

pub(super) type Map<K, V> = HashMap<K, V, ahash::RandomState>;

/// Who gives a proof.
#[derive(Clone, Copy)]
pub struct Guesser<'a> {
    /// The address from which it comes.
    pub from: IpAddr,
    /// The user that it wants to be.
    pub user: &'a str,
    /// The bytes in which the client has described itself.
    pub client: &'a [u8],
}

/// How often somebody was wrong.
pub(super) struct Failures {
    count: u32,
    pub(super) last: Instant,
}

impl Failures {
    pub(super) fn new(now: Instant) -> Failures {
        Failures { count: 0, last: now }
    }

    pub(super) fn more(&mut self, count: usize, now: Instant) {
        if now.duration_since(self.last) >= REMEMBERED {
            self.count = 0;
        }
        (self.count, self.last) = (self.count.saturating_add(count as u32), now);
    }

    /// What lies between two answers.
    pub(super) fn delay(&self, now: Instant) -> Duration {
        match self.count.checked_sub(FREE_FAILURES + 1) {
            Some(more) if now.duration_since(self.last) < REMEMBERED => {
                (FIRST_DELAY * (1 << more.min(10))).min(LONGEST_DELAY)
            }
            _ => Duration::ZERO,
        }
    }
}

/// When the next answer may be given.
#[derive(Clone, Copy)]
pub(super) struct Turn(Instant);

impl Turn {
    pub(super) fn new(now: Instant) -> Turn {
        Turn(now)
    }

    /// Takes the next place, and leaves this much behind it. `None` if it is too far away.
    pub(super) fn take(&mut self, delay: Duration, longest: Duration, now: Instant) -> Option<Duration> {
        let wait = self.0.saturating_duration_since(now);
        if wait > longest {
            return None;
        }
        self.0 = now + wait + delay;
        Some(wait)
    }

    pub(super) fn give_back(&mut self, delay: Duration, now: Instant) {
        self.0 = self.0.checked_sub(delay).map_or(now, |earlier| earlier.max(now));
    }
}

/// An address from which proofs were wrong.
struct Debt {
    failures: Failures,
    /// Of each user: whoever is meant by the guesses keeps none of the others out that come from there.
    turns: Map<String, Turn>,
    /// Of all users that have no turn of their own.
    others: Option<Turn>,
}

impl Debt {
    fn new(now: Instant) -> Debt {
        Debt { failures: Failures::new(now), turns: HashMap::default(), others: None }
    }

    fn turn(&mut self, user: &str, now: Instant) -> &mut Turn {
        if self.turns.len() >= TURNS && !self.turns.contains_key(user) {
            self.turns.retain(|_, until| until.0 > now);
        }
        if self.turns.len() >= TURNS && !self.turns.contains_key(user) {
            return self.others.get_or_insert(Turn::new(now));
        }
        self.turns.entry(user.to_owned()).or_insert(Turn::new(now))
    }
}

/// A user who was right lately, at one address and with one client.
struct Known {
    client: u64,
    right: Instant,
    failures: Failures,
    turn: Turn,
}

#[derive(Default)]
struct State {
    debts: Map<IpAddr, Debt>,
    /// By address and user. Numbers are kept in place of names.
    known: Map<u64, Vec<Known>>,
}

/// What was wrong lately, and who was right.
#[derive(Default)]
pub struct Guesses {
    state: Mutex<State>,
    hasher: ahash::RandomState,
}

impl Guesses {
    /// A proof from this address was wrong, or whatever else somebody has tried to log in by: for how long its answer is held back beyond
    /// its turn.
    pub fn failed(&self, from: IpAddr) -> Duration {
        self.failed_at(from, Instant::now())
    }

    /// For how long the answer to a proof is held back, be it right or wrong: from where many were wrong they are answered one after the
    /// other, on however many connections they come, and whether anybody waits for it. `None` if it is not to be looked at: so many wait
    /// already.
    pub fn takes_turn(&self, who: &Guesser<'_>) -> Option<Duration> {
        self.takes_turn_at(who, Instant::now())
    }

    /// The proof that took a turn was wrong, or was not looked at: for how long its answer is held back instead, if whoever it names is known.
    /// That is as long as if he were not, so that it does not show who logs in from there; the turn that was taken stays taken.
    pub fn was_wrong(&self, who: &Guesser<'_>) -> Option<Duration> {
        self.was_wrong_at(who, Instant::now())
    }

    /// The proof that took a turn was right: that was no guess, and its user is known from now on.
    pub fn was_right(&self, who: &Guesser<'_>) {
        self.was_right_at(who, Instant::now());
    }

    fn failed_at(&self, from: IpAddr, now: Instant) -> Duration {
        let debts = &mut self.state.lock().debts;
        if debts.len() >= ADDRESSES {
            debts.retain(|_, debt| now.duration_since(debt.failures.last) < REMEMBERED);
            // Nobody is forgiven for bringing many others.
            if debts.len() >= ADDRESSES
                && let Some(oldest) =
                    debts.iter().min_by_key(|(_, debt)| debt.failures.last).map(|(from, _)| *from)
            {
                debts.remove(&oldest);
            }
        }
        let debt = debts.entry(whose(from)).or_insert_with(|| Debt::new(now));
        debt.failures.more(1, now);
        debt.failures.delay(now)
    }

    fn takes_turn_at(&self, who: &Guesser<'_>, now: Instant) -> Option<Duration> {
        let (pair, client) = self.numbers(who);
        let mut state = self.state.lock();
        match state.known(pair, client) {
            Some(known) => known.turn.take(known.failures.delay(now), LONGEST_WAIT, now),
            None => state.takes_strangers_turn(who, now),
        }
    }

    fn was_wrong_at(&self, who: &Guesser<'_>, now: Instant) -> Option<Duration> {
        let (pair, client) = self.numbers(who);
        let mut state = self.state.lock();
        state.known(pair, client)?.failures.more(1, now);
        Some(state.takes_strangers_turn(who, now).unwrap_or_default())
    }

    fn was_right_at(&self, who: &Guesser<'_>, now: Instant) {
        let (pair, client) = self.numbers(who);
        let mut state = self.state.lock();
        if let Some(known) = state.known(pair, client) {
            known.right = now;
            // What was wrong stays counted: between two logins of its user nobody has other free guesses.
            known.turn.give_back(known.failures.delay(now), now);
            return;
        }
        if let Some(debt) = state.debts.get_mut(&whose(who.from)) {
            let delay = debt.failures.delay(now);
            debt.turn(who.user, now).give_back(delay, now);
        }
        state.knows(pair, Known { client, right: now, failures: Failures::new(now), turn: Turn::new(now) });
    }

    fn numbers(&self, who: &Guesser<'_>) -> (u64, u64) {
        (self.hasher.hash_one((whose(who.from), who.user)), self.hasher.hash_one(who.client))
    }
}

impl State {
    fn known(&mut self, pair: u64, client: u64) -> Option<&mut Known> {
        self.known.get_mut(&pair)?.iter_mut().find(|known| known.client == client)
    }

    fn knows(&mut self, pair: u64, new: Known) {
        if self.known.len() >= KNOWN && !self.known.contains_key(&pair) {
            let latest = |clients: &Vec<Known>| clients.iter().map(|known| known.right).max();
            let oldest = self.known.iter().min_by_key(|(_, clients)| latest(clients)).map(|(pair, _)| *pair);
            oldest.inspect(|oldest| _ = self.known.remove(oldest));
        }
        let clients = self.known.entry(pair).or_default();
        if clients.len() >= KNOWN_CLIENTS {
            let oldest = clients.iter().enumerate().min_by_key(|(_, known)| known.right).map(|(at, _)| at);
            oldest.inspect(|oldest| _ = clients.swap_remove(*oldest));
        }
        clients.push(new);
    }

    fn takes_strangers_turn(&mut self, who: &Guesser<'_>, now: Instant) -> Option<Duration> {
        let Some(debt) = self.debts.get_mut(&whose(who.from)) else { return Some(Duration::ZERO) };
        let delay = debt.failures.delay(now);
        if delay.is_zero() {
            return Some(Duration::ZERO);
        }
        debt.turn(who.user, now).take(delay, LONGEST_WAIT, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZERO: Option<Duration> = Some(Duration::ZERO);

    fn at(address: &str) -> IpAddr {
        address.parse().unwrap()
    }

    fn who<'a>(user: &'a str, client: &'a str) -> Guesser<'a> {
        Guesser { from: at("10.0.0.1"), user, client: client.as_bytes() }
    }

    #[test]
    fn who_fails_often_waits_longer_each_time() {
        let guesses = Guesses::default();
        let (one, other) = (at("10.0.0.1"), at("10.0.0.2"));
        let delays: Vec<Duration> = (0..30).map(|_| guesses.failed(one)).collect();
        assert!(delays[..16].iter().all(Duration::is_zero) && delays[16] == FIRST_DELAY);
        assert!(delays.is_sorted() && delays[29] == LONGEST_DELAY);
        assert!(guesses.failed(other).is_zero());
        // So does their network.
        for host in 1..40 {
            guesses.failed(at(&format!("2001:db8::{host}")));
        }
        assert!(guesses.failed(at("2001:db8::ffff")) == LONGEST_DELAY);
        assert!(guesses.failed(at("2001:db8:0:1::1")).is_zero());
        // Many addresses are no way to be forgiven.
        for host in 0..ADDRESSES as u32 + 10 {
            guesses.failed(std::net::Ipv4Addr::from_bits(host).into());
            if host % 1000 == 0 {
                guesses.failed(one);
            }
        }
        assert_eq!(guesses.failed(one), LONGEST_DELAY);
    }

    #[test]
    fn guesses_are_answered_one_after_the_other_on_however_many_connections() {
        let (guesses, now) = (Guesses::default(), Instant::now());
        let fail = |times: usize| (0..times).for_each(|_| _ = guesses.failed_at(at("10.0.0.1"), now));
        let turn = |user: &str, after: Duration| guesses.takes_turn_at(&who(user, ""), now + after);
        fail(16);
        assert_eq!([turn("a", Duration::ZERO), turn("a", Duration::ZERO)], [ZERO; 2]);
        fail(20);
        let waits: Vec<_> = (0..12).map(|_| turn("a", Duration::ZERO)).collect();
        let each_after: Vec<_> = (0..11).map(|at| Some(LONGEST_DELAY * at)).collect();
        // What would take too long is not looked at, and takes no turn.
        assert_eq!((&waits[..11], waits[11]), (&each_after[..], None));
        assert_eq!(turn("a", LONGEST_DELAY), Some(LONGEST_WAIT));
        // Neither other users wait for that, nor other addresses.
        assert_eq!(turn("b", Duration::ZERO), ZERO);
        assert_eq!(guesses.takes_turn_at(&Guesser { from: at("10.0.0.2"), ..who("a", "") }, now), ZERO);
        guesses.was_right_at(&who("b", "one"), now);
        assert!(turn("b", Duration::ZERO).unwrap() < LONGEST_DELAY);
        // Of many users those wait together that have no turn of their own.
        (0..TURNS * 2).for_each(|user| _ = turn(&user.to_string(), Duration::ZERO));
        assert_eq!(turn("one more", Duration::ZERO), None);
        assert_eq!(turn("a", REMEMBERED), ZERO);
    }

    /// Somebody tries to keep all out that come from there, with names that he invents and such as there are.
    fn flood(guesses: &Guesses, now: Instant) {
        for _ in 0..20 {
            for user in (0..TURNS * 2).map(|user| user.to_string()).chain(["a".to_owned()]) {
                guesses.takes_turn_at(&who(&user, "stranger"), now);
                guesses.was_wrong_at(&who(&user, "stranger"), now);
                guesses.failed_at(at("10.0.0.1"), now);
            }
        }
    }

    #[test]
    fn who_was_right_lately_is_kept_out_by_nobody_elses_guesses() {
        let (guesses, now) = (Guesses::default(), Instant::now());
        guesses.was_right_at(&who("a", "app"), now);
        flood(&guesses, now);
        assert_eq!(guesses.takes_turn_at(&who("new", "app"), now), None);
        assert_eq!(guesses.takes_turn_at(&who("a", "another app"), now), None);
        // However often it comes.
        for _ in 0..100 {
            assert_eq!(guesses.takes_turn_at(&who("a", "app"), now), ZERO);
            guesses.was_right_at(&who("a", "app"), now);
        }
    }

    #[test]
    fn guesses_by_who_looks_like_somebody_known_wait_for_each_other() {
        let (guesses, now) = (Guesses::default(), Instant::now());
        let app = who("a", "app");
        guesses.was_right_at(&app, now);
        let guess = |now: Instant| {
            let wait = guesses.takes_turn_at(&app, now);
            guesses.was_wrong_at(&app, now);
            guesses.failed_at(app.from, now);
            wait
        };
        (0..30).for_each(|_| _ = guess(now));
        // That its user logs in meanwhile makes no guess cheaper.
        guesses.was_right_at(&app, now);
        let waits: Vec<_> = (0..20).map(|_| guess(now)).collect();
        assert!(waits.is_sorted_by_key(|wait| wait.unwrap_or(Duration::MAX)));
        assert_eq!(waits.last(), Some(&None));
        let looked_at = |within: u64| {
            (0..within * 10).filter(|at| guess(now + Duration::from_millis(at * 100)).is_some()).count()
        };
        assert!(looked_at(300) <= 301 / 3 + 10);
        assert_eq!(guesses.takes_turn_at(&app, now + Duration::from_secs(300) + REMEMBERED), ZERO);
    }

    #[test]
    fn wrong_proofs_do_not_show_who_is_known() {
        let [with, without] = [Guesses::default(), Guesses::default()];
        let now = Instant::now();
        with.was_right_at(&who("a", "app"), now);
        let held = |guesses: &Guesses| {
            flood(guesses, now);
            let guess = |at: u64| {
                let now = now + Duration::from_secs(at);
                let wait = guesses.takes_turn_at(&who("a", "app"), now).unwrap_or_default();
                let held = guesses.was_wrong_at(&who("a", "app"), now).unwrap_or(wait);
                held + guesses.failed_at(who("a", "app").from, now)
            };
            (0..40).map(guess).collect::<Vec<_>>()
        };
        assert_eq!(held(&with), held(&without));
    }

    #[test]
    fn of_those_who_are_known_the_first_are_forgotten() {
        let (guesses, now) = (Guesses::default(), Instant::now());
        let known = |user: &str, client: &str| {
            let (pair, client) = guesses.numbers(&who(user, client));
            guesses.state.lock().known(pair, client).is_some()
        };
        for client in 0..=KNOWN_CLIENTS as u64 {
            guesses.was_right_at(&who("a", &client.to_string()), now + Duration::from_secs(client));
        }
        assert!(!known("a", "0") && known("a", "1") && known("a", &KNOWN_CLIENTS.to_string()));
        let later = now + Duration::from_secs(60);
        guesses.was_right_at(&who("b", ""), later);
        (0..KNOWN - 1).for_each(|user| guesses.was_right_at(&who(&user.to_string(), ""), later));
        assert!(guesses.state.lock().known.len() == KNOWN && !known("a", "1") && known("b", ""));
    }
}
