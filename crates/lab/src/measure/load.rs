//! When operations start: closed and open loops, warm-up and measured part.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::stop::Stop;

/// How long a part of a run is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Span {
    /// So many seconds.
    Seconds(f64),
    /// So many operations, of all clients of the group together.
    Operations(u64),
    /// Until the workload itself has done its work.
    Unbounded,
}

/// What makes an operation start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrival {
    /// The end of the one before, on the same client.
    Closed,
    /// The clock: so many operations a second of all clients of the group together, evenly spaced. Latency counts from
    /// the moment at which the operation was due, so that waiting for a slow one before it is seen.
    Open {
        /// Operations per second.
        per_second: f64,
    },
}

/// How a group of clients is driven.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// What makes an operation start.
    pub arrival: Arrival,
    /// What comes first and is not measured; `None` for nothing.
    pub warm_up: Option<Span>,
    /// The measured part.
    pub measure: Span,
}

impl Load {
    /// One operation after another, without warm-up, until the workload's own work is done.
    pub fn unbounded() -> Load {
        Load { arrival: Arrival::Closed, warm_up: None, measure: Span::Unbounded }
    }

    /// One operation after another, without warm-up.
    pub fn closed(measure: Span) -> Load {
        Load { measure, ..Load::unbounded() }
    }
}

/// One operation's turn.
#[derive(Clone, Copy, Debug)]
pub struct Ticket {
    /// Counts the group's operations from 0, those of the warm-up included.
    pub number: u64,
    /// When the operation was due: what its latency is counted from.
    pub due: Instant,
    /// Whether it counts; false in the warm-up.
    pub measured: bool,
}

/// Hands out the turns of one group of clients.
#[derive(Debug)]
pub struct Pace {
    load: Load,
    begin: Instant,
    taken: AtomicU64,
    /// Of the measured part, after a warm-up by the clock.
    counted: AtomicU64,
    missed: AtomicU64,
    /// When the measured part began.
    measured_from: OnceLock<Instant>,
}

/// A sleeping client looks that often whether the run is being stopped.
const NAP: Duration = Duration::from_millis(50);
/// Sleeping takes longer than asked for by about this; the rest is spent looking at the clock.
const SLEEP_SLACK: Duration = Duration::from_micros(100);

impl Pace {
    /// Starts the clock.
    pub fn start(load: Load) -> Pace {
        Pace::start_at(load, Instant::now())
    }

    pub(crate) fn start_at(load: Load, begin: Instant) -> Pace {
        let measured_from = OnceLock::new();
        match load.warm_up {
            None => drop(measured_from.set(begin)),
            Some(Span::Seconds(s)) => drop(measured_from.set(begin + Duration::from_secs_f64(s.max(0.0)))),
            Some(_) => {}
        }
        Pace {
            load,
            begin,
            taken: AtomicU64::new(0),
            counted: AtomicU64::new(0),
            missed: AtomicU64::new(0),
            measured_from,
        }
    }

    /// When the measured part began, once it is known.
    pub fn measured_from(&self) -> Option<Instant> {
        self.measured_from.get().copied()
    }

    /// Operations of an open loop that were due but never started, because the server fell too far behind.
    pub fn missed(&self) -> u64 {
        self.missed.load(Ordering::Relaxed)
    }

    /// The next turn, once it is due; `None` when the part is over or the run is being stopped.
    pub fn next(&self, stop: &Stop) -> Option<Ticket> {
        if stop.is_set() {
            return None;
        }
        let number = self.taken.fetch_add(1, Ordering::Relaxed);
        let ticket = self.ticket(number, Instant::now())?;
        if ticket.due > Instant::now() && !sleep_until(ticket.due, stop) {
            return None;
        }
        Some(ticket)
    }

    /// The turn with this number, asked for at this moment.
    fn ticket(&self, number: u64, now: Instant) -> Option<Ticket> {
        let due = match self.load.arrival {
            Arrival::Closed => now,
            Arrival::Open { per_second } => self.begin + Duration::from_secs_f64(number as f64 / per_second),
        };
        let measured = match self.load.warm_up {
            None => true,
            Some(Span::Seconds(_)) => self.measured_from.get().is_some_and(|from| due >= *from),
            Some(Span::Operations(n)) => number >= n,
            Some(Span::Unbounded) => false,
        };
        if !measured {
            return Some(Ticket { number, due, measured });
        }
        let from = *self.measured_from.get_or_init(|| due);
        match self.load.measure {
            Span::Seconds(s) => {
                let length = Duration::from_secs_f64(s.max(0.0));
                if due >= from + length {
                    return None;
                }
                // A server that is too slow for the rate would hold the run up for ever: after twice the time, what
                // is still due is counted as missed instead.
                if now >= from + length * 2 {
                    self.missed.fetch_add(1, Ordering::Relaxed);
                    let rest = match self.load.arrival {
                        Arrival::Open { per_second } => {
                            ((from + length - due).as_secs_f64() * per_second) as u64
                        }
                        Arrival::Closed => 0,
                    };
                    let before = self.taken.fetch_add(rest, Ordering::Relaxed);
                    self.missed.fetch_add(rest.saturating_sub(before - number), Ordering::Relaxed);
                    return None;
                }
            }
            Span::Operations(n) => {
                // By its number, wherever that tells: who works through a list by the numbers must get each of them, and
                // none behind the last, in whatever order the clients come.
                let before = match self.load.warm_up {
                    None => number,
                    Some(Span::Operations(warm)) => number - warm,
                    Some(_) => self.counted.fetch_add(1, Ordering::Relaxed),
                };
                if before >= n {
                    return None;
                }
            }
            Span::Unbounded => {}
        }
        Some(Ticket { number, due, measured })
    }
}

/// Sleeps; false when the run was stopped meanwhile.
fn sleep_until(due: Instant, stop: &Stop) -> bool {
    loop {
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        if stop.is_set() {
            return false;
        }
        if left > SLEEP_SLACK {
            std::thread::sleep((left - SLEEP_SLACK).min(NAP));
        } else {
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(per_second: f64, warm_up: Option<Span>, measure: Span) -> (Pace, Instant) {
        let begin = Instant::now();
        (Pace::start_at(Load { arrival: Arrival::Open { per_second }, warm_up, measure }, begin), begin)
    }

    #[test]
    fn open_loop_counts_from_when_it_was_due() {
        let (pace, begin) = open(10.0, None, Span::Seconds(1.0));
        // The caller comes 700 ms late: its turn was due at 0, and the next at 100 ms.
        let late = begin + Duration::from_millis(700);
        let tickets: Vec<_> = (0..12).filter_map(|n| pace.ticket(n, late)).collect();
        assert_eq!(tickets.len(), 10);
        for (n, ticket) in tickets.iter().enumerate() {
            let due = (ticket.due - begin).as_secs_f64();
            assert!((due - n as f64 * 0.1).abs() < 1e-6, "{n}: {due}");
        }
    }

    #[test]
    fn open_loop_leaves_out_the_warm_up() {
        let (pace, begin) = open(100.0, Some(Span::Seconds(0.5)), Span::Seconds(1.0));
        let tickets: Vec<_> = (0..1000).map_while(|n| pace.ticket(n, begin)).collect();
        assert_eq!(tickets.len(), 150);
        assert_eq!(tickets.iter().filter(|t| t.measured).count(), 100);
        assert_eq!(pace.measured_from(), Some(begin + Duration::from_millis(500)));
    }

    #[test]
    fn what_can_not_start_in_twice_the_time_is_missed() {
        let (pace, begin) = open(100.0, None, Span::Seconds(1.0));
        for n in 0..30 {
            pace.taken.fetch_add(1, Ordering::Relaxed);
            assert!(pace.ticket(n, begin).is_some());
        }
        let number = pace.taken.fetch_add(1, Ordering::Relaxed);
        assert!(pace.ticket(number, begin + Duration::from_secs(2)).is_none());
        assert_eq!(pace.missed(), 70);
        assert!(pace.next(&Stop::default()).is_none());
        assert_eq!(pace.missed(), 70);
    }

    #[test]
    fn operations_are_counted_over_all_clients() {
        let load = Load {
            arrival: Arrival::Closed,
            warm_up: Some(Span::Operations(5)),
            measure: Span::Operations(20),
        };
        let pace = Pace::start(load);
        let stop = Stop::default();
        let counts = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..3)
                .map(|_| {
                    scope.spawn(|| {
                        let mut counts = [0, 0];
                        while let Some(ticket) = pace.next(&stop) {
                            counts[usize::from(ticket.measured)] += 1;
                        }
                        counts
                    })
                })
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).fold([0, 0], |a, b| [a[0] + b[0], a[1] + b[1]])
        });
        assert_eq!(counts, [5, 20]);
    }

    #[test]
    fn each_number_is_handed_out_once_and_none_behind_the_last() {
        let load = Load::closed(Span::Operations(3));
        let pace = Pace::start(load);
        // One has taken its number and is slow; the others come first.
        let slow = pace.taken.fetch_add(1, Ordering::Relaxed);
        let numbers: Vec<u64> =
            (0..5).filter_map(|_| pace.next(&Stop::default())).map(|t| t.number).collect();
        assert_eq!((slow, numbers), (0, vec![1, 2]));
        assert_eq!(pace.ticket(slow, Instant::now()).map(|ticket| ticket.number), Some(0));
        let warm = Load { warm_up: Some(Span::Operations(2)), ..load };
        let pace = Pace::start(warm);
        let measured = |number| pace.ticket(number, Instant::now()).map(|ticket| ticket.measured);
        let expected = [Some(false), None, Some(true), Some(true), Some(false), Some(true)];
        assert_eq!([1, 5, 4, 2, 0, 3].map(measured), expected);
    }

    #[test]
    fn a_stopped_run_hands_out_nothing() {
        let pace = Pace::start(Load::unbounded());
        let stop = Stop::default();
        assert!(pace.next(&stop).is_some());
        stop.set();
        assert!(pace.next(&stop).is_none());
    }
}
