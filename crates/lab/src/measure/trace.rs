//! When operations were tried and when they succeeded, finely: to see how long there was no service around a fault, and
//! how it felt.
//!
//! A trace is kept only for runs with faults, and for workloads that tell of stalls. All threads write into it without locks: one bit for each millisecond in
//! which an operation of its kind succeeded, another one for each in which one was under way, and for each tenth of a
//! second a small histogram.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::results::Moment;

/// Length of a slot.
const SLOT_MS: u64 = 100;
/// Milliseconds of a part, which is allocated as a whole.
const PART_MS: u64 = 64_000;
/// Parts: a day and a half. What comes later is not kept.
const PARTS: usize = 2048;
/// An operation that failed is tried again: shorter times without any try belong to the time without service.
const AGAIN_MS: u64 = 250;
/// Buckets of a slot: four for each doubling, from 1 us.
const BUCKETS: usize = 128;

/// When operations of one kind succeeded.
#[derive(Debug)]
pub struct Trace {
    parts: Vec<OnceLock<Box<Part>>>,
}

#[derive(Debug)]
struct Part {
    /// Milliseconds in which an operation succeeded.
    succeeded: Bits,
    /// Milliseconds in which an operation was under way, however it ended.
    tried: Bits,
    slots: Vec<Slot>,
}

/// A bit for each millisecond of a part.
#[derive(Debug)]
struct Bits(Vec<AtomicU64>);

impl Bits {
    fn new() -> Bits {
        Bits((0..PART_MS / 64).map(|_| AtomicU64::new(0)).collect())
    }

    /// Sets the bits from the first to the last.
    fn set(&self, first: u64, last: u64) {
        for word in first / 64..=last / 64 {
            let from = if word == first / 64 { first % 64 } else { 0 };
            let to = if word == last / 64 { last % 64 } else { 63 };
            let bits = (u64::MAX << from) & (u64::MAX >> (63 - to));
            let word = &self.0[word as usize];
            // Mostly they are set already, and then nobody's cache line is taken away.
            if word.load(Ordering::Relaxed) & bits != bits {
                word.fetch_or(bits, Ordering::Relaxed);
            }
        }
    }

    fn word(&self, at: usize) -> u64 {
        self.0[at].load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
struct Slot {
    buckets: [AtomicU32; BUCKETS],
    errors: AtomicU32,
    max_us: AtomicU32,
}

impl Default for Slot {
    fn default() -> Slot {
        Slot {
            buckets: std::array::from_fn(|_| AtomicU32::new(0)),
            errors: AtomicU32::new(0),
            max_us: AtomicU32::new(0),
        }
    }
}

impl Default for Part {
    fn default() -> Part {
        let slots = (PART_MS / SLOT_MS) as usize;
        Part {
            succeeded: Bits::new(),
            tried: Bits::new(),
            slots: (0..slots).map(|_| Slot::default()).collect(),
        }
    }
}

impl Default for Trace {
    fn default() -> Trace {
        Trace { parts: (0..PARTS).map(|_| OnceLock::new()).collect() }
    }
}

/// A time in which operations were under way, or tried again, and none succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// Milliseconds since the measured part began: of the last success before, or when the first try after it began.
    pub from_ms: u64,
    /// Of the first success after, or when the last try ended that was followed by none.
    pub to_ms: u64,
}

impl Gap {
    /// Its length.
    pub fn length_ms(self) -> u64 {
        self.to_ms - self.from_ms
    }
}

/// The bucket of a latency.
fn bucket(us: u64) -> usize {
    if us < 4 {
        return us as usize;
    }
    let octave = us.ilog2() as usize;
    let quarter = (us >> (octave - 2)) as usize & 3;
    (octave * 4 + quarter).min(BUCKETS - 1)
}

/// The middle of a bucket.
fn middle_us(bucket: usize) -> f64 {
    if bucket < 8 {
        return bucket.min(4) as f64;
    }
    let (octave, quarter) = (bucket / 4, bucket % 4);
    (4.5 + quarter as f64) * f64::powi(2.0, octave as i32 - 2)
}

impl Trace {
    /// Another one of these would double the part; it is made by whoever comes first.
    fn part(&self, ms: u64) -> Option<&Part> {
        let part = self.parts.get((ms / PART_MS) as usize)?;
        Some(part.get_or_init(Box::default))
    }

    /// An operation succeeded so long after the measured part began; it took so long.
    pub fn succeeded(&self, at: Duration, took: Duration) {
        self.tried(at, took);
        let ms = at.as_millis() as u64;
        let Some(part) = self.part(ms) else { return };
        let within = ms % PART_MS;
        part.succeeded.set(within, within);
        let slot = &part.slots[(within / SLOT_MS) as usize];
        let us = took.as_micros().min(u128::from(u32::MAX)) as u64;
        slot.buckets[bucket(us)].fetch_add(1, Ordering::Relaxed);
        slot.max_us.fetch_max(us as u32, Ordering::Relaxed);
    }

    /// An operation failed for good, after so long.
    pub fn failed(&self, at: Duration, took: Duration) {
        self.tried(at, took);
        let ms = at.as_millis() as u64;
        if let Some(part) = self.part(ms) {
            part.slots[(ms % PART_MS / SLOT_MS) as usize].errors.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// An operation was under way for so long until then, and neither succeeded nor failed for good: it will be tried anew.
    pub fn tried(&self, at: Duration, took: Duration) {
        let (mut first, last) = (at.saturating_sub(took).as_millis() as u64, at.as_millis() as u64);
        while first <= last {
            let Some(part) = self.part(first) else { return };
            let end = last.min(first - first % PART_MS + PART_MS - 1);
            part.tried.set(first % PART_MS, end % PART_MS);
            first = end + 1;
        }
    }

    /// The milliseconds in which something was under way or succeeded, in order, each with whether something succeeded.
    fn milliseconds(&self) -> impl Iterator<Item = (u64, bool)> + '_ {
        let parts = self.parts.iter().enumerate().filter_map(|(at, part)| Some((at, part.get()?)));
        let words = parts.flat_map(|(at, part)| {
            (0..(PART_MS / 64) as usize).map(move |word| {
                let first = at as u64 * PART_MS + word as u64 * 64;
                (first, part.succeeded.word(word), part.tried.word(word))
            })
        });
        words.flat_map(|(first, succeeded, tried)| {
            let any = succeeded | tried;
            (0..64)
                .filter(move |bit| any >> bit & 1 == 1)
                .map(move |bit| (first + bit, succeeded >> bit & 1 == 1))
        })
    }

    /// All times without service that lasted longer than a millisecond, in order. A time in which nobody tried anything is
    /// none: that nobody asks for a service says nothing about it.
    pub fn gaps(&self) -> Vec<Gap> {
        let mut gaps = Vec::new();
        // Since when there was no success, and the last millisecond with a try.
        let mut open: Option<(u64, u64)> = None;
        let mut last_success = None;
        let mut close = |from_ms: u64, to_ms: u64| {
            if to_ms > from_ms + 1 {
                gaps.push(Gap { from_ms, to_ms });
            }
        };
        for (ms, success) in self.milliseconds() {
            if let Some((from, last)) = open.filter(|(_, last)| ms > last + AGAIN_MS) {
                close(from, last + 1);
                open = None;
            }
            // Whoever is under way just after a success waits since that.
            let begin = last_success.filter(|success| success + 1 == ms).unwrap_or(ms);
            let from = open.map_or(begin, |(from, _)| from);
            if success {
                close(from, ms);
                (open, last_success) = (None, Some(ms));
            } else {
                open = Some((from, ms));
            }
        }
        if let Some((from, last)) = open {
            close(from, last + 1);
        }
        gaps
    }

    /// Operations that succeeded.
    pub fn count(&self) -> u64 {
        let slots = self.parts.iter().filter_map(OnceLock::get).flat_map(|part| &part.slots);
        slots.flat_map(|slot| &slot.buckets).map(|bucket| u64::from(bucket.load(Ordering::Relaxed))).sum()
    }

    /// How it went in this stretch, by tenths of a second.
    pub fn moments(&self, stretch: std::ops::Range<u64>) -> Vec<Moment> {
        let first = stretch.start / SLOT_MS;
        let slots = (first..stretch.end.div_ceil(SLOT_MS)).map(|slot| slot * SLOT_MS);
        slots.map(|ms| self.moment(ms)).collect()
    }

    fn moment(&self, ms: u64) -> Moment {
        let at_s = ms as f64 / 1e3;
        let part = self.parts.get((ms / PART_MS) as usize).and_then(OnceLock::get);
        let Some(part) = part else { return Moment { at_s, ..Moment::default() } };
        let slot = &part.slots[(ms % PART_MS / SLOT_MS) as usize];
        let counts: Vec<u64> = slot.buckets.iter().map(|n| u64::from(n.load(Ordering::Relaxed))).collect();
        let count: u64 = counts.iter().sum();
        let mut seen = 0;
        let median = counts.iter().position(|n| {
            seen += n;
            seen * 2 >= count && count > 0
        });
        let max_us = f64::from(slot.max_us.load(Ordering::Relaxed));
        Moment {
            at_s,
            count,
            errors: u64::from(slot.errors.load(Ordering::Relaxed)),
            p50_us: median.map_or(0.0, middle_us).min(max_us),
            max_us,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn gap(from_ms: u64, to_ms: u64) -> Gap {
        Gap { from_ms, to_ms }
    }

    #[test]
    fn gaps_are_times_of_waiting() {
        let trace = Trace::default();
        // One each 10 ms that takes 10 ms; from 2 s on one waits until 3.5 s, and another one until 3.6 s. Across the
        // border of parts, too.
        for at in (10..70_000).step_by(10).filter(|at| !(2_000..3_500).contains(at)) {
            trace.succeeded(ms(at), ms(10));
        }
        trace.succeeded(ms(3_500), ms(1_510));
        trace.succeeded(ms(3_605), ms(1_400));
        trace.succeeded(ms(73_000), ms(3_010));
        let long: Vec<Gap> = trace.gaps().into_iter().filter(|gap| gap.length_ms() > 10).collect();
        assert_eq!(long, [gap(1_990, 3_500), gap(69_990, 73_000)]);
        assert!(Trace::default().gaps().is_empty());
    }

    #[test]
    fn what_nobody_asks_for_is_not_missed() {
        let trace = Trace::default();
        // Once a second, and it takes 20 ms: that is all the waiting there is.
        (1..30).for_each(|second| trace.succeeded(ms(second * 1_000), ms(20)));
        assert!(trace.gaps().iter().all(|gap| gap.length_ms() == 20), "{:?}", trace.gaps());
        // One gives up and does not come back; the next comes later and succeeds.
        trace.failed(ms(31_000), ms(400));
        trace.succeeded(ms(33_000), ms(5));
        assert_eq!(trace.gaps()[29..], [gap(30_600, 31_001), gap(32_995, 33_000)]);
    }

    #[test]
    fn what_fails_and_is_tried_again_is_missed_all_the_time() {
        let trace = Trace::default();
        trace.succeeded(ms(1_000), ms(1));
        // Refused at once, again and again; and one that has to be begun anew.
        (1_100..4_000).step_by(100).for_each(|at| trace.failed(ms(at), ms(1)));
        trace.tried(ms(4_200), ms(150));
        trace.succeeded(ms(4_300), ms(2));
        assert_eq!(trace.gaps(), [gap(1_099, 4_300)]);
    }

    #[test]
    fn moments_have_count_median_and_worst() {
        let trace = Trace::default();
        for us in [200, 210, 220, 5_000, 90_000] {
            trace.succeeded(ms(1_250), Duration::from_micros(us));
        }
        trace.failed(ms(1_299), ms(1));
        let moments = trace.moments(1_100..1_400);
        let counts: Vec<_> = moments.iter().map(|moment| (moment.at_s, moment.count)).collect();
        assert_eq!(counts, [(1.1, 0), (1.2, 5), (1.3, 0)]);
        let moment = &moments[1];
        assert_eq!((moment.errors, moment.max_us), (1, 90_000.0));
        assert!((moment.p50_us / 220.0 - 1.0).abs() < 0.13, "{}", moment.p50_us);
        // Far beyond what is kept: nothing, and no harm.
        trace.succeeded(Duration::from_secs(1 << 30), ms(1));
    }

    #[test]
    fn buckets_are_in_order_and_near() {
        let mut last = 0;
        for us in 1..2_000_000u64 {
            let bucket = bucket(us);
            assert!(bucket >= last && bucket < BUCKETS, "{us}");
            last = bucket;
            let error = middle_us(bucket) / us as f64 - 1.0;
            assert!(us < 8 || error.abs() < 0.13, "{us} is said to be {}", middle_us(bucket));
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }
}
