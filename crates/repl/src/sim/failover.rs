//! How long a set is without a primary: not a check but a measurement, on simulated time.
//!
//! The settings are the defaults. The simulated hardware is that of one data centre: messages take 1 ms,
//! writing and applying an entry up to 1 ms each, a sync up to 4 ms.

use crate::config::{MemberConfig, ReplSetConfig};

use super::Plan;
use super::plan::host;
use super::world::{Event, World};

/// How often a member tries to reach another that refuses.
const REDIAL_MILLIS: u64 = 500;

/// How the primary goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    /// The primary's process is killed; the system closes its connections at once and refuses new ones.
    Killed,
    /// The primary's machine is gone without a word.
    Gone,
    /// `replSetStepDown`, or the end of the process by SIGTERM.
    SteppedDown,
}

/// Milliseconds from the moment at which the primary went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// Until another member took writes.
    pub writable: u64,
    /// Until that member could acknowledge a majority.
    pub majority: u64,
}

/// A quiet set of that many members with defaults, `latency` milliseconds from each other.
pub(super) fn plan(seed: u64, members: u64, latency: u64) -> Plan {
    let members = (0..members).map(|id| MemberConfig::new(id, host(id as usize).as_str())).collect();
    Plan {
        config: ReplSetConfig::new("rs", members),
        spares: 0,
        latency: (latency, latency),
        loss: 0,
        doubled: 0,
        late: 0,
        disk_millis: (1, 1, 4),
        cache_bytes: 1 << 20,
        without_journal: false,
        encode: false,
        together: false,
        restarts: false,
        ..Plan::of(seed)
    }
}

/// Plays one failover. None when there is no primary again within a minute.
pub fn measure(seed: u64, case: Case, members: u64, latency: u64) -> Option<Times> {
    let mut world = World::new(plan(seed, members, latency), None);
    world.initiate();
    // Any moment between two heartbeats.
    let phase = 15_000 + world.rng.below(5000);
    world.after(phase, Event::Housekeeping);
    while world.now < phase {
        world.advance();
    }
    let old = world.writable(usize::MAX)?;
    world.go(old, case);
    let begin = world.now;
    let new = world.until(begin, |world| world.writable(old))?;
    let writable = world.now - begin;
    world.until(begin, |world| {
        let (first, committed) = world.nodes[new].member.as_ref()?.leading_commit()?;
        (committed >= first).then_some(())
    })?;
    Some(Times { writable, majority: world.now - begin })
}

impl World {
    /// A machine other than `but` that takes writes.
    fn writable(&self, but: usize) -> Option<usize> {
        let takes = |node: &usize| self.nodes[*node].member.as_ref().is_some_and(|m| m.is_writable());
        (0..self.nodes.len()).filter(|node| *node != but).find(takes)
    }

    fn go(&mut self, node: usize, case: Case) {
        if case == Case::SteppedDown {
            if let Some(member) = &mut self.nodes[node].member {
                member.step_down(10_000, 60_000, false).expect("it is primary");
            }
            self.poll(node);
            return;
        }
        self.nodes[node].stop();
        if case == Case::Killed {
            for peer in (0..self.nodes.len()).filter(|peer| *peer != node) {
                // The end of the connection comes after what was sent before it; then others are refused.
                for attempt in 0..40 {
                    let incarnation = self.nodes[peer].incarnation;
                    let millis = self.plan.latency.1 + attempt * REDIAL_MILLIS;
                    self.after(millis, Event::ConnectionLost { node: peer, incarnation, peer: node });
                }
            }
        }
    }

    fn until<T>(&mut self, begin: u64, found: impl Fn(&World) -> Option<T>) -> Option<T> {
        while self.now < begin + 60_000 {
            if let Some(found) = found(self) {
                return Some(found);
            }
            if !self.advance() {
                return None;
            }
        }
        None
    }
}
