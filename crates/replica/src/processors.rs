//! Whether the machine's processors are short: what saves processor time and costs waiting is worth it only there.

use std::time::{Duration, Instant};

/// How often it is looked.
const INTERVAL: Duration = Duration::from_secs(1);

/// They are short where less than one part in so many of their time is left.
const LEFT_PART: u64 = 5;

/// What has become of the processors' time since the machine's start, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ticks {
    all: u64,
    idle: u64,
}

impl Ticks {
    /// From the first line of `/proc/stat` (proc(5)): `cpu user nice system idle iowait irq softirq steal guest guest_nice`. Guests' time is in
    /// the user's.
    fn read(stat: &str) -> Option<Ticks> {
        let line = stat.lines().next()?.strip_prefix("cpu ")?;
        let times: Vec<u64> = line.split_whitespace().take(8).map_while(|word| word.parse().ok()).collect();
        (times.len() >= 5).then(|| Ticks { all: times.iter().sum(), idle: times[3] + times[4] })
    }
}

/// Looks once in a while.
#[derive(Default)]
pub struct Processors {
    last: Option<(Instant, Ticks)>,
    short: bool,
}

impl Processors {
    /// Whether they are short, by what became of the last second or more. Where the system does not tell, they never are.
    pub fn are_short(&mut self, now: Instant) -> bool {
        if self.last.is_none_or(|(then, _)| now.saturating_duration_since(then) >= INTERVAL) {
            let ticks = std::fs::read_to_string("/proc/stat").ok().and_then(|stat| Ticks::read(&stat));
            match ticks {
                Some(ticks) => self.note(now, ticks),
                None => *self = Processors::default(),
            }
        }
        self.short
    }

    fn note(&mut self, now: Instant, ticks: Ticks) {
        if let Some((_, before)) = self.last {
            // What waits for a disk falls back now and then (proc(5)).
            let (all, idle) = (ticks.all.saturating_sub(before.all), ticks.idle.saturating_sub(before.idle));
            self.short = idle * LEFT_PART < all;
        }
        self.last = Some((now, ticks));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_short_where_less_than_a_fifth_is_left() {
        let mut processors = Processors::default();
        let now = Instant::now();
        let mut then = |busy: u64, idle: u64| {
            let stat = format!("cpu  {busy} 0 0 {idle} 0 0 0 0 0 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n");
            processors.note(now, Ticks::read(&stat).unwrap());
            processors.short
        };
        assert!(!then(1000, 0), "nothing is known of a single look");
        assert!(then(1081, 19));
        assert!(!then(1160, 40));
        assert!(!then(1160, 30), "it went back");
    }

    #[test]
    fn the_systems_own_words_are_read() {
        let stat = "cpu  10 20 30 400 50 6 7 8 900 1000\ncpu0 1 2 3 4 5 6 7 8 9 10\n";
        assert_eq!(Ticks::read(stat), Some(Ticks { all: 531, idle: 450 }));
        assert_eq!(Ticks::read("intr 1 2 3"), None);
        assert_eq!(Ticks::read("cpu  1 2 x"), None);
        assert!(Ticks::read(&std::fs::read_to_string("/proc/stat").unwrap()).is_some());
    }
}
