//! A set whose machines and network are overloaded, and whose primary is well: nobody is to be elected.

use super::Plan;
use super::failover::plan;
use super::world::{Event, World};

/// Milliseconds between two spells of noise, on average, and how long one lasts at the most.
const BETWEEN: u64 = 20_000;
const SPELL: u64 = 30_000;

/// Plays so many milliseconds of a set of three with default settings: processes that get no turn for up to 0.7 seconds, alone and together,
/// messages that are lost, and spells in which each takes up to 0.3 seconds. Gives the terms in which there was a primary.
pub fn terms(seed: u64, millis: u64) -> u64 {
    let quiet = plan(seed, 3, 1);
    let noisy = Plan {
        loss: 1,
        doubled: 1,
        latency: (1, 3),
        disk_millis: (5, 20, 60),
        write_gap_millis: 5000,
        ..quiet
    };
    let mut world = World::new(noisy, None);
    world.initiate();
    world.after(15_000, Event::Client);
    let (mut next, mut calm_at) = (20_000, 0);
    while world.now < millis && world.advance() {
        if world.now >= calm_at {
            world.plan.latency = (1, 3);
        }
        if world.now >= next {
            next = world.now + world.rng.below(2 * BETWEEN);
            calm_at = calm_at.max(world.noise());
        }
    }
    assert!(world.failure.is_none(), "{:?}", world.failure);
    world.checker.primaries()
}

impl World {
    /// One disturbance. When it is over, if it is a spell.
    fn noise(&mut self) -> u64 {
        let all = self.nodes.len() as u64;
        let starve = |world: &mut World, node: u64, most: u64| {
            world.nodes[node as usize].paused_until = world.now + world.rng.between(20, most);
        };
        match self.rng.below(4) {
            0 => {
                let node = self.rng.below(all);
                starve(self, node, 700);
            }
            1 => (0..all).for_each(|node| starve(self, node, 700)),
            2 => {
                self.plan.latency = (1, self.rng.between(20, 300));
                return self.now + self.rng.below(SPELL);
            }
            _ => {
                // The same process gets no turn again and again.
                let node = self.rng.below(all);
                starve(self, node, 300);
            }
        }
        0
    }
}
