//! Who gets room next.
//!
//! Who came first, but nobody waits behind a user who has more of it than he has: what one has under way, however slowly it comes, costs
//! others the time in which one of his messages is cut, not that of all of them.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Who has fewer shares of the room goes first; there are so many of them.
const SHARES: u64 = 8;

/// Room of one kind. Units are what [`Queue::new`] was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// That of small messages.
    Small(u64),
    /// That of all.
    Common(u64),
    /// The message goes on without any, one at a time.
    Overdraft,
}

/// What a message asks for.
#[derive(Clone, Copy)]
pub(super) struct Ask {
    /// Whose it is.
    pub owner: u64,
    /// Of the common room.
    pub common: u64,
    /// Instead of it, so much of that of small messages.
    pub small: Option<u64>,
}

/// The room, and who waits for it.
pub(super) struct Queue {
    state: Mutex<State>,
    share: u64,
}

struct State {
    common: u64,
    small: u64,
    overdraft: bool,
    /// What users have, if it is anything.
    held: HashMap<u64, u64, ahash::RandomState>,
    /// Who came first is first.
    waiting: Vec<Waiter>,
    next: u64,
    closed: bool,
}

struct Waiter {
    number: u64,
    ask: Ask,
    granted: Option<Room>,
    wake: Arc<Notify>,
}

impl Queue {
    /// With so much common room, and so much for small messages.
    pub fn new(common: u64, small: u64) -> Queue {
        let state = State {
            common,
            small,
            overdraft: true,
            held: HashMap::default(),
            waiting: Vec::new(),
            next: 0,
            closed: false,
        };
        Queue { state: Mutex::new(state), share: ((common + small) / SHARES).max(1) }
    }

    /// Nobody gets room any more.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.waiting.iter().for_each(|waiter| waiter.wake.notify_one());
    }

    /// Takes room, or a place among those who wait for it. `None`: the queue is closed.
    pub fn ask(&self, ask: Ask) -> Option<Result<Room, Place<'_>>> {
        let mut state = self.state.lock();
        if state.closed {
            return None;
        }
        if state.waiting.is_empty()
            && let Some(room) = ask.rooms().find(|room| state.has(*room))
        {
            state.give(ask.owner, room);
            return Some(Ok(room));
        }
        let number = state.next;
        state.next += 1;
        let wake = Arc::new(Notify::new());
        state.waiting.push(Waiter { number, ask, granted: None, wake: wake.clone() });
        self.grant(&mut state);
        let at_once = state.take(number);
        drop(state);
        Some(at_once.ok_or_else(|| Place { queue: self, number, wake }))
    }

    /// What is left: (common, small).
    #[cfg(test)]
    pub fn free(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.common, state.small)
    }

    /// Gives back what this user had.
    pub fn give_back(&self, owner: u64, room: Room) {
        let mut state = self.state.lock();
        state.put_back(owner, room);
        self.grant(&mut state);
    }

    /// Gives what there is to those whose turn it is.
    fn grant(&self, state: &mut State) {
        loop {
            let small = state.first(self.share, true).and_then(|at| Some((at, state.waiting[at].ask.small?)));
            let small =
                small.map(|(at, units)| (at, Room::Small(units))).filter(|(_, room)| state.has(*room));
            // Of the common room nobody has anything before those whose turn is earlier, or large ones would wait for ever.
            let any = || {
                let at = state.first(self.share, false)?;
                Some((at, state.waiting[at].ask.rooms().find(|room| state.has(*room))?))
            };
            let Some((at, room)) = small.or_else(any) else { return };
            state.give(state.waiting[at].ask.owner, room);
            let waiter = &mut state.waiting[at];
            waiter.granted = Some(room);
            waiter.wake.notify_one();
        }
    }
}

impl Ask {
    /// What would do, best first. Without room: one alone, so that those who have a part cannot wait for each other for ever.
    fn rooms(&self) -> impl Iterator<Item = Room> {
        self.small.map(Room::Small).into_iter().chain([Room::Common(self.common), Room::Overdraft])
    }
}

impl State {
    fn has(&self, room: Room) -> bool {
        match room {
            Room::Small(units) => units <= self.small,
            Room::Common(units) => units <= self.common,
            Room::Overdraft => self.overdraft,
        }
    }

    fn give(&mut self, owner: u64, room: Room) {
        match room {
            Room::Small(units) => self.small -= units,
            Room::Common(units) => self.common -= units,
            Room::Overdraft => self.overdraft = false,
        }
        *self.held.entry(owner).or_default() += room.units();
    }

    fn put_back(&mut self, owner: u64, room: Room) {
        match room {
            Room::Small(units) => self.small += units,
            Room::Common(units) => self.common += units,
            Room::Overdraft => self.overdraft = true,
        }
        if room.units() > 0 {
            let held = self.held.get_mut(&owner).expect("who gives back has something");
            *held -= room.units();
            if *held == 0 {
                self.held.remove(&owner);
            }
        }
    }

    /// Whose turn it is, of all, or of those who have small messages.
    fn first(&self, share: u64, small: bool) -> Option<usize> {
        let waits = |waiter: &&Waiter| waiter.granted.is_none() && (!small || waiter.ask.small.is_some());
        let shares = |waiter: &Waiter| self.held.get(&waiter.ask.owner).map_or(0, |held| held / share);
        let turn = |waiter: &Waiter| (shares(waiter), waiter.number);
        let number = self.waiting.iter().filter(waits).map(turn).min()?.1;
        self.waiting.iter().position(|waiter| waiter.number == number)
    }

    /// Who has this number does not wait any more: what it was given.
    fn take(&mut self, number: u64) -> Option<Room> {
        let at = self.waiting.iter().position(|waiter| waiter.number == number)?;
        self.waiting[at].granted?;
        self.waiting.remove(at).granted
    }
}

impl Room {
    fn units(self) -> u64 {
        match self {
            Room::Small(units) | Room::Common(units) => units,
            Room::Overdraft => 0,
        }
    }
}

/// A place among those who wait. Who leaves it before it is his turn gives back what he was just given.
pub(super) struct Place<'q> {
    queue: &'q Queue,
    number: u64,
    wake: Arc<Notify>,
}

impl Place<'_> {
    /// Waits for room. `None`: the queue was closed.
    pub async fn wait(&mut self) -> Option<Room> {
        loop {
            {
                let mut state = self.queue.state.lock();
                if state.closed {
                    return None;
                }
                if let Some(room) = state.take(self.number) {
                    return Some(room);
                }
            }
            self.wake.notified().await;
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut state = self.queue.state.lock();
        let Some(at) = state.waiting.iter().position(|waiter| waiter.number == self.number) else { return };
        let Waiter { ask, granted, .. } = state.waiting.remove(at);
        if let Some(room) = granted {
            state.put_back(ask.owner, room);
        }
        self.queue.grant(&mut state);
    }
}
