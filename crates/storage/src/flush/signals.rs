//! What the keeper is told, and how it waits for that.

use std::time::{Duration, Instant};

use crate::critical::must;
use crate::order::{Condvar, Mutex, rank};

/// The keeper looks so often, also when nobody asks.
const LOOK_AROUND: Duration = Duration::from_millis(500);

/// What the keeper is told. Its lock is a leaf.
#[derive(Default)]
pub(crate) struct Signals {
    state: Mutex<{ rank::LEAF }, State>,
    /// The keeper alone waits for it.
    changed: Condvar,
    /// Background work is to end.
    ended: Condvar,
}

#[derive(Default)]
struct State {
    running: bool,
    stop: bool,
    asked: bool,
}

impl Signals {
    /// The keeper is about to begin.
    pub fn begin(&self) {
        let mut state = self.state.lock();
        must!(!state.running, "there is one keeper");
        state.running = true;
    }

    /// Ends the keeper.
    pub fn stop(&self) {
        self.state.lock().stop = true;
        self.changed.notify_all();
        self.ended.notify_all();
    }

    /// Whether background work is to end.
    pub fn is_stopping(&self) -> bool {
        self.state.lock().stop
    }

    /// Whether somebody will flush.
    pub fn works(&self) -> bool {
        let state = self.state.lock();
        state.running && !state.stop
    }

    /// Has the keeper look at once whether a flush is due.
    pub fn ask(&self) {
        let mut state = self.state.lock();
        if !state.asked {
            state.asked = true;
            self.changed.notify_one();
        }
    }

    /// Waits, unless background work is to end.
    pub fn pause(&self, pause: Duration) {
        let began = Instant::now();
        let mut state = self.state.lock();
        while !state.stop && began.elapsed() < pause {
            self.changed.wait_for(&mut state, pause.saturating_sub(began.elapsed()));
        }
    }

    /// Has another thread than the keeper wait, unless background work is to end. False: it is.
    pub fn rest(&self, pause: Duration) -> bool {
        let began = Instant::now();
        let mut state = self.state.lock();
        while !state.stop && began.elapsed() < pause {
            self.ended.wait_for(&mut state, pause.saturating_sub(began.elapsed()));
        }
        !state.stop
    }

    /// Waits until there may be something to do. False: it is over.
    pub fn wait(&self) -> bool {
        let mut state = self.state.lock();
        if !state.asked && !state.stop {
            self.changed.wait_for(&mut state, LOOK_AROUND);
        }
        state.asked = false;
        !state.stop
    }
}
