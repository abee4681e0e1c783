//! Long operations take turns.
//!
//! Any number of operations may be under way, but where more of them compute than there are processors, each makes all
//! others slow: whoever's time is over learns of it late, and quick operations wait behind long ones. So a long operation
//! takes a turn; there are twice as many turns as processors (some holders wait for a disk). Whoever has had one for some
//! milliseconds of work hands it to who has waited longest. Nobody waits longer than [`PATIENCE`] at a time: then the
//! operation goes on without a turn, so that a holder who waits for what it has locked is never waited for in vain.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::Thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sheaf_errors::Result;

use crate::current::note_wait;
use crate::meter::Meter;

/// How long an operation waits for a turn at most.
const PATIENCE: Duration = Duration::from_millis(40);

/// How a thread waits, woken by `unpark` or when the time is over: `std::thread::park_timeout`, or what tells a thread
/// pool of it, too.
pub type Park = fn(Duration);

/// The turns of a process.
pub(crate) struct Turns {
    limit: usize,
    /// Length of the queue, to be looked at without the lock.
    waiting: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Turns that somebody has.
    taken: usize,
    queue: VecDeque<Arc<Waiter>>,
}

struct Waiter {
    thread: Thread,
    /// Set under the lock of the state.
    given: AtomicBool,
}

impl Turns {
    /// Two for each processor.
    pub(crate) fn of_processors() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self::new(2 * processors)
    }

    pub(crate) fn new(limit: usize) -> Self {
        assert!(limit > 0, "nobody could ever have a turn");
        Turns { limit, waiting: AtomicUsize::new(0), state: Mutex::default() }
    }

    /// (turns that somebody has, operations that wait for one)
    pub(crate) fn figures(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.taken, state.queue.len())
    }

    /// Whether somebody waits.
    pub(crate) fn is_wanted(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Takes a turn, or waits for one. `false`: none came in time, and the operation goes on without.
    ///
    /// Errors: those of [`Meter::check`], as soon as the operation's time is over or somebody [wakes](Meter::wake) it.
    pub(crate) fn take(&self, meter: &Meter, park: Park) -> Result<bool> {
        let waiter = {
            let mut state = self.state.lock();
            if state.taken < self.limit {
                assert!(state.queue.is_empty(), "{} wait for turns that are free", state.queue.len());
                state.taken += 1;
                return Ok(true);
            }
            let waiter = Arc::new(Waiter { thread: std::thread::current(), given: AtomicBool::new(false) });
            state.queue.push_back(waiter.clone());
            self.waiting.store(state.queue.len(), Ordering::Relaxed);
            waiter
        };
        // Of an operation's helper threads the last one is woken; the others' patience ends soon enough.
        let _waits = meter.waits();
        let began = Instant::now();
        let until = began + PATIENCE;
        loop {
            // Whoever wakes this thread has said why before, so the look comes before the sleep.
            let stopped = meter.check();
            let now = Instant::now();
            if stopped.is_err() || waiter.given.load(Ordering::Acquire) || now >= until {
                let given = self.leave_queue(&waiter);
                note_wait(began);
                if given && stopped.is_err() {
                    self.give_back();
                }
                return stopped.map(|()| given);
            }
            let left = until - now;
            park(meter.left().map_or(left, |time| left.min(time)));
        }
    }

    /// Waits no longer; says whether the turn had come.
    fn leave_queue(&self, waiter: &Arc<Waiter>) -> bool {
        let mut state = self.state.lock();
        let given = waiter.given.load(Ordering::Relaxed);
        if !given {
            let length = state.queue.len();
            state.queue.retain(|one| !Arc::ptr_eq(one, waiter));
            assert!(state.queue.len() + 1 == length, "a waiter without a turn was not in the queue");
            self.waiting.store(state.queue.len(), Ordering::Relaxed);
        }
        given
    }

    /// Hands a turn to who has waited longest.
    pub(crate) fn give_back(&self) {
        let mut state = self.state.lock();
        assert!(state.taken > 0, "a turn was given back that nobody had");
        match state.queue.pop_front() {
            Some(next) => {
                self.waiting.store(state.queue.len(), Ordering::Relaxed);
                next.given.store(true, Ordering::Release);
                next.thread.unpark();
            }
            None => state.taken -= 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::sync::mpsc;

    use sheaf_errors::{Code, Error};

    use super::*;
    use crate::{Conduct, Process, enter_as, tick};

    const PARK: Park = std::thread::park_timeout;

    fn free(process: &Arc<Process>) -> Arc<Meter> {
        Meter::background(process)
    }

    #[test]
    fn a_turn_goes_to_who_has_waited_longest() {
        let (process, turns) = (Process::new(1000, 1000), Turns::new(1));
        assert!(turns.take(&free(&process), PARK).unwrap());
        let (tell, told) = mpsc::sync_channel(3);
        std::thread::scope(|scope| {
            for number in 1..=3 {
                let (tell, process, turns) = (tell.clone(), &process, &turns);
                scope.spawn(move || {
                    // Nobody's patience is put to the test here: who got none asks again, at the end of the queue.
                    let until_given = || turns.take(&free(process), |_| std::thread::park()).unwrap();
                    assert!(until_given());
                    tell.send(number).unwrap();
                    turns.give_back();
                });
                while turns.figures().1 < number {
                    std::thread::yield_now();
                }
            }
            assert!(turns.is_wanted());
            turns.give_back();
        });
        assert_eq!(told.try_iter().collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(turns.figures(), (0, 0));
    }

    #[test]
    fn who_pauses_leaves_its_turn_to_others() {
        let process = Process::new(1000, 1000);
        let turns = process.turns();
        let _entered = enter_as(free(&process), Conduct { takes_turns: Some(PARK), ..Conduct::FREE });
        while turns.figures().0 == 0 {
            tick(1000).unwrap();
        }
        crate::pause(Duration::from_millis(1)).unwrap();
        assert_eq!(turns.figures(), (0, 0));
        while turns.figures().0 == 0 {
            tick(1000).unwrap();
        }
    }

    #[test]
    fn a_holder_that_stands_still_holds_up_nobody() {
        let (process, turns) = (Process::new(1000, 1000), Turns::new(1));
        assert!(turns.take(&free(&process), PARK).unwrap());
        assert!(!turns.take(&free(&process), PARK).unwrap());
        assert_eq!(turns.figures(), (1, 0));
        turns.give_back();
    }

    #[test]
    fn who_waits_sees_the_end_of_its_time_and_who_wakes_it() {
        let (process, turns) = (Process::new(1000, 1000), Turns::new(1));
        assert!(turns.take(&free(&process), PARK).unwrap());
        let late = free(&process);
        late.begin(Some(Instant::now() + Duration::from_millis(1)));
        assert_eq!(turns.take(&late, PARK).unwrap_err().code(), Code::MAX_TIME_MS_EXPIRED);

        let killed = Arc::new(AtomicBool::new(false));
        let seen = killed.clone();
        let source = move || match seen.load(Ordering::Relaxed) {
            true => Err(Error::new(Code::INTERRUPTED, "killed")),
            false => Ok(()),
        };
        let meter = Meter::new(&process, Arc::new(source));
        std::thread::scope(|scope| {
            // Only a waking ends this wait.
            let waiting = scope.spawn(|| turns.take(&meter, |_| std::thread::park()));
            while turns.figures().1 == 0 {
                std::thread::yield_now();
            }
            killed.store(true, Ordering::Relaxed);
            while !waiting.is_finished() {
                meter.wake();
            }
            assert_eq!(waiting.join().unwrap().unwrap_err().code(), Code::INTERRUPTED);
        });
        turns.give_back();
        assert_eq!(turns.figures(), (0, 0));
    }

    /// Many more long operations than turns: all end, few compute at once, and nothing stays taken, also by those that
    /// end with an error or a panic.
    #[test]
    fn long_operations_take_turns() {
        static MOST: AtomicU32 = AtomicU32::new(0);
        let process = Process::new(1000, 1000);
        let limit = process.turns().limit;
        let conduct = Conduct { takes_turns: Some(PARK), ..Conduct::FREE };
        std::thread::scope(|scope| {
            for number in 0..6 * limit {
                let process = &process;
                scope.spawn(move || {
                    let meter = free(process);
                    if number % 3 == 1 {
                        meter.begin(Some(Instant::now() + Duration::from_millis(5)));
                    }
                    let _entered = enter_as(meter, conduct);
                    // Those with a time work until it is over, the others for a while.
                    let ends = (number % 3 != 1).then_some(20_000);
                    let mut done = 0;
                    while ends != Some(done) && tick(500).is_ok() {
                        done += 1;
                        MOST.fetch_max(process.turn_figures().0 as u32, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(process.turn_figures(), (0, 0));
        let most = MOST.load(Ordering::Relaxed) as usize;
        assert!((1..=limit).contains(&most), "{most} of {limit} had turns at once");
    }
}
