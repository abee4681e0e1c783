//! How fast writers may fill memory while a flush is writing.
//!
//! Memory that a flush writes is free again when all of it is on disk. Writers that fill the rest of it sooner would stand until then, all at
//! once and for as long as the flush takes. So they are held back from the beginning, each a little: as far as the flush is believed to
//! be on its way, so much of the room may be taken.

use std::time::{Duration, Instant};

use crate::order::{Mutex, rank};

/// No write is held back longer than this at a time.
const PAUSE_MAX: Duration = Duration::from_millis(200);

/// Part of the room that is taken without a pause.
const FREE: f64 = 0.1;

/// A flush may take so much longer than the ones before.
const LATE: f64 = 1.25;

/// Smaller ones tell nothing of the disk's rate.
const TELLING_BYTES: u64 = 8 << 20;

#[derive(Clone, Copy, Default)]
struct State {
    /// When the flush that is under way has begun.
    began: Option<Instant>,
    /// What a byte takes, averaged over the last flushes. `None` before the first.
    seconds_a_byte: Option<f64>,
}

#[derive(Default)]
pub(super) struct Pace(Mutex<{ rank::LEAF }, State>);

impl Pace {
    /// A flush begins.
    pub fn begin(&self, now: Instant) {
        self.0.lock().began = Some(now);
    }

    /// It has ended; `written` says so many bytes, if it was a success.
    pub fn end(&self, now: Instant, written: Option<u64>) {
        let mut state = self.0.lock();
        let Some(began) = state.began.take() else { return };
        if let Some(bytes) = written.filter(|bytes| *bytes >= TELLING_BYTES) {
            let this = (now - began).as_secs_f64() / bytes as f64;
            state.seconds_a_byte = Some(state.seconds_a_byte.map_or(this, |before| (before + this) / 2.0));
        }
    }

    /// For how long whoever writes now should pause: so many bytes are being flushed, and so many have come since, of the `room` that is left.
    pub fn pause(&self, now: Instant, flushing: u64, since: u64, room: u64) -> Option<Duration> {
        let State { began, seconds_a_byte } = *self.0.lock();
        let takes = seconds_a_byte? * flushing as f64 * LATE;
        let done = (now - began?).as_secs_f64() / takes;
        let ahead = since as f64 / room.max(1) as f64 - FREE - (1.0 - FREE) * done.min(1.0);
        (ahead > 0.0).then(|| Duration::try_from_secs_f64(ahead * takes).unwrap_or(PAUSE_MAX).min(PAUSE_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1 << 20;

    #[test]
    fn room_is_taken_as_the_flush_goes_on() {
        let pace = Pace::default();
        let start = Instant::now();
        let at = |seconds: f64| start + Duration::from_secs_f64(seconds);
        pace.begin(start);
        assert_eq!(pace.pause(at(0.1), 100 * MB, 99 * MB, 100 * MB), None, "nothing is known yet");
        pace.end(at(1.0), Some(100 * MB));

        pace.begin(at(2.0));
        // Takes 1.25 seconds at the most.
        assert_eq!(pace.pause(at(2.0), 100 * MB, 9 * MB, 100 * MB), None);
        let pause = pace.pause(at(2.0), 100 * MB, 14 * MB, 100 * MB).unwrap();
        assert!((0.049..0.051).contains(&pause.as_secs_f64()), "{pause:?}");
        assert_eq!(pace.pause(at(2.0), 100 * MB, 90 * MB, 100 * MB), Some(PAUSE_MAX));
        assert_eq!(pace.pause(at(2.7), 100 * MB, 50 * MB, 100 * MB), None);
        assert_eq!(pace.pause(at(4.0), 100 * MB, 99 * MB, 100 * MB), None, "late, and there is room");
        pace.end(at(5.0), None);
        assert_eq!(pace.pause(at(5.0), 0, 99 * MB, 100 * MB), None, "none is under way");
    }
}
