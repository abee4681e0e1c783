//! Proofs of the members' key that were wrong.
//!
//! They have turns like those of users ([`super::guesses`]), by the address from which they come. A member has to get through whoever else is at
//! its address: from where a right proof has come, right ones are taken at once, and only wrong ones have to wait.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::guesses::{ADDRESSES, Failures, Map, Turn, whose};

/// Proofs that would wait longer are not looked at. Who dials waits five seconds for the answer.
const LONGEST_WAIT: Duration = Duration::from_secs(3);

/// Of an address it is told so often that it was wrong.
const TOLD: Duration = Duration::from_secs(60);

/// Who has tried to prove that it is a member, by address.
#[derive(Default)]
pub struct Members {
    addresses: Mutex<Map<IpAddr, Address>>,
}

struct Address {
    failures: Failures,
    turn: Turn,
    /// Whether a member was there.
    is_members: bool,
    told: Option<Instant>,
    /// Connections with wrong proofs, since that was told last.
    untold: u64,
}

/// What to do with a connection whose proofs were wrong.
pub struct Wrong {
    /// For so long it is held before it ends, from when the proofs came.
    pub held: Duration,
    /// So many have come from there and were not told yet, if that is to be told now.
    pub told: Option<u64>,
}

impl Members {
    /// For how long proofs are held back, be they right or wrong. `None` if they are not to be looked at: so many wait already.
    pub fn takes_turn(&self, from: IpAddr) -> Option<Duration> {
        self.takes_turn_at(from, Instant::now())
    }

    /// So many proofs on one connection were wrong, or were not looked at.
    pub fn were_wrong(&self, from: IpAddr, proofs: usize) -> Wrong {
        self.were_wrong_at(from, proofs, Instant::now())
    }

    /// A member has proved itself.
    pub fn was_right(&self, from: IpAddr) {
        self.was_right_at(from, Instant::now());
    }

    fn takes_turn_at(&self, from: IpAddr, now: Instant) -> Option<Duration> {
        let mut addresses = self.addresses.lock();
        match addresses.get_mut(&whose(from)) {
            Some(address) if !address.is_members => {
                address.turn.take(address.failures.delay(now), LONGEST_WAIT, now)
            }
            _ => Some(Duration::ZERO),
        }
    }

    fn were_wrong_at(&self, from: IpAddr, proofs: usize, now: Instant) -> Wrong {
        self.with(from, now, |address| {
            address.failures.more(proofs, now);
            address.untold += 1;
            let due = address.told.is_none_or(|told| now.saturating_duration_since(told) >= TOLD);
            let told = due.then(|| {
                address.told = Some(now);
                std::mem::take(&mut address.untold)
            });
            Wrong { held: address.failures.delay(now), told }
        })
    }

    fn was_right_at(&self, from: IpAddr, now: Instant) {
        self.with(from, now, |address| {
            address.turn.give_back(address.failures.delay(now), now);
            address.is_members = true;
        });
    }

    fn with<T>(&self, from: IpAddr, now: Instant, act: impl FnOnce(&mut Address) -> T) -> T {
        let mut addresses = self.addresses.lock();
        let from = whose(from);
        if addresses.len() >= ADDRESSES && !addresses.contains_key(&from) {
            // Those of members are few, and stay.
            let oldest =
                addresses.iter().min_by_key(|(_, address)| (address.is_members, address.failures.last));
            let oldest = oldest.map(|(from, _)| *from);
            oldest.inspect(|oldest| _ = addresses.remove(oldest));
        }
        act(addresses.entry(from).or_insert_with(|| Address {
            failures: Failures::new(now),
            turn: Turn::new(now),
            is_members: false,
            told: None,
            untold: 0,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(address: &str) -> IpAddr {
        address.parse().unwrap()
    }

    #[test]
    fn guesses_wait_for_each_other_and_members_for_none() {
        let (members, now) = (Members::default(), Instant::now());
        let (stranger, member) = (at("10.0.0.1"), at("10.0.0.2"));
        members.was_right_at(member, now);
        for address in [stranger, member] {
            assert_eq!(members.takes_turn_at(address, now), Some(Duration::ZERO));
            // A connection may bring as many as there may be keys.
            assert!(members.were_wrong_at(address, 16, now).held.is_zero());
            let held: Vec<_> = (0..10).map(|_| members.were_wrong_at(address, 1, now).held).collect();
            assert!(held.is_sorted() && !held[0].is_zero() && held[9] == Duration::from_secs(3));
        }
        let waits: Vec<_> = (0..3).map(|_| members.takes_turn_at(stranger, now)).collect();
        assert_eq!(waits, [Some(Duration::ZERO), Some(Duration::from_secs(3)), None]);
        assert!((0..100).all(|_| members.takes_turn_at(member, now) == Some(Duration::ZERO)));
        assert_eq!(members.takes_turn_at(at("10.0.0.3"), now), Some(Duration::ZERO));
        // A member has come to where somebody guesses.
        members.was_right_at(stranger, now);
        assert!((0..100).all(|_| members.takes_turn_at(stranger, now) == Some(Duration::ZERO)));
    }

    #[test]
    fn an_address_is_told_once_a_minute_with_how_often() {
        let (members, now) = (Members::default(), Instant::now());
        let told = |address: &str, seconds: u64| {
            members.were_wrong_at(at(address), 16, now + Duration::from_secs(seconds)).told
        };
        assert_eq!([told("10.0.0.1", 0), told("10.0.0.2", 0)], [Some(1); 2]);
        assert!((0..59).all(|second| told("10.0.0.1", second).is_none()));
        assert_eq!(told("10.0.0.1", 60), Some(60));
    }

    #[test]
    fn many_addresses_do_not_make_members_forgotten() {
        let (members, now) = (Members::default(), Instant::now());
        members.was_right_at(at("10.0.0.1"), now);
        for host in 0..ADDRESSES as u32 + 10 {
            members.were_wrong_at(std::net::Ipv4Addr::from_bits(host).into(), 1, now);
        }
        let addresses = members.addresses.lock();
        assert!(addresses.len() == ADDRESSES && addresses[&at("10.0.0.1")].is_members);
    }
}
