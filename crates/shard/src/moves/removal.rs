//! Removing what a shard has given away, or received in vain.

use std::collections::BTreeMap;
use std::mem;

use crate::placement::Key;

use super::PlacementChange;

/// After how long something that failed is tried again.
const AGAIN_MILLIS: u64 = 500;

/// What the driver has to do.
#[derive(Clone, Debug, PartialEq)]
pub enum RemovalEffect {
    /// When no cursor and no reader can need the range any more: [`Removals::unneeded`].
    Await {
        /// The collection.
        uuid: [u8; 16],
        /// Where the range begins.
        min: Key,
        /// Where it ends.
        max: Key,
    },
    /// Remove a piece of it: [`Removals::removed`].
    Remove {
        /// The collection.
        uuid: [u8; 16],
        /// Where the range begins.
        min: Key,
        /// Where it ends.
        max: Key,
    },
    /// Change the placement: [`Removals::placed`].
    Place {
        /// The collection.
        uuid: [u8; 16],
        /// The change.
        change: PlacementChange,
    },
}

#[derive(Debug, PartialEq)]
enum State {
    Awaiting,
    Removing,
    Unmarking,
}

#[derive(Debug)]
struct Removal {
    max: Key,
    state: State,
    again_at: Option<u64>,
}

/// All removals of a shard, on its primary. They need nothing but the placements' `leaving`: the next primary begins anew with what is
/// marked then.
#[derive(Debug, Default)]
pub struct Removals {
    leading: bool,
    now: u64,
    running: BTreeMap<([u8; 16], Key), Removal>,
    out: Vec<RemovalEffect>,
}

impl Removals {
    /// A member's, before it is the primary.
    pub fn new() -> Self {
        Removals::default()
    }

    /// What the driver has to do.
    pub fn poll(&mut self) -> Vec<RemovalEffect> {
        mem::take(&mut self.out)
    }

    /// This member takes writes from now on. All placements are to be told.
    pub fn became_primary(&mut self) {
        self.leading = true;
        self.running.clear();
    }

    /// This member takes no writes any more.
    pub fn lost_primary(&mut self) {
        self.leading = false;
        self.running.clear();
        self.out.clear();
    }

    /// Whether nothing is being removed.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty()
    }

    /// A collection's placement has these ranges in `leaving` now.
    pub fn placement(&mut self, uuid: [u8; 16], leaving: Vec<(Key, Key)>) {
        if !self.leading {
            return;
        }
        self.running.retain(|(of, min), _| *of != uuid || leaving.iter().any(|(other, _)| other == min));
        for (min, max) in leaving {
            if self.running.contains_key(&(uuid, min.clone())) {
                continue;
            }
            self.out.push(RemovalEffect::Await { uuid, min: min.clone(), max: max.clone() });
            self.running.insert((uuid, min), Removal { max, state: State::Awaiting, again_at: None });
        }
    }

    /// Nobody needs the range any more that begins at `min`.
    pub fn unneeded(&mut self, uuid: [u8; 16], min: &Key) {
        self.go_on(uuid, min, &State::Awaiting, State::Removing);
    }

    /// A piece was removed; if there is no more, that was the last. None: it could not be done.
    pub fn removed(&mut self, uuid: [u8; 16], min: &Key, more: Option<bool>) {
        match more {
            Some(false) => self.go_on(uuid, min, &State::Removing, State::Unmarking),
            Some(true) => self.go_on(uuid, min, &State::Removing, State::Removing),
            None => self.later(uuid, min),
        }
    }

    /// The placement was changed, or it could not be.
    pub fn placed(&mut self, uuid: [u8; 16], min: &Key, done: bool) {
        if done {
            self.running.remove(&(uuid, min.clone()));
        } else {
            self.later(uuid, min);
        }
    }

    /// Time has passed: milliseconds of a clock that does not go back.
    pub fn tick(&mut self, now: u64) {
        self.now = self.now.max(now);
        let due =
            self.running.iter().filter(|(_, removal)| removal.again_at.is_some_and(|at| at <= self.now));
        let due: Vec<([u8; 16], Key)> = due.map(|(of, _)| of.clone()).collect();
        for (uuid, min) in due {
            self.work(uuid, &min);
        }
    }

    fn later(&mut self, uuid: [u8; 16], min: &Key) {
        let at = self.now + AGAIN_MILLIS;
        if let Some(removal) = self.running.get_mut(&(uuid, min.clone())) {
            removal.again_at = Some(at);
        }
    }

    fn go_on(&mut self, uuid: [u8; 16], min: &Key, from: &State, to: State) {
        let Some(removal) = self.running.get_mut(&(uuid, min.clone())) else { return };
        if removal.state == *from {
            removal.state = to;
            self.work(uuid, min);
        }
    }

    fn work(&mut self, uuid: [u8; 16], min: &Key) {
        let Some(removal) = self.running.get_mut(&(uuid, min.clone())) else { return };
        removal.again_at = None;
        let (min, max) = (min.clone(), removal.max.clone());
        self.out.push(match removal.state {
            State::Awaiting => RemovalEffect::Await { uuid, min, max },
            State::Removing => RemovalEffect::Remove { uuid, min, max },
            State::Unmarking => RemovalEffect::Place { uuid, change: PlacementChange::Removed { min } },
        });
    }
}
