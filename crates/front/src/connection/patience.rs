//! How a busy connection's thread waits for the next message: asleep, or looking again and again for a moment before that.
//!
//! A processor that sleeps must be woken when the message comes, which takes 30 to 100 microseconds where it is a virtual one,
//! often longer than the message takes to be answered. Looking spares that, and costs the processor. Whether it is worth it depends
//! on who else wants the processor, on where the kernel puts the client, and on the machine; so it is tried, and goes on while
//! messages come the quicker for it.

use std::time::{Duration, Instant};

/// So many messages are looked at together.
const WINDOW: u32 = 64;

/// Where messages come faster than this, nobody waits for a processor to wake; where they come slower, a look is in vain.
const WAITS: std::ops::Range<Duration> = Duration::from_micros(15)..Duration::from_micros(150);

/// For so long it is looked before the thread sleeps.
const LOOK: Duration = Duration::from_micros(80);

/// A try is a success if a message and its answer take no more than this part of what they took before, in hundredths.
const GAIN: u32 = 90;

/// After so many windows with looking, one without shows whether it is still worth it.
const PROVEN: u32 = 64;

/// For so long it is not tried again after it was in vain; twice as long each time, up to the other.
const REST: Duration = Duration::from_millis(100);
const REST_MAX: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It sleeps.
    Sleeps,
    /// It looks, and before it took so long for a window of messages.
    Tries { before: Duration },
    /// It looks, and has for so many windows.
    Looks { before: Duration, windows: u32 },
}

/// How the thread of one connection waits.
pub(crate) struct Patience {
    state: State,
    messages: u32,
    /// Sums over the messages of this window.
    waited: Duration,
    taken: Duration,
    rest: Duration,
    rests_until: Option<Instant>,
}

impl Patience {
    /// At the beginning, asleep.
    pub fn new() -> Patience {
        Patience {
            state: State::Sleeps,
            messages: 0,
            waited: Duration::ZERO,
            taken: Duration::ZERO,
            rest: REST,
            rests_until: None,
        }
    }

    /// For how long to look for the next message before sleeping.
    pub fn look(&self) -> Option<Duration> {
        (self.state != State::Sleeps).then_some(LOOK)
    }

    /// A message came at `now`, `waited` after the answer to the one before it, which had taken `served`. `alone`: most processors have no
    /// such thread.
    pub fn message(&mut self, now: Instant, served: Duration, waited: Duration, alone: bool) {
        self.messages += 1;
        self.waited += waited;
        self.taken += served + waited;
        if self.messages < WINDOW && waited < WAITS.end * WINDOW {
            return;
        }
        self.state = self.next(now, alone);
        (self.messages, self.waited, self.taken) = (0, Duration::ZERO, Duration::ZERO);
    }

    /// What to do after a window.
    fn next(&mut self, now: Instant, alone: bool) -> State {
        let wait = self.waited / self.messages;
        match self.state {
            State::Sleeps => {
                let rested = self.rests_until.is_none_or(|until| now >= until);
                let before = self.taken;
                if alone && rested && WAITS.contains(&wait) { State::Tries { before } } else { State::Sleeps }
            }
            State::Looks { windows: PROVEN.., .. } => State::Sleeps,
            State::Tries { before } | State::Looks { before, .. } => {
                if alone && self.messages >= WINDOW && self.taken * 100 <= before * GAIN {
                    let windows = if let State::Looks { windows, .. } = self.state { windows + 1 } else { 0 };
                    self.rest = REST;
                    return State::Looks { before, windows };
                }
                self.rests_until = Some(now + self.rest);
                self.rest = (self.rest * 2).min(REST_MAX);
                State::Sleeps
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages as long as they are served on a machine where sleep costs `asleep` a message and looking `awake`; how many were looked for.
    fn looked_for(asleep: u64, awake: u64, alone: bool) -> u32 {
        let (mut patience, mut now, mut looked) = (Patience::new(), Instant::now(), 0);
        for _ in 0..10_000 {
            let looks = patience.look().is_some();
            looked += u32::from(looks);
            let waited = Duration::from_micros(if looks { awake } else { asleep });
            now += waited + Duration::from_micros(5);
            patience.message(now, Duration::from_micros(5), waited, alone);
        }
        looked
    }

    #[test]
    fn looking_goes_on_while_it_is_worth_it() {
        assert!(looked_for(80, 40, true) > 9_000);
        // Tried for a window at a time, ever more seldom.
        assert!((1..1_000).contains(&looked_for(80, 78, true)));
        assert!(
            (1..1_000).contains(&looked_for(80, 1000, true)),
            "others want the processor, and get it for long"
        );
        assert_eq!(looked_for(80, 40, false), 0, "there are other clients");
        assert_eq!(looked_for(6, 3, true), 0, "nobody waits");
        assert_eq!(looked_for(300, 40, true), 0, "the client takes its time");
    }

    #[test]
    fn it_sleeps_when_the_client_pauses() {
        let (mut patience, mut now) = (Patience::new(), Instant::now());
        let mut message = |patience: &mut Patience, waited: u64, times: u32| {
            for _ in 0..times {
                let waited = Duration::from_micros(waited);
                now += waited;
                patience.message(now, Duration::from_micros(5), waited, true);
            }
        };
        message(&mut patience, 80, WINDOW);
        message(&mut patience, 40, WINDOW);
        assert!(matches!(patience.state, State::Looks { .. }));
        message(&mut patience, 20_000, 1);
        assert_eq!(patience.look(), None);
    }
}
